"""Operators on several devices and machines: `shard` puts one on a mesh of JAX or torch, `gather`
takes it back, `load_rows` reads a file of which each process holds its rows, `AllReduce` is the sum
over processes of an operator that each has.

A convenience outside the core, which `import colinear` does not load. The devices are the
framework's, and so is all that is sent: an operator whose arrays lie on a mesh multiplies, solves
and differentiates as any other.

>>> import colinear as co, numpy as np
>>> from colinear.distributed import gather
>>> gather(co.Diagonal([1.0, 2.0])).d  # here it is already
array([1., 2.])
"""

from __future__ import annotations

from .allreduce import AllReduce
from .placement import placement
from .row_sparse import RowSparse
from .sharding import gather, load_rows, shard

__all__ = ["shard", "gather", "placement", "load_rows", "AllReduce", "RowSparse"]
