"""No Python loop over rows, columns or blocks runs on a device: the number of operations that a call
launches in torch does not grow with n, nor does the number of equations of a program in JAX.

On the CPU, made to look like a device: nothing can be seen without cost. Views launch nothing and
are not counted. What still grows is listed below with its reason; the list can only shrink.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import colinear as co
from colinear import backends

torch = pytest.importorskip("torch")

FEW, MANY = 200, 2000  # rows
FEW_DENSE, MANY_DENSE = 100, 800  # of matrices that are stored, or decomposed, as a whole


def numbers(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape)


def tridiagonal(put, n):
    beside = put(0.3 * numbers(n - 1))
    return co.PSD(co.Tridiagonal(beside, put(2 + 0.1 * numbers(n)), beside))


def banded(put, n):
    diagonals = [2 + 0.1 * numbers(n), 0.2 * numbers(n - 1), 0.2 * numbers(n - 2)]
    main, first, second = map(put, diagonals)
    return co.PSD(co.Banded([main, first, second, first, second], [0, 1, 2, -1, -2], (n, n)))


def toeplitz(put, n):
    return co.Toeplitz(put(3.0 * 0.5 ** np.arange(n)), put(3.0 * 0.4 ** np.arange(n)))


def lower_triangle(put, n):
    return co.Triangular(
        put(np.tril(0.3 * numbers(n, n) / n) + np.diag(2 + np.arange(n) / n)), lower=True
    )


def dense(put, n):
    return co.Dense(put(0.3 * numbers(n, n) / np.sqrt(n) + 2 * np.eye(n)))


def sum_without_eigenvectors(put, n):
    return co.KroneckerSum(co.Dense(put(2 * np.eye(n) + np.eye(n, k=1))), dense(put, 4))


def blocks(put, n):
    parts = 0.3 * numbers(n // 4, 4, 4)
    parts = put(parts @ np.swapaxes(parts, -1, -2) + np.eye(4))
    return co.BlockDiag(*(co.PSD(co.Dense(part)) for part in parts))


def grid_of_blocks(put, n):
    def block(i, j):
        return dense(put, n // 8) if i == j else co.Dense(put(0.01 * numbers(n // 8, n // 8)))

    return co.Block([[block(i, j) for j in range(8)] for i in range(8)])


def band_of_blocks(put, n):
    def block(i, j):
        return dense(put, 20) if i == j else co.Dense(put(0.1 * numbers(20, 20)))

    rows = range(n // 20)
    return co.Block([[block(i, j) if j in (i, i - 1) else None for j in rows] for i in rows])


MAKERS = {
    f.__name__: f
    for f in (
        *(tridiagonal, banded, toeplitz, lower_triangle, dense),
        *(sum_without_eigenvectors, blocks, grid_of_blocks, band_of_blocks),
    )
}


def side(A):
    return A.xp.asarray(numbers(A.shape[-2]), dtype=A.dtype)


FUNCTIONS = {
    "product": lambda A: A @ side(A),
    "product by the adjoint": lambda A: A.H @ side(A),
    "matrix": lambda A: A.to_dense(),
    "solve": lambda A: co.solve(A, side(A)),
    "solve by QR": lambda A: co.solve(A, side(A), co.QR()),
    "product by the inverse": lambda A: co.inv(A) @ side(A),
    "product by the transposed inverse": lambda A: co.inv(A).T @ side(A),
    "diagonal of the inverse": lambda A: co.diag(co.inv(A)),
    "logdet": lambda A: co.slogdet(A)[1],
    "diag": co.diag,
    "trace": co.trace,
    "cholesky": lambda A: co.cholesky(A) @ side(A),
    "lu": lambda A: [factor @ side(A) for factor in co.lu(A)],
    "qr": lambda A: [factor @ side(A) for factor in co.qr(A)],
    "eig": lambda A: [co.eig(A)[0], co.eig(A)[1] @ side(A)],
    "svd": lambda A: co.svd(A)[1],
    "lstsq": lambda A: co.lstsq(A, side(A)),
    "pinv": lambda A: co.pinv(A) @ side(A),
    "nullspace": co.nullspace,
    "norm": co.norm,
    "sqrt": lambda A: co.sqrt(A) @ side(A),
}

# Which functions each operator is asked for: those that its structure gives an algorithm of its own.
# The others are one call of a library, whatever n is.
ASKED = {
    "tridiagonal": set(FUNCTIONS)
    - {"svd", "eig", "sqrt", "pinv", "lstsq", "nullspace", "solve by QR"},
    "banded": set(FUNCTIONS) - {"svd", "eig", "sqrt", "pinv", "lstsq", "nullspace", "solve by QR"},
    "toeplitz": {"product", "product by the adjoint", "matrix", "solve", "logdet", "norm", "diag"},
    "lower_triangle": {"solve", "product by the inverse", "eig", "logdet", "lu", "qr"},
    "dense": {"solve", "solve by QR", "qr", "lu", "pinv"},
    "sum_without_eigenvectors": {
        *("solve", "product by the inverse", "product by the transposed inverse", "trace"),
    },
    "blocks": set(FUNCTIONS),
    "grid_of_blocks": {"solve", "logdet", "matrix", "product"},
    "band_of_blocks": {"logdet", "matrix", "product"},
}
CASES = [(operator, function) for operator in MAKERS for function in sorted(ASKED[operator])]

# The calls whose number of operations still grows with n, and why.
GROWING = {
    ("tridiagonal", "qr"): "each window of 24 columns needs the one before: on the host",
    ("banded", "qr"): "the same",
    (
        "dense",
        "solve by QR",
    ): "of a large matrix each step for the order is a product of n² numbers",
    ("band_of_blocks", "product"): "a product with each block of a grid, which may be of any kind",
    ("band_of_blocks", "logdet"): "each block of a grid is eliminated by itself",
    ("blocks", "nullspace"): "each block has a null space of its own size, which must be seen",
}
GROWING_WITH_GRADIENTS = {
    **GROWING,
    ("banded", "diagonal of the inverse"): "column by column, as many at once as fit",
    ("blocks", "pinv"): "the derivative of each pseudoinverse depends on its own rank",
    ("blocks", "lstsq"): "the same",
}
HAVE_NO_GRADIENT = {"nullspace"}


class Counted(torch.utils._python_dispatch.TorchDispatchMode):
    """The operations that a device would launch: all but views."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func._schema.returns
        is_view = any(x.alias_info is not None and not x.alias_info.is_write for x in results)
        self.count += not is_view
        return func(*args, **(kwargs or {}))


