# Development commands. Each installs its dependencies into .venv and labextension/node_modules when it first runs;
# stamp files in .make let later runs skip this step while nothing has changed.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

export PATH := $(CURDIR)/.venv/bin:$(PATH)
# Let Python keep its bytecode where an image forbids it: the engine starts in three quarters of the time.
export PYTHONDONTWRITEBYTECODE :=
# Yarn does not read npm's configuration; pass on npm's registry instead of hard-coding an address.
NPM_REGISTRY = $$(npm config get registry 2>/dev/null)
JLPM = cd labextension && YARN_NPM_REGISTRY_SERVER="$(NPM_REGISTRY)" YARN_ENABLE_TELEMETRY=0 jlpm
# Jupyter directories shared by `make demo` and `make lab`; the user's own Jupyter directories stay untouched.
DEMO_PLACES = export JUPYTER_CONFIG_DIR="$(CURDIR)/.make/jupyter/config" JUPYTER_DATA_DIR="$(CURDIR)/.make/jupyter/data" \
	JUPYTER_RUNTIME_DIR="$(CURDIR)/.make/jupyter/runtime" IPYTHONDIR="$(CURDIR)/.make/jupyter/ipython";
# Run three test files in parallel, each in one process: many tests wait for other processes.
PYTEST = python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
# uv downloads and unpacks in parallel. It does not read pip's configuration; pass on pip's package index.
UV = index="$${PIP_INDEX_URL:-$$(.venv/bin/python -m pip config get global.index-url 2>/dev/null || true)}"; \
	$${index:+env UV_DEFAULT_INDEX="$$index"} .venv/bin/uv pip install --quiet --python .venv/bin/python --constraint requirements.lock
FRONT_END = $(shell find labextension -name node_modules -prune -o -name lib -prune -o -name .yarn -prune -o \
	-type f ! -name '*.spec.ts*' ! -name '*.tsbuildinfo' ! -name '.eslintcache' ! -name '.stylelintcache' -print 2>/dev/null)

.PHONY: help demo lab docs linkcheck screenshots test test-all cluster test-kubernetes test-python check check-python check-typescript format bench lock clean

help:
	@echo "make demo     train examples/quickstart.ipynb on this machine"
	@echo "make lab      open examples/quickstart.ipynb in JupyterLab"
	@echo "make test     run the quick tests (Python, browser, TypeScript; about 15 minutes)"
	@echo "make test-all run all tests with more seeds (about an hour)"
	@echo "make cluster  build etcd and Kubernetes for the tests (needs Go 1.26; minutes when it first runs)"
	@echo "make test-kubernetes  run the tests on a Kubernetes cluster"
	@echo "make check    check formatting, lint, house rules, import contracts, types"
	@echo "make bench    run the benchmarks and measure comparable systems in the same run"
	@echo "make docs     build the documentation site in .make/docs; any warning is an error"
	@echo "make linkcheck  check the documentation's links to other sites; needs the network"
	@echo "make screenshots  take the pictures of README and documentation from real jobs"
	@echo "make format   format Python and TypeScript"
	@echo "make lock     update requirements.lock"
	@echo "make clean    remove everything that was installed or built"

# ---------------------------------------------------------------------------------------------------------------- run

demo: .make/python
	@.venv/bin/python examples/demo.py

lab: .make/python .make/front-end
	@mkdir -p .make/jupyter/config/labconfig
	@echo '{"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": true}}' > .make/jupyter/config/labconfig/page_config.json
	@cd examples && $(DEMO_PLACES) exec jupyter lab quickstart.ipynb $(if $(filter 0,$(shell id -u)),--allow-root) $(LAB_OPTIONS)

# ---------------------------------------------------------------------------------------------------------------- docs

docs: .make/python .make/node
	@python -m sphinx --builder html --fresh-env --nitpicky --fail-on-warning --keep-going --quiet docs .make/docs
	@echo "Open .make/docs/index.html"

# Not part of continuous integration: it fails when another site is down.
linkcheck: .make/python
	@python -m sphinx --builder linkcheck --nitpicky --keep-going --quiet docs .make/linkcheck
	@echo "All links work. The list is in .make/linkcheck/output.txt"

screenshots: .make/python .make/front-end
	@python -m tests.screenshots

# --------------------------------------------------------------------------------------------------------------- check

check: check-python check-typescript
	@echo "All checks passed."

check-python: .make/python
	@echo "== format" && ruff format --check --quiet . || { ruff format --diff --quiet . | head -60; echo "Run make format to fix this."; exit 1; }
	@echo "== lint" && ruff check --quiet .
	@echo "== house rules" && python tests/house.py
	@echo "== import contracts" && lint-imports --no-logo > .make/imports.txt || { cat .make/imports.txt; exit 1; }
	@echo "== types" && mypy jupyter_dlaas server/dlaas_server tests examples docs

