"""Pallas' programs for kernels of the distance, by its interpreter; that they are written for CUDA devices; and that they are
not trusted before they were seen to be right. What a device makes of them is tested in tests/gpu."""

from __future__ import annotations

import importlib
import warnings
from dataclasses import replace

import numpy as np
import pytest

import colinear as co
from colinear import gp
from colinear.errors import FallbackWarning

jax = pytest.importorskip("jax")
pytest.importorskip("jax.experimental.pallas.triton")
radial, kernels = (
    importlib.import_module(f"colinear.backends.jax.{name}")
    for name in ("radial", "radial_kernels")
)

jnp = jax.numpy
KERNELS = {
    "rbf": (gp.rbf, ()),
    "matern12": (gp.matern12, ()),
    "matern32": (gp.matern32, ()),
    "matern52": (gp.matern52, ()),
    "rational_quadratic": (gp.rational_quadratic, (1.7,)),
    "periodic": (gp.periodic, (2.3,)),
    "own": (gp.radial(lambda q, a: jnp.exp(-q / 2) * jnp.cos(a * q)), (0.7,)),
    "powers": (gp.radial(lambda q: (1 + q) ** -1.5 + jnp.tanh(q)), ()),
}


@pytest.fixture
def interpreted(monkeypatch):
    monkeypatch.setattr(radial, "is_interpreted", True)


@pytest.fixture
def with_cuda(monkeypatch):
    """As on a machine with a CUDA device, on which no program was tried so far."""
    monkeypatch.setattr(radial, "cuda_devices", lambda: tuple(jax.devices("cpu")))
    monkeypatch.setattr(radial, "FAULTS", {})
    radial.trial.cache_clear()


def points(*shape, seed=0, dtype="float32"):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(dtype))


def values(multiply):
    """K V, and the derivatives of W·K V by all that it is made of, as one program."""

    def f(W, *arguments):
        product, back = jax.vjp(multiply, *arguments)
        return product, *back(W)

    return jax.jit(f)


def doubled(arrays):
    return [None if x is None else x.astype("float64") for x in arrays]


CASES = [  # of rows, of columns if they are others, coordinates, columns of V
    ("matern12", "float32", 70, None, 1, 1),
    ("own", "float32", 70, 130, 18, 3),
    ("rbf", "float32", 33, None, 90, 70),
    ("rational_quadratic", "float64", 40, 1100, 3, 1),
]


@pytest.mark.parametrize(("name", "dtype", "m", "n", "d", "width"), CASES)
def test_products_and_derivatives_are_those_of_float64(name, dtype, m, n, d, width, interpreted):
    kernel, shape = KERNELS[name]
    X, Y = points(m, d, dtype=dtype), None if n is None else points(n, d, seed=1, dtype=dtype)
    V, W = points(n or m, width, seed=2, dtype=dtype), points(m, width, seed=3, dtype=dtype)
    numbers = [jnp.asarray(x, dtype) for x in (d**0.5, 1.3, *shape)]
    assert co.Kernel(kernel, X, Y, numbers).how == "fused, no entry is written"

    given = W, X, Y, V, *numbers
    found = values(lambda X, Y, V, *numbers: co.Kernel(kernel, X, Y, numbers) @ V)(*given)
    dense = values(lambda X, Y, V, *numbers: kernel(X, Y, *numbers) @ V)
    tolerance = 3e-5 if dtype == "float32" else 1e-12  # numbers are sums that cancel
    for x, y in zip(found, dense(*doubled(given)), strict=True):
        if y is not None:
            assert x.dtype == dtype
            assert np.linalg.norm(x - y) <= tolerance * (np.linalg.norm(y) + (y.ndim == 0))


def test_batches_complex_right_sides_and_transposes_are_multiplied(interpreted):
    X, Y, length = (
        points(2, 9, 3),
        points(20, 3, seed=1),
        jnp.asarray([[[1.0]], [[2.0]]], "float32"),
    )
    V = points(20, 2, seed=2) + 1j * points(20, 2, seed=3)

    def products(X, Y, V, length):
        batch = co.Kernel(gp.rbf, X, Y)
        one = lambda x: co.Kernel(gp.rbf, Y, x).T @ V
        return batch @ V, jax.vmap(one)(X), co.Kernel(gp.rbf, X[0], Y, (length,)) @ V

    assert co.Kernel(gp.rbf, X, Y).how == "fused, no entry is written"
    for found, K in zip(
        jax.jit(products)(X, Y, V, length),
        (gp.rbf(X, Y), gp.rbf(X, Y), gp.rbf(X[0], Y, length)),
        strict=True,
    ):
        assert found.dtype == "complex64"
        np.testing.assert_allclose(found, K @ V, rtol=1e-4, atol=1e-4)


