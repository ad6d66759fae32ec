"""What a dump recorded at the lines of a change: the shapes and dtypes to try it with."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npufix.advisor.diagnose.ranks import read_dump
from npufix.advisor.evidence.lines import Evidence, gather_evidence
from npufix.advisor.evidence.recorded_paths import SourceState, map_recorded_paths, source_state
from npufix.advisor.project.source_tree import SourceFile, read_source_tree
from npufix.advisor.verify.definitions import definitions
from npufix.rewriters.verification.virtual_npu import of_profile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from npufix.advisor.project.configuration import Configuration
    from npufix.advisor.verify.changes import ChangedFile, Changes
    from npufix.rewriters.match.recorded_call import RecordedCall


@dataclass(frozen=True)
class ChangeRecording:
    """A dump, led to the files of a change."""

    evidence: Evidence
    torch_npu: str
    chip: str
    as_changed: frozenset[str]
    """Relative paths of the files whose changed version is the one that was profiled."""
    proves: bool
    """Whether the code before the change is what ran, in every file."""
    warnings: tuple[str, ...]

    @property
    def chip_of_virtual_npu(self) -> str:
        """The chip of the run, by the name that ``--chip`` takes."""
        return of_profile(self.chip)

    def proofs(self, file: ChangedFile) -> Mapping[int, Sequence[RecordedCall]] | None:
        """Return the operator calls of a file by line, if they prove something about it."""
        return self.evidence.recorded(_relative(file)) if self.proves else None

    def of(self, file: ChangedFile, qualname: str) -> tuple[RecordedCall, ...]:
        """Return the operator calls that were recorded in a function."""
        relative = _relative(file)
        text = file.changed if relative in self.as_changed else file.original
        found = definitions(ast.parse(text)).functions.get(qualname, [])
        lines = {n for f in found for n in range(f.lineno, (f.end_lineno or f.lineno) + 1)}
        calls = self.evidence.recorded(relative)
        return tuple(call for line in sorted(lines & calls.keys()) for call in calls[line])


def read_recording(
    dump: Path,
    changes: Changes,
    configuration: Configuration,
    *,
    rank: int | None = None,
    path_map: Sequence[tuple[str, str]] = (),
) -> ChangeRecording:
    """Read a dump of the program before the change, or after it.

    Raises:
        DumpError: there is nothing to read.
        RankError: there is no dump of the wanted rank.

    """
    profile = read_dump(dump, rank).profile
    tree = read_source_tree(changes.files[0].root, configuration)
    files = dict(tree.files)
    for file in changes.files:
        one = SourceFile(file.path, _relative(file), file.data[0], file.original, "utf-8")
        files[one.relative] = one
    tree = replace(tree, files=files)
    stacks = (*profile.stacks, *profile.signals.operator_stacks)
    paths = {site.path for stack in stacks for site in stack}
    mapped, unclear = map_recorded_paths(paths, tree, path_map)
    digests = profile.environment.source_sha256
    placed, _ = map_recorded_paths(digests, tree, path_map)
    recorded = {relative: digests[name] for name, relative in placed.items()}
    as_changed, other = _versions(changes, recorded)
    warnings = [f"{p.where}: {p.what}; {p.remedy}" for p in unclear]
    warnings += [
        f"{name} is not the file that was profiled, before the change or after it: its lines may"
        " have moved"
        for name in other
    ]
    here = {_relative(file) for file in changes.files}
    if not here & set(mapped.values()):
        warnings.append(
            f"{dump} recorded nothing in the changed files: inputs are made up; collect it with"
            " with_stack=True and record_shapes=True, or say with --path-map where they were"
        )
    environment = profile.environment
    proves = source_state(profile, tree, mapped, path_map) is SourceState.AS_PROFILED
    if digests and not proves and not as_changed and not other:
        warnings.append(
            "files beside the change are not those that were profiled: the dump proves no condition"
        )
    return ChangeRecording(
        gather_evidence(profile, mapped),
        environment.torch_npu or "",
        environment.chip or "",
        frozenset(as_changed),
        proves,
        tuple(warnings),
    )


def _versions(changes: Changes, recorded: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the files that ran as they are after the change, and those that ran as neither."""
    after: list[str] = []
    other: list[str] = []
    for file in changes.files:
        relative = _relative(file)
        digest = recorded.get(relative, "")
        before_digest, after_digest = file.digests
        if digest == after_digest:
            after.append(relative)
        elif digest and digest != before_digest:
            other.append(relative)
    return after, other


def _relative(file: ChangedFile) -> str:
    if not file.path.is_relative_to(file.root):
        return file.path.name
    return file.path.relative_to(file.root).as_posix()
