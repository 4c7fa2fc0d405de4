"""The terms of an operator as a stochastic method draws from them."""

from __future__ import annotations

from typing import Any

from ..backends import Array
from ..info import MethodError
from ..methods.svrg import Terms
from ..properties import POSITIVE_SEMIDEFINITE
from .base import LinearOperator
from .product import Product
from .seeded import Seeded
from .terms import NOT_A_SUM, minibatch, term_count


def sampled_terms(A: LinearOperator, method: Any, squared: bool | None = None) -> Terms:
    """The terms that a stochastic method draws from: those of positive A, else (or if so `squared`) those of A^H A, which are its
    rows where A is no sum."""
    generator = None
    if isinstance(A, Seeded):
        generator, A = A.generator, A.A
    A = A.to(dtype=A.xp.float32) if getattr(A.dtype, "itemsize", 0) == 2 else A
    count = term_count(A)
    squared = not A.properties & POSITIVE_SEMIDEFINITE if squared is None else squared
    if count < 2 and squared and A._has_rows:
        whole: LinearOperator = Product(A.H, A)
        count, product = term_count(whole), lambda indices, X: minibatch(whole, indices) @ X
    elif count < 2:
        raise MethodError(f"{method.name}: {A!r} {NOT_A_SUM}; or use CG(), which needs products with A alone.")
    elif squared:
        whole = A

        def product(indices: Array, X: Array) -> Array:
            some = minibatch(A, indices)
            return some.H @ (some @ X)
    else:
        whole, product = A, lambda indices, X: minibatch(A, indices) @ X
    size = method.batch_of(count)
    if size > count:
        raise ValueError(
            f"{method.name}: batch_size is {size}, and the sum has {count} terms. Use at most {count}, or None for the default."
        )
    first = A.xp.arange(size, device=A._context.device)
    share = min(1.0, minibatch(whole, first).flops / max(whole.flops, 1.0))
    return Terms(count, product, share, size, squared, generator)
