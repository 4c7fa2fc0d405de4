"""Reciprocals and reports of zeros and infinities, for the rules that divide by numbers instead of factoring."""

from __future__ import annotations

import cmath
import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from ..backends import Array, is_array, namespace_of
from ..info import Info, Status, report
from ..operators.base import LinearOperator, inside_out
from ..operators.diagonal import Diagonal
from ..operators.identity import Identity
from ..properties import POSITIVE_DEFINITE
from ._arrays import quiet, seen
from ._residuals import MARGIN

CACHED = 2**20  # bytes
FEW = 16  # numbers

Implementation = TypeVar("Implementation", bound=Callable[..., Any])


def placed(A: LinearOperator) -> tuple[LinearOperator, ...]:
    """The operands of A, neutral ones in its framework, dtype and device: alone they would give NumPy's numbers."""
    return tuple([place(operand, A) for operand in A.operands])


def once_each(compute: Callable[[LinearOperator], Any], operands: Sequence[LinearOperator]) -> list[Any]:
    """`compute` of every operand, but once for neighbours that are the same object: the factors of A ⊗ A, say."""
    found: list[Any] = []
    for i, operand in enumerate(operands):
        found.append(found[-1] if i and operand is operands[i - 1] else compute(operand))
    return found


def in_groups(xp: Any, blocks: Sequence[Any]) -> list[Sequence[Any]]:
    """Matrices of one size in groups to be stacked: in NumPy such as stay in the processor's cache together, else all."""
    size = int(getattr(blocks[0].A, "nbytes", 0))
    step = max(1, CACHED // max(1, size)) if xp.name == "numpy" else len(blocks)
    return [blocks[start : start + step] for start in range(0, len(blocks), step)]


def place(operand: LinearOperator, A: LinearOperator) -> LinearOperator:
    """An operand of A, in A's framework, dtype and device if it is neutral."""
    if operand._context.backend is not None or A._context.backend is None:
        return operand
    return operand.to(backend=A.backend, device=A._context.device, dtype=A.dtype)


def reciprocal(x: Any) -> Any:
    """1 / x of an array or a number; a zero is reported as SINGULAR, NaN or infinity as NONFINITE."""
    xp = namespace_of(x)
    if xp is None:
        fine = x != 0 and x - x == 0  # the latter is false for NaN and infinity
        if not fine:
            report(Info(Status.SINGULAR if x == 0 else Status.NONFINITE))
        return 1 / x if x != 0 else float("inf")
    if xp.name == "numpy" and x.size <= FEW and _are_plain(x):
        return np.asarray(1 / x)
    with quiet(xp):
        inverse = xp.asarray(1 / x)  # NumPy makes a number of a 0-dimensional array
        # One product finds all that is wrong: 0 * inf, inf * 0 and NaN are NaN, and a denormal's reciprocal is infinite.
        fine = xp.all(xp.isfinite(x * inverse))
    if xp.is_traced(fine) or not bool(fine):
        report_values(xp, x)
    return inverse


def _are_plain(x: Any) -> bool:
    """Whether all are real and far from zero and infinity; of few, Python's numbers tell it sooner than NumPy's arrays."""
    return x.dtype.kind == "f" and x.dtype.itemsize >= 4 and all(1e-30 < abs(number) < 1e30 for number in x.ravel().tolist())


def reciprocal_spectrum(xp: Any, values: Array) -> Array:
    """1 / λ of the eigenvalues of a self-adjoint operator, SINGULAR if one is zero to working accuracy."""
    if 0 in values.shape:
        return values
    smallest, largest = extreme_magnitudes(xp, values)
    status = xp.where(smallest <= MARGIN * xp.eps(values.dtype) * largest, int(Status.SINGULAR), int(Status.SUCCESS))
    report_status(xp, xp.where(xp.isfinite(smallest + largest), status, int(Status.NONFINITE)))  # NaN stays through min and max
    with quiet(xp):
        return 1 / values


def extreme_magnitudes(xp: Any, values: Array) -> tuple[Array, Array]:
    """The smallest and the largest of |x| along the last axis; where all are seen to be positive, without computing |x|."""
    if not xp.is_complex(values) and not xp.is_traced(values):
        smallest = xp.min(values, axis=-1)
        if bool(xp.all(smallest > 0)):
            return smallest, xp.max(values, axis=-1)
    size = xp.abs(values)
    return xp.min(size, axis=-1), xp.max(size, axis=-1)


def report_values(xp: Any, x: Array) -> None:
    """Report zeros (SINGULAR) and NaN or infinity (NONFINITE) among numbers that will be divided by."""
    if 0 in x.shape:
        return
    status = xp.where(xp.any(x == 0, axis=-1) if x.ndim else x == 0, int(Status.SINGULAR), int(Status.SUCCESS))
    finite = xp.isfinite(x)
    report_status(xp, xp.where(xp.all(finite, axis=-1) if x.ndim else finite, status, int(Status.NONFINITE)))


def report_status(xp: Any, status: Array, **details: Any) -> None:
    """Report a status if it is bad, or if it cannot be seen yet."""
    values = seen(xp, status)
    if values is None:
        report(Info(status, **details))
    elif values.size and values.max() > 0:
        report(Info(Status(int(values.max())), **details))


def report_finite(xp: Any, x: Array, **details: Any) -> None:
    """Report NaN or infinity in a result."""
    report_status(xp, xp.where(xp.all(xp.isfinite(x)), int(Status.SUCCESS), int(Status.NONFINITE)), **details)


def report_arrays(A: LinearOperator) -> None:
    """Report NaN or infinity among the numbers that A itself holds; those of its operands are not looked at."""
    names = ("_matrix",) if hasattr(type(A), "_matrix") else A._dynamic
    held = [getattr(A, name) for name in names]
    for x in held:
        if is_array(x):
            report_finite(namespace_of(x), x)
        elif isinstance(x, (float, complex)) and not cmath.isfinite(x):
            report(Info(Status.NONFINITE))


def report_leaves(A: LinearOperator) -> None:
    """Report NaN or infinity anywhere in the tree, for rules that do not look at all of it."""
    for part in inside_out(A):
        report_arrays(part)


def reports_nonfinite(implementation: Implementation) -> Implementation:
    """Decorate a rule whose answer hides NaN and infinity that A itself holds, or is made of other numbers: they are reported."""

    @functools.wraps(implementation)
    def call(A: Any, *arguments: Any) -> Any:
        report_arrays(A)
        return implementation(A, *arguments)

    return call  # type: ignore[return-value]


def is_positive(D: Any) -> bool:
    """Whether a diagonal matrix is known to be positive: by its values, where they can be seen at no cost, or by a claim."""
    if isinstance(D, Identity):
        return True
    entries = D.d if isinstance(D, Diagonal) else D.c
    xp = namespace_of(entries)
    values = entries if xp is None else xp.peek(entries)
    if values is None:
        return bool(D.properties & POSITIVE_DEFINITE)
    return not np.iscomplexobj(values) and bool(np.all(np.asarray(values) > 0))


def has_no_zero(x: Array) -> bool:
    """Whether no number is zero; taken for granted where values cannot be seen at no cost."""
    values = namespace_of(x).peek(x)
    return values is None or bool((values != 0).all())
