"""The runs that a user names: dumps, folders of ranks, or reports."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from npufix.advisor.gate.measuring import MeasuredRun, examine, measure_report
from npufix.reports.report import ReportError, from_json
from npufix.rewriters.write.user_error import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from npufix.advisor.diagnose.diagnosis import Options
    from npufix.advisor.project.source_tree import SourceTree
    from npufix.reports.report import Report

_HEAD_BYTES = 4096
_TOOL = re.compile(rb'"tool"\s*:\s*"npufix ')


class RunError(UserError):
    """Runs that cannot be used together: ``message`` and ``remedy``."""


def read_runs(
    dumps: Sequence[Path],
    tree: SourceTree | None,
    options: Options,
    say: Callable[[str], None] = lambda _: None,
) -> list[MeasuredRun]:
    """Read runs, each once.

    Raises:
        RunError: one is given twice, is several runs in one folder, or a report of nothing.
        DumpError: there is nothing to measure in one of them.
        RankError: it has no dump of the wanted rank.

    """
    seen: dict[Path, Path] = {}
    for dump in dumps:
        known = seen.setdefault(dump.resolve(), dump)
        if known is not dump:
            message = f"{dump} is given twice"
            raise RunError(message, "a run that counts twice makes the noise look smaller")
    runs = []
    for number, dump in enumerate(dumps, 1):
        say(f"Reading run {number} of {len(dumps)}")
        runs.append(_read(dump, tree, options))
    return runs


def _read(dump: Path, tree: SourceTree | None, options: Options) -> MeasuredRun:
    if _is_report(dump):
        made = _report(dump)
        numbers = msgspec.structs.replace(measure_report(made), origin=str(dump))
        return MeasuredRun(numbers, made, ())
    run = examine(dump, tree, options)
    ranks = [row.rank for row in run.report.ranks if row.rank is not None]
    twice = next((rank for rank in ranks if ranks.count(rank) > 1), None)
    if twice is not None:
        message = f"{dump} holds {ranks.count(twice)} dumps of rank {twice}, so several runs"
        raise RunError(message, "name the folder of each run")
    return run


def _is_report(path: Path) -> bool:
    """Tell a report of ours from the trace of a profiler, which may be gigabytes."""
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open("rb") as file:
        return _TOOL.search(file.read(_HEAD_BYTES)) is not None


def _report(path: Path) -> Report:
    content = path.read_bytes()
    if b'"run_count"' in content[:_HEAD_BYTES]:
        raise RunError(f"{path} is a baseline, not a run", "give the dumps of runs")
    try:
        made = from_json(content)
    except ReportError as error:
        raise RunError(
            f"{path}: {error}", "give a dump, or npufix diagnose --json of it"
        ) from error
    if made.split is None and not made.compute_ns:
        raise RunError(f"{path}: a report without a dump", "give one of npufix diagnose")
    return made
