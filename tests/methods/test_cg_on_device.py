"""CG where values are waited for. There is no GPU here, so the torch backend is told that nothing can be seen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.zoo import ZOO, accepts

import colinear as co
from colinear import backends
from colinear.methods.iterate import Outcome, Products
from colinear.methods.loop import Monitor
from colinear.methods.vectors import LOOK_EVERY, Code


def cg(xp: Any, multiply: Any, B: Any, precondition: Any = None, **options: Any) -> Outcome:
    products = Products(multiply, precondition=precondition, take_vectors=True)
    return co.CG().algorithm(xp, products, B, **options)


@pytest.fixture
def blind(monkeypatch: Any) -> Any:
    xp = backends.get("torch")
    monkeypatch.setattr(xp, "peek", lambda x: None)
    monkeypatch.setattr(xp, "dot_real", lambda x, y: torch.vdot(x, y).real)
    return xp


@pytest.mark.parametrize("name", [name for name, make in ZOO.items() if accepts("CG", make())])
def test_answers_and_statuses_are_those_of_the_host(name: str, blind: Any) -> None:
    problem = ZOO[name]()
    A, b = (torch.as_tensor(x) for x in (problem.A, problem.b[:, :1]))
    X0 = None if problem.x0 is None else torch.as_tensor(problem.x0[:, :1])
    arguments: dict[str, Any] = {
        "tol": 1e-8,
        "max_iters": 200,
        "X0": X0,
        "watch": Monitor(record=True),
    }
    found = cg(blind, lambda X: A @ X, b, **arguments)
    numpy = {**arguments, "X0": None if X0 is None else problem.x0[:, :1]}
    expected = cg(backends.get("numpy"), lambda X: problem.A @ X, problem.b[:, :1], **numpy)
    assert found.status.item() == expected.status.item()
    if expected.status.item() == int(co.Status.SUCCESS):
        assert found.residual.item() <= 1e-8
        assert not problem.easy or found.iterations.item() < expected.iterations.item() + LOOK_EVERY
        assert len(found.history) == found.iterations.item() + 1


CASES = [
    (method, name)
    for method in ("MINRES", "BiCGSTAB", "LSQR", "LSMR")
    for name, make in ZOO.items()
    if accepts(method, make())
]


@pytest.mark.parametrize("method, name", CASES)
def test_other_methods_come_to_the_same_on_one_vector(method: str, name: str, blind: Any) -> None:
    problem = ZOO[name]()
    results = []
    for xp, put in ((blind, torch.as_tensor), (backends.get("numpy"), np.asarray)):
        A, AH, b = (put(x) for x in (problem.A, problem.A.conj().T.copy(), problem.b[:, :1]))
        products = Products(lambda X, A=A: A @ X, lambda X, AH=AH: AH @ X, columns=A.shape[-1])
        options = {"tol": 1e-8, "max_iters": 200, "watch": Monitor()}
        with np.errstate(all="ignore"):
            results.append(getattr(co, method)().algorithm(xp, products, b, **options))
    found, expected = results
    assert found.X.shape == expected.X.shape
    assert found.status.item() == expected.status.item()
    if expected.status.item() == int(co.Status.SUCCESS):
        assert found.residual.item() <= max(1e-8, 1.01 * expected.residual.item())


def test_a_product_that_is_not_finite_spoils_nothing(blind: Any) -> None:
    A, calls = torch.diag(torch.linspace(1, 9, 12, dtype=torch.float64)), []

    def multiply(x: Any) -> Any:
        calls.append(x)
        return A @ x * (float("nan") if len(calls) == 4 else 1.0)

    found = cg(blind, multiply, torch.ones(12, 1, dtype=torch.float64), tol=1e-12, max_iters=100)
    assert found.status.item() == int(co.Status.NONFINITE)
    assert torch.isfinite(found.X).all()


def test_an_indefinite_operator_and_an_indefinite_preconditioner_are_told_apart(blind: Any) -> None:
    A = torch.diag(torch.tensor([1.0, 2.0, -3.0], dtype=torch.float64))
    b = torch.ones(3, 1, dtype=torch.float64)
    of_operator = cg(blind, lambda x: A @ x, b, tol=1e-10, max_iters=20)
    of_preconditioner = cg(
        blind, lambda x: torch.abs(A) @ x, b, tol=1e-10, max_iters=20, precondition=lambda x: -x
    )
    assert of_operator.status.item() == int(co.Status.NOT_POSITIVE_DEFINITE)
    assert of_preconditioner.status.item() == int(Code.PRECONDITIONER_INDEFINITE)


def test_complex_vectors_are_updated_by_real_numbers(blind: Any) -> None:
    rng = np.random.default_rng(0)
    M = rng.standard_normal((8, 8)) + 1j * rng.standard_normal((8, 8))
    A = torch.as_tensor(M @ M.conj().T + 8 * np.eye(8))
    found = cg(
        blind, lambda x: A @ x, torch.ones(8, 1, dtype=torch.complex128), tol=1e-10, max_iters=50
    )
    assert found.status.item() == 0 and found.residual.item() <= 1e-10
