"""The page of two runs in a real browser."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from page_checks import Opened, shown_rows, violations, written
from page_samples import HOSTILE, LONG

from npufix.reports import comparison as c
from npufix.reports import encoding
from npufix.reports.gate_report import Change
from npufix.reports.html.comparison_page import to_html
from npufix.reports.report import Environment, Problem, Rank
from npufix.reports.wording import comparison as words
from npufix.rules.shared.quantities import number

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

pytestmark = pytest.mark.xdist_group("browser")


def comparison(name: str = "Mul") -> c.Comparison:
    steps = [
        c.StepTime(n, 0, 900_000, 50_000, 50_000, "warm-up" if n == 0 else "") for n in range(4)
    ]
    before, after = (
        c.Side(
            "dump", f"runs/{name}{n}", "src", "ascend-text",
            Environment(0, 1, "2.1", f"8.{n}", "Level1", "by a model" if n else None), 3, "step",
            partial=[Problem(name, name, name, damaged=True)], recorded=steps,
            ranks=[Rank(None, "d", 10**6, None, 0, diagnosed=True)],
        )
        for n in (0, 1)
    )  # fmt: skip
    operators = [
        c.OperatorChange(f"{name}{n}", "", n % 2 == 1, *pair, 3.0, None if pair[1] is None else 1.5)
        for n, pair in enumerate([(0, 500_000), (300_000, 100_500_000), (7, 0), (50, None)] * 30)
    ]
    made = c.Prediction(
        ["NPU201"], f"{name}.py", name, [3], 90_000, 110_000, 100_000, "held", 120_000, 20_000,
        "a model", f"{name} is gone",
    )  # fmt: skip
    return c.Comparison(
        tool="npufix", headline=f"Step 1 ms -> 0.9 ms (-10.0%); {name} explains it.",
        before=before, after=after, differences=[f"CANN {name} -> 8.1"], notes=[name],
        explanation=c.Explanation(
            "step", 1_000_000, 900_000, [Change(name, "operator", 300_000, 150_000, 3, 1)],
            60_000, 4, -10_000, [f"-0.15 ms {name}"],
        ),
        metrics=[
            c.MetricChange("step-time", "ns", 1e6, 9e5, 0.01, None, "larger"),
            c.MetricChange("peak-memory", "bytes", 1e9, None, None, None, "unknown"),
        ],
        operators=operators,
        shapes=[c.OperatorChange(name, "8 float", communication=False, before_ns=5, after_ns=6,
                                 before_calls=1.0, after_calls=1.0)],
        lines=[c.LineChange(f"{name}.py", name, "moved", [3], [4], 9, 8, 1.0, 1.0, [name], ["B"])],
        host_operators=[c.HostOperatorChange(f"aten::{name}", 9, 8, 1.0, 1.0, 2.0, 1.0)],
        findings=[
            c.FindingChange("ab", "NPU201", name, f"{name}.py", name, "gone", 3, None, 9, None)
        ],
        predictions=[made, made],
        predicted=c.Prediction([], "", "", [], 1, 2, 3, "saved more", 4, 5, "", ""),
    )  # fmt: skip


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 400)])
def test_a_comparison_is_drawn_and_accessible(
    browser: Browser, tmp_path: Path, theme: str, width: int
) -> None:
    file = written(tmp_path, to_html(comparison()))
    with Opened(
        browser, file, color_scheme=theme, viewport={"width": width, "height": 900}
    ) as page:
        page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.click("#language")
        assert page.inner_text("#h-why").startswith("差异的来源")
        assert page.locator("#t-findings tbody").inner_text().startswith("已消失")


def test_the_numbers_are_those_of_the_json(browser: Browser, tmp_path: Path) -> None:
    made = json.loads(encoding.encode_indented(comparison()))
    with Opened(browser, written(tmp_path, to_html(comparison()))) as page:
        assert " ".join(page.inner_text("h1").split()) == made["headline"].replace(
            "; ", " "
        ).replace("->", "→")
        assert shown_rows(page, "operators") == [
            [
                op["type"], "communication" if op["communication"] else "compute",
                words.time(op["before_ns"]), words.time(op["after_ns"]),
                words.change(op["before_ns"], op["after_ns"]),
                words.relative(op["before_ns"], op["after_ns"]) or "—",
                number(op["before_calls"]),
                "—" if op["after_calls"] is None else number(op["after_calls"]),
            ]
            for op in made["operators"]
        ]  # fmt: skip
        page.locator("#t-operators th", has_text="relative").get_by_role("button").click()
        assert "new" in page.locator("#t-operators tbody tr").first.inner_text()
        held = page.locator("#made tbody tr").first.inner_text()
        assert held.split("\t")[1:6] == ["90 µs to 110 µs", "100 µs", "120 µs", "20 µs", "held"]


def test_names_of_a_dump_stay_text(browser: Browser, tmp_path: Path) -> None:
    text = to_html(comparison(f"{HOSTILE}\u2028{LONG}"))
    with Opened(browser, written(tmp_path, text)) as page:
        assert page.evaluate("window.attacked") is None
        assert page.evaluate("[document.scripts.length, document.images.length]") == [3, 0]
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
