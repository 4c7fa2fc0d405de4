"""f on a spectrum: functions of numbers as matrices take them, with their branches, poles and signs,
and the spectra of Kronecker products and sums."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ... import autodiff
from ...autodiff.functions import hoist_number
from ...autodiff.kronecker import Factors, Grid, flat
from ...backends import Array, Norm, namespace_of
from ...factors.function import KroneckerFunction
from ...info import Info, recording, report
from ...methods import Auto, Krylov, Method
from ...operators import (
    Dense,
    Kronecker,
    KroneckerSum,
    LinearOperator,
    Scaled,
    Sum,
)
from ...operators.context import records_derivatives
from ...operators.sparse_algebra import DIAGONAL, SHIFT
from ...properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from ...status import Status, is_unseen, take_for_granted
from ..common import (
    dense,
    filled,
    have_failed,
    host_value,
    ignore_float_errors,
    in_context,
    is_half,
    is_traced_or_differentiated,
    once_each,
    operands_in_context,
    reciprocal_spectrum,
    report_failure,
    seen_value,
    to_result_dtype,
)
from ..solve.auto import is_automatic
from ..solve.cost import lapack_cost, largest_dense, products_cost
from ..solve.inverse import inv
from ..spectrum import eig, factors_self_adjoint, spectrum_by_factors
from ..spectrum.compositions import split_shift
from ..spectrum.order import combinations, is_affordable


@dataclass(frozen=True)
class Scalar:
    """A function of numbers, and what is needed to apply it to matrices.

    Attributes
    ----------
    name : str
    of : callable
        `of(xp, x)`, entry by entry.
    principal : bool
        Whether it is complex for negative numbers.
    pole : bool
        Whether it is infinite at zero.
    nonnegative : bool
        Whether its real values are never negative.
    mirrored : bool
        Whether f(conj(x)) = conj(f(x)) everywhere, also on a cut: then it is real for real
        matrices.
    exponent : number, optional
        Of a power, and of the roots.
    """

    name: str
    of: Callable[[Any, Array], Array]
    principal: bool = True
    pole: bool = False
    nonnegative: bool = False
    mirrored: bool = False
    exponent: Any = None

    def __reduce__(self) -> Any:
        """By name, or by the exponent: `of` cannot be pickled."""
        if self.name in ("exp", "log", "sqrt", "isqrt"):
            return self.name.upper()
        return (power_of, (self.exponent,)) if self.name == "power" else super().__reduce__()

    @property
    def claims(self) -> int:
        """What is known of f(A), for self-adjoint A, where f is real."""
        return POSITIVE_SEMIDEFINITE | SELF_ADJOINT if self.nonnegative else SELF_ADJOINT


EXP = Scalar("exp", lambda xp, x: xp.exp(x), principal=False, nonnegative=True, mirrored=True)
LOG = Scalar("log", lambda xp, x: xp.log(x), pole=True)
SQRT = Scalar("sqrt", lambda xp, x: xp.sqrt(x), nonnegative=True, exponent=0.5)
ISQRT = Scalar("isqrt", lambda xp, x: 1 / xp.sqrt(x), pole=True, nonnegative=True, exponent=-0.5)


def power_of(p: Any) -> Scalar:
    whole = as_integer(p)
    q = p if whole is None else whole
    return Scalar(
        "power",
        lambda xp, x: x**q,
        principal=whole is None,
        pole=q.real <= 0 and q != 0,
        nonnegative=not isinstance(p, complex) if whole is None else whole % 2 == 0,
        mirrored=whole is not None,
        exponent=q,
    )


def claims_of(xp: Any, f: Scalar, values: Array) -> int:
    """What is known of f(A), for self-adjoint A, by the values of f."""
    return 0 if xp.is_complex(values) else f.claims


def as_scalar(f: Callable[[Array], Array]) -> Scalar:
    """A user's function of an array, or an error."""
    if not callable(f) or isinstance(f, LinearOperator):
        raise TypeError(f"apply: f is {f!r}; it must be a function of an array. Write apply(f, A).")
    return Scalar("apply", lambda xp, x: f(x), principal=False)


