"""What `explain` says of a call is what the call does: the rules and methods that really run, for every function and every operator."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from support.counting import count_factorisations
from support.registry import BACKENDS, MAKERS, Case, cases

import colinear as co
from colinear.dispatch.calls import NotForPart
from colinear.dispatch.functions import Function
from colinear.dispatch.resolution import Choice


@dataclass
class Ran:
    """A call that was made: its function, the rule or method that was taken, and the calls that this one made."""

    function: str
    rule: str
    parts: list[Ran] = field(default_factory=list)

    def __str__(self) -> str:
        parts = f"({', '.join(map(str, self.parts))})" if self.parts else ""
        return f"{self.function}:{self.rule}{parts}"


def recording(monkeypatch: pytest.MonkeyPatch) -> list[Ran]:
    """The calls of all functions from now on, as trees."""
    calls: list[Ran] = []
    inner = [calls]
    run = Function._run

    def recorded_run(self: Function, chosen: Any, A: Any, arguments: Any, *others: Any) -> Any:
        ran = Ran(self.name, chosen.name)
        inner[-1].append(ran)

        def implementation(*given: Any) -> Any:
            inner.append(ran.parts)
            try:
                result = chosen.implementation(*given)
                # what it says at first; what it does where that fails is another matter
                if type(result) is Choice:
                    ran.rule = result.method or ran.rule
                while type(result) is Choice:
                    result = result.run()
                return result
            except NotForPart:  # the method is run on the whole instead
                inner[-2].remove(ran)
                raise
            finally:
                inner.pop()

        taken = copy.copy(chosen)
        taken.implementation = implementation
        return run(self, taken, A, arguments, *others)

    monkeypatch.setattr(Function, "_run", recorded_run)
    return calls


def differences(plan: co.Plan, ran: Ran) -> list[str]:
    """Where the plan and the call disagree. What a leaf of the plan asks of other functions is its own work."""
    if (plan.function, plan.rule) != (ran.function, ran.rule):
        return [f"{plan.function}:{plan.rule} was said, {ran} ran"]
    if not plan.children:
        return []
    asked = [
        part
        for part in ran.parts
        if any(part.function == child.function for child in plan.children)
    ]
    said = [f"{child.function}:{child.rule}" for child in plan.children]
    if said != [f"{part.function}:{part.rule}" for part in asked]:
        return [
            f"in {plan.function}:{plan.rule}: {', '.join(said)} was said, {', '.join(map(str, asked))} ran"
        ]
    return [
        line
        for child, part in zip(plan.children, asked, strict=True)
        for line in differences(child, part)
    ]


def ones(A: Any) -> Any:
    return A.xp.ones((A.shape[-2],), dtype=A.dtype)


CALLS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    **{
        name: lambda A: (A,)
        for name in "inv pinv nullspace eig eigmax eigmin svd rank cond diag trace det".split()
    },
    **{
        name: lambda A: (A,)
        for name in "slogdet logdet exp log sqrt isqrt cholesky lu qr norm".split()
    },
    **{name: lambda A: (A, ones(A)) for name in ("solve", "lstsq", "solve_and_logdet")},
    "power": lambda A: (A, 1.5),
    "apply": lambda A: (A.xp.abs, A),
}


def disagreements(
    name: str, case: Case, monkeypatch: pytest.MonkeyPatch, *method: Any
) -> list[str]:
    """What explain says wrongly of this function of this operator."""
    f, arguments = getattr(co, name), (*CALLS[name](case.operator), *method)
    try:
        plan = co.explain(f, *arguments)
    except (co.ShapeError, co.MethodError, ValueError):
        return []  # which the call raises too, as is tested elsewhere
    with monkeypatch.context() as patched, warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        calls = recording(patched)
        f(*arguments)
    return [f"{name} of {case.operator!r}: {line}" for line in differences(plan, calls[0])]


@pytest.mark.parametrize("maker", MAKERS)
def test_what_explain_says_is_what_runs(maker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        line
        for case in cases(maker, "numpy", "explain", chosen=(("float64", ()),))
        for name in CALLS
        for line in disagreements(name, case, monkeypatch)
    ]
    assert not found, "\n".join(found)


METHODS = (
    ("solve", co.GMRES()),
    ("solve", co.CG()),
    ("inv", co.GMRES()),
    ("lstsq", co.LSMR()),
    ("exp", co.Krylov()),
    ("slogdet", co.LU()),
    ("eig", co.Eig()),
)


@pytest.mark.parametrize("maker", MAKERS)
def test_what_explain_says_is_what_runs_by_a_named_method(
    maker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        line
        for case in cases(maker, "numpy", "explain", chosen=(("float64", ()),))
        for name, method in METHODS
        if (case.is_regular or name == "lstsq")
        and not isinstance(case.operator, co.LowRank)  # whose products ask for more
        for line in disagreements(
            name, case, monkeypatch, *(() if name != "eig" else (None, "LM")), method
        )
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "numpy"])
@pytest.mark.parametrize(
    "maker", ["dense", "annotated_pd", "sum_low_rank_and_diagonal", "kronecker", "tridiagonal"]
)
def test_what_explain_says_is_what_runs_in_other_frameworks(
    backend: str, maker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        line
        for case in cases(maker, backend, "explain", chosen=(("float64", ()),))
        for name in ("solve", "inv", "slogdet", "eig", "sqrt")
        for line in disagreements(name, case, monkeypatch)
    ]
    assert not found, "\n".join(found)


def test_a_plan_does_no_work() -> None:
    """Each of these would take gigabytes, thousands of products or a factorisation."""
    n, products = 200_000, []

    def multiply(X: Any) -> Any:
        products.append(X.shape[-1])
        return 2.0 * X

    line = co.Tridiagonal(np.ones(n - 1), 2.0 + np.sin(np.arange(n)), np.ones(n - 1))
    assert co.explain(co.eig, line).rule == "eig_tridiagonal"
    assert co.explain(co.eig, co.FFT(n)).rule == "eig_fft"
    A = co.MatrixFree(multiply, (n, n), dtype=np.float64)
    assert co.explain(co.norm, A).rule == "matrix_norm"
    assert sum(products) <= 1  # by which a MatrixFree checks its function
    U = np.ones((n, 3)) * np.arange(1.0, 4.0)
    with count_factorisations() as factored:
        co.explain(co.det, co.Dense(U[:50, :2] @ U[:50, :2].T))
        co.explain(co.eig, co.Triangular(np.tril(U[:50, :1] @ U[:50, :1].T)))
    assert not factored


def test_a_plan_knows_the_batch_of_what_it_stands_for() -> None:
    A = co.BlockDiag(*np.random.default_rng(0).standard_normal((5, 4, 4)))
    assert co.explain(co.svd, A).children[0].rule == "SVD"


def test_what_may_be_self_adjoint_is_planned_as_such_without_its_matrix() -> None:
    X = np.random.default_rng(0).standard_normal((60, 60))
    is_not, is_so = co.Dense(X) @ co.Dense(X), co.Dense(X) @ co.Dense(X.T.copy())
    assert co.explain(co.exp, is_not).rule == "expm"
    assert co.explain(co.exp, is_so).rule == "Eigh"
    small = is_so / 100
    assert np.allclose(co.exp(small).to_dense(), scipy.linalg.expm(X @ X.T / 100))
