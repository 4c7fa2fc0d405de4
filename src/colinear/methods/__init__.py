"""The algorithms, one file each, and the objects by which a user names them. No structure and no rules here."""

from __future__ import annotations

from .objects import LDL, LU, QR, SVD, Auto, Cholesky, Eig, Eigh, Method, fitting
from .solver_objects import CG, GMRES, LSMR, LSQR, MINRES, BiCGSTAB, Iterative
from .spectral_objects import (
    LOBPCG,
    Arnoldi,
    GolubKahan,
    Krylov,
    Lanczos,
    PowerIteration,
    RandomizedSVD,
    Spectral,
)
from .stochastic_objects import SLQ, Hutchinson, HutchPP, Stochastic, XDiag, XNysTrace, XTrace
from .svrg_object import SVRG

EIGEN = (Eigh, Eig, Lanczos, Arnoldi, LOBPCG, PowerIteration, SVRG)  # the methods for eigenvalues
SINGULAR = (SVD, GolubKahan, RandomizedSVD)  # and for singular values

__all__ = [
    "CG",
    "EIGEN",
    "GMRES",
    "LOBPCG",
    "SINGULAR",
    "LDL",
    "LSMR",
    "LSQR",
    "LU",
    "MINRES",
    "QR",
    "SVD",
    "SVRG",
    "Arnoldi",
    "Auto",
    "BiCGSTAB",
    "Cholesky",
    "Eig",
    "Eigh",
    "Iterative",
    "Krylov",
    "Lanczos",
    "Method",
    "PowerIteration",
    "GolubKahan",
    "RandomizedSVD",
    "Spectral",
    "SLQ",
    "HutchPP",
    "Hutchinson",
    "Stochastic",
    "XDiag",
    "XNysTrace",
    "XTrace",
    "fitting",
]
