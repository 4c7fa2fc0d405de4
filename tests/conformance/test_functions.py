"""Every function of every operator, in every framework, dtype and batch shape, against the dense answer in double precision.

Where a function has no meaning (a rectangular system) its documented error is expected, where its answer does not exist (the inverse
of a singular operator) a failing status. Answers that are not unique (eigenvectors, null spaces, logarithms on the branch cut) are
checked by the equations that define them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from support.composed_operators import adjoint
from support.frameworks import by_jax_itself
from support.registry import COMBINATIONS, FULLY, Case, cases, ways

import colinear as co

FUNCTIONS: dict[str, Callable[[Case], None]] = {}


def checks(f: Callable[[Case], None]) -> Callable[[Case], None]:
    """The check of the function whose name follows `check_`."""
    FUNCTIONS[f.__name__.removeprefix("check_")] = f
    return f


# JAX itself compiles for every new shape, so what takes the base case is left to these makers: the base case sees a matrix, and
# that the matrix is right is seen in test_operators.py. COLINEAR_FULL=1 leaves nothing out.
REPRESENTATIVES = {
    "dense",
    "dense_tall",
    "dense_wide",
    "zero_square",
    "annotated_self_adjoint",
    "annotated_psd_singular",
    "annotated_pd",
}
# The functions that others are read off; their rules are these others' rules.
READ_OFF = {
    "solve": "inv",
    "solve_and_logdet": "inv",
    "det": "slogdet",
    "logdet": "slogdet",
    "eigmax": "eig",
    "eigmin": "eig",
    "trace": "diag",
}


def takes_the_base_case(name: str, case: Case) -> bool:
    functions = (getattr(co, name), getattr(co, READ_OFF.get(name, name)))
    return all(
        getattr(f, "find", None) is not None and f.find(case.operator).is_base for f in functions
    )


SKETCHES = {"nystrom", "rp_cholesky", "range_finder", "interpolative", "cur"}


def is_compiled(name: str, backend: str, way: Any) -> bool:
    """Whether JAX compiles a function: all where it computes itself, and always what draws random numbers."""
    return way is by_jax_itself or (backend == "jax" and name in SKETCHES)


def is_tested_in_jax(name: str, maker: str, case: Case) -> bool:
    """Whether a function is computed by JAX itself: not what is read off another, nor what others represent."""
    if READ_OFF.get(name) in ("slogdet", "eig", "diag"):
        return False
    return maker in REPRESENTATIVES or not takes_the_base_case(name, case)


# ---------------------------------------------------------------------------------------------------- comparing


def host(x: Any) -> np.ndarray:
    """An array or operator as NumPy's, in double precision."""
    if isinstance(x, co.LinearOperator):
        x = x.to_dense()
    xp = co.backends.namespace_of(x)
    x = np.asarray(x if xp is None else xp.to_numpy(x))
    return x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)


def close(case: Case, got: Any, wanted: Any, what: str, worse: float = 1.0) -> None:
    """Equal to roundoff, relative to the largest entry, times how much worse the problem makes it."""
    got, wanted = host(got), np.asarray(wanted)
    assert got.shape == wanted.shape, (
        f"{what} of {case}: shape {got.shape}, expected {wanted.shape}"
    )
    if not got.size:
        return
    assert np.all(np.isfinite(got)), f"{what} of {case} is not finite"
    error, limit = (
        np.max(np.abs(got - wanted)),
        1000 * case.eps * max(worse, 1.0) * max(1.0, np.max(np.abs(wanted))),
    )
    assert error <= limit, f"{what} of {case} is off by {error:.3g}; {limit:.3g} would be roundoff"


def succeed(function: Any, case: Case, *arguments: Any) -> Any:
    """The result, after looking at the status."""
    result, info = function(*arguments, info=True)
    assert not bool(np.any(host(info.failed))), f"{function.name} of {case}: {info!r}"
    return result


def fail(function: Any, case: Case, *arguments: Any) -> None:
    """The status must be a failure."""
    _, info = function(*arguments, info=True)
    assert bool(np.any(host(info.failed))), f"{function.name} of {case} claims success"


