"""Every name of the backends means the same in NumPy, torch and JAX: against NumPy and SciPy, plain, batched and traced."""

from __future__ import annotations

import importlib
import subprocess
import sys
import timeit
import warnings
from functools import partial

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse

from colinear import backends
from colinear.operators.sparse import SparseStructure

pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning"
)

DTYPES = ["float32", "float64", "complex64", "complex128"]
BATCHES = [(), (3,), (11,), (2, 1), (0,)]


def cases(name, values):
    """Parametrise by backend, dtype, batch shape and one more; in JAX, which compiles for each, vary one at a time."""
    chosen = [
        pytest.param(backend, value, batch, dtype, id=f"{backend}-{value}-{batch}-{dtype}")
        for backend in ("numpy", "torch", "jax")
        for value in values
        for batch in BATCHES
        for dtype in DTYPES
        if backend != "jax" or batch != (11,)
        if backend != "jax"
        or (value != values[-1]) + (batch != (3,)) + (dtype != "complex128") <= 1
    ]
    return pytest.mark.parametrize(f"xp, {name}, batch, dtype", chosen, indirect=["xp"])


def right_sides(xp, n, batch, dtype):
    """Right sides that fit, that broadcast, and that have more dimensions than the matrix."""
    every = (
        draw(n, 2, dtype=dtype),
        draw(*batch, n, 2, dtype=dtype),
        draw(4, *batch, n, 1, dtype=dtype),
    )
    # in JAX one of them: each is compiled
    return every if xp.name != "jax" else every[(n + len(batch)) % 3 :][:1]


def jit(xp, f):
    """Compile in JAX, once for all of `f`."""
    if xp.name != "jax":
        return f
    import jax

    return jax.jit(f)


def enable_x64(jax, on):
    return (
        jax.enable_x64(on)
        if hasattr(jax, "enable_x64")
        else importlib.import_module("jax.experimental").enable_x64(on)
    )


@pytest.fixture(params=["numpy", "torch", "jax"])
def xp(request):
    pytest.importorskip(request.param)
    if request.param == "jax":
        import jax

        with enable_x64(jax, True):
            yield backends.get("jax")
    else:
        yield backends.get(request.param)


@pytest.fixture
def torch_xp():
    pytest.importorskip("torch")
    return backends.get("torch")


@pytest.fixture
def jax_xp():
    jax = pytest.importorskip("jax")
    with enable_x64(jax, True):
        yield backends.get("jax")


def draw(*shape, dtype="float64", seed=0):
    rng = np.random.default_rng([seed, *shape])
    x = rng.standard_normal(shape)
    if dtype.startswith("complex"):
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def well_conditioned(*shape, dtype, seed=0):
    return draw(*shape, dtype=dtype, seed=seed) + 3 * np.eye(shape[-1], dtype=dtype)


def adjoint(A):
    return np.swapaxes(A, -1, -2).conj()


def close(xp, got, expected, dtype, factor=2e3):
    got, expected = (
        backends.namespace_of(x).to_numpy(x) if backends.is_array(x) else np.asarray(x)
        for x in (got, expected)
    )
    assert got.shape == expected.shape
    tolerance = factor * np.finfo(dtype).eps
    np.testing.assert_allclose(
        got, expected, rtol=tolerance, atol=tolerance * max(1, np.abs(expected).max(initial=0))
    )


# the modules -------------------------------------------------------------------------------------------------------


def test_every_backend_has_every_name(xp):
    assert [name for name in backends.NAMES if not hasattr(xp, name)] == []


def test_importing_the_backends_imports_numpy_alone():
    code = "import sys, colinear.backends; assert not {'torch', 'jax', 'scipy.linalg', 'scipy.sparse'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_namespaces_are_found_by_type_and_scalars_have_none(xp):
    assert backends.namespace_of(xp.zeros(3)) is xp
    assert backends.namespace_of(xp.zeros(3)) is backends.get(xp.name)
    for x in (1, 2.0, 3j, [1.0], "a", None, np.float64(2)):
        assert backends.namespace_of(x) is None


def test_subclasses_and_traced_arrays_have_the_namespace_of_their_framework(torch_xp, jax_xp):
    import jax
    import torch

    assert backends.namespace_of(torch.nn.Parameter(torch.ones(2))) is torch_xp
    assert backends.namespace_of(torch.nn.Linear(1, 1)) is None
    seen = []
    torch.func.vmap(lambda x: seen.append(backends.namespace_of(x)) or x)(torch.ones(2))
    jax.jit(lambda x: seen.append(backends.namespace_of(x)))(1.0)
    assert seen == [torch_xp, jax_xp]
    assert backends.namespace_of(jax.nn.relu) is None


def test_namespace_of_takes_well_under_a_microsecond():
    x = np.ones(2)
    assert (
        min(timeit.repeat(lambda: backends.namespace_of(x), number=10_000, repeat=5)) / 10_000
        < 5e-7
    )


def test_unknown_and_missing_backends_are_named():
    with pytest.raises(ValueError, match="no backend 'cupy'"):
        backends.get("cupy")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from colinear import backends\n"
        "try: backends.get('torch')\n"
        "except ImportError as e: assert 'colinear[torch]' in str(e), e\n"
        "else: raise AssertionError"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_callbacks_run_for_backends_loaded_before_and_after():
    code = (
        "from colinear import backends; seen = []\n"
        "backends.on_load(lambda xp: seen.append(xp.name)); backends.get('torch'); backends.get('torch')\n"
        "assert seen == ['numpy', 'torch'] == [xp.name for xp in backends.loaded()]"
    )
    pytest.importorskip("torch")
    subprocess.run([sys.executable, "-c", code], check=True)


# dtypes ------------------------------------------------------------------------------------------------------------


def test_dtypes_have_names_kinds_and_precisions(xp):
    for name in ["float16", *DTYPES]:
        dtype = xp.dtype_from(name)
        assert (
            dtype == getattr(xp, name)
            and xp.dtype_name(dtype) == name
            and xp.dtype_from(dtype) == dtype
        )
        assert (
            xp.is_complex(dtype)
            == xp.is_complex(xp.zeros(2, dtype=dtype))
            == name.startswith("complex")
        )
        assert xp.is_floating(dtype) and xp.eps(dtype) == np.finfo(name).eps
    assert not xp.is_floating(xp.arange(3)) and not xp.is_floating(xp.bool)
    assert xp.real_dtype(xp.complex64) == xp.float32 == xp.real_dtype(xp.float32)
    assert (
        xp.complex_dtype(xp.float64) == xp.complex128
        and xp.complex_dtype(xp.float16) == xp.complex64
    )


def test_scalars_do_not_widen_arrays(xp):
    x = xp.zeros(2, dtype=xp.float32)
    assert (
        xp.result_type(x, 2.0)
        == xp.result_type(x, 2)
        == xp.result_type(xp.float32, 1.5)
        == xp.float32
    )
    assert xp.result_type(x, 1j) == xp.complex64
    assert xp.result_type(x, xp.float64) == xp.float64 == xp.result_type(xp.float32, xp.float64)
    assert xp.result_type(xp.float64, xp.complex64) == xp.complex128


def test_jax_without_64_bits_neither_warns_nor_fails(jax_xp):
    import jax

    with enable_x64(jax, False):
        assert jax_xp.default_float() == jax_xp.float32 == jax_xp.zeros(2, dtype="float64").dtype
        assert jax_xp.asarray(np.ones(2)).dtype == jax_xp.float32
        L, ok = jax_xp.cholesky(jax_xp.eye(3, dtype="float64"))
        assert ok and L.dtype == jax_xp.float32


# arrays ------------------------------------------------------------------------------------------------------------


def test_arrays_are_made_and_seen(xp):
    assert xp.to_numpy(xp.full((2, 3), 7.0, dtype=xp.float32)).tolist() == [[7.0] * 3] * 2
    assert xp.to_numpy(xp.arange(2, 5)).tolist() == [2, 3, 4] and xp.eye(2, 3).shape == (2, 3)
    frozen = np.arange(3.0)[::-1]
    frozen.flags.writeable = False
    assert xp.to_numpy(xp.asarray(frozen)).tolist() == [2, 1, 0]
    x = xp.asarray([1.0, 2.0])
    assert xp.peek(x).tolist() == [1, 2] and not xp.is_traced(x)
    assert xp.to_device(x, xp.device_of(x)).shape == (2,)
    with pytest.raises(TypeError, match="would lose its imaginary part"):
        xp.astype(xp.asarray([1 + 0j]), xp.float32)
    changed = xp.set_at(x, (slice(0, 1),), 5.0)
    assert xp.to_numpy(changed).tolist() == [5, 2] and xp.to_numpy(x).tolist() == [1, 2]


