# Every target sets up what it needs: a virtual environment in .venv with the versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
# one thread for each process: the matrices are small, and tests and trials run side by side
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1
# compiled modules are kept: both test processes, and those that tests start, would compile all of them again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-all test-lowest test-spark fuzz mutants lint format bench reproduce docs dist clean

help:
	@echo "make demo        set up, fit on real records, write a report you can open"
	@echo "make test        set up, run the tests (minutes)"
	@echo "make test-all    the slow statistical checks as well (under an hour)"
	@echo "make test-lowest the core alone with the lowest versions that it allows (minutes)"
	@echo "make test-spark  fits on Spark frames, in an environment of its own (needs Java 17 or newer; minutes)"
	@echo "make fuzz        every reader of foreign files, RUNS=1000000 executions each"
	@echo "make mutants     apply mutants one at a time, check that the tests fail (minutes); ARGS='ledger --show'"
	@echo "                 SAMPLE=60 SEED=1 draws random ones and reports the share that is killed"
	@echo "make lint        ruff, mypy, import layers, rules of the source and of the prose"
	@echo "make bench       against every peer in one run, into docs/benchmarks.md; PARTS='training growth' for some"
	@echo "make reproduce   all experiments into results/ (hours; resumes); ARGS='--quick --data DIR' takes minutes"
	@echo "make dist        wheel and sdist into dist/, each extra tried in an environment of its own; EXTRAS='serve onnx'"
	@echo "make docs        build the documentation into site/"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11), "Python 3.11 or newer is needed"'
	$(PYTHON) -m venv $(VENV)

$(VENV)/run.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[demo]'
	@touch $@

$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) torch==2.13.0
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/run.stamp

demo: $(VENV)/run.stamp
	$(BIN)/dpscp demo

# each process keeps neighboring tests, and so most of what they share is made once
BOTH_CORES := -n 2 --dist worksteal
# COVERAGE=1 traces lines and branches as well, as test-all does: it takes more than half as long again
TRACED := --cov --cov-report=term-missing:skip-covered
test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest $(BOTH_CORES) -m "not slow" $(if $(COVERAGE),$(TRACED))

# models of transformers, timm and peft; without their dependencies, one of which is another build of torch
MODELS := tests/torch/requirements.txt
$(VENV)/models.stamp: $(MODELS) $(VENV)/dev.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r $(MODELS)
	@touch $@

test-all: $(VENV)/models.stamp
	$(BIN)/python -m pytest $(BOTH_CORES) $(TRACED)

# tests of the core that need no optional package
LOWEST := .venv-lowest
$(LOWEST)/lowest.stamp: pyproject.toml constraints-lowest.txt
	$(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-lowest.txt -e . pytest hypothesis
	@touch $@

test-lowest: $(LOWEST)/lowest.stamp
	$(LOWEST)/bin/python -m pytest -m "not slow" tests/privacy tests/threshold tests/validity \
		tests/guarantees/test_guarantees.py tests/deployment/test_calibration.py tests/estimators/test_sklearn_checks.py tests/core/test_random_fits.py

# half a gigabyte that nothing else needs, and Java, which pip does not bring
SPARK := .venv-spark
$(SPARK)/spark.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(SPARK)
	$(SPARK)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[spark]' pytest
	@touch $@

test-spark:
	@java -version >/dev/null 2>&1 || { echo "Spark needs Java 17 or newer, from the system's packages: apt-get install openjdk-17-jre-headless"; exit 1; }
	@$(MAKE) --no-print-directory $(SPARK)/spark.stamp
	$(SPARK)/bin/python -m pytest tests/data/sources/test_spark.py --durations=3

RUNS ?= 1000000
fuzz: $(VENV)/dev.stamp
	$(BIN)/python tests/fuzz/run.py all --runs $(RUNS)

mutants: $(VENV)/dev.stamp
	$(BIN)/python tests/mutants/run.py $(if $(SAMPLE),--sample $(SAMPLE) --seed $(or $(SEED),1)) $(ARGS)

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --config-file tests/mypy.ini
	$(BIN)/python tests/lint/check_prose.py
	$(BIN)/python tests/lint/check_source.py
	$(BIN)/python tests/mutants/run.py --check
	$(BIN)/lint-imports --no-logo

format: $(VENV)/dev.stamp
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# the parts that were not measured at this commit, or PARTS='training growth'; the other benchmarks are run by hand
bench: $(VENV)/dev.stamp
	$(BIN)/python benchmarks/peers.py $(PARTS)

# packages of single studies; a study without its package is skipped
build/peers.stamp: experiments/requirements.txt $(VENV)/dev.stamp
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target build/peers -r $< && touch $@

reproduce: $(VENV)/dev.stamp build/peers.stamp
	PYTHONPATH=build/peers $(BIN)/python -m experiments $(ARGS)

docs: $(VENV)/dev.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site
	@echo "open site/index.html"

dist:
	$(PYTHON) tests/lint/check_wheel.py $(EXTRAS)

clean:
	rm -rf $(VENV) $(SPARK) $(LOWEST) site build dist .pytest_cache .mypy_cache .ruff_cache .coverage
