# Every target works on a fresh Debian 12 with Python 3.11 or 3.12; see README.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test fast lint e2e lock clean

$(VENV)/.ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --editable .
	touch $@

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fast: $(VENV)/.ready
	$(BIN)/python -m pytest -q -m "not e2e" tests

e2e: $(VENV)/.ready
	$(BIN)/python -m pytest -q -m "e2e and not gpu and not slow" tests

test: lint fast e2e

lock:
	$(BIN)/uv pip compile pyproject.toml --group dev --universal --generate-hashes --custom-compile-command 'make lock' --quiet --output-file requirements.lock

clean:
	rm -rf $(VENV) .demo
