"""Diffs that git takes, and writing that loses nothing."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npufix.advisor.commands.patch import apply_words
from npufix.rewriters.write.patch import FileChange, unified_diff

if TYPE_CHECKING:
    from pathlib import Path

GIT = shutil.which("git")
needs_git = pytest.mark.skipif(GIT is None, reason="git is not installed")


def change(root: Path, name: str, before: bytes, after: bytes) -> FileChange:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(before)
    return FileChange(path, name, before, after)


def apply(root: Path, changes: list[FileChange], *options: str) -> None:
    patch = root / "changes.patch"
    patch.write_bytes(unified_diff(changes).encode("utf-8", "surrogateescape"))
    isolated = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "HOME": str(root)}
    result = subprocess.run(
        [GIT or "git", "apply", "--whitespace=nowarn", *options, patch.name],
        cwd=root,
        env={**os.environ, **isolated, "GIT_CEILING_DIRECTORIES": str(root.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr + patch.read_text(errors="replace")


BODY = b"".join(b"line %d\n" % i for i in range(40))
CONTENTS = {
    "one line": (b"a\n", b"b\n"),
    "in the middle": (BODY, BODY.replace(b"line 20\n", b"changed\n")),
    "two hunks": (BODY, BODY.replace(b"line 3\n", b"x\n").replace(b"line 33\n", b"y\nz\n")),
    "first and last": (BODY, b"new\n" + BODY + b"new\n"),
    "lines removed": (BODY, BODY.replace(b"line 7\nline 8\n", b"")),
    "no newline at the end": (BODY + b"end", BODY.replace(b"line 9\n", b"") + b"end"),
    "last line without newline": (BODY + b"end", BODY + b"END"),
    "newline added": (BODY + b"end", BODY + b"end\n"),
    "newline removed": (BODY, BODY[:-1]),
    "CRLF": (BODY.replace(b"\n", b"\r\n"), BODY.replace(b"\n", b"\r\n").replace(b"5", b"6")),
    "mixed line ends": (b"a\r\nb\nc\r\n", b"a\r\nB\nc\r\n"),
    "lone carriage return": (b"a\rb\nc\n", b"a\rB\nc\n"),
    "form feed": (b"a\n\x0c\nb\nc\x0cd\n", b"a\n\x0c\nB\nc\x0cd\n"),
    "other separators": ("a\u2028b\x85c\x1cd\ne\n".encode(), "a\u2028b\x85c\x1cd\nE\n".encode()),
    "not UTF-8": (b"# \xe9\xff\xfe\na\n", b"# \xe9\xff\xfe\nb\n"),
    "a line that is not UTF-8 changes": (b"x = '\xe9'\n", b"y = '\xe8'\n"),
    "BOM": (b"\xef\xbb\xbfa\n", b"\xef\xbb\xbfb\n"),
    "tabs and blanks": (b"\ta \n  \nb\n", b"\ta \n  \nc\n"),
    "lines that look like a diff": (b"--- a\n+++ b\n@@ -1 +1 @@\n", b"--- a\n+++ c\n@@ -1 +1 @@\n"),
    "from nothing": (b"", b"a\n"),
    "to nothing": (b"a\n", b""),
}


@needs_git
@pytest.mark.parametrize(("before", "after"), CONTENTS.values(), ids=CONTENTS.keys())
def test_git_applies_the_diff_and_takes_it_back(
    before: bytes, after: bytes, tmp_path: Path
) -> None:
    changed = change(tmp_path, "pkg/file.py", before, after)
    apply(tmp_path, [changed])
    assert changed.path.read_bytes() == after
    apply(tmp_path, [changed], "--reverse")
    assert changed.path.read_bytes() == before


@needs_git
@pytest.mark.parametrize("name", ["a.py", "a b.py", "ä/ñ.py", "deep/er/x.py", "a'b.py", "+a.py"])
def test_git_takes_file_names(name: str, tmp_path: Path) -> None:
    changed = change(tmp_path, name, b"a\n", b"b\n")
    apply(tmp_path, [changed])
    assert changed.path.read_bytes() == b"b\n"


@needs_git
def test_several_files_are_one_patch(tmp_path: Path) -> None:
    changes = [
        change(tmp_path, n, BODY, BODY[:-1] + n.encode()) for n in ("b.py", "a/c.py", "a.py")
    ]
    diff = unified_diff(changes)
    names = [line[len("diff --git a/") :].split(" b/")[0] for line in diff.splitlines()
             if line.startswith("diff")]  # fmt: skip
    assert names == ["a.py", "a/c.py", "b.py"]
    apply(tmp_path, changes)
    assert all(c.path.read_bytes() == c.after for c in changes)


@needs_git
@settings(max_examples=15, derandomize=True)
@given(
    lines=st.lists(st.sampled_from([b"a", b"b", b"\x0c", b"\r", b"\xff", b"", b" c"]), max_size=12),
    at=st.integers(0, 12),
    ended=st.booleans(),
)
def test_git_applies_any_diff(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], at: int, *, ended: bool
) -> None:
    before = b"\n".join(lines) + (b"\n" if ended else b"")
    after = b"\n".join([*lines[:at], b"new", *lines[at + 1 :]])
    root = tmp_path_factory.mktemp("any")
    changed = change(root, "f.py", before, after)
    apply(root, [changed])
    assert changed.path.read_bytes() == after


def test_nothing_changed_is_no_diff(tmp_path: Path) -> None:
    assert unified_diff([change(tmp_path, "a.py", b"a\n", b"a\n")]) == ""
    assert unified_diff([]) == ""


@needs_git
@pytest.mark.parametrize("name", ["new\nline.py", 'quo"te.py', "back\\slash.py", "tab\there.py"])
@pytest.mark.parametrize("below", ["", "lib/src dir"])
def test_the_command_that_is_shown_applies_the_patch(
    tmp_path: Path, name: str, below: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git does nothing, silently, where the folder is below the top of a repository."""
    folder = tmp_path / "top" / below
    folder.mkdir(parents=True)
    (folder / name).write_bytes(b"a\n")
    subprocess.run([GIT, "init", "-q", tmp_path / "top"], check=True)
    patch = tmp_path / "p.patch"
    patch.write_text(unified_diff([FileChange(folder / name, name, b"a\n", b"b\n")]))
    for here in (tmp_path, tmp_path / "top"):
        monkeypatch.chdir(here)
        words = shlex.split(f"git {apply_words(folder)} {patch}")
        subprocess.run(words, check=True)
        assert (folder / name).read_bytes() == b"b\n"
        (folder / name).write_bytes(b"a\n")
