"""kernel_details.csv: one row per device task, in every header that the profiler has written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa

from npufix.profiling_parsers import remedies
from npufix.profiling_parsers.kernels.cells import (
    COMMUNICATION_CORES,
    clean_shapes,
    clean_text,
    clean_type,
    step_ids,
)
from npufix.profiling_parsers.kernels.pmu_bound import dominant_pipe
from npufix.profiling_parsers.kernels.types import fill_types
from npufix.profiling_parsers.profile import DumpError, Problem
from npufix.profiling_parsers.tables import kernel_times
from npufix.profiling_parsers.tables.columns import join_categories
from npufix.profiling_parsers.tables.csv_columns import ColumnSelection, read_blocks, read_columns
from npufix.profiling_parsers.tables.csv_lines import read_header
from npufix.profiling_parsers.text.kernel_header import (
    COLUMNS,
    REQUIRED,
    find_missing_columns,
    find_ratio_columns,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from npufix.profiling_parsers.tables.csv_columns import CsvColumns

_TYPES = {
    "start": kernel_times.START,
    "duration": kernel_times.DURATION,
    "wait": kernel_times.DURATION,
}
_START_AND_DURATION = ("start_ns", "duration_ns")


@dataclass(frozen=True)
class Kernels:
    """The rows, with the columns of ``Profile.kernels`` that such a file has, in start order."""

    frame: pd.DataFrame
    malformed: int
    """Number of rows left out: a wrong number of fields, or no time where one must be."""
    problems: tuple[Problem, ...] = ()
    """What is damaged: malformed rows, a cut end, columns that someone dropped."""
    rounded: bool = False
    """The starts have lost digits, so that kernels after each other may seem to start together."""


@dataclass(frozen=True)
class _Part:
    """Some of the rows: those that are kernels, and the number of all."""

    frame: pd.DataFrame
    rows: int
    rounded: int | None
    """How many starts lost digits, ``None`` if it cannot be told from the numbers."""


def read_kernel_details(path: Path, only: Collection[str] = ()) -> Kernels:
    """Read the kernels, of some columns where given; raise ``DumpError`` if there is no kernel."""
    return join_kernels([read_kernel_table(path, only=only)], path)


def join_kernels(tables: list[Kernels], path: Path) -> Kernels:
    """Put tables of one run together; raise ``DumpError`` if they hold no kernel at all."""
    malformed = sum(table.malformed for table in tables)
    frame = _concatenate([table.frame for table in tables])
    if frame.empty:
        rows = f", all {malformed} rows are malformed" if malformed else ""
        raise DumpError(
            f"{path}: no kernels{rows}",
            "profile at least one step with ProfilerActivity.NPU in activities; if it was, "
            + remedies.analyse(path.parent.parent),
        )
    problems = [problem for table in tables for problem in table.problems]
    frame = _in_start_order(frame)
    again = _find_repeated(frame)
    if again.any() and not any(table.rounded for table in tables):
        problems += _list_repetitions(path, int(again.sum()), len(frame))
        frame = frame[~again].reset_index(drop=True)
    return Kernels(frame, malformed, tuple(problems))


def read_kernel_table(
    path: Path,
    names: Mapping[str, tuple[str, ...]] = COLUMNS,
    required: tuple[str, ...] = REQUIRED,
    only: Collection[str] = (),
) -> Kernels:
    """Read one file, its rows as they come; raise ``DumpError`` if it is none.

    ``names`` are the spellings of the columns, by the keys of ``kernel_header.COLUMNS``. Where
    ``only`` some of these keys are wanted, the other columns of the result are empty.
    """
    header = read_header(path)
    ratios = () if only else find_ratio_columns(header)
    chosen = {key: names[key] for key in only or names if key in names}
    wanted = ColumnSelection(
        names={**chosen, **{ratio: (ratio,) for ratio in ratios}},
        required=required,
        plain=tuple(_TYPES),
        numbers={**_TYPES, **dict.fromkeys(ratios, pa.float32())},
    )
    blocks = read_blocks(path, wanted, lambda columns: _convert(columns, ratios))
    rows = sum(part.rows for part in blocks.parts) + blocks.malformed
    rounded = _count_rounded(path, names, blocks.parts)
    frame = _concatenate([part.frame for part in blocks.parts])
    plausible = kernel_times.find_plausible(*(frame[key].to_numpy() for key in _START_AND_DURATION))
    frame = frame if plausible.all() else frame[plausible]
    problems = [
        *_row_problems(path, rows - len(frame), rows, endless=blocks.endless),
        *_header_problems(path, find_missing_columns(header) if names is COLUMNS else []),
        *_rounding_problems(path, rounded),
    ]
    return Kernels(fill_types(frame), rows - len(frame), tuple(problems), bool(rounded))


def _convert(columns: CsvColumns, ratios: tuple[str, ...]) -> _Part:
    """Return the kernels of a block, without the rows that are none."""
    start, has_start = kernel_times.read_starts(columns)
    duration, has_duration = kernel_times.read_durations(columns, "duration")
    core, step = columns.category("core", clean_text), columns.category("step", clean_text)
    types = columns.category("type", clean_type)
    bound, bound_ratio = dominant_pipe({name: columns.floats(name) for name in ratios}, types)
    frame = pd.DataFrame(
        {
            "step": step_ids(step),
            "name": columns.category("name"),
            "type": types,
            "core": core,
            "start_ns": start,
            "duration_ns": duration,
            "wait_ns": kernel_times.read_waits(columns),
            "input_shapes": columns.category("input_shapes", clean_shapes),
            "input_dtypes": columns.category("input_dtypes", clean_shapes),
            "output_shapes": columns.category("output_shapes", clean_shapes),
            "communication": np.isin(core.codes, _codes_of(core, COMMUNICATION_CORES.__contains__)),
            "device": _numbers(columns.category("device", clean_text)),
            "stream": _numbers(columns.category("stream", clean_text)),
            "state": columns.category("state", clean_text),
            "hf32": columns.category("hf32", clean_text),
            "bound": bound,
            "bound_ratio": bound_ratio,
        }
    )
    shifted = np.isin(core.codes, _codes_of(core, _is_number))
    shifted |= np.isin(step.codes, _codes_of(step, _is_no_step))
    usable = has_start & has_duration & ~shifted
    return _Part(
        frame if usable.all() else frame[usable],
        len(frame),
        None
        if columns.is_a("start", kernel_times.START)
        else kernel_times.count_rounded(columns.text("start")),
    )


def _concatenate(frames: list[pd.DataFrame]) -> pd.DataFrame:
    """Put frames of the same columns below each other."""
    if len(frames) == 1:
        return frames[0]
    columns = {}
    for name in list(frames[0].columns):
        parts = [frame.pop(name) for frame in frames]  # so that no column is held twice for long
        coded = isinstance(parts[0].dtype, pd.CategoricalDtype)
        columns[name] = join_categories(parts) if coded else pd.concat(parts, ignore_index=True)
    return pd.DataFrame(columns, copy=False)


def _in_start_order(frame: pd.DataFrame) -> pd.DataFrame:
    if frame["start_ns"].is_monotonic_increasing:
        return frame.reset_index(drop=True)
    return frame.sort_values("start_ns", kind="stable", ignore_index=True)


def _find_repeated(frame: pd.DataFrame) -> NDArray[np.bool_]:
    """Return which rows, in start order, say what an earlier one has said.

    A stream runs one kernel at a time: two of one name cannot start on it together.
    """
    start = frame["start_ns"].to_numpy()
    together = np.zeros(len(frame), np.bool_)
    np.equal(start[1:], start[:-1], out=together[1:])
    together[:-1] |= together[1:]
    rows = np.flatnonzero(together)
    same = frame.loc[rows, ["device", "stream", "start_ns", "duration_ns", "name"]].duplicated()
    repeated = np.zeros(len(frame), np.bool_)
    repeated[rows] = same.to_numpy()
    return repeated


def _list_repetitions(path: Path, repeated: int, rows: int) -> list[Problem]:
    what = f"{repeated} of {rows} rows repeat an earlier one and are left out"
    return [Problem(path.name, what, _copy_again(path), damaged=True)]


def _row_problems(path: Path, malformed: int, rows: int, *, endless: bool) -> list[Problem]:
    if malformed:
        what = f"{malformed} of {rows} rows are malformed and left out"
    elif endless:
        what = "the last line has no end: kernels after it may be missing"
    else:
        return []
    return [Problem(path.name, what, _copy_again(path), damaged=True)]


def _header_problems(path: Path, missing: list[str]) -> list[Problem]:
    if not missing:
        return []
    what = f"no column {', '.join(missing)}, although those that come with it are there"
    return [Problem(path.name, what, _copy_again(path), damaged=True)]


def _rounding_problems(path: Path, rounded: int) -> list[Problem]:
    if not rounded:
        return []
    what = (
        f"{rounded} start times are in scientific notation, as a spreadsheet saves them: "
        "their last digits are lost, so neither idle time nor lines can be found"
    )
    return [Problem(path.name, what, _copy_again(path), damaged=True)]


def _copy_again(path: Path) -> str:
    return "copy the file again, or " + remedies.analyse(path.parent.parent)


def _count_rounded(
    path: Path, names: Mapping[str, tuple[str, ...]], parts: tuple[_Part, ...]
) -> int:
    """Return how many starts lost digits. Only where some may have, the file is read for it."""
    known = [part.rounded for part in parts if part.rounded is not None]
    starts = (part.frame["start_ns"].to_numpy() for part in parts)
    if len(known) == len(parts) or not any(map(kernel_times.has_round_starts, starts)):
        return sum(known)
    columns = read_columns(path, {"start": names["start"]}, required=(), plain=("start",))
    return kernel_times.count_rounded(columns.text("start"))


def _numbers(texts: pd.Categorical[str]) -> NDArray[np.int32]:
    """Return the numbers of devices or streams, -1 where there is none."""
    known = [int(text) if re.fullmatch(r"[0-9]{1,9}", text) else -1 for text in texts.categories]
    return np.asarray(np.array(known, np.int32)[texts.codes])


def _codes_of(column: pd.Categorical[str], wanted: Callable[[str], bool]) -> list[int]:
    return [code for code, value in enumerate(column.categories) if wanted(value)]


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?[0-9]+\.?[0-9]*([eE][+-]?[0-9]+)?", text) is not None


def _is_no_step(text: str) -> bool:
    return bool(text) and not _is_number(text)
