"""Joins the places in the source with what the profile measured there."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from npufix.advisor.diagnose.folding import fold
from npufix.advisor.diagnose.left_out import runs_in_steps
from npufix.advisor.evidence.change import Change
from npufix.advisor.evidence.estimate import Calibration, NewKernels, estimate_saving
from npufix.advisor.evidence.item import Item, make_finding, rank_items
from npufix.advisor.project.callers import Callers
from npufix.advisor.project.cold_files import made_around_loaders, made_for_gpus, made_to_compare
from npufix.advisor.project.kept.stored import Store
from npufix.advisor.project.kept_tree import KeptTree
from npufix.advisor.project.known_names import rule_names
from npufix.advisor.project.scanning import REPORT_IT, Search
from npufix.advisor.roofline.products import GRADIENT
from npufix.advisor.roofline.work import work_of
from npufix.reports import report
from npufix.reports.code_digest import digest, normal_form
from npufix.rewriters.facts.steps.occasion import Occasion
from npufix.rewriters.write.user_folders import private_cache_folder
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.recording.recorded_cells import (
    CELLS,
    distinct_cells,
    dtype_name,
    tensor_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.advisor.evidence.kernel_times import MeasuredKernels
    from npufix.advisor.evidence.lines import Evidence
    from npufix.advisor.project.source_tree import SourceFile, SourceTree
    from npufix.rewriters.edit.site import Site
    from npufix.rewriters.match.recorded_call import RecordedCall
    from npufix.rules.substitution import Substitution


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Located(Item):
    """A site with its file and its finding."""

    file: SourceFile
    site: Site

    def with_places(self, places: Sequence[report.Place]) -> Located:
        """Return this with the other places that it speaks for."""
        more = msgspec.structs.replace(self.finding, places=list(places))
        return replace(self, finding=more)


@dataclass(frozen=True, slots=True)
class Findings:
    """What a source tree holds, what went wrong, and what the user should know beside it."""

    found: list[Located]
    problems: list[report.Problem]
    warnings: list[str]
    left_out: int = 0
    """How many are in code that no step runs, and are not shown."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What turns kernels at a place into time per step and an estimate."""

    evidence: Evidence
    calibration: Calibration
    step_ns: int
    """Length of the average step, or of the recording per step."""
    kernel_times: MeasuredKernels
    proves: bool
    """Whether the source is the one that was profiled, so that records count as proof."""


def locate(  # noqa: PLR0913 - what is searched, and for whom
    tree: SourceTree,
    rules: Sequence[Substitution],
    measured: Measured | None,
    *,
    with_text: bool = True,
    cache: bool = False,
    to_write: bool = False,
    to_compare: bool = False,
) -> Findings:
    """Return every finding of a source tree, the most rewarding first, and what went wrong.

    Without ``with_text`` the sites are for a report only: no patch can be made of them. With
    ``cache`` files are not searched again that were searched before. Where it is ``to_write``, what
    is to be changed in several files is a finding in each; ``to_compare`` as in ``fold``.
    """
    found: list[Located] = []
    problems: list[report.Problem] = []
    warnings: list[str] = []
    unread = set[str]()

    @functools.cache
    def recorded(relative: str) -> Mapping[int, Sequence[RecordedCall]] | None:
        proves = measured is not None and measured.proves
        return measured.evidence.recorded(relative) if measured and proves else None

    if measured is None:  # nobody could say that they are worth it
        named = bool(tree.configuration.select)
        rules = [r for r in rules if not r.launches_together and (named or not r.measured_only)]
    everything = measured is not None or tree.configuration.everywhere
    left_out = 0
    store = Store(private_cache_folder("searches")) if cache else None
    search = Search(rules, tree.configuration, recorded, rule_names(), with_text, store)
    kept = None
    if store is not None and measured is None and not with_text:
        kept = KeptTree(tree, search, f"{to_write} {to_compare}")
        if (known := kept.get(Findings)) is not None:
            return known
    read = [f for _, f in sorted(tree.files.items()) if f.is_python or measured is None]
    for_others = made_for_gpus(tree.files) | made_to_compare(tree.files)
    of_samples = made_around_loaders(tree.files)
    callers = Callers(tree.files, store)
    for file, result in search.files(read):
        at = PurePosixPath(file.relative)
        above = frozenset(map(str, (at, *at.parents)))
        elsewhere, on_samples = not for_others.isdisjoint(above), not of_samples.isdisjoint(above)
        sites = [
            site
            for site in result.sites
            if everything
            or (
                not elsewhere
                and (not on_samples or site.rule.search == "data-loaders")
                and runs_in_steps(tree, file, site, callers)
            )
        ]
        left_out += len(result.sites) - len(sites)
        found += _with_evidence(file, sites, measured)
        if result.problem is not None:
            problems.append(result.problem)
            unread.add(file.relative)
        warnings += result.warnings
    callers.keep()
    ranked = rank_items(found)
    if measured is None:
        ranked = fold(ranked, tree, to_write=to_write, to_compare=to_compare)
    every = Findings(ranked, problems, warnings, left_out)
    if kept is not None and not any(problem.remedy == REPORT_IT for problem in problems):
        kept.put(every, unread)
    return every


