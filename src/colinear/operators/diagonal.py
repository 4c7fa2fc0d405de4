"""Diagonal matrices, I, c I and the zero map."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from ..backends import Array, namespace_of
from ..errors import DtypeError, ShapeError
from ..properties import (
    ALL_PROPERTIES,
    POSITIVE_DEFINITE,
    POSITIVE_SEMIDEFINITE,
    SELF_ADJOINT,
    SYMMETRIC,
    UNITARY,
)
from .base import LinearOperator
from .context import (
    NUMBERS,
    Context,
    as_array,
    context_of,
    given_context,
    is_complex_number,
    is_number,
    kind_of,
    of_array,
    promoted,
    split_number,
    told_by_number,
)
from .printing import number_text
from .tree import Scalar, Shape, conjugate_leaves, itself, memo

# A diagonal matrix.


class Diagonal(LinearOperator, init=False):
    """diag(d). A product costs n flops.

    Parameters
    ----------
    d : array of shape (*batch, n)

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.Diagonal([1.0, 2.0]) @ np.array([3.0, 4.0])
    array([3., 8.])
    """

    d: Array

    def __new__(cls, d: Any) -> Diagonal:
        d = as_array(d, "Diagonal", min_ndim=1)
        return of_array(cls, "d", d, (*d.shape, d.shape[-1]))

    @memo
    def shape(self) -> Shape:
        shape = self.d.shape
        return (*shape, shape[-1])

    _is_elementwise = True
    _implied = SYMMETRIC  # and so self-adjoint, if real

    _conj = conjugate_leaves

    def _matmat(self, X: Array) -> Array:
        return self.d[..., None] * X

    def _matvec(self, x: Array) -> Array:
        return self.d * x

    def _to_dense(self) -> Array:
        return self.xp.make_diagonal(self.d)

    @property
    def _flops(self) -> float:
        return self.d.shape[-1]

    def _expression(self) -> str:
        return f"Diagonal({'x'.join(map(str, self.d.shape))})"


# I and c I. They hold no arrays, or one number: unless told they take framework, dtype and device
# from what they multiply.


def size(value: Any, what: str) -> int:
    """A number of rows or columns: a natural number."""
    try:
        n = index(value)
    except TypeError as error:
        raise ShapeError(f"{what}: a size must be an integer, not {value!r}.") from error
    if n < 0:
        raise ShapeError(f"{what}: a size cannot be negative; got {n}.")
    return n


class Identity(LinearOperator, init=False):
    """The identity of n dimensions. A product costs nothing, and returns its right side.

    Parameters
    ----------
    n : int
    like : array, operator or str, optional
        Whose framework, dtype and device to take; a framework's name takes its default float.
    dtype : optional
        Default: the dtype of what it multiplies.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.Dense(np.ones((2, 2))) + co.Identity(2)
    >>> A.to_dense()
    array([[2., 1.],
           [1., 2.]])
    """

    n: int
    context: Context
    properties = ALL_PROPERTIES

    def __new__(cls, n: int, *, like: Any = None, dtype: Any = None) -> Identity:
        return cls._of(size(n, "Identity"), given_context("Identity", like, dtype))

    @memo
    def shape(self) -> Shape:
        return (self.n, self.n)

    _conj = itself
    _flops = 0.0

    def _matmat(self, X: Array) -> Array:
        return promoted(X, self.context.dtype)

    _matvec = _matmat

    def _expression(self) -> str:
        return f"Identity({self.n})"


class ScaledIdentity(LinearOperator, init=False):
    """c I of n dimensions. A product costs n flops.

    Parameters
    ----------
    c : number or array of the batch shape
        A Python number mixes with every framework, and so does a NumPy scalar, which keeps its
        dtype as in NumPy: `np.float32(2)` gives float32. The sign of a real number that can be seen
        is remembered: c > 0 is PD.
    n : int
    like, dtype : optional
        As for `Identity`, where c is a number.

    Examples
    --------
    >>> import colinear as co
    >>> co.ScaledIdentity(2.0, 3).isa(co.PD)
    True
    """

    c: Scalar
    n: int
    context: Context

    def __new__(cls, c: Any, n: int, *, like: Any = None, dtype: Any = None) -> ScaledIdentity:
        n, context = size(n, "ScaledIdentity"), given_context("ScaledIdentity", like, dtype)
        if isinstance(c, NUMBERS):
            c, carried = split_number(c, "ScaledIdentity")
            context = told_by_number(context, carried)
        elif isinstance(c, (str, bytes)) or c is None:
            raise DtypeError(f"ScaledIdentity: expected a number or an array, got {c!r}.")
        else:
            c = as_array(c, "ScaledIdentity")
            if like is not None or dtype is not None:
                xp = namespace_of(c)
                if context.backend not in (None, xp.name):
                    raise DtypeError(
                        f"ScaledIdentity: c is {xp.name}'s and like= is {context.backend}'s."
                    )
                c = promoted(c, context.dtype)
        self = cls._of(c, n, context)
        # as a claim the sign is still known under `jit`, where the value is not
        self.__dict__["_claims"] = known_of_scalar(c)
        return self

    @memo
    def shape(self) -> Shape:
        return (*getattr(self.c, "shape", ()), self.n, self.n)

    @property
    def number(self) -> Any:
        """c, as a NumPy scalar again if it was one: where it leaves the operator its dtype goes
        with it."""
        told = self.context.dtype
        return told(self.c) if isinstance(told, type) and told is not complex else self.c

    @memo
    def _context(self) -> Context:
        if isinstance(self.c, float):
            return self.context
        if not is_number(self.c):
            return context_of("ScaledIdentity", (self.c,))
        return told_by_number(self.context, complex if is_complex_number(self.c) else None)

    def _infer(self) -> int:
        return SYMMETRIC | (UNITARY if is_on_circle(self.c) else 0)  # and self-adjoint, if real

    _conj = conjugate_leaves

    def _matmat(self, X: Array) -> Array:
        if is_number(self.c):
            return self.c * promoted(X, self.context.dtype)
        # with axes, because torch lets a 0-dimensional array take the dtype of X
        return self.c[..., None, None] * X

    def _matvec(self, x: Array) -> Array:
        if is_number(self.c):
            return self.c * promoted(x, self.context.dtype)
        return self.c[..., None] * x

    @property
    def _flops(self) -> float:
        return self.n

    def _expression(self) -> str:
        xp = namespace_of(self.c)
        value = self.c if xp is None else xp.peek(self.c) if self.c.ndim == 0 else None
        return f"{number_text(value)} I"


def known_of_scalar(c: Any) -> int:
    """The properties that c A keeps of A because of the value of c, where that can be seen at no
    cost: those of c I."""
    xp, on_circle = namespace_of(c), 0
    if xp is None:
        if abs(c) == 1:
            on_circle = UNITARY  # an array may have a derivative: see `is_on_circle`
        if c.imag != 0:
            return on_circle
        least = c.real
    else:
        values = xp.peek(c)
        if values is None or np.size(values) == 0 or xp.is_complex(c):
            return 0
        least = np.min(values)
    if least > 0:
        return on_circle | POSITIVE_DEFINITE | POSITIVE_SEMIDEFINITE | SELF_ADJOINT
    return on_circle | SELF_ADJOINT | (POSITIVE_SEMIDEFINITE if least >= 0 else 0)


def is_on_circle(c: Any) -> bool:
    """Whether |c| is seen to be 1, and has no derivative: the smallest change of c would undo it."""
    xp = namespace_of(c)
    if xp is None:
        return bool(abs(c) == 1)
    values = xp.peek(c)
    if values is None or np.size(values) == 0 or not np.all(np.abs(values) == 1):
        return False
    return not xp.is_differentiated(c)


def scalar_of(shift: Any) -> Any:
    """c of c I"""
    return shift.c if isinstance(shift, ScaledIdentity) else 1.0


# The zero map.


class Zero(LinearOperator, init=False):
    """The m x n matrix of zeros, which holds nothing.

    Parameters
    ----------
    m, n : int
    like, dtype : optional
        As for `Identity`.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.Zero(2, 3) @ np.ones(3)
    array([0., 0.])
    """

    m: int
    n: int
    context: Context

    def __new__(cls, m: int, n: int, *, like: Any = None, dtype: Any = None) -> Zero:
        return cls._of(size(m, "Zero"), size(n, "Zero"), given_context("Zero", like, dtype))

    @memo
    def shape(self) -> Shape:
        return (self.m, self.n)

    def _infer(self) -> int:
        return POSITIVE_SEMIDEFINITE | SYMMETRIC if self.m == self.n else 0

    def _transpose(self) -> LinearOperator:
        return Zero._of(self.n, self.m, self.context)

    _adjoint, _conj = _transpose, itself
    _flops = 0.0

    def _matmat(self, X: Array) -> Array:
        # (m x 0) times (0 x k) is m x k zeros that still belong to the graph of X, so derivatives
        # are zeros and not errors.
        X = promoted(X, self.context.dtype)
        xp = namespace_of(X)
        return xp.matmul(xp.zeros((self.m, 0), **kind_of(X)), X[..., :0, :])

    def _to_dense(self) -> Array:
        return self.xp.zeros((self.m, self.n), **kind_of(self))
