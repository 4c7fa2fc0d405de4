"""Bases on a device: no step orthogonalises a random vector in case that it is needed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.synchronisations import counted, pretended

import colinear as co
from colinear import backends
from colinear.methods import basis

torch = pytest.importorskip("torch")
from support.tape import Tape  # noqa: E402


def opaque(values: Any) -> Any:
    return co.opaque(co.SelfAdjoint(co.Diagonal(torch.tensor(np.array(values, float)))))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The random vectors that steps take."""
    taken: list[int] = []
    plain = basis.fresh

    def fresh(xp: Any, noise: Any, i: Any) -> Any:
        taken.append(i)
        return plain(xp, noise, i)

    for name in ("basis", "restarted", "lanczos"):
        module = __import__(f"colinear.methods.{name}", fromlist=["fresh"])
        monkeypatch.setattr(module, "fresh", fresh)
    return taken


def test_steps_draw_nothing(drawn: list[int]) -> None:
    A = opaque(np.linspace(1, 2, 400) ** 8)
    with pretended():
        values, _ = co.eig(A, 3, "LA", co.Lanczos(repeated=False))
        largest = co.svd(A, 3, co.GolubKahan())[1]
        pairs = co.eig(A, 3, "LM", co.Arnoldi(repeated=False))[0]
    expected = np.linspace(1, 2, 400)[-3:] ** 8
    np.testing.assert_allclose(values, expected, rtol=1e-7)
    np.testing.assert_allclose(np.sort(largest), expected, rtol=1e-7)
    np.testing.assert_allclose(np.sort(pairs.real), expected, rtol=1e-7)
    assert len(drawn) <= 6  # where runs look once more


@pytest.mark.parametrize("batch", [(), (2,)])
def test_invariant_subspaces_are_met_all_the_same(batch: tuple[int, ...], drawn: list[int]) -> None:
    few = np.broadcast_to([1.0, 2.0, 2.0, 5.0] * 50, (*batch, 200))  # of a Krylov space of size 3
    A = opaque(few)
    with pretended():
        values, vectors = co.eig(A, 4, "LA", co.Lanczos())
        assert drawn
        V = vectors.to_dense()
    torch.testing.assert_close(values, torch.full((*batch, 4), 5.0, dtype=torch.float64))
    torch.testing.assert_close(V.mT @ V, torch.eye(4, dtype=torch.float64).expand(*batch, 4, 4))
    torch.testing.assert_close(A.to_dense() @ V, 5 * V)
    if not batch:
        with pretended():
            singular = co.svd(A, 4, co.GolubKahan())[1]
            pairs = co.eig(A, 4, "LM", co.Arnoldi())[0]
        torch.testing.assert_close(singular, torch.full((4,), 5.0, dtype=torch.float64))
        torch.testing.assert_close(pairs.real, torch.full((4,), 5.0, dtype=torch.float64))


@pytest.mark.parametrize("columns", [None, 3])
def test_gmres_is_that_of_the_host(columns: int | None) -> None:
    g = torch.Generator().manual_seed(0)
    M = torch.randn(200, 200, generator=g, dtype=torch.float64) / 40
    A = co.opaque(co.Dense(M + torch.eye(200, dtype=torch.float64)))
    b = torch.randn(*(200, columns)[: 1 + bool(columns)], generator=g, dtype=torch.float64)
    x, info = co.solve(A, b, co.GMRES(tol=1e-10), info=True)
    with pretended():
        y, again = co.solve(A, b, co.GMRES(tol=1e-10), info=True)
    torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-8)
    assert abs(int(info.iterations) - int(again.iterations)) <= 1


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A device whose recordings are tapes; what they replay, and whether it is right, is there to see."""
    seen = SimpleNamespace(recordings=0, replays=0, off=0.0)

    def record(f: Any, arrays: Any) -> Any:
        seen.recordings += 1
        begun = next(c.cell_contents for c in f.__closure__ if hasattr(c.cell_contents, "V"))
        own = [x.clone() for x in arrays]
        with Tape(own, [x for x in (begun.V, begun.U) if x is not None]) as tape:
            results = f(*own)

        def replay(given: Any) -> None:
            seen.replays += 1
            for x, y in zip(own, given, strict=True):
                x.copy_(y)
            for x, y in zip(own, tape.play(results), strict=True):
                x.copy_(y + seen.off)

        return own, replay

    xp = backends.get("torch")
    fit = lambda x: contextlib.nullcontext(SimpleNamespace(is_fit=True))
    monkeypatch.setattr(xp, "watch_operations", fit)
    monkeypatch.setattr(xp, "record", record)
    with pretended():
        yield seen


def found(method: Any, A: Any) -> tuple[Any, ...]:
    if isinstance(method, co.GolubKahan):
        _, values, vectors = co.svd(A, 3, method)
    else:
        values, vectors = co.eig(A, 3, "LM", method)
    return values, vectors.to_dense()


METHODS = (
    co.Lanczos(basis=12),
    co.Lanczos(basis=12, repeated=False),
    co.Arnoldi(basis=12),
    co.GolubKahan(basis=12),
)


def dense(*batch: int, dtype: Any = torch.float64) -> Any:
    g = torch.Generator().manual_seed(0)
    A = torch.randn(*batch, 300, 300, generator=g, dtype=dtype)
    return co.opaque(co.SelfAdjoint(co.Dense(A + A.mH)))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128])
def test_what_is_replayed_is_what_python_computes(
    method: Any, dtype: Any, device: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    A = dense(dtype=dtype)
    replayed = found(method, A)
    assert device.recordings >= 1 and device.replays > 1
    monkeypatch.setattr(backends.get("torch"), "record", lambda f, arrays: None)
    for x, y in zip(replayed, found(method, A), strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=0)


def test_batches_are_replayed_together(device: SimpleNamespace) -> None:
    A = dense(2)
    values, vectors = found(co.Lanczos(basis=12), A)
    assert device.replays > 3
    torch.testing.assert_close(A @ vectors, vectors * values[..., None, :], rtol=0, atol=1e-5)


def test_a_cycle_waits_once(device: SimpleNamespace) -> None:
    with counted() as looks:
        info = co.eig(dense(), 3, "LM", co.Lanczos(basis=12, repeated=False), info=True)[1]
    assert len(looks) <= info.iterations / 4


def test_recordings_that_disagree_are_not_used(device: SimpleNamespace) -> None:
    device.off, A = 1e3, dense()
    values, vectors = found(co.Lanczos(basis=12), A)
    assert device.recordings == device.replays == 1
    torch.testing.assert_close(A @ vectors, vectors * values, rtol=0, atol=1e-5)


def test_reflections_are_not_replayed(device: SimpleNamespace) -> None:
    found(co.Lanczos(basis=12, orthogonalisation="householder"), dense())
    assert device.recordings == 0


def test_a_callback_sees_arrays_of_the_device(device: SimpleNamespace) -> None:
    seen: list[Any] = []
    found(co.Lanczos(basis=12, callback=lambda progress: seen.append(progress.residual)), dense())
    assert seen and all(isinstance(residual, torch.Tensor) for residual in seen)
