"""Iterative methods for `inv`, `solve` and `lstsq`: what they are given, and what becomes of the tolerance in the parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..backends import Array, namespace_of
from ..dispatch import Choice, Cost
from ..info import BackendError, MethodError, ShapeError
from ..methods import Method
from ..methods.base import Iterative
from ..methods.bicgstab import BiCGSTAB
from ..methods.cg import CG
from ..methods.gmres import GMRES
from ..methods.lsqr import LSMR, LSQR
from ..methods.minres import MINRES
from ..methods.svrg import SVRG
from ..operators.base import LinearOperator
from ..operators.context import check_device
from ..operators.iterative import Iterated, working_memory
from ..operators.sampled import sampled_terms
from ..operators.seeded import seeded

ITERATIVE = (CG, MINRES, GMRES, BiCGSTAB, LSQR, LSMR, SVRG)


def is_iterative(method: Any) -> bool:
    """Whether the user named an iterative method."""
    return isinstance(method, Iterative)


def iterated(A: LinearOperator, method: Iterative, consistent: bool = True) -> Iterated:
    """A^-1 applied by the method, A^+ where there need be no solution (`consistent` false)."""
    from ..preconditioners import as_preconditioner  # which is made of functions, so it comes after them

    if isinstance(method, SVRG) and 0 not in A.shape:
        sampled_terms(A, method)  # an error where there are none
    whole = A.H @ A if method.squares_operator and method.preconditioner is not None else A
    M, x0 = as_preconditioner(method.preconditioner, whole), starting_point(A, method)
    if isinstance(method, SVRG):
        A = seeded(A, method.seed)
    return Iterated._of(A, M, x0, method.without_arrays(), consistent)


def starting_point(A: LinearOperator, method: Iterative) -> Array | None:
    """`x0` as an array that fits A, or an error that says why it does not."""
    x0 = method.x0
    if x0 is None:
        return None
    xp = namespace_of(x0)
    if xp is None:
        x0 = A.xp.asarray(x0, dtype=A.dtype, device=A._context.device)
    elif (xp.name, A.xp.name) == ("numpy", "jax"):
        x0 = A.xp.asarray(x0)  # all of JAX takes NumPy's arrays
    elif not A.is_neutral and xp is not A.xp:
        raise BackendError(f"{method.name}: x0 is an array of {xp.name} and A a {A.backend} operator. Convert one.")
    elif not A.is_neutral:
        check_device(method.name, A.device, xp.device_of(x0))
    rows = x0.shape[0 if x0.ndim == 1 else -2] if x0.ndim else 0
    if rows != A.shape[-1]:
        raise ShapeError(
            f"{method.name}: A is {A.shape[-2]}x{A.shape[-1]}, so x0 needs {A.shape[-1]} rows; it is {tuple(x0.shape)}."
        )
    return x0


def tightened(method: Any, A: LinearOperator, parts: int) -> Any:
    """The method for each of several parts, so that the whole keeps the tolerance: the errors of the parts add up."""
    if not is_iterative(method) or parts < 2:
        return method
    tol = method.tolerance(A.xp, A.dtype)
    return replace(method, tol=max(tol / (4 * parts), 4 * A.xp.eps(A.dtype)) if tol > 4 * A.xp.eps(A.dtype) else tol, x0=None)


def fits(function: str, A: LinearOperator, method: Iterative) -> None:
    """An error if the method cannot be used for this function."""
    if not isinstance(method, ITERATIVE):
        names = ", ".join(f"{cls.__name__}()" for cls in ITERATIVE)
        raise MethodError(f"{function}: {method.name}() does not apply here. Use one of {names}.")


def iterate(A: LinearOperator, method: Iterative, run: Callable[[], Any], like: Callable[[], Any]) -> Choice:
    """The choice of an iterative method that was named."""
    m, n = A.shape[-2:]

    def cost() -> Cost:
        return Cost(method.typical(m, n) * (A.flops + 10.0 * max(m, n)), working_memory(method, A))

    def why() -> str:
        count = f"at {A.flops:.2g} flop a product, {method.typical(m, n)} products or so"
        return f"asked for; {count}, at most {method.iterations(m, n)} iterations; {method.working_vectors(n)} vectors"

    return Choice(run, method.name, cost, why, like)


__all__ = ["ITERATIVE", "Array", "Method", "fits", "is_iterative", "iterate", "iterated", "tightened"]
