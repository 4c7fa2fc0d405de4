"""NumPy's and torch's own functions, and other libraries' operators, with ours among their arguments."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg as sla

import colinear as co

D = np.array([[4.0, 1, 0], [1, 3, 1], [0, 1, 5]])
b, X = np.arange(1.0, 4.0), np.arange(6.0).reshape(3, 2)
TALL = np.array([[1.0, 2], [3, 4], [5, 7]])


def host(x):
    """An answer as NumPy arrays, operators formed, nested as it was."""
    if isinstance(x, co.LinearOperator):
        return host(x.to_dense())
    if isinstance(x, tuple):
        return tuple(map(host, x))
    return x.numpy() if hasattr(x, "numpy") else np.asarray(x)


def same(ours, theirs):
    ours, theirs = host(ours), host(theirs)
    if isinstance(theirs, tuple):
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs):
            np.testing.assert_allclose(mine, other, rtol=1e-9, atol=1e-9)
    else:
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


la = np.linalg
NUMPY = [  # f(matrix, vector, block): NumPy's own answer to the matrix is the reference
    lambda A, v, B: np.kron(A, A),
    lambda A, v, B: np.kron(B, A),
    lambda A, v, B: np.kron(a=A, b=B),
    lambda A, v, B: np.dot(A, v),
    lambda A, v, B: np.dot(v, A),
    lambda A, v, B: np.dot(A, A),
    lambda A, v, B: np.dot(2.0, A),
    lambda A, v, B: la.matmul(A, B),
    lambda A, v, B: la.multi_dot([A, A, v]),
    lambda A, v, B: la.inv(A),
    lambda A, v, B: la.inv(a=A),
    lambda A, v, B: la.solve(A, v),
    lambda A, v, B: la.solve(a=A, b=B),
    lambda A, v, B: la.lstsq(A, v)[0],
    lambda A, v, B: la.pinv(A),
    lambda A, v, B: la.pinv(A, rcond=1e-12),
    lambda A, v, B: la.pinv(A, rtol=1e-12),
    lambda A, v, B: la.det(A),
    lambda A, v, B: tuple(la.slogdet(A)),
    lambda A, v, B: la.eigh(A).eigenvalues,
    lambda A, v, B: la.eigvalsh(A, UPLO="U"),
    lambda A, v, B: np.sort(la.eigvals(A).real),
    lambda A, v, B: np.sort(la.eig(A)[0].real),
    lambda A, v, B: la.svd(A).S,
    lambda A, v, B: la.svd(A, compute_uv=False),
    lambda A, v, B: la.svdvals(A),
    lambda A, v, B: la.norm(A),
    lambda A, v, B: la.norm(A, 2),
    lambda A, v, B: la.norm(A, ord=1),
    lambda A, v, B: la.matrix_norm(A),
    lambda A, v, B: la.cond(A),
    lambda A, v, B: la.cond(A, p=1),
    lambda A, v, B: la.matrix_rank(A),
    lambda A, v, B: la.matrix_rank(A, tol=4.0),
    lambda A, v, B: la.matrix_rank(A, rtol=0.6),
    lambda A, v, B: la.cholesky(A),
    lambda A, v, B: la.cholesky(A, upper=True),
    lambda A, v, B: np.abs(np.diag(host(la.qr(A, mode="r")))),
    lambda A, v, B: la.matrix_power(A, 3),
    lambda A, v, B: la.matrix_power(A, -1),
    lambda A, v, B: np.trace(A),
    lambda A, v, B: la.trace(A),
    lambda A, v, B: np.diagonal(A),
    lambda A, v, B: la.diagonal(A),
    lambda A, v, B: np.diag(A),
    lambda A, v, B: np.transpose(A),
    lambda A, v, B: np.transpose(A, (1, 0)),
    lambda A, v, B: np.swapaxes(A, 0, 1),
    lambda A, v, B: np.matrix_transpose(A),
    lambda A, v, B: np.sum(A),
    lambda A, v, B: np.sum(A, axis=0),
    lambda A, v, B: np.sum(A, axis=-1),
    lambda A, v, B: np.concatenate([A, B], axis=1),
    lambda A, v, B: np.concatenate([A, A]),
    lambda A, v, B: np.hstack([A, B]),
    lambda A, v, B: np.vstack([A, A]),
    lambda A, v, B: np.block([[A, B], [B.T, np.zeros((2, 2))]]),
    lambda A, v, B: np.shape(A),
    lambda A, v, B: np.ndim(A),
    lambda A, v, B: np.size(A),
    lambda A, v, B: np.iscomplexobj(A),
]


@pytest.mark.parametrize("call", NUMPY, ids=range(len(NUMPY)))
def test_numpy_functions_are_answered_by_ours(call):
    same(call(co.SelfAdjoint(co.Dense(D)), b, X), call(D, b, X))


def test_results_of_numpy_functions_have_its_names_and_forms():
    A = co.SelfAdjoint(co.Dense(D))
    _, residuals, rank, s = la.lstsq(A, b)
    assert residuals is rank is s is None
    w, V = la.eigh(A)
    same(V @ np.diag(w) @ V.T, D)
    U, s, Vh = la.svd(co.Dense(TALL), full_matrices=False)
    same(U @ np.diag(s) @ Vh, TALL)
    Q, R = la.qr(co.Dense(TALL))
    same(Q @ R, TALL)


@pytest.mark.parametrize(
    "call",
    [
        lambda A: np.allclose(A, A),
        lambda A: np.vdot(A, A),
        lambda A: np.einsum("ij,jk->ik", A, A),
        lambda A: np.linalg.tensorinv(A),
        lambda A: np.real(A),
        lambda A: np.copy(A),
        lambda A: np.stack([A, A]),
        lambda A: np.zeros_like(A),
        lambda A: np.asarray(A),
        lambda A: np.array([A, A]),
        lambda A: np.asarray(A, dtype=float),
        lambda A: A.reshape(9),
    ],
)
def test_other_numpy_functions_are_refused_with_advice(call):
    with pytest.raises(TypeError, match="to_dense"):
        call(co.Dense(D))


def test_arguments_that_mean_something_else_for_operators_are_refused():
    A, batch = co.Dense(D), co.Dense(np.stack([D, D]))
    for call in (
        lambda: np.diagonal(A, 1),
        lambda: np.diagonal(batch),
        lambda: np.trace(batch),
        lambda: np.dot(batch, batch),
        lambda: np.transpose(batch),
        lambda: np.sum(batch, axis=0),
        lambda: np.sum(A, where=True),
        lambda: la.svd(co.Dense(TALL)),
        lambda: la.eigh(A),
        lambda: la.norm(A, axis=0),
        lambda: la.lstsq(A, b, rcond=1e-3),
        lambda: np.add(A, A),
    ):
        with pytest.raises(TypeError):
            call()


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_numpy_functions_of_other_frameworks_say_what_to_do(framework):
    A = co.Dense(D).to(framework)
    for call in (lambda: np.kron(A, A), lambda: la.inv(A), lambda: np.block([[A, A]])):
        with pytest.raises(co.BackendError, match=rf"{framework} one.*A.to\('numpy'\)"):
            call()
    with pytest.raises(TypeError, match="to_dense"):
        np.asarray(A)


def test_torch_functions_take_their_keywords():
    torch = pytest.importorskip("torch")
    M = torch.tensor(D)
    A = co.SelfAdjoint(co.Dense(M))
    batch, stack = co.Dense(torch.stack([M, M])), torch.stack([M, M])
    lower = torch.linalg.cholesky(M)
    L = co.Triangular(lower)
    for ours, theirs in (
        (torch.linalg.cholesky(A, upper=False), lower),
        (torch.linalg.cholesky(A, upper=True), lower.T),
        (torch.diagonal(A, dim1=-1, dim2=-2), torch.diagonal(M, dim1=-1, dim2=-2)),
        (torch.diagonal(batch, dim1=-2, dim2=-1), torch.diagonal(stack, dim1=-2, dim2=-1)),
        (torch.diagonal(batch, 0, 1, 2), torch.diagonal(stack, 0, 1, 2)),
        (torch.linalg.diagonal(batch), torch.linalg.diagonal(stack)),
        (torch.sum(A, 0), M.sum(0)),
        (torch.sum(A, dim=-1), M.sum(-1)),
        (torch.sum(A), M.sum()),
        (torch.kron(A, A), torch.kron(M, M)),
        (torch.linalg.matrix_power(A, 2), M @ M),
        (torch.block_diag(A, M), torch.block_diag(M, M)),
        (torch.cat([A, M], dim=-1), torch.cat([M, M], dim=-1)),
        (torch.cat([A, A]), torch.cat([M, M])),
        (
            torch.linalg.solve_triangular(L, M, upper=False),
            torch.linalg.solve_triangular(lower, M, upper=False),
        ),
        (torch.linalg.matrix_rank(A, rtol=0.6), torch.linalg.matrix_rank(M, rtol=0.6)),
        (torch.linalg.cond(A, 1), torch.linalg.cond(M, 1)),
        (torch.transpose(A, 0, 1), M.T),
        (torch.transpose(batch, -1, -2), stack.mT),
        (torch.linalg.eigvalsh(A, UPLO="U"), torch.linalg.eigvalsh(M)),
    ):
        same(ours, theirs)
    P, L, U = torch.linalg.lu(A)
    same(P @ L @ U, M)
    with pytest.raises(TypeError, match=r"^svd\(\).*driver"):
        torch.linalg.svd(A, driver="gesvd")


# ---------------------------------------------------------------------- other libraries' operators


def test_sparse_matrices_on_the_left_leave_the_product_to_ours():
    A = co.Dense(D)
    for S in (scipy.sparse.csr_array(D), scipy.sparse.csr_matrix(D), scipy.sparse.coo_array(D)):
        same(S @ A, D @ D)
        same(S + A, D + D)
        same(S - A, D - D)


def test_scipy_operators_on_the_left_work_or_say_what_to_write():
    A, S = co.Dense(D), sla.aslinearoperator(D)
    same(S + A, D + D)
    same(co.as_operator(S) @ A, D @ D)
    with pytest.raises(TypeError, match=r"as_operator\(other\) @ A"):
        S @ A


def test_pylops_operators_on_the_left_say_what_to_write():
    class Foreign:  # what PyLops does in `op @ x`
        dims = (3,)

        def __matmul__(self, x):
            return x.reshape((-1, x.shape[-1])) if x.shape[:-1] == self.dims else x.ravel()

    with pytest.raises(TypeError, match=r"as_operator\(other\) @ A"):
        Foreign() @ co.Dense(D)


def test_data_frames_are_right_sides_and_on_the_left_say_what_to_write():
    pandas = pytest.importorskip("pandas")
    A, frame = co.Dense(D), pandas.DataFrame(X)
    same(A @ frame, D @ X)
    same(co.solve(A, frame), la.solve(D, X))
    with pytest.raises(TypeError, match=r"as_operator\(other\) @ A"):
        pandas.DataFrame(D) @ A


@pytest.mark.filterwarnings("ignore:The problem size:UserWarning")
def test_scipy_functions_that_ask_for_more_than_products_take_operators():
    A = co.SelfAdjoint(co.Dense(D / 4))
    same(sla.expm_multiply(A, b), scipy.linalg.expm(D / 4) @ b)
    values, _ = sla.lobpcg(A, np.eye(3, 2))
    same(np.sort(values), la.eigvalsh(D / 4)[1:])
    same(A(b), D @ b / 4)
    same(A.trace(), np.trace(D / 4))
