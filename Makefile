# Everything runs in .venv, which is made here. PYTHON chooses the interpreter (3.10 or newer).
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint check kill bench clean

demo: .venv/installed  ## train, evaluate and score on scikit-learn's digits; writes runs/demo/report.html
	$(BIN)/vergence demo

test: .venv/tested  ## all tests, doctests and the README's example; one thread a process, for threads that fight are slow
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2

lint: .venv/tested  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: lint test

kill: .venv/tested  ## kills commands at 130 random moments, trains on four processes, and every objective for 100,000 steps
	$(BIN)/python tests/kill/run.py
	OMP_NUM_THREADS=1 VERGENCE_PROCESSES=4 $(BIN)/python -m pytest tests/training/test_processes_objectives.py
	$(BIN)/python tests/kill/long.py --steps 100000

.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "vergence needs Python >= 3.10, found " + sys.version.split()[0] + "; set PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/tested: .venv/installed
	$(BIN)/python -m pip install --quiet --group test
	touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache
