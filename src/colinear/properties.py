"""The annotations: what a user may claim of an operator, and what claims imply.

A set of properties is a small integer, one bit each, so that carrying it costs nothing and a
signature can hold it. Composition rules for the bits live beside the operators (`_infer`); this
file knows only what one bit implies of another:

    PD => PSD => self-adjoint,   unitary => Stiefel,   Stiefel and square => unitary,   real:
    self-adjoint <=> symmetric.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from .dispatch.patterns import Pattern, as_pattern
from .errors import ShapeError

if TYPE_CHECKING:
    from .operators.base import LinearOperator

OperatorT = TypeVar("OperatorT", bound="LinearOperator")

SELF_ADJOINT, SYMMETRIC, POSITIVE_SEMIDEFINITE, POSITIVE_DEFINITE, UNITARY, STIEFEL = (
    1 << i for i in range(6)
)
ALL_PROPERTIES = (1 << 6) - 1  # those of I

_PSD = POSITIVE_SEMIDEFINITE | SELF_ADJOINT
_IMPLIED = ((POSITIVE_DEFINITE, _PSD), (POSITIVE_SEMIDEFINITE, SELF_ADJOINT), (UNITARY, STIEFEL))


def _close(mask: int, real: bool, square: bool) -> int:
    for bit, implied in _IMPLIED:
        if mask & bit:
            mask |= implied
    if square and mask & STIEFEL:
        mask |= UNITARY
    if real and mask & (SELF_ADJOINT | SYMMETRIC):
        mask |= SELF_ADJOINT | SYMMETRIC
    return mask


# All that a mask implies, for an operator that is real or square: CLOSED[real, square][mask].
CLOSED = {
    (real, square): tuple(_close(mask, real, square) for mask in range(ALL_PROPERTIES + 1))
    for real in (False, True)
    for square in (False, True)
}


class Annotation:
    """A claim about an operator: `PSD(A)` makes it, `A.isa(PSD)` asks it, `PSD[Tridiagonal]` is
    a pattern for rules."""

    __slots__ = ("mask", "meaning", "name")

    def __init__(self, name: str, mask: int, meaning: str):
        self.name, self.mask, self.meaning = name, CLOSED[False, False][mask], meaning

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        return (
            f"`{self.name}(A)` claims of A: {self.meaning}. `verify(A)` checks claims on "
            "random vectors."
        )

    @overload
    def __call__(self, A: OperatorT) -> OperatorT: ...
    @overload
    def __call__(self, A: Any) -> LinearOperator: ...
    def __call__(self, A: Any) -> Any:
        if not hasattr(type(A), "_is_root"):
            from .operators import as_operator

            A = as_operator(A)
        m, n = A.shape[-2:]
        if m != n and self.mask != STIEFEL:
            raise ShapeError(
                f"{self.name}: A is {m}x{n}; only a square operator can be {self.meaning}."
            )
        if m < n:
            raise ShapeError(
                f"{self.name}: A is {m}x{n}; orthonormal columns need at least as many rows as "
                "columns."
            )
        return A._claim(self.mask)

    def __getitem__(self, pattern: Any) -> Pattern:
        return as_pattern(pattern).annotated(self.mask)

    def __or__(self, other: Any) -> Pattern:
        return as_pattern(self) | other

    def __ror__(self, other: Any) -> Pattern:
        return as_pattern(other) | self

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str:
        return self.name  # pickled by reference, so that identity survives


SelfAdjoint = Annotation("SelfAdjoint", SELF_ADJOINT, "self-adjoint, A = A^H")
Symmetric = Annotation("Symmetric", SYMMETRIC, "symmetric, A = A^T")
PSD = Annotation(
    "PSD", POSITIVE_SEMIDEFINITE, "self-adjoint and positive semidefinite, x^H A x >= 0"
)
PD = Annotation(
    "PD", POSITIVE_DEFINITE, "self-adjoint and positive definite, x^H A x > 0 for x != 0"
)
Unitary = Annotation("Unitary", UNITARY, "unitary, A^H A = A A^H = I")
Stiefel = Annotation("Stiefel", STIEFEL, "of orthonormal columns, A^H A = I")

ANNOTATIONS = (SelfAdjoint, Symmetric, PSD, PD, Stiefel, Unitary)  # the weaker first


def strongest_names(mask: int) -> list[str]:
    """The names that say all of `mask` and nothing twice: PD rather than PD, PSD, SelfAdjoint."""
    held = [a for a in ANNOTATIONS if mask & a.mask == a.mask]
    return [a.name for a in held if not any(b is not a and b.mask & a.mask == a.mask for b in held)]
