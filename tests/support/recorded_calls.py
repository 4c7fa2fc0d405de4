"""Calls of one kind with other numbers each time, as a device replays them."""

from __future__ import annotations

from typing import Any

import pytest

import colinear as co

torch = pytest.importorskip("torch")


def normal(g: Any, *shape: int, dtype: Any = None) -> Any:
    return torch.randn(*shape, generator=g, dtype=dtype or torch.float64, device=g.device)


def spd(g: Any, *shape: int, dtype: Any = None) -> Any:
    M = normal(g, *shape, dtype=dtype)
    return M @ M.mH + torch.eye(shape[-1], device=g.device)


def well(g: Any, n: int, dtype: Any = None) -> Any:
    return normal(g, n, n, dtype=dtype) / n + 2 * torch.eye(n, device=g.device)


def line(g: Any, n: int, scale: float = 1.0) -> Any:
    """A tridiagonal matrix whose values decide how it is solved with."""
    ones = scale * torch.ones(n, dtype=torch.float64, device=g.device)
    return co.Tridiagonal(-ones[1:], 2 * ones, -ones[1:])


OPERATORS: dict[str, Any] = {
    "dense": lambda g: co.Dense(well(g, 5)),
    "complex": lambda g: co.Dense(well(g, 5, torch.complex128)),
    "conjugated": lambda g: co.Dense(well(g, 5, torch.complex128).conj()),
    "psd": lambda g: co.PSD(spd(g, 5, 5)),
    "batch": lambda g: co.PSD(spd(g, 3, 5, 5)),
    "kronecker": lambda g: co.Kronecker(well(g, 3), co.PSD(spd(g, 4, 4))),
    "woodbury": lambda g: co.LowRank(normal(g, 30, 2)) + co.Diagonal(normal(g, 30) ** 2 + 1),
    "large woodbury": lambda g: co.LowRank(normal(g, 4000, 4)) + co.Diagonal(normal(g, 4000) ** 2 + 1),
    "sum": lambda g: 2.0 * co.Dense(well(g, 4)) + co.Diagonal(normal(g, 4) ** 2),
    "product": lambda g: co.Dense(well(g, 4)) @ co.Diagonal(normal(g, 4) ** 2 + 1),
    "block": lambda g: co.BlockDiag(well(g, 3), co.PSD(spd(g, 2, 2))),
    "triangular": lambda g: co.Triangular(torch.tril(well(g, 4))),
    "permuted": lambda g: co.Permutation([2, 0, 1], like=normal(g, 1)) @ co.Dense(well(g, 3)),
    "poisson": lambda g: co.KroneckerSum(line(g, 6), line(g, 5)),
    "circulant": lambda g: co.Circulant(normal(g, 6) / 9 + torch.eye(6, dtype=torch.float64, device=g.device)[0]),
}  # fmt: skip
FUNCTIONS: dict[str, Any] = {
    "solve": lambda A, g: co.solve(A, normal(g, *A.batch_shape, A.shape[-1], 2)),
    "logdet": lambda A, g: co.logdet(A),
    "slogdet": lambda A, g: torch.stack([x.abs() for x in co.slogdet(A)]),
    "trace": lambda A, g: co.trace(A),
    "diag": lambda A, g: co.diag(A),
}


def answers(function: str, operator: str, calls: int, device: str = "cpu") -> list[Any]:
    """The results of so many calls."""
    found = []
    for seed in range(calls):
        g = torch.Generator(device).manual_seed(seed)
        found.append(FUNCTIONS[function](OPERATORS[operator](g), g))
    return found
