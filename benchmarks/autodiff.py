"""What derivatives cost: the paper's figure on automatic differentiation, and the likelihood of a Gaussian process.

    python benchmarks/autodiff.py                     # prints the tables, saves output/autodiff.png; --size small is quick
    python benchmarks/autodiff.py --only likelihood   # or solve, peers, logdet, quadrature, networks

solve: the gradient of |x|^2 / 2, (L + diag θ) x = b, with respect to θ, for a 5-point Laplacian L; θ shrinks, so that conjugate gradients
take more and more iterations; in the last row it is random, over seven decades. Beside it the same iterations differentiated one by one
("unrolled").
peers: the same gradient by the adjoint method written by hand and by other libraries, those that are installed.
logdet: the gradient of a log-determinant by Cholesky beside the derivative of the factorisation.
quadrature: that of log det(L + diag θ) by stochastic Lanczos quadrature, as iterations grow, beside the same iterations differentiated.
likelihood: the negative log marginal likelihood of a Gaussian process and its gradient, N = 2000, beside NumPy by hand.
networks: products with the Gauss-Newton matrix and the Jacobian of a network in torch inside CG and LSMR, and one at a time, beside the loop by
hand: reverse mode twice, on a graph that is kept.

Times are the least of several, interleaved, in seconds of CPU time of one thread: the machine may be shared. Memory is what is kept for the
backward pass: in torch the tensors that autograd saves, in JAX the temporaries of the compiled program.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import argparse
import importlib.util
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from problems import gaussian_process_data, laplacian
from scipy.linalg import lapack

import colinear as co

torch.set_num_threads(1)
TOL = 1e-8
Contestants = dict[str, Callable[[], Any]]


def raced(contestants: Contestants, repeats: int) -> dict[str, float]:
    """The least CPU time of each, after one run for compilation."""
    best = dict.fromkeys(contestants, math.inf)
    for work in contestants.values():
        work()
    for _ in range(repeats):
        for name, work in contestants.items():
            start = time.process_time()
            work()
            best[name] = min(best[name], time.process_time() - start)
    return best


def saved_bytes(work: Callable[[], Any]) -> int:
    """What autograd keeps for the backward pass of `work()`, each storage once."""
    storages: dict[int, int] = {}

    def pack(x: Any) -> Any:
        if x.layout == torch.strided:  # the sparse matrix is a constant
            storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        kept = work()  # alive until all is counted, lest an address be used twice
    total = sum(storages.values())
    del kept
    return total


def temporary_bytes(f: Callable, *arguments: Any) -> int:
    analysis = jax.jit(f).lower(*arguments).compile().memory_analysis()
    return int(analysis.temp_size_in_bytes)


# ---------------------------------------------------------------------------------------------------- a solve


def plain_cg(multiply: Callable, b: Any, iterations: int) -> Any:
    """Conjugate gradients as in a textbook, of a fixed number of iterations: in torch or NumPy."""
    x, r, p = 0 * b, b, b
    rr = r @ r
    for _ in range(iterations):
        q = multiply(p)
        a = rr / (p @ q)
        x, r = x + a * p, r - a * q
        rr, old = r @ r, rr
        p = r + (rr / old) * p
    return x


def jax_cg(multiply: Callable, b: Any, iterations: int) -> Any:
    def step(_: Any, state: Any) -> Any:
        x, r, p, rr = state
        q = multiply(p)
        a = rr / (p @ q)
        x, r = x + a * p, r - a * q
        new = r @ r
        return x, r, r + (new / rr) * p, new

    return jax.lax.fori_loop(0, iterations, step, (0 * b, b, b, b @ b))[0]


def stencil(m: int) -> Callable:
    """The product with L for JAX: shifts of the grid."""

    def multiply(x: Any) -> Any:
        u = jnp.pad(x.reshape(m, m), 1)
        return (
            4 * u[1:-1, 1:-1] - u[:-2, 1:-1] - u[2:, 1:-1] - u[1:-1, :-2] - u[1:-1, 2:]
        ).reshape(-1)

    return multiply


class Solve:
    """The gradient of |x|^2 / 2 with respect to θ, (L + diag θ) x = b: W = A^-1 x, and -W x."""

    def __init__(self, m: int, shift: float, decades: float = 0.0):
        S, self.m, self.n = laplacian(m), m, m * m
        b = np.random.default_rng(0).standard_normal(self.n)
        self.theta = torch.tensor(shift * 10 ** (decades * np.random.default_rng(2).random(self.n)))
        self.b, self.L = torch.tensor(b), co.Sparse(S).to(backend="torch")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls its sparse tensors a beta
            self.csr = torch.sparse_csr_tensor(
                *map(torch.tensor, (S.indptr, S.indices, S.data)), size=S.shape
            )
        self.jtheta, self.jb = jnp.array(self.theta.numpy()), jnp.array(b)
        A = co.PD(self.L + co.Diagonal(self.theta))
        x, info = co.solve(A, self.b, co.CG(tol=TOL), info=True)
        # those of x, and of the adjoint: what is written by hand knows both
        self.iterations = int(info.iterations)
        self.adjoint_iterations = int(co.solve(A, x, co.CG(tol=TOL), info=True)[1].iterations)

    # torch
    def colinear(self, theta: Any) -> Any:
        x = co.solve(co.PD(self.L + co.Diagonal(theta)), self.b, co.CG(tol=TOL))
        return (x * x).sum() / 2

    def unrolled(self, theta: Any) -> Any:
        x = plain_cg(lambda p: self.csr @ p + theta * p, self.b, self.iterations)
        return (x * x).sum() / 2

    def gradient(self, loss: Callable) -> Any:
        theta = self.theta.clone().requires_grad_()
        return torch.autograd.grad(loss(theta), theta)[0]

    def by_hand(self) -> Any:
        multiply = lambda p: self.csr @ p + self.theta * p
        x = plain_cg(multiply, self.b, self.iterations)
        return -plain_cg(multiply, x, self.adjoint_iterations) * x

    # JAX
    def product(self, x: Any, theta: Any) -> Any:
        return stencil(self.m)(x) + theta * x

    def jax_colinear(self, theta: Any) -> Any:
        columns = jax.vmap(self.product, (1, None), 1)
        A = co.MatrixFree(
            columns, (self.n, self.n), dtype=self.jb.dtype, like=self.jb, parameters=(theta,)
        )
        x = co.solve(co.PD(A), self.jb, co.CG(tol=TOL))
        return x @ x / 2

    def jax_unrolled(self, theta: Any) -> Any:
        x = jax_cg(lambda p: self.product(p, theta), self.jb, self.iterations)
        return x @ x / 2

    def jax_by_hand(self, theta: Any) -> Any:
        multiply = lambda p: self.product(p, theta)
        x = jax_cg(multiply, self.jb, self.iterations)
        return -jax_cg(multiply, x, self.adjoint_iterations) * x

    def jax_own(self, theta: Any) -> Any:
        x = jax.scipy.sparse.linalg.cg(
            lambda p: self.product(p, theta), self.jb, tol=TOL, maxiter=10_000
        )[0]
        return x @ x / 2

    def lineax(self, theta: Any) -> Any:
        import lineax

        A = lineax.FunctionLinearOperator(
            lambda p: self.product(p, theta),
            jax.eval_shape(lambda: self.jb),
            lineax.positive_semidefinite_tag,
        )
        x = lineax.linear_solve(A, self.jb, lineax.CG(rtol=TOL, atol=0.0, max_steps=10_000)).value
        return x @ x / 2

    def linear_operator(self, theta: Any) -> Any:
        import linear_operator as lo

        A = constant_plus_diagonal(self.csr, theta)
        s = lo.settings
        with (
            s.cg_tolerance(TOL),
            s.max_cg_iterations(1_000),
            s.max_cholesky_size(1),
            s.max_preconditioner_size(0),
        ):
            x = lo.solve(A, self.b[:, None])[:, 0]
        return (x * x).sum() / 2


def constant_plus_diagonal(S: Any, theta: Any) -> Any:
    """For linear_operator: a sparse matrix that is not differentiated, and diag θ."""
    from linear_operator.operators import LinearOperator

    class Shifted(LinearOperator):
        def __init__(self, theta: Any):
            super().__init__(theta)
            self.theta = theta

        def _matmul(self, X: Any) -> Any:
            return S @ X + self.theta[:, None] * X

        def _size(self) -> Any:
            return S.shape

        def _transpose_nonbatch(self) -> Any:
            return self

        def _bilinear_derivative(self, left: Any, right: Any) -> Any:
            return ((left * right).sum(-1),)

    return Shifted(theta)


def compiled(f: Callable, *arguments: Any) -> Callable[[], Any]:
    program = jax.jit(f)
    return lambda: jax.block_until_ready(program(*arguments))


def solves(small: bool, repeats: int) -> list[dict[str, float]]:
    print(f"{'iterations':>10s} | {'torch: forward':>14s} {'backward':>9s} {'ratio':>6s} {'unrolled':>9s} {'kept':>8s} {'unrolled':>9s}"
          f" | {'JAX: forward':>12s} {'backward':>9s} {'ratio':>6s} {'unrolled':>9s} {'kept':>8s} {'unrolled':>9s}")  # fmt: skip
    rows, shifts = (
        [],
        ((1.0, 0), (0.1, 0))
        if small
        else ((3.0, 0), (0.3, 0), (0.03, 0), (0.003, 0), (0.001, 7.1)),
    )
    problems = [Solve(50 if small else 200, *shift) for shift in shifts]
    # JAX before torch: what torch leaves of the heap makes JAX's forward solve a sixth faster, and its gradient not.
    programs = [
        {"jax forward": S.jax_colinear, "jax gradient": jax.grad(S.jax_colinear)} for S in problems
    ]
    of_jax = [
        raced({name: compiled(f, S.jtheta) for name, f in pair.items()}, 2 * repeats)
        for S, pair in zip(problems, programs, strict=True)
    ]
    for S, t, (_, decades) in zip(problems, of_jax, shifts, strict=True):
        theta = S.theta.clone().requires_grad_()
        t |= raced(
            {
                "forward": lambda S=S: S.colinear(S.theta),
                "gradient": lambda S=S: S.gradient(S.colinear),
            },
            2 * repeats,
        )
        t |= raced(
            {
                "plain": lambda S=S: S.unrolled(S.theta),
                "unrolled": lambda S=S: S.gradient(S.unrolled),
                "jax plain": compiled(S.jax_unrolled, S.jtheta),
                "jax unrolled": compiled(jax.grad(S.jax_unrolled), S.jtheta),
            },
            1 + repeats // 3,
        )
        same(S.gradient(S.colinear), S.gradient(S.unrolled), 1e-3 if decades else 1e-5)
        row = {
            "iterations": S.iterations,
            "forward": t["forward"], "backward": t["gradient"] - t["forward"], "unrolled": t["unrolled"] - t["plain"],
            "kept": saved_bytes(lambda S=S, theta=theta: S.colinear(theta)),
            "unrolled kept": saved_bytes(lambda S=S, theta=theta: S.unrolled(theta)),
            "jax forward": t["jax forward"], "jax backward": t["jax gradient"] - t["jax forward"],
            "jax unrolled": t["jax unrolled"] - t["jax plain"],
            "jax kept": temporary_bytes(jax.grad(S.jax_colinear), S.jtheta),
            "jax unrolled kept": temporary_bytes(jax.grad(S.jax_unrolled), S.jtheta),
        }  # fmt: skip
        rows.append(row)
        ms, mb = (
            (lambda key, row=row: f"{1e3 * row[key]:.1f}ms"),
            (lambda key, row=row: f"{row[key] / 2**20:.1f}MB"),
        )
        ratios = row["backward"] / row["forward"], row["jax backward"] / row["jax forward"]
        print(f"{row['iterations']:10d} | {ms('forward'):>14s} {ms('backward'):>9s} {ratios[0]:6.2f} {ms('unrolled'):>9s}"
              f" {mb('kept'):>8s} {mb('unrolled kept'):>9s} | {ms('jax forward'):>12s} {ms('jax backward'):>9s} {ratios[1]:6.2f}"
              f" {ms('jax unrolled'):>9s} {mb('jax kept'):>8s} {mb('jax unrolled kept'):>9s}", flush=True)  # fmt: skip
    return rows


def peers(small: bool, repeats: int) -> None:
    S = Solve(50 if small else 200, 0.01)
    expected = S.by_hand()
    contestants: Contestants = {
        "torch, by hand": S.by_hand,
        "torch, colinear": lambda: S.gradient(S.colinear),
    }
    if there("linear_operator"):
        contestants["torch, linear_operator"] = lambda: S.gradient(S.linear_operator)
    contestants["JAX, by hand"] = compiled(S.jax_by_hand, S.jtheta)
    contestants["JAX, colinear"] = compiled(jax.grad(S.jax_colinear), S.jtheta)
    contestants["JAX, jax.scipy.sparse.linalg.cg"] = compiled(jax.grad(S.jax_own), S.jtheta)
    if there("lineax"):
        contestants["JAX, lineax"] = compiled(jax.grad(S.lineax), S.jtheta)
    errors = {name: distance(work(), expected) for name, work in contestants.items()}
    times = raced(contestants, repeats)
    for name, taken in times.items():
        bar = times["torch, by hand" if name.startswith("torch") else "JAX, by hand"]
        print(
            f"{name:34s} {1e3 * taken:8.1f}ms {taken / bar:6.2f}   error {errors[name]:.1e}",
            flush=True,
        )


def there(package: str) -> bool:
    found = importlib.util.find_spec(package) is not None
    if not found:
        print(f"{package}: not installed, left out")
    return found


def distance(x: Any, y: Any) -> float:
    x, y = np.asarray(x), np.asarray(y)
    return float(np.linalg.norm(x - y) / np.linalg.norm(y))


def same(x: Any, y: Any, tol: float) -> None:
    assert distance(x, y) < tol, f"WRONG: the answers differ by {distance(x, y):.1e}"


# ---------------------------------------------------------------------------------------------------- log-determinants


def logdets(small: bool, repeats: int) -> list[dict[str, float]]:
    """log det(K + θ I), by Cholesky: n^3 / 3 flops; the gradient needs the inverse, 2 n^3 / 3 more."""
    print(
        f"{'n':>10s} | {'torch: forward':>14s} {'backward':>9s} {'of torch':>9s} | {'JAX: forward':>12s} {'backward':>9s} {'of JAX':>9s}"
    )
    rows = []
    for n in (100, 200) if small else (250, 500, 1000, 2000):
        X = np.random.default_rng(0).standard_normal((n, 4))
        K = np.exp(-((X[:, None] - X) ** 2).sum(-1) / 8)
        Kt, Kj = torch.tensor(K), jnp.array(K)
        ours = lambda xp, K, theta: co.logdet(co.PD(co.Dense(K) + theta * co.Identity(len(K))))
        other = lambda xp, K, theta: (
            2
            * xp.log(
                xp.diagonal(xp.linalg.cholesky(K + theta * xp.eye(len(K), dtype=K.dtype)))
            ).sum()
        )

        def gradient(f: Callable, Kt: Any = Kt) -> Any:
            theta = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
            return torch.autograd.grad(f(torch, Kt, theta), theta)[0]

        contestants: Contestants = {}
        for name, f in (("ours", ours), ("other", other)):
            contestants[name] = lambda f=f, Kt=Kt: f(
                torch, Kt, torch.tensor(0.1, dtype=torch.float64)
            )
            contestants[name + "'"] = lambda f=f, gradient=gradient: gradient(f)
            contestants["jax " + name] = compiled(
                lambda theta, K, f=f: f(jnp, K, theta), jnp.array(0.1), Kj
            )
            contestants["jax " + name + "'"] = compiled(
                jax.grad(lambda theta, K, f=f: f(jnp, K, theta)), jnp.array(0.1), Kj
            )
        for kind in ("", "jax "):
            same(contestants[kind + "ours'"](), contestants[kind + "other'"](), 1e-8)
        t = raced(contestants, repeats)
        row = {"n": n, "forward": t["ours"], "jax forward": t["jax ours"]}
        row |= {"backward": t["ours'"] - t["ours"], "jax backward": t["jax ours'"] - t["jax ours"]}
        row |= {
            "unrolled": t["other'"] - t["other"],
            "jax unrolled": t["jax other'"] - t["jax other"],
        }
        rows.append(row)
        ms = [
            f"{1e3 * row[kind + key]:.1f}ms"
            for kind in ("", "jax ")
            for key in ("forward", "backward", "unrolled")
        ]
        print(
            f"{n:10d} | {ms[0]:>14s} {ms[1]:>9s} {ms[2]:>9s} | {ms[3]:>12s} {ms[4]:>9s} {ms[5]:>9s}",
            flush=True,
        )
    return rows


PROBES = 8


def plain_quadrature(xp: Any, multiply: Callable, Z: Any, steps: int) -> Any:
    """log det by Lanczos from the columns of Z, as in a textbook: in torch, one step after the other, and in JAX by a scan."""
    norms = (Z * Z).sum(0)

    def step(state: Any) -> tuple[Any, Any]:
        v, before, b = state
        w = multiply(v) - b * before
        a = (v * w).sum(0)
        w = w - a * v
        c = xp.sqrt((w * w).sum(0))
        return (w / c, v, c), (a, c)

    state = (Z / xp.sqrt(norms), 0 * Z, 0 * norms)
    if xp is torch:
        found = []
        for _ in range(steps):
            state, pair = step(state)
            found.append(pair)
        a, c = (torch.stack(part, 1) for part in zip(*found, strict=True))
        T = torch.diag_embed(a) + torch.diag_embed(c[:, :-1], 1) + torch.diag_embed(c[:, :-1], -1)
    else:
        a, c = (part.T for part in jax.lax.scan(lambda s, _: step(s), state, None, length=steps)[1])
        side = jax.vmap(lambda c: jnp.diag(c, 1) + jnp.diag(c, -1))(c[:, :-1])
        T = jax.vmap(jnp.diag)(a) + side
    values, Q = xp.linalg.eigh(T)
    return (norms * (Q[:, 0, :] ** 2 * xp.log(xp.abs(values))).sum(-1)).mean()


class Quadrature:
    """The gradient of log det(L + diag θ) with respect to θ, by PROBES random vectors."""

    def __init__(self, m: int, shift: float):
        self.S = S = Solve(m, shift)
        self.Z = torch.tensor(np.random.default_rng(1).choice([-1.0, 1.0], (S.n, PROBES)))
        self.jZ = jnp.array(self.Z.numpy())
        self.method = co.SLQ(probes=PROBES)
        info = co.logdet(self.operator(S.theta.clone().requires_grad_()), self.method, info=True)[1]
        self.iterations = int(
            info.iterations if info.iterations is not None else info.matvecs // PROBES
        )

    def operator(self, theta: Any) -> Any:
        return co.opaque(co.PD(self.S.L + co.Diagonal(theta)))

    def colinear(self, theta: Any) -> Any:
        return co.logdet(self.operator(theta), self.method)

    def unrolled(self, theta: Any) -> Any:
        return plain_quadrature(
            torch, lambda V: self.S.csr @ V + theta[:, None] * V, self.Z, self.iterations
        )

    def jax_colinear(self, theta: Any) -> Any:
        S, columns = self.S, jax.vmap(self.S.product, (1, None), 1)
        A = co.MatrixFree(columns, (S.n, S.n), dtype=S.jb.dtype, like=S.jb, parameters=(theta,))
        return co.logdet(co.opaque(co.PD(A)), self.method)

    def jax_unrolled(self, theta: Any) -> Any:
        columns = jax.vmap(self.S.product, (1, None), 1)
        return plain_quadrature(jnp, lambda V: columns(V, theta), self.jZ, self.iterations)


def quadratures(small: bool, repeats: int) -> list[dict[str, float]]:
    print(f"{'iterations':>10s} | {'torch: forward':>14s} {'backward':>9s} {'unrolled':>9s} {'kept':>8s} {'unrolled':>9s}"
          f" | {'JAX: forward':>12s} {'backward':>9s} {'unrolled':>9s} {'kept':>8s} {'unrolled':>9s} | errors")  # fmt: skip
    rows = []
    for shift in (1.0, 0.1) if small else (3.0, 0.3, 0.03, 0.01):
        Q = Quadrature(30 if small else 100, shift)
        S, theta = Q.S, Q.S.theta.clone().requires_grad_()
        t = raced(
            {
                "forward": lambda Q=Q, theta=theta: Q.colinear(theta),
                "gradient": lambda Q=Q, S=S: S.gradient(Q.colinear),
                "plain": lambda Q=Q, theta=theta: Q.unrolled(theta),
                "unrolled": lambda Q=Q, S=S: S.gradient(Q.unrolled),
                "jax forward": compiled(Q.jax_colinear, S.jtheta),
                "jax gradient": compiled(jax.value_and_grad(Q.jax_colinear), S.jtheta),
                "jax plain": compiled(Q.jax_unrolled, S.jtheta),
                "jax unrolled": compiled(jax.value_and_grad(Q.jax_unrolled), S.jtheta),
            },
            repeats,
        )
        exact = exact_slope(S)
        errors = [
            abs(float(np.asarray(g).sum()) / exact - 1)
            for g in (
                S.gradient(Q.colinear),
                S.gradient(Q.unrolled),
                jax.grad(Q.jax_colinear)(S.jtheta),
            )
        ]
        row = {"iterations": Q.iterations} | {
            kind + name: t[kind + key] - (t[kind + less] if less else 0)
            for kind in ("", "jax ")
            for name, key, less in (
                ("forward", "forward", ""),
                ("backward", "gradient", "forward"),
                ("unrolled", "unrolled", "plain"),
            )
        }
        row |= {
            "kept": saved_bytes(lambda Q=Q, theta=theta: Q.colinear(theta)),
            "unrolled kept": saved_bytes(lambda Q=Q, theta=theta: Q.unrolled(theta)),
            "jax kept": temporary_bytes(jax.grad(Q.jax_colinear), S.jtheta),
            "jax unrolled kept": temporary_bytes(jax.grad(Q.jax_unrolled), S.jtheta),
        }
        rows.append(row)
        cells = [
            [f"{1e3 * row[kind + key]:.1f}ms" for key in ("forward", "backward", "unrolled")]
            + [f"{row[kind + key] / 2**20:.1f}MB" for key in ("kept", "unrolled kept")]
            for kind in ("", "jax ")
        ]
        (a, b, c, d, e), (f, g, h, i, j) = cells
        print(f"{row['iterations']:10d} | {a:>14s} {b:>9s} {c:>9s} {d:>8s} {e:>9s} | {f:>12s} {g:>9s} {h:>9s} {i:>8s} {j:>9s} |"
              f" {', '.join(f'{x:.1e}' for x in errors)}", flush=True)  # fmt: skip
    return rows


def exact_slope(S: Solve) -> float:
    """The derivative of log det(L + t I), the sum of that with respect to θ: Σ 1 / (λ_i + λ_j + t)."""
    x = 4 * np.sin(np.pi * np.arange(1, S.m + 1) / (2 * (S.m + 1))) ** 2
    return float((1 / (x[:, None] + x + float(S.theta[0]))).sum())


# ---------------------------------------------------------------------------------------------------- a Gaussian process


class Likelihood:
    """y^T A^-1 y / 2 + log det A / 2 + n log(2 π) / 2 with A = s exp(-|x - x'|^2 / 2 l^2) + σ I; θ = log (l, s, σ)."""

    def __init__(self, X: Any, y: Any):
        self.X, self.y = X, y
        n = len(y)
        self.n, self.constant = n, n * math.log(2 * math.pi) / 2
        self.theta = np.log([math.sqrt(self.X.shape[1]), 1.0, 0.1])
        self.Xt, self.yt = torch.tensor(self.X), torch.tensor(self.y)

    def by_hand(self) -> tuple[float, Any]:
        """One triangle wherever there is a choice, and in place."""
        X, y, n = self.X, self.y, self.n
        length, scale, noise = np.exp(self.theta)
        s = (X * X).sum(1)
        D = X @ X.T
        D *= -2
        D += s[:, None]
        D += s
        K = D * (-0.5 / length**2)
        np.exp(K, out=K)
        K *= scale
        A = K.copy()
        A.flat[:: n + 1] += noise
        L, _ = lapack.dpotrf(A.T, lower=1, overwrite_a=1, clean=0)
        a = lapack.dpotrs(L, y, lower=1)[0]
        value = (y @ a) / 2 + np.log(np.diagonal(L)).sum() + self.constant
        T = np.tril(lapack.dpotri(L, lower=1, overwrite_c=1)[0])
        trace = np.trace(T)
        T *= K  # tr(A^-1 dA) from one triangle: twice its sum, less the diagonal
        d_scale = (2 * T.sum() - np.trace(T) - a @ (K @ a)) / 2
        K *= D
        d_length = (2 * np.vdot(T, D) - a @ (K @ a)) / (2 * length**2)
        return value, np.array([d_length, d_scale, noise * (trace - a @ a) / 2])

    @staticmethod
    def gaussian(xp: Any) -> Callable:
        def k(X: Any, Y: Any, length: Any, scale: Any) -> Any:
            squares = (X * X).sum(1)[:, None] + (Y * Y).sum(1) - 2 * X @ Y.T
            return scale * xp.exp(squares * (-0.5 / length**2))

        return k

    def colinear(self, xp: Any, theta: Any, X: Any, y: Any) -> Any:
        length, scale, noise = xp.exp(theta)
        A = co.PD(
            co.Kernel(self.gaussian(xp), X, parameters=(length, scale))
            + noise * co.Identity(self.n)
        )
        A_inverse = co.inv(A)  # one factorisation for both
        return (y @ (A_inverse @ y) - co.logdet(A_inverse)) / 2 + self.constant

    def plain(self, xp: Any, theta: Any, X: Any, y: Any) -> Any:
        length, scale, noise = xp.exp(theta)
        A = self.gaussian(xp)(X, X, length, scale) + noise * xp.eye(self.n, dtype=X.dtype)
        L = xp.linalg.cholesky(A)
        solve = (
            (lambda: torch.cholesky_solve(y[:, None], L))
            if xp is torch
            else (lambda: jax.scipy.linalg.cho_solve((L, True), y))
        )
        return y @ solve().reshape(-1) / 2 + xp.log(xp.diagonal(L)).sum() + self.constant

    def linear_operator(self, xp: Any, theta: Any, X: Any, y: Any) -> Any:
        import linear_operator as lo

        length, scale, noise = xp.exp(theta)
        A = lo.to_linear_operator(self.gaussian(xp)(X, X, length, scale)).add_diagonal(noise)
        with (
            lo.settings.max_cholesky_size(10 * self.n),
            lo.settings.fast_computations(False, False, False),
        ):
            quadratic, logarithm = A.inv_quad_logdet(y[:, None], logdet=True)
        return (quadratic + logarithm) / 2 + self.constant

    def torch_gradient(self, f: Callable) -> tuple[float, Any]:
        theta = torch.tensor(self.theta, requires_grad=True)
        value = f(torch, theta, self.Xt, self.yt)
        value.backward()
        return value.item(), theta.grad

    def jax_gradient(self, f: Callable) -> Callable[[], Any]:
        program = jax.value_and_grad(lambda theta, X, y: f(jnp, theta, X, y))
        return compiled(program, *map(jnp.array, (self.theta, self.X, self.y)))


def likelihoods(small: bool, repeats: int) -> None:
    G = Likelihood(*gaussian_process_data(300 if small else 2000))
    contestants: Contestants = {
        "NumPy, by hand": G.by_hand,
        "torch, colinear": lambda: G.torch_gradient(G.colinear),
        "torch, Cholesky": lambda: G.torch_gradient(G.plain),
        "JAX, colinear": G.jax_gradient(G.colinear),
        "JAX, Cholesky": G.jax_gradient(G.plain),
    }
    if there("linear_operator"):
        contestants["torch, linear_operator (Cholesky)"] = lambda: G.torch_gradient(
            G.linear_operator
        )
    expected = G.by_hand()
    errors = {name: distance(work()[1], expected[1]) for name, work in contestants.items()}
    times = raced(contestants, repeats)
    for name, taken in times.items():
        print(
            f"{name:34s} {1e3 * taken:8.1f}ms {taken / times['NumPy, by hand']:6.2f}   error {errors[name]:.1e}",
            flush=True,
        )


# ---------------------------------------------------------------------------------------------------- the figure


def networks(small: bool, repeats: int) -> None:
    """Iterations with derivatives of a network in torch, beside the same iterations with products by double reverse mode by hand."""
    torch.manual_seed(0)
    width, count, steps = (32, 64, 20) if small else (128, 256, 50)
    net = torch.nn.Sequential(
        torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, width)
    ).double()
    weights = {name: p.detach().clone() for name, p in net.named_parameters()}
    inputs, targets = torch.randn(count, width).double(), torch.randn(count, width).double()
    sizes = [p.numel() for p in weights.values()]

    def outputs(w: Any) -> Any:
        return torch.func.functional_call(net, w, (inputs,))

    def mean_square(y: Any) -> Any:
        return ((y - targets) ** 2).mean()

    G = co.PSD(co.GaussNewton(outputs, mean_square, weights)) + 1e-4 * co.Identity(sum(sizes))
    b, y_count = torch.ones(sum(sizes)).double(), targets.numel() / 2

    def kept_product() -> Callable:
        """v -> J^T H J v + 1e-4 v of one linearisation; the Hessian of the mean of squares is 2 / their number."""
        point = torch.cat([p.reshape(-1) for p in weights.values()]).requires_grad_()
        tree = dict(
            zip(
                weights,
                (
                    p.view(w.shape)
                    for p, w in zip(point.split(sizes), weights.values(), strict=True)
                ),
                strict=True,
            )
        )
        y = outputs(tree)
        g = torch.zeros_like(y, requires_grad=True)
        (pulled,) = torch.autograd.grad(y, point, g, create_graph=True)

        def product(v: Any) -> Any:
            (u,) = torch.autograd.grad(pulled, g, v, retain_graph=True)
            (back,) = torch.autograd.grad(y, point, 2 / y.numel() * u, retain_graph=True)
            return back + 1e-4 * v

        return product

    J = co.Jacobian(outputs, weights)
    N = J.H @ J + 1e-4 * y_count * co.Identity(sum(sizes))  # the same matrix, but for a factor
    method = co.CG(max_iters=steps, tol=1e-14)  # a budget of steps, not a tolerance
    steps = int(co.solve(G, b, method, info=True)[1].iterations)
    by_hand, v = kept_product(), torch.ones(sum(sizes)).double()
    same((G @ v), by_hand(v), 1e-10)
    contestants: Contestants = {
        f"{steps} steps of CG, by hand": lambda: plain_cg(kept_product(), b, steps),
        f"{steps} steps of CG, GaussNewton": lambda: co.solve(G, b, method, on_failure="ignore"),
        f"{steps} steps of CG, Jacobian": lambda: co.solve(N, b, method, on_failure="ignore"),
        "one product and linearisation, by hand": lambda: kept_product()(v),
        "one product and linearisation, GaussNewton": lambda: G @ v,
        "one product and linearisation, Jacobian": lambda: N @ v,
    }
    times = raced(contestants, repeats)
    for name, seconds in times.items():
        bar = times[
            next(
                other
                for other in times
                if other.endswith("by hand") and other.split(",")[0] == name.split(",")[0]
            )
        ]
        print(f"{name:48} {1e3 * seconds:9.2f} ms {seconds / bar:6.2f}")


