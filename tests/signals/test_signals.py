"""Signals: the operators are the matrices that they should be, in every framework, and rules see their structure."""

from __future__ import annotations

import functools
import os
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from support.frameworks import close

import colinear as co
from colinear import signals
from colinear.testing import check_operator, forbid_dense

DB2 = np.array([1 - 3**0.5, 3 - 3**0.5, 3 + 3**0.5, 1 + 3**0.5]) / (4 * 2**0.5)

MAKERS = {
    "difference": functools.partial(signals.difference, 6, {-2: 1.0, 0: -3.0, 1: 2.0}, "reflect"),
    "first_derivative": functools.partial(signals.first_derivative, 5, "centered", "wrap"),
    "second_derivative": functools.partial(signals.second_derivative, 5, "reflect", 0.5),
    "gradient": functools.partial(signals.gradient, (3, 4), spacing=(1.0, 2.0)),
    "divergence": functools.partial(signals.divergence, (3, 4), "backward", "none"),
    "laplacian": functools.partial(signals.laplacian, (2, 3, 4), ("zero", "wrap", "reflect")),
    "restriction": functools.partial(signals.restriction, (2, 3), np.eye(2, 3) > 0),
    "wavelet": functools.partial(signals.wavelet, (4, 8), DB2, 2),
    "separable wavelet": functools.partial(signals.wavelet, (4, 8), "haar", 2, "separable"),
    "radon": functools.partial(signals.radon, (4, 5), [0.0, 0.7, 2.5]),
    "nufft": functools.partial(signals.nufft, [[0.1, 2.0], [5.0, -1.0], [3.0, 3.0]], (3, 4)),
}


DTYPES = ["float64", "float32", "complex128", "complex64"]
CASES = [
    (framework, dtype, name)
    for framework in ("numpy", "torch", "jax")
    for i, name in enumerate(MAKERS)
    for j, dtype in enumerate(DTYPES)
    # JAX compiles each, which takes minutes: one dtype in turn, and with COLINEAR_FULL=1 all
    if framework != "jax" or i % len(DTYPES) == j or os.environ.get("COLINEAR_FULL")
]


@pytest.mark.parametrize(("framework", "dtype", "name"), CASES)
def test_an_operator_behaves_as_one(framework, dtype, name):
    A = MAKERS[name](like=framework, dtype=dtype)
    reference = MAKERS[name](like="numpy", dtype="complex128").to_dense()
    single = dtype in ("float32", "complex64")
    if name == "nufft":
        dtype = "complex64" if single else "complex128"
    assert A.backend == framework and dtype in str(A.dtype)
    dense = reference if "complex" in dtype else reference.real
    check_operator(A, dense, tol=2e-5 if single else 1e-8 if name == "nufft" else None)


@pytest.mark.parametrize("name", MAKERS)
def test_jax_gets_the_same_matrices(name):
    A = MAKERS[name](like="jax", dtype="float64")
    x = np.random.default_rng(0).standard_normal((A.shape[-1], 2))
    both = jax.jit(lambda A, x: (A @ x, A.H @ (A @ x)))(A, jnp.asarray(x))
    B = MAKERS[name](like="numpy")
    close(both[0], B @ x, 1e-8)
    close(both[1], B.H @ (B @ x), 1e-8)
    for dtype in ("float32", "complex64", "complex128"):
        C = MAKERS[name](like="jax", dtype=dtype)
        assert str(C.dtype) == ("complex64" if name == "nufft" and dtype == "float32" else dtype)
        close(C @ jnp.asarray(x).astype(C.dtype), B @ x, 1e-8 if dtype == "complex128" else 2e-5)


# ------------------------------------------------------------------------------------- differences


@pytest.mark.parametrize(
    ("boundary", "mode"), [("zero", "constant"), ("wrap", "wrap"), ("reflect", "symmetric")]
)
@pytest.mark.parametrize("n", [1, 2, 3, 9])
def test_a_stencil_reads_the_padded_line(n, boundary, mode, rng):
    """The reference is NumPy's padding."""
    for stencil in (*signals.differences.STENCILS.values(), {-2: 1.0, -1: 3.0, 1: 0.5, 2: -4.0}):
        if boundary == "reflect" and max(map(abs, stencil)) > n:
            with pytest.raises(co.ShapeError, match=r"needs 2"):
                signals.difference(n, stencil, boundary)
            continue
        x = rng.standard_normal(n)
        padded = np.pad(x, 2, mode=mode)
        expected = sum(weight * padded[2 + k : 2 + k + n] for k, weight in stencil.items())
        close(signals.difference(n, stencil, boundary, 0.5) @ x, 2 * expected)


