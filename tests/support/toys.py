"""Toy operators for the tests of dispatch: a class, properties and operands, and nothing to compute."""

from __future__ import annotations


class Toy:
    """The root, as dispatch sees LinearOperator."""

    _is_root = True
    _commutative = False
    _signature = None
    flops = 10.0
    nbytes = 80
    is_neutral = False

    def __init_subclass__(cls):
        cls._is_root = False

    def __class_getitem__(cls, children):
        from colinear.dispatch.patterns import Pattern

        return Pattern(cls, children if isinstance(children, tuple) else (children,))

    def __init__(self, *operands, mask=0):
        self.operands, self.properties, self.shape = operands, mask, (3, 3)

    def __repr__(self):
        return type(self).__name__ + (
            f"({', '.join(map(repr, self.operands))})" if self.operands else ""
        )

    def __reduce__(self):
        return _rebuild, (type(self), self.operands, self.properties)


def _rebuild(cls, operands, mask):
    return cls(*operands, mask=mask)


class Dense(Toy): ...


class Diagonal(Toy): ...


class LowRank(Toy): ...


class Product(Toy): ...


class Kronecker(Toy): ...


class Sum(Toy):
    _commutative = True


class Marked:
    """An annotation, as dispatch sees PSD and its like."""

    def __init__(self, mask):
        self.mask = mask

    def __getitem__(self, pattern):
        from colinear.dispatch.patterns import as_pattern

        return as_pattern(pattern).annotated(self.mask)

    def __ror__(self, other):
        from colinear.dispatch.patterns import as_pattern

        return as_pattern(other) | self


SelfAdjoint, PSD, Unitary = Marked(1), Marked(5), Marked(16)
