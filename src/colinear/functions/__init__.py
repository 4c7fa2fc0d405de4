"""The functions. Import them from `colinear`.

A function is in the file of its name: what it computes, its base case and how that chooses a method. Its rules follow there, or in files
beside it, by what they are for:

    ..._families        operators whose answer is known or has an algorithm of its own: Diagonal, Circulant, Triangular, ...
    ..._compositions    from the answers of the operands: Product, Kronecker, Transpose, ...
    ..._sums            sums: low-rank corrections, shifts, sums of Kronecker products
    ..._blocks          block matrices, by Schur complements
    ..._bands, _banded  tridiagonal and banded matrices
    ..._on_host         what needs values that can be seen, and SciPy
    ..._kronecker       sums of Kronecker products, by the eigenvectors of their factors
    ..._rules           all other rules, or all of a function that has few

inverse, solve          A^-1 as an operator; A^-1 b with its residual looked at
least_squares           pinv and lstsq;  nullspace
eigen, singular         eig, eigmax, eigmin; svd, rank, cond
diagonal, trace         diag and trace;  determinant: det, slogdet and logdet
matrix_function(s)      exp, log, sqrt, isqrt, power, apply
factorisations          cholesky, lu, qr
kronecker_functions     f of Kronecker products and sums where derivatives are recorded
norms, transposes       norm; transpose, adjoint, conj, to_dense
automatic, cost         how `Auto` weighs iterations against factorisations;  iterative: methods that the user names

Files that begin with _ have no rules: `_arrays` (precision, and what can be seen), `_values` (reciprocals and reports), `_residuals` and
`_factorise` (dense solves and how they are judged), `_columns` (orthonormal ones), `_spectral` (orders and selections of eigenvalues),
`_similarity`, `_minors`, `_fourier_pairs`.
"""

from __future__ import annotations

from .. import methods
from ..dispatch import set_method_names
from . import (  # noqa: F401  (they register themselves)
    cholesky_rules,
    determinant_bands,
    determinant_blocks,
    determinant_compositions,
    determinant_families,
    determinant_rules,
    determinant_sums,
    determinant_unitary,
    diagonal_banded,
    diagonal_families,
    diagonal_rules,
    eigen_components,
    eigen_compositions,
    eigen_rules,
    eigen_tridiagonal,
    eigen_unitary,
    factorisation_banded,
    factorisation_banded_qr,
    factorisation_rules,
    inverse_blocks,
    inverse_compositions,
    inverse_families,
    inverse_kronecker,
    inverse_low_rank,
    inverse_on_host,
    inverse_sums,
    kronecker_function_rules,
    least_squares_rules,
    matrix_function_compositions,
    matrix_function_rules,
    matrix_function_shifts,
    norm_rules,
    nullspace_orbits,
    nullspace_rules,
    singular_compositions,
    singular_rules,
    solve_convolution,
    solve_families,
    solve_lines,
    solve_rules,
    solve_toeplitz,
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

_METHODS = [name for name in methods.__all__ if isinstance(getattr(methods, name), type) and name != "Method"]
set_method_names(
    lambda: _METHODS,
    lambda option: sorted(
        (name for name in _METHODS if option in getattr(getattr(methods, name), "__dataclass_fields__", ())),
        key=lambda name: (name != "Auto", name != "CG"),
    ),
)
