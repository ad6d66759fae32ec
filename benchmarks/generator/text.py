"""Numbers as the profiler writes them, many at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

_CHUNK = 20_000


def chunks(count: int, size: int = _CHUNK) -> Iterator[slice]:
    """Cut ``count`` rows into slices that fit into memory as text."""
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def microseconds(nanoseconds: Integers) -> list[str]:
    """Return times with three decimals, exact: ``"1736408883704643.212"``."""
    whole, rest = np.divmod(nanoseconds, 1000)
    return ["%d.%03d" % pair for pair in zip(whole.tolist(), rest.tolist(), strict=True)]  # noqa: UP031 - twice as fast


def numbers(nanoseconds: Integers) -> list[float]:
    """Return durations in microseconds, as JSON has them."""
    return (nanoseconds / 1000).tolist()  # type: ignore[no-any-return]


def of_variant(text: str, variant: int) -> str:
    """Put the batch size of a variant into a shape."""
    return text.replace("{B}", str(4 * (variant + 1)))
