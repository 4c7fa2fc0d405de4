"""A^-1 (or A^+) applied by an iterative method: what an `Inverse` keeps where nothing was factored."""

from __future__ import annotations

import functools
import math
from typing import Any

from ..backends import Array, namespace_of
from ..info import Detailed, Info, MethodError, Status, failed, recording, report, state, total
from ..methods.iteration import PRECONDITIONER, Outcome, Products, Watch
from ..methods.svrg import Terms
from ..properties import POSITIVE_SEMIDEFINITE
from .base import LinearOperator
from .context import Context, broadcast_batches
from .host_factors import refined
from .memo import memo
from .product import Product
from .terms import NOT_A_SUM, minibatch, term_count


class Iterated(LinearOperator):
    """The inverse of A, of which each product is a run of `method`, started at `x0`. Each reports how it went.

    `method` is static and holds no arrays; `preconditioner` is an operator M ≈ A^-1, or None. For methods of least squares it is the
    pseudoinverse, and A may be rectangular. Derivatives go through A, not through the iterations.
    """

    A: LinearOperator
    preconditioner: LinearOperator | None
    x0: Array | None
    method: Any
    consistent: bool  # whether a solution of A x = b is expected to exist

    @property
    def shape(self) -> tuple[int, ...]:
        *batch, m, n = self.A.shape
        return (*batch, n, m)

    @memo
    def _context(self) -> Context:
        return self.A._context

    def _infer(self) -> int:
        return self.A.properties if self.A.shape[-1] == self.A.shape[-2] else 0

    def _transpose(self) -> LinearOperator:
        M = self.preconditioner
        return Iterated._of(self.A.T, None if M is None else M.T, None, self.method, self.consistent)

    def _adjoint(self) -> LinearOperator:
        M = self.preconditioner
        return Iterated._of(self.A.H, None if M is None else M.H, None, self.method, self.consistent)

    def _conj(self) -> LinearOperator:
        M = self.preconditioner
        return Iterated._of(self.A.conj(), None if M is None else M.conj(), None, self.method, self.consistent)

    def _matmat(self, X: Array) -> Array:
        return self.solve(X, vector=False)

    def _matvec(self, x: Array) -> Array:
        return self.solve(x[:, None], vector=True)[..., 0]

    def solve(self, B: Array, vector: bool) -> Array:
        """A^-1 B; reports how it went."""
        X, told = self.run(B, vector)
        for info in told:
            report(info)
        return X

    def run(self, B: Array, vector: bool) -> tuple[Array, list[Info]]:
        """A^-1 B, and how it went."""
        xp = namespace_of(B)
        dtype = xp.result_type(self.A.dtype, B.dtype) if not self.A.is_neutral else B.dtype
        working = xp.float32 if getattr(dtype, "itemsize", 0) == 2 else dtype  # half precision is summed in single
        batch = broadcast_batches(self.A.batch_shape, B.shape[:-2])
        B = xp.astype(xp.broadcast_to(B, (*batch, *B.shape[-2:])), working)
        method = self.method
        watch = Watch(type(state.current) is Detailed, method.callback, method.progress, method.name, vector)
        tol = float(method.tolerance(xp, dtype))
        found: list[Outcome] = []
        with recording():  # what the preconditioner reports inside a loop means nothing outside it
            if xp.name == "jax":
                X, outcome = _compiled(method, watch, tol)(self, B)
                found.append(outcome)
            else:
                X = _differentiable(self, B, watch, tol, found)
        told = [described(xp, outcome, method, watch, self.A.shape[-1]) for outcome in found[:1]]
        if len(found) > 1 and told:  # refined for the sake of derivatives
            total = sum(outcome.matvecs for outcome in found)
            told = [told[0].replace(matvecs=total)]
        return X if dtype == working else xp.astype(X, dtype), told

    @property
    def _flops(self) -> float:
        return self.method.typical(*self.A.shape[-2:]) * (self.A.flops + 10.0 * max(self.A.shape[-2:]))


