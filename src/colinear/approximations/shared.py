"""What the approximations share: their checks, and how far off they are."""

from __future__ import annotations

from functools import lru_cache
from operator import index
from typing import Any

from .. import backends
from ..backends import Array
from ..functions._arrays import is_detailed, is_half, seen, square_size
from ..info import Info, MethodError, Status, report
from ..methods.seeds import check_seed, drawn_seed
from ..operators.base import LinearOperator
from ..properties import POSITIVE_SEMIDEFINITE

PROBES = 10  # random vectors that the error is estimated by


def checked_rank(function: str, A: LinearOperator, rank: Any, name: str = "rank") -> int:
    """A rank that A can have, or an error."""
    m, n = A.shape[-2:]
    try:
        count = index(rank)
    except TypeError:
        raise ValueError(f"{function}: {name} is {rank!r}; it must be a whole number.") from None
    if not 1 <= count <= min(m, n):
        raise ValueError(f"{function}: {name} is {count}; for an operator of {m}x{n} it is between 1 and {min(m, n)}.")
    return count


def checked_seed(function: str, seed: Any) -> Any:
    """An integer or a JAX key."""
    check_seed(function, seed)
    return drawn_seed(seed)


def needs_positive(function: str, A: LinearOperator) -> None:
    square_size(function, A, "a positive semidefinite approximation", "Use cur(A, rank) or interpolative(A, rank).")
    if not A.properties & POSITIVE_SEMIDEFINITE:
        raise MethodError(
            f"{function}: for positive semidefinite A alone, and A is not known to be. Say PSD(A) if it is so, "
            "or use cur(A, rank) or svd(A, rank, RandomizedSVD())."
        )


def single(A: LinearOperator) -> LinearOperator:
    """Half precision as single precision, in which linear algebra is done."""
    return A.to(dtype=A.xp.float32) if is_half(A.xp, A.dtype) else A


def tell(A: LinearOperator, approximation: LinearOperator, method: str, matvecs: int, seed: Any, error: Any = None) -> None:
    """Report how far off an approximation is: |A - B| / |A| in the Frobenius norm, by random vectors, unless `error` is known.

    The products that this takes are made only if someone asked for the Info.
    """
    if not is_detailed():
        if error is not None:
            report(Info(_status(A, error), method=method))
        return
    if error is None:
        run = _estimator(A.backend, seed) if isinstance(seed, int) else lambda A, B: estimated(A, B, seed)
        error, matvecs = run(A, approximation), matvecs + PROBES
    report(Info(_status(A, error), matvecs=matvecs, error=error, method=method))


@lru_cache(maxsize=64)
def _estimator(backend: str, seed: Any) -> Any:
    return backends.get(backend).jit(lambda A, approximation: estimated(A, approximation, seed))


def estimated(A: LinearOperator, approximation: LinearOperator, seed: Any) -> Array:
    """|A - B| / |A|, estimated: E |M ω|^2 = |M|_F^2."""
    xp = A.xp
    probes = xp.normal(xp.split(xp.generator(seed), 5)[4], (A.shape[-1], PROBES), dtype=A.dtype, device=A._context.device)
    product = A @ probes
    size = xp.vector_norm(product, axis=(-2, -1))
    return xp.vector_norm(product - approximation @ probes, axis=(-2, -1)) / xp.where(size == 0, 1, size)


def _status(A: LinearOperator, error: Any) -> Any:
    """NONFINITE where there is NaN or infinity, in A or in the answer."""
    xp = A.xp
    values = seen(xp, error)
    if values is None:
        return xp.where(xp.all(xp.isfinite(error)), int(Status.SUCCESS), int(Status.NONFINITE))
    return Status.SUCCESS if bool(xp.all(xp.isfinite(error))) else Status.NONFINITE
