"""The command line: `colinear`, also `python -m colinear`. Its parser, and its way out: one line for
an error, and an exit code that scripts can use."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from .. import __version__
from ..errors import ColinearWarning
from . import answers
from .answers import complain
from .options import YES_OR_NO, add_shared, whole

__all__ = ["main"]

EXIT_CODES = """\
exit codes:
  0    success
  1    an answer was computed (and written), but not to the tolerance; or a script failed
  2    usage: options that make no sense
  3    a file that cannot be read or written, or shapes that do not fit
  4    numerical failure: singular, not positive definite, NaN, too large; nothing is written
  5    a package is needed that is not installed
  130  interrupted
  141  the reader of the output has gone

files: Matrix Market (.mtx, .mtx.gz), .npy, .npz (dense, or SciPy's sparse; file.npz:name for one
array of several); - is standard input or output, in Matrix Market form
"""

SCRIPTS = {
    "demo": "a large problem, solved and drawn",
    "examples": "list the examples, or run one",
    "bench": "list the benchmarks, or run one",
}


def parser() -> argparse.ArgumentParser:
    """The parser, with a command of each name."""
    shown: dict[str, Any] = {
        "epilog": EXIT_CODES,
        "formatter_class": argparse.RawDescriptionHelpFormatter,
    }
    top = argparse.ArgumentParser(
        prog="colinear",
        description="Linear algebra of matrices in files, by their structure.",
        **shown,
    )
    top.add_argument("--version", action="version", version=f"colinear {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, help: str, *, computes: bool = True) -> Callable[..., Any]:
        found = commands.add_parser(name, help=help, description=help, **shown)
        found.add_argument("file", metavar="FILE", help="the matrix")
        add_shared(found, computes=computes)
        return found.add_argument

    about = command(
        "info",
        "what a matrix is: size, symmetry, definiteness, structure, condition",
        computes=False,
    )
    about("--picture", metavar="FILE", help="save a picture of the entries and singular values")
    about("--spy", action=YES_OR_NO, default=True, help="draw where the entries stand")
    about("--condition", action=YES_OR_NO, help="estimate it, whatever that costs; or not")

    plan = command("explain", "which rules and methods a function would use, and their cost")
    plan("--function", default="solve", help="solve, logdet, eig, ...; default solve")

    solving = command("solve", "solve A x = b")
    solving("right_side", metavar="RIGHT_SIDE", help="b: a vector, or a matrix of columns")
    solving(
        "--least-squares",
        action="store_true",
        help="the x that makes |b - A x| least, of any shape of A",
    )
    solving(
        "-o",
        "--output",
        metavar="FILE",
        help="where to write x; default: its first entries are printed",
    )

    for name, help in (("eig", "eigenvalues"), ("svd", "singular values")):
        spectrum = command(name, f"some {help}, the largest unless told otherwise")
        spectrum("-k", type=whole, help="how many; default 6")
        if name == "eig":
            spectrum(
                "--which",
                choices=("LM", "SM", "LA", "SA", "LR", "SR"),
                default="LM",
                help="which of them; default LM",
            )
        spectrum(
            "-o",
            "--output",
            metavar="FILE",
            help="where to write them: with the vectors into .npz, alone otherwise",
        )

    command("logdet", "the logarithm of |det A|")
    command("trace", "the trace")

    help = "measure what this machine does in a second, for choices and forecasts; two seconds"
    measuring = commands.add_parser("calibrate", help=help, description=help, **shown).add_argument
    measuring(
        "--backend",
        choices=("numpy", "torch", "jax"),
        action="append",
        help="the framework; may be given again; default: all that are installed",
    )
    measuring("--device", help="as torch and JAX name it, such as cuda:0; default: the host")
    measuring("--json", action="store_true", help="print one JSON object to standard output")
    measuring("--traceback", action="store_true", help="show where an error came from")

    for name, help in SCRIPTS.items():
        script = commands.add_parser(
            name,
            help=help,
            description=f"{help}. Options that are not known here go to the script.",
        ).add_argument
        if name != "demo":
            script("name", metavar="NAME", nargs="?", help="which; without it they are listed")
        script("--small", action="store_true", help="a small problem of the same kind, in seconds")
        script("--traceback", action="store_true", help=argparse.SUPPRESS)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line with these arguments, those of the process by default; the exit code.

    Examples
    --------
    >>> import numpy as np, os, tempfile
    >>> from colinear.cli import main
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "A.npy")
    ...     np.save(path, np.diag([1.0, 2.0, 4.0]))
    ...     code = main(["trace", path, "--no-progress"])
    /...: <Diagonal 3x3 float64 numpy [PD]: Diagonal(3)>
    ...
    trace:      7
    >>> code
    0
    """
    top = parser()
    try:
        options, rest = top.parse_known_args(arguments)
        if rest and options.command not in SCRIPTS:
            top.error(f"unrecognized arguments: {' '.join(rest)}")
    except SystemExit as end:  # after --help, --version, or a line about what is wrong
        return int(end.code or 0)
    options.rest = rest
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of others; what overflows shows in the answer
            warnings.simplefilter("always", ColinearWarning)
            warnings.showwarning = lambda message, *_, **__: complain(str(message), "warning: ")
            code = _command(options.command)(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        complain("interrupted")
        return answers.INTERRUPTED
    except BrokenPipeError:
        # Python flushes standard output once more at exit: there must be someone to take it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return answers.BROKEN_PIPE
    except Exception as error:
        return _failed(options, error)


def _command(name: str) -> Any:
    """Imported when it is used: `colinear examples` needs no SciPy."""
    modules = {"info": "describe", **dict.fromkeys(SCRIPTS, "scripts")}
    return getattr(importlib.import_module(f".{modules.get(name, 'compute')}", __package__), name)


def _failed(options: argparse.Namespace, error: Exception) -> int:
    code = answers.code_of_error(error)
    if options.traceback:
        traceback.print_exc()
    message = str(error) or type(error).__name__
    if code is None:
        code = answers.NUMERICAL
        message = f"{type(error).__name__}: {message} (this looks like a mistake in colinear; --traceback shows where)"
    if getattr(options, "json", False):
        print(json.dumps({"command": options.command, "error": message, "exit_code": code}))
    complain(message)
    return code
