"""NaN or infinity in any array of any operator: every function's result is flagged, whatever rule computes it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.registry import MAKERS

import colinear as co
from colinear import backends
from colinear.status import Status

# `diag` and `trace` read entries, and show NaN where it is.
BY_SVD = ("pinv", "lstsq", "svd", "rank", "cond", "nullspace")
OTHERS = (
    "inv",
    "norm",
    "slogdet",
    "logdet",
    "eig",
    "cholesky",
    "lu",
    "qr",
    "exp",
    "sqrt",
    "isqrt",
    "log",
)
SOLVES = ("solve", "lstsq", "solve_and_logdet")


def spoiled(name: str, xp: Any, bad: float) -> Iterator[Any]:
    """The operator of a maker with one bad number, in each of its arrays by turns; only where the matrix shows it."""
    made = MAKERS[name](xp, "float64", (), np.random.default_rng(0))
    if made is None:
        return
    A = made[0]
    if isinstance(
        A, co.Inverse | co.Factorized
    ):  # a factorisation that is not of its operator says nothing
        return
    count = len([leaf for leaf in A.leaves() if is_floating(xp, leaf)])
    for which in range(count):
        seen = iter(range(count))

        def spoil(leaf: Any, seen: Any = seen, which: int = which) -> Any:
            if not is_floating(xp, leaf) or next(seen) != which:
                return leaf
            values = np.array(xp.to_numpy(leaf))
            values.flat[values.size // 2] = bad
            return xp.asarray(values)

        B = A._map(spoil)
        with np.errstate(all="ignore"):
            matrix = xp.to_numpy(B.to_dense())
        if not np.isfinite(matrix).all():
            yield B


def is_floating(xp: Any, leaf: Any) -> bool:
    return backends.namespace_of(leaf) is xp and bool(xp.is_floating(leaf)) and 0 not in leaf.shape


def check(A: Any, names: tuple[str, ...]) -> None:
    for name in names:
        f = getattr(co, name)
        arguments = (
            (A.xp.ones((A.shape[-2],), dtype=A.dtype, device=None),) if name in SOLVES else ()
        )
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                _, info = f(A, *arguments, info=True)
        except co.ShapeError:
            continue
        assert np.any(np.asarray(info.failed)), f"{name}({A!r}): {info!r}"


@pytest.mark.parametrize("name", MAKERS)
def test_nan_in_is_flagged(name):
    for A in spoiled(name, backends.get("numpy"), np.nan):
        check(A, (*BY_SVD, *OTHERS, "solve", "solve_and_logdet", "det", "eigmax"))


@pytest.mark.parametrize("name", MAKERS)
def test_infinity_in_is_flagged(name):
    for A in spoiled(name, backends.get("numpy"), np.inf):
        check(A, OTHERS)


@pytest.mark.parametrize(
    "name",
    [
        "diagonal",
        "circulant",
        "lower_triangular",
        "householder",
        "projection",
        "scaled",
        "kronecker_sum",
    ],
)
def test_nan_in_is_flagged_in_torch(name):
    pytest.importorskip("torch")
    for A in spoiled(name, backends.get("torch"), np.nan):
        check(A, (*BY_SVD, *OTHERS))


@pytest.mark.parametrize("name", ["diagonal", "circulant"])
def test_nan_in_is_flagged_in_jax(name):
    pytest.importorskip("jax")
    for A in spoiled(name, backends.get("jax"), np.nan):
        check(A, ("svd", "rank", "pinv", "lu"))


def test_nonfinite_families_say_nonfinite():
    nan = np.nan
    for A, names in (
        (co.Diagonal([1.0, nan, 2.0]), (*BY_SVD, "lu", "norm")),
        (co.Circulant([3.0, nan, 1.0]), ("svd", "cond", "rank", "pinv")),
        (co.Triangular(np.array([[1.0, 0.0], [nan, 2.0]])), ("inv", "lu")),
        (co.Diagonal([1.0, np.inf]), ("cholesky", "lu", "qr")),
    ):
        for name in names:
            arguments = (np.ones(A.shape[-1]),) if name in SOLVES else ()
            assert getattr(co, name)(A, *arguments, info=True)[1].status is Status.NONFINITE, (
                name,
                A,
            )


def test_half_of_a_triangle_that_is_not_read_may_hold_anything():
    T = co.Triangular(np.array([[1.0, np.nan], [3.0, 2.0]]))
    for name in ("inv", "lu", "qr"):
        assert not getattr(co, name)(T, info=True)[1].failed


def test_condition_of_a_matrix_with_a_negative_zero_is_infinite():
    for name in ("numpy", "torch", "jax"):
        xp = backends.get(name)
        assert float(co.cond(xp.asarray(np.array([[0.0, -1], [0, 0]])))) == np.inf
