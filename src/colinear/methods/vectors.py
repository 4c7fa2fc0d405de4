"""The operations on vectors in which the recurrence of each method is written, once.

A recurrence is written as for one right side, in the operations of `ops`:

    q = multiply(p)
    alpha = ops.ratio(rho, ops.dot(p, q))
    x = ops.axpy(alpha, p, x)

There are three kinds of vectors. `Columns` are blocks (*batch, n, k) that advance together; a
number is an array (*batch, k), and what a column that has ended would still do is masked. `Single`
is one vector (n,) on the host, whose numbers are Python's: an operation takes a microsecond instead
of ten. `Device` (device.py) is one vector whose numbers stay on the device, which is not waited
for.

`axpy`, `xpby`, `scale` and `unit` may write over the vector that they update. So a recurrence
updates only vectors of its own: those that the operations return, and those made by `own`.
"""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable
from typing import Any

from ..backends import Array, on_load
from ..status import Status
from .basis import where_any

LinearMap = Callable[[Array], Array]  # X -> A X
LOOK_EVERY = 16  # steps after which a device is asked whether it is done, and waited for


class Code(enum.IntEnum):
    """How a column stands: it runs, waits for a new cycle, or has ended with a `Status`.

    The last three say what the status does not: that the preconditioner, or the right side or the
    initial guess, is to blame, and not the operator.
    """

    RESTART = -2  # a breakdown from which a new cycle may recover
    RUNNING = -1
    SUCCESS = Status.SUCCESS
    STAGNATION = Status.STAGNATION
    BREAKDOWN = Status.BREAKDOWN
    INDEFINITE = Status.NOT_POSITIVE_DEFINITE
    SINGULAR = Status.SINGULAR
    NONFINITE = Status.NONFINITE
    PRECONDITIONER_INDEFINITE = 16 + Status.NOT_POSITIVE_DEFINITE
    PRECONDITIONER_NONFINITE = 16 + Status.NONFINITE
    GIVEN_NONFINITE = 32 + Status.NONFINITE


# Frameworks want plain integers.
(
    RESTART, RUNNING, SUCCESS, STAGNATION, BREAKDOWN, INDEFINITE, SINGULAR, NONFINITE,
    PRECONDITIONER_INDEFINITE, PRECONDITIONER_NONFINITE, GIVEN_NONFINITE,
) = map(int, Code)  # fmt: skip


# What `positive` reports of a number that is not, of p^H A p and of r^H M r.
OPERATOR = INDEFINITE, NONFINITE
PRECONDITIONER = PRECONDITIONER_INDEFINITE, PRECONDITIONER_NONFINITE


def status_of(code: Any) -> Any:
    """The `Status` of a code, or of each code of an array, that has ended."""
    return code & 15


class Recorded(Exception):
    """Raised where torch records the derivatives of a product: then no vector may be written
    over."""


class State:
    """The vectors and numbers of a recurrence, which a step updates in place.

    A subclass annotates its fields: at least x, size (|r|^2) and status (a code for each column).
    It is a tree, which the loop of a traced program carries.
    """

    def __init_subclass__(cls) -> None:
        def flatten(state: Any) -> tuple[tuple, tuple]:
            names = tuple(sorted(vars(state)))
            return tuple(map(vars(state).get, names)), names

        def unflatten(names: tuple, values: tuple) -> Any:
            return cls(**dict(zip(names, values, strict=True)))

        on_load(lambda xp: xp.register_pytree(cls, flatten, unflatten))

    def __init__(self, **fields: Any):
        vars(self).update(fields)


