"""Derivatives of what is linear in a function f of numbers, also with respect to the arrays that f closes over.

For F(f, x) and f(z) = g(z, h), with h what f closes over, F is linear in f, so that
    dF = (the derivative of F(f, .) along dx) + F(∂g/∂h dh, x),
of which the second term is of the same kind: it is differentiated again in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..backends import Array
from ..info import ShapeError


def derive(xp: Any, f: Callable, of: Callable, tangent: Callable, arrays: tuple, ranks: tuple[int, ...], z: Array) -> Array:
    """F = `of(f, *arrays)`, linear in f, with its derivatives.

    Parameters
    ----------
    f : callable
        Maps arrays of numbers entry by entry.
    tangent : callable
        `tangent(f, primals, tangents, F)` is the derivative of F with respect to the arrays.
    ranks : tuple of int
        The ranks of the arrays without batch dimensions.
    z : array
        Numbers that f is given: one of them shows what f closes over.
    """
    g, hidden = hoist_number(xp, f, z)
    return _derive(xp, g, hidden, of, tangent, arrays, ranks)


def _derive(xp: Any, g: Callable, hidden: tuple, of: Callable, tangent: Callable, arrays: tuple, ranks: tuple) -> Array:
    """F = `of(f, *arrays)` for f(z) = g(z, *hidden), with its derivatives."""
    count, size = len(arrays), len(hidden)
    places = [i for i, part in enumerate(hidden) if xp.is_floating(part)]

    def slope(z: Array, *parts: Array) -> Any:  # ∂g/∂h dh, as a function of z, h and dh
        h, dh = parts[:size], parts[size:]

        def at(some: tuple) -> Any:
            moved = dict(zip(places, some, strict=True))
            return g(z, *(moved.get(i, part) for i, part in enumerate(h)))

        return xp.jvp(at, tuple(h[i] for i in places), tuple(dh))[1]

    def push(primals: tuple, tangents: tuple, output: Array) -> Array:
        x, h = primals[:count], primals[count:]
        moved: Array = tangent(bind(g, h), x, tangents[:count], output)
        if not places:
            return moved
        dh = tuple(tangents[count + i] for i in places)
        return moved + _derive(xp, slope, (*h, *dh), of, tangent, x, ranks)

    def whole(*primals: Array) -> Any:
        return of(bind(g, primals[count:]), *primals[:count])

    found: Array = xp.custom_derivative(whole, jvp=push, ranks=None if hidden else ranks)(*arrays, *hidden)
    return found


def bind(g: Callable, hidden: tuple) -> Callable:
    """The function z -> g(z, *hidden)."""
    return (lambda z: g(z, *hidden)) if hidden else g


def hoist_number(xp: Any, f: Callable, z: Array) -> tuple[Callable, tuple]:
    """g and h with `g(x, *h) = f(x)` for arrays x of the dtype of z: h is what f closes over and the framework follows."""
    one = xp.reshape(xp.stop_gradient(z), (-1,))[0]
    g, hidden = xp.hoist(f, lambda: [(one,)])
    if hidden and tuple(g(one, *hidden).shape):
        raise ShapeError(
            f"apply: f must map each number to a number, but one number gave the shape {tuple(g(one, *hidden).shape)}. "
            "For a batch of functions use vmap."
        )
    return g, hidden
