"""The methods as objects: small, frozen, compared by value. Which algorithm, and how accurate;
nothing of any operator. Those that name an algorithm of ours stand beside it, in a file each.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar

import numpy as np

from ..backends import Array
from ..dispatch import algorithm_of
from ..errors import MethodError
from ..properties import CLOSED, POSITIVE_SEMIDEFINITE, SELF_ADJOINT, strongest_names
from ..status import Status
from .iterate import Outcome, Products, by_steps, solve_in_cycles
from .loop import watching


class Method:
    """What `method=` takes. A subclass is a frozen dataclass of the method's options.

    A method from outside serves a function by an attribute of the function's name: `inv(A)` gives
    the map B -> A^-1 B (which serves `solve` too), `pinv(A)` the map B -> A^+ B (and `lstsq`),
    `eig(A, k, which)` values and vectors, `svd(A, k)` U, s and V. What these find is judged and
    differentiated here. The algorithm of any other function takes the function's own arguments, and
    what it returns is the answer.
    """

    _is_method: ClassVar[bool] = True
    tol: float | None
    progress: bool = False  # whether what is under way is shown

    is_iterative: ClassVar[bool] = False  # whether it multiplies by the operator only
    is_stochastic: ClassVar[bool] = False  # whether its answer is an estimate with a standard error
    # the properties that an operator must have; parts are checked for them
    needs: ClassVar[int] = 0
    # whether its own algorithms compute with NumPy's arrays, whatever A is made of
    on_host: ClassVar[bool] = False
    # `runs_on(A)` of a method that makes use of structure itself: whether A has it, so that no rule
    # must split it first.
    runs_on: ClassVar[Any] = None

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def needed(self) -> str:
        """The names of the properties that it needs."""
        return " and ".join(strongest_names(CLOSED[False, False][self.needs]))

    def tolerance(self, xp: Any, dtype: Any) -> float:
        """The relative residual asked for: `tol`, or the square root of the dtype's epsilon."""
        return math.sqrt(xp.eps(dtype)) if self.tol is None else self.tol

    def watching(self) -> contextlib.AbstractContextManager[None]:
        """A block in which what is under way is shown."""
        return watching()

    def without_arrays(self) -> Any:
        """The same method as something static, hashable by value."""
        static = copy(self)
        for name in ("x0", "preconditioner"):
            if hasattr(self, name):
                object.__setattr__(static, name, None)
        return static

    def __post_init__(self) -> None:
        is_number = isinstance(self.tol, (int, float, np.number))
        if self.tol is not None and not (is_number and self.tol > 0):
            raise ValueError(
                f"{self.name}: tol is {self.tol!r}; "
                "it must be a positive number, or None for sqrt(eps) of the dtype."
            )


def check_integer(method: Method, field: str, least: int, what: str) -> None:
    """Raise an error if a field is neither None nor an integer of at least so much."""
    value = getattr(method, field, None)
    is_integer = hasattr(value, "__index__") and not isinstance(value, bool)
    if value is not None and not (is_integer and value >= least):
        raise ValueError(f"{method.name}: {field} is {value!r}; it must be {what}.")


def check_choice(method: Method, field: str, choices: tuple[str, ...]) -> None:
    """Raise an error if a field of the method is none of some words."""
    value = getattr(method, field, choices[0])
    if value not in choices:
        names = ", ".join(map(repr, choices))
        raise ValueError(f"{method.name}: {field} is {value!r}; it must be one of {names}.")


def check_callback(method: Any) -> None:
    """Raise an error if the callback is no function."""
    if method.callback is not None and not callable(method.callback):
        kind = type(method.callback).__name__
        raise TypeError(f"{method.name}: callback must be a function of the progress, not {kind}.")


SHOWN: Any = field(default=False, kw_only=True, compare=False)  # `progress` of a method


@dataclass(frozen=True)
class Auto(Method):
    """Choose by structure, annotations and size; fall back where the choice fails, and say so.

    Parameters
    ----------
    tol : float, optional
        The relative residual that the whole answer must reach; default sqrt(eps) of the dtype.
    max_iters : int, optional
        Of iterative methods, if one is chosen.
    exact : bool
        Whether stochastic answers are forbidden.
    progress : bool
        Whether to show on standard error what is under way, from the third second on.
    """

    tol: float | None = None
    max_iters: int | None = None
    exact: bool = False
    progress: bool = SHOWN


