"""A dump or a report, redacted into a new folder or file: whole, or not there."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.advisor.redact.copying import copy, learn_from, rows, texts
from npufix.advisor.redact.identifying import compile_known_names, redact
from npufix.advisor.redact.pseudonyms import Pseudonyms
from npufix.rewriters.write.user_error import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

_KNOWN = re.compile(
    r"(?:kernel_details|operator_details|operator_memory|memory_record|npu_module_mem|op_statistic"
    r"|api_statistic|step_trace_time|l2_cache|data_preprocess|op_summary\w*|task_time\w*"
    r"|communication_statistic\w*|step_trace\w*)\.csv"
    r"|(?:trace_view|communication|communication_matrix|profiler_info(?:_\d+)?|profiler_metadata"
    r"|msprof\w*|.*\.pt\.trace|.*trace.*)\.json(?:\.gz)?"
    r"|(?:ascend_(?:pytorch|mindspore)_profiler\w*|analysis|msprof_\w*|communication_analyzer)\.db"
)
"""The files of a dump that a diagnosis reads."""
_REPORTS = {".json", ".html", ".htm", ".md", ".csv", ".txt", ".xml", ".sarif", ".gz", ".db"}
_WORKER = re.compile(r"(.+?)_(\d+)_(\d{14,20})_ascend_(?:pt|ms)")
_OF_FILE = re.compile(r"(.+?)_(\d+)\.(\d+)(?:\.\d+)?\.pt\.trace\.json(?:\.gz)?")
_OURS = re.compile(r"ASCEND_PROFILER_OUTPUT|mindstudio_profiler_\w+|PROF_\w+|(?:rank|device)_?\d+")
"""Folders whose names the profiler has chosen."""


class RedactError(UserError):
    """Nothing was written: ``message`` says why, ``remedy`` what to do."""


@dataclass(slots=True)
class Redacted:
    """What was done."""

    files: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def redact_path(source: Path, target: Path) -> Redacted:
    """Write a redacted copy of a dump folder or of a file.

    Raises:
        RedactError: there is nothing to copy, the target exists, or a name could not be removed.

    """
    if target.exists() or target.is_symlink():
        raise RedactError(f"{target} exists", "name a file or folder that does not")
    found, left_out = _files(source)
    if not found:
        raise RedactError(
            f"{source}: no file of a dump or report", "give a dump folder, or a report"
        )
    names = Pseudonyms()
    names.learn("host", socket.gethostname())
    names.learn("user", Path.home().name if os.environ.get("HOME") else "")
    for path in found:
        _learn_of_names(path.relative_to(source.parent), names)
        _guard(path, lambda p: learn_from(p, names))
    places = _Places([path.relative_to(source) for path in found], names)
    beside = target.with_name(f".{target.name}.{os.getpid()}.npufix")
    try:
        for path in found:
            place = beside if source.is_file() else beside / places.of(path.relative_to(source))
            place.parent.mkdir(parents=True, exist_ok=True)
            _guard(path, lambda p, to=place: copy(p, to, names))
        _search(beside, names)
        beside.rename(target)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        beside.unlink(missing_ok=True)
        raise
    return Redacted(len(found), dict(names.counts), left_out)


def _guard(path: Path, work: object) -> None:
    try:
        work(path)  # type: ignore[operator]
    except sqlite3.Error as error:
        raise RedactError(f"{path}: {error}", "leave that file out") from error


def _files(source: Path) -> tuple[list[Path], list[str]]:
    """Return the files to copy, and the names of those that are not."""
    if source.is_file():
        return ([source], []) if source.suffix in _REPORTS else ([], [source.name])
    if not source.is_dir():
        raise RedactError(f"{source}: no such file or folder", "check the path")
    found, left_out = [], []
    for folder, folders, names in os.walk(source):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            known = _KNOWN.fullmatch(name) and path.is_file() and not path.is_symlink()
            if known:
                found.append(path)
            else:
                left_out.append(path.relative_to(source).as_posix())
    return found, left_out


def _learn_of_names(path: Path, names: Pseudonyms) -> None:
    """Note the host that the profiler names folders and files after."""
    for part in path.parts:
        if (first := _first(part)) != part:
            names.learn("host", first)


class _Places:
    """Where the copies go: folders are numbered in the order of their names, as ranks often are."""

    def __init__(self, paths: list[Path], names: Pseudonyms) -> None:
        self._names = names
        firsts = {
            _first(part)
            for path in paths
            for part in path.parts
            if _first(part) != part or not (part is path.parts[-1] or _OURS.fullmatch(part))
        }
        self._numbers = {first: at for at, first in enumerate(sorted(firsts, key=_natural), 1)}

    def of(self, path: Path) -> Path:
        """Return where the copy of a file goes."""
        return Path(*(self._part(p, p is path.parts[-1]) for p in path.parts))

    def _part(self, part: str, is_file: bool) -> str:  # noqa: FBT001 - of a path
        first = _first(part)
        if first != part:
            self._names.count("host")
            return f"host{self._numbers[first]:03}{part[len(first) :]}"
        if is_file or _OURS.fullmatch(part):
            return redact(part, self._names)
        return f"folder{self._numbers[first]:03}"


def _first(part: str) -> str:
    """Return the host that the profiler has named something after, else the whole name."""
    worker = _WORKER.fullmatch(part) or _OF_FILE.fullmatch(part)
    return worker[1] if worker else part


def _natural(text: str) -> list[tuple[int, str]]:
    return [(int(n) if n else -1, other) for n, other in re.findall(r"(\d+)|(\D+)", text)]


def _search(made: Path, names: Pseudonyms) -> None:
    """Refuse a copy in which a host or user still stands."""
    known = compile_known_names(names)
    if known is None:
        return
    for path in [made] if made.is_file() else sorted(p for p in made.rglob("*") if p.is_file()):
        shown = path.relative_to(made).as_posix() if made != path else made.name
        for text in (shown, *_texts(path)):
            if found := known.search(text):
                raise RedactError(
                    f"{names.names[found[0].lower()]} name {found[0]!r} is still in {shown};"
                    " nothing was written",
                    "report this as a bug of npufix",
                )


def _texts(path: Path) -> Iterator[str]:
    yield from rows(path) if path.read_bytes()[:15] == b"SQLite format 3" else texts(path)
