"""The options that the commands share, and what they mean: which operator, which method."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from ..methods.loop import watching
from ..properties import ANNOTATIONS
from .answers import InputError, UsageError, complain
from .files import read_matrix

YES_OR_NO = argparse.BooleanOptionalAction  # None where neither was said
DTYPES = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")
PRECONDITIONERS = ("Jacobi", "BlockJacobi", "ILU", "IC", "Chebyshev", "AMG")


def whole(text: str) -> int:
    """A whole number that is not negative."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return number


def positive(text: str) -> float:
    """A positive number."""
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return number


def add_shared(parser: argparse.ArgumentParser, *, computes: bool = True) -> None:
    """Add the options of a command that reads a matrix, and of one that computes something of
    it."""
    add = parser.add_argument
    add(
        "--backend",
        choices=("numpy", "torch", "jax"),
        default="numpy",
        help="the framework that computes",
    )
    add("--dtype", help="float32, float64, complex64 or complex128; default: that of the file")
    add(
        "--annotate",
        action="append",
        default=[],
        metavar="NAME",
        help="claim a property: PSD, PD, SelfAdjoint, ...",
    )
    add(
        "--detect",
        action=YES_OR_NO,
        help="look for structure first; default: unless a method is named",
    )
    add("--json", action="store_true", help="print one JSON object to standard output")
    add("--traceback", action="store_true", help="show where an error came from")
    if not computes:
        parser.set_defaults(method=None, progress=None)
        return
    add("--method", help="CG, GMRES, LU, Lanczos, SLQ, ...; default: chosen by structure and size")
    add("--tol", type=positive, help="the tolerance; default sqrt(eps) of the dtype")
    add("--max-iters", type=whole, help="the most iterations")
    add(
        "--preconditioner",
        metavar="NAME",
        help="Jacobi, BlockJacobi, ILU, IC, AMG, ... for iterative methods",
    )
    add("--seed", type=whole, help="of methods that draw random vectors")
    add(
        "--progress",
        action=YES_OR_NO,
        help="tell on standard error how far it is; default: on a terminal",
    )


def operator(options: argparse.Namespace) -> tuple[Any, Any, dict[str, Any]]:
    """The matrix of the file, the operator to compute with, and what it took: seconds, and the
    structure that was found."""
    import colinear as co

    start = time.perf_counter()
    tell(options, f"reading {options.file}")
    matrix = read_matrix(options.file)
    read_seconds = time.perf_counter() - start
    if 0 in matrix.shape and options.command != "info":
        raise InputError(
            f"{options.file}: the matrix is empty, {matrix.shape[0]}x{matrix.shape[1]}"
        )
    A: Any = co.as_operator(matrix)
    known = {annotation.name: annotation for annotation in ANNOTATIONS}
    annotations = [choose("--annotate", name, known) for name in options.annotate]
    if options.dtype is not None or options.backend != "numpy":
        A = _moved(A, options)
    report: dict[str, Any] = {
        "file": options.file,
        "shape": list(matrix.shape),
        "read_seconds": round(read_seconds, 6),
    }
    # by default not where a method is named, which would run inside the structure
    if options.method is None if options.detect is None else options.detect:
        start = time.perf_counter()
        with under_way(options, "looking for structure"):
            A, found = co.detect(A, info=True)
        report |= {
            "structure": found.rule,
            "detect_seconds": round(time.perf_counter() - start, 6),
            "found": str(found),
        }
    for annotation in annotations:
        A = annotation(A)
    return matrix, A, report | {"operator": repr(A)}


def _moved(A: Any, options: argparse.Namespace) -> Any:
    """Return A in the framework and dtype that were asked for."""
    dtype = options.dtype
    if dtype is not None:
        dtype = choose("--dtype", dtype, dict(zip(DTYPES, DTYPES)))
    wanted = dtype or A.xp.dtype_name(A.dtype)
    if options.backend == "jax" and "jax" not in sys.modules:
        # JAX reads it when it is imported, and is of single precision without
        os.environ.setdefault("JAX_ENABLE_X64", "1")
    A = A.to(backend=options.backend, dtype=dtype)
    got = A.xp.dtype_name(A.dtype)
    if got != wanted:
        complain(
            f"{options.backend} computes in {got}, not in {wanted}, as it is set up here",
            "warning: ",
        )
    return A


def public(is_wanted: Callable[[Any], bool]) -> dict[str, Any]:
    """The public things of one kind, by name."""
    import colinear as co

    every = {name: getattr(co, name) for name in co.__all__}
    return {name: x for name, x in every.items() if is_wanted(x)}


def choose(what: str, name: str, known: dict[str, Any]) -> Any:
    """What goes by this name, in whatever case; a UsageError that lists the names otherwise."""
    for each, value in known.items():
        if each.lower() == name.lower():
            return value
    raise UsageError(
        f"{what} {name}: there is none of that name; choose from {', '.join(sorted(known))}"
    )


def method(options: argparse.Namespace) -> Any:
    """The method object that the options name; None if they say nothing of it."""
    import colinear as co

    given = {name: getattr(options, name) for name in ("tol", "max_iters", "seed")}
    given = {name: value for name, value in given.items() if value is not None}
    if options.preconditioner is not None:
        kinds = {name: getattr(co, name) for name in PRECONDITIONERS}
        given["preconditioner"] = choose("--preconditioner", options.preconditioner, kinds)()
    if options.method is None and not given:
        return None
    methods = public(lambda x: getattr(x, "_is_method", False))
    cls = choose("--method", options.method or "Auto", methods)
    fields = {field.name for field in dataclasses.fields(cls)}
    wrong = sorted(set(given) - fields)
    if wrong and options.method is None and wrong == ["seed"]:
        del given["seed"]  # of what is exact it changes nothing
    elif wrong:
        flags = ", ".join("--" + name.replace("_", "-") for name in wrong)
        raise UsageError(f"{cls.__name__} takes no {flags}; name another with --method")
    return cls(**given, progress=shows_progress(options))


# ------------------------------------------------------------------ progress, on standard error


def shows_progress(options: argparse.Namespace) -> bool:
    """Whether progress was asked for, or not refused and there is a terminal."""
    return sys.stderr.isatty() if options.progress is None else options.progress


def tell(options: argparse.Namespace, what: str) -> None:
    """Say what is under way."""
    if shows_progress(options):
        print(f"colinear: {what} ...", file=sys.stderr, flush=True)


def under_way(options: argparse.Namespace, what: str) -> contextlib.AbstractContextManager[None]:
    """A block of which it is said what is under way, and from the third second on how far it is."""
    tell(options, what)
    return watching(what) if shows_progress(options) else contextlib.nullcontext()
