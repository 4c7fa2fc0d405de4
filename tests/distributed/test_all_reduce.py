"""Sums over processes answer as one process, and so do their derivatives."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.compiling import environment_of_devices
from support.processes import SECONDS, run_processes

import colinear as co

SCRIPT = Path(__file__).parent / "all_reduce_cases.py"


@pytest.fixture(scope="module")
def found():
    pytest.importorskip("torch")
    return run_processes(SCRIPT)


def test_answers_and_gradients_on_two_processes_are_those_of_one(found):
    for process in found:
        wrong = {
            name: differences
            for name, differences in process["answers"].items()
            if any(isinstance(x, str) or x > 1e-10 for x in differences)
        }
        assert not wrong
        assert len(process["answers"]) > 60


def test_transforms_of_torch_reach_the_rows_of_each_process(found):
    for process in found:
        assert max(process["transforms"].values()) < 1e-10


def test_terms_that_do_not_fit_are_refused_in_every_process(found):
    for process in found:
        said = process["misfits"]
        assert said["shapes"].startswith("ShapeError") and "(2, 2), (3, 3)" in said["shapes"]
        assert said["dtypes"].startswith("DtypeError") and "float32" in said["dtypes"]
        assert said["claims"].startswith("AnnotationError") and "Claim" in said["claims"]


def test_a_product_a_trace_and_a_diagonal_sum_once(found):
    counts = found[0]["sums"]
    assert [counts[name] for name in ("product", "trace", "diag", "matrix")] == [1, 1, 1, 1]
    assert counts["cg"] == counts["matvecs"]


def test_operators_without_processes_are_refused():
    from colinear.distributed import AllReduce

    with pytest.raises(co.BackendError, match="to\\('torch'\\)"):
        AllReduce(co.Dense([[1.0]]))
    with pytest.raises(co.BackendError, match="like='torch'"):
        AllReduce(co.MatrixFree(lambda X: X, (2, 2)))
    torch = pytest.importorskip("torch")
    with pytest.raises(co.BackendError, match="init_process_group"):
        AllReduce(co.Dense(torch.eye(2)))


def test_a_group_of_jax_is_the_name_of_an_axis():
    from colinear.distributed import AllReduce

    jnp = pytest.importorskip("jax.numpy")
    with pytest.raises(co.BackendError, match="name of an axis"):
        AllReduce(co.Dense(jnp.eye(2)))


def test_answers_and_gradients_on_two_devices_of_jax_are_those_of_one():
    jax = pytest.importorskip("jax")
    if not hasattr(jax, "shard_map"):
        pytest.skip("this JAX has no jax.shard_map")
    calls = () if os.environ.get("COLINEAR_FULL") else ("product", "cg")
    script = SCRIPT.with_name("all_reduce_jax_cases.py")
    done = subprocess.run(
        [sys.executable, script, *calls],
        env=environment_of_devices(2),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert len(found) >= 6
    assert not {name: difference for name, difference in found.items() if difference > 1e-10}
