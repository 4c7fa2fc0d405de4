"""What the tests of derivatives run over, as data: functions, families, modes, and what is refused, with reasons.

`CASES` maps a name to a `Case`: a real number made of a function of an operator, the same in NumPy from the dense matrix, and for which
matrices it is smooth. `FAMILIES` are the conformance suite's makers whose leaves may be moved; `MODES` name what is done in each
framework. The table of functions x modes x frameworks in the docs is generated from these and from `REFUSALS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

import colinear as co
from colinear import backends
from support.registry import MAKERS

RCOND = 1e-9


class Case(NamedTuple):
    """`of(xp, A)` a real 0-dimensional array, `reference(D)` the same number from a NumPy matrix, `smooth(D)` whether it has a derivative
    there, `only` the frameworks (all that differentiate, if empty), `without` the modes that are refused there."""

    of: Callable[[Any, Any], Any]
    reference: Callable[[np.ndarray], float]
    smooth: Callable[[np.ndarray], bool]
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


MODES: dict[str, tuple[str, ...]] = {
    "torch": (
        "reverse",
        "forward",
        "func.grad",
        "double backward",
        "forward over reverse",
        "reverse over reverse",
        "vmap of grad",
    ),
    "jax": (
        "reverse",
        "forward",
        "forward over reverse",
        "reverse over reverse",
        "vmap of grad",
        "jit of grad",
    ),
}

# (function, framework or "*") -> why it is refused: an error says so.
REFUSALS: dict[tuple[str, str], str] = {
    ("rank", "*"): "a whole number has no derivative",
    (
        "nullspace under vmap",
        "torch",
    ): "the number of columns depends on values, which cannot be seen under vmap",
    (
        "nullspace under vmap and jit",
        "jax",
    ): "the number of columns depends on values, which cannot be seen there",
    (
        "second derivatives of apply(f, A) b by Krylov",
        "*",
    ): "nothing is known of f but its values; Eigh() has them",
}

# What has tests of its own, and the modes that these run: `test_krylov_derivatives.py` and, of iterations, `test_rules_of_derivatives.py`.
ITERATIONS = {
    "torch": ("reverse", "forward", "forward over reverse"),
    "jax": ("reverse", "forward", "jit of grad"),
}
APART: dict[str, dict[str, tuple[str, ...]]] = {
    "nullspace": {"jax": ("reverse", "forward")},
    "f(A) b by Krylov": {
        **MODES,
        "jax": tuple(mode for mode in MODES["jax"] if mode != "forward over reverse"),
    },
    "solve by iteration": ITERATIONS,
    "lstsq by LSQR, LSMR": {**ITERATIONS, "jax": (*ITERATIONS["jax"], "reverse over reverse")},
    "eig by Lanczos, Arnoldi": ITERATIONS,
    "eig by LOBPCG": {"torch": ITERATIONS["torch"]},
    "svd by GolubKahan": ITERATIONS,
    "svd by RandomizedSVD": {"torch": ITERATIONS["torch"]},
}

# Families whose leaves cannot move freely: what they hold would no longer be what it claims to be.
FIXED: dict[str, str] = {
    "householder": "its vector has norm 1",
    "projection": "its columns are orthonormal",
    "annotated_unitary": "its matrix is unitary",
    "annotated_stiefel": "its columns are orthonormal",
    "annotated_psd_singular": "its matrix is singular",
    "inverse": "its factors belong to its matrix",
    "inverse_pd": "its factors belong to its matrix",
    "factorized": "its factors belong to its matrix",
    "factorized_correction": "its factors belong to its matrix",
    "gram": "it holds one matrix twice",
    "congruence": "it holds one matrix twice",
    "block_saddle": "it holds one block twice",
    "annotated_pd_tridiagonal": "it holds one diagonal twice",
}
# In their place, made of what moves: `build(xp, *arrays)`, and the shapes of the arrays.
BUILT: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "gram": (lambda xp, B: co.Dense(B).H @ co.Dense(B), ((6, 4),)),
    "congruence": (
        lambda xp, B, d: co.Dense(B) @ co.Diagonal(xp.exp(xp.real(d))) @ co.Dense(B).H,
        ((4, 6), (6,)),
    ),
    "saddle": (
        lambda xp, d, B: co.Block(
            [[co.Diagonal(xp.exp(xp.real(d))), co.Dense(B)], [co.Dense(B).H, co.Zero(2, 2, like=d)]]
        ),
        ((3,), (3, 2)),
    ),
    "definite tridiagonal": (
        lambda xp, d, e: co.PSD(co.Tridiagonal(e, 2 + xp.abs(d) ** 2, xp.conj(e))),
        ((5,), (4,)),
    ),
    "inverse": (lambda xp, B: co.inv(co.Dense(B) + 3 * co.Identity(4)), ((4, 4),)),
    "factorized": (lambda xp, B: co.factorize(co.Dense(B) + 3 * co.Identity(4)), ((4, 4),)),
    "factorized correction": (
        lambda xp, d, U: co.factorize(co.Diagonal(xp.exp(xp.real(d))) + co.LowRank(U)),
        ((5,), (5, 2)),
    ),
    "householder": (lambda xp, v: co.Householder(v), ((5,),)),
    "projection": (lambda xp, B: co.Projection(xp.qr(B)[0]), ((5, 2),)),
    "repeated eigenvalues": (  # Q diag(1, 1, 3, 3 + |x|) Q^H
        lambda xp, B, x: (
            lambda Q: co.SelfAdjoint(
                co.Dense(xp.matmul(Q * _spectrum(xp, x), xp.conj(xp.matrix_transpose(Q))))
            )
        )(xp.qr(B)[0]),
        ((4, 4), (1,)),
    ),
}


def _spectrum(xp: Any, x: Any) -> Any:
    same = xp.asarray(np.array([1.0, 1.0, 3.0]), dtype=xp.real_dtype(x.dtype))
    return xp.concat([same, 3 + xp.abs(x)])


# Those whose one matrix must stay self-adjoint: it is moved by a self-adjoint one.
SELF_ADJOINT = (
    "scaled_by_a_negative_number",
    "annotated_self_adjoint",
    "annotated_symmetric",
    "annotated_pd",
    "sliced_principal",
    "kronecker_pd",
)


def family(name: str, xp: Any, dtype: str) -> Callable[[Any], Any] | None:
    """The operator at a distance t, as a function of t: all its leaves move along their directions. None if it has no leaves that move."""
    rng = np.random.default_rng(1)
    if name in BUILT:
        build, shapes = BUILT[name]
        numbers = [[rng.standard_normal((2, *shape)) for shape in shapes] for _ in range(2)]
        make = (lambda a: a[0] + 1j * a[1]) if "complex" in dtype else lambda a: a[0]
        starts, ways = (
            [xp.asarray(make(a), dtype=xp.dtype_from(dtype)) for a in part] for part in numbers
        )
        return lambda t: build(
            xp, *(start + 0.3 * t * way for start, way in zip(starts, ways, strict=True))
        )
    made = MAKERS[name](xp, dtype, (), np.random.default_rng(0))
    if made is None or name in FIXED:
        return None
    A, directions = made[0], []
    for leaf in A.leaves():
        if backends.namespace_of(leaf) is not xp or not xp.is_floating(leaf):
            continue
        D = 0.3 * rng.standard_normal(tuple(leaf.shape))
        if xp.is_complex(leaf):
            D = D + 0.3j * rng.standard_normal(tuple(leaf.shape))
        square = D.ndim == 2 and D.shape[0] == D.shape[1]
        if (
            square
            and A.properties
            and (
                name in SELF_ADJOINT
                or "self_adjoint" in name
                or "pd" in name
                or "plus_shift" in name
            )
        ):
            D = (D + D.T) / 2 if name == "annotated_symmetric" else (D + D.conj().T) / 2
        if (
            A.isa(co.SelfAdjoint)
            and D.ndim <= 1
            and np.iscomplexobj(D)
            and name != "sum_low_rank_and_diagonal"
        ):
            D = D.real + 0 * D
        directions.append(xp.asarray(D, dtype=leaf.dtype))
    return (lambda t: _moved(xp, A, directions, t)) if directions else None


def _moved(xp: Any, A: Any, directions: list[Any], t: Any) -> Any:
    given = iter(directions)
    return A._map(
        lambda leaf: (
            leaf + t * next(given)
            if backends.namespace_of(leaf) is xp and xp.is_floating(leaf)
            else leaf
        )
    )


FAMILIES = [name for name in MAKERS if name not in FIXED and name not in BUILT] + list(BUILT)

# ---------------------------------------------------------------------------------------------------- weights and conditions


def weights(*shape: int) -> np.ndarray:
    return np.cos(1.0 + np.arange(np.prod(shape, dtype=int))).reshape(shape)


def weighed(xp: Any, X: Any) -> Any:
    """A real number that depends on all entries of an array, or of an operator's matrix."""
    X = (
        X.to_dense()
        if hasattr(X, "to_dense") and not hasattr(X, "numpy") and hasattr(X, "_is_root")
        else X
    )
    W = xp.asarray(weights(*X.shape), dtype=xp.real_dtype(X.dtype), device=xp.device_of(X))
    return xp.sum(xp.real(X) * W) + xp.sum(xp.imag(X) * W) * 0.5


