"""Low-rank matrices U core V^H, orthogonal projections Q Q^H and Householder reflections."""

from __future__ import annotations

from typing import Any

from ..backends import Array, adjoint, inner_products, namespace_of, positive_or_one
from ..errors import ShapeError
from ..properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT, UNITARY
from .base import LinearOperator
from .context import as_array, as_arrays, broadcast_batches, kind_of, of_array, spread
from .convert import as_operator
from .streamed import BLOCK_BYTES, is_lazy, multiply_by_blocks
from .tree import Shape, conjugate_leaves, memo

# Low-rank matrices, U core V^H, kept as their factors.


class LowRank(LinearOperator, init=False):
    """The matrix `U core V^H`. A product with a vector costs O((m + n) r).

    Parameters
    ----------
    U : array, (*batch, m, r)
    V : array, (*batch, n, s), optional
        U itself if not given.
    core : array, (*batch, r, s), optional
        The identity if not given.

    Notes
    -----
    `LowRank(U)` is `U U^H` and known to be positive semidefinite. With a core nothing is inferred:
    say `PSD(LowRank(U, core=C))` where C is so.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.LowRank(np.ones((3, 1)))
    >>> A @ np.array([1.0, 2.0, 3.0])
    array([6., 6., 6.])
    >>> A.isa(co.PSD)
    True
    """

    U: Array
    V: Array | None
    core: Array | None

    def __new__(cls, U: Any, V: Any = None, core: Any = None) -> LowRank:
        if any(x is not None and namespace_of(x) is None and is_lazy(x) for x in (U, V)):
            return _product_of_lazy(U, V, core)  # type: ignore[return-value]
        if V is None and core is None and (U := as_array(U, "LowRank")).ndim >= 2:
            shape = (*U.shape[:-1], U.shape[-2])
            return of_array(cls, "U", U, shape, V=None, core=None)
        given = {"U": U, "V": None if V is U else V, "core": core}
        given = {name: factor for name, factor in given.items() if factor is not None}
        arrays = dict(zip(given, as_arrays("LowRank", *given.values())))
        U, V, core = arrays["U"], arrays.get("V"), arrays.get("core")
        for name, factor in arrays.items():
            if factor.ndim < 2:
                found = tuple(factor.shape)
                raise ShapeError(
                    f"LowRank: {name} must be (*batch, rows, rank), its shape is {found}. For a "
                    "vector: u[:, None]."
                )
        left, right = U.shape[-1], (U if V is None else V).shape[-1]
        if core is None and left != right:
            raise ShapeError(
                f"LowRank: U has {left} columns and V has {right}; without a core they must be "
                "equal."
            )
        if core is not None and tuple(core.shape[-2:]) != (left, right):
            raise ShapeError(
                f"LowRank: U core V^H needs a core of {left}x{right}, it is "
                f"{core.shape[-2]}x{core.shape[-1]}."
            )
        broadcast_batches(*(factor.shape[:-2] for factor in arrays.values()), what="LowRank")
        return cls._of(U, V, core)

    @memo
    def shape(self) -> Shape:
        factors = [factor for factor in (self.U, self.V, self.core) if factor is not None]
        batch = broadcast_batches(*[factor.shape[:-2] for factor in factors])
        return (*batch, self.U.shape[-2], self._right.shape[-2])

    @property
    def _right(self) -> Array:
        """V, or U where it was not given."""
        return self.U if self.V is None else self.V

    @property
    def _core(self) -> Array:
        """The core, or I where it was not given."""
        return self.xp.eye(self.U.shape[-1], **kind_of(self)) if self.core is None else self.core

    def _infer(self) -> int:
        return POSITIVE_SEMIDEFINITE if self.V is None and self.core is None else 0

    _conj = conjugate_leaves

    def _adjoint(self) -> LinearOperator:
        # (U core V^H)^H = V core^H U^H
        xp = self.xp
        core = None if self.core is None else adjoint(xp, self.core)
        left, right = (self.U, None) if self.V is None else (self.V, self.U)
        return LowRank._of(left, right, core)

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        inner = inner_products(xp, self._right, X)
        inner = inner if self.core is None else xp.matmul(self.core, inner)
        is_long = xp.name == "numpy" and self.U.nbytes > BLOCK_BYTES
        return multiply_by_blocks(self.U, inner) if is_long else xp.matmul(self.U, inner)

    def _rows(self, indices: Array) -> LinearOperator:
        return LowRank._of(self.xp.take(self.U, indices, axis=-2), self._right, self.core)

    @property
    def _term_count(self) -> int:
        return self.U.shape[-1] if self.core is None else 1

    def _some_terms(self, indices: Array, weights: Array) -> LinearOperator:
        """sum_k w_k u_k v_k^H of columns u_k and v_k."""
        xp = namespace_of(indices)
        U = xp.take(self.U, indices, axis=-1)
        V = U if self.V is None else xp.take(self.V, indices, axis=-1)
        return LowRank._of(U * weights, V, None)

    def _summed_matmat(self, X: Array, axis: int) -> Array:
        """sum_i U_i core_i V_i^H X, with the factors of all terms side by side: two products,
        however many the terms."""
        xp = namespace_of(X)
        batch = self.shape[:-2]
        terms = batch[axis]
        if X.ndim - 2 >= -axis:
            X = xp.squeeze(X, axis=axis - 2)

        left, right = (self._beside(factor, axis) for factor in (self.U, self._right))
        if self.core is None and _is_long(xp, right.shape[-1], X):
            return _summed_by_runs(left, right, X)
        inner = inner_products(xp, right, X)
        if self.core is not None:
            core = xp.moveaxis(spread(self.core, batch), axis - 2, -3)
            k, (r, s) = X.shape[-1], core.shape[-2:]
            blocks = xp.matmul(core, xp.reshape(inner, (*inner.shape[:-2], terms, s, k)))
            inner = xp.reshape(blocks, (*blocks.shape[:-3], terms * r, k))
        return xp.matmul(left, inner)

    def _beside(self, factor: Array, axis: int) -> Array:
        """The factors of all terms along a batch dimension side by side: (*batch, m, r) ->
        (*rest, m, terms * r)."""
        xp, batch = self.xp, self.shape[:-2]
        factor = xp.moveaxis(spread(factor, batch), axis - 2, -2)
        return xp.reshape(factor, (*factor.shape[:-2], batch[axis] * factor.shape[-1]))

    def _to_dense(self) -> Array:
        xp = self.xp
        left = self.U if self.core is None else xp.matmul(self.U, self.core)
        return xp.matmul(left, adjoint(xp, self._right))

    @property
    def _flops(self) -> float:
        (m, n), r, s = self.shape[-2:], self.U.shape[-1], self._right.shape[-1]
        return 2.0 * (m * r + n * s + (0 if self.core is None else r * s))

    def _expression(self) -> str:
        return f"LowRank({'x'.join(map(str, self.shape))}, rank {self.U.shape[-1]})"


