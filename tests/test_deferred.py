"""`with colinear.deferred()`: statuses are read at the end of a block."""

from __future__ import annotations

import contextlib
import inspect
import threading
import warnings
from typing import Any

import numpy as np
import pytest
from support.registry import BACKENDS
from support.synchronisations import counted, pretended

import colinear as co
from colinear import backends


def diagonal(framework: str, *entries: float) -> co.LinearOperator:
    return co.Diagonal(backends.get(framework).asarray(np.array(entries)))


def ones(framework: str, n: int = 2) -> Any:
    return backends.get(framework).asarray(np.ones(n))


def line() -> int:
    """The number of the line that calls this."""
    return inspect.currentframe().f_back.f_lineno  # type: ignore[union-attr,return-value]


@pytest.mark.parametrize("framework", BACKENDS)
def test_failures_are_told_at_the_end_of_the_block_one_by_one(framework: str) -> None:
    fine, singular = diagonal(framework, 1.0, 2.0), diagonal(framework, 1.0, 0.0)
    with pytest.warns(co.ConvergenceWarning) as caught:
        with co.deferred():
            here = line()
            x = co.solve(fine, ones(framework))
            co.solve(singular, ones(framework))
            co.logdet(fine)
            co.inv(singular)
            assert not len(caught)
    texts = [str(each.message) for each in caught]
    assert len(texts) == 2
    assert texts[0].startswith("solve: SINGULAR") and texts[1].startswith("inv: SINGULAR")
    assert co.Status.SINGULAR.remedy in texts[0]
    assert [each.lineno - here for each in caught] == [2, 4]
    assert all(each.filename == __file__ for each in caught)
    np.testing.assert_allclose(backends.get(framework).to_numpy(x), [1, 0.5])


@pytest.mark.parametrize("framework", BACKENDS)
def test_an_info_is_complete_at_the_end_and_may_be_looked_at_before(framework: str) -> None:
    singular, b = diagonal(framework, 1.0, 0.0), ones(framework)
    with co.deferred():
        _, early = co.solve(singular, b, info=True)
        assert early.failed is True and early.status is co.Status.SINGULAR
        assert "SINGULAR" in repr(early)
        _, late = co.solve(singular, b, info=True)
    assert late._status is co.Status.SINGULAR
    assert not np.any(np.asarray(late.converged))


@pytest.mark.parametrize("framework", BACKENDS)
def test_the_first_of_several_errors_is_raised_at_the_end(framework: str) -> None:
    singular, wrong = diagonal(framework, 1.0, 0.0), diagonal(framework, np.nan, 1.0)
    done = []
    with pytest.raises(co.ConvergenceError, match="SINGULAR") as caught:
        with co.deferred():
            co.solve(singular, ones(framework), on_failure="raise")
            co.solve(wrong, ones(framework), on_failure="raise")
            done.append(True)
    assert done
    assert any("NONFINITE" in note for note in caught.value.__notes__)
    assert caught.value.info.status is co.Status.SINGULAR
    co.solve(diagonal(framework, 1.0, 2.0), ones(framework))  # the block is over


@pytest.mark.parametrize("framework", BACKENDS)
def test_a_block_inside_another_hands_on_its_failures(framework: str) -> None:
    singular, b = diagonal(framework, 1.0, 0.0), ones(framework)
    with pytest.warns(co.ConvergenceWarning) as caught:
        with co.deferred():
            with co.deferred():
                co.solve(singular, b)
            assert not len(caught)
    assert len(caught) == 1


@pytest.mark.parametrize("framework", BACKENDS)
def test_an_exception_that_leaves_the_block_is_not_hidden(framework: str) -> None:
    singular, b = diagonal(framework, 1.0, 0.0), ones(framework)
    with pytest.raises(ZeroDivisionError) as caught, warnings.catch_warnings():
        warnings.simplefilter("error")
        with co.deferred():
            co.solve(singular, b)
            co.solve(singular, b, on_failure="raise")
            _ = 1 / 0
    assert sum("SINGULAR" in note for note in caught.value.__notes__) == 2
    with pytest.raises(ZeroDivisionError), pytest.warns(co.ConvergenceWarning, match="SINGULAR"):
        with co.deferred():
            co.solve(singular, b)
            _ = 1 / 0
    with pytest.warns(co.ConvergenceWarning, match="SINGULAR"):
        co.solve(singular, b)  # at once again


