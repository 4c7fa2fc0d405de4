"""For authors of operators: check an operator from all sides, count its products, and catch
anything that builds a large matrix.

>>> import colinear as co, numpy as np
>>> from colinear.testing import check_operator, count_matvecs
>>> A = co.Toeplitz([2.0, -1.0, 0.0])
>>> check_operator(A)
>>> with count_matvecs(A) as count:
...     x = A @ np.ones((3, 5))
>>> count.matvecs
5
"""

from __future__ import annotations

import copy
import math
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from . import backends
from .operators import LinearOperator, as_operator
from .operators.context import kind_of
from .operators.tree import TEST_HOOKS
from .verify import verify

__all__ = ["check_operator", "count_matvecs", "dot_test", "forbid_dense", "operators"]

# ------------------------------------------------------------------ one operator, from all sides


def check_operator(A: Any, dense: Any = None, tol: float | None = None, seed: int = 0) -> None:
    """Raise `AssertionError` if an operator does not behave as one.

    Checks products with vectors, blocks and batches of blocks from both sides, linearity, the
    adjoint, transpose and conjugate, dtypes, entries and slices, the claimed properties, and round
    trips through pickle and the pytrees of the loaded frameworks.

    Parameters
    ----------
    A : LinearOperator
    dense : array, optional
        The matrix that it should be; its own `to_dense()` unless given.
    tol : float, optional
        What relative difference is roundoff: 200 eps of its dtype unless given.
    seed : int
        Of the random vectors.
    """
    check = _Check(A, dense, tol, seed)
    check.arithmetic()
    check.complex_right_side()
    check.costs()
    check.round_trips()
    check.properties()


def dot_test(A: Any, tol: float | None = None, seed: int = 0) -> None:
    """Check that the adjoint of A belongs to its product: y^H (A x) = (A^H y)^H x for random x, y.

    Raises AssertionError where the two differ by more than `tol` times |A x| |y|, the square root
    of the dtype's rounding unit if not given. It costs two products.

    Examples
    --------
    >>> import colinear as co
    >>> from colinear.testing import dot_test
    >>> dot_test(co.Toeplitz([1.0, 2.0, 3.0], [1.0, 5.0]))
    """
    A = as_operator(A)
    rng = np.random.default_rng(seed)

    def draw(size: int) -> Any:
        values = rng.standard_normal((2, size))
        values = values[0] + 1j * values[1] if A.is_complex else values[0]
        return A.xp.asarray(values, **kind_of(A))

    m, n = A.shape[-2:]
    x, y = draw(n), draw(m)
    host = A.xp.to_numpy
    image, back = host(A @ x), host(A.H @ y)
    one = np.sum(np.conj(host(y)) * image, axis=-1)  # y^H (A x)
    other = np.sum(np.conj(back) * host(x), axis=-1)  # (A^H y)^H x
    if tol is None:
        tol = float(np.sqrt(np.finfo(image.dtype).eps))
    size = np.linalg.norm(image, axis=-1) * np.linalg.norm(host(y))
    size = size + np.linalg.norm(back, axis=-1) * np.linalg.norm(host(x))
    difference = np.abs(one - other)
    assert np.all(difference <= tol * size), (
        f"dot_test: y^H (A x) = {one} and (A^H y)^H x = {other}: the adjoint of "
        f"{type(A).__name__} does not belong to its product."
    )


