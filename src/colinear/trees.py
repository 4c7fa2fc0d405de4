"""Trees drawn as text, one line per node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Node = TypeVar("Node")


def draw(root: Node, line: Callable[[Node], str], children: Callable[[Node], Sequence[Node]]) -> str:
    """The tree under `root`, with `line(node)` for each node, joined by box-drawing characters."""
    lines = []
    waiting = [(root, "", "")]  # node, what stands before its line, what stands before its children's
    while waiting:
        node, before, below = waiting.pop()
        lines.append(before + line(node))
        parts = children(node)
        for i in reversed(range(len(parts))):
            last = i == len(parts) - 1
            waiting.append((parts[i], below + ("└─ " if last else "├─ "), below + ("   " if last else "│  ")))
    return "\n".join(lines)
