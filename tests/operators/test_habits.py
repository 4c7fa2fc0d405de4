"""The methods and arguments that users of torch and SciPy write without thinking, in each framework."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import colinear as co
from colinear.testing import dot_test

M = np.array([[4.0, 1.0], [1.0, 3.0]])
FRAMEWORKS = ["numpy", "torch", "jax"]

HABITS = {  # what is written: what it means, by NumPy and its matrix
    "detach": (lambda A, b: A.detach(), lambda b: M),
    "clone": (lambda A, b: A.clone(), lambda b: M),
    "cpu": (lambda A, b: A.cpu(), lambda b: M),
    "double": (lambda A, b: A.double(), lambda b: M),
    "float": (lambda A, b: A.float(), lambda b: M.astype(np.float32)),
    "half": (lambda A, b: A.half(), lambda b: M.astype(np.float16)),
    "astype": (lambda A, b: A.astype("float32"), lambda b: M.astype(np.float32)),
    "to a dtype": (lambda A, b: A.to("float32"), lambda b: M.astype(np.float32)),
    "to a device": (lambda A, b: A.to("cpu"), lambda b: M),
    "size": (lambda A, b: A.size(), lambda b: (2, 2)),
    "size of one": (lambda A, b: A.size(-1), lambda b: 2),
    "dim": (lambda A, b: A.dim(), lambda b: 2),
    "diagonal": (lambda A, b: A.diagonal(), lambda b: np.diag(M)),
    "trace": (lambda A, b: A.trace(), lambda b: 7.0),
    "mT": (lambda A, b: A.mT, lambda b: M.T),
    "mH": (lambda A, b: A.mH, lambda b: M.T),
    "conjugate": (lambda A, b: A.conjugate(), lambda b: M),
    "star": (lambda A, b: A * b, lambda b: M @ b),
    "toarray": (lambda A, b: A.toarray(), lambda b: M),
    "todense": (lambda A, b: A.todense(), lambda b: M),
    "solve": (lambda A, b: A.solve(b), lambda b: np.linalg.solve(M, b)),
    "logdet": (lambda A, b: A.logdet(), lambda b: np.log(11.0)),
    "add_jitter": (lambda A, b: A.add_jitter(0.5), lambda b: M + 0.5 * np.eye(2)),
    "add_diagonal": (lambda A, b: A.add_diagonal(b), lambda b: M + np.diag(b)),
    "add_diagonal of a list": (lambda A, b: A.add_diagonal([1.0, 2.0]), lambda b: M + np.diag(b)),
    "add_diagonal of one entry": (lambda A, b: A.add_diagonal(b[:1]), lambda b: M + np.eye(2)),
    "inv_quad_logdet": (
        lambda A, b: A.inv_quad_logdet(b, logdet=True),
        lambda b: (b @ np.linalg.solve(M, b), np.log(11.0)),
    ),
    "inv_quad_logdet of columns": (
        lambda A, b: A.inv_quad_logdet(A.xp.stack([b, b], axis=-1))[0],
        lambda b: 2 * b @ np.linalg.solve(M, b),
    ),
}


def host(x):
    """An answer as NumPy arrays, operators formed."""
    if isinstance(x, co.LinearOperator):
        x = x.to_dense()
    return tuple(map(host, x)) if isinstance(x, tuple) else np.asarray(x)


def given(framework, matrix=M):
    """The operator and a vector (1, 2)."""
    if framework != "numpy":
        pytest.importorskip(framework)
    A = co.Dense(matrix).to(framework)
    return A, A.xp.asarray(np.array([1.0, 2.0]))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("habit", HABITS)
def test_what_people_write_means_what_they_think(habit, framework):
    A, b = given(framework)
    write, meaning = HABITS[habit]
    found, wanted = host(write(A, b)), meaning(np.array([1.0, 2.0]))
    for mine, other in zip(*((found, wanted) if isinstance(found, tuple) else ([found], [wanted]))):
        assert mine.dtype == np.asarray(other).dtype
        np.testing.assert_allclose(mine, other, rtol=1e-12)


def test_inv_quad_of_a_complex_operator_is_conjugated():
    H = np.array([[3.0, 1j], [-1j, 2.0]])
    A, b = co.PD(co.Dense(H)), np.array([1.0 + 1j, 2.0])
    quadratic, logdet = A.inv_quad_logdet(b, logdet=True)
    np.testing.assert_allclose(quadratic, b.conj() @ np.linalg.solve(H, b), rtol=1e-12)
    np.testing.assert_allclose(logdet, np.log(5.0), rtol=1e-12)


def test_requires_grad_is_torchs_and_clone_passes_gradients_on():
    torch = pytest.importorskip("torch")
    A, b = given("torch")
    assert A.requires_grad_() is A
    (A.clone() @ b).sum().backward()
    assert torch.equal(A.arrays()[0].grad, b.expand(2, 2))
    assert not any(array.requires_grad for array in A.detach().arrays())
    with pytest.raises(co.BackendError, match=r"A\.to\('torch'\)"):
        co.Dense(M).requires_grad_()


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_star_with_a_vector_on_the_left_is_refused_since_libraries_differ(framework):
    A, b = given(framework)
    with pytest.raises(co.ShapeError, match=r"Write A @ Diagonal\(x\) to scale columns"):
        b * A


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_nothing_is_divided_by_an_operator(framework):
    A, b = given(framework)
    for numerator in (b, 2.0):
        with pytest.raises(TypeError, match=r"Use solve\(A, b\), or c \* inv\(A\)"):
            numerator / A


def test_sums_over_axes_in_a_tuple_are_those_of_numpy_and_torch():
    """One axis in a tuple was the sum of all entries."""
    torch = pytest.importorskip("torch")
    A = co.Dense(np.array([[4.0, 1.0], [2.0, 3.0]]))
    D, T = A.to_dense(), A.to("torch")
    for axis in ((0,), (1,), (-1,), (0, 1), (-1, 0), None, 0, 1):
        for keep in (False, True):
            wanted = np.sum(D, axis=axis, keepdims=keep)
            np.testing.assert_array_equal(np.sum(A, axis=axis, keepdims=keep), wanted)
            if axis is not None:
                np.testing.assert_array_equal(torch.sum(T, dim=axis, keepdim=keep), wanted)
    np.testing.assert_array_equal(torch.sum(T, dim=[1]), np.sum(D, axis=1))
    with pytest.raises(TypeError, match="BatchSum"):
        np.sum(co.Dense(np.ones((2, 3, 3))), axis=(1, 2))


def test_torch_functions_take_their_arguments_by_name():
    torch = pytest.importorskip("torch")
    A, b = given("torch")
    T, la = torch.tensor(M), torch.linalg
    for f in (
        lambda A: torch.sum(A, dim=1, keepdim=True),
        lambda A: torch.kron(input=A, other=T),
        lambda A: torch.cat(tensors=[A, T], dim=1),
        lambda A: torch.block_diag(A, T),
        lambda A: torch.matmul(input=A, other=b),
        lambda A: torch.matmul(input=b, other=A),
        lambda A: la.solve(A=A, B=b),
        lambda A: la.matrix_power(A, n=3),
        lambda A: la.inv(A=A),
        lambda A: torch.transpose(input=A, dim0=0, dim1=1),
        lambda A: torch.logdet(input=A),
    ):
        np.testing.assert_allclose(host(f(A)), f(T), rtol=1e-12)
    for f in (partial(la.qr, A=A, mode="reduced"), partial(la.lu, A=A, pivot=True)):
        first, *rest = (factor.to_dense() for factor in f())
        for factor in rest:
            first = first @ factor
        np.testing.assert_allclose(first, M, rtol=1e-12)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_matrix_free_takes_functions_of_one_vector(framework):
    own, b = given(framework, np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))
    D = own.to_dense()
    A = co.MatrixFree(matvec=lambda x: D @ x, shape=(3, 2), rmatvec=lambda y: D.T @ y, like=D)
    X = A.xp.stack([b, 2 * b, b], axis=-1)
    np.testing.assert_allclose(A @ b, D @ b)
    np.testing.assert_allclose(A @ X, D @ X)
    np.testing.assert_allclose(A.T @ (D @ X), D.T @ (D @ X))
    assert (A @ X[:, :0]).shape == (3, 0)
    dot_test(A)


def test_matrix_free_says_what_is_missing():
    with pytest.raises(TypeError, match="give matmat=, or matvec="):
        co.MatrixFree(shape=(2, 2))
    with pytest.raises(TypeError, match="not both"):
        co.MatrixFree(lambda X: X, (2, 2), matvec=lambda x: x)
    with pytest.raises(TypeError, match="matvec must be a function of a vector"):
        co.MatrixFree(matvec=3, shape=(2, 2))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_dot_test_finds_a_wrong_adjoint(framework):
    A, _ = given(framework, np.array([[1.0, 2.0], [3.0, 5.0]]))
    D = A.to_dense()
    dot_test(A)
    dot_test(1j * A)
    with pytest.raises(AssertionError, match="the adjoint of MatrixFree"):
        dot_test(co.MatrixFree(lambda X: D @ X, (2, 2), rmatmat=lambda X: D @ X, like=D))
