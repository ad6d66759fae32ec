"""Ways in which a file of a dump is damaged, and what has to hold of its reader then."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

import pandas as pd
from hypothesis import given, settings
from hypothesis import strategies as st

from npufix.profiling_parsers.profile import DumpError, Problem

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path


def read_damaged(read: Any, path: Path, content: bytes) -> tuple[list[Any], bool]:
    """Return the tables and whether the damage was told; a refusal tells it with no tables."""
    path.write_bytes(content)
    try:
        *tables, problems = read(path)
    except DumpError as refused:
        return [], bool(refused.message and refused.remedy)
    assert all(isinstance(problem, Problem) for problem in problems)
    assert all("\n" not in problem.what and problem.where == path.name for problem in problems)
    return tables, any(problem.damaged for problem in problems)


def check_every_cut(read: Any, path: Path, content: bytes) -> None:
    """A file cut at any byte gives its first rows, and tells the cut unless it is between rows.

    Tried are every byte of the last row, and every seventh before it.
    """
    (whole, *_), told = read_damaged(read, path, content)
    assert not told
    last_row = content.rindex(b"\n", 0, -1)
    for cut in (*range(0, last_row, 7), *range(last_row, len(content))):
        tables, told = read_damaged(read, path, content[:cut])
        between_rows = content[:cut].count(b"\n") > 1 and content[:cut].endswith(b"\n")
        assert told or between_rows, content[:cut]
        if tables:
            pd.testing.assert_frame_equal(
                plain(tables[0]), plain(whole).head(len(tables[0])), check_dtype=False
            )


def check_every_column(
    read: Any, path: Path, content: bytes, *, optional: Collection[str] = ()
) -> None:
    """A file without a column, or with one called otherwise, is refused or gives the same rows."""
    (whole, *_), _ = read_damaged(read, path, content)
    rows = list(csv.reader(io.StringIO(content.decode(), newline="")))
    for index, column in enumerate(rows[0]):
        dropped = [row[:index] + row[index + 1 :] for row in rows]
        renamed = [[*rows[0][:index], "Renamed", *rows[0][index + 1 :]], *rows[1:]]
        for damaged in (dropped, renamed):
            tables, told = read_damaged(read, path, as_csv(damaged))
            if column in optional:
                assert len(tables[0]) == len(whole)
            elif tables:
                pd.testing.assert_frame_equal(plain(tables[0]), plain(whole))
            assert tables or told
        without_its_cells = [rows[0], *dropped[1:]]
        _, told = read_damaged(read, path, as_csv(without_its_cells))
        assert told


def check_any_bytes(read: Any, path: Path, content: bytes) -> None:
    """Whatever stands in a file, its reader returns or refuses."""

    @given(
        st.integers(0, len(content)),
        st.integers(0, 40),
        st.binary(max_size=20) | st.sampled_from([b'"', b"\r", b"\xff", b"\0", b",", b"1e999"]),
    )
    @settings(max_examples=40)
    def check(start: int, length: int, inserted: bytes) -> None:
        read_damaged(read, path, content[:start] + inserted + content[start + length :])

    check()


def check_nothing_to_read(read: Any, path: Path, content: bytes) -> None:
    """An empty file, a header alone, and what is no CSV are damage."""
    header = content[: content.index(b"\n") + 1]
    for damaged in (b"", b"\n", header, header.strip(), b"\0" * 500, b"\x7fELF\xff\xfe", b"{}"):
        tables, told = read_damaged(read, path, damaged)
        assert told, damaged
        assert not tables or tables[0].empty


def as_csv(rows: Sequence[Sequence[str]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def plain(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table with texts in place of categories, which depend on all rows."""
    coded = frame.select_dtypes("category").columns
    return frame.astype(dict.fromkeys(coded, object))
