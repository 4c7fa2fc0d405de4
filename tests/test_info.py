"""Statuses, Info as a pytree, and what becomes of what is reported."""

from __future__ import annotations

import pickle
import threading
import warnings

import numpy as np
import pytest
from support.toys import Dense, Diagonal, Sum

from colinear import backends, errors
from colinear import info as information
from colinear.dispatch import function, rule
from colinear.errors import ConvergenceError, ConvergenceWarning
from colinear.info import Info, recording, report
from colinear.status import Status, combine

FAILURES = [s for s in Status if s.is_failure]


def test_statuses_are_ordered_by_severity_and_name_their_remedy():
    assert Status.SUCCESS == 0 and not Status.FELL_BACK.is_failure and not Status.STOPPED.is_failure
    assert Status.MAX_ITERATIONS < Status.SINGULAR < Status.NONFINITE and len(FAILURES) == 7
    assert all(s.remedy and s.meaning for s in Status if s)


def test_errors_are_also_the_builtin_errors_that_users_expect():
    for ours, builtin in [
        ("ShapeError", ValueError),
        ("DtypeError", TypeError),
        ("BackendError", TypeError),
        ("DeviceError", ValueError),
        ("AnnotationError", ValueError),
        ("AmbiguityError", TypeError),
        ("MethodError", TypeError),
        ("ConvergenceError", RuntimeError),
    ]:
        assert issubclass(getattr(errors, ours), (errors.ColinearError, builtin))
        assert issubclass(getattr(errors, ours), builtin)
    for name in ("ConvergenceWarning", "ApproximationWarning", "FallbackWarning"):
        assert issubclass(getattr(errors, name), errors.ColinearWarning)


def test_combining_statuses_takes_the_worst_of_numbers_and_arrays():
    assert combine([]) is Status.SUCCESS
    assert combine([0, Status.SINGULAR, 3]) is Status.SINGULAR
    assert combine([np.array([0, 4]), 1, np.int64(2)]) is Status.MAX_ITERATIONS
    assert combine([np.zeros((0,), int), 1]) is Status.FELL_BACK


def test_info_is_immutable_and_converged_follows_the_status():
    info = Info(Status.FELL_BACK, iterations=3, residual=1e-9, method="LU")
    assert info.converged is True and info.status is Status.FELL_BACK and not info.failed
    assert Info(Status.STOPPED).converged is False and Info(4).status is Status.MAX_ITERATIONS
    with pytest.raises(AttributeError):
        info.status = 0
    with pytest.raises(AttributeError):
        info.residual = 0
    changed = info.replace(status=Status.SINGULAR, method="QR")
    assert changed.status is Status.SINGULAR and changed.method == "QR" and changed.iterations == 3
    again = pickle.loads(pickle.dumps(info))
    assert again.status is Status.FELL_BACK and again.residual == 1e-9 and again.method == "LU"


def test_info_prints_as_a_tree():
    leaf = Info(
        Status.MAX_ITERATIONS,
        iterations=10,
        residual=np.array([1e-3, 0.5]),
        method="CG",
        function="solve",
        rule="base",
    )
    text = repr(
        Info(function="solve", rule="kronecker", status=4, children=(leaf, leaf.replace(status=0)))
    )
    assert text.splitlines() == [
        "solve: kronecker  MAX_ITERATIONS",
        "├─ solve: base by CG  MAX_ITERATIONS  residual 0.5  iterations 10",
        "└─ solve: base by CG  SUCCESS  residual 0.5  iterations 10",
    ]
    assert repr(Info(status=np.array([0, 8]), message="of a batch")) == "Info  SINGULAR  of a batch"


# ---------------------------------------------------------------------------------------------------- recording


def reporting(status=Status.SUCCESS, **facts):
    def base(A, method=None):
        report(Info(status, method="CG", **facts))
        return "result"

    return base


@pytest.mark.parametrize("status", FAILURES)
def test_a_failure_warns_with_name_method_status_residual_and_remedy(status):
    f = function("solve", base=reporting(status, residual=0.25, iterations=7))
    with pytest.warns(ConvergenceWarning) as caught:
        assert f(Dense()) == "result"
    (warning,) = caught
    for part in ("solve (CG)", status.name, "residual 0.25", "iterations 7", status.remedy):
        assert part in str(warning.message)
    assert warning.filename == __file__  # the user's line, not ours


@pytest.mark.parametrize("status", [s for s in Status if not s.is_failure])
def test_no_failure_no_warning(status):
    assert function("solve", base=reporting(status))(Dense(), on_failure="raise") == "result"
    assert function("solve", base=reporting(status))(Dense()) == "result"


