"""Solves whose rules go by eigenvectors of parts of A: the solution has derivatives also where eigenvalues of the parts repeat."""

from __future__ import annotations

import numpy as np
import pytest

import colinear as co
from colinear.autodiff.functions import divided_differences
from colinear.backends import get

RNG = np.random.default_rng(0)
u = RNG.normal(size=(3, 1))
Q = np.linalg.qr(RNG.normal(size=(4, 4)))[0]
PARTS = u @ u.T, (Q * np.array([1.0, 1.0, 2.0, 2.0])) @ Q.T  # zero twice; each eigenvalue twice
RIGHT = RNG.normal(size=12)


def shifted(A, B):
    return co.Kronecker(co.PSD(co.Dense(A)), co.PSD(co.Dense(B))) + 0.5 * co.Identity(12)


def summed(A, B):
    return co.KroneckerSum(co.PSD(co.Dense(A)), co.PD(co.Dense(B)))


def two_products(A, B):
    return co.Kronecker(co.PSD(co.Dense(A)), co.PSD(co.Dense(B))) + 0.5 * co.Kronecker(
        co.PD(co.Dense(A @ A + A.new_ones(3).diag())), co.PD(co.Dense(B))
    )


def in_blocks(A, B):
    return co.BlockDiag(shifted(A, B), 2 * co.Identity(12))


DENSE = {
    shifted: lambda xp, A, B: xp.kron(A, B) + 0.5 * xp.eye(12),
    summed: lambda xp, A, B: xp.kron(A, xp.eye(4)) + xp.kron(xp.eye(3), B),
    two_products: lambda xp, A, B: xp.kron(A, B) + 0.5 * xp.kron(A @ A + xp.eye(3), B),
}


def of_structure(make, A, B, b):
    operator = make((A + A.T) / 2, (B + B.T) / 2)
    return (co.solve(operator, b) ** 2).sum()


def of_matrix(make, xp, A, B, b):
    return (xp.linalg.solve(DENSE[make](xp, (A + A.T) / 2, (B + B.T) / 2), b) ** 2).sum()


@pytest.mark.parametrize("make", [shifted, summed, two_products])
def test_in_torch_to_second_order(make):
    torch = pytest.importorskip("torch")
    torch.set_default_dtype(torch.float64)
    try:
        A, B, b = (torch.tensor(x, requires_grad=True) for x in (*PARTS, RIGHT))
        direction = [torch.tensor(RNG.normal(size=x.shape)) for x in (A, B, b)]
        found = []
        for f in (lambda *x: of_structure(make, *x), lambda *x: of_matrix(make, torch, *x)):
            first = torch.autograd.grad(f(A, B, b), (A, B, b), create_graph=True)
            along = sum((g * d).sum() for g, d in zip(first, direction))
            found.append([*first, *torch.autograd.grad(along, (A, B, b))])
            found[-1].append(
                torch.func.jvp(f, tuple(x.detach() for x in (A, B, b)), tuple(direction))[1]
            )
        for ours, theirs in zip(*found):
            torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)
    finally:
        torch.set_default_dtype(torch.float32)


def test_in_jax_under_jit_and_to_second_order():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    arrays = tuple(jnp.asarray(x) for x in (*PARTS, RIGHT))
    direction = tuple(jnp.asarray(RNG.normal(size=x.shape)) for x in arrays)
    found = []
    for f in (lambda *x: of_structure(shifted, *x), lambda *x: of_matrix(shifted, jnp, *x)):
        gradient = jax.grad(f, (0, 1, 2))
        found.append(jax.jit(lambda x, d, g=gradient: jax.jvp(g, x, d))(arrays, direction))
    for ours, theirs in zip(*(jax.tree.leaves(x) for x in found)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-8)


def test_a_rule_above_the_one_by_eigenvectors_does_not_matter():
    torch = pytest.importorskip("torch")
    A, B, b = (torch.tensor(x, requires_grad=True) for x in (*PARTS, RIGHT))
    both = torch.cat([b, b])
    x = co.solve(in_blocks(A, B), both)
    (x[:12] ** 2).sum().backward()
    expected = torch.autograd.grad((co.solve(shifted(A, B), b) ** 2).sum(), (A, B))
    for leaf, gradient in zip((A, B), expected):
        assert torch.isfinite(leaf.grad).all()
        torch.testing.assert_close(leaf.grad, gradient)


# ---------------------------------------------------------------------------------------------------- functions of the structure

SHIFT = 0.7


def root(xp, M):
    """The square root by Newton's iteration (Denman and Beavers), which any framework differentiates."""
    Y, Z = M, xp.eye(M.shape[-1], dtype=M.dtype)
    for _ in range(9):
        Y, Z = (Y + xp.linalg.inv(Z)) / 2, (Z + xp.linalg.inv(Y)) / 2
    return Y


