"""What a machine does in a second, by which work of unlike kinds is compared, and how much memory it
has: a built-in table, or what a calibration measured and left in the user's cache folder.

A calibration takes two seconds at most. `colinear calibrate` runs it, and a call for which the table
forecasts `LONG_CALL_S` seconds or more by any way, once for each machine, framework and device; never
an import, a program that is traced, or a quick call. With COLINEAR_RATES=builtin nothing is measured
or read: every machine decides alike.
"""

from __future__ import annotations

import datetime
import functools
import json
import math
import os
import platform
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from . import backends

VERSION = 1  # of the file: what another one has written is not read
LONG_CALL_S = 30.0  # seconds, beside which those of a calibration do not count
CALIBRATION_S = 2.0  # seconds
CUBE_S = 6.25  # seconds of n^3 flops, up to which a matrix of n rows is formed as a last resort
SHARE_TO_FORM = 1 / 16  # of the memory, that a matrix may take that is made unasked
SHARE_TO_STORE = 1 / 8  # of a device's, that a kernel's may for the time of an iteration
SHARE_OF_BLOCK = 1 / 64  # of a device's, that a block of a computation may take
SHARE_OF_FREE = 3 / 4  # of what is free on a device, that one matrix may take at most
FREE_FOR_S = 1.0  # seconds for which that is not read again
HOST_BLOCK = 2.0**27  # bytes of one on the host, whose memory is slower than its caches
DEVICE_BLOCK = 2.0**31  # and on a device of which nothing is to be known
OUT_OF_CORE = 2.0**24  # bytes that are made unasked of what is not in memory
UNLIKELY = 50.0  # the ratio to the built-in rate from which a measurement was disturbed
SMALL_ROWS = 150.0  # rows of a matrix that LAPACK factors at half its speed


# flops a second, up to `elimination`, and seconds
MEANINGS = {
    "dense": "factoring a large matrix",
    "product": "a dense matrix times a vector, which waits for memory",
    "vector": "sums and inner products of vectors",
    "sparse": "a sparse matrix times a vector",
    "fourier": "fast transforms",
    "elimination": "sparse elimination, on the host",
    "entry": "to order, find and store an entry of sparse factors",
    "step": "a step of an iteration, beside its arithmetic",
    "call": "a function of this library, beside its arithmetic",
}


class Rates(NamedTuple):
    """What one framework does on one device, as `MEANINGS` says."""

    dense: float
    product: float
    vector: float
    sparse: float
    fourier: float
    elimination: float
    entry: float
    step: float
    call: float
    date: str = ""  # of the calibration
    device: str = ""  # whose built-in figures these are, if it is in the table

    def factor(self, flops: float, n: float) -> float:
        """The seconds of a dense factorisation of n rows that takes so many flops: of a small one
        most are not spent on arithmetic."""
        return flops / self.dense * (1 + (SMALL_ROWS / max(n, 1.0)) ** 2)

    @property
    def origin(self) -> str:
        """Where the figures come from, in words."""
        if self.date:
            return f"times by the rates of this machine, calibrated on {self.date}"
        of = f" of an {self.device}" if self.device else ""
        return f"times by built-in rates{of}; `colinear calibrate` measures this machine"


_HOST = Rates(20e9, 5e9, 5e9, 2.5e9, 5e9, 5e9, 1e-7, 30e-6, 20e-6)
BUILT_IN = {
    "numpy": _HOST,
    "torch": _HOST,
    "jax": _HOST._replace(sparse=1e9),
    # a step is some ten launches
    "device": Rates(2e12, 2e11, 2e11, 1e11, 5e11, 5e9, 1e-7, 100e-6, 200e-6),
}
# By a part of the device's name: measured on an H200 (benchmarks/README.md), scaled by the bandwidth of
# the others. The steps of an iteration are replayed, which takes some twenty launches without Python.
DEVICES = {
    name: Rates(
        dense=1e13 * compute,
        product=1e12 * memory,
        vector=6e11 * memory,
        sparse=4e11 * memory,
        fourier=2e12 * memory,
        elimination=5e9,
        entry=1e-7,
        step=40e-6,
        call=150e-6,
        device=name,
    )
    for name, compute, memory in (("H200", 1.0, 1.0), ("H100", 1.0, 0.7), ("A100", 0.4, 0.4))
}


