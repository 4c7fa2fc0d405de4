"""Estimators: the diagonal of a sum against passes over its data, and log-determinants by quadrature beside the peers.

    python benchmarks/stochastic.py                # prints the tables; --only NAME picks one, --size small is quick
    python benchmarks/stochastic.py --only diagonal --figure diagonal.png

`diagonal` redraws the paper's figure: the relative error of the diagonal of the Buzz covariance, for random vectors shared by all rows
(Hutchinson) and for vectors of their own for each hundred rows. Real rows are read from COLINEAR_DATA or `../shared/data`; without them a
stand-in of the same shape with falling eigenvalues is made, and said so.

`logdet` times SLQ beside matfree (JAX) and linear_operator (torch), if they are installed, with as many random vectors each, so the
errors are alike: the root of the mean square over several seeds is in the table. Times are of the processor, all threads together: the
machine may be busy. What JAX compiles is compiled before the clock starts.
"""

from __future__ import annotations

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import argparse
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sla
from problems import DATA, sparse_for_linear_operator

import colinear as co

PROBES = 30
STEPS = 30  # of Lanczos, for those who must be told; colinear finds out how many it needs


# ---------------------------------------------------------------------------------------------------- the diagonal of a sum


def buzz() -> tuple[np.ndarray, str]:
    """Standardised rows, and what they are."""
    path = DATA / "buzz_subset.npz"
    if path.exists():
        with np.load(path) as file:
            X, what = np.asarray(file["X"], float), "Buzz, 18 350 real rows x 77"
    else:
        rng = np.random.default_rng(0)
        X = (
            rng.standard_normal((18_350, 77))
            @ np.diag(np.arange(1.0, 78) ** -1)
            @ rng.standard_normal((77, 77))
        )
        what = "synthetic stand-in for Buzz, 18 350 x 77"
    spread = X.std(0)
    keep = spread > 1e-12 * spread.max()
    return (X[:, keep] - X[:, keep].mean(0)) / spread[keep], what


def diagonal(small: bool, figure: str | None = None) -> None:
    X, what = buzz()
    if small:
        X = X[:2000]
    m = len(X)
    B = co.Dense(X)
    A = B.T @ B / m
    exact = (X**2).mean(0)
    methods: dict[str, Callable[[int, int], Any]] = {
        "Hutchinson": lambda k, s: co.Hutchinson(k, seed=s),
        "doubly stochastic, 100 rows": lambda k, s: co.Hutchinson(k, batch_size=100, seed=s),
        "doubly stochastic, each row": lambda k, s: co.Hutchinson(k, per_term=True, seed=s),
        "XDiag": lambda k, s: co.XDiag(max(4, k), seed=s),
    }
    passes, seeds = (1, 3, 10, 30, 100), 2 if small else 5
    print(
        f"\nrelative error of the diagonal against passes over the rows; {what}; root mean square of {seeds} seeds"
    )
    print(f"{'':32s}" + "".join(f"{k:>9d}" for k in passes))
    table = {}
    for name, make in methods.items():
        line = []
        for k in passes:
            if name == "XDiag" and k < 4:
                line.append(np.nan)
                continue
            errors = [
                np.linalg.norm(co.diag(A, make(k, s)) - exact) / np.linalg.norm(exact)
                for s in range(seeds)
            ]
            line.append(float(np.sqrt(np.mean(np.square(errors)))))
        table[name] = line
        print(f"{name:32s}" + "".join(f"{e:9.4f}" for e in line), flush=True)
    ratio = table["Hutchinson"][-1] / table["doubly stochastic, 100 rows"][-1]
    print(
        f"Hutchinson's error is {ratio:.1f} times that of 100 rows at {passes[-1]} passes: {'ok' if ratio > 2 else 'MISS'}"
    )
    if figure:
        import matplotlib.pyplot as plt

        picture, axis = plt.subplots(figsize=(5, 3.5), layout="constrained")
        for name, line in table.items():
            axis.loglog(passes, line, marker=".", label=name)
        axis.set(title=what, xlabel="passes over the rows", ylabel="relative error of the diagonal")
        axis.legend()
        picture.savefig(figure, dpi=150)


# ---------------------------------------------------------------------------------------------------- log-determinants


def grid(n: int) -> Any:
    """The five-point Laplacian of an n x n grid, plus 0.1 I."""
    line = sp.diags_array([[-1.0] * (n - 1), [2.0] * n, [-1.0] * (n - 1)], offsets=[-1, 0, 1])
    eye = sp.eye_array(n)
    return sp.csr_array(sp.kron(line, eye) + sp.kron(eye, line) + 0.1 * sp.eye_array(n * n))


