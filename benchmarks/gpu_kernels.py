"""Kernels and Gaussian processes on a CUDA device: products that never write the matrix, and the likelihood with its
gradient at 14 000 to 500 000 observations.

    python benchmarks/gpu_kernels.py                  # both, products in JAX too; --kernels or --gp for one, --train for the loss against time
    python benchmarks/gpu_kernels.py --gp 50000x18    # some sizes alone: each takes less than two minutes. --parts for what the seconds go to
    python benchmarks/gpu_kernels.py --json FILE      # saves the figures

Points are the rows of Elevators (16 599 x 18), Kin40K (40 000 x 8), Buzz (77 columns) and Song (90), standardised, where their files are
there; more rows than these have are a smoothed bootstrap of them, and said to be. Everything is float32; errors are against float64.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from stochastic_sums import data, more_rows

import colinear as co
from colinear import gp

LENGTH, VARIANCE, NOISE = {8: 2.0, 18: 3.0, 77: 8.0, 90: 8.0}, 1.0, 0.1
ROWS = {
    8: ("kin40k", (40_000, 8)),
    18: ("elevators", (16_599, 18)),
    77: ("buzz_subset", (18_350, 77)),
    90: ("song_subset", (12_280, 90)),
}
PROBES = 20


def points(n: int, d: int) -> tuple[Any, Any, str]:
    """n standardised points with d coordinates and targets, on the device."""
    import torch

    name, shape = ROWS[d]
    X, y, kind = data(name, shape)
    kind = f"{name}, {kind}"
    if n > len(X):
        X, kind = more_rows(X, n), f"bootstrap of {kind}"
    X = torch.as_tensor(X[:n], dtype=torch.float32, device="cuda")
    if n > len(y) or "subset" in name:  # a function of the points, with noise
        g = torch.Generator("cuda").manual_seed(1)
        noise = torch.randn(n, device="cuda", generator=g)
        return X, torch.sin(X[:, 0]) + 0.5 * X[:, 1] * X[:, 2] + NOISE**0.5 * noise, kind
    return X, torch.as_tensor(y[:n], dtype=torch.float32, device="cuda"), kind


def seconds(work: Callable[[], Any], repeats: int = 3) -> float:
    import torch

    work()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def kernel_rows(rows: list[dict[str, Any]]) -> None:
    """Products with one vector and with 21, beside the same in torch by blocks."""
    import torch

    print(f"{'milliseconds':44}{'colinear':>10}{'by blocks':>11}{'error':>10}")
    for n, d, width in ((50_000, 18, 1), (50_000, 18, 21), (200_000, 18, 1), (200_000, 18, 21),
                        (50_000, 90, 1), (50_000, 90, 21), (500_000, 18, 21)):  # fmt: skip
        X, _, _ = points(n, d)
        length = torch.tensor(LENGTH[d], device="cuda")
        V = torch.rand(n, width, device="cuda")
        K = co.Kernel(gp.rbf, X, parameters=(length, VARIANCE))

        def by_hand(X: Any = X, V: Any = V, length: Any = length) -> Any:
            Z = X / length
            z = (Z * Z).sum(1)
            blocks = (
                torch.exp(Z[i : i + 2000] @ Z.T - (z[i : i + 2000, None] + z) / 2) @ V
                for i in range(0, len(Z), 2000)
            )
            return torch.cat(list(blocks))

        some = torch.arange(0, n, n // 200, device="cuda")
        exact = gp.rbf(X[some].double(), X.double(), LENGTH[d]) @ V.double()
        error = float(((K @ V)[some] - exact).norm() / exact.norm())
        ours = seconds(lambda K=K, V=V: K @ V)  # type: ignore[misc]
        hand = seconds(by_hand, 1) if n < 500_000 else None
        rows.append({"n": n, "d": d, "columns": width, "ours": ours, "hand": hand, "error": error})
        text = "-" if hand is None else f"{hand * 1e3:.1f}"
        print(
            f"n = {n}, {d} coordinates, {width} columns".ljust(44)
            + f"{ours * 1e3:10.2f}{text:>11}{error:10.1e}",
            flush=True,
        )


def jax_kernel_rows(rows: list[dict[str, Any]]) -> None:
    """The same in JAX, and the derivative by points, length and V, beside blocks of 2000 rows."""
    try:
        import jax
        import jax.numpy as jnp

        device = jax.devices("cuda")[0]
    except (ImportError, RuntimeError):
        print("no CUDA device that JAX can use")
        return

    def product(block: int | None) -> Callable:
        return jax.jit(
            lambda X, V, length: co.Kernel(gp.rbf, X, None, (length, VARIANCE), block) @ V
        )

    def derivative(block: int | None) -> Callable:
        f = product(block)
        return jax.jit(jax.grad(lambda *arguments: (f(*arguments) ** 2).sum(), (0, 1, 2)))

    print(f"\n{'JAX, milliseconds':44}{'colinear':>10}{'by blocks':>11}{'error':>10}")
    for n, d, width in (
        *((50_000, 18, 1), (50_000, 18, 21), (200_000, 18, 1), (200_000, 18, 21), (50_000, 90, 21)),
    ):
        points_, _, _ = points(n, d)
        rng = np.random.default_rng(0)
        given = points_.cpu().numpy(), rng.random((n, width)), LENGTH[d]
        arguments = [jax.device_put(jnp.asarray(x, jnp.float32), device) for x in given]
        print(co.Kernel(gp.rbf, arguments[0], parameters=(arguments[2],)).how)
        for name, program in (("product", product), ("derivative", derivative)):
            both = program(None), program(2000)
            x, y = (np.asarray(jax.tree.leaves(f(*arguments))[0]) for f in both)
            error = float(np.linalg.norm(x - y) / np.linalg.norm(y))
            ours, blocks = (
                seconds(lambda f=f, given=arguments: jax.block_until_ready(f(*given)))  # type: ignore[misc]
                for f in both
            )
            what = {"framework": "jax", "what": name, "n": n, "d": d, "columns": width}
            rows.append({**what, "ours": ours, "hand": blocks, "error": error})
            print(
                f"{name}, n = {n}, {d} coordinates, {width} columns".ljust(44)
                + f"{ours * 1e3:10.2f}{blocks * 1e3:11.1f}{error:10.1e}",
                flush=True,
            )


def loss(X: Any, y: Any, theta: Any, method: Any) -> tuple[Any, Any]:
    """The negative log marginal likelihood for each observation, and how it was found."""
    length, variance, noise = theta
    K = co.PSD(co.Kernel(gp.rbf, X, parameters=(length, variance))) + noise * co.Identity(len(X))
    value, info = gp.log_marginal_likelihood(K, y, method=method, info=True, on_failure="ignore")
    return -value / len(X), info


def exact_loss(X: Any, y: Any, theta: Any) -> float:
    """In double precision: 16 n^2 bytes."""
    import math

    import torch

    length, variance, noise = (float(t) for t in theta)
    n, X = len(X), X.double()
    K = torch.empty(n, n, dtype=torch.float64, device=X.device)
    for i in range(0, n, 2000):
        K[i : i + 2000] = gp.rbf(X[i : i + 2000], X, length, variance)
    K.diagonal().add_(noise)
    L = torch.linalg.cholesky(K)
    del K
    z = torch.linalg.solve_triangular(L, y.double()[:, None], upper=False)
    value = (z * z).sum() / 2 + L.diagonal().log().sum() + n * math.log(2 * math.pi) / 2
    return float(value) / n


GP_SIZES = (
    *((14_000, 18), (16_599, 18), (40_000, 8), (50_000, 18)),
    *((200_000, 18), (200_000, 90), (386_508, 90), (437_437, 77), (500_000, 18)),
)
EXACT_ROWS = 60_000  # up to which the loss is computed exactly too


def gp_methods(n: int, d: int) -> dict[str, Any]:
    """The methods that are compared; of many rows, where `Auto` is SLQ with the best rank, it alone."""
    from colinear.functions.stochastic.solve_and_logdet import usual

    if n >= 200_000:
        return {"Auto": None}
    K = co.PSD(co.Kernel(gp.rbf, points(n, d)[0], parameters=(LENGTH[d], VARIANCE)))
    best = usual(K + NOISE * co.Identity(n)).rank
    methods: dict[str, Any] = {"Auto": None}
    for rank in (best, best // 2):
        method = co.SLQ(PROBES, preconditioner=co.RPCholesky(rank))
        methods[f"SLQ({PROBES}, RPCholesky({rank}))"] = method
    rank = max(100, min(500, n // 100))
    methods[f"SLQ({PROBES}, Nystrom({rank}))"] = co.SLQ(PROBES, preconditioner=co.Nystrom(rank))
    return methods


def gp_rows(rows: list[dict[str, Any]], sizes: Any, repeats: int = 2, parts: bool = False) -> None:
    """The likelihood and its gradient by length, variance and noise."""
    import torch

    print(
        f"\n{'likelihood + gradient':58}{'seconds':>9}{'loss':>10}{'exact':>10}{'std error':>10}  steps GiB"
    )
    for n, d in sizes:
        X, y, kind = points(n, d)
        exact = exact_loss(X, y, (LENGTH[d], VARIANCE, NOISE)) if n <= EXACT_ROWS else None
        torch.cuda.empty_cache()
        for name, method in gp_methods(n, d).items():
            torch.cuda.reset_peak_memory_stats()

            def work(X: Any = X, y: Any = y, d: int = d, method: Any = method) -> Any:
                theta = [
                    torch.tensor(v, device="cuda", requires_grad=True)
                    for v in (LENGTH[d], VARIANCE, NOISE)
                ]
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", co.ApproximationWarning)
                    value, info = loss(X, y, theta, method)
                value.backward()
                return value.detach(), [t.grad for t in theta], info

            start = time.perf_counter()
            value, gradient, info = work()
            torch.cuda.synchronize()
            first = time.perf_counter() - start
            # the first call compiles; of one that takes long that does not count
            took = first if first > 25 else seconds(work, repeats if n < 100_000 else 1)
            peak = torch.cuda.max_memory_allocated() / 2**30
            error = (
                None if info.error is None else float(info.error) / (2 * n)
            )  # that of the determinant
            rows.append(
                {"n": n, "d": d, "kind": kind, "method": name, "seconds": took, "loss": float(value), "exact": exact,
                 "status": str(info.status), "steps": str(info.iterations), "peak": peak, "error": error,
                 "gradient": [float(g) for g in gradient]}
            )  # fmt: skip
            texts = ["-" if number is None else f"{number:.5f}" for number in (exact, error)]
            print(
                f"n = {n}, {d}; {name} ({kind})".ljust(58)
                + f"{took:9.3f}{float(value):10.5f}{texts[0]:>10}{texts[1]:>10}  {info.iterations} {peak:.1f}"
                + f" {info.status!s}",
                flush=True,
            )
            if parts:
                gp_parts(X, d, method)


def gp_parts(X: Any, d: int, method: Any) -> None:
    """What the seconds go to: the preconditioner, its product and that of the kernel, with one column more than there are probes."""
    import torch

    M = getattr(method, "preconditioner", None)
    if M is None:
        return
    n, length = len(X), torch.tensor(LENGTH[d], device="cuda")
    A = co.PSD(co.Kernel(gp.rbf, X, parameters=(length, VARIANCE))) + NOISE * co.Identity(n)
    V = torch.rand(n, PROBES + 1, device="cuda")
    made = M(A)
    found = {
        "made": seconds(lambda: M(A), 1),
        "its determinant": seconds(lambda: co.logdet(made), 1),
        "its product": seconds(lambda: made @ V),
        "the kernel's": seconds(lambda: A @ V),
    }
    print("    " + ", ".join(f"{what} {1e3 * t:.1f} ms" for what, t in found.items()), flush=True)


def train_rows(rows: list[dict[str, Any]], steps: int = 30) -> None:
    """The loss against time of Adam on Elevators, by colinear and by GPyTorch; each loss is then computed exactly."""
    import torch

    X, y, _ = points(14_000, 18)

    def trained(name: str, parameters: list[Any], value: Callable[[], Any], theta: Any) -> None:
        optimiser = torch.optim.Adam(parameters, lr=0.1)
        trace, spent = [], 0.0
        for step in range(steps + 1):
            torch.cuda.synchronize()
            start = time.perf_counter()
            optimiser.zero_grad()
            value().backward()
            optimiser.step()
            torch.cuda.synchronize()
            spent += time.perf_counter() - start if step else 0.0  # the first one compiles
            if step % 5 == 0:
                trace.append((spent, exact_loss(X, y, theta())))
        rows.append({"what": name, "trace": trace})
        print(name, " ".join(f"{t:.2f} s: {v:.4f}" for t, v in trace), flush=True)

    raw = torch.zeros(3, device="cuda", requires_grad=True)
    method = co.SLQ(PROBES, preconditioner=co.RPCholesky(1000))
    trained("colinear", [raw], lambda: loss(X, y, raw.exp(), method)[0], lambda: raw.detach().exp())
    try:
        import gpytorch
    except ImportError:
        return

    class Model(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self, X: Any, y: Any, likelihood: Any):
            super().__init__(X, y, likelihood)
            self.mean = gpytorch.means.ZeroMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, X: Any) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(X), self.kernel(X))

    likelihood = gpytorch.likelihoods.GaussianLikelihood().cuda()
    model = Model(X, y, likelihood).cuda()
    model.kernel.base_kernel.lengthscale = model.kernel.outputscale = likelihood.noise = 1.0
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    model.train()
    likelihood.train()
    with warnings.catch_warnings(), gpytorch.settings.max_preconditioner_size(100):
        warnings.simplefilter("ignore")
        with gpytorch.settings.num_trace_samples(PROBES):
            trained(
                "GPyTorch",
                list(model.parameters()),
                lambda: -marginal(model(X), y),
                lambda: (
                    model.kernel.base_kernel.lengthscale,
                    model.kernel.outputscale,
                    likelihood.noise,
                ),
            )


def main() -> None:
    parser = argparse.ArgumentParser(description="Kernels and Gaussian processes on a GPU.")
    parser.add_argument("--json", help="save the figures here")
    parser.add_argument("--kernels", action="store_true", help="the products alone")
    parser.add_argument(
        "--gp",
        nargs="*",
        metavar="ROWSxCOLUMNS",
        help="the likelihoods alone, of these sizes or of all",
    )
    parser.add_argument(
        "--parts", action="store_true", help="what the seconds of a likelihood go to"
    )
    parser.add_argument("--train", action="store_true", help="the loss against time too")
    parser.add_argument("--most", type=int, default=500_000, help="observations at most")
    arguments = parser.parse_args()
    try:
        import torch

        there = torch.cuda.is_available()
    except ImportError:
        there = False
    if not there:
        print("no CUDA device that torch can use: nothing to measure")
        return
    rows: list[dict[str, Any]] = []
    every = not (arguments.kernels or arguments.gp is not None or arguments.train)
    if arguments.kernels or every:
        kernel_rows(rows)
        jax_kernel_rows(rows)
    if arguments.gp is not None or every:
        asked = [tuple(map(int, size.split("x"))) for size in arguments.gp or ()]
        sizes = asked or [size for size in GP_SIZES if size[0] <= arguments.most]
        gp_rows(rows, sizes, parts=arguments.parts)
    if arguments.train:
        train_rows(rows)
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
