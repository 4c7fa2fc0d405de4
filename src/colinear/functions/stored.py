"""What is said of a matrix that is there and too large to be copied, as factorisations do."""

from __future__ import annotations

from ..errors import TooLargeError
from ..operators import Dense, LinearOperator

LARGEST_SHARE = 1 / 2  # of the memory, for a matrix that a function needs and nobody asked for
SURELY_STORED = 2**24  # bytes of a matrix that are copied whatever else is in memory


def check_copy(A: LinearOperator, size: float) -> None:
    """Raise an error if A is a matrix that is there, in memory or in a file, and too large to be
    copied."""
    if A._is_out_of_core or isinstance(A, Dense):
        where = "is in memory, with no room for another"
        if A._is_out_of_core:
            where = "is not in memory: it lies in a file, or comes a chunk at a time"
        m, n = A.shape[-2:]
        raise TooLargeError(
            f"A is {m}x{n} and {where}. No rule or iteration computes this of it without a copy of "
            f"{size / 2**30:.3g} GiB. Ask for less (k= in eig and svd, solve instead of inv), name "
            "an iterative method, or make the copy: Dense(np.array(x))."
        )
