"""From a dump and a source tree to a finished diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING

from npufix.advisor.estimate import calibrate
from npufix.advisor.evidence import Evidence, gather_evidence, locator, user_path
from npufix.advisor.findings import Located, Measured, locate, total_saving
from npufix.advisor.ranking import hot_operators, hot_shapes, step_split
from npufix.advisor.source_tree import SourceState, map_recorded_paths, source_state
from npufix.profiling_parsers.discover import find_dumps
from npufix.profiling_parsers.reader import read_profile
from npufix.reports import report
from npufix.reports.wording import headline
from npufix.rules.registry import all_rules

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from npufix.advisor.source_tree import SourceTree
    from npufix.profiling_parsers.profile import Profile
    from npufix.rules.substitution import Substitution


@dataclass(frozen=True)
class Diagnosis:
    """The report, and what the rewriters need beyond it."""

    report: report.Report
    found: tuple[Located, ...]
    evidence: Evidence | None
    torch_npu: str


def tool() -> str:
    """Return the name and version of this program."""
    return f"npufix {version('npufix')}"


def diagnose(
    dump: Path, tree: SourceTree | None, top: int, rules: Sequence[Substitution] | None = None
) -> Diagnosis:
    """Read one dump, and the source where given, and say where the time goes.

    Raises:
        DumpError: there is nothing to diagnose.

    """
    dumps = find_dumps(dump)
    profile = read_profile(dumps[0])
    problems = [report.Problem(p.where, p.what, p.remedy, p.damaged) for p in profile.problems]
    if len(dumps) > 1:
        problems.append(_other_ranks(dumps))
    recorded = {site.path for stack in profile.stacks for site in stack}
    mapped = map_recorded_paths(recorded, tree) if tree else {}
    evidence = gather_evidence(profile, locator(mapped) if tree else user_path)
    split = step_split(profile)
    found: list[Located] = []
    if tree is not None:
        problems += tree.problems
        state = source_state(profile, tree, mapped)
        problems += _source_problems(profile, tree, mapped, state)
        measured = Measured(
            evidence,
            calibrate(evidence.kernels),
            split.total_ns if split else _span_ns(profile) // evidence.steps,
            proves=state is SourceState.AS_PROFILED,
        )
        found, unparsed = locate(tree, rules or all_rules(), measured)
        problems += unparsed
    compute = int(evidence.kernels["duration_ns"].sum())
    known = int(evidence.kernels.loc[evidence.kernels["path"] != "", "duration_ns"].sum())
    hot = hot_operators(evidence.kernels, top)
    environment = profile.environment
    made = report.Report(
        tool=tool(),
        headline=headline(
            [f.finding for f in found],
            total_saving(found),
            split,
            hot,
            with_source=tree is not None,
        ),
        dump=str(dumps[0]),
        source=str(tree.root) if tree else "",
        environment=report.Environment(
            rank=environment.rank,
            world_size=environment.world_size,
            torch_npu=environment.torch_npu,
            cann=environment.cann,
            profiler_level=environment.profiler_level,
            simulated=environment.simulated,
        ),
        split=split,
        compute_ns=compute,
        attributed=known / compute if compute else 0.0,
        hot_operators=hot,
        hot_shapes=hot_shapes(evidence.kernels, top),
        findings=[f.finding for f in found],
        problems=problems,
        next_steps=_next_steps(dump, tree, found, has_stacks=bool(profile.stacks)),
    )
    return Diagnosis(made, tuple(found), evidence, environment.torch_npu or "")


def scan(tree: SourceTree, rules: Sequence[Substitution] | None = None) -> Diagnosis:
    """Say which slow patterns a source tree holds, without a dump."""
    found, unparsed = locate(tree, rules or all_rules(), None)
    source = str(tree.given)
    made = report.Report(
        tool=tool(),
        headline=headline([f.finding for f in found], None, None, [], with_source=True),
        dump="",
        source=source,
        environment=None,
        split=None,
        compute_ns=0,
        attributed=0.0,
        hot_operators=[],
        hot_shapes=[],
        findings=[f.finding for f in found],
        problems=[*tree.problems, *unparsed],
        next_steps=[f"npufix patch --source {source}"] if found else [],
    )
    return Diagnosis(made, tuple(found), None, "")


def _span_ns(profile: Profile) -> int:
    kernels = profile.kernels
    if kernels.empty:
        return 0
    ends = kernels["start_ns"] + kernels["duration_ns"]
    return int(ends.max()) - int(kernels["start_ns"].min())


def _other_ranks(dumps: Sequence[Path]) -> report.Problem:
    others = ", ".join(dump.name for dump in dumps[1:4]) + (", ..." if len(dumps) > 4 else "")  # noqa: PLR2004 - a few
    return report.Problem(
        str(dumps[0].parent),
        f"{len(dumps)} dumps here, only {dumps[0].name} was read",
        f"name another one to read it: {others}",
    )


def _source_problems(
    profile: Profile, tree: SourceTree, mapped: dict[str, str], state: SourceState
) -> list[report.Problem]:
    where = str(tree.root)
    if profile.stacks and not mapped:
        return [
            report.Problem(
                where,
                "no file of the call stacks in the dump is here, so nothing has a measured time",
                "give the source of the profiled program with --source",
            )
        ]
    if not mapped or state is SourceState.AS_PROFILED:
        return []
    changed = "differs from" if state is SourceState.CHANGED else "may differ from"
    return [
        report.Problem(
            where,
            f"the source {changed} the profiled one: what the dump recorded proves nothing about"
            " it, and lines may have moved",
            "profile it again, or vouch for conditions with --allow",
        )
    ]


def _next_steps(
    dump: Path, tree: SourceTree | None, found: Sequence[Located], *, has_stacks: bool
) -> list[str]:
    if tree is None:
        # Without stacks no source leads further; the problems say how to collect them.
        return [f"npufix diagnose {dump} --source FOLDER_OF_YOUR_CODE"] if has_stacks else []
    if any(item.site.rewrite for item in found):
        return [f"npufix patch {dump} --source {tree.given} -o npufix.patch"]
    return []
