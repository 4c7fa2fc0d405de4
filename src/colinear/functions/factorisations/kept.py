"""Operators that keep their factorisation, for loops in which only values change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...autodiff.determinants import is_polynomial
from ...backends import Array, get, is_array, namespace_of
from ...dispatch import function, rule
from ...errors import BackendError, DtypeError, ShapeError
from ...factors.inverse import Implicit, Inverse
from ...factors.iterated import Attempts, Iterated
from ...factors.runs import multiplies_by_iteration, with_runs
from ...factors.structured import SpectralFactor
from ...info import Info, planning, recording, report, summarise, worst_status
from ...methods import CG, Method
from ...operators import (
    FFT,
    Adjoint,
    Block,
    BlockDiag,
    Circulant,
    Conjugate,
    Dense,
    Diagonal,
    Householder,
    Identity,
    Kronecker,
    LinearOperator,
    Permutation,
    Product,
    Scaled,
    ScaledIdentity,
    Transpose,
    Triangular,
)
from ...operators.autograd_products import directional, pullback
from ...operators.context import check_device, records_derivatives
from ...operators.rewrites import rewrite
from ...operators.tree import operand_flops, sole_operand
from ..common import (
    have_failed,
    ignore_float_errors,
    in_context,
    report_all,
    square_size,
)
from ..determinant import (
    logdet,
    multiplied,
    reciprocal_determinant,
    report_determinant,
    slogdet,
)
from ..determinant.rules import determinant_of_factored, from_sign, spread
from ..determinant.sums import is_block_triangular
from ..solve import System, apply_inverse, right_side, solve
from ..solve.auto import is_automatic, is_iterative, starting_point
from ..solve.inverse import all_square, inv
from ..solve.sums import corrected_parts
from ..spectrum.rules import is_similarity


class Factorized(LinearOperator, init=False):
    """A with its inverse kept: what `factorize(A)` returns. It multiplies as A does, and `solve`,
    `inv`, `logdet`, `slogdet` and `det` use what is kept.

    So it may stand for A wherever an operator may, in a sum too: `solve(F + U, b)` for a `LowRank`
    U corrects the solution with A. It is immutable, and a pytree: it passes into a function that
    is compiled, and through `vmap`. The factors are constants, and derivatives those of A x = b
    and of log|det A| with respect to the arrays of `operator`.

    Attributes
    ----------
    operator : LinearOperator
        A.
    inverse : LinearOperator
        A^-1. `F.inverse @ b` looks at no residual, `F.solve(b)` does.
    method : Method or None
    info : Info
        How the factorisation went.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> F = co.factorize(co.PSD(np.array([[2.0, 1.0], [1.0, 2.0]])))
    >>> F.solve(np.array([3.0, 3.0])).round(12), round(float(np.exp(F.logdet())), 12)
    (array([1., 1.]), 3.0)
    >>> F = F.update([np.array([[4.0, 2.0], [2.0, 4.0]])])
    >>> F.solve(np.array([3.0, 3.0])).round(12)
    array([0.5, 0.5])
    """

    A: LinearOperator
    inverse: LinearOperator
    method: Any
    preconditioner: Any  # as it was given: an operator, or what makes one of A
    status: Any

    def __new__(cls, A: Any, method: Method | None = None) -> Factorized:
        return factorize(A, method)

    operands = sole_operand

    @property
    def shape(self) -> tuple[int, ...]:
        return self.A.shape

    def _infer(self) -> int:
        return self.A.properties

    def _transpose(self) -> LinearOperator:
        return self._turned(lambda A: A.T)

    def _adjoint(self) -> LinearOperator:
        return self._turned(lambda A: A.H)

    def _conj(self) -> LinearOperator:
        return self._turned(lambda A: A.conj())

    def _turned(self, turn: Callable[[Any], Any]) -> LinearOperator:
        M = self.preconditioner
        M = turn(M) if isinstance(M, LinearOperator) else M
        return self._replace(A=turn(self.A), inverse=turn(self.inverse), preconditioner=M)

    def _matmat(self, X: Array) -> Array:
        return self.A @ X

    def _matvec(self, x: Array) -> Array:
        return self.A @ x

    def _to_dense(self) -> Array:
        return self.A._dense()

    _flops = operand_flops

    def _expression(self) -> str:
        return f"factorized({self.A._expression()})"

    # ------------------------------------------------------------------ questions

    @property
    def operator(self) -> LinearOperator:
        return self.A

    @property
    def info(self) -> Info:
        """How the factorisation went; of one that has passed into a compiled program, the status
        alone is left."""
        reports, rule = self.__dict__.get("_reports", ([Info(self.status)], ""))
        return summarise(reports, "factorize", rule)

    def solve(self, b: Any, x0: Any = None, **options: Any) -> Any:
        """A^-1 b by the factors that are kept, with the residual of each column looked at: the
        same as `solve(F, b)`.

        Parameters
        ----------
        b : array or operator
            As for `solve`.
        x0 : array, optional
            Where an iterative method starts, the last solution say. A factorisation has no use
            for it.
        info, on_failure
            As for every function.
        """
        return solve(self if x0 is None else _started(self, x0), b, **options)

    def slogdet(self, **options: Any) -> Any:
        """The sign of det A and log|det A|: the same as `slogdet(F)`."""
        return slogdet(self, **options)

    def logdet(self, **options: Any) -> Any:
        """log|det A|: the same as `logdet(F)`."""
        return logdet(self, **options)

    def update(self, leaves: Any) -> Any:
        """The same for an operator of the same structure with other values; this one stays as it
        is.

        Parameters
        ----------
        leaves : sequence of arrays, array or operator
            The arrays in the order of `F.operator.arrays()`, of the same shapes and dtypes; one
            array, where there is one; or an operator of the same structure. Annotations are kept,
            so they must be true of the new values too.

        Returns
        -------
        Factorized
        """
        method = self.method
        if self.preconditioner is not None:
            method = replace(method, preconditioner=self.preconditioner)
        return factorize(_with_leaves(self.A, leaves), method)


def factorised(A: LinearOperator, method: Method | None = None) -> LinearOperator:
    """A with its factorisation kept, for loops: `solve`, `logdet` and `update(leaves)` of one
    object.

    Parameters
    ----------
    A : operator or array, (*batch, n, n)
    method : optional
        As for `inv`. An iterative method keeps its preconditioner.

    Returns
    -------
    Factorized

    Notes
    -----
    Costs what `inv(A)` costs, once. `update` does the same work for new values, but for what
    depends on structure alone: the rules that were found, the order in which a sparse matrix is
    eliminated, and in JAX the compiled programs.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> d, U = np.array([1.0, 2.0, 4.0]), np.ones((3, 1))
    >>> F = co.factorize(co.Diagonal(d) + co.LowRank(U))
    >>> bool(np.allclose(F.solve(F @ d), d)), round(float(np.exp(F.logdet())), 9)
    (True, 22.0)
    >>> F = F.update([2 * d, U])
    >>> round(float(np.exp(F.logdet())), 9)
    120.0
    """
    square_size("factorize", A, "an inverse", "Use qr(A), or pinv(A).")
    if isinstance(A, Factorized) and method is None:
        return A
    A = A.A if isinstance(A, Factorized) else A
    found = inv.find(A, (method,))
    with recording(detailed=True) as reports:
        attached = inv.using(found, A, method)
    report_all(reports)
    status = worst_status(reports)
    given = getattr(method, "preconditioner", None)
    static = method.without_arrays() if is_iterative(method) else method  # type: ignore[union-attr]
    is_recorded = not A.is_neutral and records_derivatives(A)
    is_constant = not is_recorded or A.xp.is_compiling() or multiplies_by_iteration(attached)
    inverse = _spectral(A, attached if is_constant else attached.detach())
    F: Any = Factorized._of(A, inverse, static, given, status)
    # Memos, which pytrees drop: what the Info is made of, and the inverse whose determinant has
    # derivatives.
    F.__dict__.update(_reports=(reports, found.name), _attached=attached)
    return F


def _spectral(A: LinearOperator, X: Any) -> Any:
    """V diag(d) V^-1 as what is known to be that also when it has passed into a program."""
    if isinstance(X, Product) and len(X.operands) == 3 and is_similarity(X):
        V, D, W = X.operands
        if isinstance(D, Diagonal):
            return Inverse._of(A, SpectralFactor._of(V, D.d, W, not A.is_complex))
    return X


factorize = function("factorize", base=factorised, forwards=True, rewrites=False)


@rewrite(Factorized)
def simplify_factorized(A: Any) -> LinearOperator:
    """A, of which more is known than that its inverse is kept"""
    return A.A


@rule(inv, Factorized, hereditary=True)
def inv_factorized(A: Any, method: Any) -> Any:
    """A^-1, which is kept"""
    if not is_automatic(method):
        return inv(A.A, method)
    report(Info(A.status))
    return _inverse(A)


def _inverse(F: Any) -> LinearOperator:
    """A^-1 by the factors that are kept, with the derivatives of A x = b."""
    A, X = F.A, F.inverse
    if A.is_neutral or not records_derivatives(A):
        return X
    if multiplies_by_iteration(X):
        return _on(A, X)
    if X.dtype != A.dtype or A.xp.is_compiling():
        attached: LinearOperator | None = F.__dict__.get("_attached")
        return inv(A, F.method) if attached is None else attached
    return Inverse._of(A, Implicit._of(A, X, None))


def _on(A: LinearOperator, X: Any) -> Any:
    """An inverse by iterations, of A itself: what came out of a pytree holds arrays of its own,
    which have derivatives of their own."""

    def move(run: Any) -> Any:
        return run._replace(A=A._claim(run.A.properties)) if type(run.A) is type(A) else run

    found = with_runs(X, move)
    return found._replace(A=A) if isinstance(found, Inverse) else found


@rule(solve, Factorized, hereditary=True, like=lambda A, b, method: right_side("solve", A, b))
def solve_factorized(A: Any, b: Any, method: Any) -> Any:
    """x = A^-1 b by what is kept, then the residual |b - A x|"""
    b = right_side("solve", A, b)
    if not is_automatic(method) or A.is_neutral:
        return solve(A.A, b, method)
    inverse = _inverse(A)
    if isinstance(b, LinearOperator):
        return inverse @ b
    system = System.of(A.A, b, A.method if method is None else method)
    factor = inverse.factor if isinstance(inverse, Inverse) else None
    if not isinstance(factor, Iterated | Attempts):
        with ignore_float_errors(A.xp):
            return apply_inverse(system, inverse)
    if method is not None:
        return solve(A.A, b, method)
    return system.answer(factor._solve(system.B, system.is_vector))


def _started(F: Any, x0: Any) -> Any:
    """The same, with iterations that start at x0; an error if it does not fit."""
    start = starting_point(F.A, CG(x0=x0))
    return F._replace(inverse=with_runs(F.inverse, lambda run: run._replace(x0=start)))


@rule(slogdet, Factorized, hereditary=True)
def slogdet_factorized(A: Any, method: Any) -> Any:
    """det A = 1 / det A^-1, from the factors that are kept"""
    xp, attached = A.xp, A.__dict__.get("_attached")
    is_recorded = not A.is_neutral and records_derivatives(A.A)
    held = A.inverse if attached is None or not is_recorded else attached
    parts = determinant_parts(held) if is_automatic(method) and not is_polynomial() else None
    if parts is None:
        return _remembered(A, method, is_recorded)
    if not is_recorded or attached is not None:
        return _from_parts(A, parts)
    if isinstance(A.A, Dense) and isinstance(held, Inverse):
        return Implicit._of(A.A, held.factor, None).slogdet()  # by tr(A^-1 dA)
    return _with_derivative(A) if xp.is_functional else slogdet(A.A, method)


def _with_derivative(F: Any) -> Any:
    """The determinant from what is kept, which is constant, with the derivative of that of A: of
    what has passed into a program, which need not ask for one."""
    xp, A, count = F.xp, F.A, len(F.A.arrays())

    def value(*arrays: Array) -> tuple[Array, Array]:
        G = F.with_arrays(arrays)
        with recording():  # what is reported in a rule of derivatives means nothing outside it
            return _from_parts(G, determinant_parts(G.inverse))  # type: ignore[arg-type]

    def push(primals: tuple, tangents: tuple, output: Any) -> Any:
        return directional(A.with_arrays(primals[:count]), slogdet, tangents[:count])[1]

    def pull(primals: tuple, output: Any, cotangents: tuple) -> tuple:
        found = pullback(A.with_arrays(primals[:count]), slogdet, cotangents)
        return *found, *(None,) * (len(primals) - count)

    ranks = tuple(x.ndim for x in F.arrays())
    return report_determinant(xp, *xp.custom_derivative(value, push, pull, ranks)(*F.arrays()))


def _from_parts(A: Any, parts: tuple[LinearOperator, ...]) -> Any:
    """The determinant of A from those of operators whose product is that of A^-1."""
    xp = A.xp
    with recording(), ignore_float_errors(xp):  # 1 / 0 of a singular A is no failure here
        found = [slogdet(in_context(part, A)) for part in parts]
        whole = reciprocal_determinant(xp, *multiplied(found))
    return spread(A, from_sign(A, *whole))


def determinant_parts(X: Any) -> tuple[LinearOperator, ...] | None:
    """Operators whose determinants multiply to that of an inverse X, and are read off what it
    keeps; None if they are not."""
    if isinstance(X, Inverse) and isinstance(X.factor, SpectralFactor):
        return (Diagonal._of(X.factor.d),)
    corrected = corrected_parts(X)
    return (X,) if corrected is None and _is_read_off(X) else corrected


def _is_read_off(X: Any) -> bool:
    """Whether no matrix must be factored for the determinant of X."""
    if isinstance(X, Inverse):
        return determinant_of_factored(X) is not None or _is_read_off(X.A)
    if isinstance(X, Product) and is_similarity(X):
        return _is_read_off(Product(*X.operands[1:-1]))
    if isinstance(X, Block):
        along = (row[i] for i, row in enumerate(X.blocks))
        return is_block_triangular(X) and all(map(_is_read_off, along))
    if isinstance(X, Kronecker | BlockDiag | Product | Scaled | Transpose | Adjoint | Conjugate):
        return all_square(X) and all(map(_is_read_off, X.operands))
    return isinstance(X, READ_OFF)


READ_OFF = (
    Diagonal,
    Identity,
    ScaledIdentity,
    Permutation,
    Triangular,
    Circulant,
    FFT,
    Householder,
)


def _remembered(A: Any, method: Any, is_recorded: bool) -> Any:
    """The determinant of A by itself, once: where the inverse does not tell it."""
    if is_automatic(method) and "_determinant" in A.__dict__:
        return A.__dict__["_determinant"]
    with recording(detailed=True) as reports:
        found = slogdet(A.A, method)
    report_all(reports)
    if not (is_recorded or have_failed(reports) or planning() or A.xp.is_traced(found[1])):
        A.__dict__["_determinant"] = found
    return found


# --------------------------------------------------------------------------------------------------


def _with_leaves(A: LinearOperator, leaves: Any) -> LinearOperator:
    """A with other arrays, or an error that says what does not fit."""
    if isinstance(leaves, LinearOperator):
        if _skeleton(A) != _skeleton(leaves):
            raise ShapeError(
                f"update: expected the structure of {A!r}, got {leaves!r}. Only values may change; "
                "use factorize for another operator."
            )
        leaves = leaves.arrays()
    own = A.arrays()
    leaves = (leaves,) if is_array(leaves) else tuple(leaves)
    if len(leaves) != len(own):
        raise ShapeError(
            f"update: A has {len(own)} arrays, and {len(leaves)} were given. Give them in the "
            "order of A.arrays()."
        )
    for i, (mine, given) in enumerate(zip(own, leaves), 1):
        what = f"update: array {i} of {len(own)}"
        xp, theirs = namespace_of(mine), namespace_of(given)
        # all of JAX takes NumPy's arrays
        if theirs is not xp and not (xp.is_functional and theirs is get("numpy")):
            kind = type(given).__name__ if theirs is None else f"an array of {theirs.name}"
            raise BackendError(f"{what} is {kind}; A is of {xp.name}.")
        if tuple(given.shape) != tuple(mine.shape):
            raise ShapeError(
                f"{what} has the shape {tuple(given.shape)}, and A's has {tuple(mine.shape)}."
            )
        if given.dtype != mine.dtype:
            raise DtypeError(f"{what} is of {given.dtype}, and A's of {mine.dtype}.")
        if theirs is xp:
            check_device(what, xp.device_of(mine), xp.device_of(given))
    return A.with_arrays(leaves)


def _skeleton(x: Any) -> Any:
    """What an operator or a part of it is made of, but for the values of arrays."""
    if isinstance(x, LinearOperator):
        children, structure = x._flatten()
        return type(x), structure, _skeleton(children)
    if isinstance(x, tuple | list):
        return type(x), [_skeleton(part) for part in x]
    if isinstance(x, dict):
        return {key: _skeleton(part) for key, part in x.items()}
    return type(x) if is_array(x) else x
