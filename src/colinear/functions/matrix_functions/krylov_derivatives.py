"""What the derivatives of f(A) B by `Krylov()` are computed by: runs on columns in groups, f of
the small matrices, and how it went."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ... import backends
from ...autodiff.functions import divided_differences, times_inverse
from ...autodiff.krylov import Dual
from ...backends import Array, adjoint, program
from ...info import Info
from ...methods import Krylov, roots
from ...methods.krylov_derivatives import adjoint_factors, tangent_times
from ...operators import LinearOperator
from ...operators.tree import directional, pullback
from ...properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from ...status import Status, deliver, first_failure, known_status
from ..common import ignore_float_errors, is_half


@dataclass(frozen=True)
class KrylovRuns:
    """The maps of `autodiff.krylov`, for a `Scalar` f. Failures are warned of: nobody else will,
    as the answer itself is there."""

    f: Any
    method: Krylov

    @property
    def name(self) -> str:
        return str(self.f.name)

    def times(self, A: LinearOperator, X: Array, transposed: bool = False) -> Array:
        """f(A) X, or f(A^T) X."""
        xp = backends.namespace_of(X)
        Y, error, steps, status, _ = krylov._product(
            xp, self.f, self.method, A.T if transposed else A, X
        )
        return xp.astype(self._reported(xp, Y, error, steps, status), X.dtype)

    def along(self, A: LinearOperator, moved: tuple, X: Array, transposed: bool = False) -> Array:
        """L(A, dA) X, or L(A^T, dA^T) X."""
        xp, groups = backends.namespace_of(X), []
        for group in self._groups(xp, A, X):
            parts, run, ended = self._run(_along, (transposed,), A, tuple(moved), group)
            Y = self._reported(xp, *ended)
            B = _part(A.T if transposed else A, parts)
            for _ in range(parts - 1):  # d(e^B e^B x) = e^B d(e^B x) + L(B, dB) e^B x
                group = self.times(B, group)
                more = self._reported(xp, *run(A, tuple(moved), group))
                Y = self.times(B, Y) + more
            groups.append(Y)
        return xp.astype(xp.concat(groups, axis=-1), X.dtype)

    def back(self, A: LinearOperator, X: Array, G: Array) -> tuple[Array, ...]:
        """What G, a cotangent of f(A) X, is for the leaves of A that move."""
        xp, pulled = backends.namespace_of(X), []
        for part, cotangent in zip(self._groups(xp, A, X), self._groups(xp, A, G), strict=True):
            parts, run, (W, V, *ended) = self._run(_back, (), A, part, cotangent)
            B, left = _part(A, parts), [cotangent]
            for _ in range(parts - 1):  # of y = e^B ... e^B x, each factor has its own x and g
                left.append(xp.conj(self.times(B, xp.conj(left[-1]), transposed=True)))
            for i, g in enumerate(reversed(left)):
                if parts > 1:
                    W, V, *ended = run(A, part, g)
                    part = self.times(B, part) if i < parts - 1 else part
                W = self._reported(xp, W, *ended)
                found = pullback(A, functools.partial(_times, xp, V, W.dtype, parts), W)
                pulled.append([x for x in found if x is not None])
        return tuple(functools.reduce(operator.add, each) for each in zip(*pulled, strict=True))

    def _run(self, f: Any, static: tuple, A: LinearOperator, *arrays: Any) -> tuple[int, Any, Any]:
        """A run in as few parts as it takes: how many, the run as a program, and what it found."""
        xp = A.xp
        for parts in self._partitions():
            run = program(xp.name, f, self.f, self.method, self._steps(A), *static, parts)
            found = run(A, *arrays)
            if not krylov.ran_out(xp, found[-1]):
                break
        return parts, run, found

    def _partitions(self) -> list[int]:
        """In how many parts an exponential may be taken, where the steps are too few for one."""
        is_free = self.f.name == "exp" and self.method.max_iters is None
        return [2**i for i in range(krylov.HALVINGS + 1 if is_free else 1)]

    def _steps(self, A: LinearOperator) -> int:
        # derivatives converge a little later
        return min(A.shape[-1], self.method.max_iters or krylov.STEPS + krylov.STEPS // 2)

    def _groups(self, xp: Any, A: LinearOperator, X: Array) -> list[Array]:
        """Columns for which there is room: four bases are kept for each."""
        if isinstance(A, Dual) and self.f.name == "apply":
            raise NotImplementedError(
                "apply: products by Krylov() have no second derivatives with respect to A, since "
                "nothing is known of f but its values. "
                "Use Eigh(), or exp, log, sqrt, isqrt or power."
            )
        width = max(1, krylov._sizes(A, X, self.method)[1] // 4)
        return [X[..., i : i + width] for i in range(0, X.shape[-1], width)]

    def _reported(self, xp: Any, Y: Array, error: Array, steps: Any, status: Any) -> Array:
        """Y, a product for a derivative, which warns if it failed."""
        info = Info(
            known_status(xp, status),
            matvecs=steps,
            error=error,
            method="Krylov",
            function=self.f.name,
            message="This was a product for a derivative.",
        )
        return deliver(info, "warn", Y)


def _times(xp: Any, V: Array, dtype: Any, parts: int, A: LinearOperator) -> Array:
    return xp.astype(_part(A, parts) @ V, dtype)


def _part(A: LinearOperator, parts: int) -> LinearOperator:
    return A if parts == 1 else (1 / parts) * A


# --------------------------------------------------------------------------------------------------


def _along(
    xp: Any,
    f: Any,
    method: Krylov,
    m: int,
    transposed: bool,
    parts: int,
    A: LinearOperator,
    moved: tuple,
    X: Array,
) -> Any:
    side = lambda A: _part(A.T if transposed else A, parts)
    (start,), noise, (size,), tol = starts_of(xp, method, X)
    multiply = by_rows(xp, side(A).__matmul__)
    move = by_rows(xp, lambda X: directional(A, lambda A: side(A) @ X, moved)[1])
    with ignore_float_errors(xp):
        found = tangent_times(
            xp, multiply, move, start, size, noise, _corner(xp, f, A, False), m=m, tol=tol
        )
    status = _status(xp, found.done, found.finite)
    return xp.matrix_transpose(found.X), found.error, found.steps, status


def _back(
    xp: Any, f: Any, method: Krylov, m: int, parts: int, A: LinearOperator, X: Array, G: Array
) -> Any:
    A = _part(A, parts)
    (start, cotangent), noise, (size, other), tol = starts_of(xp, method, X, G)
    with ignore_float_errors(xp):
        found = adjoint_factors(
            xp,
            by_rows(xp, A.__matmul__),
            by_rows(xp, A.H.__matmul__),
            start,
            cotangent,
            size * other,
            noise,
            _corner(xp, f, A, True),
            m=m,
            tol=tol,
        )
    W, V, error, steps, done, finite = found
    columns = [
        xp.matrix_transpose(xp.reshape(F, (*F.shape[:-3], F.shape[-3] * F.shape[-2], F.shape[-1])))
        for F in (W, V)
    ]
    return *columns, error, steps, _status(xp, done, finite)


def starts_of(
    xp: Any, method: Krylov, *columns: Array
) -> tuple[list[Array], Array, list[Array], float]:
    """Columns as rows, random ones for those that are zero; random numbers; the norms of the
    columns; the tolerance."""
    work = xp.float32 if is_half(xp, columns[0].dtype) else columns[0].dtype
    given = [xp.astype(xp.matrix_transpose(X), work) for X in columns]
    noise = xp.normal(
        xp.generator(method.seed), given[0].shape, dtype=work, device=xp.device_of(given[0])
    )
    sizes = [xp.vector_norm(B, axis=-1) for B in given]
    starts = [
        xp.where((size > 0)[..., None], B, noise) for B, size in zip(given, sizes, strict=True)
    ]
    return starts, noise, sizes, max(method.tolerance(xp, columns[0].dtype), 4 * xp.eps(work))


def by_rows(xp: Any, multiply: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Products with all columns at once, which the run holds by rows, (*batch, columns, n)."""
    return lambda X: xp.matrix_transpose(multiply(xp.matrix_transpose(X)))


