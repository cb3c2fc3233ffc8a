# Every target works on a fresh Debian 12 with Python 3.11 or 3.12; see README.md.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Debian packages: installed as root, named otherwise. Before the virtual environment is made.
need-demo need-test: need-%:
	@PYTHON=$(PYTHON) tools/prerequisites.sh $*

.PHONY: need-demo need-test demo test fast lint e2e lock lock-overlays clean

$(VENV)/.ready: requirements.lock pyproject.toml | need-$(if $(filter demo,$(MAKECMDGOALS)),demo,test)
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' || \
		{ echo "Python 3.11 or 3.12 is needed; name one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

demo: $(VENV)/.ready
	$(BIN)/python demo/run.py

lint: $(VENV)/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

fast: $(VENV)/.ready
	$(BIN)/python -m pytest -q -n 4 --dist worksteal -m "not e2e" tests

e2e: $(VENV)/.ready
	$(BIN)/python -m pytest -q -n 2 --dist loadscope -m "e2e and not gpu and not slow" tests

test: lint fast e2e

lock:
	$(BIN)/uv pip compile pyproject.toml --group dev --universal --generate-hashes --custom-compile-command 'make lock' --quiet --output-file requirements.lock

# The packages of SGLang 0.5.11 as they were when it was current (docs/profiles.md).
lock-overlays:
	cd overlays && ../$(BIN)/uv pip compile sglang-0.5.11.in --universal --generate-hashes --python-version 3.11 --exclude-newer 2026-05-20 --no-emit-index-url --custom-compile-command 'make lock-overlays' --quiet --output-file sglang-0.5.11.lock

clean:
	rm -rf $(VENV) .demo
