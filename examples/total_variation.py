"""Images with sharp edges from noise and from few projections: total variation, by ADMM and by reweighted least squares.

An image of a few plain regions has a gradient that is zero almost everywhere. So we ask for an image with little gradient. With the gradient G,

    minimise  ½ |A x - y|² + λ Σ |(G x)_i|,    the sum over all pixels of the length of the gradient there.

Noise (A = I): the alternating direction method of multipliers (Boyd et al. 2011) splits z = G x and repeats

    x <- (I + ρ GᵀG)⁻¹ (y + ρ Gᵀ(z - u)),   z <- shrink(G x + u, λ/ρ),   u <- u + G x - z.

GᵀG is -Δ, which `signals.laplacian` makes as a Kronecker sum of two lines. So the inverse is made once, from the eigenvectors of the
lines, and a step costs two small products of matrices.

Projections (A = the Radon transform from a few angles, a sparse matrix): reweighted least squares replaces |g| by g² / |g of the last
step|. So each step is one positive definite system, AᵀA + λ Gᵀ W G. It is solved by conjugate gradients, which start from the last x.

Run it with `python examples/total_variation.py`; `--small` takes a second.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import gallery
import numpy as np

import colinear as co
from colinear import signals


def phantom(n: int) -> np.ndarray:
    """Ellipses of constant brightness."""
    y, x = np.mgrid[1 : -1 : n * 1j, -1 : 1 : n * 1j]
    image = np.zeros((n, n))
    ellipses = [(0, 0, 0.75, 0.9, 0.6), (0, 0, 0.68, 0.83, -0.3), (0.25, 0.1, 0.15, 0.35, 0.5), (-0.3, 0.2, 0.2, 0.25, 0.3)]
    for x0, y0, a, b, value in [*ellipses, (0.0, -0.5, 0.3, 0.1, 0.6)]:
        image[((x - x0) / a) ** 2 + ((y - y0) / b) ** 2 < 1] += value
    return image


def lengths(g: np.ndarray) -> np.ndarray:
    """The length of the gradient at each pixel; g has a derivative along each axis, one below the other."""
    return np.sqrt((g.reshape(2, -1) ** 2).sum(0))


def denoise(y: np.ndarray, strength: float, penalty: float, steps: int) -> np.ndarray:
    """½ |x - y|² + strength Σ |∇x| by ADMM."""
    G, L = signals.gradient(y.shape), signals.laplacian(y.shape, "reflect")
    inverse = co.inv(co.Identity(y.size) - penalty * L)
    z = u = np.zeros(G.shape[0])
    x = y.ravel()
    for _ in range(steps):
        x = inverse @ (y.ravel() + penalty * (G.T @ (z - u)))
        g = G @ x + u
        shrink = np.maximum(1 - strength / penalty / np.maximum(lengths(g), 1e-300), 0)
        z = np.tile(shrink, 2) * g
        u = g - z
    return x.reshape(y.shape)


def reconstruct(R: co.LinearOperator, p: np.ndarray, n: int, strength: float, steps: int) -> tuple[np.ndarray, int]:
    """½ |R x - p|² + strength Σ |∇x| by reweighted least squares: the image, and the products that this took."""
    G, x, products = signals.gradient((n, n)), np.zeros(n * n), 0
    for step in range(steps):
        # the first step has one weight everywhere; later ones end where the gradient is that small
        weights = np.full(n * n, 1.0) if step == 0 else 1 / np.maximum(lengths(G @ x), 1e-3)
        W = co.PD(co.Diagonal(strength * np.tile(weights, 2)))
        A = co.opaque(R.T @ R + G.T @ W @ G)  # one iteration for the whole, not one for each part
        x, info = co.solve(A, R.T @ p, co.CG(tol=1e-4, x0=x), info=True)
        products += int(info.matvecs)
    return x.reshape(n, n), products


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    options = gallery.options(__doc__, arguments)
    n, angles, rng = (48, 12, np.random.default_rng(0)) if options.small else (128, 20, np.random.default_rng(0))
    image = phantom(n)

    A = co.Identity(n * n) - 2.0 * signals.laplacian((n, n), "reflect")
    print(f"What a step of ADMM inverts\n{A}\n\nHow\n{co.explain(co.solve, A)}")
    noisy = image + 0.1 * rng.standard_normal(image.shape)
    start = time.perf_counter()
    clean = denoise(noisy, strength=0.12, penalty=1.0, steps=100)
    seconds = time.perf_counter() - start

    def error(x: np.ndarray) -> float:
        return float(np.linalg.norm(x - image) / np.linalg.norm(image))

    smooth = co.solve(co.Identity(n * n) - 1.0 * signals.laplacian((n, n), "reflect"), noisy.ravel()).reshape(n, n)
    print(f"\nNoise: {n * n:,} pixels, 100 steps of ADMM in {seconds:.2f} s; relative errors")
    for name, x in {"noisy": noisy, "smoothed, (I - Δ)⁻¹": smooth, "total variation": clean}.items():
        print(f"  {name:22} {error(x):.3f}")

    R = signals.radon((n, n), np.linspace(0, np.pi, angles, endpoint=False))
    p = R @ image.ravel()
    p = p + 0.005 * np.abs(p).max() * rng.standard_normal(p.shape)
    start = time.perf_counter()
    least = co.solve(co.opaque(R.T @ R + 0.1 * co.Identity(n * n)), R.T @ p, co.CG(tol=1e-4)).reshape(n, n)
    found, products = reconstruct(R, p, n, strength=0.3, steps=8 if options.small else 12)
    print(
        f"\nProjections: {angles} angles, {R.shape[0]:,} numbers for {n * n:,} pixels, {time.perf_counter() - start:.2f} s, {products} products"
    )
    for name, x in {"least squares": least, "total variation": found}.items():
        print(f"  {name:22} {error(x):.3f}")

    print()
    gallery.check("total variation removes noise better than smoothing", error(clean) < 0.7 * error(smooth))
    gallery.check("and finds the image from few projections", error(found) < 0.5 * error(least))

    with gallery.picture(options, size=(8, 5)) as figure:
        shown = {"the image": image, "with noise": noisy, "ADMM": clean, f"{angles} projections": p.reshape(angles, -1).T}
        shown |= {"least squares": least, "reweighted, total variation": found}
        for axes, (name, x) in zip(figure.subplots(2, 3).flat, shown.items(), strict=True):
            limits = {} if "projections" in name else {"vmin": -0.1, "vmax": 1.0}
            axes.imshow(x, cmap="gray", aspect="auto" if "projections" in name else "equal", **limits)
            axes.set(title=name, xticks=[], yticks=[])
    return {
        "noisy": error(noisy),
        "smoothed": error(smooth),
        "ADMM": error(clean),
        "least squares": error(least),
        "projections": error(found),
    }


if __name__ == "__main__":
    main()