def test_forward_mode_and_second_derivatives_are_right(interpreted):
    X, Y, V = (points(*shape, dtype="float64") for shape in ((5, 2), (4, 2), (4, 1)))

    def value(kernel):
        f = lambda X, Y, V, length: ((kernel(X, Y, length) @ V) ** 2).sum()
        arguments = X, Y + 1, V, jnp.asarray(1.1)

        def both(*arguments):
            push = jax.jvp(f, arguments, jax.tree.map(jnp.ones_like, arguments))[1]
            return push, jax.hessian(f, (0, 1, 2, 3))(*arguments)

        return jax.tree.leaves(jax.jit(both)(*arguments))

    found = value(lambda X, Y, length: co.Kernel(gp.rbf, X, Y, (length,)))
    expected = value(gp.rbf)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module")
def product():
    """K V of the Gaussian kernel in single precision, by the interpreter."""
    profile = radial.traced(gp.rbf.radial.profile, jnp.dtype("float32"), 0)
    fused = radial.Fused(profile, jnp.dtype("float32"), True, False, True)
    return jax.jit(lambda X, V: kernels.product(fused, X, X, V, ()))


def test_neighbours_far_from_the_origin_are_told_apart(product):
    """Where |x|^2 + |y|^2 - 2 x·y has no digit left."""
    X = 1e-1 * points(80, 18) + 1e3 * jnp.tile(points(4, 18, seed=1), (20, 1))
    V = points(80, 1, seed=2)
    x = np.asarray(X, "float64")
    K = np.exp(-((x[:, None] - x) ** 2).sum(-1) / 2)
    np.testing.assert_allclose(product(X, V), K @ V, rtol=1e-4, atol=1e-4)


def test_a_point_that_is_no_number_gives_none(product):
    X = points(80, 18).at[3, 5].set(np.nan)
    found = np.asarray(product(X, points(80, 1, seed=2)))
    assert np.isnan(found).all()  # all rows have an entry of that column


@pytest.mark.parametrize("name", KERNELS)
def test_products_and_derivatives_are_written_for_cuda_devices_alone(name, with_cuda, monkeypatch):
    monkeypatch.setattr(radial, "fault", lambda *arguments: "")
    kernel, shape = KERNELS[name]
    dtype = "float64" if name == "own" else "float32"
    d, width = (12, 1) if name == "matern32" else (90 if name == "rbf" else 3, 70)
    X, Y, V = points(50, d, dtype=dtype), points(1100, d, dtype=dtype), points(1100, width)
    f = values(lambda X, Y, V, *numbers: co.Kernel(kernel, X, Y, numbers) @ V)
    traced = f.trace(points(50, width, dtype=dtype), X, Y, V.astype(dtype), 1.0, 1.0, *shape)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
    # K V, K^T G, and the derivatives by the points of the rows and by those of the columns; of a
    # product the program for points far from the origin and that for others
    two = name in ("rbf", "matern32")
    assert text.count("@__gpu$xla.gpu.triton(") == (6 if two else 4)
    assert "triton" not in traced.lower(lowering_platforms=("cpu",)).as_text()


def test_elsewhere_blocks_are_multiplied():
    X = points(3, 2)
    assert radial.radial_product(gp.rbf.radial, X, None, ()) == ""
    assert co.Kernel(gp.rbf, X).how == "by blocks of 3 rows, in 128 MiB"


def test_a_program_that_fails_is_left_for_blocks_with_the_reason(with_cuda, monkeypatch):
    monkeypatch.setattr("colinear.operators.kernel.memory_to_store", lambda K: 0)
    X, V = points(9, 2), points(9, 1)  # Pallas refuses this device
    with pytest.warns(FallbackWarning, match="failed its trial, so blocks are multiplied"):
        how = co.Kernel(gp.rbf, X).how
    assert how.startswith("by blocks of 9 rows, in 128 MiB, since the fused product failed its")
    assert "interpret mode" in how
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it warns once
        K = co.PSD(co.Kernel(gp.rbf, X, parameters=(jnp.float32(2),)))
        plan = co.explain(co.solve, K + co.Identity(9), V[:, 0], co.CG())
        np.testing.assert_allclose(K @ V, gp.rbf(X, None, 2.0) @ V, rtol=1e-5)
    assert "since the fused product failed its trial" in str(plan)


