"""Kernels of Triton, by its interpreter where it is installed; and what is laid out for them, everywhere."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import colinear as co
from colinear import backends
from colinear.operators import fused
from colinear.operators.autograd import make_ready

torch = pytest.importorskip("torch")


def scattered(m: int, n: int, offsets: Any) -> Any:
    """A matrix of these diagonals, of which some entries are missing."""
    S = scipy.sparse.diags_array([1.0] * len(offsets), offsets=offsets, shape=(m, n)).tolil()
    S[m // 2, n // 2] = 0
    S = scipy.sparse.csr_array(S)
    S.eliminate_zeros()
    S.data = np.random.default_rng(0).normal(size=S.nnz)
    return S


@pytest.mark.parametrize("shape", [(30, 30), (30, 20), (20, 30)])
@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_the_diagonals_of_a_sparse_matrix_have_its_entries(framework: str, shape: Any) -> None:
    pytest.importorskip(framework)
    S, xp = scattered(*shape, [-3, 0, 1, 7]), backends.get(framework)
    A = co.Sparse(S).to(backend=framework)
    offsets, places, bits = A.structure.diagonals
    assert offsets == (-3, 0, 1, 7)
    values = np.zeros(len(offsets) * shape[0])
    values[places] = S.data
    found = xp.to_numpy(xp.sparse_diagonals(A.data, A.structure)[0])
    np.testing.assert_allclose(found, values.reshape(len(offsets), -1), rtol=1e-6)
    M = np.zeros(shape)
    for d, k in enumerate(offsets):
        for i in range(shape[0]):
            if bits[i] >> d & 1:
                M[i, i + k] = found[d, i]
    np.testing.assert_allclose(M, S.toarray(), rtol=1e-6)
    if framework != "torch":
        for X in (np.ones(shape[1]), np.random.default_rng(1).normal(size=(2, shape[1], 3))):
            parts = xp.sparse_diagonals(A.data, A.structure)
            np.testing.assert_allclose(
                xp.to_numpy(xp.diagonals_matmul(parts, offsets, xp.asarray(X))),
                S.toarray() @ X,
                rtol=1e-5,
                atol=1e-5,
            )


def test_matrices_of_many_diagonals_are_left_alone() -> None:
    rng = np.random.default_rng(0)
    assert (
        co.Sparse(scipy.sparse.random_array((200, 200), density=0.02, rng=rng)).structure.diagonals
        is None
    )
    sparse = scipy.sparse.csr_array((np.ones(3), ([0, 1, 2], [90, 2, 40])), shape=(100, 100))
    assert co.Sparse(sparse).structure.diagonals is None  # mostly empty
    assert co.Sparse(scipy.sparse.csr_array((4, 4))).structure.diagonals is None


def test_nothing_is_laid_out_on_the_host_and_for_small_matrices() -> None:
    A = co.Sparse(scattered(30, 30, [0, 1]))
    assert make_ready(A) is A
    assert make_ready(A.to(backend="torch")).structure is A.structure


def test_a_diagonal_whose_entries_are_alike_is_a_constant() -> None:
    lay_out = importlib.import_module("colinear.backends.torch.fused").lay_out
    values = torch.tensor([[0.0, 2.0, 2.0], [5.0, 5.0, 1.0]])
    _, bits, firsts, varies = lay_out(values, torch.tensor([2, 3, 3]))
    assert firsts.tolist() == [2.0, 5.0]
    assert varies.tolist() == [0, 1]
    assert bits.dtype == torch.uint8


INTERPRETED = """
import importlib, numpy as np, torch, colinear as co
from colinear.operators import fused
from colinear.operators.autograd import make_ready
xp, kernels = co.backends.get("torch"), importlib.import_module("colinear.backends.torch.fused")
kernels.may_fuse, kernels.FEWEST_NUMBERS, fused.FEWEST_ROWS = (lambda x: True), 1, 1
g = torch.Generator().manual_seed(0)
normal = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)
operators = [co.Tridiagonal(normal(6), normal(7), normal(6)), co.Banded([normal(6), normal(4)], (0, 2), shape=(8, 6))]
for boundary in ("zero", "wrap"):
    for sizes, grid in (((3, 3), (5, 7)), ((3,), (9,)), ((5, 2), (4, 3)), ((2, 2, 2), (4, 3, 5))):
        for centered in (True, False):
            operators.append(co.Convolution(normal(*sizes), grid, boundary, centered=centered))
for A in operators:
    B, M = make_ready(A), A.to_dense()
    assert type(B) is fused.FusedDiagonals
    for X in (normal(M.shape[1]), normal(M.shape[1], 3), normal(2, M.shape[1], 2), torch.complex(normal(M.shape[1]), normal(M.shape[1]))):
        torch.testing.assert_close(xp.diagonals_matmul(B.parts, B.offsets, X), M.to(X.dtype) @ X)
    torch.testing.assert_close(B.H @ normal(M.shape[0]).fill_(1), M.mT @ torch.ones(M.shape[0], dtype=M.dtype))
for dtype in (torch.float64, torch.complex128):
    p, q, x, r = (normal(2500).to(dtype) for _ in range(4))
    a = torch.tensor(0.3, dtype=torch.float64)
    expected = x + a * p, r - a * q
    found = xp.descend(a, p, q, x, r)
    assert found[0] is x and found[1] is r
    torch.testing.assert_close(found[:2], expected)
    torch.testing.assert_close(found[2], (expected[1].abs() ** 2).sum())
"""


def test_the_kernels_compute_what_they_should() -> None:
    pytest.importorskip("triton")
    source = str(Path(fused.__file__).parents[2])
    path = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