ELEMENTWISE = "abs conj real imag exp sqrt sin cos sign isfinite isnan angle".split()


@pytest.mark.parametrize("name", ELEMENTWISE)
@pytest.mark.parametrize("dtype", DTYPES)
def test_elementwise_functions_agree_with_numpy(xp, name, dtype):
    x = draw(4, 3, dtype=dtype)
    if name == "sqrt" and not dtype.startswith("complex"):
        x = np.abs(x)
    close(xp, getattr(xp, name)(xp.asarray(x)), getattr(np, name)(x), dtype)


def test_binary_functions_take_scalars(xp):
    x = xp.asarray([-1.0, 2.0])
    assert xp.to_numpy(xp.maximum(x, 0.0)).tolist() == [0, 2] and xp.to_numpy(
        xp.minimum(0.0, x)
    ).tolist() == [-1, 0]
    assert xp.to_numpy(xp.where(x > 0, x, 0.0)).tolist() == [0, 2]


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_take_axes(xp, axis, keepdims):
    x = draw(2, 3, 4)
    for name in "sum prod max min mean".split():
        if name == "prod" and not isinstance(axis, int):  # one axis at a time
            continue
        close(
            xp,
            getattr(xp, name)(xp.asarray(x), axis=axis, keepdims=keepdims),
            getattr(np, name)(x, axis=axis, keepdims=keepdims),
            "float64",
        )
    for name in "any all".split():
        got = getattr(xp, name)(xp.asarray(x > 0), axis=axis, keepdims=keepdims)
        assert np.array_equal(
            xp.to_numpy(got), getattr(np, name)(x > 0, axis=axis, keepdims=keepdims)
        )
    close(
        xp,
        xp.vector_norm(xp.asarray(x), axis=axis, keepdims=keepdims),
        np.linalg.vector_norm(x, axis=axis, keepdims=keepdims),
        "float64",
    )


def test_shapes_and_orders_agree_with_numpy(xp):
    x = draw(2, 3, 3)
    y = xp.asarray(x)
    index = np.array([2, 0, -1])
    for got, expected in [
        (xp.argmax(y, axis=1), np.argmax(x, axis=1)),
        (xp.argsort(y, axis=-1), np.argsort(x, axis=-1)),
        (xp.sort(y, axis=0), np.sort(x, axis=0)),
        (xp.cumsum(y, axis=1), np.cumsum(x, axis=1)),
        (xp.reshape(y, (3, -1)), x.reshape(3, -1)),
        (xp.expand_dims(y, 1), x[:, None]),
        (xp.squeeze(y[:1], 0), x[0]),
        (xp.moveaxis(y, 0, -1), np.moveaxis(x, 0, -1)),
        (xp.broadcast_to(y, (4, 2, 3, 3)), np.broadcast_to(x, (4, 2, 3, 3))),
        (xp.concat([y, y], axis=1), np.concat([x, x], axis=1)),
        (xp.pad(y, 1, 2, -2), np.pad(x, ((0, 0), (1, 2), (0, 0)))),
        (xp.pad(y, 0, 1, 0), np.pad(x, ((0, 1), (0, 0), (0, 0)))),
        (xp.pad(y, 0, 0, -1), x),
        (xp.stack([y, y], axis=-1), np.stack([x, x], axis=-1)),
        (xp.flip(y, axis=1), np.flip(x, axis=1)),
        (xp.roll(y, 1, axis=-1), np.roll(x, 1, axis=-1)),
        (xp.take(y, index, axis=1), np.take(x, index, axis=1)),
        (xp.take_along_axis(y, xp.argsort(y, axis=-1), axis=-1), np.sort(x)),
        (xp.tril(y, -1), np.tril(x, -1)),
        (xp.triu(y, 1), np.triu(x, 1)),
        (xp.diagonal(y, 1), np.diagonal(x, 1, -2, -1)),
        (xp.make_diagonal(y), np.eye(3) * x[..., None]),
        (xp.matrix_transpose(y), x.swapaxes(-1, -2)),
        (xp.vecdot(y, y * 1j, axis=-2), np.vecdot(x, x * 1j, axis=-2)),
        (xp.einsum("bij,bjk->ik", y, y), np.einsum("bij,bjk->ik", x, x)),
    ]:
        close(xp, got, expected, "float64")


def test_matmul_promotes_and_treats_vectors_as_numpy_does(xp):
    A, B = draw(2, 3, 4), draw(4, 5, dtype="complex64")
    close(xp, xp.matmul(xp.asarray(A), xp.asarray(B)), A @ B, "float32")
    close(xp, xp.matmul(xp.asarray(A), xp.asarray(B[:, 0])), A @ B[:, 0], "float32")
    assert xp.matmul(xp.asarray(A), xp.asarray(B)).dtype == xp.complex128


@pytest.mark.parametrize("dtype", [*DTYPES, "float16"])
def test_fourier_transforms_agree_with_numpy(xp, dtype):
    x = draw(2, 3, 4, 5, 2, dtype=dtype)
    wide = x.astype(np.result_type(dtype, "complex64"))
    close(xp, xp.fft(xp.asarray(x), axis=1), np.fft.fft(wide, axis=1), dtype)
    close(xp, xp.ifft(xp.asarray(x), axis=-1), np.fft.ifft(wide, axis=-1), dtype)
    close(
        xp, xp.fftn(xp.asarray(x), axes=(0, 1, 2, 3)), np.fft.fftn(wide, axes=(0, 1, 2, 3)), dtype
    )
    close(xp, xp.ifftn(xp.asarray(x)), np.fft.ifftn(wide), dtype)
    if "float" in dtype:
        real = xp.asarray(x)
        close(
            xp, xp.rfftn(real, axes=(1, 2)), np.fft.rfftn(x.astype("float64"), axes=(1, 2)), dtype
        )
        close(xp, xp.irfftn(xp.rfftn(real, axes=(1, 3)), (3, 5), axes=(1, 3)), x, dtype)


# linear algebra ----------------------------------------------------------------------------------------------------

sizes = cases("n", [0, 1, 5])
dtypes = pytest.mark.parametrize("dtype", DTYPES)


@sizes
def test_cholesky_factors_and_reports(xp, n, batch, dtype):
    A = well_conditioned(*batch, n, n, dtype=dtype)
    A = A @ adjoint(A)
    L, ok = xp.cholesky(xp.asarray(A))
    assert ok.shape == batch and xp.all(ok) and L.dtype == getattr(xp, dtype)
    L = xp.to_numpy(L)
    close(xp, L @ adjoint(L), A, dtype)
    assert np.array_equal(L, np.tril(L))


def test_cholesky_marks_the_indefinite_and_the_nan_of_a_batch(xp):
    A = np.stack([np.eye(2), -np.eye(2), np.full((2, 2), np.nan)])
    L, ok = xp.cholesky(xp.asarray(A))
    assert xp.to_numpy(ok).tolist() == [True, False, False]
    assert np.array_equal(xp.to_numpy(L[0]), np.eye(2)) and np.isnan(xp.to_numpy(L[1:])).all()
    for bad in A[1:]:
        L, ok = xp.cholesky(xp.asarray(bad))
        assert not ok and np.isnan(xp.to_numpy(L)).all()


@sizes
def test_lu_solves_with_the_matrix_and_its_adjoint(xp, n, batch, dtype):
    A = well_conditioned(*batch, n, n, dtype=dtype)
    LU, pivots = xp.lu_factor(xp.asarray(A))
    perm, sign = map(xp.to_numpy, (xp.lu_permutation(pivots, n), xp.lu_parity(pivots)))
    packed = xp.to_numpy(LU)
    L, U = np.tril(packed, -1) + np.eye(n), np.triu(packed)
    close(xp, L @ U, np.take_along_axis(A, perm[..., None], -2), dtype)
    determinant = sign * np.diagonal(U, 0, -2, -1).prod(-1)
    close(xp, determinant, np.linalg.det(A), dtype)
    for right in right_sides(xp, n, batch, dtype):
        for options, M in [
            ({}, A),
            ({"adjoint": True}, adjoint(A)),
        ]:
            X = jit(xp, partial(xp.lu_solve, **options))(LU, pivots, xp.asarray(right))
            assert X.dtype == getattr(xp, dtype)
            X = xp.to_numpy(X)
            close(xp, M @ X, np.broadcast_to(right, X.shape), dtype)


