"""`torch.compile(fullgraph=True)` sees through operators, and multiplies from the right side."""

from __future__ import annotations

import pytest

import colinear as co

torch = pytest.importorskip("torch")
co.backends.get("torch")  # torch.compile cannot trace the import that the first tensor causes


def compiled(f):
    torch._dynamo.reset()
    return torch.compile(f, fullgraph=True, backend="eager")


@pytest.fixture
def parts():
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(size, generator=generator, dtype=torch.float64)
        for size in ((3, 3), (3,), (3, 2))
    ]


def test_the_sides_of_a_product_are_not_swapped(parts):
    a, x, X = parts
    A = co.Dense(a)
    torch.testing.assert_close(compiled(lambda A, x: A @ x)(A, x), a @ x)
    torch.testing.assert_close(compiled(lambda A, x: x @ A)(A, x), x @ a)
    torch.testing.assert_close(compiled(lambda A, x: torch.matmul(A, x))(A, X), a @ X)
    torch.testing.assert_close(compiled(lambda A, x: torch.matmul(x, A))(A, x), x @ a)


def test_differences_with_tensors_keep_their_sign(parts):
    a = parts[0]
    B = torch.eye(3, dtype=a.dtype)
    torch.testing.assert_close(compiled(lambda A, B: (A - B).to_dense())(co.Dense(a), B), a - B)
    torch.testing.assert_close(compiled(lambda A, B: (B - A).to_dense())(co.Dense(a), B), B - a)


def test_operators_can_be_built_inside(parts):
    a, x, _ = parts

    def f(a, x):
        A = 2.0 * co.Kronecker(co.Dense(a), co.Identity(2)) + co.Diagonal(
            torch.ones(6, dtype=a.dtype)
        )
        return A @ torch.cat([x, x])

    torch.testing.assert_close(compiled(f)(a, x), f(a, x))


# ---------------------------------------------------------------------------------------------------- derivatives, iterations


def definite(n):
    generator = torch.Generator().manual_seed(1)
    M = torch.randn(n, n, generator=generator, dtype=torch.float64)
    return M @ M.T / n + torch.eye(n, dtype=torch.float64), torch.randn(
        n, generator=generator, dtype=torch.float64
    )


def assert_same_values_and_gradients(f, *arguments, backend="eager"):
    torch._dynamo.reset()
    leaves = [x.clone().requires_grad_() for x in arguments]
    answer, expected = torch.compile(f, fullgraph=True, backend=backend)(*leaves), f(*leaves)
    torch.testing.assert_close(answer, expected)
    gradients, wanted = (torch.autograd.grad(x.square().sum(), leaves) for x in (answer, expected))
    torch.testing.assert_close(gradients, wanted)


def test_a_solve_by_eigenvectors_of_factors_compiles_with_its_gradient():
    B, C = definite(2)[0], definite(3)[0]
    b = torch.ones(6, dtype=B.dtype)
    assert_same_values_and_gradients(
        lambda B, C: co.solve(co.Kronecker(co.PD(B), co.PD(C)) + 0.1 * co.Identity(6), b), B, C
    )


@pytest.mark.parametrize(
    "solve",
    [
        lambda M, b: co.solve(co.PD(M), b, method=co.CG(tol=1e-12, preconditioner=co.Jacobi())),
        lambda M, b: co.solve(co.Dense(M) + 0.5 * co.Identity(30), b, method=co.GMRES(tol=1e-12)),
        lambda M, b: co.lstsq(M[:, :20], b, method=co.LSMR(tol=1e-12)),
    ],
    ids=["CG", "GMRES", "LSMR"],
)
def test_an_iteration_is_one_node_of_the_graph(solve):
    M, b = definite(30)
    nodes = []

    def backend(graph, inputs):
        nodes.append(len(graph.graph.nodes))
        return graph.forward

    assert_same_values_and_gradients(solve, M, b, backend=backend)
    assert max(nodes) < 300  # unrolled, thirty rows make ten thousand


def test_an_iteration_compiles_to_machine_code_with_its_gradient():
    M, b = definite(5)
    assert_same_values_and_gradients(
        lambda M, b: co.solve(co.PD(M), b, method=co.CG(tol=1e-12)), M, b, backend="inductor"
    )


def test_a_compiled_iteration_tells_its_status():
    M, b = definite(8)
    f = compiled(lambda M, b: co.solve(co.PD(M), b, method=co.CG(max_iters=2), info=True))
    _, info = f(M, b)
    assert info.status is co.Status.MAX_ITERATIONS
    g = compiled(lambda M, b: co.solve(co.PD(M), b, method=co.CG(max_iters=2)))
    with pytest.warns(co.ConvergenceWarning, match="MAX_ITERATIONS"):
        g(M, b)


def test_a_compiled_iteration_that_auto_chose_tells_its_status():
    d, b = torch.logspace(-12, 0, 4000, dtype=torch.float64), torch.ones(4000, dtype=torch.float64)
    f = compiled(lambda d, b: co.solve(co.opaque(co.Diagonal(d)), b, co.Auto(max_iters=3)))
    with pytest.warns(co.ConvergenceWarning, match="MAX_ITERATIONS"):
        f(d, b)


def test_an_iteration_with_a_function_leaves_the_graph():
    M, b = definite(4)
    A = co.PD(co.MatrixFree(lambda X: M @ X, (4, 4), dtype=M.dtype, like=M))
    torch._dynamo.reset()
    answer = torch.compile(lambda b: co.solve(A, b, method=co.CG()), backend="eager")(b)
    torch.testing.assert_close(M @ answer, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "f", [lambda A, x: A @ x, lambda A, x: co.solve(A, x), lambda A, x: x * co.logdet(A)]
)
def test_what_an_operator_remembers_does_not_make_torch_compile_again(parts, f):
    a, x, X = parts
    graphs = []

    def count(graph, inputs):
        graphs.append(graph)
        return graph.forward

    for A in (co.Kronecker(a, a), co.Diagonal(x**2 + 1) + co.LowRank(X), co.Dense(a)):
        torch._dynamo.reset()
        graphs.clear()
        b = torch.ones(A.shape[-1], dtype=a.dtype)
        again = torch.compile(f, fullgraph=True, backend=count)
        answers = [again(A, b) for _ in range(3)]
        assert len(graphs) == 1
        torch.testing.assert_close(answers[2], f(A, b))
