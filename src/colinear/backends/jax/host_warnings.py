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


class _Structure(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("extension", ctypes.c_void_p)]


class _Version(_Structure):
    _fields_ = [("major", ctypes.c_int), ("minor", ctypes.c_int)]


class _Metadata(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("version", _Version)]


class _Extension(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("metadata", ctypes.POINTER(_Metadata)),
    ]


class _ErrorArguments(_Structure):
    _fields_ = [("message", ctypes.c_char_p), ("code", ctypes.c_int)]


_CreateError = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_ErrorArguments))


class _Interface(_Structure):
    _fields_ = [
        ("version", _Version),
        ("internal", ctypes.c_void_p),
        ("create_error", _CreateError),
    ]


class _Text(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class _Arguments(_Structure):
    _fields_ = [("count", ctypes.c_int64), ("types", ctypes.c_void_p), ("values", ctypes.c_void_p)]


class _Attributes(_Structure):
    _fields_ = [
        ("count", ctypes.c_int64),
        ("types", ctypes.c_void_p),
        ("names", ctypes.c_void_p),
        ("values", ctypes.POINTER(ctypes.POINTER(_Text))),
    ]


class _Frame(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("extension", ctypes.POINTER(_Extension)),
        ("interface", ctypes.POINTER(_Interface)),
        ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("arguments", _Arguments),
        ("results", _Arguments),
        ("attributes", _Attributes),
    ]


_versions: set[int] = set()  # the major ones that XLA has told


@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Frame))
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
    category, _, message = ctypes.string_at(text.start, text.length).decode().partition(": ")
    try:
        _warn(message, category)
    except Warning as warning:
        arguments = _ErrorArguments(
            ctypes.sizeof(_ErrorArguments), None, repr(warning).encode(), FAILED_PRECONDITION
        )
        return interface.contents.create_error(ctypes.byref(arguments))
    return None


for _platform in PLATFORMS:
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(_called_by_xla), platform=_platform)


def _warn(message: str, category: str) -> None:
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
    leaves, structure = jax.tree.flatten(result)
    is_array = [isinstance(leaf, jax.Array) for leaf in leaves]
    arrays = iter(
        _warn_p.bind(
            jnp.max(which.astype(np.int32), initial=0),
            *(leaf for leaf, is_one in zip(leaves, is_array) if is_one),
            texts=tuple(f"{category.__name__}: {message}" for message in messages),
        )
    )
    return jax.tree.unflatten(
        structure, [next(arrays) if is_one else leaf for leaf, is_one in zip(leaves, is_array)]
    )


@functools.cache
def warning_effects() -> Any:
    """The effects that a program has which warns."""
    return jax.make_jaxpr(lambda: jax.debug.callback(lambda: None))().effects


@_warn_p.def_impl
def _now(which: Any, *arrays: Any, texts: tuple[str, ...]) -> list:
    if which := int(which):
        category, _, message = texts[which - 1].partition(": ")
        _warn(message, category)
    return list(arrays)


@_warn_p.def_effectful_abstract_eval
def _shapes(which: Any, *arrays: Any, texts: tuple[str, ...]) -> tuple[list, Any]:
    return list(arrays), set() if arrays else warning_effects()


def _tangent(primals: Any, tangents: Any, *, texts: tuple[str, ...]) -> tuple[list, list]:
    """The tangents warn too: a program may compute a derivative alone."""
    which, *arrays = primals
    is_zero = [type(tangent) is ad.Zero for tangent in tangents[1:]]
    moving = [tangent for tangent, zero in zip(tangents[1:], is_zero) if not zero]
    moved = iter(_warn_p.bind(which, *moving, texts=texts) if moving else ())
    return (
        _warn_p.bind(which, *arrays, texts=texts),
        [tangent if zero else next(moved) for tangent, zero in zip(tangents[1:], is_zero)],
    )


def _transpose(cotangents: Any, which: Any, *arrays: Any, texts: tuple[str, ...]) -> list:
    is_zero = [type(cotangent) is ad.Zero for cotangent in cotangents]
    passing = [cotangent for cotangent, zero in zip(cotangents, is_zero) if not zero]
    passed = iter(_warn_p.bind(which, *passing, texts=texts) if passing else ())
    return [None, *(None if zero else next(passed) for zero in is_zero)]


def _batch(arguments: Any, axes: Any, *, texts: tuple[str, ...]) -> tuple[list, list]:
    """One warning for a batch: of the worst."""
    which, *arrays = arguments
    return _warn_p.bind(jnp.max(which, initial=0), *arrays, texts=texts), list(axes[1:])


def _lower(context: Any, which: Any, *arrays: Any, texts: tuple[str, ...]) -> list:
    """The branches; none in a program that is exported, which must run without this package."""
    if not context.module_context.lowering_parameters.for_export:
        tell = [functools.partial(_call, text) for text in texts]
        branches = mlir.lower_fun(lambda which: jax.lax.switch(which, [_nothing, *tell]), True)
        branches(context.replace(avals_in=context.avals_in[:1], avals_out=[]), which)
    return list(arrays)


def _nothing() -> tuple:
    return ()


def _call(text: str) -> tuple:
    if _versions <= {MAJOR_VERSION}:
        jax.ffi.ffi_call(TARGET, (), has_side_effect=True)(text=text)
    else:  # more slowly, but the structures above may not be XLA's
        category, _, message = text.partition(": ")
        jax.debug.callback(functools.partial(_warn, message, category))
    return ()


ad.primitive_jvps[_warn_p] = _tangent
ad.primitive_transposes[_warn_p] = _transpose
batching.primitive_batchers[_warn_p] = _batch
mlir.register_lowering(_warn_p, _lower)
