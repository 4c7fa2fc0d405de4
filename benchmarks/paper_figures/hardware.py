"""Hardware: dense and iterative methods on the CPU and, where there is one, on a GPU. Times are of the wall.

The paper divides by torch on the same hardware; here every contestant is set beside the fastest that is not colinear, and both
of torch's dense ones are among them. Matrices at a smaller scale are leading blocks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sla
from problems import laplacian, matrix_market, sparse_for_linear_operator, trefethen

import colinear as co

from .common import JAX, TORCH, as_numpy, cola_sparse
from .harness import Declined, Figure, fits


class Matrix:
    """A sparse, positive definite matrix and what is asked of it."""

    def __init__(self, name: str, full: int, scale: float):
        n = max(100, round(full * scale**0.5))
        S = trefethen(n) if name.startswith("Trefethen") else matrix_market(name)
        if S is None:
            S, name = laplacian(max(10, round(n**0.5))), f"Laplacian of a grid, for {name}"
        self.S = sp.csr_array(S[:n, :n])
        self.size = self.S.shape[0]
        self.label = f"{name}, n = {self.size}" + ("" if self.size == full else f" of {full}")

    def dense(self) -> Any:
        fits(8.0 * self.size**2)
        return self.S.toarray()


class System(Matrix):
    bar, tol = 2e-11, 1e-11

    def __init__(self, scale: float):
        super().__init__("Trefethen_20000", 20_000, scale)
        self.b = np.random.default_rng(0).standard_normal(self.size)

    def judge(self, x: Any) -> dict[str, float]:
        return {
            "quality": float(
                np.linalg.norm(self.b - self.S @ as_numpy(x).reshape(-1)) / np.linalg.norm(self.b)
            )
        }


class Spectrum(Matrix):
    bar, tol, k = 1e-8, 1e-9, 8

    def __init__(self, scale: float):
        super().__init__("mhd4800b", 4800, scale)
        # Eigenvalues repeat, and a small Krylov space misses members: the reference is dense or of a large one.
        found = (
            np.linalg.eigvalsh(self.S.toarray())
            if self.size <= 2000
            else sla.eigsh(self.S, self.k, which="LA", ncv=120)[0]
        )
        self.values = np.sort(found)[-self.k :]

    def judge(self, pairs: Any) -> dict[str, float]:
        """Residuals of the pairs and errors of the values, so that a member of a repeated eigenvalue that is missed shows."""
        values, V = as_numpy(pairs[0]), as_numpy(pairs[1])
        length = float(abs(self.S).sum(axis=1).max())
        residual = np.linalg.norm(self.S @ V - V * values, axis=0).max()
        return {
            "quality": float(
                max(residual, np.abs(np.sort(values.real) - self.values).max()) / length
            )
        }


class Determinant(Matrix):
    bar = 1e-2

    def __init__(self, scale: float):
        super().__init__("bcsstk18", 11_948, scale)
        factors = sla.splu(sp.csc_array(self.S))
        self.value = float(np.log(np.abs(factors.U.diagonal())).sum())

    def judge(self, value: Any) -> dict[str, float]:
        return {"quality": abs(float(as_numpy(value)) - self.value) / abs(self.value)}


def _one(make: Callable[[float], Any]) -> Callable[[float], Iterator[Any]]:
    return lambda scale: iter([make(scale)])


solve = Figure(
    "hardware-solve",
    "Hardware: solve with Trefethen",
    "Trefethen_20000, CG to 1e-11 beside torch.linalg.solve, on CPU and GPU",
    "relative residual",
    _one(System),
    clock="wall",
)
eig = Figure(
    "hardware-eig",
    "Hardware: 8 largest eigenpairs of mhd4800b",
    "mhd4800b, Lanczos to 1e-9 with at most 100 iterations beside torch.linalg.eigh",
    "residual and error / |A|",
    _one(Spectrum),
    clock="wall",
)
logdet = Figure(
    "hardware-logdet",
    "Hardware: log-determinant of bcsstk18",
    "bcsstk18, stochastic Lanczos quadrature, 30 steps and 25 samples, beside torch.linalg.slogdet",
    "relative error",
    _one(Determinant),
    clock="wall",
    note="30 Lanczos steps cannot resolve a condition number of 3e11: the quadrature's error is systematic; exact ones are by factorisation.",
)


def _torch(device: str) -> Any:
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise Declined("no CUDA device")
    torch.set_num_threads(1)
    return torch


def _finished(device: str, work: Callable[[], Any]) -> Callable[[], Any]:
    """Waits for the device."""
    if device == "cpu":
        return work
    import torch

    def waiting() -> Any:
        answer = work()
        torch.cuda.synchronize()
        return answer

    return waiting


def _on_torch(p: Matrix, device: str) -> Any:
    torch = _torch(device)
    return co.PSD(co.Sparse(p.S)).to(backend="torch", device=torch.device(device))


def _on_jax(p: Matrix, device: str) -> Any:
    import jax

    jax.config.update("jax_platforms", device)
    try:
        jax.devices()
    except (RuntimeError, AssertionError):
        raise Declined(f"JAX has no {device} device") from None
    return co.PSD(co.Sparse(p.S)).to(backend="jax")


def _dense_torch(p: Matrix, device: str) -> tuple[Any, Any]:
    torch = _torch(device)
    return torch, torch.tensor(p.dense(), device=device)


def _dense_solve(p: System, device: str) -> Callable[[], Any]:
    torch, A = _dense_torch(p, device)
    b = torch.tensor(p.b, device=device)
    return _finished(device, lambda: torch.linalg.solve(A, b))


def _dense_eig(p: Spectrum, device: str) -> Callable[[], Any]:
    torch, A = _dense_torch(p, device)

    def work() -> Any:
        values, V = torch.linalg.eigh(A)
        return values[-p.k :], V[:, -p.k :]

    return _finished(device, work)


def _dense_logdet(p: Determinant, device: str) -> Callable[[], Any]:
    torch, A = _dense_torch(p, device)
    return _finished(device, lambda: torch.linalg.slogdet(A)[1])


def _solve(p: System, A: Any, device: str, method: Any) -> Callable[[], Any]:
    b = A.xp.asarray(p.b, device=A.device)
    return lambda: A.xp.synchronize(co.solve(A, b, method))


def _eig(p: Spectrum, A: Any, device: str, method: Any) -> Callable[[], Any]:
    def work() -> Any:
        values, V = co.eig(A, p.k, "LA", method)
        return values, A.xp.synchronize(V.to_dense())

    return work


def _logdet(p: Determinant, A: Any, device: str, method: Any) -> Callable[[], Any]:
    return lambda: A.xp.synchronize(co.logdet(A, method))


_methods: list[tuple[Figure, Callable, Callable, dict[str, Any]]] = [
    (solve, _solve, _dense_solve, {"Auto": co.Auto(tol=1e-11), "CG": co.CG(tol=1e-11)}),
    (eig, _eig, _dense_eig, {"Auto": co.Auto(tol=1e-9), "Lanczos": co.Lanczos(tol=1e-9)}),
    (logdet, _logdet, _dense_logdet, {"Auto": None, "SLQ": co.SLQ(25, max_iters=30)}),
]
for _figure, _ours, _theirs, _named in _methods:

    def _ready_numpy(p: Any, ours: Any = _ours, method: Any = _named["Auto"]) -> Any:
        return ours(p, co.PSD(co.Sparse(p.S)), "cpu", method)

    _figure.runner("colinear, NumPy, Auto, cpu", "colinear")(_ready_numpy)
    for _device in ("cpu", "cuda"):
        for _label, _method in _named.items():

            def _ready(
                p: Any, ours: Any = _ours, device: str = _device, method: Any = _method
            ) -> Any:
                return ours(p, _on_torch(p, device), device, method)

            def _ready_jax(
                p: Any, ours: Any = _ours, device: str = _device, method: Any = _method
            ) -> Any:
                return ours(p, _on_jax(p, device), device, method)

            _figure.runner(f"colinear, torch, {_label}, {_device}", "colinear", TORCH)(_ready)
            _figure.runner(f"colinear, JAX, {_label}, {_device}", "colinear", JAX)(_ready_jax)
        _figure.runner(f"torch, dense, {_device}", "dense", ("torch",))(
            lambda p, run=_theirs, device=_device: run(p, device)
        )


@solve.runner("SciPy, CG, cpu", "iterative")
def _(p: System) -> Callable[[], Any]:
    return lambda: sla.cg(p.S, p.b, rtol=p.tol, maxiter=p.size)[0]


@solve.runner("SciPy, CG with Jacobi, cpu", "iterative")
def _(p: System) -> Callable[[], Any]:
    return lambda: sla.cg(
        p.S, p.b, rtol=p.tol, maxiter=p.size, M=sp.diags_array(1 / p.S.diagonal())
    )[0]


@solve.runner("SciPy, SuperLU, cpu", "peer")
def _(p: System) -> Callable[[], Any]:
    S = sp.csc_array(p.S)
    return lambda: sla.splu(S, permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True}).solve(
        p.b
    )


def _eigsh(p: Spectrum, basis: int | None) -> Callable[[], Any]:
    return lambda: sla.eigsh(
        p.S,
        p.k,
        which="LA",
        tol=p.tol,
        ncv=basis,
        v0=np.random.default_rng(0).standard_normal(p.size),
    )


eig.runner("SciPy, eigsh, cpu", "iterative")(lambda p: _eigsh(p, None))
eig.runner("SciPy, eigsh with a basis of 48, cpu", "iterative")(lambda p: _eigsh(p, 48))


@logdet.runner("SciPy, SuperLU, cpu", "peer")
def _(p: Determinant) -> Callable[[], Any]:
    S = sp.csc_array(p.S)

    def work() -> float:
        factors = sla.splu(
            S, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}
        )
        return float(
            np.log(np.abs(factors.U.diagonal())).sum() + np.log(np.abs(factors.L.diagonal())).sum()
        )

    return work


def _cola(p: Matrix) -> tuple[Any, Any, Any]:
    torch = _torch("cpu")
    import cola

    S = p.S
    return torch, cola, cola.PSD(cola_sparse(S))


@solve.runner("cola-ml, CG, cpu", needs=("torch", "cola"))
def _(p: System) -> Callable[[], Any]:
    torch, cola, A = _cola(p)
    b = torch.tensor(p.b)
    return lambda: cola.solve(A, b, cola.linalg.CG(tol=p.tol, max_iters=p.size))


@eig.runner("cola-ml, Lanczos, cpu", needs=("torch", "cola"))
def _(p: Spectrum) -> Callable[[], Any]:
    _, cola, A = _cola(p)

    def work() -> Any:
        values, V = cola.eig(A, p.k, "LM", cola.linalg.Lanczos(tol=p.tol, max_iters=100))
        return values, V.to_dense()

    return work


@logdet.runner("cola-ml, Lanczos and Hutchinson, cpu", needs=("torch", "cola"))
def _(p: Determinant) -> Callable[[], Any]:
    _, cola, A = _cola(p)
    return lambda: cola.logdet(
        A, cola.linalg.Lanczos(max_iters=30), cola.linalg.Hutch(tol=0.03, max_iters=25)
    )


@logdet.runner("linear_operator, SLQ, cpu", needs=("torch", "linear_operator"))
def _(p: Determinant) -> Callable[[], Any]:
    torch = _torch("cpu")
    import linear_operator as lo

    A = sparse_for_linear_operator(p.S)
    s = lo.settings
    choices = (
        s.num_trace_samples(25),
        s.max_cholesky_size(1),
        s.max_lanczos_quadrature_iterations(30),
    )

    def work() -> Any:
        with (
            torch.no_grad(),
            choices[0],
            choices[1],
            choices[2],
            s.max_preconditioner_size(0),
            s.max_cg_iterations(30),
        ):
            return A.logdet()

    return work


@solve.runner("CuPy, CG, cuda", needs=("cupy",))
def _(p: System) -> Callable[[], Any]:
    import cupy
    import cupyx.scipy.sparse as cs
    import cupyx.scipy.sparse.linalg as cla

    A, b = cs.csr_matrix(sp.csr_matrix(p.S)), cupy.asarray(p.b)
    # as SciPy, it was renamed
    tolerance = {"rtol" if "rtol" in inspect.signature(cla.cg).parameters else "tol": p.tol}
    return lambda: cupy.asnumpy(cla.cg(A, b, maxiter=p.size, **tolerance)[0])


@eig.runner("CuPy, eigsh, cuda", needs=("cupy",))
def _(p: Spectrum) -> Callable[[], Any]:
    import cupy
    import cupyx.scipy.sparse as cs
    import cupyx.scipy.sparse.linalg as cla

    A = cs.csr_matrix(sp.csr_matrix(p.S))

    def work() -> Any:
        values, V = cla.eigsh(A, p.k, which="LA", tol=p.tol)
        return cupy.asnumpy(values), cupy.asnumpy(V)

    return work


FIGURES = (solve, eig, logdet)
