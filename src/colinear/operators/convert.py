"""In and out: other libraries' matrices and operators as ours, ours as SciPy's, and moves between
frameworks, devices and dtypes.

SciPy's sparse modules are looked up in `sys.modules` and never imported to ask a question: an
object of theirs has loaded them.
"""

from __future__ import annotations

import math
import numbers
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from .. import backends
from ..backends import Array, namespace_of
from ..dispatch import calls
from ..errors import BackendError, DtypeError, ShapeError, TooLargeError
from ..rates import memory_of
from .base import LinearOperator
from .context import (
    Context,
    as_array,
    as_one_block,
    check_dtype,
    is_complex_number,
    join_dtypes,
    plain_array,
    told_by_number,
)
from .neutral import by_numpy
from .tree import inside_out, map_parts

# ------------------------------------------------------------------ in


def as_operator(x: Any) -> LinearOperator:
    """`x` as an operator: ours unchanged, arrays as `Dense`, sparse matrices as `Sparse`, anything
    that multiplies as `MatrixFree`.

    Parameters
    ----------
    x : array, sparse matrix or linear operator
        An array of NumPy, PyTorch or JAX (or nested lists) of at least two dimensions, a sparse
        matrix of SciPy, torch (COO, CSR) or JAX (BCOO, BCSR), an operator of SciPy, PyLops or
        PyAMG, any object with `shape` and `matvec`, or an array of Dask, Zarr or HDF5, whose chunks
        are computed or read one at a time, in every product.

    Examples
    --------
    >>> import numpy as np
    >>> from colinear import as_operator
    >>> as_operator(np.eye(3))
    <Dense 3x3 float64 numpy>
    """
    if isinstance(x, LinearOperator):
        return x
    if type(x) is np.ndarray and x.ndim >= 2:
        return Dense(x)
    xp = namespace_of(x)
    if _is_sparse(x, xp):
        return Sparse(x)
    if xp is None and _multiplies(x):
        return _matrix_free(x)
    if xp is None and is_lazy(x):
        return streamed(x)
    return _dense(x, xp)


def as_operators(operands: Iterable[Any]) -> list[LinearOperator]:
    """Each as an operator; NumPy's arrays beside operators or arrays of JAX become JAX's, as
    everywhere in JAX."""
    operands = list(operands)
    if len(set(map(type, operands))) > 1 and any(map(_is_jax, operands)):
        xp = backends.get("jax")
        operands = [
            xp.asarray(as_array(x, "as_operator")) if isinstance(x, np.ndarray) else x
            for x in operands
        ]
    return [as_operator(x) for x in operands]


def _is_jax(x: Any) -> bool:
    if isinstance(x, LinearOperator):
        return x._context.backend == "jax"
    xp = namespace_of(x)
    return xp is not None and xp.name == "jax"


def is_convertible(x: Any) -> bool:
    """Whether `x` is a matrix or operator of another library that is not a plain array: what
    arithmetic passes to `as_operator`."""
    xp = namespace_of(x)
    return _is_sparse(x, xp) or (
        xp is None and not isinstance(x, LinearOperator) and _multiplies(x)
    )


def _is_sparse(x: Any, xp: Any) -> bool:
    if xp is not None:
        return xp.name == "torch" and str(x.layout) != "torch.strided"
    scipy_sparse = sys.modules.get("scipy.sparse")
    if scipy_sparse is not None and scipy_sparse.issparse(x):
        return True
    return type(x).__module__.startswith("jax.experimental.sparse") and hasattr(x, "todense")


def _multiplies(x: Any) -> bool:
    """The least that a linear operator of any library has."""
    return hasattr(x, "shape") and callable(getattr(x, "matvec", None)) and not isinstance(x, type)


def _dense(x: Any, xp: Any) -> LinearOperator:
    if xp is not None and x.ndim >= 2:
        return Dense(x)
    if callable(x) or not (
        xp is not None
        or isinstance(x, (list, tuple, numbers.Number, np.generic))
        or hasattr(x, "__array__")
    ):
        given = f"the string {x[:20]!r}" if isinstance(x, str) else type(x).__name__
        advice = (
            " Use MatrixFree(matmat, shape) for a function."
            if callable(x) and not isinstance(x, type)
            else ""
        )
        raise DtypeError(
            "as_operator: expected a matrix or a linear operator, not "
            f"{'None' if x is None else given}.{advice}"
        )
    x = plain_array(x, "as_operator")
    ndim = np.ndim(x)
    if ndim < 2:
        advice = (
            "Use Diagonal(d) for a diagonal matrix, x[:, None] for a column."
            if ndim
            else "Use ScaledIdentity(c, n) for c I."
        )
        raise ShapeError(
            f"as_operator: expected a matrix of at least two dimensions, not an array of {ndim}. "
            f"{advice}"
        )
    return Dense(x)


