"""Where operators live: framework, dtype and device of arrays and compositions, and the errors
when these do not fit together."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import backends
from ..backends import Array, namespace_of
from ..backends.numpy.arrays import is_mapped
from ..dispatch import signatures
from ..errors import BackendError, DeviceError, DtypeError, ShapeError
from .tree import Shape


class Context(NamedTuple):
    """Where an operator lives: framework, dtype, device. None where it takes that from what it
    meets.

    Without a framework the dtype is NumPy's, or that of a number: Python's `complex` (complex, of
    whatever precision it meets) or a NumPy scalar's type such as `np.float32`, which counts as it
    does in each framework: in NumPy and JAX as a dtype, in torch for being complex only.
    """

    backend: str | None = None
    dtype: Any = None
    device: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        # JAX's devices belong to their process: an unpickled operator is where JAX puts new arrays.
        return Context, (self.backend, self.dtype, None if self.backend == "jax" else self.device)


NEUTRAL = Context()

# What counts as a number. Python's own stand first: they are told by their type alone, where
# `numbers.Number` asks in Python.
NUMBERS = (int, float, complex, np.generic, numbers.Number)


def is_number(c: Any) -> bool:
    """Whether a scalar has no precision of its own: a Python number, or the weakly typed tracer
    that `jax.jit` makes of one."""
    return namespace_of(c) is None or bool(getattr(c, "weak_type", False))


def is_complex_number(c: Any) -> bool:
    xp = namespace_of(c)
    return isinstance(c, complex) if xp is None else bool(xp.is_complex(c))


def split_number(c: Any, what: str) -> tuple[Any, Any]:
    """A number as a float or complex, and the dtype that it carries if it is NumPy's (see
    `Context`), else None.

    An integer carries none, as it would make float32 float64; nor does a boolean.
    """
    if not isinstance(c, np.generic):
        return complex(c) if isinstance(c, complex) else float(c), None
    check_dtype(what, c.dtype)
    return (c.item(), type(c)) if c.dtype.char in USUAL_DTYPES else (float(c), None)


# the characters of float16, float32, float64, complex64 and complex128 in NumPy
USUAL_DTYPES = "efdFD"

# What an operator of one NumPy array remembers, by the dtype of the array.
NUMPY_PLACES: dict[Any, dict[str, Any]] = {
    dtype: {
        "_context": Context("numpy", dtype, "cpu"),
        "xp": backends.get("numpy"),
        "dtype": dtype,
        "is_complex": dtype.kind == "c",
        "_usual_dtype": dtype,
    }
    for dtype in map(np.dtype, USUAL_DTYPES)
}


def known_in(context: Context) -> dict[str, Any]:
    """What an operator remembers that lives there."""
    if context.backend == "numpy" and context.dtype in NUMPY_PLACES:
        return NUMPY_PLACES[context.dtype]
    if context.backend is None:
        return {"_context": context}
    return {"_context": context, "xp": backends.get(context.backend)}


_REMEMBERED = ("_context", "xp", "dtype", "is_complex", "_usual_dtype", "properties", "_dynamic")


def of_array(cls: type, name: str, x: Array, shape: Shape, **others: Any) -> Any:
    """An operator of one array and this shape, which knows at once all that follows from an array
    of NumPy or torch: small problems are mostly made of these. For families whose properties do
    not depend on the array but for its dtype. `others`: its other fields, always the same."""
    self: Any = object.__new__(cls)
    memos = self.__dict__
    memos[name], memos["shape"] = x, shape
    if others:
        memos.update(others)
    if type(x) is np.ndarray:
        key: Any = (cls, x.dtype)
    elif (xp := namespace_of(x)).is_functional or xp.is_compiling():
        return self
    else:
        key = (cls, x.dtype, getattr(x, "device_mesh", x.device))
    known = signatures.MEMOS.get(key)
    if known is None:
        known = {each: getattr(self, each) for each in _REMEMBERED}
        signatures.MEMOS[key] = known | {"_signature": signatures.signature(self)}
    memos.update(known)
    return self


def check_dtype(what: str, dtype: Any) -> None:
    """Refuse what is no number (objects, text, dates) and long double, which no factorisation
    has."""
    if isinstance(dtype, np.dtype):
        if dtype.char in "gG":
            instead = "float64" if dtype.char == "g" else "complex128"
            raise DtypeError(
                f"{what}: the dtype is {dtype} (long double), for which there is no linear "
                f"algebra. Write x.astype(np.{instead})."
            )
        if dtype.kind not in "biufc" and dtype.name != "bfloat16":
            advice = " Write x.astype(float)." if dtype.kind in "OUS" else ""
            raise DtypeError(
                f"{what}: the dtype is {dtype}; expected real or complex numbers.{advice}"
            )


def plain_array(x: Any, what: str) -> Any:
    """A NumPy array without what a subclass adds to it: np.matrix multiplies otherwise, a masked
    array lacks values."""
    if isinstance(x, np.ndarray) and type(x) is not np.ndarray:
        if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
            raise DtypeError(
                f"{what}: a masked array has entries without a value; fill them first: "
                "x.filled(...)."
            )
        return np.asarray(x)
    return x


def kind_of(x: Any) -> dict[str, Any]:
    """The dtype and the device of an array or an operator, for new arrays beside it:
    `xp.zeros(shape, **kind_of(x))`."""
    xp = namespace_of(x)
    device = x._context.device if xp is None else xp.device_of(x)
    return {"dtype": x.dtype, "device": device}


def records_derivatives(A: Any) -> bool:
    """Whether derivatives with respect to the arrays of an operator are recorded."""
    return bool(A.xp.is_differentiated(*A.arrays()))


def has_traced(A: Any) -> bool:
    """Whether some arrays of an operator are traced."""
    return any(map(A.xp.is_traced, A.arrays()))


def as_array(x: Any, what: str, *, xp: Any = None, dtype: Any = None, min_ndim: int = 0) -> Array:
    """`x` as a floating-point array of its framework (NumPy's for lists and numbers): integers
    are promoted, objects refused."""
    if type(x) is np.ndarray and x.dtype.char in USUAL_DTYPES and x.ndim >= min_ndim:
        return x
    own = namespace_of(x)
    if own is None or own.name == "numpy":
        x = plain_array(x, what)
        own = namespace_of(x)
    if own is None:
        if hasattr(type(x), "_matmat"):
            raise DtypeError(
                f"{what}: expected an array, got the operator {type(x).__name__}. Use A.to_dense()."
            )
        if hasattr(x, "chunks") and hasattr(x, "shape"):
            raise DtypeError(
                f"{what}: a lazy array of {type(x).__module__.partition('.')[0]}, which would be "
                "read into memory whole. Do so yourself, np.asarray(x), or make a matrix of it an "
                "operator that reads it a chunk at a time: as_operator(x)."
            )
        xp = xp or backends.get("numpy")
        try:
            x = xp.asarray(x)
        except (TypeError, ValueError) as error:
            raise DtypeError(f"{what}: {type(x).__name__} is not a numeric array.") from error
    else:
        xp = own
    if isinstance(x.dtype, np.dtype):
        check_dtype(what, x.dtype)
    if not xp.is_floating(x):
        if isinstance(x, np.ndarray) and is_mapped(x):
            raise DtypeError(
                f"{what}: a file of {x.dtype}, whose numbers would be copied to be floating-point "
                "ones. Write them as such once, or give Dask the file: "
                "as_operator(dask.array.from_array(x))."
            )
        x = xp.astype(x, dtype or xp.default_float())
    if x.ndim < min_ndim:
        raise ShapeError(
            f"{what}: expected an array of at least {min_ndim} dimension(s), got shape "
            f"{tuple(x.shape)}."
        )
    return x


def from_numpy(what: str, xp: Any, x: Array) -> Array:
    """An array of another framework, which is an error but for NumPy's arrays in JAX: those all of
    JAX takes.

    JAX places what comes from NumPy where it is needed, so its device is not compared.
    """
    own = namespace_of(x)
    if own.name == "numpy" and xp.name == "jax":
        return xp.asarray(x)
    is_torch = (own.name, xp.name) == ("numpy", "torch")
    how = "the array: torch.from_numpy(x), or the operator: " if is_torch else "one: "
    raise BackendError(
        f"{what}: the operator is a {xp.name} one and the array is {own.name}'s. Convert "
        f"{how}A.to(backend={own.name!r})."
    )


def context_of(what: str, leaves: Any) -> Context:
    """Framework, promoted dtype and device of some arrays; mixing frameworks or devices is an
    error that names both."""
    xp, device, floats = None, None, []
    for leaf in leaves:
        own = namespace_of(leaf)
        if own is None:
            continue
        if xp is None:
            xp = own
        elif own is not xp:
            raise BackendError(
                f"{what}: arrays of {xp.name} and {own.name} do not mix. Convert one, or use "
                "A.to(backend=...)."
            )
        check_device(what, device, here := own.device_of(leaf))
        device = here if device is None else device
        if own.is_floating(leaf):
            floats.append(leaf.dtype)
    if xp is None:
        return NEUTRAL
    dtype = floats[0] if floats else xp.default_float()
    if len(set(floats)) > 1:
        dtype = xp.result_type(*floats)
    return Context(xp.name, dtype, device)


def common_context(what: str, operands: Any) -> Context:
    """The context of a composition: that of the operands, neutral ones aside."""
    known = NEUTRAL
    told = set()  # dtypes of neutral operators, known without a framework
    for A in operands:
        own = A._context
        if own in (known, NEUTRAL):
            continue
        if own.backend is None:
            told.add(own.dtype)
        elif known.backend is None:
            known = own
        elif own.backend == known.backend:
            check_device(what, known.device, own.device)
            dtype = backends.get(own.backend).result_type(known.dtype, own.dtype)
            known = Context(own.backend, dtype, known.device or own.device)
        else:
            raise BackendError(
                f"{what}: operators of {known.backend} and of {own.backend} do not mix. Convert "
                f"one: A.to(backend={known.backend!r})."
            )
    for neutral in told:
        known = told_by_number(known, neutral)
    return known


def join_dtypes(xp: Any, dtype: Any, neutral: Any) -> Any:
    """The dtype in which one of a framework and that of a neutral operator meet; both may be
    those of numbers (see `Context`)."""
    if neutral is complex or dtype is complex:
        dtype = neutral if dtype is complex else dtype
        return complex if dtype is complex else xp.complex_dtype(_dtype_of(xp, dtype))
    if isinstance(neutral, type) and isinstance(dtype, type):
        return np.result_type(dtype, neutral).type
    if isinstance(neutral, type) and xp.name == "torch":  # torch takes NumPy's scalars for numbers
        return xp.complex_dtype(dtype) if issubclass(neutral, np.complexfloating) else dtype
    dtype, neutral = _dtype_of(xp, dtype), _dtype_of(xp, neutral)
    return dtype if neutral == dtype else xp.result_type(dtype, neutral)


def promoted(X: Array, dtype: Any) -> Array:
    """X in the dtype that it and a neutral operator's have in common; X itself where the
    operator was told none."""
    if dtype is None or dtype is X.dtype:
        return X
    xp = namespace_of(X)
    return xp.astype(X, join_dtypes(xp, X.dtype, dtype))


def _dtype_of(xp: Any, dtype: Any) -> Any:
    is_foreign = isinstance(dtype, (np.dtype, type)) and xp.name == "torch"
    return xp.dtype_from(np.dtype(dtype).name) if is_foreign else dtype


def given_context(what: str, like: Any, dtype: Any) -> Context:
    """What `like=` (an array, an operator or a framework's name) and `dtype=` tell an operator
    that holds no floats."""
    if like is None and dtype is None:
        return NEUTRAL
    if isinstance(like, Context):
        return like
    if like is None:
        own = Context("torch" if type(dtype).__module__.partition(".")[0] == "torch" else None)
    elif isinstance(like, str):
        own = Context(backends.get(like).name)
    elif hasattr(type(like), "_matmat"):
        own = like._context
    elif namespace_of(like) is not None:
        own = context_of(what, (like,))
    else:
        raise DtypeError(
            f"{what}: like= is a {type(like).__name__}; expected an array, an operator or a "
            "framework's name."
        )
    xp = backends.get(own.backend or "numpy")
    if own.backend is None:
        try:
            found = own.dtype if dtype is None else np.dtype(dtype)
        except TypeError as error:
            raise DtypeError(f"{what}: {dtype!r} is not a dtype.") from error
        if not isinstance(found, np.dtype) or found.name == "bfloat16":  # a number's, or none
            return Context(None, found)
    else:
        found = own.dtype if dtype is None else xp.dtype_from(dtype)
        found = xp.default_float() if found is None else found
    if not xp.is_floating(found) or getattr(found, "char", "d") in "gG":
        raise DtypeError(
            f"{what}: dtype={xp.dtype_name(found)}; operators are real or complex floating point "
            "(float16 to complex128)."
        )
    return own._replace(dtype=found)


def as_arrays(what: str, *values: Any, min_ndim: int = 0) -> tuple[Array, ...]:
    """Arrays of one framework and device: lists and numbers take those, and the precision, of
    the first array among them."""
    for x in values:
        if type(x) is not np.ndarray or x.dtype.char not in USUAL_DTYPES or x.ndim < min_ndim:
            break
    else:
        return values
    arrays = [as_array(x, what, min_ndim=min_ndim) for x in values]
    if any(namespace_of(x).name == "jax" for x in arrays):  # takes NumPy's arrays
        xp = backends.get("jax")
        arrays = [
            xp.asarray(x) if isinstance(given, np.ndarray) else x
            for given, x in zip(values, arrays)
        ]
    is_given = [namespace_of(x) is not None for x in values]
    if True in is_given:
        first = arrays[is_given.index(True)]
        xp = namespace_of(first)
        for i, x in enumerate(arrays):
            if not is_given[i]:
                kind = xp.complex_dtype if x.dtype.kind == "c" else xp.real_dtype
                arrays[i] = xp.asarray(x, dtype=kind(first.dtype), device=xp.device_of(first))
    context_of(what, arrays)  # mixed frameworks or devices are refused here
    return tuple(arrays)


def told_by_number(context: Context, carried: Any) -> Context:
    """The context of an operator that meets a neutral one, or a number which carries a dtype (see
    `split_number`), or None."""
    if carried is None:
        return context
    if context.dtype is not None:
        xp = backends.get(context.backend or "numpy")
        carried = join_dtypes(xp, context.dtype, carried)
    return context._replace(dtype=carried)


def check_device(what: str, first: Any, second: Any) -> None:
    """Two known devices must be one; of two meshes, all of their devices."""
    if first is second or first is None or second is None:
        return
    if str(first) != str(second) and not _are_one_mesh(first, second):
        is_mesh = "Mesh" in type(first).__name__
        raise DeviceError(
            f"{what}: operands are on {first} and on {second}. Move one: "
            f"A.to(device={'mesh' if is_mesh else repr(str(first))})."
        )


def _are_one_mesh(first: Any, second: Any) -> bool:
    """Whether two places are meshes of the same devices, whatever their axes are called; of the
    mesh of a traced program only its axes are known."""
    try:
        return list(first.devices.flat) == list(second.devices.flat)
    except AttributeError:  # a device
        return False
    except ValueError:
        return bool(first.shape_tuple == second.shape_tuple)


def common_batch(what: str, operands: Any) -> Shape:
    """The batch shape of a composition."""
    first = operands[0].shape[:-2]
    for A in operands:
        if A.shape[:-2] != first:
            return broadcast_batches(*{A.shape[:-2] for A in operands}, what=what)
    return first


def broadcast_batches(*shapes: Shape, what: str = "") -> Shape:
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
                    raise ShapeError(
                        f"{where}batch shapes {' and '.join(map(str, shapes))} do not broadcast."
                    )
                result[i] = size
    return tuple(result)


def spread(x: Array, batch: Shape, own: int = 2) -> Array:
    """An array with this batch shape in front of `own` dimensions of its own."""
    return namespace_of(x).broadcast_to(x, (*batch, *x.shape[x.ndim - own :]))


def concat_batches(xp: Any, parts: Sequence[Array], axis: int) -> Array:
    """Matrices side by side (axis -1) or on top of each other (-2), their batch shapes
    broadcast."""
    batches = {part.shape[:-2] for part in parts}
    if len(batches) > 1:
        batch = broadcast_batches(*batches)
        parts = [spread(part, batch) for part in parts]
    return xp.concat(list(parts), axis=axis)


def as_one_block(multiply: Callable[[Array], Array], X: Array) -> Array:
    """A X for a batch of blocks X, whose columns are those of one block, and one matrix A."""
    xp, (*batch, n, k) = namespace_of(X), X.shape
    Y = multiply(xp.reshape(xp.moveaxis(X, -2, 0), (n, math.prod(batch) * k)))
    return xp.moveaxis(xp.reshape(Y, (Y.shape[0], *batch, k)), 0, -2)


def zero_product(A: Any, X: Array) -> Array:
    """Zeros of the shape, dtype and device of A X."""
    xp, batch = namespace_of(X), broadcast_batches(A.shape[:-2], X.shape[:-2])
    dtype = xp.result_type(A.dtype, X.dtype)
    return xp.zeros((*batch, A.shape[-2], X.shape[-1]), dtype=dtype, device=xp.device_of(X))


def misfit(A: Any, shape: Shape) -> str:
    """What is wrong with a right side of this shape."""
    m, n = A.shape[-2:]
    return (
        f"@: the operator is {m}x{n}, the right side needs {n} rows; its shape is {tuple(shape)}."
    )