def _is_long(xp: Any, terms: int, X: Array) -> bool:
    """Whether V^H X of so many terms, in NumPy, is large."""
    size = terms * X.shape[-1] * X.dtype.itemsize if xp.name == "numpy" and X.ndim == 2 else 0
    return size > BLOCK_BYTES


def _summed_by_runs(U: Any, V: Any, X: Any) -> Any:
    """U V^H X of wide factors in NumPy, some columns of them at a time."""
    step, total = max(1, BLOCK_BYTES // (X.shape[-1] * X.dtype.itemsize)), 0.0
    for i in range(0, U.shape[-1], step):
        run = slice(i, i + step)
        total = total + U[..., run] @ (V[..., run].conj().swapaxes(-1, -2) @ X)
    return total


def _product_of_lazy(U: Any, V: Any, core: Any) -> LinearOperator:
    """U core V^H as a product of operators: what `LowRank` makes of lazy factors."""
    if any(len(x.shape) != 2 for x in (U, V) if x is not None):
        raise ShapeError(
            "LowRank: factors that come a chunk at a time must be matrices. For a sum of terms of "
            "rank one, one for each row of X, write LowRank(X.T), which is X^T X."
        )
    left = as_operator(U)
    right = left if V is None else as_operator(V)
    return (left if core is None else left @ as_operator(core)) @ right.H


# Orthogonal projections, Q Q^H.


class Projection(LinearOperator, init=False):
    """The orthogonal projection `Q Q^H` onto the range of Q, whose columns must be orthonormal. A
    product costs O(n r).

    That `Q^H Q = I` is taken at your word: it is what makes this a projection (its own square,
    eigenvalues 0 and 1), and rules use it. For any other basis B take `Q, R = qr(B)` first. `Q Q^H`
    for a general Q is `LowRank(Q)`.

    Parameters
    ----------
    Q : array, (*batch, n, r), r <= n

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.Projection(np.array([[1.0], [0.0]])) @ np.array([2.0, 3.0])
    array([2., 0.])
    """

    Q: Array

    def __new__(cls, Q: Any) -> Projection:
        Q = as_array(Q, "Projection: Q", min_ndim=2)
        n, r = Q.shape[-2:]
        if r > n:
            raise ShapeError(
                f"Projection: Q is {n}x{r}; orthonormal columns need at least as many rows as "
                "columns."
            )
        return cls._of(Q)

    @property
    def shape(self) -> Shape:
        return (*self.Q.shape[:-1], self.Q.shape[-2])

    _implied = POSITIVE_SEMIDEFINITE

    _conj = conjugate_leaves

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        return xp.matmul(self.Q, inner_products(xp, self.Q, X))

    def _to_dense(self) -> Array:
        return self.xp.matmul(self.Q, adjoint(self.xp, self.Q))

    @property
    def _flops(self) -> float:
        return 4.0 * self.Q.shape[-2] * self.Q.shape[-1]

    def _expression(self) -> str:
        return f"Projection({'x'.join(map(str, self.shape))}, rank {self.Q.shape[-1]})"


# Householder reflections, I - 2 v v^H / (v^H v).


class Householder(LinearOperator, init=False):
    """The reflection `I - 2 v v^H / (v^H v)`; v need not be normalised, and v = 0 gives the
    identity. A product costs O(n).

    Parameters
    ----------
    v : array, (*batch, n)

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.Householder(np.array([3.0, 0.0])) @ np.array([1.0, 2.0])
    array([-1.,  2.])
    """

    v: Array

    def __new__(cls, v: Any) -> Householder:
        return cls._of(as_array(v, "Householder: v", min_ndim=1))

    @property
    def shape(self) -> Shape:
        return (*self.v.shape, self.v.shape[-1])

    _implied = SELF_ADJOINT | UNITARY

    _conj = conjugate_leaves

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        if 0 in self.v.shape or 0 in X.shape:
            return xp.zeros((*self.v.shape[:-1], 1, 1), **kind_of(self.v)) + X
        w, squared = self._scaled()
        along = xp.sum(xp.conj(w) * X, axis=-2, keepdims=True)  # w^H X
        return X - w * (2 * along / squared)

    def _scaled(self) -> tuple[Array, Array]:
        """v as columns, scaled to entries of at most 1 so that v^H v cannot overflow, and its
        v^H v: 1 where v = 0."""
        xp = self.xp
        v = self.v[..., :, None]
        # The reflection does not depend on the scale, so neither does its derivative.
        largest = xp.stop_gradient(xp.max(xp.abs(v), axis=-2, keepdims=True))
        w = v / positive_or_one(xp, largest)
        squared = xp.sum(xp.real(xp.conj(w) * w), axis=-2, keepdims=True)
        return w, positive_or_one(xp, squared)

    @property
    def _flops(self) -> float:
        return 4.0 * self.v.shape[-1]
