"""Eigenvalues of tridiagonal matrices, what is computed through them (Poisson's equation), and the order of values that tie."""

from __future__ import annotations

import numpy as np
import pytest

import colinear as co
from colinear import backends
from colinear.functions.spectrum.order import by_key
from colinear.testing import forbid_dense

BACKENDS = ("numpy", "torch", "jax")


def second_difference(n, xp=None, sign=-1.0, dtype="float64"):
    xp = xp or backends.get("numpy")
    beside = xp.asarray(np.full(n - 1, sign).astype(dtype))
    return co.SelfAdjoint(co.Tridiagonal(beside, xp.asarray(np.full(n, 2.0).astype(dtype)), beside))


def check_pairs(A, tol=1e-12, **asked):
    xp = A.xp
    values, vectors = co.eig(A, **asked)
    M, w, V = (xp.to_numpy(x) for x in (A.to_dense(), values, vectors.to_dense()))
    np.testing.assert_allclose(M @ V, V * w[..., None, :], atol=tol)
    np.testing.assert_allclose(np.linalg.norm(V, axis=-2), 1, rtol=tol)
    return w, V


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_constant_diagonals_have_the_sines_for_eigenvectors(n, sign):
    A = second_difference(n, sign=sign)
    assert co.explain(co.eig, A).rules == ["eig_sines"]
    with forbid_dense(max(n * n, 2)):
        values, vectors = co.eig(A)
    assert vectors.isa(co.Unitary)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(A.to_dense()), rtol=1e-12)
    check_pairs(A)


def test_small_eigenvalues_of_the_laplacian_are_found_without_cancellation():
    n = 100_000
    values = co.eig(second_difference(n))[0]
    assert values[0] == pytest.approx(4 * np.sin(np.pi / (2 * n + 2)) ** 2, rel=1e-14)


@pytest.mark.parametrize("c, b", [(0.9, 1.3), (-0.9, 1.3), (1 + 1j, 0.7 + 1j)])
def test_constant_diagonals_need_not_be_symmetric(c, b):
    n = 8
    A = co.Tridiagonal(np.full(n - 1, c), np.full(n, 2.0 + 0 * c), np.full(n - 1, b))
    assert co.explain(co.eig, A).rules == ["eig_sines"]
    w, _ = check_pairs(A)
    expected = np.linalg.eigvals(A.to_dense())
    np.testing.assert_allclose(
        w, expected[by_key(backends.get("numpy"), expected, "LM")], atol=1e-12
    )
    # no good basis of eigenvectors
    far = co.Tridiagonal(np.full(99, 1e-3), np.full(100, 2.0), np.full(99, 1e3))
    assert "eig_sines" not in co.explain(co.eig, far).rules


