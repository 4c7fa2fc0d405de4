"""Functions with their own derivatives in torch: under autograd, torch.func and forward mode, to
any order."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch._C import _functorch
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from ... import clock
from .arrays import is_floating
from .mesh import around, beside


class Rules(NamedTuple):
    """What a custom function is made of; see `custom_derivative`."""

    f: Callable
    jvp: Callable
    vjp: Callable
    ranks: Any  # of a function that takes leading batch dimensions


def custom_derivative(
    f: Callable,
    jvp: Callable,
    vjp: Callable | None = None,
    ranks: tuple[int, ...] | None = None,
) -> Callable:
    """Give `f(*arrays) -> array or tuple` its own derivatives.

    Parameters
    ----------
    jvp : callable
        `jvp(primals, tangents, output) -> tangent of the output`, linear in the tangents.
    vjp : callable, optional
        `vjp(primals, output, cotangent) -> cotangents`, one for each primal, None for those
        without; by the adjoint: where f is linear, f(x) = M x, it gives M^H g.
    ranks : tuple of int, optional
        The ranks of the arrays without batch dimensions. If given, `f` takes leading batch
        dimensions, and under vmap it is called with one more of them; otherwise vmap goes through
        `f`, which must then be made of torch calls.

    A missing vjp is found as the adjoint of jvp. Both may be differentiated again.
    """
    rules = Rules(f, jvp, vjp or _vjp_from(jvp), ranks)
    return _custom(_Through if ranks is None else _Batched, rules)


def linear_rule(rule: Any, x: tuple, constants: tuple = (), like: tuple | None = None) -> tuple:
    """`rule.apply(x, constants)`, a tuple of arrays linear in those of the tuple x, whose
    derivatives are those of the rule.

    Parameters
    ----------
    rule : object
        With the methods `apply(x, constants)`; `adjoint()`, a rule for cotangents, with the same
        constants; `tangent(x, constants, dx, moved, output)`, the change of the answer with x
        (None: it stays) and with the constants; and `cotangent(x, constants, g, output, back)`,
        which pulls g back to the constants, None for those that do not move, where `back` is what g
        is for x. The last two are made of what can be differentiated. Optional is
        `batching(constants)`, what vmap does: "through" goes through `apply`, which must then be
        made of torch calls; ranks of all arrays, without batch dimensions, give it one more of
        these. Otherwise it is applied to one element after the other, since it may look at values.
    like
        As in JAX, which traces.
    """
    count = len(x)
    how = rule.batching(constants) if hasattr(rule, "batching") else "loop"

    def apply(*arrays: Any) -> tuple:
        with torch.no_grad():
            found = rule.apply(arrays[:count], arrays[count:])
            if torch.compiler.is_compiling():  # which looks after views by itself
                return tuple(found)
            # a Function gives no views
            return tuple(x.clone() if x.is_conj() or x._is_view() else x for x in found)

    def push(primals: tuple, tangents: tuple, output: Any) -> tuple:
        x, fixed, dx, moved = primals[:count], primals[count:], tangents[:count], tangents[count:]
        return tuple(rule.tangent(x, fixed, dx, moved, output))

    def pull(primals: tuple, output: Any, g: Any) -> tuple:
        x, fixed = primals[:count], primals[count:]
        back = linear_rule(rule.adjoint(), g, fixed)
        return *back, *rule.cotangent(x, fixed, g, output, back)

    function = {"through": _Through, "loop": _Looped}.get(how, _Batched)
    return tuple(_custom(function, Rules(apply, push, pull, how))(*x, *constants))


def _custom(function: Any, rules: Rules) -> Callable:
    """Arrays to what the rules make of them, with their derivatives where these are recorded."""

    def custom(*arrays: Any) -> Any:
        if torch.compiler.is_compiling():
            is_recorded = torch.is_grad_enabled() and any(x.requires_grad for x in arrays)
            return _Compiled.apply(rules, *arrays) if is_recorded else rules.f(*arrays)
        if not is_differentiated(*arrays):
            return rules.f(*arrays)
        return function.apply(rules, *arrays)

    return custom


def is_differentiated(*arrays: Any) -> bool:
    """Whether autograd, forward mode or a transform of torch.func watches any of these (a
    Function costs 20 us)."""
    if forward_ad._current_level >= 0 or _functorch.peek_interpreter_stack() is not None:
        return True
    if torch.is_grad_enabled():
        for x in arrays:
            if x.requires_grad:
                return True
    return False


def linearise(f: Callable, x: Any, recorded: bool = False) -> Any:
    """`f(x)` for a vector x, and its derivative J kept for many products: `push`, V -> V J^T, and
    `pull`, G -> G conj(J), for stacks of vectors, (k, n) and (k, m). None where a transform of
    torch.func, forward mode or a compiler is at work.

    f is called once, and its graph kept. Reverse mode alone is used: pull(G) is linear in G, so its
    own pullback is push. That needs second derivatives of the operations in f, where forward mode
    needs first ones in a form that many lack.

    Parameters
    ----------
    recorded : bool
        Whether what is computed with push and pull is differentiated again, also with respect to x.
    """
    if _is_transformed():
        return None
    graph = _Graph(f, x if recorded and x.requires_grad else x.detach().requires_grad_(), recorded)
    return graph.y if recorded else graph.y.detach(), graph.push, graph.pull


def recorded_vjp(f: Callable, x: Any) -> Any:
    """`f(x)` and its pullback by autograd, for trees x and f(x); None where a transform or a
    compiler is at work."""
    if _is_transformed():
        return None
    leaves, structure = pytree.tree_flatten(x)
    again = is_differentiated(*leaves)
    own = [
        leaf if again and leaf.requires_grad else leaf.detach().requires_grad_() for leaf in leaves
    ]
    with torch.enable_grad():
        y = f(pytree.tree_unflatten(own, structure))
    outputs = pytree.tree_leaves(y)

    def pull(g: Any) -> Any:
        moving = [
            pair
            for pair in zip(outputs, pytree.tree_leaves(g), strict=True)
            if pair[0].requires_grad
        ]
        if not (moving and own):
            return pytree.tree_map(torch.zeros_like, x)
        found = torch.autograd.grad(
            [y for y, _ in moving],
            own,
            [g for _, g in moving],
            retain_graph=True,
            create_graph=again,
            materialize_grads=True,
        )
        return pytree.tree_unflatten(list(found), structure)

    return y if again else pytree.tree_map(torch.Tensor.detach, y), pull


def _is_transformed() -> bool:
    """Whether a transform of torch.func, forward mode or a compiler is at work."""
    return torch.compiler.is_compiling() or is_differentiated()


class _Graph:
    """The graph of y = f(x), and that of its pullback g -> J^H g, which push goes back through."""

    def __init__(self, f: Callable, x: Any, recorded: bool):
        self.f, self.x, self.recorded = f, x, recorded
        # whether attention was computed without fused kernels, which have no second derivatives
        self.is_plain = False
        self._evaluate()

    def _evaluate(self) -> None:
        with (
            torch.enable_grad(),
            sdpa_kernel(SDPBackend.MATH) if self.is_plain else contextlib.nullcontext(),
        ):
            self.y = self.f(self.x)
        self.back: Any = None

    def push(self, V: Any) -> Any:
        def through_pullback() -> Any:
            if self.back is None:
                with torch.enable_grad():
                    g = torch.zeros_like(self.y, requires_grad=True)
                    self.back = g, _pull(self.y, self.x, g[None], True)[0]
            g, pulled = self.back
            return _pull(pulled, g, V, self.recorded)

        return self._tried(through_pullback)

    def pull(self, G: Any) -> Any:
        return self._tried(lambda: _pull(self.y, self.x, G, self.recorded))

    def _tried(self, run: Callable) -> Any:
        try:
            return run()
        except RuntimeError:
            if self.is_plain:
                raise
        self.is_plain = True
        self._evaluate()
        return run()


def _pull(y: Any, x: Any, G: Any, recorded: bool) -> Any:
    """The pullbacks of the rows of G from y to x, of a graph that is kept."""
    if not y.requires_grad:
        return x.new_zeros(len(G), *x.shape)
    grad = functools.partial(
        torch.autograd.grad,
        y,
        x,
        retain_graph=True,
        create_graph=recorded,
        materialize_grads=True,
    )
    if len(G) > 1:
        try:
            return grad(G, is_grads_batched=True)[0]
        except RuntimeError:  # an operation that cannot be mapped over
            pass
    return torch.stack([grad(g)[0] for g in G])


def _vjp_from(jvp: Any) -> Callable:
    def vjp(primals: tuple, output: Any, cotangent: Any) -> tuple:
        zeros = {i: torch.zeros_like(x) for i, x in enumerate(primals)}
        moving = {i: zeros[i] for i, x in enumerate(primals) if is_floating(x)}

        def push(tangents: dict[int, Any]) -> Any:
            return jvp(primals, tuple((zeros | tangents).values()), output)

        (found,) = torch.func.vjp(push, moving)[1](cotangent)
        return tuple(found.get(i) for i in zeros)

    return vjp


class _Through(torch.autograd.Function):
    """One Function for all rules (they are its first argument): making a class for each call
    would cost 100 us."""

    generate_vmap_rule = True

    @staticmethod
    def forward(rules: Rules, *arrays: Any) -> Any:
        return rules.f(*arrays)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        rules, *arrays = inputs
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.rules, ctx.count, ctx.single = rules, len(arrays), not isinstance(output, tuple)
        fixed = [x for x in outputs if not is_floating(x)]
        if fixed:  # Dynamo takes an empty call for one about a tuple
            ctx.mark_non_differentiable(*fixed)
        ctx.save_for_backward(*arrays, *outputs)
        ctx.clock = None
        if not torch.compiler.is_compiling():
            ctx.clock = clock.running() if clock.CLOCKS else None
            ctx.save_for_forward(*arrays, *outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple:
        primals, outputs = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        with around(*ctx.saved_tensors):
            cotangents = tuple(map(beside, cotangents, outputs))
            output, cotangent = (outputs[0], cotangents[0]) if ctx.single else (outputs, cotangents)
            pull = ctx.rules.vjp
            if ctx.clock is None and not clock.CLOCKS:
                return None, *pull(primals, output, cotangent)
            return None, *clock.differentiated(ctx.clock, pull, primals, output, cotangent)

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Any) -> Any:
        # torch calls this with forward mode switched off, for the transforms further out too:
        # forward over forward loses terms. Switched on again, this level's own tangents must be
        # left behind.
        with forward_ad._set_fwd_grad_enabled(True):
            saved = [forward_ad.unpack_dual(x).primal for x in ctx.saved_tensors]
            primals, outputs = tuple(saved[: ctx.count]), tuple(saved[ctx.count :])
            moved = (
                torch.zeros_like(x) if t is None else t
                for x, t in zip(primals, tangents, strict=True)
            )
            push = (
                clock.as_part(clock.DERIVATIVES, ctx.rules.jvp) if clock.CLOCKS else ctx.rules.jvp
            )
            return push(primals, tuple(moved), outputs[0] if ctx.single else outputs)


class _Batched(_Through):
    """The same for functions that take leading batch dimensions: what vmap sees is one more of
    them."""

    generate_vmap_rule = False

    @staticmethod
    def vmap(info: Any, in_dims: tuple, rules: Rules, *arrays: Any) -> tuple[Any, Any]:
        given = list(zip(arrays, in_dims[1:], rules.ranks, strict=True))
        depth = max(x.ndim - rank - (dim is not None) for x, dim, rank in given)
        aligned = []
        for x, dim, rank in given:
            if dim is not None:
                x = x.movedim(dim, 0)
                x = x.reshape(len(x), *(1,) * (depth + 1 + rank - x.ndim), *x.shape[1:])
            aligned.append(x)
        result = _Batched.apply(rules, *aligned)
        return result, (0,) * len(result) if isinstance(result, tuple) else 0


class _Compiled(torch.autograd.Function):
    """The same for Dynamo (torch 2.13), which traces no Function that has a `jvp`: reverse mode
    only."""

    @staticmethod
    def forward(ctx: Any, rules: Rules, *arrays: Any) -> Any:
        output = rules.f(*arrays)
        _Through.setup_context(ctx, (rules, *arrays), output)
        return output

    backward = staticmethod(_Through.backward)


class _Looped(_Through):
    """The same for functions that look at values: under vmap, one element after the other."""

    generate_vmap_rule = False

    @staticmethod
    def vmap(info: Any, in_dims: tuple, rules: Rules, *arrays: Any) -> tuple[Any, Any]:
        elements = [
            itertools.repeat(x) if dim is None else x.unbind(dim)
            for x, dim in zip(arrays, in_dims[1:], strict=True)
        ]
        found = [_Looped.apply(rules, *each) for each in zip(*elements)]
        return tuple(map(torch.stack, zip(*found, strict=True))), (0,) * len(found[0])
