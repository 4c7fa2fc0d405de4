"""Operators and calls on four devices that JAX makes of one host, beside the same on one of them.

A script, since the number of devices is fixed when JAX starts: `test_jax_meshes.py` runs it and
reads the JSON that it prints. Operators are made by a function `put(x, axis)` that places an array
cut along an axis.
"""

import functools
import json
import os
import re
import sys
import tempfile
import unittest.mock
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from support.compiling import share_contexts

import colinear as co
from colinear.backends.jax.mesh import place_on_mesh
from colinear.distributed.communication import traffic

N = 64


def spd(n, seed=0):
    Z = np.random.default_rng(seed).normal(size=(n, n))
    return Z @ Z.T / n + np.eye(n)


def gaussian(X, Y):
    return jnp.exp(-0.5 * jnp.sum((X[:, None] - Y[None]) ** 2, -1))


def multiply(V, S):
    return S @ V


def energy(x, D):
    return 0.5 * jnp.sum((D @ x) ** 2) + 0.5 * jnp.sum(x**2)


def operators(put):
    """A maker for each family."""
    rng = np.random.default_rng(1)
    data, points = rng.normal(size=(8 * N, N)) / np.sqrt(8 * N), rng.normal(size=(N, 2))
    U, d = rng.normal(size=(N, 4)), 1 + rng.random(N)
    stack = np.stack([spd(N, seed) for seed in range(8)])
    bump = np.outer([1.0, 2.0, 1.0], [1.0, 2.0, 1.0]) / 16
    bell = np.exp(-2 * np.add.outer(np.arange(-3.0, 4) ** 2, np.arange(-3.0, 4) ** 2))
    line = sp.diags([-1.0, 2.5, -1.0], [-1, 0, 1], (N, N)).tocsr()
    psd = lambda n: co.PSD(co.Dense(put(spd(n), 0)))
    kronecker = lambda: co.Kronecker(psd(8), psd(8))

    def low_rank():
        V = put(U, 0)
        return co.Diagonal(put(d, 0)) + co.PSD(co.LowRank(V, V))

    def sparse():
        A = co.Sparse(line).to("jax")
        return co.PSD(A._replace(data=put(np.asarray(A.data), None)))

    return {
        "dense": lambda: psd(N),
        "low_rank": low_rank,
        "kernel": lambda: (
            co.PSD(co.Kernel(gaussian, put(points, 0), block=8)) + 0.5 * co.Identity(N)
        ),
        "kronecker": kronecker,
        "kronecker_shifted": lambda: kronecker() + 0.5 * co.Identity(N),
        "block_diag": lambda: co.BlockDiag(*[psd(16) for _ in range(4)]),
        "batch_sum": lambda: co.PSD(co.BatchSum(co.Dense(put(stack, 0)))),
        "sparse": sparse,
        "matrix_free": lambda: co.PSD(
            co.MatrixFree(multiply, (N, N), parameters=(put(spd(N), 0),), dtype=jnp.float64)
        ),
        "toeplitz": lambda: co.PSD(co.Toeplitz(put(np.r_[3.0, 1.0, np.zeros(N - 2)], None))),
        "circulant": lambda: co.PSD(
            co.Circulant(put(np.r_[3.0, 1.0, np.zeros(N - 3), 1.0], None)) + 0.5 * co.Identity(N)
        ),
        "smooth": lambda: (
            co.PSD(co.Convolution(put(bell, None), (8, 8), centered=True)) + 2.0 * co.Identity(N)
        ),
        "convolution": lambda: (
            co.PSD(co.Convolution(put(bump, None), (8, 8), boundary="zero", centered=True))
            + 2.0 * co.Identity(N)
        ),
        "gram": lambda: (lambda D: D.T @ D)(co.Dense(put(data, 0))),
        "opaque": lambda: co.opaque((lambda D: D.T @ D)(co.Dense(put(data, 0)))),
        "hessian": lambda: co.PSD(
            co.Hessian(energy, put(np.ones(N), 0), parameters=(put(data, 0),))
        ),
    }


