"""The NumPy backend: the names of `backends.NAMES`, each from the file that its kind is in."""

from .arrays import *
from .control import *
from .linalg import *