def closed_over(f: Scalar, A: Any) -> tuple:
    """The arrays that f closes over and the framework follows: those of a user's function."""
    if f.name != "apply" or A.xp.name == "numpy":
        return ()
    xp = A.xp
    dtype = xp.real_dtype(A.dtype) if A.properties & SELF_ADJOINT else xp.complex_dtype(A.dtype)
    return hoist_number(xp, partial(f.of, xp), xp.ones((), dtype=dtype, device=A._context.device))[
        1
    ]


def refuse_derivative(A: Any, hidden: tuple, method: str) -> Array:
    """Zero, to be added to what depends on the arrays that f closes over: a derivative by these
    is an error, not zero."""
    xp = A.xp
    zero = filled(A, 0.0)
    what = f"apply: f(A) by {method}, as a function of what f closes over,"
    instead = "Eigh() or Eig(), or let f close over detach() or stop_gradient() of it"
    return autodiff.refused(xp, zero, hidden, what, instead)


def as_integer(p: Any) -> int | None:
    is_number = isinstance(p, numbers.Number)
    if not is_number or p != p:
        raise ValueError(f"power: the exponent is {p!r}; it must be a number.")
    return int(p.real) if not isinstance(p, complex) and float(p).is_integer() else None


# --------------------------------------------------------------------------------------------------


def of_values(A: LinearOperator, f: Scalar, x: Array, is_exact: bool = False) -> Array:
    """f of real or complex numbers, eigenvalues of A, complex where the principal branch is; reports
    poles, overflow and broken promises.

    Those of a positive semidefinite A are promised not to be negative. Unless they are exact, such
    that are by a few roundings of the largest are zero.
    """
    xp, negligible = A.xp, 0.0 if is_exact else A.shape[-1] * A.xp.eps(A.dtype)
    with ignore_float_errors(xp):
        if f.principal and not xp.is_complex(x):
            x = _principal_input(xp, f, x, bool(A.properties & POSITIVE_SEMIDEFINITE), negligible)
        y = f.of(xp, x)
        if 0 not in x.shape and not _are_fine_later(xp, f, x, y, negligible):
            largest = xp.max(xp.abs(x), axis=-1, keepdims=True)
            # zero, or not to be told from it
            zero = f.pole and xp.any(xp.abs(x) <= negligible * largest)
            report_failure(
                xp,
                (xp.all(xp.isfinite(x)), Status.NONFINITE),
                (xp.logical_not(zero) if f.pole else True, Status.SINGULAR),
                (xp.all(xp.isfinite(y)), Status.NONFINITE),
            )
        return y


def _are_fine_later(xp: Any, f: Scalar, x: Array, y: Array, negligible: float) -> bool:
    """Whether numbers on a device and f of them are taken to be finite, and none of them a pole."""
    if not is_unseen(x) or getattr(y, "shape", None) != x.shape or not xp.is_floating(y):
        return False
    orders = [(x, math.inf), (y, math.inf), *([(x, -math.inf)] if f.pole else [])]
    ends = [Norm(xp.stop_gradient(values), (-1,), order) for values, order in orders]
    test = partial(_status_of_ends, negligible)
    return take_for_granted(test, *ends, failure=Status.NONFINITE)


def _status_of_ends(negligible: float, largest: Any, image: Any, smallest: Any = None) -> Status:
    """By the largest of numbers, of f of them and, where f has a pole at zero, the smallest."""
    if not np.isfinite(largest).all():
        return Status.NONFINITE
    if smallest is not None and (smallest <= negligible * largest).any():
        return Status.SINGULAR
    return Status.SUCCESS if np.isfinite(image).all() else Status.NONFINITE


