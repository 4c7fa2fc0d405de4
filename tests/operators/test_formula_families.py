"""Toeplitz, Circulant, Convolution, FFT, Sine, LowRank, Householder, Projection, Kernel, Jacobian, Hessian, GaussNewton, MatrixFree."""

from __future__ import annotations

import pickle
import zlib

import numpy as np
import pytest
import scipy.linalg
from support.formula_operators import FORMULAS, bell, convolution_matrix, fourier_matrix, multiply

import colinear as co
from colinear import backends
from colinear.errors import BackendError, DtypeError, ShapeError
from colinear.operators import (
    FFT,
    BatchSum,
    Circulant,
    Convolution,
    Dense,
    Diagonal,
    GaussNewton,
    Hessian,
    Householder,
    Jacobian,
    Kernel,
    LowRank,
    MatrixFree,
    Projection,
    Sine,
    Toeplitz,
)
from colinear.properties import PSD, SelfAdjoint, Symmetric, Unitary

jax = pytest.importorskip("jax")
torch = pytest.importorskip("torch")
jax.config.update("jax_enable_x64", True)

BACKENDS = ("numpy", "torch", "jax")
DTYPES = ("float32", "float64", "complex64", "complex128")


def made(name, backend, dtype, batch=()):
    result = FORMULAS[name](
        backends.get(backend), dtype, batch, np.random.default_rng(zlib.crc32(name.encode()))
    )
    if result is None:
        pytest.skip("this combination makes no sense")
    return result


def block(xp, dtype, shape, seed=1):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape) + (
        1j * rng.standard_normal(shape) if "complex" in dtype else 0
    )
    return xp.asarray(values, dtype=xp.dtype_from(dtype))


def close(actual, expected, dtype="float64"):
    xp = backends.namespace_of(actual)
    tolerance = 2e-5 if "32" in dtype or dtype == "complex64" else 1e-11
    np.testing.assert_allclose(xp.to_numpy(actual), expected, rtol=tolerance, atol=tolerance)


everywhere = pytest.mark.parametrize("backend", BACKENDS)
differentiable = pytest.mark.parametrize("backend", ("torch", "jax"))
all_makers = pytest.mark.parametrize("name", FORMULAS)


# ---------------------------------------------------------------------- all families against their dense matrices


@all_makers
@everywhere
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [(), (2,)], ids=["plain", "batched"])
def test_products_and_transposes_agree_with_dense(name, backend, dtype, batch):
    A, dense = made(name, backend, dtype, batch)
    xp = backends.get(backend)
    assert A.shape == dense.shape and A.backend == backend and A.dtype == xp.dtype_from(dtype)
    swap = np.swapaxes(dense, -1, -2)
    images = {
        "A": dense,
        "T": swap,
        "H": swap.conj(),
        "conj": dense.conj(),
        "TH": dense.conj(),
        "HT": dense.conj(),
    }
    blocks = {
        n: [
            block(xp, dtype, shape)
            for shape in ((n,), (n, 3), (*dense.shape[:-2], n, 2), (2, n, 1))
        ]
        for n in dense.shape[-2:]
    }

    def products(A, blocks):
        operators = {"A": A, "T": A.T, "H": A.H, "conj": A.conj(), "TH": A.T.H, "HT": A.H.T}
        return {
            key: [operators[key].to_dense(), *(operators[key] @ X for X in blocks[m.shape[-1]])]
            for key, m in images.items()
        }

    # compiled as one, because each of its many operations would be, and less of it, because that
    # takes long
    if backend == "jax":
        images = {key: images[key] for key in ("A", "T", "H", "conj")}
        blocks = {n: some[::2] for n, some in blocks.items()}
        computed = jax.jit(products)(A, blocks)
    else:
        computed = products(A, blocks)
    for key, matrix in images.items():
        expected = [matrix, *(matrix @ xp.to_numpy(X) for X in blocks[matrix.shape[-1]])]
        for result, value in zip(computed[key], expected, strict=True):
            assert result.dtype == A.dtype
            close(result, value, dtype)


@all_makers
@everywhere
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_mixed_dtypes_promote(name, backend, dtype):
    A, dense = made(name, backend, dtype)
    xp = backends.get(backend)

    def products(A, x, y):
        return A @ x, A.H @ y

    for other in ("complex64", "float64"):
        x = block(xp, other, (dense.shape[-1],))
        y = block(xp, other, (dense.shape[-2],))
        expected = np.result_type(dtype, other).name
        forward, backward = (jax.jit(products) if backend == "jax" else products)(A, x, y)
        assert xp.dtype_name(forward.dtype) == xp.dtype_name(backward.dtype) == expected
        close(forward, dense @ xp.to_numpy(x), "float32")
        close(backward, dense.conj().T @ xp.to_numpy(y), "float32")


