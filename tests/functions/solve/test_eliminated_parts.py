"""A well-conditioned whole of which a part is nearly singular: rules that invert the part are right, or say that they are not."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse

import colinear as co
from colinear import backends
from colinear.functions.solve.elimination import verdict
from colinear.status import Status

SIZES = (1e-8, 1e-12, 1e-16, 1e-18, 1e-30, 0.0)
FEATURES = np.array([[1.0, 0.5], [2, 1], [0.5, 2]])


def tiny(n: int, size: float) -> np.ndarray:
    """A diagonal with one entry of this size."""
    return np.r_[size, np.arange(1.0, n)]


def weak_matrix(size: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A 3 x 3 matrix with a small singular value, and its singular vectors."""
    r = np.random.default_rng(3)
    Q, P = (np.linalg.qr(r.standard_normal((3, 3)))[0] for _ in range(2))
    return Q @ np.diag([size, 1.0, 2.0]) @ P.T, Q[:, :1], P[:, :1]


def wholes(size: float, dtype: str = "float64"):
    """Operators of a condition below 1e4 with a part that has a singular value of this size."""
    r = np.random.default_rng(0)
    put = lambda x: np.asarray(x).astype(dtype) * (1 + 0.5j if np.dtype(dtype).kind == "c" else 1)
    N = lambda *shape: put(r.standard_normal(shape))
    M, u, v = weak_matrix(size)
    pad = lambda x: np.concatenate([x, np.zeros((4, 1))])
    yield "a small diagonal", co.Diagonal(put([size, 1.0])) + co.LowRank(put([[1.0], [2.0]]))
    yield "a diagonal", co.Diagonal(put(tiny(9, size))) + co.LowRank(N(9, 2))
    yield (
        "a diagonal, any factors",
        co.Diagonal(put(tiny(9, size))) + co.LowRank(N(9, 2), N(9, 3), N(2, 3)),
    )
    yield "a high rank", co.Diagonal(put([size, 1.0, 3.0])) + co.LowRank(N(3, 2), N(3, 2))
    yield (
        "a product",
        co.Diagonal(put(tiny(9, size))) + co.Product(co.Dense(N(9, 2)), co.Dense(N(2, 9))),
    )
    yield "many terms", co.Diagonal(put(tiny(9, size))) + co.BatchSum(co.LowRank(N(2, 9, 1)), -1)
    yield (
        "a projection",
        co.Diagonal(put(tiny(3, size)))
        + co.Projection(np.ones((3, 1), dtype) / np.sqrt(3).astype(dtype)),
    )
    yield (
        "one of a batch",
        co.Diagonal(put(np.stack([tiny(9, 1.0), tiny(9, size)]))) + co.LowRank(N(9, 2)),
    )
    blocks = co.BlockDiag(co.Dense(put(M)), co.Diagonal(put([1.0, 2, 3, 4])))
    yield "blocks", blocks + co.LowRank(put(pad(u)), put(pad(v)))
    column = np.fft.ifft([size, 1.0, 2.0, 3.0, 3.0, 3.0, 2.0, 1.0]).real
    yield "a circulant", co.Circulant(put(column)) + co.LowRank(put(np.ones((8, 1))))
    K = co.Kronecker(co.Dense(put(M)), co.Dense(put([[2.0, 1], [0, 3]])))
    yield (
        "a Kronecker product",
        K + co.LowRank(put(np.kron(u, np.eye(2))), put(np.kron(v, np.eye(2)))),
    )
    d = np.r_[1.0, np.full(6, 2.0), 1.0] + size
    yield (
        "a tridiagonal",
        co.Tridiagonal(put(-np.ones(7)), put(d), put(-np.ones(7)))
        + co.LowRank(put(np.ones((8, 1)))),
    )
    T = np.tril(0.3 * r.standard_normal((8, 8)), -1) + np.diag(tiny(8, size))
    yield "a triangle", co.Triangular(put(T)) + co.LowRank(N(8, 1), N(8, 1))
    D, E = co.Diagonal(put([size, 1.0])), co.Diagonal(put([1.0, size]))
    B, C = co.Dense(put([[2.0, 1], [0, 3]])), co.Dense(put([[1.0, 0], [1, 2]]))
    yield "a grid", co.Block([[D, B], [C, E]])
    yield (
        "a saddle point",
        co.Block([[co.Diagonal(put(tiny(4, size))), co.Dense(N(4, 2))], [co.Dense(N(2, 4)), None]]),
    )
    yield (
        "an arrow",
        co.Block(
            [[D, None, co.Dense(N(2, 2))], [None, E, co.Dense(N(2, 2))], [B, C, co.Dense(N(2, 2))]]
        ),
    )
    yield "two Kronecker products", co.Kronecker(B, C) + co.Kronecker(D, co.Diagonal(put([1.0, 2])))
    yield "inside a product", co.Kronecker(co.Diagonal(put(tiny(5, size))) + co.LowRank(N(5, 1)), B)


