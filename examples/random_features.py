"""A Gaussian process of 12 449 points by a thousand random features: a sum of rank-one terms, solved exactly.

The covariance exp(-|x - x'|² / 2 l²) is the mean of cos(w·(x - x')) over random frequencies w (Rahimi and Recht 2007). A thousand features
φ_j of each point make it a sum of terms φ_j φ_j^T, to which the noise adds a multiple of the identity,

    K = Φ Φ^T + s I,

which the matrix inversion lemma solves, and the determinant lemma gives its likelihood, by systems of 1000 (the paper's figure
"sums", b: Elevators, l = 0.1, s = 0.1).

    python examples/random_features.py                 # --small for a quick one
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import gallery
import numpy as np

import colinear as co
from colinear import gp

NOISE, PAPER = 0.1, 0.1  # the variance of the noise, and the paper's length
LENGTHS = (PAPER, 1.0, 2.0, 4.0, 6.0, 10.0, 20.0)


def features(X: np.ndarray, frequencies: np.ndarray, length: float) -> np.ndarray:
    """cos and sin of each frequency, so that Φ Φ^T is the covariance on average, with ones on its diagonal."""
    angles = X @ frequencies / length
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1) / np.sqrt(frequencies.shape[1])


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    options = gallery.options(__doc__, arguments)
    rng = np.random.default_rng(0)
    X, y = gallery.regression("elevators", 18, rng)
    if options.small:
        X, y = X[:800], y[:800]
    n, count = 3 * len(X) // 4, 60 if options.small else 1000
    frequencies = rng.standard_normal((X.shape[1], count // 2))

    def model(length: float) -> co.LinearOperator:
        return co.LowRank(features(X[:n], frequencies, length)) + NOISE * co.Identity(n)

    # The paper's problem. Its length is so short that no two points are near each other.
    K, b = model(PAPER), y[:n]
    print("The covariance\n ", K)
    plan = co.explain(co.solve, K, b)
    print("\nWhat solve will do\n" + str(plan))
    (x, info), seconds = gallery.timed(lambda: co.solve(K, b, info=True), 1 if options.small else 2)
    print(f"\nmatrix inversion lemma  {seconds:7.2f} s   residual {float(info.residual.max()):.0e}")

    # The same system by iteration. `opaque` leaves products with K; SVRG takes a tenth of the terms at a time.
    curves = {}
    for name, A, method in (
        ("conjugate gradients", co.opaque(K), co.CG(tol=1e-8)),
        ("minibatches (SVRG)", K, co.SVRG(tol=1e-8, batch_size=count // 10, max_iters=5 if options.small else 10)),
    ):
        (other, info), seconds = gallery.timed(partial(co.solve, A, b, method, info=True), 1)
        passes = np.linspace(0, float(info.matvecs), len(info.history))
        curves[name] = passes, info.history
        residual, status = float(info.residual.max()), co.Status(int(info.status)).name
        print(f"{name:22s}  {seconds:7.2f} s   residual {residual:.0e} after {int(info.matvecs)} passes: {status}")
        if name == "conjugate gradients":
            difference = float(np.linalg.norm(other - x) / np.linalg.norm(x))

    # Which length do the data want? The likelihood tells, by the determinant lemma, and points that were left out agree.
    def predict(length: float) -> gp.Posterior:
        old, new = features(X[:n], frequencies, length), features(X[n:], frequencies, length)
        return gp.posterior(model(length), co.LowRank(old, new), co.LowRank(new), b)

    likelihoods, errors = [], []
    for length in LENGTHS:
        likelihoods.append(float(gp.log_marginal_likelihood(model(length), b)) / n)
        errors.append(float(np.sqrt(np.mean((predict(length).mean - y[n:]) ** 2))))
        print(f"length {length:5.1f}: log-likelihood per point {likelihoods[-1]:7.3f}, error {errors[-1]:.3f}")
    best = int(np.argmax(likelihoods))
    posterior = predict(LENGTHS[best])
    inside = float(np.mean(np.abs(posterior.mean - y[n:]) < 1.96 * np.sqrt(posterior.variance + NOISE)))
    print(
        f"the likeliest length is {LENGTHS[best]}: error {errors[best]:.3f} (1 is knowing nothing), {inside:.0%} inside the 95% bars"
    )

    # Against the matrix itself, of as many points as fit.
    few = co.LowRank(features(X[:500], frequencies, LENGTHS[best])) + NOISE * co.Identity(500)
    dense = gp.log_marginal_likelihood(few.to_dense(), y[:500])
    ours = gp.log_marginal_likelihood(few, y[:500])
    gallery.check("the matrix inversion lemma is used", any("corrected" in name or "woodbury" in name for name in plan.rules))
    gallery.check("conjugate gradients find the same", difference < 1e-6)
    gallery.check("the likelihood is that of the dense covariance", bool(abs(ours - dense) < 1e-8 * abs(dense)))
    gallery.check("the likeliest length predicts", errors[best] < 0.9)
    gallery.check("and better than the paper's", errors[best] < errors[0])

    with gallery.picture(options, size=(13, 4)) as figure:
        convergence, choice, prediction = figure.subplots(1, 3)
        for name, (passes, history) in curves.items():
            convergence.semilogy(passes, history, ".-", label=name)
        convergence.axhline(1e-8, color="tab:gray", linestyle=":", label="tolerance")
        convergence.set(xlabel="passes over the features", ylabel="relative residual", title=f"the paper's system, l = {PAPER}")
        convergence.legend()
        choice.semilogx(LENGTHS, likelihoods, ".-", color="tab:blue")
        choice.set(xlabel="length l", ylabel="log-likelihood per point", title="which length?")
        right = choice.twinx()
        right.semilogx(LENGTHS, errors, ".--", color="tab:red")
        right.set_ylabel("error on new points", color="tab:red")
        prediction.plot(y[n:], posterior.mean, ".", markersize=2)
        limits = [y[n:].min(), y[n:].max()]
        prediction.plot(limits, limits, color="tab:red", linewidth=1)
        prediction.set(xlabel="what was there", ylabel="predicted", title=f"l = {LENGTHS[best]}: error {errors[best]:.3f}")
    found_numbers = {"difference": difference, "likelihood": float(ours), "dense": float(dense), "length": LENGTHS[best]}
    return found_numbers | {"error": errors[best], "inside": inside}


if __name__ == "__main__":
    main()
