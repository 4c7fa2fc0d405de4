"""One case of the fuzzer: draw a tree, a function and a method from a seed, ask, and compare."""

from __future__ import annotations

import contextlib
import signal
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from fuzz_questions import QUESTIONS, SHIFT, Question, fits, optimality, residual_of_solve
from fuzz_trees import Tree, grow

import colinear as co

SLOW_SECONDS = 60  # after which a case counts as a hang
FLAGS = (co.ConvergenceWarning, co.ApproximationWarning, co.DerivativeWarning)
LARGEST_EXPONENT = 300  # of which exp, and its square, is a number
HARMLESS_CONDITION = 1e3  # a flagged answer of a problem this tame is a false alarm


@dataclass(frozen=True)
class Outcome:
    """How a case ended. `kind` is "right", "flagged", "refused" or "unfit", or one of the findings
    "silent", "crash", "shape", "dtype", "gradient", "alarm" and "hang"."""

    kind: str
    case: str = ""
    detail: str = ""

    @property
    def is_finding(self) -> bool:
        return self.kind in ("silent", "crash", "shape", "dtype", "gradient", "alarm", "hang")


def run_case(seed: int, number: int, backend: str) -> Outcome:
    """Draw a case and try it."""
    random = np.random.default_rng([seed, number])
    dtype = str(
        random.choice(["float64", "complex128", "float32", "complex64"], p=[0.5, 0.25, 0.15, 0.1])
    )
    batch = (2,) if random.random() < 0.25 else ()
    depth = int(random.choice([0, 1, 2, 3], p=[0.15, 0.4, 0.3, 0.15]))
    question = QUESTIONS[random.integers(len(QUESTIONS))]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = grow(random, dtype, batch, depth, square=question.is_square or random.random() < 0.5)
        M = tree.matrix(tree.arrays)
        eps = float(np.finfo(dtype).eps)
        if not fits(question, M, tree, eps):
            return Outcome("unfit")
        method = _draw_method(random, question, tree)
        b = np.cos(np.arange(M.shape[-1] if question.name == "multiply" else M.shape[-2])).astype(
            dtype
        )
        gradient = (
            backend != "numpy" and question.is_smooth and eps < 1e-10 and random.random() < 0.5
        )
        named = type(method).__name__ if method is not None else "Auto"
        case = f"{question.name} by {named} of {tree.name}, {dtype}, shape {M.shape}, {backend}"
        with _bounded():
            try:
                if gradient:
                    return _compare_gradients(random, question, tree, b, method, backend, case)
                return _compare(random, question, tree, M, b, method, backend, eps, case)
            except co.ColinearError as error:
                return Outcome("refused", case, f"{type(error).__name__}: {error}")
            except _TooSlow:
                return Outcome("hang", case)
            except Exception:
                return Outcome("crash", case, traceback.format_exc(limit=-4))


def _draw_method(random: np.random.Generator, question: Question, tree: Tree) -> Any:
    known = {"": True, "hermitian": tree.is_hermitian, "positive": tree.is_positive}
    named = [make for needs, make in question.methods if known[needs]]
    if not named or (random.random() < 0.6 and not question.is_about_methods):
        return None
    return named[random.integers(len(named))]()


# ---------------------------------------------------------------------------------------------- values