def calls():
    """Functions of (A, b)."""
    return {
        "product": lambda A, b: A @ b,
        "solve": lambda A, b: co.solve(A, b),
        "cg": lambda A, b: co.solve(A, b, co.CG(tol=1e-10)),
        "gmres": lambda A, b: co.solve(A, b, co.GMRES(tol=1e-10)),
        "cholesky": lambda A, b: co.solve(A, b, co.Cholesky()),
        "minres": lambda A, b: co.solve(A, b, co.MINRES(tol=1e-10)),
        "logdet": lambda A, b: co.logdet(A),
        "slq": lambda A, b: co.logdet(A, co.SLQ(probes=8, seed=0)),
        "trace": lambda A, b: co.trace(A),
        "hutchinson": lambda A, b: co.trace(A, co.Hutchinson(probes=8, seed=0)),
        "diag": lambda A, b: co.diag(A),
        "lanczos": lambda A, b: co.eig(A, 3, "LM", co.Lanczos(tol=1e-9))[0],
        "lobpcg": lambda A, b: co.eig(A, 3, "LA", co.LOBPCG(tol=1e-9))[0],
        "svd": lambda A, b: co.svd(A, 3, co.RandomizedSVD(seed=0), on_failure="ignore")[1],
        "grad_solve": lambda A, b: jax.grad(
            lambda b: jnp.sum(co.solve(A, b, co.CG(tol=1e-10)) ** 2)
        )(b),
        # of X^T X the first leaf is that of X^T, or X itself
        "grad_logdet": lambda A, b: jax.tree.leaves(jax.grad(lambda A: co.logdet(A))(A))[-1],
    }


DEVICES = 4


def place_on(axis_type):
    """A function that cuts arrays over a mesh whose axis is of this type."""
    mesh = jax.make_mesh((DEVICES,), ("x",), axis_types=(axis_type,))

    def put(x, axis):
        spec = ["x" if i == axis else None for i in range(np.ndim(x))]
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
        return jax.device_put(np.asarray(x), sharding)

    return put


def on_one(x, axis):
    return jax.device_put(np.asarray(x), jax.devices()[0])


RANDOM = ("slq", "hutchinson", "svd")  # whose numbers are JAX's in a program, else NumPy's


def by_shard(put):
    """Makers of the operators as `co.shard` places them on the mesh of `put`."""
    mesh = put(np.ones(DEVICES), 0).sharding.mesh
    return {
        name: functools.partial(lambda make: co.shard(make(), mesh), make)
        for name, make in operators(on_one).items()
    }


def compare(put, pairs, wrap=lambda f: f, place=operators):
    """The largest difference from one device, and how the answer is cut, for each pair of an
    operator and a call; or the error."""
    b, found = np.random.default_rng(5).normal(size=N), {}
    many, single = place(put), operators(on_one)
    for name, call in pairs:
        f = calls()[call]
        alone = jax.jit(f) if call in RANDOM else f
        expected = np.asarray(alone(single[name](), on_one(b, 0)))
        run = jax.jit(f) if call in RANDOM else wrap(f)
        try:
            right = put(b, 0) if place is operators else co.shard(b, put(b, 0).sharding.mesh)
            x = run(many[name](), right)
        except Exception as error:
            found[f"{name} {call}"] = [repr(error)[:300], "", 0]
            continue
        difference = float(np.max(np.abs(np.asarray(x) - expected)))
        layout = str(getattr(x.sharding, "spec", "one device"))
        found[f"{name} {call}"] = [difference, layout, len(x.devices())]
    return found


KINDS = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")


