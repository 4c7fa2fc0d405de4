"""What several backends share: loops that run at once, half precision by single, norms, solves
with factors, products along bands, pivots of QR. The framework is that of the arrays."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy

from . import adjoint, namespace_of, places_like, positive_or_one, zeros_like

Array = Any

# of arrays that NumPy computes with for other frameworks
LENT_DTYPES = "float32 float64 complex64 complex128 int32 int64 bool".split()


def sum_once(f: Callable, axis: int, *arrays: Array) -> tuple[Array, ...]:
    """`f(*arrays)`, some sums over this axis of all of the arrays, which a mesh makes at once."""
    return f(*arrays)


# Loops of the frameworks that run at once.


def fori_loop(n: int, body: Callable, state: Any) -> Any:
    """Iterate `state = body(i, state)` for i in range(n)."""
    for i in range(n):
        state = body(i, state)
    return state


def scan(step: Callable, state: Any, *arrays: Any, reverse: Any = False) -> Any:
    """`state, result = step(state, *elements)` over the elements along the first axis, first or
    last first; the results, stacked."""
    xp, places = namespace_of(arrays[0]), range(len(arrays[0]))
    results = {}
    for i in reversed(places) if reverse else places:
        state, results[i] = step(state, *[x[i] for x in arrays])
    return xp.tree_map(lambda *found: xp.stack(found), *[results[i] for i in places])


def scan_recurrence(E: Array, f: Array) -> Array:
    """y_i = E_i y_(i-1) + f_i from 0, for all i: E (*batch, c, l, l), f (*batch, c, l, k)."""
    xp = namespace_of(f)

    def step(y: Array, E: Array, f: Array) -> tuple[Array, Array]:
        y = xp.matmul(E, y) + f
        return y, y

    E, f = (xp.moveaxis(x, -3, 0) for x in (E, f))
    return xp.moveaxis(xp.scan(step, 0 * f[0], E, f), 0, -3)


def double_recurrence(E: Array, f: Array) -> Array:
    """The same in log2(c) steps for all i at once, after Kogge and Stone (1973): for frameworks
    where a step costs a launch. Its products of E must not grow."""
    xp, step = namespace_of(f), 1
    while step < f.shape[-3]:
        before, E_here, f_here = E[..., :-step, :, :], E[..., step:, :, :], f[..., step:, :, :]
        f_here = f_here + xp.matmul(E_here, f[..., :-step, :, :])
        f = xp.concat([f[..., :step, :, :], f_here], axis=-3)
        E = xp.concat([E[..., :step, :, :], xp.matmul(E_here, before)], axis=-3)
        step *= 2
    return f


def loop_map(f: Callable, *arrays: Any) -> Array:
    """`f` of the elements along the first axis, one after the other, stacked."""
    stack = namespace_of(arrays[0]).stack
    return stack([f(*elements) for elements in zip(*arrays, strict=True)])


def radial_product(form: Any, X: Array, Y: Any, parameters: tuple) -> str:
    """Nothing to say of why no program multiplies with a kernel of the distance."""
    return ""


def compiled_entries(k: Callable, *arguments: Any) -> tuple[Callable, str]:
    """k itself, and nothing to say: no function of points is compiled by itself."""
    return k, ""


def itself(x: Any) -> Any:
    """`x`: what a framework does with a value or a function that it need not treat."""
    return x


def never(*values: Any) -> bool:
    """False: what a framework does not do."""
    return False


@contextlib.contextmanager
def watch_operations(x: Any) -> Iterator[Any]:
    """Sees nothing: there are no operations beside x that can be recorded."""
    yield None


def record(f: Callable, arrays: Any) -> None:
    """None: nothing can be recorded."""


def recorder(context: Any) -> None:
    """None: no call is recorded."""


def descend(*arrays: Any) -> None:
    """None: no kernel updates two vectors at once."""


def fold_in(gen: Any, i: Any) -> Any:
    """The source of the i-th block of numbers. A generator moves on as it is drawn from, so it
    is that itself."""
    return gen


def diagonal(x: Array, offset: int = 0) -> Array:
    """The diagonals of the matrices in the last two axes."""
    return x.diagonal(offset, -2, -1)


def common(*arrays: Array) -> Any:
    """The arrays in the dtype of their sum."""
    dtype = arrays[0].dtype
    for x in arrays:
        if x.dtype != dtype:
            xp = namespace_of(x)
            dtype = xp.result_type(*arrays)
            return [xp.astype(y, dtype) for y in arrays]
    return arrays


# LAPACK, matrix by matrix.


@functools.cache
def _lapack(name: str, character: str, module: str = "lapack") -> Callable:
    """The LAPACK or BLAS routine for a dtype: SciPy's own search for it (get_lapack_funcs) costs
    5 us a call."""
    return getattr(
        getattr(scipy.linalg, module), {"f": "s", "d": "d", "F": "c", "D": "z"}[character] + name
    )


def _over_batch(*ranks: int) -> Callable[[Callable], Callable]:
    """Loop a function of arrays of these ranks over the leading dimensions, which broadcast."""

    def decorate(function: Callable) -> Callable:
        @functools.wraps(function)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            arrays, others = arguments[: len(ranks)], arguments[len(ranks) :]
            cuts = [x.ndim - rank for x, rank in zip(arrays, ranks, strict=True)]
            if not any(cuts):
                return function(*arguments, **options)
            batch = np.broadcast_shapes(*(x.shape[:cut] for x, cut in zip(arrays, cuts)))
            wide = [np.broadcast_to(x, (*batch, *x.shape[cut:])) for x, cut in zip(arrays, cuts)]
            each = [[x[i] for x in wide] for i in np.ndindex(batch)]
            if not each:  # ones, which LAPACK takes for pivots too, tell the shapes
                each = [[np.ones(x.shape[cut:], x.dtype) for x, cut in zip(arrays, cuts)]]
            results = [function(*parts, *others, **options) for parts in each]
            count = math.prod(batch)
            return _map(lambda *xs: np.stack(xs)[:count].reshape(*batch, *xs[0].shape), *results)

        return wrapped

    return decorate


def by_columns(f: Callable, X: Array) -> Array:
    """`f` of one matrix (n, k) for all of (*batch, n, k), whose columns become those of one."""
    xp, rows = namespace_of(X), namespace_of(X).moveaxis(X, -2, 0)
    Y = f(xp.reshape(rows, (rows.shape[0], math.prod(rows.shape[1:]))))
    return xp.moveaxis(xp.reshape(Y, (Y.shape[0], *rows.shape[1:])), 0, -2)


def _map(f: Callable, *results: Any) -> Any:
    """Apply `f` to arrays, or to the parts of tuples of arrays."""
    return (
        tuple(f(*xs) for xs in zip(*results, strict=True))
        if isinstance(results[0], tuple)
        else f(*results)
    )


def _nan_on_failure(function: Callable) -> Callable:
    """NaN where LAPACK does not converge, or might never (an infinity); other matrices of the
    batch keep their answers."""

    @functools.wraps(function)
    def wrapped(A: Array, *options: Any, **named: Any) -> Any:
        try:
            if np.isfinite(A).all():
                return function(A, *options, **named)
        except np.linalg.LinAlgError:
            pass
        if A.ndim > 2:
            return _over_batch(2)(wrapped)(A, *options, **named)
        shapes = function(np.zeros_like(A), *options, **named)
        return _map(lambda x: np.full_like(x, np.nan), shapes)

    return wrapped


# Half precision for routines that have none: LAPACK, FFTs and sparse kernels start at single
# precision.


def half(function: Callable) -> Callable:
    """Compute in single precision what arrives in half precision.

    The answer is cast back unless a wider array was given too; complex answers stay complex64, as
    no framework has linear algebra for half-precision complex numbers.
    """

    @functools.wraps(function)
    def wrapped(*arguments: Any, **options: Any) -> Any:
        for x in arguments:
            if getattr(getattr(x, "dtype", None), "itemsize", 0) == 2:
                return _by_single(function, arguments, options)
        return function(*arguments, **options)

    return wrapped


def _by_single(function: Callable, arguments: tuple, options: dict[str, Any]) -> Any:
    floats = [x for x in arguments if (xp := namespace_of(x)) and xp.is_floating(x)]
    halves = [x for x in floats if x.dtype.itemsize == 2]
    if not halves:  # 16-bit integers
        return function(*arguments, **options)
    xp, half = namespace_of(halves[0]), halves[-1].dtype
    widened = [xp.astype(x, xp.float32) if any(x is y for y in halves) else x for x in arguments]
    result = function(*widened, **options)
    if len(halves) < len(floats):
        return result
    return _map(lambda x: xp.astype(x, half) if x.dtype == xp.float32 else x, result)


def extreme_scale(x: Array, axis: Any, limits: Any) -> Array:
    """The largest |x| along the axes, kept, where squares of it vanish or overflow; else 1.
    Constant for derivatives. `limits` are those of the real dtype, by the framework's `finfo`."""
    xp = namespace_of(x)
    largest = xp.max(xp.abs(xp.stop_gradient(x)), axis=axis, keepdims=True)
    low = math.sqrt(float(limits.tiny) / float(limits.eps))
    high = math.sqrt(float(limits.max) * float(limits.eps))
    is_ordinary = (largest > low) & (largest < high) | (largest == 0) | ~xp.isfinite(largest)
    # complex numbers are not divided by subnormal ones
    return xp.where(is_ordinary, 1, xp.maximum(largest, float(limits.tiny)))


