"""Counts how often the host waits for a device: on one, and on CPU tensors that are taken to be on one."""

from __future__ import annotations

import contextlib
import importlib
import linecache
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import colinear as co

WAITING = {  # the operations of torch that copy a value to the host, or whose shape depends on values
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::equal",
    "aten::is_nonzero",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::masked_select",
}


@contextlib.contextmanager
def pretended(framework: str = "torch") -> Iterator[None]:
    """CPU arrays are taken to be on a device, by the one question that the backend asks, so that
    none is lent to NumPy."""
    arrays: Any = importlib.import_module(f"colinear.backends.{framework}.arrays")
    backend: Any = importlib.import_module(f"colinear.backends.{framework}")
    hosts, arrays.HOSTS = arrays.HOSTS, frozenset()
    may_lend, backend.may_lend = backend.may_lend, lambda context: False
    try:
        yield
    finally:
        arrays.HOSTS, backend.may_lend = hosts, may_lend


@contextlib.contextmanager
def counted() -> Iterator[list[str]]:
    """The looks at values of CPU tensors inside, with the lines of this package that take them."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from colinear.backends.torch import arrays

    looks: list[str] = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if f._schema.name in WAITING:
                looks.append(f"{f._schema.name} at {_where()}")
            return f(*args, **(kwargs or {}))

    plain = arrays.to_numpy

    def to_numpy(x: Any) -> Any:
        looks.append(f"to_numpy at {_where()}")
        return plain(x)

    ours = [m for name, m in list(sys.modules.items()) if name.startswith("colinear.backends")]
    holders = [m for m in ours if getattr(m, "to_numpy", None) is plain]
    for module in holders:
        module.to_numpy = to_numpy  # type: ignore[attr-defined]
    try:
        with Count():
            yield looks
    finally:
        for module in holders:
            module.to_numpy = plain  # type: ignore[attr-defined]


@contextlib.contextmanager
def counted_on_device() -> Iterator[list[str]]:
    """The waits for a CUDA device inside, as torch itself warns of them; without those of torch's own
    functions (eigh, svd, eig, matrix_exp), which look at their errors."""
    import torch

    torch.cuda.synchronize()
    looks: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield looks
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for each in caught:
        if "synchronizing CUDA operation" in str(each.message) and not _is_of_torch(each):
            looks.append(f"{each.filename}:{each.lineno}")


def _is_of_torch(warning: warnings.WarningMessage) -> bool:
    """Whether a wait is one of a function of torch.linalg."""
    name = warning.filename.replace("\\", "/")
    if not name.endswith(("backends/shared.py", "backends/torch/linalg.py")):
        return False
    return "numpy(" not in linecache.getline(warning.filename, warning.lineno)


def _where() -> str:
    """The innermost lines of this package, outside its backends."""
    frame: Any = sys._getframe(2)
    lines: list[str] = []
    while frame is not None and len(lines) < 3:
        name = frame.f_code.co_filename.replace("\\", "/")
        if "src/colinear/" in name and "/backends/" not in name:
            lines.append(f"{name.rpartition('src/colinear/')[2]}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(lines)


def _ones(A: Any, axis: int) -> Any:
    return A.xp.ones((A.shape[axis], 2), dtype=A.dtype, device=A._context.device)


# Each function of the registry, called as a user calls it.
CALLS: dict[str, Any] = {
    name: getattr(co, name)
    for name in (
        "inv slogdet logdet det diag trace pinv eig eigmax eigmin svd norm cond rank exp log sqrt "
        "isqrt cholesky lu qr nullspace"
    ).split()
} | {
    "solve": lambda A: co.solve(A, _ones(A, -2)),
    "solve_and_logdet": lambda A: co.solve_and_logdet(A, _ones(A, -2)),
    "lstsq": lambda A: co.lstsq(A, _ones(A, -2)),
    "power": lambda A: co.power(A, 0.5),
    "apply": lambda A: co.apply(A.xp.cos, A),
}

Table = dict[str, list[tuple[int, str, str]]]

# What still takes more looks than one, and why: how many, which functions, of which operators. A
# test asks whether each is needed, so that the table can only become shorter.
WITH_MORE_LOOKS: Table = {
    "LAPACK's methods for bands run on the host": [
        (
            2,
            "det inv logdet slogdet solve",
            "annotated_pd_tridiagonal banded tridiagonal tridiagonal_broadcast",
        ),
        (2, "cholesky", "annotated_pd_tridiagonal tridiagonal_broadcast"),
        (
            2,
            "apply cond eig eigmax eigmin exp isqrt log lstsq pinv power rank sqrt svd",
            "annotated_pd_tridiagonal",
        ),
        (2, "apply eig eigmax eigmin", "tridiagonal tridiagonal_broadcast"),
        (3, "solve_and_logdet", "annotated_pd_tridiagonal"),
        (3, "pinv solve_and_logdet", "tridiagonal tridiagonal_broadcast"),
        (3, "pinv solve_and_logdet", "banded"),
        (4, "lstsq", "banded"),
        (4, "lstsq lu", "tridiagonal tridiagonal_broadcast"),
        (4, "lu", "annotated_pd_tridiagonal"),
    ],
    "whether its matrices are self-adjoint decides on the decomposition: asked before, of all at once": [
        (
            2,
            "inv lstsq pinv solve solve_and_logdet",
            "kronecker_sum kronecker_sum_with_neutral_shift",
        ),
    ],
    "Cholesky fails, which shows at the end: the call is run again": [
        (3, "logdet slogdet", "annotated_psd_singular"),
    ],
    "sparse elimination runs on the host": [
        (2, "det logdet slogdet", "sparse"),
    ],
    "eigenvectors of triangles are found on the host, right and left ones": [
        (
            3,
            "eig eigmax eigmin",
            "block_diagonal_of_triangles kronecker_of_three lower_triangular "
            "upper_triangular_beside_nan",
        ),
        (5, "apply exp isqrt log sqrt", "kronecker_of_three"),
    ],
    "Schur's form runs on the host": [
        (2, "apply eig eigmax eigmin", "annotated_unitary permutation"),
    ],
    "whether the eigenvectors of the factors are real, and a good basis, decides on the method": [
        (2, "apply exp", "kronecker"),
        (3, "apply exp", "kronecker_with_neutral_identity"),
    ],
    "SciPy's functions of matrices run on the host": [
        (
            2,
            "isqrt log power sqrt",
            "circulant circulant_odd hadamard_with_neutral_identity one_by_one "
            "tridiagonal_broadcast",
        ),
        (
            3,
            "isqrt log power sqrt",
            "adjoint_of_product annotated_unitary banded batch_sum "
            "block block_diagonal block_diagonal_alike block_diagonal_of_triangles "
            "block_with_neutral_parts conjugate_of_sum factorized "
            "convolution_zero_large_kernel convolution_zero_plane dense diagonal_mixed_signs "
            "hadamard hidden inverse jacobian kronecker_sum "
            "kronecker_sum_with_neutral_shift kronecker_with_neutral_identity lower_triangular "
            "matrix_free permutation product_of_three product_with_permutation scaled "
            "scaled_identity_number sliced_of_kronecker sparse sum_of_permutations sum_of_three "
            "sum_that_broadcasts sum_with_a_shift sum_with_zero_kept_for_its_dtype toeplitz "
            "transpose_of_opaque tridiagonal unit_triangular upper_triangular_beside_nan",
        ),
        (3, "power", "kronecker kronecker_of_three"),
        (
            3,
            "power sqrt",
            "block_diagonal_rectangular lowrank_core lowrank_one_sided_core "
            "product_through_a_bottleneck",
        ),
    ],
    "the answer is complex, which shows at the end: the call is run again": [
        (
            4,
            "isqrt log power sqrt",
            "annotated_self_adjoint block_saddle householder sine sine_grid",
        ),
        (4, "isqrt log sqrt", "kronecker"),
        (5, "apply", "convolution_zero_plane"),
        (5, "isqrt log power sqrt", "scaled_by_a_negative_number"),
        (6, "isqrt log power sqrt", "permutation_cycle"),
        (7, "isqrt log power sqrt", "kernel"),
        (14, "isqrt log power sqrt", "block_diagonal_with_neutral_parts"),
    ],
    "the number of its columns depends on values": [
        (
            2,
            "nullspace",
            "circulant circulant_odd convolution_large_kernel convolution_wrap diagonal "
            "diagonal_mixed_signs kronecker kronecker_pd kronecker_tall kronecker_wide lowrank "
            "lowrank_core lowrank_one_sided_core lowrank_psd",
        ),
        (3, "nullspace", "scaled_identity"),
        (
            4,
            "nullspace",
            "kronecker_of_three one_above_the_other scaled scaled_by_a_negative_number scaled_wide",
        ),
        (
            5,
            "nullspace",
            "block_diagonal block_diagonal_rectangular block_diagonal_with_neutral_parts",
        ),
        (7, "nullspace", "block_diagonal_alike block_diagonal_of_triangles"),
    ],
}


def pairs(table: Table) -> dict[tuple[str, str], int]:
    """How many looks the functions of operators take, for those that a table names."""
    return {
        (name, maker): count
        for rows in table.values()
        for count, names, makers in rows
        for name in names.split()
        for maker in makers.split()
    }


LOOKS = pairs(WITH_MORE_LOOKS)


def allowed(name: str, maker: str) -> int:
    """How many looks a call may take: one, but for the exceptions."""
    return LOOKS.get((name, maker), 1)
