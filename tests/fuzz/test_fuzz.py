"""A minute of the fuzzer with a fixed seed; `make fuzz SEED=1 MINUTES=60` runs it for longer."""

from __future__ import annotations

import pytest
from fuzz_cases import run_case

CASES = {"numpy": 6000, "torch": 2500, "jax": 24}  # JAX compiles each new shape


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("backend", CASES)
def test_random_answers_are_right_or_flagged(backend, part):
    pytest.importorskip(backend)
    count = CASES[backend] // 4
    outcomes = [(n, run_case(0, n, backend)) for n in range(part * count, (part + 1) * count)]
    findings = [f"{n}: {o.kind}: {o.case}: {o.detail}" for n, o in outcomes if o.is_finding]
    assert not findings, "\n".join(findings)
    assert sum(o.kind == "right" for _, o in outcomes) > count // 2


def test_the_fuzzer_finds_a_wrong_answer(monkeypatch):
    """A rule with a mistake must not pass: otherwise the fuzzer proves nothing."""
    import colinear as co

    right = co.Diagonal._matmat
    monkeypatch.setattr(co.Diagonal, "_matmat", lambda self, X: 1.001 * right(self, X))
    assert any(run_case(0, n, "numpy").kind == "silent" for n in range(400))
