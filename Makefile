# The front door. `make help` lists the targets.
#
# PYTHON           the interpreter for the environment (3.11 to 3.13)
# TORCH_INDEX_URL  the index for torch, for example one of CPU-only wheels; default: pip's own
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
SERVES := .venv/.serves
READY := .venv/.ready
MODEL ?= digits
OUT ?= artifacts
HOST ?= http://127.0.0.1:8000
SERVE_ARGS ?=
LOAD_ARGS ?=
CAPACITY_ARGS ?=
BENCH_ARGS ?=
OVERLOAD_ARGS ?=
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?=
PYTEST_ARGS ?=
# Each worker runs one file at a time; 1: all in one process, as --pdb and -s need. OMP_WAIT_POLICY=PASSIVE below lets
# idle threads sleep; else the threads of two workers would spin against each other. OMP_NUM_THREADS=1: they have no
# core to spare, and each small forward would wait for a second thread to be scheduled.
TEST_WORKERS ?= 3
ifneq ($(filter-out 1,$(TEST_WORKERS)),)
PARALLEL := --numprocesses $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0
endif
# constraints.txt pins the oldest supported release of torch; this is the newest. What pip downloads for it may be gigabytes.
TORCH ?= 2.15.0
TORCH_FOLDER = $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/torchlane/torch-$(TORCH)-$(shell $(BIN)/python -c 'import sys; print(sys.implementation.cache_tag)')
TORCH_PIP_ARGS ?=
CHAOS_REQUESTS ?= 200000
CHAOS_MINUTES ?= 30
STATES ?=
CHAOS_SEED ?=
CHAOS_ROUND ?=
CHAOS_ARGS ?=
MISHAPS_ARGS ?=

# Python compiles a module when it first imports it, and most of those of torch and other large packages are never
# imported: pip takes a third of the time.
export PIP_COMPILE := 0
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt
EDITABLE := TORCHLANE_PURE=1 $(PIP) --no-build-isolation --editable

# The pip that Python brings takes three times as long to find these packages. hatchling builds the editable package; an
# environment of its own for that would take as long as to find all of them. mypy and setuptools make the machine code.
$(SERVES): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
	  { echo "Python 3.11, 3.12 or 3.13 is needed: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=26'
	$(PIP) --no-deps $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) torch
	$(PIP) hatchling
	$(EDITABLE) '.[export,onnx-export,openvino]' mypy setuptools
	@touch $@

$(READY): $(SERVES)
	$(EDITABLE) '.[dev]'
	@touch $@

# Builds machine code of the current sources if there is none; if that fails, prints one line with the reason.
COMPILE := $(BIN)/python deploy/compile.py

.PHONY: setup
setup: $(READY) ## create the virtual environment .venv with all extras and what tests need, and compile the server
	@$(COMPILE)

.PHONY: export
export: $(READY) ## train and export MODEL (default: digits) to OUT (default: artifacts)
	$(BIN)/torchlane export $(MODEL) --out $(OUT)

# The compiled form takes half of the time of the example's export; `make export` builds it.
ifeq ($(MODEL),digits)
FIRST := --variants script,onednn,openvino,onnx,bf16,int8
endif
ARTIFACTS := ls artifacts/*/*/manifest.json >/dev/null 2>&1 || $(BIN)/torchlane export $(MODEL) --out artifacts $(FIRST)

.PHONY: serve
serve: $(SERVES) ## serve artifacts/, after an export of digits if it is empty; SERVE_ARGS='--port 9000': flags
	@$(if $(findstring --model-dir,$(SERVE_ARGS)),:,$(ARTIFACTS))
	@exec $(COMPILE) --run -m app $(SERVE_ARGS)

.PHONY: serve-python
serve-python: $(SERVES) ## serve from the sources without machine code, for development
	@$(if $(findstring --model-dir,$(SERVE_ARGS)),:,$(ARTIFACTS))
	@exec $(BIN)/torchlane serve $(SERVE_ARGS)

.PHONY: compiled
compiled: $(READY) ## build the machine code in .compiled, as `make setup` does, but fail if that is not possible
	@$(COMPILE) --required

.PHONY: wheels
wheels: $(READY) ## build dist/: a wheel with machine code for this platform and Python, one without, and the sources
	TORCHLANE_PURE=0 $(BIN)/python -m hatchling build --target wheel --directory dist
	TORCHLANE_PURE=1 $(BIN)/python -m hatchling build --target wheel --target sdist --directory dist

