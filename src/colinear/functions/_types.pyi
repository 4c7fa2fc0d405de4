"""Written by docs/type_stubs.py; do not edit.

Not in `__init__.pyi`: mypy, once it reads its cache, takes `colinear.functions.solve` for the folder of
that name.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, overload

import numpy as np

from ..backends import Array
from ..dispatch import Function
from ..info import Info
from ..methods import Method
from ..operators import LinearOperator
from ..operators.protocols import ArrayT
from .factorisations.kept import Factorized

class HasShape(Protocol):
    """Arrays, sparse matrices and operators of all libraries."""

    @property
    def shape(self) -> Any: ...

Rows = Sequence[Sequence[complex]]
Matrix = LinearOperator | HasShape | Rows | Sequence[Rows]
Other = HasShape | Sequence[complex] | Rows
NumPyArray = np.ndarray[Any, Any]
Which = Literal["LM", "SM", "LA", "SA", "LR", "SR", "LI", "SI", "BE"]
Order = complex | Literal["fro", "nuc"]
OnFailure = Literal["warn", "raise", "ignore"]

class _solve(Function):
    @overload
    def __call__(self, A: Matrix, b: LinearOperator, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> LinearOperator:
        """Solve A x = b."""
    @overload
    def __call__(self, A: Matrix, b: LinearOperator, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[LinearOperator, Info]: ...
    @overload
    def __call__(self, A: Matrix, b: NumPyArray, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> NumPyArray: ...
    @overload
    def __call__(self, A: Matrix, b: NumPyArray, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[NumPyArray, Info]: ...
    @overload
    def __call__(self, A: Matrix, b: ArrayT, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> ArrayT: ...
    @overload
    def __call__(self, A: Matrix, b: ArrayT, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[ArrayT, Info]: ...
    @overload
    def __call__(self, A: Matrix, b: Other, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> Array: ...
    @overload
    def __call__(self, A: Matrix, b: Other, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[Array, Info]: ...
    @overload
    def __call__(self, A: Matrix, b: Other, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _inv(Function):
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> LinearOperator:
        """The inverse of a square operator, as an operator that holds its factorisation."""
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[LinearOperator, Info]: ...
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _lstsq(Function):
    @overload
    def __call__(self, A: Matrix, b: LinearOperator, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> LinearOperator:
        """The x of smallest norm among those that minimise |b - A x|."""
    @overload
    def __call__(self, A: Matrix, b: LinearOperator, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[LinearOperator, Info]: ...
    @overload
    def __call__(self, A: Matrix, b: NumPyArray, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> NumPyArray: ...
    @overload
    def __call__(self, A: Matrix, b: NumPyArray, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[NumPyArray, Info]: ...
    @overload
    def __call__(self, A: Matrix, b: ArrayT, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> ArrayT: ...
    @overload
    def __call__(self, A: Matrix, b: ArrayT, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[ArrayT, Info]: ...
    @overload
    def __call__(self, A: Matrix, b: Other, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> Array: ...
    @overload
    def __call__(self, A: Matrix, b: Other, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[Array, Info]: ...
    @overload
    def __call__(self, A: Matrix, b: Other, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _pinv(Function):
    @overload
    def __call__(self, A: Matrix, rtol: float | None = None, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> LinearOperator:
        """The Moore-Penrose pseudoinverse A^+ = V Σ^+ U^H, as an operator that keeps these factors."""
    @overload
    def __call__(self, A: Matrix, rtol: float | None = None, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[LinearOperator, Info]: ...
    @overload
    def __call__(self, A: Matrix, rtol: float | None = None, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _nullspace(Function):
    @overload
    def __call__(self, A: Matrix, rtol: float | None = None, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> LinearOperator:
        """An orthonormal basis of the vectors x with A x = 0."""
    @overload
    def __call__(self, A: Matrix, rtol: float | None = None, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[LinearOperator, Info]: ...
    @overload
    def __call__(self, A: Matrix, rtol: float | None = None, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _eig(Function):
    @overload
    def __call__(self, A: Matrix, k: int | None = None, which: Which = "LM", method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> tuple[Array, LinearOperator]:
        """Eigenvalues and right eigenvectors, A V = V diag(values)."""
    @overload
    def __call__(self, A: Matrix, k: int | None = None, which: Which = "LM", method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[tuple[Array, LinearOperator], Info]: ...
    @overload
    def __call__(self, A: Matrix, k: int | None = None, which: Which = "LM", method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _eigmax(Function):
    @overload
    def __call__(self, A: Matrix, vector: bool = False, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> Array:
        """The largest eigenvalue: algebraically if A is self-adjoint, else by magnitude."""
    @overload
    def __call__(self, A: Matrix, vector: bool = False, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[Array, Info]: ...
    @overload
    def __call__(self, A: Matrix, vector: bool = False, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _eigmin(Function):
    @overload
    def __call__(self, A: Matrix, vector: bool = False, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> Array:
        """The smallest eigenvalue: algebraically if A is self-adjoint, else by magnitude."""
    @overload
    def __call__(self, A: Matrix, vector: bool = False, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[Array, Info]: ...
    @overload
    def __call__(self, A: Matrix, vector: bool = False, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _svd(Function):
    @overload
    def __call__(self, A: Matrix, k: int | None = None, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> tuple[LinearOperator, Array, LinearOperator]:
        """The singular value decomposition A = U diag(s) V^H, all of it or the k largest singular values."""
    @overload
    def __call__(self, A: Matrix, k: int | None = None, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[tuple[LinearOperator, Array, LinearOperator], Info]: ...
    @overload
    def __call__(self, A: Matrix, k: int | None = None, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _diag(Function):
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> Array:
        """The entries on the main diagonal."""
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[Array, Info]: ...
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _trace(Function):
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> Array:
        """The trace, the sum of the diagonal of a square operator."""
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[Array, Info]: ...
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _det(Function):
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> Array:
        """The determinant. Use `slogdet` where it might overflow."""
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[Array, Info]: ...
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _slogdet(Function):
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> tuple[Array, Array]:
        """The sign of the determinant and the logarithm of its absolute value, det A = sign exp(logabsdet)."""
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[tuple[Array, Array], Info]: ...
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _logdet(Function):
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> Array:
        """log|det A|, real; -inf for a singular operator."""
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[Array, Info]: ...
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _solve_and_logdet(Function):
    @overload
    def __call__(self, A: Matrix, b: LinearOperator, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> tuple[LinearOperator, Array]:
        """x = A^-1 b and log|det A|, as the likelihood of a Gaussian process needs them."""
    @overload
    def __call__(self, A: Matrix, b: LinearOperator, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[tuple[LinearOperator, Array], Info]: ...
    @overload
    def __call__(self, A: Matrix, b: NumPyArray, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> tuple[NumPyArray, Array]: ...
    @overload
    def __call__(self, A: Matrix, b: NumPyArray, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[tuple[NumPyArray, Array], Info]: ...
    @overload
    def __call__(self, A: Matrix, b: ArrayT, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> tuple[ArrayT, Array]: ...
    @overload
    def __call__(self, A: Matrix, b: ArrayT, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[tuple[ArrayT, Array], Info]: ...
    @overload
    def __call__(self, A: Matrix, b: Other, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> tuple[Array, Array]: ...
    @overload
    def __call__(self, A: Matrix, b: Other, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[tuple[Array, Array], Info]: ...
    @overload
    def __call__(self, A: Matrix, b: Other, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _exp(Function):
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> LinearOperator:
        """The matrix exponential, right for defective A too."""
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[LinearOperator, Info]: ...
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _log(Function):
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> LinearOperator:
        """The principal logarithm: complex where A has negative eigenvalues. Under tracing complex unless A is annotated PSD."""
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[LinearOperator, Info]: ...
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _sqrt(Function):
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> LinearOperator:
        """The principal square root, X X = A: complex where A has negative eigenvalues. Under tracing complex unless A is annotated PSD."""
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[LinearOperator, Info]: ...
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _isqrt(Function):
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> LinearOperator:
        """The principal inverse square root A^(-1/2), which whitens a covariance."""
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[LinearOperator, Info]: ...
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _power(Function):
    @overload
    def __call__(self, A: Matrix, p: complex | Array, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> LinearOperator:
        """A^p for any number p: by repeated squaring for whole numbers, the principal power for others."""
    @overload
    def __call__(self, A: Matrix, p: complex | Array, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[LinearOperator, Info]: ...
    @overload
    def __call__(self, A: Matrix, p: complex | Array, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _apply(Function):
    @overload
    def __call__(self, f: Callable[[Array], Array], A: Matrix, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> LinearOperator:
        """f(A), for a function f of numbers, through eigenvalues and eigenvectors."""
    @overload
    def __call__(self, f: Callable[[Array], Array], A: Matrix, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[LinearOperator, Info]: ...
    @overload
    def __call__(self, f: Callable[[Array], Array], A: Matrix, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _cholesky(Function):
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> LinearOperator:
        """The Cholesky factor of a positive definite operator: the lower triangular L with positive diagonal and A = L L^H."""
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[LinearOperator, Info]: ...
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _lu(Function):
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> tuple[LinearOperator, LinearOperator, LinearOperator]:
        """The factors of A = P L U: a permutation, a lower triangle of unit diagonal, an upper triangle."""
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[tuple[LinearOperator, LinearOperator, LinearOperator], Info]: ...
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _qr(Function):
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> tuple[LinearOperator, LinearOperator]:
        """The factors of A = Q R: orthonormal columns, and an upper triangle."""
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[tuple[LinearOperator, LinearOperator], Info]: ...
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _factorize(Function):
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> Factorized:
        """A with its factorisation kept, for loops: `solve`, `logdet` and `update(leaves)` of one object."""
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[Factorized, Info]: ...
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _norm(Function):
    @overload
    def __call__(self, A: Matrix, ord: Order = "fro", method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> Array:
        """A norm of the matrix, as `numpy.linalg.norm`."""
    @overload
    def __call__(self, A: Matrix, ord: Order = "fro", method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[Array, Info]: ...
    @overload
    def __call__(self, A: Matrix, ord: Order = "fro", method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _cond(Function):
    @overload
    def __call__(self, A: Matrix, p: Order = 2, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> Array:
        """The condition number |A| |A^-1| in the norm `p`; infinite for a singular operator."""
    @overload
    def __call__(self, A: Matrix, p: Order = 2, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[Array, Info]: ...
    @overload
    def __call__(self, A: Matrix, p: Order = 2, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _rank(Function):
    @overload
    def __call__(self, A: Matrix, tol: float | None = None, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> Array:
        """The number of singular values that are not negligible."""
    @overload
    def __call__(self, A: Matrix, tol: float | None = None, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[Array, Info]: ...
    @overload
    def __call__(self, A: Matrix, tol: float | None = None, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _transpose(Function):
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> LinearOperator:
        """The transpose, `A.T`."""
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[LinearOperator, Info]: ...
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _adjoint(Function):
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> LinearOperator:
        """The conjugate transpose, `A.H`."""
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[LinearOperator, Info]: ...
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _conj(Function):
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> LinearOperator:
        """The complex conjugate, `A.conj()`."""
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[LinearOperator, Info]: ...
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _to_dense(Function):
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> Array:
        """The matrix, `A.to_dense()`."""
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[Array, Info]: ...
    @overload
    def __call__(self, A: Matrix, method: Method | None = None, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _nystrom(Function):
    @overload
    def __call__(self, A: Matrix, rank: int, seed: Any = 0, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> LinearOperator:
        """A low-rank approximation from below of a positive semidefinite operator, A Ω (Ω^H A Ω)^+ (A Ω)^H with a random Ω."""
    @overload
    def __call__(self, A: Matrix, rank: int, seed: Any = 0, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[LinearOperator, Info]: ...
    @overload
    def __call__(self, A: Matrix, rank: int, seed: Any = 0, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _rp_cholesky(Function):
    @overload
    def __call__(self, A: Matrix, rank: int, seed: Any = 0, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> LinearOperator:
        """A low-rank approximation L L^H of a positive semidefinite operator from its diagonal and `rank` of its columns, drawn at random."""
    @overload
    def __call__(self, A: Matrix, rank: int, seed: Any = 0, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[LinearOperator, Info]: ...
    @overload
    def __call__(self, A: Matrix, rank: int, seed: Any = 0, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _range_finder(Function):
    @overload
    def __call__(self, A: Matrix, rank: int | None = None, tol: float | None = None, power_iterations: int = 0, block: int = 10, seed: Any = 0, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> LinearOperator:
        """Orthonormal columns Q with A ≈ Q Q^H A, from products of A with random vectors."""
    @overload
    def __call__(self, A: Matrix, rank: int | None = None, tol: float | None = None, power_iterations: int = 0, block: int = 10, seed: Any = 0, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[LinearOperator, Info]: ...
    @overload
    def __call__(self, A: Matrix, rank: int | None = None, tol: float | None = None, power_iterations: int = 0, block: int = 10, seed: Any = 0, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _interpolative(Function):
    @overload
    def __call__(self, A: Matrix, rank: int, seed: Any = 0, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> tuple[LinearOperator, Array]:
        """An interpolative decomposition A ≈ A[:, columns] Z: the other columns are combinations of a few."""
    @overload
    def __call__(self, A: Matrix, rank: int, seed: Any = 0, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[tuple[LinearOperator, Array], Info]: ...
    @overload
    def __call__(self, A: Matrix, rank: int, seed: Any = 0, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

class _cur(Function):
    @overload
    def __call__(self, A: Matrix, rank: int, seed: Any = 0, *, info: Literal[False] = False, on_failure: OnFailure = "warn") -> tuple[LinearOperator, Array, Array]:
        """A CUR decomposition A ≈ C M R, with a few columns C and rows R of A itself, and the best M for them."""
    @overload
    def __call__(self, A: Matrix, rank: int, seed: Any = 0, *, info: Literal[True], on_failure: OnFailure = "warn") -> tuple[tuple[LinearOperator, Array, Array], Info]: ...
    @overload
    def __call__(self, A: Matrix, rank: int, seed: Any = 0, *, info: bool, on_failure: OnFailure = "warn") -> Any: ...

solve: _solve
inv: _inv
lstsq: _lstsq
pinv: _pinv
nullspace: _nullspace
eig: _eig
eigmax: _eigmax
eigmin: _eigmin
svd: _svd
diag: _diag
trace: _trace
det: _det
slogdet: _slogdet
logdet: _logdet
solve_and_logdet: _solve_and_logdet
exp: _exp
log: _log
sqrt: _sqrt
isqrt: _isqrt
power: _power
apply: _apply
cholesky: _cholesky
lu: _lu
qr: _qr
factorize: _factorize
norm: _norm
cond: _cond
rank: _rank
transpose: _transpose
adjoint: _adjoint
conj: _conj
to_dense: _to_dense
nystrom: _nystrom
rp_cholesky: _rp_cholesky
range_finder: _range_finder
interpolative: _interpolative
cur: _cur

__all__ = ["solve", "inv", "lstsq", "pinv", "nullspace", "eig", "eigmax", "eigmin", "svd", "diag", "trace", "det", "slogdet", "logdet", "solve_and_logdet", "exp", "log", "sqrt", "isqrt", "power", "apply", "cholesky", "lu", "qr", "factorize", "norm", "cond", "rank", "transpose", "adjoint", "conj", "to_dense", "nystrom", "rp_cholesky", "range_finder", "interpolative", "cur"]
