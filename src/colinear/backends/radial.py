"""What torch and JAX share of products with K[i, j] = φ(|x_i - y_j|^2) that never write K: sizes,
tiles, and the blocks that derivatives of such products go by.

With a cotangent G of K V, and S = (G V^T) ∘ φ'(|x_i - y_j|^2),

    the cotangent of x_i is 2 (x_i Σ_j S_ij - Σ_j S_ij y_j),    that of y_j the same of S^T,
    that of V is K^T G,    and that of a parameter θ of φ is the sum of (G V^T) ∘ dφ/dθ,

each by a program of one shape, with another profile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from . import namespace_of

MOST_COORDINATES = 128  # of points, of which a tile fits on a multiprocessor
FEW_COORDINATES = 8  # up to which differences are as quick as a product of matrices
MOST_COLUMNS = 64  # of V that one program multiplies
PROGRAMS_EACH = 8  # for each multiprocessor, so that none waits for the last
LEAST_SHARE = 1024  # columns of K that are worth a program
NEAR = 16.0  # |x|^2 + |y|^2, up to which rounding in |x|^2 + |y|^2 - 2 x·y is that of φ itself
CLOSE = 1 / 32  # |x - y|^2 / (|x|^2 + |y|^2) below which the difference has too few digits
BLOCK_BYTES = 2**28  # of differences of points, where derivatives go by blocks


def power_of_two(size: int) -> int:
    """The next one, 16 at least: sides of the tiles that are multiplied as matrices."""
    return max(16, 1 << (size - 1).bit_length())


class Tile(NamedTuple):
    """What one program computes at a time: rows and columns, with so many warps, so many tiles of
    columns loaded ahead. The figures are the best of those measured on an H200."""

    rows: int
    columns: int
    warps: int
    stages: int


def tile_of_slopes(d: int, double: bool) -> Tile:
    return Tile(128, 32, 8, 1) if d > 64 and not double else Tile(64, 32, 4, 1)


def by_blocks(profile: Callable, X: Any, Y: Any, V: Any, *shape: Any) -> Any:
    """K V by blocks of rows, which the framework differentiates; Y may be None: X."""
    xp, Y, (m, d) = namespace_of(X), X if Y is None else Y, X.shape
    blocks = min(m, -(-m * Y.shape[0] * d * X.dtype.itemsize // BLOCK_BYTES))
    size = -(-m // blocks)

    @xp.checkpoint
    def rows(x: Any, Y: Any, V: Any, *shape: Any) -> Any:
        return xp.matmul(profile(xp.sum((x[:, None] - Y) ** 2, axis=-1), *shape), V)

    # a last block that is too short repeats the last point
    last = xp.broadcast_to(X[-1:], (blocks * size - m, d))
    tiles = xp.reshape(xp.concat([X, last], axis=0), (blocks, size, d))
    found = xp.loop_map(lambda x: rows(x, Y, V, *shape), tiles)
    return xp.reshape(found, (blocks * size, V.shape[-1]))[:m]
