# Every target sets up .venv by itself when it is missing or older than what it is made from.
.PHONY: demo test test-slow check format bench clean
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

demo: $(READY)  ## look at what there is: the catalogue, densities in the terminal and as a picture
	@$(BIN)/python benchmarks/demo.py

test: $(READY)
	$(BIN)/python -m pytest -n 2

test-slow: $(READY)
	$(BIN)/python -m pytest -m slow -s

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	$(BIN)/python benchmarks/sampler_cost.py
	$(BIN)/python benchmarks/throughput.py
	$(BIN)/python benchmarks/growth.py

clean:
	rm -rf .venv runs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "stepwell needs Python 3.11 or newer: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[all,dev]"
	@touch $@
