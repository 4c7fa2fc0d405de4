"""The algorithms, one file each, and the objects by which a user names them. No structure and no rules here."""

from __future__ import annotations

from .objects import LDL, LU, QR, SVD, Auto, Cholesky, Eig, Eigh, Method, fitting
from .solver_objects import CG, GMRES, LSMR, LSQR, MINRES, BiCGSTAB, Iterative

__all__ = [
    "CG",
    "GMRES",
    "LDL",
    "LSMR",
    "LSQR",
    "LU",
    "MINRES",
    "QR",
    "SVD",
    "Auto",
    "BiCGSTAB",
    "Cholesky",
    "Eig",
    "Eigh",
    "Iterative",
    "Method",
    "fitting",
]
