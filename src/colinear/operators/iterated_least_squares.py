"""Derivatives of x = A^+ b where A^+ is applied by an iteration (LSQR, LSMR): by more runs of it, not through its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..backends import Array, namespace_of
from .fields import rebuilt

Run = Callable[[Any, Array], Array]  # of an `Iterated` and a right side


def attached(xp: Any, inverse: Any, B: Array, X: Array, run: Run) -> Array:
    """X = A^+ B, as it is, with its derivative where the rank of A stays.

    With r = b - A x, the derivative of the pseudoinverse (`autodiff.pseudoinverse`) applied to b is
        dx = A^+ (db - dA x)  +  A^+ A^+H dA^H r  +  (I - A^+ A) dA^H A^+H x.
    For a cotangent g of x, put w = A^+H g, z = A^+ w, q = g - A^H w and u = A^+H x; then, term by term,
        G_b = w,     <G_A, dA> = -<w, dA x> + <r, dA z> + <u, dA q>.
    Three runs in either mode.
    """
    leaves = tuple(leaf for leaf in inverse.leaves() if namespace_of(leaf) is xp)
    if not xp.is_differentiated(B, *leaves):
        return X

    def tangent(primals: tuple, tangents: tuple, X: Array) -> Array:
        _, B, *leaves = primals
        return _tangent(xp, inverse, run, (B, *leaves), tangents[1:], X)

    def cotangent(primals: tuple, X: Array, G: Array) -> tuple:
        _, B, *leaves = primals
        return None, *_cotangent(xp, inverse, run, (B, *leaves), X, G)

    held = xp.stop_gradient(X)
    return xp.custom_derivative(lambda X, B, *leaves: X + 0, jvp=tangent, vjp=cotangent)(held, B, *leaves)


def times_pseudoinverse(xp: Any, inverse: Any, run: Run, B: Array, *leaves: Array) -> Array:
    """A^+ B, linear in B, with all its derivatives."""

    def forward(B: Array, *leaves: Array) -> Array:
        return run(rebuilt(inverse, leaves), B)

    def backward(G: Array, *leaves: Array) -> Array:
        return run(rebuilt(inverse, leaves).H, G)

    return xp.custom_derivative(
        lambda B, *leaves: xp.linear_map(forward, backward, B, *leaves),
        jvp=lambda primals, tangents, X: _tangent(xp, inverse, run, primals, tangents, X),
        vjp=lambda primals, X, G: _cotangent(xp, inverse, run, primals, X, G),
    )(B, *leaves)


def _both(xp: Any, inverse: Any, run: Run, leaves: Any) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
    """A^+ and A^+H as functions."""
    flipped: Any = rebuilt(inverse, leaves).H
    here = tuple(leaf for leaf in flipped.leaves() if namespace_of(leaf) is xp)
    return (
        lambda B: times_pseudoinverse(xp, inverse, run, B, *leaves),
        lambda B: times_pseudoinverse(xp, flipped, run, B, *here),
    )


def _along(xp: Any, leaves: Any) -> list[int]:
    return [i for i, leaf in enumerate(leaves) if xp.is_floating(leaf)]


def _moved(leaves: Any, moving: list[int], some: Any) -> list[Array]:
    every = list(leaves)
    for i, leaf in zip(moving, some, strict=True):
        every[i] = leaf
    return every


def _tangent(xp: Any, inverse: Any, run: Run, primals: tuple, tangents: tuple, X: Array) -> Array:
    (B, *leaves), (dB, *moved) = primals, tangents
    A, moving = rebuilt(inverse, leaves).A, _along(xp, leaves)
    plus, plus_adjoint = _both(xp, inverse, run, leaves)
    r, u = B - A @ X, plus_adjoint(X)

    def products(some: Any) -> tuple[Array, Array, Array]:
        A = rebuilt(inverse, _moved(leaves, moving, some)).A
        return A @ X, A.H @ r, A.H @ u

    at, along = tuple(leaves[i] for i in moving), tuple(moved[i] for i in moving)
    dAX, dAr, dAu = xp.jvp(products, at, along)[1]
    return plus(dB - dAX - A @ dAu + plus_adjoint(dAr)) + dAu


def _cotangent(xp: Any, inverse: Any, run: Run, primals: tuple, X: Array, G: Array) -> tuple:
    B, *leaves = primals
    A, moving = rebuilt(inverse, leaves).A, _along(xp, leaves)
    plus, plus_adjoint = _both(xp, inverse, run, leaves)
    w = plus_adjoint(G)
    r, u, z, q = B - A @ X, plus_adjoint(X), plus(w), G - A.H @ w

    def products(some: Any) -> Array:
        return rebuilt(inverse, _moved(leaves, moving, some)).A @ xp.concat([X, z, q], axis=-1)

    found: list[Any] = [None] * len(leaves)
    pulled = xp.vjp(products, tuple(leaves[i] for i in moving))[1](xp.concat([-w, r, u], axis=-1))
    for i, part in zip(moving, pulled, strict=True):
        found[i] = part
    return w, *found
