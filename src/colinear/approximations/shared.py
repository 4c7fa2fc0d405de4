"""What the approximations share: their checks, and how far off they are."""

from __future__ import annotations

from operator import index
from typing import Any

from ..backends import Array, program
from ..functions._arrays import is_half, seen, square_size
from ..info import Info, MethodError, Status, combine, is_detailed, recording, report
from ..methods.sampling import check_seed, drawn_seed
from ..operators.base import LinearOperator
from ..properties import POSITIVE_SEMIDEFINITE

ROUNDING = 100  # times n eps, of the largest entry, from which a negative number is none of rounding
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


def compiled(f: Any, A: LinearOperator, *options: Any, beside: tuple[LinearOperator, ...] = ()) -> Any:
    """f(A, *beside, *options), in JAX compiled once for each structure and shape; what A's products report of themselves is reported."""
    if A.backend != "jax":
        return f(A, *beside, *options)
    try:
        run = program("jax", _reported, f, options)
    except TypeError:  # a seed that has no hash, such as a key
        return f(A, *beside, *options)
    result, worst = run(A, *beside)
    if seen(A.xp, worst) is None:
        report(Info(worst))
    elif int(worst):
        report(Info(Status(int(worst))))
    return result


def _reported(xp: Any, f: Any, options: tuple[Any, ...], *operators: LinearOperator) -> tuple[Any, Array]:
    with recording() as reports:
        result = f(*operators, *options)
    worst = combine([info._status for info in reports])
    return result, xp.asarray(int(worst)) if isinstance(worst, Status) else worst


def tell(
    A: LinearOperator,
    approximation: LinearOperator,
    method: str,
    matvecs: int,
    seed: Any,
    error: Any = None,
    indefinite: Any = False,
) -> None:
    """Report how far off an approximation is: |A - B| / |A| in the Frobenius norm, by random vectors, unless `error` is known.

    The products that this takes are made only if someone asked for the Info. `indefinite` says whether an A that was said to be
    positive semidefinite is seen not to be.
    """
    if not is_detailed():
        if error is not None or indefinite is not False:
            report(Info(_status(A, 0.0 if error is None else error, indefinite), method=method))
        return
    if error is None:
        error, matvecs = compiled(estimated, A, seed, beside=(approximation,)), matvecs + PROBES
    report(Info(_status(A, error, indefinite), matvecs=matvecs, error=error, method=method))


def estimated(A: LinearOperator, approximation: LinearOperator, seed: Any) -> Array:
    """|A - B| / |A|, estimated: E |M ω|^2 = |M|_F^2."""
    xp = A.xp
    probes = xp.normal(xp.split(xp.generator(seed), 5)[4], (A.shape[-1], PROBES), dtype=A.dtype, device=A._context.device)
    product = A @ probes
    size = xp.vector_norm(product, axis=(-2, -1))
    return xp.vector_norm(product - approximation @ probes, axis=(-2, -1)) / xp.where(size == 0, 1, size)


def _status(A: LinearOperator, error: Any, indefinite: Any) -> Any:
    """NONFINITE where there is NaN or infinity, in A or in the answer; NOT_POSITIVE_DEFINITE where A is seen not to be so."""
    xp = A.xp
    worst: Any = int(Status.SUCCESS)
    if indefinite is not False:
        worst = xp.where(xp.any(indefinite), int(Status.NOT_POSITIVE_DEFINITE), worst)
    worst = xp.where(xp.all(xp.isfinite(xp.asarray(error))), worst, int(Status.NONFINITE))
    return worst if seen(xp, worst) is None else Status(int(worst))
