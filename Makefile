# Everything a newcomer needs: `make demo` and `make test`. Both set up .venv on the first call.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test deep nightly versions check docs bench compare clean

demo: $(READY)  ## a small GPT in four ways: peak and step of PyTorch's plan, of checkpointing, and of ours at the same peaks
	$(BIN)/python -m experiments.demo

# One file, one worker: what the tests of a file share is made once.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile

test: $(READY)  ## the quick half of the suite: every property, in some six minutes on two cores
	$(PYTEST)

deep: $(READY)  ## the deep half: many random inputs, every model compiled with every plan, the notebooks
	$(PYTEST) --deep

nightly: $(READY)  ## the deep half on far more random inputs, new on every run
	HYPOTHESIS_PROFILE=nightly $(PYTEST) --deep

TORCH ?= 2.11.0 2.13.0 2.14.0 2.15.0

versions: $(TORCH:%=.venvs/torch-%/.ready)  ## the quick half on each torch that is promised; on one: make versions TORCH=2.15.0
	@failed=0; for version in $(TORCH); do \
		log=.venvs/torch-$$version/pytest.log; \
		.venvs/torch-$$version/bin/python -m pytest -n 2 --dist loadfile > $$log 2>&1 || failed=1; \
		grep -E '^(FAILED|ERROR) ' $$log; \
		echo "torch $$version: $$(tail -n 1 $$log) (all it said: $$log)"; \
	done; exit $$failed

check: $(READY)  ## format, lint, types, direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

docs: $(READY)  ## the site, in build/site; runs the notebooks that have changed
	$(BIN)/sphinx-build -W --keep-going -q -c docs -d build/doctrees . build/site

bench: $(READY)  ## speed beside PyTorch, in one run (a few minutes)
	$(BIN)/python -m experiments.bench.speed --again

compare: $(READY)  ## every solver on every instance of the corpus (about an hour); it goes on where it was stopped
	$(BIN)/python -m experiments.compare_solvers

clean:
	rm -rf .venv .venvs demo-output

# An environment of its own: $(call environment,its folder,the versions in it). The package is installed by its path:
# with setuptools' finder, a clone named remat/ would hide it from the folder above.
define environment
@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("remat needs Python 3.11 or later, got " + sys.version.split()[0] + "; call make PYTHON=python3.11")'
@echo 'Setting up $(1): torch and what the tests need, one to ten minutes, depending on the network'
$(PYTHON) -m venv $(1)
$(1)/bin/python -m pip install --upgrade pip
$(1)/bin/python -m pip install -c $(2) --config-settings editable_mode=compat -e '.[dev]'
touch $(1)/.ready
endef

$(READY): pyproject.toml constraints.txt
	$(call environment,.venv,constraints.txt)

# The versions of the suite, but another torch, with the Triton that it asks for.
.venvs/torch-%/.ready: pyproject.toml constraints.txt
	@mkdir -p $(@D)
	@(grep -vE '^(torch|triton)==' constraints.txt; echo torch==$*) > $(@D)/constraints.txt
	$(call environment,$(@D),$(@D)/constraints.txt)
