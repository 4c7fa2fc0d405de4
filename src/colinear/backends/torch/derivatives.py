"""Functions with their own derivatives in torch: under autograd, torch.func and forward mode, to
any order."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch._C import _functorch
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel


class Rules(NamedTuple):
    """What a custom function is made of; see `custom_derivative`."""

    f: Callable
    jvp: Callable
    vjp: Callable
    ranks: tuple[int, ...] | None


def custom_derivative(
    f: Callable,
    jvp: Callable | None = None,
    vjp: Callable | None = None,
    ranks: tuple[int, ...] | None = None,
) -> Callable:
    """Give `f(*arrays) -> array or tuple` its own derivatives.

    Parameters
    ----------
    jvp : callable
        `jvp(primals, tangents, output) -> tangent of the output`, linear in the tangents.
    vjp : callable
        `vjp(primals, output, cotangent) -> cotangents`, one for each primal, None for those
        without; by the adjoint: where f is linear, f(x) = M x, it gives M^H g.
    ranks : tuple of int, optional
        The ranks of the arrays without batch dimensions. If given, `f` takes leading batch
        dimensions, and under vmap it is called with one more of them; otherwise vmap goes through
        `f`, which must then be made of torch calls.

    If one of jvp and vjp is missing it is found as the adjoint of the other. Both may be
    differentiated again.
    """
    if jvp is None and vjp is None:
        raise ValueError("custom_derivative: give jvp, vjp or both")
    rules = Rules(f, jvp or _jvp_from(vjp), vjp or _vjp_from(jvp), ranks)
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
            found = rule.apply(tuple(arrays[:count]), tuple(arrays[count:]))
            if torch.compiler.is_compiling():  # which looks after views by itself
                return tuple(found)
            # a Function gives no views
            return tuple(x.clone() if x.is_conj() or x._is_view() else x for x in found)

    def push(primals: tuple, tangents: tuple, output: Any) -> tuple:
        x, fixed, dx, moved = primals[:count], primals[count:], tangents[:count], tangents[count:]
        return tuple(rule.tangent(tuple(x), tuple(fixed), tuple(dx), tuple(moved), tuple(output)))

    def pull(primals: tuple, output: Any, g: Any) -> tuple:
        x, fixed = tuple(primals[:count]), tuple(primals[count:])
        back = linear_rule(rule.adjoint(), tuple(g), fixed)
        return *back, *rule.cotangent(x, fixed, tuple(g), tuple(output), back)

    ranks = None if isinstance(how, str) else how
    function = _Batched if ranks else _Through if how == "through" else _Looped
    return tuple(_custom(function, Rules(apply, push, pull, ranks))(*x, *constants))


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
    again = torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves)
    own = [
        leaf if again and leaf.requires_grad else leaf.detach().requires_grad_() for leaf in leaves
    ]
    with torch.enable_grad():
        y = f(pytree.tree_unflatten(own, structure))
    outputs, _ = pytree.tree_flatten(y)
    moving = [i for i, output in enumerate(outputs) if output.requires_grad]

    def pull(g: Any) -> Any:
        given, _ = pytree.tree_flatten(g)
        if not (moving and own):
            return pytree.tree_map(torch.zeros_like, x)
        found = torch.autograd.grad(
            [outputs[i] for i in moving],
            own,
            [given[i] for i in moving],
            retain_graph=True,
            create_graph=again,
            materialize_grads=True,
        )
        return pytree.tree_unflatten(list(found), structure)

    return y if again else pytree.tree_map(torch.Tensor.detach, y), pull


def _is_transformed() -> bool:
    """Whether a transform of torch.func, forward mode or a compiler is at work."""
    if torch.compiler.is_compiling() or forward_ad._current_level >= 0:
        return True
    return _functorch.peek_interpreter_stack() is not None


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
    options: dict[str, Any] = {
        "retain_graph": True,
        "create_graph": recorded,
        "materialize_grads": True,
    }
    if not y.requires_grad:
        return torch.zeros((G.shape[0], *x.shape), dtype=x.dtype, device=x.device)
    if G.shape[0] > 1:
        try:
            return torch.autograd.grad(y, x, G, is_grads_batched=True, **options)[0]
        except RuntimeError:  # an operation that cannot be mapped over
            pass
    return torch.stack([torch.autograd.grad(y, x, g, **options)[0] for g in G])


def _inexact(x: Any) -> bool:
    return x.is_floating_point() or x.is_complex()


def _vjp_from(jvp: Any) -> Callable:
    def vjp(primals: tuple, output: Any, cotangent: Any) -> tuple:
        moving = [i for i, x in enumerate(primals) if _inexact(x)]
        zeros = [torch.zeros_like(x) for x in primals]

        def push(*tangents: Any) -> Any:
            every = list(zeros)
            for i, tangent in zip(moving, tangents, strict=True):
                every[i] = tangent
            return jvp(primals, tuple(every), output)

        pulled = torch.func.vjp(push, *(zeros[i] for i in moving))[1](cotangent)
        found = dict(zip(moving, pulled, strict=True))
        return tuple(found.get(i) for i in range(len(primals)))

    return vjp


def _jvp_from(vjp: Any) -> Callable:
    def jvp(primals: tuple, tangents: tuple, output: Any) -> Any:
        moving = [i for i, x in enumerate(primals) if _inexact(x)]

        def pull(cotangent: Any) -> tuple:
            cotangents = vjp(primals, output, cotangent)
            return tuple(cotangents[i] for i in moving)

        zero = (
            tuple(map(torch.zeros_like, output))
            if isinstance(output, tuple)
            else torch.zeros_like(output)
        )
        return torch.func.vjp(pull, zero)[1](tuple(tangents[i] for i in moving))[0]

    return jvp


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
        fixed = [x for x in outputs if not _inexact(x)]
        if fixed:  # Dynamo takes an empty call for one about a tuple
            ctx.mark_non_differentiable(*fixed)
        ctx.save_for_backward(*arrays, *outputs)
        if not torch.compiler.is_compiling():
            ctx.save_for_forward(*arrays, *outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple:
        primals, outputs = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        output, cotangent = (outputs[0], cotangents[0]) if ctx.single else (outputs, cotangents)
        return None, *ctx.rules.vjp(primals, output, cotangent)

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
            return ctx.rules.jvp(primals, tuple(moved), outputs[0] if ctx.single else outputs)


class _Batched(torch.autograd.Function):
    """The same for functions that take leading batch dimensions: what vmap sees is one more of
    them."""

    forward = staticmethod(_Through.forward)
    setup_context = staticmethod(_Through.setup_context)
    backward = staticmethod(_Through.backward)
    jvp = staticmethod(_Through.jvp)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, rules: Rules, *arrays: Any) -> tuple[Any, Any]:
        dims, ranks = in_dims[1:], rules.ranks or ()
        moved = [
            x if dim is None else x.movedim(dim, 0) for x, dim in zip(arrays, dims, strict=True)
        ]
        depths = [
            x.ndim - rank - (dim is not None)
            for x, rank, dim in zip(moved, ranks, dims, strict=True)
        ]
        aligned = [
            x if dim is None else x.reshape(x.shape[0], *(1,) * (max(depths) - depth), *x.shape[1:])
            for x, dim, depth in zip(moved, dims, depths, strict=True)
        ]
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


class _Looped(torch.autograd.Function):
    """The same for functions that look at values: under vmap, one element after the other."""

    forward = staticmethod(_Through.forward)
    setup_context = staticmethod(_Through.setup_context)
    backward = staticmethod(_Through.backward)
    jvp = staticmethod(_Through.jvp)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, rules: Rules, *arrays: Any) -> tuple[Any, Any]:
        results = [
            _Looped.apply(
                rules,
                *(
                    x if dim is None else x.select(dim, i)
                    for x, dim in zip(arrays, in_dims[1:], strict=True)
                ),
            )
            for i in range(info.batch_size)
        ]
        return tuple(torch.stack(parts) for parts in zip(*results, strict=True)), (0,) * len(
            results[0]
        )
