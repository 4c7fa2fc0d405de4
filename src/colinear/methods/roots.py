"""Square roots, logarithms and powers of matrices that need not be diagonalisable (Higham,
Functions of Matrices, 2008).

Two ways. Where values can be seen, SciPy's, on the Schur form. Under tracing and where derivatives
are recorded, iterations made of products and inverses only: the product form of Denman and Beavers'
iteration with determinantal scaling (Higham, 6.29) for the root, and on it inverse scaling and
squaring with Gauss-Legendre quadrature (Higham, 11.4) for the logarithm. Both are right for
defective matrices.

Differs from the book: the iteration does not converge for eigenvalues on the negative real axis, so
the plane is turned first: A^(1/2) = e^(iθ/2) (e^(-iθ) A)^(1/2), with θ between the axis and the
next eigenvalue below it, which keeps the root principal.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from ..backends import Array, eye_like, matrix_inverse, zeros_like

STEPS = 20  # of the iteration: quadratic once it is near, and scaling brings it near in a few


ROOTS = 12  # square roots before the logarithm's series: enough for |log A| up to 1000


CLOSE = 0.25  # |A^(1/2^k) - I| at which the quadrature of NODES points is exact to double precision


NODES = 8


# -------------------------------------------------------------------------------- by the Schur form


def on_host(name: str, values: np.ndarray, *arguments: Any) -> np.ndarray:
    """SciPy's function of each matrix of a batch; NaN where it refuses."""
    import scipy.linalg

    f = getattr(scipy.linalg, name)
    flat = values.reshape(-1, *values.shape[-2:])
    results = []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # what they warn of, our caller measures
        for matrix in flat:
            try:
                found = f(matrix, *arguments) if np.isfinite(matrix).all() else None
            except (ValueError, np.linalg.LinAlgError):
                found = None
            results.append(np.full_like(matrix, np.nan) if found is None else found)
    result = np.stack(results) if results else flat
    precision = (
        np.result_type(values.dtype, np.complex64) if np.iscomplexobj(result) else values.dtype
    )
    return result.astype(precision).reshape(values.shape)


# ------------------------------------------------------------------------------------- by iteration


def square_root(xp: Any, A: Array) -> tuple[Array, Array]:
    """A^(1/2) and A^(-1/2), principal; complex if A is. No eigenvalue may be zero, and of a real A
    none negative."""
    if not xp.is_complex(A):
        return _denman_beavers(xp, A)
    turn = _turn(xp, xp.eigvals(xp.stop_gradient(A)))[..., None, None]
    X, Y = _denman_beavers(xp, A * xp.exp(-1j * turn))
    half = xp.exp(0.5j * turn)
    return X * half, Y / half


def _turn(xp: Any, eigenvalues: Array) -> Array:
    """Half the angle between the negative real axis and the first eigenvalue below it; 0 if the
    axis is free."""
    size, imaginary = abs(eigenvalues), xp.imag(eigenvalues)
    near = abs(imaginary) <= math.sqrt(xp.eps(eigenvalues.dtype)) * size
    on_axis = near & (xp.real(eigenvalues) < 0)
    below = (imaginary < 0) & ~near
    free = xp.min(xp.where(below, math.pi + xp.angle(eigenvalues), 1.0), axis=-1)
    return xp.where(xp.any(on_axis, axis=-1), free / 2, 0)


def _denman_beavers(xp: Any, A: Array) -> tuple[Array, Array]:
    I = xp.broadcast_to(eye_like(xp, A), A.shape)

    def step(_: int, state: tuple[Array, ...]) -> tuple[Array, ...]:
        X, Y, M = state
        LU, pivots = xp.lu_factor(M)
        inverse = xp.lu_solve(LU, pivots, I)
        # near the limit scaling would only disturb
        far = xp.max(abs(M - I), axis=(-2, -1)) > 0.01
        logarithm = xp.mean(xp.log(abs(xp.diagonal(xp.stop_gradient(LU)))), axis=-1)
        scale = xp.where(far, xp.exp(-0.5 * logarithm), 1)[..., None, None]
        common = I + inverse / scale**2  # X and Y take the same factor: Y = A^-1 X throughout
        return (
            0.5 * scale * (X @ common),
            0.5 * scale * (Y @ common),
            0.5 * I + 0.25 * (scale**2 * M + inverse / scale**2),
        )

    X, Y, _ = xp.fori_loop(STEPS, step, (A, I, A))
    return X, Y


def logarithm(xp: Any, A: Array) -> Array:
    """log A = 2^k log A^(1/2^k), with k roots, each matrix of a batch taking as many as it
    needs."""
    I = eye_like(xp, A)
    # the first turns the plane; after it all eigenvalues are in the right half
    X, _ = square_root(xp, A)
    power = 2 + zeros_like(xp, xp.real(A), A.shape[:-2])

    def step(_: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
        X, power = state
        far = xp.max(xp.sum(abs(X - I), axis=-2), axis=-1) > CLOSE
        root = xp.cond(xp.any(far), lambda X: _denman_beavers(xp, X)[0], lambda X: X, X)
        return xp.where(far[..., None, None], root, X), xp.where(far, 2 * power, power)

    X, power = xp.fori_loop(ROOTS, step, (X, power))
    return power[..., None, None] * _logarithm_near_identity(xp, X - I, I)


def _logarithm_near_identity(xp: Any, E: Array, I: Array) -> Array:
    """log(I + E) = ∫ E (I + t E)^-1 dt over [0, 1], by Gauss-Legendre quadrature: the diagonal Padé
    approximant."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    total = 0 * E
    for node, weight in zip((nodes + 1) / 2, weights / 2):
        # the two factors commute
        total = total + float(weight) * xp.lu_solve(*xp.lu_factor(I + float(node) * E), E)
    return total


def integer_power(xp: Any, A: Array, p: int) -> Array:
    """A^p by repeated squaring, through A^-1 for negative p."""
    result = xp.broadcast_to(eye_like(xp, A), A.shape)
    base, p = (matrix_inverse(xp, A), -p) if p < 0 else (A, p)
    while p:
        result = xp.matmul(result, base) if p & 1 else result
        p >>= 1
        base = xp.matmul(base, base) if p else base
    return result
