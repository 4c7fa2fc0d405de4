"""`shard` and `gather`: operators and arrays put on a mesh, and back on one device; `load_rows`:
arrays from files, of which each process reads its own rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import backends
from ..backends import Array, namespace_of
from ..errors import BackendError, ShapeError
from ..operators.tree import map_parts
from .placement import placement


class OverMesh(NamedTuple):
    """One axis of a mesh, over which arrays are cut, as rules of `placement` see it."""

    mesh: Any
    axis: str
    cuts: bool = True  # whether anything is cut, or all arrays are whole on every device

    @property
    def parts(self) -> int:
        """The number of devices along the axis."""
        return int(self._on_mesh.axis_sizes(self.mesh)[self.axis])

    @property
    def undivided(self) -> OverMesh:
        """The same mesh, on which every device has all of an operator."""
        return self._replace(cuts=False)

    @property
    def device(self) -> Any:
        """Where arrays of the mesh are: the device itself, if there is one only."""
        x = self.whole(np.zeros(0))
        return namespace_of(x).device_of(x)

    @property
    def _on_mesh(self) -> Any:
        return backends.mesh_module(self.mesh)

    def divides(self, rows: int) -> bool:
        """Whether so many rows can be cut over the axis."""
        is_even = rows % self.parts == 0 or not self._on_mesh.CUTS_EVENLY
        return self.cuts and is_even and rows >= self.parts

    def cut(self, x: Any, dimension: int) -> Any:
        """An array cut along a dimension, counted from the last one (-1); whole if it cannot be
        cut there."""
        is_cut = x.ndim >= -dimension and self.divides(x.shape[dimension])
        return self._on_mesh.place_on_mesh(x, self.mesh, {dimension: self.axis} if is_cut else {})

    def rows(self, x: Any) -> Any:
        """A matrix cut by rows, a vector by entries."""
        return self.cut(x, -min(x.ndim, 2)) if x.ndim else self.whole(x)

    def whole(self, x: Any) -> Any:
        """An array that every device has."""
        return self._on_mesh.place_on_mesh(x, self.mesh, {})

    def spread(self, *rows: int) -> tuple[Any, str] | None:
        """The mesh and its axis, for an operator that divides its work itself, if matrices of so
        many rows can be cut."""
        return (self.mesh, self.axis) if all(map(self.divides, rows)) else None


class OnOneDevice(NamedTuple):
    """One device, to which arrays are gathered, as rules of `placement` see it."""

    parts: int = 1
    device: Any = None  # of operators without arrays: that of what they meet

    @property
    def undivided(self) -> OnOneDevice:
        """The same device."""
        return self

    def cut(self, x: Any, dimension: int) -> Any:
        """The whole array."""
        return self.whole(x)

    def rows(self, x: Any) -> Any:
        """The whole array."""
        return self.whole(x)

    def whole(self, x: Any) -> Any:
        """The whole array on one device; itself where it is there."""
        xp = namespace_of(x)
        on_mesh = backends.mesh_module(xp.device_of(x))
        return x if on_mesh is None else on_mesh.gather_whole(x)

    def spread(self, *rows: int) -> None:
        """Nothing is divided."""


def shard(A: Any, mesh: Any, axis: str | None = None) -> Any:
    """Put an operator, an array, or a tuple or dict of them on a mesh of devices.

    Each leaf is cut as its family multiplies best (`placement`): a stored matrix by rows, for
    instance. Vectors and other arrays are cut by rows, dimension -2, or by entries if they have one
    dimension. What cannot be cut evenly is whole on every device. `explain` of the operator says
    what lies where, and what its products communicate.

    Parameters
    ----------
    A : operator, array, or a nest of tuples, lists and dicts of them
        NumPy's arrays become those of the framework of the mesh.
    mesh : jax.sharding.Mesh or torch.distributed.device_mesh.DeviceMesh
        In JAX its axes are taken as automatic ones.
    axis : str, optional
        The axis of the mesh over which to cut; by default its first one.

    Examples
    --------
    >>> import colinear as co, jax, numpy as np
    >>> from colinear.distributed import shard
    >>> mesh = jax.make_mesh((1,), ("x",))  # of as many devices as there are
    >>> A = shard(co.PSD(np.diag([1.0, 2.0, 4.0])), mesh)
    >>> x = co.solve(A, shard(np.ones(3), mesh))
    >>> np.asarray(x).round(6).tolist()
    [1.0, 0.5, 0.25]
    """
    return _placed(A, OverMesh(mesh, checked_axis("shard", mesh, axis)))


def gather(A: Any) -> Any:
    """Put an operator, an array, or a tuple or dict of them on one device, whole.

    Every process of a program in JAX gets all of it on its first device. An operator is what it
    was before `shard`. What lies on one device stays as it is.

    Examples
    --------
    >>> import colinear as co
    >>> co.distributed.gather(co.Diagonal([1.0, 2.0])).d
    array([1., 2.])
    """
    return _placed(A, OnOneDevice())


def load_rows(path: str | Path, mesh: Any, axis: str | None = None, dtype: Any = None) -> Any:
    """Read a matrix or vector from an `.npy` file on a mesh, cut by its first dimension.

    The file is mapped into memory, and each process reads the rows of its own devices and no
    others; every process must see the file.

    Parameters
    ----------
    path : str or Path
        What `numpy.save` wrote.
    mesh : jax.sharding.Mesh or torch.distributed.device_mesh.DeviceMesh
    axis : str, optional
        The axis of the mesh over which the rows are cut; by default its first one.
    dtype : optional
        To which each process converts its rows; by default that of the file.

    Examples
    --------
    >>> import colinear as co, jax, numpy as np, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "data.npy"
    >>> np.save(path, np.ones((6, 2), np.float32))
    >>> X = co.distributed.load_rows(path, jax.make_mesh((1,), ("x",)))
    >>> A = co.PSD(co.LowRank(X)) + co.Identity(6)
    >>> X.shape
    (6, 2)
    """
    axis = checked_axis("load_rows", mesh, axis)
    stored = np.load(path, mmap_mode="r", allow_pickle=False)
    if stored.ndim == 0:
        raise ShapeError(f"load_rows: {path} holds a number; expected an array with rows.")
    place, on_mesh = OverMesh(mesh, axis), backends.mesh_module(mesh)
    rows = stored.shape[0]
    if not place.divides(rows):
        raise ShapeError(
            f"load_rows: {path} has {rows} rows, which {place.parts} devices cannot share evenly. "
            f"Store a multiple of {place.parts}: rows of zeros change no X^T X."
        )
    own = stored[on_mesh.local_rows(mesh, axis, rows)]
    return on_mesh.from_local_rows(np.array(own, dtype=dtype), mesh, axis, rows)


def checked_axis(what: str, mesh: Any, axis: str | None) -> str:
    """The axis of a mesh with this name, or its first one."""
    on_mesh = backends.mesh_module(mesh)
    if on_mesh is None:
        raise BackendError(
            f"{what}: expected a mesh (jax.sharding.Mesh, or torch's DeviceMesh), got a "
            f"{type(mesh).__name__}. Make one: jax.make_mesh((4,), ('x',))."
        )
    names = list(on_mesh.axis_sizes(mesh))
    if axis is None:
        return names[0]
    if axis not in names:
        raise ShapeError(f"{what}: axis={axis!r} is none of the mesh, whose axes are {names}.")
    return axis


def _placed(A: Any, place: Any) -> Any:
    return map_parts(A, lambda B: placement(_in_framework(B, place), place), _array_at(place))


def _in_framework(A: Any, place: Any) -> Any:
    """The operator in the framework of a mesh."""
    if not isinstance(place, OverMesh):
        return A
    wanted = backends.mesh_module(place.mesh).__name__.split(".")[-2]
    own = A._context.backend
    if own in (None, wanted):
        return A
    if own != "numpy":
        raise BackendError(
            f"shard: the operator is a {own} one and the mesh is {wanted}'s. Convert it: "
            f"A.to(backend={wanted!r})."
        )
    return A.to(backend=wanted)


def _array_at(place: Any) -> Any:
    def put(x: Array) -> Array:
        return x if namespace_of(x) is None else place.rows(x)  # a number is everywhere

    return put
