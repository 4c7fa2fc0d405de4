"""The meaning of `+ - * / @ **` between operators, arrays, scalars and SciPy objects. The
simplifications are in the constructors."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from ..backends import namespace_of
from ..errors import ShapeError
from .base import LinearOperator
from .convert import as_operator, as_operators
from .diagonal import Identity
from .hadamard import Hadamard
from .product import Product
from .scaled import Scaled
from .sum import Sum


def is_scalar(x: Any) -> bool:
    """A Python or NumPy number, a 0-dimensional array, or a batch of 1x1 matrices."""
    if isinstance(x, (numbers.Number, np.generic)):
        return True
    return namespace_of(x) is not None and (x.ndim == 0 or (x.ndim >= 2 and x.shape[-2:] == (1, 1)))


def add(A: Any, B: Any) -> LinearOperator:
    """A + B. Adding a number is refused, except the 0 from which `sum` starts."""
    if isinstance(A, LinearOperator) and isinstance(B, LinearOperator):
        return Sum(A, B)
    for one, other in ((A, B), (B, A)):
        if isinstance(one, (numbers.Number, np.generic)) or getattr(one, "ndim", None) == 0:
            if isinstance(one, numbers.Number) and one == 0:
                return as_operator(other)
            raise TypeError(
                f"+: an operator and the number {one!r}. Write A + c * "
                f"Identity({other.shape[-1]}) for a shift."
            )
    return Sum(A, B)


def subtract(A: Any, B: Any) -> LinearOperator:
    """A - B."""
    if isinstance(B, LinearOperator):
        return add(A, -B)
    if isinstance(B, numbers.Number) or getattr(B, "ndim", None) == 0:
        return add(A, B)  # refused there, or zero
    A, B = as_operators((A, B))
    return Sum(A, -B)


def times(A: LinearOperator, B: Any) -> LinearOperator:
    """c A for a scalar c; the entrywise (Hadamard) product with anything else, as NumPy's `*`."""
    if is_scalar(B):
        if getattr(B, "ndim", 0) == 0:
            return Scaled(B, A)
        if A.shape[-2:] != (1, 1):
            return Scaled(B[..., 0, 0], A)
    return Hadamard(A, B)


def divide(A: LinearOperator, c: Any) -> LinearOperator:
    """A / c for a scalar c."""
    if not is_scalar(c):
        raise TypeError(
            "/: an operator can be divided by a number only. Use solve(B, A) or A @ inv(B) for a "
            "quotient of operators."
        )
    return A * (1 / c)


def multiply(A: LinearOperator, B: LinearOperator) -> LinearOperator:
    """A B."""
    return Product(A, B)


def raise_to(A: LinearOperator, exponent: Any) -> LinearOperator:
    """A^p: a product for small natural numbers p, the function `power` for all others."""
    if A.shape[-1] != A.shape[-2]:
        raise ShapeError(
            f"**: A is {A.shape[-2]}x{A.shape[-1]}; only a square operator has powers."
        )
    if isinstance(exponent, (int, np.integer)) and 0 <= exponent <= 16:
        if exponent == 0:
            return Identity(A.shape[-1], like=None if A.is_neutral else A)
        return A if exponent == 1 else Product(*[A] * int(exponent))
    # the one place where an operator asks for a function: `**` is its name
    from ..functions import (
        power,
    )

    return power(A, exponent)
