"""Operators and calls on a mesh of torch processes, beside the same in one of them.

A script that `test_torch_meshes.py` runs as two processes over gloo; the first prints what it found
as JSON. Operators are made by a function `put(x, dimension)` that places an array cut along a
dimension.
"""

import importlib
import json
import operator
import os
import sys
import warnings

import numpy as np
import torch
import torch.distributed as dist
import torch.utils._pytree as pytree

import colinear as co

N = 64


def spd(n, seed=0):
    Z = np.random.default_rng(seed).normal(size=(n, n))
    return Z @ Z.T / n + np.eye(n)


def gaussian(X, Y):
    return torch.exp(-0.5 * ((X[:, None] - Y[None]) ** 2).sum(-1))


def multiply(V, S):
    return S @ V


def operators(put):
    """A maker for each family, of leaves that are cut by rows."""
    rng = np.random.default_rng(1)
    data, points = rng.normal(size=(8 * N, N)) / np.sqrt(8 * N), rng.normal(size=(N, 2))
    U, d = rng.normal(size=(N, 4)), 1 + rng.random(N)
    stack = np.stack([spd(N, seed) for seed in range(8)])
    psd = lambda n, seed=0: co.PSD(co.Dense(put(spd(n, seed), 0)))
    kronecker = lambda: co.Kronecker(psd(8), psd(8, 1))

    def low_rank():
        V = put(U, 0)
        return co.Diagonal(put(d, 0)) + co.PSD(co.LowRank(V, V))

    return {
        "dense": lambda: psd(N),
        "diagonal": lambda: co.Diagonal(put(d, 0)),
        "low_rank": low_rank,
        "kernel": lambda: (
            co.PSD(co.Kernel(gaussian, put(points, 0), block=8)) + 0.5 * co.Identity(N)
        ),
        "kronecker": kronecker,
        "kronecker_shifted": lambda: kronecker() + 0.5 * co.Identity(N),
        "block_diag": lambda: co.BlockDiag(*[psd(16, i) for i in range(4)]),
        "batch_sum": lambda: co.PSD(co.BatchSum(co.Dense(put(stack, 0)))),
        "matrix_free": lambda: co.PSD(
            co.MatrixFree(multiply, (N, N), parameters=(put(spd(N), 0),))
        ),
        "sum": lambda: psd(N) + psd(N, 3),
        "gram": lambda: (lambda D: D.T @ D)(co.Dense(put(data, 0))),
    }


def gradient(f):
    """The gradient of a number with respect to the leaves of A and to b, as one vector."""

    def call(A, b):
        leaves, structure = pytree.tree_flatten(A)
        leaves = [x.detach().requires_grad_() if isinstance(x, torch.Tensor) else x for x in leaves]
        b = b.detach().requires_grad_()
        value = f(pytree.tree_unflatten(leaves, structure), b)
        moving = [x for x in (*leaves, b) if isinstance(x, torch.Tensor)]
        found = torch.autograd.grad(value, moving, materialize_grads=True)
        return torch.cat([whole(x).reshape(-1) for x in found])

    return call


def whole(x):
    x = torch.as_tensor(x)
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def calls():
    """Functions of (A, b)."""
    return {
        "product": lambda A, b: A @ b,
        "dense": lambda A, b: A.to_dense(),
        "cg": lambda A, b: co.solve(A, b, co.CG(tol=1e-10)),
        "minres": lambda A, b: co.solve(A, b, co.MINRES(tol=1e-10)),
        "gmres": lambda A, b: co.solve(A, b, co.GMRES(tol=1e-10)),
        "lsqr": lambda A, b: co.lstsq(A, b, co.LSQR(tol=1e-10)),
        "solve": lambda A, b: co.solve(A, b),
        "logdet": lambda A, b: co.logdet(A),
        "slq": lambda A, b: co.logdet(A, co.SLQ(probes=8, seed=0)),
        "trace": lambda A, b: co.trace(A),
        "hutchinson": lambda A, b: co.trace(A, co.Hutchinson(probes=8, seed=0)),
        "diag": lambda A, b: co.diag(A),
        "lanczos": lambda A, b: co.eig(A, 3, "LM", co.Lanczos(tol=1e-9))[0],
        "lobpcg": lambda A, b: co.eig(A, 3, "LA", co.LOBPCG(tol=1e-9))[0],
        "solve_and_logdet": lambda A, b: torch.cat(
            [whole(x).reshape(-1) for x in co.solve_and_logdet(A, b)]
        ),
        "grad_product": gradient(lambda A, b: ((A @ b) ** 2).sum()),
        "grad_cg": gradient(lambda A, b: (co.solve(A, b, co.CG(tol=1e-10)) ** 2).sum()),
        "grad_slq": gradient(lambda A, b: co.logdet(A, co.SLQ(probes=8, seed=0))),
        "grad_likelihood": gradient(
            lambda A, b: (lambda x, d: b @ x + d)(*co.solve_and_logdet(A, b))
        ),
    }


