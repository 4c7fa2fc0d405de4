"""Sums over two devices that JAX makes of one host, beside the same on one of them.

A script, since the number of devices is fixed when JAX starts: `test_all_reduce.py` runs it with
the names of calls, and reads the JSON that it prints.
"""

import functools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from support.compiling import share_contexts

import colinear as co
from colinear.distributed import AllReduce

N, ROWS = 12, 30
CALLS = {
    "product": lambda A, b: A @ b,
    "cg": lambda A, b: co.solve(A, b, co.CG(tol=1e-12)),
    "logdet": lambda A, b: co.logdet(A),
    "solve": lambda A, b: co.solve(A, b),
    "gmres": lambda A, b: co.solve(A, b, co.GMRES(tol=1e-12)),
    "trace": lambda A, b: co.trace(A),
    "diag": lambda A, b: co.diag(A),
    "slq": lambda A, b: co.logdet(A, co.SLQ(probes=4, seed=0)),
    "lanczos": lambda A, b: co.eig(A, 2, "LM", co.Lanczos(tol=1e-10))[0],
}


def loss(call, is_spread, X, b):
    """A number made of the answer, and the answer."""
    D = co.Dense(X)
    gram = AllReduce(D.T @ D, "p") if is_spread else D.T @ D
    value = CALLS[call](gram + 0.5 * co.Identity(N), b)
    return jnp.sum(value * jnp.linspace(1, 2, value.size).reshape(value.shape)), value


def spread(f, kind):
    """f(X, b), for rows of X that lie on two devices."""
    if kind == "pmap":
        mapped = jax.pmap(f, axis_name="p", in_axes=(0, None))

        def by_pmap(X, b):
            (_, value), (dX, db) = mapped(X.reshape(2, ROWS // 2, N), b)
            return (None, value[0]), (dX.reshape(X.shape), db[0])

        return by_pmap
    axis = jax.sharding.AxisType.Auto
    mesh, whole = jax.make_mesh((2,), ("p",), axis_types=(axis,)), P()
    outside = ((whole, whole), (P("p"), whole))
    return jax.jit(
        jax.shard_map(
            f,
            mesh=mesh,
            in_specs=(P("p"), whole),
            out_specs=outside,
            check_vma=kind == "typed",
        )
    )


def main(calls):
    rng, found = np.random.default_rng(0), {}
    X = jnp.asarray(rng.normal(size=(ROWS, N)) / np.sqrt(ROWS))
    b = jnp.asarray(rng.normal(size=N))
    for call in calls:
        one, many = (
            jax.value_and_grad(
                functools.partial(loss, call, is_spread), argnums=(0, 1), has_aux=True
            )
            for is_spread in (False, True)
        )
        (_, expected), slopes = jax.jit(one)(X, b)
        for kind in ("typed", "untyped", "pmap"):
            (_, value), own = spread(many, kind)(X, b)
            pairs = [(value, expected), *zip(own, slopes)]
            found[f"{call} {kind}"] = max(float(jnp.max(jnp.abs(x - y))) for x, y in pairs)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    share_contexts()
    jax.config.update("jax_enable_x64", True)
    main(sys.argv[1:] or list(CALLS))
