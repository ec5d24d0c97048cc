PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed

.PHONY: browser demo test test-all lint docs picture dist wheel-alone quality bench scaling doors verdicts peers peers-quick reproduce clean

demo: $(STAMP)
	$(VENV)/bin/python demo/run.py

# For the tests of pages in a browser, where we may install one; they are skipped where there is none.
browser:
	@command -v chromium >/dev/null \
		|| { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq chromium; } \
		|| echo "There is no Chromium here: the tests of pages in a browser will be skipped."

test: $(STAMP)
	$(VENV)/bin/python -m pytest -n 2 --dist loadgroup

test-all: $(STAMP)
	$(VENV)/bin/python -m pytest -n 2 --dist loadgroup -m "slow or not slow"

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

# The documentation site, tutorials executed, warnings as errors: docs/_build/html/index.html.
docs: $(VENV)/.docs
	$(VENV)/bin/python -m sphinx -W --keep-going -b html docs docs/_build/html

# The picture of README and site.
picture: $(STAMP)
	$(VENV)/bin/python demo/two_masts.py docs/_static/two_masts.png

# Source archive and wheel, checked.
dist: $(VENV)/.release
	rm -rf dist
	$(VENV)/bin/python -m build
	$(VENV)/bin/python -m twine check --strict dist/*

# The wheel in an environment of its own, without extras: it imports, and fits.
wheel-alone: dist
	rm -rf build/alone && $(PYTHON) -m venv build/alone
	build/alone/bin/python -m pip install --quiet -c constraints.txt dist/*.whl
	cd build && alone/bin/python ../tests/alone.py

quality: $(STAMP)
	$(VENV)/bin/python benchmarks/quality.py

bench: $(STAMP)
	$(VENV)/bin/python benchmarks/door_cost.py
	$(VENV)/bin/python benchmarks/door_cost.py --x64
	$(VENV)/bin/python benchmarks/cold_start.py
	$(VENV)/bin/python benchmarks/checkpoint.py
	$(VENV)/bin/python benchmarks/memory.py

# How cost grows in rows, dimensions, components and processes: an hour on one core; goes on where it was stopped.
scaling: $(STAMP)
	$(VENV)/bin/python benchmarks/scaling.py
	$(VENV)/bin/python benchmarks/scaling_page.py

# Models as a new user writes them, through their doors, against long NUTS; goes on where it was stopped.
doors: $(STAMP)
	$(VENV)/bin/python benchmarks/doors.py

verdicts: $(STAMP)
	$(VENV)/bin/python benchmarks/verdicts.py

# relbo against other tools: hours on one core, minutes for the quick one; goes on where it was stopped.
peers: $(VENV)/.peers
	$(VENV)/bin/python benchmarks/peers.py
	$(VENV)/bin/python benchmarks/peers_page.py
	$(VENV)/bin/python benchmarks/peers_readme.py

peers-quick: $(VENV)/.peers
	$(VENV)/bin/python benchmarks/peers.py --quick

# The paper's experiments, on the data beside the repository if there are any, else on embedded ones. It says how long it
# will take before it begins, tells of its progress, and goes on where it was stopped.
reproduce: $(STAMP)
	$(VENV)/bin/python -m experiments all

clean:
	rm -rf $(VENV) build dist docs/_build docs/_generated .pytest_cache .ruff_cache .mypy_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment is made once, and again when what it should hold has changed.
$(STAMP): pyproject.toml constraints.txt
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e ".[test,lint,demo]"
	touch $@

# What builds the site and the archives.
$(VENV)/.docs $(VENV)/.release: $(VENV)/.%: $(STAMP)
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e ".[$*]"
	touch $@

# The other tools of the comparison, which nothing else needs.
$(VENV)/.peers: $(STAMP)
	$(VENV)/bin/python -m pip install --quiet -c constraints.txt -e ".[peers]"
	touch $@
