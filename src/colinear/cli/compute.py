"""The commands that compute: `solve`, `eig`, `svd`, `logdet`, `trace`, `explain`, `calibrate`."""

from __future__ import annotations

import argparse
import time
from importlib.util import find_spec
from typing import Any

import numpy as np

from .. import rates
from ..backends import KNOWN
from ..operators import LinearOperator
from ..status import Status, combine
from . import answers
from .answers import InputError, UsageError
from .files import check_target, read_columns, write
from .options import choose, method, operator, public, under_way


def timed(options: argparse.Namespace, f: Any, *arguments: Any) -> tuple[Any, Any, dict[str, Any]]:
    """The result of a function of operators, its status, and what is known of it, with the time
    that it took."""
    start = time.perf_counter()
    chosen = method(options)
    with under_way(options, f"{options.command} {options.file}"):
        result, info = f(*arguments, chosen, info=True)
    seconds = time.perf_counter() - start
    return result, combine([info._status]), answers.of_info(info) | {"seconds": round(seconds, 6)}


def head(answer: dict[str, Any]) -> list[str]:
    """The lines that all of them print."""
    lines = [f"{answer['file']}: {answer['operator']}"]
    for name in ("method", "status", "residual", "iterations", "matvecs", "seconds"):
        value = answer[name]
        if value not in (None, ""):
            text = f"{value:.3g}" if isinstance(value, float) else value
            lines.append(f"{name + ':':12}{text}")
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
    dtype = xp.complex_dtype(A.dtype) if np.iscomplexobj(b) else A.dtype
    right = xp.asarray(b, dtype=dtype, device=A._context.device)
    x, status, found = timed(options, co.lstsq if options.least_squares else co.solve, A, right)
    x = answers.host(x)
    answer = report | found | {"right_side": options.right_side}
    if not options.least_squares:  # from the file's own entries, whatever was computed with
        answer["residual"] = true_residual(matrix, x, b)
        limit = 10 * (options.tol or float(np.sqrt(xp.eps(A.dtype))))
        if not status.is_failure and not answer["residual"] <= limit:
            status = Status.INACCURATE
    if not status.is_failure and not np.all(np.isfinite(x)):
        status = Status.NONFINITE
    answer["status"] = status.name
    answer |= save(options, status, x)
    lines = head(answer)
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

    return _spectrum(options, co.eig, ("values", "vectors"), which=options.which)


def svd(options: argparse.Namespace) -> int:
    import colinear as co

    return _spectrum(options, co.svd, ("U", "s", "V"))


def _spectrum(options: argparse.Namespace, f: Any, names: tuple[str, ...], **more: Any) -> int:
    """Print the values among what f finds, called by these names, and write them, with the vectors
    into an archive. `more`: what else f takes."""
    check_target(options.output)
    matrix, A, report = operator(options)
    if options.command == "eig":
        _check_square(options, matrix, "eigenvalues are those of square matrices: svd")
    most = min(matrix.shape)
    k = min(6, most) if options.k is None else options.k
    if not 1 <= k <= most:
        raise UsageError(f"-k {k}: the matrix has {most}")
    parts, status, found = timed(options, f, A, k, *more.values())
    named = {
        name: answers.host(part.to_dense() if isinstance(part, LinearOperator) else part)
        for name, part in zip(names, parts)
    }
    values = named["values" if options.command == "eig" else "s"]
    answer = report | found | more | {"values": values}
    is_archive = (options.output or "").endswith(".npz")
    answer |= save(options, status, None, **named) if is_archive else save(options, status, values)
    label = "eigenvalues:" if options.command == "eig" else "singular values:"
    return answers.finish(options, answer, [*head(answer), label, *answers.numbers(values)], status)


def save(options: argparse.Namespace, status: Status, array: Any, **named: Any) -> dict[str, Any]:
    """Write the answer where it was asked for, unless it is not to be trusted at all; return what
    to say of that."""
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


def trace(options: argparse.Namespace) -> int:
    """The trace; `logdet` likewise."""
    import colinear as co

    name = options.command
    matrix, A, report = operator(options)
    _check_square(options, matrix, f"{name} is that of a square matrix")
    value, status, found = timed(options, getattr(co, name), A)
    value = answers.host(value)[()]
    answer = report | found | {"value": value}
    text = answers.number(value)
    if found["error"] is not None:
        text += f" ± {found['error']:.2g} (one standard error: this is an estimate)"
    label = "trace:" if name == "trace" else "log|det|:"
    return answers.finish(options, answer, [*head(answer), f"{label:12}{text}"], status)


logdet = trace


def explain(options: argparse.Namespace) -> int:
    import colinear as co

    _, A, report = operator(options)
    known = public(lambda x: isinstance(x, co.Function))
    f = choose("--function", options.function, known)
    chosen = method(options)
    plan = co.explain(f, A, **({} if chosen is None else {"method": chosen}))
    answer = report | {
        "function": options.function,
        "rules": plan.rules,
        "flops": plan.cost.flops,
        "memory": plan.cost.memory,
        "seconds": plan.cost.seconds,
        "plan": str(plan),
    }
    lines = [f"{options.file}: {answer['operator']}", answer["plan"]]
    return answers.finish(options, answer, lines, Status.SUCCESS)


def calibrate(options: argparse.Namespace) -> int:
    """Measure the rates of each framework, and print them."""
    found, lines = {}, []
    for name in options.backend or [each for each in KNOWN if find_spec(each) is not None]:
        measured = rates.calibrate(name, options.device)
        found[name] = measured._asdict()
        lines.append(f"{name}, {options.device or 'cpu'}, calibrated on {measured.date}")
        for field, what in rates.MEANINGS.items():
            value = getattr(measured, field)
            text = f"{value / 1e9:.3g} Gflop/s" if value > 1 else f"{value * 1e6:.3g} us"
            lines.append(f"  {text:14}  {what}")
    is_kept = rates.is_kept(measured)
    lines.append(f"{'kept in' if is_kept else 'could not be written to'} {rates.cache_file()}")
    answer = {"rates": found, "file": str(rates.cache_file()), "is_kept": is_kept}
    return answers.finish(options, answer, lines, Status.SUCCESS)
