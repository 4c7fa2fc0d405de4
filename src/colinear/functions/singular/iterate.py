"""Some singular triplets without the whole decomposition: by iteration, from random vectors, or
through the small Gram matrix."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import autodiff
from ...backends import Array, adjoint, inner_products, without_zeros
from ...dispatch import Cost
from ...errors import DerivativeWarning
from ...factors.runs import check_inner_failures
from ...info import Info, recording, report
from ...methods import Auto, GolubKahan, Method, RandomizedSVD
from ...methods.basis import all_finite, every
from ...methods.singular import golub_kahan, randomized_svd
from ...operators import Dense, LinearOperator, LowRank, Product, Sum
from ...operators.autograd import make_ready
from ...operators.context import records_derivatives
from ...operators.scaled import unscaled
from ...operators.sparse_algebra import times
from ...operators.streamed import triangle_by_rows
from ...properties import Stiefel
from ...status import Status
from ..common import (
    ignore_float_errors,
    is_half,
    smaller_side,
    to_result_dtype,
    values_are_seen,
)
from ..solve.cost import lapack_cost, products_cost
from ..spectrum.iterate import check_visible, program_of, report_run, status_of_run, watcher
from ..spectrum.order import PENALTY, STEPS, is_affordable
from ..spectrum.outside import residual_of_triplets

SMALLEST = 400  # of the smaller dimension, from which iterating may pay
TALL = 8  # rows to a column from which the Gram matrix pays
# loss of orthogonality up to which the left vectors of the Gram matrix's way are taken
ORTHOGONAL = 1e-10

UNSETTLED = (
    "svd (RandomizedSVD): the triplets have not converged, and their derivatives are those of "
    "triplets that have: they are off by about the residual over the distance of singular values. "
    "Raise power_iterations or oversampling, or use GolubKahan()."
)

Triplets = tuple[LinearOperator, Array, LinearOperator]


# --------------------------------------------------------------------------------------------------


def automatic(A: LinearOperator, k: int, method: Auto) -> Method | None:
    """The method that `Auto` iterates by; None for the dense way."""
    smaller = smaller_side(A)
    chosen = GolubKahan(tol=method.tol, max_iters=method.max_iters)
    if A._is_out_of_core and 0 < 2 * k <= smaller:
        return chosen
    if k == 0 or smaller < SMALLEST or 5 * k > smaller:
        return None
    if not is_affordable(A):
        return chosen
    # the dense way has derivatives
    pays = PENALTY * expected_cost(A, k, chosen).seconds < dense_cost(A).seconds
    return chosen if pays and values_are_seen(A) else None


def dense_cost(A: LinearOperator) -> Cost:
    """What the decomposition of the matrix costs."""
    (m, n), batch = A.shape[-2:], math.prod(A.batch_shape)
    flops = 20.0 * batch * m * n * min(m, n)
    return lapack_cost(A, flops, 8.0 * batch * (m + n) * min(m, n), "SVD")


def expected_cost(A: LinearOperator, k: int, method: Any) -> Cost:
    """What a run is expected to cost."""
    (m, n), batch = A.shape[-2:], math.prod(A.batch_shape)
    if isinstance(method, RandomizedSVD):
        width, products = k + method.oversampling, 2 + 2 * method.power_iterations
        products, beside, vectors = products * width, 2.0 * (m + n) * width, width
    else:
        size = method.size(min(m, n), k)
        products, beside, vectors = 2 * STEPS * size, 4.0 * size * (m + n), size + 3
    return products_cost(A, batch * products, beside, 8.0 * batch * (m + n) * vectors)


# --------------------------------------------------------------------------------------------------


def iterative_triplets(
    A: LinearOperator, k: int, method: Any, otherwise: Callable[[], Triplets] | None
) -> Triplets:
    """Triplets as `svd` returns them, with residuals recomputed: the larger of |A v - s u| and |A^H
    u - s v|, relative to |A|.

    Where the run fails, and there is one, `otherwise()` is returned.
    """
    xp, (m, n), is_random = A.xp, A.shape[-2:], isinstance(method, RandomizedSVD)
    check_visible("svd", A, method.name)
    fixed = A.detach()
    dtype = xp.float32 if is_half(xp, A.dtype) else A.dtype
    place, batch = {"dtype": dtype, "device": A._context.device}, A.batch_shape
    shapes = [(n, min(m, n, k + method.oversampling))] if is_random else [(n,), (n,), (m,)]
    generators = xp.split(xp.generator(method.seed), 3)
    arrays = [xp.normal(g, (*batch, *shape), **place) for g, shape in zip(generators, shapes)]
    if not is_random:
        if method.x0 is not None:
            arrays[0] = xp.broadcast_to(xp.asarray(method.x0, **place), (*batch, n))
        method = method.without_arrays()
    run = program_of("svd", fixed, _run, method, k)
    with recording() as dropped, ignore_float_errors(xp):
        U, s, V, residual, error, steps, matvecs, *ended = run(fixed, fixed.H, *arrays)
    tol = method.tolerance(xp, A.dtype)
    converged = residual <= (math.inf if is_random and method.tol is None else tol)
    status = status_of_run(xp, every(xp, converged), ended, tol, dtype)
    info = Info(status, converged, steps, matvecs, residual, error, method=method.name)
    info = check_inner_failures(info.replace(message=_advice(method, status)), fixed, V, dropped)
    info = check_inner_failures(info, fixed.H, U, dropped)
    if report_run(info, otherwise) and otherwise is not None:
        return otherwise()
    if records_derivatives(A):
        if is_random:  # near triplets of A, whose derivatives these are
            far = xp.stop_gradient(residual) > math.sqrt(xp.eps(dtype))
            xp.warn_later(far, UNSETTLED, category=DerivativeWarning)
        U, s, V = autodiff.triplets(A, U, s, V)
    return wrap(A, U, s, V)


def wrap(A: LinearOperator, U: Array, s: Array, V: Array) -> Triplets:
    """Triplets that were computed, as they are returned."""
    U, s, V = (to_result_dtype(A.xp, x, A.dtype) for x in (U, s, V))
    return Stiefel(U), s, Stiefel(V)


def _advice(method: Any, status: Any) -> str:
    """The parameter of the method that helps where its triplets have not converged."""
    if not isinstance(method, RandomizedSVD):
        return method.advice if status is Status.MAX_ITERATIONS else ""
    is_poor = status is Status.INACCURATE or status is Status.STAGNATION
    return "raise power_iterations= or oversampling=, or use GolubKahan()" if is_poor else ""


def _run(
    xp: Any, method: Any, k: int, A: LinearOperator, AH: LinearOperator, *arrays: Array
) -> Any:
    """One run, a program in JAX."""
    A, AH = make_ready(A), make_ready(AH)
    if isinstance(method, RandomizedSVD):
        U, s, V = randomized_svd(
            xp, A.__matmul__, AH.__matmul__, arrays[0], k, method.power_iterations
        )
        steps = method.power_iterations
        matvecs = arrays[0].shape[-1] * (2 + 2 * steps)
        ended: tuple[Any, ...] = True, all_finite(xp, s), False
    else:
        start, *noise = arrays
        n = smaller_side(A)
        size = method.size(n, k)
        tol, limit = method.tolerance(xp, start.dtype), method.limit(n, size)
        found = golub_kahan(
            xp, A.__matmul__, AH.__matmul__, start, tuple(noise), k, m=size, tol=tol,
            max_iters=limit, again=method.repeated, watch=watcher(method, k),
        )  # fmt: skip
        U, s, V = xp.matrix_transpose(found.U), found.s, xp.matrix_transpose(found.V)
        matvecs, steps = found.matvecs, found.iterations
        ended = found.done, found.finite, found.stopped
    size = without_zeros(xp, xp.max(s, axis=-1, keepdims=True))
    residual = residual_of_triplets(xp, A, AH, U, s, V)
    error = None
    if isinstance(method, RandomizedSVD):  # of the Frobenius norms, by a few random x
        X = xp.roll(arrays[0][..., :6], 1, axis=-2)
        AX = A @ X
        E = AX - xp.matmul(U * s[..., None, :], inner_products(xp, V, X))
        whole, left_out = (xp.vector_norm(Y, axis=(-2, -1)) for Y in (AX, E))
        error = left_out / without_zeros(xp, whole)
    return U, s, V, residual / size, error, steps, matvecs + 2 * k, *ended


# --------------------------------------------------------------------------------------------------


def gram_pays(A: LinearOperator, k: int) -> bool:
    """Whether A is a stored matrix, with one of low rank perhaps, tall and narrow (or wide and low),
    of which few triplets are asked; its values can be seen, or a program can decide."""
    m, n = A.shape[-2:]
    tall = A if m >= n else A.H
    stored = stored_terms(tall) is not None and not is_half(A.xp, A.dtype)
    stored = stored and (A.xp.is_functional or values_are_seen(A))
    return stored and 0 < 2 * k <= min(m, n) and max(m, n) >= TALL * min(m, n)


def stored_terms(A: LinearOperator) -> tuple[Array, Array, Array] | None:
    """M, L and R of A = M + L R^H, a stored matrix and one of low rank (of none for a `Dense`);
    None where A is neither."""
    if isinstance(A, Dense):
        return A.A, A.A[..., :0], A.A[..., :0]
    terms = sorted(A.operands, key=lambda term: not isinstance(term, Dense))
    if (
        not isinstance(A, Sum)
        or len(terms) != 2
        or A.batch_shape
        or not isinstance(terms[0], Dense)
    ):
        return None
    c, B = unscaled(terms[1])
    if not isinstance(B, LowRank):
        return None
    left = B.U if B.core is None else A.xp.matmul(B.U, B.core)
    return terms[0].A, times(c, left), B._right


def by_rows(A: Any, k: int, method: Method) -> Triplets | None:
    """s and V of R = Q^H A, found from blocks of rows, and U = A (V diag(1/s)), as that product;
    None where U would not be orthonormal."""
    R = triangle_by_rows(A)
    s, Vh = np.linalg.svd(R)[1:]
    limit = ORTHOGONAL * math.sqrt(A.xp.eps(A.dtype) / 2.2e-16)
    if not np.isfinite(s).all() or not A.xp.eps(A.dtype) * s[0] <= limit * s[k - 1]:
        return None
    V = Vh[:k].conj().T
    residual = np.linalg.norm(R.conj().T @ (R @ V) / s[:k] - V * s[:k], axis=0) / s[0]
    right = residual <= method.tolerance(A.xp, A.dtype)
    status = Status.SUCCESS if right.all() else Status.INACCURATE
    report(Info(status, right, residual=residual, method="QR"))
    return Stiefel(Product(A, Dense(V / s[:k]))), s[:k], Stiefel(Dense(V))


def gram_values(A: Any, k: int, method: Method) -> tuple[Array, Array, Array, Array]:
    """s and V of A^H A = V diag(s^2) V^H for a tall A, residuals, and whether they are accurate
    enough.

    Squaring loses (s_1 / s_k)^2 roundings in the values, and as much of the orthogonality of U, with
    the largest term of a sum in place of s_1.
    """
    xp, terms = A.xp, stored_terms(A)
    assert terms is not None
    M, L, R = terms
    with ignore_float_errors(xp):
        G = inner_products(xp, M, M)
        largest = xp.max(xp.abs(G), axis=(-2, -1))
        if not isinstance(A, Dense):  # (M + L R^H)^H (M + L R^H)
            cross = xp.matmul(inner_products(xp, M, L), adjoint(xp, R))
            inner = xp.matmul(xp.matmul(R, inner_products(xp, L, L)), adjoint(xp, R))
            largest = xp.maximum(largest, xp.max(xp.abs(inner), axis=(-2, -1)))
            G = G + (cross + adjoint(xp, cross)) + inner
        squares, V = autodiff.eigh(xp, G)
        squares, V = xp.flip(squares[..., -k:], axis=-1), xp.flip(V[..., -k:], axis=-1)
        largest = xp.maximum(largest, squares[..., 0])
        loss = xp.eps(A.dtype) * largest / squares[..., -1]
        limit = ORTHOGONAL * math.sqrt(xp.eps(A.dtype) / 2.2e-16)
        s = xp.sqrt(xp.where(squares > 0, squares, 1))
        # A^H u - s v = (A^H A v - s^2 v) / s
        residual = xp.matmul(G, V) - V * squares[..., None, :]
        residual = xp.stop_gradient(xp.vector_norm(residual, axis=-2) / (s * s[..., :1]))
    right = xp.all(residual <= method.tolerance(xp, A.dtype), axis=-1)
    return s, V, residual, xp.all(squares > 0, axis=-1) & (loss <= limit) & right
