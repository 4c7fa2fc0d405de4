"""The inverse, as an operator that keeps its factorisation."""

from __future__ import annotations

from typing import Any

from ..backends import Array
from ..dispatch import arrange, function, rule
from ..methods import Method
from ..operators.base import LinearOperator
from ..operators.block import BlockDiag
from ..operators.dense import Dense
from ..operators.diagonal import Diagonal
from ..operators.factors import TriangularFactor
from ..operators.identity import Identity, ScaledIdentity
from ..operators.inverse import Inverse
from ..operators.kronecker import Kronecker, KroneckerSum
from ..operators.lowrank import LowRank
from ..operators.permutation import Permutation
from ..operators.product import Product
from ..operators.scaled import Scaled
from ..operators.sum import Sum
from ..operators.transposed import Adjoint, Conjugate, Transpose
from ..operators.triangular import Triangular
from ..properties import POSITIVE_SEMIDEFINITE, UNITARY, Unitary
from ._factorise import choose as choose_factorisation
from ._factorise import solution, square_size
from ._values import has_no_zero, reciprocal, reciprocal_spectrum, report_values
from .eigen import factors_self_adjoint, spectrum_by_factors


def inverse(A: LinearOperator, method: Method | None = None) -> LinearOperator:
    """The inverse of a square operator, as an operator that holds its factorisation.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    method : Auto, Cholesky, LDL, LU or QR, optional
        Of the dense base case. `Auto` takes Cholesky, LDL or LU by what is known of A, and falls back along that list and to QR
        with column pivoting where one fails.

    Returns
    -------
    LinearOperator
        Multiplying by it solves a system. One factorisation serves all right sides, transposes too. Of a singular A the status is
        SINGULAR, and the operator gives basic solutions of least squares.

    Notes
    -----
    The base case costs n^3 / 3 (Cholesky, LDL), 2 n^3 / 3 (LU) or 4 n^3 / 3 (QR) flops, and 2 n^2 for each product.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A_inverse = co.inv(np.array([[2.0, 0.0], [0.0, 4.0]]))
    >>> A_inverse @ np.array([2.0, 4.0])
    array([1., 1.])
    """
    square_size("inv", A, "an inverse", "Use pinv(A).")
    if A.properties & UNITARY:
        return A.H  # known, so nothing is computed
    return Inverse(A, solution("inv", A, None, method).factor)


def _stand_in(A: LinearOperator) -> LinearOperator:
    square_size("inv", A, "an inverse", "Use pinv(A).")
    return Identity(A.shape[-1], like=None if A.is_neutral else A)


def _choose(A: LinearOperator, method: Method | None) -> Any:
    return ("adjoint", 0.0, "A is unitary: A^-1 = A^H") if A.properties & UNITARY else choose_factorisation(A, method)


inv = function("inv", base=inverse, stand_in=_stand_in, choose=_choose)


def all_square(A: LinearOperator) -> bool:
    """Whether every operand is square."""
    return all(operand.shape[-1] == operand.shape[-2] for operand in A.operands)


def _kept(A: LinearOperator, inverse: LinearOperator) -> LinearOperator:
    """The inverse, with what was claimed of A: each of the six properties passes to it."""
    return inverse._claim(A._claims) if A._claims else inverse


# ---------------------------------------------------------------------------------------------------- known inverses


@rule(inv, Identity)
def inv_identity(A: Any, method: Any) -> LinearOperator:
    """I^-1 = I"""
    return A


@rule(inv, ScaledIdentity)
def inv_scaled_identity(A: Any, method: Any) -> LinearOperator:
    """(c I)^-1 = c^-1 I"""
    return _kept(A, A._replace(c=reciprocal(A.c)))


@rule(inv, Diagonal)
def inv_diagonal(A: Any, method: Any) -> LinearOperator:
    """diag(d)^-1 = diag(1 / d)"""
    return _kept(A, Diagonal._of(reciprocal(A.d)))


@rule(inv, Permutation)
def inv_permutation(A: Any, method: Any) -> LinearOperator:
    """P^-1 = P^T"""
    return A.T


@rule(inv, Triangular)
def inv_triangular(A: Any, method: Any) -> LinearOperator:
    """T^-1 b by substitution"""
    square_size("inv", A, "an inverse", "Use pinv(A).")
    if not A.unit:
        report_values(A.xp, A.xp.diagonal(A.A))
    return Inverse(A, TriangularFactor._of(A.A, A.lower, A.unit, "N"))


# ---------------------------------------------------------------------------------------------------- compositions


@rule(inv, Scaled)
def inv_scaled(A: Any, method: Any) -> LinearOperator:
    """(c A)^-1 = c^-1 A^-1"""
    return Scaled(reciprocal(A.scalar), inv(A.A, method))


@rule(inv, Product, when=all_square)
def inv_product(A: Any, method: Any) -> LinearOperator:
    """(A B)^-1 = B^-1 A^-1, both square"""
    return _kept(A, Product(*(inv(factor, method) for factor in reversed(A.operands))))


@rule(inv, Kronecker, when=all_square)
def inv_kronecker(A: Any, method: Any) -> LinearOperator:
    """(A ⊗ B)^-1 = A^-1 ⊗ B^-1, both square"""
    return _kept(A, Kronecker(*(inv(factor, method) for factor in A.operands)))


