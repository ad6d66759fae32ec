# Everything a fresh machine needs: `make demo` and `make test`.

PYTHON ?= python3
BIN := .venv/bin
EXAMPLE := examples/bert_like
DUMP := examples/dump
OUT := build/demo

# torch_npu without CANN would otherwise break a plain `import torch`.
export TORCH_DEVICE_BACKEND_AUTOLOAD = 0
# The tests start hundreds of processes: each module is compiled once, whatever the shell says.
export PYTHONDONTWRITEBYTECODE =

# There are wheels of torch_npu for Linux only. With one of them, and the packages of .venv, the
# tests of the virtual NPU run in an environment of their own.
NPU := $(if $(filter Linux,$(shell uname -s)),.venv-npu/ready)

# The official schema of SARIF is not ours to copy. Where there is npm, a package that has it is
# asked; without it the tests check the part of the schema that they know themselves.
SARIF := $(if $(shell command -v npm),build/sarif/sarif-2.1.0.json)
export SARIF_SCHEMA = $(CURDIR)/build/sarif/sarif-2.1.0.json

.PHONY: demo test npu-ready oldest lint types types-of-oldest bench pictures docs dist sbom audit lock locked clean

demo: .venv/ready
	@mkdir -p $(OUT)
	@$(BIN)/npufix diagnose $(DUMP) --source $(EXAMPLE)
	@echo
	@$(BIN)/npufix patch $(DUMP) --source $(EXAMPLE) -o $(OUT)/npufix.patch --report $(OUT)/report.md --report $(OUT)/report.html

test: .venv/test-ready npu-ready
	$(BIN)/python -m pytest -n auto --dist loadgroup
ifneq ($(NPU),)
	.venv-npu/bin/python -m pytest -n auto --dist loadfile tests/rewriters/verification/virtual_npu
endif

# What the tests need beside the packages of .venv.
npu-ready: $(NPU) $(SARIF)

# What reads dumps, with the oldest packages that pyproject.toml allows: NumPy 1
# computes otherwise than NumPy 2. Needs Python 3.10 or 3.11, for which there are wheels of them.
oldest: .venv-oldest/ready
	.venv-oldest/bin/python -m pytest -n auto -q tests/profiling_parsers

lint: .venv/test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory --jobs 2 types types-of-oldest

types: .venv/test-ready
	$(BIN)/mypy

# What the oldest Python does not have; the stubs of pandas say less there.
types-of-oldest: .venv/test-ready
	$(BIN)/mypy --python-version 3.10 --disable-error-code no-any-return

bench: .venv/test-ready
	$(BIN)/python -m benchmarks --check --runs 2

# The pictures of README: again where the first screen or the page looks different. Needs Chromium.
pictures: .venv/test-ready
	@$(BIN)/python docs/site_build/pictures.py

docs: .venv/docs-ready
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "The documentation is build/site/index.html"

# Wheel and source distribution, made twice and compared; the bill of materials; docs/supply-chain.md.
dist: .venv/test-ready
	$(BIN)/python .ci/dist.py dist
	@$(MAKE) --no-print-directory sbom

sbom: .venv/test-ready
	$(BIN)/python .ci/sbom.py dist/npufix.cdx.json

# Known vulnerabilities of what is locked. Asks PyPI; --strict: a package it has no answer for fails.
audit: .venv-audit/ready
	.venv-audit/bin/pip-audit --strict --require-hashes --disable-pip -r .ci/lock.txt

lock: .venv-audit/ready
	.venv-audit/bin/uv --no-config pip compile --quiet pyproject.toml .ci/lock-additions.txt \
	  --extra dev --extra docs --extra release --universal --python-version 3.11 --generate-hashes \
	  --no-header --no-annotate --no-emit-index-url -c constraints.txt \
	  --overrides .ci/lock-overrides.txt -o .ci/lock.txt

# The environment of `make test` with every hash checked; torch comes by its version alone.
locked:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .ci/lock.txt
	@$(MAKE) --no-print-directory .venv/test-ready

.venv-audit/ready:
	$(PYTHON) -m venv .venv-audit
	.venv-audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit==2.10.1 uv==0.13.9
	@touch $@

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[verify]'
	@touch $@

# transformers is read as source code only: it needs no dependencies, and no bytecode.
.venv/test-ready: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps --no-compile transformers
	@touch $@

.venv-oldest/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -e . \
	  $$($(PYTHON) .ci/oldest.py) hypothesis pytest pytest-xdist
	@touch $@

.venv/docs-ready: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

.venv-npu/ready: .venv/test-ready
	$(BIN)/python -m venv .venv-npu
	@echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
	  > "$$(.venv-npu/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/packages.pth"
	.venv-npu/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps torch-npu pyyaml
	@touch $@

build/sarif/sarif-2.1.0.json:
	@mkdir -p $(@D)
	@cd $(@D) && npm pack --silent @microsoft/sarif-multitool-linux@5.7.0 > /dev/null \
	  && tar -xzf *.tgz --strip-components 1 -m package/$(@F) && rm *.tgz \
	  || echo "The official schema of SARIF was not fetched; the tests check a part of it."

clean:
	rm -rf .venv .venv-npu .venv-oldest .venv-audit dist build *.egg-info
