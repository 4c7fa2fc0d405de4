"""What the runs of `solve_and_logdet` add up to: quadratures from the coefficients of conjugate gradients, pooled over blocks of vectors."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any, NamedTuple

import numpy as np

from ..backends import Array
from ..info import Info, Status, report
from ..methods import SLQ
from ..methods.quadrature import Solved, nodes_and_weights, traced_nodes_and_weights
from ..methods.sampling import quantile


class Block(NamedTuple):
    """What one run gives; see `_run`."""

    probes: int
    X: Array
    mean: Array
    Y: Array
    error: Array
    status: Array
    steps: Array
    residual: Array


class Pooled(NamedTuple):
    """What all runs give: log det A, its standard error, whether that is small enough, and how they went."""

    probes: int
    value: Array
    error: Array
    met: Any
    status: Array
    steps: Array


def pooled(xp: Any, blocks: list[Block], logarithm: Any, method: SLQ) -> Pooled:
    counts, total = [block.probes for block in blocks], sum(block.probes for block in blocks)
    value = reduce(add, (block.mean * (k / total) for k, block in zip(counts, blocks)))
    error = xp.stop_gradient(blocks[0].error)
    if len(blocks) > 1:  # the squares within blocks, and between them
        still = [xp.stop_gradient(block.mean - value) for block in blocks]
        squares = (k * (k - 1) * xp.stop_gradient(b.error) ** 2 + k * d**2 for k, b, d in zip(counts, blocks, still))
        error = xp.sqrt(reduce(add, squares) / (total * (total - 1)))
    value, met = value + logarithm, True
    if method.tol is not None:
        met = xp.all(quantile(method.confidence, max(1, total - 1)) * error <= method.tol * xp.abs(xp.stop_gradient(value)))
    status, steps = (reduce(xp.maximum, (xp.max(x) for x in each)) for each in zip(*((b.status, b.steps) for b in blocks)))
    return Pooled(total, value, error, met, status, steps)


def quadratic_forms(xp: Any, solved: Solved, count: int, traced: bool) -> tuple[Array, Any]:
    """r^H M^1/2 log(M^1/2 A M^1/2) M^1/2 r for each random vector, (*batch, probes), and what rows that were not kept may have cost."""
    alpha, beta, length = solved.alpha[..., count:], solved.beta[..., count:], solved.length[..., count:]
    if traced:
        ended = xp.cumsum(xp.astype(beta == 0, beta.dtype), axis=0) - xp.astype(beta == 0, beta.dtype) > 0
        alpha, found = xp.where(ended, alpha[:1], alpha), []
        for j in (3 * len(alpha) // 4, len(alpha)):
            nodes, weights = traced_nodes_and_weights(xp, alpha[: max(1, j)], beta[: max(1, j)])
            found.append(length * xp.sum(weights * xp.log(xp.where(nodes > 0, nodes, 1)), axis=-1))
        return found[1], xp.mean(found[1] - found[0], axis=-1)
    j = max(1, min(int(solved.steps), alpha.shape[0]))
    a, b = (np.asarray(xp.to_numpy(x), float)[:j].reshape(j, -1) for x in (alpha, beta))
    ended = np.cumsum(b == 0, axis=0) - (b == 0) > 0
    fine = np.isfinite(a).all(axis=0) & np.isfinite(b).all(axis=0)
    nodes, weights = nodes_and_weights(np.where(fine, np.where(ended, a[0], a), 1.0), np.where(fine, b, 0.0))
    with np.errstate(all="ignore"):
        means = np.sum(weights * np.log(nodes), axis=-1)
    means = np.where(fine, means, np.nan).reshape(tuple(length.shape))
    return length * xp.asarray(means, dtype=length.dtype, device=xp.device_of(length)), 0.0


def tell(A: Any, found: Pooled, residual: Array, matvecs: Any) -> None:
    xp, worst, steps = A.xp, found.status, found.steps
    missed = int(Status.MAX_ITERATIONS)
    message = ""
    if xp.is_traced(worst):
        if found.met is not True:
            worst = xp.where(found.met, worst, xp.maximum(worst, missed + 0 * worst))
        worst = xp.astype(worst, xp.asarray(0).dtype)
    else:
        worst, steps, matvecs = Status(int(worst)), int(steps), int(matvecs)
        if not bool(found.met):
            message = "the confidence interval did not shrink to the tolerance; raise probes or tol" if worst <= missed else ""
            worst = max(worst, Status.MAX_ITERATIONS)
    shown = xp.stop_gradient(residual) if residual.shape[-1] else None
    report(Info(worst, error=found.error, iterations=steps, matvecs=matvecs, residual=shown, method="SLQ", message=message))