def _principal_input(xp: Any, f: Scalar, x: Array, positive: bool, negligible: float) -> Array:
    """Real numbers as f takes them: complex where one of them is negative, or could be."""
    if positive and x.shape[-1]:
        floor = -negligible * xp.max(xp.abs(x), axis=-1, keepdims=True)
        x = xp.where(xp.logical_and(x < 0, x >= floor), 0 * x, x)
    if positive:
        negative = seen_value(xp, x < 0)
        if negative is None:
            report_failure(xp, (xp.logical_not(xp.any(x < 0)), Status.NOT_POSITIVE_DEFINITE))
            return x
        message = (
            f"A has negative eigenvalues, though it was said to have none: {f.name} is complex"
        )
        if negative.any():
            report(Info(Status.FELL_BACK, message=message))
    else:
        # most are positive, though nobody said so
        is_positive = lambda least: not least < 0
        if is_unseen(x) and (
            0 in x.shape or take_for_granted(is_positive, xp.min(xp.stop_gradient(x)))
        ):
            return x
        negative = host_value(xp, x < 0)  # it decides on the dtype
    if negative is not None and not negative.any():
        return x
    return xp.astype(x, xp.complex_dtype(x.dtype))


# Kronecker products and sums of self-adjoint factors, and functions of them where derivatives are
# recorded.
#
# What the other rules make of these, V diag(f) V^H, has the derivatives of eigenvectors, which have
# none where eigenvalues of a factor repeat. `KroneckerFunction` is the same with derivatives of its
# own.


SMALL = 256  # rows of a factor that is made a matrix though more is known of it


def has_factored_spectrum(A: LinearOperator) -> bool:
    """Whether A is a C + b I, real a and b, C a Kronecker product or sum of self-adjoint factors
    with all of their eigenpairs at hand."""
    form = kronecker_form(A) if A.properties & SELF_ADJOINT else None
    return form is not None and all(
        factor.shape[-1] <= largest_dense(A) or isinstance(factor, DIAGONAL)
        for factor in form[0].operands
    )


def factored_spectrum(A: LinearOperator) -> tuple[Array, LinearOperator]:
    """All eigenvalues of such an A, in the order of the factors, and its eigenvectors as a
    Kronecker product."""
    form = kronecker_form(A)
    assert form is not None
    C, a, b = form
    values, V = spectrum_by_factors(in_context(C, A))
    a, b = (_real_number(A, c)[..., None] for c in (a, b))
    return a * values + b, V


def _real_number(A: LinearOperator, c: Any) -> Array:
    """A number or an array without its imaginary part, in the precision of A."""
    xp = A.xp
    c = c.real if namespace_of(c) is None else xp.real(c)
    return xp.asarray(c, dtype=xp.real_dtype(A.dtype), device=A._context.device)


def has_general_factors(A: LinearOperator, method: Any = None) -> bool:
    """Whether A, not self-adjoint, is a Kronecker product of square factors that can be seen and
    formed, and no method is named."""
    return (
        is_automatic(method)
        and not A.properties & SELF_ADJOINT
        and 0 not in A.shape
        and all(factor.shape[-2] == factor.shape[-1] <= largest_dense(A) for factor in A.operands)
        and not any(is_traced_or_differentiated(A.xp, A.xp.staged(leaf)) for leaf in A.arrays())
        and not is_half(A.xp, A.dtype)
    )


