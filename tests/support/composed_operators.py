"""Examples of composed operators and annotations, each beside its dense matrix; with the conventions of `stored_operators`."""

from __future__ import annotations

from typing import Any

import numpy as np

from colinear.operators import (
    BatchSum,
    Block,
    BlockDiag,
    Dense,
    Diagonal,
    Hadamard,
    Identity,
    Kronecker,
    KroneckerSum,
    LowRank,
    Permutation,
    Scaled,
    ScaledIdentity,
    Sliced,
    Sum,
    Toeplitz,
    Triangular,
    Tridiagonal,
    Zero,
    hstack,
    opaque,
    vstack,
)
from colinear.properties import PD, PSD, SelfAdjoint, Stiefel, Symmetric, Unitary
from support.stored_operators import draw

N = 6  # see stored_operators


def matrix(xp, dtype, batch, rng, m=N, n=None, shift=2.0):
    """A framework array and its values; square ones are well conditioned."""
    n = m if n is None else n
    return draw(xp, dtype, (*batch, m, n), rng, shift * np.eye(m, n))


def rounded(xp: Any, dtype: str, values: np.ndarray) -> tuple[Any, np.ndarray]:
    """Values in the framework, and what they are there in double precision."""
    array = xp.asarray(values, dtype=xp.dtype_from(dtype))
    return array, np.asarray(xp.to_numpy(array)).astype(
        np.complex128 if "complex" in dtype else np.float64
    )


def adjoint(x: np.ndarray) -> np.ndarray:
    return np.conj(np.swapaxes(x, -1, -2))


