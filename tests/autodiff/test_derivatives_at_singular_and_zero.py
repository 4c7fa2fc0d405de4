"""Determinants and norms have their derivatives where the determinant is zero, a part of the norm is, or a scalar is 0 or 1."""

import itertools
import math

import numpy as np
import pytest

import colinear as co
from colinear.testing import forbid_dense

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

RNG = np.random.default_rng(3)
REGULAR = RNG.normal(size=(3, 3))
ONCE = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 0.0, 1.0]])  # of rank 2
TWICE = np.diag([0.0, 0.0, 2.0])  # of rank 1: the first derivative is zero, the second not
BATCH = np.stack([REGULAR, ONCE, TWICE])


def polynomial(M):
    """The determinant by Leibniz's formula."""
    n = M.shape[-1]
    total = 0
    for perm in itertools.permutations(range(n)):
        sign = round(np.linalg.det(np.eye(n)[list(perm)]))
        total = total + sign * math.prod([M[..., i, j] for i, j in enumerate(perm)])
    return total


def gradients(f, *arrays):
    moving = [torch.tensor(x, requires_grad=True) for x in arrays]
    return [g.numpy() for g in torch.autograd.grad(torch.real((1 + 2j) * f(*moving)).sum(), moving)]


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("matrices", [BATCH, BATCH * (1 + 2j)], ids=["real", "complex"])
def test_the_derivative_of_det_at_singular_matrices_is_the_adjugate(matrices):
    assert_close(gradients(co.det, matrices)[0], gradients(polynomial, matrices)[0])


@pytest.mark.parametrize("M", BATCH, ids=["regular", "once", "twice"])
def test_the_second_derivative_of_det_at_singular_matrices_is_that_of_the_polynomial(M):
    M = torch.tensor(M)
    expected = torch.autograd.functional.hessian(polynomial, M)
    assert_close(torch.autograd.functional.hessian(co.det, M), expected)
    assert_close(torch.func.jacfwd(torch.func.jacfwd(co.det))(M), expected)


def test_det_at_singular_matrices_is_differentiated_under_transformations_of_jax():
    expected = torch.stack(
        [torch.autograd.functional.hessian(polynomial, torch.tensor(M)) for M in BATCH]
    )
    slopes, curvatures = jax.jit(jax.vmap(lambda M: (jax.grad(co.det)(M), jax.hessian(co.det)(M))))(
        BATCH
    )
    assert_close(curvatures, expected)
    assert_close(slopes, jax.grad(lambda M: polynomial(M).sum())(BATCH))


SINGULAR = {
    "Tridiagonal": lambda l, d, u: co.Tridiagonal(l, d, u),
    "Diagonal": lambda l, d, u: co.Diagonal(d - 1),
    "Kronecker": lambda l, d, u: co.Kronecker(co.Diagonal(l - 1), co.Diagonal(d)),
    "BlockDiag": lambda l, d, u: co.BlockDiag(co.Diagonal(l - 1), co.Tridiagonal(l, d, u)),
    "Product": lambda l, d, u: co.Tridiagonal(l, d, u) @ co.Tridiagonal(u, d, l),
    "Hadamard": lambda l, d, u: co.Tridiagonal(l, d, u) * co.Dense(torch.tensor(ONCE)),
    "Scaled": lambda l, d, u: co.Scaled(l[0] - 1, co.Tridiagonal(l, d, u)),
    "Sum": lambda l, d, u: co.LowRank(d[:, None]) + co.Diagonal(d - 1),
}


@pytest.mark.parametrize("name", SINGULAR)
def test_det_of_singular_structure_has_the_derivative_of_its_matrix(name):
    # det = 1*(4-2) - 1*1*2 = 0
    diagonals = (np.array([1.0, 2.0]), np.array([1.0, 2.0, 2.0]), np.array([1.0, 1.0]))
    build = SINGULAR[name]
    found = gradients(lambda *x: co.det(build(*x)) + 0 * sum(d.sum() for d in x), *diagonals)
    expected = gradients(
        lambda *x: polynomial(build(*x).to_dense()) + 0 * sum(d.sum() for d in x), *diagonals
    )
    for x, y in zip(found, expected, strict=True):
        assert_close(x, y)


def outer(x, y):
    return co.Dense(x[:, None] * y)


