"""Where operators live: framework, dtype and device of arrays and compositions, and the errors when these do not fit together."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import backends
from ..backends import Array, namespace_of
from ..info import BackendError, DeviceError, DtypeError, ShapeError


class Context(NamedTuple):
    """Where an operator lives: framework, dtype, device. None where it takes that from what it meets.

    Without a framework the dtype is NumPy's, or Python's `complex`: complex, of whatever precision it meets.
    """

    backend: str | None = None
    dtype: Any = None
    device: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        # JAX's devices belong to their process: an unpickled operator is where JAX puts new arrays.
        return Context, (self.backend, self.dtype, None if self.backend == "jax" else self.device)


def is_number(c: Any) -> bool:
    """Whether a scalar has no precision of its own: a Python number, or the weakly typed tracer that `jax.jit` makes of one."""
    return namespace_of(c) is None or bool(getattr(c, "weak_type", False))


def is_complex_number(c: Any) -> bool:
    xp = namespace_of(c)
    return isinstance(c, complex) if xp is None else bool(xp.is_complex(c))


def as_array(x: Any, what: str, *, xp: Any = None, dtype: Any = None, min_ndim: int = 0) -> Array:
    """`x` as a floating-point array of its framework (NumPy's for lists and numbers): integers are promoted, objects refused."""
    if type(x) is np.ndarray and x.dtype.kind in "fc" and x.ndim >= min_ndim:
        return x
    own = namespace_of(x)
    if own is None:
        xp = xp or backends.get("numpy")
        try:
            x = xp.asarray(x)
        except (TypeError, ValueError) as error:
            raise DtypeError(f"{what}: {type(x).__name__} is not a numeric array.") from error
    else:
        xp = own
    if not xp.is_floating(x):
        if getattr(x.dtype, "kind", "i") not in "biufc" and not str(x.dtype).startswith(("torch", "bfloat")):
            raise DtypeError(f"{what}: the dtype is {x.dtype}; expected real or complex numbers.")
        x = xp.astype(x, dtype or xp.default_float())
    if x.ndim < min_ndim:
        raise ShapeError(f"{what}: expected an array of at least {min_ndim} dimension(s), got shape {tuple(x.shape)}.")
    return x


def context_of(what: str, leaves: Any) -> Context:
    """Framework, promoted dtype and device of some arrays; mixing frameworks or devices is an error that names both."""
    xp, device, floats = None, None, []
    for leaf in leaves:
        own = namespace_of(leaf)
        if own is None:
            continue
        if xp is None:
            xp = own
        elif own is not xp:
            raise BackendError(f"{what}: arrays of {xp.name} and {own.name} do not mix. Convert one, or use A.to(backend=...).")
        here = own.device_of(leaf)
        check_device(what, device, here)
        device = here if device is None else device
        if own.is_floating(leaf):
            floats.append(leaf.dtype)
    if xp is None:
        return Context()
    dtype = xp.default_float() if not floats else floats[0] if len(set(floats)) == 1 else xp.result_type(*floats)
    return Context(xp.name, dtype, device)


def common_context(what: str, operands: Any) -> Context:
    """The context of a composition: that of the operands, neutral ones aside."""
    contexts = [A._context for A in operands]
    if contexts and all(context == contexts[0] for context in contexts):
        return contexts[0]
    backend = dtype = device = None
    told = set()  # dtypes of neutral operators, known without a framework
    for own in contexts:
        if own.backend is None:
            if own.dtype is not None:
                told.add(own.dtype)
            continue
        if backend is None:
            backend, dtype, device = own
            continue
        if own.backend != backend:
            raise BackendError(
                f"{what}: operators of {backend} and of {own.backend} do not mix. Convert one: A.to(backend={backend!r})."
            )
        check_device(what, device, own.device)
        device = own.device if device is None else device
        if own.dtype != dtype:
            dtype = backends.get(backend).result_type(dtype, own.dtype)
    for neutral in told:
        dtype = neutral if dtype is None else join_dtypes(backends.get(backend or "numpy"), dtype, neutral)
    return Context(backend, dtype, device)


def join_dtypes(xp: Any, dtype: Any, neutral: Any) -> Any:
    """The dtype in which one of a framework and that of a neutral operator (a NumPy dtype, or Python's `complex`) meet."""
    if neutral is complex or dtype is complex:
        dtype = neutral if dtype is complex else dtype
        return complex if dtype is complex else xp.complex_dtype(_dtype_of(xp, dtype))
    neutral = _dtype_of(xp, neutral)
    return dtype if neutral == dtype else xp.result_type(dtype, neutral)


def _dtype_of(xp: Any, dtype: Any) -> Any:
    return xp.dtype_from(dtype.name) if isinstance(dtype, np.dtype) and xp.name == "torch" else dtype


def given_context(what: str, like: Any, dtype: Any) -> Context:
    """What `like=` (an array, an operator or a framework's name) and `dtype=` tell an operator that holds no floats."""
    if like is None and dtype is None:
        return Context()
    if like is None and type(dtype).__module__.partition(".")[0] == "torch":
        like = "torch"
    if like is None or (hasattr(type(like), "_matmat") and like.is_neutral):
        try:
            found = np.dtype(dtype) if dtype is not None else like._context.dtype
        except TypeError as error:
            raise DtypeError(f"{what}: {dtype!r} is not a dtype.") from error
        if isinstance(found, np.dtype) and found.kind not in "fc" and found.name != "bfloat16":
            raise DtypeError(f"{what}: dtype={found.name}; operators are real or complex floating point.")
        return Context(None, found)
    if isinstance(like, str):
        backend, own, device = backends.get(like).name, None, None
    elif hasattr(type(like), "_matmat"):
        backend, own, device = like._context
    elif namespace_of(like) is not None:
        backend, own, device = context_of(what, (like,))
    else:
        raise DtypeError(f"{what}: like= is a {type(like).__name__}; expected an array, an operator or a framework's name.")
    xp = backends.get(backend)
    found = xp.dtype_from(dtype) if dtype is not None else xp.default_float() if own is None else own
    if not xp.is_floating(found):
        raise DtypeError(f"{what}: dtype={xp.dtype_name(found)}; operators are real or complex floating point.")
    return Context(backend, found, device)


def as_arrays(what: str, *values: Any, min_ndim: int = 0) -> tuple[Array, ...]:
    """Arrays of one framework and device: lists and numbers take those, and the precision, of the first array among them."""
    for x in values:
        if type(x) is not np.ndarray or x.dtype.kind not in "fc" or x.ndim < min_ndim:
            break
    else:
        return values
    first = next((x for x in values if namespace_of(x) is not None), None)
    arrays = [as_array(x, what, min_ndim=min_ndim) for x in values]
    if first is not None:
        xp, leading = namespace_of(first), as_array(first, what)
        for i, given in enumerate(values):
            if namespace_of(given) is None:
                dtype = xp.complex_dtype(leading.dtype) if arrays[i].dtype.kind == "c" else xp.real_dtype(leading.dtype)
                arrays[i] = xp.asarray(arrays[i], dtype=dtype, device=xp.device_of(leading))
    context_of(what, arrays)  # mixed frameworks or devices are refused here
    return tuple(arrays)


def check_device(what: str, first: Any, second: Any, neutral: bool = False) -> None:
    """Two known devices must be one."""
    if not neutral and first is not None and second is not None and first is not second and str(first) != str(second):
        raise DeviceError(f"{what}: operands are on {first} and on {second}. Move one: A.to(device={str(first)!r}).")


def common_batch(what: str, operands: Any) -> tuple[int, ...]:
    """The batch shape of a composition."""
    batches = {A.shape[:-2] for A in operands}
    return next(iter(batches)) if len(batches) == 1 else broadcast_batches(*batches, what=what)


def broadcast_batches(*shapes: tuple[int, ...], what: str = "") -> tuple[int, ...]:
    """Batch shapes broadcast as NumPy's, with an error of ours."""
    if not any(shapes):
        return ()
    longest = max(map(len, shapes))
    result = [1] * longest
    for shape in shapes:
        for i, size in enumerate(shape, longest - len(shape)):
            if size != 1:
                if result[i] not in (1, size):
                    where = f"{what}: " if what else ""
                    raise ShapeError(f"{where}batch shapes {' and '.join(map(str, shapes))} do not broadcast.")
                result[i] = size
    return tuple(result)
