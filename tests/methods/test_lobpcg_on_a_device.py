"""LOBPCG on a device: its small matrices are on the host, and a step waits for the device twice."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.synchronisations import counted, pretended

import colinear as co

torch = pytest.importorskip("torch")

from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

SPECTRA = {
    "even": lambda n: np.linspace(1, 2, n),
    "squares": lambda n: np.arange(1.0, n + 1) ** 2,
    "of both signs": lambda n: np.linspace(-1, 1, n) ** 3,
    "repeated": lambda n: np.repeat(np.arange(1.0, n // 4 + 1), 4),
    "decaying": lambda n: np.logspace(0, -12, n),
    "large": lambda n: 1e30 * np.linspace(1, 3, n),
}
MADE_OF_NUMPY = {"as_tensor", "from_numpy", "tensor"}


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """An error where torch is given an array of NumPy, or NumPy a tensor, as a device refuses."""

    class Apart(TorchFunctionMode):
        def __torch_function__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(f, "__name__", "")
            assert name != "__array__"
            if name not in MADE_OF_NUMPY:
                given = [*args, *(kwargs or {}).values()]
                assert not any(isinstance(x, np.ndarray) for x in given), name
            return f(*args, **(kwargs or {}))

    with Apart():
        yield


@contextlib.contextmanager
def operations() -> Iterator[Counter[str]]:
    """How often torch computes what."""
    count: Counter[str] = Counter()

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            count[f._schema.name] += 1
            return f(*args, **(kwargs or {}))

    with Count():
        yield count


def symmetric(values: Any, dtype: Any, rng: np.random.Generator) -> tuple[Any, Any]:
    """A matrix with these eigenvalues, and one that is near its inverse."""
    n = len(values)
    noise = rng.normal(size=(n, n)) + (1j * rng.normal(size=(n, n)) if dtype.is_complex else 0)
    Q = np.linalg.qr(noise)[0]
    near = 1 / (abs(values) + 0.01 * abs(values).max())
    return tuple(torch.tensor((Q * d) @ Q.conj().T).to(dtype) for d in (values, near))  # type: ignore[return-value]


def pairs(A: Any, which: str, method: Any, k: int = 3) -> tuple[Any, Any, Any]:
    (values, vectors), info = co.eig(A, k, which, method, info=True, on_failure="ignore")
    return values, vectors.to_dense(), info


def assert_alike(A: Any, which: str, method: Any, rtol: float, k: int = 3) -> None:
    """A run that takes its tensors to be on a device finds what that of the host finds."""
    plain = pairs(A, which, method, k)
    with pretended(), apart():
        values, V, info = pairs(A, which, method, k)
    assert isinstance(values, torch.Tensor) and values.dtype == plain[0].dtype
    scale = co.norm(A, 2).abs().max()
    assert (values - plain[0]).abs().max() <= rtol * scale
    assert info.status == plain[2].status
    assert abs(int(info.iterations) - int(plain[2].iterations)) <= 3 + int(info.iterations) // 5
    G = V.mH @ V
    eye = torch.eye(k, dtype=G.dtype).expand_as(G)
    torch.testing.assert_close(G, eye, rtol=0, atol=100 * torch.finfo(G.dtype).eps)


@pytest.mark.parametrize("is_helped", [False, True], ids=["plain", "preconditioned"])
@pytest.mark.parametrize("which", ["LA", "SA"])
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_it_finds_what_the_host_finds(
    spectrum: str, which: str, is_helped: bool, rng: np.random.Generator
) -> None:
    A, M = symmetric(SPECTRA[spectrum](200), torch.float64, rng)
    helper = co.PSD(M) if is_helped else None
    method = co.LOBPCG(max_iters=100, preconditioner=helper)
    assert_alike(co.opaque(co.SelfAdjoint(A)), which, method, 1e-10)


@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
@pytest.mark.parametrize("is_helped", [False, True], ids=["plain", "preconditioned"])
def test_dtypes(dtype: str, is_helped: bool, rng: np.random.Generator) -> None:
    dtype = getattr(torch, dtype)
    A, M = symmetric(SPECTRA["squares"](300), dtype, rng)
    method = co.LOBPCG(max_iters=80, preconditioner=co.PSD(M) if is_helped else None)
    assert_alike(co.opaque(co.SelfAdjoint(A)), "LA", method, 100 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_batches(dtype: Any, rng: np.random.Generator) -> None:
    kinds = ("even", "squares", "repeated")
    A = torch.stack([symmetric(SPECTRA[name](200), dtype, rng)[0] for name in kinds])
    assert_alike(co.opaque(co.SelfAdjoint(A)), "SA", co.LOBPCG(max_iters=60), 1e-5)


@pytest.mark.parametrize("n", [7, 12, 16, 21])
def test_blocks_that_span_the_space_or_nearly(n: int, rng: np.random.Generator) -> None:
    A = symmetric(np.arange(1.0, n + 1), torch.float64, rng)[0]
    assert_alike(co.opaque(co.SelfAdjoint(A)), "LA", co.LOBPCG(tol=1e-12), 1e-12)


def test_directions_that_depend_on_each_other_are_dropped(rng: np.random.Generator) -> None:
    # all residuals are in a space of two dimensions: A is a multiple of the identity but for those
    U = np.linalg.qr(rng.normal(size=(400, 2)))[0]
    A = torch.tensor(np.eye(400) + (U * [3.0, 5.0]) @ U.T)
    assert_alike(co.opaque(co.SelfAdjoint(A)), "LA", co.LOBPCG(tol=1e-10), 1e-12)


def test_a_step_waits_twice_and_decomposes_nothing_on_the_device() -> None:
    d = torch.linspace(1, 2, 2000, dtype=torch.float64) ** 4
    for batch, most in (((), 55), ((2,), 95)):  # views and copies too
        A = co.opaque(co.SelfAdjoint(co.Diagonal(d.expand(*batch, -1))))
        found = []
        for steps in (5, 25):
            method = co.LOBPCG(tol=1e-14, max_iters=steps)
            with pretended(), counted() as looks, operations() as done:
                pairs(A, "LA", method)
            assert "aten::_linalg_eigh" not in done
            found.append((len(looks), sum(done.values())))
        (fewer_looks, fewer), (more_looks, more) = found
        assert more_looks - fewer_looks == 2 * 20
        assert more - fewer <= most * 20


def test_the_careful_branch_decomposes_nothing_there_either(rng: np.random.Generator) -> None:
    # squares of the residuals vanish in single precision
    A, M = symmetric(SPECTRA["squares"](300), torch.float32, rng)
    A, tiny = co.opaque(co.SelfAdjoint(A)), co.PSD(1e-22 * M)
    method = co.LOBPCG(preconditioner=tiny, max_iters=20)
    assert_alike(A, "LA", method, 1e-5)
    with pretended(), counted() as looks, operations() as done:
        info = pairs(A, "LA", method)[2]
    assert "aten::_linalg_eigh" not in done
    assert len(looks) > 3 * info.iterations  # what is careful looks more often


def test_who_looks_on_sees_tensors() -> None:
    seen = []

    def look(progress: Any) -> bool:
        seen.append((progress.iteration, progress.residual, progress.x))
        return progress.iteration == 4

    A = co.opaque(co.SelfAdjoint(co.Diagonal(torch.arange(1.0, 501, dtype=torch.float64))))
    method = co.LOBPCG(callback=look)
    with pretended(), apart():
        _, _, info = pairs(A, "SA", method)
    assert int(info.iterations) == 4 and [i for i, *_ in seen] == [2, 3, 4]
    for _, residual, x in seen:
        assert isinstance(residual, torch.Tensor) and residual.shape == (3,)
        assert isinstance(x, torch.Tensor) and x.shape == (3, 500)


@pytest.mark.filterwarnings("error")
def test_nan_ends_a_run_without_a_warning_of_numpy() -> None:
    d = torch.arange(1.0, 501)
    d[7] = torch.nan
    with pretended():
        info = pairs(co.opaque(co.SelfAdjoint(co.Diagonal(d))), "SA", co.LOBPCG())[2]
    assert info.status.name == "NONFINITE"