@all_makers
@everywhere
def test_no_columns_give_no_columns(name, backend):
    A, dense = made(name, backend, "complex128" if name.startswith("fft") else "float64", (2,))
    xp = backends.get(backend)
    product = A @ xp.zeros((dense.shape[-1], 0), dtype=A.dtype)
    assert tuple(product.shape) == (*dense.shape[:-1], 0) and product.dtype == A.dtype


@all_makers
@everywhere
def test_pickles(name, backend):
    A, dense = made(name, backend, "float64" if name == "gauss_newton" else "complex128")
    B = pickle.loads(pickle.dumps(A))
    assert type(B) is type(A) and B.shape == A.shape and B.properties == A.properties
    close(B.to_dense(), dense)
    assert repr(A).startswith(f"<{type(A).__name__} ")
    assert A.flops > 0


@all_makers
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_jax_tree_jit_and_vmap(name, dtype):
    A, dense = made(name, "jax", dtype)
    leaves, structure = jax.tree_util.tree_flatten(A)
    close(jax.tree_util.tree_unflatten(structure, leaves).to_dense(), dense)
    multiplied = jax.jit(lambda A, x: A @ x)
    x = block(backends.get("jax"), dtype, (dense.shape[-1],))
    close(multiplied(A, x), dense @ np.asarray(x))
    y = block(backends.get("jax"), dtype, (4, dense.shape[-2]))
    close(jax.vmap(lambda y: A.H @ y)(y), np.asarray(y) @ dense.conj())
    if leaves:
        many = jax.tree_util.tree_map(lambda leaf: jax.numpy.stack([leaf, leaf]), A)
        close(
            jax.jit(jax.vmap(lambda A, x: A @ x, in_axes=(0, None)))(many, x),
            np.stack([dense @ np.asarray(x)] * 2),
        )


@all_makers
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_torch_tree_and_vmap(name, dtype):
    A, dense = made(name, "torch", dtype)
    pytree = torch.utils._pytree
    leaves, structure = pytree.tree_flatten(A)
    assert all(isinstance(leaf, torch.Tensor) for leaf in leaves)
    close(pytree.tree_unflatten(leaves, structure).to_dense(), dense)
    y = block(backends.get("torch"), dtype, (4, dense.shape[-2]))
    close(torch.func.vmap(lambda y: A.H @ y)(y), y.numpy() @ dense.conj())


@all_makers
@differentiable
def test_gradients_reach_every_leaf_and_agree_with_differences(name, backend):
    A, dense = made(name, backend, "float64")
    xp = backends.get(backend)
    x, y = block(xp, "float64", (dense.shape[-1],)), block(xp, "float64", (dense.shape[-2],))

    def value(A):
        return (y * (A @ x)).sum() + ((A.T @ y) ** 2).sum()

    flatten, unflatten = _tree_functions(backend)
    leaves, structure = flatten(A)
    if not leaves:
        pytest.skip("it holds no numbers")
    if backend == "jax":
        value_of = jax.jit(lambda leaves: value(unflatten(structure, leaves)))
        gradients = jax.jit(jax.grad(value_of))(leaves)
    else:
        value_of = lambda leaves: value(unflatten(structure, leaves))
        tracked = [leaf.clone().requires_grad_() for leaf in leaves]
        gradients = torch.autograd.grad(value(unflatten(structure, tracked)), tracked)
        transformed = torch.func.grad(value_of)(leaves)
        for one, other in zip(gradients, transformed, strict=True):
            close(one, other.numpy())
    step = 1e-6
    for i, (leaf, gradient) in enumerate(zip(leaves, gradients, strict=True)):
        direction = block(xp, "float64", tuple(leaf.shape), seed=i)

        def moved(t, i=i, leaf=leaf, direction=direction):
            return float(value_of([*leaves[:i], leaf + t * direction, *leaves[i + 1 :]]))

        difference = (moved(step) - moved(-step)) / (2 * step)
        assert float((gradient * direction).sum()) == pytest.approx(difference, rel=1e-5, abs=1e-7)


def _tree_functions(backend):
    if backend == "jax":
        return jax.tree_util.tree_flatten, jax.tree_util.tree_unflatten
    pytree = torch.utils._pytree
    return pytree.tree_flatten, lambda structure, leaves: pytree.tree_unflatten(leaves, structure)


# ---------------------------------------------------------------------- properties


INFERRED = {
    "toeplitz_hermitian": (SelfAdjoint,),
    "fft": (Unitary, Symmetric),
    "sine": (Unitary, SelfAdjoint, Symmetric),
    "lowrank_psd": (PSD,),
    "householder": (Unitary, SelfAdjoint),
    "projection": (PSD,),
    "hessian": (Symmetric,),
    "gauss_newton": (SelfAdjoint,),
}


@all_makers
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_what_is_inferred_is_true_and_nothing_else_is_known(name, dtype):
    A, dense = made(name, "jax", dtype)
    truth = {
        SelfAdjoint: dense.shape[0] == dense.shape[1] and np.allclose(dense, dense.conj().T),
        Symmetric: dense.shape[0] == dense.shape[1] and np.allclose(dense, dense.T),
        Unitary: dense.shape[0] == dense.shape[1]
        and np.allclose(dense.conj().T @ dense, np.eye(len(dense))),
    }
    for annotation, holds in truth.items():
        assert holds or not A.isa(annotation)
    for annotation in INFERRED.get(name, ()):
        assert A.isa(annotation)


