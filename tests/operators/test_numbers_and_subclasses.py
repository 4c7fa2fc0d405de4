"""What operators are given: NumPy's scalars, subclasses of its arrays, dtypes without linear algebra; and what they give away."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

import colinear as co

f32, f64 = np.float32, np.float64
I = co.Identity(2)


def dense32() -> co.Dense:
    return co.Dense(np.eye(2, dtype=f32))


# ---------------------------------------------------------------------- NumPy's scalars carry their dtype


@pytest.mark.parametrize(
    ("operator", "dtype"),
    [
        (lambda: co.ScaledIdentity(f32(0.1), 2), f32),
        (lambda: f32(0.1) * I, f32),
        (lambda: (f32(2) * I) @ (f32(3) * I), f32),
        (lambda: f32(2) * I + I, f32),
        (lambda: f32(2) * co.Permutation([1, 0]), f32),
        (lambda: np.complex64(1j) * I, np.complex64),
        (lambda: co.inv(f32(2) * I), f32),
        (lambda: dense32() + f32(0.1) * I, f32),
        (lambda: dense32() + f64(0.1) * I, f64),
        (lambda: f64(2) * dense32(), f64),
        (lambda: dense32() @ (f64(2) * I), f64),
        (lambda: dense32() * np.array(2.0, f32), f32),
        (lambda: dense32() / f32(3), f32),
        (lambda: 0.1 * dense32() + 0.1 * I, f32),
        (lambda: np.int64(2) * dense32(), f32),
        (lambda: co.Dense(np.eye(2)) + f32(0.1) * I, f64),
        (lambda: (f64(2) * I).to(dtype=f32), f32),
    ],
)
def test_numpy_scalars_carry_their_dtype_and_python_numbers_none(operator, dtype):
    A = operator()
    assert A.dtype == dtype and A.to_dense().dtype == dtype
    assert (A @ np.ones(2, f32)).dtype == dtype


def test_numpy_scalars_mix_with_torch_as_numbers_and_with_jax_by_their_dtype():
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    T = co.Dense(torch.eye(2))
    for A in (f64(2) * T, T + f64(0.1) * I, (f64(2) * I) @ T):
        assert A.dtype is torch.float32 and (A @ torch.ones(2)).dtype is torch.float32
    assert (T + np.complex64(1j) * I) @ torch.ones(2) is not None
    assert ((np.complex64(1j) * I) @ torch.ones(2))[0] == 1j
    J = co.Dense(jnp.eye(2, dtype=f32))
    assert (
        (f64(2) * J).dtype == f64 and (J + f64(0.1) * I).dtype == f64 and (f32(2) * J).dtype == f32
    )


def test_the_shift_of_a_method_is_a_number_whatever_its_type():
    A = co.SelfAdjoint(co.Sparse(scipy.sparse.diags_array(np.arange(1, 40, dtype=f32))))
    values, _ = co.eig(A, 1, "SM", co.Lanczos(shift=f64(7.1)))
    assert values.dtype == f32 and round(float(values[0])) == 7


# ---------------------------------------------------------------------- subclasses of arrays


M = np.array([[2.0, 1], [1, 3]])
MATRIX, UNMASKED, MASKED = np.matrix(M), np.ma.masked_array(M), np.ma.masked_array(M, M > 2)
CONSTRUCTORS = [
    co.Dense,
    co.Diagonal,
    co.LowRank,
    co.Triangular,
    co.Toeplitz,
    co.Circulant,
    co.Projection,
    co.Householder,
]


@pytest.mark.parametrize("make", CONSTRUCTORS)
@pytest.mark.parametrize("given", [MATRIX, UNMASKED], ids=["matrix", "masked array"])
def test_subclasses_of_arrays_become_plain_arrays(make, given):
    A, plain = make(given), make(M)
    assert A.shape == plain.shape
    assert all(type(leaf) is np.ndarray for leaf in A.leaves() if hasattr(leaf, "dtype"))
    np.testing.assert_array_equal(A.to_dense(), plain.to_dense())


@pytest.mark.parametrize("make", CONSTRUCTORS)
def test_masked_entries_are_refused(make):
    with pytest.raises(co.DtypeError, match=r"masked array has entries without a value.*filled"):
        make(MASKED)


def test_right_sides_may_be_subclasses_and_masked_ones_are_refused():
    A = co.Dense(MATRIX)
    assert type(A @ np.ones(2)) is np.ndarray and (A @ np.ones(2)).shape == (2,)
    assert type(A @ MATRIX) is np.ndarray and type(co.solve(A, MATRIX)) is np.ndarray
    np.testing.assert_array_equal((A * A).to_dense(), M * M)
    np.testing.assert_array_equal((A * MATRIX).to_dense(), M * M)
    np.testing.assert_allclose(MATRIX @ A, M @ M)
    for call in (
        lambda: A @ MASKED,
        lambda: co.solve(A, MASKED),
        lambda: A + MASKED,
        lambda: MASKED @ A,
    ):
        with pytest.raises(co.DtypeError, match="filled"):
            call()


# ---------------------------------------------------------------------- dtypes without linear algebra

ODD = {
    "longdouble": (np.eye(2, dtype=np.longdouble), r"long double.*astype\(np.float64\)"),
    "clongdouble": (np.eye(2, dtype=np.clongdouble), r"long double.*astype\(np.complex128\)"),
    "object": (np.eye(2).astype(object), r"object.*astype\(float\)"),
    "text": (np.eye(2).astype(str), "<U"),
    "dates": (np.zeros((2, 2), "datetime64[s]"), "datetime64"),
}


@pytest.mark.parametrize("name", ODD)
def test_dtypes_without_linear_algebra_are_refused_by_name(name):
    array, message = ODD[name]
    calls = [
        lambda: co.Dense(array),
        lambda: co.as_operator(array),
        lambda: co.Diagonal(array[0]),
        lambda: co.LowRank(array),
        lambda: co.solve(co.Dense(M), array),
        lambda: co.Dense(M) @ array,
        lambda: co.Dense(M) @ array[0],
        lambda: co.Dense(M) + array,
        lambda: co.logdet(array),
        lambda: I @ array,
    ]
    for call in calls:
        with pytest.raises(co.DtypeError, match=message):
            call()


def test_long_double_is_refused_as_scalar_dtype_and_sparse_matrix():
    long = np.longdouble
    calls = [
        lambda: long(2) * co.Dense(M),
        lambda: long(2) * I,
        lambda: co.Identity(2, dtype=long),
        lambda: co.Dense(M).to(dtype=long),
        lambda: co.Sparse(scipy.sparse.csr_array(np.eye(2, dtype=long))),
        lambda: co.as_operator(scipy.sparse.linalg.aslinearoperator(np.eye(2, dtype=long))),
    ]
    for call in calls:
        with pytest.raises(co.DtypeError):
            call()


# ---------------------------------------------------------------------- to_dense gives a new array

SHARING = {
    "Dense": co.Dense,
    "its transpose": lambda m: co.Dense(m).T,
    "opaque": lambda m: co.opaque(co.Dense(m)),
    "slice": lambda m: co.Dense(m)[:, :1],
    "Triangular": co.Triangular,
    "annotated": lambda m: co.PSD(co.Dense(m)),
    "one term": lambda m: co.Dense(m) + co.Zero(2, 2),
    "broadcast": lambda m: co.Dense(m) + co.Zero(2, 2) * co.Dense(m[None]),
}


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("name", SHARING)
def test_writing_to_the_dense_matrix_leaves_the_operator_as_it_is(name, framework):
    array = M.copy() if framework == "numpy" else pytest.importorskip("torch").tensor(M)
    A = SHARING[name](array)
    before = np.asarray(A.to_dense()).copy()
    A.to_dense()[...] = 99
    co.to_dense(A)[...] = 99
    np.testing.assert_array_equal(np.asarray(A.to_dense()), before)
    np.testing.assert_array_equal(np.asarray(array), M)


# ---------------------------------------------------------------------- A + A.H


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_a_sum_with_the_adjoint_is_self_adjoint(framework):
    A = co.Dense(M + np.triu(M, 1) + 0j).to(framework) * 1j
    R = co.Dense(M @ np.diag([1.0, 2.0])).to(framework)
    for S in (
        R + R.H,
        R.T + R,
        R + R.T + I,
        R / 2 + R.T / 2,
        A + A.H,
        A.H + A,
        2j * A + (2j * A).H,
        (R + R.H) + (R.T + R),
    ):
        assert S.isa(co.SelfAdjoint), S
    for S in (A + A.T, A.T + 3.0 * I + A):
        assert S.isa(co.Symmetric) and not S.isa(co.SelfAdjoint), S
    for S in (R - R.H, R + R, R + R.H + R, 2.0 * R + R.H, A + A.T.conj().T, 2j * A + 2j * A.H):
        assert not S.isa(co.SelfAdjoint), S


def test_what_was_claimed_of_a_sum_holds_of_the_longer_sum():
    A, B = co.Dense(M), co.Dense(np.triu(M))
    assert (co.SelfAdjoint(A + B) + I).isa(co.SelfAdjoint) and not (A + B + I).isa(co.SelfAdjoint)


def test_a_number_times_a_multiple_of_the_identity_keeps_its_dtype():
    """NumPy makes a number of an array without dimensions, whose dtype is not lost."""
    A = 2.0 * (
        co.Zero(3, 3, like="numpy", dtype="float32")
        + co.ScaledIdentity(np.array(1.5, "float32"), 3)
    )
    assert A.dtype == np.float32
    assert all(factor.dtype == np.float32 for factor in co.lu(A))


class Scales(co.LinearOperator):
    """Its fields have the names of methods of every operator."""

    size: int
    half: float
    dim: int = 2

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size, self.size)

    def _matmat(self, X):
        return 2 * self.half * X


def test_a_field_may_have_the_name_of_a_method():
    A = Scales(3, 0.5)
    assert (A.size, A.half, A.dim) == (3, 0.5, 2)
    np.testing.assert_array_equal(A @ np.ones(3), np.ones(3))
    with pytest.raises(TypeError, match="half"):
        Scales(3)