@sizes
def test_ldl_solves_indefinite_systems(xp, n, batch, dtype):
    Q = np.linalg.qr(draw(*batch, n, n, dtype=dtype))[0]
    A = (Q * np.linspace(-2, 3, n).astype(dtype)) @ adjoint(Q)
    A = (A + adjoint(A)) / 2
    B = draw(n, 2, dtype=dtype)
    factors = xp.ldl_factor(xp.asarray(A))
    X = xp.to_numpy(xp.ldl_solve(*factors, xp.asarray(B)))
    close(xp, A @ X, np.broadcast_to(B, X.shape), dtype)
    for got, expected in zip(xp.ldl_slogdet(factors), np.linalg.slogdet(A), strict=True):
        close(xp, got, expected.real, dtype)


def test_ldl_slogdet_knows_blocks_of_size_two(xp):
    A = scipy.linalg.block_diag(
        [[0, 2.0], [2, 0]], [[1.0]], [[0, -3.0], [-3, 0]], [[0, 1.0], [1, 0]]
    )
    sign, logdet = xp.ldl_slogdet(xp.ldl_factor(xp.asarray(A)))
    close(xp, sign, np.linalg.slogdet(A)[0], "float64")
    close(xp, logdet, np.linalg.slogdet(A)[1], "float64")


@cases("shape", [(0, 0), (3, 0), (0, 3), (3, 5), (5, 3)])
def test_orthogonal_factorisations(xp, shape, batch, dtype):
    m, n = shape
    A = draw(*batch, m, n, dtype=dtype)
    X = xp.asarray(A)
    Q, R = map(xp.to_numpy, xp.qr(X))
    close(xp, Q @ R, A, dtype)
    close(
        xp,
        adjoint(Q) @ Q,
        np.broadcast_to(np.eye(min(m, n)), (*batch, min(m, n), min(m, n))),
        dtype,
    )
    Q, R, perm = map(xp.to_numpy, xp.qr_pivoted(X))
    close(xp, Q @ R, np.take_along_axis(A, perm[..., None, :], -1), dtype)
    assert np.array_equal(np.sort(perm, -1), np.broadcast_to(np.arange(n), perm.shape))
    U, s, Vh = map(xp.to_numpy, xp.svd(X))
    close(xp, (U * s[..., None, :]) @ Vh, A, dtype)
    assert xp.svd(X, full_matrices=True)[2].shape == (*batch, n, n)


@dtypes
def test_pivoted_qr_shows_the_rank_and_agrees_with_lapack(xp, dtype):
    A = draw(8, 3, dtype=dtype) @ draw(3, 6, dtype=dtype, seed=1)
    _, R, perm = map(xp.to_numpy, xp.qr_pivoted(xp.asarray(A)))
    d = np.abs(np.diag(R))
    assert (d[:3] > 0.1).all() and (d[3:] < 1e2 * np.finfo(dtype).eps * d[0]).all()
    assert perm[:3].tolist() == scipy.linalg.qr(A, pivoting=True)[2][:3].tolist()


@dtypes
@pytest.mark.parametrize("xp", ["numpy", "torch"], indirect=True)  # JAX has LAPACK's
def test_pivot_order_without_lapack_is_the_same(xp, dtype):
    from colinear.backends.shared import pivot_order

    A = draw(2, 7, 5, dtype=dtype)
    expected = np.stack([scipy.linalg.qr(M, pivoting=True)[2] for M in A])
    assert np.array_equal(xp.to_numpy(pivot_order(xp, xp.asarray(A))), expected)
    wide = xp.to_numpy(pivot_order(xp, xp.asarray(draw(2, 3, 6, dtype=dtype))))
    assert np.array_equal(np.sort(wide, -1), np.broadcast_to(np.arange(6), (2, 6)))


@sizes
def test_spectral_functions(xp, n, batch, dtype):
    A = draw(*batch, n, n, dtype=dtype)
    H = A + adjoint(A)
    w, V = map(xp.to_numpy, xp.eigh(xp.asarray(H)))
    close(xp, w, np.linalg.eigvalsh(H), dtype)
    close(xp, H @ V, V * w[..., None, :], dtype)
    w, V = xp.eig(xp.asarray(A))
    assert xp.is_complex(w) and xp.is_complex(V)
    w, V = xp.to_numpy(w), xp.to_numpy(V)
    close(xp, A @ V, V * w[..., None, :], dtype)
    close(
        xp,
        xp.eigvals(xp.asarray(A)).sum(-1),
        np.trace(A, axis1=-2, axis2=-1).astype(w.dtype),
        dtype,
    )
    expected = np.empty_like(A)
    for i in np.ndindex(batch):
        expected[i] = scipy.linalg.expm(A[i]) if n else A[i]
    close(xp, xp.expm(xp.asarray(A)), expected, dtype)


def test_expm_of_large_norm_is_not_nan(xp):
    t = 1e6
    A = np.array([[0, t], [-t, 0]])
    close(
        xp,
        xp.expm(xp.asarray(A)),
        [[np.cos(t), np.sin(t)], [-np.sin(t), np.cos(t)]],
        "float64",
        factor=1e10,
    )


def test_values_that_are_not_finite_give_nan_and_leave_the_rest_of_the_batch(xp):
    A = np.stack([np.eye(2), [[np.nan, 0], [0, 1]], [[np.inf, 0], [0, 1]]])
    for function in (
        lambda X: xp.eigh(X)[0],
        lambda X: xp.eig(X)[0],
        xp.eigvals,
        lambda X: xp.svd(X)[1],
        xp.expm,
    ):
        values = xp.to_numpy(function(xp.asarray(A)))
        assert (
            np.isfinite(values[0]).all()
            and not np.isfinite(values[1:]).all(axis=tuple(range(1, values.ndim))).any()
        )
        assert not np.isfinite(xp.to_numpy(function(xp.asarray(A[1])))).all()


@sizes
def test_triangular_solves(xp, n, batch, dtype):
    A = well_conditioned(*batch, n, n, dtype=dtype)
    for lower in (True, False):
        for unit in (True, False):
            T = np.tril(A, -1 if unit else 0) if lower else np.triu(A, 1 if unit else 0)
            T = T / 4 + np.eye(n, dtype=dtype) if unit else T
            # the other triangle, and with it a unit diagonal, is not read
            junk = A + 0 * T if unit else A
            given = np.where(
                np.tri(n, k=-1 if unit else 0, dtype=bool)
                if lower
                else np.tri(n, k=-1 if unit else 0, dtype=bool).T,
                T,
                junk,
            )
            for right in right_sides(xp, n, batch, dtype):
                for options, M in [
                    ({}, T),
                    ({"adjoint": True}, adjoint(T)),
                ]:
                    solve = jit(
                        xp, partial(xp.solve_triangular, lower=lower, unit_diagonal=unit, **options)
                    )
                    X = solve(xp.asarray(given), xp.asarray(right))
                    X = xp.to_numpy(X)
                    assert X.dtype == dtype
                    close(xp, M @ X, np.broadcast_to(right, X.shape), dtype, factor=2e4)


def tridiagonal_parts(n, batch, dtype):
    lower, diag, upper = (
        draw(*batch, max(n - 1, 0), dtype=dtype),
        draw(*batch, n, dtype=dtype) / 10,
        draw(max(n - 1, 0), dtype=dtype, seed=1),
    )
    dense = np.zeros((*batch, n, n), dtype)
    i = np.arange(n)
    dense[..., i, i] = diag
    dense[..., i[1:], i[:-1]] = lower
    dense[..., i[:-1], i[1:]] = upper
    return (lower, diag, upper), dense


@cases("n", [0, 1, 2, 6])
def test_tridiagonal_and_banded_solves_pivot(xp, n, batch, dtype):
    parts, A = tridiagonal_parts(n, batch, dtype)
    B = draw(n, 2, dtype=dtype)
    X = xp.to_numpy(xp.solve_tridiagonal(*map(xp.asarray, parts), xp.asarray(B)))
    close(xp, A @ X, np.broadcast_to(B, X.shape), dtype, factor=1e6)
    l, u = 2, 1
    ab = draw(*batch, l + u + 1, n, dtype=dtype)
    ab[..., u, :] /= 10
    A = np.zeros((*batch, n, n), dtype)
    for j in range(n):
        for i in range(max(0, j - u), min(n, j + l + 1)):
            A[..., i, j] = ab[..., u + i - j, j]
    X = xp.to_numpy(xp.solve_banded(xp.asarray(ab), (l, u), xp.asarray(B)))
    close(xp, A @ X, np.broadcast_to(B, X.shape), dtype, factor=1e6)


