# make search: search an AFD schedule.  make test: lint and run the tests.
# Both make .venv on first use; the stamps in it keep later runs quick.

VENV := .venv
BIN := $(VENV)/bin
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
# The first interpreter that runs and is 3.11 to 3.13; override with make PYTHON=...
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
  "$$p" -c '$(SUPPORTED)' >/dev/null 2>&1 && { echo "$$p"; break; }; done)

.PHONY: search test test-nightly lint format clean

search: $(VENV)/.base
	$(BIN)/python -m twin.search scenario=afd

test: lint
	$(BIN)/python -m pytest -n 2 -m "not nightly"

test-nightly: $(VENV)/.test
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -n 2

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "make: Python 3.11, 3.12 or 3.13 is needed (make PYTHON=/path/to/it)" >&2; exit 4; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/.base
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	-$(BIN)/python -m runtime_npu.standins  # without it, tests on the real wheel are skipped
	@touch $@
