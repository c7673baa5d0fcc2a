# Needs only python3.11, make and git. Every target makes its own virtual environment and re-uses it.
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test tools test-oldest test-ppo check soak drills bench docs clean help

help:
	@echo "make demo    set up, then train a small model while faults hit it, with and without the healer"
	@echo "make test    set up and run the test suite (what CI runs)"
	@echo "make test-oldest  the drills against the oldest supported transformers and trl, in an environment of its own"
	@echo "make test-ppo  PPO trainings met by faults, with the last trl that has a PPOTrainer, in an environment of its own"
	@echo "make check   lint, types and the tests that need no torch, in about a minute"
	@echo "make drills  heal drill, every trainer met by every kind of fault, as a table, and all drills"
	@echo "make bench   the speed and detection figures"
	@echo "make docs    the documentation as a site, in build/site (open index.html; no server, no network)"
	@echo "make soak    long proofs"

# One stamp per extra: a second call finds it newer than the package's metadata and installs nothing.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	@touch $@

$(VENV)/.hf: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[hf]'
	@touch $@ $(VENV)/.core

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[test,trackers,docs]'
	@touch $@ $(VENV)/.docs $(VENV)/.core $(VENV)/.hf

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[docs]'
	@touch $@ $(VENV)/.core

demo: $(VENV)/.hf
	$(BIN)/heal demo

# What the tests of the report and of the live view need besides Python. Only root can install it; where it is missing, those tests say so.
TOOLS := chromium tmux
tools:
	@missing=""; for tool in $(TOOLS); do command -v $$tool >/dev/null || missing="$$missing $$tool"; done; \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		export DEBIAN_FRONTEND=noninteractive; \
		{ apt-get update && apt-get install -y --no-install-recommends $$missing; } >/dev/null 2>&1 || echo "could not install:$$missing"; \
	fi

test: $(VENV)/.test tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n 3 -m "not soak"  # on two cores: a third of the tests wait for processes of their own

# The oldest versions that are supported, beside the newest ones that `make test` installs.
OLDEST := .venv-oldest
# Without trackers: with the hub's old client pip would have to go back to versions that bring a web framework along.
$(OLDEST)/.test: pyproject.toml constraints.txt constraints-oldest.txt
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -c constraints-oldest.txt -e '.[test]'
	@touch $@

test-oldest: $(OLDEST)/.test
	$(OLDEST)/bin/python -m pytest -q -n 2 $(addprefix tests/integration/test_, trainer_guard.py trainer_interrupts.py \
		dry_run.py dry_run_problems.py core_on_a_torch_loop.py relied_on.py engines.py callback.py killed.py \
		guard_settings.py bad_records.py not_the_records.py network_faults.py restart_from_memory.py rollback_drills.py)
	$(OLDEST)/bin/python -m pytest -q -n 2 -m "not soak" $(addprefix tests/integration/test_, going_on.py going_on_exactly.py) \
		-k "killed_training_ends or five_times or stock_checkpoint or asked_to_end or taken_away or workers_draw_is"

# trl has had no PPOTrainer since 1.13: this is the last version with one.
PPO := .venv-ppo
$(PPO)/.test: pyproject.toml constraints.txt constraints-ppo.txt
	test -x $(PPO)/bin/python || $(PYTHON) -m venv $(PPO)
	$(PPO)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -c constraints-ppo.txt -e '.[test]'
	@touch $@

test-ppo: $(PPO)/.test
	$(PPO)/bin/python -m pytest -q -n 2 tests/ppo tests/integration/test_own_loop.py

check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n 2 -m "not soak and not torch"

soak: $(VENV)/.test
	$(BIN)/python -m pytest -q -n 2 -m soak
	SELF_HEALING_FUZZ=1000000 $(BIN)/python -m pytest -q -n 2 tests/unit/test_diagnose_fuzz.py
	$(BIN)/python bench/detectors.py

bench: $(VENV)/.test
	$(BIN)/python bench/detectors.py --quick
	$(BIN)/python bench/rl_rules.py --quick
	$(BIN)/python bench/cluster.py
	$(BIN)/python bench/ledger.py
	$(BIN)/python bench/clipping.py
	$(BIN)/python bench/overhead.py

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "build/site/index.html"

drills: $(VENV)/.test
	$(BIN)/heal drill
	$(BIN)/python bench/trainers.py
	$(BIN)/python -m pytest -q tests/integration

clean:
	rm -rf $(VENV) $(OLDEST) $(PPO) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
