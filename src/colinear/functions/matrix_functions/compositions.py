"""The rules of matrix functions for multiples, shifts, blocks, similarities, Kronecker products
and inverses."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from ...backends import Array, namespace_of
from ...dispatch import Choice, arrange, rule
from ...factors.function import KroneckerFunction
from ...factors.inverse import Inverse
from ...methods import Auto, Eigh, fitting
from ...operators import (
    Adjoint,
    BlockDiag,
    Conjugate,
    Diagonal,
    Kronecker,
    KroneckerSum,
    LinearOperator,
    Permutation,
    Product,
    Scaled,
    ScaledIdentity,
    Sum,
    Transpose,
)
from ...operators.diagonal import scalar_of
from ...operators.sparse_algebra import SHIFT
from ...properties import POSITIVE_SEMIDEFINITE, PSD, SELF_ADJOINT, Unitary
from ...status import Status
from ..common import (
    identity_like,
    in_context,
    operands_in_context,
    reciprocal,
    report_status,
    reports_nonfinite,
    square_size,
)
from ..determinant import slogdet
from ..diagonal import diag, trace
from ..diagonal.rules import factors_pair_up
from ..least_squares import pinv
from ..singular import svd
from ..solve.inverse import all_square, inv
from ..spectrum import eig
from ..spectrum.compositions import is_a_similarity, split_shift
from ..spectrum.rules import cycles_can_be_seen
from . import apply, exp, isqrt, log, power, sqrt
from .dense import by_unitary, real_if_real
from .kronecker import general_spectrum, has_factored_spectrum, has_general_factors
from .rules import ALL, POSITIVE, Call, of_permutation, of_positive_parts, rules
from .scalars import as_integer, of_values, power_of

# The rules of matrix functions for blocks, similarities, Kronecker products, transposes and
# inverses.


@rules(ALL, BlockDiag, when=all_square, hereditary=True)
def of_block_diagonal(A: Any, call: Call) -> LinearOperator:
    """f(diag(A, B)) = diag(f(A), f(B)), both square"""
    kept = A.properties & (SELF_ADJOINT | POSITIVE)
    return BlockDiag(*(call.again(block._claim(kept)) for block in operands_in_context(A)))


@rules(ALL, Product[Unitary, ..., LinearOperator], when=is_a_similarity, hereditary=True)  # type: ignore[misc]
def of_similarity(A: Any, call: Call) -> LinearOperator:
    """f(Q A Q^H) = Q f(A) Q^H for unitary Q"""
    inner = in_context(Product(*A.operands[1:-1]), A)._claim(
        A.properties & (SELF_ADJOINT | POSITIVE)
    )
    return Product(A.operands[0], call.again(inner), A.operands[-1])


@rule(exp, KroneckerSum)
def exp_kronecker_sum(A: Any, method: Any) -> LinearOperator:
    """exp(A ⊕ B) = exp(A) ⊗ exp(B)"""
    return Kronecker(*(exp(term, method) for term in operands_in_context(A)))


def factors_positive(A: LinearOperator) -> bool:
    """Whether every factor is positive semidefinite, so that no product leaves the principal
    branch."""
    return all(factor.properties & POSITIVE_SEMIDEFINITE for factor in A.operands)


@rules((sqrt, isqrt, power), Kronecker, when=factors_positive)
def of_positive_kronecker(A: Any, call: Call) -> LinearOperator:
    """(A ⊗ B)^p = A^p ⊗ B^p, both positive semidefinite"""
    return of_positive_parts(
        A, call.base, lambda: Kronecker(*(call.again(factor) for factor in operands_in_context(A)))
    )


def has_factored_power(A: LinearOperator, p: Any = 1, method: Any = None) -> bool:
    """Whether the factors are square, and p is whole or they have eigenpairs to use."""
    return all_square(A) and (as_integer(p) is not None or is_diagonalised(A, method))


@rule(power, Kronecker, when=has_factored_power)
def power_kronecker(A: Any, p: Any, method: Any) -> LinearOperator:
    """(A ⊗ B)^p = A^p ⊗ B^p for whole p; by the factors' eigenvectors for other p"""
    if as_integer(p) is None:
        return by_unitary(A, power_of(p), fitting("power", method, Eigh))
    return Kronecker(*(power(factor, p, method) for factor in operands_in_context(A)))