FUNCTIONS = {
    "inv": (co.inv, np.linalg.inv),
    "inv of the transpose": (
        lambda A, **k: co.inv(A.T, **k),
        lambda M: np.linalg.inv(np.matrix_transpose(M)),
    ),
    "pinv": (co.pinv, np.linalg.inv),
    "solve": (
        lambda A, **k: co.solve(A, np.ones((A.shape[-1], 1), A.dtype), **k),
        lambda M: np.linalg.inv(M).sum(-1, keepdims=True),
    ),
    "trace": (
        lambda A, **k: co.trace(co.inv(A), **k),
        lambda M: np.trace(np.linalg.inv(M), axis1=-2, axis2=-1),
    ),
    "diag": (
        lambda A, **k: co.diag(co.inv(A), **k),
        lambda M: np.diagonal(np.linalg.inv(M), axis1=-2, axis2=-1),
    ),
    "det": (co.det, np.linalg.det),
    "logdet": (co.logdet, lambda M: np.linalg.slogdet(M)[1]),
    "cond": (lambda A, **k: co.cond(A, 1, **k), lambda M: np.linalg.cond(M, 1)),
    "power": (lambda A, **k: co.power(A, -1, **k), np.linalg.inv),
}


def error_and_status(f, A):
    (compute, reference), M = (
        FUNCTIONS[f],
        np.asarray(A.to_dense(), complex if A.is_complex else float),
    )
    found, info = compute(A, info=True)
    found = np.asarray(found.to_dense() if hasattr(found, "to_dense") else found)
    expected = reference(M)
    size = np.max(np.abs(expected))
    return np.max(np.abs(found - expected)) / (
        max(1.0, size) if f == "logdet" else size
    ), info.status


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
@pytest.mark.parametrize("size", SIZES)
def test_a_nearly_singular_part_does_no_harm(size, dtype):
    for what, A in wholes(size, dtype):
        assert np.max(np.linalg.cond(A.to_dense())) < 1e4, what
        for f in FUNCTIONS:
            error, status = error_and_status(f, A)
            assert not status.is_failure, (what, f, status)
            assert error < (1e-6 if dtype != "float32" else 5e-3), (what, f, error)