def test_hermitian_constant_diagonals_have_unitary_eigenvectors():
    A = co.SelfAdjoint(co.Tridiagonal(np.full(6, 1 + 2j), np.full(7, 3.0 + 0j), np.full(6, 1 - 2j)))
    w, V = check_pairs(A)
    np.testing.assert_allclose(w, np.linalg.eigvalsh(A.to_dense()), atol=1e-12)
    np.testing.assert_allclose(V.conj().T @ V, np.eye(7), atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype, batch", [("float32", (2,)), ("complex128", ())])
def test_any_self_adjoint_tridiagonal(backend, dtype, batch):
    rng, n, xp = np.random.default_rng(0), 9, backends.get(backend)
    e = rng.standard_normal((*batch, n - 1)) + (
        1j * rng.standard_normal((*batch, n - 1)) if "complex" in dtype else 0
    )
    d = rng.standard_normal((*batch, n))
    A = co.SelfAdjoint(co.Tridiagonal(*(xp.asarray(x.astype(dtype)) for x in (e, d, e.conj()))))
    assert co.explain(co.eig, A).rules == ["eig_tridiagonal"]
    tol = 1e-5 if dtype == "float32" else 1e-12
    w, V = check_pairs(A, tol)
    assert xp.dtype_name(co.eig(A)[1].dtype) == dtype and w.dtype.itemsize == (
        4 if dtype == "float32" else 8
    )
    np.testing.assert_allclose(w, np.linalg.eigvalsh(xp.to_numpy(A.to_dense())), atol=tol)
    np.testing.assert_allclose(
        np.swapaxes(V, -1, -2).conj() @ V, np.broadcast_to(np.eye(n), V.shape), atol=tol
    )


@pytest.mark.parametrize("which", ["LM", "SM", "LA", "SA", "LR", "SR"])
def test_few_pairs_of_a_tridiagonal_are_those_asked_for(which):
    rng = np.random.default_rng(1)
    e, d = rng.standard_normal(29), rng.standard_normal(30)
    A = co.SelfAdjoint(co.Tridiagonal(e, d, e))
    for k in (0, 1, 4, 20, 30):
        w, _ = check_pairs(A, k=k, which=which)
        np.testing.assert_allclose(w, co.eig(co.SelfAdjoint(A.to_dense()), k, which)[0], atol=1e-12)


def test_a_false_claim_of_symmetry_is_noticed():
    A = co.SelfAdjoint(co.Tridiagonal(np.ones(3), np.ones(4), np.zeros(3)))
    assert not co.eig(A, info=True)[1].converged
    B = co.SelfAdjoint(co.Tridiagonal(np.arange(1.0, 4), np.ones(4), np.zeros(3)))
    assert not co.eig(B, info=True)[1].converged


def test_products_of_equal_sign_make_a_tridiagonal_symmetrisable():
    rng = np.random.default_rng(2)
    lower, upper = rng.uniform(0.5, 2, (2, 11))
    A = co.Tridiagonal(lower, rng.standard_normal(12), upper)
    assert co.explain(co.eig, A).rules == ["eig_tridiagonal"]
    w, _ = check_pairs(A, 1e-11)
    assert not w.imag.any()
    mixed = co.Tridiagonal(lower, rng.standard_normal(12), -upper)
    assert co.explain(co.eig, mixed).rules == ["Eig"]
    check_pairs(mixed, 1e-11)


@pytest.mark.parametrize("backend", BACKENDS)
def test_poisson_is_solved_by_sine_transforms(backend):
    xp, n = backends.get(backend), 24
    T = second_difference(n, xp)
    G = co.KroneckerSum(T, T)
    dense = np.kron(xp.to_numpy(T.to_dense()), np.eye(n)) + np.kron(
        np.eye(n), xp.to_numpy(T.to_dense())
    )
    b = np.random.default_rng(3).standard_normal(n * n)
    with forbid_dense(n * n + 1):
        x = co.solve(G, xp.asarray(b))
        twice = co.solve(co.Product(G, G), xp.asarray(b))
        shifted = co.solve(G + co.ScaledIdentity(0.5, n * n), xp.asarray(b))
        logdet = co.logdet(G)
    np.testing.assert_allclose(xp.to_numpy(x), np.linalg.solve(dense, b), rtol=1e-9)
    np.testing.assert_allclose(xp.to_numpy(twice), np.linalg.solve(dense @ dense, b), rtol=1e-7)
    np.testing.assert_allclose(
        xp.to_numpy(shifted), np.linalg.solve(dense + 0.5 * np.eye(n * n), b), rtol=1e-9
    )
    assert float(logdet) == pytest.approx(np.linalg.slogdet(dense)[1], rel=1e-12)
    assert "inv_kronecker_sum_power" in co.explain(co.solve, co.Product(G, G)).rules


def test_a_singular_grid_is_reported_and_a_hard_one_checked():
    n = 20
    T = second_difference(n)
    singular = co.KroneckerSum(T, T) - co.ScaledIdentity(2 * co.eig(T)[0][0], n * n)
    info = co.solve(singular, np.ones(n * n), info=True)[1]
    assert not info.converged and info.children[0].status is co.Status.SINGULAR
    single = second_difference(200, dtype="float32")
    _, info = co.solve(co.KroneckerSum(single, single), np.ones(200 * 200, np.float32), info=True)
    assert info.residual is not None and (
        info.converged == (float(np.max(info.residual)) <= 3.5e-4)
    )
    with pytest.warns(co.ConvergenceWarning):
        co.solve(co.KroneckerSum(T, T), np.full(n * n, np.nan))


@pytest.mark.parametrize("power", [1, 2, 3])
def test_systems_on_a_grid_are_solved_by_lines(power):
    rng, m, n = np.random.default_rng(6), 5, 7
    e = rng.uniform(-1, 1, m - 1)
    first = co.PSD(co.Tridiagonal(e, rng.uniform(2, 3, m), e))
    G = co.KroneckerSum(first, co.PSD(second_difference(n)))
    A = co.Product(*[G] * power)
    dense = np.linalg.matrix_power(G.to_dense(), power)
    assert co.explain(co.solve, A).rules[0] == "solve_by_lines"
    for b in (
        np.ones(m * n),
        rng.standard_normal((m * n, 3)),
        rng.standard_normal((2, m * n, 1)),
        1j * rng.standard_normal(m * n),
    ):
        x = co.solve(A, b)
        np.testing.assert_allclose(x, np.linalg.solve(dense, b), rtol=1e-9)
        assert x.dtype == b.dtype
    assert co.solve(A, np.ones(m * n, np.float32)).dtype == np.float64
    assert float(np.max(co.solve(A, np.ones(m * n), info=True)[1].residual)) < 1e-12


def test_lines_that_are_not_positive_as_claimed_or_singular_are_left_to_eigenvectors():
    n = 6
    T = co.PSD(second_difference(n))
    # indefinite
    false = co.PSD(co.Tridiagonal(np.full(n - 1, 3.0), np.ones(n), np.full(n - 1, 3.0)))
    G = co.KroneckerSum(false, T)
    np.testing.assert_allclose(
        co.solve(G, np.ones(n * n)), np.linalg.solve(G.to_dense(), np.ones(n * n)), rtol=1e-9
    )
    zero = co.PSD(co.Tridiagonal(np.full(n - 1, 1e-20), np.full(n, 2e-20), np.full(n - 1, 1e-20)))
    # singular
    flat = co.PSD(co.Tridiagonal(np.full(3, -1.0), np.array([1.0, 2, 2, 1]), np.full(3, -1.0)))
    assert not co.solve(co.KroneckerSum(flat, zero), np.arange(4.0 * n), info=True)[1].converged


def test_functions_of_the_laplacian_go_through_sines():
    T = co.PSD(second_difference(12))
    root = co.sqrt(T)
    np.testing.assert_allclose((root @ root).to_dense(), T.to_dense(), atol=1e-12)
    assert any(isinstance(part, co.Sine) for part in root.operands)
    both = co.exp(co.KroneckerSum(T, T))
    np.testing.assert_allclose(both.to_dense(), np.kron(*[co.exp(T).to_dense()] * 2), atol=1e-12)


@pytest.mark.parametrize("transform", ["grad", "jit"])
def test_derivatives_and_traces_do_not_take_diagonals_for_constant(transform):
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def largest(d):
        return co.eigmax(co.SelfAdjoint(co.Tridiagonal(-jnp.ones(4), d, -jnp.ones(4))))

    d = jnp.full(5, 2.0)
    if transform == "jit":
        assert float(jax.jit(largest)(d)) == pytest.approx(2 + 2 * np.cos(np.pi / 6))
    else:
        np.testing.assert_allclose(
            jax.grad(largest)(d), np.sin(5 * np.pi * np.arange(1, 6) / 6) ** 2 / 3, rtol=1e-6
        )


def test_torch_gradients_reach_every_entry_of_constant_diagonals():
    torch = pytest.importorskip("torch")
    d = torch.full((5,), 2.0, dtype=torch.float64, requires_grad=True)
    e = -torch.ones(4, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(co.eigmax(co.SelfAdjoint(co.Tridiagonal(e, d, e))), d)
    np.testing.assert_allclose(
        gradient, np.sin(5 * np.pi * np.arange(1, 6) / 6) ** 2 / 3, rtol=1e-9
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("which", ["LM", "SM", "LR", "SR"])
def test_values_that_tie_but_for_rounding_come_in_one_order(backend, which):
    xp, rng, n = backends.get(backend), np.random.default_rng(4), 40
    angles, radii = np.linspace(0.1, 3, n), np.repeat(rng.uniform(1, 2, n // 2), 2)
    exact = np.concatenate([radii * np.exp(1j * angles), radii * np.exp(-1j * angles)])
    first = (np.abs(exact) if which[1] == "M" else exact.real) * (-1 if which[0] == "L" else 1)
    expected = exact[
        sorted(
            range(2 * n),
            key=lambda i: (round(first[i], 9), round(-exact[i].real, 9), -exact[i].imag),
        )
    ]
    for _ in range(1 if backend == "jax" else 3):
        noisy = rng.permutation(exact)
        noisy = noisy.real * (1 + 3e-16 * rng.standard_normal(2 * n)) + 1j * noisy.imag * (
            1 + 3e-16 * rng.standard_normal(2 * n)
        )
        order = xp.jit(lambda values: by_key(xp, values, which))(
            xp.asarray(np.stack([noisy, noisy]))
        )
        np.testing.assert_allclose(noisy[xp.to_numpy(order)[1]], expected, rtol=1e-12)


def test_a_tie_is_relative_and_a_long_chain_is_none():
    xp = backends.get("numpy")
    tiny = np.array([1, 1e-20, -1e-30])
    np.testing.assert_array_equal(tiny[by_key(xp, tiny, "SM")], [-1e-30, 1e-20, 1])
    near = np.array([1, -2 * (1 + 2e-16), 2, -1])
    np.testing.assert_allclose(near[by_key(xp, near, "LM")], [2, -2, 1, -1])
    rng = np.random.default_rng(5)
    chain = rng.permutation(np.linspace(1, 1 + 1e-9, 100_000)) * rng.choice([-1, 1], 100_000)
    assert (np.diff(np.abs(chain[by_key(xp, chain, "LM")])) <= 0).all()


def test_a_residual_at_the_level_of_rounding_is_not_refined_in_vain():
    """ΔΔ on 300 x 300 points has a condition number of 1e9: a smooth right side leaves a residual beyond 1e-12, which no refinement mends."""
    line = co.PSD(co.Tridiagonal(np.full(299, -1.0), np.full(300, 2.0), np.full(299, -1.0)))
    grid = co.KroneckerSum(line, line)
    t = np.linspace(0, 1, 302)[1:-1]
    b = np.multiply.outer(np.sin(np.pi * t), t * (1 - t)).reshape(-1)
    A = grid @ grid
    with co.testing.count_matvecs(A) as count:
        x, info = co.solve(A, b, co.Auto(tol=1e-12), info=True)
    assert info.status is co.Status.INACCURATE and info.residual.max() > 1e-12
    assert count.matvecs == 1  # a look at the residual
    s = np.sin(np.pi * np.outer(np.arange(1, 301), np.arange(1, 301)) / 301) * np.sqrt(2 / 301)
    values = 2 - 2 * np.cos(np.pi * np.arange(1, 301) / 301)
    exact = s @ ((s @ b.reshape(300, 300) @ s) / (values[:, None] + values) ** 2) @ s
    assert np.linalg.norm(x - exact.reshape(-1)) < 1e-10 * np.linalg.norm(exact)


@pytest.mark.parametrize("which", ["LM", "SM", "LR", "SR"])
def test_a_few_pairs_of_what_is_similar_to_a_symmetric_matrix_need_no_others(which):
    n, rng = 600, np.random.default_rng(3)
    upper = rng.random(n - 1) + 0.5
    lower = upper * np.where(np.arange(n - 1) % 2, 1.1, 1 / 1.1)  # D stays near I
    T = co.Tridiagonal(lower, rng.standard_normal(n), upper)
    beside = np.sqrt(lower * upper)
    exact = np.linalg.eigvalsh(np.diag(T.diag) + np.diag(beside, 1) + np.diag(beside, -1))
    order = {"LM": -np.abs(exact), "SM": np.abs(exact), "LR": -exact, "SR": exact}[which]
    with forbid_dense(20 * n):
        values, V = co.eig(T, 3, which)
    assert np.allclose(values, exact[np.argsort(order)[:3]])
    assert np.allclose(T @ V.to_dense(), V.to_dense() * values)