def contestants(n: int) -> dict[str, Callable[[int], float]]:
    """log det of the grid's matrix by each, as a function of the seed."""
    S = grid(n)
    found: dict[str, Callable[[int], float]] = {}
    free = co.opaque(co.PSD(co.Sparse(S)))
    found["colinear NumPy"] = lambda seed: float(co.logdet(free, co.SLQ(PROBES, seed=seed)))
    try:
        import torch

        torch.set_num_threads(1)
        mine = free.to(backend="torch")
        found["colinear torch"] = lambda seed: float(co.logdet(mine, co.SLQ(PROBES, seed=seed)))
    except ImportError:
        torch = None  # type: ignore[assignment]
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        return found

    def stencil(x: Any) -> Any:  # of columns, or of one vector
        u = x.reshape(n, n, -1)
        p = jnp.pad(u, ((1, 1), (1, 1), (0, 0)))
        return (4.1 * u - p[:-2, 1:-1] - p[2:, 1:-1] - p[1:-1, :-2] - p[1:-1, 2:]).reshape(x.shape)

    sparse = free.to(backend="jax")
    found["colinear JAX"] = lambda seed: float(co.logdet(sparse, co.SLQ(PROBES, seed=seed)))
    like = jnp.zeros(1)
    matrix_free = co.PSD(
        co.MatrixFree(stencil, (n * n, n * n), dtype=like.dtype, rmatmat=stencil, like=like)
    )
    found["colinear JAX, stencil"] = lambda seed: float(
        co.logdet(matrix_free, co.SLQ(PROBES, seed=seed))
    )
    try:
        from matfree import decomp, funm, stochtrace

        for label, reorthogonalised in (("", "full"), (", no basis", "none")):
            try:
                tridiagonal = decomp.tridiag_sym(STEPS, reortho=reorthogonalised)
            except (TypeError, ValueError):
                continue
            integrand = funm.monte_carlo_funm_sym_logdet(tridiagonal)
            sampler = stochtrace.sampler_signs(jnp.zeros(n * n), num=PROBES)
            estimator = stochtrace.estimator_monte_carlo(integrand, sampler=sampler)
            estimate = jax.jit(lambda key, e=estimator: e(stencil, key))
            found[f"matfree{label}"] = lambda seed, e=estimate: float(e(jax.random.key(seed)))
    except ImportError:
        print("matfree is not installed: left out")
    try:
        if torch is None:
            raise ImportError
        from linear_operator import settings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = sparse_for_linear_operator(S)

        def theirs_logdet(seed: int) -> float:
            torch.manual_seed(seed)
            with (
                torch.no_grad(),
                warnings.catch_warnings(),
                settings.num_trace_samples(PROBES),
                settings.max_cholesky_size(1),
                settings.max_lanczos_quadrature_iterations(STEPS),
                settings.max_cg_iterations(STEPS),
                settings.max_preconditioner_size(0),
                settings.cg_tolerance(1e-3),
                settings.fast_computations(log_prob=True),
            ):
                warnings.simplefilter("ignore")
                return float(theirs.logdet())

        found["linear_operator"] = theirs_logdet
    except ImportError:
        print("linear_operator is not installed: left out")
    return found


def logdet(small: bool) -> None:
    n = 40 if small else 110
    S = grid(n)
    factors = sla.splu(S.tocsc())
    exact = float(np.log(np.abs(factors.U.diagonal())).sum())
    entrants, seeds, repeats = contestants(n), 3 if small else 8, 2 if small else 7
    errors: dict[str, list[float]] = {name: [] for name in entrants}
    times: dict[str, list[float]] = {name: [] for name in entrants}
    for name in list(entrants):
        try:
            entrants[name](100)
        except Exception as reason:  # of a peer's version, say
            print(f"{name} failed: {type(reason).__name__}: {reason}")
            del entrants[name]
    for seed in range(max(seeds, repeats)):
        for name, run in entrants.items():
            start = time.process_time()
            value = run(seed)
            times[name].append(time.process_time() - start)
            errors[name].append((value - exact) / exact)
    peers = [min(times[name]) for name in entrants if not name.startswith("colinear")]
    bar = min(peers, default=float("nan"))
    what = f"log det of a {n} x {n} grid's Laplacian + 0.1 I, {PROBES} random vectors, peers {STEPS} steps"
    print(f"\n{what}; best of {len(times['colinear NumPy'])}, interleaved")
    print(f"{'':26s}{'cpu s':>10s}{'error':>11s}{'to the better peer':>21s}")
    for name in entrants:
        best, error = min(times[name]), float(np.sqrt(np.mean(np.square(errors[name]))))
        print(f"{name:26s}{best:10.4f}{error:11.1e}{best / bar:20.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=["diagonal", "logdet"])
    parser.add_argument("--steps", type=int, default=STEPS, help="of Lanczos, for the peers")
    parser.add_argument("--figure", help="draw the errors of the diagonal into this file too")
    parser.add_argument("--size", choices=["small", "full"], default="full")
    options = parser.parse_args()
    globals()["STEPS"] = options.steps
    small = options.size == "small"
    if options.only in (None, "diagonal"):
        diagonal(small, options.figure)
    if options.only in (None, "logdet"):
        logdet(small)


if __name__ == "__main__":
    main()
