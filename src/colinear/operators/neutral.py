"""What NumPy computes for others: functions of operators that have no framework yet, such as a
permutation, of JAX's arrays in the memory of the host, and of small tensors of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..backends import Array, namespace_of
from ..dispatch.calls import NotLent, may_lend
from ..errors import ColinearError, ConvergenceError
from ..info import Info, state
from . import convert
from .base import LinearOperator
from .context import Context, join_dtypes, known_in
from .tree import map_parts

# ------------------------------------------------------------------ operators without a framework
#
# A function of an operator that holds no floats is computed in NumPy. What it returns is neutral
# all the same: it takes framework, dtype and device from what it meets. Until then its leaves are
# NumPy's, and a product moves them.


def release(A: LinearOperator, arguments: tuple[Any, ...], result: Any) -> Any:
    """The result of a function of a neutral A, neutral where no other argument tells a
    framework."""
    if any(isinstance(x, LinearOperator) or namespace_of(x) for x in arguments):
        return result
    if type(result) is tuple:
        return tuple([release(A, (), part) for part in result])
    return released(result, A._context.dtype) if isinstance(result, LinearOperator) else result


def released(B: LinearOperator, dtype: Any) -> LinearOperator:
    """An operator of NumPy's arrays that takes framework, dtype (unless that is told) and device
    from what it meets, as do its parts."""
    if "_is_released" in B.__dict__ or not B.arrays():
        return B
    told: Any = complex if B.is_complex else None
    if isinstance(dtype, np.dtype) and (dtype.kind == "c" or not B.is_complex):
        told = dtype

    def part(name: str) -> Any:
        value = getattr(B, name)
        if name in B._scalars and isinstance(value, np.ndarray) and value.ndim == 0:
            return value.item()
        return map_parts(value, lambda C: released(C, dtype), lambda leaf: leaf)

    copy = B._replace(**{name: part(name) for name in B._dynamic})
    if copy.arrays():
        copy.__dict__.update(_context=Context(None, told), _is_released=True)
    return copy


def placed_beside(A: LinearOperator, x: Array) -> LinearOperator:
    """Such an operator in the framework and precision of an array, and on its device."""
    xp = namespace_of(x)
    dtype = xp.real_dtype(x.dtype)
    if A._context.dtype is not None:
        dtype = join_dtypes(xp, dtype, A._context.dtype)
    return convert.move_beside(A, xp, xp.device_of(x), dtype)


def dense_part(A: LinearOperator, whole: LinearOperator) -> Array:
    """The matrix of an operand; a neutral one takes framework, dtype and device from what it is
    part of."""
    if A.is_neutral and not whole.is_neutral:
        A = A.to(whole.backend, whole._context.device, whole.dtype)
    elif A.is_neutral and A._context.dtype != whole._context.dtype:
        A = A.to(dtype=whole.dtype)
    return A._dense()


def carry(A: LinearOperator, image: LinearOperator) -> LinearOperator:
    """Claims of A passed to its transpose, adjoint or conjugate: all survive, but Stiefel only
    where the shape stays."""
    if A._claims and image.shape[-2:] == A.shape[-2:]:
        image = image._claim(A._claims)
    return released(image, A._context.dtype) if "_is_released" in A.__dict__ else image


# ------------------------------------------------------------------ arrays lent to NumPy
#
# JAX compiles whatever it computes, even once, and a small operation takes torch three times as
# long as NumPy. So where a user calls a function of arrays that lie in the host's memory, small
# ones if they are torch's, and nothing traces or records what is computed of them, NumPy computes
# it, of an operator that shares their memory. Nothing is lent that runs code of the user's: that
# code is written for its framework. Nor is anything random, since the numbers that a framework
# draws for a key are not NumPy's.


def by_numpy(
    f: Callable[..., Any], A: LinearOperator, arguments: tuple[Any, ...] = (), *options: Any
) -> Any:
    """`f(A, arguments, *options)` of another framework's arrays, computed by NumPy;
    `NotImplemented` where they cannot be lent."""
    xp = A.xp
    if not (may_lend() and xp.may_lend(A._context)) or A.__dict__.get("_twin", A) is None:
        return NotImplemented
    loan = _Loan(A)
    if not (loan.is_kept or loan.begin(A)):
        return NotImplemented
    try:
        twin, others = loan.operator(A), tuple([loan.argument(x) for x in arguments])
        state.is_lent = True  # let no code of the user's run meanwhile
        try:
            result = f(twin, others, *options)
        finally:
            state.is_lent = False
        return loan.returned(result)
    except ConvergenceError as failure:
        failure.info = loan.returned(failure.info)
        raise
    except (NotLent, RecursionError, ColinearError):
        return NotImplemented  # what is wrong with the input is said in terms of its framework


KINSHIP = ("_transpose_of", "_adjoint_of")  # memos by which a product B^H B is known to be PSD


class _Loan:
    """The arrays lent for one call, and how its result becomes its framework's again."""

    def __init__(self, A: LinearOperator) -> None:
        self.xp = xp = A.xp
        _, self.dtype, self.home = A._context
        self.known = known_in(Context("numpy", xp.host_dtype(self.dtype), "cpu"))
        # None where JAX puts new arrays by itself, so that these may still be moved
        self.device = None if self.home == xp.usual_device() else self.home
        self.is_kept = xp.is_functional  # whether A keeps its twin, as no one can change its arrays
        self.is_shared = False  # whether the user has an array of NumPy's that the result may be
        # each array or operator that was lent or given back, and its copy, by its id
        self._copies: dict[int, tuple[Any, Any]] = {}

    # ---------------------------------------------------------------- to NumPy

    def begin(self, A: LinearOperator) -> bool:
        """Lend the first array of A; return whether that can be done: sooner known than by an
        exception."""
        while A.operands:
            A = A.operands[0]
        first = getattr(A, A._fields[0]) if A._fields else None
        return not isinstance(first, self.xp.array_types) or self.lend(first)

    def operator(self, A: LinearOperator) -> LinearOperator:
        """A with NumPy's arrays."""
        if A._context.backend is None:
            return A
        if not self.is_kept:
            copy = self._copies.get(id(A))
            if copy is None:
                copy = self._copies[id(A)] = A, self._twin(A)
            return copy[1]
        known = A.__dict__
        if "_twin" not in known:
            known["_twin"] = None  # until it is known better
            known["_twin"] = self._twin(A)
        if known["_twin"] is None:
            raise NotLent
        return known["_twin"]

    def _twin(self, A: LinearOperator) -> LinearOperator:
        if not (A._is_own and A._may_be_lent):
            raise NotLent
        twin, known = object.__new__(type(A)), A.__dict__
        memos = twin.__dict__
        memos.update(self.known)
        dynamic, usual = A._dynamic, self.xp.array_types
        for name in A._fields:
            value = known[name]
            if type(value) in usual:
                value = self._array(value)
            elif name in dynamic:
                value = map_parts(value, self.operator, self._array)
            elif isinstance(value, Context):
                value = value if value.backend is None else self.known["_context"]
            elif not is_plain(value):
                raise NotLent
            memos[name] = value
        memos["_twin_of"] = A
        for name in ("_claims", "shape", "properties", "_dynamic", "_signature"):
            if name in known:
                memos[name] = known[name]
        for name in KINSHIP:
            if name in known:
                memos[name] = self.operator(known[name])
        return twin

    def _array(self, x: Any) -> Any:
        if id(x) in self._copies:
            return self._copies[id(x)][1]
        xp = namespace_of(x)
        if xp is not self.xp:
            if xp is None:
                return x
            if not (self.xp.is_functional and isinstance(x, np.ndarray)):
                raise NotLent  # but for NumPy's, which all of JAX takes
            self.is_shared = True
            return x
        if not self.lend(x):
            raise NotLent
        return self._copies[id(x)][1]

    def lend(self, x: Array) -> bool:
        """Lend an array of the framework; return whether that can be done."""
        values = self.xp.lend(x, self.dtype, self.home)
        self._copies[id(x)] = x, values  # x is kept, or another might get its id
        return values is not None

    def argument(self, x: Any) -> Any:
        """An argument with NumPy's arrays."""
        if x is None or type(x) in (bool, int, float, str):
            return x
        if type(x) in self.xp.array_types or namespace_of(x) is not None:
            return self._array(x)
        if isinstance(x, LinearOperator):
            if not x.is_neutral and x._context[::2] != (self.xp.name, self.home):
                raise NotLent
            return self.operator(x)
        if isinstance(x, (tuple, list)):
            return type(x)([self.argument(item) for item in x])
        if callable(x):
            return self._function(x)
        if not is_plain(x):
            raise NotLent
        return x

    def _function(self, f: Callable[[Array], Array]) -> Callable[[Array], Array]:
        """A user's function of numbers, of the framework's arrays and of NumPy's."""
        xp, device = self.xp, self.device

        def of_either(x: Array) -> Array:
            if namespace_of(x) is xp:
                return f(x)
            values = f(xp.asarray(x, device=device))
            if namespace_of(values) is not xp:
                return values
            lent = xp.lend(values, values.dtype, None)
            if lent is None:
                raise NotLent  # it closes over what is traced
            return lent

        return of_either

    # ---------------------------------------------------------------- and back

    def returned(self, x: Any) -> Any:
        """A result with the framework's arrays."""
        if isinstance(x, (np.ndarray, np.generic)):
            return self._returned_array(x)
        if isinstance(x, LinearOperator):
            return self._returned_operator(x)
        if isinstance(x, Info):
            names = ("converged", "residual", "error", "history", "children")
            return x.replace(**{name: self.returned(getattr(x, name)) for name in names})
        if isinstance(x, (tuple, list)):
            parts = [self.returned(part) for part in x]
            return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
        return x

    def _returned_operator(self, A: LinearOperator) -> LinearOperator:
        if "_twin_of" in A.__dict__:
            return A.__dict__["_twin_of"]
        if A.is_neutral:
            return A
        if id(A) in self._copies:
            return self._copies[id(A)][1]
        if not convert.fits(A, self.xp):
            raise NotLent
        changes = {}
        for name in A._fields:
            value = getattr(A, name)
            if name in A._dynamic:
                changes[name] = map_parts(value, self._returned_operator, self._returned_array)
            elif isinstance(value, Context) and value.backend is not None:
                changes[name] = Context(self.xp.name, self.xp.dtype_from(value.dtype), self.device)
        copy = A._replace(**changes)
        self._copies[id(A)] = A, copy
        for name in KINSHIP:
            if name in A.__dict__:
                copy.__dict__[name] = self._returned_operator(A.__dict__[name])
        if "_reports" in A.__dict__:  # how a factorisation went
            copy.__dict__["_reports"] = self.returned(A.__dict__["_reports"])
        return copy

    def _returned_array(self, x: Any) -> Any:
        if not isinstance(x, (np.ndarray, np.generic)):
            return x
        copy = self._copies.get(id(x))
        if copy is None:
            make = self.xp.asarray if self.is_shared else self.xp.adopt
            copy = self._copies[id(x)] = x, make(np.asarray(x), device=self.device)
        return copy[1]


def is_plain(value: Any) -> bool:
    """Whether a value runs no code of the user's, holds no arrays and draws no random numbers."""
    if getattr(type(value), "_is_method", False):
        return not value.is_stochastic and all(
            is_plain(option) and not isinstance(option, LinearOperator)
            for option in vars(value).values()
        )
    return isinstance(value, type) or not (callable(value) or namespace_of(value))
