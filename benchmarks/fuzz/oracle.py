"""What has to hold whatever the input: expected errors only, plain numbers, plain text."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from npufix.advisor.commands.cli import _explain_error, cli
from npufix.advisor.commands.run_outputs import DiagnosedRun
from npufix.profiling_parsers.cluster.summary import SummaryError
from npufix.profiling_parsers.signals import SCHEMAS
from npufix.reports.formats import Result, formats
from npufix.reports.report import from_json, to_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.advisor.diagnose.result import Diagnosis
    from npufix.profiling_parsers.profile import Profile

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_WRITING = frozenset(
    {"os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "os.link",
     "os.symlink", "os.chown", "os.utime"}
)  # fmt: skip
_FORBIDDEN = frozenset(
    {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect", "socket.bind"}
)


class Broken(AssertionError):  # noqa: N818 - it is what is broken
    """An input after which something does not hold that always has to."""


class Watch:
    """Notes what an input makes the process do that no input may."""

    _all: ClassVar[list[Watch]] = []
    """Those that are listening; a hook of Python's stays for good, so one serves them all."""

    def __init__(self, allowed: Path) -> None:
        self._allowed = (str(allowed.resolve()), tempfile.gettempdir(), "/dev/")
        self.seen: list[str] = []

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Note what happens meanwhile."""
        if not self._hooked:
            self._hooked.append(True)
            sys.addaudithook(_hear)
        self._all.append(self)
        try:
            yield
        finally:
            self._all.remove(self)

    _hooked: ClassVar[list[bool]] = []

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Judge one event of Python's audit."""
        if event == "subprocess.Popen" and str(arguments[0]).rpartition("/")[2] == "git":
            return
        if event in _FORBIDDEN:
            self.seen.append(f"{event} {arguments[:2]!r}")
        elif event == "open":
            path, mode, flags = arguments
            writes = isinstance(mode, str) and set(mode) & set("wax+")
            writes = writes or (mode is None and isinstance(flags, int) and flags & 3)
            if writes and isinstance(path, (str, bytes)) and not self._is_allowed(path):
                self.seen.append(f"open {path!r} {mode}")
        elif event in _WRITING and not self._is_allowed(_whole(event, arguments)):
            self.seen.append(f"{event} {arguments[0]!r}")

    def _is_allowed(self, path: Any) -> bool:  # noqa: ANN401 - of audit events
        if not isinstance(path, (str, bytes)):
            return True  # a number of a file that was opened, and judged, before
        text = path.decode("utf-8", "replace") if isinstance(path, bytes) else path
        return str(Path(text).absolute()).startswith(self._allowed) or "__pycache__" in text


def _whole(event: str, arguments: tuple[Any, ...]) -> Any:  # noqa: ANN401 - of audit events
    """Return a path as a whole where it is told from an open folder on."""
    if event not in {"os.remove", "os.rmdir"} or arguments[1] < 0:
        return arguments[0]
    return os.path.join(os.readlink(f"/proc/self/fd/{arguments[1]}"), os.fsdecode(arguments[0]))  # noqa: PTH115, PTH118 - as events have it


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    for watch in Watch._all:  # noqa: SLF001 - of the same thing
        watch.hear(event, arguments)


def expected(error: BaseException) -> bool:
    """Tell whether an error is one that the command line turns into a line with a remedy."""
    if isinstance(error, SummaryError):
        return True
    if not isinstance(error, Exception):
        return False
    line = _explain_error(error)
    if line is not None and not line.strip(" -"):
        raise Broken(f"{type(error).__name__} says nothing")
    return line is not None


_SIGNED = frozenset(
    {f"{table}.size_bytes" for table in ("read_operator_memory", "signals.allocations")}
    | {f"{table}.{left}_ns" for table in ("read_communication", "signals.collectives")
       for left in ("wait", "synchronization", "idle")}
    | {"read_step_trace_time.overlapped_ns", "steps.overlapped_ns"}
)  # fmt: skip
"""A block that was only given back has a negative size; what is left of a time may be negative,
and so may what of a collective overlaps, where it spans two steps."""


def check_table(name: str, frame: Any) -> None:  # noqa: ANN401 - pandas is loaded by who reads
    """Hold the numbers of a table against what every table promises."""
    for column in frame.columns:
        values = frame[column]
        if values.dtype.kind == "f" and np.isinf(values.to_numpy()).any():
            raise Broken(f"{name}.{column} is not finite")
        if values.dtype.kind in "if" and column != "step" and f"{name}.{column}" not in _SIGNED:
            numbers = values.to_numpy(dtype="float64", na_value=0.0)
            if (numbers < -1).any():
                raise Broken(f"{name}.{column} is negative: {numbers.min()}")


def check_profile(profile: Profile) -> None:
    """Hold a profile against what ``Profile`` and ``SCHEMAS`` promise."""
    kernels = profile.kernels
    if kernels.empty:
        raise Broken("a profile without kernels")
    if (kernels["duration_ns"] < 0).any() or (kernels["start_ns"].diff().dropna() < 0).any():
        raise Broken("kernels out of order or of negative length")
    for column, most in (("stack", len(profile.stacks)), ("host_op", len(profile.host_ops))):
        if not kernels[column].between(-1, most - 1).all():
            raise Broken(f"kernels.{column} leads nowhere")
    tables = {name: getattr(profile, name) for name in ("kernels", "host_ops", "steps")}
    tables["op_statistic"] = profile.op_statistic
    for name, frame in tables.items():
        check_table(name, frame)
    for name in SCHEMAS:
        frame = getattr(profile.signals, name)
        kinds = {key: str(kind) for key, kind in frame.dtypes.items()}
        if kinds != dict(SCHEMAS[name]):
            raise Broken(f"signals.{name} has other columns: {kinds}")
        check_table(f"signals.{name}", frame)
    for problem in profile.problems:
        if not problem.what or not problem.remedy:
            raise Broken(f"a problem without what or remedy: {problem}")


def check_text(text: str, where: str) -> None:
    """Refuse what a terminal would obey, or what could not be printed at all."""
    if found := _CONTROL.search(text):
        at = found.start()
        raise Broken(f"{where} holds {found[0]!r}: {text[max(0, at - 30) : at + 30]!r}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Broken(f"{where} holds half a character: {error}") from error


def check_command(*arguments: object) -> None:
    """Run a command in this process, and look at what it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        cli.main([str(argument) for argument in arguments], standalone_mode=False)
    check_text(out.getvalue(), str(arguments[0]))


def check_diagnosis(result: Diagnosis, *, whole: bool) -> None:
    """Render a diagnosis in every format, and read it back."""
    made = result.report
    text = to_json(made)

    def refuse(name: str) -> None:
        raise Broken(f"the report holds {name}")

    json.loads(text, parse_constant=refuse)
    if from_json(text) != made:
        raise Broken("the report reads back as another one")
    asked = Result(made, details=True, run=DiagnosedRun(result, None))
    for name, one in formats().items() if whole else [("terminal", formats()["terminal"])]:
        shown = one.render(asked) if one.takes(asked) else None
        if isinstance(shown, str):
            check_text(shown.replace("\r", "") if name == "github" else shown, name)
