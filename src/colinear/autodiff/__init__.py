"""Implicit derivatives: of what satisfies an equation, by differentiating the equation, never the
algorithm that solved it.

    implicit.py     A^-1 b and A^+ b                          A x = b
    spectral.py     eigenpairs, singular triplets, triangles  A V = V Λ,  A = U Σ V^H,  A = Q R
    functions.py    f(A), roots, logarithms, pseudoinverses   X^2 = A,  e^X = A,  A X A = A;
                    what is linear in f, if f closes over arrays:  F(∂f/∂h dh, x)
    determinants.py det A, at singular matrices too           adj(A)
    kronecker.py    f of Kronecker products and sums          the same, coordinate by coordinate
    resolvents.py   their inverses and determinants           the same, with any factors
    iterated.py     pairs and triplets found by iteration     the same, by solves with products
    krylov.py       f(A) b from Krylov spaces                 f([A dA; 0 A])

Solves themselves are differentiated by `autodiff/implicit.py`: A X = B gives dX = A^-1 (dB - dA
X).

Each rule is a tangent that is linear in dA, with its derivation beside it. It serves both modes:
JAX and torch transpose it. Where that is not possible, or not wanted, `linear_map` and `Equation`
say what the adjoint is. Tangents are made of the functions that they are tangents of, so they can
be differentiated again.
"""

from __future__ import annotations

from .functions import (
    logarithm,
    nullspace,
    pseudoinverse,
    qr,
    spectral_difference,
    spectral_function,
    square_root,
)
from .iterated import general_pairs, pairs, refused, triplets
from .krylov import krylov_product
from .spectral import eig, eigh, svd

__all__ = [
    "eig", "eigh", "general_pairs", "krylov_product", "logarithm", "nullspace", "pairs",
    "pseudoinverse", "qr", "refused", "spectral_difference", "spectral_function", "square_root",
    "svd", "triplets",
]  # fmt: skip
