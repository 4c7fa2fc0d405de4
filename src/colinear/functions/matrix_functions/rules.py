"""The rules of `exp`, `log`, `sqrt`, `isqrt`, `power` and `apply`, one for all six where they
can be."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ... import autodiff
from ...backends import Array, eye_like, inner_products, namespace_of
from ...dispatch import Function, rule
from ...info import recording
from ...operators import (
    BlockDiag,
    Circulant,
    Convolution,
    Dense,
    Diagonal,
    Householder,
    Identity,
    Kronecker,
    LinearOperator,
    LowRank,
    Permutation,
    Product,
    Projection,
    Scaled,
    ScaledIdentity,
    Sum,
    Triangular,
    Zero,
)
from ...operators.context import records_derivatives
from ...operators.convolution import periodic, periodic_spectrum, transform_on_grid
from ...operators.diagonal import scalar_of
from ...operators.divided import is_divided
from ...operators.scaled import beside, peek_scalar
from ...operators.sparse_algebra import SHIFT
from ...properties import POSITIVE_DEFINITE, POSITIVE_SEMIDEFINITE, SELF_ADJOINT, SelfAdjoint
from ...status import Status, is_unseen
from ..common import (
    array_like,
    host_value,
    is_square,
    report_all,
    reports_nonfinite,
    seen_value,
    square_size,
    to_computing_dtype,
    to_result_dtype,
    values_are_seen,
)
from ..spectrum import eig, not_empty
from ..spectrum.compositions import split_shift
from ..spectrum.order import cycles, grid_of, is_periodic, symbol
from ..spectrum.rules import compressed, cycles_can_be_seen, rank_is_small, ranks, two_factors
from . import apply, batched_identity, exp, isqrt, log, on_spectrum, power, sqrt
from .spectra import (
    EXP,
    ISQRT,
    LOG,
    SQRT,
    Scalar,
    as_integer,
    as_scalar,
    claims_of,
    of_values,
    power_of,
    real_if_real,
)

# How one rule serves all six functions of a matrix, and what these rules share.


POSITIVE = POSITIVE_SEMIDEFINITE | POSITIVE_DEFINITE


class Call(NamedTuple):
    """A call of one of the six functions: f of numbers, the same call for a part of A, the base
    case, and the method."""

    f: Scalar
    again: Callable[[LinearOperator], LinearOperator]
    base: Callable[[LinearOperator], Any]
    method: Any = None


Implementation = Callable[[Any, Call], LinearOperator]
ALL = (exp, log, sqrt, isqrt, power, apply)
# f of numbers, from the arguments between A and the method
SCALARS: dict[Function, Callable[..., Scalar]] = {
    exp: lambda: EXP,
    log: lambda: LOG,
    sqrt: lambda: SQRT,
    isqrt: lambda: ISQRT,
    power: power_of,
    apply: as_scalar,
}


def rules(
    functions: tuple[Function, ...], pattern: Any, when: Any = None, hereditary: bool = False
) -> Callable[[Implementation], Implementation]:
    """Decorate a rule of several of the functions, written as `of_something(A, call)`."""

    def register(implementation: Implementation) -> Implementation:
        for g in functions:
            name = g.name + implementation.__name__.removeprefix("of")
            rule(g, pattern, when=when, name=name, hereditary=hereditary)(
                _rule_of(g, implementation)
            )
        return implementation

    return register


def _rule_of(g: Function, implementation: Implementation) -> Callable[..., LinearOperator]:
    def of(A: Any, *arguments: Any) -> LinearOperator:
        def again(B: LinearOperator) -> LinearOperator:
            return g(arguments[0], B, *arguments[1:]) if g is apply else g(B, *arguments)

        square_size(g.name, A, f"{g.name}(A)", "")
        *given, method = arguments
        base = lambda A: g.base(A, *arguments)
        return implementation(A, Call(SCALARS[g](*given), again, base, method))

    of.__doc__ = implementation.__doc__
    return of


def claimed(A: LinearOperator, f: Scalar, values: Array, result: LinearOperator) -> LinearOperator:
    """f(A) with what is known of it by these values of f, if A is self-adjoint."""
    return result._claim(claims_of(A.xp, f, values)) if A.properties & SELF_ADJOINT else result


def at(A: LinearOperator, f: Scalar, *points: float) -> Array:
    """f at a few points, in the precision of A."""
    dtype, device = A.xp.real_dtype(A.dtype), A._context.device
    x = A.xp.asarray(np.asarray(points), dtype=dtype, device=device)
    return of_values(A, f, x, is_exact=True)


def combined(A: LinearOperator, a: Any, b: Any) -> LinearOperator:
    """a I + b A, without what is plainly zero."""
    # NumPy makes numbers of 0-dimensional arrays, which would forget their precision
    n, a = (A.shape[-1], A.xp.asarray(a))
    if peek_scalar(b) == 0:
        return ScaledIdentity(A.xp.broadcast_to(a, A.batch_shape), n)
    term = A if peek_scalar(b) == 1 else Scaled(b, A)
    return term if peek_scalar(a) == 0 else Sum(ScaledIdentity(a, n), term)


def of_positive_parts(
    A: LinearOperator, base: Callable[[LinearOperator], Any], compute: Callable[[], Any]
) -> Any:
    """`compute()`, which moves f past a product or an inverse, as holds for positive parts only;
    `base(A)` if one is seen to be another.

    Each part would be right by itself, on the principal branch, and what is made of them on
    another.
    """
    with recording(detailed=True) as reports:
        result = compute()
    if any(info._status is Status.FELL_BACK for info in reports):
        return base(A)
    report_all(reports)
    return result


# The rules of `exp`, `log`, `sqrt`, `isqrt`, `power` and `apply`: where the structure of A is that
# of f(A).
#
# Most hold for every f, so they are written once, for a function f of numbers, and registered with
# all six functions. Those that move f past a product, a scalar or an inverse hold on the principal
# branch only where the parts are positive, or the power whole.


@rules(ALL, Diagonal)
def of_diagonal(A: Any, call: Call) -> LinearOperator:
    """f(diag(d)) = diag(f(d))"""
    xp, f = A.xp, call.f
    d = xp.real(A.d) if A.properties & SELF_ADJOINT else A.d
    values = of_values(A, f, d, is_exact=True)
    return claimed(A, f, values, Diagonal(values))


@rules(ALL, SHIFT)
def of_identity(A: Any, call: Call) -> LinearOperator:
    """f(c I) = f(c) I"""
    c = of_values(A, call.f, array_like(A, scalar_of(A))[..., None], is_exact=True)[..., 0]
    c = c.item() if A.is_neutral and A.xp.name == "numpy" else c
    return ScaledIdentity(c, A.shape[-1], like=A if A.is_neutral else None)


@rules(ALL, Zero)
def of_zero(A: Any, call: Call) -> LinearOperator:
    """f(0 I) = f(0) I"""
    c = at(A, call.f, 0.0)[..., 0]
    return ScaledIdentity(A.xp.broadcast_to(c, A.batch_shape), A.shape[-1], like=A)


@rules(ALL, Projection, when=not_empty)
@reports_nonfinite
def of_projection(A: Any, call: Call) -> LinearOperator:
    """f(P) = f(0) I + (f(1) - f(0)) P"""
    is_all = A.Q.shape[-1] == A.shape[-1]
    values = at(A, call.f, float(is_all), 1.0)
    return claimed(A, call.f, values, combined(A, values[0], values[1] - values[0]))


@rules(ALL, Householder, when=not_empty)
@reports_nonfinite
def of_householder(A: Any, call: Call) -> LinearOperator:
    """f(H) = (f(1) + f(-1)) / 2 I + (f(1) - f(-1)) / 2 H"""
    values = at(A, call.f, -1.0, 1.0)
    minus, plus = values[0], values[1]
    return claimed(A, call.f, values, combined(A, (plus + minus) / 2, (plus - minus) / 2))


@rules(ALL, Circulant, when=not_empty)
@rules(ALL, Convolution, when=is_periodic)
def of_circulant(A: Any, call: Call) -> LinearOperator:
    """f(F^H diag(c) F) = F^H diag(f(c)) F with the Fourier transform F: a circulant again"""
    xp, f, grid, n = A.xp, call.f, grid_of(A), A.shape[-1]
    # a look, on a device only where the branch cut makes a difference
    is_looked_at = f.name != "apply" and (f.principal or not is_unseen(A.arrays()[0]))
    is_hermitian = bool(A.properties & SELF_ADJOINT) or (is_looked_at and _is_plainly_hermitian(A))
    if (is_hermitian or f.mirrored) and not (A.is_complex or is_divided(A, xp)):
        column, y = _of_half_spectrum(A, f, is_hermitian)
    else:
        values = symbol(A)
        x = xp.reshape(xp.real(values) if is_hermitian else values, (*A.batch_shape, n))
        y = of_values(A, f, x)
        column = transform_on_grid(A, xp.reshape(y, values.shape), grid, inverse=True)
        if not A.is_complex and (f.mirrored or (is_hermitian and not xp.is_complex(y))):
            column = xp.real(column)
    column = to_result_dtype(xp, real_if_real(xp, A, column), A.dtype)
    return claimed(A, f, y, periodic(A, column, grid))


def _of_half_spectrum(A: Any, f: Scalar, is_hermitian: bool) -> tuple[Array, Array]:
    """The first column of f(A) for a real A, and f at half of the eigenvalues: at opposite
    frequencies these are conjugate, so f is, or equal."""
    xp, (half, grid) = A.xp, periodic_spectrum(A)
    axes = tuple(range(-len(grid), 0))
    count = math.prod(half.shape[-len(grid) :])
    y = of_values(
        A, f, xp.reshape(xp.real(half) if is_hermitian else half, (*A.batch_shape, count))
    )
    values = xp.reshape(y, half.shape)
    if is_hermitian and xp.is_complex(
        values
    ):  # even real and imaginary parts, of a real column each
        parts = (xp.irfftn(part, grid, axes=axes) for part in (xp.real(values), xp.imag(values)))
        real, imaginary = parts
        return real + 1j * imaginary, y
    return xp.irfftn(values, grid, axes=axes), y


def _is_plainly_hermitian(A: Any) -> bool:
    """Whether the first column can be seen to be that of a self-adjoint circulant, as the base
    case looks at matrices."""
    if not values_are_seen(A):
        return False
    B, xp = A.H, A.xp
    ((own,), (other,)) = A.arrays(), B.arrays()
    is_centered = isinstance(A, Circulant) or A.origin == B.origin
    return is_centered and bool(host_value(xp, xp.all(own == other)))


@rules((exp, log, sqrt, isqrt, apply), Permutation, when=cycles_can_be_seen)
def of_permutation(A: Any, call: Call) -> LinearOperator:
    """f(P) = R^T diag(f(C), ...) R: along each of its cycles a permutation is a circulant C"""
    order, counts = cycles(A.perm.host)

    def along(m: int) -> LinearOperator:
        return call.again(Circulant(array_like(A, np.eye(1, m, m - 1)[0])))  # C[i, i + 1] = 1

    blocks = [
        Kronecker(Identity(count), along(m)) if count > 1 else along(m) for count, m in counts
    ]
    R = Permutation(order)
    return Product(R.T, BlockDiag(*blocks), R)


def has_power_by_cycles(A: Any, p: Any = 1) -> bool:
    """Whether p is whole, or the cycles can be seen."""
    return as_integer(p) is not None or cycles_can_be_seen(A)


@rule(power, Permutation, when=has_power_by_cycles)
def power_permutation(A: Any, p: Any, method: Any) -> LinearOperator:
    """P^p for whole p is a permutation; other powers by cycles"""
    whole = as_integer(p)
    if whole is None:
        again: Callable[[Any], LinearOperator] = lambda B: power(B, p, method)
        return of_permutation(A, Call(power_of(p), again, again))
    base, result = A if whole >= 0 else A.T, batched_identity(A)
    whole = abs(whole)
    while whole:
        result = Product(base, result) if whole & 1 else result
        whole >>= 1
        base = base.compose(base) if whole else base
    return result


def _shift_and_term(A: Any) -> tuple[Any, LinearOperator]:
    """c and U V^H of c I + U V^H."""
    return split_shift(A) if isinstance(A, Sum) else (0.0, A)


def low_rank_term(A: Any) -> Any:
    """A, or the low-rank term of the sum."""
    return next(term for term in (A.operands or (A,)) if isinstance(term, LowRank))


def low_rank_is_small(A: Any) -> bool:
    """Whether the rank of the low-rank term is below the size."""
    return rank_is_small(low_rank_term(A))


@rules(ALL, SelfAdjoint[LowRank], when=low_rank_is_small)
@rules(ALL, SelfAdjoint[Sum[LowRank, SHIFT]], when=low_rank_is_small)
def of_low_rank(A: Any, call: Call) -> LinearOperator:
    """f(c I + Q Λ Q^H) = f(c) I + Q (f(Λ + c) - f(c)) Q^H for Q^H Q = I"""
    xp, f = A.xp, call.f
    c, term = _shift_and_term(A)
    if _is_smooth(A, term, f):
        return _of_gram_matrix(A, c, term, f)
    Q, small, _ = compressed(term._claim(SELF_ADJOINT))
    values, Z = eig(small._claim(SELF_ADJOINT), None, "LM")
    c = xp.broadcast_to(xp.real(array_like(A, c))[..., None], (*A.batch_shape, 1))
    shifted = xp.broadcast_to(values + c, (*A.batch_shape, values.shape[-1]))
    y = of_values(A, f, xp.concat([shifted, c], axis=-1))
    rest, inner = y[..., -1], xp.make_diagonal(y[..., :-1] - y[..., -1:])
    return claimed(A, f, y, _shifted(A, rest, LowRank((Dense(Q) @ Z).to_dense(), None, inner)))


def _shifted(A: LinearOperator, c: Array, low_rank: LinearOperator) -> LinearOperator:
    """c I + the low-rank term, without a c that is seen to be zero and to stay so."""
    visible = None if A.xp.is_differentiated(c) else seen_value(A.xp, c)
    if visible is None or (visible != 0).any():
        return Sum(ScaledIdentity(c, A.shape[-1]), low_rank)
    return low_rank


def _is_smooth(A: Any, term: Any, f: Scalar) -> bool:
    """Whether derivatives are recorded of f(c I + U U^H), and f has some at c: where U is zero,
    or of lower rank, A = Q R has none."""
    return (term is not A or not (f.principal or f.pole)) and _is_recorded(A, term)


def _is_recorded(A: Any, term: Any) -> bool:
    """Whether derivatives are recorded of an operator with the term U U^H."""
    xp = A.xp
    is_plain = term.V is None and term.core is None and not xp.is_compiling()
    return is_plain and records_derivatives(A)


def multiple_is_recorded(A: Any) -> bool:
    """Whether derivatives are recorded of a (c I + U U^H), and U has fewer columns than rows."""
    term = low_rank_term(A.A)
    return rank_is_small(term) and _is_recorded(A, term)


@rules((exp, apply), SelfAdjoint[Scaled[LowRank]], when=multiple_is_recorded)
@rules((exp, apply), SelfAdjoint[Scaled[Sum[LowRank, SHIFT]]], when=multiple_is_recorded)
def of_multiple_of_low_rank(A: Any, call: Call) -> LinearOperator:
    """f(a (c I + U U^H)) = f(a c) I + U a h(a U^H U) U^H, h(x) = (f(a c + x) - f(a c)) / x"""
    c, term = _shift_and_term(A.A)
    return _of_gram_matrix(A, A.scalar * c, term, call.f, A.scalar)


def _of_gram_matrix(A: Any, c: Any, term: Any, f: Scalar, a: Any = 1.0) -> LinearOperator:
    """f(c I + a U U^H) = f(c) I + U a h(a U^H U) U^H, h(x) = (f(c + x) - f(c)) / x: without Q
    and R, which have no derivative at U = 0"""
    xp, U = A.xp, to_computing_dtype(A.xp, term.U)
    a = beside(xp.real(a) if namespace_of(a) is xp else a.real, 2)
    M = a * inner_products(xp, U, U)
    M = xp.broadcast_to(M, (*A.batch_shape, *M.shape[-2:]))
    values, Z = xp.eigh(xp.stop_gradient(M))
    c = xp.astype(xp.real(xp.asarray(c, device=A._context.device)), values.dtype)
    c = xp.broadcast_to(c, A.batch_shape)
    y = of_values(A, f, c[..., None] + xp.concat([values, 0 * values[..., :1]], axis=-1))
    F = autodiff.spectral_difference(xp, on_spectrum(A, f, y), M, c, values, Z)
    low_rank = LowRank(term.U, None, to_result_dtype(xp, a * F, A.dtype))
    return claimed(A, f, y, _shifted(A, to_result_dtype(xp, y[..., -1], A.dtype), low_rank))


def rank_is_below_half(A: Any) -> bool:
    """Whether A is square and twice the rank of its low-rank term below its size."""
    return is_square(A) and 0 < 2 * min(ranks(low_rank_term(A))) < A.shape[-1]


@rules((exp, power), LowRank, when=rank_is_below_half)
@rules((exp, log, sqrt, isqrt, power), Sum[LowRank, SHIFT], when=rank_is_below_half)
def of_low_rank_update(A: Any, call: Call) -> LinearOperator:
    """f(c I + U V^H) = f(c) I + U F V^H, where f([[c I + V^H U, I], [0, c I]]) = [[*, F], [0, f(c)
    I]]

    F is the divided difference of f at c + V^H U and c, found with no division: right also where
    V^H U is singular.
    """
    xp = A.xp
    if isinstance(A, LowRank) and not call.f.mirrored:
        return call.base(A)  # singular, so there may be no root
    shift, term = _shift_and_term(A)
    U, V = two_factors(term)
    inner = inner_products(xp, V, U)
    r = inner.shape[-1]
    I = xp.astype(eye_like(xp, inner), A.dtype)
    corner = xp.broadcast_to(beside(shift, 2) * I, (*A.batch_shape, r, r))
    one = xp.broadcast_to(I, corner.shape)
    rows = [xp.concat([corner + inner, one], axis=-1), xp.concat([0 * one, corner], axis=-1)]
    F = call.again(Dense(xp.concat(rows, axis=-2))).to_dense()
    return Sum(ScaledIdentity(F[..., -1, -1], A.shape[-1]), LowRank(U, V, F[..., :r, r:]))


@rules(ALL, Triangular, when=not_empty)
def of_triangular(A: Any, call: Call) -> LinearOperator:
    """f(T) is triangular"""
    upper = A._transpose() if A.lower else A  # Schur's form, as the algorithms want it
    X = call.again(Dense(upper.to_dense())._claim(A.properties))
    result = Triangular(X.A, lower=False)._claim(X._claims) if isinstance(X, Dense) else X
    return result.T if A.lower else result
