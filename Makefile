# Everything starts from a bare python3: each target sets up .venv with what it needs.
PYTHON ?= python3
BIN := .venv/bin
DEMO := -e '.[demo,server]'
DEV := -e '.[demo,dev]'
BENCH := -e '.[bench]'
DOCS := -e '.[docs]'

# uv where it is installed, else pip
define install
@echo "setting up .venv (once; about a minute)"
@if command -v uv >/dev/null 2>&1; \
then uv pip install --quiet --python $(BIN)/python $(1); \
else $(BIN)/python -m pip install --quiet --disable-pip-version-check $(1); fi
@touch $@
endef

.PHONY: demo test torture packages lint types docs browser bench clean

demo: .venv/demo  ## fit the groceries, show what one household bought and might like
	$(BIN)/nbmf demo

test: lint types  ## lint, types, all tests
	$(BIN)/python -m pytest -n 2 --dist loadfile

SECONDS ?= 3600
SEED ?= 1
torture: .venv/dev  ## random fits, damaged files, hostile requests, interrupts, kills and full disks, for an hour
	$(BIN)/python tests/torture --seconds $(SECONDS) --seed $(SEED)

packages: .venv/dev  ## wheel and sdist in clean environments, with the newest and the oldest dependencies; takes minutes
	$(BIN)/python tests/packages.py

lint: .venv/dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: .venv/dev
	$(BIN)/mypy

docs: .venv/docs  ## the documentation site, in site/; a broken link or anchor is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html"

browser:  ## Debian's Chromium and wrk, for the tests and the load test of the server; without them those are skipped
	@if command -v chromium >/dev/null 2>&1 && command -v wrk >/dev/null 2>&1; then echo "Chromium and wrk are here"; \
	else apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core wrk >/dev/null; fi

bench: .venv/bench  ## the same work by us and by others, side by side in one run
	$(BIN)/python benchmarks/passes.py
	$(BIN)/python benchmarks/peers.py

clean:
	rm -rf screenshots site .venv .mypy_cache .ruff_cache .pytest_cache .numba_cache .hypothesis

.venv/pyvenv.cfg:
	$(PYTHON) -m venv .venv

.venv/demo: pyproject.toml | .venv/pyvenv.cfg
	$(call install,$(DEMO))

# the gpu backend is tested on the CPU; a plain torch would bring several GB for a GPU, so only its CPU build will do
.venv/dev: pyproject.toml | .venv/pyvenv.cfg
	$(call install,$(DEV))
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'torch==2.13.0+cpu' 'triton==3.9.0' \
	|| echo "no CPU build of torch is to be had here: tests of the gpu backend will be skipped"

.venv/bench: pyproject.toml | .venv/pyvenv.cfg
	$(call install,$(BENCH))

.venv/docs: pyproject.toml | .venv/pyvenv.cfg
	$(call install,$(DOCS))