_SELECTS = frozenset({"NonZero", "NonZeroV2", "MaskedSelect", "MaskedSelectV3"})
_STAYS = re.compile(
    r"(Reduce|Conv|Transpose)\w*|\w*(Mat[Mm]ul|Norm|Embedding|Attention|Pool|Loss)\w*"
)
"""Gradients of weights, and what computes more than element by element."""


def _with_evidence(
    file: SourceFile, sites: Sequence[Site], measured: Measured | None
) -> Iterator[Located]:
    seen: dict[str, int] = {}
    for site in sites:
        if measured is None:
            if not site.rule.launches_together:
                finding = _finding(file, site, seen)
                seldom = int(not site.is_hot) if site.occasion is Occasion.STEP else 2
                yield Located(file=file, site=site, finding=finding, seldom=seldom)
            continue
        kernels = measured.evidence.at(file.relative, site)
        if site.rule.launches_together:
            types = set(kernels["type"].astype(str))
            if not all(types & set(group) for group in site.rule.launches_together):
                continue
        own = _taken_over(site, kernels, measured.evidence)
        new = _new_kernels(file, site, own, measured) if len(own) else None
        finding = _finding(file, site, seen, own, new, measured)
        labels = Labels(own.index)
        change = None if new is None else _change(file, site, own, new, measured)
        yield Located(file=file, site=site, finding=finding, kernels=labels, change=change)


def _taken_over(site: Site, kernels: pd.DataFrame, evidence: Evidence) -> pd.DataFrame:
    """Return those kernels at a place that its replacement takes over.

    They are of the Types that the rule names, or of an operator that its pattern stands for. Where
    a place computes nothing else forward, what its gradient does element by element is of it: that
    of a subtraction is a ``Neg``, that of a mean a ``Muls``. That of a bias is still to be summed.
    """
    from npufix.profiling_parsers.tables.columns import find_rows_with

    if not site.rule.replaces:
        return kernels[:0]
    own = find_rows_with(kernels["type"], frozenset(site.rule.replaces).__contains__)
    if not own.any():
        return kernels[:0]
    backward = _is_backward(kernels)
    asked = evidence.host_ops["name"].reindex(kernels["host_op"]).isin(list(site.operators))
    forward = own | (asked.to_numpy(bool) & ~backward)
    if forward[~backward].all():
        stays = find_rows_with(kernels["type"], lambda name: _STAYS.fullmatch(name) is not None)
        own = own | (backward & ~stays & _is_going(site, kernels))
    return kernels[np.where(backward, own, forward)]


def _change(
    file: SourceFile, site: Site, kernels: pd.DataFrame, new: NewKernels, measured: Measured
) -> Change | None:
    going = kernels[_is_going(site, kernels)]
    if going.empty:
        return None
    becomes = site.rule.becomes
    forward, backward = new.work(measured.calibration, measured.kernel_times, becomes)
    # What no longer selects by a mask does not wait for how many it selects.
    selects = not _SELECTS.isdisjoint(going["type"]) and _SELECTS.isdisjoint(becomes)
    waits = measured.evidence.selections(file.relative, site.lines) if selects else frozenset()
    labels = Labels(going.index)
    return Change(labels, max(1, new.forward_calls), forward, backward, waits=waits)


