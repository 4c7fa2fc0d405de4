"""Operators of torch spread over a mesh of two processes answer as in one, and send little."""

import os
from pathlib import Path

import pytest
from support.processes import run_processes

SCRIPT = Path(__file__).parent / "torch_cases.py"
FULL = bool(os.environ.get("COLINEAR_FULL"))


@pytest.fixture(scope="module", autouse=True)
def needs_meshes():
    pytest.importorskip("torch.distributed.tensor")


def wrong(answers):
    # the iterations of either run end at a tolerance of 1e-10, times a condition number
    return {
        name: answer
        for name, answer in answers.items()
        if isinstance(answer[0], str) or answer[0] > (2e-8 if "grad" in name else 1e-9)
    }


@pytest.fixture(scope="module")
def found():
    return run_processes(SCRIPT, "line", "all" if FULL else "few")


@pytest.fixture(scope="module")
def answers(found):
    return found["answers"]


def test_answers_on_two_processes_are_those_of_one(answers):
    assert not wrong(answers)
    assert len(answers) > 25


def test_vectors_stay_cut_by_rows_where_the_operator_is(answers):
    for name in ("dense cg", "low_rank cg", "kronecker cg", "dense product", "low_rank product"):
        assert answers[name][1] == "(Shard(dim=0),)", name


def test_a_likelihood_step_is_that_of_one_process(answers):
    for name, answer in answers.items():
        if "likelihood" in name:
            assert answer[0] <= 1e-10, name


@pytest.mark.skipif(not FULL, reason="four processes: COLINEAR_FULL=1")
def test_answers_on_a_mesh_of_two_axes_are_those_of_one_process():
    assert not wrong(run_processes(SCRIPT, "grid", "few", count=4)["answers"])


# all-reduces and all-gathers; docs/distributed.md has this table
SENT = {
    "dense product": (0, 1),
    "dense cg": (2, 1),
    "dense cg_single": (1, 1),
    "dense cg_single_preconditioned": (1, 1),
    "dense minres": (2, 1),
    "dense gmres": (2, 1),
    "dense lanczos": (2, 1),
    "dense lobpcg": (2, 1),
    "complex arnoldi": (2, 1),
    "complex gmres": (2, 1),
    "low_rank product": (1, 0),
    "low_rank cg": (3, 0),
    "low_rank cg_single": (2, 0),
    "kronecker product": (0, 2),
    "kronecker cg": (2, 2),
    "kronecker cg_single": (1, 2),
    "gram product": (1, 1),
    "gram cg": (3, 1),
    "gram cg_single": (2, 1),
}


def test_an_iteration_sends_what_the_table_says(found):
    for name, (sums, gathers) in SENT.items():
        sent = dict(found["sent"][name])
        assert sent.pop("all_reduce", 0) <= sums, (name, found["sent"][name])
        assert sent.pop("all_gather_into_tensor", 0) <= gathers, (name, found["sent"][name])
        assert not sent, (name, sent)


def test_odd_lengths_complex_numbers_and_other_layouts_answer_as_one_process(found):
    assert not {name: x for name, x in found["special"].items() if x > 1e-8}


def test_failures_are_told_as_in_one_process(found):
    said = found["said"]
    assert said["indefinite"] == "NOT_POSITIVE_DEFINITE"
    assert said["few"] == "MAX_ITERATIONS"
    assert "DeviceMesh" in said["plain"] and "A.to(device=mesh)" in said["plain"]


def test_the_backend_cuts_gathers_and_computes_by_rows(found):
    assert not {name for name, is_right in found["layouts"].items() if not is_right}