def on_one(x, dimension):
    return torch.as_tensor(x)


def place_on(mesh):
    """A function that cuts arrays over the first axis of a mesh."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    def put(x, dimension):
        cut = Replicate() if dimension is None else Shard(dimension)
        layout = [cut, *[Replicate()] * (mesh.ndim - 1)]
        return distribute_tensor(torch.as_tensor(x), mesh, layout)

    return put


def compare(put, pairs):
    """The largest difference from one process, and how the answer is cut, for each pair of an
    operator and a call; or the error."""
    b, found = np.random.default_rng(5).normal(size=N), {}
    many, single = operators(put), operators(on_one)
    for name, call in pairs:
        f = calls()[call]
        expected = f(single[name](), on_one(b, 0))
        try:
            x = f(many[name](), put(b, 0))
        except Exception as error:
            found[f"{name} {call}"] = [repr(error)[:500], ""]
            continue
        difference = float((whole(x) - expected).abs().max())
        found[f"{name} {call}"] = [difference, str(getattr(x, "placements", ""))]
    return found


def by_steps(method, **options):
    """A call of (A, b, steps) that makes so many steps of a method for a linear system."""
    return lambda A, b, steps: co.solve(A, b, method(tol=1e-15, max_iters=steps, **options))


def for_pairs(method, which):
    """The same for eigenpairs."""
    return lambda A, b, steps: co.eig(A, 2, which, method(tol=1e-15, max_iters=steps))


METHODS = {
    "cg": by_steps(co.CG),
    "cg_single": by_steps(co.CG, single_reduction=True),
    "cg_single_preconditioned": by_steps(co.CG, single_reduction=True, preconditioner=co.Jacobi()),
    "minres": by_steps(co.MINRES),
    "gmres": by_steps(co.GMRES),
    "lanczos": for_pairs(co.Lanczos, "LA"),
    "lobpcg": for_pairs(co.LOBPCG, "LA"),
}


def collectives(put):
    """What products and single iterations send, by the kind."""
    from torch.distributed.tensor.debug import CommDebugMode

    def counts(f, *arguments):
        with CommDebugMode() as mode, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the iterations ran out
            f(*arguments)
        sent = mode.get_comm_counts().items()
        return {str(kind).rpartition(".")[2]: count for kind, count in sent}

    def of_a_step(run, A, x):
        """The difference between runs of 3 and of 8 steps, which reach no tolerance."""
        few, many = (counts(run, A, x, steps) for steps in (3, 8))
        kinds = few.keys() | many.keys()
        sent = {kind: (many.get(kind, 0) - few.get(kind, 0)) / 5 for kind in kinds}
        return {kind: count for kind, count in sent.items() if count}

    b, makers, found = np.random.default_rng(5).normal(size=N), operators(put), {}
    for name in ("dense", "low_rank", "kronecker", "gram"):
        A, x = co.opaque(makers[name]()), put(b, 0)
        found[f"{name} product"] = counts(operator.matmul, A, x)
        for call in METHODS if name == "dense" else ["cg", "cg_single"]:
            found[f"{name} {call}"] = of_a_step(METHODS[call], A, x)
    skew = np.triu(np.ones((N, N)), 1) - np.tril(np.ones((N, N)), -1)
    A, x = co.opaque(co.Dense(put(spd(N) + 0.1j * skew / N, 0))), put(b + 1j, 0)
    for call, run in (("arnoldi", for_pairs(co.Arnoldi, "LM")), ("gmres", METHODS["gmres"])):
        found[f"complex {call}"] = of_a_step(run, A, x)
    return found


def layouts(mesh):
    """Whether what the backend offers for meshes does what it says."""
    backend = co.backends.get("torch")
    of = importlib.import_module(f"{backend.__name__}.mesh")
    rank, x = dist.get_rank(), np.arange(24.0).reshape(6, 4)
    rows = of.place_on_mesh(x, mesh, {-2: "x"})
    own = of.local_rows(mesh, "x", 6)
    read = of.from_local_rows(x[own], mesh, "x", 6)
    odd = of.from_local_rows(np.arange(5.0)[of.local_rows(mesh, "x", 5)], mesh, "x", 5)

    def local(cut, scale):
        (mine,) = cut
        others = of.gather_rows(mine, "x").sum() - mine.sum()
        return scale * mine + others + 0 * of.shift_rows(mine, "x", 1)

    weights = torch.arange(6.0)[:, None].expand(6, 4).clone()
    moving, scale = of.place_on_mesh(weights, mesh, {-2: "x"}).requires_grad_(), torch.tensor(2.0)
    scale.requires_grad_()
    answer = of.apply_by_rows(local, mesh, "x", (moving,), scale)
    (answer.full_tensor() * weights).sum().backward()
    halves = weights[:3].sum(), weights[3:].sum()
    # d/dx of Σ w (2 x + sum of the x of the other half)
    slope = 2 * weights + torch.stack(halves).flip(0).repeat_interleave(3)[:, None]
    before, beyond = (
        of.apply_by_rows(
            lambda cut, _: of.shift_rows(cut[0], "x", 1), mesh, "x", (each,), None
        ).full_tensor()
        for each in (rows, rows / 0)
    )
    turned = of.apply_by_rows(
        lambda cut, _: of.shift_rows(cut[0], "x", 1, True), mesh, "x", (rows,), None
    ).full_tensor()
    exchanged = of.apply_by_rows(
        lambda cut, _: of.exchange(cut[0], "x", 1, 0).T + of.place_along("x"),
        mesh,
        "x",
        (rows,),
        None,
    ).full_tensor()
    A = co.Dense(torch.as_tensor(x)).to(device=mesh)
    return {
        "sizes": of.axis_sizes(mesh) == {"x": 2},
        "place": bool((rows.to_local() == torch.as_tensor(x[own])).all()),
        "cuts": of.cuts_of(rows) == {-2: "x"} and of.cuts_of(A.A) == {},
        "gather": bool((of.gather_whole(rows) == torch.as_tensor(x)).all()),
        "read": bool((read.full_tensor() == torch.as_tensor(x)).all()),
        "odd": odd.shape == (5,) and bool((odd.full_tensor() == torch.arange(5.0)).all()),
        "bytes": of.bytes_per_device(rows) == 96 and of.bytes_per_device(A.A) == 192,
        "derivative": bool(torch.allclose(moving.grad.full_tensor(), slope)),
        "derivative of what is whole": bool(torch.isclose(scale.grad, (weights**2).sum())),
        "shift": bool((before == torch.cat([torch.zeros(3, 4), torch.as_tensor(x[:3])])).all()),
        "nothing comes from outside": bool((beyond[:3] == 0).all()),
        "around": bool((turned == torch.as_tensor(np.roll(x, 3, axis=0))).all()),
        "exchange": bool((exchanged == torch.as_tensor(x.T + np.arange(4)[:, None] // 2)).all()),
        "place of A": A.device == mesh and A.to(device="cpu").device == torch.device("cpu"),
        "rank": own == slice(3 * rank, 3 * rank + 3),
    }


def special(put):
    """Odd lengths, complex numbers, blocks, calls that fail: the largest differences, or what is
    said."""
    rng = np.random.default_rng(3)
    n, skew = 33, np.triu(np.ones((33, 33)), 1) - np.tril(np.ones((33, 33)), -1)
    S, b, B = spd(n), rng.normal(size=n), rng.normal(size=(n, 3))
    C, c = S + 0.1j * skew / n, b + 1j
    psd = lambda put, S: co.PSD(co.Dense(put(S, 0)))
    cases = {
        "odd": lambda put: co.solve(psd(put, S), put(b, 0), co.CG(tol=1e-10)),
        "odd block": lambda put: co.solve(psd(put, S), put(B, 0), co.GMRES(tol=1e-10)),
        "complex": lambda put: co.solve(psd(put, C), put(c, 0), co.CG(tol=1e-10)),
        "columns": lambda put: co.Dense(put(S, 1)) @ put(b, 0),
        "whole": lambda put: co.solve(psd(put, S), put(b, None), co.MINRES(tol=1e-10)),
        "preconditioned": lambda put: co.solve(
            psd(put, S), put(b, 0), co.CG(tol=1e-10, preconditioner=co.Jacobi())
        ),
        "rows": lambda put: psd(put, S)[3],
    }
    found = {name: float((whole(f(put)) - f(on_one)).abs().max()) for name, f in cases.items()}
    mesh, col = put(b, 0).device_mesh, torch.as_tensor(rng.normal(size=N))
    weights = torch.linspace(1, 2, N)

    def slope(is_divided):
        c = col.clone().requires_grad_()
        A, x = co.Toeplitz(c), weights
        y = co.shard(A, mesh) @ co.shard(x, mesh) if is_divided else A @ x
        return torch.autograd.grad((whole(y) * weights).sum(), c)[0]

    found["derivative of a divided product"] = float((slope(True) - slope(False)).abs().max())
    for A in (
        co.Toeplitz(col),
        co.Circulant(col),
        co.Convolution(col.reshape(8, 8), (8, 8)),
        co.FFT(N),
    ):
        D = co.shard(A, mesh)
        differences = [
            whole(T @ co.shard(x, mesh)) - B @ x
            for B, T in ((A, D), (A.H, D.H))
            for x in (col, torch.stack([col, col.flip(0)], 1) + 1j)
        ]
        found[f"shard {type(A).__name__}"] = max(float(x.abs().max()) for x in differences)
        found[f"{type(A).__name__} is whole"] = float(D.spread is None)
    # operators without tensors, which take their place from the vector
    for name, f in {
        "product": lambda A, x: A @ x,
        "lstsq": lambda A, x: co.lstsq(A, x),
        "solve": lambda A, x: co.solve(A + 3.0 * co.Identity(N), x, co.GMRES(tol=1e-10)),
    }.items():
        for A in (co.FFT((4, N // 4)), co.FFT((1, N)), co.Identity(N)):
            difference = whole(f(A, co.shard(col, mesh))) - f(A, col)
            found[f"{name} {A}"] = float(difference.abs().max())
    info = co.solve(psd(put, -S), put(b, 0), co.CG(), info=True)[1]
    few = co.solve(psd(put, S), put(b, 0), co.CG(tol=1e-12, max_iters=2), info=True)[1]
    try:
        psd(put, S) @ torch.as_tensor(b)
        said = "nothing"
    except co.DeviceError as error:
        said = str(error)
    return found, {"indefinite": info.status.name, "few": few.status.name, "plain": said}


def chosen(which):
    """The pairs of operators and calls that a run makes."""
    pairs = [(name, call) for name in operators(on_one) for call in calls()]
    again = "minres lsqr solve logdet solve_and_logdet grad_slq".split()  # as others do it
    few = [p for p in pairs if p[1] == "product" or (p[0] == "dense" and p[1] not in again)]
    few += [(name, "cg") for name in ("low_rank", "kronecker", "batch_sum", "gram")]
    few += [(name, "grad_likelihood") for name in ("low_rank", "kernel")]
    words = which.split("+")
    others = [p for p in pairs if all(word in " ".join(p) for word in words)]
    return {"all": pairs, "few": few}.get(which, others)


def leave():
    """End the process when all have come so far. What gloo's threads still do would abort an
    ordinary end now and then (torch 2.13)."""
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def main(kind, which):
    torch.set_default_dtype(torch.float64)
    count = int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo",
        init_method=os.environ["COLINEAR_MEETING"],
        rank=int(os.environ["RANK"]),
        world_size=count,
    )
    shape = {"line": (count,), "grid": (2, count // 2)}[kind]
    mesh = dist.init_device_mesh("cpu", shape, mesh_dim_names=("x", "y")[: len(shape)])
    put = place_on(mesh)
    answers = {"answers": compare(put, chosen(which))}
    if kind == "line":
        answers["sent"], answers["layouts"] = collectives(put), layouts(mesh)
        answers["special"], answers["said"] = special(put)
    if dist.get_rank() == 0:
        json.dump(answers, sys.stdout)
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
