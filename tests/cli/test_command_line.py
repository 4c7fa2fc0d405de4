"""The command line: what it reads and writes, what it says, and the exit codes that scripts rely on.

Most tests call `main` in this process; a few start a real one.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

import colinear as co
from colinear.cli import files, main, scripts
from colinear.methods import loop

ROOT = Path(__file__).parents[2]
rng = np.random.default_rng(0)
N = 30
LAPLACE = sp.diags_array([-1.0, 2.0, -1.0], offsets=[-1, 0, 1], shape=(N, N), format="csr")
GENERAL = rng.standard_normal((N, N)) + 8 * np.eye(N)
RIGHT_SIDE = rng.standard_normal(N)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with some files, which is the current one."""
    monkeypatch.chdir(tmp_path)
    scipy.io.mmwrite("grid.mtx", sp.kronsum(LAPLACE, LAPLACE))
    scipy.io.mmwrite("line.mtx", LAPLACE)
    np.save("general.npy", GENERAL)
    np.save("b.npy", RIGHT_SIDE)
    np.savez("two.npz", A=GENERAL, b=RIGHT_SIDE)
    sp.save_npz("sparse.npz", sp.csr_array(LAPLACE))
    np.save("singular.npy", np.diag([1.0, 1.0, 0.0]))
    np.save("three.npy", np.ones(3))
    np.save("tall.npy", GENERAL[:, :5])
    return tmp_path


def answer(capsys: Any, *arguments: str, code: int = 0) -> dict[str, Any]:
    """The JSON object that a command prints, which is all that it prints."""
    assert main([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


# ------------------------------------------------------------------ files


@pytest.mark.parametrize("name", ["x.mtx", "x.mtx.gz", "x.npy", "x.npz"])
@pytest.mark.parametrize("kind", ["real", "complex", "columns"])
def test_what_is_written_is_read_back_to_the_last_bit(folder: Path, name: str, kind: str) -> None:
    x = {"real": RIGHT_SIDE, "complex": RIGHT_SIDE + 1j, "columns": GENERAL[:, :3]}[kind]
    files.write(name, x)
    np.testing.assert_array_equal(files.read_columns(name), x)
    assert not list(folder.glob("*.part"))


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
def test_sparse_files_stay_sparse(folder: Path, form: str) -> None:
    S = sp.random_array((40, 30), density=0.1, rng=1, format=form)
    sp.save_npz("S.npz", S)
    scipy.io.mmwrite("S.mtx", S)
    for name in ("S.npz", "S.mtx"):
        found = files.read_matrix(name)
        assert sp.issparse(found)
        np.testing.assert_array_equal(found.toarray(), S.toarray())


def bad_files() -> dict[str, tuple[bytes | None, str]]:
    nan = b"%%MatrixMarket matrix array real general\n2 2\n1\nnan\n0\n1\n"
    return {
        "missing.mtx": (None, "no such file"),
        "empty.mtx": (b"", "the file is empty"),
        "blank.mtx": (b"  \n\n", "the file is empty"),
        "empty.npy": (b"", "the file is empty"),
        "empty.npz": (b"", "the file is empty"),
        "header.mtx": (b"%%MatrixMarket matrix coord", "not a readable .mtx file"),
        "body.mtx": (
            b"%%MatrixMarket matrix coordinate real general\n3 3 4\n1 1 1.0\n",
            "Truncated",
        ),
        "outside.mtx": (
            b"%%MatrixMarket matrix coordinate real general\n2 2 1\n7 1 1.0\n",
            "not a readable .mtx file",
        ),
        "words.mtx": (b"these are words\n", "does not begin with %%MatrixMarket"),
        "nan.mtx": (nan, "1 of its entries are NaN"),
        "cut.mtx.gz": (b"\x1f\x8b\x08\x00abc", "not a readable .mtx.gz file"),
        "words.npy": (b"these are words", "no .npy file"),
        "cut.npy": (b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fort", "not a readable .npy file"),
        "words.npz": (b"these are words", "not an .npz file"),
        "matrix.csv": (b"1,2\n", "cannot tell the format"),
    }


@pytest.mark.parametrize("name", bad_files())
def test_a_bad_file_is_one_line_and_exit_code_3(folder: Path, capsys: Any, name: str) -> None:
    content, words = bad_files()[name]
    if content is not None:
        Path(name).write_bytes(content)
    assert main(["trace", name]) == 3
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("colinear: ") and printed.err.count("\n") == 1
    assert words in printed.err and name in printed.err


@pytest.mark.parametrize(
    "dtype", ["int8", "bool", "float16", ">f8", ">c8", "longdouble", "complex64"]
)
def test_numbers_of_any_kind_are_read(folder: Path, capsys: Any, dtype: str) -> None:
    np.save("A.npy", (2 * np.eye(4) if dtype != "bool" else np.eye(4)).astype(dtype))
    for command in (["info"], ["trace"], ["eig", "-k", "2"]):
        assert main([command[0], "A.npy", *command[1:]]) == 0, capsys.readouterr().err


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0)])
def test_an_empty_matrix_is_refused_but_described(
    folder: Path, capsys: Any, shape: tuple[int, int]
) -> None:
    np.save("A.npy", np.zeros(shape))
    assert main(["info", "A.npy"]) == 0
    assert main(["eig", "A.npy"]) == main(["trace", "A.npy"]) == 3
    assert "the matrix is empty" in capsys.readouterr().err


