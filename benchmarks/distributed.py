"""What conjugate gradients cost over several processes, measured and predicted.

    python benchmarks/distributed.py                  # measured, on 1 and 2 processes
    python benchmarks/distributed.py --processes 1 2 4
    python benchmarks/distributed.py --predict        # the tables of docs/distributed.md

Weak scaling: each process has the same work, however many there are. The figures are seconds of
wall and of processor time for one iteration, the least of several runs, and what one iteration
sends, counted in the compiled program. The processor time in the process's own code (user) is
that of computing; gloo's threads wait for messages in the kernel (system).

Each process computes on one core. The thread of gloo that waits for the network goes to the cores
on which none computes, so there should be twice as many cores as processes. Where it has to share
a core it polls in the way of the very thread for which it waits, until the scheduler's slice of 3
ms is over. There only the processor times and the counts mean anything, and the last column: the
time of one process, over that time with the messages of a step added, each timed by itself
while nothing is computed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

MEGABYTES = 200  # of the dense matrix, for each process: 400 on two
GRID = 1000  # points along one side of the stencil's grid, for each process: GRID^2 rows
STEPS, RUNS = 20, 10


def measure(process: int, processes: int, port: str) -> None:
    """Measure in one of the processes; the first prints a line of JSON."""
    cores: list[int] = []
    if hasattr(os, "sched_setaffinity"):  # one core for each, also where there is but one process
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[process % len(cores)]})
    import jax
    import scipy.sparse as sp

    import colinear as co
    from colinear.backends.jax.mesh import from_local_rows, local_rows
    from colinear.distributed import shard

    jax.config.update("jax_enable_x64", True)
    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"localhost:{port}", processes, process)
    mesh = jax.make_mesh((processes,), ("x",))

    def dense() -> Any:
        """u v^T with 1, ..., 1000 on the diagonal: CG makes all of its steps."""
        n = int(math.sqrt(MEGABYTES * 1e6 / 8 * processes)) // processes * processes
        own, u = local_rows(mesh, "x", n), np.cos(np.arange(n))
        rows = u[own, None] * (u / n)
        here = np.arange(own.start, own.stop)
        rows[np.arange(len(rows)), here] += 1 + here * (1000 / n)
        return co.PSD(co.Dense(from_local_rows(rows, mesh, "x", n)))

    def stencil() -> Any:
        second = lambda k: sp.diags([-1.0, 2.0, -1.0], [-1, 0, 1], (k, k))
        return shard(co.PSD(co.Sparse(sp.kronsum(second(GRID), second(GRID * processes)))), mesh)

    found = {}
    for name, make in (("dense", dense), ("stencil", stencil)):
        A = make()
        b = shard(np.cos(np.arange(A.shape[0])), mesh)
        for kind in ("", ", single reduction"):
            method = co.CG(tol=1e-15, max_iters=STEPS, single_reduction=bool(kind))
            solve = lambda A, b, m=method: co.solve(A, b, m, on_failure="ignore", info=True)
            program = jax.jit(solve).lower(A, b).compile()
            info = jax.block_until_ready(program(A, b))[1]
            steps = int(np.max(np.asarray(info.iterations)))
            move_threads(set(cores[processes:]), waiting=True)
            wall, user, system = (t / steps for t in least_times(program, A, b))
            found[name + kind] = {
                "wall": wall,
                "user": user,
                "system": system,
                "sent": sent(program.as_text()),
                "rows": A.shape[0],
            }
        del A, b
    move_threads(set(cores))  # now that none computes
    for name, each in found.items():
        messages = step_messages(name, each["rows"])
        each["messages"] = sum(k * seconds_of(mesh, *size) for *size, k in messages)
    if process == 0:
        print(json.dumps(found))


def move_threads(cores: set[int], waiting: bool = False) -> None:
    """Let the threads of this process run on these cores; those alone that wait for the network, if
    there are any cores for them."""
    waits = {"232", "281", "22"}  # epoll_wait and epoll_pwait of x86-64, epoll_pwait of ARM
    for task in Path("/proc/self/task").glob("*") if cores else ():
        if not waiting or (task / "syscall").read_text().partition(" ")[0] in waits:
            os.sched_setaffinity(int(task.name), cores)


def least_times(f: Any, *arguments: Any) -> list[float]:
    """Seconds of wall, and of the processor in user's and in system's code, of a call: the least of
    several."""
    import jax

    times = []
    for _ in range(RUNS):
        start, busy = time.perf_counter(), processor_times()
        jax.block_until_ready(f(*arguments))
        wall = time.perf_counter() - start
        times.append((wall, *(now - then for now, then in zip(processor_times(), busy))))
    return [min(each) for each in zip(*times)]


def step_messages(name: str, n: int) -> list[tuple[str, int, int]]:
    """The messages of a step of CG: kind, numbers, how many."""
    sums = ("sum", 2, 1) if "single" in name else ("sum", 1, 2)
    return [("gather", n, 1) if "dense" in name else ("shift", GRID, 2), sums]


def seconds_of(mesh: Any, kind: str, numbers: int) -> float:
    """Seconds of one message by itself, among many in one program."""
    import jax

    from colinear.backends.jax.mesh import apply_by_rows, gather_rows, shift_rows
    from colinear.distributed import shard

    p, count = mesh.size, 100
    if p == 1:
        return 0.0
    send = {
        "sum": lambda x: jax.lax.psum(x, "x"),
        "gather": lambda x: gather_rows(x, "x")[: len(x)],
        "shift": lambda x: shift_rows(x, "x", 1),
    }[kind]
    loop = lambda cut, _: jax.lax.fori_loop(0, count, lambda i, x: 0.5 * x + send(x), cut[0])
    rows = numbers if kind == "gather" else numbers * p
    x = shard(np.zeros((rows // p * p, 1)), mesh)
    program = jax.jit(lambda x: apply_by_rows(loop, mesh, "x", (x,), None))
    jax.block_until_ready(program(x))
    return least_times(program, x)[0] / count


def processor_times() -> tuple[float, float]:
    """Seconds of the processor that this process has had, in its own code and in the kernel."""
    import resource  # not on Windows

    now = resource.getrusage(resource.RUSAGE_SELF)
    return now.ru_utime, now.ru_stime


def sent(program: str) -> dict[str, int]:
    """How often each kind of collective stands in a program: in the step of CG, and around it."""
    kinds = ("all-reduce", "all-gather", "collective-permute", "all-to-all")
    return {kind: len(re.findall(rf" {kind}(?:-start)?\(", program)) for kind in kinds}


def run(processes: int) -> dict[str, Any]:
    """The figures of so many processes."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "NPROC": "16", "COLINEAR_RATES": "builtin"}
    environment["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    source = str(Path(__file__).parent.parent / "src")
    environment["PYTHONPATH"] = os.pathsep.join([source, environment.get("PYTHONPATH", "")])
    command = [sys.executable, __file__, "--worker"]
    workers = [
        subprocess.Popen(
            [*command, str(i), str(processes), port], env=environment, stdout=subprocess.PIPE
        )
        for i in range(processes)
    ]
    told = [worker.communicate(timeout=1200)[0] for worker in workers]
    return json.loads(told[0].decode().splitlines()[-1])


# --------------------------------------------------------------------------------------------------
# The model of docs/distributed.md: a step takes flops / F, or bytes / M if that is longer, on each
# device; and to send takes latency * log2(p) for each collective and bytes / L.

F, M = 1e13, 2e12  # flops and bytes a second of one device
L, LATENCY = 5e10, 10e-6  # bytes a second of the network of one device, and seconds of a message


def predict(devices: int) -> dict[str, tuple[float, float, float]]:
    """Seconds of arithmetic, bandwidth and latency in one iteration of CG, for three problems."""
    hops, p = math.log2(devices), devices
    whole = 1 - 1 / p  # of what is gathered, what comes from elsewhere
    n, d = 1e6, 8  # a Gaussian process: n points in d dimensions, the kernel never stored
    gp = n * n * (3 * d + 4) / F / p, 8 * n * (d + 1) * whole / L, 3 * LATENCY * hops
    n = 1024.0**3  # a PDE: seven points on a cube, cut into slabs
    side = n ** (2 / 3)
    cells = 8 * 17 * n / M / p
    # thinner than a plane a slab would need more than its neighbours: then x is gathered
    halo = 2 * 8 * side if devices <= round(n ** (1 / 3)) else 8 * n * whole
    pde = cells, halo / L * (p > 1), (2 * hops + 2 * (p > 1)) * LATENCY
    m, n = 1e7, 1e4  # least squares: m rows of n numbers, X^T X v with whole vectors
    sums = 2 * 8 * n * whole / L
    regression = 2 * 4 * m * n / M / p, sums, LATENCY * hops
    return {"GP": gp, "PDE": pde, "regression": regression}


def print_predictions() -> None:
    """The tables of the docs."""
    for name in predict(1):
        print(f"\n{name}\n| devices | arithmetic | bandwidth | latency | efficiency |")
        print("| --- | --- | --- | --- | --- |")
        alone = sum(predict(1)[name])
        for p in (1, 4, 16, 64, 256, 1024, 4096):
            parts = predict(p)[name]
            times = " | ".join(f"{1e3 * t:.3g} ms" for t in parts)
            print(f"| {p} | {times} | {alone / p / sum(parts):.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--predict", action="store_true")
    parser.add_argument("--worker", nargs=3)
    options = parser.parse_args()
    if options.worker:
        return measure(int(options.worker[0]), int(options.worker[1]), options.worker[2])
    if options.predict:
        return print_predictions()
    first: dict[str, Any] = {}
    print(
        "| problem | processes | rows | ms wall | ms user | ms system | of one process: wall, user | "
        "sent | ms messages | of one process: derived |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for processes in options.processes:
        for name, found in run(processes).items():
            one = first.setdefault(name, found)
            ratios = (f"{one[key] / found[key]:.2f}" for key in ("wall", "user"))
            counts = ", ".join(f"{k} {v}" for k, v in found["sent"].items() if v)
            derived = one["wall"] / (one["wall"] + found["messages"])
            print(
                f"| {name} | {processes} | {found['rows']} | {1e3 * found['wall']:.1f} | "
                f"{1e3 * found['user']:.1f} | {1e3 * found['system']:.1f} | "
                f"{', '.join(ratios)} | {counts} | {1e3 * found['messages']:.2f} | {derived:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
