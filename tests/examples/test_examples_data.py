"""The examples on data, at small scale and on their synthetic stand-ins: what they find is what statistics says."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Run an example without the real data, so that it finds the same everywhere; what it returns, and what it printed."""
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("COLINEAR_DATA", str(tmp_path / "nothing"))
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def example(name):
        picture = tmp_path / f"{name}.png"
        found = importlib.import_module(name).main(["--small", "--output", str(picture)])
        printed = capsys.readouterr().out
        assert picture.stat().st_size > 5000, "a picture with something in it"
        assert " ok: " in printed and "WRONG" not in printed and "What" in printed, (
            "it says what it checked and what it chose"
        )
        return found, printed

    yield example
    for name in [path.stem for path in EXAMPLES.glob("*.py")]:
        sys.modules.pop(name, None)  # the next file of tests may have one of the same name


def test_principal_components_are_those_of_the_singular_value_decomposition(run):
    found, printed = run("principal_components")
    assert found["error"] < 1e-6 and found["angle"] < 1e-3
    assert found["share"] == pytest.approx(0.92, abs=0.02)
    assert "synthetic" in printed, "it says that the data is not real"


def test_ridge_regression_is_that_of_the_normal_equations(run):
    found, _ = run("ridge_regression")
    assert found["difference"] < 1e-10
    assert found["error"] <= found["worst"]
    assert found["error"] == pytest.approx(0.635, abs=0.02)


def test_the_likelihood_of_a_gaussian_process_is_that_of_cholesky(run):
    pytest.importorskip("torch")
    found, _ = run("gaussian_process")
    for name in ("elevators", "kin40k"):
        assert found[f"{name} likelihood"] == pytest.approx(found[f"{name} textbook"], rel=1e-10)
        assert found[f"{name} error"] < 0.75
        assert 0.85 < found[f"{name} inside"] <= 1


def test_tasks_learn_from_each_other(run):
    pytest.importorskip("torch")
    found, _ = run("multitask_process")
    assert found["likelihood"] == pytest.approx(found["textbook"], rel=1e-10)
    assert found["error"] < found["error alone"]
    assert found["distance"] < 0.3


def test_random_features_are_solved_exactly(run):
    found, printed = run("random_features")
    assert found["difference"] < 1e-6
    assert found["likelihood"] == pytest.approx(found["dense"], rel=1e-10)
    assert found["length"] >= 4 and found["error"] < 0.6
    assert "SUCCESS" in printed and "MAX_ITERATIONS" in printed, "each method says how it ended"


def test_planted_communities_are_recovered(run):
    found, _ = run("spectral_clustering")
    assert found["accuracy"] == 1
    assert found["error"] < 1e-9
    assert found["bound"] <= found["cut"] < 0.6 * found["chance"]


def test_an_example_that_finds_otherwise_ends_with_an_error(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    gallery = importlib.import_module("gallery")
    with pytest.raises(AssertionError, match="found otherwise: water runs uphill"):
        gallery.check("water runs uphill", False)
    assert "WRONG" in capsys.readouterr().out
    sys.modules.pop("gallery")
