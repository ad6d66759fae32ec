"""Commands of npufix in processes that are forked: they start at once, and can be spoilt first."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pkgutil
import re
import signal
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from benchmarks.fuzz import corpus
from benchmarks.generator.dump import write_dump
from benchmarks.generator.parameters import Parameters

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from _typeshed import StrPath

    Case = TypeVar("Case")

MANY = int(os.environ.get("NPUFIX_FAULTS", "0"))
"""How much to try; without it, a few of each kind. ``benchmarks.reliability`` sets it."""
HANGING = 900.0
"""Seconds after which a command hangs, on a slow machine as well."""
SMALL = Parameters(kernels=24, steps=2, ranks=2)
JSON = "--json"
_NOT_LOADED = ("__main__", ".running", ".modules", "dask_executor", "vendor")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_NOT_SHOWN = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)


def some(cases: Sequence[Case], few: int = 3) -> Sequence[Case]:
    """Return all cases, or a few of them where not much is to be tried."""
    return cases if MANY else cases[:: -(-len(cases) // few)]


def dump(folder: Path, export: str = "text") -> Path:
    """Return a small dump in a folder of its own."""
    return write_dump(SMALL, Path(tempfile.mkdtemp(dir=folder)), export)


def source(folder: Path) -> Path:
    """Return a folder with a source file in which there is something to find."""
    made = Path(tempfile.mkdtemp(dir=folder))
    (made / "m.py").write_bytes(corpus.file("source.txt"))
    return made


def files(folder: Path) -> list[Path]:
    """Return all files below a folder."""
    return sorted(file for file in folder.rglob("*") if file.is_file())


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said."""

    status: int
    """As of a shell; negative: the signal that ended it."""
    out: str
    err: str
    left: tuple[str, ...]
    """What it has left in the folder for temporary files."""

    def check(self, expected: Collection[int] = (0, 1, 2, 3)) -> Ended:
        """Hold it against what every command promises."""
        assert "Traceback (most recent call last)" not in self.err, self.err
        assert self.status in expected, self.err
        assert not _CONTROL.search(self.out + self.err)
        assert self.status <= 0 or (self.err + self.out).strip(), "fails without a word"
        assert not self.left
        return self

    def report(self) -> object:
        """Return the report that it printed; None if it refused the input."""
        if not self.out and self.err:
            return None
        return json.loads(self.out, parse_constant=lambda name: 1 / 0)  # noqa: ARG005 - none may be


@dataclass
class Running:
    """A command under way."""

    pid: int
    temporary: Path
    pipes: tuple[int, int]
    """Out and err: no files, which a full disk would cut."""

    def wait(self) -> Ended:
        """Wait for the end; fail where it does not come."""
        said, end, pid = (bytearray(), bytearray()), time.monotonic() + HANGING, 0
        while not pid:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            for pipe, text in zip(self.pipes, said, strict=True):
                with contextlib.suppress(BlockingIOError):
                    while part := os.read(pipe, 1 << 16):
                        text.extend(part)
            if not pid and time.monotonic() > end:
                self.signal(signal.SIGKILL)
                os.waitpid(self.pid, 0)
                raise TimeoutError(f"not done after {HANGING:.0f} s")
            time.sleep(0 if pid else 0.002)
        for pipe in self.pipes:
            os.close(pipe)
        code = os.waitstatus_to_exitcode(status)
        out, err = (text.decode("utf-8", "replace") for text in said)
        own = f"npufix-{os.getuid()}"  # the home of those without one
        left = [path.name for path in self.temporary.iterdir() if path.name != own]
        return Ended(code, out, err, () if code == -signal.SIGKILL else tuple(sorted(left)))

    def is_alive(self) -> bool:
        """Tell whether it has not ended yet."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def signal(self, number: int) -> None:
        """Send a signal; one that has ended does not mind."""
        if self.is_alive():
            os.kill(self.pid, number)


class Npufix:
    """Runs commands whose home, cache and temporary files are below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        places = {"XDG_CACHE_HOME": "cache", "HOME": "home", "XDG_STATE_HOME": "state"}
        self._environment = {name: str(root / place) for name, place in places.items()}
        for place in self._environment.values():
            Path(place).mkdir(exist_ok=True)
        _load()

    def __call__(
        self, *arguments: StrPath, expected: Collection[int] = (0, 1, 2, 3),
        environment: Mapping[str, str] | None = None, spoil: Callable[[], object] = lambda: None,
    ) -> Ended:  # fmt: skip
        """Run a command to its end, and check how it ends."""
        running = self.start(*arguments, environment=environment, spoil=spoil)
        return running.wait().check(expected)

    def start(
        self, *arguments: StrPath, environment: Mapping[str, str] | None = None,
        spoil: Callable[[], object] = lambda: None,
    ) -> Running:  # fmt: skip
        """Start a command; ``spoil`` is called in its process first."""
        temporary = Path(tempfile.mkdtemp(dir=self.root, prefix="tmp"))
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of threads: those of a worker of pytest do not matter
            pid = os.fork()
        if pid:
            for ended in (out_end, err_end):
                os.close(ended)
            for pipe in (out, err):
                os.set_blocking(pipe, False)
            return Running(pid, temporary, (out, err))
        status = 70
        try:
            os.dup2(out_end, 1)
            os.dup2(err_end, 2)
            for pipe in (out, err, out_end, err_end):
                os.close(pipe)
            os.environ.update(self._environment, TMPDIR=str(temporary), **(environment or {}))
            status = _child([os.fspath(argument) for argument in arguments], spoil)
        finally:
            os._exit(status)


def _child(arguments: list[str], spoil: Callable[[], object]) -> int:
    """Be the command, as Python itself would be."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):  # a test before this one may have set them
        signal.signal(number, signal.SIG_DFL)
    warnings.resetwarnings()
    for kind in _NOT_SHOWN:
        warnings.simplefilter("ignore", kind)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as long
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - same
    tempfile.tempdir = None
    sys.argv = ["npufix", *arguments]
    from npufix.advisor.commands.cli import main

    code: object = 0
    try:
        spoil()
        main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001 - what Python itself would print
        sys.__excepthook__(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # noqa: PERF203 - of two
            code = code or 120
    return code if isinstance(code, int) else int(bool(code))


@cache
def _load() -> None:
    """Load all readers and reports once, so that a forked command starts at once."""
    for name in ("profiling_parsers", "reports", "rules", "advisor"):
        package = importlib.import_module(f"npufix.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"npufix.{name}."):
            if not any(part in module.name for part in _NOT_LOADED):
                importlib.import_module(module.name)
