"""The frameworks: one short list of names, with the same meaning in NumPy, PyTorch and JAX.

A backend is a plain module of functions, called `xp` in the code that uses it. It is found once per
operator from the type of its arrays, and a framework is imported only when one of its arrays has
been seen (it is then loaded already).
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from .. import clock

Array = Any

#: What every backend module defines.
NAMES: tuple[str, ...] = tuple(
    """
    name is_functional hides_values array_types
    bool float16 bfloat16 float32 float64 complex64 complex128
    dtype_from dtype_name result_type is_complex is_floating real_dtype complex_dtype eps default_float
    asarray astype zeros ones full eye arange device_of device_memory device_name
    to_device to_numpy fetch copy own peek
    is_traced is_on_device staged is_differentiated is_compiling
    abs conj real imag reciprocal exp log sqrt sin cos sign where maximum minimum isfinite isnan
    logical_and logical_or logical_not angle
    sum prod max min any all mean argmax argsort sort cumsum
    reshape expand_dims squeeze moveaxis broadcast_to concat pad stack flip roll take take_along_axis
    tril triu diagonal make_diagonal matrix_transpose
    matmul add_product einsum vecdot vector_norm rough_norm axpy xpby descend dot_real three_term column_dot
    inner_products sum_once
    cholesky cholesky_or_nan cholesky_solve cholesky_inverse lu_factor lu_solve lu_permutation
    lu_parity ldl_factor ldl_solve ldl_slogdet
    qr qr_triangle qr_pivoted eigh eigvalsh eig eigvals svd expm
    solve_triangular solve_tridiagonal solve_banded map_on_host linear_rule
    tridiagonal_pivots solve_triangular_sum solve_shifted linear_recurrence
    fft ifft fftn ifftn rfftn irfftn
    sparse_matmul sparse_array fuses_diagonals sparse_diagonals diagonals_matmul lay_out
    scatter_add set_at radial_product compiled_entries
    generator split fold_in normal rademacher uniform
    while_loop fori_loop scan cond loop_map call_host outside_trace
    jvp vjp linearise linear_transpose vmap custom_derivative stop_gradient checkpoint hoist
    register_pytree tree_map jit warn_later synchronize watch_operations record recorder
    """.split()
)

# Whose time `info.times` tells: of factorisations, also within a solve, and of substitutions, which
# are products with an inverse.
_PARTS = {
    clock.FACTORISATION: """
    cholesky cholesky_or_nan cholesky_inverse lu_factor ldl_factor qr qr_triangle qr_pivoted eigh eigvalsh eig
    eigvals svd expm solve_tridiagonal solve_banded tridiagonal_pivots
    """.split(),
    clock.PRODUCTS: "cholesky_solve lu_solve ldl_solve solve_triangular".split(),
}

KNOWN = ("numpy", "torch", "jax")
_FRAMEWORK_OF_ROOT = {"numpy": "numpy", "torch": "torch", "jax": "jax", "jaxlib": "jax"}

_FRAMEWORK_OF_MESH = {"Mesh": "jax", "AbstractMesh": "jax", "DeviceMesh": "torch"}

_loaded: dict[str, ModuleType] = {}
_callbacks: list[Callable[[ModuleType], Any]] = []
# Modules with `is_strict(A)` and `enter(f, A, ...)`: whether a call on A needs a mode of a framework
# or must leave one, and that call. torch's is here as soon as a tensor on a mesh was seen.
modes: list[Any] = []
# By type. Python's own are there from the start: looking one up is then a dictionary access that
# torch.compile can trace.
_namespaces: dict[type, ModuleType | None] = dict.fromkeys(
    (bool, int, float, complex, str, list, tuple, dict, slice, type(None), type(...))
)


def get(name: str) -> ModuleType:
    """Return the backend called `name` ("numpy", "torch" or "jax"), importing it if need be.

    Raises
    ------
    ValueError
        If there is no backend of that name.
    ImportError
        If the framework is not installed; the message says how to install it.
    """
    module = _loaded.get(name)
    return module if module is not None else _load(name)


def _load(name: str) -> ModuleType:
    if name not in KNOWN:
        raise ValueError(
            f"there is no backend {name!r}; choose one of {', '.join(map(repr, KNOWN))}"
        )
    try:
        module = importlib.import_module(f"{__name__}.{name}")
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("torch", "jax", "jaxlib"):
            raise  # a mistake of ours or a broken installation: its own message is the better one
        raise ImportError(
            f"the {name} backend needs {error.name}, which is not installed: pip install "
            f"'colinear[{name}]'",
            name=error.name,
        ) from error
    if name not in _loaded:
        for part, names in _PARTS.items():
            for each in names:
                setattr(module, each, timed(part, getattr(module, each)))
        if name == "torch":
            clock.watch_compiler(module.is_compiling)
        _loaded[name] = module
        if hasattr(module, "is_strict"):
            modes.append(module)
        _namespaces.update(dict.fromkeys(module.array_types, module))
        for callback in list(_callbacks):
            callback(module)
    return module


def mesh_module(place: Any) -> Any:
    """Return the file of a backend that cuts arrays over the devices of meshes like this one, or
    None if `place` is no mesh: a device, say.

    Such a file has `axis_sizes`, `place_on_mesh`, `cuts_of`, `gather_whole`, `from_local_rows`,
    `local_rows`, `bytes_per_device`, `apply_by_rows` and `CUTS_EVENLY`.
    """
    framework = _FRAMEWORK_OF_MESH.get(type(place).__name__)
    if framework is None or type(place).__module__.partition(".")[0] not in (framework, "jaxlib"):
        return None
    return importlib.import_module(f"{get(framework).__name__}.mesh")


Timed = TypeVar("Timed", bound=Callable[..., Any])


def timed(part: str, f: Timed) -> Timed:
    """f, whose time is of this part of a call while a clock runs."""

    @functools.wraps(f)
    def run(*arguments: Any, **options: Any) -> Any:
        if clock.CLOCKS and (now := clock.running()) is not None:
            return now.run(part, f, *arguments, **options)
        return f(*arguments, **options)

    return run  # type: ignore[return-value]


factorising = functools.partial(timed, clock.FACTORISATION)


def loaded() -> tuple[ModuleType, ...]:
    """Return the backends in use so far."""
    return tuple(_loaded.values())


def on_load(callback: Callable[[ModuleType], Any]) -> None:
    """Call `callback(module)` for each backend already loaded, and for each later one when it is
    loaded."""
    _callbacks.append(callback)
    for module in loaded():
        callback(module)


def namespace_of(x: Any) -> Any:
    """Return the backend to whose framework the array `x` belongs, or None if `x` is not an array.

    Scalars, Python's and NumPy's (`numpy.float64(2)`), belong to no framework: they mix with all of
    them.
    """
    try:
        return _namespaces[type(x)]
    except KeyError:
        return _find(type(x))


def _find(cls: type) -> ModuleType | None:
    """The backend of a type, remembered; only type names are looked at before its framework is
    known to be loaded."""
    found = None
    # subclasses of arrays from elsewhere (nn.Parameter, DTensor, ...) have an array among their
    # bases
    for base in cls.__mro__:
        root = base.__module__.partition(".")[0]
        framework = _FRAMEWORK_OF_ROOT.get(root)
        if framework is not None and sys.modules.get(root) is not None:
            module = get(framework)
            if issubclass(cls, module.array_types):
                found = module
                break
    _namespaces[cls] = found
    return found


class Norm(NamedTuple):
    """|x| along axes of an array on a device, found when it is fetched: with others at once. Its
    square may vanish or overflow. Of the orders inf and -inf it is the largest and least |x_i|."""

    array: Array
    axis: tuple[int, ...]
    order: float = 2


def adjoint(xp: Any, X: Array) -> Array:
    """X^H, of the last two axes."""
    return xp.conj(xp.matrix_transpose(X))


def inner_products(xp: Any, X: Array, Y: Array) -> Array:
    """X^H Y: the inner products of columns."""
    return xp.inner_products(X, Y)


def hermitian(xp: Any, X: Array) -> Array:
    """(X + X^H) / 2."""
    return (X + adjoint(xp, X)) / 2


def matrix_inverse(xp: Any, X: Array) -> Array:
    """X^-1, by LU."""
    return xp.lu_solve(*xp.lu_factor(X), xp.broadcast_to(eye_like(xp, X), X.shape))


def without_zeros(xp: Any, x: Array) -> Array:
    """x to divide by: 1 in place of zeros."""
    return xp.where(x == 0, 1, x)


def positive_or_one(xp: Any, x: Array) -> Array:
    """x to divide by: 1 in place of what is not positive, or no number."""
    return xp.where(x > 0, x, 1)


def eye_like(xp: Any, X: Array) -> Array:
    """The identity that multiplies X from the right, of its dtype and on its device."""
    return xp.eye(X.shape[-1], dtype=X.dtype, device=xp.device_of(X))


def zeros_like(xp: Any, X: Array, shape: tuple[int, ...]) -> Array:
    """Zeros of this shape, of the dtype of X and on its device."""
    return xp.zeros(shape, dtype=X.dtype, device=xp.device_of(X))


def places_like(xp: Any, X: Array) -> Array:
    """The numbers 0, 1, ... of the entries along the last axis of X, on its device."""
    return xp.arange(X.shape[-1], device=xp.device_of(X))


def program(name: str, f: Callable, *static: Any) -> Callable:
    """`f(xp, *static, ...)` as a function of operators and arrays alone: compiled by JAX once for
    each structure and shape.

    `static` must have hashes; they, and f, say whether the program is there already.
    """
    xp = get(name)
    # without the cache elsewhere, of which torch.compile warns
    return _compiled(xp, f, *static) if xp.is_functional else functools.partial(f, xp, *static)


@functools.lru_cache(maxsize=1024)
def _compiled(xp: Any, f: Callable, *static: Any) -> Callable:
    return xp.jit(functools.partial(f, xp, *static))


def is_array(x: Any) -> bool:
    """Whether `x` is an array of one of the three frameworks."""
    return namespace_of(x) is not None


get("numpy")
