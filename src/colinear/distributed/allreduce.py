"""Sums over processes: each holds its own term of an operator, and vectors whole."""

from __future__ import annotations

from typing import Any

from ..backends import Array, namespace_of
from ..dispatch import rule
from ..errors import AnnotationError, BackendError, DtypeError, ShapeError
from ..functions import diag, trace
from ..operators import LinearOperator, as_operator
from ..operators.tree import Shape, images, infer_sum

_sole_operand: Any = property(lambda self: (self.local,))


class AllReduce(LinearOperator, init=False):
    """`sum_p A_p` over the processes p of a group, each of which holds its own A_p.

    It is how data-parallel sums are written: X^T X of rows that are spread over processes, a
    Gauss-Newton matrix of a batch that is. Vectors are whole, and the same, in every process. A
    product is one with the local operator and one sum over the processes. So is the diagonal, the
    trace, the matrix.

    Parameters
    ----------
    local : operator or array
        The term of this process. All of them have one shape, one dtype and the same known
        properties: say `PSD(local)` in each, or in none.
    group : optional
        The processes. In torch a process group, a mesh of one axis, or None for all processes; in
        JAX the name of an axis (or several) of the `shard_map` or `pmap` around the call.

    Notes
    -----
    Every process makes the same calls in the same order, as in all of torch.distributed: one that
    leaves a call out lets the others wait. So name a method where the choice of `Auto` could differ
    between machines, and leave seeds as they are, or the same.

    Derivatives are those of one number that all processes compute: the gradient with respect to the
    leaves of the local operator is that of this process's term alone, and that with respect to
    vectors, or to anything else that is the same in every process, is whole in each.

    Examples
    --------
    One process is a group too; `torchrun` starts more of them.

    >>> import colinear as co, torch
    >>> from colinear.distributed import AllReduce
    >>> store = torch.distributed.HashStore()
    >>> torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    >>> X = co.Dense(torch.tensor([[1.0, 0.0], [1.0, 2.0]]))  # the rows of this process
    >>> A = AllReduce(X.T @ X) + co.Identity(2)
    >>> co.solve(A, torch.tensor([5.0, 7.0]), co.CG()).round(decimals=4)
    tensor([1., 1.])
    >>> torch.distributed.destroy_process_group()
    """

    local: LinearOperator
    group: Any

    _may_be_lent = False  # to NumPy, which has no processes

    def __new__(cls, local: Any, group: Any = None) -> LinearOperator:  # type: ignore[misc]
        local = as_operator(local)
        xp = local.xp
        if local.is_neutral or xp.name == "numpy":
            raise BackendError(
                "AllReduce: the local operator must be of torch or JAX, which have processes; it is "
                "NumPy's, or was not told. Convert it: A.to('torch'), or give like='torch'."
            )
        group = xp.process_group("AllReduce", group)
        terms = xp.from_processes(
            (tuple(local.shape), xp.dtype_name(local.dtype), local.properties), group
        )
        for what, known, error in zip(("shapes", "dtypes"), zip(*terms), (ShapeError, DtypeError)):
            if len(set(known)) > 1:
                raise error(
                    f"AllReduce: the processes have operators of different {what}: "
                    f"{', '.join(map(str, known))}; a sum needs one."
                )
        if len({term[2] for term in terms}) > 1:
            raise AnnotationError(
                "AllReduce: the processes know different properties of their operators, and would "
                "choose different methods. Claim the same in each: AllReduce(PSD(local))."
            )
        return cls._of(local, group)

    operands = _sole_operand

    @property
    def shape(self) -> Shape:
        return self.local.shape

    _infer = infer_sum

    _transpose, _adjoint, _conj = images(
        lambda self, image: AllReduce._of(image(self.local), self.group)
    )

    def _matmat(self, X: Array) -> Array:
        xp = namespace_of(X)
        return xp.all_reduce(self.local @ xp.for_processes(X, self.group, self), self.group)

    def _to_dense(self) -> Array:
        return self.xp.all_reduce(self.local._dense(), self.group)

    def _expression(self) -> str:
        return f"AllReduce({self.local._expression()})"


@rule(diag, AllReduce)
def diag_all_reduce(A: Any, method: Any) -> Array:
    """diag(Σ_p A_p) = Σ_p diag A_p"""
    return A.xp.all_reduce(diag(A.local, method), A.group)


@rule(trace, AllReduce)
def trace_all_reduce(A: Any, method: Any) -> Array:
    """tr(Σ_p A_p) = Σ_p tr A_p"""
    return A.xp.all_reduce(trace(A.local, method), A.group)