def _status(xp: Any, done: Any, finite: Any) -> Any:
    return first_failure(xp, (finite, Status.NONFINITE), (done, Status.MAX_ITERATIONS))


# --------------------------------------------------------------------------------------------------


def jostled(xp: Any, H: Array) -> Array:
    """H moved by a few roundings."""
    j = xp.arange(H.shape[-1], dtype=xp.real_dtype(H.dtype), device=xp.device_of(H))
    pattern = xp.cos(1 + j[:, None] + 3 * j * j)
    return H + xp.astype(
        4 * xp.eps(H.dtype) * xp.max(xp.abs(H), axis=(-2, -1), keepdims=True) * pattern, H.dtype
    )


def relative_change(xp: Any, X: Array, Y: Array, axes: int) -> Array:
    """|X - Y| / |X| along the last axes."""
    change, size = (
        xp.sqrt(xp.sum(xp.abs(Z) ** 2, axis=tuple(range(-axes, 0)))) for Z in (X - Y, X)
    )
    return change / xp.where(size == 0, 1, size)


def _corner(
    xp: Any, f: Any, A: LinearOperator, conjugated: bool
) -> Callable[..., tuple[Array, Array, Array]]:
    """The corner of f([S C; 0 T]), as X e^s, with what it is wrong by at least; if `conjugated`,
    of conj(f(conj(.)))."""
    positive = bool(A.properties & POSITIVE_SEMIDEFINITE)
    of = (
        functools.partial(_of_hermitian, xp, f, positive)
        if A.properties & SELF_ADJOINT
        else functools.partial(_of_any, xp, f)
    )
    if not conjugated:
        return of

    def flipped(*blocks: Array) -> tuple[Array, Array, Array]:
        X, scale, doubt = of(*(xp.conj(block) for block in blocks))
        return xp.conj(X), scale, doubt

    return flipped