def host(X: np.ndarray) -> float:
    X = np.asarray(X)
    W = weights(*X.shape)
    return float(np.sum(X.real * W) + 0.5 * np.sum(X.imag * W))


def right_side(n: int) -> np.ndarray:
    return np.sin(1.0 + np.arange(n))


def singular_values(D: np.ndarray) -> np.ndarray:
    return np.linalg.svd(D, compute_uv=False)


def regular(D: np.ndarray) -> bool:
    return D.shape[0] == D.shape[1] and singular_values(D).min() > 1e-3


def anything(D: np.ndarray) -> bool:
    return bool(D.size)


def square(D: np.ndarray) -> bool:
    return D.shape[0] == D.shape[1]


def constant_rank(D: np.ndarray) -> bool:
    """No singular value near the cutoff."""
    s = singular_values(D)
    return bool(s.max() > 0 and np.all((s > 1e-3) | (s < 1e-12)))


def full_rank(D: np.ndarray) -> bool:
    return singular_values(D).min() > 1e-3


def tall(D: np.ndarray) -> bool:
    return D.shape[0] >= D.shape[1] and full_rank(D)


def wide(D: np.ndarray) -> bool:
    return D.shape[0] < D.shape[1] and full_rank(D)


def positive(D: np.ndarray) -> bool:
    """Self-adjoint and positive definite."""
    return square(D) and np.allclose(D, D.conj().T) and np.linalg.eigvalsh(D).min() > 1e-2


