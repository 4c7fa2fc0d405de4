"""The operators: one file per family. Import them from `colinear`."""

from __future__ import annotations

from ..dispatch import set_operators
from .autograd import GaussNewton, Hessian, Jacobian
from .banded import Banded, Tridiagonal
from .base import LinearOperator
from .batch import BatchSum
from .block import Block, BlockDiag, hstack, vstack
from .convert import as_operator
from .convolution import Convolution
from .dense import Dense, Triangular
from .diagonal import Diagonal, Identity, ScaledIdentity, Zero
from .kernel import Kernel
from .kronecker import Kronecker, KroneckerSum
from .lowrank import Householder, LowRank, Projection
from .matrixfree import MatrixFree, Opaque, opaque
from .neutral import release
from .product import Product
from .recorded import computed_elsewhere
from .rewrites import simplify
from .scaled import Scaled
from .sliced import Sliced
from .sparse import Sparse
from .sum import Hadamard, Sum
from .toeplitz import Circulant, Toeplitz
from .transposed import Adjoint, Conjugate, Transpose
from .unitary import FFT, Permutation, Sine

set_operators(as_operator, simplify, release, computed_elsewhere)

__all__ = [
    "FFT",
    "Adjoint",
    "Banded",
    "BatchSum",
    "Block",
    "BlockDiag",
    "Circulant",
    "Conjugate",
    "Convolution",
    "Dense",
    "Diagonal",
    "GaussNewton",
    "Hadamard",
    "Hessian",
    "Householder",
    "Identity",
    "Jacobian",
    "Kernel",
    "Kronecker",
    "KroneckerSum",
    "LinearOperator",
    "LowRank",
    "MatrixFree",
    "Opaque",
    "Permutation",
    "Product",
    "Projection",
    "Scaled",
    "ScaledIdentity",
    "Sine",
    "Sliced",
    "Sparse",
    "Sum",
    "Toeplitz",
    "Transpose",
    "Triangular",
    "Tridiagonal",
    "Zero",
    "as_operator",
    "hstack",
    "opaque",
    "simplify",
    "vstack",
]
