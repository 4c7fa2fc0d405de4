"""A call on a device looks at values once, at its end, and gives the answers and the warnings of the host.

There is no GPU here: CPU tensors are taken to be on a device. `tests/gpu/test_synchronisations.py` counts on one.
"""

from __future__ import annotations

import importlib
import itertools
import warnings
from typing import Any

import numpy as np
import pytest
from support.registry import MAKERS, PAIRS, cases
from support.synchronisations import CALLS, LOOKS, allowed, counted, pretended
from test_functions import FUNCTIONS
from test_no_row_loops import Counted

import colinear as co
from colinear import backends, gp

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("maker", sorted(MAKERS))
def test_answers_on_a_device_are_those_of_the_host(maker: str) -> None:
    """Every check of the conformance suite, in some dtypes."""
    wrong = []
    for case in cases(maker, "torch", "device", PAIRS[sorted(MAKERS).index(maker) % len(PAIRS)]):
        for name, check in FUNCTIONS.items():
            try:
                with pretended():
                    check(case)
            except Exception as error:
                wrong.append(f"{name}, {case.dtype}, batch {case.batch}: {error!r}"[:400])
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "maker", ["dense", "annotated_pd", "diagonal", "kronecker", "sum_low_rank_and_diagonal"]
)
def test_answers_on_a_device_are_those_of_the_host_in_jax(maker: str) -> None:
    pytest.importorskip("jax")
    names = ("solve", "inv", "slogdet", "lstsq", "eig", "exp", "sqrt", "cholesky", "lu")
    for case in cases(maker, "jax", "device", PAIRS[1]):
        for name in names:
            with pretended("jax"):
                FUNCTIONS[name](case)


def made(maker: str) -> list[Any]:
    xp, rng = backends.get("torch"), np.random.default_rng
    found = (MAKERS[maker](xp, "float64", batch, rng(0)) for batch in ((), (2,)))
    return [each[0] for each in found if each is not None]


def run(name: str, A: Any) -> tuple[list[str], list[str]]:
    """The looks at values that a call takes, and the statuses that it warns of."""
    with warnings.catch_warnings(record=True) as caught, counted() as looks:
        warnings.simplefilter("always")
        CALLS[name](A)
    told = [each for each in caught if issubclass(each.category, co.ConvergenceWarning)]
    return looks, [str(each.message).split(":")[1] for each in told]


@pytest.mark.parametrize("maker", sorted(MAKERS))
def test_a_call_on_a_device_looks_at_values_once(maker: str) -> None:
    too_many, needless = [], []
    for name in CALLS:
        counts = []
        for A, again in zip(made(maker), made(maker), strict=True):
            try:
                expected = run(name, again)[1]
            except (co.ColinearError, ValueError, TypeError):
                continue  # it has no meaning for this operator
            with pretended():
                looks, told = run(name, A)
            assert told == expected, f"{name} of {A!r}"
            if told:
                continue  # what failed is run again
            counts.append(len(looks))
            if len(looks) > allowed(name, maker):
                too_many.append(f"{name} of {A!r}: {len(looks)} looks:\n  " + "\n  ".join(looks))
        if counts and (name, maker) in LOOKS and max(counts) < allowed(name, maker):
            needless.append(f"{name} of {maker} takes {max(counts)}: shorten LOOKS")
    assert not too_many, "\n".join(too_many)
    assert not needless, "\n".join(needless)


def test_the_exceptions_are_pairs_that_exist() -> None:
    assert set(LOOKS) <= set(itertools.product(CALLS, MAKERS))


