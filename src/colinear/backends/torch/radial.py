"""Products with kernels of the distance that never write the kernel: Triton's programs on a CUDA
device, and their first derivatives (`..radial` derives them). Derivatives of these go by blocks.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch._C import _functorch

from ..radial import (
    FEW_COORDINATES,
    LEAST_SHARE,
    MOST_COLUMNS,
    MOST_COORDINATES,
    NEAR,
    PROGRAMS_EACH,
    Tile,
    by_blocks,
    power_of_two,
    tile_of_slopes,
)
from .arrays import float32, float64, result_type
from .profiles import Profiles, translated


def radial_product(form: Any, X: Any, Y: Any, parameters: tuple) -> Callable | str:
    """A function V -> K V of a kernel of the distance, which never writes K; or, where blocks are
    multiplied instead, why, empty if nothing is amiss.

    Parameters
    ----------
    form : object
        With `profile(q, *shape)`, a function of squared distances; `is_smooth`, whether it has a
        derivative at 0; and `placed(X, Y, *parameters)`, which gives the points that have these
        distances, a factor of K, and `shape`.
    X, Y : array, (m, d) and (n, d)
        Y may be None: X.
    parameters : tuple
        Numbers and arrays.
    """
    if not is_fused(X):
        return ""
    X, Y, factor, shape = form.placed(X, Y, *parameters)
    if any(getattr(p, "ndim", 0) or torch.is_complex(torch.as_tensor(p)) for p in (factor, *shape)):
        return ""
    Z = X if Y is None else Y
    if X.ndim > 2 or Z.ndim > 2:
        return ""
    m, n, d = X.shape[0], Z.shape[0], X.shape[1]
    largest = 2 * max(power_of_two(d), MOST_COLUMNS) * max(m, n)  # entries that a place counts
    if not 0 < d <= MOST_COORDINATES or largest >= 2**31 or 0 in (m, n):
        return ""
    if translated(form.profile, float32, len(shape)) is None:
        return "since its profile is no function of each distance alone, or unknown to Triton"

    kept: dict[Any, Any] = {}  # points made ready, as long as this function is there

    def multiply(V: Any) -> Any:
        if V.is_complex():
            return torch.complex(multiply(V.real), multiply(V.imag))
        result = result_type(X, Z, V)
        dtype = float64 if result is float64 else float32
        own = [
            p.to(device=X.device, dtype=dtype)
            if isinstance(p, torch.Tensor)
            else X.new_full((), p, dtype=dtype)
            for p in shape
        ]
        profiles = translated(form.profile, dtype, len(shape))
        assert profiles is not None  # what can be written for single precision can for double
        precision = "half" if result.itemsize == 2 else "ieee" if dtype is float64 else "tf32x3"
        fused = Fused(form.profile, profiles, precision, form.is_smooth, kept)
        others = None if Y is None else Y.to(dtype)
        found = _Product.apply(fused, X.to(dtype), others, V.to(dtype), *own)
        return (factor * found).to(result)

    return multiply


def is_fused(X: Any) -> bool:
    """Whether Triton multiplies for these points: on a CUDA device (or in Triton's interpreter),
    outside of what is traced, mapped over or differentiated forwards."""
    if not (X.is_cuda or _is_interpreted()) or torch.compiler.is_compiling():
        return False
    return _has_triton() and not _is_transformed()


@functools.cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _is_interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def _is_transformed() -> bool:
    """Whether a transform other than reverse mode is at work."""
    if torch.autograd.forward_ad._current_level >= 0:
        return True
    if _functorch.peek_interpreter_stack() is None:
        return False
    stack = _functorch.get_interpreter_stack() or ()
    return any(level.key() is not _functorch.TransformType.Grad for level in stack)


# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Fused:
    """A profile φ as a function of torch, as programs of Triton, and how these multiply."""

    profile: Callable
    programs: Profiles
    precision: str
    is_smooth: bool  # whether φ has a derivative at 0, so that rounding in q is not magnified
    kept: dict[Any, Any]


class _Product(torch.autograd.Function):
    """K V, differentiable in X, Y (None: X), V and the parameters of φ."""

    @staticmethod
    def forward(fused: Fused, X: Any, Y: Any, V: Any, *shape: Any) -> Any:
        Y = X if Y is None else Y
        return product(fused, X, Y, V, shape, Points.kept(fused, X, Y))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        ctx.fused, *arrays = inputs
        ctx.save_for_backward(*arrays)

    @staticmethod
    def backward(ctx: Any, G: Any) -> tuple:
        needed = ctx.needs_input_grad[1:]
        found = iter(_Pulled.apply(ctx.fused, needed, G, *ctx.saved_tensors))
        return None, *(next(found) if is_needed else None for is_needed in needed)


class _Pulled(torch.autograd.Function):
    """The cotangents that are needed, of X, Y, V and the parameters of φ, for a cotangent G of
    K V."""

    @staticmethod
    def forward(fused: Fused, needed: tuple, G: Any, X: Any, Y: Any, V: Any, *shape: Any) -> tuple:
        return cotangents(fused, needed, G, X, Y, V, shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        ctx.fused, ctx.needed, *arrays = inputs
        ctx.save_for_backward(*arrays)

    @staticmethod
    def backward(ctx: Any, *moved: Any) -> tuple:
        G, *given = ctx.saved_tensors
        there = [x is not None for x in given]  # Y is not, where it is X

        def again(*arrays: Any) -> Any:
            left = iter(arrays)
            return by_blocks(ctx.fused.profile, *(next(left) if is_ else None for is_ in there))

        def pulled(G: Any, *arrays: Any) -> tuple:
            found = torch.func.vjp(again, *arrays)[1](G)
            left = iter(found)
            every = [next(left) if is_ else None for is_ in there]
            return tuple(x for x, is_needed in zip(every, ctx.needed, strict=True) if is_needed)

        arrays = [x for x in given if x is not None]
        G_back, *back = torch.func.vjp(pulled, G, *arrays)[1](moved)
        left = iter(back)
        return None, None, G_back, *(next(left) if is_ else None for is_ in there)


# --------------------------------------------------------------------------------------------------


def product(
    fused: Fused, X: Any, Y: Any, V: Any, shape: tuple, points: Points | None = None
) -> Any:
    """K V, of V (n, k)."""
    points = points or Points.of(fused, X, Y, is_sorted=True)
    found = [_product(fused, points, part, shape) for part in V.split(MOST_COLUMNS, dim=1)]
    return found[0] if len(found) == 1 else torch.cat(found, dim=1)


class Points(NamedTuple):
    """Points as the programs take them: coordinates in rows, squares, and, where they are multiplied
    as matrices, parts that TF32 holds. Of smooth profiles they are sorted by their distance from
    the origin."""

    x: Any
    y: Any
    xx: Any
    yy: Any
    x_parts: Any
    y_parts: Any
    order_x: Any = None
    order_y: Any = None

    @classmethod
    def of(cls, fused: Fused, X: Any, Y: Any, is_sorted: bool = False) -> Points:
        xx, yy, order_x, order_y = (X * X).sum(1), (Y * Y).sum(1), None, None
        if not is_by_product(X):
            return cls(X.mT.contiguous(), Y.mT.contiguous(), xx, yy, xx, yy)
        if is_sorted and fused.is_smooth:  # no number comes last
            is_one = Y is X
            xx, order_x = xx.sort()
            X = X[order_x]
            yy, order_y = (xx, order_x) if is_one else yy.sort()
            Y = X if is_one else Y[order_y]
        parts = _padded(X), _padded(Y)
        return cls(X.mT.contiguous(), Y.mT.contiguous(), xx, yy, *parts, order_x, order_y)

    def safe(self, rows: int) -> Any:
        """For each tile of so many rows the number of columns of which no difference cancels: both
        points are near enough to the origin."""
        m = len(self.xx)
        if self.order_x is None:
            return torch.zeros(-(-m // rows), dtype=torch.int32, device=self.xx.device)
        last = torch.arange(rows - 1, m + rows - 1, rows, device=self.xx.device)
        farthest = self.xx[last.clamp(max=m - 1)].nan_to_num(torch.inf)
        return torch.searchsorted(self.yy, NEAR - farthest, right=True, out_int32=True)

    @classmethod
    def kept(cls, fused: Fused, X: Any, Y: Any) -> Points:
        """Those of a product that is made again and again."""
        found = fused.kept.get(X.dtype)
        if found is None:
            found = fused.kept[X.dtype] = cls.of(fused, X, Y, is_sorted=True)
        return found


def is_by_product(X: Any) -> bool:
    """Whether distances are made of products of points, not of differences."""
    return X.dtype is not float64 and X.shape[1] > FEW_COORDINATES


def _product(fused: Fused, points: Points, V: Any, shape: tuple) -> Any:
    (d, m), n, width = points.x.shape, points.y.shape[1], V.shape[1]
    double = V.dtype is float64
    memory = _device(points.x.device).shared_memory
    tile, guarded_columns = tiles_of_product(d, width, double, memory)
    launch = _Launch(fused, points, width, shape, tile)
    V = V.contiguous() if points.order_y is None else V[points.order_y]
    padded = launch.options["WIDTH"]
    out, v_parts = V.new_empty(launch.shares, m, width), V
    if padded > 1:
        v_parts = V.new_zeros(2, padded, n)
        v_parts[:, :width] = _parts(V.mT)
    launch(
        "product", points[:4], V, launch.parameters, points.safe(tile.rows), *points[4:6],
        v_parts, out, m, n, width,
        PROFILE=fused.programs.value, GUARDED_COLUMNS=guarded_columns,
    )  # fmt: skip
    found = out[0] if launch.shares == 1 else out.sum(0)
    if points.order_x is None:
        return found
    return torch.empty_like(found).index_copy_(0, points.order_x, found)


def tiles_of_product(d: int, width: int, double: bool, memory: float) -> tuple[Tile, int]:
    """The tile of a program, and how many columns it has where differences may cancel, which are
    then held beside it.

    Of those that were measured on an H200 with 18 and 90 coordinates and 1 and 21 columns of V they
    are the quickest; they shrink until they fit into so many bytes that programs share.
    """
    if double:
        return Tile(64, 32, 4, 2), 32
    if width > 1:
        tile = Tile(128, 64, 8, 3)
    else:
        tile = Tile(128, 32, 8, 2) if d > 64 else Tile(64, 128, 4, 2)
    numbers = power_of_two(d) + (power_of_two(width) if width > 1 else 0)  # of a column

    def is_too_large() -> bool:  # Triton 3.6 takes so much for all that were compiled, or less
        loaded = 2 * tile.stages * tile.columns * numbers
        kept = tile.rows * (tile.columns + power_of_two(d) * (2 if width == 1 else 1))
        return 4.0 * (loaded + kept) > memory * (1 if width == 1 else 0.9)

    while is_too_large() and tile.stages > 1:
        tile = tile._replace(stages=tile.stages - 1)
    while is_too_large() and tile.columns > 32:
        tile = tile._replace(columns=tile.columns // 2)
    while is_too_large() and tile.rows > 32:
        tile = tile._replace(rows=tile.rows // 2)
    return tile, min(tile.columns, 32 if width > 1 else 64)


def _parts(X: Any) -> Any:
    """X as a sum of two parts, of which TF32 holds the first, and the second to 22 bits of X."""
    if X.dtype is float64:
        return torch.stack([X, torch.zeros_like(X)])
    high = (X.contiguous().view(torch.int32) & -8192).view(float32)
    return torch.stack([high, X - high])


def _padded(X: Any) -> Any:
    """The parts of points, with zeros up to a power of two of coordinates."""
    out = X.new_zeros(2, X.shape[0], power_of_two(X.shape[1]))
    out[..., : X.shape[1]] = _parts(X)
    return out


def cotangents(fused: Fused, needed: tuple, G: Any, X: Any, Y: Any, V: Any, shape: tuple) -> tuple:
    """Those of X, Y, V and `shape` that are needed, for a cotangent G of K V."""
    G, columns = G.contiguous(), X if Y is None else Y
    found = []
    if needed[0] and Y is None:  # of both sides at once: S + S^T
        sides = torch.cat([G, V], dim=1), torch.cat([V, G], dim=1)
        found.append(_of_points(fused, X, X, *sides, shape))
    elif needed[0]:
        found.append(_of_points(fused, X, Y, G, V, shape))
    if needed[1]:
        found.append(_of_points(fused, Y, X, V, G, shape))
    if needed[2]:
        found.append(product(fused, columns, X, G, shape))
    for program, is_needed in zip(fused.programs.by_shape, needed[3:], strict=True):
        if is_needed:
            found.append(_slopes(fused, program, X, columns, G, V, shape, False)[0].sum())
    return tuple(found)


def _of_points(fused: Fused, X: Any, Y: Any, W: Any, V: Any, shape: tuple) -> Any:
    """2 (x_i Σ_j S_ij - Σ_j S_ij y_j), S = (W V^T) ∘ φ'."""
    sums, moments = _slopes(fused, fused.programs.slope, X, Y, W, V, shape, True)
    return 2 * (sums[:, None] * X - moments)


def _slopes(
    fused: Fused, program: Any, X: Any, Y: Any, W: Any, V: Any, shape: tuple, has_moments: bool
) -> tuple[Any, Any]:
    """Σ_j S_ij and Σ_j S_ij y_j, S = (W V^T) ∘ ψ, of another profile ψ."""
    (m, d), n = X.shape, Y.shape[0]
    points, sums, moments = Points.of(fused, X, Y), 0, 0
    for left, right in zip(W.split(MOST_COLUMNS, dim=1), V.split(MOST_COLUMNS, dim=1)):
        width = left.shape[1]
        tile = tile_of_slopes(d, X.dtype is float64)
        launch = _Launch(fused, points, max(2, width), shape, tile)
        more = X.new_empty(launch.shares, m)
        moved = X.new_empty(launch.shares, m, d) if has_moments else more
        pair = left.contiguous(), right.contiguous()
        launch(
            "slopes", points[:4], *pair, launch.parameters, more, moved, m, n, width,
            PROFILE=program, HAS_MOMENTS=has_moments,
        )  # fmt: skip
        sums, moments = sums + more.sum(0), moments + moved.sum(0)
    return sums, moments


class _Launch:
    """How a program is started for these points: its tiles, and how many share the columns."""

    def __init__(self, fused: Fused, points: Points, width: int, shape: tuple, tile: Tile):
        (d, m), n, x = points.x.shape, points.y.shape[1], points.x
        self.device = x.device
        tiles_of_rows = -(-m // tile.rows)
        wanted = -(-PROGRAMS_EACH * _device(x.device).multiprocessors // tiles_of_rows)
        share = -(-n // min(wanted, -(-n // LEAST_SHARE)))
        self.share = -(-share // LEAST_SHARE) * LEAST_SHARE
        self.shares = -(-n // self.share)
        self.grid = tiles_of_rows, self.shares
        self.parameters = torch.stack(shape) if shape else x.new_zeros(1)
        self.options = {
            "D": d,
            "D_PADDED": power_of_two(d),
            "WIDTH": 1 if width == 1 else power_of_two(width),
            "BY_PRODUCT": is_by_product(x.mT),
            "PRECISION": fused.precision,
            **_options(tile),
        }

    def __call__(self, name: str, points: tuple, *arguments: Any, **options: Any) -> None:
        kernels = importlib.import_module(".radial_kernels", __package__)
        with (
            torch.cuda.device(self.device)
            if self.device.type == "cuda"
            else contextlib.nullcontext()
        ):
            getattr(kernels, name)[self.grid](
                *points, *arguments, self.share, **{**self.options, **options}
            )


def _options(tile: Tile) -> dict[str, int]:
    """A tile as the programs are told."""
    rows, columns, warps, stages = tile
    return {"ROWS": rows, "COLUMNS": columns, "num_warps": warps, "num_stages": stages}


class _Device(NamedTuple):
    """What is known of a device: its multiprocessors, and the bytes that the threads of a program may
    share on one."""

    multiprocessors: int = 1
    shared_memory: float = math.inf


@functools.cache
def _device(device: Any) -> _Device:
    if device.type != "cuda":
        return _Device()
    found = torch.cuda.get_device_properties(device)
    # older versions of torch do not tell; this much the smallest have
    shared = getattr(found, "shared_memory_per_block_optin", 99 * 1024)
    return _Device(int(found.multi_processor_count), float(shared))
