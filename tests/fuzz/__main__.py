"""`make fuzz`: try random cases for some minutes, and print what is wrong with the command that repeats it."""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false --xla_backend_optimization_level=0"
)

import argparse
import collections
import faulthandler
import sys
import time

from fuzz_cases import SLOW_SECONDS, run_case

JAX_CASES_BETWEEN_CLEARS = 500  # what JAX compiled for them would fill the memory


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=1.0, help="for each backend")
    parser.add_argument("--backend", choices=["numpy", "torch", "jax"], action="append")
    parser.add_argument("--case", type=int, help="try this one case only")
    options = parser.parse_args()
    found = 0
    for backend in options.backend or ["numpy", "torch", "jax"]:
        ends: collections.Counter[str] = collections.Counter()
        stop, number = time.monotonic() + 60 * options.minutes, options.case or 0
        while time.monotonic() < stop:
            faulthandler.dump_traceback_later(2 * SLOW_SECONDS, exit=True)
            outcome = run_case(options.seed, number, backend)
            ends[outcome.kind] += 1
            if outcome.is_finding or options.case is not None:
                found += outcome.is_finding
                print(f"{outcome.kind}: {outcome.case}\n    {outcome.detail}")
                print(
                    f"    python tests/fuzz --seed {options.seed} --case {number} --backend {backend}",
                    flush=True,
                )
            if options.case is not None:
                break
            number += 1
            if backend == "jax" and number % JAX_CASES_BETWEEN_CLEARS == 0:
                sys.modules["jax"].clear_caches()
        print(
            f"{backend}: {sum(ends.values())} cases: "
            + ", ".join(f"{n} {kind}" for kind, n in ends.most_common())
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