def needs_square(function: Any, case: Case, *arguments: Any) -> bool:
    """True for a square operator; for others the error is checked."""
    if case.is_square:
        return True
    with pytest.raises(co.ShapeError, match=f"{case.dense.shape[-2]}x{case.dense.shape[-1]}"):
        function(*arguments)
    return False


def right_side(case: Case, rows: int, columns: int = 2) -> tuple[Any, np.ndarray]:
    xp = case.operator.xp
    b = np.random.default_rng(1).standard_normal((rows, columns))
    b = b + 1j * b[::-1] if "complex" in case.dtype else b
    array = xp.asarray(b, dtype=xp.dtype_from(case.dtype))
    return array, host(array)


def columns_times(V: np.ndarray, values: np.ndarray) -> np.ndarray:
    return V * values[..., None, :]


def eigenvalues(case: Case) -> np.ndarray:
    return np.linalg.eigvals(case.dense)


def is_hermitian(case: Case) -> bool:
    return case.operator.isa(co.SelfAdjoint)


def eigen_condition(case: Case) -> float:
    """How far the eigenvectors are from orthogonal: huge for defective operators."""
    if is_hermitian(case):
        return 1.0
    return float(np.max(np.linalg.cond(np.linalg.eig(case.dense)[1]), initial=1.0))


def is_defective(case: Case) -> bool:
    return eigen_condition(case) * np.sqrt(case.eps) > 0.05


# ---------------------------------------------------------------------------------------------------- systems


@checks
def check_solve(case: Case) -> None:
    A, (b, b_host) = case.operator, right_side(case, case.dense.shape[-2])
    if not needs_square(co.solve, case, A, b):
        return
    if not case.is_regular:
        return fail(co.solve, case, A, b)
    wanted = np.linalg.solve(
        case.dense, np.broadcast_to(b_host, (*case.dense.shape[:-2], *b_host.shape))
    )
    close(case, succeed(co.solve, case, A, b), wanted, "solve", case.condition)
    close(
        case,
        succeed(co.solve, case, A, b[:, 0]),
        wanted[..., 0],
        "solve with a vector",
        case.condition,
    )


@checks
def check_inv(case: Case) -> None:
    A, (b, b_host) = case.operator, right_side(case, case.dense.shape[-2])
    if not needs_square(co.inv, case, A):
        return
    if not case.is_regular:
        return fail(co.inv, case, A)
    inverse = succeed(co.inv, case, A)
    wanted = np.linalg.inv(case.dense)
    close(case, inverse, wanted, "inv", case.condition)
    close(case, inverse @ b, wanted @ b_host, "inv @ b", case.condition)
    close(case, inverse.H @ b, adjoint(wanted) @ b_host, "inv.H @ b", case.condition)


@checks
def check_factorize(case: Case) -> None:
    A, (b, b_host) = case.operator, right_side(case, case.dense.shape[-2])
    if not needs_square(co.factorize, case, A):
        return
    if not case.is_regular:
        return fail(co.factorize, case, A)
    F = succeed(co.factorize, case, A)
    x = np.linalg.solve(
        case.dense, np.broadcast_to(b_host, (*case.dense.shape[:-2], *b_host.shape))
    )
    close(case, F.solve(b), x, "factorize(A).solve(b)", case.condition)
    sign, logarithm = F.slogdet()
    wanted = np.linalg.slogdet(case.dense)
    close(case, sign, wanted.sign, "factorize(A).slogdet()[0]", case.condition)
    close(case, logarithm, wanted.logabsdet, "factorize(A).slogdet()[1]", case.condition)


@checks
def check_lstsq(case: Case) -> None:
    A, (b, b_host) = case.operator, right_side(case, case.dense.shape[-2])
    wanted = np.linalg.pinv(case.dense, rcond=1e3 * case.eps) @ b_host
    close(case, succeed(co.lstsq, case, A, b), wanted, "lstsq", case.condition**2)
    close(
        case,
        succeed(co.lstsq, case, A, b[:, 0]),
        wanted[..., 0],
        "lstsq with a vector",
        case.condition**2,
    )


