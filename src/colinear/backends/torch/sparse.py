"""Sparse times dense in torch: its CSR product with derivatives of our own, and a gather-and-add
for batches of matrices.

torch's own derivative of a CSR product makes a sparse gradient, cannot be differentiated again and
has no rule for vmap.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch

from ..shared import by_columns, common, half
from .arrays import asarray
from .derivatives import custom_derivative, is_differentiated

Array = Any


@half
def sparse_matmul(data: Array, structure: Any, X: Array) -> Array:
    """Multiply by the sparse matrix of these entries: data (*batch, nnz), X (*batch, n, k) ->
    (*batch, m, k)."""
    data, X = common(data, X)
    # CSR tensors break the graph; these operations differentiate by themselves
    if torch.compiler.is_compiling():
        return _gather_and_add(data, structure, X)
    if not is_differentiated(data, X):
        return _multiply(data, structure, X)

    def jvp(primals: tuple, tangents: tuple, Y: Array) -> Array:
        (data, X), (d_data, dX) = primals, tangents
        return sparse_matmul(d_data, structure, X) + sparse_matmul(data, structure, dX)

    def vjp(primals: tuple, Y: Array, G: Array) -> tuple:
        data, X = primals
        rows, columns, _ = _indices(structure, X.device)
        to_data = (G.index_select(-2, rows) * X.conj().index_select(-2, columns)).sum(-1)
        flipped = data.conj().index_select(-1, _order(structure, X.device))
        to_X = sparse_matmul(flipped, structure.transposed, G)
        return to_data.sum_to_size(data.shape), to_X.sum_to_size(X.shape)

    return custom_derivative(lambda data, X: _multiply(data, structure, X), jvp, vjp, ranks=(1, 2))(
        data, X
    )


def sparse_array(data: Array, structure: Any) -> Array:
    """The matrix in the framework's own format: torch's CSR."""
    _, columns, indptr = _indices(structure, data.device)
    batch = data.shape[:-1]
    return torch.sparse_csr_tensor(
        indptr.expand(*batch, -1),
        columns.expand(*batch, -1),
        data,
        size=(*batch, *structure.shape),
        check_invariants=False,
    )


def _multiply(data: Array, structure: Any, X: Array) -> Array:
    """The product, without derivatives."""
    if 0 in structure.shape or X.numel() == 0 or data.numel() == 0:
        return _gather_and_add(data, structure, X)
    if data.ndim == 1 and X.ndim == 2:  # an iteration's: 60 us are a fifth of it
        return _csr_product(data, structure, X)
    if data.ndim == 1:
        return by_columns(lambda X: _csr_product(data, structure, X), X)
    if data.shape[-1] * X.shape[-1] < 2000:  # where a call costs more than its work
        return _gather_and_add(data, structure, X)
    batch = torch.broadcast_shapes(data.shape[:-1], X.shape[:-2])
    pairs = zip(
        data.expand(*batch, -1).reshape(-1, data.shape[-1]),
        X.expand(*batch, *X.shape[-2:]).reshape(-1, *X.shape[-2:]),
        strict=True,
    )
    products = [_csr_product(one, structure, right) for one, right in pairs]
    return torch.stack(products).reshape(*batch, *products[0].shape)


def _csr_product(data: Array, structure: Any, X: Array) -> Array:
    _, columns, indptr = _indices(structure, X.device)
    matrix = torch.sparse_csr_tensor(
        indptr, columns, data, size=structure.shape, check_invariants=False
    )
    return matrix @ X if X.shape[1] > 1 else (matrix @ X[:, 0])[:, None]


def _gather_and_add(data: Array, structure: Any, X: Array) -> Array:
    rows, columns, _ = _indices(structure, X.device)
    # index_add is ten times as fast along the first axis as along another, and three times more on
    # a vector.
    terms = (data[..., None] * X.index_select(-2, columns)).movedim(-2, 0)
    rest = terms.shape[1:]
    terms = terms.reshape(-1) if math.prod(rest) == 1 else terms
    sums = terms.new_zeros(structure.shape[0], *terms.shape[1:]).index_add(0, rows, terms)
    return sums.reshape(structure.shape[0], *rest).movedim(0, -2)


def _indices(structure: Any, device: Any) -> tuple[Array, Array, Array]:
    """Rows, columns and row starts on the device, kept with the structure; 32-bit where they
    fit, as MKL wants them."""
    found = structure.memo.get(("torch", device))
    if found is None:
        host = structure.rows, structure.columns, structure.indptr
        if torch.compiler.is_compiling():  # part of the graph then, and not to be kept
            return tuple(torch.as_tensor(x.copy(), device=device) for x in host)
        with warnings.catch_warnings():
            # The first CSR tensor of a process says that they are in beta, and the first that is
            # made of its parts, in torch 2.11, that these are not checked.
            warnings.simplefilter("ignore")
            none = torch.zeros(2, dtype=torch.int64)
            torch.sparse_csr_tensor(none, none[:0], torch.zeros(0), size=(1, 1))
        found = _keep(structure, ("torch", device), *host)
    return found


def _order(structure: Any, device: Any) -> Array:
    """The order of the entries by columns, on the device."""
    key = "torch order", device
    (order,) = structure.memo.get(key) or _keep(structure, key, structure.transposed.order)
    return order


def _keep(structure: Any, key: tuple, *host: Any) -> Any:
    """These integers on the device of the key, kept with the structure: plain tensors, inside a
    transform too."""
    with torch._C._DisableFuncTorch():
        found = tuple(asarray(x.copy(), device=key[1]) for x in host)
    structure.memo[key] = found
    return found