class Columns:
    """Blocks of columns, (*batch, n, k); or of rows, (*batch, k, n), or one vector, if the axis is
    -1.

    Attributes
    ----------
    tol, goal
        The tolerance of the residual; and the squared norm at which a column is done with a cycle.
    every : int
        Steps between two looks at the values.
    waits : bool
        Whether a look waits for a device.
    carried
        The arrays that the operations themselves carry from step to step.
    in_place : bool
        Whether blocks are written over, where the framework can.
    few : bool
        Whether so few columns are written over that NumPy, whose loops are along the last axis,
        does better with the numbers of a column side by side.
    multiply, adjoint, precondition
        The products with A, A^H and M; None where there are none.
    """

    multiply: Any = None
    adjoint: Any = None
    precondition: Any = None

    def __init__(
        self,
        xp: Any,
        dtype: Any,
        tol: float = 0.0,
        goal: Any = None,
        *,
        waits: bool = False,
        in_place: bool = False,
        few: bool = False,
        axis: int = -2,
    ):
        self.xp, self.eps, self.tol, self.goal = xp, xp.eps(dtype), tol, goal
        self.root_eps = math.sqrt(self.eps)
        self.every, self.waits = LOOK_EVERY if waits else 1, waits
        self.carried: dict[Any, Array] = {}
        self._inner = xp.column_dot if in_place and axis == -2 else None  # quicker for wide blocks
        self.in_place, self._axis = in_place and not xp.is_functional, axis
        self._fills = self.in_place and xp.name == "torch"  # whose `where` is slow with numbers
        self._is_by_columns = few and self.in_place and xp.name == "numpy"
        self._wide = (..., None, slice(None)) if axis == -2 else (..., None)

    def own(self, X: Array) -> Array:
        """A vector of the recurrence's own, from a block."""
        if not self.in_place:
            return X
        return X.copy(order="F") if self._is_by_columns else self.xp.copy(X)

    over = own  # a block as a vector that is written over it: it must never be worse than before
    copy = own  # a vector of its own with the values of another one

    def solution(self, state: Any) -> Array:
        """The solution of a state as a block."""
        return state.x

    def number(self, a: Array) -> Any:
        """The numbers of all columns, as the operations take them."""
        return a

    def constant(self, value: float, like: Array) -> Any:
        """A number that is the same for all columns."""
        return self.xp.full(like.shape, value, dtype=like.dtype, device=self.xp.device_of(like))

    def codes(self, codes: Array) -> Any:
        """The codes of all columns at the start of a cycle."""
        return codes

    def scalar(self, a: Array, x: Array) -> Array:
        """Numbers of the dtype of a vector."""
        return self.xp.astype(a, x.dtype)

    def array(self, a: Any, like: Array) -> Array:
        """The numbers of all columns as an array."""
        return a

    def code(self, state: Any) -> Any:
        """How each column has ended."""
        return state.status

    def take(self, multiply: Any, adjoint: Any, precondition: Any) -> None:
        """Keep the products that the recurrence makes. `Recorded` is raised where their results may
        not be written over."""
        if self.in_place:
            by_columns = self._is_by_columns
            multiply, adjoint = (guarded(self.xp, f, by_columns) for f in (multiply, adjoint))
            precondition = guarded(self.xp, precondition, True) if by_columns else precondition
        self.multiply, self.adjoint, self.precondition = multiply, adjoint, precondition

    def goes_on(self, running: Any, state: Any, made: int) -> bool:
        """Whether another step is to be made after `made` of them."""
        return not self.looks_after(made) or bool(self.xp.any(running))

    def looks_after(self, made: int) -> bool:
        """Whether the values are looked at after so many steps."""
        return made % self.every == 0

    def inner(self, x: Array, y: Array) -> Array:
        """x^H y. (torch's vecdot conjugates the first one too.)"""
        return self._inner(x, y) if self._inner else self.xp.vecdot(x, y, axis=self._axis)

    def dot(self, x: Array, y: Array) -> Array:
        """The real part of x^H y."""
        inner = self._inner(x, y) if self._inner else self.xp.vecdot(x, y, axis=self._axis)
        return self.xp.real(inner)

    def dots(self, *pairs: tuple[Array, Array]) -> tuple[Array, ...]:
        """The real parts of x^H y for some pairs, which a mesh sums at once."""

        def all_of(*vectors: Array) -> tuple[Array, ...]:
            return tuple(map(self.dot, vectors[::2], vectors[1::2]))

        return self.xp.sum_once(all_of, self._axis, *itertools.chain(*pairs))

    def norm(self, x: Array) -> Array:
        """|x|."""
        return self.root(self.dot(x, x))

    def root(self, a: Array) -> Array:
        """The square root of a number."""
        return self.xp.sqrt(a)

    def _beside(self, a: Any, x: Array) -> Any:
        """`a` as a factor of x: a number for each column, or one for all."""
        if isinstance(a, (int, float, complex)):
            return a
        return (self.scalar(a, x) if self.in_place else a)[self._wide]

    def axpy(self, a: Any, x: Array, y: Array, on: Any = None) -> Array:
        """y + a x, in the columns that are `on`."""
        if self.in_place:
            a = self._beside(a if on is None else self.xp.where(on, a, 0), x)
            if self._fills:
                return self.xp.axpy(a, x, y)  # without an array for the product
            y += a * x
            return y
        term = self._beside(a, x) * x
        return y + (term if on is None else self.xp.where(on[self._wide], term, 0))

    def descend(
        self, a: Any, p: Array, q: Array, x: Array, r: Array, on: Any
    ) -> tuple[Array, Array, Any]:
        """x + a p and its residual r - a q, where q = A p, and |r - a q|^2."""
        if self.in_place and on is not None:
            a, on = self.xp.where(on, a, 0), None
        r = self.axpy(-a, q, r, on)
        # as `dot` has it: a call less, of which a traced step makes many
        inner = self._inner(r, r) if self._inner else self.xp.vecdot(r, r, axis=self._axis)
        return self.axpy(a, p, x, on), r, self.xp.real(inner)

    def xpby(self, x: Array, b: Any, y: Array) -> Array:
        """x + b y, written over y."""
        if self._fills:
            return self.xp.xpby(x, self._beside(b, y), y)  # in one pass
        if self.in_place:
            y *= self._beside(b, y)
            y += x
            return y
        return x + self._beside(b, y) * y

    def scaled(self, a: Any, x: Array) -> Array:
        """a x as a vector of its own."""
        return self._beside(a, x) * x

    def scale(self, a: Any, x: Array) -> Array:
        """a x, written over x."""
        if not self.in_place:
            return self.scaled(a, x)
        x *= self._beside(a, x)
        return x

    def unit(self, x: Array) -> tuple[Array, Array]:
        """|x| and x / |x|; zero stays zero."""
        size = self.norm(x)
        return size, self.scale(self.ratio(1.0, size), x)

    def cleared(self, x: Array, on: Array) -> Array:
        """x, but zero in the columns that are not `on`."""
        return self.xp.where(on[self._wide], x, 0)

    def ratio(self, a: Any, b: Array) -> Array:
        """a / b, and 0 where b is 0."""
        return (a / b).masked_fill_(b == 0, 0) if self._fills else divide(self.xp, a, b)

    def rotation(self, a: Array, b: Array) -> tuple[Array, Array, Array]:
        """c, s and r with c a + s b = r and c b = s a."""
        r = self.hypot(a, b)
        return self.ratio(a, r), self.ratio(b, r), r

    def hypot(self, a: Array, b: Array) -> Array:
        """sqrt(a^2 + b^2)."""
        return self.root(a * a + b * b)

    def larger(self, a: Array, b: Array) -> Array:
        """The larger of two numbers."""
        return self.xp.maximum(a, b)

    def where(self, flag: Array, a: Any, b: Any) -> Array:
        """`a` where a flag is set, else `b`."""
        return self.xp.where(flag, a, b)

    def where_any(self, flag: Array, f: Callable[[Array], Array], a: Array) -> Array:
        """f(a) where a flag may be set, else `a`."""
        found = where_any(self.xp, flag, f, a)
        return found if found is a else self.xp.where(flag, found, a)

    def infinite(self, a: Array) -> Array:
        """Whether a number is infinite or none."""
        return ~self.xp.isfinite(a)

    def first(self, code: Array, *cases: Any) -> Array:
        """The codes of the columns after a step, by cases: a flag, a code, and so on."""
        return first_of(self.xp, code, *cases)

    def positive(self, code: Array, a: Array, blame: tuple[int, int]) -> Array:
        """What becomes of the columns that run, by a number that must be positive."""
        running = code == RUNNING
        if self._fills:
            code = code.masked_fill(running & (a <= 0), blame[0])
            return code.masked_fill_(running > (a < math.inf), blame[1])
        is_bad = running & ~((a > 0) & (a < math.inf))
        return self.xp.where(is_bad, self.xp.where(a <= 0, *blame), code)

    def reached(self, code: Array, size: Array) -> Array:
        """SUCCESS for the columns that run and have reached the goal."""
        if self._fills:
            return code.masked_fill((code == RUNNING) & (size <= self.goal), SUCCESS)
        return first_of(self.xp, code, size <= self.goal, SUCCESS)

    def ended(self, code: Array) -> bool:
        """Whether a step may be left early, because no column runs."""
        return False