def test_without_a_boundary_only_whole_stencils_are_kept():
    x = np.arange(6.0) ** 2
    close(signals.first_derivative(6, "centered", "none") @ x, 2 * np.arange(1.0, 5))
    close(signals.first_derivative(6, "backward", "none") @ x, np.diff(x))
    close(signals.second_derivative(6, "none", 0.1) @ x, np.full(4, 200.0), 1e-12)
    close(signals.difference(6, {2: 1.0}, "none") @ x, x[2:])
    with pytest.raises(co.ShapeError, match="needs 3"):
        signals.second_derivative(2, "none")


@pytest.mark.parametrize("boundary", ["wrap", "reflect"])
@pytest.mark.parametrize("kind", ["forward", "backward"])
def test_the_laplacian_is_the_divergence_of_the_gradient(kind, boundary):
    options = {"boundary": boundary, "spacing": (0.5, 2.0, 1.0)}
    G, L = signals.gradient((3, 4, 2), kind, **options), signals.laplacian((3, 4, 2), **options)
    close(signals.divergence((3, 4, 2), kind, **options) @ G, L.to_dense())


def test_a_gradient_of_planes_is_their_slope():
    grid = np.add.outer(3 * np.arange(4.0), np.subtract.outer(np.arange(5.0), 2 * np.arange(6.0)))
    slopes = (signals.gradient(grid.shape) @ grid.ravel()).reshape(3, 4, 5, 6)
    close(
        slopes[:, :3, :4, :5],
        np.broadcast_to(np.reshape([3.0, 1.0, -2.0], (3, 1, 1, 1)), (3, 3, 4, 5)),
    )


def test_a_laplacian_is_a_kronecker_sum_and_solved_as_one(rng):
    """By transforms, and never as a matrix."""
    known = {
        "zero": (co.Tridiagonal, "eig_sines"),
        "wrap": (co.Circulant, "eig_circulant"),
        "reflect": (co.Tridiagonal, "eig_tridiagonal"),
    }
    for boundary, (family, by_line) in known.items():
        L = signals.laplacian((30, 40), boundary)
        assert isinstance(-L, co.KroneckerSum)
        assert all(type(T) is family for T in (-L).operands)
        assert L.isa(co.SelfAdjoint) and (-L).isa(co.PSD)
        assert (-L).isa(co.PD) == (boundary == "zero")
        A, b = 0.1 * co.Identity(1200) - L, rng.standard_normal(1200)
        assert {"inv_shifted_kronecker", by_line} <= set(co.explain(co.solve, A).rules)
        assert "slogdet_shifted_kronecker" in co.explain(co.logdet, A).rules
        assert "exp_kronecker_sum" in co.explain(co.exp, L).rules
        with forbid_dense(limit=50 * 50):
            close(A @ co.solve(A, b), b, 1e-8)


@pytest.mark.parametrize("boundary", ["wrap", "reflect"])
def test_a_laplacian_of_constants_is_singular_and_least_squares_knows_it(boundary, rng):
    """The constants are its kernel: `solve` says so, `lstsq` finds the answer of mean zero."""
    L, b = signals.laplacian((9, 8), boundary), rng.standard_normal(72)
    assert co.solve(-L, b, info=True)[1].status.is_failure
    assert "eig_kronecker" in co.explain(co.lstsq, -L).rules
    x, info = co.lstsq(-L, b, info=True)
    assert not info.status.is_failure
    close(-(L @ x), b - b.mean(), 1e-9)
    assert abs(x.mean()) < 1e-10


def test_batches_and_gradients_of_the_spacing():
    h = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64, requires_grad=True)
    L = signals.laplacian((3, 4), spacing=h)
    assert L.shape == (3, 12, 12)
    x = co.solve(-L, torch.ones(12, 1, dtype=torch.float64))[..., 0]
    one = torch.as_tensor(co.solve(-signals.laplacian((3, 4)), np.ones(12)))
    close(x.detach(), (h.detach()[:, None] ** 2) * one)
    (slope,) = torch.autograd.grad(x.sum(), h)
    close(slope, 2 * h.detach() * one.sum())


