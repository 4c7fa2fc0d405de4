"""How an answer is told: as lines of text, or as one JSON object, with its status and the exit
code that follows from it."""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any

import numpy as np

from ..backends import namespace_of
from ..info import Info
from ..status import Status, combine
from . import codes
from .files import write

SHOWN = 20  # numbers of a vector that are printed


def of_info(info: Info) -> dict[str, Any]:
    """What an `Info` says, as plain values."""
    status = combine([info._status])
    methods = list(dict.fromkeys(name for name in _names(info) if name))
    return {
        "status": status.name,
        "method": ", ".join(methods) or info.rule,
        "rule": info.rule,
        "residual": largest(info.residual),
        "iterations": _count(info.iterations),
        "matvecs": _count(info.matvecs),
        "error": largest(info.error),
    }


def _names(info: Info) -> list[str]:
    return [info.method, *(name for child in info.children for name in _names(child))]


def largest(x: Any) -> float | None:
    """The largest of an array of any framework, None for nothing."""
    if x is None:
        return None
    values = host(x)
    return float(np.max(values)) if values.size else None


def _count(x: Any) -> int | None:
    return None if x is None else int(np.max(host(x)))


def host(x: Any) -> Any:
    """An array of any framework as NumPy's."""
    xp = namespace_of(x)
    return np.asarray(x if xp is None else xp.to_numpy(x))


def finish(
    options: argparse.Namespace, answer: dict[str, Any], lines: list[str], status: Status
) -> int:
    """Print the answer and give the exit code; what is wrong with it goes to standard error."""
    code = codes.of_status(status)
    stream = sys.stderr if getattr(options, "output", None) == "-" else sys.stdout
    if options.json:
        print(
            json.dumps(
                plain(
                    {"command": options.command, **answer, "status": status.name, "exit_code": code}
                ),
                allow_nan=False,
            )
        )
    else:
        print("\n".join(lines), file=stream)
    if code != codes.SUCCESS:
        complain(f"{status.name}: {status.meaning}. {status.remedy}")
    return code


def save(options: argparse.Namespace, status: Status, array: Any, **named: Any) -> dict[str, Any]:
    """Write the answer where it was asked for, unless it is not to be trusted at all; what to
    say of that."""
    if options.output is None:
        return {}
    if codes.of_status(status) == codes.NUMERICAL:
        complain(f"{options.output} is not written")
        return {"output": None}
    write(options.output, array, **named)
    return {"output": options.output}


def complain(message: str, kind: str = "") -> None:
    """One line on standard error."""
    print(f"colinear: {kind}{' '.join(message.split())}", file=sys.stderr, flush=True)


def numbers(values: Any) -> list[str]:
    """The first of a vector's entries, as lines."""
    values = np.asarray(values)
    shown = [f"  {number(v)}" for v in values[:SHOWN]]
    return shown if len(values) <= SHOWN else [*shown, f"  ... and {len(values) - SHOWN} more"]


def number(x: Any) -> str:
    """A number as text, to ten digits."""
    x = complex(x)
    return f"{x.real:.10g}" if x.imag == 0 else f"{x.real:.10g}{x.imag:+.10g}j"


def plain(x: Any) -> Any:
    """As JSON knows it: complex numbers as [real, imaginary], infinities and NaN as strings."""
    if isinstance(x, dict):
        return {key: plain(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [plain(value) for value in x]
    if isinstance(x, np.ndarray):
        return [plain(value) for value in x]
    if isinstance(x, (complex, np.complexfloating)):
        return [plain(float(x.real)), plain(float(x.imag))]
    if isinstance(x, (float, np.floating)):
        return float(x) if math.isfinite(x) else str(float(x))
    return x.item() if isinstance(x, np.generic) else x
