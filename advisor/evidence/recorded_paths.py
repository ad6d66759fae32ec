"""Which file of the source a recorded path means, and whether it is the one that ran."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from npufix.advisor.project.user_frames import is_user_code
from npufix.profiling_parsers.profile import CallSite
from npufix.reports.report import Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from npufix.advisor.project.source_tree import SourceTree
    from npufix.profiling_parsers.profile import Profile

_CERTAIN = 2
"""Folder and file: that many equal parts at the end are no coincidence."""


class SourceState(str, Enum):
    """Whether the source is what the profiled run executed."""

    AS_PROFILED = "as profiled"
    CHANGED = "changed since"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A file that a recorded path may mean: they agree on the last ``same`` parts."""

    recorded: str
    relative: str
    same: int
    root: tuple[str, ...]
    """The folder on the profiled machine."""
    folder: tuple[str, ...]
    """The folder here, below the source, that it was."""

    @property
    def moved(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return from where to where the file was moved."""
        return self.root, self.folder


def map_recorded_paths(
    recorded: Iterable[str], tree: SourceTree, path_map: Sequence[tuple[str, str]] = ()
) -> tuple[dict[str, str], list[Problem]]:
    """Return recorded path -> relative path of the file here that it means, and what is unclear.

    A dump comes from another machine: ``/workspace/job/model/norm.py`` there is
    ``model/norm.py`` here. The move that explains most of the recorded paths is taken; another
    place only where the file is one of a kind. ``path_map`` (beginning there -> path here) decides
    before that.
    """
    names = sorted(set(recorded))
    mapped = {n: here for n in names if (here := _as_told(n, tree, path_map)) is not None}
    candidates = _candidates([n for n in names if n not in mapped], tree)
    votes: Counter[tuple[tuple[str, ...], tuple[str, ...]]] = Counter()
    for each in candidates:
        votes[each.moved] += each.same
    most = max(votes.values(), default=0)
    best = {move for move, count in votes.items() if count == most > 0}
    # As long as nothing of the source lies deeper than recorded, no folder is made up.
    plain = {(root, folder) for root, folder in best if not folder}
    chosen = plain if len(plain) == 1 else best
    unclear = [_report_unused(*move) for move in path_map if not _applies(move, names, tree)]
    by_name: dict[str, list[_Candidate]] = {}
    for each in candidates:
        by_name.setdefault(each.recorded, []).append(each)
    for name, options in by_name.items():
        fitting = [o for o in options if o.moved in chosen] or _sure(options)
        if len({o.relative for o in fitting}) == 1:
            mapped[name] = fitting[0].relative
        elif len(fitting) > 1:
            unclear.append(_ambiguous(name, fitting))
    return mapped, unclear


def _applies(move: tuple[str, str], names: Sequence[str], tree: SourceTree) -> bool:
    return any(_as_told(name, tree, [move]) is not None for name in names)


def _report_unused(old: str, new: str) -> Problem:
    what = f"no recorded path below {old} is a file below {new} in the source"
    return Problem(f"--path-map {old}={new}", what, "check both paths")


def _sure(options: Sequence[_Candidate]) -> list[_Candidate]:
    """Return the candidates of a path outside of the program's folder that are beyond doubt."""
    if not is_user_code(CallSite(options[0].recorded, 0, "")):
        return []
    whole = [o for o in options if not o.root]
    return whole or [o for o in options if o.same >= _CERTAIN]


def _as_told(name: str, tree: SourceTree, path_map: Sequence[tuple[str, str]]) -> str | None:
    parts = PurePosixPath(name.replace("\\", "/")).parts
    for old, new in path_map:
        beginning = PurePosixPath(old.replace("\\", "/")).parts
        if parts[: len(beginning)] != beginning:
            continue
        rest = parts[len(beginning) :]
        for base in (Path(), tree.root):
            here = (base / new).joinpath(*rest).resolve()
            root = tree.root.resolve()
            if here.is_relative_to(root) and here.relative_to(root).as_posix() in tree.files:
                return here.relative_to(root).as_posix()
    return None


def _candidates(names: Iterable[str], tree: SourceTree) -> list[_Candidate]:
    by_name: dict[str, list[PurePosixPath]] = {}
    for relative in tree.files:
        path = PurePosixPath(relative)
        by_name.setdefault(path.name, []).append(path)
    return [
        candidate
        for name in names
        if (parts := PurePosixPath(name.replace("\\", "/")).parts)
        for path in by_name.get(parts[-1], ())
        for candidate in _candidate(name, parts, path)
    ]


def _candidate(name: str, parts: tuple[str, ...], path: PurePosixPath) -> Iterator[_Candidate]:
    here = path.parts
    same = 0
    while same < min(len(parts), len(here)) and parts[-1 - same] == here[-1 - same]:
        same += 1
    root, folder = parts[: len(parts) - same], here[: len(here) - same]
    # Python functions are recorded without the folder of sys.path: what is left must all agree.
    is_absolute = parts[0] == "/" or parts[0][1:2] == ":"
    if is_absolute or not root:
        yield _Candidate(name, path.as_posix(), same, root, folder)


def _ambiguous(name: str, options: Sequence[_Candidate]) -> Problem:
    files = sorted({o.relative for o in options})
    old = PurePosixPath(*options[0].root) if options[0].root else PurePosixPath(name).parent
    new = PurePosixPath(*options[0].folder)
    return Problem(
        name,
        f"could be {' or '.join(files[:3])}{' or others' if len(files) > 3 else ''}",  # noqa: PLR2004 - a few
        f"say which: --path-map {old}={new}",
    )


def source_state(
    profile: Profile,
    tree: SourceTree,
    mapped: Mapping[str, str],
    path_map: Sequence[tuple[str, str]] = (),
) -> SourceState:
    """Tell whether the files of the profiled program are the ones that were profiled.

    The digests that the run recorded decide; without them, files older than the run are taken
    for the ones it executed.
    """
    digests = profile.environment.source_sha256
    files = set(mapped.values())
    if digests:
        expected, _ = map_recorded_paths(digests, tree, path_map)
        if any(tree.files[rel].sha256 != digests[name] for name, rel in expected.items()):
            return SourceState.CHANGED
        complete = set(digests) <= set(expected) and files <= set(expected.values())
        return SourceState.AS_PROFILED if expected and complete else SourceState.UNKNOWN
    if not files or profile.kernels.empty:
        return SourceState.UNKNOWN
    started = int(profile.kernels["start_ns"].iloc[0])
    newest = max(tree.files[name].path.stat().st_mtime_ns for name in files)
    return SourceState.AS_PROFILED if newest < started else SourceState.UNKNOWN
