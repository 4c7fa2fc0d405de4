"""The rules of `svd`, `rank` and `cond`.

`svd` promises min(m, n) singular values (or k), so where the parts give fewer (a low rank, a tall factor beside a wide one) zeros are
added, and the columns of U and V are completed to orthonormal ones by `complement`, which keeps no more numbers than the parts have.
"""

from __future__ import annotations

from typing import Any

from .. import autodiff
from ..backends import Array, namespace_of
from ..dispatch import rule
from ..operators.base import LinearOperator
from ..operators.batching import broadcast_batch
from ..operators.block import BlockDiag
from ..operators.circulant import Circulant
from ..operators.convolution import Convolution
from ..operators.dense import Dense
from ..operators.diagonal import Diagonal
from ..operators.fft import FFT
from ..operators.identity import ScaledIdentity
from ..operators.inverse import Inverse
from ..operators.kronecker import Kronecker, KroneckerSum
from ..operators.kronecker_function import KroneckerFunction
from ..operators.lowrank import LowRank
from ..operators.product import Product
from ..operators.projection import Projection
from ..operators.scaled import Scaled
from ..operators.sum import Sum
from ..operators.toeplitz import Toeplitz
from ..operators.transposed import Adjoint, Conjugate, Transpose
from ..operators.tridiagonal import Tridiagonal
from ..operators.zero import Zero
from ..properties import STIEFEL, UNITARY, SelfAdjoint
from ._arrays import narrow, quiet
from ._columns import (
    completed,
    first_columns,
    identity_like,
    orthonormal,
    reordered,
)
from ._spectral import grid_of, is_periodic, symbol
from ._values import reports_nonfinite
from .eigen import eig
from .singular import _count, svd

Triplets = tuple[LinearOperator, Array, LinearOperator]

DIAGONALISED = SelfAdjoint[KroneckerSum | Sum | Toeplitz | Tridiagonal | Convolution]
COMPOSED = Kronecker | BlockDiag | Product | Scaled | Transpose | Adjoint | Conjugate | Inverse
SIMPLE = Diagonal | ScaledIdentity | Circulant | Convolution | LowRank | Zero | Projection


# ---------------------------------------------------------------------------------------------------- parts


def padded(xp: Any, s: Array, k: int) -> Array:
    """The first k singular values, zeros where there are fewer."""
    if k <= s.shape[-1]:
        return s[..., :k]
    return xp.concat([s, xp.zeros((*s.shape[:-1], k - s.shape[-1]), dtype=s.dtype, device=xp.device_of(s))], axis=-1)


def sorted_triplets(left: LinearOperator, s: Array, right: LinearOperator, k: int, places: Any = (None, None)) -> Triplets:
    """Triplets in any order as `svd` returns them; `places`: of their columns in `left` and in `right`."""
    xp = namespace_of(s)
    order = xp.argsort(-s, axis=-1, stable=True)
    batch = tuple(s.shape[:-1])
    U, V = (broadcast_batch(reordered(Q, order, k, where), batch) for Q, where in zip((left, right), places))
    return U, padded(xp, xp.take_along_axis(s, order, axis=-1), k), V


def phase(x: Any) -> Any:
    """x / |x|, and 1 where x is zero."""
    xp = namespace_of(x)
    if xp is None:
        return x / abs(x) if x else 1.0
    size = xp.abs(x)
    with quiet(xp):  # infinity by infinity
        return xp.asarray(xp.where(size > 0, x / xp.where(size > 0, size, 1), 1))


def _with_phases(U: LinearOperator, d: Array) -> LinearOperator:
    """U diag(d), |d| = 1"""
    return Product(U, Diagonal(d)._claim(UNITARY))._claim(STIEFEL)


# ---------------------------------------------------------------------------------------------------- known decompositions


@rule(svd, orthonormal(COMPOSED, SIMPLE, DIAGONALISED, KroneckerFunction))
@reports_nonfinite
def svd_orthonormal(A: Any, k: Any, method: Any) -> Triplets:
    """Q = Q I I^H: every singular value is 1"""
    k, xp = _count(A, k), A.xp
    s = xp.ones((*A.batch_shape, k), dtype=xp.real_dtype(A.dtype), device=A._context.device)
    return first_columns(A, k), s, first_columns(broadcast_batch(identity_like(A, A.shape[-1]), A.batch_shape), k)


