"""Numbers read as a person would write them, never with an exponent."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from npufix.rules.shared.quantities import (
    format_count,
    milliseconds,
    number,
    percent,
    quantity,
    size,
)


def test_times_are_the_same_in_findings_and_in_tables() -> None:
    """A finding said 500 µs, 1234 ms and 1e+03 µs where the table had other words."""
    shown = {500_000: "500 µs", 1_234_500_000: "1.23 s", 999_600: "1 ms", 12_345: "12.3 µs"}
    assert {ns: milliseconds(ns) for ns in shown} == shown
    assert [milliseconds(ns) for ns in (0, 25.83e6, 999_400)] == ["0 µs", "25.8 ms", "999 µs"]
    assert [milliseconds(ns) for ns in (-2.5e9, 59.98e9, 1.2e12)] == ["-2.5 s", "1 min", "20 min"]


def test_shares_counts_and_sizes() -> None:
    assert [percent(x) for x in (0.3141, 1, -0.0001)] == ["31.4%", "100.0%", "0.0%"]
    assert [percent(x, signed=True) for x in (0.082, -0.0001)] == ["+8.2%", "0.0%"]
    assert [number(x) for x in (1, 2.5, 999.7, 8402)] == ["1", "2.5", "1,000", "8,402"]
    assert format_count(1, "copy", "copies") == "1 copy"
    assert format_count(2.5, "copy", "copies") == "2.5 copies"
    assert format_count(12_000, "file") == "12,000 files"
    assert [size(x) for x in (58 * 2**30, 1536, 3)] == ["58 GiB", "1.5 KiB", "3 B"]
    assert [quantity(1e6, "ns"), quantity(1024, "bytes"), quantity(7, "count")] == [
        "1 ms", "1 KiB", "7"
    ]  # fmt: skip


@given(st.floats(0.01, 1e12))
@example(999_999.9)
@example(1023.9 * 2**20)
def test_no_amount_has_an_exponent(value: float) -> None:
    assert not any("e+" in text for text in (milliseconds(value), number(value), size(value)))
