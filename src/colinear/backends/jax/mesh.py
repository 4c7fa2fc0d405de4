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


# Explicit axes.
#
# Where axes are explicit, the layout of an array is part of its type, and JAX asks for the layout
# of most answers. Our formulas leave that to XLA, so a call runs with automatic axes, and its
# answer gets the layout that it has or, in a traced program, that of the rows of its operator.


def with_automatic_axes(f: Callable[..., Any], A: Any, *arguments: Any) -> Any:
    """`f(A, *arguments)` of an operator on a mesh with explicit axes, and its answer with explicit
    axes; in a traced program arrays with as many rows as A has rows or columns are cut along the
    first axis of the mesh."""
    mesh = place_of_operand(A)
    inside = automatic(mesh)

    def enter(x: Any) -> Any:
        if isinstance(x, jax.core.Tracer):
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
    return jax.tree.map(leave, answer)


def rows_cut(shape: tuple[int, ...], mesh: Any, rows: tuple[int, ...]) -> PartitionSpec:
    """The layout of an array (..., n, k) or (n,), cut along n over the first axis of the mesh if n
    is one of the last two of these numbers and can be divided."""
    axis = max(len(shape) - 2, 0)
    name = mesh.axis_names[0]
    if shape and shape[axis] in rows[-2:] and shape[axis] % mesh.shape[name] == 0:
        return PartitionSpec(*(None,) * axis, name)
    return PartitionSpec()
