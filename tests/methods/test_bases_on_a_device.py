"""Bases on a device: no step orthogonalises a random vector in case that it is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.synchronisations import pretended

import colinear as co
from colinear.methods import basis

torch = pytest.importorskip("torch")


def opaque(values: Any) -> Any:
    return co.opaque(co.SelfAdjoint(co.Diagonal(torch.tensor(np.array(values, float)))))


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The random vectors that steps take."""
    taken: list[int] = []
    plain = basis.fresh

    def fresh(xp: Any, noise: Any, i: Any) -> Any:
        taken.append(i)
        return plain(xp, noise, i)

    for name in ("basis", "restarted", "lanczos"):
        module = __import__(f"colinear.methods.{name}", fromlist=["fresh"])
        monkeypatch.setattr(module, "fresh", fresh)
    return taken


def test_steps_draw_nothing(drawn: list[int]) -> None:
    A = opaque(np.linspace(1, 2, 400) ** 8)
    with pretended():
        values, _ = co.eig(A, 3, "LA", co.Lanczos(repeated=False))
        largest = co.svd(A, 3, co.GolubKahan())[1]
        pairs = co.eig(A, 3, "LM", co.Arnoldi(repeated=False))[0]
    expected = np.linspace(1, 2, 400)[-3:] ** 8
    np.testing.assert_allclose(values, expected, rtol=1e-7)
    np.testing.assert_allclose(np.sort(largest), expected, rtol=1e-7)
    np.testing.assert_allclose(np.sort(pairs.real), expected, rtol=1e-7)
    assert len(drawn) <= 6  # where runs look once more


@pytest.mark.parametrize("batch", [(), (2,)])
def test_invariant_subspaces_are_met_all_the_same(batch: tuple[int, ...], drawn: list[int]) -> None:
    few = np.broadcast_to([1.0, 2.0, 2.0, 5.0] * 50, (*batch, 200))  # of a Krylov space of size 3
    A = opaque(few)
    with pretended():
        values, vectors = co.eig(A, 4, "LA", co.Lanczos())
        assert drawn
        V = vectors.to_dense()
    torch.testing.assert_close(values, torch.full((*batch, 4), 5.0, dtype=torch.float64))
    torch.testing.assert_close(V.mT @ V, torch.eye(4, dtype=torch.float64).expand(*batch, 4, 4))
    torch.testing.assert_close(A.to_dense() @ V, 5 * V)
    if not batch:
        with pretended():
            singular = co.svd(A, 4, co.GolubKahan())[1]
            pairs = co.eig(A, 4, "LM", co.Arnoldi())[0]
        torch.testing.assert_close(singular, torch.full((4,), 5.0, dtype=torch.float64))
        torch.testing.assert_close(pairs.real, torch.full((4,), 5.0, dtype=torch.float64))
