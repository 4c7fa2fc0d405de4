"""On a CUDA device a call waits once, for its status: counted by torch itself, for every function of the registry."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from support.devices import cuda
from support.registry import MAKERS
from support.synchronisations import CALLS, allowed, counted_on_device

import colinear as co
from colinear import backends

pytestmark = pytest.mark.gpu

# What a device waits for beyond what can be counted without one: a scan, whose arrays go to the host one by one.
MORE_ON_A_DEVICE = {
    ("qr", maker): 3
    for maker in ("annotated_pd_tridiagonal", "tridiagonal", "tridiagonal_broadcast")
}


def count(name: str, maker: str) -> list[list[str]]:
    """The waits of a call, of an operator and of a batch of them, where it has a meaning and succeeds."""
    device, xp, found = cuda("torch"), backends.get("torch"), []
    for batch in ((), (2,)):
        made = MAKERS[maker](xp, "float64", batch, np.random.default_rng(0))
        if made is None:
            continue
        A = made[0].to(device=device)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                CALLS[name](A)  # workspaces are taken, and what an operator keeps is there
            except (co.ColinearError, ValueError, TypeError):
                continue
        if any(issubclass(each.category, co.ConvergenceWarning) for each in caught):
            continue  # what failed is run again
        again = MAKERS[maker](xp, "float64", batch, np.random.default_rng(0))[0].to(device=device)
        with counted_on_device() as waits:
            CALLS[name](again)
        found.append(waits)
    return found


@pytest.mark.parametrize("maker", sorted(MAKERS))
def test_a_call_waits_for_the_device_once(maker: str) -> None:
    """The exceptions are those of `tests/conformance/test_synchronisations.py`, which sees whether each is needed."""
    too_many = []
    for name in CALLS:
        worst: list[str] = max(count(name, maker), key=len, default=[])
        limit = MORE_ON_A_DEVICE.get((name, maker), allowed(name, maker))
        if len(worst) > limit:
            too_many.append(f"{name}: {len(worst)} waits, {limit} allowed: {worst}")
    assert not too_many, "\n".join(too_many)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning")
def test_in_a_block_no_call_waits() -> None:
    torch: Any = pytest.importorskip("torch")
    device = cuda("torch")
    g = torch.Generator(device).manual_seed(0)
    normal = lambda *shape: torch.randn(*shape, generator=g, device=device)
    M, U, b = normal(12, 12), normal(12, 2), normal(12)
    d = torch.rand(12, generator=g, device=device) + 1
    eye = torch.eye(12, device=device)
    K = normal(3, 3) + 5 * eye[:3, :3], normal(4, 4) + 5 * eye[:4, :4]
    positive = co.PSD(M @ M.T + eye)
    calls = [
        lambda: co.solve(co.Diagonal(d), b),
        lambda: co.solve(M + 12 * eye, b),
        lambda: co.solve(positive, b),
        lambda: co.solve(co.LowRank(U) + co.Diagonal(d), b),
        lambda: co.solve(co.Kronecker(*K), b),
        lambda: co.logdet(positive),
    ]
    expected = [f() for f in calls]
    with co.deferred():
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            found = [f() for f in calls]
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y)
