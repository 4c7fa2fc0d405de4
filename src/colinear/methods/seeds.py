"""Seeds of the random numbers that a method draws: what is taken for one, and independent ones for the parts of a problem."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends import get, namespace_of

SMALL = 2**31  # seeds below this are the same number in every framework


def check_seed(name: str, seed: Any) -> None:
    """An error if no random numbers can be drawn from this."""
    if isinstance(seed, (bool, float, str, type(None))):
        raise TypeError(
            f"{name}: seed is {seed!r}; give an integer, a JAX key, or a NumPy or torch generator. Runs with one integer are the same."
        )
    if isinstance(seed, (int, np.integer)) and seed < 0:
        raise ValueError(f"{name}: seed is {seed}; an integer seed must not be negative.")


def part_seeds(seed: Any, count: int) -> list[Any]:
    """Seeds of independent streams, one for each part of a problem; a generator serves all, as it moves on."""
    if isinstance(seed, (int, np.integer)):
        children = np.random.SeedSequence(int(seed)).spawn(count)
        return [int(child.generate_state(1)[0]) % SMALL for child in children]
    xp = namespace_of(seed)
    return (
        [seed] * count if xp is None else [xp.fold_in(xp.generator(seed), i) for i in range(count)]
    )


def drawn_seed(seed: Any) -> Any:
    """An integer in place of a generator, which moves on by it; integers and JAX keys as they are."""
    if isinstance(seed, (int, np.integer)):
        return int(seed)
    if namespace_of(seed) is not None:
        return seed
    return int(get("numpy").generator(seed).integers(SMALL))


def static_seed(seed: Any) -> int:
    """An integer, which a compiled program can be made for, in place of any seed; zero for a key that is traced (see `Seeded`)."""
    seed = drawn_seed(seed)
    if isinstance(seed, int):
        return seed
    return (
        0
        if namespace_of(seed).is_traced(seed)
        else int(get("numpy").generator(seed).integers(SMALL))
    )
