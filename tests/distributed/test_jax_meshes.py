"""Operators spread over a mesh of four devices answer as on one, and communicate as the table in
docs/distributed.md says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.compiling import environment_of_devices

SECONDS = 1500  # after which the process is ended; it takes some 90 of an idle processor
SCRIPT = Path(__file__).parent / "mesh_cases.py"
PAGE = Path(__file__).parents[2] / "docs" / "distributed.md"
N = 64  # rows of the operators there
SIZES = {"n": N, "r": 4, "d": 2, "k": 8, "h": 1}  # by the letters of the table
FULL = bool(os.environ.get("COLINEAR_FULL"))
MODES = ["eager", "shard", "explicit", "explicit jit"] + ["shard jit"] * FULL


@pytest.fixture(scope="module")
def answers():
    jax = pytest.importorskip("jax")
    if not hasattr(jax.sharding, "AxisType"):
        pytest.skip("this JAX has no types of axes")
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", SCRIPT],
        env=environment_of_devices(4),
        capture_output=True,
        text=True,
        timeout=SECONDS * (8 if FULL else 1),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("mode", MODES)
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
        if name in answers[mode]:
            assert "'x'" in answers[mode][name][1], name


@pytest.mark.parametrize("name", ["dense", "low_rank", "kronecker", "gram"])
def test_an_iteration_of_cg_sums_two_numbers_and_gathers_no_matrix(answers, name):
    loops = answers["iterations"][name]["sent"]
    sums = 3 if name in ("low_rank", "gram") else 2  # these products sum over rows
    assert loops
    for sizes in loops:  # a Kronecker product has one for each factor
        assert len(sizes["all-reduce"]) <= sums, sizes
        assert max(sizes["all-reduce"] + sizes["all-gather"], default=0) <= N, sizes
        assert not sizes["all-to-all"], sizes


def test_cg_solves_with_every_operator_as_shard_places_it(answers):
    assert len(answers["iterations"]) == 16
    assert max(found["difference"] for found in answers["iterations"].values()) < 1e-9


def table():
    """The sizes of gathers, sums and messages to neighbours in the rows of the docs' first table."""
    text = PAGE.read_text().partition("## What an iteration sends")[2]
    text = text.partition("A step of the other methods")[0]
    read = lambda cell: sorted(eval(each, dict(SIZES)) for each in cell.split(",") if each.strip())
    rows = re.findall(r"^\| `(\w+)`[^|]*\|([^|]*)\|([^|]*)\|([^|]*)\|", text, re.MULTILINE)
    return {name: [read(cell) for cell in cells] for name, *cells in rows}


def test_an_iteration_of_cg_sends_what_the_table_says(answers):
    rows, found = table(), answers["iterations"]
    assert {"dense", "low_rank", "kernel", "kronecker", "sparse", "gram", "batch_sum"} <= set(rows)
    for name, expected in rows.items():
        if name == "whole":
            loops = answers["whole vectors"]["sent"]
        else:
            loops = [each for each in found[name]["sent"] if sum(map(sum, each.values()))]
        kinds = ("all-gather", "all-reduce", "collective-permute")
        sent = [[sorted(loop[kind]) for kind in kinds] for loop in loops]
        assert sent == [expected], name


@pytest.mark.parametrize("name", ["block_diag", "opaque", "hessian"])
def test_no_iteration_of_cg_sends_more_than_a_few_vectors(answers, name):
    for sizes in answers["iterations"][name]["sent"]:
        assert len(sizes["all-reduce"]) <= 3, sizes
        assert max((x for each in sizes.values() for x in each), default=0) <= 2 * N, sizes


def test_products_on_grids_are_those_on_one_device(answers):
    assert {name: x["difference"] for name, x in answers["divided"].items()} == {
        name: pytest.approx(0, abs=1e-12) for name in answers["divided"]
    }


def test_products_on_grids_send_halos_or_exchange_frequencies_and_gather_nothing(answers):
    for name, found in answers["divided"].items():
        sent, predicted = found["sent"], found["predicted"]
        if predicted["repeated"]:
            assert name in ("uneven", "uneven transform", "rectangular")
            continue
        assert not sent["all-gather"] + sent["all-reduce"] + sent["reduce-scatter"], name
        assert sorted(sent["collective-permute"]) == sorted(predicted["shifts"]), name
        assert sorted(sent["all-to-all"]) == sorted(predicted["exchanges"]), name
        assert ("halos" in name) == bool(predicted["shifts"]), name
    assert len(answers["divided"]["toeplitz"]["sent"]["all-to-all"]) == 2
    assert len(answers["divided"]["circulant"]["sent"]["all-to-all"]) == 2
    assert len(answers["divided"]["transform of a line"]["sent"]["all-to-all"]) == 3


