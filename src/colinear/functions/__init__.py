"""The functions, one file each: the base case, then the rules. Import them from `colinear`."""

from __future__ import annotations

from .. import methods
from ..dispatch import set_method_names
from . import (  # noqa: F401  (they register themselves)
    cholesky_rules,
    determinant_rules,
    determinant_sums,
    diagonal_banded,
    diagonal_rules,
    eigen_components,
    eigen_compositions,
    eigen_rules,
    eigen_tridiagonal,
    eigen_unitary,
    factorisation_banded,
    factorisation_rules,
    inverse_blocks,
    inverse_kronecker,
    inverse_on_host,
    inverse_sparse_sums,
    inverse_sums,
    least_squares_rules,
    matrix_function_compositions,
    matrix_function_rules,
    matrix_function_shifts,
    norm_rules,
    nullspace_rules,
    singular_rules,
    solve_kronecker,
    solve_lines,
    solve_rules,
    transform_rules,
)
from .determinant import det, logdet, slogdet
from .diagonal import diag
from .eigen import eig, eigmax, eigmin
from .factorisations import cholesky, lu, qr
from .inverse import inv
from .least_squares import lstsq, pinv
from .matrix_functions import apply, exp, isqrt, log, power, sqrt
from .norms import norm
from .nullspace import nullspace
from .singular import cond, rank, svd
from .solve import solve
from .solve_and_logdet import solve_and_logdet
from .trace import trace
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

set_method_names(lambda: [name for name in methods.__all__ if isinstance(getattr(methods, name), type) and name != "Method"])
