"""What was predicted of changes and what they gained in fact: the user's own calibration.

``npufix compare`` keeps the pairs in one CSV file, ``calibration.csv`` in the folder of npufix
below ``XDG_STATE_HOME``; ``NPUFIX_CALIBRATION`` names another file, or is ``off``. Predictions of a
rule with a few pairs are corrected by them.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import statistics
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from npufix.rewriters.write.user_folders import state_folder, write_whole
from npufix.rules.shared.labels import Labels

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from npufix.advisor.evidence.change import Corners, NewWork
    from npufix.advisor.evidence.item import T
    from npufix.advisor.evidence.lines import Evidence

_VARIABLE, _OFF = "NPUFIX_CALIBRATION", "off"
_MOST_PAIRS, _LARGEST_FILE = 5_000, 1 << 22
_FEWEST = 2
"""Pairs of a rule that are more than chance."""
_NOISE = 0.02
"""By how much two runs of the same kernels differ."""
_PLAIN = re.compile(r"[^\w .:-]")


class Pair(NamedTuple):
    """One change: nanoseconds per step that its kernels were to save, and did."""

    run: str
    """Which comparison it is of: each counts once."""
    rule: str
    chip: str
    low_ns: int
    high_ns: int
    measured_ns: int

    @property
    def ratio(self) -> float:
        """Return how much of what was expected came; below 0 for a loss."""
        return self.measured_ns / ((self.low_ns + self.high_ns) / 2)


def calibration_file() -> Path | None:
    """Return where the pairs are kept, ``None`` where the user wants none."""
    chosen = os.environ.get(_VARIABLE, "").strip()
    if chosen.lower() == _OFF:
        return None
    return Path(chosen) if chosen else state_folder("calibration.csv")


def read_pairs(path: Path | None = None) -> list[Pair]:
    """Return the pairs of the file, none where it cannot be read; damaged rows are left out."""
    path = path or calibration_file()
    try:
        if path is None or path.stat().st_size > _LARGEST_FILE:
            return []
        rows = list(csv.DictReader(io.StringIO(path.read_text("utf-8"))))
    except (OSError, ValueError, csv.Error):
        return []
    found = []
    for row in rows:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            low, high, measured = (int(row[name]) for name in Pair._fields[3:])
            if low + high > 0:
                found.append(Pair(row["run"], row["rule"], row["chip"], low, high, measured))
    return found


def keep_pairs(pairs: Iterable[Pair]) -> Path | None:
    """Add pairs to the file, as a whole or not at all; return it, ``None`` if nothing was kept."""
    path = calibration_file()
    own = {(pair.run, pair.rule): _plain(pair) for pair in pairs if pair.low_ns + pair.high_ns > 0}
    if path is None or not own:
        return None
    known = [pair for pair in read_pairs(path) if (pair.run, pair.rule) not in own]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([Pair._fields, *[*known, *own.values()][-_MOST_PAIRS:]])
    try:
        write_whole(path, text.getvalue().encode("utf-8"))
    except OSError:
        return None
    return path


def correct(items: Sequence[T], evidence: Evidence, chip: str | None) -> list[T]:
    """Return the findings with changes that gain as much as those of their rules did before."""
    known = _by_rule(read_pairs(), chip) if any(item.change for item in items) else {}
    return [_with(item, evidence, known[item.finding.rule]) if item.finding.rule in known else item
            for item in items]  # fmt: skip


def _by_rule(pairs: Iterable[Pair], chip: str | None) -> Mapping[str, list[float]]:
    """Return the ratios of the rules that have enough pairs, of this chip or of an unknown one."""
    found: dict[str, list[float]] = {}
    for pair in pairs:
        if not (pair.chip and chip) or pair.chip == _PLAIN.sub("", chip):
            found.setdefault(pair.rule, []).append(pair.ratio)
    return {rule: ratios for rule, ratios in found.items() if len(ratios) >= _FEWEST}


def _with(item: T, evidence: Evidence, ratios: list[float]) -> T:
    change = item.change
    if change is None:
        return item
    gains = _spread(ratios)
    if not change.executions:
        part = 1 - change.keeps[1]
        low, expected, high = (min(1.0, max(0.0, 1 - ratio * part)) for ratio in gains)
        return replace(item, change=replace(change, keeps=(low, expected, high)))
    kernels = evidence.kernels
    old = float(kernels.loc[Labels(change.kernels).array, "duration_ns"].sum()) / change.executions
    works = [work for work in (change.forward, change.backward) if work]
    new = sum(work.time_ns[1] for work in works)
    if not 0 < new < old:  # what is predicted as a loss has nothing to be corrected
        return item
    stated, saved = item.finding.saving, old - new
    if stated:  # which is what the pairs were held against
        saved = (stated.low_ns + stated.high_ns) / 2 * evidence.steps / change.executions
    low, expected, high = (max(0.0, old - ratio * saved) / new for ratio in gains)
    made = replace(
        change,
        forward=_scale(change.forward, (low, expected, high), len(ratios)),
        backward=_scale(change.backward, (low, expected, high), len(ratios)),
    )
    return replace(item, change=made)


def _spread(ratios: list[float]) -> Corners:
    """Return between what the next change lies, and what it is likely to be.

    Beyond the least and the most of few: of two, one in three lies between them.
    """
    middle, wider = statistics.median(ratios), (len(ratios) + 1) / (len(ratios) - 1)
    below, above = (
        max(_NOISE * abs(middle), wider * far)
        for far in (middle - min(ratios), max(ratios) - middle)
    )
    return middle - below, middle, middle + above


def _scale(work: NewWork | None, factors: Corners, pairs: int) -> NewWork | None:
    if work is None:
        return None
    low, expected, high = (work.time_ns[1] * factor for factor in factors)
    basis = f"{work.basis}, corrected by {pairs} measured changes of this rule"
    return replace(work, time_ns=(low, expected, high), basis=basis)


def _plain(pair: Pair) -> Pair:
    run, rule, chip = (_PLAIN.sub("", text) for text in pair[:3])
    return Pair(run, rule, chip, *pair[3:])