# The failures of a method after which another may do better.
_WRONG_KIND = (Status.NOT_POSITIVE_DEFINITE, Status.BREAKDOWN)
_SLOW = (Status.STAGNATION, Status.MAX_ITERATIONS)
_HOPEFUL = {"CG": _WRONG_KIND, "MINRES": _WRONG_KIND, "GMRES": (*_WRONG_KIND, *_SLOW), "BiCGSTAB": (*_WRONG_KIND, *_SLOW)}


class Attempts(LinearOperator):
    """The inverse of A by one of several iterations: the next is tried where one fails, and what is reported says so."""

    attempts: tuple[Iterated, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.attempts[0].shape

    @memo
    def _context(self) -> Context:
        return self.attempts[0]._context

    def _infer(self) -> int:
        return self.attempts[0].properties

    def _transpose(self) -> LinearOperator:
        return Attempts._of(tuple(each.T for each in self.attempts))

    def _adjoint(self) -> LinearOperator:
        return Attempts._of(tuple(each.H for each in self.attempts))

    def _conj(self) -> LinearOperator:
        return Attempts._of(tuple(each.conj() for each in self.attempts))

    def _matmat(self, X: Array) -> Array:
        return self.solve(X, vector=False)

    def _matvec(self, x: Array) -> Array:
        return self.solve(x[:, None], vector=True)[..., 0]

    def solve(self, B: Array, vector: bool) -> Array:
        """A^-1 B; reports how it went."""
        X, info = self.run(B, vector)
        report(info)
        return X

    def run(self, B: Array, vector: bool) -> tuple[Array, Info]:
        """A^-1 B by the first iteration that does not fail, else by the one that came closest."""
        found: list[tuple[Array, Info]] = []
        for each in self.attempts:
            X, told = each.run(B, vector)
            found.append((X, told[0]))
            if failed(told[0]._status) is not True or told[0].status not in _HOPEFUL.get(told[0].method, ()):
                break  # it worked, nobody can know yet, or the next would do no better
        infos = [info for _, info in found]
        if len(found) == 1:
            return found[0]
        words = [f"{info.method} failed ({info.status.name})" for info in infos if info.failed]
        best, info = found[-1] if not infos[-1].failed else min(found, key=lambda each: _largest(each[1].residual))
        message = "; ".join([*words, f"{info.method} gave the answer"])
        status = info.status if info.failed else Status.FELL_BACK
        counts = {"iterations": total(i.iterations for i in infos), "matvecs": total(i.matvecs for i in infos)}
        return best, info.replace(status=status, message=message, **counts)

    @property
    def _flops(self) -> float:
        return self.attempts[0].flops


def _largest(residual: Array) -> float:
    values = namespace_of(residual).to_numpy(residual)
    worst = float(values.max(initial=0))
    return worst if math.isfinite(worst) else math.inf


def outcome_of(inverse: Iterated, B: Array, watch: Watch, tol: float) -> Outcome:
    """One run, in the framework of B, without derivatives."""
    A, M, method, xp = inverse.A, inverse.preconditioner, inverse.method, namespace_of(B)
    low = None
    if method.precision is not None:
        low = _products(_lowered(A, method.precision), None if M is None else _lowered(M, method.precision), method)
    X0 = inverse.x0
    if X0 is not None:
        X0 = xp.astype(X0[..., None] if X0.ndim == 1 else X0, B.dtype)
    m, n = A.shape[-2:]
    full = _products(A, M, method)
    options: dict[str, Any] = {"consistent": inverse.consistent} if method.least_squares else {}
    outcome: Outcome = method.run(xp, full, low, B, tol=tol, max_iters=method.iterations(m, n), X0=X0, watch=watch, **options)
    return outcome


def _products(A: LinearOperator, M: LinearOperator | None, method: Any) -> Products:
    terms = sampled_terms(A, method) if method.needs_terms else None
    both = method.needs_adjoint or (terms is not None and terms.squared)
    adjoints = _product(A.H if both else None), _product(M.H if both and M is not None else None)
    return Products(_product(A), adjoints[0], _product(M), adjoints[1], A.shape[-1], terms)


def sampled_terms(A: LinearOperator, method: Any, squared: bool | None = None) -> Terms:
    """The terms that a stochastic method draws from: those of positive A, else (or if so `squared`) those of A^H A, which are its
    rows where A is no sum."""
    A = A.to(dtype=A.xp.float32) if getattr(A.dtype, "itemsize", 0) == 2 else A
    count = term_count(A)
    squared = not A.properties & POSITIVE_SEMIDEFINITE if squared is None else squared
    if count < 2 and squared and A._has_rows:
        whole: LinearOperator = Product(A.H, A)
        count, product = term_count(whole), lambda indices, X: minibatch(whole, indices) @ X
    elif count < 2:
        raise MethodError(f"{method.name}: {A!r} {NOT_A_SUM}; or use CG(), which needs products with A alone.")
    elif squared:
        whole = A

        def product(indices: Array, X: Array) -> Array:
            some = minibatch(A, indices)
            return some.H @ (some @ X)
    else:
        whole, product = A, lambda indices, X: minibatch(A, indices) @ X
    size = method.batch_of(count)
    if size > count:
        raise ValueError(
            f"{method.name}: batch_size is {size}, and the sum has {count} terms. Use at most {count}, or None for the default."
        )
    first = A.xp.arange(size, device=A._context.device)
    share = min(1.0, minibatch(whole, first).flops / max(whole.flops, 1.0))
    return Terms(count, product, share, size, squared)


def _product(A: LinearOperator | None) -> Any:
    if A is None:
        return None
    return _bounded(A) if getattr(A.dtype, "itemsize", 0) == 2 else A.__matmul__


def _bounded(A: LinearOperator) -> Any:
    """Products of a half-precision operator with vectors of single precision, scaled so that nothing overflows (Maddox, Potapczynski
    and Wilson 2022)."""

    def multiply(X: Array) -> Array:
        xp = namespace_of(X)
        size = xp.max(xp.abs(X), axis=-2 if X.ndim > 1 else -1, keepdims=True)
        size = xp.where(size > 0, size, 1)
        return xp.astype(A @ (X / size), X.dtype) * size

    return multiply


def _lowered(A: LinearOperator, precision: str) -> LinearOperator:
    dtype = precision if not A.is_complex else "complex64"
    return A.to(dtype=dtype)


@functools.lru_cache(maxsize=256)
def _compiled(method: Any, watch: Watch, tol: float) -> Any:
    """The whole solve as one program, compiled once for each structure and shape of the operator."""
    from ..backends import get

    xp = get("jax")

    def program(inverse: Iterated, B: Array) -> Any:
        transposed = inverse.T

        def solve(B: Array) -> Any:
            outcome = outcome_of(inverse, B, watch, tol)
            return outcome.X, outcome._replace(X=None)

        def solve_transposed(B: Array) -> Any:
            outcome = outcome_of(transposed, B, watch, tol)  # type: ignore[arg-type]
            return outcome.X, outcome._replace(X=None)

        if method.least_squares:
            return solve(B)
        return xp.linear_solve(inverse.A.__matmul__, solve, solve_transposed, B)

    return xp.jit(program)


def _differentiable(inverse: Iterated, B: Array, watch: Watch, tol: float, found: list[Outcome]) -> Array:
    """A^-1 B in NumPy and torch; `found` collects the outcomes."""
    xp = namespace_of(B)

    def solve(B: Array, which: Iterated = inverse) -> Array:
        outcome = outcome_of(which, B, watch, tol)
        found.append(outcome)
        return outcome.X

    leaves = [leaf for leaf in inverse.leaves() if namespace_of(leaf) is xp]
    hidden = [leaf for leaf in leaves if xp.is_traced(leaf) and 0 not in leaf.shape]
    if hidden and not xp.is_traced(B):  # a map over operators: the right side becomes one of each, lest the loop look at values
        first = xp.reshape(hidden[0], (-1,))[0]
        B = B + xp.astype(xp.where(first == first, 0, 0), B.dtype)
    if xp.name == "numpy" or not xp.is_differentiated(B, *leaves) or hidden:
        return solve(B)
    held = inverse._map(xp.stop_gradient)

    def fixed(B: Array) -> Array:
        return xp.linear_solve(held.A.__matmul__, solve_held, solve_transposed, B)[0]

    def solve_held(B: Array) -> Any:
        return solve(B, held), None

    def solve_transposed(B: Array) -> Any:
        return solve(B, held.T), None

    if inverse.method.least_squares:
        return solve(xp.stop_gradient(B), held)
    return refined(fixed, inverse.A.__matmul__, B, xp.is_differentiated(*leaves))


# ---------------------------------------------------------------------------------------------------- what is said of it


def described(xp: Any, outcome: Outcome, method: Any, watch: Watch, n: int) -> Info:
    """An outcome as an Info, with a word on what went wrong and when."""
    status, residual, history = outcome.status, outcome.residual, outcome.history
    if watch.vector and history is not None:
        history = history[..., 0]
    empty = 0 in status.shape
    if xp.is_traced(status):
        worst: Any = xp.max(status % 10)
        iterations: Any = xp.max(outcome.iterations)
        message = ""
    else:
        codes = xp.to_numpy(status)
        worst = Status(int((codes % 10).max(initial=0)))
        iterations = 0 if empty else int(xp.max(outcome.iterations))
        message = _message(codes, xp.to_numpy(outcome.iterations), method.name)
        if history is not None:
            history = history[: iterations + 1]
    matvecs = outcome.matvecs
    matvecs = matvecs if namespace_of(matvecs) is None or xp.is_traced(matvecs) else int(matvecs)
    return Info(
        worst,
        converged=status % 10 < int(Status.STOPPED),
        iterations=iterations,
        matvecs=matvecs,
        residual=residual,
        history=history,
        method=method.name,
        message=message,
    )


def _message(codes: Any, iterations: Any, method: str) -> str:
    worst = codes.flat[(codes % 10).argmax()] if codes.size else 0
    if worst % 10 < int(Status.BREAKDOWN):
        return ""
    where = f"in iteration {int(iterations.flat[(codes % 10).argmax()])}"
    what = "the preconditioner" if worst >= PRECONDITIONER else "the operator"
    columns = int((codes == worst).sum())
    of = f" of column {int((codes == worst).argmax())}" if codes.size > 1 and columns == 1 else ""
    if worst % 10 == int(Status.NONFINITE):
        return f"NaN or infinity from {what} {where}{of}"
    if worst % 10 == int(Status.NOT_POSITIVE_DEFINITE):
        return (
            f"{what} showed a direction p with p^H A p <= 0 {where}{of}"
            if worst < PRECONDITIONER
            else (f"{what} showed a residual r with r^H M r <= 0 {where}{of}")
        )
    if worst % 10 == int(Status.BREAKDOWN) and method == "SVRG":
        return f"it diverged {where}{of}: the step is too large. Leave out `step`, which finds one, or take a larger batch_size"
    if worst % 10 == int(Status.SINGULAR) and method == "GMRES":
        return f"A is singular on the subspace {where}{of}"
    if worst % 10 == int(Status.SINGULAR):
        return f"A^H r vanished {where}{of} and r did not: the right side is not in the range of A, and x is one of least squares"
    return f"{where}{of}"


def working_memory(method: Any, A: LinearOperator) -> float:
    """Bytes of the vectors that a method keeps."""
    itemsize = getattr(A.dtype, "itemsize", 8)
    return float(method.vectors * math.prod(A.batch_shape) * max(A.shape[-2:]) * itemsize)
