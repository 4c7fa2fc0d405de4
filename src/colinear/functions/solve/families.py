"""The inverse of families: known, by substitution, by Fourier transforms, along bands, by sparse
elimination."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ...backends import Array
from ...dispatch import Choice, Cost, perform, rule
from ...factors.dense import TriangularFactor, probe_of
from ...factors.host import FixedFactor, SparseInverse, SparseSolver, gohberg_semencul
from ...factors.inverse import Implicit, Inverse
from ...factors.iterated import Attempts
from ...factors.runs import multiplies_by_iteration
from ...factors.structured import BandedFactor, FourierFactor, lapack_band, tridiagonal_factor
from ...info import Info, planning, recording, report
from ...methods import CG, BiCGSTAB
from ...methods.sparse_direct import SparseLU
from ...methods.structured import BandedLU, columns_of_inverse
from ...operators import (
    FFT,
    Banded,
    Circulant,
    Convolution,
    Diagonal,
    GaussNewton,
    Hessian,
    Householder,
    Identity,
    Jacobian,
    LinearOperator,
    LowRank,
    Permutation,
    Projection,
    ScaledIdentity,
    Sine,
    Sparse,
    Toeplitz,
    Triangular,
    Tridiagonal,
)
from ...operators.banded import band_widths
from ...operators.convolution import periodic, periodic_column, periodic_spectrum, transform_on_grid
from ...operators.divided import is_divided
from ...operators.rewrites import is_compact
from ...operators.shown import (
    as_sum_of_lines,
    assembled,
    diagonals_in_program,
    with_diagonals_in_program,
)
from ...properties import POSITIVE_SEMIDEFINITE
from ...rates import rates_of
from ...status import Status, is_unseen
from ..common import (
    MARGIN,
    have_failed,
    host_array,
    host_value,
    identity_like,
    ignore_float_errors,
    is_square,
    largest_rank,
    reaches_host,
    reciprocal,
    reciprocal_spectrum,
    report_all,
    report_failure,
    report_values,
    reports_nonfinite,
    to_computing_dtype,
    values_are_seen,
)
from .auto import (
    cost_of_iteration,
    is_automatic,
    is_left_to_residual,
    iterated,
    limits,
    looks_definite,
    with_symmetry_of_entries,
)
from .cost import prefers_iteration, sparse_work
from .inverse import (
    are_small,
    check_square,
    column_norms,
    fits_as_a_whole,
    inv,
    inverse,
    kept,
    no_inverse,
)
from .trials import attempts


@rule(inv, Identity)
def inv_identity(A: Any, method: Any) -> LinearOperator:
    """I^-1 = I"""
    return A


@rule(inv, ScaledIdentity)
def inv_scaled_identity(A: Any, method: Any) -> LinearOperator:
    """(c I)^-1 = c^-1 I"""
    return kept(A, A._replace(c=reciprocal(A.c)))


@rule(inv, Diagonal)
def inv_diagonal(A: Any, method: Any) -> LinearOperator:
    """diag(d)^-1 = diag(1 / d)"""
    return kept(A, Diagonal._of(reciprocal(A.d)))


@rule(inv, Permutation)
def inv_permutation(A: Any, method: Any) -> LinearOperator:
    """P^-1 = P^T"""
    return A.T


@rule(inv, FFT | Sine | Householder)
@reports_nonfinite
def inv_transform(A: Any, method: Any) -> LinearOperator:
    """Q^-1 = Q^H"""
    return A.H


@rule(inv, Projection)
@reports_nonfinite
def inv_projection(A: Any, method: Any) -> LinearOperator:
    """Q Q^H is its own pseudoinverse, and singular unless Q is square"""
    n, rank = A.Q.shape[-2:]
    if rank < n:
        report(Info(Status.SINGULAR, message=f"a projection of rank {rank}, smaller than {n}"))
    return A


def rank_is_below_size(A: Any) -> bool:
    """Whether the factors are too narrow for an invertible matrix."""
    return is_square(A) and largest_rank(A) < A.shape[-1]


@rule(inv, LowRank, when=rank_is_below_size)
def inv_low_rank(A: Any, method: Any) -> LinearOperator:
    """U C V^H of a rank below n is singular: its pseudoinverse, and a status that says so"""
    from ..least_squares import pinv

    why = f"its rank is at most {A.U.shape[-1]}, smaller than {A.shape[-1]}"
    report(Info(Status.SINGULAR, message=why))
    return pinv(A)


@rule(inv, Triangular)
@reports_nonfinite
def inv_triangular(A: Any, method: Any) -> LinearOperator:
    """T^-1 b by substitution"""
    check_square(A)
    if not A.unit:
        report_values(A.xp, A.xp.diagonal(A.A))
    return Inverse(A, TriangularFactor._of(A.A, A.lower, A.unit))


def wraps_around(A: Any) -> bool:
    """Whether the boundary is periodic."""
    return bool(A.boundary == "wrap")


@rule(inv, Circulant)
@rule(inv, Convolution, when=wraps_around, name="inv_convolution")
def inv_circulant(A: Any, method: Any) -> LinearOperator:
    """C^-1 = F^-1 diag(1 / F c) F, by fast Fourier transforms over the grid"""
    if 0 in A.shape:
        return A
    xp, is_real, on_mesh = A.xp, not A.is_complex, is_divided(A, A.xp)
    if on_mesh:
        column, grid = periodic_column(A)
        symbol = transform_on_grid(A, column, grid)
    else:
        symbol, grid = periodic_spectrum(A)
    frequencies = xp.reshape(symbol, (*A.batch_shape, -1))
    reciprocals = xp.reshape(reciprocal_spectrum(xp, frequencies), symbol.shape)
    if not on_mesh:
        return Inverse(A, FourierFactor._of(reciprocals, tuple(grid), is_real))
    column = transform_on_grid(A, reciprocals, grid, inverse=True)
    return Inverse(A, periodic(A, xp.real(column) if is_real else column, grid))


@rule(inv, Tridiagonal, direct=True)
def inv_tridiagonal(A: Any, method: Any) -> LinearOperator:
    """T^-1 b by elimination along three diagonals, in linear time"""
    return judged_by_growth(A, tridiagonal_factor(A), A.diagonals)


@rule(inv, Banded, when=is_compact, direct=True)
def inv_banded(A: Any, method: Any) -> LinearOperator:
    """B^-1 b by elimination within the band"""
    widths, xp = band_widths(A), A.xp
    band = lapack_band(A, *widths)
    factor: LinearOperator = BandedFactor._of(band, widths)
    # JAX compiles anew for factors that the host keeps, and a device would wait for each use of
    # them, so these eliminate for each block of columns
    if not (xp.is_functional or is_unseen(band) or 0 in A.shape):
        values = host_array(xp, band)
        with contextlib.suppress(ArithmeticError):
            lu = BandedLU(values.reshape(*values.shape[:-2], -1), A.shape[-1], *widths)
            factor = Implicit._of(A, FixedFactor._of(lu, "N", A.shape, A._context), None)
    return judged_by_growth(A, factor, A.diagonals)


def judged_by_growth(A: LinearOperator, factor: LinearOperator, entries: Any) -> LinearOperator:
    """The inverse by `factor`; reports if it grows, unless that is left to the residual of a
    solve."""
    if not is_left_to_residual(A):
        report_growth(A, factor, entries)
    return Inverse(A, factor)


def report_growth(A: LinearOperator, factor: LinearOperator, entries: Any) -> Array:
    """Report SINGULAR where A^-1 applied to a vector without structure grows as the inverse of a
    singular matrix does.

    `entries`: arrays that hold the entries of A. Returns the growth, 1 where A is singular to
    working accuracy.
    """
    xp, n = A.xp, A.shape[-1]
    if 0 in A.shape:
        return xp.zeros(())
    with ignore_float_errors(xp):
        p = probe_of(A)
        x = factor._matmat(p)
        largest = xp.max(xp.stack([xp.max(xp.abs(e)) for e in entries if 0 not in e.shape]))
        scale = MARGIN * n * xp.eps(A.dtype) * largest / xp.vector_norm(p)
        growth = scale * column_norms(xp, x)[..., 0]
        finite = xp.isfinite(largest)
        report_failure(xp, (finite, Status.NONFINITE), (growth < 1, Status.SINGULAR))
    return growth


# Inverses from values that the host can see: of Toeplitz matrices by fast transforms, of sparse
# ones by sparse elimination.
#
# Under tracing values cannot be seen, and the matrix is formed; but a program on the CPU calls the
# host for the elimination of a sparse one.


SMALL_SPARSE = 200  # rows below which a program had better form the matrix than call the host
SMALL_TOEPLITZ = 220  # rows up to which nothing is faster than the matrix
NARROW_BAND = 32  # diagonals up to which elimination beats the Fourier transform
LARGEST_TRACED = 2048  # rows of a traced Toeplitz matrix that is still formed


def is_large(A: Any) -> bool:
    """Whether A is square, on one device and too large to be formed lightly. Values that JAX will
    see only when it runs the program are taken to the host then."""
    m, n = A.shape[-2:]
    if A.spread is not None:
        return False
    if not A.xp.is_traced(A._diagonals()):
        return m == n > SMALL_TOEPLITZ and 0 not in A.shape
    return m == n > LARGEST_TRACED and A.xp.name == "jax"


@rule(inv, Toeplitz, when=is_large, like=identity_like, direct=True)
def inv_toeplitz(A: Any, method: Any) -> LinearOperator:
    """T^-1 from its first and last columns (Gohberg and Semencul), by fast Fourier transforms;
    along the band if that is narrow"""
    xp, n = A.xp, A.shape[-1]
    values = host_value(xp, to_computing_dtype(xp, A._diagonals()))  # None under tracing
    used: Any = () if values is None else used_diagonals(values)
    if is_narrow_band(used, n):
        offsets = tuple(range(n - 1 - used[-1], n - used[0]))
        held = xp.stop_gradient(A._diagonals())
        lines = tuple(
            xp.broadcast_to(held[..., n - 1 - k, None], (*A.batch_shape, n - abs(k)))
            for k in offsets
        )
        solver: Any = inv_banded(Banded._of(lines, offsets, n, n), method)
        return Inverse(A, Implicit._of(A, solver.factor, None))
    if values is not None and not np.isfinite(values).all():
        return no_inverse(A, Info(Status.NONFINITE))
    solver, accurate = _from_columns(A)
    with recording() as reports:
        growth = report_growth(A, solver, (A._diagonals(),))
    # The formula loses as many digits as the condition has; a factorisation keeps the residual
    # small.
    is_good = host_value(xp, xp.all(accurate & (growth < 100 * math.sqrt(xp.eps(A.dtype)))))
    if is_good is not None and not is_good and fits_as_a_whole(A):
        return perform(inverse(A, method))
    why = "the first and last columns of the inverse were not found to the accuracy needed"
    report_failure(xp, (accurate, Status.INACCURATE), message=why)
    report_all(reports)
    return Inverse(A, Implicit._of(A, solver, None))


def _from_columns(A: Any) -> tuple[LinearOperator, Array]:
    """T^-1 by its first and last columns, which the host finds, and whether they are so accurate,
    and their common entry so far from zero, that they serve."""
    xp, n = A.xp, A.shape[-1]
    diagonals = xp.stop_gradient(to_computing_dtype(xp, A._diagonals()))[..., None]
    both = xp.map_on_host(_both_columns, diagonals)[..., 0]
    x, y = both[..., :n], xp.concat([both[..., n:], both[..., :1]], axis=-1)
    size = xp.abs(x)
    rows = xp.arange(n, device=A._context.device)
    ends = xp.stack([rows == 0, rows == n - 1], axis=-1)  # e_1 and e_n
    errors = xp.astype(ends, x.dtype) - A.detach() @ xp.stack([x, y], axis=-1)
    residual = xp.vector_norm(errors, axis=(-2, -1))
    # x_0 = 0 if the minor of size n - 1 is singular
    serves = size[..., 0] > 1e-8 * xp.max(size, axis=-1)
    accurate = (residual < math.sqrt(xp.eps(x.dtype))) & serves
    return gohberg_semencul(xp, x, y), accurate


def used_diagonals(values: Any) -> Any:
    """Which of the diagonals, from the last to the first, are not zero in all matrices of a
    batch."""
    return np.flatnonzero(np.any(values.reshape(-1, values.shape[-1]) != 0, axis=0))


def is_narrow_band(used: Any, n: int) -> bool:
    """Whether they are so few, around the main one, that elimination along them is faster than
    Fourier transforms."""
    return bool(len(used) and used[-1] - used[0] <= NARROW_BAND and used[0] < n <= used[-1] + 1)


def _both_columns(diagonals: Any) -> Any:
    """T^-1 e_1 and T^-1 e_n end to end, but the last entry of the latter, which is the first of
    the former."""
    n = (diagonals.shape[-2] + 1) // 2
    wide_values = diagonals.astype(np.result_type(diagonals, np.float64)).reshape(-1, 2 * n - 1)
    found = [columns_of_inverse(each[n - 1 :], each[n - 1 :: -1]) for each in wide_values]
    return np.reshape([np.concatenate([x, y[:-1]]) for x, y, _ in found], diagonals.shape).astype(
        diagonals.dtype
    )


def is_sparse_and_seen(A: Any) -> bool:
    """Whether A is square, mostly zeros, and its values can be seen on the host."""
    m, n = A.shape[-2:]
    is_sparse = m == n and 4 * A.nnz <= n * n and 0 not in A.shape
    return is_sparse and not A.xp.is_traced(A.data)


def fills_in(A: Any, method: Any = None) -> bool:
    """Whether sparse elimination is out of reach, or dearer by far than an iteration, since the
    factors fill in. (With fewer entries than rows A is singular, which elimination says at
    once.)"""
    return (
        is_automatic(method)
        and is_sparse_and_seen(A)
        and A.nnz >= A.shape[-1]
        and as_sum_of_lines(A) is None
        and prefers_iteration(with_symmetry_of_entries(A), partial(sparse_work, A))
    )


@rule(
    inv,
    Sparse,
    when=fills_in,
    cost=lambda A: cost_of_iteration(with_symmetry_of_entries(A)),
    like=identity_like,
    direct=True,
)
def inv_filling_sparse(A: Any, method: Any) -> LinearOperator:
    """S^-1 b by an iteration: the factors would fill in"""
    return Inverse(A, attempts(with_symmetry_of_entries(A), method))


def is_sparse_in_program(A: Any, method: Any = None) -> bool:
    """Whether A is square and sparse, only a running program knows its values, the program can
    call the host, and elimination is expected to be cheaper than an iteration."""
    if not (A.xp.is_traced(A.data) and is_automatic(method)):
        return False
    n = A.shape[-1]
    is_sparse = A.shape[-2] == n >= SMALL_SPARSE and 4 * A.nnz <= n * n
    return (
        is_sparse
        and reaches_host(A.xp, A.data)
        and not prefers_iteration(A, partial(sparse_work, A))
    )


def is_eliminated_on_host(A: Any, method: Any = None) -> bool:
    """Whether the host eliminates A, now or when a program runs."""
    return is_sparse_and_seen(A) or is_sparse_in_program(A, method)


LINES_FLOPS = 50.0  # for each point of a grid and each doubling of it, of transforms as measured


def work_of_inverse(A: Any) -> Cost:
    """The cost of sparse elimination, or of transforms where the entries show a sum of lines."""
    if as_sum_of_lines(A) is None:
        return sparse_work(A)
    n, rates = A.shape[-1], rates_of(A)
    flops = LINES_FLOPS * n * math.log2(n)
    return Cost(flops, 16.0 * n, flops / rates.fourier + 10 * rates.call)


@rule(inv, Sparse, when=is_eliminated_on_host, cost=work_of_inverse, direct=True)
def inv_sparse(A: Any, method: Any) -> Any:
    """S^-1 b by sparse elimination, the rows and columns in an order that keeps the factors
    sparse; that of T_1 ⊕ ... ⊕ T_d where the entries show that S is this sum of lines"""
    lines = as_sum_of_lines(A) if is_automatic(method) else None
    if lines is None:
        return Choice(lambda: eliminate_sparse(A, method), like=lambda: identity_like(A))
    known = lambda: inv(lines, method)
    return Choice(lambda: Inverse._of(A, Implicit._of(A, known(), None)), like=known)


def eliminate_sparse(A: Any, method: Any) -> LinearOperator:
    """The inverse by sparse elimination on the host, now or when a program runs; reports how it
    went."""
    xp, structure = A.xp, A.structure
    if xp.is_traced(A.data):
        solver = SparseSolver(structure, bool(A.properties & POSITIVE_SEMIDEFINITE))
        in_program = SparseInverse._of(to_computing_dtype(xp, A.data), solver, "N")
        report_growth(A, in_program, (A.data,))
        return Inverse(A, Implicit._of(A, in_program, None))
    if not np.isfinite(host_array(xp, A.data)).all():
        return no_inverse(A, Info(Status.NONFINITE, method="SuperLU"))
    found = eliminated(A)
    if found is not None:
        return found
    if fits_as_a_whole(A):
        return perform(inverse(A, method))  # which shows the rank
    why = "a pivot is exactly zero"
    return no_inverse(A, Info(Status.SINGULAR, method="SuperLU", message=why))


def eliminated(A: Sparse) -> LinearOperator | None:
    """The inverse by sparse elimination; None where a pivot is zero. Reports how large it is."""
    xp, structure = A.xp, A.structure
    values = host_array(xp, A.data)
    definite = looks_definite(A)
    for symmetric in (True, False) if definite or structure.is_symmetric else (False,):
        ways = definite and symmetric, symmetric
        place = ("order", *ways, values.shape[:-1])
        order = structure.memo.get(place)
        try:
            lu = SparseLU(values, structure.indptr, structure.columns, *ways, order=order)
        except ArithmeticError:
            continue
        factor, p = FixedFactor._of(lu, "N", A.shape, A._context), probe_of(A)
        # without pivoting it is stable for a positive definite matrix, else perhaps not
        residual = p - A.detach() @ factor._matmat(p) if symmetric else None
        if residual is None or are_small(xp, residual, p, math.sqrt(xp.eps(A.dtype))):
            if not structure.is_triangular:  # which is in order
                structure.memo[place] = lu.order  # of the pattern: it serves other values too
            report_growth(A, factor, (A.data,))
            return Inverse(A, Implicit._of(A, factor, None))
    return None


def is_assembled(A: Any, method: Any = None) -> bool:
    """Whether the choice is ours, and few products show that A is a sparse matrix, or will when a
    program runs."""
    if not is_automatic(method) or not is_square(A):
        return False
    if assembled(A) is not None:
        return True
    return all(reaches_host(A.xp, x) for x in A.arrays()) and diagonals_in_program(A) is not None


@rule(inv, Jacobian | Hessian | GaussNewton, when=is_assembled)
def inv_assembled(A: Any, method: Any) -> LinearOperator:
    """A^-1 = S^-1 of the sparse matrix S that has the products of A"""
    S = assembled(A)
    if S is None:
        return Inverse(A, near_in_program(A, method))
    S = S._claim(A.properties)
    with recording(detailed=True) as reports:
        found = inv(S, method) if planning() or fills_in(S, method) else eliminated(S)
    is_recorded = not values_are_seen(A)
    is_lost = is_recorded and found is not None and multiplies_by_iteration(found)
    if found is None or is_lost or have_failed(reports):
        return Inverse(A, attempts(A, method))  # which may solve what is singular and consistent
    report_all(reports)
    return Inverse(A, Implicit._of(A, found, None)) if is_recorded else found


def near_in_program(A: Any, method: Any) -> LinearOperator:
    """A^-1 by an iteration, preconditioned by the inverse of the sparse matrix that A should be: one
    step where it is, and the residual tells."""
    offsets: Any = diagonals_in_program(A)
    S, is_positive = (
        with_diagonals_in_program(A, offsets),
        bool(A.properties & POSITIVE_SEMIDEFINITE),
    )
    M = SparseInverse._of(S.data, SparseSolver(S.structure, is_positive, False), "N")
    # whose steps compile in half the time of those of GMRES
    chosen = CG() if is_positive else BiCGSTAB()
    return Attempts._of((iterated(A, replace(chosen, preconditioner=M, **limits(method))),))