def test_nothing_is_unpickled(folder: Path, capsys: Any) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return os.mkdir, ("sprung",)

    np.save("objects.npy", np.array([Trap()], dtype=object), allow_pickle=True)
    np.savez("objects.npz", a=np.array([Trap()], dtype=object))
    Path("pickle.npy").write_bytes(pickle.dumps(Trap()))
    for name in ("objects.npy", "objects.npz", "pickle.npy"):
        assert main(["trace", name]) == 3
    assert not Path("sprung").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["trace", "."], "is a directory"),
        (["trace", "two.npz"], "choose one, as in two.npz:A"),
        (["trace", "two.npz:C"], "has no array 'C'"),
        (["trace", "b.npy"], "expected a matrix"),
        (["trace", "tall.npy"], "30x5; trace is that of a square matrix"),
        (["eig", "tall.npy"], "eigenvalues are those of square matrices"),
        (["solve", "tall.npy", "b.npy"], "--least-squares"),
        (["solve", "general.npy", "three.npy"], "3 rows, but the matrix is 30x30"),
        (["solve", "general.npy", "b.npy", "-o", "nowhere/x.npy"], "there is no folder"),
        (["solve", "general.npy", "b.npy", "-o", "x.csv"], "cannot tell the format"),
        (["info", "general.npy", "--picture", "spy.doc"], "a picture is a .png"),
        (["trace", "general.npy", "--annotate", "PSD", "--dtype", "complex64", "--no-detect"], ""),
    ],
)
def test_what_does_not_fit_is_exit_code_3(
    folder: Path, capsys: Any, arguments: list[str], words: str
) -> None:
    assert main(arguments) == (3 if words else 0)
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["frobnicate"],
        ["solve", "general.npy"],
        ["trace", "general.npy", "--what"],
        ["trace", "general.npy", "--method", "Magic"],
        ["trace", "general.npy", "--method", "LU", "--max-iters", "3"],
        ["trace", "general.npy", "--tol", "-1"],
        ["trace", "general.npy", "--annotate", "Nice"],
        ["trace", "general.npy", "--dtype", "float13"],
        ["eig", "general.npy", "-k", "31"],
        ["eig", "general.npy", "--which", "XX"],
        ["explain", "general.npy", "--function", "print"],
        ["examples", "no_such_example"],
        ["solve", "general.npy", "b.npy", "--method", "Lanczos"],
    ],
)
def test_usage_errors_are_exit_code_2(folder: Path, capsys: Any, arguments: list[str]) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "Traceback" not in printed.err and printed.err


# ------------------------------------------------------------------ answers


def test_solve_uses_the_structure_and_writes_the_answer(folder: Path, capsys: Any) -> None:
    np.save("ones.npy", np.ones(N * N))
    found = answer(capsys, "solve", "grid.mtx", "ones.npy", "-o", "x.mtx")
    x = files.read_columns("x.mtx")
    grid = sp.kronsum(LAPLACE, LAPLACE)
    assert found["structure"] == "Kronecker sum" and found["rule"] == "solve_by_lines"
    assert found["residual"] == pytest.approx(np.linalg.norm(grid @ x - 1) / N)
    assert found["status"] == "SUCCESS" and found["exit_code"] == 0 and found["seconds"] > 0