@cases("n", [0, 1, 2, 6])
def test_pivots_are_those_of_elimination_without_exchanges(xp, n, batch, dtype):
    (lower, diag, upper), A = tridiagonal_parts(n, batch, dtype)
    for change in (0, 5 * np.ones(n, dtype)):  # indefinite, and positive definite or nearly so
        given = xp.asarray(diag + change), xp.asarray(lower * upper)
        p = xp.tridiagonal_pivots(*given)
        close(xp, p, jit(xp, xp.tridiagonal_pivots)(*given), dtype, factor=1e6)
        p, M = xp.to_numpy(p), A + np.diag(change * np.ones(n, dtype))
        minors = np.stack([np.linalg.det(M[..., :i, :i]) for i in range(n + 1)], axis=-1)
        assert p.dtype == dtype
        close(xp, p * minors[..., :-1], minors[..., 1:], dtype, factor=1e6)


def test_a_pivot_that_is_zero_or_no_number_stays_in_its_matrix(xp):
    d = np.array([[1.0, 2.0, 1.0], [0.0, 2.0, 1.0], [np.nan, 1.0, 1.0], [1.0, 2.0, 1.0]])
    p = xp.to_numpy(xp.tridiagonal_pivots(xp.asarray(d), xp.asarray(0.25 * np.ones(2))))
    np.testing.assert_allclose(p[[0, 3]], [[1, 1.75, 6 / 7]] * 2, rtol=1e-12)
    assert p[1, 0] == 0 and p[1, 1] < -1e290 and p[1, 2] == 1 and np.isnan(p[2]).all()


@pytest.mark.parametrize("sizes", [(5,), (3, 4), (70, 66), (2, 3, 2)])
@pytest.mark.parametrize("is_adjoint", [False, True])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_sums_of_triangles_are_solved(xp, sizes, is_adjoint, dtype):
    T = [np.triu(draw(n, n, dtype=dtype) / n**0.5) + 3 * np.eye(n, dtype=dtype) for n in sizes]
    B = draw(2, int(np.prod(sizes)), 2, dtype=dtype)
    given = tuple(map(xp.asarray, T)), xp.asarray(B)
    solve = partial(xp.solve_triangular_sum, adjoint=is_adjoint)
    X = solve(*given)
    close(xp, X, jit(xp, solve)(*given), dtype)
    grid = xp.to_numpy(X).reshape(2, *sizes, 2)
    product = sum(
        np.moveaxis(np.tensordot(adjoint(M) if is_adjoint else M, grid, (1, i)), 0, i)
        for i, M in enumerate(T, 1)
    )
    close(xp, product.reshape(B.shape), B, dtype)


@pytest.mark.parametrize("is_adjoint", [False, True])
@dtypes
def test_shifted_triangles_are_solved(xp, is_adjoint, dtype):
    if is_adjoint and xp.name != "numpy":
        pytest.skip("it is part of NumPy's alone, for the derivatives of torch's")
    T, R = np.triu(draw(2, 6, 6, dtype=dtype)), draw(2, 6, 3, dtype=dtype)
    T += np.diag(np.arange(6)).astype(dtype)
    places = np.array([[3, 0, 5], [5, 2, 1]])
    solve = partial(xp.solve_shifted, adjoint=True) if is_adjoint else xp.solve_shifted
    given = tuple(map(xp.asarray, (T, places, R)))
    Y, c = map(xp.to_numpy, solve(*given))
    close(xp, Y, jit(xp, solve)(*given)[0], dtype, factor=1e5)
    assert (c == 1).all()
    for b, j in np.ndindex(2, 3):
        p = places[b, j]
        M = T[b, :p, :p] - T[b, p, p] * np.eye(p)
        close(xp, (adjoint(M) if is_adjoint else M) @ Y[b, :p, j], R[b, :p, j], dtype, factor=1e5)
        assert not Y[b, p:, j].any()


def test_shifted_triangles_of_one_eigenvalue_do_not_overflow(xp):
    n = 60
    T, R = np.eye(n) + np.eye(n, k=1), -np.eye(n)[:, [n - 2]]
    given = xp.asarray(T), xp.asarray(np.array([n - 1])), xp.asarray(R)
    Y, c = jit(xp, xp.solve_shifted)(*given)
    assert np.isfinite(xp.to_numpy(Y)).all() and float(c[0]) < 1e-30


@dtypes
def test_linear_recurrences(xp, dtype):
    E, f = draw(2, 13, 3, 3, dtype=dtype) / 3, draw(2, 13, 3, 2, dtype=dtype)
    found, y = xp.to_numpy(xp.linear_recurrence(xp.asarray(E), xp.asarray(f))), 0 * f[:, 0]
    for i in range(13):
        y = E[:, i] @ y + f[:, i]
        close(xp, found[:, i], y, dtype)


def test_exactly_singular_bands_give_no_number(xp):
    diag, off, B = np.array([[1.0, 1, 1], [1, 0, 1]]), np.zeros(2), np.ones((3, 1))
    X = xp.to_numpy(
        xp.solve_tridiagonal(xp.asarray(off), xp.asarray(diag), xp.asarray(off), xp.asarray(B))
    )
    assert np.array_equal(X[0], B) and not np.isfinite(X[1]).all()
    X = xp.to_numpy(xp.solve_banded(xp.asarray(diag[:, None, :]), (0, 0), xp.asarray(B)))
    assert np.array_equal(X[0], B) and not np.isfinite(X[1]).all()


def test_tridiagonal_solves_of_a_million_unknowns_are_fast(xp):
    n = 1_000_000
    off, diag, B = (
        xp.ones(n - 1, dtype="float64"),
        4 * xp.ones(n, dtype="float64"),
        xp.ones((n, 1), dtype="float64"),
    )
    X = xp.solve_tridiagonal(off, diag, off, B)
    assert abs(float(X[n // 2, 0]) - 1 / 6) < 1e-12


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_half_precision_computes_in_single(xp, half):
    if getattr(xp, half) is None:
        pytest.skip("NumPy has no bfloat16")
    A = well_conditioned(3, 3, dtype="float64")
    S, B = A @ A.T, draw(3, 2)
    a, s, b = (xp.asarray(x, dtype=half) for x in (A, S, B))
    dtype = getattr(xp, half)
    for got in (
        xp.cholesky(s)[0],
        xp.lu_factor(a)[0],
        xp.lu_solve(*xp.lu_factor(a), b),
        xp.ldl_solve(*xp.ldl_factor(s), b),
        xp.qr(a)[0],
        xp.qr_pivoted(a)[1],
        xp.eigh(s)[0],
        xp.svd(a)[1],
        xp.expm(a),
        xp.solve_triangular(a, b),
        xp.solve_tridiagonal(a[0, 1:], s[0], a[1, 1:], b),
        xp.solve_banded(s[:1], (0, 0), b),
        xp.matmul(a, b),
    ):
        assert got.dtype == dtype and bool(xp.all(xp.isfinite(got)))
    assert xp.eig(a)[0].dtype == xp.complex64 == xp.fft(a).dtype
    assert xp.lu_solve(*xp.lu_factor(a), xp.astype(b, "float32")).dtype == xp.float32
    np.testing.assert_allclose(
        xp.to_numpy(xp.lu_solve(*xp.lu_factor(a), b)), np.linalg.solve(A, B), rtol=0.2, atol=0.05
    )


# sparse and scattered ----------------------------------------------------------------------------------------------


def sparse_example(m=7, n=5, dtype="float64"):
    S = scipy.sparse.random_array((m, n), density=0.4, rng=np.random.default_rng(3), format="csr")
    S.sort_indices()
    return SparseStructure(S.indptr, S.indices, S.shape), draw(S.nnz, dtype=dtype)


def densify(data, structure):
    out = np.zeros((*data.shape[:-1], *structure.shape), data.dtype)
    out[..., structure.rows, structure.columns] = data
    return out


@pytest.mark.parametrize("dtype", [*DTYPES, "float16"])
@pytest.mark.parametrize(
    "shapes",
    [
        ((), (5, 3)),
        ((), (5, 1)),
        ((), (4, 5, 2)),
        ((4,), (5, 2)),
        ((2, 1), (3, 5, 2)),
        ((), (5, 0)),
        ((0,), (5, 2)),
    ],
    ids=str,
)
def test_sparse_products_agree_with_dense_ones(xp, dtype, shapes):
    structure, data = sparse_example(dtype=dtype)
    data = data * draw(*shapes[0], 1, dtype=dtype, seed=5)
    X = draw(*shapes[1], dtype=dtype)
    Y = xp.sparse_matmul(xp.asarray(data), structure, xp.asarray(X))
    assert Y.dtype == getattr(xp, dtype)
    close(xp, Y, densify(data, structure) @ X, dtype)


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0), (3, 4)], ids=str)
def test_sparse_products_with_nothing_in_them(xp, shape):
    structure = SparseStructure(np.zeros(shape[0] + 1, int), np.zeros(0, int), shape)
    Y = xp.sparse_matmul(xp.zeros(0), structure, xp.ones((shape[1], 2)))
    assert Y.shape == (shape[0], 2) and not xp.to_numpy(Y).any()


