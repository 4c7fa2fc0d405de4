"""What the functions share: arrays and their values, reports of zeros, blocks of columns, orthonormal columns."""

from __future__ import annotations

import cmath
import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from ..backends import Array, Norm, get, is_array, mesh_module, namespace_of
from ..errors import ShapeError, TooLargeError
from ..info import Info, recording, report, worst_status
from ..operators import (
    Dense,
    Diagonal,
    Identity,
    LinearOperator,
    Scaled,
    Sum,
)
from ..operators.context import kind_of
from ..operators.tree import inside_out
from ..properties import POSITIVE_DEFINITE, POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from ..rates import memory_to_form, share_of_memory
from ..status import (
    Status,
    Test,
    failed,
    first_failure,
    is_finite,
    is_put_off,
    is_unseen,
    put_off,
    state,
    take_for_granted,
)

# Arrays as the functions see them: as matrices, in which precision, and whether their values can
# be looked at.

LARGEST_SHARE = 1 / 2  # of the memory, for a matrix that a function needs and nobody asked for


def identity_like(A: LinearOperator, n: int | None = None) -> LinearOperator:
    """I of n dimensions, or as many as A has columns, in A's framework, dtype and device."""
    return Identity(A.shape[-1] if n is None else n, like=None if A.is_neutral else A)


def filled(A: LinearOperator, c: float, *shape: int) -> Array:
    """An array of a real number, in the framework, the precision and on the device of A."""
    return A.xp.full(shape, c, dtype=A.xp.real_dtype(A.dtype), device=A._context.device)


def ones_beside(A: LinearOperator) -> Array:
    """A right side of ones: what `explain` takes where none is given."""
    return A.xp.ones((A.shape[-2],), **kind_of(A))


def square_size(function: str, A: LinearOperator, need: str, instead: str) -> int:
    """The size of a square operator, or an error that says what else to use."""
    m, n = A.shape[-2:]
    if m != n:
        raise ShapeError(
            f"{function}: A is {m}x{n}; {need} needs a square operator. {instead}".rstrip()
        )
    return n


def is_half(xp: Any, dtype: Any) -> bool:
    """Whether a dtype is of half precision, by its size: NumPy has no bfloat16."""
    return getattr(dtype, "itemsize", 0) == 2


def to_computing_dtype(xp: Any, x: Array) -> Array:
    """Half precision in single, in which all linear algebra is done; anything else as it is."""
    return xp.astype(x, xp.float32) if x.dtype.itemsize == 2 else x


def itemsize(A: LinearOperator) -> int:
    """Bytes of a number that is computed with: half precision is factored, and summed, in
    single."""
    return max(4, getattr(A.dtype, "itemsize", 8))


def dense(A: LinearOperator) -> Array:
    """The matrix to compute with; traced, if what is computed from it will be. One that is not
    there is formed up to half of the memory, 8 GiB where that is not known."""
    size = 0 if is_stored(A) else math.prod(A.shape) * itemsize(A)
    if size and size > (limit := share_of_memory(A, LARGEST_SHARE, 8 * 2.0**30)):
        check_copy(A, size)
        m, n = A.shape[-2:]
        raise TooLargeError(
            f"A is {m}x{n}, and no rule or iteration computes this of it: its matrix would have "
            "to be formed, which takes "
            f"{size / 2**30:.1f} GiB; at most {limit / 2**30:.3g} GiB are taken unasked. "
            "Ask for less (k= in eig and svd, solve instead of inv), "
            "name an iterative method, show its "
            f"structure, or form it yourself: Dense(A.to_dense())."
        )
    xp = A.xp
    matrix = to_computing_dtype(xp, A.A if type(A) is Dense else A._dense())
    return xp.staged(matrix) if xp.is_functional else matrix


SURELY_STORED = 2**24  # bytes of a matrix that are copied whatever else is in memory


def is_stored(A: LinearOperator) -> bool:
    """Whether the matrix is there, and memory allows the copy that a factorisation makes: where it
    is cut over the devices of a mesh, each of them has all of that copy."""
    if not isinstance(A, Dense):
        return False
    size = math.prod(A.shape) * getattr(A.dtype, "itemsize", 8)
    if mesh_module(A._context.device) is not None:
        return size <= memory_to_form(A)
    return size <= SURELY_STORED or size <= share_of_memory(A, LARGEST_SHARE, math.inf)


