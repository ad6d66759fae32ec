# Everything a fresh machine needs: `make demo` and `make test`.

PYTHON ?= python3
BIN := .venv/bin
EXAMPLE := examples/bert_like
DUMP := examples/dump
OUT := build/demo

# torch_npu without CANN would otherwise break a plain `import torch`.
export TORCH_DEVICE_BACKEND_AUTOLOAD = 0

# There are wheels of torch_npu for Linux only. With one of them, and the packages of .venv, the
# tests of the virtual NPU run in an environment of their own.
NPU := $(if $(filter Linux,$(shell uname -s)),.venv-npu/ready)

.PHONY: demo test lint clean

demo: .venv/ready
	@mkdir -p $(OUT)
	@$(BIN)/npufix diagnose $(DUMP) --source $(EXAMPLE)
	@echo
	@echo "== npufix patch: every change run before and after =="
	@echo
	@$(BIN)/npufix patch $(DUMP) --source $(EXAMPLE) -o $(OUT)/npufix.patch --report $(OUT)/report.md
	@echo
	@echo "The report is $(OUT)/report.md, the patch is $(OUT)/npufix.patch"

test: .venv/test-ready $(NPU)
	$(BIN)/python -m pytest -n auto --dist loadgroup
ifneq ($(NPU),)
	.venv-npu/bin/python -m pytest tests/rewriters/verification/virtual_npu
endif

lint: .venv/test-ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[verify]'
	@mkdir -p .ns && ln -sfn .. .ns/npufix
	@touch $@

# transformers is read as source code only, so its dependencies are not needed.
.venv/test-ready: .venv/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps transformers
	@touch $@

.venv-npu/ready: .venv/test-ready
	$(BIN)/python -m venv .venv-npu
	@echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
	  > "$$(.venv-npu/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/packages.pth"
	.venv-npu/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps torch-npu pyyaml
	@touch $@

clean:
	rm -rf .venv .venv-npu .ns build *.egg-info
