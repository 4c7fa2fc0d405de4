"""`shard`, `gather` and `load_rows` on a mesh of one device, and what they refuse."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp

import colinear as co
from colinear.distributed import gather, load_rows, placement, shard
from colinear.distributed.communication import Traffic, traffic
from colinear.distributed.row_sparse import RowSparse, rows_of

jax = pytest.importorskip("jax")


@pytest.fixture
def mesh():
    if not hasattr(jax.sharding, "AxisType"):
        pytest.skip("this JAX has no types of axes")
    return jax.make_mesh((1,), ("x",))


def test_importing_colinear_does_not_load_the_package():
    code = "import colinear, sys; assert 'colinear.distributed' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_hands_out_its_functions():
    assert co.shard is shard
    assert co.gather is gather
    assert co.distributed.load_rows is load_rows


def test_operators_and_nests_of_arrays_keep_their_values_and_claims(mesh):
    M = np.diag([1.0, 2.0, 4.0])
    A = shard(co.PSD(co.Dense(M)), mesh)
    assert A.isa(co.PSD)
    assert A.backend == "jax"
    np.testing.assert_allclose(np.asarray(A.to_dense()), M, rtol=1e-6)
    nest = shard({"b": np.ones(3), "pair": (np.zeros((3, 2)), 1.5)}, mesh)
    assert nest["pair"][1] == 1.5
    assert nest["b"].shape == (3,)
    assert type(gather(nest)["pair"]) is tuple


def test_what_is_on_one_device_is_gathered_as_it_is():
    d = np.ones(3)
    assert gather(co.Diagonal(d)).d is d


@pytest.mark.parametrize("place", ["cpu", None, 4])
def test_a_mesh_is_asked_for(place):
    with pytest.raises(co.BackendError, match=r"shard: expected a mesh .* Make one"):
        shard(np.ones(3), place)


def test_an_axis_that_the_mesh_does_not_have_is_refused(mesh, tmp_path):
    with pytest.raises(
        co.ShapeError, match=r"axis='y' is none of the mesh, whose axes are \['x'\]"
    ):
        shard(np.ones(3), mesh, "y")
    np.save(tmp_path / "rows.npy", np.ones(3))
    with pytest.raises(co.ShapeError, match="load_rows: axis='y'"):
        load_rows(tmp_path / "rows.npy", mesh, "y")


def test_an_operator_of_another_framework_is_refused(mesh):
    torch = pytest.importorskip("torch")
    with pytest.raises(co.BackendError, match=r"is a torch one and the mesh is jax's. Convert it"):
        shard(co.Diagonal(torch.ones(3)), mesh)


def test_a_file_without_rows_is_refused(mesh, tmp_path):
    np.save(tmp_path / "number.npy", np.float32(1))
    with pytest.raises(co.ShapeError, match="holds a number"):
        load_rows(tmp_path / "number.npy", mesh)


@pytest.mark.parametrize(
    "offsets", [(-1, 0, 1), (0, 3), (-2,)], ids=["three", "above", "one below"]
)
def test_a_sparse_matrix_by_rows_multiplies_forth_and_back(mesh, offsets):
    rng = np.random.default_rng(0)
    S = sp.diags([rng.normal(size=8 - abs(k)) for k in offsets], offsets, (8, 8)).tocsr()
    A = shard(co.Sparse(S.astype(np.float32)), mesh)
    X = rng.normal(size=(8, 2)).astype(np.float32)
    assert isinstance(A, RowSparse)
    assert A.offsets == offsets
    np.testing.assert_allclose(np.asarray(A @ X), S @ X, atol=1e-5)
    np.testing.assert_allclose(np.asarray(A.H @ X), S.T @ X, atol=1e-5)
    np.testing.assert_allclose(np.asarray(co.diag(A)), S.diagonal(), atol=1e-5)
    np.testing.assert_allclose(np.asarray(A.to_dense()), S.toarray(), atol=1e-6)
    back = gather(A)
    assert isinstance(back, co.Sparse)
    assert back.structure == co.Sparse(S).structure


def test_rows_without_a_pattern_gather_the_vector(mesh):
    rng = np.random.default_rng(1)
    S = sp.random(40, 40, 0.2, random_state=rng).tocsr().astype(np.float32)
    A = shard(co.Sparse(S), mesh)
    assert isinstance(A, RowSparse)
    assert A.offsets is None
    assert traffic(A) == Traffic(gathers=(40,))
    x = rng.normal(size=40).astype(np.float32)
    np.testing.assert_allclose(np.asarray(A @ x), S @ x, atol=1e-5)
    np.testing.assert_allclose(np.asarray(A.H @ x), S.T @ x, atol=1e-5)
    np.testing.assert_allclose(np.asarray(co.diag(A)), S.diagonal(), atol=1e-6)


def test_rows_that_would_waste_memory_stay_sparse():
    arrow = sp.lil_array((60, 60))
    arrow[0], arrow[:, 0] = 1.0, 1.0
    arrow.setdiag(2.0)
    assert rows_of(co.Sparse(arrow.tocsr()), 4) is None
    far = sp.eye_array(60, k=40).tocsr()
    assert rows_of(co.Sparse(far), 4).offsets is None  # beyond the neighbours


def test_a_banded_matrix_is_cut_as_a_sparse_one(mesh):
    A = co.Banded([np.ones(5), np.arange(6.0)], [1, 0])
    S = shard(A, mesh)
    assert isinstance(S, RowSparse)
    np.testing.assert_allclose(np.asarray(S.to_dense()), A.to_dense())


def test_a_rule_places_an_operator_of_ones_own(mesh):
    seen = []

    class Mine(co.LinearOperator):
        U: np.ndarray

        @property
        def shape(self):
            return self.U.shape

        def _matmat(self, X):
            return self.U @ X

    @co.rule(placement, Mine)
    def place_mine(A, place):
        """by rows"""
        seen.append(place.parts)
        return A._replace(U=place.rows(A.U))

    A = shard(2.0 * Mine(np.eye(4)), mesh)
    assert seen == [1]
    np.testing.assert_allclose(np.asarray(gather(A) @ np.ones(4, np.float32)), 2.0)


def test_a_kernel_of_a_batch_of_points_is_whole(mesh):
    X, Y = np.ones((4, 2), np.float32), np.ones((3, 5, 2), np.float32)
    for points in ((X, Y), (Y, X)):
        A = co.Kernel(lambda X, Y: X @ Y.T, *map(jax.numpy.asarray, points))
        K, n = shard(A, mesh), A.shape[-1]
        assert K.spread is None
        np.testing.assert_allclose(K @ shard(np.ones(n), mesh), 2.0 * n * np.ones(A.shape[:-1]))


@pytest.mark.parametrize(
    "make",
    [
        lambda like: co.FFT(6, like=like),
        lambda like: co.Identity(6, like=like),
        lambda like: co.ScaledIdentity(2.0, 6, like=like),
        lambda like: co.Sine(6, like=like),
        lambda like: co.Permutation([2, 0, 1, 5, 4, 3], like=like),
    ],
    ids=["FFT", "Identity", "ScaledIdentity", "Sine", "Permutation"],
)
def test_operators_without_arrays_go_to_the_mesh_too(mesh, make):
    A, x = make(jax.numpy.ones(1)), np.arange(6.0, dtype=np.float32)
    S = shard(A, mesh)
    np.testing.assert_allclose(np.asarray(S @ shard(x, mesh)), np.asarray(A @ x), rtol=1e-5)
    np.testing.assert_allclose(
        np.asarray((S + shard(co.Diagonal(x), mesh)) @ shard(x, mesh)),
        np.asarray(A @ x) + x**2,
        rtol=1e-5,
    )
    np.testing.assert_allclose(np.asarray(gather(S) @ x), np.asarray(A @ x), rtol=1e-5)


def test_gathered_parts_are_not_divided_any_more(mesh):
    T = co.Toeplitz(np.arange(1.0, 5, dtype=np.float32))
    K = gather(co.Kronecker(shard(co.Diagonal(np.ones(2, np.float32)), mesh), shard(T, mesh)))
    assert K.operands[1].spread is None
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_allclose(
        np.asarray(K @ x), np.kron(np.eye(2), T.to_dense()) @ x, rtol=1e-5, atol=1e-4
    )


def test_an_operator_of_a_family_without_a_rule_is_said_not_to_be_divided():
    assert traffic(co.Toeplitz([2.0, 1.0])).repeated == ("Toeplitz",)
    assert traffic(co.Identity(3) + co.Diagonal(np.ones(3))) == Traffic()


def test_blocks_of_a_column_share_their_part_of_a_vector():
    M = co.Dense(np.ones((4, 2)))
    assert traffic(co.Block([[M, M], [M, M]])).gathers == (2, 2)
    assert traffic(co.Block([[M], [M]])).gathers == (2,)
    assert traffic(co.BlockDiag(M, M)).gathers == (2, 2)


@pytest.mark.parametrize("offsets", [(0,), (-2,), (1, 3), (-3, -1), (-1, 2)])
def test_halos_are_predicted_as_far_as_the_diagonals_reach(mesh, offsets):
    S = sp.diags([np.ones(8 - abs(k)) for k in offsets], offsets, (8, 8)).tocsr()
    reach = max(0, -offsets[0]), max(0, offsets[-1])
    A = shard(co.Sparse(S), mesh)
    assert traffic(A) == Traffic(shifts=tuple(filter(None, reach)))
    product = shard(co.Kronecker(co.Sparse(S), co.Dense(np.ones((3, 5)))), mesh)
    assert traffic(product) == traffic(A).times(5)
    total = shard(co.KroneckerSum(co.Sparse(S), co.Dense(np.ones((3, 3)))), mesh)
    assert traffic(total) == traffic(A).times(3)


@pytest.mark.parametrize(
    "A",
    [
        co.Toeplitz(np.arange(1.0, 7), np.arange(6.0)),
        co.Circulant(np.arange(1.0, 7)),
        co.Convolution(np.ones((3, 2)), (4, 3)),
        co.FFT((2, 3)),
    ],
    ids=lambda A: type(A).__name__,
)
def test_grids_that_were_on_a_mesh_multiply_in_numpy_too(mesh, A):
    S, x = shard(A, mesh), np.arange(1.0, A.shape[-1] + 1)
    assert S.spread == (mesh, "x")
    assert gather(S).spread is None
    np.testing.assert_allclose(np.asarray(S @ shard(x, mesh)), A @ x, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(S.to(backend="numpy") @ x, A @ x, rtol=1e-5, atol=1e-4)


def test_what_was_on_a_mesh_multiplies_in_numpy_too(mesh):
    line = sp.diags([-1.0, 2.5, -1.0], [-1, 0, 1], (8, 8)).tocsr()
    S = shard(co.Sparse(line), mesh).to(backend="numpy")
    np.testing.assert_allclose(S @ np.ones(8), line @ np.ones(8), rtol=1e-6)
    dots = co.Kernel(lambda X, Y: X @ Y.T, np.eye(4, dtype=np.float32))
    K = shard(dots, mesh).to(backend="numpy")
    np.testing.assert_allclose(K @ np.ones(4, np.float32), np.ones(4))
