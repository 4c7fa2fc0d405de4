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
factorisations      cholesky, lu, qr
stochastic          solve_and_logdet, estimates of traces and diagonals, Lanczos quadrature
low_rank            nystrom, rp_cholesky, range_finder, interpolative, cur
common              what the rules share;  transpose, adjoint, conj, to_dense
"""

from __future__ import annotations

# The rules register themselves with the functions.
import colinear.functions.determinant.bands
import colinear.functions.determinant.rules
import colinear.functions.determinant.sums
import colinear.functions.diagonal.bands
import colinear.functions.diagonal.rules
import colinear.functions.factorisations.banded
import colinear.functions.factorisations.rules
import colinear.functions.least_squares.rules
import colinear.functions.matrix_functions.compositions
import colinear.functions.matrix_functions.rules
import colinear.functions.singular.norm_rules
import colinear.functions.singular.rules
import colinear.functions.solve.compositions
import colinear.functions.solve.families
import colinear.functions.solve.kronecker
import colinear.functions.solve.rules
import colinear.functions.solve.sums
import colinear.functions.spectrum.components
import colinear.functions.spectrum.compositions
import colinear.functions.spectrum.rules

from .. import methods
from ..dispatch import set_method_names
from .determinant import det, logdet, slogdet
from .diagonal import diag
from .diagonal.trace import trace
from .factorisations import cholesky, lu, qr
from .least_squares import lstsq, pinv
from .least_squares.nullspace import nullspace
from .matrix_functions import apply, exp, isqrt, log, power, sqrt
from .singular import cond, norm, rank, svd
from .solve import inv, solve
from .spectrum import eig, eigmax, eigmin
from .stochastic.solve_and_logdet import solve_and_logdet
from .transposes import adjoint, conj, to_dense, transpose

__all__ = [
    "solve", "inv", "lstsq", "pinv", "nullspace",
    "eig", "eigmax", "eigmin", "svd",
    "diag", "trace", "det", "slogdet", "logdet", "solve_and_logdet",
    "exp", "log", "sqrt", "isqrt", "power", "apply",
    "cholesky", "lu", "qr",
    "norm", "cond", "rank",
    "transpose", "adjoint", "conj", "to_dense",
]  # fmt: skip

_METHODS = [
    name
    for name in methods.__all__
    if isinstance(getattr(methods, name), type) and name != "Method"
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
