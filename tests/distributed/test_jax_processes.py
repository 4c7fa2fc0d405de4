"""Operators spread over two processes answer as in one; each process reads its own rows of a file."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.compiling import environment_of_devices

SECONDS = 600  # after which the processes are ended; they take some 30 of an idle processor
SCRIPT = Path(__file__).parent / "process_cases.py"


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    jax = pytest.importorskip("jax")
    if not hasattr(jax.sharding, "AxisType"):
        pytest.skip("this JAX has no types of axes")
    folder = tmp_path_factory.mktemp("rows")
    np.save(folder / "data.npy", np.random.default_rng(3).normal(size=(512, 64)))
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    runs = [
        subprocess.Popen(
            [sys.executable, SCRIPT, str(i), str(port), folder],
            env=environment_of_devices(1),
            **pipes,
        )
        for i in range(2)
    ]
    try:
        told = [run.communicate(timeout=SECONDS) for run in runs]
    finally:
        for run in runs:
            run.kill()
    assert [run.returncode for run in runs] == [0, 0], told[0][1][-3000:] + told[1][1][-3000:]
    return json.loads(told[0][0].splitlines()[-1])  # behind what gloo says


@pytest.mark.parametrize(
    "call",
    ["product", "cg", "jitted cg", "logdet", "slq", "stencil cg", "gathered stencil"]
    + ["rows of a file", "likelihood", "likelihood step"],
)
def test_two_processes_answer_as_one(answers, call):
    assert answers[call] < 1e-10


def test_the_slope_of_a_likelihood_over_two_processes_is_that_of_differences(answers):
    assert answers["slope by differences"] < 1e-6


def test_each_process_holds_half_of_a_matrix(answers):
    assert answers["largest part"] == 0.5