class Machine(NamedTuple):
    """What is known of the place where an operator lives."""

    rates: Rates
    memory: float  # bytes, infinity where they are not known
    shared_memory: float  # the same for choices: not known where every machine is to decide alike


def rates_of(A: Any) -> Rates:
    """The rates of the framework and device of an operator: those of a calibration, if there was
    one."""
    return _machine(A).rates


def memory_of(A: Any) -> float:
    """Bytes of the machine, or of the device where A is; infinity where that is not known."""
    return _machine(A).memory


def free_memory_of(A: Any) -> float:
    """Bytes that are free on the device where A is, as they were within the last second; infinity
    for the host, where they are not known, and where every machine is to decide alike."""
    place = _place(A)
    if place[1] is None or _is_fixed() or backends.get(place[0]).is_compiling():
        return math.inf
    now = time.monotonic()
    read, free = _FREE.get(place, (-math.inf, math.inf))
    if now > read + FREE_FOR_S:
        free = _memory(*place, free=True)
        _FREE[place] = now, free
    return free


def memory_in_words(A: Any) -> str:
    """What is free of the memory of the device where A is; empty where that does not count."""
    free, all_of_it = free_memory_of(A), memory_of(A)
    if not free < all_of_it < math.inf:
        return ""
    return f"{free / 2**30:.3g} of {all_of_it / 2**30:.3g} GiB are free on the device"


def share_of_memory(A: Any, fraction: float, otherwise: float) -> float:
    """Bytes: this fraction of the memory of the machine, or of the device where A is, and there no
    more than most of what is free; `otherwise` where they are not known. Little for what lies in
    files: there it is to stay."""
    memory = _machine(A).shared_memory
    share = fraction * memory if memory < math.inf else otherwise
    share = min(share, SHARE_OF_FREE * free_memory_of(A))
    is_numpy = getattr(getattr(A, "_context", None), "backend", None) == "numpy"
    return min(share, OUT_OF_CORE) if is_numpy and A._is_out_of_core else share


def memory_to_form(A: Any) -> float:
    """Bytes that a matrix may take that is made unasked: for a factorisation of A, or an iteration
    with it."""
    return share_of_memory(A, SHARE_TO_FORM, 2.0**30)


def memory_to_store(A: Any) -> float:
    """Bytes that a matrix may take which is stored for the time of an iteration: on a device, of
    what is free there too."""
    if _place(A)[1] is None or _is_fixed():
        return memory_to_form(A)
    return min(SHARE_TO_STORE * memory_of(A), free_memory_of(A) / 2)


def memory_of_block(A: Any) -> float:
    """Bytes that a block of a computation may take where A is."""
    on_host = _place(A)[1] is None
    return HOST_BLOCK if on_host else share_of_memory(A, SHARE_OF_BLOCK, DEVICE_BLOCK)


def rows_in_memory(A: Any, fraction: float, otherwise: float) -> float:
    """The rows of a square matrix that takes this fraction of the memory where A is, `otherwise`
    where that is not known; and whose n^3 flops take `CUBE_S` seconds at most."""
    size = max(4, getattr(getattr(A, "dtype", None), "itemsize", 8))
    most = math.sqrt(share_of_memory(A, fraction, size * otherwise**2) / size)
    return min(most, round((CUBE_S * rates_of(A).dense) ** (1 / 3)))


def calibrate_once(A: Any) -> bool:
    """Measure the rates where A is, unless that was tried or is forbidden, or A is traced; whether
    there are new ones."""
    place = _place(A)
    if _is_fixed() or rates_of(A).date or place in _TRIED or any(map(A.xp.is_traced, A.arrays())):
        return False
    _TRIED.add(place)
    try:
        calibrate(*place)
    except Exception:  # whatever it is, the call that it was made for does not depend on it
        return False
    return True


