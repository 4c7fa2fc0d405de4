"""What `Auto` tries before a factorisation, in the order of cost, and when it gives a try up.

- An operator near A that a rule inverts preconditions: the fast term of a sum, with the mean of the
  diagonals beside it, the Kronecker product nearest to a sum of them, the circulant nearest to a
  Toeplitz matrix or to a convolution with zeros around its grid, the blocks on the diagonal; of a
  kernel plus a diagonal a part of the Cholesky factor.
- CG on a sparse system goes on while it promises to end before its rivals, multigrid and
  elimination, would (`Patience`).
- GMRES on a sparse system that is too large to be eliminated is followed by GMRES with incomplete
  factors.

Nothing is trusted: the true residual decides, and each try starts at the best that was found before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...backends import Array
from ...dispatch import Choice
from ...errors import MethodError
from ...factors.iterated import Attempts, largest
from ...factors.runs import multiplies_by_iteration
from ...info import Info, recording, report, total
from ...methods import CG, GMRES, MINRES, Method
from ...operators import (
    Banded,
    Block,
    BlockDiag,
    Circulant,
    Convolution,
    Diagonal,
    Identity,
    Kronecker,
    KroneckerSum,
    LinearOperator,
    Scaled,
    ScaledIdentity,
    Sparse,
    Sum,
    Toeplitz,
    Tridiagonal,
)
from ...operators.diagonal import scalar_of
from ...operators.kronecker import kronecker_terms
from ...operators.printing import shorten
from ...operators.rewrites import DEFINITE
from ...operators.shown import with_symmetry_of_entries
from ...operators.sparse_algebra import DIAGONAL, SHIFT
from ...properties import POSITIVE_DEFINITE, POSITIVE_SEMIDEFINITE, PSD, SELF_ADJOINT
from ...status import Status, failed
from ..common import have_failed, in_context, is_half
from .auto import (
    can_be_watched,
    candidates,
    cost_of_iteration,
    describe_factorisation,
    is_elliptic,
    is_general,
    iterated,
    jacobi,
    limits,
    looks_definite,
    multigrid_is_installed,
    preconditioners,
)
from .cost import MEMORY, SHARE, Work, affordable_products, iterated_work, prefers_iteration

# Operators near A of families that rules invert.

FAST = Kronecker | KroneckerSum | Circulant | Convolution | Tridiagonal | Banded | BlockDiag
LARGEST_FACTORS = 1 << 22  # entries of all factors that are looked at for the nearest product
SMALLEST_BLOCK = 64  # rows of a block that is worth a step of Python in each product
SWEEPS = 20  # over the factors; with two factors each is a step of the power method


def near_operators(A: Any) -> Iterator[LinearOperator]:
    """Operators near A of families with a cheap inverse, the nearest first; none near a batch."""
    if A.batch_shape:
        return
    if isinstance(A, Block):
        yield from _blocks_on_diagonal(A)
    if not isinstance(A, Sum):
        return
    product = nearest_kronecker(A)
    if product is not None:
        yield product
    for term in A.operands:
        near = fast_form(term)
        if near is not None:
            yield _with_mean(near, A)
            yield near
            return


def _blocks_on_diagonal(A: Any) -> Iterator[LinearOperator]:
    """The blocks on the diagonal of a grid, where these are square and none is most of A: the
    inverses of all cost a quarter of that of A, or less."""
    blocks = [row[i] for i, row in enumerate(A.blocks) if i < len(row)]
    if len(blocks) == len(A.blocks) == len(A.blocks[0]) and all(
        B.shape[-2] == B.shape[-1] and SMALLEST_BLOCK <= B.shape[-1] <= A.shape[-1] / 2
        for B in blocks
    ):
        yield BlockDiag(*(B._claim(A.properties & DEFINITE) for B in blocks))


def fast_form(A: Any) -> LinearOperator | None:
    """A itself if its family has a cheap inverse, or the circulant C nearest to it (T. Chan 1988),
    which is positive where A is: its eigenvalues are f^H A f, with f of the Fourier transform."""
    if isinstance(A, Scaled):
        inner = fast_form(A.A)
        return None if inner is None else Scaled(A.scalar, inner)
    if isinstance(A, Toeplitz) and A.shape[-1] == A.shape[-2]:
        xp, n = A.xp, A.shape[-1]
        row = xp.conj(A.col) if A.row is None else A.row
        back = xp.concat([row[..., :1], xp.flip(row[..., 1:], axis=-1)], axis=-1)  # t_(k - n)
        weight = _shares(A, np.arange(n), n)
        near: LinearOperator = Circulant._of(weight * A.col + (1 - weight) * back)
        return near._claim(A.properties & DEFINITE)
    if isinstance(A, Convolution) and A.boundary == "zero":
        kernel, origin = A._fitted()
        for axis, (o, n) in enumerate(zip(origin, A.grid), -len(A.grid)):
            share = _shares(A, np.abs(np.arange(kernel.shape[axis]) - o), n)
            kernel = kernel * A.xp.reshape(share, (-1,) + (1,) * (-1 - axis))
        near = Convolution._of(kernel, A.grid, "wrap", tuple(origin))
        return near._claim(A.properties & DEFINITE)
    return A if isinstance(A, FAST) else None


def _shares(A: LinearOperator, k: Any, n: int) -> Array:
    """(n - k) / n: in how much of its periodic diagonal an entry k off the main one stands."""
    dtype = A.xp.real_dtype(A.dtype)
    return A.xp.asarray((n - k) / n, dtype=dtype, device=A._context.device)


def _with_mean(term: LinearOperator, A: Any) -> LinearOperator:
    """The term, and the mean of the diagonals in the sum A times I."""
    xp = A.xp
    means = [
        ScaledIdentity(xp.mean(D.d, axis=-1), D.shape[-1]) if isinstance(D, Diagonal) else D
        for D in A.operands
        if isinstance(D, DIAGONAL)
    ]
    return Sum(term, *means) if means else term


def nearest_kronecker(A: Any) -> LinearOperator | None:
    """The Kronecker product X_1 ⊗ ... ⊗ X_d nearest to Σ_i c_i F_i1 ⊗ ... ⊗ F_id (Van Loan and
    Pitsianis 1993), in the Frobenius norm; None where A has no two such terms.

    X_k = Σ_i u_ki F_ik, and with G_k[i, j] = <F_ik, F_jk> the best X_k beside the others has
    u_ki = c_i Π_(l≠k) (G_l u_l)_i / (u_l^H G_l u_l). Of positive factors all numbers are positive,
    and so are the X_k.
    """
    xp, terms = A.xp, kronecker_terms(A)
    sizes = [[F.shape for F in factors] for _, factors in terms]
    if len(terms) < 2 or any(each != sizes[0] for each in sizes):
        return None
    entries = len(terms) * sum(math.prod(shape) for shape in sizes[0])
    is_unseen = is_half(xp, A.dtype) or any(map(xp.is_traced, A.arrays()))
    if entries > LARGEST_FACTORS or any(m != n for m, n in sizes[0]) or is_unseen:
        return None
    shifts = [D for D in A.operands if isinstance(D, SHIFT)]
    terms += [(scalar_of(D), tuple(Identity(n) for n, _ in sizes[0])) for D in shifts]
    c = np.asarray([_number(xp, scalar) for scalar, _ in terms])
    G = [_gram(xp, A, factors) for factors in zip(*(factors for _, factors in terms))]
    is_positive = (
        np.isrealobj(c)
        and (c >= 0).all()
        and all(F.properties & POSITIVE_SEMIDEFINITE for _, factors in terms for F in factors)
    )
    G = [each.real for each in G] if is_positive else G
    u = [np.ones(len(c), c.dtype) for _ in G]
    with np.errstate(all="ignore"):
        for _ in range(SWEEPS):
            for k in range(len(u)):
                others = [
                    (G[j] @ u[j]) / (u[j].conj() @ G[j] @ u[j]) for j in range(len(u)) if j != k
                ]
                u[k] = c * np.prod(others, axis=0)
    if not all(np.isfinite(each).all() and np.any(each) for each in u):
        return None
    return Kronecker(
        *(
            Sum(*(Scaled(x.item(), term[1][k]) for x, term in zip(u[k], terms) if x != 0))._claim(
                POSITIVE_SEMIDEFINITE if is_positive else 0
            )
            for k in range(len(u))
        )
    )


def _number(xp: Any, c: Any) -> Any:
    """A scalar of a multiple as a number."""
    return c if isinstance(c, int | float | complex) else xp.to_numpy(xp.stop_gradient(c)).item()


def _gram(xp: Any, A: LinearOperator, factors: Any) -> Any:
    """The inner products <F, F'> = tr(F^H F') of operators of one shape."""
    parts = [xp.to_numpy(xp.stop_gradient(in_context(F, A)._dense())).reshape(-1) for F in factors]
    return np.conj(parts) @ np.transpose(parts)


FEWEST_FAST_STEPS = 15  # that are worth a try
FAST_STEPS = 150  # after which it was not near enough to A, and others are tried
LARGEST_RATIO = 1000.0  # of the flops of a preconditioner to those of A


class Near(NamedTuple):
    """A preconditioner that is worth its cost: in words, whether it is known to be positive, and
    how it is made (None where that fails)."""

    words: str
    is_positive: bool
    make: Callable[[], LinearOperator | None]


def nearest(A: LinearOperator) -> Near | None:
    """The preconditioner by the operator nearest to A that a rule inverts, or by a part of the
    Cholesky factor of a kernel; None where there is none. Under tracing, where nothing else could
    be tried, only one that is known to be positive definite."""
    makers = preconditioners()
    is_traced = any(map(A.xp.is_traced, A.arrays()))
    for part in near_operators(A):
        is_known = not inverse.inv.find(part).is_base
        if is_known and (not is_traced or part.properties & POSITIVE_DEFINITE):
            words = f"the inverse of {shorten(part._expression())}"
            is_positive = bool(part.properties & POSITIVE_SEMIDEFINITE)
            return Near(words, is_positive, partial(inverse_of_part, part.detach()))
    K, D = makers.base.split_shift(A)
    if D is None or not A.properties & POSITIVE_SEMIDEFINITE or not makers.base.reads_columns(K):
        return None
    # To read and orthogonalise so many columns costs as much as a product or two.
    factory = makers.PivotedCholesky(min(A.shape[-1], round(2 * math.sqrt(A.shape[-1]))))
    return Near(f"PivotedCholesky({factory.rank})", True, partial(factory, A.detach()))


def inverse_of_part(part: LinearOperator) -> LinearOperator | None:
    """The inverse, if it was found, and its products are no runs of iterations and not too dear."""
    with recording() as reports:
        M = inverse.inv(part)
    is_good = not have_failed(reports) and not multiplies_by_iteration(M)
    return M if is_good and M.flops <= LARGEST_RATIO * part.flops else None


def preconditioned(A: LinearOperator, near: Near) -> Any:
    """The method that a preconditioner suits: CG and MINRES need a positive one."""
    if near.is_positive and A.properties & POSITIVE_SEMIDEFINITE:
        return CG()
    return MINRES() if near.is_positive and A.properties & SELF_ADJOINT else GMRES()


def attempts(
    A: LinearOperator,
    method: Method | None,
    most: int | None = None,
    first: int | None = None,
    callback: Any = None,
    x0: Array | None = None,
) -> Attempts:
    """A^-1 by iterations, the next where one fails; of at most `most` steps each, and of the
    `first` ones only. What is near A and easy to invert preconditions, first of all."""
    options = {**limits(method, most), "callback": callback, "x0": x0}
    near, runs = nearest(A), []
    M = None if near is None else near.make()
    if near is not None and M is not None:
        chosen = replace(preconditioned(A, near), preconditioner=M, **options)
        if options["max_iters"] is None and not any(map(A.xp.is_traced, A.arrays())):
            chosen = replace(chosen, max_iters=FAST_STEPS)
        runs.append(iterated(A, chosen))
    M = jacobi(A)
    for candidate in candidates(A)[:first]:
        preconditioner = None if candidate.least_squares else M
        chosen = replace(candidate, preconditioner=preconditioner, **options)
        runs.append(iterated(A, chosen))
    return Attempts._of(tuple(runs))


def attempt(
    A: LinearOperator,
    direct: Callable[[], Work],
    products: int | None,
    run: Callable[[], Any],
    like: Callable[[], Any],
) -> Choice:
    """The choice of iterations, `products` at most, before a factorisation that takes the work
    `direct()`."""
    A = with_symmetry_of_entries(A)
    near = nearest(A)
    first = candidates(A)[0] if near is None else preconditioned(A, near)

    def why() -> str:
        known = "nothing is known of A"
        if A.properties & SELF_ADJOINT:
            is_positive = A.properties & POSITIVE_SEMIDEFINITE
            kind = "positive semidefinite" if is_positive else "self-adjoint"
            known = f"A is known to be {kind}"
        if near is not None:
            known += f"; preconditioned by {near.words}"
        if products == TRIAL and is_elliptic(A):
            steps = f"CG with AMG is cheaper than {MULTIGRID_SETUP + MULTIGRID_RUN:.0f} steps"
            is_there = multigrid_is_installed()
            known += f"; {steps if is_there else 'AMG is left out: PyAMG is not installed'}"
        elif products is None and is_general(A):
            known += f"; GMRES with ILU follows after {ILU_AFTER} steps"
        return f"{known}; {describe_factorisation(direct(), products)}"

    return Choice(run, first.name, lambda: cost_of_iteration(A, products, first), why, like)


# Iterations before a factorisation.

LOOK_EVERY = 12  # steps, between two forecasts
MOST_FLOPS_TO_FORM = 1e11  # a matrix in a program, where nothing can be tried before
QUICKENING = 1.5  # by which CG falls faster in the end than in the beginning
TRIAL = 24  # steps that cost less than to look at how a sparse matrix would fill in
SPARSE_TRIAL = 1000  # rows from which that is so


def products_to_try(A: LinearOperator, direct: Callable[[], Work], B: Array) -> int | None:
    """How many products with A are tried before a factorisation that takes the work `direct()`;
    None: any number."""
    A = with_symmetry_of_entries(A)
    # nothing could be tried again: the guess decides
    if any(A.xp.is_traced(x) for x in (B, *A.arrays())):
        is_dear = A.dense_flops > MOST_FLOPS_TO_FORM and not isinstance(A, Sparse)
        return None if is_dear or prefers_iteration(A, direct(), B.shape[-1]) else 0
    is_large = isinstance(A, Sparse) and A.shape[-1] >= SPARSE_TRIAL
    least = None if nearest(A) is None else FEWEST_FAST_STEPS
    most = affordable_products(A, direct(), B.shape[-1], least)
    return TRIAL if most == 0 and is_large and looks_definite(A) else most


# A cycle of multigrid beside steps of CG: much the same ratios were measured on grids of 4000 to
# 250 000 points, in two and in three dimensions.
MULTIGRID_SETUP, MULTIGRID_RUN = 250.0, 150.0  # steps of CG that it costs to coarsen, to converge
MULTIGRID_STEP = 7.0  # steps of CG that one with a cycle costs
ILU_AFTER = 300  # steps of GMRES, which cost about as much as these incomplete factors
COARSE_ILU = 1e-2, 10.0  # what is dropped, and the fill


class Patience:
    """A callback that lets an iteration go on as long as it may end before its rivals would.

    The first `least` steps are free, as is a part of the work of the cheapest rival. Then the steps
    that are still to come are forecast by those that were made, and by the last of them: each is
    taken to lower the residual by the same factor. `rivals()`, what each of them costs in such
    steps, is asked for when the free steps were not enough. `start`: the residual to begin with.
    """

    def __init__(
        self, rivals: Callable[[], dict[str, float]], tol: float, least: int, start: float = 1.0
    ):
        self.rivals, self.tol, self.free = rivals, tol, least
        self.rival, self.most = "", math.inf  # the cheapest, and its cost
        self.start = self.before = start  # the residual at first, and at the last look

    def __call__(self, progress: Any) -> bool:
        made = progress.iteration
        if made + LOOK_EVERY < self.free or made % LOOK_EVERY:
            return False
        worst = float(progress.residual.max())
        before, self.before = self.before, worst
        if made >= self.free and not self.rival:
            costs = self.rivals()
            self.rival = min(costs, key=costs.__getitem__)
            self.most = costs[self.rival]
            self.free = max(self.free, int(self.most / SHARE) if self.most < math.inf else made)
        if made < self.free or self.most == math.inf or not self.tol < worst < math.inf:
            return False
        left = math.log(worst / self.tol)  # of the fall that is needed
        rates = math.log(self.start / worst) / made, math.log(before / worst) / LOOK_EVERY
        coming = left / (QUICKENING * max(*rates, 1e-9))
        # Near the end it goes on, unless a factorisation, which is more accurate, costs the same.
        is_near = self.rival == "AMG" and coming <= self.most / 2
        return made + coming > self.most and not is_near


def rivals_of(
    A: LinearOperator, direct: Callable[[], Work], columns: int, step: float, multigrid: bool
) -> dict[str, float]:
    """What else would solve a system with A, and how many steps it costs as much as; a step costs
    as much as `step` ones of CG."""
    work = direct()
    factored = work.work / (step * iterated_work(A, columns, 1).work)
    found = {"a factorisation": math.inf if work.memory > MEMORY else factored}
    return {"AMG": MULTIGRID_SETUP / columns + MULTIGRID_RUN, **found} if multigrid else found


class Trials:
    """The iterations that are tried on one system: each starts at the best that was found before,
    and what is said of the answer names them all.

    `is_held`: derivatives are not recorded in the iterations, but attached to what they find.
    """

    def __init__(self, s: Any, A: LinearOperator, is_held: bool):
        self.system, self.own, self.A, self.B = s, A, A, s.B
        self.is_held = is_held and A.xp.is_differentiated(s.B, *A.arrays())
        if self.is_held:
            self.A, self.B = A.detach(), A.xp.stop_gradient(s.B)
        self.start, self.residual = None, 1.0
        self.infos: list[Info] = []
        self.words: list[str] = []

    def run(self, tried: Attempts, words: str = "") -> bool:
        """Whether these attempts solve it. `words`: what they are preconditioned by."""
        X, info = tried.run(self.B, self.system.is_vector)
        self.tried, self.X = tried, X
        self.infos.append(info)
        self.words.append(f"{info.method} with {words}" if words else info.method)
        residual = largest(info.residual)
        if residual < self.residual:
            self.start, self.residual = X, residual
        return info.status is not Status.STOPPED and failed(info._status) is False

    def run_with(self, method: Any, make: Callable[[Any], LinearOperator], words: str) -> bool:
        """Whether the method solves it with what `make(A)` gives as preconditioner."""
        try:
            M = make(self.A)
        except (MethodError, ValueError, ArithmeticError):  # A is not what it is made for
            return False
        options = limits(self.system.method, FAST_STEPS)
        chosen = replace(method, preconditioner=M, x0=self.start, **options)
        return self.run(Attempts._of((iterated(self.A, chosen),)), words)

    def answer(self) -> tuple[Array, Info]:
        """What the last of them found, with its derivatives, and how it went."""
        s, X, info = self.system, self.X, self.infos[-1]
        if self.is_held:
            used = next(each for each in self.tried.attempts if each.method.name == info.method)
            again = replace(used.method, callback=None, **limits(s.method))
            X = used._replace(A=self.own, x0=None, method=again).attach_derivatives(s.B, X)
        if len(self.infos) == 1:
            return X, info
        message = f"{self.dropped(-1)}; {self.words[-1]} gave the answer"
        return X, info.replace(message=message, **self.counts())

    def dropped(self, end: int | None = None) -> str:
        """What was tried, how far it came and how it ended."""
        return "; ".join(
            f"{words} was dropped ({info.status.name}) at the residual {largest(info.residual):.1e}"
            f" after {info.iterations} steps"
            for words, info in zip(self.words[:end], self.infos[:end])
        )

    def counts(self) -> dict[str, Any]:
        """The iterations and products of all of them."""
        names = "iterations", "matvecs"
        return {name: total(getattr(info, name) for info in self.infos) for name in names}


def solve_by_trial(
    s: Any, most: int | None, direct: Callable[[], Work]
) -> tuple[Array, Info] | None:
    """A^-1 B of the system `s` by iterations, of at most so many products, or more where they will
    be cheaper than the factorisation; None where that does better."""
    A, columns = with_symmetry_of_entries(s.A), s.B.shape[-1]
    if most is None and not is_general(A):
        return attempts(A, s.method).run(s.B, s.is_vector)
    is_watched = can_be_watched(A, s.B)
    trials = Trials(s, A, is_watched)
    A, again = trials.A, partial(attempts, trials.A, s.method)
    if most is None:  # the factors of A would not fit: incomplete ones may
        incomplete = preconditioners().ILU(*COARSE_ILU)
        is_solved = trials.run(again(ILU_AFTER, 1)) or trials.run_with(GMRES(), incomplete, "ILU")
        if not is_solved:
            trials.run(again(x0=trials.start))
        return trials.answer()
    only = 2 if A.properties & POSITIVE_SEMIDEFINITE and most != TRIAL else 1
    if not is_watched:
        is_solved = trials.run(again(most, only))
    else:
        rivals = partial(rivals_of, A, direct, columns)
        is_coarsened = is_elliptic(A) and multigrid_is_installed()
        patience = Patience(partial(rivals, 1.0, is_coarsened), s.tol, most)
        is_solved = trials.run(again(None, only, patience))
        if not is_solved and patience.rival == "AMG":
            patience = Patience(
                partial(rivals, MULTIGRID_STEP, False), s.tol, LOOK_EVERY, trials.residual
            )
            multigrid = lambda A: preconditioners().AMG()(PSD(A))
            is_solved = trials.run_with(CG(callback=patience), multigrid, "AMG")
        if not is_solved and most == TRIAL and affordable_products(A, direct(), columns) is None:
            trials.run(again(x0=trials.start))  # which no factorisation can replace
            is_solved = True
    if is_solved or (most != TRIAL and trials.infos[-1].status is Status.NONFINITE):
        return trials.answer()
    report(Info(function="trial", message=trials.dropped(), **trials.counts()))
    return None


# Diagonals and inverses are asked for by iterations, and ask for them.
from . import inverse
