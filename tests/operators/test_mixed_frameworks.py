"""Operators of one framework beside arrays of another: JAX takes NumPy's, the others say what to write."""

from __future__ import annotations

import numpy as np
import pytest

import colinear as co

M = np.array([[4.0, 1], [1, 3]])
b = np.array([1.0, 2.0])


def test_jax_operators_take_numpy_arrays_as_right_sides_and_operands():
    jnp = pytest.importorskip("jax.numpy")
    J = co.Dense(jnp.asarray(M))
    for ours, theirs in (
        (J @ b, M @ b),
        (b @ J, b @ M),
        (M @ J, M @ M),
        (J @ np.arange(2), M @ np.arange(2)),
        (co.solve(J, b), np.linalg.solve(M, b)),
        (co.solve(co.PD(J), b, co.CG(x0=b)), np.linalg.solve(M, b)),
        (J + M, 2 * M),
        (M - J, 0 * M),
        (J * M, M * M),
        (co.Kronecker(J, M), np.kron(M, M)),
        (co.Block([[J, M]]), np.hstack([M, M])),
        (co.LowRank(jnp.asarray(M), M), M @ M.T),
        (J * np.array([[2.0]]), 2 * M),
    ):
        ours = ours.to_dense() if isinstance(ours, co.LinearOperator) else ours
        assert isinstance(ours, jnp.ndarray)
        np.testing.assert_allclose(np.asarray(ours), theirs, atol=1e-7)


def test_torch_operators_say_how_to_convert_numpy_arrays():
    torch = pytest.importorskip("torch")
    T = co.Dense(torch.tensor(M))
    for call in (lambda: T @ b, lambda: co.solve(T, b), lambda: b @ T):
        with pytest.raises(co.BackendError, match=r"torch\.from_numpy\(x\)"):
            call()


def test_numpy_operators_refuse_arrays_of_other_frameworks():
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    A = co.Dense(M)
    for x in (torch.tensor(b), jnp.asarray(b)):
        with pytest.raises(co.BackendError, match="operator is a numpy one"):
            A @ x


A, B, K = co.Dense(M), co.Diagonal(b), co.KroneckerSum(M, M)


@pytest.mark.parametrize(
    ("operator", "expression"),
    [
        (K @ K, "(Dense(2x2) ⊕ Dense(2x2)) @ (Dense(2x2) ⊕ Dense(2x2))"),
        (co.Kronecker(A, B) @ K, "(Dense(2x2) ⊗ Diagonal(2)) @ (Dense(2x2) ⊕ Dense(2x2))"),
        (K**2 + co.Identity(4), "(Dense(2x2) ⊕ Dense(2x2)) @ (Dense(2x2) ⊕ Dense(2x2)) + Identity(4)"),
        (K + co.Identity(4), "(Dense(2x2) ⊕ Dense(2x2)) + Identity(4)"),
        (-K, "-1 (Dense(2x2) ⊕ Dense(2x2))"),
        (2 * (A + B), "2 (Dense(2x2) + Diagonal(2))"),
        (2 * co.Kronecker(A, B), "2 Dense(2x2) ⊗ Diagonal(2)"),
        (co.Kronecker(A, B) + co.Identity(4), "Dense(2x2) ⊗ Diagonal(2) + Identity(4)"),
        ((A * A) @ A, "(Dense(2x2) * Dense(2x2)) @ Dense(2x2)"),
        (A * (A @ A), "Dense(2x2) * (Dense(2x2) @ Dense(2x2))"),
        (co.Kronecker(A * A, A), "(Dense(2x2) * Dense(2x2)) ⊗ Dense(2x2)"),
        (co.inv(A * A), "(Dense(2x2) * Dense(2x2))^-1"),
        (A @ co.inv(A + A) @ A, "Dense(2x2) @ (Dense(2x2) + Dense(2x2))^-1 @ Dense(2x2)"),
        ((1 + 2j) * A, "(1+2j) Dense(2x2)"),
        (co.BatchSum(co.Dense(np.ones((3, 2, 2)))) @ A, "(sum of 3 Dense(3x2x2)) @ Dense(2x2)"),
        (co.hstack(A, A + B) @ co.vstack(A, A), "Block([[Dense(2x2), Dense(2x2) + Diagonal(2)]]) @ Block([[Dense(2x2)], [Dense(2x2)]])"),
    ],
)  # fmt: skip
def test_expressions_have_the_parentheses_that_they_need_and_no_others(operator, expression):
    assert operator._expression() == expression
