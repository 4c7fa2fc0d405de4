"""Operators spread over two processes, beside NumPy on one.

A script: `test_jax_processes.py` runs it twice, with the number of the process and a port, and reads
the JSON that the first one prints. The processes talk over localhost, by gloo.
"""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from support.compiling import share_contexts

import colinear as co
from colinear.distributed import gather, load_rows, shard

N = 64


def gaussian(X, Y, length):
    return jnp.exp(-0.5 * jnp.sum((X[:, None] - Y[None]) ** 2, -1) / length**2)


def gaussian_numpy(X, length):
    return np.exp(-0.5 * np.sum((X[:, None] - X[None]) ** 2, -1) / length**2)


def likelihood(theta, X, y):
    """The log marginal likelihood of a Gaussian process, of what `shard` has cut."""
    length, noise = jnp.exp(theta[0]), jnp.exp(theta[1])
    K = X["K"]._replace(parameters=(length,))
    A = co.PSD(K) + noise * co.Identity(N)
    x, logdet = co.solve_and_logdet(A, y)
    return -0.5 * jnp.vdot(y, x) - 0.5 * logdet - 0.5 * N * np.log(2 * np.pi)


def likelihood_numpy(theta, points, y):
    A = gaussian_numpy(points, np.exp(theta[0])) + np.exp(theta[1]) * np.eye(N)
    return (
        -0.5 * y @ np.linalg.solve(A, y)
        - 0.5 * np.linalg.slogdet(A)[1]
        - 0.5 * N * np.log(2 * np.pi)
    )


def far(x, expected):
    """The largest difference, relative to the largest number."""
    return float(np.max(np.abs(np.asarray(gather(x)) - expected)) / np.max(np.abs(expected)))


def main(process, port, folder):
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{port}", 2, process)
    mesh, rng, found = jax.make_mesh((2,), ("x",)), np.random.default_rng(0), {}
    Z, b = rng.normal(size=(8 * N, N)), rng.normal(size=N)
    M = Z.T @ Z / (8 * N) + np.eye(N)
    A, right = shard(co.PSD(co.Dense(M)), mesh), shard(b, mesh)
    found["product"] = far(A @ right, M @ b)
    found["cg"] = far(co.solve(A, right, co.CG(tol=1e-13)), np.linalg.solve(M, b))
    found["jitted cg"] = far(
        jax.jit(lambda A, b: co.solve(A, b, co.CG(tol=1e-13)))(A, right), np.linalg.solve(M, b)
    )
    found["logdet"] = far(co.logdet(A), np.linalg.slogdet(M)[1])
    slq = co.SLQ(probes=8, seed=0)
    alone = jax.jit(lambda M: co.logdet(co.PSD(co.Dense(M)), slq))(M)
    found["slq"] = far(jax.jit(lambda A: co.logdet(A, slq))(A), np.asarray(alone))
    found["largest part"] = max(x.data.nbytes for x in A.A.addressable_shards) / M.nbytes

    line = sp.diags([-1.0, 2.5, -1.0], [-1, 0, 1], (N, N)).tocsr()
    S = shard(co.PSD(co.Sparse(line)), mesh)
    found["stencil cg"] = far(
        co.solve(S, right, co.CG(tol=1e-13)), np.linalg.solve(line.toarray(), b)
    )
    found["gathered stencil"] = far(gather(S).data, line.data)

    rows = load_rows(Path(folder) / "data.npy", mesh)
    D = co.Dense(rows)
    data = np.load(Path(folder) / "data.npy")
    found["rows of a file"] = far((D.T @ D) @ shard(b, mesh), data.T @ (data @ b))

    points, theta = rng.normal(size=(N, 2)), np.log([1.3, 0.1])
    K = shard(co.Kernel(gaussian, jnp.asarray(points), parameters=(jnp.asarray(1.3),)), mesh)
    value, slope = jax.jit(jax.value_and_grad(likelihood))(jnp.asarray(theta), {"K": K}, right)
    found["likelihood"] = far(value, likelihood_numpy(theta, points, b))
    h = 1e-5
    expected = [
        (likelihood_numpy(theta + h * e, points, b) - likelihood_numpy(theta - h * e, points, b))
        / (2 * h)
        for e in np.eye(2)
    ]
    found["slope by differences"] = far(slope, np.array(expected))
    one = jax.jit(jax.value_and_grad(likelihood))
    local = co.Kernel(gaussian, jnp.asarray(points), parameters=(jnp.asarray(1.3),))
    alone = one(jnp.asarray(theta), {"K": local}, jnp.asarray(b))
    found["likelihood step"] = max(
        far(value, np.asarray(alone[0])), far(slope, np.asarray(alone[1]))
    )
    if process == 0:
        json.dump(found, sys.stdout)


if __name__ == "__main__":
    share_contexts()
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