def test_warnings_that_are_errors_are_raised_at_the_end() -> None:
    done = []
    with pytest.raises(co.ConvergenceWarning, match="SINGULAR"), warnings.catch_warnings():
        warnings.simplefilter("error")
        with co.deferred():
            co.solve(diagonal("numpy", 1.0, 0.0), np.ones(2))
            done.append(True)
    assert done


def test_ignored_failures_stay_ignored() -> None:
    with co.deferred():
        co.solve(diagonal("numpy", 1.0, 0.0), np.ones(2), on_failure="ignore")


def test_a_thread_has_blocks_of_its_own() -> None:
    singular, b, told = diagonal("numpy", 1.0, 0.0), np.ones(2), []

    def work() -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            co.solve(singular, b)
        told.append(len(caught))

    with co.deferred():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert told == [1]


def test_products_with_an_inverse_are_deferred_too() -> None:
    A = co.opaque(co.PSD(np.diag([1.0, 2.0, 3.0])))
    inverse = co.inv(A, co.CG(max_iters=1))
    with pytest.warns(co.ConvergenceWarning, match="MAX_ITERATIONS") as caught:
        with co.deferred():
            inverse @ np.array([1.0, 2.0, 1.0])
            assert not len(caught)


def test_a_jitted_program_warns_as_it_does_elsewhere() -> None:
    jax = pytest.importorskip("jax")
    f = jax.jit(lambda d: co.solve(co.Diagonal(d), np.ones(2)))
    with pytest.warns(co.ConvergenceWarning, match="SINGULAR"):
        with co.deferred():
            jax.block_until_ready(f(np.array([1.0, 0.0])))


# --------------------------------------------------------------------------------- on a device


def problems(torch: Any) -> list[Any]:
    g = torch.Generator().manual_seed(0)
    normal = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)
    M, U, b = normal(12, 12), normal(12, 2), normal(12)
    d = torch.rand(12, generator=g, dtype=torch.float64) + 1
    K = normal(3, 3) + 5 * torch.eye(3), normal(4, 4) + 5 * torch.eye(4)
    positive = co.PSD(M @ M.T + torch.eye(12))
    return [
        lambda: co.solve(co.Diagonal(d), b),
        lambda: co.solve(M + 12 * torch.eye(12), b),
        lambda: co.solve(positive, b),
        lambda: co.solve(co.LowRank(U) + co.Diagonal(d), b),
        lambda: co.solve(co.Kronecker(*K), b),
        lambda: co.inv(co.Kronecker(*K)).to_dense(),
        lambda: co.logdet(positive),
        lambda: co.logdet(co.LowRank(U) + co.Diagonal(d)),
        lambda: co.slogdet(M),
        lambda: co.lstsq(normal(12, 3), b),
        lambda: co.eig(positive)[0],
        lambda: co.svd(M)[1],
        lambda: co.exp(M / 10).to_dense(),
        lambda: co.cholesky(positive).to_dense(),
        lambda: co.pinv(M).to_dense(),
    ]


def test_on_a_device_no_call_looks_at_values_and_the_end_does_once() -> None:
    torch = pytest.importorskip("torch")
    expected = [f() for f in problems(torch)]
    with pretended(), counted() as looks:
        with co.deferred():
            found = [f() for f in problems(torch)]
            assert not looks, looks
        assert len(looks) == 1
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)