@rule(log, Kronecker, when=factors_positive)
def log_kronecker(A: Any, method: Any) -> LinearOperator:
    """log(A ⊗ B) = log(A) ⊕ log(B), both positive definite"""
    base = partial(log.base, method=method)
    return of_positive_parts(
        A, base, lambda: KroneckerSum(*(log(factor, method) for factor in operands_in_context(A)))
    )


def is_diagonalised(A: LinearOperator, method: Any = None) -> bool:
    """Whether the factors have eigenpairs, and no method is named that does not use these."""
    return (method is None or isinstance(method, Auto | Eigh)) and has_factored_spectrum(A)


def has_factored_roots(A: LinearOperator, method: Any = None) -> bool:
    """Whether the factors have eigenpairs to use, and not roots and logarithms of their own that
    make up those of A."""
    return is_diagonalised(A, method) and not factors_positive(A)


@rules((exp, apply), Kronecker, when=is_diagonalised)
@rules((log, sqrt, isqrt), Kronecker, when=has_factored_roots)
@rules((log, sqrt, isqrt, power, apply), KroneckerSum, when=is_diagonalised)
@rules((exp, apply), Scaled[Kronecker], when=is_diagonalised)  # type: ignore[misc]
@rules(ALL, Sum[Kronecker, SHIFT], when=is_diagonalised)  # type: ignore[misc]
@rules((log, sqrt, isqrt, power, apply), Sum[KroneckerSum, SHIFT], when=is_diagonalised)  # type: ignore[misc]
def of_factored_spectrum(A: Any, call: Call) -> LinearOperator:
    """f(A ⊗ B) = (V ⊗ W) f(Λ ⊗ M) (V ⊗ W)^H for self-adjoint A = V Λ V^H and B = W M W^H; Λ ⊕ M
    for A ⊕ B, and so with + c I"""
    return by_unitary(A, call.f, fitting(call.f.name, call.method, Eigh))


@rules((exp, log, sqrt, isqrt, apply), Kronecker, when=has_general_factors)
def of_general_kronecker(A: Any, call: Call) -> Any:
    """f(A ⊗ B) = (V ⊗ W) f(Λ ⊗ M) (V^-1 ⊗ W^-1) for A = V Λ V^-1 and B = W M W^-1, if V and W
    are well-conditioned"""
    return Choice(lambda: _in_general_spectrum(A, call), like=lambda: identity_like(A))


def _in_general_spectrum(A: Any, call: Call) -> Any:
    found = general_spectrum(A)
    if found is None:
        return call.base(A)
    values, V, inverse = found
    xp = A.xp
    values = xp.astype(values, xp.complex_dtype(values.dtype)) if call.f.name == "apply" else values
    y = of_values(xp, call.f, values, False, A.shape[-1] * xp.eps(A.dtype))
    return Product(V, Diagonal(real_if_real(xp, A, y)), inverse)


@rules(ALL, Transpose, hereditary=True)
def of_transpose(A: Any, call: Call) -> LinearOperator:
    """f(A^T) = f(A)^T"""
    square_size(call.f.name, A, f"{call.f.name}(A)", "")
    return call.again(A.A).T


@rules(ALL, Adjoint, hereditary=True)
def of_adjoint(A: Any, call: Call) -> LinearOperator:
    """f(A^H) = f(A)^H if f has no cut or A is real"""
    square_size(call.f.name, A, f"{call.f.name}(A)", "")
    if not A.is_complex:
        return call.again(A.A).T
    return call.again(A.A).H if call.f.mirrored else call.base(A)


@rules((exp, power), Conjugate, hereditary=True)
def of_conjugate(A: Any, call: Call) -> LinearOperator:
    """f(conj(A)) = conj(f(A)) if f has no cut"""
    square_size(call.f.name, A, f"{call.f.name}(A)", "")
    return call.again(A.A).conj() if call.f.mirrored else call.base(A)


def has_power_of_inverse(A: LinearOperator, p: Any = 1) -> bool:
    """Whether A is positive, or p is whole."""
    return bool(A.properties & POSITIVE) or as_integer(p) is not None


@rule(power, Inverse, when=has_power_of_inverse, hereditary=True)
def power_inverse(A: Any, p: Any, method: Any) -> LinearOperator:
    """(A^-1)^p = A^-p for positive A or whole p"""
    positive = A.properties & POSITIVE
    base = partial(power.base, p=p, method=method)
    return of_positive_parts(A, base, lambda: power(A.A._claim(positive), -p, method))


