"""Applications with an operator: spectral clustering (cit-HepPh), the hydrogen atom, a minimal surface."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sla
from problems import MinimalSurface, citations, hydrogen
from scipy.sparse.csgraph import breadth_first_order

import colinear as co

from .common import JAX, TORCH, as_numpy, cola_sparse, compiled, one_thread
from .harness import Figure, fits, sizes

# ---------------------------------------------------------------------------------------------------- (d) spectral clustering


class Graph:
    """The 8 smallest eigenvectors of the normalised Laplacian of a connected graph."""

    bar, k, tol = 1e-5, 8, 1e-6

    def __init__(self, W: Any, what: str):
        self.W, n = W, W.shape[0]
        self.root = np.sqrt(W.sum(axis=1))  # of the degrees
        scale = sp.diags_array(1 / self.root)
        self.L = sp.csr_array(sp.eye_array(n) - scale @ W @ scale)
        self.flipped = sp.csr_array(2 * sp.eye_array(n) - self.L)
        self.values = np.sort(2 - sla.eigsh(self.flipped, self.k, which="LA", tol=1e-10, ncv=60)[0])
        self.size, self.label = n, f"{what}: {n} nodes, {W.nnz} entries"

    def judge(self, V: Any) -> dict[str, float]:
        """Ritz values of the subspace beside the eigenvalues."""
        Q = np.linalg.qr(as_numpy(V))[0]
        return {
            "quality": float(np.abs(np.linalg.eigvalsh(Q.T @ (self.L @ Q)) - self.values).max())
        }


def _graphs(scale: float) -> Iterator[Graph]:
    L, what = citations(), "cit-HepPh"
    if L is None:
        rng, n = np.random.default_rng(0), 34_546
        near = sp.coo_array(
            (np.ones(6 * n), (np.arange(6 * n) % n, (np.arange(6 * n) + rng.zipf(1.6, 6 * n)) % n)),
            shape=(n, n),
        )
        W, what = sp.csr_array(near + near.T), "random graph"
    else:
        W = sp.csr_array(L)
    W.setdiag(0)
    W.eliminate_zeros()
    W.data[:] = 1.0
    # the first n of these are connected
    reached = breadth_first_order(W, int(W.sum(axis=1).argmax()), return_predecessors=False)
    for n in sizes(len(reached), scale**0.5, 400):
        rows = np.sort(reached[:n])
        yield Graph(sp.csr_array(W[rows][:, rows]), f"{what} around its largest node")


clustering = Figure(
    "applications-d",
    "Spectral clustering: 8 smallest eigenvectors of a citation graph",
    "cit-HepPh, 34 500 nodes, 842 000 edges; scikit-learn by ARPACK and by LOBPCG with PyAMG, CoLA by Lanczos to 1e-6 and LOBPCG",
    "error of the eigenvalues",
    _graphs,
    x_label="nodes",
    note="The embedding alone, without k-means, of a connected part (several zero eigenvalues have no single answer).",
)


@clustering.runner("colinear, NumPy", "colinear")
def _(p: Graph) -> Callable[[], Any]:
    A = co.PSD(co.Sparse(p.L))
    return lambda: co.eig(A, p.k, "SA", co.Auto(tol=p.tol))[1]


@clustering.runner("colinear, torch", "colinear", TORCH)
def _(p: Graph) -> Callable[[], Any]:
    one_thread()
    A = co.PSD(co.Sparse(p.L)).to(backend="torch")
    return lambda: co.eig(A, p.k, "SA", co.Auto(tol=p.tol))[1]


@clustering.runner("colinear, JAX", "colinear", JAX)
def _(p: Graph) -> Callable[[], Any]:
    A = co.PSD(co.Sparse(p.L)).to(backend="jax")
    return lambda: A.xp.synchronize(co.eig(A, p.k, "SA", co.Auto(tol=p.tol))[1].to_dense())


@clustering.runner("NumPy, dense eigh", "dense")
def _(p: Graph) -> Callable[[], Any]:
    fits(8.0 * 2 * p.size**2)
    L = p.L.toarray()
    return lambda: np.linalg.eigh(L)[1][:, : p.k]


@clustering.runner("SciPy, eigsh of 2 I - L", "by hand")
def _(p: Graph) -> Callable[[], Any]:
    return lambda: sla.eigsh(p.flipped, p.k, which="LA", tol=p.tol)[1]


@clustering.runner("SciPy, eigsh, smallest", "iterative")
def _(p: Graph) -> Callable[[], Any]:
    return lambda: sla.eigsh(p.L, p.k, which="SA", tol=p.tol)[1]


@clustering.runner("SciPy, lobpcg", "iterative")
def _(p: Graph) -> Callable[[], Any]:
    def work() -> Any:
        start = np.random.default_rng(0).standard_normal((p.size, p.k))
        return sla.lobpcg(p.L, start, tol=1e-4, maxiter=500, largest=False)[1]

    return work


def _sklearn(solver: str) -> Callable[[Graph], Callable[[], Any]]:
    def prepare(p: Graph) -> Callable[[], Any]:
        from sklearn.manifold import spectral_embedding

        W = sp.csr_matrix(p.W)

        def work() -> Any:
            found = spectral_embedding(
                W,
                n_components=p.k,
                eigen_solver=solver,
                drop_first=False,
                random_state=0,
                eigen_tol=p.tol,
            )
            # it divides the eigenvectors by the roots of the degrees
            return found * p.root[:, None]

        return work

    return prepare


for _solver in ("arpack", "amg", "lobpcg"):
    clustering.runner(
        f"scikit-learn, {_solver}",
        needs=("sklearn", "sklearn.manifold", "pyamg")[: 2 + (_solver == "amg")],
    )(_sklearn(_solver))


@clustering.runner("cola-ml, Lanczos", needs=("torch", "cola"))
def _(p: Graph) -> Callable[[], Any]:
    one_thread()
    import cola

    S = p.L
    A = cola.PSD(cola_sparse(S))
    return lambda: cola.eig(
        A, p.k, "SM", cola.linalg.Lanczos(tol=p.tol, max_iters=min(200, p.size))
    )[1].to_dense()


# ---------------------------------------------------------------------------------------------------- (e) the hydrogen atom


class Hydrogen:
    """The 5 lowest energies on m^3 points of all space: a nonsymmetric matrix."""

    bar, k = 1e-5, 5

    def __init__(self, m: int):
        self.H, self.size, self.label = hydrogen(m), m**3, f"{m}^3 points"
        if self.size <= 2000:  # several energies coincide, of which a Krylov space sees few
            found = np.linalg.eigvals(self.H.toarray())
        else:
            found = sla.eigs(sp.csc_array(self.H), 24, sigma=-1.0, ncv=120)[0]
        self.values = np.sort(found.real)[:20]

    def judge(self, values: Any) -> dict[str, Any]:
        """How far each is from an energy. Copies of a repeated energy that are missing, so that a higher one stands there, are noted."""
        values = np.sort(as_numpy(values).real)[: self.k]
        quality = float(np.abs(values[:, None] - self.values).min(1).max())
        missing = (
            int((np.abs(values - self.values[: self.k]) > self.bar).sum())
            if quality <= self.bar
            else 0
        )
        return {"quality": quality} | (
            {"note": "copies of a repeated energy are missing"} if missing else {}
        )


atom = Figure(
    "applications-e",
    "Hydrogen atom: 5 lowest energies, nonsymmetric",
    "grids of up to 5000 points, arctan coordinates; Arnoldi with 20 iterations, SciPy's and CoLA's",
    "error of the energies",
    lambda scale: (
        Hydrogen(2 * m) for m in sizes(8.5, scale ** (1 / 6), 3)
    ),  # even, so that no point lies on the nucleus
    x_label="points",
)


@atom.runner("colinear, NumPy", "colinear")
def _(p: Hydrogen) -> Callable[[], Any]:
    A = co.Sparse(p.H)
    return lambda: co.eig(A, p.k, "SR")[0]


@atom.runner("colinear, torch", "colinear", TORCH)
def _(p: Hydrogen) -> Callable[[], Any]:
    one_thread()
    A = co.Sparse(p.H).to(backend="torch")
    return lambda: co.eig(A, p.k, "SR")[0]


@atom.runner("colinear, JAX", "colinear", JAX)
def _(p: Hydrogen) -> Callable[[], Any]:
    A = co.Sparse(p.H).to(backend="jax")
    return lambda: A.xp.synchronize(co.eig(A, p.k, "SR")[0])


@atom.runner("colinear, NumPy, Arnoldi", "colinear")
def _(p: Hydrogen) -> Callable[[], Any]:
    A = co.Sparse(p.H)
    return lambda: co.eig(A, p.k, "SR", co.Arnoldi(tol=1e-8))[0]


@atom.runner("NumPy, dense eig", "dense")
def _(p: Hydrogen) -> Callable[[], Any]:
    fits(8.0 * 3 * p.size**2)
    H = p.H.toarray()
    return lambda: np.linalg.eig(H)[0]


@atom.runner("SciPy, eigs, shift and invert at -1", "by hand")
def _(p: Hydrogen) -> Callable[[], Any]:
    H = sp.csc_array(p.H)
    return lambda: sla.eigs(H, p.k, sigma=-1.0, tol=1e-8)[0]


@atom.runner("SciPy, eigs SR", "iterative")
def _(p: Hydrogen) -> Callable[[], Any]:
    return lambda: sla.eigs(p.H, p.k, which="SR", tol=1e-8, maxiter=10_000)[0]


@atom.runner("matfree, Hessenberg of 150 steps", needs=("jax", "matfree"))
def _(p: Hydrogen) -> Callable[[], Any]:
    import jax.numpy as jnp
    from jax.experimental import sparse
    from matfree import decomp, eig

    H = sparse.BCSR.from_scipy_sparse(sp.csr_matrix(p.H))
    solver = eig.eig_partial(decomp.hessenberg(min(150, p.size - 1), reortho="full"))
    start = jnp.array(np.random.default_rng(0).standard_normal(p.size))
    return compiled(lambda H, v: solver(lambda x: H @ x, v)[0], H, start)


@atom.runner("cola-ml, Arnoldi of 150 steps", needs=("torch", "cola"))
def _(p: Hydrogen) -> Callable[[], Any]:
    one_thread()
    import cola

    S, steps = p.H, min(150, p.size - 1)
    A = cola_sparse(S)
    # all; the lowest are looked for
    return lambda: cola.eig(A, steps, "LM", cola.linalg.Arnoldi(tol=1e-8, max_iters=steps))[0]


# ---------------------------------------------------------------------------------------------------- (f) a minimal surface


class Surface:
    """Newton's method to |f| <= 1e-8 of the start, each linear system to 5e-3."""

    bar, tol = 1e-7, 5e-3

    def __init__(self, m: int):
        self.m, self.surface, self.size, self.label = m, MinimalSurface(m), m * m, f"{m} x {m} grid"
        self.first = float(np.linalg.norm(self.surface.residual(self.surface.start)))

    def judge(self, z: Any) -> dict[str, float]:
        return {"quality": float(np.linalg.norm(self.surface.residual(as_numpy(z))) / self.first)}

    def by_matrices(self, solve: Callable[[Any, Any], Any]) -> Callable[[], Any]:
        return lambda: self.surface.newton(solve)[0]

    def by_jax(self, solve: Callable[[Callable, Any, Any], Any]) -> Callable[[], Any]:
        """Newton's method around a compiled step; `solve(f, z, f(z))` never sees a matrix."""
        import jax
        import jax.numpy as jnp

        m, h = self.m, 1 / (self.m + 1)
        t = np.linspace(0, 1, m + 2)
        edge = jnp.array(t[:, None] ** 2 - t[None, :] ** 2 + np.sin(2 * np.pi * t)[:, None] / 5)

        def f(z: Any) -> Any:
            u = edge.at[1:-1, 1:-1].set(z.reshape(m, m))
            x, y = (u[2:, 1:-1] - u[:-2, 1:-1]) / (2 * h), (u[1:-1, 2:] - u[1:-1, :-2]) / (2 * h)
            xx = (u[2:, 1:-1] - 2 * u[1:-1, 1:-1] + u[:-2, 1:-1]) / h**2
            yy = (u[1:-1, 2:] - 2 * u[1:-1, 1:-1] + u[1:-1, :-2]) / h**2
            xy = (u[2:, 2:] - u[2:, :-2] - u[:-2, 2:] + u[:-2, :-2]) / (4 * h**2)
            return ((1 + x**2) * yy - 2 * x * y * xy + (1 + y**2) * xx).reshape(-1)

        step = jax.jit(lambda z, r: z - solve(f, z, r))
        value = jax.jit(f)

        def work() -> Any:
            z = jnp.array(self.surface.start)
            r = value(z)
            for _ in range(30):
                z = step(z, r)
                r = value(z)
                if float(jnp.linalg.norm(r)) <= 1e-8 * self.first:
                    break
            return z

        return work


