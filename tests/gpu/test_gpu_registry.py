"""Every function of the registry gives on a CUDA device what it gives on the host."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from support.devices import cuda
from support.registry import MAKERS
from support.synchronisations import CALLS

import colinear as co
from colinear import backends

pytestmark = pytest.mark.gpu
TOLERANCE = 1e-7  # of double precision, of operators whose condition is some hundreds at most


def matrix(x: Any) -> Any:
    return x.to_dense() if isinstance(x, co.LinearOperator) else x


# Of a singular matrix they are not unique, or rounding.
OF_NONSINGULAR = "slogdet logdet det cond power sqrt isqrt log".split()
SINGULAR = 1e8  # the condition

# What does not depend on a choice of signs, phases or bases.
UNIQUE: dict[str, Any] = {
    "eig": lambda found: [found[0]],
    "svd": lambda found: [found[1]],
    "qr": lambda found: [found[0] @ found[1]],
    "lu": lambda found: [found[0] @ found[1] @ found[2]],
    "cholesky": lambda found: [found @ found.H],
    "nullspace": lambda found: [found @ found.H],
}


def arrays(name: str, found: Any) -> list[np.ndarray]:
    parts = UNIQUE.get(name, lambda x: list(x) if isinstance(x, tuple) else [x])(found)
    parts = [
        np.asarray(x if (xp := backends.namespace_of(x)) is None else xp.to_numpy(x))
        for x in map(matrix, parts)
    ]
    return [np.sort_complex(parts[0])] if name == "eig" else parts


def called(name: str, A: Any) -> Any:
    """What a call gives; None where it has no meaning, or warns."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = CALLS[name](A)
        except (co.ColinearError, ValueError, TypeError):
            return None
    return (
        None if any(issubclass(each.category, co.ConvergenceWarning) for each in caught) else found
    )


@pytest.mark.parametrize("maker", sorted(MAKERS))
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_functions_give_on_a_device_what_they_give_on_the_host(framework: str, maker: str) -> None:
    device, xp = cuda(framework), backends.get(framework)
    made = MAKERS[maker](xp, "float64", (), np.random.default_rng(0))
    if made is None:
        pytest.skip("no such operator")
    A = made[0]
    B = A.to(device=device)
    names = tuple(CALLS)
    if framework == "jax":  # which compiles each
        names = ("solve", "slogdet") if A.shape[-2] == A.shape[-1] else ("lstsq", "svd")
    wrong, compared = [], 0
    is_singular = not np.linalg.cond(xp.to_numpy(A.to_dense())) < SINGULAR
    for name in names:
        expected = called(name, A)
        if expected is None or (is_singular and name in OF_NONSINGULAR):
            continue
        found = called(name, B)
        if found is None:
            wrong.append(f"{name}: it fails on the device alone")
            continue
        compared += 1
        for x, y in zip(arrays(name, found), arrays(name, expected), strict=True):
            error = np.linalg.norm((x - y).ravel())
            if not (x.shape == y.shape and error <= TOLERANCE * (1 + np.linalg.norm(y.ravel()))):
                wrong.append(f"{name}: off by {error:.1e} of {np.linalg.norm(y.ravel()):.1e}")
    assert not wrong, "\n".join(wrong)
    assert compared or is_singular
