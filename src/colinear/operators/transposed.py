"""A^T, A^H and conj(A) of operators that have no formula of their own, and the memory of which
operator is the adjoint of which."""

from __future__ import annotations

from typing import Any

from ..backends import Array, namespace_of
from ..properties import ALL_PROPERTIES, SELF_ADJOINT, STIEFEL, SYMMETRIC
from .base import LinearOperator
from .convert import as_operator
from .printing import bracketed
from .tree import operand_flops, operand_shape, sole_operand

# What these are made of: an image of the operand, or itself, and its shape with the sides exchanged.
operand: Any = lambda self: self.A
conjugate: Any = lambda self: self.A.conj()
transpose: Any = lambda self: self.A.T
adjoint: Any = lambda self: self.A.H
swapped_shape: Any = property(lambda self: (*self.A.shape[:-2], *self.A.shape[:-3:-1]))


def inherited(A: Any) -> int:
    """A transpose has its operand's properties, but orthonormal columns become rows."""
    return A.A.properties if A.shape[-1] == A.shape[-2] else A.A.properties & ~STIEFEL


class Adjoint(LinearOperator, init=False):
    """The conjugate transpose of an operator; `Adjoint(A)` is `A.H`. A product costs one with A^H.

    Examples
    --------
    >>> import colinear as co
    >>> co.Adjoint([[1.0, 2.0j]]).to_dense()
    array([[1.-0.j],
           [0.-2.j]])
    """

    A: LinearOperator

    def __new__(cls, A: Any) -> LinearOperator:  # type: ignore[misc]
        return as_operator(A).H

    operands, shape, _infer = sole_operand, swapped_shape, inherited
    _transpose, _adjoint, _conj = conjugate, operand, transpose

    def _matmat(self, X: Array) -> Array:
        return self.A._rmatmat(X)

    _flops = operand_flops

    def _expression(self) -> str:
        return f"{bracketed(self.A, None)}.H"


class Transpose(LinearOperator, init=False):
    """The transpose of an operator; `Transpose(A)` is `A.T`. A product costs one with A^H.

    Examples
    --------
    >>> import colinear as co
    >>> co.Transpose([[1.0, 2.0]]).to_dense()
    array([[1.],
           [2.]])
    """

    A: LinearOperator

    def __new__(cls, A: Any) -> LinearOperator:  # type: ignore[misc]
        return as_operator(A).T

    operands, shape, _infer = sole_operand, swapped_shape, inherited
    _transpose, _adjoint, _conj = operand, conjugate, adjoint

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        return xp.conj(self.A._rmatmat(xp.conj(X)))

    _flops = operand_flops

    def _expression(self) -> str:
        return f"{bracketed(self.A, None)}.T"


class Conjugate(LinearOperator, init=False):
    """The complex conjugate of an operator; `Conjugate(A)` is `A.conj()`. A product costs one with
    A.

    Examples
    --------
    >>> import colinear as co
    >>> co.Conjugate([[1.0, 2.0j]]).to_dense()
    array([[1.-0.j, 0.-2.j]])
    """

    A: LinearOperator

    def __new__(cls, A: Any) -> LinearOperator:  # type: ignore[misc]
        return as_operator(A).conj()

    operands, shape = sole_operand, operand_shape
    _inherited = ALL_PROPERTIES

    _transpose, _adjoint, _conj = adjoint, transpose, operand

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        return xp.conj(self.A @ xp.conj(X))

    _flops = operand_flops

    def _expression(self) -> str:
        return f"{bracketed(self.A, None)}.conj()"


# ---------------------------------------------------------------------- who is whose adjoint (for B


def are_adjoint(A: LinearOperator, B: LinearOperator) -> bool:
    """Whether A = B^H is known, because one was made from the other (never by comparing
    numbers)."""
    return _are_images(A, B, SELF_ADJOINT, "_adjoint_of")


def are_transposed(A: LinearOperator, B: LinearOperator) -> bool:
    """Whether A = B^T is known, because one was made from the other."""
    return _are_images(A, B, SYMMETRIC, "_transpose_of")


def _are_images(A: LinearOperator, B: LinearOperator, known: int, link: str) -> bool:
    if A is B:
        return bool(A.properties & known)
    return A.__dict__.get(link) is B or B.__dict__.get(link) is A
