# Needs Python 3.11 or newer with pip and venv, and a C compiler (torch.compile uses it in the tests).
# Everything else is installed into environments inside this folder.

PYTHON  ?= python3
WORKERS ?= 2# test processes
PYTEST  ?=# more arguments for pytest, as in: make test PYTEST="-k kronecker"
SEED    ?= 0# of make fuzz
MINUTES ?= 1# of make fuzz, for each backend
PAPER   ?=# arguments of benchmarks/paper.py, as in: make bench-paper PAPER="structure --scale 1"

VENV := .venv
DEMO := .venv-demo
PEERS := .venv-bench
OLDEST := .venv-oldest
DIST := .venv-dist
LARGEST_ARCHIVE := 3000000# bytes, of the wheel (1.0 MB) and of the source archive (2.2 MB)
BIN  := $(VENV)/bin
PIP_INSTALL := -m pip install --disable-pip-version-check --progress-bar off --quiet

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-oldest test-gpu fuzz lint format docs dist bench bench-paper clean distclean

help:
	@echo "make demo       a million unknowns in NumPy: installs NumPy, SciPy and matplotlib alone, runs examples/demo.py"
	@echo "make test       ruff, mypy and all tests on the CPU (installs torch and JAX on the first call)"
	@echo "make test-oldest  a selection of the tests with the oldest NumPy, SciPy, torch and JAX that pyproject.toml allows"
	@echo "make test-gpu   the tests that need a CUDA device, with the packages of \$$PYTHON"
	@echo "make fuzz       random operators against dense references: SEED=0 MINUTES=1 (for each backend)"
	@echo "make lint       ruff and mypy alone;  make format: let ruff rewrite the files"
	@echo "make docs       the site, into site/"
	@echo "make dist       wheel and source archive, into dist/: checked, and tried in an empty environment"
	@echo "make bench      every script of benchmarks/, in an environment with the libraries that compete"
	@echo "make bench-paper  the paper's figures alone; PAPER=\"structure-a --scale 1\" picks figures and sizes"
	@echo "make clean      remove caches and outputs;  make distclean: the environments too"

# --- environments: made once, brought up to date when the files that describe them change ---------------

define make_environment
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "colinear needs Python 3.11 or newer; " \
	    + sys.executable + " is " + sys.version.split()[0] + ". Use: make PYTHON=python3.12 ...")'
	@echo "Installing into $(1) ..."
	@test -x $(1)/bin/python || $(PYTHON) -m venv $(1)
endef

$(VENV)/.installed: pyproject.toml requirements/test.txt
	$(call make_environment,$(VENV))
	$(BIN)/python $(PIP_INSTALL) -r requirements/test.txt
	@touch $@

$(PEERS)/.installed: pyproject.toml requirements/bench.txt
	$(call make_environment,$(PEERS))
	$(PEERS)/bin/python $(PIP_INSTALL) -r requirements/bench.txt
	@touch $@

$(OLDEST)/.installed: pyproject.toml requirements/oldest.txt
	$(call make_environment,$(OLDEST))
	$(OLDEST)/bin/python $(PIP_INSTALL) -r requirements/oldest.txt
	$(OLDEST)/bin/python $(PIP_INSTALL) --no-deps -e .
	@touch $@

$(DEMO)/.installed: pyproject.toml
	$(call make_environment,$(DEMO))
	$(DEMO)/bin/python $(PIP_INSTALL) -e '.[demo]'
	@touch $@

# --- commands ---------------------------------------------------------------------------------------------

demo: export MPLBACKEND = Agg
demo: $(DEMO)/.installed
	$(DEMO)/bin/python examples/demo.py

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The tests of a file run in one process, since they share what JAX compiles.
# One thread a process: the processes share the cores, and BLAS threads on small matrices only get in the way.
test: export OMP_NUM_THREADS = 1
test: export OPENBLAS_NUM_THREADS = 1
test: export MKL_NUM_THREADS = 1
test: export JAX_PLATFORMS = cpu
test: export MPLBACKEND = Agg
test: lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(PYTEST)

fuzz: $(VENV)/.installed
	$(BIN)/python tests/fuzz --seed $(SEED) --minutes $(MINUTES)

# Every function of every operator on NumPy and torch; on JAX, which compiles each, of a few operators.
test-oldest: export OMP_NUM_THREADS = 1
test-oldest: export OPENBLAS_NUM_THREADS = 1
test-oldest: export JAX_PLATFORMS = cpu
test-oldest: $(OLDEST)/.installed
	$(OLDEST)/bin/python -m pytest tests/conformance/test_operators.py tests/conformance/test_functions.py \
	    -k "not jax or sparse_wide or kronecker_plus or annotated_pd_tridiagonal or lowrank_core or block_saddle" $(PYTEST)

# Uses the packages of $(PYTHON), not .venv: which CUDA build of torch and JAX fits is the machine's affair.
test-gpu: export JAX_PLATFORMS =
test-gpu: export XLA_PYTHON_CLIENT_PREALLOCATE = false
test-gpu:
	$(PYTHON) -m pytest -m gpu $(PYTEST)

format: $(VENV)/.installed
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

docs: export NO_MKDOCS_2_WARNING = 1# mkdocs is held below 2 in pyproject.toml
docs: $(VENV)/.installed
	$(BIN)/mkdocs build --strict

# The wheel is installed with NumPy and SciPy alone, away from this folder, so that only what it ships is tried.
dist:
	rm -rf dist $(DIST)
	$(call make_environment,$(DIST))
	$(DIST)/bin/python $(PIP_INSTALL) build twine
	$(DIST)/bin/python -m build --outdir dist .
	$(DIST)/bin/twine check --strict dist/*
	@for file in dist/*; do size=$$(wc -c < $$file); echo "$$file: $$size bytes"; \
	    test $$size -le $(LARGEST_ARCHIVE) || { echo "$$file is larger than $(LARGEST_ARCHIVE) bytes"; exit 1; }; done
	rm -rf $(DIST) && $(PYTHON) -m venv $(DIST)
	$(DIST)/bin/python $(PIP_INSTALL) dist/*.whl
	cd dist && ../$(DIST)/bin/python -I -W error -c "import numpy as np, colinear as co; from colinear import signals; \
	    from importlib.metadata import version; assert co.__version__ == version('colinear'); \
	    A = co.Identity(400) - signals.laplacian((20, 20)); x, info = co.solve(A, np.ones(400), info=True); \
	    assert info.status.name == 'SUCCESS' and np.allclose(A @ x, 1); print('colinear', co.__version__, 'solves')"
	cd dist && ../$(DIST)/bin/colinear --help > /dev/null
	cd dist && ../$(DIST)/bin/python -I -c "import re; from importlib.metadata import metadata; \
	    assert not re.findall(r'\]\((?!https?://|#)[^)]*\)', metadata('colinear')['Description']), 'the long description has relative links'"

# problems.py holds the problems of the others. In an environment of its own, since it has all the libraries that compete.
BENCHMARKS = $(filter-out benchmarks/problems.py,$(wildcard benchmarks/*.py))
bench: $(PEERS)/.installed
	@set -e; for script in $(BENCHMARKS); do echo "== $$script"; $(PEERS)/bin/python $$script; done

bench-paper: $(PEERS)/.installed
	$(PEERS)/bin/python benchmarks/paper.py $(PAPER)

clean:
	rm -rf build dist site output .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests examples benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean
	rm -rf $(VENV) $(DEMO) $(PEERS) $(OLDEST) $(DIST)
