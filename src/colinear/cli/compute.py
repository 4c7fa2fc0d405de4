"""The commands that compute: `solve`, `eig`, `svd`, `logdet`, `trace`, `explain`."""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from ..status import Status, combine
from . import answers
from .answers import InputError, UsageError
from .files import check_target, read_columns, write
from .options import choose, method, operator, under_way


def timed(options: argparse.Namespace, what: str, f: Any) -> tuple[Any, Any, dict[str, Any]]:
    """`f()`, which returns a result and its Info, with the time it took."""
    start = time.perf_counter()
    with under_way(options, what):
        result, info = f()
    seconds = time.perf_counter() - start
    return result, combine([info._status]), answers.of_info(info) | {"seconds": round(seconds, 6)}


def head(options: argparse.Namespace, answer: dict[str, Any]) -> list[str]:
    """What all of them print."""
    lines = [f"{options.file}: {answer['operator']}"]
    for name in ("method", "status", "residual", "iterations", "matvecs", "seconds"):
        value = answer.get(name)
        if value not in (None, ""):
            lines.append(
                f"{name + ':':12}{value:.3g}"
                if isinstance(value, float)
                else f"{name + ':':12}{value}"
            )
    return lines


def solve(options: argparse.Namespace) -> int:
    import colinear as co

    check_target(options.output)
    if options.json and options.output == "-":
        raise UsageError(
            "--json and -o - both write to standard output; give a file to one of them"
        )
    matrix, A, report = operator(options)
    b = read_columns(options.right_side)
    m, n = matrix.shape
    if b.shape[0] != m:
        raise InputError(
            f"{options.right_side}: {b.shape[0]} rows, but the matrix is {m}x{n}, so a right side "
            f"has {m}"
        )
    if not options.least_squares:
        why = "a linear system needs a square matrix; --least-squares gives the nearest solution"
        _check_square(options, matrix, why)
    xp = A.xp
    dtype = xp.complex_dtype(A.dtype) if np.iscomplexobj(b) and not A.is_complex else A.dtype
    right = xp.asarray(b, dtype=dtype, device=A._context.device)
    f = co.lstsq if options.least_squares else co.solve
    x, status, found = timed(options, f.name, lambda: f(A, right, method(options), info=True))
    x = answers.host(x)
    answer = report | found | {"file": options.file, "right_side": options.right_side}
    if not options.least_squares:  # from the file's own entries, whatever was computed with
        answer["residual"] = true_residual(matrix, x, b)
        limit = 10 * (options.tol or float(np.sqrt(xp.eps(A.dtype))))
        if not status.is_failure and not answer["residual"] <= limit:
            status = Status.INACCURATE
    if not status.is_failure and not np.all(np.isfinite(x)):
        status = Status.NONFINITE
    answer["status"] = status.name
    answer |= save(options, status, x)
    lines = head(options, answer)
    if options.output is None:
        answer["x"] = x
        lines += ["x:", *answers.numbers(x if x.ndim == 1 else x[:, 0])]
    elif answer["output"] not in (None, "-"):
        lines.append(f"x:          written to {options.output}")
    return answers.finish(options, answer, lines, status)


def true_residual(matrix: Any, x: Any, b: Any) -> float:
    """max over columns of |b - A x| / |b|"""
    apart, size = (np.linalg.norm(np.reshape(v, (len(b), -1)), axis=0) for v in (b - matrix @ x, b))
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(
            np.max(np.where(size > 0, apart / np.where(size > 0, size, 1), apart), initial=0.0)
        )


def eig(options: argparse.Namespace) -> int:
    import colinear as co

    def compute(A: Any, k: int) -> tuple[Any, Any]:
        (values, vectors), info = co.eig(A, k, options.which, method(options), info=True)
        return {"values": values, "vectors": vectors}, info

    return _spectrum(options, compute, "values", {"which": options.which}, is_square=True)


