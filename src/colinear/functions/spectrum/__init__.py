"""Eigenvalues and eigenvectors: all of them, some of them, the largest, the smallest."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from functools import partial, reduce
from operator import add, mul
from typing import Any

import numpy as np

from ... import autodiff
from ...backends import Array, matrix_inverse, namespace_of, without_zeros
from ...dispatch import Choice, check_part, function, rule
from ...factors.dense import is_small_beside, probe, rough_norms
from ...info import Info, is_detailed, report
from ...methods import EIGEN, LOBPCG, SVRG, Arnoldi, Auto, Lanczos, Method, Spectral, fitting
from ...operators import Kronecker, KroneckerSum, LinearOperator
from ...operators.batch import broadcast_batch
from ...operators.context import records_derivatives
from ...operators.kronecker import are_same
from ...operators.shown import look_at_matrices, with_symmetry_of_entries
from ...operators.sparse_algebra import evaluate, generators
from ...properties import POSITIVE_DEFINITE, POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from ...status import Status, first_failure, is_unseen, take_for_granted
from ..common import (
    dense,
    filled,
    identity_like,
    ignore_float_errors,
    in_context,
    is_square,
    once_each,
    outer,
    seen_value,
    square_size,
    to_result_dtype,
)
from ..orthonormal import first_columns
from .iterate import iterative_pairs
from .order import (
    Asked,
    Pairs,
    automatic,
    checked_count,
    dense_cost,
    expected_cost,
    is_affordable,
    kronecker,
    take_columns,
)
from .outside import pairs_of_algorithm

POSITIVE = POSITIVE_SEMIDEFINITE | POSITIVE_DEFINITE
WHICH = ("LM", "SM", "LA", "SA", "LR", "SR", "LI", "SI")
NEED = ("eigenvalues", "Use svd(A).")
PARALLEL = "A is defective, or close to it: some eigenvectors are almost parallel"


def eigenpairs(
    A: LinearOperator, k: int | None = None, which: str = "LM", method: Method | None = None
) -> Choice:
    """Eigenvalues and right eigenvectors, A V = V diag(values).

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    k : int, optional
        How many; all n if not given.
    which : {"LM", "SM", "LA", "SA", "LR", "SR", "LI", "SI"}
        Which, and in which order: largest or smallest magnitude, algebraic value (self-adjoint A
        only), real part, or magnitude of the imaginary part (not for self-adjoint A).
    method : Auto, Eigh, Eig, Lanczos, Arnoldi, LOBPCG or PowerIteration, optional
        `Auto` iterates for few pairs of large operators: Lanczos if A is self-adjoint, else
        Arnoldi; and forms the matrix otherwise. With an A that is known to be self-adjoint, `Eig`
        does as `Eigh`, and `Arnoldi` as `Lanczos`.

    Returns
    -------
    values : array, (*batch, k)
        Of a self-adjoint A real, and ascending whatever `which` is. Otherwise complex, in the order
        of `which`; where that ties, to rounding, the larger real part comes first, then the larger
        imaginary part.
    vectors : LinearOperator, (*batch, n, k)
        Columns of norm 1, orthonormal for self-adjoint A.

    Notes
    -----
    About 9 n^3 flops for self-adjoint A, 25 n^3 for others; by iteration some hundred products with
    A, as a rule, and 3 k + 20 vectors. Pairs nearest to zero ("SM", and "SA" of positive A), or to
    the `shift` of a method, are found through the inverse where structure makes that cheap; else,
    of a self-adjoint A, by polynomials of it, and of another A only from its matrix.

    `info.residual` is |A v - λ v| / |A| for each pair. A defective A has too few eigenvectors, so
    some are found almost parallel, with eigenvalues right to a root of the accuracy only: then the
    status is INACCURATE. Structured operators cost what their parts do, and k pairs of a Kronecker
    product need k of each factor; circulants, periodic convolutions and permutations have Fourier's
    eigenvectors, which are complex also where A is symmetric. Tridiagonal ones cost O(n^2), and n
    log n, by sine transforms, where their diagonals are constant.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> values, vectors = co.eig(co.SelfAdjoint(np.array([[2.0, 1.0], [1.0, 2.0]])))
    >>> values.round(12)
    array([1., 3.])
    """
    asked = check(A, k, which, method)
    chosen, is_hermitian = asked.chosen, asked.is_hermitian
    if is_hermitian and isinstance(chosen, Arnoldi):  # which is Lanczos with such an A
        chosen = Lanczos(**{f.name: getattr(chosen, f.name) for f in fields(chosen)})
        asked = asked._replace(chosen=chosen)
    is_free, iteration = isinstance(chosen, Auto), None
    if 0 not in (asked.k, *A.shape):
        iteration = automatic(asked) if is_free else chosen
    by_eigh = is_hermitian or (is_free and shows_symmetry(A))
    run, like = partial(_dense_pairs, asked, by_eigh), partial(pairs_like, asked)
    if isinstance(iteration, (Spectral, SVRG)):
        otherwise: Any = run if is_free and is_affordable(A) else None
        why = "a few eigenvalues of a large operator" if is_free else "asked for"
        if is_free and isinstance(iteration, LOBPCG):
            why = f"{why}, by its diagonal; else by Lanczos"
            plain = asked._replace(chosen=Lanczos(tol=chosen.tol, max_iters=chosen.max_iters))
            otherwise = partial(iterative_pairs, plain, otherwise)
        iterate = lambda: iterative_pairs(asked._replace(chosen=iteration), otherwise)
        cost = lambda: expected_cost(A, asked.k, iteration)
        return Choice(iterate, iteration.name, cost, why, like)
    why = f"A is {'' if is_hermitian else 'not '}known to be self-adjoint"
    why = why if by_eigh == is_hermitian else f"{why}, but its entries are those of its adjoint"
    name = "Eigh" if by_eigh else "Eig"
    return Choice(run, name, lambda: dense_cost(A, by_eigh), why, like)


def pairs_by_method(
    algorithm: Any, A: LinearOperator, k: int | None, which: str, method: Method
) -> Choice:
    """The eigenpairs that the own algorithm of a method from outside finds, judged by A itself."""
    asked = check(A, k, which, method)
    run = partial(pairs_of_algorithm, asked, algorithm)
    return Choice(run, method.name, None, "asked for", partial(pairs_like, asked))


def shows_symmetry(A: LinearOperator) -> bool:
    """Whether the entries of A are seen to be those of its adjoint, and no derivatives are
    recorded: these are not kept symmetric."""
    if records_derivatives(A):
        return False
    return bool(with_symmetry_of_entries(A).properties & SELF_ADJOINT)


def _dense_pairs(asked: Asked, by_eigh: bool) -> Pairs:
    """All eigenpairs from the matrix, in the order and dtype that are asked for also where it is
    seen to be self-adjoint and goes `by_eigh`."""
    A, k, is_hermitian = asked.A, asked.k, asked.is_hermitian
    xp, M = A.xp, dense(A)
    if 0 in M.shape:
        vectors = xp.astype(M[..., :k], A.dtype if is_hermitian else xp.complex_dtype(A.dtype))
        return asked.typed(filled(A, 0.0, *A.batch_shape, k)), asked.wrap(vectors)
    values, V = (autodiff.eigh if by_eigh else autodiff.eig)(xp, M)
    if by_eigh and not is_hermitian:
        values, V = asked.typed(values), xp.astype(V, xp.complex_dtype(V.dtype))
    with ignore_float_errors(xp):
        sensitivity = None if by_eigh else sensitivity_of(xp, xp.stop_gradient(V))
        if not is_hermitian or k < asked.n:  # else they ascend as they come
            order = asked.order(xp.stop_gradient(values))[..., :k]
            values, V = xp.take_along_axis(values, order, axis=-1), take_columns(xp, V, order)
            if sensitivity is not None:
                sensitivity = xp.take_along_axis(sensitivity, order, axis=-1)
        held, at, along = map(xp.stop_gradient, (M, values, V))
        report_pairs(asked, "Eigh" if by_eigh else "Eig", held, at, along, sensitivity)
    return to_result_dtype(xp, values, A.dtype), asked.wrap(V)


def check(A: LinearOperator, k: Any, which: Any, method: Any, known: bool = False) -> Asked:
    """What is asked for, or an error.

    `known`: whether the spectrum is known, so that `Eigh()` cannot make it real.
    """
    n = square_size("eig", A, *NEED)
    if which not in WHICH:
        raise ValueError(
            f"eig: which is {which!r}; it must be one of {', '.join(map(repr, WHICH))}."
        )
    bounds = f"an operator of {n}x{n} has {n} eigenvalues."
    count = n if k is None else checked_count("eig", k, 0, n, bounds)
    chosen = fitting("eig", method, *EIGEN)
    is_hermitian = bool(A.properties & SELF_ADJOINT) if known else is_hermitian_by(A, chosen)
    if which in ("LA", "SA") and not is_hermitian:
        raise ValueError(
            f"eig: which={which!r} orders real eigenvalues, and A is not known to be self-adjoint. "
            f"Annotate it, SelfAdjoint(A), or use which={which[0] + 'R'!r}."
        )
    if which in ("LI", "SI") and is_hermitian:
        raise ValueError(
            f"eig: which={which!r} orders by imaginary parts, and a self-adjoint A has real "
            "eigenvalues. Use one of 'LM', 'SM', 'LA', 'SA'."
        )
    return Asked(A, count, which, is_hermitian, method, chosen)


def is_hermitian_by(A: LinearOperator, method: Method) -> bool:
    """Whether the eigenvalues are those of a self-adjoint operator: by what is known of A, or by
    what the method is for."""
    check_part(A, method)
    if isinstance(method, Arnoldi) and complex(method.shift or 0).imag:
        return False  # nearest to a number that no inverse of a self-adjoint operator belongs to
    return bool(A.properties & SELF_ADJOINT or method.needs & SELF_ADJOINT)


def sensitivity_of(xp: Any, V: Array) -> Array:
    """How much each eigenvalue moves with A: |y| |x| / |y^H x|, from the rows y^H of V^-1 (Golub
    and Van Loan, 7.2.2)."""
    return xp.vector_norm(matrix_inverse(xp, V), axis=-1)


def report_pairs(
    asked: Asked, name: str, M: Array, values: Array, V: Array, sensitivity: Any = None
) -> None:
    """How well A v = λ v, and whether the eigenvectors are a basis."""
    xp = asked.A.xp
    if sensitivity is None and not (is_detailed() or xp.is_traced(M)):
        # only whether all is well is asked for, and A V y = V Λ y for one y of signs costs less
        y = xp.sign(probe(xp, V.shape[-1], xp.real_dtype(V.dtype), xp.device_of(V)))
        r = xp.add_product(xp.matmul(M, xp.matmul(V, y)), V, values[..., None] * y, -1)
        limit = asked.chosen.tolerance(xp, asked.A.dtype)
        if is_unseen(M):  # where a false alarm costs a second run
            test = partial(is_small_beside, limit / 2)
            norms = (rough_norms(xp, x, -2, -1) for x in (r, M))
            if take_for_granted(test, *norms, failure=Status.INACCURATE):
                return
        elif bool(
            xp.all(xp.vector_norm(r, axis=-2) <= limit / 8 * xp.vector_norm(M, axis=(-2, -1)))
        ):
            return
    size = xp.vector_norm(M, axis=(-2, -1))[..., None]
    finite = xp.all(xp.isfinite(M), axis=(-2, -1))[..., None]
    R = xp.matmul(M, V) - V * values[..., None, :]
    judge_pairs(asked, name, R, size, finite, sensitivity)


def judge_pairs(
    asked: Asked, name: str, R: Array, size: Array, finite: Array, sensitivity: Any = None
) -> None:
    """Report on eigenpairs by their residuals R = A V - V Λ, the norm of A and how sensitive
    they are."""
    xp = asked.A.xp
    residual = xp.vector_norm(R, axis=-2) / without_zeros(xp, size)
    right = residual <= asked.chosen.tolerance(xp, asked.A.dtype)
    fault, message = right, "A is not self-adjoint, as was claimed"
    if sensitivity is not None:
        fault, message = sensitivity * math.sqrt(xp.eps(R.dtype)) < 1, PARALLEL
        right = xp.logical_and(right, fault)
    elif name == "Schur":
        message = "A is not unitary, as was claimed"
    status = first_failure(xp, (finite, Status.NONFINITE), (right, Status.INACCURATE))
    seen = seen_value(xp, fault)
    if status is Status.NONFINITE or seen is None or seen.all():
        message = ""
    report(Info(status, residual=residual, method=name, message=message))


def pairs_like(asked: Asked) -> Pairs:
    """Ones and columns of the identity: of the shapes of k eigenvalues and eigenvectors."""
    A, k = asked.A, asked.k
    vectors = broadcast_batch(first_columns(identity_like(A), k), A.batch_shape)
    return asked.typed(filled(A, 1.0, *A.batch_shape, k)), vectors


eig = function("eig", base=eigenpairs, by_method=pairs_by_method)


# --------------------------------------------------------------------------------------------------

Implementation = Callable[[Any, Asked], Any]


def eig_rule(
    pattern: Any, when: Any = None, *, known: bool = False, computes: bool = False, **marks: Any
) -> Callable[[Implementation], Implementation]:
    """Decorate a rule of `eig`, written as `eig_something(A, asked)`; `known` as in `check`.

    `computes`: whether it finds the pairs itself, so that a plan must not run it.
    """

    def register(implementation: Implementation) -> Implementation:
        def pairs(A: Any, k: Any, which: str, method: Any) -> Any:
            asked = check(A, k, which, method, known)
            if not computes:
                return implementation(A, asked)
            return Choice(lambda: implementation(A, asked), like=lambda: pairs_like(asked))

        pairs.__doc__ = implementation.__doc__
        rule(eig, pattern, when=when, name=implementation.__name__, **marks)(pairs)
        return implementation

    return register


known_eig_rule = partial(eig_rule, known=True)


def is_real(c: Any) -> bool:
    """Whether a scalar is real, by its type or, where it can be seen, by its value."""
    xp = namespace_of(c)
    if xp is None or not xp.is_complex(c):
        return not isinstance(c, complex) or c.imag == 0
    values = xp.peek(c)
    return values is not None and bool((np.imag(values) == 0).all())


def not_empty(A: LinearOperator) -> bool:
    """Whether A has rows."""
    return 0 not in A.shape


def factors_self_adjoint(A: LinearOperator) -> bool:
    """Whether every factor is self-adjoint."""
    return all(factor.properties & SELF_ADJOINT for factor in A.operands)


def common_factors(A: LinearOperator) -> list[Any] | None:
    """X and Y of a polynomial A of X ⊗ I and I ⊗ Y, which are self-adjoint as is known of them or as
    their entries show: a sum of products of X ⊗ Y and X ⊕ Y, say. None where A is no such sum."""
    terms: list[Any] = []
    for K in generators(A):
        if not isinstance(K, Kronecker | KroneckerSum) or not all(map(is_square, K.operands)):
            return None
        terms.append(K)
    if len({tuple([factor.shape[-1] for factor in K.operands]) for K in terms}) != 1:
        return None
    look_at_matrices([X for K in terms for factor in K.operands for X in generators(factor)])
    found = [_common_factor(factors) for factors in zip(*(K.operands for K in terms))]
    return None if any(X is None for X in found) else found


def _common_factor(factors: Any) -> Any:
    """X of which all factors are polynomials; None if there is none, or none that is
    self-adjoint."""
    inner = [X for factor in factors for X in generators(factor)] or factors
    for candidates in (inner, factors):
        X = candidates[0]
        is_known = with_symmetry_of_entries(X).properties & SELF_ADJOINT
        if is_known and all(are_same(X, other) for other in candidates):
            return X
    return None


def has_common_factors(A: LinearOperator) -> bool:
    """Whether A is a polynomial of X ⊗ I and I ⊗ Y for self-adjoint X and Y."""
    return common_factors(A) is not None


def has_spectrum_of_factors(A: LinearOperator) -> bool:
    """Whether A has common factors, and its spectrum the derivatives of theirs: where those of complex
    arrays are recorded, factors must be known to be self-adjoint, since they need not stay so."""
    bases = common_factors(A)
    if bases is None or not (A.is_complex and records_derivatives(A)):
        return bases is not None
    return all(X.properties & SELF_ADJOINT for X in bases)


def spectrum_by_factors(A: Any) -> tuple[Array, LinearOperator]:
    """Eigenvalues p(λ, μ) and eigenvectors of a polynomial p of X ⊗ I and I ⊗ Y for self-adjoint X
    and Y, in the order that these give them; of X ⊗ Y or X ⊕ Y, for example."""
    bases: Any = common_factors(A)
    pairs = once_each(eig, [in_context(with_symmetry_of_entries(X), A) for X in bases])

    def values_of(factor: Any, X: Any, values: Array) -> Array:
        if are_same(factor, X):
            return values
        return evaluate(factor, lambda _: values) + 0 * values  # of c I as many as of X

    def at(K: Any) -> Array:
        combine = add if isinstance(K, KroneckerSum) else mul
        own = [values_of(F, X, values) for F, X, (values, _) in zip(K.operands, bases, pairs)]
        return reduce(partial(outer, combine), own)

    return evaluate(A, at), kronecker([vectors for _, vectors in pairs])


# --------------------------------------------------------------------------------------------------


def _extreme(A: LinearOperator, vector: bool, method: Method | None, end: str, name: str) -> Any:
    n = square_size(name, A, *NEED)
    if n == 0:
        raise ValueError(f"{name}: A is 0x0 and has no eigenvalues.")
    letter = "A" if is_hermitian_by(A, fitting(name, method, *EIGEN)) else "M"
    values, vectors = eig(A, 1, end + letter, method)
    return (values[..., 0], vectors.to_dense()[..., 0]) if vector else values[..., 0]


def largest_eigenvalue(
    A: LinearOperator, vector: bool = False, method: Method | None = None
) -> Any:
    """The largest eigenvalue: algebraically if A is self-adjoint, else by magnitude.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    vector : bool
        Whether to return the pair (value, vector).
    method : optional
        As for `eig`.

    Examples
    --------
    >>> import colinear as co
    >>> float(co.eigmax(co.Diagonal([1.0, -3.0])))
    1.0
    """
    return _extreme(A, vector, method, "L", "eigmax")


def smallest_eigenvalue(
    A: LinearOperator, vector: bool = False, method: Method | None = None
) -> Any:
    """The smallest eigenvalue: algebraically if A is self-adjoint, else by magnitude.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    vector : bool
        Whether to return the pair (value, vector).
    method : optional
        As for `eig`.

    Examples
    --------
    >>> import colinear as co
    >>> float(co.eigmin(co.Diagonal([1.0, -3.0])))
    -3.0
    """
    return _extreme(A, vector, method, "S", "eigmin")


ONE_PAIR: Any = {"forwards": True, "rewrites": False, "one_column": lambda *arguments: True}
eigmax = function("eigmax", base=largest_eigenvalue, **ONE_PAIR)
eigmin = function("eigmin", base=smallest_eigenvalue, **ONE_PAIR)
