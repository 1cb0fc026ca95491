# Two commands do all set-up on a machine with Python 3.11 or newer:
#   make demo    compare four algorithms on a small world, in two minutes on a CPU
#   make test    check style and types, run the tests

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# Pages are tested in Debian's Chromium, where it is or can be installed; without it those tests are skipped.
BROWSER := command -v chromium >/dev/null || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || \
	{ apt-get install -y -q chromium || { apt-get update -q && apt-get install -y -q chromium; }; } >/dev/null 2>&1 || \
	echo "chromium cannot be installed here: the tests of pages in a browser are skipped"

.PHONY: demo test clean

demo: $(VENV)/ready
	$(BIN)/manyeyes demo

test: $(VENV)/ready
	@$(BROWSER)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 3 --dist worksteal  # one more than two cores: some tests wait

$(VENV)/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "manyeyes needs Python 3.11 or newer; name one with: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
