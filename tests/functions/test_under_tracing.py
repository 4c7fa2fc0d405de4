"""Every function under `jax.jit`, `jax.vmap` and `jax.grad`, and under torch's `vmap`, `grad` and `jvp`."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse
import torch
from support.frameworks import close, host, normal, spd

import colinear as co
from colinear import functions as f
from colinear.errors import BackendError, ConvergenceWarning
from colinear.operators import (
    BlockDiag,
    Dense,
    Diagonal,
    Identity,
    Kronecker,
    KroneckerSum,
    LowRank,
    Triangular,
)
from colinear.properties import PSD, SelfAdjoint
from colinear.status import Status
from colinear.testing import forbid_dense

n = 4


def everything(A, S, b):
    """What each function gives for a general, a positive definite and a self-adjoint matrix, as arrays."""
    results = {}
    for kind, M in (("general", Dense(A)), ("psd", PSD(S)), ("symmetric", SelfAdjoint(S))):
        results[kind, "solve"] = f.solve(M, b)
        results[kind, "inv"] = f.inv(M).to_dense()
        results[kind, "pinv"] = f.pinv(M).to_dense()
        results[kind, "lstsq"] = f.lstsq(M, b)
        results[kind, "det"] = f.det(M)
        results[kind, "logdet"] = f.logdet(M)
        results[kind, "eig"] = f.eig(M)[0]
        results[kind, "eigmax"] = f.eigmax(M)
        results[kind, "svd"] = f.svd(M, 2)[1]
        results[kind, "rank"] = f.rank(M)
        results[kind, "cond"] = f.cond(M)
        results[kind, "norm"] = f.norm(M)
        results[kind, "trace"] = f.trace(M)
        results[kind, "exp"] = f.exp(M).to_dense()
        results[kind, "sqrt"] = f.sqrt(M).to_dense()
        results[kind, "isqrt"] = f.isqrt(M).to_dense()
        results[kind, "log"] = f.log(M).to_dense()
        results[kind, "power"] = f.power(M, 0.3).to_dense()
        results[kind, "cube"] = f.power(M, 3).to_dense()
        results[kind, "lu"] = f.lu(M)[2].to_dense()
        results[kind, "qr"] = abs(f.qr(M)[1].to_dense())
    results["psd", "cholesky"] = f.cholesky(PSD(S)).to_dense()
    results["general", "apply"] = f.apply(lambda x: x**2, Dense(A)).to_dense()
    return results


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    return normal(rng, (2, n, n)) + 3 * np.eye(n), spd(rng, 2, n), normal(rng, (2, n))


def expected(data, i):
    A, S, b = (x[i] for x in data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return everything(A, S, b)


def agree(found, reference):
    for key, value in reference.items():
        y = host(found[key])
        assert np.iscomplexobj(y) >= np.iscomplexobj(host(value)), key
        np.testing.assert_allclose(
            y, host(value).astype(y.dtype), rtol=1e-7, atol=1e-7, err_msg=str(key)
        )


def test_every_function_under_jit_gives_the_numpy_answer(data):
    traced = jax.jit(everything)
    agree(traced(*(jnp.asarray(x[0]) for x in data)), expected(data, 0))


def test_every_function_under_torch_vmap_gives_the_numpy_answer(data):
    found = torch.func.vmap(everything)(*(torch.asarray(x) for x in data))
    for i in range(2):
        agree({key: value[i] for key, value in found.items()}, expected(data, i))


def test_under_tracing_the_principal_branch_is_complex_unless_psd_is_known(data):
    found = jax.jit(
        lambda A, S: (
            f.sqrt(A).to_dense(),
            f.sqrt(PSD(S)).to_dense(),
            f.log(SelfAdjoint(S)).to_dense(),
        )
    )(data[0][0], data[1][0])
    assert [jnp.iscomplexobj(x) for x in found] == [True, False, True]


def test_status_and_residual_come_out_of_jit():
    solve = jax.jit(lambda A, b: f.solve(PSD(A), b, info=True))
    good, bad, singular = np.diag([1.0, 2.0]), np.array([[1.0, 2.0], [2.0, 1.0]]), np.ones((2, 2))
    x, info = solve(good, np.ones(2))
    assert info.status == Status.SUCCESS and host(info.residual).max() < 1e-12
    # not positive definite: LU takes over inside the compiled program
    x, info = solve(bad, np.ones(2))
    close(x, np.linalg.solve(bad, np.ones(2)))
    x, info = solve(singular, np.ones(2))
    assert info.status == Status.SINGULAR
    with pytest.warns(ConvergenceWarning):
        jax.jit(lambda A, b: f.solve(A, b))(singular, np.ones(2))
        jax.effects_barrier()


def test_nullspace_under_jit_says_why_not():
    with pytest.raises(BackendError, match="number of columns depends on values"):
        jax.jit(lambda A: f.nullspace(A).to_dense())(jnp.ones((2, 3)))


def structured_losses(A, S, b):
    """Numbers that depend on everything, through the rules."""
    K = Kronecker(PSD(S), Dense(A))
    long = Kronecker(Dense(b[:, None]), Dense(b[:, None])).to_dense()[:, 0]
    shifted = Kronecker(PSD(S), PSD(S)) + 0.5 * Identity(n * n)
    woodbury = LowRank(A[:, :2]) + Diagonal(abs(b) + 1)
    terms = [
        f.solve(K, long).sum(),
        f.solve(shifted, long).sum(),
        f.solve(KroneckerSum(PSD(S), PSD(S)), long).sum(),
        f.solve(woodbury, b).sum(),
        f.logdet(woodbury),
        f.solve(BlockDiag(PSD(S), Triangular(A)), long[: 2 * n]).sum(),
        f.logdet(K),
        f.solve(Dense(A), b).sum(),
        f.solve(PSD(S), b).sum(),
        f.solve(SelfAdjoint(S), b).sum(),
        f.logdet(PSD(S)),
        f.trace(f.exp(Dense(A))),
        f.det(Dense(A)),
    ]
    return sum(terms)


def structured_reference(A, S, b):
    long = np.kron(b, b)
    W = A[:, :2] @ A[:, :2].T + np.diag(abs(b) + 1)
    I = np.eye(n)
    return sum(
        [
            np.linalg.solve(np.kron(S, A), long).sum(),
            np.linalg.solve(np.kron(S, S) + 0.5 * np.eye(n * n), long).sum(),
            np.linalg.solve(np.kron(S, I) + np.kron(I, S), long).sum(),
            np.linalg.solve(W, b).sum(),
            np.linalg.slogdet(W)[1],
            np.linalg.solve(scipy.linalg.block_diag(S, np.tril(A)), long[: 2 * n]).sum(),
            np.linalg.slogdet(np.kron(S, A))[1],
            np.linalg.solve(A, b).sum(),
            2 * np.linalg.solve(S, b).sum(),
            np.linalg.slogdet(S)[1],
            np.trace(scipy.linalg.expm(A)),
            np.linalg.det(A),
        ]
    )


def numerical_gradient(g, arguments, which, direction, step=1e-6):
    moved = [
        [x + (sign * step * direction if i == which else 0) for i, x in enumerate(arguments)]
        for sign in (1, -1)
    ]
    return (g(*moved[0]) - g(*moved[1])) / (2 * step)


def test_values_and_gradients_through_the_rules_in_both_frameworks(data):
    A, S, b = (x[0] for x in data)
    rng = np.random.default_rng(0)
    directions = [normal(rng, A.shape), normal(rng, S.shape), normal(rng, b.shape)]
    directions[1] = directions[1] + directions[1].T
    value = structured_reference(A, S, b)
    derivatives = [
        numerical_gradient(structured_reference, (A, S, b), i, d) for i, d in enumerate(directions)
    ]

    found, gradients = jax.jit(jax.value_and_grad(structured_losses, (0, 1, 2)))(
        *map(jnp.asarray, (A, S, b))
    )
    np.testing.assert_allclose(found, value, rtol=1e-10)
    for gradient, direction, derivative in zip(gradients, directions, derivatives, strict=True):
        np.testing.assert_allclose(np.sum(host(gradient) * direction), derivative, rtol=1e-5)

    leaves = [torch.asarray(x).requires_grad_() for x in (A, S, b)]
    total = structured_losses(*leaves)
    np.testing.assert_allclose(host(total), value, rtol=1e-10)
    total.backward()
    for leaf, direction, derivative in zip(leaves, directions, derivatives, strict=True):
        np.testing.assert_allclose(np.sum(host(leaf.grad) * direction), derivative, rtol=1e-5)

    tensors = tuple(torch.asarray(x) for x in (A, S, b))
    gradients = torch.func.grad(structured_losses, (0, 1, 2))(*tensors)
    for gradient, leaf in zip(gradients, leaves, strict=True):
        close(gradient, leaf.grad)
    _, tangent = torch.func.jvp(
        structured_losses, tensors, tuple(torch.asarray(d) for d in directions)
    )
    np.testing.assert_allclose(host(tangent), sum(derivatives), rtol=1e-5)


def test_roots_and_logarithms_of_defective_matrices_under_jit_and_their_derivatives():
    jordan = np.array([[2.0, 1.0], [0.0, 2.0]])
    root, logarithm = jax.jit(lambda A: (f.sqrt(A).to_dense(), f.log(A).to_dense()))(jordan)
    close(root, scipy.linalg.sqrtm(jordan) + 0j, 1e-7)
    close(logarithm, scipy.linalg.logm(jordan) + 0j, 1e-7)
    A = torch.tensor(jordan, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(f.sqrt(A).to_dense().sum(), A)
    E = np.array([[0.3, -0.2], [0.5, 0.1]])
    slope = (
        scipy.linalg.sqrtm(jordan + 1e-6 * E).sum() - scipy.linalg.sqrtm(jordan - 1e-6 * E).sum()
    ).real / 2e-6
    np.testing.assert_allclose(np.sum(host(gradient) * E), slope, rtol=1e-4)


@pytest.mark.parametrize("dtype", (float, complex))
def test_sparse_systems_of_a_program_are_eliminated_on_the_host(dtype):
    rng = np.random.default_rng(0)
    S = scipy.sparse.random_array((300, 300), density=0.01, rng=rng, dtype=float)
    S = co.Sparse(scipy.sparse.csr_array(S + 4 * scipy.sparse.eye_array(300)))
    values = S.data + 0.1j * rng.standard_normal(S.nnz) if dtype is complex else S.data
    data, structure = jnp.asarray(values), S.structure
    b, d = jnp.asarray(rng.standard_normal(300)), jnp.asarray(rng.uniform(0.1, 1, 300))
    rules = []

    def ours(data, d, b):
        A = co.Sparse.from_parts(data, structure) + co.Diagonal(d)
        rules.extend(co.explain(co.solve, A).rules)
        return co.solve(A, b)

    def dense(data, d, b):
        M = jnp.zeros((300, 300), data.dtype).at[structure.rows, structure.columns].set(data)
        return jnp.linalg.solve(M + jnp.diag(d), b)

    loss = lambda f: lambda data, d, b: jnp.sum(jnp.abs(f(data, d, b)) ** 2)
    tol = 1e-8 if data.dtype.itemsize >= 8 * (1 + (dtype is complex)) else 2e-3
    program, gradient = jax.jit(ours), jax.jit(jax.grad(loss(ours), (0, 1, 2)))
    with forbid_dense(300 * 300 - 1):
        for _ in range(3):  # compiled once, called again
            x, found = program(data, d, b), gradient(data, d, b)
        several = jax.jit(jax.vmap(ours, (0, None, None)))(jnp.stack([data, 2 * data]), d, b)
    assert "inv_sparse" in rules
    np.testing.assert_allclose(x, dense(data, d, b), rtol=tol, atol=tol)
    np.testing.assert_allclose(several[1], dense(2 * data, d, b), rtol=tol, atol=tol)
    for a, e in zip(found, jax.grad(loss(dense), (0, 1, 2))(data, d, b), strict=True):
        np.testing.assert_allclose(a, e, rtol=tol, atol=tol)


def test_a_singular_sparse_system_of_a_program_is_reported():
    S = co.Sparse(scipy.sparse.csr_array(scipy.sparse.eye_array(300)))
    data = jnp.asarray(np.where(np.arange(300) == 7, 0.0, 1.0))

    @jax.jit
    def program(data):
        return co.solve(co.Sparse.from_parts(data, S.structure), jnp.ones(300), info=True)

    assert program(data)[1].failed
    assert program(data * jnp.nan)[1].failed
    assert not program(data + 1)[1].failed


# ---------------------------------------------------------------------------------------------------- what a program decides


def test_a_program_solves_least_squares_whether_or_not_the_rank_is_full():
    rng = np.random.default_rng(0)
    A, b = normal(rng, (12, 4)), normal(rng, (12,))
    lacking = A.copy()
    lacking[:, 3] = lacking[:, 2]
    solve = jax.jit(lambda A, b: co.lstsq(A, b))
    for M in (A, lacking):
        close(solve(M, b), np.linalg.lstsq(M, b)[0])
    with pytest.warns(ConvergenceWarning, match="NONFINITE"):
        jax.block_until_ready(solve(A * np.nan, b))
        jax.effects_barrier()


def test_a_program_finds_few_triplets_whether_or_not_they_survive_squaring():
    rng = np.random.default_rng(0)
    Q, R = (np.linalg.qr(normal(rng, (m, 6)))[0] for m in (80, 6))
    triplets = jax.jit(
        lambda A: [x.to_dense() if i != 1 else x for i, x in enumerate(co.svd(A, 2))]
    )
    for smallest in (0.5, 1e-7):
        s = np.array([1.0, smallest, *[smallest / 10] * 4])
        U, found, V = triplets((Q * s) @ R.T)
        assert np.allclose(found, s[:2], rtol=1e-8)
        assert np.allclose(U.T @ U, np.eye(2), atol=1e-9)
        assert np.allclose(U * found, (Q * s) @ R.T @ V, atol=1e-14)


def test_a_program_solves_with_a_shifted_kronecker_product_of_symmetric_and_other_factors():
    rng = np.random.default_rng(0)
    T, K, y = spd(rng, 3), normal(rng, (5, 5)), normal(rng, (15,))
    solve = jax.jit(lambda T, K, y: co.solve(Kronecker(T, K) + 0.5 * Identity(15), y))
    for M in (K + K.T + 12 * np.eye(5), K + 6 * np.eye(5)):
        close(solve(T, M, y), np.linalg.solve(np.kron(T, M) + 0.5 * np.eye(15), y))
