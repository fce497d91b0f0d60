PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help venv check lint types test quick bench docs clean

help:  ## what there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

venv: $(BIN)/ggufslice  ## a virtual environment with everything for development

$(BIN)/ggufslice: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet --editable '.[dev]'
	@touch $@

check: lint types  ## lint and types

lint: venv  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: venv  ## mypy --strict on src and tests
	$(BIN)/mypy

test: venv  ## all tests
	$(BIN)/pytest

quick: venv  ## the tests without the long matrices
	$(BIN)/pytest -m "not matrix"

bench: venv  ## the benchmarks, one after another
	@for program in benchmarks/bench_*.py; do echo "== $$program"; $(BIN)/python $$program || exit 1; done

clean:  ## what was built
	rm -rf $(VENV) dist docs/_build .mypy_cache .ruff_cache .pytest_cache
