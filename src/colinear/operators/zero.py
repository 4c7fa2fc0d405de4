"""The zero map."""

from __future__ import annotations

from typing import Any

from ..backends import Array, namespace_of
from ..properties import POSITIVE_SEMIDEFINITE, SYMMETRIC
from .base import LinearOperator
from .context import Context, given_context
from .identity import promoted, size
from .memo import memo


class Zero(LinearOperator):
    """The m x n matrix of zeros, which holds nothing.

    Parameters
    ----------
    m, n : int
    like, dtype : optional
        As for `Identity`.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.Zero(2, 3) @ np.ones(3)
    array([0., 0.])
    """

    m: int
    n: int
    context: Context

    def __new__(cls, m: int, n: int, *, like: Any = None, dtype: Any = None) -> Zero:
        return cls._of(size(m, "Zero"), size(n, "Zero"), given_context("Zero", like, dtype))

    @memo
    def shape(self) -> tuple[int, ...]:
        return (self.m, self.n)

    @memo
    def _context(self) -> Context:
        return self.context

    def _infer(self) -> int:
        return POSITIVE_SEMIDEFINITE | SYMMETRIC if self.m == self.n else 0

    def _transpose(self) -> LinearOperator:
        return Zero._of(self.n, self.m, self.context)

    _adjoint = _transpose

    def _conj(self) -> LinearOperator:
        return self

    def _matmat(self, X: Array) -> Array:
        # (m x 0) times (0 x k) is m x k zeros that still belong to the graph of X, so derivatives are zeros and not errors.
        X = promoted(X, self.context.dtype)
        xp = namespace_of(X)
        return xp.matmul(xp.zeros((self.m, 0), dtype=X.dtype, device=xp.device_of(X)), X[..., :0, :])

    def _to_dense(self) -> Array:
        return self.xp.zeros((self.m, self.n), dtype=self.dtype, device=self._context.device)

    @property
    def _flops(self) -> float:
        return 0.0
