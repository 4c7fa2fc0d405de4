"""The spectrum of a network's Hessian, from products alone: its ends by Lanczos, its density by Lanczos quadrature.

The second derivative of the loss of a trained network says how sharp the minimum is and in how many directions. It is a matrix of
all weights by all weights, but a product with it costs two derivatives: `colinear.Hessian(loss, weights)` is that operator.

- Its ends: `eig(H, k, which="LA" or "SA", method=Lanczos())`.
- Its density, smeared out by a Gaussian g of width σ: φ(t) = tr g(H - t I) / n, where `apply(g, H, Krylov())` is the operator and
  `trace(..., SLQ())` estimates its trace by Lanczos runs from random vectors, with an error bar.
- What is in it: H = G + R with the Gauss-Newton matrix G, `colinear.GaussNewton`. Near a minimum the few large eigenvalues are
  those of G, and most of the others are nearly zero (Sagun et al., Empirical analysis of the Hessian of over-parametrized
  neural networks, 2018).

All of it is compared with the dense matrix, which is affordable for the network here: it sorts points on three spirals.

Run it with `python examples/hessian_spectrum.py`; `--small` takes a few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import gallery
import numpy as np
import torch

import colinear as co

Tensor = torch.Tensor
CLASSES = 3


def spirals(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Points on three arms, and the number of the arm; one in ten has a wrong number, so that no network sorts them all."""
    arm = torch.arange(count) % CLASSES
    radius = 0.1 + 0.9 * torch.rand(count, generator=generator, dtype=torch.float64)
    angle = 4 * radius + 2 * torch.pi * arm / CLASSES + 0.2 * torch.randn(count, generator=generator, dtype=torch.float64)
    wrong = torch.rand(count, generator=generator) < 0.1
    return torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], -1), torch.where(wrong, (arm + 1) % CLASSES, arm)


def shapes(width: int) -> list[tuple[int, int]]:
    return [(3, width), (width + 1, width), (width + 1, CLASSES)]  # one row is the bias


def scores(theta: Tensor, x: Tensor, width: int) -> Tensor:
    h = x
    for rows, columns in shapes(width):
        W, theta = theta[: rows * columns].reshape(rows, columns), theta[rows * columns :]
        h = torch.cat([h if rows == 3 else torch.tanh(h), torch.ones_like(h[:, :1])], -1) @ W
    return h


def loss(theta: Tensor, x: Tensor, arm: Tensor, width: int) -> Tensor:
    return torch.nn.functional.cross_entropy(scores(theta, x, width), arm)


