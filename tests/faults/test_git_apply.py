"""Patches that npufix emits, and what git makes of them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import HANGING, Npufix, some
from programs import NORM

from npufix.rewriters.write.patch import FileChange, unified_diff
from npufix.rules.registry import all_rules

if TYPE_CHECKING:
    from collections.abc import Callable

_EXAMPLE = Path(__file__).parents[2] / "examples" / "bert_like"
_SHAPES: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda text: text,
    "CRLF": lambda text: text.replace(b"\n", b"\r\n"),
    "CR LF and LF": lambda text: text.replace(b"\n", b"\r\n", 3),
    "no newline at the end": lambda text: text.rstrip(b"\n"),
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text,
    "Latin-1": lambda text: b"# coding: latin-1\n# \xe9\xff\n" + text,
    "form feed": lambda text: b"# a\x0cb\x0b\x1c\n\x0c\n" + text,
    "line separators": lambda text: "# a\u2028b\u0085c\n".encode() + text,
    "tabs": lambda text: text.replace(b"    ", b"\t"),
}
_NAMES = (
    "m.py", "a b.py", "tab\there.py", 'quo"te.py', "it's.py", "new\nline.py", "back\\slash.py",
    "\u6a21\u578b.py", "\udcff\udcfe.py", "-n.py", "b/c d/m.py", "a/b/b/a.py", "dev/null.py",
    "%41.py",
)  # fmt: skip


def put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def git_apply(diff: str, top: Path, *options: str) -> None:
    """Apply a patch, checked first."""
    git = ["git", "-C", str(top), "-c", "core.autocrlf=false"]
    apply = [*git, "apply", *options, "--whitespace=nowarn"]
    for command in ([*git, "init", "-q"], [*apply, "--check"], apply):
        text = diff.encode("utf-8", "surrogateescape")
        done = subprocess.run(
            command, input=text, capture_output=True, check=False, timeout=HANGING
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.fault(kind="git apply of patches")
@pytest.mark.parametrize("shape", _SHAPES)
def test_git_takes_every_patch_whatever_the_text_the_name_and_the_folder(
    tmp_path: Path, shape: str, record_property: Callable[[str, object], None]
) -> None:
    examples = [example for rule in all_rules() for example in getattr(rule, "rewritten", ())]
    changes = []
    for number, example in enumerate(some(examples, 30)):
        name = f"{number // 40}/{number % 40}/{_NAMES[number % len(_NAMES)]}"
        before, after = (_SHAPES[shape](text.encode()) for text in (example.before, example.after))
        changes.append(FileChange(tmp_path / name, name, before, after))
        put(tmp_path / name, before)
    record_property("attempts", len(changes))
    git_apply(unified_diff(changes), tmp_path)
    assert [c.relative for c in changes if c.path.read_bytes() != c.after] == []


@pytest.mark.fault(kind="git apply of patches")
@pytest.mark.parametrize("below", some(["0/m.py", "example", "."], 1))
def test_git_makes_of_a_patch_what_write_makes_and_undo_takes_it_back(
    npufix: Npufix, below: str, record_property: Callable[[str, object], None]
) -> None:
    pytest.importorskip("torch", reason="torch is needed to verify changes")
    top = npufix.root / "top"
    source = top / "sub folder" / "src"
    for number, (shape, name) in enumerate(zip((*_SHAPES,) * 2, _NAMES, strict=False)):
        put(source / str(number) / name, _SHAPES[shape](NORM.encode()))
    shutil.copytree(_EXAMPLE, source / "example")
    place, patch = source / below, npufix.root / "a.patch"
    folder = place if place.is_dir() else place.parent
    arguments = ["patch", "--source", place, "--on", "reference", "--allow", "same-dtype"]

    def texts() -> dict[Path, bytes]:
        return {file: file.read_bytes() for file in source.rglob("*.py")}

    npufix(*arguments, "-o", patch, expected={0})
    before = texts()
    diff = patch.read_bytes().decode("utf-8", "surrogateescape")
    record_property("attempts", diff.count("diff --git "))
    git_apply(diff, top, f"--directory={folder.relative_to(top).as_posix()}")
    by_git = texts()
    for file, data in before.items():
        file.write_bytes(data)
    npufix(*arguments, "--write")
    assert texts() == by_git != before
    npufix("undo", "--source", folder)
    assert texts() == before
