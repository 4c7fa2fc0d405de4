"""Gaussian processes with structured covariances: the likelihood, what is predicted, samples, and
kernels of the distance.

A convenience outside the core, which `import colinear` does not load: each of these is a few lines
of `solve`, `logdet` and `diag`, so a Kronecker product with noise or a low rank with a diagonal is
used as what it is.

>>> import numpy as np
>>> import colinear as co
>>> from colinear import gp
>>> X = np.linspace(0, 1, 20)[:, None]
>>> K = co.PSD(gp.rbf(X, length=0.2)) + 0.01 * co.Identity(20)
>>> float(gp.log_marginal_likelihood(K, np.sin(6 * X[:, 0]))) > 0
True
"""

from __future__ import annotations

from .covariances import covariance_root, sample
from .kernels import matern12, matern32, matern52, periodic, radial, rational_quadratic, rbf
from .regression import Posterior, log_marginal_likelihood, posterior

__all__ = [
    "rbf",
    "matern12",
    "matern32",
    "matern52",
    "rational_quadratic",
    "periodic",
    "radial",
    "log_marginal_likelihood",
    "posterior",
    "Posterior",
    "sample",
    "covariance_root",
]
