"""What torch's own functions do with our operators: `torch.linalg.solve(A, b)` is `colinear.solve(A, b)`.

torch hands every call with an operator among its arguments to `__torch_function__`, which looks up the function's name here: the same
name whether it came as `torch.matmul`, `Tensor.matmul` or `@`. What is not in the table is refused, since a silent `to_dense` could be
a terabyte.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .. import backends
from ..info import BackendError
from .base import LinearOperator


def torch_function(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The answer to a torch function that was called with an operator."""
    name = _plain_name(func)
    if name == "matmul" and not isinstance(args[0], LinearOperator) and not backends.get("torch").tells_sides():
        raise BackendError("torch.compile: this version swaps the sides of A @ x. Write torch.matmul(A, x) there.")
    ours = _TABLE.get(name)
    if ours is None:
        raise TypeError(
            f"torch's {name} is not defined for {type(_first_operator(args)).__name__} operators. "
            f"Call A.to_dense() first if the matrix fits in memory."
        )
    return ours(*args, **kwargs)


def _plain_name(func: Any) -> str:
    return str(getattr(func, "__name__", func)).strip("_").removeprefix("linalg_")


# torch.compile routes `A @ x` through here too and cannot trace a function's name: it calls this once and keeps the answer.
_plain_name._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _first_operator(args: Any) -> Any:
    for item in args:
        if isinstance(item, LinearOperator):
            return item
    return args[0] if args else None


# ------------------------------------------------------------------ arithmetic


def _binary(name: str) -> Callable[..., Any]:
    """`a op b`, where one of the two is an operator: its own method answers. (The operator `op` itself would only ask us again.)"""

    def apply(a: Any, b: Any) -> Any:
        if isinstance(a, LinearOperator):
            return getattr(a, f"__{name}__")(b)
        return getattr(b, f"__r{name}__")(a)

    return apply


def _swapped(apply: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: apply(b, a)


_matmul = _binary("matmul")
_add = _binary("add")
_subtract = _binary("sub")
_multiply = _binary("mul")


def _divide(a: Any, b: Any) -> Any:
    if not isinstance(a, LinearOperator):
        raise TypeError("/: a tensor cannot be divided by an operator. Use solve(A, b).")
    return a / b


# ------------------------------------------------------------------ linear algebra; torch's functions return named tuples, so these do


class LstsqResult(NamedTuple):
    solution: Any


class SlogdetResult(NamedTuple):
    sign: Any
    logabsdet: Any


class EigResult(NamedTuple):
    eigenvalues: Any
    eigenvectors: Any


class SVDResult(NamedTuple):
    U: Any
    S: Any
    Vh: Any


def _ours(name: str) -> Callable[..., Any]:
    """A function of colinear's of one argument, found when it is called: operators know nothing of functions."""

    def call(A: Any) -> Any:
        return _function(name)(A)

    return call


def _function(name: str) -> Callable[..., Any]:
    import colinear

    return getattr(colinear, name)


def _solve(A: Any, B: Any, *, left: bool = True) -> Any:
    if left:
        return _function("solve")(A, B)
    return _matmul(B, _function("inv")(A))  # X A = B


def _lstsq(A: Any, B: Any, rcond: Any = None, *, driver: Any = None) -> LstsqResult:
    if rcond is not None or driver is not None:
        raise TypeError("torch.linalg.lstsq: rcond and driver are not taken for operators; use colinear.lstsq(A, b, method=...).")
    return LstsqResult(_function("lstsq")(A, B))


def _slogdet(A: Any) -> SlogdetResult:
    return SlogdetResult(*_function("slogdet")(A))


def _self_adjoint(A: Any, name: str) -> Any:
    from ..properties import SelfAdjoint

    if not A.isa(SelfAdjoint):
        raise TypeError(f"torch.linalg.{name}: the operator is not known to be self-adjoint; say so: SelfAdjoint(A).")
    return A


def _eigh(A: Any) -> EigResult:
    return EigResult(*_function("eig")(_self_adjoint(A, "eigh")))


def _eig(A: Any) -> EigResult:
    return EigResult(*_function("eig")(A))


def _svd(A: Any, full_matrices: bool = True) -> SVDResult:
    if full_matrices and A.shape[-1] != A.shape[-2]:
        raise TypeError("torch.linalg.svd: operators have the reduced decomposition only; give full_matrices=False.")
    U, s, V = _function("svd")(A)
    return SVDResult(U, s, V.H)


def _norm(A: Any, ord: Any = None, dim: Any = None, keepdim: bool = False) -> Any:
    if dim not in (None, (-2, -1)) or keepdim:
        raise TypeError("torch.linalg.norm: an operator's norm is over its last two dimensions; dim and keepdim are not taken.")
    return _function("norm")(A) if ord is None else _function("norm")(A, ord)


def _matrix_norm(A: Any, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False) -> Any:
    return _norm(A, ord, dim, keepdim)


def _diagonal(A: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    if offset or (dim1, dim2) not in ((-2, -1), (0, 1)) or ((dim1, dim2) == (0, 1) and A.ndim > 2):
        raise TypeError("torch.diagonal: only the main diagonal of the last two dimensions is known for operators.")
    return _function("diag")(A)


def _diag(A: Any, diagonal: int = 0) -> Any:
    return _diagonal(A, diagonal)


def _torch_diagonal(A: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return _diagonal(A, offset, dim1, dim2)


_TABLE: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("matmul", "mm", "mv", "bmm"), _matmul),
    "rmatmul": _swapped(_matmul),
    "add": _add,
    "radd": _swapped(_add),
    "sub": _subtract,
    "subtract": _subtract,
    "rsub": _swapped(_subtract),
    **dict.fromkeys(("mul", "multiply"), _multiply),
    "rmul": _swapped(_multiply),
    **dict.fromkeys(("div", "divide", "true_divide", "truediv"), _divide),
    "rtruediv": _swapped(_divide),
    "solve": _solve,
    "lstsq": _lstsq,
    **{name: _ours("inv") for name in ("inv", "inverse")},
    **{name: _ours("pinv") for name in ("pinv", "pinverse")},
    "det": _ours("det"),
    "logdet": _ours("logdet"),
    "slogdet": _slogdet,
    "eigh": _eigh,
    "eigvalsh": lambda A: _eigh(A).eigenvalues,
    "eig": _eig,
    "eigvals": lambda A: _eig(A).eigenvalues,
    "svd": _svd,
    "svdvals": lambda A: _function("svd")(A)[1],
    "cholesky": _ours("cholesky"),
    "trace": _ours("trace"),
    "diag": _diag,
    "diagonal": _torch_diagonal,
    "norm": _norm,
    "matrix_norm": _matrix_norm,
    "cond": _ours("cond"),
    "matrix_rank": _ours("rank"),
    "matrix_exp": _ours("exp"),
    "adjoint": lambda A: A.H,
    "t": lambda A: A.T,
    **dict.fromkeys(("conj", "conj_physical"), lambda A: A.conj()),
    "neg": lambda A: -A,
}