@pytest.mark.parametrize("boundary", ["zero", "wrap", "reflect"])
def test_systems_with_a_laplacian_are_mapped_compiled_and_differentiated(boundary):
    """By the spacing, against differences of the dense answer."""
    y = np.arange(12.0) ** 2

    def norm(h, b):
        A = co.Identity(12) - signals.laplacian((3, 4), boundary, h)
        return (co.solve(A, b) ** 2).sum()

    def dense(h):
        L = signals.laplacian((3, 4), boundary, h).to_dense()
        return np.sum(np.linalg.solve(np.eye(12) - L, y) ** 2)

    values = [dense(h) for h in (0.5, 0.7)]
    slope = (dense(0.7 + 1e-5) - dense(0.7 - 1e-5)) / 2e-5
    h, b = torch.tensor([0.5, 0.7], dtype=torch.float64), torch.as_tensor(y)
    close(torch.func.vmap(norm, (0, None))(h, b), values, 1e-9)
    close(torch.func.grad(norm)(h[1], b), slope, 1e-7)
    compiled = jax.jit(jax.vmap(jax.value_and_grad(norm), (0, None)))
    found, slopes = compiled(jnp.array([0.5, 0.7]), jnp.asarray(y))
    close(found, values, 1e-9)
    close(slopes[1], slope, 1e-7)


def test_a_spacing_that_the_dtype_cannot_hold_is_refused():
    """A matrix of zeros would not be as definite as it says."""
    for spacing in (np.inf, np.nan, 1e-200, 1e200, 1j, "h"):
        with pytest.raises(ValueError, match="it must be a number other than zero"):
            signals.laplacian((3, 3), spacing=spacing)
    with pytest.raises(ValueError, match="range of the dtype"):
        signals.second_derivative(4, spacing=1e-30, dtype="float32")
    signals.first_derivative(4, spacing=1e-30, dtype="float32")


def test_what_is_read_on_the_host_is_never_traced_or_differentiated_in_silence():
    x = torch.tensor([0.1, 0.2], requires_grad=True)
    for make in (
        lambda x: signals.nufft(x, 4),
        lambda x: signals.radon((3, 3), x),
        lambda x: signals.restriction(3, x),
    ):
        with pytest.raises(co.BackendError, match="traced or differentiated"):
            make(x)
        with pytest.raises(co.BackendError, match="traced or differentiated"):
            jax.jit(lambda x, make=make: make(x).shape)(jnp.array([0.1, 0.2]))
    mask = torch.tensor([True, False, True])
    slope = torch.func.grad(lambda y: (signals.restriction(3, mask) @ y).sum())(torch.ones(3))
    close(slope, [1.0, 0.0, 1.0])


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="boundary is 'periodic'"):
        signals.laplacian((3, 3), "periodic")
    with pytest.raises(ValueError, match="kind is 'upwind'"):
        signals.gradient((3, 3), "upwind")
    with pytest.raises(ValueError, match="other than zero"):
        signals.first_derivative(4, spacing=0.0)
    with pytest.raises(ValueError, match="whole places"):
        signals.difference(4, {0.5: 1.0})
    with pytest.raises(ValueError, match="real and finite"):
        signals.difference(4, {0: 1j})
    with pytest.raises(ValueError, match="is square"):
        signals.laplacian((3, 3), "none")
    with pytest.raises(co.ShapeError, match="3 boundaries or spacings"):
        signals.laplacian((3, 3), ("zero", "wrap", "zero"))
    with pytest.raises(co.ShapeError, match="has 4 points along axis 1"):
        signals.along_axis(co.Identity(3), (3, 4), 1)
    with pytest.raises(co.ShapeError, match="the mask is"):
        signals.restriction((3, 3), [True, False])
    with pytest.raises(co.DtypeError, match="complex"):
        signals.first_derivative(4, spacing=np.array(1j))


def test_a_restriction_picks_and_its_adjoint_puts_back(rng):
    mask, x = rng.random((4, 5)) < 0.4, rng.standard_normal((4, 5))
    R = signals.restriction(mask.shape, mask)
    close(R @ x.ravel(), x[mask])
    close((R.H @ x[mask]).reshape(4, 5), np.where(mask, x, 0))
    assert R.H.isa(co.Stiefel)
    close(signals.restriction(20, [3, 1]) @ torch.as_tensor(x.ravel()), x.ravel()[[3, 1]])


