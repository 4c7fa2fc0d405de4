"""Structure found in the entries of a matrix. Use `colinear.detect`.

A *finder* is a function of a matrix and a tolerance that returns what it `Found`, or in words why
it found nothing. None is trusted: the search compares what was found with the matrix, entry by
entry, and takes the cheapest that agrees.
"""

from __future__ import annotations

from .front import detect

__all__ = ["detect"]
