"""Ridge regression: the year of a song from its sound, with every penalty tried at the price of one.

The data (Song, UCI: YearPredictionMSD) has 90 averages and covariances of the timbre of each song. The weights for a penalty λ solve

    (X^T X + λ I) w = X^T y

and the penalty is the one with the least error on songs that were left out (the paper's figure "applications", b).

    python examples/ridge_regression.py                # --small for a quick one
"""

from __future__ import annotations

from collections.abc import Sequence

import gallery
import numpy as np

import colinear as co


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    options = gallery.options(__doc__, arguments)
    data, target = gallery.regression("song_subset", 90, np.random.default_rng(0))
    if options.small:
        data, target = data[:1500], target[:1500]
    first, second = int(0.6 * len(data)), int(0.8 * len(data))  # to learn from, to choose the penalty by, to judge by
    (train, y), (valid, y_valid), (test, y_test) = (
        (data[part], target[part]) for part in (slice(first), slice(first, second), slice(second, None))
    )
    d = train.shape[1]
    X, I = co.Dense(train), co.Identity(d)

    # The normal equations, written as they are. X^T X is known to be positive semidefinite, so the sum is positive definite, and a
    # factorisation of 90 x 90 is cheaper than iterating with X: `explain` says so.
    A = X.H @ X + 0.1 * I
    b = X.H @ y
    print("The operator\n ", A)
    print("\nWhat solve will do\n" + str(co.explain(co.solve, A, b)))
    (w, info), seconds = gallery.timed(lambda: co.solve(A, b, info=True))
    by_hand = np.linalg.solve(train.T @ train + 0.1 * np.eye(d), train.T @ y)
    difference = float(np.linalg.norm(w - by_hand) / np.linalg.norm(by_hand))
    print(
        f"\nλ = 0.1: {1e3 * seconds:.1f} ms, residual {float(info.residual.max()):.0e}, {difference:.0e} from the normal equations"
    )

    # The paper's way, conjugate gradients: `opaque` leaves nothing but products with A.
    iterated, info = co.solve(co.opaque(A), b, co.CG(tol=1e-4), info=True)
    print(f"conjugate gradients to 1e-4: {int(info.iterations)} iterations, residual {float(info.residual.max()):.0e}")

    # All penalties: decompose once, X^T X = V Λ V^T. Every shift is then a division, and the library knows: look for the rule's name.
    values, V = co.eig(X.H @ X)
    decomposed = V @ co.Diagonal(values) @ V.H
    plan = co.explain(co.solve, decomposed + 0.1 * I, b)
    print("\nOnce decomposed, a solve for another λ\n" + str(plan))
    penalties = np.logspace(-2, 5, 60)
    path, seconds = gallery.timed(lambda: np.stack([co.solve(decomposed + penalty * I, b) for penalty in penalties]))

    def errors(points: np.ndarray, truth: np.ndarray) -> np.ndarray:
        return np.sqrt(np.mean((points @ path.T - truth[:, None]) ** 2, axis=0))

    learned, validated, judged = errors(train, y), errors(valid, y_valid), errors(test, y_test)
    best = int(validated.argmin())
    print(f"\n{len(penalties)} penalties in {1e3 * seconds:.0f} ms; the best is λ = {penalties[best]:.3g}")
    print(f"error on songs never seen: {judged[best]:.4f} standard deviations of the year (1 is knowing nothing)")

    found = {"difference": difference, "iterated": float(np.linalg.norm(iterated - by_hand) / np.linalg.norm(by_hand))}
    found |= {"penalty": float(penalties[best]), "error": float(judged[best]), "worst": float(judged.max())}
    gallery.check("the weights are those of the normal equations", difference < 1e-8)
    gallery.check("conjugate gradients agree to their tolerance", found["iterated"] < 1e-2)
    gallery.check("the known decomposition is used", "inv_shifted_similarity" in plan.rules)
    at_best = np.linalg.solve(train.T @ train + penalties[best] * np.eye(d), b)
    gallery.check("the path is that of separate solves", bool(np.allclose(path[best], at_best, atol=1e-8)))
    gallery.check("a song's sound tells something of its year", judged[best] < 0.95)

    with gallery.picture(options, size=(11, 4)) as figure:
        weights, error = figure.subplots(1, 2)
        weights.semilogx(penalties, path, linewidth=0.8)
        weights.set(xlabel="penalty λ", ylabel="weights", title=f"{d} weights, {len(penalties)} penalties, one decomposition")
        for curve, name in ((learned, "learned from"), (validated, "chosen by"), (judged, "never seen")):
            error.semilogx(penalties, curve, label=name)
        for axis in (weights, error):
            axis.axvline(penalties[best], color="tab:gray", linestyle=":")
        error.set(
            xlabel="penalty λ", ylabel="root mean square error", title=f"λ = {penalties[best]:.3g}: error {judged[best]:.3f}"
        )
        error.legend(title="songs")
    return found


if __name__ == "__main__":
    main()