@rule(sqrt, PSD[Inverse], hereditary=True)
def sqrt_inverse(A: Any, method: Any) -> LinearOperator:
    """(A^-1)^(1/2) = A^(-1/2) for positive A"""
    return of_positive_parts(
        A,
        partial(sqrt.base, method=method),
        lambda: isqrt(A.A._claim(A.properties & POSITIVE), method),
    )


@rule(isqrt, PSD[Inverse], hereditary=True)
def isqrt_inverse(A: Any, method: Any) -> LinearOperator:
    """(A^-1)^(-1/2) = A^(1/2) for positive A"""
    return of_positive_parts(
        A,
        partial(isqrt.base, method=method),
        lambda: sqrt(A.A._claim(A.properties & POSITIVE), method),
    )


@rule(log, PSD[Inverse], hereditary=True)
def log_inverse(A: Any, method: Any) -> LinearOperator:
    """log(A^-1) = -log(A) for positive A"""
    base = partial(log.base, method=method)
    return of_positive_parts(
        A, base, lambda: Scaled(-1.0, log(A.A._claim(A.properties & POSITIVE), method))
    )


# The rules of matrix functions for multiples and shifts, c A and A + c I.


def scalar_is_positive(A: Any) -> bool:
    """Whether the scalar is seen to be positive (and A to be square)."""
    return A.shape[-1] == A.shape[-2] and _is_positive(A.scalar)


def _is_positive(c: Any) -> bool:
    xp = namespace_of(c)
    values = c if xp is None else xp.peek(c)
    return values is not None and bool(np.all(np.imag(values) == 0) and np.all(np.real(values) > 0))


@rule(sqrt, Scaled, when=scalar_is_positive)
@reports_nonfinite
def sqrt_scaled(A: Any, method: Any) -> LinearOperator:
    """(c A)^(1/2) = c^(1/2) A^(1/2) for c > 0"""
    return Scaled(A.scalar**0.5, sqrt(A.A, method))


@rule(isqrt, Scaled, when=scalar_is_positive)
@reports_nonfinite
def isqrt_scaled(A: Any, method: Any) -> LinearOperator:
    """(c A)^(-1/2) = c^(-1/2) A^(-1/2) for c > 0"""
    return Scaled(A.scalar**-0.5, isqrt(A.A, method))


@rule(log, Scaled, when=scalar_is_positive)
@reports_nonfinite
def log_scaled(A: Any, method: Any) -> LinearOperator:
    """log(c A) = log(c) I + log(A) for c > 0"""
    xp = namespace_of(A.scalar)
    c = math.log(A.scalar.real) if xp is None else xp.asarray(xp.log(A.scalar))
    return Sum(log(in_context(A.A, A), method), ScaledIdentity(c, A.shape[-1]))


def has_power_of_scalar(A: Any, p: Any = 1) -> bool:
    """Whether the scalar is positive, or p is whole."""
    return as_integer(p) is not None or _is_positive(A.scalar)


@rule(power, Scaled, when=has_power_of_scalar)
@reports_nonfinite
def power_scaled(A: Any, p: Any, method: Any) -> LinearOperator:
    """(c A)^p = c^p A^p for c > 0 or whole p"""
    square_size("power", A, "A^p", "")
    whole = as_integer(p)
    if whole is not None and whole < 0:
        # reports a factor of zero
        return Scaled(reciprocal(A.scalar) ** -whole, power(A.A, p, method))
    return Scaled(A.scalar ** (p if whole is None else whole), power(A.A, p, method))


@rules(ALL, Scaled[Permutation])  # type: ignore[misc]
def of_scaled_permutation(A: Any, call: Call) -> LinearOperator:
    """f(c P) = R^T diag(f(c C), ...) R: along each of its cycles a permutation is a circulant C"""
    if not cycles_can_be_seen(A.A) or getattr(A.scalar, "ndim", 0) > 0:
        return call.base(A)
    return of_permutation(
        in_context(A.A, A), Call(call.f, lambda C: call.again(Scaled(A.scalar, C)), call.base)
    )


def shift_is_moderate(A: Any) -> bool:
    """Whether e^c is far from overflow and underflow (taken for granted where c cannot be seen)."""
    shift, _ = arrange(A, SHIFT, ...)
    c = scalar_of(shift)
    xp = namespace_of(c)
    values = c if xp is None else xp.peek(c)
    return values is None or bool(np.all(np.abs(np.real(values)) <= _moderate(A)))


