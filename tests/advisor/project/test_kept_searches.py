"""What the search of a file found is kept: the same answers as without, whatever has changed."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npufix.advisor.project.callers import Callers
from npufix.advisor.project.configuration import EVERYTHING
from npufix.advisor.project.kept import stored
from npufix.advisor.project.kept.found import FileSearch, Packer
from npufix.advisor.project.kept.stored import Store
from npufix.advisor.project.scanning import Search
from npufix.advisor.project.source_tree import read_source_tree
from npufix.rewriters import find
from npufix.rewriters.match import prefilter
from npufix.rewriters.match.recorded_call import RecordedCall
from npufix.rules.registry import all_rules

if TYPE_CHECKING:
    from pathlib import Path

HELPER = "import torch\n\n\ndef repeat(x, n: int):\n    return torch.{name}(x, n)\n"
USER = """import torch
import torch.nn.functional as F

from .helper import gated


def f(x: torch.Tensor, gate, up):
    return gated(gate, up), x.repeat_interleave(2, dim=1)
"""
GATED = "import torch.nn.functional as F\n\n\ndef gated(gate, up):\n    return {code}\n"


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "helper.py").write_text(GATED.format(code="F.silu(gate) * up"))
    (folder / "user.py").write_text(USER)
    return folder


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "searches"


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the files that are searched, not looked up."""
    found: list[str] = []
    searched = find.find_sites

    def noted(text: str, *args: object, **kwargs: object) -> object:
        found.append(text)
        return searched(text, *args, **kwargs)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(find, "find_sites", noted)
    return found


def search(kept: Path | None, **changes: object) -> Search:
    known = frozenset(rule.id.lower() for rule in all_rules())
    made = Search(all_rules(), EVERYTHING, lambda _: None, known, store=kept and Store(kept))
    return replace(made, **changes)  # type: ignore[arg-type]  # fields of it


def answers(package: Path, asked: Search) -> list[object]:
    stored.environment.cache_clear()
    return [
        (
            file.relative,
            [(s.rule.id, s.line, s.code, s.rewrite, s.lines, s.problem) for s in found.sites],
            [
                [(p.condition.name, p.condition.text, p.basis) for p in s.proofs]
                for s in found.sites
            ],
            [(s.line, comment) for s, comment in found.hidden],
            found.problem,
            found.warnings,
        )
        for file, found in asked.files(list(read_source_tree(package).files.values()))
    ]


def test_what_has_not_changed_is_not_searched_again(
    package: Path, kept: Path, read: list[str]
) -> None:
    plain = answers(package, search(None))
    read.clear()
    assert answers(package, search(kept)) == plain
    assert len(read) == 2
    assert answers(package, search(kept)) == plain
    assert len(read) == 2


LINES = st.lists(st.sampled_from(["", "a", "é" * 400, "b\r", "c\x0c", "\ud800" * 400, "d" * 999]))


@given(LINES, LINES, LINES)
def test_texts_come_back_as_they_were(before: list[str], old: list[str], new: list[str]) -> None:
    source, text = "\n".join([*before, *old]), "\n".join([*before, *new, *old])
    found = FileSearch(warnings=(text, text, source))
    packer = Packer(())
    asked = {"other": (None, {}), "one": ("0" * 64, {"def f": b"1"})}
    data = packer.pack(found, asked, source)
    assert packer.unpack(data, source) == (found, asked)


def test_of_a_changed_module_only_the_change_is_kept() -> None:
    lines = [f"x{number} = torch.relu(y)" for number in range(5000)]
    source, text = "\n".join(lines), "\n".join(["import torch_npu", *lines[:2000], *lines[2009:]])
    assert len(Packer(()).pack(FileSearch(warnings=(text,)), {}, source)) < len(text) // 100