@pytest.mark.parametrize(
    "name",
    "dense low_rank kernel batch_sum sparse gram toeplitz circulant convolution smooth".split(),
)
def test_what_is_predicted_is_what_is_sent(answers, name):
    found = answers["iterations"][name]
    (sizes,) = found["sent"]
    assert sorted(sizes["all-to-all"]) == sorted(found["predicted"]["exchanges"])
    assert sorted(sizes["all-gather"]) == sorted(found["predicted"]["gathers"])
    assert sorted(sizes["all-reduce"]) == sorted([*found["predicted"]["sums"], 1, 1])
    assert sorted(sizes["collective-permute"]) == sorted(found["predicted"]["shifts"])


STEPS = ("cg", "cg_single", "gmres", "lanczos", "arnoldi", "lobpcg")


@pytest.mark.parametrize("numbers", ["", "complex "])
@pytest.mark.parametrize("call", STEPS)
def test_a_step_makes_as_many_sums_as_the_table_says(answers, call, numbers):
    """As a rule, and with those of branches that are seldom taken."""
    row = rf"^\| `{call}`[^|]*\| (\d+) \| (\d+) \|"
    expected = [int(x) for x in re.search(row, PAGE.read_text(), re.MULTILINE).groups()]
    loops = answers["steps"][numbers + call]
    assert [len(sizes["all-reduce"]) for (sizes,) in loops] == expected


@pytest.mark.parametrize("call", ["cg_single", "lobpcg"])
def test_a_preconditioner_adds_no_sum(answers, call):
    usual, most = answers["steps"][f"preconditioned {call}"]
    plain = answers["steps"][call]
    for kind, (sizes,), (expected,) in zip(("usual", "most"), (usual, most), plain, strict=True):
        assert len(sizes["all-reduce"]) == len(expected["all-reduce"]), kind


@pytest.mark.parametrize("call", STEPS)
def test_bases_stay_where_they_are(answers, call):
    block = 7 if call == "lobpcg" else 1
    for (sizes,) in answers["steps"][call]:
        assert sizes["all-gather"] == [N * block]  # the vectors that the matrix multiplies
        assert max(sizes["all-reduce"]) < N * 2 * block
        assert not sizes["all-to-all"]


def test_a_gram_matrix_stores_its_factor_once(answers):
    assert answers["whole vectors"]["leaves"] == 1


def test_gather_undoes_shard(answers):
    for name, (far, is_same_type, places) in answers["round trips"].items():
        assert far < 1e-14, name
        assert is_same_type, name
        assert places == [1], name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dense", "Cholesky gathers 32 KiB on each device"),
        ("dense", "8 KiB of 32 KiB on each"),
        ("low_rank", "sums 4 over the devices"),
        ("kernel", "gathers 192 numbers"),
        ("sparse", "sends 1 + 1 to the neighbours"),
        ("toeplitz", "exchanges 20 + 20 on each with all others"),
        ("convolution", "sends 8 + 8 to the neighbours"),
    ],
)
def test_explain_says_what_lies_where_and_what_is_sent(answers, name, said):
    assert said in answers["iterations"][name]["explained"]


def test_explain_says_what_a_step_of_the_method_sums(answers):
    two, one = answers["limits"]["steps"]
    assert two == "a step of CG adds 2 sums over the devices"
    assert one == "a step of CG adds 1 sum over the devices"


def test_a_sparse_matrix_on_another_mesh_is_cut_anew(answers):
    gathers, far = answers["limits"]["again"]
    assert gathers == [False, True]
    assert far < 1e-12


def test_auto_iterates_with_a_stored_matrix_that_a_device_cannot_hold(answers):
    found = answers["limits"]
    assert found["fits"] == ["Cholesky", "Cholesky"]
    assert found["large"] == ["CG", "SLQ"]
    assert "'x'" in found["cut"][0]


def test_rows_of_a_file_are_cut_evenly_or_refused(answers):
    found = answers["limits"]
    assert "6 rows, which 4 devices cannot share evenly" in found["six rows"]
    assert found["eight rows"] == [list(range(8)), "P('x',)", "float32"]


def test_what_cannot_be_cut_is_whole_on_every_device(answers):
    assert answers["limits"]["uneven"] == [4, True]
