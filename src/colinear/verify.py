"""`verify(A)`: whether the data bear out what is claimed of an operator and of every operator
inside it."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import AnnotationError, BackendError
from .operators import LinearOperator, as_operator
from .operators.tree import inside_out
from .properties import (
    ANNOTATIONS,
    PSD,
    STIEFEL,
    SYMMETRIC,
    Annotation,
    SelfAdjoint,
    Symmetric,
    strongest_names,
)

EXACT = 64  # operators of at most this size are checked on their matrix
LEVELS = 3  # of the Krylov space in which the smallest eigenvalue is sought: A^0 X ... A^3 X


def verify(A: Any, probes: int = 8, tol: float | None = None, seed: int = 0) -> LinearOperator:
    """A itself, after checking every property known of it and of its operands, by claim or by
    inference.

    Operators of at most 64 rows and columns are checked exactly, on their matrix; larger ones on
    random vectors, so that a violation confined to a small subspace may be missed (the smallest
    eigenvalue is sought in a Krylov space of 4 * `probes` dimensions).

    Parameters
    ----------
    A : operator or array
    probes : int
        How many random vectors.
    tol : float, optional
        What violation is roundoff, relative to the size of A: sqrt(eps) of its dtype unless given.
    seed : int
        Of the random vectors.

    Raises
    ------
    AnnotationError
        Names the operator, the claim and the measured violation. NaN and infinity contradict every
        claim.

    Examples
    --------
    >>> import colinear as co, numpy as np
    >>> co.verify(co.PSD(np.eye(3)))
    <Dense 3x3 float64 numpy [PSD]>
    >>> co.verify(co.PSD(-np.eye(3)))
    Traceback (most recent call last):
    ...
    colinear.errors.AnnotationError: verify: ...
    """
    A = as_operator(A)
    if probes < 1:
        raise ValueError(f"verify: probes={probes}; at least one random vector is needed.")
    for node in inside_out(A):  # operands first, so that the culprit is named and not its parents
        if node.properties:
            _check(node, probes, tol, seed)
    return A


def _check(A: LinearOperator, probes: int, tol: float | None, seed: int) -> None:
    m, n = A.shape[-2:]
    if m == 0 or n == 0:
        return
    if any(A.xp.is_traced(leaf) for leaf in A.leaves() if hasattr(leaf, "dtype")):
        raise BackendError(
            "verify: the values cannot be seen under a transformation (jit, vmap, grad). Call it "
            "outside."
        )
    tolerance = float(A.xp.eps(A.dtype)) ** 0.5 if tol is None else tol
    measure = _Measure(A, probes, seed)
    for annotation in filter(A.isa, ANNOTATIONS):
        violation = measure.violation(annotation, tolerance)
        if violation is not None:
            verb = "inferred" if annotation.mask & ~A._claims else "claimed"
            names = strongest_names(A.properties & ~(0 if A.is_complex else SYMMETRIC))
            raise AnnotationError(
                f"verify: {A!r} is {verb} to be {' and '.join(names)}, so it should be "
                f"{annotation.meaning}; but {violation}. "
                f"Remove the annotation or correct the data."
            )


class _Measure:
    """What A does to vectors X, in double precision: to the columns of I, so that its image is
    the matrix itself, or to random ones, for which X^H A X tells nearly surely what A would."""

    def __init__(self, A: LinearOperator, probes: int, seed: int):
        self.A, n = A, A.shape[-1]
        self.how = "" if max(A.shape[-2:]) <= EXACT else " on random vectors"
        if not self.how:
            self.X, self.image = np.eye(n), _host(A, A.to_dense())
            return
        random = np.random.default_rng(seed)
        X = random.standard_normal((n, min(probes, n)))
        if A.is_complex:
            X = X + 1j * random.standard_normal(X.shape)
        self.X = np.linalg.qr(X)[0]
        self.image = self.multiply(self.X)

    def multiply(self, X: Any) -> Any:
        xp, A = self.A.xp, self.A
        return _host(A, A @ xp.asarray(X, dtype=A.dtype, device=A._context.device))

    def asymmetry(self, flip: Any) -> Any:
        """|A - A^H| / |A|, or the same of A^T."""
        form = flip(self.X) @ self.image  # X^H A X, or X^T A X
        size = _largest(self.image)
        return _largest(form - flip(form)) / np.where(size == 0, 1.0, size)

    def smallest(self) -> tuple[Any, Any]:
        """The least Ritz value of the block Krylov space of X, and the largest in size."""
        width = self.X.shape[-1]
        basis, image = np.broadcast_to(self.X, (*self.A.batch_shape, *self.X.shape)), self.image
        for _ in range(LEVELS):
            if basis.shape[-1] + width > basis.shape[-2]:
                break
            basis = np.linalg.qr(np.concatenate([basis, image[..., -width:]], axis=-1))[0]
            image = self.multiply(basis)
        form = _adjoint(basis) @ image
        values = np.linalg.eigvalsh((form + _adjoint(form)) / 2)
        return values[..., 0], np.abs(values).max(axis=-1)

    def violation(self, claim: Annotation, tol: float) -> str | None:
        """What contradicts a property, in words, or None."""
        if not np.all(np.isfinite(self.image)):
            return f"{'its products hold' if self.how else 'its matrix holds'} NaN or infinity"
        if claim is SelfAdjoint:
            return self.exceeds(self.asymmetry(_adjoint), tol, "|A - A^H| / |A|")
        if claim is Symmetric:
            return self.exceeds(self.asymmetry(_transpose), tol, "|A - A^T| / |A|")
        if claim.mask & STIEFEL:
            apart = _adjoint(self.image) @ self.image - _adjoint(self.X) @ self.X
            return self.exceeds(_largest(apart), tol, "|A^H A - I|")
        smallest, size = self.smallest()
        if not np.any(smallest < -tol * size if claim is PSD else smallest <= 0):
            return None
        worst = np.argmin(np.ravel(smallest))
        return (
            f"its smallest eigenvalue{self.how} is {np.ravel(smallest)[worst]:.3g}, and its "
            f"largest in size {np.ravel(size)[worst]:.3g}"
        )

    def exceeds(self, measured: Any, tol: float, what: str) -> str | None:
        worst = float(np.max(measured))
        return None if worst <= tol else f"{what}{self.how} is {worst:.3g}, more than {tol:.3g}"


def _host(A: LinearOperator, x: Any) -> Any:
    return np.asarray(A.xp.to_numpy(x)).astype(np.complex128 if A.is_complex else np.float64)


def _transpose(x: Any) -> Any:
    return np.swapaxes(x, -1, -2)


def _adjoint(x: Any) -> Any:
    return np.conj(_transpose(x))


def _largest(x: Any) -> Any:
    return np.abs(x).max(axis=(-2, -1))
