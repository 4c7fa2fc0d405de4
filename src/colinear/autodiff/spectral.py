"""Derivatives of eigenvalues, eigenvectors and singular triplets, with repeated ones handled.

Where eigenvalues repeat, to rounding, their eigenvectors are any basis of the eigenspace. A
function of the pairs has a derivative there only if it does not depend on that basis: sums over the
whole cluster, its projector. Then what the rules below leave out inside a cluster multiplies zero.
Backwards this shows, in the cotangents, and where it is not so the derivative is NaN, with a
warning. Forwards it cannot be seen what becomes of the tangents: those of a cluster are right in
its sum and in its projector, and a warning says so if they are not all the same.

Second derivatives along H need Q = V^H H V inside of a cluster too, of which differentiating values
and vectors gives the diagonal only. The rest is the derivative of M = V^H A V, V held, between
different vectors of one value: zero, but for its derivative. Those of the vectors can be written
with it. Those of the values cannot: that of Σ g(λ_i) has g'' times P_ij Q_ji, which shows in no
tangent of a value. There M is a trap (`unknown`): backwards what needs M is NaN, with a warning,
and forwards a warning says that it is left out. f(A) itself has its second derivative all the same
(`functions.spectral_function`).

The same holds for the phases of complex eigenvectors of self-adjoint matrices and of singular
vectors, which no library promises.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from ..backends import (
    Array,
    adjoint,
    eye_like,
    hermitian,
    inner_products,
    matrix_inverse,
    program,
    zeros_like,
)
from ..errors import DerivativeWarning
from .implicit import linear_map

# times n: eigenvalues closer than so many roundings of the largest are taken for one
ROUNDINGS = 16
NEGLIGIBLE = 0.5  # the power of eps, relative to the largest cotangent, below which one is rounding

SEPARATE = (
    "{}: values repeat, and the function that is differentiated depends on more than their sum and "
    "their common space, or on the phases of vectors: it has no derivative here, so NaN is given. "
    "Functions of the matrix have one: apply(f, A), exp(A), trace, ..."
)
FORWARD = (
    "{}: values repeat. Their tangents are right in sums over all that are equal, and those of the "
    "vectors in projectors onto their common space; one by one they depend on the basis."
)
TWICE = (
    "{}: values repeat. They and their vectors have no second derivatives there{}. Functions of "
    "the matrix have them: apply(f, A), "
    "exp(A), ..., and so has trace(apply(g, A)), the sum of g over all values."
)
PARALLEL = (
    "{}: A is defective, or close to it: some eigenvectors are almost parallel, so derivatives of "
    "eigenvalues and eigenvectors are inaccurate, or do not exist."
)


def close(xp: Any, values: Array) -> Array:
    """Which pairs of values are the same to rounding: (*batch, n, n), true on the diagonal."""
    values = xp.stop_gradient(values)
    gap = xp.abs(values[..., :, None] - values[..., None, :])
    largest = xp.max(xp.abs(values), axis=-1)[..., None, None]
    return gap <= ROUNDINGS * values.shape[-1] * xp.eps(values.dtype) * largest


def reciprocal(xp: Any, x: Array, skipped: Array) -> Array:
    """1 / x, zero where it is skipped."""
    return xp.where(skipped, 0 * x, 1 / xp.where(skipped, 1 + 0 * x, x))


def inverse_gaps(xp: Any, values: Array) -> tuple[Array, Array]:
    """1 / (λ_j - λ_i), zero where they are the same, and where that is."""
    same = close(xp, values)
    return reciprocal(xp, values[..., None, :] - values[..., :, None], same), same


def off_diagonal(xp: Any, same: Array) -> Array:
    """Which pairs of two different values are the same."""
    return xp.logical_and(same, xp.logical_not(eye_like(xp, same)))


def attached(
    xp: Any, A: Array, pairs: tuple[Array, ...], jvp: Callable[..., Any], ranks: tuple[int, ...]
) -> tuple[Array, ...]:
    """What was found from A, with its derivative: `jvp((A, *pairs), tangents, pairs)`.

    One set of vectors may serve all matrices of a batch (those of c I), but their derivatives
    differ.
    """
    pairs = tuple(xp.stop_gradient(x) for x in pairs)
    if not xp.is_differentiated(A):
        return pairs
    shapes = [(*A.shape[:-2], *x.shape[x.ndim - rank :]) for x, rank in zip(pairs, ranks)]
    pairs = tuple(xp.broadcast_to(x, shape) for x, shape in zip(pairs, shapes))
    same = lambda A, *pairs: tuple(x + 0 for x in pairs)
    return tuple(xp.custom_derivative(same, jvp=jvp, ranks=(2, *ranks))(A, *pairs))


def guarded(
    xp: Any,
    texts: tuple[str, str],
    tangents: tuple[Array, ...],
    P: Array,
    unequal: Callable[..., Array],
    judge: Callable[..., Array],
    *constants: Array,
) -> Any:
    """The tangents as they are. Forwards, a warning, the first text, where `unequal(P,
    *constants)`, (*batch,), holds; backwards, NaN and a warning, the second one, where
    `judge(cotangents, *constants)` does."""

    def forward(parts: tuple[Array, ...], *constants: Array) -> tuple[Array, ...]:
        *tangents, P = parts
        xp.warn_later(unequal(P, *constants), texts[0], category=DerivativeWarning)
        return tuple(x + 0 for x in tangents)

    def backward(cotangents: tuple[Array, ...], *constants: Array) -> tuple[Array, ...]:
        parts = checked(xp, texts[1], cotangents, judge, *constants)
        return *parts, zeros_like(xp, P, P.shape)

    return linear_map(xp, forward, backward, (*tangents, P), *constants)


def nowhere(xp: Any) -> Callable[[Array], Array]:
    """What `guarded` is told of tangents that are right one by one."""
    return lambda P: zeros_like(xp, P != 0, P.shape[:-2])


def once(name: str) -> tuple[str, str]:
    """The texts of `guarded` for first derivatives."""
    return FORWARD.format(name), SEPARATE.format(name)


def change(xp: Any, M: Array) -> Array:
    """Zero, with the derivative of M."""
    return M - xp.stop_gradient(M)


def unknown(xp: Any, name: str, M: Array, same: Array) -> Array:
    """Zero, for `change(xp, M)` between different vectors of one value where that is not known:
    forwards a warning if there is one, backwards NaN and a warning if it is needed. (All of M is
    taken, to tell what is rounding.)"""

    def counts(M: Array, same: Array) -> Array:
        return exceeds(xp, xp.where(off_diagonal(xp, same), M, 0), largest(xp, M, 2), 2)

    def forward(parts: tuple[Array, ...], same: Array) -> tuple[Array, ...]:
        (M,) = parts
        text = TWICE.format(name, ": what is inside of their common space is left out")
        xp.warn_later(counts(M, same), text, category=DerivativeWarning)
        return (0 * M,)

    def backward(cotangents: tuple[Array, ...], same: Array) -> tuple[Array, ...]:
        text = TWICE.format(name, ", so NaN is given")
        judge = lambda cotangents, same: counts(cotangents[0], same)
        (M,) = checked(xp, text, cotangents, judge, same)
        return (xp.where(xp.isnan(M), M, 0),)

    return linear_map(xp, forward, backward, (M,), same)[0]


def checked(
    xp: Any,
    text: str,
    cotangents: tuple[Array, ...],
    judge: Callable[..., Array],
    *constants: Array,
) -> tuple[Array, ...]:
    """The cotangents, NaN and a warning where `judge(cotangents, *constants)` holds."""
    bad = judge(tuple(map(xp.stop_gradient, cotangents)), *map(xp.stop_gradient, constants))
    xp.warn_later(bad, text, category=DerivativeWarning)
    spoil = xp.where(bad, math.nan, 0.0)
    return tuple(
        x + xp.astype(xp.reshape(spoil, (*spoil.shape, *(1,) * (x.ndim - spoil.ndim))), x.dtype)
        for x in cotangents
    )


def largest(xp: Any, x: Array, axes: int) -> Array:
    """The largest magnitude along the last axes; 0 of none."""
    if 0 in x.shape[-axes:]:
        return zeros_like(xp, xp.real(x), x.shape[:-axes])
    return xp.max(xp.abs(x), axis=tuple(range(-axes, 0)))


def exceeds(xp: Any, x: Array, size: Array, axes: int) -> Array:
    """Whether an entry of x, in its last axes, is more than rounding beside `size`."""
    return largest(xp, x, axes) > xp.eps(x.dtype) ** NEGLIGIBLE * size


def _any_exceeds(xp: Any, matrices: list[Array], size: Array) -> Array:
    return functools.reduce(xp.logical_or, (exceeds(xp, X, size, 2) for X in matrices))


def spread(xp: Any, x: Array, same: Array) -> Array:
    """The differences of entries of x that belong to values that are the same."""
    return xp.where(same, x[..., :, None] - x[..., None, :], 0 * x[..., None])


def largest_of(xp: Any, g: Array, *others: Array) -> Array:
    """The largest magnitude of cotangents: of values, and of matrices."""
    sizes = (largest(xp, x, 2) for x in others)
    return functools.reduce(xp.maximum, sizes, largest(xp, g, 1))


def differs(xp: Any, P: Array, same: Array) -> Array:
    """Whether the part of P inside a cluster is not a multiple of the identity."""
    inside = xp.where(off_diagonal(xp, same), P, 0)
    return _any_exceeds(xp, [inside, spread(xp, xp.diagonal(P), same)], largest(xp, P, 2))


# --------------------------------------------------------------------------------------------------


def eigh(xp: Any, A: Array) -> tuple[Array, Array]:
    """Eigenvalues, ascending, and orthonormal eigenvectors of a self-adjoint matrix.

    A V = V Λ with V^H V = I. Put dV = V K, and P = V^H dA V:
        dA V + A V K = V K Λ + V dΛ,  so  P + Λ K - K Λ = dΛ:
        dλ_i = P_ii,     K_ij = P_ij / (λ_j - λ_i) for i ≠ j.
    V^H V = I makes K skew, so K_ii is imaginary: a change of phase, taken as zero. Of pairs in a
    cluster K_ij is zero too. dA stands for its self-adjoint part: eigenvalues of anything else are
    not what was asked for.
    """
    return eigh_known(xp, A, *xp.eigh(xp.stop_gradient(A)))


def eigh_known(
    xp: Any, A: Array, values: Array, V: Array, guard: bool = True
) -> tuple[Array, Array]:
    """The same, of pairs that are known; without `guard` for one who knows about clusters."""
    return attached(xp, A, (values, V), program(xp.name, _pair_tangent, True, guard), (1, 2))


def _pair_tangent(
    xp: Any, is_hermitian: bool, guard: float, primals: tuple, tangents: tuple, output: tuple
) -> tuple[Array, Array]:
    """dλ and dV of `eigh`, or of `eig`."""
    values, V = output
    A, dA = (xp.astype(x, V.dtype) for x in (primals[0], tangents[0]))
    P = in_vectors(xp, V, hermitian(xp, dA) if is_hermitian else dA, is_hermitian)
    inverse, same = inverse_gaps(xp, values)
    K, moved = P * inverse, xp.diagonal(P)
    moved = xp.real(moved) if is_hermitian else moved
    if guard:
        held = xp.stop_gradient(V)
        if not is_hermitian:
            bad = are_parallel(xp, held, guard)
            xp.warn_later(bad, PARALLEL.format("eig"), category=DerivativeWarning)
        M = in_vectors(xp, held, A, is_hermitian)
        moved, K = twice(xp, moved, K, P, M, same, inverse)
        unequal = functools.partial(differs, xp)
        judge = functools.partial(judge_pairs, xp, is_hermitian)
        moved, K = guarded(xp, once("eig"), (moved, K), P, unequal, judge, same)
    T = xp.matmul(V, K)
    if is_hermitian:
        return moved, T
    row = xp.argmax(xp.abs(xp.stop_gradient(V)), axis=-2)[..., None, :]
    turn = xp.imag(xp.take_along_axis(T, row, axis=-2) / xp.take_along_axis(V, row, axis=-2))
    grow = xp.real(xp.vecdot(V, T, axis=-2))[..., None, :]
    return moved, T - V * (grow + 1j * turn)


def in_vectors(xp: Any, V: Array, X: Array, is_hermitian: bool) -> Array:
    """V^-1 X V; of a self-adjoint matrix V^-1 is V^H."""
    XV = xp.matmul(X, V)
    return inner_products(xp, V, XV) if is_hermitian else xp.lu_solve(*xp.lu_factor(V), XV)


def judge_pairs(xp: Any, is_hermitian: bool, cotangents: tuple, same: Array) -> Array:
    """Whether cotangents, of values, of K and of what else there is, tell one vector of a cluster
    from another, or the phases of orthonormal ones."""
    g, S, *_ = cotangents
    size = largest_of(xp, *cotangents)
    if is_hermitian:
        inside = xp.where(same, S - adjoint(xp, S), 0)
    else:
        inside = xp.where(off_diagonal(xp, same), S, 0)
    return _any_exceeds(xp, [spread(xp, g, same), inside], size)


def twice(
    xp: Any, moved: Array, K: Array, P: Array, M: Array, same: Array, inverse: Array
) -> tuple[Array, Array]:
    """Tangents that know of M, for their own derivatives: P + (Λ + M) K - K (Λ + M) = dΛ, with 1
    / (λ_j - λ_i), zero in a cluster."""
    M = change(xp, M)
    trap = xp.sum(P * xp.matrix_transpose(unknown(xp, "eig", M, same)), axis=-1)
    M = xp.where(off_diagonal(xp, same), M, 0)
    return moved + (trap if xp.is_complex(moved) else xp.real(trap)), K + (
        xp.matmul(M, K) - xp.matmul(K, M)
    ) * inverse


# --------------------------------------------------------------------------------------------------


def eig(xp: Any, A: Array) -> tuple[Array, Array]:
    """Eigenvalues and right eigenvectors of any diagonalisable matrix, with the gauge of LAPACK:
    unit norm, and the largest entry of each vector keeps its phase (which is zero, for complex
    ones).

    A V = V Λ. Put dV = V K; the rows of V^-1 are the left eigenvectors, and P = V^-1 dA V:
        P + Λ K - K Λ = dΛ:   dλ_i = P_ii,   K_ij = P_ij / (λ_j - λ_i) for i ≠ j.
    The gauge gives K_jj. With T = V K, K_jj = 0, and dv_j = t_j + c v_j:
        Re v_j^H dv_j = 0       for the norm,           so Re c = -Re v_j^H t_j;
        Im dv_mj / v_mj = 0     for the phase of v_mj,  so Im c = -Im t_mj / v_mj.
    """
    return eig_known(xp, A, *xp.eig(xp.stop_gradient(A)))


def are_parallel(xp: Any, V: Array, power: float) -> Array:
    """Whether unit vectors are dependent to eps^power, (*batch,); `eig` judges them by half of
    the digits."""
    left = xp.vector_norm(matrix_inverse(xp, V), axis=-1)
    return xp.logical_not(xp.max(left, axis=-1) * xp.eps(V.dtype) ** power < 1)


def eig_known(
    xp: Any, A: Array, values: Array, V: Array, guard: float = 0.5
) -> tuple[Array, Array]:
    """The same, of pairs that are known. A warning is given where eigenvectors are dependent to
    eps^guard; 0 stands for no warnings at all, for one who knows about clusters."""
    return attached(xp, A, (values, V), program(xp.name, _pair_tangent, False, guard), (1, 2))


# --------------------------------------------------------------------------------------------------


def svd(xp: Any, A: Array) -> tuple[Array, Array, Array]:
    """U, s and V^H of the thin decomposition A = U Σ V^H.

    Put dU = U K + R, dV = V L + Q with U^H R = 0, V^H Q = 0, K and L skew, and P = U^H dA V. Then
        dA = dU Σ V^H + U dΣ V^H + U Σ dV^H   gives   P = K Σ + dΣ - Σ L,
    so ds_i = Re P_ii, and from P_ij and conj(P_ji), for X = K + L and Y = K - L,
        X_ij (s_j - s_i) = P_ij + conj(P_ji)  for i ≠ j,     Y_ij (s_j + s_i) = P_ij - conj(P_ji).
    X_ii is a common phase of u_i and v_i, taken as zero, and X_ij is zero in a cluster. The parts
    outside the spaces of U and V:
        R Σ = (I - U U^H) dA V,     Q Σ = (I - V V^H) dA^H U.
    A singular value that is zero has no derivative (it is a magnitude), and its vectors are any of
    the null spaces: what depends on them has none either.
    """
    return attached(xp, A, xp.svd(xp.stop_gradient(A)), program(xp.name, _svd_tangent), (2, 1, 2))


def _svd_tangent(
    xp: Any, primals: tuple, tangents: tuple, output: tuple
) -> tuple[Array, Array, Array]:
    (U, s, Vh), dA = output, tangents[0]
    m, n, k = U.shape[-2], Vh.shape[-1], s.shape[-1]
    V, Uh, same = adjoint(xp, Vh), adjoint(xp, U), close(xp, s)
    dAV = xp.matmul(dA, V)
    P = xp.matmul(Uh, dAV)
    held = xp.stop_gradient(s)
    zero = held <= ROUNDINGS * max(m, n) * xp.eps(s.dtype) * xp.max(held, axis=-1, keepdims=True)
    nothing = xp.logical_and(zero[..., :, None], zero[..., None, :])
    X = (P + adjoint(xp, P)) * reciprocal(xp, s[..., None, :] - s[..., :, None], same)
    Y = (P - adjoint(xp, P)) * reciprocal(xp, s[..., None, :] + s[..., :, None], nothing)
    inverse = reciprocal(xp, s, zero)[..., None, :]
    R = (dAV - xp.matmul(U, P)) * inverse if m > k else 0 * U
    Q = (inner_products(xp, dA, U) - xp.matmul(V, adjoint(xp, P))) * inverse if n > k else 0 * V

    def judge(cotangents: tuple, same: Array, zero: Array, nothing: Array) -> Array:
        g, S, D, *outer = cotangents
        size = largest_of(xp, *cotangents)
        unsure = [
            xp.where(zero, g, 0)[..., None],
            spread(xp, g, same),
            xp.where(same, S - adjoint(xp, S), 0 * S),
            xp.where(nothing, D - adjoint(xp, D), 0 * D),
        ]
        unsure += [xp.where(zero[..., None, :], G, 0) for G in outer if G.shape[-2] > k]
        return _any_exceeds(xp, unsure, size)

    def unequal(P: Array, same: Array, *_: Array) -> Array:
        return differs(xp, hermitian(xp, P), same)

    M = xp.matmul(xp.stop_gradient(Uh), xp.matmul(primals[0], xp.stop_gradient(V)))
    M = unknown(xp, "svd", change(xp, hermitian(xp, M)), same)
    moved = xp.real(xp.diagonal(P)) + xp.real(xp.sum(P * xp.matrix_transpose(M), axis=-1))
    X, Y = (x + xp.matmul(M, x) - xp.matmul(x, M) for x in (X, Y))  # what they lack is of this kind
    parts, where = (moved, X, Y, R, Q), (same, zero, nothing)
    moved, X, Y, R, Q = guarded(xp, once("svd"), parts, P, unequal, judge, *where)
    dU, dV = xp.matmul(U, X + Y) / 2 + R, xp.matmul(V, X - Y) / 2 + Q
    return dU, moved, adjoint(xp, dV)


# --------------------------------------------------------------------------------------------------


DEPENDENT = (
    "qr: columns are dependent, or zero, so that A = Q R is not unique: what depends on more of it "
    "than their product has no derivative here, and NaN is given. Functions of the matrix have "
    "one: inv(A), exp(A), apply(f, A), norm(A), ..."
)


def spoiled(xp: Any, text: str, tangents: tuple[Array, ...], bad: Array) -> Any:
    """The tangents, and backwards the cotangents, as they are; NaN and a warning where `bad`,
    unless they are zero."""

    def judge(parts: tuple[Array, ...], bad: Array) -> Array:
        moves = functools.reduce(
            xp.logical_or, (xp.any(x != 0, axis=tuple(range(bad.ndim, x.ndim))) for x in parts)
        )
        return xp.logical_and(bad, moves)

    def either(parts: tuple[Array, ...], bad: Array) -> tuple[Array, ...]:
        return checked(xp, text, parts, judge, bad)

    return linear_map(xp, either, either, tangents, bad)
