"""Kernel matrices, K[i, j] = k(x_i, y_j): computed in blocks of rows whenever they are needed,
and never stored."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .. import backends
from ..backends import Array, namespace_of
from ..dispatch import calls
from ..errors import ShapeError
from ..rates import HOST_BLOCK, memory_of_block, memory_to_store
from .base import LinearOperator
from .context import Context, as_arrays, as_one_block, broadcast_batches, context_of, kind_of
from .dense import Dense
from .divided import Spread
from .matrixfree import MatrixFree, as_parameters, function_name
from .tree import Shape, arrays_in, inside_out, memo


class Kernel(LinearOperator, init=False):
    """The matrix with the entries `k(x_i, y_j)`, multiplied in blocks of rows.

    A product costs one evaluation of all entries and O(block * n) memory, its derivative with
    respect to points and parameters two and as much memory: blocks are computed again, not kept.
    On a CUDA device, a function of the distance (`gp.rbf`, `gp.radial(profile)`) is multiplied by
    one program of Triton that writes no entry, forwards and for first derivatives; any other k is
    compiled by `torch.compile` for an iteration with a large matrix, if that is quicker.

    Parameters
    ----------
    k : callable
        `k(X_block, Y_block, *parameters)` maps points of shapes (p, d) and (q, d) to the p x q
        matrix, or to one for each of a batch of parameters, (*batch, p, q).
    X : array, (*batch, m, d)
        The points of the rows; a vector of numbers must be given as a column, `x[:, None]`.
    Y : array, (*batch, n, d), optional
        The points of the columns; X if not given.
    parameters : tuple
        Arrays, operators, or nests of tuples and dicts of them: leaves, so that gradients reach
        them. They are the same for a whole batch of points. For a batch of parameters, which makes
        a batch of matrices, give each two more dimensions, `theta[:, None, None]`, and points
        without a batch. What k closes over and torch or JAX differentiates or traces is found and
        put after them.
    block : int, optional
        Rows per block. By default what fits with the differences x_i - y_j in 128 MiB, on a GPU in
        1/64 of its memory; and an iteration stores the matrix, as long as it runs, where that
        takes a sixteenth of the memory or less, an eighth of a GPU's.

    Notes
    -----
    Nothing is inferred about k: say `PSD(Kernel(k, X))` for a covariance. k is called once at
    construction, with one point of X and one of Y, for the dtype and the batch of its answer.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> def gaussian(X, Y, length):
    ...     return np.exp(-((X[:, None] - Y[None]) ** 2).sum(-1) / (2 * length**2))
    >>> K = co.PSD(co.Kernel(gaussian, np.zeros((1000, 3)), parameters=(np.array(0.5),)))
    >>> (K @ np.ones(1000))[0]
    np.float64(1000.0)
    """

    k: Callable
    X: Array
    Y: Array | None
    parameters: Any
    block: int | None
    transposed: bool  # whether this is the transpose of k(X, Y): its rows are then those of Y
    parameter_batch: Shape  # leading dimensions of what k gives
    spread: Spread | None  # the mesh, and its axis, over which the rows are divided

    def __new__(
        cls, k: Callable, X: Any, Y: Any = None, parameters: tuple = (), block: int | None = None
    ) -> Kernel:
        if not callable(k):
            raise TypeError(
                f"Kernel: k must be a function of two sets of points, not {type(k).__name__}."
            )
        if calls.are_strict(X):
            make = lambda X, Y, parameters: Kernel(k, X, Y, parameters, block)
            return calls.ordinary(make, X, Y, parameters)
        if block is not None:
            if block != int(block) or block < 1:
                raise ValueError(f"Kernel: block must be a positive number of rows, not {block!r}.")
            block = int(block)
        points = as_arrays("Kernel", *(P for P in (X, Y) if P is not None))
        for name, P in zip("XY", points):
            if P.ndim < 2:
                raise ShapeError(
                    f"Kernel: {name} must be (*batch, points, d), its shape is {tuple(P.shape)}. "
                    "For numbers: x[:, None]."
                )
        X, Y = points[0], None if Y is None else points[1]
        if X.shape[-1] != points[-1].shape[-1]:
            raise ShapeError(
                f"Kernel: the points of X have {X.shape[-1]} coordinates, those of Y {Y.shape[-1]}."
            )
        broadcast_batches(*(P.shape[:-2] for P in points), what="Kernel: X and Y")
        parameters = as_parameters("Kernel", parameters)

        # parameters of another framework are refused here
        context = context_of("Kernel", arrays_in((points, parameters)))
        if any(0 in P.shape[:-1] for P in points):
            return cls._of(k, X, Y, parameters, block, False, (), None)
        xp = namespace_of(X)
        first = [_first_point(X), _first_point(points[-1])]
        k, hidden = xp.hoist(k, lambda: [(*first, *parameters)], ((0, -2, -2), (1, -2, -1)))
        parameters = (*parameters, *hidden)
        entry = k(*first, *parameters)
        batch = _parameter_batch(k, entry, first, parameters)
        if batch and any(P.ndim > 2 for P in points):
            raise ShapeError(
                f"Kernel: the points have the batch shape {X.shape[:-2]} and the parameters "
                f"{batch}; one batch at a time. Use the framework's vmap over both."
            )
        self = cls._of(k, X, Y, parameters, block, False, batch, None)
        self.__dict__["_context"] = _with_dtype_of(entry, context)
        return self

    @memo
    def shape(self) -> Shape:
        sizes = (points.shape[-2] for points in self._points())
        return (*(self.parameter_batch or self._point_batch), *sizes)

    @property
    def _point_batch(self) -> Shape:
        return broadcast_batches(*(tuple(points.shape[:-2]) for points in self._points()))

    def _points(self) -> tuple[Array, Array]:
        """The points of the rows and those of the columns."""
        Y = self.X if self.Y is None else self.Y
        return (Y, self.X) if self.transposed else (self.X, Y)

    @memo
    def _context(self) -> Context:
        """Where the leaves are; the dtype is that of the entries, which k alone knows (complex
        ones of real points, say)."""
        context = context_of("Kernel", self.leaves())
        if 0 in self.shape:
            return context
        first = lambda X, K: K._entries(*map(_first_point, K._points()))
        run = calls.ordinary if calls.are_strict(self.X) else lambda f, *arguments: f(*arguments)
        return _with_dtype_of(run(first, self.X, self), context)

    def _transpose(self) -> LinearOperator:
        return self._replace(transposed=not self.transposed)

    @property
    def how(self) -> str:
        """How it is multiplied, in words."""
        fused = self._fused()
        if callable(fused):
            return "fused, no entry is written"
        size = memory_of_block(self) / 2**20
        blocks = f"by blocks of {self._block_rows} rows, in {size:.0f} MiB"
        return ", ".join(word for word in (blocks, fused, self._compiled(True)[1]) if word)

    def _between(self, rows: Array, columns: Array) -> Any:
        """The matrix with these points of its rows and columns, on one device."""
        X, Y = (columns, rows) if self.transposed else (rows, columns)
        return Kernel._of(
            self.k, X, Y, self.parameters, self.block, self.transposed, self.parameter_batch, None
        )

    def _entries(self, rows: Array, columns: Array) -> Array:
        """The block of the matrix with these rows and columns."""
        X, Y = (columns, rows) if self.transposed else (rows, columns)
        entries = self.k(X, Y, *self.parameters)
        expected = (*self.parameter_batch, X.shape[0], Y.shape[0])
        if tuple(getattr(entries, "shape", ())) != expected:
            raise ShapeError(
                f"Kernel: {function_name(self.k)} of points of shapes {tuple(X.shape)} and "
                f"{tuple(Y.shape)} must give {expected}, it gave "
                f"{getattr(entries, 'shape', type(entries).__name__)}."
            )
        return namespace_of(entries).matrix_transpose(entries) if self.transposed else entries

    def _matmat(self, V: Array) -> Array:
        fused = "" if 0 in V.shape else self._fused()
        if callable(fused):
            return fused(V)
        is_one = not self.shape[:-2] and V.ndim > 2
        return as_one_block(self._multiplied, V) if is_one else self._multiplied(V)

    def _multiplied(self, V: Array | None) -> Array:
        """K V, or K itself without V: on each device of a mesh its rows."""
        if self.spread is None or self._context.backend == "numpy":  # which has no meshes
            return self._by_blocks(V)
        return backends.program(self.backend, _multiply_on_mesh)(self, V)

    def _fused(self) -> Callable | str:
        """V -> K V without K, where k is a function of the distance and the backend has a program
        for that; else why not, if there is more to say. Whoever gives `block` wants blocks."""
        form, is_one = getattr(self.k, "radial", None), self.block is None and self.spread is None
        if form is None or not is_one or 0 in self.shape:
            return ""
        rows, columns = self._points()
        columns = None if self.Y is None else columns
        multiply = namespace_of(rows).radial_product(form, rows, columns, self.parameters)
        if isinstance(multiply, str) or self.batch_shape:
            return multiply
        return lambda V: as_one_block(multiply, V) if V.ndim > 2 else multiply(V)

    @property
    def _has_rows(self) -> bool:
        return not self.batch_shape

    def _rows(self, indices: Array) -> LinearOperator:
        rows, columns = self._points()
        rows = self.xp.take(rows, indices, axis=-2)
        return self._between(rows, columns)

    def _to_dense(self) -> Array:
        return self._multiplied(None)

    def _prepare(self, is_planned: bool) -> LinearOperator:
        """The matrix, for the time of an iteration, if it fits into memory and nobody asked for
        blocks; or, where it is never written, its product with the points made ready."""
        xp, size = self.xp, self.dtype.itemsize * math.prod(self.shape)
        is_recorded = xp.name == "torch" and xp.is_differentiated(*self.arrays())
        fused = "" if is_recorded else self._fused()
        if callable(fused) and xp.is_functional:  # whose programs make the points ready themselves
            return self
        if callable(fused):
            # as quick as the stored matrix, within a third, and more accurate
            flipped: Any = self.T
            sides = fused, fused if self.Y is None else flipped._fused()
            ready = MatrixFree._of(*sides, self.shape, (), self._context)
            return self if is_planned else ready._claim(self.properties)
        if self.block or is_recorded or size > memory_to_store(self):
            k = self.k if is_planned or is_recorded else self._compiled(False)[0]
            return self if k is self.k else self._replace(k=k)
        if is_planned:  # an array without memory of its own
            return Dense._of(xp.broadcast_to(xp.zeros((), **kind_of(self)), self.shape))
        return Dense._of(self._multiplied(None))

    def _compiled(self, is_planned: bool) -> tuple[Callable, str]:
        """k as it is called for an iteration, which compiles it where that pays, and a word about
        that."""
        if self.batch_shape or self.spread is not None or 0 in self.shape:
            return self.k, ""
        rows, columns = self._points()
        rows = rows[: self._even_rows]
        X, Y = (columns, rows) if self.transposed else (rows, columns)
        count = math.prod(self.shape)
        return self.xp.compiled_entries(self.k, X, Y, self.parameters, count, is_planned)

    @property
    def _even_rows(self) -> int:
        """The rows of blocks as even as can be, so that little is computed twice."""
        m = self.shape[-2]
        return -(-m // -(-m // self._block_rows))

    @property
    def _block_rows(self) -> int:
        """The rows of a block: what fits, with the differences x_i - y_j that many kernels form on
        the way."""
        m, n = self.shape[-2:]
        bytes_per_row = n * (self.X.shape[-1] + 2) * 8 * math.prod(self.parameter_batch)
        return min(m, self.block or max(1, int(memory_of_block(self)) // max(1, bytes_per_row)))

    def _by_blocks(self, V: Array | None) -> Array:
        """K V, or K itself without V: a loop over all blocks of all batch elements, one compiled
        body in JAX."""
        rows, columns = self._points()
        xp = namespace_of(rows)
        batch = self.shape[:-2] if V is None else broadcast_batches(self.shape[:-2], V.shape[:-2])
        m, n = self.shape[-2:]
        width = n if V is None else V.shape[-1]
        if 0 in (m, n, width, *batch):
            dtype = self.dtype if V is None else xp.result_type(self.dtype, V.dtype)
            return xp.zeros((*batch, m, width), dtype=dtype, device=xp.device_of(rows))
        if self._is_tiled:
            return self._by_tiles(V, width)
        size = self._even_rows
        blocks = -(-m // size)
        # of the points, each with its own loop; a batch of parameters is one loop
        spread, rest = ((), batch) if self.parameter_batch else (batch, ())
        count = math.prod(spread)

        def listed(P: Array, inner: Shape = ()) -> Array:
            own = (*inner, *P.shape[-2:])
            return xp.reshape(xp.broadcast_to(P, (*spread, *own)), (count, *own))

        rows, others = listed(rows), [listed(columns)]
        if V is not None:
            others.append(listed(V, rest))
        # a last block that is too short repeats the last point, where k is as good as at any other
        missing, d = blocks * size - m, rows.shape[-1]
        if missing:
            repeated = xp.broadcast_to(rows[:, -1:], (count, missing, d))
            rows = xp.concat([rows, repeated], axis=1)
        tiles = xp.reshape(rows, (count, blocks, size, d))

        @xp.checkpoint  # the derivative computes the entries again, block by block
        def step(block: Array, columns: Array, V: Array | None = None) -> Array:
            entries = self._entries(block, columns)
            return entries if V is None else xp.matmul(entries, V)

        def element(tiles: Array, *others: Array) -> Array:
            return xp.loop_map(lambda block: step(block, *others), tiles)

        if count == 1:
            results = element(tiles[0], *(P[0] for P in others))
            if self.parameter_batch:
                results = xp.moveaxis(results, 0, -3)  # of (blocks, *batch, size, width)
        else:
            results = xp.loop_map(element, tiles, *others)
        return xp.reshape(results, (*batch, blocks * size, width))[..., :m, :]

    @memo
    def _is_tiled(self) -> bool:
        """Whether NumPy multiplies by small pieces of rows: the points lie in files, or are so many
        that one row and its differences exceed the budget."""
        n, d = self._points()[1].shape[-2:]
        is_plain = self.xp.name == "numpy" and self.block is None and not self.batch_shape
        return is_plain and (self._is_out_of_core or 8 * n * (d + 2) > HOST_BLOCK)

    def _by_tiles(self, V: Any, width: int) -> Any:
        """K V in NumPy, or K itself without V, with as many columns as rows at a time."""
        rows, columns = self._points()
        m, n = self.shape[-2:]
        size = max(1, math.isqrt(int(HOST_BLOCK) // (8 * (rows.shape[-1] + 2))))
        dtype = self.dtype if V is None else self.xp.result_type(self.dtype, V.dtype)
        found = self.xp.zeros((*(() if V is None else V.shape[:-2]), m, width), dtype=dtype)
        for i in range(0, m, size):
            for j in range(0, n, size):
                entries = self._entries(rows[i : i + size], columns[j : j + size])
                if V is None:
                    found[i : i + size, j : j + size] = entries
                else:
                    found[..., i : i + size, :] += entries @ V[..., j : j + size, :]
        return found

    @property
    def _flops(self) -> float:
        m, n = self.shape[-2:]
        # squares of differences, k of them, the product: a guess for a usual k
        return m * n * (3.0 * self.X.shape[-1] + 4)

    _dense_flops = _flops  # one pass, as for a product

    def _expression(self) -> str:
        return (
            f"Kernel({function_name(self.k)}, "
            f"{'x'.join(map(str, self.shape))}){'.T' if self.transposed else ''}"
        )


def _multiply_on_mesh(xp: Any, K: Any, V: Array | None) -> Array:
    """K V by rows: each device gathers the points of the columns and V, at once, and runs over the
    blocks of its own rows."""
    (mesh, axis), (rows, columns) = K.spread, K._points()
    on_mesh: Any = backends.mesh_module(mesh)

    def on_one(cut: Any, parameters: Any) -> Array:
        rows, columns, *V = cut
        if V and V[0].ndim == 2 and V[0].dtype == columns.dtype:
            d, joined = columns.shape[-1], xp.concat([columns, V[0]], axis=-1)
            joined = on_mesh.gather_rows(joined, axis)
            columns, V = joined[:, :d], [joined[:, d:]]
        else:
            columns, *V = (on_mesh.gather_rows(x, axis) for x in (columns, *V))
        own = K._replace(parameters=parameters)._between(rows, columns)
        return own._by_blocks(*V) if V else own._by_blocks(None)

    cut = (rows, columns) if V is None else (rows, columns, V)
    return on_mesh.apply_by_rows(on_one, mesh, axis, cut, K.parameters, max(2, len(K.shape)))


def how_kernels_multiply(A: LinearOperator) -> str:
    """How the kernels in A are multiplied, for `explain`; nothing where there are none."""
    found = dict.fromkeys(part.how for part in inside_out(A) if isinstance(part, Kernel))
    return f"; kernels {', '.join(found)}" if found else ""


def _first_point(points: Array) -> Array:
    return points[(0,) * (points.ndim - 2)][:1]


def _with_dtype_of(entry: Array, context: Context) -> Context:
    return (
        context._replace(dtype=entry.dtype) if namespace_of(entry).is_floating(entry) else context
    )


def _parameter_batch(k: Callable, entry: Any, points: list, parameters: tuple) -> Shape:
    """The batch shape of the answer of k for one pair of points, or an error that says what is
    wrong with it."""
    shape, own, xp = getattr(entry, "shape", ()), namespace_of(entry), namespace_of(points[0])
    if shape[-2:] == (1, 1) and (own is xp or (own and (xp.name, own.name) == ("jax", "numpy"))):
        return tuple(shape[:-2])
    given, advice = f"a {type(entry).__name__}", ""
    if own is not None:
        given = f"a {own.name} array of shape {tuple(shape)}"
        shapes = [tuple(p.shape) for p in arrays_in(parameters) if getattr(p, "ndim", 0)]
        if shapes:
            advice = (
                f" For a batch of parameters (their shapes are {', '.join(map(str, shapes))}) give "
                "each two more dimensions: parameters=(theta[:, None, None],)."
            )
    raise ShapeError(
        f"Kernel: {function_name(k)} of one point each, of shapes {tuple(points[0].shape)} and "
        f"{tuple(points[1].shape)}, "
        f"must give a {xp.name} array of shape (1, 1) or (*batch, 1, 1); it gave {given}.{advice}"
    )
