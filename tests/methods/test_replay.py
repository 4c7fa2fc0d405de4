"""Steps that a device replays. There is no GPU here: a recording is a function that runs the steps again on its copies."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import colinear as co
from colinear import backends
from colinear.methods.iterate import Outcome, Products
from colinear.methods.loop import Monitor
from colinear.methods.replay import RECORD_AFTER
from colinear.methods.vectors import LOOK_EVERY

N = 400


class Recorder:
    """What `record` is on a device, but that Python runs the steps; it counts what it replays."""

    def __init__(self) -> None:
        self.replays = self.recordings = 0
        self.spoil = 1.0

    def record(self, f: Any, arrays: Any) -> Any:
        self.recordings += 1
        own = [x.clone() for x in arrays]
        f(*[x.clone() for x in arrays])  # as a device records: what is computed is lost

        def replay() -> Any:
            self.replays += 1
            found = f(*[x.clone() for x in own])
            for x, y in zip(own, found):
                x.copy_(y)
            return [x * self.spoil for x in found[len(own) :]]

        return own, replay


@pytest.fixture
def device(monkeypatch: Any) -> Any:
    """The torch backend, of which no value can be seen and whose operations can all be recorded."""
    xp, recorder = backends.get("torch"), Recorder()
    monkeypatch.setattr(xp, "peek", lambda x: None)
    monkeypatch.setattr(xp, "dot_real", lambda x, y: torch.vdot(x, y).real)
    monkeypatch.setattr(
        xp, "watch_operations", lambda x: contextlib.nullcontext(SimpleNamespace(is_fit=True))
    )
    monkeypatch.setattr(xp, "record", recorder.record)
    return SimpleNamespace(xp=xp, recorder=recorder)


def diagonal(largest: float = 1e6) -> Any:
    d = torch.logspace(0, np.log10(largest), N, dtype=torch.float64)
    return lambda X: (d if X.ndim == 1 else d[:, None]) * X


def run(xp: Any, method: Any, multiply: Any, columns: int = 1, **options: Any) -> Outcome:
    B = torch.as_tensor(np.random.default_rng(0).normal(size=(N, columns)))
    defaults = {"tol": 1e-10, "max_iters": 5000, "watch": Monitor(record=True)}
    precondition = options.pop("precondition", None)
    products = Products(multiply, multiply, precondition, take_vectors=True)
    return method.algorithm(xp, products, B, **defaults | options)


CASES = [
    (co.CG(), 1, False),
    (co.CG(), 1, True),
    (co.CG(), 3, False),
    (co.CG(single_reduction=True), 1, False),
    (co.CG(single_reduction=True), 2, True),
    (co.MINRES(), 1, False),
    (co.MINRES(), 2, True),
    (co.BiCGSTAB(), 2, False),
    (co.LSQR(), 2, False),
    (co.LSMR(), 1, False),
]


@pytest.mark.parametrize("method, columns, preconditioned", CASES)
def test_replayed_steps_are_those_of_python(
    method: Any, columns: int, preconditioned: bool, device: Any, monkeypatch: Any
) -> None:
    precondition = (lambda X: X / 3.0) if preconditioned else None
    options = {"precondition": precondition, "columns": columns, "max_iters": 320}
    found = run(device.xp, method, diagonal(), **options)
    assert device.recorder.replays > 2
    monkeypatch.setattr(device.xp, "record", lambda f, arrays: None)
    expected = run(device.xp, method, diagonal(), **options)
    torch.testing.assert_close(found.X, expected.X, rtol=0, atol=0)
    assert found.status.tolist() == expected.status.tolist()
    assert found.iterations.tolist() == expected.iterations.tolist()
    assert int(found.matvecs) == int(expected.matvecs)
    torch.testing.assert_close(found.history, expected.history, rtol=0, atol=0)


def test_the_limit_of_iterations_is_kept(device: Any) -> None:
    limit = RECORD_AFTER + 9 * LOOK_EVERY + 5
    found = run(device.xp, co.CG(), diagonal(), max_iters=limit)
    assert device.recorder.replays > 0
    assert found.iterations.tolist() == [limit]
    assert found.status.item() == int(co.Status.MAX_ITERATIONS)
    assert len(found.history) == limit + 1


def test_a_recording_that_disagrees_is_not_used(device: Any) -> None:
    device.recorder.spoil = 1.5
    found = run(device.xp, co.CG(), diagonal(1e4))
    assert device.recorder.replays == device.recorder.recordings
    assert found.status.item() == int(co.Status.SUCCESS)


def test_operations_that_cannot_be_recorded_are_not(device: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(
        device.xp,
        "watch_operations",
        lambda x: contextlib.nullcontext(SimpleNamespace(is_fit=False)),
    )
    found = run(device.xp, co.CG(), diagonal(1e4))
    assert device.recorder.recordings == 0
    assert found.status.item() == int(co.Status.SUCCESS)


def test_an_indefinite_operator_shows_in_replayed_steps(device: Any) -> None:
    """A direction of negative curvature that the first steps do not meet: the right side has next to nothing of it."""
    d = torch.logspace(0, 4, N, dtype=torch.float64)
    d[0] = -1.0
    b = torch.ones(N, 1, dtype=torch.float64)
    b[0] = 1e-9
    multiply = lambda X: (d if X.ndim == 1 else d[:, None]) * X
    options = {"tol": 1e-12, "max_iters": 20_000, "watch": Monitor()}
    found = co.CG().algorithm(device.xp, Products(multiply, take_vectors=True), b, **options)
    assert device.recorder.replays > 0
    assert found.status.item() == int(co.Status.NOT_POSITIVE_DEFINITE)
    assert torch.isfinite(found.X).all()


def test_a_callback_sees_every_step(device: Any) -> None:
    seen: list[int] = []
    watch = Monitor(callback=lambda p: seen.append(p.iteration))
    found = run(device.xp, co.CG(), diagonal(1e4), watch=watch)
    assert device.recorder.recordings == 0
    assert seen == list(range(1, len(seen) + 1))
    assert found.status.item() == int(co.Status.SUCCESS)


def test_a_sparing_callback_sees_what_a_device_is_looked_at_for_anyway(device: Any) -> None:
    class Sparing:
        is_sparing = True

        def __init__(self) -> None:
            self.seen: list[int] = []

        def __call__(self, progress: Any) -> bool:
            self.seen.append(progress.iteration)
            return bool(progress.residual < 1e-3)

    callback = Sparing()
    found = run(device.xp, co.CG(), diagonal(), watch=Monitor(callback=callback))
    assert device.recorder.replays > 0
    assert all(made % LOOK_EVERY == 1 for made in callback.seen)
    assert found.status.item() == int(co.Status.STOPPED)
    assert found.residual.item() < 1.1e-3


def test_what_torch_does_not_record() -> None:
    """The watch itself, on the host, where it is told that all is well."""
    from colinear.backends.torch.graphs import _Watch

    x, P = torch.ones(3), torch.eye(3)
    fit = [
        lambda: P @ x + 2.0 * x,
        lambda: torch.where(x > 0, x, 0.0),
        lambda: torch.fft.rfft(x),
        lambda: torch.linalg.vector_norm(x),
        lambda: torch.linalg.solve_triangular(P, x[:, None], upper=True),
    ]
    unfit = [
        lambda: x.sum().item(),
        lambda: x[x > 0],
        lambda: torch.nonzero(x),
        lambda: torch.randn(3),
        lambda: torch.linalg.eigh(P),
        lambda: torch.linalg.cholesky(P),
    ]
    for f, is_fit in [*((f, True) for f in fit), *((f, False) for f in unfit)]:
        with _Watch(host="meta") as watch:
            f()
        assert watch.is_fit == is_fit, f
