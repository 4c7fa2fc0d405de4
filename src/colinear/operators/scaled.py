"""c A, with the scalar kept apart so that it can be pulled out of products and differentiated."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..backends import Array, namespace_of
from ..properties import SELF_ADJOINT, SYMMETRIC, UNITARY
from .base import LinearOperator
from .context import (
    NUMBERS,
    Context,
    broadcast_batches,
    check_device,
    from_numpy,
    is_complex_number,
    is_number,
    join_dtypes,
    known_in,
    split_number,
    told_by_number,
)
from .convert import as_operator, scaled_context
from .diagonal import Diagonal, Identity, ScaledIdentity, Zero, is_on_circle, known_of_scalar
from .lowrank import LowRank
from .neutral import dense_part
from .printing import bracketed, number_text
from .tree import Scalar, conjugate, entrywise_flops, images, memo, sole_operand


class Scaled(LinearOperator, init=False):
    """The operator `c A`.

    Parameters
    ----------
    scalar : number or array
        One number, or an array of the batch shape.
    A : LinearOperator

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.Scaled(2.0, co.PSD(np.eye(3)))
    >>> A.isa(co.PSD), (-A).isa(co.PSD)
    (True, False)
    """

    scalar: Scalar
    A: LinearOperator

    def __new__(cls, scalar: Any, A: Any) -> LinearOperator:  # type: ignore[misc]
        A = A if isinstance(A, LinearOperator) else as_operator(A)
        if isinstance(A, Scaled):
            scalar, A = multiply_scalars(scalar, A.scalar), A.A
        if isinstance(scalar, NUMBERS) and scalar == 1:
            return A
        if isinstance(scalar, np.generic) and A.is_neutral:
            scalar, carried = split_number(scalar, "*")
            A = A if carried is None else scaled_context(A, carried)
        # of a number before it is an array: under `jit` that cannot be seen
        claims = A.properties and A.properties & known_of_scalar(scalar)
        absorb, scalar = _ABSORB.get(type(A)), scalar_like(scalar, A)
        scaled = cls._of(scalar, A) if absorb is None else absorb(scalar, A)
        if absorb is None and type(scalar) is float:
            scaled.__dict__.update(known_in(A._context), shape=A.shape)
        return scaled._claim(claims)

    operands = sole_operand

    @memo
    def shape(self) -> tuple[int, ...]:
        batch, shape = getattr(self.scalar, "shape", ()), self.A.shape
        return (*broadcast_batches(batch, shape[:-2], what="Scaled"), *shape[-2:])

    @memo
    def _context(self) -> Context:
        c, context = self.scalar, self.A._context
        if is_number(c):  # `complex`: of whatever precision it meets
            return told_by_number(context, complex if is_complex_number(c) else None)
        xp = namespace_of(c)
        if context.backend is None:
            return told_by_number(Context(xp.name, c.dtype, xp.device_of(c)), context.dtype)
        return context._replace(dtype=xp.result_type(context.dtype, c))

    def _infer(self) -> int:
        known = SYMMETRIC if is_complex_number(self.scalar) else SYMMETRIC | SELF_ADJOINT
        if self.A.properties & UNITARY and is_on_circle(self.scalar):
            known |= UNITARY
        return self.A.properties & known

    def _transpose(self) -> LinearOperator:
        return Scaled(self.scalar, self.A.T)

    _adjoint, _conj = images(lambda self, image: Scaled(conjugate(self.scalar), image(self.A)))[1:]

    def _matmat(self, X: Array) -> Array:
        return beside(self.scalar, 2) * (self.A @ X)

    def _matvec(self, x: Array) -> Array:
        return beside(self.scalar) * (self.A @ x)

    @property
    def _term_count(self) -> int:
        return self.A._term_count

    def _some_terms(self, indices: Array, weights: Array) -> LinearOperator:
        return Scaled._of(self.scalar, self.A._some_terms(indices, weights))

    @property
    def _has_rows(self) -> bool:
        return self.A._has_rows

    def _rows(self, indices: Array) -> LinearOperator:
        return Scaled._of(self.scalar, self.A._rows(indices))

    def _to_dense(self) -> Array:
        return beside(self.scalar, 2) * dense_part(self.A, self)

    _dense_flops = entrywise_flops

    @property
    def _flops(self) -> float:
        return self.A.flops + self.shape[-2]

    def _expression(self) -> str:
        return f"{number_text(peek_scalar(self.scalar))} {bracketed(self.A, '⊗@*')}"


# ---------------------------------------------------------------------- scalars


def scalar_like(c: Any, A: LinearOperator) -> Any:
    """A scalar as it is stored: an array of A's framework in torch and JAX (a leaf that needs no
    retracing), a Python number in NumPy."""
    xp = namespace_of(c)
    if xp is not None:
        if not A.is_neutral:
            if xp is not A.xp:
                is_single = xp.name == "numpy" and c.ndim == 0
                return scalar_like(c[()] if is_single else from_numpy("*", A.xp, c), A)
            if c.ndim:
                check_device("*", A.device, xp.device_of(c))
        return c if xp.is_floating(c) else xp.astype(c, A.dtype)
    if not isinstance(c, NUMBERS):
        raise TypeError(f"*: {type(c).__name__} is not a number.")
    number, carried = split_number(c, "*")
    backend = A._context.backend
    if backend is None or backend == "numpy":
        return number if carried is None or backend is None else np.asarray(c)
    dtype = A.xp.complex_dtype(A.dtype) if isinstance(number, complex) else A.dtype
    dtype = dtype if carried is None else join_dtypes(A.xp, dtype, carried)
    return A.xp.asarray(number, dtype=dtype, device=A._context.device)


def multiply_scalars(c: Any, d: Any) -> Any:
    """c d, neither of which may know its framework."""
    return d * c if namespace_of(c) is None else c * d


def pull_scalars(operators: list[LinearOperator]) -> tuple[Any, list[Any]]:
    """The product of the scalars in front of the operators, None where there are none, and what
    they multiply."""
    scalar: Any = None
    parts = []
    for A in operators:
        if isinstance(A, Scaled):
            scalar = A.scalar if scalar is None else multiply_scalars(scalar, A.scalar)
            A = A.A
        parts.append(A)
    return scalar, parts


def peek_scalar(c: Any) -> Any:
    """The number if it can be seen now (not a tracer, not a batch), else None."""
    xp = namespace_of(c)
    if xp is None:
        return c
    value: Any = xp.peek(c) if c.ndim == 0 else None
    return value.item() if hasattr(value, "item") else value


def unscaled(A: Any) -> tuple[Any, Any]:
    """c and B of A = c B, None and A where A is no multiple."""
    return (A.scalar, A.A) if isinstance(A, Scaled) else (None, A)


def beside(c: Any, ndim: int = 1) -> Any:
    """A scalar, or a batch of them, as it multiplies arrays of so many dimensions."""
    return c[(..., *(None,) * ndim)] if getattr(c, "ndim", 0) else c


# ---------------------------------------------------------------------- families that take the scal


def _scaled_identity(c: Any, A: Any) -> ScaledIdentity:
    if type(c) in (int, float, complex):  # numbers of NumPy's have a dtype of their own
        return ScaledIdentity._of(c, A.n, A.context)
    return ScaledIdentity(c, A.n, like=A)


_ABSORB: dict[type, Any] = {
    Diagonal: lambda c, A: Diagonal(beside(c) * A.d),
    Identity: _scaled_identity,
    ScaledIdentity: lambda c, A: _scaled_identity(multiply_scalars(c, A.c), A),
    Zero: lambda c, A: A,
    LowRank: lambda c, A: LowRank(A.U, A.V, beside(c, 2) * A._core),
}
