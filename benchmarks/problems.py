"""The matrices of the benchmarks: real ones from files, and the two problems of the paper that give nonsymmetric ones.

Files are looked for in the folder that COLINEAR_DATA names, else in `../shared/data` beside the repository.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse as sp

DATA = Path(
    os.environ.get("COLINEAR_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data"
)


# ---------------------------------------------------------------------------------------------------- from files


def matrix_market(name: str) -> Any:
    """A sparse matrix of the collection; None where its file is not there."""
    path = DATA / f"{name}.mtx.gz"
    if not path.exists():
        return None
    with gzip.open(path) as file:
        return sp.csr_array(scipy.io.mmread(file)).astype(float)


def trefethen(n: int = 20_000) -> Any:
    """The primes on the diagonal, ones where |i - j| is a power of two: the matrix Trefethen_20000, exactly."""
    limit = int(n * (np.log(n) + np.log(np.log(n)))) + 10
    sieve = np.ones(limit, bool)
    sieve[:2] = False
    for i in range(2, int(limit**0.5) + 1):
        if sieve[i]:
            sieve[i * i :: i] = False
    primes = np.flatnonzero(sieve)[:n].astype(float)
    offsets = [2**i for i in range(n.bit_length()) if 2**i < n]
    lines = [primes, *(np.ones(n - k) for k in offsets for _ in (0, 1))]
    return sp.csr_array(
        sp.diags_array(
            lines, offsets=[0, *(sign * k for k in offsets for sign in (1, -1))], shape=(n, n)
        )
    )


def citations() -> Any:
    """The normalised Laplacian I - D^-1/2 W D^-1/2 of the citation graph cit-HepPh; None where its file is not there."""
    path = DATA / "cit-HepPh.npz"
    if not path.exists():
        return None
    with np.load(path) as file:
        source, target, n = (
            file["src"],
            file["dst"],
            int(file["n"]) if "n" in file else int(max(file["src"].max(), file["dst"].max())) + 1,
        )
    keep = source != target
    W = sp.csr_array((np.ones(keep.sum()), (source[keep], target[keep])), shape=(n, n))
    W = sp.csr_array(((W + W.T) > 0).astype(float))
    degree = W.sum(axis=1)
    scale = sp.diags_array(np.where(degree > 0, 1 / np.sqrt(np.maximum(degree, 1)), 0))
    return sp.csr_array(sp.eye_array(n) - scale @ W @ scale)


# ---------------------------------------------------------------------------------------------------- the hydrogen atom


def gaussian_process_data(n: int) -> tuple[Any, Any]:
    """n rows of Kin40K, standardised: points (n, 8) and targets; synthetic ones of that shape, said so, where its file is not there."""
    path = DATA / "kin40k.npz"
    if path.exists():
        with np.load(path) as file:
            X, y = file["X"][:n].astype(float), file["y"][:n].astype(float)
    else:
        print("kin40k.npz is not there: synthetic points instead")
        X = np.random.default_rng(0).standard_normal((n, 8))
        y = np.sin(X.sum(1)) + 0.1 * X[:, 0]
    return (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()


def laplacian(m: int) -> Any:
    """The 5-point Laplacian of an m x m grid, positive definite."""
    line = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(m, m))
    return sp.csr_array(sp.kron(line, sp.eye_array(m)) + sp.kron(sp.eye_array(m), line))


def hydrogen(m: int = 16) -> Any:
    """-Δ/2 - 1/r on m^3 points of all space, x = tan(u) in each dimension: nonsymmetric, d²/dx² = c⁴ d²/du² - 2 s c³ d/du."""
    h = np.pi / m
    u = -np.pi / 2 + h * (np.arange(m) + 0.5)
    c, s = np.cos(u), np.sin(u)
    ones = np.ones(m - 1)
    second = sp.diags_array([ones, np.full(m, -2.0), ones], offsets=[-1, 0, 1]) / h**2
    first = sp.diags_array([-ones, ones], offsets=[-1, 1]) / (2 * h)
    line = sp.diags_array(c**4) @ second - sp.diags_array(2 * s * c**3) @ first
    I = sp.eye_array(m)
    laplacian = (
        sp.kron(sp.kron(line, I), I) + sp.kron(sp.kron(I, line), I) + sp.kron(sp.kron(I, I), line)
    )
    x = np.tan(u)
    r = np.sqrt(x[:, None, None] ** 2 + x[None, :, None] ** 2 + x[None, None, :] ** 2)
    return sp.csr_array(-0.5 * laplacian - sp.diags_array(1 / r.reshape(-1)))


# ---------------------------------------------------------------------------------------------------- the minimal surface


class MinimalSurface:
    """(1 + z_x²) z_yy - 2 z_x z_y z_xy + (1 + z_y²) z_xx = 0 on the unit square, by central differences on m x m inner points.

    The surface on the boundary is a saddle with a bump, x² - y² + sin(2 π x) / 5.
    """

    def __init__(self, m: int = 100):
        self.m, h = m, 1 / (m + 1)
        first = sp.diags_array([-1.0, 1.0], offsets=[0, 2], shape=(m, m + 2)) / (2 * h)
        second = sp.diags_array([1.0, -2.0, 1.0], offsets=[0, 1, 2], shape=(m, m + 2)) / h**2
        same = sp.diags_array([1.0], offsets=[1], shape=(m, m + 2))
        full = {
            "x": sp.kron(first, same), "y": sp.kron(same, first), "xy": sp.kron(first, first),
            "xx": sp.kron(second, same), "yy": sp.kron(same, second),
        }  # fmt: skip
        t = np.linspace(0, 1, m + 2)
        boundary = t[:, None] ** 2 - t[None, :] ** 2 + np.sin(2 * np.pi * t)[:, None] / 5
        inside = np.zeros((m + 2, m + 2), bool)
        inside[1:-1, 1:-1] = True
        inside = np.flatnonzero(inside.reshape(-1))
        self.start, edge = boundary[1:-1, 1:-1].reshape(-1), boundary.reshape(-1).copy()
        edge[inside] = 0
        self.matrices = {name: sp.csr_array(D.tocsr()[:, inside]) for name, D in full.items()}
        self.known = {name: D @ edge for name, D in full.items()}

    def derivatives(self, z: Any) -> dict[str, Any]:
        return {name: D @ z + self.known[name] for name, D in self.matrices.items()}

    def residual(self, z: Any) -> Any:
        d = self.derivatives(z)
        return (
            (1 + d["x"] ** 2) * d["yy"]
            - 2 * d["x"] * d["y"] * d["xy"]
            + (1 + d["y"] ** 2) * d["xx"]
        )

    def jacobian(self, z: Any) -> Any:
        d = self.derivatives(z)
        weights = {
            "yy": 1 + d["x"] ** 2, "xx": 1 + d["y"] ** 2, "xy": -2 * d["x"] * d["y"],
            "x": 2 * d["x"] * d["yy"] - 2 * d["y"] * d["xy"], "y": 2 * d["y"] * d["xx"] - 2 * d["x"] * d["xy"],
        }  # fmt: skip
        return sp.csr_array(
            sum(sp.diags_array(w) @ self.matrices[name] for name, w in weights.items())
        )

    def newton(
        self, solve: Callable[[Any, Any], Any], tol: float = 1e-8, most: int = 30
    ) -> tuple[Any, float]:
        """From the function that gives the boundary: the surface, and |f| relative to the first one."""
        z = self.start
        f = self.residual(z)
        start = size = float(np.linalg.norm(f))
        for _ in range(most):
            z = z - solve(self.jacobian(z), f)
            f = self.residual(z)
            size = float(np.linalg.norm(f))
            if size <= tol * start:
                break
        return z, size / start


# ---------------------------------------------------------------------------------------------------- for a peer


def sparse_for_linear_operator(S: Any) -> Any:
    """linear_operator has no sparse matrices: products with one; the rest is the library's."""
    import torch
    from linear_operator import LinearOperator

    csr = torch.sparse_csr_tensor(
        *(torch.tensor(x) for x in (S.indptr, S.indices, S.data)), size=S.shape
    )

    class Products(LinearOperator):  # type: ignore[misc]
        def _matmul(self, rhs: Any) -> Any:
            return csr @ rhs

        def _size(self) -> Any:
            return torch.Size(S.shape)

        def _transpose_nonbatch(self) -> Any:
            return self

        @property
        def dtype(self) -> Any:
            return torch.float64

        @property
        def device(self) -> Any:
            return torch.device("cpu")

    return Products(csr.values())
