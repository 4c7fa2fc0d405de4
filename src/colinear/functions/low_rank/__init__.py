"""Low-rank approximations from few products or few columns: ordinary operators, which compose
with all others."""

from __future__ import annotations

from typing import Any

from ...backends import Array, program, without_zeros
from ...dispatch import function
from ...errors import MethodError
from ...info import Info, is_detailed, report
from ...methods.sampling import check_seed, drawn_seed
from ...operators import LinearOperator, LowRank
from ...operators.context import kind_of
from ...preconditioners.low_rank import approximation, factor_by_blocks, partial_factor
from ...properties import POSITIVE_SEMIDEFINITE
from ...status import Status, combine, first_failure
from ..common import ignore_float_errors, is_half, square_size, to_result_dtype, with_status
from ..diagonal import diag
from ..spectrum.order import checked_count

# What the approximations share: their checks, and how far off they are.


# times n eps, of the largest entry, from which a negative number is none of rounding
ROUNDING = 100
PROBES = 10  # random vectors that the error is estimated by


def checked_rank(function: str, A: LinearOperator, rank: Any, name: str = "rank") -> int:
    """A rank that A can have, or an error."""
    m, n = A.shape[-2:]
    most = min(m, n)
    bounds = f"for an operator of {m}x{n} it is between 1 and {most}."
    return checked_count(function, rank, 1, most, bounds, name)


def checked(
    function: str, A: LinearOperator, rank: Any, seed: Any
) -> tuple[Any, LinearOperator, int, Any]:
    """The framework, A to compute with, the rank, and the seed as an integer or a JAX key.

    Half precision is computed with in single precision.
    """
    check_seed(function, seed)
    K = A.to(dtype=A.xp.float32) if is_half(A.xp, A.dtype) else A
    return A.xp, K, checked_rank(function, A, rank), drawn_seed(seed)


def needs_positive(function: str, A: LinearOperator) -> None:
    instead = "Use cur(A, rank) or interpolative(A, rank)."
    square_size(function, A, "a positive semidefinite approximation", instead)
    if not A.properties & POSITIVE_SEMIDEFINITE:
        raise MethodError(
            f"{function}: for positive semidefinite A alone, and A is not known to be. Say PSD(A) "
            "if it is so, or use cur(A, rank) or svd(A, rank, RandomizedSVD())."
        )


def compiled(f: Any, operators: tuple[LinearOperator, ...], *options: Any) -> Any:
    """f(*operators, *options), in JAX compiled once for each structure and shape; what their
    products report of themselves is reported."""
    if operators[0].backend != "jax":
        return f(*operators, *options)
    try:
        run = program("jax", _reported, f, options)
    except TypeError:  # a seed that has no hash, such as a key
        return f(*operators, *options)
    result, worst = run(*operators)
    status = combine([worst])
    if status is not Status.SUCCESS:
        report(Info(status))
    return result


def _reported(
    xp: Any, f: Any, options: tuple[Any, ...], *operators: LinearOperator
) -> tuple[Any, Array]:
    return with_status(xp, lambda: f(*operators, *options))


def tell(
    A: LinearOperator,
    approximation: LinearOperator,
    method: str,
    matvecs: int,
    seed: Any,
    error: Any = None,
    indefinite: Any = False,
) -> None:
    """Report how far off an approximation is: |A - B| / |A| in the Frobenius norm, by random
    vectors, unless `error` is known.

    The products that this takes are made only if someone asked for the Info. `indefinite` says
    whether an A that was said to be positive semidefinite is seen not to be.
    """
    if not is_detailed():
        if error is not None or indefinite is not False:
            report(Info(_status(A, 0.0 if error is None else error, indefinite), method=method))
        return
    if error is None:
        error, matvecs = compiled(estimated, (A, approximation), seed), matvecs + PROBES
    report(Info(_status(A, error, indefinite), matvecs=matvecs, error=error, method=method))


def estimated(A: LinearOperator, approximation: LinearOperator, seed: Any) -> Array:
    """|A - B| / |A|, estimated: E |M ω|^2 = |M|_F^2."""
    xp = A.xp
    generator = xp.split(xp.generator(seed), 5)[4]
    probes = xp.normal(generator, (A.shape[-1], PROBES), **kind_of(A))
    product = A @ probes
    parts = product, product - approximation @ probes
    size, error = (xp.vector_norm(X, axis=(-2, -1)) for X in parts)
    return error / without_zeros(xp, size)


def _status(A: LinearOperator, error: Any, indefinite: Any) -> Any:
    """NONFINITE where there is NaN or infinity, in A or in the answer; NOT_POSITIVE_DEFINITE
    where A is seen not to be so."""
    xp = A.xp
    return first_failure(
        xp,
        (xp.all(xp.isfinite(xp.asarray(error))), Status.NONFINITE),
        (~xp.any(xp.asarray(indefinite)), Status.NOT_POSITIVE_DEFINITE),
    )


# Nyström approximation from a random block (Tropp, Yurtsever, Udell and Cevher 2017): the
# algorithm is the preconditioner's.