def calibrate(backend: str = "numpy", device: Any = None) -> Rates:
    """Measure what a framework does on a device, the host if there is none, and keep it for this
    process and later ones."""
    xp = backends.get(backend)
    device = xp.device_of(xp.to_device(xp.asarray([0.0]), device or "cpu"))
    # in a thread of its own, where no call is under way that would hear of its iterations
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(_measure, xp, device).result()._asdict()
    device = _beside_host(device)
    usual, key = _built_in(backend, device)._asdict(), _key(backend, device)
    for name in MEANINGS:
        if not usual[name] / UNLIKELY < found[name] < usual[name] * UNLIKELY:
            found[name] = usual[name]
    of_today = {"date": datetime.date.today().isoformat(), "device": ""}
    rates = _MEASURED[key] = Rates(**found | of_today)
    _store(key, rates)
    _KNOWN.clear()
    return rates


# --------------------------------------------------------------------------------------------------

_KNOWN: dict[tuple[str, Any], Machine] = {}  # which torch.compile can look up
_FREE: dict[tuple[str, Any], tuple[float, float]] = {}  # when it was read, and what was free
_MEASURED: dict[str, Rates] = {}  # in this process, which may not be able to write them
_TRIED: set[tuple[str, Any]] = set()  # where a call has calibrated, or could not


def _is_fixed() -> bool:
    return os.environ.get("COLINEAR_RATES", "") == "builtin"


def _place(A: Any) -> tuple[str, Any]:
    """The framework and device of an operator; None for the host."""
    context = getattr(A, "_context", None)
    backend, device = (context.backend, context.device) if context else (None, None)
    return backend or "numpy", _beside_host(device)


def _beside_host(device: Any) -> Any:
    """The device, None for the host."""
    shown = str(getattr(device, "devices", device)).lower()  # a mesh shows its devices
    return None if device is None or "cpu" in shown else device


def _machine(A: Any) -> Machine:
    place = _place(A)
    found = _KNOWN.get(place)
    if found is not None:
        return found
    if backends.get(place[0]).is_compiling():  # torch, which can read no file then
        return Machine(_built_in(*place), math.inf, math.inf)
    memory = _memory(*place)
    found = Machine(_rates(*place), memory, math.inf if _is_fixed() else memory)
    _KNOWN[place] = found
    return found


def _rates(backend: str, device: Any) -> Rates:
    if _is_fixed():
        return _built_in(backend, device)
    key = _key(backend, device)
    return _MEASURED.get(key) or _stored().get(key) or _built_in(backend, device)


def _built_in(backend: str, device: Any) -> Rates:
    """The figures of the table: those of the device where it is known by its name, unless every
    machine is to decide alike."""
    if device is None or _is_fixed():
        return BUILT_IN[backend if device is None else "device"]
    try:
        name = backends.get(backend).device_name(device)
    except (AttributeError, AssertionError, RuntimeError, ValueError):
        name = ""
    known = (rates for part, rates in DEVICES.items() if part in name)
    return next(known, BUILT_IN["device"])