check-typescript: .make/node
	@echo "== TypeScript" && $(JLPM) lint:check

format: .make/python .make/node
	ruff format .
	ruff check --fix .
	$(JLPM) lint

# Run TypeScript first, so that pytest's summary (slowest tests, skipped tests) ends the output.
test: .make/python .make/front-end
	@failed=0; ($(JLPM) test) || failed=1; $(PYTEST) $(PYTEST_OPTIONS) || failed=1; exit $$failed

test-all: .make/python .make/front-end
	@failed=0; ($(JLPM) test) || failed=1; $(PYTEST) --exhaustive $(PYTEST_OPTIONS) || failed=1; exit $$failed

test-python: .make/python
	@$(PYTEST) -m "not page" $(PYTEST_OPTIONS)

# Build etcd and Kubernetes from Go modules, unless the binaries in .make/cluster belong to the present sources.
cluster: .make/python
	@python -m tests.kubernetes.binaries

# The tests share one cluster, so they run in one process. DLAAS_TEST_KUBECONFIG names another cluster to run them on.
test-kubernetes: $(if $(DLAAS_TEST_KUBECONFIG),.make/python,cluster)
	@python -m pytest tests/kubernetes $(PYTEST_OPTIONS)

bench: .make/python
	@python -m tests.bench $(BENCH_OPTIONS)

# -------------------------------------------------------------------------------------------------------------- set up

# Forget the stamp files of folders that somebody has deleted.
$(if $(wildcard .venv/bin/python),,$(shell rm -f .make/venv .make/python))
$(if $(wildcard labextension/node_modules),,$(shell rm -f .make/node))

# Includes the extension's build tools, so that `make -j 2 .make/python .make/node` installs Python and npm packages in parallel.
.make/venv: requirements.lock
	@mkdir -p .make jupyter_dlaas/labextension
	@if ! .venv/bin/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		for python in "$(PYTHON)" python3 python3.14 python3.13 python3.12 python3.11; do \
			[ -n "$$python" ] && "$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break || python=; \
		done; \
		[ -n "$$python" ] || { echo "jupyter_dlaas needs Python 3.11 or newer with its venv module."; \
			echo "Install it (Debian: apt-get install python3 python3-venv) or run make PYTHON=/path/to/python ..."; exit 1; }; \
		echo "Setting up .venv with $$($$python --version) (installs PyTorch and more; takes minutes, and 6 GB with the CUDA build)"; \
		rm -rf .venv; "$$python" -m venv .venv; \
	fi
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock uv
	@$(UV) hatchling hatch-jupyter-builder editables jupyter-builder
	@touch $@

.make/python: .make/venv pyproject.toml
	@rm -rf .venv/share/jupyter/labextensions/jupyter-dlaas
	@export SKIP_JUPYTER_BUILDER=1; $(UV) --no-build-isolation --editable '.[dev]'
	@rm -rf .venv/share/jupyter/labextensions/jupyter-dlaas
	@ln -s "$(CURDIR)/jupyter_dlaas/labextension" .venv/share/jupyter/labextensions/jupyter-dlaas
	@.venv/bin/python -W ignore -m compileall -qq -j 0 -x '/(tests|transformers/models)/' .venv/lib || true # some files are not valid Python
	@.venv/bin/python -m compileall -qq -j 0 jupyter_dlaas server/dlaas_server # for engines and jobs that start outside of make
	@touch $@

.make/node: labextension/package.json labextension/yarn.lock .make/venv
	@command -v node >/dev/null && command -v npm >/dev/null || { echo "Building the front end needs Node.js 20 or newer and npm."; \
		echo "Install them (Debian: apt-get install nodejs npm). 'make demo' and 'make test-python' do not need them."; exit 1; }
	@echo "Setting up labextension/node_modules"
	@$(JLPM) install --immutable > ../.make/node.txt || { cat ../.make/node.txt; exit 1; }
	@touch $@

.make/front-end: .make/python .make/node $(FRONT_END)
	@echo "Building the front end"
	@$(JLPM) build:prod > ../.make/front-end.txt 2>&1 || { cat ../.make/front-end.txt; exit 1; }
	@touch $@

lock: .make/python
	uv pip compile pyproject.toml --quiet --extra dev --universal --python-version 3.11 --no-annotate --no-header -o requirements.lock

clean:
	rm -rf .venv .make labextension/node_modules labextension/lib jupyter_dlaas/labextension dist