class Single:
    """One vector on the host, written over; its numbers are Python's. See `Columns`."""

    every, in_place, _is_by_columns, waits = 1, True, False, False

    def __init__(self, xp: Any, dtype: Any, tol: float = 0.0, goal: Any = None):
        self.xp, self.eps, self.tol = xp, xp.eps(dtype), tol
        self.root_eps = math.sqrt(self.eps)
        self.goal: Any = None if goal is None else float(goal[0])
        self.carried: dict[tuple[int, int], Array] = {}
        self.copy, self.dot, self.xpby, self._axpy = xp.copy, xp.dot_real, xp.xpby, xp.axpy
        is_complex = xp.is_complex(dtype)
        self.inner = (lambda x, y: complex(xp.vecdot(x, y))) if is_complex else xp.dot_real
        self._block: Array | None = None

    def own(self, X: Array) -> Array:
        return self.xp.copy(X[:, 0])

    def over(self, X: Array) -> Array:
        self._block = X
        return X[:, 0]

    def solution(self, state: Any) -> Array:
        return state.x[:, None] if self._block is None else self._block

    code, take = Columns.code, Columns.take

    def dots(self, *pairs: tuple[Array, Array]) -> tuple[Any, ...]:
        return tuple(self.dot(x, y) for x, y in pairs)

    def norm(self, x: Array) -> float:
        return math.sqrt(self.dot(x, x))

    def number(self, a: Array) -> Any:
        return float(a[0])

    def constant(self, value: float, like: Any) -> float:
        return value

    def codes(self, codes: Array) -> Any:
        return RUNNING

    def scalar(self, a: Any, x: Array) -> Any:
        return a

    def array(self, a: Any, like: Array) -> Array:
        return 0 * like + a

    def goes_on(self, running: Any, state: Any, made: int) -> bool:
        return running

    root, hypot = staticmethod(math.sqrt), staticmethod(math.hypot)

    def axpy(self, a: Any, x: Array, y: Array, on: bool = True) -> Array:
        return self._axpy(a, x, y) if on else y

    def descend(
        self, a: Any, p: Array, q: Array, x: Array, r: Array, on: Any
    ) -> tuple[Array, Array, Any]:
        r = self.axpy(-a, q, r, on)
        return self.axpy(a, p, x, on), r, self.dot(r, r)

    def scale(self, a: Any, x: Array) -> Array:
        x *= a
        return x

    def scaled(self, a: Any, x: Array) -> Array:
        return x * a

    def unit(self, x: Array) -> tuple[float, Array]:
        size = self.norm(x)
        x *= 1 / size if size else 0.0
        return size, x

    def cleared(self, x: Array, on: bool) -> Array:
        return x

    def ratio(self, a: Any, b: Any) -> Any:
        return a / b if b else 0.0

    def rotation(self, a: float, b: float) -> tuple[float, float, float]:
        r = math.hypot(a, b)
        return (a / r, b / r, r) if r else (0.0, 0.0, 0.0)

    def larger(self, a: float, b: float) -> float:
        return a if a > b else b

    def where(self, flag: bool, a: Any, b: Any) -> Any:
        return a if flag else b

    def where_any(self, flag: bool, f: Callable[[Any], Any], a: Any) -> Any:
        return f(a) if flag else a

    def infinite(self, a: float) -> bool:
        return not -math.inf < a < math.inf

    def first(self, code: int, flag: bool, to: int, flag2: Any = None, to2: int = 0) -> int:
        if code != RUNNING:
            return code
        return to if flag else to2 if flag2 else code

    def positive(self, code: int, a: float, blame: tuple[int, int]) -> int:
        return code if 0 < a < math.inf or code != RUNNING else blame[0] if a <= 0 else blame[1]

    def reached(self, code: int, size: float) -> int:
        return SUCCESS if size <= self.goal and code == RUNNING else code

    def ended(self, code: int) -> bool:
        return code != RUNNING


