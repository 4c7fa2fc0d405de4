"""What operators answer to: `+ - * / **`, indexing, moves, and the protocols of SciPy, NumPy and
torch.

Each method is one line: the work is done in algebra.py, convert.py, interop.py and printing.py,
which know `LinearOperator` and so come after it. base.py names them here.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import backends
from ..backends import Array
from ..dispatch import calls

if TYPE_CHECKING:
    from .base import LinearOperator


# ------------------------------------------------------------------ linear algebra; the frameworks


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
        return calls.ordinary(f, *pair) if calls._is_strict and calls.are_strict() else f(*pair)

    return operate


class Protocols:
    """The methods of `LinearOperator` that are other names for functions of operators."""

    if TYPE_CHECKING:
        H: Any
        T: Any
        shape: Any

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

    __add__, __radd__ = _arithmetic("add"), _arithmetic("add", is_reflected=True)
    __sub__, __rsub__ = _arithmetic("subtract"), _arithmetic("subtract", is_reflected=True)
    __mul__ = __rmul__ = _arithmetic("times")  # scalars and Hadamard products commute
    __truediv__ = _arithmetic("divide")

    def __pow__(self, exponent: Any) -> Any:
        return algebra.raise_to(self, exponent)

    def __neg__(self) -> Any:
        return self * -1

    def __pos__(self) -> Any:
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

    def trace(self) -> Array:
        """The same as `colinear.trace(A)`."""
        return interop.our_function("trace")(self)

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

    # ------------------------------------------------------------------ printing

    def _expression(self) -> str:
        return f"{type(self).__name__}({'x'.join(map(str, self.shape))})"

    def __repr__(self) -> str:
        return printing.operator_repr(self)

    def _repr_html_(self) -> str:
        return printing.operator_html(self)