def test_scatter_add_sums_what_meets(xp):
    x, values = draw(2, 4, 3), draw(2, 3, 3, seed=1)
    expected = x.copy()
    for i, place in enumerate([1, 3, 1]):
        expected[:, place] += values[:, i]
    close(
        xp,
        xp.scatter_add(xp.asarray(x), [1, 3, 1], xp.asarray(values), axis=1),
        expected,
        "float64",
    )
    assert (
        xp.scatter_add(xp.zeros(2, dtype="float32"), [0], xp.ones(1, dtype="complex64")).dtype
        == xp.complex64
    )


# random ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", *DTYPES])
def test_random_numbers_have_their_moments_and_repeat(xp, dtype):
    for name, mean, square in [("normal", 0, 1), ("rademacher", 0, 1), ("uniform", 0.5, 1 / 3)]:
        source = getattr(xp, name)
        x = source(xp.generator(7), (100, 200), dtype=dtype)
        assert x.dtype == getattr(xp, dtype) and np.array_equal(
            xp.to_numpy(x), xp.to_numpy(source(xp.generator(7), (100, 200), dtype=dtype))
        )
        x = xp.to_numpy(x).astype(np.result_type(dtype, "float64"))
        is_complex_uniform = name == "uniform" and np.iscomplexobj(x)
        assert abs(x.mean() - mean * (1 + 1j * is_complex_uniform)) < 0.03
        assert abs((np.abs(x) ** 2).mean() - square * (1 + is_complex_uniform)) < 0.03
    if dtype.startswith("complex"):
        signs = xp.to_numpy(xp.rademacher(xp.generator(0), (100,), dtype=dtype))
        assert set(signs.tolist()) == {1, 1j, -1, -1j}


def test_generators_come_from_seeds_of_every_framework_and_split(xp):
    seeds = [3, np.random.default_rng(3)]
    if "torch" in sys.modules:
        seeds.append(sys.modules["torch"].Generator().manual_seed(3))
    if "jax" in sys.modules:
        seeds.append(sys.modules["jax"].random.key(3))
    for seed in seeds:
        a, b, c = xp.split(xp.generator(seed), 3)
        draws = [xp.to_numpy(xp.normal(gen, (5,))) for gen in (a, b, c)]
        assert len({x.tobytes() for x in draws}) == 3


# control, trees, warnings ------------------------------------------------------------------------------------------


def test_loops_and_branches(xp):
    state = xp.while_loop(
        lambda s: s[0] < 5, lambda s: (s[0] + 1, s[1] * 2), (xp.asarray(0), xp.asarray(1.0))
    )
    assert float(state[1]) == 32
    assert float(xp.fori_loop(4, lambda i, s: s + i, xp.asarray(0.0))) == 6
    assert float(xp.cond(xp.asarray(1.0) > 0, lambda x: x, lambda x: -x, xp.asarray(2.0))) == 2
    assert xp.to_numpy(xp.loop_map(lambda x: 2 * x, xp.arange(3))).tolist() == [0, 2, 4]
    assert xp.to_numpy(
        xp.vmap(lambda x, y: x * y)(xp.arange(3), xp.asarray([2, 2, 3]))
    ).tolist() == [0, 2, 6]


def test_trees_are_mapped_through_registered_classes(xp):
    class Pair:
        def __init__(self, a, b, tag):
            self.a, self.b, self.tag = a, b, tag

    xp.register_pytree(
        Pair, lambda p: ((p.a, p.b), p.tag), lambda tag, children: Pair(*children, tag)
    )
    tree = {"x": [Pair(1.0, (2.0, None), "t")]}
    mapped = xp.tree_map(lambda a, b: a + b, tree, tree)["x"][0]
    assert (mapped.a, mapped.b, mapped.tag) == (2.0, (4.0, None), "t")


def test_warnings_come_when_the_predicate_holds(xp):
    xp.warn_later(xp.asarray([False, False]), "never")
    with pytest.warns(RuntimeWarning, match="some"):
        xp.warn_later(xp.asarray([False, True]), "some", category=RuntimeWarning)
    with pytest.warns(RuntimeWarning, match="large"):
        kept = xp.warn_later(
            xp.asarray([2, 1]), "small", "large", category=RuntimeWarning, result="kept"
        )
    assert kept == "kept"


@pytest.mark.parametrize("tied", [True, False], ids=["with the result", "as an effect"])
def test_programs_of_jax_warn_when_they_run(jax_xp, tied):
    """Under every transformation, once for a batch, and of the worst."""
    import jax
    import jax.numpy as jnp

    def f(d):
        x = 1 / d
        which = jnp.where(jnp.isfinite(x), 0, jnp.where(d > 0, 1, 2))
        told = jax_xp.warn_later(which, "one", "zero", result=x if tied else None)
        return told if tied else x

    fine, bad = jnp.ones(3), jnp.asarray([1.0, 0.0, 2.0])
    batch = jnp.stack([fine, bad])
    loss = lambda d: f(d).sum()
    calls = {
        "jit": (jax.jit(f), bad),
        "vmap": (jax.vmap(f), batch),
        "jit of vmap": (jax.jit(jax.vmap(f)), batch),
        "grad": (jax.grad(loss), bad),
        "jit of grad": (jax.jit(jax.grad(loss)), bad),
        "jit of jvp": (jax.jit(jax.jacfwd(loss)), bad),
        "jit of hessian": (jax.jit(jax.hessian(loss)), bad),
        "remat": (jax.jit(jax.grad(jax.checkpoint(loss))), bad),
        "scan": (lambda x: jax.lax.scan(lambda c, d: (c, f(d)), 0.0, x)[1], batch),
    }
    for call, x in calls.values():
        jax.block_until_ready(call(jnp.ones_like(x)))  # no warning, which would be an error
        jax.effects_barrier()
        with pytest.warns(UserWarning, match="zero"):
            jax.block_until_ready(call(x))
            jax.effects_barrier()
    for empty in (jnp.ones(0), jnp.ones((0, 3))):  # of nothing, nothing is wrong
        call = jax.jit(f if empty.ndim == 1 else jax.vmap(f))
        assert call(empty).shape == empty.shape
    with jax.disable_jit(), pytest.warns(UserWarning, match="zero"):
        jax.vmap(f)(batch)
    with warnings.catch_warnings(), pytest.raises(Exception, match="zero"):
        warnings.simplefilter("error")
        jax.block_until_ready(jax.jit(f)(bad))
        jax.effects_barrier()


def test_programs_of_jax_warn_by_a_callback_where_the_interface_of_xla_is_another(
    jax_xp, monkeypatch
):
    import jax

    from colinear.backends.jax import host_warnings

    monkeypatch.setattr(host_warnings, "MAJOR_VERSION", -1)
    f = jax.jit(lambda x: jax_xp.warn_later(x > 1, "large", result=3 * x))
    jax.block_until_ready(f(0.0))
    with pytest.warns(UserWarning, match="large"):
        jax.block_until_ready(f(2.0))
        jax.effects_barrier()


