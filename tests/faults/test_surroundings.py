"""Commands where something fails around them: disks, caches, homes, clocks, other commands."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import time
from typing import TYPE_CHECKING

import pytest
from benchmarks.fuzz import mutations
from commands import JSON, MANY, Npufix, dump, files, some, source

from npufix.rewriters.write.patch import FileChange
from npufix.rewriters.write.recovering import recover
from npufix.rewriters.write.writing import WriteError, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

_KINDS = ("json", "html", "csv", "xlsx", "sarif", "perfetto")
_FULL = frozenset({2, 120})


@pytest.mark.fault(kind="full disk")
@pytest.mark.parametrize(
    ("most", "kind"), some([(most, kind) for most in (0, 1, 1000, 5000) for kind in _KINDS])
)
def test_a_report_that_finds_no_room(npufix: Npufix, most: int, kind: str) -> None:
    """Files may grow to so many bytes only."""
    out = npufix.root / "out"
    out.mkdir()
    target = out / ("tables" if kind == "csv" else f"report.{kind}")

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    arguments = ["diagnose", dump(npufix.root), "-o", f"{kind}={target}"]
    ended = npufix(*arguments, expected={0, *_FULL}, spoil=limit)
    assert [file for file in files(out) if file.suffix == ".tmp" or file.name[0] == "."] == []
    assert ended.status or target.exists()
    if kind == "json" and target.exists():
        json.loads(target.read_bytes())


@pytest.mark.fault(kind="full disk")
@pytest.mark.parametrize(
    "arguments", [["diagnose"], ["diagnose", JSON], ["rules"], ["--help"]], ids=" ".join
)
def test_a_standard_output_that_is_full(npufix: Npufix, arguments: list[str]) -> None:
    more = [dump(npufix.root)] if "diagnose" in arguments else []
    full = os.open("/dev/full", os.O_WRONLY)
    running = npufix.start(*arguments, *more, spoil=lambda: os.dup2(full, 1))
    os.close(full)
    ended = running.wait()
    assert ended.status in _FULL
    assert "Traceback" not in ended.err


@pytest.mark.fault(kind="read-only dump and source")
def test_a_dump_and_a_source_may_be_read_only_and_are_not_touched(
    npufix: Npufix, record_property: Callable[[str, object], None]
) -> None:
    whole, program = dump(npufix.root), source(npufix.root)
    both = (whole, *whole.rglob("*"), program, *program.rglob("*"))
    for path in both:
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = [(stat.st_size, stat.st_mtime_ns, stat.st_mode) for stat in map(os.lstat, both)]
    commands: list[list[str | Path]] = [
        ["diagnose", whole], ["diagnose", whole, "--source", program, JSON], ["scan", program],
        ["diagnose", whole, "-o", f"html={npufix.root / 'p.html'}"],
    ]  # fmt: skip
    record_property("attempts", len(commands))
    for arguments in commands:
        npufix(*arguments)
    after = [(stat.st_size, stat.st_mtime_ns, stat.st_mode) for stat in map(os.lstat, both)]
    assert after == before
    assert {*both} == {whole, *whole.rglob("*"), program, *program.rglob("*")}
    for path in both:
        path.chmod(0o755)


@pytest.mark.fault(kind="unwritable cache and home")
@pytest.mark.parametrize("command", ["diagnose", "scan"])
@pytest.mark.parametrize(
    "where", some(["{file}", "/dev/null/x", "/proc/x", "relative", "", "/sys", "{file}\n"])
)
def test_a_cache_and_a_home_that_are_none(
    npufix: Npufix, job: Path, command: str, where: str
) -> None:
    file = npufix.root / "file"
    file.write_text("x")
    where = where.format(file=file)
    home = {"XDG_CACHE_HOME": where, "XDG_STATE_HOME": where, "HOME": where or "/dev/null"}
    npufix(command, job if command == "diagnose" else source(npufix.root), environment=home)


@pytest.mark.fault(kind="damaged cache")
@pytest.mark.parametrize("number", range(6 * MANY or 2))
def test_a_cache_that_is_damaged_changes_nothing(
    npufix: Npufix, job: Path, random: Random, number: int
) -> None:
    wanted = npufix("diagnose", job, JSON).out
    kept = files(npufix.root / "cache")
    assert kept, number
    for entry in kept:
        data = entry.read_bytes()
        entry.write_bytes(mutations.of_bytes(random, data, [data]))
    assert npufix("diagnose", job, JSON).out == wanted


@pytest.mark.fault(kind="several npufix at once")
@pytest.mark.parametrize("number", range(2 * MANY or 1))
def test_several_commands_read_one_job_with_one_cache(
    npufix: Npufix, job: Path, number: int, record_property: Callable[[str, object], None]
) -> None:
    wanted = npufix("diagnose", job, JSON, "--no-cache").out
    cache = {"XDG_CACHE_HOME": str(npufix.root / f"cache{number}")}
    running = [npufix.start("diagnose", job, JSON, environment=cache) for _ in range(4)]
    record_property("attempts", len(running))
    assert {each.wait().check().out for each in running} == {wanted}


@pytest.mark.fault(kind="several npufix at once")
@pytest.mark.parametrize("number", range(10 * MANY or 2))
def test_of_several_writers_one_writes(tmp_path: Path, number: int) -> None:
    root, names = tmp_path / f"tree{number}", [f"{letter}.py" for letter in "abcd"]
    root.mkdir()
    for name in names:
        (root / name).write_bytes(b"old")
    children = []
    for one in range(3):
        pid = os.fork()
        if not pid:
            status = 1
            try:
                write([FileChange(root / n, n, b"old", b"%d" % one * 5000) for n in names], root)
                status = 0
            except WriteError:
                status = 2
            finally:
                os._exit(status)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert sorted(codes) == [0, 2, 2]
    assert len({(root / name).read_bytes() for name in names}) == 1
    assert sorted(path.name for path in root.iterdir()) == names


@pytest.mark.fault(kind="clock jumps")
@pytest.mark.parametrize("moment", some([0, -(10**9), 2**31, 2**33, 9 * 10**9], 2))
def test_times_of_files_in_the_future_or_before_1970(
    npufix: Npufix, job: Path, moment: int
) -> None:
    wanted, program = npufix("diagnose", job, JSON).out, source(npufix.root)
    for file in (*files(job), *files(program), *files(npufix.root / "cache")):
        os.utime(file, (moment, moment))
    assert npufix("diagnose", job, JSON).out == wanted
    npufix("scan", program)


@pytest.mark.fault(kind="clock jumps")
@pytest.mark.parametrize("clock", some(["stands", "is before 1970", "is far ahead", "jumps"], 2))
def test_a_clock_that_is_wrong(npufix: Npufix, job: Path, random: Random, clock: str) -> None:
    wanted = npufix("diagnose", job, JSON, "--no-cache").out
    first, last = {
        "stands": (0.0, 0.0), "is before 1970": (-1e9, -1e9), "is far ahead": (1e11, 1e11),
        "jumps": (0, 1e10),
    }[clock]  # fmt: skip

    def jump() -> None:
        time.time = time.monotonic = time.perf_counter = lambda: random.uniform(first, last)

    assert npufix("diagnose", job, JSON, spoil=jump).out == wanted


# --- a write on a small file system that is full; only root can mount one


@pytest.mark.fault(kind="full disk, a write")
@pytest.mark.parametrize("free", some(range(0, 320, max(1, 5 // (MANY or 1)))))
def test_a_write_on_a_disk_with_so_much_room(tmp_path: Path, free: int) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    out, into = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(into, _on_a_full_disk(disk, free).encode())
        finally:
            os._exit(0)
    os.close(into)
    with os.fdopen(out) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    if said == "not mounted":
        pytest.skip("only root may mount a disk")
    assert said in {"b'new' []", "b'old' [] nothing was written"}


def _on_a_full_disk(disk: Path, free: int) -> str:
    """Return which texts and strangers there are after a write, and what it says."""
    if not _mounted(disk):
        return "not mounted"
    os.environ["XDG_STATE_HOME"] = str(disk / "state")
    tree = disk / "tree"
    tree.mkdir()
    changes = []
    for name in ("a.py", "b.py", "c.py"):
        (tree / name).write_bytes(b"old" * 9000)
        changes.append(FileChange(tree / name, name, b"old" * 9000, b"new" * 9000))
    with (disk / "ballast").open("wb") as ballast:
        now = os.statvfs(disk)
        room = max(4096, now.f_bavail * now.f_bsize - (free << 10))
        os.posix_fallocate(ballast.fileno(), 0, room)
    refused = ""
    try:
        write(changes, tree)
    except WriteError as error:
        refused = " nothing was written" * ("nothing was written" in error.message) or str(error)
    texts = sorted({change.path.read_bytes()[:3] for change in changes})
    (disk / "ballast").unlink()
    recover()
    left = [path.name for path in tree.iterdir() if path.suffix != ".py"]
    return f"{', '.join(map(str, texts))} {left}{refused}"


def _mounted(disk: Path) -> bool:
    """Mount a small file system for this process and its children only."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None)
    alone, private = 0x20000, (1 << 14) | (1 << 18)
    return not (
        libc.unshare(alone)
        or libc.mount(b"none", b"/", None, private, None)
        or libc.mount(b"tmpfs", os.fsencode(disk), b"tmpfs", 0, b"size=512k")
    )
