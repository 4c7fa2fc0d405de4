"""Random vectors with E[z z^H] = I, and products with them of which some may fail."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..backends import Array
from ..info import Status, combine, failed, recording
from .averaging import worse, worst_of


def draw(
    xp: Any, gen: Any, distribution: str, shape: tuple[int, ...], dtype: Any, device: Any
) -> Array:
    """Columns (*batch, n, k): signs, normal numbers, or directions of length sqrt(n).

    Half precision is drawn as single and rounded: signs are exact in it.
    """
    if distribution == "rademacher":
        return xp.rademacher(gen, shape, dtype=dtype, device=device)
    Z = xp.normal(gen, shape, dtype=dtype, device=device)
    if distribution == "gaussian":
        return Z
    return Z * (math.sqrt(shape[-2]) / xp.vector_norm(Z, axis=-2, keepdims=True))


def heard(xp: Any, multiply: Callable[[Array], Array], X: Array, before: Any) -> tuple[Array, Any]:
    """A X, and the worst failure that A, applied by a method itself, has reported so far: a number, zero if there is none.

    For loops, whose body must hear what its products say: outside of it nobody can.
    """
    with recording() as reports:
        Y = multiply(X)
    worst = combine([info._status for info in reports if failed(info._status) is not False])
    if isinstance(worst, Status):
        found: Any = int(worst) if worst.is_failure else 0
    else:
        found = xp.where(failed(worst), worst, 0 * worst)
    if isinstance(found, int) and found == 0:
        return Y, before
    return Y, xp.astype(worse(xp, before, found), before.dtype) if xp.name == "jax" else worse(
        xp, before, found
    )


def no_failure(xp: Any) -> Any:
    """What a loop starts from that hears of failures."""
    return xp.asarray(0) if xp.name == "jax" else 0


def product(xp: Any, multiply: Callable[[Array], Array], Z: Array) -> tuple[Array, Array, Any]:
    """A Z, which of the columns worked, (*batch, k), and the worst status.

    A column fails where it is not finite, and where A is applied by a method (the inverse of another operator, say) which says so.
    """
    with recording() as reports:
        Y = multiply(Z)
    good = xp.all(xp.isfinite(Y), axis=-2)
    status = worst_of(xp, good)
    for info in reports:
        if failed(info._status) is False:
            continue
        worst = combine([info._status])
        status = worse(xp, status, int(worst) if isinstance(worst, int) else worst)
        converged = info.converged
        if getattr(converged, "shape", ())[-1:] == Z.shape[-1:]:
            good = xp.logical_and(good, converged)
        elif not getattr(converged, "shape", ()):
            good = xp.logical_and(good, xp.asarray(converged))
    return Y, good, status
