"""Principal components of 18 350 Twitter discussions: eigenvectors of X^T X, of which only the factors are stored.

The data (Buzz, UCI) has 77 measurements of each discussion over seven days. The directions along which discussions differ most are the
eigenvectors of the covariance of the largest eigenvalues (the paper's figure "applications", a, and "sums", a).

    python examples/principal_components.py            # --small for a quick one
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gallery
import numpy as np

import colinear as co

COMPONENTS = 10


def discussions(small: bool, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Measurements, each of mean 0 and variance 1, and whether the discussion became a buzz (1), did not (0), or is not labelled."""
    file = gallery.data("buzz_subset")
    if file is None:  # scores of falling variance along random directions
        X = rng.standard_normal((2000, 77)) * np.arange(1, 78) ** -1.0 @ np.linalg.qr(rng.standard_normal((77, 77)))[0]
        label = (X @ np.ones(77) > 0).astype(int)
    else:
        X, label = file["X"].astype(float), file["label"]
    if small:
        X, label = X[:2000], label[:2000]
    X = X[:, X.std(axis=0) > 0]
    return (X - X.mean(axis=0)) / X.std(axis=0), label


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    options = gallery.options(__doc__, arguments)
    data, label = discussions(options.small, np.random.default_rng(0))
    n, d = data.shape

    # The covariance is a product. It is known to be positive semidefinite, because both factors are the same X.
    X = co.Dense(data)
    C = X.H @ X / (n - 1)
    print("The covariance\n ", C)
    print("\nWhat eig will do\n" + str(co.explain(co.eig, C, COMPONENTS, "LA")))

    # The same question, answered by different means. `opaque` hides the structure, so that only products with C are left: what one
    # has when the data is too large to form C, or comes in pieces.
    hidden = co.opaque(C)
    ways: dict[str, Callable[[], Any]] = {
        "eig, as explained": lambda: co.eig(C, COMPONENTS, "LA"),
        "products only: Lanczos": lambda: co.eig(hidden, COMPONENTS, "LA", co.Lanczos()),
        "products only: LOBPCG": lambda: co.eig(hidden, COMPONENTS, "LA", co.LOBPCG()),
        "svd of X": lambda: co.svd(X, COMPONENTS),
    }
    (_, s, V), seconds = gallery.timed(lambda: np.linalg.svd(data, full_matrices=False))
    variances, directions = s**2 / (n - 1), V[:COMPONENTS].T
    times, errors = {"NumPy: svd of X": seconds}, {}
    print(f"\n{'NumPy: svd of X':24s} {seconds:8.3f} s")
    for name, work in ways.items():
        found, times[name] = gallery.timed(work)
        values, vectors = (found[1] ** 2 / (n - 1), found[2]) if len(found) == 3 else (found[0][::-1], found[1])
        # Eigenvectors have no sign, so the spaces are compared: the part of one that is not in the other.
        Q = vectors.to_dense()
        outside = float(np.linalg.norm(directions - Q @ (Q.T @ directions), 2))
        errors[name] = max(outside, float(np.abs(values - variances[:COMPONENTS]).max() / variances[0]))
        print(f"{name:24s} {times[name]:8.3f} s   differs from NumPy's by {errors[name]:.0e}")

    # The first component alone, by minibatches of rows, as in the paper: the rows are the terms of the sum X^T X.
    largest, info = co.eig(C, 1, "LA", co.SVRG(batch_size=n // 40, tol=1e-6), info=True)
    angle = float(np.sqrt(max(0.0, 1 - (largest[1].to_dense()[:, 0] @ directions[:, 0]) ** 2)))
    print(f"minibatches (SVRG): the first component after {int(info.matvecs)} passes over the data, {angle:.0e} off")

    share = float(variances[:COMPONENTS].sum() / variances.sum())
    print(f"\n{COMPONENTS} of {d} directions have {share:.0%} of the variance")
    gallery.check("all ways find the components of NumPy's SVD", max(errors.values()) < 1e-6)
    gallery.check("minibatches find the first one", angle < 1e-3)

    with gallery.picture(options, size=(13, 4)) as figure:
        spectrum, plane, bars = figure.subplots(1, 3)
        spectrum.semilogy(np.arange(1, d + 1), variances / variances.sum(), ".-", color="tab:gray")
        spectrum.semilogy(np.arange(1, COMPONENTS + 1), variances[:COMPONENTS] / variances.sum(), "o", color="tab:blue")
        spectrum.set(xlabel="component", ylabel="share of the variance", title=f"{COMPONENTS} components: {share:.0%}")
        scores = data @ directions[:, :2]
        for value, name, colour in ((0, "no buzz", "tab:gray"), (1, "buzz", "tab:red")):
            chosen = scores[label == value]
            plane.plot(*np.arcsinh(chosen).T, ".", markersize=2, alpha=0.4, color=colour, label=name)
        plane.legend(markerscale=5)
        plane.set(xlabel="first component (arsinh)", ylabel="second component (arsinh)", title="the discussions")
        bars.barh(list(times), list(times.values()), color=["tab:gray"] + ["tab:blue"] * len(ways))
        bars.invert_yaxis()
        bars.set(xlabel="seconds", title=f"{COMPONENTS} components of {n} x {d}")
    return {"error": max(errors.values()), "angle": angle, "share": share, "passes": float(info.matvecs)}


if __name__ == "__main__":
    main()
