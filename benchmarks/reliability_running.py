"""Commands of npufix in processes that are forked: they start at once, and can be spoilt first."""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

SECONDS = 90.0
_NOT_LOADED = ("__main__", ".running", ".modules", "dask_executor", "vendor")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_EXPECTED = frozenset({0, 1, 2, 3})
_KILLED_AS_WANTED = (-signal.SIGKILL, 130)


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said."""

    status: int
    """As of a shell; negative: the signal that ended it."""
    out: str
    err: str
    left: tuple[str, ...] = ()
    """What it has left in the folder for temporary files."""

    def fault(self, *, expected: frozenset[int] = _EXPECTED) -> str:
        """Return what is wrong with how it ended, "" if nothing is."""
        if "Traceback (most recent call last)" in self.err:
            return "traceback: " + self.err.strip().splitlines()[-1][:200]
        if self.status not in expected:
            return f"exit {self.status}: {self.err.strip()[-200:]}"
        if found := _CONTROL.search(self.out + self.err):
            return f"prints {found[0]!r}"
        if self.status and not (self.err + self.out).strip():
            return "fails without a word"
        if self.left:
            return f"leaves {self.left[0]} behind"
        return ""


@dataclass
class Running:
    """A command under way."""

    pid: int
    folder: Path
    start: float
    pipes: tuple[int, int]
    """Out and err: no files, which a full disk would cut."""

    def wait(self, seconds: float = SECONDS) -> Ended:
        """Wait for the end, and end it where it does not come."""
        said = bytearray(), bytearray()
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            for pipe, text in zip(self.pipes, said, strict=True):
                with contextlib.suppress(BlockingIOError):
                    while part := os.read(pipe, 1 << 16):
                        text.extend(part)
            if pid:
                break
            if time.monotonic() - self.start > seconds:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                return Ended(-int(signal.SIGALRM), "", f"not done after {seconds:.0f} s")
            time.sleep(0.002)
        code = os.waitstatus_to_exitcode(status)
        for pipe in self.pipes:
            os.close(pipe)
        texts = [text.decode("utf-8", "replace") for text in said]
        killed = code in _KILLED_AS_WANTED[:1]
        left = () if killed else _left(self.folder / "tmp")
        return Ended(code, *texts, left)

    def is_alive(self) -> bool:
        """Tell whether it has not ended yet."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def signal(self, number: int) -> None:
        """Send a signal; one that has ended does not mind."""
        if self.is_alive():
            os.kill(self.pid, number)


def load() -> None:
    """Load all readers and reports once, so that a forked command starts at once."""
    for name in ("profiling_parsers", "reports", "rules", "advisor"):
        package = importlib.import_module(f"npufix.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"npufix.{name}."):
            if not any(part in module.name for part in _NOT_LOADED):
                importlib.import_module(module.name)


def start(
    arguments: Sequence[object],
    root: Path,
    *,
    environment: Mapping[str, str] | None = None,
    spoil: Callable[[], object] = lambda: None,
) -> Running:
    """Start a command whose home, cache and temporary files are below ``root``."""
    folder = Path(tempfile.mkdtemp(dir=root, prefix="run"))
    (folder / "tmp").mkdir()
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    pid = os.fork()
    if pid:
        for ended in (out_end, err_end):
            os.close(ended)
        for pipe in (out, err):
            os.set_blocking(pipe, False)
        return Running(pid, folder, time.monotonic(), (out, err))
    status = 70
    try:
        os.dup2(out_end, 1)
        os.dup2(err_end, 2)
        for pipe in (out, err, out_end, err_end):
            os.close(pipe)
        status = _child([str(argument) for argument in arguments], folder, root, environment, spoil)
    finally:
        os._exit(status)


def _child(
    arguments: list[str],
    folder: Path,
    root: Path,
    environment: Mapping[str, str] | None,
    spoil: Callable[[], object],
) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as long as it
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - same
    places = {"TMPDIR": folder / "tmp", "XDG_CACHE_HOME": root / "cache", "HOME": root / "home"}
    os.environ.update({name: str(path) for name, path in places.items()})
    os.environ["XDG_STATE_HOME"] = str(root / "state")
    os.environ.update(environment or {})
    tempfile.tempdir = None
    sys.argv = ["npufix", *arguments]
    from npufix.advisor.commands.cli import main  # noqa: PLC0415 - after the environment is set

    code: object
    try:
        spoil()
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code
    except BaseException:  # noqa: BLE001 - what Python itself would print
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        code = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # noqa: PERF203 - of two
            code = code or 120
    return code if isinstance(code, int) else int(bool(code))


def real_command(
    arguments: Sequence[object], root: Path, environment: Mapping[str, str], stop_after: float = 0.0
) -> Ended:
    """Run a command as a user does, in a process of its own from the start; perhaps stop it."""
    folder = Path(tempfile.mkdtemp(dir=root, prefix="run"))
    places = {"TMPDIR": folder, "XDG_CACHE_HOME": root / "cache", "XDG_STATE_HOME": root / "state"}
    process = subprocess.Popen(
        [sys.executable, "-m", "npufix.advisor", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **{name: str(path) for name, path in places.items()}, **environment},
    )
    if stop_after:
        time.sleep(stop_after)
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS)
    left = _left(folder)
    texts = (text.decode("utf-8", "replace") for text in (out, err))
    return Ended(process.returncode, *texts, left)


def _left(folder: Path) -> tuple[str, ...]:
    """Return what is in a folder for temporary files, but for the home of those without one."""
    own = f"npufix-{os.getuid()}"
    return tuple(sorted(path.name for path in folder.iterdir() if path.name != own))


def command(arguments: Sequence[object], root: Path, **more: object) -> Ended:
    """Run a command to its end."""
    return start(arguments, root, **more).wait()  # type: ignore[arg-type]
