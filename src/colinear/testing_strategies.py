"""Hypothesis strategies: random trees of operators together with the matrices they stand for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import add, matmul, mul
from typing import Any

import numpy as np
from hypothesis import strategies as st

from . import backends
from . import operators as families
from .operators import LinearOperator
from .properties import PSD, Symmetric

Pair = tuple[LinearOperator, Any]
SCALARS = (0.5, -1.0, 2, 0.0)


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
        """An operator of this shape and its matrix: `ours(*parts)` and `theirs(*parts)` of arrays
        or operators, and of the numbers they hold."""
        leaves = self.leaves(m, n)
        kinds = leaves | self.composed(m, n, depth - 1) if depth > 0 else leaves
        name = self.draw(st.sampled_from(sorted(kinds)))
        if callable(kinds[name]):
            return kinds[name]()
        ours, theirs, *shapes = kinds[name]
        make = self.numbers if name in leaves else partial(self.tree, depth=depth - 1)
        made, hosts = zip(*(make(*shape) for shape in shapes))
        return ours(*made), theirs(*hosts)

    # -------------------------------------------------------------- leaves

    def leaves(self, m: int, n: int) -> dict[str, Any]:
        """By name: ours, theirs and the shapes of their arrays; or what makes both."""
        like, xp = self.numbers(1)[0], self.xp
        kinds = {
            "dense": (families.Dense, np.asarray, (m, n)),
            "low rank": (families.LowRank, lambda U, V: U @ V.conj().T, (m, 2), (n, 2)),
            "zero": lambda: (families.Zero(m, n, like=like), np.zeros((m, n))),
            "toeplitz": (families.Toeplitz, _toeplitz, (m,), (n,)),
        }
        if m == n:
            kinds |= {
                "diagonal": (families.Diagonal, np.diag, (n,)),
                "identity": lambda: (families.Identity(n, like=like), np.eye(n)),
                "permutation": lambda: self.permutation(n),
                "lower": (families.Triangular, np.tril, (n, n)),
                "upper": (lambda A: families.Triangular(A, lower=False), np.triu, (n, n)),
                "psd": lambda: self.psd(n),
                "symmetric": (
                    lambda A: Symmetric(families.Dense(A + xp.matrix_transpose(A))),
                    lambda A: A + A.T,
                    (n, n),
                ),
            }
        return kinds

    def permutation(self, n: int) -> Pair:
        perm = self.random.permutation(n)
        return families.Permutation(perm, like=self.numbers(1)[0]), np.eye(n)[perm]

    def psd(self, n: int) -> Pair:
        _, host = self.numbers(n, n)
        gram = self.xp.asarray(host @ host.conj().T, dtype=self.xp.dtype_from(self.dtype))
        gram = (gram + backends.adjoint(self.xp, gram)) / 2
        return PSD(families.Dense(gram)), np.asarray(self.xp.to_numpy(gram)).astype(host.dtype)

    # -------------------------------------------------------------- composed

    def composed(self, m: int, n: int, depth: int) -> dict[str, Any]:
        """By name: ours, theirs and the shapes of their operands; or what makes both."""
        here, there = (m, n), (n, m)
        k = self.draw(st.integers(1, 4))
        times = partial(mul, self.draw(st.sampled_from(SCALARS)))
        kinds = {
            "sum": (add, add, here, here),
            "product": (matmul, matmul, (m, k), (k, n)),
            "scaled": (times, times, here),
            "hadamard": (families.Hadamard, mul, here, here),
            "sliced": lambda: self.sliced(m, n, depth),
            "transpose": (lambda A: A.T, np.transpose, there),
            "adjoint": (lambda A: A.H, _adjoint, there),
            "conjugate": (lambda A: A.conj(), np.conj, here),
            "opaque": (families.opaque, np.asarray, here),
        }
        if m > 1 and n > 1:
            grid = [(1, 1), (1, n - 1), (m - 1, 1), (m - 1, n - 1)]
            kinds |= {
                "block diagonal": (
                    families.BlockDiag,
                    lambda A, B: np.block([[A, np.zeros((1, 1))], [np.zeros((m - 1, n - 1)), B]]),
                    (1, n - 1),
                    (m - 1, 1),
                ),
                "block": (
                    lambda A, B, C, D: families.Block([[A, B], [C, D]]),
                    lambda A, B, C, D: np.block([[A, B], [C, D]]),
                    *grid,
                ),
            }
        if m % 2 == 0 and n % 2 == 0:
            kinds["kronecker"] = (families.Kronecker, np.kron, (2, 2), (m // 2, n // 2))
        if m == n:
            kinds["gram"] = (lambda A: A.H @ A, lambda A: _adjoint(A) @ A, (k, n))
        if m == n and n % 2 == 0:
            kinds["kronecker sum"] = (
                families.KroneckerSum,
                lambda A, B: np.kron(A, np.eye(n // 2)) + np.kron(np.eye(2), B),
                (2, 2),
                (n // 2, n // 2),
            )
        return kinds

    def sliced(self, m: int, n: int, depth: int) -> Pair:
        A, a = self.tree(m + 1, n + 1, depth)
        rows = slice(1, None) if self.draw(st.booleans()) else self.random.permutation(m + 1)[:m]
        cols = slice(0, n) if self.draw(st.booleans()) else self.random.integers(0, n + 1, n)
        return families.Sliced(A, rows, cols), a[rows][:, cols]


def _toeplitz(column: Any, row: Any) -> Any:
    i, j = np.indices((len(column), len(row)))
    return np.where(i >= j, column[np.maximum(i - j, 0)], row[np.maximum(j - i, 0)])


def _adjoint(A: Any) -> Any:
    return A.conj().T
