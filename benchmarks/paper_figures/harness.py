"""Races: several ways to one answer, each in a process of its own, taking turns.

A `Figure` has problems of growing size and runners. A runner is a function that takes a problem, converts the data to what its library
wants (not timed) and returns the work to be timed. Processes are forked, so they share the problem's arrays, and a runner that never ends,
runs out of memory or crashes harms nobody: it is shown as such. The problem judges each answer; one that misses is shown as a miss,
whatever its time.
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import importlib
import importlib.util
import math
import multiprocessing
import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

PROCESSES = multiprocessing.get_context("fork")


class Declined(Exception):
    """A runner that does not start: the matrix would not fit, the library has no such function, there is no such device."""


@dataclasses.dataclass(frozen=True)
class Runner:
    name: str
    kind: str  # "colinear", "dense", "iterative", "by hand", "peer"
    needs: tuple[str, ...]  # modules
    prepare: Callable[[Any], Callable[[], Any]]

    @property
    def compiles(self) -> bool:
        """Whether a first call compiles, so that its time says nothing."""
        return "jax" in self.needs

    @property
    def missing(self) -> list[str]:
        return [module for module in self.needs if importlib.util.find_spec(module) is None]


@dataclasses.dataclass
class Figure:
    """One panel. A problem has `size`, `label`, `bar` (the largest quality that is right) and `judge(answer)`, a dictionary with "quality"."""

    name: str
    title: str
    paper: str  # what the paper did there
    quality: str  # what is measured
    problems: Callable[[float], Iterable[Any]]  # of a scale, growing
    x: str = "size"  # of the picture: "size", or a key of the results
    y: str = "seconds"
    x_label: str = "size"
    clock: str = "cpu"  # or "wall", where a GPU works
    memory: bool = False  # whether the peak is measured
    by: str = "seconds"  # what the ratio is of; "quality" where all may take the same passes
    note: str = ""
    runners: list[Runner] = dataclasses.field(default_factory=list)

    def runner(
        self, name: str, kind: str = "peer", needs: Iterable[str] = ()
    ) -> Callable[[Callable], Callable]:
        """Adds a function of a problem as a runner."""

        def add(prepare: Callable) -> Callable:
            self.runners.append(Runner(name, kind, tuple(needs), prepare))
            return prepare

        return add


@dataclasses.dataclass(frozen=True)
class Limits:
    timeout: float = 60.0  # seconds for one call of a runner, and for its preparation; three times as many where a first call compiles
    seconds: float = 1.0  # that a runner may use for repeats, after the first call
    repeats: int = 5


def sizes(full: float, scale: float, least: float, count: int = 3) -> list[int]:
    """Geometrically growing, up to the paper's size times the scale."""
    most = max(least, full * scale)
    if most <= 1.2 * least:
        return [round(most)]
    return [round(least * (most / least) ** (i / (count - 1))) for i in range(count)]


def fits(size: float) -> None:
    """Declines to make something of `size` bytes that would take more than a quarter of the memory there is."""
    available = math.inf
    try:
        with open("/proc/meminfo") as file:
            available = next(
                1024.0 * int(line.split()[1]) for line in file if line.startswith("MemAvailable")
            )
    except OSError:
        pass
    if size > available / 4:
        raise Declined(f"a dense matrix of {size / 2**30:.1f} GB")


# ---------------------------------------------------------------------------------------------------- in the forked process


def _status(key: str) -> int:
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(key))


def _peak(work: Callable[[], Any]) -> int | None:
    """The most memory that `work()` takes beyond what is there before; None where the kernel does not say."""
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # resets the high-water mark
        before = _status("VmRSS")
        work()
        return max(0, _status("VmHWM") - before)
    except OSError:
        return None


