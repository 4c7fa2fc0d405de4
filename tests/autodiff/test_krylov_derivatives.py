"""Derivatives of f(A) b by `Krylov()`: those of the dense f(A), in every mode, to second order, and flagged where they are not accurate."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from support.derivative_cases import APART
from test_table import by_torch

import colinear as co
from colinear import backends
from colinear.testing import forbid_dense

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
jnp = jax.numpy

RNG = np.random.default_rng(5)
N = 10
G, E = RNG.standard_normal((2, N, N)) / 4
B, DB, W = RNG.standard_normal((3, N, 2))
TIGHT = co.Krylov(tol=1e-11)
MODES = APART["f(A) b by Krylov"]

FUNCTIONS: dict[str, tuple[Any, Any]] = {
    "exp": (co.exp, np.exp),
    "log": (co.log, np.log),
    "sqrt": (co.sqrt, np.sqrt),
    "isqrt": (co.isqrt, lambda x: x**-0.5),
    "power": (lambda A, m: co.power(A, 0.3, m), lambda x: x**0.3),
    "cube": (lambda A, m: co.power(A, 3, m), lambda x: x**3),
    "apply": (lambda A, m: co.apply(lambda x: 1 / (1 + x * x), A, m), lambda x: 1 / (1 + x * x)),
}


def start(kind: str) -> np.ndarray:
    M = G + 1j * G.T[::-1] if "complex" in kind else G
    return (M if "general" in kind else (M + M.conj().T) / 2) + 2.5 * np.eye(N)


def phi(xp: Any, name: str, kind: str) -> Any:
    """A real function of a number, by which A and b move; complex parts count too."""

    def f(t: Any) -> Any:
        M = xp.asarray(start(kind)) + t * xp.asarray(E)
        A = co.opaque(
            co.Dense(M if "general" in kind else (M + xp.conj(xp.matrix_transpose(M))) / 2)
        )
        A = {"general": A, "definite": co.PSD(A), "indefinite": co.SelfAdjoint(A)}[kind.split()[-1]]
        Y = FUNCTIONS[name][0](A, TIGHT) @ (xp.asarray(B) + t * xp.asarray(DB))
        return xp.sum(xp.real(Y) * xp.asarray(W)) + (
            xp.sum(xp.imag(Y) * xp.asarray(W)) if xp.is_complex(Y) else 0
        )

    return f


def wanted(name: str, kind: str) -> tuple[float, float]:
    """The first and second derivative, by differences."""

    def value(t: float) -> float:
        M = start(kind) + t * E
        values, V = np.linalg.eig(M if "general" in kind else (M + M.conj().T) / 2)
        Y = V @ (
            FUNCTIONS[name][1](values.astype(complex))[:, None] * np.linalg.solve(V, B + t * DB)
        )
        return float(np.sum((Y.real + Y.imag) * W))

    h = 2e-3
    f = [value(k * h) for k in (-2, -1, 0, 1, 2)]
    return (f[0] - 8 * f[1] + 8 * f[3] - f[4]) / (12 * h), (
        -f[0] + 16 * f[1] - 30 * f[2] + 16 * f[3] - f[4]
    ) / (12 * h * h)


KINDS = ["definite", "indefinite", "general", "complex definite", "complex general"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_first_derivatives_are_those_of_the_dense_function(name: str) -> None:
    turn = list(FUNCTIONS).index(name)
    for i in (turn, turn + 3):
        kind = KINDS[i % len(KINDS)]
        for mode in ("reverse", "forward"):
            found = by_torch(mode, phi(backends.get("torch"), name, kind))[0]
            np.testing.assert_allclose(
                found, wanted(name, kind)[0], rtol=1e-8, err_msg=f"{kind}, {mode}"
            )


@pytest.mark.parametrize(("name", "kind"), [("exp", "definite"), ("cube", "complex general")])
def test_all_modes_of_torch_agree(name: str, kind: str) -> None:
    for mode in MODES["torch"][2:]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop")
            found, order = by_torch(mode, phi(backends.get("torch"), name, kind))
        np.testing.assert_allclose(found, wanted(name, kind)[order - 1], rtol=1e-6, err_msg=mode)


def test_jax_differentiates_both_ways_under_jit_and_vmap() -> None:
    f = phi(backends.get("jax"), "exp", "definite")
    program = jax.jit(
        lambda t: (jax.vmap(jax.grad(f))(jnp.stack([t, t]))[1], jax.jvp(f, (t,), (1.0,))[1])
    )
    np.testing.assert_allclose(program(0.0), wanted("exp", "definite")[0], rtol=1e-8)


def test_jax_has_second_derivatives() -> None:
    f = phi(backends.get("jax"), "cube", "complex general")
    np.testing.assert_allclose(
        jax.jit(jax.grad(jax.grad(f)))(0.0), wanted("cube", "complex general")[1], rtol=1e-6
    )


def test_second_derivatives_of_unknown_functions_are_refused() -> None:
    with pytest.raises(NotImplementedError, match="second derivatives"):
        by_torch("double backward", phi(backends.get("torch"), "apply", "definite"))


def test_every_leaf_and_batch_is_reached() -> None:
    d, U = (
        torch.tensor(RNG.uniform(1, 2, (2, N)), requires_grad=True),
        torch.tensor(G[:, :2], requires_grad=True),
    )
    scale, b = (
        torch.tensor(0.7, dtype=torch.float64, requires_grad=True),
        torch.tensor(B[:, 0], requires_grad=True),
    )

    def pull(product: Any) -> list[Any]:
        A = co.Diagonal(d) + scale * co.LowRank(U)
        return list(
            torch.autograd.grad((product(A) * torch.tensor(W[:, 0])).sum(), (d, U, scale, b))
        )

    found = pull(lambda A: (co.exp(co.opaque(co.SelfAdjoint(A)), TIGHT) @ b[:, None])[..., 0])
    for mine, right in zip(found, pull(lambda A: torch.matrix_exp(A.to_dense()) @ b), strict=True):
        np.testing.assert_allclose(mine.numpy(), right.numpy(), rtol=1e-8, atol=1e-10)


def test_gradients_never_form_the_matrix() -> None:
    n = 800
    d, b = (
        torch.linspace(0, 1, n, dtype=torch.float64, requires_grad=True),
        torch.ones(n, dtype=torch.float64),
    )
    with forbid_dense(n * n - 1):
        y = co.exp(co.opaque(co.SelfAdjoint(co.Diagonal(d))), co.Krylov()) @ b
        (found,) = torch.autograd.grad(y.sum(), d)
    np.testing.assert_allclose(found.numpy(), np.exp(np.linspace(0, 1, n)), rtol=1e-6)


def test_an_invariant_subspace_that_dA_leaves_is_no_trap() -> None:
    values, Q = np.linalg.eigh(start("definite"))
    A, b = torch.tensor(start("definite"), requires_grad=True), torch.tensor(Q[:, 3])
    (co.sqrt(co.PSD(co.opaque(co.Dense(A))), TIGHT) @ b @ torch.tensor(W[:, 0])).backward()
    r = np.sqrt(values)
    D = 1 / (r[:, None] + r)  # the divided differences of a root
    np.testing.assert_allclose(
        A.grad.numpy(), Q @ (D * (Q.T @ np.outer(W[:, 0], Q[:, 3]) @ Q)) @ Q.T, atol=1e-10
    )


def test_derivatives_that_did_not_converge_warn() -> None:
    d = torch.logspace(0, 6, 300, dtype=torch.float64)
    # an eigenvector: one step
    theta, easy = (d.clone().requires_grad_(True), torch.eye(300, dtype=torch.float64)[0])
    A = co.opaque(co.PSD(co.Diagonal(theta)))
    with pytest.warns(co.ConvergenceWarning, match="for a derivative"):
        (co.isqrt(A, co.Krylov(max_iters=20)) @ easy).sum().backward()
    with pytest.warns(co.ConvergenceWarning, match="for a derivative"):
        f = lambda b: co.isqrt(co.opaque(co.PSD(co.Diagonal(d))), co.Krylov(max_iters=20)) @ b
        torch.func.jvp(f, (easy,), (torch.ones_like(easy),))


def test_eigenvectors_that_are_no_basis_are_flagged() -> None:
    # one Jordan block
    A = torch.diag(torch.ones(N - 1, dtype=torch.float64), 1).requires_grad_(True)
    # which an exponential does not mind
    y = (co.exp(co.opaque(co.Dense(A)), co.Krylov()) @ torch.tensor(B[:, 0])).sum()
    with torch.no_grad():
        right = torch.func.grad(lambda A: (torch.matrix_exp(A) @ torch.tensor(B[:, 0])).sum())(A)
    np.testing.assert_allclose(torch.autograd.grad(y, A)[0].numpy(), right.numpy(), atol=1e-8)
    with pytest.warns(co.ConvergenceWarning, match="Krylov"):
        y = (
            co.apply(torch.exp, co.opaque(co.Dense(A)), co.Krylov()) @ torch.tensor(B[:, 0])
        ).real.sum()
    with pytest.warns(co.ConvergenceWarning, match="for a derivative"):
        torch.autograd.grad(y, A)


def test_exponentials_taken_in_parts_are_differentiated_in_parts() -> None:
    d = torch.linspace(-1200, 0, 300, dtype=torch.float64, requires_grad=True)
    b = torch.tensor(np.cos(np.arange(300.0)))
    y = co.exp(co.opaque(co.SelfAdjoint(co.Diagonal(d))), co.Krylov()) @ b
    (found,) = torch.autograd.grad(y.sum(), d)
    np.testing.assert_allclose(found.numpy(), (torch.exp(d.detach()) * b).numpy(), atol=1e-7)


def test_operators_too_large_to_be_formed_have_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("colinear.functions.spectrum.order.largest_dense", lambda A: 5)
    t = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    L = co.opaque(co.SelfAdjoint(co.Dense(torch.tensor(start("definite")))))
    F = co.exp(-t * L)
    assert "Krylov" in str(co.explain(co.exp, -t * L))
    (F @ torch.tensor(B[:, 0])).sum().backward()
    values, Q = np.linalg.eigh(start("definite"))
    right = -(Q @ (values * np.exp(-0.3 * values) * (Q.T @ B[:, 0]))).sum()
    np.testing.assert_allclose(float(t.grad), right, rtol=1e-6)


def test_forward_mode_of_jax_follows_b_alone() -> None:
    A = co.PSD(co.opaque(co.Dense(jnp.asarray(start("definite")))))
    f = jax.vmap(lambda b: co.exp(A, TIGHT) @ b)
    moved = jax.jvp(f, (jnp.asarray(B.T),), (jnp.asarray(DB.T),))[1]
    values, Q = np.linalg.eigh(start("definite"))
    np.testing.assert_allclose(moved.T, Q @ (np.exp(values)[:, None] * (Q.T @ DB)), rtol=1e-8)


def test_third_derivatives_are_refused() -> None:
    f = phi(backends.get("torch"), "exp", "definite")
    with pytest.raises(NotImplementedError, match="no third ones"):
        third = torch.func.grad(torch.func.grad(torch.func.grad(f)))
        third(torch.tensor(0.0, dtype=torch.float64))