def test_a_named_method_runs_on_the_matrix_itself(folder: Path, capsys: Any) -> None:
    found = answer(
        capsys,
        "solve",
        "line.mtx",
        "b.npy",
        "--method",
        "cg",
        "--tol",
        "1e-10",
        "--annotate",
        "PSD",
    )
    assert (
        found["method"] == "CG"
        and found["iterations"] <= N
        and found["matvecs"] >= found["iterations"]
    )
    assert "structure" not in found
    np.testing.assert_allclose(LAPLACE @ np.array(found["x"]), RIGHT_SIDE, atol=1e-8)
    assert (
        answer(capsys, "solve", "line.mtx", "b.npy", "--method", "CG", "--detect")["structure"]
        == "tridiagonal"
    )


def test_an_answer_that_misses_the_tolerance_is_written_and_exit_code_1(
    folder: Path, capsys: Any
) -> None:
    assert (
        main(["solve", "line.mtx", "b.npy", "--method", "CG", "--max-iters", "3", "-o", "x.npy"])
        == 1
    )
    printed = capsys.readouterr()
    assert np.load("x.npy").shape == (N,)
    assert printed.err.startswith("colinear: MAX_ITERATIONS: ") and printed.err.count("\n") == 1


@pytest.mark.parametrize(
    "method", [[], ["--method", "LU"], ["--method", "Cholesky", "--annotate", "PD"]]
)
def test_a_singular_system_is_exit_code_4_and_nothing_is_written(
    folder: Path, capsys: Any, method: list[str]
) -> None:
    assert main(["solve", "singular.npy", "three.npy", "-o", "x.npy", *method]) == 4
    assert not Path("x.npy").exists()
    assert "Traceback" not in capsys.readouterr().err


def test_least_squares_takes_any_shape(folder: Path, capsys: Any) -> None:
    found = answer(capsys, "solve", "tall.npy", "b.npy", "--least-squares")
    np.testing.assert_allclose(
        found["x"], np.linalg.lstsq(GENERAL[:, :5], RIGHT_SIDE)[0], atol=1e-10
    )


def test_complex_right_sides_and_columns(folder: Path, capsys: Any) -> None:
    B = GENERAL[:, :2] + 1j * GENERAL[:, 2:4]
    np.save("B.npy", B)
    assert main(["solve", "general.npy", "B.npy", "-o", "X.npz"]) == 0
    np.testing.assert_allclose(GENERAL @ files.read_columns("X.npz"), B, atol=1e-10)


def test_standard_output_takes_the_answer_and_standard_error_the_rest(
    folder: Path, capsys: Any
) -> None:
    assert main(["solve", "two.npz:A", "two.npz:b", "-o", "-"]) == 0
    printed = capsys.readouterr()
    Path("x.mtx").write_text(printed.out)
    np.testing.assert_allclose(GENERAL @ files.read_columns("x.mtx"), RIGHT_SIDE, atol=1e-10)
    assert "SUCCESS" in printed.err


def test_eigenvalues_with_their_vectors(folder: Path, capsys: Any) -> None:
    found = answer(capsys, "eig", "line.mtx", "-k", "3", "--which", "SA", "-o", "pairs.npz")
    wanted = 2 - 2 * np.cos(np.pi * np.arange(1, 4) / (N + 1))
    np.testing.assert_allclose(found["values"], wanted, atol=1e-10)
    with np.load("pairs.npz") as pairs:
        np.testing.assert_allclose(
            LAPLACE @ pairs["vectors"], pairs["vectors"] * pairs["values"], atol=1e-7
        )
    complex_pairs = answer(capsys, "eig", "general.npy", "-k", "4", "-o", "values.npy")["values"]
    assert np.load("values.npy").shape == (4,) and all(len(pair) == 2 for pair in complex_pairs)


def test_singular_values(folder: Path, capsys: Any) -> None:
    found = answer(capsys, "svd", "tall.npy", "-k", "2", "-o", "triplets.npz")
    np.testing.assert_allclose(found["values"], np.linalg.svd(GENERAL[:, :5])[1][:2])
    with np.load("triplets.npz") as file:
        np.testing.assert_allclose(GENERAL[:, :5] @ file["V"], file["U"] * file["s"], atol=1e-10)


