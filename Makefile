# The front door. `make help` lists the targets.
#
# PYTHON           the interpreter to make the environment with (3.11 to 3.13)
# TORCH_INDEX_URL  where to take torch from, such as an index of CPU-only wheels; unset: pip's own
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
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
# A file at a time for each; 1: all in one process, as --pdb and -s want it. Threads that wait for work sleep: those of two
# workers would else spin against each other.
TEST_WORKERS ?= 3
ifneq ($(filter-out 1,$(TEST_WORKERS)),)
PARALLEL := --numprocesses $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0
endif
CHAOS_REQUESTS ?= 200000
CHAOS_MINUTES ?= 30
CHAOS_SEED ?=
CHAOS_ROUND ?=
CHAOS_ARGS ?=

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
	  { echo "Python 3.11, 3.12 or 3.13 is needed: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt \
	  --no-deps $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) torch==2.13.0
	TORCHLANE_PURE=1 $(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

# Machine code of these very sources is made if there is none yet; where it cannot be, one line says why.
COMPILE := $(BIN)/python deploy/compile.py

.PHONY: setup
setup: $(READY) ## make the virtual environment .venv with all dependencies, and the server's machine code
	@$(COMPILE)

.PHONY: export
export: $(READY) ## train and export MODEL (default: digits) to OUT (default: artifacts)
	$(BIN)/python -m export $(MODEL) --out $(OUT)

ARTIFACTS := ls artifacts/*/*/manifest.json >/dev/null 2>&1 || $(MAKE) --no-print-directory export

.PHONY: serve
serve: $(READY) ## serve what is in artifacts/, exports digits first if nothing is there; SERVE_ARGS='--port 9000': flags
	@$(if $(findstring --model-dir,$(SERVE_ARGS)),:,$(ARTIFACTS))
	@exec $(COMPILE) --run -m app $(SERVE_ARGS)

.PHONY: serve-python
serve-python: $(READY) ## serve with the sources as they are, without machine code: for those who edit them
	@$(if $(findstring --model-dir,$(SERVE_ARGS)),:,$(ARTIFACTS))
	@exec $(BIN)/python -m app $(SERVE_ARGS)

.PHONY: compiled
compiled: $(READY) ## the machine code in .compiled, as `make setup` makes it; fails where it cannot be made
	@$(COMPILE) --required

.PHONY: wheels
wheels: $(READY) ## dist/: a wheel with machine code for this machine and this Python, one without, the sources
	TORCHLANE_PURE=0 $(BIN)/python -m hatchling build --target wheel --directory dist
	TORCHLANE_PURE=1 $(BIN)/python -m hatchling build --target wheel --target sdist --directory dist

.PHONY: test-compiled
test-compiled: compiled ## run the tests of the server's parts on it
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -P -m pytest -o 'pythonpath=.compiled .' $(PARALLEL) $(PYTEST_ARGS) \
	  tests/unit/app/api tests/unit/app/codecs tests/unit/app/engine tests/unit/app/processes tests/unit/app/metrics/test_tally.py \
	  tests/integration

.PHONY: test
test: $(READY) ## run the tests, TEST_WORKERS (3) files at a time; PYTEST_ARGS='-k NAME -x': some, until one fails
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest $(PARALLEL) $(PYTEST_ARGS) -m 'not soak and not compose'

.PHONY: test-fast
test-fast: $(READY) ## the quick tests of the server's parts, in less than a minute: what to run at each save
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest $(PARALLEL) $(PYTEST_ARGS) -m 'not slow and not soak' \
	  $(addprefix tests/unit/app/,access api codecs engine metrics processes registry)

.PHONY: test-compose
test-compose: $(READY) ## build the images and prove the compose stack in the container engine that answers
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m 'compose and not soak' -rPs tests/compose

.PHONY: soak
soak: $(READY) ## run the long tests
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m soak

.PHONY: fuzz
fuzz: $(READY) ## fuzz what reads strangers' bytes, FUZZ_SECONDS (60) in all; FUZZ_TARGETS=json: only that
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) $(FUZZ_TARGETS)

.PHONY: fuzz-native
fuzz-native: $(READY) ## fuzz the reader of JSON numbers in C++ with AddressSanitizer and UBSan, FUZZ_SECONDS (60)
	$(BIN)/python -m tests.fuzz --sanitize --seconds $(FUZZ_SECONDS)

.PHONY: chaos
chaos: $(READY) ## a real server under faults and clients of every kind, CHAOS_REQUESTS of them; a seed is drawn and printed
	$(BIN)/python -m tests.chaos --requests $(CHAOS_REQUESTS) --minutes $(CHAOS_MINUTES) \
	  $(if $(CHAOS_SEED),--seed $(CHAOS_SEED)) $(if $(CHAOS_ROUND),--round $(CHAOS_ROUND)) $(CHAOS_ARGS)

.PHONY: cover
cover: $(READY) ## run the tests and print branch coverage
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m 'not soak and not compose' --cov --cov-report=term

.PHONY: check
check: $(READY) ## format, lint, types, layers, insecure code, pins, generated code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive app models export loadtests deploy
	$(BIN)/python -m pip check
	$(BIN)/python deploy/pins.py
	$(BIN)/python deploy/protos.py --check

.PHONY: audit
audit: $(READY) ## ask the internet whether a pinned package has a known vulnerability
	$(BIN)/python deploy/audit.py

.PHONY: protos
protos: $(READY) ## make the Python modules of the gRPC interface from its .proto file
	$(BIN)/python deploy/protos.py

.PHONY: format
format: $(READY) ## rewrite the code in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: load
load: $(READY) ## 30 s of Locust against a running server; its report under reports/
	@mkdir -p reports
	$(BIN)/locust --headless --locustfile loadtests/locustfile.py --host $(HOST) \
	  --users 32 --spawn-rate 32 --run-time 30s --stop-timeout 10 --only-summary \
	  --html reports/load.html --csv reports/load $(LOAD_ARGS)

.PHONY: capacity
capacity: $(READY) ## the highest rate that a running server holds within an SLO; table, page and JSON under reports/
	$(BIN)/python -m loadtests find-capacity --url $(HOST) $(CAPACITY_ARGS)

.PHONY: bench
bench: compiled ## this server and others on the same work, in turns of a second; BENCH_ARGS=--quick: about two minutes
	$(BIN)/python -m loadtests bench $(BENCH_ARGS)

.PHONY: bench-tail
bench-tail: compiled ## p50, p99, p99.9 of this server, mosec and plain FastAPI at the same offered rates, in an open loop
	$(BIN)/python -m loadtests tail $(BENCH_ARGS)

.PHONY: bench-start
bench-start: compiled ## the parts of a cold start, from the process to the first answer
	$(BIN)/python -m loadtests cold-start $(BENCH_ARGS)

.PHONY: overload
overload: compiled ## 0.7 to 4 times of what servers hold, next to others, as `make bench`; OVERLOAD_ARGS=--quick: a minute
	$(BIN)/python -m loadtests overload $(OVERLOAD_ARGS)

.PHONY: bench-loading
bench-loading: $(READY) ## latencies of digits before and while a slow model is loaded next to it
	$(BIN)/python -m loadtests loading $(BENCH_ARGS)

.PHONY: bench-devices
bench-devices: $(READY) ## two CPU devices next to one: replicas, bare forwards, a pipeline; the engine alone, without HTTP
	$(BIN)/python -m tests.devices $(BENCH_ARGS)

.PHONY: bench-gpu
bench-gpu: $(READY) ## a GPU next to bare forwards on it: throughput, copies that are hidden (traces under reports/), graphs
	$(BIN)/python -m tests.devices.gpu $(BENCH_ARGS)

.PHONY: bench-peers
bench-peers: $(READY) ## install the other servers of `make bench` (mosec, LitServe, MLServer, PyTriton, KServe, infinity), an environment each
	$(BIN)/python -m loadtests bench-peers

.PHONY: ray-env
ray-env: $(READY) ## .ray: an environment with Ray on top of .venv; without it its tests are skipped
	$(BIN)/python -m tests.ray

.PHONY: screenshots
screenshots: $(READY) ## pictures of the page for the README, of a server under load; needs chromium and an export of digits
	$(BIN)/python -m tests.browser.screenshots

.PHONY: constraints
constraints: $(READY) ## pin what is installed now
	{ sed -n '/^#/p' constraints.txt; $(BIN)/python -m pip freeze --all --exclude pip --exclude-editable \
	  | sed -E 's/^(torch==[0-9.]+)\+.*/\1/'; } > constraints.new && mv constraints.new constraints.txt

.PHONY: clean
clean: ## remove what can be made again, but not artifacts/ and not .venv
	rm -rf reports dist .builds .compiled .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .coverage .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

.PHONY: help
help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20
