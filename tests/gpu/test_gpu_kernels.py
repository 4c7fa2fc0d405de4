"""Kernels of the distance on a CUDA device: multiplied and differentiated without their matrix, to the accuracy of the dtype,
in torch and, at the end, in JAX. `make test-gpu`."""

from __future__ import annotations

import numpy as np
import pytest
from support.devices import cuda

import colinear as co
from colinear import gp
from colinear.errors import TooLargeError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu
CUDA = "cuda"

KERNELS = {
    "rbf": (gp.rbf, ()),
    "matern12": (gp.matern12, ()),
    "matern32": (gp.matern32, ()),
    "matern52": (gp.matern52, ()),
    "rational_quadratic": (gp.rational_quadratic, (1.7,)),
    "periodic": (gp.periodic, (2.3,)),
    "own": (gp.radial(lambda q, a: torch.exp(-q / 2) * torch.cos(a * q)), (0.7,)),
    "powers": (gp.radial(lambda q: (1 + q) ** -1.5 + torch.tanh(q)), ()),
}
each = pytest.mark.parametrize("name", KERNELS)


def normal(*shape, dtype=torch.float32, seed=0):
    g = torch.Generator(CUDA).manual_seed(seed)
    return torch.randn(*shape, generator=g, device=CUDA, dtype=torch.float64).to(dtype)


def number(x, dtype=torch.float32):
    return torch.tensor(x, device=CUDA, dtype=dtype, requires_grad=True)


def values(name, dtype, m, n, d, width, k=None):
    """K V, K^T W and the derivatives of W·K V."""
    kernel, shape = KERNELS[name]
    points = [normal(m, d, dtype=dtype).requires_grad_()]
    if n is not None:
        points.append(normal(n, d, dtype=dtype, seed=1).requires_grad_())
    V = normal(n or m, width, dtype=dtype, seed=2).requires_grad_()
    W = normal(m, width, dtype=dtype, seed=3)
    numbers = [number(x, dtype) for x in (d**0.5, 1.3, *shape)]
    K = co.Kernel(k or kernel, *points, parameters=tuple(numbers))
    product = K @ V
    gradients = torch.autograd.grad((product * W).sum(), [*points, V, *numbers])
    return K, [product.detach(), (K.T @ W).detach(), *gradients]


# every shape by one profile, every profile in one shape: each is a program to be compiled
SHAPES = [
    ("rbf", m, n, width, d)
    for m, n, width in ((1000, None, 1), (300, 2000, 70))
    for d in (3, 18, 90)
]
SHAPES += [(name, 700, 1100, 5, 18) for name in KERNELS]


@pytest.mark.parametrize(("name", "m", "n", "width", "d"), SHAPES)
def test_products_and_derivatives_are_those_of_float64(name, m, n, width, d):
    K, found = values(name, torch.float32, m, n, d, width)
    assert K.how == "fused, no entry is written"
    kernel, _ = KERNELS[name]
    _, expected = values(name, torch.float64, m, n, d, width, k=lambda *a: kernel(*a))  # by blocks
    for x, y in zip(found, expected, strict=True):
        assert float((x - y).norm()) <= 1e-5 * float(y.norm()) + 1e-4 * (y.ndim == 0)


@each
def test_products_in_double_precision(name):
    K, found = values(name, torch.float64, 300, 500, 12, 3)
    assert K.how == "fused, no entry is written"
    kernel, _ = KERNELS[name]
    _, expected = values(name, torch.float64, 300, 500, 12, 3, k=lambda *a: kernel(*a))
    for x, y in zip(found, expected, strict=True):
        assert float((x - y).norm()) <= 1e-11 * float(y.norm())


def test_neighbours_far_from_the_origin_are_told_apart():
    """Where |x|^2 + |y|^2 - 2 x·y has no digit left."""
    X = 1e-3 * normal(2000, 18) + 100 * normal(40, 18, seed=1).repeat(50, 1)
    V = normal(2000, 1, seed=2)
    for kernel in (gp.rbf, gp.matern12):
        found = co.Kernel(kernel, X, parameters=(number(0.01),)) @ V
        middle = X.double() - X.double().mean(0)
        expected = torch.exp(
            -(torch.cdist(middle / 0.01, middle / 0.01) ** (2 if kernel is gp.rbf else 1))
            / (2 if kernel is gp.rbf else 1)
        )
        error = (found - expected @ V.double()).norm() / (expected @ V.double()).norm()
        assert (
            float(error.detach()) < 2e-2
        )  # the points themselves are rounded to 1e-5, their distance is 4e-3


