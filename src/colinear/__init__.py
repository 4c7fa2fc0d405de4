"""Compositional linear algebra for NumPy, PyTorch and JAX.

Build an operator from its structure, and ask: the fast algorithm is found by rules.

>>> import colinear as co, numpy as np
>>> A = co.Kronecker(co.PSD([[2.0, 1.0], [1.0, 2.0]]), co.Diagonal([1.0, 2.0, 3.0]))
>>> x = co.solve(A, np.ones(6))
>>> bool(np.allclose(A @ x, 1))
True
"""

from __future__ import annotations

import importlib
import sys

from . import backends, testing
from .detect import detect
from .dispatch import Choice, Cost, Function, check_rules, deferred, function, rule
from .errors import (
    AmbiguityError,
    AnnotationError,
    ApproximationWarning,
    BackendError,
    ColinearError,
    ColinearWarning,
    ConvergenceError,
    ConvergenceWarning,
    DerivativeWarning,
    DeviceError,
    DtypeError,
    FallbackWarning,
    MethodError,
    ShapeError,
    TooLargeError,
)
from .explain import Plan, explain
from .factors.inverse import Inverse
from .functions import *
from .functions.factorisations.kept import Factorized
from .info import Info
from .methods import *
from .operators import *
from .preconditioners import *
from .profile import Profile, profile
from .properties import PD, PSD, SelfAdjoint, Stiefel, Symmetric, Unitary
from .status import Status
from .verify import verify

__version__ = "0.2.0"


def __getattr__(name: str) -> object:
    """What is loaded when it is asked for, and so not listed in `__all__`: `OperatorModule`, a class
    of torch's, what puts operators on meshes, and the methods of PETSc and SLEPc."""
    if name == "OperatorModule":
        from .backends.torch.module import OperatorModule

        return OperatorModule
    if name in ("distributed", "shard", "gather", "AllReduce"):
        distributed = importlib.import_module("colinear.distributed")
        return distributed if name == "distributed" else getattr(distributed, name)
    if name in ("PETSc", "SLEPc"):
        return getattr(importlib.import_module(f"colinear.distributed.{name.lower()}"), name)
    raise AttributeError(f"module 'colinear' has no attribute {name!r}")


# A framework that is in use already is made known now: inside torch.compile or jax.jit would be the
# wrong moment.
for _framework in ("torch", "jax"):
    if sys.modules.get(_framework) is not None:
        backends.get(_framework)

__all__ = [
    # operators: base
    "LinearOperator", "Dense", "Sparse", "Diagonal", "Identity", "ScaledIdentity", "Zero",
    "Triangular", "Tridiagonal", "Banded", "Permutation", "Toeplitz", "Circulant",
    "Convolution", "FFT", "Sine", "LowRank", "Householder", "Projection", "Kernel", "Jacobian",
    "Hessian", "GaussNewton", "MatrixFree",
    # operators: composed
    "Sum", "Product", "Scaled", "Kronecker", "KroneckerSum", "BlockDiag", "Block", "hstack",
    "vstack", "BatchSum", "Transpose", "Adjoint", "Conjugate", "Sliced", "Hadamard", "Inverse",
    "opaque", "simplify", "as_operator", "detect",
    # annotations
    "SelfAdjoint", "Symmetric", "PSD", "PD", "Unitary", "Stiefel", "verify",
    # functions
    "solve", "inv", "lstsq", "pinv", "nullspace", "eig", "eigmax", "eigmin", "svd", "diag",
    "trace", "det", "slogdet", "logdet", "solve_and_logdet", "exp", "log", "sqrt", "isqrt",
    "power", "apply", "cholesky", "lu", "qr", "factorize", "Factorized", "norm", "cond", "rank", "transpose", "adjoint",
    "conj", "to_dense",
    # approximations
    "nystrom", "rp_cholesky", "range_finder", "interpolative", "cur",
    # methods
    "Auto", "Cholesky", "LU", "LDL", "QR", "Eigh", "Eig", "SVD", "CG", "MINRES", "GMRES",
    "BiCGSTAB", "LSQR", "LSMR", "Lanczos", "Arnoldi", "LOBPCG", "PowerIteration", "GolubKahan",
    "RandomizedSVD", "Krylov", "SVRG", "Hutchinson", "HutchPP", "XTrace", "XDiag", "XNysTrace",
    "SLQ",
    # preconditioners
    "Jacobi", "BlockJacobi", "ILU", "IC", "PivotedCholesky", "RPCholesky", "Nystrom", "Chebyshev", "AMG",
    # dispatch
    "function", "rule", "check_rules", "explain", "Plan", "profile", "Profile", "Choice", "Cost", "Function",
    # results and errors
    "Info", "Status", "deferred", "ColinearError", "ShapeError", "DtypeError", "BackendError",
    "DeviceError", "AnnotationError", "AmbiguityError", "ConvergenceError", "MethodError",
    "TooLargeError", "ColinearWarning", "ConvergenceWarning", "ApproximationWarning",
    "DerivativeWarning", "FallbackWarning", "testing",
]  # fmt: skip
