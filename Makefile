# Everything a newcomer needs: `make demo` and `make test`. Both set up .venv on the first call.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test deep nightly check bench compare clean

demo: $(READY)  ## capture, solve with every solver, prove, draw, run
	$(BIN)/python -m experiments.demo

# One file, one worker: what the tests of a file share is made once.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile

test: $(READY)  ## the quick half of the suite: every property, in some six minutes on two cores
	$(PYTEST)

deep: $(READY)  ## the deep half: many random inputs, every model compiled with every plan, the notebooks
	$(PYTEST) --deep

nightly: $(READY)  ## the deep half on far more random inputs, new on every run
	HYPOTHESIS_PROFILE=nightly $(PYTEST) --deep

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

clean:
	rm -rf .venv demo-output

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("remat needs Python 3.11 or later, got " + sys.version.split()[0] + "; call make PYTHON=python3.11")'
	@echo 'Setting up .venv: torch and what the tests need, one to ten minutes, depending on the network'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --upgrade pip
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	touch $@
