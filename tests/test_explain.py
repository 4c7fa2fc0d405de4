"""Plans: the tree of rules and methods, without the work."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from support.toys import PSD, Dense, Diagonal, Kronecker, LowRank, Product, Sum, Toy

from colinear.dispatch import function, rule
from colinear.dispatch import functions as dispatch
from colinear.dispatch.resolution import Choice, Cost
from colinear.errors import AmbiguityError
from colinear.explain import Plan, explain
from colinear.info import Info, report, state
from colinear.status import Status


@pytest.fixture(autouse=True)
def forget_functions():
    """The functions that a test makes, ambiguous ones too, must not be found by `check_rules()` in another."""
    before = set(dispatch._functions)
    yield
    for number in set(dispatch._functions) - before:
        dispatch._functions.pop(number, None)


worked = []


def factorise(A, method=None):
    """Factorise A."""
    worked.append(A)
    return "factors"


class LU:
    _is_method = True


def choose(A, method=None):
    """Factorise A, by the method that fits."""
    name = "Cholesky" if A.properties & 4 else "LU"
    return Choice(
        lambda: factorise(A), name, Cost(2e9 / 3, 8e6), "small, so dense", lambda: "stand-in"
    )


def make():
    inv = function("inv", base=choose)

    @rule(inv, Diagonal)
    def inv_diagonal(A, method):
        """diag(d)^-1 = diag(1/d)

        More text, which is not the identity.
        """
        return "reciprocal"

    @rule(inv, Kronecker)
    def inv_kronecker(A, method):
        """(A ⊗ B)^-1 = A^-1 ⊗ B^-1"""
        return [inv(operand, method) for operand in A.operands]

    @rule(inv, Sum)
    def inv_sum(A, method):
        return inv(A.operands[0], method)

    @rule(inv, Sum[LowRank, Diagonal], when=never, cost=lambda A: 1.0)
    def woodbury(A, method):
        """Woodbury"""

    return inv


def never(A):
    return False


def test_a_plan_is_the_tree_of_rules_and_nothing_is_computed():
    inv = make()
    plan = explain(inv, Kronecker(Dense(), Diagonal(), Dense(mask=4)))
    assert isinstance(plan, Plan) and not worked
    assert (
        plan.function == "inv"
        and plan.rule == "inv_kronecker"
        and plan.identity == "(A ⊗ B)^-1 = A^-1 ⊗ B^-1"
    )
    assert plan.rules == ["inv_kronecker", "LU", "inv_diagonal", "Cholesky"]
    assert (
        plan.children[1].identity == "diag(d)^-1 = diag(1/d)"
        and plan.children[0].identity == "small, so dense"
    )
    assert plan.expression == "Kronecker(Dense, Diagonal, Dense)"
    assert inv.explain(Dense()).rules == ["LU"] and state.current is None


def test_costs_add_up_and_a_rule_may_say_its_own():
    inv = make()
    plan = explain(inv, Kronecker(Dense(), Diagonal()))
    # a rule without a cost counts one product with its operator
    one, line = (Cost(2e9 / 3, 8e6), Cost(10.0, 80.0))
    assert plan.children[0].cost == one and plan.children[1].cost == line
    assert plan.cost == line + one + line
    rule(inv, Product, cost=lambda A: 7)(lambda A, method: inv(A.operands[0]))
    assert explain(inv, Product(Dense())).cost == Cost(7.0) and Cost(1, 2) + Cost(3, 4) == Cost(
        4, 6
    )


def test_it_prints_one_line_per_node_with_costs_in_human_units():
    lines = str(explain(make(), Kronecker(Kronecker(Dense()), Diagonal()))).splitlines()
    assert lines == [
        "inv Kronecker(Kronecker(Dense), Diagonal): inv_kronecker  (A ⊗ B)^-1 = A^-1 ⊗ B^-1  [667 Mflop, 7.63 MiB, 130 ms]",
        "├─ inv Kronecker(Dense): inv_kronecker  (A ⊗ B)^-1 = A^-1 ⊗ B^-1  [667 Mflop, 7.63 MiB, 130 ms]",
        "│  └─ inv Dense: LU  small, so dense  [667 Mflop, 7.63 MiB, 130 ms]",
        "└─ inv Diagonal: inv_diagonal  diag(d)^-1 = diag(1/d)  [10 flop, 80 B, 20 us]",
        "times by built-in rates; `colinear calibrate` measures this machine",
    ]
    assert repr(explain(make(), Dense())) == str(explain(make(), Dense()))
    wide = str(explain(make(), Sum(*[Dense()] * 50))).splitlines()[0]
    assert "…" in wide and len(wide) < 130


def test_it_says_why_other_rules_were_not_taken():
    inv = make()
    plan = explain(inv, Sum(Diagonal(), LowRank()))
    assert plan.rule == "inv_sum" and plan.rejected == (
        ("woodbury", "its guard never does not hold"),
    )
    assert "not woodbury: its guard never does not hold" in str(plan)

    f = function("f", base=factorise)
    rule(f, Sum, name="general")(lambda A, method: 0)
    rule(f, Sum[Dense, ...], name="special")(lambda A, method: 0)
    assert explain(f, Sum(Dense())).rejected == (
        ("general", "less specific, costs 10 flop, 80 B, 20 us (Sum against Sum[Dense, ...])"),
    )

    h = function("h", base=factorise)
    rule(h, Sum, name="hopeless")(lambda A, method: 1 / 0)
    rule(h, Sum[Diagonal, ...], name="working", direct=True)(lambda A, method: [][1])
    rule(h, Sum[Diagonal, Dense], name="special")(lambda A, method: 0)
    reasons = dict(explain(h, Sum(Diagonal(), Dense())).rejected)
    assert all(reasons[name].startswith("less specific (") for name in ("hopeless", "working"))

    g = function("g", base=factorise)
    rule(g, Product[Dense, ...], cost=lambda A: 5e3, name="left")(lambda A, method: 0)
    rule(g, Product[..., Dense], cost=lambda A: Cost(2.0, 16.0), name="right")(lambda A, method: 0)
    plan = explain(g, Product(Dense(), Dense()))
    assert plan.rule == "right" and plan.rejected == (
        ("left", "costs 5 kflop, 0 B, 1 us, not 2 flop, 16 B, 0.0004 us"),
    )


def test_html_is_nested_and_escaped():
    inv = make()
    rule(inv, Product, name="a<b")(lambda A, method: inv(A.operands[0]))
    text = explain(inv, Product(Dense()))._repr_html_()
    assert (
        "a&lt;b" in text
        and "a<b" not in text
        and text.count("<details") == text.count("</details>") == 1
    )


def test_the_method_named_is_the_one_printed():
    f = function("f", base=factorise)
    assert explain(f, Dense(), method=LU()).rules == ["LU"] and explain(f, Dense(), LU()).rules == [
        "LU"
    ]
    assert (
        explain(f, Dense()).rules == ["factorise"]
        and explain(f, Dense()).identity == "Factorise A."
    )
    worked.clear()


def test_a_base_case_that_makes_no_choice_runs():
    f = function("f", base=factorise)
    explain(f, Dense())
    assert len(worked) == 1 and worked.pop()


def test_what_a_rule_or_a_base_case_chooses_is_run_by_a_call_and_printed_by_explain():
    def base(A, method=None):
        """The base case."""
        return Choice(
            lambda: worked.append("base") or "result",
            "fast",
            lambda: 3.0,
            lambda: "it is small",
            lambda: "like",
        )

    f = function("f", base=base)
    rule(f, Sum, like=lambda A: "sum")(lambda A, method: worked.append("sum"))

    @rule(f, Product)
    def in_parts(A, method):
        """f(A B) = f(A) f(B)"""
        return Choice(lambda: f.base(A, method), like=lambda: f(A.operands[0]))

    assert f(Dense()) == "result" and f(Product(Dense())) == "result" and worked == ["base", "base"]
    assert f(Dense(), info=True)[1].rule == "base" and worked.pop()
    worked.clear()
    plan = explain(f, Product(Dense()))
    assert (
        plan.rules == ["in_parts", "fast"] and plan.identity == "f(A B) = f(A) f(B)" and not worked
    )
    assert plan.children[0].identity == "it is small" and plan.children[0].cost == Cost(3.0)
    assert explain(f, Sum(Dense())).rules == ["<lambda>"] and not worked


def test_a_guard_sees_the_arguments_that_it_names_and_what_a_method_displaces_is_said():
    f = function("f", base=lambda A, k=0, method=None: "base")

    def is_small(A, method=None, k=0):
        return method is None and k < 3

    rule(f, Dense, when=is_small, name="small")(lambda A, k, method: "small")
    assert f(Dense(), 2) == "small" and f(Dense(), 5) == "base" and f(Dense(), 2, LU()) == "base"
    assert f.find(Dense()).name == "small" and f.find(Dense(), (5, None)).is_base
    assert f.using(f.find(Dense()), Dense(), 2, None) == "small"
    assert explain(f, Dense(), 5).rejected == (("small", "its guard is_small does not hold"),)
    assert explain(f, Dense(), 2, LU()).rejected == (("small", "LU was asked for"),)


def test_a_call_asks_each_guard_once():
    asked = []
    f = function("f", base=lambda A, method=None: "base")
    rule(f, Dense, when=lambda A: asked.append(A) is None, name="small")(lambda A, method: "small")
    assert f(Dense()) == "small" and len(asked) == 1


def test_arguments_with_examples_may_be_left_out_and_arrays_are_converted(monkeypatch):
    monkeypatch.setattr(dispatch, "_converter", lambda x: Dense())
    seen = []

    def base(A, b, method=None):
        seen.append((type(A), b))

    solve = function("solve", base=base, examples={"b": lambda A: A.shape[-1]})
    explain(solve, Dense())
    explain(solve, np.eye(3))
    explain(solve, Dense(), 5)
    explain(solve, Dense(), b=6)
    assert seen == [(Dense, 3), (Dense, 3), (Dense, 5), (Dense, 6)]
    with pytest.raises(TypeError, match="missing"):
        explain(function("f", base=base), Dense())
    apply = function("apply", base=lambda A, f, method=None: None, operand=1)
    assert explain(apply, np.exp, Dense()).function == "apply"


def test_planning_is_silent_and_leaves_nothing_behind():
    def base(A, method=None):
        warnings.warn("loud", stacklevel=1)
        report(Info(Status.SINGULAR))
        return np.float64(1) / np.float64(0)

    f = function("f", base=base)

    @rule(f, Sum)
    def parts(A, method):
        results = [f(operand, info=True) for operand in A.operands]
        assert all(isinstance(info, Info) for _, info in results)
        return f(A.operands[0], on_failure="raise")

    assert explain(f, Sum(Dense(), Dense())).rules == ["parts", "base", "base", "base"]
    broken = function("broken", base=lambda A: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        explain(broken, Dense())
    assert state.current is None


def test_explain_inside_a_rule_does_not_disturb_the_call():
    f = function("f", base=lambda A: "result")
    rule(f, Sum)(lambda A: (explain(f, A.operands[0]).rules, f(A.operands[0])))
    assert f(Sum(Dense())) == (["<lambda>"], "result")
    assert f(Sum(Dense()), info=True)[1].children[0].function == "f"


def test_ambiguous_calls_cannot_be_planned_either():
    f = function("f", base=lambda A: 0)
    rule(f, PSD, name="a")(lambda A: 0)
    rule(f, Sum, name="b")(lambda A: 0)
    with pytest.raises(AmbiguityError):
        explain(f, Sum(mask=5))
    rule(f, Toy, name="c")(lambda A: 0)
    assert explain(f, Dense()).rules == ["c"]