SINGULAR_COMPOSITIONS = [
    lambda l, d, u: co.Tridiagonal(l, d, u),
    lambda l, d, u: co.Tridiagonal(l, d, u).H @ outer(d, d),
    lambda l, d, u: co.Scaled(l[0] - 1, co.BlockDiag(co.Diagonal(l - 1), co.Diagonal(d))),
    lambda l, d, u: co.Kronecker(outer(l, u), co.Diagonal(d)),
    lambda l, d, u: (
        co.LowRank(d[:, None], -d[:, None] / 9) + co.Diagonal(d / d)
    ),  # 1 - d^T d / 9 = 0
    lambda l, d, u: co.Block([[co.Diagonal(d), outer(d, d)], [co.Identity(3), outer(d, d)]]),
    lambda l, d, u: co.Circulant(d - d.mean()),
    lambda l, d, u: co.Circulant(
        d[np.array([0, 1, 0, 1])]
    ),  # its symbol is zero at a pair of conjugate frequencies
    lambda l, d, u: co.KroneckerSum(outer(l, d[:2]), co.Scaled(-2.5, outer(u, u))),  # 5 - 5 = 0
    lambda l, d, u: co.inv(co.Diagonal(d)) @ co.PSD(outer(d, d)),
]


def slopes_of_compositions(f, l, d, u):
    """The polynomials' slopes, and a function for each composition."""
    expected = [
        gradients(
            lambda *x, b=b: polynomial(b(*x).to_dense()) + 0 * sum(map(torch.sum, x)), l, d, u
        )
        for b in f
    ]
    return expected, [lambda *x, b=b: co.det(b(*x)) for b in f]


DIAGONALS = np.array([1.0, 2.0]), np.array([1.0, 2.0, 2.0]), np.array([1.0, 1.0])


def test_det_of_singular_compositions_is_differentiated_in_jax_where_values_cannot_be_seen():
    expected, functions = slopes_of_compositions(SINGULAR_COMPOSITIONS, *DIAGONALS)
    found = jax.jit(lambda *x: [jax.grad(f, (0, 1, 2))(*x) for f in functions])(*DIAGONALS)
    for slopes, others in zip(found, expected, strict=True):
        for x, y in zip(slopes, others, strict=True):
            assert_close(x, y)


def test_det_of_singular_compositions_is_differentiated_under_vmap_of_torch():
    expected, functions = slopes_of_compositions(SINGULAR_COMPOSITIONS, *DIAGONALS)
    batch = [torch.tensor(np.stack([x, x + 0.1])) for x in DIAGONALS]
    for f, others in zip(functions, expected, strict=True):
        slopes = torch.func.vmap(torch.func.grad(f, (0, 1, 2)))(*batch)
        for x, y in zip(slopes, others, strict=True):
            assert_close(x[0], y)


def test_det_of_a_singular_composition_neither_overflows_nor_forms_the_matrix():
    d = torch.ones(60, dtype=torch.float64).requires_grad_()
    A = co.BlockDiag(
        *(co.Dense(torch.diag(x)) for x in (d * 1e100, d[:59] * 1e-100, 1e-100 * (d[:1] - 1)))
    )
    with forbid_dense(60**2):
        slope = torch.autograd.grad(co.det(A), d)[0]
    assert_close(slope, np.eye(60)[0])


@pytest.mark.parametrize(
    "build", [SINGULAR_COMPOSITIONS[3], SINGULAR_COMPOSITIONS[8]], ids=["product", "sum"]
)
def test_the_second_derivative_of_det_of_singular_compositions_is_that_of_the_polynomial(build):
    l, d, u = map(torch.tensor, DIAGONALS)
    expected = torch.autograd.functional.hessian(lambda l: polynomial(build(l, d, u).to_dense()), l)
    assert_close(torch.autograd.functional.hessian(lambda l: co.det(build(l, d, u)), l), expected)


def test_logdet_keeps_its_derivative_within_det():
    """The estimates of blocks are logarithms, also where the determinant is asked for."""
    d = torch.tensor([2.0, 3.0], dtype=torch.float64, requires_grad=True)
    A = co.PD(co.BlockDiag(co.PD(co.Diagonal(d)), co.PD(co.Dense(torch.diag(d)))))
    assert_close(torch.autograd.grad(co.det(A, co.SLQ(seed=0)), d)[0], [36.0, 24.0])  # d_1^2 d_2^2


def test_logdet_of_a_singular_operator_warns_that_it_has_no_derivative():
    for build in (co.Dense, lambda M: co.Diagonal(M[2] - 1), lambda M: co.Kronecker(M, M)):
        M = torch.tensor(ONCE, requires_grad=True)
        with pytest.warns(co.DerivativeWarning, match="singular"):
            value = co.logdet(build(M))
        assert value == -math.inf
        assert not torch.isfinite(torch.autograd.grad(value, M)[0]).all()


def test_det_with_more_columns_than_rows_in_the_low_rank_term_has_an_exact_derivative():
    arrays = np.array([[-1e6, -1.2e6]]), np.array([[2.3e6, -2.5e5]]), np.array(13741.7)
    found = gradients(lambda U, V, c: co.det(co.LowRank(U, V) + co.ScaledIdentity(c, 1)), *arrays)
    for x, y in zip(found, (arrays[1], arrays[0], 1.0), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-10)