newton = Figure(
    "applications-f",
    "Minimal surface: Newton's method with nonsymmetric systems",
    "grids of up to 100 x 100, GMRES to 5e-3; SciPy's, JAX's and CoLA's",
    "|f| / |f| at the start",
    lambda scale: (Surface(m) for m in sizes(100, scale**0.25, 10)),
    x_label="points",
)


@newton.runner("colinear, NumPy", "colinear")
def _(p: Surface) -> Callable[[], Any]:
    return p.by_matrices(lambda J, f: co.solve(co.Sparse(J), f, co.Auto(tol=p.tol)))


@newton.runner("colinear, NumPy, GMRES", "colinear")
def _(p: Surface) -> Callable[[], Any]:
    return p.by_matrices(
        lambda J, f: co.solve(co.opaque(co.Sparse(J)), f, co.GMRES(tol=p.tol, restart=50))
    )


@newton.runner("colinear, JAX, Jacobian operator, GMRES", "colinear", JAX)
def _(p: Surface) -> Callable[[], Any]:
    return p.by_jax(lambda f, z, r: co.solve(co.Jacobian(f, z), r, co.GMRES(tol=p.tol, restart=50)))


@newton.runner("SciPy, SuperLU", "by hand")
def _(p: Surface) -> Callable[[], Any]:
    return p.by_matrices(lambda J, f: sla.spsolve(J, f))


