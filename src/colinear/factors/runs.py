"""Runs of iterations: with products that may fail themselves, refined in double precision, as one
node of a program of `torch.compile`, and on minibatches of terms."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..backends import Array, get, namespace_of, positive_or_one, program
from ..errors import MethodError
from ..info import Info, recording, worst_status
from ..methods.iterate import Outcome, Products, described, refined
from ..methods.loop import Monitor
from ..methods.svrg import Terms
from ..methods.vectors import column_norms, status_of
from ..operators import LinearOperator, Product
from ..operators.autograd import make_ready
from ..operators.terms import NOT_A_SUM, minibatch, term_count
from ..properties import POSITIVE_SEMIDEFINITE
from ..rates import share_of_memory
from ..status import Status, combine, deliver, failed
from .inverse import TURNED, Inverse, inverse_context, shape_of

# Iterations that multiply with operators whose products are iterations themselves: is the answer
# judged by products that failed?
#
# What such products report comes from the body of a loop and means nothing outside of it, so the
# loop drops it. Yet the residual of the answer is computed by them. So when the loop has ended,
# one more product, with the answer, is listened to: where that fails, so does the answer.


def _held_by(A: LinearOperator) -> list[LinearOperator]:
    """A, and all operators in its fields, at whatever depth."""
    waiting: list[Any] = [A]
    found = []
    while waiting:
        node = waiting.pop()
        if isinstance(node, LinearOperator):
            found.append(node)
            for name in node._dynamic:
                waiting.append(getattr(node, name))
        elif isinstance(node, tuple):
            waiting.extend(node)
    return found


def multiplies_by_iteration(A: LinearOperator) -> bool:
    """Whether a product with A may be a run of a method, which may fail."""
    for node in _held_by(A):  # `any` would take a frame for each
        if node._product_is_a_run:
            return True
    return False


def _is_failure(status: Any) -> bool:
    """Whether it is seen to be one: in JAX the statuses of a loop are tracers of it."""
    return isinstance(status, Status) and status.is_failure


def check_inner_failures(
    info: Info, A: LinearOperator, X: Array, dropped: Sequence[Info] = ()
) -> Info:
    """The info of an answer X, judged by products with A; `dropped` are the reports of the loop
    that found it.

    Costs one product where A multiplies by iterations, or where a report of the loop was a failure
    (a preconditioner's does no harm).
    """
    has_failed = bool(dropped) and any(_is_failure(each._status) for each in dropped)
    if not has_failed and not multiplies_by_iteration(A):
        return info
    with recording() as reports:
        A @ X
    told = [each for each in reports if failed(each._status) is not False]
    if not told:
        return info
    worst = worst_status(told)
    name = worst.name if isinstance(worst, Status) else "its status"
    inner = told[0].method or "a function"
    message = f"a product with A, which is {inner} itself, failed ({name}). {info.message}".rstrip()
    converged = info.converged & (worst < int(Status.STOPPED))
    return info.replace(status=combine([info._status, worst]), converged=converged, message=message)


def deliver_for_derivative(info: Info, X: Array) -> Array:
    """X, a solve for a derivative, whose failure is warned of at once: the answer itself is there
    already."""
    message = f"This was a solve for a derivative. {info.message}".rstrip()
    return deliver(info.replace(message=message), "warn", X)


# Runs in single precision that stagnate, refined: residuals in double precision, corrections by runs of
# the same method in single. The answer is given in single precision, and judged as it is given.


def holds_function(A: LinearOperator) -> bool:
    """Whether A multiplies by a function of a user's, which may compute in one precision, or be
    written for one framework, alone."""
    values = (
        getattr(node, name)
        for node in _held_by(A)
        for name in node._fields
        if name not in node._dynamic
    )
    return any(callable(value) and not isinstance(value, type) for value in values)


SHARE_FOR_DOUBLE = 1 / 8  # of the memory, that a copy of an operator in double precision may take


def may_refine(inverse: Any, B: Array, tol: float, outcome: Outcome) -> bool:
    """Whether a run in single precision has stagnated, and residuals in double might help."""
    xp, A, method = namespace_of(B), inverse.A, inverse.method
    wide = xp.dtype_from("float64")
    if A.is_neutral or A.dtype != B.dtype or not tol >= xp.eps(B.dtype) > xp.eps(wide):
        return False  # in JAX there may be no double precision
    if method.precision or method.least_squares or method.needs_terms:
        return False
    if not Monitor(callback=method.callback).is_sparing:
        return False
    if not (status_of(xp.to_numpy(outcome.status)) == int(Status.STAGNATION)).any():
        return False
    size = sum(2.0 * x.itemsize * math.prod(x.shape) for x in A.arrays())
    if size > share_of_memory(A, SHARE_FOR_DOUBLE, 2.0**32):
        return False
    return not (holds_function(A) or multiplies_by_iteration(A))


def refine_in_double(
    inverse: Any, B: Array, X: Array, tol: float, outcome: Outcome
) -> tuple[Array, Outcome, str]:
    """The answer and the outcome, better in the columns that could be improved, and a sentence on
    what was done."""
    xp, plain = namespace_of(B), inverse.detach()
    wide = xp.dtype_from("complex128" if xp.is_complex(B) else "float64")
    A, (B2, X2) = plain.A.to(dtype=wide), (xp.astype(xp.stop_gradient(x), wide) for x in (B, X))
    used = int(xp.max(outcome.iterations))
    left = max(inverse.method.iterations(*inverse.A.shape[-2:]) - used, 0)
    # half of the tolerance is left to rounding
    correct = program(xp.name, _corrected, inverse.method, tol / 2, left)
    double = correct(plain._replace(x0=None), A, B2, X2)
    Y = xp.astype(double.X, B.dtype)
    R = B2 - A @ xp.astype(Y, wide)
    residual = column_norms(xp, R) / positive_or_one(xp, column_norms(xp, B2))
    residual = xp.astype(residual, outcome.residual.dtype)
    is_better = (residual <= tol) | (residual < outcome.residual)
    is_lost = (residual > tol) & (double.status == int(Status.SUCCESS))
    status = xp.where(is_lost, int(Status.STAGNATION), double.status)
    status = xp.where(residual <= tol, int(Status.SUCCESS), status)
    Y = xp.where(is_better[..., None, :], Y, xp.stop_gradient(X))
    if xp.is_differentiated(B, *inverse.arrays()):
        Y = inverse.attach_derivatives(B, Y)
    message = "It stagnated in single precision, and was refined by residuals in double."
    if xp.to_numpy(is_lost).any():
        message += (
            " What is left is rounding: no answer in this dtype has a much smaller residual."
            " Give A and b in double precision."
        )
    found = outcome._replace(
        X=Y,
        status=xp.where(is_better, status, outcome.status),
        iterations=outcome.iterations + double.iterations,
        matvecs=outcome.matvecs + double.matvecs,
        residual=xp.where(is_better, residual, outcome.residual),
    )
    return Y, found, message


def _corrected(
    xp: Any,
    method: Any,
    tol: float,
    max_iters: int,
    inverse: Any,
    A: LinearOperator,
    B: Array,
    X0: Array,
) -> Outcome:
    """A X = B in the precision of B, refined by runs of the inverse in its own."""
    products = Products(make_ready(A).__matmul__, columns=A.shape[-1], take_vectors=True)
    low = inverse.A.dtype
    inner = iterated.products_of(inverse.A, inverse.preconditioner, method, low)
    correct = functools.partial(method.algorithm, xp, inner)
    return refined(xp, products, correct, B, low, tol=tol, max_iters=max_iters, X0=X0)


# Iterations under `torch.compile`: one node of the compiled program, which runs Python's loop when
# the program runs.
#
# Traced, a loop would be unrolled to its last possible step. So the operator is taken apart, while
# torch compiles, into its arrays, which the program has, and its skeleton, nested tuples of
# constants, which goes into a table. The node puts the two together again.


def outcome_when_run(inverse: Any, B: Array, watch: Monitor, tol: float, warns: bool) -> Outcome:
    """What a run of `inverse` on B will give, when the program runs; a failure is a warning
    then, if it `warns`."""
    arrays: list[Array] = []
    objects: list[Any] = []
    xp = namespace_of(B)
    description = skeleton(xp, inverse, arrays, objects)
    number = _number((description, tuple(watch._replace(record=False)), tol, warns), *objects)
    X, status, iterations, matvecs, residual = xp.call_opaquely(number, [B, *arrays])
    return Outcome(X, status, iterations, matvecs, residual, None)


def skeleton(xp: Any, value: Any, arrays: list[Array], objects: list[Any]) -> tuple[Any, ...]:
    """What `value` is but for its arrays and for objects without a description, which are
    appended to the lists."""
    cls = type(value)
    parts = lambda values: tuple([skeleton(xp, each, arrays, objects) for each in values])
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return ("constant", value)
    if isinstance(value, (tuple, list)):
        return ("sequence", cls, parts(value))
    if hasattr(cls, "_matmat"):
        fields = parts([getattr(value, name) for name in cls._fields])
        return ("operator", cls, value._claims, fields)
    if getattr(cls, "_is_method", False):
        # a callback is in the `Monitor`
        kept = tuple([name for name in _fields_of(cls) if not callable(getattr(value, name))])
        return ("method", cls, kept, parts([getattr(value, name) for name in kept]))
    if isinstance(value, xp.array_types):
        arrays.append(value)
        return ("array",)
    if callable(value):
        xp.break_graph(
            "colinear: an iteration with an operator that holds a function leaves the compiled "
            "graph"
        )
    objects.append(value)
    return ("object",)


def _whole(description: tuple[Any, ...], arrays: Iterator[Array], objects: Iterator[Any]) -> Any:
    """The value of a skeleton."""
    kind, *rest = description
    if kind == "constant":
        return rest[0]
    if kind == "array":
        return next(arrays)
    if kind == "object":
        return next(objects)
    parts = [_whole(part, arrays, objects) for part in rest[-1]]
    if kind == "sequence":
        return rest[0](*parts) if hasattr(rest[0], "_fields") else rest[0](parts)
    if kind == "method":
        return rest[0](**dict(zip(rest[1], parts, strict=True)))
    whole: LinearOperator = rest[0]._of(*parts)
    return whole._claim(rest[1]) if rest[1] else whole


# --------------------------------------------------------------------------------------------------


def _fields_of(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


_numbers: dict[Any, int] = {}


def _number(key: tuple[Any, ...], *objects: Any) -> int:
    """The number of the call that this skeleton stands for."""
    known = (key, tuple(map(id, objects)))
    if known not in _numbers:
        for each in objects:
            _check_known(each)
        _numbers[known] = get("torch").add_call(*_call(key, objects))
    return _numbers[known]


def _check_known(each: Any) -> None:
    """Refuse what was made inside the compiled function: Dynamo has no values of it."""
    names = getattr(type(each), "__slots__", ())
    if type(each).__module__.startswith("colinear") and not (
        getattr(each, "__dict__", None) or any(hasattr(each, x) for x in names)
    ):
        raise NotImplementedError(
            f"torch.compile: make the {type(each).__name__} outside of the compiled function."
        )


# Dynamo calls these, instead of tracing them, and takes what they return for a constant.
_fields_of._dynamo_marked_constant = True  # type: ignore[attr-defined]
_number._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _call(key: tuple[Any, ...], objects: Sequence[Any]) -> tuple[Any, ...]:
    description, watching, tol, warns = key
    watch = Monitor(*watching)

    def both(arrays: Sequence[Array]) -> tuple[Any, Array]:
        return _whole(description, iter(arrays[1:]), iter(objects)), arrays[0]

    def run(arrays: Sequence[Array]) -> list[Array]:
        inverse, B = both(arrays)
        xp, outcome = namespace_of(B), iterated.outcome_of(inverse, watch, tol, (B,))
        if warns:
            has_preconditioner = inverse.preconditioner is not None
            deliver(described(xp, outcome, inverse.method, watch, has_preconditioner), "warn")
        counts = (
            xp.asarray(x, dtype="int64")
            for x in (outcome.status, outcome.iterations, outcome.matvecs)
        )
        return [x.clone() for x in (outcome.X, *counts, outcome.residual)]

    def like(arrays: Sequence[Array]) -> list[Array]:
        inverse, B = both(arrays)
        xp, (*batch, _, k) = namespace_of(B), B.shape
        empty = functools.partial(xp.zeros, device=xp.device_of(B))
        counts = [empty(shape, dtype="int64") for shape in ((*batch, k), (*batch, k), ())]
        X = empty((*batch, inverse.A.shape[-1], k), dtype=B.dtype)
        return [X, *counts, empty((*batch, k), dtype=xp.real_dtype(B.dtype))]

    def attach(arrays: Sequence[Array], X: Array) -> Array:
        inverse, B = both(arrays)
        return iterated.equation_of(inverse, watch, tol, lambda *_: (X,))(B, inverse.arrays())

    return run, like, attach


# It runs by what stands here.
from . import iterated


def with_runs(X: Any, change: Callable[[Any], Any]) -> Any:
    """An inverse whose iterations are changed; not those of its parts, if it is composed of some."""
    if isinstance(X, Inverse):
        return X._replace(factor=with_runs(X.factor, change))
    if isinstance(X, iterated.Attempts):
        return iterated.Attempts._of(tuple(change(each) for each in X.attempts))
    return change(X) if isinstance(X, iterated.Iterated) else X


# The terms of an operator as a stochastic method draws from them.


def sampled_terms(A: LinearOperator, method: Any, squared: bool | None = None) -> Terms:
    """The terms that a stochastic method draws from: those of positive A, else (or if so
    `squared`) those of A^H A, which are its rows where A is no sum."""
    generator = None
    if isinstance(A, Seeded):
        generator, A = A.generator, A.A
    A = A.to(dtype=A.xp.float32) if getattr(A.dtype, "itemsize", 0) == 2 else A
    count = term_count(A)
    squared = not A.properties & POSITIVE_SEMIDEFINITE if squared is None else squared
    whole = A
    if count < 2:
        if not (squared and A._has_rows):
            raise MethodError(
                f"{method.name}: {A!r} {NOT_A_SUM}; or use CG(), which needs products with A alone."
            )
        whole = Product(A.H, A)
        count = term_count(whole)

    def product(indices: Array, X: Array) -> Array:
        some = minibatch(whole, indices)
        return some.H @ (some @ X) if squared and whole is A else some @ X

    size = method.batch_of(count)
    if size > count:
        raise ValueError(
            f"{method.name}: batch_size is {size}, and the sum has {count} terms. Use at most "
            f"{count}, or None for the default."
        )
    first = A.xp.arange(size, device=A._context.device)
    share = min(1.0, minibatch(whole, first).flops / max(whole.flops, 1.0))
    return Terms(count, product, share, size, squared, generator)


# An operator that brings the random numbers of its minibatches along: how a key that is traced
# reaches a compiled method.


BITS = 1 << 23  # of a number in single precision


class Seeded(LinearOperator):
    """A, and two uniform numbers that stand for a seed: methods are static, and hold none that
    is traced. Floats, for derivatives' sake."""

    A: LinearOperator
    numbers: Array

    shape, _context = shape_of("A"), inverse_context
    _transpose, _adjoint, _conj = TURNED

    def _infer(self) -> int:
        return self.A.properties

    def _matmat(self, X: Array) -> Array:
        return self.A @ X

    @property
    def _flops(self) -> float:
        return self.A.flops

    @property
    def generator(self) -> Any:
        """The source of random numbers."""
        xp = namespace_of(self.numbers)
        first, second = (
            xp.astype(xp.stop_gradient(self.numbers[i]) * BITS, "int32") for i in (0, 1)
        )
        return xp.fold_in(xp.generator(first), second)


def seeded(A: LinearOperator, seed: Any) -> LinearOperator:
    """A with a seed that is traced; A itself where it is not, and the method can hold it."""
    xp = namespace_of(seed)
    if xp is None or not xp.is_traced(seed):
        return A
    return Seeded._of(A, xp.uniform(xp.generator(seed), (2,), dtype=xp.float32))
