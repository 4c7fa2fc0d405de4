"""The operators: one file per family. Import them from `colinear`."""

from __future__ import annotations

from ..dispatch import set_converter, set_release
from .autograd import GaussNewton, Hessian, Jacobian
from .banded import Banded
from .base import LinearOperator, release
from .batch_sum import BatchSum
from .block import Block, BlockDiag, hstack, vstack
from .circulant import Circulant
from .convert import as_operator
from .convolution import Convolution
from .dense import Dense
from .diagonal import Diagonal
from .fft import FFT
from .hadamard import Hadamard
from .householder import Householder
from .identity import Identity, ScaledIdentity
from .kernel import Kernel
from .kronecker import Kronecker, KroneckerSum
from .lowrank import LowRank
from .matrixfree import MatrixFree
from .opaque import Opaque, opaque
from .permutation import Permutation
from .product import Product
from .projection import Projection
from .rewrites import simplify
from .scaled import Scaled
from .sine import Sine
from .sliced import Sliced
from .sparse import Sparse
from .sum import Sum
from .toeplitz import Toeplitz
from .transposed import Adjoint, Conjugate, Transpose
from .triangular import Triangular
from .tridiagonal import Tridiagonal
from .zero import Zero

set_converter(as_operator)
set_release(release)

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
