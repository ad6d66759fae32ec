"""The HTML report in a real browser: Debian's Chromium, headless."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from page_checks import Opened, shown_rows, violations, wait_until_drawn, written
from page_samples import sample

from npufix.advisor.diagnose.diagnosis import Options, diagnose
from npufix.advisor.diagnose.page_details import page_details
from npufix.advisor.project.source_tree import read_source_tree
from npufix.reports.html.page import to_html
from npufix.reports.report import Saving, to_json
from npufix.reports.wording.report import interval
from npufix.rules.shared.quantities import milliseconds, number, percent

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from npufix.reports.report import Report

ROOT = Path(__file__).parents[3]
DUMPS = ROOT.parent / "shared" / "dumps"
pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module")
def demo() -> tuple[Report, str]:
    tree = read_source_tree(ROOT / "examples" / "bert_like")
    found = diagnose(ROOT / "examples" / "dump", tree, Options(top=1000, headroom=True))
    return found.report, to_html(found.report, page_details(found, found.report, tree))


@pytest.mark.parametrize(("theme", "width"), [("dark", 1280), ("light", 400)])
def test_the_demo_is_drawn_and_accessible(
    browser: Browser, demo: tuple[Report, str], tmp_path: Path, theme: str, width: int
) -> None:
    size = {"width": width, "height": 900}
    with Opened(browser, written(tmp_path, demo[1]), color_scheme=theme, viewport=size) as page:
        wait_until_drawn(page, "#timeline")
        wait_until_drawn(page, "#icicle")
        assert page.get_attribute("html", "data-theme") == theme
        page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_findings_of_one_rule_say_of_which_kernels() -> None:
    report, details = sample(4, 3)
    kinds: tuple[list[str], ...] = ["Mul", "Cast"], ["MatMulV3"], []
    found = [
        msgspec.structs.replace(f, kind="run", kernels=kernels, summary="one Type")
        for f, kernels in zip(report.findings, kinds, strict=True)
    ]
    page = to_html(msgspec.structs.replace(report, findings=found), details)
    assert ">one Type: Mul +1<" in page
    assert ">one Type: MatMulV3<" in page
    assert ">one Type<" in page
    found = [msgspec.structs.replace(f, rule=f"NPU{n}") for n, f in enumerate(found)]
    page = to_html(msgspec.structs.replace(report, findings=found), details)
    assert page.count(">one Type<") == len(found)


def test_the_first_screen_holds_the_answer(
    browser: Browser, demo: tuple[Report, str], tmp_path: Path
) -> None:
    size = {"width": 1440, "height": 900}
    with Opened(browser, written(tmp_path, demo[1]), viewport=size) as page:
        bottoms = [
            page.locator(part).bounding_box()
            for part in ("h1", "#step .bar", "#timeline", "#finding-4 > summary")
        ]
        assert all(box and box["y"] + box["height"] < 900 for box in bottoms)
        assert page.locator(".finding[open]").count() == 0


def test_headroom_is_drawn_with_what_it_says(demo: tuple[Report, str]) -> None:
    report, page = demo
    section = page.partition('<section id="headroom"')[2].partition("</section>")[0]
    assert report.headroom is not None
    for row in (*report.headroom.operators[:12], *report.headroom.lines[:12]):
        assert escape(row.name) in section
        assert f"{milliseconds(row.above_ns)}, {percent(row.reached)}" in section
    assert section.count("<figure>") == 2
    assert 'id="headroom"' not in to_html(msgspec.structs.replace(report, headroom=None))


def test_every_link_of_the_menu_reaches_its_section(
    browser: Browser, demo: tuple[Report, str], tmp_path: Path
) -> None:
    with Opened(browser, written(tmp_path, demo[1])) as page:
        links = page.locator("nav a")
        assert links.count() >= 5
        for number in range(links.count()):
            links.nth(number).click()
            top, end = page.evaluate(
                """[document.querySelector(location.hash).getBoundingClientRect().top,
                    innerHeight + scrollY >= document.documentElement.scrollHeight - 1]"""
            )
            assert 0 <= top < 80 or end


def test_what_is_printed_has_bars_and_all_that_is_folded(
    browser: Browser, demo: tuple[Report, str], tmp_path: Path
) -> None:
    with Opened(browser, written(tmp_path, demo[1]), color_scheme="dark") as page:
        page.emulate_media(media="print")
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        part = page.locator("#step .bar .compute")
        assert part.evaluate("(e) => getComputedStyle(e).printColorAdjust") == "exact"
        assert part.evaluate("(e) => getComputedStyle(e).backgroundColor") == "rgb(47, 102, 196)"
        assert page.locator("#finding-0 .card").is_visible()
        wait_until_drawn(page, "#timeline")
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.get_attribute("html", "data-theme") == "dark"


def test_the_numbers_are_those_of_the_json(
    browser: Browser, demo: tuple[Report, str], tmp_path: Path
) -> None:
    report = json.loads(to_json(demo[0]))
    steps = report["split"]["recorded_steps"]
    with Opened(browser, written(tmp_path, demo[1])) as page:
        told = " ".join((page.text_content("h1") or "").split())
        assert told == report["headline"].replace("; ", " ", 1)
        rows = shown_rows(page, "operators")
        assert [cells[:4] for cells in rows] == [
            [
                hot["type"], f"{hot['share']:.1%}", milliseconds(hot["total_ns"] / steps),
                number(hot["calls"] / steps),
            ]
            for hot in report["hot_operators"]
        ]  # fmt: skip
        cards = page.locator(".finding")
        assert cards.count() == len(report["findings"])
        for position, finding in enumerate(report["findings"]):
            text = cards.nth(position).text_content() or ""
            assert finding["rule"] in text
            assert (
                f"{milliseconds(finding['device_ns'])} per step" in text or not finding["device_ns"]
            )
            assert interval(Saving(**finding["saving"])) in text if finding["saving"] else True
        cells = json.loads(page.inner_text("#data"))["cells"]
        assert sum(row[-1] for row in cells["rows"]) == report["compute_ns"]
        parts = page.locator("#step .legend b").all_inner_texts()
        assert parts[0] == milliseconds(report["split"]["computing_ns"])


def test_tables_are_searched_sorted_and_turned(browser: Browser, tmp_path: Path) -> None:
    with Opened(browser, written(tmp_path, to_html(*sample(10_000, 60)))) as page:
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


def test_findings_are_filtered_sorted_and_reached(browser: Browser, tmp_path: Path) -> None:
    made, details = sample(20, 200)
    by_hand = msgspec.structs.replace(
        made.findings[7], replacement="", share=0.5, saving=Saving(0, 10**6, "a model")
    )
    made.findings[7] = by_hand
    with Opened(browser, written(tmp_path, to_html(made, details))) as page:
        rows = page.locator(".finding:visible")
        assert (
            rows.count() == page.locator(".finding").count() == 50
        )  # no node before it is asked for
        page.fill("#find", "op199 assignment")
        assert rows.count() == 1
        page.fill("#find", "no such thing")
        assert page.inner_text("#none").startswith("No finding matches.")
        page.click("#clear")
        assert rows.count() == 200
        assert page.inner_text("button[data-group=by-hand]") == "by hand 1"
        page.click("button[data-group=by-hand]")
        assert rows.count() == 1
        page.click("#findings button[data-group='']")
        page.click("[data-sort=saving]")
        assert "≤ 1 ms" in rows.first.inner_text()
        page.evaluate("location.hash = 'finding-170'")
        assert page.locator("#finding-170 .card").is_visible()


def test_the_icicle_leads_from_the_step_to_the_shapes(
    browser: Browser, demo: tuple[Report, str], tmp_path: Path
) -> None:
    with Opened(browser, written(tmp_path, demo[1])) as page:
        wait_until_drawn(page, "#icicle")
        hottest, tip = demo[0].hot_operators[0], page.locator("#icicle + .tip")
        told = []
        for row in range(5):
            page.locator("#icicle").hover(position={"x": 30, "y": 10 + 22 * row})
            told.append(tip.inner_text())
        assert told[0].startswith("step: 26 ms, 100.0%")
        assert [len(text.split("\n")) - ("●" in text) for text in told[:4]] == [1, 1, 2, 3]
        assert hottest.where in told[3]
        assert f"{hottest.type} (forward)" in told[3]
        assert hottest.shapes.split(";")[0] in told[4]
        page.click("#icicle", position={"x": 30, "y": 54})
        page.locator("#icicle").hover(position={"x": 1000, "y": 54})
        assert hottest.where in tip.inner_text()  # as wide as the whole now


def test_what_is_dragged_over_is_zoomed_into(
    browser: Browser, demo: tuple[Report, str], tmp_path: Path
) -> None:
    with Opened(browser, written(tmp_path, demo[1])) as page:
        box = page.locator("#timeline").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 400, box["y"] + 80)
        page.mouse.down()
        page.mouse.move(box["x"] + 500, box["y"] + 80, steps=4)
        page.mouse.up()
        page.focus("#timeline")
        looked = page.inner_text("#timeline-said").rpartition("; ")[2]
        assert 5 < float(looked.split("%")[0]) < 15
        assert page.evaluate("location.hash") == ""  # it was no click on a finding
        page.click("[data-zoom=all]")
        page.focus("#timeline")
        assert "of the time shown" not in page.inner_text("#timeline-said")


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
        assert demo[0].headline.partition("; ")[0] in page.inner_text("h1")


def test_names_of_a_dump_stay_text(browser: Browser, tmp_path: Path) -> None:
    text = to_html(*sample(300, 60, hostile=True))
    with Opened(browser, written(tmp_path, text)) as page:
        page.click("#more button")
        assert page.locator(".finding:visible").count() == 60
        page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")
        page.locator("#timeline").hover()
        page.locator("#icicle").hover(position={"x": 200, "y": 80})
        assert page.evaluate("window.attacked") is None
        assert "49" not in page.inner_text("h1")
        assert page.evaluate("document.scripts.length") == 3
        assert page.evaluate("document.images.length") == 0
        assert not set("\x1b\u202e\x00") & set(page.inner_text("body"))
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_without_scripts_everything_is_text(
    browser: Browser, demo: tuple[Report, str], tmp_path: Path
) -> None:
    with Opened(browser, written(tmp_path, demo[1]), java_script_enabled=False) as page:
        text = page.locator("main").text_content() or ""
        assert all(finding.rule in text for finding in demo[0].findings)
        assert demo[0].split is not None
        hottest = demo[0].hot_operators[0]
        assert milliseconds(hottest.total_ns / demo[0].split.recorded_steps) in text
        assert page.locator("#prediction i.less").count() > 1
        assert not page.locator("#theme").is_visible()


@pytest.mark.parametrize("name", ["alexnet_910b_2ranks", "llm_megatron_4ranks"])
def test_a_real_dump_is_drawn(browser: Browser, tmp_path: Path, name: str) -> None:
    if not (DUMPS / name).exists():
        pytest.skip("no real dumps here")
    found = diagnose(DUMPS / name, None, Options(top=1000))
    file = written(tmp_path, to_html(found.report, page_details(found, found.report, None)))
    with Opened(browser, file) as page:
        wait_until_drawn(page, "#timeline")
        assert page.locator("#communication .bars dt").count() > 0
        assert page.locator("#memory path").count() > 0
