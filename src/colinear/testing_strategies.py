"""Hypothesis strategies: random trees of operators together with the matrices they stand for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from . import backends
from . import operators as families
from .operators import LinearOperator
from .properties import PSD, Symmetric

Pair = tuple[LinearOperator, Any]


@st.composite
def operators(
    draw: Callable[..., Any],
    backend: str | Sequence[str] = "numpy",
    dtype: str | Sequence[str] = "float64",
    depth: int = 3,
    square: bool | None = None,
    max_size: int = 6,
) -> Pair:
    """An operator and its matrix (NumPy, double precision), computed beside it and not by it.

    Parameters
    ----------
    backend, dtype : str or several
        Drawn from these.
    depth : int
        Of the tree, at most.
    square : bool, optional
        True for square operators only; None for both kinds.
    max_size : int
        Of rows and columns.
    """
    xp = backends.get(
        draw(st.sampled_from([backend] if isinstance(backend, str) else list(backend)))
    )
    name = draw(st.sampled_from([dtype] if isinstance(dtype, str) else list(dtype)))
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    size = st.integers(1, max_size)
    m = draw(size)
    n = m if square or (square is None and draw(st.booleans())) else draw(size)
    return _Grower(draw, xp, name, random).tree(m, n, depth)


class _Grower:
    """Grows trees of a given shape. Structure is drawn by hypothesis (and shrunk by it), numbers
    come from a seeded generator."""

    def __init__(self, draw: Callable[..., Any], xp: Any, dtype: str, random: Any):
        self.draw, self.xp, self.dtype, self.random = draw, xp, dtype, random

    def numbers(self, *shape: int) -> tuple[Any, Any]:
        """An array of the framework, and the numbers it holds after rounding to the dtype."""
        x = self.random.standard_normal(shape)
        if self.dtype.startswith("complex"):
            x = x + 1j * self.random.standard_normal(shape)
        array = self.xp.asarray(x, dtype=self.xp.dtype_from(self.dtype))
        return array, np.asarray(self.xp.to_numpy(array)).astype(
            np.complex128 if np.iscomplexobj(x) else np.float64
        )

    def tree(self, m: int, n: int, depth: int) -> Pair:
        kinds = dict(self.leaves(m, n))
        if depth > 0:
            kinds |= self.composed(m, n, depth - 1)
        return kinds[self.draw(st.sampled_from(sorted(kinds)))]()

    # -------------------------------------------------------------- leaves

    def leaves(self, m: int, n: int) -> dict[str, Callable[[], Pair]]:
        kinds: dict[str, Callable[[], Pair]] = {
            "dense": lambda: self.dense(m, n),
            "low rank": lambda: self.low_rank(m, n),
            "zero": lambda: (families.Zero(m, n, like=self.numbers(1)[0]), np.zeros((m, n))),
            "toeplitz": lambda: self.toeplitz(m, n),
        }
        if m == n:
            kinds |= {
                "diagonal": lambda: self.diagonal(n),
                "identity": lambda: (families.Identity(n, like=self.numbers(1)[0]), np.eye(n)),
                "permutation": lambda: self.permutation(n),
                "triangular": lambda: self.triangular(n),
                "psd": lambda: self.psd(n),
                "symmetric": lambda: self.symmetric(n),
            }
        return kinds

    def dense(self, m: int, n: int) -> Pair:
        array, host = self.numbers(m, n)
        return families.Dense(array), host

    def low_rank(self, m: int, n: int) -> Pair:
        (U, U_host), (V, V_host) = self.numbers(m, 2), self.numbers(n, 2)
        return families.LowRank(U, V), U_host @ V_host.conj().T

    def toeplitz(self, m: int, n: int) -> Pair:
        (col, col_host), (row, row_host) = self.numbers(m), self.numbers(n)
        i, j = np.indices((m, n))
        return families.Toeplitz(col, row), np.where(
            i >= j, col_host[np.clip(i - j, 0, m - 1)], row_host[np.clip(j - i, 0, n - 1)]
        )

    def diagonal(self, n: int) -> Pair:
        d, host = self.numbers(n)
        return families.Diagonal(d), np.diag(host)

    def permutation(self, n: int) -> Pair:
        perm = self.random.permutation(n)
        return families.Permutation(perm, like=self.numbers(1)[0]), np.eye(n)[perm]

    def triangular(self, n: int) -> Pair:
        array, host = self.numbers(n, n)
        lower = self.draw(st.booleans())
        return families.Triangular(array, lower=lower), np.tril(host) if lower else np.triu(host)

    def psd(self, n: int) -> Pair:
        _, host = self.numbers(n, n)
        gram = self.xp.asarray(host @ host.conj().T, dtype=self.xp.dtype_from(self.dtype))
        gram = (gram + self.xp.conj(self.xp.matrix_transpose(gram))) / 2
        return PSD(families.Dense(gram)), np.asarray(self.xp.to_numpy(gram)).astype(host.dtype)

    def symmetric(self, n: int) -> Pair:
        array, host = self.numbers(n, n)
        return Symmetric(families.Dense(array + self.xp.matrix_transpose(array))), host + host.T

    # -------------------------------------------------------------- composed

    def composed(self, m: int, n: int, depth: int) -> dict[str, Callable[[], Pair]]:
        kinds: dict[str, Callable[[], Pair]] = {
            "sum": lambda: self.sum(m, n, depth),
            "product": lambda: self.product(m, n, depth),
            "scaled": lambda: self.scaled(m, n, depth),
            "hadamard": lambda: self.hadamard(m, n, depth),
            "sliced": lambda: self.sliced(m, n, depth),
            "transpose": lambda: self.image(n, m, depth, lambda A: A.T, lambda D: D.T),
            "adjoint": lambda: self.image(n, m, depth, lambda A: A.H, lambda D: D.conj().T),
            "conjugate": lambda: self.image(m, n, depth, lambda A: A.conj(), np.conj),
            "opaque": lambda: self.image(m, n, depth, families.opaque, lambda D: D),
        }
        if m > 1 and n > 1:
            kinds |= {
                "block diagonal": lambda: self.block_diagonal(m, n, depth),
                "block": lambda: self.block(m, n, depth),
            }
        if m % 2 == 0 and n % 2 == 0:
            kinds["kronecker"] = lambda: self.kronecker(m, n, depth)
        if m == n:
            kinds["gram"] = lambda: self.gram(n, depth)
            if n % 2 == 0:
                kinds["kronecker sum"] = lambda: self.kronecker_sum(n, depth)
        return kinds

    def image(
        self, m: int, n: int, depth: int, ours: Callable[[Any], Any], theirs: Callable[[Any], Any]
    ) -> Pair:
        A, dense = self.tree(m, n, depth)
        return ours(A), theirs(dense)

    def sum(self, m: int, n: int, depth: int) -> Pair:
        (A, a), (B, b) = self.tree(m, n, depth), self.tree(m, n, depth)
        return A + B, a + b

    def product(self, m: int, n: int, depth: int) -> Pair:
        k = self.draw(st.integers(1, 4))
        (A, a), (B, b) = self.tree(m, k, depth), self.tree(k, n, depth)
        return A @ B, a @ b

    def gram(self, n: int, depth: int) -> Pair:
        A, a = self.tree(self.draw(st.integers(1, 4)), n, depth)
        return A.H @ A, a.conj().T @ a

    def scaled(self, m: int, n: int, depth: int) -> Pair:
        A, a = self.tree(m, n, depth)
        c = self.draw(st.sampled_from([0.5, -1.0, 2, 0.0]))
        return c * A, c * a

    def hadamard(self, m: int, n: int, depth: int) -> Pair:
        (A, a), (B, b) = self.tree(m, n, depth), self.tree(m, n, depth)
        return families.Hadamard(A, B), a * b

    def sliced(self, m: int, n: int, depth: int) -> Pair:
        A, a = self.tree(m + 1, n + 1, depth)
        rows = slice(1, None) if self.draw(st.booleans()) else self.random.permutation(m + 1)[:m]
        cols = slice(0, n) if self.draw(st.booleans()) else self.random.integers(0, n + 1, n)
        return families.Sliced(A, rows, cols), a[rows][:, cols]

    def kronecker(self, m: int, n: int, depth: int) -> Pair:
        (A, a), (B, b) = self.tree(2, 2, depth), self.tree(m // 2, n // 2, depth)
        return families.Kronecker(A, B), np.kron(a, b)

    def kronecker_sum(self, n: int, depth: int) -> Pair:
        (A, a), (B, b) = self.tree(2, 2, depth), self.tree(n // 2, n // 2, depth)
        return families.KroneckerSum(A, B), np.kron(a, np.eye(n // 2)) + np.kron(np.eye(2), b)

    def block_diagonal(self, m: int, n: int, depth: int) -> Pair:
        (A, a), (B, b) = self.tree(1, n - 1, depth), self.tree(m - 1, 1, depth)
        return families.BlockDiag(A, B), np.block(
            [[a, np.zeros((1, 1))], [np.zeros((m - 1, n - 1)), b]]
        )

    def block(self, m: int, n: int, depth: int) -> Pair:
        pairs = [[self.tree(height, width, depth) for width in (1, n - 1)] for height in (1, m - 1)]
        return families.Block([[A for A, _ in row] for row in pairs]), np.block(
            [[a for _, a in row] for row in pairs]
        )
