"""f(A) b by Krylov spaces: right to its tolerance, or flagged, and never through the matrix."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg as sla

import colinear as co
from colinear import backends
from colinear.info import recording
from colinear.status import Status
from colinear.testing import forbid_dense

D = np.linspace(0.1, 2.0, 400)
FUNCTIONS: dict[str, tuple[Any, Any]] = {
    "exp": (co.exp, np.exp),
    "log": (co.log, np.log),
    "sqrt": (co.sqrt, np.sqrt),
    "isqrt": (co.isqrt, lambda x: x**-0.5),
    "power": (lambda A, m: co.power(A, 0.3, m), lambda x: x**0.3),
    "apply": (lambda A, m: co.apply(lambda x: 1 / (1 + x), A, m), lambda x: 1 / (1 + x)),
}


@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_of_positive_operators(name: str, backend: str, rng: np.random.Generator) -> None:
    xp, (f, g) = backends.get(backend), FUNCTIONS[name]
    A = co.opaque(co.PSD(co.Diagonal(xp.asarray(D))))
    F = f(A, co.Krylov())
    assert type(F).__name__ == "FunctionOf" and F.isa(co.SelfAdjoint) and F.dtype == A.dtype
    B = rng.standard_normal((400, 3))
    B[:, 1] = 0
    Y = F @ xp.asarray(B)
    np.testing.assert_allclose(xp.to_numpy(Y), g(D)[:, None] * B, atol=2e-7)
    assert Y.dtype == A.dtype and (F @ xp.asarray(B[:, 0])).shape == (400,)


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_of_general_operators(kind: str, rng: np.random.Generator) -> None:
    A = (
        rng.standard_normal((120, 120)) / 15
        + 3 * np.eye(120)
        + (1j * rng.standard_normal((120, 120)) / 15 if kind == "complex" else 0)
    )
    b = rng.standard_normal((120, 2))
    powers = (
        (lambda A, m: co.power(A, 0.3, m)),
        (lambda A: scipy.linalg.fractional_matrix_power(A, 0.3)),
    )
    cases = (
        (co.exp, scipy.linalg.expm),
        (co.log, scipy.linalg.logm),
        (co.sqrt, scipy.linalg.sqrtm),
        powers,
    )
    for f, g in cases:
        exact = g(A)
        F = f(co.opaque(A), co.Krylov())
        np.testing.assert_allclose(F @ b, exact @ b, atol=1e-6 * np.abs(exact @ b).max())
        np.testing.assert_allclose(F.T @ b, exact.T @ b, atol=1e-6 * np.abs(exact @ b).max())
        np.testing.assert_allclose(F.H @ b, exact.conj().T @ b, atol=1e-6 * np.abs(exact @ b).max())


def test_of_indefinite_operators_is_complex_where_the_principal_branch_is(
    rng: np.random.Generator,
) -> None:
    d = np.r_[-np.linspace(1, 2, 60), np.linspace(1, 2, 60)]
    b = rng.standard_normal(120)
    y = co.sqrt(co.opaque(co.Diagonal(d)), co.Krylov()) @ b
    np.testing.assert_allclose(y, np.sqrt(d.astype(complex)) * b, atol=1e-6)


def test_invariant_subspaces_are_exact(rng: np.random.Generator) -> None:
    b = rng.standard_normal(50)
    np.testing.assert_allclose(co.exp(co.opaque(np.eye(50)), co.Krylov()) @ b, np.e * b, rtol=1e-14)
    np.testing.assert_allclose(
        co.exp(co.opaque(co.SelfAdjoint(np.zeros((50, 50)))), co.Krylov()) @ b, b, rtol=1e-14
    )
    defective = np.zeros((3, 3))
    defective[0, 1] = defective[1, 2] = 1.0
    np.testing.assert_allclose(
        co.exp(co.opaque(defective), co.Krylov()) @ b[:3],
        scipy.linalg.expm(defective) @ b[:3],
        rtol=1e-12,
    )


def test_large_operators_are_never_formed(rng: np.random.Generator) -> None:
    n = 120
    T = sp.diags_array([-np.ones(n - 1), 2 * np.ones(n), -np.ones(n - 1)], offsets=[-1, 0, 1])
    L = sp.csr_array(sp.kron(T, sp.eye_array(n)) + sp.kron(sp.eye_array(n), T))
    b = rng.standard_normal(n * n)
    E = co.exp(-1.0 * co.PSD(co.Sparse(L)))
    np.testing.assert_allclose(E @ b, sla.expm_multiply(-L, b), atol=1e-7)
    assert co.explain(co.exp, co.Sparse(L)).rules == ["Krylov"]


def test_too_few_steps_are_flagged_and_the_estimate_is_honest(rng: np.random.Generator) -> None:
    d = np.linspace(1e-3, 1.0, 2000)
    b = rng.standard_normal((2000, 1))
    A = co.opaque(co.PSD(co.Diagonal(d)))
    for steps in (24, 48, 96):
        with recording() as reports:
            y = co.sqrt(A, co.Krylov(max_iters=steps, tol=1e-14)) @ b
        info = reports[-1]
        error = np.linalg.norm(y - np.sqrt(d)[:, None] * b) / np.linalg.norm(y)
        assert (
            info.status == Status.MAX_ITERATIONS
            and error / 20 < float(info.error[0]) < 1000 * error + 1e-13
        )
    with pytest.warns(co.ConvergenceWarning, match="MAX_ITERATIONS"):
        co.log(A, co.Krylov(max_iters=8)) @ b


# the eigenvalues of a string, of which the first is 1.1e-4
HEAT = 2 - 2 * np.cos(np.pi * np.arange(1, 301) / 301)


@pytest.mark.parametrize("t", [-1e3, -1e4, 80.0, 60j])
def test_exponentials_of_any_size(t: complex, rng: np.random.Generator) -> None:
    A = co.opaque(co.PSD(co.Diagonal(HEAT)))
    b = rng.standard_normal((300, 2))
    with recording() as reports:
        y = co.exp(t * A, co.Krylov()) @ b
    exact = np.exp(t * HEAT)[:, None] * b
    error = np.linalg.norm(y - exact, axis=0) / np.linalg.norm(exact, axis=0)
    assert (
        reports[-1].status == Status.SUCCESS
        and (error <= 1.5e-8).all()
        and (error <= 10 * reports[-1].error + 1e-12).all()
    )


def test_the_estimate_is_honest_for_smooth_vectors(rng: np.random.Generator) -> None:
    """Of which a Krylov space seems to say everything at once."""
    A = co.opaque(co.PSD(co.Diagonal(HEAT)))
    b = np.exp(-500 * HEAT) * rng.standard_normal(300) + 1e-9 * rng.standard_normal(300)
    for f, g in (
        (lambda A, m: co.exp(-500 * A, m), lambda x: np.exp(-500 * x)),
        (co.sqrt, np.sqrt),
        (co.isqrt, lambda x: x**-0.5),
    ):
        with recording() as reports:
            y = f(A, co.Krylov()) @ b
        error = np.linalg.norm(y - g(HEAT) * b) / np.linalg.norm(g(HEAT) * b)
        assert error <= 1.5e-8 or reports[-1].failed


def test_a_function_that_vanishes_is_not_believed() -> None:
    A = co.opaque(co.PSD(co.Diagonal(np.linspace(0.01, 1, 2000))))
    with recording() as reports:
        co.apply(lambda x: np.exp(-1e5 * x), A, co.Krylov(max_iters=40)) @ np.ones(2000)
    assert reports[-1].failed


def test_batches_and_jax(rng: np.random.Generator) -> None:
    jnp = pytest.importorskip("jax.numpy")
    A = rng.standard_normal((2, 30, 30))
    A = A + A.swapaxes(1, 2)
    b = rng.standard_normal((30, 2))
    exact = scipy.linalg.expm(A) @ b
    np.testing.assert_allclose(
        co.exp(co.opaque(co.SelfAdjoint(A)), co.Krylov()) @ b, exact, rtol=1e-7, atol=1e-5
    )
    np.testing.assert_allclose(
        co.exp(co.opaque(co.SelfAdjoint(jnp.asarray(A))), co.Krylov()) @ jnp.asarray(b),
        exact,
        atol=1e-4,
    )


def test_half_precision_is_accumulated_in_single(rng: np.random.Generator) -> None:
    d = np.linspace(0.1, 2.0, 200).astype(np.float16)
    y = co.exp(co.opaque(co.PSD(co.Diagonal(d))), co.Krylov()) @ np.ones(200, np.float16)
    assert y.dtype == np.float16
    np.testing.assert_allclose(y.astype(float), np.exp(d.astype(float)), rtol=5e-3)


# ---------------------------------------------------------------------------------------------------- cuts and poles

ROOTS: dict[str, Any] = {
    "sqrt": lambda A: co.sqrt(A, co.Krylov()),
    "isqrt": lambda A: co.isqrt(A, co.Krylov()),
    "log": lambda A: co.log(A, co.Krylov()),
    "power": lambda A: co.power(A, 0.3, co.Krylov()),
}
ON_THE_CUT = np.array([[-1.0, 2.0], [1.0, -0.5]])  # eigenvalues -2.19 and 0.69


@pytest.mark.parametrize("name", ROOTS)
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_real_operator_on_the_cut_is_one_matrix_for_real_and_complex_vectors(
    framework: str, name: str
) -> None:
    xp = backends.get(framework)
    S = ROOTS[name](co.Dense(xp.asarray(ON_THE_CUT)))
    matrix, x = xp.to_numpy(S.to_dense()), np.array([1.0, -2.0])
    for y in (x, x + 0j, x * (1 - 2j)):
        np.testing.assert_allclose(xp.to_numpy(S @ xp.asarray(y)), matrix @ y, atol=1e-12)
    values, V = np.linalg.eig(ON_THE_CUT)
    f = {
        "sqrt": np.sqrt,
        "isqrt": lambda z: 1 / np.sqrt(z),
        "log": np.log,
        "power": lambda z: z**0.3,
    }[name]
    np.testing.assert_allclose(matrix, V @ np.diag(f(values + 0j)) @ np.linalg.inv(V), atol=1e-12)


def test_a_real_operator_on_the_cut_takes_complex_vectors_by_parts_in_jax() -> None:
    jnp = pytest.importorskip("jax.numpy")
    S = co.sqrt(co.Dense(jnp.asarray(ON_THE_CUT, dtype=jnp.float32)), co.Krylov())
    y = S @ jnp.asarray([1.0 + 0j, 0.0], dtype=jnp.complex64)
    np.testing.assert_allclose(y, [0.34207 + 0.86797j, 0.28839 - 0.51477j], atol=1e-4)


def test_eigenvalues_of_a_complex_operator_on_the_cut_are_above_it() -> None:
    rng = np.random.default_rng(0)
    U = np.linalg.qr(rng.standard_normal((4, 4)) + 1j * rng.standard_normal((4, 4)))[0]
    d = np.array([-2.0, -1.0, 1.0, 1j])
    for f, exact in ((co.sqrt, np.sqrt), (co.log, np.log)):
        S = f(co.Dense((U * d) @ U.conj().T), co.Krylov()).to_dense()
        np.testing.assert_allclose(S, (U * exact(d)) @ U.conj().T, atol=1e-12)


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_a_pole_at_zero_is_singular(framework: str) -> None:
    xp = backends.get(framework)
    ones, x = xp.asarray(np.ones((2, 2), np.float32)), xp.asarray(np.array([1.0, 0.0], np.float32))
    with pytest.warns(co.ConvergenceWarning, match="SINGULAR"):
        co.isqrt(co.PSD(co.Dense(ones)), co.Krylov()) @ x
    if framework == "jax":
        return
    for f in (co.isqrt, co.log, lambda A, method: co.power(A, -0.5, method)):
        with pytest.warns(co.ConvergenceWarning, match="SINGULAR"):
            f(co.SelfAdjoint(co.Dense(ones)), co.Krylov()) @ x
        with pytest.warns(co.ConvergenceWarning, match="SINGULAR|NONFINITE|INACCURATE"):
            f(co.Dense(ones), co.Krylov()) @ x
    co.sqrt(co.PSD(co.Dense(ones)), co.Krylov()) @ x  # which exists


@pytest.mark.parametrize("name", ROOTS)
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_nilpotent_matrix_has_no_root_and_that_is_said(framework: str, name: str) -> None:
    xp = backends.get(framework)
    A = co.Dense(xp.asarray(np.array([[0.0, 1.0], [0.0, 0.0]])))
    with pytest.warns(co.ConvergenceWarning, match="SINGULAR|NONFINITE|INACCURATE"):
        ROOTS[name](A) @ xp.asarray(np.ones(2))


def test_an_error_that_rounding_near_a_pole_makes_is_estimated() -> None:
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.standard_normal((50, 50)))[0]
    for condition in (1e6, 1e12):
        d, b = np.geomspace(1 / condition, 1, 50), rng.standard_normal(50)
        A = (Q * d) @ Q.T
        with recording() as reports:
            y = co.isqrt(co.PSD(co.Dense((A + A.T) / 2)), co.Krylov()) @ b
        exact = (Q * d**-0.5) @ (Q.T @ b)
        error = np.linalg.norm(y - exact) / np.linalg.norm(exact)
        assert error <= 4 * reports[-1].error.max() <= 400 * error
        assert (reports[-1].status == Status.SUCCESS) == (condition == 1e6)


def test_a_complex_function_of_a_real_operator_does_not_lose_its_imaginary_part_silently() -> None:
    A = co.Dense(np.random.default_rng(0).standard_normal((5, 5)))
    with pytest.warns(co.ConvergenceWarning, match="give A as a complex operator"):
        co.apply(lambda z: 1j * z, A, co.Krylov()) @ np.ones(5)
    B = co.Dense(A.to_dense() + 0j)
    np.testing.assert_allclose(
        co.apply(lambda z: 1j * z, B, co.Krylov()) @ np.ones(5), 1j * (B @ np.ones(5)), atol=1e-9
    )


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_zero_column_beside_an_invariant_subspace_is_zero(framework: str) -> None:
    xp = backends.get(framework)
    A = co.Hadamard(co.Identity(2), co.Permutation([0, 1]))  # not known to be the identity
    X = xp.asarray(np.array([[1.0, 1j], [0, 0]]))
    np.testing.assert_array_equal(xp.to_numpy(co.isqrt(A, co.Krylov()) @ X), xp.to_numpy(X))
    np.testing.assert_allclose(co.isqrt(A, co.Krylov()).to_dense(), np.eye(2))


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_what_lies_outside_the_krylov_space_does_not_overflow_the_answer(framework: str) -> None:
    xp = backends.get(framework)
    # e_2 is an eigenvector
    M, X = (np.array([[2000.0, 0.0], [5.0, 1.0]]), np.array([[0.0, 0.0], [0.0, 1.0]]))
    for A in (co.Dense(xp.asarray(M)), co.SelfAdjoint(co.Dense(xp.asarray(np.diag(np.diag(M)))))):
        np.testing.assert_allclose(xp.to_numpy(co.exp(A, co.Krylov()) @ xp.asarray(X)), np.e * X)


@pytest.mark.parametrize("framework", ["numpy", "jax"])
def test_a_first_entry_at_the_pole_is_no_pole_of_the_whole(framework: str) -> None:
    xp = backends.get(framework)
    # its Krylov space from e_1 has T00 = 0
    M = scipy.linalg.block_diag([[0, 1], [1, 0]], np.eye(2)).astype(complex)
    B = np.eye(4, 2).astype(complex)
    Y = co.isqrt(co.SelfAdjoint(co.Dense(xp.asarray(M))), co.Krylov()) @ xp.asarray(B)
    np.testing.assert_allclose(xp.to_numpy(Y), np.linalg.inv(scipy.linalg.sqrtm(M)) @ B, atol=1e-9)


# What `Auto` makes of f(A): it decides when it knows how many columns there are.

LAPLACIAN = sp.csr_array(
    sp.kronsum(*[sp.diags_array([-1.0, 2.1, -1.0], offsets=[-1, 0, 1], shape=(21, 21))] * 2)
)
NAMED = {name: FUNCTIONS[name] for name in ("exp", "log", "sqrt", "isqrt", "power")}


def of_laplacian(g: Any) -> np.ndarray:
    values, Q = np.linalg.eigh(LAPLACIAN.toarray())
    return (Q * g(values)) @ Q.T


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("name", NAMED)
def test_few_columns_come_by_products(name: str, backend: str, rng: np.random.Generator) -> None:
    xp, (f, g) = backends.get(backend), FUNCTIONS[name]
    A = co.PSD(co.Sparse(LAPLACIAN)).to(backend=backend)
    b = rng.standard_normal(441)
    with forbid_dense(440 * 441), recording() as reports:
        F = f(A, None)
        y = xp.to_numpy(F @ xp.asarray(b))
    assert F.isa(co.SelfAdjoint) and F.dtype == A.dtype
    assert [info.method for info in reports] == ["Krylov"] and reports[0].matvecs < 120
    np.testing.assert_allclose(y, of_laplacian(g) @ b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_many_columns_entries_and_solves_come_by_the_matrix(backend: str) -> None:
    xp, E = backends.get(backend), of_laplacian(lambda x: np.exp(-x))
    A = -1.0 * co.PSD(co.Sparse(LAPLACIAN)).to(backend=backend)
    F, X = co.exp(A), np.random.default_rng(0).standard_normal((441, 441))
    with recording() as reports:
        np.testing.assert_allclose(xp.to_numpy(F @ xp.asarray(X)), E @ X, atol=1e-11)
    assert "Krylov" not in [info.method for info in reports]
    np.testing.assert_allclose(xp.to_numpy(F.to_dense()), E, atol=1e-12)
    np.testing.assert_allclose(xp.to_numpy(co.diag(F)), np.diag(E), atol=1e-12)
    x = co.solve(F, F @ xp.asarray(X[:, 0]))
    np.testing.assert_allclose(xp.to_numpy(x), X[:, 0], atol=1e-9)
    assert co.explain(co.exp, A).rules == ["Krylov"]
    assert co.explain(co.solve, F).rules == ["matrix_of_function", "Cholesky"]


def test_matrix_is_formed_once_and_is_not_written_to() -> None:
    F = co.exp(-1.0 * co.PSD(co.Sparse(LAPLACIAN)))
    E = F.to_dense()
    E[:] = 0
    with recording() as reports:
        assert F.to_dense()[0, 0] > 0.01 and (F @ np.ones(441)).shape == (441,)
    assert not reports and F.formed() is F.formed()
    copy = pickle.loads(pickle.dumps(co.power(co.PSD(co.Sparse(LAPLACIAN)), 0.5)))
    np.testing.assert_allclose(copy @ (copy @ np.ones(441)), LAPLACIAN @ np.ones(441), atol=1e-6)


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax", "jit"])
def test_matrix_is_formed_where_products_do_not_converge(
    backend: str, rng: np.random.Generator
) -> None:
    xp = backends.get("jax" if backend == "jit" else backend)
    d, b = np.logspace(-7, 0, 600), rng.standard_normal(600)
    Q = np.linalg.qr(rng.standard_normal((600, 600)))[0]
    M, b = (xp.asarray(x) for x in ((Q * d) @ Q.T, b))
    f = lambda M, b: co.log(co.PSD(co.Dense((M + M.T) / 2)), co.Auto(tol=1e-12)) @ b
    run = __import__("jax").jit(f) if backend == "jit" else f
    exact = (Q * np.log(d)) @ (Q.T @ xp.to_numpy(b))
    with recording() as reports:
        y = xp.to_numpy(run(M, b))
    assert backend == "jit" or Status.FELL_BACK in [info.status for info in reports]
    np.testing.assert_allclose(y, exact, atol=1e-7)


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_derivatives_of_few_columns(backend: str, rng: np.random.Generator) -> None:
    """The symmetric part is what a symmetric A can move along."""
    xp, b = backends.get(backend), rng.standard_normal(441)
    b = xp.asarray(b)

    def gradient(method: Any) -> np.ndarray:
        loss = lambda M: xp.sum((co.sqrt(co.PSD(co.Dense(M)), method) @ b) ** 2)
        M = xp.asarray(LAPLACIAN.toarray())
        if backend == "jax":
            import jax

            G = jax.jit(jax.grad(loss))(M)
        else:
            M.requires_grad_()
            loss(M).backward()
            G = M.grad
        return xp.to_numpy(G + G.T)

    np.testing.assert_allclose(gradient(None), gradient(co.Eigh()), atol=1e-6)


def test_a_matrix_formed_without_derivatives_does_not_stand_for_one_with_them():
    torch = pytest.importorskip("torch")
    S = torch.from_numpy(np.random.default_rng(0).standard_normal((450, 450)) / 50)
    S = (S + S.T).requires_grad_()
    X = torch.from_numpy(np.random.default_rng(1).standard_normal((450, 450)))
    F = co.exp(co.SelfAdjoint(co.Dense(S)))
    with torch.no_grad():
        formed = F @ X  # of many columns: by the matrix, which is kept
    product = F @ X
    torch.testing.assert_close(product, formed, rtol=1e-8, atol=1e-8)
    (found,) = torch.autograd.grad(product.sum(), S)
    (wanted,) = torch.autograd.grad((torch.linalg.matrix_exp(S) @ X).sum(), S)
    torch.testing.assert_close(found + found.T, wanted + wanted.T, rtol=1e-6, atol=1e-6)
