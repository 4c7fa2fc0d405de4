"""Operators and calls on four devices that JAX makes of one host, beside the same on one of them.

A script, since the number of devices is fixed when JAX starts: `test_jax_meshes.py` runs it and
reads the JSON that it prints. Operators are made by a function `put(x, axis)` that places an array
cut along an axis.
"""

import json
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

import colinear as co

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
        "svd": lambda A, b: co.svd(A, 3, co.RandomizedSVD(seed=0))[1],
        "grad_solve": lambda A, b: jax.grad(
            lambda b: jnp.sum(co.solve(A, b, co.CG(tol=1e-10)) ** 2)
        )(b),
        "grad_logdet": lambda A, b: jax.tree.leaves(jax.grad(lambda A: co.logdet(A))(A))[0],
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


def compare(put, pairs, wrap=lambda f: f):
    """The largest difference from one device, and how the answer is cut, for each pair of an
    operator and a call; or the error."""
    b, found = np.random.default_rng(5).normal(size=N), {}
    many, single = operators(put), operators(on_one)
    for name, call in pairs:
        f = calls()[call]
        expected = np.asarray(f(single[name](), on_one(b, 0)))
        try:
            x = wrap(f)(many[name](), put(b, 0))
        except Exception as error:
            found[f"{name} {call}"] = [repr(error)[:300], "", 0]
            continue
        difference = float(np.max(np.abs(np.asarray(x) - expected)))
        layout = str(getattr(x.sharding, "spec", "one device"))
        found[f"{name} {call}"] = [difference, layout, len(x.devices())]
    return found


KINDS = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")


def collectives(program):
    """The sizes of what devices send to each other in one round of each innermost loop of a
    compiled program that sends anything. (The loop around that of CG starts it again from a true
    residual; the loop over the blocks of a kernel sends nothing.)"""
    parts = {
        part.split(maxsplit=1)[0].lstrip("%"): part
        for part in re.split(r"\n(?=%|ENTRY)", program)
        if part.startswith("%")
    }
    bodies = set(re.findall(r"body=%([\w.\-]+)", program))

    def reached(name, seen, inside):
        """The parts of a loop, but those of the loops inside of it, which are noted."""
        seen.add(name)
        for other in re.findall(r"%([\w.\-]+)", parts[name]):
            if other in bodies and other not in seen:
                inside.add(other)
            elif other in parts and other not in seen:
                reached(other, seen, inside)
        return seen

    sent, nested = {}, {}
    for body in bodies:
        nested[body] = set()
        text = "\n".join(parts[part] for part in reached(body, set(), nested[body]))
        sent[body] = {kind: sizes_of(text, kind) for kind in KINDS}
    sends = lambda body: any(sent[body].values()) or any(map(sends, nested[body]))
    found = [body for body in bodies if sends(body) and not any(map(sends, nested[body]))]
    return [sent[body] for body in sorted(found)]


def sizes_of(text, kind):
    """How many numbers each collective of a kind gives."""
    lines = re.findall(rf"= (.*?) {kind}(?:-start)?\(", text)
    shapes = (re.findall(r"[a-z]\d+\[([\d,]*)\]", line) for line in lines)
    return [sum(int(np.prod([int(d) for d in s.split(",") if d])) for s in each) for each in shapes]


def iterations(put):
    """What one iteration of CG communicates."""
    b, makers = np.random.default_rng(5).normal(size=N), operators(put)
    found = {}
    for name in ("dense", "low_rank", "kronecker", "gram"):
        program = jax.jit(calls()["cg"]).lower(makers[name](), put(b, 0)).compile().as_text()
        found[name] = collectives(program)
    return found


def explore(mode, wanted=""):
    """Print every pair of a mode, with its time, as it comes."""
    import time

    kind = jax.sharding.AxisType.Explicit if "explicit" in mode else jax.sharding.AxisType.Auto
    wrap = jax.jit if "jit" in mode else (lambda f: f)
    put = place_on(kind)
    for name in operators(on_one):
        for call in calls():
            if wanted in f"{name} {call}":
                start = time.process_time()
                found = compare(put, [(name, call)], wrap)
                print(mode, found, round(time.process_time() - start, 2), flush=True)


def main():
    automatic = place_on(jax.sharding.AxisType.Auto)
    names, few = list(operators(on_one)), ("dense", "low_rank")
    eager = [(name, call) for name in names for call in ("product", "cg", "diag")]
    more = ("solve", "logdet", "slq", "hutchinson", "lanczos", "grad_solve", "grad_logdet")
    eager += [("dense", call) for call in more]
    traced = ("product", "cg", "solve", "logdet", "grad_solve")
    answers = {
        "eager": compare(automatic, eager),
        "explicit": compare(
            place_on(jax.sharding.AxisType.Explicit),
            [(name, call) for name in few for call in ("product", "cg", "logdet")],
        ),
        "explicit jit": compare(
            place_on(jax.sharding.AxisType.Explicit),
            [(name, call) for name in few for call in traced],
            jax.jit,
        ),
        "iterations": iterations(automatic),
    }
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    explore(*sys.argv[1:]) if sys.argv[1:] else main()