def test_a_changed_file_is_searched_again_with_what_imports_it(
    package: Path, kept: Path, read: list[str]
) -> None:
    answers(package, search(kept))
    (package / "other.py").write_text("import torch\n\nx = torch.zeros(2)\n")
    answers(package, search(kept))
    read.clear()
    (package / "helper.py").write_text(GATED.format(code="F.gelu(gate) * up + F.relu(up)"))
    again = answers(package, search(kept))
    assert read == [GATED.format(code="F.gelu(gate) * up + F.relu(up)"), USER]
    assert again == answers(package, search(None))


BASES = """import torch
from torch import nn
import torch.nn.functional as F
from .deeper import halve


class Base(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.act = nn.SiLU()


def gated(gate, up):
    return F.silu(gate) * halve(up)


def other(x):
    return x
"""
OF_BASES = """import torch
from .helper import Base, gated


class Net(Base):
    def forward(self, x):
        gate, up = x.chunk(2, dim=-1)
        return self.act(gate) * up + gated(gate, up)
"""


@pytest.mark.parametrize(
    "change",
    [
        ("    return x\n", "    return torch.relu(x)\n", False),
        ("def other", "class Other(Base):\n    pass\n\n\ndef other", False),
        ("def other", "SIZE = 3\n\n\ndef other", False),
        ("import torch\n", "# of us\nimport torch\n", False),
        ("nn.SiLU()", "nn.GELU()", True),
        ("F.silu(gate)", "F.gelu(gate)", True),
        ("import torch.nn.functional as F", "from . import fast as F", True),
        ("def other", "def gated", True),
        ("def other", "halve = None\n\n\ndef other", True),
        ("    return x\n", "    global F\n    F = x\n", True),
        ("class Base(nn.Module)", "class Base(nn.Linear)", True),
        ("from .deeper import halve", "from .lower import halve", True),
        (BASES, "", True),
    ],
)
def test_only_what_is_asked_of_another_module_counts(
    package: Path, kept: Path, read: list[str], change: tuple[str, str, bool]
) -> None:
    old, new, counts = change
    (package / "helper.py").write_text(BASES)
    (package / "deeper.py").write_text("def halve(x):\n    return 0.5 * x\n")
    (package / "lower.py").write_text("def halve(x):\n    return x\n")
    (package / "user.py").write_text(OF_BASES)
    assert any(found for _, found, *_ in answers(package, search(kept)))
    (package / "helper.py").write_text(BASES.replace(old, new, 1))
    for _ in range(2):  # and is kept for the next time
        read.clear()
        assert answers(package, search(kept)) == answers(package, search(None))
        assert (read.count(OF_BASES) == 2) is counts
        counts = False


@pytest.mark.parametrize("method", ["forward", "__init__"])
def test_who_calls_a_function_is_asked_again_when_any_file_has_changed(
    package: Path, kept: Path, method: str
) -> None:
    def builds() -> bool:
        return Callers(read_source_tree(package).files, Store(kept)).set_up("gated", "helper.py")

    call = "from torch import nn\n\nclass Net(nn.Module):\n def {}(self, x):\n  gated(x, x)\n"
    (package / "user.py").write_text(call.format("__init__"))
    assert builds()
    (package / "net.py").write_text(call.format(method))
    assert [builds(), builds()] == [method == "__init__"] * 2
    (package / "net.py").unlink()
    assert builds()


def test_a_neighbour_that_goes_or_comes_counts(package: Path, kept: Path) -> None:
    text = (package / "helper.py").read_text()
    answers(package, search(kept))
    (package / "helper.py").unlink()
    assert answers(package, search(kept)) == answers(package, search(None))
    (package / "helper.py").write_text(text)
    assert answers(package, search(kept)) == answers(package, search(None))


@pytest.mark.parametrize(
    "changes",
    [
        {"rules": all_rules()[:3]},
        {"with_text": False},
        {"known": frozenset({"npu1"})},
        {"configuration": replace(EVERYTHING, per_file_ignores=(("*", frozenset({"npu203"})),))},
    ],
)
def test_other_options_are_other_searches(
    package: Path, kept: Path, changes: dict[str, object]
) -> None:
    if "configuration" in changes:
        changes = {"configuration": replace(changes["configuration"], folder=package)}  # type: ignore[type-var]  # it is one
    answers(package, search(kept))
    assert answers(package, search(kept, **changes)) == answers(package, search(None, **changes))


