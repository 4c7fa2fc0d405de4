"""When `Auto` finds eigenpairs by iteration, by which method, and what that is expected to cost."""

from __future__ import annotations

import math
from typing import Any

from ..dispatch import Cost
from ..methods import SVRG, Arnoldi, Auto, Lanczos, Method
from ..operators.base import LinearOperator
from ..operators.dense import Dense
from ..properties import POSITIVE_SEMIDEFINITE
from .inverse import LARGEST_DENSE
from .shift_invert import is_cheap

SMALLEST = 400  # rows from which iterating may pay
DIFFERENTIABLE = 1500  # rows up to which derivatives are wanted more than speed: the dense way has all of them
STEPS = 8  # bases that a run is expected to fill, for the choice
PENALTY = 3  # on the expected cost of a run: it is a guess, and the dense way is certain
INSIDE = 20  # products to a row that pairs inside the spectrum are expected to take


def is_affordable(A: LinearOperator) -> bool:
    """Whether the matrix may be formed: it is stored, or small."""
    return isinstance(A, Dense) or A.shape[-1] <= LARGEST_DENSE


def automatic(A: LinearOperator, k: int, which: str, method: Auto, is_hermitian: bool) -> Method | None:
    """The method that `Auto` iterates by; None for the dense way, which is for small matrices and for most of the spectrum."""
    n = A.shape[-1]
    chosen: Any = (Lanczos if is_hermitian else Arnoldi)(tol=method.tol, max_iters=method.max_iters)
    affordable = is_affordable(A)
    if k == 0 or n < SMALLEST or (5 * k > n and affordable):
        return None
    watched = any(A.xp.is_traced(leaf) or A.xp.is_differentiated(leaf) for leaf in A.arrays())
    if affordable and n <= DIFFERENTIABLE and watched:
        return None
    if not affordable:
        return None if 2 * k > n else chosen  # more than half of them need the matrix
    expected = cost(A, k, chosen).flops
    if which in ("SM", "SI") and not (A.properties & POSITIVE_SEMIDEFINITE or is_cheap(A)):
        if not is_hermitian:  # from products alone they are not found
            return None
        expected = INSIDE * n * math.prod(A.batch_shape) * (A.flops + 8.0 * n)
    return chosen if PENALTY * expected < dense_flops(A, is_hermitian) else None


def dense_flops(A: LinearOperator, is_hermitian: bool) -> float:
    n = A.shape[-1]
    form = 0.0 if isinstance(A, Dense) else n * A.flops
    return math.prod(A.batch_shape) * (9.0 if is_hermitian else 25.0) * n**3 + form


def cost(A: LinearOperator, k: int, method: Any) -> Cost:
    """What a run is expected to cost; its memory is sure."""
    n, batch = A.shape[-1], math.prod(A.batch_shape)
    if isinstance(method, SVRG):
        return Cost(batch * k * method.typical(n, n) * A.flops, 8.0 * batch * n * 5 * k)
    m = method.size(n, k)
    steps = STEPS * m
    return Cost(batch * steps * (A.flops + 8.0 * m * n), 8.0 * batch * n * (m + k + 3))
