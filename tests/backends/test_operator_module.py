"""Operators as modules of torch: parameters, checkpoints, devices, training."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch

import colinear as co

torch.manual_seed(0)


def gaussian(X: torch.Tensor, Y: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
    return torch.exp(-((X[:, None] - Y) ** 2).sum(-1) / (2 * length**2))


def example() -> co.LinearOperator:
    d, U = torch.linspace(1, 2, 5, dtype=torch.float64), torch.ones(5, 1, dtype=torch.float64)
    return co.PSD(co.Diagonal(d) + co.LowRank(U))


def kernel_module(n: int = 6) -> co.OperatorModule:
    X = torch.linspace(0, 1, n, dtype=torch.float64)[:, None]
    K = co.Kernel(gaussian, X, parameters=(torch.tensor(0.5, dtype=torch.float64),))
    return co.OperatorModule(
        co.PSD(K + torch.tensor(0.1, dtype=torch.float64) * co.Identity(n)), frozen=["X"]
    )


def test_parameters_are_named_by_their_way_through_the_tree() -> None:
    model = co.OperatorModule(example())
    assert [name for name, _ in model.named_parameters()] == ["operands_0_d", "operands_1_U"]


def test_the_operator_is_the_one_given_with_its_claims() -> None:
    A, model = example(), co.OperatorModule(example())
    assert torch.equal(model.operator.to_dense(), A.to_dense())
    assert model.operator.isa(co.PSD)
    recorded = A.with_arrays([x.clone().requires_grad_() for x in A.arrays()])
    assert co.explain(co.solve, model.operator).rules == co.explain(co.solve, recorded).rules
    x = torch.ones(5, dtype=torch.float64)
    assert torch.allclose(model(x), A @ x)


def test_gradients_reach_the_parameters() -> None:
    model = co.OperatorModule(example())
    co.logdet(model.operator).backward()
    inverse = torch.linalg.inv(example().to_dense())
    assert torch.allclose(model.operands_0_d.grad, inverse.diagonal())
    assert torch.allclose(model.operands_1_U.grad, 2 * inverse @ example().operands[1].U)


def test_parameters_given_are_kept_and_shared_ones_registered_once() -> None:
    own = torch.nn.Parameter(torch.eye(2, dtype=torch.float64))
    model = co.OperatorModule(co.Kronecker(co.Dense(own), co.Dense(own)))
    assert [p is own for p in model.parameters()] == [True]
    assert model.operator.operands[0].A is model.operator.operands[1].A


def test_frozen_and_integer_leaves_are_buffers() -> None:
    model = kernel_module()
    assert [name for name, _ in model.named_buffers()] == ["operands_0_X"]
    assert [name for name, _ in model.named_parameters()] == [
        "operands_0_parameters_0",
        "operands_1_c",
    ]
    with pytest.raises(ValueError, match=r"no leaf is called \['Z'\]; there are"):
        co.OperatorModule(example(), frozen="Z")


def test_state_dicts_make_the_round_trip() -> None:
    model, other = co.OperatorModule(example()), co.OperatorModule(example())
    with torch.no_grad():
        model.operands_0_d.mul_(3)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other.operator.to_dense(), model.operator.to_dense())


def test_to_moves_dtype_and_device() -> None:
    model = co.OperatorModule(example()).to(torch.float32)
    assert model.operator.dtype == torch.float32
    assert model(torch.ones(5)).dtype == torch.float32
    assert str(model.to("meta").operator.device) == "meta"


@pytest.mark.parametrize(
    "again",
    [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))],
    ids=["deepcopy", "pickle"],
)
def test_copies_have_parameters_of_their_own(again) -> None:
    model = kernel_module()
    other = again(model)
    with torch.no_grad():
        other.operands_1_c.fill_(7.0)
    assert model.operands_1_c.item() == 0.1
    assert torch.allclose(
        other.operator.to_dense(),
        model.operator.to_dense() + 6.9 * torch.eye(6, dtype=torch.float64),
    )


def test_training_lowers_the_loss() -> None:
    model, y = kernel_module(), torch.linspace(-1, 1, 6, dtype=torch.float64)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(10):
        optimiser.zero_grad()
        inverse = co.inv(model.operator)
        loss = y @ (inverse @ y) - co.logdet(inverse)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.3


def test_a_parametrisation_keeps_a_leaf_positive() -> None:
    model = kernel_module()
    torch.nn.utils.parametrize.register_parametrization(model, "operands_1_c", torch.nn.Softplus())
    assert torch.allclose(
        co.diag(model.operator),
        1 + torch.nn.functional.softplus(torch.tensor(0.1, dtype=torch.float64)),
    )


def test_it_is_a_part_of_larger_modules_and_works_with_functional_call() -> None:
    model = torch.nn.Sequential(co.OperatorModule(example()), torch.nn.Flatten(0))
    parameters = dict(model.named_parameters())
    assert list(parameters) == ["0.operands_0_d", "0.operands_1_U"]
    X = torch.ones(5, 1, dtype=torch.float64)

    def loss(parameters: dict) -> torch.Tensor:
        return torch.func.functional_call(model, parameters, (X,)).sum()

    gradient = torch.func.grad(loss)({name: p.detach() for name, p in parameters.items()})
    assert torch.allclose(gradient["0.operands_0_d"], torch.ones(5, dtype=torch.float64))


def test_operators_of_other_frameworks_are_refused() -> None:
    with pytest.raises(TypeError, match=r"of numpy .* move it with"):
        co.OperatorModule(co.Diagonal([1.0, 2.0]))


def test_importing_colinear_does_not_import_torch_for_it() -> None:
    code = "import sys, colinear; assert 'torch' not in sys.modules; from colinear import *; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