def collectives(program, usual=False):
    """The sizes of what devices send to each other in one round of each innermost loop of a
    compiled program that sends anything. (The loop around that of CG starts it again from a true
    residual; the loop over the blocks of a kernel sends nothing.)

    Of the branches of a condition the one that sends most often counts, or least (`usual`): those
    that are seldom taken send more.
    """
    parts = {
        part.split(maxsplit=1)[0].lstrip("%"): part
        for part in re.split(r"\n(?=%|ENTRY)", program)
        if part.startswith("%")
    }
    bodies = set(re.findall(r"body=%([\w.\-]+)", program))
    nested = {}

    def sent(name, inside):
        """What a part sends, but the loops inside of it, which are noted."""
        found = {kind: sizes_of(parts[name], kind) for kind in KINDS}
        add = lambda other: [found[kind].extend(other[kind]) for kind in KINDS]
        for line in parts[name].splitlines()[1:]:
            others = [x for x in re.findall(r"%([\w.\-]+)", line) if x in parts]
            inside |= bodies.intersection(others)
            others = [sent(x, inside) for x in others if x not in bodies]
            if " conditional(" in line:
                others = [(min if usual else max)(others, key=lambda x: sum(map(len, x.values())))]
            for other in others:
                add(other)
        return found

    of_bodies = {body: sent(body, nested.setdefault(body, set())) for body in bodies}
    sends = lambda body: any(of_bodies[body].values()) or any(map(sends, nested[body]))
    found = [body for body in bodies if sends(body) and not any(map(sends, nested[body]))]
    return [of_bodies[body] for body in sorted(found)]


def sizes_of(text, kind):
    """How many numbers each collective of a kind gives."""
    lines = re.findall(rf"= (.*?) {kind}(?:-start)?\(", text)
    shapes = (re.findall(r"[a-z]\d+\[([\d,]*)\]", line) for line in lines)
    return [sum(int(np.prod([int(d) for d in s.split(",") if d])) for s in each) for each in shapes]


def iterations(put):
    """What one iteration of CG sends, for each operator as `shard` places it; what that is
    predicted to be; and the largest difference from the solution on one device."""
    b, makers, single = np.random.default_rng(5).normal(size=N), by_shard(put), operators(on_one)
    found, cg = {}, calls()["cg"]
    for name, make in makers.items():
        A, right = make(), co.shard(b, put(b, 0).sharding.mesh)
        program = jax.jit(cg).lower(A, right).compile()
        expected = np.linalg.solve(np.asarray(single[name]().to_dense()), b)
        found[name] = {
            "sent": collectives(program.as_text()),
            "predicted": traffic(A)._asdict(),
            "difference": float(np.max(np.abs(np.asarray(program(A, right)) - expected))),
            "explained": str(co.explain(co.solve, A)),
        }
    return found


def steps(put):
    """What one step of a method sends, for a matrix cut by rows: as a rule, and at most."""
    rng = np.random.default_rng(5)
    single, M = functools.partial(co.CG, tol=1e-10, single_reduction=True), co.Jacobi()
    arnoldi, lobpcg = co.Arnoldi(tol=1e-9), functools.partial(co.LOBPCG, tol=1e-9)
    methods = {
        **{name: calls()[name] for name in ("cg", "gmres", "lanczos", "lobpcg")},
        "cg_single": lambda A, b: co.solve(A, b, single()),
        "arnoldi": lambda A, b: co.eig(co.Dense(A.A), 3, "LM", arnoldi)[0],
    }
    preconditioned = {
        "cg_single": lambda A, b: co.solve(A, b, single(preconditioner=M)),
        "lobpcg": lambda A, b: co.eig(A, 3, "LA", lobpcg(preconditioner=M))[0],
    }
    skew = np.triu(np.ones((N, N)), 1) - np.tril(np.ones((N, N)), -1)
    found = {}
    for kind, S, some in (
        ("", spd(N), methods),
        ("preconditioned ", spd(N), preconditioned),
        ("complex ", spd(N) + 0.1j * skew / N, methods),
    ):
        A, b = co.PSD(co.Dense(put(S, 0))), put(rng.normal(size=N).astype(S.dtype), 0)
        for name, call in some.items():
            program = jax.jit(call).lower(A, b).compile().as_text()
            found[kind + name] = [collectives(program, usual) for usual in (True, False)]
    return found


