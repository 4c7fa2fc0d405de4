"""Half precision for routines that have none: LAPACK, FFTs and sparse kernels start at single precision."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


def through_single(astype: Callable, halves: frozenset, single: Any) -> Callable[[Callable], Callable]:
    """Make the decorator with which a backend computes in `single` whatever arrives in one of `halves`.

    The answer is cast back unless a wider array was given too; complex answers stay complex64, as no framework
    has linear algebra for half-precision complex numbers.
    """

    def decorate(function: Callable) -> Callable:
        @functools.wraps(function)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            given = [x.dtype for x in arguments if hasattr(x, "dtype")]
            half = next((dtype for dtype in given if dtype in halves), None)
            if half is None:
                return function(*arguments, **options)
            result = function(*(widen(x) for x in arguments), **options)
            is_half = all(dtype in halves or "int" in str(dtype) for dtype in given)  # pivots are integers
            return narrow(result, half) if is_half else result

        return wrapped

    def widen(x: Any) -> Any:
        return astype(x, single) if getattr(x, "dtype", None) in halves else x

    def narrow(result: Any, half: Any) -> Any:
        if isinstance(result, tuple):
            return tuple(narrow(part, half) for part in result)
        return astype(result, half) if result.dtype == single else result

    return decorate
