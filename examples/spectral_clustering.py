"""Spectral clustering: the communities of 34 401 physics papers, from the eight smallest eigenvectors of their citation graph.

With W[i, j] = 1 where one paper cites the other, and D the numbers of citations, the normalised Laplacian is

    L = I - D^-1/2 W D^-1/2

Its eigenvectors of the smallest eigenvalues vary little along citations, so papers of one community get like coordinates, which k-means
separates (the paper's figure "applications", d: cit-HepPh, 8 clusters). A graph with planted communities shows that they are found.

    python examples/spectral_clustering.py             # --small for a quick one
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gallery
import numpy as np
import scipy.optimize
import scipy.sparse as sp
import scipy.sparse.linalg
from scipy.cluster.vq import kmeans2
from scipy.sparse.csgraph import connected_components

import colinear as co


def graph(rows: np.ndarray, columns: np.ndarray, n: int) -> tuple[Any, np.ndarray]:
    """The undirected graph of these pairs, its largest connected part, and which nodes that has."""
    W = sp.coo_array((np.ones(len(rows)), (rows, columns)), shape=(n, n)).tocsr()
    W = ((W + W.T) > 0).astype(float)
    W.setdiag(0)
    part = connected_components(W)[1]
    nodes = np.flatnonzero(part == np.bincount(part).argmax())
    W = sp.csr_array(W[nodes][:, nodes])
    W.eliminate_zeros()
    return W, nodes


def planted(groups: int, size: int, rng: np.random.Generator) -> tuple[Any, np.ndarray]:
    """A random graph in which a pair of one group is connected with probability 0.2, any other with 0.01; and the groups."""
    group = rng.permutation(np.repeat(np.arange(groups), size))
    chance = np.where(group[:, None] == group, 0.2, 0.01)
    rows, columns = np.nonzero(np.triu(rng.random(chance.shape) < chance, 1))
    W, nodes = graph(rows, columns, len(group))
    return W, group[nodes]


def laplacian(W: Any) -> co.LinearOperator:
    """I - D^-1/2 W D^-1/2, written down as it is: a product of diagonal and sparse matrices, shifted."""
    D = co.Diagonal(1 / np.sqrt(W.sum(axis=1)))
    return co.PSD(co.Identity(W.shape[0]) - D @ co.Sparse(W) @ D)


def clusters(W: Any, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """The cluster of each node, the k smallest eigenvalues and their vectors, and the largest residual."""
    (values, vectors), info = co.eig(laplacian(W), k, "SA", info=True)
    V = vectors.to_dense()
    points = V / np.linalg.norm(V, axis=1, keepdims=True)  # on the sphere (Ng, Jordan and Weiss 2001)
    runs = [kmeans2(points, k, minit="++", seed=seed) for seed in range(5)]  # k-means finds the nearest minimum: the best of five
    label = min(runs, key=lambda run: float(np.sum((points - run[0][run[1]]) ** 2)))[1]
    return label, values, V, float(np.max(info.residual))


def cuts(W: Any, label: np.ndarray, k: int) -> np.ndarray:
    """Of each cluster, the share of its citations that lead out of it."""
    members = sp.csr_array((np.ones(len(label)), (np.arange(len(label)), label)), shape=(len(label), k))
    inside = (members.T @ W @ members).toarray()
    return 1 - np.diagonal(inside) / np.maximum(inside.sum(axis=1), 1)


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    options = gallery.options(__doc__, arguments)
    rng = np.random.default_rng(0)

    # Communities that are known.
    groups = 4 if options.small else 8
    W_planted, group = planted(groups, 60 if options.small else 150, rng)
    found_groups = clusters(W_planted, groups)[0]
    confusion = np.zeros((groups, groups))
    np.add.at(confusion, (group, found_groups), 1)
    pairs = scipy.optimize.linear_sum_assignment(-confusion)  # clusters have no names: match them as well as can be
    accuracy = float(confusion[pairs].sum() / len(group))
    print(f"planted graph of {len(group)} nodes: {accuracy:.1%} of them are in their community")

    # Communities that are not.
    file, k = gallery.data("cit-HepPh"), 4 if options.small else 8
    if file is None:
        W = planted(12, 100, rng)[0]
    else:
        n = 6000 if options.small else int(file["n"])
        both = (file["src"] < n) & (file["dst"] < n)
        W = graph(file["src"][both], file["dst"][both], n)[0]
    L = laplacian(W)
    print(f"\nThe Laplacian of {W.shape[0]} papers and {W.nnz // 2} citations\n ", L)
    print("\nWhat eig will do\n" + str(co.explain(co.eig, L, k, "SA")))
    (label, values, V, residual), seconds = gallery.timed(lambda: clusters(W, k), 1)
    # The same from ARPACK, which takes our operators too; it is quicker at the largest eigenvalues, so those of 2 I - L.
    flipped = (2 * co.Identity(W.shape[0]) - L).to_scipy()
    expected = 2 - np.sort(scipy.sparse.linalg.eigsh(flipped, k, which="LA", return_eigenvectors=False))[::-1]
    error = float(np.abs(values - expected).max())
    print(f"\n{k} eigenpairs and k-means in {seconds:.1f} s; residual {residual:.0e}, values {error:.0e} from SciPy's")
    print("eigenvalues", np.round(values, 4))

    cut = cuts(W, label, k)
    for i in np.argsort(-np.bincount(label, minlength=k)):
        print(f"cluster of {np.sum(label == i):6d} papers: {cut[i]:5.1%} of their citations lead out of it")
    chance = cuts(W, rng.permutation(label), k)

    # No partition into k parts has a smaller sum of cuts than the k smallest eigenvalues have (Ky Fan 1949): how near are we?
    bound, ours = float(values.sum()), float(cut.sum())
    print(f"sum of the cuts: {ours:.3f}; no partition is below {bound:.3f}, a random one has {chance.sum():.3f}")
    gallery.check("planted communities are recovered", accuracy > 0.95)
    gallery.check("the eigenvalues are those of SciPy, the residuals small", error < 1e-7 and residual < 1e-6)
    gallery.check("the bound holds, and clusters are better than chance", bound - 1e-9 <= ours < 0.8 * chance.sum())

    with gallery.picture(options, size=(14, 4.5)) as figure:
        known, plane, between = figure.subplots(1, 3)
        order = np.argsort(found_groups, kind="stable")
        known.spy(W_planted[order][:, order], markersize=0.3, color="tab:blue")
        known.set(title=f"planted communities, as found: {accuracy:.1%}", xticks=[], yticks=[])
        points = V / np.linalg.norm(V, axis=1, keepdims=True)
        points = points - points.mean(axis=0)
        flat = points @ co.svd(points, 2)[2].to_dense()  # of k dimensions, the two in which they differ most
        plane.scatter(*flat.T, c=label, s=1, cmap="tab10", alpha=0.5)
        plane.set(title=f"the coordinates of {len(label)} papers, {k} clusters", xticks=[], yticks=[])
        members = sp.csr_array((np.ones(len(label)), (np.arange(len(label)), label)), shape=(len(label), k))
        size = np.maximum(members.sum(axis=0), 1)
        density = (members.T @ W @ members).toarray() / np.outer(size, size)
        image = between.imshow(np.log10(np.maximum(density, 1e-7)), cmap="magma")
        figure.colorbar(image, ax=between, label="log10 of the share of pairs")
        between.set(title="citations between clusters", xlabel="cluster", ylabel="cluster")
    return {
        "accuracy": accuracy,
        "error": error,
        "residual": residual,
        "cut": ours,
        "bound": bound,
        "chance": float(chance.sum()),
    }


if __name__ == "__main__":
    main()
