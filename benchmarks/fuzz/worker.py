"""The loop: change an input, read it, keep it if it reached a new line or broke something."""

from __future__ import annotations

import hashlib
import os
import resource
import signal
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from benchmarks.fuzz import corpus, oracle
from benchmarks.fuzz.coverage import Coverage
from benchmarks.fuzz.mutations import LONGEST

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from benchmarks.fuzz.targets import Target

SECONDS = 20.0
"""Of the processor, coverage included: what takes longer hangs."""
MEBIBYTES = 1024
"""What one input may take beyond what the libraries took before it."""
_WHOLE_EACH = 100
_THOROUGH_EACH = 300
_MUCH_NEW = 4
"""So many new lines of a reader make what follows behind it worth its time."""
_SMALLER_TRIES = 150


class _TooSlow(BaseException):
    """An input took too long; no reader may catch this."""


@dataclass
class Crash:
    """One way to break a reader, with the smallest input found so far."""

    where: str
    text: str
    data: bytes
    times: int = 1


@dataclass
class Outcome:
    """What fuzzing one target has come to."""

    target: str
    inputs: int = 0
    refused: int = 0
    seconds: float = 0.0
    lines_of_seeds: int = 0
    lines: int = 0
    kept: int = 0
    slowest: float = 0.0
    largest: float = 0.0
    """MiB that one input took."""
    crashes: dict[str, Crash] = field(default_factory=dict)


class Fuzzer:
    """Fuzzes one target; the same seed and corpus try the same inputs in the same order."""

    def __init__(self, target: Target, folder: Path, seed: int, given: Path | None = None) -> None:
        self._target = target
        self._folder = folder
        self._path = target.prepare(folder)
        self._random = Random(f"{seed} {target.name}")  # noqa: S311 - no secret
        self._coverage = Coverage()
        self._watch = oracle.Watch(folder)
        self.current = folder.parent / f"{target.name}.current"
        self.outcome = Outcome(target.name)
        self._corpus: list[bytes] = []
        self._seeds = target.seeds()
        for name in target.real:
            self._seeds += corpus.given(given, name)
        own = given / target.name if given else None
        self._seeds += [file.read_bytes() for file in sorted(own.glob("*"))] if own else []

    def run(self, seconds: float, inputs: int, kept: Path | None = None) -> Outcome:
        """Try the first inputs, then changed ones, until the time or the number is up."""
        start, parent = time.monotonic(), os.getppid()
        before = signal.signal(signal.SIGPROF, _stop)
        try:
            for data in self._seeds[:1]:  # what is loaded for the first input is not of its doing
                self._broken_by(data, whole=True, watched=False)
            self.outcome.slowest = self.outcome.largest = self.outcome.refused = 0
            for number, data in enumerate(self._seeds):
                self._try(data, whole=not number)
                self._corpus.append(data)
            self.outcome.lines_of_seeds = len(self._coverage.lines)
            while self.outcome.inputs < inputs and time.monotonic() - start < seconds:
                self._step(kept)
                if os.getppid() != parent:  # nobody waits for this any more
                    break
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)
        self.outcome.seconds = time.monotonic() - start
        self.outcome.lines = len(self._coverage.lines)
        self.outcome.kept = len(self._corpus)
        return self.outcome

    def _step(self, kept: Path | None) -> None:
        # What was found last leads further than the first inputs, which were changed often.
        recent = self._corpus[-20:] if self._random.randrange(2) else self._corpus
        data = self._random.choice(recent)
        for _ in range(self._random.choice((1, 1, 1, 2, 3, 6))):
            data = self._target.mutate(self._random, data, self._corpus)[:LONGEST]
        whole = self.outcome.inputs % _WHOLE_EACH == 0
        new = self._try(data, whole=whole)
        if new:
            self._corpus.append(data)
            if not whole and new >= _MUCH_NEW:
                self._try(data, whole=True)
            if kept is not None:
                kept.mkdir(parents=True, exist_ok=True)
                (kept / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)

    def _try(self, data: bytes, *, whole: bool) -> int:
        """Read one input and return how many lines it was the first to reach."""
        self.outcome.inputs += 1
        self.current.write_bytes(data)
        before = len(self._coverage.lines)
        crash = self._broken_by(data, whole=whole)
        if crash is not None:
            known = self.outcome.crashes.get(crash.where)
            if known is not None:
                known.times += 1
            else:
                self.outcome.crashes[crash.where] = crash
                crash.data = self._smaller(crash, whole=whole)
        return 0 if crash else len(self._coverage.lines) - before

    def _broken_by(self, data: bytes, *, whole: bool, watched: bool = True) -> Crash | None:
        self._path.write_bytes(self._target.pack(data))
        used, start = _peak(reset=True), time.process_time()
        with self._watch.listening():
            error = self._read(whole=whole, watched=watched)
        taken = time.process_time() - start
        size = (_peak(reset=False) - used) / 1024
        self.outcome.slowest = max(self.outcome.slowest, taken)
        self.outcome.largest = max(self.outcome.largest, size)
        if self._watch.seen:
            seen, self._watch.seen = self._watch.seen, []
            return Crash(f"touches {seen[0][:80]}", "\n".join(seen), data)
        if error is None:
            return None
        try:
            if oracle.expected(error):
                self.outcome.refused += 1
                return None
        except oracle.Broken as broken:
            error = broken
        text = "".join(traceback.format_exception(error))
        return Crash(_place(error), text, data)

    def _read(self, *, whole: bool, watched: bool) -> BaseException | None:
        target = self._target
        watch = self._coverage.watch if watched else _plainly
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            watch(lambda: target.quick(self._path))
            if whole and target.whole is not None:
                call = target.whole
                thorough = self.outcome.inputs % _THOROUGH_EACH == 1
                watch(lambda: call(self._folder, thorough))
        except (Exception, _TooSlow) as error:  # noqa: BLE001 - any error is what is looked for
            return error
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        return None

    def _smaller(self, crash: Crash, *, whole: bool) -> bytes:
        """Return the shortest input that was found to break the same."""
        refused = self.outcome.refused
        data, size, tries = crash.data, max(1, len(crash.data) // 2), 0
        while size and tries < _SMALLER_TRIES:
            at = 0
            while at < len(data) and tries < _SMALLER_TRIES:
                shorter = data[:at] + data[at + size :]
                tries += 1
                found = self._broken_by(shorter, whole=whole)
                if found is not None and found.where == crash.where:
                    data, crash.text = shorter, found.text
                else:
                    at += size
            size //= 2
        self.outcome.refused = refused
        return data


def _plainly(run: Callable[[], object]) -> int:
    run()
    return 0


def limit_memory() -> None:
    """Let this process take so much more memory than it has now, and no more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (MEBIBYTES << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise _TooSlow(f"more than {SECONDS:.0f} s")


def _place(error: BaseException) -> str:
    """Name an error by its kind and the line of ours that it came through last."""
    frames = traceback.extract_tb(error.__traceback__)
    others = ("benchmarks", "/site-packages/", "/lib/python")
    ours = [frame for frame in frames if not any(part in frame.filename for part in others)]
    last = (ours or list(frames))[-1]
    if isinstance(error, _TooSlow):  # which line of a loop it was is chance
        return f"too slow in {last.name} of {Path(last.filename).name}"
    what = str(error)[:40] if isinstance(error, oracle.Broken) else ""
    return f"{type(error).__name__} {Path(last.filename).name}:{last.lineno} {what}".strip()


def _peak(*, reset: bool) -> int:
    """Return the most memory this process had since the last reset, KiB; 0 off Linux."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        text = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return int(text.partition("VmHWM:")[2].split()[0])
