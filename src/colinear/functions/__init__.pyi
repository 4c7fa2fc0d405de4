"""What type checkers see instead of `__init__.py`; `_types.pyi` says why it is a file of its own."""

from ._types import *
