"""`factorize`: what is kept is made once and serves every question, `update` uses structure again, and derivatives go by the same factors."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg
from support.counting import count_factorisations, count_searches
from support.frameworks import close, spd
from support.registry import MAKERS, cases

import colinear as co
from colinear.errors import BackendError, ConvergenceWarning, DtypeError, ShapeError
from colinear.testing import check_operator, count_matvecs

RANDOM = np.random.default_rng(0)
N = 48
POSITIVE = spd(RANDOM, N)
GENERAL = POSITIVE + RANDOM.standard_normal((N, N)) / 8
DIAGONAL = RANDOM.uniform(1, 2, N)
U, V = RANDOM.standard_normal((2, N, 3))
SPARSE = scipy.sparse.csr_array(
    scipy.sparse.random(N, N, 0.03, random_state=1) + 4 * scipy.sparse.eye(N)
)
COLUMN = np.r_[4.0, 0.5 ** np.arange(1, N)]
LARGE = 1200
LARGE_COLUMN = np.r_[4.0, 1 / np.arange(2, LARGE + 1) ** 2]

# name: (build(*arrays), the arrays, the factorisations that they take)
STRUCTURES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, int]]] = {
    "dense": (co.Dense, (GENERAL,), {"lu_factor": 1}),
    "positive": (lambda M: co.PSD(M), (POSITIVE,), {"cholesky": 1}),
    "self-adjoint": (lambda M: co.SelfAdjoint(M), (POSITIVE - 2 * np.eye(N),), {"ldl_factor": 1}),
    "sparse": (lambda: co.Sparse(SPARSE), (), {"splu": 1}),
    "banded": (
        lambda a, b, c: co.Banded((a, b, c), (-2, 0, 1)),
        (U[2:, 0], DIAGONAL + 4, U[1:, 1]),
        {"BandedLU": 1},
    ),
    "tridiagonal": (co.Tridiagonal, (U[1:, 0], DIAGONAL + 4, U[1:, 1]), {}),
    "kronecker": (co.Kronecker, (GENERAL[:8, :8], POSITIVE[:6, :6]), {"lu_factor": 2}),
    "woodbury": (lambda d, U: co.Diagonal(d) + co.LowRank(U), (DIAGONAL, U), {"cholesky": 1}),
    "woodbury, general": (
        lambda d, U, V: co.Diagonal(d) + co.LowRank(U, V),
        (DIAGONAL, U, V),
        {"lu_factor": 1},
    ),
    "kailath": (
        lambda c, U: co.Circulant(c) + co.LowRank(U),
        (COLUMN, U),
        {"lu_factor": 1},
    ),
    "blocks": (co.BlockDiag, (GENERAL[:20, :20], GENERAL[20:, 20:]), {"lu_factor": 2}),
    "alike blocks": (
        co.BlockDiag,
        tuple(GENERAL[i : i + 12, i : i + 12] for i in (0, 12, 24, 36)),
        {"lu_factor": 1},
    ),
    "kronecker sum": (
        lambda A, B: co.KroneckerSum(co.PSD(A), co.PSD(B)),
        (POSITIVE[:8, :8], POSITIVE[:6, :6]),
        {"eigh": 2},
    ),
    "general kronecker sum": (
        co.KroneckerSum,
        (GENERAL[:8, :8], GENERAL[8:14, 8:14]),
        {"eig": 2, "lu_factor": 4},
    ),
    "circulant": (co.Circulant, (COLUMN,), {}),
    "diagonal": (co.Diagonal, (DIAGONAL,), {}),
}


def right_side(A: Any, columns: tuple[int, ...] = ()) -> Any:
    return np.cos(np.arange(A.shape[-1] * max(1, *columns, 1))).reshape(A.shape[-1], *columns)


@pytest.mark.parametrize("name", STRUCTURES)
def test_a_factorisation_is_made_once_for_all_questions(name: str) -> None:
    build, arrays, expected = STRUCTURES[name]
    A = build(*arrays)
    with count_factorisations() as made:
        F = co.factorize(A)
    assert +made == expected
    M, b, B = A.to_dense(), right_side(A), right_side(A, (3,))
    with count_factorisations() as made:
        answers = F.solve(b), F.solve(B), F.T.solve(b), F.H.solve(B), co.solve(F, b)
        (sign, logarithm), log_of_transpose = F.slogdet(), F.T.logdet()
        F.inverse @ b
        co.inv(F) @ B
        co.det(F)
    # elimination along three diagonals costs what substitution would
    assert not +made
    wanted = [np.linalg.solve(m, c) for m, c in ((M, b), (M, B), (M.T, b), (M.T, B), (M, b))]
    for x, y in zip(answers, wanted, strict=True):
        close(x, y)
    close(sign, np.linalg.slogdet(M).sign)
    close(logarithm, np.linalg.slogdet(M).logabsdet)
    close(log_of_transpose, logarithm)
    assert F.operator is A and F.shape == A.shape and F.dtype == A.dtype
    assert F.info.status is co.Status.SUCCESS
    close(F @ b, A @ b)


@pytest.mark.parametrize("name", STRUCTURES)
def test_an_update_makes_the_same_factorisations_and_looks_for_no_rules(name: str) -> None:
    build, arrays, expected = STRUCTURES[name]
    F = co.factorize(build(*arrays))
    leaves = [2 * x for x in F.operator.arrays()]
    F.update(leaves).logdet()
    F.solve(right_side(F)), F.logdet()  # the rules are found
    with count_factorisations() as made, count_searches() as searched:
        G = F.update(leaves)
        x, logarithm = G.solve(right_side(F)), G.logdet()
    assert +made == expected and not +searched
    M = G.operator.to_dense()
    close(x, np.linalg.solve(M, right_side(F)))
    close(logarithm, np.linalg.slogdet(M).logabsdet)
    close(F.solve(right_side(F)), np.linalg.solve(F.to_dense(), right_side(F)))  # as it was
    assert co.factorize(F) is F


def test_toeplitz_matrices_keep_the_columns_of_their_inverse_and_their_determinant() -> None:
    A = co.Toeplitz(LARGE_COLUMN)
    F, b = co.factorize(A), right_side(A)
    with count_factorisations() as made:
        x, logarithm, again = F.solve(b), F.logdet(), F.logdet()
    assert +made == {"toeplitz_slogdet": 1}  # another algorithm, once
    close(x, np.linalg.solve(A.to_dense(), b))
    close(logarithm, np.linalg.slogdet(A.to_dense()).logabsdet)
    assert again == logarithm


@pytest.mark.parametrize("definite", [True, False])
def test_an_update_of_a_sparse_matrix_eliminates_in_the_order_that_was_found(
    definite: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    S = scipy.sparse.random(300, 300, 0.01, random_state=2)
    S = scipy.sparse.csr_array((S + S.T if definite else S) + 5 * scipy.sparse.eye(300))
    orders, splu = [], scipy.sparse.linalg.splu

    def watch(matrix: Any, **options: Any) -> Any:
        orders.append(options.get("permc_spec"))
        return splu(matrix, **options)

    monkeypatch.setattr(scipy.sparse.linalg, "splu", watch)
    F = co.factorize(co.PSD(co.Sparse(S)) if definite else co.Sparse(S))
    data = F.operator.arrays()[0]
    for values in (data + 0.1 * (data > 4), (2 if definite else -2) * data):
        orders.clear()
        G = F.update([values])
        M, b = G.operator.to_dense(), right_side(F, (2,))
        assert orders == ["NATURAL"]
        close(G.solve(b), np.linalg.solve(M, b))
        close(G.T.solve(b), np.linalg.solve(M.T, b))
        sign, logarithm = G.slogdet()
        close(sign, np.linalg.slogdet(M).sign)
        close(logarithm, np.linalg.slogdet(M).logabsdet)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_determinants_of_sparse_and_banded_inverses_are_those_of_their_factors(
    dtype: str, batch: tuple[int, ...]
) -> None:
    n, random = 40, np.random.default_rng(3)

    def numbers(*shape: int) -> Any:
        x = random.standard_normal((*batch, *shape))
        return x + 1j * random.standard_normal(x.shape) if dtype == "complex128" else x

    S = scipy.sparse.csr_array(
        scipy.sparse.random(n, n, 0.04, random_state=1) + scipy.sparse.eye(n)
    )
    sparse = co.Sparse(S)
    sparse = sparse.with_arrays([numbers(len(sparse.arrays()[0]))])
    banded = co.Banded((numbers(n - 2), numbers(n), numbers(n - 1)), (-2, 0, 1))
    for A in (sparse, banded):
        X, M = co.inv(A), A.to_dense()
        assert type(X.factor).__name__ in ("FixedFactor", "Implicit")
        for Y, P in ((X, M), (X.T, M.swapaxes(-1, -2)), (X.H, M.conj().swapaxes(-1, -2))):
            with count_factorisations() as made:
                sign, logarithm = co.slogdet(Y)
            assert not +made
            close(sign, np.conj(np.linalg.slogdet(P).sign), 1e-7)
            close(logarithm, -np.linalg.slogdet(P).logabsdet, 1e-7)
        B = numbers(n, 2)
        close(X.H @ B, np.linalg.solve(M.conj().swapaxes(-1, -2), B), 1e-7)
        close(pickle.loads(pickle.dumps(X)) @ B, np.linalg.solve(M, B), 1e-7)


def test_an_iterative_method_keeps_its_preconditioner_and_starts_where_it_is_told() -> None:
    made = []

    def precondition(A: Any) -> Any:
        made.append(A)
        return co.Jacobi()(A)

    A = co.PSD(np.diag(np.arange(1.0, N + 1)) + POSITIVE)
    F = co.factorize(A, co.CG(tol=1e-10, preconditioner=precondition))
    b = right_side(A)
    x, first = F.solve(b, info=True)
    _, second = F.solve(b, info=True)
    _, third = F.solve(b, x0=x, info=True)
    assert len(made) == 1 and first.method == "CG"
    assert first.iterations == second.iterations > third.iterations == 0
    close(x, np.linalg.solve(A.to_dense(), b), 1e-8)
    close(F.logdet(), np.linalg.slogdet(A.to_dense()).logabsdet)
    G = F.update([3 * A.to_dense()])
    assert len(made) == 2  # for the new values
    close(G.solve(b), x / 3, 1e-8)
    with count_matvecs(G.operator) as count:
        G.solve(b)
    assert count.matvecs <= first.matvecs + 2
    with pytest.raises(ShapeError, match="x0"):
        F.solve(b, x0=b[:-1])
    co.factorize(A).solve(b, x0=x)  # of no use to a factorisation, and no harm


def test_another_method_is_used_if_it_is_named() -> None:
    F = co.factorize(co.PSD(POSITIVE))
    x, info = co.solve(F, right_side(F), co.CG(), info=True)
    assert info.iterations
    close(x, np.linalg.solve(POSITIVE, right_side(F)), 1e-6)
    with count_factorisations() as made:
        assert type(co.inv(F, co.LU()).factor).__name__ == "LUFactor"
    assert +made == {"lu_factor": 1}
    assert co.factorize(F, co.LU()).operator is F.operator


def test_it_stands_for_its_operator_in_compositions() -> None:
    F, M, b = co.factorize(co.Dense(GENERAL)), GENERAL, right_side(POSITIVE_OPERATOR)
    with count_factorisations() as made:
        x = co.solve(F + co.LowRank(U), b)
        y = co.solve(2 * F.H, b)
        Y = co.solve(co.Kronecker(F, co.Identity(2)), np.repeat(b, 2))
    assert +made == {"lu_factor": 1}  # of the capacitance, 3 x 3
    close(x, np.linalg.solve(M + U @ U.T, b))
    close(y, np.linalg.solve(2 * M.T, b))
    close(Y, np.repeat(np.linalg.solve(M, b), 2))
    close(co.trace(F), np.trace(M))
    assert co.simplify(F) is F.operator
    check_operator(F)
    assert co.explain(co.solve, F).rules[0] == "solve_factorized"
    assert "inv" in str(co.explain(co.factorize, F.operator))


POSITIVE_OPERATOR = co.PSD(POSITIVE)


def test_updates_that_do_not_fit_are_refused() -> None:
    F = co.factorize(co.Diagonal(DIAGONAL) + co.LowRank(U))
    fitting = [np.ones(N), np.ones((N, 3))]
    order = [tuple(x.shape) for x in F.operator.arrays()]
    fitting.sort(key=lambda x: order.index(x.shape))
    F.update(fitting)
    with pytest.raises(ShapeError, match="A has 2 arrays, and 1 were given"):
        F.update(fitting[0])
    with pytest.raises(ShapeError, match="array 1 of 2 has the shape"):
        F.update(fitting[::-1])
    with pytest.raises(DtypeError, match="array 2 of 2 is of float32"):
        F.update([fitting[0], fitting[1].astype(np.float32)])
    with pytest.raises(BackendError, match="array 2 of 2 is list; A is of numpy"):
        F.update([fitting[0], fitting[1].tolist()])
    with pytest.raises(ShapeError, match="expected the structure of"):
        F.update(co.Diagonal(DIAGONAL))
    with pytest.raises(ShapeError, match="expected the structure of"):
        F.update(co.Diagonal(DIAGONAL) + co.LowRank(U, V))
    with pytest.raises(ShapeError, match="needs a square operator"):
        co.factorize(np.ones((2, 3)))
    G = F.update(co.Diagonal(2 * DIAGONAL) + co.LowRank(V))
    close(G.solve(DIAGONAL), np.linalg.solve(np.diag(2 * DIAGONAL) + V @ V.T, DIAGONAL))


def test_a_singular_operator_is_told_of_when_it_is_made_and_when_it_is_used() -> None:
    singular = np.ones((3, 3))
    with pytest.warns(ConvergenceWarning):
        F = co.factorize(singular)
    assert F.info.status is co.Status.SINGULAR
    with pytest.warns(ConvergenceWarning):
        F.solve(np.array([1.0, 2.0, 3.0]))
    assert F.logdet() < -30
    with pytest.warns(ConvergenceWarning):
        co.inv(F)
    F, info = co.factorize(np.diag([1.0, np.nan]), info=True)
    assert info.failed
    G = co.factorize(co.Diagonal(DIAGONAL))
    with pytest.warns(ConvergenceWarning):
        G.update([0 * DIAGONAL])
    with pytest.raises(co.ConvergenceError):
        co.factorize(singular, on_failure="raise")


def test_values_that_change_the_decision_are_decided_anew() -> None:
    """Woodbury divides by the diagonal, which an update may make zero."""
    F = co.factorize(co.Diagonal(DIAGONAL) + co.LowRank(U))
    d = DIAGONAL.copy()
    d[:2] = 0
    leaves = [d if x.ndim == 1 else x for x in F.operator.arrays()]
    G, M = F.update(leaves), np.diag(d) + U @ U.T
    close(G.solve(DIAGONAL), np.linalg.solve(M, DIAGONAL), 1e-7)
    close(G.logdet(), np.linalg.slogdet(M).logabsdet, 1e-7)


# ------------------------------------------------------------------ inv keeps its factorisation


def questions(X: Any, b: Any) -> dict[str, Callable[[], Any]]:
    return {
        "X @ b": lambda: X @ b,
        "X.T @ b": lambda: X.T @ b,
        "X.H @ b": lambda: X.H @ b,
        "solve(X, b)": lambda: co.solve(X, b),
        "inv(X.T) @ b": lambda: co.inv(X.T) @ b,
        "logdet(X)": lambda: co.logdet(X),
        "logdet(X.T)": lambda: co.logdet(X.T),
        "slogdet(X.H)": lambda: co.slogdet(X.H),
    }


# What factors something again, and why that is right.
AGAIN = {
    "inverse": "its inverse is a matrix, which is not factored",
    "inverse_pd": "its inverse is a matrix, which is not factored",
    "annotated_unitary": "nothing was factored, and the sign of its determinant is not known",
    "sum_low_rank_and_diagonal": "a sum, whose capacitance is as small as the one that was factored",
    "factorized_correction": "a sum, whose capacitance is as small as the one that was factored",
}


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
@pytest.mark.parametrize("name", MAKERS)
def test_an_inverse_is_factored_once(name: str, backend: str, dtype: str) -> None:
    for case in cases(name, backend, "inv", [(dtype, ()), (dtype, (2,))]):
        if not case.is_regular:
            continue
        A, xp = case.operator, case.operator.xp
        b = xp.asarray(np.cos(np.arange(A.shape[-1])), dtype=A.dtype)
        X = co.inv(A)
        for what, ask in questions(X, b).items():
            with count_factorisations(backend) as made:
                ask()
            if name not in AGAIN or (what.endswith("@ b") and "inv" not in what):
                assert not +made, f"{what} of {case}"


# ------------------------------------------------------------------ the decision is used again


@pytest.mark.parametrize("name", STRUCTURES)
def test_the_same_structure_built_again_looks_for_no_rules(name: str) -> None:
    build, arrays, _ = STRUCTURES[name]
    functions = (
        lambda A: co.solve(A, right_side(A)),
        lambda A: co.inv(A) @ right_side(A),
        co.logdet,
    )
    for ask in functions:
        ask(build(*arrays))
        with count_searches() as searched:
            ask(build(*(2 * x for x in arrays)))
        assert not +searched


# ------------------------------------------------------------------ derivatives

DIFFERENTIABLE = [
    name for name in STRUCTURES if name not in ("sparse", "self-adjoint", "tridiagonal")
]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_in_torch_go_by_the_factors(name: str) -> None:
    torch = pytest.importorskip("torch")
    build, arrays, expected = STRUCTURES[name]
    leaves = [torch.tensor(x, requires_grad=True) for x in arrays]
    others = [torch.tensor(x, requires_grad=True) for x in arrays]
    A = build(*leaves)
    b = torch.tensor(right_side(A), requires_grad=True)

    def symmetrised(G: Any) -> Any:  # the transpose of what is claimed to be symmetric is itself
        claimed = name in ("positive", "kronecker sum") and G.ndim == 2
        return G + G.T if claimed else G

    with count_factorisations("torch") as made:
        F = co.factorize(A)
        value = (F.solve(b) ** 2).sum() + (F.T.solve(b) ** 3).sum()
        value.backward()
    assert +made == expected
    M = build(*others).to_dense()
    c = b.detach().requires_grad_()
    solved = torch.linalg.solve
    wanted = (solved(M, c) ** 2).sum() + (solved(M.T, c) ** 3).sum()
    wanted.backward()
    close(value.detach(), wanted.detach(), 1e-8)
    for mine, theirs in zip((*leaves, b), (*others, c), strict=True):
        close(symmetrised(mine.grad), symmetrised(theirs.grad), 1e-7)
    for x in (*leaves, *others):
        x.grad = None
    F.logdet().backward()
    torch.linalg.slogdet(build(*others).to_dense())[1].backward()
    for mine, theirs in zip(leaves, others, strict=True):
        close(symmetrised(mine.grad), symmetrised(theirs.grad), 1e-7)


def test_the_gradient_of_a_determinant_in_torch_uses_the_factors() -> None:
    torch = pytest.importorskip("torch")
    for build, arrays, expected in (STRUCTURES[x] for x in ("dense", "kronecker", "woodbury")):
        leaves = [torch.tensor(x, requires_grad=True) for x in arrays]
        with count_factorisations("torch") as made:
            F = co.factorize(build(*leaves))
            F.logdet().backward()
        assert +made == expected


def test_functions_of_torch_take_it_apart() -> None:
    torch = pytest.importorskip("torch")
    F, b = co.factorize(co.Dense(torch.tensor(GENERAL))), torch.tensor(right_side(GENERAL))

    def loss(leaf: Any) -> Any:
        G = F.update([leaf])
        return G.solve(b).sum() + G.logdet()

    def wanted(M: Any) -> Any:
        return torch.linalg.solve(M, b).sum() + torch.linalg.slogdet(M)[1]

    M = torch.tensor(GENERAL)
    close(torch.func.grad(loss)(M), torch.func.grad(wanted)(M), 1e-8)
    several = torch.stack([M, 2 * M])
    close(torch.func.vmap(loss)(several), torch.stack([wanted(x) for x in several]), 1e-8)


IN_JAX = ("dense", "positive", "kronecker", "woodbury", "alike blocks", "kronecker sum")


@pytest.fixture
def jax() -> Any:
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        yield jax


@pytest.mark.parametrize("name", IN_JAX)
def test_in_jax_it_passes_into_programs_and_through_transforms(name: str, jax: Any) -> None:
    jnp = jax.numpy
    build, arrays, _ = STRUCTURES[name]
    leaves = tuple(map(jnp.asarray, arrays))
    F = co.factorize(build(*leaves))
    b = jnp.asarray(right_side(F))

    def ask(F: Any) -> Any:
        return jnp.sum(F.solve(b) ** 2) + F.logdet()

    def wanted(leaves: Any) -> Any:
        M = build(*leaves).to_dense()
        return jnp.sum(jnp.linalg.solve(M, b) ** 2) + jnp.linalg.slogdet(M)[1]

    value, gradient = jax.value_and_grad(wanted)(leaves)
    traces = []
    program = jax.jit(lambda F: traces.append(F) or ask(F))
    close(program(F), value, 1e-8)
    close(program(F.update([2 * x for x in leaves])), wanted([2 * x for x in leaves]), 1e-8)
    if name != "positive":  # an update inside a program may keep other factors
        assert len(traces) == 1
    text = str(jax.make_jaxpr(ask)(F))
    for primitive in (" lu ", " lu[", "cholesky[", "eigh[", "eig["):
        assert primitive not in text
    inside = jax.jit(jax.value_and_grad(lambda leaves: ask(F.update(list(leaves)))))
    found, slope = inside(leaves)
    close(found, value, 1e-8)
    for mine, theirs in zip(slope, gradient, strict=True):
        close(mine, theirs, 1e-7)
    tree = jax.grad(ask, allow_int=True)(F)  # the factors are constants
    for mine, theirs in zip(tree.operator.arrays(), gradient, strict=True):
        close(mine, theirs, 1e-7)
    scales = jnp.asarray([1.0, 3.0])
    mapped = jax.vmap(lambda c: ask(F.update([c * x for x in leaves])))(scales)
    close(mapped, jnp.stack([wanted([c * x for x in leaves]) for c in scales]), 1e-8)


TRACED: list[str] = []  # what JAX says that it traces and compiles, once a test listens


@functools.cache
def listen_to_jax() -> None:
    from jax import monitoring

    monitoring.register_event_duration_secs_listener(lambda event, *_, **__: TRACED.append(event))


@pytest.mark.parametrize(
    "name", ["dense", "positive", "woodbury", "kronecker", "blocks", "sparse", "banded", "diagonal"]
)
def test_eager_jax_traces_nothing_for_the_same_structure(name: str, jax: Any) -> None:
    build, arrays, _ = STRUCTURES[name]
    put = jax.numpy.asarray
    listen_to_jax()

    def ask(c: float) -> None:
        A = build(*(put(c * x) for x in arrays)) if arrays else co.Sparse(c * SPARSE).to("jax")
        b = put(c * right_side(A))
        co.solve(A, b)
        F = co.factorize(A)
        F.solve(b)
        F.logdet()

    ask(1.0)
    ask(2.0)
    TRACED.clear()
    with count_searches() as searched:
        ask(3.0)
    assert not [event for event in TRACED if "trace" in event or "compile" in event]
    assert not +searched


def test_it_is_listed() -> None:
    assert co.factorize.name == "factorize" and issubclass(co.Factorized, co.LinearOperator)
    assert isinstance(co.Factorized(POSITIVE), co.Factorized)