def draw(
    rows: list[dict[str, float]],
    quadrature: list[dict[str, float]],
    determinants: list[dict[str, float]],
    path: Path,
) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 5, figsize=(21, 3.8), layout="constrained")
    for start, found in ((0, rows), (2, quadrature)):
        x = [row["iterations"] for row in found]
        for kind, colour, label in (("", "C1", "torch"), ("jax ", "C0", "JAX")):
            for axis, key, other, scale in (
                (start, "backward", "unrolled", 1e3),
                (start + 1, "kept", "unrolled kept", 2**-20),
            ):
                mine, others = (
                    [scale * row[kind + name] for row in found] for name in (key, other)
                )
                axes[axis].plot(x, mine, "o-", color=colour, label=f"colinear, {label}")
                axes[axis].plot(
                    x, others, "s--", color=colour, label=f"unrolled, {label}", alpha=0.6
                )
    for kind, colour, label in (("", "C1", "torch"), ("jax ", "C0", "JAX")):
        n = [row["n"] for row in determinants]
        mine, others = (
            [1e3 * row[kind + name] for row in determinants] for name in ("backward", "unrolled")
        )
        axes[4].plot(n, mine, "o-", color=colour, label=f"colinear, {label}")
        axes[4].plot(n, others, "s--", color=colour, label=f"through Cholesky, {label}", alpha=0.6)
    titles = (
        "Backward pass of a CG solve: time",
        "... and memory kept for it",
        "Backward pass of logdet by quadrature",
        "... and memory kept for it",
        "Backward pass of logdet by Cholesky",
    )
    units, what = ("ms", "MB", "ms", "MB", "ms"), (*("iterations",) * 4, "n")
    for axis, title, unit, along in zip(axes, titles, units, what, strict=True):
        axis.set(title=title, xlabel=along, ylabel=unit, xscale="log", yscale="log")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(f"saved {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--only",
        choices=("solve", "peers", "logdet", "quadrature", "likelihood", "networks"),
        help="one of the tables, without the picture",
    )
    parser.add_argument("--size", choices=("small", "full"), default="full")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    small, repeats, only = options.size == "small", options.repeats, options.only
    rows = solves(small, repeats) if only in (None, "solve") else []
    if only in (None, "peers"):
        print("\ngradient of a CG solve, beside others")
        peers(small, repeats)
    determinants = logdets(small, repeats) if only in (None, "logdet") else []
    quadrature = quadratures(small, repeats) if only in (None, "quadrature") else []
    if only in (None, "likelihood"):
        print("\nlikelihood of a Gaussian process, value and gradient")
        likelihoods(small, repeats)
    if only in (None, "networks"):
        print("\nGauss-Newton matrix of a network in torch")
        networks(small, repeats)
    if only is None:
        draw(rows, quadrature, determinants, Path("output/autodiff.png"))


if __name__ == "__main__":
    main()