def test_the_logarithm_of_a_gaussian_process_with_one_exact_observation_is_right():
    for size in SIZES[:-1]:
        A = co.PD(co.Diagonal([size, 1.0, 3.0])) + co.LowRank(FEATURES)
        logarithm, info = co.logdet(A, info=True)
        np.testing.assert_allclose(logarithm, np.linalg.slogdet(A.to_dense())[1], rtol=1e-12)
        assert info.status is Status.SUCCESS
        x, both = co.solve_and_logdet(A, np.ones(3))
        np.testing.assert_allclose(x, np.linalg.solve(A.to_dense(), np.ones(3)), rtol=1e-10)
        np.testing.assert_allclose(both, logarithm, rtol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_any_well_conditioned_whole_is_inverted_or_the_status_says_so(seed):
    r = np.random.default_rng(seed)
    for _ in range(40):
        n, rank = int(r.integers(2, 30)), int(r.integers(1, 4))
        d = r.uniform(1, 2, n) * r.choice([-1.0, 1.0], n)
        places = r.permutation(n)[: r.integers(1, rank + 1)]
        d[places] *= 10.0 ** r.uniform(-30, 0, len(places))
        A = co.Diagonal(d) + co.LowRank(r.standard_normal((n, rank)), r.standard_normal((n, rank)))
        if np.linalg.cond(A.to_dense()) > 1e4:
            continue
        for f in FUNCTIONS:
            error, status = error_and_status(f, A)
            assert status.is_failure or error < 1e-6, (f, error, d)
            assert not status.is_failure


@pytest.mark.parametrize("seed", range(20))
def test_the_identity_less_a_unit_vector_is_singular(seed):
    u = np.random.default_rng(seed).standard_normal((5, 1))
    A = co.Identity(5) - co.LowRank(u / np.linalg.norm(u))
    assert co.inv(A, info=True)[1].status is Status.SINGULAR
    b = np.arange(5.0)
    x, info = co.solve(A, b, info=True)  # it may be solved by chance
    assert info.status is Status.SINGULAR or np.linalg.norm(A @ x - b) <= 1e-8 * np.linalg.norm(b)


@pytest.mark.parametrize("noise", [1e-2, 1e-4, 1e-6])
def test_gaussian_processes_keep_their_formula(noise):
    x = np.linspace(0, 10, 300)
    A = co.LowRank(np.exp(-((x[:, None] - np.linspace(0, 10, 20)) ** 2) / 2)) + noise * co.Identity(
        300
    )
    for f in (co.inv, co.logdet):
        assert f(A, info=True)[1].status is Status.SUCCESS
    assert co.solve(A, np.sin(x), info=True)[1].status is Status.SUCCESS
    assert isinstance(co.inv(A), co.Sum)


def test_no_matrix_is_formed_of_a_large_diagonal_with_weak_entries(monkeypatch):
    n, r = 20_000, np.random.default_rng(0)
    d = r.uniform(1, 2, n)
    d[[5, 777]] = 1e-16, 1e-12
    U, V = r.standard_normal((n, 3)), r.standard_normal((n, 3))
    A = co.Diagonal(d) + co.LowRank(U, V)

    def forbid(self):
        raise AssertionError("the matrix was formed")

    monkeypatch.setattr(co.Sum, "to_dense", forbid)
    monkeypatch.setattr("colinear.functions.common.dense", forbid)
    b = r.standard_normal(n)
    x, info = co.solve(A, b, info=True)
    assert info.status is Status.SUCCESS and np.linalg.norm(A @ x - b) < 1e-9 * np.linalg.norm(b)
    X, info = co.inv(A, info=True)
    assert info.status is Status.SUCCESS and np.linalg.norm(X @ b - x) < 1e-9 * np.linalg.norm(x)
    # The same by hand, with entries of 1 exchanged: D + U V^T = D' + [U E] diag(I, -S) [V E]^T.
    weak, filled = [5, 777], d.copy()
    filled[weak] = 1.0
    E = np.zeros((n, 2))
    E[weak, [0, 1]] = 1
    right = np.hstack([V, E]).T
    right[3:] *= (d - filled)[weak][:, None]
    K = np.eye(5) + right @ (np.hstack([U, E]) / filled[:, None])
    sign, logarithm = np.linalg.slogdet(K)
    found, info = co.slogdet(A, info=True)
    assert info.status is Status.SUCCESS and found[0] == sign
    np.testing.assert_allclose(found[1], logarithm + np.log(filled).sum(), rtol=1e-12)


def test_a_large_circulant_with_a_weak_frequency_is_refined():
    n = 8192
    spectrum = 2 + np.cos(2 * np.pi * np.arange(n) / n)
    spectrum[0] = 1e-12
    A = co.Circulant(np.fft.ifft(spectrum).real) + co.LowRank(np.ones((n, 1)) / np.sqrt(n))
    b = np.random.default_rng(0).standard_normal(n)
    x, info = co.solve(A, b, info=True)
    assert info.status in (Status.SUCCESS, Status.FELL_BACK) and np.linalg.norm(
        A @ x - b
    ) < 1e-7 * np.linalg.norm(b)
    X, info = co.inv(A, info=True)
    assert info.status is Status.FELL_BACK and np.linalg.norm(
        A @ (X @ b) - b
    ) < 1e-7 * np.linalg.norm(b)
    assert co.logdet(A, info=True)[1].status is Status.INACCURATE  # nothing to fall back to


# ------------------------------------------------------------------------------- frameworks


@pytest.mark.parametrize("size", [1e-8, 1e-16, 0.0])
def test_torch_has_the_same_answers_and_their_derivatives(size):
    torch = pytest.importorskip("torch")
    r = np.random.default_rng(0)
    d, U, V = (
        torch.tensor(x, requires_grad=True)
        for x in (tiny(9, size), r.standard_normal((9, 2)), r.standard_normal((9, 2)))
    )
    B, C = (torch.tensor(r.standard_normal((2, 2)), requires_grad=True) for _ in range(2))
    e = torch.tensor([size, 1.0], dtype=torch.float64, requires_grad=True)

    def corrected(d, U, V, B, C, e):
        return co.Diagonal(d) + co.LowRank(U, V), torch.diag(d) + U @ V.T

    def grid(d, U, V, B, C, e):
        whole = co.Block([[co.Diagonal(e), co.Dense(B)], [co.Dense(C), co.Diagonal(e.flip(0))]])
        return whole, torch.cat(
            [torch.cat([torch.diag(e), B], 1), torch.cat([C, torch.diag(e.flip(0))], 1)]
        )

    leaves = (d, U, V, B, C, e)
    for make in (corrected, grid):
        A, M = make(*leaves)
        b = torch.ones(len(M), dtype=M.dtype)
        pairs = [
            (co.inv(A) @ b, torch.linalg.solve(M, b)),
            (co.solve(A, b), torch.linalg.solve(M, b)),
            (co.logdet(A), torch.linalg.slogdet(M)[1]),
            (co.trace(co.inv(A)), torch.trace(torch.linalg.inv(M))),
        ]
        for found, expected in pairs:
            torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-7)
            ours, theirs = (
                torch.autograd.grad(x.sum(), leaves, retain_graph=True, allow_unused=True)
                for x in (found, expected)
            )
            for g, h in zip(ours, theirs):
                torch.testing.assert_close(g, h, rtol=1e-6, atol=1e-6)


