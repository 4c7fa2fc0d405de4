"""Meshes of devices in JAX: where an array lies that is spread over several devices, how new arrays
are placed beside it, and explicit axes taken as automatic ones.

The place of such an array is its mesh, never its layout: a matrix cut by rows and a vector that is
whole on every device are in one place. A new array beside them is whole on every device (it is
small, or XLA cuts it where it meets what is cut), unless it is made like an array that is cut.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

try:  # since 0.6
    from jax import shard_map
except ImportError:
    from jax.experimental.shard_map import shard_map

ABSTRACT = jax.sharding.AbstractMesh
MESHES = (Mesh, ABSTRACT)
KINDS = getattr(jax.sharding, "AxisType", None)  # of axes; None where JAX has automatic ones only


@functools.cache
def automatic(mesh: Any) -> Any:
    """The mesh of the same devices and names whose axes are all automatic."""
    if KINDS is None:
        return mesh
    kinds = (KINDS.Auto,) * len(mesh.axis_names)
    if isinstance(mesh, Mesh):
        return Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)
    return mesh.update(axis_types=kinds)


def is_explicit(place: Any) -> bool:
    """Whether a place is a mesh with explicit axes, what `jax.make_mesh` gives."""
    return type(place) in MESHES and KINDS is not None and KINDS.Explicit in place.axis_types


def place_of_operand(A: Any) -> Any:
    """Where an operator or array lies: a device, a mesh or None."""
    context = getattr(A, "_context", None)
    return mesh_of(A) if context is None else context.device


def has_explicit_axes(A: Any) -> bool:
    """Whether an operator or array lies on a mesh with explicit axes."""
    return is_explicit(place_of_operand(A))


def place_of(sharding: Any) -> Any:
    """The mesh of a sharding over several devices."""
    if isinstance(sharding, NamedSharding):
        return sharding.mesh
    devices = sorted(sharding.device_set, key=lambda device: device.id)
    return Mesh(np.array(devices), ("devices",))


def mesh_of(x: Any) -> Any:
    """The mesh of several devices on which an array is spread, traced or not, else None."""
    if isinstance(x, jax.core.Tracer):
        mesh = getattr(getattr(x.aval, "sharding", None), "mesh", ABSTRACT((), ()))
        return None if mesh.empty or mesh.size == 1 else mesh
    device = getattr(x, "device", None)
    return place_of(device) if isinstance(device, jax.sharding.Sharding) else None


def is_spread(x: Any) -> bool:
    """Whether the values of an array lie on several devices."""
    return isinstance(getattr(x, "device", None), jax.sharding.Sharding)


def layout_on(place: Any) -> Any:
    """Where JAX puts a new array: whole on every device of a mesh; None where that is decided in
    the program that is traced."""
    if type(place) is Mesh:
        return NamedSharding(automatic(place), PartitionSpec())
    return None if type(place) is ABSTRACT else place


def move_to(x: Any, place: Any) -> Any:
    """x on a mesh: as it is cut there already, or else whole on every device."""
    mesh = mesh_of(x)
    if type(place) is ABSTRACT or (mesh is not None and _devices(mesh) == _devices(place)):
        return x
    return jax.device_put(x, layout_on(place))


def _devices(mesh: Any) -> Any:
    return tuple(mesh.devices.flat) if type(mesh) is Mesh else None


def whole(x: Any) -> np.ndarray:
    """The values on the host: gathered where they are cut."""
    if not is_spread(x):
        return np.asarray(x)
    if not x.is_fully_replicated:
        x = jax.device_put(x, layout_on(automatic(place_of(x.sharding))))
    return np.asarray(x.addressable_data(0))


# How `colinear.distributed` cuts arrays: what `backends.mesh_module` lists.

CUTS_EVENLY = True  # whether the devices must divide the rows


def axis_sizes(mesh: Any) -> dict[str, int]:
    """How many devices there are along each axis."""
    return dict(mesh.shape)


def place_on_mesh(x: Any, mesh: Any, cuts: dict[int, str]) -> Any:
    """An array cut over a mesh, by the name of its axis for each dimension that is cut (negative,
    from the last); whole on every device along the others.

    The axes are automatic ones, whatever the mesh says: formulas leave layouts to XLA.
    """
    axes = [cuts.get(i - np.ndim(x)) for i in range(np.ndim(x))]
    layout = NamedSharding(automatic(mesh), PartitionSpec(*axes))
    if isinstance(x, jax.core.Tracer):
        return jax.lax.with_sharding_constraint(x, layout)
    if not all(device.process_index == jax.process_index() for device in mesh.devices.flat):
        if not isinstance(x, jax.Array) or not is_spread(x):  # each process has all of it
            host = np.asarray(x, jax.dtypes.canonicalize_dtype(x.dtype))
            return jax.make_array_from_callback(host.shape, layout, host.__getitem__)
    return jax.device_put(x, layout)


def cuts_of(x: Any) -> dict[int, str]:
    """The name of the axis over which each dimension is cut; none for what is whole, or traced."""
    sharding = getattr(x, "sharding", None)
    if isinstance(x, jax.core.Tracer) or not isinstance(sharding, NamedSharding):
        return {}
    return {i - x.ndim: name for i, name in enumerate(sharding.spec) if name is not None}


def bytes_per_device(x: Any) -> int:
    """Bytes of the largest part of an array on one device."""
    if isinstance(x, jax.core.Tracer) or not is_spread(x):
        return int(x.nbytes)
    return int(np.prod(x.sharding.shard_shape(x.shape))) * x.dtype.itemsize


def gather_whole(x: Any) -> Any:
    """An array on one device: the first of this process that the mesh has."""
    if isinstance(x, jax.core.Tracer) or not is_spread(x):
        return x
    return jax.device_put(whole(x), min(x.sharding.addressable_devices, key=lambda d: d.id))


def local_rows(mesh: Any, axis: str, rows: int) -> slice:
    """The rows of a matrix, cut over an axis, that lie on devices of this process."""
    layout = NamedSharding(automatic(mesh), PartitionSpec(axis))
    parts = layout.addressable_devices_indices_map((rows,)).values()
    starts, stops = zip(*((part[0].start or 0, part[0].stop or rows) for part in parts))
    return slice(min(starts), max(stops))


def from_local_rows(x: Any, mesh: Any, axis: str, rows: int) -> Any:
    """An array of so many rows, of which each process gives its `local_rows`."""
    layout = NamedSharding(automatic(mesh), PartitionSpec(axis))
    return jax.make_array_from_process_local_data(layout, x, (rows, *x.shape[1:]))


def apply_by_rows(
    f: Callable[..., Any], mesh: Any, axis: str, cut: Any, whole: Any, ndim: int = 2
) -> Any:
    """`f(cut, whole)` on each device, of its rows (dimension -2) of the arrays in `cut` and of all
    that is in `whole`; the answer, of so many dimensions, has the rows that belong to those.

    f says by `gather_rows` and `shift_rows` what devices send to each other; nothing else is sent.
    """
    rows = lambda ndim: PartitionSpec(*(None,) * (ndim - 2), axis)
    specs = (
        jax.tree.map(lambda x: rows(np.ndim(x)), cut),
        jax.tree.map(lambda x: PartitionSpec(), whole),
    )
    local = shard_map(f, mesh=automatic(mesh), in_specs=specs, out_specs=rows(ndim))
    return local(cut, whole)


def gather_rows(x: Any, axis: str) -> Any:
    """Inside `apply_by_rows`: all rows (dimension -2), of which each device has some."""
    return jax.lax.all_gather(x, axis, axis=x.ndim - 2, tiled=True)


def shift_rows(x: Any, axis: str, by: int, wraps: bool = False) -> Any:
    """Inside `apply_by_rows`: what the device that stands `by` places before has as x, the last one
    before the first if it `wraps`; else zeros on the first ones (the last, if `by` is negative)."""
    count = jax.lax.psum(1, axis)
    pairs = [(i, (i + by) % count) for i in range(count) if wraps or 0 <= i + by < count]
    return jax.lax.ppermute(x, axis, pairs)


def exchange(x: Any, axis: str, split: int, join: int) -> Any:
    """Inside `apply_by_rows`: the parts of x along the dimension `split`, one for each device, for
    those of all devices along `join`. What was cut along `join` is now cut along `split`."""
    return jax.lax.all_to_all(x, axis, split, join, tiled=True)


def place_along(axis: str) -> Any:
    """Inside `apply_by_rows`: the number of this device along the axis."""
    return jax.lax.axis_index(axis)


# Explicit axes.
#
# Where axes are explicit, the layout of an array is part of its type, and JAX asks for the layout
# of most answers. Our formulas leave that to XLA, so a call runs with automatic axes, and its
# answer gets the layout that it has or, in a traced program, that of the rows of its operator.
#
# A derivative outside of a program is the exception: of what lies on explicit axes JAX itself (0.10)
# has none there, not of a plain sum either, unless the user has set the mesh. So what is
# differentiated goes to automatic axes, through which derivatives pass, and answers stay there.


def with_automatic_axes(f: Callable[..., Any], A: Any, *arguments: Any) -> Any:
    """`f(A, *arguments)` of an operator on a mesh with explicit axes, and its answer with explicit
    axes; in a traced program arrays with as many rows as A has rows or columns are cut along the
    first axis of the mesh. In a derivative outside of a program the answer has automatic axes."""
    mesh = place_of_operand(A)
    inside, leaves = automatic(mesh), jax.tree.leaves((A, arguments))
    devices = None if _is_in_program() else _mesh_of_traced(leaves)

    def enter(x: Any) -> Any:
        if isinstance(x, jax.core.Tracer):
            if devices is not None and is_explicit(mesh_of(x)):
                layout = NamedSharding(automatic(devices), jax.typeof(x).sharding.spec)
                return jax.device_put(x, layout)
            is_typed = is_explicit(mesh_of(x))
            return jax.sharding.reshard(x, PartitionSpec(*(None,) * x.ndim)) if is_typed else x
        if isinstance(x, jax.Array) and is_explicit(mesh_of(x)):
            return jax.device_put(x, NamedSharding(automatic(x.sharding.mesh), x.sharding.spec))
        return x

    def leave(x: Any) -> Any:
        if isinstance(x, jax.core.Tracer):
            return jax.sharding.reshard(x, NamedSharding(mesh, rows_cut(x.shape, mesh, A.shape)))
        if isinstance(x, jax.Array) and isinstance(x.sharding, NamedSharding):
            return jax.device_put(x, NamedSharding(mesh, x.sharding.spec))
        return x

    with jax.sharding.use_abstract_mesh(getattr(inside, "abstract_mesh", inside)):
        answer = f(*jax.tree.map(enter, (A, *arguments)))
    return answer if devices is not None else jax.tree.map(leave, answer)


def _is_in_program() -> bool:
    """Whether JAX traces a program, in which all that is computed is traced, or the user has set a
    mesh."""
    is_set = not jax.sharding.get_abstract_mesh().empty
    return is_set or isinstance(jax.lax.neg(np.float32(0)), jax.core.Tracer)


def _mesh_of_traced(leaves: Any) -> Any:
    """The mesh with explicit axes and devices on which the value of a traced array lies, for a
    derivative that is computed right away; None where there is none."""
    for x in leaves:
        value = x
        while isinstance(value, jax.core.Tracer):
            value = getattr(value, "primal", getattr(value, "val", None))
        place = mesh_of(value)
        if value is not x and type(place) is Mesh and is_explicit(place):
            return place
    return None


def rows_cut(shape: tuple[int, ...], mesh: Any, rows: tuple[int, ...]) -> PartitionSpec:
    """The layout of an array (..., n, k) or (n,), cut along n over the first axis of the mesh if n
    is one of the last two of these numbers and can be divided."""
    axis = max(len(shape) - 2, 0)
    name = mesh.axis_names[0]
    if shape and shape[axis] in rows[-2:] and shape[axis] % mesh.shape[name] == 0:
        return PartitionSpec(*(None,) * axis, name)
    return PartitionSpec()
