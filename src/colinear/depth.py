"""Trees so deep that a walk over them needs more frames than Python allows at first.

Every walk goes from a node to its children by a call, so a tree of some 200 levels meets Python's limit
of 1000 frames. The entrances of the walks catch that and go on with a larger limit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

MOST_FRAMES = 20_000  # some 3000 levels; Python's frames do not lie on the stack of C


class TooDeepError(RecursionError):
    """A tree that is too deep even for `MOST_FRAMES`, or that has no end."""


def retry_deeper(walk: Callable[..., Any], *arguments: Any) -> Any:
    """Return `walk(*arguments)`, which has raised a RecursionError, with more frames allowed.

    Called where that error was caught. Half of the old limit must be free there, so that the limit can
    be restored at the end: else the error goes on to an entrance nearer to the root.
    """
    limit = sys.getrecursionlimit()
    if isinstance(sys.exception(), TooDeepError) or (limit < MOST_FRAMES and _has_frames(limit // 2)):
        raise
    if limit >= MOST_FRAMES:
        raise TooDeepError(
            f"the operator is nested too deeply for {limit} frames. Compose it of sums and products of many operands, "
            f"which are flat, or raise sys.setrecursionlimit."
        ) from None
    sys.setrecursionlimit(MOST_FRAMES)
    try:
        return walk(*arguments)
    finally:
        sys.setrecursionlimit(limit)


def _has_frames(count: int) -> bool:
    try:
        sys._getframe(count)
    except ValueError:
        return False
    return True
