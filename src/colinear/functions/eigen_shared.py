"""What the rules of `eig` share: what was asked for, and the pairs as they are returned."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends import Array, namespace_of
from ..methods import EIGEN, fitting
from ..operators.base import LinearOperator
from ..properties import POSITIVE_DEFINITE, POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from ._spectral import (
    ordered,
)
from .eigen import check_algebraic, checked, is_hermitian_by

Pairs = tuple[Array, LinearOperator]
POSITIVE = POSITIVE_SEMIDEFINITE | POSITIVE_DEFINITE


def asked(A: LinearOperator, k: Any, which: str, method: Any, known: bool = False) -> tuple[int, int, bool]:
    """The size, how many pairs, and whether they are those of a self-adjoint operator; or an error.

    `known`: whether the spectrum is known, so that `Eigh()` cannot make it real.
    """
    n, k = checked(A, k, which)
    chosen = fitting("eig", method, *EIGEN)
    is_hermitian = bool(A.properties & SELF_ADJOINT) if known else is_hermitian_by(A, chosen)
    check_algebraic(which, is_hermitian)
    return n, k, is_hermitian


def finish(A: LinearOperator, values: Array, vectors: LinearOperator, k: int, which: str, is_hermitian: bool) -> Pairs:
    """The pairs that were asked for, out of these."""
    xp = A.xp
    values = xp.broadcast_to(typed(xp, values, is_hermitian), (*A.batch_shape, values.shape[-1]))
    return ordered(xp, values, vectors, k, which, is_hermitian)


def typed(xp: Any, values: Array, is_hermitian: bool) -> Array:
    """Real eigenvalues for self-adjoint operators, complex ones for others."""
    return xp.real(values) if is_hermitian else xp.astype(values, xp.complex_dtype(values.dtype))


def with_zeros(xp: Any, values: Array, count: int) -> Array:
    return xp.concat([values, xp.zeros((*values.shape[:-1], count), dtype=values.dtype, device=xp.device_of(values))], axis=-1)


def filled(A: LinearOperator, c: float, count: int, batch: tuple[int, ...] = ()) -> Array:
    return A.xp.full((*batch, count), c, dtype=A.xp.real_dtype(A.dtype), device=A._context.device)


def is_real(c: Any) -> bool:
    """Whether a scalar is real, by its type or, where it can be seen, by its value."""
    xp = namespace_of(c)
    if xp is None or not xp.is_complex(c):
        return not isinstance(c, complex) or c.imag == 0
    values = xp.peek(c)
    return values is not None and bool((np.imag(values) == 0).all())


def not_empty(A: LinearOperator) -> bool:
    """Whether A has rows."""
    return 0 not in A.shape