def test_jax_has_the_same_answers_and_a_compiled_program_says_where_it_has_not():
    jax = pytest.importorskip("jax")
    put, r = jax.numpy.asarray, np.random.default_rng(0)
    U = put(r.standard_normal((4, 1)))
    B, C = (put(r.standard_normal((2, 2))) for _ in range(2))

    def corrected(d):
        return co.Diagonal(d) + co.LowRank(U)

    def grid(d):
        return co.Block([[co.Diagonal(d[:2]), co.Dense(B)], [co.Dense(C), co.Diagonal(d[1::-1])]])

    @jax.jit
    def statuses(d):
        found = [
            f(make(d), info=True)[1].status
            for make in (corrected, grid)
            for f in (co.inv, co.logdet)
        ]
        return [jax.numpy.asarray(status, int) for status in found]

    weak, strong = put(tiny(4, 1e-16)), put(tiny(4, 0.5))
    A = corrected(weak)
    np.testing.assert_allclose(
        co.inv(A) @ weak, np.linalg.solve(A.to_dense(), weak), rtol=1e-8, atol=1e-8
    )
    np.testing.assert_allclose(co.logdet(A), np.linalg.slogdet(A.to_dense())[1], rtol=1e-8)
    np.testing.assert_allclose(
        co.logdet(grid(weak)), np.linalg.slogdet(grid(weak).to_dense())[1], rtol=1e-8
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert all(int(status) >= Status.INACCURATE for status in statuses(weak))
        assert all(int(status) == Status.SUCCESS for status in statuses(strong))


# ------------------------------------------------------------------------------- a A + c I


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_a_multiple_by_zero_or_nearly_so_leaves_the_shift(name):
    pytest.importorskip(name)
    xp = backends.get(name)
    M = xp.asarray([[2.0, 1.0], [1.0, 3.0]], dtype=xp.float64)
    for a in (0.0, 1e-300, 1e-310) if name == "numpy" else (0.0,):
        for whole in (co.Dense(M), co.Kronecker(co.Dense(M), co.Dense(M)))[
            : 2 if name == "numpy" else 1
        ]:
            A, n = a * whole + 0.5 * co.Identity(whole.shape[-1]), whole.shape[-1]
            x, info = co.solve(A, xp.ones((n,), dtype=M.dtype), info=True)
            assert not info.failed
            np.testing.assert_allclose(xp.to_numpy(x), 2.0, rtol=1e-12)
            np.testing.assert_allclose(
                xp.to_numpy(co.inv(A).to_dense()), 2 * np.eye(n), rtol=1e-12, atol=1e-12
            )
            np.testing.assert_allclose(float(co.logdet(A)), n * np.log(0.5), rtol=1e-9)
            for p in (1, np.inf, "fro"):
                found, info = co.cond(A, p, info=True)
                assert not info.failed
                np.testing.assert_allclose(float(found), n if p == "fro" else 1.0, rtol=1e-9)


def test_one_zero_multiple_in_a_batch():
    A = co.Scaled(
        np.array([0.0, 2.0]), co.Dense(np.ones((2, 2, 2)) + np.eye(2))
    ) + 0.5 * co.Identity(2)
    x, info = co.solve(A, np.ones((2, 1)), info=True)
    assert not info.failed
    np.testing.assert_allclose(A @ x, np.ones((2, 2, 1)), rtol=1e-12)
    np.testing.assert_allclose(co.logdet(A), np.linalg.slogdet(A.to_dense())[1], rtol=1e-12)


def test_a_negative_power_of_a_multiple_by_zero_is_singular():
    for p in (-1, -2):
        assert co.power(0.0 * co.Dense(np.eye(2)), p, info=True)[1].status is Status.SINGULAR


def test_a_condition_number_has_the_status_of_the_inverse(monkeypatch):
    A = co.Diagonal([1.0, np.nan]) + co.LowRank(np.ones((2, 1)))
    for p in (1, np.inf, "fro"):
        assert co.cond(A, p, info=True)[1].failed


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_an_iteration_that_fails_for_a_singular_block_runs_on_the_whole(framework: str) -> None:
    xp = backends.get(framework)
    P = co.opaque(co.Dense(xp.asarray(np.diag([0.0, 1.0]))))
    Q = co.inv(co.PD(co.Dense(xp.asarray(np.array([[2.0, 1], [1, 3]])))))
    A = co.Block([[P, Q], [Q, P]])
    b = xp.asarray(np.array([1.0, 2.0, 3.0, 4.0]))
    methods = (co.LSMR(),) if framework == "jax" else (co.LSMR(), co.LSQR(), co.GMRES())
    for method in methods:
        x = co.inv(A, method) @ b
        np.testing.assert_allclose(xp.to_numpy(A @ x), xp.to_numpy(b), atol=1e-6)


@pytest.mark.parametrize("kind", ["dense", "diagonal"])
@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_small_block_that_is_well_conditioned_does_not_spoil_the_determinant(
    framework: str, kind: str
) -> None:
    xp, r = backends.get(framework), np.random.default_rng(0)
    weak = 1e-7 * (np.diag([1.0, 2, 3]) if kind == "diagonal" else r.standard_normal((3, 3)))
    (u, v), D = r.standard_normal((2, 3, 1)), 1e-7 * r.standard_normal((3, 3))
    corner = (
        co.Diagonal(xp.asarray(np.diag(weak))) if kind == "diagonal" else co.Dense(xp.asarray(weak))
    )
    A = co.Block(
        [
            [corner, co.Dense(xp.asarray(u @ u.T))],
            [co.Dense(xp.asarray(v @ v.T)), co.Dense(xp.asarray(D))],
        ]
    )
    M = np.block([[weak, u @ u.T], [v @ v.T, D]])
    np.testing.assert_allclose(float(co.logdet(A)), np.linalg.slogdet(M)[1], rtol=1e-8)


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_a_diagonal_that_is_small_throughout_beside_a_full_rank_does_not_spoil_the_determinant(
    framework: str,
) -> None:
    xp = backends.get(framework)
    U = np.array([[0.6, 0.1, 0.3], [0.2, 0.5, -0.4]])
    for D in (co.Diagonal(xp.asarray(np.full(2, -3e-19))), co.ScaledIdentity(-3e-19, 2)):
        A = D + co.LowRank(xp.asarray(U))
        np.testing.assert_allclose(float(co.logdet(A)), np.linalg.slogdet(U @ U.T)[1], rtol=1e-8)


@pytest.mark.parametrize("transform", ["eager", "jit"])
def test_the_derivative_of_a_solve_loses_no_more_digits_than_the_solve_in_jax(transform):
    """A part of condition 1e7 costs eps 1e7 of the derivative by A x = b; that of Kailath's formula would lose eps 1e14."""
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.normal(size=(3, 3)))[0] for _ in range(2))
    S, U, V, b = (
        (left * [1.0, 1.0, 1e-7]) @ right,
        rng.normal(size=(6, 2)),
        rng.normal(size=(6, 2)),
        rng.normal(size=6),
    )

    def f(S):
        return (
            co.solve(
                co.BlockDiag(S, S) + co.LowRank(jax.numpy.asarray(U), jax.numpy.asarray(V)),
                jax.numpy.asarray(b),
            )
            ** 2
        ).sum()

    found = (jax.jit(jax.grad(f)) if transform == "jit" else jax.grad(f))(jax.numpy.asarray(S))
    A = np.kron(np.eye(2), S) + U @ V.T
    x = np.linalg.solve(A, b)
    whole = -2 * np.outer(np.linalg.solve(A.T, x), x)
    np.testing.assert_allclose(
        found, whole[:3, :3] + whole[3:, 3:], atol=1e-7 * np.abs(whole).max()
    )


