"""How one rule serves all six functions of a matrix, and what these rules share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..backends import Array
from ..dispatch import Function, rule
from ..info import Status, recording, report
from ..operators.base import LinearOperator
from ..operators.identity import ScaledIdentity
from ..operators.scaled import Scaled, peek_scalar
from ..operators.sum import Sum
from ..properties import POSITIVE_DEFINITE, POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from .matrix_functions import (
    apply,
    exp,
    isqrt,
    log,
    power,
    sqrt,
)
from .scalar_functions import EXP, ISQRT, LOG, SQRT, Scalar, of_values, power_of, scalar_of

POSITIVE = POSITIVE_SEMIDEFINITE | POSITIVE_DEFINITE


class Call(NamedTuple):
    """A call of one of the six functions: f of numbers, the same call for a part of A, the base case, and the method."""

    f: Scalar
    again: Callable[[LinearOperator], LinearOperator]
    base: Callable[[LinearOperator], Any]
    method: Any = None


Implementation = Callable[[Any, Call], LinearOperator]
ALL = (exp, log, sqrt, isqrt, power, apply)
SCALARS = {exp: EXP, log: LOG, sqrt: SQRT, isqrt: ISQRT}


def rules(
    functions: tuple[Function, ...], pattern: Any, when: Any = None, hereditary: bool = False
) -> Callable[[Implementation], Implementation]:
    """Decorate a rule of several of the functions, written as `of_something(A, call)`."""

    def register(implementation: Implementation) -> Implementation:
        for g in functions:
            name = g.name + implementation.__name__.removeprefix("of")
            rule(g, pattern, when=when, name=name, hereditary=hereditary)(_rule_of(g, implementation))
        return implementation

    return register


def _rule_of(g: Function, implementation: Implementation) -> Callable[..., LinearOperator]:
    def call_of(f: Scalar, *arguments: Any) -> Call:
        def again(B: LinearOperator) -> LinearOperator:
            return g(arguments[0], B, *arguments[1:]) if g is apply else g(B, *arguments)

        return Call(f, again, lambda A: g.base(A, *arguments), arguments[-1])

    if g in SCALARS:

        def of(A: Any, method: Any) -> LinearOperator:
            return implementation(A, call_of(SCALARS[g], method))

    elif g is power:

        def of(A: Any, p: Any, method: Any) -> LinearOperator:  # type: ignore[misc]
            return implementation(A, call_of(power_of(p), p, method))

    else:

        def of(A: Any, f: Any, method: Any) -> LinearOperator:  # type: ignore[misc]
            if not callable(f) or isinstance(f, LinearOperator):
                raise TypeError(f"apply: f is {f!r}; it must be a function of an array. Write apply(f, A).")
            return implementation(A, call_of(scalar_of(f), f, method))

    of.__doc__ = inspect.getdoc(implementation)
    return of


def claimed(A: LinearOperator, f: Scalar, values: Array, result: LinearOperator) -> LinearOperator:
    """f(A) with what is known of it, for self-adjoint A and these values of f."""
    if A.xp.is_complex(values) or not A.properties & SELF_ADJOINT:
        return result
    return result._claim(POSITIVE_SEMIDEFINITE | SELF_ADJOINT if f.nonnegative else SELF_ADJOINT)


def at(A: LinearOperator, f: Scalar, *points: float) -> Array:
    """f at a few points, in the precision of A."""
    xp = A.xp
    x = xp.asarray(np.asarray(points), dtype=xp.real_dtype(A.dtype), device=A._context.device)
    return of_values(xp, f, x, min(points) >= 0)


def combined(A: LinearOperator, a: Any, b: Any) -> LinearOperator:
    """a I + b A, without what is plainly zero."""
    n, a = A.shape[-1], A.xp.asarray(a)  # NumPy makes numbers of 0-dimensional arrays, which would forget their precision
    if peek_scalar(b) == 0:
        return ScaledIdentity(A.xp.broadcast_to(a, A.batch_shape), n)
    term = A if peek_scalar(b) == 1 else Scaled(b, A)
    return term if peek_scalar(a) == 0 else Sum(ScaledIdentity(a, n), term)


def of_positive_parts(A: LinearOperator, base: Callable[[LinearOperator], Any], compute: Callable[[], Any]) -> Any:
    """`compute()`, which moves f past a product or an inverse, as holds for positive parts only; `base(A)` if one is seen to be another.

    Each part would be right by itself, on the principal branch, and what is made of them on another.
    """
    with recording(detailed=True) as reports:
        result = compute()
    if any(info._status is Status.FELL_BACK for info in reports):
        return base(A)
    for info in reports:
        report(info)
    return result
