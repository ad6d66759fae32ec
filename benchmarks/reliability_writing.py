"""Faults of what changes the user's files: kills, a full disk, two at once."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.reliability_patches import NORM
from benchmarks.reliability_running import Ended, command, start

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.reliability_inputs import Place

    from npufix.rewriters.write.patch import FileChange

    Faults = Iterator[str]

_TESTS = Path(__file__).parents[1] / "tests" / "faults"


def killed_lines(place: Place) -> Faults:
    """``kill -9`` at each line of a write, and again in the recovery."""
    kill_points = _kill_points()
    state = os.environ.get("XDG_STATE_HOME")
    step, line = max(1, 2 // place.many), 1
    try:
        while True:
            outcome = kill_points.attempt(place.folder(), line)
            yield "" if kill_points.is_whole(outcome) else f"line {line}: {outcome}"
            if outcome.ended:
                return
            if outcome.said:
                again = kill_points.attempt(place.folder(), line, 1 + line * 7 % 120)
                yield "" if kill_points.is_whole(again) else f"line {line} and again: {again}"
            line += step
    finally:
        os.environ.pop("XDG_STATE_HOME")
        if state is not None:
            os.environ["XDG_STATE_HOME"] = state


def _kill_points() -> object:
    sys.path.insert(0, str(_TESTS))
    import kill_points  # noqa: PLC0415 - lies beside the tests that use it

    return kill_points


class Program:
    """A program with something to change in each of its files, and what it is changed to."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.folder = place.root / "program"
        self.old = {f"m{n}.py": NORM.encode() for n in range(3)} | {"b/m.py": NORM.encode()}
        self.arguments = [
            "patch", "--source", self.folder, "--on", "reference", "--allow", "same-dtype",
        ]  # fmt: skip
        self.reset()
        self.seconds = 0.0
        for _ in range(2):  # the second time the verdicts are known
            self.reset()
            begun = time.monotonic()
            self.ended = command([*self.arguments, "--write"], place.root)
            self.seconds = time.monotonic() - begun
        self.new = self.read()

    def reset(self) -> None:
        """Put the old text there, and forget all writes."""
        for folder in (self.folder, self.place.root / "state"):
            shutil.rmtree(folder, ignore_errors=True)
        for name, text in self.old.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(text)

    def read(self) -> dict[str, bytes]:
        """Return what is there, files of npufix as well."""
        return {
            file.relative_to(self.folder).as_posix(): file.read_bytes()
            for file in self.folder.rglob("*")
            if file.is_file()
        }

    def fault(self) -> str:
        """Return what is wrong with what is there: it is neither all old nor all new."""
        now = self.read()
        if now in (self.old, self.new):
            return ""
        strangers = sorted(set(now) - set(self.old))
        changed = sum(now.get(name) != text for name, text in self.old.items())
        return f"{changed} of {len(self.old)} files are changed, {strangers} are left"


