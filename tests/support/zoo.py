"""Named small systems, each with one difficulty: what every method that accepts them must solve, or say that it has not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

N = 24


class Problem(NamedTuple):
    A: Any
    b: Any
    kind: str  # "definite", "self-adjoint", "square" or "rectangular": each is all that comes after it, too
    consistent: bool = True  # whether A x = b has a solution
    easy: bool = True  # whether every method that accepts it must solve it
    x0: Any = None


ZOO: dict[str, Callable[[], Problem]] = {}
KINDS = ("definite", "self-adjoint", "square", "rectangular")


def entry(make: Callable[[], Problem]) -> Callable[[], Problem]:
    ZOO[make.__name__] = make
    return make


def rng() -> np.random.Generator:
    return np.random.default_rng(4)


def unitary(n: int = N, dtype: Any = float) -> Any:
    random = rng()
    X = random.standard_normal((n, n))
    return np.linalg.qr(X + 1j * random.standard_normal((n, n)) if dtype is complex else X)[0]


def with_eigenvalues(values: Any, dtype: Any = float) -> Any:
    Q = unitary(len(values), dtype)
    A = (Q * values) @ Q.conj().T
    return (A + A.conj().T) / 2


def right_sides(n: int = N, dtype: Any = float) -> Any:
    random = rng()
    B = random.standard_normal((n, 2))
    return B + 1j * random.standard_normal((n, 2)) if dtype is complex else B


@entry
def definite() -> Problem:
    return Problem(with_eigenvalues(np.linspace(1, 20, N)), right_sides(), "definite")


@entry
def complex_hermitian() -> Problem:
    return Problem(
        with_eigenvalues(np.linspace(1, 20, N), complex), right_sides(dtype=complex), "definite"
    )


@entry
def indefinite() -> Problem:
    values = np.linspace(1, 5, N) * np.where(np.arange(N) % 3 == 0, -1, 1)
    return Problem(with_eigenvalues(values), right_sides(), "self-adjoint")


@entry
def complex_indefinite() -> Problem:
    values = np.linspace(1, 5, N) * np.where(np.arange(N) % 3 == 0, -1, 1)
    return Problem(with_eigenvalues(values, complex), right_sides(dtype=complex), "self-adjoint")


@entry
def clustered() -> Problem:
    values = np.repeat([1.0, 2.0, 7.0], [N - 6, 3, 3]) + 1e-9 * np.arange(N)
    return Problem(with_eigenvalues(values), right_sides(), "definite")


@entry
def graded() -> Problem:
    return Problem(np.diag(10.0 ** np.linspace(-5, 5, N)), right_sides(), "definite", easy=False)


@entry
def ill_conditioned() -> Problem:
    i = np.arange(N)
    # Hilbert's matrix
    return Problem(1.0 / (i[:, None] + i + 1), right_sides(), "definite", easy=False)


@entry
def singular_consistent() -> Problem:
    A = with_eigenvalues(np.concatenate([np.zeros(4), np.linspace(1, 5, N - 4)]))
    return Problem(A, A @ right_sides(), "definite")


@entry
def singular_inconsistent() -> Problem:
    A = with_eigenvalues(np.concatenate([np.zeros(4), np.linspace(1, 5, N - 4)]))
    return Problem(A, right_sides(), "definite", consistent=False)


@entry
def saddle_point() -> Problem:
    m = N // 3
    H, B = with_eigenvalues(np.linspace(1, 4, N - m)), rng().standard_normal((m, N - m))
    return Problem(np.block([[H, B.T], [B, np.zeros((m, m))]]), right_sides(), "self-adjoint")


@entry
def nonsymmetric() -> Problem:
    return Problem(
        rng().standard_normal((N, N)) / np.sqrt(N) + 2 * np.eye(N), right_sides(), "square"
    )


@entry
def complex_nonsymmetric() -> Problem:
    random = rng()
    A = random.standard_normal((N, N)) + 1j * random.standard_normal((N, N))
    return Problem(A / np.sqrt(N) + 4 * np.eye(N), right_sides(dtype=complex), "square")


@entry
def defective() -> Problem:
    # one Jordan block
    return Problem(2 * np.eye(N) + np.diag(np.ones(N - 1), 1), right_sides(), "square")


@entry
def cyclic_shift() -> Problem:
    # GMRES gains nothing before step n
    return Problem(np.roll(np.eye(N), 1, axis=0), np.eye(N)[:, :2], "square", easy=False)


@entry
def zero_right_side() -> Problem:
    B = right_sides()
    B[:, 1] = 0
    return Problem(definite().A, B, "definite")


@entry
def exact_guess() -> Problem:
    A, X = definite().A, right_sides()
    return Problem(A, A @ X, "definite", x0=X)


@entry
def tiny_right_side() -> Problem:
    return Problem(definite().A, 1e-200 * right_sides(), "definite")


@entry
def one_by_one() -> Problem:
    return Problem(np.array([[3.0]]), np.array([[6.0, 1.0]]), "definite")


@entry
def identity() -> Problem:
    return Problem(np.eye(N), right_sides(), "definite")


@entry
def overdetermined() -> Problem:
    return Problem(
        rng().standard_normal((2 * N, N)), right_sides(2 * N), "rectangular", consistent=False
    )


@entry
def overdetermined_consistent() -> Problem:
    A = rng().standard_normal((2 * N, N))
    return Problem(A, A @ right_sides(), "rectangular")


@entry
def underdetermined() -> Problem:
    return Problem(rng().standard_normal((N, 2 * N)), right_sides(), "rectangular")


@entry
def rank_deficient() -> Problem:
    random = rng()
    A = random.standard_normal((2 * N, 5)) @ random.standard_normal((5, N))
    return Problem(A, right_sides(2 * N), "rectangular", consistent=False)


def accepts(method: str, problem: Problem) -> bool:
    """Whether the method is made for such systems."""
    needs = {
        "CG": "definite",
        "CG, one reduction": "definite",
        "MINRES": "self-adjoint",
        "GMRES": "square",
        "BiCGSTAB": "square",
    }.get(method, "rectangular")
    return KINDS.index(problem.kind) <= KINDS.index(needs)
