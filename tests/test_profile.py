"""`info.times` and `profile`: what a call takes by part, beside what `explain` forecasts."""

from __future__ import annotations

import html
import threading

import numpy as np
import pytest

import colinear as co
from colinear.clock import CLOCKS, PARTS

FRAMEWORKS = ["numpy", "torch", "jax"]


def definite(framework="numpy", n=80):
    """A stored positive definite matrix, and a right side."""
    if framework != "numpy":
        pytest.importorskip(framework)
    G = np.random.default_rng(0).standard_normal((n, n))
    A = co.PD(co.Dense(G @ G.T + n * np.eye(n))).to(framework)
    return A, A.xp.asarray(np.ones(n))


# ---------------------------------------------------------------------------------------------------- info.times


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_info_has_the_time_of_each_part_and_they_add_up(framework):
    A, b = definite(framework)
    info = co.solve(A, b, info=True)[1]
    assert tuple(info.times) == PARTS
    assert sum(info.times.values()) == pytest.approx(info.seconds)
    assert info.times["factorisation"] > 0 and info.times["dispatch"] > 0
    assert info.times["derivatives"] == 0
    assert not CLOCKS  # none is left behind


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_an_iteration_spends_its_time_on_products(framework):
    A, b = definite(framework)
    info = co.solve(co.opaque(A), b, co.CG(), info=True)[1]
    assert info.times["products"] > 0 and info.times["factorisation"] == 0
    parts = co.solve(co.Kronecker(A, A), A.xp.asarray(np.ones(6400)), info=True)[1]
    assert all(0 < child.seconds <= parts.seconds for child in parts.children)


def test_backward_passes_are_told_in_the_info_of_the_call_that_they_go_through():
    torch = pytest.importorskip("torch")
    A, b = definite("torch")
    A.requires_grad_()
    x, info = co.solve(A, b, info=True)
    before = info.seconds
    x.sum().backward()
    assert info.times["derivatives"] > 0 and info.seconds == before
    y, pushed = torch.func.jvp(lambda b: co.solve(A, b, info=True)[0], (b,), (b,))
    torch.testing.assert_close(y, pushed)


def test_what_is_compiled_has_no_times():
    jax = pytest.importorskip("jax")
    A, b = definite("jax")
    info = jax.jit(lambda b: co.solve(A, b, info=True)[1])(b)
    assert info.times is None and info.seconds is None
    torch = pytest.importorskip("torch")
    A, b = definite("torch", 8)
    compiled = torch.compile(lambda b: co.solve(A, b, info=True)[0], backend="eager")
    torch.testing.assert_close(compiled(b), co.solve(A, b))


def test_calls_that_fail_leave_no_clock_running():
    A, _ = definite()
    with pytest.raises(co.ShapeError), co.profile():
        co.solve(A, np.ones(3), info=True)
    with pytest.raises(co.ConvergenceError) as caught:
        co.solve(np.ones((2, 2)), np.array([1.0, 0.0]), on_failure="raise")
    assert caught.value.info.seconds > 0
    assert not CLOCKS


# ---------------------------------------------------------------------------------------------------- profile


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_profile_is_the_plan_with_what_was_measured(framework, capsys):
    A, _ = definite(framework, 20)
    K = co.Kronecker(A, A)
    right = A.xp.asarray(np.ones(400))
    p = co.profile(co.solve, K, right)
    plan = co.explain(co.solve, K, right)
    assert [row.rule for row in p.calls] == [plan.rule]
    planned = dict.fromkeys((each.function, each.expression, each.rule) for each in plan.walk())
    assert {(row.function, row.expression, row.rule) for row in p.rows} == set(planned)
    root = p.calls[0]
    assert root.forecast == plan.cost.seconds
    assert all(0 < row.seconds <= root.seconds for row in p.rows)
    assert all(row.forecast > 0 for row in p.rows)
    np.testing.assert_allclose(A.xp.to_numpy(K @ p.result), 1, rtol=1e-7)
    printed = capsys.readouterr().out
    assert "measured" in printed and "forecast" in printed and "total" in printed
    assert plan.figures in printed


