"""A^-1 (or A^+) as a method from outside applies it: a direct solver, a library, anything that maps
right sides to solutions."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

from ..autodiff.implicit import equation
from ..backends import Array, namespace_of, positive_or_one
from ..errors import MethodError, ShapeError
from ..info import Info, recording, report, total
from ..methods.vectors import column_norms
from ..operators import LinearOperator, MatrixFree
from ..operators.context import broadcast_batches
from ..operators.tree import inside_out, memo
from ..status import Status, combine, deliver, failed, first_failure
from .inverse import TURNED, inverse_context, inverse_shape


def as_numpys(A: LinearOperator) -> LinearOperator:
    """A with NumPy's arrays; what multiplies by a function of the user's, which may be written for
    another framework, multiplies in that."""
    if A._context.backend in (None, "numpy") or not any(map(_has_function, inside_out(A))):
        return A.to("numpy")
    xp, device = A.xp, A._context.device

    def multiply(B: LinearOperator, X: Any) -> Any:
        return xp.to_numpy(B @ xp.asarray(X, device=device))

    forward, back = (functools.partial(multiply, B) for B in (A, A.H))
    dtype = xp.dtype_name(A.dtype)
    return MatrixFree(forward, A.shape, dtype=dtype, rmatmat=back, like="numpy")._claim(
        A.properties
    )


def _has_function(A: Any) -> bool:
    """Whether a field of it, not of its operands, is a function."""
    return any(callable(getattr(A, name)) for name in A._fields if name not in A._dynamic)


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
        batch = broadcast_batches(A.batch_shape, B.shape[:-2])
        B = xp.astype(xp.broadcast_to(B, (*batch, *B.shape[-2:])), working)
        tol = self.method.tolerance(xp, dtype)
        with recording() as told:
            X = self._differentiable(B)
            residual, R = self._residual(X, B)
            for _ in range(REFINEMENTS if self.function == "inv" else 0):
                worst = None if xp.is_traced(residual) else float(xp.max(residual))
                if worst is None or not tol < worst < 1:
                    break
                better = X + self._differentiable(R)  # x + A^-1 r
                refined, R = self._residual(better, B)
                if not float(xp.max(refined)) < worst:
                    break
                X, residual = better, refined
        X = X if working == dtype else xp.astype(X, dtype)
        info = self._judged(xp, residual, tol, told)
        return X, info.replace(residual=residual[..., 0]) if vector else info

    def _judged(self, xp: Any, residual: Array, tol: float, told: Any) -> Info:
        """What is reported: a failure of the algorithm counts where the answer shows it."""
        worst = combine(info._status for info in told)
        cause = worst if failed(worst) is True else Status.INACCURATE
        status = first_failure(
            xp, (xp.isfinite(residual), Status.NONFINITE), (residual <= tol, cause)
        )
        iterations, matvecs = (
            total(getattr(info, name) for info in told) for name in ("iterations", "matvecs")
        )
        message = "; ".join(dict.fromkeys(info.message for info in told if info.message))
        message = message if failed(status) is not False else ""
        return Info(
            status,
            residual <= tol,
            iterations,
            matvecs,
            residual,
            method=self.method.name,
            message=message,
        )

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
        message = f"This was a solve for a derivative. {info.message}".rstrip()
        X = deliver(info.replace(message=message), "warn", X)
        return X

    def _solution(self, B: Array) -> Array:
        """What the algorithm gives for B."""
        xp = namespace_of(B)
        shape = (*B.shape[:-2], self.A.shape[-1], B.shape[-1])
        if 0 in (*shape, *B.shape):
            return xp.zeros(shape, dtype=B.dtype, device=xp.device_of(B))
        if not self.method.on_host:
            return self._checked(self.prepared(B), shape)
        arrays = self.arrays()
        if any(map(xp.is_traced, (B, *arrays))):
            like = xp.zeros(shape, dtype=B.dtype, device=xp.device_of(B))
            return xp.map_on_host(functools.partial(self._on_host, None), like, B, *arrays)
        X = self._on_host(self.prepared, None, xp.to_numpy(B))
        return xp.asarray(X, dtype=B.dtype, device=xp.device_of(B))

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
