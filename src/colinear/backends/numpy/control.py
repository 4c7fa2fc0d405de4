"""Loops, recurrences, trees and host calls in NumPy; derivatives, which NumPy does not have,
raise."""

from __future__ import annotations

import builtins
import functools
import warnings
from collections.abc import Callable
from contextlib import nullcontext as outside_trace
from typing import Any, NoReturn

import numpy as np
import scipy

from ...errors import BackendError
from ..shared import (
    _lapack,
    common,
    compiled_entries,
    descend,
    fori_loop,
    half,
    itself,
    loop_map,
    radial_product,
    record,
    recorder,
    scan,
    watch_operations,
)
from ..shared import scan_recurrence as linear_recurrence
from .linalg import solve_triangular

Array = Any

# control
# --------------------------------------------------------------------------------------------------


def while_loop(cond: Callable, body: Callable, state: Any) -> Any:
    """Iterate `state = body(state)` while `cond(state)`."""
    while cond(state):
        state = body(state)
    return state


def cond(predicate: Any, if_true: Callable, if_false: Callable, *arguments: Any) -> Any:
    """`if_true(*arguments)` or `if_false(*arguments)`."""
    return if_true(*arguments) if predicate else if_false(*arguments)


def call_host(f: Callable, *values: Any) -> Any:
    """`f(*values)`, true or false; in a compiled program a call from it, when it runs."""
    return np.asarray(builtins.bool(f(*values)))


# derivatives
# --------------------------------------------------------------------------------------------------


def _refuse(what: str) -> Callable[..., NoReturn]:
    """A function that says that NumPy has no derivatives."""

    def refuse(*arguments: Any, **options: Any) -> NoReturn:
        raise BackendError(
            f"{what}: NumPy has no automatic differentiation. Use torch or JAX arrays "
            "(A.to(backend='torch'))."
        )

    return refuse


jvp, vjp = _refuse("jvp"), _refuse("vjp")
linearise, linear_transpose = _refuse("linearise"), _refuse("linear_transpose")


def custom_derivative(f: Callable, *rules: Any, **named: Any) -> Callable:
    """`f` with its own derivatives: in NumPy, `f`."""
    return f


stop_gradient = checkpoint = jit = synchronize = itself


def hoist(f: Callable, examples: Any, axes: Any = ()) -> tuple[Callable, tuple]:
    """`f` itself, and no arrays that it closes over: NumPy has no derivatives to reach them."""
    return f, ()


def vmap(f: Callable) -> Callable:
    """`f` over the leading axis of its arguments, by a Python loop."""
    return functools.partial(loop_map, f)


# trees, warnings
# --------------------------------------------------------------------------------------------------

_nodes: dict[type, tuple[Callable, Callable]] = {}


def register_pytree(cls: type, flatten: Callable, unflatten: Callable) -> None:
    """Make `cls` a tree: `flatten(x) -> (children, static)`, `unflatten(static, children) -> x`."""
    _nodes[cls] = flatten, unflatten


def tree_map(f: Callable, tree: Any, *rest: Any) -> Any:
    """Apply `f` to the leaves of one tree, or of several of the same structure. None is an empty
    tree."""
    kind = type(tree)
    if tree is None:
        return None
    if kind in _nodes:
        flatten, unflatten = _nodes[kind]
        children, static = flatten(tree)
        return unflatten(
            static, tree_map(f, tuple(children), *(tuple(flatten(other)[0]) for other in rest))
        )
    if isinstance(tree, dict):
        return kind((key, tree_map(f, tree[key], *(other[key] for other in rest))) for key in tree)
    if isinstance(tree, tuple | list):
        mapped = (tree_map(f, *parts) for parts in zip(tree, *rest, strict=True))
        return kind(*mapped) if hasattr(tree, "_fields") else kind(mapped)
    return f(tree, *rest)


