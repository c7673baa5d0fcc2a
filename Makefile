# Needs only python3.11, make and git. Every target makes its own virtual environment and re-uses it.
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test check soak drills bench clean help

help:
	@echo "make demo    set up and run the main job"
	@echo "make test    set up and run the test suite (what CI runs)"
	@echo "make check   lint, types and the tests that need no torch, in seconds"
	@echo "make bench   the speed and detection figures"
	@echo "make soak    long proofs"

# One stamp per extra: a second call finds it newer than the package's metadata and installs nothing.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[test]'
	@touch $@ $(VENV)/.core

demo: $(VENV)/.core
	$(BIN)/heal demo

test: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n 2 -m "not soak"

check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n 2 -m "not soak and not torch"

soak: $(VENV)/.test
	$(BIN)/python -m pytest -q -n 2 -m soak
	$(BIN)/python bench/detectors.py

bench: $(VENV)/.test
	$(BIN)/python bench/detectors.py --quick
	$(BIN)/python bench/ledger.py
	$(BIN)/python bench/clipping.py
	$(BIN)/python bench/overhead.py

drills: $(VENV)/.test
	$(BIN)/python -m pytest -q tests/integration

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
