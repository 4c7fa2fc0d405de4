"""Convolutions of large grids with zeros around them: Krylov methods, preconditioned by the periodic convolution nearest to them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..dispatch import Choice, rule
from ..info import failed, report
from ..methods import CG, GMRES, Auto
from ..operators.base import LinearOperator
from ..operators.convolution import Convolution
from ..operators.rewrites import LARGE_GRID, simplify
from ..properties import SELF_ADJOINT
from .inverse import inv
from .solve import right_side, solve, solve_by_inverse


def is_large_with_zeros_around(A: Any, b: Any = None, method: Any = None) -> bool:
    """Whether the grid has more than one dimension, many points, and zeros around it, and a solution is wanted by any method."""
    if isinstance(b, LinearOperator) or not (method is None or isinstance(method, Auto)):
        return False
    return A.boundary == "zero" and len(A.grid) > 1 and math.prod(A.grid) > LARGE_GRID


@rule(solve, Convolution, when=is_large_with_zeros_around, direct=True)
def solve_convolution_with_zeros(A: Any, b: Any, method: Any) -> Any:
    """x by CG or GMRES, preconditioned by the nearest periodic convolution, k_j ∏ (1 - |j_d| / n_d), which transforms invert"""
    return Choice(lambda: _by_iteration(A, b, method), like=lambda: right_side("solve", A, b, A.shape[-1]))


def _by_iteration(A: Any, b: Any, method: Any) -> Any:
    periodic, info = inv(nearest_periodic(A), info=True)
    limits: Any = {"tol": getattr(method, "tol", None), "max_iters": getattr(method, "max_iters", None)}
    preconditioner = None if failed(info._status) is True else periodic
    for kind in (CG, GMRES) if is_self_adjoint(A) else (GMRES,):
        x, info = solve(A, b, kind(preconditioner=preconditioner, **limits), info=True)
        if failed(info._status) is not True:  # it has converged, or its values cannot be seen
            report(info)
            return x
    return solve_by_inverse(simplify(A), b, method)


def nearest_periodic(A: Any) -> LinearOperator:
    """The periodic convolution that is nearest to A in the Frobenius norm (T. Chan 1988, in each dimension)."""
    xp = A.xp
    kernel, origins = A._fitted()
    dimensions = len(A.grid)
    for axis, (n, origin) in enumerate(zip(A.grid, origins, strict=True)):
        reach = np.abs(np.arange(kernel.shape[axis - dimensions]) - origin)
        weights = xp.asarray(1 - reach / n, dtype=xp.real_dtype(A.dtype), device=A._context.device)
        kernel = kernel * weights[(slice(None), *(None,) * (dimensions - 1 - axis))]
    periodic: LinearOperator = Convolution._of(kernel, A.grid, "wrap", origins)
    return periodic._claim(A.properties & SELF_ADJOINT)


def is_self_adjoint(A: Any) -> bool:
    """Whether A is known or seen to be self-adjoint."""
    if A.properties & SELF_ADJOINT:
        return True
    kernel, origins = A._fitted()
    values = A.xp.peek(kernel)
    sizes = kernel.shape[-len(A.grid) :]
    if values is None or any(size != 2 * origin + 1 for size, origin in zip(sizes, origins, strict=True)):
        return False
    return bool(np.array_equal(values, np.conj(np.flip(values, axis=tuple(range(-len(A.grid), 0))))))
