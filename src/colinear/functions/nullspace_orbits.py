"""Vectors that permutations leave as they are: the null space of P - I, and of several of these under each other.

P x = x says that x is constant along each cycle of P; the same for several permutations, that it is constant along each orbit of
the group that they generate. Orbits are the connected components of a graph with an edge from i to p(i) for each of them, so
they take time in proportion to n, where an SVD would take n³. Kronecker products of permutations are permutations: the layers of
a network that is equivariant to permutations of nodes (Maron et al., Invariant and equivariant graph networks, 2019) are these.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..dispatch import rule
from ..operators.base import LinearOperator
from ..operators.block import Block
from ..operators.fields import Index
from ..operators.identity import Identity, ScaledIdentity
from ..operators.kronecker import Kronecker
from ..operators.permutation import Permutation
from ..operators.sparse import Sparse
from ..operators.sparse_algebra import SHIFT
from ..operators.sum import Sum
from ..properties import STIEFEL
from .least_squares import checked_rtol
from .nullspace import nullspace

MOVED: Any = Sum[Permutation | Kronecker, SHIFT]  # type: ignore[misc]


def moved(A: LinearOperator) -> np.ndarray | None:
    """p with (A x)[i] = x[p[i]] - x[i], if A is one permutation less the identity, known now."""
    if not isinstance(A, Sum) or len(A.operands) != 2 or len(A.shape) != 2 or not A.shape[-1]:
        return None
    P, shift = sorted(A.operands, key=lambda term: isinstance(term, ScaledIdentity))
    if not isinstance(shift, ScaledIdentity) or not isinstance(shift.c, int | float | complex) or shift.c != -1:
        return None
    factors = P.operands if isinstance(P, Kronecker) else (P,)
    p = np.zeros(1, np.int64)
    for factor in factors:
        if isinstance(factor, Permutation) and isinstance(factor.perm, Index):
            q = factor.perm.host
        elif isinstance(factor, Identity):
            q = np.arange(factor.shape[-1])
        else:
            return None
        p = (p[:, None] * q.size + q).reshape(-1)
    return p


def leaves_orbits(A: Any) -> bool:
    """Whether it is a permutation less the identity, or several under each other."""
    rows = [row[0] for row in A.blocks if len(row) == 1] if isinstance(A, Block) else [A]
    return len(rows) == len(getattr(A, "blocks", rows)) and all(B is not None and moved(B) is not None for B in rows)


@rule(nullspace, MOVED, when=leaves_orbits)
@rule(nullspace, Block, when=leaves_orbits)
def nullspace_orbits(A: Any, rtol: Any, method: Any) -> LinearOperator:
    """P x = x for permutations P: x is constant along the orbits of the group that they generate"""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    parts, n = A.operands if isinstance(A, Block) else (A,), A.shape[-1]
    # The smallest singular value that is not zero is more than this part of the largest: that of a path through all places.
    if checked_rtol("nullspace", rtol) is not None and rtol > 1 / (2 * n * math.sqrt(len(parts))):
        return nullspace.base(A, rtol, method)
    ends = np.concatenate([p for part in parts if (p := moved(part)) is not None])
    starts = np.tile(np.arange(n), len(parts))
    graph = coo_array((np.ones(ends.size, np.int8), (starts, ends)), shape=(n, n))
    count, orbit = connected_components(graph, directed=False)
    weights = 1 / np.sqrt(np.bincount(orbit))
    basis = Sparse(coo_array((weights[orbit], (np.arange(n), orbit)), shape=(n, count)).tocsr())
    if A.is_neutral:
        return basis._claim(STIEFEL)
    return basis.to(backend=A.backend, device=A._context.device, dtype=A.dtype)._claim(STIEFEL)
