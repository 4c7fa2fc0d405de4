"""Functions of Kronecker products and sums, shifted and scaled: by the factors' eigenvectors, never through the matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg

import colinear as co

RNG = np.random.default_rng(0)
FUNCTIONS: dict[str, tuple[Any, Any]] = {
    "exp": (co.exp, np.exp),
    "log": (co.log, np.log),
    "sqrt": (co.sqrt, np.sqrt),
    "isqrt": (co.isqrt, lambda z: 1 / np.sqrt(z)),
    "power": (lambda A: co.power(A, 0.3), lambda z: z**0.3),
    "apply": (lambda A: co.apply(np.sin, A), np.sin),
}


def symmetric(n: int, is_complex: bool = False) -> np.ndarray:
    M = RNG.standard_normal((n, n)) + (1j * RNG.standard_normal((n, n)) if is_complex else 0)
    return (M + M.conj().T) / 2


def compositions(is_complex: bool) -> dict[str, co.LinearOperator]:
    S, T = co.SelfAdjoint(symmetric(4, is_complex)), co.SelfAdjoint(symmetric(3))
    product, total = co.Kronecker(S, T), co.KroneckerSum(S, T)
    return {
        "product": product,
        "sum": total,
        "multiple": -0.3 * product,
        "shifted product": product + 9.0 * co.Identity(12),
        "shifted sum": total + 0.5 * co.Identity(12),
        "shifted multiple": 2.0 * product + co.ScaledIdentity(0.3, 12),
    }


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("composition", compositions(False))
@pytest.mark.parametrize("name", FUNCTIONS)
def test_self_adjoint_factors_give_the_function_of_the_whole(
    name: str, composition: str, is_complex: bool
) -> None:
    (function, f), A = FUNCTIONS[name], compositions(is_complex)[composition]
    values, V = np.linalg.eigh(A.to_dense())
    X = function(A)
    exact = (V * f(values + 0j)) @ V.conj().T
    np.testing.assert_allclose(X.to_dense(), exact, atol=1e-12 * np.abs(exact).max())
    assert not isinstance(X, co.Dense)


def test_large_products_are_not_left_to_iterations() -> None:
    n = 80  # rows of a factor: 6400 of the whole, more than would be formed
    S, x = co.SelfAdjoint(symmetric(n)), RNG.standard_normal(n * n)
    A = co.Kronecker(S, S)
    assert co.explain(co.exp, A).rules[0] == "exp_factored_spectrum"
    values, V = np.linalg.eigh(S.to_dense())
    for B, shift, scale in ((A, 0.0, 1.0), (-0.01 * A + 3.0 * co.Identity(n * n), 3.0, -0.01)):
        inside = V.T @ x.reshape(n, n) @ V
        exact = V @ (np.cos(scale * np.outer(values, values) + shift) * inside) @ V.T
        y, info = co.apply(np.cos, B, info=True)
        np.testing.assert_allclose(y @ x, exact.ravel(), atol=1e-10)
        assert not info.failed
    assert type(co.exp(A, co.Krylov())).__name__ == "FunctionOf", "a method that is named is used"


@pytest.mark.parametrize("name", ["exp", "log", "sqrt", "isqrt"])
def test_other_factors_go_by_their_eigenvectors_if_these_are_well_conditioned(name: str) -> None:
    of_matrix = {"exp": scipy.linalg.expm, "log": scipy.linalg.logm, "sqrt": scipy.linalg.sqrtm}
    of_matrix["isqrt"] = lambda M: np.linalg.inv(scipy.linalg.sqrtm(M))
    V, W = RNG.standard_normal((4, 4)) + 3 * np.eye(4), RNG.standard_normal((3, 3)) + 3 * np.eye(3)
    A, B = (
        V @ np.diag([0.5, 1, 2, 3]) @ np.linalg.inv(V),
        W @ np.diag([0.7, 1.5, 2]) @ np.linalg.inv(W),
    )
    defective = 2 * np.eye(3) + np.eye(3, k=1)
    turning = np.array([[1.0, 2.0], [-2.0, 1.0]])  # of which the eigenvectors are complex
    for factors, goes_by_factors in (
        ((A, B), True),
        ((A + 0j, B), True),
        ((A, defective), False),
        ((turning, B), False),
    ):
        X = FUNCTIONS[name][0](co.Kronecker(*map(co.Dense, factors)))
        exact = of_matrix[name](np.kron(*factors))
        np.testing.assert_allclose(X.to_dense(), exact, atol=1e-11 * np.abs(exact).max())
        assert isinstance(X, co.Dense) != goes_by_factors


@pytest.mark.parametrize("name", ["exp", "sqrt"])
def test_derivatives_in_torch_are_right_where_eigenvalues_repeat(name: str) -> None:
    torch = pytest.importorskip("torch")
    S = torch.tensor(np.diag([1.0, 1.0, 2.0]) + 0.0, requires_grad=True)
    T = torch.tensor(symmetric(2) + 4 * np.eye(2), requires_grad=True)
    x = torch.tensor(RNG.standard_normal(6))

    def loss(S: Any, T: Any) -> Any:
        S, T = (co.SelfAdjoint(co.Dense((M + M.T) / 2)) for M in (S, T))
        A = (
            -0.2 * co.Kronecker(S, T)
            if name == "exp"
            else co.Kronecker(S, T) + 3.0 * co.Identity(6)
        )
        return ((FUNCTIONS[name][0](A) @ x) ** 2).sum()

    assert torch.autograd.gradcheck(loss, (S, T), eps=1e-6, atol=1e-6)


def test_derivatives_in_jax_inside_of_jit() -> None:
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    S, T, x = (
        jnp.asarray(M, dtype=jnp.float32)
        for M in (np.diag([1.0, 1.0, 2.0]), symmetric(2), RNG.standard_normal(6))
    )

    def loss(S: Any) -> Any:
        factors = (co.SelfAdjoint(co.Dense((M + M.T) / 2)) for M in (S, T))
        return jnp.sum((co.exp(co.Kronecker(*factors)) @ x) ** 2)

    def reference(S: Any) -> Any:
        return jnp.sum((jax.scipy.linalg.expm(jnp.kron((S + S.T) / 2, T)) @ x) ** 2)

    np.testing.assert_allclose(
        jax.jit(jax.grad(loss))(S), jax.grad(reference)(S), rtol=2e-3, atol=1e-3
    )
