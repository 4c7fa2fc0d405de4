"""Operators of signal processing and inverse problems: differences, gradients, Laplacians,
restrictions, wavelets, the Radon transform and the Fourier transform at any points.

A convenience outside the core, which `import colinear` does not load. Each of these is a
composition of the families of the core, so the rules apply: a Laplacian is a Kronecker sum and is
inverted by transforms, a restriction is a slice, a wavelet transform is known to be unitary.

>>> import numpy as np
>>> import colinear as co
>>> from colinear import signals
>>> L = signals.laplacian((40, 50), boundary="wrap")
>>> smooth = co.solve(co.Identity(2000) - 4 * L, np.ones(2000))  # by Fourier transforms
>>> bool(np.allclose(smooth, 1))
True
"""

from __future__ import annotations

from .differences import (
    along_axis,
    difference,
    divergence,
    first_derivative,
    gradient,
    laplacian,
    restriction,
    second_derivative,
)
from .transforms import nufft, radon, wavelet

__all__ = [
    "difference",
    "first_derivative",
    "second_derivative",
    "along_axis",
    "gradient",
    "divergence",
    "laplacian",
    "restriction",
    "wavelet",
    "radon",
    "nufft",
]
