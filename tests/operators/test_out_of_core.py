"""Matrices that are not in memory: mapped files and arrays that come a chunk at a time are streamed, and
nothing is copied whole."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import colinear as co
from colinear.operators.streamed import BLOCK_BYTES, Streamed

ROWS, COLUMNS = 40_000, 100  # 32 MB
SIZE = 2000  # 32 MB
SMALL_PART = 0.75  # of the file, that may be in memory at once
MEGABYTE = 2**20


@pytest.fixture(scope="module")
def tall(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    return _mapped(tmp_path_factory.mktemp("files") / "tall.npy", (ROWS, COLUMNS), 0.0)


@pytest.fixture(scope="module")
def square(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    return _mapped(tmp_path_factory.mktemp("files") / "square.npy", (SIZE, SIZE), 200.0)


def _mapped(path: Path, shape: tuple[int, int], shift: float) -> np.ndarray:
    M = np.random.default_rng(0).normal(size=shape)
    M += shift * np.eye(*shape)
    np.save(path, M)
    return np.load(path, mmap_mode="r")


def _peak(f: Callable[[], Any]) -> tuple[Any, float]:
    """The result, and the bytes that were in memory at once on the way."""
    f()  # what is loaded and kept once does not count
    tracemalloc.start()
    try:
        result = f()
        return result, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class Lazy:
    """An array that can only be read in parts, with chunks, as those of Dask and Zarr; it counts the
    largest part."""

    def __init__(self, array: Any, chunks: Any):
        self.array, self.shape, self.dtype, self.chunks = array, array.shape, array.dtype, chunks
        self.largest = 0

    def __getitem__(self, places: Any) -> Any:
        part = np.array(self.array[places])
        self.largest = max(self.largest, part.nbytes)
        return part


PRODUCTS: dict[str, Callable[[Any], Any]] = {
    "A x": lambda A: co.Dense(A) @ np.ones(COLUMNS),
    "A^H b": lambda A: co.Dense(A).H @ np.ones(ROWS),
    "A x in single precision": lambda A: co.Dense(A) @ np.ones(COLUMNS, np.float32),
    "A x with complex x": lambda A: co.Dense(A) @ np.ones(COLUMNS, complex),
    "every other column": lambda A: co.Dense(A[:, ::2]) @ np.ones(COLUMNS // 2),
    "U U^H b": lambda A: co.LowRank(A) @ np.ones(ROWS),
    "sum of terms": lambda A: co.BatchSum(co.LowRank(A[:, :, None])) @ np.ones(COLUMNS),
    "sum of matrices": lambda A: co.BatchSum(co.Dense(A.reshape(-1, 50, 100))) @ np.ones(100),
    "trace of a sum": lambda A: co.trace(co.BatchSum(co.LowRank(A[:, :, None]))),
    "ridge": lambda A: co.solve(
        co.BatchSum(co.LowRank(A[:, :, None])) + co.Identity(COLUMNS), np.ones(COLUMNS)
    ),
    "lstsq": lambda A: co.lstsq(A, np.ones(ROWS)),
    "norm": lambda A: co.norm(A),
    "norm 1": lambda A: co.norm(A, 1),
    "norm inf": lambda A: co.norm(A, np.inf),
    "norm 2": lambda A: co.norm(A, 2),
    "svd": lambda A: co.svd(A, 2)[1],
    "all singular values": lambda A: co.svd(A)[1],
    "rank": lambda A: co.rank(A),
    "diag": lambda A: co.diag(A),
    "Woodbury": lambda A: co.solve(
        co.LowRank(A) + co.Diagonal(np.full(ROWS, 500.0)), np.ones(ROWS)
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_a_file_is_not_copied(tall: np.ndarray, name: str) -> None:
    result, peak = _peak(lambda: PRODUCTS[name](tall))
    assert peak < SMALL_PART * tall.nbytes
    np.testing.assert_allclose(result, PRODUCTS[name](np.array(tall)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(5000, 800), (3, 1300, 800)], ids=["matrix", "batch"])
@pytest.mark.parametrize("dtype", [np.complex64, np.float32])
def test_transposes_and_batches_in_a_file_are_not_copied(
    tmp_path: Path, shape: tuple[int, ...], dtype: Any
) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "A.npy"
    M = rng.normal(size=(*shape, 2)).view(complex)[..., 0]
    M = np.repeat(M if np.dtype(dtype).kind == "c" else M.real, 2, axis=-1).astype(dtype)
    np.save(path, M)
    A = np.load(path, mmap_mode="r")
    for image, expected in ((lambda A: A, M), (lambda A: A.T, np.swapaxes(M, -1, -2))):
        n = expected.shape[-1]
        for X in (np.ones((n, 2)), rng.normal(size=n), rng.normal(size=(3, n, 1)) + 0j):
            found, peak = _peak(lambda image=image, X=X: image(co.Dense(A)) @ X)
            assert peak < SMALL_PART * A.nbytes + found.nbytes
            np.testing.assert_allclose(found, expected @ X, rtol=1e-3, atol=1e-3)
            assert found.dtype == np.result_type(dtype, X)


def test_least_squares_of_unlike_columns(tall: np.ndarray, tmp_path: Path) -> None:
    M, b = np.array(tall[:25_000]) * np.geomspace(1, 1e5, COLUMNS), np.ones(25_000)
    np.save(tmp_path / "A.npy", M)
    A = np.load(tmp_path / "A.npy", mmap_mode="r")
    np.testing.assert_allclose(co.lstsq(A, b), np.linalg.lstsq(M, b)[0], rtol=1e-6, atol=1e-12)
    for B, order in ((A.T, "wide"), (np.asfortranarray(A), "by columns")):
        x = co.lstsq(B, np.ones(B.shape[0]), on_failure="ignore")
        assert np.isfinite(x).all(), order


def test_a_file_is_factored_by_rows_where_info_is_asked_for_too(tall: np.ndarray) -> None:
    b = np.random.default_rng(1).normal(size=(ROWS, 2))
    x, info = co.lstsq(tall, b, info=True)
    np.testing.assert_array_equal(x, co.lstsq(tall, b))
    assert info.method == "QR" and info.status is co.Status.SUCCESS
    norms = np.linalg.norm(b - tall @ x, axis=0) / np.linalg.norm(b, axis=0)
    np.testing.assert_allclose(info.residual, norms)


QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "solve": lambda A: co.solve(A, np.ones(SIZE)),
    "inv": lambda A: co.inv(A) @ np.ones(SIZE),
    "trace": lambda A: co.trace(A),
    "solve of a sum": lambda A: co.solve(co.Dense(A) + 2 * co.Identity(SIZE), np.ones(SIZE)),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_system_in_a_file_is_not_factored(square: np.ndarray, name: str) -> None:
    result, peak = _peak(lambda: QUESTIONS[name](square))
    assert peak < SMALL_PART * square.nbytes
    np.testing.assert_allclose(result, QUESTIONS[name](np.array(square)), rtol=1e-6)


@pytest.mark.parametrize(
    "ask",
    [
        lambda A: co.lu(A),
        lambda A: co.eig(A),
        lambda A: co.svd(A),
        lambda A: co.logdet(A),
        lambda A: co.solve(A, np.ones(SIZE), co.LU()),
    ],
)
def test_what_needs_a_copy_of_the_file_says_so(square: np.ndarray, ask: Any) -> None:
    with pytest.raises(co.TooLargeError, match="lies in a file"):
        ask(square)


def test_a_small_file_is_like_an_array(tmp_path: Path) -> None:
    np.save(tmp_path / "A.npy", np.diag([1.0, 2.0]))
    A = np.load(tmp_path / "A.npy", mmap_mode="r")
    np.testing.assert_allclose(co.inv(A).to_dense(), np.diag([1.0, 0.5]))


def test_a_file_of_integers_would_be_copied(tmp_path: Path) -> None:
    path = tmp_path / "A.npy"
    A = np.lib.format.open_memmap(path, mode="w+", dtype=np.int64, shape=(2000, 2000))
    with pytest.raises(co.DtypeError, match="a file of int64"):
        co.Dense(A)


def test_points_of_a_kernel_are_read_in_pieces(tall: np.ndarray) -> None:
    def near(X: Any, Y: Any) -> Any:
        return 1 / (1 + ((X[:, None] - Y[None]) ** 2).sum(-1))

    points = tall.reshape(-1, 10)[:, :5]  # 400 000 of them
    assert points.shape[0] == 400_000
    K = co.Kernel(near, points, points[:40])
    result, peak = _peak(lambda: (K @ np.ones(40), co.diag(K)))
    assert peak < 4 * 2**27  # some arrays of the budget of a block
    expected = near(np.array(points[:1000]), points[:40])
    np.testing.assert_allclose(result[0][:1000], expected.sum(1))
    np.testing.assert_allclose(result[1], 1)
    np.testing.assert_allclose(
        K.H @ np.ones(400_000), near(points[:40], np.array(points)).sum(1), rtol=1e-9
    )


CHUNKS: dict[str, Any] = {
    "sizes": ((3000, 3000, 1000), (40, 60)),  # as Dask's
    "size": (2500, 30),  # as Zarr's
    "sizes of NumPy": (np.int64(2500), np.int64(30)),
    "none": None,  # as those of contiguous files of HDF5
}


@pytest.mark.parametrize("chunks", CHUNKS)
def test_lazy_arrays_stream_their_chunks(chunks: str) -> None:
    M = np.random.default_rng(1).normal(size=(7000, 100))
    lazy = Lazy(M, CHUNKS[chunks])
    A, b = co.as_operator(lazy), np.ones(7000)
    assert isinstance(A, Streamed) and isinstance(co.Dense(lazy), Streamed)
    np.testing.assert_allclose(A @ np.ones(100), M.sum(1))
    np.testing.assert_allclose(A.T @ b, M.sum(0))
    np.testing.assert_allclose(A.H @ (b * 1j), 1j * M.sum(0))
    np.testing.assert_allclose(co.diag(A), np.diagonal(M))
    for order in ("fro", 1, -1, np.inf, -np.inf):
        np.testing.assert_allclose(co.norm(A, order), np.linalg.norm(M, order))
    np.testing.assert_allclose(A.to_dense(), M)
    np.testing.assert_allclose(co.lstsq(A, b), np.linalg.lstsq(M, b)[0], rtol=1e-6)
    gram = co.LowRank(lazy)
    assert gram.isa(co.PSD)
    np.testing.assert_allclose(gram @ b, M @ M.sum(0))
    assert "Lazy" in repr(A)


def test_a_stack_of_lazy_matrices_is_summed() -> None:
    M = np.random.default_rng(2).normal(size=(50, 6, 4))
    lazy = Lazy(M, (20, 6, 3))
    S = co.BatchSum(lazy)
    np.testing.assert_allclose(S @ np.ones(4), M.sum((0, 2)))
    np.testing.assert_allclose(S.T @ np.ones(6), M.sum((0, 1)))
    assert lazy.largest <= 20 * 6 * 3 * 8
    np.testing.assert_allclose(co.as_operator(lazy) @ np.ones((4, 1)), M.sum(2)[..., None])


def test_long_rows_of_a_file_without_chunks_are_read_in_pieces() -> None:
    lazy = Lazy(np.ones((2, 3_000_000)), None)
    np.testing.assert_allclose(co.as_operator(lazy) @ np.ones(3_000_000), [3e6, 3e6])
    assert lazy.largest <= BLOCK_BYTES


@pytest.mark.parametrize("batch", [(1,), (2, 1), (1, 3)])
def test_a_lazy_matrix_is_that_of_every_vector_of_a_batch(batch: tuple[int, ...]) -> None:
    rng = np.random.default_rng(4)
    M = rng.normal(size=(*batch, 6, 4)) + 1j * rng.normal(size=(*batch, 6, 4))
    A, X, Y = co.as_operator(Lazy(M, (*batch, 4, 3))), np.ones((2, 3, 4, 2)), np.ones((2, 3, 6, 1))
    np.testing.assert_allclose(A @ X, M @ X)
    np.testing.assert_allclose(A.H @ Y, np.swapaxes(M, -1, -2).conj() @ Y)


def test_a_large_lazy_system_is_iterated() -> None:
    M = np.random.default_rng(3).normal(size=(1500, 1500)) + 150 * np.eye(1500)
    lazy = Lazy(M, (400, 1500))
    x = co.solve(lazy, np.ones(1500))
    np.testing.assert_allclose(M @ x, np.ones(1500), atol=1e-5)
    assert lazy.largest <= 400 * 1500 * 8
    with pytest.raises(co.TooLargeError, match="a chunk at a time"):
        co.lu(lazy)


def test_lazy_arrays_are_not_read_where_they_are_no_matrix() -> None:
    lazy = Lazy(np.ones((4, 1)), (2, 1))
    for make in (
        lambda: co.Kernel(lambda X, Y: X @ Y.T, lazy),
        lambda: co.Dense(np.eye(4)) @ lazy.__class__(np.ones(4), (2,)),
        lambda: co.Diagonal(lazy.__class__(np.ones(4), (2,))),
    ):
        with pytest.raises(co.DtypeError, match="a lazy array"):
            make()
    with pytest.raises(co.ShapeError, match="two dimensions"):
        co.as_operator(lazy.__class__(np.ones(4), (2,)))
    with pytest.raises(co.ShapeError, match=r"LowRank\(X.T\)"):
        co.LowRank(lazy.__class__(np.ones((4, 2, 1)), (2, 2, 1)))
    with pytest.raises(co.ShapeError, match="compute_chunk_sizes"):
        co.as_operator(lazy.__class__(np.ones((4, 2)), ((np.nan, np.nan), (2,))))


def test_arrays_of_dask_and_hdf5(tmp_path: Path) -> None:
    array = pytest.importorskip("dask.array")
    M = np.random.default_rng(4).normal(size=(300, 20))
    X = array.from_array(M, chunks=(100, 20)) * 2
    A = co.as_operator(X)
    np.testing.assert_allclose(A @ np.ones(20), 2 * M.sum(1))
    np.testing.assert_allclose(co.lstsq(X, np.ones(300)), np.linalg.lstsq(2 * M, np.ones(300))[0])
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "A.h5", "w") as file:
        file["A"] = M
        np.testing.assert_allclose(co.as_operator(file["A"]).H @ np.ones(300), M.sum(0))


LIMITED = """
import resource, sys
import numpy as np
import colinear as co

