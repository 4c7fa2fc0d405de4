"""Those who look on while a method iterates: callbacks, bars and histories."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest

import colinear as co
from colinear import Status

FRAMEWORKS = ("numpy", "torch", "jax")
METHODS = (co.CG, co.MINRES, co.GMRES, co.BiCGSTAB, co.LSQR, co.LSMR)


def definite(framework: str = "numpy", n: int = 30) -> Any:
    pytest.importorskip(framework)
    Q = np.random.default_rng(0).standard_normal((n, n))
    return co.opaque(co.PSD(co.Dense(Q @ Q.T + n * np.eye(n)).to(backend=framework)))


def ones(A: Any, *shape: int) -> Any:
    return A.xp.ones(shape or (A.shape[-1],), dtype=A.dtype)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_callback_sees_each_iteration_and_may_stop(framework: str) -> None:
    seen: list[Any] = []

    def look(progress: Any) -> bool:
        seen.append(
            (
                progress.iteration,
                float(np.max(np.asarray(progress.residual))),
                np.asarray(progress.x).shape,
            )
        )
        return progress.iteration == 3

    A = definite(framework)
    info = co.solve(A, ones(A), co.CG(tol=1e-12, callback=look), info=True)[1]
    assert info.status is Status.STOPPED
    assert [each[0] for each in seen] == [1, 2, 3]
    assert seen[0][1] > seen[2][1]
    assert seen[0][2] == (30,)
    assert not info.failed
    assert not np.asarray(info.converged).any()


@pytest.mark.parametrize("method", METHODS)
def test_every_method_stops_when_told_and_shows_its_x(method: Any) -> None:
    A, seen = definite(), []

    def look(progress: Any) -> bool:
        seen.append((progress.residual.max(), np.linalg.norm(1 - A @ progress.x) / np.sqrt(30)))
        return len(seen) == 4

    x, info = co.solve(A, np.ones(30), method(tol=1e-13, callback=look), info=True)
    assert info.status is Status.STOPPED
    assert info.iterations == 4
    said, true = np.transpose(seen)
    np.testing.assert_allclose(said, true, rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(1 - A @ x) / np.sqrt(30), true[-1], rtol=1e-6)


def test_a_callback_stops_a_compiled_program() -> None:
    jax = pytest.importorskip("jax")
    A = definite("jax")
    method = co.CG(tol=1e-12, callback=lambda progress: progress.iteration == 2)
    info = jax.jit(lambda b: co.solve(A, b, method, info=True)[1])(ones(A))
    assert (info.status, int(info.iterations)) == (Status.STOPPED, 2)


def test_an_error_in_a_callback_is_the_users() -> None:
    def fail(progress: Any) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        co.solve(definite(), np.ones(30), co.CG(callback=fail))


# ---------------------------------------------------------------------------------------------------- bars


@pytest.fixture
def bars(monkeypatch: Any) -> list[Any]:
    """tqdm replaced by something that remembers what was drawn."""
    made: list[Any] = []

    class Bar:
        def __init__(self, desc: str, **options: Any) -> None:
            self.desc, self.n, self.texts, self.closed = desc, 0, [], False
            made.append(self)

        def set_postfix_str(self, text: str, refresh: bool = True) -> None:
            self.texts.append(text)

        def update(self, count: int) -> None:
            self.n += count

        def close(self) -> None:
            self.closed = True

    auto = types.ModuleType("tqdm.auto")
    auto.tqdm = Bar  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", auto)
    return made


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("columns", [1, 2])
def test_progress_draws_a_bar_and_closes_it(bars: list[Any], framework: str, columns: int) -> None:
    A = definite(framework)
    info = co.solve(A, ones(A, 30, columns), co.CG(progress=True), info=True)[1]
    (bar,) = bars
    assert (bar.desc, bar.n, bar.closed) == ("CG", info.iterations, True)
    assert bar.texts[-1].startswith("residual ")


@pytest.mark.parametrize("jitted", [False, True])
def test_a_compiled_program_draws_a_bar_now_and_then_and_closes_it(
    bars: list[Any], jitted: bool
) -> None:
    jax = pytest.importorskip("jax")
    d = jax.numpy.logspace(0, 3, 60)
    A = co.PSD(co.MatrixFree(lambda X, d: d[:, None] * X, (60, 60), parameters=(d,)))

    def solve(b: Any) -> Any:
        return co.solve(A, b, co.CG(tol=1e-10, progress=True), info=True)[1].iterations

    run = jax.jit(solve) if jitted else solve
    for runs in (1, 2):
        iterations = int(run(jax.numpy.ones(60)))
        jax.effects_barrier()
        assert len(bars) == runs
        assert (bars[-1].n, bars[-1].closed) == (iterations, True)
        assert iterations > 30
        assert len(bars[-1].texts) <= iterations // 10 + 2, (
            "not a call of the host for each iteration"
        )


def test_without_tqdm_it_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match=r"pip install 'colinear\[progress\]'"):
        co.solve(definite(), np.ones(30), co.CG(progress=True))


def test_tqdm_itself_is_called_as_it_wants_to_be(capsys: Any) -> None:
    pytest.importorskip("tqdm")
    co.solve(definite(), np.ones(30), co.CG(progress=True))
    assert "CG" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------- history


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_history_is_that_of_the_true_residuals(framework: str) -> None:
    A = definite(framework)
    info = co.solve(A, ones(A), co.CG(tol=1e-10), info=True)[1]
    history = A.xp.to_numpy(info.history)
    assert history.shape == (info.iterations + 1,)
    assert history[0] == pytest.approx(1)
    x = co.solve(A, ones(A), co.CG(max_iters=3), on_failure="ignore")
    assert history[3] == pytest.approx(
        np.linalg.norm(A.xp.to_numpy(A @ x) - 1) / np.sqrt(30), rel=1e-8
    )


def test_nobody_pays_for_a_history_that_was_not_asked_for() -> None:
    A = definite()
    reported = co.solve(A, np.ones(30), co.CG(), info=True)[1]
    assert reported.history is not None
    with co.info.recording() as reports:
        co.solve(A, np.ones(30), co.CG())
    assert all(info.history is None for info in reports)
