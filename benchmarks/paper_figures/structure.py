"""Explicit structure: a multi-task Gaussian process (Kronecker), Bi-Poisson (product), equivariant layers (blocks)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.fft
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg as sla
from problems import laplacian

import colinear as co

from .common import JAX, TORCH, as_numpy, cola_sparse, compiled, one_thread, relative
from .harness import Figure, fits, sizes

# ---------------------------------------------------------------------------------------------------- (a) multi-task


class MultiTask:
    """(K_T ⊗ K_X) x = b: 11 tasks, N points of 33 dimensions, length scale √33, 0.1 I added to each factor."""

    bar, tasks, tol = 2e-6, 11, 1e-6

    def __init__(self, n: int):
        rng = np.random.default_rng(0)
        self.KX, self.KT = (
            self.kernel(rng.standard_normal((n, 33))),
            self.kernel(rng.standard_normal((self.tasks, 33))),
        )
        self.b = rng.standard_normal(self.tasks * n)
        self.size, self.label = self.tasks * n, f"{self.tasks} tasks x {n} points"

    @staticmethod
    def kernel(X: Any) -> Any:
        s = (X * X).sum(1)
        return np.exp(-(s[:, None] + s - 2 * X @ X.T) / (2 * X.shape[1])) + 0.1 * np.eye(len(X))

    def multiply(self, x: Any) -> Any:
        return (self.KT @ x.reshape(self.tasks, -1) @ self.KX).reshape(-1)

    def judge(self, x: Any) -> dict[str, float]:
        return {"quality": relative(self.multiply(as_numpy(x).reshape(-1)), self.b)}


kronecker = Figure(
    "structure-a",
    "Multi-task Gaussian process: solve with K_T ⊗ K_X",
    "11 tasks, 1000 points of 33 dimensions, CG to 1e-6 with at most 1000 iterations",
    "relative residual",
    lambda scale: (MultiTask(n) for n in sizes(1000, scale**0.25, 20)),
)


@kronecker.runner("colinear, NumPy", "colinear")
def _(p: MultiTask) -> Callable[[], Any]:
    A = co.Kronecker(co.PSD(p.KT), co.PSD(p.KX))
    return lambda: co.solve(A, p.b, co.Auto(tol=p.tol))


@kronecker.runner("colinear, torch", "colinear", TORCH)
def _(p: MultiTask) -> Callable[[], Any]:
    torch = one_thread()
    A, b = co.Kronecker(co.PSD(torch.tensor(p.KT)), co.PSD(torch.tensor(p.KX))), torch.tensor(p.b)
    return lambda: co.solve(A, b, co.Auto(tol=p.tol))


@kronecker.runner("colinear, JAX", "colinear", JAX)
def _(p: MultiTask) -> Callable[[], Any]:
    import jax.numpy as jnp

    A = co.Kronecker(co.PSD(jnp.array(p.KT)), co.PSD(jnp.array(p.KX)))
    return compiled(lambda A, b: co.solve(A, b, co.Auto(tol=p.tol)), A, jnp.array(p.b))


@kronecker.runner("SciPy, Cholesky of the factors", "by hand")
def _(p: MultiTask) -> Callable[[], Any]:
    def work() -> Any:
        T, X = scipy.linalg.cho_factor(p.KT, lower=True), scipy.linalg.cho_factor(p.KX, lower=True)
        half = scipy.linalg.cho_solve(X, p.b.reshape(p.tasks, -1).T)
        return scipy.linalg.cho_solve(T, half.T).reshape(-1)

    return work


@kronecker.runner("SciPy, dense Cholesky", "dense")
def _(p: MultiTask) -> Callable[[], Any]:
    fits(8.0 * p.size**2)
    K = np.kron(p.KT, p.KX)
    return lambda: scipy.linalg.solve(K, p.b, assume_a="pos")


@kronecker.runner("SciPy, CG", "iterative")
def _(p: MultiTask) -> Callable[[], Any]:
    A = sla.LinearOperator((p.size, p.size), matvec=p.multiply, dtype=float)
    return lambda: sla.cg(A, p.b, rtol=p.tol, maxiter=1000)[0]


def _linear_operator(p: MultiTask, exact: bool) -> Callable[[], Any]:
    torch = one_thread()
    import linear_operator as lo

    KT, KX, b = torch.tensor(p.KT), torch.tensor(p.KX), torch.tensor(p.b)[:, None]
    choice = lo.settings.max_cholesky_size(10**9 if exact else 800)

    def work() -> Any:
        A = lo.operators.KroneckerProductLinearOperator(
            lo.to_linear_operator(KT), lo.to_linear_operator(KX)
        )
        with torch.no_grad(), lo.settings.cg_tolerance(p.tol), choice:
            return A.solve(b)

    return work


kronecker.runner("linear_operator", needs=("torch", "linear_operator"))(
    lambda p: _linear_operator(p, False)
)
kronecker.runner("linear_operator, Cholesky forced", needs=("torch", "linear_operator"))(
    lambda p: _linear_operator(p, True)
)


@kronecker.runner("lineax, CG", needs=("jax", "lineax"))
def _(p: MultiTask) -> Callable[[], Any]:
    import jax.numpy as jnp
    import lineax

    KT, KX, b = jnp.array(p.KT), jnp.array(p.KX), jnp.array(p.b)

    def solve(KT: Any, KX: Any, b: Any) -> Any:
        multiply = lambda x: (KT @ x.reshape(p.tasks, -1) @ KX).reshape(-1)
        A = lineax.FunctionLinearOperator(multiply, b, lineax.positive_semidefinite_tag)
        return lineax.linear_solve(
            A, b, lineax.CG(rtol=p.tol, atol=0.0, max_steps=1000), throw=False
        ).value

    return compiled(solve, KT, KX, b)


@kronecker.runner("PyLops, CG", needs=("pylops",))
def _(p: MultiTask) -> Callable[[], Any]:
    import pylops

    A = pylops.Kronecker(pylops.MatrixMult(p.KT), pylops.MatrixMult(p.KX))
    stop = (p.tol * float(np.linalg.norm(p.b))) ** 2  # of the squared residual, absolute
    return lambda: pylops.optimization.basic.cg(A, p.b, np.zeros(p.size), niter=1000, tol=stop)[0]


@kronecker.runner("cola-ml", needs=("torch", "cola"))
def _(p: MultiTask) -> Callable[[], Any]:
    torch = one_thread()
    import cola

    A = cola.ops.Kronecker(
        cola.PSD(cola.ops.Dense(torch.tensor(p.KT))), cola.PSD(cola.ops.Dense(torch.tensor(p.KX)))
    )
    b = torch.tensor(p.b)
    return lambda: cola.solve(A, b)


# ---------------------------------------------------------------------------------------------------- (b) Bi-Poisson


class BiPoisson:
    """Δ Δ u = ρ on m x m inner points, zero around: a smooth ρ, and u from sine transforms."""

    # a residual of 1e-11 leaves an error that grows with the condition number
    bar, tol = (
        1e-6,
        1e-11,
    )

    def __init__(self, m: int):
        self.m, self.size, self.label = m, m * m, f"{m} x {m} grid"
        t = np.arange(1, m + 1) / (m + 1)
        rho = (
            np.exp(-20 * ((t[:, None] - 0.3) ** 2 + (t - 0.6) ** 2))
            - 0.5 * np.sin(3 * np.pi * t)[:, None] * t
        )
        self.rho = rho.reshape(-1) / np.linalg.norm(rho)
        self.values = 2 - 2 * np.cos(np.pi * t)
        self.u = self.transforms()

    def transforms(self) -> Any:
        values = self.values[:, None] + self.values
        return scipy.fft.dstn(
            scipy.fft.dstn(self.rho.reshape(self.m, -1), 1, norm="ortho") / values**2,
            1,
            norm="ortho",
        ).reshape(-1)

    def line(self, xp: Any = np) -> tuple[Any, Any, Any]:
        side, middle = (
            xp.full((self.m - 1,), -1.0, dtype=xp.float64),
            xp.full((self.m,), 2.0, dtype=xp.float64),
        )
        return side, middle, side

    def judge(self, u: Any) -> dict[str, float]:
        return {"quality": relative(as_numpy(u).reshape(-1), self.u)}


product = Figure(
    "structure-b",
    "Bi-Poisson: solve with Δ Δ",
    "grids up to 1000 x 1000, CG to 1e-11 with a multigrid preconditioner",
    "relative error of u",
    lambda scale: (BiPoisson(m) for m in sizes(1000, scale**0.5, 15)),
    note="The residual of ΔΔ cannot reach 1e-11 in double precision (its condition number is the square of Δ's), so the error is judged; "
    "colinear is left to its own tolerance, 1.5e-8, looks at the residual and warns on the larger grids that it misses it.",
)


@product.runner("colinear, NumPy", "colinear")
def _(p: BiPoisson) -> Callable[[], Any]:
    line = co.PSD(co.Tridiagonal(*p.line()))
    A = co.KroneckerSum(line, line)
    A = A @ A
    return lambda: co.solve(A, p.rho)


@product.runner("colinear, NumPy, told of sparse Δ only", "colinear")
def _(p: BiPoisson) -> Callable[[], Any]:
    L = co.PSD(co.Sparse(laplacian(p.m)))
    A = L @ L
    return lambda: co.solve(A, p.rho)


@product.runner("colinear, torch", "colinear", TORCH)
def _(p: BiPoisson) -> Callable[[], Any]:
    torch = one_thread()
    line = co.PSD(co.Tridiagonal(*p.line(torch)))
    A, rho = co.KroneckerSum(line, line), torch.tensor(p.rho)
    A = A @ A
    return lambda: co.solve(A, rho)


@product.runner("colinear, JAX", "colinear", JAX)
def _(p: BiPoisson) -> Callable[[], Any]:
    import jax.numpy as jnp

    line = co.PSD(co.Tridiagonal(*p.line(jnp)))
    A = co.KroneckerSum(line, line)
    return compiled(lambda A, b: co.solve(A, b), A @ A, jnp.array(p.rho))


@product.runner("SciPy, sine transforms", "by hand")
def _(p: BiPoisson) -> Callable[[], Any]:
    return p.transforms


@product.runner("SciPy, dense Cholesky", "dense")
def _(p: BiPoisson) -> Callable[[], Any]:
    fits(8.0 * p.size**2)
    L = laplacian(p.m)
    A = (L @ L).toarray()
    return lambda: scipy.linalg.solve(A, p.rho, assume_a="pos")


@product.runner("SciPy, SuperLU of Δ, twice", "peer")
def _(p: BiPoisson) -> Callable[[], Any]:
    L = sp.csc_array(laplacian(p.m))

    def work() -> Any:
        factors = sla.splu(L, permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True})
        return factors.solve(factors.solve(p.rho))

    return work


@product.runner("SciPy, CG on ΔΔ", "iterative")
def _(p: BiPoisson) -> Callable[[], Any]:
    L = laplacian(p.m)
    A = sla.LinearOperator(L.shape, matvec=lambda x: L @ (L @ x), dtype=float)
    return lambda: sla.cg(A, p.rho, rtol=p.tol, maxiter=10_000)[0]


@product.runner("SciPy, CG on Δ, twice", "iterative")
def _(p: BiPoisson) -> Callable[[], Any]:
    L = laplacian(p.m)
    return lambda: sla.cg(
        L, sla.cg(L, p.rho, rtol=p.tol, maxiter=10_000)[0], rtol=p.tol, maxiter=10_000
    )[0]


@product.runner("PyAMG, smoothed aggregation + CG, twice", needs=("pyamg",))
def _(p: BiPoisson) -> Callable[[], Any]:
    import pyamg

    L = sp.csr_matrix(laplacian(p.m))

    def work() -> Any:
        hierarchy = pyamg.smoothed_aggregation_solver(L)
        half = hierarchy.solve(p.rho, tol=p.tol, accel="cg", maxiter=200)
        return hierarchy.solve(half, tol=p.tol, accel="cg", maxiter=200)

    return work


@product.runner("linear_operator, sum of Kronecker", needs=("torch", "linear_operator"))
def _(p: BiPoisson) -> Callable[[], Any]:
    torch = one_thread()
    import linear_operator as lo

    fits(8.0 * 4 * p.m**2)
    line = torch.tensor(np.diag(np.full(p.m, 2.0)) - np.eye(p.m, k=1) - np.eye(p.m, k=-1))
    one, rho = torch.eye(p.m, dtype=torch.float64), torch.tensor(p.rho)[:, None]

    def work() -> Any:
        K = lo.operators.KroneckerProductLinearOperator
        T, I = lo.to_linear_operator(line), lo.to_linear_operator(one)
        A = lo.operators.SumKroneckerLinearOperator(K(T, I), K(I, T))
        with (
            torch.no_grad(),
            lo.settings.cg_tolerance(p.tol),
            lo.settings.max_cg_iterations(10_000),
        ):
            return A.solve(A.solve(rho))

    return work


@product.runner("lineax, CG on Δ, twice", needs=("jax", "lineax"))
def _(p: BiPoisson) -> Callable[[], Any]:
    import jax.numpy as jnp
    import lineax

    def multiply(x: Any) -> Any:
        u = jnp.pad(x.reshape(p.m, p.m), 1)
        return (
            4 * u[1:-1, 1:-1] - u[:-2, 1:-1] - u[2:, 1:-1] - u[1:-1, :-2] - u[1:-1, 2:]
        ).reshape(-1)

    def solve(b: Any) -> Any:
        A = lineax.FunctionLinearOperator(multiply, b, lineax.positive_semidefinite_tag)
        method = lineax.CG(rtol=p.tol, atol=0.0, max_steps=10_000)
        half = lineax.linear_solve(A, b, method, throw=False).value
        return lineax.linear_solve(A, half, method, throw=False).value

    return compiled(solve, jnp.array(p.rho))


@product.runner("PyLops, CG on Δ, twice", needs=("pylops",))
def _(p: BiPoisson) -> Callable[[], Any]:
    import pylops

    A = pylops.MatrixMult(laplacian(p.m))
    cg = pylops.optimization.basic.cg

    def solve(b: Any) -> Any:
        return cg(
            A, b, np.zeros(p.size), niter=10_000, tol=(p.tol * float(np.linalg.norm(b))) ** 2
        )[0]

    return lambda: solve(solve(p.rho))


@product.runner("cola-ml", needs=("torch", "cola"))
def _(p: BiPoisson) -> Callable[[], Any]:
    torch = one_thread()
    import cola

    L = laplacian(p.m)
    A = cola.PSD(cola_sparse(L))
    A, rho = A @ A, torch.tensor(p.rho)
    return lambda: cola.solve(A, rho, cola.linalg.CG(tol=p.tol, max_iters=10_000))


# ---------------------------------------------------------------------------------------------------- (c) equivariant layers


class Equivariant:
    """The null space of the constraints (ρ(g) - I) v = 0, g a cycle and a transposition of 5 nodes, on tensors of orders 0 to 4.

    Channels are shared out evenly among the orders, as EMLP's uniform heuristic does. The null space of an order has a dimension that
    the theory of groups knows: the partitions of its indices, Bell's numbers.
    """

    bar, bell = 1e-5, (1, 1, 2, 5, 15)

    def __init__(self, channels: int):
        orders = [k for k in range(5) if 5**k <= max(channels // 5, 1)]
        self.copies = {k: max(1, channels // len(orders) // 5**k) for k in orders}
        self.size = sum(m * 5**k for k, m in self.copies.items())
        self.label, self.nullity = (
            f"{self.size} channels",
            sum(m * self.bell[k] for k, m in self.copies.items()),
        )
        nodes = np.arange(5)
        self.generators = np.roll(nodes, 1), np.array([1, 0, 2, 3, 4])
        self.sparse = sp.csr_array(
            sp.block_diag([self.constraint(k) for k, m in self.copies.items() for _ in range(m)])
        )

    def constraint(self, order: int) -> Any:
        found = []
        for g in self.generators:
            P = sp.eye_array(5).tocsr()[g]
            rho = sp.eye_array(1)
            for _ in range(order):
                rho = sp.kron(rho, P)
            found.append(rho - sp.eye_array(5**order))
        return sp.vstack(found)

    def judge(self, Q: Any) -> dict[str, float]:
        """C Q = 0, Q^T Q = I, and as many columns as there should be, on random vectors: Q may be an operator."""
        Q = Q if isinstance(Q, co.LinearOperator) else as_numpy(Q)
        if Q.shape[1] != self.nullity:
            return {"quality": float("inf"), "columns": Q.shape[1], "expected": self.nullity}
        Z = np.random.default_rng(1).standard_normal((self.nullity, 4))
        QZ = as_numpy(Q @ Z)
        length = np.linalg.norm(Z)
        return {
            "quality": float(
                max(np.linalg.norm(self.sparse @ QZ), abs(np.linalg.norm(QZ) - length)) / length
            )
        }


blocks = Figure(
    "structure-c",
    "Equivariant layers: null space of block-diagonal constraints",
    "5 nodes, S(5), sizes up to 15 000, tolerance 1e-5",
    "constraint violation",
    lambda scale: (Equivariant(n) for n in sizes(15_000, scale, 60)),
)


def _constraints(p: Equivariant) -> list[Any]:
    found = []
    for order, copies in p.copies.items():
        one = co.Identity(5**order)
        rho = [
            co.Kronecker(*[co.Permutation(g)] * order) if order > 1 else co.Permutation(g)
            for g in p.generators
        ]
        block = co.vstack([r - one for r in rho]) if order else co.Zero(2, 1)
        found += [block] * copies
    return found


@blocks.runner("colinear, NumPy", "colinear")
def _(p: Equivariant) -> Callable[[], Any]:
    C = co.BlockDiag(*_constraints(p))
    return lambda: co.nullspace(C)


@blocks.runner("colinear, NumPy, told of a sparse matrix only", "colinear")
def _(p: Equivariant) -> Callable[[], Any]:
    C = co.Sparse(p.sparse)
    return lambda: co.nullspace(C)


@blocks.runner("SciPy, dense null_space", "dense")
def _(p: Equivariant) -> Callable[[], Any]:
    fits(8.0 * 4 * p.size**2)
    C = p.sparse.toarray()
    return lambda: scipy.linalg.null_space(C)


@blocks.runner("torch, dense SVD", "dense", ("torch",))
def _(p: Equivariant) -> Callable[[], Any]:
    torch = one_thread()
    fits(8.0 * 4 * p.size**2)
    C = torch.tensor(p.sparse.toarray())

    def work() -> Any:
        _, s, Vh = torch.linalg.svd(C, full_matrices=False)
        return Vh[s < 1e-10 * s[0]].T

    return work


@blocks.runner("NumPy, iterative null space (EMLP's)", "iterative")
def _(p: Equivariant) -> Callable[[], Any]:
    """Gradient descent on |C Q|² / 2 with orthonormal columns, of a rank that is doubled until some columns are no null vectors."""

    def work() -> Any:
        rng, rank, C = np.random.default_rng(0), 8, p.sparse
        step = 0.5 / float(abs(C).sum(axis=0).max() * abs(C).sum(axis=1).max())
        while True:
            rank = min(2 * rank, p.size)
            Q = np.linalg.qr(rng.standard_normal((p.size, rank)))[0]
            for iteration in range(20_000):
                G = C.T @ (C @ Q)
                Q = Q - 2 * step * G
                if iteration % 20 == 0 and np.linalg.norm(G) < 1e-6 * np.linalg.norm(Q):
                    break
            # what is left of random vectors lies in the null space
            U, s, _ = np.linalg.svd(Q, full_matrices=False)
            found = U[:, s > 1e-4]
            if found.shape[1] < rank or rank == p.size:
                return found

    return work


FIGURES = (kronecker, product, blocks)