def test_transposes_stay_in_the_family():
    c = np.array([1.0 + 1j, 2, 3])
    column = c[:, None]
    rest = (LowRank(column, column * 1j), Householder(c), Projection(column / 4))
    for A in (
        Toeplitz(c, c[::-1]),
        Circulant(c),
        Convolution(c, 5, "zero"),
        FFT(3),
        Sine(3),
        *rest,
    ):
        assert type(A.T) is type(A.H) is type(A.conj()) is type(A)
    K = Kernel(bell, np.ones((3, 1)), np.ones((2, 1)), parameters=(0.5,))
    assert type(K.T) is Kernel and K.T.T.transposed is False
    A = MatrixFree(multiply, (3, 3), rmatmat=multiply, parameters=(np.eye(3),))
    assert type(A.H) is MatrixFree


# ---------------------------------------------------------------------- Toeplitz and Circulant


@everywhere
def test_toeplitz_agrees_with_scipy(backend):
    xp = backends.get(backend)
    rng = np.random.default_rng(0)
    for m, n in ((1, 1), (1, 4), (6, 1), (4, 9), (30, 17)):
        c, r = rng.standard_normal(m) + 1j * rng.standard_normal(m), rng.standard_normal(n)
        T = Toeplitz(xp.asarray(c), xp.asarray(r))
        expected = scipy.linalg.toeplitz(c, r)
        close(T.to_dense(), expected)
        close(T @ xp.asarray(np.eye(n)), expected)
        close(T.T.to_dense(), expected.T)
    for c in (rng.standard_normal(5), rng.standard_normal(5) + 1j * rng.standard_normal(5)):
        close(Toeplitz(xp.asarray(c)).to_dense(), scipy.linalg.toeplitz(c))


def test_toeplitz_of_a_column_is_hermitian_only_if_its_diagonal_is_real():
    assert Toeplitz([2.0, 1j, 0]).isa(SelfAdjoint)
    assert not Toeplitz([2.0 + 1j, 1j, 0]).isa(SelfAdjoint)
    assert Toeplitz([2.0, 1.0]).isa(Symmetric)
    col = np.array([1j, 2.0])
    assert Toeplitz(col, col).isa(Symmetric) and not Toeplitz(col, col).isa(SelfAdjoint)
    # Hermitian because it was seen to be; the knowledge is structure, and so is kept under jit
    assert jax.jit(lambda A: A.isa(SelfAdjoint))(Toeplitz(jax.numpy.array([2.0, 1j])))


@everywhere
def test_toeplitz_and_circulant_of_no_rows(backend):
    xp = backends.get(backend)
    empty, two = xp.zeros((0,), dtype=xp.float32), xp.ones((2,), dtype=xp.float32)
    assert Toeplitz(empty, two).shape == (0, 2) and tuple(
        (Toeplitz(empty, two).T @ empty).shape
    ) == (2,)
    assert tuple((Toeplitz(two, empty) @ empty).shape) == (2,) and tuple(
        Toeplitz(two, empty).to_dense().shape
    ) == (2, 0)
    assert tuple((Circulant(empty) @ empty).shape) == (0,) and tuple(
        Circulant(empty).T.to_dense().shape
    ) == (0, 0)


@everywhere
def test_half_precision_is_kept(backend):
    xp = backends.get(backend)
    c = xp.asarray([3.0, 1.0, 0.5, 0.25], dtype=xp.float16)
    x = xp.asarray([1.0, 2.0, -1.0, 0.5], dtype=xp.float16)
    for A in (
        Toeplitz(c),
        Circulant(c),
        Convolution(c, 4),
        Householder(c),
        LowRank(c[:, None]),
        Projection(c[:, None]),
    ):
        product = A @ x
        assert product.dtype == xp.float16
        expected = xp.to_numpy(A.to_dense()).astype(float) @ xp.to_numpy(x)
        np.testing.assert_allclose(xp.to_numpy(product), expected, rtol=2e-2, atol=2e-2)


# ---------------------------------------------------------------------- Convolution


@pytest.mark.parametrize("boundary", ["wrap", "zero"])
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize(
    ("sizes", "grid"),
    [
        ((3,), (7,)), ((4,), (7,)), ((9,), (4,)), ((20,), (50,)), ((25,), (3,)), ((1,), (1,)), ((2, 3), (4, 5)),
        ((7, 2), (3, 5)), ((5, 6), (3, 4)), ((2, 2, 2), (2, 3, 2)), ((3, 3, 3), (2, 3, 4)),
    ],
)  # fmt: skip
def test_convolution_is_its_definition(sizes, grid, boundary, centered):
    rng = np.random.default_rng(0)
    kernel = rng.standard_normal(sizes)
    expected = convolution_matrix(kernel, grid, boundary, centered)
    n = expected.shape[0]

    def matrices(kernel, identity):
        A = Convolution(kernel, grid, boundary, centered)
        return A.to_dense(), A @ identity, A.T @ identity

    for backend in BACKENDS:
        xp = backends.get(backend)
        results = (jax.jit(matrices) if backend == "jax" else matrices)(
            xp.asarray(kernel), xp.asarray(np.eye(n))
        )
        for result, matrix in zip(results, (expected, expected, expected.T), strict=True):
            close(result, matrix)