def _memory(backend: str, device: Any, free: bool = False) -> float:
    """Bytes of the device, or what is free of them; or those of the machine, and what the system lets
    this process have of it."""
    try:
        if device is not None:
            return backends.get(backend).device_memory(device, free)
        installed = float(os.sysconf("SC_PHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, RuntimeError, ValueError):
        return math.inf
    try:
        return min(installed, float(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # there is none, or it is "max"
        return installed


# The file, which several processes may write: one whole after the other, and the last one stays.


def cache_file() -> Path:
    """Where calibrations are kept."""
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "colinear" / "rates.json"


def _key(backend: str, device: Any) -> str:
    threads = os.environ.get("OMP_NUM_THREADS", os.cpu_count())
    return f"{platform.node()} {platform.machine()} {threads} {backend} {device or 'cpu'}"


def is_kept(rates: Rates) -> bool:
    """Whether later processes will find these."""
    return rates in _stored().values()


def _stored() -> dict[str, Rates]:
    """What the file holds; nothing where there is none that this version has written."""
    try:
        stored = json.loads(cache_file().read_text())
        found = {key: Rates(**value) for key, value in stored["rates"].items()}
        figures = [float(x) for rates in found.values() for x in rates[: len(MEANINGS)]]
        is_sound = stored["version"] == VERSION and all(0 < x < math.inf for x in figures)
        return found if is_sound else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError):
        return {}


def _store(key: str, rates: Rates) -> None:
    stored = {name: found._asdict() for name, found in (_stored() | {key: rates}).items()}
    text = json.dumps({"version": VERSION, "rates": stored}, indent=1)
    try:
        path = cache_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(text)
        os.replace(file.name, path)
    except (OSError, RuntimeError):
        pass  # a folder that cannot be written to: this process knows them


# --------------------------------------------------------------------------------------------------


def _measure(xp: Any, device: Any) -> Rates:
    """The rates of a framework on a device, from the least time of a few calls of each kind."""
    from scipy import sparse

    import colinear as co

    beside = _beside_host(device)
    known, host = _rates(xp.name, beside), _rates("numpy", None)
    rng = np.random.default_rng(0)
    place = functools.partial(xp.asarray, device=device)
    # that of this thread stands still while others have the processor: good where it does the work
    is_here = beside is None and not xp.is_functional
    clock = time.thread_time if is_here else time.perf_counter
    least = functools.partial(_least_seconds, xp, clock)

    def rate(A: Any) -> float:
        v = place(rng.standard_normal(A.shape[-1]))
        return float(A.flops) / least(lambda: A @ v)

    n, m, side, steps = 600 if beside is None else 4000, 1500 if beside is None else 8000, 100, 40
    A = place(np.eye(n) + 1 / n)
    T = sparse.diags_array([-1.0, 2.1, -1.0], offsets=[-1, 0, 1], shape=(side, side))
    uneven = sparse.diags_array(1 + rng.random(side**2))  # else it is inverted as a sum of lines
    grid = sparse.csr_array(uneven @ sparse.kronsum(T, T) @ uneven)
    x, y = (place(rng.standard_normal(100_000)) for _ in range(2))
    D, b = co.Diagonal(x[:3] ** 2 + 1), y[:9]
    small = co.Kronecker(D.to_dense(), D), co.BlockDiag(D, D.to_dense(), D)
    calls = sum(len(co.explain(co.solve, A, b).rules) for A in small)
    call = math.fsum(least(functools.partial(co.solve, A, b)) for A in small) / calls
    step = known.step
    if not xp.is_functional:  # of which loops are compiled, which takes longer than may be
        long = co.opaque(co.PSD(co.Diagonal(place(np.linspace(1.0, 100.0, 100)))))
        method = co.CG(tol=1e-15, max_iters=steps)
        step = least(lambda: co.solve(long, x[:100], method, on_failure="ignore")) / steps
    vectors = 2 * least(lambda: xp.vecdot(x, y)) + 3 * least(lambda: x + y)  # those of a step of CG
    forecast = co.explain(co.inv, co.Sparse(grid)).cost.seconds  # of elimination, by the host
    dearer = least(lambda: co.inv(co.Sparse(grid))) / forecast
    return Rates(
        dense=known.dense * known.factor(n**3 / 3, n) / least(lambda: xp.cholesky(A)),
        product=rate(co.Dense(place(rng.standard_normal((m, m))))),
        vector=10 * len(x) / vectors,
        sparse=rate(co.Sparse(grid).to(xp.name, device=device)),
        fourier=rate(co.Circulant(x)),
        elimination=host.elimination / dearer,
        entry=host.entry * dearer,
        step=step,
        call=call,
    )


def _least_seconds(xp: Any, clock: Callable[[], float], work: Callable[[], Any]) -> float:
    """The least time of a call, among those that fit into a part of a calibration; of two at least,
    the first of which does not count."""
    least, count, end = math.inf, 0, time.perf_counter() + CALIBRATION_S / 16
    while count < 2 or time.perf_counter() < end:
        begin = clock()
        done = work()
        if backends.namespace_of(done) is xp:
            xp.synchronize(done)
        count += 1
        least = min(least, clock() - begin) if count > 1 else least
    return max(least, 1e-9)  # of a clock that stands still between its ticks
