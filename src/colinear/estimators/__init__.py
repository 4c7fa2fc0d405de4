"""Estimators of scikit-learn's kind that take operators where scikit-learn takes matrices; `pip
install 'colinear[sklearn]'`.

A convenience outside the core, which `import colinear` does not load. Each is a page: the model as
an operator, one call of `svd`, `solve` or `eig`, and scikit-learn's conventions around it, which
its own checks test.
"""

from __future__ import annotations

try:
    import sklearn.base  # noqa: F401
except ImportError as error:
    raise ImportError(
        "colinear.estimators needs scikit-learn: pip install 'colinear[sklearn]'", name=error.name
    ) from error

from .components import PCA
from .embedding import SpectralEmbedding
from .ridge import Ridge

__all__ = ["PCA", "Ridge", "SpectralEmbedding"]
