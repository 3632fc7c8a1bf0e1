# The commands of this repository. CI runs the same ones. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Python keeps what it compiles, also where the environment says otherwise: starting twice must not mean compiling twice.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-vllm browser gpu clusters conformance matrix architectures pairs check lint typecheck imports docs docs-check bench wheels site release-check lock clean readme-image dashboard-images

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Create .venv and install everything from the pins; returns at once when nothing changed
	@$(PYTHON) tools/setup.py

demo: setup ## Train, resume, export and question a tiny model, on the CPU
	@$(BIN)/swift demo

test: check ## Before every commit: ruff, mypy, import rules, generated pages, and the tests that are quick
	@$(BIN)/python -m pytest -n 3 -m "not full" --times=build/test-times/quick.txt

test-all: check browser ## The same, and all other tests: further layouts and variants, whole commands, vLLM; what CI runs
	@$(BIN)/python -m pytest -n 3 --times=build/test-times/all.txt

test-vllm: setup ## Of all tests, what starts a real vLLM: serving, engines, quantised exports, from training to an answer
	@$(BIN)/python -m pytest -n 2 -m vllm --times=build/test-times/vllm.txt

browser: ## Install the Chromium that tests of the dashboard open, where there is none
	@$(PYTHON) tools/browser.py

gpu: setup ## All that needs a GPU: wheels, the tests marked gpu, benchmarks/gpu.py; DRY=1 tries it without one, JOBS=N
	@$(BIN)/python tools/gpu_day.py $(if $(DRY),--dry) $(if $(JOBS),--jobs $(JOBS))

clusters: setup ## Ray, a store as S3 is, and the models of Kubernetes' jobs and SkyPilot: examples and URLs for real; installs them once
	@$(PYTHON) tools/setup.py clusters
	@SWIFT_CLUSTERS=1 $(BIN)/python -m pytest tests/clusters

conformance: setup ## The conformance kit on every backend, with every case in every layout, and all that is rare
	@SWIFT_WHOLE_KIT=1 $(BIN)/python -m pytest tests -k "conformance or catches or compiled"
	@SWIFT_WHOLE_KIT=1 $(BIN)/python -m pytest tests -m rare -n 2

matrix: setup ## Every engine's checkpoint resumed on every engine; writes docs/reference/resume-matrix.md
	@SWIFT_WHOLE_MATRIX=1 SWIFT_MATRIX_RESULTS=docs/reference/resume-matrix.json $(BIN)/python -m pytest tests/engines/test_matrix.py
	@$(BIN)/python tools/docs.py

architectures: setup ## Every type of causal language model on every engine; writes docs/reference/architectures.md
	@$(BIN)/python tools/architectures.py
	@$(BIN)/python tools/docs.py

pairs: setup ## Every optimizer and tuner in every layout; writes docs/reference/tuning-pairs.md
	@SWIFT_PAIRS_RESULTS=docs/reference/tuning-pairs.json $(BIN)/python -m pytest tests/tuning/test_every_pair.py
	@$(BIN)/python tools/docs.py

check: setup ## Everything but the tests, two at a time
	@$(MAKE) --no-print-directory -j 2 --output-sync=target typecheck lint imports docs-check

lint: setup ## ruff: rules and format
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

typecheck: setup ## mypy, strict
	@$(BIN)/mypy

imports: setup ## Who may import whom
	@$(BIN)/python tools/import_rules.py

docs: setup ## Write the generated pages in docs/reference
	@$(BIN)/python tools/docs.py

readme-image: setup ## Train a tiny model on a terminal, and draw the image of it in the README
	@$(BIN)/python tools/terminal_image.py

dashboard-images: setup browser ## Train a tiny model in the dashboard, and take the images of it in README and docs
	@$(BIN)/python tools/dashboard_images.py

docs-check: setup
	@$(BIN)/python tools/docs.py --check

bench: setup ## Measure against a bare torch loop and write benchmarks/results
	@$(BIN)/python -m benchmarks

wheels: setup ## Build the wheels of all packages into dist/
	@$(BIN)/python tools/wheels.py dist

site: setup ## Build the documentation into build/site, with a page for each public module
	@$(PYTHON) tools/setup.py site
	@$(BIN)/python tools/site_check.py

release-check: setup ## Build what a release would publish, and try every package by itself; no network
	@$(PYTHON) tools/setup.py site
	@$(BIN)/python tools/release_check.py

lock: setup ## Write the pins in requirements/ anew
	@$(BIN)/python tools/lock.py

clean: ## Remove the environment, caches and build results
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
