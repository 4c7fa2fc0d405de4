"""Operators and functions under the transformations of JAX and torch: jit, vmap, grad, jvp, compile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.registry import MAKERS

import colinear as co
from colinear import backends

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")
jnp = jax.numpy

# One of each kind of structure: stored, structured, composed, annotated.
SOLVABLE = """
    dense diagonal scaled_identity lower_triangular tridiagonal banded permutation sparse toeplitz circulant householder
    sum_low_rank_and_diagonal product_of_three gram scaled kronecker kronecker_pd kronecker_plus_shift kronecker_sum
    block_diagonal block batch_sum sliced_of_kronecker hadamard hidden annotated_pd annotated_self_adjoint
""".split()
# Those all of whose leaves carry the batch, as vmap over them needs.
BATCHED = """
    dense diagonal lower_triangular tridiagonal banded sparse circulant
    sum_low_rank_and_diagonal product_of_three scaled kronecker kronecker_sum block_diagonal block hadamard hidden annotated_pd
""".split()


def make(
    name: str, backend: str, dtype: str = "float64", batch: tuple[int, ...] = ()
) -> tuple[Any, np.ndarray]:
    return MAKERS[name](backends.get(backend), dtype, batch, np.random.default_rng(0))


def vector(n: int) -> np.ndarray:
    return np.cos(1.0 + np.arange(n))


# ---------------------------------------------------------------------------------------------------- JAX


@pytest.mark.parametrize("name", SOLVABLE)
def test_jitted_solve_and_product_are_right_and_traced_once(name: str) -> None:
    A, dense = make(name, "jax")
    traces = 0

    @jax.jit
    def both(A: Any, b: Any) -> Any:
        nonlocal traces
        traces += 1
        return A @ b, co.solve(A, b)

    b = vector(dense.shape[-1])
    for factor in (1.0, 2.0):
        product, x = both(A, jnp.asarray(factor * b))
        np.testing.assert_allclose(product, dense @ b * factor, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(x, np.linalg.solve(dense, factor * b), rtol=1e-8, atol=1e-8)
    other, _ = make(name, "jax")  # equal in structure, another object
    both(other, jnp.asarray(b))
    assert traces == 1


@pytest.mark.parametrize("name", BATCHED)
def test_jax_vmap_over_an_operator_is_its_batch(name: str) -> None:
    A, dense = make(name, "jax", batch=(2,))
    n = dense.shape[-1]
    x = np.stack([vector(n), vector(n)[::-1]])
    products = jax.vmap(lambda A, x: A @ x)(A, jnp.asarray(x))
    np.testing.assert_allclose(products, np.einsum("bij,bj->bi", dense, x), rtol=1e-9, atol=1e-9)
    many = jax.vmap(lambda x: A[0] @ x)(jnp.asarray(x))
    np.testing.assert_allclose(many, x @ dense[0].T, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["dense", "kronecker", "sum_low_rank_and_diagonal"])
def test_jax_vmap_over_solve_is_the_batched_solve(name: str) -> None:
    A, dense = make(name, "jax", batch=(2,))
    b = np.stack([vector(dense.shape[-1])] * 2)
    x = jax.vmap(co.solve)(A, jnp.asarray(b))
    np.testing.assert_allclose(
        x, np.linalg.solve(dense, b[..., None])[..., 0], rtol=1e-8, atol=1e-8
    )


@pytest.mark.parametrize(
    "name",
    [
        "dense",
        "diagonal",
        "tridiagonal",
        "toeplitz",
        "kronecker",
        "sum_low_rank_and_diagonal",
        "sparse",
        "hidden",
    ],
)
def test_jax_gradient_with_respect_to_an_operator_is_the_slope(name: str) -> None:
    A, dense = make(name, "jax")
    x = jnp.asarray(vector(dense.shape[-1]))
    loss = lambda A: jnp.sum((A @ x) ** 2)
    gradient = jax.grad(loss)(A)
    assert type(gradient) is type(A)
    direction = jax.tree.map(
        lambda leaf: jnp.cos(jnp.arange(leaf.size, dtype=leaf.dtype)).reshape(leaf.shape), A
    )
    step = lambda h: jax.tree.map(lambda leaf, d: leaf + h * d, A, direction)
    slope = (loss(step(1e-6)) - loss(step(-1e-6))) / 2e-6
    along = sum(
        jnp.sum(g * d)
        for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True)
    )
    np.testing.assert_allclose(along, slope, rtol=1e-6)


def test_info_and_operators_pass_through_jit() -> None:
    A, dense = make("dense", "jax")
    b = jnp.asarray(vector(dense.shape[-1]))
    x, info = jax.jit(lambda A, b: co.solve(A, b, info=True))(A, b)
    assert info.converged
    assert float(np.max(info.residual)) <= 1e-8
    inverse = jax.jit(co.inv)(A)
    np.testing.assert_allclose(inverse @ b, x, rtol=1e-10)


def test_scan_over_an_operator_is_a_power() -> None:
    A, dense = make("kronecker", "jax")
    x = jnp.asarray(vector(dense.shape[-1]))
    last, _ = jax.lax.scan(lambda x, _: (A @ x / 10, None), x, None, length=3)
    np.testing.assert_allclose(
        last, np.linalg.matrix_power(dense / 10, 3) @ np.asarray(x), rtol=1e-10
    )


# ---------------------------------------------------------------------------------------------------- torch


@pytest.mark.parametrize("name", BATCHED)
def test_torch_vmap_over_an_operator_is_its_batch(name: str) -> None:
    A, dense = make(name, "torch", batch=(2,))
    n = dense.shape[-1]
    x = np.stack([vector(n), vector(n)[::-1]])
    products = torch.func.vmap(lambda A, x: A @ x)(A, torch.asarray(x))
    np.testing.assert_allclose(
        products.numpy(), np.einsum("bij,bj->bi", dense, x), rtol=1e-9, atol=1e-9
    )
    many = torch.func.vmap(lambda x: A[0] @ x)(torch.asarray(x))
    np.testing.assert_allclose(many.numpy(), x @ dense[0].T, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["dense", "kronecker", "sum_low_rank_and_diagonal"])
def test_torch_vmap_over_solve_is_the_batched_solve(name: str) -> None:
    A, dense = make(name, "torch", batch=(2,))
    b = np.stack([vector(dense.shape[-1])] * 2)
    x = torch.func.vmap(co.solve)(A, torch.asarray(b))
    np.testing.assert_allclose(
        x.numpy(), np.linalg.solve(dense, b[..., None])[..., 0], rtol=1e-8, atol=1e-8
    )


@pytest.mark.parametrize(
    "name",
    [
        "dense",
        "diagonal",
        "tridiagonal",
        "toeplitz",
        "kronecker",
        "sum_low_rank_and_diagonal",
        "sparse",
        "hidden",
    ],
)
def test_torch_gradient_with_respect_to_an_operator_is_the_slope(name: str) -> None:
    from torch.utils import _pytree as pytree

    A, dense = make(name, "torch")
    x = torch.asarray(vector(dense.shape[-1]))
    loss = lambda A: torch.sum((A @ x) ** 2)
    gradient = torch.func.grad(loss)(A)
    assert type(gradient) is type(A)
    direction = pytree.tree_map(
        lambda leaf: torch.cos(torch.arange(leaf.numel(), dtype=leaf.dtype)).reshape(leaf.shape), A
    )
    step = lambda h: pytree.tree_map(lambda leaf, d: leaf + h * d, A, direction)
    slope = (loss(step(1e-6)) - loss(step(-1e-6))) / 2e-6
    along = sum(
        torch.sum(g * d)
        for g, d in zip(pytree.tree_leaves(gradient), pytree.tree_leaves(direction), strict=True)
    )
    np.testing.assert_allclose(along.item(), slope.item(), rtol=1e-6)
    _, forward = torch.func.jvp(loss, (A,), (direction,))
    np.testing.assert_allclose(forward.item(), slope.item(), rtol=1e-6)


def test_torch_autograd_reaches_the_leaves_of_an_operator() -> None:
    d = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    x = co.solve(co.Diagonal(d) + co.Zero(3, 3), torch.ones(3, dtype=torch.float64))
    x.sum().backward()
    np.testing.assert_allclose(d.grad.numpy(), -1 / d.detach().numpy() ** 2)


@pytest.mark.parametrize(
    "name",
    [
        "kronecker",
        "kronecker_pd",
        "sum_low_rank_and_diagonal",
        "lower_triangular",
        "diagonal",
        "dense",
    ],
)
def test_torch_compiles_structured_solves_as_one_graph(name: str) -> None:
    A, dense = make(name, "torch")
    b = torch.asarray(vector(dense.shape[-1]))
    compiled = torch.compile(lambda A, b: co.solve(A, b), fullgraph=True, backend="eager")
    np.testing.assert_allclose(
        compiled(A, b).numpy(), np.linalg.solve(dense, b.numpy()), rtol=1e-8, atol=1e-8
    )
    np.testing.assert_allclose(
        compiled(A, 2 * b).numpy(), np.linalg.solve(dense, 2 * b.numpy()), rtol=1e-8, atol=1e-8
    )
    torch.compiler.reset()


# ---------------------------------------------------------------------------------------------------- torch's own functions


def test_torch_functions_reach_ours() -> None:
    A, dense = make("kronecker", "torch")
    b = torch.asarray(vector(dense.shape[-1]))
    same = lambda got, wanted: np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-9, atol=1e-9)
    host = b.numpy()
    same(torch.matmul(A, b), dense @ host)
    same(torch.matmul(b, A), host @ dense)
    same(b @ A, host @ dense)
    same(torch.mv(A, b), dense @ host)
    same((torch.tensor(2.0) * A).to_dense(), 2 * dense)
    same((torch.asarray(dense) + A).to_dense(), 2 * dense)
    same((torch.asarray(dense) - A).to_dense(), 0 * dense)
    same(torch.linalg.solve(A, b), np.linalg.solve(dense, host))
    same(torch.linalg.lstsq(A, b).solution, np.linalg.solve(dense, host))
    same(torch.linalg.inv(A).to_dense(), np.linalg.inv(dense))
    same(torch.linalg.det(A), np.linalg.det(dense))
    same(torch.linalg.slogdet(A).logabsdet, np.linalg.slogdet(dense).logabsdet)
    same(torch.trace(A), np.trace(dense))
    same(torch.diagonal(A), np.diagonal(dense))
    same(torch.linalg.norm(A), np.linalg.norm(dense))
    same(torch.linalg.matrix_norm(A), np.linalg.norm(dense))
    with pytest.raises(TypeError, match=r"fft.*to_dense"):
        torch.fft.fft(A)
