"""What is in the journal is believed only as far as this user has written it."""

from __future__ import annotations

import json
import os
import shutil
import time
from typing import TYPE_CHECKING

import pytest

from npufix.advisor.patch import undoing
from npufix.rewriters.write import durable, journal, user_folders
from npufix.rewriters.write.journal import Phase
from npufix.rewriters.write.patch import FileChange
from npufix.rewriters.write.recovering import recover
from npufix.rewriters.write.writing import WriteError, write

if TYPE_CHECKING:
    from pathlib import Path

NAMES = ("a.py", "b.py")


def written(root: Path, *, phase: Phase = Phase.DONE) -> journal.Kept:
    """Write two files, and have the write be as far as that."""
    root.mkdir()
    for name in NAMES:
        (root / name).write_bytes(b"old")
    write([FileChange(root / name, name, b"old", b"new") for name in NAMES], root)
    kept = journal.writes()[0]
    if phase is not Phase.DONE:
        kept.advance(phase)
    return kept


def texts(root: Path) -> set[bytes]:
    return {(root / name).read_bytes() for name in NAMES}


@pytest.mark.parametrize(
    ("key", "value"),
    [("path", "/etc/passwd"), ("path", "{root}/../victim"), ("beside", "{root}/../.npufix-0.tmp"),
     ("beside", "{root}/b.py"), ("root", "relative")],
)  # fmt: skip
def test_a_record_that_names_other_files_is_not_obeyed(
    tmp_path: Path, key: str, value: str
) -> None:
    kept = written(tmp_path / "tree", phase=Phase.RETURNING)
    (tmp_path / "victim").write_bytes(b"new")
    record = json.loads((kept.folder / "record.json").read_bytes())
    (record if key == "root" else record["entries"][0])[key] = value.format(root=tmp_path / "tree")
    (kept.folder / "record.json").write_text(json.dumps(record))
    assert recover() == []
    assert journal.writes() == []
    assert texts(tmp_path / "tree") == {b"new"}
    assert (tmp_path / "victim").read_bytes() == b"new"


def test_the_journal_of_somebody_else_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "tree", phase=Phase.RETURNING)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert (journal.writes(), recover()) == ([], [])
    with pytest.raises(WriteError, match="files there belong to somebody else; nothing was writ"):
        write([FileChange(tmp_path / "tree" / "a.py", "a.py", b"new", b"x")], tmp_path)
    assert texts(tmp_path / "tree") == {b"new"}


@pytest.mark.parametrize("damage", [b"ol", None])
def test_an_original_that_is_damaged_is_not_put_back(tmp_path: Path, damage: bytes | None) -> None:
    kept = written(tmp_path / "tree")
    file = kept.folder / "1.before"
    file.unlink() if damage is None else file.write_bytes(damage)
    with pytest.raises(undoing.UndoError, match=r"1\.before: the original kept there is damaged"):
        undoing.undo(None)
    kept.advance(Phase.RETURNING)
    with pytest.raises(WriteError, match="cannot be put right") as caught:
        recover()
    assert f"then remove {kept.folder}" in caught.value.remedy
    assert (tmp_path / "tree" / "b.py").read_bytes() == b"new"


def test_one_folder_that_cannot_be_put_right_does_not_stop_the_others(tmp_path: Path) -> None:
    kept = written(tmp_path / "broken", phase=Phase.RETURNING)
    for number in range(2):
        (kept.folder / f"{number}.before").unlink()
    (tmp_path / "other").mkdir()
    (said,) = recover(tmp_path / "other")
    assert f"an earlier change of {tmp_path / 'broken'} was interrupted and cannot be" in said
    for source in (tmp_path, tmp_path / "broken", None):
        with pytest.raises(WriteError, match="cannot be put right"):
            recover(source)


def test_the_last_write_is_undone_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 4e9)
    written(tmp_path / "first")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    written(tmp_path / "second")
    assert undoing.undo(None)[0].root == tmp_path / "second"
    assert undoing.undo(None)[0].root == tmp_path / "first"


def test_a_folder_that_is_gone_is_said_and_forgotten_in_the_end(tmp_path: Path) -> None:
    kept = written(tmp_path / "tree")
    shutil.rmtree(tmp_path / "tree")
    with pytest.raises(undoing.UndoError, match="is not there any more") as caught:
        undoing.undo(None)
    assert str(kept.folder) in caught.value.remedy
    kept.advance(Phase.RENAMING)
    assert recover() == []
    assert [one.interrupted for one in undoing.past(None)] == [True]
    journal.drop_the_oldest([])
    assert [one.name for one in journal.writes()] == [kept.name]
    os.utime(kept.folder, (0, 0))
    journal.drop_the_oldest([])
    assert list(kept.folder.parent.iterdir()) == []


def test_nothing_but_a_file_is_waited_for_or_followed(tmp_path: Path) -> None:
    kept = written(tmp_path / "tree", phase=Phase.RETURNING)
    (tmp_path / "tree" / "b.py").unlink()
    os.mkfifo(tmp_path / "tree" / "b.py")
    (tmp_path / "victim").write_bytes(b"mine")
    beside = journal.path_of(kept.record.entries[0].beside)
    beside.symlink_to(tmp_path / "victim")
    (said,) = recover()
    assert said.endswith(f"but for what somebody has changed since: {tmp_path / 'tree' / 'b.py'}")
    assert (tmp_path / "tree" / "a.py").read_bytes() == b"old"
    assert (tmp_path / "victim").read_bytes() == b"mine"
    with pytest.raises(OSError, match="no regular file"):
        durable.content(tmp_path / "tree" / "b.py")


def test_a_file_system_without_a_sync_of_folders_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: os.lseek(-1, 0, 0))
    with pytest.raises(OSError, match="Bad file"):
        durable.sync(tmp_path)

    def fails(_handle: int) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "fsync", fails)
    durable.sync(tmp_path)


@pytest.mark.parametrize("forged", ["a link", "open to all", ""])
def test_a_folder_that_others_have_made_for_a_user_without_a_home_is_not_used(
    forged: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_folders, "_base", lambda *_: None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / f"npufix-{os.getuid()}"
    if forged == "a link":
        folder.symlink_to(tmp_path)
    elif forged:
        folder.mkdir()
        folder.chmod(0o777)
    made = user_folders.state_folder("writes")
    assert made.is_relative_to(os.devnull if forged else folder)
