"""Commands that are ended at any moment, and what is there afterwards; two that write at once."""

from __future__ import annotations

import shutil
import signal
import time
from typing import TYPE_CHECKING

import pytest
from benchmarks.generator.dump import write_ranks
from commands import JSON, MANY, SMALL, Ended, Npufix, dump, files, source
from programs import MASKED

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

pytestmark = pytest.mark.xdist_group("interrupted")
_SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def check_end(ended: Ended, which: int) -> bool:
    """Look at how a command ended after a signal; tell whether it had the time to tidy up."""
    if which == signal.SIGKILL:
        return False
    wanted = 130 if which == signal.SIGINT else 128 + which
    # By the signal itself before npufix listens, and when Python has given the signals back.
    ended.check({0, 1, 3, wanted, -which})
    if ended.status == wanted:
        assert ended.err.strip().splitlines()[-1:] == ["npufix: interrupted"]
    return ended.status >= 0


@pytest.mark.fault(kind="kill -9 during a report")
def test_a_report_is_whole_whenever_it_is_killed(
    npufix: Npufix, job: Path, random: Random, record_property: Callable[[str, object], None]
) -> None:
    """So is the cache: the result is the same afterwards."""
    report = npufix.root / "report.json"
    begun = time.monotonic()
    wanted = npufix("diagnose", job, JSON, "--no-cache").out
    took = time.monotonic() - begun
    times = 8 * MANY or 3
    record_property("attempts", times + 1)
    for _ in range(times):
        report.write_text("{}")
        running = npufix.start("diagnose", job, "-o", f"json={report}")
        time.sleep(random.uniform(0.0, took))
        running.signal(signal.SIGKILL)
        running.wait()
        assert report.read_text() in {"{}", wanted}
    assert npufix("diagnose", job, JSON).out == wanted


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Npufix:
    """Return a folder with a job, two dumps, a source and a baseline."""
    npufix = Npufix(tmp_path_factory.mktemp("interrupted"))
    write_ranks(SMALL, npufix.root / "job")
    for name in ("one", "other"):
        dump(npufix.root).rename(npufix.root / name)
    source(npufix.root).rename(npufix.root / "source")
    npufix("baseline", "update", npufix.root / "one", "-o", npufix.root / "baseline.json")
    return npufix


_COMMANDS = (
    "diagnose {0}/job --no-cache -o html={1}/p.html",
    "diagnose {0}/job --source {0}/source -o json={1}/r.json",
    "scan {0}/source --json",
    "patch --source {0}/source --no-cache -o {1}/p.patch",
    "compare {0}/one {0}/other -o html={1}/c.html",
    "redact {0}/one -o {1}/copy",
    "gate {0}/one --baseline {0}/baseline.json",
)


@pytest.mark.fault(kind="Ctrl-C and kill")
@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM] * (3 * MANY or 1))
@pytest.mark.parametrize("command", _COMMANDS if MANY else _COMMANDS[::3])
def test_an_interrupt_leaves_no_part_of_anything(
    place: Npufix, tmp_path: Path, random: Random, command: str, which: int
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    running = place.start(*command.format(place.root, out).split())
    time.sleep(random.uniform(0.02, 3.0 if command.startswith("patch") else 0.8))
    running.signal(which)
    ended = running.wait()
    if check_end(ended, which):
        assert [file for file in files(out) if file.name.startswith(".")] == []


class Program:
    """A program with something to change in each of its files, and what it is changed to."""

    def __init__(self, npufix: Npufix) -> None:
        self.npufix, self.folder = npufix, npufix.root / "program"
        self.old = dict.fromkeys(("m0.py", "m1.py", "m2.py", "b/m.py"), MASKED.encode())
        self.write = ("patch", "--source", self.folder, "--on", "reference", "--write")
        self.reset()
        npufix(*self.write)
        self.new = self.read()
        assert self.new != self.old
        self.reset()

    def reset(self) -> None:
        """Put the old text there, and forget all writes; verdicts stay known."""
        for folder in (self.folder, self.npufix.root / "state"):
            shutil.rmtree(folder, ignore_errors=True)
        for name, text in self.old.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(text)

    def read(self) -> dict[str, bytes]:
        """Return what is there, files of npufix as well."""
        return {f.relative_to(self.folder).as_posix(): f.read_bytes() for f in files(self.folder)}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Return a program of which all verdicts are known."""
    pytest.importorskip("torch", reason="torch is needed to verify changes")
    return Program(Npufix(tmp_path_factory.mktemp("program")))


@pytest.mark.fault(kind="patch --write and undo, ended")
@pytest.mark.parametrize("number", range(25 * MANY) if MANY else (0, 2, 3, 4))
def test_a_write_or_an_undo_that_is_ended_is_all_or_nothing(
    program: Program, random: Random, number: int
) -> None:
    program.reset()
    npufix, which, undo = program.npufix, _SIGNALS[number % len(_SIGNALS)], number % 4 == 3
    if undo:
        npufix(*program.write)
    running = npufix.start(*(["undo"] if undo else program.write))
    journal = npufix.root / "state" / "npufix" / "writes"
    while running.is_alive() and not (journal.is_dir() and len([*journal.iterdir()]) > undo):
        time.sleep(0.0005)  # until it begins to write
    time.sleep(random.choice((0.0, random.uniform(0, 0.02))))
    running.signal(which)
    tidied = check_end(running.wait(), which)
    now = program.read()
    for name, text in program.old.items():
        assert now.get(name) in {text, program.new[name]}, "torn"
    if tidied:  # it had the time to put back what it had begun
        assert now in (program.old, program.new)
    npufix("undo", "--list")
    assert program.read() in (program.old, program.new)


@pytest.mark.fault(kind="two patch --write at once")
@pytest.mark.parametrize("number", range(6 * MANY or 1))
def test_of_two_commands_that_write_one_does_it(
    program: Program, number: int, record_property: Callable[[str, object], None]
) -> None:
    program.reset()
    record_property("attempts", 2)
    for arguments, wanted in ((program.write, program.new), (("undo",), program.old)):
        running = [program.npufix.start(*arguments) for _ in range(2)]
        statuses = [each.wait().check({0, 2}).status for each in running]
        assert 0 in statuses, number
        assert program.read() == wanted