.PHONY: release
release: $(READY) ## build and check what a release publishes: dist/ with wheels, sources and bills of materials; three images
	@test -z "$$(git status --porcelain)" || { echo "make release: commit or remove what git status shows" >&2; exit 1; }
	rm -rf dist
	$(MAKE) --no-print-directory wheels
	TORCHLANE_PURE=0 .ci/compose
	for image in torchlane torchlane-export torchlane-load; do $(BIN)/python deploy/sbom.py $$image:test >dist/$$image.cdx.json || exit; done
	DIST=dist $(BIN)/python -m pytest $(PYTEST_ARGS) tests/deploy/test_wheel.py

.PHONY: test-compiled
test-compiled: compiled ## run the tests of the server's parts on the machine code
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -P -m pytest -o 'pythonpath=.compiled .' $(PARALLEL) $(PYTEST_ARGS) \
	  tests/unit/app/api tests/unit/app/codecs tests/unit/app/engine tests/unit/app/processes tests/unit/app/metrics/test_tally.py \
	  tests/integration

.PHONY: test
test: $(READY) ## run the tests, TEST_WORKERS (3) files at a time; PYTEST_ARGS='-k NAME -x': a selection, until one fails
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest $(PARALLEL) $(PYTEST_ARGS) -m 'not soak and not compose'

QUICK = OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest $(PARALLEL) $(PYTEST_ARGS) -m 'not slow and not soak' \
	  $(addprefix tests/unit/app/,access api codecs engine metrics processes registry)

.PHONY: test-fast
test-fast: $(READY) ## run the quick tests of the server's parts, for every save
	$(QUICK)

# Next to .venv, which is unchanged: PYTHONPATH selects it. Kept, because other checkouts can use it too.
.PHONY: torch-env
torch-env: $(READY) ## install the newest supported release of torch, TORCH (2.15.0), in ~/.cache/torchlane
	@test -d $(TORCH_FOLDER) || { rm -rf $(TORCH_FOLDER).new && $(BIN)/python -m pip install --quiet --target $(TORCH_FOLDER).new \
	  --constraint <(grep -v '^torch==' constraints.txt) $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) \
	  $(TORCH_PIP_ARGS) torch==$(TORCH) && mv $(TORCH_FOLDER).new $(TORCH_FOLDER); }

.PHONY: test-torch
test-torch: torch-env ## run the quick tests on that release
	@PYTHONPATH=$(TORCH_FOLDER) $(BIN)/python -c 'import torch; print("torch", torch.__version__)' | grep -F "torch $(TORCH)"
	PYTHONPATH=$(TORCH_FOLDER) $(QUICK)

.PHONY: test-compose
test-compose: $(READY) ## build the images and test the compose stack in the running container engine
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m 'compose and not soak' -rPs tests/compose

.PHONY: nightly
nightly: $(READY) ## run the long tests and those that measure
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m soak

.PHONY: fuzz
fuzz: $(READY) ## fuzz the parsers of untrusted bytes, for FUZZ_SECONDS (60) in all; FUZZ_TARGETS=json: only that one
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) $(FUZZ_TARGETS)

.PHONY: fuzz-native
fuzz-native: $(READY) ## fuzz the C++ parser of JSON numbers with AddressSanitizer and UBSan, for FUZZ_SECONDS (60)
	$(BIN)/python -m tests.fuzz --sanitize --seconds $(FUZZ_SECONDS)

.PHONY: chaos
chaos: $(READY) ## test a real server with faults and CHAOS_REQUESTS requests from clients of every kind; prints its random seed
	$(BIN)/python -m tests.chaos --requests $(CHAOS_REQUESTS) --minutes $(CHAOS_MINUTES) \
	  $(if $(CHAOS_SEED),--seed $(CHAOS_SEED)) $(if $(CHAOS_ROUND),--round $(CHAOS_ROUND)) $(CHAOS_ARGS)

.PHONY: chaos-mishaps
chaos-mishaps: $(READY) ## test a real server for half an hour with an unread log, a full TMPDIR, overwritten versions, killed workers
	$(BIN)/python -m tests.chaos.mishaps $(MISHAPS_ARGS)

.PHONY: cover
cover: $(READY) ## run the tests and print branch coverage
	$(BIN)/python -m pytest $(PARALLEL) $(PYTEST_ARGS) -m 'not soak and not compose' --cov --cov-report=term

.PHONY: check
check: $(READY) ## check format, lint, types, layers, security, pins, generated code, documents
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive torchlane app models export loadtests deploy
	$(BIN)/python -m pip check
	$(BIN)/python deploy/pins.py
	$(BIN)/python deploy/protos.py --check
	$(MAKE) --no-print-directory docs

