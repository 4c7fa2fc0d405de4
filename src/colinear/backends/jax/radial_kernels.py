"""Pallas' programs for products with K[i, j] = φ(|x_i - y_j|^2), of which no entry is written to
memory.

A program of the device has a tile of rows and goes along a share of the columns. Distances are
|x|^2 + |y|^2 - 2 x·y, whose last term is a product of matrices. Where that may cancel, a tile with
neighbours is computed again by differences. Products are those of single precision: three of TF32
each, never one. Sums over columns are compensated (Kahan 1965): in single precision their error
does not grow with n.

Points are laid out with their coordinates in rows. No tile has a ragged end: points are followed
by copies of the last one, where φ is as good as anywhere, and what multiplies them is zero.
Only `radial.py` imports this file, where Pallas has Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jax.lax import DotAlgorithmPreset, Precision

from ..radial import (
    CLOSE,
    FEW_COORDINATES,
    LEAST_SHARE,
    MOST_COLUMNS,
    NEAR,
    PROGRAMS_EACH,
    Tile,
    power_of_two,
    tile_of_slopes,
)
from .radial import Fused

PROGRAMS = 128 * PROGRAMS_EACH  # that keep a large device busy

# so called since JAX 0.6
Options = getattr(triton, "CompilerParams", None) or triton.TritonCompilerParams


def tile_of_product(d: int, width: int, double: bool, guarded: bool = False) -> Tile:
    """The best of those measured on an H200. Guarded ones hold the differences too, and so have fewer
    columns; wide V with many coordinates fill the shared memory once."""
    if double:
        return Tile(64, 32, 4, 2)
    if d > 64:
        return Tile(128, 32, 8, 2 if width <= 32 else 1)
    if width > 1:
        return Tile(64, 32, 4, 3)
    return Tile(64, 64, 4, 3) if guarded else Tile(64, 128, 4, 2)


def product(fused: Fused, X: Any, Y: Any, V: Any, shape: tuple) -> Any:
    """K V, of V (n, k).

    A program that looks whether distances cancel takes twice as long, on an H200, as one that does
    not. Where the points decide, there are both, and one of them finds nothing to do.
    """
    (m, d), k = X.shape, V.shape[1]
    is_double, has_both = fused.dtype == jnp.float64, is_by_product(fused, d) and fused.is_smooth

    def found(is_guarded: bool) -> Any:
        tile = tile_of_product(d, k, is_double, is_guarded)

        def multiply(*refs: Any) -> None:
            *points, v, numbers, out = refs
            close, _, *parameters = (numbers[i] for i in range(2 + len(shape)))
            close_pairs = close if is_guarded else None
            distances = measured(fused, tile, d, close_pairs, *points, far_alone=fused.is_smooth)
            tiles: Any = v.shape[0] // tile.columns
            if has_both:
                tiles = jnp.where((close > 0) == is_guarded, jnp.int32(tiles), jnp.int32(0))

            def add(t: Any, sum_: tuple) -> tuple:
                columns = pl.ds(t * tile.columns, tile.columns)
                entries = fused.profile(distances(columns), *parameters)
                return added(sum_, times(fused, entries, v[columns]))

            zeros = jnp.zeros(out.shape, fused.dtype)
            out[...] = jax.lax.fori_loop(0, tiles, add, (zeros, zeros))[0]

        (parts,) = launch(fused, tile, multiply, X, Y, [], V, shape, [widths(k)])
        return jnp.moveaxis(parts.sum(1), 0, 1)[:m].reshape(m, -1)[:, :k]

    if has_both:
        return found(False) + found(True)
    return found(is_by_product(fused, d))


def cotangents(fused: Fused, X: Any, Y: Any, W: Any, V: Any, shape: tuple) -> tuple[Any, list]:
    """2 Σ_j S_ij (x_i - y_j), S = (W V^T) ∘ φ', and of each parameter θ the sum of
    (W V^T) ∘ dφ/dθ.

    The former is 2 (x_i Σ_j S_ij - Σ_j S_ij y_j), with a product of matrices. Of few coordinates
    differences are as quick, and lose nothing where S is large for near points.
    """
    (m, d), count = X.shape, len(shape)
    tile = tile_of_slopes(d, fused.dtype == jnp.float64)
    has_few = d <= FEW_COORDINATES
    rests = [()] * (count + d) if has_few else [*[()] * (count + 1), (power_of_two(d),)]

    def pull(*refs: Any) -> None:
        *points, w, v, numbers = refs[: -len(rests)]
        outs = refs[-len(rests) :]
        close, one, *parameters = (numbers[i] for i in range(2 + count))
        distances = measured(fused, tile, d, close, *points)
        w, x, y = w[...], *points[:2]

        def add(t: Any, sums: list) -> list:
            columns = pl.ds(t * tile.columns, tile.columns)
            G = times_transposed(fused, w, v[columns])  # W V^T
            slope, *others = slopes(one, fused.profile, distances(columns), *parameters)
            S, parts = G * slope, [(G * other).sum(1) for other in others]
            if has_few:
                pairs = ((x[c, :][:, None], y[c, columns][None, :]) for c in range(d))
                parts += [(S * (x_c - y_c)).sum(1) for x_c, y_c in pairs]
            else:
                parts += [S.sum(1), dot(fused, S, y[:, columns].T)]
            return [added(sum_, part) for sum_, part in zip(sums, parts, strict=True)]

        zeros = [(jnp.zeros(out.shape, fused.dtype),) * 2 for out in outs]
        found = jax.lax.fori_loop(0, v.shape[0] // tile.columns, add, zeros)
        for out, (total, _) in zip(outs, found, strict=True):
            out[...] = total

    every = launch(fused, tile, pull, X, Y, [W], V, shape, rests)
    found = [x.sum((0, 1))[:m] for x in every]
    by_shape, moved = [x.sum() for x in found[:count]], found[count:]
    if has_few:
        return 2 * jnp.stack(moved, axis=1), by_shape
    return 2 * (moved[0][:, None] * X - moved[1][:, :d]), by_shape


def launch(
    fused: Fused, tile: Tile, program: Callable,
    X: Any, Y: Any, left: list, V: Any, shape: tuple, rests: list[tuple],
) -> list:  # fmt: skip
    """What the program writes, in arrays (chunks, shares, rows, *rest), of so many columns of V at
    a time and shares of the columns of K.

    It is given a tile of X and a share of Y, (d, points), their squares, the rows of `left` and V
    that belong to these, and numbers: what is close, 1, and the parameters of φ.
    """
    n, k = V.shape
    tiles = -(-X.shape[0] // tile.rows)
    shares = min(-(-PROGRAMS // tiles), -(-n // LEAST_SHARE))
    share = -(-n // (shares * tile.columns)) * tile.columns
    shares, width = -(-n // share), widths(k)
    chunks = -(-k // width[0]) if width else 1

    x, y = (laid_out(P, size) for P, size in ((X, tiles * tile.rows), (Y, shares * share)))
    squares = [jnp.sum(P * P, axis=0) for P in (x, y)]
    may_cancel = not fused.is_smooth or ~(sum(map(jnp.max, squares)) <= NEAR)  # or no number
    close = jnp.where(may_cancel, CLOSE, 0).astype(fused.dtype)
    numbers = jnp.stack([close, jnp.ones_like(close), *shape])
    factors = [
        filled(W, len(squares[i]), (chunks, width)) for i, W in enumerate([*left, V], 1 - len(left))
    ]

    def spec(sizes: tuple, place: Callable) -> Any:
        return pl.BlockSpec(sizes, lambda i, s, w: place(i, s, w)[: len(sizes)])

    of_rows = spec((tile.rows, *width), lambda i, s, w: (i, w))
    return pl.pallas_call(
        program,
        grid=(tiles, shares, chunks),
        in_specs=[
            spec((len(x), tile.rows), lambda i, s, w: (0, i)),
            spec((len(y), share), lambda i, s, w: (0, s)),
            spec((tile.rows,), lambda i, s, w: (i,)),
            spec((share,), lambda i, s, w: (s,)),
            *(of_rows for _ in left),
            spec((share, *width), lambda i, s, w: (s, w)),
            spec((len(numbers),), lambda i, s, w: (0,)),
        ],
        out_specs=[
            spec((None, None, tile.rows, *rest), lambda i, s, w: (w, s, i, 0)) for rest in rests
        ],
        out_shape=[
            jax.ShapeDtypeStruct((chunks, shares, tiles * tile.rows, *rest), fused.dtype)
            for rest in rests
        ],
        interpret=fused.is_interpreted,
        compiler_params=Options(num_warps=tile.warps, num_stages=tile.stages),
    )(x, y, *squares, *factors, numbers)


def widths(k: int) -> tuple[int, ...]:
    """How many of k columns are multiplied at a time: none of their own if there is but one."""
    return () if k == 1 else (power_of_two(min(k, MOST_COLUMNS)),)


def laid_out(P: Any, size: int) -> Any:
    """Points (n, d) as (D, size), with zeros below and copies of the last one behind."""
    P = jnp.pad(P, ((0, size - P.shape[0]), (0, 0)), mode="edge")
    return jnp.pad(P, ((0, 0), (0, power_of_two(P.shape[1]) - P.shape[1]))).T


def filled(V: Any, size: int, columns: tuple) -> Any:
    """V with zeros up to so many rows and columns; a vector where there is one column alone."""
    chunks, width = columns
    if not width:
        return jnp.pad(V[:, 0], (0, size - V.shape[0]))
    return jnp.pad(V, ((0, size - V.shape[0]), (0, chunks * width[0] - V.shape[1])))


# parts of a program
# --------------------------------------------------------------------------------------------------


def is_by_product(fused: Fused, d: int) -> bool:
    """Whether distances are made of products of points, not of differences."""
    return fused.dtype != jnp.float64 and d > FEW_COORDINATES


def measured(
    fused: Fused,
    tile: Tile,
    d: int,
    close: Any,
    *points: Any,
    far_alone: bool = False,
) -> Callable:
    """columns -> |x_i - y_j|^2 of a tile: |x|^2 + |y|^2 - 2 x·y, unless that cancels for one of
    the pairs, where `close` is given to see that; `far_alone`: of those far from the origin."""
    X, Y, XX, YY = points
    x, xx = X[...], XX[...][:, None]

    def by_differences(columns: Any) -> Any:
        def add(c: Any, q: Any) -> Any:
            e = X[c, :][:, None] - Y[c, columns][None, :]
            return q + e * e

        return jax.lax.fori_loop(0, d, add, jnp.zeros((tile.rows, tile.columns), fused.dtype))

    def distances(columns: Any) -> Any:
        if not is_by_product(fused, d):
            return by_differences(columns)
        size = xx + YY[columns][None, :]
        q = size - 2 * dot(fused, x.T, Y[:, columns], is_exact=True)
        q = jnp.where(q < 0, 0, q)  # Triton's maximum would make 0 of NaN
        if close is None:
            return q
        excess = q - close * size
        cancels = jnp.min(jnp.where(size > NEAR, excess, q) if far_alone else excess) < 0
        return jax.lax.cond(cancels, lambda: by_differences(columns), lambda: q)

    return distances


def slopes(one: Any, profile: Callable, *arguments: Any) -> list:
    """dφ/dq and the derivatives by the parameters of φ. Of 1 as a literal Pallas (JAX 0.10) could
    not take the negative, so that it is read, too."""

    def slope(place: int) -> Any:
        def of_one(x: Any) -> Any:
            return profile(*arguments[:place], x, *arguments[place + 1 :])

        x = arguments[place]
        return jax.jvp(of_one, (x,), (jnp.broadcast_to(one, x.shape),))[1]

    return [slope(place) for place in range(len(arguments))]


def added(sum_: tuple, part: Any) -> tuple:
    """The sum and a further part, and what rounding has lost of it so far."""
    total, lost = sum_
    part = part - lost
    new = total + part
    return new, (new - total) - part


def times(fused: Fused, A: Any, v: Any) -> Any:
    """A v, of a vector or some columns."""
    return jnp.sum(A * v[None, :], axis=1) if v.ndim == 1 else dot(fused, A, v)


def times_transposed(fused: Fused, w: Any, v: Any) -> Any:
    """w v^T, of vectors or some columns."""
    return w[:, None] * v[None, :] if v.ndim == 1 else dot(fused, w, v.T)


def dot(fused: Fused, A: Any, B: Any, is_exact: bool = False) -> Any:
    """A B in the precision of the numbers; in that of TF32 for an answer in half precision."""
    precision: Any = Precision.HIGHEST
    if fused.dtype == jnp.float32 and not fused.is_interpreted:
        is_rough = fused.is_half and not is_exact
        precision = DotAlgorithmPreset["TF32_TF32_F32" + ("" if is_rough else "_X3")]
    return jax.lax.dot(A, B, precision=precision, preferred_element_type=A.dtype)
