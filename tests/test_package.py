"""The package as an installed thing: what it exports, what importing it costs, what it ships."""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import colinear

BASE = """
    Dense Sparse Diagonal Identity ScaledIdentity Zero Triangular Tridiagonal Banded Permutation
    Toeplitz Circulant Convolution FFT Sine LowRank Householder Projection
    Kernel Jacobian Hessian GaussNewton MatrixFree
""".split()
COMPOSED = """
    Sum Product Scaled Kronecker KroneckerSum BlockDiag Block hstack vstack BatchSum
    Transpose Adjoint Conjugate Sliced Hadamard Inverse Factorized
""".split()
OPERATOR_TOOLS = "LinearOperator as_operator opaque detect".split()
PROPERTIES = "SelfAdjoint Symmetric PSD PD Unitary Stiefel verify".split()
FUNCTIONS = """
    solve inv lstsq pinv nullspace  eig eigmax eigmin svd  diag trace det slogdet logdet
    solve_and_logdet
    exp log sqrt isqrt power apply  cholesky lu qr factorize  norm cond rank  transpose adjoint conj to_dense
""".split()
ESTIMATORS = "Hutchinson HutchPP XTrace XDiag XNysTrace SLQ".split()
# the direct ones; the iterative and stochastic join as they are written
METHODS = "Auto Cholesky LU LDL QR Eigh Eig SVD".split()
APPROXIMATIONS = "nystrom rp_cholesky range_finder interpolative cur SVRG".split()
PRECONDITIONERS = (
    "Jacobi BlockJacobi ILU IC PivotedCholesky RPCholesky Nystrom Chebyshev AMG".split()
)
DISPATCH = "function rule check_rules explain Plan".split()
REPORTS = "Info Status ApproximationWarning AnnotationError AmbiguityError".split()


def modules_after(statement: str) -> set[str]:
    """The names in `sys.modules` after a statement runs in a new interpreter."""
    root = Path(colinear.__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": str(root)}
    code = f"{statement}\nimport sys, json\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def imported() -> set[str]:
    return modules_after("import colinear")


@pytest.mark.parametrize(
    "name",
    BASE
    + COMPOSED
    + OPERATOR_TOOLS
    + PROPERTIES
    + FUNCTIONS
    + METHODS
    + ESTIMATORS
    + APPROXIMATIONS
    + PRECONDITIONERS
    + DISPATCH
    + REPORTS,
)
def test_every_public_name_is_exported(name: str) -> None:
    assert hasattr(colinear, name), f"colinear.{name} is in the contract and is not exported"
    assert name in colinear.__all__


def test_all_lists_each_name_once_and_only_what_exists() -> None:
    assert len(colinear.__all__) == len(set(colinear.__all__))
    assert [name for name in colinear.__all__ if not hasattr(colinear, name)] == []


@pytest.mark.parametrize("framework", ["torch", "jax", "jaxlib"])
def test_import_loads_no_framework(imported: set[str], framework: str) -> None:
    assert framework not in imported


@pytest.mark.parametrize(
    "module",
    [
        "scipy.sparse",  # with its solvers and graphs: as long as all the rest together
        "scipy.linalg",
        "scipy.optimize",
        "scipy.stats",
        "scipy.special",
        "hypothesis",  # colinear.testing alone may need it
        "matplotlib",
        "sklearn",  # the extra of colinear.estimators
        "colinear.estimators",  # conveniences outside the core
        "colinear.gp",
        "colinear.signals",
        "colinear.distributed.petsc",
    ],
)
def test_import_loads_nothing_that_is_slow_and_may_not_be_needed(
    imported: set[str], module: str
) -> None:
    assert module not in imported


def test_arrays_of_numpy_load_no_framework() -> None:
    use = "import numpy, colinear; colinear.solve(numpy.eye(2), numpy.ones(2))"
    assert not {"torch", "jax"} & modules_after(use)


def test_version_is_that_of_the_distribution() -> None:
    try:
        distributed = importlib.metadata.version("colinear")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("colinear runs from its source folder here and is not installed")
    assert colinear.__version__ == distributed


def test_the_version_is_the_same_wherever_it_stands() -> None:
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    cited = re.search(r"^version: (.+)$", (root / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None
    assert project["version"] == cited[1] == colinear.__version__


def test_types_are_shipped() -> None:
    assert importlib.resources.files(colinear).joinpath("py.typed").is_file()


def test_the_floors_are_the_versions_that_are_tested() -> None:
    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    floors = dict(
        each.split(">=")
        for each in [*project["dependencies"], *optional["torch"], *optional["jax"]]
    )
    tested = dict(
        re.findall(
            r"^(\w+)==([\d.]+)$", (root / "requirements" / "oldest.txt").read_text(), re.MULTILINE
        )
    )
    assert set(floors) <= set(tested)
    for name, floor in floors.items():
        assert (tested[name] + ".").startswith(floor + "."), name
