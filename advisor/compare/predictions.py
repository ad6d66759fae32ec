"""Predicted against measured: what the changes that were made have saved in fact.

Nobody has to say which changes were made. A finding of the first run counts as applied when its
slow kernels are launched at its place no more (or less often by at least half of its own), and
either its code is gone from the second source or the Types that its rule leads to came instead.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from npufix.advisor.compare.places import same_source
from npufix.advisor.predict.own_pairs import Pair
from npufix.reports.code_digest import digest
from npufix.reports.comparison import FindingChange, Prediction
from npufix.rules.registry import every_rule
from npufix.rules.shared.quantities import number
from npufix.rules.substitution import Substitution

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from npufix.advisor.compare.side import ComparedRun, ForecastFinding
    from npufix.advisor.project.source_tree import SourceTree
    from npufix.reports.comparison import Comparison
    from npufix.reports.report import Finding, Saving

_HALF = 0.5
_SAME_CALLS = 0.01
_TYPES_NAMED = 4
_NOISE = 0.02
"""Of the time of the kernels: two runs of the same ones differ by that."""


def pairs_of(comparison: Comparison) -> list[Pair]:
    """Return what the changes of one rule each were to save and did, for later predictions."""
    environment = comparison.before.environment
    chip = (environment.chip if environment else None) or ""
    sides = (comparison.before, comparison.after)
    steps = [(s.step, s.computing_ns, s.free_ns) for side in sides for s in side.recorded]
    return [
        Pair(
            digest(made.path, made.function, repr(steps)), made.rules[0], chip,
            made.low_ns, made.high_ns, made.measured_ns,
        )
        for made in comparison.predictions
        if len(made.rules) == 1
    ]  # fmt: skip


def finding_changes(before: ComparedRun, after: ComparedRun) -> list[FindingChange]:
    """Return which findings are gone, new or still there; nothing if a side knows none."""
    if not (before.knows_findings and after.knows_findings):
        return []
    old = {finding.fingerprint: finding for finding in before.findings}
    new = {finding.fingerprint: finding for finding in after.findings}
    made = []
    for key in dict.fromkeys([*old, *new]):
        one, other = old.get(key), new.get(key)
        some = one or other
        if some is None:  # pragma: no cover - each key is of one of them
            continue
        state = "gone" if other is None else "new" if one is None else "still there"
        made.append(
            FindingChange(
                key, some.rule, some.name or (other or some).name, some.path, some.function, state,
                *(f.line if f is not None and f.line else None for f in (one, other)),
                *(_time(f, run) for f, run in ((one, before), (other, after))),
            )
        )  # fmt: skip
    order = {"new": 0, "gone": 1, "still there": 2}
    return sorted(made, key=lambda c: (order[c.state], -max(c.before_ns or 0, c.after_ns or 0),
                                       c.rule, c.path, c.fingerprint))  # fmt: skip


def _time(finding: Finding | None, run: ComparedRun) -> int | None:
    """Return the device time at a finding; None where nothing says it."""
    if finding is None or run.shown.kind == "baseline":
        return None
    return round(finding.device_ns / run.shown.devices)


@dataclass(frozen=True)
class _Place:
    """A function's kernels in both runs, by Type: ``before_total_ns``, ``before_calls`` …."""

    types: pd.DataFrame

    def calls(self, side: str, types: set[str]) -> float:
        """Return how many kernels of these Types there are."""
        rows = self.types[self.types.index.isin(list(types))]
        return float(rows[f"{side}_calls"].sum())


@dataclass(frozen=True)
class _Applied:
    found: ForecastFinding
    place: _Place
    how: str
    """How it was seen."""
    said: str
    """What was seen."""


