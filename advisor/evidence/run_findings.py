"""Findings about the run as a whole: the settings table against the recording."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from npufix.advisor.evidence.change import Change, NewWork
from npufix.advisor.evidence.item import Item, make_finding
from npufix.reports import report
from npufix.reports.language.catalogue import of_recording
from npufix.rules.diagnostic import Recording, keep_result
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import format_count, milliseconds
from npufix.rules.shared.recording.observing import outermost_operators, per_step, rows_where

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pandas as pd

    from npufix.advisor.evidence.lines import Evidence
    from npufix.advisor.evidence.ranking import Step
    from npufix.profiling_parsers.profile import Profile
    from npufix.rules.cluster_diagnostic import ClusterDiagnostic, ClusterObservation
    from npufix.rules.diagnostic import Diagnostic, Observation


_PAUSE_KEEPS = 0.1
"""Share of a pause or a wait that may stay when it is mended, in nine of ten cases."""
LEAST_OF_LIKELY = 0.5
"""Share of what is expected that is gained at least, in nine of ten cases."""
_ASKED = ["path", "host_op", "communication", "duration_ns"]
_OF_GRADIENTS = "autograd::engine::evaluate_function: "
_OWN_OPERATORS = r"(?i)(aten|npu|prims|_c10d_functional|c10d)::|acl"
"""What a program calls itself: without a stack it is not known where."""


def observe(
    profile: Profile, evidence: Evidence, step: Step, diagnostics: Sequence[Diagnostic]
) -> tuple[list[Item], list[report.Problem]]:
    """Return what the diagnostics found, and those that failed."""
    recording = Recording(
        kernels=rows_where(evidence.kernels, evidence.steady),
        host_ops=evidence.host_ops,
        steps=evidence.split,
        step_ns=step.length_ns,
        step_count=step.count,
        signals=profile.signals,
        environment=profile.environment,
        recorded_steps=int(profile.kernels["step"].nunique()),
        outliers=evidence.outliers,
        outlier_ops=evidence.outlier_ops,
    )
    found: list[Item] = []
    problems: list[report.Problem] = []
    for diagnostic in diagnostics:
        try:
            found += _findings(diagnostic, recording)
        except Exception as error:  # noqa: BLE001, PERF203 - one rule's fault must not hide others
            what = f"internal error in {diagnostic.id}: {type(error).__name__}: {error}"
            remedy = "please report it with the dump"
            problems.append(report.Problem(diagnostic.name, what, remedy, damaged=True))
    return found, problems


def _findings(diagnostic: Diagnostic, recording: Recording) -> Iterator[Item]:
    has_steps = bool(recording.kernels["step"].notna().any())
    for number, found in enumerate(diagnostic.check(recording)):
        seen = found if has_steps else replace(found, what=of_recording(found.what))
        yield Item(
            finding=_finding(diagnostic, seen, recording, number),
            kernels=seen.kernels,
            is_idle=seen.is_idle,
            is_communication=_only_collectives(seen, recording),
            is_work=seen.is_work,
            is_symptom=seen.is_symptom,
            is_divided=seen.is_divided,
            yields=diagnostic.yields,
            change=change_of(seen, recording),
            idle_ns=seen.idle_ns,
            outliers_ns=seen.outliers_ns,
            unknown="" if seen.saving_ns else seen.basis,
        )


def change_of(seen: Observation, recording: Recording) -> Change | None:
    """Return what would become of the kernels, or of the waits of the host."""
    unsure = seen.saving_ns is None or not seen.saving_ns[0]
    keeps = (_PAUSE_KEEPS if unsure else 0.0, 0.0, 0.0)
    if seen.hurries:
        # Of launches that cost too much, half may become parts of others: of a host, all.
        keeps = (float(unsure), 0.5 if seen.goes else 0.0, 0.0)
        return Change(frozenset(), goes=seen.goes, keeps=keeps, hurries=seen.hurries)
    if seen.hidden and seen.likely_ns is not None and seen.cost_ns:
        # At worst twice as much stays as is expected to.
        stays = 1 - min(1.0, seen.likely_ns / seen.cost_ns)
        keeps = (max(keeps[0], min(1.0, 2 * stays)), stays, 0.0)
    if seen.host_ops or seen.sooner_ns or seen.hidden or seen.freed_ns:
        return Change(
            seen.hidden, keeps=keeps, waits=seen.host_ops, sooner_ns=seen.sooner_ns,
            hides=bool(seen.hidden), stays_ns=seen.stays_ns, at_least_ns=seen.at_least_ns,
            at_worst_ns=seen.at_worst_ns, is_divided=seen.is_divided, freed_ns=seen.freed_ns,
        )  # fmt: skip
    if seen.instead:
        count, *times = seen.instead
        forward = _work(count, times, seen.basis, seen.instead_launches)
        backward = _work(count, seen.instead_backward, seen.basis, seen.instead_launches_backward)
        return Change(seen.kernels, count, forward, backward)
    if seen.is_idle or not seen.kernels or seen.saving_ns is None or not seen.cost_ns:
        return None
    whole = seen.cost_ns
    if not seen.is_symptom:
        # A collective that stands still for 51 of 56 ms moves data for the rest.
        spent = recording.kernels["duration_ns"].reindex(Labels(seen.kernels).array).sum()
        whole = max(whole, per_step(float(spent), recording))
    low, high = seen.saving_ns
    likely = (low + high) / 2 if seen.likely_ns is None else seen.likely_ns
    if seen.likely_ns is not None:
        low = max(low, round(LEAST_OF_LIKELY * seen.likely_ns))
    shares = [1 - min(1.0, max(0.0, ns / whole)) for ns in (low, likely, high)]
    keeps = (shares[0], shares[1], shares[2])
    return Change(seen.kernels, goes=seen.goes, dropped=seen.dropped, keeps=keeps)


def _work(count: int, times: Sequence[int] | None, basis: str, launches: int = 1) -> NewWork | None:
    """Return the kernels of each of ``count`` executions.

    ``times`` are the least and the most, and what is likely where that is not their middle.
    """
    if times is None:
        return None
    least, most, *likely = (ns / count for ns in times)
    return NewWork(launches, (most, likely[0] if likely else (least + most) / 2, least), basis)


def _only_collectives(seen: Observation, recording: Recording) -> bool:
    own = recording.kernels["communication"].reindex(Labels(seen.kernels).array)
    return bool(len(own)) and bool(own.all())


def _finding(
    diagnostic: Diagnostic, seen: Observation, recording: Recording, number: int
) -> report.Finding:
    own = recording.kernels.loc[Labels(seen.kernels).array, "type"] if seen.kernels else None
    found = finding(diagnostic, seen, seen.of_ns or recording.step_ns)
    return msgspec.structs.replace(
        found,
        evidence=[*found.evidence, *askers(seen, recording)],
        fingerprint=fingerprint(diagnostic, seen.places[0].path if seen.places else "", number),
        kernels=sorted(map(str, own.unique())) if own is not None else [],
        calls=round(len(seen.kernels) / recording.step_count),
    )


def askers(seen: Observation, recording: Recording) -> Iterator[report.Fact]:
    """Yield what of C++ asks for most of the kernels, where lines do not ask for as much.

    The gradients that ``torch::autograd::AccumulateGrad`` adds up have no line of the program.
    """
    rows = recording.kernels.loc[Labels(seen.kernels).array, _ASKED]
    whole = int(rows["duration_ns"].sum())
    unplaced = (rows["path"] == "").to_numpy(bool) & (rows["host_op"] >= 0).to_numpy(bool)
    rows = rows[unplaced & ~rows["communication"].to_numpy(bool)]
    if rows.empty:
        return
    outer = _list_outermost(recording)
    if outer.empty:  # a mark around a step, or annotations alone
        return
    starts = recording.host_ops["start_ns"].reindex(rows["host_op"]).to_numpy()
    at = np.searchsorted(outer["start_ns"].to_numpy(), starts, side="right") - 1
    names = outer["name"].array
    texts = [str(text).removeprefix(_OF_GRADIENTS) for text in names.categories]
    names = np.array([*texts, None], object)[names.codes[at.clip(min=0)]]
    spent = rows["duration_ns"].groupby(names).agg(["sum", "size"])
    spent = spent[~spent.index.str.match(_OWN_OPERATORS)]
    if spent.empty:
        return
    name = str(spent["sum"].idxmax())
    total, count = spent.loc[name].tolist()
    steps = max(1, recording.step_count)
    if 2 * total >= whole and total / steps > sum(place.cost_ns for place in seen.places):
        kernels = format_count(count / steps, "kernel")
        yield report.Fact(report.ASKER, f"{name}: {kernels}, {milliseconds(total / steps)}")


@keep_result
def _list_outermost(recording: Recording) -> pd.DataFrame:
    """Return the starts and names of the operators of the host that lie within no other."""
    host_ops = recording.host_ops
    return host_ops[["start_ns", "name"]].iloc[outermost_operators(host_ops)]


def finding(
    diagnostic: Diagnostic | ClusterDiagnostic,
    seen: Observation | ClusterObservation,
    step_ns: int,
) -> report.Finding:
    """Return an observation as a finding, without kernels and fingerprint."""
    first = seen.places[0] if seen.places else None
    saving = None
    if seen.saving_ns is not None:
        low, high = (min(max(0, value), step_ns) for value in seen.saving_ns)
        saving = report.Saving(low, high, seen.basis)
    return make_finding(
        diagnostic,
        (first.path, first.line, first.function) if first else ("", 0, ""),
        device_ns=seen.cost_ns,
        step_ns=step_ns,
        saving=saving,
        kind="run",
        what=seen.what,
        advice=seen.advice or diagnostic.advice,
        evidence=[report.Fact(name, value) for name, value in seen.evidence],
        places=seen.places,
    )


def fingerprint(diagnostic: Diagnostic | ClusterDiagnostic, path: str, number: int) -> str:
    """Return a name that survives new numbers: the rule, the file, and which of several."""
    return hashlib.sha256(f"{diagnostic.id}\0{path}\0{number}".encode()).hexdigest()[:16]
