# The commands of this repository. CI runs the same ones. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Let Python write bytecode even if the environment forbids it, so that a second start does not compile again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-vllm browser gpu clusters conformance matrix architectures encoders pairs real check lint typecheck imports docs docs-check bench wheels site release-check lock clean readme-image dashboard-images

help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Create .venv and install everything from the pins; returns at once when nothing changed
	@$(PYTHON) tools/setup.py

demo: setup ## Train, resume, export and query a tiny model, on the CPU
	@$(BIN)/swift demo

test: check ## Before every commit: ruff, mypy, import rules, generated pages, and the quick tests
	@$(BIN)/python -m pytest -n 3 -m "not full" --times=build/test-times/quick.txt

test-all: check browser ## The same, and all other tests, including vLLM: what CI runs
	@$(BIN)/python -m pytest -n 3 --times=build/test-times/all.txt

test-vllm: setup ## The tests that start a real vLLM
	@$(BIN)/python -m pytest -n 2 -m vllm --times=build/test-times/vllm.txt

browser: ## Install Chromium for tests of the dashboard, if it is missing
	@$(PYTHON) tools/browser.py

gpu: setup ## On a GPU: build wheels, run the tests marked gpu and benchmarks/gpu.py; DRY=1 runs without a GPU, JOBS=N
	@$(BIN)/python tools/gpu_day.py $(if $(DRY),--dry) $(if $(JOBS),--jobs $(JOBS))

clusters: setup ## Test data, checkpoints and examples with Ray, emulated S3, Kubernetes and SkyPilot; installs them once
	@$(PYTHON) tools/setup.py clusters
	@SWIFT_CLUSTERS=1 $(BIN)/python -m pytest tests/clusters

conformance: setup ## The whole conformance kit on every backend, and the tests marked rare
	@SWIFT_WHOLE_KIT=1 $(BIN)/python -m pytest tests -k "conformance or catches or compiled"
	@SWIFT_WHOLE_KIT=1 $(BIN)/python -m pytest tests -m rare -n 2

matrix: setup ## Resume every backend's checkpoints on every backend; writes docs/reference/resume-matrix.md
	@SWIFT_WHOLE_MATRIX=1 SWIFT_MATRIX_RESULTS=docs/reference/resume-matrix.json $(BIN)/python -m pytest tests/engines/test_matrix.py
	@$(BIN)/python tools/docs.py

architectures: setup ## Train every language model type on every backend; writes docs/reference/architectures.md
	@$(BIN)/python tools/architectures.py
	@$(VENV)/vision/bin/python tools/architectures.py --images
	@$(BIN)/python tools/docs.py

encoders: setup ## Train every encoder of transformers on every backend; writes docs/reference/encoders.json
	@$(BIN)/python tools/encoders.py
	@$(BIN)/python tools/docs.py

pairs: setup ## Train with every optimizer and tuner in every layout; writes docs/reference/tuning-pairs.md
	@SWIFT_PAIRS_RESULTS=docs/reference/tuning-pairs.json $(BIN)/python -m pytest tests/tuning/test_every_pair.py
	@$(BIN)/python tools/docs.py

real: setup ## Run recipes on pretrained models that packages contain; writes docs/recipes
	@$(BIN)/python tools/real.py
	@$(BIN)/python tools/docs.py

check: setup ## All checks except tests
	@$(MAKE) --no-print-directory -j 2 --output-sync=target typecheck lint imports docs-check

lint: setup ## ruff: rules and format
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

typecheck: setup ## mypy, strict
	@$(BIN)/mypy

imports: setup ## Check the import rules
	@$(BIN)/python tools/import_rules.py

docs: setup ## Write the generated pages in docs/reference, and the notebooks
	@$(BIN)/python tools/docs.py

readme-image: setup ## Train a tiny model in a terminal, and write the image of it for the README
	@$(BIN)/python tools/terminal_image.py

dashboard-images: setup browser ## Train a tiny model in the dashboard, and take the screenshots for README and docs
	@$(BIN)/python tools/dashboard_images.py

docs-check: setup
	@$(BIN)/python tools/docs.py --check

bench: setup ## Run the benchmarks and write benchmarks/results
	@$(BIN)/python -m benchmarks

wheels: setup ## Build the wheels of all packages into dist/
	@$(BIN)/python tools/wheels.py dist

site: setup ## Build the documentation into build/site/VERSION, with a page for each public module
	@$(PYTHON) tools/setup.py site
	@$(BIN)/python tools/site_check.py

release-check: setup ## Build a release, and test every package alone; no network
	@$(PYTHON) tools/setup.py site
	@$(BIN)/python tools/release_check.py

lock: setup ## Update the pins in requirements/
	@$(BIN)/python tools/lock.py

clean: ## Remove the environment, caches and build results
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
