"""Warnings from compiled programs of JAX, which call the host only where something is wrong.

A callback of Python's would take each call of a program off JAX's fast path (2 ms instead of 30 us),
keep the program out of JAX's cache on disk, and forbid its export. So a program holds a call of a
function that is known to XLA by name, in a branch that is taken only if there is something to tell.
The function is written against XLA's C interface, whose structures come first.
"""

from __future__ import annotations

import ctypes
import functools
import warnings
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_void_p
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from ... import errors

TARGET = "colinear_warn"
PLATFORMS = ("cpu", "CUDA", "ROCM")
METADATA = 1  # the type of the extension by which XLA asks a function for its version
MAJOR_VERSION, FIRST_MINOR_VERSION = 0, 1  # of XLA's C interface
FAILED_PRECONDITION = 9  # XLA's code of the error that a warning has become


# --------------------------------------------------------------------------- XLA's C interface


def _structure(**fields: Any) -> Any:
    """A structure of C with these fields."""
    return type("Structure", (ctypes.Structure,), {"_fields_": list(fields.items())})


_HEAD = {"size": c_size_t, "extension": c_void_p}
_Version = _structure(**_HEAD, major=c_int, minor=c_int)
_Metadata = _structure(size=c_size_t, version=_Version)
_Extension = _structure(size=c_size_t, type=c_int, next=c_void_p, metadata=POINTER(_Metadata))
_ErrorArguments = _structure(**_HEAD, message=c_char_p, code=c_int)
_CreateError = ctypes.CFUNCTYPE(c_void_p, POINTER(_ErrorArguments))
_Interface = _structure(**_HEAD, version=_Version, internal=c_void_p, create_error=_CreateError)
_Text = _structure(start=c_void_p, length=c_size_t)
_Arguments = _structure(**_HEAD, count=c_int64, types=c_void_p, values=c_void_p)
_Attributes = _structure(
    **_HEAD, count=c_int64, types=c_void_p, names=c_void_p, values=POINTER(POINTER(_Text))
)
_Frame = _structure(
    size=c_size_t,
    extension=POINTER(_Extension),
    interface=POINTER(_Interface),
    context=c_void_p,
    stage=c_int,
    arguments=_Arguments,
    results=_Arguments,
    attributes=_Attributes,
)

_versions: set[int] = set()  # the major ones that XLA has told


@ctypes.CFUNCTYPE(c_void_p, POINTER(_Frame))
def _called_by_xla(frame: Any) -> Any:
    """Warn by the text of the call's one attribute; return an error of XLA's if that raises."""
    interface, extension = frame.contents.interface, frame.contents.extension
    if extension and extension.contents.type == METADATA:
        # Minor versions keep the structures above, so that the version is XLA's own. The first one
        # does not tell it here.
        version = extension.contents.metadata.contents.version
        version.minor = FIRST_MINOR_VERSION
        if interface:
            theirs = interface.contents.version
            version.major, version.minor = theirs.major, theirs.minor
        _versions.add(version.major)
        return None
    text = frame.contents.attributes.values[0].contents
    try:
        _warn(ctypes.string_at(text.start, text.length).decode())
    except Warning as warning:
        arguments = _ErrorArguments(
            ctypes.sizeof(_ErrorArguments), None, repr(warning).encode(), FAILED_PRECONDITION
        )
        return interface.contents.create_error(ctypes.byref(arguments))
    return None


for _platform in PLATFORMS:
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(_called_by_xla), platform=_platform)


def _warn(text: str) -> None:
    category, _, message = text.partition(": ")
    warnings.warn(message, getattr(errors, category, UserWarning), stacklevel=4)


# --------------------------------------------------------------------------- the primitive

_warn_p = Primitive("colinear_warn")
_warn_p.multiple_results = True


