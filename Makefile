# Every target sets up .venv by itself when it is missing or older than what it is made from.
.PHONY: demo test test-all test-slow mutate check docs format bench results hosts clean
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

demo: $(READY)  ## train four methods three times each, and make a page of what they did
	@echo "Training 12 small runs on embedded images: about 4 minutes on two cores."
	@$(BIN)/stepwell compare demo out=runs/demo --report runs/demo/report.html
	@echo "Look at it in a browser: $(CURDIR)/runs/demo/report.html"
	@echo "Next: .venv/bin/stepwell ls; .venv/bin/stepwell train fashion16 method=auto"

# A file's tests stay on one worker, so that what they share is trained once.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder

test: $(READY)  ## every package, in some minutes on two cores
	$(PYTEST)

test-all: $(READY)  ## all of `make test`, and processes, torchrun, a browser, documents, kills: what CI runs
	$(PYTEST) -m "not slow" --durations 15

test-slow: $(READY)  ## nightly: ten seeds, two hundred kills, long trainings on bad losses
	$(BIN)/python -m pytest -m slow -s

mutate: $(READY)  ## break one line at a time and see that a test fails (an hour)
	$(BIN)/python tests/mutations.py

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs: $(READY)  ## the documentation, at http://127.0.0.1:8000, made anew whenever a page changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(READY)
	$(BIN)/python benchmarks/sampler_cost.py
	$(BIN)/python benchmarks/throughput.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/learned_cost.py
	$(BIN)/python benchmarks/pacer_cost.py
	$(BIN)/python benchmarks/frechet_cost.py

results: $(READY)  ## what is missing of the paper's tables (hours), and RESULTS.md from all records
	$(BIN)/python benchmarks/studies.py

hosts: $(READY)  ## real trainers of others, each in its own environment below .hosts (gigabytes, an hour)
	$(BIN)/python benchmarks/hosts/run.py

clean:
	rm -rf .venv .hosts runs site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "stepwell needs Python 3.11 or newer: make PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[all,dev]"
	@touch $@