.PHONY: docs
docs: $(READY) ## build the documents as a site with search, which works offline: open site/index.html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.PHONY: audit
audit: $(READY) ## check the pinned packages for known vulnerabilities (needs the internet)
	$(BIN)/python deploy/audit.py

.PHONY: protos
protos: $(READY) ## generate the Python modules of the gRPC interface from its .proto file
	$(BIN)/python deploy/protos.py

.PHONY: format
format: $(READY) ## rewrite the code in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: load
load: $(READY) ## run Locust for 30 s against a running server; report under reports/
	@mkdir -p reports
	$(BIN)/torchlane load locust --headless --host $(HOST) \
	  --users 32 --spawn-rate 32 --run-time 30s --stop-timeout 10 --only-summary \
	  --html reports/load.html --csv reports/load $(LOAD_ARGS)

.PHONY: capacity
capacity: $(READY) ## find the highest rate at which a running server meets an SLO; table, page and JSON under reports/
	$(BIN)/torchlane load find-capacity --url $(HOST) $(CAPACITY_ARGS)

.PHONY: bench
bench: compiled ## compare this server with others on the same work, in turns of a second; BENCH_ARGS=--quick: about two minutes
	$(BIN)/torchlane load bench $(BENCH_ARGS)

.PHONY: bench-networks
bench-networks: compiled ## compare this server with FastAPI around ONNX Runtime on MobileNet, ResNet-50 and BERT; builds them first, once
	$(BIN)/torchlane load networks $(BENCH_ARGS)

.PHONY: overload
overload: compiled ## offer this server 0.7 to 4 times its capacity; OVERLOAD_ARGS=--quick: a minute
	$(BIN)/torchlane load overload $(OVERLOAD_ARGS)

.PHONY: bench-devices
bench-devices: $(READY) ## compare two CPU devices with one: replicas, bare forwards, a pipeline; the engine alone, without HTTP
	$(BIN)/python -m tests.devices $(BENCH_ARGS)

.PHONY: bench-gpu
bench-gpu: $(READY) ## compare a GPU with bare forwards on it: throughput, hidden copies (traces under reports/), each form
	$(BIN)/python -m tests.devices.gpu $(BENCH_ARGS)

.PHONY: gpu-check
gpu-check: $(READY) ## run the GPU's tests and all its measurements, in ten minutes, into reports/gpu; DEVICE=cpu: a rehearsal
	PYTHON=$(BIN)/python deploy/gpu_check.sh run reports/gpu

# torch first and alone, so that no other package's requirement selects a different build; the copy of the
# requirements comes last, and says that the environment is complete.
PEERS ?= mosec litserve pytriton infinity
.PHONY: bench-peers
bench-peers: $(READY) ## install the other servers of `make bench`, PEERS (mosec litserve pytriton infinity), each in its own environment
	@for peer in $(PEERS); do \
	  pins=loadtests/bench/peers/$$peer/requirements.txt; \
	  ! cmp -s $$pins .bench/$$peer/requirements.txt || continue; \
	  $(BIN)/python -m venv --clear .bench/$$peer && \
	  .bench/$$peer/bin/python -m pip install --quiet --no-deps $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) \
	    $$(grep '^torch==' $$pins) && \
	  .bench/$$peer/bin/python -m pip install --quiet --requirement $$pins && cp $$pins .bench/$$peer/ || exit; \
	done

.PHONY: ray-env
ray-env: $(READY) ## create .ray, an environment with Ray on top of .venv; without it the Ray tests are skipped
	$(BIN)/python -m tests.ray

.PHONY: screenshots
screenshots: $(READY) ## take the README's screenshots of the page under load; needs chromium and an export of digits
	$(BIN)/python -m tests.browser.screenshots

.PHONY: page-states
page-states: $(READY) ## take pictures of the page in each of its states, in reports/browser/states; needs chromium
	$(BIN)/python -m tests.browser.states $(STATES)

.PHONY: constraints
constraints: $(READY) ## pin the installed packages
	{ sed -n '/^#/p; /^torchvision==/p; /^tensorboard/p; /^absl-py==/p' constraints.txt; $(BIN)/python -m pip freeze --all --exclude pip --exclude-editable \
	  | sed -E 's/^(torch==[0-9.]+)\+.*/\1/'; } > constraints.new && mv constraints.new constraints.txt

.PHONY: clean
clean: ## remove generated files, except artifacts/ and .venv
	rm -rf reports dist site .builds .compiled .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .coverage .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

.PHONY: help
help: ## show this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20
