"""The rates of the machine: the built-in table, a calibration and its file, and the limits of memory."""

from __future__ import annotations

import json
import math
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import colinear as co
from colinear import rates
from colinear.cli import main
from colinear.functions.solve import cost

A = co.PSD(np.eye(40) + 0.1)


def forget() -> None:
    """What this process knows of rates."""
    rates._MEASURED.clear()
    rates._TRIED.clear()
    rates._KNOWN.clear()
    rates._FREE.clear()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of its own, and rates as users have them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("COLINEAR_RATES")
    forget()
    yield tmp_path / "colinear" / "rates.json"
    monkeypatch.undo()
    forget()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calibrations that measure nothing; the list of those that were asked for."""
    asked: list[Any] = []

    def measure(xp: Any, device: Any) -> rates.Rates:
        asked.append((xp.name, str(device)))
        table = rates.BUILT_IN["numpy"]
        return table._replace(dense=2 * table.dense, sparse=1e6 * table.sparse)

    monkeypatch.setattr(rates, "_measure", measure)
    return asked


def test_tests_use_the_built_in_table_and_fixed_limits() -> None:
    assert rates.rates_of(A) == rates.BUILT_IN["numpy"]
    assert (cost.memory_to_form(A), cost.largest_dense(A)) == (2.0**30, 5000.0)
    assert "built-in" in str(co.explain(co.solve, A))


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
def test_a_calibration_measures_every_rate(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(backend)
    monkeypatch.setattr(rates, "CALIBRATION_S", 0.0)  # two calls of each kind
    xp = co.backends.get(backend)
    found = rates._measure(xp, xp.device_of(xp.asarray([0.0])))
    assert all(0 < getattr(found, name) < math.inf for name in rates.MEANINGS)


def test_what_was_measured_is_kept_for_later_processes_and_said(cache: Path, quick: Any) -> None:
    assert rates.rates_of(A) == rates.BUILT_IN["numpy"], "there is no file yet"
    measured = rates.calibrate()
    table = rates.BUILT_IN["numpy"]
    assert measured.dense == 2 * table.dense
    assert measured.sparse == table.sparse, "a disturbed measurement is not believed"
    forget()
    assert rates.rates_of(A) == measured and rates.is_kept(measured)
    plan = co.explain(co.solve, A)
    assert str(plan).count("calibrated on") == 1 and measured.date in plan.figures
    assert not plan.figures or all(not child.figures for child in plan.children)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 1, "rates": 3}', '{"version": 1, "rates": {"a": {}}}']
)
def test_a_file_that_is_not_ours_is_no_file(cache: Path, quick: Any, text: str) -> None:
    cache.parent.mkdir()
    cache.write_text(text)
    assert rates.rates_of(A) == rates.BUILT_IN["numpy"]
    rates.calibrate()
    assert json.loads(cache.read_text())["version"] == rates.VERSION


def test_a_folder_that_cannot_be_written_to_is_no_error(
    cache: Path, quick: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.parent.write_text("a file where the folder should be")
    measured = rates.calibrate()
    assert not rates.is_kept(measured) and rates.rates_of(A) == measured


def test_only_a_long_call_calibrates_and_only_once(cache: Path, quick: Any) -> None:
    work = lambda X: X
    quickly = co.PSD(co.MatrixFree(work, (300, 300), dtype=np.float64))
    long = co.PSD(co.MatrixFree(work, (200_000, 200_000), dtype=np.float64))
    cost.prefers_iteration(quickly, lambda: cost.dense_work(quickly))
    assert quick == []
    for _ in range(2):
        cost.prefers_iteration(long, lambda: cost.dense_work(long))
    assert quick == [("numpy", "cpu")]


def test_a_calibration_that_fails_or_iterates_does_not_touch_the_call_it_was_made_for(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "LONG_CALL_S", 0.0)
    monkeypatch.setattr(cost, "LONG_CALL_S", 0.0)
    asked = []

    def measure(xp: Any, device: Any) -> Any:
        asked.append(device)
        co.solve(co.opaque(A), np.arange(40.0), co.CG(max_iters=1), on_failure="ignore")
        raise ValueError("a clock that stands still")

    monkeypatch.setattr(rates, "_measure", measure)
    hidden = co.opaque(co.PSD(co.Diagonal(np.linspace(1.0, 2.0, 300))))
    for _ in range(2):
        info = co.solve(hidden, np.ones(300), info=True)[1]
        assert info.status == co.Status.SUCCESS
    assert len(asked) == 1


def test_traced_operators_never_calibrate(cache: Path, quick: Any) -> None:
    jax = pytest.importorskip("jax")
    jax.eval_shape(lambda x: rates.calibrate_once(co.Diagonal(x)) or x, np.ones(3))
    assert quick == []


def test_limits_are_fractions_of_the_memory(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "_memory", lambda backend, device: 4 * 2.0**30)
    assert cost.memory_to_form(A) == 2.0**28
    assert cost.largest_dense(A) == pytest.approx(math.sqrt(2**26 / 8))
    free = co.MatrixFree(lambda X: X, (20_000, 20_000), dtype=np.float64)
    with pytest.raises(co.TooLargeError, match=r"3.0 GiB; at most 2 GiB are taken unasked"):
        co.eig(free)
    monkeypatch.setattr(rates, "_memory", lambda backend, device: math.inf)
    forget()
    assert cost.memory_to_form(A) == 2.0**30


def test_blocks_and_stored_kernels_are_as_large_as_the_device_allows(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rates.memory_of_block(A) == 2.0**27  # on the host, near its caches
    monkeypatch.setattr(rates, "_place", lambda A: ("torch", "cuda:0"))
    memory = lambda backend, device, free=False: (8 if free else 64) * 2.0**30
    monkeypatch.setattr(rates, "_memory", memory)
    forget()
    assert rates.memory_of_block(A) == 2.0**30
    assert rates.memory_to_store(A) == 4 * 2.0**30  # half of what is free
    assert rates.memory_to_form(A) == 4 * 2.0**30  # a sixteenth of all
    assert (
        rates.share_of_memory(A, 1 / 2, math.inf) == 6 * 2.0**30
    )  # three quarters of what is free
    assert rates.memory_in_words(A) == "8 of 64 GiB are free on the device"
    monkeypatch.setattr(rates, "_memory", lambda backend, device, free=False: 2.0**30)
    assert rates.memory_to_form(A) == 4 * 2.0**30  # it is read once a second
    monkeypatch.setattr(rates, "FREE_FOR_S", 0.0)
    assert rates.memory_to_form(A) == 0.75 * 2.0**30
    monkeypatch.setenv("COLINEAR_RATES", "builtin")
    forget()
    assert rates.memory_in_words(A) == ""
    assert rates.memory_of_block(A) == 2.0**31
    assert rates.memory_to_store(A) == 2.0**30


def test_the_command_prints_the_rates(cache: Path, quick: Any, capsys: Any) -> None:
    assert main(["calibrate", "--backend", "numpy", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["is_kept"] and found["rates"]["numpy"]["dense"] == 40e9
    assert stat.S_ISREG(Path(found["file"]).stat().st_mode)
    assert main(["calibrate", "--backend", "numpy"]) == 0
    assert "40 Gflop/s      factoring a large matrix" in capsys.readouterr().out


def test_unlike_work_is_compared_in_seconds() -> None:
    n = 400
    dense, sparse = co.Dense(np.eye(n)), co.Sparse(scipy.sparse.eye_array(n))
    table = rates.BUILT_IN["numpy"]
    assert cost.product_rate(dense) == table.product
    assert cost.product_rate(sparse) == table.sparse
    assert table.sparse < cost.product_rate(dense + sparse) < table.product
    assert cost.product_rate(co.Kronecker(dense, dense)) > 2 * table.product
    assert cost.dense_work(dense).seconds > cost.dense_work(co.PSD(dense)).seconds


def test_a_device_is_known_by_its_name(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    xp = co.backends.get("numpy")
    monkeypatch.setattr(xp, "device_name", lambda device: f"NVIDIA {device} 80GB", raising=False)
    known, unknown = rates._built_in("numpy", "H100"), rates._built_in("numpy", "T4")
    assert known is rates.DEVICES["H100"]
    assert "of an H100" in known.origin
    assert unknown is rates.BUILT_IN["device"]
    monkeypatch.setenv("COLINEAR_RATES", "builtin")
    assert rates._built_in("numpy", "H100") is rates.BUILT_IN["device"]
