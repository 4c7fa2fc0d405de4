"""A few eigenpairs of the discrete Fourier transform, without its matrix.

F^4 = I, so its eigenvalues are 1, -1, i and -i, and P = (I + F / λ + F^2 / λ^2 + F^3 / λ^3) / 4 projects onto the eigenspace of λ
(McClellan and Parks 1972). Projected unit vectors are eigenvectors, far from parallel as long as they are few; QR makes them orthonormal.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._spectral import selection

FEW = 8  # parts of the size of an eigenspace that is used


def multiplicities(n: int) -> dict[complex, int]:
    """How often each eigenvalue of the forward transform occurs."""
    return {1: n // 4 + 1, -1: (n + 2) // 4, -1j: (n + 1) // 4, 1j: max(n - 1, 0) // 4}


def few_pairs(xp: Any, n: int, inverse: bool, k: int, which: str) -> tuple[Any, Any] | None:
    """k eigenvalues, in order, and orthonormal eigenvectors, on the host; None if that is too many for this way."""
    values = np.concatenate([np.full(count, np.conj(value) if inverse else value) for value, count in multiplicities(n).items()])
    if FEW * k > n // 4:
        return None
    order = selection(xp, xp.asarray(values), k, which, False)
    chosen = values[:k] if order is None else values[xp.to_numpy(order)]
    V = np.empty((n, k), complex)
    for value in np.unique(chosen):
        at = np.flatnonzero(chosen == value)
        V[:, at] = np.linalg.qr(_projected(n, -1 if inverse else 1, complex(value), len(at)))[0]
    return chosen, V


def _projected(n: int, direction: int, value: complex, count: int) -> Any:
    """P times the unit vectors 1, ..., count, which are neither even nor odd."""
    E = np.zeros((n, count))
    E[1 + np.arange(count), np.arange(count)] = 1
    R = np.roll(E[::-1], 1, axis=0)  # F^2, the reversal about 0
    transform = np.fft.fft if direction == 1 else np.fft.ifft
    both = transform(E + value**-2 * R, axis=0, norm="ortho")
    return (E + value**-2 * R + value**-1 * both) / 4
