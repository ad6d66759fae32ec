"""The HTML report in a real browser: Debian's Chromium, headless."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from page_checks import Opened, draw_all, shown_rows, violations, written
from page_samples import sample

from npufix.advisor.diagnose.diagnosis import Options, diagnose
from npufix.advisor.diagnose.page_details import page_details
from npufix.advisor.project.source_tree import read_source_tree
from npufix.reports.html.page import to_html
from npufix.reports.report import Saving, to_json
from npufix.reports.wording.report import interval
from npufix.rules.shared.quantities import milliseconds

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from npufix.reports.report import Report

ROOT = Path(__file__).parents[3]
DUMPS = ROOT.parent / "shared" / "dumps"
pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module")
def demo() -> tuple[Report, str]:
    tree = read_source_tree(ROOT / "examples" / "bert_like")
    found = diagnose(ROOT / "examples" / "dump", tree, Options(top=1000))
    return found.report, to_html(found.report, page_details(found, found.report, tree))


@pytest.mark.parametrize(("theme", "width"), [("dark", 1280), ("light", 400)])
def test_the_demo_is_drawn_and_accessible(
    browser: Browser, demo: tuple[Report, str], tmp_path: Path, theme: str, width: int
) -> None:
    size = {"width": width, "height": 900}
    with Opened(browser, written(tmp_path, demo[1]), color_scheme=theme, viewport=size) as page:
        draw_all(page)
        assert page.get_attribute("html", "data-theme") == theme
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_numbers_are_those_of_the_json(
    browser: Browser, demo: tuple[Report, str], tmp_path: Path
) -> None:
    report = json.loads(to_json(demo[0]))
    with Opened(browser, written(tmp_path, demo[1])) as page:
        assert page.inner_text("h1") == report["headline"]
        rows = shown_rows(page, "operators")
        assert [(*cells[:4], cells[8]) for cells in rows] == [
            (
                hot["type"], hot["core"], f"{hot['calls']:,}", milliseconds(hot["total_ns"]),
                f"{hot['share']:.1%}",
            )
            for hot in report["hot_operators"]
        ]  # fmt: skip
        cards = page.locator(".card")
        assert cards.count() == len(report["findings"])
        for number, finding in enumerate(report["findings"]):
            text = cards.nth(number).text_content() or ""
            assert finding["rule"] in text
            assert (
                f"{milliseconds(finding['device_ns'])} per step" in text or not finding["device_ns"]
            )
            assert interval(Saving(**finding["saving"])) in text if finding["saving"] else True
        data = json.loads(page.inner_text("#data"))
        assert sum(cell[6] for cell in data["cells"]) == report["compute_ns"]


def test_tables_are_searched_sorted_and_turned(browser: Browser, tmp_path: Path) -> None:
    with Opened(browser, written(tmp_path, to_html(*sample(10_000, 1000)))) as page:
        first = page.locator("#t-operators tbody tr").first
        pager = page.locator("[data-pager=operators]")
        assert page.locator("#t-operators tbody tr").count() == 40
        pager.get_by_role("button", name="next").click()
        assert first.inner_text().startswith("Op40")
        head = page.locator("#t-operators th", has_text="calls")
        head.get_by_role("button").click()
        assert head.get_attribute("aria-sort") == "descending"
        assert first.inner_text().startswith("Op9999")
        page.fill("input[data-table=operators]", "op77 file27")
        assert pager.inner_text() == "4 of 10,000"
        assert first.inner_text().startswith("Op7777")  # still sorted
        page.fill("input[data-table=operators]", "")
        assert "10,000 of 10,000" in pager.inner_text()


def test_findings_are_searched_and_reached(browser: Browser, tmp_path: Path) -> None:
    with Opened(browser, written(tmp_path, to_html(*sample(20, 1000)))) as page:
        cards = page.locator(".card:visible")
        assert cards.count() == 50
        page.fill("#find", "op999 assignment")
        assert cards.count() == 1
        page.fill("#find", "")
        page.evaluate("location.hash = 'finding-700'")
        assert page.locator("#finding-700").is_visible()


def test_the_treemap_is_drilled_into(
    browser: Browser, demo: tuple[Report, str], tmp_path: Path
) -> None:
    with Opened(browser, written(tmp_path, demo[1]), reduced_motion="reduce") as page:
        draw_all(page)
        hottest = demo[0].hot_operators[0]
        assert page.locator("#treemap svg text", has_text=hottest.function).count() == 0
        page.locator("#treemap svg text", has_text=hottest.type).first.click()
        shapes = hottest.shapes.split(";")[0]
        page.locator("#treemap svg text", has_text=shapes).first.click()
        page.locator("#treemap svg text", has_text=hottest.function).first.wait_for()


def test_the_theme_is_switched_and_kept(
    browser: Browser, demo: tuple[Report, str], tmp_path: Path
) -> None:
    with Opened(browser, written(tmp_path, demo[1]), color_scheme="light") as page:
        page.click("#theme")
        assert page.get_attribute("html", "data-theme") == "dark"
        page.reload()
        assert page.get_attribute("html", "data-theme") == "dark"
        assert page.get_attribute("#theme", "aria-pressed") == "true"


def test_the_language_is_switched_and_kept(
    browser: Browser, demo: tuple[Report, str], tmp_path: Path
) -> None:
    with Opened(browser, written(tmp_path, demo[1])) as page:
        page.click("#language")
        assert page.get_attribute("html", "lang") == "zh"
        assert page.inner_text("#h-findings").startswith("问题")
        assert "masking.py:30" in page.inner_text("h1")
        page.reload()
        assert page.inner_text("#h-findings").startswith("问题")
        page.click("#language")
        assert page.inner_text("h1") == demo[0].headline


def test_names_of_a_dump_stay_text(browser: Browser, tmp_path: Path) -> None:
    text = to_html(*sample(300, 30, hostile=True))
    with Opened(browser, written(tmp_path, text)) as page:
        draw_all(page)
        page.locator("#timeline").hover()
        assert page.evaluate("window.attacked") is None
        assert "49" not in page.inner_text("h1")
        assert page.evaluate("document.scripts.length") == 4
        assert page.evaluate("document.images.length") == 0
        assert not set("\x1b\u202e\x00") & set(page.inner_text("body"))
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_without_scripts_everything_is_text(
    browser: Browser, demo: tuple[Report, str], tmp_path: Path
) -> None:
    with Opened(browser, written(tmp_path, demo[1]), java_script_enabled=False) as page:
        text = page.locator("main").text_content() or ""
        assert all(finding.rule in text for finding in demo[0].findings)
        assert milliseconds(demo[0].hot_operators[0].total_ns) in text
        assert not page.locator("#theme").is_visible()


@pytest.mark.parametrize("name", ["alexnet_910b_2ranks", "llm_megatron_4ranks"])
def test_a_real_dump_is_drawn(browser: Browser, tmp_path: Path, name: str) -> None:
    if not (DUMPS / name).exists():
        pytest.skip("no real dumps here")
    found = diagnose(DUMPS / name, None, Options(top=1000))
    file = written(tmp_path, to_html(found.report, page_details(found, found.report, None)))
    with Opened(browser, file) as page:
        draw_all(page)
        assert page.inner_text("h1") == found.report.headline