def _compare(
    random: np.random.Generator, question: Question, tree: Tree, M: np.ndarray, b: np.ndarray, method: Any,
    backend: str, eps: float, case: str,
) -> Outcome:  # fmt: skip
    xp = co.backends.get(backend)
    A = tree.operator([xp.asarray(a) for a in tree.arrays])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x = question.ask(A, xp.asarray(b), method)
    flags = [str(w.message) for w in caught if issubclass(w.category, FLAGS)]
    x = tuple(map(_host, x)) if isinstance(x, tuple) else _host(x)
    wide = b.astype(np.complex128 if np.iscomplexobj(b) else np.float64)
    answer = question.answer
    nearby = [_perturb(random, tree, M, eps) for _ in range(2)]
    if flags:
        is_tame = (
            eps < 1e-10
            and _is_tame(question, tree, M)
            and (answer is None or bool(np.isfinite(answer(M, wide)).all()))
        )
        return Outcome("alarm" if is_tame else "flagged", case, "; ".join(flags))
    judge = question.judge
    if getattr(method, "is_iterative", False):  # whose tolerance is that of a residual
        judge = {"inv @ b": residual_of_solve, "lstsq": optimality}.get(question.name, judge)
    if judge is not None:
        error = judge(M, wide, x)
        blur = max(tree.size, 1e-300) / max(float(np.abs(M).max(initial=0)), 1e-300) * 1e3 * eps
        if judge is residual_of_solve:
            blur *= max(1.0, np.abs(x).max() * np.abs(M).max() / np.abs(b).max())
        allowed = 3 * np.sqrt(eps) + blur
        return (
            Outcome("right", case)
            if error <= allowed
            else Outcome("silent", case, f"error {error:.2g}")
        )
    assert answer is not None
    wanted = answer(M, wide)
    if np.shape(x) != np.shape(wanted):
        return Outcome("shape", case, f"{np.shape(x)} instead of {np.shape(wanted)}")
    if np.asarray(x).dtype.kind in "fc" and np.finfo(np.asarray(x).dtype).eps != eps:
        return Outcome("dtype", case, str(np.asarray(x).dtype))
    if not np.size(wanted):
        return Outcome("right", case)
    scale = float(np.abs(wanted).max())
    if scale > np.finfo(b.dtype).max or 0 < scale < np.finfo(b.dtype).tiny:
        return Outcome("unfit", case)  # an overflow or underflow of this dtype
    change = max(float(np.abs(answer(near, wide) - wanted).max()) for near in nearby)
    if not (np.isfinite(scale) and np.isfinite(change)) or change > 1e-2 * scale:
        return Outcome("unfit", case)  # not even the reference knows
    error = float(np.abs(x - wanted).max())
    allowed = 20 * change + 10 * np.sqrt(eps) * (
        scale + (1 if question.name in ("logdet", "solve_and_logdet") else 0)
    )
    if error <= allowed:
        return Outcome("right", case)
    return Outcome(
        "silent", case, f"error {error / (scale or 1):.2g}, allowed {allowed / (scale or 1):.2g}"
    )


def _perturb(random: np.random.Generator, tree: Tree, M: np.ndarray, eps: float) -> np.ndarray:
    """Return a matrix that rounding errors might make of M: real, Hermitian or positive as it is."""
    E = random.standard_normal(M.shape)
    if np.iscomplexobj(M):
        E = E + 1j * random.standard_normal(M.shape)
    if tree.is_hermitian:
        E = (E + E.mT.conj()) / 2
    return M + 10 * eps * max(tree.size, float(np.abs(M).max(initial=0))) * E


def _is_tame(question: Question, tree: Tree, M: np.ndarray) -> bool:
    """Whether a problem is so well-conditioned that its answer should not be flagged."""
    if not M.size or M.shape[-1] != M.shape[-2]:
        return False
    if question.name == "exp" and tree.size > LARGEST_EXPONENT:
        return False  # exp of a part may overflow where that of the whole does not
    s = np.linalg.svd(M, compute_uv=False)
    # what is inverted at a shift is the matrix less that: a small one is lost in its roundings
    size = max(float(s.max()), tree.size, SHIFT if "shift" in question.name else 0.0)
    if not float(s.min()) * HARMLESS_CONDITION > size:
        return False
    vectors = np.linalg.eig(M)[1]
    return bool(np.linalg.cond(vectors).max() < HARMLESS_CONDITION)


# ---------------------------------------------------------------------------------------------- gradients


