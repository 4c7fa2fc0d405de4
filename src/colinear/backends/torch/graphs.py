"""Steps of an iteration as a CUDA graph, which the device replays without Python."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# What cannot be recorded: what draws random numbers, what has a result whose values or shape the
# host must see, and factorisations, which look at their errors.
_UNFIT_TAGS = {
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.nondeterministic_seeded,
}
SPARE = 6  # times the memory of what is recorded: the copies, and what a step computes beside
_FIT_LINALG = ("vector_norm", "vecdot", "solve_triangular", "cross", "matrix_norm")


class _Watch(TorchDispatchMode):
    """Sees whether all operations inside can be recorded: without tensors of the `host`."""

    def __init__(self, host: str = "cpu"):
        super().__init__()
        self.host, self.is_fit = host, True

    def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = f(*args, **(kwargs or {}))
        name = f._schema.name
        is_factorisation = "linalg_" in name and not any(part in name for part in _FIT_LINALG)
        tensors = [x for x in (*args, result) if isinstance(x, torch.Tensor)]
        tensors = [x for x in tensors if x.device.type == self.host]
        # a number of the host takes part in arithmetic as itself, but is copied to the device
        is_moved = any(x.ndim or "copy" in name for x in tensors)
        if _UNFIT_TAGS & set(f.tags) or is_factorisation or is_moved:
            self.is_fit = False
        return result


@contextlib.contextmanager
def watch_operations(x: Any) -> Iterator[Any]:
    """Sees whether all operations inside, of tensors beside x, can be recorded: its `is_fit` says
    so."""
    if not x.is_cuda or torch.cuda.is_current_stream_capturing():
        yield None
        return
    with _Watch() as watch:
        yield watch


def record(
    f: Callable[..., Sequence[Any]], arrays: Sequence[Any]
) -> tuple[list[Any], Callable[[], list[Any]]] | None:
    """Copies of the arrays, and a function that launches what `f(*copies)` launches, writes its
    first results over the copies and returns the others. None if that cannot be recorded.

    `f` is called, but nothing is computed. What is made once must be there, and
    `watch_operations` must have seen its operations.
    """
    device = arrays[0].device
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    free -= torch.cuda.memory_allocated(device)
    if free < SPARE * sum(x.nbytes for x in arrays):
        return None
    arrays = [x.clone() for x in arrays]
    stream, graph = torch.cuda.Stream(device), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        # Other threads may do what they like. (`torch.cuda.graph` also waits for the device, and
        # gives its memory back.)
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            results = list(f(*arrays))
            own = [x.untyped_storage().data_ptr() for x in arrays]
            for i, (x, y) in enumerate(zip(arrays, results)):
                if y is not x and y.untyped_storage().data_ptr() in own:
                    results[i] = y.clone()  # before something else is written there
            for x, y in zip(arrays, results):
                if y is not x:
                    x.copy_(y)
            graph.capture_end()
        except RuntimeError:
            _give_up(graph, device)
            return None
    others = results[len(arrays) :]

    def replay() -> Any:
        graph.replay()
        return [x.clone() for x in others]

    return arrays, replay


def _give_up(graph: Any, device: Any) -> None:
    """Bring torch in order after a recording that failed: its generator of random numbers believes
    to be recorded until a recording ends well, and its allocator keeps the memory for it."""
    with contextlib.suppress(RuntimeError):
        graph.capture_end()
    with contextlib.suppress(RuntimeError, AttributeError):
        torch._C._cuda_endAllocateToPool(device.index or 0, graph.pool())
    another, x = torch.cuda.CUDAGraph(), torch.zeros(1, device=device)
    with torch.cuda.stream(torch.cuda.Stream(device)):
        another.capture_begin(capture_error_mode="thread_local")
        x += 1
        another.capture_end()
