"""How often matrices are factored, rules looked for and programs traced, for tests that something is done once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import scipy.sparse.linalg

from colinear import backends
from colinear.dispatch import Function
from colinear.functions.determinant import bands
from colinear.functions.solve import families, inverse

FACTORISATIONS = (
    "lu_factor cholesky cholesky_or_nan ldl_factor qr qr_pivoted eigh eig eigvals eigvalsh svd svdvals"
).split()


@contextmanager
def count_factorisations(backend: str = "numpy") -> Iterator[Counter[str]]:
    """The factorisations made inside, by name, those that are part of another left out."""
    xp = backends.get(backend)
    places = [(xp, name) for name in FACTORISATIONS if hasattr(xp, name)]
    places += [(scipy.sparse.linalg, "splu"), (families, "BandedLU")]
    places += [(families, "columns_of_inverse"), (xp, "solve_banded")]
    places += [(bands, f"{kind}_slogdet") for kind in ("banded", "sparse", "toeplitz")]
    places += [(inverse, "lu_factor_and_solve")]
    yield from _counted(places)


@contextmanager
def count_searches() -> Iterator[Counter[str]]:
    """How often the rules of a function were compared with a structure."""
    yield from _counted([(Function, "_resolve")])


def _counted(places: list[tuple[Any, str]]) -> Iterator[Counter[str]]:
    found: Counter[str] = Counter()
    inside = 0

    def watch(name: str, f: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal inside
            found[name.removesuffix("_and_solve").removesuffix("_or_nan")] += not inside
            inside += 1
            try:
                return f(*arguments, **options)
            finally:
                inside -= 1

        return call

    originals = [(where, name, getattr(where, name)) for where, name in places]
    for where, name, f in originals:
        setattr(where, name, watch(name, f))
    try:
        yield found
    finally:
        for where, name, f in originals:
            setattr(where, name, f)
