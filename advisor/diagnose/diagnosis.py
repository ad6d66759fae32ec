"""From a dump and a source tree to a finished diagnosis."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

import msgspec

from npufix.advisor.cluster.details import lead_to_source
from npufix.advisor.cluster.reporting import observe_cluster, rank_problems, rank_rows, rank_steps
from npufix.advisor.diagnose.causes import with_causes
from npufix.advisor.diagnose.foreseeing import Foreseen, foresee
from npufix.advisor.diagnose.ranks import ALONE, Ways, read_dump
from npufix.advisor.diagnose.result import Diagnosis
from npufix.advisor.diagnose.savings import (
    settle,
    total_saving,
    within_idle,
    without_explained,
)
from npufix.advisor.evidence.collectives import hot_collectives
from npufix.advisor.evidence.estimate import calibrate
from npufix.advisor.evidence.hygiene import missing_parts, snippet
from npufix.advisor.evidence.item import Item, is_work_or_small, rank_items, rank_replayed
from npufix.advisor.evidence.kernel_times import MeasuredKernels
from npufix.advisor.evidence.lines import Evidence, gather_evidence
from npufix.advisor.evidence.operator_lines import operator_lines
from npufix.advisor.evidence.ranking import Ranking, Step, step_split
from npufix.advisor.evidence.recorded_paths import SourceState, map_recorded_paths, source_state
from npufix.advisor.evidence.run_findings import observe
from npufix.advisor.project.configuration import EVERYTHING, Configuration
from npufix.advisor.project.rule_index import known_rules
from npufix.reports import report
from npufix.reports.wording.report import headline, with_warm_up
from npufix.rules.cluster_diagnostic import ClusterDiagnostic
from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.versions import unmet
from npufix.rules.substitution import Substitution

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from pathlib import Path

    from npufix.advisor.diagnose.findings import Findings, Located
    from npufix.advisor.diagnose.ranks import DumpRanks
    from npufix.advisor.predict.graph.critical_path import CriticalPath
    from npufix.advisor.predict.other_ranks import OtherRanks
    from npufix.advisor.predict.what_if import Asked
    from npufix.advisor.project.source_tree import SourceTree
    from npufix.profiling_parsers.profile import Profile
    from npufix.rules.cluster_diagnostic import Cluster, ClusterObservation
    from npufix.rules.diagnostic import Observation, Recording
    from npufix.rules.registry import Rule


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for."""

    top: int = 10
    """How many hot operators, shapes, lines and modules."""
    rank: int | None = None
    """``None``: the slowest one."""
    path_map: tuple[tuple[str, str], ...] = ()
    """Beginnings of recorded paths, and of the paths here that they mean."""
    configuration: Configuration = EVERYTHING
    """Which rules are wanted."""
    ways: Ways = ALONE
    """How the ranks of a job are read, and whether they are compared."""
    asked: Asked | None = None
    """Which changes to predict besides."""
    headroom: bool = False
    """Whether the bounds of the kernels are wanted: no finding needs them."""
    with_text: bool = True
    """Whether changes are wanted, or only what can be said of them: as in ``locate``."""


def diagnose(dump: Path, tree: SourceTree | None, options: Options | None = None) -> Diagnosis:
    """Read one dump, and the source where given, and say where the time goes.

    Raises:
        DumpError: there is nothing to diagnose.
        RankError: there is no dump of the wanted rank.
        ExecutorError: ranks cannot be read where they should.

    """
    options = options or Options()
    read = read_dump(dump, options.rank, options.ways)
    profile, ranks = read.profile, read.ranks
    run, unclear = _run(profile, tree, options)
    kinds = _kinds(has_source=tree is not None, has_ranks=read.cluster is not None)
    applicable, skipped = _applicable(profile, options, kinds)
    of_run = [rule for rule in applicable if isinstance(rule, Diagnostic)]
    seen, faults = observe(profile, run.evidence, run.step, of_run)
    if read.cluster is not None:
        of_job = [rule for rule in applicable if isinstance(rule, ClusterDiagnostic)]
        cluster = _in_source(read.cluster, run, tree, options)
        compared, failed = observe_cluster(cluster, of_job, run.step.length_ns)
        seen, faults = [*seen, *compared], [*faults, *failed]
    rules = [rule for rule in applicable if isinstance(rule, Substitution)]
    located = _find(run, tree, rules, options) if tree else None
    ranked = rank_items([*(located.found if located else ()), *seen])
    ranked = with_causes(ranked, profile.environment.rank)
    told = without_explained(ranked, run.evidence.kernels, run.evidence.steps)
    foreseen, ask = _foresee(told, run, options, profile.environment.chip, _others(read))
    everything, forecast = within_idle(foreseen.items, run.split), foreseen.forecast
    seen = [item for item in everything if item.finding.kind == "run"]
    found = [cast("Located", item) for item in everything if item.finding.kind == "code"]
    measured = _report_measures(run, options, foreseen.path)
    made = msgspec.structs.replace(
        measured,
        headline=with_warm_up(
            headline(
                [item.finding for item in everything],
                total_saving(everything, forecast, run.split),
                run.split,
                measured.hot_operators,
                with_source=tree is not None,
                only_work=all(is_work_or_small(item) for item in everything),
            ),
            run.split,
            _compiled_ns(profile),
        ),
        source=str(tree.root) if tree else "",
        findings=[item.finding for item in everything],
        problems=[
            *(rank_problems(ranks) if ranks else ()),  # of the job first, as the headline
            *profile.problems,
            *unclear,
            *faults,
            *(located.problems if located else []),
        ],
        next_steps=_next_steps(dump, tree, found, has_stacks=bool(profile.stacks)),
        ranks=rank_rows(ranks) if ranks else [],
        rank_steps=rank_steps(ranks) if ranks else None,
        skipped_rules=skipped,
        forecast=forecast,
    )
    version_of_run = profile.environment.torch_npu or ""
    warnings = tuple(located.warnings) if located else ()
    return Diagnosis(
        made, tuple(found), run.evidence, version_of_run, warnings, profile.signals,
        tuple(seen), profile.steps, tuple(profile.modules), profile.stacks, foreseen.path, ask,
    )  # fmt: skip


