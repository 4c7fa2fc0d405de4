"""Products V A V^-1 that are seen to be similar to A, by how they were made."""

from __future__ import annotations

from typing import Any

from ..operators.block import BlockDiag
from ..operators.inverse import Inverse
from ..operators.kronecker import Kronecker
from ..operators.transposed import are_adjoint
from ..properties import UNITARY


def is_similarity(A: Any) -> bool:
    """Whether the outer factors of a product of three or more are known to be inverse to each other."""
    return len(A.operands) > 2 and are_inverse(A.operands[0], A.operands[-1])


def are_inverse(A: Any, B: Any) -> bool:
    """Whether A B = I is known: B was made as the inverse or, for unitary A, the adjoint of A, or their parts were."""
    if A.properties & UNITARY and are_adjoint(A, B):
        return True
    if (isinstance(B, Inverse) and B.A is A) or (isinstance(A, Inverse) and A.A is B):
        return True
    both = [isinstance(X, kind) for kind in (Kronecker, BlockDiag) for X in (A, B)]
    alike = (all(both[:2]) or all(both[2:])) and len(A.operands) == len(B.operands)
    return alike and all(are_inverse(a, b) for a, b in zip(A.operands, B.operands))
