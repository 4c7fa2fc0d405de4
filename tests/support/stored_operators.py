"""Examples of the base families that store their matrix or a part of it, each beside its dense matrix.

`maker(xp, dtype, batch, rng) -> (operator, matrix)`: `xp` a backend module, `dtype` a name ("float32"), `batch` a shape, `rng` a
NumPy generator; the matrix is NumPy's, float64 or complex128, of exactly the operator's values. Square ones are well conditioned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse

from colinear.operators.banded import Banded, Tridiagonal
from colinear.operators.dense import Dense, Triangular
from colinear.operators.diagonal import Diagonal, Identity, ScaledIdentity, Zero
from colinear.operators.sparse import Sparse, SparseStructure
from colinear.operators.unitary import Permutation

N = 6  # the same in all makers, Kronecker products of 2 and 3 among them: JAX compiles every new shape


def draw(
    xp: Any, dtype: str, shape: tuple[int, ...], rng: np.random.Generator, shift: Any = 0
) -> tuple[Any, np.ndarray]:
    """Random numbers in the framework, and exactly the same ones in double precision."""
    values = rng.standard_normal(shape)
    if "complex" in dtype:
        values = (values + 1j * rng.standard_normal(shape)) / np.sqrt(2)
    array = xp.asarray(0.3 * values + shift, dtype=xp.dtype_from(dtype))
    return array, np.asarray(xp.to_numpy(array)).astype(
        np.complex128 if "complex" in dtype else np.float64
    )


def _diagonals(values: list[np.ndarray], offsets: list[int], shape: tuple[int, int]) -> np.ndarray:
    batch = np.broadcast_shapes(*(d.shape[:-1] for d in values))
    dense = np.zeros((*batch, *shape), np.result_type(*values))
    for d, k in zip(values, offsets, strict=True):
        i = np.arange(d.shape[-1])
        dense[..., i + max(0, -k), i + max(0, k)] = d
    return dense


def dense(xp, dtype, batch, rng):
    A, exact = draw(xp, dtype, (*batch, N, N), rng, 2 * np.eye(N))
    return Dense(A), exact


def dense_tall(xp, dtype, batch, rng):
    A, exact = draw(xp, dtype, (*batch, N, 3), rng, np.eye(N, 3))
    return Dense(A), exact


def dense_wide(xp, dtype, batch, rng):
    A, exact = draw(xp, dtype, (*batch, 3, N), rng, np.eye(3, N))
    return Dense(A), exact


def diagonal(xp, dtype, batch, rng):
    d, exact = draw(xp, dtype, (*batch, N), rng, 2)
    return Diagonal(d), exact[..., None] * np.eye(N)


def diagonal_mixed_signs(xp, dtype, batch, rng):
    d, exact = draw(xp, dtype, (*batch, N), rng, [2, -2, 1.5, -1.5, 3, -3])
    return Diagonal(d), exact[..., None] * np.eye(N)


def identity(xp, dtype, batch, rng):
    return Identity(N, like=xp.zeros((1,), dtype=xp.dtype_from(dtype))), np.eye(N)


def scaled_identity(xp, dtype, batch, rng):
    c, exact = draw(xp, dtype, batch, rng, 2)
    return ScaledIdentity(c, N), exact[..., None, None] * np.eye(N)


def scaled_identity_number(xp, dtype, batch, rng):
    c = -1.5 + 0.5j if "complex" in dtype else -1.5
    return ScaledIdentity(c, N, like=xp.name, dtype=dtype), c * np.eye(N)


def zero(xp, dtype, batch, rng):
    return Zero(3, N, like=xp.name, dtype=dtype), np.zeros((3, N))


def zero_square(xp, dtype, batch, rng):
    return Zero(N, N, like=xp.name, dtype=dtype), np.zeros((N, N))


def lower_triangular(xp, dtype, batch, rng):
    A, exact = draw(xp, dtype, (*batch, N, N), rng, 2 * np.eye(N))
    return Triangular(A), np.tril(exact)


def upper_triangular_beside_nan(xp, dtype, batch, rng):
    A, exact = draw(
        xp, dtype, (*batch, N, N), rng, np.where(np.tri(N, N, -1), np.nan, 2 * np.eye(N))
    )
    return Triangular(A, lower=False), np.triu(exact)


def unit_triangular(xp, dtype, batch, rng):
    A, exact = draw(xp, dtype, (*batch, N, N), rng, np.where(np.eye(N), np.nan, 0.0))
    return Triangular(A, unit=True), np.tril(exact, -1) + np.eye(N)


def tridiagonal(xp, dtype, batch, rng):
    lower, l = draw(xp, dtype, (*batch, N - 1), rng)
    diag, d = draw(xp, dtype, (*batch, N), rng, 2)
    upper, u = draw(xp, dtype, (*batch, N - 1), rng)
    return Tridiagonal(lower, diag, upper), _diagonals([l, d, u], [-1, 0, 1], (N, N))


def tridiagonal_broadcast(xp, dtype, batch, rng):
    lower, l = draw(xp, dtype, (N - 1,), rng)
    diag, d = draw(xp, dtype, (*batch, N), rng, 2)
    return Tridiagonal(lower, diag, lower), _diagonals([l, d, l], [-1, 0, 1], (N, N))


def banded(xp, dtype, batch, rng):
    parts = [
        draw(xp, dtype, (*batch, length), rng, shift)
        for length, shift in ((N, 2), (N - 2, 0), (N - 1, 0))
    ]
    arrays, values = zip(*parts, strict=True)
    return Banded(arrays, [0, 2, -1]), _diagonals(list(values), [0, 2, -1], (N, N))


def banded_wide(xp, dtype, batch, rng):
    parts = [
        draw(xp, dtype, (*batch, length), rng, shift) for length, shift in ((3, 1), (1, 0), (3, 0))
    ]
    arrays, values = zip(*parts, strict=True)
    return Banded(arrays, [0, -2, 3], (3, N)), _diagonals(list(values), [0, -2, 3], (3, N))


def banded_tall(xp, dtype, batch, rng):
    parts = [
        draw(xp, dtype, (*batch, length), rng, shift) for length, shift in ((3, 1), (3, 0), (1, 0))
    ]
    arrays, values = zip(*parts, strict=True)
    return Banded(arrays, [0, -2, 2], (6, 3)), _diagonals(list(values), [0, -2, 2], (6, 3))


def permutation(xp, dtype, batch, rng):
    perm = rng.permuted(np.broadcast_to(np.arange(N), (*batch, N)), axis=-1)
    return Permutation(perm, like=xp.name, dtype=dtype), np.eye(N)[perm]


def permutation_cycle(xp, dtype, batch, rng):
    return Permutation(np.roll(np.arange(N), 1), like=xp.name, dtype=dtype), np.roll(
        np.eye(N), 1, axis=0
    )


def sparse(xp, dtype, batch, rng):
    pattern = scipy.sparse.csr_array(np.eye(N) + (rng.random((N, N)) < 0.3))
    structure = SparseStructure(pattern.indptr, pattern.indices, pattern.shape)
    rows, columns = structure.rows, structure.columns
    data, exact = draw(xp, dtype, (*batch, structure.nnz), rng, np.where(rows == columns, 2, 0))
    matrix = np.zeros((*batch, N, N), exact.dtype)
    matrix[..., rows, columns] = exact
    return Sparse.from_parts(data, structure), matrix


def sparse_wide(xp, dtype, batch, rng):
    # with an empty row and an empty column
    structure = SparseStructure([0, 2, 2, 3], [0, 3, 1], (3, N))
    data, exact = draw(xp, dtype, (*batch, 3), rng, 1)
    matrix = np.zeros((*batch, 3, N), exact.dtype)
    matrix[..., structure.rows, structure.columns] = exact
    return Sparse.from_parts(data, structure), matrix


Maker = Callable[[Any, str, tuple[int, ...], np.random.Generator], tuple[Any, np.ndarray]]

STORED: dict[str, Maker] = {
    maker.__name__: maker
    for maker in (
        dense, dense_tall, dense_wide, diagonal, diagonal_mixed_signs, identity, scaled_identity,
        scaled_identity_number, zero, zero_square, lower_triangular, upper_triangular_beside_nan, unit_triangular, tridiagonal,
        tridiagonal_broadcast, banded, banded_wide, banded_tall, permutation, permutation_cycle, sparse, sparse_wide,
    )
}  # fmt: skip