@dataclass(frozen=True)
class _Run:
    """A profile, led to the source."""

    profile: Profile
    mapped: dict[str, str]
    """Recorded path -> path below the source."""
    evidence: Evidence
    split: report.StepSplit | None
    step: Step


def _run(
    profile: Profile, tree: SourceTree | None, options: Options
) -> tuple[_Run, list[report.Problem]]:
    """Lead a profile to the source, and say which paths are not clear."""
    stacks = (*profile.stacks, *profile.signals.operator_stacks)
    recorded = {site.path for stack in stacks for site in stack}
    mapped, unclear = map_recorded_paths(recorded, tree, options.path_map) if tree else ({}, [])
    evidence = gather_evidence(profile, mapped)
    split = step_split(evidence)
    if split is not None:
        split = msgspec.structs.replace(split, bounds=profile.step_bounds)
    step = Step(split.total_ns if split else _span_ns(evidence), evidence.steps)
    return _Run(profile, mapped, evidence, split, step), unclear


def _others(read: DumpRanks) -> OtherRanks | None:
    if read.cluster is None:
        return None
    from npufix.advisor.predict.other_ranks import other_ranks

    return other_ranks(read.profile.signals, read.cluster, read.profile.environment.rank)


def _foresee(
    told: list[Item], run: _Run, options: Options, chip: str | None, others: OtherRanks | None
) -> tuple[Foreseen[Item], Callable[..., Foreseen[Item]]]:
    """Return the findings as replayed, in the order that the replay says, and how to ask again."""
    replayed = partial(
        foresee, evidence=run.evidence, step_ns=run.step.length_ns, chip=chip, others=others
    )
    ask = partial(replayed, settle(told, run.split, run.evidence.kernels))
    foreseen = ask(asked=options.asked)
    better = rank_replayed(told, foreseen.items)
    if better[:1] != told[:1]:
        ask = partial(replayed, settle(better, run.split, run.evidence.kernels))
        foreseen = ask(asked=options.asked)
    return foreseen, ask


def _in_source(cluster: Cluster, run: _Run, tree: SourceTree | None, options: Options) -> Cluster:
    """Lead the lines of all ranks to the source; they were recorded beside those of this run."""
    if tree is None:
        return cluster
    own = {site.path for stack in run.profile.stacks for site in stack}
    return lead_to_source(
        cluster, lambda paths: map_recorded_paths({*own, *paths}, tree, options.path_map)[0]
    )


def _find(run: _Run, tree: SourceTree, rules: Sequence[Substitution], options: Options) -> Findings:
    """Return the findings in the source with what they cost in this run."""
    from npufix.advisor.diagnose.findings import Measured, locate

    state = source_state(run.profile, tree, run.mapped, options.path_map)
    measured = Measured(
        run.evidence,
        calibrate(run.evidence.kernels),
        run.step.length_ns,
        MeasuredKernels(run.evidence.kernels),
        proves=state is SourceState.AS_PROFILED,
    )
    located = locate(tree, rules, measured, with_text=options.with_text, cache=options.ways.cache)
    changed = _source_problems(run.profile, tree, run.mapped, state)
    return replace(located, problems=[*tree.problems, *changed, *located.problems])


