"""Those who look on while a method iterates: callbacks, bars and histories."""

from __future__ import annotations

import io
import itertools
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import colinear as co
from colinear import Status
from colinear.methods import loop
from colinear.status import state

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


# ---------------------------------------------------------------------------------------------------- what is under way


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def hasty(monkeypatch: Any) -> None:
    """No tqdm, and a clock that moves on by eleven seconds whenever it is read."""
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    monkeypatch.setattr(loop, "clock", itertools.count(0.0, 11.0).__next__)


GENERAL = np.random.default_rng(1).standard_normal((30, 30)) + 30 * np.eye(30)
SHOWN = {
    "Auto": (lambda A, m: co.solve(A, np.ones(30), m), co.Auto, "solve 30x30 by Cholesky, "),
    "CG": (lambda A, m: co.solve(A, np.ones(30), m), co.CG, " > CG: iteration 1, residual "),
    "LU": (lambda A, m: co.solve(GENERAL, np.ones(30), m), co.LU, "solve 30x30 by LU, 18 kflop, "),
    "Eigh": (lambda A, m: co.eig(A, method=m), co.Eigh, "eig 30x30 by Eigh, "),
    "Lanczos": (lambda A, m: co.eig(A, 1, "LA", m), co.Lanczos, " > Lanczos: iteration "),
    "GolubKahan": (lambda A, m: co.svd(A, 1, m), co.GolubKahan, " > GolubKahan: iteration "),
    "SVRG": (
        lambda A, m: co.solve(co.PSD(co.LowRank(GENERAL)), GENERAL[0], m), co.SVRG, "SVRG: iter",
    ),
    "Hutchinson": (lambda A, m: co.trace(A, replace(m, probes=8)), co.Hutchinson, " > 0 of 8 samples"),
    "HutchPP": (lambda A, m: co.trace(A, m), co.HutchPP, "trace 30x30 by HutchPP, "),
    "XTrace": (lambda A, m: co.trace(A, m), co.XTrace, "trace 30x30 by XTrace, "),
    "XDiag": (lambda A, m: co.diag(A, m), co.XDiag, "diag 30x30 by XDiag, "),
    "SLQ": (lambda A, m: co.logdet(A, m), co.SLQ, " > step "),
    "Krylov": (lambda A, m: co.exp(-A, m) @ np.ones(30), co.Krylov, "Krylov: step "),
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWN)
def test_every_method_shows_what_it_does_and_how_far_it_is(
    hasty: None, capsys: Any, name: str
) -> None:
    call, method, text = SHOWN[name]
    call(definite(), method(progress=True))
    assert text in capsys.readouterr().err
    call(definite(), method())
    assert capsys.readouterr().err == ""
    assert state.display is None


def test_nested_calls_are_joined_outermost_first(hasty: None, capsys: Any) -> None:
    A = co.BlockDiag(definite(), definite(n=20))
    co.solve(A, np.ones(50), co.CG(progress=True))
    assert "solve 50x50" in (text := capsys.readouterr().err)
    assert " > inv 20x20" in text


def test_nothing_is_shown_in_the_first_two_seconds(monkeypatch: Any) -> None:
    now, terminal = 0.0, Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(loop, "clock", lambda: now)

    def product(X: Any) -> Any:
        nonlocal now
        now += 0.3
        return np.arange(1, 31)[:, None] * X

    A = co.PSD(co.MatrixFree(product, (30, 30)))
    co.solve(A, np.ones(30), co.CG(max_iters=3, progress=True), on_failure="ignore")
    assert terminal.getvalue() == ""
    co.solve(A, np.ones(30), co.CG(max_iters=9, progress=True), on_failure="ignore")
    assert "CG: iteration 7" in terminal.getvalue()
    assert "iteration 1," not in terminal.getvalue()


def test_a_terminal_has_one_line_that_ends_even_if_the_call_raises(
    hasty: None, monkeypatch: Any
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())

    def fail(progress: Any) -> None:
        if progress.iteration == 3:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        co.solve(definite(), np.ones(30), co.CG(callback=fail, progress=True))
    text = terminal.getvalue()
    assert text.count("\n") == 1 and text.endswith("\n") and text.count("\r") > 3
    assert state.display is None and not loop._displays


def test_a_product_outside_of_all_calls_is_shown(hasty: None, capsys: Any) -> None:
    inverse = co.inv(definite(), co.CG(progress=True))
    capsys.readouterr()
    inverse @ np.ones(30)
    assert capsys.readouterr().err.startswith("CG: iteration 1, ")


def test_detect_shows_what_it_looks_for(hasty: None, capsys: Any) -> None:
    co.detect(GENERAL, progress=True)
    assert "detect > whether it is of low rank, " in capsys.readouterr().err


@pytest.mark.parametrize("jitted", [False, True])
def test_a_compiled_program_tells_now_and_then_how_far_it_is(
    hasty: None, capsys: Any, jitted: bool
) -> None:
    jax = pytest.importorskip("jax")
    d = jax.numpy.logspace(0, 3, 60)
    A = co.PSD(co.MatrixFree(lambda X, d: d[:, None] * X, (60, 60), parameters=(d,)))

    def solve(b: Any) -> Any:
        return co.solve(A, b, co.CG(tol=1e-10, progress=True), info=True)[1].iterations

    run = jax.jit(solve) if jitted else solve
    for _ in range(2):
        capsys.readouterr()
        iterations = int(run(jax.numpy.ones(60)))
        jax.effects_barrier()
        text = capsys.readouterr().err
        assert iterations > 30
        assert 3 <= text.count("CG: iteration ") <= iterations // 10 + 3, (
            "not a call of the host for each iteration"
        )


def test_tqdm_writes_where_it_is_installed(monkeypatch: Any, capsys: Any) -> None:
    pytest.importorskip("tqdm")
    monkeypatch.setattr(loop, "clock", itertools.count(0.0, 11.0).__next__)
    co.solve(definite(), np.ones(30), co.CG(progress=True))
    assert "solve 30x30 by inverse > CG: iteration 1, " in capsys.readouterr().err


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
