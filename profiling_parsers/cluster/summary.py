"""What the small files of one rank say: a few kilobytes, whatever the size of the dump.

A summary is made where the dump is, sent to whoever asked, and kept for the next time. It is
written as MessagePack behind a checksum: what is read is what was written, or nothing. Columns
of numbers are their bytes, so that ten thousand summaries become tables without a loop.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    import pandas as pd
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

NUMBER, REAL, WORD = "number", "real", "word"
NO_STEP = int(np.iinfo(np.int64).min)
"""The step of a row that is in none."""

TABLES: Mapping[str, Mapping[str, str]] = {
    "steps": {
        "step": NUMBER, "device": NUMBER, "computing_ns": NUMBER,
        "communication_exposed_ns": NUMBER, "overlapped_ns": NUMBER, "communication_ns": NUMBER,
        "free_ns": NUMBER, "bubble_ns": NUMBER,
    },
    "operators": {"type": WORD, "core": WORD, "count": NUMBER, "total_ns": NUMBER},
    "collectives": {
        "step": NUMBER, "kind": WORD, "name": WORD, "group": WORD, "count": NUMBER,
        "elapse_ns": NUMBER, "transit_ns": NUMBER, "wait_ns": NUMBER,
        "synchronization_ns": NUMBER, "idle_ns": NUMBER, "longest_ns": NUMBER,
        "longest_transit_ns": NUMBER,
    },
    "transports": {
        "kind": WORD, "name": WORD, "group": WORD, "transport": WORD, "size_bytes": NUMBER,
        "transit_ns": NUMBER, "large_packet_ratio": REAL,
    },
    "links": {
        "source": NUMBER, "destination": NUMBER, "transport": WORD, "group": WORD,
        "size_bytes": NUMBER, "transit_ns": NUMBER,
    },
    "groups": {"group": WORD, "role": WORD, "members": WORD},
}  # fmt: skip
"""Columns of each table, as in ``rules.cluster_diagnostic.Cluster``, but for: ``step`` (may be
``NO_STEP``), ``source`` and ``destination`` (numbers within the group), ``members`` (see
``members_text``)."""
_DTYPES: Mapping[str, Any] = {NUMBER: np.dtype("<i8"), REAL: np.dtype("<f8")}
_CODES = np.dtype("<i4")
_DIGEST_BYTES = 16


class SummaryError(Exception):
    """Bytes that are no summary, or a damaged one."""


class Words(msgspec.Struct, frozen=True, array_like=True):
    """A column of texts: the distinct ones, and which of them stands in each row."""

    texts: list[str]
    codes: bytes


class Table(msgspec.Struct, frozen=True, array_like=True):
    """The columns of a table by name."""

    numbers: dict[str, bytes] = {}
    words: dict[str, Words] = {}


class Summary(msgspec.Struct, frozen=True, array_like=True):
    """One rank; ``None``, "", -1 or 0 where the dump does not say."""

    rank: int | None = None
    world_size: int | None = None
    host: str = ""
    device: int = -1
    recorded_ns: int = 0
    """When the recording ended, since the epoch."""
    torch_npu: str = ""
    cann: str = ""
    format: str = ""
    problem: str = ""
    """What is wrong with the files, "" if nothing is."""
    readable: bool = True
    """Whether the rank can be looked into; otherwise its small files are all there is."""
    tables: dict[str, Table] = {}
    local_time: bool = False
    """Whether ``recorded_ns`` is in the time zone of the machine."""
    files: list[str] = []
    """The names of the tables that are there, of those that ranks are compared by."""

    def numbers(self, table: str, column: str) -> NDArray[Any]:
        """Return a column of numbers; no rows if the table is not there."""
        found = self.tables.get(table)
        kind = _DTYPES[TABLES[table][column]]
        return np.frombuffer(found.numbers[column] if found else b"", kind)

    def words(self, table: str, column: str) -> tuple[list[str], NDArray[np.int32]]:
        """Return the distinct texts of a column, and which of them stands in each row."""
        found = self.tables.get(table)
        column_words = found.words[column] if found else Words([], b"")
        return column_words.texts, np.frombuffer(column_words.codes, _CODES)

    def rows(self, table: str) -> int:
        """Return how many rows a table has."""
        name, kind = next(iter(TABLES[table].items()))
        column = self.words(table, name)[1] if kind == WORD else self.numbers(table, name)
        return len(column)


def table_of(name: str, columns: Mapping[str, Any]) -> Table:
    """Pack columns: arrays of numbers, and for words a pair of texts and codes."""
    numbers, words = {}, {}
    for column, kind in TABLES[name].items():
        if kind == WORD:
            texts, codes = columns[column]
            words[column] = Words(list(texts), np.asarray(codes, _CODES).tobytes())
        else:
            numbers[column] = np.asarray(columns[column], _DTYPES[kind]).tobytes()
    return Table(numbers, words)


def code_category(column: pd.Series[str]) -> tuple[list[str], NDArray[np.int32]]:
    """Return the texts and the codes of a category column without gaps."""
    codes = column.cat.codes.to_numpy()
    used, compact = np.unique(codes, return_inverse=True)
    texts = column.cat.categories
    return ["" if code < 0 else str(texts[code]) for code in used], compact.astype(np.int32)


def members_text(ranks: Sequence[int]) -> str:
    """Write the ranks of a group; evenly spaced ones as ``first:count:distance``."""
    if len(ranks) > 2:  # noqa: PLR2004 - two are always evenly spaced
        distance = ranks[1] - ranks[0]
        if distance > 0 and list(ranks) == list(
            range(ranks[0], ranks[0] + distance * len(ranks), distance)
        ):
            return f"{ranks[0]}:{len(ranks)}:{distance}"
    return ",".join(map(str, ranks))


def members_of(text: str) -> tuple[int, ...]:
    """Read what ``members_text`` wrote."""
    if ":" in text:
        first, count, distance = map(int, text.split(":"))
        return tuple(range(first, first + count * distance, distance))
    return tuple(map(int, text.split(","))) if text else ()


def encode(summary: Summary) -> bytes:
    """Return a summary as bytes."""
    content = msgspec.msgpack.encode(summary)
    return _digest(content) + content


def decode(data: bytes) -> Summary:
    """Read a summary; raise ``SummaryError`` if it is none of this version, or a damaged one."""
    content = data[_DIGEST_BYTES:]
    if _digest(content) != data[:_DIGEST_BYTES]:
        raise SummaryError("damaged")
    try:
        summary = _DECODER.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SummaryError(str(error)) from error
    for name, table in summary.tables.items():
        _check(name, table)
    return summary


def _check(name: str, table: Table) -> None:
    """Refuse a table that has other columns than it must, or columns of unequal length."""
    schema = TABLES.get(name, {})
    words_of_it = {column for column, kind in schema.items() if kind == WORD}
    if {*table.words} != words_of_it or {*table.numbers} != {*schema} - words_of_it:
        raise SummaryError(f"{name}: other columns")
    lengths = {len(column) / 8 for column in table.numbers.values()}
    lengths |= {len(words.codes) / _CODES.itemsize for words in table.words.values()}
    if len(lengths) != 1 or not next(iter(lengths)).is_integer():
        raise SummaryError(f"{name}: columns of unequal length")
    for words in table.words.values():
        codes = np.frombuffer(words.codes, _CODES)
        if len(codes) and not 0 <= int(codes.min()) <= int(codes.max()) < len(words.texts):
            raise SummaryError(f"{name}: texts are missing")


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()


_DECODER = msgspec.msgpack.Decoder(Summary)