def test_on_a_device_failures_are_told_with_their_status() -> None:
    torch = pytest.importorskip("torch")
    singular, b = torch.ones(3, 3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    indefinite = co.PSD(torch.diag(torch.tensor([1.0, -1.0, 2.0], dtype=torch.float64)))
    with pretended(), pytest.warns(co.ConvergenceWarning) as caught:
        with co.deferred():
            co.solve(singular, b)
            co.solve(indefinite, b)  # outside of the block LU would take over
            co.solve(co.Diagonal(torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64)), b)
            _, info = co.inv(co.Kronecker(singular, torch.eye(2, dtype=torch.float64)), info=True)
    names = [str(each.message).split(":")[1].split()[0] for each in caught]
    assert names == ["SINGULAR", "NOT_POSITIVE_DEFINITE", "SINGULAR"]
    assert info._status is co.Status.SINGULAR and info.failed


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_on_a_device_a_check_that_overflows_is_no_failure(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    large = torch.full((100,), torch.finfo(kind).max / 8, dtype=kind)  # whose sum is infinite
    one = torch.ones(100, dtype=kind)
    calls = [
        lambda: co.solve(co.Diagonal(one), large),
        lambda: co.solve(co.Diagonal(large), large),
        lambda: co.norm(co.Diagonal(large)),
        lambda: co.cond(co.Diagonal(large)),
    ]
    with pretended(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for call in calls:
            expected = call()
            with co.deferred():
                found = call()
            assert bool((found == expected).all())


@pytest.mark.parametrize(
    ("entry", "status"), [(np.nan, "NONFINITE"), (-np.inf, "NONFINITE"), (0.0, "SINGULAR")]
)
@pytest.mark.parametrize("shape", [(3,), (3, 2)])
def test_on_a_device_a_diagonal_that_nothing_is_divided_by_is_told(
    entry: float, status: str, shape: tuple[int, ...]
) -> None:
    torch = pytest.importorskip("torch")
    d = torch.tensor([1.0, entry, 2.0])
    for right in (torch.ones(shape), torch.zeros(shape)):
        for block in (contextlib.nullcontext, co.deferred):
            with pretended(), pytest.warns(co.ConvergenceWarning, match=status), block():
                co.solve(co.Diagonal(d), right)


def test_on_a_device_failures_are_told_in_jax() -> None:
    pytest.importorskip("jax")
    singular, b = diagonal("jax", 1.0, 0.0), ones("jax")
    with pretended("jax"), pytest.warns(co.ConvergenceWarning, match="SINGULAR") as caught:
        with co.deferred():
            co.solve(singular, b)
            _, info = co.solve(np.ones((2, 2)) * b, b, info=True)
        assert len(caught) == 1
    assert info._status is co.Status.SINGULAR


def test_what_fails_on_a_device_is_mended_as_on_the_host() -> None:
    torch = pytest.importorskip("torch")
    indefinite = co.PSD(torch.diag(torch.tensor([1.0, -1.0, 2.0], dtype=torch.float64)))
    b = torch.ones(3, dtype=torch.float64)
    weak = torch.tensor([1e-14, 1.0, 2.0, 3.0, 1.0, 2.0], dtype=torch.float64)
    corrected = co.LowRank(torch.ones(6, 1, dtype=torch.float64)) + co.Diagonal(weak)
    for f in (
        lambda **options: co.solve(indefinite, b, **options),
        lambda **options: co.logdet(corrected, **options),
        lambda **options: co.slogdet(indefinite, **options),
    ):
        expected, told = f(info=True)
        with pretended():
            found, info = f(info=True)
            plain = f()
        assert info.status is told.status
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(plain, expected)


def test_gradients_on_a_device_are_those_of_the_host() -> None:
    torch = pytest.importorskip("torch")
    d = torch.linspace(1, 2, 6, dtype=torch.float64)
    U = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(6, 2)
    K = torch.eye(2, dtype=torch.float64) + 0.1
    b = torch.linspace(0, 1, 6, dtype=torch.float64)

    def value(d: Any, U: Any, K: Any) -> Any:
        A = co.LowRank(U) + co.Diagonal(d)
        dense = co.PSD(U @ U.T + torch.diag(d))
        B = co.Kronecker(K, torch.diag(d)[:3, :3])
        return (
            b @ co.solve(A, b)
            + co.logdet(A)
            + b @ co.solve(dense, b)
            + co.logdet(dense)
            + b @ co.solve(B, b)
            + co.slogdet(B)[1]
        )

    expected = torch.func.grad(value, (0, 1, 2))(d, U, K)
    leaves = [x.clone().requires_grad_() for x in (d, U, K)]
    with pretended():
        found = torch.func.grad(value, (0, 1, 2))(d, U, K)
        value(*leaves).backward()
        each = torch.func.vmap(value, (0, None, None))(torch.stack([d, 2 * d]), U, K)
    for x, y, leaf in zip(found, expected, leaves, strict=True):
        torch.testing.assert_close(x, y)
        torch.testing.assert_close(leaf.grad, y)
    torch.testing.assert_close(each[0], value(d, U, K))


def test_a_product_outside_of_all_calls_tells_at_once_on_a_device() -> None:
    torch = pytest.importorskip("torch")
    nilpotent = co.Dense(torch.tensor([[0.0, 1.0], [0.0, 0.0]], dtype=torch.float64))
    x = torch.tensor([0.0, 1.0], dtype=torch.float64)  # in whose Krylov space nothing is rounded
    with pretended():
        root = co.sqrt(nilpotent, co.Krylov())
        with pytest.warns(co.ConvergenceWarning, match="SINGULAR|NONFINITE|INACCURATE"):
            root @ x
