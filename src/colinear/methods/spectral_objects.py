"""The iterative methods for eigenvalues, singular values and f(A) b, as objects: which recurrence, how far, and from where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from numbers import Number, Real
from typing import Any, ClassVar

from ..properties import SELF_ADJOINT
from .objects import Method, check_callback, check_integer

ORTHOGONALISATIONS = ("gram-schmidt", "householder")


@dataclass(frozen=True)
class Spectral(Method):
    """What the iterative spectral methods share. Not to be used itself.

    Parameters
    ----------
    tol : float, optional
        The residual |A v - λ v| / |A| to reach, for each pair; default sqrt(eps) of the dtype.
    max_iters : int, optional
        The most iterations, the unit of `info.iterations`; `info.matvecs` counts products. Each method says what an iteration
        is. The default is ten times the size, and at least 40 bases.
    x0 : array, optional
        Where to start, (*batch, n); random if not given.
    seed : int
        Of the random numbers.
    callback : callable, optional
        `callback(progress)` after each restart, with `progress.iteration` and `progress.residual` (estimated, of each pair);
        the run ends if it returns something true. Not inside jit.
    progress : bool
        Whether to draw a bar (with tqdm).
    """

    tol: float | None = None
    max_iters: int | None = None
    x0: Any = field(default=None, compare=False)
    seed: int = 0
    callback: Callable[[Any], Any] | None = None
    progress: bool = False

    is_iterative: ClassVar[bool] = True
    shift_type: ClassVar[Any] = None  # what a `shift` may be, if the method takes one

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "max_iters", 1, "a positive integer")
        check_callback(self)
        check_integer(self, "basis", 2, "an integer of at least 2")
        how = getattr(self, "orthogonalisation", ORTHOGONALISATIONS[0])
        if how not in ORTHOGONALISATIONS:
            names = " or ".join(map(repr, ORTHOGONALISATIONS))
            raise ValueError(f"{self.name}: orthogonalisation is {how!r}; it must be {names}.")
        shift = getattr(self, "shift", None)
        if shift is not None and not isinstance(shift, self.shift_type):
            kind = "a real number" if self.shift_type is Real else "a number"
            raise ValueError(
                f"{self.name}: shift is {shift!r}; it must be {kind}, and known when the method is made."
            )

    def runs_on(self, A: Any) -> bool:
        """Whether A is taken as a whole: rules that split it would give its parts a shift that is meant for A."""
        return getattr(self, "shift", None) is not None

    def without_arrays(self) -> Any:
        """The same method as something static, hashable by value."""
        arrays: dict[str, Any] = {
            name: None for name in ("x0", "preconditioner") if hasattr(self, name)
        }
        return replace(self, **arrays)

    @property
    def advice(self) -> str:
        """The parameter that helps a run which was too short, beside `max_iters`."""
        return "raise basis=, with which fewer iterations are needed, or max_iters="

    def limit(self, n: int, basis: int) -> int:
        """The most iterations."""
        return max(10 * n, 40 * basis) if self.max_iters is None else self.max_iters

    def size(self, n: int, k: int) -> int:
        """How many vectors the basis has room for: with the rest of the run 3 k + 20 vectors are never exceeded."""
        basis = getattr(self, "basis", None)
        return min(n, 2 * k + 14 if basis is None else max(basis, k + 2))


@dataclass(frozen=True)
class Lanczos(Spectral):
    """Lanczos with thick restart (Wu and Simon 2000), for some eigenpairs of self-adjoint A.

    An iteration is a step: one product with A, or with its inverse, and one more vector in the basis. Inside Chebyshev polynomials
    every product with A is one, and the run makes as many as fill two bases in any case.

    Parameters
    ----------
    basis : int, optional
        How many vectors the basis holds; default 2 k + 14. More take fewer products, and more memory.
    orthogonalisation : {"gram-schmidt", "householder"}
        How the basis is kept orthogonal. Reflections take twice the memory.
    repeated : bool
        Whether to look, once k pairs have converged, for further members of repeated eigenvalues: a Krylov space holds one vector
        of each eigenspace, and ARPACK returns what that finds.
    shift : float, optional
        Find the pairs nearest to it; `which` must be "SM". Through (A - shift I)^-1 where A is a stored matrix or structure makes
        that cheap, else by Chebyshev polynomials of A, which take many more products: those nearest to zero of an A of either
        sign too. Then the default of `max_iters` is six times as large.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.opaque(co.Diagonal(np.arange(1000.0)))
    >>> values, vectors = co.eig(A, 2, "LA", co.Lanczos())
    >>> values.round(6)
    array([998., 999.])
    """

    basis: int | None = None
    orthogonalisation: str = "gram-schmidt"
    repeated: bool = True
    shift: float | None = None

    needs: ClassVar[int] = SELF_ADJOINT
    shift_type: ClassVar[Any] = Real


@dataclass(frozen=True)
class Arnoldi(Spectral):
    """Arnoldi with Krylov-Schur restart (Stewart 2001), for some eigenpairs of any square A.

    The elements of a batch are run one after the other. An iteration is a step: one product with A, or with its inverse, and one
    more vector in the basis.

    Parameters
    ----------
    basis : int, optional
        How many vectors the basis holds; default 2 k + 14. More take fewer products, and more memory.
    orthogonalisation : {"gram-schmidt", "householder"}
        How the basis is kept orthogonal. Reflections take twice the memory.
    repeated : bool
        Whether to look, once k pairs have converged, for further members of repeated eigenvalues.
    shift : float or complex, optional
        Find the pairs nearest to it, through (A - shift I)^-1; `which` must be "SM". The matrix of A is formed for it where no
        structure helps, if it is not too large and A is not known by its products alone.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.opaque(co.Triangular(np.diag(np.arange(500.0)) + np.eye(500, k=1), lower=False))
    >>> values, vectors = co.eig(A, 2, "LM", co.Arnoldi())
    >>> values.round(6)
    array([499.+0.j, 498.+0.j])
    """

    basis: int | None = None
    orthogonalisation: str = "gram-schmidt"
    repeated: bool = True
    shift: complex | None = None

    shift_type: ClassVar[Any] = Number


@dataclass(frozen=True)
class LOBPCG(Spectral):
    """Locally optimal block preconditioned conjugate gradients (Knyazev 2001), for the ends of the spectrum of self-adjoint A.

    An iteration is a step of the whole block: as many products with A as it has vectors.

    Parameters
    ----------
    preconditioner : operator, array or factory, optional
        An approximation of A^-1 (less a shift), positive definite, or a function of A that makes one, such as `Jacobi()`.
    block : int, optional
        How many vectors are iterated; default k + 4.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> d = 1.0 + np.arange(1000.0)
    >>> values, vectors = co.eig(co.opaque(co.Diagonal(d)), 2, "SA", co.LOBPCG(preconditioner=co.Diagonal(1 / d)))
    >>> values.round(6)
    array([1., 2.])
    """

    preconditioner: Any = field(default=None, compare=False)
    block: int | None = None

    needs: ClassVar[int] = SELF_ADJOINT

    def size(self, n: int, k: int) -> int:
        """How many vectors are iterated."""
        return min(n, k + 4 if self.block is None else max(self.block, k))

    @property
    def advice(self) -> str:
        return "use a preconditioner=, or raise block= or max_iters="

    def limit(self, n: int, basis: int) -> int:
        """The most iterations; by default as many products as the other methods may make."""
        return (
            -(-super().limit(n, max(basis, 50)) // basis)
            if self.max_iters is None
            else self.max_iters
        )


class PowerIteration(Spectral):
    """Power iteration: the one eigenvalue of largest magnitude. Simple, and slow where the next one is near.

    An iteration is one product with A.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> values, vectors = co.eig(co.opaque(co.Diagonal(np.array([1.0, 2.0, 4.0]))), 1, "LM", co.PowerIteration())
    >>> values.round(6)
    array([4.])
    """

    def size(self, n: int, k: int) -> int:
        """How many vectors are iterated."""
        return 1

    @property
    def advice(self) -> str:
        return "use Lanczos() or Arnoldi(), which need fewer iterations"

    def limit(self, n: int, basis: int) -> int:
        return super().limit(n, 50)


@dataclass(frozen=True)
class GolubKahan(Spectral):
    """Golub-Kahan-Lanczos bidiagonalisation with thick restart, for the largest singular triplets of any A.

    An iteration is a step: one product with A, one with A^H, and one more vector in each of the two bases.

    Parameters
    ----------
    basis : int, optional
        How many vectors each of the two bases holds; default 2 k + 14.
    repeated : bool
        Whether to look, once k triplets have converged, for further members of repeated singular values.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> U, s, V = co.svd(co.opaque(co.Diagonal(np.arange(1000.0))), 2, co.GolubKahan())
    >>> s.round(6)
    array([999., 998.])
    """

    basis: int | None = None
    repeated: bool = True


@dataclass(frozen=True)
class RandomizedSVD(Method):
    """A low-rank decomposition from random vectors (Halko, Martinsson and Tropp 2011): few passes over A, and an approximation.

    `info.residual` says how good it is, |A v - s u| / |A| for each triplet, and `info.error` estimates |A - U diag(s) V^H| / |A|.

    Parameters
    ----------
    tol : float, optional
        The residual to reach: the status is INACCURATE where a triplet misses it. Nothing is asked for if it is not given.
    oversampling : int
        How many vectors more than the rank are used.
    power_iterations : int
        How often A A^H is applied: more, where the singular values fall slowly.
    seed : int
        Of the random numbers.
    rank : int, optional
        Of `pinv`: how many triplets the pseudoinverse is made of; all if not given. (`svd` has k.)

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = np.outer(np.arange(50.0), np.ones(40))
    >>> U, s, V = co.svd(A, 1, co.RandomizedSVD())
    >>> bool(np.allclose(U @ np.diag(s) @ V.H, A))
    True
    """

    tol: float | None = None
    oversampling: int = 10
    power_iterations: int = 2
    seed: int = 0
    rank: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("oversampling", "power_iterations"):
            check_integer(self, name, 0, "an integer that is not negative")
        check_integer(self, "rank", 1, "a positive integer")

    def runs_on(self, A: Any) -> bool:
        return self.rank is not None  # that of the whole says nothing of parts


@dataclass(frozen=True)
class Krylov(Method):
    """f(A) b from the Krylov space of A and b: Lanczos for self-adjoint A, Arnoldi for others. `exp(A, Krylov())` is an operator
    whose products run it.

    Parameters
    ----------
    tol : float, optional
        Of the error of each column, estimated, relative to its norm; default sqrt(eps) of the dtype.
    max_iters : int, optional
        The most iterations, each of one product with A for every column, and the most vectors that are kept for a column;
        default 200. An exponential for which
        these are too few is then taken in parts, exp(A) = exp(A/s)^s, each of so many.
    seed : int
        Of the random numbers.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> A = co.opaque(co.Diagonal(np.linspace(-1.0, 0.0, 1000)))
    >>> y = co.exp(A, co.Krylov()) @ np.ones(1000)
    >>> bool(np.allclose(y, np.exp(np.linspace(-1.0, 0.0, 1000)), atol=1e-6))
    True
    """

    tol: float | None = None
    max_iters: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self, "max_iters", 1, "a positive integer")
