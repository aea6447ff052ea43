SHELL := /bin/bash
VENV := .venv/bin
UV := .venv/.uv
RUNTIME := .venv/.runtime
DEV := .venv/.dev
JARS := .jars/.fetched
FLINK := .venv-flink/.installed
AUDIT := .venv-audit/.installed
DOCS := .venv-docs/.installed
WORKER := .venv-worker/.installed
S3 := .cache/s3/.installed

export PATH := $(CURDIR)/$(VENV):$(PATH)
export PIP_CACHE_DIR ?= $(CURDIR)/.cache/pip
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export UV_CACHE_DIR ?= $(CURDIR)/.cache/uv
export UV_NO_PROGRESS := 1
# Tests start hundreds of Python processes. Each would compile a thousand modules again if none wrote its bytecode.
export PYTHONDONTWRITEBYTECODE :=

# uv installs in a third of pip's time. It does not read pip's settings: where it fails, such as behind an index that
# only pip knows, pip installs.
install = $(VENV)/uv pip install --quiet --python $(1)/bin/python --require-hashes --requirement $(2) \
  || { echo "uv failed, so pip installs $(2) ..."; $(1)/bin/pip install --quiet --require-hashes --requirement $(2); }

is_311 = $(shell $(1) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null && echo $(1))
# Tests that wait for Airflow or for killed processes leave cores to other workers. Long files run first.
WORKERS := -n 3 --dist loadfile --no-loadscope-reorder
PIPELINE ?= benchmarks/flights_weather_sql.yaml
PYTHON ?= $(firstword $(call is_311,python3.11) $(call is_311,python3))

.PHONY: help setup demo test test-pipelines test-unit test-rest test-all test-slow coverage lint types docs docs-site bench bench-quick conformance properties mutants simulation crashes races faults flink-parity flink-vectors flink-reference airflow cluster connect e2e screens s3 sbom audit fuzz clean machine browser ready

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(JARS) ## make the virtual environment from the lock and fetch Delta's jars, once

demo: setup ## join a month of real flights with the weather, slice by slice
	@$(VENV)/python -m jobs.demo

test-unit: $(DEV) ## run the tests that need neither a JVM nor a server
	@$(VENV)/pytest $(WORKERS) -m unit

test: ## run the unit tests and a witness of each promise
	@$(MAKE) --no-print-directory --jobs=3 ready
	@$(VENV)/pytest $(WORKERS) -m "unit or promise"

test-rest: ready
	@TIDEMARK_TEST_LONG=1 $(VENV)/pytest $(WORKERS) -m "not (unit or promise or slow)"

test-all: ## run the tests of make test, then all others but slow ones
	@$(MAKE) --no-print-directory test
	@$(MAKE) --no-print-directory test-rest

coverage: ready ## measure the lines that unit tests run, then with the witnesses
	@$(VENV)/pytest $(WORKERS) --cov --cov-report=term:skip-covered -m unit
	@$(VENV)/pytest $(WORKERS) --cov --cov-report=term:skip-covered --cov-append -m "promise and not unit"

test-slow: ready $(WORKER) ## run the rest of the grid: more kills, live queries, formats and days
	@TIDEMARK_TEST_LONG=1 TIDEMARK_CRASHES=3 TIDEMARK_DAYS=10 TIDEMARK_HOURS=8 $(VENV)/pytest $(WORKERS) -m "slow or grid"

ready: $(DEV) $(JARS) browser

test-pipelines: $(RUNTIME) $(JARS) ## run the test cases of the demo's pipelines
	@$(VENV)/tidemark test

lint: $(DEV) ## check style, format, and which layer imports which
	@$(VENV)/ruff check
	@$(VENV)/ruff format --check
	@$(VENV)/lint-imports --no-cache --no-logo

types: $(DEV) ## check types
	@$(VENV)/mypy

docs: $(RUNTIME) ## write the generated pages and pictures of docs/, then build the site
	@$(VENV)/tidemark schema > docs/pipeline.schema.json
	@bin/write-reference
	@bin/draw-slices
	@$(MAKE) --no-print-directory docs-site

docs-site: $(DOCS) ## build the site of docs/ into site/, and fail on broken links
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build

bench: $(DEV) $(JARS) $(FLINK) $(WORKER) ## measure Tidemark and other joins, for hours, into docs/performance.md
	@$(VENV)/python -m benchmarks --output full $(BENCH)
	@$(VENV)/python -m benchmarks.page full

bench-quick: $(DEV) $(JARS) $(FLINK) $(WORKER) ## the same over few rows, in minutes
	@$(VENV)/python -m benchmarks --rows 200000 --rounds 1 --limit 120 --output quick

