# Everything a user or developer of shadowgraph runs. `make help` lists it.
PRESET ?= release
BUILD := $(if $(filter release,$(PRESET)),build,build-$(PRESET))
# A translation unit on libtorch's headers takes up to 2 GB.
JOBS ?= $(shell awk -v n=$$(nproc) '/MemAvailable/ { m = int($$2 / 2097152); print m < 1 ? 1 : m < n ? m : n }' /proc/meminfo)
# The Python package is built against the torch in .venv, which no TORCH_DIR replaces.
PYTHON_PACKAGE = $(if $(TORCH_DIR)$(filter-out release,$(PRESET)),,$(if $(shell ls .venv/lib/python3*/site-packages/torch/lib/libtorch_python.so 2>/dev/null),\
  -DSHADOWGRAPH_BUILD_PYTHON=ON -DPython_EXECUTABLE="$(CURDIR)/.venv/bin/python"))
CONFIGURE = cmake --preset $(PRESET) --log-level=WARNING $(if $(TORCH_DIR),-DTORCH_DIR="$(TORCH_DIR)") $(PYTHON_PACKAGE)
SOURCES = git ls-files -co --exclude-standard -- '*.h' '*.cpp'

.DEFAULT_GOAL := help
.PHONY: help setup build demo test check python wheels compatibility conformance nightly operator-coverage accuracy accuracy-gpu bench fuzz lint docs format format-check clean

help: ## this list
	@echo 'make TARGET [PRESET=release|debug|asan] [JOBS=n] [TORCH_DIR=folder of a libtorch]'
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: ## install what is missing: Debian packages (as root), libtorch into .venv
	@scripts/setup.sh

build: setup ## the library, build/bin/shadowgraph, the tests
	@$(CONFIGURE)
	@cmake --build $(BUILD) -j $(JOBS)

demo: setup ## profile a training step of ResNet-50 (batch 32, fake CUDA, SGD) into out/resnet50/
	@$(CONFIGURE)
	@cmake --build $(BUILD) -j $(JOBS) --target shadowgraph_tool
	$(BUILD)/bin/shadowgraph profile resnet50 --mode train --batch 32 --device cuda --optimizer sgd -o out/resnet50

test: build ## make the fixtures and run all tests
	@scripts/setup.sh --test
	@ctest --preset $(PRESET) -j $(JOBS)

check: setup ## the quick tests; ROOM=core/fake/rules builds and runs the tests of that folder
	@$(CONFIGURE)
ifdef ROOM
	@scripts/check_room.py $(BUILD) $(JOBS) $(ROOM)
else
	@cmake --build $(BUILD) -j $(JOBS)
	@ctest --preset $(PRESET) -j $(JOBS) -L quick
endif

python: setup ## the wheel of the Python package, in build/wheel/; the same in build/python, for PYTHONPATH
	@scripts/setup.sh --wheel
	@$(CONFIGURE)
	@cmake --build $(BUILD) -j $(JOBS) --target shadowgraph_python
	@scripts/make_wheel.sh $(BUILD)

wheels: ## a wheel for each torch and CPython at hand, tagged manylinux, in build-wheels/ (VERSIONS="2.13.0 2.15.0" builds those)
	@scripts/setup.sh --wheel
	@JOBS=$(JOBS) scripts/make_wheels.sh $(VERSIONS)

compatibility: build ## build and test with another torch, VERSION=2.15.0, in build-torch-VERSION; a row of docs/figures.md
	@scripts/setup.sh --test
	@scripts/compatibility.py $(VERSION) --jobs $(JOBS)
	@scripts/write_figures.py

conformance: build ## fake tensors against eager on all of PyTorch's OpInfo samples (make test runs some)
	@scripts/setup.sh --test
	@.venv/bin/python tests/conformance/export_samples.py $(BUILD)/fixtures/opinfo-whole.pt --whole
	$(BUILD)/bin/conformance $(BUILD)/fixtures/opinfo-whole.pt --allow tests/conformance/allow_list.txt --jobs $(JOBS)

