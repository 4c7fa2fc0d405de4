"""Calls that a device replays. There is no GPU here: CPU tensors are taken to be on a device, and a recording is
a tape of torch's operations, which runs none of our Python again."""

from __future__ import annotations

import contextlib
import gc
import warnings
from typing import Any

import numpy as np
import pytest
from support.recorded_calls import FUNCTIONS, OPERATORS, answers, line, normal, spd, well
from support.synchronisations import pretended
from support.tape import Tape

import colinear as co
from colinear import backends
from colinear.operators import recorded

torch = pytest.importorskip("torch")

CALLS = recorded.RECORD_AFTER + 3


class Recorder:
    """What records on a device; it counts what is recorded and replayed."""

    def __init__(self) -> None:
        from colinear.backends.torch import graphs, looks

        self.recordings = self.replays = 0
        self.device, self.watch = torch.device("cpu"), graphs._Watch(host="none")
        self.pack, self.looks = looks.pack, looks.Looks
        self.settings = lambda: ()
        self.layout = lambda x: graphs.Recorder.layout(self, x)

    def record(self, f: Any, arrays: Any) -> Any:
        self.recordings += 1
        own = [x.detach().resolve_conj().clone() for x in arrays]
        with Tape(own) as tape:
            results = list(f(*own))[len(own) :]

        def launch(given: Any = ()) -> Any:
            self.replays += 1
            for x, y in zip(own, given, strict=True):
                x.copy_(y)
            gc.collect()  # what nobody holds is lost
            return [x.clone() for x in tape.play(results)]

        return own, launch


@pytest.fixture
def device(monkeypatch: Any) -> Any:
    xp, recorder = backends.get("torch"), Recorder()
    monkeypatch.setattr("colinear.dispatch.calls.LENDERS", frozenset({"torch"}))
    monkeypatch.setattr(xp, "recorder", lambda context: recorder)
    monkeypatch.setattr(xp, "record", recorder.record)

    @contextlib.contextmanager
    def watch(x: Any) -> Any:
        recorder.watch.can_record, recorder.watch.has_launched = True, False
        with recorder.watch:
            yield recorder.watch

    monkeypatch.setattr(xp, "watch_operations", watch)
    monkeypatch.setattr(recorded, "_kinds", {})
    gc.freeze()  # what is there already need not be looked through in each replay
    try:
        with pretended():
            yield recorder
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_what_is_replayed_is_what_python_computes(
    device: Any, monkeypatch: Any, operator: str, function: str
) -> None:
    found = answers(function, operator, CALLS)
    monkeypatch.setattr(backends.get("torch"), "recorder", lambda context: None)
    for x, y in zip(found, answers(function, operator, CALLS), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-10)
    # what looks at values, or at nothing but a number of the host, cannot be recorded
    assert (device.recordings, device.replays) in ((0, 0), (1, CALLS - recorded.RECORD_AFTER))
    if function == "solve" and operator not in ("circulant", "permuted"):
        assert device.recordings


def solved(A: Any, b: Any, **options: Any) -> Any:
    return co.solve(co.Kronecker(A, A), b, **options)