def _timed(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    wall, cpu = time.perf_counter(), time.process_time()
    answer = work()
    return answer, {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def _compete(runner: Runner, problem: Any, connection: Any) -> None:
    warnings.simplefilter("ignore")  # what they warn of shows in the quality
    work: Callable[[], Any] = lambda: None
    parent = os.getppid()
    while True:
        while not connection.poll(1.0):
            if os.getppid() != parent:  # which was stopped
                return
        task = connection.recv()
        try:
            if task == "prepare":
                work = runner.prepare(problem)
                reply: dict[str, Any] = {}
            elif task == "first":
                answer, reply = _timed(work)
                reply |= problem.judge(answer)
                del answer
            elif task == "memory":
                reply = {"peak_bytes": _peak(work)}
            else:
                reply = _timed(work)[1]
            connection.send({"status": "ok"} | reply)
        except Declined as reason:
            connection.send({"status": "declined", "reason": str(reason)})
        except BaseException as reason:
            where = traceback.extract_tb(reason.__traceback__)[-1]
            text = " ".join(str(reason).split())
            text = text if len(text) < 160 else text[:157] + "..."
            place = f"{where.filename.rpartition('site-packages/')[2].rpartition('benchmarks/')[2]}:{where.lineno}"
            connection.send(
                {"status": "error", "reason": f"{type(reason).__name__}: {text} ({place})"}
            )


# ---------------------------------------------------------------------------------------------------- in the parent


class Contestant:
    """A runner at work on a problem in a process of its own."""

    def __init__(self, runner: Runner, problem: Any, limits: Limits):
        self.runner, self.limits = runner, limits
        self.result: dict[str, Any] = {
            "runner": runner.name,
            "kind": runner.kind,
            "size": problem.size,
            "label": problem.label,
        }
        self.walls: list[float] = []
        self.cpus: list[float] = []
        self.connection, theirs = PROCESSES.Pipe()
        self.process = PROCESSES.Process(
            target=_compete, args=(runner, problem, theirs), daemon=True
        )
        self.process.start()
        theirs.close()

    def ask(self, task: str) -> bool:
        """Whether the task was done; if not, the result says why and the process is gone."""
        try:
            self.connection.send(task)
            limit = self.limits.timeout * (3 if task == "first" and self.runner.compiles else 1)
            if self.answered_within(limit):
                reply = self.connection.recv()
            else:
                what = {"prepare": "its preparation", "first": "its first call"}.get(task, "a call")
                reply = {"status": "timeout", "reason": f"{what} took more than {limit:g} s"}
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self.process.join(1)
            reply = {"status": "error", "reason": f"the process died ({self.process.exitcode})"}
        if reply["status"] == "ok" and task in ("first", "again"):
            self.walls.append(reply.pop("wall"))
            self.cpus.append(reply.pop("cpu"))
        self.result |= reply
        if reply["status"] != "ok":
            self.close()
        return reply["status"] == "ok"

    def answered_within(self, limit: float) -> bool:
        """Seconds of the processor, since the machine may be shared; of the wall three times as many."""
        wall, cpu = time.monotonic(), self.cpu()
        while not self.connection.poll(0.2):
            if self.cpu() - cpu > limit or time.monotonic() - wall > 3 * limit:
                return False
        return True

    def cpu(self) -> float:
        try:
            with open(f"/proc/{self.process.pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except OSError:
            return 0.0

    def wants_more(self) -> bool:
        # a first call warms up, so it counts only where a second would take too long
        if len(self.cpus) == 1:
            return self.runner.compiles or self.cpus[0] < self.limits.timeout / 2
        return len(self.cpus) <= self.limits.repeats and sum(self.cpus[1:]) < self.limits.seconds

    def close(self) -> None:
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.connection.close()


def race(
    figure: Figure, scale: float, limits: Limits, say: Callable[[str], None] = print
) -> Iterator[dict[str, Any]]:
    """The results of all runners on all problems, as dictionaries."""
    out: dict[str, str] = {}  # runners that are out of the race, and why
    for runner in figure.runners:
        if runner.missing:
            out[runner.name] = "absent"
            yield {
                "runner": runner.name,
                "kind": runner.kind,
                "status": "absent",
                "reason": f"not installed: {', '.join(runner.missing)}",
            }
        for module in () if runner.missing else runner.needs:
            importlib.import_module(module)  # once, here: the forked processes have it
    for problem in figure.problems(scale):
        say(f"  {problem.label}")
        entrants = []
        for runner in figure.runners:
            if runner.name in out:
                if out[runner.name] != "absent":
                    skipped = {
                        "status": "skipped",
                        "reason": f"{out[runner.name]} at a smaller size",
                    }
                    yield {
                        "runner": runner.name,
                        "kind": runner.kind,
                        "size": problem.size,
                        "label": problem.label,
                    } | skipped
                continue
            entrant = Contestant(runner, problem, limits)
            entrants.append(entrant)
            _ = entrant.ask("prepare") and entrant.ask("first")
        while waiting := [
            entrant for entrant in entrants if entrant.process.is_alive() and entrant.wants_more()
        ]:
            for entrant in waiting:
                entrant.ask("again")
        for entrant in entrants:
            if entrant.process.is_alive() and figure.memory:
                entrant.ask("memory")
        for result in judged(
            [entrant.result | _times(entrant, figure.clock) for entrant in entrants],
            problem,
            figure.by,
        ):
            if result["status"] in ("timeout", "error"):
                out[result["runner"]] = {"timeout": "ran out of time", "error": "failed"}[
                    result["status"]
                ]
            yield result
        for entrant in entrants:
            entrant.close()


def _times(entrant: Contestant, clock: str) -> dict[str, Any]:
    if not entrant.walls or entrant.result["status"] != "ok":
        return {}
    walls, cpus = (entrant.walls[1:] or entrant.walls), (entrant.cpus[1:] or entrant.cpus)
    found = {"wall": min(walls), "cpu": min(cpus), "repeats": len(walls), "first": entrant.walls[0]}
    return found | {"seconds": found[clock]}


def judged(results: list[dict[str, Any]], problem: Any, by: str) -> list[dict[str, Any]]:
    """Answers that miss are marked; times (or errors) are set beside the best of a right answer that is not ours."""
    for result in results:
        if result["status"] == "ok" and not result["quality"] <= problem.bar:
            result |= {"status": "miss", "reason": f"{result['quality']:.1e} > {problem.bar:.0e}"}
    right = [r for r in results if r["status"] == "ok"]
    others = [r[by] for r in right if r["kind"] != "colinear"]
    for result in right:
        result["ratio"] = result[by] / min(others) if others else None
    return results