def test_wrapped_convolution_is_the_circulant_of_the_padded_kernel():
    kernel = np.random.default_rng(0).standard_normal(20)
    close(Convolution(kernel, 30).to_dense(), Circulant(np.pad(kernel, (0, 10))).to_dense())


def test_stencils_are_exact():
    x = np.arange(10.0) ** 2
    assert np.array_equal(
        (Convolution([1.0, -2.0, 1.0], 10, "zero", centered=True) @ x)[1:-1], np.full(8, 2.0)
    )


def test_convolution_refuses_what_does_not_fit():
    with pytest.raises(ShapeError, match="2 dimensions"):
        Convolution([1.0, 2.0], (3, 3))
    with pytest.raises(ValueError, match="reflect"):
        Convolution([1.0, 2.0], 3, boundary="reflect")
    with pytest.raises(ShapeError, match="empty"):
        Convolution(np.zeros(0), 3)
    with pytest.raises(ShapeError, match="grid"):
        Convolution([1.0], (2.5,))
    with pytest.raises(ShapeError, match="grid"):
        FFT((3, -1))
    with pytest.raises(ShapeError, match="grid"):
        FFT("four")
    assert (Convolution([1.0, 2.0], (0,)) @ np.zeros(0)).shape == (0,)


# ---------------------------------------------------------------------- FFT


@everywhere
@pytest.mark.parametrize("dtype", ["float16", *DTYPES])
def test_fft_takes_framework_and_precision_from_what_it_multiplies(backend, dtype):
    xp = backends.get(backend)
    F = FFT((2, 3))
    assert F.is_neutral and F.dtype == np.complex128
    x = block(xp, dtype, (6,))
    product = F @ x
    assert product.dtype == xp.complex_dtype(x.dtype)
    tolerance = "float32" if dtype != "float64" and dtype != "complex128" else dtype
    expected = np.fft.fftn(xp.to_numpy(x).astype(complex).reshape(2, 3), norm="ortho").ravel()
    close(product, expected, tolerance)
    close(F.H @ product, xp.to_numpy(x), "float32")


@everywhere
def test_fft_makes_compositions_complex(backend):
    xp = backends.get(backend)
    d = xp.asarray([1.0, 2, 3], dtype=xp.float32)
    A = FFT(3).H @ Diagonal(d) @ FFT(3)
    assert A.dtype == xp.complex64 and A.backend == backend
    f = fourier_matrix(3)
    close(A.to_dense(), f.conj().T @ np.diag([1, 2, 3]) @ f, "float32")
    assert (xp.asarray(2.0, dtype=xp.float32) * FFT(3)).dtype == xp.complex64
    assert FFT(2).isa(SelfAdjoint) and not FFT(3).isa(SelfAdjoint)
    assert FFT(3, like=backend).backend == backend


# ---------------------------------------------------------------------- LowRank, Householder, Projection


def test_lowrank_refuses_factors_that_do_not_fit():
    U = np.ones((4, 2))
    with pytest.raises(ShapeError, match=r"u\[:, None\]"):
        LowRank(np.ones(4))
    with pytest.raises(ShapeError, match="2 columns and V has 3"):
        LowRank(U, np.ones((4, 3)))
    with pytest.raises(ShapeError, match="core of 2x3"):
        LowRank(U, np.ones((4, 3)), np.ones((2, 2)))
    with pytest.raises(ShapeError, match="batch"):
        LowRank(np.ones((2, 4, 1)), np.ones((3, 4, 1)))
    with pytest.raises(BackendError, match=r"numpy.*torch"):
        LowRank(U, torch.ones((4, 2)))
    with pytest.raises(DtypeError):
        LowRank("abc")
    assert LowRank(U, U).isa(PSD) and not LowRank(U, core=np.eye(2)).isa(PSD)
    assert LowRank(np.ones((3, 0))).to_dense().tolist() == np.zeros((3, 3)).tolist()


