# Everything a newcomer needs: `make demo` and `make test`. Both set up .venv on the first call.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test check bench compare nightly clean

demo: $(READY)  ## capture, solve with every solver, prove, draw, run
	$(BIN)/python -m experiments.demo

test: $(READY)  ## the whole suite
	$(BIN)/python -m pytest -n 2 --dist loadgroup

check: $(READY)  ## format, lint, types, direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

bench: $(READY)  ## speed beside PyTorch, in one run (about an hour and a quarter)
	$(BIN)/python -m experiments.bench.speed
	$(BIN)/python -m experiments.bench.speed_compile
	$(BIN)/python -m experiments.bench.speed_total

compare: $(READY)  ## every solver on every instance of the corpus (about a quarter of an hour)
	$(BIN)/python -m experiments.compare_solvers --jobs 2

nightly: $(READY)  ## the property tests, deeper
	HYPOTHESIS_PROFILE=nightly $(BIN)/python -m pytest -n 2 --dist loadgroup

clean:
	rm -rf .venv demo-output

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("remat needs Python 3.11 or later, got " + sys.version.split()[0] + "; call make PYTHON=python3.11")'
	@echo 'Setting up .venv: torch and what the tests need, one to ten minutes, depending on the network'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --upgrade pip
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	touch $@