def test_programs_that_warn_are_exported_and_called_as_fast_as_others(jax_xp):
    """No callback is in them: JAX calls none with callbacks on its fast path."""
    import jax
    import jax.export
    import jax.numpy as jnp

    f = jax.jit(lambda x: jax_xp.warn_later(x > 1, "large", result=2 * x))
    lowered = f.lower(1.0)
    assert not lowered.compile()._executable.unsafe_call.has_host_callbacks
    assert not lowered.compile()._executable.unsafe_call.has_unordered_effects
    exported = jax.export.export(f)(jnp.ones(()))
    assert "colinear_warn" not in exported.mlir_module()
    assert exported.call(jnp.full((), 3.0)) == 6


def test_numpy_says_that_it_has_no_derivatives():
    from colinear.errors import BackendError

    xp = backends.get("numpy")
    for call in (
        lambda: xp.jvp(np.sin, 1.0, 1.0),
        lambda: xp.vjp(np.sin, 1.0),
        lambda: xp.linear_transpose(np.sin, 1.0),
    ):
        with pytest.raises(BackendError, match="no automatic differentiation"):
            call()


# tracing -----------------------------------------------------------------------------------------------------------


def test_torch_values_are_seen_under_grad_and_hidden_under_vmap(torch_xp):
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    seen = []
    torch.func.grad(lambda x: (seen.append((torch_xp.peek(x), torch_xp.is_traced(x))), x)[1])(
        torch.tensor(2.0)
    )
    assert seen == [(2.0, False)]
    torch.func.vmap(lambda x: (seen.append((torch_xp.peek(x), torch_xp.is_traced(x))), x)[1])(
        torch.ones(3)
    )
    torch.func.vmap(
        torch.func.grad(lambda x: (seen.append((torch_xp.peek(x), torch_xp.is_traced(x))), x)[1])
    )(torch.ones(3))
    with FakeTensorMode():
        x = torch.ones(3)
        seen.append((torch_xp.peek(x), torch_xp.is_traced(x)))
    x = torch.ones(3, device="meta")
    seen.append((torch_xp.peek(x), torch_xp.is_traced(x)))
    assert seen[1:] == [(None, True)] * 4
    assert torch_xp.peek(torch.ones(2, dtype=torch.complex64).conj() * 1j).tolist() == [1j, 1j]


def test_jax_values_are_hidden_under_jit(jax_xp):
    import jax

    seen = []
    jax.jit(lambda x: seen.append((jax_xp.peek(x), jax_xp.is_traced(x), jax_xp.device_of(x))))(1.0)
    assert seen == [(None, True, None)]