def check_copy(A: LinearOperator, size: float) -> None:
    """Raise an error if A is a matrix that is there, in memory or in a file, and too large to be
    copied."""
    if A._is_out_of_core or isinstance(A, Dense):
        where = "is in memory, with no room for another"
        if A._is_out_of_core:
            where = "is not in memory: it lies in a file, or comes a chunk at a time"
        m, n = A.shape[-2:]
        raise TooLargeError(
            f"A is {m}x{n} and {where}. No rule or iteration computes this of it without a copy of "
            f"{size / 2**30:.3g} GiB. Ask for less (k= in eig and svd, solve instead of inv), name "
            "an iterative method, or make the copy: Dense(np.array(x))."
        )


def to_result_dtype(xp: Any, x: Array, dtype: Any) -> Array:
    """A result in the precision of `dtype`, real or complex as it is. There is no half-precision
    complex: that stays single."""
    if dtype.itemsize != 2 or xp.is_complex(x) or not xp.is_floating(x):
        return x
    return xp.astype(x, dtype)


def real_or_complex(X: Array, dtype: Any) -> Array:
    """X in a dtype: its real part where that is real, for an answer that is real but for
    rounding."""
    xp = namespace_of(X)
    return xp.astype(X if xp.is_complex(dtype) else xp.real(X), dtype)


def array_like(A: LinearOperator, values: Any) -> Array:
    """Values as an array in A's framework, dtype and device."""
    return A.xp.asarray(values, **kind_of(A))


def low_rank_sides(A: Any) -> tuple[Array, Array]:
    """U C and V of U C V^H."""
    U = A.U if A.core is None else A.xp.matmul(A.U, A.core)
    return U, A.U if A.V is None else A.V


def largest_rank(A: Any) -> int:
    """The rank of U C V^H that its factors allow."""
    return min(*A.shape[-2:], A.U.shape[-1], (A.U if A.V is None else A.V).shape[-1])


def outer(combine: Any, v: Array, w: Array) -> Array:
    """combine(v_i, w_j) for all pairs, i slow and j fast."""
    grid = combine(v[..., :, None], w[..., None, :])
    return namespace_of(grid).reshape(grid, (*grid.shape[:-2], grid.shape[-2] * grid.shape[-1]))


def is_square(A: LinearOperator) -> bool:
    """Whether A has as many rows as columns."""
    return A.shape[-1] == A.shape[-2]


def smaller_side(A: LinearOperator) -> int:
    """How many rows or columns A has, whichever are fewer."""
    return min(A.shape[-2:])


def is_vector(b: Any, *others: Any) -> bool:
    """Whether a right side is one vector, given as an array or as a list."""
    return getattr(b, "ndim", None) == 1 or (isinstance(b, (list, tuple)) and np.ndim(b) == 1)


def is_traced_or_differentiated(xp: Any, *arrays: Array) -> bool:
    """Whether values are traced or derivatives are recorded."""
    return xp.hides_values and any(xp.is_traced(x) or xp.is_differentiated(x) for x in arrays)


def values_are_seen(A: LinearOperator) -> bool:
    """Whether its numbers can be seen, and no derivatives are recorded."""
    return not A.xp.hides_values or not is_traced_or_differentiated(A.xp, *A.arrays())


def reaches_host(xp: Any, x: Array) -> bool:
    """Whether a program computes with x on the host, or can call it."""
    if xp.is_compiling() or xp.is_on_device(x):
        return False
    return not xp.is_functional or xp.usual_device().platform in xp.HOSTS


def host_value(xp: Any, x: Array) -> Any:
    """The values on the host, None under tracing. A device is waited for: see `seen_value`."""
    values = xp.peek(x)
    return values if values is not None or xp.is_traced(x) else xp.to_numpy(x)


def host_array(xp: Any, x: Array) -> Any:
    """The values to compute with on the host, as NumPy's array."""
    return np.asarray(host_value(xp, to_computing_dtype(xp, x)))


