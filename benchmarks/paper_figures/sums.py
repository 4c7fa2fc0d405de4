"""Sums of many terms: the first principal component, random features, Neural-IVP. Residuals beside passes over the data.

A pass is a product of all terms with one vector. The paper shows SVRG beside power iteration and CG; what else there is competes too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse.linalg as sla
from stochastic_sums import features, network_jacobian

import colinear as co

from .common import Answer, Counted, as_numpy, compiled, one_thread, points, rows_of
from .harness import Figure, fits

# ---------------------------------------------------------------------------------------------------- (a) the first component


class FirstComponent:
    """The largest eigenpair of X^T X / n."""

    def __init__(self, X: Any, kind: str, tol: float, batch: int):
        self.X, self.tol, self.batch = X, tol, batch
        self.size, self.bar, self.label = (
            tol,
            2 * tol,
            f"{len(X)} x {X.shape[1]} {kind}, tolerance {tol:g}",
        )

    def multiply(self, v: Any) -> Any:
        return self.X.T @ (self.X @ v) / len(self.X)

    def judge(self, answer: Answer) -> dict[str, float]:
        v = as_numpy(answer.value).reshape(-1)
        v = v / np.linalg.norm(v)
        Av = self.multiply(v)
        value = v @ Av
        return {"quality": float(np.linalg.norm(Av - value * v) / value)} | answer.counted


def _components(scale: float) -> Iterator[FirstComponent]:
    X, _, kind = rows_of("buzz", max(500, round(430_000 * scale)))
    for tol in (1e-3, 1e-5, 1e-7):
        yield FirstComponent(X, kind, tol, max(50, round(10_000 * scale)))


pca = Figure(
    "sums-a",
    "First principal component of Buzz: passes over the rows",
    "430 000 x 77; power iteration and SVRG (batches of 10 000, step 0.0008) to 1e-7, at most 300 iterations",
    "relative residual",
    _components,
    x="passes",
    y="quality",
    x_label="passes",
)


def _colinear_pair(p: FirstComponent, method: Any) -> Callable[[], Any]:
    rows = co.Dense(p.X)
    A = rows.H @ rows / len(p.X)

    def work() -> Answer:
        (_, V), info = co.eig(A, 1, "LA", method, info=True)
        return Answer(V.to_dense()[:, 0], info.matvecs)

    return work


pca.runner("colinear, Auto", "colinear")(lambda p: _colinear_pair(p, co.Auto(tol=p.tol)))
pca.runner("colinear, SVRG", "colinear")(
    lambda p: _colinear_pair(p, co.SVRG(tol=p.tol, batch_size=p.batch))
)
pca.runner("colinear, power iteration", "colinear")(
    lambda p: _colinear_pair(p, co.PowerIteration(tol=p.tol, max_iters=300))
)


@pca.runner("NumPy, covariance and eigh", "dense")
def _(p: FirstComponent) -> Callable[[], Any]:
    return lambda: Answer(np.linalg.eigh(p.X.T @ p.X)[1][:, -1], p.X.shape[1])


@pca.runner("NumPy, power iteration", "iterative")
def _(p: FirstComponent) -> Callable[[], Any]:
    def work() -> Answer:
        v = np.random.default_rng(0).standard_normal(p.X.shape[1])
        passes = 0
        while passes < 300:
            passes += 1
            v /= np.linalg.norm(v)
            w = p.multiply(v)
            value = v @ w
            if np.linalg.norm(w - value * v) <= p.tol * value:
                break
            v = w
        return Answer(v, passes)

    return work


@pca.runner("SciPy, eigsh", "iterative")
def _(p: FirstComponent) -> Callable[[], Any]:
    def work() -> Answer:
        product = Counted(p.multiply)
        d = p.X.shape[1]
        V = sla.eigsh(
            sla.LinearOperator((d, d), matvec=product, dtype=float), 1, which="LA", tol=p.tol
        )[1]
        return Answer(V[:, 0], product.count)

    return work


@pca.runner("SciPy, lobpcg", "iterative")
def _(p: FirstComponent) -> Callable[[], Any]:
    def work() -> Answer:
        product = Counted(p.multiply)
        d = p.X.shape[1]
        A = sla.LinearOperator((d, d), matvec=product, matmat=product, dtype=float)
        size = np.linalg.norm(p.X) ** 2 / len(p.X)  # its tolerance is absolute
        return Answer(
            sla.lobpcg(
                A,
                np.random.default_rng(0).standard_normal((d, 1)),
                tol=0.3 * p.tol * size,
                maxiter=300,
            )[1],
            product.count,
        )

    return work


@pca.runner("cola-ml, power iteration", needs=("torch", "cola"))
def _(p: FirstComponent) -> Callable[[], Any]:
    torch = one_thread()
    import cola
    from cola.linalg.eig.power_iteration import power_iteration

    X = torch.tensor(p.X)

    def work() -> Answer:
        product = Counted(lambda V: X.T @ (X @ V) / len(X))
        A = cola.PSD(cola.ops.LinearOperator(torch.float64, (X.shape[1],) * 2, matmat=product))
        return Answer(power_iteration(A, tol=p.tol, max_iter=300)[0], product.count)

    return work


# ---------------------------------------------------------------------------------------------------- (b), (c): systems


class Summed:
    """(B B^T c + shift I) x = b, with a Nyström preconditioner if a rank is given: c = 1 for features, 1 / m for samples."""

    def __init__(
        self,
        B: Any,
        factor: float,
        shift: float,
        b: Any,
        tol: float,
        batch: int,
        what: str,
        rank: int = 0,
    ):
        self.B, self.factor, self.shift, self.b, self.tol, self.batch = (
            B,
            factor,
            shift,
            b,
            tol,
            batch,
        )
        self.n = len(b)
        self.size, self.bar, self.label = tol, 2 * tol, f"{what}, tolerance {tol:g}"
        self.U, self.weights = self.nystrom(rank) if rank else (None, None)

    def multiply(self, x: Any) -> Any:
        return self.B @ (self.B.T @ x) * self.factor + self.shift * x

    def nystrom(self, rank: int) -> tuple[Any, Any]:
        """P^-1 = I + U diag(weights) U^T, from a random sketch (Frangella, Tropp, Udell 2023)."""
        G = np.linalg.qr(np.random.default_rng(7).standard_normal((self.n, rank)))[0]
        Y = self.B @ (self.B.T @ G) * self.factor
        nu = 1e-12 * np.linalg.norm(Y)
        Y += nu * G
        C = np.linalg.cholesky((G.T @ Y + Y.T @ G) / 2)
        U, s, _ = np.linalg.svd(
            scipy.linalg.solve_triangular(C, Y.T, lower=True).T, full_matrices=False
        )
        values = np.maximum(s**2 - nu, 0)
        return U, (values[-1] + self.shift) / (values + self.shift) - 1

    def precondition(self, r: Any) -> Any:
        return r if self.U is None else r + self.U @ (self.weights * (self.U.T @ r))

    def judge(self, answer: Answer) -> dict[str, float]:
        x = as_numpy(answer.value).reshape(-1)
        return {
            "quality": float(np.linalg.norm(self.multiply(x) - self.b) / np.linalg.norm(self.b))
        } | answer.counted


def _features(scale: float) -> Iterator[Summed]:
    X, y, kind = points("elevators", max(200, round(12_500 * scale)))
    count = max(50, round(1000 * scale**0.5))
    Phi = features(X, count, 0.1)
    for tol in (1e-2, 1e-4, 1e-8):
        yield Summed(
            Phi,
            1.0,
            0.1,
            y,
            tol,
            max(5, count // 10),
            f"Elevators ({kind}), {len(y)} points, {count} features",
        )


def _samples(scale: float) -> Iterator[Summed]:
    width = max(6, round((12_000 * scale) ** 0.5 - 2.5))
    J = network_jacobian(max(400, round(50_000 * scale)), width)
    m, d = J.shape
    largest = np.linalg.norm(J.T @ (J @ np.ones(d))) / np.sqrt(d) / m
    b = J.T @ np.sin(np.arange(m)) / m
    what = f"{m} samples, {d} weights"
    B = np.ascontiguousarray(J.T)
    for tol in (1e-2, 1e-4, 1e-6):
        yield Summed(
            B,
            1 / m,
            1e-4 * largest,
            b,
            tol,
            max(20, m // 100),
            what,
            rank=max(10, round(250 * scale)),
        )


rff = Figure(
    "sums-b",
    "Random features of an RBF kernel on Elevators: passes over the features",
    "12 500 points, 1000 features, length 0.1, noise 0.1; CG to 1e-8, SVRG with batches of 100, step 0.004",
    "relative residual",
    _features,
    x="passes",
    y="quality",
    x_label="passes",
    note="SVRG needs far more passes here than CG: the noise is the smallest eigenvalue by far, at which a gradient method crawls.",
)
ivp = Figure(
    "sums-c",
    "Neural-IVP: M(θ) from a network's Jacobian at many samples: passes",
    "wave equation in two dimensions, 12 000 weights, 50 000 samples, batches of 500, Nyström of rank 250 for both",
    "relative residual",
    _samples,
    x="passes",
    y="quality",
    x_label="passes",
    note="A network of two hidden layers with random weights. All who take one have the same Nyström preconditioner, made before "
    "the clock starts.",
)


def _operator(p: Summed) -> tuple[Any, Any]:
    B = co.Dense(p.B)
    A = p.factor * (B @ B.H) + p.shift * co.Identity(p.n)
    M = None if p.U is None else co.PD(co.Identity(p.n) + co.LowRank(p.U, p.U, np.diag(p.weights)))
    return A, M


def _colinear_system(
    p: Summed, make: Callable[[Summed, Any], Any], hidden: bool = False
) -> Callable[[], Any]:
    A, M = _operator(p)
    A = co.opaque(A) if hidden else A
    method = make(p, M)

    def work() -> Answer:
        x, info = co.solve(A, p.b, method, info=True)
        return Answer(x, info.matvecs)

    return work


def _svrg(p: Summed, M: Any) -> Any:
    return co.SVRG(tol=p.tol, batch_size=p.batch, preconditioner=M, max_iters=30)


def _cg(p: Summed, M: Any) -> Any:
    return co.CG(tol=p.tol, preconditioner=M)


def _cola(p: Summed) -> Callable[[], Any]:
    torch = one_thread()
    import cola

    B, b = torch.tensor(p.B), torch.tensor(p.b)
    U, w = (None, None) if p.U is None else (torch.tensor(p.U), torch.tensor(p.weights)[:, None])

    def work() -> Answer:
        product = Counted(lambda X: B @ (B.T @ X) * p.factor + p.shift * X)
        A = cola.PSD(cola.ops.LinearOperator(torch.float64, (p.n, p.n), matmat=product))
        P = (
            None
            if U is None
            else cola.PSD(
                cola.ops.LinearOperator(
                    torch.float64, (p.n, p.n), matmat=lambda R: R + U @ (w * (U.T @ R))
                )
            )
        )
        method = (
            cola.linalg.CG(tol=p.tol, max_iters=1000, P=P)
            if P is not None
            else cola.linalg.CG(tol=p.tol, max_iters=1000)
        )
        return Answer(cola.solve(A, b, method), product.count)

    return work


def _lineax(p: Summed) -> Callable[[], Any]:
    import jax.numpy as jnp
    import lineax

    tag = lineax.positive_semidefinite_tag
    arrays = [jnp.array(x) for x in ((p.B, p.b) if p.U is None else (p.B, p.b, p.U, p.weights))]

    def solve(B: Any, b: Any, U: Any = None, w: Any = None) -> Any:
        A = lineax.FunctionLinearOperator(lambda x: B @ (B.T @ x) * p.factor + p.shift * x, b, tag)
        P = (
            None
            if U is None
            else lineax.FunctionLinearOperator(lambda r: r + U @ (w * (U.T @ r)), b, tag)
        )
        options = {} if P is None else {"preconditioner": P}
        method = lineax.CG(rtol=p.tol, atol=0.0, max_steps=1000)
        found = lineax.linear_solve(A, b, method, options=options, throw=False)
        return found.value, found.stats["num_steps"]

    program = compiled(solve, *arrays)
    return lambda: (lambda found: Answer(found[0], int(found[1])))(program())


def _scipy(p: Summed) -> Callable[[], Any]:
    def work() -> Answer:
        product = Counted(p.multiply)
        A = sla.LinearOperator((p.n, p.n), matvec=product, dtype=float)
        M = (
            None
            if p.U is None
            else sla.LinearOperator((p.n, p.n), matvec=p.precondition, dtype=float)
        )
        return Answer(sla.cg(A, p.b, rtol=p.tol, M=M, maxiter=1000)[0], product.count)

    return work


def _dense(p: Summed) -> Callable[[], Any]:
    fits(8.0 * p.n**2)

    def work() -> Answer:
        A = p.B @ p.B.T
        A *= p.factor
        A.flat[:: p.n + 1] += p.shift
        return Answer(scipy.linalg.solve(A, p.b, assume_a="pos", overwrite_a=True))

    return work


@rff.runner("NumPy, Woodbury", "by hand")
def _(p: Summed) -> Callable[[], Any]:
    def work() -> Answer:
        core = p.B.T @ p.B
        core.flat[:: len(core) + 1] += p.shift
        return Answer((p.b - p.B @ scipy.linalg.solve(core, p.B.T @ p.b, assume_a="pos")) / p.shift)

    return work


@rff.runner("linear_operator, low rank plus diagonal", needs=("torch", "linear_operator"))
def _(p: Summed) -> Callable[[], Any]:
    torch = one_thread()
    import linear_operator as lo

    B, b, noise = (
        torch.tensor(p.B),
        torch.tensor(p.b)[:, None],
        torch.full((p.n,), p.shift, dtype=torch.float64),
    )

    def work() -> Answer:
        A = lo.operators.LowRankRootLinearOperator(B).add_diagonal(noise)
        with torch.no_grad(), lo.settings.cg_tolerance(p.tol):
            return Answer(A.solve(b))

    return work


for _figure in (rff, ivp):
    _figure.runner("colinear, Auto", "colinear")(
        lambda p: _colinear_system(p, lambda p, M: co.Auto(tol=p.tol))
    )
    _figure.runner("colinear, SVRG", "colinear")(lambda p: _colinear_system(p, _svrg))
    _figure.runner("colinear, CG", "colinear")(lambda p: _colinear_system(p, _cg, hidden=True))
    _figure.runner("SciPy, CG", "iterative")(_scipy)
    _figure.runner("SciPy, dense Cholesky", "dense")(_dense)
    _figure.runner("lineax, CG", needs=("jax", "lineax"))(_lineax)
    _figure.runner("cola-ml, CG", needs=("torch", "cola"))(_cola)

FIGURES = (pca, rff, ivp)
