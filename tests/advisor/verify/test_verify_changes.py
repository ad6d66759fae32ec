"""What git and diffs say about a change, in all the ways in which they say it."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from npufix.advisor.verify.changes import from_files, from_patch
from npufix.advisor.verify.diff_reading import DiffError
from npufix.advisor.verify.git_changes import from_git

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from npufix.advisor.verify.changes import Changes

    Git = Callable[..., bytes]

GIT = shutil.which("git") or ""
with_git = pytest.mark.skipif(not GIT, reason="git is not installed")
BEFORE = "import torch\n\n\ndef f(x):\n    return x * 2\n\n\ndef g(x):\n    return x\n"
AFTER = BEFORE.replace("x * 2", "2 * x")


def commands_of_git(folder: Path) -> Git:
    alone = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "protocol.file.allow=always")

    def git(*words: str) -> bytes:
        command = [GIT, "-C", folder, *who, *words]
        done = subprocess.run(command, check=False, capture_output=True, env=alone)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return git


@pytest.fixture
def git(tmp_path: Path) -> Git:
    git = commands_of_git(tmp_path)
    git("init", "-q", "-b", "main")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "model.py").write_text(BEFORE)
    git("add", ".")
    git("commit", "-qm", "first")
    return git


def texts(changes: Changes) -> list[tuple[str, str, str]]:
    return [(f.name, f.original, f.changed) for f in changes.files]


@with_git
@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--no-prefix",),
        ("-c", "diff.mnemonicPrefix=true"),
        ("--src-prefix=old/", "--dst-prefix=new/"),
        ("--unified=0",),
        ("--function-context",),
        ("--patience", "--full-index"),
        ("--binary",),
    ],
)
@pytest.mark.parametrize("applied", [True, False])
def test_a_diff_is_found_whatever_its_prefixes_and_context(
    git: Git, tmp_path: Path, options: tuple[str, ...], *, applied: bool
) -> None:
    (tmp_path / "src" / "model.py").write_text(AFTER)
    settings, flags = (options, ()) if options[:1] == ("-c",) else ((), options)
    diff = git(*settings, "diff", *flags)
    if not applied:
        git("checkout", "-q", ".")
    for root in (tmp_path, tmp_path / "src"):
        if root == tmp_path or flags != ("--no-prefix",):
            changes = from_patch(diff, "the diff", root)
            assert texts(changes) == [("src/model.py", BEFORE, AFTER)]


@with_git
def test_renames_copies_and_modes(git: Git, tmp_path: Path) -> None:
    git("mv", "src/model.py", "src/renamed.py")
    (tmp_path / "src" / "renamed.py").write_text(AFTER)
    assert texts(from_git([tmp_path], "HEAD")) == [("src/renamed.py", BEFORE, AFTER)]
    assert texts(from_patch(git("diff", "-M", "HEAD"), "d", tmp_path))[0][1:] == (BEFORE, AFTER)
    git("reset", "-q", "--hard")
    (tmp_path / "src" / "model.py").chmod(0o755)
    (tmp_path / "src" / "copy.py").write_text(AFTER)
    git("add", ".")
    assert from_git([tmp_path], "HEAD").files == ()
    (copied,) = from_patch(git("diff", "--find-copies-harder", "HEAD"), "d", tmp_path).files
    assert (copied.original, copied.changed) == (BEFORE, AFTER)


@with_git
def test_new_deleted_staged_and_untracked_files(git: Git, tmp_path: Path) -> None:
    new, old = tmp_path / "new.py", tmp_path / "src" / "model.py"
    old.unlink()
    new.write_text("def f(x):\n    return x\n")
    (tmp_path / "untracked.py").write_text("x = 1\n")
    git("add", "new.py")
    changes = from_git([tmp_path], "HEAD")
    assert [f.name for f in changes.new] == ["new.py"]
    assert [(f.name, f.original) for f in changes.deleted] == [("src/model.py", BEFORE)]
    named = from_git([tmp_path / "untracked.py"], "HEAD")
    assert [f.name for f in named.new] == ["untracked.py"]
    again = from_patch(git("diff", "HEAD"), "d", tmp_path)
    assert [f.name for f in again.new] == ["new.py"]
    assert [(f.name, f.original) for f in again.deleted] == [("src/model.py", BEFORE)]
    git("reset", "-q", "--hard")
    old.write_text(AFTER)
    git("add", ".")
    assert texts(from_git([tmp_path], "HEAD")) == [("src/model.py", BEFORE, AFTER)]


@with_git
@pytest.mark.parametrize("name", ["a b.py", "größe.py", 'quo"ted.py', "日本.py", "tab\tx.py"])
def test_names_that_git_quotes(git: Git, tmp_path: Path, name: str) -> None:
    path = tmp_path / "src" / name
    path.write_text(BEFORE)
    git("add", ".")
    git("commit", "-qm", "named")
    path.write_text(AFTER)
    assert texts(from_git([path], "HEAD")) == [(f"src/{name}", BEFORE, AFTER)]
    assert texts(from_patch(git("diff"), "d", tmp_path)) == [(f"src/{name}", BEFORE, AFTER)]


@with_git
def test_line_ends_and_encodings(git: Git, tmp_path: Path) -> None:
    path = tmp_path / "src" / "model.py"
    windows = BEFORE.replace("\n", "\r\n").encode()
    latin = ("# coding: latin-1\n# größe\n" + BEFORE.rstrip("\n")).encode("latin-1")
    for data in (windows, latin, b"\xef\xbb\xbf" + BEFORE.encode()):
        path.write_bytes(data)
        git("commit", "-qam", "other bytes")
        path.write_bytes(data.replace(b"x * 2", b"2 * x"))
        for found in (from_git([tmp_path], "HEAD"), from_patch(git("diff"), "d", tmp_path)):
            (file,) = found.files
            assert file.data == (data, data.replace(b"x * 2", b"2 * x"))
            assert file.original.replace("x * 2", "2 * x") == file.changed
    path.write_bytes(b"x = '\xff\xfe'\n")
    (unread,) = from_git([tmp_path], "HEAD").unread
    assert "cannot be decoded" in unread[1]


@with_git
def test_what_cannot_be_compared_is_named(git: Git, tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    theirs = commands_of_git(inner)
    theirs("init", "-q")
    (inner / "x.py").write_text(BEFORE)
    (tmp_path / "note.ipynb").write_text("{}")
    theirs("add", ".")
    theirs("commit", "-qm", "inner")
    git("add", ".")
    git("commit", "-qm", "all")
    (inner / "x.py").write_text(AFTER)
    theirs("commit", "-qam", "changed")
    (tmp_path / "note.ipynb").write_text('{"cells": []}')
    (tmp_path / "src" / "model.py").write_bytes(b"\0" * 9)
    for changes in (from_git([tmp_path], "HEAD"), from_patch(git("diff"), "d", tmp_path)):
        said = dict(changes.unread)
        assert "notebook" in said["note.ipynb"]
        assert "submodule" in said["inner"]
    assert "does not hold its lines" in said["src/model.py"]
    with pytest.raises(DiffError) as two:
        from_git([tmp_path / "src", inner / "x.py"], "HEAD")
    assert "different repositories" in two.value.message
    with pytest.raises(DiffError) as notebook:
        from_files(tmp_path / "note.ipynb", tmp_path / "note.ipynb")
    assert "is a notebook" in notebook.value.message


@with_git
def test_subfolders_worktrees_and_shallow_clones(
    git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, shallow = tmp_path / "tree", tmp_path / "shallow"
    git("worktree", "add", "-q", str(tree))
    git("commit", "-q", "--allow-empty", "-m", "second")
    git("clone", "-q", "--depth=1", tmp_path.as_uri(), str(shallow))
    for folder in (tree, shallow, tmp_path):
        (folder / "src" / "model.py").write_text(AFTER)
        (folder / "other.py").write_text("x = 1\n")
        for path in (folder, folder / "src", folder / "src" / "model.py"):
            assert texts(from_git([path], "HEAD")) == [("src/model.py", BEFORE, AFTER)]
    with pytest.raises(DiffError) as missing:
        from_git([shallow], "HEAD~1")
    assert "HEAD~1" in missing.value.message
    monkeypatch.chdir(tmp_path / "src")
    assert texts(from_patch(git("diff"), "d", tmp_path / "src"))[0][1:] == (BEFORE, AFTER)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(DiffError) as without:
        from_git([tmp_path], "HEAD")
    assert "git is not installed" in without.value.message
    diff = b"--- a/model.py\n+++ b/model.py\n@@ -5 +5 @@\n-    return 2 * x\n+    return x\n"
    assert len(from_patch(diff, "d", tmp_path / "src").files) == 1


def test_lines_that_have_moved_since(tmp_path: Path) -> None:
    text = "# a\n# b\n" * 7 + BEFORE
    (tmp_path / "model.py").write_text(text)
    diff = (
        b"--- model.py\n+++ model.py\n@@ -4,2 +4,2 @@\n def f(x):\n-    return x * 2\n"
        b"+    return 2 * x\n"
    )
    (file,) = from_patch(diff, "d", tmp_path).files
    assert (file.original, file.changed) == (text, text.replace("x * 2", "2 * x"))


def test_a_folder_of_no_repository(tmp_path: Path) -> None:
    if not GIT:
        pytest.skip("git is not installed")
    with pytest.raises(DiffError) as error:
        from_git([tmp_path], "HEAD")
    assert "no git repository" in error.value.message


@with_git
def test_no_program_runs_that_a_repository_names(git: Git, tmp_path: Path) -> None:
    named = tmp_path / ".git" / "program"
    named.write_text(f"#!/bin/sh\ntouch '{tmp_path}/it-ran'\ncat\n")
    named.chmod(0o755)
    (tmp_path / ".git" / "info" / "attributes").write_text("*.py filter=a=b diff=c\n")
    git("mv", "src/model.py", "src/renamed.py")
    (tmp_path / "src" / "renamed.py").write_text(AFTER)
    for setting in ("core.fsmonitor", "filter.a=b.clean", "diff.c.textconv", "diff.external"):
        git("config", setting, str(named))
    assert texts(from_git([tmp_path], "HEAD")) == [("src/renamed.py", BEFORE, AFTER)]
    assert not (tmp_path / "it-ran").exists()
