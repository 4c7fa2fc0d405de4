"""The fields of an operator: which are leaves and which are structure, how a tree is taken apart
and rebuilt, and cached properties."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..backends import Array, namespace_of
from ..backends.numpy.arrays import is_mapped
from ..dispatch import signatures
from ..dispatch.calls import retry_deeper
from ..errors import ShapeError
from ..properties import POSITIVE_DEFINITE, POSITIVE_SEMIDEFINITE, SELF_ADJOINT, SYMMETRIC
from ..status import is_unseen, state

Shape = tuple[int, ...]
Map = Callable[[Any], Any]

# Watchers of the testing tools: `multiplied(A, columns)` and `materialised(A)` of each are called.
# Empty in normal use.
TEST_HOOKS: list[Any] = []

# What is remembered of an operator that follows from the shapes, dtypes and devices of its arrays.
KINDS = ("shape", "_context", "xp", "dtype", "is_complex", "_usual_dtype", "_dynamic")


def _walk(to_children: Callable[[], Any]) -> Any:
    """What a walk over the tree finds, however deep the tree is."""
    try:
        return to_children()
    except RecursionError:
        return retry_deeper(to_children)


def tell_watchers(event: str, *facts: Any) -> None:
    """Call the method of this name of each watcher."""
    for watcher in tuple(TEST_HOOKS):
        getattr(watcher, event)(*facts)


def _set_field_once(self: Any, name: str, value: Any) -> None:
    """`self.name = value` in an `__init__` that a family defines itself; afterwards the operator
    is frozen."""
    if name not in self._fields:
        raise dataclasses.FrozenInstanceError(
            f"{type(self).__name__}: {name} is no field. Declare it as an annotation in the "
            f"class, `{name}: Any`; then the "
            f"constructor {type(self).__name__}({', '.join((*self._fields, name))}) is there "
            "without an __init__ too."
        )
    if name in self.__dict__:
        raise dataclasses.FrozenInstanceError(
            f"{type(self).__name__}: operators cannot be changed; make a new one."
        )
    object.__setattr__(self, name, value)


def conjugate(x: Any) -> Any:
    """The complex conjugate of an array or a number."""
    xp = namespace_of(x)
    # NumPy makes scalars of 0-dimensional arrays
    return x.conjugate() if xp is None else xp.asarray(xp.conj(x))


def conjugate_leaves(self: Any) -> Any:
    """`_conj` of the families whose matrix is conjugated by conjugating their leaves."""
    return self._map(conjugate)


def itself(self: Any) -> Any:
    """`_conj` of the families whose matrix is real."""
    return self


def images(compose: Callable[[Any, Map], Any]) -> Any:
    """`_transpose`, `_adjoint` and `_conj` of a family: `compose(self, image)`, where `image` gives
    that image of an operand."""

    def method(image: Map) -> Map:
        return lambda self: compose(self, image)

    return method(lambda A: A.T), method(lambda A: A.H), method(lambda A: A.conj())


# Those of the families that are transposed and conjugated operand by operand, and of those that
# wrap one operator A, which is their first field.
operand_images = images(lambda self, image: type(self)(*[image(A) for A in self.operands]))
wrapper_images = images(
    lambda self, image: type(self)._of(
        image(self.A), *[getattr(self, name) for name in self._fields[1:]]
    )
)


def shared(operators: Iterable[Any]) -> int:
    """The properties that all of them have."""
    mask = ~0
    for A in operators:
        mask &= A.properties
    return mask


def known_of_sum(terms: Iterable[Any]) -> int:
    """The properties that a sum has because of its terms'; one definite term makes a sum of
    semidefinite ones definite."""
    common, some = ~0, 0
    for A in terms:
        common &= A.properties
        some |= A.properties
    mask = common & (SELF_ADJOINT | SYMMETRIC | POSITIVE_SEMIDEFINITE)
    return mask | some & POSITIVE_DEFINITE if mask & POSITIVE_SEMIDEFINITE else mask


def infer_sum(self: Any) -> int:
    """`_infer` of sums."""
    return known_of_sum(self.operands)


# `operands`, `shape` and `_infer` of the families that wrap one operator A, and `_flops` of those
# that cost what their operands cost.
sole_operand: Any = property(lambda self: (self.A,))
operand_shape: Any = property(lambda self: self.A.shape)
infer_operand: Any = lambda self: self.A.properties
operand_flops: Any = property(lambda self: sum(A.flops for A in self.operands))
# of what is formed entry by entry from the matrices of its operands
entrywise_flops: Any = property(
    lambda self: sum(A.dense_flops + self.shape[-2] * self.shape[-1] for A in self.operands)
)


def _remember(image: Any, A: Any, *, transpose: bool, adjoint: bool) -> None:
    """Note on a new transpose whose transpose it is: how a product B^H B is known to be PSD. A
    memo only; pytrees drop it."""
    # no reference cycles: they hold memory
    if image is not A and not any(image is operand for operand in A.operands):
        if transpose:
            image.__dict__["_transpose_of"] = A
        if adjoint:
            image.__dict__["_adjoint_of"] = A


def inside_out(A: Any) -> Iterator[Any]:
    """Every operator of the tree once, what is inside before what it is inside of; without
    recursion."""
    seen: set[int] = set()
    waiting = [(A, False)]
    while waiting:
        node, is_open = waiting.pop()
        if is_open:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            waiting.append((node, True))
            inside = node.operands or [getattr(node, name) for name in node._dynamic]
            waiting.extend((part, False) for part in reversed(inside) if isinstance(part, Tree))


# A property that is computed once per operator: like `functools.cached_property`, but without the
# lock that Python 3.11's takes (torch.compile cannot trace it) and with `object.__setattr__`, since
# operators are frozen. What is remembered is not a field: pytrees, pickles and copies drop it.


if TYPE_CHECKING:
    memo = property
else:

    class memo:
        """`@memo` above a method without arguments: an attribute that is computed when it is
        first asked for."""

        def __init__(self, compute: Map):
            self.compute, self.__doc__ = compute, compute.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self.name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = self.compute(instance)
            # not while torch compiles: what is there the second time makes it compile again
            if signatures.is_compiling is None or not signatures.is_compiling():
                object.__setattr__(instance, self.name, value)
            return value


def once_in_call(A: Any, name: str, look: Callable[[], Any]) -> Any:
    """What `look()` sees of the values of an operator, remembered on it under this name until the
    outermost call ends: arrays may be changed between two calls."""
    if state.call is None:
        state.call = object()
    call, seen = A.__dict__.get(name, (None, None))
    if call is not state.call:
        seen = look()
        A.__dict__[name] = state.call, seen
    return seen


# What an operator is made of: which fields are leaves and which are structure, and how the tree is
# taken apart and rebuilt.
#
# Arrays and operators, and tuples and dicts of them, are leaves and children; everything else is
# static and must be hashable. The value decides, not the annotation; but a number counts as a leaf
# where the field is annotated `Scalar`.


Scalar = Any  # a Python number or a 0-dimensional array


def own_fields(cls: type) -> dict[str, Any]:
    """The annotations in the body of a class, in order, but those of class variables; from Python
    3.14 on they are evaluated only when asked for."""
    if sys.version_info >= (3, 14):
        import annotationlib

        annotations = annotationlib.get_annotations(cls, format=annotationlib.Format.STRING)
    else:
        annotations = inspect.get_annotations(cls)
    shared = ("ClassVar", "typing.ClassVar")
    return {name: a for name, a in annotations.items() if not str(a).startswith(shared)}


def is_data(value: Any) -> bool:
    """Whether a value holds arrays or operators (then it is a child of the tree)."""
    if isinstance(value, (tuple, list, dict)):
        return any(map(is_data, value.values() if isinstance(value, dict) else value))
    return namespace_of(value) is not None or hasattr(type(value), "_matmat")


def arrays_in(value: Any) -> list[Any]:
    """The arrays and scalars in a field, depth first; operators are opened up, however deep they
    are nested."""
    waiting, found = [value], []
    while waiting:
        value = waiting.pop()
        if isinstance(value, (tuple, list)):
            waiting.extend(reversed(value))
        elif isinstance(value, dict):
            waiting.extend(reversed(value.values()))
        elif hasattr(type(value), "_matmat"):
            for name in reversed(value._dynamic):
                waiting.append(getattr(value, name))
        elif value is not None:
            found.append(value)
    return found


def bytes_in(value: Any) -> int:
    """The bytes of the arrays and scalars in a field; operators remember theirs."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return sum(map(bytes_in, value))
    return 0 if value is None else int(getattr(value, "nbytes", 8))


