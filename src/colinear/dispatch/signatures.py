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
from collections.abc import Callable, Iterable
from typing import Any

from .. import backends

LEVELS = 4  # of a signature and of a pattern
WIDEST = 8  # operands whose number and order a signature still knows
MOST_DISTINCT = 32  # different operands that a collapsed signature keeps
MOST_SIGNATURES = 100_000  # in the table: then it is emptied, and only identity is lost

_table: dict[Any, Signature] = {}
_numbers = itertools.count()


class Signature:
    """The class, properties and operands of an operator, as far as dispatch looks. Made by
    `signature` and `intern` only."""

    __slots__ = ("_cuts", "children", "cls", "collapsed", "depth", "mask", "number")
    cls: type | None
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
                if self.collapsed and not _is_commutative(self.cls):
                    children = (*children[:2], *_distinct(children[2:]))
                elif self.collapsed:
                    children = _distinct(children)
                elif _is_commutative(self.cls):
                    children = _ordered(children)
                found = intern(self.cls, self.mask, children, self.collapsed)
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
        return (
            f"{name}[{', '.join(map(repr, self.children))}{', ...' if self.collapsed else ''}]"
            if self.children
            else name
        )


def intern(
    cls: type | None, mask: int, children: tuple[Signature, ...] | None, collapsed: bool = False
) -> Signature:
    """The one signature with this content. `setdefault` is atomic, so threads agree without a
    lock."""
    key = (cls, mask, children, collapsed)
    found = _table.get(key)
    if found is None:
        if len(_table) >= MOST_SIGNATURES:
            _table.clear()
        found = _table.setdefault(key, Signature(cls, mask, children, collapsed))
    return found


def signature(A: Any) -> Signature:
    """The signature of an operator, remembered on it."""
    found = A._signature
    if found is None:
        found = _build(A, LEVELS, {})
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
    key = (
        id(A),
        levels,
    )
    found = memo.get(key)
    if found is None:
        if len(operands) <= WIDEST:
            children = tuple([_build(operand, levels - 1, memo) for operand in operands])
            found = _of_children(type(A), A.properties, children)
        else:
            found = _of_children(
                type(A),
                A.properties,
                (_build(operand, levels - 1, memo) for operand in operands),
                wide=True,
            )
        memo[key] = found
    return found


def _of_children(
    cls: type, mask: int, children: Iterable[Signature], wide: bool = False
) -> Signature:
    if not wide:
        children = tuple(children)
        return intern(
            cls,
            mask,
            _ordered(children) if _is_commutative(cls) and len(children) > 1 else children,
        )
    if _is_commutative(cls):
        return intern(cls, mask, _distinct(children), True)
    first, *middle, last = children
    return intern(cls, mask, (first, last, *_distinct(middle)), True)


def _ordered(children: Iterable[Signature]) -> tuple[Signature, ...]:
    """In one order for all permutations of the same operands, so that A + B and B + A share a
    signature."""
    return tuple(sorted(children, key=_number))


def _distinct(children: Iterable[Signature]) -> tuple[Signature, ...]:
    distinct = _ordered(set(children))
    # One unknown stands for those that are left out: it is there, but only a pattern that matches
    # everything matches it.
    return distinct if len(distinct) <= MOST_DISTINCT else (*distinct[:MOST_DISTINCT], UNKNOWN)


def _number(s: Signature) -> int:
    return s.number


def _is_commutative(cls: type | None) -> bool:
    return getattr(cls, "_commutative", False)


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
    return _of_children(cls, mask, map(from_description, operands), wide=len(operands) > WIDEST)
