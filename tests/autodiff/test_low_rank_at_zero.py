"""c I + U U^H has its derivatives where U is zero, as adapters start, or of lower rank; what has none there is a warning, never silent."""

import numpy as np
import pytest

import colinear as co

torch = pytest.importorskip("torch")

ROWS, RANK = 5, 2
RNG = np.random.default_rng(0)
U = torch.tensor(RNG.normal(size=(ROWS, RANK)))
V = torch.tensor(RNG.normal(size=(ROWS, RANK)))
b = torch.tensor(RNG.normal(size=ROWS))
E = torch.eye(ROWS, dtype=torch.float64)
PARTS = {"zero": 0 * U, "dependent": U[:, :1] * torch.tensor([[1.0, 2.0]]), "independent": U}


def of_spectrum(f):
    """f of a self-adjoint matrix without derivatives of eigenvectors: by a polynomial through nodes that hold the spectrum."""
    nodes = 2.0 + 15.0 * (1 - np.cos(np.pi * (np.arange(30) + 0.5) / 30)) / 2
    values = np.polynomial.chebyshev.Chebyshev.fit(nodes, f(nodes), 29, domain=[2.0, 17.0]).coef

    def of(M):
        X = (2 * M - 19 * E) / 15  # the spectrum in [-1, 1]
        before, now = E, X
        total = values[0] * before + values[1] * now
        for c in values[2:]:
            before, now = now, 2 * X @ now - before
            total = total + c * now
        return total

    return of


FUNCTIONS = {
    "exp": (lambda A: co.exp(-0.3 * A) @ b, lambda M: torch.matrix_exp(-0.3 * M) @ b),
    "exp itself": (lambda A: co.exp(A) @ b * 1e-5, lambda M: torch.matrix_exp(M) @ b * 1e-5),
    "sqrt": (lambda A: co.sqrt(A) @ b, lambda M: of_spectrum(np.sqrt)(M) @ b),
    "isqrt": (lambda A: co.isqrt(A) @ b, lambda M: of_spectrum(lambda x: x**-0.5)(M) @ b),
    "log": (lambda A: co.log(A) @ b, lambda M: of_spectrum(np.log)(M) @ b),
    "power": (lambda A: co.power(A, 1.5) @ b, lambda M: of_spectrum(lambda x: x**1.5)(M) @ b),
    "square": (lambda A: co.power(A, 2) @ b, lambda M: M @ M @ b),
    "apply": (lambda A: co.apply(lambda x: x**3, A) @ b, lambda M: M @ M @ M @ b),
    "pinv": (lambda A: co.pinv(A) @ b, lambda M: torch.linalg.solve(M, b)),
    "lstsq": (lambda A: co.lstsq(A, b), lambda M: torch.linalg.solve(M, b)),
    "norm": (co.norm, torch.linalg.norm),
    "trace": (lambda A: co.trace(co.sqrt(A)), lambda M: of_spectrum(np.sqrt)(M).trace()),
}


def gradients(f, *arrays):
    moving = [x.clone().requires_grad_() for x in arrays]
    return torch.autograd.grad(f(*moving).sum(), moving)


def assert_close(found, expected, tol=1e-7):
    for x, y in zip(found, expected, strict=True):
        assert float((x - y).detach().abs().max()) <= tol * max(1.0, float(y.detach().abs().max()))


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_have_their_gradients(function, part):
    ours, theirs = FUNCTIONS[function]
    c = torch.tensor(2.0, dtype=torch.float64)
    found = gradients(lambda U, c: ours(co.ScaledIdentity(c, ROWS) + co.LowRank(U)), PARTS[part], c)
    assert_close(found, gradients(lambda U, c: theirs(c * E + U @ U.T), PARTS[part], c))


def test_second_derivatives_and_forward_mode_at_zero():
    for ours, theirs in (FUNCTIONS["exp"], FUNCTIONS["square"], FUNCTIONS["norm"]):
        ours, theirs = (
            lambda U, f=ours: f(2.0 * co.Identity(ROWS) + co.LowRank(U)).sum(),
            lambda U, f=theirs: f(2.0 * E + U @ U.T).sum(),
        )
        assert_close([torch.func.hessian(ours)(0 * U)], [torch.func.hessian(theirs)(0 * U)])
        assert_close([torch.func.jvp(ours, (U,), (V,))[1]], [torch.func.jvp(theirs, (U,), (V,))[1]])


def test_norms_where_a_factor_loses_rank():
    D = torch.arange(1.0, ROWS + 1, dtype=torch.float64)
    for left, right in ((U, PARTS["dependent"]), (0 * U, V), (0 * U, 0 * V)):
        for ours, theirs in (
            (
                lambda U, V: co.norm(2.0 * co.Identity(ROWS) + co.LowRank(U, V)),
                lambda U, V: torch.linalg.norm(2 * E + U @ V.T),
            ),
            (
                lambda U, V: co.norm(co.Diagonal(D) + co.LowRank(U, V)),
                lambda U, V: torch.linalg.norm(D.diag() + U @ V.T),
            ),
        ):
            assert_close(gradients(ours, left, right), gradients(theirs, left, right))


