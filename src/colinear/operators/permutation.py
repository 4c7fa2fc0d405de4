"""A permutation of coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends import Array, is_array, namespace_of
from ..info import DtypeError, ShapeError
from ..properties import UNITARY
from .base import LinearOperator
from .context import Context, broadcast_batches, common_context, given_context
from .fields import Index, index_or_array
from .identity import promoted
from .memo import memo

SMALL = 64  # entries that Python sorts faster than NumPy starts to


class Permutation(LinearOperator):
    """P with `P @ x == x[perm]`: row i of P is row perm[i] of the identity. Its transpose is its inverse.

    The permutation is structure, not data: known under `jit`, and no leaf of the tree. Only where it is itself traced is it an
    array, and then it cannot be checked.

    Parameters
    ----------
    perm : integers of shape (*batch, n)
        Each of 0, ..., n - 1 once.
    like, dtype : optional
        As for `Identity`.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> P = co.Permutation([2, 0, 1])
    >>> P @ np.array([10.0, 11.0, 12.0])
    array([12., 10., 11.])
    >>> P.T @ (P @ np.array([10.0, 11.0, 12.0]))
    array([10., 11., 12.])
    """

    perm: Index | Array
    context: Context

    def __new__(cls, perm: Any, *, like: Any = None, dtype: Any = None) -> Permutation:
        if not isinstance(perm, Index):
            try:
                perm = index_or_array(perm, "Permutation")
            except (TypeError, ValueError) as error:
                if isinstance(error, ShapeError):
                    raise
                raise DtypeError(f"Permutation: expected an array of integers, got {type(perm).__name__}.") from error
        given = perm.host if isinstance(perm, Index) else perm
        if is_array(perm) and namespace_of(perm).is_floating(perm):
            raise ShapeError(f"Permutation: indices must be integers, not {perm.dtype}.")
        if given.ndim < 1:
            raise ShapeError("Permutation: expected at least one dimension, got a single number.")
        if isinstance(perm, Index) and not _is_permutation(given):
            raise ShapeError(f"Permutation: perm must hold each of 0, ..., {given.shape[-1] - 1} once.")
        return cls._of(perm, given_context("Permutation", like, dtype))

    @property
    def shape(self) -> tuple[int, ...]:
        shape = self.perm.host.shape if isinstance(self.perm, Index) else tuple(self.perm.shape)
        return (*shape, shape[-1])

    @memo
    def _context(self) -> Context:
        return self.context

    def _infer(self) -> int:
        return UNITARY

    def _transpose(self) -> LinearOperator:
        return Permutation._of(self._inverse, self.context)

    _adjoint = _transpose

    @memo
    def _inverse(self) -> Any:
        perm = self.perm
        return Index(np.argsort(perm.host, -1)) if isinstance(perm, Index) else namespace_of(perm).argsort(perm, axis=-1)

    def compose(self, other: Permutation) -> Permutation:
        """The product P Q as one permutation: (P Q x)[i] = x[q[p[i]]]."""
        p, q = self.perm, other.perm
        if isinstance(p, Index) and isinstance(q, Index):
            batch = np.broadcast_shapes(p.host.shape, q.host.shape)
            composed: Any = Index(np.take_along_axis(np.broadcast_to(q.host, batch), np.broadcast_to(p.host, batch), -1))
        else:
            xp = namespace_of(p if is_array(p) else q)
            p, q = (x.on(xp) if isinstance(x, Index) else x for x in (p, q))
            batch = (*broadcast_batches(p.shape[:-1], q.shape[:-1]), p.shape[-1])
            composed = xp.take_along_axis(xp.broadcast_to(q, batch), xp.broadcast_to(p, batch), axis=-1)
        return Permutation._of(composed, common_context("Permutation", (self, other)))

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        X = promoted(X, self.context.dtype)
        perm = self.perm.on(xp, xp.device_of(X)) if isinstance(self.perm, Index) else self.perm
        if perm.ndim == 1:
            return xp.take(X, perm, axis=-2)
        batch = broadcast_batches(perm.shape[:-1], X.shape[:-2])
        X, perm = xp.broadcast_to(X, (*batch, *X.shape[-2:])), xp.broadcast_to(perm, (*batch, perm.shape[-1]))
        return xp.take_along_axis(X, xp.broadcast_to(perm[..., None], X.shape), axis=-2)

    def _matvec(self, x: Array) -> Array:
        xp = namespace_of(x)
        x = promoted(x, self.context.dtype)
        return x[self.perm.on(xp, xp.device_of(x)) if isinstance(self.perm, Index) else self.perm]  # batched: x[perm] is, too

    def _to_dense(self) -> Array:
        xp = self.xp if isinstance(self.perm, Index) else namespace_of(self.perm)
        return self._matmat(xp.eye(self.shape[-1], dtype=self._context.dtype or xp.default_float(), device=self._context.device))

    @property
    def _flops(self) -> float:
        return 0.0

    def _expression(self) -> str:
        return f"Permutation({'x'.join(map(str, self.shape[:-1]))})"


def _is_permutation(given: Any) -> bool:
    """Whether each row holds each of 0, ..., n - 1 once."""
    n = given.shape[-1]
    if given.shape == (n,) and n <= SMALL:
        return sorted(given.tolist()) == list(range(n))
    return bool((np.sort(given, -1) == np.arange(n)).all())