def off_the_cut(D: np.ndarray) -> bool:
    """With principal roots and logarithms, and a basis of eigenvectors."""
    if not regular(D):
        return False
    values, V = np.linalg.eig(D)
    return bool(np.all((values.real > 0.05) | (abs(values.imag) > 0.3)) and np.linalg.cond(V) < 1e4)


def diagonalisable(D: np.ndarray) -> bool:
    return square(D) and np.linalg.cond(np.linalg.eig(D)[1]) < 1e4


def separate_ends(D: np.ndarray) -> bool:
    """The largest and the smallest singular value stand alone."""
    s = singular_values(D)
    return full_rank(D) and (s.size == 1 or (s[0] - s[1] > 1e-2 and s[-2] - s[-1] > 1e-2))


def _eigenvalue_sum(values: Any) -> Any:
    return (values**3).sum()


def _kappa(D: np.ndarray) -> float:
    s = singular_values(D)
    return float(s[0] / s[-1])


# ---------------------------------------------------------------------------------------------------- the table


def _of_matrix(f: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], float]:
    def reference(D: np.ndarray) -> float:
        values, V = np.linalg.eig(D.astype(complex))
        X = V @ np.diag(f(values)) @ np.linalg.inv(V)
        return host(X.real if not np.iscomplexobj(D) and abs(X.imag).max() < 1e-9 else X)

    return reference


