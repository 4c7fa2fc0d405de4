"""Every function, for the leaves of every family of operators, in every mode, against finite differences of NumPy's own functions.

All leaves move at once, along one direction: φ(t) is the function at the distance t. So a mode is one program, and its derivative, which
passes through every leaf, one number. In torch every function meets every family; in JAX, where each pair is compiled, they take turns,
unless COLINEAR_FULL is set.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.derivative_cases import CASES, FAMILIES, MODES, Case, family

from colinear import backends

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

FULL = bool(os.environ.get("COLINEAR_FULL"))
STEP = 5e-4


def dtype_of(case: str, name: str) -> str:
    """Real and complex by turns, so that every function and every family meets both."""
    turn = list(CASES).index(case) + FAMILIES.index(name)
    return "complex128" if turn % 2 else "float64"


def differences(case: Case, name: str, dtype: str) -> tuple[float, float, float] | None:
    """φ'(0), φ''(0) and the size of the numbers, by differences of fourth order; None where φ is not smooth."""
    xp = backends.get("torch")
    made = family(name, xp, dtype)
    if made is None:
        return None
    D = [np.asarray(xp.to_numpy(made(k * STEP).to_dense())) for k in (-2, -1, 0, 1, 2)]
    if not case.smooth(D[2]) or (np.iscomplexobj(D[2]) != ("complex" in dtype)):
        return None
    f = [case.reference(matrix) for matrix in D]
    first = (f[0] - 8 * f[1] + 8 * f[3] - f[4]) / (12 * STEP)
    second = (-f[0] + 16 * f[1] - 30 * f[2] + 16 * f[3] - f[4]) / (12 * STEP**2)
    return first, second, max(map(abs, f))


def phi(case: Case, framework: str, name: str, dtype: str) -> Callable[[Any], Any]:
    xp = backends.get(framework)
    made = family(name, xp, dtype)
    assert made is not None
    return lambda t: case.of(xp, made(t))


# ---------------------------------------------------------------------------------------------------- modes


def by_torch(mode: str, f: Callable[[Any], Any]) -> tuple[float, int]:
    """The derivative at 0 in one of torch's modes, and its order."""
    t = torch.zeros((), dtype=torch.float64)
    one = torch.ones_like(t)
    if mode == "reverse":
        t.requires_grad_(True)
        value = f(t)  # which may be constant: the determinant of a unit triangle
        return float(torch.autograd.grad(value, t)[0]) if value.requires_grad else 0.0, 1
    if mode == "double backward":
        t.requires_grad_(True)
        value = f(t)
        slope = (
            torch.autograd.grad(value, t, create_graph=True)[0] if value.requires_grad else value
        )
        return float(torch.autograd.grad(slope, t)[0]) if slope.requires_grad else 0.0, 2
    if mode == "vmap of grad":
        return float(torch.func.vmap(torch.func.grad(f))(torch.stack([t, t]))[1]), 1
    functions = {
        "forward": lambda: (torch.func.jvp(f, (t,), (one,))[1], 1),
        "func.grad": lambda: (torch.func.grad(f)(t), 1),
        "forward over reverse": lambda: (torch.func.jvp(torch.func.grad(f), (t,), (one,))[1], 2),
        "reverse over reverse": lambda: (torch.func.grad(torch.func.grad(f))(t), 2),
    }
    value, order = functions[mode]()
    return float(value), order


def by_jax(f: Callable[[Any], Any], modes: tuple[str, ...]) -> dict[str, tuple[float, int]]:
    """The derivatives at 0 in JAX's modes, all in one program: compiling is what takes the time."""
    grad = jax.grad(f)
    programs = {
        "reverse": lambda t: grad(t),
        "forward": lambda t: jax.jvp(f, (t,), (1.0,))[1],
        "forward over reverse": lambda t: jax.jvp(grad, (t,), (1.0,))[1],
        "reverse over reverse": lambda t: jax.grad(grad)(t),
        "vmap of grad": lambda t: jax.vmap(grad)(jax.numpy.stack([t, t]))[1],
    }
    chosen = [mode for mode in modes if mode in programs]
    found = jax.jit(lambda t: [programs[mode](t) for mode in chosen])(0.0)
    return {
        mode: (float(value), 2 if " over " in mode else 1)
        for mode, value in zip(chosen, found, strict=True)
    }


def wrong(found: float, order: int, wanted: tuple[float, float, float]) -> bool:
    first, second, size = wanted
    tol = (1e-6, 1e-4)[order - 1]
    right = (first, second)[order - 1]
    return not abs(found - right) <= tol * max(1.0, abs(first), abs(second), size)


# ---------------------------------------------------------------------------------------------------- tests


@pytest.mark.parametrize("case", CASES)
def test_torch_reverse_is_right_for_every_family(case: str) -> None:
    failures, met = [], 0
    for name in FAMILIES:
        dtype = dtype_of(case, name)
        wanted = differences(CASES[case], name, dtype)
        if wanted is None:
            continue
        met += 1
        try:
            found, order = by_torch("reverse", phi(CASES[case], "torch", name, dtype))
            if wrong(found, order, wanted):
                failures.append(f"{name} ({dtype}): {found} instead of {wanted[0]}")
        except Exception as error:  # all of them are to be seen at once
            failures.append(f"{name} ({dtype}): {type(error).__name__}: {str(error)[:150]}")
    assert not failures, "\n".join(failures)
    assert met >= 10 or CASES[case].only


def turns(case: str, framework: str, count: int) -> list[str]:
    """A few families for a function, other ones for each function."""
    able = [
        name
        for name in FAMILIES
        if differences(CASES[case], name, dtype_of(case, name)) is not None
        and (framework, name) != ("jax", "jacobian_of_tree")  # JAX sorts its columns by the keys
    ]
    start, stride = 7 * list(CASES).index(case), max(1, len(able) // count)
    return (
        able
        if FULL
        else [able[(start + i * stride) % len(able)] for i in range(min(count, len(able)))]
    )


@pytest.mark.parametrize("case", CASES)
def test_torch_modes_are_right(case: str) -> None:
    failures = []
    for name in turns(case, "torch", 4):
        dtype = dtype_of(case, name)
        wanted = differences(CASES[case], name, dtype)
        assert wanted is not None
        for mode in MODES["torch"][1:]:
            if mode in CASES[case].without:
                continue
            try:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", message="There is a performance drop")
                    found, order = by_torch(mode, phi(CASES[case], "torch", name, dtype))
                if wrong(found, order, wanted):
                    failures.append(
                        f"{name} ({dtype}), {mode}: {found} instead of {wanted[order - 1]}"
                    )
            except Exception as error:
                failures.append(
                    f"{name} ({dtype}), {mode}: {type(error).__name__}: {str(error)[:150]}"
                )
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("case", [case for case in CASES if not CASES[case].only])
def test_jax_modes_are_right(case: str) -> None:
    failures = []
    for name in turns(case, "jax", 1):
        dtype = dtype_of(case, name)
        wanted = differences(CASES[case], name, dtype)
        assert wanted is not None
        for mode, (found, order) in by_jax(
            phi(CASES[case], "jax", name, dtype), MODES["jax"]
        ).items():
            if wrong(found, order, wanted):
                failures.append(f"{name} ({dtype}), {mode}: {found} instead of {wanted[order - 1]}")
    assert not failures, "\n".join(failures)