conformance: setup ## replay the recorded vectors, cut into slices in several ways
	@$(VENV)/tidemark conformance tests/semantics/vectors/*.jsonl.gz --cuts 1,2,7,random:7

properties: $(DEV) $(JARS) ## replay 20,000 random streams and compare with the oracles
	@TIDEMARK_EXAMPLES=20000 $(VENV)/pytest tests/semantics/test_conformance.py tests/semantics/test_conformance_datastream.py tests/semantics/test_idle_or_partitioned_lane.py tests/quality/test_batched_engine_random.py tests/sources/test_schemas.py

mutants: $(DEV) $(JARS) ## break each boundary rule, and check that recorded vectors fail
	@$(VENV)/python -m tests.semantics.mutants

fuzz: $(DEV) $(JARS) ## try random files, vectors and expressions for half an hour
	@TIDEMARK_EXAMPLES=100000 $(VENV)/pytest tests/config/test_safe_yaml.py tests/conformance tests/spark/test_expression_sandbox.py

simulation: $(DEV) $(JARS) ## simulate the commit protocol under 10,000 schedules of crashes and races
	@TIDEMARK_SCHEDULES=10000 $(VENV)/pytest -s tests/simulation

crashes: $(DEV) $(JARS) ## kill a run before and after each of its steps, and run it again
	@TIDEMARK_CRASHES=all $(VENV)/pytest tests/ledger/test_crash.py

races: $(DEV) $(JARS) ## run, backfill and reprocess one pipeline at the same time, a hundred times
	@TIDEMARK_RACES=100 $(VENV)/pytest tests/ledger/test_races.py

faults: $(DEV) $(JARS) ## inject eleven faults into a streamed table, and check each cause
	@$(VENV)/python -m tests.comparison.faults

flink-parity: $(DEV) $(JARS) $(FLINK) ## compare eight joins and six chains with a real Flink on the flights
	@$(VENV)/python -m tests.flink_parity
	@$(VENV)/python -m tests.flink_parity.chains

flink-vectors: $(DEV) $(FLINK) ## record local-time vectors, and check restarts, with Flink
	@$(VENV)/python -m tests.flink_parity.local_time
	@$(VENV)/python -m tests.flink_parity.idle_inputs
	@$(VENV)/python -m tests.flink_parity.restarts

flink-reference: setup $(FLINK) ## run the join of PIPELINE in a real Flink, for tidemark compare
	@$(VENV)/python -m jobs.flink_reference $(PIPELINE)

airflow: setup ## start a local Airflow with the demo's pipelines
	@bin/airflow-local

cluster: setup $(WORKER) ## start a standalone Spark cluster on this machine, in the foreground
	@bin/spark-cluster

connect: setup ## start a Spark Connect server on this machine, in the foreground
	@bin/spark-connect

e2e: $(DEV) $(JARS) $(WORKER) ## run slices on Postgres, Airflow and a Spark cluster while things go wrong
	@$(VENV)/python -m tests.e2e

screens: $(DEV) $(JARS) $(WORKER) browser ## take the pictures of docs/airflow.md, by a headless browser
	@$(VENV)/python -m tests.e2e.screens

s3: $(DEV) $(JARS) $(S3) ## run and race pipelines in a local object store, over s3a://
	@TIDEMARK_S3_RACES=100 $(VENV)/pytest -s tests/object_store

sbom: setup ## print the software bill of materials, as CycloneDX
	@$(VENV)/python bin/sbom

audit: $(AUDIT) ## look for known vulnerabilities of the locked packages
	@.venv-audit/bin/pip-audit --requirement requirements.txt --no-deps --disable-pip

clean: ## remove the virtual environment, the jars and the caches; tables in lake/ stay
	rm -rf .venv .venv-flink .venv-audit .venv-docs .venv-worker .jars .cache site include/*.egg-info

machine:
	@test -n "$(PYTHON)" || \
	  { echo "Python 3.11 is missing: install python3.11 with its venv module, then run make again." >&2; exit 2; }
	@"$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version 2>&1 | grep -Eq 'version "(17|21)[."]' || \
	  { echo "Java 17 is missing: install openjdk-17-jre-headless, or set JAVA_HOME to it, then run make again." >&2; exit 2; }

# Without a browser the tests that look at a page are skipped, and say so.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null && exit; \
	test "$$(id -u)" = 0 && command -v apt-get >/dev/null || exit 0; \
	echo "Installing Debian's Chromium to look at reports with ..."; mkdir -p .cache; \
	{ apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
	  chromium chromium-driver fonts-liberation; } >.cache/browser.log 2>&1 || \
	echo "It could not be installed, see .cache/browser.log; the tests that need it are skipped." >&2

$(UV): requirements-uv.txt | machine
	@test -x $(VENV)/python || "$(PYTHON)" -m venv .venv
	@$(VENV)/pip install --quiet --require-hashes --requirement requirements-uv.txt
	@touch $@

$(RUNTIME): requirements.txt pyproject.toml $(UV)
	@echo "Installing the locked packages into .venv (one to three minutes the first time) ..."
	@$(call install,.venv,requirements.txt)
	@$(VENV)/pip install --quiet --no-deps --editable .
	@touch $@

$(DEV): requirements-dev.txt $(RUNTIME)
	@echo "Installing the development tools into .venv ..."
	@$(call install,.venv,requirements-dev.txt)
	@touch $@

$(FLINK): | machine
	@test -x .venv-flink/bin/python || "$(PYTHON)" -m venv .venv-flink
	@echo "Installing Flink into .venv-flink ..."
	@.venv-flink/bin/pip install --quiet apache-flink==2.3.0
	@touch $@

$(WORKER): requirements-worker.txt $(UV)
	@test -x .venv-worker/bin/python || "$(PYTHON)" -m venv .venv-worker
	@echo "Installing what executors import into .venv-worker ..."
	@$(call install,.venv-worker,requirements-worker.txt)
	@touch $@

$(S3): bin/fetch-s3 s3-jars.sha256 $(JARS)
	@rm -rf .cache/s3/jars
	@bin/fetch-s3 .cache/s3
	@touch $@

$(AUDIT): | machine
	@test -x .venv-audit/bin/python || "$(PYTHON)" -m venv .venv-audit
	@.venv-audit/bin/pip install --quiet pip-audit==2.10.1
	@touch $@

$(DOCS): requirements-docs.txt $(UV)
	@test -x .venv-docs/bin/python || "$(PYTHON)" -m venv .venv-docs
	@$(call install,.venv-docs,requirements-docs.txt)
	@touch $@

$(JARS): bin/fetch-jars jars.sha256 bin/archive-classes $(RUNTIME) | machine
	@$(VENV)/python bin/fetch-jars
	@$(VENV)/python bin/archive-classes || true
	@mkdir -p $(@D)
	@touch $@