# -------------------------------------------------------------------------------- arrays of numbers


def guarded(xp: Any, multiply: Any, is_by_columns: bool = False) -> Any:
    """A product that raises `Recorded` where torch records its derivatives, and that gives NumPy
    the numbers of a column side by side if that is asked for."""
    if multiply is None or not (xp.name == "torch" or is_by_columns):
        return multiply

    def product(x: Array) -> Array:
        y = multiply(x)
        if is_by_columns:
            return y if y.flags.f_contiguous else y.copy(order="F")
        if y.requires_grad:
            raise Recorded
        return y

    return product


def column_norms(xp: Any, X: Array) -> Array:
    """|x| for each column of a block, or of one vector."""
    return xp.vector_norm(X, axis=max(-2, -X.ndim))


def divide(xp: Any, a: Any, b: Array) -> Array:
    """a / b, and 0 where b is 0."""
    is_zero = b == 0
    return xp.where(is_zero, 0, a / xp.where(is_zero, 1, b))


def first_of(xp: Any, old: Array, *cases: Any) -> Array:
    """The codes of the columns after a step, by cases, each a flag and a code: of those that run,
    the code of the first flag that is set."""
    new, running = old, old == RUNNING
    for i in range(len(cases) - 2, -1, -2):
        new = xp.where(running & cases[i], cases[i + 1], new)
    return new


def final_code(xp: Any, code: Array, stopped: Any = None) -> Array:
    """The codes at the end: columns that still run were `stopped` by a callback (None: there was
    none), or have spent their iterations."""
    spent = int(Status.MAX_ITERATIONS)
    if stopped is not None:
        spent = xp.where((code == RUNNING) & stopped, int(Status.STOPPED), spent)
    return xp.where(code == RUNNING, spent, code)


def is_plain(xp: Any, *arrays: Array) -> bool:
    """Whether arrays may be written over: they are not traced, and the framework allows it."""
    return not xp.is_functional and not any(xp.is_traced(x) for x in arrays)
