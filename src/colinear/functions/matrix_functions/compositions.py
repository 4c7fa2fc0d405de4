"""The rules of matrix functions for multiples, shifts, blocks, similarities, Kronecker products
and inverses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...backends import Array, namespace_of
from ...dispatch import Choice, Function, arrange, rule
from ...factors.function import KroneckerFunction
from ...factors.inverse import Inverse
from ...factors.structured import as_blocks
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
    is_square,
    operands_in_context,
    peek_at,
    reciprocal,
    report_failure,
    reports_nonfinite,
    seen_numbers,
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
from . import apply, by_unitary, exp, isqrt, log, power, sqrt
from .rules import ALL, POSITIVE, Call, of_permutation, of_positive_parts, rules
from .spectra import (
    as_integer,
    general_spectrum,
    has_factored_spectrum,
    has_general_factors,
    of_values,
    real_if_real,
)

# The rules of matrix functions for blocks, similarities, Kronecker products, transposes and
# inverses.


@rules(ALL, BlockDiag, when=all_square, hereditary=True)
def of_block_diagonal(A: Any, call: Call) -> LinearOperator:
    """f(diag(A, B)) = diag(f(A), f(B)), both square"""
    kept = A.properties & (SELF_ADJOINT | POSITIVE)
    if (blocks := A.stack()) is not None:
        return as_blocks(call.again(blocks), len(A.operands))
    return BlockDiag(*(call.again(block._claim(kept)) for block in operands_in_context(A)))


@rules(ALL, Product[Unitary, ..., LinearOperator], when=is_a_similarity, hereditary=True)
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


@rules((log, sqrt, isqrt, power), Kronecker, when=factors_positive)
def of_positive_kronecker(A: Any, call: Call) -> LinearOperator:
    """(A ⊗ B)^p = A^p ⊗ B^p and log(A ⊗ B) = log(A) ⊕ log(B), both positive semidefinite"""
    whole: Any = KroneckerSum if call.f.name == "log" else Kronecker
    return of_positive_parts(
        A, call.base, lambda: whole(*(call.again(factor) for factor in operands_in_context(A)))
    )


def has_factored_power(A: LinearOperator, p: Any = 1) -> bool:
    """Whether the factors are square, and p is whole."""
    return all_square(A) and as_integer(p) is not None


@rules((power,), Kronecker, when=has_factored_power)
def of_kronecker(A: Any, call: Call) -> LinearOperator:
    """(A ⊗ B)^p = A^p ⊗ B^p for whole p"""
    return Kronecker(*(call.again(factor) for factor in operands_in_context(A)))


def is_diagonalised(A: LinearOperator, method: Any = None) -> bool:
    """Whether the factors have eigenpairs, and no method is named that does not use these."""
    return (method is None or isinstance(method, Auto | Eigh)) and has_factored_spectrum(A)


def has_factored_roots(A: LinearOperator, method: Any = None) -> bool:
    """Whether the factors have eigenpairs to use, and not roots and logarithms of their own that
    make up those of A."""
    return is_diagonalised(A, method) and not factors_positive(A)


@rules((exp, power, apply), Kronecker, when=is_diagonalised)
@rules((log, sqrt, isqrt), Kronecker, when=has_factored_roots)
@rules((log, sqrt, isqrt, power, apply), KroneckerSum, when=is_diagonalised)
@rules((exp, apply), Scaled[Kronecker], when=is_diagonalised)
@rules(ALL, Sum[Kronecker, SHIFT], when=is_diagonalised)
@rules((log, sqrt, isqrt, power, apply), Sum[KroneckerSum, SHIFT], when=is_diagonalised)
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
    y = of_values(A, call.f, values)
    return Product(V, Diagonal(real_if_real(xp, A, y)), inverse)


@rules(ALL, Transpose, hereditary=True)
def of_transpose(A: Any, call: Call) -> LinearOperator:
    """f(A^T) = f(A)^T"""
    return call.again(A.A).T


@rules(ALL, Adjoint, hereditary=True)
def of_adjoint(A: Any, call: Call) -> LinearOperator:
    """f(A^H) = f(A)^H if f has no cut or A is real"""
    if not A.is_complex:
        return call.again(A.A).T
    return call.again(A.A).H if call.f.mirrored else call.base(A)


@rules((exp, power), Conjugate, hereditary=True)
def of_conjugate(A: Any, call: Call) -> LinearOperator:
    """f(conj(A)) = conj(f(A)) if f has no cut"""
    return call.again(A.A).conj() if call.f.mirrored else call.base(A)


def has_power_of_inverse(A: LinearOperator, p: Any = 1) -> bool:
    """Whether A is positive, or p is whole."""
    return bool(A.properties & POSITIVE) or as_integer(p) is not None


@rules((power,), Inverse, when=has_power_of_inverse, hereditary=True)
@rules((log, sqrt, isqrt), PSD[Inverse], hereditary=True)
def of_inverse(A: Any, call: Call) -> LinearOperator:
    """(A^-1)^p = A^-p and log(A^-1) = -log(A) for positive A or whole p"""
    inner, f, method = A.A._claim(A.properties & POSITIVE), call.f, call.method

    def of_inner() -> LinearOperator:
        if f.name == "log":
            return Scaled(-1.0, log(inner, method))
        if f.name == "power":
            return power(inner, -f.exponent, method)
        return (isqrt if f.name == "sqrt" else sqrt)(inner, method)

    return of_positive_parts(A, call.base, of_inner)


# The rules of matrix functions for multiples and shifts, c A and A + c I.


def scalar_is_positive(A: Any) -> bool:
    """Whether the scalar is seen to be positive (and A to be square)."""
    return is_square(A) and _is_positive(A.scalar)


def _is_positive(c: Any) -> bool:
    values = peek_at(c)
    return values is not None and bool(np.all(np.imag(values) == 0) and np.all(np.real(values) > 0))


def has_power_of_scalar(A: Any, p: Any = 1) -> bool:
    """Whether the scalar is positive, or p is whole."""
    return as_integer(p) is not None or _is_positive(A.scalar)


@rules((power,), Scaled, when=has_power_of_scalar)
@rules((sqrt, isqrt), Scaled, when=scalar_is_positive)
@reports_nonfinite
def of_scaled(A: Any, call: Call) -> LinearOperator:
    """(c A)^p = c^p A^p for c > 0 or whole p"""
    c, p = A.scalar, call.f.exponent
    # the reciprocal reports a factor of zero
    power_of_c = reciprocal(c) ** -p if isinstance(p, int) and p < 0 else c**p
    return Scaled(power_of_c, call.again(A.A))


@rule(log, Scaled, when=scalar_is_positive)
@reports_nonfinite
def log_scaled(A: Any, method: Any) -> LinearOperator:
    """log(c A) = log(c) I + log(A) for c > 0"""
    xp = namespace_of(A.scalar)
    c = math.log(A.scalar.real) if xp is None else xp.asarray(xp.log(A.scalar))
    return Sum(log(in_context(A.A, A), method), ScaledIdentity(c, A.shape[-1]))


@rules(ALL, Scaled[Permutation])
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
    values = seen_numbers(scalar_of(shift))
    return values is None or bool((np.abs(values.real) <= _moderate(A)).all())


def _moderate(A: LinearOperator) -> float:
    return -2.0 * math.log(A.xp.eps(A.dtype))  # 72 in double, 32 in single precision


@rule(exp, Sum[SHIFT, ...], when=shift_is_moderate)
def exp_shifted(A: Any, method: Any) -> LinearOperator:
    """exp(A + c I) = e^c exp(A)"""
    xp = A.xp
    c, rest = split_shift(A)
    c = xp.asarray(
        c, dtype=None if namespace_of(c) is not None else A.dtype, device=A._context.device
    )
    fine = xp.all(xp.abs(xp.real(c)) <= _moderate(A))
    report_failure(xp, (fine, Status.INACCURATE), message="e^c overflows or vanishes")
    return Scaled(xp.exp(c), exp(rest, method))


# The rules of f(C), C a Kronecker product or sum, where derivatives are recorded: all but products
# and the diagonal by V diag(φ) V^H.


@rule(diag, KroneckerFunction)
def diag_kronecker_function(A: Any, method: Any) -> Array:
    """diag((V ⊗ W) diag(φ) (V ⊗ W)^H) = (|V|^2 ⊗ |W|^2) φ, entry by entry"""
    return A.xp.broadcast_to(A.diagonal_between(), A.shape[:-1])


def factors_fit(A: Any) -> bool:
    """Whether the factors of both Kronecker products are those of f's, in number and size."""
    L, F, R = A.operands
    sizes = F.sizes
    return [P.shape[-1] for P in L.operands] == sizes == [
        Q.shape[-2] for Q in R.operands
    ] and factors_pair_up(A)


