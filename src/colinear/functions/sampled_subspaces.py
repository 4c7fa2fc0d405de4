"""Eigenvectors and null spaces of sums by stochastic gradients, `method=SVRG()`: what is run, and how the answer is judged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..backends import Array, namespace_of, program
from ..info import Info, MethodError, Status, recording, report
from ..methods.iterate import Products
from ..methods.loop import Watch
from ..methods.sampling import drawn_seed, static_seed
from ..methods.svrg import SVRG
from ..methods.svrg_subspace import Subspace, svrg_subspace
from ..operators.base import LinearOperator
from ..operators.dense import Dense
from ..operators.sampled import sampled_terms
from ..operators.seeded import seeded
from ..properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT, STIEFEL
from ._arrays import is_half, narrow, seen

FIRST = 8  # vectors that a null space is looked for with; twice as many whenever all are found to be in it
SURE = 0.3  # of a Ritz value, its residual, from which it counts as one that is not zero
DIVERGED = "it diverged: the step is too large. Leave out `step`, which finds one, or take a larger batch_size"


def sampled_pairs(A: LinearOperator, k: int, which: str, method: SVRG) -> Subspace:
    """k eigenpairs at an end of the spectrum."""
    positive = A.properties & POSITIVE_SEMIDEFINITE
    ends = {"LA": True, "LR": True, "SA": False, "SR": False} | ({"LM": True, "SM": False} if positive else {})
    if not A.properties & SELF_ADJOINT:
        raise MethodError(
            "eig: SVRG finds eigenvectors of self-adjoint sums, and A is not known to be one. Say SelfAdjoint(A) if it is so, "
            "or use Arnoldi()."
        )
    if which not in ends:
        raise MethodError(f"eig: SVRG finds the ends of the spectrum, which='LA' or 'SA', not {which!r} of an A of any sign.")
    _plain_steps("eig", method)
    method = replace(method, seed=drawn_seed(method.seed))
    xp, n = A.xp, A.shape[-1]
    start = _start(A, k, method) if method.x0 is None else _given(A, k, method)
    tol = method.tolerance(xp, A.dtype)
    run = program(xp.name, _program, method.without_arrays(), ends[which], False, float(tol), method.iterations(n, n))
    with recording():
        return run(seeded(A, method.seed), start)


def sampled_nullspace(A: LinearOperator, rtol: float | None, method: SVRG) -> LinearOperator:
    """An orthonormal basis of the null space, from more and more vectors until some are not in it."""
    _plain_steps("nullspace", method)
    method = replace(method, seed=static_seed(method.seed))
    xp, (m, n) = A.xp, A.shape[-2:]
    if A.batch_shape:
        raise MethodError("nullspace: SVRG works on one operator at a time. Call it for each matrix: nullspace(A[i]).")
    tol = max(method.tolerance(xp, A.dtype), max(m, n) * xp.eps(A.dtype) if rtol is None else rtol)
    run = program(xp.name, _program, method.without_arrays(), False, True, float(tol), method.iterations(m, n))
    squared = not A.properties & POSITIVE_SEMIDEFINITE
    start, matvecs, epochs = _start(A, min(n, FIRST), method), 0, 0
    while True:
        with recording():
            found = run(A, start)
        values = seen(xp, found.values)
        if values is None:
            from .nullspace import visible

            visible(xp, found.values)  # an error that says what to do
        status = Status(int(found.status))
        matvecs, epochs = matvecs + int(found.matvecs), epochs + int(found.epochs)
        limit = float(seen(xp, found.norm).max()) * (tol**2 if squared else tol)
        inside = int((values <= limit).sum())
        width = found.vectors.shape[-1]
        if inside < width or width == n or status.is_failure:
            break
        more = _start(A, min(n, 2 * width) - width, replace(method, seed=method.seed + width))
        start = xp.concat([found.vectors, more], axis=-1)
    size = (abs(values) / float(seen(xp, found.norm).max() or 1)) ** (0.5 if squared else 1)
    message = DIVERGED if status is Status.BREAKDOWN else ""
    report(
        Info(
            status,
            iterations=epochs,
            matvecs=matvecs,
            residual=xp.asarray(size[:inside], dtype=xp.real_dtype(found.vectors.dtype)),
            method=method.name,
            message=message,
        )
    )
    V = found.vectors[..., :inside]
    return Dense(narrow(xp, V, A.dtype))._claim(STIEFEL)


def _plain_steps(function: str, method: SVRG) -> None:
    """An error if options were given that are for linear systems alone."""
    if method.preconditioner is not None:
        raise MethodError(f"{function}: the preconditioner of SVRG is for linear systems. Leave it out, or use LOBPCG().")
    if method.momentum or method.averaging:
        raise MethodError(f"{function}: momentum and averaging of SVRG are for linear systems. Leave them out.")


def _start(A: LinearOperator, k: int, method: SVRG) -> Array:
    xp = A.xp
    dtype = xp.float32 if is_half(xp, A.dtype) else A.dtype
    generator = xp.split(xp.generator(method.seed), 3)[2]
    return xp.normal(generator, (*A.batch_shape, A.shape[-1], k), dtype=dtype, device=A._context.device)


def _given(A: LinearOperator, k: int, method: SVRG) -> Array:
    xp = A.xp
    x0 = method.x0 if namespace_of(method.x0) is not None else xp.asarray(method.x0, dtype=A.dtype, device=A._context.device)
    x0 = x0[..., None] if x0.ndim == 1 else x0
    if tuple(x0.shape[-2:]) != (A.shape[-1], k):
        raise ValueError(f"eig: x0 has shape {tuple(x0.shape)}; SVRG starts from {A.shape[-1]} x {k}.")
    return xp.broadcast_to(x0, (*A.batch_shape, *x0.shape[-2:]))


def _program(
    xp: Any, method: Any, largest: bool, null: bool, tol: float, max_iters: int, A: LinearOperator, W: Array
) -> Subspace:
    """One run, a program in JAX."""
    watch = Watch(False, method.callback, method.progress, method.name, False)
    terms = sampled_terms(A, method, squared=None if null else False)
    limit = tol**2 if terms.squared else tol

    def settled(values: Array, residual: Array, norm: Array) -> Array:
        if null:
            return (values <= limit * norm) | (residual <= SURE * values)
        return residual <= tol * norm

    products = Products(A.__matmul__, A.H.__matmul__ if terms.squared else None, None, None, A.shape[-1], terms)
    return svrg_subspace(
        xp, products, W, largest=largest, step=method.step, seed=method.seed, settled=settled, max_iters=max_iters, watch=watch
    )  # fmt: skip