def test_arnoldi_ends_where_a_matrix_on_a_device_is_not_finite() -> None:
    M = torch.randn(60, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    M[3, 4] = float("nan")
    with pretended():
        _, info = co.eig(co.opaque(M), 2, method=co.Arnoldi(), info=True)
    assert info.status is co.Status.NONFINITE


def test_what_would_be_said_of_a_failure_is_not_said_beside_success() -> None:
    M = torch.randn(60, 60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    K, y = co.PSD(M @ M.mT + torch.eye(60)), M[0]
    for A in (K, K + 0.1 * co.Identity(60), co.Kronecker(K, K) + 0.1 * co.Identity(3600)):
        b = torch.ones(A.shape[-1], dtype=torch.float64)
        expected = repr(gp.log_marginal_likelihood(A, b, info=True)[1]).count("positive")
        with pretended(), counted() as looks:
            _, info = gp.log_marginal_likelihood(A, b, info=True)
        assert info.status is co.Status.SUCCESS
        assert len(looks) == 1
        assert repr(info).count("positive") == expected == 0
        assert "claimed" not in repr(info)
    with pretended(), pytest.warns(co.ConvergenceWarning, match="not positive: add noise"):
        gp.log_marginal_likelihood(co.PSD(torch.diag(y)), y)


def test_an_estimate_that_fails_on_a_device_runs_once(monkeypatch: Any) -> None:
    module, runs = importlib.import_module("colinear.functions.stochastic.solve_and_logdet"), []
    run = module._run
    monkeypatch.setattr(module, "_run", lambda *given: runs.append(1) or run(*given))
    d = torch.logspace(-12, 0, 60, dtype=torch.float64)
    A, method = co.PSD(co.opaque(torch.diag(d))), co.SLQ(5, max_iters=3)
    with pretended():
        _, info = co.solve_and_logdet(A, d, method, info=True)
    assert info.status is co.Status.MAX_ITERATIONS
    assert len(runs) == 1


def test_noise_whose_sign_is_on_the_device_is_taken_to_be_positive_until_cholesky_fails() -> None:
    M = torch.randn(40, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    K, b = M @ M.mT, M[0]
    for noise, is_positive in ((0.5, True), (-5.0, False)):
        for term in (torch.tensor(noise) * co.Identity(40), co.Diagonal(torch.full((40,), noise))):
            A = co.PSD(K) + term.to(dtype=torch.float64)
            expected = co.solve(A, b), co.logdet(A)
            with pretended(), warnings.catch_warnings():
                warnings.simplefilter("error")
                assert "Cholesky" in str(co.explain(co.solve, A, b))
                assert "Cholesky" in str(co.explain(co.slogdet, A))
                with counted() as looks:
                    found = co.solve(A, b), co.logdet(A)
                info = co.solve(A, b, info=True)[1]
                with co.deferred():  # where nothing is tried
                    later = co.solve(A, b), co.logdet(A)
            for given in (found, later):
                torch.testing.assert_close(given, expected)
            assert info.method == ("Cholesky" if is_positive else "LU")
            assert len(looks) == 2 or not is_positive


@pytest.mark.parametrize("is_symmetric", [True, False])
def test_matrices_on_a_device_are_seen_to_be_self_adjoint(is_symmetric: bool) -> None:
    M = torch.randn(30, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    M = M @ M.mT if is_symmetric else M
    for A in (
        co.KroneckerSum(M, M[:7, :7].clone()),
        co.Kronecker(M, M[:7, :7].clone()) + 0.3 * co.Identity(210),
    ):
        b = torch.ones(210, dtype=torch.float64)
        expected = co.solve(A, b)
        with pretended(), counted() as looks:
            found = co.solve(A, b)
            assert len(looks) == 2
            plan = str(co.explain(co.solve, A, b))
        assert ("Eigh" in plan) == is_symmetric
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)
        with pretended(), co.deferred(), counted() as looks:  # where nothing waits
            co.solve(A, b)
            assert not looks


def numbers(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def well(n: int) -> Any:
    return numbers(n, n) / n**0.5 + 2 * torch.eye(n)


# How many operations small calls launch in torch, views not counted; by hand they are 1 to 10.
LAUNCHES: dict[str, tuple[int, Any]] = {
    "diagonal": (3, lambda: co.solve(co.Diagonal(SIZES), VECTOR)),
    "dense": (7, lambda: co.solve(co.Dense(WELL), VECTOR)),
    "positive dense": (9, lambda: co.solve(co.PSD(GRAM), VECTOR)),
    "logdet of positive dense": (13, lambda: co.logdet(co.PSD(GRAM))),
    "kronecker": (13, lambda: co.solve(co.Kronecker(WELL[:10, :10], WELL[10:20, 10:20]), VECTOR)),
    "woodbury": (17, lambda: co.solve(co.LowRank(WELL[:, :5]) + co.Diagonal(SIZES), VECTOR)),
    "logdet of a diagonal": (9, lambda: co.logdet(co.Diagonal(SIZES))),
    "root of a diagonal": (6, lambda: co.sqrt(co.Diagonal(SIZES)) @ VECTOR),
    "exponential of a diagonal": (5, lambda: co.exp(co.Diagonal(SIZES)) @ VECTOR),
    "norm of a diagonal": (10, lambda: co.norm(co.Diagonal(SIZES))),
    "circulant": (14, lambda: co.solve(co.Circulant(EVEN), VECTOR)),
    "root of a circulant": (17, lambda: co.sqrt(co.Circulant(EVEN)) @ VECTOR),
    "periodic convolution": (
        19,
        lambda: co.solve(
            co.Convolution(WELL[:3, :3] / 9 + 9 * torch.eye(3), (10, 10), "wrap"), VECTOR
        ),
    ),
    "sines": (9, lambda: co.solve(co.Sine(100, like=VECTOR), VECTOR)),
    "sum of two lines": (26, lambda: co.solve(co.KroneckerSum(LINE, LINE), LONG)),
    "logdet of a sum of two lines": (15, lambda: co.logdet(co.KroneckerSum(LINE, LINE))),
    "sum of symmetric dense": (50, lambda: co.solve(co.KroneckerSum(GRAM[:9, :9], GRAM), LONG)),
}
WELL, VECTOR, LONG = well(100), numbers(100), numbers(900)
GRAM, SIZES = WELL @ WELL.mT, VECTOR**2 + 1
EVEN = torch.exp(-torch.minimum(torch.arange(100), 100 - torch.arange(100)).float())
LINE = co.Tridiagonal(-torch.ones(29), 2 * torch.ones(30), -torch.ones(29))


@pytest.mark.parametrize("name", LAUNCHES)
def test_small_calls_on_a_device_launch_few_operations(name: str) -> None:
    most, call = LAUNCHES[name]
    with pretended():
        call()  # what is made once
        with Counted() as counted_operations:
            call()
    assert counted_operations.count <= most