def test_half_precision_is_that_of_its_points():
    X, V = normal(500, 10, dtype=torch.bfloat16), normal(500, 20, dtype=torch.bfloat16)
    found = (co.Kernel(gp.rbf, X, parameters=(number(3.0, torch.bfloat16),)) @ V).detach()
    expected = gp.rbf(X.double(), None, 3.0) @ V.double()
    assert found.dtype is torch.bfloat16
    assert float((found.double() - expected).norm() / expected.norm()) < 2e-2


def test_no_matrix_is_written():
    X, V = normal(40_000, 18).requires_grad_(), normal(40_000, 3)
    length = number(4.0)
    K = co.Kernel(gp.rbf, X, parameters=(length,))
    (K[:64] @ V[:, :1]).sum().item()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    (K @ V).sum().backward()
    assert torch.cuda.max_memory_allocated() - before < 40_000**2 * 4 / 20
    assert torch.isfinite(length.grad)


def test_other_kernels_go_by_blocks_as_large_as_the_device_allows():
    def linear(X, Y):
        return X @ Y.mT

    K = co.Kernel(linear, normal(4000, 10))
    assert K.how == "by blocks of 4000 rows, in 2048 MiB"
    torch.testing.assert_close(
        K @ torch.ones(4000, device=CUDA), (K.X @ K.X.sum(0)), rtol=1e-3, atol=1e-1
    )


def test_a_matrix_that_no_device_holds_is_an_error_at_once():
    K = co.Kernel(gp.rbf, normal(1_000_000, 2))
    with pytest.raises(TooLargeError, match="GiB"):
        K.to_dense()


def test_second_derivatives_go_by_blocks():
    X, V = normal(6, 2, dtype=torch.float64), normal(6, 1, dtype=torch.float64)
    length = number(1.1, torch.float64)
    f = lambda X, V, length: co.Kernel(gp.rbf, X, parameters=(length,)) @ V
    assert torch.autograd.gradgradcheck(f, (X.requires_grad_(), V.requires_grad_(), length))


def test_the_likelihood_and_its_gradient_are_near_those_of_the_matrix():
    n = 3000
    X = normal(n, 18)
    y = torch.sin(X[:, 0]) + 0.3 * normal(n, seed=1)

    def loss(kernel, method, dtype):
        theta = [number(x, dtype) for x in (4.0, 1.0, 0.1)]
        length, variance, noise = theta
        K = co.PSD(kernel(X.to(dtype), length, variance)) + noise * co.Identity(n)
        value, info = gp.log_marginal_likelihood(K, y.to(dtype), method=method, info=True)
        assert not info.failed, info
        return value.detach(), torch.stack(torch.autograd.grad(value, theta))

    exact, gradient = loss(lambda X, l, v: gp.rbf(X, None, l, v), co.Cholesky(), torch.float64)
    for M, tol in ((co.Nystrom(100), 5e-3), (co.RPCholesky(300), 2e-3)):
        method = co.SLQ(40, preconditioner=M)
        found = loss(lambda X, l, v: co.Kernel(gp.rbf, X, parameters=(l, v)), method, torch.float32)
        assert abs(float(found[0] - exact)) < tol * n
        np.testing.assert_allclose(found[1].cpu(), gradient.cpu(), rtol=0.1, atol=0.02 * n)


def test_a_preconditioner_of_single_precision_is_positive_beside_an_eigenvalue_of_a_million():
    n, noise = 4000, 1e-3
    X = normal(n, 3).float()
    A = co.PSD(co.Kernel(gp.rbf, X, parameters=(2.0, 1.0))) + noise * co.Identity(n)
    M = co.RPCholesky(300)(A)
    U, d = M.A.operands[0].U.double(), co.diag(M.A.operands[1]).double()
    V, s, _ = torch.linalg.svd(U, full_matrices=False)
    exact = 1 / (s**2 + d[0])
    assert exact[0] * 1e6 < 1 / noise
    forms = torch.linalg.vecdot(V, (M @ V.float()).double(), dim=0)
    torch.testing.assert_close(forms, exact, rtol=1e-3, atol=0)


def profile_of_jax(q, a):
    import jax.numpy as jnp

    return jnp.exp(-q / 2) * jnp.cos(a * q)


