"""What NumPy's and torch's own functions do with operators: `np.linalg.solve(A, b)` is
`colinear.solve(A, b)`.

Both frameworks hand a call that has an operator among its arguments to the operator
(`__array_function__`, `__torch_function__`). The name of the function is looked up in one table:
the two frameworks agree on names, meanings and the fields of named results, and differ in the
spelling of some keywords. What is not in the table is refused, since a silent `to_dense` could be a
terabyte.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from .. import backends
from ..errors import BackendError
from ..properties import SelfAdjoint
from .base import LinearOperator
from .block import Block, BlockDiag, hstack, vstack
from .context import kind_of
from .convert import as_operators
from .dense import Triangular
from .kronecker import Kronecker
from .protocols import EigResult, LstsqResult, LUResult, QRResult, SlogdetResult, SVDResult

Handler = Callable[..., Any]


def torch_function(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer a torch function that was called with an operator."""
    name = _torch_name(func)
    if kwargs:
        args, kwargs = _placed_arguments(args, kwargs)
    is_swapped = name == "matmul" and not isinstance(args[0], LinearOperator)
    if is_swapped and not backends.get("torch").tells_sides():
        raise BackendError(
            "torch.compile: this version swaps the sides of A @ x. Write torch.matmul(A, x) there."
        )
    ours = _handler("torch", name, args)
    return ours(*args, **_ours_spelling(kwargs)) if kwargs else ours(*args)


