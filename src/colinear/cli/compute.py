"""The commands that compute: `solve`, `eig`, `svd`, `logdet`, `trace`, `explain`."""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

from ..status import Status, combine
from . import answers
from .codes import InputError, UsageError
from .files import check_target, read_columns
from .options import fits, method, operator, under_way


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
    fits(matrix, b, options.right_side)
    if m != n and not options.least_squares:
        raise InputError(
            f"{options.file}: {m}x{n}, and a linear system needs a square matrix; --least-squares "
            "gives the nearest solution"
        )
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
    answer |= answers.save(options, status, x)
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

    check_target(options.output)
    matrix, A, report = operator(options)
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError(
            f"{options.file}: {matrix.shape[0]}x{matrix.shape[1]}; eigenvalues are those of "
            "square matrices: svd"
        )
    k = _how_many(options, matrix.shape[0])
    (values, vectors), status, found = timed(
        options, "eig", lambda: co.eig(A, k, options.which, method(options), info=True)
    )
    values = answers.host(values)
    answer = report | found | {"file": options.file, "which": options.which, "values": values}
    if options.output is not None:
        named = (
            {"values": values, "vectors": answers.host(vectors.to_dense())}
            if options.output.endswith(".npz")
            else {}
        )
        answer |= answers.save(options, status, None if named else values, **named)
    return answers.finish(
        options, answer, [*head(options, answer), "eigenvalues:", *answers.numbers(values)], status
    )


def svd(options: argparse.Namespace) -> int:
    import colinear as co

    check_target(options.output)
    matrix, A, report = operator(options)
    k = _how_many(options, min(matrix.shape))
    (U, s, V), status, found = timed(
        options, "svd", lambda: co.svd(A, k, method(options), info=True)
    )
    s = answers.host(s)
    answer = report | found | {"file": options.file, "values": s}
    if options.output is not None:
        named = {}
        if options.output.endswith(".npz"):
            named = {"U": answers.host(U.to_dense()), "s": s, "V": answers.host(V.to_dense())}
        answer |= answers.save(options, status, None if named else s, **named)
    return answers.finish(
        options, answer, [*head(options, answer), "singular values:", *answers.numbers(s)], status
    )


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
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError(
            f"{options.file}: {matrix.shape[0]}x{matrix.shape[1]}; {name} is that of a square "
            "matrix"
        )
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
    f = getattr(co, options.function, None)
    if not isinstance(f, Function):
        known = sorted(name for name in co.__all__ if isinstance(getattr(co, name), Function))
        raise UsageError(f"--function {options.function}: choose from {', '.join(known)}")
    plan = co.explain(f, A, **({} if method(options) is None else {"method": method(options)}))
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
