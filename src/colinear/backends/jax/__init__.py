"""The JAX backend: the names of `backends.NAMES`, each from the file that its kind is in."""

from .arrays import *
from .control import *
from .derivatives import *
from .host_warnings import *
from .linalg import *
from .processes import all_reduce, for_processes, from_processes, process_group
from .radial import radial_product
from .sparse import *
