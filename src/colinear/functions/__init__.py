"""The functions. Import them from `colinear`.

A folder for each question. Its `__init__` holds the public functions and their base case; its other
files are the rules, by what they are for, and the algorithms that only this question needs.

solve               inv and solve: A^-1 as an operator, A^-1 b with its residual checked
least_squares       lstsq, pinv and nullspace
determinant         det, slogdet, logdet
diagonal            diag and trace
spectrum            eig, eigmax, eigmin
singular            svd, rank, cond, norm
matrix_functions    exp, log, sqrt, isqrt, power, apply
factorisations      cholesky, lu, qr; factorize, which keeps what solve and logdet need
stochastic          solve_and_logdet, estimates of traces and diagonals, Lanczos quadrature
low_rank            nystrom, rp_cholesky, range_finder, interpolative, cur
common              what the rules share

What has nothing to choose stands here: transpose, adjoint, conj, to_dense.
"""

from __future__ import annotations

# The rules register themselves with the functions.
import colinear.functions.diagonal.bands
import colinear.functions.diagonal.rules
import colinear.functions.factorisations.banded
import colinear.functions.factorisations.rules
import colinear.functions.least_squares.rules
import colinear.functions.matrix_functions.compositions
import colinear.functions.matrix_functions.rules
import colinear.functions.singular.norm_rules
import colinear.functions.singular.rules
import colinear.functions.spectrum.components
import colinear.functions.spectrum.compositions
import colinear.functions.spectrum.rules

from .. import methods
from ..backends import Array
from ..dispatch import function, set_method_names
from ..operators import LinearOperator
from .determinant import det, logdet, slogdet
from .diagonal import diag, trace
from .factorisations import cholesky, lu, qr
from .factorisations.kept import factorize
from .least_squares import lstsq, pinv
from .least_squares.nullspace import nullspace
from .low_rank import nystrom, rp_cholesky
from .low_rank.sketches import cur, interpolative, range_finder
from .matrix_functions import apply, exp, isqrt, log, power, sqrt
from .singular import cond, norm, rank, svd
from .solve import inv, solve
from .spectrum import eig, eigmax, eigmin
from .stochastic.solve_and_logdet import solve_and_logdet

# The transposes and the matrix itself, as functions. They have nothing to choose, so any method
# will do.


def transposed(A: LinearOperator, method: methods.Method | None = None) -> LinearOperator:
    """The transpose, `A.T`.

    Examples
    --------
    >>> import colinear as co
    >>> co.transpose([[1.0, 2.0]]).shape
    (2, 1)
    """
    return A.T


def adjoint_of(A: LinearOperator, method: methods.Method | None = None) -> LinearOperator:
    """The conjugate transpose, `A.H`.

    Examples
    --------
    >>> import colinear as co
    >>> co.adjoint([[1j, 2.0]]).to_dense()
    array([[0.-1.j],
           [2.-0.j]])
    """
    return A.H


def conjugate(A: LinearOperator, method: methods.Method | None = None) -> LinearOperator:
    """The complex conjugate, `A.conj()`.

    Examples
    --------
    >>> import colinear as co
    >>> co.conj([[1j]]).to_dense()
    array([[0.-1.j]])
    """
    return A.conj()


def matrix(A: LinearOperator, method: methods.Method | None = None) -> Array:
    """The matrix, `A.to_dense()`.

    Examples
    --------
    >>> import colinear as co
    >>> co.to_dense(co.Identity(2))
    array([[1., 0.],
           [0., 1.]])
    """
    return A.to_dense()


transpose = function("transpose", base=transposed, rewrites=False)
adjoint = function("adjoint", base=adjoint_of, rewrites=False)
conj = function("conj", base=conjugate, rewrites=False)
to_dense = function("to_dense", base=matrix, rewrites=False)

__all__ = [
    "solve", "inv", "lstsq", "pinv", "nullspace",
    "eig", "eigmax", "eigmin", "svd",
    "diag", "trace", "det", "slogdet", "logdet", "solve_and_logdet",
    "exp", "log", "sqrt", "isqrt", "power", "apply",
    "cholesky", "lu", "qr", "factorize",
    "norm", "cond", "rank",
    "transpose", "adjoint", "conj", "to_dense",
    "nystrom", "rp_cholesky", "range_finder", "interpolative", "cur",
]  # fmt: skip

_METHODS = [  # those of which none is made are what others share
    name
    for name in methods.__all__
    if isinstance(getattr(methods, name), type) and not getattr(methods, name).__subclasses__()
]
set_method_names(
    lambda: _METHODS,
    lambda option: sorted(
        (
            name
            for name in _METHODS
            if option in getattr(getattr(methods, name), "__dataclass_fields__", ())
        ),
        key=lambda name: (name != "Auto", name != "CG"),
    ),
)
