# From a fresh machine (Python 3.11, make) to a result:
#   make mtp    launch every cell of the matrix that fits this machine, ask all questions, write the report
#   make test   the tests of the suite itself, and one real launch
# Variables: PYTHON (the interpreter to build .venv with), ARGS (further pytest arguments, e.g. ARGS="--cell eagle-*").
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# Hundreds of short Python processes would compile everything again.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help mtp test test-slow lint harness launch seeded bench bench-load report clean

VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
ARGS ?=
BIN := $(VENV)/bin

help:
	@sed -n '1,/^SHELL/s/^# \{0,1\}//p' Makefile

$(VENV)/installed: requirements.txt requirements-cpu.txt requirements-cpu-sglang.txt tools/install.sh
	@bash tools/install.sh "$(PYTHON)" "$(VENV)"

mtp: $(VENV)/installed
	@$(BIN)/python -m pytest -m mtp $(ARGS)

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

harness: $(VENV)/installed
	$(BIN)/python -m pytest suites/harness -m "not engine and not slow" -n 3 --dist worksteal $(ARGS)

# The tests of the suite that run it several times over (two to three minutes).
test-slow: $(VENV)/installed
	$(BIN)/python -m pytest suites/harness -m "slow and not engine" -n 3 --dist worksteal $(ARGS)

launch: $(VENV)/installed
	$(BIN)/python -m pytest -m "(startup or acceptance or serving) and not probe" --cell eagle-s3-k1-d4 --out reports/out/launch

test: lint harness launch
	@echo "make test: all passed; the report of the real launch is reports/out/launch/index.html"

# Breaks the real engine on purpose and shows that the suite goes red (10 to 15 minutes).
seeded: $(VENV)/installed
	$(BIN)/python -m pytest -m "engine and not slow" suites/harness -v $(ARGS)

# Limits that need a quiet machine: a log of 1 GiB in 10 s and 200 MiB, one of 200 KB in 0.3 s; the load generator's errors
# against a server of known pace, and its cost.
bench: bench-load
	$(BIN)/python tools/bench_diagnose.py

bench-load: $(VENV)/installed
	$(BIN)/python tools/bench_load.py $(ARGS)

report: $(VENV)/installed
	$(BIN)/python -m mtpgate report

clean:
	rm -rf reports/out .pytest_cache .mypy_cache .ruff_cache .hypothesis
