"""The estimators of traces, diagonals and log-determinants, as objects: how many random vectors, of which distribution, how accurate."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ..properties import POSITIVE_SEMIDEFINITE
from .objects import Method, check_integer
from .seeds import check_seed

DISTRIBUTIONS = ("rademacher", "gaussian", "sphere")
QUADRATURES = ("gauss", "lower", "upper")
DEFAULT_PROBES = 32
MOST_PROBES = 10_000  # that a run with a tolerance draws, unless told


class Stochastic(Method):
    """What the estimators share. Not to be used itself.

    Parameters
    ----------
    probes : int, optional
        The products with A to spend; with `tol`, the most of them. Default 32, or with `tol` 10 000.
    tol : float, optional
        The relative error to reach: random vectors are drawn until the half width of the confidence interval is at most `tol` times
        the estimate (of a diagonal: both in the 2-norm). Where it is not reached the status is MAX_ITERATIONS.
    confidence : float
        Of that interval.
    seed : int, JAX key, or NumPy or torch generator
        Of the random numbers. An integer or a key gives the same answer each time; a generator moves on.
    """

    probes: int | None
    confidence: float
    seed: Any

    is_iterative: ClassVar[bool] = True
    is_stochastic: ClassVar[bool] = True
    least: ClassVar[int] = 1  # products that it needs

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "probes", self.least, f"an integer, at least {self.least}")
        if not 0 < self.confidence < 1:
            raise ValueError(
                f"{self.name}: confidence is {self.confidence!r}; it must lie between 0 and 1."
            )
        check_seed(self.name, self.seed)
        distribution = getattr(self, "distribution", DISTRIBUTIONS[0])
        if distribution not in DISTRIBUTIONS:
            names = ", ".join(map(repr, DISTRIBUTIONS))
            raise ValueError(
                f"{self.name}: distribution is {distribution!r}; it must be one of {names}."
            )

    @property
    def most(self) -> int:
        """The most products to spend."""
        return self.probes or (DEFAULT_PROBES if self.tol is None else MOST_PROBES)

    def part(self, seed: Any, parts: int) -> Any:
        """The same method for one of several parts, its errors independent of those of the others."""
        return replace(
            self,
            seed=seed,  # type: ignore[type-var]
            tol=None if self.tol is None else self.tol / parts**0.5,
        )


@dataclass(frozen=True)
class Hutchinson(Stochastic):
    """The mean of z^H A z (of conj(z) * A z, for the diagonal) over random vectors z (Hutchinson 1989).

    For real symmetric A the variance of one sample of the trace is 2 (|A|_F^2 - Σ a_ii^2) for signs, 2 |A|_F^2 for Gaussian vectors,
    and 2 n / (n + 2) (|A|_F^2 - tr(A)^2 / n) on the sphere.

    Parameters
    ----------
    probes : int, optional
        How many random vectors; default 32 (for a smaller A the answer is then exact). With `tol` the most of them, default 10 000.
    distribution : {"rademacher", "gaussian", "sphere"}
        Signs, normal numbers, or directions of length sqrt(n).
    per_term : bool
        For a sum A = Σ_i A_i: a random vector of its own for each term. That is the doubly stochastic estimator of the paper, at the
        cost of one product with A per probe; its variance is the sum of those of the terms, that of Σ z^H A_i z with one z is m times
        as much for m terms alike. `Sum`, `BatchSum`, `LowRank` and products B C (a sum over the columns of B) are sums.
    batch_size : int, optional
        As `per_term`, with one random vector for each so many terms: fewer random numbers.
    tol, confidence, seed
        See the other estimators: draw until the confidence interval is that small.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.opaque(co.Diagonal(np.arange(1000.0)))
    >>> value, info = co.trace(A, co.Hutchinson(probes=10), info=True)
    >>> float(value), float(info.error)  # signs give diagonal matrices exactly
    (499500.0, 0.0)
    """

    probes: int | None = None
    distribution: str = "rademacher"
    per_term: bool = False
    tol: float | None = None
    confidence: float = 0.95
    seed: Any = field(default=0, compare=False)
    batch_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "batch_size", 1, "a positive integer")

    @property
    def is_doubly_stochastic(self) -> bool:
        """Whether terms of a sum have random vectors of their own."""
        return self.per_term or self.batch_size is not None


@dataclass(frozen=True)
class Plain(Stochastic):
    """What the estimators without further options share. Not to be used itself."""

    probes: int | None = None
    tol: float | None = None
    confidence: float = 0.95
    seed: Any = field(default=0, compare=False)


class HutchPP(Plain):
    """Hutch++ (Meyer, Musco, Musco and Woodruff 2021): a third of the products finds a range, whose part is exact; Hutchinson does
    the rest. The error falls as 1 / probes, not as its square root. Diagonals need products with A^H too.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.opaque(co.LowRank(np.ones((1000, 1))))
    >>> float(co.trace(A, co.HutchPP(probes=12)).round(6))
    1000.0
    """

    least: ClassVar[int] = 3


class XTrace(Plain):
    """XTrace (Epperly, Tropp and Webber 2024), for traces: each random vector serves the range of all others. Two products each.

    As good as exact where the eigenvalues of A fall off within probes / 2.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.opaque(co.Diagonal(0.7 ** np.arange(1000.0)))
    >>> value, info = co.trace(A, co.XTrace(probes=100), info=True)
    >>> bool(abs(value - 10 / 3) < 1e-6), bool(info.error < 1e-6)
    (True, True)
    """

    least: ClassVar[int] = 4


class XDiag(Plain):
    """XDiag (Epperly, Tropp and Webber 2024), the diagonal as `XTrace` finds the trace. Half of the products are with A^H.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> U = np.ones((1000, 2)) * [1.0, 2.0]
    >>> co.diag(co.opaque(co.LowRank(U)), co.XDiag(probes=8))[:3].round(6)
    array([5., 5., 5.])
    """

    least: ClassVar[int] = 4


class XNysTrace(Plain):
    """XNysTrace (Epperly, Tropp and Webber 2024), for traces of positive semidefinite A. One product for each random vector.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.opaque(co.PSD(co.Diagonal(0.7 ** np.arange(1000.0))))
    >>> bool(abs(co.trace(A, co.XNysTrace(probes=60)) - 10 / 3) < 1e-6)
    True
    """

    least: ClassVar[int] = 2
    needs: ClassVar[int] = POSITIVE_SEMIDEFINITE


@dataclass(frozen=True)
class SLQ(Stochastic):
    """Stochastic Lanczos quadrature (Ubaru, Chen and Saad 2017): log-determinants and traces of f(A) for self-adjoint A.

    z^H f(A) z is the integral of f over a measure for which Lanczos, started from z, gives the Gauss quadrature. All random vectors run
    together, a block product for each step. No basis is kept: five blocks of n x probes numbers.

    Parameters
    ----------
    probes : int, optional
        How many random vectors; default 32. With `tol` the most of them.
    max_iters : int, optional
        The most steps of Lanczos; default 500. It ends where the quadrature is seen to have converged.
    distribution : {"rademacher", "gaussian", "sphere"}
    tol : float, optional
        The relative error to reach, as for the other estimators.
    confidence, seed
        See the other estimators.
    preconditioner : operator or factory, optional
        M = P^-1 with a known determinant, such as `Jacobi()`, `PivotedCholesky(rank)` or `Nystrom(rank)`:
        log det A = log det P + tr log(P^-1/2 A P^-1/2), of which the last part is small and has a small variance.
    quadrature : {"gauss", "lower", "upper"}
        "lower" and "upper" give bounds of the mean of z^H log(A) z: Gauss and Radau's, with a node at an end of `interval`.
    interval : (float, float), optional
        Bounds of the eigenvalues of A (of M A, if preconditioned), for these.

    Notes
    -----
    `info.error` is the standard error over the probes, and the error of the quadrature, if that is larger. A Ritz value that is not
    positive shows that A is not positive definite: the status says so. Derivatives of log-determinants, tr(A^-1 dA), and of traces
    of f(A), tr(f'(A) dA), are estimated from the same random vectors.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.opaque(co.PSD(co.Diagonal(np.linspace(1.0, 2.0, 1000))))
    >>> value, info = co.logdet(A, co.SLQ(probes=20), info=True)
    >>> bool(abs(value - np.log(np.linspace(1.0, 2.0, 1000)).sum()) <= 4 * info.error + 1e-6)
    True
    """

    probes: int | None = None
    max_iters: int | None = None
    distribution: str = "rademacher"
    tol: float | None = None
    confidence: float = 0.95
    preconditioner: Any = field(default=None, compare=False)
    quadrature: str = "gauss"
    interval: tuple[float, float] | None = None
    seed: Any = field(default=0, compare=False)

    needs: ClassVar[int] = POSITIVE_SEMIDEFINITE

    def __post_init__(self) -> None:
        super().__post_init__()
        interval = self.interval
        check_integer(self, "max_iters", 1, "a positive integer")
        if self.quadrature not in QUADRATURES:
            raise ValueError(
                f"SLQ: quadrature is {self.quadrature!r}; it must be one of {', '.join(map(repr, QUADRATURES))}."
            )
        if interval is not None and not (len(interval) == 2 and interval[0] < interval[1]):
            raise ValueError(
                f"SLQ: interval is {interval!r}; it must be (low, high), low below high."
            )
        if self.quadrature == "lower" and interval is None:
            raise ValueError(
                "SLQ: a lower bound needs an interval (low, high) that holds the eigenvalues."
            )