def test_numbers_may_be_changed_in_place(device: Any) -> None:
    A, b = 2 * torch.eye(2, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    K = co.Kronecker(A, co.Dense(torch.eye(2, dtype=torch.float64)))
    for i in range(CALLS):
        A.fill_(0).fill_diagonal_(float(i + 1))
        torch.testing.assert_close(co.solve(K, b), b / (i + 1))
    assert device.replays == 3


def test_a_test_that_fails_has_python_make_the_call(device: Any) -> None:
    g = torch.Generator().manual_seed(0)
    b = normal(g, 9)
    for _ in range(CALLS):
        solved(well(g, 3), b)
    assert device.recordings == 1
    singular = torch.ones(3, 3, dtype=torch.float64)
    with pytest.warns(co.ConvergenceWarning, match="SINGULAR"):
        solved(singular, b)
    with pytest.raises(co.ConvergenceError):
        solved(singular, b, on_failure="raise")
    with pytest.warns(co.ConvergenceWarning, match="NONFINITE"):
        solved(torch.nan * singular, b)
    replays = device.replays
    solved(well(g, 3), b)
    assert device.replays == replays + 1
    with pytest.raises(ValueError, match="on_failure"):
        solved(well(g, 3), b, on_failure="sometimes")


def poisson(T: Any, b: Any) -> Any:
    A = co.KroneckerSum(T, T)
    x = co.solve(A, b)
    torch.testing.assert_close(A @ x, b)
    return x


def test_what_a_call_sees_on_the_way_is_tested_to_be_the_same(device: Any) -> None:
    g = torch.Generator().manual_seed(0)
    for _ in range(CALLS):
        poisson(line(g, 6), normal(g, 36))
    assert (device.recordings, device.replays) == (1, 3)
    T = line(g, 6)
    poisson(T, normal(g, 36))
    T.diag[2] += 1.0  # no sines, though nothing but the numbers tells
    poisson(T, normal(g, 36))
    T.diag[:] = torch.nan
    with pytest.warns(co.ConvergenceWarning, match="NONFINITE"):
        co.solve(co.KroneckerSum(T, T), normal(g, 36))
    assert device.replays == 6
    poisson(line(g, 6), normal(g, 36))
    assert (device.recordings, device.replays) == (1, 7)


def test_a_recording_that_fails_again_and_again_is_given_up(device: Any) -> None:
    g = torch.Generator().manual_seed(0)
    for _ in range(CALLS):
        poisson(line(g, 6), normal(g, 36))
    for i in range(2 * recorded.MOST_LOST):
        poisson(line(g, 6, scale=i + 2.0), normal(g, 36))
    assert device.replays == 3 + recorded.MOST_LOST + 1
    assert not any(isinstance(r, recorded._Recording) for r in recorded._kinds.values())


def test_a_call_that_looks_at_values_is_not_recorded_in_a_block(device: Any) -> None:
    g = torch.Generator().manual_seed(0)
    with co.deferred():
        for _ in range(CALLS):
            poisson(line(g, 6), normal(g, 36))
    assert device.replays == 0


def test_many_values_that_are_seen_forbid_a_recording(device: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("colinear.backends.torch.looks.MOST_SEEN", 10)
    g = torch.Generator().manual_seed(0)
    for _ in range(CALLS):
        poisson(line(g, 6), normal(g, 36))
    assert device.recordings == 0


def test_in_a_block_failures_of_replayed_calls_are_told_at_its_end(device: Any) -> None:
    g = torch.Generator().manual_seed(0)
    b = normal(g, 9)
    with co.deferred():
        for _ in range(CALLS):
            x = solved(well(g, 3), b)
    assert device.replays
    assert torch.isfinite(x).all()
    with pytest.warns(co.ConvergenceWarning, match="solve"), co.deferred():
        solved(well(g, 3), b)
        solved(torch.ones(3, 3, dtype=torch.float64), b)


def test_calls_of_another_kind_are_not_replayed(device: Any) -> None:
    g = torch.Generator().manual_seed(0)
    for n in range(1, CALLS):  # another shape each time
        solved(well(g, n), normal(g, n * n))
    A, b = well(g, 3), normal(g, 9)
    for _ in range(CALLS):
        solved(A, b, info=True)
        solved(A.requires_grad_(), b)
        co.solve(co.Kronecker(co.MatrixFree(lambda X: 2 * X, (3, 3), like=b), A.detach()), b)
        co.trace(co.exp(co.Dense(A.detach())), method=co.Hutchinson(probes=2), on_failure="ignore")
        co.inv(co.Kronecker(A.detach(), A.detach()))  # an operator
    assert device.recordings == 0


def test_a_property_that_is_claimed_is_another_kind(device: Any) -> None:
    g = torch.Generator().manual_seed(0)
    for _ in range(CALLS):
        A, b = spd(g, 3, 3), normal(g, 9)
        for claim in (co.Dense, co.PSD):
            K = co.Kronecker(claim(A), claim(A))
            torch.testing.assert_close(co.solve(K, b), torch.linalg.solve(torch.kron(A, A), b))
    assert device.recordings == 2


def test_a_new_rule_is_obeyed(device: Any) -> None:
    f = co.function("twice", base=lambda A: 2 * co.trace(A))
    f.lends = True
    A = co.Dense(torch.eye(3, dtype=torch.float64))
    for _ in range(CALLS):
        assert f(A) == 6
    assert device.recordings == 1

    @co.rule(f, co.Dense)
    def thrice(A: Any) -> Any:
        """3 tr A"""
        return 3 * co.trace(A)

    for _ in range(CALLS):
        assert f(A) == 9
    assert device.recordings == 1  # a user's rule may do more than launch


def test_recordings_hold_a_bounded_memory(device: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(recorded, "MOST_HELD", 1000)
    monkeypatch.setattr(recorded, "LARGEST_CALL", 800)
    g = torch.Generator().manual_seed(0)
    for n in (3, 4, 5, 12):
        for _ in range(CALLS):
            co.solve(well(g, n), normal(g, n))
    held = [r for r in recorded._kinds.values() if isinstance(r, recorded._Recording)]
    assert device.recordings == 3  # the last is too large
    assert sum(r.size for r in held) <= 1000


def test_a_recording_that_disagrees_is_not_used(device: Any, monkeypatch: Any) -> None:
    xp = backends.get("torch")

    def spoiled(f: Any, arrays: Any) -> Any:
        own, launch = device.record(f, arrays)
        return own, lambda given: [1.01 * launch(given)[0], *launch(given)[1:]]

    monkeypatch.setattr(xp, "record", spoiled)
    g = torch.Generator().manual_seed(0)
    for _ in range(2 * CALLS):
        A, b = well(g, 3), normal(g, 9)
        torch.testing.assert_close(solved(A, b), torch.linalg.solve(torch.kron(A, A), b))
    assert device.replays == 2  # of the comparison


def test_no_tensor_on_the_host_is_recorded() -> None:
    g = torch.Generator().manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert backends.get("torch").recorder(co.Dense(well(g, 3))._context) is None
        assert backends.get("numpy").recorder(co.Dense(np.eye(3))._context) is None


@pytest.mark.parametrize("method", [co.Lanczos(basis=12), co.LOBPCG()])
def test_iterations_that_look_again_and_again_are_not_recorded(device: Any, method: Any) -> None:
    g = torch.Generator().manual_seed(0)
    A = co.SelfAdjoint(co.Dense(spd(g, 60, 60)))
    for _ in range(CALLS):
        co.eigmax(A, method)
    assert recorded._kinds and not any(recorded._kinds.values())
