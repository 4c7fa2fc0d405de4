"""Inverses and determinants of Kronecker products and sums have their derivatives where factors are defective, or nearly so."""

import numpy as np
import pytest

import colinear as co
from colinear.functions.diagonal import rules as diagonal_rules

torch = pytest.importorskip("torch")

B = torch.tensor([[3.0, 0.5], [0.2, 2.0]], dtype=torch.float64)
C = torch.tensor([[1.0, 0.2], [0.1, 2.0]], dtype=torch.float64)
I = torch.eye(2, dtype=torch.float64)
RIGHT, WEIGHTS = torch.tensor([[1.0, 2.0, -1.0, 0.5], [1.0, -2.0, 3.0, 0.7]], dtype=torch.float64)

STRUCTURES = {  # the operator, and its matrix
    "sum": (lambda J, B: co.KroneckerSum(J, B), lambda J, B: torch.kron(J, I) + torch.kron(I, B)),
    "product": (
        lambda J, B: co.Kronecker(J, B) + 1.5 * co.Identity(4),
        lambda J, B: torch.kron(J, B) + 1.5 * torch.eye(4, dtype=J.dtype),
    ),
    "two products": (
        lambda J, B: co.Kronecker(J, B) + 2.0 * co.Kronecker(I, co.Dense(C)),
        lambda J, B: torch.kron(J, B) + 2.0 * torch.kron(I, C),
    ),
}
FUNCTIONS = {
    "inv": (
        lambda A: (co.inv(A) @ RIGHT) @ WEIGHTS,
        lambda M: torch.linalg.solve(M, RIGHT) @ WEIGHTS,
    ),
    "inv, transposed": (
        lambda A: (co.inv(A).T @ RIGHT) @ WEIGHTS,
        lambda M: torch.linalg.solve(M.mT, RIGHT) @ WEIGHTS,
    ),
    "pinv": (
        lambda A: (co.pinv(A) @ RIGHT) @ WEIGHTS,
        lambda M: torch.linalg.solve(M, RIGHT) @ WEIGHTS,
    ),
    "lstsq": (
        lambda A: co.lstsq(A, RIGHT) @ WEIGHTS,
        lambda M: torch.linalg.solve(M, RIGHT) @ WEIGHTS,
    ),
    "diag": (
        lambda A: co.diag(co.inv(A)) @ WEIGHTS,
        lambda M: torch.linalg.inv(M).diagonal() @ WEIGHTS,
    ),
    "trace": (lambda A: co.trace(co.inv(A)), lambda M: torch.linalg.inv(M).trace()),
    "logdet": (co.logdet, lambda M: torch.linalg.slogdet(M)[1]),
    "det": (co.det, torch.linalg.det),
    "solve_and_logdet": (
        lambda A: sum(x.sum() for x in co.solve_and_logdet(A, RIGHT)),
        lambda M: torch.linalg.solve(M, RIGHT).sum() + torch.linalg.slogdet(M)[1],
    ),
}
FACTORS = {
    f"{low:g}": torch.tensor([[2.0, 1.0], [low, 2.0]], dtype=torch.float64)
    for low in (0.3, 1e-10, 1e-14, 0.0)
}
FACTORS["repeated"] = 2 * I


def gradients(f, *arrays):
    moving = [x.clone().requires_grad_() for x in arrays]
    return torch.autograd.grad(f(*moving), moving)


def assert_close(found, expected, tol=1e-7):
    for x, y in zip(found, expected, strict=True):
        assert float((x - y).abs().max()) <= tol * float(y.abs().max())


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_gradients_are_those_of_the_matrix(structure, factor):
    make, matrix = STRUCTURES[structure]
    for ours, theirs in FUNCTIONS.values():
        found = gradients(lambda J, B, f=ours: f(make(J, B)), FACTORS[factor], B)
        assert_close(found, gradients(lambda J, B, f=theirs: f(matrix(J, B)), FACTORS[factor], B))


