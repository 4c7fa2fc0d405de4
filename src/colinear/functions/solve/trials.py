"""What `Auto` tries before a factorisation, in the order of cost, and when it gives a try up.

- An operator near A that a rule inverts preconditions (near.py).
- CG on a sparse system goes on while it promises to end before its rivals, multigrid and
  elimination, would (`Patience`).
- GMRES on a sparse system that is too large to be eliminated is followed by GMRES with incomplete
  factors.

Nothing is trusted: the true residual decides, and each try starts at the best that was found before.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ...backends import Array
from ...dispatch import Choice, Cost
from ...errors import MethodError
from ...factors.iterated import Attempts, largest, working_memory
from ...info import Info, counts, report
from ...methods import CG, GMRES, Method
from ...operators import LinearOperator, Sparse
from ...operators.context import has_traced
from ...operators.shown import with_symmetry_of_entries
from ...properties import POSITIVE_SEMIDEFINITE, PSD, SELF_ADJOINT
from ...status import Status, failed
from .auto import (
    can_be_watched,
    candidates,
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
from .cost import (
    SHARE,
    affordable_products,
    expected_work,
    iterated_work,
    memory_to_form,
    prefers_iteration,
)
from .near import nearest, preconditioned

FEWEST_FAST_STEPS = 15  # that are worth a try
FAST_STEPS = 150  # after which it was not near enough to A, and others are tried


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
        if options["max_iters"] is None and not has_traced(A):
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
    direct: Callable[[], Cost],
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

    def cost() -> Cost:
        return replace(expected_work(A, direct, products), memory=working_memory(first, A))

    return Choice(run, first.name, cost, why, like)


# Iterations before a factorisation.

LOOK_EVERY = 12  # steps, between two forecasts
MOST_FLOPS_TO_FORM = 1e11  # a matrix in a program, where nothing can be tried before
QUICKENING = 1.5  # by which CG falls faster in the end than in the beginning
TRIAL = 24  # steps that cost less than to look at how a sparse matrix would fill in
SPARSE_TRIAL = 400  # rows from which that is so


def products_to_try(A: LinearOperator, direct: Callable[[], Cost], B: Array) -> int | None:
    """How many products with A are tried before a factorisation that takes the work `direct()`;
    None: any number."""
    A = with_symmetry_of_entries(A)
    # nothing could be tried again: the guess decides
    if A.xp.is_traced(B) or has_traced(A):
        is_dear = A.dense_flops > MOST_FLOPS_TO_FORM and not isinstance(A, Sparse)
        return None if is_dear or prefers_iteration(A, direct, B.shape[-1]) else 0
    is_large = isinstance(A, Sparse) and A.shape[-1] >= SPARSE_TRIAL
    least = None if nearest(A) is None else FEWEST_FAST_STEPS
    most = affordable_products(A, direct, B.shape[-1], least)
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

    is_sparing = True

    def __init__(
        self, rivals: Callable[[], dict[str, float]], tol: float, least: int, start: float = 1.0
    ):
        self.rivals, self.tol, self.free = rivals, tol, least
        self.rival, self.most = "", math.inf  # the cheapest, and its cost
        self.start = self.before = start  # the residual at first, and at the last look
        self.last = 0  # the step of the last look

    def __call__(self, progress: Any) -> bool:
        made, last = progress.iteration, self.last
        if made + LOOK_EVERY < self.free:
            self.last = made
            return False
        if made % LOOK_EVERY and made - last <= LOOK_EVERY:  # a device is looked at more rarely
            return False
        worst = float(progress.residual.max())
        before, self.before, self.last = self.before, worst, made
        if made >= self.free and not self.rival:
            costs = self.rivals()
            self.rival = min(costs, key=costs.__getitem__)
            self.most = costs[self.rival]
            self.free = max(self.free, int(self.most / SHARE) if self.most < math.inf else made)
        if made < self.free or self.most == math.inf or not self.tol < worst < math.inf:
            return False
        left = math.log(worst / self.tol)  # of the fall that is needed
        rates = math.log(self.start / worst) / made, math.log(before / worst) / (made - last)
        coming = left / (QUICKENING * max(*rates, 1e-9))
        # Near the end it goes on, unless a factorisation, which is more accurate, costs the same.
        is_near = self.rival == "AMG" and coming <= self.most / 2
        return made + coming > self.most and not is_near


def rivals_of(
    A: LinearOperator, direct: Callable[[], Cost], columns: int, step: float, multigrid: bool
) -> dict[str, float]:
    """What else would solve a system with A, and how many steps it costs as much as; a step costs
    as much as `step` ones of CG."""
    work = direct()
    factored = work.seconds / (step * iterated_work(A, columns, 1).seconds)
    found = {"a factorisation": math.inf if work.memory > memory_to_form(A) else factored}
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
        return X, info.replace(message=message, **counts(self.infos))

    def dropped(self, end: int | None = None) -> str:
        """What was tried, how far it came and how it ended."""
        return "; ".join(
            f"{words} was dropped ({info.status.name}) at the residual {largest(info.residual):.1e}"
            f" after {info.iterations} steps"
            for words, info in zip(self.words[:end], self.infos[:end])
        )


def solve_by_trial(
    s: Any, most: int | None, direct: Callable[[], Cost]
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
        if not is_solved and most == TRIAL and affordable_products(A, direct, columns) is None:
            trials.run(again(x0=trials.start))  # which no factorisation can replace
            is_solved = True
    if is_solved or (most != TRIAL and trials.infos[-1].status is Status.NONFINITE):
        return trials.answer()
    report(Info(function="trial", message=trials.dropped(), **counts(trials.infos)))
    return None
