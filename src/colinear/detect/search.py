"""The search: every finder in turn, each result compared with the matrix, the cheapest kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ..operators.dense import Dense
from ..operators.sparse import Sparse
from ..operators.zero import Zero
from ..properties import SELF_ADJOINT, STIEFEL
from .claims import claims, is_orthonormal
from .components import components
from .costs import INDIRECT, cost
from .entries import entries, fits, multiplies_alike
from .kroneckers import kronecker, kronecker_plus_identity, kronecker_sum
from .matrix import Found, Matrix, norm
from .patterns import banded, diagonal, permutation, permuted_triangular, triangular, tridiagonal, zero
from .ranks import low_rank, low_rank_plus_diagonal
from .shifts import block_circulant, circulant, toeplitz

FINAL = ("zero", "diagonal", "permutation", "tridiagonal")  # nothing is cheaper
OF_ZEROS = (
    *FINAL,
    "triangular",
    "banded",
    "triangular up to permutations",
    "block diagonal",
    "a Kronecker sum",
)  # which need zeros
SPARSE = 0.25  # the part of the entries up to which a dense matrix may be better as a sparse one
OBVIOUS = ("not square", "too small to matter")  # reasons that need not be told
BETTER = 0.9  # how much cheaper something more complicated must be

Finder = Callable[[Matrix, float], "Found | str"]


def finders() -> list[tuple[str, Finder]]:
    """By name, the simple and cheap ones first."""

    def inside(finder: Any) -> Finder:  # one that searches the parts that it finds
        return lambda M, tol: finder(M, tol, search)

    return [
        ("zero", zero),
        ("diagonal", diagonal),
        ("permutation", permutation),
        ("tridiagonal", tridiagonal),
        ("circulant", circulant),
        ("triangular", triangular),
        ("banded", banded),
        ("Toeplitz", toeplitz),
        ("a Kronecker product", inside(kronecker)),
        ("a Kronecker sum", inside(kronecker_sum)),
        ("a Kronecker product plus c I", inside(kronecker_plus_identity)),
        ("a periodic convolution", block_circulant),
        ("triangular up to permutations", permuted_triangular),
        ("block diagonal", inside(components)),
        ("of low rank", low_rank),
        ("of low rank plus diagonal", low_rank_plus_diagonal),
    ]


def search(M: Matrix, tol: float) -> Found:
    """The cheapest structure that M has, to a relative residual of `tol`; 0 for exactly (but for rounding, in products)."""
    if 0 in M.shape:
        return Found("empty", Zero(*M.shape, like=M.like))
    best, tried = unstructured(M), ["no entry is zero"] if M.is_full else []
    price = cost(best.operator._claim(SELF_ADJOINT if M.is_hermitian else 0))
    allowed = max(tol, M.rounding)
    enough = INDIRECT * M.nnz / 2  # a few times what it takes to read the matrix
    for name, finder in finders():
        if price <= enough:
            break
        if M.is_full and tol == 0 and name in OF_ZEROS and min(M.shape) > 1:
            continue
        try:
            found = finder(M, tol)
        except np.linalg.LinAlgError:  # an iteration inside that did not converge
            found = "it could not be computed"
        if isinstance(found, str):
            if found not in OBVIOUS:
                tried.append(f"not {name}: {found}")
            continue
        apart, agrees = fits(M, found.operator, tol)
        if not agrees or not multiplies_alike(M, found.operator, allowed):
            large = "in small rows" if apart <= allowed else f"of {apart:.1e}"
            tried.append(f"not {name}: there would be a residual {large}")
            continue
        found_price = cost(found.operator)
        if found_price >= BETTER * price and name not in FINAL:
            tried.append(f"{found.name}, which does not pay")
            continue
        if best.parts or best.name not in ("dense", "sparse"):
            tried.append(f"{best.name}, which costs more")
        best, price = replace(found, residual=apart), found_price
        if name in FINAL:
            break
    return annotated(M, replace(best, tried=tuple(tried)))


def unstructured(M: Matrix) -> Found:
    """The matrix as it is, sparse where that is cheaper to solve with."""
    m, n = M.shape
    if M.dense is not None and M.density > SPARSE:
        return Found("dense", Dense(M.dense))
    as_sparse = Sparse(M.S)
    if M.dense is not None and not cost(as_sparse) < BETTER * cost(Dense(M.dense)):
        return Found("dense", Dense(M.dense))
    return Found("sparse", as_sparse, f"{M.nnz} of {m * n} entries are not zero")


def annotated(M: Matrix, found: Found) -> Found:
    """With the properties that the entries show: those of M, where the operator is M but for rounding, else its own."""
    A, apart = found.operator, found.residual
    if M.is_square and M.nnz:
        own = M
        if apart > M.rounding:
            own, apart = entries(M, A), 0.0
            if A.properties & SELF_ADJOINT and not own.is_hermitian:  # it is, but for the rounding of its entries
                own, apart = symmetric_part(own), M.rounding
        A = A._claim(claims(A, own, apart))
    if found.name == "dense" and is_orthonormal(M):
        A = A._claim(STIEFEL)
    return replace(found, operator=A)


def symmetrised(M: Matrix, tol: float) -> tuple[Matrix, float]:
    """The self-adjoint matrix nearest to M if it is near enough, and how far it is."""
    if tol == 0 or not M.is_square or M.is_hermitian or not M.nnz:
        return M, 0.0
    A = M.S if M.dense is None else M.dense
    half = A - A.conj().T
    apart = norm(half if M.dense is not None else half.data) / 2 / M.norm
    return (M, 0.0) if apart > tol / 2 else (symmetric_part(M), apart)


def symmetric_part(M: Matrix) -> Matrix:
    """(A + A^H) / 2"""
    A = M.S if M.dense is None else M.dense
    return Matrix.of(((A + A.conj().T) / 2).astype(M.dtype), M.eps)
