"""Eigenvalues of tridiagonal matrices: in closed form where the diagonals are constant, else in O(n^2) on the host.

Both are similar, by a diagonal matrix D, to a real symmetric one: if D is ill-conditioned, so are the eigenvectors, and the base
case takes over. It also does so under tracing, where values cannot be seen, and where derivatives are recorded.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..backends import Array
from ..dispatch import rule
from ..methods import EIGEN, fitting
from ..methods.tridiagonal import all_pairs, few_pairs
from ..operators.base import LinearOperator
from ..operators.dense import Dense
from ..operators.diagonal import Diagonal
from ..operators.product import Product
from ..operators.sine import Sine
from ..operators.tridiagonal import Tridiagonal
from ..properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT, STIEFEL, UNITARY
from ._arrays import is_watched, quiet
from .eigen import eig, judge_pairs
from .eigen_shared import Pairs, asked, finish

# ---------------------------------------------------------------------------------------------------- constant diagonals


def diagonals_are_constant(A: Any) -> bool:
    """Whether the diagonals are seen to be constant, and similar to those of a symmetric matrix by a well-conditioned D."""
    if 0 in A.shape or not _can_be_seen(A):
        return False
    if not all(_is_constant(A.xp, d) for d in (A.lower, A.diag, A.upper)):
        return False
    lower, diag, upper = _on_host(A, 1)
    if A.shape[-1] == 1:
        return bool(np.isfinite(diag).all() and (not A.properties & SELF_ADJOINT or (diag.imag == 0).all()))
    if not np.isfinite(lower + diag + upper).all() or (lower * upper == 0).any():
        return False
    if A.properties & SELF_ADJOINT:
        return bool((lower == upper.conj()).all() and (diag.imag == 0).all())
    with np.errstate(all="ignore"):
        condition = 0.5 * (A.shape[-1] - 1) * np.abs(np.log(np.abs(lower / upper)))
    return bool((condition < _most(A)).all())


def _is_constant(xp: Any, d: Array) -> bool:
    values = xp.peek(d)  # JAX traces what is computed inside a program, even of arrays that can be seen
    return bool(xp.all(d == d[..., :1])) if values is None else bool(np.all(values == values[..., :1]))


def _can_be_seen(A: Any) -> bool:
    return not any(is_watched(A.xp, d) for d in (A.lower, A.diag, A.upper))


def _most(A: Any) -> float:
    """The logarithm of the condition number up to which D is used: eps^(-1/4)."""
    return -0.25 * math.log(A.xp.eps(A.dtype))


def _on_host(A: Any, count: int | None = None) -> tuple[Any, Any, Any]:
    """The three diagonals, or their beginnings, in double precision."""
    wide = np.complex128 if A.is_complex else np.float64

    def beginning(d: Array) -> Any:
        values = A.xp.peek(d)
        values = A.xp.to_numpy(d[..., :count]) if values is None else values[..., :count]  # of a GPU no more than is needed
        return np.broadcast_to(values.astype(wide), (*A.batch_shape, values.shape[-1]))

    return beginning(A.lower), beginning(A.diag), beginning(A.upper)


def _put(A: Any, x: Any) -> Array:
    """Numbers of the host in A's framework and precision, real or complex as they are."""
    xp = A.xp
    real = xp.real_dtype(A.dtype)
    return xp.asarray(x, dtype=xp.complex_dtype(A.dtype) if np.iscomplexobj(x) else real, device=A._context.device)


