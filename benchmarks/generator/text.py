"""Rows and texts as the profiler writes them, many at a time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

Integers: TypeAlias = NDArray[np.int64]
Column: TypeAlias = (
    NDArray[Any] | tuple[Callable[[Integers], list[Any]], Integers] | str | int | None
)
"""An array, one that goes through ``microseconds`` or ``numbers``, or one value for all rows."""
_CHUNK = 20_000
"""So many rows fit into memory as text."""


def chunks(count: int, size: int = _CHUNK) -> Iterator[slice]:
    """Cut ``count`` rows into slices."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def rows(first: NDArray[Any], *columns: Column) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table that is given as columns."""
    for part in chunks(len(first)):
        yield from zip(*(_cells(column, part) for column in (first, *columns)), strict=True)


def _cells(column: Column, part: slice) -> Iterable[Any]:
    if isinstance(column, np.ndarray):
        cells: list[Any] = column[part].tolist()
        return cells
    if isinstance(column, tuple):
        convert, array = column
        return convert(array[part])
    return repeat(column, part.stop - part.start)


def fill(templates: Sequence[str], which: Integers, *columns: Column) -> Iterator[str]:
    """Yield for each row the template that ``which`` names, with the row's cells in its gaps."""
    for row in rows(which, *columns):
        yield templates[row[0]] % row[1:]


def microseconds(nanoseconds: Integers) -> list[str]:
    """Return times with three decimals, exact: ``"1736408883704643.212"``."""
    whole, rest = np.divmod(nanoseconds, 1000)
    return ["%d.%03d" % pair for pair in zip(whole.tolist(), rest.tolist(), strict=True)]  # noqa: UP031 - twice as fast


def moment(nanoseconds: int | np.int64) -> str:
    """Return one time with three decimals, exact."""
    return f"{int(nanoseconds) // 1000}.{int(nanoseconds) % 1000:03d}"


def numbers(nanoseconds: Integers) -> list[float]:
    """Return durations in microseconds, as JSON has them."""
    return (nanoseconds / 1000).tolist()  # type: ignore[no-any-return]


def of_variant(text: str, variant: int) -> str:
    """Put the batch size of a variant into a shape."""
    return text.replace("{B}", str(4 * (variant + 1)))


def write_lines(path: Path, lines: Iterable[str], end: str) -> None:
    """Write a table, with the line ends of the platform that it comes from."""
    with path.open("w", encoding="utf-8", newline="") as file:
        file.writelines(f"{line}{end}" for line in lines)