def test_a_profile_sees_what_runs_without_an_info():
    """With an Info, Woodbury's inverse is made and judged; without, the formula is enough."""
    N = co.PD(co.Diagonal(np.ones(100))) + co.LowRank(np.ones((100, 1)))
    with co.profile() as p:
        co.solve(N, np.ones(100))
    assert [row.rule for row in p.rows] == co.explain(co.solve, N).rules


def test_equal_calls_after_each_other_are_one_row_with_their_sum():
    A, _ = definite(n=10)
    with co.profile() as p:
        for _ in range(3):
            co.solve(co.Kronecker(A, A), np.ones(100))
        co.logdet(A)
    assert [row.count for row in p.calls] == [3, 1]
    assert p.calls[0].forecast == pytest.approx(
        3 * co.explain(co.solve, co.Kronecker(A, A)).cost.seconds
    )
    assert str(p).count("3 x solve") == 1
    assert p.calls[0].seconds == pytest.approx(sum(p.calls[0].times.values()))


def test_products_of_ones_own_are_products():
    A, b = definite()
    with co.profile() as p:
        for _ in range(10):
            b = A @ b / 1e3
    assert p.times["products"] > 0 and not p.rows and not p.notes


def test_derivatives_have_their_part_and_no_part_of_others():
    pytest.importorskip("torch")
    A, b = definite("torch")
    A.requires_grad_()
    with co.profile() as p:
        co.solve(A, b).sum().backward()
    assert p.times["derivatives"] > 0
    assert sum(p.times.values()) == pytest.approx(p.seconds)


def test_what_a_compiled_program_hides_is_said():
    jax = pytest.importorskip("jax")
    A, b = definite("jax", 5)
    program = jax.jit(lambda b: co.solve(A, b))
    with co.profile() as p:
        program(b)
    assert p.calls[0].seconds is None and "What is traced has no times" in str(p)
    assert p.calls[0].forecast is None
    with co.profile() as p:
        program(b)
    assert not p.calls and "No call of colinear was seen" in str(p)
    assert "measured" not in str(p)
    with co.profile() as p:
        jax.grad(lambda b: co.solve(A, b).sum())(b)
    assert "What is traced has no times" in str(p)


def test_torch_compile_goes_on_inside_a_profile():
    torch = pytest.importorskip("torch")
    A, b = definite("torch", 5)
    compiled = torch.compile(lambda b: co.solve(A, b), backend="eager", fullgraph=True)
    with co.profile() as p:
        x = compiled(b)
    torch.testing.assert_close(x, co.solve(A, b))
    assert p.seconds > 0


def test_a_method_that_is_tried_and_left_leaves_no_row():
    """CG is for positive parts: where one is not, it runs on the whole."""
    rng = np.random.default_rng(0)
    whole = co.PSD(co.Kronecker(rng.standard_normal((3, 3)), np.eye(2)))
    with co.profile() as p:
        co.solve(whole, np.ones(6), co.CG(), on_failure="ignore")
    assert [row.rule for row in p.calls] == [co.explain(co.solve, whole, method=co.CG()).rule]


def test_a_profile_is_text_a_table_and_a_picture(monkeypatch):
    A, b = definite(n=6)
    with co.profile() as p:
        co.solve(A, b)
    text = p._repr_html_()
    assert text.count("<tr>") == 1 + len(p.rows)
    assert html.escape(p.rows[0].label) in text
    assert repr(p) == str(p)
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    axes = p.plot()
    assert len(axes.get_yticklabels()) == len(p.rows)
    pyplot.close("all")


def test_what_cannot_be_profiled_is_refused():
    with pytest.raises(TypeError, match="cannot be called"):
        co.profile(co.Dense(np.eye(2)).to_dense())
    with pytest.raises(TypeError, match=r"no function: write profile\(f"):
        co.profile(b=3)


def test_an_empty_block_has_a_total():
    with co.profile() as p:
        pass
    assert p.rows == [] and str(p).startswith("total ")


def test_each_thread_has_its_own_clock():
    A, b = definite(n=20)
    found = []
    with co.profile() as p:
        thread = threading.Thread(target=lambda: found.append(co.solve(A, b, info=True)[1]))
        thread.start()
        thread.join()
    assert found[0].times["factorisation"] > 0
    assert not p.rows
