"""The iterative methods for linear systems, as objects: which recurrence, how far, and from where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from ..backends import Array
from ..info import Status
from ..properties import POSITIVE_SEMIDEFINITE, SELF_ADJOINT
from .bicgstab import bicgstab
from .cg import cg
from .gmres import gmres
from .iteration import Outcome, Products
from .lsqr import cgls, lsmr, lsqr
from .minres import minres
from .objects import Method, check_callback, check_integer
from .refinement import refined

DEFAULT_RESTART = 30
SMALL = 200  # rows up to which GMRES keeps all vectors
ACCURATE = 1000  # roundings up to which a relative residual is at the accuracy of the dtype
_LOW = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Iterative(Method):
    """What the iterative methods share. Not to be used itself.

    Parameters
    ----------
    tol : float, optional
        The relative residual |b - A x| / |b| to reach, for each column; default sqrt(eps) of the dtype.
    max_iters : int, optional
        The most iterations, the unit of `info.iterations`; default ten times the size. An iteration makes one product with A
        (LSQR and LSMR: one more with A^H; BiCGSTAB: two), and `info.matvecs` counts products.
    preconditioner : operator, array or factory, optional
        An approximation M of A^-1, or a function of A that makes one, such as `Jacobi()`.
    x0 : array, optional
        Where to start, of the shape of the answer.
    callback : callable, optional
        `callback(progress)` after each iteration, with `progress.iteration`, `progress.residual` and `progress.x`; the run ends if
        it returns something true.
    progress : bool
        Whether to draw a bar (with tqdm).
    precision : str, optional
        "float32", "float16" or "bfloat16": iterate in this precision, and refine to full accuracy.
    """

    tol: float | None = None
    max_iters: int | None = None
    preconditioner: Any = field(default=None, compare=False)
    x0: Any = field(default=None, compare=False)
    callback: Callable[[Any], Any] | None = None
    progress: bool = False
    precision: str | None = None

    is_iterative: ClassVar[bool] = True
    needs_adjoint: ClassVar[bool] = False
    least_squares: ClassVar[bool] = False
    squares_operator: ClassVar[bool] = False  # whether it, and its preconditioner, are for A^H A
    needs_terms: ClassVar[bool] = False  # whether it draws from the terms of a sum
    splits_preconditioner: ClassVar[bool] = (
        False  # applies it by itself, as if split, so that its faults can be told from A's
    )
    vectors: ClassVar[int] = (
        6  # at most at a time, for one right side, b and what the step computes among them
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "max_iters", 0, "an integer that is not negative")
        check_callback(self)
        if self.precision is not None and self.precision not in _LOW:
            raise ValueError(
                f"{self.name}: precision is {self.precision!r}; it must be one of {', '.join(map(repr, _LOW))}."
            )

    def without_arrays(self) -> Any:
        """The same method as something static, hashable by value."""
        return replace(self, preconditioner=None, x0=None)

    def iterations(self, m: int, n: int) -> int:
        """The most iterations for an m x n operator."""
        return max(10 * min(m, n), 100) if self.max_iters is None else self.max_iters

    def typical(self, m: int, n: int) -> int:
        """A guess of the number of products, where nothing is known of the spectrum."""
        return min(self.iterations(m, n), min(m, n), int(20 + 10 * min(m, n) ** 0.5))

    def working_vectors(self, n: int) -> int:
        """How many vectors it keeps for a right side of a system of n unknowns."""
        return self.vectors

    def algorithm(self, xp: Any, products: Products, B: Array, **options: Any) -> Outcome:
        """Run it on the columns of B; `options` are tol, max_iters, X0 and watch."""
        raise NotImplementedError

    def advice(self, status: Status, residual: float, eps: float, n: int) -> str:
        """What a run with n unknowns that ended like this can change in the method's own parameters."""
        return ""

    def run(
        self,
        xp: Any,
        full: Products,
        low: Products | None,
        B: Array,
        *,
        tol: float,
        max_iters: int,
        **options: Any,
    ) -> Outcome:
        """Run it with the products `full`; or with `low`, those in low precision, and refine."""
        if low is None:
            return self.algorithm(xp, full, B, tol=tol, max_iters=max_iters, **options)

        def correct(R: Array, tol: float, limit: int) -> Outcome:
            return self.algorithm(xp, low, R, tol=tol, max_iters=limit)

        dtype = xp.complex64 if xp.is_complex(B) else xp.float32
        return refined(
            xp, full.multiply, correct, B, dtype=dtype, tol=tol, max_iters=max_iters, **options
        )


class CG(Iterative):
    """Conjugate gradients, for positive definite A. One product an iteration, six vectors; preconditioned as if split.

    The preconditioner must be positive definite too. Where A or M shows that it is not, the status is NOT_POSITIVE_DEFINITE.
    `lstsq` and `pinv` take any A: they run it on the normal equations A^H A x = A^H b, written with
    the residual b - A x (CGLS), and judge it as `LSQR`. A preconditioner is then one of A^H A.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.opaque(co.PSD(np.array([[4.0, 1.0], [1.0, 3.0]])))
    >>> x, info = co.solve(A, np.array([1.0, 2.0]), co.CG(tol=1e-12), info=True)
    >>> info.iterations, bool(info.converged.all())
    (2, True)
    """

    needs: ClassVar[int] = POSITIVE_SEMIDEFINITE
    splits_preconditioner: ClassVar[bool] = True

    def algorithm(self, xp: Any, products: Products, B: Array, **options: Any) -> Outcome:
        return cg(xp, products.multiply, B, precondition=products.precondition, **options)


