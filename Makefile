# The two commands of the README (`make optimize`, `make test`) do their own set-up: a virtual environment in .venv with
# everything from pyproject.toml. Set PYTHON to choose an interpreter, VENV to use another environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SHAPE ?= 4096x1024x512
ARGS ?=
CORE = $(shell find sandbox/emulator/core -name '*.?pp')

.PHONY: help setup optimize test test-gpu check format clean

help:
	@echo "make optimize SHAPE=4096x1024x512   write, prove and time a kernel for a shape"
	@echo "make test                           run the tests that need no GPU"
	@echo "make test-gpu                       run the tests that need one"
	@echo "make check                          format check, lint, types, tests: what CI runs"
	@echo "make format                         format the sources"

setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "cudal2-agent needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

optimize: setup
	$(BIN)/cudal2-agent optimize --shape $(SHAPE) $(ARGS)

# Bytecode is kept even where the environment says otherwise: without it, every worker compiles 500 modules anew.
test: setup
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n auto $(ARGS)

test-gpu: setup
	$(BIN)/python -m pytest -m gpu $(ARGS)

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror $(CORE)
	$(BIN)/mypy
	$(MAKE) test

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(CORE)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache *.egg-info
