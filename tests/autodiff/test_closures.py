"""Functions given to operators may close over what is traced or differentiated: values and derivatives are those of the matrix."""

from __future__ import annotations

import functools
import pickle

import numpy as np
import pytest
from support.registry import FULLY

import colinear as co
from colinear import backends

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")
jnp = jax.numpy

N = 5
C = np.random.default_rng(0).standard_normal((2, N)) / 2
B = np.arange(1.0, N + 1)
THETA = np.linspace(1.0, 2.0, N)


def matrix(xp, theta):
    """diag(theta) + C^T C, the matrix of all operators below."""
    return xp.make_diagonal(theta) + xp.asarray(C.T @ C)


def matrix_free(xp, theta):
    S = xp.asarray(C.T @ C)
    return co.MatrixFree(
        lambda X: theta[:, None] * X + xp.matmul(S, X), (N, N), dtype="float64", like=xp.name
    )


def matrix_free_with_adjoint(xp, theta):
    S, half = xp.asarray(C.T @ C), theta / 2

    def multiply(X, twice):
        return twice * half[:, None] * X + xp.matmul(S, X)

    def adjoint(X, twice):
        return theta[:, None] * X + xp.matmul(S, X)

    return co.MatrixFree(
        multiply, (N, N), rmatmat=adjoint, parameters=(xp.asarray(2.0, dtype=xp.float64),)
    )


def jacobian(xp, theta):
    S = xp.asarray(C.T @ C)
    return co.Jacobian(lambda x: theta * xp.sin(x) + xp.matmul(S, x), xp.zeros(N, dtype=xp.float64))


def hessian(xp, theta):
    c = xp.asarray(C)
    return co.Hessian(
        lambda x: xp.sum(theta * x**2) / 2 + xp.sum(xp.matmul(c, x) ** 2) / 2,
        xp.ones(N, dtype=xp.float64),
    )


def gauss_newton(xp, theta):
    c = xp.asarray(C)
    f = lambda x: (x, xp.matmul(c, x))
    return co.GaussNewton(
        f,
        lambda y: xp.sum(theta * y[0] ** 2) / 2 + xp.sum(y[1] ** 2) / 2,
        xp.ones(N, dtype=xp.float64),
    )


def kernel(xp, theta):
    k = lambda X, Y: xp.matmul(X[:, :N] * theta, Y[:, :N].T) + xp.matmul(X[:, N:], Y[:, N:].T)
    return co.Kernel(k, xp.asarray(np.hstack([np.eye(N), C.T])), block=2)


OPERATORS = [matrix_free, matrix_free_with_adjoint, jacobian, hessian, gauss_newton, kernel]
SYMMETRIC = [
    ("CG", lambda A, b: co.solve(A, b, co.CG(tol=1e-12))),
    ("MINRES", lambda A, b: co.solve(A, b, co.MINRES(tol=1e-12))),
    ("exp", lambda A, b: co.exp(A, co.Krylov(tol=1e-10)) @ b),
    ("Lanczos", lambda A, b: co.eig(A, 2, "LA", co.Lanczos(tol=1e-11))[0]),
    ("SLQ", lambda A, b: co.logdet(A, co.SLQ(probes=2))),
    ("Hutchinson", lambda A, b: co.trace(A, co.Hutchinson(probes=2))),
]
GENERAL = [
    ("GMRES", lambda A, b: co.solve(A, b, co.GMRES(tol=1e-12))),
    ("BiCGSTAB", lambda A, b: co.solve(A, b, co.BiCGSTAB(tol=1e-12))),
    ("LSQR", lambda A, b: co.lstsq(A, b, co.LSQR(tol=1e-12))),
    ("LSMR", lambda A, b: co.lstsq(A, b, co.LSMR(tol=1e-12))),
    ("Arnoldi", lambda A, b: co.eig(A, 1, "LM", co.Arnoldi(tol=1e-11))[0].real),
]
LARGE = [("LOBPCG", lambda A, b: co.eig(A, 1, "LA", co.LOBPCG(tol=1e-9, max_iters=200))[0])]
METHODS = [(name, True, f) for name, f in SYMMETRIC + LARGE] + [
    (name, False, f) for name, f in GENERAL
]
MORE = [
    ("CG of least squares", False, lambda A, b: co.lstsq(A, b, co.CG(tol=1e-12))),
    (
        "PowerIteration",
        True,
        lambda A, b: co.eig(A, 1, "LM", co.PowerIteration(tol=1e-9, max_iters=500))[0],
    ),
    ("GolubKahan", False, lambda A, b: co.svd(A, 1, co.GolubKahan(tol=1e-11))[1]),
    ("RandomizedSVD", False, lambda A, b: co.svd(A, 1, co.RandomizedSVD())[1]),
    ("HutchPP", False, lambda A, b: co.trace(A, co.HutchPP(probes=3))),
    ("XTrace", False, lambda A, b: co.trace(A, co.XTrace(probes=4))),
    ("XDiag", False, lambda A, b: co.diag(A, co.XDiag(probes=4))),
    ("XNysTrace", True, lambda A, b: co.trace(A, co.XNysTrace(probes=2))),
]


