"""The ranks of a job in a report: their rows, and the findings about them together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import pandas as pd

from npufix.advisor.evidence.item import Item
from npufix.advisor.evidence.run_findings import finding, fingerprint
from npufix.reports.language.catalogue import of_recording
from npufix.reports.report import Problem, Rank, RankSteps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.advisor.cluster.looking import Ranks
    from npufix.rules.cluster_diagnostic import Cluster, ClusterDiagnostic, ClusterObservation

_TIMES = ("computing_ns", "communication_exposed_ns", "free_ns")
_FEW = 2
_NAMED = 8
"""Broken ranks, each with what is wrong; the table of ranks has all of them."""
_ALONE = "diagnose it alone to see more"


def rank_rows(ranks: Ranks) -> list[Rank]:
    """Return one row a dump, in the order in which they were found."""
    rows = []
    for place, (path, summary) in enumerate(zip(ranks.paths, ranks.summaries, strict=True)):
        computing, exposed, free = ranks.means.get(place, (None, None, None))
        rows.append(
            Rank(
                rank=summary.rank,
                dump=str(path),
                computing_ns=computing,
                exposed_communication_ns=exposed,
                free_ns=free,
                problem=summary.problem or ranks.job.set_aside.get(place, ""),
                diagnosed=place == ranks.chosen,
                readable=summary.readable,
                role=ranks.roles.get(place, ""),
                host=summary.host,
            )
        )
    return rows


def rank_steps(ranks: Ranks) -> RankSteps | None:
    """Return where each rank spends each step, rows as those of ``rank_rows``."""
    if ranks.steps.empty:
        return None
    ids = sorted({int(step) for step in ranks.steps["step"].dropna()})
    steps: list[int | None] = [*ids] or [None]
    column = {step: at for at, step in enumerate(steps)}
    found: list[list[list[int | None]]] = [
        [[None] * len(steps) for _ in ranks.paths] for _ in _TIMES
    ]
    places = [ranks.job.dumps[row].place for row in ranks.steps["place"]]
    numbers = [None if step is pd.NA else int(step) for step in ranks.steps["step"]]
    cells = zip(*(ranks.steps[name].tolist() for name in _TIMES), strict=True)
    for place, step, values in zip(places, numbers, cells, strict=True):
        if step in column:
            for table, value in zip(found, values, strict=True):
                table[place][column[step]] = value
    return RankSteps(steps, *found)


def rank_problems(ranks: Ranks) -> list[Problem]:
    """Return what is wrong with the ranks that are not looked into, and with the folder."""
    broken = [
        (str(path), summary.problem.removeprefix(f"{path}: "))
        for place, (path, summary) in enumerate(zip(ranks.paths, ranks.summaries, strict=True))
        if summary.problem and place != ranks.chosen
    ]
    told = [Problem(dump, what, _ALONE, damaged=True) for dump, what in broken[:_NAMED]]
    if len(broken) > _NAMED:
        more = f"{len(broken) - _NAMED} more ranks are broken"
        remedy = "the ranks of --json, -o xlsx=FILE or -o csv=FOLDER say what is wrong with each"
        told.append(Problem("ranks", more, remedy, damaged=True))
    return told + [Problem("ranks", what, remedy) for what, remedy in ranks.job.remarks]


def observe_cluster(
    cluster: Cluster, diagnostics: Sequence[ClusterDiagnostic], step_ns: int
) -> tuple[list[Item], list[Problem]]:
    """Return what the diagnostics found, and those that failed; one rank alone shows nothing.

    ``step_ns`` is the step of the report that the findings go into.
    """
    found: list[Item] = []
    problems: list[Problem] = []
    if len(cluster.ranks) < _FEW:
        return found, problems
    cluster = replace(cluster, step_ns=step_ns)
    has_steps = cluster.steps.empty or bool(cluster.steps["step"].notna().any())
    said = str if has_steps else of_recording
    for diagnostic in diagnostics:
        try:
            found += [
                _observe(diagnostic, replace(seen, what=said(seen.what)), step_ns, number)
                for number, seen in enumerate(diagnostic.check(cluster))
            ]
        except Exception as error:  # noqa: BLE001, PERF203 - one rule's fault must not hide others
            what = f"internal error in {diagnostic.id}: {type(error).__name__}: {error}"
            remedy = "please report it with the dump"
            problems.append(Problem(diagnostic.name, what, remedy, damaged=True))
    return found, problems


def _observe(
    diagnostic: ClusterDiagnostic, seen: ClusterObservation, step_ns: int, number: int
) -> Item:
    return Item(
        finding=msgspec.structs.replace(
            finding(diagnostic, seen, seen.of_ns or step_ns),
            # Survives other ranks and lines: the rule, and which of its findings.
            fingerprint=fingerprint(diagnostic, "", number),
            ranks=list(seen.ranks),
        ),
        is_idle=seen.is_idle,
        of_job=True,
        is_communication=seen.is_communication,
        is_symptom=seen.is_symptom,
        goes=seen.goes,
        likely_ns=seen.likely_ns,
        lost_ns=seen.lost_ns,
        outliers_ns=seen.outliers_ns,
        unknown="" if seen.saving_ns else seen.basis,
    )
