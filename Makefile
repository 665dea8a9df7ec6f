# Everything a contributor runs. `make` alone prints what there is.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: help
help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: venv
venv: $(STAMP) ## create .venv with everything that the other targets need

# pip before 25.1 does not know dependency groups, hence the upgrade inside the environment.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable '.[dev]' --group tools
	touch $@

.PHONY: demo
demo: $(STAMP) ## run the main job on real files, with a worker killed in the middle
	$(BIN)/python -m examples.demo.run

.PHONY: test
test: $(STAMP) ## run the whole test suite
	$(BIN)/pytest

.PHONY: gen
gen: $(STAMP) ## write every generated file: stubs, schema dump
	$(BIN)/python -m tools.gen
	$(BIN)/python -m tools.schema_dump

.PHONY: check
check: $(STAMP) ## all that CI checks: style, types, layers, protocol, schema, sizes, tests
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/basedpyright
	$(BIN)/lint-imports
	$(BIN)/python -m tools.check_proto
	$(BIN)/python -m tools.gen --check
	$(BIN)/squawk --config=.squawk.toml migrations/[0-9]*.sql
	$(BIN)/python -m tools.schema_dump --check
	$(BIN)/python -m tools.tidy
	$(BIN)/pytest

.PHONY: format
format: $(STAMP) ## format Python and proto files in place
	$(BIN)/ruff format
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/buf format --write

.PHONY: bench
bench: $(STAMP) ## measure on this machine and print one table
	$(BIN)/python -m bench.run

.PHONY: bench-peers
bench-peers: $(STAMP) ## measure beside other engines on PostgreSQL; installs them, needs npm
	$(BIN)/python -m bench.peers.run

.PHONY: bench-growth
bench-growth: $(STAMP) ## measure growth, held leases and churn; takes some two hours
	$(BIN)/python -m bench.growth
	$(BIN)/python -m bench.held
	$(BIN)/python -m bench.soak

.PHONY: plots
plots: .venv-plots/.installed ## draw docs/pictures from the tables of bench/RESULTS.md
	.venv-plots/bin/python -m bench.plots

.venv-plots/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-plots
	.venv-plots/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	.venv-plots/bin/python -m pip install --quiet --group plots
	touch $@