A = np.load(sys.argv[1], mmap_mode="r")
b = np.ones(len(A))
co.lstsq(np.eye(3, 2), np.ones(3))  # what is loaded once
used = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_DATA, (used + int(sys.argv[2]),) * 2)
try:
    np.array(A)
except MemoryError:
    pass
else:
    sys.exit("the limit does not bind")
x = co.lstsq(A, b)
s = co.svd(A, 2)[1]
y = co.solve(co.LowRank(A.T) + co.Identity(A.shape[1]), A.T @ b)
print(np.linalg.norm(A.T @ (A @ x - b)) / np.linalg.norm(A.T @ b), co.norm(A) > s[0] > s[1] > 0)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits as Linux has them")
def test_a_file_larger_than_the_memory_limit(tmp_path: Path) -> None:
    path, rows = tmp_path / "A.npy", 150_000
    A = np.lib.format.open_memmap(path, mode="w+", dtype=np.float64, shape=(rows, 100))
    rng = np.random.default_rng(0)
    for i in range(0, rows, 10_000):
        A[i : i + 10_000] = rng.normal(size=(10_000, 100))
    A.flush()
    command = [sys.executable, "-c", LIMITED, str(path), str(80 * MEGABYTE)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    residual, is_ordered = done.stdout.split()
    assert float(residual) < 1e-8 and is_ordered == "True"


def test_the_adjoint_and_the_conjugate_of_a_complex_file_are_no_copies(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    M = rng.standard_normal((4000, 500)) + 1j * rng.standard_normal((4000, 500))
    np.save(tmp_path / "tall.npy", M)
    A = co.Dense(np.load(tmp_path / "tall.npy", mmap_mode="r"))
    x, y = rng.standard_normal((4000, 2)), rng.standard_normal((500, 2))
    expected = np.linalg.svd(M, compute_uv=False)[:2]
    calls: list[tuple[Any, Any]] = [
        (lambda: A.H @ x, M.conj().T @ x),
        (lambda: A.conj() @ y, M.conj() @ y),
        (lambda: A.H.T @ y, M.conj() @ y),
        (lambda: co.svd(A.H, 2)[1], expected),
        (lambda: co.norm(A.conj(), 1), np.linalg.norm(M, 1)),
    ]
    for call, wanted in calls:
        found, peak = _peak(call)
        np.testing.assert_allclose(found, wanted, rtol=1e-10)
        assert peak < M.nbytes / 2


def test_a_few_eigenvalues_of_the_adjoint_of_a_file_are_iterated(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    M = rng.standard_normal((1100, 1100)) + 1j * rng.standard_normal((1100, 1100))
    M = M / 40 + 3 * np.eye(1100)
    M[0, 0] = 40 + 2j
    np.save(tmp_path / "square.npy", M)
    A = co.Dense(np.load(tmp_path / "square.npy", mmap_mode="r"))
    values, vectors = co.eig(A.H, 1)
    largest = co.eig(A, 1)[0]
    np.testing.assert_allclose(values, largest.conj(), rtol=1e-8)
    v = vectors.to_dense()
    np.testing.assert_allclose(M.conj().T @ v, v * values, atol=1e-5)