def _report_measures(run: _Run, options: Options, path: CriticalPath | None) -> report.Report:
    """Return a report of what the run spent its time on, without findings."""
    profile, top = run.profile, options.top
    ranking = Ranking(
        run.evidence, run.step, *([path.lookup(run.evidence.kernels.index)] if path else [])
    )
    on_lines, in_functions = ranking.coverage()
    lines, by_operators = ranking.hot_lines(top), 0.0
    if not lines:
        lines, by_operators = operator_lines(profile.signals, run.mapped, top, ranking.total_ns)
    return report.Report(
        tool=report.tool(),
        headline="",
        dump=str(profile.root),
        source="",
        environment=_environment(profile),
        split=run.split,
        compute_ns=ranking.total_ns,
        attributed=on_lines,
        hot_operators=ranking.hot_operators(top),
        hot_shapes=ranking.hot_shapes(top),
        findings=[],
        problems=[],
        next_steps=[],
        format=profile.format,
        attributed_to_functions=in_functions,
        attributed_by_operators=by_operators,
        hot_lines=lines,
        hot_modules=ranking.hot_modules(profile.modules, top),
        hot_collectives=hot_collectives(profile.signals, top),
        headroom=_headroom(run, top) if options.headroom else None,
        not_recorded=[report.Fact(*part) for part in missing_parts(profile)],
        collect=snippet(profile),
    )


def _compiled_ns(profile: Profile) -> int:
    """Return how long operators were compiled, as far as the calls are recorded one by one."""
    from npufix.rules.shared.recording.observing import find_named
    from npufix.rules.shared.recording.pauses import COMPILES

    return int(find_named(profile.signals.long_calls, COMPILES)["duration_ns"].sum())


def _headroom(run: _Run, top: int) -> report.Headroom | None:
    from npufix.advisor.predict.headroom import find_headroom

    return find_headroom(run.evidence, run.profile.signals, run.profile.environment, top)


def _kinds(*, has_source: bool, has_ranks: bool) -> set[str]:
    """Return the kinds of rules for which there is anything to read."""
    of_source = {"Substitution"} if has_source else set[str]()
    return {"Diagnostic"} | of_source | ({"ClusterDiagnostic"} if has_ranks else set())


def _applicable(
    profile: Profile, options: Options, kinds: Collection[str]
) -> tuple[list[Rule], list[report.Fact]]:
    """Return the rules of some kinds that the run allows, and why its versions exclude others."""
    cores = profile.kernels["core"].cat.categories
    wanted = [rule for rule in known_rules() if options.configuration.wants(rule)]
    reasons = {rule.id: unmet(rule.requires, profile.environment, cores) for rule in wanted}
    met = [rule for rule in wanted if rule.kind in kinds and not reasons[rule.id]]
    skipped = [report.Fact(key, why) for key, why in reasons.items() if why]
    if profile.format != "kineto":
        return [rule.load() for rule in met], skipped
    # What a GPU does says nothing about the settings of an NPU.
    has_gpu = "GPU" in cores
    loaded = [r.load() for r in met if r.kind == "Substitution" or (r.is_for_gpus and has_gpu)]
    return [r if isinstance(r, Substitution) else _on_gpu(r) for r in loaded], skipped


def _on_gpu(rule: Diagnostic | ClusterDiagnostic) -> Diagnostic | ClusterDiagnostic:
    """Return a rule that says what to do on a GPU, whatever it would say of settings of an NPU."""
    if isinstance(rule, ClusterDiagnostic):
        compare = rule.check

        def check_ranks(cluster: Cluster) -> Iterator[ClusterObservation]:
            return (replace(seen, advice="") for seen in compare(cluster))

        return replace(rule, advice=rule.gpu_advice, check=check_ranks)

    def check(recording: Recording) -> Iterator[Observation]:
        return (replace(seen, advice=seen.gpu_advice) for seen in rule.check(recording))

    return replace(rule, advice=rule.gpu_advice, check=check)


def _environment(profile: Profile) -> report.Environment:
    recorded = profile.environment
    devices = sorted({int(number) for number in profile.kernels["device"].unique()} - {-1})
    told = {*report.Environment.__struct_fields__} - {"devices"}
    return report.Environment(**{name: getattr(recorded, name) for name in told}, devices=devices)


def _span_ns(evidence: Evidence) -> int:
    """Return the time from the first to the last kernel, per step."""
    chosen = evidence.computes & evidence.steady
    if not chosen.any():
        return 0
    starts = evidence.kernels["start_ns"].to_numpy()[chosen]
    ends = starts + evidence.kernels["duration_ns"].to_numpy()[chosen]
    return (int(ends.max()) - int(starts.min())) // evidence.steps


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
