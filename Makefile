# `make demo` and `make test` work on a fresh clone; both make .venv and install what they need.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-core test-matrix package lint docs bench clean

demo: .venv/cli
	$(BIN)/taufree demo

# Two processes of one thread each, for most tests use no more; files with slow tests come first.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test: .venv/test
	$(PYTEST)

test-core: .venv/test  # the losses, links and backends alone, in two minutes
	$(PYTEST) -m "not slow" tests/links tests/backends tests/test_*.py src/taufree/links* src/taufree/backends src/taufree/*.py

test-matrix: .venv/test  # every Python, the lowest and the newest versions, the core alone: see noxfile.py
	$(BIN)/nox

package: .venv/test  # the wheel and the sdist in empty environments
	$(BIN)/nox -s package

lint: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: .venv/docs  # into site/; a broken link or reference fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: .venv/test
	$(BIN)/python -m benchmarks.speed.cpu

clean:
	rm -rf .venv .nox runs figures dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis

.venv/%: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "Installing taufree[$*] and PyTorch into .venv: some minutes and several GB the first time."
	$(BIN)/python -m pip install --quiet --editable ".[$*]"
	$(if $(filter test,$*),$(BIN)/python -m pip install --quiet --no-deps recbole==1.2.1 thop)
	touch $@
