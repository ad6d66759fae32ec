"""The report: round trip through JSON, and nothing of a dump that breaks an output."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console

from npufix.reports import report as model
from npufix.reports.markdown.report import to_markdown
from npufix.reports.terminal.report import show
from npufix.reports.terminal.text import paragraph, print_code
from npufix.reports.wording.report import plain, sign_lines, with_warm_up
from npufix.rules.shared.quantities import milliseconds


def report_with(text: str) -> model.Report:
    finding = model.Finding(
        rule="NPU201",
        name="masked-assignment",
        summary="assignment through a boolean mask",
        path=text,
        line=3,
        function=text,
        code=text,
        replacement=text,
        safety="safe",
        conditions=[model.Condition("same-dtype", text, "open")],
        problem="",
        fingerprint="0" * 16,
        kernels=[text],
        calls=2,
        device_ns=1_000_000,
        share=0.5,
        saving=model.Saving(1, 2, text),
        diff=text,
        verdict=model.Verdict("refuted", text, text, text, 3, (), text),
    )
    operator = model.HotOperator(text, "AI_CORE", 1, 10, 10, 1.0, text, 2, f"{text}:3", text, 2)
    return model.Report(
        tool="npufix 0",
        headline=text,
        dump=text,
        source=text,
        environment=model.Environment(0, 1, text, text, text, text),
        split=model.StepSplit(1, 100, 50, 25, 25),
        compute_ns=10,
        attributed=1.0,
        hot_operators=[operator],
        hot_shapes=[model.HotShape(text, "AI_CORE", text, 1, 10, 10, 1.0)],
        findings=[finding],
        problems=[model.Problem(text, text, text)],
        next_steps=[text],
    )


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=40))
def test_json_round_trip(text: str) -> None:
    made = report_with(text)
    assert model.from_json(model.to_json(made)) == made


@given(st.text(max_size=40))
def test_a_terminal_gets_no_control_characters(text: str) -> None:
    out = io.StringIO()
    show(report_with(text), Console(file=out, width=80), details=True)
    assert all(c.isprintable() or c == "\n" for c in out.getvalue())


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", "| a | b |", "`code` *bold* [x](http://e)", "```\n# x"]
)
def test_names_of_a_dump_are_text_in_markdown(text: str) -> None:
    tokens = MarkdownIt("commonmark").parse(to_markdown(report_with(text)))
    kinds = {t.type for token in tokens for t in (token, *(token.children or ()))}
    assert not kinds & {"html_block", "html_inline", "link_open", "image", "em_open"}


def test_another_schema_version_is_refused() -> None:
    content = json.loads(model.to_json(report_with("x"))) | {"schema": 99}
    with pytest.raises(model.ReportError, match="schema 99"):
        model.from_json(json.dumps(content))
    with pytest.raises(model.ReportError, match="not a report"):
        model.from_json("{")


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 µs"),
        (1_500, "1.5 µs"),
        (99_949, "99.9 µs"),
        (99_960, "100 µs"),
        (999_499, "999 µs"),
        (999_500, "1 ms"),
        (1_234_567, "1.23 ms"),
        (99_900_000, "99.9 ms"),
        (123_456_789, "123 ms"),
        (12_345_678_901, "12.3 s"),
        (123_456_789_012, "2.06 min"),
    ],
)
def test_times_have_three_digits(ns: int, text: str) -> None:
    assert milliseconds(ns) == text


def test_a_number_stays_with_its_unit_and_no_line_ends_in_a_blank() -> None:
    for width in range(12, 40):
        out = io.StringIO()
        paragraph("free 25.7 ms of it, all 1.5 s, 2 min, 0 µs", Console(file=out, width=width))
        lines = out.getvalue().splitlines()
        assert " ".join(lines) == "free 25.7 ms of it, all 1.5 s, 2 min, 0 µs"
        assert not any(line.startswith(("ms", "us", "s,", "min")) for line in lines)
        assert not any(line.endswith(" ") for line in lines)


def test_plain_keeps_text_and_drops_what_steers() -> None:
    assert plain("a\x1b[31m\x07\u202eä 中") == "a?[31m??ä 中"


@pytest.mark.parametrize(
    ("cut_out", "shown"),
    [
        ("x[m] = 0", "x[m] = 0"),
        ("for i in n:\n            m[i] = 1", "for i in n:\n    m[i] = 1"),
        (
            "if x:\n            a()\n        else:\n            b()",
            "if x:\n    a()\nelse:\n    b()",
        ),
        ("f(\n        a,\n    )", "f(\n    a,\n)"),
        ("f(a,\n          b)", "f(a,\n    b)"),
        ("a = 1\n    b = 2", "a = 1\nb = 2"),
        ("    a = 1\n    b = 2", "a = 1\nb = 2"),
        ("for i in n:\n    a\n\n    b", "for i in n:\n    a\n\n    b"),
    ],
)
def test_code_that_is_cut_out_of_a_block_keeps_its_shape(cut_out: str, shown: str) -> None:
    assert sign_lines(cut_out, "-") == [f"- {line}" for line in shown.split("\n")]
    assert sign_lines("", "+") == []


def test_what_is_broken_at_the_width_goes_on_further_to_the_right() -> None:
    console = Console(file=io.StringIO(), width=40)
    print_code("f(x)", f"g({', '.join(['argument'] * 5)})", console)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == [
        "   - f(x)",
        "   + g(argument, argument,",
        "         argument, argument, argument)",
    ]


def test_a_long_warm_up_is_said_once() -> None:
    first = model.LeftOutStep(0, 900_000_000, "warm-up", 30.0)
    split = model.StepSplit(3, 30_000_000, 30_000_000, 0, 0, left_out=[first])
    said = with_warm_up("Nothing is slow.", split, 800_000_000)
    assert said.endswith(
        "The warm-up of 1 step takes 900 ms, left out of all averages: operators are compiled."
    )
    assert "compiled" not in with_warm_up("Nothing is slow.", split, 0)
    usual = model.StepSplit(
        3, 30_000_000, 30_000_000, 0, 0,
        left_out=[model.LeftOutStep(0, 45_000_000, "warm-up", 1.5)],
    )  # fmt: skip
    for kept in (usual, None):
        assert with_warm_up("Nothing is slow.", kept, 0) == "Nothing is slow."
