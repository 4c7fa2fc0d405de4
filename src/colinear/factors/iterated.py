"""A^-1 (or A^+) applied by an iterative method, or by the first of several that does not fail."""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from typing import Any, ClassVar

import numpy as np

from ..autodiff.implicit import Equation, equation
from ..backends import Array, namespace_of, positive_or_one, program
from ..clock import CLOCKS, PRODUCTS, as_part
from ..errors import DtypeError, ShapeError
from ..info import Info, counts, is_detailed, recording, report
from ..methods.iterate import Outcome, Products, described, refined, without_unknowns
from ..methods.loop import NO_MONITOR, Monitor
from ..methods.vectors import column_norms, status_of
from ..operators import Diagonal, LinearOperator, Opaque, Sparse, Sum
from ..operators.autograd import Linearised, make_ready
from ..operators.context import Context, broadcast_batches
from ..operators.shown import assembled
from ..operators.tree import TEST_HOOKS, memo
from ..properties import POSITIVE_SEMIDEFINITE
from ..status import FIRST_FAILURE, Status, failed, state
from .inverse import (
    TURNED,
    adjoint_parts,
    conjugate_parts,
    inverse_context,
    inverse_shape,
    transpose_parts,
)
from .runs import (
    check_inner_failures,
    deliver_for_derivative,
    may_refine,
    outcome_when_run,
    refine_in_double,
    sampled_terms,
)

# A^-1 (or A^+) applied by an iterative method: what an `Inverse` keeps where nothing was factored.


def _solve(self: Any, B: Array, vector: bool) -> Array:
    """A^-1 B; reports how it went."""
    X, info = self.run(B, vector)
    return report(info, X)


def _multiply(self: Any, X: Array) -> Array:
    return self._solve(X, vector=False)


def _multiply_vector(self: Any, x: Array) -> Array:
    return self._solve(x[:, None], vector=True)[..., 0]


class Iterated(LinearOperator):
    """The inverse of A, of which each product is a run of `method`, started at `x0`. Each reports
    how it went.

    `method` is static and holds no arrays; `preconditioner` is an operator M ≈ A^-1, or None. For
    methods of least squares it is the pseudoinverse, and A may be rectangular. Derivatives go
    through A, not through the iterations.
    """

    A: LinearOperator
    preconditioner: LinearOperator | None
    x0: Array | None
    method: Any
    consistent: bool  # whether a solution of A x = b is expected to exist

    _product_is_a_run: ClassVar[bool] = True

    shape, _context = inverse_shape, inverse_context

    def _infer(self) -> int:
        return self.A.properties if self.A.shape[-1] == self.A.shape[-2] else 0

    def _transpose(self) -> LinearOperator:
        return transpose_parts(self._for_both)

    def _adjoint(self) -> LinearOperator:
        return adjoint_parts(self._for_both)

    @property
    def _for_both(self) -> Iterated:
        """It without a start, and with a preconditioner only if its adjoint is one of A^H: not of a
        rectangular A, nor of A^H A."""
        m, n = self.A.shape[-2:]
        M = None if m != n or self.method.squares_operator else self.preconditioner
        return self._replace(preconditioner=M, x0=None)

    def _conj(self) -> LinearOperator:
        return conjugate_parts(self._replace(x0=None))

    _solve, _matmat, _matvec = _solve, _multiply, _multiply_vector

    def run(self, B: Array, vector: bool, rounded: Any = None) -> tuple[Array, Info]:
        """A^-1 B, and how it went. `rounded`: the dtype that the answer will be given in, if it is
        a narrower one. A program of `torch.compile` warns by itself of a failure, unless an Info
        is asked for."""
        xp = namespace_of(B)
        dtype = xp.result_type(self.A.dtype, B.dtype) if not self.A.is_neutral else B.dtype
        # half precision is summed in single
        working = xp.float32 if getattr(dtype, "itemsize", 0) == 2 else dtype
        batch = broadcast_batches(self.A.batch_shape, B.shape[:-2])
        B = xp.astype(xp.broadcast_to(B, (*batch, *B.shape[-2:])), working)
        method = self.method
        is_shown = method.progress or state.display is not None
        watch = Monitor(is_detailed(), method.callback, is_shown, method.name, vector)
        tol = float(method.tolerance(xp, dtype))
        # What is reported inside a loop means nothing outside it; overflow becomes a status, not a
        # warning.
        with (
            recording() as dropped,
            np.errstate(all="ignore") if xp.name == "numpy" else contextlib.nullcontext(),
        ):
            if xp.is_compiling():
                outcome = outcome_when_run(self, B, watch, tol, warns=not watch.record)
                X = outcome.X
            else:
                X, outcome = program(xp.name, _solution, method, watch, tol)(self, B)
            is_seen = not xp.is_traced(outcome.status)
            factor = _extreme_factor(self, B, outcome) if is_seen else None
            if factor is not None:
                X, info = _rescaled(self, factor).run(B, vector, rounded)
                return X * xp.astype(factor, X.dtype), info
            narrow = dtype if rounded is None else rounded
            is_refined = is_seen and narrow == working and may_refine(self, B, tol, outcome)
            if is_refined:
                X, outcome, message = refine_in_double(self, B, X, tol, outcome)
            if narrow != working and not method.least_squares and 0 not in X.shape:
                outcome = _as_rounded(xp, self, X, B, narrow, outcome)
        info = described(
            xp, outcome, method, watch, self.preconditioner is not None, self.A.shape[-1]
        )
        if is_refined:
            info = info.replace(message=f"{message} {info.message}".rstrip())
        info = check_inner_failures(info, self.A, xp.stop_gradient(X), dropped)
        if method.least_squares:  # judged by products with the adjoint
            info = check_inner_failures(info, self.A.H, xp.stop_gradient(B), dropped)
        return X if dtype == working else xp.astype(X, dtype), info

    def attach_derivatives(self, B: Array, X: Array) -> Array:
        """X, which is known to be A^-1 B, with its derivatives: each solve of those is a run."""
        tol = float(self.method.tolerance(namespace_of(B), B.dtype))
        return equation_of(self, NO_MONITOR, tol, lambda *arrays: (X,))(B, self.arrays())

    @property
    def _flops(self) -> float:
        return self.method.typical(*self.A.shape[-2:]) * (
            self.A.flops + 10.0 * max(self.A.shape[-2:])
        )