# -------------------------------------------------------------------------------------- transforms


@pytest.mark.parametrize("name", ["db4", "sym5", "coif1", "bior2.2"])
@pytest.mark.filterwarnings("ignore:Level value of 2 is too high:UserWarning")
def test_wavelets_are_those_of_pywavelets(name, rng):
    pywt = pytest.importorskip("pywt")
    x, image = rng.standard_normal(96), rng.standard_normal((48, 32))
    options = {"mode": "periodization"}
    W = signals.wavelet(96, name, 2)
    close(W @ x, np.concatenate(pywt.wavedec(x, name, level=2, **options)))
    W2 = signals.wavelet(image.shape, name, 2)
    pyramid = pywt.coeffs_to_array(pywt.wavedecn(image, name, level=2, **options))[0]
    close((W2 @ image.ravel()).reshape(48, 32), pyramid)
    W3 = signals.wavelet(image.shape, name, 2, "separable")
    separable = pywt.fswavedecn(image, name, levels=2, **options).coeffs
    close((W3 @ image.ravel()).reshape(48, 32), separable)
    is_orthogonal = pywt.Wavelet(name).orthogonal
    assert all(each.isa(co.Unitary) == is_orthogonal for each in (W, W2, W3))
    close(co.solve(W2, W2 @ image.ravel()), image.ravel(), 1e-7)


def test_orthogonal_wavelets_need_no_solve(rng):
    W, x = signals.wavelet((8, 8), DB2), rng.standard_normal(64)
    assert W.isa(co.Unitary)
    with forbid_dense(limit=64):
        close(co.solve(W, W @ x), x)
    close(np.linalg.norm(W @ x), np.linalg.norm(x))


def test_mistakes_of_wavelets_are_named(monkeypatch):
    with pytest.raises(co.ShapeError, match="multiple of 8"):
        signals.wavelet(12, "haar", 3)
    with pytest.raises(ValueError, match="not one of an orthogonal wavelet"):
        signals.wavelet(8, [0.5, 0.25])
    with pytest.raises(ValueError, match="kind is 'square'"):
        signals.wavelet(8, "haar", kind="square")
    monkeypatch.setitem(__import__("sys").modules, "pywt", None)
    with pytest.raises(ImportError, match=r"colinear\[signals\]"):
        signals.wavelet(8, "db4")


def test_projections_of_a_bell_are_bells():
    """exp(-|x - c|² / 2σ²) integrates along lines to σ √(2π) exp(-(s - c·n)² / 2σ²)."""
    sigma, c, angles = 4.0, np.array([5.0, -3.0]), np.linspace(0, 2 * np.pi, 13)
    y, x = np.mgrid[24:-25:-1, -29:30]
    bell = np.exp(-((x - c[0]) ** 2 + (y - c[1]) ** 2) / (2 * sigma**2))
    R = signals.radon(bell.shape, angles, detectors=81)
    s = np.arange(81) - 40 - (c[0] * np.cos(angles) + c[1] * np.sin(angles))[:, None]
    exact = sigma * np.sqrt(2 * np.pi) * np.exp(-(s**2) / (2 * sigma**2))
    close((R @ bell.ravel()).reshape(13, 81), exact, 1.5e-2)


def test_at_right_angles_a_projection_sums_rows_and_columns():
    image = np.arange(12.0).reshape(3, 4)
    R = signals.radon((3, 4), torch.tensor([0.0, np.pi / 2], dtype=torch.float64), detectors=4)
    assert R.backend == "torch"
    columns, rows = (R @ torch.as_tensor(image.ravel())).reshape(2, 4)
    close(columns, image.sum(0))
    close(rows[1:3], [image[1:].sum(1).mean(), image[:2].sum(1).mean()])  # between two rows
    assert signals.radon((3, 4), np.zeros(0)).shape == (0, 12)
    with pytest.raises(co.ShapeError, match="the shape of an image"):
        signals.radon(7, [0.0])