def test_what_a_recording_proves_is_kept_with_it(
    package: Path, kept: Path, read: list[str]
) -> None:
    call = RecordedCall("aten::mul", ((4, 8), (4, 8)), ("float", "float"))
    recorded = [{1: (call,)}, {1: (replace(call, types=("c10::Half",) * 2),)}]
    for calls in (recorded[0], recorded[0], recorded[1]):
        answers(package, search(kept, recorded=lambda _, calls=calls: calls))
    assert len(read) == 4


def test_another_version_searches_again(
    package: Path, kept: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(package, search(kept))
    before = stored.environment()
    monkeypatch.setattr(stored.sys, "version", "another one")
    answers(package, search(kept))
    assert stored.environment() != before
    assert len(read) == 4


class _Thief:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return eval, ("1 / 0",)


@pytest.mark.parametrize("content", [b"", b"\x80", pickle.dumps(_Thief()), pickle.dumps((1, 2))])
@pytest.mark.parametrize("is_signed", [True, False])
def test_a_damaged_or_foreign_entry_is_none(
    package: Path, kept: Path, content: bytes, *, is_signed: bool
) -> None:
    plain = answers(package, search(kept))
    for entry in kept.iterdir():
        digest = hashlib.sha256(content).digest() if is_signed else b""
        entry.write_bytes(digest + content)
    assert answers(package, search(kept)) == plain


def test_a_folder_that_cannot_be_written_is_no_cache(package: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert answers(package, search(tmp_path / "file" / "cache")) == answers(package, search(None))


def test_a_broken_file_is_said_each_time(package: Path, kept: Path) -> None:
    (package / "broken.py").write_text("import torch\nx[m] = = 0\n")
    assert answers(package, search(kept)) == answers(package, search(kept))


def test_a_function_that_holds_too_much_is_cut_and_says_so(tmp_path: Path) -> None:
    lines = "".join(f"    x[x > {n}] = {n}.0\n" for n in range(300))
    (tmp_path / "m.py").write_text(
        f"import torch\n\n\ndef f(x: torch.Tensor):\n{lines}    return x\n"
    )
    (file,) = read_source_tree(tmp_path).files.values()
    found = search(None).file(file)
    assert found.warnings == ("m.py: f holds so much that not all of it was looked at; split it",)
    assert "not tried" in found.sites[-1].problem + found.sites[0].problem


def test_the_words_of_patterns_are_kept(
    package: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has changed a file does not wait for all patterns to be read."""
    answers(package, search(kept))
    (package / "user.py").write_text(USER + "\n")
    plain, words = answers(package, search(None)), prefilter.list_ways(all_rules())
    monkeypatch.setattr(prefilter, "_known_ways", {})
    monkeypatch.setattr(prefilter, "_alternatives", None)  # who reads a pattern fails
    prefilter.words_for.cache_clear()
    assert answers(package, search(kept)) == plain
    assert prefilter.list_ways(all_rules()) == words


SECOND = """
import sys
from npufix.advisor.commands.cli import main

sys.argv[1:] = ["scan", sys.argv[1], "--everywhere", "--json"]
try:
    main()
finally:
    print("npufix.rewriters.find" in sys.modules, file=sys.stderr)
"""


def test_what_was_found_before_is_told_without_what_finds(package: Path, tmp_path: Path) -> None:
    """The diffs are those of the first time, and no search is loaded."""
    (package / "module.py").write_text(USER.replace("return gated(gate, up)", "return x"))
    told = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", SECOND, str(package)],
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            check=True,
        )
        told.append((done.stdout, done.stderr.split()[-1]))
    assert [loaded for _, loaded in told] == ["True", "False"]
    assert told[0][0] == told[1][0]
    assert any(finding["diff"] for finding in json.loads(told[0][0])["findings"])
