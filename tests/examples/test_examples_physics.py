"""The examples of physics and of networks find what theory says. Each also checks itself, and would end with an error."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], dict[str, float]]]:
    """Runs an example at its small size: what it found. It has drawn its picture."""
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def run(example: str) -> dict[str, float]:
        text = (EXAMPLES / f"{example}.py").read_text(encoding="utf-8")
        for framework in ("torch", "jax"):
            if f"import {framework}" in text:
                pytest.importorskip(framework)
        picture = tmp_path / f"{example}.png"
        results = importlib.import_module(example).main(["--small", "--output", str(picture)])
        assert picture.stat().st_size > 5_000
        return results

    yield run
    for path in EXAMPLES.glob("*.py"):
        sys.modules.pop(path.stem, None)  # other tests may have a module of the same name


def test_the_energies_of_hydrogen_are_those_of_bohr(found):
    energies = found("hydrogen_atom")
    assert energies["1s"] == pytest.approx(-1 / 2, abs=2e-3)
    assert energies["2p"] == pytest.approx(-1 / 8, abs=1e-3)
    assert energies["2s"] == pytest.approx(-1 / 8, abs=2e-3)
    assert energies["spread of 2p"] < 1e-6


def test_a_plate_bends_as_it_should_and_its_structure_saves_products(found):
    plate = found("bi_poisson")
    assert plate["order"] == pytest.approx(2, abs=0.01)
    assert plate["error"] < 1e-4
    assert plate["sines"] == 0 and 2 * plate["CG on L, twice"] < plate["CG on L L"]


def test_a_soap_film_is_in_balance_and_is_scherks_surface(found):
    film = found("minimal_surface")
    assert film["residual"] < 1e-8
    assert film["order"] == pytest.approx(2, abs=0.1) and film["error"] < 2e-3


def test_equivariant_layers_are_as_many_as_group_theory_says(found):
    layers = found("equivariant_layers")
    assert layers["pairs to pairs"] == 15  # Bell(4)
    assert (
        layers["whole layer"]
        == layers["expected"]
        == 4 * 1 + 4 * 2 * 1 + 4 * 2 + 2 * 2 * 2 + 2 * 2 * 5 + 15
    )


def test_a_network_follows_a_wave(found):
    wave = found("neural_pde")
    assert wave["error"] < 0.05  # of which most is that of the fit at t = 0
    assert 3 * wave["iterations"] < wave["iterations of CG alone"]


def test_curvature_trains_a_network_in_fewer_steps(found):
    losses = found("second_order")
    assert (
        losses["Kronecker-factored"] < 0.8 * losses["Adam"]
        and losses["Gauss-Newton"] < losses["Adam"]
    )
    assert losses["Adam"] < losses["gradient descent"]


def test_the_spectrum_of_a_hessian_is_that_of_the_dense_matrix(found):
    spectrum = found("hessian_spectrum")
    assert spectrum["ends"] < 1e-6 and spectrum["inside"] >= 0.9
    assert spectrum["smallest"] < 0 < spectrum["largest"]  # not yet at a minimum, or at a saddle
    assert spectrum["Gauss-Newton"] < 0.35


def test_total_variation_keeps_edges(found):
    errors = found("total_variation")
    assert errors["ADMM"] < 0.7 * errors["smoothed"] < errors["noisy"]
    assert errors["projections"] < 0.5 * errors["least squares"]


def test_first_programs_find_what_they_look_for(found):
    """As a physicist, a statistician, users of torch and JAX and one of signals would write them."""
    assert found("first_physics")["lowest"] == pytest.approx(19.74, abs=0.02)  # 2 π², of the grid
    assert found("first_statistics")["slope"] == pytest.approx(1, abs=0.02)
    assert found("first_torch")["noise"] == pytest.approx(0.1, abs=0.02)
    assert found("first_jax")["error"] < 0.3
    assert found("first_signals")["error"] < 0.06
