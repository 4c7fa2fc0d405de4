"""Steps of an iteration, and whole calls, as CUDA graphs, which the device replays without Python."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .arrays import is_unwatched
from .looks import Looks, pack

# What cannot be recorded: what draws random numbers, what has a result whose values or shape the
# host must see, and linear algebra, which may look at its errors, but for what was seen to be
# recorded right (torch 2.11).
_UNFIT_TAGS = {
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.nondeterministic_seeded,
}
SPARE = 6  # times the memory of what is recorded: the copies, and what a step computes beside
_LINALG = ("linalg_", "cholesky", "geqrf", "ormqr", "orgqr", "lstsq", "triangular_solve", "svd")
_FIT_LINALG = (
    *("vector_norm", "vecdot", "solve_triangular", "cross", "matrix_norm"),
    *("lu_factor_ex", "lu_solve", "cholesky_ex"),
)


class _Watch(TorchDispatchMode):
    """Sees whether all operations inside can be recorded: without tensors of the `host`; and
    whether there are any, beside views."""

    def __init__(self, host: str = "cpu"):
        super().__init__()
        self.host, self.can_record, self.has_launched = host, True, False

    @property
    def is_fit(self) -> bool:
        return self.can_record and self.has_launched

    def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = f(*args, **(kwargs or {}))
        name = f._schema.name
        tensors = [x for x in (*args, result) if isinstance(x, torch.Tensor)]
        on_host = [x for x in tensors if x.device.type == self.host]
        # a number of the host takes part in arithmetic as itself, but is copied to the device
        is_moved = any(x.ndim or "copy" in name for x in on_host)
        if _UNFIT_TAGS & set(f.tags) or is_moved or not _is_fit(name, tensors):
            self.can_record = False
        views = [r.alias_info and not r.alias_info.is_write for r in f._schema.returns]
        self.has_launched |= not all(views)
        return result


def _is_fit(name: str, tensors: list[Any]) -> bool:
    """Whether an operation is none of linear algebra, or one that was seen to be recorded right."""
    if "cholesky_solve" in name:  # of a stack MAGMA's
        return all(x.ndim == 2 for x in tensors)
    is_of_linalg = any(part in name for part in _LINALG)
    return not is_of_linalg or any(part in name for part in _FIT_LINALG)


@contextlib.contextmanager
def watch_operations(x: Any) -> Iterator[Any]:
    """Sees whether all operations inside, of tensors beside x, can be recorded: its `is_fit` says
    so."""
    if not x.is_cuda or torch.cuda.is_current_stream_capturing():
        yield None
        return
    with _Watch() as watch:
        yield watch


class Recorder:
    """What is asked of calls on a CUDA device that may be recorded."""

    pack, looks = staticmethod(pack), Looks

    def __init__(self, device: Any):
        self.device = device

    def settings(self) -> tuple[Any, ...]:
        """What else than its arguments a call of torch's depends on."""
        stream = torch.cuda.current_stream(self.device).cuda_stream
        precision = torch.get_float32_matmul_precision()
        return stream, precision, torch.are_deterministic_algorithms_enabled()

    def layout(self, x: Any) -> Any:
        """What a recording knows of a tensor; None of one that cannot be copied into one, or whose
        derivatives are recorded."""
        is_plain = type(x) in (torch.Tensor, torch.nn.Parameter) and x.layout is torch.strided
        is_differentiated = x.requires_grad and torch.is_grad_enabled()
        if not is_plain or is_differentiated or x.device != self.device:
            return None
        return x.dtype, x.shape, x.stride()


def recorder(context: Any) -> Recorder | None:
    """Who records calls of operators that live there; None where nothing is to be recorded."""
    device = context.device
    if getattr(device, "type", None) != "cuda" or torch.compiler.is_compiling():
        return None
    if not is_unwatched(context):
        return None
    if torch.is_autocast_enabled("cuda") or torch.cuda.is_current_stream_capturing():
        return None
    return Recorder(device)


def record(
    f: Callable[..., Sequence[Any]], arrays: Sequence[Any]
) -> tuple[list[Any], Callable[[], list[Any]]] | None:
    """Copies of the arrays, and a function that launches what `f(*copies)` launches, writes its
    first results over the copies and returns the others; if it is given other arrays, these are
    written over the copies first. None if that cannot be recorded.

    `f` is called, but nothing is computed. What is made once must be there, and
    `watch_operations` must have seen its operations.
    """
    device = arrays[0].device
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    free -= torch.cuda.memory_allocated(device)
    if free < SPARE * sum(x.nbytes for x in arrays):
        return None
    arrays = [x.detach().resolve_conj().resolve_neg().clone() for x in arrays]
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
        except BaseException:
            _give_up(graph, device)
            raise
    others = results[len(arrays) :]

    def replay(given: Sequence[Any] = ()) -> Any:
        if given:
            torch._foreach_copy_(arrays, [*given])
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