@newton.runner("NumPy, dense LU", "dense")
def _(p: Surface) -> Callable[[], Any]:
    fits(8.0 * 2 * p.size**2)
    return p.by_matrices(lambda J, f: np.linalg.solve(J.toarray(), f))


@newton.runner("SciPy, GMRES", "iterative")
def _(p: Surface) -> Callable[[], Any]:
    return p.by_matrices(lambda J, f: sla.gmres(J, f, rtol=p.tol, restart=50, maxiter=200)[0])


@newton.runner("SciPy, GMRES with ILU", "iterative")
def _(p: Surface) -> Callable[[], Any]:
    def solve(J: Any, f: Any) -> Any:
        M = sla.spilu(J.tocsc(), drop_tol=1e-4, fill_factor=20)
        return sla.gmres(
            J, f, rtol=p.tol, restart=50, maxiter=200, M=sla.LinearOperator(J.shape, M.solve)
        )[0]

    return p.by_matrices(solve)


@newton.runner("PyAMG, GMRES", needs=("pyamg",))
def _(p: Surface) -> Callable[[], Any]:
    import pyamg

    def solve(J: Any, f: Any) -> Any:
        hierarchy = pyamg.smoothed_aggregation_solver(-sp.csr_matrix(J), symmetry="nonsymmetric")
        return -hierarchy.solve(f, tol=p.tol, accel="gmres", maxiter=100)

    return p.by_matrices(solve)


