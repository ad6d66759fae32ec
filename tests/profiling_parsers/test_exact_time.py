from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npufix.profiling_parsers.tables.exact_time import parse_duration_ns, parse_epoch_ns

NO_NUMBERS = [
    "",
    "N/A",
    "nan",
    "inf",
    "1.2.3",
    "0x10",
    "1e",
    "--1",
    "1_0",
    "\N{ARABIC-INDIC DIGIT ONE}",
    "9" * 30,
]


@given(st.lists(st.integers(0, 2**63 - 1 - 2**58)))
def test_an_epoch_time_keeps_its_nanoseconds(times: list[int]) -> None:
    texts = [f"{time // 1000}.{time % 1000:03d}\t" for time in times]
    parsed, valid = parse_epoch_ns(pa.array(texts, pa.string()))
    assert parsed.tolist() == times
    assert valid.all()


@given(st.lists(st.tuples(st.integers(0, 8 * 10**15), st.text("0123456789", max_size=15))))
def test_any_number_of_decimals_is_rounded_half_up(numbers: list[tuple[int, str]]) -> None:
    texts = [f"{whole}.{fraction}" if fraction else str(whole) for whole, fraction in numbers]
    parsed, valid = parse_epoch_ns(pa.chunked_array([pa.array(texts, pa.string())]))
    expected = [
        int((Decimal(text) * 1000).quantize(Decimal(1), rounding=ROUND_HALF_UP)) for text in texts
    ]
    assert parsed.tolist() == expected
    assert valid.all()


@given(st.lists(st.text() | st.sampled_from(["1736408883704801.156", *NO_NUMBERS])))
def test_any_text_is_a_number_or_is_not(texts: list[str]) -> None:
    array = pa.array(texts, pa.string())
    for parsed, valid in (parse_epoch_ns(array), parse_duration_ns(array)):
        assert len(parsed) == len(valid) == len(texts)
        assert not parsed[~valid].any()


@pytest.mark.parametrize("text", NO_NUMBERS)
@pytest.mark.parametrize("convert", [parse_epoch_ns, parse_duration_ns])
def test_what_is_no_number_does_not_spoil_its_neighbours(convert: object, text: str) -> None:
    parsed, valid = convert(pa.array(["12.5", text, "0"]))  # type: ignore[operator]
    assert valid.tolist() == [True, False, True]
    assert parsed.tolist() == [12_500, 0, 0]


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1736408883704801.156\t", 1736408883704801156),
        ("1736408883973810", 1736408883973810000),
        ("1.69512E+15", 1695120000000000000),
        ("12", 12_000),
        ("0", 0),
        ("0.0004", 0),
        ("0.0005", 1),
        ("-0.25", -250),
        (" 7. ", 7_000),
    ],
)
def test_every_spelling_of_the_dumps(text: str, nanoseconds: int) -> None:
    parsed, valid = parse_epoch_ns(pa.array([text, "N/A"]))
    assert valid.tolist() == [True, False]
    assert parsed[0] == nanoseconds


@given(st.lists(st.integers(-(10**12), 10**12)))
def test_a_duration_keeps_its_nanoseconds(times: list[int]) -> None:
    parsed, valid = parse_duration_ns(
        pa.array([f"{Decimal(t) / 1000}" for t in times], pa.string())
    )
    assert parsed.tolist() == times
    assert valid.all()


@given(
    st.integers(5, 21).flatmap(
        lambda width: st.lists(
            st.text("0123456789.", min_size=width, max_size=width)
            | st.integers(0, 10 ** (width - 4) - 1).map(
                lambda n: f"{n:0{width - 4}}.{n % 1000:03}"
            ),
            min_size=1,
        )
    ),
    st.integers(0, 3),
)
def test_texts_of_one_width_are_read_as_each_of_them_is(texts: list[str], skipped: int) -> None:
    column = pa.array([*["1"] * skipped, *texts], pa.string())[skipped:]
    parsed, valid = parse_epoch_ns(column)
    # Beside a text of another width, each is read on its own.
    alone = [parse_epoch_ns(pa.array([text, "1"], pa.string())) for text in texts]
    assert parsed.tolist() == [values[0] for values, _ in alone]
    assert valid.tolist() == [mask[0] for _, mask in alone]


def test_a_missing_text_is_no_time() -> None:
    for texts in (["1.000", None], [None, "1.000"], [None]):
        parsed, valid = parse_epoch_ns(pa.array(texts, pa.string()))
        assert valid.tolist() == [text is not None for text in texts]
        assert parsed.tolist() == [1_000 if text else 0 for text in texts]
