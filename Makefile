# Each target sets up what it needs: a virtual environment with the pinned dependencies of
# requirements.lock, a Java for Spark among them. Nothing is done again while nothing changed.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

# The many processes that tests start would else compile all of Millrace again, each for itself.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo quick test test-services browser soak check lint types format docs dist bench bench-peers vendor clean lock

help:  ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY)  ## Show Millrace at work.
	@$(BIN)/millrace demo

quick: lint types  ## Lint, types and the tests without Spark and browser, with a tenth of the random examples.
	$(BIN)/pytest -q -n 2 --dist worksteal -m "not spark and not browser and not services" --hypothesis-profile=quick

test: $(READY) browser  ## Run all tests in two processes, and hold the coverage to its floors.
	$(BIN)/pytest -q -n 2 --dist loadgroup --cov --cov-report=
	$(BIN)/coverage report --fail-under=90
	$(BIN)/coverage report --fail-under=95 --format=total --include='src/millrace/model/*'
	$(BIN)/coverage report --fail-under=95 --format=total --include='src/millrace/panes/*'

test-services: $(READY)  ## Run only the tests with a real Kafka, PostgreSQL or Spark cluster; `make test` has them, too.
	$(BIN)/pytest -q -n 2 --dist loadgroup -m services

browser:  ## Install Chromium for the tests of the page, if there is none.
	@tools/browser.sh

soak: $(READY)  ## Random tests with new seeds; trouble for live queries for SOAK_SECONDS=600, and for WALKS=2000 projects.
	CI_SEEDS=random $(BIN)/pytest -q -n 2 --dist worksteal -m "not spark and not browser"
	SOAK_SECONDS=$${SOAK_SECONDS:-600} SOAK_SEED=$${SOAK_SEED:-$$$$} $(BIN)/pytest -q tests/server/test_live_soak.py
	WALKS=$${WALKS:-2000} $(BIN)/pytest -q --show-capture=no tests/running/test_walks.py

check: lint types docs test  ## All that must be green: lint, types, docs and their links, tests, doctests.

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

format: $(READY)  ## Lay out the code and mend what ruff can.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)  ## Build the documentation into site/, and check its links.
	$(BIN)/python tools/reference.py docs/reference
	$(BIN)/zensical build --clean --strict

dist: $(READY)  ## Build the wheel and the source archive into dist/.
	rm -rf build dist
	$(BIN)/python -m build --no-isolation

bench: $(READY)  ## Measure, and write bench/RESULTS.md.
	$(BIN)/python -m bench

bench-peers: $(READY)  ## Measure other systems, each in an environment of its own.
	$(BIN)/python -m bench peers

vendor: $(READY)  ## Fetch the JavaScript libraries of the page from npm, and record their hashes.
	$(BIN)/python tools/vendor.py

clean:  ## Remove everything that make made.
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage build dist site docs/reference \
		spark-warehouse bench/.peers
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf src/*.egg-info

# A package that another one requires with an extra is locked with it: otherwise pip would try its newest version.
lock: $(READY)  ## Choose the newest versions that pyproject.toml allows.
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --extra all --group dev --group docs --universal --python-version 3.11 --upgrade \
		--generate-hashes --no-emit-index-url --no-strip-extras --no-header --quiet --output-file requirements.lock

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Millrace needs Python 3.11 or later; this is $$($(PYTHON) --version 2>&1)." \
		"Try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Setting up .venv: this takes a minute or two, once."
	@$(PYTHON) -m venv --clear .venv || \
		{ echo "Python cannot make a virtual environment; on Debian: apt install python3-venv" >&2; exit 1; }
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m millrace.spark.home
	@touch $(READY)
