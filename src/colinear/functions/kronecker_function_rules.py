"""The rules of f(C), C a Kronecker product or sum, where derivatives are recorded: all but products and the diagonal by V diag(φ) V^H."""

from __future__ import annotations

from typing import Any

from ..backends import Array
from ..dispatch import rule
from ..operators.base import LinearOperator
from ..operators.kronecker import Kronecker
from ..operators.kronecker_function import KroneckerFunction
from ..operators.product import Product
from ._values import placed
from .determinant import slogdet
from .diagonal import diag
from .diagonal_rules import factors_pair_up
from .eigen import eig
from .inverse import inv
from .least_squares import pinv
from .matrix_function_shared import ALL, Call, rules
from .singular import svd
from .trace import trace


@rule(diag, KroneckerFunction)
def diag_kronecker_function(A: Any, method: Any) -> Array:
    """diag((V ⊗ W) diag(φ) (V ⊗ W)^H) = (|V|^2 ⊗ |W|^2) φ, entry by entry"""
    return A.xp.broadcast_to(A.diagonal(), A.shape[:-1])


def factors_fit(A: Any) -> bool:
    """Whether the factors of both Kronecker products are those of f's, in number and size."""
    L, F, R = A.operands
    sizes = F.sizes
    return [P.shape[-1] for P in L.operands] == sizes == [Q.shape[-2] for Q in R.operands] and factors_pair_up(A)


@rule(diag, Product[Kronecker, KroneckerFunction, Kronecker], when=factors_fit)  # type: ignore[misc]
def diag_between_kroneckers(A: Any, method: Any) -> Array:
    """diag((A ⊗ B) (V ⊗ W) diag(φ) (V ⊗ W)^H (C ⊗ D)) = ((A V) * (V^H C)^T ⊗ (B W) * (W^H D)^T) φ"""
    L, F, R = A.operands
    left, right = ([A.xp.astype(factor.to_dense(), A.dtype) for factor in placed(side)] for side in (L, R))
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
