"""The rules of `eig` for unitary operators and for those that commute with them: permutations, circulants, transforms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..dispatch import rule
from ..methods import EIGEN, fitting
from ..operators.base import LinearOperator
from ..operators.block import BlockDiag
from ..operators.circulant import Circulant
from ..operators.convolution import Convolution
from ..operators.dense import Dense
from ..operators.fft import FFT
from ..operators.fields import Index
from ..operators.identity import Identity
from ..operators.kronecker import Kronecker
from ..operators.permutation import Permutation
from ..operators.product import Product
from ..properties import SELF_ADJOINT, STIEFEL, UNITARY, Unitary
from ._arrays import is_watched, narrow, seen, wide
from ._fourier_pairs import few_pairs
from ._spectral import (
    cycles,
    grid_of,
    is_periodic,
    symbol,
)
from ._values import report_finite
from .eigen import eig, report_pairs
from .eigen_shared import (
    Pairs,
    asked,
    finish,
    not_empty,
)


def cycles_can_be_seen(A: Any) -> bool:
    """Whether it is one permutation, known now."""
    return isinstance(A.perm, Index) and A.ndim == 2 and A.shape[-1] > 0


@rule(eig, Permutation, when=cycles_can_be_seen)
def eig_permutation(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """a cycle of length m has the m-th roots of unity for eigenvalues, and Fourier's eigenvectors"""
    _, k, is_hermitian = asked(A, k, which, method, known=True)
    xp = A.xp
    order, counts = cycles(A.perm.host)
    roots = np.concatenate([np.tile(np.exp(2j * math.pi * np.arange(m) / m), count) for count, m in counts])
    values = xp.asarray(roots, dtype=xp.complex_dtype(A.dtype), device=A._context.device)
    like = None if A.is_neutral else A

    def waves(m: int) -> LinearOperator:
        if is_hermitian and m == 2:  # those of an exchange of two are real
            half = xp.asarray([[1.0, 1.0], [1.0, -1.0]], dtype=A.dtype, device=A._context.device) / math.sqrt(2)
            return Dense(half)._claim(UNITARY)
        return Identity(1, like=like) if is_hermitian and m == 1 else FFT(m, like=like).H

    blocks = [Kronecker(Identity(count, like=like), waves(m)) for count, m in counts]
    vectors = Product(Permutation(order, like=like).T, BlockDiag(*blocks))
    # All are of magnitude 1, so that is a tie, whatever rounding makes of it.
    return finish(A, values, vectors, k, "LR" if which[1] == "M" and not is_hermitian else which, is_hermitian)


def permutations_can_be_seen(A: Any) -> bool:
    """Whether they are several permutations, known now."""
    return isinstance(A.perm, Index) and A.ndim > 2 and A.shape[-1] > 0


@rule(eig, Permutation, when=permutations_can_be_seen, hereditary=True)
def eig_permutations(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """a batch of permutations, whose cycles differ: as unitary matrices"""
    dense = Dense(A.to_dense())._claim(UNITARY | (A.properties & SELF_ADJOINT))
    return eig(dense, k, which, method)


def is_seen_and_not_self_adjoint(A: Any) -> bool:
    """Whether the matrix can be seen (and is not better off as a self-adjoint one, nor empty)."""
    return not_empty(A) and not A.properties & SELF_ADJOINT and not is_watched(A.xp, A.A)


@rule(eig, Unitary[Dense], when=is_seen_and_not_self_adjoint, direct=True)
def eig_unitary(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """Schur's form of a unitary matrix is diagonal, Q = Z diag(λ) Z^H: orthonormal eigenvectors also of repeated eigenvalues"""
    from scipy.linalg import schur

    _, k, is_hermitian = asked(A, k, which, method, known=True)
    xp, M = A.xp, wide(A.xp, A.A)
    host = np.asarray(seen(xp, M))
    if not np.isfinite(host).all():
        return eig.base(A, k, which, method)
    forms = [schur(matrix, output="complex") for matrix in host.reshape(-1, *host.shape[-2:])]
    w, Z = (
        np.reshape(np.stack(parts), (*host.shape[:-2], *parts[0].shape)) for parts in zip(*((np.diag(T), Z) for T, Z in forms))
    )
    values, V = (xp.asarray(x, dtype=xp.complex_dtype(M.dtype), device=A._context.device) for x in (w, Z))
    chosen = fitting("eig", method, *EIGEN)
    report_pairs(xp, xp.astype(M, V.dtype), values, V, None, chosen, "Schur", A)
    return finish(A, narrow(xp, values, A.dtype), Dense(narrow(xp, V, A.dtype))._claim(UNITARY), k, which, is_hermitian)


@rule(eig, Circulant, when=not_empty)
@rule(eig, Convolution, when=is_periodic)
def eig_circulant(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """C = F^H diag(F c) F with the Fourier transform F: unitary, complex eigenvectors also of a real symmetric C"""
    n, k, is_hermitian = asked(A, k, which, method, known=True)
    values = A.xp.reshape(symbol(A), (*A.batch_shape, n))
    report_finite(A.xp, values)
    return finish(A, narrow(A.xp, values, A.dtype), FFT(grid_of(A), like=A).H, k, which, is_hermitian)


@rule(eig, FFT)
def eig_fft(A: Any, k: Any, which: str, method: Any) -> Pairs:
    """F is C on even vectors and -i S on odd ones, with real symmetric C and S of eigenvalues 1 and -1; Kronecker over a grid"""
    n, k, is_hermitian = asked(A, k, which, method, known=True)
    if len(A.grid) > 1:
        lines = (FFT._of((size,), A.inverse, A.context) for size in A.grid)
        return eig(Kronecker(*lines), k, which, method)
    if (few := few_pairs(A.xp, n, A.inverse, k, which)) is not None:
        values, V = (A.xp.asarray(x, dtype=A.dtype, device=A._context.device) for x in few)
        return values, Dense(V)._claim(STIEFEL)
    half = n // 2 + 1
    j = np.arange(n)
    even, odd = np.zeros((n, half)), np.zeros((n, n - half))
    for i in range(half):
        even[[i, -i % n], i] = 1 if i == -i % n else math.sqrt(0.5)
    for i in range(n - half):
        odd[[i + 1, n - i - 1], i] = math.sqrt(0.5), -math.sqrt(0.5)
    angles = 2 * np.pi * (np.outer(j, j) % max(n, 1)) / max(n, 1)
    sign = 1 if A.inverse else -1
    parts = [(even, np.cos(angles), 1), (odd, np.sin(angles), sign * 1j)]
    found = [(unit, basis, *np.linalg.eigh(basis.T @ M @ basis / math.sqrt(max(n, 1)))) for basis, M, unit in parts]
    values = np.concatenate([unit * np.sign(w) for unit, _, w, _ in found])
    V = np.concatenate([basis @ Q for _, basis, _, Q in found], axis=1)
    xp, device = A.xp, A._context.device
    vectors = Dense(xp.asarray(V, dtype=A.dtype, device=device))._claim(UNITARY)
    return finish(A, xp.asarray(values, dtype=A.dtype, device=device), vectors, k, which, is_hermitian)
