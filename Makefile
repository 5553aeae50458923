# make demo · make test · make check · make bench. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
SECONDS ?=
# Test processes at a time. Most tests wait for servers, so two are worth it on a single core, too.
WORKERS ?= 3
# Recorded pages and published configurations, where somebody put them beside the project.
FIXTURES := $(abspath ../shared/fixtures)
export POINTSMAN_FIXTURES ?= $(if $(wildcard $(FIXTURES)/.),$(FIXTURES))

.DEFAULT_GOAL := help
.PHONY: help install demo test deploy-test soak flaky attack mutants unit check format bench lab queues fuzz docs lock release clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(VENV)/.dev ## everything into .venv: the services, the local parts, the development tools

demo: $(VENV)/.local ## the whole system on this machine, with a live view; SECONDS=20 ends it by itself; COMPARE=1, PD=1, ACTIONS=1, TRACING=1: see docs/quickstart.md
	$(BIN)/pointsman demo $(if $(SECONDS),--seconds $(SECONDS)) $(if $(COMPARE),--compare) $(if $(PD),--pd) \
	  $(if $(ACTIONS),--allow-actions) $(if $(TRACING),--tracing)

test: $(VENV)/.dev ## all tests, against the real nats-server, Envoy and, where it can be had, kube-apiserver
	@$(BIN)/python -m tests.kubernetes.prepare
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

deploy-test: $(VENV)/.dev ## containers for real, as root on Linux: every scenario of docs/reliability.md; ONLY=NATS: those
	$(BIN)/python -m tests.deploy $(if $(PART),--part $(PART)) $(if $(ONLY),--only "$(ONLY)")

soak: $(VENV)/.dev ## the fault tests in full length, TIMES=3 times: p50 and p99 beside what the design promises
	@$(BIN)/python -m tests.kubernetes.prepare
	$(BIN)/python -m tests.soak $(if $(TIMES),--times $(TIMES)) $(or $(TEST),--write)

flaky: $(VENV)/.dev ## one test, TEST=…, TIMES=50 times beside CPU hogs
	$(BIN)/python -m tests.flaky $(if $(TIMES),--times $(TIMES)) $(TEST)

attack: $(VENV)/.dev ## hostile clients, servers, messages and files against a live system; SEED=2 SECONDS=60 ONLY=bus
	$(BIN)/python -m tests.attack $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(ONLY),--only $(ONLY))

mutants: $(VENV)/.dev ## how many of 100 small defects the tests find; SEED=2: others, ONLY=shared/bus: there alone
	$(BIN)/python -m tests.mutation --workers $(WORKERS) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

unit: $(VENV)/.dev ## the unit tests alone
	$(BIN)/pytest -n auto tests/unit

check: $(VENV)/.dev ## ruff, strict types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev ## let ruff put the code in form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev ## the benchmarks, one after the other
	@for bench in tests/benchmarks/bench_*.py; do echo "== $$bench"; $(BIN)/python -m $$(echo $${bench%.py} | tr / .) || exit 1; done

lab: $(VENV)/.dev ## simulate profiles with several pickers: a table, and plots in .run/lab.svg; ARGS="--trace FILE PROFILE…"
	@mkdir -p .run
	$(BIN)/pointsman lab --plot .run/lab.svg $(if $(SECONDS),--duration $(SECONDS)s) $(or $(ARGS),default docs/profiles/weighted-sum.yaml docs/profiles/shared-prefixes.yaml)

queues: $(VENV)/.dev ## flow control of several pickers behind Envoy, for a quarter of an hour: a table, and plots in .run/queues.svg
	@mkdir -p .run
	$(BIN)/python -m tests.benchmarks.bench_queues --plot .run/queues.svg $(ARGS)

fuzz: $(VENV)/.fuzz ## fuzz every reader of foreign bytes, for two minutes in all; SECONDS=600, TARGET=pages: one of them
	@set -- $(or $(TARGET),$(notdir $(wildcard tests/fuzz/corpus/*))); each=$$(($(or $(SECONDS),120) / $$#)); \
	for one in "$$@"; do echo "== $$one, $$each s"; mkdir -p .run/fuzz/$$one; \
	  $(BIN)/python -m tests.fuzz $$one -max_total_time=$$each -timeout=20 -rss_limit_mb=2048 \
	    -artifact_prefix=.run/fuzz-$$one- .run/fuzz/$$one tests/fuzz/corpus/$$one || exit 1; done

docs: $(VENV)/.dev ## write the pages of docs/ that come from the code
	$(BIN)/python -m pointsman.docs

lock: ## write constraints.txt anew, from the newest versions that pyproject.toml allows
	$(PYTHON) -m venv --clear .venv-lock
	.venv-lock/bin/python -m pip install --quiet --upgrade pip
	.venv-lock/bin/python -m pip install --quiet --editable '.[local,dev]'
	{ echo '# What CI, the demo and the images install. Made by `make lock`.'; \
	  .venv-lock/bin/python -m pip freeze --exclude-editable; } > constraints.txt
	rm -rf .venv-lock

release: $(VENV)/.dev ## what publishing the tagged version needs, in dist/; REHEARSE=1 without a tag, WITHOUT=image,chart
	$(BIN)/python -m pointsman.release --python $(PYTHON) $(if $(REHEARSE),--rehearse) $(if $(WITHOUT),--without $(WITHOUT)) \
	  $(if $(HELM),--helm $(HELM))

clean: ## remove what make made
	rm -rf $(VENV) .venv-lock .run build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed, $$($(PYTHON) --version 2>&1) is $(PYTHON): make PYTHON=python3.12 …" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "Python's venv module is needed: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.local: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) --editable '.[local,traces]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) --editable '.[local,dev]'
	@touch $@ $(VENV)/.local

$(VENV)/.fuzz: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP_INSTALL) --editable '.[local,dev,fuzz]'
	@touch $@ $(VENV)/.dev $(VENV)/.local
