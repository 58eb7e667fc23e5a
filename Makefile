# Commands for users and developers. `make help` lists them.
PRESET ?= release
BUILD := $(if $(filter release,$(PRESET)),build,build-$(PRESET))
# Compiling a translation unit with libtorch headers takes up to 2 GB.
JOBS ?= $(shell awk -v n=$$(nproc) '/MemAvailable/ { m = int($$2 / 2097152); print m < 1 ? 1 : m < n ? m : n }' /proc/meminfo)
# The Python package is built against the torch in .venv, so not with TORCH_DIR.
PYTHON_PACKAGE = $(if $(TORCH_DIR)$(filter-out release,$(PRESET)),,$(if $(shell ls .venv/lib/python3*/site-packages/torch/lib/libtorch_python.so 2>/dev/null),\
  -DSHADOWGRAPH_BUILD_PYTHON=ON -DPython_EXECUTABLE="$(CURDIR)/.venv/bin/python"))
CONFIGURE = cmake --preset $(PRESET) --log-level=WARNING $(if $(TORCH_DIR),-DTORCH_DIR="$(TORCH_DIR)") $(PYTHON_PACKAGE)
SOURCES = git ls-files -co --exclude-standard -- '*.h' '*.cpp'

.DEFAULT_GOAL := help
.PHONY: help setup build demo test check python wheels compatibility conformance nightly operator-coverage accuracy accuracy-gpu bench fuzz lint docs format format-check clean

help: ## list the targets
	@echo 'make TARGET [PRESET=release|debug|asan] [JOBS=n] [TORCH_DIR=folder of a libtorch]'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## install dependencies: Debian packages (as root), libtorch into .venv
	@scripts/setup.sh

build: setup ## build the library, build/bin/shadowgraph and the tests
	@$(CONFIGURE)
	@cmake --build $(BUILD) -j $(JOBS)

demo: setup ## profile a training step of ResNet-50 (batch 32, fake CUDA, SGD) into out/resnet50/
	@$(CONFIGURE)
	@cmake --build $(BUILD) -j $(JOBS) --target shadowgraph_tool
	$(BUILD)/bin/shadowgraph profile resnet50 --mode train --batch 32 --device cuda --optimizer sgd -o out/resnet50

test: build ## generate the fixtures and run all tests
	@scripts/setup.sh --test
	@ctest --preset $(PRESET) -j $(JOBS)

check: setup ## run the quick tests; ROOM=core/fake/rules builds and runs only the tests of that folder
	@$(CONFIGURE)
ifdef ROOM
	@scripts/check_room.py $(BUILD) $(JOBS) $(ROOM)
else
	@cmake --build $(BUILD) -j $(JOBS)
	@ctest --preset $(PRESET) -j $(JOBS) -L quick
endif

python: setup ## build the Python package: build/python (for PYTHONPATH), and the wheel in build/wheel/
	@scripts/setup.sh --wheel
	@$(CONFIGURE)
	@cmake --build $(BUILD) -j $(JOBS) --target shadowgraph_python
	@scripts/make_wheel.sh $(BUILD)

wheels: ## build manylinux wheels for all torch and CPython versions, in build-wheels/ (VERSIONS="2.13.0 2.15.0" selects)
	@scripts/setup.sh --wheel
	@JOBS=$(JOBS) scripts/make_wheels.sh $(VERSIONS)

compatibility: build ## build and test with another torch, VERSION=2.15.0, in build-torch-VERSION; updates docs/figures.md
	@scripts/setup.sh --test
	@scripts/compatibility.py $(VERSION) --jobs $(JOBS)
	@scripts/write_figures.py

conformance: build ## compare fake tensors with eager on all OpInfo samples of PyTorch (make test runs a subset)
	@scripts/setup.sh --test
	@.venv/bin/python tests/conformance/export_samples.py $(BUILD)/fixtures/opinfo-whole.pt --whole
	$(BUILD)/bin/conformance $(BUILD)/fixtures/opinfo-whole.pt --allow tests/conformance/allow_list.txt --jobs $(JOBS)

# Leak detection is off, because libtorch never frees its registries.
SANITIZED = ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
NIGHTLY_PROGRAMS ?= 50000
NIGHTLY_HOSTILE ?= 5000
HOSTILE_SEED ?= 1