def fourier_matrix(points, grid):
    modes = np.meshgrid(*(np.arange(n) - n // 2 for n in grid), indexing="ij")
    return np.exp(-1j * points @ np.stack([k.ravel() for k in modes]))


@pytest.mark.parametrize("grid", [(1,), (7,), (30,), (5, 8), (2, 3, 4)])
@pytest.mark.parametrize("tol", [1e-2, 1e-5, 1e-9, 1e-13])
@pytest.mark.parametrize("by", ["operators", "finufft"])
def test_fourier_sums_at_any_points_meet_their_tolerance(by, tol, grid, rng):
    if by == "finufft":
        pytest.importorskip("finufft")
    points = rng.uniform(-20, 20, (25, len(grid)))
    exact = fourier_matrix(points, grid)
    A = signals.nufft(points, grid, tol, by)
    assert np.linalg.norm(A.to_dense() - exact, 2) <= tol * np.linalg.norm(exact, 2)
    if tol >= 1e-6:
        single = signals.nufft(points, grid, tol, by, dtype=np.complex64)
        assert single.dtype == np.complex64
        assert np.linalg.norm(single.to_dense() - exact, 2) <= tol * np.linalg.norm(exact, 2)


@pytest.mark.parametrize("by", ["operators", "finufft"])
def test_points_far_from_the_first_period_keep_the_tolerance(by, rng):
    """The exact phases are of 2π to more digits than double precision has."""
    if by == "finufft":
        pytest.importorskip("finufft")
    points, k = rng.uniform(-1e4, 1e4, 20), np.arange(200) - 100
    period = 2 * Fraction("3.141592653589793238462643383279502884197")
    phases = [[float(Fraction(x) * int(j) % period) for j in k] for x in points]
    exact = np.exp(-1j * np.array(phases))
    A = signals.nufft(points, 200, 1e-13, by)
    assert np.linalg.norm(A.to_dense() - exact, 2) <= 1e-13 * np.linalg.norm(exact, 2)
    assert signals.nufft(np.zeros(0), 4).shape == (0, 4)


def test_fourier_sums_of_grid_points_are_the_fourier_transform(rng):
    x = rng.standard_normal(8) + 1j * rng.standard_normal(8)
    A = signals.nufft(2 * np.pi * np.arange(8) / 8, 8, 1e-12)
    close(A @ x, np.fft.fft(np.fft.ifftshift(x)), 1e-11)


def test_finufft_in_every_framework(rng):
    pytest.importorskip("finufft")
    points, x = rng.uniform(0, 6, (6, 2)), rng.standard_normal(12)
    exact = fourier_matrix(points, (3, 4))
    check_operator(signals.nufft(points, (3, 4), 1e-13, "finufft"), exact, tol=1e-10)
    A = signals.nufft(torch.as_tensor(points), (3, 4), 1e-12, "finufft")
    f = torch.as_tensor(x, dtype=torch.complex128).requires_grad_()
    (slope,) = torch.autograd.grad((A @ f).abs().square().sum(), f)
    close(slope, 2 * exact.conj().T @ (exact @ x), 1e-10)
    B = signals.nufft(jnp.asarray(points), (3, 4), 1e-12, "finufft")
    slope = jax.jit(jax.grad(lambda x: jnp.sum(jnp.abs(B @ x) ** 2)))(jnp.asarray(x))
    close(slope, 2 * (exact.conj().T @ (exact @ x)).real, 1e-10)


def test_mistakes_of_fourier_sums_are_named(monkeypatch):
    with pytest.raises(co.ShapeError, match="expected"):
        signals.nufft([[0.1, 0.2]], 5)
    with pytest.raises(ValueError, match="gives 1e-13 at best"):
        signals.nufft([0.1], 5, 1e-15)
    with pytest.raises(ValueError, match="gives 1e-06 at best"):
        signals.nufft([0.1], 5, 1e-9, dtype="float32")
    with pytest.raises(ValueError, match="gives 2e-12 at best on the grid"):
        signals.nufft([0.1], 10_000, 1e-12)  # the phase is rounded by more
    with pytest.raises(ValueError, match="not finite"):
        signals.nufft([np.nan], 5)
    with pytest.raises(ValueError, match="by is 'fftw'"):
        signals.nufft([0.1], 5, by="fftw")
    monkeypatch.setitem(__import__("sys").modules, "finufft", None)
    with pytest.raises(ImportError, match=r"colinear\[signals\]"):
        signals.nufft([0.1], 5, by="finufft")
