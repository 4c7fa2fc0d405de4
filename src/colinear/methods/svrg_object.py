"""Stochastic gradients for sums, as an object."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..backends import Array
from .iteration import Outcome, Products
from .objects import check_integer
from .seeds import check_seed, static_seed
from .solver_objects import Iterative
from .svrg import svrg

STEPS = 64  # minibatches of a pass, if the user does not say how large they are
EPOCHS = 500


@dataclass(frozen=True)
class SVRG(Iterative):
    """Stochastic variance-reduced gradients, for A that is a sum of many terms: `BatchSum`, `Sum`, or a product such as X^H X.

    For `solve` and `inv`, `lstsq` (by the rows of A), `nullspace`, and the outermost eigenvectors of self-adjoint A (`eig(A, k, "LA")`
    or `"SA"`, by VR-PCA). Steps with minibatches of the terms, and an exact residual at each anchor: two passes make an epoch.

    Parameters
    ----------
    batch_size : int, optional
        How many terms make a minibatch; default 1/64 of them.
    step : float, optional
        The step size; by default the inverse of the largest eigenvalue of a few minibatches, found by a few power iterations, and
        halved whenever an epoch does harm.
    momentum : float
        How much of the last step is made again, at least 0 and below 1; for linear systems.
    averaging : bool
        Whether the next anchor is the mean of an epoch's iterates instead of the last one; for linear systems.
    seed : int, JAX key, or NumPy or torch generator
        Of the minibatches. One integer gives one answer; a generator moves on.
    tol, preconditioner, x0, callback, progress
        As for `CG`; the preconditioner is for linear systems.
    max_iters : int, optional
        The most epochs; default 500.

    Notes
    -----
    An epoch converges by 1 - step λ_min for each minibatch. It pays where terms are many and alike, an approximate answer is enough
    and no preconditioner makes CG quick. `info.matvecs` counts passes: all terms once, for one vector. A that is not known
    to be positive semidefinite is solved through A^H A, at four passes an epoch. A step that diverges ends as BREAKDOWN.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> X = co.Dense(np.random.default_rng(0).standard_normal((10000, 5)))
    >>> A = X.H @ X / 10000 + 0.1 * co.Identity(5)
    >>> x, info = co.solve(A, np.ones(5), co.SVRG(batch_size=100), info=True)
    >>> bool(np.linalg.norm(A @ x - 1) < 1e-6), info.iterations < 30
    (True, True)
    """

    batch_size: int | None = None
    step: float | None = None
    momentum: float = 0.0
    averaging: bool = False
    seed: Any = 0

    needs_terms: ClassVar[bool] = True
    vectors: ClassVar[int] = 12

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "batch_size", 1, "a positive integer, or None")
        if self.step is not None and not 0 < self.step < float("inf"):
            raise ValueError(
                f"SVRG: step is {self.step!r}; it must be a positive number, or None to have one found."
            )
        if not 0 <= self.momentum < 1:
            raise ValueError(
                f"SVRG: momentum is {self.momentum!r}; it must be at least 0 and below 1."
            )
        check_seed("SVRG", self.seed)
        if self.precision is not None:
            raise ValueError(
                "SVRG: it has no low precision to refine from. Use CG, MINRES, GMRES or BiCGSTAB."
            )

    def runs_on(self, A: Any) -> bool:
        return bool(A._term_count > 1)

    def without_arrays(self) -> Any:
        return replace(self, preconditioner=None, x0=None, seed=static_seed(self.seed))

    def batch_of(self, count: int) -> int:
        """The size of minibatches of so many terms."""
        return max(1, count // STEPS) if self.batch_size is None else int(self.batch_size)

    def iterations(self, m: int, n: int) -> int:
        return EPOCHS if self.max_iters is None else self.max_iters

    def typical(self, m: int, n: int) -> int:
        return min(2 * self.iterations(m, n), 60)

    def algorithm(self, xp: Any, products: Products, B: Array, **options: Any) -> Outcome:
        return svrg(
            xp, products, B, step=self.step, momentum=self.momentum, averaging=self.averaging, seed=self.seed, **options
        )  # fmt: skip
