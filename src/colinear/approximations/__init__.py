"""Low-rank approximations from few products or few columns: ordinary operators, which compose with all others."""

from __future__ import annotations

from .interpolative import cur, interpolative
from .nystrom import nystrom
from .range_finder import range_finder
from .rp_cholesky import rp_cholesky

__all__ = ["cur", "interpolative", "nystrom", "range_finder", "rp_cholesky"]
