"""Sums over two torch processes, beside the same in one.

A script that `test_all_reduce.py` runs as two processes over gloo; each compares, and the first
prints what both found as JSON.
"""

import functools
import json
import os
import sys

import numpy as np
import torch
import torch.distributed as dist
import torch.utils._pytree as pytree

import colinear as co
from colinear.distributed import AllReduce

N, ROWS = 24, 60


def spd(n, seed):
    Z = np.random.default_rng(seed).normal(size=(n, n))
    return torch.as_tensor(Z @ Z.T / n + np.eye(n))


def operators(part):
    """A maker of the local operator for each family, of the rows that are `part`; with the leaves
    of which gradients are taken."""
    rng = np.random.default_rng(1)
    X = torch.as_tensor(rng.normal(size=(ROWS, N)) / np.sqrt(ROWS))[part]
    stack = torch.stack([spd(N, seed) for seed in range(4)])
    stack = stack[
        part if part == slice(None) else slice(2 * dist.get_rank(), 2 * dist.get_rank() + 2)
    ]
    return {
        "gram": lambda: (lambda D: D.T @ D)(co.Dense(X)),
        "batch_sum": lambda: co.PSD(co.BatchSum(co.Dense(stack))),
        "matrix_free": lambda: co.PSD(
            co.MatrixFree(lambda V, X: X.mT @ (X @ V), (N, N), parameters=(X,))
        ),
        "low_rank": lambda: co.BatchSum(co.LowRank(X[:, :, None])),
    }


def calls():
    """Functions of (A, b), where A is PD."""
    return {
        "product": lambda A, b: A @ b,
        "block": lambda A, b: A @ torch.stack([b, 2 * b], 1),
        "adjoint": lambda A, b: A.H @ b,
        "matrix": lambda A, b: A.to_dense(),
        "diag": lambda A, b: co.diag(A),
        "trace": lambda A, b: co.trace(A),
        "cg": lambda A, b: co.solve(A, b, co.CG(tol=1e-12)),
        "minres": lambda A, b: co.solve(A, b, co.MINRES(tol=1e-12)),
        "gmres": lambda A, b: co.solve(A, b, co.GMRES(tol=1e-12)),
        "lsqr": lambda A, b: co.lstsq(A, b, co.LSQR(tol=1e-12)),
        "lanczos": lambda A, b: co.eig(A, 2, "LM", co.Lanczos(tol=1e-10))[0],
        "lobpcg": lambda A, b: co.eig(A, 2, "LA", co.LOBPCG(tol=1e-10))[0],
        "hutchinson": lambda A, b: co.trace(A, co.Hutchinson(probes=8, seed=0)),
        "slq": lambda A, b: co.logdet(A, co.SLQ(probes=8, seed=0)),
        "solve": lambda A, b: co.solve(A, b),
        "logdet": lambda A, b: co.logdet(A),
        "likelihood": lambda A, b: likelihood(A, b, co.Cholesky()),
        "fused": lambda A, b: likelihood(A, b, co.SLQ(probes=8, seed=0)),
    }


def likelihood(A, b, method):
    x, logdet = co.solve_and_logdet(A, b, method)
    return b @ x + logdet


def values_and_gradients(A, b, call):
    """The answer, and the gradients of a number made of it: with respect to the leaves, and to b."""
    leaves, structure = pytree.tree_flatten(A)
    leaves = [x.detach().requires_grad_() for x in leaves]
    b = b.clone().requires_grad_()
    A = pytree.tree_unflatten(leaves, structure)
    value = call(A, b)
    weight = torch.linspace(1, 2, value.numel()).reshape(value.shape)
    found = torch.autograd.grad((weight * value).sum(), [*leaves, b], materialize_grads=True)
    return value.detach(), found


def part_of(x, shape, rank):
    """The half of x that is of this shape and belongs to this process."""
    dimension = next(i for i, (n, m) in enumerate(zip(x.shape, shape)) if n != m)
    return x.narrow(dimension, rank * shape[dimension], shape[dimension])


def of_shifted(f, A, b):
    return f(A + 0.5 * co.Identity(N), b)


