"""Examples of the base families that multiply by a formula or a function, each beside its dense matrix.

`maker(xp, dtype, batch, rng) -> (operator, matrix) | None`: `xp` a backend module, `dtype` a name ("float32"), `batch` a shape,
`rng` a NumPy generator; the matrix is NumPy's, float64 or complex128. None where the combination makes no sense (a Jacobian in
NumPy).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from colinear.backends import namespace_of
from colinear.operators.autograd import GaussNewton, Hessian, Jacobian
from colinear.operators.convolution import Convolution
from colinear.operators.kernel import Kernel
from colinear.operators.lowrank import Householder, LowRank, Projection
from colinear.operators.matrixfree import MatrixFree
from colinear.operators.toeplitz import Circulant, Toeplitz
from colinear.operators.unitary import FFT, Sine

N = 6  # see stored_operators


def exact(xp: Any, array: Any) -> np.ndarray:
    values = np.asarray(xp.to_numpy(array))
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def draw(
    xp: Any, dtype: str, shape: tuple[int, ...], rng: np.random.Generator, shift: Any = 0
) -> tuple[Any, np.ndarray]:
    """Random numbers in the framework, and exactly the same ones in double precision."""
    values = rng.standard_normal(shape)
    if "complex" in dtype:
        values = (values + 1j * rng.standard_normal(shape)) / np.sqrt(2)
    array = xp.asarray(0.3 * values + shift, dtype=xp.dtype_from(dtype))
    return array, exact(xp, array)


def first(n: int, value: float) -> np.ndarray:
    return value * (np.arange(n) == 0)


# ---------------------------------------------------------------------- Toeplitz, circulant, convolution, Fourier


def toeplitz_matrix(col: np.ndarray, row: np.ndarray) -> np.ndarray:
    m, n = col.shape[-1], row.shape[-1]
    batch = np.broadcast_shapes(col.shape[:-1], row.shape[:-1])
    dense = np.zeros((*batch, m, n), np.result_type(col, row))
    for i in range(m):
        for j in range(n):
            dense[..., i, j] = col[..., i - j] if i >= j else row[..., j - i]
    return dense


def toeplitz_hermitian(xp, dtype, batch, rng):
    col, c = draw(xp, dtype, (*batch, N), rng, first(N, 3.0))
    corner = xp.real(col[..., :1])
    col = xp.concat([xp.astype(corner, col.dtype), col[..., 1:]], axis=-1)
    c = exact(xp, col)
    return Toeplitz(col), toeplitz_matrix(c, c.conj())


def toeplitz(xp, dtype, batch, rng):
    col, c = draw(xp, dtype, (*batch, N), rng, first(N, 3.0))
    row, r = draw(xp, dtype, (N,), rng)
    return Toeplitz(col, row), toeplitz_matrix(c, r)


def toeplitz_tall(xp, dtype, batch, rng):
    col, c = draw(xp, dtype, (N,), rng, first(N, 3.0))
    row, r = draw(xp, dtype, (*batch, 3), rng)
    return Toeplitz(col, row), toeplitz_matrix(c, r)


def circulant(xp, dtype, batch, rng):
    col, c = draw(xp, dtype, (*batch, N), rng, first(N, 3.0))
    i = np.arange(N)
    return Circulant(col), c[..., (i[:, None] - i) % N]


def circulant_odd(xp, dtype, batch, rng):
    col, c = draw(xp, dtype, (*batch, 5), rng, first(5, 3.0))
    i = np.arange(5)
    return Circulant(col), c[..., (i[:, None] - i) % 5]


def convolution_matrix(
    kernel: np.ndarray, grid: tuple[int, ...], boundary: str, centered: bool
) -> np.ndarray:
    """By the definition, one entry of the kernel after the other."""
    d, n = len(grid), int(np.prod(grid))
    sizes = kernel.shape[kernel.ndim - d :]
    dense = np.zeros((*kernel.shape[: kernel.ndim - d], n, n), kernel.dtype)
    for i in np.ndindex(*grid):
        for j in np.ndindex(*sizes):
            origin = [(size - 1) // 2 if centered else 0 for size in sizes]
            source = [a - b + o for a, b, o in zip(i, j, origin, strict=True)]
            if boundary == "wrap":
                source = [s % size for s, size in zip(source, grid, strict=True)]
            elif any(not 0 <= s < size for s, size in zip(source, grid, strict=True)):
                continue
            dense[
                ..., np.ravel_multi_index(i, grid), np.ravel_multi_index(tuple(source), grid)
            ] += kernel[(..., *j)]
    return dense


def convolution_wrap(xp, dtype, batch, rng):
    kernel, k = draw(xp, dtype, (*batch, 3), rng, first(3, 3.0))
    return Convolution(kernel, N), convolution_matrix(k, (N,), "wrap", False)


def convolution_zero_plane(xp, dtype, batch, rng):
    kernel, k = draw(xp, dtype, (*batch, 3, 2), rng, [[0, 0], [3.0, 0], [0, 0]])
    return Convolution(kernel, (3, 2), boundary="zero", centered=True), convolution_matrix(
        k, (3, 2), "zero", True
    )


def convolution_large_kernel(xp, dtype, batch, rng):
    """Larger than the grid in one dimension, and applied by transforms."""
    shift = np.zeros((8, 5))
    shift[3, 2] = 5.0
    kernel, k = draw(xp, dtype, (*batch, 8, 5), rng, shift)
    return Convolution(kernel, (3, 2), centered=True), convolution_matrix(k, (3, 2), "wrap", True)


def convolution_zero_large_kernel(xp, dtype, batch, rng):
    kernel, k = draw(xp, dtype, (*batch, 21), rng, 4.0 * (np.arange(21) == 10))
    return Convolution(kernel, N, boundary="zero", centered=True), convolution_matrix(
        k, (N,), "zero", True
    )


def fourier_matrix(n: int) -> np.ndarray:
    i = np.arange(n)
    return np.exp(-2j * np.pi * np.outer(i, i) / n) / np.sqrt(n)


def fft(xp, dtype, batch, rng):
    if "complex" not in dtype:
        return None
    return FFT(N, like=xp.name, dtype=dtype), fourier_matrix(N)


def fft_grid_inverse(xp, dtype, batch, rng):
    if "complex" not in dtype:
        return None
    return FFT((2, 3), like=xp.name, dtype=dtype).H, np.kron(
        fourier_matrix(2), fourier_matrix(3)
    ).conj()


def sine_matrix(n: int) -> np.ndarray:
    i = np.arange(1, n + 1)
    return np.sin(np.pi * np.outer(i, i) / (n + 1)) * np.sqrt(2 / (n + 1))


def sine(xp, dtype, batch, rng):
    return Sine(N, like=xp.name, dtype=dtype), sine_matrix(N)


def sine_grid(xp, dtype, batch, rng):
    return Sine((2, 3), like=xp.name, dtype=dtype), np.kron(sine_matrix(2), sine_matrix(3))


# ---------------------------------------------------------------------- low rank, reflections, projections


def adjoint(A: np.ndarray) -> np.ndarray:
    return np.conj(np.swapaxes(A, -1, -2))


def lowrank(xp, dtype, batch, rng):
    U, u = draw(xp, dtype, (*batch, N, 2), rng, np.eye(N, 2))
    V, v = draw(xp, dtype, (3, 2), rng, np.eye(3, 2))
    return LowRank(U, V), u @ adjoint(v)


def lowrank_psd(xp, dtype, batch, rng):
    U, u = draw(xp, dtype, (*batch, N, 2), rng, np.eye(N, 2))
    return LowRank(U), u @ adjoint(u)


def lowrank_core(xp, dtype, batch, rng):
    U, u = draw(xp, dtype, (N, 2), rng, np.eye(N, 2))
    V, v = draw(xp, dtype, (*batch, N, 3), rng, np.eye(N, 3))
    core, c = draw(xp, dtype, (*batch, 2, 3), rng, np.eye(2, 3))
    return LowRank(U, V, core), u @ c @ adjoint(v)


def lowrank_one_sided_core(xp, dtype, batch, rng):
    U, u = draw(xp, dtype, (*batch, N, 2), rng, np.eye(N, 2))
    core, c = draw(xp, dtype, (2, 2), rng, np.eye(2))
    return LowRank(U, core=core), u @ c @ adjoint(u)


def householder(xp, dtype, batch, rng):
    v, w = draw(xp, dtype, (*batch, N), rng, 1.0)
    outer = w[..., :, None] * w[..., None, :].conj()
    return Householder(v), np.eye(N) - 2 * outer / np.sum(abs(w) ** 2, -1)[..., None, None]


def projection(xp, dtype, batch, rng):
    _, values = draw(xp, dtype, (*batch, N, 2), rng, np.eye(N, 2))
    Q = xp.asarray(np.linalg.qr(values)[0], dtype=xp.dtype_from(dtype))
    q = exact(xp, Q)
    return Projection(Q), q @ adjoint(q)


# ---------------------------------------------------------------------- functions; at module level, so that operators pickle


def bell(X: Any, Y: Any, slope: Any) -> Any:
    """exp(-|x - y|^2 / 2) + slope <x, conj(y)>: not Hermitian where the slope is complex."""
    xp = namespace_of(X)
    difference = xp.abs(X[:, None, :] - Y[None, :, :])
    return xp.exp(-xp.sum(difference**2, axis=-1) / 2) + slope * xp.matmul(
        X, xp.matrix_transpose(xp.conj(Y))
    )


def points(
    xp: Any, dtype: str, shape: tuple[int, ...], rng: np.random.Generator
) -> tuple[Any, np.ndarray]:
    return draw(xp, dtype, shape, rng, 1.2 * np.arange(shape[-2])[:, None])


def kernel_entries(x: np.ndarray, y: np.ndarray, slope: np.ndarray) -> np.ndarray:
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x, y = (np.broadcast_to(p, (*batch, *p.shape[-2:])) for p in (x, y))
    dense = np.zeros((*batch, x.shape[-2], y.shape[-2]), np.result_type(x, y, slope))
    for index in np.ndindex(*batch):
        dense[index] = bell(x[index], y[index], slope)
    return dense


def kernel(xp, dtype, batch, rng):
    X, x = points(xp, dtype, (*batch, N, 2), rng)
    slope, s = draw(xp, dtype, (), rng, 0.05)
    return Kernel(bell, X, parameters=(slope,), block=2), kernel_entries(x, x, s)


def kernel_rectangular(xp, dtype, batch, rng):
    X, x = points(xp, dtype, (*batch, N, 2), rng)
    Y, y = points(xp, dtype, (3, 2), rng)
    slope, s = draw(xp, dtype, (1,), rng, 0.05)
    return Kernel(bell, X, Y, parameters=(slope,)), kernel_entries(x, y, s)


def wave(x: Any, W: Any) -> Any:
    xp = namespace_of(x)
    return x + 0.5 * xp.sin(xp.matmul(W, x))


def stretched(x: dict, W: Any) -> Any:
    """Of two arrays, named against the alphabet: (3, 2) outputs."""
    xp = namespace_of(W)
    return xp.stack([xp.matmul(W, x["b"]), x["b"] ** 2 * x["a"][0, 0]], axis=-1)


def quartic(x: Any, w: Any) -> Any:
    xp = namespace_of(x)
    return xp.sum(w * x**4) / 12 + xp.sum(x**2) / 2 + 0.05 * xp.sum(x) ** 2


def curved(x: Any, W: Any) -> Any:
    return namespace_of(x).matmul(W, x) + x**2 / 2


def convex_loss(y: Any) -> Any:
    xp = namespace_of(y)
    return xp.sum(y**4) / 12 + xp.sum(y**2) / 2


def jacobian(xp, dtype, batch, rng):
    if xp.name == "numpy" or batch:
        return None
    x, point = draw(xp, dtype, (N,), rng)
    W, w = draw(xp, dtype, (N, N), rng)
    return Jacobian(wave, x, parameters=(W,)), np.eye(N) + 0.5 * np.cos(w @ point)[:, None] * w


def jacobian_of_tree(xp, dtype, batch, rng):
    if xp.name == "numpy" or batch:
        return None
    (a, a_), (b, b_), (W, w) = (
        draw(xp, dtype, (1, 1), rng, 1),
        draw(xp, dtype, (3,), rng, 1),
        draw(xp, dtype, (3, 3), rng),
    )
    dense = np.zeros((3, 2, 4), w.dtype)  # outputs (3, 2) by the inputs b, a in this order
    dense[:, 0, :3] = w
    dense[:, 1, :3] = 2 * np.diag(b_) * a_[0, 0]
    dense[:, 1, 3] = b_**2
    dense = dense.reshape(6, 4)
    if xp.name == "jax":  # JAX sorts the keys
        dense = dense[:, [3, 0, 1, 2]]
    return Jacobian(stretched, {"b": b, "a": a}, parameters=(W,)), dense


def hessian(xp, dtype, batch, rng):
    if xp.name == "numpy" or batch:
        return None
    x, point = draw(xp, dtype, (N,), rng, 1)
    w, weights = draw(xp, dtype, (N,), rng, 1)
    return Hessian(quartic, x, parameters=(w,)), np.diag(weights * point**2) + np.eye(N) + 0.1


def gauss_newton(xp, dtype, batch, rng):
    if xp.name == "numpy" or batch or "complex" in dtype:
        return None
    x, point = draw(xp, dtype, (N,), rng, 1)
    W, w = draw(xp, dtype, (N, N), rng)
    J = w + np.diag(point)
    y = w @ point + point**2 / 2
    return GaussNewton(curved, convex_loss, x, parameters=(W,)), J.T @ np.diag(y**2 + 1) @ J


def multiply(X: Any, A: Any) -> Any:
    return namespace_of(X).matmul(A, X)


def multiply_adjoint(X: Any, A: Any) -> Any:
    xp = namespace_of(X)
    return xp.matmul(xp.conj(xp.matrix_transpose(A)), X)


def matrix_free(xp, dtype, batch, rng):
    A, a = draw(xp, dtype, (*batch, N, N), rng, 2 * np.eye(N))
    return MatrixFree(multiply, a.shape, rmatmat=multiply_adjoint, parameters=(A,)), a


def matrix_free_derived(xp, dtype, batch, rng):
    """Its adjoint comes from the framework."""
    if xp.name == "numpy":
        return None
    A, a = draw(xp, dtype, (*batch, 3, N), rng, np.eye(3, N))
    return MatrixFree(multiply, a.shape, dtype=dtype, like=xp.name, parameters=(A,)), a


Maker = Callable[[Any, str, tuple[int, ...], np.random.Generator], "tuple[Any, np.ndarray] | None"]

FORMULAS: dict[str, Maker] = {
    maker.__name__: maker
    for maker in (
        toeplitz_hermitian, toeplitz, toeplitz_tall, circulant, circulant_odd, convolution_wrap, convolution_zero_plane,
        convolution_large_kernel, convolution_zero_large_kernel, fft, fft_grid_inverse, sine, sine_grid, lowrank, lowrank_psd, lowrank_core,
        lowrank_one_sided_core, householder, projection, kernel, kernel_rectangular, jacobian, jacobian_of_tree, hessian,
        gauss_newton, matrix_free, matrix_free_derived,
    )
}  # fmt: skip
