"""The faults: each function spoils something, runs commands and yields what went wrong, or ""."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

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

    Faults = Iterator[str]
    Fault = Callable[["Place"], Faults]


def killed_writes(place: Place) -> Faults:
    """``kill -9`` at a line of ``patch --write``, and again in the recovery."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "faults"))
    import kill_points  # noqa: PLC0415 - lies beside the tests that use it

    state = os.environ.get("XDG_STATE_HOME")
    step, line = max(1, 12 // place.many), 1
    try:
        while True:
            outcome = kill_points.attempt(place.folder(), line, 1 + line * 7 % 120)
            yield "" if kill_points.is_whole(outcome) else f"line {line}: {outcome}"
            if outcome.ended:
                return
            line += step
    finally:
        os.environ.pop("XDG_STATE_HOME")
        if state is not None:
            os.environ["XDG_STATE_HOME"] = state


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
    from npufix.rewriters.patch import FileChange  # noqa: PLC0415 - before the fork
    from npufix.rewriters.writing import WriteError, write  # noqa: PLC0415 - same

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
    """Ctrl-C at any moment: exit 130, one line, no temporary file, no part of a report."""
    job, source = place.folder(), place.source()
    write_ranks(SMALL, job)
    for number in range(12 * place.many):
        out = place.folder()
        arguments = (
            ["diagnose", job, "--no-cache", "-o", f"html={out / 'p.html'}"]
            if number % 2
            else ["diagnose", job, "--source", source, "-o", f"json={out / 'r.json'}"]
        )
        running = start(arguments, place.root)
        time.sleep(place.random.uniform(0.05, 1.0))
        running.signal(signal.SIGINT)
        ended = running.wait()
        fault = ended.fault(expected=frozenset({0, 1, 130}))
        if not fault and ended.status == 130:  # noqa: PLR2004 - interrupted
            left = [file.name for file in files(out) if file.name not in {"p.html", "r.json"}]
            fault = f"leaves {left}" if left else ""
            if ended.err.strip().splitlines()[-1:] != ["npufix: interrupted"]:
                fault = f"says {ended.err[-200:]!r}"
        yield fault


FAULTS: dict[str, Fault] = {
    "mutated real dumps": mutated_real_dumps,
    "mutated generated dumps": mutated_generated_dumps,
    "kill -9 during patch --write": killed_writes,
    "kill -9 during a report": killed_reports,
    "full disk": full_disk,
    "read-only dump and source": read_only_dump,
    "unwritable cache and home": unwritable_cache,
    "damaged cache": damaged_cache,
    "several npufix at once": two_at_once,
    "clock jumps": clock_jumps,
    "Ctrl-C": interrupts,
    "encodings": encodings,
    "locales": locales,
    "Windows line ends and paths": windows,
    "symbolic links": symlinks,
    "special files": special_files,
}