def test_torch_loops_and_branches_follow_each_element_under_vmap(torch_xp):
    import torch

    def collatz(x):
        def step(state):
            x, count = state
            return torch_xp.cond(x % 2 == 0, lambda x: x // 2, lambda x: 3 * x + 1, x), count + 1

        return torch_xp.while_loop(lambda s: s[0] > 1, step, (x, torch.tensor(0)))[1]

    assert torch.func.vmap(collatz)(torch.tensor([1, 6, 7])).tolist() == [0, 8, 16]


def test_torch_sets_draws_and_warns_under_vmap(torch_xp):
    import torch

    out = torch.func.vmap(lambda v: torch_xp.set_at(torch.zeros(3), (slice(1, None),), v))(
        torch.arange(2.0)
    )
    assert out.tolist() == [[0, 0, 0], [0, 1, 1]]
    drawn = torch.func.vmap(
        lambda v: v + torch_xp.normal(torch_xp.split(torch_xp.generator(0))[0], (2,))
    )(torch.zeros(2))
    assert torch.equal(drawn[0], drawn[1])
    with pytest.warns(UserWarning, match="some"):
        torch.func.vmap(lambda v: (torch_xp.warn_later(v > 0, "some"), v)[1])(torch.arange(2.0))


# derivatives -------------------------------------------------------------------------------------------------------

STRUCTURE, DATA = sparse_example()
MATRIX, RIGHT = well_conditioned(4, 4, dtype="float64"), draw(4, 2)

#: name -> (function of xp and some arrays, the arrays)
TRIANGLE = np.triu(draw(4, 4, dtype="complex128")) + 3 * np.eye(4)
DIFFERENTIABLE = {
    "cholesky": (lambda xp, A: xp.cholesky(A @ xp.matrix_transpose(A))[0], [MATRIX]),
    "lu_solve": (lambda xp, A, B: xp.lu_solve(*xp.lu_factor(A), B), [MATRIX, RIGHT]),
    "lu_solve, adjoint": (
        lambda xp, A, B: xp.lu_solve(*xp.lu_factor(A), B, adjoint=True),
        [MATRIX, RIGHT],
    ),
    "ldl_solve": (
        lambda xp, B: xp.ldl_solve(*xp.ldl_factor(xp.asarray(MATRIX + MATRIX.T)), B),
        [RIGHT],
    ),
    "qr_pivoted": (lambda xp, A: xp.qr_pivoted(A)[1], [MATRIX]),
    "eigh": (lambda xp, A: xp.eigh(A + xp.matrix_transpose(A))[0], [MATRIX]),
    "svd": (lambda xp, A: xp.svd(A)[1], [MATRIX]),
    "expm": (lambda xp, A: xp.expm(A), [MATRIX / 4]),
    "solve_triangular": (
        lambda xp, A, B: xp.solve_triangular(A, B, lower=False, adjoint=True),
        [MATRIX, RIGHT],
    ),
    "solve_tridiagonal": (
        lambda xp, *parts: xp.solve_tridiagonal(*parts),
        [draw(3), 3 + draw(4), draw(3, seed=1), RIGHT],
    ),
    "solve_banded": (
        lambda xp, ab, B: xp.solve_banded(ab, (2, 1), B),
        [draw(4, 4) + 4 * np.eye(4)[1][:, None], RIGHT],
    ),
    "tridiagonal_pivots": (
        lambda xp, d, s: xp.tridiagonal_pivots(d, s),
        [3 + draw(4), draw(3, seed=1)],
    ),
    "solve_triangular_sum": (
        lambda xp, B: xp.real(
            xp.solve_triangular_sum((xp.asarray(TRIANGLE), xp.asarray(TRIANGLE)), B)
        ),
        [draw(16, 2)],
    ),
    "solve_shifted": (
        lambda xp, T, R: xp.solve_shifted(T, xp.asarray(np.array([3, 2])), R)[0],
        [np.triu(MATRIX) + np.diag(np.arange(4.0)), RIGHT],
    ),
    "linear_recurrence": (
        lambda xp, E, f: xp.linear_recurrence(E, f),
        [draw(5, 2, 2) / 2, draw(5, 2, 1)],
    ),
    "sparse_matmul": (lambda xp, data, X: xp.sparse_matmul(data, STRUCTURE, X), [DATA, draw(5, 2)]),
    "sparse_matmul, one column": (
        lambda xp, data, X: xp.sparse_matmul(data, STRUCTURE, X),
        [DATA, draw(5, 1)],
    ),
    "scatter_add": (lambda xp, x, v: xp.scatter_add(x, [0, 2, 0], v), [draw(4), draw(3)]),
    "set_at": (lambda xp, x, v: xp.set_at(x, (slice(1, 3),), v), [draw(4), draw(2)]),
}
examples = pytest.mark.parametrize("name", DIFFERENTIABLE)


def scalar_along(xp, name):
    """A nonlinear number from the function, and its arguments moved along a line: t -> phi(f(x + t v))."""
    f, arrays = DIFFERENTIABLE[name]
    starts = [xp.asarray(x) for x in arrays]
    directions = [xp.asarray(draw(*x.shape, seed=9) / 5) for x in arrays]

    def along(t):
        out = f(xp, *(x + t * v for x, v in zip(starts, directions, strict=True)))
        return xp.sum(xp.sin(out * xp.asarray(draw(*out.shape, seed=4))))

    return along


def differences(along, xp, h):
    values = [float(along(xp.asarray(k * h))) for k in (-2, -1, 0, 1, 2)]
    first = (values[0] - 8 * values[1] + 8 * values[3] - values[4]) / (12 * h)
    second = (-values[0] + 16 * values[1] - 30 * values[2] + 16 * values[3] - values[4]) / (
        12 * h * h
    )
    return first, second


@examples
def test_first_and_second_derivatives_in_both_modes_torch(torch_xp, name):
    import torch

    along = scalar_along(torch_xp, name)
    first, second = differences(along, torch_xp, 1e-3)
    t = torch.tensor(0.0, dtype=torch.float64)
    reverse = torch.func.grad(along)

    def forward(t):
        return torch.func.jvp(along, (t,), (torch.ones_like(t),))[1]

    for d in (reverse, forward):
        assert float(d(t)) == pytest.approx(first, rel=1e-6, abs=1e-7)
        for d2 in (
            torch.func.grad(d),
            lambda t, d=d: torch.func.jvp(d, (t,), (torch.ones_like(t),))[1],
        ):
            assert float(d2(t)) == pytest.approx(second, rel=1e-4, abs=1e-5)
    t.requires_grad_()
    (g,) = torch.autograd.grad(along(t), t, create_graph=True)
    assert float(g.detach()) == pytest.approx(first, rel=1e-6, abs=1e-7)
    assert float(torch.autograd.grad(g, t)[0]) == pytest.approx(second, rel=1e-4, abs=1e-5)
    points = torch.linspace(0, 0.1, 3, dtype=torch.float64)
    for f in (along, reverse, forward):
        np.testing.assert_allclose(
            torch.func.vmap(f)(points).detach(), [f(p).detach() for p in points], rtol=1e-9
        )


@examples
def test_first_and_second_derivatives_in_both_modes_jax(jax_xp, name):
    import jax

    along = scalar_along(jax_xp, name)
    first, second = differences(jax.jit(along), jax_xp, 1e-3)
    reverse, forward = jax.grad(along), lambda t: jax.jvp(along, (t,), (1.0,))[1]
    for d in (reverse, forward):
        assert float(jax.jit(d)(0.0)) == pytest.approx(first, rel=1e-6, abs=1e-7)
    second_derivatives = [jax.jacfwd(reverse), jax.grad(forward), jax.jacfwd(forward)]
    # each takes JAX ten seconds to compile
    for d2 in second_derivatives if name != "expm" else second_derivatives[:1]:
        assert float(jax.jit(d2)(0.0)) == pytest.approx(second, rel=1e-4, abs=1e-5)
    points = np.linspace(0, 0.1, 3)
    one = jax.jit(reverse)
    np.testing.assert_allclose(
        jax.jit(jax.vmap(reverse))(points), [one(p) for p in points], rtol=1e-9
    )


@pytest.fixture(params=["torch", "jax"])
def dp(request):
    """A backend with derivatives."""
    pytest.importorskip(request.param)
    if request.param == "jax":
        import jax

        with enable_x64(jax, True):
            yield backends.get("jax")
    else:
        yield backends.get("torch")


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_derivatives_of_the_exponential_are_linear_whatever_the_size_of_the_direction(dp, dtype):
    A, E = draw(2, 3, 3, dtype=dtype), draw(2, 3, 3, dtype=dtype, seed=1)
    A[1] *= 1e-3
    H = dp.asarray(A.conj().mT.copy())
    expected = np.stack([scipy.linalg.expm_frechet(a, e)[1] for a, e in zip(A, E)])
    for sizes in ([1e-200, 1], [1e16, 1e200], [1e25, 0]):
        scale = np.array(sizes)[:, None, None]
        direction = dp.asarray(scale * E)
        tangent = dp.jvp(dp.expm, dp.asarray(A), direction)[1]
        cotangent = dp.vjp(dp.expm, H)[1](direction)
        for found in (tangent, cotangent):
            found = dp.to_numpy(found) / np.where(scale == 0, 1, scale)
            close(dp, found, np.where(scale == 0, 0, expected), "float64", factor=1e3)


def test_second_derivatives_of_the_exponential_are_linear_in_both_directions(torch_xp):
    import torch

    A, E, F = (torch.tensor(draw(3, 3, seed=seed)) for seed in range(3))

    def second(E, F):  # of exp at A along E and F, by reverse mode over each mode
        along = lambda A: torch.func.jvp(torch_xp.expm, (A,), (E,))[1]
        pulled = lambda A: torch.func.vjp(torch_xp.expm, A)[1](E)[0]
        yield torch.func.vjp(along, A)[1](F)[0]
        yield torch.func.vjp(pulled, A)[1](F)[0]
        yield torch.func.jvp(along, (A,), (F,))[1]

    for found, expected in zip(second(1e20 * E, 1e30 * F), second(E, F)):
        close(torch_xp, found / 1e50, expected, "float64", factor=1e3)


def test_pullbacks_are_adjoints_and_transposes_are_not(dp):
    M, x, g = (
        draw(3, 4, dtype="complex128"),
        draw(4, dtype="complex128"),
        draw(3, dtype="complex128"),
    )
    M_, x_, g_ = map(dp.asarray, (M, x, g))
    y, pull = dp.vjp(lambda x: dp.matmul(M_, x), x_)
    close(dp, y, M @ x, "float64")
    close(dp, pull(g_), M.conj().T @ g, "float64")
    close(dp, dp.linear_transpose(lambda x: dp.matmul(M_, x), x_)(g_), M.T @ g, "float64")
    close(dp, dp.jvp(lambda x: dp.matmul(M_, x * x), x_, x_)[1], M @ (2 * x * x), "float64")


@pytest.mark.parametrize("given", ["jvp", "both"])
def test_custom_derivatives_are_used_once_and_twice(dp, given):
    M = dp.asarray(draw(4, 4, dtype="complex128"))

    def f(x, y):
        return dp.matmul(M, x) * y

    def jvp(primals, tangents, output):  # twice the truth, to tell it apart
        (x, y), (dx, dy) = primals, tangents
        return 2 * (dp.matmul(M, dx) * y + dp.matmul(M, x) * dy)

    def vjp(primals, output, g):
        x, y = primals
        return 2 * dp.matmul(dp.conj(M).T, g * dp.conj(y)), 2 * g * dp.conj(dp.matmul(M, x))

    rules = {"jvp": {"jvp": jvp}, "both": {"jvp": jvp, "vjp": vjp}}[given]
    custom = dp.custom_derivative(f, **rules)
    x, y, g = (dp.asarray(draw(4, dtype="complex128", seed=s)) for s in range(3))
    close(dp, custom(x, y), f(x, y), "float64")
    for i in range(2):
        one = (lambda x: custom(x, y)) if i == 0 else (lambda y: custom(x, y))
        pulled = dp.vjp(one, (x, y)[i])[1](g)
        close(dp, pulled, vjp((x, y), None, g)[i], "float64")
    close(dp, dp.jvp(lambda x: custom(x, y), x, g)[1], jvp((x, y), (g, 0 * y), None), "float64")
    # the derivative of the derivative, with respect to what it is bilinear in
    twice = dp.vjp(lambda y: dp.vjp(lambda x: custom(x, y), x)[1](g), y)[1](x)
    expected = dp.vjp(lambda y: vjp((x, y), None, g)[0], y)[1](x)
    close(dp, twice, dp.to_numpy(expected), "float64")
    many = dp.asarray(draw(3, 4, dtype="complex128"))
    mapped = dp.vmap(lambda y: dp.vjp(lambda x: custom(x, y), x)[1](g))(many)
    close(dp, mapped, np.stack([dp.to_numpy(vjp((x, y), None, g)[0]) for y in many]), "float64")


def test_gradients_of_broadcast_batches_have_the_shape_of_what_was_given(torch_xp):
    import torch

    for name in ("solve_tridiagonal", "solve_banded", "sparse_matmul"):
        f, arrays = DIFFERENTIABLE[name]
        given = [torch.tensor(x, requires_grad=True) for x in arrays]
        given[-1] = torch.tensor(draw(3, *arrays[-1].shape), requires_grad=True)
        f(torch_xp, *given).square().sum().backward()
        assert all(x.grad.shape == x.shape for x in given)
        loop = [torch.tensor(x, requires_grad=True) for x in arrays[:-1]]
        sum(f(torch_xp, *loop, b).square().sum() for b in given[-1].detach()).backward()
        for x, y in zip(given[:-1], loop, strict=True):
            np.testing.assert_allclose(x.grad, y.grad, rtol=1e-9)


def test_torch_keeps_no_index_from_inside_a_transform(torch_xp):
    import torch

    structure, data = sparse_example()
    X = torch.tensor(draw(5, 2))
    pulled = torch.func.vmap(
        torch.func.grad(lambda d: torch_xp.sparse_matmul(d, structure, X).sum())
    )(torch.tensor(data)[None])
    again = torch.func.grad(lambda d: torch_xp.sparse_matmul(d, structure, X).sum())(
        torch.tensor(data)
    )
    np.testing.assert_allclose(pulled[0], again)


def test_torch_products_with_large_batches_of_matrices(torch_xp):
    import torch

    structure, data = sparse_example(200, 100)
    many = torch.tensor(draw(2, 1, len(data)))
    X = draw(3, 100, 2)
    np.testing.assert_allclose(
        torch_xp.sparse_matmul(many, structure, torch.tensor(X)),
        densify(many.numpy(), structure) @ X,
    )


def test_torch_vmap_over_batches_inside_batches(torch_xp):
    import torch

    parts, _ = tridiagonal_parts(5, (2,), "float64")
    _, diag, upper = map(torch.tensor, parts)
    diag = diag + 4
    many, B = torch.tensor(draw(3, 4, seed=6)), torch.tensor(draw(5, 2))
    got = torch.func.vmap(lambda low: torch_xp.solve_tridiagonal(low, diag, upper, B))(many)
    expected = torch.stack([torch_xp.solve_tridiagonal(low, diag, upper, B) for low in many])
    np.testing.assert_allclose(got, expected)


def test_complex_derivatives_of_solves_agree_with_dense_ones(dp):
    dtype = "complex128"
    parts, A = tridiagonal_parts(4, (), dtype)
    B, G = draw(4, 2, dtype=dtype), draw(4, 2, dtype=dtype, seed=8)
    W = np.linalg.solve(A.conj().T, G)
    outer = -W @ np.linalg.solve(A, B).conj().T
    as_arrays = [dp.asarray(x) for x in (*parts, B)]
    for i, expected in enumerate((np.diag(outer, -1), np.diag(outer), np.diag(outer, 1), W)):

        def f(x, i=i):
            return dp.solve_tridiagonal(*as_arrays[:i], x, *as_arrays[i + 1 :])

        close(dp, dp.vjp(f, as_arrays[i])[1](dp.asarray(G)), expected, dtype, factor=1e6)
    structure, data = sparse_example(dtype=dtype)
    X, G = draw(5, 2, dtype=dtype), draw(7, 2, dtype=dtype)
    pulled = dp.vjp(lambda d: dp.sparse_matmul(d, structure, dp.asarray(X)), dp.asarray(data))[1](
        dp.asarray(G)
    )
    close(dp, pulled, (G @ X.conj().T)[structure.rows, structure.columns], dtype)
    pulled = dp.vjp(lambda X: dp.sparse_matmul(dp.asarray(data), structure, X), dp.asarray(X))[1](
        dp.asarray(G)
    )
    close(dp, pulled, densify(data, structure).conj().T @ G, dtype)
    pulled = dp.vjp(
        partial(dp.solve_banded, dp.asarray(np.stack([parts[1]])), (0, 0)), dp.asarray(B)
    )[1](dp.asarray(draw(4, 2, dtype=dtype)))
    close(dp, pulled, draw(4, 2, dtype=dtype) / parts[1].conj()[:, None], dtype)


def test_jax_banded_solves_of_large_systems_do_not_hang_under_jit(jax_xp):
    import jax

    n = 300_000
    ab = np.ones((3, n)) + 3 * np.array([0, 1, 0])[:, None]
    X = jax.jit(lambda ab, B: 2 * jax_xp.solve_banded(2 * ab, (1, 1), B + 1))(ab, np.zeros((n, 2)))
    assert abs(float(X[n // 2, 0]) - 1 / 6) < 1e-9


@pytest.mark.parametrize(
    "name", ["lu_solve", "cholesky", "solve_triangular", "sparse_matmul", "scatter_add"]
)
def test_torch_compiles_in_one_graph(torch_xp, name):
    compiles_in_one_graph(torch_xp, name)


@pytest.mark.parametrize(
    "name", ["qr_pivoted", "solve_tridiagonal", "tridiagonal_pivots", "solve_shifted"]
)
def test_torch_compiles_what_runs_on_the_host_in_one_graph(torch_xp, name):
    import torch

    torch._dynamo.reset()  # one function is compiled for all, more often than torch allows
    compiles_in_one_graph(torch_xp, name)


def compiles_in_one_graph(torch_xp, name):
    import torch

    f, arrays = DIFFERENTIABLE[name]
    compiled = torch.compile(lambda *xs: f(torch_xp, *xs), fullgraph=True, backend="eager")
    tensors = [torch.tensor(x) for x in arrays]
    np.testing.assert_allclose(compiled(*tensors), f(torch_xp, *tensors))


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_blocks_of_columns_in_a_three_term_recurrence(xp, dtype):
    rng = np.random.default_rng(0)
    W, U, V = (
        rng.standard_normal((2, 5, 3))
        + (1j * rng.standard_normal((2, 5, 3)) if dtype[0] == "c" else 0)
        for _ in range(3)
    )
    a, b = rng.standard_normal((2, 2, 3))
    for cut in (slice(None), 0):  # a batch, and one block
        arrays = [xp.asarray(x[cut].astype(dtype)) for x in (W, a, U, b, V)]
        expected = (W - U * a[..., None, :] - V * b[..., None, :])[cut]
        np.testing.assert_allclose(
            xp.to_numpy(xp.three_term(*arrays)), expected, rtol=1e-5, atol=1e-6
        )
        dots = xp.to_numpy(xp.column_dot(arrays[0], arrays[2]))
        np.testing.assert_allclose(dots, (np.conj(W) * U).sum(-2)[cut], rtol=1e-5, atol=1e-5)
    first, second = (xp.to_numpy(xp.normal(xp.fold_in(xp.generator(0), i), (4,))) for i in (0, 1))
    assert xp.name != "jax" or not np.allclose(first, second)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("xp", ["numpy", "torch", "jax"], indirect=True)
def test_inner_products_with_weights(xp, dtype):
    for batch, n in (((), 7), ((3,), 0)):
        X, Y = draw(*batch, n, 3, dtype=dtype), draw(*batch, n, 1, dtype=dtype)
        w = (abs(draw(*batch, n, dtype=dtype)) + 1).astype(X.real.dtype)
        given = [xp.asarray(x) for x in (X, Y, w)]
        for weights, factor in ((None, 1), (given[2], w[..., None])):
            for other, wanted in ((given[0], X), (given[1], Y)):
                found = xp.inner_products(given[0], other, weights)
                close(xp, found, adjoint(X) @ (factor * wanted), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("rows", [64, 67])
def test_inner_products_of_tall_blocks_on_a_device_are_summed_in_parts(monkeypatch, rows, dtype):
    torch = pytest.importorskip("torch")
    from support.synchronisations import pretended

    from colinear.backends.torch import arithmetic

    monkeypatch.setattr(arithmetic, "TALL", 50)
    monkeypatch.setattr(arithmetic, "PARTS", 8)
    g = torch.Generator().manual_seed(0)
    S = torch.randn(rows, 6, generator=g, dtype=getattr(torch, dtype)).requires_grad_()
    with pretended():
        for X, Y in ((S, S), (S[:, :4], S[:, 1:3])):  # as blocks lie side by side
            assert arithmetic.is_tall(X, Y)
            found, expected = arithmetic.inner_products(X, Y), X.mH @ Y
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
            slopes = [torch.autograd.grad(Z.abs().sum(), S)[0] for Z in (found, expected)]
            torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-4)
        for X in (S.mT, S[:, ::2], S[:, :1]):
            assert not arithmetic.is_tall(X, X)
        assert not arithmetic.is_tall(S, S[:, :1])


def test_weighted_inner_products_of_many_rows_have_derivatives_in_jax(monkeypatch):
    jax = pytest.importorskip("jax")
    xp = backends.get("jax")
    arrays = importlib.import_module("colinear.backends.jax.arrays")
    monkeypatch.setattr(arrays, "LARGE_PRODUCT", 1)
    monkeypatch.setattr(arrays, "BLOCK_ROWS", 4)
    given = [jax.numpy.asarray(x) for x in (draw(10, 3), draw(10, 2), abs(draw(10)) + 1)]
    plain = lambda X, Y, w: X.T @ (w[:, None] * Y)
    blocks = lambda X, Y, w: xp.inner_products(X, Y, w)
    assert np.allclose(blocks(*given), plain(*given))
    total = lambda f: jax.jit(jax.grad(lambda *x: jax.numpy.sum(f(*x) ** 3), argnums=(0, 1, 2)))
    for found, wanted in zip(total(blocks)(*given), total(plain)(*given), strict=True):
        assert np.allclose(found, wanted)
