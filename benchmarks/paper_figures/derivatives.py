"""Automatic differentiation: gradients of a CG solve and of a log-determinant beside the iterations differentiated one by one.

Memory is the peak of the process beyond what was there before the call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sla
from problems import laplacian

import colinear as co

from .common import JAX, TORCH, as_numpy, cola_sparse, compiled, one_thread, relative
from .harness import Figure, fits, sizes

BOTH = ("torch", "jax", *TORCH[1:], *JAX[1:])


class Gradient:
    """∂/∂θ of |x|² / 2, (L + diag θ) x = b, by CG to 1e-8, θ = 0.01: -(A^-1 x) x."""

    bar = 1e-5

    def __init__(self, m: int):
        from autodiff import Solve  # needs torch and JAX

        self.make, self.m, self.size = Solve, m, m * m
        A = sp.csc_array(laplacian(m) + 0.01 * sp.eye_array(m * m))
        factors = sla.splu(A, permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})
        x = factors.solve(np.random.default_rng(0).standard_normal(m * m))
        self.gradient, self.label = -factors.solve(x) * x, f"{m} x {m} grid"

    def judge(self, gradient: Any) -> dict[str, float]:
        return {"quality": relative(gradient, self.gradient)}


solve = Figure(
    "autograd-solve",
    "Gradient of a CG solve: time and memory",
    "solves by CG of growing size, CoLA's rules beside backpropagation through the iterations",
    "error of the gradient",
    lambda scale: (Gradient(m) for m in sizes(300, scale**0.5, 20)),
    memory=True,
)


def _torch(name: str) -> Callable[[Gradient], Callable[[], Any]]:
    def prepare(p: Gradient) -> Callable[[], Any]:
        S = p.make(p.m, 0.01)
        return lambda: S.gradient(getattr(S, name))

    return prepare


def _jax(name: str, differentiate: bool = True) -> Callable[[Gradient], Callable[[], Any]]:
    def prepare(p: Gradient) -> Callable[[], Any]:
        import jax

        S = p.make(p.m, 0.01)
        f = getattr(S, name)
        return compiled(jax.grad(f) if differentiate else f, S.jtheta)

    return prepare


solve.runner("colinear, torch", "colinear", BOTH)(_torch("colinear"))
solve.runner("colinear, JAX", "colinear", BOTH)(_jax("jax_colinear"))
solve.runner("torch, unrolled", "iterative", BOTH)(_torch("unrolled"))
solve.runner("JAX, unrolled", "iterative", BOTH)(_jax("jax_unrolled"))
solve.runner("torch, adjoint by hand", "by hand", BOTH)(lambda p: p.make(p.m, 0.01).by_hand)
solve.runner("JAX, adjoint by hand", "by hand", BOTH)(_jax("jax_by_hand", False))
solve.runner("JAX, cg", needs=BOTH)(_jax("jax_own"))
solve.runner("lineax, CG", needs=("lineax", *BOTH))(_jax("lineax"))
solve.runner("linear_operator, CG", needs=("linear_operator", *BOTH))(_torch("linear_operator"))


@solve.runner("torch, dense", "dense", BOTH)
def _(p: Gradient) -> Callable[[], Any]:
    torch = one_thread()
    fits(8.0 * 4 * p.size**2)
    S = p.make(p.m, 0.01)
    L = torch.tensor(laplacian(p.m).toarray())

    def loss(theta: Any) -> Any:
        x = torch.linalg.solve(L + torch.diag(theta), S.b)
        return (x * x).sum() / 2

    return lambda: S.gradient(loss)


@solve.runner("cola-ml, CG", needs=("cola", *BOTH))
def _(p: Gradient) -> Callable[[], Any]:
    one_thread()
    import cola

    S, L = p.make(p.m, 0.01), laplacian(p.m)
    A = cola_sparse(L)

    def loss(theta: Any) -> Any:
        x = cola.solve(
            cola.PSD(cola.ops.Sum(A, cola.ops.Diagonal(theta))),
            S.b,
            cola.linalg.CG(tol=1e-8, max_iters=10_000),
        )
        return (x * x).sum() / 2

    return lambda: S.gradient(loss)


# ---------------------------------------------------------------------------------------------------- log-determinants


class Logarithm:
    """∂/∂c log det(L + c I) = tr((L + c I)^-1), c = 0.1, by quadrature with 10 samples."""

    bar, shift, samples, steps = 0.1, 0.1, 10, 30

    def __init__(self, m: int):
        self.m, self.size, self.label = m, m * m, f"{m} x {m} grid"
        values = 2 - 2 * np.cos(np.pi * np.arange(1, m + 1) / (m + 1))
        self.trace = float((1 / (values[:, None] + values + self.shift)).sum())

    def judge(self, gradient: Any) -> dict[str, float]:
        return {"quality": abs(float(as_numpy(gradient)) - self.trace) / self.trace}


logdet = Figure(
    "autograd-logdet",
    "Gradient of a log-determinant by quadrature: time and memory",
    "log-determinants of growing size, CoLA's rules beside backpropagation through Lanczos",
    "error of the gradient",
    lambda scale: (Logarithm(m) for m in sizes(300, scale**0.5, 20)),
    memory=True,
    note="10 samples, so the error is that of the samples, about 1 %; 30 steps for those who must be told.",
)


def _scalar(torch: Any, f: Callable[[Any], Any], shift: float) -> Callable[[], Any]:
    def work() -> Any:
        c = torch.tensor(shift, dtype=torch.float64, requires_grad=True)
        return torch.autograd.grad(f(c), c)[0]

    return work


@logdet.runner("colinear, torch", "colinear", TORCH)
def _(p: Logarithm) -> Callable[[], Any]:
    torch = one_thread()
    L = co.PSD(co.Sparse(laplacian(p.m))).to(backend="torch")
    return _scalar(
        torch,
        lambda c: co.logdet(co.opaque(co.PD(L + c * co.Identity(p.size))), co.SLQ(p.samples)),
        p.shift,
    )


@logdet.runner("colinear, JAX", "colinear", JAX)
def _(p: Logarithm) -> Callable[[], Any]:
    import jax
    import jax.numpy as jnp

    L = co.PSD(co.Sparse(laplacian(p.m))).to(backend="jax")
    f = lambda c, L: co.logdet(co.opaque(co.PD(L + c * co.Identity(p.size))), co.SLQ(p.samples))
    return compiled(jax.grad(f), jnp.array(p.shift), L)


@logdet.runner("torch, unrolled Lanczos", "iterative", ("torch",))
def _(p: Logarithm) -> Callable[[], Any]:
    torch = one_thread()
    S = laplacian(p.m)
    csr = torch.sparse_csr_tensor(
        *(torch.tensor(x) for x in (S.indptr, S.indices, S.data)), size=S.shape
    )
    signs = np.sign(np.random.default_rng(0).standard_normal((p.size, p.samples)))
    Z = torch.tensor(signs)

    def value(c: Any) -> Any:
        """Lanczos without reorthogonalisation, of all samples at once."""
        q, before, beta = (
            Z / p.size**0.5,
            torch.zeros_like(Z),
            torch.zeros(p.samples, dtype=Z.dtype),
        )
        diagonals, sides = [], []
        for _ in range(p.steps):
            w = csr @ q + c * q - beta * before
            alpha = (w * q).sum(0)
            w = w - alpha * q
            beta = torch.linalg.norm(w, dim=0)
            before, q = q, w / beta
            diagonals.append(alpha)
            sides.append(beta)
        T = torch.diag_embed(torch.stack(diagonals, 1))
        side = torch.stack(sides[:-1], 1)
        T = T + torch.diag_embed(side, 1) + torch.diag_embed(side, -1)
        values, V = torch.linalg.eigh(T)
        return p.size * (V[:, 0, :] ** 2 * torch.log(values)).sum(-1).mean()

    return _scalar(torch, value, p.shift)


@logdet.runner("matfree, SLQ", needs=("jax", "matfree"))
def _(p: Logarithm) -> Callable[[], Any]:
    import jax
    import jax.numpy as jnp
    from matfree import decomp, funm, stochtrace

    def multiply(x: Any, c: Any) -> Any:
        u = jnp.pad(x.reshape(p.m, p.m), 1)
        return (
            4 * u[1:-1, 1:-1] - u[:-2, 1:-1] - u[2:, 1:-1] - u[1:-1, :-2] - u[1:-1, 2:]
        ).reshape(-1) + c * x

    integrand = funm.monte_carlo_funm_sym_logdet(decomp.tridiag_sym(p.steps, reortho="full"))
    estimate = stochtrace.estimator_monte_carlo(
        integrand, sampler=stochtrace.sampler_signs(jnp.zeros(p.size), num=p.samples)
    )
    return compiled(
        jax.grad(lambda c, key: estimate(multiply, key, c)), jnp.array(p.shift), jax.random.key(0)
    )


@logdet.runner("torch, dense Cholesky", "dense", ("torch",))
def _(p: Logarithm) -> Callable[[], Any]:
    torch = one_thread()
    fits(8.0 * 4 * p.size**2)
    L = torch.tensor(laplacian(p.m).toarray())
    one = torch.eye(p.size, dtype=L.dtype)
    return _scalar(
        torch,
        lambda c: 2 * torch.log(torch.diagonal(torch.linalg.cholesky(L + c * one))).sum(),
        p.shift,
    )


@logdet.runner("linear_operator, SLQ", needs=("linear_operator", *BOTH))
def _(p: Logarithm) -> Callable[[], Any]:
    torch = one_thread()
    import linear_operator as lo
    from autodiff import constant_plus_diagonal

    S = laplacian(p.m)
    csr = torch.sparse_csr_tensor(
        *(torch.tensor(x) for x in (S.indptr, S.indices, S.data)), size=S.shape
    )
    s = lo.settings

    def value(c: Any) -> Any:
        A = constant_plus_diagonal(csr, c * torch.ones(p.size, dtype=torch.float64))
        with (
            s.num_trace_samples(p.samples),
            s.max_cholesky_size(1),
            s.max_lanczos_quadrature_iterations(p.steps),
            s.max_preconditioner_size(0),
            s.cg_tolerance(1e-3),
        ):
            return A.logdet()

    return _scalar(torch, value, p.shift)


@logdet.runner("cola-ml, Lanczos and Hutchinson", needs=("torch", "cola"))
def _(p: Logarithm) -> Callable[[], Any]:
    torch = one_thread()
    import cola

    S = laplacian(p.m)
    A = cola_sparse(S)

    def value(c: Any) -> Any:
        shifted = cola.PSD(
            cola.ops.Sum(A, cola.ops.Diagonal(c * torch.ones(p.size, dtype=torch.float64)))
        )
        return cola.logdet(
            shifted, cola.linalg.Lanczos(max_iters=p.steps), cola.linalg.Hutch(max_iters=1)
        )

    return _scalar(torch, value, p.shift)


FIGURES = (solve, logdet)