@newton.runner("JAX, GMRES", needs=("jax",))
def _(p: Surface) -> Callable[[], Any]:
    import jax

    def solve(f: Any, z: Any, r: Any) -> Any:
        return jax.scipy.sparse.linalg.gmres(
            jax.linearize(f, z)[1], r, tol=p.tol, restart=50, maxiter=200
        )[0]

    return p.by_jax(solve)


@newton.runner("lineax, GMRES", needs=("jax", "lineax"))
def _(p: Surface) -> Callable[[], Any]:
    import jax
    import lineax

    def solve(f: Any, z: Any, r: Any) -> Any:
        A = lineax.FunctionLinearOperator(jax.linearize(f, z)[1], r)
        return lineax.linear_solve(
            A, r, lineax.GMRES(rtol=p.tol, atol=0.0, restart=50, max_steps=10_000), throw=False
        ).value

    return p.by_jax(solve)


@newton.runner("cola-ml, GMRES", needs=("torch", "cola"))
def _(p: Surface) -> Callable[[], Any]:
    torch = one_thread()
    import cola

    def solve(J: Any, f: Any) -> Any:
        S = sp.csr_array(J)
        A = cola_sparse(S)
        return cola.solve(
            A, torch.tensor(f), cola.linalg.GMRES(tol=p.tol, max_iters=min(200, p.size))
        ).numpy()

    return p.by_matrices(solve)


FIGURES = (clustering, atom, newton)
