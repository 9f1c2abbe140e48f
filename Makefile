.DEFAULT_GOAL := help
.PHONY: help demo test test-engines conformance lint format venv clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

demo: ## try it: real engines behind the gateway at http://127.0.0.1:8100
	@scripts/demo

test: ## everything that is checked: lint, types, tests with coverage
	@scripts/test

test-engines: ## the tests that need a real vLLM, which is installed for them (3 GB)
	@scripts/test-engines

conformance: ## try every feature on every engine, vLLM too, and write docs/conformance.md
	@scripts/conformance

lint: ## ruff, mypy and the import rules
	@scripts/lint

format: venv ## rewrite the code in the common format
	@.venv/bin/ruff check --fix .
	@.venv/bin/ruff format .

venv: ## .venv with all that development needs
	@scripts/venv demo,test

clean: ## remove all that is made here, .venv included
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage htmlcov dist build
	@find gateway tests load -name __pycache__ -prune -exec rm -rf {} +
