"""Operators near A that a rule inverts, which precondition an iteration with A: the fast term of a
sum, with the mean of the diagonals beside it, the Kronecker product nearest to a sum of them, the
circulant nearest to a Toeplitz matrix or to a convolution with zeros around its grid, the blocks on
the diagonal; of a kernel plus a diagonal a part of the Cholesky factor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...backends import Array
from ...factors.runs import multiplies_by_iteration
from ...info import recording
from ...methods import CG, GMRES, MINRES
from ...operators import (
    Banded,
    Block,
    BlockDiag,
    Circulant,
    Convolution,
    Diagonal,
    Identity,
    Kronecker,
    KroneckerSum,
    LinearOperator,
    Scaled,
    ScaledIdentity,
    Sum,
    Toeplitz,
    Tridiagonal,
)
from ...operators.context import has_traced
from ...operators.diagonal import scalar_of
from ...operators.kronecker import kronecker_terms
from ...operators.printing import shorten
from ...operators.rewrites import DEFINITE
from ...operators.sparse_algebra import DIAGONAL, SHIFT
from ...properties import POSITIVE_DEFINITE, POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from ...status import is_unseen
from ..common import have_failed, in_context, is_half, is_square
from .auto import preconditioners

FAST = Kronecker | KroneckerSum | Circulant | Convolution | Tridiagonal | Banded | BlockDiag
LARGEST_FACTORS = 1 << 22  # entries of all factors that are looked at for the nearest product
SMALLEST_BLOCK = 64  # rows of a block that is worth a step of Python in each product
SWEEPS = 20  # over the factors; with two factors each is a step of the power method


def near_operators(A: Any) -> Iterator[LinearOperator]:
    """Operators near A of families with a cheap inverse, the nearest first; none near a batch."""
    if A.batch_shape:
        return
    # on a device each block is a launch, in each product: the matrix as a whole is factored sooner
    if isinstance(A, Block) and not any(map(is_unseen, A.arrays())):
        yield from _blocks_on_diagonal(A)
    if not isinstance(A, Sum):
        return
    product = nearest_kronecker(A)
    if product is not None:
        yield product
    for term in A.operands:
        near = fast_form(term)
        if near is not None:
            yield _with_mean(near, A)
            yield near
            return


def _blocks_on_diagonal(A: Any) -> Iterator[LinearOperator]:
    """The blocks on the diagonal of a grid, where these are square and none is most of A: the
    inverses of all cost a quarter of that of A, or less."""
    blocks = [row[i] for i, row in enumerate(A.blocks) if i < len(row)]
    if len(blocks) == len(A.blocks) == len(A.blocks[0]) and all(
        is_square(B) and SMALLEST_BLOCK <= B.shape[-1] <= A.shape[-1] / 2 for B in blocks
    ):
        yield BlockDiag(*(B._claim(A.properties & DEFINITE) for B in blocks))


def fast_form(A: Any) -> LinearOperator | None:
    """A itself if its family has a cheap inverse, or the circulant C nearest to it (T. Chan 1988),
    which is positive where A is: its eigenvalues are f^H A f, with f of the Fourier transform."""
    if isinstance(A, Scaled):
        inner = fast_form(A.A)
        return None if inner is None else Scaled(A.scalar, inner)
    if isinstance(A, Toeplitz) and is_square(A):
        xp, n = A.xp, A.shape[-1]
        row = xp.conj(A.col) if A.row is None else A.row
        back = xp.concat([row[..., :1], xp.flip(row[..., 1:], axis=-1)], axis=-1)  # t_(k - n)
        weight = _shares(A, np.arange(n), n)
        near: LinearOperator = Circulant._of(weight * A.col + (1 - weight) * back, A.spread)
        return near._claim(A.properties & DEFINITE)
    if isinstance(A, Convolution) and A.boundary == "zero":
        kernel, origin = A._fitted()
        for axis, (o, n) in enumerate(zip(origin, A.grid), -len(A.grid)):
            share = _shares(A, np.abs(np.arange(kernel.shape[axis]) - o), n)
            kernel = kernel * A.xp.reshape(share, (-1,) + (1,) * (-1 - axis))
        near = Convolution._of(kernel, A.grid, "wrap", tuple(origin), A.spread)
        return near._claim(A.properties & DEFINITE)
    return A if isinstance(A, FAST) else None


def _shares(A: LinearOperator, k: Any, n: int) -> Array:
    """(n - k) / n: in how much of its periodic diagonal an entry k off the main one stands."""
    dtype = A.xp.real_dtype(A.dtype)
    return A.xp.asarray((n - k) / n, dtype=dtype, device=A._context.device)


def _with_mean(term: LinearOperator, A: Any) -> LinearOperator:
    """The term, and the mean of the diagonals in the sum A times I."""
    xp = A.xp
    means = [
        ScaledIdentity(xp.mean(D.d, axis=-1), D.shape[-1]) if isinstance(D, Diagonal) else D
        for D in A.operands
        if isinstance(D, DIAGONAL)
    ]
    return Sum(term, *means) if means else term


def nearest_kronecker(A: Any) -> LinearOperator | None:
    """The Kronecker product X_1 ⊗ ... ⊗ X_d nearest to Σ_i c_i F_i1 ⊗ ... ⊗ F_id (Van Loan and
    Pitsianis 1993), in the Frobenius norm; None where A has no two such terms.

    X_k = Σ_i u_ki F_ik, and with G_k[i, j] = <F_ik, F_jk> the best X_k beside the others has
    u_ki = c_i Π_(l≠k) (G_l u_l)_i / (u_l^H G_l u_l). Of positive factors all numbers are positive,
    and so are the X_k.
    """
    xp, terms = A.xp, kronecker_terms(A)
    sizes = [[F.shape for F in factors] for _, factors in terms]
    if len(terms) < 2 or any(each != sizes[0] for each in sizes):
        return None
    entries = len(terms) * sum(math.prod(shape) for shape in sizes[0])
    is_hidden = is_half(xp, A.dtype) or has_traced(A)
    if entries > LARGEST_FACTORS or any(m != n for m, n in sizes[0]) or is_hidden:
        return None
    shifts = [D for D in A.operands if isinstance(D, SHIFT)]
    terms += [(scalar_of(D), tuple(Identity(n) for n, _ in sizes[0])) for D in shifts]
    c = np.asarray([_number(xp, scalar) for scalar, _ in terms])
    G = [_gram(xp, A, factors) for factors in zip(*(factors for _, factors in terms))]
    is_positive = (
        np.isrealobj(c)
        and (c >= 0).all()
        and all(F.properties & POSITIVE_SEMIDEFINITE for _, factors in terms for F in factors)
    )
    G = [each.real for each in G] if is_positive else G
    u = [np.ones(len(c), c.dtype) for _ in G]
    with np.errstate(all="ignore"):
        for _ in range(SWEEPS):
            for k in range(len(u)):
                others = [
                    (G[j] @ u[j]) / (u[j].conj() @ G[j] @ u[j]) for j in range(len(u)) if j != k
                ]
                u[k] = c * np.prod(others, axis=0)
    if not all(np.isfinite(each).all() and np.any(each) for each in u):
        return None
    return Kronecker(
        *(
            Sum(*(Scaled(x.item(), term[1][k]) for x, term in zip(u[k], terms) if x != 0))._claim(
                POSITIVE_SEMIDEFINITE if is_positive else 0
            )
            for k in range(len(u))
        )
    )


def _number(xp: Any, c: Any) -> Any:
    """A scalar of a multiple as a number."""
    return c if isinstance(c, int | float | complex) else xp.to_numpy(xp.stop_gradient(c)).item()


def _gram(xp: Any, A: LinearOperator, factors: Any) -> Any:
    """The inner products <F, F'> = tr(F^H F') of operators of one shape."""
    parts = [xp.to_numpy(xp.stop_gradient(in_context(F, A)._dense())).reshape(-1) for F in factors]
    return np.conj(parts) @ np.transpose(parts)


LARGEST_RATIO = 1000.0  # of the flops of a preconditioner to those of A


class Near(NamedTuple):
    """A preconditioner that is worth its cost: in words, whether it is known to be positive, and
    how it is made (None where that fails)."""

    words: str
    is_positive: bool
    make: Callable[[], LinearOperator | None]


def nearest(A: LinearOperator) -> Near | None:
    """The preconditioner by the operator nearest to A that a rule inverts, or by a part of the
    Cholesky factor of a kernel; None where there is none. Under tracing, where nothing else could
    be tried, only one that is known to be positive definite."""
    makers = preconditioners()
    is_traced = has_traced(A)
    for part in near_operators(A):
        is_known = not inverse.inv.find(part).is_base
        if is_known and (not is_traced or part.properties & POSITIVE_DEFINITE):
            words = f"the inverse of {shorten(part._expression())}"
            is_positive = bool(part.properties & POSITIVE_SEMIDEFINITE)
            return Near(words, is_positive, partial(inverse_of_part, part.detach()))
    K, D = makers.base.split_shift(A)
    if D is None or not A.properties & POSITIVE_SEMIDEFINITE or 0 in A.shape:
        return None
    if not makers.base.reads_columns(K):
        return None
    # To read and orthogonalise so many columns costs as much as a product or two.
    factory = makers.PivotedCholesky(min(A.shape[-1], round(2 * math.sqrt(A.shape[-1]))))
    return Near(f"PivotedCholesky({factory.rank})", True, partial(factory, A.detach()))


def inverse_of_part(part: LinearOperator) -> LinearOperator | None:
    """The inverse, if it was found, and its products are no runs of iterations and not too dear."""
    with recording() as reports:
        M = inverse.inv(part)
    is_good = not have_failed(reports) and not multiplies_by_iteration(M)
    return M if is_good and M.flops <= LARGEST_RATIO * part.flops else None


def preconditioned(A: LinearOperator, near: Near) -> Any:
    """The method that a preconditioner suits: CG and MINRES need a positive one."""
    if near.is_positive and A.properties & POSITIVE_SEMIDEFINITE:
        return CG()
    return MINRES() if near.is_positive and A.properties & SELF_ADJOINT else GMRES()


# Inverses ask for iterations, which ask for those of what is near.
from . import inverse
