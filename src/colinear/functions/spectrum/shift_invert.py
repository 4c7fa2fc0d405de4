"""Eigenpairs nearest to a shift by (A - shift I)^-1 where that is cheap, and of sums by
stochastic gradients."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ...backends import Array, namespace_of, program
from ...errors import MethodError
from ...factors.runs import sampled_terms, seeded
from ...info import Info, recording, report
from ...methods.arnoldi import arnoldi
from ...methods.iterate import Products
from ...methods.loop import Monitor
from ...methods.sampling import drawn_seed, static_seed
from ...methods.svrg import SVRG, Subspace, svrg_subspace
from ...operators import (
    Dense,
    GaussNewton,
    Hessian,
    Jacobian,
    KroneckerSum,
    LinearOperator,
    MatrixFree,
    Opaque,
    Scaled,
    ScaledIdentity,
    Sparse,
    Sum,
    simplify,
)
from ...operators.context import kind_of, split_number
from ...operators.sparse_algebra import BAND, DIAGONAL, as_sparse
from ...properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT, Stiefel
from ...status import FIRST_FAILURE, Status
from ..common import host_value, ignore_float_errors, is_half, is_stored, to_result_dtype
from ..solve.cost import estimated_fill, largest_dense
from ..solve.families import fills_in
from ..solve.inverse import inv

# Inverses for eigenvalues: where structure makes (A - shift I)^-1 cheap, the pairs nearest to the
# shift are its extreme ones.


FILL = 40_000_000  # entries of triangular factors that are affordable
# operators of which nothing but products is known
FUNCTIONS = (GaussNewton, Hessian, Jacobian, MatrixFree, Opaque)
LARGE = 1000  # rows from which a factorisation pays for the outermost eigenvalues
# of the width of the outermost Ritz values, by which the shift is beyond them: first, and if that
# was not enough
EDGE = (0.05, 0.5)
VARIED = 100  # largest to smallest entry of a diagonal from which it preconditions well


class Shifted(NamedTuple):
    """(A - shift I)^-1, and whether it failed: an array where that cannot be seen yet, and else
    False."""

    inverse: LinearOperator
    shift: complex
    failed: Any = False


def inverse_at(A: LinearOperator, shift: complex, form: bool) -> Shifted | None:
    """The inverse of A less a shift, where A is a stored matrix or structure makes it cheap; None
    where neither is so.

    `form` says whether the matrix of another A may be formed for it. At an eigenvalue, where there
    is no inverse, the one beside it is taken: the pairs nearest to the shift are nearest to that
    too, but for ties.
    """
    if not is_cheap(shifted(A, shift)):
        if not form or A.shape[-1] > largest_dense(A) or is_known_by_products(A):
            return None
        A = Dense(A.to_dense())._claim(A.properties)
    found = _inverse(A, shift)
    if found is not None or (step := _small_shift(A)) == 0:
        return found
    return _inverse(A, shift + step)


def assembled(A: LinearOperator) -> LinearOperator:
    """A as one sparse matrix where it has the entries of Kronecker sums of sparse matrices among
    others, and is a sum; else A itself."""
    if A.batch_shape or not isinstance(A, Sum) or not all(map(shows_entries, A.operands)):
        return A
    return as_sparse(A)._claim(A.properties)


def shows_entries(A: Any) -> bool:
    """Whether A is sparse or banded, a Kronecker sum of such, or a multiple of one."""
    if isinstance(A, (Scaled, KroneckerSum)):
        return all(map(shows_entries, A.operands))
    return isinstance(A, Sparse | BAND | DIAGONAL)


def is_known_by_products(A: LinearOperator) -> bool:
    """Whether a part of A is a function, or hidden by `opaque`."""
    return isinstance(A, FUNCTIONS) or any(map(is_known_by_products, getattr(A, "operands", ())))


def cheap_inverse(A: LinearOperator) -> Shifted | None:
    """The inverse of A where structure makes it cheap; None where nothing does.

    Of a singular A it is the inverse at a small shift, below the spectrum if A is positive.
    """
    # where it fills in the inverse would be an iteration, which fails where A is singular; products
    # with A find its lower end
    return None if is_positive_sparse(A) and fills_in(A) else inverse_at(A, 0.0, form=False)


def is_positive_sparse(A: LinearOperator) -> bool:
    """Whether A is one sparse matrix that is known to be positive semidefinite."""
    return isinstance(A, Sparse) and bool(A.properties & POSITIVE_SEMIDEFINITE)


def suits_jacobi(A: Any) -> bool:
    """Whether A is sparse and positive, its factors would fill in, and its diagonal varies so much
    that it tells where the small eigenvalues are (that of a traced A is taken to)."""
    if not is_positive_sparse(A) or A.batch_shape:
        return False
    if A.xp.is_traced(A.data):
        return estimated_fill(A.structure)[0] > FILL
    on_diagonal = A.structure.rows == A.structure.columns
    if not on_diagonal.sum() == A.shape[-1] or not fills_in(A):
        return False
    d = host_value(A.xp, A.xp.stop_gradient(A.data))[on_diagonal].real
    return bool(0 < VARIED * d.min() < d.max())


def _small_shift(A: LinearOperator) -> float:
    """A negative number that is small beside A; zero where A cannot be seen."""
    xp = A.xp
    p = xp.ones((A.shape[-1], 1), **kind_of(A))
    size = host_value(xp, xp.max(xp.abs(A @ p)))
    is_seen = size is not None and np.isfinite(size)
    return -math.sqrt(xp.eps(A.dtype)) * float(size) if is_seen else 0.0


class Edge(NamedTuple):
    """The outermost eigenvalue on one side of the spectrum, and how far the k wanted reach from
    there; negative on the right side."""

    outer: float
    width: float

    def is_beyond(self, values: Any, shift: float) -> bool:
        """Whether one of the values is beyond the shift."""
        return bool(((np.real(values) - shift) * self.width < 0).any())


def edge_of(A: LinearOperator, k: int, which: str, method: Any) -> Edge | None:
    """Where the outermost eigenvalues of a large sparse matrix are, by a short run.

    Only if they are real, as far as that run can see: of complex ones those nearest to a shift need
    not be the outermost.
    """
    xp, n = A.xp, A.shape[-1]
    is_one = isinstance(A, Sparse) and n >= LARGE and not A.batch_shape
    if not is_one or xp.is_traced(A.data) or not is_cheap(A):  # type: ignore[attr-defined]
        return None
    start, noise = random_starts(A, method, A.dtype)
    m = method.size(n, k)
    with ignore_float_errors(xp):
        edge = arnoldi(
            xp, A.__matmul__, start, noise, k, which, m=m, tol=1e-3, max_iters=3 * m, again=False
        )
    values, size = host_value(xp, edge.values), host_value(xp, edge.size)
    low, high = float(values.real.min()), float(values.real.max())
    width = high - low
    is_real = np.isfinite(values).all() and np.abs(values.imag).max() <= 1e-2 * width
    if not is_real or width <= 1e-6 * float(size):
        return None
    return Edge(low, width) if which == "SR" else Edge(high, -width)


def random_starts(A: LinearOperator, method: Any, dtype: Any) -> list[Array]:
    """A vector to start from, and another that replaces those that vanish."""
    xp = A.xp
    generators, place = xp.split(xp.generator(method.seed)), A._context.device
    return [xp.normal(g, A.shape[:-1], dtype=dtype, device=place) for g in generators]


def beyond(A: LinearOperator, edge: Edge, far: bool) -> Shifted | None:
    """The inverse at a shift beyond the edge: the eigenvalues nearest to it are the outermost.
    The nearer the shift, the faster."""
    shift = edge.outer - EDGE[far] * edge.width
    return _inverse(A, shift) if is_cheap(shifted(A, shift)) else None


def shifted(A: LinearOperator, shift: complex) -> LinearOperator:
    """A - shift I, in the precision of A."""
    if not shift:
        return A
    B = A + ScaledIdentity(-split_number(shift, "shift")[0], A.shape[-1])
    return Dense(B._dense())._claim(B.properties) if is_stored(A) else B


def _inverse(A: LinearOperator, shift: complex) -> Shifted | None:
    """The inverse of A - shift I; None where it is seen to fail."""
    with ignore_float_errors(A.xp):
        inverse, info = inv(shifted(A, shift), info=True)
    if not isinstance(info.status, Status):  # under tracing, or on a device
        return Shifted(inverse, shift, info.status >= int(FIRST_FAILURE))
    return None if info.failed or info.status == Status.FELL_BACK else Shifted(inverse, shift)


def is_cheap(A: LinearOperator) -> bool:
    """Whether the inverse of A comes of structure, or of few enough numbers."""
    rule = inv.find(A)
    if rule.is_base:
        return is_stored(A)
    if rule.rewritten_by is not None:
        A = simplify(A)
    if isinstance(A, Sparse):
        return estimated_fill(A.structure)[0] <= FILL
    plan = inv.explain(A)
    dense = any(step.rule in ("Cholesky", "LDL", "LU", "QR") for step in plan.walk())
    return not dense or A.shape[-1] <= largest_dense(A)


# Eigenvectors and null spaces of sums by stochastic gradients, `method=SVRG()`: what is run, and
# how the answer is judged.


# vectors that a null space is looked for with; twice as many whenever all are found to be in it
FIRST = 8
SURE = 0.3  # of a Ritz value, its residual, from which it counts as one that is not zero
DIVERGED = "it diverged: the step is too large. Leave out `step`, which finds one, or take a larger batch_size"


def sampled_pairs(A: LinearOperator, k: int, which: str, method: SVRG) -> Subspace:
    """k eigenpairs at an end of the spectrum."""
    ends = ("LA", "LR", "SA", "SR") + (("LM", "SM") if A.properties & POSITIVE_SEMIDEFINITE else ())
    if not A.properties & SELF_ADJOINT:
        raise MethodError(
            "eig: SVRG finds eigenvectors of self-adjoint sums, and A is not known to be one. Say "
            "SelfAdjoint(A) if it is so, or use Arnoldi()."
        )
    if which not in ends:
        raise MethodError(
            f"eig: SVRG finds the ends of the spectrum, which='LA' or 'SA', not {which!r} of an A "
            "of any sign."
        )
    _plain_steps("eig", method)
    method = replace(method, seed=drawn_seed(method.seed))
    start = _start(A, k, method) if method.x0 is None else _given(A, k, method)
    run = _compiled(A, method, which[0] == "L", False, method.tolerance(A.xp, A.dtype))
    with recording():
        return run(seeded(A, method.seed), start)


def sampled_nullspace(A: LinearOperator, rtol: float | None, method: SVRG) -> LinearOperator:
    """An orthonormal basis of the null space, from more and more vectors until some are not in
    it."""
    from ..least_squares.nullspace import visible

    _plain_steps("nullspace", method)
    method = replace(method, seed=static_seed(method.seed))
    xp, (m, n) = A.xp, A.shape[-2:]
    if A.batch_shape:
        raise MethodError(
            "nullspace: SVRG works on one operator at a time. Call it for each matrix: "
            "nullspace(A[i])."
        )
    tol = max(method.tolerance(xp, A.dtype), max(m, n) * xp.eps(A.dtype) if rtol is None else rtol)
    run = _compiled(A, method, False, True, tol)
    squared = not A.properties & POSITIVE_SEMIDEFINITE
    start, matvecs, epochs = _start(A, min(n, FIRST), method), 0, 0
    while True:
        with recording():
            found = run(A, start)
        values = visible(xp, found.values)
        status = Status(int(found.status))
        matvecs, epochs = matvecs + int(found.matvecs), epochs + int(found.epochs)
        largest = float(host_value(xp, found.norm).max())
        limit = largest * (tol**2 if squared else tol)
        inside = int((values <= limit).sum())
        width = found.vectors.shape[-1]
        if inside < width or width == n or status.is_failure:
            break
        more = _start(A, min(n, 2 * width) - width, replace(method, seed=method.seed + width))
        start = xp.concat([found.vectors, more], axis=-1)
    size = (abs(values) / (largest or 1)) ** (0.5 if squared else 1)
    V = found.vectors[..., :inside]
    residual = xp.asarray(size[:inside], dtype=xp.real_dtype(V.dtype))
    message = DIVERGED if status is Status.BREAKDOWN else ""
    report(Info(status, None, epochs, matvecs, residual, method=method.name, message=message))
    return Stiefel(to_result_dtype(xp, V, A.dtype))


def _plain_steps(function: str, method: SVRG) -> None:
    """An error if options were given that are for linear systems alone."""
    if method.preconditioner is not None:
        raise MethodError(
            f"{function}: the preconditioner of SVRG is for linear systems. Leave it out, or use "
            "LOBPCG()."
        )
    if method.momentum or method.averaging:
        raise MethodError(
            f"{function}: momentum and averaging of SVRG are for linear systems. Leave them out."
        )


def _start(A: LinearOperator, k: int, method: SVRG) -> Array:
    xp = A.xp
    dtype = xp.float32 if is_half(xp, A.dtype) else A.dtype
    generator = xp.split(xp.generator(method.seed), 3)[2]
    return xp.normal(
        generator, (*A.batch_shape, A.shape[-1], k), dtype=dtype, device=A._context.device
    )


def _given(A: LinearOperator, k: int, method: SVRG) -> Array:
    xp = A.xp
    x0 = method.x0
    if namespace_of(x0) is None:
        x0 = xp.asarray(x0, **kind_of(A))
    x0 = x0[..., None] if x0.ndim == 1 else x0
    if tuple(x0.shape[-2:]) != (A.shape[-1], k):
        raise ValueError(
            f"eig: x0 has shape {tuple(x0.shape)}; SVRG starts from {A.shape[-1]} x {k}."
        )
    return xp.broadcast_to(x0, (*A.batch_shape, *x0.shape[-2:]))


def _compiled(A: LinearOperator, method: SVRG, largest: bool, null: bool, tol: float) -> Any:
    """A run as a function of the operator and the vectors to start from."""
    options = largest, null, float(tol), method.iterations(*A.shape[-2:])
    return program(A.xp.name, _program, method.without_arrays(), *options)


def _program(
    xp: Any,
    method: Any,
    largest: bool,
    null: bool,
    tol: float,
    max_iters: int,
    A: LinearOperator,
    W: Array,
) -> Subspace:
    """One run, a program in JAX."""
    watch = Monitor(False, method.callback, method.progress, method.name, False)
    terms = sampled_terms(A, method, squared=None if null else False)
    limit = tol**2 if terms.squared else tol

    def settled(values: Array, residual: Array, norm: Array) -> Array:
        if null:
            return (values <= limit * norm) | (residual <= SURE * values)
        return residual <= tol * norm

    products = Products(
        A.__matmul__, A.H.__matmul__ if terms.squared else None, None, None, A.shape[-1], terms
    )
    return svrg_subspace(
        xp, products, W, largest=largest, step=method.step, seed=method.seed,
        settled=settled, max_iters=max_iters, watch=watch,
    )  # fmt: skip
