"""The algorithms, one file each, and the objects by which a user names them. No structure and no rules here."""

from __future__ import annotations

from .objects import LDL, LU, QR, SVD, Auto, Cholesky, Eig, Eigh, Method, fitting

__all__ = ["LDL", "LU", "QR", "SVD", "Auto", "Cholesky", "Eig", "Eigh", "Method", "fitting"]
