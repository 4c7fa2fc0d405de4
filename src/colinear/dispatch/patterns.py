"""Patterns: the left-hand sides of rules, and the algebra that orders them.

    Diagonal                    exactly this class (operators are final); LinearOperator matches everything
    Sum[LowRank, Diagonal]      these operands and no others: by position, or in any order where the class commutes
    Product[..., Diagonal]      `...` stands for any number of any operands, also none
    PSD[Tridiagonal], PSD       a property that must be known
    Dense | Toeplitz            either

A pattern matches a signature if it matches every operator that has it; how patterns compare with
each other is in subsumption.py.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from . import signatures
from .signatures import LEVELS, WIDEST, Signature, describe, from_description, signature


class Pattern:
    """What an operator must look like for a rule to apply. Immutable, equal by meaning up to the
    order of commuting operands.

    Parameters
    ----------
    cls : type or None
        The operator's class; the root class, and None, match any operator.
    children : tuple, optional
        Patterns of the operands, in which `...` stands for any number of any operands. None:
        nothing is asked of them.
    mask : int
        The properties that must be known.
    """

    cls: Any
    children: tuple[Any, ...] | None

    def __init__(self, cls: Any, children: tuple[Any, ...] | None = None, mask: int = 0):
        if cls is not None and not (isinstance(cls, type) and hasattr(cls, "_is_root")):
            raise TypeError(f"a pattern is made of operator classes; {cls!r} is not one.")
        self.is_root = cls is None or bool(cls._is_root)
        self.cls = None if self.is_root else cls
        self.mask = mask
        if children is not None:
            children = tuple(c if c is ... else as_pattern(c) for c in children)
            # Repeated `...` say nothing new, and `Cls[...]` says no more than `Cls`.
            children = tuple(
                c
                for i, c in enumerate(children)
                if c is not ... or i == 0 or children[i - 1] is not ...
            )
        self.children = None if children == (...,) else children
        if self.is_root and self.children is not None:
            raise TypeError(
                "LinearOperator matches every operator, so nothing can be said of its operands; "
                "name the classes instead: Sum[Dense, ...] | Product[Dense, ...]."
            )
        self.required = tuple(c for c in self.children or () if c is not ...)
        self.is_open = self.children is None or ... in self.children
        # a list: Dynamo traces it
        self.depth = 1 + max([0, *[child.depth for child in self.required]])
        if self.depth > LEVELS:
            raise ValueError(
                f"{self!r} is nested {self.depth} deep; patterns may be nested {LEVELS} deep. Use "
                "a guard, when=."
            )
        keys: Any = None
        if self.children is not None:
            keys = tuple(c if c is ... else c.key for c in self.children)
            if self.cls._commutative:
                keys = (self.is_open, *sorted((child.key for child in self.required), key=repr))
        self.key: tuple[Any, ...] = (self.cls, mask, keys)
        self.spec: tuple[Any, ...] = (
            self.cls,
            mask,
            None if self.children is None else tuple(map(_spec, self.children)),
        )

    @property
    def alternatives(self) -> tuple[Pattern, ...]:
        """The patterns without a union at the top of which this is the union."""
        return (self,)

    @cached_property
    def operand_classes(self) -> list[set[Any]]:
        """For each operand that is asked for by class, the classes that it may have: a quick test."""
        if not self.required:
            return []
        wanted = [{a.cls for a in child.alternatives} for child in self.required]
        return [classes for classes in wanted if None not in classes]

    def annotated(self, mask: int) -> Pattern:
        """The same, of operators that also have these properties."""
        return Pattern(self.cls, self.children, self.mask | mask)

    def matches(self, s: Signature) -> bool:
        """Whether every operator with this signature matches."""
        if (s.cls is not self.cls and not self.is_root) or s.mask & self.mask != self.mask:
            return False
        if self.children is None:
            return True
        if s.children is None:
            return False
        commutes = self.cls._commutative
        if s.collapsed:
            return (_matches_collapsed_set if commutes else _matches_collapsed_row)(
                self, s.children
            )
        if not self._counts_fit(len(s.children)):
            return False
        # The plain loops are there for speed: most patterns fail in them, before the search for an
        # assignment.
        if not commutes:
            for child, c in zip(self.children, s.children):
                if child is ...:
                    return place(self.children, s.children, _matches) is not None
                if not child.matches(c):
                    return False
            return not self.is_open or place(self.children, s.children, _matches) is not None
        places = []
        for child in self.required:
            places.append([i for i, c in enumerate(s.children) if child.matches(c)])
            if not places[-1]:
                return False
        if len(places) == 2:  # most rules: two operands for the one, or another for the other
            return len(places[0]) > 1 or len(places[1]) > 1 or places[0] != places[1]
        return len(places) < 2 or assign(self.required, s.children, _matches) is not None

    def _counts_fit(self, count: int) -> bool:
        return count >= len(self.required) if self.is_open else count == len(self.required)

    def __or__(self, other: Any) -> Pattern:
        return union(self, as_pattern(other))

    def __ror__(self, other: Any) -> Pattern:
        return union(as_pattern(other), self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pattern) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> tuple[Any, ...]:
        return Pattern, (self.cls, self.children, self.mask)

    def __repr__(self) -> str:
        names = properties.strongest_names(self.mask)
        text = "LinearOperator" if self.cls is None else self.cls.__name__
        if self.children is not None:
            text += f"[{', '.join('...' if c is ... else repr(c) for c in self.children) or '()'}]"
        if self.is_root and names:
            text = names.pop()
        for name in reversed(names):
            text = f"{name}[{text}]"
        return text


class Union(Pattern):
    """Either of several patterns. Made by `|`."""

    def __init__(self, alternatives: tuple[Pattern, ...]):
        self._alternatives = alternatives
        bare = [a for a in alternatives if a.cls is not None and a.children is None and not a.mask]
        # most unions are of bare classes: one look-up then decides
        self._classes = frozenset(a.cls for a in bare)
        self._others = tuple(a for a in alternatives if a not in bare)
        self.depth = max(a.depth for a in alternatives)
        self.key = ("|", *sorted((a.key for a in alternatives), key=repr))
        self.spec = ("|", *(a.spec for a in alternatives))

    @property
    def alternatives(self) -> tuple[Pattern, ...]:
        return self._alternatives

    def annotated(self, mask: int) -> Pattern:
        return Union(tuple(a.annotated(mask) for a in self._alternatives))

    def matches(self, s: Signature) -> bool:
        if s.cls in self._classes:
            return True
        for a in self._others:
            if a.matches(s):
                return True
        return False

    def __reduce__(self) -> tuple[Any, ...]:
        return Union, (self._alternatives,)

    def __repr__(self) -> str:
        return " | ".join(map(repr, self._alternatives))


def union(*patterns: Pattern) -> Pattern:
    """The union of patterns, each once."""
    alternatives = tuple(dict.fromkeys(a for p in patterns for a in p.alternatives))
    return alternatives[0] if len(alternatives) == 1 else Union(alternatives)


def as_pattern(x: Any) -> Pattern:
    """What may be written for a pattern, as a `Pattern`: a class, an annotation, a union of
    them, or a pattern."""
    if isinstance(x, Pattern):
        return x
    if isinstance(x, type):
        return Pattern(x)
    if isinstance(x, types.UnionType):
        return union(*map(as_pattern, x.__args__))
    if x is ...:
        raise TypeError(
            "`...` stands for operands, so it belongs in brackets: Product[..., Diagonal]."
        )
    if isinstance(getattr(x, "mask", None), int):
        return Pattern(None, None, x.mask)
    raise TypeError(
        f"{x!r} is not a pattern; write an operator class, Cls[...], an annotation such as PSD, "
        "or a union of these."
    )


def _spec(x: Any) -> Any:
    """A pattern as nested tuples of constants (see `arrange`)."""
    return x if x is ... else (x, 0, None) if isinstance(x, type) else as_pattern(x).spec


def _from_spec(spec: Any) -> Any:
    if spec is ...:
        return spec
    if spec[0] == "|":
        return union(*map(_from_spec, spec[1:]))
    cls, mask, children = spec
    return Pattern(cls, None if children is None else tuple(map(_from_spec, children)), mask)


# --------------------------------------------------------------------------------------------------

Fits = Callable[[Any, Any], bool]


def _matches(p: Pattern, s: Signature) -> bool:
    return p.matches(s)


def assign(wanted: Sequence[Any], given: Sequence[Any], fits: Fits) -> list[int] | None:
    """A different one of `given` for each of `wanted` that fits it, by index; None if there is
    none (Kuhn's augmenting paths)."""
    if len(wanted) > len(given):
        return None
    owner: dict[int, int] = {}  # given -> wanted

    def find(i: int, seen: set[int]) -> bool:
        for j, candidate in enumerate(given):
            if j not in seen and fits(wanted[i], candidate):
                seen.add(j)
                if j not in owner or find(owner[j], seen):
                    owner[j] = i
                    return True
        return False

    if not all(find(i, set()) for i in range(len(wanted))):
        return None
    return [j for _, j in sorted((i, j) for j, i in owner.items())]


def place(wanted: Sequence[Any], given: Sequence[Any], fits: Fits) -> list[int] | None:
    """The first index in `given` of each of `wanted`, in order, where `...` takes what lies
    between; None if they do not fit."""

    def find(i: int, j: int) -> list[int] | None:
        if i == len(wanted):
            return [] if j == len(given) else None
        if wanted[i] is ...:
            fewest = sum(w is not ... for w in wanted[i + 1 :])
            for k in range(j, len(given) - fewest + 1):
                if (rest := find(i + 1, k)) is not None:
                    return [j, *rest]
            return None
        if (
            j < len(given)
            and fits(wanted[i], given[j])
            and (rest := find(i + 1, j + 1)) is not None
        ):
            return [j, *rest]
        return None

    return find(0, 0)


def _matches_collapsed_set(pattern: Pattern, distinct: Sequence[Signature]) -> bool:
    """Of more than `WIDEST` commuting operands each of `distinct` occurs at least once, and
    nothing else does."""
    if not pattern.is_open or len(pattern.required) > WIDEST:
        return False
    # What every operand matches finds one; the others need one each that is certainly there.
    particular = [p for p in pattern.required if not all(p.matches(s) for s in distinct)]
    return assign(particular, distinct, _matches) is not None


def _matches_collapsed_row(pattern: Pattern, known: Sequence[Signature]) -> bool:
    """Of more than `WIDEST` operands in a row the first and the last are known; between them the
    rest occur in unknown order."""
    if not pattern.is_open or len(pattern.required) >= WIDEST:
        return False
    first, last, *middle = known
    assert pattern.children is not None
    runs: list[list[Pattern]] = [[]]  # what must stand side by side, between the `...`
    for child in pattern.children:
        if child is ...:
            runs.append([])
        else:
            runs[-1].append(child)
    prefix, *inner, suffix = runs

    def everywhere(p: Pattern) -> bool:
        return all(p.matches(s) for s in middle)

    if prefix and not (prefix[0].matches(first) and all(map(everywhere, prefix[1:]))):
        return False
    if suffix and not (suffix[-1].matches(last) and all(map(everywhere, suffix[:-1]))):
        return False
    if not prefix and inner and len(inner[0]) == 1 and inner[0][0].matches(first):
        del inner[0]
    if not suffix and inner and len(inner[-1]) == 1 and inner[-1][0].matches(last):
        del inner[-1]
    if all(everywhere(p) for run in inner for p in run):
        return True
    alone = len(inner) == 1 and len(inner[0]) == 1 and len(prefix) <= 1 and len(suffix) <= 1
    return alone and any(inner[0][0].matches(s) for s in middle)


MOST_ARRANGED = 4096
_arranged: dict[Any, tuple[Any, ...]] = {}


def arrange(A: Any, *children: Any) -> tuple[Any, ...]:
    """The operands of A in the order of these patterns: how a rule names the operands that its
    pattern found in any order.

    `...` gives the tuple of the operands that it stands for.

    Examples
    --------
    In a rule for `Sum[LowRank, Diagonal]`, whichever of them was added first:

    >>> import colinear as co
    >>> A = co.Diagonal([1.0, 2.0]) + co.LowRank([[1.0], [1.0]])
    >>> low_rank, diagonal = arrange(A, co.LowRank, co.Diagonal)
    >>> diagonal.d
    array([1., 2.])
    """
    operands = A.operands
    if signatures.is_compiling is not None and signatures.is_compiling():
        places = _places_at_compile_time(
            (type(A), 0, tuple([_spec(c) for c in children])), describe(A)
        )
    else:
        key = (
            type(A),
            children,
            tuple([operand._signature or signature(operand) for operand in operands]),
        )
        found = _arranged.get(key)
        if found is None:
            if len(_arranged) >= MOST_ARRANGED:
                _arranged.clear()
            found = _arranged[key] = _places(Pattern(type(A), children), key[2])
        places = found
    return tuple(
        [operands[i] if isinstance(i, int) else tuple([operands[j] for j in i]) for i in places]
    )


def _places(pattern: Pattern, operands: Sequence[Signature]) -> tuple[Any, ...]:
    """The index of the operand for each child of the pattern, a tuple of them for `...`."""
    count = len(operands)
    if pattern.children is None:
        return (tuple(range(count)),)
    if pattern.cls._commutative:
        indices = (
            assign(pattern.required, operands, _matches) if pattern._counts_fit(count) else None
        )
        if indices is not None:
            taken, chosen = set(indices), iter(indices)
            rest = tuple(i for i in range(count) if i not in taken)
            return tuple(rest if c is ... else next(chosen) for c in pattern.children)
    else:
        indices = place(pattern.children, operands, _matches)
        if indices is not None:
            ends = [*indices[1:], count]
            return tuple(
                tuple(range(i, end)) if c is ... else i
                for c, i, end in zip(pattern.children, indices, ends)
            )
    raise ValueError(f"the {count} operands do not match {pattern!r}.")


def _places_at_compile_time(spec: tuple[Any, ...], description: tuple[Any, ...]) -> tuple[Any, ...]:
    return _places(_from_spec(spec), [from_description(operand) for operand in description[2]])


_places_at_compile_time._dynamo_marked_constant = True  # type: ignore[attr-defined]  # see signatures.py


# Properties are written as patterns too.
from .. import properties