def warn_later(
    which: Any, *messages: str, category: type[Warning] = UserWarning, result: Any = None
) -> Any:
    """Warn by messages[k - 1] where k > 0 is the largest of `which`, numbers or truths; under jit,
    when it is known. Return the result.

    A compiled program warns where the arrays of the result are computed; where there are none, the
    warning is an effect of the program, which JAX calls more slowly.
    """
    if not isinstance(which, jax.core.Tracer):
        if which := int(np.max(which, initial=0)):
            warnings.warn(messages[which - 1], category, stacklevel=3)
        return result
    texts = tuple([f"{category.__name__}: {message}" for message in messages])
    arrays = [leaf for leaf in jax.tree.leaves(result) if isinstance(leaf, jax.Array)]
    warned = iter(_warn_p.bind(jnp.max(which.astype(np.int32), initial=0), *arrays, texts=texts))
    return jax.tree.map(lambda leaf: next(warned) if isinstance(leaf, jax.Array) else leaf, result)


@functools.cache
def warning_effects() -> Any:
    """The effects that a program has which warns."""
    return jax.make_jaxpr(lambda: jax.debug.callback(lambda: None))().effects


@_warn_p.def_impl
def _now(which: Any, *arrays: Any, texts: tuple[str, ...]) -> list:
    if which := int(which):
        _warn(texts[which - 1])
    return list(arrays)


@_warn_p.def_effectful_abstract_eval
def _shapes(which: Any, *arrays: Any, texts: tuple[str, ...]) -> tuple[list, Any]:
    return list(arrays), set() if arrays else warning_effects()


def _tangent(primals: Any, tangents: Any, *, texts: tuple[str, ...]) -> tuple[list, list]:
    """The tangents warn too: a program may compute a derivative alone."""
    return _warn_p.bind(*primals, texts=texts), _warn_for(primals[0], tangents[1:], texts)


def _transpose(cotangents: Any, which: Any, *arrays: Any, texts: tuple[str, ...]) -> list:
    return [None, *_warn_for(which, cotangents, texts)]


def _warn_for(which: Any, values: Any, texts: tuple[str, ...]) -> list:
    """The values, of which those that are not symbolic zeros warn."""
    moving = [x for x in values if type(x) is not ad.Zero]
    warned = iter(_warn_p.bind(which, *moving, texts=texts) if moving else ())
    return [x if type(x) is ad.Zero else next(warned) for x in values]


def _batch(arguments: Any, axes: Any, *, texts: tuple[str, ...]) -> tuple[list, list]:
    """One warning for a batch: of the worst."""
    which, *arrays = arguments
    return _warn_p.bind(jnp.max(which, initial=0), *arrays, texts=texts), list(axes[1:])


def _lower(context: Any, which: Any, *arrays: Any, texts: tuple[str, ...]) -> list:
    """The branches; none in a program that is exported, which must run without this package."""
    if not context.module_context.lowering_parameters.for_export:
        axes = context.module_context.axis_context
        mesh = getattr(axes, "mesh", None)  # in a `shard_map`
        count = getattr(axes, "num_devices", 1) if mesh is None else mesh.size
        call = _call if count == 1 else _call_back
        tell = [functools.partial(call, text) for text in texts]
        branches = mlir.lower_fun(lambda which: jax.lax.switch(which, [lambda: (), *tell]), True)
        branches(context.replace(avals_in=context.avals_in[:1], avals_out=[]), which)
    return list(arrays)


def _call(text: str) -> tuple:
    if not _versions <= {MAJOR_VERSION}:  # the structures above may not be XLA's
        return _call_back(text)
    jax.ffi.ffi_call(TARGET, (), has_side_effect=True)(text=text)
    return ()


def _call_back(text: str) -> tuple:
    """Warn more slowly, by JAX's callback: it says on which of several devices it runs, as XLA asks
    of what has effects, and no call of ours can."""
    jax.debug.callback(functools.partial(_warn, text))
    return ()


ad.primitive_jvps[_warn_p] = _tangent
ad.primitive_transposes[_warn_p] = _transpose
batching.primitive_batchers[_warn_p] = _batch
mlir.register_lowering(_warn_p, _lower)