nightly: conformance ## all OpInfo samples, long random programs, damaged input files; unit tests and conformance with sanitizers
	@tests/mutation/mutate.py --check
	@for program in replay_tests deferred_tests; do SHADOWGRAPH_RANDOM_PROGRAMS=$(NIGHTLY_PROGRAMS) \
	  $(BUILD)/bin/$$program --gtest_filter='*Program*' --gtest_brief=1 || exit 1; done
	@.venv/bin/python tests/python/check_hostile.py $(BUILD)/bin/shadowgraph $(BUILD)/tests/libfork_server.so \
	  --count $(NIGHTLY_HOSTILE) --seed $(HOSTILE_SEED)
	@SHADOWGRAPH_CHECK_RUNS=100 PYTHONPATH=$(BUILD)/python:tests/package .venv/bin/python -m pytest -q -k no_false_alarm \
	  tests/package/test_check.py
	@$(MAKE) build PRESET=asan
	@for program in ir core passes profiler replay; do \
	  $(SANITIZED) build-asan/bin/$${program}_tests --gtest_brief=1 || exit 1; done
	$(SANITIZED) build-asan/bin/conformance $(BUILD)/fixtures/opinfo-whole.pt --allow tests/conformance/allow_list.txt \
	  --jobs $(JOBS)

operator-coverage: build ## write build/operator-coverage.md: implementation and conformance results of each aten overload
	@scripts/setup.sh --test
	@.venv/bin/python tests/conformance/export_samples.py $(BUILD)/fixtures/opinfo.pt
	$(BUILD)/bin/conformance $(BUILD)/fixtures/opinfo.pt --allow tests/conformance/allow_list.txt --jobs $(JOBS) \
	  --table tests/conformance/counts.md
	$(BUILD)/bin/operator_coverage $(BUILD)/operator-coverage.md tests/coverage/ways.md tests/conformance/counts.md \
	  tests/conformance/allow_list.txt

accuracy: build ## compare predicted memory and time with real steps on this CPU; updates docs/figures.md
	@scripts/setup.sh --test
	@.venv/bin/python bench/accuracy.py $(BUILD) --figures docs/figures/16-accuracy.json
	@scripts/write_figures.py

accuracy-gpu: build ## predict for a GPU and compare with MEASUREMENTS=file (bench/gpu/measure_gpu.py), into build/accuracy-gpu.md
	@.venv/bin/python bench/gpu/accuracy_gpu.py $(BUILD) --page $(BUILD)/accuracy-gpu.md \
	  $(if $(MEASUREMENTS),--measurements "$(MEASUREMENTS)") $(if $(SPEC),--spec "$(SPEC)")

published: setup ## compare predictions with published runs, as a page in build/published/
	@scripts/setup.sh --published
	@$(CONFIGURE)
	@cmake --build $(BUILD) -j $(JOBS) --target shadowgraph_python
	@PYTHONPATH=$(BUILD)/python .venv/bin/python bench/published/page.py $(BUILD)/published $(if $(FIGURES),--figures)

bench: setup ## build and run the benchmarks, in build/bench/
	@$(CONFIGURE)
	@cmake --build $(BUILD) -j $(JOBS) --target benchmarks
	@for program in $$(find $(BUILD)/bench -maxdepth 1 -type f -executable | sort); do \
	  echo "== $$program"; $$program $(BENCH_FLAGS) || exit 1; done

fuzz: python ## fuzz all file readers, and names in all writers, FUZZ_SECONDS=60 each
	@scripts/setup.sh --fuzz
	@cmake --preset fuzz --log-level=WARNING $(if $(TORCH_DIR),-DTORCH_DIR="$(TORCH_DIR)")
	@cmake --build build-fuzz -j $(JOBS)
	@tests/fuzz/run.sh

docs: ## check the documentation and build the site in build/site
	@scripts/setup.sh --docs
	@scripts/check_docs.py
	@scripts/check_readme.py
	@scripts/write_figures.py --check
	@scripts/draw_architecture.py --check
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet --site-dir build/site

lint: build ## check includes, README, docs; run ruff, mypy, and clang-tidy on changed files (all: scripts/lint.py --all)
	@scripts/setup.sh --lint
	@scripts/check_includes.py
	@scripts/check_readme.py
	@scripts/check_docs.py
	@scripts/lint.py --python
	@scripts/lint.py --jobs $(JOBS) $(LINT_FLAGS)

format: ## run clang-format on all sources
	@scripts/setup.sh --lint
	@$(SOURCES) | xargs -r clang-format -i

format-check: ## fail if clang-format would change a source
	@scripts/setup.sh --lint
	@$(SOURCES) | xargs -r clang-format --dry-run -Werror

clean: ## remove the build folders and out/, but not .venv
	rm -rf build build-debug build-asan build-fuzz build-torch-* build-wheels out
