"""JAX's sparse products by slabs: equal to the matrix's, with short and long rows, batches, derivatives and transformations."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import colinear as co
from colinear.backends.jax import sparse as _jax_sparse


@pytest.fixture(scope="module", autouse=True)
def slabs_for_all() -> Any:
    before, _jax_sparse.SMALL = _jax_sparse.SMALL, 0
    yield
    _jax_sparse.SMALL = before


@pytest.fixture(scope="module")
def matrix() -> Any:
    """Rows of 0 to 1500 entries: some empty, some cut into pieces, one so long that its pieces are cut again."""
    rng = np.random.default_rng(0)
    counts = [0, 1, 3, 5, 9, 17, 33, 70, 1500, 2]
    rows = np.repeat(np.arange(len(counts)), counts)
    columns = np.concatenate([rng.choice(1600, count, replace=False) for count in counts])
    return scipy.sparse.coo_array(
        (rng.standard_normal(len(rows)), (rows, columns)), shape=(len(counts), 1600)
    ).tocsr()


def test_products_with_blocks_and_batches_are_those_of_the_matrix(matrix: Any) -> None:
    A, D, rng = co.Sparse(matrix).to(backend="jax"), matrix.toarray(), np.random.default_rng(1)
    for shape in ((1600,), (1600, 3), (2, 1600, 2)):
        X = rng.standard_normal(shape)
        np.testing.assert_allclose(np.asarray(A @ jnp.asarray(X)), D @ X, atol=1e-10)
    data = rng.standard_normal((2, matrix.nnz))
    DD = np.zeros((2, *matrix.shape))
    DD[:, A.structure.rows, A.structure.columns] = data
    X = rng.standard_normal((3, 1, 1600, 2))
    batch = co.Sparse.from_parts(jnp.asarray(data), A.structure)
    np.testing.assert_allclose(np.asarray(batch @ jnp.asarray(X)), DD @ X, atol=1e-10)


def test_derivatives_transposes_and_vmap_are_those_of_the_matrix(matrix: Any) -> None:
    structure, rng = co.Sparse(matrix).structure, np.random.default_rng(2)
    data, X = (
        jnp.asarray(rng.standard_normal((2, matrix.nnz))),
        jnp.asarray(rng.standard_normal((1600, 2))),
    )

    def ours(d: Any, X: Any) -> Any:
        return _jax_sparse.sparse_matmul(d, structure, X)

    def dense(d: Any, X: Any) -> Any:
        return jnp.zeros(matrix.shape).at[structure.rows, structure.columns].set(d) @ X

    def everything(f: Any) -> Any:
        def size(d: Any, X: Any) -> Any:
            return (f(d, X) ** 2).sum()

        gradient = jax.grad(size, argnums=(0, 1))
        return (
            jax.vmap(gradient, (0, None))(data, X),
            jax.jvp(gradient, (data[0], X), (data[1], 2 * X)),
            jax.linear_transpose(lambda X: f(data[0], X), X)(jnp.ones((matrix.shape[0], 2))),
            jax.vmap(f, (None, 1))(data[0], jnp.stack([X, -X], axis=1)),
        )

    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(np.asarray(x), np.asarray(y), atol=1e-8),
        jax.jit(lambda: everything(ours))(),
        jax.jit(lambda: everything(dense))(),
    )


def test_a_nan_stays_in_the_rows_that_meet_it(matrix: Any) -> None:
    x = np.ones(1600)
    x[matrix.indices[0]] = np.nan
    got = np.asarray(co.Sparse(matrix).to(backend="jax") @ jnp.asarray(x))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(matrix @ x))
