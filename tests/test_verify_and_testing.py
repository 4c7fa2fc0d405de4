"""The tools that check operators: they pass what is right and name what is wrong."""

from __future__ import annotations

import re

import numpy as np
import pytest

import colinear as co
from colinear.testing import check_operator, count_matvecs, forbid_dense

rng = np.random.default_rng(0)
X = rng.standard_normal((100, 100))
Q = np.linalg.qr(X)[0]


# ---------------------------------------------------------------------- verify


@pytest.mark.parametrize("n", [4, 100])
def test_verify_returns_what_is_as_claimed(n):
    G = X[:n, :n]
    right = [
        co.SelfAdjoint(G + G.T), co.Symmetric(G * 1j + 1j * G.T), co.PSD(G @ G.T), co.PD(G @ G.T + np.eye(n)),
        co.Unitary(np.linalg.qr(G)[0]), co.Stiefel(np.linalg.qr(G)[0][:, :2]),
    ]  # fmt: skip
    for A in right:
        assert co.verify(A) is A


@pytest.mark.parametrize("n", [4, 100])
def test_verify_names_the_operator_the_claim_and_the_violation(n):
    G, I = X[:n, :n], np.eye(n)
    low = I.copy()
    low[0, 0] = -1.0
    wrong = {
        "A = A.H": co.SelfAdjoint(G), "A = A.T": co.Symmetric(G + 1j * G), "semidefinite.* -1": co.PSD(low),
        "definite.*eigenvalue": co.PD(0 * I),
        "orthonormal.*is 3": co.Unitary(2 * I), "orthonormal columns": co.Stiefel(2 * I[:, :2]), "NaN": co.PSD(np.nan * I),
    }  # fmt: skip
    for text, A in wrong.items():
        with pytest.raises(co.AnnotationError, match=text) as error:
            co.verify(A)
        assert "Dense" in str(error.value)


def test_verify_finds_a_false_claim_deep_inside():
    A = co.PSD(-np.eye(2))
    for _ in range(400):
        A = co.opaque(A) @ co.Dense(np.eye(2))
    with pytest.raises(co.AnnotationError, match="<Dense 2x2"):
        co.verify(A)


def test_verify_checks_each_of_a_batch():
    with pytest.raises(co.AnnotationError, match="eigenvalue"):
        co.verify(co.PSD(np.stack([np.eye(3), -np.eye(3)])))


# ---------------------------------------------------------------------- check_operator


def broken(**methods):
    """An operator of the matrix 2 I with some methods replaced."""

    class Broken(co.LinearOperator):
        d: co.backends.Array

        shape = property(lambda self: (3, 3))

        def _matmat(self, X):
            return 2 * X

        def _rmatmat(self, X):
            return 2 * X

    for name, method in methods.items():
        setattr(Broken, name, method)
    return Broken(np.ones(1))


def test_a_correct_operator_passes():
    check_operator(broken(), 2 * np.eye(3))


@pytest.mark.parametrize(
    ("methods", "text"),
    [
        ({"_rmatmat": lambda self, X: 3 * X}, "off by"),
        ({"_matvec": lambda self, x: x}, "A @ vector"),
        ({"_matmat": lambda self, X: X.astype(np.float32)}, "dtype"),
        ({"_matmat": lambda self, X: 2 * X + 1}, "off by"),
        ({"_matmat": lambda self, X: 2 * X[..., :2, :]}, "shape"),
        ({"_flops": property(lambda self: float("nan"))}, "flops"),
        ({"_infer": lambda self: co.Unitary.mask}, "orthonormal"),
        ({"shape": property(lambda self: [3, 3])}, "shape must be"),
    ],
    ids=["adjoint", "vector", "dtype", "affine", "shape", "flops", "claim", "shape type"],
)
def test_a_broken_operator_is_found_out(methods, text):
    with pytest.raises((AssertionError, ValueError), match=text):
        check_operator(broken(**methods), 2 * np.eye(3))


def test_the_wrong_matrix_is_found_out():
    with pytest.raises(AssertionError, match=re.escape("to_dense() is off by")):
        check_operator(co.Dense(np.eye(3)), np.ones((3, 3)))


# ---------------------------------------------------------------------- count_matvecs


def test_products_with_one_operator_are_counted_by_column():
    A, B = co.Dense(np.eye(3)), co.Diagonal(np.ones(3))
    with count_matvecs(A) as count:
        A @ np.ones(3)
        A @ np.ones((3, 4))
        (A + B) @ np.ones(3)
        B @ np.ones(3)
        A.H @ np.ones((3, 2))
    assert int(count) == count.matvecs == 6 and count.products == 3 and count.adjoint_matvecs == 2


def test_without_an_operator_only_outermost_products_count():
    A = co.Kronecker(np.eye(2), np.ones((3, 3))) + co.Identity(6)
    with count_matvecs() as count:
        A @ np.ones((6, 2))
    assert count.matvecs == 2 and count.products == 1


def test_counting_ends_with_the_block():
    A = co.Dense(np.eye(3))
    with count_matvecs(A) as count:
        pass
    A @ np.ones(3)
    assert count.matvecs == 0


# ---------------------------------------------------------------------- forbid_dense


def test_large_matrices_are_forbidden_and_small_ones_are_not():
    A = co.Kronecker(np.eye(10), np.eye(10))
    with forbid_dense(1000):
        A @ np.ones(100)
        A.operands[0].to_dense()
        with pytest.raises(AssertionError, match="to_dense"):
            A.to_dense()
        with pytest.raises(AssertionError, match="100 columns"):
            A @ np.eye(100)
        with pytest.raises(AssertionError, match="zeros"):
            A.xp.zeros((100, 100))
    assert A.to_dense().shape == (100, 100)


# ---------------------------------------------------------------------- printing


def test_repr_is_a_line_of_algebra():
    A = co.Kronecker(np.ones((10, 10)), np.ones((10, 10))) + 0.1 * co.Identity(100)
    assert repr(A) == "<Sum 100x100 float64 numpy: Dense(10x10) ⊗ Dense(10x10) + 0.1 I>"
    assert repr(co.PD(np.eye(3))) == "<Dense 3x3 float64 numpy [PD]>"


def test_repr_of_large_deep_and_wide_trees_is_short():
    A = co.Dense(np.eye(2))
    deep = A
    for _ in range(300):
        deep = co.opaque(deep) @ A + A
    wide = co.Sum._of(tuple([A] * 100_000))
    for B in (deep, wide):
        assert len(repr(B)) < 300
        assert len(B._repr_html_()) < 20_000


def test_html_is_escaped_and_nested():
    class Odd(co.LinearOperator):
        d: co.backends.Array
        shape = property(lambda self: (2, 2))

        def _matmat(self, X):
            return X

        def _expression(self):
            return "<script>"

    html = (Odd(np.ones(1)) + co.Dense(np.eye(2)))._repr_html_()
    assert "<script>" not in html and html.count("<li>") == 2


def test_html_tells_the_memory_of_each_node():
    html = (co.PSD(np.eye(64)) + co.Diagonal(np.ones(64)))._repr_html_()
    assert all(size in html for size in ("32.5 KiB", "32 KiB", "512 B"))
    assert "[PSD]" in html


def test_repr_of_placeholders_does_not_raise():
    A = co.Dense(np.eye(2))._map(lambda leaf: object())
    assert "Dense" in repr(A) and "Dense" in A._repr_html_()