@everywhere
@pytest.mark.parametrize("with_core", [False, True])
def test_sums_of_many_low_rank_terms_multiply_as_two_matrices(backend, with_core):
    xp = backends.get(backend)
    rng = np.random.default_rng(0)
    U, V, core = (
        rng.standard_normal((2, 50, 4, 2)),
        rng.standard_normal((50, 3, 2)),
        rng.standard_normal((50, 2, 2)),
    )
    A = LowRank(xp.asarray(U), xp.asarray(V), xp.asarray(core) if with_core else None)
    expected = (U @ (core if with_core else np.eye(2)) @ np.swapaxes(V, -1, -2)).sum(1)
    S = BatchSum(A, axis=1)
    for X in (
        rng.standard_normal((3, 5)),
        rng.standard_normal((2, 3, 5)),
        rng.standard_normal((4, 1, 3, 5)),
    ):
        close(S @ xp.asarray(X), expected @ X)
    million = BatchSum(LowRank(np.ones((10**6, 3, 1))))
    assert (million @ np.ones(3)).tolist() == [3e6] * 3


@everywhere
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_householder_of_zero_is_the_identity_and_of_huge_vectors_a_reflection(backend, dtype):
    xp = backends.get(backend)
    x = block(xp, dtype, (3,))
    v = xp.asarray(
        np.array([[0, 0, 0], [1e30, 2e30, 0], [1e-30, 2e-30, 0]]), dtype=xp.dtype_from(dtype)
    )
    H = Householder(v)
    assert H.isa(Unitary) and H.isa(SelfAdjoint)
    reflection = np.eye(3) - 2 * np.outer([1, 2, 0], [1, 2, 0]) / 5
    close(H.to_dense(), np.stack([np.eye(3), reflection, reflection]), dtype)
    close((H @ (H @ x)[..., None])[..., 0], np.stack([xp.to_numpy(x)] * 3), dtype)


def test_gradient_of_a_reflection_is_finite_at_zero():
    v = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    (Householder(v) @ torch.ones(3, dtype=torch.float64)).sum().backward()
    assert torch.isfinite(v.grad).all()


def test_projection_is_thin_and_projects():
    with pytest.raises(ShapeError, match="2x3"):
        Projection(np.ones((2, 3)))
    Q = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 2)))[0]
    P = Projection(Q)
    x = np.arange(6.0)
    close(P @ (P @ x), P @ x)
    with pytest.raises(ShapeError):
        Householder(1.0)


# ---------------------------------------------------------------------- Kernel


def gaussian(X, Y, length):
    xp = backends.namespace_of(X)
    return xp.exp(-xp.sum((X[:, None] - Y[None]) ** 2, axis=-1) / (2 * length**2))


@everywhere
@pytest.mark.parametrize("transpose", [False, True])
def test_kernel_is_called_with_blocks_alone(backend, transpose):
    xp = backends.get(backend)
    shapes = []

    def watched(X, Y, length):
        shapes.append((X.shape[0], Y.shape[0]))
        return gaussian(X, Y, length)

    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((103, 2)), rng.standard_normal((40, 2))
    K = Kernel(
        watched,
        xp.asarray(X),
        xp.asarray(Y),
        parameters=(xp.asarray(0.7, dtype=xp.float64),),
        block=10,
    )
    K, dense = (K.T, gaussian(Y, X, 0.7)) if transpose else (K, gaussian(X, Y, 0.7))
    x = rng.standard_normal(dense.shape[1])
    close(K @ xp.asarray(x), dense @ x)
    rows = max(shape[transpose] for shape in shapes)
    assert rows <= 10 and all(m * n <= 10 * dense.shape[1] for m, n in shapes)
    if backend == "jax":  # one compiled loop: traced for the dtype and for the body
        assert len(shapes) <= 4


def test_kernel_chooses_blocks_by_memory():
    largest = []

    def watched(X, Y):
        largest.append(X.shape[0] * Y.shape[0])
        return np.ones((X.shape[0], Y.shape[0]))

    n = 20_000
    K = Kernel(watched, np.zeros((n, 1)))
    assert (K @ np.ones(n))[0] == n
    assert max(largest) * 3 * 8 <= 2**27 and len(largest) < 100


@everywhere
@pytest.mark.parametrize("block", [None, 16])
def test_an_iteration_evaluates_a_kernel_once_if_it_fits_and_nobody_asked_for_blocks(
    backend, block
):
    xp = backends.get(backend)
    evaluated = []

    def watched(X, Y, length):
        evaluated.append(X.shape[0] * Y.shape[0])
        return gaussian(X, Y, length)

    n = 48
    X = np.random.default_rng(0).standard_normal((n, 2))
    length = xp.asarray(0.7, dtype=xp.float64)
    K = co.PSD(Kernel(watched, xp.asarray(X), parameters=(length,), block=block))
    A = K + 0.1 * co.Identity(n)
    dense, b = gaussian(X, X, 0.7) + 0.1 * np.eye(n), np.ones(n)
    runs = {
        "solve": lambda: co.solve(A, xp.asarray(b), co.CG(tol=1e-10)),
        "both": lambda: co.solve_and_logdet(A, xp.asarray(b), co.SLQ(probes=2))[0],
        "logdet": lambda: co.logdet(A, co.SLQ(probes=2)),
        "eig": lambda: co.eig(A, 1, "LA", co.Lanczos())[0],
    }
    found = {}
    for name, run in runs.items():
        evaluated.clear()
        found[name] = run()
        if backend != "jax":  # which calls it once for a program, however often that runs
            assert (sum(evaluated) <= 3 * n * n) == (block is None), name
    for name, expected in (
        ("solve", np.linalg.solve(dense, b)),
        ("eig", np.linalg.eigvalsh(dense)[-1:]),
    ):
        np.testing.assert_allclose(xp.to_numpy(found[name]), expected, rtol=1e-7)
    text = str(co.explain(co.solve, A, method=co.CG()))
    assert ("with the kernels stored" in text) == (block is None)


