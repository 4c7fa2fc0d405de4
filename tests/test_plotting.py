"""Pictures: `info.plot()`, the history of residuals, and `plan.plot()`, what each line costs."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import colinear as co


@pytest.fixture
def pyplot() -> Any:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


def definite(n: int = 12) -> Any:
    return np.diag(np.linspace(1, 5, n)) + 0.1


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_each_column_is_a_line_on_a_logarithmic_axis(pyplot: Any, framework: str) -> None:
    pytest.importorskip(framework)
    A = co.opaque(co.PSD(co.Dense(definite()).to(backend=framework)))
    B = A.xp.asarray(np.stack([np.ones(12), np.zeros(12), np.arange(12.0)], axis=-1))
    info = co.solve(A, B, co.CG(), info=True)[1]
    axes = info.plot()
    assert axes.get_yscale() == "log"
    assert axes.get_title() == "solve by CG: SUCCESS"
    assert [line.get_label() for line in axes.get_lines()] == ["column 0", "column 1", "column 2"]
    drawn = axes.get_lines()[2].get_ydata()
    np.testing.assert_allclose(drawn, A.xp.to_numpy(info.history)[:, 2])
    assert np.isnan(axes.get_lines()[1].get_ydata()).all(), "a residual of zero has no logarithm"


def test_a_vector_is_one_line_without_legend_and_axes_may_be_given(pyplot: Any) -> None:
    A = co.opaque(co.PSD(definite()))
    axes = pyplot.subplots()[1]
    for method in (co.CG(), co.MINRES(max_iters=2)):
        info = co.solve(A, np.ones(12), method, info=True)[1]
        assert info.plot(axes) is axes
    assert len(axes.get_lines()) == 2
    assert axes.get_legend() is None
    assert axes.get_title() == "solve by MINRES: MAX_ITERATIONS"


def test_the_parts_of_a_composition_are_drawn(pyplot: Any) -> None:
    K = co.Kronecker(co.opaque(co.PSD(definite(4))), co.opaque(co.PSD(definite(5))))
    axes = co.solve(K, np.ones(20), co.CG(), info=True)[1].plot()
    assert len(axes.get_lines()) > 1
    assert "CG" in axes.get_title()


def test_what_was_recorded_under_jit_is_drawn_without_its_padding(pyplot: Any) -> None:
    jax = pytest.importorskip("jax")
    A = co.opaque(co.PSD(co.Dense(definite()).to(backend="jax")))
    info = jax.jit(lambda b: co.solve(A, b, co.CG(max_iters=40), info=True)[1])(jax.numpy.ones(12))
    drawn = info.plot().get_lines()[0].get_ydata()
    assert len(drawn) == int(info.iterations) + 1
    with pytest.raises(co.BackendError, match=r"Info\.plot: the values are traced"):
        jax.jit(lambda b: co.solve(A, b, co.CG(max_iters=40), info=True)[1].plot())(
            jax.numpy.ones(12)
        )


def test_without_a_history_or_matplotlib_it_says_what_to_do(monkeypatch: Any) -> None:
    info = co.solve(definite(), np.ones(12), co.LU(), info=True)[1]
    with pytest.raises(ValueError, match=r"no history of residuals here .*info=True"):
        info.plot()
    info = co.solve(definite(), np.ones(12), co.CG(), info=True)[1]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'colinear\[plot\]'"):
        info.plot()


def test_a_plan_is_a_bar_for_each_line_with_the_tree_in_the_labels(pyplot: Any) -> None:
    plan = co.explain(
        co.solve, co.Kronecker(co.PSD(definite()), co.Toeplitz(np.arange(9.0, 0, -1)))
    )
    axes = plan.plot()
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert [label.split(": ")[1] for label in labels] == plan.rules
    depths = [len(label) - len(label.lstrip()) for label in labels]
    assert depths[0] == 0 and set(depths[1:]) > {3}
    whole, own = axes.containers
    assert [bar.get_width() for bar in whole] == [each.cost.seconds for each in plan.walk()]
    assert all(mine.get_width() <= all_.get_width() for mine, all_ in zip(own, whole))
    other = pyplot.subplots()[1]
    assert plan.plot(other) is other


def test_a_plan_without_matplotlib_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"Plan.plot draws .* pip install 'colinear\[plot\]'"):
        co.explain(co.solve, definite()).plot()
