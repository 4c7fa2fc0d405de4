"""The rules of `exp`, `log`, `sqrt`, `isqrt`, `power` and `apply`: where the structure of A is that of f(A).

Most hold for every f, so they are written once, for a function f of numbers, and registered with all six functions. Those that
move f past a product, a scalar or an inverse hold on the principal branch only where the parts are positive, or the power whole.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..backends import Array, namespace_of
from ..dispatch import Function, arrange, rule
from ..info import Status, planning
from ..operators.base import LinearOperator
from ..operators.block import BlockDiag
from ..operators.circulant import Circulant
from ..operators.convolution import Convolution
from ..operators.dense import Dense
from ..operators.diagonal import Diagonal
from ..operators.householder import Householder
from ..operators.identity import Identity, ScaledIdentity
from ..operators.inverse import Inverse
from ..operators.kronecker import Kronecker, KroneckerSum
from ..operators.lowrank import LowRank
from ..operators.permutation import Permutation
from ..operators.product import Product
from ..operators.projection import Projection
from ..operators.scaled import Scaled, peek_scalar
from ..operators.sum import Sum
from ..operators.transposed import Adjoint, Conjugate, Transpose
from ..operators.triangular import Triangular
from ..operators.zero import Zero
from ..properties import POSITIVE_DEFINITE, POSITIVE_SEMIDEFINITE, PSD, SELF_ADJOINT, SelfAdjoint, Unitary
from ._factorise import is_watched, narrow, seen, square_size
from ._spectral import cycles, grid_of, mirrored, symbol
from ._values import place, placed, report_status
from .eigen import eig
from .eigen_rules import (
    compressed,
    cycles_can_be_seen,
    is_a_similarity,
    is_periodic,
    not_empty,
    rank_is_small,
    split_shift,
    two_factors,
)
from .inverse import all_square
from .matrix_functions import (
    EXP,
    ISQRT,
    LOG,
    SQRT,
    Scalar,
    apply,
    as_integer,
    exp,
    identity_like,
    isqrt,
    log,
    of_values,
    power,
    power_of,
    real_if_real,
    scalar_of,
    sqrt,
    stand_in,
)

POSITIVE = POSITIVE_SEMIDEFINITE | POSITIVE_DEFINITE
KEPT = SELF_ADJOINT | POSITIVE  # by what is the same operator, written otherwise


class Call(NamedTuple):
    """A call of one of the six functions: f of numbers, the same call for a part of A, and the base case."""

    f: Scalar
    again: Callable[[LinearOperator], LinearOperator]
    base: Callable[[LinearOperator], LinearOperator]


Implementation = Callable[[Any, Call], LinearOperator]
ALL = (exp, log, sqrt, isqrt, power, apply)
SCALARS = {exp: EXP, log: LOG, sqrt: SQRT, isqrt: ISQRT}


def rules(functions: tuple[Function, ...], pattern: Any, when: Any = None) -> Callable[[Implementation], Implementation]:
    """Decorate a rule of several of the functions, written as `of_something(A, call)`."""

    def register(implementation: Implementation) -> Implementation:
        for g in functions:
            name = g.name + implementation.__name__.removeprefix("of")
            rule(g, pattern, when=when, name=name)(_rule_of(g, implementation))
        return implementation

    return register


def _rule_of(g: Function, implementation: Implementation) -> Callable[..., LinearOperator]:
    def call_of(f: Scalar, *arguments: Any) -> Call:
        def again(B: LinearOperator) -> LinearOperator:
            return g(arguments[0], B, *arguments[1:]) if g is apply else g(B, *arguments)

        return Call(f, again, lambda A: stand_in(A) if planning() else g.base(A, *arguments))

    if g in SCALARS:

        def of(A: Any, method: Any) -> LinearOperator:
            return implementation(A, call_of(SCALARS[g], method))

    elif g is power:

        def of(A: Any, p: Any, method: Any) -> LinearOperator:  # type: ignore[misc]
            return implementation(A, call_of(power_of(p), p, method))

    else:

        def of(A: Any, f: Any, method: Any) -> LinearOperator:  # type: ignore[misc]
            if not callable(f):
                raise TypeError(f"apply: f is {f!r}; it must be a function of an array. Write apply(f, A).")
            return implementation(A, call_of(scalar_of(f), f, method))

    of.__doc__ = inspect.getdoc(implementation)
    return of


def _claimed(A: LinearOperator, f: Scalar, values: Array, result: LinearOperator) -> LinearOperator:
    """f(A) with what is known of it, for self-adjoint A and these values of f."""
    if A.xp.is_complex(values) or not A.properties & SELF_ADJOINT:
        return result
    return result._claim(POSITIVE_SEMIDEFINITE | SELF_ADJOINT if f.nonnegative else SELF_ADJOINT)


def _at(A: LinearOperator, f: Scalar, *points: float) -> Array:
    """f at a few points, in the precision of A."""
    xp = A.xp
    x = xp.asarray(np.asarray(points), dtype=xp.real_dtype(A.dtype), device=A._context.device)
    return of_values(xp, f, x, min(points) >= 0)


def _combined(A: LinearOperator, a: Any, b: Any) -> LinearOperator:
    """a I + b A, without what is plainly zero."""
    n, a = A.shape[-1], A.xp.asarray(a)  # NumPy makes numbers of 0-dimensional arrays, which would forget their precision
    if peek_scalar(b) == 0:
        return ScaledIdentity(A.xp.broadcast_to(a, A.batch_shape), n)
    term = A if peek_scalar(b) == 1 else Scaled(b, A)
    return term if peek_scalar(a) == 0 else Sum(ScaledIdentity(a, n), term)


# ---------------------------------------------------------------------------------------------------- known spectra


@rules(ALL, Diagonal)
def of_diagonal(A: Any, call: Call) -> LinearOperator:
    """f(diag(d)) = diag(f(d))"""
    xp, f = A.xp, call.f
    d = xp.real(A.d) if A.properties & SELF_ADJOINT else A.d
    values = of_values(xp, f, d, bool(A.properties & POSITIVE_SEMIDEFINITE))
    return Diagonal(values)._claim(POSITIVE_SEMIDEFINITE | SELF_ADJOINT if f.nonnegative and not xp.is_complex(values) else 0)


@rules(ALL, Identity | ScaledIdentity)
def of_identity(A: Any, call: Call) -> LinearOperator:
    """f(c I) = f(c) I"""
    xp = A.xp
    c = xp.asarray(A.c if isinstance(A, ScaledIdentity) else 1.0, dtype=A.dtype, device=A._context.device)
    values = of_values(xp, call.f, c[..., None], bool(A.properties & POSITIVE_SEMIDEFINITE))
    return ScaledIdentity(values[..., 0], A.shape[-1])


@rules(ALL, Zero)
def of_zero(A: Any, call: Call) -> LinearOperator:
    """f(0 I) = f(0) I"""
    n = square_size(call.f.name, A, f"{call.f.name}(A)", "")
    c = _at(A, call.f, 0.0)[..., 0]
    return ScaledIdentity(A.xp.broadcast_to(c, A.batch_shape), n, like=A)


@rules(ALL, Projection, when=not_empty)
def of_projection(A: Any, call: Call) -> LinearOperator:
    """f(P) = f(0) I + (f(1) - f(0)) P"""
    is_all = A.Q.shape[-1] == A.shape[-1]
    values = _at(A, call.f, 1.0 if is_all else 0.0, 1.0)
    return _claimed(A, call.f, values, _combined(A, values[0], values[1] - values[0]))


@rules(ALL, Householder, when=not_empty)
def of_householder(A: Any, call: Call) -> LinearOperator:
    """f(H) = (f(1) + f(-1)) / 2 I + (f(1) - f(-1)) / 2 H"""
    values = _at(A, call.f, -1.0, 1.0)
    minus, plus = values[0], values[1]
    return _claimed(A, call.f, values, _combined(A, (plus + minus) / 2, (plus - minus) / 2))


@rules(ALL, Circulant, when=not_empty)
@rules(ALL, Convolution, when=is_periodic)
def of_circulant(A: Any, call: Call) -> LinearOperator:
    """f(F^H diag(c) F) = F^H diag(f(c)) F with the Fourier transform F: a circulant again"""
    xp, f, grid, n = A.xp, call.f, grid_of(A), A.shape[-1]
    axes = tuple(range(-len(grid), 0))
    values = symbol(A)
    is_hermitian = bool(A.properties & SELF_ADJOINT) or (f.name != "apply" and _is_plainly_hermitian(A))
    x = xp.reshape(xp.real(values) if is_hermitian else values, (*A.batch_shape, n))
    y = of_values(xp, f, x, bool(A.properties & POSITIVE_SEMIDEFINITE), n * xp.eps(A.dtype))
    column = xp.ifftn(xp.reshape(y, values.shape), axes=axes)
    if not A.is_complex and (f.mirrored or (is_hermitian and not xp.is_complex(y))):
        column = xp.real(column)
    column = narrow(xp, real_if_real(xp, A, column), A.dtype)
    result = Circulant(column) if isinstance(A, Circulant) else Convolution(column, grid)
    return _claimed(A, f, y, result)


def _is_plainly_hermitian(A: Any) -> bool:
    """Whether the first column can be seen to be that of a self-adjoint circulant, as the base case looks at matrices."""
    xp = A.xp
    kernel = A.col if isinstance(A, Circulant) else A.kernel
    if is_watched(xp, kernel):
        return False
    if isinstance(A, Circulant):
        return bool(seen(xp, xp.all(A.col == xp.conj(mirrored(xp, A.col, (-1,))))))
    axes = tuple(range(-len(A.grid), 0))
    centered = all(2 * o + 1 == kernel.shape[axis] for o, axis in zip(A.origin, axes, strict=True))
    return centered and bool(seen(xp, xp.all(kernel == xp.conj(xp.flip(kernel, axis=axes)))))


@rules((exp, log, sqrt, isqrt, apply), Permutation, when=cycles_can_be_seen)
def of_permutation(A: Any, call: Call) -> LinearOperator:
    """f(P) = R^T diag(f(C), ...) R: along each of its cycles a permutation is a circulant C"""
    xp = A.xp
    order, counts = cycles(A.perm.host)

    def along(m: int) -> LinearOperator:
        shift = np.eye(1, m, m - 1)[0]  # C[i, i + 1] = 1
        return call.again(Circulant(xp.asarray(shift, dtype=A.dtype, device=A._context.device)))

    blocks = [Kronecker(Identity(count), along(m)) if count > 1 else along(m) for count, m in counts]
    R = Permutation(order)
    return Product(R.T, BlockDiag(*blocks), R)


@rule(power, Permutation)
def power_permutation(A: Any, p: Any, method: Any) -> LinearOperator:
    """P^p for whole p is a permutation; other powers by cycles"""
    whole = as_integer(p)
    if whole is None:
        if not cycles_can_be_seen(A):
            return stand_in(A) if planning() else power.base(A, p, method)
        again: Callable[[Any], LinearOperator] = lambda B: power(B, p, method)  # noqa: E731
        return of_permutation(A, Call(power_of(p), again, again))
    base, result = A if whole >= 0 else A.T, identity_like(A)
    whole = abs(whole)
    while whole:
        result = Product(base, result) if whole & 1 else result
        whole >>= 1
        base = base.compose(base) if whole else base
    return result


def low_rank_is_small(A: Any) -> bool:
    """Whether the rank of the low-rank term is below the size."""
    return rank_is_small(next(term for term in (A.operands or (A,)) if isinstance(term, LowRank)))


@rules(ALL, SelfAdjoint[LowRank], when=low_rank_is_small)
@rules(ALL, SelfAdjoint[Sum[LowRank, ScaledIdentity | Identity]], when=low_rank_is_small)  # type: ignore[misc]
def of_low_rank(A: Any, call: Call) -> LinearOperator:
    """f(c I + Q Λ Q^H) = f(c) I + Q (f(Λ + c) - f(c)) Q^H for Q^H Q = I"""
    xp, f, n = A.xp, call.f, A.shape[-1]
    c, term = split_shift(A) if isinstance(A, Sum) else (0.0, A)
    Q, small, _ = compressed(term._claim(SELF_ADJOINT))
    values, Z = eig(small._claim(SELF_ADJOINT), None, "LM")
    c = xp.real(xp.asarray(c, dtype=A.dtype, device=A._context.device))[..., None]
    c = xp.broadcast_to(c, (*A.batch_shape, 1))
    shifted = xp.broadcast_to(values + c, (*A.batch_shape, values.shape[-1]))
    y = of_values(xp, f, xp.concat([shifted, c], axis=-1), bool(A.properties & POSITIVE_SEMIDEFINITE), n * xp.eps(A.dtype))
    rest, inner = y[..., -1], xp.make_diagonal(y[..., :-1] - y[..., -1:])
    result: LinearOperator = LowRank((Dense(Q) @ Z).to_dense(), None, inner)
    visible = seen(xp, rest)
    if visible is None or (visible != 0).any():
        result = Sum(ScaledIdentity(rest, n), result)
    return _claimed(A, f, y, result)


def rank_is_below_half(A: Any) -> bool:
    """Whether A is square and twice the rank of its low-rank term below its size."""
    term = next(term for term in (A.operands or (A,)) if isinstance(term, LowRank))
    ranks = term.U.shape[-1], (term.U if term.V is None else term.V).shape[-1]
    return A.shape[-1] == A.shape[-2] and 0 < 2 * min(ranks) < A.shape[-1]


@rules((exp, power), LowRank, when=rank_is_below_half)
@rules((exp, log, sqrt, isqrt, power), Sum[LowRank, ScaledIdentity | Identity], when=rank_is_below_half)  # type: ignore[misc]
def of_low_rank_update(A: Any, call: Call) -> LinearOperator:
    """f(c I + U V^H) = f(c) I + U F V^H, where f([[c I + V^H U, I], [0, c I]]) = [[*, F], [0, f(c) I]]

    F is the divided difference of f at c + V^H U and c, found with no division: right also where V^H U is singular.
    """
    xp = A.xp
    if isinstance(A, LowRank) and not call.f.mirrored:
        return call.base(A)  # singular, so there may be no root
    shift, term = split_shift(A) if isinstance(A, Sum) else (0.0, A)
    U, V = two_factors(term)
    inner = xp.matmul(xp.conj(xp.matrix_transpose(V)), U)
    r = inner.shape[-1]
    I = xp.astype(xp.eye(r, dtype=inner.dtype, device=A._context.device), A.dtype)
    corner = xp.broadcast_to(_beside(shift, 2) * I, (*A.batch_shape, r, r))
    one = xp.broadcast_to(I, corner.shape)
    rows = [xp.concat([corner + inner, one], axis=-1), xp.concat([0 * one, corner], axis=-1)]
    F = call.again(Dense(xp.concat(rows, axis=-2))).to_dense()
    return Sum(ScaledIdentity(F[..., -1, -1], A.shape[-1]), LowRank(U, V, F[..., :r, r:]))


@rules(ALL, Triangular, when=not_empty)
def of_triangular(A: Any, call: Call) -> LinearOperator:
    """f(T) is triangular"""
    square_size(call.f.name, A, f"{call.f.name}(A)", "")
    upper = A._transpose() if A.lower else A  # Schur's form, as the algorithms want it
    X = call.again(Dense(upper.to_dense())._claim(A.properties))
    result = Triangular(X.A, lower=False)._claim(X._claims) if isinstance(X, Dense) else X
    return result.T if A.lower else result


# ---------------------------------------------------------------------------------------------------- compositions


@rules(ALL, BlockDiag, when=all_square)
def of_block_diagonal(A: Any, call: Call) -> LinearOperator:
    """f(diag(A, B)) = diag(f(A), f(B)), both square"""
    kept = A.properties & (SELF_ADJOINT | POSITIVE)
    return BlockDiag(*(call.again(block._claim(kept)) for block in placed(A)))


@rules(ALL, Product[Unitary, ..., LinearOperator], when=is_a_similarity)  # type: ignore[misc]
def of_similarity(A: Any, call: Call) -> LinearOperator:
    """f(Q A Q^H) = Q f(A) Q^H for unitary Q"""
    inner = place(Product(*A.operands[1:-1]), A)._claim(A.properties & (SELF_ADJOINT | POSITIVE))
    return Product(A.operands[0], call.again(inner), A.operands[-1])


@rule(exp, KroneckerSum)
def exp_kronecker_sum(A: Any, method: Any) -> LinearOperator:
    """exp(A ⊕ B) = exp(A) ⊗ exp(B)"""
    return Kronecker(*(exp(term, method) for term in placed(A)))


def factors_positive(A: LinearOperator) -> bool:
    """Whether every factor is positive semidefinite, so that no product leaves the principal branch."""
    return all(factor.properties & POSITIVE_SEMIDEFINITE for factor in A.operands)


@rules((sqrt, isqrt, power), Kronecker, when=factors_positive)
def of_positive_kronecker(A: Any, call: Call) -> LinearOperator:
    """(A ⊗ B)^p = A^p ⊗ B^p, both positive semidefinite"""
    return Kronecker(*(call.again(factor) for factor in placed(A)))


@rule(power, Kronecker, when=all_square)
def power_kronecker(A: Any, p: Any, method: Any) -> LinearOperator:
    """(A ⊗ B)^p = A^p ⊗ B^p for whole p"""
    if as_integer(p) is None:
        return stand_in(A) if planning() else power.base(A, p, method)
    return Kronecker(*(power(factor, p, method) for factor in placed(A)))


@rule(log, Kronecker, when=factors_positive)
def log_kronecker(A: Any, method: Any) -> LinearOperator:
    """log(A ⊗ B) = log(A) ⊕ log(B), both positive definite"""
    return KroneckerSum(*(log(factor, method) for factor in placed(A)))


# ---------------------------------------------------------------------------------------------------- scalars and shifts


def scalar_is_positive(A: Any) -> bool:
    """Whether the scalar is seen to be positive (and A to be square)."""
    return A.shape[-1] == A.shape[-2] and _is_positive(A.scalar)


def _is_positive(c: Any) -> bool:
    xp = namespace_of(c)
    values = c if xp is None else xp.peek(c)
    return values is not None and bool(np.all(np.imag(values) == 0) and np.all(np.real(values) > 0))


@rule(sqrt, Scaled, when=scalar_is_positive)
def sqrt_scaled(A: Any, method: Any) -> LinearOperator:
    """(c A)^(1/2) = c^(1/2) A^(1/2) for c > 0"""
    return Scaled(A.scalar**0.5, sqrt(A.A, method))


@rule(isqrt, Scaled, when=scalar_is_positive)
def isqrt_scaled(A: Any, method: Any) -> LinearOperator:
    """(c A)^(-1/2) = c^(-1/2) A^(-1/2) for c > 0"""
    return Scaled(A.scalar**-0.5, isqrt(A.A, method))


@rule(log, Scaled, when=scalar_is_positive)
def log_scaled(A: Any, method: Any) -> LinearOperator:
    """log(c A) = log(c) I + log(A) for c > 0"""
    xp = namespace_of(A.scalar)
    c = math.log(A.scalar.real) if xp is None else xp.asarray(xp.log(A.scalar))
    return Sum(log(place(A.A, A), method), ScaledIdentity(c, A.shape[-1]))


@rule(power, Scaled)
def power_scaled(A: Any, p: Any, method: Any) -> LinearOperator:
    """(c A)^p = c^p A^p for c > 0 or whole p"""
    square_size("power", A, "A^p", "")
    if as_integer(p) is None and not _is_positive(A.scalar):
        return stand_in(A) if planning() else power.base(A, p, method)
    whole = as_integer(p)
    return Scaled(A.scalar ** (p if whole is None else whole), power(A.A, p, method))


@rules(ALL, Scaled[Circulant])  # type: ignore[misc]
def of_scaled_circulant(A: Any, call: Call) -> LinearOperator:
    """f(c C) = f(C') for the circulant C' = c C"""
    return call.again(Circulant(_beside(A.scalar, 1) * A.A.col)._claim(A.properties & KEPT))


@rules(ALL, Scaled[Convolution])  # type: ignore[misc]
def of_scaled_convolution(A: Any, call: Call) -> LinearOperator:
    """f(c C) = f(C') for the convolution C' = c C"""
    kernel = _beside(A.scalar, len(A.A.grid)) * A.A.kernel
    return call.again(A.A._replace(kernel=kernel)._claim(A.properties & KEPT))


@rules(ALL, Scaled[Permutation])  # type: ignore[misc]
def of_scaled_permutation(A: Any, call: Call) -> LinearOperator:
    """f(c P) = R^T diag(f(c C), ...) R: along each of its cycles a permutation is a circulant C"""
    if not cycles_can_be_seen(A.A) or getattr(A.scalar, "ndim", 0) > 0:
        return call.base(A)
    return of_permutation(place(A.A, A), Call(call.f, lambda C: call.again(Scaled(A.scalar, C)), call.base))


@rules(ALL, Scaled[BlockDiag])  # type: ignore[misc]
def of_scaled_blocks(A: Any, call: Call) -> LinearOperator:
    """f(c diag(A, B)) = f(diag(c A, c B))"""
    return call.again(BlockDiag(*(Scaled(A.scalar, block) for block in A.A.operands))._claim(A.properties & KEPT))


@rule(exp, Scaled[KroneckerSum])  # type: ignore[misc]
def exp_scaled_kronecker_sum(A: Any, method: Any) -> LinearOperator:
    """exp(c (A ⊕ B)) = exp(c A) ⊗ exp(c B)"""
    return exp(KroneckerSum(*(Scaled(A.scalar, term) for term in A.A.operands)), method)


@rules(ALL, Sum[Circulant, ScaledIdentity | Identity])  # type: ignore[misc]
def of_shifted_circulant(A: Any, call: Call) -> LinearOperator:
    """f(C + c I) = f(C') for the circulant C' = C + c I"""
    circulant, shift = arrange(A, Circulant, ScaledIdentity | Identity)
    xp, c = A.xp, shift.c if isinstance(shift, ScaledIdentity) else 1.0
    first = xp.eye(1, A.shape[-1], dtype=circulant.dtype, device=A._context.device)[0]
    return call.again(Circulant(circulant.col + _beside(c, 1) * first)._claim(A.properties & KEPT))


@rules(ALL, Sum[BlockDiag, ScaledIdentity | Identity])  # type: ignore[misc]
def of_shifted_blocks(A: Any, call: Call) -> LinearOperator:
    """f(diag(A, B) + c I) = f(diag(A + c I, B + c I)), both square"""
    blocks, shift = arrange(A, BlockDiag, ScaledIdentity | Identity)
    if not all_square(blocks):
        return call.base(A)
    c: Any = shift.c if isinstance(shift, ScaledIdentity) else 1.0
    shifted = (Sum(block, ScaledIdentity(c, block.shape[-1])) for block in placed(blocks))
    return call.again(BlockDiag(*shifted)._claim(A.properties & KEPT))


def _beside(c: Any, ndim: int) -> Any:
    """A scalar, or a batch of them, as it multiplies arrays of so many dimensions."""
    return c[(..., *(None,) * ndim)] if getattr(c, "ndim", 0) else c


def shift_is_moderate(A: Any) -> bool:
    """Whether e^c is far from overflow and underflow (taken for granted where c cannot be seen)."""
    shift, _ = arrange(A, ScaledIdentity | Identity, ...)
    c: Any = shift.c if isinstance(shift, ScaledIdentity) else 1.0
    xp = namespace_of(c)
    values = c if xp is None else xp.peek(c)
    return values is None or bool(np.all(np.abs(np.real(values)) <= _moderate(A)))


def _moderate(A: LinearOperator) -> float:
    return -2.0 * math.log(A.xp.eps(A.dtype))  # 72 in double, 32 in single precision


@rule(exp, Sum[ScaledIdentity | Identity, ...], when=shift_is_moderate)  # type: ignore[misc]
def exp_shifted(A: Any, method: Any) -> LinearOperator:
    """exp(A + c I) = e^c exp(A)"""
    xp = A.xp
    c, rest = split_shift(A)
    c = xp.asarray(c, dtype=None if namespace_of(c) is not None else A.dtype, device=A._context.device)
    fine = xp.all(xp.abs(xp.real(c)) <= _moderate(A))
    report_status(xp, xp.where(fine, int(Status.SUCCESS), int(Status.INACCURATE)), message="e^c overflows or vanishes")
    return Scaled(xp.exp(c), exp(rest, method))


# ---------------------------------------------------------------------------------------------------- transposes and inverses


@rules(ALL, Transpose)
def of_transpose(A: Any, call: Call) -> LinearOperator:
    """f(A^T) = f(A)^T"""
    square_size(call.f.name, A, f"{call.f.name}(A)", "")
    return call.again(A.A).T


@rules(ALL, Adjoint)
def of_adjoint(A: Any, call: Call) -> LinearOperator:
    """f(A^H) = f(A)^H if f has no cut or A is real"""
    square_size(call.f.name, A, f"{call.f.name}(A)", "")
    if not A.is_complex:
        return call.again(A.A).T
    return call.again(A.A).H if call.f.mirrored else call.base(A)


@rules((exp, power), Conjugate)
def of_conjugate(A: Any, call: Call) -> LinearOperator:
    """f(conj(A)) = conj(f(A)) if f has no cut"""
    square_size(call.f.name, A, f"{call.f.name}(A)", "")
    return call.again(A.A).conj() if call.f.mirrored else call.base(A)


@rule(power, Inverse)
def power_inverse(A: Any, p: Any, method: Any) -> LinearOperator:
    """(A^-1)^p = A^-p for positive A or whole p"""
    positive = A.properties & POSITIVE
    if not positive and as_integer(p) is None:
        return stand_in(A) if planning() else power.base(A, p, method)
    return power(A.A._claim(positive), -p, method)


@rule(sqrt, PSD[Inverse])
def sqrt_inverse(A: Any, method: Any) -> LinearOperator:
    """(A^-1)^(1/2) = A^(-1/2) for positive A"""
    return isqrt(A.A._claim(A.properties & POSITIVE), method)


@rule(isqrt, PSD[Inverse])
def isqrt_inverse(A: Any, method: Any) -> LinearOperator:
    """(A^-1)^(-1/2) = A^(1/2) for positive A"""
    return sqrt(A.A._claim(A.properties & POSITIVE), method)


@rule(log, PSD[Inverse])
def log_inverse(A: Any, method: Any) -> LinearOperator:
    """log(A^-1) = -log(A) for positive A"""
    return Scaled(-1.0, log(A.A._claim(A.properties & POSITIVE), method))
