"""The bending of a plate: Δ²u = ρ on a grid of a million points, by the sines that the structure knows.

A plate that rests on its edges bends by u under a load ρ, where Δ²u = ρ inside and u = Δu = 0 on the edges. On a grid the
Laplacian is a Kronecker sum, L = T ⊕ T, T tridiagonal, and the plate is its square, A = L L: a condition number of κ(L)², out of
reach of an iteration that only multiplies by A. Structure helps twice. The inverse of a product is the product of the inverses, so
that an iteration meets κ(L) and not its square; this is figure 2 (b) of the paper. And T has constant diagonals: its eigenvectors
are sines, and the whole solve is two fast sine transforms.

Run it with `python examples/bi_poisson.py`; `--small` takes a second.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import gallery
import numpy as np

import colinear as co


def laplacian(n: int) -> co.LinearOperator:
    """-Δ by second differences at the n x n inner points of the unit square: nothing but three diagonals is stored."""
    c = float((n + 1) ** 2)
    T = co.PD(co.Tridiagonal(np.full(n - 1, -c), np.full(n, 2 * c), np.full(n - 1, -c)))
    return co.KroneckerSum(T, T)


def plate(n: int) -> tuple[np.ndarray, np.ndarray]:
    """The bending p(x) p(y), p = x⁴ - 2x³ + x, which is zero with its second derivative on the edges, and its load."""
    x = np.arange(1, n + 1) / (n + 1)
    p, second, fourth = x**4 - 2 * x**3 + x, 12 * x**2 - 12 * x, np.full(n, 24.0)
    load = np.outer(fourth, p) + 2 * np.outer(second, second) + np.outer(p, fourth)  # (∂xx + ∂yy)² p(x) p(y)
    return np.outer(p, p), load.ravel()


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    options = gallery.options(__doc__, arguments)
    sizes = [15, 31, 63, 127] if options.small else [31, 63, 127, 255, 511, 1023]

    L = laplacian(sizes[-1])
    print(f"The operator\n{L @ L}\n\nWhat solve will do\n{co.explain(co.solve, L @ L)}")

    # A residual |ρ - A u| / |ρ| of 1e-8, the default, is more than float64 can give where |A| |u| / |ρ| is 1e10: ask for less, and
    # look at the error. (Two solves, u = L^-1 (L^-1 ρ), would give the same u, and 1e-8 in each of them.)
    print("\nEver finer grids")
    errors, bent = [], np.empty(0)
    for n in sizes:
        L = laplacian(n)
        exact, load = plate(n)
        start = time.perf_counter()
        solution, info = co.solve(L @ L, load, co.Auto(tol=1e-4), info=True)
        bent = solution.reshape(n, n)
        errors.append(np.abs(bent - exact).max() / exact.max())
        print(
            f"  {n * n:>9,} unknowns {time.perf_counter() - start:7.3f} s   residual {info.residual.max():.0e}   error {errors[-1]:.1e}"
        )
    order = np.log2(errors[0] / errors[1])

    # The same by conjugate gradients. `opaque` hides structure: once that of the whole, once that of each factor alone, which
    # leaves the rule for products.
    n = 31 if options.small else 63
    L, load = laplacian(n), np.random.default_rng(0).standard_normal(n * n)
    ways = {"CG on L L": co.opaque(L @ L), "CG on L, twice": co.opaque(L) @ co.opaque(L), "sines": L @ L}
    print(f"\nProducts with L that a residual of 1e-6 takes, {n * n:,} unknowns, a random load")
    products = {}
    for way, hidden in ways.items():
        _, info = co.solve(hidden, load, co.CG(tol=1e-6), info=True)
        products[way] = int(info.matvecs or 0) * (2 if way == "CG on L L" else 1)
        rule = co.explain(co.solve, hidden, method=co.CG()).children[0].rule
        print(f"  {way:14} {products[way]:6}   {rule:24} {co.Status(int(info.status)).name}")

    print()
    gallery.check(f"the error falls with the square of the mesh width (order {order:.3f})", abs(order - 2) < 0.02)
    gallery.check(f"on the finest grid it is {errors[-1]:.1e}", errors[-1] < 0.6 * errors[-2])
    gallery.check(
        "two solves take fewer products than one with the square", 2 * products["CG on L, twice"] < products["CG on L L"]
    )

    with gallery.picture(options, size=(13, 4)) as figure:
        left, middle, right = figure.subplots(1, 3)
        image = left.contourf(bent, levels=20, cmap="viridis", extent=(0, 1, 0, 1))
        figure.colorbar(image, ax=left)
        left.set(title=f"bending of a plate, {bent.size:,} unknowns", aspect="equal")
        middle.loglog(sizes, errors, "o-", label="found")
        middle.loglog(sizes, errors[0] * (sizes[0] / np.array(sizes)) ** 2, "k:", label="second order")
        middle.set(title="error against the exact solution", xlabel="points along each side")
        middle.legend()
        bars = right.bar(
            list(products), [max(1, count) for count in products.values()], color=["tab:red", "tab:orange", "tab:blue"]
        )
        right.bar_label(bars, [f"{count:,}" for count in products.values()])
        right.set(title="products with L to a residual of 1e-6", yscale="log")
    return {"order": float(order), "error": float(errors[-1]), **{way: float(count) for way, count in products.items()}}


if __name__ == "__main__":
    main()