@dataclass(frozen=True)
class Direct(Method):
    """What the factorisations share. Not to be used itself.

    Parameters
    ----------
    tol : float, optional
        The relative residual that is asked for; default sqrt(eps) of the dtype.
    progress : bool
        Whether to show on standard error what is under way, with the flops that it is expected to
        take, from the third second on.
    """

    tol: float | None = None
    progress: bool = SHOWN


class Cholesky(Direct):
    """A = L L^H, for positive definite A: n^3 / 3 flops. Reads the lower triangle."""

    needs = POSITIVE_SEMIDEFINITE


class LDL(Direct):
    """A = L D L^H with pivoting (Bunch and Kaufman), for self-adjoint A, definite or not: n^3 / 3
    flops. Reads the lower triangle."""

    needs = SELF_ADJOINT


class LU(Direct):
    """A = P L U with partial pivoting, for any square A: 2 n^3 / 3 flops."""


class QR(Direct):
    """A P = Q R with column pivoting: 4 n^3 / 3 flops, shows the rank."""


class Eigh(Direct):
    """All eigenvalues and eigenvectors of self-adjoint A: about 9 n^3 flops."""

    needs = SELF_ADJOINT


class Eig(Direct):
    """All eigenvalues and eigenvectors of any square A: about 25 n^3 flops."""


class SVD(Direct):
    """The singular value decomposition: about 20 m n min(m, n) flops."""


def fitting(function: str, method: Any, *allowed: Any) -> Any:
    """The method to use, `Auto()` for None; an error that lists those which fit if this one does
    not."""
    if method is None:
        return AUTO
    if isinstance(method, (Auto, *allowed)):
        return method
    if algorithm_of(method, function) is not None:
        return method
    names = ", ".join(f"{cls.__name__}()" for cls in (Auto, *allowed))
    raise MethodError(
        f"{function}: {type(method).__name__}() does not apply here. Use one of {names}."
    )


AUTO = Auto()


_LOW = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Iterative(Method):
    """What the iterative methods share: the base class of a solver of your own.

    Parameters
    ----------
    tol : float, optional
        The relative residual |b - A x| / |b| to reach, for each column; default sqrt(eps) of the
        dtype.
    max_iters : int, optional
        The most iterations, the unit of `info.iterations`; default ten times the size. An iteration
        makes one product with A (LSQR and LSMR: one more with A^H; BiCGSTAB: two), and
        `info.matvecs` counts products.
    preconditioner : operator, array or factory, optional
        An approximation M of A^-1, or a function of A that makes one, such as `Jacobi()`.
    x0 : array, optional
        Where to start, of the shape of the answer.
    callback : callable, optional
        `callback(progress)` after each iteration, with `progress.iteration`, `progress.residual`
        and `progress.x`; the run ends if it returns something true.
    progress : bool
        Whether to show on standard error how far it is, from the third second on.
    precision : str, optional
        "float32", "float16" or "bfloat16": iterate in this precision, and refine to full accuracy.
    """

    tol: float | None = None
    max_iters: int | None = None
    preconditioner: Any = field(default=None, compare=False)
    x0: Any = field(default=None, compare=False)
    callback: Callable[[Any], Any] | None = None
    progress: bool = False
    precision: str | None = None

    is_iterative = True
    recurrence: ClassVar[Any] = None  # what a cycle does; None if that is steps by `advance`
    needs_adjoint: ClassVar[bool] = False
    least_squares: ClassVar[bool] = False
    squares_operator: ClassVar[bool] = False  # whether it, and its preconditioner, are for A^H A
    needs_terms: ClassVar[bool] = False  # whether it draws from the terms of a sum
    # applies it by itself, as if split, so that its faults can be told from A's
    splits_preconditioner: ClassVar[bool] = False
    # at most at a time, for one right side, b and what the step computes among them
    vectors: ClassVar[int] = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "max_iters", 0, "an integer that is not negative")
        check_callback(self)
        if self.precision is not None:
            check_choice(self, "precision", _LOW)

    def iterations(self, m: int, n: int) -> int:
        """The most iterations for an m x n operator."""
        return max(10 * min(m, n), 100) if self.max_iters is None else self.max_iters

    def typical(self, m: int, n: int) -> int:
        """A guess of the number of products, where nothing is known of the spectrum."""
        return min(self.iterations(m, n), min(m, n), int(20 + 10 * min(m, n) ** 0.5))

    def working_vectors(self, n: int) -> int:
        """How many vectors it keeps for a right side of a system of n unknowns."""
        return self.vectors

    def algorithm(self, xp: Any, products: Products, B: Array, **options: Any) -> Outcome:
        """Run it on the columns of B; `options` are tol, max_iters, X0 and watch."""
        recurrence = self.recurrence or by_steps(self.advance)
        return solve_in_cycles(xp, recurrence.cycle, products, B, **options)

    def advance(self, ops: Any, s: Any) -> Any:
        """Make one step, for a method that only needs x and its residual r: change `s.x` and `s.r`.

        `ops` has the products, `ops.multiply(v)` and `ops.precondition(v)`, and the arithmetic of
        vectors: `axpy`, `xpby`, `dot`, `ratio` (methods/vectors.py).
        """
        raise NotImplementedError(f"{self.name}: define `advance`, or `algorithm`.")

    def advice(self, status: Status, residual: float, eps: float, n: int) -> str:
        """What a run with n unknowns that ended like this can change in the method's own
        parameters."""
        return ""


