"""Meshes of devices in torch: tensors that are spread over several processes (`DTensor`), how new
tensors are placed beside them, and what DTensor leaves undone.

The place of such a tensor is its mesh, never its layout. A call on one runs in the mode `Spread`,
which sees each operation of torch on it:

- A plain tensor beside it is one of ours, made alike on every device: it counts as whole there.
- A sum that is still to be made over the devices is made at once. It is then made once, however
  often it is used, and nothing is ever written into it.
- What DTensor cannot divide (most factorisations) is computed whole on every device.

New tensors are whole on every device, but for those with a dimension as long as one along which an
operand of the call is cut: these are cut like it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .. import modes

if torch.distributed.is_available():
    from torch.distributed.device_mesh import DeviceMesh

    MESHES: tuple[type, ...] = (DeviceMesh,)
else:
    MESHES = ()
CUTS_EVENLY = True  # whether `shard` cuts only what the devices divide; DTensor itself need not


def _tensors() -> Any:
    """torch's module of spread tensors; None as long as nobody has imported it."""
    return sys.modules.get("torch.distributed.tensor")


def is_spread(x: Any) -> bool:
    """Whether a tensor lies on a mesh."""
    if type(x) is torch.Tensor or (module := _tensors()) is None:
        return False
    return isinstance(x, module.DTensor)


def is_mesh(place: Any) -> bool:
    """Whether a place is a mesh."""
    return isinstance(place, MESHES)


def place_of(x: Any) -> Any:
    """The mesh of a spread tensor, the device of another."""
    if type(x) is torch.Tensor or not is_spread(x):
        return x.device
    _join_modes()
    return x.device_mesh


def _join_modes() -> None:
    """Let calls ask `is_strict` from now on, since there are spread tensors."""
    if (here := sys.modules[__name__]) not in modes:
        modes.append(here)


def device_in(place: Any) -> torch.device:
    """The device of this process in a mesh, or a device itself."""
    if not is_mesh(place):
        return torch.device(place)
    kind = place.device_type
    return torch.device(kind) if kind == "cpu" else torch.device(kind, torch.cuda.current_device())


# Layouts. `cuts` say how a tensor is cut: a dimension, counted from the last, and the axis of the
# mesh over which it is cut.
# --------------------------------------------------------------------------------------------------


def axis_sizes(mesh: Any) -> dict[str, int]:
    """The names of the axes of a mesh, "0", "1", ... where they have none, and their devices."""
    names = mesh.mesh_dim_names or tuple(map(str, range(mesh.ndim)))
    return dict(zip(names, tuple(mesh.mesh.shape), strict=True))


def place_on_mesh(x: Any, mesh: Any, cuts: dict[int, str]) -> Any:
    """x, which is the same in every process, cut over the mesh; whole along axes without a cut.
    Derivatives reach a tensor x."""
    x = x if isinstance(x, torch.Tensor) else torch.as_tensor(np.asarray(x))
    layout = _layout(mesh, {axis: dimension + x.ndim for dimension, axis in cuts.items()})
    if is_spread(x):
        return x.redistribute(mesh, layout)
    x = x.to(device_in(mesh))
    whole = _tensor_module().DTensor.from_local(x, mesh, _layout(mesh, {}), run_check=False)
    return whole.redistribute(mesh, layout)


def cuts_of(x: Any) -> dict[int, str]:
    """How a tensor is cut; nothing where each process has all of it."""
    if not is_spread(x):
        return {}
    pairs = zip(axis_sizes(x.device_mesh), x.placements, strict=True)
    return {layout.dim - x.ndim: axis for axis, layout in pairs if hasattr(layout, "dim")}


def gather_whole(x: Any) -> Any:
    """The whole of a spread tensor, in every process."""
    return x.full_tensor() if is_spread(x) else x


def from_local_rows(x: Any, mesh: Any, axis: str, rows: int) -> Any:
    """A tensor of so many rows, of which each process gives its own: x."""
    x = torch.as_tensor(np.asarray(x), device=device_in(mesh))
    return _from_parts(x, mesh, {axis: 0}, (rows, *x.shape[1:]))


