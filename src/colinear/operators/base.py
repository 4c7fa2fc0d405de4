"""`LinearOperator`: an immutable tree of arrays that knows its shape and how to multiply.

A family is a final subclass. Its fields are its class annotations; the base turns them into a
frozen dataclass and a pytree. It must define `shape` and `_matmat`; everything else here is derived
from those two, and may be replaced by the family's own formula:

    _matvec(x), _rmatmat(X)   A x for one vector, where that is faster than a block; A^H X
    _adjoint() _transpose() _conj()    as operators
    _to_dense()     the matrix
    _implied, _inherited    the properties that all have, and that one has if its operands do
    _infer()        these two, and what else the fields imply
    _flops, _dense_flops    of one matvec, and of forming the matrix
    _term_count, _some_terms, _rows    of a sum, for minibatches: see terms.py
    _expression()   how it prints
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform, overload

import numpy as np

from .. import backends
from ..backends import Array, namespace_of
from ..clock import CLOCKS, OTHER, PRODUCTS, running
from ..dispatch import calls, signatures
from ..dispatch.patterns import Pattern
from ..errors import ShapeError
from ..properties import CLOSED, SELF_ADJOINT, SYMMETRIC
from . import protocols
from .context import (
    NUMPY_PLACES,
    Context,
    as_array,
    broadcast_batches,
    check_device,
    check_dtype,
    common_context,
    context_of,
    from_numpy,
    kind_of,
    misfit,
    plain_array,
    promoted,
    spread,
)
from .protocols import ArrayT, Protocols
from .tree import (
    KINDS,
    TEST_HOOKS,
    Shape,
    Tree,
    _remember,
    _set_field_once,
    _walk,
    bytes_in,
    inside_out,
    memo,
    own_fields,
    tell_watchers,
)

_FAMILIES: list[type[LinearOperator]] = []

if TYPE_CHECKING:

    class Kind(type):  # type checkers know no other way to say that `Sum[LowRank, Diagonal]` is one
        def __getitem__(cls, children: Any) -> Pattern: ...

else:
    Kind = type


@dataclass_transform(eq_default=False, frozen_default=True)
class LinearOperator(Tree, Protocols, metaclass=Kind):
    """A linear map between finite-dimensional spaces, real or complex, possibly a batch of them.

    Attributes
    ----------
    shape : tuple of int
        `(*batch, m, n)`.
    dtype, device, backend
        Of its arrays. `backend` is `"numpy"`, `"torch"` or `"jax"`.
    batch_shape : tuple of int
        All of the shape but its last two.
    operands : tuple of LinearOperator
        What a composed operator is composed of; empty otherwise.

    Examples
    --------
    Fields, `shape` and `_matmat` make an operator:

    >>> import colinear as co, numpy as np
    >>> class Shift(co.LinearOperator):
    ...     n: int
    ...
    ...     @property
    ...     def shape(self):
    ...         return (self.n, self.n)
    ...
    ...     def _matmat(self, X):
    ...         return self.xp.roll(X, 1, axis=-2)
    >>> Shift(3) @ np.array([1.0, 2.0, 3.0])
    array([3., 1., 2.])
    >>> co.det(Shift(3)).round(12)
    np.float64(1.0)
    """

    _is_root: ClassVar[bool] = True
    _is_own: ClassVar[bool] = True  # whether the family is one of ours
    _implied: ClassVar[int] = 0
    _inherited: ClassVar[int] = 0
    _commutative: ClassVar[bool] = False
    _product_is_a_run: ClassVar[bool] = False  # of an iterative method, which may fail
    _is_elementwise: ClassVar[bool] = False  # functions of it take an operation or two
    _signature: ClassVar[Any] = None  # dispatch's memo, set on instances
    if TYPE_CHECKING:

        @property
        def operands(self) -> tuple[LinearOperator, ...]: ...

    else:
        operands = ()  # composed operators have a field or a property of this name

    # NumPy must leave `array @ A` and friends to us; higher than ndarray and scipy.sparse so that
    # their operators defer.
    __array_ufunc__ = None
    __array_priority__ = 1000.0

    # ------------------------------------------------------------------ classes and instances

    def __init_subclass__(cls, init: bool = True, **options: Any) -> None:
        """`init=False` tells type checkers that the class has a `__new__` of its own."""
        super().__init_subclass__(**options)
        if LinearOperator not in cls.__bases__:
            raise TypeError(
                f"{cls.__name__}: operators are final; subclass LinearOperator itself, and "
                "compose instead."
            )
        cls._is_root, cls._is_own = False, calls.is_own(cls)
        own = own_fields(cls)
        without_default = own.keys() - cls.__dict__.keys()
        for name in without_default:
            setattr(cls, name, dataclasses.field())  # the base's method of that name is no default
        has_new = "__new__" in cls.__dict__
        dataclasses.dataclass(frozen=True, eq=False, repr=False, init=not has_new)(cls)
        cls._fields, cls._required = tuple(own), len(without_default)
        if "__init__" in cls.__dict__:
            cls.__setattr__ = _set_field_once  # type: ignore[method-assign]
        cls._scalars = tuple(name for name, a in own.items() if a == "Scalar")
        _FAMILIES.append(cls)
        # "No array", remembered now: Dynamo compiles again whenever a table that it read has grown.
        backends._find(cls)
        for xp in backends.loaded():
            xp.register_pytree(cls, cls._flatten, cls._unflatten)

    def __class_getitem__(cls, children: Any) -> Pattern:
        """`Sum[LowRank, Diagonal]`: a pattern for rules."""
        return Pattern(cls, children if isinstance(children, tuple) else (children,))

    def _claim(self, mask: int) -> Any:
        """A copy that claims more properties."""
        if not mask:
            return self
        known = self.properties
        if known & mask == mask:
            return self
        m, n = self.shape[-2:]
        known = CLOSED[not self.is_complex, m == n][known | mask]
        copy, own = object.__new__(type(self)), self.__dict__
        for name in (*self._fields, *KINDS):
            if name in own:
                copy.__dict__[name] = own[name]
        copy.__dict__.update(_claims=self._claims | mask, properties=known)
        return copy

    # ------------------------------------------------------------------ what and where it is

    @property
    def shape(self) -> Shape:
        raise TypeError(f"{type(self).__name__} must define the property `shape`.")

    @memo
    def _context(self) -> Context:
        """Framework, dtype and device, found once from the leaves (from the operands, in
        composed operators)."""
        fields = self._fields
        if len(fields) > 1 and "context" not in fields and not self.operands:
            fields = self._dynamic
        if len(fields) == 1:  # tiny problems notice how long the rest takes
            only = getattr(self, fields[0])
            if type(only) is np.ndarray and only.dtype in NUMPY_PLACES:
                self.__dict__.update(place := NUMPY_PLACES[only.dtype])
                return place["_context"]
            xp = namespace_of(only)
            if xp is not None and xp.is_floating(only):
                if signatures.is_compiling is None or not signatures.is_compiling():
                    self.__dict__.update(xp=xp, dtype=only.dtype)  # found on the way
                return Context(xp.name, only.dtype, xp.device_of(only))
        told = getattr(self, "context", None)
        if isinstance(told, Context):
            return told
        what = type(self).__name__
        values = self.operands or [getattr(self, name) for name in self._dynamic]
        operators = [A for A in values if isinstance(A, LinearOperator)]
        if len(operators) < len(values):  # else they know, leaves or not
            found = context_of(what, self.leaves())
            if found.backend is not None:
                return found
        # no arrays, but perhaps operators that were told where they live
        return common_context(what, operators)

    @property
    def is_neutral(self) -> bool:
        """Whether it holds no floats: it takes framework, dtype and device from what it meets."""
        return self._context.backend is None

    @memo
    def xp(self) -> Any:
        """The backend module of its arrays (NumPy's where it has none).

        A neutral operator may still hold a number that JAX traces, weakly typed: NumPy would take
        its value and drop its derivative.
        """
        name = self._context.backend
        if name is None and (self._scalars or self.operands):
            is_weak = any(getattr(leaf, "weak_type", False) for leaf in self.leaves())
            name = "jax" if is_weak else None
        return backends.get(name or "numpy")

    @property
    def backend(self) -> str:
        return str(self.xp.name)

    @memo
    def dtype(self) -> Any:
        given = self._context.dtype
        if given is complex:  # complex, of no precision yet
            return self.xp.complex_dtype(self.xp.default_float())
        if isinstance(given, type):  # a NumPy scalar's
            return self.xp.dtype_from(given)
        return self.xp.default_float() if given is None else given

    @property
    def device(self) -> Any:
        device = self._context.device
        return "cpu" if device is None and self.backend == "numpy" else device

    @memo
    def is_complex(self) -> bool:
        dtype = self._context.dtype
        if isinstance(dtype, type):  # a number's
            return issubclass(dtype, (complex, np.complexfloating))
        known = getattr(dtype, "is_complex", None)  # torch's dtypes know; JAX's are NumPy's
        return bool(getattr(dtype, "kind", None) == "c" if known is None else known)

    @memo
    def properties(self) -> int:
        """All that is known: claimed, inferred and implied, as a bit mask."""
        try:
            inferred = self._infer()
        except RecursionError:
            # a tree too deep for Python's stack: from the leaves up, one operator at a time
            for part in inside_out(self):
                if part is not self:
                    part.properties  # noqa: B018  (remembered)
            inferred = self._infer()
        mask = self._claims | inferred
        if not mask:
            return 0
        m, n = self.shape[-2:]
        mask = CLOSED[False, m == n][mask]
        both = SELF_ADJOINT | SYMMETRIC  # which are the same, if A is real
        return mask | both if mask & both not in (0, both) and not self.is_complex else mask

    def isa(self, annotation: Any) -> bool:
        """Whether the property is known, by claim or by inference: `A.isa(PSD)`."""
        return self.properties & annotation.mask == annotation.mask

    def _infer(self) -> int:
        mask = self._inherited
        for A in self.operands if mask else ():
            mask &= A.properties
        return self._implied | mask

    @memo
    def nbytes(self) -> int:
        """Bytes of its leaves."""
        return int(_walk(lambda: bytes_in([getattr(self, name) for name in self._dynamic])))

    @memo
    def flops(self) -> float:
        """Floating-point operations of one product with a vector."""
        return float(_walk(lambda: self._flops))

    @property
    def _flops(self) -> float:
        return 2.0 * self.shape[-2] * self.shape[-1]

    @property
    def dense_flops(self) -> float:
        """Floating-point operations of forming the matrix."""
        return float(_walk(lambda: self._dense_flops))

    @property
    def _dense_flops(self) -> float:
        return min(self.shape[-2:]) * self._flops

    # ------------------------------------------------------------------ multiplication

    def _residual_bound(self, X: Array, B: Array) -> float | None:
        """Of an operator that is A^-1: a bound of |b - A x| / |b| for each x = A^-1 b, if it
        knows one; values can be seen."""
        return None

    def _matmat(self, X: Array, /) -> Array:
        raise TypeError(f"{type(self).__name__} must define `_matmat(self, X)`.")

    def _matvec(self, x: Array, /) -> Array:
        return self._matmat(x[:, None])[..., 0]

    def _rmatmat(self, X: Array, /) -> Array:
        """A^H X by the family's adjoint, or conj(A^T conj(X)) by a linear transpose of `_matmat`."""
        if not isinstance(image := self.H, (transposed.Adjoint, transposed.Transpose)):
            return image._matmat(X)
        xp, batch = namespace_of(X), broadcast_batches(self.batch_shape, X.shape[:-2])
        X = promoted(spread(X, batch), self._context.dtype)
        like = xp.zeros((*batch, self.shape[-1], X.shape[-1]), **kind_of(X))
        return xp.conj(xp.linear_transpose(self._matmat, like)(xp.conj(X)))

    def _right_matmat(self, X: Array) -> Array:
        """X A^T, for Kronecker products."""
        xp = namespace_of(X)
        return xp.matrix_transpose(self @ xp.matrix_transpose(X))

    def _summed_matmat(self, X: Array, axis: int) -> Array:
        """The sum of A X over the batch dimension `axis` (negative, from the last one): what
        `BatchSum` multiplies by."""
        return namespace_of(X).sum(self @ X, axis=axis - 2)

    @overload
    def __matmul__(self, other: LinearOperator) -> LinearOperator: ...
    @overload
    def __matmul__(self, other: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]: ...
    @overload
    def __matmul__(self, other: ArrayT) -> ArrayT: ...
    @overload
    def __matmul__(self, other: Any) -> Any: ...
    def __matmul__(self, other: Any) -> Any:
        if isinstance(other, LinearOperator):
            return algebra.Product(self, other)
        if CLOCKS and (clock := running()) is not None and clock.part is OTHER:
            return clock.run(PRODUCTS, self.__matmul__, other)
        if type(other) is not np.ndarray or other.dtype is not self._usual_dtype:
            if calls.modes and calls.are_strict(self):
                return calls.ordinary(type(self).__matmul__, self, other)
            other = self._right_side(other)
            if isinstance(other, LinearOperator):
                return self @ other
            if calls.modes and self._context.device is None and calls.are_strict(other):
                return calls.ordinary(lambda other, A: A @ other, other, self)
            if "_is_released" in self.__dict__:
                return placed_beside(self, other) @ other
        shape = other.shape
        if len(shape) == 1:
            if shape[0] != self.shape[-1]:
                raise ShapeError(misfit(self, shape))
            if TEST_HOOKS:
                tell_watchers("multiplied", self, 1)
            try:
                return self._matvec(other)
            except RecursionError:
                return calls.retry_deeper(self._matvec, other)
        if len(shape) < 2 or shape[-2] != self.shape[-1]:
            raise ShapeError(misfit(self, shape))
        if len(shape) > 2 and len(self.shape) > 2:
            broadcast_batches(self.shape[:-2], shape[:-2], what="@")
        if TEST_HOOKS:
            tell_watchers("multiplied", self, shape[-1])
        try:
            return self._matmat(other)
        except RecursionError:
            return calls.retry_deeper(self._matmat, other)

    @calls.entry
    def __rmatmul__(self, other: Any) -> Any:
        if not isinstance(other, LinearOperator):
            other = self._right_side(other)
        if isinstance(other, LinearOperator):
            return other @ self
        if other.ndim == 1:
            return self.T @ other
        xp = namespace_of(other)
        return xp.matrix_transpose(self.T @ xp.matrix_transpose(other))

    @memo
    def _usual_dtype(self) -> Any:
        """The dtype of the NumPy arrays it usually multiplies: lets `A @ x` skip every check but
        the shape's. (None in other frameworks, which have devices.)"""
        return self._context.dtype if self._context.backend == "numpy" else None

    def _right_side(self, x: Any) -> Any:
        """`x` as something this operator can multiply, or an error that says why not."""
        if type(x) is np.ndarray and x.dtype is self._usual_dtype:
            return x
        if self._context.backend == "torch" and self.xp.is_beside(x, self._context):
            return x
        x = plain_array(x, "@")
        xp = namespace_of(x)
        # torch's sparse tensors are tensors
        if xp is None or getattr(x, "is_sparse", False) or getattr(x, "is_sparse_csr", False):
            if convert.is_convertible(x):
                return convert.as_operator(x)
            x = as_array(x, "@", xp=self.xp)
            xp = self.xp
        is_neutral = self._context.backend is None
        if not is_neutral:
            if xp is not self.xp:
                check_dtype("@", x.dtype)
                x, xp = from_numpy("@", self.xp, x), self.xp
            else:
                check_device("@", self._context.device, xp.device_of(x))
        if xp.is_floating(x):
            return x
        return as_array(x, "@", dtype=None if is_neutral else xp.result_type(self.dtype))

    # ------------------------------------------------------------------ images and the matrix

    @property
    def T(self) -> LinearOperator:
        """The transpose, as an operator of the same structure."""
        if self.properties & SYMMETRIC:
            return self
        image = carry(self, _walk(self._transpose))
        _remember(image, self, transpose=True, adjoint=not self.is_complex)
        return image

    @property
    def H(self) -> LinearOperator:
        """The conjugate transpose, as an operator of the same structure."""
        if self.properties & SELF_ADJOINT:
            return self
        image = carry(self, _walk(self._adjoint))
        _remember(image, self, transpose=not self.is_complex, adjoint=True)
        return image

    def conj(self) -> LinearOperator:
        """The complex conjugate, as an operator of the same structure."""
        return carry(self, _walk(self._conj)) if self.is_complex else self

    def _transpose(self) -> LinearOperator:
        if not self.is_complex:
            return self._adjoint()
        if self.properties & SELF_ADJOINT:
            return self.conj()
        if type(self)._adjoint is not LinearOperator._adjoint:
            image = self._adjoint()
            # whose conjugate would ask for the transpose again
            if not isinstance(image, transposed.Adjoint):
                return image.conj()
        return transposed.Transpose._of(self)

    def _adjoint(self) -> LinearOperator:
        if self.properties & SYMMETRIC:
            return self.conj()
        if type(self)._transpose is not LinearOperator._transpose:
            return self._transpose().conj()
        return transposed.Adjoint._of(self)

    def _conj(self) -> LinearOperator:
        return transposed.Conjugate._of(self)

    def _dense(self) -> Array:
        """The matrix to read from: that of a `Dense` operator is its own array."""
        if TEST_HOOKS:
            tell_watchers("materialised", self)
        return _walk(self._to_dense)

    def _to_dense(self) -> Array:
        n = self.shape[-1]
        dense = self._matmat(self.xp.eye(n, **kind_of(self)))
        return self.xp.broadcast_to(dense, self.shape)


backends.on_load(
    lambda xp: [
        xp.register_pytree(family, family._flatten, family._unflatten) for family in _FAMILIES
    ]
)


# These know LinearOperator, and it calls them.
from . import algebra, convert, interop, printing, transposed
from .neutral import carry, placed_beside

protocols.algebra, protocols.convert = algebra, convert
protocols.interop, protocols.printing = interop, printing
