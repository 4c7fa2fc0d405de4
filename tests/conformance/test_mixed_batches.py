"""Operands with and without batch dimensions in every composition: results have the batch shape of the whole."""

from __future__ import annotations

import warnings
from itertools import product
from typing import Any

import numpy as np
import pytest

import colinear as co
from colinear import backends

N = 3
RNG = np.random.default_rng(0)
LEAVES: dict[str, Any] = {
    "dense": lambda batch: co.Dense(RNG.standard_normal((*batch, N, N)) + 3 * np.eye(N)),
    "unitary": lambda batch: co.Unitary(np.linalg.qr(RNG.standard_normal((*batch, N, N)))[0]),
    "householder": lambda batch: co.Householder(RNG.standard_normal((*batch, N))),
    "diagonal": lambda batch: co.Diagonal(RNG.uniform(1, 2, (*batch, N))),
    "scaled identity": lambda batch: co.ScaledIdentity(
        RNG.uniform(1, 2, batch) if batch else 2.5, N
    ),
    "permutation": lambda batch: co.Permutation([[1, 2, 0], [0, 2, 1]] if batch else [2, 0, 1]),
    "zero": lambda batch: co.Zero(N, N),
}
COMPOSITIONS: dict[str, Any] = {
    "product": co.Product,
    "congruence": lambda A, B: co.Product(A, B, A.H),
    "multiple": lambda A, B: -2.0 * co.Product(A, B),
    "sum": co.Sum,
    "hadamard": co.Hadamard,
    "kronecker": co.Kronecker,
    "kronecker sum": co.KroneckerSum,
    "block diagonal": co.BlockDiag,
    "block": lambda A, B: co.Block([[A, B], [None, A]]),
}
# The shape of an array behind the batch, for n rows.
ARRAYS: dict[str, Any] = {
    "diag": lambda n: (n,),
    "trace": lambda n: (),
    "norm": lambda n: (),
    "cond": lambda n: (),
    "rank": lambda n: (),
    "det": lambda n: (),
    "solve": lambda n: (n, 1),
}
OPERATORS = ("inv", "pinv", "exp")
REFERENCE: dict[str, Any] = {
    "diag": lambda M: np.diagonal(M, axis1=-2, axis2=-1),
    "trace": lambda M: np.trace(M, axis1=-2, axis2=-1),
    "norm": lambda M: np.linalg.norm(M, axis=(-2, -1)),
    "det": np.linalg.det,
    "svd": lambda M: np.linalg.svd(M, compute_uv=False),
}


@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_the_batch_of_one_operand_is_that_of_every_result(composition):
    for (first, second), (one, two) in product(product(LEAVES, LEAVES), (((2,), ()), ((), (2,)))):
        A = COMPOSITIONS[composition](LEAVES[first](one), LEAVES[second](two))
        if A.batch_shape:
            check(A)


def check(A: Any) -> None:
    n, xp = A.shape[-1], A.xp
    dense = xp.to_numpy(A.to_dense())
    found: dict[str, Any] = {}
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for name, shape in ARRAYS.items():
            right = (xp.ones((n, 1), dtype=A.dtype),) if name == "solve" else ()
            found[name] = getattr(co, name)(A, *right)
            assert tuple(found[name].shape) == (2, *shape(n)), (name, A)
        for name in OPERATORS:
            B = getattr(co, name)(A)
            assert tuple(B.shape) == tuple(B.to_dense().shape) == A.shape, (name, A)
        U, found["svd"], V = co.svd(A)
        Q, R = co.qr(A)
    assert tuple(found["svd"].shape) == (2, n), A
    for B in (U, V, Q, R):
        assert tuple(B.shape) == tuple(B.to_dense().shape) == A.shape, (B, A)
    np.testing.assert_allclose(xp.to_numpy((Q @ R).to_dense()), dense, atol=1e-12)
    product_of_three = (
        U.to_dense() * found["svd"][..., None, :] @ xp.matrix_transpose(xp.conj(V.to_dense()))
    )
    np.testing.assert_allclose(xp.to_numpy(product_of_three), dense, atol=1e-12)
    for name, reference in REFERENCE.items():
        np.testing.assert_allclose(
            xp.to_numpy(found[name]), reference(dense), atol=1e-10, rtol=1e-10
        )


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_the_batch_of_a_unitary_factor_is_kept(name):
    pytest.importorskip(name)
    xp = backends.get(name)
    Q, M = (xp.asarray(LEAVES[leaf](batch).A) for leaf, batch in (("unitary", (2,)), ("dense", ())))
    A = co.Unitary(Q) @ co.Dense(M)
    if name == "torch":
        check(A)
    assert tuple(co.norm(A).shape) == (2,)
    assert tuple(co.svd(A)[1].shape) == (2, N)


def test_zeros_keep_the_batch_of_what_they_meet():
    A = co.Zero(4, 3) @ co.Dense(np.ones((2, 3, 3))) @ co.Zero(3, 4)
    assert co.diag(A).shape == (2, 4)
    assert co.trace(A).shape == (2,)
    assert co.Product(co.Zero(4, 3) @ co.Dense(np.ones((2, 3, 3)))).shape == (2, 4, 3)