JAX_KERNELS = {
    **{name: KERNELS[name] for name in KERNELS if name not in ("own", "powers")},
    "own": (gp.radial(profile_of_jax), (0.7,)),
}
JAX_SHAPES = [("float32", *shape) for shape in SHAPES if shape[0] in JAX_KERNELS]
JAX_SHAPES += [("float64", name, 300, 500, 3, 12) for name in ("rbf", "matern12", "own")]


@pytest.mark.parametrize(("dtype", "name", "m", "n", "width", "d"), JAX_SHAPES)
def test_products_and_derivatives_in_jax_are_those_of_float64(dtype, name, m, n, width, d):
    """Warnings are errors here: a program that fails its trial fails this test."""
    device = cuda("jax")
    import jax

    kernel, shape = JAX_KERNELS[name]
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=s) for s in ((m, width), (m, d), (n or m, d), (n or m, width))]
    W, X, Y, V = (jax.device_put(x.astype(dtype), device) for x in arrays)
    Y = None if n is None else Y
    numbers = [jax.device_put(np.asarray(x, dtype), device) for x in (d**0.5, 1.3, *shape)]
    assert co.Kernel(kernel, X, Y, numbers).how == "fused, no entry is written"

    def values(block, W, X, Y, V, *numbers):
        multiply = lambda X, Y, V, *numbers: co.Kernel(kernel, X, Y, numbers, block) @ V
        product, back = jax.vjp(multiply, X, Y, V, *numbers)
        return product, *back(W), co.Kernel(kernel, X, Y, numbers, block).T @ W

    values = jax.jit(values, static_argnums=0)
    given = (W, X, Y, V, *numbers)
    doubled = jax.tree.map(lambda x: x.astype("float64"), given)
    tolerance = 1e-5 if dtype == "float32" else 1e-11
    found, expected = values(None, *given), values(m, *doubled)  # the latter by blocks
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert x.dtype == dtype
        assert np.linalg.norm(x - y) <= tolerance * (np.linalg.norm(y) + 10 * (y.ndim == 0))


def test_neighbours_far_from_the_origin_are_told_apart_in_jax():
    """Where |x|^2 + |y|^2 - 2 x·y has no digit left."""
    device = cuda("jax")
    import jax

    rng = np.random.default_rng(0)
    X = 1e-1 * rng.normal(size=(2000, 18)) + 1e3 * np.repeat(rng.normal(size=(40, 18)), 50, axis=0)
    X, V = (jax.device_put(x.astype("float32"), device) for x in (X, rng.normal(size=(2000, 1))))
    found, x = co.Kernel(gp.rbf, X) @ V, np.asarray(X, "float64")
    expected = gp.radial(lambda q: np.exp(-q / 2))(x) @ np.asarray(V, "float64")
    assert np.linalg.norm(found - expected) <= 1e-3 * np.linalg.norm(expected)


def test_no_matrix_is_written_in_jax():
    device = cuda("jax")
    import jax

    X, V = (jax.device_put(np.ones((40_000, k), "float32"), device) for k in (18, 3))
    f = jax.jit(jax.grad(lambda X, V: (co.Kernel(gp.rbf, X) @ V).sum(), argnums=(0, 1)))
    analysis = f.lower(X, V).compile().memory_analysis()
    assert analysis.temp_size_in_bytes < 40_000**2 * 4 / 20
    assert all(np.isfinite(x).all() for x in f(X, V))


def test_kernels_in_jax_are_mapped_and_pushed_forwards():
    device = cuda("jax")
    import jax

    rng = np.random.default_rng(0)
    X, V = (jax.device_put(rng.normal(size=s), device) for s in ((3, 70, 4), (70, 2)))
    f = lambda kernel: jax.jit(
        jax.vmap(jax.grad(lambda X, V: ((kernel(X) @ V) ** 2).sum()), (0, None))
    )
    fused = lambda X: co.Kernel(gp.matern52, X)
    np.testing.assert_allclose(f(fused)(X, V), f(gp.matern52)(X, V), rtol=1e-9, atol=1e-9)
    g = lambda kernel: jax.jvp(lambda X: kernel(X) @ V, (X[0],), (X[1],))[1]
    np.testing.assert_allclose(g(fused), g(gp.matern52), rtol=1e-9, atol=1e-9)
    batch = co.Kernel(gp.matern52, X)
    assert batch.how == "fused, no entry is written"
    np.testing.assert_allclose(batch @ V, gp.matern52(X) @ V, rtol=1e-9, atol=1e-9)
