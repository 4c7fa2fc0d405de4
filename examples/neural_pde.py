"""A wave that lives in the weights of a network: every step in time is a linear system with a Jacobian's Gram matrix.

Neural-IVP (Finzi et al., A stable and scalable method for solving initial value problems with neural networks, 2023) writes the
solution of a differential equation as a network, u(x, t) = N(x, θ(t)), and moves its weights such that the equation holds as well
as it can at many points x_i. With J the Jacobian of all values N(x_i, θ) by θ, and f the right side of the equation there,

    θ' = argmin |J θ' - f|² + λ |θ'|²,   so   (M + λ I) θ' = J^T f,   M = J^T J = the sum of M_i over the points,

a system that is never written down: a product with M is one forward and one backward derivative of the network. M is
close to singular, with eigenvalues that fall fast, so a preconditioner of low rank (Nyström) does most of the work.

Here: u_tt = u_xx + u_yy on a square without edges (periodic), as u' = v, v' = Δu; a network with the two outputs u and v, first
fitted to the wave at t = 0 by the same systems (Gauss-Newton), and compared with the exact solution by Fourier series.

Run it with `python examples/neural_pde.py`; `--small` takes a few seconds.
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


def network(theta: Tensor, x: Tensor, width: int) -> Tensor:
    """u and v at points (m, 2): two hidden layers on sin x and cos x, so that all is periodic. theta holds all weights."""
    h = torch.cat([torch.sin(x), torch.cos(x)], -1)
    for inputs, outputs in shapes(width):
        W, b, theta = theta[: inputs * outputs], theta[inputs * outputs :][:outputs], theta[(inputs + 1) * outputs :]
        h = (h if h.shape[-1] == 4 else torch.tanh(h)) @ W.reshape(inputs, outputs) + b
    return h


def shapes(width: int) -> list[tuple[int, int]]:
    return [(4, width), (width, width), (width, 2)]


def values(theta: Tensor, x: Tensor, width: int) -> Tensor:
    """All u, then all v."""
    return network(theta, x, width).T.reshape(-1)


def right_side(theta: Tensor, x: Tensor, width: int) -> Tensor:
    """(v, Δu) at the points, by derivatives of the network in x."""

    def along(direction: Tensor, f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda x: torch.func.jvp(f, (x,), (direction.expand_as(x),))[1]

    def u(x: Tensor) -> Tensor:
        return network(theta, x, width)[:, 0]

    laplacian = sum(along(e, along(e, u))(x) for e in torch.eye(2, dtype=x.dtype))
    return torch.cat([network(theta, x, width)[:, 1], laplacian])  # type: ignore[list-item]


def best_change(theta: Tensor, wanted: Tensor, x: Tensor, width: int, damping: float, method: Any) -> tuple[Tensor, co.Info]:
    """The change of the weights that changes the values of the network as is wanted, nearly."""
    J = co.Jacobian(values, theta, parameters=(x, width))
    return co.solve(J.T @ J + damping * co.Identity(theta.numel()), J.T @ wanted, method, info=True)


def fitted(theta: Tensor, target: Tensor, x: Tensor, width: int, steps: int, method: Any) -> Tensor:
    """Gauss-Newton steps, with more damping after one that failed and less after one that did not."""
    damping, loss = 10.0, torch.inf
    for _ in range(steps):
        missing = target - values(theta, x, width)
        change, _ = best_change(theta, missing, x, width, damping, method)
        new = float((target - values(theta + change, x, width)).square().mean())
        theta, loss, damping = (theta + change, new, max(damping / 3, 1e-5)) if new < loss else (theta, loss, 4 * damping)
    return theta


def exact(u: np.ndarray, v: np.ndarray, t: float) -> np.ndarray:
    """The wave at time t, on the grid: each Fourier mode of frequency |k| is a pendulum."""
    k = np.hypot(*np.meshgrid(*[np.fft.fftfreq(len(u), 1 / len(u))] * 2))
    return np.fft.ifft2(np.fft.fft2(u) * np.cos(k * t) + np.fft.fft2(v) * t * np.sinc(k * t / np.pi)).real


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    options = gallery.options(__doc__, arguments)
    width, points, rank, steps, end = (12, 12, 80, 12, 0.2) if options.small else (24, 20, 120, 40, 2.0)
    damping, dt = 4e-4, 0.1
    solver = co.CG(tol=1e-4, preconditioner=co.Nystrom(rank))

    line = torch.arange(points, dtype=torch.float64) * 2 * torch.pi / points
    x = torch.cartesian_prod(line, line)
    u0 = torch.exp(1.5 * (torch.cos(x - torch.pi).sum(-1) - 2))  # a hill ...
    v0 = 1.5 * torch.sin(x[:, 0] - torch.pi) * u0  # ... on its way to the right
    u_grid, v_grid = (w.reshape(points, points).numpy() for w in (u0, v0))

    generator = torch.Generator().manual_seed(0)
    theta = torch.cat([torch.randn((a + 1) * b, generator=generator, dtype=torch.float64) / a**0.5 for a, b in shapes(width)])
    J = co.Jacobian(values, theta, parameters=(x, width))
    A = J.T @ J + damping * co.Identity(theta.numel())
    print(f"The operator\n{A}\n\nWhat solve will do\n{co.explain(co.solve, A, method=solver)}\n")

    start = time.perf_counter()
    theta = fitted(theta, torch.cat([u0, v0]), x, width, steps, solver)
    miss = float((values(theta, x, width)[: len(x)] - u0).norm() / u0.norm())
    print(f"{theta.numel()} weights fitted at {len(x)} points in {time.perf_counter() - start:.1f} s: error {miss:.1e}")

    def slope(theta: Tensor) -> Tensor:
        change, info = best_change(theta, right_side(theta, x, width), x, width, damping, solver)
        iterations.append(int(info.iterations))
        return change

    def height(theta: Tensor) -> np.ndarray:
        return values(theta, x, width)[: len(x)].reshape(points, points).numpy()

    start, iterations, t, times, errors, shots = time.perf_counter(), [], 0.0, [0.0], [miss], [(0.0, height(theta), u_grid)]
    while t < end - dt / 2:  # Runge and Kutta's classical step
        k1 = slope(theta)
        k2 = slope(theta + dt / 2 * k1)
        k3 = slope(theta + dt / 2 * k2)
        k4 = slope(theta + dt * k3)
        theta, t = theta + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4), t + dt
        found, truth = height(theta), exact(u_grid, v_grid, t)
        times.append(t)
        errors.append(float(np.linalg.norm(found - truth) / np.linalg.norm(u_grid)))
        shots.append((t, found, truth))
    mean = float(np.mean(iterations))
    print(f"{len(iterations)} systems in {time.perf_counter() - start:.1f} s, {mean:.0f} iterations each")
    print(f"error at t = {t:.1f}: {errors[-1]:.1e} of the wave")

    # One system with and without the preconditioner.
    plain = co.CG(tol=1e-4, max_iters=1000)
    histories = {name: best_change(theta, right_side(theta, x, width), x, width, damping, way)[1].history
                 for name, way in (("CG", plain), (f"with Nyström, rank {rank}", solver))}  # fmt: skip
    counts = [len(history) - 1 for history in histories.values()]
    print(f"one system: {counts[0]} iterations of CG, {counts[1]} with the preconditioner\n")

    gallery.check("the network follows the wave", errors[-1] < (0.1 if options.small else 0.01))
    gallery.check("the preconditioner saves most iterations", 3 * counts[1] < counts[0])

    with gallery.picture(options, size=(15, 3.6)) as figure:
        axes = figure.subplots(1, 5)
        for axis, (when, found, truth) in zip(axes, [shots[round(i * (len(shots) - 1) / 2)] for i in range(3)], strict=False):
            axis.contourf(found.T, levels=np.linspace(-0.35, 1, 28), cmap="RdBu_r", vmin=-1, vmax=1, extend="both")
            axis.contour(truth.T, levels=[-0.1, 0.1, 0.3, 0.5, 0.7], colors="black", linewidths=0.7)
            axis.set(title=f"t = {when:.1f}", xticks=[], yticks=[], aspect="equal")
        axes[0].set_xlabel("network in colour, exact as lines")
        axes[3].plot(times, errors, "o-")
        axes[3].set(title="error, relative", xlabel="t", ylim=(0, None))
        for name, history in histories.items():
            axes[4].semilogy(np.asarray(history).reshape(-1), label=name)
        axes[4].set(title="residual of one system", xlabel="iteration")
        axes[4].legend()
    return {"fit": miss, "error": errors[-1], "iterations": mean, "iterations of CG alone": float(counts[0])}


if __name__ == "__main__":
    main()
