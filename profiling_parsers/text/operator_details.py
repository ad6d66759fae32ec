"""operator_details.csv: every call of a torch operator, with its shapes, stack and device time.

The largest file of a dump beside the trace: a cell holds a whole call stack, over many lines. It
is read in blocks, and the calls of one operator with one shape and one stack become one row.
"""

from __future__ import annotations

import codecs
import io
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv

from npufix.profiling_parsers.attribution.call_stack import intern_stacks
from npufix.profiling_parsers.tables.columns import category
from npufix.profiling_parsers.tables.exact_time import parse_numbers
from npufix.profiling_parsers.tables.file_damage import NOT_UTF8, FileCondition, damage_problem
from npufix.profiling_parsers.tables.side_csv import read_header

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from npufix.profiling_parsers.profile import CallSite, Problem
    from npufix.profiling_parsers.tables.side_csv import Header

_TEXTS = {"name": ("Name",), "input_dims": ("Input Shapes",), "stack": ("Call Stack",)}
_TIMES = {
    "host_self_ns": ("Host Self Duration",),
    "device_self_ns": ("Device Self Duration",),
}
_COLUMNS = {**_TEXTS, **_TIMES}
_BLOCK_BYTES = 1 << 22  # of which a row has to be a small part
_LONGEST_US = 9.2e12

OperatorTotals = tuple[pd.DataFrame, tuple[tuple["CallSite", ...], ...], list["Problem"]]


def read_operator_details(path: Path) -> OperatorTotals:
    """Return ``Signals.operator_totals``, ``Signals.operator_stacks`` and what is wrong with them.

    Memory is bounded by the number of different operators, shapes and stacks. Raise ``DumpError``
    if the file is none.
    """
    header = read_header(path, _COLUMNS, required=tuple(_COLUMNS))
    totals = _Totals()
    problems = []
    try:
        totals.read(path, header)
    except pa.ArrowInvalid as error:
        what = f"is malformed after {totals.used} rows, which are used ({str(error)[:80]})"
        problems.append(damage_problem(path, what))
    frame, stacks = totals.result()
    condition = FileCondition(
        used=totals.used,
        left_out=totals.left_out,
        endless=bool(header.last),
        holes=totals.holes,
        misspelt=totals.misspelt,
    )
    return frame, stacks, problems or condition.problems(path)


class _Clean(io.RawIOBase):
    """A file without the bytes that pyarrow (26) does not stand.

    It cannot skip a row with bytes that are no UTF-8, and loses the line break in a cell if one of
    its blocks ends between CR and LF.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        self.holes = False
        """Whether there were zero bytes so far."""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Return at most ``size`` bytes, which a replacement makes three out of one."""
        while block := self._file.read(max(size // 3, 1)):
            self.holes = self.holes or b"\0" in block
            if text := self._decode(block):
                return text.replace("\r", " ").encode()
        return self._decode(b"", final=True).encode()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


class _Texts(dict[str, int]):
    """Number texts in the order in which they come."""

    def codes(self, column: pa.DictionaryArray) -> NDArray[np.int64]:
        """Return a column as the numbers of its texts."""
        known = [self.setdefault(text, len(self)) for text in column.dictionary.to_pylist()]
        codes: NDArray[np.int64] = np.array(known, np.int64).take(column.indices.to_numpy())
        return codes


class _Totals:
    """The sums of what was read so far."""

    def __init__(self) -> None:
        self.texts = {key: _Texts() for key in _TEXTS}
        self.used = 0
        self.left_out = 0
        self.holes = False
        texts, microseconds = np.empty(0, np.int64), np.empty(0, np.float64)
        self._sums = pd.DataFrame(
            {**dict.fromkeys(_TEXTS, texts), **dict.fromkeys(_TIMES, microseconds)}
        )

    @property
    def misspelt(self) -> bool:
        return any(NOT_UTF8 in text for key in _TEXTS for text in self.texts[key])

    def read(self, path: Path, header: Header) -> None:
        """Take every row of the file; raise ``ArrowInvalid`` where it is no CSV any more."""
        keys = {column: key for key, column in header.found.items()}
        names = [keys.get(column, str(index)) for index, column in enumerate(header.columns)]
        types = {key: pa.dictionary(pa.int32(), pa.string()) for key in _TEXTS}
        how = {
            "read_options": pyarrow.csv.ReadOptions(
                column_names=names, skip_rows=1, block_size=_BLOCK_BYTES, use_threads=False
            ),
            "parse_options": pyarrow.csv.ParseOptions(
                newlines_in_values=True, invalid_row_handler=self._skip
            ),
            "convert_options": pyarrow.csv.ConvertOptions(
                column_types={**types, **dict.fromkeys(_TIMES, pa.string())},
                include_columns=list(_COLUMNS),
            ),
        }
        with _Clean(path) as file:
            try:
                for batch in pyarrow.csv.open_csv(file, **how):
                    self._add(batch)
            finally:
                self.holes = file.holes

    def result(self) -> tuple[pd.DataFrame, tuple[tuple[CallSite, ...], ...]]:
        """Return the table, and the stacks that it names."""
        stacks, stack_of_text = intern_stacks(list(self.texts["stack"]))
        columns: dict[str, object] = {
            "name": _one_line(self._sums["name"], self.texts["name"]),
            "input_dims": _one_line(self._sums["input_dims"], self.texts["input_dims"]),
            "stack": stack_of_text.astype(np.int64)[self._sums["stack"].to_numpy()],
        }
        # Rounded once: a call may have fractions of a nanosecond.
        limited = self._sums[list(_TIMES)].clip(-_LONGEST_US, _LONGEST_US)
        times = {key: np.rint(limited[key] * 1000).astype(np.int64) for key in _TIMES}
        return pd.DataFrame({**columns, **times}), stacks

    def _skip(self, row: pyarrow.csv.InvalidRow) -> str:
        del row
        self.left_out += 1
        return "skip"

    def _add(self, batch: pa.RecordBatch) -> None:
        codes = {key: self.texts[key].codes(batch.column(key)) for key in _TEXTS}
        times = {key: parse_numbers(batch.column(key)) for key in _TIMES}
        usable = np.logical_and.reduce([np.abs(us) < _LONGEST_US for us in times.values()])
        self.used += int(np.count_nonzero(usable))
        self.left_out += int(np.count_nonzero(~usable))
        rows = pd.DataFrame({key: values[usable] for key, values in {**codes, **times}.items()})
        together = pd.concat([self._sums, rows], ignore_index=True)
        self._sums = together.groupby(list(_TEXTS), sort=False, as_index=False).sum()


def _one_line(codes: pd.Series[int], texts: _Texts) -> pd.Categorical[str]:
    """Return a column of codes as a category of the texts, line breaks taken out."""
    unique: dict[str, int] = {}
    cleaned = ["".join(map(str.strip, text.split("\n"))) for text in texts]
    merged = [unique.setdefault(text, len(unique)) for text in cleaned]
    return category(np.array(merged, np.int64)[codes.to_numpy()], list(unique))