@checks
def check_pinv(case: Case) -> None:
    wanted = np.linalg.pinv(case.dense, rcond=1e3 * case.eps)
    close(case, succeed(co.pinv, case, case.operator), wanted, "pinv", case.condition**2)


@checks
def check_nullspace(case: Case) -> None:
    n = case.dense.shape[-1]
    N = succeed(co.nullspace, case, case.operator)
    nullity = n - int(case.rank.reshape(-1)[0])
    assert N.shape[-2:] == (n, nullity), (
        f"nullspace of {case} is {N.shape}, expected {nullity} columns"
    )
    basis = host(N)
    close(
        case,
        basis.conj().swapaxes(-1, -2) @ basis,
        np.broadcast_to(np.eye(nullity), (*basis.shape[:-2], nullity, nullity)),
        "N^H N",
    )
    close(
        case,
        case.dense @ basis,
        np.zeros((*case.dense.shape[:-1], nullity)),
        "A N",
        np.max(case.singular_values, initial=1.0),
    )


# ---------------------------------------------------------------------------------------------------- spectra


@checks
def check_eig(case: Case) -> None:
    A = case.operator
    if not needs_square(co.eig, case, A):
        return
    (values, vectors), info = co.eig(A, info=True)
    w, V, n = host(values), host(vectors), case.dense.shape[-1]
    assert w.shape == case.dense.shape[:-1] or w.shape == (n,), f"eig of {case}: {w.shape} values"
    close(
        case,
        case.dense @ V,
        np.broadcast_to(columns_times(V, w), (*case.dense.shape[:-2], n, n)),
        "A V",
        np.abs(w).max(),
    )
    if is_defective(case):
        return
    assert not bool(np.any(host(info.failed))), f"eig of {case}: {info!r}"
    wanted = eigenvalues(case)
    distance = np.abs(w[..., :, None] - wanted[..., None, :])
    worse = eigen_condition(case)
    for axis in (-1, -2):
        close(
            case,
            distance.min(axis=axis),
            0 * distance.min(axis=axis),
            "distance of eigenvalues",
            worse * np.abs(wanted).max(),
        )
    if is_hermitian(case):
        assert not np.iscomplexobj(w) and np.all(np.diff(w, axis=-1) >= 0), (
            f"eig of {case}: {w} is not real and ascending"
        )
    else:
        assert np.all(np.diff(np.abs(w), axis=-1) <= 1e4 * case.eps * np.abs(w).max()), (
            f"eig of {case}: {np.abs(w)} does not fall"
        )


def _extreme(case: Case, function: Any, best: Any) -> None:
    A = case.operator
    if not needs_square(function, case, A) or is_defective(case):
        return
    value, vector = succeed(function, case, A, True)
    key = (lambda w: w.real) if is_hermitian(case) else np.abs
    close(
        case,
        key(host(value)),
        np.broadcast_to(best(key(eigenvalues(case)), axis=-1), host(value).shape),
        function.name,
        eigen_condition(case) * 10,
    )
    v = host(vector)
    close(
        case,
        (case.dense @ v[..., None])[..., 0],
        np.broadcast_to(host(value)[..., None] * v, case.dense.shape[:-1]),
        "A v",
        10,
    )


@checks
def check_eigmax(case: Case) -> None:
    _extreme(case, co.eigmax, np.max)


@checks
def check_eigmin(case: Case) -> None:
    _extreme(case, co.eigmin, np.min)


@checks
def check_svd(case: Case) -> None:
    U, s, V = succeed(co.svd, case, case.operator)
    U, s, V = host(U), host(s), host(V)
    close(
        case,
        s,
        np.broadcast_to(case.singular_values, s.shape),
        "singular values",
        np.max(case.singular_values, initial=1.0),
    )
    close(
        case,
        np.broadcast_to(columns_times(U, s) @ adjoint(V), case.dense.shape),
        case.dense,
        "U S V^H",
    )
    for factor in (U, V):
        close(
            case,
            adjoint(factor) @ factor,
            np.broadcast_to(np.eye(s.shape[-1]), (*factor.shape[:-2], s.shape[-1], s.shape[-1])),
            "U^H U",
        )


# ---------------------------------------------------------------------------------------------------- diagonals and determinants