def compare():
    """The largest differences from one process: of the answer, of the gradient with respect to this
    process's rows, and of that with respect to b; or the error."""
    rank, half = dist.get_rank(), ROWS // 2
    mine = slice(rank * half, (rank + 1) * half)
    b, found = torch.as_tensor(np.random.default_rng(5).normal(size=N)), {}
    for name, make in operators(mine).items():
        whole = operators(slice(None))[name]
        for call, f in calls().items():
            shifted = functools.partial(of_shifted, f)
            try:
                expected, slopes = values_and_gradients(whole(), b, shifted)
                value, own = values_and_gradients(AllReduce(make()), b, shifted)
            except Exception as error:
                found[f"{name} {call}"] = [repr(error)[:300]]
                continue
            rows = [part_of(x, y.shape, rank) for x, y in zip(slopes[:-1], own[:-1])]
            found[f"{name} {call}"] = [
                float((value - expected).abs().max()),
                max(float((x - y).abs().max()) for x, y in zip(own[:-1], rows)),
                float((own[-1] - slopes[-1]).abs().max()),
            ]
    return found


def misfits():
    """What is said of terms that do not fit together."""
    n = 2 + dist.get_rank()
    unlike = co.Dense(torch.eye(2))
    cases = {
        "shapes": lambda: AllReduce(co.Dense(torch.eye(n))),
        "dtypes": lambda: AllReduce(
            co.Dense(torch.eye(2, dtype=torch.float32 if n == 2 else torch.float64))
        ),
        "claims": lambda: AllReduce(co.PSD(unlike) if n == 2 else unlike),
    }
    found = {}
    for name, make in cases.items():
        try:
            make()
            found[name] = "nothing"
        except co.ColinearError as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def transforms():
    """The largest difference of torch.func's derivatives from those of one process."""
    rank, half = dist.get_rank(), ROWS // 2
    rows = slice(rank * half, (rank + 1) * half)
    b = torch.as_tensor(np.random.default_rng(5).normal(size=N))
    X = torch.as_tensor(np.random.default_rng(1).normal(size=(ROWS, N)))

    def product(make, x):
        return make(x).to_dense() @ b + make(x) @ torch.sin(b)

    def gram(x):
        return co.Dense(x).T @ co.Dense(x)

    one, many = (lambda x: product(gram, x)), (lambda x: product(lambda x: AllReduce(gram(x)), x))
    _, slope = torch.func.jvp(one, (X,), (X.sin(),))
    _, own = torch.func.jvp(many, (X[rows],), (X[rows].sin(),))
    pulled = torch.func.grad(lambda x: one(x).sum())(X)[rows]
    mine = torch.func.grad(lambda x: many(x).sum())(X[rows])
    A, whole = AllReduce(gram(X[rows])), gram(X)
    vectors = torch.stack([b, b.cos()])
    mapped = torch.func.vmap(lambda v: A @ v)(vectors)
    return {
        "jvp": float((slope - own).abs().max()),
        "grad": float((pulled - mine).abs().max()),
        "vmap": float((mapped - vectors @ whole.to_dense()).abs().max()),
    }


def sums():
    """How often a product, and an iteration of CG, sums over processes."""
    made = []
    original = dist.all_reduce
    dist.all_reduce = lambda *arguments, **options: (
        made.append(1) or original(*arguments, **options)
    )
    X = torch.as_tensor(np.random.default_rng(dist.get_rank()).normal(size=(ROWS, N)))
    A, b = AllReduce(co.BatchSum(co.LowRank(X[:, :, None]))), torch.ones(N)
    counts = {}
    try:
        for name, f in {
            "product": lambda: A @ b,
            "trace": lambda: co.trace(A),
            "diag": lambda: co.diag(A),
            "matrix": lambda: A.to_dense(),
        }.items():
            made.clear()
            f()
            counts[name] = len(made)
        made.clear()
        info = co.solve(A, b, co.CG(tol=1e-10), info=True)[1]
        counts["cg"], counts["matvecs"] = len(made), int(info.matvecs)
    finally:
        dist.all_reduce = original
    return counts


def leave():
    """End the process when all have come so far. What gloo's threads still do would abort an
    ordinary end now and then (torch 2.13)."""
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def main():
    torch.set_default_dtype(torch.float64)
    dist.init_process_group(
        "gloo",
        init_method=os.environ["COLINEAR_MEETING"],
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    found = {
        "answers": compare(),
        "misfits": misfits(),
        "transforms": transforms(),
        "sums": sums(),
    }
    both = [None] * dist.get_world_size()
    dist.all_gather_object(both, found)
    if dist.get_rank() == 0:
        json.dump(both, sys.stdout)
    leave()


if __name__ == "__main__":
    main()
