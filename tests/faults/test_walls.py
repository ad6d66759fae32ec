"""The parts of the walls around code that is verified, one by one."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch", reason="torch is needed to verify changes")

from npufix.rewriters.verification.sandbox import guard, job_folders
from npufix.rewriters.verification.sandbox.preloading import is_installed
from npufix.rewriters.verification.sandbox.try_call import try_call
from npufix.rewriters.verification.verdict import Status, Verdict
from npufix.rewriters.verification.workers import cache, parent

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are those of Linux")


def test_what_fills_the_disk_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(bytes(1 << 20))
    (tmp_path / "a" / "everything").symlink_to("/")
    own = [os.getpid()]
    assert not job_folders.find_excess(own, tmp_path)
    monkeypatch.setattr(job_folders, "_MOST_WRITTEN", 1 << 19)
    assert job_folders.find_excess(own, tmp_path)
    monkeypatch.setattr(job_folders, "_MOST_WRITTEN", 1 << 30)
    monkeypatch.setattr(job_folders, "_MOST_FILES", 2)
    assert job_folders.find_excess(own, tmp_path)


def test_what_is_hidden_or_has_no_name_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_folders, "_MOST_WRITTEN", 1 << 20)
    with (tmp_path / "file").open("wb") as file:
        (tmp_path / "file").unlink()
        assert not job_folders.find_excess([os.getpid()], tmp_path)
        file.write(bytes(1 << 21))
        file.flush()
        assert "files" in job_folders.find_excess([os.getpid()], tmp_path)
    deep = tmp_path.joinpath(*["d" * 200] * 6)
    deep.mkdir(parents=True)
    assert "files" in job_folders.find_excess([os.getpid()], tmp_path)
    monkeypatch.setattr(job_folders, "_MOST_THREADS", 1)
    assert "threads" in job_folders.find_excess([os.getpid()], tmp_path / "none")


def test_whatever_was_written_is_removed(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("")
    top = tmp_path / "made"
    top.mkdir()
    (top / "link").symlink_to(tmp_path)
    at = os.open(top, os.O_RDONLY)
    for _ in range(1100):  # more than Python calls functions in each other
        os.mkdir("d", 0o300, dir_fd=at)
        below = os.open("d", os.O_PATH, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    job_folders.remove(top)
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]


def test_folders_that_nobody_uses_any_more_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in ("npufix-a", "npufix-b", "npufix-new", "other"):
        (tmp_path / name).mkdir()
    used = job_folders.mark_in_use(str(tmp_path / "npufix-a"))
    for name in ("npufix-a", "npufix-b", "other"):
        os.utime(tmp_path / name, (1, 1))
    job_folders.remove_left_behind("npufix-")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["npufix-a", "npufix-new", "other"]
    os.close(used)
    job_folders.remove_left_behind("npufix-")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["npufix-new", "other"]


def test_without_the_walls_python_refuses_what_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, mine = tmp_path / "home", tmp_path / "home-of-user"
    home.mkdir()
    mine.mkdir()
    (mine / "file").write_text("mine")
    (home / "own").write_text("")
    monkeypatch.chdir(home)
    attempts: list[Callable[[], object]] = [
        lambda: os.open(mine / "new", os.O_CREAT),
        lambda: os.open(mine / "file", os.O_TRUNC),
        lambda: Path("own").replace(mine / "file"),
        lambda: Path("hard").hardlink_to(mine / "file"),
        lambda: (mine / "link").symlink_to("/"),
        lambda: os.utime(mine / "file"),
        lambda: os.chown(mine / "file", -1, -1),
        lambda: shutil.rmtree(mine),
        lambda: os.unlink("file", dir_fd=os.open(mine, os.O_RDONLY)),
        lambda: sqlite3.connect(mine / "new"),
        lambda: open("/dev/tty", "w"),  # noqa: SIM115, PTH123 - it is refused
    ]
    with guard.SideEffectGuard(str(home)):
        for attack in attempts:
            with pytest.raises(PermissionError):
                attack()
        Path("folder").mkdir()
        Path("own").replace(home / "folder" / "own")
        shutil.rmtree("folder")
        sqlite3.connect(":memory:").close()
    assert [p.name for p in mine.iterdir()] == ["file"]
    assert (mine / "file").read_text() == "mine"


def test_what_a_verdict_names_is_read_only_if_it_is_a_file_of_code(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("")
    (tmp_path / "endless.py").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.py")
    names = ("code.py", "endless.py", "pipe.py", "\0.py")
    found = [bool(cache._digest_of_named(f"{tmp_path}/{name}")) for name in names]
    assert found == [True, False, False, False]
    assert not cache._digest_of_named("/proc/self/environ")


def test_a_verdict_that_has_no_end_is_cut() -> None:
    cut = parent._bound(Verdict(Status.NOT_VERIFIED, "x" * 99_999, "f", "y" * 99_999))
    assert max(len(cut.ground), len(cut.reason)) < 9_999


def test_an_exception_that_has_no_text_is_an_outcome() -> None:
    class HostileError(Exception):
        def __str__(self) -> str:
            raise SystemExit(3)

    def fail() -> None:
        raise HostileError

    assert try_call(fail, 9).error == "HostileError"
    assert try_call(lambda: {}["\udc80"], 9).error.encode()


def test_only_installed_modules_are_imported_outside_the_walls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.py").write_text("")
    (tmp_path / "job-1").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert [is_installed(n) for n in ("evil", "job-1.home.evil", "no_such")] == [False] * 3
    assert [is_installed(n) for n in ("json", "torch.nn.functional", "pytest")] == [True] * 3
