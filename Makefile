# Everything runs in .venv; the stamps remember what is installed.
PYTHON ?= python3
SEED ?= 0
RUN ?= runs/demo-seed$(SEED)
DEMO := spaceship --preset quick --budget equal --seed $(SEED) --out $(RUN)
BIN := .venv/bin
PIP := --quiet --disable-pip-version-check --no-compile

MINUTES ?= 30
.PHONY: help setup demo test test-slow check docs docs-serve bench campaign clean
help:
	@echo "make demo [SEED=n]  PD-VF and PD-VF-plus on Spaceship beside NN, PPOall and PPOenv; report in $(RUN)"
	@echo "make test           unit tests (test-slow: the long ones too)"
	@echo "make check          ruff, pyright, import directions"
	@echo "make docs           the documentation site in build/site, every link checked; make docs-serve shows it"
	@echo "make campaign [MINUTES=30]  kills, broken files, hostile folders and environments; one table"
	@echo "make bench          throughput and latency beside a peer, in benchmarks/results/cpu.json"

.venv/.installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install $(PIP) --editable .
	@touch $@
.venv/.installed-dev: .venv/.installed
	$(BIN)/python -m pip install $(PIP) --editable '.[dev]'
	@touch $@
.venv/.installed-bench: .venv/.installed
	$(BIN)/python -m pip install $(PIP) torch==2.13.0
	$(BIN)/python -m pip install $(PIP) --editable '.[bench]'
	@touch $@
.venv/.installed-docs: .venv/.installed
	$(BIN)/python -m pip install $(PIP) --editable '.[docs]'
	@touch $@

setup: .venv/.installed-dev

demo: .venv/.installed
	$(BIN)/pdvf run $(DEMO) --methods pd-vf-plus ppo-all
	@echo "look at $(RUN)/report.html"

test: .venv/.installed-dev
	$(BIN)/python -m pytest

test-slow: .venv/.installed-dev
	$(BIN)/python -m pytest -m "slow or not slow"

check: .venv/.installed-dev
	$(BIN)/ruff check src tests benchmarks tools
	$(BIN)/ruff format --check src tests benchmarks tools
	$(BIN)/pyright
	$(BIN)/lint-imports

docs: .venv/.installed-docs
	$(BIN)/mkdocs build --strict  # a quiet build would not count its warnings
	$(BIN)/python tools/check_site.py build/site

docs-serve: .venv/.installed-docs
	$(BIN)/mkdocs serve

bench: .venv/.installed-bench
	$(BIN)/python benchmarks/bench.py
	$(BIN)/python benchmarks/belief_latency.py

campaign: .venv/.installed-dev
	-$(BIN)/python -m pip install $(PIP) atheris  # coverage-guided inputs; without it only random ones
	$(BIN)/python tools/campaign --minutes $(MINUTES) --seed $(SEED)

clean:
	rm -rf .venv build dist .pytest_cache .ruff_cache
