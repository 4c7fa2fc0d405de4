"""Derivatives of what is linear in a function f of numbers, also with respect to the arrays that f
closes over.

For F(f, x) and f(z) = g(z, h), with h what f closes over, F is linear in f, so that
    dF = (the derivative of F(f, .) along dx) + F(∂g/∂h dh, x),
of which the second term is differentiated again through the eigenpairs among x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..backends import Array
from ..errors import ShapeError


def derive(
    xp: Any,
    f: Callable,
    of: Callable,
    tangent: Callable,
    attach: Callable,
    arrays: tuple,
    ranks: tuple,
    z: Array,
) -> Array:
    """F = `of(f, *arrays)`, linear in f, with its derivatives.

    Parameters
    ----------
    f : callable
        Maps arrays of numbers entry by entry.
    tangent : callable
        `tangent(f, primals, tangents, F)` is the derivative of F with respect to the arrays.
    attach : callable
        `attach(*arrays)` are the arrays, with eigenpairs that depend on their matrices.
    ranks : tuple of int
        The ranks of the arrays without batch dimensions.
    z : array
        Numbers that f is given: one of them shows what f closes over.
    """
    count, (g, hidden) = len(arrays), hoist_number(xp, f, z)
    places = [i for i, part in enumerate(hidden) if xp.is_floating(part)]

    def whole(*primals: Array) -> Any:
        return of(bind(g, primals[count:]), *primals[:count])

    def push(primals: tuple, tangents: tuple, output: Array) -> Array:
        x, h = primals[:count], primals[count:]
        moved: Array = tangent(bind(g, h), x, tangents[:count], output)
        if not places:
            return moved
        some, dsome = tuple(h[i] for i in places), tuple(tangents[count + i] for i in places)

        def slope(z: Array) -> Any:  # ∂g/∂h dh
            def at(some: tuple) -> Any:
                changed = dict(zip(places, some, strict=True))
                return g(z, *(changed.get(i, part) for i, part in enumerate(h)))

            return xp.jvp(at, some, dsome)[1]

        return moved + of(slope, *attach(*x))

    found: Array = xp.custom_derivative(whole, jvp=push, ranks=None if hidden else ranks)(
        *arrays, *hidden
    )
    return found


def bind(g: Callable, hidden: tuple) -> Callable:
    """The function z -> g(z, *hidden)."""
    return (lambda z: g(z, *hidden)) if hidden else g


def hoist_number(xp: Any, f: Callable, z: Array) -> tuple[Callable, tuple]:
    """g and h with `g(x, *h) = f(x)` for arrays x of the dtype of z: h is what f closes over and
    the framework follows."""
    one = xp.reshape(xp.stop_gradient(z), (-1,))[0]
    g, hidden = xp.hoist(f, lambda: [(one,)])
    if hidden and tuple(g(one, *hidden).shape):
        raise ShapeError(
            "apply: f must map each number to a number, but one number gave the shape "
            f"{tuple(g(one, *hidden).shape)}. "
            "For a batch of functions use vmap."
        )
    return g, hidden