def results(xp, make, theta, b, methods):
    A = make(xp, theta)
    return [f(co.PD(A) if symmetric else A, b) for _, symmetric, f in methods]


def dense(xp, theta):
    return co.opaque(co.Dense(matrix(xp, theta)))


def total(values, xp):
    return sum(xp.sum(xp.cos(value)) for value in values)


every_operator = pytest.mark.parametrize("make", OPERATORS, ids=lambda f: f.__name__)
# Compiling all pairs takes minutes: each method has one operator in turn, and with COLINEAR_FULL=1 every operator.
GRID = [
    (make, method)
    for i, method in enumerate(METHODS + MORE)
    for make in (OPERATORS if FULLY else OPERATORS[i % len(OPERATORS) :][:1])
]
in_turn = pytest.mark.parametrize(
    "make, method", GRID, ids=lambda x: x[0] if isinstance(x, tuple) else x.__name__
)
HIDDEN_BY_TORCH_VMAP = {
    "Lanczos",
    "LOBPCG",
    "Arnoldi",
    "PowerIteration",
    "GolubKahan",
    "RandomizedSVD",
}  # they stop by values


# ---------------------------------------------------------------------- torch


@every_operator
def test_torch_gradients_reach_what_functions_close_over(make):
    xp = backends.get("torch")
    for i, method in enumerate(METHODS + MORE):
        found = []
        for which in (make, dense):
            theta = torch.tensor(THETA, requires_grad=True)
            b = torch.tensor(B, requires_grad=bool(i % 2))
            found.append(
                torch.autograd.grad(total(results(xp, which, theta, b, [method]), xp), theta)[0]
            )
        np.testing.assert_allclose(*found, rtol=1e-6, atol=1e-8, err_msg=method[0])


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@in_turn
def test_torch_transforms_reach_what_functions_close_over(make, method):
    xp, thetas = backends.get("torch"), torch.tensor(np.stack([THETA, 2 * THETA]))
    f = lambda which, theta: total(results(xp, which, theta, torch.tensor(B), [method]), xp)
    slope = torch.func.grad(functools.partial(f, make))
    expected = torch.stack(
        [torch.func.grad(functools.partial(f, dense))(theta) for theta in thetas]
    )
    np.testing.assert_allclose(torch.stack([*map(slope, thetas)]), expected, rtol=1e-6, atol=1e-8)
    if method[0] in HIDDEN_BY_TORCH_VMAP:
        with pytest.raises(co.MethodError, match=r"torch\.func\.vmap"):
            torch.func.vmap(slope)(thetas)
    else:
        np.testing.assert_allclose(torch.func.vmap(slope)(thetas), expected, rtol=1e-6, atol=1e-8)


def test_torch_svrg_draws_from_terms_that_close_over_a_tensor():
    xp, found = backends.get("torch"), []
    solve = lambda theta: co.solve(terms(xp, theta), torch.tensor(B), co.SVRG(tol=1e-10))
    exact = lambda theta: torch.linalg.solve(2 * matrix(xp, theta), torch.tensor(B))
    for f in (solve, exact):
        theta = torch.tensor(THETA, requires_grad=True)
        found.append(torch.autograd.grad(torch.cos(f(theta)).sum(), theta)[0])
    np.testing.assert_allclose(*found, rtol=1e-6, atol=1e-8)