def trained(x: Tensor, arm: Tensor, width: int, steps: int, generator: torch.Generator) -> Tensor:
    start = [torch.randn(rows * columns, generator=generator, dtype=torch.float64) / rows**0.5 for rows, columns in shapes(width)]
    theta = torch.cat(start).requires_grad_()
    optimizer = torch.optim.Adam([theta], lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(theta, x, arm, width).backward()
        optimizer.step()
    return theta.detach()


def bump(center: float, sigma: float) -> Callable[[Tensor], Tensor]:
    """The Gaussian of integral 1."""
    return lambda t: torch.exp(-0.5 * ((t - center) / sigma) ** 2) / (sigma * (2 * torch.pi) ** 0.5)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    options = gallery.options(__doc__, arguments)
    width, count, steps, places, probes = (8, 60, 100, 8, 8) if options.small else (40, 300, 400, 50, 10)
    generator = torch.Generator().manual_seed(0)
    x, arm = spirals(count, generator)
    theta = trained(x, arm, width, steps, generator)
    right = float((scores(theta, x, width).argmax(-1) == arm).double().mean())
    print(f"{theta.numel():,} weights, loss {float(loss(theta, x, arm, width)):.3f}, {100 * right:.0f} % sorted as told\n")

    H = co.Hessian(loss, theta, parameters=(x, arm, width))
    lanczos = co.Lanczos(tol=1e-6)
    print(f"The operator\n{H}\n\nWhat eig will do\n{co.explain(co.eig, H, k=10, which='LA', method=lanczos)}\n")
    start = time.perf_counter()
    (largest, _), top = co.eig(H, k=10, which="LA", method=lanczos, info=True)
    (smallest, _), bottom = co.eig(H, k=2, which="SA", method=lanczos, info=True)
    print(f"ends: {int(top.matvecs) + int(bottom.matvecs)} products, {time.perf_counter() - start:.1f} s; ", end="")
    print(f"from {float(smallest[0]):.3f} to {float(largest[-1]):.3f}")

    start = time.perf_counter()
    sigma = float(largest[-1]) / 40
    centers = np.linspace(float(smallest[0]) - 3 * sigma, float(largest[-1]) + 3 * sigma, places)
    density, errors = np.empty(places), np.empty(places)
    slq = co.SLQ(probes=probes)
    for i, center in enumerate(centers):
        value, info = co.trace(co.apply(bump(center, sigma), H, co.Krylov()), slq, info=True)
        density[i], errors[i] = float(value) / theta.numel(), float(info.error) / theta.numel()
    print(f"density: {time.perf_counter() - start:.1f} s")

    G = co.GaussNewton(lambda weights: scores(weights, x, width), lambda out: torch.nn.functional.cross_entropy(out, arm), theta)
    explained, _ = co.eig(G, k=10, which="LA", method=lanczos)

    start = time.perf_counter()
    dense = np.linalg.eigvalsh(H.to_dense().numpy())
    print(f"the dense matrix: {theta.numel():,} products, {time.perf_counter() - start:.1f} s\n")
    exact = np.array([bump(center, sigma)(torch.from_numpy(dense)).mean() for center in centers])
    ends = max(np.abs(largest.numpy() - dense[-10:]).max(), np.abs(smallest.numpy() - dense[:2]).max()) / dense[-1]
    inside = float(np.mean(np.abs(density - exact) <= 3 * errors + 1e-3 * exact.max()))
    share = float(np.abs(explained.numpy() - dense[-10:]).max() / dense[-1])

    gallery.check(f"the ends are those of the dense matrix, to {ends:.0e}", ends < 1e-6)
    gallery.check(f"{100 * inside:.0f} % of the density is within three error bars of the exact one", inside > 0.9)
    gallery.check(f"the ten largest eigenvalues are those of Gauss-Newton to {100 * share:.0f} % of the largest", share < 0.35)

    with gallery.picture(options, size=(14, 4)) as figure:
        left, middle, right_axis = figure.subplots(1, 3)
        draw_regions(left, theta, x, arm, width)
        middle.semilogy(centers, exact, "k", linewidth=4, alpha=0.25, label="dense matrix")
        middle.errorbar(centers, density, 2 * errors, color="tab:blue", linewidth=1, label="Lanczos quadrature")
        middle.plot(
            largest.numpy(), np.full(10, exact.max() * 1e-5), "|", color="tab:red", markersize=14, label="largest, by Lanczos"
        )
        middle.set(title="density of the eigenvalues", xlabel="eigenvalue", ylim=(exact.max() * 4e-6, None))
        middle.legend()
        right_axis.plot(np.arange(1, 11), largest.flip(0).numpy(), "o-", label="Hessian")
        right_axis.plot(np.arange(1, 11), explained.flip(0).numpy(), "x--", label="Gauss-Newton")
        right_axis.set(title="the ten largest", xlabel="number")
        right_axis.legend()
    return {
        "ends": float(ends),
        "inside": inside,
        "largest": float(largest[-1]),
        "smallest": float(smallest[0]),
        "Gauss-Newton": share,
    }


def draw_regions(axis: Any, theta: Tensor, x: Tensor, arm: Tensor, width: int) -> None:
    line = torch.linspace(-1.2, 1.2, 150, dtype=torch.float64)
    grid = torch.cartesian_prod(line, line)
    image = scores(theta, grid, width).argmax(-1).reshape(150, 150).T.numpy()
    axis.imshow(image, extent=(-1.2, 1.2, -1.2, 1.2), origin="lower", cmap="Set2", alpha=0.5, vmin=0, vmax=7)
    axis.scatter(*x.T.numpy(), c=arm.numpy(), cmap="Set2", vmin=0, vmax=7, s=12, edgecolors="black", linewidths=0.3)
    axis.set(title="what was learnt", xticks=[], yticks=[])


if __name__ == "__main__":
    main()