def exponential(xp, M):
    return (
        xp.linalg.matrix_exp(M)
        if hasattr(xp.linalg, "matrix_exp")
        else __import__("jax").scipy.linalg.expm(M)
    )


def definite(A):
    return co.PD(co.Dense((A + A.mT) / 2))


STRUCTURES = {
    "product": lambda A, B: co.Kronecker(definite(A), definite(B)),
    "shifted": lambda A, B: co.PD(co.Kronecker(definite(A), definite(B)) + SHIFT * co.Identity(12)),
    "scaled and shifted": lambda A, B: co.PD(
        2.0 * co.Kronecker(definite(A), definite(B)) + SHIFT * co.Identity(12)
    ),
    "sum": lambda A, B: co.KroneckerSum(definite(A), definite(B)),
    "shifted sum": lambda A, B: co.PD(
        co.KroneckerSum(definite(A), definite(B)) + SHIFT * co.Identity(12)
    ),
    "three": lambda A, B: co.PD(
        co.Kronecker(definite(A), definite(B), definite(A)) + SHIFT * co.Identity(36)
    ),
    "blocks": lambda A, B: co.BlockDiag(definite(A), definite(B)),
    "shifted matrix": lambda A, B: definite(B) + SHIFT * co.Identity(4),
}
FUNCTIONS = {
    "inv": (co.inv, lambda xp, M: xp.linalg.inv(M)),
    "pinv": (co.pinv, lambda xp, M: xp.linalg.inv(M)),
    "exp": (co.exp, exponential),
    "sqrt": (co.sqrt, root),
    "isqrt": (co.isqrt, lambda xp, M: xp.linalg.inv(root(xp, M))),
    "power": (lambda A: co.power(A, 1.5), lambda xp, M: M @ root(xp, M)),
    "apply": (lambda A: co.apply(lambda x: x**3 - x, A), lambda xp, M: M @ M @ M - M),
}
SEEN = {
    "product": lambda F, n, b: F @ b[:n],
    "diagonal": lambda F, n, b: co.diag(F) if isinstance(F, co.LinearOperator) else F.diagonal(),
    "matrix": lambda F, n, b: F.to_dense() if isinstance(F, co.LinearOperator) else F,
}
FACTORS = np.diag([0.5, 0.5, 1.0]), (Q * np.array([0.5, 0.5, 1.5, 1.5])) @ Q.T


def losses(xp, structure, function, seen, b):
    """The same of the structure and of its matrix."""
    f, of_matrix = FUNCTIONS[function]

    def ours(A, B):
        operator = STRUCTURES[structure](A, B)
        return (SEEN[seen](f(operator), operator.shape[-1], b) ** 3).sum()

    def theirs(A, B):
        M = STRUCTURES[structure](A, B).to_dense()
        return (SEEN[seen](of_matrix(xp, M), len(M), b) ** 3).sum()

    return ours, theirs


@pytest.fixture
def doubles():
    torch = pytest.importorskip("torch")
    torch.set_default_dtype(torch.float64)
    yield torch
    torch.set_default_dtype(torch.float32)


def close_to(torch, ours, theirs):
    for x, y in zip(ours, theirs, strict=True):
        x, y = (torch.zeros(()) if z is None else z for z in (x, y))
        torch.testing.assert_close(
            x, y.expand_as(x), rtol=1e-9, atol=1e-9 * float(y.abs().max() + 1)
        )


@pytest.mark.filterwarnings("error::colinear.DerivativeWarning")
@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_functions_have_their_derivatives_in_torch(doubles, structure, function, seen):
    torch = doubles
    A, B = (torch.tensor(x, requires_grad=True) for x in FACTORS)
    ours, theirs = losses(torch, structure, function, seen, torch.tensor(np.resize(RIGHT, 36)))
    close_to(
        torch, *(torch.autograd.grad(f(A, B), (A, B), allow_unused=True) for f in (ours, theirs))
    )


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize(
    ("structure", "function"),
    [("shifted", "sqrt"), ("shifted", "inv"), ("sum", "isqrt"), ("three", "apply")],
)
def test_functions_have_their_derivatives_in_jax(structure, function, seen):
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    arrays = tuple(jnp.asarray(x) for x in FACTORS)
    direction = tuple(
        jnp.asarray((x + x.T) / 2) for x in (RNG.normal(size=x.shape) for x in FACTORS)
    )
    ours, theirs = losses(jnp, structure, function, seen, jnp.asarray(np.resize(RIGHT, 36)))
    # of a symmetric matrix, so the derivative along a symmetric direction is known
    gradient = jax.grad(theirs, (0, 1))(*arrays)
    along = sum((g * d).sum() for g, d in zip(gradient, direction, strict=True))
    found = (
        (jax.jit(jax.grad(ours, (0, 1)))(*arrays), jax.jvp(ours, arrays, direction)[1]),
        (gradient, along),
    )
    for ours, theirs in zip(*(jax.tree.leaves(x) for x in found), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9 * float(abs(theirs).max()))