def seen_value(xp: Any, x: Array) -> Any:
    """The values on the host; None where they are not to be looked at (`is_unseen`): under tracing,
    and on a device."""
    values = xp.peek(x)
    return values if values is not None or is_unseen(x) else xp.to_numpy(x)


def ignore_float_errors(xp: Any) -> Any:
    """NumPy's own warnings silenced where infinities and NaN are turned into a status."""
    return UNCHANGED if xp.name != "numpy" else np.errstate(**_IGNORED)


UNCHANGED = contextlib.nullcontext()
_IGNORED: Any = dict.fromkeys(("divide", "over", "under", "invalid"), "ignore")  # sooner than all=


# Reciprocals and reports of zeros and infinities, for the rules that divide by numbers instead of
# factoring.

CACHED = 2**20  # bytes
FEW = 16  # numbers

Implementation = TypeVar("Implementation", bound=Callable[..., Any])


def operands_in_context(A: LinearOperator) -> tuple[LinearOperator, ...]:
    """The operands of A, neutral ones in its framework, dtype and device: alone they would give
    NumPy's numbers."""
    return tuple([in_context(operand, A) for operand in A.operands])


def once_each(
    compute: Callable[[LinearOperator], Any], operands: Sequence[LinearOperator]
) -> list[Any]:
    """`compute` of every operand, but once for those that are the same object: the factors of
    A ⊗ A, say."""
    found: dict[int, Any] = {}
    for operand in operands:
        if id(operand) not in found:
            found[id(operand)] = compute(operand)
    return [found[id(operand)] for operand in operands]


