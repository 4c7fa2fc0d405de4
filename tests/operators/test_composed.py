"""Composition: the exact simplifications, what they carry, and what they never do."""

from __future__ import annotations

from functools import reduce
from importlib import import_module
from operator import add, matmul

import numpy as np
import pytest
import scipy.sparse

import colinear as co
from colinear import backends
from colinear.errors import BackendError, ShapeError
from colinear.testing import forbid_dense

rng = np.random.default_rng(0)
sum_module, product_module = (
    import_module(f"colinear.operators.{name}") for name in ("sum", "product")
)


def dense(m, n=None):
    return co.Dense(rng.normal(size=(m, n or m)))


def same(A, B):
    B = B.to_dense() if isinstance(B, co.LinearOperator) else B
    np.testing.assert_allclose(A.to_dense(), B, rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------------- sums


def test_a_product_of_one_factor_is_that_factor():
    nothing = co.Product(co.LowRank(np.ones((2, 2, 1))), co.Zero(2, 2))
    assert co.Product(nothing) is nothing
    np.testing.assert_array_equal(co.diag(co.Diagonal(np.ones((2, 2))) @ nothing), np.zeros((2, 2)))


def test_nested_sums_are_flattened():
    A, B, C = dense(3), dense(3), dense(3)
    S = (A + B) + (C + A)
    assert isinstance(S, co.Sum) and len(S.operands) == 4
    same(S, A.A + B.A + C.A + A.A)


def test_diagonal_terms_of_a_sum_merge_into_one():
    A = dense(3)
    S = co.Identity(3) + A + co.Diagonal([1.0, 2, 3]) + 2 * co.Identity(3)
    assert [type(term) for term in S.operands] == [co.Diagonal, co.Dense]
    same(S, A.A + np.diag([4.0, 5, 6]))


def test_shifts_merge_into_a_scaled_identity():
    S = co.Identity(3) + 2.5 * co.Identity(3)
    assert isinstance(S, co.ScaledIdentity) and S.c == 3.5


def test_low_rank_terms_concatenate():
    U, V, W = rng.normal(size=(5, 2)), rng.normal(size=(5, 2)), rng.normal(size=(5, 1))
    S = co.LowRank(U, V) + co.LowRank(W) - co.LowRank(U)
    assert isinstance(S, co.LowRank) and S.U.shape == (5, 5)
    same(S, U @ V.T + W @ W.T - U @ U.T)


def test_sum_of_psd_low_rank_stays_psd():
    assert (co.LowRank(rng.normal(size=(5, 1))) + co.LowRank(rng.normal(size=(5, 2)))).isa(co.PSD)


def test_zeros_are_dropped_from_sums():
    A = dense(3)
    assert (A + co.Zero(3, 3)) is A


def test_a_dropped_zero_never_loses_batch_shape():
    A = dense(3)
    Z = 0 * co.Dense(np.zeros((4, 3, 3)))
    assert (A + Z).shape == (4, 3, 3)


def test_sum_builtin_works():
    A, B = dense(3), dense(3)
    same(sum([A, B]), A.A + B.A)


def test_number_plus_operator_is_refused_with_a_remedy():
    with pytest.raises(TypeError, match=r"c \* Identity\(3\)"):
        dense(3) + 2.0


def test_sums_of_different_shapes_are_refused():
    with pytest.raises(ShapeError, match="3x3 and 4x4"):
        dense(3) + dense(4)


def test_sum_of_many_terms_is_linear_in_their_number():
    S = co.Sum(*[co.Diagonal(np.ones(2))] * 20_000, *[dense(2)] * 20_000)
    assert len(S.operands) == 20_001


# ---------------------------------------------------------------------- products


def test_products_flatten_and_pull_scalars_out():
    A, B = dense(3), dense(3)
    P = (2 * A) @ (3 * (B @ A))
    assert isinstance(P, co.Scaled) and P.scalar == 6 and len(P.A.operands) == 3
    same(P, 6 * A.A @ B.A @ A.A)


def test_identities_and_zeros_in_products():
    A = dense(3, 4)
    assert (co.Identity(3) @ A) is A and (A @ co.Identity(4)) is A
    Z = A @ co.Zero(4, 2)
    assert isinstance(Z, co.Zero) and Z.shape == (3, 2) and Z.dtype == np.float64


def test_neighbouring_diagonals_and_permutations_merge():
    A = dense(3)
    assert isinstance(co.Diagonal([1.0, 2, 3]) @ co.Diagonal([2.0, 2, 2]), co.Diagonal)
    P = co.Permutation([1, 2, 0]) @ co.Permutation([2, 1, 0])
    assert isinstance(P, co.Permutation)
    x = np.arange(3.0)
    np.testing.assert_array_equal(P @ x, x[[2, 1, 0]][[1, 2, 0]])
    assert len((A @ co.Diagonal([1.0, 2, 3]) @ co.Diagonal([1.0, 2, 3])).operands) == 2


def test_mixed_product_property_of_kronecker():
    A, B, C, D = dense(2, 3), dense(4, 2), dense(3, 2), dense(2, 5)
    P = co.Kronecker(A, B) @ co.Kronecker(C, D)
    assert isinstance(P, co.Kronecker)
    same(P, np.kron(A.A @ C.A, B.A @ D.A))


def test_mixed_product_needs_fitting_shapes():
    P = co.Kronecker(dense(2, 3), dense(3, 2)) @ co.Kronecker(dense(2, 2), dense(3, 3))
    assert isinstance(P, co.Product)


def test_products_that_do_not_chain_are_refused():
    with pytest.raises(ShapeError, match="3x4 and 3x4"):
        dense(3, 4) @ dense(3, 4)


# ---------------------------------------------------------------------- what is inferred


def test_gram_products_are_psd_and_congruences_inherit():
    B = dense(5, 3)
    M = co.PSD(np.eye(5))
    assert (B.H @ B).isa(co.PSD) and (B.T @ B).isa(co.PSD) and (B @ B.H).isa(co.PSD)
    assert (B.H @ M @ B).isa(co.PSD)
    assert not (B.H @ dense(5) @ B).isa(co.SelfAdjoint)
    assert (B.H @ co.SelfAdjoint(np.diag([1.0, -1, 1, 1, 1])) @ B).isa(co.SelfAdjoint)


def test_a_gram_product_of_complex_multiples_is_psd_whatever_rounding_makes_of_the_scalar():
    # conj(c) c has an imaginary part where products are fused with sums
    c = 0.0035685 - 1.69322451j
    for A in (
        co.ScaledIdentity(c, 2),
        co.Scaled(np.array(c), co.Dense(np.ones((2, 2)))),
        c * co.Permutation([1, 0]),
    ):
        gram = A.H @ A
        assert gram.isa(co.PSD) and co.eigmax(gram) >= abs(c) ** 2 * (1 - 1e-12)
    assert not (A @ A).isa(co.SelfAdjoint)


def test_complex_gram_product_by_transpose_is_only_symmetric():
    B = co.Dense(rng.normal(size=(5, 3)) + 1j * rng.normal(size=(5, 3)))
    assert (
        (B.H @ B).isa(co.PSD) and not (B.T @ B).isa(co.SelfAdjoint) and (B.T @ B).isa(co.Symmetric)
    )


def test_a_gram_product_in_which_complex_diagonals_merge_is_psd():
    D = co.Diagonal([1.0 + 2.0j, -0.3j])
    P = D @ dense(2, 3)
    assert (P.H @ P).isa(co.PSD) and (D.H @ D).isa(co.PSD)
    assert not (D @ D).isa(co.SelfAdjoint) and (D @ D).isa(co.Symmetric)


def test_nested_gram_product_is_seen_through_the_flattening():
    A, B = dense(4, 3), dense(3, 2)
    P = A @ B
    assert (P.H @ P).isa(co.PSD)
    K = co.Kronecker(A, B)
    assert (K.H @ K).isa(co.PSD)


@pytest.mark.parametrize(
    ("c", "psd"), [(2.0, True), (-2.0, False), (0.0, True), (1j, False), (np.float64(3), True)]
)
def test_sign_of_a_scalar_decides_on_psd(c, psd):
    A = c * co.PD(np.eye(3) * 2)
    assert A.isa(co.PSD) == psd
    assert A.isa(co.PD) == (psd and c != 0)


def test_negative_psd_is_self_adjoint_only():
    A = -co.PSD(np.eye(3))
    assert A.isa(co.SelfAdjoint) and not A.isa(co.PSD) and (-A).isa(co.PSD)


def test_sum_of_psd_with_a_definite_term_is_definite():
    A = co.PSD(np.ones((3, 3))) + 0.1 * co.Identity(3)
    assert A.isa(co.PD)
    assert not (co.PSD(np.ones((3, 3))) - co.Identity(3)).isa(co.PSD)


@pytest.mark.parametrize("annotation", [co.SelfAdjoint, co.Symmetric, co.PSD, co.PD, co.Unitary])
def test_kronecker_and_blocks_carry_every_annotation(annotation):
    A = annotation(np.eye(2))
    assert co.Kronecker(A, A).isa(annotation) and co.BlockDiag(A, A).isa(annotation)
    assert not co.Kronecker(A, dense(2)).isa(annotation)
    assert A.T.isa(annotation) and A.H.isa(annotation) and A.conj().isa(annotation)


def test_schur_product_theorem():
    A = co.PSD(np.eye(3)) * co.PSD(np.ones((3, 3)))
    assert isinstance(A, co.Hadamard) and A.isa(co.PSD)


def test_transpose_of_complex_hermitian_is_its_conjugate_not_itself():
    X = rng.normal(size=(3, 3)) + 1j * rng.normal(size=(3, 3))
    A = co.SelfAdjoint(X + X.conj().T)
    assert A.H is A
    same(A.T, A.to_dense().T)
    assert A.T.isa(co.SelfAdjoint)


def test_mirrored_blocks_are_self_adjoint():
    A, B = co.SelfAdjoint(np.eye(2)), dense(2, 3)
    assert co.Block([[A, B], [B.H, None]]).isa(co.SelfAdjoint)
    assert not co.Block([[A, B], [dense(3, 2), None]]).isa(co.SelfAdjoint)


# ---------------------------------------------------------------------- blocks, Kronecker sums, batch sums


def test_block_grid_against_dense():
    A, B, C, D = dense(2, 3), dense(2, 1), dense(4, 3), dense(4, 1)
    M = np.block([[A.A, B.A], [C.A, D.A]])
    same(co.Block([[A, B], [C, D]]), M)
    same(co.Block([[A, B], [C, D]]).T, M.T)
    same(co.hstack(A, B), M[:2])
    same(co.vstack([A, C]), M[:, :3])
    x = rng.normal(size=4)
    np.testing.assert_allclose(
        co.Block([[A, B], [C, None]]) @ x, np.block([[A.A, B.A], [C.A, 0 * D.A]]) @ x
    )


def test_block_with_zero_off_diagonal_is_block_diagonal():
    assert isinstance(co.Block([[dense(2), None], [None, dense(3)]]), co.BlockDiag)


@pytest.mark.parametrize(
    ("grid", "match"),
    [
        ([], "non-empty"),
        ([[np.eye(2)], [np.eye(2), np.eye(2)]], "same number"),
        ([[np.eye(2), np.eye(3)]], "row 0"),
        ([[np.eye(2), None]], "column 1"),
    ],
)
def test_bad_grids_are_refused(grid, match):
    with pytest.raises(ShapeError, match=match):
        co.Block(grid)


def test_kronecker_sum_against_its_definition():
    A, B, C = dense(2), dense(3), dense(2)
    want = (
        np.kron(np.kron(A.A, np.eye(3)), np.eye(2))
        + np.kron(np.kron(np.eye(2), B.A), np.eye(2))
        + np.kron(np.kron(np.eye(2), np.eye(3)), C.A)
    )
    same(co.KroneckerSum(A, B, C), want)
    same(co.KroneckerSum(A, co.KroneckerSum(B, C)), want)
    with pytest.raises(ShapeError, match="square"):
        co.KroneckerSum(A, dense(2, 3))


def test_kronecker_never_builds_the_product():
    A = co.Kronecker(dense(100), dense(90))
    x = rng.normal(size=9000)
    with forbid_dense(10_000):
        y = A @ x
    np.testing.assert_allclose(
        y, (A.operands[0].A @ x.reshape(100, 90) @ A.operands[1].A.T).ravel()
    )


def test_batch_sum_of_a_million_terms_is_one_object():
    X = rng.normal(size=(1_000_000, 3))
    A = co.BatchSum(co.LowRank(X[:, :, None]))
    assert A.shape == (3, 3) and A.isa(co.PSD) and A.terms == 1_000_000
    np.testing.assert_allclose(A @ np.ones(3), X.T @ (X @ np.ones(3)))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_batch_sum_over_any_axis(axis):
    M = rng.normal(size=(2, 3, 4, 5))
    A = co.BatchSum(co.Dense(M), axis)
    want = M.sum(axis if axis >= 0 else axis - 2)
    same(A, want)
    X = rng.normal(size=(want.shape[0], 5, 2))
    np.testing.assert_allclose(A @ X, want @ X)
    same(A.T, np.swapaxes(want, -1, -2))


def test_batch_sum_needs_a_batch():
    with pytest.raises(ShapeError, match="batch dimension"):
        co.BatchSum(dense(3))
    with pytest.raises(ShapeError, match="axis 1"):
        co.BatchSum(co.Dense(np.zeros((2, 3, 3))), axis=1)


# ---------------------------------------------------------------------- scalars, powers, opaque


def test_scalars_and_raw_arrays_on_both_sides():
    A, M = dense(3), rng.normal(size=(3, 3))
    same(2 * A, 2 * A.A)
    same(A * np.array(2.0), 2 * A.A)
    same(A / 4, A.A / 4)
    same(M + A, M + A.A)
    same(A - M, A.A - M)
    same(M - A, M - A.A)
    np.testing.assert_allclose(M @ A, M @ A.A)
    np.testing.assert_allclose(M[0] @ A, M[0] @ A.A)
    same(A * M, A.A * M)
    same(-A, -A.A)


def test_natural_powers_are_products():
    A = dense(3)
    same(A**3, A.A @ A.A @ A.A)
    assert isinstance(A**0, co.Identity) and A**1 is A
    with pytest.raises(ShapeError, match="square"):
        dense(3, 4) ** 2


def test_batch_of_scalars():
    c, A = np.array([1.0, 2.0]), dense(3)
    S = co.Scaled(c, A)
    assert S.shape == (2, 3, 3)
    np.testing.assert_allclose(S.to_dense(), c[:, None, None] * A.A)
    x = rng.normal(size=3)
    np.testing.assert_allclose(S @ x, c[:, None] * (A.A @ x))


def test_opaque_hides_structure_and_keeps_claims():
    A = co.opaque(co.PSD(co.Kronecker(np.eye(2), np.eye(3))))
    assert A.operands == () and A.isa(co.PSD)
    same(A, np.eye(6))


def test_hadamard_multiplies_in_blocks():
    A, B = dense(4, 3), co.LowRank(rng.normal(size=(4, 1)), rng.normal(size=(3, 1)))
    same(A * B, A.A * B.to_dense())
    X = rng.normal(size=(3, 2))
    np.testing.assert_allclose((A * B) @ X, (A.A * B.to_dense()) @ X)


def test_frameworks_do_not_mix():
    torch = pytest.importorskip("torch")
    A = co.Dense(torch.eye(3))
    for other in (dense(3), np.eye(3)):
        with pytest.raises(BackendError, match=r"(torch.*numpy|numpy.*torch)"):
            A + other
    with pytest.raises(BackendError, match=r"torch.*numpy"):
        A @ np.ones(3)


def test_products_with_sparse_tensors_are_operators():
    torch = pytest.importorskip("torch")
    A, S = co.Diagonal(torch.tensor([1.0, 2.0])), torch.tensor([[0.0, 3.0], [4.0, 0.0]]).to_sparse()
    for product, want in ((A @ S, [[0.0, 3.0], [8.0, 0.0]]), (S @ A, [[0.0, 6.0], [4.0, 0.0]])):
        assert isinstance(product, co.Product) and product.to_dense().tolist() == want


def test_neutral_operators_take_what_they_meet():
    torch = pytest.importorskip("torch")
    A = co.Dense(torch.eye(3, dtype=torch.float32)) + 2 * co.Identity(3)
    assert A.backend == "torch" and A.dtype is torch.float32
    y = co.Identity(3) @ torch.ones(3)
    assert isinstance(y, torch.Tensor) and y.dtype is torch.float32
    assert co.Identity(3).backend == "numpy" and co.Identity(3).dtype == np.float64


def test_dtypes_promote_over_all_terms_not_the_first():
    A = co.Dense(np.eye(2, dtype=np.float32))
    assert (A + co.Dense(np.eye(2))).dtype == np.float64
    assert (co.Diagonal(np.ones(2, np.float32)) @ A).dtype == np.float32
    assert (1j * A).dtype == np.complex64 and (2 * A).dtype == np.float32
    assert ((2 * A) @ np.ones(2, np.float32)).dtype == np.float32


def test_what_is_real_and_semidefinite_is_symmetric():
    for A in (co.LowRank(np.ones((3, 1))), co.Projection(np.eye(3)[:, :1])):
        assert A.isa(co.Symmetric) and A.isa(co.SelfAdjoint)
    assert not co.LowRank(1j * np.ones((3, 1))).isa(co.Symmetric)


# ------------------------------------------------------------------------------- many small blocks


@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("batch", [(), (2,)])
@pytest.mark.parametrize("kind", ["dense", "wide", "lower", "upper", "of two sizes", "a grid"])
def test_many_small_blocks_are_multiplied_and_put_together_as_few_ones_are(backend, batch, kind):
    pytest.importorskip(backend)
    xp, rng, count = backends.get(backend), np.random.default_rng(0), 9
    shapes = [
        (3, 4 if kind == "wide" or (kind == "of two sizes" and i) else 3) for i in range(count)
    ]
    parts = [rng.standard_normal((*batch, *shape)).astype(np.float32) for shape in shapes]
    if kind in ("lower", "upper"):
        blocks = [co.Triangular(xp.asarray(M), lower=kind == "lower") for M in parts]
        parts = [np.tril(M) if kind == "lower" else np.triu(M) for M in parts]
    else:
        blocks = [co.Dense(xp.asarray(M)) for M in parts]
    if kind == "a grid":
        A = co.Block(
            [[blocks[j] if j in (i, i - 1) else None for j in range(count)] for i in range(count)]
        )
        places = [(i, j, j) for i in range(count) for j in (i, i - 1) if j >= 0]
    else:
        A, places = co.BlockDiag(*blocks), [(i, i, i) for i in range(count)]
    rows, columns = (np.cumsum([0, *(shape[k] for shape in shapes)]) for k in (0, 1))
    dense = np.zeros((*batch, rows[-1], columns[-1]), np.float32)
    for i, j, k in places:
        dense[..., rows[i] : rows[i + 1], columns[j] : columns[j + 1]] = parts[k]
    assert np.array_equal(xp.to_numpy(A.to_dense()), dense)
    for B, M in ((A, dense), (A.H, np.swapaxes(dense, -1, -2))):
        X = rng.standard_normal((M.shape[-1], 2)).astype(np.float32)
        np.testing.assert_allclose(xp.to_numpy(B @ xp.asarray(X)), M @ X, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------------- growth


def count_calls(monkeypatch, module, name):
    """The calls of a function of a module from now on, as a list that grows."""
    calls, plain = [], getattr(module, name)
    monkeypatch.setattr(module, name, lambda *given: calls.append(given) or plain(*given))
    return calls


def test_a_sum_grows_by_a_term_without_asking_the_others(monkeypatch):
    merged = count_calls(monkeypatch, sum_module, "_merge")
    terms = [co.PSD(dense(3)) for _ in range(40)]
    S = reduce(add, terms)
    assert S.operands == tuple(terms) and len(merged) == 1
    assert S.isa(co.PSD) and S.shape == (3, 3) and S.dtype == np.float64
    assert not S._claims  # as of Sum(*terms): its terms say it
    same(S, sum(term.to_dense() for term in terms))
    S = S + co.Diagonal([1.0, 2.0, 3.0]) + dense(3) + 2.0 * co.Identity(3)
    assert len(S.operands) == 42 and not S.isa(co.SelfAdjoint)


def test_sums_that_grow_keep_claims_pairs_and_promotion():
    A, B, C = dense(3), dense(3), co.Dense(1j * rng.normal(size=(3, 3)))
    assert (A + B + B.H + A.H).isa(co.SelfAdjoint) and (A.H + B + B.H + A).isa(co.SelfAdjoint)
    assert not (A + B + A.H).isa(co.SelfAdjoint)
    assert (co.PSD(A + A.H) + co.PSD(B) + co.PSD(B)).isa(co.PSD)
    assert (A + B + C).dtype == np.complex128
    batched = A + B + co.Dense(rng.normal(size=(2, 3, 3)))
    assert batched.shape == (2, 3, 3) and (batched + A).shape == (2, 3, 3)
    with pytest.raises(ShapeError):
        A + B + dense(2)
    with pytest.raises(BackendError):
        A + B + co.Dense(backends.get("torch").asarray(np.eye(3)))


def test_a_product_grows_by_a_factor_without_opening_the_others(monkeypatch):
    opened = count_calls(monkeypatch, product_module, "_open")
    factors = [dense(3) for _ in range(40)]
    P = reduce(matmul, factors)
    assert P.operands == tuple(factors) and len(opened) == 1
    same(P, reduce(matmul, [A.A for A in factors]))
    A, B = factors[:2]
    assert (A.H @ B @ B.H @ A).isa(co.PSD) and (A @ B @ A.H).operands[0] is A
    assert (A @ B @ co.Identity(3)).operands == (A, B)
    assert isinstance(A @ B @ (2.0 * A), co.Scaled)
    D = co.Diagonal([1.0, 2.0, 3.0])
    assert len((A @ B @ D @ D).operands) == 3


ALIKE = {
    "dense": lambda xp: co.Dense(xp.asarray(rng.normal(size=(6, 6)))),
    "rectangular": lambda xp: co.Dense(xp.asarray(rng.normal(size=(6, 4)) * 1j)),
    "toeplitz": lambda xp: co.Toeplitz(*xp.asarray(rng.normal(size=(2, 6)))),
    "circulant": lambda xp: co.Circulant(xp.asarray(rng.normal(size=6))),
    "tridiagonal": lambda xp: co.Tridiagonal(*[xp.asarray(rng.normal(size=n)) for n in (5, 6, 5)]),
    "banded": lambda xp: co.Banded([xp.asarray(rng.normal(size=n)) for n in (6, 4)], [0, 2]),
    "sparse": lambda xp: co.Sparse(
        scipy.sparse.csr_array((rng.normal(size=3), [3, 4, 0], [0, 1, 1, 1, 2, 3, 3]), (6, 6))
    ).to(backend=xp.name),
}


@pytest.mark.parametrize("kind", ALIKE)
def test_alike_terms_and_blocks_are_one_product_of_a_traced_program(kind):
    jax, xp = pytest.importorskip("jax"), backends.get("jax")
    terms = [ALIKE[kind](xp) for _ in range(12)]
    odd = co.Diagonal(xp.asarray(rng.normal(size=6))) if kind != "rectangular" else terms[0]
    for A in (co.BlockDiag(*terms), co.Sum(*terms, odd), co.Sum(*terms[:9], 2.0 * terms[10])):
        x, X = (xp.asarray(rng.normal(size=(A.shape[-1], *k))) for k in ((), (3,)))
        matrix, multiply = np.asarray(A.to_dense()), lambda A, x: A @ x
        for given in (x, X, xp.stack([X, 2 * X])):
            np.testing.assert_allclose(jax.jit(multiply)(A, given), matrix @ given, rtol=1e-9)
        np.testing.assert_allclose(jax.jit(lambda A: A.to_dense())(A), matrix, rtol=1e-12)


@pytest.mark.parametrize("kind", ALIKE)
def test_a_traced_program_does_not_grow_with_alike_terms(kind):
    jax, xp = pytest.importorskip("jax"), backends.get("jax")
    work = ("dot_general[", "fft[", "gather[", "scatter-add[", "mul ", "add ", "add_any ")
    for family in (co.Sum, co.BlockDiag):
        counts = []
        for size in (12, 24):
            A = family(*[ALIKE[kind](xp) for _ in range(size)])
            program = str(
                jax.make_jaxpr(lambda A, x: A @ x)(A, xp.asarray(rng.normal(size=A.shape[-1])))
            )
            counts.append([program.count(name) for name in work])
        assert counts[0] == counts[1]