class MINRES(Iterative):
    """Minimal residuals, for self-adjoint A, definite or not. One product an iteration; preconditioned as if split.

    The preconditioner must be positive definite. Of singular A with a consistent right side it gives the solution of smallest norm.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.SelfAdjoint(np.array([[0.0, 2.0], [2.0, 0.0]]))
    >>> co.solve(A, np.array([2.0, 4.0]), co.MINRES()).round(6)
    array([2., 1.])
    """

    needs: ClassVar[int] = SELF_ADJOINT
    splits_preconditioner: ClassVar[bool] = True
    vectors: ClassVar[int] = 11

    def algorithm(self, xp: Any, products: Products, B: Array, **options: Any) -> Outcome:
        return minres(xp, products.multiply, B, precondition=products.precondition, **options)


@dataclass(frozen=True)
class GMRES(Iterative):
    """Generalised minimal residuals, for any square A. One product an iteration; preconditioned on the right.

    Parameters
    ----------
    restart : int, optional
        The most vectors of the basis, after which it begins again; default 30, and as many as there are up to a size of 200.
        `max_iters` counts products, not restarts.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.solve(np.array([[0.0, 2.0], [-1.0, 1.0]]), np.array([2.0, 0.0]), co.GMRES()).round(6)
    array([1., 1.])
    """

    restart: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "restart", 1, "a positive integer")

    def basis(self, n: int) -> int:
        """The most vectors of the basis."""
        return min(n, self.restart or (n if n <= SMALL else DEFAULT_RESTART))

    def working_vectors(self, n: int) -> int:
        return self.basis(n) + 8

    def advice(self, status: Status, residual: float, eps: float, n: int) -> str:
        """The restart, if the run was restarted and did not end at the accuracy of the dtype."""
        size = self.basis(n)
        if size == n or status > Status.MAX_ITERATIONS or residual <= ACCURATE * eps:
            return ""
        what = (
            "a basis that begins again" if status is Status.STAGNATION else "the basis begins again"
        )
        end = " no longer reduces the residual" if status is Status.STAGNATION else ""
        return f"{what} after {size} vectors{end}: raise restart= (n, here {n}, never begins again)"

    def algorithm(self, xp: Any, products: Products, B: Array, **options: Any) -> Outcome:
        return gmres(
            xp,
            products.multiply,
            B,
            restart=self.basis(products.columns),
            precondition=products.precondition,
            **options,
        )


class BiCGSTAB(Iterative):
    """Stabilised biconjugate gradients, for any square A. Two products an iteration and few vectors; preconditioned on the right.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.solve(np.array([[2.0, 1.0], [-1.0, 1.0]]), np.array([3.0, 0.0]), co.BiCGSTAB()).round(6)
    array([1., 1.])
    """

    vectors: ClassVar[int] = 10

    def algorithm(self, xp: Any, products: Products, B: Array, **options: Any) -> Outcome:
        return bicgstab(xp, products.multiply, B, precondition=products.precondition, **options)


@dataclass(frozen=True)
class LeastSquares(Iterative):
    """What the iterations for least squares share. Not to be used itself."""

    damping: float = 0.0

    solve: ClassVar[Any] = None  # the function that minimises
    needs_adjoint: ClassVar[bool] = True
    least_squares: ClassVar[bool] = True
    vectors: ClassVar[int] = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.damping >= 0:
            raise ValueError(f"{self.name}: damping is {self.damping!r}; it must not be negative.")
        if self.precision is not None:
            raise ValueError(
                f"{self.name}: least squares have no low precision to refine from. Leave out precision."
            )

    def algorithm(self, xp: Any, products: Products, B: Array, **options: Any) -> Outcome:
        return self.solve(
            xp,
            products.multiply,
            products.adjoint,
            B,
            damping=self.damping,
            columns=products.columns,
            precondition=products.precondition,
            precondition_adjoint=products.precondition_adjoint,
            **options,
        )


class LSQR(LeastSquares):
    """Least squares by bidiagonalisation, for any A. A product with A and one with A^H an iteration; preconditioned on the right.

    Parameters
    ----------
    damping : float
        Minimise |b - A x|^2 + |damping x|^2.

    Notes
    -----
    It ends when |r| <= tol |b| or |A^H r| <= tol |A| |r|. The preconditioner is n x n, such that A M is well conditioned.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.lstsq(np.array([[1.0], [1.0]]), np.array([1.0, 3.0]), co.LSQR()).round(6)
    array([2.])
    """

    solve: ClassVar[Any] = staticmethod(lsqr)


class LSMR(LeastSquares):
    """Least squares by bidiagonalisation, for any A, such that |A^H r| falls; otherwise as `LSQR`.

    Parameters
    ----------
    damping : float
        Minimise |b - A x|^2 + |damping x|^2.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.lstsq(np.array([[1.0], [1.0]]), np.array([1.0, 3.0]), co.LSMR()).round(6)
    array([2.])
    """

    vectors: ClassVar[int] = 9

    solve: ClassVar[Any] = staticmethod(lsmr)


class NormalCG(LeastSquares):
    """`CG` as `lstsq` and `pinv` run it, on the normal equations. Not to be used itself."""

    splits_preconditioner: ClassVar[bool] = True
    squares_operator: ClassVar[bool] = True
    vectors: ClassVar[int] = 10

    @property
    def name(self) -> str:
        return CG.__name__

    def algorithm(self, xp: Any, products: Products, B: Array, **options: Any) -> Outcome:
        own = {"columns": products.columns, "precondition": products.precondition}
        return cgls(xp, products.multiply, products.adjoint, B, **own, **options)


def for_least_squares(method: Any) -> Any:
    """The method as `lstsq` and `pinv` run it: CG on the normal equations, any other as it is."""
    return (
        NormalCG(**{f.name: getattr(method, f.name) for f in fields(method)})
        if isinstance(method, CG)
        else method
    )
