"""One run of an iterative eigenvalue method, as a function of operators and arrays: compiled by JAX once for each structure."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .. import backends
from ..backends import Array, program
from ..methods import LOBPCG, Arnoldi, PowerIteration
from ..methods.arnoldi import arnoldi
from ..methods.basis import Pairs
from ..methods.filtered import filtered
from ..methods.lanczos import lanczos
from ..methods.lobpcg import lobpcg
from ..methods.loop import Progress, progress_bar
from ..methods.power_iteration import power_iteration
from ..operators.autograd import linearised
from ..operators.base import LinearOperator
from ._spectral import by_key

PATIENCE = 20  # bases filled by A alone, before a polynomial of it is used
CHEAPER = 6  # times as many products are allowed inside a polynomial, where nothing is orthogonalised
COLUMNS = 4  # multiplied at a time, to judge pairs
POWER_STEPS = 6  # products for the norm of A where the run is on its inverse


class Found(NamedTuple):
    """Eigenpairs as `eig` returns them, (*batch, k) and (*batch, n, k), and how good they are."""

    values: Array
    vectors: Array
    residual: Array
    matvecs: Any
    iterations: Any
    done: Any
    finite: Any
    stopped: bool


def program_of(name: str, method: Any, *static: Any) -> Callable[..., Found]:
    """The run as a function of operators and arrays, compiled by JAX unless someone is called from it."""
    xp = backends.get(name)
    watched = method.callback is not None or method.progress
    return functools.partial(_run, xp, method, *static) if watched else program(name, _run, method, *static)


def _run(
    xp: Any,
    method: Any,
    k: int,
    which: str,
    is_inverse: bool,
    is_hermitian: bool,
    A: LinearOperator,
    B: LinearOperator,
    M: LinearOperator | None,
    start: Array,
    noise: Array,
) -> Found:
    """One run. `is_inverse` says whether it is on the inverse B of A less a shift, whose largest pairs are those that `which` names."""
    shift = getattr(method, "shift", None) or 0.0
    A, B = (linearised(A),) * 2 if A is B else (linearised(A), linearised(B))
    if isinstance(method, (LOBPCG, PowerIteration)):
        pairs = _simple(xp, method, B, M, start, noise, k, which)
    else:
        pairs = _krylov(xp, method, B, start, noise, k, "LM" if is_inverse else which, is_inverse)
    V = xp.matrix_transpose(pairs.vectors)
    pairs = pairs._replace(vectors=None)  # so that they can go
    if is_hermitian:  # orthonormal to the last digit: V (V^H V)^(-1/2), of which this is the first step
        G = xp.matmul(xp.conj(xp.matrix_transpose(V)), V)
        V = xp.matmul(V, 1.5 * xp.eye(k, dtype=V.dtype, device=xp.device_of(V)) - 0.5 * G)
    values, residual = _quotients(xp, A, V, is_hermitian)
    size = _size(xp, A, noise) if is_inverse else pairs.size
    residual = residual / xp.where(size == 0, 1, size)[..., None]
    residual = xp.where(xp.vector_norm(V, axis=-2) > 0.5, residual, 1 + 0 * residual)  # no vector was found
    order = xp.argsort(values, axis=-1, stable=True) if is_hermitian else by_key(xp, values - shift if shift else values, which)
    values, residual = (xp.take_along_axis(x, order, axis=-1) for x in (values, residual))
    V = xp.take_along_axis(V, xp.broadcast_to(order[..., None, :], V.shape), axis=-1)
    matvecs = pairs.matvecs + k + (POWER_STEPS if is_inverse else 0)
    return Found(values, V, residual, matvecs, pairs.iterations, pairs.done, pairs.finite, pairs.stopped)


def _quotients(xp: Any, A: LinearOperator, V: Array, is_hermitian: bool) -> tuple[Array, Array]:
    """The Rayleigh quotients v^H A v and |A v - λ v| of the columns of V, a few at a time: products may take memory of their own."""
    k = V.shape[-1]
    width = k if xp.name == "jax" else COLUMNS
    parts = []
    for i in range(0, k, width):
        X = V[..., i : i + width]
        AX = A @ X
        values = xp.vecdot(X, AX, axis=-2)
        values = xp.real(values) if is_hermitian else values
        parts.append((values, xp.vector_norm(AX - X * values[..., None, :], axis=-2)))
    values, residual = (xp.concat([part[i] for part in parts], axis=-1) for i in (0, 1))
    return values, residual


def _size(xp: Any, A: LinearOperator, x: Array) -> Array:
    """The norm of A from below, by a few powers."""
    size = xp.vector_norm(x, axis=-1)
    for _ in range(POWER_STEPS):
        x = (A @ (x / xp.where(size == 0, 1, size)[..., None])[..., None])[..., 0]
        size = xp.vector_norm(x, axis=-1)
    return size


def _krylov(xp: Any, method: Any, B: Any, start: Array, noise: Array, k: int, which: str, inverse: bool) -> Pairs:
    if start.ndim > 1 and isinstance(method, Arnoldi):
        return _one_by_one(xp, method, B, start, noise, k, which, inverse)
    n = start.shape[-1]
    m = method.size(n, k)
    limit = method.limit(n, m)
    options: dict[str, Any] = {
        "m": m,
        "tol": method.tolerance(xp, start.dtype),
        "max_iters": limit,
        "householder": method.orthogonalisation == "householder",
        "again": method.repeated,
        "watch": watcher(method, k),
    }
    shift = 0.0 if inverse else method.shift or 0.0
    if isinstance(method, Arnoldi):
        return arnoldi(xp, B.__matmul__, start, noise, k, which, shift=shift, relative=inverse, **options)
    most = limit * (CHEAPER if method.max_iters is None else 1)
    if which == "SM" and m < n:  # inside the spectrum
        options["max_iters"] = most
        return filtered(xp, B.__matmul__, start, noise, k, which, shift=shift, **options)
    if which != "SA" or inverse or xp.name == "jax" or limit <= PATIENCE * m:
        return lanczos(xp, B.__matmul__, start, noise, k, which, shift=shift, relative=inverse, **options)
    pairs = lanczos(xp, B.__matmul__, start, noise, k, which, patience=PATIENCE * m, **options)
    if pairs.done or pairs.stopped or not pairs.finite:
        return pairs
    start, options["max_iters"] = xp.sum(pairs.vectors, axis=-2), most - pairs.iterations
    more = filtered(xp, B.__matmul__, start, noise, k, which, shift=None, **options)
    return more._replace(matvecs=pairs.matvecs + more.matvecs, iterations=pairs.iterations + more.iterations)


def _one_by_one(xp: Any, method: Any, B: Any, start: Array, noise: Array, *rest: Any) -> Pairs:
    """The elements of a batch, one after the other."""
    batch = start.shape[:-1]
    runs: list[Any] = [_krylov(xp, method, B[i], start[i], noise[i], *rest) for i in np.ndindex(*batch)]
    values, vectors, size = (
        xp.reshape(xp.stack([run[i] for run in runs], axis=0), (*batch, *runs[0][i].shape)) for i in range(3)
    )
    matvecs, iterations = (sum(run[i] for run in runs) for i in (3, 4))
    done, finite = (functools.reduce(lambda a, b: a & b, [run[i] for run in runs]) for i in (5, 6))
    return Pairs(values, vectors, size, matvecs, iterations, done, finite, any(run.stopped for run in runs))


def _simple(xp: Any, method: Any, B: Any, M: Any, start: Array, noise: Array, k: int, which: str) -> Pairs:
    n = start.shape[-1]
    size, tol, watch = method.size(n, k), method.tolerance(xp, start.dtype), watcher(method, k)
    limit = method.limit(n, size)
    if isinstance(method, PowerIteration):
        return power_iteration(xp, B.__matmul__, start, tol=tol, max_iters=limit, watch=watch)
    precondition = None if M is None else M.__matmul__
    largest = which == "LA"
    return lobpcg(xp, B.__matmul__, precondition, start, noise, k, largest, block=size, tol=tol, max_iters=limit, watch=watch)


def watcher(method: Any, k: int) -> Callable[[Any], bool] | None:
    """What a run calls after each cycle, if someone looks on."""
    if method.callback is None and not method.progress:
        return None
    bar = progress_bar(method.name) if method.progress else None

    def watch(state: Any) -> bool:
        residual: Any = state.residual[..., :k]
        if bar is not None:
            bar(int(state.iterations), residual)
            if state.done:
                bar(None, None)
        if method.callback is None:
            return False
        vectors = lambda: state.V[..., :k, :]  # noqa: E731
        return bool(method.callback(Progress(int(state.iterations), residual, vectors)))

    return watch
