# Everything happens in .venv, with the versions pinned in requirements/*.txt. `make` alone lists the targets.
VENV := .venv
RUN := $(VENV)/bin/python
PIP := PIP_DISABLE_PIP_VERSION_CHECK=1 $(RUN) -m pip install --no-input
LOCK := $(RUN) -m uv pip compile --quiet --universal --python-version 3.11 --fork-strategy fewest --custom-compile-command "make lock"

# onnxruntime reports its use over the internet unless it is told not to.
export ORT_DISABLE_TELEMETRY := 1

# The first Python that is new enough; name another one with `make PYTHON=/path/to/python3 ...`.
NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3.14 python3 python; do \
	if $$python $(NEW_ENOUGH) 2>/dev/null; then echo $$python; break; fi; done)

# `make serve GPU=1` adds the CUDA and cuDNN libraries (1.3 GB to download); the driver is the machine's own.
SERVE := $(if $(GPU),gpu,serve)
# What `make load` runs and its options (LOAD="--seconds 120"), and what is handed to the benchmark and to pytest: `make test TESTS="tests/service -k health"`.
SCENARIO ?= smoke
LOAD ?=
BENCH ?=
TESTS ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help serve test develop train export check audit format load bench images docs deploy lock clean

help:  ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-16s %s\n", $$1, $$2}'

serve: $(VENV)/.$(SERVE)  ## install what serving needs and serve on http://127.0.0.1:8000 (ATTENTION_HOST, ATTENTION_PORT)
	@exec $(RUN) -m service

test: $(VENV)/.develop  ## install what testing needs and run the tests
	$(RUN) -m pytest $(TESTS)

develop: $(VENV)/.develop  ## install all that exporting, testing and load testing need; run nothing

train: $(VENV)/.develop  ## train the model tiny on one core, going on from results/ if it was stopped; export it, write docs/tiny.md
	$(RUN) -m models train
	$(RUN) -m models export --model tiny
	$(RUN) -m docs.make_tiny

export: $(VENV)/.develop  ## write exported/ anew from models/
	$(RUN) -m models export

check: $(VENV)/.develop audit  ## ruff, formatting, types, and the audit
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

audit: $(VENV)/.develop  ## do the locked versions fit each other, and are any known to be vulnerable (asks over the internet where there is one)
	$(RUN) -m pip check
	$(RUN) -m requirements.audit

format: $(VENV)/.develop  ## let ruff sort imports and format
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

load: $(VENV)/.develop  ## start a server of its own, put load on it and report (SCENARIO=smoke, 20 s; docs/operating.md has more)
	$(RUN) -m load_tests $(SCENARIO) $(LOAD)

bench: $(VENV)/.develop  ## measure beside other servers and the bare model in 20 min, write docs/benchmark.md (BENCH=--quick)
	$(RUN) -m load_tests.bench $(BENCH)

images: $(VENV)/.develop  ## draw the pictures of the README anew, from the answers of a service
	$(RUN) -m docs.make_images
	$(RUN) -m docs.make_page_image

docs: $(VENV)/.develop  ## write docs/encodings.md anew: cards, pictures, and the errors of the exported models against their oracles
	$(RUN) -m tests.oracles --write
	$(RUN) -m docs.make_encodings

deploy: $(VENV)/.develop  ## write the Prometheus rules and the Grafana dashboard anew
	$(RUN) -m deploy.make_rules
	$(RUN) -m deploy.make_dashboard

lock: $(VENV)/.develop  ## resolve requirements/*.in anew; UPGRADE=1 takes newer versions
	$(LOCK) $(if $(UPGRADE),--upgrade) requirements/develop.in -o requirements/develop.txt
	$(LOCK) --constraint requirements/develop.txt requirements/serve.in -o requirements/serve.txt
	$(LOCK) --constraint requirements/develop.txt requirements/gpu.in -o requirements/gpu.txt
	$(LOCK) --constraint requirements/develop.txt requirements/ray.in -o requirements/ray.txt

clean:  ## remove .venv and every cache
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed, and none was found. Name one: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@$(PYTHON) $(NEW_ENOUGH) || { echo "Python 3.11 or newer is needed, but $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

# The locks agree on every version they share, so the environment that one has filled is only added to by another.
$(VENV)/.serve $(VENV)/.gpu $(VENV)/.develop: $(VENV)/.%: requirements/%.txt $(VENV)/.created
	$(PIP) -r $<
	@touch $@
