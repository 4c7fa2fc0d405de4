"""Orthonormal columns of tall matrices on a device: by Cholesky's factors where the condition allows it, else by reflections."""

from __future__ import annotations

from typing import Any

import pytest
from support.synchronisations import counted, pretended

import colinear as co

torch = pytest.importorskip("torch")

ROWS, COLUMNS = 9000, 12


def tall(dtype: Any, condition: float, is_recorded: bool = False) -> Any:
    """A matrix of this condition, singular for 0."""
    g = torch.Generator().manual_seed(0)
    Q = torch.linalg.qr(torch.randn(ROWS, COLUMNS, generator=g, dtype=dtype))[0]
    P = torch.linalg.qr(torch.randn(COLUMNS, COLUMNS, generator=g, dtype=dtype))[0]
    s = condition ** -torch.linspace(0, 1, COLUMNS) if condition else torch.arange(COLUMNS) / 1.0
    return ((Q * s.to(dtype)) @ P).requires_grad_(is_recorded)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("condition", [1.0, 500.0, 1e9, 0.0])
def test_columns_are_orthonormal_to_rounding(
    dtype: Any, condition: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    A, eps = tall(dtype, condition), torch.finfo(dtype).eps
    reflected = []
    xp: Any = co.Dense(A).xp
    plain = xp.qr
    monkeypatch.setattr(xp, "qr", lambda M: (reflected.append(M.shape), plain(M))[1])
    with pretended(), counted() as looks:
        Q, R = co.qr(A)
        assert (reflected == []) == (condition in (1.0, 500.0))
        assert len(looks) == (1 if not reflected else 2)
        Q, R = Q.to_dense(), R.to_dense()
    assert (Q.mH @ Q - torch.eye(COLUMNS)).norm() < 300 * eps
    assert (A - Q @ R).norm() < 30 * eps * A.norm()
    assert R.tril(-1).abs().max() == 0


def test_singular_values_and_least_squares_on_a_device_are_those_of_the_host() -> None:
    A = tall(torch.float64, 100.0)
    b = A.sum(-1) + torch.arange(ROWS) / ROWS
    L = co.LowRank(A, A + 0.1 * A.flip(1))
    expected = co.svd(L)[1], co.pinv(L) @ b, co.lstsq(A, b)
    with pretended():
        found = co.svd(L)[1], co.pinv(L) @ b, co.lstsq(A, b)
    for x, y in zip(found, expected):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-10)
    with pretended():
        x, info = co.lstsq(A, b, info=True)
    torch.testing.assert_close(x, expected[2], rtol=1e-8, atol=1e-10)
    residual = (b - A @ expected[2]).norm() / b.norm()
    assert info.status == co.Status.SUCCESS
    assert float(info.residual) == pytest.approx(float(residual), rel=1e-6)


def test_gradients_through_cholesky_twice_are_those_through_reflections() -> None:
    def gradient() -> Any:
        A = tall(torch.float64, 10.0, is_recorded=True)
        U, s, _ = co.svd(co.LowRank(A))
        (s[:COLUMNS].log().sum() + (U.to_dense()[0, :COLUMNS] ** 2).sum()).backward()
        return A.grad

    expected = gradient()
    with pretended():
        torch.testing.assert_close(gradient(), expected, rtol=1e-8, atol=1e-10)
