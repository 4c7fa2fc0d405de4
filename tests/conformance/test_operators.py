"""Every operator, in every framework, dtype and batch shape, behaves as the matrix it stands for."""

from __future__ import annotations

import pytest
from support.registry import COMBINATIONS, HALF, cases, ways

from colinear.testing import check_operator


def tolerance(case) -> float:
    """Roundoff, times the condition of what was inverted on the way."""
    return 200 * case.eps * max(1.0, case.condition if case.is_regular else 1.0)


@pytest.mark.parametrize(("maker", "backend"), COMBINATIONS)
def test_operator_is_its_matrix(maker: str, backend: str) -> None:
    for case in cases(maker, backend, "operator"):
        for way in ways(backend, maker, case.dtype, case.batch):
            with way():
                check_operator(case.operator, case.dense, tol=tolerance(case))


@pytest.mark.parametrize(("maker", "backend"), COMBINATIONS)
def test_operator_in_half_precision_is_its_matrix(maker: str, backend: str) -> None:
    for case in cases(maker, backend, "half", [(dtype, ()) for dtype in HALF[backend]]):
        A, X = (
            case.operator,
            case.operator.xp.ones((case.dense.shape[-1], 2), dtype=case.operator.dtype),
        )
        size = max(1.0, abs(case.dense).sum(axis=-1).max())
        run = A.xp.jit(lambda A, X: (A.to_dense(), A @ X))
        for product, wanted in zip(
            run(A, X), (case.dense, case.dense.sum(-1)[..., None].repeat(2, -1)), strict=True
        ):
            assert product.dtype == A.dtype
            assert abs(
                A.xp.to_numpy(product).astype("float64") - wanted
            ).max() <= 20 * case.eps * size * max(1.0, case.condition)
