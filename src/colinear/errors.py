"""The errors and the warnings: one family each, and each error also the exception that a NumPy
user would expect."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .info import Info


class ColinearError(Exception):
    """The root of all errors of this library."""


class ShapeError(ColinearError, ValueError):
    """Shapes that do not fit, or that a function has no meaning for."""


class DtypeError(ColinearError, TypeError):
    """A dtype that cannot be computed with."""


class BackendError(ColinearError, TypeError):
    """Arrays of two frameworks at once, or something that a framework cannot do."""


class DeviceError(ColinearError, ValueError):
    """Arrays on two devices at once, or a device that is not there."""


class AnnotationError(ColinearError, ValueError):
    """A claim that the data contradicts."""


class AmbiguityError(ColinearError, TypeError):
    """Two rules apply and neither is more specific."""


class MethodError(ColinearError, TypeError):
    """Something given as a method that is not one."""


class TooLargeError(ColinearError, MemoryError):
    """A matrix that would have to be formed, and takes more memory than is used unasked."""


class ConvergenceError(ColinearError, RuntimeError):
    """A failing status under `on_failure="raise"`; `error.info` is the `Info`."""

    def __init__(self, message: str, info: Info | None = None):
        super().__init__(message)
        self.info = info

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.info)


class ColinearWarning(UserWarning):
    """The root of all warnings of this library."""


class ConvergenceWarning(ColinearWarning):
    """An answer that is not what was asked for: the message names the status and the remedy."""


class ApproximationWarning(ColinearWarning):
    """A stochastic answer where an exact one was out of reach."""


class DerivativeWarning(ColinearWarning):
    """A derivative of something that has none here: what depends on the choice of a basis where
    eigenvalues repeat, say."""


class FallbackWarning(ColinearWarning):
    """Another algorithm than the one that was asked for gave the answer."""