def svd(options: argparse.Namespace) -> int:
    import colinear as co

    def compute(A: Any, k: int) -> tuple[Any, Any]:
        (U, s, V), info = co.svd(A, k, method(options), info=True)
        return {"U": U, "s": s, "V": V}, info

    return _spectrum(options, compute, "s", {})


def _spectrum(
    options: argparse.Namespace,
    compute: Any,
    name: str,
    more: dict[str, Any],
    is_square: bool = False,
) -> int:
    """Tell the values called `name` of what `compute(A, k)` finds, and write them, with the vectors
    into an archive."""
    check_target(options.output)
    matrix, A, report = operator(options)
    if is_square:
        _check_square(options, matrix, "eigenvalues are those of square matrices: svd")
    k = _how_many(options, min(matrix.shape))
    parts, status, found = timed(options, options.command, lambda: compute(A, k))
    values = answers.host(parts[name])
    answer = report | found | {"file": options.file} | more | {"values": values}
    if options.output is not None and options.output.endswith(".npz"):
        named = {
            each: values if each == name else answers.host(part.to_dense())
            for each, part in parts.items()
        }
        answer |= save(options, status, None, **named)
    elif options.output is not None:
        answer |= save(options, status, values)
    label = "eigenvalues:" if is_square else "singular values:"
    return answers.finish(
        options, answer, [*head(options, answer), label, *answers.numbers(values)], status
    )


def save(options: argparse.Namespace, status: Status, array: Any, **named: Any) -> dict[str, Any]:
    """Write the answer where it was asked for, unless it is not to be trusted at all; what to
    say of that."""
    if options.output is None:
        return {}
    if answers.code_of_status(status) == answers.NUMERICAL:
        answers.complain(f"{options.output} is not written")
        return {"output": None}
    write(options.output, array, **named)
    return {"output": options.output}


def _check_square(options: argparse.Namespace, matrix: Any, why: str) -> None:
    m, n = matrix.shape
    if m != n:
        raise InputError(f"{options.file}: {m}x{n}; {why}")


def _how_many(options: argparse.Namespace, most: int) -> int:
    if options.k is not None and not 1 <= options.k <= most:
        raise UsageError(f"-k {options.k}: the matrix has {most}")
    return min(6, most) if options.k is None else options.k


def logdet(options: argparse.Namespace) -> int:
    return _number(options, "logdet", "log|det|")


def trace(options: argparse.Namespace) -> int:
    return _number(options, "trace", "trace")


def _number(options: argparse.Namespace, name: str, label: str) -> int:
    import colinear as co

    matrix, A, report = operator(options)
    _check_square(options, matrix, f"{name} is that of a square matrix")
    value, status, found = timed(
        options, name, lambda: getattr(co, name)(A, method(options), info=True)
    )
    value = answers.host(value)[()]
    answer = report | found | {"file": options.file, "value": value}
    text = answers.number(value)
    if found["error"] is not None:
        text += f" ± {found['error']:.2g} (one standard error: this is an estimate)"
    return answers.finish(
        options, answer, [*head(options, answer), f"{label + ':':12}{text}"], status
    )


def explain(options: argparse.Namespace) -> int:
    import colinear as co
    from colinear.dispatch import Function

    _, A, report = operator(options)
    every = {name: getattr(co, name) for name in co.__all__}
    known = {name: f for name, f in every.items() if isinstance(f, Function)}
    f = choose("--function", options.function, known)
    chosen = method(options)
    plan = co.explain(f, A, **({} if chosen is None else {"method": chosen}))
    answer = report | {
        "file": options.file,
        "function": options.function,
        "rules": plan.rules,
        "flops": plan.cost.flops,
        "memory": plan.cost.memory,
        "plan": str(plan),
    }
    return answers.finish(
        options, answer, [f"{options.file}: {answer['operator']}", str(plan)], Status.SUCCESS
    )