@pytest.mark.parametrize("seen", ["product", "diagonal"])
@pytest.mark.parametrize("function", ["sqrt", "inv"])
def test_functions_of_complex_factors_and_place_by_place(doubles, monkeypatch, function, seen):
    torch = doubles
    monkeypatch.setattr("colinear.autodiff.kronecker.LARGEST", 1)
    rng = np.random.default_rng(1)
    bases = [
        np.linalg.qr(rng.normal(size=(n, n)) + 1j * rng.normal(size=(n, n)))[0] for n in (3, 4)
    ]
    values = [1.0, 1.0, 2.0], [1.0, 1.0, 3.0, 3.0]
    A, B = (
        torch.tensor((V * v) @ V.conj().T, requires_grad=True)
        for V, v in zip(bases, values, strict=True)
    )
    b = torch.tensor(rng.normal(size=12) + 1j * rng.normal(size=12))
    function, of_matrix = FUNCTIONS[function]
    for flip in (lambda F: F, lambda F: F.T, lambda F: F.H, lambda F: F.conj()):

        def ours(A, B, flip=flip):
            A, B = (co.PD(co.Dense((X + X.mH) / 2)) for X in (A, B))
            return (
                SEEN[seen](
                    flip(function(co.PD(co.Kronecker(A, B) + SHIFT * co.Identity(12)))), 12, b
                ).abs()
                ** 3
            ).sum()

        def theirs(A, B, flip=flip):
            A, B = ((X + X.mH) / 2 for X in (A, B))
            return (
                SEEN[seen](
                    flip(of_matrix(torch, torch.kron(A, B) + SHIFT * torch.eye(12))), 12, b
                ).abs()
                ** 3
            ).sum()

        close_to(torch, *(torch.autograd.grad(f(A, B), (A, B)) for f in (ours, theirs)))


def test_functions_under_vmap_in_batches_and_to_second_order(doubles):
    torch = doubles
    B, b = torch.tensor(FACTORS[1]), torch.tensor(RIGHT)
    ours, theirs = losses(torch, "shifted", "sqrt", "product", b)
    stack = torch.stack([torch.eye(3), torch.tensor(FACTORS[0])])
    found = torch.func.vmap(torch.func.grad(ours), (0, None))(stack, B)
    close_to(torch, found, [torch.func.grad(theirs)(A, B) for A in stack])
    batch = torch.func.grad(
        lambda stack: ((co.sqrt(STRUCTURES["shifted"](stack, B)) @ b[:, None]) ** 3).sum()
    )(stack)
    close_to(torch, batch, found)
    distinct = torch.tensor(FACTORS[0]) + torch.diag(torch.tensor([0.1, 0.5, 1.1]))
    spread = B + torch.diag(torch.arange(4) / 7)
    close_to(torch, *([torch.func.hessian(f)(distinct, spread)] for f in (ours, theirs)))


def test_second_derivatives_where_eigenvalues_repeat_are_no_numbers_and_a_warning(doubles):
    torch = doubles
    A, B = (torch.tensor(x, requires_grad=True) for x in FACTORS)
    ours, _ = losses(torch, "shifted", "sqrt", "product", torch.tensor(RIGHT))
    first = torch.autograd.grad(ours(A, B), A, create_graph=True)[0]
    with pytest.warns(co.DerivativeWarning, match="values repeat"):
        second = torch.autograd.grad((first * torch.tensor(RNG.normal(size=(3, 3)))).sum(), A)[0]
    assert torch.isnan(second).any()


def test_the_diagonal_between_kronecker_products(doubles):
    """As the variances of a Gaussian process on a grid need it."""
    torch = doubles
    A, B = (torch.tensor(x, requires_grad=True) for x in FACTORS)
    left = torch.tensor(RNG.normal(size=(2, 3))), torch.tensor(RNG.normal(size=(5, 4)))
    right = [x.T.clone().requires_grad_() for x in left]
    F = co.inv(STRUCTURES["shifted"](A, B))
    between = co.Kronecker(*map(co.Dense, left)) @ F @ co.Kronecker(*map(co.Dense, right))
    assert co.explain(co.diag, between).rule == "diag_between_kroneckers"
    M = (
        torch.kron(*left)
        @ torch.linalg.inv(STRUCTURES["shifted"](A, B).to_dense())
        @ torch.kron(*right)
    )
    close_to(
        torch,
        *(
            torch.autograd.grad((d**3).sum(), (A, B, *right))
            for d in (co.diag(between), M.diagonal())
        ),
    )


