"""The loop: change an input, read it, keep it if it reached a new line or broke something.

Hypothesis draws the changes, makes what breaks a reader smaller and keeps inputs in its database
of examples. It costs one or two milliseconds an input, which most readers take many times.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
import time
import traceback
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.fuzz import corpus, oracle
from benchmarks.fuzz.mutations import LONGEST
from hypothesis import HealthCheck, Phase, given, seed, settings, strategies
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.errors import Flaky

import npufix.profiling_parsers

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random
    from types import CodeType, FrameType

    from benchmarks.fuzz.targets import Target

SECONDS = 20.0
"""Of the processor, coverage included: what takes longer hangs."""
MEBIBYTES = 1024
"""What one input may take beyond what the libraries took before it."""
_BATCH = 100
"""So many inputs are made of one corpus: what hypothesis draws again has to be the same again."""
_WHOLE_EACH, _THOROUGH_EACH = 100, 3
_MUCH_NEW = 4
"""So many new lines of a reader make what follows behind it worth its time."""
_ROOT = str(Path(npufix.profiling_parsers.__file__).parents[1])


class _TooSlow(BaseException):
    """An input took too long; no reader may catch this."""


class _Found(Exception):  # noqa: N818 - what is looked for
    """An input breaks the reader in a new way."""


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

    def __init__(
        self, target: Target, folder: Path, start: int, given: Path | None = None,
        kept: Path | None = None,
    ) -> None:  # fmt: skip
        self._target, self._folder, self._start = target, folder, start
        self._path = target.prepare(folder)
        self._lines: set[tuple[str, int]] = set()
        self._missing: dict[CodeType, set[int]] = {}
        self._watch = oracle.Watch(folder)
        self.current = folder.parent / f"{target.name}.current"
        self.outcome = Outcome(target.name)
        self._sought: set[str] = set()
        self._wholes = 0
        self._kept = DirectoryBasedExampleDatabase(kept) if kept else None
        earlier = sorted(self._kept.fetch(target.name.encode())) if self._kept else []
        self._corpus = [*target.seeds(), *corpus.read_given(given, target.real), *earlier]

    def run(self, seconds: float, inputs: int) -> Outcome:
        """Try the first inputs, then changed ones, until the time or the number is up."""
        begun, parent = time.monotonic(), os.getppid()
        before = signal.signal(signal.SIGPROF, _stop)

        def is_late() -> bool:  # or nobody waits for this any more
            return time.monotonic() - begun > seconds or os.getppid() != parent

        try:
            for data in self._corpus[:1]:  # what is loaded for the first input is not of its doing
                self._find_crash(data, whole=True, watched=False)
            self.outcome.slowest = self.outcome.largest = self.outcome.refused = 0
            for number, data in enumerate(self._corpus):
                self._try(data, whole=not number)
            self.outcome.lines_of_seeds = len(self._lines)
            while self.outcome.inputs < inputs and not is_late():
                self._corpus += self._batch(is_late, inputs)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)
        self.outcome.seconds = time.monotonic() - begun
        self.outcome.lines, self.outcome.kept = len(self._lines), len(self._corpus)
        return self.outcome

    def _batch(self, is_late: Callable[[], bool], inputs: int) -> list[bytes]:
        """Try changes of what there is; return the inputs that reached new lines."""
        new: dict[bytes, int] = {}
        sought = ""  # what hypothesis makes smaller once it is found
        start = f"{self._start} {self._target.name} {self.outcome.inputs}"

        @seed(zlib.crc32(start.encode()))
        @settings(
            max_examples=_BATCH, deadline=None, database=None, report_multiple_bugs=False,
            phases=[Phase.generate, Phase.shrink], suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(strategies.randoms(use_true_random=False))
        def attempt(random: Random) -> None:
            nonlocal sought
            if is_late() or (self.outcome.inputs >= inputs and not sought):
                return
            whole, data = random.randrange(_WHOLE_EACH) == 1, self._change(random)
            reached, crash = self._try(data, whole=whole, again=bool(sought))
            if reached and not sought:
                new[data] = reached
            if crash and not sought and crash.where not in self._sought:
                self._sought.add(sought := crash.where)
            if crash and crash.where == sought:
                raise _Found

        with contextlib.suppress(_Found, Flaky):
            attempt()
        for data in [data for data, reached in new.items() if reached >= _MUCH_NEW]:
            self._try(data, whole=True)
        if self._kept:
            for data in (*new, *(crash.data for crash in self.outcome.crashes.values())):
                self._kept.save(self._target.name.encode(), data)
        return list(new)

    def _change(self, random: Random) -> bytes:
        # What was found last leads further than the first inputs, which were changed often.
        recent = self._corpus[-20:] if random.randrange(2) else self._corpus
        data = random.choice(recent)
        for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
            data = self._target.mutate(random, data, self._corpus)[:LONGEST]
        return data

    def _try(self, data: bytes, *, whole: bool, again: bool = False) -> tuple[int, Crash | None]:
        """Read one input; return how many lines it was the first to reach, and what broke.

        What is tried ``again``, to make it smaller, counts for nothing.
        """
        outcome, lines = self.outcome, len(self._lines)
        refused = outcome.refused
        self.current.write_bytes(data)
        crash = self._find_crash(data, whole=whole)
        if again:
            outcome.refused = refused
        else:
            outcome.inputs += 1
        if crash is not None:
            known = outcome.crashes.get(crash.where, crash)
            times = known.times + (known is not crash and not again)
            crash = crash if len(crash.data) < len(known.data) else known
            outcome.crashes[crash.where] = crash
            crash.times = times
        return (0 if crash else len(self._lines) - lines), crash

    def _find_crash(self, data: bytes, *, whole: bool, watched: bool = True) -> Crash | None:
        self._path.write_bytes(self._target.pack(data))
        used, start = _peak(reset=True), time.process_time()
        with self._watch.listening():
            error = self._read(whole=whole, watched=watched)
        outcome = self.outcome
        outcome.slowest = max(outcome.slowest, time.process_time() - start)
        outcome.largest = max(outcome.largest, (_peak(reset=False) - used) / 1024)
        if self._watch.seen:
            seen, self._watch.seen = self._watch.seen, []
            return Crash(f"touches {seen[0][:80]}", "\n".join(seen), data)
        if error is None:
            return None
        try:
            # The command line explains a want of memory, but inputs are small here.
            if not isinstance(error, MemoryError) and oracle.expected(error):
                outcome.refused += 1
                return None
        except oracle.Broken as broken:
            error = broken
        return Crash(_place(error), "".join(traceback.format_exception(error)), data)

    def _read(self, *, whole: bool, watched: bool) -> BaseException | None:
        target, before = self._target, sys.gettrace()
        limit = resource.getrlimit(resource.RLIMIT_AS)
        try:
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                if watched:  # what is loaded for the first input is not counted either
                    _limit_memory(limit[1])
                    sys.settrace(self._call)
                target.quick(self._path)
                if whole and target.whole is not None:
                    self._wholes += 1
                    target.whole(self._folder, self._wholes % _THOROUGH_EACH == 1)
            finally:  # the alarm may still come between the last line of a reader and this one
                signal.setitimer(signal.ITIMER_PROF, 0)
        except (Exception, _TooSlow) as error:  # noqa: BLE001 - any error is what is looked for
            return error
        finally:
            sys.settrace(before)
            resource.setrlimit(resource.RLIMIT_AS, limit)
        return None

    def _call(self, frame: FrameType, _event: str, _argument: object) -> Any:  # noqa: ANN401 - of settrace
        """Watch a function of ours until all of its lines are known."""
        code = frame.f_code
        if code not in self._missing:
            name = code.co_filename
            ours = name.startswith(_ROOT) and "benchmarks" not in name
            self._missing[code] = {line for *_, line in code.co_lines() if line} if ours else set()
        return self._line if self._missing[code] else None

    def _line(self, frame: FrameType, event: str, _argument: object) -> Any:  # noqa: ANN401 - of settrace
        missing, line = self._missing[frame.f_code], frame.f_lineno
        if event == "line" and line in missing:
            missing.discard(line)
            self._lines.add((frame.f_code.co_filename, line))
        return self._line


def _limit_memory(hard: int) -> None:
    """Let this process take so much more memory than it has now, and no more; not off Linux."""
    with contextlib.suppress(FileNotFoundError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + (MEBIBYTES << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


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