@pytest.mark.parametrize("structure", ["sum", "product"])
def test_the_diagonal_by_resolvents_is_right_too(monkeypatch, structure):
    monkeypatch.setattr(diagonal_rules, "PRODUCTS", 0)
    make, matrix = STRUCTURES[structure]
    ours, theirs = FUNCTIONS["diag"]
    for factor in ("0.3", "1e-14", "repeated"):
        found = gradients(lambda J, B: ours(make(J, B)), FACTORS[factor], B)
        assert_close(found, gradients(lambda J, B: theirs(matrix(J, B)), FACTORS[factor], B))


@pytest.mark.parametrize("structure", ["sum", "product"])
def test_determinants_of_large_factors_go_by_eigenvectors_where_these_are_good(
    monkeypatch, structure
):
    monkeypatch.setattr("colinear.autodiff.resolvents.CHEAP", 0)
    make, matrix = STRUCTURES[structure]
    ours, theirs = FUNCTIONS["logdet"]
    for factor in ("0.3", "repeated", "1e-10", "0"):
        for derivative in (gradients, hessian)[: 1 if factor == "0" else None]:
            found = derivative(lambda J, B: ours(make(J, B)), FACTORS[factor], B)
            assert_close(found, derivative(lambda J, B: theirs(matrix(J, B)), FACTORS[factor], B))


def test_a_self_adjoint_factor_of_many_rows_is_differentiated_by_the_equation(monkeypatch):
    monkeypatch.setattr("colinear.functions.matrix_functions.spectra.SMALL", 1)
    d = torch.tensor([2.0, 2.0, 2.0], dtype=torch.float64)  # its eigenvalues repeat
    e = torch.zeros(2, dtype=torch.float64)
    b = torch.arange(6.0, dtype=torch.float64)

    def ours(d, B):
        A = co.KroneckerSum(co.SelfAdjoint(co.Tridiagonal(e, d, e)), co.SelfAdjoint(B))
        return co.inv(A) @ b @ b + co.diag(co.inv(A)) @ b

    def theirs(d, B):
        M = torch.linalg.inv(
            torch.kron(torch.diag(d), I) + torch.kron(torch.eye(3, dtype=d.dtype), B)
        )
        return M @ b @ b + M.diagonal() @ b

    S = B @ B.T
    assert_close(gradients(ours, d, S), gradients(theirs, d, S))


def hessian(f, *arrays):
    moving = [x.clone().requires_grad_() for x in arrays]
    first = torch.autograd.grad(f(*moving), moving, create_graph=True)
    return torch.autograd.grad(
        sum((g * (i + 1 + x.detach().mT)).sum() for i, (g, x) in enumerate(zip(first, arrays))),
        moving,
    )


@pytest.mark.parametrize("structure", ["sum", "product"])
def test_second_derivatives_are_right_or_a_warning(structure):
    make, matrix = STRUCTURES[structure]
    for name in ("inv", "diag", "logdet"):
        ours, theirs = FUNCTIONS[name]
        for factor in ("0.3", "1e-10"):
            found = hessian(lambda J, B, f=ours: f(make(J, B)), FACTORS[factor], B)
            assert_close(
                found, hessian(lambda J, B, f=theirs: f(matrix(J, B)), FACTORS[factor], B), 1e-6
            )
    with pytest.warns(co.DerivativeWarning, match="defective"):
        hessian(lambda J, B: co.logdet(make(J, B)), FACTORS["0"], B)


