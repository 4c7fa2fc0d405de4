"""A^-1 (or A^+) as a method from outside applies it: a direct solver, a library, anything that maps
right sides to solutions."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, ClassVar

from ..autodiff.implicit import equation
from ..backends import Array, namespace_of, positive_or_one
from ..errors import MethodError, ShapeError
from ..info import Info, counts, recording, report, worst_status
from ..methods.vectors import column_norms
from ..operators import LinearOperator, MatrixFree
from ..operators.context import kind_of
from ..operators.tree import memo
from ..status import Status, failed, first_failure
from .inverse import TURNED, in_batch_of, inverse_context, inverse_shape
from .runs import deliver_for_derivative, holds_function


def as_numpys(A: LinearOperator) -> LinearOperator:
    """A with NumPy's arrays; what multiplies by a function of the user's, which may be written for
    another framework, multiplies in that."""
    if A._context.backend in (None, "numpy") or not holds_function(A):
        return A.to("numpy")
    xp, device = A.xp, A._context.device

    def multiply(B: LinearOperator, X: Any) -> Any:
        return xp.to_numpy(B @ xp.asarray(X, device=device))

    forward, back = (functools.partial(multiply, B) for B in (A, A.H))
    dtype = xp.dtype_name(A.dtype)
    return MatrixFree(forward, A.shape, dtype=dtype, rmatmat=back, like="numpy")._claim(
        A.properties
    )


def judged(
    xp: Any,
    method: Any,
    told: Sequence[Info],
    right: Array,
    residual: Array,
    may_miss: bool = False,
) -> Info:
    """What is reported of an answer, and of the algorithm, which has `told` what it believes: its
    failure counts where the answer shows it, and always where it `may_miss` some of what was asked
    for."""
    worst = worst_status(told)
    has_failed = failed(worst) is True
    finite = xp.isfinite(residual), Status.NONFINITE
    is_right = False if may_miss and has_failed else right
    cause = worst if has_failed else Status.INACCURATE
    status = first_failure(xp, finite, (is_right, cause))
    message = ""
    if may_miss or failed(status) is not False:
        message = "; ".join(dict.fromkeys(info.message for info in told if info.message))
    details: Any = {"method": method.name, "message": message}
    return Info(status, right, residual=residual, **counts(told), **details)


REFINEMENTS = 2  # by the residual, where a solution misses the tolerance


class Applied(LinearOperator):
    """The inverse of A, or the pseudoinverse, of which each product is what the own algorithm of
    `method` makes of right sides. The algorithm is prepared for A once; each product reports how it
    went, by the residual.

    Derivatives are those of A x = b: what the algorithm does need not be differentiable.
    """

    A: LinearOperator
    method: Any
    function: str  # "inv" or "pinv": whose algorithm it is

    _product_is_a_run: ClassVar[bool] = True

    shape, _context = inverse_shape, inverse_context
    _transpose, _adjoint, _conj = TURNED

    def _infer(self) -> int:
        return self.A.properties if self.function == "inv" else 0

    @memo
    def prepared(self) -> Any:
        """The map B -> A^-1 B that the method makes of A, held fixed."""
        A = self.A.detach()
        return self._prepare(as_numpys(A) if self.method.on_host else A)

    def _prepare(self, A: LinearOperator) -> Any:
        multiply = getattr(self.method, self.function)(A)
        if isinstance(multiply, LinearOperator):
            return multiply.__matmul__
        if not callable(multiply):
            raise MethodError(
                f"{self.method.name}.{self.function}(A) gave {type(multiply).__name__}; it must "
                "give a function of right sides (*batch, n, k), or an operator."
            )
        return multiply

    def _matmat(self, B: Array) -> Array:
        X, info = self.run(B, False)
        return report(info, X)

    def run(self, B: Array, vector: bool, rounded: Any = None) -> tuple[Array, Info]:
        """A^-1 B, and how it went: by the residual, whatever the algorithm believes."""
        A, xp = self.A, namespace_of(B)
        dtype = B.dtype if A.is_neutral else xp.result_type(A.dtype, B.dtype)
        working = xp.float32 if getattr(dtype, "itemsize", 0) == 2 else dtype
        B = xp.astype(in_batch_of(A, B), working)
        tol = self.method.tolerance(xp, dtype)
        with recording() as told:
            X = self._differentiable(B)
            residual, R = self._residual(X, B)
            for _ in range(REFINEMENTS if self.function == "inv" else 0):
                if 0 in residual.shape or xp.is_traced(residual):
                    break
                worst = float(xp.max(residual))
                if not tol < worst < 1:
                    break
                better = X + self._differentiable(R)  # x + A^-1 r
                refined, R = self._residual(better, B)
                if not float(xp.max(refined)) < worst:
                    break
                X, residual = better, refined
        X = X if working == dtype else xp.astype(X, dtype)
        info = judged(xp, self.method, told, residual <= tol, residual)
        return X, info.replace(residual=residual[..., 0]) if vector else info

    def _residual(self, X: Array, B: Array) -> tuple[Array, Array]:
        """How far X is from the solution, by a relative residual of each column, and B - A X: of
        least squares that of the normal equations, |A^H r| / |A^H b|."""
        xp, A = namespace_of(B), self.A.detach()
        X, B = map(xp.stop_gradient, (X, B))
        if 0 in (*A.shape[-2:], *X.shape):
            return xp.zeros(B.shape[:-2] + B.shape[-1:], dtype=xp.real_dtype(B.dtype)), B
        R = B - A @ X
        top, base = (R, B) if self.function == "inv" else (A.H @ R, A.H @ B)
        return column_norms(xp, top) / positive_or_one(xp, column_norms(xp, base)), R

    def _differentiable(self, B: Array) -> Array:
        xp, arrays = namespace_of(B), self.arrays()
        if not xp.is_differentiated(B, *arrays):
            return self._solution(B)
        rule = equation(
            self,
            lambda inverse, B: inverse._for_derivative(B),
            least_squares=self.function == "pinv",
            first=lambda x, constants: (self.with_arrays(constants)._solution(x[0]),),
        )
        return rule(B, arrays)

    def _for_derivative(self, B: Array) -> Array:
        """A^-1 B as part of a derivative, whose failure is warned of at once."""
        X, info = self.run(B, False)
        return deliver_for_derivative(info, X)

    def _solution(self, B: Array) -> Array:
        """What the algorithm gives for B."""
        xp = namespace_of(B)
        shape = (*B.shape[:-2], self.A.shape[-1], B.shape[-1])
        if 0 in (*shape, *B.shape):
            return xp.zeros(shape, **kind_of(B))
        if not self.method.on_host:
            return self._checked(self.prepared(B), shape)
        arrays = self.arrays()
        if any(map(xp.is_traced, (B, *arrays))):
            like = xp.zeros(shape, **kind_of(B))
            return xp.map_on_host(functools.partial(self._on_host, None), like, B, *arrays)
        X = self._on_host(self.prepared, None, xp.to_numpy(B))
        return xp.asarray(X, **kind_of(B))

    def _on_host(self, prepared: Any, _: Any, B: Any, *arrays: Any) -> Any:
        shape = (*B.shape[:-2], self.A.shape[-1], B.shape[-1])
        if prepared is None:
            prepared = self._prepare(as_numpys(self.A.with_arrays(arrays)))
        return self._checked(prepared(B), shape)

    def _checked(self, found: Any, shape: tuple[int, ...]) -> Any:
        """The solution out of what the algorithm gave: that alone, or with an Info."""
        X = found
        if isinstance(found, tuple):
            X, info = found
            report(info)
        if tuple(getattr(X, "shape", ())) != shape:
            raise ShapeError(
                f"{self.method.name}: the function that {self.function}(A) gives must map right "
                f"sides to an array of shape {shape}, it gave "
                f"{getattr(X, 'shape', type(X).__name__)}."
            )
        return X

    @property
    def _flops(self) -> float:
        return self.A.flops
