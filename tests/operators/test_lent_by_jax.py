"""Eager calls of JAX's arrays in the host's memory: NumPy computes them, and no one can tell but by the clock."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
import pytest
from support.compiling import environment_of_devices
from support.composed_operators import adjoint

import colinear as co

jax = pytest.importorskip("jax")
jnp = jax.numpy

N = 7  # a size that no other test compiles for


def symmetric(shift: float = 0.0) -> np.ndarray:
    X = np.random.default_rng(0).standard_normal((N, N))
    return (X + X.T + shift * np.eye(N)).astype(np.float32)


@pytest.fixture
def compilations():
    """The programs that JAX has compiled since the test began."""
    found: list[str] = []

    def listen(event: str, seconds: float, **_: object) -> None:
        if event.endswith("backend_compile_duration"):
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.clear_event_listeners()


QUESTIONS = {
    "solve": lambda A, b: co.solve(A, b),
    "solve by CG": lambda A, b: co.solve(A, b, co.CG(tol=1e-4)),
    "logdet": lambda A, b: co.logdet(A),
    "diag": lambda A, b: co.diag(co.Dense(b) @ A),
    "trace": lambda A, b: co.trace(A),
    "cond": lambda A, b: co.cond(A),
    "eig": lambda A, b: co.eig(A)[0],
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_nothing_is_compiled(question, compilations):
    A, b = jnp.asarray(symmetric(20)), jnp.ones((1, N) if question == "diag" else N, jnp.float32)
    del compilations[:]  # of the arrays themselves
    answer = QUESTIONS[question](co.PSD(co.Dense(A)), b)
    assert not compilations
    assert isinstance(answer, jax.Array)
    assert answer.dtype == A.dtype
    wanted = QUESTIONS[question](co.PSD(co.Dense(np.asarray(A))), np.asarray(b))
    np.testing.assert_allclose(np.asarray(answer), wanted, rtol=1e-4)


def test_results_are_of_jax():
    A = co.PSD(co.Dense(jnp.asarray(symmetric(20))))
    for factor in (co.inv(A), co.cholesky(A), co.sqrt(A), *co.qr(A), *co.lu(A)):
        assert factor.backend == "jax"
        assert all(isinstance(x, jax.Array) for x in factor.arrays())
    x, info = co.solve(A, jnp.ones((N, 2)), co.CG(), info=True)
    assert isinstance(x, jax.Array)
    assert isinstance(info.residual, jax.Array)
    jax.tree.map(lambda leaf: leaf, info)  # a pytree still


def test_parts_of_the_result_are_those_that_were_given():
    A = co.Dense(jnp.asarray(symmetric(20)))
    assert co.simplify(A) is A
    Q, R = co.eig(co.PSD(A))[1], co.Dense(jnp.asarray(symmetric()))
    assert Q.backend == R.backend == "jax"


def test_the_same_memory_is_used_again():
    A = co.Kronecker(jnp.asarray(symmetric(20)), jnp.asarray(symmetric(20)))
    co.logdet(A)
    twin = A.__dict__["_twin"]
    co.logdet(A)
    assert A.__dict__["_twin"] is twin
    assert np.shares_memory(twin.operands[0].A, np.asarray(A.operands[0].A))
    # the one array of two operators is one array of their twins
    x = jnp.asarray(symmetric(20))
    twins = [P.A for P in _twin(co.Kronecker(x, x)).operands]
    assert twins[0] is twins[1]


def _twin(A):
    co.trace(A)
    return A.__dict__["_twin"]


# ---------------------------------------------------------------------------------------------------- code of the user's


def test_users_rules_get_the_arrays_they_know():
    seen = []
    twice = co.function("twice", base=lambda A: 2 * A)

    @co.rule(twice, co.Diagonal)
    def twice_diagonal(A):
        seen.append(type(A.d))
        return A.d.at[:].multiply(2)  # NumPy's have no .at

    assert isinstance(twice(co.Diagonal(jnp.ones(N))), jax.Array)
    assert issubclass(seen[0], jax.Array)


def test_a_users_rule_inside_one_of_our_functions():
    class Mark(co.LinearOperator):
        d: object

        @property
        def shape(self):
            return (len(self.d), len(self.d))

        def _matmat(self, X):
            return self.d[:, None] * X.at[:].multiply(1)

    rules, number = list(co.inv.rules), []

    @co.rule(co.inv, co.Kronecker[co.Diagonal, co.Householder])
    def inv_of_a_test(A, method):
        number.append(A.operands[0].d.at[0].get())
        return co.Kronecker(co.inv(A.operands[0]), A.operands[1])

    try:
        A = co.Kronecker(co.Diagonal(jnp.arange(1.0, 4.0)), co.Householder(jnp.ones(2)))
        x = co.solve(A, jnp.ones(6))
        np.testing.assert_allclose(A @ x, np.ones(6), rtol=1e-5)
        assert number == [1.0]
    finally:
        co.inv.rules = rules
        co.inv._parts, co.inv._cache = [p for r in rules for p in r.alternatives()], {}
    B = Mark(jnp.arange(1.0, 4.0))
    np.testing.assert_allclose(B @ co.solve(B, jnp.ones(3)), np.ones(3), rtol=1e-5)


def test_functions_of_numbers():
    seen = []

    def f(x):
        seen.append(x)
        return jnp.sin(x).at[...].add(0)

    A = co.SelfAdjoint(co.Dense(jnp.asarray(symmetric())))
    values, V = np.linalg.eigh(np.asarray(A.A, np.float64))
    np.testing.assert_allclose(
        co.apply(f, A).to_dense(), (V * np.sin(values)) @ adjoint(V), atol=1e-4
    )
    assert all(isinstance(x, jax.Array) for x in seen)


def test_what_is_traced_is_not_lent():
    A = co.SelfAdjoint(co.Dense(jnp.asarray(symmetric(20))))

    def f(c):
        return co.apply(lambda x: c * x, A).to_dense()  # it closes over c

    np.testing.assert_allclose(jax.jit(f)(2.0), 2 * A.A, rtol=1e-4)
    np.testing.assert_allclose(jax.jacfwd(f)(2.0), A.A, rtol=1e-3, atol=1e-3)
    b = jnp.ones(N)
    gradient = jax.grad(lambda b: co.solve(A, b).sum())(b)
    np.testing.assert_allclose(A @ gradient, np.ones(N), rtol=1e-3)
    # an operator that is a constant of the program
    assert jax.jit(lambda t: t * co.logdet(A))(2.0) == pytest.approx(2 * float(co.logdet(A)))


# ---------------------------------------------------------------------------------------------------- failures and devices


def test_failures_are_told_as_ever():
    A, b = co.Diagonal(jnp.zeros(N)), jnp.ones(N)
    with pytest.warns(co.ConvergenceWarning, match="SINGULAR") as record:
        co.solve(A, b)
    assert record[0].filename == __file__
    with pytest.raises(co.ConvergenceError) as failure:
        co.solve(A, b, on_failure="raise")
    assert not isinstance(failure.value.info.residual, np.generic | np.ndarray)
    _, info = co.solve(A, b, info=True)
    assert info.status is co.Status.SINGULAR
    with pytest.raises(co.ShapeError):
        co.solve(A, jnp.ones(N + 1))
    torch = pytest.importorskip("torch")
    with pytest.raises(co.BackendError, match="jax"):
        co.solve(A, torch.ones(N))


def test_a_factorisation_knows_how_it_went():
    info = co.factorize(co.Dense(jnp.asarray(symmetric(20)))).info
    assert info.rule == "inverse" and info.status is co.Status.SUCCESS


def test_explain_says_what_numpy_does():
    A = co.Tridiagonal(*map(jnp.ones, (N - 1, N, N - 1)))
    host = co.Tridiagonal(*map(np.ones, (N - 1, N, N - 1)))
    assert co.explain(co.solve, A).rules == co.explain(co.solve, host).rules


def test_lapacks_factors_are_not_moved_to_jax():
    A = co.SelfAdjoint(co.Dense(symmetric()))
    factor = co.inv(A)
    with pytest.raises(co.BackendError, match="factor it there"):
        factor.to("jax")
    # eigenvectors are understood by all
    b = np.ones(N, np.float32)
    inverse = co.inv(co.SelfAdjoint(co.Dense(jnp.asarray(symmetric()))))
    np.testing.assert_allclose(inverse.to("numpy") @ b, factor @ b, rtol=1e-3)
    np.testing.assert_allclose(inverse @ jnp.asarray(b), factor @ b, rtol=1e-3)


def test_half_precision_and_keys_stay_with_jax():
    A = co.Diagonal(jnp.full(N, 2, jnp.bfloat16))
    assert co.solve(A, jnp.ones(N, jnp.bfloat16)).dtype == jnp.bfloat16
    B = co.PSD(co.Dense(jnp.asarray(symmetric(20))))
    method = co.Hutchinson(10, seed=0)
    eager = co.trace(B, method)
    compiled = jax.jit(lambda B: co.trace(B, method))(B)
    assert eager == pytest.approx(float(compiled), rel=1e-5)  # the same random numbers


def test_several_devices_of_the_host():
    program = """
        import jax, jax.numpy as jnp, colinear as co
        first, second = jax.devices()
        d = jax.device_put(jnp.arange(1.0, 5.0), second)
        D = co.Diagonal(d)
        for _ in range(2):
            x = co.solve(D, jax.device_put(jnp.ones(4), second))
            assert x.device == second, x.device
        try:
            co.solve(D, jax.device_put(jnp.ones(4), first))
            raise SystemExit("devices do not mix")
        except co.DeviceError:
            pass
        assert co.inv(co.Dense(jax.device_put(jnp.eye(4), second))).arrays()[0].device == second
        mesh = jax.sharding.Mesh(jax.devices(), "i")
        spread = jax.device_put(jnp.arange(1.0, 5.0), jax.NamedSharding(mesh, jax.P("i")))
        A = co.Diagonal(spread)
        assert abs(co.logdet(A) - jnp.log(24.0)) < 1e-5
        assert "_twin" not in A.__dict__  # it lies on two devices: nothing of it is lent
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    subprocess.run(command, check=True, env=environment_of_devices(2))