def map_arrays(f: Map, value: Any, kept: tuple[str, ...] = ()) -> Any:
    """The same nest of tuples, dicts and operators with `f` applied to each array."""
    return map_parts(value, lambda A: A._map(f, kept), f)


def map_parts(value: Any, on_operator: Map, on_leaf: Map) -> Any:
    """The same nest of tuples and dicts with these functions applied to each operator and to each
    leaf."""
    if isinstance(value, (tuple, list)):
        return type(value)(map_parts(item, on_operator, on_leaf) for item in value)
    if isinstance(value, dict):
        return {key: map_parts(item, on_operator, on_leaf) for key, item in value.items()}
    if value is None:
        return None
    return on_operator(value) if hasattr(type(value), "_matmat") else on_leaf(value)


MOST_DIAGONALS = 31  # of a matrix that is multiplied by diagonals: each row has a bit for each


class Index:
    """Integers that are structure (a permutation, a sparsity pattern): static and hashable by
    content, so that values are seen under `jit` and neither `vmap` nor `grad` of an operator
    meets them. `host` is a read-only NumPy array."""

    __slots__ = ("_hash", "_placed", "host")

    def __init__(self, values: Any):
        host = np.array(values, dtype=np.int64, order="C")
        host.setflags(write=False)
        self.host = host
        self._hash: int | None = None
        self._placed: dict[Any, Any] = {}

    def on(self, xp: Any, device: Any = None) -> Array:
        """The integers as an array of a framework. JAX indexes with NumPy arrays as they are."""
        if xp.name != "torch":
            return self.host
        key = str(device)
        found = self._placed.get(key)
        if found is None:
            found = xp.asarray(self.host.copy(), device=device)
            if not xp.is_traced(found):
                self._placed[key] = found
        return found

    def __len__(self) -> int:
        return len(self.host)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Index) and np.array_equal(self.host, other.host))

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.host.shape, self.host.tobytes()))
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return Index, (self.host,)

    def __repr__(self) -> str:
        return f"Index({self.host.shape})"