def _compare_gradients(
    random: np.random.Generator,
    question: Question,
    tree: Tree,
    b: np.ndarray,
    method: Any,
    backend: str,
    case: str,
) -> Outcome:
    """Compare the derivative of Re<W, f(A)> along a direction with central differences of the reference."""
    case = f"gradient of {case}"
    answer = question.answer
    assert answer is not None
    wanted = answer(tree.matrix(tree.arrays), b)
    if not np.size(wanted) or not np.isfinite(wanted).all():
        return Outcome("unfit", case)
    W = random.standard_normal(np.shape(wanted)) + 1j * random.standard_normal(np.shape(wanted))
    directions = [_direction(random, a) for a in tree.arrays]

    def moved(h: float) -> float:
        arrays = [a + h * d for a, d in zip(tree.arrays, directions)]
        return float(np.sum(W.conj() * answer(tree.matrix(arrays), b)).real)

    scale = min((float(np.abs(a).max()) for a in tree.arrays if a.size), default=1.0)
    if scale < 1e-3:
        return Outcome("unfit", case)  # a step that moves the others would be larger than these
    steps = [1e-5 * scale, 2e-5 * scale]
    slopes = [(moved(h) - moved(-h)) / (2 * h) for h in steps]
    blur = abs(slopes[0] - slopes[1])
    size = float(np.sum(np.abs(W) * np.abs(wanted)))
    if not np.isfinite(slopes).all() or blur > 1e-3 * (abs(slopes[0]) + 1e-3 * size / scale):
        return Outcome("unfit", case)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        slope = _DERIVATIVES[backend](question, tree, directions, W, b, method)
    flags = [str(w.message) for w in caught if issubclass(w.category, FLAGS)]
    noise = 1e-8 * float(np.sum(np.abs(W))) / scale  # of a slope that is zero
    allowed = 50 * blur + 1e-4 * abs(slopes[0]) + 1e-6 * size / scale + noise
    # zero but for rounding errors of its terms, which are products of n entries
    if question.name == "det":
        M = tree.matrix(tree.arrays)
        allowed += (
            1e-13
            * float(np.sum(np.abs(W) * np.linalg.norm(M, axis=(-2, -1)) ** M.shape[-1]))
            / scale
        )
    if abs(slope - slopes[0]) <= allowed:
        return Outcome("right", case)
    if flags:
        return Outcome("flagged", case, "; ".join(flags))
    return Outcome("gradient", case, f"{slope:.6g} instead of {slopes[0]:.6g}")


def _direction(random: np.random.Generator, a: np.ndarray) -> np.ndarray:
    d = random.standard_normal(a.shape)
    return d + 1j * random.standard_normal(a.shape) if np.iscomplexobj(a) else d


def _slope_in_torch(
    question: Question, tree: Tree, directions: Any, W: Any, b: Any, method: Any
) -> float:
    import torch

    leaves = [torch.tensor(a, requires_grad=True) for a in tree.arrays]
    x = question.ask(tree.operator(leaves), torch.tensor(b), method)
    loss = torch.sum(torch.tensor(W).conj() * x).real
    if not loss.requires_grad:
        return 0.0
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    pairs = zip(gradients, directions)
    return float(
        sum(np.sum(g.resolve_conj().numpy().conj() * d).real for g, d in pairs if g is not None)
    )


def _slope_in_jax(
    question: Question, tree: Tree, directions: Any, W: Any, b: Any, method: Any
) -> float:
    import jax
    import jax.numpy as jnp

    def loss(leaves: Any) -> Any:
        return jnp.sum(W.conj() * question.ask(tree.operator(leaves), jnp.asarray(b), method)).real

    gradients = jax.grad(loss)([jnp.asarray(a) for a in tree.arrays])
    return float(sum(np.sum(np.asarray(g) * d).real for g, d in zip(gradients, directions)))


_DERIVATIVES = {"torch": _slope_in_torch, "jax": _slope_in_jax}


# ---------------------------------------------------------------------------------------------- helpers


def _host(x: Any) -> np.ndarray:
    xp = co.backends.namespace_of(x)
    return np.asarray(x) if xp is None else np.asarray(xp.to_numpy(x))


class _TooSlow(BaseException):
    pass


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    """Interrupt a case that takes too long (what hangs inside LAPACK is stopped by `__main__`)."""

    def stop(*_: Any) -> None:
        raise _TooSlow

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SLOW_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
