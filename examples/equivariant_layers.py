"""Layers of a network on graphs that do not depend on how the nodes are numbered: a null space, found by structure.

A graph of five nodes gives numbers (tensors of rank 0), features of nodes (rank 1) and of pairs of nodes (rank 2). A renumbering g
acts on rank k by P_g ⊗ ... ⊗ P_g. A linear layer W from rank k to rank l must commute with it: (P_g ⊗ ...) W = W (P_g ⊗ ...) for all g. It
is enough to ask this of two renumberings that generate all others, a swap and a cycle, and written for vec(W) it is

    C vec(W) = 0,     C = [ swap ⊗ ... ⊗ swap - I ]        (k + l factors),
                          [ cycle ⊗ ... ⊗ cycle - I ]

whose null space holds all such layers (Finzi et al., A practical method for constructing equivariant multilayer perceptrons, 2021).
Group theory knows how many there are: the Bell number of k + l, the ways to partition the indices into groups of equal ones. A
whole layer, with several channels of each rank, has a block of C for each pair of channels.

Run it with `python examples/equivariant_layers.py`; `--small` takes a second.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import comb

import gallery
import numpy as np

import colinear as co

NODES = 5
SWAP = co.Permutation([1, 0, 2, 3, 4])
CYCLE = co.Permutation([1, 2, 3, 4, 0])


def action(g: co.LinearOperator, rank: int) -> co.LinearOperator:
    """What a renumbering does to a tensor of this rank."""
    return co.Kronecker(*[g] * rank) if rank else co.Identity(1)


def constraint(k: int, l: int, generators: Sequence[co.LinearOperator] = (SWAP, CYCLE)) -> co.LinearOperator:
    """C, which is zero times the equivariant layers from rank k to rank l."""
    return co.vstack(*(action(g, k + l) - co.Identity(NODES ** (k + l)) for g in generators))


def bell(n: int) -> int:
    """The ways to partition n things."""
    return 1 if n == 0 else sum(comb(n - 1, k) * bell(k) for k in range(n))


def sharing(k: int, l: int) -> np.ndarray:
    """Which weights of a layer are one and the same: rows of the basis that are equal. Numbered from 0."""
    basis = co.nullspace(constraint(k, l)).to_dense().round(10)
    return np.unique(basis, axis=0, return_inverse=True)[1].reshape(NODES**l, NODES**k)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    options = gallery.options(__doc__, arguments)
    highest, channels = (4, (2, 2, 1)) if options.small else (5, (16, 12, 6))
    print(f"The constraints on layers from pairs to pairs\n{constraint(2, 2)}")
    print(f"\nWhat nullspace will do\n{co.explain(co.nullspace, constraint(2, 2))}\n")

    for rank in range(highest + 1):
        start = time.perf_counter()
        basis = co.nullspace(constraint(rank, 0))
        seconds = time.perf_counter() - start
        claim = f"rank {rank}: {basis.shape[-1]:3} equivariant layers, the Bell number; {NODES**rank:5} unknowns, {1e3 * seconds:.1f} ms"
        gallery.check(claim, basis.shape[-1] == bell(rank))

    # Renumberings that are matrices, and not known to be permutations, leave what any group has: the intersection of null spaces.
    matrices = [co.Dense(g.to_dense()) for g in (SWAP, CYCLE)]
    C = constraint(2, 2, matrices)
    print(f"\nThe same for any group\n{co.explain(co.nullspace, C)}\n")
    start = time.perf_counter()
    general = co.nullspace(C)
    seconds = time.perf_counter() - start
    orbits = co.nullspace(constraint(2, 2))
    cosines = np.linalg.svd((general.H @ orbits).to_dense(), compute_uv=False)
    gallery.check(f"both span one space; this way takes {1e3 * seconds:.0f} ms", bool(np.allclose(cosines, 1)))

    # A whole layer: all pairs of channels, of 1, 5 and 25 numbers each.
    ranks = [rank for rank, count in enumerate(channels) for _ in range(count)]
    blocks = {(k, l): constraint(k, l) for k in range(3) for l in range(3)}
    whole = co.BlockDiag(*(blocks[k, l] for l in ranks for k in ranks))
    start = time.perf_counter()
    layers = co.nullspace(whole)
    seconds = time.perf_counter() - start
    expected = sum(bell(k + l) for k in ranks for l in ranks)
    print(
        f"\nA layer of {len(ranks)} channels: {whole.shape[-1]:,} weights, {layers.shape[-1]:,} of them free, in {seconds:.2f} s"
    )
    gallery.check("as many as group theory says", layers.shape[-1] == expected)

    rng = np.random.default_rng(0)
    W = (orbits @ rng.standard_normal(orbits.shape[-1])).reshape(NODES**2, NODES**2)
    g = action(co.Permutation(rng.permutation(NODES)), 2)  # neither swap nor cycle
    x = rng.standard_normal(NODES**2)
    difference = np.abs(W @ (g @ x) - g @ (W @ x)).max()
    gallery.check(f"a random layer and a random renumbering commute, to {difference:.0e}", difference < 1e-12)

    with gallery.picture(options, size=(13, 4.6)) as figure:
        shown = [(1, 1), (1, 2), (2, 1), (2, 2)]
        widths = [NODES ** max(k, 1) for k, _ in shown]
        axes = figure.subplots(1, 4, width_ratios=[max(width, 9) for width in widths])
        names = ("", "nodes", "pairs")
        for axis, (k, l) in zip(axes, shown, strict=True):
            image = sharing(k, l)
            axis.imshow(image, cmap="tab20", vmin=0, vmax=19, interpolation="nearest")
            axis.set(title=f"{names[k]} to {names[l]}\n{image.max() + 1} weights", xticks=[], yticks=[])
        figure.suptitle("Layers of a network on graphs of five nodes: equal weights have equal colours")
    return {"pairs to pairs": float(orbits.shape[-1]), "whole layer": float(layers.shape[-1]), "expected": float(expected)}


if __name__ == "__main__":
    main()
