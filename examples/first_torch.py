"""A first program in torch: learn the length scale of a Gaussian process by its likelihood.

The covariance is an operator. `solve` and `logdet` have derivatives with respect to all its parts, and the optimiser is torch's own.

Run it with `python examples/first_torch.py`; `--small` is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import gallery
import torch

import colinear as co
from colinear import gp


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    options = gallery.options(__doc__, arguments)
    torch.manual_seed(0)
    X = torch.linspace(0, 1, 120, dtype=torch.float64)[:, None]
    y = torch.sin(12 * X[:, 0]) + 0.1 * torch.randn(120, dtype=torch.float64)

    logs = torch.tensor([0.0, -1.0], dtype=torch.float64, requires_grad=True)  # of the length scale and of the noise
    optimiser = torch.optim.Adam([logs], lr=0.1)
    losses = []
    for _ in range(60):
        length, noise = logs.exp()
        K = co.PSD(gp.rbf(X, length=length)) + noise**2 * co.Identity(120)
        loss = 0.5 * (y @ co.solve(K, y) + co.logdet(K))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    length, noise = logs.detach().exp()
    print(f"length scale {length:.3f}, noise {noise:.3f} (0.1 was put in), likelihood {-losses[0]:.1f} -> {-losses[-1]:.1f}")

    K = co.PSD(gp.rbf(X, length=length)) + noise**2 * co.Identity(120)
    mean = gp.rbf(X, length=length) @ co.solve(K, y)
    gallery.check("the noise is found", abs(noise.item() - 0.1) < 0.03)
    with gallery.picture(options, size=(10, 4)) as figure:
        left, right = figure.subplots(1, 2)
        left.plot(X, y, ".", X, mean, "-")
        right.plot(losses)
        right.set(title="minus the log likelihood", xlabel="step")
    return {"length": length.item(), "noise": noise.item()}


if __name__ == "__main__":
    main()