def test_a_stored_kernel_leaves_derivatives_as_they_are():
    X = torch.tensor(np.random.default_rng(0).standard_normal((30, 2)))
    length = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    b = torch.ones(30, dtype=torch.float64)

    def value(K):
        A = co.PSD(K) + 0.1 * co.Identity(30)
        return co.solve(A, b, co.CG(tol=1e-12)).sum()

    of_kernel, of_matrix = (
        torch.autograd.grad(value(K), length)[0]
        for K in (Kernel(gaussian, X, parameters=(length,)), co.Dense(gaussian(X, X, length)))
    )
    np.testing.assert_allclose(of_kernel.numpy(), of_matrix.numpy(), rtol=1e-8)


def test_backward_through_a_kernel_keeps_no_blocks():
    X = torch.randn(60, 2, dtype=torch.float64)
    length = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    K = Kernel(gaussian, X, parameters=(length,), block=5)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: kept.append(t.numel()) or t, lambda t: t
    ):
        y = K @ torch.ones(60, dtype=torch.float64)
    assert max(kept, default=0) < 5 * 60
    y.sum().backward()
    expected = torch.autograd.grad(gaussian(X, X, length).sum(), length)[0]
    close(length.grad, expected.numpy())


def test_kernel_gradients_in_jax_keep_no_blocks():
    X = jax.numpy.asarray(np.random.default_rng(0).standard_normal((64, 2)))

    def value(length):
        return (Kernel(gaussian, X, parameters=(length,), block=4) @ jax.numpy.ones(64)).sum()

    close(jax.grad(value)(0.5), jax.grad(lambda length: gaussian(X, X, length).sum())(0.5))
    # What the backward pass is handed holds nothing of the size of all blocks.
    _, pull = jax.vjp(value, 0.5)
    assert max(leaf.size for leaf in jax.tree_util.tree_leaves(pull)) < 64 * 64


def test_kernel_with_nested_parameters_and_operators():
    X = torch.ones(3, 2, dtype=torch.float64)
    scale, weights = (
        torch.tensor([2.0], dtype=torch.float64),
        Diagonal(torch.tensor([1.0, 3.0], dtype=torch.float64)),
    )
    K = Kernel(
        lambda X, Y, p, A: p["scale"] * (X @ (A @ Y.T)), X, parameters=({"scale": scale}, weights)
    )
    close(K.to_dense(), np.full((3, 3), 8.0))
    assert len(list(K.leaves())) == 3


def test_kernel_refuses_what_does_not_fit():
    X = np.ones((3, 2))
    with pytest.raises(ShapeError, match=r"x\[:, None\]"):
        Kernel(gaussian, np.ones(3))
    with pytest.raises(ShapeError, match="coordinates"):
        Kernel(gaussian, X, np.ones((3, 1)))
    with pytest.raises(ValueError, match="block"):
        Kernel(gaussian, X, block=0)
    with pytest.raises(TypeError, match="function"):
        Kernel(X, X)
    with pytest.raises(TypeError, match=r"parameters=\(theta,\)"):
        Kernel(gaussian, X, parameters=np.ones(3))
    with pytest.raises(ShapeError, match="must give"):
        Kernel(lambda X, Y: X, X) @ np.ones(3)
    with pytest.raises(BackendError):
        Kernel(gaussian, X, parameters=(torch.ones(()),))
    assert (Kernel(bell, np.ones((0, 2)), X, parameters=(1.0,)) @ np.ones(3)).shape == (0,)


@everywhere
@pytest.mark.parametrize("block", [None, 2])
def test_a_batch_of_parameters_makes_a_batch_of_kernels(backend, block):
    xp, rng = backends.get(backend), np.random.default_rng(0)
    x, y, length = (
        rng.standard_normal((5, 2)),
        rng.standard_normal((4, 2)),
        np.array([0.5, 1.0, 2.0]),
    )
    dense = gaussian(x, y, length[:, None, None])
    K = Kernel(
        gaussian,
        xp.asarray(x),
        xp.asarray(y),
        parameters=(xp.asarray(length)[:, None, None],),
        block=block,
    )
    assert K.shape == (3, 5, 4) and K.T.shape == (3, 4, 5)
    close(K.to_dense(), dense)
    close(K.T.to_dense(), dense.swapaxes(-1, -2))
    for shape in ((4, 2), (3, 4, 2), (6, 1, 4, 1)):
        V = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
        close(K @ xp.asarray(V), dense @ V)
    close(co.diag(K), np.diagonal(dense, axis1=-2, axis2=-1))


