"""A soap film by Newton's method, in which every linear system is a `Jacobian` that is never written down.

A soap film over a square hangs from its wire frame so that its area is least. Its height z(x, y) satisfies

    f(z) = (1 + z_x²) z_yy - 2 z_x z_y z_xy + (1 + z_y²) z_xx = 0

and Newton's method solves J s = -f(z), J = f'(z), again and again. `colinear.Jacobian(f, z)` is J as an operator: a product is one
forward derivative of f. It is not symmetric, so GMRES solves with it; near a flat film J is the Laplacian, whose inverse,
by sines, is the preconditioner. Scherk found a surface in 1834 whose equation is known, z = log(cos y / cos x): the frame is its
edge, and the film is compared with it.

Run it with `python examples/minimal_surface.py`; `--small` takes a few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gallery
import numpy as np
import torch

import colinear as co

WIDTH = 1.2  # the frame is the square |x|, |y| <= 1.2; Scherk's surface ends at π/2, where it becomes vertical
Tensor = torch.Tensor


def unbalanced(inner: Tensor, frame: Tensor, h: float) -> Tensor:
    """f(z) at the inner points, by second-order differences; z is the inner points inside the frame."""
    n = frame.shape[0] - 2
    z = torch.nn.functional.pad(inner.reshape(n, n), (1, 1, 1, 1)) + frame
    east, west, north, south = z[1:-1, 2:], z[1:-1, :-2], z[2:, 1:-1], z[:-2, 1:-1]
    here = z[1:-1, 1:-1]
    z_x, z_y = (east - west) / (2 * h), (north - south) / (2 * h)
    z_xx, z_yy = (east - 2 * here + west) / h**2, (north - 2 * here + south) / h**2
    z_xy = (z[2:, 2:] - z[2:, :-2] - z[:-2, 2:] + z[:-2, :-2]) / (4 * h**2)
    return ((1 + z_x**2) * z_yy - 2 * z_x * z_y * z_xy + (1 + z_y**2) * z_xx).reshape(-1)


def inverse_laplacian(n: int, h: float) -> co.LinearOperator:
    ones = torch.ones(n, dtype=torch.float64) / h**2
    T = co.SelfAdjoint(co.Tridiagonal(ones[1:], -2 * ones, ones[1:]))
    return co.inv(co.KroneckerSum(T, T))


@dataclass
class Film:
    height: np.ndarray
    error: float  # against Scherk's surface
    residuals: list[float]  # of each step
    products: int  # with the Jacobians of all steps


def film(n: int, report: bool = False) -> Film:
    """The film over n x n inner points."""
    x = torch.linspace(-WIDTH, WIDTH, n + 2, dtype=torch.float64)
    h = float(x[1] - x[0])
    scherk = torch.log(torch.cos(x)[:, None] / torch.cos(x))
    frame = scherk.clone()
    frame[1:-1, 1:-1] = 0
    M = inverse_laplacian(n, h)

    z, residuals, products = torch.zeros(n * n, dtype=torch.float64), [], 0
    while True:
        f = unbalanced(z, frame, h)
        residuals.append(float(f.abs().max()))
        if residuals[-1] < 1e-8 or len(residuals) > 30:
            break
        J = co.Jacobian(unbalanced, z, parameters=(frame, h))
        gmres = co.GMRES(tol=1e-3, preconditioner=M)  # a step need not be exact: the next one corrects it
        if report and len(residuals) == 1:
            print(f"The operator\n{J}\n\nWhat solve will do\n{co.explain(co.solve, J, -f, method=gmres)}\n")
        step, info = co.solve(J, -f, gmres, info=True)
        products += int(info.matvecs)
        z = z + step
    height = frame.clone()
    height[1:-1, 1:-1] = z.reshape(n, n)
    return Film(height.numpy(), float((height - scherk).abs().max()), residuals, products)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    options = gallery.options(__doc__, arguments)
    sizes = [15, 31] if options.small else [31, 63, 127]

    films = []
    for n in sizes:
        start = time.perf_counter()
        films.append(film(n, report=n == sizes[0]))
        steps, seconds = len(films[-1].residuals) - 1, time.perf_counter() - start
        print(
            f"  {n * n:>6,} unknowns {seconds:6.2f} s  {steps} steps of Newton, {films[-1].products} products with Jacobians",
            end="",
        )
        print(f"   residual {films[-1].residuals[-1]:.0e}   error {films[-1].error:.1e}")
    order = np.log2(films[-2].error / films[-1].error)

    print()
    gallery.check("the film is in balance: f(z) = 0", max(each.residuals[-1] for each in films) < 1e-8)
    gallery.check(f"it is Scherk's surface, to the square of the mesh width (order {order:.2f})", abs(order - 2) < 0.25)
    gallery.check(
        "a step of Newton takes less than twenty products, on any grid", films[-1].products < 20 * len(films[-1].residuals)
    )

    with gallery.picture(options, size=(11, 4.5)) as figure:
        draw(figure, sizes, films)
    return {"residual": films[-1].residuals[-1], "error": films[-1].error, "order": float(order)}


def draw(figure: Any, sizes: list[int], films: list[Film]) -> None:
    left, right = figure.add_subplot(1, 2, 1, projection="3d"), figure.add_subplot(1, 2, 2)
    x = np.linspace(-WIDTH, WIDTH, len(films[-1].height))
    left.plot_surface(*np.meshgrid(x, x), films[-1].height, cmap="viridis", rcount=60, ccount=60)
    left.set(title="a soap film in Scherk's frame", xlabel="x", ylabel="y", zlabel="z")
    left.view_init(elev=28, azim=-50)
    for n, each in zip(sizes, films, strict=True):
        right.semilogy(each.residuals, "o-", label=f"{n * n:,} unknowns, {each.products} products")
    right.set(title="Newton's method", xlabel="step", ylabel="largest |f(z)|")
    right.legend()


if __name__ == "__main__":
    main()