class _Check:
    """An operator, the matrix it should be (host, double precision), random arrays, and how to
    compare."""

    def __init__(self, A: Any, dense: Any, tol: float | None, seed: int):
        assert isinstance(A, LinearOperator), f"expected a LinearOperator, got {type(A).__name__}"
        self.A, self.xp = A, A.xp
        self.multiply = self.xp.jit(lambda A, X: A @ X)
        is_shape = isinstance(A.shape, tuple) and all(type(size) is int for size in A.shape)
        assert is_shape and len(A.shape) >= 2, (
            f"shape must be a tuple of at least two ints, not {A.shape!r}"
        )
        self.tol = 200 * float(A.xp.eps(A.dtype)) if tol is None else tol
        made = A.to_dense()
        assert tuple(made.shape) == A.shape, f"{A!r}: to_dense() has shape {tuple(made.shape)}"
        if dense is None:
            dense = self.host(made)
        given = backends.namespace_of(dense)
        self.dense = np.asarray(dense if given is None else given.to_numpy(dense))
        largest = float(np.max(np.sum(np.abs(self.dense), axis=-1), initial=0.0))
        self.scale = max(1.0, largest) if math.isfinite(largest) else 1.0
        self.equal(made, self.dense, "to_dense()")
        m, n = A.shape[-2:]
        random = np.random.default_rng(seed)
        shapes = {
            "x": (n,),
            "X": (n, 2),
            "Y": (m, 2),
            "y": (m,),
            "batch": (*(A.batch_shape or (2,)), n, 2),
            "larger batch": (3, *A.batch_shape, n, 2),
        }
        self.arrays = {name: self.draw(random, shape) for name, shape in shapes.items()}
        self.hosts = {name: self.host(array) for name, array in self.arrays.items()}

    def host(self, x: Any) -> Any:
        """An array as NumPy's, in double precision (bfloat16 is not NumPy's own)."""
        host = np.asarray(self.xp.to_numpy(x))
        return host.astype(np.complex128 if host.dtype.kind == "c" else np.float64)

    def draw(self, random: Any, shape: tuple[int, ...]) -> Any:
        x = random.standard_normal(shape)
        if self.A.is_complex:
            x = x + 1j * random.standard_normal(shape)
        return self.xp.asarray(x, dtype=self.A.dtype, device=self.A._context.device)

    def equal(self, got: Any, wanted: Any, what: str, dtype: Any = None) -> None:
        dtype = self.A.dtype if dtype is None else dtype
        assert got.dtype == dtype, f"{self.A!r}: {what} has dtype {got.dtype}, expected {dtype}"
        got, wanted = self.host(got), np.asarray(wanted)
        assert got.shape == wanted.shape, (
            f"{self.A!r}: {what} has shape {got.shape}, expected {wanted.shape}"
        )
        if got.size == 0:
            return
        size = max(self.scale, float(np.max(np.abs(wanted))))
        error = float(np.max(np.abs(got - wanted)))
        assert error <= self.tol * size, (
            f"{self.A!r}: {what} is off by {error:.3g}, where {self.tol * size:.3g} would be "
            "roundoff"
        )

    def arithmetic(self) -> None:
        """Compare what the operator computes with what its matrix does. In JAX all of it is
        compiled at once: one by one takes minutes."""
        run = self.xp.jit(lambda A, arrays: dict(_computed(A, arrays)))
        computed = run(self.A, self.arrays)
        for name, wanted in _computed(_Host(self.dense), self.hosts):
            self.equal(computed[name], wanted, name)

    def complex_right_side(self) -> None:
        """A complex right side of a real operator gives complex answers."""
        A, xp = self.A, self.xp
        if A.is_complex or xp.dtype_name(A.dtype) in ("float16", "bfloat16"):
            return
        X_host = self.hosts["X"] * (1 - 2j)
        X = xp.asarray(X_host, dtype=xp.complex_dtype(A.dtype), device=A._context.device)
        self.equal(self.multiply(A, X), self.dense @ X_host, "A @ (complex block)", dtype=X.dtype)

    def costs(self) -> None:
        A = self.A
        assert math.isfinite(A.flops) and A.flops >= 0, f"{A!r}: flops is {A.flops}"
        assert isinstance(A.nbytes, int) and A.nbytes >= 0, f"{A!r}: nbytes is {A.nbytes!r}"
        assert repr(A) and A._repr_html_()

    def round_trips(self) -> None:
        A, X = self.A, self.arrays["X"]
        wanted = self.host(self.multiply(A, X))
        copies = {"a copy": copy.copy(A), "a deep copy": copy.deepcopy(A), "pickle": _pickled(A)}
        for xp in backends.loaded():
            if xp.name in ("numpy", A.backend) or A.backend == "numpy":
                copies[f"the pytree of {xp.name}"] = xp.tree_map(lambda leaf: leaf, A)
        for how, B in copies.items():
            if B is None:
                continue
            assert type(B) is type(A), f"{A!r}: {how} gives a {type(B).__name__}"
            assert B.shape == A.shape and B.dtype == A.dtype, f"{A!r}: {how} gives {B!r}"
            assert B.properties == A.properties, f"{A!r}: {how} changes the properties to {B!r}"
            self.equal(self.multiply(B, X), wanted, f"the product after a round trip through {how}")

    def properties(self) -> None:
        try:
            verify(self.A, tol=max(self.tol, float(self.xp.eps(self.A.dtype)) ** 0.5))
        except ValueError as error:
            raise AssertionError(str(error)) from error


