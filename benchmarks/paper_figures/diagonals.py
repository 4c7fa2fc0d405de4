"""The doubly stochastic diagonal: the error of an estimate beside passes over the rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import colinear as co

from .common import as_numpy, compiled, one_thread, rows_of
from .harness import Declined, Figure


class Diagonal:
    """diag(X^T X / n) by so many passes: the root mean square of the relative errors of three seeds."""

    # an estimate is neither right nor wrong: its error is the figure
    bar, seeds, batch = (
        float("inf"),
        3,
        100,
    )

    def __init__(self, X: Any, kind: str, passes: int):
        self.X, self.passes, self.size = X, passes, passes
        self.label, self.diagonal = (
            f"{passes} passes over {len(X)} x {X.shape[1]} {kind}",
            (X * X).mean(0),
        )

    def judge(self, estimates: Any) -> dict[str, float]:
        errors = [
            np.linalg.norm(as_numpy(x) - self.diagonal) / np.linalg.norm(self.diagonal)
            for x in estimates
        ]
        return {"quality": float(np.sqrt(np.mean(np.square(errors)))), "passes": float(self.passes)}

    def repeated(self, one: Callable[[int], Any]) -> Callable[[], Any]:
        return lambda: [one(seed) for seed in range(self.seeds)]


def _diagonals(scale: float) -> Iterator[Diagonal]:
    X, _, kind = rows_of("buzz", min(18_350, max(500, round(430_000 * scale))))
    for passes in (1, 3, 10, 30, 100):
        yield Diagonal(X, kind, passes)


doubly = Figure(
    "doubly-stochastic",
    "Diagonal of Buzz's covariance: error beside passes",
    "Buzz, batches of 100 rows; the doubly stochastic estimator beside Hutchinson's",
    "relative error",
    _diagonals,
    x="passes",
    y="quality",
    x_label="passes",
    by="quality",
    note="Ratios are of errors; times are of three estimates. The exact diagonal of X^T X takes one pass, and `diag` without a method "
    "takes that one: the figure is of the estimators.",
)


def _ours(make: Callable[[Diagonal, int], Any]) -> Callable[[Diagonal], Callable[[], Any]]:
    def prepare(p: Diagonal) -> Callable[[], Any]:
        B = co.Dense(p.X)
        A = B.T @ B / len(p.X)
        return p.repeated(lambda seed: co.diag(A, make(p, seed)))

    return prepare


doubly.runner("colinear, Hutchinson", "colinear")(
    _ours(lambda p, seed: co.Hutchinson(p.passes, seed=seed))
)
doubly.runner("colinear, doubly stochastic, 100 rows", "colinear")(
    _ours(lambda p, seed: co.Hutchinson(p.passes, batch_size=p.batch, seed=seed))
)
doubly.runner("colinear, doubly stochastic, each row", "colinear")(
    _ours(lambda p, seed: co.Hutchinson(p.passes, per_term=True, seed=seed))
)


@doubly.runner("colinear, XDiag", "colinear")
def _(p: Diagonal) -> Callable[[], Any]:
    if p.passes < 4:
        raise Declined("needs four products")
    return _ours(lambda p, seed: co.XDiag(min(p.passes, p.X.shape[1]), seed=seed))(p)


@doubly.runner("NumPy, Hutchinson", "by hand")
def _(p: Diagonal) -> Callable[[], Any]:
    def one(seed: int) -> Any:
        Z = np.sign(np.random.default_rng(seed).standard_normal((p.X.shape[1], p.passes)))
        return (Z * (p.X.T @ (p.X @ Z))).mean(1) / len(p.X)

    return p.repeated(one)


def _matfree(p: Diagonal, kind: str) -> Callable[[], Any]:
    import jax
    import jax.numpy as jnp
    from matfree import stochtrace

    sampler = stochtrace.sampler_signs(
        jnp.zeros(p.X.shape[1]), num=p.passes if kind != "xdiag" else p.passes // 2
    )
    if kind == "hutchinson":
        estimate = stochtrace.estimator_monte_carlo(
            stochtrace.monte_carlo_diagonal(), sampler=sampler
        )
    else:
        integrand = {
            "xdiag": stochtrace.leave_one_out_xdiag,
            "xnysdiag": stochtrace.leave_one_out_xnysdiag,
        }[kind]()
        estimate = stochtrace.estimator_leave_one_out(integrand, sampler=sampler)
    X = jnp.array(p.X)
    runs = [
        compiled(
            lambda X, key: estimate(lambda v: X.T @ (X @ v) / len(p.X), key),
            X,
            jax.random.key(seed),
        )
        for seed in range(p.seeds)
    ]
    return lambda: [run() for run in runs]


doubly.runner("matfree, Hutchinson", needs=("jax", "matfree"))(lambda p: _matfree(p, "hutchinson"))


@doubly.runner("matfree, XNysDiag", needs=("jax", "matfree"))
def _(p: Diagonal) -> Callable[[], Any]:
    if not 4 <= p.passes <= p.X.shape[1]:
        raise Declined("from four samples to as many as columns")
    return _matfree(p, "xnysdiag")


@doubly.runner("cola-ml, Hutchinson", needs=("torch", "cola"))
def _(p: Diagonal) -> Callable[[], Any]:
    torch = one_thread()
    import cola

    block = min(100, p.X.shape[1])
    if p.passes < block:
        raise Declined(f"it draws {block} vectors at a time")
    X = cola.ops.Dense(torch.tensor(p.X))
    A = X.T @ X

    def one(seed: int) -> Any:
        method = cola.linalg.Hutch(
            tol=0.0011, max_iters=p.passes // block, rand="rademacher", key=A.xnp.PRNGKey(seed)
        )
        return cola.diag(A, 0, method) / len(p.X)

    return p.repeated(one)


FIGURES = (doubly,)