def fft(x: Array, axis: int = -1) -> Array:
    """The Fourier transform along one axis."""
    return namespace_of(x).fftn(x, axes=(axis,))


def ifft(x: Array, axis: int = -1) -> Array:
    """The inverse Fourier transform along one axis."""
    return namespace_of(x).ifftn(x, axes=(axis,))


def of_finite(function: Callable) -> Callable:
    """Make NaN of the answers for matrices that hold NaN or infinity: LAPACK refuses them, or its
    iterations have no end."""

    @functools.wraps(function)
    def wrapped(A: Array, *options: Any, **named: Any) -> Any:
        xp = namespace_of(A)
        finite = xp.all(xp.isfinite(A), axis=(-2, -1))
        result = function(xp.where(finite[..., None, None], A, 0), *options, **named)

        def blank(x: Array) -> Array:
            shape = (*finite.shape, *(1,) * (x.ndim - finite.ndim))
            return xp.where(xp.reshape(finite, shape), x, math.nan)

        return _map(blank, result)

    return wrapped


def corner(f: Callable[[Array], Array], S: Array, C: Array, T: Array) -> Array:
    """The upper right block of f([S C; 0 T]); for S = T it is the derivative of f at S along C
    (Higham, Functions of Matrices, theorem 3.6).

    It is linear in C, and what computes f is not: a large C would steer it, and leave S to its
    roundings. So each C is given the size of its S.
    """
    xp, n = namespace_of(C), S.shape[-1]
    if not n:
        return C
    sizes = (xp.max(xp.abs(xp.stop_gradient(B)), axis=(-2, -1), keepdims=True) for B in (C, S))
    size, own = (positive_or_one(xp, size) for size in sizes)
    S, T = xp.broadcast_to(S, C.shape), xp.broadcast_to(T, C.shape)
    upper = xp.concat([S, C / size * own], axis=-1)
    lower = xp.concat([zeros_like(xp, C, C.shape), T], axis=-1)
    return f(xp.concat([upper, lower], axis=-2))[..., :n, n:] / own * size