def test_a_program_that_is_wrong_is_left_for_blocks(with_cuda, monkeypatch):
    """Also when it is first tried while a program is traced."""
    near = lambda self, x, *constants: (1.001 * self.by_blocks((x,), constants)[0],)
    monkeypatch.setattr(radial.Product, "on_cuda", near)
    X, V = points(9, 2), points(9, 1)
    with pytest.warns(FallbackWarning, match="it is off by"):
        found = jax.jit(lambda X, V: co.Kernel(gp.matern52, X) @ V)(X, V)
    np.testing.assert_allclose(found, gp.matern52(X) @ V, rtol=1e-5)


def test_a_program_that_is_wrong_under_vmap_is_left_for_blocks(with_cuda, monkeypatch):
    tried = []

    def on_cuda(self, x, *constants):
        tried.append(x.shape)
        return self.by_blocks((x,), constants)

    def mapped(self, *arrays):
        found = jax.vmap(self.rule.on_cuda, self.axes[0])(*arrays) if self.axes else None
        return (found[0] * 1.01,) if self.axes else self.rule.on_cuda(*arrays)

    monkeypatch.setattr(radial.Product, "on_cuda", on_cuda)
    monkeypatch.setattr(radial.Program, "on_cuda", mapped)
    X, V = points(2, 9, 2), points(9, 1)
    multiply = jax.vmap(lambda X, V: co.Kernel(gp.rbf, X) @ V, in_axes=(0, None))
    with pytest.warns(FallbackWarning, match="it is off by"):
        found = jax.jit(multiply)(X, V)
    np.testing.assert_allclose(found, gp.rbf(X) @ V, rtol=1e-5)
    assert set(tried) == {(70, 1)}  # alone, and mapped


def test_a_program_that_cannot_be_written_at_full_size_is_left_for_blocks(with_cuda, monkeypatch):
    monkeypatch.setattr(radial, "fault", lambda *arguments: "")

    def too_large(self, *arrays):
        raise NotImplementedError("more than a program can have")

    monkeypatch.setattr(radial.Product, "on_cuda", too_large)
    f = jax.jit(lambda X, V: co.Kernel(gp.rbf, X) @ V).trace(points(9, 2), points(9, 1))
    with pytest.warns(FallbackWarning, match="more than a program can have"):
        assert "triton" not in f.lower(lowering_platforms=("cuda",)).as_text()


def test_programs_that_are_right_pass_their_trial(with_cuda, monkeypatch):
    """Gradients of the roughest profile in one dimension are the hardest; a warning is an error."""

    class Interpreted:
        @staticmethod
        def cotangents(fused, *arguments, **options):
            return kernels.cotangents(replace(fused, is_interpreted=True), *arguments, **options)

    monkeypatch.setattr(radial, "_kernels", lambda: Interpreted)
    dtype = jnp.dtype("float32")
    profile = radial.traced(gp.matern12.radial.profile, dtype, 0)
    program = radial.Program(radial.Pull(radial.Fused(profile, dtype, False, False, False), 1))
    assert radial.fault(program, *(points(50, 1) for _ in "GXV")) == ""


def test_a_program_that_passes_its_trial_is_used(with_cuda, monkeypatch):
    monkeypatch.setattr(
        radial.Product, "on_cuda", lambda self, x, *constants: self.by_blocks((x,), constants)
    )
    assert co.Kernel(gp.matern32, points(9, 2)).how == "fused, no entry is written"


MIXING = [
    lambda q: q / q.max(),
    lambda q: q @ jnp.ones((3, 3), q.dtype),
    lambda q: jnp.cumsum(q, axis=1),
    lambda q: q + jnp.arange(3),
    lambda q: jnp.flip(q, axis=0),
    lambda q: jnp.exp(-q) if q.sum() > 0 else q,
    lambda q: q[:1],
    lambda q: q.astype("float64"),
    lambda q: jax.pure_callback(np.exp, q[:1], q[:1]),
]


@pytest.mark.parametrize("profile", MIXING)
def test_what_is_no_elementwise_function_is_left_to_blocks(profile, interpreted):
    assert radial.traced(profile, jnp.dtype("float32"), 0) is None
    found = radial.radial_product(gp.radial(profile).radial, points(3, 2), None, ())
    assert found == "since its profile is no function of each distance alone"


def test_numbers_that_a_profile_closes_over_are_read_anew():
    scale = 2.0

    def profile(q):
        return jnp.exp(-scale * q)

    trace = lambda f: radial.traced(f, jnp.dtype("float32"), 0)
    before = trace(profile)
    assert before == trace(lambda q: jnp.exp(-2.0 * q))  # no second program is compiled
    scale = 3.0
    assert trace(profile) != before
