"""The functions, one file each: the base case, then the rules. Import them from `colinear`."""

from __future__ import annotations

from .. import methods
from ..dispatch import set_method_names
from .determinant import det, logdet, slogdet
from .diagonal import diag, trace
from .eigen import eig, eigmax, eigmin
from .factorisations import cholesky, lu, qr
from .inverse import inv
from .least_squares import lstsq, pinv
from .matrix_functions import apply, exp, isqrt, log, power, sqrt
from .norms import norm
from .nullspace import nullspace
from .singular import cond, rank, svd
from .solve import solve
from .transposes import adjoint, conj, to_dense, transpose

__all__ = [
    "solve", "inv", "lstsq", "pinv", "nullspace",
    "eig", "eigmax", "eigmin", "svd",
    "diag", "trace", "det", "slogdet", "logdet",
    "exp", "log", "sqrt", "isqrt", "power", "apply",
    "cholesky", "lu", "qr",
    "norm", "cond", "rank",
    "transpose", "adjoint", "conj", "to_dense",
]  # fmt: skip

set_method_names(lambda: [name for name in methods.__all__ if isinstance(getattr(methods, name), type) and name != "Method"])