OVERSAMPLING = 10  # columns of Ω beyond the rank: the last ones of a block are found poorly


def randomized_nystrom(A: LinearOperator, rank: int, seed: Any = 0) -> LinearOperator:
    """A low-rank approximation from below of a positive semidefinite operator, A Ω (Ω^H A Ω)^+ (A
    Ω)^H with a random Ω.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
        Known to be positive semidefinite.
    rank : int
        At least 1 and at most n.
    seed : int, JAX key, or NumPy or torch generator
        Of Ω.

    Returns
    -------
    LowRank, (*batch, n, n)
        U U^H, positive semidefinite, where A - U U^H is so too but for rounding.

    Notes
    -----
    `rank + 10` products, of one block, of which the best `rank` dimensions are kept, and O(n
    rank^2). With `info=True`, `info.error` estimates |A - U U^H| / |A| in the Frobenius norm, by
    ten products more. As a preconditioner: `Nystrom(rank)`.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> x = np.linspace(0, 1, 200)
    >>> K = co.PSD(np.exp(-((x[:, None] - x) ** 2)))
    >>> K_low, info = co.nystrom(K, rank=12, info=True)
    >>> bool(info.error < 1e-6)
    True
    >>> x = co.solve(K_low + 0.1 * co.Identity(200), np.ones(200))  # by Woodbury's formula
    """
    needs_positive("nystrom", A)
    xp, K, rank, seed = checked("nystrom", A, rank, seed)
    width = min(A.shape[-1], rank + OVERSAMPLING)
    with ignore_float_errors(xp):
        U, values = compiled(approximation, (K,), width, seed)
        columns = (U * xp.sqrt(values)[..., None, :])[..., :rank]
        found = LowRank(to_result_dtype(xp, columns, A.dtype))
        # Cholesky of Ω^H A Ω fails for an A that is not positive semidefinite; NaN in A itself is
        # told from that by the error.
        tell(A, found, "Nystrom", width, seed, indefinite=~xp.all(xp.isfinite(U)))
    return found


nystrom = function("nystrom", base=randomized_nystrom, rewrites=False)


# Randomly pivoted partial Cholesky factorisation (Chen, Epperly, Tropp and Webber 2024): the
# recurrence is `PivotedCholesky`'s, or that of the preconditioner of this name.


MANY, PARTS = 256, 32  # columns from which they are taken in blocks, and how many blocks


def random_pivots(A: LinearOperator, rank: int, seed: Any = 0) -> LinearOperator:
    """A low-rank approximation L L^H of a positive semidefinite operator from its diagonal and
    `rank` of its columns, drawn at random.

    Each column is drawn with a probability proportional to the diagonal that remains: columns that
    tell much are likely, and, unlike those of the largest entry, outliers are not all that is seen.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
        Known to be positive semidefinite.
    rank : int
        At least 1 and at most n.
    seed : int, JAX key, or NumPy or torch generator
        Of the pivots.

    Returns
    -------
    LowRank, (*batch, n, n)
        L L^H, which agrees with A in the rows and columns of the pivots; A - L L^H is positive
        semidefinite but for rounding.

    Notes
    -----
    n (rank + 1) entries and O(n rank^2): a kernel matrix is never formed. Many columns, 256 or
    more, are drawn in blocks of a thirty-second of them. As a preconditioner: `RPCholesky(rank)`,
    whose blocks are larger. With `info=True`,
    `info.error` is trace(A - L L^H) / trace(A), which is known and not an estimate. The error is
    near that of the best approximation, on average.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> x = np.linspace(0, 1, 500)[:, None]
    >>> K = co.PSD(co.Kernel(lambda x, y: np.exp(-((x - y.T) ** 2)), x))
    >>> K_low, info = co.rp_cholesky(K, rank=12, info=True)
    >>> bool(info.error < 1e-6)
    True
    """
    needs_positive("rp_cholesky", A)
    xp, K, rank, seed = checked("rp_cholesky", A, rank, seed)
    with ignore_float_errors(xp):
        L, remaining, lowest = compiled(_factor, (K,), rank, seed)
        d = xp.real(diag(K))
        total, scale = xp.sum(d, axis=-1), xp.max(xp.abs(d), axis=-1)
        error = xp.sum(remaining, axis=-1) / without_zeros(xp, total)
        found = LowRank(to_result_dtype(xp, L, A.dtype))
        rounding = ROUNDING * A.shape[-1] * xp.eps(K.dtype)
        tell(A, found, "RPCholesky", rank, seed, error, lowest < -rounding * scale)
    return found


def _factor(K: LinearOperator, rank: int, seed: Any) -> tuple[Array, Array, Array]:
    if rank >= MANY:
        return factor_by_blocks(K, rank, rank // PARTS, seed)
    xp = K.xp
    place = {"dtype": xp.real_dtype(K.dtype), "device": K._context.device}
    draws = xp.uniform(xp.generator(seed), (*K.batch_shape, rank), **place)
    return partial_factor(K, rank, draws)


rp_cholesky = function("rp_cholesky", base=random_pivots, rewrites=False)
