"""A Gaussian process of eleven tasks at once: 11 000 observations, with a covariance of 121 million entries that is never written down.

Each of T tasks is a function of the same N points, and the tasks are alike in ways that are to be found out. The covariance of all
observations is a Kronecker product with noise (the paper's figure "structure", a),

    K = K_task ⊗ K_x + s I,

whose inverse and determinant come from the eigenvalues of the factors. The tasks' covariance is learned, with the length and the noise,
by L-BFGS through our gradients; what one task tells of another then makes its predictions better than they would be alone.

    python examples/multitask_process.py               # needs torch; --small for a quick one
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import gallery
import numpy as np
import scipy.optimize
import torch

import colinear as co
from colinear import gp

NOISE = 0.5


def covariance(theta: Any, X: Any, tasks: int) -> tuple[Any, Any, Any]:
    """K, the tasks' covariance L L^T and the length, from the logarithms of length and noise and the entries of L."""
    length, noise, L = theta[0].exp(), theta[1].exp(), theta[2:].reshape(tasks, -1)
    K_task = L @ L.T + 1e-3 * torch.eye(tasks, dtype=L.dtype)
    K = co.Kronecker(co.PSD(K_task), co.PSD(gp.rbf(X, None, length))) + noise * co.Identity(tasks * len(X))
    return K, K_task, length


def learn(X: Any, y: Any, start: np.ndarray, tasks: int, iterations: int) -> tuple[Any, int]:
    """The parameters of greatest likelihood, and how often it was computed."""

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        leaf = torch.tensor(theta, requires_grad=True)
        value = -gp.log_marginal_likelihood(covariance(leaf, X, tasks)[0], y) / len(y)
        value.backward()
        return value.item(), leaf.grad.numpy()

    found = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": iterations})
    return torch.tensor(found.x), found.nfev


def predict(theta: Any, X: Any, y: Any, new: Any, tasks: int) -> Any:
    """The tasks at new points; all three covariances are Kronecker products, so the variances are found without forming one."""
    K, K_task, length = covariance(theta, X, tasks)
    return gp.posterior(
        K, co.Kronecker(K_task, gp.rbf(X, new, length)), co.Kronecker(K_task, co.PSD(gp.rbf(new, None, length))), y
    )


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    options = gallery.options(__doc__, arguments)
    n, tasks, d, iterations = (60, 4, 2, 15) if options.small else (1000, 11, 33, 20)
    rng = np.random.default_rng(0)

    # What is to be found out. The tasks' covariance is of rank 2: two hidden functions are all that they are made of. A sample of
    # the prior is drawn by a root of the Kronecker product, which is the product of the roots.
    mixing = rng.standard_normal((tasks, 2))
    truth = torch.tensor(mixing @ mixing.T)
    X = torch.tensor(rng.standard_normal((n + n // 5, d)))
    length = np.sqrt(d)
    values = gp.sample(co.Kronecker(co.PSD(truth), co.PSD(gp.rbf(X, None, length))), seed=1).reshape(tasks, -1)
    y = (values[:, :n] + np.sqrt(NOISE) * torch.tensor(rng.standard_normal((tasks, n)))).reshape(-1)
    X, new, hidden = X[:n], X[n:], values[:, n:].reshape(-1)

    # Begin with the correlations of the observations; then with tasks that know nothing of each other, to compare.
    centred = y.reshape(tasks, n).numpy()
    spectrum, vectors = np.linalg.eigh(centred @ centred.T / n)
    rank = min(3, tasks)
    together = np.concatenate([np.log([length, 1.0]), (vectors[:, -rank:] * np.sqrt(spectrum[-rank:])).ravel()])
    K = covariance(torch.tensor(together), X, tasks)[0]
    plan = co.explain(gp.log_marginal_likelihood, K, y)
    print("The covariance\n ", K, "\n\nWhat the likelihood will do\n" + str(plan))
    start = time.perf_counter()
    theta, evaluations = learn(X, y, together, tasks, iterations)
    seconds = time.perf_counter() - start
    K, K_task, learned_length = covariance(theta, X, tasks)
    likelihood = gp.log_marginal_likelihood(K, y).item()
    print(f"\n{evaluations} likelihoods with gradients of {tasks * n} observations in {seconds:.1f} s: {likelihood:.2f}")
    print(f"length {learned_length.item():.2f} (it was {length:.2f}), noise {theta[1].exp().item():.3f} (it was {NOISE})")

    predicted = predict(theta, X, y, new, tasks)
    alone = torch.cat([theta[:2], torch.diag(K_task.diagonal().sqrt()).reshape(-1)])
    single = predict(alone, X, y, new, tasks)
    error, error_alone = (float((p.mean - hidden).square().mean().sqrt()) for p in (predicted, single))
    deviation = predicted.variance.sqrt()
    inside = float(((predicted.mean - hidden).abs() < 1.96 * deviation).double().mean())
    print(
        f"error at {len(new)} new points: {error:.3f} together, {error_alone:.3f} each task alone; {inside:.0%} inside the 95% bars"
    )

    # The textbook's likelihood, by a dense covariance of as many points as fit.
    few = min(n, 1000 // tasks)
    part, y_part = covariance(theta, X[:few], tasks)[0], y.reshape(tasks, n)[:, :few].reshape(-1)
    sign, logarithm = np.linalg.slogdet(part.to_dense().numpy())
    quadratic = y_part.numpy() @ np.linalg.solve(part.to_dense().numpy(), y_part.numpy())
    textbook = -(quadratic + logarithm + len(y_part) * np.log(2 * np.pi)) / 2
    ours = gp.log_marginal_likelihood(part, y_part).item()
    matrices = [A / np.sqrt(np.outer(np.diagonal(A), np.diagonal(A))) for A in (truth.numpy(), K_task.numpy())]
    distance = float(np.abs(matrices[0] - matrices[1]).mean())
    gallery.check("the Kronecker structure is used", "inv_shifted_kronecker" in plan.rules)
    gallery.check("the likelihood is that of the dense covariance", sign > 0 and abs(ours - textbook) < 1e-8 * abs(textbook))
    gallery.check("the tasks' correlations are found", distance < (0.3 if options.small else 0.1))
    gallery.check("tasks learn from each other", error < error_alone)

    with gallery.picture(options, size=(13, 4)) as figure:
        axes = figure.subplots(1, 3)
        for axis, matrix, title in zip(axes, matrices, ("how tasks are correlated", "what was learned"), strict=False):
            image = axis.imshow(matrix, vmin=-1, vmax=1, cmap="RdBu")
            axis.set(title=title, xlabel="task", ylabel="task")
        figure.colorbar(image, ax=axes[:2])
        for p, colour, shift, name in ((single, "tab:gray", -0.2, "alone"), (predicted, "tab:blue", 0.2, "together")):
            by_task = (p.mean - hidden).reshape(tasks, -1).square().mean(1).sqrt().numpy()
            axes[2].bar(np.arange(tasks) + shift, by_task, 0.4, color=colour, label=name)
        axes[2].set(xlabel="task", ylabel="root mean square error", title=f"{len(hidden)} values never seen")
        axes[2].legend()
    found = {"likelihood": ours, "textbook": float(textbook), "error": error, "error alone": error_alone, "distance": distance}
    return found | {"inside": inside}


if __name__ == "__main__":
    main()
