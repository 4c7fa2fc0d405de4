"""What the library weighs: tokens, files, imports inside functions, and the frames of three calls.

    python benchmarks/weight.py            # prints the table; --json FILE saves it

Frames are calls of Python functions of this package, counted with `sys.setprofile`. What is counted
is the second call on operators of a known signature, except where the first compiled call is meant.
`tests/test_layout.py` keeps these figures from growing.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import colinear as co

SOURCE = Path(co.__file__).parent
LAYOUT_TOKENS = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


class Frames(NamedTuple):
    """The calls of functions of this package during one call, and the files that they are in."""

    count: int
    files: int


def sources() -> list[Path]:
    """Return the files of the package."""
    return sorted(SOURCE.rglob("*.py"))


def count_tokens(text: str) -> int:
    """Count the tokens of a file without comments, docstrings, blank lines and newlines."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None
    }
    return sum(
        token.type not in LAYOUT_TOKENS
        and not (token.type == tokenize.STRING and token.start in docstrings)
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
    )


def deferred_imports() -> list[str]:
    """Return the relative imports inside functions, as `file: statement`."""
    return [
        f"{path.relative_to(SOURCE).as_posix()}: {ast.unparse(node)}"
        for path in sources()
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef))
        for node in _imports_of(function)
    ]


def _imports_of(function: ast.AST) -> Iterator[ast.ImportFrom]:
    """Yield the relative imports of a function, without those of functions inside it."""
    for node in ast.iter_child_nodes(function):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _imports_of(node)


def tests_of_framework() -> int:
    """Count the lines outside of the backends that compare the name of a framework."""
    pattern = re.compile(r"xp\.name [!=]=")
    files = (path for path in sources() if "backends" not in path.relative_to(SOURCE).parts)
    return sum(
        bool(pattern.search(line)) for path in files for line in path.read_text().splitlines()
    )


def frames_of(work: Callable[[], Any]) -> Frames:
    """Count the calls of functions of this package while `work()` runs."""
    count, files, root = 0, set(), str(SOURCE)

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal count
        name = frame.f_code.co_filename
        if event == "call" and (name.startswith(root) or name.startswith("<colinear")):
            count += 1
            files.add(name)

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return Frames(count, len(files))


def woodbury(n: int = 5000, k: int = 10) -> Frames:
    """Count the frames of solve(Diagonal + LowRank, b) in NumPy."""
    rng = np.random.default_rng(0)
    d, U, b = 1 + rng.random(n), rng.standard_normal((n, k)), rng.standard_normal(n)

    def fresh():
        return co.Diagonal(d) + co.LowRank(U)

    co.solve(fresh(), b)
    A = fresh()
    return frames_of(lambda: co.solve(A, b))


def shifted_kronecker(n: int = 5) -> Frames:
    """Count the frames of logdet(K1 ⊗ K2 + c I) in torch with gradients, building the operator
    included."""
    import torch

    G = np.random.default_rng(0).standard_normal((2, n, n))
    K1, K2 = (torch.tensor(g @ g.T + n * np.eye(n), requires_grad=True) for g in G)

    def work() -> None:
        A = co.Kronecker(co.PSD(co.Dense(K1)), co.PSD(co.Dense(K2))) + 0.5 * co.Identity(n * n)
        co.logdet(A).backward()

    work()
    return frames_of(work)


def laplacian(n: int = 200) -> Any:
    """Return the second difference matrix as a sparse operator of JAX, with a right side."""
    import jax.numpy as jnp
    import scipy.sparse

    S = scipy.sparse.diags_array(
        [-np.ones(n - 1), 2.5 * np.ones(n), -np.ones(n - 1)], offsets=[-1, 0, 1]
    )
    return co.PSD(co.Sparse(S.tocsr()).to("jax")), jnp.ones(n)


class Compiled(NamedTuple):
    """What the first compiled call of conjugate gradients takes."""

    frames: int
    to_step: int  # frames between `solve` and a step of the recurrence
    traces: int  # times that a step is traced for a solve
    gradient_traces: int  # and for its gradient


def compiled_cg() -> Compiled:
    """Count the frames of the first jitted call of CG with Jacobi's preconditioner in JAX, and
    how often a step is traced."""
    import jax

    A, b = laplacian()

    def solve(A, b):
        return co.solve(A, b, co.CG(preconditioner=co.Jacobi()))

    program = jax.jit(solve)
    frames = frames_of(lambda: program(A, b)).count
    A, b = laplacian(201)  # of another shape, so that nothing is known of it
    to_step, traces = steps_of(lambda: jax.jit(solve).lower(A, b))
    A, b = laplacian(202)
    slope = jax.jit(jax.grad(lambda b: solve(A, b).sum()))
    return Compiled(frames, to_step, traces, steps_of(lambda: slope.lower(b))[1])


def steps_of(work: Callable[[], Any]) -> tuple[int, int]:
    """Return how many frames of ours lead to a step of CG while `work()` runs, and how many
    steps there are."""
    count, least, root = 0, 0, str(SOURCE)

    def profile(frame: Any, event: str, _: Any) -> None:
        nonlocal count, least
        if (
            event == "call"
            and frame.f_code.co_name == "step"
            and frame.f_code.co_filename.endswith("methods/cg.py")
        ):
            count += 1
            depth, caller = 0, frame.f_back
            while caller is not None:
                name = caller.f_code.co_filename
                depth += name.startswith(root) or name.startswith("<colinear")
                caller = caller.f_back
            least = min(least or depth, depth)

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return least, count


def figures() -> dict[str, Any]:
    """Return all figures by name."""
    a, b, c = woodbury(), shifted_kronecker(), compiled_cg()
    return {
        "tokens": sum(count_tokens(path.read_text()) for path in sources()),
        "files": len(sources()),
        "deferred relative imports": len(deferred_imports()),
        "tests of xp.name outside backends": tests_of_framework(),
        "(a) Woodbury, NumPy, n = 5000: frames": a.count,
        "(a) files": a.files,
        "(b) logdet(Kronecker + c I), torch: frames": b.count,
        "(c) jitted CG with Jacobi, JAX: frames": c.frames,
        "(c) frames from solve to a step": c.to_step,
        "(c) times a step is traced: solve": c.traces,
        "(c) times a step is traced: gradient": c.gradient_traces,
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", help="save the figures to this file")
    found = figures()
    for name, value in found.items():
        print(f"{name:<48} {value:>9,}")
    target = parser.parse_args().json
    if target:
        Path(target).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
