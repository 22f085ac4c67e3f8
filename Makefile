# `make optimize` and `make test`, the two commands of the README, do their own set-up, in a virtual environment in .venv:
# `optimize` what a run needs, `test` all dependencies of pyproject.toml. PYTHON chooses the interpreter, VENV another environment.
PYTHON ?= python3
VENV ?= .venv
# 12: the packages of CUDA 12, for drivers 550 to 575; it is chosen when the environment is made.
CUDA ?= 13
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
SHAPE ?= 4096x1024x512
ARGS ?=
NATIVE = $(shell find sandbox/emulator/core cudal2/launcher/native cudal2/torch/native agent/library/export \
  tests/doubles -name '*.?pp')

COMPILED = $(shell find sandbox/emulator/core cudal2/launcher/native -name '*.?pp')

.PHONY: help setup packages optimize test test-slow test-gpu lint check format clean

help:
	@echo "make optimize SHAPE=4096x1024x512   write, verify and time a kernel for a shape"
	@echo "make test                           run the tests that need no GPU"
	@echo "make test-slow                      run the tests that take longest and need no GPU"
	@echo "make test-gpu                       run the tests that need a GPU"
	@echo "make lint                           check format, lint and types"
	@echo "make check                          make lint, make test and make test-slow: what CI runs"
	@echo "make format                         format the sources"

setup: $(VENV)/.installed

# What a run needs, and all. The packages are installed while the parts in C++ are compiled, and their bytecode is written by all
# cores afterwards; pip would do one after the other.
$(VENV)/.runnable: SETS = run
$(VENV)/.installed: SETS = run dev
$(VENV)/.runnable $(VENV)/.installed: pyproject.toml CMakeLists.txt $(COMPILED) | $(VENV)/.created
	$(MAKE) --no-print-directory -j 2 SETS="$(SETS)" packages $(VENV)/.compiled
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # templates inside packages are no Python
	touch $(VENV)/.runnable $@

$(VENV)/.created:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cudal2-agent needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	touch $@

packages: $(VENV)/.build-tools
	$(BIN)/python .ci/requirements.py $(SETS) $(if $(filter 12,$(CUDA)),cuda12) >$(VENV)/packages.txt
	$(PIP) -r $(VENV)/packages.txt

# The project is built by packages of this environment, not of a temporary one, whose paths would have all files compiled again.
$(VENV)/.build-tools: pyproject.toml | $(VENV)/.created
	$(BIN)/python .ci/requirements.py build >$(VENV)/build.txt
	$(PIP) -r $(VENV)/build.txt
	$(BIN)/python .ci/requirements.py build >$(VENV)/build.txt  # now with what the build backend asks for
	$(PIP) -r $(VENV)/build.txt
	touch $@

$(VENV)/.compiled: pyproject.toml CMakeLists.txt $(COMPILED) $(VENV)/.build-tools
	$(PIP) --no-build-isolation --no-deps --editable .
	touch $@

optimize: $(VENV)/.runnable
	$(BIN)/cudal2-agent optimize --shape $(SHAPE) $(ARGS)

# A reader of what one export writes. Its other dependencies are large, and reading needs none of them.
$(VENV)/.installed-readers: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps 'flashinfer-bench==0.1.2' 'docstring-parser>=0.16,<1'
	touch $@

# Bytecode is written even if the environment disables it. Otherwise every test worker compiles 500 modules again.
test: setup $(VENV)/.installed-readers
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto $(ARGS)

test-slow: setup $(VENV)/.installed-readers
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto -m 'slow and not gpu' $(ARGS)

test-gpu: setup
	$(BIN)/python -m pytest -m gpu $(ARGS)

check: lint test test-slow

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror $(NATIVE)
	$(BIN)/mypy

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(NATIVE)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache *.egg-info
