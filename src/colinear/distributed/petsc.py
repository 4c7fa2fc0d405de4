"""PETSc as a method: its Krylov solvers and preconditioners, on one process or on many.

A convenience outside the core, which needs petsc4py. What PETSc finds is judged by the true residual
here, and differentiated by A x = b.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..backends import Array
from ..errors import DtypeError, MethodError, ShapeError
from ..functions import diag
from ..info import Info
from ..methods.base import Method, check_integer
from ..operators import (
    Banded,
    Block,
    BlockDiag,
    Diagonal,
    Identity,
    Kronecker,
    LinearOperator,
    Scaled,
    ScaledIdentity,
    Sparse,
    Sum,
    Tridiagonal,
    Zero,
)
from ..operators.context import Context, given_context
from ..operators.sparse_algebra import as_sparse
from ..properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT, SYMMETRIC
from ..status import Status

# By PETSc's KSPConvergedReason, where it is negative.
REASONS = {
    -2: Status.BREAKDOWN,
    -3: Status.MAX_ITERATIONS,
    -4: Status.BREAKDOWN,  # it diverges
    -5: Status.BREAKDOWN,
    -6: Status.BREAKDOWN,
    -7: Status.BREAKDOWN,  # A or the preconditioner is not symmetric
    -8: Status.NOT_POSITIVE_DEFINITE,  # the preconditioner is indefinite
    -9: Status.NONFINITE,
    -10: Status.NOT_POSITIVE_DEFINITE,
    -11: Status.SINGULAR,  # the preconditioner could not be made: a zero pivot, as a rule
}
# Krylov methods that can precondition from the right, so that they look at the true residual.
RIGHT = ("gmres", "lgmres", "bcgs", "bcgsl", "cgs", "tfqmr")
TRUE_NORM = ("cg", "pipecg", "groppcg", "lsqr", "cr")  # and that look at it anyway


@dataclass(frozen=True)
class PETSc(Method):
    """Solve by PETSc, on one process or, under `mpiexec`, on many.

    Sparse, banded and tridiagonal operators, blocks and sums of these are assembled, each process
    its rows; any other multiplies as a shell. Vectors are whole on each process: A x = b is written
    as on one. An operator whose rows are spread over the processes is made by `matrix_of_rows`.
    Needs petsc4py (`pip install 'colinear[petsc]'`, which builds PETSc, or a system's package).

    Parameters
    ----------
    ksp : str, optional
        The Krylov method, by PETSc's name: "cg", "minres", "gmres", "bcgs", "preonly", ... By
        default cg for positive semidefinite A, minres for other self-adjoint A, else gmres.
    pc : str, optional
        The preconditioner, by PETSc's name: "gamg", "ilu", "icc", "bjacobi", "lu", "hypre", ... By
        default PETSc's own choice; none for shells and for minres.
    tol : float, optional
        The relative residual |b - A x| / |b| to reach; default sqrt(eps) of the dtype.
    max_iters : int, optional
        Default: PETSc's, 10 000.
    options : dict or pairs
        Entries of PETSc's options database without their prefix, `{"pc_gamg_threshold": 0.01}`;
        they are read last.

    Examples
    --------
    >>> import colinear as co, numpy as np, scipy.sparse
    >>> A = co.PSD(co.Sparse(scipy.sparse.diags_array([2.0 * np.ones(9)], offsets=[0])))
    >>> x = co.solve(A, np.ones(9), co.PETSc("cg", "gamg"))  # doctest: +SKIP
    """

    ksp: str | None = None
    pc: str | None = None
    tol: float | None = None
    max_iters: int | None = None
    options: Any = ()
    progress: bool = False

    on_host = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "max_iters", 1, "a positive integer")
        check_words(self, "ksp", "pc")
        object.__setattr__(self, "options", as_pairs(self.name, self.options))

    def runs_on(self, A: LinearOperator) -> bool:
        """Whether A is taken as a whole: all but Kronecker products, which are split."""
        return not isinstance(A, Kronecker) and not (
            isinstance(A, Scaled) and isinstance(A.A, Kronecker)
        )

    def inv(self, A: LinearOperator) -> Callable[[Array], tuple[Array, Info]]:
        """The map B -> A^-1 B by a KSP that is set up once."""
        petsc = imported(self.name)
        matrix, is_assembled = matrix_of(petsc, self.name, A)
        tol = self.tolerance(A.xp, A.dtype)
        with as_our_error(petsc, self.name):
            solver = self._solver(petsc, A, matrix, is_assembled, tol)
        x, b = matrix.createVecs()

        def solve(B: Array) -> tuple[Array, Info]:
            iterations, failures = 0, []

            def solve_one(column: Array) -> Array:
                nonlocal iterations
                put(b, column)
                x.set(0.0)
                with as_our_error(petsc, self.name):
                    solver.solve(b, x)
                iterations += solver.getIterationNumber()
                if (reason := solver.getConvergedReason()) < 0:
                    failures.append(reason)
                return whole(petsc, x)

            X = by_columns(petsc, solve_one, B, B.shape[-2], A.is_complex)
            status, words = Status.SUCCESS, ""
            if failures:
                status = REASONS.get(failures[-1], Status.BREAKDOWN)
                words = f"{solver.getType()} of PETSc: reason {failures[-1]}"
            name = f"{self.name}({solver.getType()}, {solver.getPC().getType()})"
            return X, Info(status, iterations=iterations, method=name, message=words)

        return solve

    def _solver(
        self, petsc: Any, A: LinearOperator, matrix: Any, is_assembled: bool, tol: float
    ) -> Any:
        """The KSP, set up for the matrix."""
        name = self.ksp
        if name is None:
            known = A.properties
            name = "cg" if known & POSITIVE_SEMIDEFINITE else "gmres"
            name = "minres" if name == "gmres" and known & SELF_ADJOINT else name
        pc = self.pc
        if pc is None and (not is_assembled or name == "minres"):
            pc = "none"
        solver = petsc.KSP().create(matrix.getComm())
        solver.setOperators(matrix)
        solver.setType(name)
        if pc is not None:
            solver.getPC().setType(pc)
        if name in RIGHT:
            solver.setPCSide(petsc.PC.Side.RIGHT)
        if name in (*RIGHT, *TRUE_NORM):
            solver.setNormType(petsc.KSP.NormType.UNPRECONDITIONED)
        solver.setTolerances(rtol=tol / 2, atol=0.0, max_it=self.max_iters)
        set_options(petsc, solver, self.options)
        solver.setUp()
        return solver


# --------------------------------------------------------------------------------------------------
# What PETSc and SLEPc share: options, matrices, vectors, errors.


def imported(name: str) -> Any:
    """petsc4py's module, or an error that says how to get it."""
    try:
        from petsc4py import PETSc as petsc
    except ImportError as error:
        raise ImportError(
            f"{name} needs petsc4py, which is not installed: pip install 'colinear[petsc]' builds "
            "PETSc; a system's package is quicker.",
            name="petsc4py",
        ) from error
    return petsc


@contextmanager
def as_our_error(petsc: Any, name: str) -> Iterator[None]:
    """A block in which an error of PETSc's becomes a MethodError."""
    try:
        yield
    except petsc.Error as error:
        raise MethodError(
            f"{name}: PETSc failed with its error {error.ierr}: {error}. Look up the names of ksp, "
            "pc and options, and whether this PETSc was built with them."
        ) from error


def check_words(method: Any, *names: str) -> None:
    """Raise an error if a field is neither None nor a word."""
    for name in names:
        value = getattr(method, name)
        if value is not None and not isinstance(value, str):
            raise TypeError(
                f"{method.name}: {name} is {value!r}; it must be one of PETSc's names, as a string."
            )


def as_pairs(name: str, options: Any) -> tuple[tuple[str, Any], ...]:
    """Options as sorted pairs, which hash."""
    pairs: Iterable[Any] = options.items() if hasattr(options, "items") else options
    try:
        found = tuple(sorted((str(key), value) for key, value in pairs))
    except (TypeError, ValueError):
        raise TypeError(
            f"{name}: options are {options!r}; they must be a dict of PETSc's options."
        ) from None
    return found


_count = iter(range(10**9))


def set_options(petsc: Any, solver: Any, options: Iterable[tuple[str, Any]]) -> None:
    """Let a solver read these options, under a prefix of its own."""
    prefix = f"colinear_{next(_count)}_"
    solver.setOptionsPrefix(prefix)
    database = petsc.Options(prefix)
    for key, value in options:
        database[key] = value
    solver.setFromOptions()


ASSEMBLED = (Sparse, Banded, Tridiagonal)


def assembled(A: Any) -> Any:
    """A in SciPy's CSR, if it is made of sparse and banded matrices and blocks of these; else
    None."""
    import scipy.sparse

    if isinstance(A, ASSEMBLED):
        return as_sparse(A).S.tocsr()
    if isinstance(A, Scaled):
        inner = assembled(A.A)
        return None if inner is None else inner * np.asarray(A.scalar)
    if isinstance(A, Sum | BlockDiag):
        parts = [assembled(part) for part in A.operands]
        if any(part is None for part in parts):
            return None
        return sum(parts[1:], parts[0]) if isinstance(A, Sum) else scipy.sparse.block_diag(parts)
    if isinstance(A, Block):
        rows = [[assembled(part) for part in row] for row in A.blocks]
        if any(part is None for row in rows for part in row):
            return None
        return scipy.sparse.block_array(rows)
    if isinstance(A, Diagonal | Identity | ScaledIdentity):
        d = np.asarray(diag(A), A.dtype)
        return scipy.sparse.diags_array([d], offsets=[0], format="csr")
    if isinstance(A, Zero):
        return scipy.sparse.csr_array(A.shape, dtype=A.dtype)
    return None


def matrix_of(petsc: Any, name: str, A: LinearOperator) -> tuple[Any, bool]:
    """A as PETSc's matrix, and whether it is assembled: each process has some of its rows. Else it
    is a shell."""
    check_operator(petsc, name, A)
    if isinstance(A, MatrixOfRows):
        return A.matrix, True
    size = petsc.COMM_WORLD.getSize()
    S = assembled(A)
    if S is None:
        matrix = petsc.Mat().createPython(
            [A.shape[-2], A.shape[-1]], Shell(petsc, A), comm=petsc.COMM_WORLD
        )
        matrix.setUp()
        return matrix, False
    S = S.tocsr()
    S.sort_indices()
    m, n = S.shape
    first, last = 0, m
    if size > 1:
        first, last = own_range(petsc, m)
        S = S[first:last]
    matrix = _from_csr(petsc, S, last - first, m, n)
    known, option = A.properties, petsc.Mat.Option
    if known & SELF_ADJOINT:
        matrix.setOption(option.HERMITIAN, True)
    if known & SYMMETRIC or (known & SELF_ADJOINT and not A.is_complex):
        matrix.setOption(option.SYMMETRIC, True)
    if known & POSITIVE_SEMIDEFINITE and not A.is_complex:  # for it means symmetric too
        matrix.setOption(option.SPD, True)
    return matrix, True


def _from_csr(petsc: Any, S: Any, rows: int, m: int, n: int) -> Any:
    """The matrix whose rows on this process are those of S."""
    index = petsc.IntType
    csr = S.indptr.astype(index), S.indices.astype(index), S.data.astype(petsc.ScalarType)
    columns = petsc.DECIDE if m != n else rows
    matrix = petsc.Mat().createAIJ(size=((rows, m), (columns, n)), csr=csr, comm=petsc.COMM_WORLD)
    matrix.assemble()
    return matrix


def own_range(petsc: Any, m: int) -> tuple[int, int]:
    """The rows of m that this process has, as PETSc spreads them."""
    layout = petsc.Vec().createMPI(m, comm=petsc.COMM_WORLD)
    return layout.getOwnershipRange()


def check_operator(petsc: Any, name: str, A: LinearOperator) -> None:
    """Raise an error if PETSc cannot hold such an operator."""
    if A.batch_shape:
        raise ShapeError(
            f"{name}: A has batch shape {A.batch_shape}; PETSc has one matrix at a time. Solve for "
            "each: A[0]."
        )
    if A.is_complex and np.dtype(petsc.ScalarType).kind != "c":
        raise DtypeError(
            f"{name}: A is complex, and this PETSc was built for real numbers. Use one that was "
            "configured with --with-scalar-type=complex, or a method of colinear."
        )


class Shell:
    """A matrix of PETSc's that multiplies as an operator does; vectors are gathered for it."""

    def __init__(self, petsc: Any, A: LinearOperator):
        self.petsc, self.A = petsc, A

    def mult(self, matrix: Any, x: Any, y: Any) -> None:
        put(y, self.A @ whole(self.petsc, x))

    def multTranspose(self, matrix: Any, x: Any, y: Any) -> None:
        put(y, self.A.T @ whole(self.petsc, x))

    def multHermitian(self, matrix: Any, x: Any, y: Any) -> None:
        put(y, self.A.H @ whole(self.petsc, x))


def put(vector: Any, x: Array) -> None:
    """Set this process's part of a vector to that of x, which is whole."""
    first, last = vector.getOwnershipRange()
    vector.setArray(np.ascontiguousarray(x[first:last]))


def whole(petsc: Any, vector: Any) -> np.ndarray:
    """A vector, gathered on every process."""
    if vector.getComm().getSize() == 1:
        return vector.getArray().copy()
    scatter, gathered = petsc.Scatter.toAll(vector)
    scatter.scatter(vector, gathered)
    found = gathered.getArray().copy()
    scatter.destroy()
    gathered.destroy()
    return found


def by_columns(
    petsc: Any, f: Callable[[Array], Array], B: Array, rows: int, is_complex: bool
) -> Array:
    """f of each column of blocks (*batch, n, k), an answer of so many rows: a linear map, complex or
    not, in PETSc's numbers. Where these are real, real and imaginary parts are columns of their
    own."""
    if B.dtype.kind == "c" and np.dtype(petsc.ScalarType).kind != "c":
        real, imaginary = (by_columns(petsc, f, x, rows, False) for x in (B.real, B.imag))
        return real + 1j * imaginary
    (*batch, n, k), is_complex = B.shape, is_complex or B.dtype.kind == "c"
    found = np.empty((*batch, k, rows), complex if is_complex else float)
    columns = np.swapaxes(B, -1, -2).reshape(-1, n)
    for answer, column in zip(found.reshape(-1, rows), columns, strict=True):
        answer[:] = f(column) if is_complex else f(column).real
    return np.swapaxes(found, -1, -2)


# --------------------------------------------------------------------------------------------------


class MatrixOfRows(LinearOperator):
    """A sparse matrix of which each process has some rows; what `matrix_of_rows` makes. Vectors are
    whole on each process: a product gathers its result."""

    matrix: Any
    sizes: tuple[int, ...]
    context: Context

    @property
    def shape(self) -> tuple[int, ...]:
        return self.sizes

    def _matmat(self, X: Array) -> Array:
        return self._products(X, self.matrix.mult, self.matrix.createVecs())

    def _rmatmat(self, X: Array) -> Array:
        return self._products(X, self.matrix.multHermitian, self.matrix.createVecs()[::-1])

    def _products(self, X: Array, multiply: Any, vectors: Any) -> Array:
        petsc, (x, y) = imported("MatrixOfRows"), vectors

        def product(column: Array) -> Array:
            put(x, column)
            multiply(x, y)
            return whole(petsc, y)

        found = by_columns(petsc, product, X, y.getSize(), self.is_complex)
        return found.astype(np.result_type(self.dtype, X.dtype), copy=False)

    @property
    def _flops(self) -> float:
        return 2.0 * float(self.matrix.getInfo()["nz_used"])


def matrix_of_rows(rows: Any) -> LinearOperator:
    """The square operator of which each process gives its own consecutive rows, in the order of the
    processes.

    Parameters
    ----------
    rows : Sparse, or a sparse matrix of SciPy
        The m_i rows of this process, m_i x n, with sum m_i = n. Those of other processes are never
        sent here.

    Returns
    -------
    LinearOperator, n x n
        On every process; vectors are whole on each. `PETSc` and `SLEPc` take the matrix as it
        lies; every iteration of colinear's multiplies by it.

    Examples
    --------
    >>> import scipy.sparse
    >>> from colinear.distributed.petsc import matrix_of_rows
    >>> A = matrix_of_rows(scipy.sparse.eye_array(3))  # doctest: +SKIP
    """
    petsc = imported("matrix_of_rows")
    S = rows.S if isinstance(rows, Sparse) else rows
    if not hasattr(S, "tocsr"):
        raise DtypeError(
            f"matrix_of_rows: expected rows of a sparse matrix, not {type(rows).__name__}."
        )
    S = S.tocsr()
    S.sort_indices()
    m, n = S.shape
    if S.dtype.kind == "c" and np.dtype(petsc.ScalarType).kind != "c":
        raise DtypeError("matrix_of_rows: complex rows, and this PETSc was built for real numbers.")
    counts = petsc.Vec().createMPI((m, petsc.DETERMINE), comm=petsc.COMM_WORLD)
    if counts.getSize() != n:
        raise ShapeError(
            f"matrix_of_rows: the processes have {counts.getSize()} rows in all, of {n} columns; "
            "the matrix must be square."
        )
    matrix = _from_csr(petsc, S, m, n, n)
    return MatrixOfRows._of(matrix, (n, n), given_context("matrix_of_rows", "numpy", S.dtype))