def killed_commands(place: Place) -> Faults:
    """End ``patch --write`` and ``undo`` at any moment, by each signal; then look at all files."""
    program = Program(place)
    yield program.ended.fault() or ("" if program.new != program.old else "nothing was changed")
    signals = (signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in range(25 * place.many):
        program.reset()
        which, undo = signals[number % len(signals)], number % 4 == 3  # noqa: PLR2004 - each fourth
        arguments = [*program.arguments, "--write"]
        if undo:
            command(arguments, place.root)
            arguments = ["undo"]
        running = start(arguments, place.root)
        journal, kept = place.root / "state" / "npufix" / "writes", int(undo)
        while place.random.random() and running.is_alive():
            if journal.is_dir() and len(list(journal.iterdir())) > kept:  # it begins to write
                break
            time.sleep(0.0005)
        time.sleep(place.random.choice((0.0, place.random.uniform(0, 0.02))))
        running.signal(which)
        ended = running.wait()
        fault = _how_it_ended(ended, which) or _torn(program)
        if ended.status > 0:  # it had the time to put back what it had begun
            fault = fault or program.fault()
        again = command(["undo", "--list"], place.root)
        yield fault or again.fault() or program.fault()


def _how_it_ended(ended: Ended, which: int) -> str:
    if which == signal.SIGKILL:
        return ""
    wanted = 130 if which == signal.SIGINT else 128 + which
    if ended.status == wanted and ended.err.strip() != "npufix: interrupted":
        return f"says {ended.err[-200:]!r}"
    # At its very end Python has given the signals back.
    return ended.fault(expected=frozenset({0, 1, wanted, -which}))


def _torn(program: Program) -> str:
    now = program.read()
    torn = [n for n in program.old if now.get(n) not in (program.old[n], program.new[n])]
    return f"{torn[0]} is neither old nor new" if torn else ""


def full_tmpfs(place: Place) -> Faults:
    """Write on a small file system that is full, at each level; only root can mount it."""
    out, into = os.pipe()
    child = os.fork()
    if not child:
        os.close(out)
        with os.fdopen(into, "w") as pipe:
            json.dump(_on_a_full_disk(place), pipe)
            pipe.flush()
            os._exit(0)
    os.close(into)
    with os.fdopen(out) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    yield from json.loads(said) if said else ["the writer died"]


def _on_a_full_disk(place: Place) -> list[str]:
    from npufix.rewriters.write.recovering import recover  # noqa: PLC0415 - after the fork
    from npufix.rewriters.write.writing import WriteError, write  # noqa: PLC0415 - same

    disk, found = place.folder(), []
    if not _mounted(disk):
        sys.stderr.write("  full tmpfs: skipped, only root may mount one\n")
        return []
    os.environ["XDG_STATE_HOME"] = str(disk / "state")
    for free in range(0, 320, max(1, 5 // place.many)):
        changes = _three(disk)
        with (disk / "ballast").open("wb") as ballast:
            _fill(ballast.fileno(), disk, free << 10)
        refused = ""
        try:
            write(changes, disk / "tree")
        except WriteError as error:
            refused = error.message
        texts = {change.path.read_bytes()[:3] for change in changes}
        (disk / "ballast").unlink()
        recover()
        left = [p.name for p in (disk / "tree").iterdir() if p.suffix != ".py"]
        fault = "" if texts == ({b"old"} if refused else {b"new"}) else f"{texts} with {free} KiB"
        fault = fault or (f"{left} left with {free} KiB" if left else "")
        if refused and "nothing was written" not in refused:
            fault = fault or refused
        found.append(fault)
        for folder in ("tree", "state"):
            shutil.rmtree(disk / folder, ignore_errors=True)
    return found


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


def _three(disk: Path) -> list[FileChange]:
    from npufix.rewriters.write.patch import FileChange  # noqa: PLC0415 - after the fork

    (disk / "tree").mkdir()
    changes = []
    for name in ("a.py", "b.py", "c.py"):
        change = FileChange(disk / "tree" / name, name, b"old" * 9000, b"new" * 9000)
        change.path.write_bytes(change.before)
        changes.append(change)
    return changes


def _fill(handle: int, disk: Path, free: int) -> None:
    """Let a file grow until so many bytes are free."""
    now = os.statvfs(disk)
    os.posix_fallocate(handle, 0, max(4096, now.f_bavail * now.f_bsize - free))


def two_writers(place: Place) -> Faults:
    """Two whole ``patch --write`` at once on one tree, then two ``undo``: one of each does it."""
    program = Program(place)
    for _ in range(6 * place.many):
        program.reset()
        for arguments, wanted in (
            ([*program.arguments, "--write"], program.new),
            (["undo"], program.old),
        ):
            running = [start(arguments, place.root) for _ in range(2)]
            ends = [each.wait() for each in running]
            faults = [ended.fault(expected=frozenset({0, 2})) for ended in ends]
            fault = next(filter(None, faults), "")
            if all(ended.status for ended in ends):
                fault = fault or f"none succeeded: {ends[0].err[-200:]}"
            yield fault or ("" if program.read() == wanted else program.fault() or "not changed")
