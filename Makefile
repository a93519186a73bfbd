# Two commands do everything on a machine with Python 3.11+ and make:
#   make demo   install and run the demonstration
#   make test   install what the tests need and run all of them
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# One process per core; each worker computes on its share.
WORKERS ?= auto

.PHONY: demo test lint format gallery bench clean

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.demo: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[cli]"
	touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@ $(VENV)/.demo

demo: $(VENV)/.demo
	$(BIN)/mercer demo --output .demo

# A worker is a process of its own: threads of its linear algebra would only wait for the other's.
test: $(VENV)/.dev
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Run the pages of the gallery; their plots go to docs/gallery/images.
gallery: $(VENV)/.dev
	$(BIN)/python docs/gallery/build.py

# uci.py and flights.py take hours; run them by themselves, with --kept FILE to go on where they stopped.
bench: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet -r benchmarks/requirements.txt
	$(BIN)/python benchmarks/gram.py
	$(BIN)/python benchmarks/exact_gp.py
	$(BIN)/python benchmarks/calibration.py
	$(BIN)/python benchmarks/dual.py
	$(BIN)/python benchmarks/regressors.py
	$(BIN)/python benchmarks/classification.py
	$(BIN)/python benchmarks/inferences.py
	$(BIN)/python benchmarks/usps.py
	$(BIN)/python benchmarks/optima.py
	$(BIN)/python benchmarks/default_fit.py
	$(BIN)/python benchmarks/simulated.py
	$(BIN)/python benchmarks/defaults.py
	$(BIN)/python benchmarks/structured.py
	$(BIN)/python benchmarks/generative.py
	$(BIN)/python benchmarks/doubt.py
	$(BIN)/python benchmarks/heteroscedastic.py
	$(BIN)/python benchmarks/likelihoods.py
	$(BIN)/python benchmarks/timeseries.py
	$(BIN)/python benchmarks/forecasting.py
	$(BIN)/python benchmarks/grids.py
	$(BIN)/python benchmarks/neighbors.py
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/cokriging.py
	$(BIN)/python benchmarks/manifolds.py
	$(BIN)/python benchmarks/minimize.py
	$(BIN)/python benchmarks/large_classes.py
	$(BIN)/python benchmarks/plan.py

clean:
	rm -rf $(VENV) .demo build dist