def _matrix_free(x: Any) -> LinearOperator:
    """An operator of another library. Such operators are NumPy's unless they say otherwise, and
    have no batch dimensions."""
    shape = tuple(int(size) for size in x.shape)
    if len(shape) != 2:
        raise ShapeError(
            f"as_operator: {type(x).__name__} has shape {shape}; expected two dimensions."
        )
    matmat = _ForeignProduct(x, "matmat", "matvec")
    rmatmat = _ForeignProduct(x, "rmatmat", "rmatvec") if _has_adjoint(x) else None
    dtype = getattr(x, "dtype", None)
    if dtype is None:
        dtype = np.asarray(x.matvec(np.zeros(shape[1]))).dtype
    check_dtype("as_operator", np.dtype(dtype))
    if np.dtype(dtype).kind not in "fc":
        dtype = np.dtype(np.float64)
    return MatrixFree(matmat, shape, dtype=dtype, rmatmat=rmatmat, like="numpy")


class _ForeignProduct:
    """The product of another library's operator with blocks: such operators take one block at a
    time, some only one vector.

    An object rather than a closure, so that it hashes, compares and pickles as the operator in it
    does.
    """

    def __init__(self, operator: Any, block: str, vector: str):
        self.operator, self.block, self.vector = operator, block, vector
        self.__name__ = type(operator).__name__

    def __call__(self, X: Array) -> Array:
        return as_one_block(self._multiply, X)

    def _multiply(self, columns: Array) -> Array:
        multiply = getattr(self.operator, self.block, None)
        if callable(multiply):
            return np.asarray(multiply(columns))
        single = getattr(self.operator, self.vector)
        parts = [np.reshape(single(column), (-1,)) for column in columns.T]
        rows = self.operator.shape[0 if self.vector == "matvec" else 1]
        return np.stack(parts, axis=-1) if parts else np.zeros((rows, 0), dtype=columns.dtype)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ForeignProduct) and hash(self) == hash(other)

    def __hash__(self) -> int:
        return hash((id(self.operator), self.block))


def _has_adjoint(x: Any) -> bool:
    """Whether an operator multiplies by its adjoint. SciPy's always have the method, which may
    fail or recurse for ever when called."""
    if not hasattr(x, "rmatvec") and not hasattr(x, "rmatmat"):
        return False
    try:
        x.rmatvec(np.zeros(x.shape[0], dtype=getattr(x, "dtype", None)))
    except (NotImplementedError, RecursionError, TypeError, AttributeError):
        return False
    return True


# ------------------------------------------------------------------ between frameworks, devices and


def move(
    A: LinearOperator, backend: str | None = None, device: Any = None, dtype: Any = None
) -> LinearOperator:
    """A with its leaves in another framework, on another device or of another dtype; what is None
    stays as it is.

    Frameworks are crossed through NumPy, so gradients end there. Real operators become complex,
    complex ones never real: take the real part of what you built it from.
    """
    target = A.xp if backend is None else backends.get(backend)
    wanted = None if dtype is None else _dtype_for(target, dtype)
    if wanted is not None and not target.is_floating(wanted):
        raise DtypeError(
            f"to: dtype={target.dtype_name(wanted)}; operators are real or complex floating point."
        )
    if wanted is not None and not target.is_complex(wanted):
        if A.is_complex or any(map(is_complex_number, A.leaves())):
            raise DtypeError(
                f"to: the operator is {A.xp.dtype_name(A.dtype)} and "
                f"dtype={target.dtype_name(wanted)} would drop imaginary parts."
            )
    if device is not None:
        # "cuda" is "cuda:0", say
        device = target.device_of(target.to_device(target.zeros(()), device))
    stays_neutral = A.is_neutral and backend is None and device is None
    return _Move(target, device, wanted, stays_neutral).tree(A)


def require_gradients(A: LinearOperator, requires_grad: bool) -> LinearOperator:
    """A, whose arrays of floats torch differentiates with respect to, or no longer."""
    if A.backend != "torch":
        raise BackendError(
            f"requires_grad_: the operator is {A.backend}'s, and only torch's arrays have the flag. "
            + ("Use jax.grad." if A.backend == "jax" else "Move it first: A.to('torch').")
        )
    for leaf in A.arrays():
        if A.xp.is_floating(leaf):
            leaf.requires_grad_(requires_grad)
    return A