def placed(key: Any, xp: Any, x: Array) -> Any:
    """Integers, an `Index` or an array, beside x."""
    return key.on(xp, xp.device_of(x)) if isinstance(key, Index) else key


def on_host(values: Any) -> Any:
    """An array of any framework, or a list, as NumPy's."""
    xp = namespace_of(values)
    return np.asarray(values if xp is None else xp.to_numpy(values))


def index_or_array(values: Any, what: str) -> Any:
    """An `Index` where the integers can be seen, the array itself where they are not to be."""
    if is_unseen(values):
        return values
    host = on_host(values)
    if host.dtype.kind not in "iu" and host.size:
        raise ShapeError(f"{what}: indices must be integers, not {host.dtype}.")
    return Index(host)


class Tree:
    """An immutable tree of arrays: how it is made, taken apart, rebuilt and mapped.

    `_fields` are the names of all fields, `_scalars` of those that hold numbers which are leaves.
    """

    _fields: ClassVar[tuple[str, ...]] = ()
    _required: ClassVar[int] = 0  # how many of them, the first ones, have no default
    _scalars: ClassVar[tuple[str, ...]] = ()
    _claims: ClassVar[int] = 0  # what the user claimed; instances with claims shadow it
    _may_be_lent: ClassVar[bool] = True  # to NumPy, which then computes with it

    @classmethod
    def _of(cls, *values: Any) -> Any:
        """An instance with these field values, unchecked: what constructors end with. The last
        ones may be left out if the class has defaults for them."""
        self, fields = object.__new__(cls), cls._fields
        if not cls._required <= len(values) <= len(fields):  # sooner than by zip's own check
            raise TypeError(f"{cls.__name__}: {len(fields)} fields, {len(values)} values.")
        memos = self.__dict__
        for name, value in zip(fields, values):
            memos[name] = value
        for name in fields[len(values) :]:
            memos[name] = getattr(cls, name)
        return self

    def _replace(self, **changes: Any) -> Any:
        """A copy with some fields replaced and the claims kept."""
        copy = object.__new__(type(self))
        memos = copy.__dict__
        for name in self._fields:
            memos[name] = changes[name] if name in changes else getattr(self, name)
        if self._claims:
            memos["_claims"] = self._claims
        return copy

    @memo
    def _dynamic(self) -> tuple[str, ...]:
        """The names of the fields that hold leaves: arrays and operators, whatever their
        annotation, and numbers annotated `Scalar`."""
        found = []
        for name in self._fields:
            value = getattr(self, name)
            if value is None or isinstance(value, (int, float, complex)):
                is_leaf = name in self._scalars and value is not None
            else:
                is_leaf = hasattr(type(value), "_matmat") or is_data(value)
            if is_leaf:
                found.append(name)
        return tuple(found)

    def _flatten(self) -> tuple[tuple[Any, ...], Any]:
        dynamic = self._dynamic
        children, static = [], []
        for name in self._fields:
            value = getattr(self, name)
            if name in dynamic:
                children.append(value)
            else:
                static.append((name, value))
        return tuple(children), (dynamic, tuple(static), self._claims)

    @classmethod
    def _unflatten(cls, structure: Any, children: Any) -> Any:
        dynamic, static, claims = structure
        self = object.__new__(cls)
        memos = self.__dict__
        memos.update(zip(dynamic, children, strict=True))
        memos.update(static)
        if claims:
            memos["_claims"] = claims
        # The leaves may now be anything: a transformation's placeholders, say.
        memos["_dynamic"] = dynamic
        return self

    def leaves(self) -> Iterator[Any]:
        """The arrays (and scalars) of the whole tree, depth first."""
        return iter(arrays_in(self))

    def arrays(self) -> tuple[Array, ...]:
        """The arrays of the whole tree, depth first: the leaves but for numbers."""
        return tuple([leaf for leaf in arrays_in(self) if namespace_of(leaf) is not None])

    def with_arrays(self, arrays: Sequence[Array]) -> Any:
        """The same operator with these in place of its `arrays()`, in their order."""
        own = self.arrays()
        given, is_same, is_alike = iter(arrays), True, True
        for old, new in zip(own, arrays, strict=True):
            is_same &= new is old
            is_alike &= type(new) is type(old) and new.dtype == old.dtype and new.shape == old.shape
            is_alike &= getattr(new, "device", None) == getattr(old, "device", None)
        if is_same:
            return self  # the very same, which its counters know
        arrays_of_own = set(map(id, own))
        place = lambda leaf: next(given) if id(leaf) in arrays_of_own else leaf
        return self._map(place, KINDS if is_alike else ())

    @memo
    def _is_out_of_core(self) -> bool:
        """Whether some of its numbers are not in memory: they lie in large files, or come a chunk
        at a time. So nothing of their size is made unasked."""
        is_lazy = any(getattr(part, "_is_lazy", False) for part in inside_out(self))
        return is_lazy or any(map(is_mapped, self.leaves()))

    def detach(self, by: str = "stop_gradient") -> Any:
        """The same operator, whose arrays are constants to derivatives; what was one array stays
        one. `by` names the backend's function that is put to each array."""
        images: dict[int, Any] = {}

        def image(leaf: Any) -> Any:
            if (xp := namespace_of(leaf)) is None:
                return leaf
            if id(leaf) not in images:
                images[id(leaf)] = getattr(xp, by)(leaf)
            return images[id(leaf)]

        return self._map(image, (*KINDS, "properties", "_signature"))

    def clone(self) -> Any:
        """The same operator with copies of its arrays, through which derivatives pass; what was
        one array stays one."""
        return self.detach(by="copy")

    def _map(self, f: Map, kept: tuple[str, ...] = ()) -> Any:
        """The same tree with `f` applied to each leaf; what is `kept` of its memos stays true."""
        copy, dynamic = object.__new__(type(self)), self._dynamic
        own, memos = self.__dict__, copy.__dict__
        for name in self._fields:
            value = getattr(self, name)
            if name not in dynamic:
                memos[name] = value
            elif isinstance(value, Tree):
                memos[name] = value._map(f, kept)
            else:
                is_nest = isinstance(value, (tuple, list, dict))
                memos[name] = map_arrays(f, value, kept) if is_nest else f(value)
        if signatures.is_compiling is not None and signatures.is_compiling():
            kept = ()  # torch would compile again where there is more to remember
        for name in ("_claims", *kept):
            if name in own:
                memos[name] = own[name]
        return copy

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self)._unflatten, self._flatten()[::-1]

    def __copy__(self) -> Any:
        return self