# Products, and solves with factors of a matrix.


def pad(x: Array, before: int, after: int, axis: int) -> Array:
    """x with zeros on both sides along an axis."""

    def zeros(count: int) -> Array:
        shape = list(x.shape)
        shape[axis] = count
        return zeros_like(namespace_of(x), x, tuple(shape))

    parts = [*([zeros(before)] if before else ()), x, *([zeros(after)] if after else ())]
    return parts[0] if len(parts) == 1 else namespace_of(x).concat(parts, axis=axis)


def add_product(B: Array, X: Array, Y: Array, c: int = 1) -> Array:
    """B + c X Y for c = 1 or -1."""
    product = namespace_of(B).matmul(X, Y)
    return B + product if c > 0 else B - product


def cholesky_inverse_tangent(primals: tuple, tangents: tuple, T: Array) -> Array:
    """dT = -T dA T for T = A^-1, A = L L^H."""
    xp = namespace_of(T)
    M = tangents[0] @ adjoint(xp, primals[0])
    return -T @ (M + adjoint(xp, M)) @ T


def cholesky_or_nan(A: Array) -> Array:
    """L of Hermitian A = L L^H, NaN where A is not positive definite."""
    return namespace_of(A).cholesky(A)[0]


def cholesky_solve(L: Array, B: Array) -> Array:
    """Solve A X = B from `cholesky(A)`; B is (*batch, n, k)."""
    solve_triangular = namespace_of(B).solve_triangular
    return solve_triangular(L, solve_triangular(L, B), adjoint=True)  # X = L^-H L^-1 B