@rule(svd, Zero)
def svd_zero(A: Any, k: Any, method: Any) -> Triplets:
    """0 = I 0 I^H"""
    k, xp = _count(A, k), A.xp
    U, V = (first_columns(identity_like(A, size), k) for size in A.shape[-2:])
    return U, xp.zeros((k,), dtype=xp.real_dtype(A.dtype), device=A._context.device), V


@rule(svd, ScaledIdentity)
@reports_nonfinite
def svd_scaled_identity(A: Any, k: Any, method: Any) -> Triplets:
    """c I = (c / |c|) |c| I^H"""
    k, xp, I = _count(A, k), A.xp, first_columns(identity_like(A, A.shape[-1]), _count(A, k))
    ones = xp.ones((k,), dtype=xp.real_dtype(A.dtype), device=A._context.device)
    size = abs(A.c) if namespace_of(A.c) is None else xp.abs(A.c)[..., None]
    return Scaled(phase(A.c), I)._claim(STIEFEL), size * ones, broadcast_batch(I, A.batch_shape)


@rule(svd, Diagonal)
@reports_nonfinite
def svd_diagonal(A: Any, k: Any, method: Any) -> Triplets:
    """diag(d) = diag(d / |d|) diag(|d|) I^H, sorted"""
    return sorted_triplets(Diagonal(phase(A.d))._claim(UNITARY), A.xp.abs(A.d), identity_like(A, A.shape[-1]), _count(A, k))


@rule(svd, Circulant | Convolution, when=is_periodic)
@reports_nonfinite
def svd_circulant(A: Any, k: Any, method: Any) -> Triplets:
    """C = F^H diag(λ) F: U and V are Fourier bases, complex even where C is real"""
    values = A.xp.reshape(symbol(A), A.shape[:-1])
    F = FFT(grid_of(A), like=A).H
    s = narrow(A.xp, A.xp.abs(values), A.dtype)
    return sorted_triplets(_with_phases(F, phase(values)), s, F, _count(A, k))


@rule(svd, Projection)
@reports_nonfinite
def svd_projection(A: Any, k: Any, method: Any) -> Triplets:
    """Q Q^H = Q I Q^H: r singular values are 1, the others 0"""
    k, xp, Q = _count(A, k), A.xp, Dense(A.Q)._claim(STIEFEL)
    U = completed(Q, k)
    ones = xp.ones((*A.batch_shape, Q.shape[-1]), dtype=xp.real_dtype(A.dtype), device=A._context.device)
    return U, padded(xp, ones, k), U


@rule(svd, LowRank)
def svd_low_rank(A: Any, k: Any, method: Any) -> Triplets:
    """U C V^H = (Q X) Σ (P Y)^H for U = Q R, V = P S, and R C S^H = X Σ Y^H, which is as small as the rank"""
    Q, core, P = compressed(A)
    k, xp = _count(A, k), A.xp
    X, s, Y = svd(Dense(core), min(k, *core.shape[-2:]), method)
    U, V = (Dense(xp.matmul(B, Z.to_dense()))._claim(STIEFEL) for B, Z in ((Q, X), (P, Y)))
    return completed(U, k), padded(xp, s, k), completed(V, k)


def compressed(A: Any) -> tuple[Array, Array, Array]:
    """Q, R C S^H and P of U C V^H with U = Q R and V = P S: the same singular values in a core of the size of the rank."""
    xp = A.xp
    Q, R = autodiff.qr(xp, A.U)
    P, S = (Q, R) if A.V is None else autodiff.qr(xp, A.V)
    inner = R if A.core is None else xp.matmul(R, A.core)
    return Q, xp.matmul(inner, xp.conj(xp.matrix_transpose(S))), P


def eigenvectors_are_structured(A: LinearOperator) -> bool:
    """Whether `eig` has a rule for A."""
    return not eig.find(A).is_base


@rule(svd, DIAGONALISED, when=eigenvectors_are_structured)
def svd_self_adjoint(A: Any, k: Any, method: Any) -> Triplets:
    """A = (Q sign(Λ)) |Λ| Q^H for A = Q Λ Q^H"""
    k = _count(A, k)
    values, Q = eig(A, max(k, 1), "LM")
    return sorted_triplets(_with_phases(Q, A.xp.astype(phase(values), A.dtype)), A.xp.abs(values), Q, k)
