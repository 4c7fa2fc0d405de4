"""A root of a covariance that keeps its structure, and samples by that root."""

from __future__ import annotations

from typing import Any

from ..backends import Array, namespace_of
from ..dispatch import Choice, function, rule
from ..errors import BackendError
from ..functions import sqrt
from ..functions.common import array_like, is_positive, operands_in_context, square_size
from ..methods import Method
from ..methods.sampling import check_seed
from ..operators import (
    BlockDiag,
    Dense,
    Diagonal,
    Kronecker,
    LinearOperator,
    LowRank,
    Sum,
    as_operator,
    hstack,
)
from ..properties import POSITIVE_SEMIDEFINITE, PSD

# Roots. Any R with R R^H = K makes samples R z of the covariance K from independent z, whether R is
# square or not. So the root of a sum is the roots side by side, [R, S] [R, S]^H = R R^H + S S^H,
# which no square root of a matrix has.


def root_of_matrix(A: LinearOperator, method: Method | None = None) -> Choice:
    """An operator R with R R^H = A, for positive semidefinite A; not square where the structure has
    a wider or a thinner one.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
        Positive semidefinite; singular ones have a root too.
    method : Method, optional
        As for `sqrt`, which the base case uses.

    Notes
    -----
    The cost of `sqrt(A)`, O(n^3) for a matrix, where no rule is better: sums of positive
    semidefinite operators, Kronecker products, low ranks and blocks cost what their parts do.

    Examples
    --------
    >>> import numpy as np
    >>> import colinear as co
    >>> from colinear import gp
    >>> K = co.LowRank(np.ones((4, 1))) + 0.1 * co.Identity(4)
    >>> R = gp.covariance_root(K)
    >>> R.shape, bool(np.allclose((R @ R.H).to_dense(), K.to_dense()))
    ((4, 5), True)
    """
    square_size("covariance_root", A, "a root of a covariance", "Use svd(A).")
    return Choice(lambda: sqrt(PSD(A), method), "sqrt", None, "R = A^(1/2)")


covariance_root = function("covariance_root", base=root_of_matrix)


def all_semidefinite(A: LinearOperator) -> bool:
    """Whether each operand is known to be positive semidefinite, a diagonal by its values."""
    return all(
        operand.properties & POSITIVE_SEMIDEFINITE
        or (isinstance(operand, Diagonal) and is_positive(operand))
        for operand in A.operands
    )


@rule(covariance_root, Sum, when=all_semidefinite)
def root_of_sum(A: Any, method: Any) -> LinearOperator:
    """[R, S] [R, S]^H = R R^H + S S^H"""
    return hstack(*(covariance_root(term, method) for term in operands_in_context(A)))


@rule(covariance_root, Kronecker, when=all_semidefinite)
def root_of_kronecker(A: Any, method: Any) -> LinearOperator:
    """(R ⊗ S) (R ⊗ S)^H = R R^H ⊗ S S^H"""
    return Kronecker(*(covariance_root(factor, method) for factor in operands_in_context(A)))


@rule(covariance_root, BlockDiag, when=all_semidefinite)
def root_of_blocks(A: Any, method: Any) -> LinearOperator:
    """diag(R, S) diag(R, S)^H = diag(R R^H, S S^H)"""
    return BlockDiag(*(covariance_root(block, method) for block in operands_in_context(A)))


def has_equal_factors(A: LinearOperator) -> bool:
    """Whether it is U U^H."""
    return A.V is None and A.core is None  # type: ignore[attr-defined]


@rule(covariance_root, LowRank, when=has_equal_factors)
def root_of_low_rank(A: Any, method: Any) -> LinearOperator:
    """U is a root of U U^H"""
    return Dense(A.U)


def sample(
    K: Any,
    count: int | None = None,
    *,
    seed: Any = 0,
    mean: Any = 0.0,
    method: Method | None = None,
) -> Array:
    """Samples of the normal distribution with this mean and covariance K.

    Parameters
    ----------
    K : operator or array, (*batch, n, n)
        Positive semidefinite.
    count : int, optional
        How many: the samples are then the columns of (*batch, n, count). One, of shape (*batch, n),
        if not given.
    seed : int, JAX key, or NumPy or torch generator
        The same integer gives the same samples.
    mean : number or array
        Of a shape that broadcasts with the result.
    method : Method, optional
        As for `covariance_root`.

    Returns
    -------
    array
        mean + R z with R = covariance_root(K) and standard normal z; differentiable in the mean and
        in the leaves of K.

    Examples
    --------
    >>> import numpy as np
    >>> import colinear as co
    >>> from colinear import gp
    >>> X = np.linspace(0, 1, 50)[:, None]
    >>> K = co.Kronecker(co.PSD([[1.0, 0.9], [0.9, 1.0]]), co.PSD(gp.rbf(X, length=0.1)))  # two functions, alike
    >>> gp.sample(K, 3, seed=1).shape
    (100, 3)
    """
    check_seed("sample", seed)
    if count is not None and count < 0:
        raise ValueError(f"sample: count is {count}; it must not be negative.")
    R = covariance_root(as_operator(K), method)
    xp = R.xp
    shape = (*R.batch_shape, R.shape[-1], 1 if count is None else count)
    z = xp.normal(xp.generator(seed), shape, dtype=R.dtype, device=R._context.device)
    drawn = (R @ z)[..., 0] if count is None else R @ z
    return drawn + of_framework("sample", mean, R)


def of_framework(name: str, x: Any, K: LinearOperator) -> Array:
    """Numbers and lists as an array like those of K, and integers in its dtype; arrays of
    another framework are refused."""
    xp = namespace_of(x)
    if xp is None:
        return array_like(K, x)
    if xp is not K.xp:
        raise BackendError(
            f"{name}: K is of {K.backend}, and an array was given that is of {xp.name}."
        )
    return x if K.xp.is_floating(x) else K.xp.astype(x, K.dtype)
