"""What operators answer to: `+ - * / **`, indexing, moves, and the protocols of SciPy, NumPy and
torch.

Each method is one line: the work is done in algebra.py, convert.py, interop.py and printing.py,
which know `LinearOperator` and so come after it. base.py names them here.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar, overload

import numpy as np

from .. import backends
from ..backends import Array
from ..dispatch import calls

if TYPE_CHECKING:
    from .base import LinearOperator


# ------------------------------------------------------------------ linear algebra; the frameworks


class _Array(Protocol):
    """What arrays of all frameworks have, and sparse matrices, operators and lists have not."""

    @property
    def mT(self) -> Any: ...
    @property
    def itemsize(self) -> Any: ...


ArrayT = TypeVar("ArrayT", bound=_Array)  # `Tensor` in, `Tensor` out


class LstsqResult(NamedTuple):
    """The solution, and None for what is not computed along with it."""

    solution: Any
    residuals: Any = None
    rank: Any = None
    singular_values: Any = None


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


class QRResult(NamedTuple):
    Q: Any
    R: Any


class LUResult(NamedTuple):
    P: Any
    L: Any
    U: Any


algebra: Any = None
convert: Any = None
interop: Any = None
printing: Any = None


def _arithmetic(name: str, is_reflected: bool = False) -> Any:
    """The method of an operator that `algebra` has by this name; it runs in the frameworks' ordinary
    modes."""

    def operate(self: Any, other: Any) -> Any:
        pair = (other, self) if is_reflected else (self, other)
        f = getattr(algebra, name)
        return calls.ordinary(f, *pair) if calls.modes and calls.are_strict() else f(*pair)

    return operate


class Protocols:
    """The methods of `LinearOperator` that are other names for functions of operators."""

    if TYPE_CHECKING:
        # base.py has these
        @property
        def H(self) -> LinearOperator: ...
        @property
        def T(self) -> LinearOperator: ...
        @property
        def shape(self) -> tuple[int, ...]: ...
        def conj(self) -> LinearOperator: ...
        def arrays(self) -> tuple[Array, ...]: ...
        def __matmul__(self, other: Any) -> Any: ...

    def to(self, backend: Any = None, device: Any = None, dtype: Any = None) -> LinearOperator:
        """The same operator with its arrays in another framework, on another device or of another
        dtype.

        What is given without its name is known by its type, as in torch: `A.to("torch")`,
        `A.to(torch.float64)`, `A.to("cuda:0")`.
        """
        if (backend is not None and backend not in backends.KNOWN) or convert.is_dtype(device):
            backend, device, dtype = convert.sort_places((backend, device), dtype)
        return convert.move(self, backend, device, dtype)

    @calls.entry
    def to_dense(self) -> Array:
        """The matrix, as a new array of the operator's framework: writing to it leaves the
        operator as it is."""
        return convert.to_dense(self)

    # ------------------------------------------------------------------ arithmetic

    if TYPE_CHECKING:

        def __add__(self, other: Any) -> LinearOperator: ...
        def __radd__(self, other: Any) -> LinearOperator: ...
        def __sub__(self, other: Any) -> LinearOperator: ...
        def __rsub__(self, other: Any) -> LinearOperator: ...
        def __mul__(self, other: Any) -> Any: ...
        def __rmul__(self, other: Any) -> LinearOperator: ...
        def __truediv__(self, other: Any) -> LinearOperator: ...

    else:
        __add__, __radd__ = _arithmetic("add"), _arithmetic("add", is_reflected=True)
        __sub__, __rsub__ = _arithmetic("subtract"), _arithmetic("subtract", is_reflected=True)
        __mul__, __rmul__ = (
            _arithmetic("star"),
            _arithmetic("times"),
        )  # but for vectors they commute
        __truediv__ = _arithmetic("divide")

    def __rtruediv__(self, other: Any) -> LinearOperator:
        raise TypeError(
            "/: nothing can be divided by an operator. Use solve(A, b), or c * inv(A) for a number c."
        )

    def __pow__(self, exponent: Any) -> LinearOperator:
        return algebra.raise_to(self, exponent)

    def __neg__(self) -> LinearOperator:
        return self * -1

    def __pos__(self) -> Self:
        return self

    @calls.entry
    def __getitem__(self, key: Any) -> Any:
        return algebra.getitem(self, key)

    def __iter__(self) -> Any:
        raise TypeError(
            f"{type(self).__name__} is an operator, not a sequence: index it, or call to_dense()."
        )

    def __bool__(self) -> bool:
        raise TypeError("The truth value of an operator is not defined.")

    # ------------------------------------------------------------------ the protocols of SciPy, Num

    def dot(self, x: Any) -> Any:
        """The same as `A @ x`: A x for x of shape (n,) or (n, 1), and A X, as SciPy's operators."""
        return self @ x

    matvec = matmat = __call__ = dot

    def rmatvec(self, x: Array) -> Array:
        """A^H x for x of shape (m,) or (m, 1), and A^H X."""
        return self.H @ x

    rmatmat = rmatvec

    def adjoint(self) -> LinearOperator:
        """The same as `A.H`."""
        return self.H

    def transpose(self) -> LinearOperator:
        """The same as `A.T`."""
        return self.T

    def to_scipy(self) -> Any:
        """A `scipy.sparse.linalg.LinearOperator` that multiplies by this one."""
        return convert.to_scipy(self)

    def toarray(self) -> Array:
        """The same as `A.to_dense()`."""
        return convert.to_dense(self)

    todense = toarray

    def astype(self, dtype: Any) -> LinearOperator:
        """The same as `A.to(dtype=dtype)`."""
        return self.to(dtype=dtype)

    def conjugate(self) -> LinearOperator:
        """The same as `A.conj()`."""
        return self.conj()

    def trace(self) -> Array:
        """The same as `colinear.trace(A)`."""
        return interop.our_function("trace")(self)

    def diagonal(self, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Array:
        """The same as `colinear.diag(A)`, one diagonal for each of a batch; another one is refused."""
        return interop._diagonal(self, offset, dim1, dim2)

    def reshape(self, *shape: Any) -> Any:
        """Refused: an operator is no array. (PyLops calls it before it multiplies.)"""
        return interop.as_numpy(self)

    ravel = reshape

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return interop.as_numpy(self, caller=sys._getframe(1).f_globals.get("__name__", ""))

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return interop.numpy_function(func, args, kwargs)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return interop.torch_function(func, args, kwargs or {})

    # ------------------------------------------------------------------ what arrays have

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return self.shape[:-2]

    @property
    def mT(self) -> LinearOperator:
        """The same as `A.T`: of a batch, the transpose of each."""
        return self.T

    @property
    def mH(self) -> LinearOperator:
        """The same as `A.H`."""
        return self.H

    def size(self, dim: int | None = None) -> Any:
        """The same as `A.shape`, or one entry of it."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """How many dimensions the shape has: two, and those of the batch."""
        return len(self.shape)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Say of each array of floats that torch is to differentiate with respect to it, in place."""
        return convert.require_gradients(self, requires_grad)

    def cpu(self) -> LinearOperator:
        """The same as `A.to(device="cpu")`."""
        return self.to(device="cpu")

    def cuda(self, device: Any = None) -> LinearOperator:
        """The same as `A.to(device="cuda")`, or on the GPU of this number."""
        return self.to(device="cuda" if device is None else device)

    def double(self) -> LinearOperator:
        """The same as `A.to(dtype="float64")`."""
        return self.to(dtype="float64")

    def float(self) -> LinearOperator:
        """The same as `A.to(dtype="float32")`."""
        return self.to(dtype="float32")

    def half(self) -> LinearOperator:
        """The same as `A.to(dtype="float16")`."""
        return self.to(dtype="float16")

    @overload
    def solve(self, b: LinearOperator, *, method: Any = None) -> LinearOperator: ...
    @overload
    def solve(self, b: np.ndarray[Any, Any], *, method: Any = None) -> np.ndarray[Any, Any]: ...
    @overload
    def solve(self, b: ArrayT, *, method: Any = None) -> ArrayT: ...
    @overload
    def solve(self, b: Any, *, method: Any = None) -> Any: ...
    def solve(self, b: Any, *, method: Any = None) -> Any:
        """The same as `colinear.solve(A, b, method)`."""
        return interop.our_function("solve")(self, b, method)

    def logdet(self, *, method: Any = None) -> Array:
        """The same as `colinear.logdet(A, method)`."""
        return interop.our_function("logdet")(self, method)

    def inv_quad_logdet(
        self,
        inv_quad_rhs: Any = None,
        logdet: bool = False,
        reduce_inv_quad: bool = True,
        method: Any = None,
    ) -> tuple[Array, Array]:
        """b^H A^-1 b, summed over the columns of b unless `reduce_inv_quad=False`, and log|det A| if
        asked for; what is not asked for is zero. `colinear.solve_and_logdet(A, b)` gives A^-1 b."""
        return interop.inv_quad_logdet(self, inv_quad_rhs, logdet, reduce_inv_quad, method)

    def add_jitter(self, jitter_val: Any = 1e-3) -> LinearOperator:
        """A + c I."""
        return self.add_diagonal(jitter_val)

    def add_diagonal(self, diag: Any) -> LinearOperator:
        """A + diag(d); a number stands for d whose entries are all the same."""
        return algebra.add_diagonal(self, diag)

    # ------------------------------------------------------------------ sums by their terms: see terms.py

    @property
    def _term_count(self) -> int:
        """How many terms a sum has; 1 of what is no sum."""
        return 1

    def _some_terms(self, indices: Array, weights: Array) -> LinearOperator:
        """sum_k weights[k] A_indices[k], as an operator."""
        raise TypeError(f"{type(self).__name__} is no sum of terms.")

    @property
    def _has_rows(self) -> bool:
        return type(self)._rows is not Protocols._rows

    def _rows(self, indices: Array) -> LinearOperator:
        """The rows of these indices, which may be traced, as an operator."""
        raise TypeError(f"{type(self).__name__} has no rows to take.")

    # ------------------------------------------------------------------ printing

    def _expression(self) -> str:
        return f"{type(self).__name__}({'x'.join(map(str, self.shape))})"

    def __repr__(self) -> str:
        return printing.operator_repr(self)

    def _repr_html_(self) -> str:
        return printing.operator_html(self)
