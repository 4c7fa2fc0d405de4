"""What is asked of a random tree: functions of colinear, their references, and how far apart is wrong.

A reference takes the matrix in double precision, as NumPy and SciPy do it. How exact it can be is
measured, not estimated: the reference is computed again for matrices that differ by rounding
errors, and an answer may differ from it by a multiple of the change.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg

import colinear as co

Method = Callable[[], Any]

SHIFT = 0.37  # beside which eigenvalues are looked for
RANK = 1e-4  # singular values below this part of the norm count as zero


@dataclass(frozen=True)
class Question:
    """A function of an operator A and a right side b.

    `ask(A, b, method)` calls colinear and `answer(M, b)` the reference; both give one array that is
    unique. `judge(M, b, x)`, where there is one, measures the relative error of an answer that is
    not. `methods` are those that can be named, by what they need of A.
    """

    name: str
    ask: Callable[[Any, Any, Any], Any]
    answer: Callable[[np.ndarray, np.ndarray], Any] | None = None
    judge: Callable[[np.ndarray, np.ndarray, Any], float] | None = None
    methods: tuple[tuple[str, Method], ...] = ()
    is_square: bool = True
    needs: str = ""  # "hermitian", "positive", "full rank" or "off the cut"
    is_smooth: bool = False  # whether its derivative is compared too
    is_about_methods: bool = False  # whether it has no meaning without one of its methods


def each(f: Callable[..., Any]) -> Callable[[np.ndarray, np.ndarray], Any]:
    """Return the reference for a batch, from one for a single matrix."""

    def answer(M: np.ndarray, b: np.ndarray) -> Any:
        if M.ndim == 2:
            return np.asarray(f(M))
        return np.stack([np.asarray(answer(member, b)) for member in M])

    return answer


def dense(x: Any) -> Any:
    return x.to_dense() if isinstance(x, co.LinearOperator) else x


def reconstruct(*factors: Any) -> Any:
    product = factors[0]
    for factor in factors[1:]:
        product = product @ factor
    return dense(product)


def residual_of_solve(M: np.ndarray, b: np.ndarray, x: Any) -> float:
    B = b[:, None] if b.ndim == 1 else b
    X = x[..., None] if b.ndim == 1 else x
    return float(np.max(np.linalg.norm(M @ X - B, axis=-2) / np.linalg.norm(B, axis=-2)))


def optimality(M: np.ndarray, b: np.ndarray, x: Any) -> float:
    """|A^H r| / (|A| |b|) of the residual r = b - A x: what iterations for least squares make small."""
    r = b - (M @ x[..., None])[..., 0]
    gradient = (np.conj(np.swapaxes(M, -1, -2)) @ r[..., None])[..., 0]
    size = np.linalg.norm(M, axis=(-2, -1)).max() * np.linalg.norm(b)
    return float(np.max(np.linalg.norm(gradient, axis=-1)) / size)


def residual_of_eig(M: np.ndarray, b: np.ndarray, x: Any) -> float:
    """|A V - V Λ| / |A| of unit vectors; infinite if the values are not those of the matrix."""
    values, V = x
    size = np.linalg.norm(M, axis=(-2, -1)).max() or 1.0
    lengths = np.linalg.norm(V, axis=-2)
    error = np.linalg.norm(M @ V - V * values[..., None, :], axis=-2).max() / size
    sums = np.abs(values.sum(-1) - np.trace(M, axis1=-2, axis2=-1)).max() / size
    return float(max(error, sums, np.abs(lengths - 1).max()))


def nearest_eigenvalues(M: np.ndarray, k: int, shift: float) -> Any:
    values = np.linalg.eigvalsh(M)
    order = np.argsort(np.abs(values - shift), kind="stable")
    distances = np.abs(values - shift)[order]
    if k < len(values) and distances[k] - distances[k - 1] < 1e-4 * distances[k]:
        return np.full(k, np.nan)  # a tie: either of two is an answer
    return np.sort(values[order[:k]])


def null_projector(M: np.ndarray) -> Any:
    N = scipy.linalg.null_space(M, rcond=RANK)
    return N @ N.conj().T


def square_plus_one(z: Any) -> Any:
    return z * z + 1


ANY = (("", co.LU), ("", co.QR), ("", co.GMRES), ("", co.BiCGSTAB), ("", co.LSQR), ("", co.LSMR))
HERMITIAN = (("hermitian", co.LDL), ("hermitian", co.MINRES))
POSITIVE = (("positive", co.Cholesky), ("positive", co.CG))
SOLVERS = ANY + HERMITIAN + POSITIVE
DETERMINANTS = (("", co.LU), ("hermitian", co.LDL), ("positive", co.Cholesky))
KRYLOV = (("", co.Krylov),)

QUESTIONS = [
    Question("multiply", lambda A, b, method: A @ b, lambda M, b: M @ b, is_square=False, is_smooth=True),
    Question("to_dense", lambda A, b, method: co.to_dense(A), lambda M, b: M, is_square=False, is_smooth=True),
    Question(
        "solve", lambda A, b, method: co.solve(A, b, method), lambda M, b: np.linalg.inv(M) @ b,
        judge=residual_of_solve, methods=SOLVERS, needs="full rank", is_smooth=True,
    ),
    Question(
        "inv", lambda A, b, method: dense(co.inv(A, method)), lambda M, b: np.linalg.inv(M),
        methods=SOLVERS[:2] + SOLVERS[6:], needs="full rank", is_smooth=True,
    ),
    Question(
        "inv @ b", lambda A, b, method: co.inv(A, method) @ b, lambda M, b: np.linalg.inv(M) @ b,
        methods=SOLVERS, needs="full rank", is_smooth=True,
    ),
    Question(
        "diag(inv)", lambda A, b, method: co.diag(co.inv(A, method)),
        lambda M, b: np.diagonal(np.linalg.inv(M), axis1=-2, axis2=-1), needs="full rank", is_smooth=True,
    ),
    Question(
        "trace(inv)", lambda A, b, method: co.trace(co.inv(A, method)),
        lambda M, b: np.trace(np.linalg.inv(M), axis1=-2, axis2=-1), needs="full rank", is_smooth=True,
    ),
    Question(
        "lstsq", lambda A, b, method: co.lstsq(A, b, method), lambda M, b: np.linalg.pinv(M) @ b,
        methods=(("", co.LSQR), ("", co.LSMR), ("", co.SVD)), is_square=False, needs="full rank",
        is_smooth=True,
    ),
    Question(
        "pinv", lambda A, b, method: dense(co.pinv(A, method=method)), lambda M, b: np.linalg.pinv(M),
        methods=(("", co.SVD),), is_square=False, needs="full rank", is_smooth=True,
    ),
    Question(
        "diag", lambda A, b, method: co.diag(A), lambda M, b: np.diagonal(M, axis1=-2, axis2=-1),
        is_square=False, is_smooth=True,
    ),
    Question(
        "trace", lambda A, b, method: co.trace(A), lambda M, b: np.trace(M, axis1=-2, axis2=-1),
        is_smooth=True,
    ),
    Question(
        "det", lambda A, b, method: co.det(A, method), lambda M, b: np.linalg.det(M),
        methods=DETERMINANTS, is_smooth=True,
    ),
    Question(
        "logdet", lambda A, b, method: co.logdet(A, method), lambda M, b: np.linalg.slogdet(M)[1],
        methods=DETERMINANTS, needs="full rank", is_smooth=True,
    ),
    Question(
        "sign", lambda A, b, method: co.slogdet(A, method)[0], lambda M, b: np.linalg.slogdet(M)[0],
        methods=DETERMINANTS, needs="full rank",
    ),
    Question(
        "solve_and_logdet", lambda A, b, method: co.solve_and_logdet(A, b)[1],
        lambda M, b: np.linalg.slogdet(M)[1], needs="full rank", is_smooth=True,
    ),
    Question(
        "eig", lambda A, b, method: _eigenpairs(A, method), judge=residual_of_eig, methods=(("", co.Eig),),
    ),
    Question(
        "eigh", lambda A, b, method: co.eig(A, method=method)[0], each(np.linalg.eigvalsh),
        methods=(("", co.Eigh),), needs="hermitian",
    ),
    Question(
        "eig(2, SM, shift)", lambda A, b, method: co.eig(A, min(2, A.shape[-1]), "SM", method)[0],
        each(lambda M: nearest_eigenvalues(M, min(2, len(M)), SHIFT)),
        methods=(("", lambda: co.Lanczos(shift=SHIFT)),), needs="hermitian", is_about_methods=True,
    ),
    Question(
        "eigmax", lambda A, b, method: co.eigmax(A, method=method), each(lambda M: np.linalg.eigvalsh(M)[-1]),
        methods=(("", co.Lanczos), ("", co.LOBPCG)), needs="hermitian",
    ),
    Question(
        "svd", lambda A, b, method: co.svd(A, method=method)[1],
        lambda M, b: np.linalg.svd(M, compute_uv=False), methods=(("", co.SVD),), is_square=False,
    ),
    Question(
        "svd(1)", lambda A, b, method: co.svd(A, 1, method)[1],
        lambda M, b: np.linalg.svd(M, compute_uv=False)[..., :1], methods=(("", co.GolubKahan),), is_square=False,
    ),
    Question(
        "U s V^H", lambda A, b, method: _from_svd(A), lambda M, b: M, is_square=False,
    ),
    Question("exp", lambda A, b, method: dense(co.exp(A, method)), each(scipy.linalg.expm), methods=KRYLOV, is_smooth=True),
    Question(
        "sqrt", lambda A, b, method: dense(co.sqrt(A, method)), each(scipy.linalg.sqrtm), methods=KRYLOV,
        needs="off the cut", is_smooth=True,
    ),
    Question(
        "isqrt", lambda A, b, method: dense(co.isqrt(A, method)),
        each(lambda M: np.linalg.inv(scipy.linalg.sqrtm(M))), methods=KRYLOV, needs="off the cut", is_smooth=True,
    ),
    Question(
        "log", lambda A, b, method: dense(co.log(A, method)), each(scipy.linalg.logm), methods=KRYLOV,
        needs="off the cut", is_smooth=True,
    ),
    Question(
        "power 3", lambda A, b, method: dense(co.power(A, 3)), each(lambda M: M @ M @ M), is_smooth=True,
    ),
    Question(
        "power -1/3", lambda A, b, method: dense(co.power(A, -1 / 3)),
        each(lambda M: scipy.linalg.fractional_matrix_power(M, -1 / 3)), needs="off the cut", is_smooth=True,
    ),
    Question(
        "apply", lambda A, b, method: dense(co.apply(square_plus_one, A)),
        each(lambda M: M @ M + np.eye(len(M))), is_smooth=True,
    ),
    Question(
        "cholesky", lambda A, b, method: dense(co.cholesky(A)), each(np.linalg.cholesky), needs="positive",
        is_smooth=True,
    ),
    Question("P L U", lambda A, b, method: reconstruct(*co.lu(A)), lambda M, b: M),
    Question("Q R", lambda A, b, method: reconstruct(*co.qr(A)), lambda M, b: M, is_square=False),
    Question(
        "norm", lambda A, b, method: co.norm(A), lambda M, b: np.linalg.norm(M, axis=(-2, -1)), is_square=False,
        is_smooth=True,
    ),
    Question(
        "norm 1", lambda A, b, method: co.norm(A, 1), lambda M, b: np.linalg.norm(M, 1, axis=(-2, -1)),
        is_square=False,
    ),
    Question(
        "norm 2", lambda A, b, method: co.norm(A, 2), lambda M, b: np.linalg.norm(M, 2, axis=(-2, -1)),
        is_square=False,
    ),
    Question("cond", lambda A, b, method: co.cond(A), lambda M, b: np.linalg.cond(M), needs="full rank"),
    Question("cond 1", lambda A, b, method: co.cond(A, 1), lambda M, b: np.linalg.cond(M, 1), needs="full rank"),
    Question(
        "rank", lambda A, b, method: co.rank(A, RANK * float(_largest(co.norm(A)))),
        lambda M, b: np.linalg.matrix_rank(M, RANK * np.linalg.norm(M, axis=(-2, -1)).max()),
        is_square=False, needs="clear rank",
    ),
    Question(
        "nullspace", lambda A, b, method: _null_projector(A), each(null_projector), is_square=False,
        needs="clear rank",
    ),
]  # fmt: skip


def _largest(x: Any) -> Any:
    return x.max() if x.ndim else x


def _eigenpairs(A: Any, method: Any) -> tuple[Any, Any]:
    values, vectors = co.eig(A, method=method)
    return values, dense(vectors)


def _from_svd(A: Any) -> Any:
    U, s, V = co.svd(A)
    return dense(U) @ (s[..., :, None] * dense(V.H))


def _null_projector(A: Any) -> Any:
    N = dense(co.nullspace(A, RANK))
    return N @ N.mT.conj()


def fits(question: Question, M: np.ndarray, tree: Any, eps: float) -> bool:
    """Whether the question has an answer for this matrix that does not hang on rounding errors."""
    m, n = M.shape[-2:]
    if (question.is_square or "off the cut" in question.needs) and m != n:
        return False
    if question.needs == "hermitian":
        return bool(tree.is_hermitian)
    if question.needs == "positive":
        return bool(tree.is_positive)
    if question.needs in ("full rank", "off the cut", "clear rank") and M.size:
        s = np.linalg.svd(M, compute_uv=False)
        floor = max(float(s.max()), tree.size) * math.sqrt(eps)
        if question.needs == "clear rank":
            if M.ndim > 2 and question.name == "nullspace":
                return False  # members of one rank only, which are rare
            largest = max(float(s.max()), tree.size)
            return not bool(((s > 0.01 * RANK * largest) & (s < 100 * RANK * largest)).any())
        if not bool((s > floor).all()):
            return False
    if question.needs == "off the cut":
        values = np.linalg.eigvals(M)
        near = (values.real < 0) & (np.abs(values.imag) < 1e-3 * np.abs(values))
        return not bool(near.any())
    return True