CASES: dict[str, Case] = {
    "A @ x": Case(
        lambda xp, A: weighed(xp, A @ xp.asarray(right_side(A.shape[-1]), dtype=A.dtype)),
        lambda D: host(D @ right_side(D.shape[1])),
        anything,
    ),
    "to_dense": Case(lambda xp, A: weighed(xp, co.to_dense(A)), host, anything),
    "solve": Case(
        lambda xp, A: weighed(xp, co.solve(A, xp.asarray(right_side(A.shape[-1]), dtype=A.dtype))),
        lambda D: host(np.linalg.solve(D, right_side(len(D)))),
        regular,
    ),
    "inv": Case(lambda xp, A: weighed(xp, co.inv(A)), lambda D: host(np.linalg.inv(D)), regular),
    "lstsq": Case(
        lambda xp, A: weighed(xp, co.lstsq(A, xp.asarray(right_side(A.shape[-2]), dtype=A.dtype))),
        lambda D: host(np.linalg.pinv(D, rcond=RCOND) @ right_side(D.shape[0])),
        constant_rank,
    ),
    "pinv": Case(
        lambda xp, A: weighed(xp, co.pinv(A)),
        lambda D: host(np.linalg.pinv(D, rcond=RCOND)),
        constant_rank,
    ),
    "nullspace": Case(
        lambda xp, A: weighed(xp, (lambda N: N @ N.H)(co.nullspace(A))),
        lambda D: host(np.eye(D.shape[1]) - np.linalg.pinv(D) @ D),
        wide,
        ("torch",),
        ("vmap of grad",),
    ),
    "logdet": Case(lambda xp, A: co.logdet(A), lambda D: float(np.linalg.slogdet(D)[1]), regular),
    "slogdet": Case(
        lambda xp, A: (lambda s, v: xp.real(s) + v)(*co.slogdet(A)),
        lambda D: float(np.linalg.slogdet(D)[0].real + np.linalg.slogdet(D)[1]),
        regular,
    ),
    "det": Case(lambda xp, A: xp.real(co.det(A)), lambda D: float(np.linalg.det(D).real), regular),
    "trace": Case(lambda xp, A: xp.real(co.trace(A)), lambda D: float(np.trace(D).real), square),
    "diag": Case(lambda xp, A: weighed(xp, co.diag(A)), lambda D: host(np.diag(D)), square),
    "eig": Case(
        lambda xp, A: xp.real(_eigenvalue_sum(co.eig(A)[0])),
        lambda D: float(_eigenvalue_sum(np.linalg.eigvals(D)).real),
        diagonalisable,
    ),
    "svd": Case(
        lambda xp, A: xp.sum(co.svd(A)[1] ** 3),
        lambda D: float((singular_values(D) ** 3).sum()),
        anything,
    ),
    "exp": Case(
        lambda xp, A: weighed(xp, co.exp(0.3 * A)),
        lambda D: host(scipy.linalg.expm(0.3 * D)),
        square,
    ),
    "log": Case(lambda xp, A: weighed(xp, co.log(A)), _of_matrix(np.log), positive),
    "sqrt": Case(lambda xp, A: weighed(xp, co.sqrt(A)), _of_matrix(np.sqrt), off_the_cut),
    "isqrt": Case(
        lambda xp, A: weighed(xp, co.isqrt(A)), _of_matrix(lambda x: 1 / np.sqrt(x)), positive
    ),
    "power": Case(
        lambda xp, A: weighed(xp, co.power(A, 3)),
        lambda D: host(np.linalg.matrix_power(D, 3)),
        square,
    ),
    "apply": Case(
        lambda xp, A: weighed(xp, co.apply(xp.sin, A)), _of_matrix(np.sin), diagonalisable
    ),
    "cholesky": Case(
        lambda xp, A: weighed(xp, co.cholesky(A)), lambda D: host(np.linalg.cholesky(D)), positive
    ),
    "lu": Case(
        lambda xp, A: xp.sum(xp.log(xp.abs(co.diag(co.lu(A)[2])))),
        lambda D: float(np.linalg.slogdet(D)[1]),
        regular,
    ),
    "qr": Case(
        lambda xp, A: weighed(xp, xp.log(xp.abs(co.diag(co.qr(A)[1])))),
        lambda D: host(np.log(abs(np.diag(np.linalg.qr(D)[1])))),
        regular,
    ),
    "norm": Case(
        lambda xp, A: co.norm(A),
        lambda D: float(np.linalg.norm(D)),
        lambda D: bool(abs(D).max() > 0),
    ),
    "norm 2": Case(
        lambda xp, A: co.norm(A, 2), lambda D: float(np.linalg.norm(D, 2)), separate_ends
    ),
    "norm nuc": Case(
        lambda xp, A: co.norm(A, "nuc"), lambda D: float(singular_values(D).sum()), full_rank
    ),
    "cond": Case(lambda xp, A: co.cond(A), _kappa, lambda D: separate_ends(D) and square(D)),
}
