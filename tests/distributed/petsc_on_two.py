"""What `test_petsc.py` runs under `mpiexec -n 2`: each process has its rows, and the answers are those
of one."""

from __future__ import annotations

import numpy as np
import scipy.sparse
import scipy.sparse.linalg
from petsc4py import PETSc as petsc

import colinear as co
from colinear.distributed.petsc import matrix_of_rows

rank, size = petsc.COMM_WORLD.getRank(), petsc.COMM_WORLD.getSize()
side = 20
n = side * side
line = scipy.sparse.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(side, side))
eye = scipy.sparse.eye_array(side)
GRID = (scipy.sparse.kron(line, eye) + scipy.sparse.kron(eye, line)).tocsr()
b = np.random.default_rng(0).normal(size=n)
known = scipy.sparse.linalg.spsolve(GRID.tocsc(), b)

# the whole matrix on each process: PETSc has some of its rows on each
whole = co.PSD(co.Sparse(GRID))
# its own rows alone, unevenly spread
first = n // 3
own = GRID[:first] if rank == 0 else GRID[first:]
rows = co.PSD(matrix_of_rows(co.Sparse(own) if rank == 0 else own))
assert rows.shape == (n, n)
np.testing.assert_allclose(rows @ b, GRID @ b, atol=1e-12)
np.testing.assert_allclose(rows.H @ b, GRID @ b, atol=1e-12)
shell = co.PSD(co.MatrixFree(lambda X: GRID @ X, (n, n), rmatmat=lambda X: GRID @ X))

for A in (whole, rows, shell):
    for method in (co.PETSc("cg", "none" if A is shell else "gamg", tol=1e-10), co.CG(tol=1e-10)):
        x, info = co.solve(A, b, method, info=True)
        assert not info.failed and info.residual <= 1e-10, info
        np.testing.assert_allclose(x, known, rtol=1e-7, atol=1e-8)
    (values, V), info = co.eig(A, 3, "LA", co.SLEPc(), info=True)
    assert not info.failed, info
    np.testing.assert_allclose(values, np.linalg.eigvalsh(GRID.toarray())[-3:], rtol=1e-7)
np.testing.assert_allclose(
    co.eig(rows, 2, "SM", co.SLEPc())[0], np.linalg.eigvalsh(GRID.toarray())[:2], rtol=1e-7
)
np.testing.assert_allclose(
    co.svd(rows, 2, co.SLEPc())[1], np.linalg.svd(GRID.toarray())[1][:2], rtol=1e-7
)
_, info = co.solve(rows, b, co.PETSc("cg", "none", max_iters=3), info=True)
assert info.status is co.Status.MAX_ITERATIONS
try:
    matrix_of_rows(own[:5])
except co.ShapeError as error:
    assert "rows in all" in str(error)
else:
    raise AssertionError("rows that do not add up were taken")
print(f"all right on {size}", flush=True)
