"""A first program in JAX: find how well a rod conducts heat, from its temperature, by gradients through `solve`.

The temperature u of a rod with the conductivity k(x) and a constant source satisfies -(k u')' = 1: a tridiagonal system. Given u with noise,
we look for a smooth log k. The operator is a pytree, so the loss is a function like any other: `jax.grad` differentiates it, `jax.jit`
compiles it, and `jax.vmap` fits many sets of data at once, which shows how far noise moves the answer (not the bias
of the smoothing).

Run it with `python examples/first_jax.py`; `--small` is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import gallery
import jax
import jax.numpy as jnp
import numpy as np

import colinear as co

CELLS = 40


def temperature(log_k: jax.Array) -> jax.Array:
    """Solve -(k u')' = 1 on [0, 1] with u = 0 at both ends; k belongs to the cells between the points."""
    k = jnp.exp(log_k) * CELLS**2
    A = co.PD(co.Tridiagonal(-k[1:-1], k[:-1] + k[1:], -k[1:-1]))
    return co.solve(A, jnp.ones(CELLS - 1, k.dtype))


def fit(data: jax.Array, steps: int = 400, rate: float = 0.02) -> jax.Array:
    """Minimise the misfit and the roughness of log k by Adam's steps (Kingma and Ba 2015)."""

    def loss(log_k: jax.Array) -> jax.Array:
        misfit = (temperature(log_k) - data) / 1e-3
        return jnp.sum(misfit**2) + 20 * jnp.sum(jnp.diff(log_k) ** 2)

    def step(state: tuple, i: jax.Array) -> tuple:
        log_k, m, v = state
        g = jax.grad(loss)(log_k)
        m, v = 0.9 * m + 0.1 * g, 0.99 * v + 0.01 * g**2
        move = m / (1 - 0.9 ** (i + 1)) / (jnp.sqrt(v / (1 - 0.99 ** (i + 1))) + 1e-8)
        return (log_k - rate * move, m, v), None

    start = jnp.zeros(CELLS, data.dtype)
    (log_k, _, _), _ = jax.lax.scan(step, (start, start, start), jnp.arange(steps))
    return log_k


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    options = gallery.options(__doc__, arguments)
    x = (np.arange(CELLS) + 0.5) / CELLS
    true = jnp.asarray(0.8 * np.sin(2 * np.pi * x))
    noise = 1e-3 * np.random.default_rng(0).standard_normal((16, CELLS - 1))
    data = temperature(true) + jnp.asarray(noise, true.dtype)

    found = jax.jit(jax.vmap(fit))(data)  # 16 fits in one compiled program
    mean, spread = found.mean(0), found.std(0)
    error = float(jnp.abs(mean - true).max())
    print(f"16 fits of {CELLS} unknowns: largest error of the mean of log k {error:.2f}, mean spread {float(spread.mean()):.2f}")
    print(co.explain(co.solve, co.PD(co.Tridiagonal(-jnp.ones(38), 2 * jnp.ones(39), -jnp.ones(38)))))

    gallery.check("the conductivity is found", error < 0.3)
    with gallery.picture(options, size=(10, 4)) as figure:
        left, right = figure.subplots(1, 2)
        points = np.arange(1, CELLS) / CELLS
        left.plot(points, np.asarray(data).T, ".", color="0.7", markersize=2)
        left.plot(points, np.asarray(temperature(mean)))
        left.set(title="temperature", xlabel="x")
        right.plot(x, np.asarray(true), "k--", label="true")
        right.plot(x, np.asarray(mean), label="found")
        right.fill_between(x, np.asarray(mean - 2 * spread), np.asarray(mean + 2 * spread), alpha=0.3)
        right.set(title="log of the conductivity", xlabel="x")
        right.legend()
    return {"error": error, "spread": float(spread.mean())}


if __name__ == "__main__":
    main()
