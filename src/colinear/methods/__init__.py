"""The algorithms, and the objects by which a user names them. No structure and no rules here."""

from __future__ import annotations

from .arnoldi import Arnoldi
from .base import LDL, LU, QR, SVD, Auto, Cholesky, Eig, Eigh, Iterative, Method, Spectral
from .base import fitting as fitting
from .bicgstab import BiCGSTAB
from .cg import CG
from .exchangeable import XDiag, XNysTrace, XTrace
from .gmres import GMRES
from .krylov_function import Krylov
from .lanczos import Lanczos
from .lobpcg import LOBPCG
from .lsqr import LSMR, LSQR
from .minres import MINRES
from .power_iteration import PowerIteration
from .quadrature import SLQ
from .sampling import Hutchinson, HutchPP, Stochastic
from .singular import GolubKahan, RandomizedSVD
from .svrg import SVRG

EIGEN = (Eigh, Eig, Lanczos, Arnoldi, LOBPCG, PowerIteration, SVRG)  # the methods for eigenvalues
SINGULAR = (SVD, GolubKahan, RandomizedSVD)  # and for singular values

__all__ = [
    "CG",
    "GMRES",
    "LOBPCG",
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
]
