"""A matrix that holds an infinity or NaN: no answer takes for ever, and none is called a success. (LAPACK's SVD has no end there.)"""

from __future__ import annotations

import faulthandler

import numpy as np
import pytest
from support.frameworks import NAMES, host

import colinear as co

GOOD = np.array(
    [[2.0, 1.0, 0.0, 0.3], [1.0, 3.0, 1.0, 0.0], [0.0, 1.0, 4.0, 0.5], [0.3, 0.0, 0.5, 5.0]]
)
NONFINITE = co.Status.NONFINITE

DIRECT = {
    "svd": co.svd,
    "pinv": co.pinv,
    "rank": co.rank,
    "cond": co.cond,
    "nullspace": co.nullspace,
    "norm": lambda A, **options: co.norm(A, 2, **options),
    "lstsq": lambda A, **options: co.lstsq(A, A.xp.ones(4, dtype=A.dtype), **options),
    "eigh": lambda A, **options: co.eig(co.SelfAdjoint(A), **options),
    "eig": co.eig,
    "sqrt": lambda A, **options: co.sqrt(co.PSD(A), **options),
    "log": co.log,
    "LDL": lambda A, **options: co.solve(
        co.SelfAdjoint(A), A.xp.ones(4, dtype=A.dtype), method=co.LDL(), **options
    ),
}
ITERATED = {
    "CG": lambda A, **options: co.solve(
        co.PD(A), A.xp.ones(4, dtype=A.dtype), method=co.CG(), **options
    ),
    "MINRES": lambda A, **options: co.solve(
        co.PD(A), A.xp.ones(4, dtype=A.dtype), method=co.MINRES(), **options
    ),
    "GMRES": lambda A, **options: co.solve(
        A, A.xp.ones(4, dtype=A.dtype), method=co.GMRES(), **options
    ),
    "LSMR": lambda A, **options: co.lstsq(
        A, A.xp.ones(4, dtype=A.dtype), method=co.LSMR(), **options
    ),
    "Lanczos": lambda A, **options: co.eig(
        co.SelfAdjoint(A), 1, "LA", method=co.Lanczos(), **options
    ),
    "LOBPCG": lambda A, **options: co.eig(
        co.SelfAdjoint(A), 1, "LA", method=co.LOBPCG(), **options
    ),
    "Arnoldi": lambda A, **options: co.eig(A, 1, method=co.Arnoldi(), **options),
    "GolubKahan": lambda A, **options: co.svd(A, 1, method=co.GolubKahan(), **options),
    "RandomizedSVD": lambda A, **options: co.svd(A, 1, method=co.RandomizedSVD(), **options),
}


@pytest.fixture(autouse=True)
def _end():
    """LAPACK cannot be interrupted: a test without an end ends the process instead."""
    faulthandler.dump_traceback_later(300, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def broken(framework, number):
    M = GOOD.copy()
    M[0, 1] = M[1, 0] = number
    return co.Dense(co.backends.get(framework).asarray(M))


def direct_cases():
    for framework in NAMES:
        # JAX compiles each of them
        for function in DIRECT if framework != "jax" else ("svd", "pinv", "rank", "eigh"):
            yield framework, function


@pytest.mark.parametrize(("framework", "function"), list(direct_cases()))
def test_a_matrix_that_is_not_finite_is_called_so(framework, function):
    for number in (np.inf, np.nan):
        _, info = DIRECT[function](broken(framework, number), info=True)
        assert info.status is NONFINITE


@pytest.mark.parametrize("function", ITERATED)
@pytest.mark.parametrize("framework", NAMES[:2])
def test_an_iteration_with_a_matrix_that_is_not_finite_ends(framework, function):
    for number in (np.inf, np.nan):
        _, info = ITERATED[function](broken(framework, number), info=True)
        assert info.status.is_failure


@pytest.mark.parametrize("framework", NAMES)
def test_only_the_broken_matrices_of_a_batch_are_nan(framework):
    xp, bad = co.backends.get(framework), GOOD.copy()
    bad[0, 1] = np.inf
    A = xp.asarray(np.stack([GOOD, bad, GOOD]))
    for function in (xp.svd, xp.eigh, xp.eigvalsh, xp.eig, xp.eigvals):
        results = function(A)
        for result in results if isinstance(results, tuple) else (results,):
            finite = np.isfinite(host(result)).reshape(3, -1)
            assert finite[[0, 2]].all(), function
            assert not finite[1].any(), function


@pytest.mark.parametrize("framework", NAMES)
def test_null_spaces_of_a_batch_take_the_rank_of_its_finite_matrices(framework):
    singular = np.diag([1.0, 2.0, 3.0, 0.0])
    bad = singular.copy()
    bad[0, 1] = np.nan
    N, info = co.nullspace(
        co.Dense(co.backends.get(framework).asarray(np.stack([singular, bad]))), info=True
    )
    assert info.status is NONFINITE
    assert N.shape == (2, 4, 1)
    np.testing.assert_allclose(np.abs(host(N)[0, :, 0]), [0, 0, 0, 1], atol=1e-12)
