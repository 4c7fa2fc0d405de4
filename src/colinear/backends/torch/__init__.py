"""The PyTorch backend: the names of `backends.NAMES`, each from the file that its kind is in."""

from .arithmetic import *
from .arrays import *
from .control import *
from .derivatives import *
from .fused import *
from .graphs import *
from .linalg import *
from .looks import *
from .processes import all_reduce, for_processes, from_processes, process_group
from .programs import *
from .radial import radial_product
from .sparse import *