def _moderate(A: LinearOperator) -> float:
    return -2.0 * math.log(A.xp.eps(A.dtype))  # 72 in double, 32 in single precision


@rule(exp, Sum[SHIFT, ...], when=shift_is_moderate)  # type: ignore[misc]
def exp_shifted(A: Any, method: Any) -> LinearOperator:
    """exp(A + c I) = e^c exp(A)"""
    xp = A.xp
    c, rest = split_shift(A)
    c = xp.asarray(
        c, dtype=None if namespace_of(c) is not None else A.dtype, device=A._context.device
    )
    fine = xp.all(xp.abs(xp.real(c)) <= _moderate(A))
    report_status(
        xp,
        xp.where(fine, int(Status.SUCCESS), int(Status.INACCURATE)),
        message="e^c overflows or vanishes",
    )
    return Scaled(xp.exp(c), exp(rest, method))


# The rules of f(C), C a Kronecker product or sum, where derivatives are recorded: all but products
# and the diagonal by V diag(φ) V^H.


@rule(diag, KroneckerFunction)
def diag_kronecker_function(A: Any, method: Any) -> Array:
    """diag((V ⊗ W) diag(φ) (V ⊗ W)^H) = (|V|^2 ⊗ |W|^2) φ, entry by entry"""
    return A.xp.broadcast_to(A.diagonal(), A.shape[:-1])


def factors_fit(A: Any) -> bool:
    """Whether the factors of both Kronecker products are those of f's, in number and size."""
    L, F, R = A.operands
    sizes = F.sizes
    return [P.shape[-1] for P in L.operands] == sizes == [
        Q.shape[-2] for Q in R.operands
    ] and factors_pair_up(A)


@rule(diag, Product[Kronecker, KroneckerFunction, Kronecker], when=factors_fit)  # type: ignore[misc]
def diag_between_kroneckers(A: Any, method: Any) -> Array:
    """diag((A ⊗ B) (V ⊗ W) diag(φ) (V ⊗ W)^H (C ⊗ D)) = ((A V) * (V^H C)^T ⊗ (B W) * (W^H D)^T)
    φ"""
    L, F, R = A.operands
    left, right = (
        [A.xp.astype(factor.to_dense(), A.dtype) for factor in operands_in_context(side)]
        for side in (L, R)
    )
    found = F.diagonal(left, right)
    return A.xp.broadcast_to(found if A.is_complex else A.xp.real(found), A.shape[:-1])


@rule(trace, KroneckerFunction, hereditary=True)
def trace_kronecker_function(A: Any, method: Any) -> Array:
    """tr f(C), by V diag(φ) V^H"""
    return trace(A.by_eigenvectors(), method)


@rule(slogdet, KroneckerFunction, hereditary=True)
def slogdet_kronecker_function(A: Any, method: Any) -> Any:
    """log det f(C), by V diag(φ) V^H"""
    return slogdet(A.by_eigenvectors(), method)


@rule(eig, KroneckerFunction, hereditary=True)
def eig_kronecker_function(A: Any, k: Any, which: str, method: Any) -> tuple[Array, LinearOperator]:
    """f(C) = V diag(φ) V^H"""
    return eig(A.by_eigenvectors(), k, which, method)


@rule(svd, KroneckerFunction)
def svd_kronecker_function(A: Any, k: Any, method: Any) -> Any:
    """f(C) = V diag(φ) V^H"""
    return svd(A.by_eigenvectors(), k, method)


@rule(inv, KroneckerFunction, hereditary=True)
def inv_kronecker_function(A: Any, method: Any) -> LinearOperator:
    """f(C)^-1, by V diag(φ) V^H; (C^-1)^-1 = C"""
    return A.whole if A.is_inverse else inv(A.by_eigenvectors(), method)


@rule(pinv, KroneckerFunction)
def pinv_kronecker_function(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """f(C)^+, by V diag(φ) V^H"""
    return pinv(A.by_eigenvectors(), rtol, method)


@rules(ALL, KroneckerFunction, hereditary=True)
def of_kronecker_function(A: Any, call: Call) -> LinearOperator:
    """g(f(C)), by V diag(φ) V^H"""
    return call.again(A.by_eigenvectors())
