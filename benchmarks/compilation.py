"""What a first compiled solve takes in JAX: frames, lines of the program, and its times.

    JAX_ENABLE_X64=1 python benchmarks/compilation.py                # beside JAX's own, and lineax's
    JAX_ENABLE_X64=1 python benchmarks/compilation.py --only CG GMRES --repeats 5

Each figure is of a program that was never traced before: the sizes of the problems differ. Times
are of the CPU, in milliseconds, the least of several. Frames are calls of functions of this
package; `depth` is how many of them lead to a step of the recurrence.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax.scipy.sparse import linalg as own
from weight import SOURCE, frames_of

import colinear as co

ROWS = 200
STEPS = {"step", "step_lsqr", "step_lsmr", "step_cgls"}


class Problem(NamedTuple):
    """A sparse matrix as an operator, as a function of its entries, and a right side."""

    A: Any
    b: Any
    multiply: Callable[[Any, Any], Any]  # by the entries and a vector
    diagonal: Any


def problem(n: int) -> Problem:
    """Return the second difference matrix of n rows, shifted."""
    S = scipy.sparse.diags_array(
        [-np.ones(n - 1), 2.5 * np.ones(n), -np.ones(n - 1)], offsets=[-1, 0, 1]
    ).tocsr()
    rows, columns = (jnp.asarray(each) for each in S.nonzero())

    def multiply(data: Any, x: Any) -> Any:
        return jax.ops.segment_sum(data * x[columns], rows, n, indices_are_sorted=True)

    A = co.PSD(co.Sparse(S).to("jax"))
    return Problem(A, jnp.ones(n), multiply, jnp.asarray(S.diagonal()))


def ours(method: Any, p: Problem) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return `solve` (or `lstsq`) by a method, as a function of A and b."""
    solver = co.lstsq if method.least_squares else co.solve
    return lambda A, b: solver(A, b, method), (p.A, p.b)


def theirs(
    solver: Any, preconditioned: bool, p: Problem
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a solver of JAX's, as a function of the entries of A, of b and of the diagonal."""

    def solve(data: Any, b: Any, diagonal: Any) -> Any:
        M = (lambda r: r / diagonal) if preconditioned else None
        return solver(functools.partial(p.multiply, data), b, tol=1.5e-8, M=M)[0]

    return solve, (p.A.data, p.b, p.diagonal)


def lineax_solver(
    name: str, preconditioned: bool, p: Problem
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return a solver of lineax, as a function of the entries of A, of b and of the diagonal."""
    import lineax as lx

    def solve(data: Any, b: Any, diagonal: Any) -> Any:
        like, tag = jax.ShapeDtypeStruct(b.shape, b.dtype), lx.positive_semidefinite_tag
        A = lx.FunctionLinearOperator(functools.partial(p.multiply, data), like, tag)
        given = {}
        if preconditioned:
            given["preconditioner"] = lx.TaggedLinearOperator(
                lx.DiagonalLinearOperator(1 / diagonal), tag
            )
        solver = getattr(lx, name)(rtol=1.5e-8, atol=1e-30)
        return lx.linear_solve(A, b, solver, options=given).value

    return solve, (p.A.data, p.b, p.diagonal)


SOLVERS = {
    "CG": functools.partial(ours, co.CG(preconditioner=co.Jacobi())),
    "jax cg": functools.partial(theirs, own.cg, True),
    "lineax cg": functools.partial(lineax_solver, "CG", True),
    "GMRES": functools.partial(ours, co.GMRES(restart=20)),
    "jax gmres": functools.partial(theirs, own.gmres, False),
    "lineax gmres": functools.partial(lineax_solver, "GMRES", False),
    "BiCGSTAB": functools.partial(ours, co.BiCGSTAB()),
    "jax bicgstab": functools.partial(theirs, own.bicgstab, False),
    "MINRES": functools.partial(ours, co.MINRES()),
    "LSQR": functools.partial(ours, co.LSQR()),
    "LSMR": functools.partial(ours, co.LSMR()),
}


def depth_of(work: Callable[[], Any]) -> int:
    """Return the fewest frames of ours that lead to a step of a recurrence while `work()` runs."""
    least, root = 0, str(SOURCE)

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal least
        if event == "call" and frame.f_code.co_name in STEPS and "methods" in str(frame.f_code):
            depth, caller = 0, frame.f_back
            while caller is not None:
                depth += caller.f_code.co_filename.startswith((root, "<colinear"))
                caller = caller.f_back
            least = min(least or depth, depth)

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return least


class Figures(NamedTuple):
    """What a first compiled call takes."""

    frames: int
    depth: int
    lines: int  # of StableHLO
    times: list[float]  # tracing, lowering, compiling


def measure(solver: Any, n: int, repeats: int) -> Figures:
    """Return the figures of a solver, for problems of n rows and a few more."""
    f, arguments = solver(problem(n))
    f(*arguments)  # what is imported or known of a signature is not counted
    f, arguments = solver(problem(n + 1))
    frames = frames_of(functools.partial(jax.jit(f), *arguments)).count
    f, arguments = solver(problem(n + 2))
    depth = depth_of(functools.partial(jax.jit(f).lower, *arguments))
    runs = [times_of(solver, n + 3 + i) for i in range(repeats)]
    return Figures(frames, depth, runs[0][1], np.min([times for times, _ in runs], axis=0))


def times_of(solver: Any, n: int) -> tuple[list[float], int]:
    """Return the CPU time of tracing, lowering and compiling, and the lines of the program."""
    f, arguments = solver(problem(n))
    marks = [time.process_time()]
    traced = jax.jit(f).trace(*arguments)
    marks.append(time.process_time())
    lowered = traced.lower()
    marks.append(time.process_time())
    compiled = lowered.compile()
    marks.append(time.process_time())
    jax.block_until_ready(compiled(*arguments))
    return list(np.diff(marks) * 1e3), lowered.as_text().count("\n")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(SOLVERS), help="names of solvers")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print("solver          frames depth  lines    trace    lower  compile    total")
    for place, name in enumerate(options.only):
        if name.startswith("lineax") and importlib.util.find_spec("lineax") is None:
            continue
        found = measure(SOLVERS[name], ROWS + 100 * place, options.repeats)
        shown = "".join(f"{each:9.1f}" for each in (*found.times, sum(found.times)))
        print(f"{name:<14} {found.frames:7} {found.depth:5} {found.lines:6}{shown}")


if __name__ == "__main__":
    main()