def test_the_norm_of_a_low_rank_operator_has_second_derivatives_at_every_scale():
    for scale in (1.0, 1e-170, 1e170):
        found = torch.func.hessian(lambda V, U=scale * U: co.norm(co.LowRank(U, V)))(V) / scale
        assert_close([found], [torch.func.hessian(lambda V: torch.linalg.norm(U @ V.T))(V)])


@pytest.mark.parametrize(
    "function",
    [
        lambda A: co.eig(A)[0].real @ b,
        lambda A: co.eigmax(A).real,
        lambda A: co.svd(A)[1] @ b,
        lambda A: co.norm(A, 2),
        lambda A: co.cond(A),
    ],
    ids=["eig", "eigmax", "svd", "norm", "cond"],
)
def test_what_has_no_gradient_is_a_warning(function):
    for make in (
        lambda U: 2.0 * co.Identity(ROWS) + co.LowRank(U),
        lambda U: 2.0 * co.Identity(ROWS) + co.LowRank(U, V),
    ):
        moving = (0 * U).requires_grad_()
        with pytest.warns(co.DerivativeWarning):
            found = torch.autograd.grad(function(make(moving)), moving)[0]
        assert not bool(torch.isfinite(found).all())


def test_qr_of_dependent_columns_is_a_warning_and_of_others_as_in_torch():
    weights = (
        torch.tensor(RNG.normal(size=(ROWS, RANK))),
        torch.tensor(np.triu(RNG.normal(size=(RANK, RANK)))),
    )
    for A in (U, U + 1j * V):
        A = A.clone().requires_grad_()
        found = []
        for Q, R in ([x.to_dense() for x in co.qr(A)], torch.linalg.qr(A)):
            loss = (Q.abs() ** 2 * weights[0]).sum() + (R.abs() ** 2 * weights[1]).sum()
            found.append(torch.autograd.grad(loss, A))
        assert_close(*found)
    A = PARTS["dependent"].clone().requires_grad_()
    with pytest.warns(co.DerivativeWarning, match="qr: columns are dependent"):
        assert bool(
            torch.isnan(
                torch.autograd.grad((co.qr(A)[0].to_dense() * weights[0]).sum(), A)[0]
            ).any()
        )


def test_the_inverse_of_a_kronecker_product_with_a_low_rank_factor_at_zero():
    D = torch.tensor([1.0, 2.0], dtype=torch.float64)
    for f in (
        lambda X: co.trace(X),
        lambda X: co.diag(X) @ torch.arange(2.0 * ROWS, dtype=torch.float64),
    ):
        for factor in (
            co.Diagonal(D),
            co.Dense(torch.tensor([[1.0, 0.5], [0.2, 2.0]], dtype=torch.float64)),
        ):
            found = gradients(
                lambda U, f=f, D=factor: f(
                    co.inv(co.Kronecker(D, co.LowRank(U)) + 3.0 * co.Identity(2 * ROWS))
                ),
                0 * U,
            )
            assert_close(found, [0 * U])


def test_gradients_at_zero_in_jax():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    right, start = jnp.asarray(b.numpy()), jnp.zeros((ROWS, RANK))
    for f, slope in ((co.exp, np.exp(2.0)), (co.sqrt, 0.5 * 2.0**-0.5)):
        found = jax.grad(
            lambda U, c, f=f: (f(co.PD(co.ScaledIdentity(c, ROWS) + co.LowRank(U))) @ right).sum(),
            (0, 1),
        )(start, 2.0)
        np.testing.assert_allclose(found[0], 0 * start, atol=1e-14)
        np.testing.assert_allclose(found[1], slope * right.sum(), rtol=1e-12)
    with pytest.warns(co.DerivativeWarning):
        jax.grad(lambda U: co.eigmax(2.0 * co.Identity(ROWS) + co.LowRank(U)))(start)
        jax.effects_barrier()


def test_a_power_of_a_batch_of_low_rank_operators_has_its_derivative():
    X, Y = (torch.stack([U, V]).requires_grad_() for _ in range(2))
    torch.sum(co.power(co.LowRank(X), 3).to_dense()).backward()
    M = Y @ Y.mT
    torch.sum(M @ M @ M).backward()
    np.testing.assert_allclose(X.grad, Y.grad, atol=1e-9)


def test_factors_wider_than_tall_need_no_triangle():
    """Found by the fuzzer: that of [0 1] is singular."""
    U, V = (
        torch.tensor(x, dtype=torch.float64, requires_grad=True)
        for x in ([[0.0, 1.0]], [[1.0, -1.0]])
    )
    (x,) = co.lstsq(co.LowRank(U, V), torch.ones(1, dtype=torch.float64))  # 1 / (U V^T)
    x.backward()
    torch.testing.assert_close(U.grad, -(x.detach() ** 2) * V.detach())
    torch.testing.assert_close(V.grad, -(x.detach() ** 2) * U.detach())
