"""Products with kernels of the distance that never write the kernel: Pallas' programs, by way of
Triton, on a CUDA device; and their derivatives (`..radial` derives them).

Forward mode in points and parameters, and second derivatives, go by blocks of rows. So does all
that runs elsewhere, and what a program of a profile does once one has failed: each is compared
with the blocks before it is used.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from ... import errors
from ..radial import MOST_COLUMNS, MOST_COORDINATES, by_blocks, power_of_two
from .arrays import is_complex
from .control import in_ordinary_modes
from .derivatives import linear_rule

TRACED = (2, 3)  # the shape of the distances that a profile is traced with
TRIED_ROWS, TRIED_PARAMETER = (70, 45), 0.75  # of the product that a program is tried with
TOLERANCES = {2: 3e-2, 4: 1e-4, 8: 1e-10}  # of that product, by the bytes of a number

is_interpreted = False  # whether Pallas' interpreter runs the programs, on any device: for tests


def radial_product(form: Any, X: Any, Y: Any, parameters: tuple) -> Callable | str:
    """A function V -> K V of a kernel of the distance, which never writes K; or, where blocks are
    multiplied instead, why, empty if nothing is amiss. See torch's.

    Points may have leading dimensions, (*batch, m, d), and V too.
    """
    if not (is_interpreted or _may_be_on_cuda(X)):
        return ""
    if not _has_pallas():
        return "since this JAX has no Pallas for Triton"
    X, Y, factor, shape = form.placed(X, Y, *parameters)
    points, numbers = [X] if Y is None else [X, Y], [jnp.asarray(p) for p in shape]
    if any(p.ndim for p in numbers) or any(map(is_complex, (factor, *numbers))):
        return ""
    if X.shape[-1] > MOST_COORDINATES or any(0 in P.shape for P in points):
        return ""

    def product(result: Any) -> Product | None:
        """K V of this dtype, for single precision at least."""
        dtype = jnp.promote_types(result, jnp.float32)
        profile = traced(form.profile, dtype, len(shape))
        options = dtype, form.is_smooth, result.itemsize == 2, is_interpreted
        return None if profile is None else Product(Fused(profile, *options), len(points))

    common = jnp.result_type(*points, factor, *shape)
    rule = product(common)
    if rule is None:
        return "since its profile is no function of each distance alone"
    likes = [jax.ShapeDtypeStruct(P.shape[-2:], rule.fused.dtype) for P in points]
    V = jax.ShapeDtypeStruct((points[-1].shape[-2], 1), rule.fused.dtype)
    if reason := fault(Program(rule), V, *likes, *numbers):
        return f"since the fused product failed its trial ({reason})"

    def multiply(V: Any) -> Any:
        if is_complex(V):
            return jax.lax.complex(multiply(V.real), multiply(V.imag))
        result = jnp.result_type(common, V)
        own = rule if result == common else product(result)
        assert own is not None  # what is a function of each distance is one in any precision
        V, *arrays = (x.astype(own.fused.dtype) for x in (V, *points, *numbers))
        found = _over_batches(
            lambda V, *points: linear_rule(own, (V,), (*points, *arrays[len(points) :]))[0],
            *(V, *arrays[: len(points)]),
        )
        return (factor * found).astype(result)

    return multiply


def _may_be_on_cuda(X: Any) -> bool:
    """Whether X lies on one CUDA device, or is traced where there are any, but for no mesh."""
    ambient = getattr(jax.sharding, "get_abstract_mesh", lambda: None)()  # JAX 0.5 has it not
    if ambient is not None and ambient.axis_names:
        return False
    if isinstance(X, jax.core.Tracer):
        return bool(cuda_devices())
    return len(X.devices()) == 1 and X.devices() <= set(cuda_devices())


@functools.cache
def cuda_devices() -> tuple:
    """Those of this process."""
    try:
        return tuple(jax.local_devices(backend="cuda"))
    except RuntimeError:
        return ()


@functools.cache
def _has_pallas() -> bool:
    try:
        return bool(_kernels())
    except (ImportError, AttributeError):  # of an older JAX
        return False


def _kernels() -> Any:
    """The programs, in a file of their own: Pallas is imported with them."""
    return importlib.import_module(".radial_kernels", __package__)


def _over_batches(f: Callable, *matrices: Any) -> Any:
    """f of matrices, mapped over their leading dimensions, which broadcast."""
    batch = jnp.broadcast_shapes(*(M.shape[:-2] for M in matrices))
    if not batch:
        return f(*matrices)
    axes = tuple(0 if M.ndim > 2 else None for M in matrices)
    flat = (
        jnp.broadcast_to(M, (*batch, *M.shape[-2:])).reshape(-1, *M.shape[-2:]) if M.ndim > 2 else M
        for M in matrices
    )
    found = jax.vmap(f, axes)(*flat)
    return found.reshape(*batch, *found.shape[1:])


# profiles
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Profile:
    """φ(q, *shape), element by element. Two of one text are equal: what one has compiled, the
    other runs, and a number that φ reads from outside is part of the text."""

    text: str
    f: Callable = field(compare=False)

    def __call__(self, q: Any, *shape: Any) -> Any:
        return self.f(q, *shape)


def traced(f: Callable, dtype: Any, count: int) -> Profile | None:
    """The profile f with so many parameters; None where it mixes the distances, reads arrays, or
    gives another dtype."""
    arguments = (jax.ShapeDtypeStruct(s, dtype) for s in (TRACED, *((),) * count))
    try:
        # of a function that it knows JAX would return what it has traced, whatever f reads by now
        closed = jax.make_jaxpr(lambda *given: f(*given))(*arguments)
    except Exception:  # what cannot be traced here, blocks may do
        return None
    is_like_q = [(x.shape, x.dtype) for x in closed.out_avals] == [(TRACED, dtype)]
    if closed.consts or not is_like_q or _mixes(closed.jaxpr):
        return None
    return Profile(str(closed.jaxpr), f)


# of one shape in and out, but not element by element
MIXING = """
cumsum cumprod cummax cummin cumlogsumexp sort rev gather dot_general conv_general_dilated fft iota
dynamic_update_slice while scan cond triangular_solve
""".split()


def _mixes(jaxpr: Any) -> bool:
    """Whether an element of an answer may depend on more than one of an argument, or its place."""
    for equation in jaxpr.eqns:
        given, found = ([x.aval.shape for x in xs] for xs in (equation.invars, equation.outvars))
        if {*given, *found} - {TRACED, ()} or (TRACED in given and () in found):
            return True
        if equation.primitive.name in MIXING or equation.primitive.name.startswith("scatter"):
            return True
        if any(np.ndim(getattr(x, "val", 0)) for x in equation.invars):  # an array from outside
            return True
        inside = (getattr(part, "jaxpr", part) for part in equation.params.values())
        if any(_mixes(part) for part in inside if hasattr(part, "eqns")):
            return True
    return False


# products and their derivatives, as rules of `linear_rule`
# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fused:
    """A profile φ, and how programs compute with it."""

    profile: Profile
    dtype: Any
    is_smooth: bool  # whether φ has a derivative at 0, so that rounding in q is not magnified
    is_half: bool  # whether the answer is rounded to half precision
    is_interpreted: bool


@dataclass(frozen=True)
class _Rule:
    """What is linear in some arrays x, given constants: points, in one set or two, and the
    parameters of φ, and V where x is not V."""

    fused: Fused
    sets: int  # of points; of one, the points of the rows are those of the columns
    is_transposed: bool = False

    def again(self) -> Any:
        return self

    def sides(self, points: tuple) -> tuple[Any, Any]:
        """The points of the rows and those of the columns."""
        return (points[-1], points[0]) if self.is_transposed else (points[0], points[-1])

    def product(self, constants: tuple, V: Any) -> Any:
        """K V by blocks."""
        rows, columns = self.sides(constants[: self.sets])
        return by_blocks(self.fused.profile, rows, columns, V, *constants[self.sets :])

    def by_blocks(self, x: tuple, constants: tuple) -> tuple:
        """What the rule gives, in a form that JAX differentiates."""
        raise NotImplementedError

    def tangent(
        self, x: tuple, constants: tuple, dx: tuple | None, moved: tuple, output: tuple
    ) -> tuple:
        dx = jax.tree.map(jnp.zeros_like, x) if dx is None else dx
        return jax.jvp(self.by_blocks, (x, constants), (dx, moved))[1]


class Product(_Rule):
    """V -> K V."""

    def apply(self, x: tuple, constants: tuple) -> tuple:
        return run(self, *x, *constants)

    def by_blocks(self, x: tuple, constants: tuple) -> tuple:
        return (self.product(constants, *x),)

    def on_cuda(self, V: Any, *constants: Any) -> tuple:
        rows, columns = self.sides(constants[: self.sets])
        return (_kernels().product(self.fused, rows, columns, V, constants[self.sets :]),)

    def adjoint(self) -> Product:
        return replace(self, is_transposed=self.sets == 2 and not self.is_transposed)

    def tangent(
        self, x: tuple, constants: tuple, dx: tuple | None, moved: tuple, output: tuple
    ) -> tuple:
        push = Push(self.fused, self.sets, self.is_transposed)
        (found,) = linear_rule(push, moved, (*constants, *x), output)
        return (found if dx is None else found + linear_rule(self, dx, constants, output)[0],)


class Push(_Rule):
    """The change of K V with points and parameters, (dX, dY, *dθ) -> dK V."""

    def apply(self, x: tuple, constants: tuple) -> tuple:
        return self.by_blocks(x, constants)

    def by_blocks(self, x: tuple, constants: tuple) -> tuple:
        *constants, V = constants  # type: ignore[assignment]
        return jax.jvp(lambda *c: (self.product(c, V),), tuple(constants), x)[1]

    def adjoint(self) -> Pull:
        return Pull(self.fused, self.sets, self.is_transposed)


class Pull(_Rule):
    """The cotangents of points and parameters, G -> (X, Y, *θ)."""

    def apply(self, x: tuple, constants: tuple) -> tuple:
        return run(self, *x, *constants)

    def by_blocks(self, x: tuple, constants: tuple) -> tuple:
        *constants, V = constants  # type: ignore[assignment]
        return jax.vjp(lambda *c: self.product(c, V), *constants)[1](*x)

    def on_cuda(self, G: Any, *constants: Any) -> tuple:
        pull = functools.partial(_kernels().cotangents, self.fused, shape=constants[self.sets : -1])
        points, V = constants[: self.sets], constants[-1]
        if self.sets == 1:  # of both sides at once: S + S^T
            sides = jnp.concatenate([G, V], axis=1), jnp.concatenate([V, G], axis=1)
            of_points, of_shape = pull(*points, *points, *sides)
            return of_points, *(x / 2 for x in of_shape)
        rows, columns = self.sides(points)
        of_rows, of_shape = pull(rows, columns, G, V)
        of_columns, _ = pull(columns, rows, V, G)
        return *self.sides((of_rows, of_columns)), *of_shape

    def adjoint(self) -> Push:
        return Push(self.fused, self.sets, self.is_transposed)


# programs on CUDA devices, blocks elsewhere
# --------------------------------------------------------------------------------------------------


choice = Primitive("colinear_radial")
choice.multiple_results = True


def run(rule: Any, *arrays: Any) -> tuple:
    """What the rule gives for its x and constants: by its program on a CUDA device, else by
    blocks."""
    program = Program(rule)
    if rule.fused.is_interpreted:
        return program.on_cuda(*arrays)
    if fault(program, *arrays):
        return program.by_blocks(*arrays)
    return tuple(choice.bind(*arrays, program=program))


@dataclass(frozen=True)
class Program:
    """The two ways of a rule, mapped over the arrays by these axes, from the last to the first."""

    rule: Any
    axes: tuple[tuple[int | None, ...], ...] = ()

    def on_cuda(self, *arrays: Any) -> tuple:
        return self._mapped(self.rule.on_cuda)(*arrays)

    def by_blocks(self, *arrays: Any) -> tuple:
        return self._mapped(lambda x, *constants: self.rule.by_blocks((x,), constants))(*arrays)

    def with_axes(self, arrays: Any) -> Iterator[tuple[Any, tuple[int | None, ...]]]:
        """Each of the arrays and the axes along which it is mapped, the innermost first."""
        axes_of_each = list(zip(*self.axes, strict=True)) or [()] * len(arrays)
        return zip(arrays, axes_of_each, strict=True)

    def _mapped(self, f: Callable) -> Callable:
        return functools.reduce(jax.vmap, self.axes, f)


@functools.partial(jax.jit, static_argnames="program")
def _compiled(*arrays: Any, program: Program) -> list:
    return choice.bind(*arrays, program=program)


@in_ordinary_modes
def _shapes(*arrays: Any, program: Program) -> list:
    likes = (jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arrays)
    return [
        jax.core.ShapedArray(x.shape, x.dtype) for x in jax.eval_shape(program.by_blocks, *likes)
    ]


@in_ordinary_modes
def _batch(arrays: Any, axes: Any, *, program: Program) -> tuple[list, list]:
    program = replace(program, axes=(*program.axes, tuple(axes)))
    is_right = not fault(program, *arrays)
    found = choice.bind(*arrays, program=program) if is_right else program.by_blocks(*arrays)
    return list(found), [0] * len(found)


@in_ordinary_modes
def _lower(context: Any, *arrays: Any, program: Program, is_cuda: bool = False) -> Any:
    """The program for one CUDA device: XLA, which spreads the work of what it knows over several,
    could not cut this up."""
    devices = getattr(context.module_context.axis_context, "num_devices", 1)
    is_spread = devices is not None and devices > 1
    if is_cuda and not is_spread:
        try:
            with _without_deprecations():
                return mlir.lower_fun(program.on_cuda, multiple_results=True)(context, *arrays)
        except Exception as error:  # at a size, say, that is too large
            _give_up(program.rule.fused.profile, _in_words(error))
    return mlir.lower_fun(program.by_blocks, multiple_results=True)(context, *arrays)


choice.def_impl(_compiled)
choice.def_abstract_eval(_shapes)
batching.primitive_batchers[choice] = _batch
mlir.register_lowering(choice, _lower)
mlir.register_lowering(choice, functools.partial(_lower, is_cuda=True), platform="cuda")


# trials
# --------------------------------------------------------------------------------------------------

FAULTS: dict[Profile, str] = {}  # what was wrong with the first program of a profile that failed


def fault(program: Program, *arrays: Any) -> str:
    """What is wrong with a program for arrays like these, empty if nothing is: it is compared with
    the blocks when it is first asked for."""
    if program.rule.fused.is_interpreted or program.rule.fused.profile in FAULTS:
        return FAULTS.get(program.rule.fused.profile, "")
    return trial(program, tuple(_few(program, *arrays)))


@functools.lru_cache(maxsize=1024)
def trial(program: Program, shapes: tuple[tuple[int, ...], ...]) -> str:
    """What is wrong with a program for arrays of these shapes, on a CUDA device."""
    fused, rng = program.rule.fused, np.random.default_rng(0)
    scale = max(shapes[1]) ** -0.5  # of points, so that distances are not all large
    matrices = [scale * rng.normal(size=shape) for shape in shapes]
    is_number = [
        x.ndim == sum(a is not None for a in axes) for x, axes in program.with_axes(matrices)
    ]
    arrays = [
        (TRIED_PARAMETER + 0 * x if number else x).astype(fused.dtype)
        for x, number in zip(matrices, is_number, strict=True)
    ]
    last = 1 + program.rule.sets
    far = [arrays[0], *(P + P.dtype.type(1) for P in arrays[1:last]), *arrays[last:]]
    try:
        both = program.on_cuda, program.by_blocks
        found, expected = (_evaluate(f, arrays, far) for f in both)
        reason = _difference(fused, found, expected)
    except Exception as error:  # whatever it is, the blocks remain
        reason = _in_words(error)
    return reason and _give_up(fused.profile, reason)


@contextlib.contextmanager
def _without_deprecations() -> Iterator[None]:
    """A block in which JAX 0.11 does not say that Pallas will leave Triton: once it is gone, the
    blocks remain."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _few(program: Program, *arrays: Any) -> Iterator[tuple[int, ...]]:
    """The shapes of such arrays with few rows and columns, of as few kinds as programs have, and
    two of what is mapped over."""
    single = []
    for x, axes in program.with_axes(arrays):
        shape = list(x.shape)
        for axis in reversed(axes):
            shape = shape if axis is None else shape[:axis] + shape[axis + 1 :]
        single.append(shape)
    points = range(1, 1 + program.rule.sets)
    rows = {single[i][0]: few for i, few in zip(points, TRIED_ROWS)}
    for i, (_, axes) in enumerate(program.with_axes(arrays)):
        shape = single[i]
        if shape:
            k = shape[1]
            is_kept = i in points or k == 1
            shape = [rows[shape[0]], k if is_kept else min(power_of_two(k), MOST_COLUMNS + 1)]
        for axis in axes:
            shape = shape if axis is None else [*shape[:axis], 2, *shape[axis:]]
        yield tuple(shape)


