"""Sums and entrywise products of operators of one shape. Both commute: patterns for them are
order-free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import reduce
from operator import add, mul
from typing import Any, ClassVar

from ..backends import Array, namespace_of
from ..errors import ShapeError
from ..properties import POSITIVE_DEFINITE, POSITIVE_SEMIDEFINITE, SELF_ADJOINT, SYMMETRIC
from .banded import block_diagonal
from .base import LinearOperator
from .context import (
    Context,
    common_batch,
    common_context,
    concat_batches,
    has_traced,
    is_complex_number,
    known_in,
)
from .convert import flattened, operator_list
from .diagonal import Diagonal, Identity, ScaledIdentity, Zero, scalar_of
from .lowrank import LowRank
from .neutral import dense_part
from .printing import bracketed
from .scaled import Scaled, beside, peek_scalar, pull_scalars
from .tree import Shape, entrywise_flops, infer_sum, known_of_sum, memo, operand_images


class Sum(LinearOperator, init=False):
    """The sum of operators: nested sums are flattened, zeros dropped, diagonals merged, low-rank
    terms concatenated.

    `A + A^H` is known to be self-adjoint, `A + A^T` to be symmetric, if the second term was made
    from the first as `A.H`, `A.T`.

    Examples
    --------
    >>> import colinear as co
    >>> co.Sum(co.Identity(3), co.Diagonal([1.0, 2.0, 3.0]))
    <Diagonal 3x3 float64 numpy [SelfAdjoint]: Diagonal(3)>
    """

    operands: tuple[LinearOperator, ...]
    _commutative: ClassVar[bool] = True

    def __new__(cls, *operands: Any) -> LinearOperator:  # type: ignore[misc]
        terms = operator_list("Sum", operands)
        batch, context = fitting_terms("+", terms), common_context("+", terms)
        if len(terms) == 2 and type(terms[0]) is Sum and _stands_alone(*terms):
            # so that t_1 + t_2 + ... + t_m does not ask each term m times
            whole: Any = cls._of((*terms[0].operands, terms[1]))
            memos, shape = whole.__dict__, (*batch, *terms[0].shape[-2:])
            memos.update(known_in(context), shape=shape, properties=known_of_sum(terms))
            memos["_has_images"] = False
            return whole
        flat = flattened(Sum, terms) if Sum in map(type, terms) else terms
        # what was claimed of sums that are flattened, their terms do not know
        claims = _known_of_pairs(flat) | (known_of_sum(terms) if len(flat) > len(terms) else 0)
        merged = _merge(flat)
        kept = merged
        if Zero in map(type, merged):
            kept = [term for term in merged if not isinstance(term, Zero)] or merged[:1]
        whole = kept[0] if len(kept) == 1 else cls._of(tuple(kept))
        if len(kept) < len(merged) or len(kept) == 1:
            if whole.shape[:-2] != batch or (whole := in_context(whole, context)) is None:
                # a dropped zero was all that gave the sum its batch shape or its dtype: it stays
                whole = cls._of(tuple(merged))
        else:
            whole.__dict__.update(known_in(context), shape=(*batch, *terms[0].shape[-2:]))
        return whole._claim(claims) if claims else whole

    @memo
    def shape(self) -> Shape:
        return (*fitting_terms("+", self.operands), *self.operands[0].shape[-2:])

    _infer = infer_sum

    @memo
    def _has_images(self) -> bool:
        """Whether some term was made as the adjoint or transpose of another operator."""
        return any(map(_is_image, self.operands))

    _transpose, _adjoint, _conj = operand_images

    def _matmat(self, X: Array) -> Array:
        first, *others = join_alike(self.operands, X)
        total = first @ X
        for term in others:
            total = total + term @ X
        return total

    _matvec = _matmat

    @memo
    def _sampled_parts(self) -> Any:
        """The operands that are sampled, and those that are in every minibatch: diagonals, and
        single operators beside sums.

        A single operator among a million terms would be met once in a million, with a weight of a
        million: whole it adds no variance.
        """
        operands = self.operands
        sampled = [A for A in operands if A._term_count > 1] or [
            A for A in operands if type(A) not in (Diagonal, Identity, ScaledIdentity, Zero)
        ]
        return sampled, [A for A in operands if not any(A is B for B in sampled)]

    @memo
    def _term_count(self) -> int:
        return max(1, sum(term._term_count for term in self._sampled_parts[0]))

    def _some_terms(self, indices: Array, weights: Array) -> LinearOperator:
        """Those of its parts one after the other, each part with the weights of its own."""
        xp, (sampled, whole) = namespace_of(indices), self._sampled_parts
        if all(A._term_count == 1 for A in sampled):
            numbers = xp.arange(len(sampled), device=xp.device_of(indices))
            own = xp.sum(xp.where(indices == numbers[:, None], weights, 0), axis=-1)
            total = sum(A.flops for A in sampled)
            share = min(1, indices.shape[0] / len(sampled))
            parts = [ListedTerms._of(own, float(share * total), tuple(sampled))]
        elif len(sampled) == 1:
            parts = [sampled[0]._some_terms(indices, weights)]
        else:
            parts, first = [], 0
            for A in sampled:
                inside = (indices >= first) & (indices < first + A._term_count)
                local = xp.where(inside, indices - first, 0)
                parts.append(A._some_terms(local, xp.where(inside, weights, 0)))
                first += A._term_count
        return parts[0] if len(parts) + len(whole) == 1 else Sum._of((*parts, *whole))

    def _to_dense(self) -> Array:
        total = reduce(add, (dense_part(term, self) for term in join_alike(self.operands)))
        return self.xp.broadcast_to(total, self.shape)

    _dense_flops = entrywise_flops

    @property
    def _flops(self) -> float:
        return sum(term.flops for term in self.operands) + (len(self.operands) - 1) * self.shape[-2]

    def _expression(self) -> str:
        return " + ".join(bracketed(term, "⊗@*") for term in self.operands[:6]) + (
            " + ..." if len(self.operands) > 6 else ""
        )


def join_alike(terms: Sequence[LinearOperator], X: Array | None = None) -> Sequence[LinearOperator]:
    """The terms of a sum; where a program is traced, many of one kind as one sum over a batch,
    which is one product for its compiler instead of a product each."""
    if len(terms) < MANY_BLOCKS:
        return terms
    if not (has_traced(terms[0]) or (X is not None and namespace_of(X).is_traced(X))):
        return terms
    families: dict[type, list[LinearOperator]] = {}
    for term in terms:
        families.setdefault(type(term), []).append(term)
    joined: list[LinearOperator] = []
    for family in families.values():
        stack = stack_alike(family) if are_many_and_small(family, TRACED_BLOCK_ENTRIES) else None
        joined.extend(family if stack is None else [BatchSum(stack)])
    return joined


# ---------------------------------------------------------------------- what terms say of each othe


def _known_of_pairs(terms: list[LinearOperator]) -> int:
    """Self-adjoint or symmetric, where each term is, or stands beside its adjoint or transpose."""
    for term in terms:
        if _is_image(term):
            mask = SELF_ADJOINT if _are_paired(terms, "_adjoint_of", SELF_ADJOINT) else 0
            return mask | (SYMMETRIC if _are_paired(terms, "_transpose_of", SYMMETRIC) else 0)
    return 0  # nearly always, and sums are made often


def _is_image(term: Any) -> bool:
    memos = (term.A if type(term) is Scaled else term).__dict__
    return "_adjoint_of" in memos or "_transpose_of" in memos


def _stands_alone(total: Any, term: Any) -> bool:
    """Whether a term merges with none of a sum, is known to be the image of none, and nothing is
    claimed of the sum that its terms do not know."""
    if type(term) in _NOT_ALONE or _is_image(term):
        return False
    return not (total._claims or total._has_images)


def _are_paired(terms: list[LinearOperator], link: str, known: int) -> bool:
    """Whether every term that is not known to be its own image has its image among the others,
    equally often."""
    excess: Counter[Any] = Counter()
    for term in terms:
        if term.properties & known:
            continue
        scalar, A = (term.scalar, term.A) if isinstance(term, Scaled) else (1.0, term)
        is_image = False
        while (origin := A.__dict__.get(link)) is not None:
            A, is_image = origin, not is_image
        value = peek_scalar(scalar)
        if value is None:  # not to be seen: the same array beside both
            value = id(scalar)
            if known == SELF_ADJOINT and is_complex_number(scalar):
                return False
        elif is_image and known == SELF_ADJOINT:
            value = value.conjugate()
        excess[id(A), value] += -1 if is_image else 1
    return not any(excess.values())


def in_context(A: LinearOperator, context: Context) -> Any:
    """A where the composition lives that it stands for: a neutral one is put there, and None is
    returned where that cannot be."""
    if A._context == context:
        return A
    if A.is_neutral and context.backend is not None:
        return A.to(context.backend, context.device, context.dtype)
    return None


def fitting_terms(what: str, terms: Sequence[LinearOperator]) -> Shape:
    """The batch shape of a sum or entrywise product, whose terms must be of one size."""
    first, batch = terms[0].shape, None
    for term in terms:
        shape = term.shape
        if shape == first:
            continue
        if shape[-2:] != first[-2:]:
            raise ShapeError(
                f"{what}: operators of {first[-2]}x{first[-1]} and {shape[-2]}x{shape[-1]} do "
                "not fit together."
            )
        batch = batch or common_batch(what, terms)
    return batch or first[:-2]


# ---------------------------------------------------------------------- simplification: terms of on


def _merge(terms: list[LinearOperator]) -> list[LinearOperator]:
    """One diagonal term and one low-rank term at most, where their first one stood."""
    merges = list(filter(None, map(_MERGE.get, map(type, terms))))
    if len(merges) == len(set(merges)):
        return terms
    groups: dict[Any, list[LinearOperator]] = {}
    for i, term in enumerate(terms):
        groups.setdefault(_MERGE.get(type(term), i), []).append(term)
    return [
        # what the terms are known to be, their merger is known to be
        group[0] if len(group) == 1 else merge(group)._claim(known_of_sum(group))
        for merge, group in groups.items()
    ]


def _merge_diagonals(group: list[LinearOperator]) -> LinearOperator:
    scalar: Any = 0
    diagonal: Any = None
    for term in group:
        if isinstance(term, Diagonal):
            diagonal = term.d if diagonal is None else diagonal + term.d
        else:
            scalar = scalar + scalar_of(term)
    if diagonal is None:
        return ScaledIdentity(scalar, group[0].shape[-1], like=common_context("+", group))
    return Diagonal(diagonal + beside(scalar))


def _merge_lowrank(group: list[Any]) -> LinearOperator:
    xp = group[0].xp
    U = concat_batches(xp, [A.U for A in group], axis=-1)
    V = None
    if any(A.V is not None for A in group):
        V = concat_batches(xp, [A._right for A in group], axis=-1)
    if all(A.core is None for A in group):
        return LowRank(U, V)
    return LowRank(U, V, block_diagonal(xp, [A._core for A in group]))


_MERGE: dict[type, Any] = {
    Diagonal: _merge_diagonals,
    Identity: _merge_diagonals,
    ScaledIdentity: _merge_diagonals,
    LowRank: _merge_lowrank,
}
_NOT_ALONE = {*_MERGE, Sum, Zero}


# The entrywise product.


_BLOCK_ENTRIES = 1 << 20  # how many entries of each factor are held at a time


class Hadamard(LinearOperator, init=False):
    """The entrywise product `A * B`, `numpy.multiply` of the matrices. It multiplies in blocks of
    rows and is never formed whole.

    Cost: the rows of each factor, obtained through its transpose, for every product. The Schur
    product theorem makes it PSD where the factors are.

    Examples
    --------
    >>> import colinear as co
    >>> A = co.Toeplitz([1.0, 2.0]) * co.Dense([[1.0, 10.0], [100.0, 1000.0]])
    >>> A.to_dense()
    array([[   1.,   20.],
           [ 200., 1000.]])
    """

    operands: tuple[LinearOperator, ...]
    _commutative: ClassVar[bool] = True

    def __new__(cls, *operands: Any) -> LinearOperator:  # type: ignore[misc]
        scalar, parts = pull_scalars(operator_list("Hadamard", operands))
        factors = flattened(Hadamard, parts)
        fitting_terms("*", factors)
        common_context("*", factors)
        if all(isinstance(A, Diagonal) for A in factors):
            whole: Any = Diagonal(reduce(mul, [A.d for A in factors]))
        else:
            whole = factors[0] if len(factors) == 1 else cls._of(tuple(factors))
        return whole if scalar is None else Scaled(scalar, whole)

    @memo
    def shape(self) -> Shape:
        return (*fitting_terms("*", self.operands), *self.operands[0].shape[-2:])

    _inherited = SELF_ADJOINT | SYMMETRIC | POSITIVE_SEMIDEFINITE | POSITIVE_DEFINITE

    _transpose, _adjoint, _conj = operand_images

    def _matmat(self, X: Array) -> Array:
        xp, (m, n) = namespace_of(X), self.shape[-2:]
        height = max(1, min(m, _BLOCK_ENTRIES // max(n, 1)))
        transposes = [A.T for A in self.operands]
        blocks = []
        for start in range(0, m, height):
            stop = min(start + height, m)
            # Columns start..stop of the identity pick these rows: A[rows] = (A^T E)^T.
            numbers = xp.arange(m, device=xp.device_of(X))
            E = xp.astype(
                numbers[:, None] == numbers[start:stop], X.dtype if self.is_neutral else self.dtype
            )
            rows = reduce(mul, (B @ E for B in transposes))
            blocks.append(xp.matmul(xp.matrix_transpose(rows), X))
        return xp.concat(blocks, axis=-2) if blocks else self.operands[0] @ X

    def _to_dense(self) -> Array:
        entries = reduce(mul, (dense_part(A, self) for A in self.operands))
        return self.xp.broadcast_to(entries, self.shape)

    _dense_flops = entrywise_flops

    @property
    def _flops(self) -> float:
        return (
            self.shape[-2] * sum(A.flops for A in self.operands)
            + 2.0 * self.shape[-2] * self.shape[-1]
        )

    def _expression(self) -> str:
        return " * ".join(bracketed(A, "*") for A in self.operands)


from .batch import BatchSum
from .block import MANY_BLOCKS, TRACED_BLOCK_ENTRIES, are_many_and_small, stack_alike
from .terms import ListedTerms