def lu_parity(pivots: Array) -> Array:
    """The sign of the permutation that row swaps make."""
    xp = namespace_of(pivots)
    swaps = xp.sum(pivots != places_like(xp, pivots), axis=-1)
    return 1 - 2 * (swaps % 2)


def lu_substitute(LU: Array, pivots: Array, B: Array, adjoint: bool = False) -> Array:
    """Solve A X = B or A^H X = B from `lu_factor(A)` by triangular solves."""
    xp = namespace_of(B)
    order = xp.lu_permutation(pivots, LU.shape[-1])
    if not adjoint:
        Y = xp.solve_triangular(LU, permute_rows(B, order), True, True)
        return xp.solve_triangular(LU, Y, False)
    Y = xp.solve_triangular(LU, B, False, False, adjoint)
    Y = xp.solve_triangular(LU, Y, True, True, adjoint)
    return permute_rows(Y, xp.argsort(order, axis=-1))


def permute_rows(X: Array, order: Array) -> Array:
    """X[order] for each matrix of a batch."""
    xp, (n, k) = namespace_of(X), X.shape[-2:]
    if order.ndim == 1:
        return xp.take(X, order, axis=-2)
    batch = np.broadcast_shapes(X.shape[:-2], order.shape[:-1])
    order = xp.broadcast_to(order[..., None], (*batch, n, 1))
    return xp.take_along_axis(xp.broadcast_to(X, (*batch, n, k)), order, axis=-2)


def eigen_solve(vectors: Array, values: Array, B: Array) -> Array:
    """Solve A X = B by the eigenvectors V and eigenvalues d of Hermitian A."""
    xp = namespace_of(B)
    return vectors @ ((adjoint(xp, vectors) @ B) / values[..., None])  # X = V diag(d)^-1 V^H B


def ldl_slogdet(factors: tuple[Array, ...]) -> tuple[Array, Array]:
    """The sign and the logarithm of |det A| from `ldl_factor(A)`: of eigenvectors and eigenvalues,
    or of LAPACK's packed L D L^H (sytrf, hetrf) and its pivots.

    D has blocks of size 1, and of size 2 where two pivots < 0 stand together.
    """
    packed, pivots = factors
    xp = namespace_of(packed)
    if xp.is_floating(pivots):
        return xp.prod(xp.sign(pivots), axis=-1), xp.sum(xp.log(xp.abs(pivots)), axis=-1)
    d = xp.real(xp.diagonal(packed))
    paired = pivots < 0
    first = xp.logical_and(paired, xp.cumsum(xp.astype(paired, pivots.dtype), axis=-1) % 2 == 1)
    below = xp.concat([xp.abs(xp.diagonal(packed, -1)), d[..., :1]], axis=-1)
    # det [[a, e*], [e, c]] = |e|^2 ((a/|e|) (c/|e|) - 1); |e| is the scale of its block, so nothing
    # overflows.
    scale = xp.where(first, below, 1)
    pair = (d / scale) * (xp.roll(d, -1, axis=-1) / scale) - 1
    value = xp.where(paired, xp.where(first, pair, 1), d)
    return xp.prod(xp.sign(value), axis=-1), xp.sum(
        xp.log(xp.abs(value)) + 2 * xp.log(scale), axis=-1
    )


# Products with banded matrices: what the derivatives of solves with them need.
#
# A banded matrix is stored as in LAPACK, `ab[..., u + i - j, j] = A[..., i, j]`, with l diagonals
# below the main one and u above.


def shift(xp: Any, X: Any, by: int) -> Any:
    """Move the rows of (..., n, k) down by `by` (up if negative); zeros come in."""
    *batch, n, k = X.shape
    if by == 0 or n == 0:
        return X
    zeros = zeros_like(xp, X, (*batch, min(abs(by), n), k))
    if abs(by) >= n:
        return zeros
    return xp.concat([zeros, X[..., :-by, :]] if by > 0 else [X[..., -by:, :], zeros], axis=-2)


