"""Functions of Kronecker products and sums of self-adjoint factors where derivatives are recorded.

What the other rules make of these, V diag(f) V^H, has the derivatives of eigenvectors, which have
none where eigenvalues of a factor repeat. `KroneckerFunction` is the same with derivatives of its
own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from ...autodiff.functions import hoist_number
from ...autodiff.kronecker import Factors, Grid
from ...backends import Array, namespace_of
from ...factors.function import KroneckerFunction
from ...info import recording
from ...methods import Auto
from ...operators import (
    Dense,
    Diagonal,
    Identity,
    Kronecker,
    KroneckerSum,
    LinearOperator,
    Scaled,
    ScaledIdentity,
    Sum,
)
from ...properties import SELF_ADJOINT
from ..common import (
    dense,
    ignore_float_errors,
    in_context,
    is_half,
    is_traced_or_differentiated,
    once_each,
    operands_in_context,
    reciprocal_spectrum,
)
from ..solve.inverse import LARGEST_DENSE, inv
from ..spectrum import eig, factors_self_adjoint, spectrum_by_factors
from ..spectrum.compositions import split_shift
from ..spectrum.order import combinations

SMALL = 256  # rows of a factor that is made a matrix though more is known of it


def has_factored_spectrum(A: LinearOperator) -> bool:
    """Whether A is a C + b I, real a and b, C a Kronecker product or sum of self-adjoint factors
    with all of their eigenpairs at hand."""
    form = kronecker_form(A) if A.properties & SELF_ADJOINT else None
    return form is not None and all(
        factor.shape[-1] <= LARGEST_DENSE
        or isinstance(factor, (Diagonal, Identity, ScaledIdentity))
        for factor in form[0].operands
    )


def factored_spectrum(A: LinearOperator) -> tuple[Array, LinearOperator]:
    """All eigenvalues of such an A, in the order of the factors, and its eigenvectors as a
    Kronecker product."""
    form = kronecker_form(A)
    assert form is not None
    C, a, b = form
    values, V = spectrum_by_factors(in_context(C, A))
    real = A.xp.real_dtype(A.dtype)
    a, b = (
        A.xp.asarray(
            c.real if namespace_of(c) is None else A.xp.real(c),
            dtype=real,
            device=A._context.device,
        )
        for c in (a, b)
    )
    return a[..., None] * values + b[..., None], V


def has_general_factors(A: LinearOperator, method: Any = None) -> bool:
    """Whether A, not self-adjoint, is a Kronecker product of square factors that can be seen and
    formed, and no method is named."""
    return (
        (method is None or isinstance(method, Auto))
        and not A.properties & SELF_ADJOINT
        and 0 not in A.shape
        and all(factor.shape[-2] == factor.shape[-1] <= LARGEST_DENSE for factor in A.operands)
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
        if any(info.failed for info in reports):
            return None
        values, vectors = [v for v, _ in pairs], [dense(V) for _, V in pairs]
        if not A.is_complex:
            if any(bool(xp.any(xp.imag(x) != 0)) for x in (*values, *vectors)):
                return None
            values, vectors = [xp.real(v) for v in values], [xp.real(V) for V in vectors]
        singular = [xp.svd(V)[1] for V in vectors]
        condition = math.prod(float(xp.max(s[..., 0] / s[..., -1])) for s in singular)
        if not condition <= xp.eps(A.dtype) ** -0.25:
            return None
        inverses = [inv(Dense(V)) for V in vectors]
    spectrum, _ = combinations(xp, values, False, lambda values: None)
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
        values: Array = self.A.xp.reshape(grid, (*grid.shape[: grid.ndim - len(k.values)], -1))
        return self.A.xp.stop_gradient(values)

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
    if not xp.is_differentiated(*A.arrays()):
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
    real = xp.real_dtype(A.dtype)
    a, b = (
        xp.asarray(
            xp.real(c) if namespace_of(c) is xp else c.real, dtype=real, device=A._context.device
        )
        for c in (a, b)
    )
    values, vectors = zip(*((xp.astype(v, real), xp.astype(dense(V), A.dtype)) for v, V in pairs))
    return Factored(A, Factors(matrices, values, vectors, a, b), isinstance(C, KroneckerSum))


def differentiable_inverse(A: LinearOperator) -> LinearOperator | None:
    """A^-1 by its factors, if derivatives are recorded of them."""
    parts = factored(A)
    if parts is None:
        return None
    reciprocal_spectrum(A.xp, parts.spectrum())  # reports an eigenvalue of zero
    return parts.function(_reciprocal, is_inverse=True)._claim(A.properties)


def _reciprocal(x: Array) -> Array:
    return 1 / x


def kronecker_form(A: LinearOperator) -> tuple[LinearOperator, Any, Any] | None:
    """C, a and b of A = a C + b I, C a Kronecker product or sum of self-adjoint factors; None if
    A is nothing of the kind."""
    if isinstance(A, (Kronecker, KroneckerSum)):
        return (A, 1.0, 0.0) if factors_self_adjoint(A) else None
    if isinstance(A, Scaled) and (inner := kronecker_form(A.A)) is not None:
        C, a, b = inner
        return C, A.scalar * a, A.scalar * b
    if isinstance(A, Sum) and any(
        isinstance(term, (Identity, ScaledIdentity)) for term in A.operands
    ):
        c, rest = split_shift(A)
        if (inner := kronecker_form(rest)) is not None:
            C, a, b = inner
            return C, a, b + c
    return None