def test_failures_may_be_raised_or_ignored():
    f = function("solve", base=reporting(Status.SINGULAR, residual=1.0))
    assert f(Dense(), on_failure="ignore") == "result"
    with pytest.raises(ConvergenceError, match="SINGULAR") as caught:
        f(Dense(), on_failure="raise")
    assert caught.value.info.status is Status.SINGULAR and caught.value.info.residual == 1.0
    assert pickle.loads(pickle.dumps(caught.value)).info.status is Status.SINGULAR
    with pytest.raises(
        ValueError,
        match=r"solve: on_failure is 'panic'; it must be one of 'warn', 'raise', 'ignore'",
    ):
        f(Dense(), on_failure="panic")


def test_info_is_returned_instead_of_a_warning():
    f = function(
        "solve", base=reporting(Status.MAX_ITERATIONS, iterations=5, matvecs=6, residual=0.1)
    )
    result, info = f(Dense(), info=True)
    assert result == "result" and info.status is Status.MAX_ITERATIONS and not info.converged
    assert (info.function, info.rule, info.method) == ("solve", "base", "CG")
    assert (info.iterations, info.matvecs, info.residual, info.children) == (5, 6, 0.1, ())
    with pytest.raises(ConvergenceError):
        f(Dense(), info=True, on_failure="raise")


def nested():
    f = function("solve", base=reporting(iterations=5, residual=0.1))

    @rule(f, Diagonal)
    def division(A, method):
        return "divided"

    @rule(f, Sum)
    def parts(A, method):
        return [f(operand, method) for operand in A.operands]

    @rule(f, Dense)
    def hard(A, method):
        report(Info(Status.SINGULAR, iterations=2, method="LU"))
        return "hard"

    return f


def test_the_info_of_a_rule_has_those_of_its_parts_as_children():
    f = nested()
    result, info = f(Sum(Sum(Dense(), Diagonal()), Diagonal()), info=True)
    assert result == [["hard", "divided"], "divided"]
    assert info.rule == "parts" and [child.rule for child in info.children] == ["parts", "division"]
    assert [child.rule for child in info.children[0].children] == ["hard", "division"]
    assert info.status is Status.SINGULAR and info.converged is False and info.iterations == 2
    assert info.children[1].status is Status.SUCCESS and info.children[1].converged is True


def test_failures_of_parts_reach_the_outermost_call_once():
    f = nested()
    with pytest.warns(ConvergenceWarning, match=r"solve: SINGULAR in LU") as caught:
        f(Sum(Sum(Dense(), Dense()), Dense()))
    assert len(caught) == 1
    with pytest.raises(ConvergenceError):
        f(Sum(Dense(), Diagonal()), on_failure="raise")
    assert f(Sum(Diagonal(), Diagonal()), on_failure="raise") == ["divided", "divided"]


def test_a_rules_own_report_is_the_wholes():
    f = nested()

    @rule(f, Sum[Dense, Dense])
    def checked(A, method):
        first = f(A.operands[0])
        report(Info(Status.SUCCESS, residual=1e-12))
        return first

    _, info = f(Sum(Dense(), Dense()), info=True)
    assert (
        info.residual == 1e-12
        and info.converged
        and info.status is Status.SINGULAR
        and len(info.children) == 1
    )


def test_a_rule_that_asks_for_the_info_of_a_part_deals_with_it_itself():
    f = nested()

    @rule(f, Sum[Dense, ...])
    def careful(A, method):
        _, info = f(A.operands[0], info=True)
        f(A.operands[0], on_failure="ignore")
        with recording() as reports:
            report(Info(Status.NONFINITE))
        return info.status, len(reports)

    assert f(Sum(Dense())) == (Status.SINGULAR, 1)
    _, info = f(Sum(Dense()), info=True)
    assert info.status is Status.SUCCESS and info.children == ()


def test_a_report_outside_all_calls_warns_at_once():
    with pytest.warns(ConvergenceWarning, match=r"CG: BREAKDOWN: .*residual 0.5"):
        report(Info(Status.BREAKDOWN, method="CG", residual=0.5))
    report(Info(Status.SUCCESS))


def test_an_error_in_a_rule_leaves_nothing_behind():
    f = function("f", base=lambda A: 1 / 0)
    for keywords in ({}, {"info": True}, {"on_failure": "raise"}):
        with pytest.raises(ZeroDivisionError):
            f(Dense(), **keywords)
        assert information.state.current is None


def test_threads_do_not_mix_their_reports():
    inside, done = threading.Event(), threading.Event()

    def slow(A):
        inside.set()
        assert done.wait(10)
        return "slow"

    f = function("f", base=slow)
    results = []
    thread = threading.Thread(target=lambda: results.append(f(Dense(), info=True)))
    thread.start()
    assert inside.wait(10)
    with pytest.warns(ConvergenceWarning):
        report(Info(Status.SINGULAR))
    done.set()
    thread.join()
    assert results[0][1].status is Status.SUCCESS