def general_spectrum(A: LinearOperator) -> tuple[Array, LinearOperator, LinearOperator] | None:
    """All eigenvalues of such an A, its eigenvectors V and V^-1, both as Kronecker products.

    None if the eigenvectors of the factors are too far from orthonormal, or those of a real A are
    complex: then products with V would be.
    """
    xp = A.xp
    with recording() as reports, ignore_float_errors(xp):
        pairs = once_each(eig, operands_in_context(A))
        if have_failed(reports):
            return None
        values, vectors = [v for v, _ in pairs], [dense(V) for _, V in pairs]
        if not A.is_complex:
            are_complex = [xp.any(xp.imag(x) != 0) for x in (*values, *vectors)]
            if any(map(bool, xp.fetch(are_complex))):
                return None
            values, vectors = [xp.real(v) for v in values], [xp.real(V) for V in vectors]
        singular = [xp.svd(V)[1] for V in vectors]
        conditions = xp.fetch([xp.max(s[..., 0] / s[..., -1]) for s in singular])
        condition = math.prod(map(float, conditions))
        if not condition <= xp.eps(A.dtype) ** -0.25:
            return None
        inverses = [inv(Dense(V)) for V in vectors]
    spectrum, _ = combinations(xp, values, False)
    return spectrum, Kronecker(*map(Dense, vectors)), Kronecker(*inverses)


class Factored(NamedTuple):
    """A = a C + b I, C a Kronecker product or sum, by its factors."""

    A: LinearOperator
    factors: Factors
    is_sum: bool

    def spectrum(self) -> Array:
        """All eigenvalues of A, in the order of the factors."""
        k = self.factors
        grid = Grid(lambda x: x, self.is_sum).of(k.values, k.a, k.b)
        return self.A.xp.stop_gradient(flat(self.A.xp, grid, len(k.values)))

    def function(
        self, f: Callable[..., Array], *constants: Array, is_inverse: bool = False
    ) -> LinearOperator:
        """f(A) for f(x, *constants); f itself holds no arrays, which could not leave a compiled
        program with it."""
        if not constants:
            f, constants = hoist_number(self.A.xp, f, self.spectrum())
        found: LinearOperator = KroneckerFunction._of(
            self.A, self.factors.flat(), constants, f, self.is_sum, is_inverse
        )
        return found


def factored(A: LinearOperator) -> Factored | None:
    """A by its factors, if it is a Kronecker product or sum of self-adjoint matrices, scaled and
    shifted by real numbers perhaps, of which derivatives are recorded."""
    xp = A.xp
    # a complex multiple or shift is not
    if is_half(xp, A.dtype) or not A.properties & SELF_ADJOINT:
        return None
    if not records_derivatives(A):
        return None
    form = kronecker_form(A)
    if form is None or 0 in A.shape:
        return None
    C, a, b = form
    factors = operands_in_context(C)
    if not all(eig.find(factor).is_base or factor.shape[-1] <= SMALL for factor in factors):
        return None
    matrices = tuple(once_each(lambda factor: xp.astype(dense(factor), A.dtype), factors))
    held = once_each(lambda factor: factor.detach(), factors)
    pairs = once_each(eig, held)
    if not A.is_complex:  # those of a circulant are Fourier vectors, though real ones span the same
        pairs = [eig(_as_matrix(B)) if V.is_complex else (v, V) for B, (v, V) in zip(held, pairs)]
    real = xp.real_dtype(A.dtype)
    a, b = _real_number(A, a), _real_number(A, b)
    values, vectors = zip(*((xp.astype(v, real), xp.astype(dense(V), A.dtype)) for v, V in pairs))
    return Factored(A, Factors(matrices, values, vectors, a, b), isinstance(C, KroneckerSum))


def _as_matrix(B: LinearOperator) -> LinearOperator:
    """A self-adjoint B as a matrix, of which no more is known."""
    return Dense(dense(B))._claim(SELF_ADJOINT)


def differentiable_inverse(A: LinearOperator) -> LinearOperator | None:
    """A^-1 by its factors, if derivatives are recorded of them."""
    parts = factored(A)
    if parts is None:
        return None
    reciprocal_spectrum(A.xp, parts.spectrum())  # reports an eigenvalue of zero
    return parts.function(_reciprocal, is_inverse=True)._claim(A.properties)


def _reciprocal(x: Array) -> Array:
    return 1 / x


