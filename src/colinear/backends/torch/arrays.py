"""Dtypes, new arrays, random arrays, and arrays in and out of torch."""

from __future__ import annotations

import builtins
import functools
import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch.utils.checkpoint
from torch import bfloat16, bool, complex64, complex128, float16, float32, float64
from torch._C import _functorch
from torch.autograd import forward_ad

from ..shared import LENT_DTYPES, fold_in
from ..shared import itself as staged  # what is computed from values can be seen too
from .mesh import MESHES, device_in, gather_whole, is_mesh, is_spread, moved, placed
from .mesh import place_of as device_of

name = "torch"
is_functional = False  # whether arrays are never written over, and loops are compiled
hides_values = True  # whether values may be traced, or their derivatives recorded
array_types = (torch.Tensor,)
is_compiling = torch.compiler.is_compiling

# dtypes
# --------------------------------------------------------------------------------------------------


def dtype_from(dtype: Any) -> torch.dtype:
    """The dtype called `dtype` ("float32", or NumPy's), or `dtype` itself."""
    if isinstance(dtype, torch.dtype):
        return dtype
    return getattr(torch, dtype if isinstance(dtype, str) else np.dtype(dtype).name)


def dtype_name(dtype: Any) -> str:
    return str(dtype_from(dtype)).removeprefix("torch.")


def result_type(*values: Any) -> torch.dtype:
    """The dtype of a sum of these tensors, dtypes and scalars; as in torch, those without
    dimensions count less, numbers least.

    Not `torch.result_type`: that takes two operands, and torch.compile cannot trace what returns a
    dtype.
    """
    full = flat = number = None
    for value in values:
        if isinstance(value, torch.dtype) or (isinstance(value, torch.Tensor) and value.ndim > 0):
            full = _promote(full, value if isinstance(value, torch.dtype) else value.dtype)
        elif isinstance(value, torch.Tensor):
            flat = _promote(flat, value.dtype)
        elif isinstance(value, builtins.bool | int | float | complex):
            number = _promote(number, _dtype_of_number(value))
        else:
            full = _promote(full, dtype_from(getattr(value, "dtype", value)))
    return _outrank(full, _outrank(flat, number))


def _promote(x: torch.dtype | None, y: torch.dtype) -> torch.dtype:
    return y if x is None or x is y else torch.promote_types(x, y)


def _outrank(higher: torch.dtype | None, lower: torch.dtype | None) -> Any:
    """The lower only matters where it is of a higher kind (integer, real, complex), and then for
    its kind alone if it can."""
    if higher is None or lower is None:
        return lower if higher is None else higher
    if higher.is_complex or (higher.is_floating_point and not lower.is_complex):
        return higher
    if higher.is_floating_point:
        return complex_dtype(higher)
    if higher is bool or lower.is_floating_point or lower.is_complex:
        return torch.promote_types(higher, lower)
    return higher


def _dtype_of_number(x: Any) -> torch.dtype:
    if isinstance(x, builtins.bool):
        return bool
    if isinstance(x, int):
        return torch.int64
    return default_float() if isinstance(x, float) else complex_dtype(default_float())


def _dtype(x: Any) -> torch.dtype:
    return x if isinstance(x, torch.dtype) else result_type(x)


def is_complex(x: Any) -> builtins.bool:
    """Whether a tensor or dtype is complex."""
    return x.dtype.is_complex if isinstance(x, torch.Tensor) else _dtype(x).is_complex


def is_floating(x: Any) -> builtins.bool:
    """Whether a tensor or dtype is real or complex floating, not integer or boolean."""
    dtype = x.dtype if isinstance(x, torch.Tensor) else _dtype(x)
    return dtype.is_floating_point or dtype.is_complex


_REAL_OF = {torch.complex32: float16, complex64: float32, complex128: float64}


def real_dtype(dtype: Any) -> torch.dtype:
    # not to_real(): Dynamo (2.13) does not trace it
    dtype = dtype_from(dtype)
    return _REAL_OF.get(dtype, dtype)