def test_second_derivatives_reach_what_functions_close_over():
    xp = backends.get("torch")
    f = lambda which, theta: total(results(xp, which, theta, torch.tensor(B), METHODS[:1]), xp)
    found, expected = (
        torch.autograd.functional.hessian(functools.partial(f, which), torch.tensor(THETA))
        for which in (matrix_free, dense)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_a_function_that_hides_nothing_is_not_called_when_an_operator_is_built():
    calls, scale, table = [], torch.full((3, 1), 2.0), {"shift": torch.zeros(3, 1)}

    def multiply(X):
        calls.append(X.shape)
        return scale * X + table["shift"] + torch.zeros_like(X)

    A = co.MatrixFree(multiply, (3, 3), like=scale)
    assert not calls and A.parameters == ()
    scale.requires_grad_()
    assert co.MatrixFree(multiply, (3, 3), like=scale).parameters == (scale,)


def test_weights_of_a_module_are_found_wherever_they_are():
    model = torch.nn.Sequential(torch.nn.Linear(3, 3, dtype=torch.float64), torch.nn.Tanh())

    class Problem:
        def __init__(self):
            self.model = model

        def multiply(self, X):
            return self.model[0].weight @ (self.model[0].weight.T @ X) + X

    A = co.PD(co.MatrixFree(Problem().multiply, (3, 3), dtype=torch.float64))
    assert A.parameters == (model[0].weight,)
    co.solve(A, torch.ones(3, dtype=torch.float64), co.GMRES()).sum().backward()
    W = model[0].weight.detach().requires_grad_()
    torch.linalg.solve(W @ W.T + torch.eye(3), torch.ones(3, dtype=torch.float64)).sum().backward()
    np.testing.assert_allclose(model[0].weight.grad, W.grad, rtol=1e-6)
    J = co.Jacobian(model, torch.ones(3, dtype=torch.float64))
    assert {id(p) for p in J.parameters} == {id(p) for p in model.parameters()}


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


def test_what_cannot_be_followed_is_refused_with_advice():
    t = torch.ones(3, 1, requires_grad=True)
    with pytest.raises(TypeError, match=r"parameters=\(\.\.\.\)"):
        co.MatrixFree(lambda X: Doubled.apply(t) * X, (3, 3), like=t)
    A = co.PD(co.MatrixFree(lambda X, t: Doubled.apply(t) * X, (3, 3), parameters=(t,)))
    (co.solve(A, torch.ones(3), co.CG())).sum().backward()
    np.testing.assert_allclose(t.grad, np.full((3, 1), -0.5), rtol=1e-6)


# ---------------------------------------------------------------------- JAX


@every_operator
def test_jax_gradients_reach_what_functions_close_over(make):
    xp = backends.get("jax")
    f = lambda theta: total(results(xp, make, theta, jnp.asarray(B), METHODS[:1]), xp)
    exact = lambda theta: jnp.sum(jnp.cos(jnp.linalg.solve(matrix(xp, theta), jnp.asarray(B))))
    value, slope = jax.jit(jax.value_and_grad(f))(jnp.asarray(THETA))
    np.testing.assert_allclose(value, exact(jnp.asarray(THETA)), rtol=1e-8)
    np.testing.assert_allclose(slope, jax.grad(exact)(jnp.asarray(THETA)), rtol=1e-6, atol=1e-9)


def test_jax_maps_over_what_functions_close_over():
    xp = backends.get("jax")
    both = jnp.stack([jnp.asarray(THETA), 3 * jnp.asarray(THETA)])
    solved = lambda theta: total(results(xp, matrix_free, theta, jnp.asarray(B), METHODS[:1]), xp)
    exact = lambda theta: jnp.sum(jnp.cos(jnp.linalg.solve(matrix(xp, theta), jnp.asarray(B))))
    # The map is over by the time that the gradient is pulled back.
    found, expected = (
        jax.grad(lambda both, f=f: jnp.sum(jax.vmap(f)(both)))(both) for f in (solved, exact)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


def run_in_all_transforms(f, theta):
    """Values and slopes of f at theta and at 2 theta, compiled, in a loop, mapped and differentiated."""
    thetas = jnp.stack([theta, 2 * theta])[:, None]
    body = jax.vmap(jax.value_and_grad(f))
    values, slopes = jax.jit(
        lambda thetas: jax.lax.scan(lambda c, theta: (c, body(theta)), 0.0, thetas)[1]
    )(thetas)
    return np.column_stack([values, slopes[:, 0]])


@in_turn
def test_every_method_runs_where_its_operator_closes_over_the_loop(make, method):
    xp = backends.get("jax")
    f = lambda which, theta: total(results(xp, which, theta, jnp.asarray(B), [method]), xp)
    theta = jnp.asarray(THETA)
    exact = jax.jit(jax.value_and_grad(functools.partial(f, dense)))
    expected = [np.hstack([*exact(theta)]), np.hstack([*exact(2 * theta)])]
    np.testing.assert_allclose(
        run_in_all_transforms(functools.partial(f, make), theta), expected, rtol=1e-6, atol=1e-8
    )


def terms(xp, theta):
    return co.PD(co.PD(kernel(xp, theta)) + co.PD(matrix_free(xp, theta)))


def test_svrg_draws_from_terms_that_close_over_the_loop():
    xp = backends.get("jax")
    solve = lambda theta: jnp.sum(
        jnp.cos(co.solve(terms(xp, theta), jnp.asarray(B), co.SVRG(tol=1e-10)))
    )
    exact = jax.value_and_grad(
        lambda theta: jnp.sum(jnp.cos(jnp.linalg.solve(2 * matrix(xp, theta), jnp.asarray(B))))
    )
    theta = jnp.asarray(THETA)
    expected = [np.hstack([*exact(theta)]), np.hstack([*exact(2 * theta)])]
    np.testing.assert_allclose(run_in_all_transforms(solve, theta), expected, rtol=1e-6, atol=1e-8)


def test_programs_are_not_shared_between_values():
    xp = backends.get("jax")
    solve = lambda theta, b: co.solve(co.PD(matrix_free(xp, theta)), b, co.CG())
    # not compiled as a whole: each solve is a program that may be found again
    run = jax.vmap(solve, (0, None))
    for scale in (1.0, 2.0):
        theta = scale * jnp.asarray(THETA)
        expected = np.linalg.solve(np.asarray(matrix(xp, theta)), B)
        np.testing.assert_allclose(run(theta[None], jnp.asarray(B))[0], expected, rtol=1e-6)


def test_blocks_precisions_and_batches_of_functions_that_close_over_a_tracer():
    def products(theta):
        A = co.MatrixFree(lambda X: theta[:, None] * X, (3, 3), dtype="float32", like="jax")
        batch = co.MatrixFree(lambda X: theta[:, None] * X, (2, 3, 3), dtype="float64", like="jax")
        X = jnp.ones((3, 4), jnp.float64)
        assert A.parameters[0] is theta
        return (
            A @ X,
            A @ (1j * X),
            A @ X[:, 0],
            A.H @ X,
            A @ jnp.ones((5, 3, 2)),
            batch @ X,
            batch @ jnp.ones((4, 2, 3, 2)),
        )

    theta = jnp.asarray([1.0, 2.0, 3.0])
    for product in jax.jit(products)(theta):
        column = product if product.ndim == 1 else product[..., 0]
        size = jnp.abs(column)
        np.testing.assert_allclose(size, jnp.broadcast_to(theta, size.shape))
    kinds = [product.dtype for product in jax.jit(products)(theta)]
    assert kinds[0] == jnp.float64 and kinds[1] == jnp.complex128


def test_integers_that_are_traced_may_be_closed_over():
    def solve(places, theta):
        A = co.PD(
            co.MatrixFree(lambda X: theta[places][:, None] * X, (3, 3), dtype="float64", like="jax")
        )
        return co.solve(A, jnp.ones(3), co.CG())

    places, theta = jnp.asarray([2, 0, 1]), jnp.asarray([1.0, 2.0, 4.0])
    np.testing.assert_allclose(jax.jit(solve)(places, theta), [0.25, 1, 0.5], rtol=1e-6)


def test_an_operator_that_closed_over_a_value_keeps_its_name_and_can_leave_the_program():
    def diagonal(X):
        return X

    def build(theta):
        def scaled(X):
            return theta[:, None] * diagonal(X)

        return co.MatrixFree(scaled, (3, 3), dtype="float64", like="jax")

    A = jax.jit(build)(jnp.asarray([1.0, 2.0, 3.0]))
    assert "scaled" in repr(A)
    np.testing.assert_allclose(A @ jnp.ones(3), [1.0, 2, 3])
    np.testing.assert_allclose(A @ jnp.ones((3, 2)), np.outer([1.0, 2, 3], np.ones(2)))


def test_operators_of_plain_functions_are_pickled_as_before():
    A = co.MatrixFree(np.cumsum, (3, 3), like="numpy")
    assert pickle.loads(pickle.dumps(A)).parameters == ()


# ---------------------------------------------------------------------- functions of eigenvalues, and probes that fail


def scaled_square(A, t, b, *method):
    """The sum of t A^2 b."""
    return (co.apply(lambda x: t * x**2, A, *method) @ b).sum().real


def applied(matrix):
    """Operators of this matrix whose functions are found in different ways."""
    S = co.SelfAdjoint(co.Dense(matrix))
    return [S, co.opaque(co.Dense(matrix)), co.Kronecker(S, S), S + co.Identity(3, like=S)]


SMALL = np.array([[2.0, 0.5, 0.0], [0.5, 3.0, 0.2], [0.0, 0.2, 5.0]])


def test_derivatives_of_apply_reach_what_f_closes_over_and_the_operator_at_once():
    for i in range(4):
        t, S = (
            torch.tensor(2.0, dtype=torch.float64, requires_grad=True),
            torch.tensor(SMALL, requires_grad=True),
        )
        b = torch.arange(1.0, applied(S)[i].shape[-1] + 1, dtype=torch.float64)
        value = scaled_square(applied(S)[i], t, b)
        by_t, by_S = torch.autograd.grad(value, (t, S), create_graph=True)
        np.testing.assert_allclose(by_t.detach(), value.detach() / 2)
        mixed = torch.autograd.grad(by_t, S)[0]  # the function is linear in t
        np.testing.assert_allclose(mixed, by_S.detach() / 2, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("i", range(4))
def test_derivatives_of_apply_reach_what_f_closes_over_in_compiled_programs(i):
    def f(t, S):
        A = applied(S)[i]
        return scaled_square(A, t, jnp.arange(1.0, A.shape[-1] + 1))

    value, (by_t, by_S) = jax.jit(jax.value_and_grad(f, (0, 1)))(2.0, jnp.asarray(SMALL))
    np.testing.assert_allclose(by_t, value / 2)
    assert np.abs(by_S).max() > 1


@pytest.mark.parametrize("method", ["Krylov", "SLQ"])
def test_derivatives_of_runs_by_what_f_closes_over_are_refused_and_not_zero(method):
    def f(A, t, b):
        if method == "Krylov":
            return scaled_square(A, t, b, co.Krylov())
        return co.trace(co.apply(lambda x: t * x**2, A, co.Krylov()), co.SLQ(probes=2))

    g = lambda t: f(co.PD(co.Dense(jnp.asarray(SMALL))), t, jnp.ones(3))
    for transform in (jax.grad(g), jax.jit(jax.grad(g)), jax.grad(jax.jit(g))):
        with pytest.raises(NotImplementedError, match="closes over"):
            transform(2.0)
    assert jax.jit(g)(2.0) > 1
    t, S = (
        torch.tensor(2.0, dtype=torch.float64, requires_grad=True),
        torch.tensor(SMALL, requires_grad=True),
    )
    value = f(co.PD(co.Dense(S)), t, torch.ones(3, dtype=torch.float64))
    with pytest.raises(NotImplementedError, match="closes over"):
        value.backward()


def test_a_function_that_fails_when_it_is_probed_says_so_and_loses_no_derivative():
    t = torch.ones(4, 1, requires_grad=True)

    def multiply(X):
        if X.shape[-1] == 1:
            raise RuntimeError("only blocks, please")
        return t * X

    with pytest.raises(RuntimeError, match="only blocks"):
        co.MatrixFree(multiply, (4, 4), like=t)
    with pytest.raises(RuntimeError, match="only blocks"):
        jax.jit(
            lambda t: (
                co.MatrixFree(lambda X: t * multiply(X), (4, 4), like="jax") @ jnp.ones((4, 2))
            )
        )(2.0)


def test_a_kernel_is_differentiated_by_krylov_under_torch_func() -> None:
    """A backward pass inside a transform of torch.func may make no checkpoints."""
    torch = pytest.importorskip("torch")
    X, b = torch.linspace(0, 1, 4, dtype=torch.float64)[:, None], torch.ones(4, dtype=torch.float64)

    def value(length):
        K = co.Kernel(
            lambda x, y, l: torch.exp(-((x[:, None] - y[None]) ** 2).sum(-1) / l),
            X,
            parameters=(length,),
        )
        return (co.exp(co.SelfAdjoint(K), co.Krylov()) @ b).sum()

    length = torch.tensor(0.7, dtype=torch.float64)
    dense = lambda l: (torch.linalg.matrix_exp(torch.exp(-((X - X.T) ** 2) / l)) @ b).sum()
    torch.testing.assert_close(torch.func.grad(value)(length), torch.func.grad(dense)(length))
