"""f(A) known by its products alone, and f of Kronecker products and sums where derivatives are
recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ..autodiff import kronecker as derivatives
from ..backends import Array, namespace_of
from ..dispatch import rule
from ..operators import Dense, Diagonal, Kronecker, LinearOperator, Product, simplify
from ..operators.context import Context, has_traced, kind_of, records_derivatives
from ..operators.matrixfree import by_real_parts
from ..operators.printing import bracketed
from ..operators.tree import memo
from .inverse import TURNED, Implicit, in_batch_of, shape_of

# f(A) known by its products: what `exp(A)` and others return for a large A. Where it may be formed it
# is when many columns, or entries, are asked for.


class FunctionOf(LinearOperator):
    """A function of A, applied to vectors by `evaluate(A, X, formed)`, which gives f(A) X.

    Users write `exp(A)`, `sqrt(A, Krylov())` and so on.

    Parameters
    ----------
    A : LinearOperator
    evaluate : callable
        Static: no arrays inside. Its `formed` makes f(A) with a matrix; None where there is none.
    name : str
        Of the function.
    complex : bool
        Whether products of real vectors may be complex.
    mirrored : bool
        Whether f(A)^H = f(A^H).
    form : callable, optional
        `form(A)` is f(A) with a matrix; None where A is too large for that.
    """

    A: LinearOperator
    evaluate: Callable[..., Array]
    name: str
    complex: bool
    mirrored: bool
    form: Callable[[LinearOperator], LinearOperator] | None

    _product_is_a_run: ClassVar[bool] = True

    shape = shape_of("A")

    @memo
    def _context(self) -> Context:
        A = self.A
        dtype = A.xp.complex_dtype(A.dtype) if self.complex else A.dtype
        return A._context._replace(dtype=dtype)

    def _adjoint(self) -> LinearOperator:
        return self._replace(A=self.A.H) if self.mirrored else LinearOperator._adjoint(self)

    def _transpose(self) -> LinearOperator:
        return self._replace(A=self.A.T)

    def _matmat(self, X: Array) -> Array:
        if "_formed" in vars(self) and not records_derivatives(self.A):
            return self.formed() @ X
        return self.evaluate(self.A, X, None if self.form is None else self.formed)

    def _to_dense(self) -> Array:
        return super()._to_dense() if self.form is None else self.formed().to_dense()

    def formed(self) -> LinearOperator:
        """f(A) with a matrix, which is kept unless it is a tracer of the program around it, or has
        derivatives, which one without them must not stand for."""
        assert self.form is not None
        if records_derivatives(self.A):
            return self.form(self.A)
        found: LinearOperator | None = vars(self).get("_formed")
        if found is None:
            found = self.form(self.A)
            if not has_traced(found):
                object.__setattr__(self, "_formed", found)
        return found

    @property
    def _flops(self) -> float:
        return 40.0 * (self.A.flops + 40.0 * self.A.shape[-1])

    def _expression(self) -> str:
        return f"{self.name}({self.A._expression()})"


# f(A) of a real A by complex eigenvectors, as those of a circulant factor are.


class RealPart(LinearOperator):
    """A real operator that is held as complex ones, such as V diag(φ) V^H: the same in real
    arithmetic."""

    A: LinearOperator

    shape = shape_of("A")
    _transpose, _adjoint, _conj = TURNED

    @memo
    def _context(self) -> Context:
        held = self.A._context
        return held._replace(dtype=self.A.xp.real_dtype(held.dtype))

    def _infer(self) -> int:
        return self.A.properties

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        if xp.is_complex(X):
            return by_real_parts(self._matmat, X)
        return xp.real(self.A @ X)

    def _to_dense(self) -> Array:
        return self.xp.real(self.A.to_dense())

    @property
    def _flops(self) -> float:
        return self.A.flops

    def _expression(self) -> str:
        return f"Re({self.A._expression()})"


@rule(simplify, RealPart)
def complex_factors(A: Any) -> LinearOperator:
    """a real A that is V diag(φ) V^H for complex V has their structure"""
    return A.A


def from_eigenpairs(A: LinearOperator, values: Array, V: LinearOperator) -> LinearOperator:
    """V diag(values) V^H for orthonormal eigenvectors V of A: real where A and the values are."""
    found: LinearOperator = Product(V, Diagonal(values), V.H)
    is_real = not (A.is_complex or namespace_of(values).is_complex(values))
    return RealPart._of(found) if is_real and found.is_complex else found


# f of a Kronecker product or sum where derivatives are recorded: multiplied by as V diag(φ) V^H,
# differentiated without V's derivative.


class KroneckerFunction(LinearOperator):
    """f(a C + b I) for C = A_1 ⊗ A_2 ⊗ ... (or ⊕), self-adjoint; products and the diagonal have
    derivatives also where eigenvalues repeat.

    Everything else is asked of `by_eigenvectors()`, which is the same as a product of operators.

    Attributes
    ----------
    whole : operator
        a C + b I.
    factors : tuple of arrays
        The factors, their eigenvalues and eigenvectors (these are constants), a and b: flat, as
        `autodiff.kronecker.Factors` has them.
    constants : tuple of arrays
        Numbers that f needs.
    f : callable
        f(x, *constants), entry by entry.
    is_sum : bool
        Whether C is a Kronecker sum.
    is_inverse : bool
        Whether f(x) = 1 / x: then products are differentiated by the equation that they solve.
    """

    whole: LinearOperator
    factors: tuple[Array, ...]
    constants: tuple[Array, ...]
    f: Callable[..., Array]
    is_sum: bool
    is_inverse: bool

    shape = shape_of("whole")

    @memo
    def _context(self) -> Context:
        return self._held._context

    def _infer(self) -> int:
        return self._held.properties

    @memo
    def _parts(self) -> derivatives.Factors:
        return derivatives.Factors.of(self.factors)

    @property
    def sizes(self) -> list[int]:
        """The rows of the factors."""
        return self._parts.sizes

    @property
    def _grid(self) -> derivatives.Grid:
        return derivatives.Grid(lambda x: self.f(x, *self.constants), self.is_sum)

    @memo
    def _held(self) -> LinearOperator:
        """V diag(φ) V^H, without derivatives."""
        xp: Any = namespace_of(self.factors[0])
        return self._expanded(
            xp, derivatives.Factors.of([xp.stop_gradient(x) for x in self.factors])
        )

    def by_eigenvectors(self) -> LinearOperator:
        """V diag(φ) V^H, with the derivatives of eigenpairs."""
        return self._expanded(self.xp, self._parts.differentiable(self.xp))._claim(self._claims)

    def _expanded(self, xp: Any, parts: derivatives.Factors) -> LinearOperator:
        phi = self._grid.of(parts.values, parts.a, parts.b)
        phi = derivatives.flat(xp, phi, len(parts.values))
        V = Kronecker(*(Dense(V) for V in parts.vectors))
        return Product(V, Diagonal(phi), V.H)

    def diagonal_between(
        self, left: Sequence[Array] | None = None, right: Sequence[Array] | None = None
    ) -> Array:
        """The diagonal of (L_1 ⊗ L_2 ⊗ ...) f(a C + b I) (R_1 ⊗ R_2 ⊗ ...), with its derivative;
        the matrices are I if not given."""
        xp, k = self.xp, self._parts
        if left is None or right is None:
            left = right = [xp.eye(n, **kind_of(self.whole)) for n in k.sizes]
        found = derivatives.diagonal(xp, self._grid, k, left, right)
        return found if self.is_complex else xp.real(found)

    def _matmat(self, X: Array) -> Array:
        if self.is_inverse:
            return Implicit._of(self.whole, self._held, None)._matmat(X)
        xp = self.xp
        X = in_batch_of(self, xp.astype(X, xp.result_type(self.dtype, X.dtype)))
        return derivatives.product(xp, self._grid, self._parts, X)

    def _transpose(self) -> LinearOperator:
        if not self.whole.is_complex:
            return self
        xp, k = self.xp, self._parts  # A^T = conj(A) for self-adjoint A, with the same eigenvalues
        k = k._replace(
            matrices=tuple(map(xp.conj, k.matrices)), vectors=tuple(map(xp.conj, k.vectors))
        )
        flipped: LinearOperator = self._replace(whole=self.whole.T, factors=k.flat())
        return flipped

    def _adjoint(self) -> LinearOperator:
        return self if self._is_self_adjoint else self.by_eigenvectors().H

    def _conj(self) -> LinearOperator:
        return self._transpose() if self._is_self_adjoint else self.by_eigenvectors().conj()

    @property
    def _is_self_adjoint(self) -> bool:
        return not self.xp.is_complex(
            self._grid.of(self._parts.values, self._parts.a, self._parts.b)
        )

    @property
    def _flops(self) -> float:
        return self._held.flops

    def _expression(self) -> str:
        if self.is_inverse:
            return f"{bracketed(self.whole, None)}^-1"
        return f"f({self.whole._expression()})"
