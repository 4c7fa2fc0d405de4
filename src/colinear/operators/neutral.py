"""What NumPy computes for others: functions of operators that have no framework yet, such as a
permutation, and of JAX's arrays in the memory of the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from .. import backends
from ..backends import Array, namespace_of
from ..dispatch.calls import NotLent, is_own, may_lend
from ..errors import ColinearError, ConvergenceError
from ..info import Info, state
from . import convert
from .base import LinearOperator
from .context import Context, join_dtypes
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
    if isinstance(result, tuple) and type(result) is tuple:
        return tuple([release(A, (), part) for part in result])
    return released(result, A._context.dtype) if isinstance(result, LinearOperator) else result


def released(B: LinearOperator, dtype: Any) -> LinearOperator:
    """An operator of NumPy's arrays that takes framework, dtype (unless that is told) and device
    from what it meets, as do its parts."""
    if "_is_released" in B.__dict__ or all(namespace_of(leaf) is None for leaf in B.leaves()):
        return B
    is_complex = B.is_complex
    told = (
        dtype
        if isinstance(dtype, np.dtype) and (dtype.kind == "c" or not is_complex)
        else complex
        if is_complex
        else None
    )
    copy = B._replace(
        **{
            name: _released_field(getattr(B, name), name in B._scalars, dtype)
            for name in B._dynamic
        }
    )
    if any(namespace_of(leaf) is not None for leaf in copy.leaves()):
        copy.__dict__.update(_context=Context(None, told), _is_released=True)
    return copy


def _released_field(value: Any, is_scalar: bool, dtype: Any) -> Any:
    if isinstance(value, LinearOperator):
        return released(value, dtype)
    if isinstance(value, (tuple, list)):
        return type(value)(_released_field(item, is_scalar, dtype) for item in value)
    return (
        value.item() if is_scalar and isinstance(value, np.ndarray) and value.ndim == 0 else value
    )


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


# ------------------------------------------------------------------ arrays lent by JAX
#
# JAX compiles whatever it computes, even once. So where a user calls a function of JAX's arrays
# that lie in the host's memory and whose values can be seen, NumPy computes it, of an operator
# that shares their memory. Nothing is lent that runs code of the user's: that code is written for
# JAX. Nor is anything random, since JAX's numbers for a key are not NumPy's.


def by_numpy(f: Callable[..., Any], A: LinearOperator, *arguments: Any) -> Any:
    """`f(A, *arguments)` of JAX's arrays, computed by NumPy; `NotImplemented` where they are not
    JAX's or cannot be lent."""
    if A._context.backend != "jax" or not may_lend() or A.__dict__.get("_twin", A) is None:
        return NotImplemented
    loan = _Loan(A._context.device)
    try:
        with loan.granted():
            result = f(loan.operator(A), *[loan.argument(x) for x in arguments])
        return loan.returned(result)
    except ConvergenceError as failure:
        failure.info = loan.returned(failure.info)
        raise
    except (NotLent, RecursionError, ColinearError):
        return NotImplemented  # what is wrong with the input is said in terms of JAX