def in_groups(xp: Any, blocks: Sequence[Any]) -> list[Sequence[Any]]:
    """Matrices of one size in groups to be stacked: in NumPy such as stay in the processor's
    cache together, else all."""
    size = int(getattr(blocks[0].A, "nbytes", 0))
    step = max(1, CACHED // max(1, size)) if xp.name == "numpy" else len(blocks)
    return [blocks[start : start + step] for start in range(0, len(blocks), step)]


def in_context(operand: LinearOperator, A: LinearOperator) -> LinearOperator:
    """An operand of A, in A's framework, dtype and device if it is neutral."""
    if operand._context.backend is not None or A._context.backend is None:
        return operand
    return operand.to(backend=A.backend, device=A._context.device, dtype=A.dtype)


def reciprocal(x: Any) -> Any:
    """1 / x of an array or a number; a zero is reported as SINGULAR, NaN or infinity as
    NONFINITE."""
    xp = namespace_of(x)
    if xp is None:
        fine = x != 0 and x - x == 0  # the latter is false for NaN and infinity
        if not fine:
            report(Info(Status.SINGULAR if x == 0 else Status.NONFINITE))
        return 1 / x if x != 0 else float("inf")
    if math.prod(x.shape) <= FEW and are_plain(xp.peek(x)):
        return xp.asarray(1 / x)
    with ignore_float_errors(xp):
        inverse = xp.asarray(1 / x)  # NumPy makes a number of a 0-dimensional array
        # One product finds all that is wrong: 0 * inf, inf * 0 and NaN are NaN, and a denormal's
        # reciprocal is infinite.
        if is_unseen(inverse):
            if not quotient_is_finite_later(xp, x, inverse):
                report_values(xp, x)
        elif not bool(xp.all(xp.isfinite(x * inverse))):
            report_values(xp, x)
    return inverse


def quotient_is_finite_later(xp: Any, x: Array, y: Array) -> bool:
    """Whether x, and y, which was divided by x, are taken to be finite; not under tracing."""
    if 0 in y.shape or not is_put_off(y):
        return 0 in y.shape
    if state.waiting is None:  # one number, in which NaN and infinity show: it may also overflow
        product = xp.matmul(x, y) if x.ndim == 1 == y.ndim else xp.sum(x * y)
        put_off(Test((product,), is_finite, Status.NONFINITE))
    else:  # where nothing is run again
        ends = (x, -math.inf), (x, math.inf), (y, math.inf)
        norms = [Norm(xp.stop_gradient(z), tuple(range(-z.ndim, 0)), order) for z, order in ends]
        put_off(Test(tuple(norms), functools.partial(_are_regular, 0), Status.NONFINITE))
    return True


def are_plain(x: Any) -> bool:
    """Whether all are seen to be real and far from zero and infinity: of few, sooner so."""
    if x is None or x.dtype.char not in "fd":
        return False
    sizes = list(map(abs, x.tolist() if x.ndim == 1 else x.ravel().tolist())) or [0]
    return min(sizes) > 1e-30 and sum(sizes) < 1e30  # the sum shows NaN, too


def reciprocal_spectrum(xp: Any, values: Array) -> Array:
    """1 / λ of the eigenvalues of a self-adjoint operator, SINGULAR if one is zero to working
    accuracy."""
    if 0 in values.shape:
        return values
    least = MARGIN * xp.eps(values.dtype)
    if is_unseen(values):
        test = functools.partial(_are_regular, least)
        ends = [Norm(xp.stop_gradient(values), (-1,), order) for order in (-math.inf, math.inf)]
        if take_for_granted(test, *ends, failure=Status.SINGULAR):
            return xp.reciprocal(values)
    size = xp.abs(values)
    smallest, largest = xp.min(size, axis=-1), xp.max(size, axis=-1)
    regular = smallest > least * largest
    finite = xp.isfinite(smallest + largest)  # NaN stays through min and max
    report_failure(xp, (finite, Status.NONFINITE), (regular, Status.SINGULAR))
    with ignore_float_errors(xp):
        return 1 / values


def _are_regular(least: float, smallest: Any, largest: Any, quotient: Any = 0) -> Status:
    """Whether numbers whose sizes have these bounds can be divided by, with a finite quotient."""
    if not np.all(np.isfinite(largest)):
        return Status.NONFINITE
    if not np.all(smallest > least * largest):
        return Status.SINGULAR
    return Status.SUCCESS if np.isfinite(quotient) else Status.NONFINITE


def report_all(reports: Sequence[Info], result: Any = None) -> Any:
    """Report what was recorded, and return the result."""
    for info in reports:
        report(info)
    return result


def with_status(xp: Any, compute: Callable[[], Any]) -> tuple[Any, Array]:
    """What is computed, and the worst status that it reports as an array: for a branch of a program,
    out of which reports do not come."""
    with recording() as reports:
        found = compute()
    return found, xp.asarray(worst_status(reports), dtype=np.int32)


def have_failed(reports: Sequence[Info]) -> bool:
    """Whether a failure is known to be among the reports."""
    return any(failed(info._status) is True for info in reports)


def report_values(xp: Any, x: Array) -> None:
    """Report zeros (SINGULAR) and NaN or infinity (NONFINITE) among numbers that will be divided
    by."""
    if 0 in x.shape:
        return
    size = smallest = largest = xp.abs(x if x.ndim else x[None])
    if not xp.is_traced(x):  # else the worst of all statuses is one reduction, instead of these two
        smallest, largest = xp.min(size, axis=-1), xp.max(size, axis=-1)  # NaN, where one is
    report_failure(xp, (largest < math.inf, Status.NONFINITE), (smallest != 0, Status.SINGULAR))


def report_failure(xp: Any, *conditions: tuple[Any, Status], **details: Any) -> None:
    """Report the first condition that does not hold, or that cannot be seen yet. On a device they
    are taken to hold."""
    unseen = [pair for pair in conditions if is_array(pair[0])] if xp.hides_values else []
    if (
        unseen
        and is_unseen(unseen[0][0])
        and all(is_array(holds) or holds for holds, _ in conditions)
    ):
        arrays, failures = zip(*unseen)
        test = lambda *values: first_failure(get("numpy"), *zip(values, failures))
        if take_for_granted(test, *arrays, failure=Status.INACCURATE):
            return
    status = first_failure(xp, *conditions)
    if status is not Status.SUCCESS:
        report(Info(status, **details))


def report_finite(xp: Any, x: Array, **details: Any) -> None:
    """Report NaN or infinity in a result."""
    if is_unseen(x) and xp.is_floating(x) and 0 not in x.shape:
        largest = xp.rough_norm(xp.stop_gradient(x), tuple(range(-x.ndim, 0)), math.inf)
        if take_for_granted(is_finite, largest, failure=Status.NONFINITE):
            return
    report_failure(xp, (xp.all(xp.isfinite(x)), Status.NONFINITE), **details)


def report_arrays(A: LinearOperator) -> None:
    """Report NaN or infinity among the numbers that A itself holds; those of its operands are
    not looked at."""
    for name in ("_matrix",) if hasattr(type(A), "_matrix") else A._dynamic:
        x = getattr(A, name)
        if is_array(x):
            report_finite(namespace_of(x), x)
        elif isinstance(x, (float, complex)) and not cmath.isfinite(x):
            report(Info(Status.NONFINITE))


def report_leaves(A: LinearOperator) -> None:
    """Report NaN or infinity anywhere in the tree, for rules that do not look at all of it."""
    for part in inside_out(A):
        report_arrays(part)


def reports_nonfinite(implementation: Implementation) -> Implementation:
    """Decorate a rule whose answer hides NaN and infinity that A itself holds, or is made of
    other numbers: they are reported."""

    @functools.wraps(implementation)
    def call(A: Any, *arguments: Any) -> Any:
        report_arrays(A)
        return implementation(A, *arguments)

    return call  # type: ignore[return-value]


def is_positive(D: Any) -> bool:
    """Whether a diagonal matrix is known to be positive: by its values, where they can be seen
    at no cost, or by a claim."""
    if isinstance(D, Identity):
        return True
    values = peek_at(D.d if isinstance(D, Diagonal) else D.c)
    if values is None:
        return bool(D.properties & POSITIVE_DEFINITE)
    return not np.iscomplexobj(values) and bool(np.all(np.asarray(values) > 0))


def may_be_positive(A: LinearOperator) -> bool:
    """Whether A, a sum, is positive semidefinite if numbers on a device whose signs nobody sees are
    not negative. Cholesky is then tried, which breaks down where one makes A indefinite, and the
    call is run again: not in a block `deferred`."""
    if not isinstance(A, Sum) or not A.properties & SELF_ADJOINT or state.waiting is not None:
        return False
    terms = [term for term in A.operands if not term.properties & POSITIVE_SEMIDEFINITE]
    return len(terms) < len(A.operands) and all(map(_is_of_unseen_sign, terms))


def _is_of_unseen_sign(A: Any) -> bool:
    """Whether A is a diagonal matrix, or a multiple of a positive one, whose real numbers are on a
    device."""
    if isinstance(A, Scaled):
        x = A.scalar if A.A.properties & POSITIVE_SEMIDEFINITE else None
    else:
        x = A.d if isinstance(A, Diagonal) else getattr(A, "c", None)
    xp = namespace_of(x)
    return xp is not None and not xp.is_complex(x) and not xp.is_traced(x) and is_unseen(x)


def passes(
    xp: Any, test: Callable[[Any], Any], x: Array, failure: Status | None = None
) -> bool | None:
    """Whether values pass a test, which those on a device are taken to do: the call is run again if
    they do not. None where that cannot be told, under tracing say. `failure`: as for
    `take_for_granted`."""
    values = seen_value(xp, x)
    if values is not None:
        return bool(test(values))
    return take_for_granted(test, x, failure=failure) or None


def peek_at(c: Any) -> Any:
    """A number, or the values of an array that can be seen at no cost; else None."""
    return c if (xp := namespace_of(c)) is None else xp.peek(c)


def seen_numbers(c: Any) -> Any:
    """A number, or an array of them, as NumPy's; None where values are not to be looked at. What is
    then taken for granted is looked at when the call is run again."""
    xp = namespace_of(c)
    values = c if xp is None else seen_value(xp, c)
    return None if values is None else np.asarray(values)


def has_no_zero(x: Any) -> bool:
    """Whether no number is zero; taken for granted where values are not to be looked at."""
    values = seen_numbers(x)
    return values is None or bool((values != 0).all())


MARGIN = 10  # by which a condition number must stay below what the dtype can tell from infinity