def test_every_matrix_of_a_batch_is_judged_where_they_share_a_right_side():
    """The second has a part that is nearly singular: eliminating it spoils the answer."""
    c = np.array([1.0, 1e-13])
    B = np.random.default_rng(0).standard_normal((3, 3)) + 3 * np.eye(3)
    C = np.random.default_rng(1).standard_normal((3, 3)) + 3 * np.eye(3)
    A = co.Block([[co.Dense(B), co.Dense(C)], [co.Dense(C), co.ScaledIdentity(c, 3)]])
    dense, b = A.to_dense(), np.cos(np.arange(6.0))
    wanted = np.linalg.solve(dense, np.broadcast_to(b, (2, 6))[..., None])[..., 0]
    for method in (None, co.QR()):
        np.testing.assert_allclose(co.solve(A, b, method), wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_an_inverse_that_gives_nothing_is_not_taken_for_right(framework: str) -> None:
    """Found by the fuzzer: all that a spoiled inverse made of the probe had cancelled."""
    pytest.importorskip(framework)
    A = co.Dense(np.array([[2.0, 1.0], [0.0, 3.0]])).to(backend=framework)
    assert Status(int(verdict(A, co.Zero(2, 2, like=A)))).is_failure


@pytest.mark.parametrize("n", [1, 3])
def test_a_sparse_block_without_entries_is_no_pivot(n: int) -> None:
    empty = co.Sparse(scipy.sparse.csr_array((n, n)))
    D = np.arange(1.0, n + 1)
    A = co.Block([[empty, co.Diagonal(D)], [co.Diagonal(2 * D), co.PD(np.eye(n) + 1)]])
    b, M = np.arange(2.0 * n), A.to_dense()
    np.testing.assert_allclose(co.solve(A, b), np.linalg.solve(M, b), atol=1e-12)
    np.testing.assert_allclose(co.det(A), np.linalg.det(M))


def test_a_sparse_matrix_with_fewer_entries_than_rows_is_singular() -> None:
    places = np.flatnonzero(np.arange(5000) % 5)
    A = co.Sparse(scipy.sparse.csr_array((np.ones(4000), (places, places)), (5000, 5000)))
    assert co.solve(A, np.ones(5000), info=True)[1].status is co.Status.SINGULAR
