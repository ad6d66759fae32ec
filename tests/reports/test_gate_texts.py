"""The gate for people: the verdict first, only what changed, and the command that comes next."""

from __future__ import annotations

import io

import pytest
from gate_samples import finding, gated, metric
from markdown_it import MarkdownIt
from rich.console import Console

from npufix.reports.markdown.gate import LONGEST_COMMENT, MARKER, to_comment
from npufix.reports.report import Problem
from npufix.reports.terminal.gate import show_gate


def terminal(made: object, *, details: bool = False) -> list[str]:
    out = io.StringIO()
    show_gate(made, Console(file=out, width=80), details=details)  # type: ignore[arg-type]
    assert "\x1b" not in out.getvalue()
    return out.getvalue().splitlines()


def test_the_verdict_is_the_first_line_and_nothing_is_wider_than_80() -> None:
    lines = terminal(gated(next_steps=["npufix gate x"]))
    assert lines[0] == "FAIL: The step takes 8.5% longer: 86.8 ms instead of 80 ms."
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "step-time" in text
    assert "86.8 ms" in text
    assert "+8.5%" in text
    assert "launches" in text
    assert "compute  " not in text, "nothing changed there"
    assert "2 other metrics did not change" in text
    assert "4.1% or more would have been seen" in text
    order = [text.index(part) for part in ("Why:", "New: 1 finding", "Accepted:", "Gone", "910B2",
                                           "[[tool.npufix.gate.accept]]", "Next: ")]  # fmt: skip
    assert order == sorted(order)


def test_details_show_what_is_no_more_than_noise() -> None:
    (row,) = (line for line in terminal(gated(), details=True) if line.startswith("compute"))
    assert any(line.endswith("regression (warning)") for line in terminal(gated()))
    assert row.split() == ["compute", "80", "ms", "80.3", "ms", "~", "+0.4%", "±1.5%", "ok"]


def test_a_comment_begins_with_the_marker_and_the_verdict() -> None:
    text = to_comment(gated())
    assert text.startswith(f"{MARKER}\n### FAIL: ")
    assert "| step-time | 80 ms | 86.8 ms | +8.5% | ±1.5% | regression |" in text
    assert "regression (warning)" in text
    assert "**saves about 900 µs to 2.1 ms**" in text
    kinds = {token.type for token in MarkdownIt("commonmark").enable("table").parse(text)}
    assert "table_open" in kinds


@pytest.mark.parametrize("size", [10, 1_000])
def test_a_comment_is_never_too_long(size: int) -> None:
    many = [finding("\U0001f600" * 20, number, code="x" * 200) for number in range(size)]
    text = to_comment(gated(new_findings=many))
    assert len(text.encode()) <= LONGEST_COMMENT
    assert ("Cut here" in text) is (size == 1_000)
    assert text.count("<details>") == text.count("</details>")


@pytest.mark.parametrize("text", ["<script>", "a | b", "```\n# x", "</details>", "[x](http://e)"])
def test_names_are_text_in_a_comment(text: str) -> None:
    made = gated(
        headline=text, reasons=[text], explanation=[text], gone=[text],
        metrics=[metric(text, verdict="new")], problems=[Problem(text, text, text)],
        new_findings=[finding(text, path=text, code=text, replacement=text, summary=text)],
    )  # fmt: skip
    tokens = MarkdownIt("commonmark").enable("table").parse(to_comment(made))
    inner = [t for token in tokens for t in (token, *(token.children or ()))]
    assert not {t.type for t in inner} & {"link_open", "image", "code_block"}
    html = [t.content for t in inner if t.type in {"html_block", "html_inline"}]
    assert not any("<script" in part for part in html)
    assert sum(part.count("</details>") for part in html) == sum(
        part.count("<details>") for part in html
    )