@everywhere
def test_a_kernel_says_at_once_how_batches_of_parameters_are_written(backend):
    xp = backends.get(backend)
    X, length = xp.ones((3, 2), dtype=xp.float64), xp.ones(3, dtype=xp.float64)
    with pytest.raises(
        ShapeError, match=r"it gave a \w+ array of shape \(1, 3\).*theta\[:, None, None\]"
    ):
        Kernel(gaussian, X, parameters=(length,))
    with pytest.raises(ShapeError, match="one batch at a time"):
        Kernel(gaussian, X[None], parameters=(length[:, None, None],))
    with pytest.raises(ShapeError, match="it gave a float"):
        Kernel(lambda X, Y: 1.0, X)


def test_complex_entries_of_real_points_are_known():
    K = Kernel(lambda X, Y: np.exp(1j * X @ Y.T), np.array([[0.0], [1.0]]))
    assert K.is_complex and K.conj() is not K
    close(K.H.to_dense(), K.to_dense().conj().T)


# ---------------------------------------------------------------------- Jacobian, Hessian, GaussNewton


@differentiable
def test_derivatives_of_points_of_any_shape(backend):
    xp = backends.get(backend)
    x = xp.asarray(np.arange(6.0).reshape(2, 3))
    J = Jacobian(lambda x: x.sum(0) ** 2, x)
    assert J.shape == (3, 6)
    close(J.to_dense(), np.tile(np.diag([6.0, 10, 14]), 2))
    H = Hessian(lambda x: (x**3).sum(), x)
    close(H.to_dense(), 6 * np.diag(np.arange(6.0)))
    G = GaussNewton(
        lambda x: {"a": x[0] ** 2, "b": x[1]}, lambda y: (y["a"] ** 2).sum() + y["b"].sum(), x
    )
    close(G.to_dense(), np.diag([0.0, 8, 32, 0, 0, 0]))


@differentiable
def test_jacobian_of_complex_outputs_of_real_points(backend):
    xp = backends.get(backend)
    w = np.random.default_rng(0).standard_normal((4, 3))
    J = Jacobian(
        lambda x, W: xp.exp(1j * xp.matmul(W, x)),
        xp.asarray(np.array([0.1, 0.2, 0.3])),
        parameters=(xp.asarray(w),),
    )
    dense = 1j * np.exp(1j * w @ [0.1, 0.2, 0.3])[:, None] * w
    assert J.dtype == xp.complex128
    close(J.to_dense(), dense)
    y = np.array([1, 1j, 2 - 1j, 0.5])
    close(J.H @ xp.asarray(y), dense.conj().T @ y)
    close(J.T @ xp.asarray(y), dense.T @ y)


def test_derivatives_refuse_numpy_and_functions_that_have_none():
    with pytest.raises(BackendError, match="NumPy"):
        Jacobian(np.sin, np.ones(3))
    with pytest.raises(BackendError, match="MatrixFree"):
        Hessian(np.sum, [1.0, 2.0])
    x = torch.ones(3)
    with pytest.raises(ShapeError, match="one number, it gave 3"):
        Hessian(torch.sin, x)
    with pytest.raises(ShapeError, match="one number"):
        GaussNewton(torch.sin, torch.sin, x)
    with pytest.raises(DtypeError, match="holomorphic"):
        Jacobian(torch.abs, x + 1j)
    with pytest.raises(DtypeError, match="real"):
        GaussNewton(torch.sin, torch.sum, x + 1j)
    with pytest.raises(DtypeError, match="floating"):
        Jacobian(lambda x: x > 0, x)
    with pytest.raises(TypeError, match="function"):
        Jacobian(x, x)


def test_jacobian_of_a_model_gives_gradients_of_its_weights():
    model = torch.nn.Linear(3, 2, dtype=torch.float64)
    weights = dict(model.named_parameters())
    inputs = torch.randn(5, 3, dtype=torch.float64)
    J = Jacobian(
        lambda w, inputs: torch.tanh(torch.func.functional_call(model, w, (inputs,))),
        weights,
        parameters=(inputs,),
    )
    assert J.shape == (10, 8)
    (J @ torch.ones(8, dtype=torch.float64)).sum().backward()
    assert model.weight.grad is not None and torch.isfinite(model.weight.grad).all()


# ---------------------------------------------------------------------- MatrixFree


def test_numpy_asks_for_rmatmat_when_the_adjoint_is_needed():
    A = MatrixFree(lambda X: 2 * X, (3, 3))
    close(A @ np.ones(3), 2 * np.ones(3))
    with pytest.raises(BackendError, match="rmatmat="):
        A.H @ np.ones(3)
    with pytest.raises(BackendError, match="rmatmat="):
        A.T @ np.ones(3)
    B = SelfAdjoint(A)
    close(B.H @ np.ones(3), 2 * np.ones(3))


