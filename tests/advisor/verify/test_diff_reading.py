"""Diffs of every kind are read and applied, forwards and backwards."""

from __future__ import annotations

import difflib
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npufix.advisor.verify.changes import from_patch
from npufix.advisor.verify.diff_reading import DiffError, apply_diff, lines_of, read_diff

if TYPE_CHECKING:
    from pathlib import Path

GIT = shutil.which("git") or ""
LINES = st.lists(
    st.sampled_from([b"a\n", b"b\n", b"\n", b"- c\n", b"+d\n", b"@@ e\r\n", b"\x0c\n"])
)


def unified(before: bytes, after: bytes, context: int) -> bytes:
    pieces = difflib.diff_bytes(
        difflib.unified_diff, lines_of(before), lines_of(after), b"a/m.py", b"b/m.py", n=context
    )
    ended = (p if p.endswith(b"\n") else p + b"\n\\ No newline at end of file\n" for p in pieces)
    return b"".join(ended)


@given(
    LINES, LINES, st.sampled_from([b"", b"end"]), st.sampled_from([b"", b"fin"]), st.integers(0, 3)
)
@settings(max_examples=300)
def test_what_difflib_writes_is_applied_and_undone(
    left: list[bytes], right: list[bytes], end: bytes, other_end: bytes, context: int
) -> None:
    before, after = b"".join(left) + end, b"".join(right) + other_end
    data = unified(before, after, context)
    if before == after:
        assert not read_diff(data)
        return
    (file,) = read_diff(b"some words of a mail\n" + data)
    assert (file.old_path, file.new_path) == ("a/m.py", "b/m.py")
    assert apply_diff(file, before) == after
    assert apply_diff(file.reversed(), after) == before


def test_lines_that_have_moved_are_found() -> None:
    (file,) = read_diff(unified(b"a\nb\nc\n", b"a\nB\nc\n", 1))
    assert apply_diff(file, b"new\nnew\na\nb\nc\n") == b"new\nnew\na\nB\nc\n"
    assert apply_diff(file, b"a\nb!\nc\n") is None


def test_ends_of_lines_that_a_mail_lost_come_back() -> None:
    (file,) = read_diff(unified(b"a\nb\nc\n", b"a\nB\nC\nc\n", 3))
    assert apply_diff(file, b"a\r\nb\r\nc\r\n") == b"a\r\nB\r\nC\r\nc\r\n"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"hello\n", "no unified diff"),
        (b"--- a/m.py\n+++ b/m.py\n@@ -1,2 +1,2 @@\n a\n", "cut off"),
        (b"--- a/m.py\n+++ b/m.py\n@@ -1 +1,2 @@\n-a\n-b\n+c\n+d\n", "not the lines"),
        (b"@@ -1 +1 @@\n-a\n+b\n", "no named file"),
        (b"diff --cc m.py\nindex 1,2..3\n--- a/m.py\n", "combined diff"),
    ],
)
def test_what_is_no_diff_says_so(data: bytes, said: str) -> None:
    with pytest.raises(DiffError, match=said):
        read_diff(data)


def test_an_empty_diff_changes_nothing() -> None:
    assert read_diff(b"\n") == []


def git(folder: Path, *words: str) -> bytes:
    command = [GIT, "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b.c", *words]
    return subprocess.run(command, check=True, capture_output=True).stdout


@pytest.mark.skipif(not GIT, reason="git is not installed")
def test_what_git_writes_is_read(tmp_path: Path) -> None:
    before = {
        "pkg/windows.py": b"import os\r\n\r\nx = 1\r\n",
        "pkg/no end.py": b"y = 1",
        "pkg/na\u00efve.py".encode(): b"z = '\xc3\xa9'\n",
        "pkg/moved.py": b"".join(b"a%d = %d\n" % (i, i) for i in range(30)),
        "pkg/same.py": b"s = 1\n",
        "pkg/gone.py": b"g = 1\n",
        "pkg/data.bin": b"\x00\x01",
    }
    before = {k.decode() if isinstance(k, bytes) else k: v for k, v in before.items()}
    (tmp_path / "pkg").mkdir()
    for name, data in before.items():
        (tmp_path / name).write_bytes(data)
    git(tmp_path, "init", "-q")
    git(tmp_path, "config", "core.autocrlf", "false")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "1")
    git(tmp_path, "mv", "pkg/moved.py", "pkg/there.py")
    git(tmp_path, "mv", "pkg/same.py", "pkg/alike.py")
    after = {
        "pkg/windows.py": b"import os\r\n\r\nx = 2\r\n",
        "pkg/no end.py": b"y = 2",
        "pkg/na\u00efve.py": b"z = '\xc3\xa9\xc3\xa9'\n",
        "pkg/there.py": before["pkg/moved.py"].replace(b"a7 = 7", b"a7 = 8"),
    }
    for name, data in after.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "pkg/data.bin").write_bytes(b"\x00\x02")
    (tmp_path / "pkg/gone.py").unlink()
    (tmp_path / "pkg/new.py").write_bytes(b"n = 1\n")
    git(tmp_path, "add", ".")
    data = git(tmp_path, "diff", "-M", "HEAD")
    for applied_there in (True, False):
        if not applied_there:
            git(tmp_path, "reset", "-q", "--hard", "HEAD")
        found = from_patch(data, "the diff", tmp_path)
        assert {f.name.rpartition("/")[2] for f in found.files} >= {"windows.py", "no end.py"}
        assert [(f.name, f.changed) for f in found.new] == [("pkg/new.py", "n = 1\n")]
        assert [(f.name, f.original) for f in found.deleted] == [("pkg/gone.py", "g = 1\n")]
        texts = {f.changed.encode(): f.original.encode() for f in found.files}
        old = [before[n] for n in before if n in after] + [before["pkg/moved.py"]]
        assert texts == dict(zip(after.values(), old, strict=True))


def test_paths_stay_below_the_source(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "secret.py").write_bytes(b"a\n")
    data = b"--- ../secret.py\n+++ ../secret.py\n@@ -1 +1 @@\n-a\n+b\n"
    with pytest.raises(DiffError, match="is not below"):
        from_patch(data, "the diff", tmp_path / "src")