@rule(diag, Product[Kronecker, KroneckerFunction, Kronecker], when=factors_fit)
def diag_between_kroneckers(A: Any, method: Any) -> Array:
    """diag((A ⊗ B) (V ⊗ W) diag(φ) (V ⊗ W)^H (C ⊗ D)) = ((A V) * (V^H C)^T ⊗ (B W) * (W^H D)^T)
    φ"""
    L, F, R = A.operands
    left, right = (
        [A.xp.astype(factor.to_dense(), A.dtype) for factor in operands_in_context(side)]
        for side in (L, R)
    )
    found = F.diagonal_between(left, right)
    return A.xp.broadcast_to(found if A.is_complex else A.xp.real(found), A.shape[:-1])


def _by_eigenvectors(g: Function) -> Callable[..., Any]:
    def of(A: Any, *arguments: Any) -> Any:
        """f(C) = V diag(φ) V^H, of which it is asked"""
        return g(A.by_eigenvectors(), *arguments)

    return of


for g in (trace, slogdet, eig, svd, pinv):
    name = f"{g.name}_kronecker_function"
    rule(g, KroneckerFunction, name=name, hereditary=True)(_by_eigenvectors(g))


@rule(inv, KroneckerFunction, hereditary=True)
def inv_kronecker_function(A: Any, method: Any) -> LinearOperator:
    """f(C)^-1, by V diag(φ) V^H; (C^-1)^-1 = C"""
    return A.whole if A.is_inverse else inv(A.by_eigenvectors(), method)


@rules(ALL, KroneckerFunction, hereditary=True)
def of_kronecker_function(A: Any, call: Call) -> LinearOperator:
    """g(f(C)), by V diag(φ) V^H"""
    return call.again(A.by_eigenvectors())