class _Loan:
    """The arrays lent for one call, and how its result becomes JAX's again."""

    def __init__(self, device: Any) -> None:
        self.xp = backends.get("jax")
        self.home = device  # of the operator
        # None where JAX puts new arrays by itself, so that these may still be moved
        self.device = None if device == self.xp.usual_device() else device
        self.is_shared = False  # whether the user has an array of NumPy's that the result may be
        self._arrays: dict[int, Any] = {}  # the one copy of each, by the id of the other

    @contextmanager
    def granted(self) -> Iterator[None]:
        """Let no code of the user's run meanwhile."""
        state.is_lent = True
        try:
            yield
        finally:
            state.is_lent = False

    # ---------------------------------------------------------------- to NumPy

    def operator(self, A: LinearOperator) -> LinearOperator:
        """A with NumPy's arrays, made once."""
        known = A.__dict__
        if "_twin" not in known:
            object.__setattr__(A, "_twin", None)  # until it is known better
            object.__setattr__(A, "_twin", A if A.is_neutral else self._twin(A))
        if known["_twin"] is None:
            raise NotLent
        return known["_twin"]

    def _twin(self, A: LinearOperator) -> LinearOperator:
        if not is_own(type(A)):
            raise NotLent
        changes = {}
        for name in A._fields:
            value = getattr(A, name)
            if isinstance(value, Context):
                is_placed = value.backend is not None
                changes[name] = Context("numpy", value.dtype, "cpu") if is_placed else value
            elif name in A._dynamic:
                changes[name] = map_parts(value, self.operator, self._array)
            elif not _is_plain(value):
                raise NotLent
        twin = A._replace(**changes)
        twin.__dict__.update(_twin_of=A, properties=A.properties)
        for name in ("_transpose_of", "_adjoint_of"):
            if name in A.__dict__:
                twin.__dict__[name] = self.operator(A.__dict__[name])
        return twin

    def _array(self, x: Any) -> Any:
        if isinstance(x, np.ndarray):
            self.is_shared = True
        if namespace_of(x) is None or isinstance(x, np.ndarray):
            return x
        is_lendable = namespace_of(x) is self.xp and self.xp.is_on_host(x)
        if not is_lendable or (self.home is not None and x.device != self.home):
            raise NotLent
        if id(x) not in self._arrays:
            # the array is kept, or another might get its id
            self._arrays[id(x)] = x, self.xp.to_numpy(x)
        return self._arrays[id(x)][1]

    def argument(self, x: Any) -> Any:
        """An argument with NumPy's arrays."""
        if isinstance(x, LinearOperator):
            if not x.is_neutral and x._context[::2] != ("jax", self.home):
                raise NotLent
            return self.operator(x)
        if namespace_of(x) is not None:
            return self._array(x)
        if isinstance(x, (tuple, list)):
            return type(x)([self.argument(item) for item in x])
        if callable(x):
            return self._function(x)
        if not _is_plain(x):
            raise NotLent
        return x

    def _function(self, f: Callable[[Array], Array]) -> Callable[[Array], Array]:
        """A user's function of numbers, of JAX's arrays and of NumPy's."""
        xp, device = self.xp, self.device

        def of_either(x: Array) -> Array:
            if namespace_of(x) is xp:
                return f(x)
            values = f(xp.asarray(x, device=device))
            if namespace_of(values) is not xp:
                return values
            if not xp.is_on_host(values):
                raise NotLent  # it closes over what is traced
            return xp.to_numpy(values)

        return of_either

    # ---------------------------------------------------------------- and back

    def returned(self, x: Any) -> Any:
        """A result with JAX's arrays."""
        if isinstance(x, LinearOperator):
            return self._returned_operator(x)
        if isinstance(x, (np.ndarray, np.generic)):
            return self._returned_array(x)
        if isinstance(x, Info):
            return x.replace(
                **{
                    name: self.returned(getattr(x, name))
                    for name in ("converged", "residual", "error", "history", "children")
                }
            )
        if isinstance(x, (tuple, list)):
            parts = [self.returned(part) for part in x]
            return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
        return x

    def _returned_operator(self, A: LinearOperator) -> LinearOperator:
        if "_twin_of" in A.__dict__:
            return A.__dict__["_twin_of"]
        if A.is_neutral:
            return A
        if not convert.fits(A, self.xp):
            raise NotLent
        changes = {
            name: map_parts(getattr(A, name), self._returned_operator, self._returned_array)
            for name in A._dynamic
        }
        for name in A._fields:
            value = getattr(A, name)
            if isinstance(value, Context) and value.backend is not None:
                changes[name] = Context("jax", self.xp.dtype_from(value.dtype), self.device)
        copy = A._replace(**changes)
        if "_reports" in A.__dict__:  # how a factorisation went
            copy.__dict__["_reports"] = self.returned(A.__dict__["_reports"])
        return copy

    def _returned_array(self, x: Any) -> Any:
        if not isinstance(x, (np.ndarray, np.generic)):
            return x
        if id(x) not in self._arrays:
            make = self.xp.asarray if self.is_shared else self.xp.adopt
            self._arrays[id(x)] = x, make(np.asarray(x), device=self.device)
        return self._arrays[id(x)][1]


def _is_plain(value: Any) -> bool:
    """Whether a value runs no code of the user's, holds no arrays and draws no random numbers."""
    if getattr(type(value), "_is_method", False):
        return not value.is_stochastic and all(
            _is_plain(option) and not isinstance(option, LinearOperator)
            for option in vars(value).values()
        )
    return isinstance(value, type) or not (callable(value) or namespace_of(value))
