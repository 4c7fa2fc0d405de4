"""`Auto` without a factorisation: which iterations to try, and in which order; and the methods that a user names."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...backends import Array, namespace_of
from ...dispatch import Choice, Cost
from ...errors import BackendError, ShapeError
from ...factors.applied import Applied
from ...factors.iterated import Iterated, working_memory
from ...factors.runs import sampled_terms, seeded
from ...info import recording
from ...methods import CG, GMRES, LSMR, LSQR, MINRES, Auto, BiCGSTAB, Method
from ...methods.base import AUTO, Iterative
from ...methods.svrg import SVRG
from ...operators import (
    Diagonal,
    LinearOperator,
    MatrixFree,
    Scaled,
    Sparse,
    Sum,
)
from ...operators.autograd import make_ready
from ...operators.context import check_device
from ...operators.kernel import how_kernels_multiply
from ...operators.shown import with_symmetry_of_entries
from ...operators.sparse_algebra import ask
from ...properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from ...status import failed, state
from ..common import array_like, host_value, is_stored, is_traced_or_differentiated, seen_value
from .cost import (
    affordable_products,
    dense_work,
    expected_work,
    iterated_work,
    least_squares_work,
    prefers_iteration,
    products_cost,
    usual_products,
)

# `Auto` without a factorisation: which iterations to try, and in which order.
#
# preconditioned by what is near A and inverted by a rule (trials.py); then, and else,
# positive semidefinite CG -> MINRES self-adjoint MINRES -> GMRES; a sparse one with a positive
# diagonal, which may be definite: CG -> MINRES -> GMRES any other GMRES -> BiCGSTAB -> LSQR, if
# there is an adjoint least squares LSMR
#
# Each but the last two (LSQR and LSMR) is scaled by the diagonal where that is cheap and helps.


# the ratio of the largest to the smallest entry of a diagonal from which scaling by it helps
UNEVEN = 4.0


def looks_definite(A: LinearOperator) -> bool:
    """Whether A is known to be positive semidefinite, or is a sparse self-adjoint matrix with a
    positive diagonal."""
    A = with_symmetry_of_entries(A)
    if A.properties & POSITIVE_SEMIDEFINITE:
        return True
    if not isinstance(A, Sparse) or 0 in (A.nnz, *A.shape) or not A.properties & SELF_ADJOINT:
        return False
    least = host_value(A.xp, A.xp.min(A.xp.real(ask(diagonal.diag, A, None))))
    return least is not None and bool(least > 0)


def can_be_watched(A: LinearOperator, B: Array) -> bool:
    """Whether CG is tried, and each of its steps can be looked at: it is no compiled program. A
    recorded derivative is attached to what was found."""
    xp = A.xp
    held = map(xp.stop_gradient, (B, *A.arrays()))
    return not (xp.is_functional or is_traced_or_differentiated(xp, *held)) and looks_definite(A)


MULTIGRID_ROWS = 4000  # from which multigrid is considered
MOST_POSITIVE = 0.25  # part of what is off the diagonal of a matrix that can be coarsened


def is_elliptic(A: Any) -> bool:
    """Whether A is a large sparse matrix whose entries off the diagonal are negative for the most
    part, as those of elliptic problems and graphs are: one that multigrid can coarsen."""
    if not isinstance(A, Sparse) or A.shape[-1] < MULTIGRID_ROWS or A.batch_shape or A.is_complex:
        return False
    xp, trace = A.xp, A.xp.sum(ask(diagonal.diag, A, None))
    rest, size = xp.sum(A.data) - trace, xp.sum(xp.abs(A.data)) - trace
    return bool(host_value(xp, rest + size <= MOST_POSITIVE * (size - rest)))


def is_general(A: LinearOperator) -> bool:
    """Whether A is a sparse matrix of which nothing is known, and its values can be seen."""
    is_seen = isinstance(A, Sparse) and not is_traced_or_differentiated(A.xp, *A.arrays())
    return is_seen and not A.properties & SELF_ADJOINT


def multigrid_is_installed() -> bool:
    """Whether PyAMG, which coarsens, is there."""
    return importlib.util.find_spec("pyamg") is not None


def is_automatic(method: Any) -> bool:
    """Whether the choice is ours."""
    return method is None or isinstance(method, Auto)


def iterates(A: LinearOperator, method: Any) -> bool:
    """Whether `Auto` iterates with A, rather than form and factor its matrix."""
    if is_stored(A) or not is_automatic(method):
        return False
    return prefers_iteration(A, partial(dense_work, A))


def candidates(A: LinearOperator) -> list[Any]:
    """The methods to try, in order."""
    if A.properties & POSITIVE_SEMIDEFINITE:
        return [CG(), MINRES()]
    if A.properties & SELF_ADJOINT:
        return [*([CG()] if looks_definite(A) else []), MINRES(), GMRES()]
    return [GMRES(), BiCGSTAB(), *([LSQR()] if has_adjoint(A) else [])]


def has_adjoint(A: LinearOperator) -> bool:
    """Whether A^H can be multiplied by; hidden inside a composition, what cannot is met when it
    is tried."""
    return not (isinstance(A, MatrixFree) and A.multiply_adjoint is None and A.backend == "numpy")


def preconditioners() -> Any:
    """The package of preconditioners, which is made of functions and comes after them."""
    from ... import preconditioners

    return preconditioners


def limits(method: Any, most: int | None = None) -> dict[str, Any]:
    """The tolerance that `Auto` was given, and its most iterations, `most` if there are none."""
    method = method or AUTO
    return {"tol": method.tol, "max_iters": most if method.max_iters is None else method.max_iters}


def try_least_squares(
    A: LinearOperator,
    method: Method | None,
    arrays: Sequence[Array],
    columns: int,
    run: Callable[[LSMR, int | None], Any],
    like: Callable[[], Any],
) -> Choice | None:
    """The choice of LSMR, where the matrix does not fit into memory, or as far as a factorisation
    would cost more; else None.

    `run(LSMR(...), most)` is what iterates; it may try as many products, any number if that is
    None. `arrays` and `columns`: the right sides, and how many they are.
    """
    direct = least_squares_work(A)
    most = affordable_products(A, lambda: direct, columns) if has_adjoint(A) else 0
    is_watched = is_traced_or_differentiated(A.xp, *arrays, *A.arrays())
    # a program of JAX has both, the factorisation for the case that the iteration fails
    if most == 0 or (most is not None and is_watched and not A.xp.is_functional):
        return None
    # each of which is a product with A and one with A^H
    lsmr = LSMR(**limits(method, None if most is None else most // 2))
    # Unless a tolerance was asked for, x is to be that of a matrix nearer to A than sqrt(eps) |A|:
    # the error of least squares grows with the square of the condition.
    lsmr = lsmr if lsmr.tol is not None else replace(lsmr, tol=A.xp.eps(A.dtype) ** 0.75)
    work = lambda: expected_work(A, lambda: direct, most, 2.0 * lsmr.typical(*A.shape[-2:]))
    cost = lambda: replace(work(), memory=working_memory(lsmr, A))
    why = lambda: describe_factorisation(direct, most)
    return Choice(lambda: run(lsmr, most), "LSMR", cost, why, like)


def describe_factorisation(direct: Cost, most: int | None) -> str:
    """What a factorisation would cost, and when it comes next."""
    size = direct.memory / 2**20
    memory = f"{size:.3g} MiB" if size < 1024 else f"{size / 1024:.3g} GiB"
    cost = f"a factorisation would take {direct.flops:.2g} flop and {memory}"
    return cost if most is None else f"{cost}, which comes next if {most} products are not enough"


def jacobi(A: LinearOperator) -> LinearOperator | None:
    """The inverse of the diagonal, of its size where A is self-adjoint, if that is cheap to
    have, uneven and nowhere zero."""
    d = cheap_diagonal(A)
    if d is None:
        return None
    xp = A.xp
    size = xp.abs(d)
    values = seen_value(xp, size)
    d = size if A.properties & SELF_ADJOINT else d
    if values is None:  # not to be seen: it does no harm
        return Diagonal._of(xp.astype(1 / xp.where(size > 0, d, 1), A.dtype))
    if not values.size or not 0 < float(values.min()) <= float(values.max()) / UNEVEN < float(
        "inf"
    ):
        return None
    return Diagonal._of(xp.astype(1 / d, A.dtype))


def cheap_diagonal(A: LinearOperator) -> Array | None:
    """The diagonal, if rules know it, in a sum that of every term, and nothing goes wrong there."""

    def is_known(A: LinearOperator) -> bool:
        return not diagonal.diag.find(A).is_base and (
            not isinstance(A, Sum | Scaled) or all(map(is_known, A.operands))
        )

    if not is_known(A):
        return None
    with recording() as reports:
        d = diagonal.diag(A)
    return d if all(failed(info._status) is False for info in reports) else None


def cost_of_iteration(A: LinearOperator) -> Cost:
    """What `Auto` expects the iteration that it tries first to cost."""
    return replace(iterated_work(A), memory=working_memory(candidates(A)[0], A))


# Iterative methods for `inv`, `solve` and `lstsq`: what they are given, and what becomes of the
# tolerance in the parts.


def is_iterative(method: Any) -> bool:
    """Whether the user named an iterative method."""
    return isinstance(method, Iterative)


def iterated(A: LinearOperator, method: Iterative, consistent: bool = True) -> Iterated:
    """A^-1 applied by the method, A^+ where there need be no solution (`consistent` false)."""
    if isinstance(method, SVRG) and 0 not in A.shape:
        sampled_terms(A, method)  # an error where there are none
    whole = A.H @ A if method.squares_operator and method.preconditioner is not None else A
    M = preconditioners().as_preconditioner(method.preconditioner, whole)
    x0 = starting_point(A, method)
    if isinstance(method, SVRG):
        A = seeded(A, method.seed)
    return Iterated._of(A, M, x0, method.without_arrays(), consistent)


def starting_point(A: LinearOperator, method: Iterative) -> Array | None:
    """`x0` as an array that fits A, or an error that says why it does not."""
    x0 = method.x0
    if x0 is None:
        return None
    xp = namespace_of(x0)
    if xp is None:
        x0 = array_like(A, x0)
    elif (xp.name, A.xp.name) == ("numpy", "jax"):
        x0 = A.xp.asarray(x0)  # all of JAX takes NumPy's arrays
    elif not A.is_neutral and xp is not A.xp:
        raise BackendError(
            f"{method.name}: x0 is an array of {xp.name} and A a {A.backend} operator. Convert one."
        )
    elif not A.is_neutral:
        check_device(method.name, A.device, xp.device_of(x0))
    rows = x0.shape[0 if x0.ndim == 1 else -2] if x0.ndim else 0
    if rows != A.shape[-1]:
        raise ShapeError(
            f"{method.name}: A is {A.shape[-2]}x{A.shape[-1]}, so x0 needs {A.shape[-1]} rows; it "
            f"is {tuple(x0.shape)}."
        )
    return x0


def with_tolerance_for_parts(method: Any, A: LinearOperator, parts: int) -> Any:
    """The method for each of several parts, so that the whole keeps the tolerance: the errors of
    the parts add up."""
    if not is_iterative(method) or parts < 2:
        return method
    tol, least = method.tolerance(A.xp, A.dtype), 4 * A.xp.eps(A.dtype)
    return replace(method, tol=min(tol, max(tol / (4 * parts), least)), x0=None)


def iterate(
    A: LinearOperator, method: Iterative, run: Callable[[], Any], like: Callable[[], Any]
) -> Choice:
    """The choice of an iterative method that was named."""
    m, n = A.shape[-2:]

    def products() -> int:
        return min(method.iterations(m, n), int(usual_products(A, method.typical(m, n))))

    def cost() -> Cost:
        return products_cost(A, products(), 10.0 * max(m, n), working_memory(method, A))

    def why() -> str:
        ready = make_ready(A, is_planned=True)
        stored = how_kernels_multiply(A) if ready is A else " with the kernels stored"
        count = f"at {ready.flops:.2g} flop a product{stored}, {products()} products or so"
        return (
            f"asked for; {count}, at most {method.iterations(m, n)} iterations; "
            f"{method.working_vectors(n)} vectors"
        )

    return Choice(run, method.name, cost, why, like)


def apply_method(
    A: LinearOperator, method: Method, of: str, finish: Callable[[Applied], Any]
) -> Choice:
    """The choice of a method from outside, prepared for A where derivatives do not ask for that."""

    def run() -> Any:
        applied = Applied._of(A, method, of)
        if 0 not in A.shape and not is_traced_or_differentiated(A.xp, *A.arrays()):
            applied.prepared  # noqa: B018  # made at once, so that what is wrong is said at once
        return finish(applied)

    like = lambda: finish(Applied._of(A, method, of))
    return Choice(run, method.name, None, "asked for", like)


# Diagonals and inverses are asked for by iterations, and ask for them.
from .. import diagonal

# Inverses that are not judged, because the residual of a solve with them will be.


class leave_to_residual:
    """Leave out judgements by vectors, and list the operators of which that is true: the caller
    looks at a residual."""

    __slots__ = ("outer",)

    def __enter__(self) -> list[LinearOperator]:
        self.outer, state.left_out = state.left_out, []
        return state.left_out

    def __exit__(self, *_: Any) -> None:
        state.left_out = self.outer


def is_left_to_residual(A: LinearOperator) -> bool:
    """Whether the caller looks at a residual, so that the inverse of A need not be judged; if so,
    that is noted."""
    if state.left_out is not None:
        state.left_out.append(A)
    return state.left_out is not None
