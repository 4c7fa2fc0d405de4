"""How operators print: one line of algebra in a terminal, a small tree in a notebook; never
their arrays."""

from __future__ import annotations

import re
from html import escape
from typing import Any

import numpy as np

from ..dispatch.resolution import memory_text
from ..properties import SELF_ADJOINT, SYMMETRIC, strongest_names
from .base import LinearOperator

WIDTH = 120  # of the expression, in characters
NODES = 60  # a larger tree is named by its first operands instead of written out
BREADTH = 8  # children shown per node in HTML
DEPTH = 6


def operator_repr(A: LinearOperator) -> str:
    """`<Sum 1000000x1000000 float64 numpy [PD]: Dense(1000x1000) ⊗ Dense(1000x1000) + 0.1 I>`."""
    try:
        head = f"{type(A).__name__} {_facts(A)}"
        expression = shorten(write(A))
    except (
        Exception
    ):  # inside a transformation the leaves may be placeholders, without shape or dtype
        return f"<{type(A).__name__} of leaves without a value>"
    if not A.operands and expression == LinearOperator._expression(A):
        return f"<{head}>"  # it would only say the name and the shape again
    return f"<{head}: {expression}>"


def operator_html(A: LinearOperator) -> str:
    """The tree as nested lists, each line a family with its shape, dtype, properties and memory."""
    code = f"<code>{escape(operator_repr(A))}</code>{_memory(A)}"
    return f'<div style="font-family: monospace">{code}{_html_children(A, DEPTH)}</div>'


def _memory(A: LinearOperator) -> str:
    """What its arrays take, in grey; nothing where they are placeholders without a shape."""
    try:
        return f' <span style="opacity: 0.6">{memory_text(A.nbytes)}</span>'
    except (AttributeError, TypeError):
        return ""


def _facts(A: LinearOperator) -> str:
    mask = A.properties
    if not A.is_complex and mask & SELF_ADJOINT:
        mask &= ~SYMMETRIC  # the same thing, said once
    names = strongest_names(mask)
    is_usual = str(A.device) in ("None", "cpu") or A.backend == "jax"
    where = A.backend if is_usual else f"{A.backend} {A.device}"
    known = f" [{', '.join(names)}]" if names else ""
    return f"{shape_text(A)} {A.xp.dtype_name(A.dtype)} {where}{known}"


def shape_text(A: LinearOperator) -> str:
    """`5x3x4` for a batch of five 3 x 4 operators."""
    return "x".join(map(str, A.shape))


def write(A: LinearOperator) -> str:
    """The expression of an operator; of a large tree its family and its first operands."""
    if _is_large(A):
        shown = ", ".join(f"{type(B).__name__}({shape_text(B)})" for B in A.operands[:4])
        more = f", ... {len(A.operands) - 4} more" if len(A.operands) > 4 else ""
        return f"{type(A).__name__} of {shown}{more}"
    return A._expression()


def _is_large(A: LinearOperator) -> bool:
    """Whether the tree has too many nodes to write out; counted without recursion, up to the
    limit and no further."""
    stack, count = [A], 0
    while stack:
        count += 1
        if count > NODES or len(stack) > NODES:
            return True
        stack.extend(stack.pop().operands[: NODES + 1])
    return False


def shorten(text: str, width: int = WIDTH) -> str:
    """The beginning and the end of a long text."""
    if len(text) <= width:
        return text
    half = (width - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def bracketed(A: LinearOperator, unbracketed: str | None) -> str:
    """The expression of an operand, in parentheses if it is composed by a sign that is not in
    `unbracketed`.

    None stands for no sign, and no number in front either: what comes before an exponent or an
    index.
    """
    text = A._expression()
    outside, start, depth = "", 0, 0
    for bracket in re.finditer(r"[()[\]]", text):
        if depth == 0:
            outside += text[start : bracket.start()]
        depth += 1 if bracket[0] in "([" else -1
        start = bracket.end()
    outside += text[start:]
    signs = {word for word in outside.split(" ")[1:-1] if word in SIGNS}
    return (
        f"({text})"
        if (signs - set(unbracketed) if unbracketed is not None else " " in outside)
        else text
    )


SIGNS = ("+", "⊕", "⊗", "@", "*", "of")  # "sum of 3 A"


def number_text(value: Any) -> str:
    """A scalar in front of an operator; `c` if its value cannot be seen."""
    if value is None:
        return "c"
    return f"({complex(value):.4g})" if np.iscomplexobj(value) else f"{float(value):.4g}"


def _html_children(A: LinearOperator, depth: int) -> str:
    operands = A.operands
    if not operands or not depth:
        return "<ul><li>...</li></ul>" if operands else ""
    lines = [
        f"<li><b>{escape(type(B).__name__)}</b> {escape(_facts(B))}{_memory(B)}{_html_children(B, depth - 1)}</li>"
        for B in operands[:BREADTH]
    ]
    if len(operands) > BREADTH:
        lines.append(f"<li>... {len(operands) - BREADTH} more</li>")
    return f'<ul style="margin: 0; padding-left: 1.5em">{"".join(lines)}</ul>'
