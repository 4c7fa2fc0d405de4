"""Repeated values, gauges, refusals, failures, and derivatives of what iterations find."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import colinear as co
from colinear import backends

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
jnp = jax.numpy

RNG = np.random.default_rng(3)
N = 6
G = RNG.standard_normal((N, N))
Q = np.linalg.qr(G)[0]
W = RNG.standard_normal((N, N))
E = RNG.standard_normal((N, N))
SYMMETRIC = (E + E.T) / 2
REPEATED = Q @ np.diag([1.0, 1.0, 1.0, 2.0, 3.0, 3.0]) @ Q.T


def gradient(framework: str, f: Any, A: np.ndarray) -> np.ndarray:
    """The gradient of f(xp, matrix), a real number."""
    xp = backends.get(framework)
    if framework == "torch":
        leaf = torch.tensor(A, requires_grad=True)
        f(xp, leaf).backward()
        return leaf.grad.numpy()
    return np.asarray(jax.grad(lambda A: f(xp, A))(jnp.asarray(A))).conj()


def slope(f: Any, A: np.ndarray, D: np.ndarray, h: float = 1e-4) -> float:
    """The derivative of f(numpy, A) along D, by differences of fourth order."""
    xp = backends.get("numpy")
    at = [float(f(xp, A + k * h * D)) for k in (-2, -1, 1, 2)]
    return (at[0] - 8 * at[1] + 8 * at[2] - at[3]) / (12 * h)


def along(gradient: np.ndarray, D: np.ndarray) -> float:
    return float(np.sum(gradient.conj() * D).real)


def eigh(A: Any) -> Any:
    return co.eig(co.SelfAdjoint(A))


def projector(xp: Any, V: Any) -> Any:
    return xp.matmul(V, xp.conj(xp.matrix_transpose(V)))


# ---------------------------------------------------------------------------------------------------- repeated values

SMOOTH = {
    "sum of a cluster": lambda xp, A: xp.sum(eigh(A)[0][:3]),
    "sum of a function": lambda xp, A: xp.sum(xp.sin(eigh(A)[0])),
    "projector of a cluster": lambda xp, A: xp.sum(
        projector(xp, eigh(A)[1].to_dense()[:, :3]) * xp.asarray(W)
    ),
    "exp": lambda xp, A: xp.sum(co.exp(co.SelfAdjoint(A)).to_dense() * xp.asarray(W)),
    "sqrt": lambda xp, A: xp.sum(co.sqrt(co.PSD(A)).to_dense() * xp.asarray(W)),
    "logdet": lambda xp, A: co.logdet(co.PSD(A)),
    "nuclear norm": lambda xp, A: co.norm(A, "nuc"),
    "pinv": lambda xp, A: xp.sum(co.pinv(A).to_dense() * xp.asarray(W)),
    "projector of singular vectors": lambda xp, A: xp.sum(
        projector(xp, co.svd(A)[0].to_dense()[:, :2]) * xp.asarray(W)
    ),
}
ROUGH = {
    "the largest eigenvalue": lambda xp, A: co.eigmax(co.SelfAdjoint(A)),
    "one eigenvector": lambda xp, A: xp.sum(eigh(A)[1].to_dense()[:, 0] ** 2 * xp.asarray(W[0])),
    "half a cluster": lambda xp, A: xp.sum(eigh(A)[0][:2] ** 2),
    "2-norm": lambda xp, A: co.norm(A, 2),
    "one singular vector": lambda xp, A: xp.sum(
        co.svd(A)[0].to_dense()[:, 0] ** 2 * xp.asarray(W[0])
    ),
}


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_functions_that_need_no_basis_are_right_at_repeated_eigenvalues(
    name: str, framework: str
) -> None:
    f = SMOOTH[name]
    found = along(gradient(framework, f, REPEATED), SYMMETRIC)
    np.testing.assert_allclose(found, slope(f, REPEATED, SYMMETRIC), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ROUGH)
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_functions_of_the_basis_give_nan_and_say_why(name: str, framework: str) -> None:
    with pytest.warns(co.DerivativeWarning, match="values repeat"):
        found = gradient(framework, ROUGH[name], REPEATED)
        jax.effects_barrier()
    assert np.isnan(found).any()


def second(framework: str, f: Any) -> float:
    """The second derivative of f(xp, A) along SYMMETRIC, backwards over backwards."""
    xp = backends.get(framework)
    A, D = xp.asarray(REPEATED), xp.asarray(SYMMETRIC)
    if framework == "jax":
        return float(jax.grad(jax.grad(lambda t: f(xp, A + t * D)))(0.0))
    t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    first = torch.autograd.grad(f(xp, A + t * D), t, create_graph=True)[0]
    return float(torch.autograd.grad(first, t)[0])


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize("name", ["exp", "sqrt", "apply", "logdet"])
def test_functions_of_the_matrix_have_second_derivatives_at_repeated_eigenvalues(
    name: str, framework: str
) -> None:
    def tanh(x: Any) -> Any:
        e = backends.namespace_of(x).exp(-2 * x)
        return (1 - e) / (1 + e)

    f = {
        **SMOOTH,
        "apply": lambda xp, A: xp.sum(co.apply(tanh, co.SelfAdjoint(A)).to_dense() * xp.asarray(W)),
    }[name]
    xp, h = backends.get("numpy"), 1e-3
    at = [float(f(xp, REPEATED + k * h * SYMMETRIC)) for k in (-2, -1, 0, 1, 2)]
    wanted = (-at[0] + 16 * at[1] - 30 * at[2] + 16 * at[3] - at[4]) / (12 * h**2)
    np.testing.assert_allclose(second(framework, f), wanted, rtol=1e-6)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_repeated_eigenvalues_themselves_have_no_second_derivatives(framework: str) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        found = second(framework, lambda xp, A: xp.sum(eigh(A)[0] ** 2))
        jax.effects_barrier()
    assert np.isnan(found)
    assert any("no second derivatives" in str(warning.message) for warning in seen)


def test_functions_of_phases_give_nan_and_say_why() -> None:
    H = G + 1j * W + (G + 1j * W).conj().T
    with pytest.warns(co.DerivativeWarning, match="phases"):
        found = gradient("torch", lambda xp, A: xp.sum(xp.real(eigh(A)[1].to_dense())), H)
    assert np.isnan(found).any()
    magnitudes = lambda xp, A: xp.sum(xp.abs(eigh(A)[1].to_dense()) ** 2 * xp.asarray(W))
    D = E + 1j * E.T + (E + 1j * E.T).conj().T
    np.testing.assert_allclose(
        along(gradient("torch", magnitudes, H), D), slope(magnitudes, H, D), rtol=1e-6
    )


def test_forward_tangents_of_a_cluster_are_right_in_their_sum_and_warn() -> None:
    A, D = torch.tensor(REPEATED), torch.tensor(SYMMETRIC)
    with pytest.warns(co.DerivativeWarning, match="right in sums"):
        _, moved = torch.func.jvp(lambda A: eigh(A)[0], (A,), (D,))
    np.testing.assert_allclose(
        float(moved[:3].sum()), slope(SMOOTH["sum of a cluster"], REPEATED, SYMMETRIC), rtol=1e-7
    )


def test_zero_singular_values_do_not_spoil_what_does_not_need_them() -> None:
    L = G[:, :2]
    cubes = lambda xp, L: xp.sum(co.svd(xp.matmul(L, xp.asarray(W[:2])))[1] ** 3)
    np.testing.assert_allclose(
        along(gradient("torch", cubes, L), E[:, :2]), slope(cubes, L, E[:, :2]), rtol=1e-7
    )
    with pytest.warns(co.DerivativeWarning):
        found = gradient("torch", lambda xp, L: co.norm(xp.matmul(L, xp.asarray(W[:2])), "nuc"), L)
    assert np.isnan(found).any()


def test_eigenvectors_of_any_matrix_keep_their_norm_and_phase() -> None:
    A = G + np.diag(3.0 * np.arange(N))
    f = lambda xp, A: xp.sum(xp.real(co.eig(A)[1].to_dense()) * xp.asarray(W))
    for framework in ("torch", "jax"):
        np.testing.assert_allclose(
            along(gradient(framework, f, A), E), slope(f, A, E), rtol=1e-6, atol=1e-7
        )
    norms = gradient("torch", lambda xp, A: xp.sum(xp.abs(co.eig(A)[1].to_dense()) ** 2), A)
    np.testing.assert_allclose(norms, 0, atol=1e-10)


# ---------------------------------------------------------------------------------------------------- by iteration


def hidden(A: Any) -> Any:
    return co.opaque(co.Dense(A))


def squares(xp: Any, X: Any) -> Any:
    X = X.to_dense()
    return xp.sum(xp.abs(X) ** 2 * xp.asarray(W[: X.shape[-2], : X.shape[-1]]))


def _lanczos(xp: Any, A: Any) -> Any:
    values, V = co.eig(
        co.SelfAdjoint(hidden(A + xp.matrix_transpose(A))), 2, "LA", co.Lanczos(tol=1e-12)
    )
    return xp.sum(values * xp.asarray([1.0, 2.0])) + squares(xp, V)


def _lobpcg(xp: Any, A: Any) -> Any:
    values, V = co.eig(
        co.SelfAdjoint(hidden(A + xp.matrix_transpose(A))), 2, "SA", co.LOBPCG(tol=1e-11)
    )
    return xp.sum(values * xp.asarray([1.0, 2.0])) + squares(xp, V)


def _arnoldi(xp: Any, A: Any) -> Any:
    values, V = co.eig(hidden(A), 2, "LM", co.Arnoldi(tol=1e-12))
    return xp.sum(xp.abs(values) * xp.asarray([1.0, 2.0])) + squares(xp, V)


def _golub_kahan(xp: Any, A: Any) -> Any:
    U, s, V = co.svd(hidden(A), 2, co.GolubKahan(tol=1e-12))
    return xp.sum(s * xp.asarray([1.0, 2.0])) + squares(xp, U) + squares(xp, V)


def _randomized(xp: Any, A: Any) -> Any:
    U, s, V = co.svd(hidden(A), 2, co.RandomizedSVD(power_iterations=25))
    return xp.sum(s * xp.asarray([1.0, 2.0])) + squares(xp, U) + squares(xp, V)


def _solved(method: Any) -> Any:
    return lambda xp, A: xp.sum(co.solve(hidden(A), xp.asarray(W[0]), method) ** 2)


ITERATED = {
    "Lanczos": _lanczos,
    "LOBPCG": _lobpcg,
    "Arnoldi": _arnoldi,
    "GolubKahan": _golub_kahan,
    "RandomizedSVD": _randomized,
    "GMRES": _solved(co.GMRES(tol=1e-13)),
    "BiCGSTAB": _solved(co.BiCGSTAB(tol=1e-13)),
    "LSQR": lambda xp, A: xp.sum(
        co.lstsq(hidden(A[:, :4]), xp.asarray(W[0]), co.LSQR(tol=1e-13)) ** 2
    ),
    "LSMR of deficient rank": lambda xp, A: xp.sum(
        co.lstsq(
            hidden(xp.matmul(A[:, :2], xp.asarray(W[:2]))), xp.asarray(W[0]), co.LSMR(tol=1e-13)
        )
        ** 2
    ),
}
START = G + np.diag(4.0 * np.arange(1, N + 1))


@pytest.mark.parametrize("name", ITERATED)
def test_what_iterations_find_has_the_derivatives_of_the_equation_in_torch(name: str) -> None:
    f, xp = ITERATED[name], backends.get("torch")
    wanted = slope(f, START, E)
    np.testing.assert_allclose(along(gradient("torch", f, START), E), wanted, rtol=1e-5, atol=1e-6)
    line = lambda t: f(xp, torch.tensor(START) + t * torch.tensor(E))
    zero, one = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
    np.testing.assert_allclose(
        float(torch.func.jvp(line, (zero,), (one,))[1]), wanted, rtol=1e-5, atol=1e-6
    )
    first = lambda t: slope(f, START + t * E, E)
    second = float(torch.func.jvp(torch.func.grad(line), (zero,), (one,))[1])
    np.testing.assert_allclose(second, (first(1e-3) - first(-1e-3)) / 2e-3, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["Lanczos", "Arnoldi", "GolubKahan", "LSQR"])
def test_what_iterations_find_has_the_derivatives_of_the_equation_in_jax(name: str) -> None:
    f, xp = ITERATED[name], backends.get("jax")
    line = lambda t: f(xp, jnp.asarray(START) + t * jnp.asarray(E))
    both = jax.jit(lambda t: (jax.grad(line)(t), jax.jvp(line, (t,), (1.0,))[1]))(0.0)
    np.testing.assert_allclose(both, slope(f, START, E), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["LSQR"])
def test_solutions_by_iteration_have_second_derivatives_in_jax(name: str) -> None:
    f, xp = ITERATED[name], backends.get("jax")
    second = jax.jit(jax.grad(jax.grad(lambda t: f(xp, jnp.asarray(START) + t * jnp.asarray(E)))))(
        0.0
    )
    first = lambda t: slope(f, START + t * E, E)
    np.testing.assert_allclose(second, (first(1e-3) - first(-1e-3)) / 2e-3, rtol=1e-3, atol=1e-6)


# ---------------------------------------------------------------------------------------------------- refusals and failures


def test_rank_refuses_to_be_differentiated() -> None:
    with pytest.raises(NotImplementedError, match="whole number"):
        gradient("torch", lambda xp, A: co.rank(A).double(), G)
    with pytest.raises(NotImplementedError, match="whole number"):
        jax.grad(lambda A: 1.0 * co.rank(A))(jnp.asarray(G))
    assert int(co.rank(torch.tensor(G))) == N


def test_random_projections_that_have_not_converged_warn() -> None:
    with pytest.warns(co.DerivativeWarning, match="power_iterations"):
        gradient(
            "torch",
            lambda xp, A: xp.sum(
                co.svd(hidden(A), 2, co.RandomizedSVD(oversampling=0, power_iterations=0))[1]
            ),
            G,
        )


def test_nullspaces_are_differentiated_in_jax_where_values_can_be_seen() -> None:
    f = lambda xp, A: xp.sum(projector(xp, co.nullspace(A[:2]).to_dense()) * xp.asarray(W))
    np.testing.assert_allclose(along(gradient("jax", f, G), E), slope(f, G, E), rtol=1e-8)
    line = lambda t: f(backends.get("jax"), jnp.asarray(G) + t * jnp.asarray(E))
    np.testing.assert_allclose(jax.jvp(line, (0.0,), (1.0,))[1], slope(f, G, E), rtol=1e-8)
    with pytest.raises(co.BackendError, match="nullspace"):
        jax.jit(jax.grad(line))(0.0)


def test_whole_numbers_are_refused_by_name_of_their_dtype() -> None:
    with pytest.raises(TypeError, match="int"):
        jax.grad(lambda a: co.logdet(co.Dense(a)))(jnp.eye(3, dtype=int))
    with pytest.raises(RuntimeError, match="floating point"):
        torch.eye(3, dtype=torch.int64).requires_grad_(True)
    # an order is part of the structure, no leaf
    A = co.Permutation(jnp.array([1, 0, 2])) @ co.Dense(jnp.eye(3))
    assert type(jax.grad(lambda A: jnp.sum(A @ jnp.ones(3)))(A)) is type(A)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_failing_adjoint_solve_warns(framework: str) -> None:
    A, method = START @ START.T, co.CG(tol=1e-12, max_iters=2)

    def f(xp: Any, A: Any) -> Any:
        return xp.sum(
            co.solve(co.PSD(hidden(A)), xp.asarray(W[0]), method, on_failure="ignore") ** 2
        )

    with pytest.warns(co.ConvergenceWarning, match="solve for a derivative"):
        gradient(framework, f, A)
        jax.effects_barrier()


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_a_failing_tangent_solve_warns(framework: str) -> None:
    xp = backends.get(framework)
    A, easy = (
        co.opaque(co.PD(co.Diagonal(xp.asarray(np.logspace(0, 8, 100))))),
        xp.asarray(np.eye(100)[0]),
    )

    def line(t: Any) -> Any:  # the answer takes one iteration, its derivative a hundred
        return co.solve(A, easy + t * xp.asarray(np.ones(100)), co.CG(max_iters=30))

    with pytest.warns(co.ConvergenceWarning, match="solve for a derivative"):
        xp.jvp(line, xp.asarray(0.0, dtype=xp.float64), xp.asarray(1.0, dtype=xp.float64))
        jax.effects_barrier()


def test_a_failing_adjoint_solve_of_solve_and_logdet_warns_in_jax() -> None:
    A, b = jnp.asarray(np.logspace(0, 8, 60)), jnp.asarray(np.eye(60)[0])
    method = co.SLQ(probes=2, max_iters=20)

    def f(d: Any) -> Any:
        return jnp.sum(
            co.solve_and_logdet(co.opaque(co.PD(co.Diagonal(d))), b, method, on_failure="ignore")[0]
        )

    with pytest.warns(co.ConvergenceWarning, match="solve for a derivative"):
        jax.grad(f)(A)
        jax.effects_barrier()


def test_the_adjoint_solve_uses_the_adjoint_preconditioner_and_no_more_products_than_the_forward_one() -> (
    None
):
    n = 200
    A = torch.diag(torch.linspace(1, 1e4, n, dtype=torch.float64)) + 0.1 * torch.ones(
        n, n, dtype=torch.float64
    )
    b = torch.ones(n, dtype=torch.float64, requires_grad=True)
    products = 0

    def multiply(X: Any) -> Any:
        nonlocal products
        products += X.shape[-1]
        return A @ X

    operator = co.PSD(co.MatrixFree(multiply, (n, n), like=A))
    x = co.solve(operator, b, co.CG(tol=1e-10, preconditioner=co.Diagonal(1 / torch.diagonal(A))))
    forward, products = products, 0
    x.sum().backward()
    assert 0 < products <= 1.3 * forward + 5
    np.testing.assert_allclose(b.grad.numpy(), np.linalg.solve(A.numpy(), np.ones(n)), rtol=1e-6)


# ---------------------------------------------------------------------------------------------------- trees and second derivatives


def test_the_gradient_of_an_operator_is_an_operator_of_the_same_shape() -> None:
    def loss(A: Any) -> Any:
        return co.logdet(A)

    d, U = np.arange(2.0, 2.0 + N), G[:, :2]
    A = co.Diagonal(jnp.asarray(d)) + co.LowRank(jnp.asarray(U))
    found = jax.grad(loss)(A)
    assert jax.tree.structure(found) == jax.tree.structure(A)
    inverse = np.linalg.inv(np.diag(d) + U @ U.T)
    leaves = {leaf.shape: np.asarray(leaf) for leaf in jax.tree.leaves(found)}
    np.testing.assert_allclose(leaves[(N,)], np.diag(inverse), rtol=1e-9)
    np.testing.assert_allclose(leaves[(N, 2)], 2 * inverse @ U, rtol=1e-9)
    d, U = torch.tensor(d, requires_grad=True), torch.tensor(U, requires_grad=True)
    loss(co.Diagonal(d) + co.LowRank(U)).backward()
    np.testing.assert_allclose(d.grad.numpy(), np.diag(inverse), rtol=1e-9)
    np.testing.assert_allclose(U.grad.numpy(), leaves[(N, 2)], rtol=1e-9)


def test_parameters_of_kernels_and_products_are_leaves() -> None:
    X = torch.tensor(G[:, :2])
    scale = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def rbf(x: Any, y: Any, scale: Any) -> Any:
        return torch.exp(-((x[:, None] - y[None]) ** 2).sum(-1) / scale)

    K = co.PSD(co.Kernel(rbf, X, parameters=(scale,))) + 0.1 * co.Identity(N)
    co.logdet(K).backward()
    free = scale.detach().clone().requires_grad_(True)
    M = co.MatrixFree(lambda x, s: rbf(X, X, s) @ x, (N, N), like=X, parameters=(free,))
    co.logdet(co.PSD(M) + 0.1 * co.Identity(N)).backward()
    same = lambda s: np.linalg.slogdet(rbf(X, X, s).numpy() + 0.1 * np.eye(N))[1]
    wanted = (same(0.7 + 1e-5) - same(0.7 - 1e-5)) / 2e-5
    np.testing.assert_allclose([float(scale.grad), float(free.grad)], wanted, rtol=1e-6)


def test_numbers_of_python_can_be_differentiated_in_jax() -> None:
    D, b = jnp.asarray(START @ START.T), jnp.asarray(W[0])

    def f(scale: Any) -> Any:
        A = co.PD(
            co.MatrixFree(
                lambda X, s: s * (D @ X), (N, N), dtype=D.dtype, like=D, parameters=(scale,)
            )
        )
        return jnp.sum(co.solve(A, b, co.CG(tol=1e-12)))

    np.testing.assert_allclose(
        [jax.grad(f)(0.5), jax.jvp(f, (0.5,), (1.0,))[1]],
        -4 * jnp.sum(jnp.linalg.solve(D, b)),
        rtol=1e-8,
    )


@pytest.mark.parametrize("name", ["solve", "exp", "eig"])
def test_second_derivatives_are_linear_and_symmetric(name: str) -> None:
    xp = backends.get("torch")
    functions = {
        "solve": lambda A: xp.sum(
            co.solve(hidden(A), torch.tensor(W[0]), co.GMRES(tol=1e-13)) ** 3
        ),
        "exp": lambda A: xp.sum(co.exp(co.SelfAdjoint(A + A.mT)).to_dense() * torch.tensor(W)),
        "eig": lambda A: xp.sum(xp.abs(co.eig(A)[1].to_dense()) ** 2 * torch.tensor(W)),
    }
    A, (D, F) = torch.tensor(START / 6), torch.tensor(np.stack([E, W]))
    second = lambda D: torch.func.jvp(torch.func.grad(functions[name]), (A,), (D,))[1]
    HD, HF, both = second(D), second(F), second(2 * D - 3 * F)  # a warning would be an error
    size = float(both.abs().max())
    np.testing.assert_allclose(both.numpy(), (2 * HD - 3 * HF).numpy(), atol=1e-9 * size)
    np.testing.assert_allclose(float((F * HD).sum()), float((D * HF).sum()), rtol=1e-8)
