"""An exact Gaussian process on real data, its hyper-parameters learned through our gradients.

Two data sets of the paper (figure "applications", c): Elevators, 18 readings of an aircraft and the command that followed, and
Kin40K, 8 joint angles of a robot arm and where its hand is. The covariance of the targets is

    K = v exp(-Σ_i (x_i - x'_i)² / 2 l_i²) + s I

with one length l_i for each input. The log marginal likelihood is maximised by L-BFGS, SciPy's, with gradients that torch takes through
`solve_and_logdet`; then new points are predicted, with error bars.

    python examples/gaussian_process.py                # needs torch; --small for a quick one
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import gallery
import numpy as np
import scipy.linalg
import scipy.optimize
import torch

import colinear as co
from colinear import gp


def covariance(theta: Any, X: Any) -> tuple[Any, tuple[Any, Any]]:
    """The covariance with noise, and the lengths and variance of the kernel; θ has the logarithms, since all are positive."""
    variance, noise, lengths = theta[0].exp(), theta[1].exp(), theta[2:].exp()
    return co.PSD(gp.rbf(X, None, lengths, variance)) + noise * co.Identity(len(X)), (lengths, variance)


def learn(X: Any, y: Any, iterations: int) -> tuple[Any, list[float]]:
    """The hyper-parameters of greatest likelihood, and the likelihood per point on the way."""
    n, d = X.shape
    history: list[float] = []

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        leaf = torch.tensor(theta, requires_grad=True)
        value = -gp.log_marginal_likelihood(covariance(leaf, X)[0], y) / n
        value.backward()  # one factorisation serves the value and the gradient
        history.append(-value.item())
        return value.item(), leaf.grad.numpy()

    start = np.concatenate([np.log([1.0, 0.1]), np.full(d, np.log(d) / 2)])  # lengths √d: the usual distance of two points
    found = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": iterations})
    return torch.tensor(found.x), history


def likelihood_by_cholesky(K: np.ndarray, y: np.ndarray) -> float:
    """The textbook's: K = L L^T, log p = -|L^-1 y|² / 2 - Σ log L_ii - n log(2π) / 2."""
    L = scipy.linalg.cholesky(K, lower=True)
    z = scipy.linalg.solve_triangular(L, y, lower=True)
    return float(-(z @ z) / 2 - np.log(np.diagonal(L)).sum() - len(y) * np.log(2 * np.pi) / 2)


def run(name: str, columns: int, small: bool) -> dict[str, Any]:
    """Learn from some rows of a data set, and judge by others."""
    data, target = gallery.regression(name, columns, np.random.default_rng(0))
    n, m, iterations = (150, 100, 8) if small else (1500, 2000, 30)
    X, y = torch.tensor(data[:n]), torch.tensor(target[:n])
    new, truth = torch.tensor(data[n : n + m]), target[n : n + m]

    start = time.perf_counter()
    theta, history = learn(X, y, iterations)
    seconds = time.perf_counter() - start
    K, parameters = covariance(theta, X)
    if name == "elevators":
        print("What the likelihood will do\n" + str(co.explain(gp.log_marginal_likelihood, K, y)) + "\n")

    prior = co.Diagonal(parameters[1].expand(len(new)))  # the diagonal is enough for variances
    predicted = gp.posterior(K, gp.rbf(X, new, *parameters), prior, y)
    noise = theta[1].exp()
    mean, variance = predicted.mean.numpy(), (predicted.variance + noise).numpy()
    error = float(np.sqrt(np.mean((truth - mean) ** 2)))
    density = float(np.mean((truth - mean) ** 2 / variance + np.log(2 * np.pi * variance)) / 2)  # negative log predictive density
    inside = float(np.mean(np.abs(truth - mean) < 1.96 * np.sqrt(variance)))
    ours, textbook = gp.log_marginal_likelihood(K, y).item(), likelihood_by_cholesky(K.to_dense().numpy(), y.numpy())

    print(f"{name}: {len(history)} likelihoods with gradients of {n} points in {seconds:.1f} s")
    print(f"  log-likelihood {ours:.6f}, of the textbook {textbook:.6f}; per point {history[0]:.3f} at first, {ours / n:.3f} now")
    print(f"  on {m} new points: error {error:.3f} (1 is knowing nothing), NLPD {density:.3f}, {inside:.0%} inside the 95% bars")
    gallery.check("the likelihood is that of Cholesky's factorisation", abs(ours - textbook) < 1e-8 * abs(textbook))
    gallery.check("learning made the data likelier", ours / n > history[0])
    gallery.check("new points are predicted", error < 0.9)
    gallery.check("the error bars are honest", 0.85 < inside < 0.995)
    found = {"likelihood": ours, "textbook": textbook, "error": error, "density": density, "inside": inside}
    return found | {
        "history": history,
        "mean": mean,
        "deviation": np.sqrt(variance),
        "truth": truth,
        "lengths": parameters[0].numpy(),
    }


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    options = gallery.options(__doc__, arguments)
    runs = {name: run(name, columns, options.small) for name, columns in (("elevators", 18), ("kin40k", 8))}
    with gallery.picture(options, size=(14, 7)) as figure:
        for row, (name, r) in zip(figure.subplots(2, 3), runs.items(), strict=True):
            learning, prediction, relevance = row
            learning.plot(np.maximum.accumulate(r["history"]), color="tab:blue")
            learning.set(xlabel="evaluation", ylabel="log-likelihood per point", title=f"{name}: learning")
            some = slice(200)
            prediction.errorbar(
                r["truth"][some], r["mean"][some], 1.96 * r["deviation"][some], fmt=".", elinewidth=0.5, color="tab:blue"
            )
            limits = [r["truth"].min(), r["truth"].max()]
            prediction.plot(limits, limits, color="tab:red", linewidth=1)
            prediction.set(
                xlabel="what was there", ylabel="predicted, 95% bars", title=f"error {r['error']:.3f}, NLPD {r['density']:.3f}"
            )
            relevance.bar(np.arange(len(r["lengths"])), 1 / r["lengths"], color="tab:gray")
            relevance.set(xlabel="input", ylabel="1 / length", title="which inputs matter")
    numbers = ("likelihood", "textbook", "error", "density", "inside")
    return {f"{name} {key}": r[key] for name, r in runs.items() for key in numbers}


if __name__ == "__main__":
    main()
