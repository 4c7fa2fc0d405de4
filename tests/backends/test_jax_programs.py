"""Compiled programs of JAX: they call the host only where something failed, so they run on JAX's fast path, are exported, and are kept on disk."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import colinear as co

jax = pytest.importorskip("jax")
jnp = jax.numpy


def tridiagonal(n: int) -> scipy.sparse.csr_array:
    return scipy.sparse.diags_array(
        [-np.ones(n - 1), 3 * np.ones(n), -np.ones(n - 1)], offsets=[-1, 0, 1]
    ).tocsr()


# A system and the method that is named; the last argument makes it singular, or too hard for the iterations that are allowed.
SYSTEMS: dict[str, Any] = {
    "diagonal": (lambda t: co.Diagonal(t * jnp.arange(6.0) + (1 - t)), None),
    "kronecker": (
        lambda t: co.Kronecker(jnp.diag(jnp.array([1.0, 1 - t])), jnp.eye(3) + (1 - t)),
        None,
    ),
    "woodbury": (lambda t: co.Diagonal(jnp.ones(6)) - t * co.LowRank(jnp.eye(6, 2)), None),
    "dense": (lambda t: co.Dense(jnp.diag(jnp.arange(6.0) + (1 - t))), None),
    "cg": (
        lambda t: co.PSD(co.Sparse(tridiagonal(6)).to(backend="jax") - 3 * t * co.Identity(6)),
        co.CG(max_iters=20),
    ),
    "gmres": (lambda t: co.Sparse(tridiagonal(6)).to(backend="jax") * (1 - t), co.GMRES()),
}


def program(name: str) -> Any:
    make, method = SYSTEMS[name]
    return lambda t: co.solve(make(t), jnp.arange(1.0, 7.0), method)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_compiled_solve_has_no_callback_and_warns_of_failures(name: str) -> None:
    f = jax.jit(program(name))
    for each in (f, jax.jit(jax.grad(lambda t: program(name)(t).sum()))):
        runner = each.lower(0.0).compile()._executable.unsafe_call
        assert not runner.has_host_callbacks and not runner.has_unordered_effects
    jax.block_until_ready(f(0.0))  # a warning would be an error
    with pytest.warns(co.ConvergenceWarning, match="^solve.*: [A-Z_]+: "):
        jax.block_until_ready(f(1.0))


def test_an_inverse_that_is_applied_later_has_no_callback_and_warns() -> None:
    f = jax.jit(
        lambda b: co.inv(co.Sparse(tridiagonal(6)).to(backend="jax"), co.CG(max_iters=1)) @ b
    )
    runner = f.lower(jnp.ones(6)).compile()._executable.unsafe_call
    assert not runner.has_host_callbacks and not runner.has_unordered_effects
    with pytest.warns(co.ConvergenceWarning, match="CG: MAX_ITERATIONS"):
        jax.block_until_ready(f(jnp.arange(6.0)))


def test_a_batch_warns_once_and_only_where_something_failed() -> None:
    f = jax.jit(jax.vmap(program("woodbury")))
    jax.block_until_ready(f(jnp.zeros(3)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x = jax.block_until_ready(f(jnp.array([0.0, 1.0, 1.0])))
    assert len(caught) == 1
    np.testing.assert_allclose(x[0], np.arange(1, 7))


@pytest.mark.parametrize("name", ["kronecker", "cg"])
def test_compiled_solves_are_exported(name: str) -> None:
    f = jax.jit(program(name))
    exported = jax.export.export(f)(jnp.zeros(()))
    np.testing.assert_array_equal(exported.call(jnp.zeros(())), f(0.0))


def test_solves_run_without_compilation() -> None:
    with jax.disable_jit():
        x = program("kronecker")(0.0)
        with pytest.warns(co.ConvergenceWarning):
            jax.vmap(program("diagonal"))(jnp.ones(2))
    np.testing.assert_allclose(x, jax.jit(program("kronecker"))(0.0), rtol=1e-5)


CACHED = """
import jax, jax.numpy as jnp, warnings
import colinear as co
hits = []
jax.monitoring.register_event_listener(lambda event, **more: hits.append(event) if "cache_hits" in event else None)
f = jax.jit(lambda d: co.solve(co.Diagonal(d) + co.LowRank(jnp.eye(6, 2)), jnp.ones(6)))
jax.block_until_ready(f(jnp.ones(6)))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    jax.block_until_ready(f(jnp.zeros(6)))
print(len(hits), len(caught))
"""


def test_compiled_solves_are_kept_on_disk_and_warn_in_the_next_process(tmp_path: Any) -> None:
    settings = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    run = lambda: [
        int(word)
        for word in subprocess.run(
            [sys.executable, "-c", CACHED],
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
    ]
    run()
    hits, warned = run()
    assert hits >= 1 and warned == 1


@pytest.mark.parametrize("written", [False, True])
def test_functions_that_close_over_other_arrays_are_not_taken_for_one_another(
    written: bool,
) -> None:
    """Also where JAX writes arrays into its programs, whose text shows their shapes alone."""
    flag, xp = "jax_use_simplified_jaxpr_constants", co.backends.get("jax")
    if not hasattr(jax.config, flag):
        pytest.skip("this JAX has arrays beside its programs")
    array, before = np.arange(4.0), getattr(jax.config, flag)
    found: list[Any] = []

    def trace(scale: Any) -> Any:
        for each in (array, array, array + (array == 2)):
            f = lambda x, each=each: jax.jit(lambda x: scale * x + each)(x)
            found.append(xp.hoist(f, lambda: [(jnp.ones(4),)])[0])
        return scale

    jax.config.update(flag, written)
    try:
        jax.make_jaxpr(trace)(2.0)
    finally:
        jax.config.update(flag, before)
    assert found[0] != found[2]
    assert written or (found[0] == found[1] and hash(found[0]) == hash(found[1]))


STACKED = """
import jax, jax.numpy as jnp, colinear as co
K = jnp.stack([jnp.eye(100) + jnp.ones((100, 100)) / 200] * 50)
solve = jax.jit(jax.vmap(lambda K, b: co.solve(co.PSD(co.Dense(K)), b)))
for _ in range(20):
    x = jax.block_until_ready(solve(K, jnp.ones((50, 100))))
print(abs(x * 1.5 - 1).max() < 1e-9)
"""


def test_cholesky_and_lu_of_stacks_follow_one_another_on_two_cores() -> None:
    """XLA waits for ever where two stacks are factored at once, with as many threads as calls."""
    settings = {"NPROC": "2", "XLA_FLAGS": ""}
    command = [sys.executable, "-c", STACKED]
    environment = {**os.environ, **settings}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "True", done.stderr[-2000:]
