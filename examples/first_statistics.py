"""A first program in statistics: ridge regression with its degrees of freedom, and principal components, of factors that are never multiplied out.

The design has an intercept, hundreds of indicator columns and a few numbers, as blocks side by side. The covariance of the second part is low
rank plus diagonal. Neither matrix is ever written down.

Run it with `python examples/first_statistics.py`; `--small` is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import gallery
import numpy as np
import scipy.sparse

import colinear as co


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    options = gallery.options(__doc__, arguments)
    rng = np.random.default_rng(0)
    rows, groups, ridge = 20_000, 800, 5.0
    group, numbers = rng.integers(groups, size=rows), rng.standard_normal((rows, 3))
    effects = rng.standard_normal(groups)
    y = 2.0 + effects[group] + numbers @ [1.0, -0.5, 0.0] + 0.5 * rng.standard_normal(rows)

    indicators = scipy.sparse.csr_array((np.ones(rows), (np.arange(rows), group)), shape=(rows, groups))
    X = co.hstack(np.ones((rows, 1)), indicators, numbers)
    A = X.T @ X + ridge * co.Identity(groups + 4)
    beta, info = co.solve(A, X.T @ y, info=True)
    freedom = groups + 4 - ridge * float(co.trace(co.inv(A)))  # tr X (XᵀX + λI)⁻¹ Xᵀ
    print(
        f"{X}\ncoefficients {np.round(beta[-3:], 2)}, {freedom:.0f} degrees of freedom, {info.status.name}, residual {info.residual:.0e}"
    )

    loadings = rng.standard_normal((2000, 3))
    covariance = co.LowRank(loadings) + co.Diagonal(rng.uniform(0.5, 1.0, 2000))
    values, _ = co.eig(covariance, k=5, which="LA")
    density = -0.5 * (co.logdet(covariance) + 2000 * np.log(2 * np.pi))  # of its mean
    print(f"largest variances {np.round(values, 1)}, log density at the mean {density:.1f}")

    gallery.check("the coefficients are found", bool(np.allclose(beta[-3:], [1, -0.5, 0], atol=0.02)))
    gallery.check("three factors stand out", bool(values[-3] > 100 * values[-4]))
    with gallery.picture(options, size=(10, 4)) as figure:
        left, right = figure.subplots(1, 2)
        left.plot(effects, beta[1 : groups + 1] + beta[0] - 2, ".", markersize=3)
        left.set(xlabel="effect of a group", ylabel="estimate")
        right.bar(range(5), values[::-1])
        right.set(title="largest variances", yscale="log")
    return {"freedom": freedom, "slope": float(beta[-3])}


if __name__ == "__main__":
    main()
