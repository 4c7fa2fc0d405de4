"""The hydrogen atom: five energies of a nonsymmetric operator with structure, on all of space.

Schrödinger's equation of the electron, in atomic units, is H ψ = E ψ with H = -Δ/2 - 1/r. Space has no end, so each coordinate is
made finite, x = 2 tan(π s / 2) with s in (-1, 1), as in the paper: then d²/dx² = g d/ds (g d/ds), g = ds/dx, and its differences on
a grid of s are a tridiagonal matrix T that is not symmetric. In three dimensions H = (T ⊕ T ⊕ T) + diag(V): n³ unknowns, of which
only T and V are stored.

The lowest energies lie at the edge of a wide spectrum, where an iteration with H needs very many steps. So it runs on (H - σ)^-1,
which is an operator as well: each product with it is a run of GMRES, preconditioned by (T ⊕ T ⊕ T - σ)^-1, which the
eigenvectors of T give. The exact energies are -1/2, and -1/8 four times. A cube is no sphere: on the grid, the three 2p
states keep one energy, that of 2s is a little off it, and both tend to -1/8.

Run it with `python examples/hydrogen_atom.py`; `--small` takes a few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import gallery
import numpy as np

import colinear as co

SCALE = 2.0  # half of the points of a line lie within this distance of the nucleus
SHIFT = -0.6  # below the ground state


def points(s: np.ndarray) -> np.ndarray:
    return SCALE * np.tan(np.pi / 2 * s)


def slope(s: np.ndarray) -> np.ndarray:
    """g = ds/dx at s."""
    return 2 / (np.pi * SCALE) * np.cos(np.pi / 2 * s) ** 2


def kinetic(n: int) -> co.LinearOperator:
    """-1/2 g d/ds (g d/ds) in three dimensions, ψ being zero at infinity: the points are s_1 ... s_n, fluxes are taken between them."""
    s = np.linspace(-1, 1, n + 2)
    g, flux = slope(s[1:-1]) / 2 / (s[1] - s[0]) ** 2, slope((s[1:] + s[:-1]) / 2)
    T = co.Tridiagonal(-g[1:] * flux[1:-1], g * (flux[:-1] + flux[1:]), -g[:-1] * flux[1:-1])
    return co.KroneckerSum(T, T, T)


def atom(n: int, report: bool) -> tuple[np.ndarray, np.ndarray]:
    """The five lowest energies, ascending, and their states, (n, n, n, 5); n is even, so that no point is at the nucleus."""
    x = points(np.linspace(-1, 1, n + 2)[1:-1])
    V = -1 / np.sqrt(x[:, None, None] ** 2 + x[:, None] ** 2 + x**2)
    K, I = kinetic(n), co.Identity(n**3)
    H = K + co.Diagonal(V.ravel())
    M = co.inv(K - SHIFT * I)
    resolvent = co.inv(H - SHIFT * I, co.GMRES(tol=1e-7, preconditioner=M))
    arnoldi = co.Arnoldi(tol=1e-6)
    if report:
        print(f"The operator\n{H}\n\nWhat its preconditioner is\n{co.explain(co.inv, K - SHIFT * I)}")
        print(f"\nWhat eig will do\n{co.explain(co.eig, resolvent, k=5, method=arnoldi)}\n")
    (values, vectors), info = co.eig(resolvent, k=5, which="LM", method=arnoldi, info=True)
    gallery.check(f"n = {n}: Arnoldi converged, with {info.matvecs} products with the inverse", bool(np.all(info.converged)))
    energies, states = SHIFT + 1 / values, vectors.to_dense()
    gallery.check("energies are real, though H is not symmetric", bool(np.abs(energies.imag).max() < 1e-6))
    order = np.argsort(energies.real)
    return energies.real[order], states[:, order].reshape(n, n, n, 5)


def orbitals(states: np.ndarray) -> dict[str, np.ndarray]:
    """|ψ| in the plane next to z = 0; of the 2p states, which any basis of their space may be, the one along x."""
    n = len(states)
    x = points(np.linspace(-1, 1, n + 2)[1:-1])
    flat = states.reshape(n**3, 5)
    along = (x[:, None, None] * states[..., 0]).reshape(n**3, 1)  # x ψ_1s, which has the symmetry of 2p along x
    p = flat[:, 1:4] @ np.linalg.lstsq(flat[:, 1:4], along, rcond=None)[0]
    # With a phase that makes them real; and four states of one energy are known up to a mixture, except by symmetry.
    found = {"1s": flat[:, 0], "2s": flat[:, 4], "2p": p[:, 0]}
    found = {name: np.real(psi / psi[np.abs(psi).argmax()]) for name, psi in found.items()}
    return {name: psi.reshape(n, n, n)[:, :, n // 2] for name, psi in found.items()}


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    options = gallery.options(__doc__, arguments)
    sizes = [16, 22] if options.small else [16, 24, 32, 40]

    found, states = [], np.empty(0)
    for n in sizes:
        start = time.perf_counter()
        energies, states = atom(n, report=n == sizes[0])
        found.append(energies)
        print(f"  {n**3:>7,} unknowns {time.perf_counter() - start:6.2f} s   energies {np.round(energies, 5)}")
    # The error is that of second differences: E(h) = E + c h². Two grids give E.
    table = np.array(found)
    ratio = ((sizes[-1] + 1) / (sizes[-2] + 1)) ** 2
    limit = table[-1] + (table[-1] - table[-2]) / (ratio - 1)
    print(f"  in the limit of fine grids      energies {np.round(limit, 5)}\n")

    loose = 3 if options.small else 1
    gallery.check(f"the ground state is -1/2 (found {limit[0]:.5f})", abs(limit[0] + 1 / 2) < 5e-4 * loose)
    gallery.check(f"2p is -1/8 (found {limit[2]:.5f})", abs(limit[2] + 1 / 8) < 3e-4 * loose)
    gallery.check(f"2s is -1/8 (found {limit[4]:.5f})", abs(limit[4] + 1 / 8) < 5e-4 * loose)
    gallery.check("2p has three states of one energy on any grid", bool(np.ptp(table[:, 1:4], axis=1).max() < 1e-6))

    with gallery.picture(options, size=(15, 4)) as figure:
        draw(figure, sizes, table, orbitals(states))
    return {"1s": float(limit[0]), "2p": float(limit[2]), "2s": float(limit[4]), "spread of 2p": float(np.ptp(table[-1, 1:4]))}


def draw(figure: Any, sizes: list[int], table: np.ndarray, planes: dict[str, np.ndarray]) -> None:
    axes = figure.subplots(1, 4)
    x = points(np.linspace(-1, 1, sizes[-1] + 2)[1:-1])
    for axis, (name, psi) in zip(axes, planes.items(), strict=False):
        axis.contourf(x, x, psi.T, levels=np.linspace(-1, 1, 42), cmap="RdBu_r")
        reach = 4 if name == "1s" else 12
        axis.set(title=f"{name}, next to z = 0", xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xlabel="x (Bohr)")
    h = 1 / (np.array(sizes) + 1) ** 2
    for column, name in ((0, "1s"), (2, "2p"), (4, "2s")):
        exact = -1 / 2 if name == "1s" else -1 / 8
        axes[3].plot(h, 100 * (table[:, column] / exact - 1), "o-", label=f"{name}: {exact}")
    axes[3].axhline(0, color="black", linewidth=0.5)
    axes[3].set(title="error of the energies, percent", xlabel="(mesh width)², relative", xlim=(0, None))
    axes[3].legend()


if __name__ == "__main__":
    main()