@pytest.fixture
def as_on_a_device(monkeypatch):
    """The torch backend takes tensors of the CPU for those of a device: no value is seen for free."""
    from colinear.backends.torch import arithmetic, arrays, linalg

    def peek(x):
        return None if isinstance(x, torch.Tensor) else x

    for module in (backends.get("torch"), arrays, arithmetic):
        monkeypatch.setattr(module, "peek", peek)
    monkeypatch.setattr(linalg, "is_on_device", lambda x: True)


def operations(operator, function, n, is_recorded):
    def put(x):
        return torch.tensor(x, dtype=torch.float64, requires_grad=is_recorded)

    A = MAKERS[operator](put, n)
    with Counted() as counted, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of derivatives that do not exist
        answers = FUNCTIONS[function](A)
        if is_recorded:
            answers = answers if isinstance(answers, list) else [answers]
            sum(x.abs().sum() for x in answers if x.requires_grad).backward()
    return counted.count


def grows(operator, function, is_recorded=False):
    is_dense = operator in ("lower_triangle", "dense", "sum_without_eigenvectors")
    is_dense = is_dense or operator in ("grid_of_blocks", "band_of_blocks")
    is_dense = is_dense or function in ("matrix", "eig", "svd", "sqrt")
    sizes = (FEW_DENSE, MANY_DENSE) if is_dense else (FEW, MANY)
    few, many = (operations(operator, function, n, is_recorded) for n in sizes)
    return many > 1.7 * few + 40  # doublings take log2(n) steps


@pytest.mark.parametrize(("operator", "function"), CASES)
def test_torch_launches_no_more_for_more_rows(as_on_a_device, operator, function):
    assert grows(operator, function) == ((operator, function) in GROWING)


@pytest.mark.parametrize(
    ("operator", "function"), [c for c in CASES if c[1] not in HAVE_NO_GRADIENT]
)
def test_nor_do_gradients(as_on_a_device, operator, function):
    expected = (operator, function) in GROWING_WITH_GRADIENTS
    assert grows(operator, function, is_recorded=True) == expected


# ------------------------------------------------------------------------------------------- JAX

GROWING_PROGRAMS = {
    ("blocks", "pinv"): "each pseudoinverse under jit is one of its own, with its own derivative",
    ("blocks", "lstsq"): "the same",
    ("blocks", "cholesky"): "the factor has as many blocks, each a slice of one array",
    ("blocks", "lu"): "the same",
    ("blocks", "qr"): "the same",
    ("blocks", "svd"): "the same",
    ("blocks", "eig"): "the same",
}
# of values that cannot be seen; of a matrix, which is one call
HAVE_NO_PROGRAM = {"nullspace"}


def equations(jaxpr):
    """How many equations a program has, those of its loops and branches with it."""
    inner = [
        getattr(part, "jaxpr", part)
        for equation in jaxpr.eqns
        for value in equation.params.values()
        for part in (value if isinstance(value, list | tuple) else [value])
    ]
    return len(jaxpr.eqns) + sum(equations(part) for part in inner if hasattr(part, "eqns"))


@pytest.mark.parametrize(
    ("operator", "function"),
    [c for c in CASES if "of_blocks" not in c[0] and c[1] not in HAVE_NO_PROGRAM],
)
def test_programs_of_jax_grow_no_longer_for_more_rows(operator, function):
    jax = pytest.importorskip("jax")

    def size(n):
        A = MAKERS[operator](jax.numpy.asarray, n)
        leaves, structure = jax.tree.flatten(A)

        def answer(leaves, b):
            if operator == "sum_without_eigenvectors":  # which are found where values can be seen
                return co.inv(A).T @ b if "transposed" in function else co.inv(A) @ b
            return jax.tree.leaves(FUNCTIONS[function](jax.tree.unflatten(structure, leaves)))

        return equations(jax.make_jaxpr(answer)(leaves, side(A)).jaxpr)

    few, many = size(40), size(320)
    assert (many > 1.7 * few + 40) == ((operator, function) in GROWING_PROGRAMS)
