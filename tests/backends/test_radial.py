"""Profiles of kernels become programs of Triton, and nothing else does; what these compute is tested on a device, and here in
Triton's interpreter where that is asked for (TRITON_INTERPRET=1)."""

from __future__ import annotations

import importlib.util
import os

import numpy as np
import pytest
import torch

import colinear as co
from colinear import gp
from colinear.backends.torch import profiles, radial

KERNELS = {
    "rbf": (gp.rbf, ()),
    "matern12": (gp.matern12, ()),
    "matern32": (gp.matern32, ()),
    "matern52": (gp.matern52, ()),
    "rational_quadratic": (gp.rational_quadratic, (1.7,)),
    "periodic": (gp.periodic, (2.3,)),
    "own": (gp.radial(lambda q, a: torch.exp(-q / 2) * torch.cos(a * q)), (0.7,)),
}


def sources_of(profile, count=0, dtype=torch.float32):
    return profiles._sources(profile, profiles._numbers_in(profile), dtype, count)


@pytest.mark.parametrize("name", KERNELS)
def test_every_profile_and_its_derivatives_are_written_as_a_program(name):
    kernel, shape = KERNELS[name]
    count = 0 if name == "periodic" else len(shape)
    sources = sources_of(kernel.radial.profile, count)
    assert len(sources) == 2 + count
    for text in sources:
        assert text.startswith("@triton.jit\ndef profile(q, parameters):")
        compile(text, "profile", "exec")


def test_the_source_of_the_gaussian_profile_is_what_one_would_write():
    value, slope = sources_of(gp.rbf.radial.profile)
    assert "tl.exp" in value and "tl.load" not in value
    assert "return" in slope


@pytest.mark.parametrize(
    "profile",
    [
        lambda q: q / q.max(),  # no function of each distance
        lambda q: torch.linalg.inv(q @ q.mT) @ q,
        lambda q: torch.exp(-q) if q.sum() > 0 else q,  # looks at values
        lambda q: q[:1],
        lambda q: torch.as_tensor(np.exp(-q.numpy())),
        lambda q: torch.special.i0e(q),  # unknown to us
    ],
)
def test_what_is_no_elementwise_function_is_left_to_blocks(profile):
    assert sources_of(profile) is None


def test_numbers_that_a_profile_closes_over_are_read_anew():
    scale = 2.0

    def profile(q):
        return torch.exp(-scale * q)

    before = sources_of(profile)
    scale = 3.0
    assert sources_of(profile) != before


def test_on_the_host_blocks_are_multiplied(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    X = torch.zeros(3, 2)
    assert radial.radial_product(gp.rbf.radial, X, None, ()) == ""
    K = co.Kernel(gp.rbf, X)
    assert K.how == "by blocks of 3 rows, in 128 MiB"
    K = co.PSD(co.Kernel(gp.rbf, X, block=2))  # which is not stored
    plan = co.explain(co.solve, K + co.Identity(3), torch.ones(3), co.CG())
    assert "kernels by blocks of 2 rows" in str(plan)


@pytest.mark.parametrize("name", KERNELS)
def test_the_blocks_of_second_derivatives_are_the_kernel(name, rng):
    kernel, shape = KERNELS[name]
    X, V = (torch.as_tensor(rng.normal(size=(9, k))) for k in (3, 2))
    X, _, _, shape = kernel.radial.placed(X, None, 1.0, 1.0, *shape)
    found = radial.by_blocks(kernel.radial.profile, X, None, V, *map(torch.tensor, shape))
    q = ((X[:, None] - X) ** 2).sum(-1)
    torch.testing.assert_close(found, kernel.radial.profile(q, *shape) @ V)


def test_parts_of_points_are_those_that_tf32_holds(rng):
    X = torch.as_tensor(rng.normal(size=(5, 3)), dtype=torch.float32)
    high, low = radial._parts(X)
    assert torch.equal(high + low, X)
    assert not (high.view(torch.int32) & 8191).any()


interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1" or importlib.util.find_spec("triton") is None,
    reason="TRITON_INTERPRET=1 and Triton run the programs on the host",
)
# Triton 3.6's interpreter takes arrays of one element for numbers, of which NumPy warns
quiet = pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")


@interpreted
@quiet
@pytest.mark.parametrize("d", [3, 10])
@pytest.mark.parametrize("columns", [None, 37])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", KERNELS)
def test_programs_and_their_derivatives_are_those_of_blocks(name, dtype, columns, d, monkeypatch):
    kernel, shape = KERNELS[name]
    g = torch.Generator().manual_seed(0)
    X = torch.randn(70, d, dtype=dtype, generator=g)
    Y = None if columns is None else torch.randn(columns, d, dtype=dtype, generator=g)
    V = torch.randn(columns or 70, 2, dtype=dtype, generator=g)
    W = torch.randn(70, 2, dtype=dtype, generator=g)

    def values(dtype):
        points = [P.to(dtype).clone().requires_grad_() for P in (X, Y) if P is not None]
        numbers = [torch.tensor(v, dtype=dtype, requires_grad=True) for v in (2.0, 1.3, *shape)]
        v = V.to(dtype).clone().requires_grad_()
        K = co.Kernel(kernel, *points, parameters=tuple(numbers))
        product = K @ v
        leaves = [*points, v, *numbers]
        return [product, K.T @ W.to(dtype), *torch.autograd.grad((product * W).sum(), leaves)]

    found = values(dtype)
    monkeypatch.setattr(radial, "is_fused", lambda X: False)
    tol = 3e-5 if dtype is torch.float32 else 1e-13  # numbers are sums that cancel
    for x, expected in zip(found, values(torch.float64), strict=True):
        assert (x - expected).norm() <= tol * expected.norm() + tol


@interpreted
@quiet
def test_second_derivatives_of_programs_are_right():
    X = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    V = torch.randn(6, 1, dtype=torch.float64, requires_grad=True)
    length = torch.tensor(1.1, dtype=torch.float64, requires_grad=True)
    f = lambda X, V, length: co.Kernel(gp.rbf, X, parameters=(length,)) @ V
    assert torch.autograd.gradgradcheck(f, (X, V, length))


@interpreted
@quiet
@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")
@pytest.mark.parametrize("name", ["rbf", "matern12"])
@pytest.mark.parametrize("width", [1, 3])
def test_points_near_the_origin_and_far_from_it_are_as_right(name, width):
    """Neighbours far away, whose difference cancels, are computed again; the order of the points is theirs."""
    g = torch.Generator().manual_seed(0)
    X = torch.randn(300, 10, generator=g)
    X[::7] += 1000 * torch.randn(43, 1, generator=g).round()
    Y = torch.cat([X[::3] + 0.1 * torch.randn(100, 10, generator=g), X[:50]])
    V = torch.randn(150, width, generator=g)
    kernel = KERNELS[name][0]
    found = co.Kernel(kernel, X, Y) @ V
    q = ((X.double()[:, None] - Y.double()) ** 2).sum(-1)
    expected = kernel.radial.profile(q) @ V.double()
    assert (found - expected).norm() <= 1e-5 * expected.norm()
    X[5] = torch.nan
    assert torch.isnan((co.Kernel(kernel, X, Y) @ V)[5]).all()
    assert torch.isfinite((co.Kernel(kernel, X, Y) @ V)[6]).all()