@rule(eig, Tridiagonal, when=diagonals_are_constant)
def eig_sines(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """tridiag(c, a, b) has the eigenvalues a + 2 (b c)^1/2 cos(π j / (n + 1)) and eigenvectors D S: sines S, D_i = (c / b)^(i/2)"""
    n, k, is_hermitian = asked(A, k, which, method, known=True)
    lower, a, upper = _on_host(A, 1)
    s, r = _symmetrised(lower, upper, A) if n > 1 else (0 * a, np.ones_like(a))
    half = np.pi * np.arange(1, n + 1) / (2 * n + 2)
    # a + 2 s cos(2 x) about that of its ends that is the smaller, so that it is found without cancellation.
    low, high = a + 2 * s, a - 2 * s
    values = np.where(np.abs(low) <= np.abs(high), low - 4 * s * np.sin(half) ** 2, high + 4 * s * np.cos(half) ** 2)
    vectors = _scaled_sines(A, r, n)
    if is_hermitian and k == n:  # s < 0, so they ascend
        return _put(A, values.real), vectors
    return finish(A, _put(A, values), vectors, k, which, is_hermitian)


def _symmetrised(lower: Any, upper: Any, A: Any) -> tuple[Any, Any]:
    """s and r with s r = lower and s / r = upper; a real s is not positive."""
    if A.properties & SELF_ADJOINT:
        s = -np.abs(lower)
    else:
        product = lower * upper
        s = -np.sqrt(product if (product.imag == 0).all() and (product.real >= 0).all() else product.astype(complex))
    return s, np.where(s == 0, 1, lower / np.where(s == 0, 1, s))


def _scaled_sines(A: Any, r: Any, n: int) -> LinearOperator:
    """diag(r^i) S with columns of norm 1."""
    S: LinearOperator = Sine(n, like=A)
    if (r == 1).all():
        return S
    size = np.abs(r)
    powers = np.exp(1j * np.angle(r) * np.arange(n)) if np.iscomplexobj(r) else np.sign(r) ** np.arange(n)
    if (np.abs(size - 1) <= 4 * np.finfo(float).eps).all():
        return Product(Diagonal(_put(A, powers)), S)._claim(UNITARY)
    grown = size ** np.arange(n)
    # |D s_k|^2 = sum_j D_j^2 (1 - cos(2 π j k / (n + 1))) / (n + 1): a Fourier transform
    squares = np.concatenate([np.zeros((*grown.shape[:-1], 1)), grown**2], axis=-1)
    sums = np.fft.fft(squares).real
    norms = np.sqrt((sums[..., :1] - sums[..., 1:]) / (n + 1))
    return Product(Diagonal(_put(A, powers * grown)), S, Diagonal(_put(A, 1 / norms)))


# ---------------------------------------------------------------------------------------------------- any diagonals


def is_symmetrisable(A: Any) -> bool:
    """Whether its values are seen, and it is self-adjoint or similar to a symmetric matrix by a well-conditioned D."""
    if 0 in A.shape or not _can_be_seen(A):
        return False
    lower, diag, upper = _on_host(A)
    finite = all(np.isfinite(d).all() for d in (lower, diag, upper))
    if not finite or A.properties & SELF_ADJOINT:
        return finite
    if A.is_complex or not ((lower * upper > 0) | ((lower == 0) & (upper == 0))).all():
        return False
    with np.errstate(all="ignore"):
        logarithms = np.cumsum(np.where(lower == 0, 0, 0.5 * np.log(lower / np.where(upper == 0, 1, upper))), axis=-1)
    return bool((np.max(logarithms, axis=-1, initial=0) - np.min(logarithms, axis=-1, initial=0) < _most(A)).all())


@rule(eig, Tridiagonal, when=is_symmetrisable, direct=True)
def eig_tridiagonal(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """T = D S D^-1 with S real, symmetric and tridiagonal has the eigenvalues of S and eigenvectors D V; D is unitary for self-adjoint T"""
    n, k, is_hermitian = asked(A, k, which, method, known=True)
    lower, diag, upper = _on_host(A)
    s, r = _symmetrised(lower, upper, A)
    D = np.concatenate([np.ones((*A.batch_shape, 1)), np.cumprod(r, axis=-1)], axis=-1)
    few = is_hermitian and 0 < k < n
    order = {"LM": "LA", "SM": "SA"}.get(which, which) if A.properties & POSITIVE_SEMIDEFINITE else which
    count = k if few else n
    values, V = np.empty((*A.batch_shape, count)), np.empty((*A.batch_shape, n, count))
    for i in np.ndindex(A.batch_shape):
        d = diag[i].real
        values[i], V[i] = few_pairs(d, s[i], k, order) if few else all_pairs(d, s[i])
    vectors = D[..., None] * V
    vectors = vectors if is_hermitian else vectors / np.linalg.vector_norm(vectors, axis=-2, keepdims=True)
    found, Q = _put(A, values), Dense(_put(A, vectors))
    _report(A, found, Q.A, method, is_hermitian)
    Q = Q._claim(STIEFEL) if A.properties & SELF_ADJOINT else Q
    return (found, Q) if few or (is_hermitian and k == n) else finish(A, found, Q, k, which, is_hermitian)


def _report(A: Any, values: Array, V: Array, method: Any, is_hermitian: bool) -> None:
    xp = A.xp
    with quiet(xp):
        size = xp.sqrt(sum(xp.sum(xp.abs(d) ** 2, axis=-1) for d in (A.lower, A.diag, A.upper)))
        finite = xp.all(xp.isfinite(A.diag), axis=-1)[..., None]
        chosen = fitting("eig", method, *EIGEN)
        judge_pairs(xp, A @ V - V * values[..., None, :], size[..., None], finite, None, chosen, "tridiagonal", A)
