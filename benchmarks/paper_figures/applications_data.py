"""Applications on data: principal components (Buzz), ridge regression (Song), exact Gaussian processes (Elevators, Kin40K)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.sparse.linalg as sla

import colinear as co

from .common import JAX, TORCH, as_numpy, compiled, one_thread, points, rows_of
from .harness import Figure, fits, sizes

# ---------------------------------------------------------------------------------------------------- (a) principal components


class Components:
    """The k first right singular vectors of centred rows."""

    bar = 1e-6

    def __init__(self, X: Any, kind: str, k: int):
        self.X, self.k, self.size, self.label = (
            X,
            k,
            k,
            f"{k} components of {len(X)} x {X.shape[1]} {kind}",
        )
        self.C = X.T @ X / len(X)
        self.values = np.linalg.eigvalsh(self.C)[::-1][:k]

    def judge(self, V: Any) -> dict[str, float]:
        """Ritz values beside the eigenvalues of the covariance, relative to the largest."""
        Q = np.linalg.qr(as_numpy(V))[0]
        ritz = np.linalg.eigvalsh(Q.T @ self.C @ Q)[::-1]
        return {"quality": float(np.abs(ritz - self.values).max() / self.values[0])}


def _components(scale: float) -> Iterator[Components]:
    X, _, kind = rows_of("buzz", max(500, round(437_437 * scale)))
    for k in (5, 10, 20):
        yield Components(X, kind, k)


pca = Figure(
    "applications-a",
    "Principal components of Buzz",
    "437 400 x 77; 5, 10 and 20 components; scikit-learn by ARPACK, CoLA by randomised SVD",
    "error of the variances",
    _components,
    x_label="components",
)


@pca.runner("colinear, NumPy", "colinear")
def _(p: Components) -> Callable[[], Any]:
    A = co.Dense(p.X)
    return lambda: co.svd(A, p.k)[2]


@pca.runner("colinear, torch", "colinear", TORCH)
def _(p: Components) -> Callable[[], Any]:
    torch = one_thread()
    A = co.Dense(torch.tensor(p.X))
    return lambda: co.svd(A, p.k)[2]


@pca.runner("colinear, JAX", "colinear", JAX)
def _(p: Components) -> Callable[[], Any]:
    import jax.numpy as jnp

    # not under jit, where the accuracy of A^T A cannot be looked at, so that A itself is decomposed
    A = co.Dense(jnp.array(p.X))
    return lambda: A.xp.synchronize(co.svd(A, p.k)[2].to_dense())


@pca.runner("NumPy, covariance and eigh", "by hand")
def _(p: Components) -> Callable[[], Any]:
    return lambda: np.linalg.eigh(p.X.T @ p.X)[1][:, -p.k :]


@pca.runner("NumPy, dense SVD", "dense")
def _(p: Components) -> Callable[[], Any]:
    return lambda: np.linalg.svd(p.X, full_matrices=False)[2][: p.k].T


@pca.runner("SciPy, svds", "iterative")
def _(p: Components) -> Callable[[], Any]:
    return lambda: sla.svds(p.X, p.k, random_state=0)[2].T


def _sklearn(solver: str) -> Callable[[Components], Callable[[], Any]]:
    def prepare(p: Components) -> Callable[[], Any]:
        from sklearn.decomposition import PCA

        return lambda: PCA(p.k, svd_solver=solver, random_state=0).fit(p.X).components_.T

    return prepare


for _solver in ("auto", "arpack", "randomized"):
    pca.runner(f"scikit-learn, {_solver}", needs=("sklearn", "sklearn.decomposition"))(
        _sklearn(_solver)
    )


@pca.runner("torch, pca_lowrank", needs=("torch",))
def _(p: Components) -> Callable[[], Any]:
    torch = one_thread()
    X = torch.tensor(p.X)
    return lambda: torch.pca_lowrank(X, p.k, center=False)[2]


@pca.runner("matfree, bidiagonalisation", needs=("jax", "matfree"))
def _(p: Components) -> Callable[[], Any]:
    import jax.numpy as jnp
    from matfree import decomp, eig

    # it must be told; ARPACK's default basis is 2 k + 1, and it restarts
    steps = min(3 * p.k + 10, p.X.shape[1])
    X = jnp.array(p.X)
    svd = eig.svd_partial(decomp.bidiag(steps))
    start = jnp.array(np.random.default_rng(0).standard_normal(p.X.shape[1]))

    def program(X: Any, start: Any) -> Any:
        _, _, Vt = svd(lambda v: X @ v, start)
        return Vt[: p.k].T

    return compiled(program, X, start)


@pca.runner("cola-ml, Lanczos", needs=("torch", "cola"))
def _(p: Components) -> Callable[[], Any]:
    torch = one_thread()
    import cola

    X = cola.ops.Dense(torch.tensor(p.X))
    A = cola.PSD(X.T @ X)
    return lambda: cola.eig(
        A, p.k, "LM", cola.linalg.Lanczos(max_iters=min(3 * p.k + 10, p.X.shape[1]))
    )[1].to_dense()


# ---------------------------------------------------------------------------------------------------- (b) ridge regression


class Ridge:
    """min |X w - y|² + 0.1 |w|²: the gradient, relative to that of w = 0."""

    bar, tol, penalty = 2e-3, 1e-4, 0.1  # lsqr's own measure at 1e-4 leaves 1e-3 of this one

    def __init__(self, X: Any, y: Any, kind: str):
        self.X, self.y, self.size, self.label = X, y, len(y), f"{len(y)} x {X.shape[1]} {kind}"

    def judge(self, w: Any) -> dict[str, float]:
        w = as_numpy(w).reshape(-1)
        start = self.X.T @ self.y
        return {
            "quality": float(
                np.linalg.norm(start - self.X.T @ (self.X @ w) - self.penalty * w)
                / np.linalg.norm(start)
            )
        }


def _ridges(scale: float) -> Iterator[Ridge]:
    counts = sizes(386_508, scale, 300)
    X, y, kind = rows_of("song", counts[-1])
    for n in counts:
        yield Ridge(X[:n], y[:n], kind)


ridge = Figure(
    "applications-b",
    "Ridge regression on Song",
    "386 500 x 90, penalty 0.1; scikit-learn by lsqr to 1e-4, CoLA by CG to 1e-4",
    "relative gradient",
    _ridges,
    x_label="rows",
)


def _normal(X: Any, penalty: float) -> Any:
    return X.T @ X + penalty * co.Identity(X.shape[1])


@ridge.runner("colinear, NumPy", "colinear")
def _(p: Ridge) -> Callable[[], Any]:
    X = co.Dense(p.X)
    return lambda: co.solve(_normal(X, p.penalty), X.T @ p.y, co.Auto(tol=p.tol))


@ridge.runner("colinear, torch", "colinear", TORCH)
def _(p: Ridge) -> Callable[[], Any]:
    torch = one_thread()
    X, y = co.Dense(torch.tensor(p.X)), torch.tensor(p.y)
    return lambda: co.solve(_normal(X, p.penalty), X.T @ y, co.Auto(tol=p.tol))


@ridge.runner("colinear, JAX", "colinear", JAX)
def _(p: Ridge) -> Callable[[], Any]:
    import jax.numpy as jnp

    X, y = co.Dense(jnp.array(p.X)), jnp.array(p.y)
    return compiled(lambda X, y: co.solve(_normal(X, p.penalty), X.T @ y, co.Auto(tol=p.tol)), X, y)


@ridge.runner("colinear, NumPy, CG", "colinear")
def _(p: Ridge) -> Callable[[], Any]:
    X = co.Dense(p.X)
    return lambda: co.solve(
        co.opaque(_normal(X, p.penalty)), X.T @ p.y, co.CG(tol=p.tol, max_iters=1000)
    )


@ridge.runner("NumPy, normal equations", "by hand")
def _(p: Ridge) -> Callable[[], Any]:
    def work() -> Any:
        A = p.X.T @ p.X
        A.flat[:: len(A) + 1] += p.penalty
        return np.linalg.solve(A, p.X.T @ p.y)

    return work


@ridge.runner("NumPy, dense least squares", "dense")
def _(p: Ridge) -> Callable[[], Any]:
    d = p.X.shape[1]
    stacked, right = (
        np.vstack([p.X, math.sqrt(p.penalty) * np.eye(d)]),
        np.concatenate([p.y, np.zeros(d)]),
    )
    return lambda: np.linalg.lstsq(stacked, right, rcond=None)[0]


@ridge.runner("SciPy, lsqr", "iterative")
def _(p: Ridge) -> Callable[[], Any]:
    return lambda: sla.lsqr(p.X, p.y, damp=math.sqrt(p.penalty), atol=p.tol, btol=p.tol)[0]


def _sklearn_ridge(solver: str) -> Callable[[Ridge], Callable[[], Any]]:
    def prepare(p: Ridge) -> Callable[[], Any]:
        from sklearn.linear_model import Ridge as Model

        return lambda: (
            Model(p.penalty, solver=solver, tol=p.tol, fit_intercept=False).fit(p.X, p.y).coef_
        )

    return prepare


for _solver in ("cholesky", "lsqr", "sparse_cg"):
    ridge.runner(f"scikit-learn, {_solver}", needs=("sklearn", "sklearn.linear_model"))(
        _sklearn_ridge(_solver)
    )


@ridge.runner("PyLops, damped lsqr", needs=("pylops",))
def _(p: Ridge) -> Callable[[], Any]:
    import pylops

    A = pylops.MatrixMult(p.X)
    lsqr = pylops.optimization.basic.lsqr
    return lambda: lsqr(
        A,
        p.y,
        np.zeros(p.X.shape[1]),
        damp=math.sqrt(p.penalty),
        atol=p.tol,
        btol=p.tol,
        niter=1000,
    )[0]


@ridge.runner("lineax, CG of the normal equations", needs=("jax", "lineax"))
def _(p: Ridge) -> Callable[[], Any]:
    import jax.numpy as jnp
    import lineax

    def solve(X: Any, y: Any) -> Any:
        b = X.T @ y
        A = lineax.FunctionLinearOperator(
            lambda w: X.T @ (X @ w) + p.penalty * w, b, lineax.positive_semidefinite_tag
        )
        return lineax.linear_solve(
            A, b, lineax.CG(rtol=p.tol, atol=0.0, max_steps=1000), throw=False
        ).value

    return compiled(solve, jnp.array(p.X), jnp.array(p.y))


@ridge.runner("matfree, lsmr", needs=("jax", "matfree"))
def _(p: Ridge) -> Callable[[], Any]:
    import jax.numpy as jnp
    from matfree import lstsq

    lsmr = lstsq.lsmr(atol=p.tol, btol=p.tol, maxiter=1000)

    def solve(X: Any, y: Any) -> Any:
        return lsmr(lambda v, X: X.T @ v, y, X, damp=math.sqrt(p.penalty))[0]

    return compiled(solve, jnp.array(p.X), jnp.array(p.y))


@ridge.runner("cola-ml, CG", needs=("torch", "cola"))
def _(p: Ridge) -> Callable[[], Any]:
    torch = one_thread()
    import cola

    X, y = torch.tensor(p.X), torch.tensor(p.y)
    # by its product: the sum of X^T X and a multiple of I is ambiguous for its dispatch
    d = X.shape[1]
    A = cola.PSD(
        cola.ops.LinearOperator(X.dtype, (d, d), matmat=lambda W: X.T @ (X @ W) + p.penalty * W)
    )
    return lambda: cola.solve(A, X.T @ y, cola.linalg.CG(tol=p.tol, max_iters=1000))


# ---------------------------------------------------------------------------------------------------- (c) Gaussian processes


class Training:
    """One step of training: -log likelihood of s exp(-|x - x'|² / 2 l²) + σ I, and its gradient in θ = log (l, s, σ)."""

    bar = 0.1  # of the gradient; stochastic ones have an error of a few per cent, exact ones of rounding

    def __init__(self, name: str, n: int):
        from autodiff import Likelihood  # needs torch and JAX

        X, y, kind = points(name, n)
        self.likelihood = Likelihood(X, y)
        self.size, self.label = len(y), f"{name} ({kind}), {len(y)} x {X.shape[1]}"
        self.value, self.gradient = self.likelihood.by_hand()

    def judge(self, found: Any) -> dict[str, float]:
        value, gradient = float(as_numpy(found[0])), as_numpy(found[1])
        error = float(np.linalg.norm(gradient - self.gradient) / np.linalg.norm(self.gradient))
        return {"quality": error, "error_of_value": abs(value - self.value) / abs(self.value)}


def _trainings(scale: float) -> Iterator[Training]:
    for name, full in (("elevators", 14_000), ("kin40k", 20_000)):
        yield Training(name, max(100, round(full * scale)))


gp = Figure(
    "applications-c",
    "Exact Gaussian process: likelihood and gradient, a step of training",
    "Elevators (14 000, 18), Kin (20 000, 8), 100 steps of Adam on a GPU; CG to 1e-4, 20 samples for the determinant",
    "error of the gradient",
    _trainings,
    x_label="points",
    note="A step is what training repeats 100 times. The stochastic contestants use 20 samples and CG to 1e-4, as the paper's, "
    "where they can be told.",
)
LIKELIHOOD = ("torch", "jax", *TORCH[1:], *JAX[1:])


@gp.runner("colinear, torch", "colinear", LIKELIHOOD)
def _(p: Training) -> Callable[[], Any]:
    return lambda: p.likelihood.torch_gradient(p.likelihood.colinear)


@gp.runner("colinear, JAX", "colinear", LIKELIHOOD)
def _(p: Training) -> Callable[[], Any]:
    return p.likelihood.jax_gradient(p.likelihood.colinear)


@gp.runner("colinear, torch, CG to 1.5e-8 + SLQ", "colinear", LIKELIHOOD)
def _(p: Training) -> Callable[[], Any]:
    G = p.likelihood
    fits(8.0 * G.n**2)

    def value(xp: Any, theta: Any, X: Any, y: Any) -> Any:
        length, scale, noise = xp.exp(theta)
        K = co.Dense(G.gaussian(xp)(X, X, length, scale))
        A = co.opaque(co.PD(K + noise * co.Identity(G.n)))
        method = co.SLQ(20, preconditioner=co.PivotedCholesky(15))
        x, logarithm = co.solve_and_logdet(A, y, method)
        return (y @ x + logarithm) / 2 + G.constant

    return lambda: G.torch_gradient(value)


@gp.runner("NumPy, Cholesky and gradient by hand", "by hand", LIKELIHOOD)
def _(p: Training) -> Callable[[], Any]:
    return p.likelihood.by_hand


@gp.runner("torch, Cholesky", "dense", LIKELIHOOD)
def _(p: Training) -> Callable[[], Any]:
    return lambda: p.likelihood.torch_gradient(p.likelihood.plain)


@gp.runner("JAX, Cholesky", "dense", LIKELIHOOD)
def _(p: Training) -> Callable[[], Any]:
    return p.likelihood.jax_gradient(p.likelihood.plain)


def _gpytorch(p: Training, exact: bool) -> Callable[[], Any]:
    torch = one_thread()
    import gpytorch

    X, y = torch.tensor(p.likelihood.X), torch.tensor(p.likelihood.y)

    class Model(gpytorch.models.ExactGP):
        def __init__(self) -> None:
            super().__init__(X, y, gpytorch.likelihoods.GaussianLikelihood())
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(
                self.mean_module(x), self.covar_module(x)
            )

    model = Model().double()
    length, scale, noise = (float(t) for t in np.exp(p.likelihood.theta))
    (
        model.covar_module.base_kernel.lengthscale,
        model.covar_module.outputscale,
        model.likelihood.noise,
    ) = length, scale, noise
    model.train()
    raw = [
        model.covar_module.base_kernel.raw_lengthscale,
        model.covar_module.raw_outputscale,
        model.likelihood.noise_covar.raw_noise,
    ]
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    s, n = gpytorch.settings, p.likelihood.n

    def work() -> Any:
        model.zero_grad()
        with (
            s.max_cholesky_size(10**9 if exact else 0),
            s.fast_computations(not exact, not exact, not exact),
            s.cg_tolerance(1e-4),
            s.max_cg_iterations(250),
            s.num_trace_samples(20),
        ):
            value = -marginal(model(X), y) * n
            value.backward()
        # θ = log softplus(raw): d/dθ = softplus(raw) / sigmoid(raw) d/draw
        gradient = [
            float(value * r.grad.sum() / torch.sigmoid(r).sum())
            for r, value in zip(raw, (length, scale, noise - 1e-4), strict=True)
        ]
        gradient[2] *= noise / (noise - 1e-4)  # the noise has a floor of 1e-4
        return value.item(), np.array(gradient)

    return work


gp.runner("GPyTorch, Cholesky", needs=("gpytorch", *LIKELIHOOD))(lambda p: _gpytorch(p, True))
gp.runner("GPyTorch, CG + SLQ", needs=("gpytorch", *LIKELIHOOD))(lambda p: _gpytorch(p, False))


@gp.runner("linear_operator, Cholesky", needs=("linear_operator", *LIKELIHOOD))
def _(p: Training) -> Callable[[], Any]:
    return lambda: p.likelihood.torch_gradient(p.likelihood.linear_operator)


def _cola_gp(p: Training, exact: bool) -> Callable[[], Any]:
    one_thread()
    import cola

    G, L = p.likelihood, cola.linalg

    def value(xp: Any, theta: Any, X: Any, y: Any) -> Any:
        length, scale, noise = xp.exp(theta)
        A = cola.PSD(
            cola.ops.Dense(G.gaussian(xp)(X, X, length, scale) + noise * xp.eye(G.n, dtype=X.dtype))
        )
        if exact:
            return (
                y @ cola.solve(A, y, L.Cholesky()) + cola.logdet(A, L.Cholesky(), L.Exact())
            ) / 2 + G.constant
        x = cola.solve(A, y, L.CG(tol=1e-4, max_iters=250))
        return (
            y @ x + cola.logdet(A, L.Lanczos(tol=1e-4, max_iters=250), L.Hutch(max_iters=20))
        ) / 2 + G.constant

    return lambda: G.torch_gradient(value)


gp.runner("cola-ml, Cholesky", needs=("cola", *LIKELIHOOD))(lambda p: _cola_gp(p, True))
gp.runner("cola-ml, CG + SLQ", needs=("cola", *LIKELIHOOD))(lambda p: _cola_gp(p, False))

FIGURES = (pca, ridge, gp)
