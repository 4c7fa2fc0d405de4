"""Train a network by its curvature: Gauss-Newton steps without a matrix, and a Kronecker-factored curvature, against Adam.

Newton's method needs the curvature of the loss, a matrix of all weights by all weights. There are two ways never to write it down.

Gauss-Newton: J is the Jacobian of the network's outputs, and H the second derivative of the loss by them. Then G = J^T H J is positive
semidefinite, and a product with it is one forward and one backward derivative. `colinear.GaussNewton` is that operator. A few steps of
conjugate gradients solve (G + λ I) s = -g.

Kronecker-factored (Martens & Grosse, Optimizing neural networks with Kronecker-factored approximate curvature, 2015): the block of a
layer is nearly B ⊗ A. A has the second moments of what goes into the layer, B those of the derivatives that come back to it. So the
curvature is K = diag(B_1 ⊗ A_1, B_2 ⊗ A_2, ...), and colinear inverts K + λ I by the eigenvectors of the small factors. G says
how far to go along s = -(K + λ I)^-1 g, and (K + λ I)^-1 is a preconditioner for Gauss-Newton.

The network squeezes curves through three numbers and draws them again: small, but slow for gradients alone.

Run it with `python examples/second_order.py`; `--small` takes a few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import gallery
import numpy as np
import torch

import colinear as co

Tensor = torch.Tensor
SIZES = (24, 20, 3, 20, 24)
SHAPES = [(outputs, inputs + 1) for inputs, outputs in pairwise(SIZES)]  # the last column is the bias


def curves(count: int, generator: torch.Generator) -> Tensor:
    """Waves of random phase, frequency and height at 24 points: three numbers make each of them."""
    phase, frequency, height = torch.rand(3, count, 1, generator=generator, dtype=torch.float64)
    t = torch.linspace(0, 1, SIZES[0], dtype=torch.float64)
    return (0.5 + height) * torch.sin(2 * torch.pi * (0.5 + frequency) * t + 3 * phase)


def layers(theta: Tensor) -> list[Tensor]:
    parts = theta.split([rows * columns for rows, columns in SHAPES])
    return [part.reshape(shape) for part, shape in zip(parts, SHAPES, strict=True)]


def with_one(a: Tensor) -> Tensor:
    return torch.cat([a, torch.ones_like(a[:, :1])], -1)


def outputs(theta: Tensor, x: Tensor) -> Tensor:
    a = x
    for i, W in enumerate(layers(theta)):
        a = with_one(torch.tanh(a) if i else a) @ W.T
    return a.reshape(-1)


def misfit(drawn: Tensor, x: Tensor) -> Tensor:
    return 0.5 * (drawn - x.reshape(-1)).square().sum() / len(x)


def loss(theta: Tensor, x: Tensor) -> Tensor:
    return misfit(outputs(theta, x), x)


gradient = torch.func.grad(loss)


def gauss_newton_of(theta: Tensor, x: Tensor) -> co.LinearOperator:
    return co.GaussNewton(lambda theta: outputs(theta, x), lambda drawn: misfit(drawn, x), theta)


def kronecker_of(theta: Tensor, x: Tensor, generator: torch.Generator) -> co.LinearOperator:
    """diag(B_1 ⊗ A_1, ...), B from one random draw of the outputs for each example: its mean is the Gauss-Newton block."""
    inputs, sums, a = [], [], x
    for i, W in enumerate(layers(theta)):
        inputs.append(with_one(torch.tanh(a) if i else a))
        a = (inputs[-1] @ W.T).requires_grad_()
        sums.append(a)
    noise = torch.randn(a.shape, generator=generator, dtype=a.dtype)
    back = torch.autograd.grad((noise * a).sum(), sums)
    moments = [[co.PSD((v.T @ v / len(x)).detach()) for v in pair] for pair in zip(back, inputs, strict=True)]
    return co.BlockDiag(*(co.Kronecker(B, A) for B, A in moments))


# ------------------------------------------------------------------ four ways to train: each yields its weights after each step


def descent(theta: Tensor, x: Tensor) -> Iterator[Tensor]:
    while True:
        theta = theta - 0.01 * gradient(theta, x)
        yield theta


def adam(theta: Tensor, x: Tensor) -> Iterator[Tensor]:
    theta = theta.clone().requires_grad_()
    optimizer = torch.optim.Adam([theta], lr=1e-2)
    while True:
        optimizer.zero_grad()
        loss(theta, x).backward()
        optimizer.step()
        yield theta.detach()


def gauss_newton(theta: Tensor, x: Tensor) -> Iterator[Tensor]:
    damping, generator = 1.0, torch.Generator().manual_seed(1)
    while True:
        I = damping * co.Identity(theta.numel())
        G = co.PSD(gauss_newton_of(theta, x) + I)
        M = co.inv(kronecker_of(theta, x, generator) + I)
        # Fifty iterations are enough for a step, converged or not: with `info=True` nobody is warned.
        step, _ = co.solve(G, -gradient(theta, x), co.CG(tol=1e-2, max_iters=50, preconditioner=M), info=True)
        if loss(theta + step, x) < loss(theta, x):
            theta, damping = theta + step, max(damping / 3, 1e-6)
        else:
            damping *= 4
        yield theta


def kronecker_factored(theta: Tensor, x: Tensor) -> Iterator[Tensor]:
    damping, generator = 0.1, torch.Generator().manual_seed(1)
    while True:
        g = gradient(theta, x)
        K = kronecker_of(theta, x, generator)
        step = -co.solve(K + damping * co.Identity(theta.numel()), g)
        curvature = step @ (gauss_newton_of(theta, x) @ step) + damping * step @ step
        step = -(g @ step) / curvature * step  # the length that minimises the quadratic model
        if loss(theta + step, x) < loss(theta, x):
            theta, damping = theta + step, max(damping / 1.5, 1e-6)
        else:
            damping *= 3
        yield theta


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    options = gallery.options(__doc__, arguments)
    generator = torch.Generator().manual_seed(0)
    x = curves(60 if options.small else 300, generator)
    start = [torch.randn(shape, generator=generator, dtype=torch.float64) / shape[1] ** 0.5 for shape in SHAPES]
    theta = torch.cat([W.reshape(-1) for W in start])

    n = theta.numel()
    damped = kronecker_of(theta, x, generator) + 0.1 * co.Identity(n)
    gradient(theta, x), gauss_newton_of(theta, x) @ theta  # torch compiles some things on first use: not on the clock
    print(f"Gauss-Newton\n{gauss_newton_of(theta, x)}\n\nKronecker-factored\n{damped}")
    print(f"\nWhat solve will do with the second\n{co.explain(co.solve, damped)}\n")

    ways: dict[str, tuple[Callable[[Tensor, Tensor], Iterator[Tensor]], int]] = {
        "gradient descent": (descent, 60 if options.small else 2000),
        "Adam": (adam, 60 if options.small else 2000),
        "Kronecker-factored": (kronecker_factored, 15 if options.small else 400),
        "Gauss-Newton": (gauss_newton, 6 if options.small else 60),
    }
    runs: dict[str, np.ndarray] = {}
    for name, (way, steps) in ways.items():
        began, track = time.perf_counter(), [(0.0, float(loss(theta, x)))]
        for _, weights in zip(range(steps), way(theta, x), strict=False):
            track.append((time.perf_counter() - began, float(loss(weights, x))))
        runs[name] = np.array(track)
        print(f"  {name:20} {steps:5} steps {track[-1][0]:6.1f} s   loss {track[-1][1]:.1e}")
    final = {name: float(run[-1, 1]) for name, run in runs.items()}

    print()
    first_order = min(final["gradient descent"], final["Adam"])
    gallery.check("curvature from Kronecker products beats Adam, in fewer steps", final["Kronecker-factored"] < first_order)
    gallery.check("so do Gauss-Newton steps by conjugate gradients", final["Gauss-Newton"] < first_order)

    with gallery.picture(options, size=(12, 4)) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        for name, run in runs.items():
            left.loglog(np.arange(1, len(run) + 1), run[:, 1], label=name)
            right.semilogy(run[:, 0], run[:, 1], label=name)
        left.set(title=f"training {n:,} weights", xlabel="step", ylabel="loss")
        right.set(title="the same by time", xlabel="seconds")
        left.legend()
    return final


if __name__ == "__main__":
    main()
