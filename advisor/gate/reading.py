"""The runs that a user names: dumps, folders of ranks, or reports."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from npufix.advisor.gate.baselines import FACTS, digest
from npufix.advisor.gate.measuring import MeasuredRun, examine, measure_report
from npufix.reports.report import Environment, ReportError, from_json
from npufix.rewriters.write.user_error import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from npufix.advisor.diagnose.diagnosis import Options
    from npufix.advisor.project.source_tree import SourceTree
    from npufix.reports.measurement import Measurement
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
    given: Sequence[str] = (),
) -> list[MeasuredRun]:
    """Read runs, each once; ``given``: what they do not record, as ``chip=Ascend910B2``.

    Raises:
        RunError: one is given twice or is a copy, is several runs in one folder, is another rank
            of the same job, or a report of nothing; or what is given contradicts it.
        DumpError: there is nothing to measure in one of them.
        RankError: it has no dump of the wanted rank.

    """
    facts = _facts(given)
    seen: dict[Path, Path] = {}
    for dump in dumps:
        known = seen.setdefault(dump.resolve(), dump)
        if known is not dump:
            message = f"{dump} is given twice"
            raise RunError(message, "a run that counts twice makes the noise look smaller")
    runs = []
    for number, dump in enumerate(dumps, 1):
        say(f"Reading run {number} of {len(dumps)}")
        run = _read(dump, tree, options)
        runs.append(replace(run, measurement=_with_facts(run.measurement, facts)))
    check_together([run.measurement for run in runs])
    return runs


def _facts(given: Sequence[str]) -> dict[str, str | int]:
    facts: dict[str, str | int] = {}
    for text in given:
        name, _, value = (part.strip() for part in text.partition("="))
        if name not in FACTS or not value or (name == "world_size" and not value.isdecimal()):
            remedy = f"write chip=Ascend910B2, say; there are {', '.join(FACTS)}"
            raise RunError(f"--environment is {text!r}", remedy)
        facts[name] = int(value) if name == "world_size" else value
    return facts


def _with_facts(run: Measurement, facts: Mapping[str, str | int]) -> Measurement:
    """Return a run with what it did not record."""
    known = run.environment or Environment(None, None, None, None, None, None)
    for name, value in facts.items():
        recorded = getattr(known, name)
        if recorded not in {None, value}:
            message = f"{run.origin} is of {name} {recorded}, not {value}"
            raise RunError(message, f"leave out --environment {name}")
    return msgspec.structs.replace(run, environment=msgspec.structs.replace(known, **facts))


def check_together(runs: Sequence[Measurement]) -> None:
    """Refuse runs that are not so many runs.

    Raises:
        RunError: one is a copy of another, or another rank of the same job.

    """
    _check_copies(runs)
    _check_ranks(runs)
    _check_times(runs)


def _check_copies(runs: Sequence[Measurement]) -> None:
    """Refuse a run that is there twice, under whatever name."""
    seen: dict[str, Measurement] = {}
    for run in runs:
        known = seen.setdefault(digest(run), run)
        if known is not run:
            message = f"{run.origin} is a copy of {known.origin}: all of its times are the same"
            raise RunError(message, "a run that counts twice makes the noise look smaller")


def _check_ranks(runs: Sequence[Measurement]) -> None:
    """Refuse the ranks of a job as so many runs of it: they wait for each other."""
    first: Measurement | None = None
    for run in runs:
        if run.ranks > 1 or run.environment is None or run.environment.rank is None:
            continue
        first = first or run
        known = first.environment
        if known is not None and known.rank != run.environment.rank:
            message = (
                f"{first.origin} is of rank {known.rank} and {run.origin} of rank"
                f" {run.environment.rank}: the ranks of a job are one run"
            )
            raise RunError(message, "name the folder of each job, or dumps of one rank only")


def _check_times(runs: Sequence[Measurement]) -> None:
    """Refuse runs of unknown rank that ran at once: as ranks of a job, or in each other's way."""
    times = [
        (run.started_ns, run.started_ns + run.steps * run.metrics["step-time"].value, run.origin)
        for run in runs
        if run.ranks == 1 and run.started_ns is not None and "step-time" in run.metrics
        if run.environment is None or run.environment.rank is None
    ]
    for (_, end, one), (start, _, other) in itertools.pairwise(sorted(times)):
        if start < end:
            message = f"{one} and {other} ran at the same time: the ranks of a job are one run"
            raise RunError(message, "name the folder of each job, or runs one after the other")


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
