"""A polynomial in A that is close to 1 / λ on the spectrum: Chebyshev's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..backends import Array, positive_or_one
from ..factors.host import ChebyshevFactor
from ..methods.lanczos import ritz_values
from ..operators import LinearOperator
from ..properties import PD
from .base import Preconditioner, compiled, held_fixed, positive_integer


@dataclass(frozen=True)
class Chebyshev(Preconditioner):
    """p(A), the polynomial of a degree that is closest to A^-1 on an interval. A product costs
    `degree` products with A.

    It trades inner products, which wait for all processors or for a GPU, for products with A.
    Positive definite if `high` is at least the largest eigenvalue.

    Parameters
    ----------
    degree : int
        Of the polynomial.
    bounds : (float, float), optional
        Between which the eigenvalues lie. By default estimated from `steps` steps of Lanczos's
        method, the upper one with a margin of a twentieth; they are held fixed: derivatives do not
        go through them.
    steps, seed : int
        Of the estimate, and of its random vector.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.PSD(np.diag([1.0, 2.0, 3.0]))
    >>> M = co.Chebyshev(8, bounds=(1, 3))(A)
    >>> bool(np.abs(A @ (M @ np.ones(3)) - 1).max() < 1e-4)
    True
    """

    needs_positive: ClassVar[bool] = True

    degree: int = 8
    bounds: tuple[float, float] | None = None
    steps: int = 12
    seed: Any = 0

    def __post_init__(self) -> None:
        positive_integer("Chebyshev", "degree", self.degree, least=0)
        positive_integer("Chebyshev", "steps", self.steps)
        if self.bounds is not None:
            low, high = self.bounds
            if not 0 < low <= high:
                raise ValueError(
                    f"Chebyshev: bounds is {self.bounds!r}; 0 < low <= high are needed."
                )

    def _make(self, A: Any) -> LinearOperator:
        xp = A.xp
        if self.bounds is None:
            low, high = compiled(interval, held_fixed(A), min(self.steps, A.shape[-1]), self.seed)
        else:
            dtype = xp.real_dtype(A.dtype)
            low, high = (
                xp.asarray(bound, dtype=dtype, device=A._context.device) for bound in self.bounds
            )
        return PD(ChebyshevFactor._of(A, low, high, int(self.degree)))


def interval(A: LinearOperator, steps: int, seed: Any) -> tuple[Array, Array]:
    """The ends of the spectrum, the upper one from above: Ritz values of a few Lanczos steps.

    The upper end is the largest of Ritz value + residual (Zhou, Saad, Tiago and Chelikowsky 2006),
    times 1.05; the lower end the smallest Ritz value, as smaller eigenvalues are few.
    """
    xp, n = A.xp, A.shape[-1]
    q = xp.normal(xp.generator(seed), (n,), dtype=A.dtype, device=A._context.device)
    q = xp.broadcast_to(q, (*A.batch_shape, n))
    values, residual, _ = ritz_values(xp, A.__matmul__, q, q, steps)
    high = 1.05 * xp.max(values + residual, axis=-1, keepdims=True)
    high = positive_or_one(xp, high)
    low = xp.min(xp.where(values > n * xp.eps(A.dtype) * high, values, high), axis=-1)
    return low, high[..., 0]