def warn_later(
    which: Any, *messages: str, category: type[Warning] = UserWarning, result: Any = None
) -> Any:
    """Warn by messages[k - 1] where k > 0 is the largest of `which`, numbers or truths; under jit,
    when it is known. Return the result."""
    if which := int(np.max(which, initial=0)):
        warnings.warn(messages[which - 1], category, stacklevel=3)
    return result


def linear_rule(rule: Any, x: tuple, constants: tuple = (), like: tuple | None = None) -> tuple:
    """`rule.apply(x, constants)`, a tuple of arrays linear in those of the tuple x; derivatives
    are for other frameworks."""
    return tuple(rule.apply(x, constants))


def map_on_host(f: Callable, X: Any, *others: Any) -> Any:
    """`f(X)`, or `f(X, *others)`, of NumPy arrays, of the shape and dtype of X, with any leading
    dimensions; it has no derivatives."""
    return f(X, *others)


# recurrences
# --------------------------------------------------------------------------------------------------
#
# One step needs the one before it, so no framework has them as array operations: torch comes here
# from its devices too, JAX scans.

SMALLEST_PIVOT = 1e-300  # taken for zero
FEW_MATRICES = 16  # eliminated one by one: Python's numbers are quicker than short arrays
SMALL_SYLVESTER = 64  # rows up to which LAPACK's scalar loop is as fast as products of halves


@half
def tridiagonal_pivots(d: Array, s: Array) -> Array:
    """The pivots p_i = d_i - s_(i-1) / p_(i-1) of elimination without exchanges, d (*batch, n) and
    s = lower * upper (*batch, n-1). A zero is divided by as if it were a very small number.

    In double precision. A batch is one long matrix whose parts are not coupled.
    """
    d, s = common(d, s)
    *batch, n = np.broadcast_shapes(d.shape, (*s.shape[:-1], d.shape[-1]))
    if 0 in (n, *batch):
        return np.zeros((*batch, n), d.dtype)
    D = np.array(np.broadcast_to(d, (*batch, n)), np.result_type(d, np.float64)).reshape(-1, n)
    S = np.zeros_like(D)  # s_(i-1) beside d_i: zero at the beginning of each matrix
    S[:, 1:] = np.broadcast_to(s, (*batch, n - 1)).reshape(len(D), n - 1)
    with np.errstate(all="ignore"):
        p = np.array(np.nan)
        if D.dtype == np.float64 and D.size > 1 and S.min() >= 0:
            p, _, failure = scipy.linalg.lapack.dpttrf(D.ravel(), np.sqrt(S.ravel()[1:]))
            p = p * np.nan if failure else p
        if not np.isfinite(p).all():
            p = _pivots_of_many(D, S) if len(D) > FEW_MATRICES else np.array([*map(_pivots, D, S)])
    return p.reshape(*batch, n).astype(d.dtype)


def _pivots(d: Array, s: Array) -> list[Any]:
    pivots, p = [], 1.0
    for x, y in zip(d.tolist(), s.tolist(), strict=True):
        p = x - y / (p or SMALLEST_PIVOT)
        pivots.append(p)
    return pivots


def _pivots_of_many(d: Array, s: Array) -> Array:
    """The same of many matrices at once."""
    p = np.ascontiguousarray(d.T)
    for i in range(1, len(p)):
        p[i] -= s[:, i] / np.where(p[i - 1] == 0, SMALLEST_PIVOT, p[i - 1])
    return p.T


def solve_triangular_sum(triangles: tuple[Array, ...], B: Array, adjoint: bool = False) -> Array:
    """Solve (T_1 ⊕ T_2 ⊕ ...) X = B, or with its adjoint, for complex upper triangles T; B is
    (*batch, n_1 n_2 ..., k).

    By halves (Jonsson and Kågström 2002), the smallest by LAPACK's trsyl. Where the matrix is
    singular to working accuracy, that perturbs it, and the residual shows it.
    """
    columns = np.matrix_transpose(B).reshape(-1, *(len(T) for T in triangles))
    X = np.array(columns, np.result_type(B, *triangles))
    with np.errstate(all="ignore"):
        for C in X:
            _eliminate_sum(triangles, C, adjoint)
    return np.matrix_transpose(X.reshape(*B.shape[:-2], B.shape[-1], B.shape[-2]))


