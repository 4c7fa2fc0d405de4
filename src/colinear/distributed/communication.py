"""What the devices of a mesh send to each other in a product with an operator: predicted, for
`explain`.

For one vector that is cut by rows over the same axis. The numbers are those of the compiled
programs, which the tests read; a program may send less (XLA merges what is sent at once, and drops
what arrives twice).
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any, NamedTuple

from .. import backends
from ..backends import namespace_of
from ..dispatch import function, rule
from ..dispatch.resolution import memory_text
from ..operators import (
    FFT,
    Adjoint,
    BatchSum,
    Block,
    BlockDiag,
    Circulant,
    Conjugate,
    Convolution,
    Dense,
    Diagonal,
    GaussNewton,
    Hessian,
    Identity,
    Jacobian,
    Kernel,
    Kronecker,
    KroneckerSum,
    LinearOperator,
    LowRank,
    MatrixFree,
    Product,
    ScaledIdentity,
    Toeplitz,
    Transpose,
    Zero,
)
from ..operators.divided import divided_sizes, parts_of, share_of_frequencies
from ..operators.matrixfree import Opaque
from ..operators.tree import arrays_in
from .row_sparse import RowSparse


class Traffic(NamedTuple):
    """What a product sends: how many numbers each device gathers, are summed over devices, go to
    neighbours, and each device exchanges for those of all others; and the families whose work
    every device does in full."""

    gathers: tuple[int, ...] = ()
    sums: tuple[int, ...] = ()
    shifts: tuple[int, ...] = ()
    repeated: tuple[str, ...] = ()
    exchanges: tuple[int, ...] = ()

    def then(self, other: Traffic) -> Traffic:
        """The traffic of two products, one after the other."""
        return Traffic._make(own + theirs for own, theirs in zip(self, other))

    def beside(self, other: Traffic) -> Traffic:
        """The traffic of two products with one vector, which is gathered once."""
        both = self.then(other)
        return both._replace(gathers=tuple(dict.fromkeys(both.gathers)))

    def times(self, columns: int) -> Traffic:
        """The traffic of a product with so many vectors at once."""
        sizes = (tuple(columns * size for size in each) for each in (*self[:3], self.exchanges))
        gathers, sums, shifts, exchanges = sizes
        return Traffic(gathers, sums, shifts, self.repeated, exchanges)

    def reversed(self) -> Traffic:
        """The traffic of a product with the adjoint: what was gathered is summed, and the other
        way round."""
        return self._replace(gathers=self.sums, sums=self.gathers)


def unknown_traffic(A: LinearOperator) -> Traffic:
    """Predict what a product with A sends, for one vector that is cut by rows.

    An operator whose family says nothing is that of its parts; one without parts does all of its
    work on every device, which gathers the vector. A rule of one's own returns a `Traffic`.
    """
    found = Traffic()
    for part in A.operands:
        found = found.beside(traffic(part))
    if A.operands:
        return found
    return Traffic(gathers=(A.shape[-1],), repeated=(type(A).__name__,))


traffic = function("traffic", base=unknown_traffic, rewrites=False)
traffic.lends = False  # NumPy has no meshes


@rule(traffic, Diagonal | Identity | ScaledIdentity | Zero)
def traffic_of_entries(A: Any) -> Traffic:
    """nothing is sent"""
    return Traffic()


@rule(traffic, Dense)
def traffic_of_dense(A: Any) -> Traffic:
    """By rows x is gathered, by columns the products are summed; a batch sends nothing."""
    cuts, (m, n) = _cuts(A.A), A.shape[-2:]
    if -2 in cuts:
        return Traffic(gathers=(n,))
    if -1 in cuts:
        return Traffic(sums=(m,))
    return Traffic() if cuts else unknown_traffic(A)


@rule(traffic, LowRank)
def traffic_of_low_rank(A: Any) -> Traffic:
    """V^H x is summed."""
    V = A.U if A.V is None else A.V
    return Traffic(sums=(V.shape[-1],)) if -2 in _cuts(V) else unknown_traffic(A)


@rule(traffic, Kernel)
def traffic_of_kernel(A: Any) -> Traffic:
    """The points of the columns and x are gathered, at once."""
    if A.spread is None:
        return unknown_traffic(A)
    return Traffic(gathers=(A.shape[-1] * (A.X.shape[-1] + 1),))


@rule(traffic, RowSparse)
def traffic_of_row_sparse(A: Any) -> Traffic:
    """Halos of x go to the neighbours, or x is gathered."""
    if A.offsets is None:
        return Traffic(gathers=(A.shape[-1],))
    return Traffic(shifts=tuple(rows for rows in A.halos if rows))


@rule(traffic, Toeplitz | Circulant)
def traffic_of_toeplitz(A: Any) -> Traffic:
    """The frequencies of x are exchanged, there and back."""
    return unknown_traffic(A) if A.spread is None else _two_exchanges(A)


@rule(traffic, Convolution)
def traffic_of_convolution(A: Any) -> Traffic:
    """Halos of x go to the neighbours; for a large kernel the frequencies of x are exchanged, there
    and back."""
    if A.spread is None:
        return unknown_traffic(A)
    row = math.prod(A.grid[1:])
    return (
        Traffic(shifts=tuple(rows * row for rows in A.halos if rows))
        if A.has_halos
        else _two_exchanges(A)
    )


def _two_exchanges(A: Any) -> Traffic:
    p, (grid, lengths) = parts_of(A.spread), divided_sizes(A)
    size = grid[0] * share_of_frequencies(lengths, p, not A.is_complex)
    return Traffic(exchanges=(size, size))


@rule(traffic, FFT)
def traffic_of_transform(A: Any) -> Traffic:
    """x is exchanged twice, three times if the grid is a line."""
    if A.spread is None:
        return unknown_traffic(A)
    p, is_line = parts_of(A.spread), len(A.grid) == 1
    rows, share = (
        (1, A.grid[0] // p) if is_line else (A.grid[0], share_of_frequencies(A.grid, p, False))
    )
    return Traffic(exchanges=(rows * share,) * (3 if is_line else 2))


@rule(traffic, Kronecker | KroneckerSum)
def traffic_of_kronecker(A: Any) -> Traffic:
    """That of the first factor, for each of its columns; the others multiply the columns that a
    device has."""
    first = A.operands[0]
    sent = traffic(first).times(A.shape[-1] // max(first.shape[-1], 1))
    return sent._replace(repeated=(type(A).__name__,) if sent.repeated else ())


@rule(traffic, BlockDiag | Block)
def traffic_of_blocks(A: Any) -> Traffic:
    """That of the blocks: those of a column share their part of x."""
    columns = zip(*A.blocks) if isinstance(A, Block) else ((block,) for block in A.operands)
    found = Traffic()
    for blocks in columns:
        found = found.then(reduce(Traffic.beside, map(traffic, blocks)))
    return found


@rule(traffic, Product)
def traffic_of_product(A: Any) -> Traffic:
    """That of the factors, one after the other."""
    found = Traffic()
    for factor in reversed(A.operands):
        found = found.then(traffic(factor))
    return found


@rule(traffic, BatchSum)
def traffic_of_batch_sum(A: Any) -> Traffic:
    """x is gathered, and the terms are summed."""
    is_cut = any(_cuts(x) for x in arrays_in(A))
    return Traffic((A.shape[-1],), (A.shape[-2],)) if is_cut else unknown_traffic(A)


@rule(traffic, MatrixFree | Jacobian | Hessian | GaussNewton)
def traffic_of_functions(A: Any) -> Traffic:
    """Of a function of data cut by rows: x is gathered, and the answer is summed; at most."""
    is_cut = any(_cuts(x) for x in arrays_in(A))
    return Traffic((A.shape[-1],), (A.shape[-2],)) if is_cut else unknown_traffic(A)


@rule(traffic, Adjoint | Transpose)
def traffic_of_transpose(A: Any) -> Traffic:
    """What was gathered is summed, and the other way round."""
    return traffic(A.A).reversed()


@rule(traffic, Conjugate | Opaque)
def traffic_of_wrapper(A: Any) -> Traffic:
    """That of the operator."""
    return traffic(A.A)


def _cuts(x: Any) -> dict[int, str]:
    """How an array is cut over a mesh."""
    xp = namespace_of(x)
    on_mesh = None if xp is None else backends.mesh_module(xp.device_of(x))
    return {} if on_mesh is None else on_mesh.cuts_of(x)


# Methods of which a step makes two sums over the devices, whatever the numbers in each; the tests
# count them in the compiled programs.
TWO_SUMS = ("CG", "MINRES", "GMRES", "Lanczos", "Arnoldi", "LOBPCG", "SLQ")


def describe(A: LinearOperator, gathered: dict[str, float], methods: dict[str, Any]) -> str:
    """What lies where, what a product and a step of a method send, and what is gathered whole:
    `gathered` has the bytes by method, `methods` the objects that were given by the names of all
    that run."""
    mesh, arrays = A._context.device, list({id(x): x for x in A.arrays()}.values())
    on_mesh = backends.mesh_module(mesh)
    each, whole = sum(map(on_mesh.bytes_per_device, arrays)), sum(x.nbytes for x in arrays)
    axes = ", ".join(f"{name}: {size}" for name, size in on_mesh.axis_sizes(mesh).items())
    lines = [f"on a mesh of devices ({axes}): {memory_text(each)} of {memory_text(whole)} on each"]
    sent = traffic(A)
    ways = (
        ("gathers {}", sent.gathers),
        ("sums {} over the devices", sent.sums),
        ("sends {} to the neighbours", sent.shifts),
        ("exchanges {} on each with all others", sent.exchanges),
    )
    what = [way.format(" + ".join(map(str, sizes))) for way, sizes in ways if sizes]
    lines.append(
        f"a product with a vector cut by rows {', '.join(what) or 'sends nothing'}"
        f"{' numbers' if what else ''}"
    )
    for name in filter(methods.__contains__, TWO_SUMS):
        is_single = getattr(methods[name], "single_reduction", False)
        lines.append(f"a step of {name} adds {'1 sum' if is_single else '2 sums'} over the devices")
    if sent.repeated:
        names = ", ".join(dict.fromkeys(sent.repeated))
        lines.append(f"not divided, every device does all the work: {names}")
    lines += [
        f"{name} gathers {memory_text(size)} on each device" for name, size in gathered.items()
    ]
    return "\n".join(lines)