class _Host:
    """A matrix of NumPy that answers as an operator does, of whose code it has nothing."""

    def __init__(self, dense: Any):
        self.dense, self.shape, self.batch_shape = dense, dense.shape, dense.shape[:-2]

    T = property(lambda self: _Host(np.swapaxes(self.dense, -1, -2)))
    H = property(lambda self: self.T.conj())

    def conj(self) -> _Host:
        return _Host(np.conj(self.dense))

    def to_dense(self) -> Any:
        return self.dense

    def __matmul__(self, X: Any) -> Any:
        return self.dense @ X

    def __rmatmul__(self, X: Any) -> Any:
        return X @ self.dense

    def __getitem__(self, key: Any) -> Any:
        return self.dense[key]


def _computed(A: Any, a: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What is computed of an operator, or of its matrix, and of random arrays."""
    yield "A @ vector", A @ a["x"]
    yield "A @ block", A @ a["X"]
    yield "A @ (block without columns)", A @ a["X"][:, :0]
    yield "A @ (batch of blocks)", A @ a["batch"]
    yield "A @ (larger batch of blocks)", A @ a["larger batch"]
    yield "vector @ A", A.__rmatmul__(a["y"])
    yield "block @ A", A.__rmatmul__(a["Y"].T)
    yield "A @ (2 X - Y)", A @ (2 * a["X"] - a["X"][:, :1])
    yield "A.T.to_dense()", A.T.to_dense()
    yield "A.T @ block", A.T @ a["Y"]
    yield "A.H.to_dense()", A.H.to_dense()
    yield "A.H @ block", A.H @ a["Y"]
    yield "A.conj().to_dense()", A.conj().to_dense()
    yield "A.conj() @ block", A.conj() @ a["X"]
    yield "A.T.T", A.T.T.to_dense()
    yield "A.H.H", A.H.H @ a["x"]
    yield "A.H.conj()", A.H.conj() @ a["y"]
    if 0 in A.shape[-2:]:
        return
    cols = np.arange(min(A.shape[-2:]))
    rows = cols[::-1]
    yield "A[..., -1, 0]", A[..., -1, 0]
    yield "A[..., -1, :]", A[..., -1, :]
    yield "A[..., :, 0]", A[..., 0]
    yield "A[..., ::2, 1:]", _matrix(A[..., ::2, 1:])
    yield "A[..., rows, cols]", A[..., rows, cols]
    yield "A[..., rows, :]", _matrix(A[..., rows, :])
    if A.batch_shape and A.batch_shape[0]:
        yield "A[0], the first of the batch,", _matrix(A[0])


def _matrix(A: Any) -> Any:
    """The matrix of an operator; of a slice of a matrix, that itself."""
    return A.to_dense() if isinstance(A, LinearOperator) else A


def _pickled(A: LinearOperator) -> LinearOperator | None:
    """A through pickle; None if it holds a function that has no name to be pickled by."""
    try:
        return pickle.loads(pickle.dumps(A))
    except (pickle.PicklingError, AttributeError) as error:
        if "local object" in str(error) or "lambda" in str(error):
            return None
        raise AssertionError(f"{A!r} cannot be pickled: {error}") from error


# ------------------------------------------------------------------ counting products


class Count:
    """How often an operator was multiplied: `matvecs` counts columns, `products` calls,
    `adjoint_matvecs` columns met by `A.H` or `A.T`."""

    def __init__(self, A: LinearOperator | None):
        self._operator = A
        self.matvecs = self.products = self.adjoint_matvecs = 0

    def __int__(self) -> int:
        return self.matvecs

    __index__ = __int__

    def __repr__(self) -> str:
        return f"{self.matvecs} matvecs in {self.products} products"

    def multiplied(self, A: LinearOperator, columns: int) -> None:
        if self._operator is None:
            if _is_nested():
                return
        elif A is not self._operator:
            if self._operator in (A.__dict__.get("_adjoint_of"), A.__dict__.get("_transpose_of")):
                self.adjoint_matvecs += columns
            return
        self.matvecs += columns
        self.products += 1

    def materialised(self, A: LinearOperator) -> None:
        pass


def _is_nested() -> bool:
    """Whether the product that is being told of happens inside another one. There is no end to
    be told of, so the call stack is asked."""
    inside: set[int] = set()  # operators: a clock makes a product of one again, in its own time
    frame: Any = sys._getframe(1)
    while frame is not None and len(inside) < 2:
        if frame.f_code is LinearOperator.__matmul__.__code__:
            inside.add(id(frame.f_locals["self"]))
        frame = frame.f_back
    return len(inside) >= 2


@contextmanager
def count_matvecs(A: Any = None) -> Iterator[Count]:
    """Count products inside a `with` block: those with the operator A itself, or the outermost ones
    with any operator.

    Products are counted as Python makes them: one compiled by `jax.jit` counts when it is traced,
    and a loop in it once.
    """
    if A is not None and not isinstance(A, LinearOperator):
        raise TypeError(
            f"count_matvecs: expected an operator, got {type(A).__name__}; products with a "
            "converted copy would not be seen."
        )
    with _hooked(Count(A)) as count:
        yield count


@contextmanager
def _hooked(hook: Any) -> Iterator[Any]:
    """Inform `hook` of all products and dense forms in the block."""
    TEST_HOOKS.append(hook)
    try:
        yield hook
    finally:
        TEST_HOOKS.remove(hook)


# ------------------------------------------------------------------ nothing dense


class _Guard:
    def __init__(self, limit: float):
        self.limit = limit

    def check(self, entries: int, what: str) -> None:
        if entries > self.limit:
            raise AssertionError(
                f"{what} makes {entries} entries, and at most {self.limit:g} are allowed here "
                "(forbid_dense)."
            )

    def multiplied(self, A: LinearOperator, columns: int) -> None:
        self.check(max(A.shape[-2:]) * columns, f"a product of {A!r} with {columns} columns")

    def materialised(self, A: LinearOperator) -> None:
        self.check(math.prod(A.shape), f"to_dense() of {A!r}")


_CREATING = ("zeros", "ones", "full", "eye", "make_diagonal", "matmul", "einsum")


@contextmanager
def forbid_dense(limit: float) -> Iterator[None]:
    """Fail with an `AssertionError` when anything of more than `limit` entries is materialised
    inside a `with` block.

    Sees `to_dense`, products with wide blocks, and arrays that the loaded backends create (zeros,
    eye, matmul, ...); not what a user's own function makes.
    """
    guard = _Guard(limit)
    with _hooked(guard), ExitStack() as stack:
        for xp in backends.loaded():
            for name in _CREATING:
                original = getattr(xp, name)
                stack.callback(setattr, xp, name, original)
                setattr(xp, name, _guarded(guard, f"{xp.name}'s {name}", original))
        yield


def _guarded(guard: _Guard, what: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def create(*args: Any, **kwargs: Any) -> Any:
        if what.endswith(("zeros", "ones", "full")) and args and isinstance(args[0], tuple):
            guard.check(math.prod(args[0]), what)  # before the memory is taken
        if what.endswith("eye") and args and isinstance(args[0], int):
            guard.check(args[0] * (args[1] if len(args) > 1 and args[1] else args[0]), what)
        made = original(*args, **kwargs)
        guard.check(math.prod(made.shape), what)
        return made

    return create


# ------------------------------------------------------------------ random operators


def operators(**options: Any) -> Any:
    """A hypothesis strategy for pairs of a random operator and its matrix; see
    `colinear.testing_strategies.operators` for the options."""
    from . import testing_strategies  # hypothesis is loaded only where it is used

    return testing_strategies.operators(**options)