@everywhere
def test_matrix_free_without_a_home_takes_it_from_what_it_multiplies(backend):
    xp = backends.get(backend)
    A = MatrixFree(lambda X: 2 * X[..., :2, :], (2, 3), rmatmat=None)
    assert A.is_neutral
    product = A @ xp.ones((3,), dtype=xp.float32)
    assert product.dtype == xp.float32 and backends.namespace_of(product) is xp
    if backend != "numpy":
        close(A.H @ xp.ones((2,), dtype=xp.float32), [2.0, 2, 0], "float32")
        assert (A + Dense(xp.ones((2, 3), dtype=xp.float32))).dtype == xp.float32
    like = MatrixFree(lambda X: X, (3, 3), like=xp.ones((1,), dtype=xp.float32))
    assert like.backend == backend and like.dtype == xp.float32


def test_matrix_free_checks_what_its_function_gives():
    with pytest.raises(ShapeError, match=r"must give shape \(3, 1\)"):
        MatrixFree(lambda X: X[:2], (3, 3)) @ np.ones(3)
    with pytest.raises(DtypeError, match="complex"):
        MatrixFree(lambda X: 1j * X, (3, 3), dtype=np.float64) @ np.ones(3)
    with pytest.raises(ShapeError, match="shape must be"):
        MatrixFree(np.sin, (3,))
    with pytest.raises(TypeError, match="matmat"):
        MatrixFree(None, (3, 3))
    with pytest.raises(TypeError, match="rmatmat"):
        MatrixFree(np.sin, (3, 3), rmatmat=3)
    with pytest.raises(BackendError, match="like="):
        MatrixFree(multiply, (3, 3), like="torch", parameters=(np.eye(3),))


def test_matrix_free_names_what_its_function_gave_and_should_have_given():
    x = np.ones(3)
    with pytest.raises(
        BackendError, match="must give an array of numpy, it gave an array of torch"
    ):
        MatrixFree(torch.from_numpy, (3, 3), like="numpy") @ x
    with pytest.raises(BackendError, match=r"numpy block of shape .* it gave a list"):
        MatrixFree(lambda X: X.tolist(), (3, 3)) @ x
    with pytest.raises(
        BackendError, match="must give an array of torch, it gave an array of numpy"
    ):
        MatrixFree(lambda X: X.numpy(), (3, 3), like="torch") @ torch.ones(3)
    with pytest.raises(
        DtypeError, match="dtype float64 must give floating-point numbers, it gave int64"
    ):
        MatrixFree(lambda X: X.astype(int), (3, 3)) @ x


@everywhere
def test_functions_of_real_operators_are_given_real_blocks(backend):
    xp, kinds = backends.get(backend), []
    W = np.array([[2.0, -0.5, 0.0], [0.75, 3.0, 1.0], [0.0, -1.0, 4.0]])
    w = xp.asarray(W)

    def multiply(X):
        kinds.append(xp.is_complex(X))
        return w @ X

    A = MatrixFree(multiply, (3, 3), rmatmat=lambda X: w.T @ X, like=w)
    z = np.array([1.0, 2j, 3 - 1j])
    close(A @ xp.asarray(z), W @ z)
    close(A.H @ xp.asarray(z), W.T @ z)
    close(A @ xp.asarray(np.stack([z, 1j * z], -1)), W @ np.stack([z, 1j * z], -1))
    close(co.solve(A, xp.asarray(z), co.GMRES(tol=1e-12)), np.linalg.solve(W, z))
    if backend != "jax":  # a matter of compilation alone
        values = co.eig(A, 2, "LM", co.Arnoldi())[0]
        close(np.sort(np.abs(np.asarray(values))), np.sort(np.abs(np.linalg.eigvals(W)))[1:])
        root = co.sqrt(A, co.Krylov(tol=1e-10))
        close(root @ (root @ xp.asarray(z)), W @ z)
    assert not any(kinds)


@differentiable
def test_derivatives_of_real_functions_multiply_complex_blocks(backend):
    xp = backends.get(backend)
    x, z = xp.asarray(np.array([1.0, 2.0])), np.array([1 + 1j, 2 - 3j])
    w = xp.asarray(np.eye(2))
    for A in (
        Jacobian(lambda x: w @ x**2, x),
        Hessian(lambda x: ((w @ x) ** 3).sum(), x),
        GaussNewton(lambda x: w @ x**2, lambda y: (y**2).sum(), x),
        Kernel(lambda X, Y: X @ Y.T, w),
    ):
        close(A @ xp.asarray(z), np.asarray(A.to_dense()) @ z)
        close(A.H @ xp.asarray(z), np.asarray(A.to_dense()).T @ z)


def test_scipy_solvers_take_matrix_free_operators():
    from scipy.sparse.linalg import cg

    A = SelfAdjoint(MatrixFree(lambda X: np.arange(1.0, 6)[:, None] * X, (5, 5)))
    x, failed = cg(A, np.ones(5))
    assert not failed
    close(x, 1 / np.arange(1.0, 6), "float32")