# ------------------------------------------------------------------------------- scalars that happen to be 0 or 1


@pytest.mark.parametrize("name", ["logdet", "norm", "svd", "pinv"])
def test_a_scalar_of_modulus_one_has_its_derivative(name):
    functions = {
        "logdet": (co.logdet, 3.0),
        "norm": (co.norm, math.sqrt(3)),
        "svd": (lambda A: co.svd(A)[1].sum(), 3.0),
        "pinv": (lambda A: co.trace(co.pinv(A)), -3.0),
    }
    f, slope = functions[name]
    c = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    assert_close(torch.autograd.grad(f(co.ScaledIdentity(c, 3)), c)[0], slope)
    assert_close(
        torch.autograd.grad(f(co.Scaled(c, co.Unitary(torch.eye(3).double()))), c)[0], slope
    )
    held = co.ScaledIdentity(jax.numpy.asarray(np.float64(1.0)), 3)
    assert_close(jax.grad(f)(held).c, slope)


def test_a_python_number_that_jax_differentiates_keeps_its_derivative():
    assert_close(jax.grad(lambda c: co.trace(co.inv(co.ScaledIdentity(c, 3))))(2.0), -0.75)
    assert_close(jax.grad(lambda c: co.logdet(co.ScaledIdentity(c, 3)))(2.0), 1.5)
    assert_close(jax.grad(lambda c: co.trace(co.exp(co.ScaledIdentity(c, 3))))(0.0), 3.0)


def test_a_multiple_that_is_zero_has_its_derivative():
    M = torch.tensor(REGULAR)
    for f in (co.logdet, lambda A: co.trace(co.inv(A))):
        a = torch.tensor(0.0, dtype=torch.float64, requires_grad=True)
        found = torch.autograd.grad(f(co.Scaled(a, co.Dense(M)) + co.ScaledIdentity(2.0, 3)), a)[0]
        again = torch.autograd.grad(f(co.Dense(a * M + 2 * torch.eye(3))), a)[0]
        assert_close(found, again)
        assert found != 0


# ------------------------------------------------------------------------------- norms


NORMS = {
    "Toeplitz": lambda x: co.Toeplitz(x, x),
    "Circulant": lambda x: co.Circulant(x),
    "Tridiagonal": lambda x: co.Tridiagonal(x[1:], x, x[1:]),
    "Diagonal": lambda x: co.Diagonal(x),
    "Dense": lambda x: co.Dense(x[:, None] * x),
    "LowRank": lambda x: co.LowRank(x[:, None]),
    "Product": lambda x: co.Diagonal(x) @ co.Circulant(x),
    "Kronecker": lambda x: co.Kronecker(co.Diagonal(x), co.Circulant(x)),
}


@pytest.mark.parametrize("name", NORMS)
def test_the_norm_of_a_block_that_is_zero_has_a_derivative(name):
    build = NORMS[name]
    x, y = (
        torch.tensor(v, dtype=torch.float64, requires_grad=True)
        for v in ([0.0, 0.0, 0.0], [3.0, 4.0])
    )
    slopes = torch.autograd.grad(co.norm(co.BlockDiag(build(x), co.Diagonal(y))), (x, y))
    assert_close(slopes[0], np.zeros(3))
    assert_close(slopes[1], [0.6, 0.8])
    assert_close(torch.autograd.grad(co.norm(build(x)), x)[0], np.zeros(3))
    assert_close(torch.func.grad(lambda x: co.norm(build(x)))(x.detach()), np.zeros(3))


def test_the_norm_of_a_block_that_is_zero_has_a_derivative_in_jax():
    def f(x, y):
        blocks = [
            co.Toeplitz(x, x),
            co.Dense(x[:, None] * x),
            co.LowRank(x[:, None]),
            co.Diagonal(y),
        ]
        return co.norm(co.BlockDiag(*blocks)) + co.norm(co.Diagonal(x))

    slopes = jax.jit(jax.grad(f, (0, 1)))(np.zeros(3), np.array([3.0, 4.0]))
    assert_close(slopes[0], np.zeros(3))
    assert_close(slopes[1], [0.6, 0.8])


def test_functions_of_a_batch_of_low_rank_operators_have_derivatives_where_one_scalar_serves_all():
    U = RNG.normal(size=(2, 4, 2))
    found = gradients(lambda U: co.trace(co.exp(co.LowRank(U))), U)
    expected = gradients(
        lambda U: torch.linalg.matrix_exp(U @ U.mT).diagonal(dim1=-2, dim2=-1).sum(-1), U
    )
    assert_close(found[0], expected[0])


def test_forward_mode_of_torch_takes_what_was_broadcast():
    xp = co.backends.get("torch")
    x = torch.ones(()).expand(3)
    assert_close(xp.jvp(lambda x: x**2, x, x)[1], [2.0, 2.0, 2.0])
