"""Random trees of operators, each with the formula of its matrix.

A tree is a list of NumPy arrays and two functions of such a list: `operator` makes the colinear
operator from arrays of any framework, `matrix` the matrix in double precision. `matrix` is written
here from the definition of each family and never calls colinear, so it is a reference. Both take
the arrays as an argument, so that finite differences can move them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse

import colinear as co

Arrays = Sequence[Any]


@dataclass(frozen=True)
class Tree:
    """An operator to be built, and its matrix. `size` bounds the numbers that meet in a product:
    rounding errors of the operator are relative to it, not to its matrix."""

    name: str
    arrays: tuple[np.ndarray, ...]
    operator: Callable[[Arrays], Any]
    matrix: Callable[[Arrays], np.ndarray]
    size: float
    is_hermitian: bool = False
    is_positive: bool = False


def grow(
    random: np.random.Generator, dtype: str, batch: tuple[int, ...], depth: int, square: bool
) -> Tree:
    """Draw a tree with leaves of a dtype; `batch` is the batch shape of some of its leaves."""
    grower = _Grower(random, dtype, batch)
    n = int(random.choice([1, 2, 3, 4, 6]))
    m = n if square else int(random.choice([1, 2, 3, 4, 6]))
    return grower.tree(m, n, depth)


def adjoint(M: Any) -> Any:
    return M.mT.conj()


def hermitian_part(M: Any) -> Any:
    return (M + adjoint(M)) / 2


def kron(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    product = np.einsum("...ij,...kl->...ikjl", A, B)
    rows, columns = A.shape[-2] * B.shape[-2], A.shape[-1] * B.shape[-1]
    return product.reshape(*product.shape[:-4], rows, columns)


def stack_blocks(blocks: list[list[np.ndarray]]) -> np.ndarray:
    batch = np.broadcast_shapes(*(B.shape[:-2] for row in blocks for B in row))
    full = [[np.broadcast_to(B, (*batch, *B.shape[-2:])) for B in row] for row in blocks]
    return np.concatenate([np.concatenate(row, axis=-1) for row in full], axis=-2)


def place_diagonals(diagonals: Arrays, offsets: Sequence[int], m: int, n: int) -> np.ndarray:
    batch = np.broadcast_shapes(*(d.shape[:-1] for d in diagonals))
    M = np.zeros((*batch, m, n), np.result_type(*diagonals))
    for d, k in zip(diagonals, offsets):
        i = np.arange(d.shape[-1]) + max(0, -k)
        M[..., i, i + k] += d
    return M


class _Grower:
    def __init__(self, random: np.random.Generator, dtype: str, batch: tuple[int, ...]):
        self.random, self.dtype, self.batch = random, dtype, batch
        self.style = random.choice(["normal", "integers", "tiny", "scaled"], p=[0.5, 0.2, 0.2, 0.1])
        self.scale = 10.0 ** int(random.integers(-6, 7)) if self.style == "scaled" else 1.0

    def chance(self, probability: float) -> bool:
        return bool(self.random.random() < probability)

    def numbers(self, *shape: int, batched: bool = True) -> np.ndarray:
        """Numbers of the dtype, sometimes a batch of them."""
        if batched and self.batch and self.chance(0.6):
            shape = (*self.batch, *shape)
        x = self._real(shape)
        if self.dtype.startswith("complex"):
            x = x + 1j * self._real(shape)
        return np.asarray(x).astype(self.dtype)

    def _real(self, shape: tuple[int, ...]) -> Any:
        x = self.random.standard_normal(shape) * self.scale
        if self.style == "integers":
            x = np.round(x)
        if self.style == "tiny":
            x = x * np.where(
                self.random.random(shape) < 0.15, 10.0 ** -int(self.random.integers(6, 20)), 1.0
            )
        return x

    # ---------------------------------------------------------------- how trees are put together

    def leaf(
        self, name: str, arrays: Sequence[np.ndarray], operator: Any, matrix: Any, **facts: bool
    ) -> Tree:
        M = matrix(*map(_widen, arrays))
        size = float(np.abs(M).sum(-1).max(initial=0)) if M.size else 0.0
        return Tree(
            name,
            tuple(arrays),
            lambda given: operator(*given),
            lambda given: matrix(*map(_widen, given)),
            size,
            **facts,
        )

    def compose(
        self,
        name: str,
        children: Sequence[Tree],
        operator: Any,
        matrix: Any,
        size: float,
        **facts: bool,
    ) -> Tree:
        ends = np.cumsum([len(child.arrays) for child in children])

        def each(given: Arrays, which: str) -> list[Any]:
            starts = [0, *ends[:-1]]
            return [getattr(c, which)(given[i:j]) for c, i, j in zip(children, starts, ends)]

        return Tree(
            name,
            tuple(a for child in children for a in child.arrays),
            lambda given: operator(*each(given, "operator")),
            lambda given: matrix(*each(given, "matrix")),
            size,
            **facts,
        )

    def tree(self, m: int, n: int, depth: int) -> Tree:
        kinds = [
            self.dense,
            self.low_rank,
            self.toeplitz,
            self.banded,
            self.sparse,
            self.matrix_free,
            self.zero,
        ]
        if m == n:
            kinds += [
                self.diagonal, self.diagonal, self.identity, self.scaled_identity, self.triangular,
                self.tridiagonal, self.permutation, self.circulant, self.positive, self.positive,
                self.self_adjoint, self.householder, self.projection, self.fourier, self.kernel,
                self.convolution,
            ]  # fmt: skip
        if depth > 0:
            kinds = kinds[:3] + [
                self.sum, self.sum, self.product, self.scaled, self.hadamard, self.transposed, self.opaque,
                self.sliced, self.batch_sum,
            ]  # fmt: skip
            kinds += [self.block, self.block_diagonal] if m > 1 and n > 1 else []
            kinds += [self.kronecker] * 2 if m % 2 == 0 == n % 2 else []
            if m == n:
                kinds += [
                    self.gram,
                    self.shifted,
                    self.shifted,
                    self.corrected,
                    self.corrected,
                    self.inverse,
                ]
                kinds += [self.kronecker_sum] * 2 if n % 2 == 0 else []
        return kinds[self.random.integers(len(kinds))](m, n, depth - 1)

    # ---------------------------------------------------------------- leaves

    def dense(self, m: int, n: int, depth: int) -> Tree:
        return self.leaf("Dense", [self.numbers(m, n)], co.Dense, lambda A: A)

    def diagonal(self, m: int, n: int, depth: int) -> Tree:
        return self.leaf(
            "Diagonal", [self.numbers(n)], co.Diagonal, lambda d: d[..., None] * np.eye(n)
        )

    def identity(self, m: int, n: int, depth: int) -> Tree:
        return self.leaf(
            "Identity",
            [self.numbers(1, batched=False)],
            lambda x: co.Identity(n, like=x),
            lambda x: np.eye(n),
            is_hermitian=True,
            is_positive=True,
        )

    def scaled_identity(self, m: int, n: int, depth: int) -> Tree:
        return self.leaf(
            "ScaledIdentity",
            [self.numbers()],
            lambda c: co.ScaledIdentity(c, n),
            lambda c: c[..., None, None] * np.eye(n),
        )

    def zero(self, m: int, n: int, depth: int) -> Tree:
        x = self.numbers(1, batched=False)
        return self.leaf("Zero", [x], lambda x: co.Zero(m, n, like=x), lambda x: np.zeros((m, n)))

    def low_rank(self, m: int, n: int, depth: int) -> Tree:
        r = int(self.random.integers(1, 3))
        U, V, C = self.numbers(m, r), self.numbers(n, r), self.numbers(r, r)
        if self.chance(0.3) and m == n:
            return self.leaf(
                "LowRank(U)", [U], co.LowRank, lambda U: U @ adjoint(U), is_hermitian=True
            )
        if self.chance(0.3):
            return self.leaf(
                "LowRank(U, V, C)", [U, V, C], co.LowRank, lambda U, V, C: U @ C @ adjoint(V)
            )
        return self.leaf("LowRank(U, V)", [U, V], co.LowRank, lambda U, V: U @ adjoint(V))

    def toeplitz(self, m: int, n: int, depth: int) -> Tree:
        i, j = np.indices((m, n))
        below, above = np.clip(i - j, 0, m - 1), np.clip(j - i, 0, n - 1)
        return self.leaf(
            "Toeplitz",
            [self.numbers(m), self.numbers(n)],
            co.Toeplitz,
            lambda c, r: np.where(i >= j, c[..., below], r[..., above]),
        )

    def circulant(self, m: int, n: int, depth: int) -> Tree:
        i, j = np.indices((n, n))
        return self.leaf(
            "Circulant", [self.numbers(n)], co.Circulant, lambda c: c[..., (i - j) % n]
        )

    def convolution(self, m: int, n: int, depth: int) -> Tree:
        if n % 2 or n < 4:
            return self.circulant(m, n, depth)
        grid, boundary = (2, n // 2), str(self.random.choice(["wrap", "zero"]))

        def matrix(kernel: np.ndarray) -> np.ndarray:
            M = np.zeros((*kernel.shape[:-2], *grid, *grid), kernel.dtype)
            for a, b in np.ndindex(*grid):  # out[i] = sum_j kernel[i - j] x[j]
                for c, d in np.ndindex(*grid):
                    i, j = a - c, b - d
                    if boundary == "wrap":
                        i, j = i % 2, j % grid[1]
                    if 0 <= i < kernel.shape[-2] and 0 <= j < kernel.shape[-1]:
                        M[..., a, b, c, d] = kernel[..., i, j]
            return M.reshape(*kernel.shape[:-2], n, n)

        return self.leaf(
            f"Convolution({boundary})",
            [self.numbers(*grid, batched=False)],
            lambda kernel: co.Convolution(kernel, grid, boundary),
            matrix,
        )

    def banded(self, m: int, n: int, depth: int) -> Tree:
        offsets = [k for k in range(-m + 1, n) if abs(k) <= 2 and self.chance(0.6)] or [0]
        lengths = [min(m, n - k) if k >= 0 else min(m + k, n) for k in offsets]
        return self.leaf(
            f"Banded({offsets})",
            [self.numbers(length) for length in lengths],
            lambda *d: co.Banded(d, offsets, (m, n)),
            lambda *d: place_diagonals(d, offsets, m, n),
        )

    def tridiagonal(self, m: int, n: int, depth: int) -> Tree:
        return self.leaf(
            "Tridiagonal",
            [self.numbers(n - 1), self.numbers(n), self.numbers(n - 1)],
            co.Tridiagonal,
            lambda *d: place_diagonals(d, (-1, 0, 1), n, n),
        )

    def triangular(self, m: int, n: int, depth: int) -> Tree:
        lower, unit = self.chance(0.5), self.chance(0.2)
        half = np.tril if lower else np.triu
        return self.leaf(
            f"Triangular(lower={lower}, unit={unit})",
            [self.numbers(n, n)],
            lambda A: co.Triangular(A, lower=lower, unit=unit),
            lambda A: half(A, (-1 if lower else 1)) + np.eye(n) if unit else half(A),
        )

    def sparse(self, m: int, n: int, depth: int) -> Tree:
        mask = self.random.random((m, n)) < 0.5
        rows, columns = np.nonzero(mask)
        structure = co.Sparse(scipy.sparse.csr_array(mask.astype(float))).structure

        def matrix(data: np.ndarray) -> np.ndarray:
            M = np.zeros((*data.shape[:-1], m, n), data.dtype)
            M[..., rows, columns] = data
            return M

        data = self.numbers(len(rows), batched=False)
        return self.leaf(
            "Sparse", [data], lambda data: co.Sparse.from_parts(data, structure), matrix
        )

    def matrix_free(self, m: int, n: int, depth: int) -> Tree:
        def operator(A: Any) -> Any:
            shape = (m, n)
            return co.MatrixFree(
                lambda X, A: A @ X, shape, rmatmat=lambda X, A: adjoint(A) @ X, parameters=(A,)
            )

        return self.leaf("MatrixFree", [self.numbers(m, n, batched=False)], operator, lambda A: A)

    def kernel(self, m: int, n: int, depth: int) -> Tree:
        if self.dtype.startswith("complex"):
            return self.self_adjoint(m, n, depth)

        def k(X: Any, Y: Any, length: Any) -> Any:  # the rational quadratic kernel
            return 1 / (1 + ((X[..., :, None, :] - Y[..., None, :, :]) ** 2).sum(-1) / length**2)

        points, length = self.numbers(n, 2), np.asarray(1.5, self.dtype)
        return self.leaf(
            "PSD(Kernel)",
            [points, length],
            lambda X, length: co.PSD(co.Kernel(k, X, parameters=(length,))),
            lambda X, length: k(X, X, length),
            is_hermitian=True,
        )

    def permutation(self, m: int, n: int, depth: int) -> Tree:
        order, x = self.random.permutation(n), self.numbers(1, batched=False)
        return self.leaf(
            "Permutation", [x], lambda x: co.Permutation(order, like=x), lambda x: np.eye(n)[order]
        )

    def fourier(self, m: int, n: int, depth: int) -> Tree:
        if not self.dtype.startswith("complex"):
            return self.permutation(m, n, depth)
        i, j = np.indices((n, n))
        F = np.exp(-2j * np.pi * i * j / n) / np.sqrt(n)
        x = self.numbers(1, batched=False)
        return self.leaf("FFT", [x], lambda x: co.FFT((n,), like=x), lambda x: F)

    def householder(self, m: int, n: int, depth: int) -> Tree:
        def matrix(v: np.ndarray) -> np.ndarray:
            outer = v[..., :, None] * v.conj()[..., None, :]
            return np.eye(n) - 2 * outer / (np.abs(v) ** 2).sum(-1)[..., None, None]

        v = self.numbers(n)
        v = np.where(np.abs(v).max(-1, keepdims=True) > 1e-3, v, np.ones_like(v))
        return self.leaf("Householder", [v], co.Householder, matrix, is_hermitian=True)

    def projection(self, m: int, n: int, depth: int) -> Tree:
        Q = np.linalg.qr(self.random.standard_normal((n, max(1, n // 2))))[0].astype(self.dtype)
        x = self.numbers(1, batched=False)  # Q is fixed: a moved one would not be orthonormal
        return self.leaf(
            "Projection",
            [x],
            lambda x: co.Projection(_like(Q, x)),
            lambda x: _widen(Q) @ adjoint(_widen(Q)),
            is_hermitian=True,
        )

    def positive(self, m: int, n: int, depth: int) -> Tree:
        A = self.numbers(n, n)
        shift = 1.0 + np.abs(A).max() ** 2
        gram = (A @ adjoint(A) + shift * np.eye(n)).astype(self.dtype)
        return self.leaf(
            "PD(Dense)",
            [hermitian_part(gram)],
            lambda A: co.PD(co.Dense(hermitian_part(A))),
            hermitian_part,
            is_hermitian=True,
            is_positive=True,
        )

    def self_adjoint(self, m: int, n: int, depth: int) -> Tree:
        return self.leaf(
            "SelfAdjoint(Dense)",
            [self.numbers(n, n)],
            lambda A: co.SelfAdjoint(co.Dense(hermitian_part(A))),
            hermitian_part,
            is_hermitian=True,
        )

    # ---------------------------------------------------------------- compositions

    def sum(self, m: int, n: int, depth: int) -> Tree:
        return self.plus(self.tree(m, n, depth), self.tree(m, n, depth))

    def plus(self, A: Tree, B: Tree) -> Tree:
        return self.compose(
            f"({A.name} + {B.name})",
            [A, B],
            lambda A, B: A + B,
            lambda A, B: A + B,
            A.size + B.size,
            is_hermitian=A.is_hermitian and B.is_hermitian,
            is_positive=A.is_positive and B.is_positive,
        )

    def shifted(self, m: int, n: int, depth: int) -> Tree:
        """A + c I, the shift that is wanted most."""
        return self.plus(self.tree(n, n, depth), self.scaled_identity(n, n, 0))

    def corrected(self, m: int, n: int, depth: int) -> Tree:
        """D + U V^H, the correction that is wanted most."""
        bases = [
            self.diagonal,
            self.diagonal,
            self.tridiagonal,
            self.circulant,
            self.triangular,
            self.positive,
        ]
        if n % 2 == 0 and depth >= 0:
            bases += [self.kronecker, self.kronecker_sum]
        return self.plus(
            bases[self.random.integers(len(bases))](n, n, depth), self.low_rank(n, n, 0)
        )

    def product(self, m: int, n: int, depth: int) -> Tree:
        k = m if m == n and self.chance(0.6) else int(self.random.choice([1, 2, 3, 4]))
        A, B = self.tree(m, k, depth), self.tree(k, n, depth)
        return self.compose(
            f"({A.name} @ {B.name})", [A, B], lambda A, B: A @ B, np.matmul, A.size * B.size
        )

    def gram(self, m: int, n: int, depth: int) -> Tree:
        A = self.tree(n if self.chance(0.5) else int(self.random.choice([1, 2, 3, 4])), n, depth)
        return self.compose(
            f"gram({A.name})",
            [A],
            lambda A: A.H @ A,
            lambda A: adjoint(A) @ A,
            A.size**2,
            is_hermitian=True,
        )

    def scaled(self, m: int, n: int, depth: int) -> Tree:
        A, c = self.tree(m, n, depth), float(self.random.choice([0.5, -1.0, 2.0, 0.0, 1e-9]))
        return self.compose(
            f"{c} * {A.name}", [A], lambda A: c * A, lambda A: c * A, abs(c) * A.size
        )

    def hadamard(self, m: int, n: int, depth: int) -> Tree:
        A, B = self.tree(m, n, depth), self.tree(m, n, depth)
        return self.compose(
            f"({A.name} * {B.name})", [A, B], co.Hadamard, np.multiply, A.size * B.size
        )

    def transposed(self, m: int, n: int, depth: int) -> Tree:
        A = self.tree(n, m, depth)
        ours, theirs = [
            (lambda A: A.T, lambda A: A.mT),
            (lambda A: A.H, adjoint),
            (lambda A: A.T.conj(), adjoint),
        ][self.random.integers(3)]
        return self.compose(f"{A.name}^T", [A], ours, theirs, n * A.size)

    def opaque(self, m: int, n: int, depth: int) -> Tree:
        A = self.tree(m, n, depth)
        return self.compose(f"opaque({A.name})", [A], co.opaque, lambda A: A, A.size)

    def sliced(self, m: int, n: int, depth: int) -> Tree:
        A, rows = self.tree(m + 1, n + 1, depth), self.random.permutation(m + 1)[:m]
        return self.compose(
            f"{A.name}[rows, 1:]",
            [A],
            lambda A: co.Sliced(A, rows, slice(1, None)),
            lambda A: A[..., rows, :][..., 1:],
            A.size,
        )

    def batch_sum(self, m: int, n: int, depth: int) -> Tree:
        A = self.numbers(3, m, n, batched=False)
        U = self.numbers(3, m, 1, batched=False)
        if m == n and self.chance(0.5):
            return self.leaf(
                "BatchSum(LowRank)", [U], lambda U: co.BatchSum(co.LowRank(U)),
                lambda U: (U @ adjoint(U)).sum(-3), is_hermitian=True,
            )  # fmt: skip
        return self.leaf("BatchSum", [A], lambda A: co.BatchSum(co.Dense(A)), lambda A: A.sum(-3))

    def block(self, m: int, n: int, depth: int) -> Tree:
        i, j = max(1, m // 2), max(1, n // 2)
        grid = [(i, j), (i, n - j), (m - i, j), (m - i, n - j)]
        parts = [self.tree(*shape, depth) for shape in grid]
        return self.compose(
            f"Block({', '.join(part.name for part in parts)})",
            parts,
            lambda A, B, C, D: co.Block([[A, B], [C, D]]),
            lambda A, B, C, D: stack_blocks([[A, B], [C, D]]),
            sum(part.size for part in parts),
        )

    def block_diagonal(self, m: int, n: int, depth: int) -> Tree:
        i, j = max(1, m // 2), max(1, n // 2)
        A, B = self.tree(i, j, depth), self.tree(m - i, n - j, depth)

        def matrix(A: np.ndarray, B: np.ndarray) -> np.ndarray:
            return stack_blocks([[A, np.zeros((i, n - j))], [np.zeros((m - i, j)), B]])

        return self.compose(
            f"BlockDiag({A.name}, {B.name})", [A, B], co.BlockDiag, matrix, max(A.size, B.size),
            is_hermitian=A.is_hermitian and B.is_hermitian,
            is_positive=A.is_positive and B.is_positive,
        )  # fmt: skip

    def kronecker(self, m: int, n: int, depth: int) -> Tree:
        A, B = self.tree(2, 2, depth), self.tree(m // 2, n // 2, depth)
        return self.compose(
            f"({A.name} ⊗ {B.name})", [A, B], co.Kronecker, kron, A.size * B.size,
            is_hermitian=A.is_hermitian and B.is_hermitian,
            is_positive=A.is_positive and B.is_positive,
        )  # fmt: skip

    def kronecker_sum(self, m: int, n: int, depth: int) -> Tree:
        A, B = self.tree(2, 2, depth), self.tree(n // 2, n // 2, depth)
        return self.compose(
            f"({A.name} ⊕ {B.name})",
            [A, B],
            co.KroneckerSum,
            lambda A, B: kron(A, np.eye(n // 2)) + kron(np.eye(2), B),
            A.size + B.size,
            is_hermitian=A.is_hermitian and B.is_hermitian,
            is_positive=A.is_positive and B.is_positive,
        )

    def inverse(self, m: int, n: int, depth: int) -> Tree:
        A = self.positive(n, n, 0)
        smallest = np.linalg.eigvalsh(A.matrix(A.arrays)).min()
        return self.compose(
            f"inv({A.name})",
            [A],
            co.inv,
            np.linalg.inv,
            1 / smallest,
            is_hermitian=True,
            is_positive=True,
        )


def _widen(x: np.ndarray) -> np.ndarray:
    """Return x in double precision."""
    return np.asarray(x).astype(np.complex128 if np.iscomplexobj(x) else np.float64)


def _like(Q: np.ndarray, x: Any) -> Any:
    """Return Q as an array of x's framework."""
    return co.backends.namespace_of(x).asarray(Q)