def divided_products(put):
    """What a product with operators that send halos or exchange frequencies sends, prepared for many of them
    or not, and what is predicted."""
    rng, found = np.random.default_rng(6), {}
    mesh = put(np.ones(DEVICES), 0).sharding.mesh
    numbers = lambda *shape: rng.normal(size=shape)
    upper = lambda n: sp.diags([numbers(n - 1), numbers(n - 3)], [1, 3], (n, n)).tocsr()
    cases = {
        "toeplitz": co.Toeplitz(numbers(N), numbers(N)),
        "corner that is ignored": co.Toeplitz(numbers(N), np.r_[np.nan, numbers(N - 1)]),
        "complex toeplitz": co.Toeplitz(numbers(N) + 1j * numbers(N)),
        "circulant": co.Circulant(numbers(N)),
        "line, halos": co.Convolution(numbers(9), N, "zero", centered=True),
        "line, transforms": co.Convolution(numbers(60), N, "zero", centered=True),
        "ring, halos": co.Convolution(numbers(20), 2 * N, centered=True),
        "ring, transforms": co.Convolution(numbers(60), N),
        "rows above, halos": co.Sparse(upper(N)),
        "rows of a product, halos": co.Kronecker(co.Sparse(upper(16)), co.Dense(numbers(3, 3))),
        "rows of a sum, halos": co.KroneckerSum(co.Sparse(upper(16)), co.Dense(numbers(3, 3))),
        "grid, halos": co.Convolution(numbers(5, 5), (16, 7), "zero", centered=True),
        "torus, halos": co.Convolution(numbers(3, 3), (8, 6), centered=True),
        "grid, transforms": co.Convolution(numbers(11, 9), (12, 7), "zero"),
        "torus, transforms": co.Convolution(numbers(4, 4, 3), (4, 3, 5)),
        "transform of a line": co.FFT(N),
        "transform back": co.FFT(3 * N // 2).H,
        "transform of a grid": co.FFT((8, 5)),
        "uneven": co.Circulant(numbers(30)),
        "uneven transform": co.FFT(36),
        "rectangular": co.Toeplitz(numbers(N), numbers(32)),
    }
    for name, A in cases.items():
        S, far = co.shard(A, mesh), 0.0
        n = A.shape[1]
        for B, image in ((A, S), (A.H, S.H), (A.T, S.T), (A.conj(), S.conj())):
            for X in (numbers(B.shape[1]), numbers(2, B.shape[1], 3) + 1j):
                Y, Z = B @ X, image @ co.shard(X, mesh)
                alike = Y.shape == Z.shape and Y.dtype == Z.dtype
                far = max(far, float(np.max(np.abs(Y - np.asarray(Z)))) if alike else np.inf)
        x = co.shard(numbers(n), mesh)
        ready = S._prepare(False) if hasattr(S, "_prepare") else S
        program = jax.jit(lambda A, x: A @ x).lower(ready, x).compile()
        sent = {kind: sizes_of(program.as_text(), kind) for kind in KINDS}
        found[name] = {"difference": far, "sent": sent, "predicted": traffic(S)._asdict()}
    return found


def by_whole_vectors(put):
    """What one iteration of CG with X^T X sends for a right side that every device has."""
    mesh = put(np.ones(DEVICES), 0).sharding.mesh
    A = co.shard(operators(on_one)["gram"](), mesh)
    b = place_on_mesh(np.ones(N), mesh, {})
    program = jax.jit(calls()["cg"]).lower(A, b).compile()
    return {
        "sent": collectives(program.as_text()),
        "leaves": len({id(x) for x in A.arrays()}),
        "cut": [str(x.sharding.spec) for x in A.arrays()],
    }


def round_trips(put):
    """For each operator: how far `gather(shard(A))` is from A, its type, and whether it lies on one
    device; and the largest leaf of each device as a part of the whole."""
    mesh, found = put(np.ones(DEVICES), 0).sharding.mesh, {}
    for name, make in operators(on_one).items():
        A, back = make(), co.gather(co.shard(make(), mesh))
        places = {len(x.devices()) for x in back.arrays()}
        far = float(np.max(np.abs(np.asarray(A.to_dense()) - np.asarray(back.to_dense()))))
        found[name] = [far, type(A).__name__ == type(back).__name__, sorted(places)]
    return found


def limits(put):
    """What is planned for a stored matrix that fits into the memory of a device, and for one that
    does not; and what is said of a file that cannot be cut."""
    A, found = operators(put)["dense"](), {}
    b = put(np.ones(N), 0)
    plan = lambda f: co.explain(f, A).rules[-1]
    found["fits"] = [plan(co.solve), plan(co.logdet)]
    with (
        unittest.mock.patch("colinear.functions.common.memory_to_form", lambda A: 8 * N),
        unittest.mock.patch("colinear.functions.solve.cost.memory_to_form", lambda A: 8 * N),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        found["large"] = [plan(co.solve), plan(co.logdet)]
        x, info = co.solve(A, b, info=True)
        found["cut"] = [str(x.sharding.spec), str(info.method)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "six.npy"
        np.save(path, np.ones((6, 2)))
        mesh = b.sharding.mesh
        try:
            co.distributed.load_rows(path, mesh)
        except co.ShapeError as error:
            found["six rows"] = str(error)
        np.save(path, np.arange(8.0))
        rows = co.distributed.load_rows(path, mesh, dtype="float32")
        found["eight rows"] = [np.asarray(rows).tolist(), str(rows.sharding.spec), str(rows.dtype)]
    steps = [
        str(co.explain(co.solve, A, method=co.CG(single_reduction=single))).splitlines()[-1]
        for single in (False, True)
    ]
    found["steps"] = steps
    # diagonals that reach the next one of two devices, but not of four
    far = co.Sparse(sp.diags([np.arange(1.0, 45), np.ones(N)], [-20, 0]).tocsr())
    halves = co.shard(far, jax.make_mesh((2,), ("x",), devices=jax.devices()[:2]))
    quarters = co.shard(halves, mesh)
    expected = far @ np.arange(float(N))
    found["again"] = [
        [A.offsets is None for A in (halves, quarters)],
        float(
            np.max(np.abs(np.asarray(quarters @ co.shard(np.arange(float(N)), mesh)) - expected))
        ),
    ]
    whole = co.shard(np.ones(6), mesh)
    found["uneven"] = [len(whole.devices()), whole.sharding.is_fully_replicated]
    return found


REPRESENTATIVES = [
    ("low_rank", "gmres"), ("kernel", "slq"), ("sparse", "logdet"), ("sparse", "diag"),
    ("sparse", "grad_solve"), ("hessian", "hutchinson"), ("gram", "lobpcg"), ("low_rank", "svd"),
    ("matrix_free", "trace"),
]  # fmt: skip


def main():
    automatic = place_on(jax.sharding.AxisType.Auto)
    names, few = list(operators(on_one)), ("dense", "low_rank")
    everything = [(name, call) for name in names for call in calls()]
    is_full = bool(os.environ.get("COLINEAR_FULL"))
    eager = [(name, call) for name in names for call in ("product", "diag")]
    eager += [(name, "cg") for name in ("dense", "low_rank", "kernel", "kronecker", "sparse")]
    more = ("solve", "logdet", "slq", "hutchinson", "lanczos", "grad_solve", "grad_logdet")
    eager += [("dense", call) for call in more]
    traced = ("product", "cg", "solve", "logdet", "grad_solve")
    explicit = [(name, call) for name in few for call in ("product", "cg", "logdet")]
    explicit += [("kernel", "product")]
    explicit += [(name, call) for name in few for call in ("grad_solve", "grad_logdet")]
    explicit = everything if is_full else explicit
    of_explicit = place_on(jax.sharding.AxisType.Explicit)
    few_traced = [(name, call) for name in few for call in traced] + [("kernel", "product")]
    # of a sparse matrix `shard` stores the entries in another way
    sharded = [pair for pair in everything if pair != ("sparse", "grad_logdet")]
    answers = {
        "eager": compare(automatic, everything if is_full else eager),
        "shard": compare(automatic, sharded if is_full else REPRESENTATIVES, place=by_shard),
        "explicit": compare(of_explicit, explicit),
        "explicit jit": compare(of_explicit, everything if is_full else few_traced, jax.jit),
        "iterations": iterations(automatic),
        "steps": steps(automatic),
        "divided": divided_products(automatic),
        "whole vectors": by_whole_vectors(automatic),
        "round trips": round_trips(automatic),
        "limits": limits(automatic),
    }
    if is_full:
        answers["shard jit"] = compare(automatic, sharded, jax.jit, by_shard)
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    share_contexts()
    jax.config.update("jax_enable_x64", True)
    # in a program JAX cannot know whether derivatives of a random svd are wanted, and warns
    warnings.simplefilter("ignore", co.DerivativeWarning)
    main()
