"""A property that is computed once per operator.

Like `functools.cached_property`, but without the lock that Python 3.11's takes (torch.compile cannot trace it) and with `object.__setattr__`,
since operators are frozen. What is remembered is not a field: pytrees, pickles and copies drop it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    memo = property
else:

    class memo:
        """`@memo` above a method without arguments: an attribute that is computed when it is first asked for."""

        def __init__(self, compute: Callable[[Any], Any]):
            self.compute, self.__doc__ = compute, compute.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self.name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = self.compute(instance)
            object.__setattr__(instance, self.name, value)
            return value