def predictions(
    before: ComparedRun, after: ComparedRun, paths: Mapping[str, str]
) -> tuple[list[Prediction], Prediction | None]:
    """Return predicted and measured saving of the applied changes, and of all together.

    Only dumps say which kernels ran at a place, so of reports and baselines there is nothing.
    """
    if before.cells is None or after.cells is None:
        return [], None
    rules = {rule.id: rule for rule in every_rule() if isinstance(rule, Substitution)}
    own = [item for item in before.found if item.finding.rule in rules and len(item.kernels)]
    places = _Places(before, after, paths)
    seen = [_find_applied(item, rules[item.finding.rule], after, places) for item in own]
    applied = sorted((item for item in seen if item is not None), key=_function)
    made = [_prediction(list(group), rules, before) for _, group in groupby(applied, _function)]
    made.sort(key=lambda p: (-abs(p.measured_ns), p.path, p.function))
    return made, _sum(made, [item.found for item in applied], before) if made else None


def _function(item: _Applied) -> tuple[str, str]:
    return item.found.finding.path, item.found.finding.function


class _Places:
    """The functions of both runs, the same in both although the code between has moved."""

    def __init__(self, before: ComparedRun, after: ComparedRun, paths: Mapping[str, str]) -> None:
        self._paths = {here: there for there, here in paths.items()}
        self._runs = before, after
        trees = before.tree, after.tree
        self.has_both_sources = None not in trees and not same_source(*trees)

    def of(self, finding: Finding) -> _Place:
        """Return the kernels of the function around a finding."""
        names = finding.path, self._paths.get(finding.path, finding.path)
        ranges = [
            _lines(run.tree, name, finding.function) if self.has_both_sources else None
            for run, name in zip(self._runs, names, strict=True)
        ]
        if None in ranges:  # then every function of that name counts, in both runs
            ranges = [None, None]
        sums = []
        for run, name, lines, side in zip(
            self._runs, names, ranges, ("before", "after"), strict=True
        ):
            if run.cells is None:  # pragma: no cover - asked before
                raise TypeError("no cells")
            cells = run.cells
            here = (cells["path"] == name) & ~cells["communication"]
            here &= cells["function"] == finding.function.rsplit(".", 1)[-1]
            if lines is not None:
                here &= cells["line"].between(*lines)
            by_type = cells[here].groupby("type")[["total_ns", "calls"]].sum()
            sums.append(by_type.add_prefix(f"{side}_"))
        return _Place(sums[0].join(sums[1], how="outer").fillna(0.0))