def _eliminate_sum(triangles: tuple[Array, ...], C: Array, adjoint: bool) -> None:
    """Solve for one right side C (n_1, n_2, ...) in place."""
    T, *others = triangles
    if not others:
        C[...] = solve_triangular(T, C[:, None], lower=False, adjoint=adjoint)[:, 0]
    elif len(others) > 1 and len(C) == 1:  # t I ⊕ S ⊕ ... is (t I + S) ⊕ ...
        shifted = others[0] + T[0, 0] * np.eye(len(others[0]), dtype=T.dtype)
        _eliminate_sum((shifted, *others[1:]), C[0], adjoint)
    elif len(others) == 1 and max(C.shape) <= SMALL_SYLVESTER:
        # T X + X S^T = C, or T^H X + X conj(S) = C
        S, transposes = others[0].conj(), ("C", "N") if adjoint else ("N", "C")
        trsyl = _lapack("trsyl", C.dtype.char)
        X, scale, _ = trsyl(T, S, C, trana=transposes[0], tranb=transposes[1])
        C[...] = X / scale
    else:
        axis = 1 if len(others) == 1 and C.shape[1] > C.shape[0] else 0
        T, rows, half = triangles[axis], np.moveaxis(C, axis, 0), C.shape[axis] // 2
        halves = [slice(half), slice(half, None)] if adjoint else [slice(half, None), slice(half)]
        for i, at in enumerate(halves):
            if i:  # C_1 - T_12 X_2, or C_2 - T_12^H X_1
                corner = T[halves[0], at].conj().T if adjoint else T[at, halves[0]]
                rows[at] -= np.tensordot(corner, rows[halves[0]], 1)
            smaller = (*triangles[:axis], T[at, at], *triangles[axis + 1 :])
            _eliminate_sum(smaller, np.moveaxis(rows[at], 0, axis), adjoint)


def solve_shifted(T: Array, places: Array, R: Array, adjoint: bool = False) -> tuple[Array, Array]:
    """Solve (T_11 - t I) Y = c R for upper triangular T, or with the adjoint, where t is the entry
    of its diagonal at `places`, one for each column, and T_11 what is above and before it; Y has
    zeros from there on. Returns Y and c.

    As LAPACK's trevc: a gap that is too small to divide by is taken to be eps |T|, and columns that
    grow are scaled down.
    """
    T, R = common(T, R)
    batch = np.broadcast_shapes(T.shape[:-2], places.shape[:-1], R.shape[:-2])
    n, k = R.shape[-2:]
    Y, c = np.zeros((*batch, n, k), R.dtype), np.ones((*batch, k), R.real.dtype)
    T = T.mT.conj() if adjoint else T
    t, eps = np.diagonal(T, 0, -2, -1), np.finfo(T.dtype).eps
    places = np.broadcast_to(places, (*batch, k))
    values = np.take_along_axis(np.broadcast_to(t, (*batch, n)), places, -1)
    least = eps * np.abs(T).max((-2, -1), initial=0)[..., None] + np.finfo(np.float32).tiny
    with np.errstate(all="ignore"):
        for i in range(n) if adjoint else range(n - 1, -1, -1):
            known = slice(i) if adjoint else slice(i + 1, n)
            gap = t[..., i, None] - values
            y = c * R[..., i, :] - (T[..., i, None, known] @ Y[..., known, :])[..., 0, :]
            Y[..., i, :] = np.where(places > i, y / np.where(abs(gap) < least, -least, gap), 0)
            size = np.abs(Y[..., i, :])
            if (large := size > eps**-2).any():
                Y /= np.where(large, size, 1)[..., None, :]
                c /= np.where(large, size, 1)
    return Y, c
