"""The families that store their matrix or a part of it (Dense, Sparse, Diagonal, ..., Permutation), against that matrix."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import scipy.sparse
from support.stored_operators import STORED, draw

from colinear import backends
from colinear.errors import BackendError, ColinearError, DtypeError, ShapeError
from colinear.operators.banded import Banded, Tridiagonal
from colinear.operators.dense import Dense, Triangular
from colinear.operators.diagonal import Diagonal, Identity, ScaledIdentity, Zero
from colinear.operators.sparse import Sparse, SparseStructure
from colinear.operators.unitary import Permutation
from colinear.properties import PD, PSD, SelfAdjoint, Symmetric, Unitary

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
jnp = jax.numpy

BACKENDS = ("numpy", "torch", "jax")
DTYPES = ("float32", "float64", "complex64", "complex128")
TOLERANCE = {
    "float16": 1e-2,
    "float32": 1e-5,
    "float64": 1e-12,
    "complex64": 1e-5,
    "complex128": 1e-12,
}


def host(x) -> np.ndarray:
    return np.asarray(backends.namespace_of(x).to_numpy(x))


def close(actual, expected, dtype) -> None:
    actual = host(actual)
    assert actual.shape == np.shape(expected)
    np.testing.assert_allclose(actual, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def make(name, backend, dtype, batch=()):
    xp = backends.get(backend)
    rng = np.random.default_rng(len(name))
    return xp, *STORED[name](xp, dtype, batch, rng), rng


# ------------------------------------------------------------------ every maker, framework, dtype and batch


EVERYWHERE = [
    (backend, dtype, batch)
    for backend in BACKENDS
    for dtype in (*DTYPES, "float16")
    for batch in ((), (2,))
]
# JAX compiles each shape and dtype anew, so there not every pair of them is tried.
TRIED = [
    case
    for case in EVERYWHERE
    if case[0] != "jax" or case[2] == () or case[1] in ("float32", "complex128")
]


@pytest.mark.parametrize(("backend", "dtype", "batch"), TRIED, ids=str)
@pytest.mark.parametrize("name", STORED)
def test_products_transposes_and_dense_agree_with_the_matrix(name, backend, dtype, batch):
    xp, A, matrix, rng = make(name, backend, dtype, batch)
    assert A.shape == matrix.shape
    assert A.backend == backend and xp.dtype_name(A.dtype) == dtype
    transposed = np.matrix_transpose(matrix)
    few = backend == "jax" and dtype not in ("float32", "complex128")
    images = [matrix, transposed.conj(), transposed, matrix.conj()][: 2 if few else 4]
    shapes = [(), (3,), (4, *(1 for _ in batch), 2)][: 2 if few else 3]  # but for their rows
    blocks = [
        [draw(xp, dtype, (*shape[:-1], dense.shape[-1], *shape[-1:]), rng) for shape in shapes]
        for dense in images
    ]
    left, left_exact = draw(xp, dtype, matrix.shape[-2:-1], rng)

    def products(A, blocks, left):
        operators = (A, A.H, A.T, A.conj())
        return left @ A, [
            [B.to_dense(), *(B @ x for x in some)]
            for B, some in zip(operators, blocks, strict=False)
        ]

    # one program in JAX, which would compile each of its many operations
    run = xp.jit(products) if backend == "jax" else products
    last, computed = run(A, [[x for x, _ in some] for some in blocks], left)
    for results, some, dense in zip(computed, blocks, images, strict=True):
        expected = [dense, *(dense @ exact for _, exact in some)]
        for result, value in zip(results, expected, strict=True):
            assert result.shape == value.shape and xp.dtype_name(result.dtype) == dtype
            close(result, value, dtype)
    close(last, left_exact @ matrix, dtype)


@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", STORED)
def test_a_wider_right_side_promotes(name, backend, batch):
    xp, A, matrix, rng = make(name, backend, "float32", batch)
    for dtype in ("float64", "complex64", "complex128"):
        x, exact = draw(xp, dtype, (matrix.shape[-1],), rng)
        product = A @ x
        assert xp.dtype_name(product.dtype) == dtype
        close(product, matrix @ exact, "float32")
    xp, A, matrix, rng = make(name, backend, "complex128", batch)
    x, exact = draw(xp, "float32", (matrix.shape[-1], 2), rng)
    assert xp.dtype_name((A @ x).dtype) == "complex128"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", STORED)
def test_pickle_keeps_values_and_claims(name, backend):
    _, A, matrix, _ = make(name, backend, "float64", (2,))
    B = pickle.loads(pickle.dumps(A))
    assert type(B) is type(A) and B.properties == A.properties and B.dtype == A.dtype
    close(B.to_dense(), matrix, "float64")


@pytest.mark.parametrize("name", STORED)
def test_jax_tree_jit_and_vmap(name):
    xp, A, matrix, rng = make(name, "jax", "float64", (2,))
    leaves, structure = jax.tree_util.tree_flatten(A)
    B = jax.tree_util.tree_unflatten(structure, leaves)
    assert type(B) is type(A) and B.shape == A.shape and B.properties == A.properties
    assert hash(structure) == hash(
        jax.tree_util.tree_structure(B)
    ) and structure == jax.tree_util.tree_structure(B)
    x, exact = draw(xp, "float64", (matrix.shape[-1],), rng)
    seen = []

    @jax.jit
    def product(A, x):
        seen.append(A.properties)
        return A @ x, A.T.to_dense(), A.H @ (A @ x[:, None])

    for _ in range(2):
        y, transposed, normal = product(A, x)
    assert seen == [A.properties]  # traced once, and what was known is known there
    close(y, matrix @ exact, "float64")
    close(transposed, np.matrix_transpose(matrix), "float64")
    close(normal[..., 0], (np.matrix_transpose(matrix) @ matrix) @ exact, "float64")
    if A.batch_shape and all(np.ndim(leaf) and leaf.shape[0] == 2 for leaf in leaves) and leaves:
        close(jax.vmap(lambda A: A @ x)(A), matrix @ exact, "float64")
        close(jax.vmap(lambda A: A.to_dense())(A), matrix, "float64")


@pytest.mark.parametrize("name", STORED)
def test_jax_and_torch_gradients_of_leaves_agree(name):
    _, A, matrix, _ = make(name, "jax", "float64")
    _, B, _, rng = make(name, "torch", "float64")
    x, u = rng.standard_normal(matrix.shape[-1]), rng.standard_normal(matrix.shape[-2])
    slope = (
        jax.grad(lambda A: jnp.vdot(u, jnp.sin(A @ jnp.asarray(x))))(A)
        if jax.tree_util.tree_leaves(A)
        else None
    )
    if slope is None:
        return
    assert type(slope) is type(A)
    leaves, structure = torch.utils._pytree.tree_flatten(B)
    leaves = [
        torch.as_tensor(leaf, dtype=torch.float64).clone().requires_grad_() for leaf in leaves
    ]
    loss = torch.dot(
        torch.as_tensor(u),
        torch.sin(torch.utils._pytree.tree_unflatten(leaves, structure) @ torch.as_tensor(x)),
    )
    for ours, theirs in zip(
        jax.tree_util.tree_leaves(slope), torch.autograd.grad(loss, leaves), strict=True
    ):
        close(theirs, np.asarray(ours), "float64")
        assert np.isfinite(np.asarray(ours)).all()


@pytest.mark.parametrize("name", STORED)
def test_torch_tree_and_vmap(name):
    _, A, matrix, rng = make(name, "torch", "float64", (2,))
    leaves, structure = torch.utils._pytree.tree_flatten(A)
    B = torch.utils._pytree.tree_unflatten(leaves, structure)
    assert type(B) is type(A) and B.shape == A.shape and B.properties == A.properties
    X = torch.as_tensor(rng.standard_normal((4, matrix.shape[-1])))
    _, C, single, _ = make(name, "torch", "float64")
    close(torch.func.vmap(lambda x: C @ x)(X), X.numpy() @ single.T, "float64")
    if leaves and all(
        torch.is_tensor(leaf) and leaf.ndim and leaf.shape[0] == 2 for leaf in leaves
    ):
        close(torch.func.vmap(lambda A: A @ X[0])(A), matrix @ X[0].numpy(), "float64")


@pytest.mark.parametrize("name", STORED)
def test_torch_compile_makes_one_graph(name):
    _, A, matrix, rng = make(name, "torch", "float64")
    torch.compiler.reset()
    x = torch.as_tensor(rng.standard_normal(matrix.shape[-1]))
    close(
        torch.compile(lambda x: A @ x, fullgraph=True, backend="eager")(x),
        matrix @ x.numpy(),
        "float64",
    )


@pytest.mark.parametrize("name", STORED)
def test_what_is_inferred_holds(name):
    for dtype in ("float64", "complex128"):
        _, A, matrix, _ = make(name, "numpy", dtype)
        if A.isa(Symmetric):
            np.testing.assert_array_equal(matrix, matrix.T)
        if A.isa(SelfAdjoint):
            np.testing.assert_array_equal(matrix, matrix.conj().T)
        if A.isa(PSD):
            assert np.linalg.eigvalsh(matrix).min() >= 0
        if A.isa(PD):
            assert np.linalg.eigvalsh(matrix).min() > 0
        if A.isa(Unitary):
            np.testing.assert_allclose(matrix.conj().T @ matrix, np.eye(len(matrix)))


# ------------------------------------------------------------------ properties


def test_inferred_properties():
    assert (
        Diagonal([1.0, -1.0]).isa(SelfAdjoint)
        and Diagonal([1.0]).isa(Symmetric)
        and not Diagonal([1.0]).isa(PSD)
    )
    assert Diagonal([1j]).isa(Symmetric) and not Diagonal([1j]).isa(SelfAdjoint)
    assert (
        Identity(3).isa(PD)
        and Identity(3).isa(Unitary)
        and Identity(3, dtype="complex64").isa(SelfAdjoint)
    )
    assert Zero(2, 2).isa(PSD) and not Zero(2, 2).isa(PD) and not Zero(2, 3).isa(Symmetric)
    assert Permutation([1, 0]).isa(Unitary) and not Permutation([1, 2, 0]).isa(SelfAdjoint)
    assert Dense(np.eye(2)).properties == 0
    # symmetry is in the values, which are not looked at
    assert Tridiagonal([1.0], [1.0, 1.0], [1.0]).properties == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_sign_of_a_scalar_is_remembered(backend):
    xp = backends.get(backend)
    for make_scalar in (
        float,
        lambda c: xp.asarray(c),
        lambda c: xp.asarray([c, 2 * c]),
        np.float64,
    ):
        assert ScaledIdentity(make_scalar(2.0), 3).isa(PD)
        assert ScaledIdentity(make_scalar(0.0), 3).isa(PSD) and not ScaledIdentity(
            make_scalar(0.0), 3
        ).isa(PD)
        assert ScaledIdentity(make_scalar(-2.0), 3).isa(SelfAdjoint) and not ScaledIdentity(
            make_scalar(-2.0), 3
        ).isa(PSD)
    assert not ScaledIdentity(xp.asarray([1.0, -1.0]), 3).isa(PSD) and ScaledIdentity(
        xp.asarray([1.0, -1.0]), 3
    ).isa(Unitary)
    assert ScaledIdentity(-1, 3).isa(Unitary) and ScaledIdentity(1j, 3).isa(Unitary)
    assert not ScaledIdentity(1j, 3).isa(SelfAdjoint)
    assert not ScaledIdentity(xp.asarray(np.nan), 3).isa(PSD)


def test_the_sign_of_a_scalar_survives_jit():
    seen = []
    jax.jit(lambda A: seen.append(A.isa(PD)) or A @ jnp.ones(3))(
        ScaledIdentity(jnp.asarray(2.0), 3)
    )
    jax.jit(lambda c: seen.append(ScaledIdentity(c, 3).isa(PSD)) or c)(2.0)
    assert seen == [True, False]


# ------------------------------------------------------------------ neutral operators


@pytest.mark.parametrize("dtype", ["float16", "float32", "complex128"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_neutral_operators_take_everything_from_what_they_meet(backend, dtype):
    xp = backends.get(backend)
    x, exact = draw(xp, dtype, (3,), np.random.default_rng(0))
    for A, matrix in (
        (Identity(3), np.eye(3)),
        (ScaledIdentity(2, 3), 2 * np.eye(3)),
        (Zero(2, 3), np.zeros((2, 3))),
        (Permutation([2, 0, 1]), np.eye(3)[[2, 0, 1]]),
        (Permutation(xp.asarray([2, 0, 1])), np.eye(3)[[2, 0, 1]]),
    ):
        assert A.is_neutral and A.backend == "numpy" and A.dtype == np.float64
        y = A @ x
        assert backends.namespace_of(y) is xp and xp.dtype_name(y.dtype) == dtype
        close(y, matrix @ exact, dtype)
        np.testing.assert_array_equal(A.to_dense(), matrix)


def test_a_complex_number_makes_a_neutral_operator_complex_of_any_precision():
    A = ScaledIdentity(2j, 3)
    assert A.is_neutral and A.is_complex and A.dtype == np.complex128
    assert (A @ torch.ones(3)).dtype == torch.complex64 and (A @ np.ones(3)).dtype == np.complex128
    np.testing.assert_array_equal(A.H.to_dense(), -2j * np.eye(3))
    np.testing.assert_array_equal(A.conj() @ np.ones(3), np.full(3, -2j))


def zero(n, **told):
    return Zero(n, n, **told)


def permutation(n, **told):
    return Permutation(range(n), **told)


@pytest.mark.parametrize("family", [Identity, zero, permutation])
def test_like_and_dtype_pin_a_neutral_operator(family):
    A = family(2, dtype=torch.float32)
    assert A.backend == "torch" and A.dtype == torch.float32 and not A.is_neutral
    A = family(2, like=torch.ones(1, dtype=torch.float64))
    assert A.dtype == torch.float64 and str(A.device) == "cpu"
    A = family(2, like=Dense(jnp.ones((2, 2), jnp.complex64)))
    assert A.backend == "jax" and A.dtype == jnp.complex64
    assert family(2, like="torch", dtype="float64").dtype == torch.float64
    assert family(2, like="torch").dtype == torch.get_default_dtype()
    A = family(2, dtype="float32")
    assert A.is_neutral and A.dtype == np.float32
    assert (A @ np.ones(2)).dtype == np.float64 and (
        A @ torch.ones(2, dtype=torch.float16)
    ).dtype == torch.float32
    assert (family(2, dtype=np.complex64) @ jnp.ones(2, jnp.float32)).dtype == jnp.complex64
    with pytest.raises(BackendError, match="torch"):
        family(2, like="torch") @ np.ones(2)
    for wrong in ({"dtype": "int32"}, {"dtype": torch.int64}, {"dtype": "words"}, {"like": 3.0}):
        with pytest.raises(DtypeError):
            family(2, **wrong)
    with pytest.raises(ValueError, match="no backend"):
        family(2, like="fortran")


def test_zero_has_zero_derivatives_and_ignores_nan():
    x = torch.full((3,), torch.nan, requires_grad=True)
    y = Zero(2, 3) @ x
    assert (y == 0).all()
    y.sum().backward()
    assert (x.grad == 0).all()
    np.testing.assert_array_equal(Zero(2, 3) @ np.full((4, 3, 5), np.inf), np.zeros((4, 2, 5)))


# ------------------------------------------------------------------ single families


def test_triangular_reads_one_half_only_and_gives_it_alone_a_gradient():
    A = jnp.where(jnp.tri(4) > 0, 2.0, jnp.nan)
    slope = jax.grad(lambda A: (A @ jnp.ones(4)).sum())(Triangular(A)).A
    np.testing.assert_array_equal(slope, np.tri(4))
    slope = jax.grad(lambda A: (A @ jnp.ones(4)).sum())(Triangular(A, unit=True)).A
    np.testing.assert_array_equal(slope, np.tri(4, k=-1))


def test_triangular_of_a_trapezium():
    A = np.arange(1.0, 7.0).reshape(2, 3)
    np.testing.assert_array_equal(Triangular(A, lower=False) @ np.eye(3), np.triu(A))
    np.testing.assert_array_equal(
        Triangular(A.T, unit=True).to_dense(), np.tril(A.T, -1) + np.eye(3, 2)
    )


def test_permutation_is_indexing_and_its_transpose_undoes_it():
    perm, x = np.array([3, 1, 0, 2]), np.arange(4.0)
    P = Permutation(perm)
    np.testing.assert_array_equal(P @ x, x[perm])
    np.testing.assert_array_equal(P.T @ (P @ x), x)
    np.testing.assert_array_equal(P.H.H.perm.host, perm)
    perm[:] = 0  # the operator holds its own copy
    np.testing.assert_array_equal(P @ x, x[[3, 1, 0, 2]])
    Q = Permutation([[1, 0, 3, 2], [0, 1, 2, 3]])
    np.testing.assert_array_equal(P.compose(Q).to_dense(), P.to_dense() @ Q.to_dense())
    np.testing.assert_array_equal(Q.compose(P).to_dense(), Q.to_dense() @ P.to_dense())


def test_a_traced_permutation_is_data():
    x = jnp.arange(3.0)

    @jax.jit
    def products(perm):
        P = Permutation(perm)
        return P @ x, P.T @ x, P.compose(Permutation([1, 2, 0])).to_dense()

    y, z, composed = products(jnp.array([2, 0, 1]))
    np.testing.assert_array_equal(y, [2, 0, 1])
    np.testing.assert_array_equal(z, [1, 2, 0])
    np.testing.assert_array_equal(composed, np.eye(3))


def test_banded_is_scipys_diags():
    rng = np.random.default_rng(0)
    for shape, offsets in (
        ((5, 5), (0, -1, 3)),
        ((4, 7), (-2, 0, 5)),
        ((7, 4), (-6, -1, 2)),
        ((1, 3), (2,)),
        ((600, 700), (-599, 0, 1, 650)),
    ):
        diagonals = [
            rng.standard_normal(min(shape[0] + min(k, 0), shape[1] - max(k, 0))) for k in offsets
        ]
        A = Banded(diagonals, offsets, shape)
        expected = scipy.sparse.diags_array(diagonals, offsets=offsets, shape=shape).toarray()
        np.testing.assert_array_equal(A.to_dense(), expected)
        np.testing.assert_allclose(A @ np.eye(shape[1]), expected)
        np.testing.assert_allclose(A.T @ np.eye(shape[0]), expected.T)
    np.testing.assert_array_equal(
        Banded([1, [-2.0]], [0, 1], (3, 3)).to_dense(), np.eye(3) - 2 * np.eye(3, k=1)
    )


def test_long_bands_are_multiplied_in_blocks():
    n, rng = 70_001, np.random.default_rng(0)
    l, d, u, x = (
        rng.standard_normal(n - 1),
        rng.standard_normal(n),
        rng.standard_normal(n - 1),
        rng.standard_normal(n),
    )
    expected = scipy.sparse.diags_array([l, d, u], offsets=[-1, 0, 1]) @ x
    np.testing.assert_allclose(Tridiagonal(l, d, u) @ x, expected, atol=1e-14)


def test_lists_join_the_framework_and_precision_of_the_arrays_beside_them():
    A = Tridiagonal([0.1, 0.2], torch.ones(3, dtype=torch.float64), [1, 2])
    assert A.dtype == torch.float64 and A.lower[0].item() == 0.1
    A = Tridiagonal([0.1, 0.2], torch.ones(3), [1j, 2])
    assert A.dtype == torch.complex64 and A.lower.dtype == torch.float32


@pytest.mark.parametrize("backend", BACKENDS)
def test_zero_sizes(backend):
    xp = backends.get(backend)
    empty = xp.zeros((0,))
    for A in (
        Diagonal(empty), Dense(xp.zeros((0, 0))), Identity(0), Zero(0, 0), Triangular(xp.zeros((0, 0))),
        Tridiagonal(empty, empty, empty), Permutation([]), ScaledIdentity(2.0, 0), Banded([empty], [0]),
        Sparse.from_parts(empty, SparseStructure([0], [], (0, 0))),
    ):  # fmt: skip
        assert (
            A.shape == (0, 0)
            and (A @ empty).shape == (0,)
            and (A.T @ xp.zeros((0, 2))).shape == (0, 2)
        )
        assert A.to_dense().shape == (0, 0)
    one = Tridiagonal(empty, xp.ones((1,)), empty)
    close(one @ xp.ones((1,)), [1.0], "float32")
    assert (Dense(xp.zeros((0, 3))) @ xp.zeros((3,))).shape == (0,) and (
        Zero(3, 0) @ empty
    ).shape == (3,)
    none = Sparse.from_parts(empty, SparseStructure([0, 0, 0], [], (2, 3)))
    close(none @ xp.ones((3,)), [0, 0], "float32")


# ------------------------------------------------------------------ sparse formats


MATRIX = np.array([[0, 2.0, 0, 1], [0, 0, 0, 0], [3, 0, -1, 0]])


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bsr", "dia", "dok", "lil"])
def test_scipy_formats(format):
    for kind in (scipy.sparse.csr_array, scipy.sparse.csr_matrix):
        S = kind(MATRIX).asformat(format)
        A = Sparse(S)
        np.testing.assert_array_equal(A.to_dense(), MATRIX)
        np.testing.assert_array_equal(A @ np.eye(4), MATRIX)
        np.testing.assert_array_equal(A.T.to_dense(), MATRIX.T)
        assert (
            isinstance(A.S, scipy.sparse.csr_array)
            and (A.S != scipy.sparse.csr_array(MATRIX)).nnz == 0
        )


def test_scipy_duplicates_are_summed_and_the_users_matrix_is_left_alone():
    S = scipy.sparse.csr_array(
        (np.array([1.0, 2.0, 4.0, 8.0]), [2, 0, 0, 1], [0, 3, 4]), shape=(2, 3)
    )
    A = Sparse(S)
    np.testing.assert_array_equal(A.to_dense(), [[6, 0, 1], [0, 8, 0]])
    assert S.nnz == 4 and A.nnz == 3
    S = scipy.sparse.coo_array((np.array([1, 2, 4]), ([1, 0, 1], [2, 0, 2])), shape=(2, 3))
    np.testing.assert_array_equal(Sparse(S).to_dense(), [[2, 0, 0], [0, 0, 5]])
    assert Sparse(S).dtype == np.float64  # integers are promoted
    A.S.data[:] = 0
    np.testing.assert_array_equal(A.to_dense(), [[6, 0, 1], [0, 8, 0]])


@pytest.mark.filterwarnings(
    "ignore:Sparse CSR tensor support is in beta", "ignore:Sparse CSC tensor support is in beta"
)
def test_torch_formats_keep_the_graph():
    dense = torch.tensor(MATRIX)
    for S in (dense.to_sparse_coo(), dense.to_sparse_csr(), dense.to_sparse_csc()):
        A = Sparse(S)
        close(A.to_dense(), MATRIX, "float64")
        close(A.T @ torch.eye(3, dtype=torch.float64), MATRIX.T, "float64")
        assert A.S.layout == torch.sparse_csr and torch.equal(A.S.to_dense(), dense)
    values = torch.tensor([1.0, 2.0, 4.0], requires_grad=True)
    indices = torch.tensor([[1, 0, 1], [2, 0, 2]])  # unsorted, one twice
    A = Sparse(torch.sparse_coo_tensor(indices, values, (2, 3)))
    close(A.to_dense(), [[2, 0, 0], [0, 0, 5]], "float64")
    (A @ torch.tensor([1.0, 10.0, 100.0])).sum().backward()
    np.testing.assert_array_equal(values.grad, [100, 1, 100])


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_torch_batches_share_the_union_of_their_patterns():
    stack = torch.tensor(np.stack([MATRIX, np.roll(MATRIX, 1, axis=1)]))
    S = stack.to_sparse_coo().requires_grad_()
    A = Sparse(S)
    assert A.shape == (2, 3, 4)
    close(A.to_dense(), stack.numpy(), "float64")
    close(A @ torch.ones(4, dtype=torch.float64), stack.numpy() @ np.ones(4), "float64")
    close(Sparse(stack.to_sparse_csr()).to_dense(), stack.numpy(), "float64")
    close(A.S.to_dense(), stack.numpy(), "float64")


def test_jax_formats():
    from jax.experimental import sparse

    dense = jnp.asarray(MATRIX)
    for S in (
        sparse.BCOO.fromdense(dense),
        sparse.BCOO.fromdense(dense, nse=9),
        sparse.BCSR.fromdense(dense),
        sparse.BCSR.fromdense(dense, nse=9),
    ):
        A = Sparse(S)
        assert A.nnz == 4  # padding is dropped
        close(A.to_dense(), MATRIX, "float64")
        close(A.T @ jnp.eye(3), MATRIX.T, "float64")
        close(A.S.todense(), MATRIX, "float64")
    indices = jnp.array([[1, 2], [0, 0], [1, 2]])

    def total(values):
        return (
            Sparse(sparse.BCOO((values, indices), shape=(2, 3))) @ jnp.array([1.0, 10.0, 100.0])
        ).sum()

    slope = jax.grad(total)(jnp.ones(3))
    np.testing.assert_array_equal(slope, [100, 1, 100])
    stack = jnp.stack([dense, 2 * dense[:, ::-1]])
    for format in (sparse.BCOO, sparse.BCSR):
        A = Sparse(format.fromdense(stack, n_batch=1))
        close(A.to_dense(), np.asarray(stack), "float64")
        close(A @ jnp.ones(4), np.asarray(stack) @ np.ones(4), "float64")
    close(A.S.todense(), np.asarray(stack), "float64")


def test_traced_indices_are_refused():
    from jax.experimental import sparse

    S = sparse.BCOO.fromdense(jnp.asarray(MATRIX))
    with pytest.raises(BackendError, match="outside the transformation"):
        jax.jit(lambda S: Sparse(S) @ jnp.ones(4))(S)
    A = Sparse(S)
    close(jax.jit(lambda A: A @ jnp.ones(4))(A), MATRIX @ np.ones(4), "float64")


def test_structures_are_compared_by_content_and_transposed_once():
    one, two = (SparseStructure(*args) for args in [([0, 1, 2], [1, 0], (2, 2))] * 2)
    assert (
        one == two and hash(one) == hash(two) and one != SparseStructure([0, 1, 2], [0, 1], (2, 2))
    )
    assert one != SparseStructure([0, 1, 2, 2], [1, 0], (3, 2))
    assert one.transposed is one.transposed and one.transposed.transposed == one
    A = Sparse(scipy.sparse.csr_array(MATRIX))
    np.testing.assert_array_equal(A.T.T.to_dense(), MATRIX)
    np.testing.assert_array_equal(A.T.T.T.to_dense(), MATRIX.T)
    assert pickle.loads(pickle.dumps(one)) == one


def test_two_sparse_matrices_of_one_pattern_share_a_trace():
    count = []
    multiply = jax.jit(lambda A, x: count.append(1) or A @ x)
    for values in ([1.0, 2.0], [3.0, 4.0]):
        multiply(
            Sparse.from_parts(jnp.array(values), SparseStructure([0, 1, 2], [1, 0], (2, 2))),
            jnp.ones(2),
        )
    assert len(count) == 1


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("build", "error", "says"),
    [
        (lambda: Dense([1.0, 2.0]), ShapeError, "at least 2"),
        (lambda: Dense([[1, 2], [3]]), DtypeError, "not a numeric array"),
        (lambda: Dense([["a"]]), DtypeError, "dtype"),
        (lambda: Dense(np.array([[None]])), DtypeError, "object"),
        (lambda: Dense(Identity(2)), DtypeError, "to_dense"),
        (lambda: Dense(scipy.sparse.eye_array(2)), DtypeError, "Dense"),
        (lambda: Diagonal(3.0), ShapeError, "at least 1"),
        (lambda: Diagonal(None), DtypeError, "Diagonal"),
        (lambda: Identity(2.5), ShapeError, "integer"),
        (lambda: Identity(-1), ShapeError, "negative"),
        (lambda: Zero(2, "3"), ShapeError, "integer"),
        (lambda: ScaledIdentity("2", 3), DtypeError, "number"),
        (lambda: ScaledIdentity(None, 3), DtypeError, "number"),
        (lambda: ScaledIdentity(2.0, [3]), ShapeError, "integer"),
        (lambda: ScaledIdentity(np.ones(2), 3, like="torch"), ColinearError, "torch"),
        (lambda: Triangular([1.0, 2.0]), ShapeError, "at least 2"),
        (lambda: Triangular(np.eye(2), lower="yes"), DtypeError, "lower"),
        (lambda: Triangular(Identity(2)), DtypeError, "operator"),
        (lambda: Tridiagonal([1.0], [1.0, 2.0, 3.0], [1.0, 2.0]), ShapeError, "lower must have length 2"),
        (lambda: Tridiagonal([1.0, 1.0], [1.0, 2.0, 3.0], [1.0]), ShapeError, "upper must have length 2"),
        (lambda: Tridiagonal(np.ones((2, 1)), np.ones((3, 2)), np.ones(1)), ShapeError, "broadcast"),
        (lambda: Tridiagonal(torch.ones(1), np.ones(2), np.ones(1)), BackendError, "torch"),
        (lambda: Tridiagonal(1.0, [1.0, 2.0], 1.0), ShapeError, "at least 1"),
        (lambda: Banded([[1.0, 2.0]], [0, 1]), ShapeError, "as many"),
        (lambda: Banded([[1.0, 2.0], [1.0, 2.0]], [0, 0]), ShapeError, "repeat"),
        (lambda: Banded([[1.0, 2.0], [1.0, 2.0]], [0, 1]), ShapeError, "length 1; got 2"),
        (lambda: Banded([[1.0, 2.0]], [0.5]), ShapeError, "integers"),
        (lambda: Banded([[1.0, 2.0]], 0), ShapeError, "sequence"),
        (lambda: Banded(3.0, [0]), ShapeError, "sequence"),
        (lambda: Banded([], []), ShapeError, "Zero"),
        (lambda: Banded([[1.0, 2.0]], [0], (2, 2, 2)), ShapeError, "shape"),
        (lambda: Banded([[1.0, 2.0]], [5], (3, 3)), ShapeError, "offset 5"),
        (lambda: Permutation([0, 0, 1]), ShapeError, "once"),
        (lambda: Permutation([0, 3, 1]), ShapeError, "once"),
        (lambda: Permutation([0, -1]), ShapeError, "once"),
        (lambda: Permutation([0.0, 1.0]), ShapeError, "integers"),
        (lambda: Permutation([True, False]), ShapeError, "integers"),
        (lambda: Permutation(0), ShapeError, "dimension"),
        (lambda: Permutation([[0, 1], [0]]), DtypeError, "integers"),
        (lambda: Sparse(np.eye(2)), DtypeError, "Dense"),
        (lambda: Sparse(torch.eye(2)), DtypeError, "Dense"),
        (lambda: Sparse([[1.0]]), DtypeError, "sparse matrix"),
        (lambda: Sparse(Identity(2)), DtypeError, "operator"),
        (lambda: Sparse(scipy.sparse.coo_array(np.ones(3))), ShapeError, "matrix"),
        (lambda: Sparse(torch.ones(2, 2, 2).to_sparse(2)), ShapeError, "dense dimensions"),
        (lambda: Sparse.from_parts([1.0], SparseStructure([0, 1, 2], [1, 0], (2, 2))), ShapeError, "1 values for 2"),
        (lambda: Diagonal(np.ones(3)) @ np.ones(4), ShapeError, "3 rows"),
        (lambda: Diagonal(np.ones((2, 3))) @ np.ones((5, 3, 1)), ShapeError, "broadcast"),
        (lambda: Diagonal(np.ones(3)) @ torch.ones(3), BackendError, "torch"),
    ],
)  # fmt: skip
def test_bad_input_is_told_clearly(build, error, says):
    with pytest.raises(error, match=says):
        build()


def test_integers_are_promoted_and_floats_kept():
    assert (
        Diagonal([1, 2]).dtype == np.float64
        and Diagonal(torch.tensor([1, 2])).dtype == torch.float32
    )
    assert (
        Dense(np.ones((2, 2), np.float32)).dtype == np.float32
        and Dense([[True]]).dtype == np.float64
    )
    assert (Diagonal([1, 2]) @ [1, 2]).tolist() == [1.0, 4.0]


def test_operators_print_without_their_arrays():
    shown = {
        "Dense 2x2": Dense(np.eye(2)), "Diagonal(2)": Diagonal([1.0, 2.0]), "Identity(3)": Identity(3), "Zero 2x3": Zero(2, 3),
        "2.5 I": ScaledIdentity(2.5, 3), "upper, unit": Triangular(np.eye(2), False, True),
        "offsets [0, 1]": Banded([[1, 2], [1]], [0, 1]),
        "Permutation(2)": Permutation([1, 0]), "nnz=4": Sparse(scipy.sparse.csr_array(MATRIX)), "c I": ScaledIdentity([1, 2], 3),
        "(0+2j) I": ScaledIdentity(2j, 3),
    }  # fmt: skip
    for text, A in shown.items():
        assert text in repr(A)
