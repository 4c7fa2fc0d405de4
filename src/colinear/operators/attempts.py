"""A^-1 applied by the first of several iterations that does not fail."""

from __future__ import annotations

import math
from typing import ClassVar

from ..backends import Array, namespace_of
from ..info import Info, Status, failed, report, total
from ..properties import POSITIVE_SEMIDEFINITE
from .base import LinearOperator
from .context import Context
from .iterative import Iterated
from .memo import memo

# The failures of a method after which another may do better.
_WRONG_KIND = (Status.NOT_POSITIVE_DEFINITE, Status.BREAKDOWN)
_SLOW = (Status.STAGNATION, Status.MAX_ITERATIONS)
_HOPEFUL = {"CG": _WRONG_KIND, "MINRES": _WRONG_KIND, "GMRES": (*_WRONG_KIND, *_SLOW), "BiCGSTAB": (*_WRONG_KIND, *_SLOW)}


class Attempts(LinearOperator):
    """The inverse of A by one of several iterations: the next is tried where one fails, and what is reported says so."""

    attempts: tuple[Iterated, ...]

    _product_is_a_run: ClassVar[bool] = True

    @property
    def shape(self) -> tuple[int, ...]:
        return self.attempts[0].shape

    @memo
    def _context(self) -> Context:
        return self.attempts[0]._context

    def _infer(self) -> int:
        return self.attempts[0].properties

    def _transpose(self) -> LinearOperator:
        return Attempts._of(tuple(each.T for each in self.attempts))

    def _adjoint(self) -> LinearOperator:
        return Attempts._of(tuple(each.H for each in self.attempts))

    def _conj(self) -> LinearOperator:
        return Attempts._of(tuple(each.conj() for each in self.attempts))

    def _matmat(self, X: Array) -> Array:
        return self.solve(X, vector=False)

    def _matvec(self, x: Array) -> Array:
        return self.solve(x[:, None], vector=True)[..., 0]

    def solve(self, B: Array, vector: bool) -> Array:
        """A^-1 B; reports how it went."""
        X, info = self.run(B, vector)
        report(info)
        return X

    def run(self, B: Array, vector: bool) -> tuple[Array, Info]:
        """A^-1 B by the first iteration that does not fail, else by the one that came closest."""
        found: list[tuple[Array, Info]] = []
        for each in self.attempts:
            found.append(each.run(B, vector))
            info = found[-1][1]
            if failed(info._status) is not True or info.status not in _HOPEFUL.get(info.method, ()):
                break  # it worked, nobody can know yet, or the next would do no better
        infos = [info for _, info in found]
        if len(found) == 1:
            return found[0]
        words = [f"{info.method} failed ({info.status.name})" for info in infos if info.failed]
        best, info = found[-1] if not infos[-1].failed else min(found, key=lambda each: _largest(each[1].residual))
        message = "; ".join([*words, f"{info.method} gave the answer"])
        # That CG was tried on what nobody called definite is no promise broken.
        guessed = infos[0].method == "CG" and not self.properties & POSITIVE_SEMIDEFINITE and len(infos) == 2
        status = info.status if info.failed or guessed else Status.FELL_BACK
        counts = {"iterations": total(i.iterations for i in infos), "matvecs": total(i.matvecs for i in infos)}
        return best, info.replace(status=status, message=message, **counts)

    @property
    def _flops(self) -> float:
        return self.attempts[0].flops


def _largest(residual: Array) -> float:
    values = namespace_of(residual).to_numpy(residual)
    worst = float(values.max(initial=0))
    return worst if math.isfinite(worst) else math.inf