def kron(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    product = np.einsum("...ij,...kl->...ikjl", a, b)
    return product.reshape(
        *product.shape[:-4], a.shape[-2] * b.shape[-2], a.shape[-1] * b.shape[-1]
    )


def hermitian(xp, dtype, batch, rng, n=N, shift=0.0):
    _, X = matrix(xp, dtype, batch, rng, n, shift=0.0)
    A, exact = rounded(xp, dtype, X + adjoint(X) + shift * np.eye(n))
    return A, exact


def orthonormal(xp, dtype, batch, rng, m=N, n=N):
    _, X = matrix(xp, dtype, batch, rng, m, n, shift=0.0)
    return rounded(xp, dtype, np.linalg.qr(X)[0])


# ---------------------------------------------------------------------- sums, products, scalars


def sum_of_three(xp, dtype, batch, rng):
    (A, a), (B, b) = matrix(xp, dtype, batch, rng), matrix(xp, dtype, batch, rng, shift=0.0)
    d, exact = draw(xp, dtype, (*batch, N), rng, 2)
    return Dense(A) + opaque(Dense(B)) + Diagonal(d), a + b + exact[..., None] * np.eye(N)


def sum_low_rank_and_diagonal(xp, dtype, batch, rng):
    (U, u), (d, exact) = (
        matrix(xp, dtype, batch, rng, N, 2, shift=0.0),
        draw(xp, dtype, (*batch, N), rng, 2),
    )
    return LowRank(U) + Diagonal(d), u @ adjoint(u) + exact[..., None] * np.eye(N)


def sum_with_a_shift(xp, dtype, batch, rng):
    A, a = matrix(xp, dtype, batch, rng, shift=0.0)
    return Dense(A) + 2 * Identity(N), a + 2 * np.eye(N)


def sum_that_broadcasts(xp, dtype, batch, rng):
    (A, a), (B, b) = matrix(xp, dtype, batch, rng), matrix(xp, dtype, (), rng, shift=0.0)
    return Sum(Dense(A), opaque(Dense(B))), a + b


def sum_wide(xp, dtype, batch, rng):
    (A, a), (B, b) = (
        matrix(xp, dtype, batch, rng, 3, N, 1.0),
        matrix(xp, dtype, batch, rng, 3, N, 0.0),
    )
    return Dense(A) - opaque(Dense(B)), a - b


def product_of_three(xp, dtype, batch, rng):
    (A, a), (B, b) = matrix(xp, dtype, batch, rng), matrix(xp, dtype, batch, rng)
    d, exact = draw(xp, dtype, (*batch, N), rng, 2)
    return Dense(A) @ Diagonal(d) @ Dense(B), a @ (exact[..., None] * b)


def product_through_a_bottleneck(xp, dtype, batch, rng):
    (A, a), (B, b) = matrix(xp, dtype, batch, rng, N, 2), matrix(xp, dtype, batch, rng, 2, N)
    return Dense(A) @ Dense(B), a @ b


def product_tall(xp, dtype, batch, rng):
    (A, a), (B, b) = matrix(xp, dtype, batch, rng, N, 3, 1.0), matrix(xp, dtype, (), rng, 3, 2, 1.0)
    return Dense(A) @ Dense(B), a @ b


def product_with_permutation(xp, dtype, batch, rng):
    A, a = matrix(xp, dtype, batch, rng)
    perm = np.array([2, 0, 4, 5, 3, 1])
    return Permutation(perm) @ Dense(A), a[..., perm, :]


def gram(xp, dtype, batch, rng):
    A, a = matrix(xp, dtype, batch, rng, N + 1, N)
    B = Dense(A)
    return B.H @ B, adjoint(a) @ a


def congruence(xp, dtype, batch, rng):
    (A, a), (S, s) = matrix(xp, dtype, batch, rng), hermitian(xp, dtype, batch, rng, shift=3.0)
    B = Dense(A)
    return B.H @ PD(Dense(S)) @ B, adjoint(a) @ s @ a


def scaled(xp, dtype, batch, rng):
    (c, exact), (A, a) = draw(xp, dtype, batch, rng, 2), matrix(xp, dtype, batch, rng)
    return Scaled(c, Dense(A)), exact[..., None, None] * a


def scaled_by_a_negative_number(xp, dtype, batch, rng):
    A, a = hermitian(xp, dtype, batch, rng, shift=3.0)
    return -0.5 * PD(Dense(A)), -0.5 * a


def scaled_wide(xp, dtype, batch, rng):
    A, a = matrix(xp, dtype, batch, rng, 3, N, 1.0)
    return Dense(A) / 2, a / 2


# ---------------------------------------------------------------------- Kronecker


def kronecker(xp, dtype, batch, rng):
    (A, a), (B, b) = matrix(xp, dtype, batch, rng, 2), matrix(xp, dtype, batch, rng, 3)
    return Kronecker(Dense(A), Dense(B)), kron(a, b)


def kronecker_of_three(xp, dtype, batch, rng):
    (A, a), (d, exact) = matrix(xp, dtype, batch, rng, 3), draw(xp, dtype, (2,), rng, 2)
    B, b = matrix(xp, dtype, (), rng, 1)
    return Kronecker(Dense(A), Diagonal(d), Triangular(B)), kron(
        kron(a, np.diag(exact)), np.tril(b)
    )


def kronecker_tall(xp, dtype, batch, rng):
    (A, a), (B, b) = matrix(xp, dtype, batch, rng, 3, 2), matrix(xp, dtype, batch, rng, 2, 2)
    return Kronecker(Dense(A), Dense(B)), kron(a, b)


def kronecker_wide(xp, dtype, batch, rng):
    (A, a), (B, b) = matrix(xp, dtype, batch, rng, 1, 3), matrix(xp, dtype, batch, rng, 3, 2)
    return Kronecker(Dense(A), Dense(B)), kron(a, b)


def kronecker_pd(xp, dtype, batch, rng):
    (A, a), (B, b) = (
        hermitian(xp, dtype, batch, rng, 2, 3.0),
        hermitian(xp, dtype, batch, rng, 3, 3.0),
    )
    return Kronecker(PD(Dense(A)), PD(Dense(B))), kron(a, b)


def kronecker_plus_shift(xp, dtype, batch, rng):
    (A, a), (B, b) = (
        hermitian(xp, dtype, batch, rng, 2, 3.0),
        hermitian(xp, dtype, batch, rng, 3, 3.0),
    )
    return Kronecker(PD(Dense(A)), PD(Dense(B))) + 0.5 * Identity(6), kron(a, b) + 0.5 * np.eye(6)


def kronecker_sum(xp, dtype, batch, rng):
    (A, a), (B, b) = matrix(xp, dtype, batch, rng, 2), matrix(xp, dtype, batch, rng, 3)
    return KroneckerSum(Dense(A), Dense(B)), kron(a, np.eye(3)) + kron(np.eye(2), b)


def kronecker_sum_self_adjoint(xp, dtype, batch, rng):
    (A, a), (B, b) = (
        hermitian(xp, dtype, batch, rng, 2, 3.0),
        hermitian(xp, dtype, batch, rng, 3, 1.0),
    )
    return KroneckerSum(PD(Dense(A)), SelfAdjoint(Dense(B))), kron(a, np.eye(3)) + kron(
        np.eye(2), b
    )


# ---------------------------------------------------------------------- blocks and batches


def block_diagonal(xp, dtype, batch, rng):
    (A, a), (d, exact) = matrix(xp, dtype, batch, rng, 2), draw(xp, dtype, (*batch, 4), rng, 2)
    zeros = np.zeros((*a.shape[:-2], 2, 4))
    return BlockDiag(Dense(A), Diagonal(d)), np.block(
        [[a, zeros], [adjoint(zeros), exact[..., None] * np.eye(4)]]
    )


def block_diagonal_rectangular(xp, dtype, batch, rng):
    (A, a), (B, b) = matrix(xp, dtype, batch, rng, 1, 2), matrix(xp, dtype, batch, rng, 2, 1)
    zeros = np.zeros
    return BlockDiag(Dense(A), Dense(B)), np.block(
        [[a, zeros((*batch, 1, 1))], [zeros((*batch, 2, 2)), b]]
    )


def _three_blocks(xp, dtype, batch, rng, part=lambda M: M):
    made = [matrix(xp, dtype, batch, rng, 2) for _ in range(3)]
    dense = np.zeros((*batch, N, N), made[0][1].dtype)
    for i, (_, a) in enumerate(made):
        dense[..., 2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = part(a)
    return [A for A, _ in made], dense


def block_diagonal_alike(xp, dtype, batch, rng):
    blocks, dense = _three_blocks(xp, dtype, batch, rng)
    return BlockDiag(*map(Dense, blocks)), dense


def block_diagonal_of_triangles(xp, dtype, batch, rng):
    blocks, dense = _three_blocks(xp, dtype, batch, rng, np.tril)
    return BlockDiag(*(Triangular(A, lower=True) for A in blocks)), dense


def block(xp, dtype, batch, rng):
    (A, a), (D, d) = matrix(xp, dtype, batch, rng, 2), matrix(xp, dtype, batch, rng, 4)
    (B, b), (C, c) = (
        matrix(xp, dtype, batch, rng, 2, 4, shift=0.0),
        matrix(xp, dtype, batch, rng, 4, 2, shift=0.0),
    )
    return Block([[Dense(A), Dense(B)], [Dense(C), Dense(D)]]), np.block([[a, b], [c, d]])


def block_saddle(xp, dtype, batch, rng):
    (A, a), (B, b) = hermitian(xp, dtype, batch, rng, 5, 3.0), matrix(xp, dtype, batch, rng, 1, 5)
    C = Dense(B)
    zeros = np.zeros((*b.shape[:-2], 1, 1))
    return Block([[PD(Dense(A)), C.H], [C, None]]), np.block([[a, adjoint(b)], [b, zeros]])


def side_by_side(xp, dtype, batch, rng):
    (A, a), (B, b) = matrix(xp, dtype, batch, rng, 3), matrix(xp, dtype, batch, rng, 3, 3)
    return hstack(Dense(A), Dense(B)), np.concatenate([a, b], axis=-1)


def one_above_the_other(xp, dtype, batch, rng):
    (A, a), (B, b) = matrix(xp, dtype, batch, rng, 3), matrix(xp, dtype, batch, rng, 3, 3)
    return vstack(Dense(A), Dense(B)), np.concatenate([a, b], axis=-2)


def batch_sum(xp, dtype, batch, rng):
    A, a = matrix(xp, dtype, (*batch, 3), rng)
    return BatchSum(Dense(A), axis=-1), a.sum(axis=-3)


def batch_sum_of_rank_ones(xp, dtype, batch, rng):
    U, u = draw(xp, dtype, (*batch, 6, N, 1), rng)
    return BatchSum(LowRank(U), axis=len(batch)), (u @ adjoint(u)).sum(axis=-3)


# ---------------------------------------------------------------------- images and parts


def transpose_of_opaque(xp, dtype, batch, rng):
    A, a = matrix(xp, dtype, batch, rng)
    return opaque(Dense(A)).T, np.swapaxes(a, -1, -2)


def adjoint_of_product(xp, dtype, batch, rng):
    (A, a), (B, b) = matrix(xp, dtype, batch, rng), matrix(xp, dtype, batch, rng)
    return (Dense(A) @ opaque(Dense(B))).H, adjoint(a @ b)


def conjugate_of_sum(xp, dtype, batch, rng):
    (A, a), (B, b) = matrix(xp, dtype, batch, rng), matrix(xp, dtype, batch, rng)
    return (Dense(A) + opaque(Dense(B))).conj(), np.conj(a + b)


def sliced_principal(xp, dtype, batch, rng):
    col, exact = draw(xp, dtype, (8,), rng, [3.0, 0, 0, 0, 0, 0, 0, 0])
    i, j = np.indices((8, 8))
    full = np.where(i >= j, exact[np.abs(i - j)], np.conj(exact[np.abs(i - j)]))
    full[i == j] = exact[0].real if np.iscomplexobj(exact) else exact[0]
    if "complex" in dtype:
        col = xp.set_at(col, 0, xp.real(col[0]))
    keep = np.array([4, 0, 7, 2, 5, 1])
    return Toeplitz(col)[np.ix_(keep, keep)], full[np.ix_(keep, keep)]


def sliced_of_kronecker(xp, dtype, batch, rng):
    (A, a), (B, b) = matrix(xp, dtype, batch, rng, 2), matrix(xp, dtype, batch, rng, 4)
    return Sliced(Kronecker(Dense(A), Dense(B)), slice(1, 7), slice(1, 7)), kron(a, b)[
        ..., 1:7, 1:7
    ]


def sliced_with_repeats(xp, dtype, batch, rng):
    (A, a), (B, b) = matrix(xp, dtype, batch, rng, 2), matrix(xp, dtype, batch, rng, 3)
    return Kronecker(Dense(A), Dense(B))[..., ::-2, [0, 3, 3, 1]], kron(a, b)[
        ..., ::-2, [0, 3, 3, 1]
    ]


def hadamard(xp, dtype, batch, rng):
    (A, a), (B, b) = matrix(xp, dtype, batch, rng), matrix(xp, dtype, batch, rng)
    return Hadamard(Dense(A), opaque(Dense(B))), a * b


def hadamard_wide(xp, dtype, batch, rng):
    (A, a), (B, b) = matrix(xp, dtype, batch, rng, 3, N), matrix(xp, dtype, batch, rng, 3, N)
    return Hadamard(Dense(A), Dense(B)), a * b


def inverse(xp, dtype, batch, rng):
    from colinear.functions import inv

    A, a = matrix(xp, dtype, batch, rng)
    return inv(Dense(A)), np.linalg.inv(a)


def inverse_pd(xp, dtype, batch, rng):
    from colinear.functions import inv

    A, a = hermitian(xp, dtype, batch, rng, shift=3.0)
    return inv(PD(Dense(A))), np.linalg.inv(a)


def factorized(xp, dtype, batch, rng):
    from colinear.functions import factorize

    A, a = matrix(xp, dtype, batch, rng)
    return factorize(Dense(A)), a


def factorized_correction(xp, dtype, batch, rng):
    from colinear.functions import factorize

    A, a = sum_low_rank_and_diagonal(xp, dtype, batch, rng)
    return factorize(A), a


def hidden(xp, dtype, batch, rng):
    (A, a), (B, b) = matrix(xp, dtype, batch, rng, 2), matrix(xp, dtype, batch, rng, 3)
    return opaque(Kronecker(Dense(A), Dense(B))), kron(a, b)


# ---------------------------------------------------------------------- annotations


def annotated_self_adjoint(xp, dtype, batch, rng):
    A, a = hermitian(xp, dtype, batch, rng, shift=np.diag([2.0, -2.0, 1.0, -1.0, 3.0, -3.0]))
    return SelfAdjoint(Dense(A)), a


def annotated_symmetric(xp, dtype, batch, rng):
    _, x = matrix(xp, dtype, batch, rng, shift=0.0)
    A, a = rounded(xp, dtype, x + np.swapaxes(x, -1, -2) + 3 * np.eye(N))
    return Symmetric(Dense(A)), a


def annotated_psd_singular(xp, dtype, batch, rng):
    _, x = matrix(xp, dtype, batch, rng, N, 2, shift=2.0)
    A, a = rounded(xp, dtype, np.round(x, 1) @ adjoint(np.round(x, 1)))
    return PSD(Dense(A)), a


def annotated_pd(xp, dtype, batch, rng):
    A, a = hermitian(xp, dtype, batch, rng, shift=3.0)
    return PD(Dense(A)), a


def annotated_pd_tridiagonal(xp, dtype, batch, rng):
    (off, o), (main, d) = (
        draw(xp, dtype, (*batch, N - 1), rng),
        rounded(xp, dtype, 3 + rng.random((*batch, N))),
    )
    dense = d[..., None] * np.eye(N) + np.zeros((*batch, N, N), o.dtype)
    i = np.arange(N - 1)
    dense[..., i + 1, i], dense[..., i, i + 1] = o, np.conj(o)
    return PD(Tridiagonal(off, main, xp.conj(off))), dense


def annotated_unitary(xp, dtype, batch, rng):
    Q, q = orthonormal(xp, dtype, batch, rng)
    return Unitary(Dense(Q)), q


def annotated_stiefel(xp, dtype, batch, rng):
    Q, q = orthonormal(xp, dtype, batch, rng, N, 2)
    return Stiefel(Dense(Q)), q


# ---------------------------------------------------------------------- neutral operands: framework and dtype come from the others


def kronecker_with_neutral_identity(xp, dtype, batch, rng):
    A, a = matrix(xp, dtype, batch, rng, 3)
    return Kronecker(Identity(2), Dense(A)), kron(np.eye(2), a)


def kronecker_sum_with_neutral_shift(xp, dtype, batch, rng):
    A, a = matrix(xp, dtype, batch, rng, 3)
    return KroneckerSum(2 * Identity(2), Dense(A)), kron(2 * np.eye(2), np.eye(3)) + kron(
        np.eye(2), a
    )


def block_diagonal_with_neutral_parts(xp, dtype, batch, rng):
    A, a = matrix(xp, dtype, batch, rng, 3)
    dense = np.zeros((*a.shape[:-2], N, N), a.dtype)
    dense[..., :3, :3], dense[..., 3, 3], dense[..., 4, 5], dense[..., 5, 4] = a, 1, 1, 1
    return BlockDiag(Dense(A), Identity(1), Permutation([1, 0])), dense


def block_with_neutral_parts(xp, dtype, batch, rng):
    A, a = matrix(xp, dtype, batch, rng, 2, 4, 0.0)
    zeros, ones = np.zeros((*a.shape[:-2], 4, 2)), np.broadcast_to(np.eye(4), (*a.shape[:-2], 4, 4))
    return Block([[3 * Identity(2), Dense(A)], [Zero(4, 2), Identity(4)]]), np.block(
        [[ones[..., :2, :2] * 3, a], [zeros, ones]]
    )


def hadamard_with_neutral_identity(xp, dtype, batch, rng):
    A, a = matrix(xp, dtype, batch, rng)
    return Hadamard(Dense(A), Identity(N)), a * np.eye(N)


def sum_of_permutations(xp, dtype, batch, rng):
    A, a = matrix(xp, dtype, batch, rng)
    perm = np.array([2, 0, 4, 5, 3, 1])
    return Dense(A) + 0.5 * Permutation(perm), a + 0.5 * np.eye(N)[perm]


# ---------------------------------------------------------------------- sizes at the edge


def one_by_one(xp, dtype, batch, rng):
    A, a = matrix(xp, dtype, batch, rng, 1)
    return Dense(A), a


def sum_with_zero_kept_for_its_dtype(xp, dtype, batch, rng):
    A, a = matrix(xp, dtype, batch, rng)
    return Dense(A) + Zero(N, N) + ScaledIdentity(0.5, N), a + 0.5 * np.eye(N)


COMPOSED: dict[str, Any] = {
    maker.__name__: maker
    for maker in (
        sum_of_three, sum_low_rank_and_diagonal, sum_with_a_shift, sum_that_broadcasts, sum_wide,
        product_of_three, product_through_a_bottleneck, product_tall, product_with_permutation, gram, congruence,
        scaled, scaled_by_a_negative_number, scaled_wide,
        kronecker, kronecker_of_three, kronecker_tall, kronecker_wide, kronecker_pd, kronecker_plus_shift,
        kronecker_sum, kronecker_sum_self_adjoint,
        block_diagonal, block_diagonal_rectangular, block_diagonal_alike, block_diagonal_of_triangles, block, block_saddle, side_by_side, one_above_the_other,
        batch_sum, batch_sum_of_rank_ones,
        transpose_of_opaque, adjoint_of_product, conjugate_of_sum,
        sliced_principal, sliced_of_kronecker, sliced_with_repeats, hadamard, hadamard_wide, inverse, inverse_pd, factorized,
        factorized_correction, hidden,
        annotated_self_adjoint, annotated_symmetric, annotated_psd_singular, annotated_pd, annotated_pd_tridiagonal,
        annotated_unitary, annotated_stiefel,
        kronecker_with_neutral_identity, kronecker_sum_with_neutral_shift, block_diagonal_with_neutral_parts,
        block_with_neutral_parts, hadamard_with_neutral_identity, sum_of_permutations, one_by_one, sum_with_zero_kept_for_its_dtype,
    )
}  # fmt: skip
