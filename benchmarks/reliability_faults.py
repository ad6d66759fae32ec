"""The faults: each function spoils something, runs commands and yields what went wrong, or ""."""

from __future__ import annotations

import os
import resource
import signal
import time
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import reliability_hostile, reliability_patches, reliability_writing
from benchmarks.fuzz import mutations
from benchmarks.generator.dump import write_ranks
from benchmarks.reliability_inputs import (
    JSON,
    SMALL,
    Place,
    encodings,
    files,
    locales,
    mutated_generated_dumps,
    mutated_real_dumps,
    not_json,
    special_files,
    symlinks,
    windows,
)
from benchmarks.reliability_running import Ended, command, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Faults = Iterator[str]
    Fault = Callable[["Place"], Faults]


def killed_reports(place: Place) -> Faults:
    """``kill -9`` while a report and the cache are written: each is whole, old or not there."""
    job = place.folder()
    write_ranks(SMALL, job)
    report = job / "report.json"
    wanted = command(["diagnose", job, JSON, "--no-cache"], place.root).out
    for _ in range(8 * place.many):
        report.write_text("{}")
        running = start(["diagnose", job, "-o", f"json={report}"], place.root)
        time.sleep(place.random.uniform(0.0, 1.2))
        running.signal(signal.SIGKILL)
        ended = running.wait()
        text = report.read_text()
        yield "" if text in {"{}", wanted} else f"a torn report, {len(text)} bytes ({ended.status})"
    again = command(["diagnose", job, JSON], place.root)
    yield again.fault() or ("" if again.out == wanted else "another result after the kills")


def full_disk(place: Place) -> Faults:
    """Files may grow to so many bytes only; standard output is a full device."""
    dump = place.dump()
    kinds = ("json", "html", "csv", "xlsx", "sarif", "perfetto")
    for most in (0, 1, 1000, 5000):
        for kind in kinds:
            out = place.folder()
            target = out / ("tables" if kind == "csv" else f"report.{kind}")

            def limit(most: int = most) -> None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

            ended = command(["diagnose", dump, "-o", f"{kind}={target}"], place.root, spoil=limit)
            parts = [file for file in files(out) if file.suffix == ".tmp" or file.name[0] == "."]
            fault = ended.fault(expected=frozenset({0, 2, 120}))
            fault = f"leaves {parts[0].name}" if parts else fault
            if not fault and kind == "json" and target.exists():
                fault = not_json(Ended(0, target.read_text(), ""))
            yield fault or ("" if ended.status or target.exists() else "wrote nothing, says 0")
    for arguments in (["diagnose", dump], ["diagnose", dump, JSON], ["rules"], ["--help"]):
        ended = command(
            arguments, place.root, spoil=lambda: os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
        )
        yield (
            ended.fault(expected=frozenset({2, 120}))
            if ended.status not in {2, 120}
            else ("" if "Traceback" not in ended.err else ended.fault())
        )


def read_only_dump(place: Place) -> Faults:
    """Nothing is written into a dump or a source, and both may be read-only."""
    dump, source = place.dump(), place.source()
    for folder in (dump, source):
        for path in (*folder.rglob("*"), folder):
            path.chmod(0o555 if path.is_dir() else 0o444)
    before = _state(dump), _state(source)
    for arguments in (
        ["diagnose", dump], ["diagnose", dump, "--source", source, JSON], ["scan", source],
        ["diagnose", dump, "-o", f"html={place.folder() / 'p.html'}"],
    ):  # fmt: skip
        ended = command(arguments, place.root)
        touched = (_state(dump), _state(source)) != before
        yield ended.fault() or ("the folder was touched" if touched else "")
    for path in (dump, *dump.rglob("*"), source):
        path.chmod(0o755)


def _state(folder: Path) -> dict[str, tuple[int, int, int]]:
    return {
        str(path): (stat.st_size, stat.st_mtime_ns, stat.st_mode)
        for path in sorted(folder.rglob("*"))
        for stat in [path.lstat()]
    }


def unwritable_cache(place: Place) -> Faults:
    """Make the folders of cache, state and home files, devices, relative, or nobody's."""
    job, source = place.folder(), place.source()
    write_ranks(SMALL, job)
    file = place.folder() / "file"
    file.write_text("x")
    for where in (str(file), "/dev/null/x", "/proc/x", "relative", "", "/sys", str(file) + "\n"):
        home = {"XDG_CACHE_HOME": where, "XDG_STATE_HOME": where, "HOME": where or "/dev/null"}
        for arguments in (["diagnose", job], ["scan", source]):
            yield command(arguments, place.root, environment=home).fault()


def damaged_cache(place: Place) -> Faults:
    """Change what is kept of ranks: the result is the same."""
    job = place.folder()
    write_ranks(SMALL, job)
    wanted = command(["diagnose", job, JSON, "--no-cache"], place.root).out
    cache = place.folder()
    for _ in range(6 * place.many):
        command(["diagnose", job, JSON], place.root, environment={"XDG_CACHE_HOME": str(cache)})
        for entry in files(cache):
            data = entry.read_bytes()
            entry.write_bytes(mutations.of_bytes(place.random, data, [data]))
        ended = command(
            ["diagnose", job, JSON], place.root, environment={"XDG_CACHE_HOME": str(cache)}
        )
        yield ended.fault() or ("" if ended.out == wanted else "another result")


