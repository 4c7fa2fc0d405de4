"""Eigenpairs and singular triplets by methods from outside: what they find is judged by products
with A, and differentiated as that of our own methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ... import autodiff
from ...backends import Array, eye_like, inner_products, without_zeros
from ...errors import MethodError, ShapeError
from ...factors.applied import as_numpys, judged
from ...factors.dense import probe_of
from ...info import recording, report
from ...operators import LinearOperator
from ...operators.context import records_derivatives
from ..common import ignore_float_errors, values_are_seen
from .iterate import norm_from_below
from .order import Asked, take_columns


def pairs_of_algorithm(asked: Asked, algorithm: Callable) -> tuple[Array, LinearOperator]:
    """Eigenpairs as `eig` returns them: `algorithm(A, k, which)` gives k values and vectors in any
    order; the values that are returned are Rayleigh quotients of the vectors."""
    A, method, k, xp = asked.A, asked.chosen, asked.k, asked.A.xp
    with recording() as told, ignore_float_errors(xp):
        parts = _found("eig", algorithm, A, method, k, asked.which)
        values, V = _arrays("eig", A, method, parts, ((k,), (asked.n, k)))
        if asked.is_hermitian and not A.is_complex:
            V = xp.real(V)
        V = V / without_zeros(xp, xp.vector_norm(V, axis=-2))[..., None, :]
        V = take_columns(xp, V, asked.order(asked.typed(values))[..., :k])
        AV = A.detach() @ V
        values = asked.typed(xp.vecdot(V, AV, axis=-2))
        size = xp.maximum(
            xp.max(xp.abs(values), axis=-1), norm_from_below(xp, A.detach(), probe_of(A))
        )
        residual = xp.vector_norm(AV - V * values[..., None, :], axis=-2)
        residual = residual / without_zeros(xp, size)[..., None]
        right = residual <= method.tolerance(xp, A.dtype)
        if asked.is_hermitian:  # else one pair may be there twice
            right = right & _is_orthonormal(xp, V, method.tolerance(xp, A.dtype))
    report(judged(xp, method, told, right, residual, may_miss=True))
    return asked.attached(values, V)


def residual_of_triplets(
    xp: Any, A: LinearOperator, AH: LinearOperator, U: Array, s: Array, V: Array
) -> Array:
    """The larger of |A v - s u| and |A^H u - s v| for each triplet."""
    right = xp.vector_norm(A @ V - U * s[..., None, :], axis=-2)
    left = xp.vector_norm(AH @ U - V * s[..., None, :], axis=-2)
    return xp.maximum(right, left)


def triplets_of_algorithm(
    A: LinearOperator, k: int, method: Any, algorithm: Callable
) -> tuple[Array, Array, Array]:
    """U, s and V of k singular triplets, with falling s: `algorithm(A, k)` gives them in any
    order."""
    xp, (m, n) = A.xp, A.shape[-2:]
    with recording() as told, ignore_float_errors(xp):
        parts = _found("svd", algorithm, A, method, k)
        U, s, V = _arrays("svd", A, method, parts, ((m, k), (k,), (n, k)))
        s = xp.real(s)
        order = xp.flip(xp.argsort(s, axis=-1, stable=True), axis=-1)
        s = xp.take_along_axis(s, order, axis=-1)
        U, V = (take_columns(xp, X, order) for X in (U, V))
        fixed = A.detach()
        residual = residual_of_triplets(xp, fixed, fixed.H, U, s, V)
        size = xp.maximum(s[..., :1], norm_from_below(xp, fixed, probe_of(A), fixed.H)[..., None])
        residual = residual / without_zeros(xp, size)
        tol = method.tolerance(xp, A.dtype)
        fine = (residual <= tol) & _is_orthonormal(xp, U, tol) & _is_orthonormal(xp, V, tol)
    report(judged(xp, method, told, fine, residual, may_miss=True))
    if records_derivatives(A):
        U, s, V = autodiff.triplets(A, U, s, V)
    return U, s, V


def _found(function: str, algorithm: Callable, A: LinearOperator, method: Any, *asked: Any) -> Any:
    """What the algorithm gives of A, held fixed, and as NumPy's where it asks for that."""
    if method.on_host and not values_are_seen(A.detach()):
        raise MethodError(
            f"{function}: {method.name} computes on the host, with values that jit and vmap hide. "
            "Call it outside of them."
        )
    fixed = A.detach()
    return algorithm(as_numpys(fixed) if method.on_host else fixed, *asked)


def _arrays(
    function: str, A: LinearOperator, method: Any, parts: Any, shapes: Sequence[tuple[int, ...]]
) -> list[Array]:
    """What was found as arrays in A's framework and on its device, or an error that says which
    shapes are expected."""
    *arrays, info = parts if len(parts) == len(shapes) + 1 else (*parts, None)
    if info is not None:
        report(info)
    arrays = [x.to_dense() if isinstance(x, LinearOperator) else x for x in arrays]
    expected = [(*A.batch_shape, *shape) for shape in shapes]
    given = [tuple(getattr(x, "shape", ())) for x in arrays]
    if given != expected:
        raise ShapeError(
            f"{function}: {method.name}.{function} must give arrays of the shapes "
            f"{', '.join(map(str, expected))}, it gave {', '.join(map(str, given))}."
        )
    return [A.xp.asarray(x, device=A._context.device) for x in arrays]


def _is_orthonormal(xp: Any, V: Array, tol: float) -> Array:
    """Whether V^H V = I, to the tolerance, with an axis for the columns."""
    G = inner_products(xp, V, V)
    return (xp.max(xp.abs(G - eye_like(xp, V)), axis=(-2, -1)) <= tol)[..., None]