def test_numbers_of_a_matrix(folder: Path, capsys: Any) -> None:
    assert answer(capsys, "trace", "general.npy")["value"] == pytest.approx(np.trace(GENERAL))
    assert answer(capsys, "logdet", "line.mtx")["value"] == pytest.approx(np.log(N + 1))
    assert main(["trace", "sparse.npz"]) == 0
    assert capsys.readouterr().out.endswith("trace:      60\n")


def test_an_estimate_has_its_error_bar(folder: Path, capsys: Any) -> None:
    A = rng.standard_normal((300, 300))
    np.save("large.npy", A)
    arguments = ("trace", "large.npy", "--method", "Hutchinson", "--seed", "3")
    found = answer(capsys, *arguments)
    assert 0 < found["error"] and abs(found["value"] - np.trace(A)) < 6 * found["error"]
    assert found["value"] == answer(capsys, *arguments)["value"]
    assert main(list(arguments)) == 0
    assert "this is an estimate" in capsys.readouterr().out


def test_errors_are_json_too(folder: Path, capsys: Any) -> None:
    assert "no such file" in answer(capsys, "trace", "missing.mtx", code=3)["error"]
    assert answer(capsys, "solve", "general.npy", "b.npy", "-o", "-", code=2)["exit_code"] == 2


def test_infinity_is_valid_json(folder: Path, capsys: Any) -> None:
    main(["logdet", "singular.npy", "--json"])
    found = json.loads(
        capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON")
    )
    assert found["value"] == "-inf"


def test_explain_prints_the_plan(folder: Path, capsys: Any) -> None:
    assert "solve_by_lines" in answer(capsys, "explain", "grid.mtx")["rules"]
    assert main(["explain", "grid.mtx", "--function", "logdet", "--no-detect"]) == 0
    assert "Sparse(900x900" in capsys.readouterr().out


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_other_frameworks_compute_too(folder: Path, capsys: Any, backend: str) -> None:
    pytest.importorskip(backend)
    found = answer(
        capsys, "solve", "general.npy", "b.npy", "--backend", backend, "--dtype", "float32"
    )
    np.testing.assert_allclose(GENERAL @ np.array(found["x"]), RIGHT_SIDE, atol=1e-4)
    assert backend in found["operator"]


# ------------------------------------------------------------------ what a matrix is


def test_info_tells_what_a_matrix_is(folder: Path, capsys: Any) -> None:
    facts = answer(capsys, "info", "grid.mtx")
    assert facts["shape"] == [N * N, N * N] and facts["nonzeros"] == 5 * N * N - 4 * N
    assert facts["symmetry"] == "self-adjoint" and facts["definite"] == "positive definite (proven)"
    assert facts["structure"] == "Kronecker sum" and facts["bandwidth"] == {"lower": N, "upper": N}
    largest, smallest = (2 + 2 * np.cos(np.pi / (N + 1)), 2 - 2 * np.cos(np.pi / (N + 1)))
    assert facts["condition"] == pytest.approx(largest / smallest)
    assert main(["info", "general.npy", "--picture", "spy.png"]) == 0
    text = capsys.readouterr().out
    assert (
        "symmetry      none" in text
        and "definite      no: not self-adjoint" in text
        and "+----" in text
    )
    assert Path("spy.png").read_bytes().startswith(b"\x89PNG")


def test_the_condition_of_a_large_matrix_is_estimated_from_its_factors(
    folder: Path, capsys: Any
) -> None:
    n = 2000
    sp.save_npz(
        "long.npz",
        sp.diags_array([-1.0, 2.5, -1.0], offsets=[-1, 0, 1], shape=(n, n), format="csr"),
    )
    facts = answer(capsys, "info", "long.npz")
    assert facts["condition"] == pytest.approx(9, rel=0.1)  # 4.5 / 0.5
    assert "condition" not in answer(capsys, "info", "long.npz", "--no-condition", "--no-spy")


@pytest.mark.parametrize(
    "A",
    [np.zeros((3, 4)), np.zeros((2, 2)), -np.eye(3), np.ones((1, 1)), np.diag([1.0, 0.0, -2.0])],
)
def test_info_of_small_and_odd_matrices(folder: Path, capsys: Any, A: Any) -> None:
    np.save("A.npy", A)
    assert main(["info", "A.npy"]) == 0
    assert main(["info", "A.npy", "--json"]) == 0