def two_at_once(place: Place) -> Faults:
    """Four commands at once read one job with one cache; three writers write one tree."""
    job = place.folder()
    write_ranks(SMALL, job)
    wanted = command(["diagnose", job, JSON, "--no-cache"], place.root).out
    for _ in range(2 * place.many):
        cache = {"XDG_CACHE_HOME": str(place.folder())}
        running = [start(["diagnose", job, JSON], place.root, environment=cache) for _ in range(4)]
        for ended in [each.wait() for each in running]:
            yield ended.fault() or ("" if ended.out == wanted else "another result")
    for _ in range(10 * place.many):
        yield _writers(place.folder())


def _writers(root: Path) -> str:
    """Let three processes write the same files at once: what is there is of one of them."""
    from npufix.rewriters.write.patch import FileChange  # noqa: PLC0415 - before the fork
    from npufix.rewriters.write.writing import WriteError, write  # noqa: PLC0415 - same

    names = [f"{letter}.py" for letter in "abcd"]
    for name in names:
        (root / name).write_bytes(b"old")
    children = []
    for number in range(3):
        pid = os.fork()
        if not pid:
            os.environ["XDG_STATE_HOME"] = f"{root}.state"
            made = [FileChange(root / n, n, b"old", b"%d" % number * 5000) for n in names]
            status = 1
            try:
                write(made, root)
                status = 0
            except WriteError:
                status = 2
            finally:
                os._exit(status)
        children.append(pid)
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    contents = {(root / name).read_bytes() for name in names}
    strangers = {path.name for path in root.iterdir()} - set(names)
    if codes.count(0) != 1 or set(codes) - {0, 2}:
        return f"writers ended with {codes}"
    return "" if len(contents) == 1 and not strangers else f"{len(contents)} texts, {strangers}"


def clock_jumps(place: Place) -> Faults:
    """Set times of files to the future or before 1970; let clocks stand, jump and run back."""
    job, source = place.folder(), place.source()
    write_ranks(SMALL, job)
    wanted = command(["diagnose", job, JSON, "--no-cache"], place.root).out
    for moment in (0, -(10**9), 2**31, 2**33, 9 * 10**9):
        for file in (*files(job), *files(source), *files(place.root / "cache")):
            os.utime(file, (moment, moment))
        ended = command(["diagnose", job, JSON], place.root)
        yield ended.fault() or ("" if ended.out == wanted else "another result")
        yield command(["scan", source], place.root).fault()
    for clock in (lambda: 0.0, lambda: -1e9, lambda: 1e11, partial(place.random.uniform, 0, 1e10)):

        def jump(clock: Callable[[], float] = clock) -> None:
            time.time = clock
            time.monotonic = clock
            time.perf_counter = clock

        ended = command(["diagnose", job, JSON], place.root, spoil=jump)
        yield ended.fault() or ("" if ended.out == wanted else "another result")


def interrupts(place: Place) -> Faults:
    """Ctrl-C or ``kill`` at any moment: its exit status, one line, no part of anything is left."""
    job, source, one, other = place.folder(), place.source(), place.dump(), place.dump()
    write_ranks(SMALL, job)
    command(["baseline", "update", one, "-o", place.root / "baseline.json"], place.root)
    for number in range(3 * place.many):
        for which in (signal.SIGINT, signal.SIGTERM):
            out = place.folder()
            for arguments, seconds in (
                (["diagnose", job, "--no-cache", "-o", f"html={out / 'p.html'}"], 1.0),
                (["diagnose", job, "--source", source, "-o", f"json={out / 'r.json'}"], 1.0),
                (["scan", source, "--json"], 0.1),
                (["patch", "--source", source, "--no-cache", "-o", out / "p.patch"], 3.0),
                (["compare", one, other, "-o", f"html={out / 'c.html'}"], 1.0),
                (["redact", one, "-o", out / f"copy{number}"], 0.3),
                (["gate", one, "--baseline", place.root / "baseline.json"], 0.5),
            ):
                running = start(arguments, place.root)
                time.sleep(place.random.uniform(0.02, seconds))
                running.signal(which)
                yield _interrupted(running.wait(), which, out)


def _interrupted(ended: Ended, which: int, out: Path) -> str:
    wanted = 130 if which == signal.SIGINT else 128 + which
    if ended.status == -which:
        # At its very end Python has given the signals back.
        return "" if ended.out or files(out) else "ended without cleaning up"
    fault = ended.fault(expected=frozenset({0, 1, wanted}))
    if not fault and ended.status == wanted:
        left = [file.name for file in files(out) if file.name.startswith(".")]
        fault = f"leaves {left}" if left else ""
        if ended.err.strip().splitlines()[-1:] != ["npufix: interrupted"]:
            fault = f"says {ended.err[-200:]!r}"
    return fault


FAULTS: dict[str, Fault] = {
    "mutated real dumps": mutated_real_dumps,
    "mutated generated dumps": mutated_generated_dumps,
    "kill -9 at the lines of a write": reliability_writing.killed_lines,
    "patch --write and undo, ended": reliability_writing.killed_commands,
    "kill -9 during a report": killed_reports,
    "full disk": full_disk,
    "full disk, a write": reliability_writing.full_tmpfs,
    "two patch --write at once": reliability_writing.two_writers,
    "git apply of patches": reliability_patches.patches,
    "read-only dump and source": read_only_dump,
    "unwritable cache and home": unwritable_cache,
    "damaged cache": damaged_cache,
    "several npufix at once": two_at_once,
    "clock jumps": clock_jumps,
    "Ctrl-C and kill": interrupts,
    "encodings": encodings,
    "locales": locales,
    "Windows line ends and paths": windows,
    "symbolic links": symlinks,
    "special files": special_files,
    "bombs and endless fields": reliability_hostile.bombs,
    "hostile databases": reliability_hostile.databases,
    "hostile dumps of the tests": reliability_hostile.hostile_dumps,
    "attacks of verified code": reliability_hostile.attacks,
}
