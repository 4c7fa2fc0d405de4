"""Operators spread over a mesh of four devices answer as on one, and communicate little."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = 300  # after which the process is ended
SCRIPT = Path(__file__).parent / "mesh_cases.py"
N = 64  # rows of the operators there


@pytest.fixture(scope="module")
def answers():
    jax = pytest.importorskip("jax")
    if not hasattr(jax.sharding, "AxisType"):
        pytest.skip("this JAX has no types of axes")
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "NPROC": "16",  # with fewer threads XLA's collectives may wait for each other for ever
        "PYTHONPATH": str(SCRIPT.parents[2] / "src"),
    }
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", SCRIPT],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("mode", ["eager", "explicit", "explicit jit"])
def test_answers_on_a_mesh_are_those_on_one_device(answers, mode):
    wrong = {
        name: answer
        for name, answer in answers[mode].items()
        if isinstance(answer[0], str) or answer[0] > 1e-6 or answer[2] != 4
    }
    assert not wrong


@pytest.mark.parametrize("mode", ["eager", "explicit", "explicit jit"])
def test_vectors_stay_cut_by_rows_where_the_matrix_is(answers, mode):
    for name in ("dense product", "dense cg", "low_rank product", "low_rank cg"):
        assert "'x'" in answers[mode][name][1], name


@pytest.mark.parametrize("name", ["dense", "low_rank", "kronecker", "gram"])
def test_an_iteration_of_cg_sums_two_numbers_and_gathers_no_matrix(answers, name):
    loops = answers["iterations"][name]
    sums = 3 if name in ("low_rank", "gram") else 2  # these products sum over rows
    assert loops
    for sizes in loops:  # a Kronecker product has one for each factor
        assert len(sizes["all-reduce"]) <= sums, sizes
        assert max(sizes["all-reduce"] + sizes["all-gather"], default=0) <= N, sizes
        assert not sizes["all-to-all"], sizes
