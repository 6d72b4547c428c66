# Everything runs in .venv, .venv-lint and .venv-site, which are created here. PYTHON chooses the interpreter (3.10 or newer).
PYTHON ?= python3
BIN := .venv/bin
# uv installs in a quarter of pip's time; where it does not reach the registry that pip is configured for, pip does it.
install = $(BIN)/uv pip install --quiet --compile-bytecode --python $(1) $(2) || $(BIN)/python -m pip --python $(1) install --quiet $(2)

.PHONY: demo site test slow experiments fuzz kill lint check wheel clean

demo: .venv/installed  ## checks photographs with anomalies and duplicates; writes vergence-demo/check/report.html
	$(BIN)/vergence demo

test: .venv/tested  ## numerics, contracts, one real run a verb, doctests and the README's examples; two processes of one thread
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 -m "not slow"

slow: .venv/tested  ## extremes, fuzzing, hostile files, several processes, the ledger, every published command; ORDER: only these files
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 -m slow $(or $(ORDER),tests src README.md docs experiments/tests)

experiments: .venv/tested  ## the quick tests of the experiments; make slow has the others
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 2 -m "not slow" experiments/tests

site: .venv-site/installed  ## builds the documentation into site/, where a warning is an error
	NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --site-dir site

fuzz: .venv/tested  ## 50,000 hostile cases with a random seed; what they find is kept in tests/fuzz/found
	VERGENCE_FUZZ=$${VERGENCE_FUZZ:-50000} OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest --numprocesses 2 tests/fuzz

lint: .venv-lint/installed  ## ruff and mypy --strict
	.venv-lint/bin/ruff check .
	.venv-lint/bin/ruff format --check .
	.venv-lint/bin/mypy

check: lint test

wheel: .venv/tested  ## builds sdist, wheel and bill of materials, checks them, and runs the demo from the wheel in a new environment
	rm -rf dist && mkdir -p dist/source
	$(PYTHON) -m venv dist/tools
	$(PYTHON) -m venv --without-pip dist/venv
	$(call install,dist/tools/bin/python,build twine cyclonedx-bom)
	dist/tools/bin/python -m build --outdir dist . > dist/build.log
	dist/tools/bin/twine check --strict dist/*.whl dist/*.tar.gz
	$(PYTHON) .ci/distributions.py dist
	tar -xzf dist/*.tar.gz -C dist/source --strip-components 1
	cd dist/source && PYTHONPATH=src ../../$(BIN)/python -m pytest -qq --collect-only > ../collected.log || { tail ../collected.log; exit 1; }
	$(call install,dist/venv/bin/python,dist/*.whl)
	dist/tools/bin/cyclonedx-py environment --output-reproducible -o dist/vergence.cdx.json dist/venv/bin/python
	cd dist && venv/bin/vergence doctor && OMP_NUM_THREADS=1 timeout 400 venv/bin/vergence demo --out demo
	rm -rf dist/venv dist/tools dist/source

kill: .venv/tested  ## kills commands at 130 random moments, trains on four processes, and every objective for 100,000 steps
	$(BIN)/python tests/kill/run.py
	OMP_NUM_THREADS=1 VERGENCE_PROCESSES=4 $(BIN)/python -m pytest -k processes --timeout 1200 \
		tests/learn/training/test_processes.py tests/mixtures/test_gaussian_mixture.py
	$(BIN)/python tests/kill/long.py --steps 100000

.venv/installed: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "vergence needs Python >= 3.10, found " + sys.version.split()[0] + "; set PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip uv
	$(call install,$(BIN)/python,--editable .)
	touch $@

.venv/tested: .venv/installed
	$(call install,$(BIN)/python,--group test)
	touch $@

.venv-%/installed: .venv/installed  ## an environment of a dependency group's own: what it needs cannot hide what the tests lack
	$(PYTHON) -m venv .venv-$*
	$(call install,.venv-$*/bin/python,--editable . --group $*)
	touch $@

clean:
	rm -rf .venv .venv-* dist .pytest_cache .mypy_cache .ruff_cache site vergence-demo
