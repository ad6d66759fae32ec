"""Dumps below a path that a user typed, and of which kind each is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from shlex import quote
from typing import TYPE_CHECKING

from npufix.profiling_parsers.dump_folder import OUTPUT
from npufix.profiling_parsers.formats import (
    FORMATS,
    OUTPUT_FOLDERS,
    PART_SUFFIXES,
    PROFILE,
    UNREADABLE,
    explain_foreign,
    explain_unreadable,
)
from npufix.profiling_parsers.profile import DumpError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_DEEPEST = 8


@dataclass(frozen=True, slots=True)
class DumpLocation:
    """One dump: a folder or, of the formats whose dump is a single file, that file."""

    path: Path
    kind: str
    """That of its ``DumpFormat``."""


def find_dumps(path: Path) -> list[DumpLocation]:
    """Return the dumps at or below ``path``, by rank: each is one for ``read_profile``.

    Where some can be read, those that cannot are in the list too: ``read_profile`` says why, so
    that no rank goes missing unnoticed.

    Raise ``DumpError`` if there is no dump, or none that can be read.
    """
    try:
        return _find(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def recognise(path: Path) -> DumpLocation:
    """Return the dump that a path is, or whose file it is; one of no other kind is unreadable.

    Raise ``DumpError`` if the path is a file that is no part of a dump, or a folder that may not be
    read.
    """
    try:
        return _of_file(path) if path.is_file() else _of_folder(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _find(path: Path) -> list[DumpLocation]:
    if not path.exists():
        raise DumpError(f"{path}: no such file or folder", nearest(path) or PROFILE)
    if path.is_file():
        return [_of_file(path)]
    start = path.parent if path.resolve().name in OUTPUT_FOLDERS else path
    dumps = sorted(_walk(start, depth=0, seen=set()), key=lambda dump: _rank_order(dump.path))
    if not dumps:
        what = f"{path}: no profiling dump in this folder"
        code = f"it holds Python code, which is read by: npufix scan {quote(str(path))}"
        files = chain(start.glob("*.py"), start.glob("*/*.py"))
        advice = code if next(files, None) is not None else PROFILE
        raise explain_foreign(start) or DumpError(what, advice)
    if all(dump.kind == UNREADABLE for dump in dumps):
        raise explain_unreadable(dumps[0].path)
    return dumps


def nearest(path: Path) -> str:
    """Return what a path may have meant: the part of it that is missing, spelt another way."""
    missing = next(p for p in (*reversed(path.parents), path) if not p.exists())
    try:
        names = [one.name for one in missing.parent.iterdir()]
    except OSError:
        return ""
    found = get_close_matches(missing.name, names, 2)
    return f"did you mean {' or '.join(str(missing.with_name(n)) for n in found)}?" if found else ""


def _of_file(path: Path) -> DumpLocation:
    """Return the dump that a file is: itself, or the folder whose part it is."""
    for each in FORMATS:
        if each.is_file(path):
            return DumpLocation(path, each.kind)
    folder = path.parent.parent if path.resolve().parent.name == OUTPUT else path.parent
    for each in FORMATS:
        if path.suffix in PART_SUFFIXES and folder in each.find(folder):
            return DumpLocation(folder, each.kind)
    raise explain_foreign(path) or DumpError(
        f"{path}: no file of a profiling dump",
        "give a folder *_ascend_pt, a folder PROF_*, a trace *.pt.trace.json or a table of "
        "kernels *.csv",
    )


def _of_folder(path: Path) -> DumpLocation:
    kinds = (each.kind for each in FORMATS if path in each.find(path))
    return DumpLocation(path, next(kinds, UNREADABLE))


def _unreadable(path: Path, error: OSError) -> DumpError:
    return DumpError(f"{error.filename or path}: {error.strerror}", "make the folder readable")


def _walk(folder: Path, depth: int, seen: set[Path]) -> Iterator[DumpLocation]:
    """Yield the dumps that a folder is or holds; below a dump, no other one is looked for."""
    real = folder.resolve()
    if real in seen:  # links may lead in circles
        return
    seen.add(real)
    for each in FORMATS:
        if found := each.find(folder):
            yield from (DumpLocation(path, each.kind) for path in found)
            return
    for each in FORMATS:
        named = {file for name in each.names for file in folder.glob(name) if file.is_file()}
        yield from (DumpLocation(file, each.kind) for file in named if each.is_file(file))
    if depth < _DEEPEST:
        for child in sorted(folder.iterdir()):
            if child.is_dir() and not child.name.startswith("."):
                yield from _walk(child, depth + 1, seen)


def _rank_order(dump: Path) -> tuple[float, list[tuple[int, str]]]:
    """Sort by the rank that the profiler put into a file name, else by the numbers in the path."""
    ranks = [
        int(found[1])
        for file in dump.glob("profiler_info_*.json")
        if (found := re.fullmatch(r"profiler_info_(\d+)\.json", file.name))
    ]
    parts = re.findall(r"(\d+)|(\D+)", str(dump))
    return min(ranks, default=float("inf")), [(int(n) if n else -1, text) for n, text in parts]
