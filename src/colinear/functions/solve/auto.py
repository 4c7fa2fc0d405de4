"""`Auto` without a factorisation: which iterations to try, and in which order; and the methods that a user names."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...backends import Array, namespace_of
from ...dispatch import Choice, Cost
from ...errors import BackendError, ShapeError
from ...factors.iterated import Attempts, Iterated, working_memory
from ...factors.runs import multiplies_by_iteration, sampled_terms, seeded
from ...info import Info, recording
from ...methods import CG, GMRES, LSMR, LSQR, MINRES, Auto, BiCGSTAB, Method
from ...methods.base import AUTO, Iterative
from ...methods.svrg import SVRG
from ...operators import (
    Banded,
    BlockDiag,
    Circulant,
    Convolution,
    Dense,
    Diagonal,
    Kronecker,
    KroneckerSum,
    LinearOperator,
    MatrixFree,
    Scaled,
    ScaledIdentity,
    Sparse,
    Sum,
    Tridiagonal,
)
from ...operators.context import check_device
from ...operators.printing import shorten
from ...operators.sparse_algebra import DIAGONAL, with_symmetry_of_entries
from ...properties import POSITIVE_DEFINITE, POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from ...status import Status, failed, state
from ..common import array_like, have_failed, host_value, is_traced_or_differentiated, seen_value
from .cost import (
    SHARE,
    affordable_products,
    dense_work,
    expected_work,
    iterated_work,
    least_squares_work,
    memory_to_form,
    prefers_iteration,
    products_cost,
    usual_products,
)

# `Auto` without a factorisation: which iterations to try, and in which order.
#
# a sum with a fast term: preconditioned by its inverse (CG, MINRES or GMRES); then, and else,
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
    least = host_value(A.xp, A.xp.min(A.xp.real(diagonal.diag(A))))
    return least is not None and bool(least > 0)


def is_automatic(method: Any) -> bool:
    """Whether the choice is ours."""
    return method is None or isinstance(method, Auto)


def iterates(A: LinearOperator, method: Any) -> bool:
    """Whether `Auto` iterates with A, rather than form and factor its matrix."""
    if isinstance(A, Dense) or not is_automatic(method):  # whose matrix is there
        return False
    return prefers_iteration(A, partial(dense_work, A))


LOOK_EVERY = 12  # steps, between two forecasts
MOST_FLOPS_TO_FORM = 1e11  # a matrix in a program, where nothing can be tried before
QUICKENING = 1.5  # by which CG falls faster in the end than in the beginning
TRIAL = 24  # steps that cost less than to look at how a sparse matrix would fill in
SPARSE_TRIAL = 1000  # rows from which that is so


def products_to_try(A: LinearOperator, direct: Callable[[], Cost], B: Array) -> int | None:
    """How many products with A are tried before a factorisation that takes the work `direct()`;
    None: any number."""
    A = with_symmetry_of_entries(A)
    # nothing could be tried again: the guess decides
    if any(A.xp.is_traced(x) for x in (B, *A.arrays())):
        is_dear = A.dense_flops > MOST_FLOPS_TO_FORM and not isinstance(A, Sparse)
        return None if is_dear or prefers_iteration(A, direct, B.shape[-1]) else 0
    is_large = isinstance(A, Sparse) and A.shape[-1] >= SPARSE_TRIAL
    least = None if fast_part(A) is None else FEWEST_FAST_STEPS
    most = affordable_products(A, direct, B.shape[-1], least)
    return TRIAL if most == 0 and is_large and looks_definite(A) else most


def can_be_watched(A: LinearOperator, B: Array) -> bool:
    """Whether CG is tried, and each of its steps can be looked at: no compiled program, nor one
    that is run again for derivatives."""
    if A.xp.is_functional or is_traced_or_differentiated(A.xp, B, *A.arrays()):
        return False
    return looks_definite(A)


class Patience:
    """A callback that lets an iteration go on as long as it may end before a factorisation would.

    The first `least` steps are free, as is a part of the work of the factorisation. Then the steps
    that are still to come are forecast by those that were made, and by the last of them: each is
    taken to lower the residual by the same factor. `direct()` is asked for when the free steps were
    not enough.
    """

    def __init__(
        self, A: LinearOperator, direct: Callable[[], Cost], columns: int, tol: float, least: int
    ):
        self.A, self.direct, self.columns, self.tol, self.free = A, direct, columns, tol, least
        self.most: float | None = None  # products that cost as much as the factorisation
        self.before = 1.0  # the residual at the last look

    def __call__(self, progress: Any) -> bool:
        made = progress.iteration
        if made + LOOK_EVERY < self.free or made % LOOK_EVERY:
            return False
        worst = float(progress.residual.max())
        before, self.before = self.before, worst
        if made >= self.free and self.most is None:
            work = self.direct()
            step = iterated_work(self.A, self.columns, 1).seconds
            self.most = math.inf if work.memory > memory_to_form(self.A) else work.seconds / step
            self.free = max(self.free, int(self.most / SHARE) if self.most < math.inf else made)
        if made < self.free or self.most is None or not self.tol < worst < math.inf:
            return False
        left = math.log(worst / self.tol)  # of the fall that is needed
        rates = -math.log(worst) / made, (math.log(before) - math.log(worst)) / LOOK_EVERY
        forecast = made + left / (QUICKENING * max(*rates, 1e-9))
        return self.most < math.inf and forecast > self.most


def solve_by_trial(
    s: Any, most: int | None, direct: Callable[[], Cost]
) -> tuple[Array, Info] | None:
    """A^-1 B of the system `s` by iterations, of at most so many products, or more where they will
    be cheaper than the factorisation; None where that does better."""
    A, B = with_symmetry_of_entries(s.A), s.B
    if most is None:
        return attempts(A, s.method).run(B, s.is_vector)
    is_patient = can_be_watched(A, B)
    callback = Patience(A, direct, B.shape[-1], s.tol, most) if is_patient else None
    only = 2 if A.properties & POSITIVE_SEMIDEFINITE and most != TRIAL else 1
    found = attempts(A, s.method, None if is_patient else most, only, callback).run(B, s.is_vector)
    status = found[1].status
    if status is Status.STOPPED or failed(found[1]._status) is not False:
        if most == TRIAL and affordable_products(A, direct, B.shape[-1]) is None:
            return attempts(A, s.method).run(B, s.is_vector)
        return found if most != TRIAL and status is Status.NONFINITE else None
    return found


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


def attempts(
    A: LinearOperator,
    method: Method | None,
    most: int | None = None,
    first: int | None = None,
    callback: Any = None,
) -> Attempts:
    """A^-1 by iterations, the next where one fails; of at most `most` steps each, and of the
    `first` ones only. A sum with a term that is easy to invert is preconditioned by that, first of
    all."""
    options = {**limits(method, most), "callback": callback}
    part, runs = fast_part(A), []
    M = None if part is None else inverse_of_part(part)
    if part is not None and M is not None:
        chosen = replace(preconditioned(A, part), preconditioner=M, **options)
        if options["max_iters"] is None and not any(map(A.xp.is_traced, A.arrays())):
            chosen = replace(chosen, max_iters=FAST_STEPS)
        runs.append(iterated(A, chosen))
    M = jacobi(A)
    for candidate in candidates(A)[:first]:
        preconditioner = None if candidate.least_squares else M
        chosen = replace(candidate, preconditioner=preconditioner, **options)
        runs.append(iterated(A, chosen))
    return Attempts._of(tuple(runs))


# The fast term: A^-1 where a rule knows it, for A + B.


FAST = Kronecker | KroneckerSum | Circulant | Convolution | Tridiagonal | Banded | BlockDiag
FEWEST_FAST_STEPS = 15  # that are worth a try
FAST_STEPS = 150  # after which the part was not near enough to A, and others are tried
LARGEST_RATIO = 1000.0  # of the flops of a preconditioner to those of A


def fast_part(A: LinearOperator) -> LinearOperator | None:
    """The part of a sum that a rule inverts, with the mean of the diagonals beside it; None where
    there is none. Under tracing, where nothing else could be tried, only one that is known to be
    positive definite."""
    if not isinstance(A, Sum) or A.batch_shape:
        return None
    terms = [term for term in A.operands if is_fast(term)]
    if not terms or len(A.operands) < 2:
        return None
    is_traced = any(map(A.xp.is_traced, A.arrays()))
    for part in (_with_mean(terms[0], A), terms[0]):
        is_known = not inverse.inv.find(part).is_base
        if is_known and (not is_traced or part.properties & POSITIVE_DEFINITE):
            return part.detach()
    return None


def is_fast(A: LinearOperator) -> bool:
    """Whether A, or what it is a multiple of, is of a family with a cheap inverse."""
    A = A.A if isinstance(A, Scaled) else A
    return isinstance(A, FAST) and getattr(A, "boundary", "wrap") == "wrap"


def _with_mean(term: LinearOperator, A: Any) -> LinearOperator:
    """The term, and the mean of the diagonals in the sum A times I."""
    xp = A.xp
    means = [
        ScaledIdentity(xp.mean(D.d, axis=-1), D.shape[-1]) if isinstance(D, Diagonal) else D
        for D in A.operands
        if isinstance(D, DIAGONAL)
    ]
    return Sum(term, *means) if means else term


def inverse_of_part(part: LinearOperator) -> LinearOperator | None:
    """The inverse, if it was found, and its products are no runs of iterations and not too dear."""
    with recording() as reports:
        M = inverse.inv(part)
    is_good = not have_failed(reports) and not multiplies_by_iteration(M)
    return M if is_good and M.flops <= LARGEST_RATIO * part.flops else None


def preconditioned(A: LinearOperator, part: LinearOperator) -> Any:
    """The method that a preconditioner suits: CG and MINRES need a positive one."""
    if part.properties & A.properties & POSITIVE_SEMIDEFINITE:
        return CG()
    is_positive = part.properties & POSITIVE_SEMIDEFINITE
    return MINRES() if is_positive and A.properties & SELF_ADJOINT else GMRES()


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
    if most == 0 or (most is not None and is_watched):
        return None
    # each of which is a product with A and one with A^H
    lsmr = LSMR(**limits(method, None if most is None else most // 2))
    # Unless a tolerance was asked for, x is to be that of a matrix nearer to A than sqrt(eps) |A|:
    # the error of least squares grows with the square of the condition.
    lsmr = lsmr if lsmr.tol is not None else replace(lsmr, tol=A.xp.eps(A.dtype) ** 0.75)
    work = lambda: expected_work(A, lambda: direct, most, 2.0 * lsmr.typical(*A.shape[-2:]))
    cost = lambda: replace(work(), memory=working_memory(lsmr, A))
    why = lambda: _alternative(direct, most)
    return Choice(lambda: run(lsmr, most), "LSMR", cost, why, like)


def _alternative(direct: Cost, most: int | None) -> str:
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


def attempt(
    A: LinearOperator,
    direct: Callable[[], Cost],
    products: int | None,
    run: Callable[[], Any],
    like: Callable[[], Any],
) -> Choice:
    """The choice of iterations, `products` at most, before a factorisation that takes the work
    `direct()`."""
    A = with_symmetry_of_entries(A)
    part = fast_part(A)
    first = candidates(A)[0] if part is None else preconditioned(A, part)

    def why() -> str:
        known = "nothing is known of A"
        if A.properties & SELF_ADJOINT:
            is_positive = A.properties & POSITIVE_SEMIDEFINITE
            kind = "positive semidefinite" if is_positive else "self-adjoint"
            known = f"A is known to be {kind}"
        if part is not None:
            known += f"; preconditioned by the inverse of {shorten(part._expression())}"
        return f"{known}; {_alternative(direct(), products)}"

    def cost() -> Cost:
        return replace(expected_work(A, direct, products), memory=working_memory(first, A))

    return Choice(run, first.name, cost, why, like)


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
    # which is made of functions, so it comes after them
    from ...preconditioners import as_preconditioner

    if isinstance(method, SVRG) and 0 not in A.shape:
        sampled_terms(A, method)  # an error where there are none
    whole = A.H @ A if method.squares_operator and method.preconditioner is not None else A
    M, x0 = as_preconditioner(method.preconditioner, whole), starting_point(A, method)
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
        count = f"at {A.flops:.2g} flop a product, {products()} products or so"
        return (
            f"asked for; {count}, at most {method.iterations(m, n)} iterations; "
            f"{method.working_vectors(n)} vectors"
        )

    return Choice(run, method.name, cost, why, like)


# Diagonals and inverses are asked for by iterations, and ask for them.
from .. import diagonal
from . import inverse

# Inverses that are not judged, because the residual of a solve with them will be.


@contextlib.contextmanager
def leave_to_residual() -> Iterator[list[LinearOperator]]:
    """Leave out judgements by vectors, and list the operators of which that is true: the caller
    looks at a residual."""
    outer, state.left_out = state.left_out, []
    try:
        yield state.left_out
    finally:
        state.left_out = outer


def is_left_to_residual(A: LinearOperator) -> bool:
    """Whether the caller looks at a residual, so that the inverse of A need not be judged; if so,
    that is noted."""
    if state.left_out is not None:
        state.left_out.append(A)
    return state.left_out is not None
