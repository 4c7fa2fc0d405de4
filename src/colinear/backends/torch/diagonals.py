"""Products with matrices of a few diagonals in one pass over memory: a Triton kernel on a CUDA
device, where Triton, which comes with torch's CUDA builds, can be imported.

Each row has a bit for each diagonal that has an entry there. A diagonal whose entries are all alike
is a constant: then of a row its bits alone are read, as of a stencil on a grid. Whether it is, the
device finds out for itself, and nothing waits for it.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import torch

from .arrays import asarray

Array = Any
BLOCK = 1024  # numbers of the product that a program of the kernel computes
MOST_DIAGONALS = 31  # bits of a number


def fuses_diagonals(x: Any) -> bool:
    """Whether products by diagonals with vectors like x are one pass over memory here."""
    is_there = x.is_cuda and x.dtype in (torch.float32, torch.float64) and has_triton()
    return is_there and not torch.compiler.is_compiling()


@functools.cache
def has_triton() -> bool:
    """Whether Triton can be imported."""
    return importlib.util.find_spec("triton") is not None


def sparse_diagonals(data: Array, structure: Any) -> tuple[Array, ...]:
    """The entries of a sparse matrix of few diagonals as `diagonals_matmul` takes them."""
    key = "torch diagonals", data.device
    if key not in structure.memo:
        _, *host = structure.diagonals
        structure.memo[key] = tuple(asarray(x.copy(), device=data.device) for x in host)
    places, bits = structure.memo[key]
    values = data.new_zeros(len(structure.diagonals[0]) * structure.shape[0])
    values[places] = data
    return lay_out(values.reshape(-1, structure.shape[0]), bits)


def lay_out(values: Array, bits: Array) -> tuple[Array, ...]:
    """Diagonals (d, m) by rows, bits that say where they have entries (m,), of each diagonal
    one entry, and whether it has others. Of (d, 1) it has not."""
    if values.shape[1] == 1:
        none = torch.zeros(len(values), dtype=torch.uint8, device=values.device)
        return values, _narrow(bits, len(values)), values[:, 0], none
    d = torch.arange(len(values), device=values.device)[:, None]
    has = (bits.to(torch.int32) >> d) & 1 != 0
    first = values.gather(1, has.to(torch.uint8).argmax(1, keepdim=True))
    varies = (has & (values != first)).any(1)
    return values, _narrow(bits, len(values)), first[:, 0], varies.to(torch.uint8)


def _narrow(bits: Array, count: int) -> Array:
    """The bits of so many diagonals in as little memory as they take."""
    return bits.to(torch.uint8 if count <= 8 else torch.int32)


def diagonals_matmul(parts: tuple[Array, ...], offsets: tuple[int, ...], X: Array) -> Array:
    """Multiply the matrix of these diagonals by X, (*batch, n, k) or a vector (n,)."""
    values, bits, firsts, varies = parts
    dtype = torch.promote_types(firsts.dtype, X.dtype)
    if dtype.is_complex:  # of a real matrix
        Y = diagonals_matmul(parts, offsets, torch.view_as_real(X.to(dtype)).flatten(-2))
        return torch.view_as_complex(Y.unflatten(-1, (-1, 2)))
    X = X.to(dtype).contiguous()
    if X.ndim > 2:
        found = [diagonals_matmul(parts, offsets, x) for x in X.reshape(-1, *X.shape[-2:])]
        return torch.stack(found).reshape(*X.shape[:-2], *found[0].shape)
    Y = X.new_empty(len(bits), *X.shape[1:])
    if not Y.numel():
        return Y
    steps, columns = _steps(offsets, X.device), 1 if X.ndim == 1 else X.shape[1]
    arguments = Y, X, values, firsts, varies, bits, steps, len(bits), columns
    programs = (-(-Y.numel() // BLOCK),)
    with torch.cuda.device_of(X):
        _kernel()[programs](*arguments, D=len(offsets), BLOCK=BLOCK, IS_VECTOR=columns == 1)
    return Y


@functools.lru_cache(maxsize=256)
def _steps(offsets: tuple[int, ...], device: Any) -> Array:
    """The offsets on the device."""
    return asarray(list(offsets), dtype=torch.int64, device=device)


@functools.cache
def _kernel() -> Any:
    import triton  # when it is first needed: that takes as long as the import of this package
    import triton.language as tl

    # fmt: off
    @triton.jit
    def multiply(  # type: ignore[no-untyped-def]
        y, x, values, firsts, varies, bits, offsets, rows, columns,
        D: tl.constexpr, BLOCK: tl.constexpr, IS_VECTOR: tl.constexpr,
    ):
        # fmt: on
        place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        row = place if IS_VECTOR else place // columns
        there = tl.load(bits + row, mask=row < rows, other=0).to(tl.int32)
        total = tl.zeros((BLOCK,), dtype=y.dtype.element_ty)
        at = row  # of the entry: 64 bits, as all of them may be more than 2^31
        for d in tl.static_range(D):
            has = ((there >> d) & 1) != 0
            unlike = has & (tl.load(varies + d) != 0)
            first = tl.load(firsts + d)
            value = tl.load(values + at, mask=unlike, other=first).to(total.dtype)
            right = tl.load(x + place + tl.load(offsets + d) * columns, mask=has, other=0.0)
            total += tl.where(has, value * right, 0.0)
            at += rows
        tl.store(y + place, total, mask=row < rows)

    return multiply