@rule(inv, BlockDiag, when=all_square)
def inv_block_diagonal(A: Any, method: Any) -> LinearOperator:
    """diag(A, B)^-1 = diag(A^-1, B^-1), both square"""
    return _kept(A, BlockDiag(*(inv(block, method) for block in A.operands)))


@rule(inv, Unitary[Product])
@rule(inv, Unitary[Kronecker])
@rule(inv, Unitary[BlockDiag])
def inv_unitary(A: Any, method: Any) -> LinearOperator:
    """Q^-1 = Q^H"""
    return A.H


@rule(inv, Transpose)
def inv_transpose(A: Any, method: Any) -> LinearOperator:
    """(A^T)^-1 = (A^-1)^T"""
    square_size("inv", A, "an inverse", "Use pinv(A).")
    return inv(A.A, method).T


@rule(inv, Adjoint)
def inv_adjoint(A: Any, method: Any) -> LinearOperator:
    """(A^H)^-1 = (A^-1)^H"""
    square_size("inv", A, "an inverse", "Use pinv(A).")
    return inv(A.A, method).H


@rule(inv, Conjugate)
def inv_conjugate(A: Any, method: Any) -> LinearOperator:
    """conj(A)^-1 = conj(A^-1)"""
    square_size("inv", A, "an inverse", "Use pinv(A).")
    return inv(A.A, method).conj()


@rule(inv, Inverse)
def inv_inverse(A: Any, method: Any) -> LinearOperator:
    """(A^-1)^-1 = A"""
    return A.A


# ---------------------------------------------------------------------------------------------------- sums


def diagonal_is_invertible(A: LinearOperator) -> bool:
    """Whether the diagonal term has no zero (taken for granted where values cannot be seen)."""
    return all(has_no_zero(term.d) for term in A.operands if isinstance(term, Diagonal))


@rule(inv, Sum[LowRank, Diagonal | ScaledIdentity | Identity], when=diagonal_is_invertible)  # type: ignore[misc]
def woodbury(A: Any, method: Any) -> LinearOperator:
    """(D + U C V^H)^-1 = D^-1 - D^-1 U (I + C V^H D^-1 U)^-1 C V^H D^-1"""
    low_rank, D = arrange(A, LowRank, Diagonal | ScaledIdentity | Identity)
    D_inverse = inv(D, method)
    U, right = D_inverse @ low_rank.U, _right_factor(low_rank)  # D^-1 U and C V^H
    K = capacitance(A, low_rank, D, U)
    return Sum(D_inverse, Scaled(-1.0, Product(Dense._of(U), inv(K, method), right, D_inverse)))._claim(A.properties)


def _right_factor(low_rank: Any) -> LinearOperator:
    """C V^H"""
    xp, V = low_rank.xp, low_rank.U if low_rank.V is None else low_rank.V
    adjoint = Dense._of(V).H
    return adjoint if low_rank.core is None else Dense._of(xp.matmul(low_rank.core, adjoint.A))


def capacitance(A: Any, low_rank: Any, D: LinearOperator, U: Any) -> LinearOperator:
    """I + C V^H D^-1 U, from U = D^-1 U: of the size of the rank; positive definite for U U^H and positive D."""
    xp, right = A.xp, _right_factor(low_rank)
    inner = right @ U
    K = Dense._of(inner + xp.eye(inner.shape[-1], dtype=inner.dtype, device=xp.device_of(inner)))
    positive = low_rank.V is None and low_rank.core is None and D.properties & POSITIVE_SEMIDEFINITE
    return K._claim(POSITIVE_SEMIDEFINITE) if positive else K


def kronecker_of_self_adjoint(A: LinearOperator) -> bool:
    """Whether the factors of the Kronecker term are self-adjoint."""
    return all(factors_self_adjoint(term) for term in A.operands if isinstance(term, (Kronecker, KroneckerSum)))


@rule(inv, Sum[Kronecker | KroneckerSum, ScaledIdentity | Identity], when=kronecker_of_self_adjoint)  # type: ignore[misc]
def inv_shifted_kronecker(A: Any, method: Any) -> LinearOperator:
    """(A ⊗ B + c I)^-1 = (Q ⊗ P) (Λ ⊗ M + c)^-1 (Q ⊗ P)^H for A = Q Λ Q^H, B = P M P^H"""
    values, vectors = shifted_spectrum(A)
    return Product(vectors, Diagonal(reciprocal_spectrum(A.xp, values)), vectors.H)._claim(A.properties)


def shifted_spectrum(A: LinearOperator) -> tuple[Array, LinearOperator]:
    """Eigenvalues and eigenvectors of a Kronecker product or sum plus c I."""
    kronecker, shift = arrange(A, Kronecker | KroneckerSum, ScaledIdentity | Identity)
    values, vectors = spectrum_by_factors(kronecker)
    c: Any = shift.c if isinstance(shift, ScaledIdentity) else 1.0
    return values + (c[..., None] if getattr(c, "ndim", 0) else c), vectors


@rule(inv, KroneckerSum, when=factors_self_adjoint)
def inv_kronecker_sum(A: Any, method: Any) -> LinearOperator:
    """(A ⊕ B)^-1 = (Q ⊗ P) (Λ ⊕ M)^-1 (Q ⊗ P)^H for A = Q Λ Q^H, B = P M P^H"""
    values, vectors = spectrum_by_factors(A)
    return Product(vectors, Diagonal(reciprocal_spectrum(A.xp, values)), vectors.H)._claim(A.properties)
