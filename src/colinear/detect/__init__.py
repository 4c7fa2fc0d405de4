"""Structure found in the entries of a matrix: `detect`, what it takes and gives.

A *finder* is a function of a matrix and a tolerance that returns what it `Found`, or in words why
it found nothing. None is trusted: the search compares what was found with the matrix, entry by
entry, and takes the cheapest that agrees.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import BackendError, ShapeError
from ..info import Info
from ..methods.loop import watching
from ..operators import (
    Block,
    BlockDiag,
    Dense,
    Hadamard,
    Kronecker,
    KroneckerSum,
    LinearOperator,
    Product,
    Scaled,
    Sparse,
    Sum,
    as_operator,
)
from ..properties import strongest_names
from .matrix import Found, Matrix, shape_text

__all__ = ["detect"]

COMPOSED = (Sum, Product, Kronecker, KroneckerSum, BlockDiag, Hadamard, Block, Scaled)


def detect(A: Any, tol: float | None = None, info: bool = False, *, progress: bool = False) -> Any:
    """The structure of a matrix that was given by its entries, as an operator that makes use of it.

    Finds zero, (scaled) identity, diagonal, tridiagonal, banded and triangular matrices,
    permutations, matrices that are triangular or block diagonal after permutations (the blocks are
    searched too), Toeplitz and circulant ones, periodic convolutions of two dimensions, low rank,
    low rank plus diagonal, Kronecker products, also plus c I, and Kronecker sums (their factors are
    searched too), and sparse ones. Of each it tells whether it is self-adjoint or symmetric, has
    orthonormal columns, and is positive definite, where that can be proven. Of several structures
    the one that is cheapest to solve with is taken, and none that is dearer than the matrix itself.

    Parameters
    ----------
    A : array, sparse matrix or operator, (m, n)
        Of NumPy, PyTorch or JAX. Of an operator that is composed of others, the dense and sparse
        ones in it are searched.
    tol : float, optional
        Without it, structure must be exact: equal entries are equal, and zero is zero; low rank and
        Kronecker products, which rounding disturbs, must hold to 64 eps of the Frobenius norm. With
        it, the relative residual may be as large as this.
    info : bool
        Whether to return an `Info` too.
    progress : bool
        Whether to show on standard error what is looked for, from the third second on.

    Returns
    -------
    LinearOperator, or (LinearOperator, Info)
        `info.residual` is |A - operator| / |A| in the Frobenius norm, computed from the entries of
        both; 0 where they are equal. (Of a composed operator: the largest of its parts'.) Printed,
        `info` says what was found in which part, and what else was tried.

    Raises
    ------
    ValueError
        If there is NaN or infinity among the entries.
    BackendError
        Under `jax.jit` and other transformations, where values cannot be seen, and for tensors that
        record gradients.

    Notes
    -----
    Structure depends on values, so nothing here is differentiable: detect once, outside, and
    differentiate through what it returns.

    The work is done on the host. A dense matrix costs at most O(m n min(m, n)) flops, most often
    O(m n), and two to ten times its memory; a sparse one of more than 2^20 places is never formed
    and costs O(nnz) for each of the divisors of its size and each level of blocks, and a banded
    Cholesky factorisation of at most 5e9 flops.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> T = 2 * np.eye(20) - np.eye(20, k=1) - np.eye(20, k=-1)
    >>> A = np.kron(T, np.eye(20)) + np.kron(np.eye(20), T)  # a grid, but who would know?
    >>> co.detect(A)
    <KroneckerSum 400x400 float64 numpy [PD]: Tridiagonal(20x20) ⊕ Tridiagonal(20x20)>

    >>> U = np.random.default_rng(0).standard_normal((100, 2))
    >>> noise = 1e-6 * np.random.default_rng(1).standard_normal((100, 100))
    >>> B, info = co.detect(U @ U.T + noise, tol=1e-4, info=True)
    >>> B, bool(info.residual < 1e-4)
    (<LowRank 100x100 float64 numpy [PSD]: LowRank(100x100, rank 2)>, True)
    """
    operator = as_operator(A)
    limit = _checked(operator, tol)
    # what overflows here is no structure: all comparisons are such that NaN fails them
    with np.errstate(all="ignore"), watching("detect") if progress else contextlib.nullcontext():
        found = _of_tree(operator, limit)
    return (found.operator, _report(found)) if info else found.operator


def _checked(A: LinearOperator, tol: Any) -> float:
    if A.batch_shape:
        raise ShapeError(
            f"detect: A has batch shape {A.batch_shape}; structure is found in one matrix at a "
            "time: detect(A[0]), say."
        )
    if tol is None:
        return 0.0
    if isinstance(tol, bool) or not isinstance(tol, (int, float, np.number)) or not 0 < tol < 1:
        raise ValueError(
            f"detect: tol is {tol!r}; it must be a number between 0 and 1, or None for exact "
            "structure."
        )
    return float(tol)


def _of_tree(A: LinearOperator, tol: float) -> Found:
    """What is found in the dense and sparse parts of an operator."""
    if isinstance(A, (Dense, Sparse)):
        return _of_matrix(A, tol)
    parts = A.operands if isinstance(A, COMPOSED) else ()
    found = tuple(_of_tree(part, tol) for part in parts)
    inside = [each.operator for each in found]
    if all(mine is given for mine, given in zip(inside, parts)):
        why = (
            "no dense or sparse matrix in it has more structure" if parts else "it holds no matrix"
        )
        return Found("as it is", A, why)
    if isinstance(A, Block):
        columns = len(A.blocks[0])
        whole = Block([inside[k : k + columns] for k in range(0, len(inside), columns)])
    else:
        whole = Scaled(A.scalar, *inside) if isinstance(A, Scaled) else type(A)(*inside)
    worst = max(each.residual for each in found)
    return Found(
        f"composed: {type(A).__name__}", whole._claim(A._claims), parts=found, residual=worst
    )


def _of_matrix(A: Any, tol: float) -> Found:
    # imported here: `import colinear` is to be quick
    from .search import residual, search, symmetrised

    M, name = _on_host(A), "dense" if isinstance(A, Dense) else "sparse"
    if not np.isfinite(M.norm):  # then no residual can be told from zero
        return Found(name, A, "its norm overflows: scale it first")
    near, apart = symmetrised(M, tol)
    found = search(near, tol - apart)
    operator = found.operator
    if (
        near is M
        and found.name in ("dense", "sparse")
        and (type(operator) is type(A) or isinstance(A, Sparse))
    ):  # what was given, not a copy
        return replace(found, name=name, operator=A._claim(operator.properties))
    if A.backend != "numpy" or str(A.dtype) != str(M.dtype):
        # what is compared has been in the framework and dtype of what is returned
        operator = operator.to(A.backend, A._context.device, A.dtype)
        difference = residual(M, operator.to("numpy", dtype=str(M.dtype)))
    else:
        difference = residual(M, operator)
    if not difference <= max(tol, M.rounding):
        tried = f"{found.name}, but its parts cannot be held in this dtype"
        return Found(name, A, tried=(*found.tried, tried))
    return replace(found, operator=operator, residual=difference)


def _on_host(A: Any) -> Matrix:
    xp, values = A.xp, A.A if isinstance(A, Dense) else A.data
    if xp.is_traced(values) or xp.is_traced(xp.staged(values)):
        raise BackendError(
            "detect: the values are traced, and structure depends on values. Call detect outside "
            "of the transformation, and pass the operator in."
        )
    if xp.is_differentiated(values):
        raise BackendError(
            "detect: A records gradients, and none passes through a search for structure. Use "
            "detect(A.detach()), and make leaves of what it returns."
        )
    values, eps = np.asarray(xp.to_numpy(values)), float(xp.eps(A.dtype))
    if values.dtype.itemsize == 2:
        values = values.astype(np.float32)
    count = np.count_nonzero(~np.isfinite(values))
    if count:
        raise ValueError(
            f"detect: {count} entries of A are NaN or infinite; there is no structure to be found "
            "among them."
        )
    if isinstance(A, Dense):
        return Matrix.of(values, eps)
    from scipy.sparse import csr_array

    entries = (values, A.structure.columns, A.structure.indptr)
    return Matrix.of(csr_array(entries, shape=A.structure.shape), eps)


def _report(found: Found) -> Info:
    """What was found, and in its parts; of these no residual, nor what else was tried."""
    A = found.operator
    names = ", ".join(strongest_names(A.properties))
    told = filter(None, (f"{shape_text(A.shape)} {names}".strip(), found.detail, *found.tried))
    parts = (_report(replace(part, tried=())) for part in found.parts)
    return Info(
        residual=found.residual,
        function="detect",
        rule=found.name,
        message="; ".join(told),
        children=tuple(part.replace(residual=None, function="") for part in parts),
    )
