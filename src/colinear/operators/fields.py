"""What an operator is made of: which fields are leaves and which are structure, and how the tree is taken apart and rebuilt.

Arrays and operators, and tuples and dicts of them, are leaves and children; everything else is static and must be hashable. The value
decides, not the annotation; but a number counts as a leaf where the field is annotated `Scalar`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..backends import Array, is_array, namespace_of
from ..info import ShapeError

Scalar = Any  # a Python number or a 0-dimensional array


def own_annotations(cls: type) -> dict[str, Any]:
    """The annotations in the body of a class, in order; from Python 3.14 on they are evaluated only when asked for."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(cls, format=annotationlib.Format.STRING)
    return inspect.get_annotations(cls)


def is_data(value: Any) -> bool:
    """Whether a value holds arrays or operators (then it is a child of the tree)."""
    if isinstance(value, (tuple, list)):
        return any(is_data(item) for item in value)
    if isinstance(value, dict):
        return any(is_data(item) for item in value.values())
    return is_array(value) or hasattr(type(value), "_matmat")


def arrays_in(value: Any) -> Iterator[Any]:
    """The arrays and scalars in a field, depth first; operators are opened up, however deep they are nested."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, (tuple, list)):
            waiting.extend(reversed(value))
        elif isinstance(value, dict):
            waiting.extend(reversed(list(value.values())))
        elif hasattr(type(value), "_matmat"):
            waiting.extend(getattr(value, name) for name in reversed(value._dynamic))
        elif value is not None:
            yield value


def map_arrays(f: Callable[[Any], Any], value: Any) -> Any:
    """The same nest of tuples, dicts and operators with `f` applied to each array."""
    if isinstance(value, (tuple, list)):
        return type(value)(map_arrays(f, item) for item in value)
    if isinstance(value, dict):
        return {key: map_arrays(f, item) for key, item in value.items()}
    if hasattr(type(value), "_matmat"):
        return value._map(f)
    return value if value is None else f(value)


class Index:
    """Integers that are structure (a permutation, a sparsity pattern): static and hashable by content, so that values are seen under `jit`
    and neither `vmap` nor `grad` of an operator meets them. `host` is a read-only NumPy array."""

    __slots__ = ("_hash", "_placed", "host")

    def __init__(self, values: Any):
        host = np.array(values, dtype=np.int64, order="C")
        host.setflags(write=False)
        self.host = host
        self._hash: int | None = None
        self._placed: dict[Any, Any] = {}

    def on(self, xp: Any, device: Any = None) -> Array:
        """The integers as an array of a framework. JAX indexes with NumPy arrays as they are."""
        if xp.name != "torch":
            return self.host
        key = str(device)
        found = self._placed.get(key)
        if found is None:
            found = xp.asarray(self.host.copy(), device=device)
            if not xp.is_traced(found):
                self._placed[key] = found
        return found

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Index) and np.array_equal(self.host, other.host))

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.host.shape, self.host.tobytes()))
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Index, (self.host,)

    def __repr__(self) -> str:
        return f"Index({self.host.shape})"


def index_or_array(values: Any, what: str) -> Any:
    """An `Index` where the integers can be seen, the traced array itself where they cannot."""
    xp = namespace_of(values)
    if xp is not None and xp.is_traced(values):
        return values
    host = np.asarray(values if xp is None else xp.to_numpy(values))
    if host.dtype.kind not in "iu" and host.size:
        raise ShapeError(f"{what}: indices must be integers, not {host.dtype}.")
    return Index(host)


def rebuilt(A: Any, leaves: Any) -> Any:
    """A with these arrays in place of its own, in the order of `A.leaves()`; numbers stay."""
    own = [leaf for leaf in A.leaves() if namespace_of(leaf) is not None]
    if all(mine is given for mine, given in zip(own, leaves, strict=True)):
        return A  # the very same, which its counters know
    given = iter(leaves)
    return A._map(lambda leaf: leaf if namespace_of(leaf) is None else next(given))
