"""The order of patterns: which is more general, whether two overlap, and what matches both.

P subsumes Q if whatever matches Q matches P. `subsumes` may say no where the truth is yes (where
several alternatives of a union cover a pattern only together), never the reverse; `overlaps` is
exact, and `meet` is the overlap itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from .patterns import Pattern, Union, assign


def subsumes(p: Pattern, q: Pattern) -> bool:
    """Whether everything that matches q matches p."""
    if isinstance(p, Union) or isinstance(q, Union):
        return all(any(subsumes(a, b) for a in p.alternatives) for b in q.alternatives)
    if q.mask & p.mask != p.mask:
        return False
    if p.is_root:
        return True
    if p.cls is not q.cls:
        return False
    if p.children is None:
        return True
    if q.children is None:
        return False
    if p.cls._commutative:
        if not p.is_open and (q.is_open or len(p.required) != len(q.required)):
            return False
        return assign(p.required, q.required, subsumes) is not None
    # `...` of q stands for none, one, two, ... operands, of which p can tell apart no more than it
    # has patterns.
    most = len(p.required)
    anything = Pattern(None)
    choices = [((c,),) if c is not ... else _lengths(anything, most) for c in q.children]
    return all(
        _includes(p.children, tuple(itertools.chain(*choice)))
        for choice in itertools.product(*choices)
    )


def _lengths(anything: Pattern, most: int) -> tuple[tuple[Any, ...], ...]:
    return (*((anything,) * count for count in range(most)), (*(anything,) * most, ...))


def _includes(p: Sequence[Any], q: Sequence[Any]) -> bool:
    """Whether the row p takes all that the row q takes, where `...` of q is taken by `...` of p
    only."""
    if not p:
        return not q
    if p[0] is ...:
        return _includes(p[1:], q) or (bool(q) and _includes(p, q[1:]))
    return bool(q) and q[0] is not ... and subsumes(p[0], q[0]) and _includes(p[1:], q[1:])


def overlaps(p: Pattern, q: Pattern) -> bool:
    """Whether something can match both."""
    return any(_overlaps(a, b) for a in p.alternatives for b in q.alternatives)


def _overlaps(p: Pattern, q: Pattern) -> bool:
    if p.is_root or q.is_root:
        return True
    if p.cls is not q.cls:
        return False
    if p.children is None or q.children is None:
        return True
    if p.cls._commutative:
        if p.is_open and q.is_open:
            return True  # the operands of both, side by side
        if not p.is_open and not q.is_open and len(p.required) != len(q.required):
            return False
        # all that the open one wants must be among what the closed one has
        few, many = (q, p) if q.is_open else (p, q)
        return assign(few.required, many.required, overlaps) is not None
    return _cross(p.children, q.children)


def _cross(p: Sequence[Any], q: Sequence[Any]) -> bool:
    if not p and not q:
        return True
    if p and p[0] is ...:
        return _cross(p[1:], q) or (bool(q) and _cross(p, q[1:]))
    if q and q[0] is ...:
        return _cross(p, q[1:]) or (bool(p) and _cross(p[1:], q))
    return bool(p) and bool(q) and overlaps(p[0], q[0]) and _cross(p[1:], q[1:])


def meet(p: Pattern, q: Pattern) -> Iterator[Pattern]:
    """Patterns whose union is what matches both p and q."""
    for a, b in itertools.product(p.alternatives, q.alternatives):
        mask = a.mask | b.mask
        if a.is_root or b.is_root:
            yield (b if a.is_root else a).annotated(mask)
        elif a.cls is b.cls:
            if a.children is None or b.children is None:
                yield (b if a.children is None else a).annotated(mask)
            else:
                rows = (
                    _meet_sets(a, b) if a.cls._commutative else _meet_rows(a.children, b.children)
                )
                for row in rows:
                    yield Pattern(a.cls, row, mask)


def _meet_sets(p: Pattern, q: Pattern) -> Iterator[tuple[Any, ...]]:
    rest = (...,) if p.is_open and q.is_open else ()

    def pair(i: int, left: tuple[Pattern, ...]) -> Iterator[tuple[Any, ...]]:
        """The ways to meet p's operands from the i-th on, with what is left of q's."""
        if i == len(p.required):
            if not left or p.is_open:
                yield left
            return
        for j, other in enumerate(left):
            for both in meet(p.required[i], other):
                for row in pair(i + 1, left[:j] + left[j + 1 :]):
                    yield (both, *row)
        if q.is_open:
            for row in pair(i + 1, left):
                yield (p.required[i], *row)

    for row in pair(0, q.required):
        yield (*row, *rest)


def _meet_rows(p: Sequence[Any], q: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    if not p and not q:
        yield ()
        return
    if p and q and p[0] is ... and q[0] is ...:
        for row in itertools.chain(_meet_rows(p[1:], q), _meet_rows(p, q[1:])):
            yield (..., *row)
    elif p and p[0] is ...:
        yield from _meet_rows(p[1:], q)
        if q:
            for row in _meet_rows(p, q[1:]):
                yield (q[0], *row)
    elif q and q[0] is ...:
        yield from _meet_rows(q, p)
    elif p and q:
        for both in meet(p[0], q[0]):
            for row in _meet_rows(p[1:], q[1:]):
                yield (both, *row)