def test_arrays_of_statuses_and_of_convergence_are_reduced_where_parts_meet():
    f = nested()

    @rule(f, Sum[Dense, Dense])
    def two(A, method):
        report(Info(np.array([0, 4]), converged=np.array([True, False])))
        report(Info(np.array([[0], [1]]), converged=np.array([[True], [True]])))

    _, info = f(Sum(Dense(), Dense()), info=True)
    assert info.status is Status.MAX_ITERATIONS and not info.converged and len(info.children) == 2
    with pytest.warns(ConvergenceWarning, match="MAX_ITERATIONS"):
        f(Sum(Dense(), Dense()))


# ---------------------------------------------------------------------------------------------------- frameworks


def test_info_passes_through_jit_and_vmap():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy
    backends.get("jax")

    def base(A, x, method=None):
        report(Info(jnp.where(x > 1, 4, 0), iterations=3, residual=x, method="CG"))
        return x * 2

    f = function("solve", base=base)
    rule(f, Sum)(lambda A, x, method: f(A.operands[0], x, method))
    A = Sum(Dense())
    result, info = jax.jit(lambda x: f(A, x, info=True))(2.0)
    assert (
        result == 4
        and info.status is Status.MAX_ITERATIONS
        and not info.converged
        and info.iterations == 3
    )
    assert info.children[0].method == "CG" and info.children[0].residual == 2
    _, info = jax.vmap(lambda x: f(A, x, info=True))(jnp.array([1.0, 2.0]))
    assert (
        info.status.tolist() == [0, 4]
        and info.converged.tolist() == [True, False]
        and "MAX_ITERATIONS" in repr(info)
    )
    printed = []
    jax.jit(lambda x: (printed.append(repr(f(A, x, info=True)[1])), x)[1])(1.0)
    assert "traced" in printed[0]


def test_under_jit_the_warning_comes_later_and_raise_warns():
    jax = pytest.importorskip("jax")
    backends.get("jax")

    def base(A, x, method=None):
        report(Info(jax.numpy.where(x > 1, 4, 0), method="CG"))
        return x * 2

    f = function("solve", base=base)
    for how in ("warn", "raise"):
        run = jax.jit(lambda x, how=how: f(Dense(), x, on_failure=how))
        with pytest.warns(
            ConvergenceWarning, match=r"solve \(CG\): MAX_ITERATIONS.*Raise max_iters"
        ):
            run(2.0)
            jax.effects_barrier()
        run(1.0)
        jax.effects_barrier()
    run = jax.jit(lambda x: f(Dense(), x, on_failure="ignore"))
    run(2.0)
    jax.effects_barrier()


def test_info_is_a_torch_pytree_and_does_not_break_the_graph():
    torch = pytest.importorskip("torch")
    import torch.utils._pytree as pytree

    backends.get("torch")
    info = Info(0, residual=torch.ones(2), method="CG", children=(Info(1, iterations=2),))
    leaves, structure = pytree.tree_flatten(info)
    assert len(leaves) == 6 and all(leaf is not None for leaf in leaves)
    again = pytree.tree_unflatten(leaves, structure)
    assert (
        again.status is Status.SUCCESS
        and again.children[0].status is Status.FELL_BACK
        and again.method == "CG"
    )

    def base(A, x, method=None):
        report(Info(0, residual=x.norm(), method="CG"))
        return x * 2

    f = function("solve", base=base)
    rule(f, Sum)(lambda A, x, method: f(A.operands[0], x, method))
    compiled = torch.compile(
        lambda x: f(Sum(Dense()), x, info=True), backend="eager", fullgraph=True
    )
    result, info = compiled(torch.ones(4))
    assert (
        torch.equal(result, 2 * torch.ones(4))
        and info.residual == 2
        and info.status is Status.SUCCESS
    )
    assert (
        torch.compile(lambda x: f(Sum(Dense()), x), backend="eager", fullgraph=True)(
            torch.ones(4)
        ).sum()
        == 8
    )


def test_statuses_of_torch_tensors_are_seen_in_eager_mode():
    torch = pytest.importorskip("torch")
    backends.get("torch")
    f = function("solve", base=reporting(torch.tensor([0, 8])))
    assert f(Dense(), info=True)[1].status is Status.SINGULAR
    with pytest.warns(ConvergenceWarning, match="SINGULAR"):
        f(Dense())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        function("solve", base=reporting(torch.tensor([0, 1])))(Dense())
