"""Finds kernels that run one after the other: ``Add`` then ``LayerNorm``, device by device.

    found = find(recording, ("Add", "LayerNorm|LayerNormV3"), between=("Cast",), within="line")
    if found.count: yield Observation(..., cost_ns=found.cost_ns, places=found.places(),
                                      kernels=found.labels)

Everything is done on whole columns; no occurrence and no kernel is looked at in Python.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from npufix.rules.diagnostic import keep_result
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.recording.observing import per_step, places

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.rules.diagnostic import Place, Recording

    Integers = NDArray[np.int64]
    Mask = NDArray[np.bool_]

_WITHIN = {
    "": (),
    "line": ("path", "line"),
    "function": ("path", "function"),
    "module": ("module",),
    "operator": ("host_op",),
}


@dataclass(frozen=True, eq=False, slots=True)
class Occurrences:
    """Where a sequence of kernels was found; no kernel takes part in two occurrences."""

    recording: Recording
    rows: Integers
    """One line per occurrence, one column per part: positions in ``recording.kernels``."""

    @property
    def count(self) -> int:
        """Return the number of occurrences over the steady steps."""
        return len(self.rows)

    @property
    def per_step(self) -> float:
        """Return the number of occurrences per step."""
        return self.count / max(1, self.recording.step_count)

    @property
    def kernels(self) -> pd.DataFrame:
        """Return the kernels that take part, in start order within each occurrence."""
        return self.recording.kernels.iloc[self.rows.ravel()]

    @property
    def labels(self) -> Labels:
        """Return their index labels, as ``Observation.kernels`` wants them."""
        return Labels(self.recording.kernels.index[self.rows.ravel()])

    @property
    def durations(self) -> Integers:
        """Return the time of each kernel, shaped as ``rows``."""
        spent: Integers = self.recording.kernels["duration_ns"].to_numpy()[self.rows]
        return spent

    @property
    def cost_ns(self) -> int:
        """Return the time of all kernels that take part, per step."""
        return per_step(int(self.durations.sum()), self.recording)

    def inside(self, types: Collection[str]) -> Integers:
        """Return the rows of these Types that run between the parts of an occurrence."""
        kernels = self.recording.kernels
        order = in_order(kernels)
        at = np.empty_like(order)
        at[order] = np.arange(len(order))
        borders = np.zeros(len(order), np.int64)
        borders[at[self.rows[:, 0]]] += 1
        borders[at[self.rows[:, -1]]] -= 1
        rows = order[np.cumsum(borders) > 0]
        chosen: Integers = rows[kernels["type"].isin(types).to_numpy()[rows]]
        return chosen

    def beside(self, kind: str) -> tuple[Integers, Integers]:
        """Return the kernels of a Type right before and right behind each occurrence, else -1.

        They are on as many elements as the part that they are next to.
        """
        kernels = self.recording.kernels
        order = in_order(kernels)
        is_kind = (kernels["type"] == kind).to_numpy(bool)
        at = np.empty_like(order)
        at[order] = np.arange(len(order))
        found = []
        for part, apart in ((0, -1), (-1, 1)):
            own = self.rows[:, part]
            rows = order[(at[own] + apart).clip(0, len(order) - 1)]
            near = np.flatnonzero(is_kind[rows] & (rows != own))
            beside = np.full_like(rows, -1)
            if len(near):
                ends = (rows[near], own[near]) if part == 0 else (own[near], rows[near])
                shapes = [
                    kernels[name].iloc[end].astype(str).str.split(";").str[0].to_numpy()
                    for end, name in zip(ends, ("output_shapes", "input_shapes"), strict=True)
                ]
                fits = near[(shapes[0] == shapes[1]) & (shapes[0] != "")]
                beside[fits] = rows[fits]
            found.append(beside)
        return found[0], found[1]

    def part(self, number: int, *columns: str) -> pd.DataFrame:
        """Return the kernels of one part, one row per occurrence; all columns if none is named."""
        kernels = self.recording.kernels
        asked = kernels[list(columns)] if columns else kernels
        return asked.iloc[self.rows[:, number]]

    def part_cost_ns(self, number: int) -> int:
        """Return the time per step of one part: what a fused kernel does not save, for one."""
        return per_step(int(self.durations[:, number].sum()), self.recording)

    def places(self, at: int = 0) -> tuple[Place, ...]:
        """Return the lines that asked for part ``at``, each with the time of whole occurrences."""
        return places(
            self.part(at, "path", "line", "function"), self.durations.sum(axis=1), self.recording
        )

    def where(self, chosen: Mask) -> Occurrences:
        """Return the chosen occurrences."""
        return replace(self, rows=self.rows[chosen])

    def without(self, labels: Collection[int]) -> Occurrences:
        """Return the occurrences none of whose kernels is in ``labels``, told already."""
        own = self.recording.kernels.index.to_numpy()[self.rows]
        told = np.isin(own, Labels(labels).array)
        return self.where(np.logical_not(np.any(told, axis=1)))


def find(
    recording: Recording,
    parts: Sequence[str],
    *,
    between: Collection[str] = (),
    within: str = "",
) -> Occurrences:
    """Return every place where kernels of these Types follow each other on one device.

    Args:
        recording: The steady steps of a run.
        parts: One per kernel: a regular expression that its whole Type matches.
        between: Types that may lie between; collectives always may, they have streams of their
            own. A Type that a part matches is a part.
        within: What all parts must share: ``line`` or ``function`` of the user, ``module``
            (the innermost), ``operator`` of the host; "" for nothing. Unknown is not shared.

    """
    kernels = recording.kernels
    nothing = Occurrences(recording, np.zeros((0, len(parts)), np.int64))
    if not parts or not all(_matching(recording, part).any() for part in parts):
        return nothing
    wanted = [_matching(recording, part) for part in parts]
    codes = kernels["type"].cat.codes.to_numpy()
    rows = in_order(kernels)
    skipped = _find_skipped(kernels, np.logical_or.reduce(wanted), between)
    if skipped is not None:
        rows = rows[~skipped[rows]]
    if len(rows) < len(parts):
        return nothing
    starts = _starts(codes[rows], wanted)
    found = rows[starts[:, None] + np.arange(len(parts))]
    together = _find_shared(kernels, found, ("device", "step", *_WITHIN[within]))
    starts, found = starts[together], found[together]
    return Occurrences(recording, found[_apart(starts, len(parts))])


@keep_result
def _matching(recording: Recording, pattern: str) -> Mask:
    """Tell which Types match, with a False for rows that have none (code -1)."""
    compiled = re.compile(pattern)
    names = recording.kernels["type"].cat.categories.tolist()
    matches = [compiled.fullmatch(str(name)) is not None for name in names]
    return np.array([*matches, False], np.bool_)


def in_order(kernels: pd.DataFrame) -> Integers:
    """Return the positions of the rows device by device in start order."""
    device, start = kernels["device"].to_numpy(), kernels["start_ns"].to_numpy()
    is_sorted = (start[1:] >= start[:-1]).all() and (device[1:] >= device[:-1]).all()
    return np.arange(len(start)) if is_sorted else np.lexsort((start, device))


def _find_skipped(kernels: pd.DataFrame, parts: Mask, between: Collection[str]) -> Mask | None:
    """Tell which rows a sequence runs over, ``None`` if no row is one."""
    names = kernels["type"].cat.categories
    may = np.array([*(str(name) in between for name in names), False], np.bool_) & ~parts
    collective = kernels["communication"].to_numpy(bool)
    if not may.any() and not collective.any():
        return None
    codes = kernels["type"].cat.codes.to_numpy()
    skipped: Mask = may[codes] | (collective & ~parts[codes])
    return skipped


def _starts(codes: NDArray[np.integer[Any]], wanted: Sequence[Mask]) -> Integers:
    """Return where in a line of Types one matches after the other."""
    starts = np.flatnonzero(wanted[0][codes[: len(codes) - len(wanted) + 1]])
    for offset, mask in enumerate(wanted[1:], start=1):
        starts = starts[mask[codes[starts + offset]]]
    return starts


def _find_shared(kernels: pd.DataFrame, found: Integers, columns: Sequence[str]) -> Mask:
    """Tell which occurrences have one known value in each column; no step is a step, too."""
    together = np.ones(len(found), np.bool_)
    for name in columns:
        column = kernels[name]
        if name == "step":
            values = column.to_numpy(np.int64, na_value=-1)
        else:
            values = (
                column.cat.codes.to_numpy() if column.dtype == "category" else column.to_numpy()
            )
        own = values[found]
        together &= (own == own[:, :1]).all(axis=1)
        if name in {"path", "function"}:
            unknown = np.array([*(str(text) == "" for text in column.cat.categories), True])
            together &= ~unknown[own[:, 0]]
        elif name in {"module", "host_op"}:
            together &= own[:, 0] >= 0
    return together


def _apart(starts: Integers, length: int) -> Integers:
    """Return the numbers of starts, first come first served, that leave ``length`` between them."""
    numbers = np.arange(len(starts))
    if not len(starts) or (np.diff(starts) >= length).all():
        return numbers
    # Each leads to the next that it leaves room for; what the first one leads to is taken. In each
    # round the leaps double.
    leap = np.append(np.searchsorted(starts, starts + length), len(starts))
    taken = np.zeros(len(starts) + 1, np.bool_)
    taken[0] = True
    while leap[0] < len(starts):
        taken[leap[taken]] = True
        leap = leap[leap]
    return numbers[taken[:-1]]