def _evaluate(f: Callable, *samples: list[np.ndarray]) -> list[np.ndarray]:
    """f of these arrays, near the origin and far from it, where other programs compute, on a CUDA
    device: at once, also while a program is traced."""
    place = jax.sharding.SingleDeviceSharding(cuda_devices()[0])
    likes = (jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place) for x in samples[0])
    with _without_deprecations():
        compiled = jax.jit(f).lower(*likes).compile()
    return [x for sample in samples for x in jax.device_get(compiled(*sample))]


def _difference(fused: Fused, found: list, expected: list) -> str:
    """What to say where results are not as near as they should be."""
    tolerance = TOLERANCES[2 if fused.is_half else np.dtype(fused.dtype).itemsize]
    for x, y in zip(found, expected, strict=True):
        error, size = np.linalg.norm(x - y), np.linalg.norm(y)
        if not error <= tolerance * (size + (y.size <= 2)):  # numbers are sums that cancel
            return f"it is off by {error:.1e} of {size:.1e}"
    return ""


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _give_up(profile: Profile, reason: str) -> str:
    """Leave the profile to blocks, and say so once."""
    FAULTS[profile] = reason
    warnings.warn(
        f"a fused product failed its trial, so blocks are multiplied: {reason}",
        errors.FallbackWarning,
        stacklevel=3,
    )
    return reason
