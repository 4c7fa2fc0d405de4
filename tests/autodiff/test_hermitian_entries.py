"""Complex matrices whose entries are seen to be Hermitian, though nobody has said so: derivatives along other
matrices are those of the matrix."""

from __future__ import annotations

from typing import Any

import pytest

import colinear as co

torch = pytest.importorskip("torch")

DENSE = [[3, 0.5j, 0.2], [-0.5j, 4, 0.1j], [0.2, -0.1j, 5]]
BANDS = [[0.5j, 0.5], [3, 4, 5], [-0.5j, 0.5]]
CONSTANT = [[1j, 1j], [3, 3, 3], [-1j, -1j]]
OTHER, GENERAL = [[2, 0.3j], [-0.3j, 3]], [[1, -2 + 1j], [1 - 1j, -1 - 1j]]


def tensor(x: Any) -> Any:
    return torch.tensor(x, dtype=torch.complex128)


def polynomial(K: Any) -> Any:
    return K @ K + K + 2 * co.Identity(K.shape[0])


def shifted(M: Any) -> Any:
    return M + 2.5 * co.Identity(M.shape[0])


OPERATORS: dict[str, Any] = {
    "matrix": (co.Dense, [DENSE]),
    "bands": (co.Tridiagonal, BANDS),
    "sum": (lambda *a: co.KroneckerSum(tensor(OTHER), co.Tridiagonal(*a)), BANDS),
    "sum, constant": (lambda *a: co.KroneckerSum(tensor(OTHER), co.Tridiagonal(*a)), CONSTANT),
    "sum with another": (lambda *a: co.KroneckerSum(tensor(GENERAL), co.Tridiagonal(*a)), BANDS),
    "shifted": (lambda *a: shifted(co.Kronecker(tensor(OTHER), co.Tridiagonal(*a))), BANDS),
    "polynomial": (lambda M: polynomial(co.Kronecker(tensor(OTHER), M)), [DENSE]),
    "polynomial, bands": (lambda *a: polynomial(co.KroneckerSum(tensor(OTHER), co.Tridiagonal(*a))), BANDS),
}  # fmt: skip
FUNCTIONS: dict[str, Any] = {
    "det": (co.det, torch.linalg.det),
    "sign": (lambda A: co.slogdet(A)[0], lambda M: torch.linalg.slogdet(M)[0]),
    "logdet": (co.logdet, lambda M: torch.linalg.slogdet(M)[1]),
    "eigenvalues": (lambda A: (co.eig(A)[0] ** 2).sum(), lambda M: torch.trace(M @ M)),
    "trace of the inverse": (lambda A: co.trace(co.inv(A)), lambda M: torch.trace(torch.linalg.inv(M))),
    "exponential": (lambda A: co.trace(co.exp(A)), lambda M: torch.trace(torch.matrix_exp(M))),
}  # fmt: skip


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_derivatives_leave_the_hermitian_matrices(operator: str, function: str) -> None:
    make, values = OPERATORS[operator]

    def gradients(f: Any, dense: bool) -> list[Any]:
        leaves = [tensor(x).requires_grad_() for x in values]
        A = make(*leaves)
        found = f(A.to_dense() if dense else A)
        (found * (1 - 2j)).real.backward()
        return [found.detach(), *(x.grad for x in leaves)]

    ours, reference = FUNCTIONS[function]
    for x, y in zip(gradients(ours, False), gradients(reference, True), strict=True):
        assert (x - y).abs().max() <= 1e-9 * (1 + y.abs().max())
