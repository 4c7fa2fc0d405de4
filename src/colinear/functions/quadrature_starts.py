"""Where the runs of stochastic quadrature start: random vectors, for a preconditioner M = P^-1 of the distribution of P^1/2 w."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..backends import Array
from ..info import MethodError, failed, recording, report
from ..methods import SLQ
from ..methods.sampling import draw
from ..operators.base import LinearOperator
from ..operators.diagonal import Diagonal
from ..operators.identity import Identity, ScaledIdentity
from ..operators.inverse import Inverse
from ..operators.lowrank import LowRank
from ..operators.sum import Sum
from ._arrays import is_half
from ._values import place


def sampled(A: LinearOperator, M: LinearOperator) -> tuple[Callable[[Any, tuple[int, ...]], Array], Array]:
    """For M = P^-1: a function that draws vectors P^1/2 w, w standard normal, and log det P."""
    from .determinant import logdet

    xp, device = A.xp, A._context.device
    if isinstance(M, Diagonal):
        root = xp.sqrt(1 / xp.real(M.d))
        return lambda gen, shape: root[..., :, None] * xp.normal(gen, shape, dtype=A.dtype, device=device), -logdet(M)
    P = M.A if isinstance(M, Inverse) else None
    terms = P.operands if isinstance(P, Sum) else ()
    low = [t for t in terms if isinstance(t, LowRank) and t.V is None and t.core is None]
    flat = [t for t in terms if isinstance(t, (Diagonal, ScaledIdentity, Identity))]
    if P is None or len(low) != 1 or len(flat) != 1 or len(terms) != 2:
        raise MethodError(
            f"SLQ: the preconditioner {type(M).__name__} has no known determinant. Use Jacobi(), PivotedCholesky(rank) or Nystrom(rank)."
        )
    from .diagonal import diag

    root, U = xp.sqrt(xp.real(diag(place(flat[0], A)))), low[0].U

    def drawn(gen: Any, shape: tuple[int, ...]) -> Array:
        inner = (*shape[:-2], U.shape[-1], shape[-1])
        first, second = xp.fold_in(gen, 0), xp.fold_in(gen, 1)
        W = xp.normal(first, inner, dtype=A.dtype, device=device)
        return xp.matmul(U, W) + root[..., :, None] * xp.normal(second, shape, dtype=A.dtype, device=device)

    return drawn, logdet(place(P, A))


def one_of_each(A: LinearOperator, R: Array) -> Array:
    """R, of which torch.func.vmap over operators makes one for each: what is written in place must have room for all."""
    xp = A.xp
    hidden = [leaf for leaf in A.arrays() if 0 not in leaf.shape and xp.is_traced(leaf)]
    if xp.name != "torch" or not hidden or xp.is_traced(R):
        return R
    first = xp.reshape(hidden[0], (-1,))[0]
    return R + xp.astype(xp.where(first == first, 0, 0), R.dtype)


def prepared(A: LinearOperator, method: SLQ) -> tuple[LinearOperator | None, Callable[[Any, int], Array], Any]:
    """The preconditioner M, a function that draws so many start vectors, and log det M^-1."""
    from ..preconditioners import as_preconditioner

    xp, device, shape = A.xp, A._context.device, (*A.batch_shape, A.shape[-1])
    work = xp.float32 if is_half(xp, A.dtype) else A.dtype
    if method.preconditioner is None:
        return None, lambda gen, k: draw(xp, gen, method.distribution, (*shape, k), work, device), 0.0
    M = as_preconditioner(method.preconditioner, A)
    assert M is not None
    with recording() as reports:
        make, logarithm = sampled(A, M)
    for info in reports:
        if failed(info._status) is not False:
            report(info)

    def directions(gen: Any, k: int) -> Array:
        # Uniform directions: the length of w tells nothing, and would add to the variance.
        R = make(gen, (*shape, k))
        length = xp.sqrt(xp.real(xp.vecdot(R, M @ R, axis=-2)))
        return R * xp.astype(math.sqrt(shape[-1]) / length, R.dtype)[..., None, :]

    return M, directions, logarithm
