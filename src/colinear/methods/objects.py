"""The methods as objects: small, frozen, compared by value. Which algorithm, and how accurate; nothing of any operator."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..info import MethodError
from ..properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT, close, strongest_names


class Method:
    """What `method=` takes. A subclass is a frozen dataclass of the method's options."""

    _is_method: ClassVar[bool] = True
    tol: float | None

    is_iterative: ClassVar[bool] = False  # whether it multiplies by the operator only
    is_stochastic: ClassVar[bool] = False  # whether its answer is an estimate with a standard error
    needs: ClassVar[int] = (
        0  # the properties that an operator must have; parts are checked for them
    )
    # `runs_on(A)` of a method that makes use of structure itself: whether A has it, so that no rule must split it first.
    runs_on: ClassVar[Any] = None

    @property
    def name(self) -> str:
        return type(self).__name__

    @property
    def needed(self) -> str:
        """The names of the properties that it needs."""
        return " and ".join(strongest_names(close(self.needs)))

    def tolerance(self, xp: Any, dtype: Any) -> float:
        """The relative residual asked for: `tol`, or the square root of the dtype's epsilon."""
        return math.sqrt(xp.eps(dtype)) if self.tol is None else self.tol

    def __post_init__(self) -> None:
        if self.tol is not None and not (
            isinstance(self.tol, (int, float, np.number)) and self.tol > 0
        ):
            raise ValueError(
                f"{self.name}: tol is {self.tol!r}; it must be a positive number, or None for sqrt(eps) of the dtype."
            )


def check_integer(method: Method, field: str, least: int, what: str) -> None:
    """Raise an error if a field is neither None nor an integer of at least so much."""
    value = getattr(method, field, None)
    is_integer = hasattr(value, "__index__") and not isinstance(value, bool)
    if value is not None and not (is_integer and value >= least):
        raise ValueError(f"{method.name}: {field} is {value!r}; it must be {what}.")


def check_callback(method: Any) -> None:
    """Raise an error if the callback is no function."""
    if method.callback is not None and not callable(method.callback):
        kind = type(method.callback).__name__
        raise TypeError(f"{method.name}: callback must be a function of the progress, not {kind}.")


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
    """

    tol: float | None = None
    max_iters: int | None = None
    exact: bool = False


@dataclass(frozen=True)
class Direct(Method):
    """What the factorisations share. Not to be used itself."""

    tol: float | None = None


class Cholesky(Direct):
    """A = L L^H, for positive definite A: n^3 / 3 flops. Reads the lower triangle."""

    needs: ClassVar[int] = POSITIVE_SEMIDEFINITE


class LDL(Direct):
    """A = L D L^H with pivoting (Bunch and Kaufman), for self-adjoint A, definite or not: n^3 / 3 flops. Reads the lower
    triangle."""

    needs: ClassVar[int] = SELF_ADJOINT


class LU(Direct):
    """A = P L U with partial pivoting, for any square A: 2 n^3 / 3 flops."""


class QR(Direct):
    """A P = Q R with column pivoting: 4 n^3 / 3 flops, shows the rank."""


class Eigh(Direct):
    """All eigenvalues and eigenvectors of self-adjoint A: about 9 n^3 flops."""

    needs: ClassVar[int] = SELF_ADJOINT


class Eig(Direct):
    """All eigenvalues and eigenvectors of any square A: about 25 n^3 flops."""


class SVD(Direct):
    """The singular value decomposition: about 20 m n min(m, n) flops."""


def fitting(function: str, method: Any, *allowed: Any) -> Any:
    """The method to use, `Auto()` for None; an error that lists those which fit if this one does not."""
    if method is None:
        return AUTO
    if isinstance(method, (Auto, *allowed)):
        return method
    names = ", ".join(f"{cls.__name__}()" for cls in (Auto, *allowed))
    raise MethodError(
        f"{function}: {type(method).__name__}() does not apply here. Use one of {names}."
    )


AUTO = Auto()