def _finding(  # noqa: PLR0913, PLR0917 - a site, and what was measured of it
    file: SourceFile,
    site: Site,
    seen: dict[str, int],
    kernels: pd.DataFrame | None = None,
    new: NewKernels | None = None,
    measured: Measured | None = None,
) -> report.Finding:
    device_ns = calls = 0
    expected = None
    if kernels is not None and measured is not None and new is not None:
        steps = measured.evidence.steps
        device_ns = round(int(kernels["duration_ns"].sum()) / steps)
        calls = round(len(kernels) / steps)
        going = kernels["duration_ns"].to_numpy()[_is_going(site, kernels)]
        expected = estimate_saving(int(going.sum()), new, measured.calibration, steps)
    return make_finding(
        site.rule,
        (file.relative, site.line, site.function),
        device_ns=device_ns,
        step_ns=measured.step_ns if measured else 0,
        saving=expected,
        fingerprint=_fingerprint(file, site, seen),
        code=site.code,
        replacement=site.rewrite.text if site.rewrite else "",
        safety=site.safety.value,
        conditions=[
            report.Condition(p.condition.name, p.condition.text, p.basis.value) for p in site.proofs
        ],
        problem=site.problem,
        kernels={str(name) for name in kernels["type"]} if kernels is not None else (),
        calls=calls,
    )


def _new_kernels(
    file: SourceFile, site: Site, kernels: pd.DataFrame, measured: Measured
) -> NewKernels:
    evidence = measured.evidence
    counts = [
        evidence.executions(file.relative, site.line, site.lines, {name})
        for name in sorted(site.operators)
    ]
    has_backward = bool((kernels["basis"] == "forward").any())
    # Where no such call was recorded, each Type of a formula with a gradient ran once in each
    # execution: an optimizer, which has none, launches each of its Types for each parameter.
    types = kernels.loc[~_is_backward(kernels), "type"].value_counts()
    least = int(types[types > 0].min()) if has_backward and len(types) else 1
    forward = min((count for count in counts if count), default=least)
    cells, _ = distinct_cells(kernels, CELLS)
    largest, dtype = max(
        (size, dtype_name(dtypes.partition(";")[0]))
        for inputs, dtypes, outputs in cells
        for size in (*tensor_bytes(inputs, dtypes), *tensor_bytes(outputs, dtypes))
    )
    largest = _count_handed_over(kernels, largest)
    passes = site.form.passes or site.rule.passes
    backward = forward if has_backward else 0
    operations, products, computed = _operations(kernels, forward)
    dtype = computed or dtype  # attention reads bfloat16, however wide its scores were
    return NewKernels(
        forward, backward, largest, passes, site.form.launches, operations, dtype, products
    )


def _count_handed_over(kernels: pd.DataFrame, largest: int) -> int:
    """Return the bytes of a tensor as a place gets it and hands it on.

    Where it is converted to float32 and back within, the new kernel reads and writes half of that.
    """
    casts = kernels[(kernels["type"] == "Cast").to_numpy() & ~_is_backward(kernels)]
    cells, _ = distinct_cells(casts, CELLS[:2])
    sizes = {max(tensor_bytes(*cell), default=0) for cell in cells}
    return largest // 2 if {largest, largest // 2} <= sizes else largest


def _is_backward(kernels: pd.DataFrame) -> NDArray[np.bool_]:
    from npufix.profiling_parsers.tables.columns import find_rows_with

    return find_rows_with(kernels["basis"], {"forward", "forward-function"}.__contains__)


def _is_going(site: Site, kernels: pd.DataFrame) -> NDArray[np.bool_]:
    """Tell which kernels are of Types that the replacement has none of."""
    from npufix.profiling_parsers.tables.columns import find_rows_with

    return ~find_rows_with(kernels["type"], frozenset(site.rule.becomes).__contains__)


def _operations(
    kernels: pd.DataFrame, executions: int
) -> tuple[tuple[float, float], tuple[float, float], str]:
    """Return what the products of one execution compute, what they take now, ns, and their dtype.

    The first two forward, and in a fused gradient.
    """
    own = kernels[~_is_backward(kernels)]
    work = work_of(own)
    operations = work.operations[work.of_kernel]
    spent = own["duration_ns"].to_numpy()[operations > 0]
    forward, now = float(operations.sum()) / executions, float(spent.sum()) / executions
    kinds = own["input_dtypes"].astype(str)[operations > 0]
    dtype = dtype_name(kinds.iloc[0].partition(";")[0]) if len(kinds) else ""
    return (forward, forward * GRADIENT), (now, now * GRADIENT), dtype


def _fingerprint(file: SourceFile, site: Site, seen: dict[str, int]) -> str:
    """Return a name that survives moved lines and renamed locals.

    It is of rule, file, function, code, and which of twins.
    """
    key = site.rule.id, file.relative, site.function, normal_form(site.code)
    name = digest(*key)
    seen[name] = seen.get(name, 0) + 1
    return digest(*key, str(seen[name]))