@checks
def check_diag(case: Case) -> None:
    close(
        case,
        succeed(co.diag, case, case.operator),
        np.diagonal(case.dense, axis1=-2, axis2=-1),
        "diag",
    )


@checks
def check_trace(case: Case) -> None:
    if needs_square(co.trace, case, case.operator):
        close(
            case,
            succeed(co.trace, case, case.operator),
            np.trace(case.dense, axis1=-2, axis2=-1),
            "trace",
            10,
        )


def _volume(case: Case) -> float:
    """What the determinant's roundoff is relative to."""
    return float(np.max(np.prod(np.linalg.norm(case.dense, axis=-1), axis=-1), initial=1.0))


@checks
def check_det(case: Case) -> None:
    if needs_square(co.det, case, case.operator):
        close(
            case,
            succeed(co.det, case, case.operator),
            np.linalg.det(case.dense),
            "det",
            _volume(case),
        )


@checks
def check_slogdet(case: Case) -> None:
    if not needs_square(co.slogdet, case, case.operator):
        return
    sign, logarithm = succeed(co.slogdet, case, case.operator)
    if not case.is_regular:
        close(
            case,
            np.exp(host(logarithm)) * host(sign),
            np.zeros(case.dense.shape[:-2]),
            "det from slogdet",
            _volume(case),
        )
        return
    wanted = np.linalg.slogdet(case.dense)
    close(case, sign, wanted.sign, "sign", case.condition)
    close(case, logarithm, wanted.logabsdet, "logabsdet", case.condition)


@checks
def check_logdet(case: Case) -> None:
    if not needs_square(co.logdet, case, case.operator):
        return
    logarithm = succeed(co.logdet, case, case.operator)
    if case.is_regular:
        close(case, logarithm, np.linalg.slogdet(case.dense).logabsdet, "logdet", case.condition)
    else:
        close(
            case,
            np.exp(host(logarithm)),
            np.zeros(case.dense.shape[:-2]),
            "exp(logdet)",
            _volume(case),
        )


@checks
def check_solve_and_logdet(case: Case) -> None:
    A, (b, b_host) = case.operator, right_side(case, case.dense.shape[-2])
    if not needs_square(co.solve_and_logdet, case, A, b):
        return
    if not case.is_regular:
        return fail(co.solve_and_logdet, case, A, b)
    x, logarithm = succeed(co.solve_and_logdet, case, A, b)
    wanted = np.linalg.solve(
        case.dense, np.broadcast_to(b_host, (*case.dense.shape[:-2], *b_host.shape))
    )
    close(case, x, wanted, "solve_and_logdet: x", case.condition)
    close(
        case,
        logarithm,
        np.linalg.slogdet(case.dense).logabsdet,
        "solve_and_logdet: logdet",
        case.condition,
    )


# ---------------------------------------------------------------------------------------------------- functions of a matrix


