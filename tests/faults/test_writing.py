"""``--write`` changes all files or none, and loses nothing, whatever happens meanwhile."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from npufix.advisor.patch import undoing
from npufix.rewriters.write import durable, journal
from npufix.rewriters.write.patch import FileChange
from npufix.rewriters.write.writing import WriteError, write


def change(root: Path, name: str, before: bytes = b"old", after: bytes = b"new") -> FileChange:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(before)
    return FileChange(path, name, before, after)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree"
    folder.mkdir()
    return folder


@pytest.fixture
def two(tree: Path) -> list[FileChange]:
    return [change(tree, name) for name in ("a.py", "b/c.py")]


def left(root: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()
    }


UNTOUCHED = {"a.py": b"old", "b/c.py": b"old"}


def test_all_files_are_written_and_undone(tree: Path) -> None:
    changes = [change(tree, n, b"\xef\xbb\xbfold\r\n", b"new\r\n\xff") for n in ("a.py", "b/c.py")]
    assert write([*changes, change(tree, "same.py", b"same", b"same")], tree) == []
    written = {"a.py": b"new\r\n\xff", "b/c.py": b"new\r\n\xff", "same.py": b"same"}
    assert left(tree) == written
    last, _ = undoing.undo(tree)
    assert last.files == ("a.py", "b/c.py")
    assert left(tree) == dict.fromkeys(UNTOUCHED, b"\xef\xbb\xbfold\r\n") | {"same.py": b"same"}
    with pytest.raises(undoing.UndoError, match="no change"):
        undoing.undo(None)


def test_nothing_is_undone_that_somebody_has_changed_since(two: list[FileChange]) -> None:
    write(two, two[0].path.parent)
    two[1].path.write_bytes(b"edited")
    with pytest.raises(undoing.UndoError, match=r"changed since npufix wrote: b/c\.py") as error:
        undoing.undo(None)
    assert left(two[0].path.parent) == {"a.py": b"new", "b/c.py": b"edited"}
    kept = error.value.remedy.split("are in ")[1].split(",")[0]
    assert (undoing.past(None)[0].kept.folder / "1.before").read_bytes() == b"old"
    assert kept == str(undoing.past(None)[0].kept.folder)


def test_one_write_after_the_other_is_undone(tree: Path) -> None:
    write([change(tree, "a.py", b"1", b"2")], tree)
    write([change(tree, "a.py", b"2", b"3")], tree)
    for text in (b"2", b"1"):
        undoing.undo(tree)
        assert left(tree) == {"a.py": text}
    assert [one.undone for one in undoing.past(None)] == [True, True]
    assert undoing.past(tree / "other") == []


# --- refused by the system


@pytest.mark.parametrize("function", ["fsync", "chmod", "replace", "rename", "mkdir", "chown"])
@pytest.mark.parametrize("fails_at", range(1, 9))
def test_an_error_of_the_system_undoes_everything(
    function: str, fails_at: int, two: list[FileChange], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a full disk or a folder that is read only would: whatever happens to be the last call."""
    root = two[0].path.parent
    real, calls = getattr(os, function), 0

    def failing(*args: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == fails_at:
            raise OSError(28, "No space left on device", "c.py")
        return real(*args, **options)

    monkeypatch.setattr(os, function, failing)
    said = ""
    try:
        write(two, root)
    except WriteError as error:
        said = error.message
    if calls < fails_at:
        assert set(left(root).values()) == {b"new"}
        return
    assert "No space left on device" in said
    assert said.endswith("nothing was written")
    assert left(root) == UNTOUCHED


@pytest.mark.parametrize("room", [1, 50_000, 120_000, 250_000])
def test_a_disk_that_is_full_undoes_everything(tree: Path, room: int) -> None:
    """A limit on the size of files fails the same calls, and needs no rights."""
    changes = [change(tree, n, b"old", b"n" * s) for n, s in (("a.py", 99_000), ("b.py", 200_000))]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        if room > 200_000:
            write(changes, tree)
        else:
            with pytest.raises(WriteError, match=r"File too large; nothing was written"):
                write(changes, tree)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert set(left(tree)) == {"a.py", "b.py"}
    assert {len(text) for text in left(tree).values()} == (
        {99_000, 200_000} if room > 200_000 else {3}
    )
    assert len(undoing.past(None)) == (room > 200_000)


def test_an_interrupt_undoes_everything(
    two: list[FileChange], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = Path.replace, 0

    def interrupted(path: Path, target: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return real(path, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(two, two[0].path.parent)
    assert left(two[0].path.parent) == UNTOUCHED


# --- refused by us


def test_a_file_that_changed_or_went_meanwhile_stops_everything(two: list[FileChange]) -> None:
    root = two[0].path.parent
    two[1].path.write_bytes(b"edited")
    with pytest.raises(WriteError, match=r"c\.py changed since it was read; nothing was written"):
        write(two, root)
    assert left(root) == {"a.py": b"old", "b/c.py": b"edited"}
    two[1].path.unlink()
    with pytest.raises(WriteError, match=r"c\.py: No such file or directory; nothing was written"):
        write(two, root)
    assert left(root) == {"a.py": b"old"}


@pytest.mark.parametrize("what", ["b/c.py", "b"])
def test_what_is_read_only_stops_everything(two: list[FileChange], what: str) -> None:
    root = two[0].path.parent
    if what == "b" and os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    (root / what).chmod(0o555)
    with pytest.raises(WriteError, match=r"is read-only; nothing was written"):
        write(two, root)
    (root / what).chmod(0o755)
    assert left(root) == UNTOUCHED


def test_nobody_writes_where_another_writes(two: list[FileChange]) -> None:
    root = two[0].path.parent
    with durable.lock(root / "b") as free:
        assert free
        with pytest.raises(WriteError, match=r"another npufix is writing into .*b; nothing was"):
            write(two, root)
    assert left(root) == UNTOUCHED


def test_a_folder_that_cannot_be_locked_for_want_of_handles_stops_everything(
    two: list[FileChange], state: Path
) -> None:
    root, before = two[0].path.parent, resource.getrlimit(resource.RLIMIT_NOFILE)
    last = os.dup(0)
    os.close(last)
    resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1, before[1]))
    try:
        with pytest.raises(WriteError, match="b: Too many open files; nothing was written") as said:
            write(two, root)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert "ulimit -n" in said.value.remedy
    assert left(root) == UNTOUCHED
    assert not state.exists()


def test_nothing_outside_the_folder_is_touched(tree: Path, tmp_path: Path) -> None:
    outside = change(tmp_path, "outside.py")
    (tree / "link.py").symlink_to(outside.path)
    for path in (tree / "link.py", tree / ".." / "outside.py"):
        with pytest.raises(WriteError, match=r"leads to .*outside\.py, outside "):
            write([FileChange(path, path.name, b"old", b"new")], tree)
    assert outside.path.read_bytes() == b"old"


def test_the_journal_needs_a_place(
    two: list[FileChange], state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.parent.parent.write_bytes(b"")
    with pytest.raises(WriteError, match="originals cannot be kept there: Not a directory") as said:
        write(two, two[0].path.parent)
    assert "XDG_STATE_HOME" in said.value.remedy
    assert left(two[0].path.parent) == UNTOUCHED
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert journal.state_folder().is_absolute()


# --- kept


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o755, 0o664])
def test_modes_and_attributes_are_kept(mode: int, tree: Path) -> None:
    changed = change(tree, "a.py")
    changed.path.chmod(mode)
    kept = {}
    try:
        os.setxattr(changed.path, "user.note", b"mine")
        kept = {"user.note": b"mine"}
    except (AttributeError, OSError):  # a system or a disk without
        pass
    write([changed], tree)
    assert changed.path.stat().st_mode & 0o777 == mode
    assert all(os.getxattr(changed.path, name) == value for name, value in kept.items())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_the_owner_is_kept(tree: Path) -> None:
    changed = change(tree, "a.py")
    os.chown(changed.path, 12345, 23456)
    write([changed], tree)
    assert (changed.path.stat().st_uid, changed.path.stat().st_gid) == (12345, 23456)


def test_links_stay_links_and_hard_links_are_said(tree: Path) -> None:
    target = change(tree, "real/a.py")
    link = tree / "link.py"
    link.symlink_to(target.path)
    os.link(target.path, tree / "other.py")
    (said,) = write([FileChange(link, "link.py", b"old", b"new")], tree)
    assert said == f"{link} has 2 names (hard links); the others keep the old text"
    assert link.is_symlink()
    assert left(tree) == {"link.py": b"new", "other.py": b"old", "real/a.py": b"new"}


def test_old_writes_are_forgotten(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MOST_WRITES", 3)
    for number in range(5):
        write([change(tree, "a.py", b"%d" % number, b"%d" % (number + 1))], tree)
    assert len(journal.writes()) == 3
    monkeypatch.setattr(journal, "MOST_BYTES", 1)
    write([change(tree, "a.py")], tree)
    assert len(journal.writes()) == 1, "the one just written stays"
