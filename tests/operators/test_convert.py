"""Other libraries' matrices in, ours out, and moves between frameworks and dtypes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse
import scipy.sparse.linalg as sla

import colinear as co
from colinear.operators.convert import is_convertible
from colinear.testing import check_operator

rng = np.random.default_rng(0)
D = rng.standard_normal((4, 4))


def test_operators_are_returned_as_they_are():
    A = co.Dense(D)
    assert co.as_operator(A) is A


def test_arrays_and_lists_become_dense():
    assert isinstance(co.as_operator(D), co.Dense)
    assert isinstance(co.as_operator([[1, 2], [3, 4]]), co.Dense)


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_numpy_matrix_becomes_an_array():
    assert type(co.as_operator(np.matrix(D)).A) is np.ndarray


@pytest.mark.parametrize(
    "form", ["csr_array", "csc_matrix", "coo_array", "dia_array", "lil_matrix", "bsr_array"]
)
def test_scipy_sparse_becomes_sparse_on_either_side_of_arithmetic(form):
    S = getattr(scipy.sparse, form)(np.triu(D))
    A = co.as_operator(S)
    assert isinstance(A, co.Sparse) and is_convertible(S)
    np.testing.assert_allclose(A.to_dense(), np.triu(D))
    B = co.Dense(D)
    for ours, theirs in (
        (B + S, D + np.triu(D)),
        (S + B, D + np.triu(D)),
        (B @ S, D @ np.triu(D)),
        (S @ B, np.triu(D) @ D),
    ):
        assert isinstance(ours, co.LinearOperator)
        np.testing.assert_allclose(ours.to_dense(), theirs)


def test_scipy_operator_multiplies_in_blocks_and_batches():
    check_operator(co.as_operator(sla.aslinearoperator(D)), D)


def test_scipy_operator_without_adjoint_says_so_when_it_is_needed():
    A = co.as_operator(sla.LinearOperator((4, 4), matvec=lambda x: D @ x))
    np.testing.assert_allclose(A @ np.eye(4), D)
    with pytest.raises(co.BackendError, match="rmatmat"):
        A.H @ np.ones(4)


def test_anything_with_shape_and_matvec_is_an_operator():
    class Foreign:
        shape = (4, 4)

        def matvec(self, x):
            return D @ x

    assert is_convertible(Foreign())
    np.testing.assert_allclose(co.as_operator(Foreign()) @ np.eye(4)[:, :2], D[:, :2])
    np.testing.assert_allclose(co.solve(Foreign(), np.ones(4)), np.linalg.solve(D, np.ones(4)))


def test_torch_and_jax_sparse_become_sparse():
    torch = pytest.importorskip("torch")
    sparse = pytest.importorskip("jax.experimental.sparse")
    for S in (torch.asarray(D).to_sparse(), sparse.BCOO.fromdense(D), sparse.BCSR.fromdense(D)):
        A = co.as_operator(S)
        assert isinstance(A, co.Sparse) and is_convertible(S)
        np.testing.assert_allclose(np.asarray(A.to_dense()), D)


@pytest.mark.parametrize("wrong", [None, "matrix", b"x", {"a": 1}, print, object(), int])
def test_what_is_no_matrix_is_refused_by_name(wrong):
    with pytest.raises(co.DtypeError, match="as_operator: expected a matrix"):
        co.as_operator(wrong)


@pytest.mark.parametrize("wrong", [3.0, np.ones(3), [1, 2]])
def test_vectors_and_numbers_are_refused_with_advice(wrong):
    with pytest.raises(co.ShapeError, match="two dimensions"):
        co.as_operator(wrong)


def test_masked_arrays_are_refused():
    with pytest.raises(co.DtypeError, match="masked"):
        co.as_operator(np.ma.masked_array(D, D > 1))


def test_arrays_are_not_convertible_objects():
    assert not any(map(is_convertible, (D, [1, 2], 3.0, None, "a", co.Dense(D), np.float64(2))))


# ---------------------------------------------------------------------- moves


def test_dtype_moves_every_leaf():
    A = co.Kronecker(co.Dense(D), co.Diagonal(np.ones(2))) + 0.5 * co.Identity(8)
    B = A.to(dtype="float32")
    assert B.dtype == np.float32 and (B @ np.ones(8, np.float32)).dtype == np.float32
    assert A.to(dtype=complex).dtype == np.complex128


def test_complex_never_becomes_real():
    with pytest.raises(co.DtypeError, match="imaginary"):
        co.Dense(1j * D).to(dtype="float64")
    with pytest.raises(co.DtypeError, match="imaginary"):
        (2j * co.Identity(3)).to(dtype="float64")


def test_integers_are_no_dtype_of_an_operator():
    with pytest.raises(co.DtypeError):
        co.Dense(D).to(dtype="int64")
    with pytest.raises(co.DtypeError):
        co.Dense(D).to(dtype="nonsense")


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_moving_to_a_framework_and_back_keeps_everything(framework):
    pytest.importorskip(framework)
    A = co.PSD(co.Kronecker(co.Dense(D @ D.T), co.Identity(2))) + co.Sparse(
        scipy.sparse.eye_array(8)
    )
    B = A.to(framework)
    assert B.backend == framework and B.properties == A.properties
    np.testing.assert_allclose(np.asarray(B.to_dense()), A.to_dense())
    C = B.to("numpy")
    assert C.backend == "numpy" and type(C) is type(A)
    np.testing.assert_array_equal(C.to_dense(), A.to_dense())


def test_a_neutral_operator_is_pinned_by_a_framework_and_not_by_a_dtype():
    torch = pytest.importorskip("torch")
    I = co.Identity(3)
    assert I.to(dtype="float32").is_neutral
    assert (
        not I.to("torch").is_neutral and I.to("torch").to_dense().dtype == torch.get_default_dtype()
    )


def test_a_function_cannot_be_moved():
    pytest.importorskip("torch")
    A = co.MatrixFree(lambda X: X, (3, 3), like=np.ones(1))
    with pytest.raises(co.BackendError, match="function"):
        A.to("torch")


# ---------------------------------------------------------------------- out


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_scipy_solvers_take_our_operators(framework):
    pytest.importorskip(framework)
    S = D @ D.T + 4 * np.eye(4)
    A = co.Dense(S).to(framework)
    b = np.ones(4)
    for operator in [A.to_scipy()] + ([A] if framework == "numpy" else []):
        np.testing.assert_allclose(
            sla.cg(operator, b, rtol=1e-12)[0], np.linalg.solve(S, b), rtol=1e-8
        )
        np.testing.assert_allclose(
            sla.gmres(operator, b, rtol=1e-12)[0], np.linalg.solve(S, b), rtol=1e-8
        )
        np.testing.assert_allclose(
            sla.lsqr(operator, b, atol=1e-12, btol=1e-12)[0], np.linalg.solve(S, b), rtol=1e-6
        )
        np.testing.assert_allclose(sla.eigsh(operator, 1)[0], np.linalg.eigvalsh(S)[-1:], rtol=1e-8)
        np.testing.assert_allclose(sla.svds(operator, 1)[1], np.linalg.svd(S)[1][:1], rtol=1e-8)


def test_a_batch_is_no_scipy_operator():
    with pytest.raises(co.ShapeError, match="batch"):
        co.Dense(np.ones((2, 3, 3))).to_scipy()


def test_conversion_of_arrays_loads_no_sparse_scipy():
    code = "import sys, numpy, colinear; colinear.as_operator(numpy.eye(2)); assert 'scipy.sparse' not in sys.modules"
    subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        env={"PYTHONPATH": str(next(p for p in sys.path if p.endswith("src")))},
    )