ORTHOGONALISATIONS = ("gram-schmidt", "householder")


@dataclass(frozen=True)
class Spectral(Method):
    """What the iterative spectral methods share. Not to be used itself.

    Parameters
    ----------
    tol : float, optional
        The residual |A v - λ v| / |A| to reach, for each pair; default sqrt(eps) of the dtype.
    max_iters : int, optional
        The most iterations, the unit of `info.iterations`; `info.matvecs` counts products. Each
        method says what an iteration is. The default is ten times the size, and at least 40 bases.
    x0 : array, optional
        Where to start, (*batch, n); random if not given.
    seed : int
        Of the random numbers.
    callback : callable, optional
        `callback(progress)` after each restart, with `progress.iteration` and `progress.residual`
        (estimated, of each pair); the run ends if it returns something true. Not inside jit.
    progress : bool
        Whether to show on standard error how far it is, from the third second on.
    """

    tol: float | None = None
    max_iters: int | None = None
    x0: Any = field(default=None, compare=False)
    seed: int = 0
    callback: Callable[[Any], Any] | None = None
    progress: bool = False

    is_iterative = True
    shift_type: ClassVar[Any] = None  # what a `shift` may be, if the method takes one

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "max_iters", 1, "a positive integer")
        check_callback(self)
        check_integer(self, "basis", 2, "an integer of at least 2")
        check_choice(self, "orthogonalisation", ORTHOGONALISATIONS)
        shift = getattr(self, "shift", None)
        if shift is not None and not isinstance(shift, self.shift_type):
            kind = "a real number" if self.shift_type is Real else "a number"
            raise ValueError(
                f"{self.name}: shift is {shift!r}; "
                f"it must be {kind}, and known when the method is made."
            )

    def runs_on(self, A: Any) -> bool:
        """Whether A is taken as a whole: rules that split it would give its parts a shift that is
        meant for A."""
        return getattr(self, "shift", None) is not None

    @property
    def advice(self) -> str:
        """The parameter that helps a run which was too short, beside `max_iters`."""
        return "raise basis=, with which fewer iterations are needed, or max_iters="

    def limit(self, n: int, basis: int) -> int:
        """The most iterations."""
        return max(10 * n, 40 * basis) if self.max_iters is None else self.max_iters

    def size(self, n: int, k: int) -> int:
        """How many vectors the basis has room for: with the rest of the run 3 k + 20 vectors are
        never exceeded."""
        basis = getattr(self, "basis", None)
        return min(n, 2 * k + 14 if basis is None else max(basis, k + 2))