def test_determinants_forwards_under_vmap_in_batches_with_complex_factors_and_a_scale():
    J = FACTORS["0"]

    def ours(J, B, c):
        return co.logdet(3.0 * co.Kronecker(J, B, C) + co.ScaledIdentity(c, 8))

    def theirs(J, B, c):
        return torch.linalg.slogdet(
            3.0 * torch.kron(torch.kron(J, B), C) + c[..., None, None] * torch.eye(8, dtype=J.dtype)
        )[1]

    c = torch.tensor(1.5, dtype=torch.float64)
    assert_close(gradients(ours, J, B, c), gradients(theirs, J, B, c))
    directions = (B, J, c)
    assert_close(*([torch.func.jvp(f, (J, B, c), directions)[1]] for f in (ours, theirs)))
    many = torch.stack([J, J + 0.1, B])
    assert_close(
        *(
            [torch.func.vmap(torch.func.grad(lambda J, f=f: f(J, B, c)))(many)]
            for f in (ours, theirs)
        )
    )
    each = [gradients(lambda J: theirs(J, B, c), M)[0] for M in many]
    assert_close(gradients(lambda J: ours(J, B, c).sum(), many), [torch.stack(each)])
    J = J + 1j * torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    found = gradients(
        lambda J: co.slogdet(co.KroneckerSum(J, B))[0].imag + co.logdet(co.KroneckerSum(J, B)), J
    )
    whole = lambda J: torch.linalg.slogdet(torch.kron(J, I + 0j) + torch.kron(I + 0j, B + 0j))
    assert_close(found, gradients(lambda J: whole(J)[0].imag + whole(J)[1], J))


def test_gradients_in_jax():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    E, b = jnp.eye(2), jnp.asarray(RIGHT.numpy())
    functions = {
        co.logdet: (lambda M: jnp.linalg.slogdet(M)[1], ("1e-10", "0")),
        lambda A: (co.inv(A) @ b).sum(): (lambda M: jnp.linalg.solve(M, b).sum(), ("1e-10",)),
    }
    for f, (g, factors) in functions.items():
        ours = jax.jit(jax.grad(lambda J, B, f=f: f(co.KroneckerSum(J, B)), (0, 1)))
        theirs = jax.jit(jax.grad(lambda J, B, g=g: g(jnp.kron(J, E) + jnp.kron(E, B)), (0, 1)))
        for factor in factors:
            arrays = jnp.asarray(FACTORS[factor].numpy()), jnp.asarray(B.numpy())
            for x, y in zip(ours(*arrays), theirs(*arrays), strict=True):
                np.testing.assert_allclose(x, y, rtol=0, atol=1e-8)


def test_the_derivative_of_eigenvalues_of_a_defective_matrix_is_a_warning():
    J = FACTORS["0"].clone().requires_grad_()
    (values, _), info = co.eig(J, info=True)
    assert info.failed
    with pytest.warns(co.DerivativeWarning, match="defective"):
        values.abs().sum().backward()


def test_a_rule_of_a_user_that_goes_by_eigenvectors_is_differentiated_by_its_equation():
    torch = pytest.importorskip("torch")

    class Symmetric(co.LinearOperator):
        A: co.backends.Array

        @property
        def shape(self):
            return tuple(self.A.shape)

        def _matmat(self, X):
            return self.A @ X

    @co.rule(co.inv, Symmetric, by_eigenvectors=True)
    def inv_by_eigenvectors(A, method):
        """V Λ V^H has the inverse V Λ^-1 V^H"""
        values, V = torch.linalg.eigh(A.A)
        return co.Dense(V / values @ V.mH)

    # repeated eigenvalues: eigenvectors have no derivative
    M = 2 * torch.eye(3, dtype=torch.float64)
    M.requires_grad_()
    (gradient,) = torch.autograd.grad(
        (co.inv(Symmetric(M)) @ torch.ones(3, dtype=torch.float64)).sum(), M
    )
    assert torch.allclose(gradient, -torch.ones(3, 3, dtype=torch.float64) / 4)


def test_a_derivative_of_apply_that_has_lost_its_digits_warns():
    torch = pytest.importorskip("torch")
    M = torch.tensor([[1.0, 1.0], [1e-14, 1.0]], dtype=torch.float64, requires_grad=True)
    with pytest.warns(co.DerivativeWarning, match="almost parallel"):
        co.apply(lambda z: z * z, co.Dense(M), on_failure="ignore")