def complex_dtype(dtype: Any) -> torch.dtype:
    # not to_complex(): complex32 has no linear algebra
    return torch.promote_types(dtype_from(dtype), complex64)


def eps(dtype: Any) -> float:
    """The distance from 1 to the next number."""
    return torch.finfo(dtype_from(dtype)).eps


default_float = torch.get_default_dtype


# arrays
# --------------------------------------------------------------------------------------------------


def asarray(x: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
    dtype = None if dtype is None else dtype_from(dtype)
    if isinstance(x, torch.Tensor) and dtype in (None, x.dtype) and device in (None, device_of(x)):
        return x
    if not isinstance(x, torch.Tensor | int | float | complex | list | tuple):
        x = np.asarray(x)
        # dynamo knows neither flags nor strides, and needs no copy
        x = x if is_compiling() else _writeable(x)
    if under_way.looks is not None and not isinstance(x, torch.Tensor | list | tuple):
        return under_way.looks.send(x, dtype, device)
    return as_new(x, dtype, device)


def as_new(x: Any, dtype: Any, device: Any) -> torch.Tensor:
    """A tensor with these values on a device."""
    if device is None or is_compiling():
        return torch.as_tensor(x, dtype=dtype, device=device)
    return _moved(torch.as_tensor(x, dtype=dtype), device)


class _UnderWay(threading.local):
    """What this thread is doing."""

    looks: Any = None  # those of a call that is recorded (`looks.Looks`)


under_way = _UnderWay()


def _moved(x: torch.Tensor, device: Any) -> torch.Tensor:
    """The tensor on a device. To a CUDA device it is copied behind what that has still to do: what
    is not in pinned memory has left the host when the call returns."""
    if device is None:
        return x
    here = device_in(device)
    is_sent = x.is_cpu and here.type == "cuda"
    return placed(x.to(here, non_blocking=is_sent), device)


def astype(x: Any, dtype: Any) -> torch.Tensor:
    if dtype is x.dtype:
        return x
    dtype = dtype_from(dtype)
    if x.is_complex() and not dtype.is_complex:
        raise TypeError(f"astype: {x.dtype} would lose its imaginary part in {dtype}: xp.real")
    return x.to(dtype)


def _placed(create: Callable) -> Callable:
    """A function that makes tensors, of a dtype or its name, on a device or on a mesh."""

    @functools.wraps(create)
    def created(*arguments: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
        dtype = None if dtype is None else dtype_from(dtype)
        if not isinstance(device, MESHES):
            return create(*arguments, dtype=dtype, device=device)
        return placed(create(*arguments, dtype=dtype, device=device_in(device)), device)

    return created


zeros, ones, eye, arange = (
    _placed(create) for create in (torch.zeros, torch.ones, torch.eye, torch.arange)
)


@_placed
def full(shape: Any, value: Any, dtype: Any = None, device: Any = None) -> torch.Tensor:
    shape = (shape,) if isinstance(shape, int) else shape
    if isinstance(value, torch.Tensor):
        return value.to(dtype=dtype, device=device).expand(shape).clone()
    return torch.full(shape, value, dtype=dtype, device=device)


def is_beside(x: Any, context: Any) -> builtins.bool:
    """Whether x is a tensor of this dtype and on this device, and not a sparse one."""
    return (
        type(x) is torch.Tensor
        and x.dtype is context.dtype
        and not (x.is_sparse or x.is_sparse_csr)
        and x.device == context.device
    )


def device_memory(device: Any, free: builtins.bool = False) -> float:
    """Bytes of the memory of a device, or of what is free of it, infinity where that is not
    known."""
    device = device_in(device)
    if device.type != "cuda":
        return math.inf
    if not free or torch.cuda.is_current_stream_capturing():
        return float(torch.cuda.get_device_properties(device).total_memory)
    # what torch holds in reserve is free too
    reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return float(torch.cuda.mem_get_info(device)[0] + reserve)


def device_name(device: Any) -> str:
    """What a device is called, empty where that is not known."""
    is_cuda = torch.device(device).type == "cuda"
    return str(torch.cuda.get_device_name(device)) if is_cuda else ""


def to_device(x: Any, device: Any) -> torch.Tensor:
    if is_mesh(device):
        return moved(x, device)
    return x if device is None else gather_whole(x).to(device)


def to_numpy(x: Any) -> np.ndarray:
    x = gather_whole(x)
    if _functorch.is_functorch_wrapped_tensor(x):
        x = _values(x)  # inside torch.func.grad or jvp
        assert x is not None, "the values of this tensor cannot be seen here"
    # under a transformation the result of any operation would be wrapped again
    with torch._C._DisableFuncTorch():
        x = x.detach()
        return (x.float() if x.dtype == bfloat16 else x).numpy(force=True)  # NumPy has no bfloat16


HOST_DTYPES = {getattr(torch, name): np.dtype(name) for name in LENT_DTYPES}
LENT_ENTRIES = 2**14  # of a tensor that NumPy computes with: for larger ones torch is as fast


def may_lend(context: Any) -> builtins.bool:
    """Whether NumPy may compute for torch in this dtype."""
    return context.dtype in HOST_DTYPES and is_unwatched(context)


def is_unwatched(context: Any) -> builtins.bool:
    """Whether no mode and no transformation sees what is done."""
    return not (
        isinstance(context.device, MESHES)
        or torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or _functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or torch._C._get_tracing_state() is not None
    )


def lend(x: Any, dtype: Any, device: Any) -> np.ndarray | None:
    """x as NumPy computes with it where it lies: a small tensor in the memory of the host, of this
    dtype (NumPy joins two as torch does not) or of integers, of which no derivatives are recorded;
    None for any other."""
    if (
        type(x) not in _LENT_TYPES
        or x.numel() > LENT_ENTRIES
        or not x.is_cpu
        or x.dtype not in HOST_DTYPES
        or (x.dtype is not dtype and is_floating(x))
        or (x.requires_grad and torch.is_grad_enabled())
        or x.layout is not torch.strided
    ):
        return None
    return x.numpy(force=x.requires_grad or x.dtype.is_complex)


_LENT_TYPES = (torch.Tensor, torch.nn.Parameter)


host_dtype = HOST_DTYPES.__getitem__  # NumPy's dtype of this name


def usual_device() -> Any:
    """The device where torch puts what NumPy lends: none, since it always says where a tensor
    is."""
    return None


def adopt(x: np.ndarray, device: Any) -> torch.Tensor:
    """NumPy's array as a tensor, with its memory where torch can write to that."""
    return torch.from_numpy(_writeable(x))


def _writeable(x: np.ndarray) -> np.ndarray:
    """x itself, or a copy where torch would warn that it is read-only, or refuse its strides."""
    if x.flags.writeable and builtins.min(x.strides, default=0) >= 0:  # also of an axis of length 1
        return x
    return x.copy()


copy = torch.clone


def own(x: torch.Tensor, lenders: Any) -> torch.Tensor:
    """`x` as a tensor that can be written to without changing one of the tensors in `lenders`:
    cloned if need be."""
    tensors = [y for y in lenders if isinstance(y, torch.Tensor)]
    shared = builtins.any(
        y is x or (_memory(y) is not None and _memory(y) == _memory(x)) for y in tensors
    )
    return x.clone() if shared else x


def _memory(x: torch.Tensor) -> int | None:
    """Where the numbers of a tensor are stored; None under a transformation, where nothing is
    written in place."""
    try:
        if is_compiling():
            return None
        return (x.to_local() if is_spread(x) else x).untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):  # a wrapper of torch.func, a sparse tensor
        return None


def _values(x: Any) -> Any:
    """The tensor inside the wrappers of torch.func.grad and jvp, which have values; None if vmap
    or a trace hides them."""
    if is_compiling():
        return None
    if type(x) is torch.Tensor and not _functorch.is_functorch_wrapped_tensor(x):
        return None if x.is_meta else x
    while _functorch.is_functorch_wrapped_tensor(x):
        if not _functorch.is_gradtrackingtensor(x):
            return None
        x = _functorch.get_unwrapped(x)
    return None if x.is_meta or _is_fake(x) else x


def _is_fake(x: torch.Tensor) -> builtins.bool:
    if type(x) in (torch.Tensor, torch.nn.Parameter):
        return False
    from torch._subclasses.fake_tensor import FakeTensor
    from torch._subclasses.functional_tensor import FunctionalTensor

    return isinstance(x, FakeTensor | FunctionalTensor)


HOSTS = frozenset({"cpu"})  # the devices of which a look at values waits for nothing


def is_on_device(x: Any) -> builtins.bool:
    """Whether x is on a device, for which a look at its values must wait, or on a mesh."""
    # quicker than the name of its device
    return not (x.is_cpu and "cpu" in HOSTS) or (type(x) is not torch.Tensor and is_spread(x))


def peek(x: Any) -> Any:
    """The value as a NumPy array if it can be seen now without cost (not traced, not on a GPU),
    else None."""
    if not isinstance(x, torch.Tensor):
        return x
    if type(x) is torch.Tensor and x.dtype in HOST_DTYPES and x.layout is torch.strided:
        if not is_compiling() and _functorch.peek_interpreter_stack() is None:
            return None if is_on_device(x) else x.numpy(force=True)  # nothing is in the way
    x = _values(x)
    if x is None or is_on_device(x) or x.layout != torch.strided:
        return None
    return to_numpy(x)


def is_traced(x: Any) -> builtins.bool:
    """Whether values cannot be seen: under vmap, fake or meta tensors, and torch.compile."""
    return isinstance(x, torch.Tensor) and _values(x) is None


# random
# --------------------------------------------------------------------------------------------------


def generator(seed: Any) -> torch.Generator:
    """A source of random numbers from an integer, a torch or NumPy generator, or a JAX key. It
    draws on the host."""
    if isinstance(seed, torch.Generator):
        return seed
    if not isinstance(seed, int):
        from colinear.backends import numpy

        seed = int(numpy.generator(seed).integers(2**63))
    return torch.Generator().manual_seed(seed % 2**64)


def split(gen: torch.Generator, n: int = 2) -> list[torch.Generator]:
    """`n` independent generators."""
    with torch._C._DisableFuncTorch():
        seeds = torch.randint(2**63 - 1, (n,), generator=gen, device=gen.device).tolist()
    return [generator(seed) for seed in seeds]


def _draw(
    draw: Callable,
    gen: torch.Generator,
    shape: Any,
    dtype: Any = None,
    device: Any = None,
) -> torch.Tensor:
    # Inside vmap torch refuses random numbers unless told how they vary; ours are the same for
    # every element, as in JAX.
    dtype = None if dtype is None else dtype_from(dtype)
    with torch._C._DisableFuncTorch():
        return _moved(draw(shape, generator=gen, dtype=dtype, device=gen.device), device)


# Standard normal numbers, of which complex ones have E|z|^2 = 1; and uniform numbers in [0, 1), or
# in the unit square if complex.
normal, uniform = (functools.partial(_draw, draw) for draw in (torch.randn, torch.rand))


def rademacher(
    gen: torch.Generator, shape: Any, dtype: Any = None, device: Any = None
) -> torch.Tensor:
    """Signs, +1 or -1; if complex, 1, i, -1 or -i."""
    dtype = default_float() if dtype is None else dtype_from(dtype)
    if not dtype.is_complex:  # from single bits: a third of the time of integers
        size = math.prod(shape)
        draw = functools.partial(torch.randint, 256)
        octets = _draw(draw, gen, (-(-size // 8),), torch.uint8, device and device_in(device))
        bits = (octets[:, None] >> torch.arange(8, dtype=torch.uint8, device=octets.device)) & 1
        return placed((1 - 2 * bits.reshape(-1)[:size].to(dtype)).reshape(shape), device)
    draw = functools.partial(torch.randint, 4)
    values = _moved(torch.tensor([1, 1j, -1, -1j], dtype=dtype), device)
    return values[_draw(draw, gen, shape, torch.int64, device)]
