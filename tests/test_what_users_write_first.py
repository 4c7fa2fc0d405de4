"""What new users write before they read: figures of an Info as numbers, options without a method, `to` as in torch, an own `__init__`."""

from __future__ import annotations

import dataclasses
import pickle
import re

import numpy as np
import pytest

import colinear as co

M = np.array([[4.0, 1], [1, 3]])
b = np.array([1.0, 2.0])


def operator(framework: str) -> tuple[co.LinearOperator, object]:
    A = co.PD(co.Dense(M).to(framework))
    return A, A.xp.asarray(b)


# ---------------------------------------------------------------------- the figures of an Info


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_the_residual_of_one_right_side_is_a_number(framework):
    A, x = operator(framework)
    for method in (None, co.LU(), co.CG(), co.GMRES()):
        _, info = co.solve(A, x, method, info=True)
        assert np.ndim(info.residual) == 0 and np.ndim(info.converged) == 0 and bool(info.converged)
        assert re.fullmatch(r"\d\.\de[+-]\d\d", f"{info.residual:.1e}")
    for result in (
        co.lstsq(A, x, info=True),
        co.eigmax(A, info=True),
        co.lstsq(A, x, co.LSQR(), info=True),
    ):
        assert np.ndim(result[1].residual) == 0


def test_the_residuals_of_several_right_sides_and_of_pairs_keep_their_axis():
    A, _ = operator("numpy")
    assert co.solve(A, M, info=True)[1].residual.shape == (2,)
    assert co.solve(A, M[:, :1], info=True)[1].residual.shape == (1,)
    assert co.solve(A, M, co.CG(), info=True)[1].converged.shape == (2,)
    assert co.eig(A, 1, info=True)[1].residual.shape == (1,)
    batch = co.PD(co.Dense(np.stack([M, M, M])))
    assert co.solve(batch, b, info=True)[1].residual.shape == (3,)
    assert isinstance(co.solve(A, [1.0, 2.0], info=True)[1].residual, float)


def test_the_residual_of_one_right_side_is_a_number_under_jit():
    jax = pytest.importorskip("jax")
    A, x = operator("jax")
    info = jax.jit(lambda A, x: co.solve(A, x, info=True)[1])(A, x)
    assert info.residual.shape == () and info.seconds is None


def test_an_info_has_the_seconds_of_its_call_and_of_its_parts():
    _, info = co.solve(co.Kronecker(M, M), np.ones(4), info=True)
    assert 0 < info.children[0].seconds <= info.seconds < 60
    assert (
        pickle.loads(pickle.dumps(info)).seconds == info.replace(message="").seconds == info.seconds
    )
    torch = pytest.importorskip("torch")
    leaves, structure = torch.utils._pytree.tree_flatten(info)
    assert info.seconds not in leaves
    assert torch.utils._pytree.tree_unflatten(leaves, structure).seconds is None


# ---------------------------------------------------------------------- calls


def test_options_of_methods_given_to_functions_are_answered_with_what_to_write():
    A, x = operator("numpy")
    with pytest.raises(TypeError, match=r"solve\(\).*'tol'.*write method=Auto\(tol=1e-06\)"):
        co.solve(A, x, tol=1e-6)
    with pytest.raises(TypeError, match=r"write method=CG\(preconditioner=\.\.\.\)"):
        co.solve(A, x, preconditioner=co.Jacobi())
    with pytest.raises(TypeError, match=r"^solve\(\) got an unexpected keyword argument 'rcond'.$"):
        co.solve(A, x, rcond=1)


def test_explain_takes_a_function_by_its_name():
    A, _ = operator("numpy")
    assert co.explain("solve", A).rules == co.explain(co.solve, A).rules
    shadow = co.function("solve", lambda A, x: x)  # a user's own of the same name
    assert co.explain("solve", A).rules == co.explain(co.solve, A).rules
    assert co.explain(shadow, A, 0).rules == ["<lambda>"]
    with pytest.raises(ValueError, match="Did you mean solve"):
        co.explain("slove", A)
    with pytest.raises(TypeError, match="no function of operators"):
        co.explain(np.linalg.solve, A)


# ---------------------------------------------------------------------- A.to


def test_places_are_known_by_their_type():
    torch, jnp = pytest.importorskip("torch"), pytest.importorskip("jax.numpy")
    jax = pytest.importorskip("jax")
    A, T, J = (operator(framework)[0] for framework in ("numpy", "torch", "jax"))
    assert A.to("torch").backend == "torch" and T.to("cpu").backend == "torch"
    for B in (
        T.to(torch.float32),
        T.to(np.float32),
        T.to("cpu", torch.float32),
        T.to("float32"),
        A.to("torch", torch.float32),
    ):
        assert B.backend == "torch" and B.dtype is torch.float32
    assert T.to(torch.device("cpu")).dtype is torch.float64
    for B in (A.to(np.float32), A.to(np.dtype("float32")), A.to("float32"), A.to(jnp.float32)):
        assert B.backend == "numpy" and B.dtype == np.float32
    assert A.to(complex).dtype == np.complex128
    assert J.to(jax.devices()[0]).backend == "jax" and J.to(jnp.float32).dtype == np.float32
    with pytest.raises(ValueError, match=r"no backend 'tensorflow'.*device= or dtype="):
        A.to("tensorflow")
    with pytest.raises(TypeError, match="two of dtype"):
        A.to("float64", torch.float32)


# ---------------------------------------------------------------------- an __init__ in an operator


class Squared(co.LinearOperator):
    M: object
    name: str

    def __init__(self, root):
        self.M = root @ root
        self.name = "squared"

    @property
    def shape(self):
        return self.M.shape

    def _matmat(self, X):
        return self.M @ X


class Undeclared(co.LinearOperator):
    def __init__(self, M):
        self.M = M


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_an_operator_may_have_an_init_that_sets_its_declared_fields(framework):
    A, x = operator(framework)
    S = Squared(A.to_dense())
    assert S.name == "squared" and S.backend == framework
    np.testing.assert_allclose(np.asarray(co.solve(S, x)), np.linalg.solve(M @ M, b))
    assert pickle.loads(pickle.dumps(S)).name == "squared" and len(list(S.leaves())) == 1
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot be changed"):
        S.M = x


def test_undeclared_fields_are_refused_with_the_line_to_write():
    with pytest.raises(
        dataclasses.FrozenInstanceError, match=r"M is no field.*annotation in the class, `M: Any`"
    ):
        Undeclared(M)
