"""SLEPc as a method for `eig` and `svd`, beside PETSc."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..backends import Array
from ..info import Info
from ..methods.base import Method, check_integer
from ..operators import LinearOperator
from ..properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from ..status import Status
from .petsc import as_our_error, as_pairs, check_words, imported, matrix_of, put, set_options, whole

WHICH = {
    "LM": "LARGEST_MAGNITUDE",
    "SM": "SMALLEST_MAGNITUDE",
    "LA": "LARGEST_REAL",
    "LR": "LARGEST_REAL",
    "SA": "SMALLEST_REAL",
    "SR": "SMALLEST_REAL",
    "LI": "LARGEST_IMAGINARY",
    "SI": "SMALLEST_IMAGINARY",
}
# Numbers by which eigenvalues are sorted, those that are asked for first.
ORDERS: dict[str, Callable[[complex], float]] = {
    "LM": lambda x: -abs(x),
    "SM": abs,
    "LA": lambda x: -x.real,
    "LR": lambda x: -x.real,
    "SA": lambda x: x.real,
    "SR": lambda x: x.real,
    "LI": lambda x: -abs(x.imag),
    "SI": lambda x: abs(x.imag),
}
REASONS = {-1: Status.MAX_ITERATIONS, -2: Status.BREAKDOWN, -3: Status.BREAKDOWN}


@dataclass(frozen=True)
class SLEPc(Method):
    """Find eigenpairs and singular triplets by SLEPc, on one process or, under `mpiexec`, on many.

    Operators are given as to `PETSc`, and eigenvectors are whole on each process. Pairs nearest to
    zero ("SM", and "SA" of positive semidefinite A) of an operator that is assembled are found
    through its factorisation (shift and invert). Needs slepc4py (`pip install 'colinear[petsc]'`).

    Parameters
    ----------
    eps : str, optional
        The eigensolver, by SLEPc's name: "krylovschur" (the default), "lobpcg", "jd", ...
    svd_type : str, optional
        The solver of `svd`: "cross", "cyclic", "lanczos", "trlanczos" (the default), ...
    tol : float, optional
        The residual |A v - λ v| / |A| to reach, for each pair; default sqrt(eps) of the dtype.
    max_iters : int, optional
        Default: SLEPc's.
    basis : int, optional
        The vectors of the basis; default: SLEPc's.
    options : dict or pairs
        Entries of the options database without their prefix, `{"st_type": "sinvert"}`.

    Examples
    --------
    >>> import colinear as co, numpy as np, scipy.sparse
    >>> A = co.PSD(co.Sparse(scipy.sparse.diags_array([np.arange(1.0, 10)], offsets=[0])))
    >>> values, vectors = co.eig(A, 2, "SM", co.SLEPc())  # doctest: +SKIP
    """

    eps: str | None = None
    svd_type: str | None = None
    tol: float | None = None
    max_iters: int | None = None
    basis: int | None = None
    options: Any = ()
    progress: bool = False

    on_host = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "max_iters", 1, "a positive integer")
        check_integer(self, "basis", 2, "an integer of at least 2")
        check_words(self, "eps", "svd_type")
        object.__setattr__(self, "options", as_pairs(self.name, self.options))

    def runs_on(self, A: LinearOperator) -> bool:
        """Whether A is taken as a whole, which is what the user asks for."""
        return True

    def eig(self, A: LinearOperator, k: int, which: str) -> tuple[Array, Array, Info]:
        """k eigenvalues and vectors, and how SLEPc fared.

        A Krylov method from one vector finds one vector of a multiple eigenvalue. So of a self-
        adjoint A what is left beside the vectors found is searched too, until it has nothing that is
        asked for before them.
        """
        petsc = imported(self.name)
        matrix, is_assembled = matrix_of(petsc, self.name, A)
        is_hermitian = bool(A.properties & SELF_ADJOINT)
        is_inside = which == "SM" or (which == "SA" and bool(A.properties & POSITIVE_SEMIDEFINITE))
        is_inverted = is_inside and is_assembled and self.eps in (None, "krylovschur")
        tol = self.tolerance(A.xp, A.dtype)
        find = partial(self._find, petsc, matrix, which, is_hermitian, is_inverted, tol)
        first_of = ORDERS[which]
        with as_our_error(petsc, self.name):
            found, iterations, solver = find(k, [], 0)
            size = max((abs(pair[0]) for pair in found), default=0.0)
            searches = k if is_hermitian and len(found) == k < A.shape[-1] else 0
            for search in range(searches):
                more, steps, _ = find(1, [pair[1] for pair in found], 1 + search)
                iterations += steps
                last = max(found, key=lambda pair: first_of(pair[0]))
                if not more or first_of(more[0][0]) > first_of(last[0]) - tol * size:
                    break
                found[found.index(last)] = more[0]
            info = self._info(solver, len(found), k, iterations)
        values, V = np.zeros(k, complex), np.eye(A.shape[-1], k, dtype=complex)
        for i, (value, real, imaginary) in enumerate(found):
            values[i], V[:, i] = value, whole(petsc, real)
            if np.dtype(petsc.ScalarType).kind != "c":
                V[:, i] += 1j * whole(petsc, imaginary)
        if is_hermitian:
            values, V = values.real, V if A.is_complex else V.real
        return values, V, info

    def _find(
        self,
        petsc: Any,
        matrix: Any,
        which: str,
        is_hermitian: bool,
        is_inverted: bool,
        tol: float,
        k: int,
        beside: list[Any],
        seed: int,
    ) -> tuple[list[tuple[complex, Any, Any]], int, Any]:
        """Up to k pairs, orthogonal to the vectors `beside`, how many iterations they took, and
        SLEPc's solver."""
        slepc = _imported()
        solver = slepc.EPS().create(matrix.getComm())
        solver.setOperators(matrix)
        types = slepc.EPS.ProblemType
        solver.setProblemType(types.HEP if is_hermitian else types.NHEP)
        solver.setDimensions(k, self.basis or petsc.DECIDE)
        # SLEPc's residual is relative to |λ|, which may be far below |A|
        solver.setTolerances(tol / 10, self.max_iters)
        if self.eps is not None:
            solver.setType(self.eps)
        if is_inverted:
            self._invert(slepc, solver)
        else:
            solver.setWhichEigenpairs(getattr(slepc.EPS.Which, WHICH[which]))
        start = matrix.createVecRight()
        # another one in each search: what is left of the same has nothing of a multiple's other
        # vectors
        put(start, np.random.default_rng(seed).normal(size=start.getSize()))
        solver.setInitialSpace([start])
        if beside:
            solver.setDeflationSpace(beside)
        set_options(petsc, solver, self.options)
        solver.solve()
        pairs = []
        for i in range(min(k, solver.getConverged())):
            real, imaginary = matrix.createVecs()
            pairs.append((complex(solver.getEigenpair(i, real, imaginary)), real, imaginary))
        return pairs, solver.getIterationNumber(), solver

    def _invert(self, slepc: Any, solver: Any) -> None:
        """Look for pairs near zero, through a factorisation of A."""
        solver.setTarget(0.0)
        solver.setWhichEigenpairs(slepc.EPS.Which.TARGET_MAGNITUDE)
        transformation = solver.getST()
        transformation.setType(slepc.ST.Type.SINVERT)
        inner = transformation.getKSP()
        inner.setType("preonly")
        inner.getPC().setType("lu")
        if solver.getComm().getSize() > 1:  # PETSc's own LU is for one process
            inner.getPC().setFactorSolverType("mumps")

    def svd(self, A: LinearOperator, k: int) -> tuple[Array, Array, Array, Info]:
        """k triplets, those of the largest singular values, and how SLEPc fared."""
        petsc, slepc = imported(self.name), _imported()
        matrix, _ = matrix_of(petsc, self.name, A)
        (m, n), dtype = A.shape[-2:], np.result_type(A.dtype, petsc.ScalarType)
        with as_our_error(petsc, self.name):
            solver = slepc.SVD().create(matrix.getComm())
            solver.setOperators(matrix)
            solver.setType(self.svd_type or "trlanczos")
            solver.setDimensions(k, self.basis or petsc.DECIDE)
            solver.setTolerances(self.tolerance(A.xp, A.dtype) / 10, self.max_iters)
            set_options(petsc, solver, self.options)
            solver.solve()
            found = min(k, solver.getConverged())
            U, s, V = np.eye(m, k, dtype=dtype), np.zeros(k), np.eye(n, k, dtype=dtype)
            right, left = matrix.createVecs()
            for i in range(found):
                s[i] = solver.getSingularTriplet(i, left, right)
                U[:, i], V[:, i] = whole(petsc, left), whole(petsc, right)
            info = self._info(solver, found, k, solver.getIterationNumber())
        return U, s, V, info

    def _info(self, solver: Any, found: int, k: int, iterations: int) -> Info:
        """The status of a run: SUCCESS only where all that was asked for has converged."""
        reason = solver.getConvergedReason()
        status = Status.SUCCESS
        if found < k:
            status = REASONS.get(reason, Status.MAX_ITERATIONS)
        message = "" if found >= k else f"{found} of {k} have converged (reason {reason} of SLEPc)"
        name = f"{self.name}({solver.getType()})"
        return Info(status, iterations=iterations, method=name, message=message)


def _imported() -> Any:
    """slepc4py's module, or an error that says how to get it."""
    try:
        from slepc4py import SLEPc as slepc
    except ImportError as error:
        raise ImportError(
            "SLEPc needs slepc4py, which is not installed: pip install 'colinear[petsc]' builds "
            "SLEPc; a system's package is quicker.",
            name="slepc4py",
        ) from error
    return slepc
