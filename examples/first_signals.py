"""A first program in signal processing: deblur a signal of which only some samples arrived.

What arrived is R B x + noise, where B is a convolution and R a restriction to the samples that we have. We look for the smoothest x that explains it,
by one least-squares problem of operators.

Run it with `python examples/first_signals.py`; `--small` is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import gallery
import numpy as np

import colinear as co
from colinear import signals
from colinear.testing import check_operator


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    options = gallery.options(__doc__, arguments)
    rng, n = np.random.default_rng(0), 400
    t = np.arange(n)
    x = (
        np.exp(-(((t - 120) / 15) ** 2))
        + 0.7 * np.exp(-(((t - 160) / 10) ** 2))
        + (np.abs(t - 280) < 40) * np.sin(np.pi * (t - 240) / 80) ** 2
    )

    kernel = np.exp(-((np.arange(-20, 21) / 8.0) ** 2) / 2)
    B = co.Convolution(kernel / kernel.sum(), n, boundary="zero", centered=True)
    R = signals.restriction(n, np.sort(rng.choice(n, 200, replace=False)))
    A = R @ B
    check_operator(A)  # the adjoint is the adjoint: the dot test, and more
    y = A @ x + 0.002 * rng.standard_normal(200)

    D = signals.second_derivative(n, "reflect")
    found = co.lstsq(co.vstack(A, 0.1 * D), np.concatenate([y, np.zeros(n)]))
    error = float(np.linalg.norm(found - x) / np.linalg.norm(x))
    blurred = float(np.linalg.norm(B @ x - x) / np.linalg.norm(x))
    print(f"{A}\nfrom {len(y)} samples of {n}: relative error {error:.3f}, of the blurred signal {blurred:.3f}")
    gallery.check("it is sharper than what arrived", error < 0.5 * blurred)
    with gallery.picture(options, size=(10, 4)) as figure:
        axes = figure.subplots()
        axes.plot(t, x, "k", label="signal")
        axes.plot(R @ t.astype(float), y, ".", label="arrived")
        axes.plot(t, found, "--", label="found")
        axes.legend()
    return {"error": error}


if __name__ == "__main__":
    main()
