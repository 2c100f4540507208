# Everything that one does with this repository. `make demo` and `make test` work in a fresh clone: they install
# what they need, and change nothing outside of the folder but the system packages that `make test` wants.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# uv: from the PATH if it is there, else a private one in .uv/ (scripts/uv installs it on first use).
UV := scripts/uv
RUN := $(UV) run --frozen --all-extras
OPS ?= 1000000
ARGS ?=
# What measures time runs after everything else, which runs three at a time: most of that waits for servers.
TIMED := tests/worker tests/faults
LONG := tests/faults tests/outbox tests/schedule tests/spark tests/benchmarks tests/contract/test_*_faults.py

.PHONY: help setup system demo test lint format bench faults docs differential clean

help:  ## what there is
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):[^#]*## ?/  make \1\t/' | expand -t 24

setup:  ## Python packages, into .venv
	@$(UV) sync --frozen --all-extras --quiet

system:  ## system packages that the tests use, where they may be installed
	@scripts/system-packages

demo: setup  ## the tour, on the embedded default
	@$(RUN) millstream demo --out out/demo

test: setup system lint  ## lint, types and every test; says at its end what could not run here
	@$(RUN) pytest -n 3 --no-loadscope-reorder $(addprefix --ignore=,$(TIMED)) $(ARGS)
	@$(RUN) pytest -n 2 --no-loadscope-reorder $(TIMED) $(ARGS)

lint: setup  ## ruff and mypy
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) mypy

format: setup  ## let ruff format the code
	@$(RUN) ruff format .
	@$(RUN) ruff check --fix .

bench: setup system  ## the benchmarks; figures go to out/
	@for file in benchmarks/[a-z]*.py; do echo "== $$file"; $(RUN) --group bench python $$file $(ARGS); done

faults: setup system  ## the fault tests, with the long settings
	@MILLSTREAM_FAULTS=long $(RUN) pytest $(LONG) $(ARGS)

docs: setup system  ## run every snippet of README.md and docs/
	@$(RUN) pytest tests/docs $(ARGS)

differential: setup system  ## OPS=1000000 random operations on the local broker and on Redis, compared
	@MILLSTREAM_DIFFERENTIAL_OPS=$(OPS) $(RUN) pytest tests/differential -q $(ARGS)

clean:  ## remove what the other targets made
	@rm -rf .venv .uv out .mypy_cache .ruff_cache .pytest_cache .hypothesis
