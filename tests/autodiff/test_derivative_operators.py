"""Jacobian, Hessian and GaussNewton of functions without forward derivatives, and how often their functions are called."""

from __future__ import annotations

import numpy as np
import pytest

import colinear as co

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
jnp = jax.numpy
F = torch.nn.functional


class Squared(torch.autograd.Function):
    """Of the kind that transforms of torch.func refuse."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


def _models():
    torch.manual_seed(0)
    lstm, attention = (
        torch.nn.LSTM(3, 3, dtype=torch.float64),
        torch.nn.MultiheadAttention(3, 1, dtype=torch.float64),
    )
    return {
        "plain": lambda x: torch.tanh(x**2),
        "custom function": lambda x: torch.sin(Squared.apply(x)),
        "LSTM": lambda x: lstm(x.reshape(2, 1, 3))[0],
        "attention": lambda x: attention(*[x.reshape(2, 1, 3)] * 3)[0],
        "fused attention": lambda x: F.scaled_dot_product_attention(*[x.reshape(1, 1, 2, 3)] * 3),
    }


MODELS = _models()
LOSSES = {
    "MSE": torch.nn.MSELoss(),
    "Huber": torch.nn.HuberLoss(),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("model", MODELS)
def test_models_and_losses_without_forward_derivatives(model, loss):
    f, x = MODELS[model], torch.linspace(-1, 1, 6, dtype=torch.float64)
    target = torch.full_like(f(x), 0.3).detach()
    J = torch.autograd.functional.jacobian(lambda x: f(x).reshape(-1), x)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        H = torch.autograd.functional.hessian(lambda x: LOSSES[loss](f(x), target), x)
        of_loss = torch.autograd.functional.hessian(
            lambda y: LOSSES[loss](y, target.reshape(-1)), f(x).reshape(-1)
        )
    G = J.T @ of_loss @ J
    v, eye = torch.arange(6.0, dtype=torch.float64), torch.eye(6, dtype=torch.float64)
    jacobian = co.Jacobian(f, x)
    hessian = co.Hessian(lambda x, target: LOSSES[loss](f(x), target), x, parameters=(target,))
    gauss_newton = co.GaussNewton(f, LOSSES[loss], x, loss_parameters=(target,))
    for A, dense in ((jacobian, J), (hessian, H), (gauss_newton, G)):
        for X in (v, eye):
            torch.testing.assert_close(A @ X, dense @ X, atol=1e-12, rtol=1e-10)
        torch.testing.assert_close(
            A.H @ eye[: len(dense), : len(dense)], dense.T @ eye[: len(dense), : len(dense)]
        )
        torch.testing.assert_close(A @ (1j * v), 1j * (dense @ v), atol=1e-12, rtol=1e-10)
    solved = co.solve(co.PSD(gauss_newton) + co.Identity(6), v, co.CG(tol=1e-10))
    torch.testing.assert_close(solved, torch.linalg.solve(G + eye, v), atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("model", ["custom function", "LSTM"])
def test_gradients_go_through_models_without_forward_derivatives(model):
    f = MODELS[model]
    x, v = torch.linspace(-1, 1, 6, dtype=torch.float64), torch.arange(6.0, dtype=torch.float64)

    def by_operator(x):
        return (co.Jacobian(f, x) @ v).sum()

    def by_hand(x):
        return torch.autograd.functional.jvp(lambda x: f(x).reshape(-1), x, v, create_graph=True)[
            1
        ].sum()

    slopes = []
    for g in (by_operator, by_hand):
        point = x.clone().requires_grad_()
        slopes.append(torch.autograd.grad(g(point), point)[0])
    torch.testing.assert_close(*slopes)


def test_gradients_reach_the_parameters_of_a_loss():
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    weight = torch.tensor([3.0, 4.0], dtype=torch.float64, requires_grad=True)
    G = co.GaussNewton(torch.sin, lambda y, w: (w * y**2).sum() / 2, x, loss_parameters=(weight,))
    co.solve(co.PD(G), torch.ones(2, dtype=torch.float64), co.CG()).sum().backward()
    torch.testing.assert_close(weight.grad, -1 / (weight.detach() * torch.cos(x)) ** 2)
    with pytest.raises(TypeError, match=r"parameters=\(theta,\)"):
        co.GaussNewton(torch.sin, torch.sum, x, loss_parameters=weight)


SOLVES = {
    "CG": lambda A, b: co.solve(co.PD(A), b, co.CG()),
    "LSMR": lambda A, b: co.lstsq(A, b, co.LSMR()),
    "Lanczos": lambda A, b: co.eig(co.PD(A), 1, "LM", co.Lanczos())[0],
    "exp": lambda A, b: co.exp(co.SelfAdjoint(A), co.Krylov()) @ b,
}


@pytest.mark.parametrize("name", SOLVES)
def test_torch_functions_are_called_once_in_an_iteration(name):
    calls, x = [], torch.linspace(1, 2, 30, dtype=torch.float64)

    def f(x):
        calls.append(1)
        return x**3 / 9

    for A in (co.Jacobian(f, x), co.GaussNewton(f, lambda y: (y**2).sum() / 2, x)):
        expected = SOLVES[name](co.opaque(co.Dense(A.to_dense())), torch.ones_like(x))
        calls.clear()
        torch.testing.assert_close(
            SOLVES[name](A, torch.ones_like(x)), expected, atol=1e-6, rtol=1e-5
        )
        assert len(calls) <= 4


def test_linearised_parts_of_a_composition_share_one_linearisation():
    calls, x = [], torch.linspace(1, 2, 6, dtype=torch.float64)

    def f(x):
        calls.append(1)
        return torch.sin(x) * x

    J = co.Jacobian(f, x)
    N = J.H @ J + co.Identity(6)
    dense, b = N.to_dense(), torch.ones_like(x)
    calls.clear()
    torch.testing.assert_close(co.solve(N, b, co.CG(tol=1e-10)), torch.linalg.solve(dense, b))
    assert len(calls) <= 4


@jax.custom_vjp
def cube(x):
    return x**3


cube.defvjp(lambda x: (x**3, x), lambda x, g: (3 * x**2 * g,))


def test_jacobians_of_functions_that_have_a_pullback_alone():
    x, W = jnp.arange(1.0, 4), jnp.arange(6.0).reshape(2, 3)
    dense = np.asarray(W * (3 * x**2))
    J = co.Jacobian(lambda x: W @ cube(x), x)
    np.testing.assert_allclose(J.to_dense(), dense)
    np.testing.assert_allclose(J @ jnp.eye(3), dense)
    np.testing.assert_allclose(J.T @ jnp.ones(2), dense.sum(0))

    def compiled(x):
        A = co.Jacobian(cube, x)
        product = lambda x: (co.Jacobian(cube, x) @ jnp.ones(3)).sum()
        return A @ jnp.ones(3), jax.grad(product)(x), co.solve(A, jnp.ones(3), co.GMRES())

    product, slope, solved = jax.jit(compiled)(x)
    np.testing.assert_allclose(product, 3 * x**2)
    np.testing.assert_allclose(slope, 6 * x)
    np.testing.assert_allclose(solved, 1 / (3 * x**2), rtol=1e-6)