def test_the_text_picture_shows_every_corner() -> None:
    from colinear.cli.describe import spy

    A = np.zeros((300, 500))
    A[0, 0] = A[-1, -1] = A[0, -1] = 1e-30
    lines = spy(sp.csr_array(A))
    assert (
        lines[1][1] != " " and lines[1][-2] != " " and lines[-2][-2] != " " and lines[-2][1] == " "
    )
    assert len({len(line) for line in lines}) == 1


# ------------------------------------------------------------------ what goes wrong


def test_an_interrupt_is_exit_code_130(
    folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any, **keywords: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(co, "trace", interrupted)
    assert main(["trace", "general.npy"]) == 130
    assert capsys.readouterr().err == "colinear: interrupted\n"


def test_a_mistake_of_ours_has_no_traceback_unless_asked_for(
    folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*arguments: Any, **keywords: Any) -> Any:
        raise KeyError("something")

    monkeypatch.setattr(co, "trace", wrong)
    assert main(["trace", "general.npy"]) == 4
    printed = capsys.readouterr().err
    assert "KeyError" in printed and printed.count("\n") == 1
    assert main(["trace", "general.npy", "--traceback"]) == 4
    assert "Traceback" in capsys.readouterr().err


def test_progress_is_told_where_it_is_asked_for(
    folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "SECONDS_UNSEEN", 0.0)
    arguments = ["solve", "line.mtx", "b.npy", "--method", "CG", "--json"]
    assert main(arguments) == 0
    assert capsys.readouterr().err == ""
    assert main([*arguments, "--progress"]) == 0
    printed = capsys.readouterr()
    assert "reading line.mtx" in printed.err and "solve line.mtx > solve 30x30" in printed.err
    json.loads(printed.out)


def test_a_package_that_is_not_there_is_exit_code_5(
    folder: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["info", "general.npy", "--picture", "spy.png"]) == 5
    assert "pip install 'colinear[plot]'" in capsys.readouterr().err


# ------------------------------------------------------------------ scripts


def test_the_examples_and_benchmarks_of_the_repository_are_listed(capsys: Any) -> None:
    assert main(["examples"]) == 0
    listed = capsys.readouterr().out
    assert "demo  " in listed and "gallery" not in listed.split()
    assert main(["bench"]) == 0
    assert "rules" in capsys.readouterr().out


TOY = '''"""What it does."""
if __name__ == "__main__":
    import sys, colinear
    print(sys.argv[1:])
    sys.exit(len(sys.argv) - 3)
# --small
'''


def test_a_script_runs_with_its_own_arguments_and_its_failure_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    (tmp_path / "toy.py").write_text(TOY)
    monkeypatch.setattr(scripts, "folder", lambda name: tmp_path)
    assert main(["examples"]) == 0
    assert main(["examples", "toy", "--small", "--depth=2"]) == 0
    assert main(["bench", "toy", "--depth"]) == 1
    assert "['--small', '--depth=2']" in capfd.readouterr().out


NEEDY = '''"""Needs packages."""
import beside
import not_there_at_all
try:
    import optional_and_absent
except ImportError:
    pass

def draw():
    import matplotlib.pyplot

if __name__ == "__main__":
    print("it has started")
# --figure
'''


@pytest.mark.parametrize("command", ["examples", "bench"])
def test_a_script_without_its_packages_is_not_started(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    (tmp_path / "needy.py").write_text(NEEDY)
    (tmp_path / "beside.py").write_text(
        "import absent_too\ndef draw(): import torch\ndef other(): import unused_and_absent\n"
    )
    monkeypatch.setattr(scripts, "folder", lambda name: tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    figure = ["--figure=a.png"] if command == "bench" else []
    assert main([command, "needy", *figure]) == 5
    printed = capfd.readouterr()
    assert "started" not in printed.out
    assert "needs absent_too and matplotlib and not_there_at_all and torch" in printed.err
    assert (
        "pip install absent_too 'colinear[plot]' not_there_at_all 'colinear[torch]'" in printed.err
    )
    if command == "bench":  # without a figure nothing is drawn
        assert main([command, "needy"]) == 5
        assert "matplotlib" not in capfd.readouterr().err


def test_the_demo_without_matplotlib_ends_at_once(tmp_path: Path) -> None:
    hidden = "import sys\nclass Hide:\n    def find_spec(self, name, *rest):\n        if name.partition('.')[0] == 'matplotlib':\n"
    (tmp_path / "sitecustomize.py").write_text(
        hidden + "            raise ImportError(name)\nsys.meta_path.insert(0, Hide())\n"
    )
    paths = os.pathsep.join([str(tmp_path), str(ROOT / "src")])
    command = [
        sys.executable,
        "-c",
        "from colinear.cli import main; raise SystemExit(main(['demo', '--small']))",
    ]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=60
    )
    assert (
        done.returncode == 5 and done.stdout == "" and "pip install 'colinear[plot]'" in done.stderr
    )


def test_every_script_of_the_repository_has_its_packages_found() -> None:
    assert {"torch", "colinear", "numpy"} <= scripts.needed(
        ROOT / "examples" / "neural_pde.py", True
    )
    assert {"matplotlib", "colinear"} <= scripts.needed(ROOT / "examples" / "demo.py", True)
    assert {"jax", "torch"} <= scripts.needed(ROOT / "benchmarks" / "autodiff.py", False)
    paper = scripts.needed(ROOT / "benchmarks" / "paper.py", False)
    assert not paper & {"torch", "jax", "matplotlib", "linear_operator"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_long_computation_shows_on_a_terminal_that_it_is_alive(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(A: Any, *arguments: Any, **keywords: Any) -> Any:
        time.sleep(0.2)
        return eig(A, *arguments, **keywords)

    eig = co.eig
    monkeypatch.setattr(co, "eig", slow)
    monkeypatch.setattr(loop, "SECONDS_UNSEEN", 0.0)
    monkeypatch.setattr(loop, "SECONDS_ON_TERMINAL", 0.05)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    for terminal, named, signs in (
        (Terminal(), [], True),
        (Terminal(), ["--method", "Eig"], True),
        (io.StringIO(), [], False),
    ):
        monkeypatch.setattr(sys, "stderr", terminal)
        assert main(["eig", "general.npy", "-k", "1", "--which", "SM", "--json", *named]) == 0
        text = terminal.getvalue()
        assert (text.count("\033[Keig general.npy, 0 s") > 1) is signs


def test_the_command_is_installed_under_its_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["scripts"] == {"colinear": "colinear.cli:main"}
    packed = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert all(
        (ROOT / source).is_dir() and target.startswith("colinear/_gallery/")
        for source, target in packed.items()
    )


# ------------------------------------------------------------------ as a process


def process(*arguments: str) -> Any:
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "colinear", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


def test_as_a_process_it_solves(folder: Path) -> None:
    done = process("solve", "line.mtx", "b.npy", "--json")
    assert done.returncode == 0 and done.stderr == ""
    assert json.loads(done.stdout)["structure"] == "tridiagonal"


def test_as_a_process_it_fails_in_one_line(folder: Path) -> None:
    Path("header.mtx").write_text("%%MatrixMarket mat")
    Path("empty.npz").touch()
    for line, code in (
        ("trace header.mtx", 3),
        ("trace empty.npz", 3),
        ("solve general.npy three.npy", 3),
        ("eig", 2),
    ):
        done = process(*line.split())
        assert done.returncode == code and done.stdout == ""
        assert "Traceback" not in done.stderr and (code == 2 or done.stderr.count("\n") == 1)


def test_as_a_process_it_reads_standard_input_and_survives_a_reader_that_leaves(
    folder: Path,
) -> None:
    n = 20_000
    np.save("long.npy", np.ones(n))
    matrix = f"%%MatrixMarket matrix coordinate real general\n{n} {n} {n}\n" + "".join(
        f"{i} {i} 2\n" for i in range(1, n + 1)
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(
        [sys.executable, "-m", "colinear", "solve", "-", "long.npy", "-o", "-"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True,
    ) as running:  # fmt: skip
        assert running.stdin and running.stdout and running.stderr
        running.stdout.close()
        running.stdin.write(matrix)
        running.stdin.close()
        errors = running.stderr.read()
    assert running.returncode == 141 and "Traceback" not in errors and "BrokenPipe" not in errors


def test_the_commands_of_the_page_are_ones_that_there_are() -> None:
    from colinear.cli import parser

    page = (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8")
    commands = [
        line.partition("#")[0].split()[2:]
        for line in page.splitlines()
        if line.startswith("$ colinear")
    ]
    assert len(commands) > 8
    for command in commands:
        parser().parse_args(command)  # raises SystemExit if not