def _lines(tree: SourceTree | None, path: str, function: str) -> tuple[int, int] | None:
    """Return the first and the last line of a function, decorators included."""
    if tree is None or path not in tree.files:
        return None
    try:
        nodes: Sequence[ast.AST] = [ast.parse(tree.files[path].text)]
    except (SyntaxError, ValueError, RecursionError):
        return None
    for name in function.split("."):
        nodes = [
            child
            for node in nodes
            for child in ast.walk(node)
            if child is not node and getattr(child, "name", None) == name
            and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        ]  # fmt: skip
    if len(nodes) != 1 or not isinstance(nodes[0], (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    node = nodes[0]
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return first, node.end_lineno or node.lineno


def _find_applied(
    item: ForecastFinding, rule: Substitution, after: ComparedRun, places: _Places
) -> _Applied | None:
    """Return a finding that was changed in the second run, and how that was seen."""
    finding, place = item.finding, places.of(item.finding)
    going = set(rule.replaces) - set(rule.becomes)
    arriving = {
        name for name in rule.becomes
        if place.calls("after", {name}) > place.calls("before", {name}) * (1 + _SAME_CALLS)
    }  # fmt: skip
    had, has = place.calls("before", going), place.calls("after", going)
    fewer = had - has >= _HALF * min(had, float(finding.calls)) > 0
    searched = places.has_both_sources
    still = any(other.fingerprint == finding.fingerprint for other in after.findings)
    if searched and not still and (fewer or arriving):
        how = "its code is gone from the second source"
    elif fewer and arriving:
        how = "told by the kernels alone"
    elif fewer and not has:
        how = "told by the kernels alone, none of which is left"
    else:
        return None
    gone = sorted(name for name in going if place.calls("before", {name}) > 0)
    said = f"{_name_types(gone)}: {number(had)} -> {number(has)} kernels per step"
    instead = f"; {_name_types(sorted(arriving))} launched there instead" if arriving else ""
    return _Applied(item, place, how, f"{said}{instead}")


def _prediction(
    group: list[_Applied], rules: Mapping[str, Substitution], run: ComparedRun
) -> Prediction:
    """Return the findings of one function: what was said, and what came of it."""
    finding = group[0].found.finding
    types = group[0].place.types
    touched = {name for item in group for name in rules[item.found.finding.rule].becomes}
    # Kernels of the function that run as often as before are not those of the change.
    differ = (types["before_calls"] - types["after_calls"]).abs() > _SAME_CALLS
    own = types[differ | types.index.isin(list(touched))]
    before_ns, after_ns = round(own["before_total_ns"].sum()), round(own["after_total_ns"].sum())
    low, high = _interval([item.found for item in group], run)
    return Prediction(
        rules=sorted({item.found.finding.rule for item in group}),
        path=finding.path,
        function=finding.function,
        lines=sorted({item.found.finding.line for item in group}),
        low_ns=low,
        high_ns=high,
        measured_ns=before_ns - after_ns,
        verdict=_verdict(low, high, before_ns, after_ns),
        before_ns=before_ns,
        after_ns=after_ns,
        basis=next((saving.basis for i in group if (saving := _saving(i.found))), ""),
        decided="; ".join(dict.fromkeys([*(a.how for a in group), *(a.said for a in group)])),
    )


def _sum(
    made: Sequence[Prediction], found: Sequence[ForecastFinding], run: ComparedRun
) -> Prediction:
    low, high = _interval(found, run)
    before_ns = sum(item.before_ns for item in made)
    after_ns = sum(item.after_ns for item in made)
    return Prediction(
        rules=sorted({rule for item in made for rule in item.rules}),
        path="",
        function="",
        lines=[],
        low_ns=low,
        high_ns=high,
        measured_ns=before_ns - after_ns,
        verdict=_verdict(low, high, before_ns, after_ns),
        before_ns=before_ns,
        after_ns=after_ns,
        basis="sum of the findings, shared kernels counted once",
        decided="",
    )


def _verdict(low: int, high: int, before_ns: int, after_ns: int) -> str:
    noise, measured = _NOISE * before_ns, before_ns - after_ns
    if measured < low - noise:
        return "saved less"
    return "saved more" if measured > high + noise else "held"


def _interval(found: Sequence[ForecastFinding], run: ComparedRun) -> tuple[int, int]:
    """Return what findings were said to save together, kernels that they share counted once."""
    claimed = np.zeros(1 + max((int(f.kernels.max()) for f in found), default=0), np.bool_)
    low = high = 0.0
    for item in sorted(found, key=_expect):
        share = 1.0 - float(claimed[item.kernels].mean())
        claimed[item.kernels] = True
        saving = _saving(item)
        if saving is not None:
            low += saving.low_ns * share
            high += saving.high_ns * share
    return round(low / run.shown.devices), round(high / run.shown.devices)


def _saving(item: ForecastFinding) -> Saving | None:
    """Return what was said of the kernels: that is what both recordings show."""
    return item.finding.kernel_saving or item.finding.saving


def _expect(item: ForecastFinding) -> tuple[float, str]:
    saving = _saving(item)
    return -(saving.low_ns + saving.high_ns) if saving else 0.0, item.finding.fingerprint


def _name_types(types: Sequence[str]) -> str:
    more = f" and {len(types) - _TYPES_NAMED} more" if len(types) > _TYPES_NAMED else ""
    return f"{', '.join(types[:_TYPES_NAMED])}{more}"
