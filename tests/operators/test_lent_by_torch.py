"""Eager calls of small tensors in the host's memory: NumPy computes them, and no one can tell but by the clock."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.frameworks import lent_by_torch

import colinear as co
from colinear.operators import neutral

torch = pytest.importorskip("torch")

N = 5


@pytest.fixture(autouse=True)
def _lent() -> Iterator[None]:
    with lent_by_torch():
        yield


@pytest.fixture
def loans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators whose functions NumPy has computed since the test began."""
    found: list[str] = []
    returned = neutral._Loan.returned

    def told(self, x):
        found.append(type(x).__name__)
        return returned(self, x)

    monkeypatch.setattr(neutral._Loan, "returned", told)
    return found


def positive(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    G = torch.from_numpy(np.random.default_rng(0).standard_normal((N, N)))
    return (G @ G.T + N * torch.eye(N)).to(dtype)


def kronecker(A: torch.Tensor) -> co.LinearOperator:
    return co.Kronecker(A, co.PSD(co.Dense(A)))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128], ids=str
)
def test_small_tensors_are_lent_and_results_are_of_torch(loans, dtype):
    A, b = positive(dtype), torch.ones(N * N, dtype=dtype)
    K = kronecker(A)
    x = co.solve(K, b)
    assert loans
    assert type(x) is torch.Tensor and x.dtype is dtype and not x.requires_grad
    tol = 1e3 * torch.finfo(dtype).eps
    assert torch.allclose(torch.kron(A, A) @ x, b, rtol=tol, atol=tol)
    for factor in (co.inv(K), co.cholesky(co.PSD(A)), *co.qr(A), *co.lu(A), co.eig(co.PSD(A))[1]):
        assert factor.backend == "torch" and factor.dtype is dtype
        assert all(isinstance(leaf, torch.Tensor) for leaf in factor.arrays())
        assert factor.device == torch.device("cpu")
    x, info = co.solve(K, b, info=True)
    assert isinstance(info.residual, torch.Tensor)
    x += 1  # memory of its own
    assert torch.equal(b, torch.ones_like(b))


def test_lazy_conjugates_are_what_they_stand_for(loans):
    A = positive(torch.complex128) + 1j * torch.eye(N)
    b = torch.arange(N, dtype=torch.float64) + 2j
    A, b = A.conj(), b.conj()
    assert A.is_conj()
    assert torch.allclose(A @ co.solve(A, b), b)
    assert loans


def test_what_is_recorded_is_not_lent(loans):
    A, b = positive().requires_grad_(), torch.ones(N * N, dtype=torch.float64)
    K = kronecker(A)
    co.solve(K, b).sum().backward()
    assert A.grad is not None and not loans
    co.solve(kronecker(positive()), b.requires_grad_()).sum().backward()
    assert b.grad is not None and not loans
    with torch.no_grad():
        x = co.solve(K, b)
    assert loans and not x.requires_grad
    module = torch.nn.Parameter(positive())
    with torch.inference_mode():
        assert torch.isfinite(co.logdet(kronecker(module)))


def test_derivatives_asked_for_later_are_recorded():
    A = positive()
    K = kronecker(A)
    value = co.logdet(K)
    A.requires_grad_()
    again = co.logdet(K)
    assert not value.requires_grad and again.requires_grad
    again.backward()
    # d log det(A ⊗ A) = 2 N tr(A^-1 dA)
    assert torch.allclose(A.grad, 2 * N * torch.linalg.inv(A.detach()))


def test_tensors_may_change():
    A = positive()
    K = kronecker(A)
    before = co.logdet(K)
    A.mul_(2.0)
    assert torch.allclose(co.logdet(K), before + N * N * np.log(4.0))
    A.data = 4 * positive()
    assert torch.allclose(co.logdet(K), before + N * N * np.log(16.0))


def test_nothing_is_lent_that_is_watched_or_transformed(loans):
    A, b = positive(), torch.ones(N * N, dtype=torch.float64)
    B = torch.stack([A, 2 * A])
    batched = torch.func.vmap(lambda A: co.logdet(kronecker(A)))(B)
    assert torch.allclose(batched[1] - batched[0], torch.tensor(N * N * np.log(4.0)))
    slope = torch.func.jvp(lambda A: co.logdet(kronecker(A)), (A,), (A,))[1]
    assert torch.allclose(slope, torch.tensor(2.0 * N * N, dtype=torch.float64))
    K = kronecker(A)
    constant = torch.func.vmap(lambda t: t * co.logdet(K))(torch.ones(2))
    assert torch.allclose(constant, co.logdet(K).to(constant))
    del loans[:]
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(b, b)
        tangent = torch.autograd.forward_ad.unpack_dual(co.solve(K, dual)).tangent
        assert torch.allclose(tangent, co.solve(K, b))
    assert not loans
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        co.solve(co.Dense(A), b[:N])
        K @ b
    assert counter.get_total_flops() > 0 and not loans


def test_large_half_and_mixed_tensors_are_torchs_own(loans):
    n = 200
    assert torch.isfinite(co.logdet(co.Dense(torch.eye(n) + 1)))
    A = positive()
    assert co.solve(A.float(), torch.ones(N).half()).dtype is torch.float32
    assert co.logdet(co.Dense(A.bfloat16())).dtype is torch.bfloat16
    scaled = torch.tensor(2.0, dtype=torch.float64) * co.Dense(A.float())
    assert co.solve(scaled, torch.ones(N)).dtype is torch.float32  # NumPy would make it float64
    assert not loans


def test_code_of_the_users_gets_tensors():
    class Mark(co.LinearOperator):
        d: object

        @property
        def shape(self):
            return (len(self.d), len(self.d))

        def _matmat(self, X):
            return torch.mul(self.d[:, None], X)

    A = Mark(torch.arange(1.0, 4.0))
    assert torch.allclose(A @ co.solve(A, torch.ones(3)), torch.ones(3))
    B = co.SelfAdjoint(positive())
    values, V = torch.linalg.eigh(positive())
    assert torch.allclose(
        co.apply(torch.sin, B).to_dense(), V @ torch.diag(values.sin()) @ V.T, atol=1e-9
    )


def test_errors_and_warnings_are_torchs():
    A = co.Dense(torch.zeros(N, N))
    with pytest.warns(co.ConvergenceWarning, match="SINGULAR") as record:
        co.solve(A, torch.ones(N))
    assert record[0].filename == __file__
    with pytest.raises(co.ConvergenceError) as failure:
        co.solve(A, torch.ones(N), on_failure="raise")
    assert not isinstance(failure.value.info.residual, np.generic | np.ndarray)
    with pytest.raises(co.ShapeError):
        co.solve(A, torch.ones(N + 1))
    with pytest.raises(co.BackendError, match="torch"):
        co.solve(A, np.ones(N))


def test_a_compiled_program_does_not_lend(loans):
    A = positive()
    program = torch.compile(lambda A, b: co.solve(co.Kronecker(A, A), b), backend="eager")
    b = torch.ones(N * N, dtype=torch.float64)
    assert torch.allclose(program(A, b), torch.linalg.solve(torch.kron(A, A), b))
    assert not loans