def _of_hermitian(
    xp: Any, f: Any, positive: bool, S: Array, C: Array, T: Array
) -> tuple[Array, Array, Array]:
    """Q (D ∘ Q^H C P) P^H for S = Q Λ Q^H and T = P M P^H, with the divided differences D_ij =
    f[λ_i, μ_j]."""
    (left, Q), (right, P) = (xp.eigh((B + adjoint(xp, B)) / 2) for B in (S, T))
    scale = 0 * left[..., 0]
    if f.name == "exp":
        scale = xp.maximum(xp.max(left, axis=-1), xp.max(right, axis=-1))
        left, right = left - scale[..., None], right - scale[..., None]
    if f.principal and positive:  # what is negative is rounding
        size = xp.maximum(xp.max(xp.abs(left), axis=-1), xp.max(xp.abs(right), axis=-1))[..., None]
        left, right = (xp.maximum(x, xp.eps(x.dtype) * size) for x in (left, right))
    elif f.principal:
        left, right = (xp.astype(x, xp.complex_dtype(x.dtype)) for x in (left, right))
    D = divided_differences(xp, lambda x: f.of(xp, x), left[..., :, None], right[..., None, :])
    inside = D * xp.matmul(adjoint(xp, Q), xp.matmul(C, P))
    Q, P = (xp.astype(x, xp.result_type(x.dtype, inside.dtype)) for x in (Q, P))
    return xp.matmul(Q, xp.matmul(inside, adjoint(xp, P))), scale, 0 * scale


def _of_any(xp: Any, f: Any, S: Array, C: Array, T: Array) -> tuple[Array, Array, Array]:
    """By the algorithms that need no eigenvectors; for functions of which nothing is known, by
    divided differences, and what the eigenvectors are worth shows when S and T are moved by a
    few roundings."""
    j, scale = S.shape[-1], 0 * xp.real(S[..., 0, 0])
    if f.principal or f.name == "apply":
        S, C, T = (xp.astype(B, xp.complex_dtype(B.dtype)) for B in (S, C, T))
    if f.name == "apply":
        X = _by_eigenvectors(xp, f, S, C, T)
        moved = _by_eigenvectors(xp, f, jostled(xp, S), C, jostled(xp, T))
        return X, scale, relative_change(xp, X, moved, 2)
    if f.name == "exp":
        scale = xp.maximum(*(xp.max(xp.real(xp.eigvals(B)), axis=-1) for B in (S, T)))
        shift = xp.astype(scale, S.dtype)[..., None, None] * xp.eye(
            j, dtype=S.dtype, device=xp.device_of(S)
        )
        S, T = S - shift, T - shift
    # C is given the size of S, lest it steer the algorithm.
    size, other = (xp.max(xp.abs(B), axis=(-2, -1), keepdims=True) for B in (C, S))
    factor = xp.where(size > 0, size, 1) / xp.where(other > 0, other, 1)
    upper, lower = xp.concat([S, C / factor], axis=-1), xp.concat([0 * S, T], axis=-1)
    whole = _of_matrix(xp, f, xp.concat([upper, lower], axis=-2))
    return factor * whole[..., :j, j:], scale, 0 * scale


def _by_eigenvectors(xp: Any, f: Any, S: Array, C: Array, T: Array) -> Array:
    (left, Q), (right, P) = xp.eig(S), xp.eig(T)
    D = divided_differences(xp, lambda x: f.of(xp, x), left[..., :, None], right[..., None, :])
    inside = D * xp.lu_solve(*xp.lu_factor(Q), xp.matmul(C, P))
    return times_inverse(xp, xp.matmul(Q, inside), P)


def _of_matrix(xp: Any, f: Any, M: Array) -> Array:
    if f.name == "exp":
        return xp.expm(M)
    if f.name in ("sqrt", "isqrt"):
        return roots.square_root(xp, M)[0 if f.name == "sqrt" else 1]
    if f.name == "log":
        return roots.logarithm(xp, M)
    if isinstance(f.exponent, int):
        return roots.integer_power(xp, M, f.exponent)
    return xp.expm(f.exponent * roots.logarithm(xp, M))


# Its products are differentiated here.
from . import krylov
