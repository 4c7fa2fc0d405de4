"""The command line: `colinear`, also `python -m colinear`."""

from __future__ import annotations

from .run import main

__all__ = ["main"]
