"""Arrays from files, of which each process reads its own rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .. import backends
from ..errors import ShapeError
from .sharding import OverMesh, checked_axis


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