def banded_matmul(xp: Any, ab: Any, widths: tuple[int, int], X: Any) -> Any:
    """A X. Column j of diagonal r contributes ab[r, j] X[j] to row j + r - u."""
    l, u = widths
    terms = [shift(xp, ab[..., r, :, None] * X, r - u) for r in range(l + u + 1)]
    return sum(terms[1:], terms[0])


def transposed(xp: Any, ab: Any, widths: tuple[int, int]) -> Any:
    """A^T in the same storage, with widths (u, l): row r of it is row l + u - r, moved by l - r."""
    l, u = widths
    rows = [shift(xp, ab[..., l + u - r, :, None], l - r)[..., 0] for r in range(l + u + 1)]
    return xp.stack(rows, axis=-2)


def outer_in_band(xp: Any, Y: Any, X: Any, widths: tuple[int, int]) -> Any:
    """The part of Y X^T inside the band: entry (u + i - j, j) is sum_k Y[i, k] X[j, k]."""
    l, u = widths
    return xp.stack([xp.sum(shift(xp, Y, u - r) * X, axis=-1) for r in range(l + u + 1)], axis=-2)


# Products by diagonals that are laid out by rows: entry i of each stands in row i of the matrix.


def lay_out(values: Array, bits: Array) -> tuple[Array, ...]:
    """Diagonals (d, m) by rows as `diagonals_matmul` takes them; bit d of a row says that diagonal d
    has an entry there."""
    return (values,)


def sparse_diagonals(data: Array, structure: Any) -> tuple[Array, ...]:
    """The entries of a sparse matrix of few diagonals as `diagonals_matmul` takes them."""
    xp, (offsets, places, bits) = namespace_of(data), structure.diagonals
    empty = zeros_like(xp, data, (len(offsets) * structure.shape[0],))
    values = xp.set_at(empty, places, data)
    return lay_out(xp.reshape(values, (len(offsets), -1)), bits)


def diagonals_matmul(parts: tuple[Array, ...], offsets: tuple[int, ...], X: Array) -> Array:
    """Multiply the matrix of these diagonals by X, (*batch, n, k) or a vector (n,)."""
    (values,) = parts
    xp, m, axis = namespace_of(X), values.shape[1], max(-2, -X.ndim)
    n, above = X.shape[axis], max(0, -min(offsets))
    shapes = [list(X.shape), list(X.shape)]
    shapes[0][axis], shapes[1][axis] = above, max(0, m + max(offsets) - n)
    before, after = (zeros_like(xp, X, tuple(shape)) for shape in shapes)
    padded, total = xp.concat([before, X, after], axis=axis), None
    for d, k in zip(values, offsets):
        part = padded[..., above + k : above + k + m, :] if axis == -2 else padded[above + k :][:m]
        term = (d[:, None] if axis == -2 else d) * part
        total = term if total is None else total + term
    return total


# The order of the columns in a QR factorisation with column pivoting, for frameworks that lack it.


def pivot_order(xp: Any, A: Any) -> Any:
    """The greedy order: at each step the column with the largest part outside the span of those
    taken.

    By modified Gram-Schmidt on a copy, which orders well even where it would not orthogonalise
    well; the factors themselves then come from the framework's QR of `A[:, order]`. Batched,
    without branches on values. O(m n min(m, n)).
    """
    n, index = A.shape[-1], places_like(xp, A)
    place = xp.broadcast_to(
        index, (*A.shape[:-2], n)
    )  # in the order: as given, but for those taken
    for i in range(min(A.shape[-2:])):
        norms = xp.where(place < 0, -1.0, xp.vector_norm(A, axis=-2))
        best = xp.argmax(norms, axis=-1, keepdims=True)
        q = xp.take_along_axis(A, xp.expand_dims(best, -2), axis=-1)
        q = q / positive_or_one(xp, xp.vector_norm(q, axis=-2, keepdims=True))
        A = A - q @ (adjoint(xp, q) @ A)
        place = xp.where(index == best, i - n, place)
    return xp.argsort(place, axis=-1)