def _as_rounded(
    xp: Any, inverse: Iterated, X: Array, B: Array, dtype: Any, outcome: Outcome
) -> Outcome:
    """The outcome with the residual of X as it is when rounded to half precision: what is said
    must hold of what is given."""
    tol = inverse.method.tolerance(xp, dtype)
    R = B - _product(inverse.A, B.dtype)(xp.astype(xp.astype(X, dtype), B.dtype))
    size = column_norms(xp, B)
    residual = column_norms(xp, R) / positive_or_one(xp, size)
    lost = (outcome.status == int(Status.SUCCESS)) & xp.logical_not(residual <= tol)
    return outcome._replace(
        status=xp.where(lost, int(Status.STAGNATION), outcome.status), residual=residual
    )


def _extreme_factor(inverse: Iterated, B: Array, outcome: Outcome) -> Array | None:
    """The power of two, (*batch, 1, 1), that brings A to a scale at which squares neither vanish
    nor overflow; None if the run did not fail, or if A is of such a scale already. One more
    product with A, after a failure only."""
    xp, A, method = namespace_of(B), inverse.A, inverse.method
    if 0 in B.shape or method.needs_terms or method.callback is not None:
        return None
    codes = status_of(xp.to_numpy(outcome.status))
    if not (codes >= int(FIRST_FAILURE)).any() or getattr(method, "damping", 0.0) != 0:
        return None
    digits = 1024 if xp.eps(B.dtype) < 1e-10 else 128  # the range of exponents
    limit, power = 2.0 ** (0.3 * digits), 2.0 ** (0.6 * digits // 1)
    if codes.max() == int(Status.NONFINITE) and not _has_entries_beyond(xp, A, limit):
        return None  # a product gave NaN: another would tell nothing
    size = column_norms(xp, B)
    product = (A.H if method.least_squares else A) @ (B / positive_or_one(xp, size)[..., None, :])
    scale = xp.to_numpy(xp.stop_gradient(xp.max(column_norms(xp, product), axis=-1))).astype(float)
    factor = np.where((0 < scale) & (scale < 1 / limit), power, 1.0)
    factor = np.where((limit < scale) & (scale < np.inf), 1 / power, factor)
    if (factor == 1).all():
        return None
    return xp.asarray(factor[..., None, None], dtype=xp.real_dtype(B.dtype), device=xp.device_of(B))


def _has_entries_beyond(xp: Any, A: LinearOperator, limit: float) -> bool:
    leaves = [leaf for leaf in A.arrays() if xp.is_floating(leaf) and 0 not in leaf.shape]
    return any(float(xp.max(xp.abs(xp.stop_gradient(leaf)))) > limit for leaf in leaves)


def _rescaled(inverse: Iterated, factor: Array) -> Iterated:
    """The inverse of factor A, by the same method."""
    A, M, x0 = inverse.A, inverse.preconditioner, inverse.x0
    c = factor[..., 0, 0]
    return inverse._replace(
        A=(c * A)._claim(A.properties),
        preconditioner=None if M is None else ((1 / c) * M)._claim(M.properties),
        x0=None if x0 is None else x0 / (c if x0.ndim == 1 else factor),
    )


def outcome_of(
    inverse: Iterated,
    watch: Monitor,
    tol: float,
    right_side: tuple[Array],
    arrays: tuple[Array, ...] = (),
) -> Outcome:
    """One run, in the framework of its right side, without derivatives; with `arrays` in place of
    those of `inverse`, if there are any."""
    (B,) = right_side
    inverse = inverse.with_arrays(arrays) if arrays else inverse
    A, M, method, xp = inverse.A, inverse.preconditioner, inverse.method, namespace_of(B)
    if 0 in A.shape:
        return without_unknowns(xp, A.shape[-1], B, watch)
    if not xp.is_traced(B):
        B = one_of_each(xp, inverse, B)
    options: dict[str, Any] = {
        "tol": tol,
        "max_iters": method.iterations(*A.shape[-2:]),
        "X0": None if inverse.x0 is None else _start(inverse.x0, A, B, method.name),
        "watch": watch,
    }
    if method.least_squares:
        options["consistent"] = inverse.consistent
    full = products_of(A, M, method, B.dtype)
    if method.precision is None:
        return method.algorithm(xp, full, B, **options)
    single = xp.complex64 if xp.is_complex(B) else xp.float32
    A, M = (_lowered(each, method.precision) for each in (A, M))
    correct = functools.partial(method.algorithm, xp, products_of(A, M, method, single))
    return refined(xp, full, correct, B, single, **options)


def _start(x0: Array, A: LinearOperator, B: Array, name: str) -> Array:
    """`x0` as a block that fits B, or an error that says why it does not."""
    xp = namespace_of(B)
    if xp.is_complex(x0) and not xp.is_complex(B):
        raise DtypeError(
            f"{name}: x0 is complex, and A and b are real. Give x0.real, or make A or b complex."
        )
    X0 = x0[..., None] if x0.ndim == 1 else x0
    expected = (*B.shape[:-2], A.shape[-1], B.shape[-1])
    try:
        fits = np.broadcast_shapes(tuple(X0.shape), expected) == expected
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(
            f"{name}: x0 has the shape {tuple(x0.shape)}, and the answer {expected}; give one "
            "start for each column."
        )
    return xp.astype(X0, B.dtype)


def products_of(A: LinearOperator, M: LinearOperator | None, method: Any, dtype: Any) -> Products:
    terms = sampled_terms(A, method) if method.needs_terms else None
    A, M = make_ready(A), make_ready(M)
    both = method.needs_adjoint or (terms is not None and terms.squared)
    product = (lambda A, dtype: as_part(PRODUCTS, _product(A, dtype))) if CLOCKS else _product
    return Products(
        multiply=product(A, dtype),
        adjoint=product(A.H, dtype) if both else None,
        precondition=None if M is None else product(M, dtype),
        precondition_adjoint=product(M.H, dtype) if both and M is not None else None,
        columns=A.shape[-1],
        terms=terms,
        take_vectors=True,
    )


def _product(A: LinearOperator, dtype: Any) -> Any:
    """A X as a function of blocks or vectors of this dtype."""
    if getattr(A.dtype, "itemsize", 0) == 2:
        return _bounded(A)
    if TEST_HOOKS or A.dtype != dtype:
        return A.__matmul__
    while isinstance(A, Opaque):
        A = A.A
    # The iterates are of the right framework, device and shape: what `@` looks at in each product
    # need not be looked at again, nor in those of the terms of a sum.
    if isinstance(A, Sum) and not A.xp.is_functional:  # JAX compiles terms that are alike as one
        products = [_product(term, dtype) for term in A.operands]
        return lambda X: functools.reduce(operator.add, (product(X) for product in products))
    if isinstance(A, Linearised) and not A.xp.is_functional:
        return _until_assembled(A, dtype)
    block, vector = A._matmat, A._matvec
    if (
        isinstance(A, Sparse)
        and A.backend == "torch"
        and A.data.ndim == 1
        and 0 not in A.shape
        and not A.xp.is_differentiated(A.data)
    ):
        # torch's matrix, made once: that costs a fifth of a product with 10,000 rows
        vector = A.S.__matmul__
    return lambda X: vector(X) if X.ndim == 1 else block(X)


PRODUCTS_UNTIL_ASSEMBLED = 64  # of derivatives: about as many as it takes to assemble a matrix


def _until_assembled(A: Linearised, dtype: Any) -> Any:
    """A X by derivatives and, if there are many products, by the sparse matrix that has them, where
    there is one. At worst that takes twice the time of the better of the two."""
    multiply, count = A.__matmul__, 0

    def product(X: Array) -> Array:
        nonlocal multiply, count
        count += 1
        if count == PRODUCTS_UNTIL_ASSEMBLED:
            S = assembled(A.A)
            multiply = multiply if S is None else _product(S, dtype)
        return multiply(X)

    return product


def _bounded(A: LinearOperator) -> Any:
    """Products of a half-precision operator with vectors of single precision, scaled so that
    nothing overflows (Maddox, Potapczynski and Wilson 2022)."""

    def multiply(X: Array) -> Array:
        xp = namespace_of(X)
        size = xp.max(xp.abs(X), axis=max(-2, -X.ndim), keepdims=True)
        size = positive_or_one(xp, size)
        return xp.astype(A @ (X / size), X.dtype) * size

    return multiply


def _lowered(A: LinearOperator | None, precision: str) -> Any:
    return A if A is None else A.to(dtype=precision if not A.is_complex else "complex64")


def _solution(
    xp: Any, method: Any, watch: Monitor, tol: float, inverse: Iterated, B: Array
) -> tuple[Array, Outcome]:
    """A^-1 B with its derivatives, and how it was found. Nothing of the iterations is kept for
    the derivatives."""
    arrays = inverse.arrays()
    if not xp.is_differentiated(B, *arrays):
        outcome = outcome_of(inverse, watch, tol, (B,))
        return outcome.X, outcome
    if xp.is_functional:  # what is traced comes out as arrays
        first, aux = functools.partial(outcome_of, inverse, watch, tol), 4 + watch.record
        X, *numbers = xp.linear_rule(equation_of(inverse, watch, tol, first, aux), (B,), arrays)
        return X, Outcome(None, *numbers, *(None,) * (5 - aux))
    found: list[Outcome] = []

    def keep(x: tuple[Array], constants: tuple[Array, ...]) -> tuple[Array]:
        found.append(outcome_of(inverse, watch, tol, x, constants))
        return (found[0].X,)

    return equation_of(inverse, watch, tol, keep)(B, arrays), found[0]


def equation_of(
    inverse: Iterated, watch: Monitor, tol: float, first: Any, aux: int = 0
) -> Equation:
    """The rule of B -> A^-1 B. What its derivatives need are more runs, each of which warns if
    it fails."""

    def again(inverse: Iterated, B: Array) -> Array:
        return solve_for_derivative(inverse._replace(x0=None, consistent=False), B, watch, tol)

    return equation(
        inverse, again, least_squares=inverse.method.least_squares, first=first, aux=aux
    )


def solve_for_derivative(
    inverse: Iterated, B: Array, watch: Monitor = NO_MONITOR, tol: float | None = None
) -> Array:
    """A^-1 B as part of a derivative: its failure is warned of at once, as the answer itself is
    there already."""
    xp, method = namespace_of(B), inverse.method
    tol = float(method.tolerance(xp, B.dtype)) if tol is None else tol
    outcome = outcome_of(inverse, watch, tol, (B,))
    if not xp.is_traced(outcome.status) and may_refine(inverse, B, tol, outcome):
        outcome = refine_in_double(inverse, B, outcome.X, tol, outcome)[1]
    info = described(
        xp, outcome, method, watch._replace(vector=False), inverse.preconditioner is not None
    )
    return deliver_for_derivative(info, outcome.X)


def one_of_each(xp: Any, A: LinearOperator, B: Array) -> Array:
    """B, of which torch.func.vmap over operators makes one for each: no loop asks for values, and
    what is written in place has room for all."""
    hidden = [x for x in A.arrays() if 0 not in x.shape and xp.is_traced(x)]
    if not hidden:
        return B
    first = xp.reshape(hidden[0], (-1,))[0]
    return B + xp.astype(xp.where(first == first, 0, 0), B.dtype)


def working_memory(method: Any, A: LinearOperator) -> float:
    """Bytes of the vectors that a method keeps for one right side; half precision is summed in
    single."""
    m, n = A.shape[-2:]
    itemsize = max(4, getattr(A.dtype, "itemsize", 8))
    return float(method.working_vectors(n) * math.prod(A.batch_shape) * max(m, n) * itemsize)


# A^-1 applied by the first of several iterations that does not fail.


# The failures of a method after which another may do better.
_WRONG_KIND = (Status.NOT_POSITIVE_DEFINITE, Status.BREAKDOWN)
_OR_SLOW = (*_WRONG_KIND, Status.STAGNATION, Status.MAX_ITERATIONS)
_HOPEFUL = {"CG": _WRONG_KIND, "MINRES": _WRONG_KIND, "GMRES": _OR_SLOW, "BiCGSTAB": _OR_SLOW}


class Attempts(LinearOperator):
    """The inverse of A by one of several iterations: the next is tried where one fails, and what
    is reported says so."""

    attempts: tuple[Iterated, ...]

    _product_is_a_run: ClassVar[bool] = True

    @property
    def shape(self) -> tuple[int, ...]:
        return self.attempts[0].shape

    @memo
    def _context(self) -> Context:
        return self.attempts[0]._context

    def _infer(self) -> int:
        return self.attempts[0].properties

    _transpose, _adjoint, _conj = TURNED
    _solve, _matmat, _matvec = _solve, _multiply, _multiply_vector

    def run(self, B: Array, vector: bool) -> tuple[Array, Info]:
        """A^-1 B by the first iteration that does not fail, else by the one that came closest."""
        found: list[tuple[Array, Info]] = []
        for each in self.attempts:
            found.append(each.run(B, vector))
            info = found[-1][1]
            hopeful = _HOPEFUL.get(info.method, ())
            if not isinstance(each.preconditioner, Diagonal | None):
                hopeful = _OR_SLOW  # that a part of A is near to it was a guess
            if failed(info._status) is not True or info.status not in hopeful:
                break  # it worked, nobody can know yet, or the next would do no better
        infos = [info for _, info in found]
        if len(found) == 1:
            return found[0]
        words = [f"{info.method} failed ({info.status.name})" for info in infos if info.failed]
        best, info = (
            found[-1]
            if not infos[-1].failed
            else min(found, key=lambda each: largest(each[1].residual))
        )
        message = "; ".join([*words, f"{info.method} gave the answer"])
        # That CG was tried on what nobody called definite is no promise broken.
        guessed = (
            infos[0].method == "CG"
            and not self.properties & POSITIVE_SEMIDEFINITE
            and len(infos) == 2
        )
        # nor has one that was stopped given the answer
        is_kept = info.failed or guessed or info.status is Status.STOPPED
        return best, info.replace(
            status=info.status if is_kept else Status.FELL_BACK,
            message=message,
            **counts(infos),
        )

    @property
    def _flops(self) -> float:
        return self.attempts[0].flops


def largest(residual: Any) -> float:
    """The largest of the numbers of all columns; infinity stands for NaN."""
    values = namespace_of(residual).to_numpy(residual)
    worst = float(values.max(initial=0))
    return worst if math.isfinite(worst) else math.inf
