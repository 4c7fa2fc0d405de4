"""Kernels that users write, compiled for an iteration: here by a compiler that changes nothing, since the compiler of torch is slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import colinear as co

torch = pytest.importorskip("torch")
fused: Any = pytest.importorskip("colinear.backends.torch.fused")


def gaussian(X: Any, Y: Any, length: Any) -> Any:
    return torch.exp(-((X[:, None] - Y[None]) ** 2).sum(-1) / (2 * length**2))


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Arguments of the calls of what was compiled, of kernels of any size on a device."""
    calls: list[Any] = []

    def compile_nothing(k: Callable, **options: Any) -> Callable:
        def fast(*arguments: Any) -> Any:
            calls.append(arguments)
            return k(*arguments)

        return fast

    monkeypatch.setattr(torch, "compile", compile_nothing)
    monkeypatch.setattr(fused, "may_fuse", lambda x: True)
    monkeypatch.setattr(fused, "FEWEST_ENTRIES", 0)
    monkeypatch.setattr(fused, "_verdicts", {})
    monkeypatch.setattr(fused, "_seconds", lambda f, *arguments: f is gaussian)
    monkeypatch.setattr("colinear.operators.kernel.memory_to_store", lambda K: 0)
    return calls


def system() -> tuple[Any, Any]:
    X = torch.randn(60, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    K = co.Kernel(gaussian, X, parameters=(torch.tensor(0.7, dtype=torch.float64),))
    return co.PSD(K) + 0.1 * co.Identity(60), X.sum(1)


def test_an_iteration_compiles_a_kernel_once(compiled: list[Any]) -> None:
    A, b = system()
    assert fused.UNTRIED in A.operands[0].how
    x = co.solve(A, b, method=co.CG(tol=1e-10))
    assert len(compiled) > 5
    torch.testing.assert_close(A.to_dense() @ x, b, rtol=1e-8, atol=1e-8)
    assert A.operands[0].how.endswith("MiB, compiled")
    assert len(fused._verdicts) == 1
    co.solve(A, b + 1, method=co.CG())
    assert len(fused._verdicts) == 1


def test_products_alone_and_derivatives_compile_nothing(compiled: list[Any]) -> None:
    A, b = system()
    (A @ b).sum()
    length = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    K = co.Kernel(gaussian, A.operands[0].X, parameters=(length,))
    (K @ b).sum().backward()
    assert compiled == []


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda k: lambda *arguments: 1 / 0, "not compiled (ZeroDivisionError)"),
        (lambda k: lambda *arguments: 1.01 * k(*arguments), "gives other entries"),
        (lambda k: lambda *arguments: k(*arguments) * torch.nan, "gives other entries"),
        (lambda k: k, "which is as quick"),
    ],
)
def test_what_does_not_pay_is_not_compiled(
    compiled: list[Any], monkeypatch: pytest.MonkeyPatch, spoil: Any, why: str
) -> None:
    A, b = system()
    monkeypatch.setattr(torch, "compile", lambda k, **options: spoil(k))
    x = co.solve(A, b, method=co.CG(tol=1e-10))
    torch.testing.assert_close(A.to_dense() @ x, b, rtol=1e-8, atol=1e-8)
    assert why in A.operands[0].how


def test_other_arguments_that_cannot_be_compiled_take_the_kernel_itself(
    compiled: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    A, b = system()
    co.solve(A, b, method=co.CG())

    def fail(*arguments: Any) -> Any:
        raise RuntimeError("no program")

    monkeypatch.setattr(torch, "compile", lambda k, **options: fail)
    x = co.solve(A, b, method=co.CG(tol=1e-10))
    torch.testing.assert_close(A.to_dense() @ x, b, rtol=1e-8, atol=1e-8)