def has_shift(A: LinearOperator) -> bool:
    """Whether A is a sum with a multiple of I."""
    return isinstance(A, Sum) and any(isinstance(term, SHIFT) for term in A.operands)


def kronecker_form(A: LinearOperator) -> tuple[LinearOperator, Any, Any] | None:
    """C, a and b of A = a C + b I, C a Kronecker product or sum of self-adjoint factors; None if
    A is nothing of the kind."""
    if isinstance(A, (Kronecker, KroneckerSum)):
        return (A, 1.0, 0.0) if factors_self_adjoint(A) else None
    if isinstance(A, Scaled) and (inner := kronecker_form(A.A)) is not None:
        C, a, b = inner
        return C, A.scalar * a, A.scalar * b
    if has_shift(A):
        c, rest = split_shift(A)
        if (inner := kronecker_form(rest)) is not None:
            C, a, b = inner
            return C, a, b + c
    return None


# Whether f(A) is multiplied by runs of a Krylov method, or by its matrix.


SMALLEST = 200  # rows from which a run may cost less than f of the matrix
TYPICAL_STEPS = 50  # of a run, for the choice


def runs_krylov(A: LinearOperator, f: Any, method: Method) -> str:
    """Why f(A) is left to products: it is asked for, A is too large to be formed, or one column
    is cheaper so, and its dtype is known; else an empty string."""
    if isinstance(method, Krylov):
        return "asked for"
    if not isinstance(method, Auto):
        return ""
    if not is_affordable(A):
        return "A is too large to be formed"
    is_known = not f.principal or bool(A.properties & POSITIVE_SEMIDEFINITE)
    is_free = is_known and f.name != "apply" and not is_half(A.xp, A.dtype) and is_worth(A, 1)
    if not is_free or not has_dense_eigenvectors(A):
        return ""
    return "a column is cheaper than the matrix, which is formed for many"


def has_dense_eigenvectors(A: LinearOperator) -> bool:
    """Whether nothing is known of the eigenvectors of A but that they are a matrix."""
    if isinstance(A, Scaled):
        return has_dense_eigenvectors(A.A)
    if has_shift(A):
        return has_dense_eigenvectors(split_shift(A)[1])
    known = eig.find(A)
    return known.is_base or known.name == "eig_tridiagonal"


def is_worth(A: LinearOperator, columns: int) -> bool:
    """Whether so many columns of f(A) are expected to cost less by runs than by the matrix."""
    n = A.shape[-1]
    if n < SMALLEST:
        return False
    run = products_cost(A, TYPICAL_STEPS, 4.0 * TYPICAL_STEPS * n, 0.0)
    flops, name = (10.0, "Eigh") if A.properties & SELF_ADJOINT else (30.0, "Eig")
    return columns * run.seconds < lapack_cost(A, flops * float(n) ** 3, 0.0, name).seconds


def real_if_real(xp: Any, A: LinearOperator, X: Array) -> Array:
    """The real part of a function of a real matrix whose imaginary part is rounding error, as
    SciPy's."""
    if A.is_complex or not xp.is_complex(X) or xp.is_traced(X):
        return X
    sizes = [xp.max(xp.abs(xp.stop_gradient(part))) for part in (xp.imag(X), X)]
    is_granted = is_unseen(X) and take_for_granted(is_rounding_error, *sizes)
    if is_granted or is_rounding_error(*(host_value(xp, size) for size in sizes)):
        return to_result_dtype(xp, xp.real(X), A.dtype)
    return X


def is_rounding_error(imaginary: Any, whole: Any) -> bool:
    """Whether an imaginary part is rounding error; arrays, or their largest entries."""
    largest = np.max(np.abs(whole), initial=0)
    eps = np.finfo(np.asarray(whole).dtype).eps
    return bool(np.max(np.abs(imaginary), initial=0) <= 1000 * eps * largest)