@pytest.mark.parametrize("function", ["inv", "pinv", "solve"])
def test_complex_shifts_are_kept_where_derivatives_are_recorded(doubles, function):
    """A ⊗ B + z I is no self-adjoint operator."""
    torch, z = doubles, 0.3 + 1j
    jax = pytest.importorskip("jax")
    b = RIGHT + 0j
    expected = np.linalg.solve(np.kron(*FACTORS) + z * np.eye(12), b)

    def found(A, B, b):
        operator = co.Kronecker(definite(A), definite(B)) + z * co.Identity(12)
        return co.solve(operator, b) if function == "solve" else getattr(co, function)(operator) @ b

    in_torch = found(*(torch.tensor(x, requires_grad=True) for x in FACTORS), torch.tensor(b))
    in_jax = jax.jit(found)(*(jax.numpy.asarray(x) for x in (*FACTORS, b)))
    np.testing.assert_allclose(in_torch.detach(), expected, rtol=1e-12)
    np.testing.assert_allclose(in_jax, expected, rtol=1e-12)


@pytest.mark.parametrize("function", ["inv", "pinv", "isqrt"])
def test_functions_leave_a_compiled_program(function):
    jax = pytest.importorskip("jax")
    arrays = tuple(jax.numpy.asarray(x) for x in (*FACTORS, RIGHT))
    made = jax.jit(lambda A, B: getattr(co, function)(STRUCTURES["shifted"](A, B)))(*arrays[:2])
    found = made @ (made @ arrays[2]) if function == "isqrt" else made @ arrays[2]
    expected = np.linalg.solve(np.kron(*FACTORS) + SHIFT * np.eye(12), RIGHT)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_all_else_goes_by_eigenvectors(doubles):
    torch = doubles
    A, B = (torch.tensor(x, requires_grad=True) for x in FACTORS)
    operator = STRUCTURES["shifted"](A, B)
    M = operator.to_dense().detach()
    inverse, R = co.inv(operator), co.sqrt(operator)
    assert co.inv(inverse) is operator
    values = torch.linalg.eigvalsh(M)
    torch.testing.assert_close(co.trace(R), values.sqrt().sum())
    torch.testing.assert_close(co.logdet(inverse), -values.log().sum())
    torch.testing.assert_close(co.eig(inverse)[0].sort()[0], (1 / values).sort()[0])
    torch.testing.assert_close(co.svd(R)[1], values.sqrt().flip(0))
    torch.testing.assert_close(co.log(R).to_dense(), co.log(co.PD(co.Dense(M))).to_dense() / 2)
    torch.testing.assert_close(co.pinv(R) @ (R @ torch.ones(12)), torch.ones(12))
    assert repr(inverse).endswith("^-1>") and "f(" in repr(R)


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_vectors_that_serve_a_whole_batch_have_derivatives_of_each_matrix(framework):
    autodiff = pytest.importorskip("torch.func" if framework == "torch" else "jax")
    xp = get(framework)
    S, c = np.stack([PARTS[1], PARTS[1] + 1]), np.array([1.0, 2.0])

    def f(c, S):
        return co.trace(co.inv(co.KroneckerSum(co.ScaledIdentity(c, 2), co.PD(co.Dense(S))))).sum()

    found = autodiff.grad(f)(xp.asarray(c), xp.asarray(S))
    expected = [
        -2 * np.trace(np.linalg.inv((M + x * np.eye(4)) @ (M + x * np.eye(4))))
        for x, M in zip(c, S)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize(
    ("f", "slope"),
    [
        (lambda x: (x + 0.5) ** 3 - (x + 0.5), 2.0),
        (lambda x: (x + 100).sin() - np.sin(100.5), np.cos(100.5)),
    ],
)
def test_divided_differences_near_a_zero_of_the_function(doubles, f, slope):
    """There its rounding error is not relative to its value, but to the terms that cancel."""
    torch = doubles
    a = torch.full((200,), 0.5)
    b = a + torch.arange(200) * np.finfo(float).eps
    found = divided_differences(get("torch"), f, a, b)
    torch.testing.assert_close(found, torch.full((200,), slope), rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("function", ["inv", "log", "sqrt"])
def test_a_real_factor_with_fourier_vectors_is_taken_with_real_ones(doubles, function):
    """Found by the fuzzer: the real parts of Fourier vectors, which are no eigenvectors, were."""
    torch = doubles
    d = torch.tensor([0.3, 2.5], requires_grad=True)
    c = torch.tensor([4.0, -0.3, -0.3], requires_grad=True)

    def f(d, c):
        A = co.KroneckerSum(co.Diagonal(d), co.PD(co.Circulant((c + c[[0, 2, 1]]) / 2)))
        return getattr(co, function)(A).to_dense()

    with torch.no_grad():
        expected = torch.real(f(d, c))
    torch.testing.assert_close(f(d, c), expected)
    assert torch.autograd.gradcheck(f, (d, c))
