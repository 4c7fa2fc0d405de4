"""Calls that are recorded as CUDA graphs and replayed."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.devices import cuda
from support.recorded_calls import FUNCTIONS, OPERATORS, answers, normal, well

import colinear as co
from colinear import backends
from colinear.operators import recorded

pytestmark = pytest.mark.gpu
VIEWED = ("dense", "complex", "conjugated", "psd", "batch", "triangular")  # nothing is launched
CALLS = recorded.RECORD_AFTER + 4


@pytest.fixture
def made(monkeypatch: Any) -> list[Any]:
    """The recordings, None for each that could not be made."""
    pytest.importorskip("torch")
    cuda("torch")
    xp, made = backends.get("torch"), []
    record = xp.record

    def counted(*arguments: Any) -> Any:
        made.append(record(*arguments))
        return made[-1]

    monkeypatch.setattr("colinear.dispatch.calls.LENDERS", frozenset({"torch"}))
    monkeypatch.setattr(xp, "record", counted)
    monkeypatch.setattr(recorded, "_kinds", {})
    return made


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_what_is_replayed_is_what_python_launches(
    made: Any, monkeypatch: Any, operator: str, function: str
) -> None:
    import torch

    found = answers(function, operator, CALLS, "cuda")
    monkeypatch.setattr(backends.get("torch"), "recorder", lambda context: None)
    for x, y in zip(found, answers(function, operator, CALLS, "cuda"), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)
    is_view = function == "diag" and operator in VIEWED
    assert is_view or operator == "permuted" or (made and all(made))


def test_a_replayed_call_waits_once(made: Any) -> None:
    import torch
    from support.synchronisations import counted_on_device

    g = torch.Generator("cuda").manual_seed(0)
    call = lambda: co.solve(co.Kronecker(well(g, 10), well(g, 10)), normal(g, 100))
    for _ in range(CALLS):
        call()
    assert made and all(made)
    with counted_on_device() as waits:
        call()
    assert len(waits) == 1
    with counted_on_device() as waits, co.deferred():
        for _ in range(CALLS):
            call()
        waits.clear()
        call()
        during = list(waits)
    assert not during


def test_failures_are_told_and_mended(made: Any) -> None:
    import torch

    g = torch.Generator("cuda").manual_seed(0)
    b = normal(g, 9)
    call = lambda M: co.solve(co.Kronecker(M, M), b)
    for _ in range(CALLS):
        call(well(g, 3))
    for M in (torch.ones_like(well(g, 3)), torch.nan * well(g, 3)):
        with pytest.warns(co.ConvergenceWarning):
            call(M)
    # a change in place, and after a failure
    A = well(g, 3)
    x = call(A)
    A *= 2
    torch.testing.assert_close(call(A), x / 4)


def test_threads_and_streams_have_their_own_recordings(made: Any) -> None:
    import torch

    wrong: list[Any] = []

    def work(seed: int) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            g = torch.Generator("cuda").manual_seed(seed)
            for _ in range(CALLS + 20):
                A, b = well(g, 4), normal(g, 16)
                x = co.solve(co.Kronecker(A, A), b)
                error = (torch.kron(A, A) @ x - b).norm() / b.norm()
                if not float(error) < 1e-10:
                    wrong.append(float(error))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
