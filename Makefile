PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: help venv check lint types test quick bench docs dist lowest clean

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

docs: venv  ## the documentation, in docs/_build/html; a warning is an error
	rm -rf docs/reference/generated
	$(BIN)/sphinx-build -E -W --keep-going -q -d docs/_build/doctrees docs docs/_build/html

dist: venv  ## wheel and sdist, in dist/
	rm -rf dist
	$(BIN)/python -m build --outdir dist

lowest:  ## the tests with the lowest versions of what we depend on, in an environment of their own
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/pip install --quiet --constraint constraints-min.txt '.[cli,card,testing,s3]' pytest pytest-timeout 'moto[s3]' flask flask-cors
	.venv-lowest/bin/pytest -o filterwarnings=default -m "not matrix and not llama" --ignore tests/test_docs.py --ignore tests/test_packaging.py --ignore tests/test_public_api.py

clean:  ## what was built
	rm -rf $(VENV) .venv-lowest dist docs/_build docs/reference/generated .mypy_cache .ruff_cache .pytest_cache