# What may leak is not asked: libtorch keeps registries for the life of the process (CMakePresets.json).
SANITIZED = ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
NIGHTLY_PROGRAMS ?= 50000
NIGHTLY_HOSTILE ?= 5000
HOSTILE_SEED ?= 1

nightly: conformance ## all OpInfo samples, long random programs, damaged files of every reader; unit, pass and replay tests and conformance with sanitizers
	@scripts/mutate.py --check
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

operator-coverage: build ## write build/operator-coverage.md: how each aten overload is run, and what conformance counts
	@scripts/setup.sh --test
	@.venv/bin/python tests/conformance/export_samples.py $(BUILD)/fixtures/opinfo.pt
	$(BUILD)/bin/conformance $(BUILD)/fixtures/opinfo.pt --allow tests/conformance/allow_list.txt --jobs $(JOBS) \
	  --table tests/conformance/counts.md
	$(BUILD)/bin/operator_coverage $(BUILD)/operator-coverage.md tests/coverage/ways.md tests/conformance/counts.md \
	  tests/conformance/allow_list.txt

accuracy: build ## predicted peaks and times against real steps on this CPU, into docs/figures.md and build/accuracy.md
	@scripts/setup.sh --test
	@.venv/bin/python scripts/accuracy.py $(BUILD) --page $(BUILD)/accuracy.md --figures docs/figures/16-accuracy.json
	@scripts/write_figures.py

accuracy-gpu: build ## predictions for a GPU, beside what MEASUREMENTS=file has (scripts/measure_gpu.py), into build/accuracy-gpu.md
	@.venv/bin/python scripts/accuracy_gpu.py $(BUILD) --page $(BUILD)/accuracy-gpu.md \
	  $(if $(MEASUREMENTS),--measurements "$(MEASUREMENTS)") $(if $(SPEC),--spec "$(SPEC)")

published: setup ## predictions beside runs that others published, as a page in build/published/
	@scripts/setup.sh --published
	@$(CONFIGURE)
	@cmake --build $(BUILD) -j $(JOBS) --target shadowgraph_python
	@PYTHONPATH=$(BUILD)/python .venv/bin/python bench/published/page.py $(BUILD)/published $(if $(FIGURES),--figures)

bench: setup ## build and run the benchmarks, in build/bench/
	@$(CONFIGURE)
	@cmake --build $(BUILD) -j $(JOBS) --target benchmarks
	@for program in $$(find $(BUILD)/bench -maxdepth 1 -type f -executable | sort); do \
	  echo "== $$program"; $$program $(BENCH_FLAGS) || exit 1; done

fuzz: ## random bytes into what reads files, FUZZ_SECONDS=60 for each of seven kinds
	@scripts/setup.sh --fuzz
	@cmake --preset fuzz --log-level=WARNING $(if $(TORCH_DIR),-DTORCH_DIR="$(TORCH_DIR)")
	@cmake --build build-fuzz -j $(JOBS)
	@scripts/fuzz.sh

docs: ## check the documentation and build it as a site, into build/site
	@scripts/setup.sh --docs
	@scripts/check_docs.py
	@scripts/check_readme.py
	@scripts/write_figures.py --check
	@scripts/draw_architecture.py --check
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict --quiet --site-dir build/site

lint: setup ## include directions, README, docs, ruff, mypy, clang-tidy on what changed (all of it: scripts/lint.py --all)
	@scripts/setup.sh --lint
	@scripts/check_includes.py
	@scripts/check_readme.py
	@scripts/check_docs.py
	@scripts/lint.py --python
	@scripts/lint.py --jobs $(JOBS) $(LINT_FLAGS)

format: ## clang-format everything in place
	@scripts/setup.sh --lint
	@$(SOURCES) | xargs -r clang-format -i

format-check: ## fail if clang-format would change something
	@scripts/setup.sh --lint
	@$(SOURCES) | xargs -r clang-format --dry-run -Werror

clean: ## remove the build folders and out/ (.venv stays)
	rm -rf build build-debug build-asan build-fuzz build-torch-* build-wheels out