def local_rows(mesh: Any, axis: str, rows: int) -> slice:
    """The rows that this process has of a tensor of so many, cut along an axis of the mesh."""
    sizes = axis_sizes(mesh)
    here, most = mesh.get_local_rank(list(sizes).index(axis)), -(-rows // sizes[axis])
    return slice(min(here * most, rows), min((here + 1) * most, rows))


def bytes_per_device(x: Any) -> int:
    """The bytes of the largest part of a tensor on one device."""
    if not is_spread(x):
        return x.numel() * x.itemsize
    shape, sizes = list(x.shape), axis_sizes(x.device_mesh)
    for dimension, axis in cuts_of(x).items():
        shape[dimension] = -(-shape[dimension] // sizes[axis])
    return int(np.prod(shape, dtype=np.int64)) * x.itemsize


def automatic(mesh: Any) -> Any:
    """The mesh itself: those of torch are all of one kind."""
    return mesh


def apply_by_rows(
    f: Callable, mesh: Any, axis: str, cut: tuple[Any, ...], whole: Any, ndim: int = 2
) -> Any:
    """`f(cut, whole)` in each process, of its rows (dimension -2) of the tensors in `cut` and of all
    that is in `whole`; the answer, of so many dimensions, has the rows that belong to those.

    f says by `gather_rows`, `shift_rows` and `exchange` what processes send to each other; nothing
    else is sent. Each process must have as many rows.
    """

    def rows(x: Any) -> Any:
        layout = _layout(mesh, {axis: x.ndim - 2})
        return placed(x, mesh).redistribute(mesh, layout).to_local()

    def all_of(x: Any) -> Any:
        return _all_of(placed(x, mesh), mesh, axis)

    with around(*cut):
        parts = f(tuple(map(rows, cut)), pytree.tree_map_only(torch.Tensor, all_of, whole))
    shape = (*parts.shape[:-2], parts.shape[-2] * axis_sizes(mesh)[axis], parts.shape[-1])
    return _from_parts(parts, mesh, {axis: parts.ndim - 2}, shape)


def sum_once(f: Callable, axis: int, *arrays: Any) -> tuple[Any, ...]:
    """`f(*arrays)`, some sums over this axis of all of the arrays: where they are cut along it, each
    process makes those of its parts, and all of these are summed at once. Of arrays that are whole
    it takes its part."""
    if type(arrays[0]) is torch.Tensor:  # the quickest answer to what is asked most often
        return f(*arrays)
    cuts = next((found for x in arrays if (found := cuts_of(x))), {})
    is_alike = all(
        is_spread(x) and not x.requires_grad and cuts_of(x) in ({}, cuts) for x in arrays
    )
    if list(cuts) != [axis] or not is_alike:
        return f(*arrays)
    mesh = arrays[0].device_mesh
    parts = f(*(place_on_mesh(x, mesh, cuts).to_local() for x in arrays))
    parts = tuple(x.resolve_conj() for x in parts)
    flat = [(torch.view_as_real(x) if x.is_complex() else x).reshape(-1) for x in parts]
    module, names = _tensor_module(), axis_sizes(mesh)
    layout = [module.Partial() if name == cuts[axis] else module.Replicate() for name in names]
    joined = module.DTensor.from_local(torch.cat(flat), mesh, layout, run_check=False)
    sums = _summed(joined).to_local().split([len(x) for x in flat])
    return tuple(_from_parts(_like(s, x), mesh, {}, x.shape) for s, x in zip(sums, parts))


def _like(numbers: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Numbers in a row as an array like x."""
    if x.is_complex():
        numbers = torch.view_as_complex(numbers.reshape(-1, 2))
    return numbers.reshape(x.shape)


def _all_of(x: Any, mesh: Any, axis: str) -> Any:
    """All of a spread tensor as a plain one. Each process goes on with it in its own way, so the
    derivative sums what they give for it."""
    module = _tensor_module()
    layout = _layout(mesh, {})
    differ = [module.Partial() if name == axis else module.Replicate() for name in axis_sizes(mesh)]
    return x.redistribute(mesh, layout).to_local(grad_placements=differ)


def gather_rows(x: torch.Tensor, axis: str) -> Any:
    """Inside `apply_by_rows`: all rows (dimension -2), of which each process has as many."""
    mesh = _mesh_at_work()
    parts = _tensor_module().DTensor.from_local(
        x, mesh, _layout(mesh, {axis: x.ndim - 2}), run_check=False
    )
    return _all_of(parts, mesh, axis)


def shift_rows(x: torch.Tensor, axis: str, by: int, wraps: bool = False) -> Any:
    """Inside `apply_by_rows`: what the process that stands `by` places before has as x, the last one
    before the first if it `wraps`; else zeros in the first ones (the last, if `by` is negative)."""
    count, n = axis_sizes(_mesh_at_work())[axis], x.shape[-2]
    source = int(place_along(axis)) - by
    everywhere = gather_rows(x, axis)
    if not (wraps or 0 <= source < count):
        # a part of what was gathered, so that derivatives run through it in every process
        return everywhere[..., :n, :].masked_fill(torch.tensor(True, device=x.device), 0)
    source %= count
    return everywhere[..., source * n : (source + 1) * n, :]


def exchange(x: torch.Tensor, axis: str, split: int, join: int) -> Any:
    """Inside `apply_by_rows`: the parts of x along the dimension `split`, one for each process, for
    those of all processes along `join`. What was cut along `join` is now cut along `split`."""
    mesh = _mesh_at_work()
    layout = [_layout(mesh, {axis: dimension}) for dimension in (join, split)]
    parts = _tensor_module().DTensor.from_local(x, mesh, layout[0], run_check=False)
    return parts.redistribute(mesh, layout[1]).to_local()


def place_along(axis: str) -> torch.Tensor:
    """Inside `apply_by_rows`: the number of this process along the axis."""
    mesh = _mesh_at_work()
    place = mesh.get_local_rank(list(axis_sizes(mesh)).index(axis))
    return torch.tensor(place, device=device_in(mesh))


def _mesh_at_work() -> Any:
    mode = _mode()
    assert mode is not None, "only inside apply_by_rows"
    return mode.mesh


def _from_parts(x: Any, mesh: Any, dimensions: dict[str, int], shape: tuple[int, ...]) -> Any:
    """A tensor of this shape, of which each process has the part x."""
    return _tensor_module().DTensor.from_local(
        x,
        mesh,
        _layout(mesh, dimensions),
        run_check=False,
        shape=torch.Size(shape),
        stride=torch.empty(shape, device="meta").stride(),
    )


def _layout(mesh: Any, dimensions: dict[str, int]) -> list[Any]:
    """The placement for each axis of the mesh: cut along the dimension that belongs to its name, or
    whole."""
    module = _tensor_module()
    return [
        module.Shard(dimensions[name]) if name in dimensions else module.Replicate()
        for name in axis_sizes(mesh)
    ]


def _tensor_module() -> Any:
    _join_modes()
    if _tensors() is None:
        importlib.import_module("torch.distributed.tensor")  # half a second, where there is a mesh
    return _tensors()


# New tensors
# --------------------------------------------------------------------------------------------------


def placed(x: torch.Tensor, place: Any) -> Any:
    """A new tensor, the same in every process, on a mesh: cut like the operands of the call under
    way along a dimension as long as theirs. On a device it is itself."""
    if not is_mesh(place) or is_spread(x):
        return x
    mode = _mode()
    return place_on_mesh(x, place, {} if mode is None else mode.cuts_for(tuple(x.shape)))


def beside(x: torch.Tensor, other: torch.Tensor) -> Any:
    """x on the mesh of the other, if that lies on one. (torch makes plain zeros of a cotangent that
    is missing.)"""
    return placed(x, other.device_mesh) if is_spread(other) else x


def moved(x: torch.Tensor, mesh: Any) -> Any:
    """A tensor on a mesh: as it is cut there already, or else whole on every device, with the
    values of the first."""
    if is_spread(x) and x.device_mesh == mesh:
        return x
    if x.requires_grad:
        return place_on_mesh(x, mesh, {})
    return _tensor_module().distribute_tensor(x.to(device_in(mesh)), mesh, _layout(mesh, {}))


# The mode of a call
# --------------------------------------------------------------------------------------------------


class Spread(TorchDispatchMode):
    """What happens to each operation of torch in a call on tensors of a mesh; see above.

    Parameters
    ----------
    mesh : DeviceMesh
    tensors
        The operands of the call; how they are cut is how new tensors are.
    """

    def __init__(self, mesh: Any, tensors: Iterable[Any] = ()):
        super().__init__()
        self.mesh = mesh
        self.cut: dict[int, str] = {}  # the axis over which dimensions of a length are
        for x in filter(is_spread, tensors):
            for dimension, axis in cuts_of(x).items():
                self.cut.setdefault(x.shape[dimension], axis)

    def cuts_for(self, shape: tuple[int, ...]) -> dict[int, str]:
        """How a new tensor is cut: along its rows if they are as many as those of an operand that
        is cut, or else along its last dimension."""
        for dimension in (-1,) if len(shape) == 1 else (-2, -1):
            if len(shape) >= -dimension and shape[dimension] in self.cut:
                return {dimension: self.cut[shape[dimension]]}
        return {}

    def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _tensors().DTensor not in types:
            return f(*args, **kwargs)
        args, kwargs = pytree.tree_map_only(torch.Tensor, self._spread, (args, kwargs))
        is_written, is_view = _kind(f)
        try:
            found = f(*args, **kwargs)
        except (NotImplementedError, RuntimeError) as error:
            found = self._whole(f, args, kwargs, is_written, error)
        if is_written:
            self._write_back(args[0])
            return found
        if is_view and is_spread(found):
            found._is_part = f, args, kwargs
        return pytree.tree_map_only(torch.Tensor, _summed, found)

    def _write_back(self, part: Any) -> None:
        """Write a part of a tensor, which was written over, into that tensor, where it is a copy: a
        part along a dimension that is cut has memory of its own."""
        while (made := getattr(part, "_is_part", None)) is not None:
            f, (x, *others), kwargs = made
            if not _share(x, part):
                whole = gather_whole(x).clone()
                f(whole, *others, **kwargs).copy_(gather_whole(part))
                x.copy_(self._spread(whole))
            part = x

    def _spread(self, x: Any) -> Any:
        """A plain tensor as one that is whole everywhere, a spread one without sums to be made."""
        if is_spread(x):
            return _summed(x)
        layout = _layout(self.mesh, {})
        return _tensors().DTensor.from_local(x, self.mesh, layout, run_check=False)

    def _whole(self, f: Any, args: Any, kwargs: Any, is_written: bool, error: Exception) -> Any:
        """What f makes of the whole tensors, in every process."""
        whole = pytree.tree_map_only(torch.Tensor, gather_whole, (args, kwargs))
        try:
            found = f(*whole[0], **whole[1])
        except (NotImplementedError, RuntimeError) as other:
            raise other from error
        if is_written:
            return args[0].copy_(self._spread(whole[0][0]))
        return pytree.tree_map_only(torch.Tensor, self._spread, found)


def _summed(x: Any) -> Any:
    """A spread tensor after the sums over the devices that were still to be made."""
    if not is_spread(x) or not any(layout.is_partial() for layout in x.placements):
        return x
    whole = _tensors().Replicate()
    layout = [whole if each.is_partial() else each for each in x.placements]
    return x.redistribute(x.device_mesh, layout)


def _kind(f: Any) -> tuple[bool, bool]:
    """Whether an operation writes into its first argument, and whether it gives a view of it."""
    returned = [each.alias_info for each in f._schema.returns if each.alias_info is not None]
    is_written = bool(f._schema.is_mutable)
    return is_written, bool(returned) and not is_written


def _share(x: Any, view: Any) -> bool:
    """Whether a view has the memory of the tensor of which it is one."""
    one, other = (y.to_local().untyped_storage().data_ptr() for y in (x, view))
    return one == other


def _mode() -> Spread | None:
    """The mode of the innermost call under way."""
    count = torch._C._len_torch_dispatch_stack()
    for i in reversed(range(count)):
        mode = torch._C._get_dispatch_stack_at(i)
        if isinstance(mode, Spread):
            return mode
    return None


def around(*tensors: Any) -> AbstractContextManager:
    """A block in the mode of the mesh on which these tensors lie; where they lie on none, or the
    block is inside such a mode already, it changes nothing."""
    if torch.compiler.is_compiling() or _tensors() is None or _mode() is not None:
        return nullcontext()
    mesh = next((x.device_mesh for x in tensors if is_spread(x)), None)
    return nullcontext() if mesh is None else Spread(mesh, tensors)


def is_strict(A: Any = None) -> bool:
    """Whether a call on A, an operator or tensor, must run in the mode of a mesh."""
    if A is None or _tensors() is None:
        return False
    context = getattr(A, "_context", None)
    return (is_mesh(context.device) if context is not None else is_spread(A)) and _mode() is None


def enter(f: Callable, A: Any, *arguments: Any) -> Any:
    """`f(A, *arguments)` in the mode of the mesh on which A lies."""
    tensors = [x for x in pytree.tree_leaves((A, arguments)) if isinstance(x, torch.Tensor)]
    context = getattr(A, "_context", None)  # an operator on a mesh may have no tensors
    with Spread(A.device_mesh if context is None else context.device, tensors):
        answer = f(A, *arguments)
    if type(answer) is tuple:
        return tuple(map(_evenly_cut, answer))
    return _evenly_cut(answer)


def _evenly_cut(x: Any) -> Any:
    """A spread tensor whose parts follow each other: those that a reshape has made of a grid may be
    interleaved."""
    if not is_spread(x):
        return x
    shard = _tensors().Shard
    layout = [shard(each.dim) if hasattr(each, "dim") else each for each in x.placements]
    return x if layout == list(x.placements) else x.redistribute(x.device_mesh, layout)
