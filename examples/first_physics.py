"""A first program in physics: heat flows on a plate, and the lowest tones of a drum.

The Laplacian of a square is a Kronecker sum of two lines. So a step in time, (I - τΔ) u = u₀, and the exact flow, exp(tΔ) u₀, are computed by
sine transforms. The tones are sums of those of two strings.

Run it with `python examples/first_physics.py`; `--small` is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import gallery
import numpy as np

import colinear as co
from colinear import signals


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    options = gallery.options(__doc__, arguments)
    n = 99
    L = signals.laplacian((n, n), boundary="zero", spacing=1 / (n + 1))
    hot = np.zeros((n, n))
    hot[30:50, 20:40] = 1.0

    one_step = co.solve(co.Identity(n * n) - 0.001 * L, hot.ravel())
    exact = co.exp(0.001 * L) @ hot.ravel()
    print(co.explain(co.solve, co.Identity(n * n) - 0.001 * L))

    tones, modes = co.eig(-L, k=4, which="SA")
    theory = np.pi**2 * np.array([2, 5, 5, 8])
    print("lowest tones ", np.round(np.sqrt(tones), 3), "\nof a membrane", np.round(np.sqrt(theory), 3))
    gallery.check("the tones are those of a square membrane", bool(np.allclose(tones, theory, rtol=1e-2)))
    gallery.check("heat only spreads", bool(0 < exact.sum() < hot.sum() and exact.max() < 1))

    with gallery.picture(options, size=(12, 4)) as figure:
        shown = {"at first": hot, "one implicit step": one_step, "exp(tΔ)": exact, "the fourth tone": (modes @ np.eye(4)[:, 3])}
        for axes, (name, u) in zip(figure.subplots(1, 4), shown.items(), strict=True):
            axes.imshow(u.reshape(n, n), origin="lower", extent=(0, 1, 0, 1))
            axes.set(title=name, xticks=[], yticks=[])
    return {"lowest": float(tones[0]), "heat": float(exact.sum() / hot.sum())}


if __name__ == "__main__":
    main()
