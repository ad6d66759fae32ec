"""Modules that are imported while the hook is there, however the import comes about."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pickle
import sys
import threading
import traceback
import uuid
from importlib.machinery import SourceFileLoader
from typing import TYPE_CHECKING

import pytest
import running_package
import torch

from npufix.advisor.project.kept.stored import Store
from npufix.advisor.runtime.process import hook as hooks
from npufix.advisor.runtime.process.hook import Hook
from npufix.advisor.runtime.process.rebinding import by_file, rebind, restore
from npufix.advisor.runtime.source.selection import RuleSelection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

_CHANGED = "__npufix__"
_SELECTION = RuleSelection(rules=frozenset({"npu101", "npu102", "npu103"}))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("store"))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"package_{uuid.uuid4().hex}"
    running_package.write(tmp_path, name)
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    for loaded in [n for n in sys.modules if n.partition(".")[0] == name]:
        del sys.modules[loaded]


@pytest.fixture
def hook(store: Store) -> Iterator[Hook]:
    made = Hook(_SELECTION, store)
    made.install()
    yield made
    made.remove()


def is_changed(module: ModuleType) -> bool:
    names: tuple[str, ...] = module.RMSNorm.forward.__code__.co_names
    return _CHANGED in names


def test_a_module_is_changed_and_looks_as_it_did(hook: Hook, package: str) -> None:
    module = importlib.import_module(f"{package}.norm")
    assert is_changed(module)
    assert hook.modules[module.__name__].places[0].replaced
    assert type(module.__loader__) is SourceFileLoader
    assert type(module.__spec__.loader) is SourceFileLoader
    assert inspect.getsource(module) == running_package.NORM
    assert inspect.getsource(module.RMSNorm.forward).endswith("# the last line\n")
    pickled = pickle.dumps(module.RMSNorm.forward)
    assert pickle.loads(pickled) is module.RMSNorm.forward  # noqa: S301 - just made
    assert torch.equal(
        module.RMSNorm(4)(torch.ones(2, 4)), torch.ones(2, 4) * torch.rsqrt(torch.tensor(1 + 1e-6))
    )


def test_the_bytecode_on_disk_is_that_of_the_file(hook: Hook, package: str) -> None:
    assert is_changed(importlib.import_module(f"{package}.norm"))
    hook.remove()
    del sys.modules[f"{package}.norm"]
    assert not is_changed(importlib.import_module(f"{package}.norm"))


@pytest.mark.usefixtures("hook")
def test_tracebacks_show_the_lines_of_the_file(package: str) -> None:
    norm = importlib.import_module(f"{package}.norm").RMSNorm(4)
    with pytest.raises(ValueError, match="line 22") as caught:
        norm.fails()
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.lineno, last.line) == (22, 'raise ValueError("in line 22")')
    with pytest.raises(AttributeError) as other:
        norm(3)
    last = traceback.extract_tb(other.value.__traceback__)[-1]
    assert (last.lineno, last.line) == (15, "dtype = x.dtype")


@pytest.mark.usefixtures("hook")
def test_a_breakpoint_is_reached_where_the_old_line_runs(package: str) -> None:
    module = importlib.import_module(f"{package}.norm")
    reached: list[int] = []

    def trace(frame: object, event: str, _: object) -> object:
        if event == "line" and frame.f_code is module.RMSNorm.forward.__code__:  # type: ignore[attr-defined]
            reached.append(frame.f_lineno)  # type: ignore[attr-defined]
        return trace

    norm, x = module.RMSNorm(4), torch.ones(1, 4)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        norm.forward(x)
    finally:
        sys.settrace(before)
    assert list(dict.fromkeys(reached)) == [15, 16, 17, 18, 19]


def test_code_that_is_loaded_by_path_is_changed(hook: Hook, package: str, tmp_path: Path) -> None:
    """As transformers loads remote code."""
    name = f"transformers_modules_{package}.modeling"
    spec = importlib.util.spec_from_file_location(name, tmp_path / package / "norm.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert is_changed(module)
    assert name in hook.modules


@pytest.mark.usefixtures("hook")
def test_reload_changes_a_module_again(package: str) -> None:
    module = importlib.import_module(f"{package}.norm")
    assert is_changed(importlib.reload(module))


@pytest.mark.usefixtures("hook")
def test_many_threads_may_import_at_once(package: str) -> None:
    names = [f"{package}.{name}" for name in ("norm", "rope", "mlp", "left")] * 3
    threads = [threading.Thread(target=importlib.import_module, args=(n,)) for n in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert is_changed(sys.modules[f"{package}.norm"])


def test_a_fault_of_ours_costs_the_change_and_not_the_import(
    hook: Hook, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("our fault")

    monkeypatch.setattr(hooks, "rewrite_module", broken)
    assert not is_changed(importlib.import_module(f"{package}.norm"))
    assert "our fault" in hook.modules[f"{package}.norm"].problem


def test_what_does_not_import_torch_is_not_even_searched(hook: Hook, tmp_path: Path) -> None:
    assert hook.rewritten("m", str(tmp_path / "m.py"), b"# torch\nimport json\n") is None
    assert hook.rewritten("torch.nn.m", str(tmp_path / "m.py"), b"import torch\n") is None
    assert hook.rewritten("m", str(tmp_path / "m.py"), b"import os, torch\n") is not None
    with_mark = b"\xef\xbb\xbfimport torch\n"
    assert hook.rewritten("m", str(tmp_path / "m.py"), with_mark) is not None


def test_functions_of_a_module_imported_before_get_the_code_and_give_it_back(
    package: str, store: Store, tmp_path: Path
) -> None:
    module = importlib.import_module(f"{package}.norm")
    held, original = module.RMSNorm(4).forward, module.RMSNorm.forward.__code__
    path = str(tmp_path / package / "norm.py")
    data = running_package.NORM.encode()
    new = Hook(_SELECTION, store).rewritten(module.__name__, path, data)
    assert new is not None
    assert not rebind(new, data, by_file()[path])
    assert is_changed(module)
    assert held(torch.ones(1, 4)).shape == (1, 4)
    restore(new, data, by_file()[path])
    assert module.RMSNorm.forward.__code__ == original


def test_a_function_that_is_not_what_the_file_says_is_left_alone(
    package: str, store: Store, tmp_path: Path
) -> None:
    module = importlib.import_module(f"{package}.norm")
    path = str(tmp_path / package / "norm.py")
    data = ("# a new first line\n" + running_package.NORM).encode()
    new = Hook(_SELECTION, store).rewritten(module.__name__, path, data)
    assert new is not None
    assert rebind(new, data, by_file()[path]) == {"RMSNorm.forward"}
    assert not is_changed(module)