def sort_places(places: Iterable[Any], dtype: Any) -> tuple[Any, Any, Any]:
    """Framework, device and dtype of `A.to(place, place)`, each known by its type or, if text,
    by its name."""
    found = {"backend": None, "device": None, "dtype": dtype}
    for place in places:
        if place is None:
            continue
        kind = _kind_of_place(place)
        if found[kind] is not None:
            raise TypeError(
                f"to: two of {kind}, {found[kind]!r} and {place!r}. Write A.to(backend=, device=, "
                "dtype=)."
            )
        found[kind] = place
    return found["backend"], found["device"], found["dtype"]


def _kind_of_place(place: Any) -> str:
    if isinstance(place, str):
        if place in backends.KNOWN:
            return "backend"
        if place.partition(":")[0] in ("cpu", "cuda", "gpu", "tpu", "mps", "xpu", "meta"):
            return "device"
    if is_dtype(place) or isinstance(place, str):
        try:
            _dtype_for(backends.get("numpy"), "float32" if place == "bfloat16" else place)
            return "dtype"
        except DtypeError:
            pass
    elif isinstance(place, int) or type(place).__name__.endswith(("device", "Device", "Sharding")):
        return "device"
    names = ", ".join(map(repr, backends.KNOWN))
    raise ValueError(
        f"to: there is no backend {place!r}, and it is no device or dtype either. Give one of "
        f"{names}, or device= or dtype=."
    )


def is_dtype(x: Any) -> bool:
    """Whether x is a dtype of a framework by its type; text may be one as well."""
    return (
        isinstance(x, (type, np.dtype))
        or type(x).__name__ == "dtype"
        or (callable(x) and hasattr(x, "dtype"))
    )


def scaled_context(A: LinearOperator, carried: Any) -> LinearOperator:
    """A neutral operator in the dtype that a NumPy scalar carries which multiplies it: see
    `Context`."""
    dtype = told_by_number(A._context, carried).dtype
    return A if dtype == A._context.dtype else _Move(A.xp, None, dtype, stays_neutral=True).tree(A)


def move_beside(A: LinearOperator, target: Any, device: Any, dtype: Any) -> LinearOperator:
    """A in the framework and on the device, each leaf in the precision of the dtype, real or
    complex as it is."""
    return _Move(target, device, dtype, False, True).tree(A)


def fits(A: LinearOperator, xp: Any) -> bool:
    """Whether A's arrays mean the same in this backend, as all do but some factors."""
    own = getattr(A, "_fits", None)
    return own is None or own(xp)


class _Move(NamedTuple):
    """Where to: a backend module, a device and a dtype, each None for no change."""

    target: Any
    device: Any
    dtype: Any
    stays_neutral: bool
    keeps_kind: bool = False  # complex leaves stay complex, real ones real

    def tree(self, A: LinearOperator) -> LinearOperator:
        """A with its leaves moved and the contexts of neutral operators pinned."""
        if not fits(A, self.target):
            raise BackendError(
                f"to: {type(A).__name__} holds factors of {A.xp.name}'s, with which "
                f"{self.target.name} cannot solve. Move the operator, and factor it there."
            )
        changes = {name: map_parts(getattr(A, name), self.tree, self.leaf) for name in A._dynamic}
        for name in A._fields:
            if isinstance(context := getattr(A, name), Context):
                changes[name] = self.context(A, context)
        return A._replace(**changes) if changes else A

    def leaf(self, leaf: Any) -> Any:
        """An array in its new place."""
        source, target, dtype = namespace_of(leaf), self.target, self.dtype
        if source is None:
            return leaf  # Python scalars mix with all frameworks
        if self.keeps_kind:
            dtype = (target.complex_dtype if source.is_complex(leaf) else target.real_dtype)(dtype)
        floating = source.is_floating(leaf)
        if source is target:
            if floating and dtype is not None and leaf.dtype != dtype:
                leaf = target.astype(leaf, dtype)
            return leaf if self.device is None else target.to_device(leaf, self.device)
        if floating and dtype is None:
            dtype = _dtype_for(target, source.dtype_name(leaf.dtype))
        return target.asarray(
            source.to_numpy(leaf), dtype=dtype if floating else None, device=self.device
        )

    def context(self, A: LinearOperator, context: Context) -> Context:
        """The context of an operator that holds no floats, after the move."""
        source = backends.get(context.backend or "numpy")
        functions = [
            name for name in A._fields if name not in A._dynamic and callable(getattr(A, name))
        ]
        if context.backend is not None and self.target is not source and functions:
            raise BackendError(
                f"to: {type(A).__name__} multiplies by a function of {source.name}'s arrays, "
                f"which cannot be moved to {self.target.name}."
            )
        dtype, own = self.dtype, context.dtype
        if dtype is None and own is not None:
            if not isinstance(own, type):
                dtype = _dtype_for(self.target, source.dtype_name(own))
            elif self.stays_neutral:
                dtype = own
            else:
                dtype = join_dtypes(self.target, self.target.default_float(), own)
        if self.stays_neutral:
            return Context(None, dtype, None)
        return Context(
            self.target.name,
            dtype,
            context.device if self.device is None and self.target is source else self.device,
        )


