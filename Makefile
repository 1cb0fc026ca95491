# Set-up is part of each target, on a machine with Python 3.11 or newer:
#   make demo        compare four algorithms on synthetic images, in under two minutes on a CPU
#   make check       lint, types and the fast tests, in about a minute after set-up
#   make test        lint, types, complexity and all tests that need no GPU
#   make reference   write docs/reference.md, the page of all settings, manyeyes/cli/help.txt, the packaged help, and the
#                    numbers that pages take from benchmarks/records
#   make docs        build the documentation as a site, in site/
#   make dist        build the wheel and the source archive, in dist/

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# Pages are tested in Debian's Chromium. It is installed where root allows; otherwise those tests are skipped.
BROWSER := command -v chromium >/dev/null || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || \
	{ apt-get install -y -q chromium || { apt-get update -q && apt-get install -y -q chromium; }; } >/dev/null 2>&1 || \
	echo "Chromium cannot be installed: browser tests are skipped"

.PHONY: demo check test lint reference docs dist clean

demo: $(VENV)/core
	$(BIN)/manyeyes demo

check: $(VENV)/ready lint
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow"

test: $(VENV)/ready lint
	@$(BROWSER)
	$(BIN)/pytest -n 3 --dist worksteal  # one more than two cores: some tests wait

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/complexipy --failed --quiet

reference: $(VENV)/ready
	$(BIN)/python -c 'from manyeyes.cli.live_help import write_help; write_help()'
	$(BIN)/python -m docs.settings_page
	$(BIN)/python -m benchmarks.page_numbers

docs: $(VENV)/ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q
	@echo "The site is in site/: open site/index.html"

dist: $(VENV)/ready
	$(BIN)/python -m build

# The demo needs the package and its core dependencies alone; everything else also needs the tools of development.
$(VENV)/core: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "manyeyes needs Python 3.11 or newer. Choose one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/ready: $(VENV)/core
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info build dist site
