"""Sums over two torch processes, beside the same in one.

A script that `test_all_reduce.py` runs as two processes over gloo; each compares, and the first
prints the largest difference in either as JSON.
"""

import json
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
    stack = stack[part if part == slice(None) else slice(2 * dist.get_rank(), 2 * dist.get_rank() + 2)]
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


def compare(only):
    rank, half = dist.get_rank(), ROWS // 2
    mine = slice(rank * half, (rank + 1) * half)
    b, found = torch.as_tensor(np.random.default_rng(5).normal(size=N)), {}
    shift = torch.tensor(0.5)
    for name, make in operators(mine).items():
        whole = operators(slice(None))[name]
        for call, f in calls().items():
            if only and not all(word in f"{name} {call}" for word in only):
                continue
            shifted = lambda A, b: f(A + 0.5 * co.Identity(N), b)
            try:
                expected, slopes = values_and_gradients(whole(), b, shifted)
                value, own = values_and_gradients(AllReduce(make()), b, shifted)
            except Exception as error:
                found[f"{name} {call}"] = [repr(error)[:300]] * 3
                if "-v" in sys.argv:
                    import traceback
                    traceback.print_exc()
                continue
            rows = [part_of(x, y.shape, rank) for x, y in zip(slopes[:-1], own[:-1])]
            found[f"{name} {call}"] = [
                float((value - expected).abs().max()),
                max(float((x - y).abs().max()) for x, y in zip(own[:-1], rows)),
                float((own[-1] - slopes[-1]).abs().max()),
            ]
    return found


def main():
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    found = compare([a for a in sys.argv[1:] if a != "-v"])
    both = [None, None]
    dist.all_gather_object(both, found)
    if dist.get_rank() == 0:
        for name in both[0]:
            print(name, both[0][name], both[1][name])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
