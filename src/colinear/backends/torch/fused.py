"""What takes torch several passes over memory, in one: kernels of Triton, which comes with torch's
CUDA builds, on a CUDA device where it can be imported.

Products with matrices of a few diagonals: each row has a bit for each diagonal that has an entry
there. A diagonal whose entries are all alike is a constant: then of a row its bits alone are read, as
of a stencil on a grid. Whether it is, the device finds out for itself, and nothing waits for it.
"""

from __future__ import annotations

import functools
import importlib.util
import time
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree

from .arrays import asarray, is_unwatched

Array = Any
NUMBERS = 1024  # of a vector that a program of a kernel takes
FEWEST_NUMBERS = 1 << 17  # of a vector, for which a kernel pays that takes a second to compile


def fuses_diagonals(x: Any) -> bool:
    """Whether products by diagonals with vectors like x are one pass over memory here."""
    return may_fuse(x) and x.dtype in (torch.float32, torch.float64)


def may_fuse(x: Any) -> bool:
    """Whether a kernel of ours can compute with x."""
    return x.is_cuda and _has_triton() and not torch.compiler.is_compiling()


@functools.cache
def _has_triton() -> bool:
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
        R = torch.view_as_real(X.to(dtype))  # with one more axis, of length 2
        if X.ndim == 1:
            return torch.view_as_complex(diagonals_matmul(parts, offsets, R))
        Y = diagonals_matmul(parts, offsets, R.flatten(-2))
        return torch.view_as_complex(Y.unflatten(-1, (-1, 2)))
    X = X.to(dtype).contiguous()
    if X.ndim > 2:
        found = [diagonals_matmul(parts, offsets, x) for x in X.reshape(-1, *X.shape[-2:])]
        return torch.stack(found).reshape(*X.shape[:-2], *found[0].shape)
    Y = X.new_empty(len(bits), *X.shape[1:])
    if not Y.numel():
        return Y
    columns = 1 if X.ndim == 1 else X.shape[1]
    is_wide = max(values.numel(), Y.numel() + X.numel()) >= 2**31
    steps = _steps(offsets, X.device, torch.int64 if is_wide else torch.int32)
    programs = (-(-Y.numel() // NUMBERS),)
    with torch.cuda.device_of(X):
        _product()[programs](
            *(Y, X, values, firsts, varies, bits, steps, len(bits), columns, X.numel(), 0),
            D=len(offsets),
            NUMBERS=NUMBERS,
            IS_VECTOR=columns == 1,
            IS_WIDE=is_wide,
            num_warps=8,
        )
    return Y


@functools.cache
def _steps(offsets: tuple[int, ...], device: Any, dtype: Any) -> Array:
    """The offsets on the device; all are kept, since recordings read them."""
    return asarray(list(offsets), dtype=dtype, device=device)


def descend(a: Array, p: Array, q: Array, x: Array, r: Array) -> tuple[Array, ...] | None:
    """x + a p and r - a q, written over x and r, and |r - a q|^2, for vectors and a real number on
    their device; None where torch does better."""
    if len(x) < FEWEST_NUMBERS or not may_fuse(x):
        return None
    vectors = [torch.view_as_real(v).flatten() if v.is_complex() else v for v in (p, q, x, r)]
    if not all(v.is_contiguous() and v.dtype in (torch.float32, torch.float64) for v in vectors):
        return None
    count = len(vectors[0])
    sums = vectors[0].new_empty(-(-count // NUMBERS))
    with torch.cuda.device_of(x):
        _descent()[(len(sums),)](*vectors, a, sums, count, NUMBERS=NUMBERS)
    return x, r, sums.sum()


# Entries of kernels that users have written: `torch.compile` writes no differences of points.

# of a kernel: some ten products with so many take as long as the compiler
FEWEST_ENTRIES = 2**32
QUICKER = 0.8  # of the time of torch's operations, from which what is compiled is taken
ROUNDING = 100  # eps of the largest entry, by which sums in another order may differ
UNTRIED = "compiled in an iteration if that is quicker"

_verdicts: dict[Any, str] = {}  # of functions that were tried, by their code and its arguments


def compiled_entries(
    k: Callable, X: Array, Y: Array, parameters: tuple, count: int, is_planned: bool
) -> tuple[Callable, str]:
    """k, which gives the entries of a matrix of so many between points X and Y, compiled where a
    trial with these points shows that it pays; and a word about that. A plan tries nothing."""
    is_plain = isinstance(k, types.FunctionType) and count >= FEWEST_ENTRIES
    if not is_plain or not may_fuse(X) or not is_unwatched(X):
        return k, ""
    kind = lambda x: (tuple(x.shape), x.dtype)
    kinds = pytree.tree_map_only(torch.Tensor, kind, (X, Y, parameters))
    key = k.__code__, X.device, str(kinds)
    if key not in _verdicts and not is_planned:
        _verdicts[key] = _try_compiled(k, X, Y, *parameters)
    verdict = _verdicts.get(key, UNTRIED)
    return (Compiled(k) if verdict == "compiled" and not is_planned else k), verdict


class Compiled:
    """k compiled, and k itself where something else sees its operations."""

    def __init__(self, k: Callable):
        self.k, self.__name__ = k, k.__name__
        self.fast = torch.compile(k, fullgraph=True, dynamic=False)

    def __call__(self, X: Array, *others: Any) -> Array:
        if is_unwatched(X):
            try:
                return self.fast(X, *others)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception:  # with these arguments it cannot be compiled
                pass
        return self.k(X, *others)


def _try_compiled(k: Callable, *arguments: Any) -> str:
    """Whether k is compiled from now on, or why not."""
    fast = torch.compile(k, fullgraph=True, dynamic=False)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # advice to take TF32
            found = fast(*arguments)
            expected = k(*arguments)
            seconds = [_seconds(f, *arguments) for f in (fast, k)]
    except Exception as error:  # of the compiler, which knows many
        return f"not compiled ({type(error).__name__})"
    distance = (found - expected).abs().max()
    if not distance <= ROUNDING * torch.finfo(found.dtype).eps * expected.abs().max():
        return "not compiled, since that gives other entries"
    return "compiled" if seconds[0] < QUICKER * seconds[1] else "not compiled, which is as quick"


def _seconds(f: Callable, *arguments: Any) -> float:
    """The time of a call, of which the device has nothing else to do."""
    wait = torch.cuda.synchronize if arguments[0].is_cuda else lambda device: None
    wait(arguments[0].device)
    began = time.perf_counter()
    f(*arguments)
    wait(arguments[0].device)
    return time.perf_counter() - began


# The kernels. Triton is imported when one is first needed: that takes as long as this package.


@functools.cache
def _product() -> Any:
    import triton
    import triton.language as tl

    # Of `start`, which is zero, the compiler does not know that it is a multiple of anything. So it
    # gives neighbouring threads neighbouring numbers, not four each: most reads are off by some.
    # fmt: off
    @triton.jit(do_not_specialize=["start"])
    def multiply(  # type: ignore[no-untyped-def]
        y, x, values, firsts, varies, bits, offsets, rows, columns, count, start,
        D: tl.constexpr, NUMBERS: tl.constexpr, IS_VECTOR: tl.constexpr, IS_WIDE: tl.constexpr,
    ):
        # fmt: on
        begin = tl.program_id(0)
        begin = (begin.to(tl.int64) if IS_WIDE else begin) * NUMBERS + start
        place = begin + tl.arange(0, NUMBERS)
        row = place if IS_VECTOR else place // columns
        there = tl.load(bits + row, mask=row < rows, other=0).to(tl.int32)
        total = tl.zeros((NUMBERS,), dtype=y.dtype.element_ty)
        at = row  # of the entry
        for d in tl.static_range(D):
            # what is read does not wait for the bits, which say only what counts
            unlike = (row < rows) & (tl.load(varies + d) != 0)
            first = tl.load(firsts + d)
            value = tl.load(values + at, mask=unlike, other=first).to(total.dtype)
            other = place + tl.load(offsets + d) * columns
            right = tl.load(x + other, mask=(other >= 0) & (other < count), other=0.0)
            total += tl.where(((there >> d) & 1) != 0, value * right, 0.0)
            at += rows
        tl.store(y + place, total, mask=row < rows)

    return multiply


@functools.cache
def _descent() -> Any:
    import triton
    import triton.language as tl

    @triton.jit
    def descend(p, q, x, r, a, sums, count, NUMBERS: tl.constexpr):  # type: ignore[no-untyped-def]
        program = tl.program_id(0).to(tl.int64)
        i = program * NUMBERS + tl.arange(0, NUMBERS)
        mask = i < count
        alpha = tl.load(a)
        moved = tl.load(x + i, mask=mask, other=0.0) + alpha * tl.load(p + i, mask=mask, other=0.0)
        tl.store(x + i, moved, mask=mask)
        left = tl.load(r + i, mask=mask, other=0.0) - alpha * tl.load(q + i, mask=mask, other=0.0)
        tl.store(r + i, left, mask=mask)
        tl.store(sums + program, tl.sum(left * left, axis=0))

    return descend