def _dtype_for(xp: Any, dtype: Any) -> Any:
    """A dtype of one framework, named by a string or by any framework's own object."""
    for spelling in (lambda dtype: dtype, *(other.dtype_name for other in backends.loaded())):
        try:
            found = xp.dtype_from(spelling(dtype))
        except (TypeError, ValueError, AttributeError, KeyError):
            continue
        if found is not None:
            return found
    raise DtypeError(f"to: {dtype!r} is not a dtype that {xp.name} has.")


# ------------------------------------------------------------------ out


def to_scipy(A: LinearOperator) -> Any:
    """A `scipy.sparse.linalg.LinearOperator` that multiplies by A: NumPy arrays in and out,
    whatever A's framework."""
    from scipy.sparse.linalg import LinearOperator as SciPyOperator

    if A.batch_shape:
        raise ShapeError(
            f"to_scipy: the operator has batch shape {A.batch_shape}; SciPy's have none. Take "
            "one: A[0]."
        )
    xp, device, dtype = A.xp, A._context.device, A.xp.dtype_name(A.dtype)

    def multiply(B: LinearOperator, X: Any) -> Any:
        met = xp.complex_dtype(A.dtype) if np.iscomplexobj(X) else A.dtype
        product = xp.to_numpy(B @ xp.asarray(X, dtype=met, device=device))
        # SciPy works in place; JAX lends its memory to read
        return product if product.flags.writeable else product.copy()

    def forward(X: Any) -> Any:
        return multiply(A, X)

    def back(X: Any) -> Any:
        return multiply(A.H, X)

    return SciPyOperator(
        shape=A.shape,
        dtype=np.dtype(np.float32 if dtype == "bfloat16" else dtype),
        matvec=forward,
        matmat=forward,
        rmatvec=back,
        rmatmat=back,
    )


def to_dense(A: LinearOperator) -> Array:
    """The matrix, as a new array; an error where it is not there and larger than the memory
    there is."""
    size = math.prod(A.shape) * getattr(A.dtype, "itemsize", 8)
    if size > (memory := memory_of(A)) and size > 2 * A.nbytes:
        raise TooLargeError(
            f"to_dense: A is {'x'.join(map(str, A.shape))}, and its matrix would take "
            f"{size / 2**30:.3g} GiB; this machine has {memory / 2**30:.3g} GiB on {A.device}. "
            "Multiply by A, or take a part of it: A[rows, columns]."
        )
    if A._context.backend in calls.LENDERS:
        lent = by_numpy(lambda A, _: A.to_dense(), A)
        if lent is not NotImplemented:
            return lent
    memos = [value for part in inside_out(A) for value in vars(part).values()]
    dense = A._dense()
    return namespace_of(dense).own(dense, (*A.leaves(), *memos))


def flattened(family: Any, operators: Iterable[Any]) -> list[Any]:
    """The operators, each of this family replaced by its operands."""
    found: list[Any] = []
    for A in operators:
        found.extend(A.operands if isinstance(A, family) else (A,))
    return found


def operator_list(what: str, operands: tuple[Any, ...]) -> list[LinearOperator]:
    """The operands of a composed operator, given one by one or as one list."""
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    if not operands:
        raise ValueError(f"{what}: at least one operator is needed.")
    for A in operands:
        if not isinstance(A, LinearOperator):
            return as_operators(operands)
    return list(operands)


# These convert what they are given.
from .dense import Dense
from .matrixfree import MatrixFree
from .sparse import Sparse
from .streamed import is_lazy, streamed
