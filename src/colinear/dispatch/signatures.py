"""Signatures: what dispatch sees of an operator, as one interned object.

The signature of a tree is its class, its properties and the signatures of its operands, down to
`LEVELS` levels. It is interned, so that equal trees share one object and a dictionary finds their
rules by its identity. What would make it large is forgotten:

    cut         below the last level the operands are unknown
    collapsed   of more than `WIDEST` operands only the distinct ones are kept: the first, the last
    and the set of those between,
                or, where order does not matter, the set

A pattern matches a cut or collapsed signature only if it matches every operator that has it
(`patterns.py`).
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

from .. import backends

LEVELS = 4  # of a signature and of a pattern
WIDEST = 8  # operands whose number and order a signature still knows
MOST_DISTINCT = 32  # different operands that a collapsed signature keeps
MOST_SIGNATURES = 100_000  # in the table: then it is emptied, and only identity is lost

_table: dict[Any, Signature] = {}
MEMOS: dict[Any, dict[str, Any]] = {}  # what operators of one array remember, with their signature
rules_added = 0  # to all functions, so far: what was decided before may be decided otherwise
_numbers = itertools.count()
_number = attrgetter("number")


class Signature:
    """The class, properties and operands of an operator, as far as dispatch looks. Made by
    `signature` and `intern` only."""

    __slots__ = ("_cuts", "children", "cls", "collapsed", "depth", "mask", "number")
    cls: Any  # None: unknown
    mask: int
    children: tuple[Signature, ...] | None  # None: unknown
    collapsed: bool
    depth: int

    def __init__(
        self, cls: type | None, mask: int, children: tuple[Signature, ...] | None, collapsed: bool
    ):
        self.cls, self.mask, self.children, self.collapsed = cls, mask, children, collapsed
        self.depth = 1 + max([child.depth for child in children]) if children else 1
        self.number = next(_numbers)
        self._cuts: dict[int, Signature] | None = None

    def cut(self, levels: int) -> Signature:
        """The same signature with only so many levels."""
        if self.depth <= levels:
            return self
        if self._cuts is None:
            self._cuts = {}
        found = self._cuts.get(levels)
        if found is None:
            if levels == 1 or self.children is None:
                found = intern(self.cls, self.mask, None)
            else:
                children = tuple(child.cut(levels - 1) for child in self.children)
                if self.collapsed and not self.cls._commutative:  # the last stands second
                    children = (children[0], *children[2:], children[1])
                found = _of_children(self.cls, self.mask, children, self.collapsed)
            self._cuts[levels] = found
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return intern, (self.cls, self.mask, self.children, self.collapsed)

    def __repr__(self) -> str:
        name = "?" if self.cls is None else self.cls.__name__
        if self.mask:
            name += f"#{self.mask}"
        if self.children is None:
            return f"{name}[?]"
        more = ", ..." if self.collapsed else ""
        return f"{name}[{', '.join(map(repr, self.children))}{more}]" if self.children else name


def intern(
    cls: type | None, mask: int, children: tuple[Signature, ...] | None, collapsed: bool = False
) -> Signature:
    """The one signature with this content. `setdefault` is atomic, so threads agree without a
    lock."""
    key = (cls, mask, children, collapsed)
    found = _table.get(key)
    if found is None:
        if len(_table) >= MOST_SIGNATURES:
            forget()
        found = _table.setdefault(key, Signature(cls, mask, children, collapsed))
    return found


def forget() -> None:
    """Empty the tables of signatures and of what is remembered with them."""
    _table.clear()
    MEMOS.clear()


def signature(A: Any) -> Signature:
    """The signature of an operator, remembered on it."""
    found = A._signature
    if found is None:
        found = _build(A, LEVELS, {}) if A.operands else intern(type(A), A.properties, ())
        object.__setattr__(A, "_signature", found)
    return found


def _build(A: Any, levels: int, memo: dict[tuple[int, int], Signature]) -> Signature:
    known = A._signature
    if known is not None:
        return known.cut(levels)
    operands = A.operands
    if not operands:
        leaf = intern(type(A), A.properties, ())
        object.__setattr__(A, "_signature", leaf)  # whatever the levels
        return leaf
    if levels == 1:
        return intern(type(A), A.properties, None)
    # operands may be shared many times over; their owner keeps them alive meanwhile
    key = (id(A), levels)
    found = memo.get(key)
    if found is None:
        children = [_build(operand, levels - 1, memo) for operand in operands]
        found = _of_children(type(A), A.properties, children, len(children) > WIDEST)
        memo[key] = found
        if found.depth < levels:  # nothing was cut
            object.__setattr__(A, "_signature", found)
    return found


def _of_children(cls: Any, mask: int, children: Sequence[Signature], is_wide: bool) -> Signature:
    """The signature with these operands, those of commuting ones in one order: A + B and B + A
    share it."""
    if cls._commutative:
        ordered = _distinct(children) if is_wide else tuple(sorted(children, key=_number))
        return intern(cls, mask, ordered, is_wide)
    if is_wide:
        first, *middle, last = children
        return intern(cls, mask, (first, last, *_distinct(middle)), True)
    return intern(cls, mask, tuple(children))


def _distinct(children: Iterable[Signature]) -> tuple[Signature, ...]:
    distinct = tuple(sorted(set(children), key=_number))
    # One unknown stands for those that are left out: it is there, but only a pattern that matches
    # everything matches it.
    return distinct if len(distinct) <= MOST_DISTINCT else (*distinct[:MOST_DISTINCT], UNKNOWN)


UNKNOWN = intern(None, 0, None)


# --------------------------------------------------------------------------------------------------
# Dynamo guards on whatever it reads, so that a dictionary which grows, or a memo which is there the
# second time, makes it compile again. There an operator is described by nested tuples of constants
# instead, and the tables are used by functions that Dynamo calls once, while it compiles, and whose
# result it takes for a constant. (`f._dynamo_marked_constant = True` is what the decorator
# torch.compiler.assume_constant_result does; so torch need not be imported for it.)


is_compiling: Callable[[], bool] | None = None  # torch's, as soon as torch is used


def _watch(xp: Any) -> None:
    global is_compiling
    if xp.name == "torch":
        is_compiling = sys.modules["torch"].compiler.is_compiling


backends.on_load(_watch)


def describe(A: Any, levels: int = LEVELS) -> tuple[Any, ...]:
    """The signature of an operator as nested tuples, without touching any table."""
    operands = A.operands
    if levels == 1:
        return (type(A), A.properties, () if len(operands) == 0 else None)
    return (type(A), A.properties, tuple([describe(operand, levels - 1) for operand in operands]))


def from_description(description: tuple[Any, ...]) -> Signature:
    """The signature that `describe` described."""
    cls, mask, operands = description
    if operands is None:
        return intern(cls, mask, None)
    children = [from_description(operand) for operand in operands]
    return _of_children(cls, mask, children, len(children) > WIDEST)
