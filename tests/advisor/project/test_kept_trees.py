"""What was found in a whole tree is kept: the same as without, until anything of it changes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pytest

from npufix.advisor.diagnose import findings
from npufix.advisor.diagnose.source_scan import scan
from npufix.advisor.project.configuration import EVERYTHING, Configuration
from npufix.advisor.project.kept import stored
from npufix.advisor.project.scanning import Search
from npufix.advisor.project.source_tree import read_source_tree

if TYPE_CHECKING:
    from pathlib import Path

GATED = "import torch\nimport torch.nn.functional as F\n\n\ndef gated(gate, up):\n    return {}\n"
USER = """import torch

from ..helper import gated


def f(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor):
    return gated(gate, up), x.repeat_interleave(2, dim=1)
"""


@pytest.fixture
def inner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder whose file imports one above it."""
    kept = tmp_path / "searches"
    monkeypatch.setattr(findings, "private_cache_folder", lambda _: kept)
    folder = tmp_path / "package" / "inner"
    folder.mkdir(parents=True)
    for package in (folder.parent, folder):
        (package / "__init__.py").write_text("")
    (folder.parent / "helper.py").write_text(GATED.format("F.silu(gate) * up"))
    (folder / "user.py").write_text(USER)
    return folder


def scanned(folder: Path, settings: Configuration = EVERYTHING, *, cache: bool = True) -> bytes:
    stored.environment.cache_clear()
    result = scan(read_source_tree(folder, settings), with_text=False, cache=cache)
    said = [one.site.open_conditions for one in result.found]
    names = [[condition.name for condition in each] for each in said]
    return msgspec.json.encode((result.report, result.warnings, names))


def test_of_a_tree_that_is_as_it_was_no_file_is_looked_up(
    inner: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (inner / "broken.py").write_text("import torch\nx = (\n")  # its problem is kept as well
    first = scanned(inner)
    assert b"not valid Python" in first
    monkeypatch.delattr(Search, "look_up")
    assert scanned(inner) == first
    with pytest.raises(AttributeError):
        scanned(inner, replace(EVERYTHING, allow=frozenset({"is-tensor"})))


@pytest.mark.parametrize("change", ["file", "neighbour", "settings", "line width", "gone"])
def test_whatever_changes_is_seen(inner: Path, change: str) -> None:
    scanned(inner)
    settings = EVERYTHING
    if change == "file":
        (inner / "user.py").write_text(USER.replace("dim=1", "dim=0"))
    elif change == "neighbour":
        (inner.parent / "helper.py").write_text(GATED.format("F.relu(gate) * up"))
    elif change == "settings":
        settings = replace(EVERYTHING, select=frozenset({"npu203"}))
    elif change == "line width":
        (inner.parent / "pyproject.toml").write_text("[tool.ruff]\nline-length = 79\n")
    else:
        (inner.parent / "helper.py").unlink()
    assert scanned(inner, settings) == scanned(inner, settings, cache=False)


def test_a_neighbour_outside_decides(inner: Path) -> None:
    one = scanned(inner)
    (inner.parent / "helper.py").write_text(GATED.format("F.relu(gate) * up"))
    other = scanned(inner)
    assert one != other
    (inner.parent / "helper.py").write_text(GATED.format("F.silu(gate) * up"))
    assert scanned(inner) == one


def test_a_damaged_entry_is_none(inner: Path, tmp_path: Path) -> None:
    first = scanned(inner)
    for entry in (tmp_path / "searches").iterdir():
        entry.write_bytes(entry.read_bytes()[:-7] + b"damaged")
    assert scanned(inner) == first


def test_a_fault_of_a_rule_is_not_kept(inner: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = scanned(inner, cache=False)

    def fail(*_: object, **__: object) -> None:
        raise KeyError("a fault")

    with monkeypatch.context() as patched:
        patched.setattr(Search, "_find_sites", fail)
        assert b"internal error" in scanned(inner)
    assert scanned(inner) == whole


def test_whatever_of_ours_changes_is_another_environment() -> None:
    paths = [text.partition(" ")[0] for text in stored.list_own_files()]
    for name in ("rules/registry.py", "advisor/diagnose/left_out.py", "rewriters/find.py"):
        assert any(path.endswith(f"/{name}") for path in paths)
    assert any("/reports/" in path for path in paths)
