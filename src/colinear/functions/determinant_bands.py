"""Determinants by elimination on the host: of tridiagonal, banded, sparse and Toeplitz matrices. More rules of `slogdet`.

Under tracing, and where derivatives are recorded, the base case takes them; tridiagonal ones have a rule for that too.
"""

from __future__ import annotations

import math
from typing import Any

from ..dispatch import Cost, rule
from ..info import Info, Status, report
from ..methods.determinants import banded_slogdet, sparse_slogdet, toeplitz_slogdet, tridiagonal_slogdet
from ..operators.banded import Banded
from ..operators.base import LinearOperator
from ..operators.factors import slogdet_of_diagonal
from ..operators.rewrites import is_compact
from ..operators.sparse import Sparse
from ..operators.toeplitz import Toeplitz
from ..operators.tridiagonal import Tridiagonal
from ..properties import POSITIVE_SEMIDEFINITE
from ._arrays import is_square, values_are_seen
from ._minors import last_minor
from .cost import sparse_work
from .determinant import one, report_logarithm, sign_and_logarithm, slogdet
from .determinant_rules import Determinant, from_host, rows_of

LARGE_TOEPLITZ = 512  # rows from which elimination of displacements is faster than LU


@rule(slogdet, Tridiagonal, when=values_are_seen, like=one)
def slogdet_tridiagonal(A: Any, method: Any) -> Determinant:
    """det T = ± ∏ u_ii for T = P L U, elimination along three diagonals"""
    if not A.shape[-1]:
        return one(A)
    return from_host(A, [tridiagonal_slogdet(*row) for row in rows_of(A, A.lower, A.diag, A.upper)])


@rule(slogdet, Tridiagonal)
def slogdet_traced_tridiagonal(A: Any, method: Any) -> Determinant:
    """det T = θ_n, θ_i = d_i θ_(i-1) - l_(i-1) u_(i-1) θ_(i-2): a product of n matrices of 2 x 2"""
    if not A.shape[-1]:
        return one(A)
    minor, logarithm = last_minor(A.xp, A.xp.broadcast_to(A.diag, A.shape[:-1]), A.lower * A.upper)
    sign, last = slogdet_of_diagonal(A.xp, minor[..., None])
    report_logarithm(A.xp, last)
    return sign, last + logarithm


def is_narrow_and_seen(A: Any) -> bool:
    """Whether A is square, elimination within its band cheaper than of the whole matrix, and its numbers can be seen."""
    return is_compact(A) and values_are_seen(A)


@rule(slogdet, Banded, when=is_narrow_and_seen, like=one)
def slogdet_banded(A: Any, method: Any) -> Determinant:
    """det B = ± ∏ u_ii for B = P L U, elimination within the band"""
    return from_host(A, [banded_slogdet(row, A.offsets, A.n) for row in rows_of(A, *A.diagonals)])


def is_square_and_seen(A: LinearOperator) -> bool:
    """Whether A is square and its numbers can be seen."""
    return is_square(A) and values_are_seen(A)


@rule(slogdet, Sparse, when=is_square_and_seen, cost=lambda A: Cost(*sparse_work(A)[::2]), like=one)
def slogdet_sparse(A: Any, method: Any) -> Determinant:
    """det S = ± ∏ u_ii for P S Q = L U, which stay sparse"""
    if not A.shape[-1]:
        return one(A)
    positive = bool(A.properties & POSITIVE_SEMIDEFINITE)
    return from_host(A, [sparse_slogdet(row, A.structure, positive) for (row,) in rows_of(A, A.data)])


def is_large_and_seen(A: LinearOperator) -> bool:
    """Whether A is square, so large that the dense factorisation is slower, and its numbers can be seen."""
    return A.shape[-1] == A.shape[-2] >= LARGE_TOEPLITZ and values_are_seen(A)


@rule(
    slogdet,
    Toeplitz,
    when=is_large_and_seen,
    cost=lambda A: Cost(40.0 * A.shape[-1] * math.prod(A.shape[:-1]), 160.0 * math.prod(A.shape[:-1])),
    like=one,
)
def slogdet_toeplitz(A: Any, method: Any) -> Any:
    """det T = det C det D for C = F T D F^H, which is like Cauchy's matrix: pivoted elimination of its displacement, O(n^2)"""
    row = A.xp.conj(A.col) if A.row is None else A.row
    found = [toeplitz_slogdet(*each) for each in rows_of(A, A.col, row)]
    if all(reliable for _, _, reliable in found):
        return from_host(A, [(sign, logarithm) for sign, logarithm, _ in found])
    report(Info(Status.FELL_BACK, method="LU", message="the displacement grew during its elimination"))
    return sign_and_logarithm(A, method)