def each(f: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """A function of one matrix applied to a batch."""
    flat = x.reshape(-1, *x.shape[-2:])
    return np.stack([f(matrix) for matrix in flat]).reshape(x.shape)


@checks
def check_exp(case: Case) -> None:
    if needs_square(co.exp, case, case.operator):
        # whose condition is |A| at least: SciPy's own answer has that error
        condition = max(10.0, float(np.max(np.linalg.norm(case.dense, axis=(-2, -1)), initial=0)))
        close(
            case,
            succeed(co.exp, case, case.operator),
            each(scipy.linalg.expm, case.dense),
            "exp",
            condition,
        )


def _growth(case: Case) -> float:
    return case.condition * max(
        1.0, eigen_condition(case) if not is_defective(case) else 1 / np.sqrt(case.eps) / 100
    )


@checks
def check_log(case: Case) -> None:
    if not needs_square(co.log, case, case.operator):
        return
    if not case.is_regular:
        return fail(co.log, case, case.operator)
    logarithm = host(succeed(co.log, case, case.operator))
    close(case, each(scipy.linalg.expm, logarithm), case.dense, "exp(log)", _growth(case) * 10)
    assert np.all(np.abs(np.linalg.eigvals(logarithm).imag) <= np.pi + 1e3 * np.sqrt(case.eps)), (
        f"log of {case} is not the principal one"
    )


@checks
def check_sqrt(case: Case) -> None:
    if not needs_square(co.sqrt, case, case.operator):
        return
    root, info = co.sqrt(case.operator, info=True)
    # the root of a singular operator may exist or not; if one is claimed, it must be one
    if not case.is_regular:
        if not bool(np.any(host(info.failed))):
            close(case, host(root) @ host(root), case.dense, "sqrt^2", 1 / np.sqrt(case.eps))
        return
    assert not bool(np.any(host(info.failed))), f"sqrt of {case}: {info!r}"
    close(case, host(root) @ host(root), case.dense, "sqrt^2", _growth(case))
    w = np.linalg.eigvals(host(root))
    assert np.all(w.real >= -1e3 * np.sqrt(case.eps) * np.abs(w).max()), (
        f"sqrt of {case} is not the principal one"
    )


@checks
def check_isqrt(case: Case) -> None:
    if not needs_square(co.isqrt, case, case.operator):
        return
    if not case.is_regular:
        return fail(co.isqrt, case, case.operator)
    root = host(succeed(co.isqrt, case, case.operator))
    close(
        case,
        root @ root @ case.dense,
        np.broadcast_to(np.eye(case.dense.shape[-1]), case.dense.shape),
        "isqrt^2 A",
        _growth(case),
    )


@checks
def check_power(case: Case) -> None:
    A, dense = case.operator, case.dense
    if not needs_square(co.power, case, A, 3):
        return
    close(case, succeed(co.power, case, A, 3), dense @ dense @ dense, "power 3", 10)
    if case.is_regular:
        close(
            case, succeed(co.power, case, A, -1), np.linalg.inv(dense), "power -1", case.condition
        )
        third = host(succeed(co.power, case, A, 1 / 3))
        close(case, third @ third @ third, dense, "power 1/3, cubed", _growth(case))
    else:
        fail(co.power, case, A, -1)


@checks
def check_apply(case: Case) -> None:
    A = case.operator
    if needs_square(co.apply, case, A.xp.exp, A) and not is_defective(case):
        # the condition number of exp: |A| at a normal matrix
        growth = 1 + float(case.singular_values.max(initial=0.0))
        close(
            case,
            succeed(co.apply, case, A.xp.exp, A),
            each(scipy.linalg.expm, case.dense),
            "apply(exp)",
            growth * eigen_condition(case) ** 2,
        )


# ---------------------------------------------------------------------------------------------------- factorisations


@checks
def check_cholesky(case: Case) -> None:
    if not needs_square(co.cholesky, case, case.operator):
        return
    hermitian = np.allclose(case.dense, adjoint(case.dense), rtol=10 * case.eps, atol=10 * case.eps)
    if hermitian and np.all(
        np.linalg.eigvalsh(case.dense) > 100 * case.eps * np.abs(case.dense).max()
    ):
        L = host(succeed(co.cholesky, case, case.operator))
        close(case, L @ adjoint(L), case.dense, "L L^H", 10)
        assert np.all(np.triu(L, 1) == 0), f"cholesky of {case} is not lower triangular"
    elif not hermitian or np.any(
        np.linalg.eigvalsh(case.dense) < -100 * case.eps * np.abs(case.dense).max()
    ):
        fail(co.cholesky, case, case.operator)


@checks
def check_lu(case: Case) -> None:
    P, L, U = succeed(co.lu, case, case.operator)
    close(
        case,
        np.broadcast_to(host(P) @ host(L) @ host(U), case.dense.shape),
        case.dense,
        "P L U",
        10,
    )
    assert np.all(np.triu(host(L), 1) == 0) and np.all(np.tril(host(U), -1) == 0), (
        f"lu of {case}: the factors are not triangular"
    )


@checks
def check_qr(case: Case) -> None:
    Q, R = succeed(co.qr, case, case.operator)
    Q, R = host(Q), host(R)
    close(case, np.broadcast_to(Q @ R, case.dense.shape), case.dense, "Q R", 10)
    close(
        case,
        adjoint(Q) @ Q,
        np.broadcast_to(np.eye(Q.shape[-1]), (*Q.shape[:-2], Q.shape[-1], Q.shape[-1])),
        "Q^H Q",
    )
    assert np.all(np.abs(np.tril(R, -1)) == 0), f"qr of {case}: R is not upper triangular"


# ---------------------------------------------------------------------------------------------------- norms


@checks
def check_norm(case: Case) -> None:
    for order in ("fro", 2, 1, np.inf, "nuc"):
        wanted = np.linalg.norm(case.dense, order, axis=(-2, -1))
        close(case, succeed(co.norm, case, case.operator, order), wanted, f"norm {order}")


@checks
def check_cond(case: Case) -> None:
    number, _ = co.cond(case.operator, info=True)
    s = case.singular_values
    if np.all(s[..., -1] > 100 * case.eps * s[..., 0]):
        close(case, number, s[..., 0] / s[..., -1], "cond", case.condition)
    else:
        assert np.any(host(number) >= 1e-3 / case.eps), f"cond of {case} is {host(number)}"


@checks
def check_rank(case: Case) -> None:
    assert np.array_equal(
        np.broadcast_to(host(succeed(co.rank, case, case.operator)), case.rank.shape), case.rank
    ), f"rank of {case}"


@checks
def check_transpose(case: Case) -> None:
    close(case, co.transpose(case.operator), np.swapaxes(case.dense, -1, -2), "transpose")


@checks
def check_adjoint(case: Case) -> None:
    close(case, co.adjoint(case.operator), adjoint(case.dense), "adjoint")


@checks
def check_conj(case: Case) -> None:
    close(case, co.conj(case.operator), np.conj(case.dense), "conj")


@checks
def check_to_dense(case: Case) -> None:
    close(case, co.to_dense(case.operator), case.dense, "to_dense")


# ---------------------------------------------------------------------------------------------------- approximations of low rank

# Of full rank, they are the whole.


def of_full_rank(f: Any, case: Case) -> Any:
    return succeed(f, case, case.operator, min(case.dense.shape[-2:]))


def close_if_positive(f: Any, case: Case) -> None:
    if case.operator.isa(co.PSD):
        close(case, of_full_rank(f, case), case.dense, f.name, 10)
    elif needs_square(f, case, case.operator, 1):
        with pytest.raises(co.errors.MethodError, match="PSD"):
            f(case.operator, 1)


@checks
def check_nystrom(case: Case) -> None:
    close_if_positive(co.nystrom, case)


@checks
def check_rp_cholesky(case: Case) -> None:
    close_if_positive(co.rp_cholesky, case)


@checks
def check_range_finder(case: Case) -> None:
    Q = host(of_full_rank(co.range_finder, case))
    close(case, Q @ (adjoint(Q) @ case.dense), case.dense, "Q Q^H A")


@checks
def check_interpolative(case: Case) -> None:
    approximation, _ = of_full_rank(co.interpolative, case)
    close(case, approximation, case.dense, "interpolative", 10)


@checks
def check_cur(case: Case) -> None:
    approximation, *_ = of_full_rank(co.cur, case)
    close(case, approximation, case.dense, "cur", 10)


# ---------------------------------------------------------------------------------------------------- the suite


def test_every_function_has_a_check() -> None:
    from colinear import functions

    assert set(functions.__all__) == set(FUNCTIONS)


@pytest.mark.parametrize(("maker", "backend"), COMBINATIONS)
def test_functions_give_the_dense_answer(maker: str, backend: str) -> None:
    wrong = []
    tests = (
        (name, case, way)
        for name in FUNCTIONS
        for case in cases(maker, backend, name)
        for way in ways(backend, maker, case.dtype, case.batch)
        if FULLY or not is_compiled(name, backend, way) or is_tested_in_jax(name, maker, case)
    )
    for name, case, way in tests:
        try:
            with way():
                FUNCTIONS[name](case)
        except Exception as error:  # all that is wrong with an operator is worth one report
            wrong.append(
                f"{name}, {case.dtype}, batch {case.batch}, {way.__name__}: {type(error).__name__}: {str(error)[:300]}"
            )
    assert not wrong, "\n".join(wrong)