def numpy_function(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Answer a NumPy function that was called with an operator."""
    name = ("linalg_" if func.__module__ == "numpy.linalg" else "") + func.__name__
    if kwargs:
        args, kwargs = _sorted_arguments(func, args, kwargs)
    ours = _handler("numpy", name, args)
    A = _first_operator(args)
    if A is not None and not A.is_neutral and A.backend != "numpy":
        raise BackendError(
            f"{_shown('numpy', name)}: the operator is a {A.backend} one. Use colinear's "
            "function, or move it: A.to('numpy')."
        )
    return ours(*args, **_ours_spelling(kwargs))


def as_numpy(A: LinearOperator, caller: str = "") -> Any:
    """Refuse to make an array of A, and say what to write instead.

    SciPy's sparse matrices alone get an answer: in `S @ A` an array of one object is their sign to
    leave the product to A.
    """
    if caller.startswith("scipy.sparse._"):
        found = np.empty((), dtype=object)
        found[()] = A
        return found
    raise TypeError(
        f"{type(A).__name__} is an operator, not an array: call A.to_dense() if the matrix fits in "
        "memory. For a product with an operator or table of another library on the left write "
        "as_operator(other) @ A."
    )


def _handler(framework: str, name: str, args: tuple[Any, ...]) -> Handler:
    ours = _TABLE.get(name) or _TABLE.get(name.removeprefix("linalg_"))
    if ours is None:
        raise TypeError(
            f"{_shown(framework, name)} is not defined for {type(_first_operator(args)).__name__} "
            "operators. Call A.to_dense() first if the matrix fits in memory."
        )
    return ours


def _shown(framework: str, name: str) -> str:
    return f"{framework}.{name.replace('linalg_', 'linalg.', 1)}"


def _torch_name(func: Any) -> str:
    return str(getattr(func, "__name__", func)).strip("_")


# torch.compile routes `A @ x` through here too and cannot trace a function's name: it calls this
# once and keeps the answer.
_torch_name._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _first_operator(args: Any) -> Any:
    """The first operator among the arguments and the lists in them, or None."""
    for item in args:
        found = _first_operator(item) if isinstance(item, (list, tuple)) else item
        if isinstance(found, LinearOperator):
            return found
    return None


_SPELLINGS = {
    "dim": "axis",
    "dim0": "axis0",
    "dim1": "axis1",
    "dim2": "axis2",
    "keepdim": "keepdims",
}  # torch's and NumPy's


def _ours_spelling(kwargs: dict[str, Any]) -> dict[str, Any]:
    """The keywords as the table spells them, without those that say nothing."""
    return {_SPELLINGS.get(key, key): value for key, value in kwargs.items() if value is not None}


def _sorted_arguments(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that NumPy requires in their places, whatever it calls them, and the
    optional ones by name."""
    try:
        signature = inspect.signature(func)
    except ValueError:
        return args, kwargs
    given = signature.bind(*args, **kwargs).arguments
    required = [
        name for name, p in signature.parameters.items() if p.default is p.empty and name in given
    ]
    return tuple(given[name] for name in required), {
        name: given[name] for name in given if name not in required
    }


# what torch calls the first argument and the second, which may be given by name
_TORCH_PLACES = ("input", "A", "tensors"), ("other", "B", "n", "mat2", "vec")


def _placed_arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that torch requires in their places, and the rest by name."""
    rest = dict(kwargs)
    for names in _TORCH_PLACES[len(args) :]:
        given = [name for name in names if name in rest]
        if not given:
            break
        args = (*args, rest.pop(given[0]))
    return args, rest


# ------------------------------------------------------------------ arithmetic


def _binary(name: str) -> Handler:
    """`a op b`, where one of the two is an operator: its own method answers. (The operator `op`
    itself would only ask us again.)"""

    def apply(a: Any, b: Any) -> Any:
        if isinstance(a, LinearOperator):
            return getattr(a, f"__{name}__")(b)
        return getattr(b, f"__r{name}__")(a)

    return apply


def _swapped(apply: Handler) -> Handler:
    return lambda a, b: apply(b, a)


_matmul = _binary("matmul")
_add = _binary("add")
_subtract = _binary("sub")


def _multiply(a: Any, b: Any) -> Any:
    """The entrywise product, to which a vector is a row: not what `A * x` is."""
    return a.__rmul__(b) if isinstance(a, LinearOperator) else b.__rmul__(a)


def _divide(a: Any, b: Any) -> Any:
    return a / b if isinstance(a, LinearOperator) else b.__rtruediv__(a)


def _dot(a: Any, b: Any) -> Any:
    """NumPy's dot: a product of matrices and vectors, or with a number."""
    if 0 in (np.ndim(a), np.ndim(b)):
        return _multiply(a, b)
    if max(np.ndim(a), np.ndim(b)) > 2:
        raise TypeError("dot: of a batch NumPy's sums over other axes than a product. Use A @ B.")
    return _matmul(a, b)


def _multi_dot(operands: Any) -> Any:
    """A_1 A_2 ... x, from the right, where the vector is."""
    return reduce(_swapped(_matmul), reversed(operands))


def _ours(name: str) -> Handler:
    """A function of colinear of one argument, found when it is called: operators know nothing of
    functions."""

    def call(A: Any, /) -> Any:
        return our_function(name)(A)

    return call


def our_function(name: str) -> Handler:
    """The function of colinear with this name."""
    import colinear

    return getattr(colinear, name)


def _solve(A: Any, B: Any, /, *, left: bool = True) -> Any:
    if left:
        return our_function("solve")(A, B)
    return _matmul(B, our_function("inv")(A))  # X A = B


def inv_quad_logdet(
    A: LinearOperator, b: Any, logdet: bool, reduce_inv_quad: bool, method: Any
) -> tuple[Any, Any]:
    """b^H A^-1 b and log|det A|; zero of what is not asked for."""
    zero = A.xp.zeros(A.batch_shape, **kind_of(A))
    if b is None:
        return zero, our_function("logdet")(A, method) if logdet else zero
    if logdet:
        X, logarithm = our_function("solve_and_logdet")(A, b, method)
    else:
        X, logarithm = our_function("solve")(A, b, method), zero
    products = A.xp.conj(A.xp.asarray(b)) * X
    quadratic = A.xp.sum(products, axis=-1 if products.ndim == 1 else -2)
    is_column = reduce_inv_quad and products.ndim > 1
    return A.xp.sum(quadratic, axis=-1) if is_column else quadratic, logarithm


def _solve_triangular(
    A: Any, B: Any, /, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    if not isinstance(A, Triangular) or (A.lower, A.unit) != (not upper, unitriangular):
        raise TypeError(
            "solve_triangular: A must be Triangular(A, lower=not upper, unit=unitriangular)."
        )
    return _solve(A, B, left=left)


def _lstsq(A: Any, B: Any, rcond: Any = None, /, **options: Any) -> LstsqResult:
    if rcond is not None or options:
        raise TypeError(
            "lstsq: rcond and driver are not taken for operators; use colinear.lstsq(A, b, "
            "method=...)."
        )
    return LstsqResult(our_function("lstsq")(A, B))


def _eigh(A: Any, /, UPLO: str = "L") -> EigResult:
    if not A.isa(SelfAdjoint):
        raise TypeError(
            "eigh: the operator is not known to be self-adjoint; say so: SelfAdjoint(A)."
        )
    return _eig(A)


def _eig(A: Any, /) -> EigResult:
    return EigResult(*our_function("eig")(A))


def _svd(
    A: Any, /, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False
) -> Any:
    if not compute_uv:
        return our_function("svd")(A)[1]
    if full_matrices and A.shape[-1] != A.shape[-2]:
        raise TypeError(
            "svd: operators have the reduced decomposition only; give full_matrices=False."
        )
    U, s, V = our_function("svd")(A)
    return SVDResult(U, s, V.H)


def _cholesky(A: Any, /, upper: bool = False) -> Any:
    L = our_function("cholesky")(A)
    return L.H if upper else L


def _qr(A: Any, /, mode: str = "reduced") -> Any:
    if mode not in ("reduced", "r") and A.shape[-2] > A.shape[-1]:
        raise TypeError(f"qr: operators have the reduced decomposition only, not mode={mode!r}.")
    Q, R = our_function("qr")(A)
    return R if mode == "r" else QRResult(Q, R)


def _lu(A: Any, /, pivot: bool = True) -> LUResult:
    if not pivot:
        raise TypeError("lu: operators are factored with pivots; leave out pivot=False.")
    return LUResult(*our_function("lu")(A))


def _pinv(
    A: Any, rcond: Any = None, hermitian: bool = False, /, *, rtol: Any = None, **options: Any
) -> Any:
    if options.keys() - {"hermitian", "rcond"}:
        raise TypeError("pinv: an absolute tolerance is not taken for operators; give rtol=.")
    return our_function("pinv")(A, options.get("rcond", rcond) if rtol is None else rtol)


def _matrix_rank(
    A: Any, tol: Any = None, /, hermitian: bool = False, *, rtol: Any = None, **absolute: Any
) -> Any:
    tol = absolute.pop("tol", absolute.pop("atol", tol))  # NumPy's name, torch's
    if rtol is not None:
        relative = rtol * our_function("norm")(A, 2)
        tol = relative if tol is None else max(tol, relative)
    return our_function("rank")(A, tol)


def _norm(
    A: Any, /, ord: Any = "fro", axis: Any = None, keepdims: bool = False, *, p: Any = None
) -> Any:
    if axis not in (None, (-2, -1)) or keepdims:
        raise TypeError(
            "norm: an operator's norm is over its last two dimensions; axis and keepdims are not "
            "taken."
        )
    return our_function("norm")(A, p if p is not None else "fro" if ord is None else ord)


# ------------------------------------------------------------------ entries, shapes


def _diagonal(A: Any, /, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The diagonal of the first two axes, unless others are named: as outside of `linalg`."""
    if offset or not _are_last_two(A, axis1, axis2):
        raise TypeError(
            "diagonal: of an operator it is the main diagonal of the last two dimensions. Index "
            "others: A[i, i + k]."
        )
    return our_function("diag")(A)


def _diag(A: Any, /, k: int = 0, *, diagonal: int = 0) -> Any:
    return _diagonal(A, k or diagonal)


def _trace(A: Any, /, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    if offset or not _are_last_two(A, axis1, axis2):
        raise TypeError(
            "trace: of an operator it is that of the last two dimensions. Use colinear.trace(A)."
        )
    return our_function("trace")(A)


def _are_last_two(A: LinearOperator, first: int, second: int) -> bool:
    return {first % A.ndim, second % A.ndim} == {A.ndim - 2, A.ndim - 1}


def _transpose(A: Any, /, *axes: Any, **named: Any) -> Any:
    """The last two dimensions exchanged: by NumPy's axes, a permutation, or by torch's, a pair."""
    axes = axes or tuple(named.values()) or (None,)
    axes = axes[0] if len(axes) == 1 else axes
    places = [axis % A.ndim for axis in axes or reversed(range(A.ndim))]
    *before, last, other = range(A.ndim)
    if places not in ([*before, other, last], [last, other], [other, last]):
        raise TypeError(
            "transpose: of an operator only the last two dimensions can be exchanged: A.T."
        )
    return A.T


def _sum(A: Any, /, axis: Any = None, keepdims: bool = False) -> Any:
    """The sums of rows (axis -1) or columns (axis -2), or of all entries, by one product with
    ones."""
    axes = range(A.ndim) if axis is None else axis if isinstance(axis, (tuple, list)) else (axis,)
    places = {place % A.ndim - A.ndim for place in axes}
    side = places.pop() if len(places) == 1 else None  # None: of all entries
    if side not in (None, -1, -2) or (side is None and (A.ndim > 2 or len(places) != 2)):
        raise TypeError(
            "sum: of an operator the rows (axis=-1) or columns (axis=-2) can be added up; "
            "BatchSum(A) adds a batch."
        )
    B = A.T if side == -2 else A
    sums = B @ B.xp.ones((B.shape[-1],), **kind_of(B))
    found = B.xp.sum(sums) if side is None else sums
    if not keepdims:
        return found
    return B.xp.expand_dims(found, side) if side else B.xp.reshape(found, (1, 1))


def _concatenate(operators: Any, /, axis: int = 0) -> Any:
    operators = as_operators(operators)
    if not all(_are_last_two(A, axis, -1) or axis % A.ndim == A.ndim - 1 for A in operators):
        raise TypeError(
            "concatenate: operators can be joined along their last two dimensions. Use hstack or "
            "vstack."
        )
    return (
        hstack(operators)
        if axis % operators[0].ndim == operators[0].ndim - 1
        else vstack(operators)
    )


_TABLE: dict[str, Handler] = {
    "matmul": _matmul,
    "mm": _matmul,
    "mv": _matmul,
    "bmm": _matmul,
    "rmatmul": _swapped(_matmul),
    "dot": _dot,
    "multi_dot": _multi_dot,
    "chain_matmul": lambda *operands: _multi_dot(operands),
    "add": _add,
    "radd": _swapped(_add),
    "sub": _subtract,
    "subtract": _subtract,
    "rsub": _swapped(_subtract),
    "mul": _multiply,
    "multiply": _multiply,
    "rmul": _swapped(_multiply),
    "div": _divide,
    "divide": _divide,
    "true_divide": _divide,
    "truediv": _divide,
    "rtruediv": _swapped(_divide),
    "neg": lambda A: -A,
    "kron": lambda A, B: Kronecker(A, B),
    "solve": _solve,
    "solve_triangular": _solve_triangular,
    "lstsq": _lstsq,
    "inv": _ours("inv"),
    "inverse": _ours("inv"),
    "pinv": _pinv,
    "pinverse": _pinv,
    "det": _ours("det"),
    "logdet": _ours("logdet"),
    "slogdet": lambda A, /: SlogdetResult(*our_function("slogdet")(A)),
    "eigh": _eigh,
    "eigvalsh": lambda A, /, UPLO="L": _eigh(A).eigenvalues,
    "eig": _eig,
    "eigvals": lambda A, /: _eig(A).eigenvalues,
    "svd": _svd,
    "svdvals": lambda A, /: our_function("svd")(A)[1],
    "cholesky": _cholesky,
    "qr": _qr,
    "lu": _lu,
    "trace": _trace,
    "linalg_trace": lambda A, /, offset=0: _trace(A, offset, -2, -1),
    "diag": _diag,
    "diagonal": _diagonal,
    "linalg_diagonal": lambda A, /, offset=0, axis1=-2, axis2=-1: _diagonal(
        A, offset, axis1, axis2
    ),
    "norm": _norm,
    "matrix_norm": _norm,
    "cond": lambda A, /, p=2: our_function("cond")(A, p),
    "matrix_rank": _matrix_rank,
    "matrix_exp": _ours("exp"),
    "matrix_power": lambda A, n, /: A**n,
    **dict.fromkeys(("transpose", "permute", "permute_dims", "swapaxes", "swapdims"), _transpose),
    **dict.fromkeys(("matrix_transpose", "t"), lambda A: A.T),
    "adjoint": lambda A: A.H,
    **dict.fromkeys(("conj", "conj_physical"), lambda A: A.conj()),
    "sum": _sum,
    "concatenate": _concatenate,
    "concat": _concatenate,
    "cat": _concatenate,
    **dict.fromkeys(("hstack", "column_stack"), lambda operators: hstack(operators)),
    **dict.fromkeys(("vstack", "row_stack"), lambda operators: vstack(operators)),
    "block": lambda blocks: Block(blocks),
    "block_diag": lambda *operators: BlockDiag(*operators),
    "shape": lambda A: A.shape,
    "ndim": lambda A: A.ndim,
    "size": lambda A, axis=None: math.prod(A.shape) if axis is None else A.shape[axis],
    "iscomplexobj": lambda A: A.is_complex,
    "isrealobj": lambda A: not A.is_complex,
    "result_type": lambda *values: np.result_type(
        *(v.dtype if isinstance(v, LinearOperator) else v for v in values)
    ),
    "common_type": lambda *values: np.common_type(*(np.empty(0, v.dtype) for v in values)),
}
for _name in reversed(_TABLE):
    # the name in Python's own complaints of arguments
    _TABLE[_name].__qualname__ = _name.removeprefix("linalg_")
