"""The heat map of a cluster: what is under the pointer, on every key, and for a thousand ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from page_checks import Opened, violations, written
from page_samples import sample

from npufix.reports import report as r
from npufix.reports.html.page import to_html
from npufix.reports.html.rank_map import rank_map

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

pytestmark = pytest.mark.xdist_group("browser")


def cluster(ranks: int, steps: int, slow: int) -> r.Report:
    """Return a report whose rank ``slow`` computes twice as long; the last lacks step 1."""
    computing: list[list[int | None]] = [
        [2_000_000 if rank == slow else 1_000_000 + 100 * rank for _ in range(steps)]
        for rank in range(ranks)
    ]
    computing[-1][1] = None
    nothing: list[list[int | None]] = [[0] * steps for _ in range(ranks)]
    base = sample(3, 1)[0]
    (finding,) = base.findings
    return r.Report(**{
        **{name: getattr(base, name) for name in base.__struct_fields__},
        "findings": [r.Finding(**{
            **{name: getattr(finding, name) for name in finding.__struct_fields__},
            "ranks": [slow],
        })],
        "ranks": [
            r.Rank(n, f"d{n}", 10**6, 10**5 * n, None, role="slowest" if n == slow else "",
                   host=f"node{n // 8}")
            for n in range(ranks)
        ],
        "rank_steps": r.RankSteps([*range(steps)], computing, nothing, nothing),
    })  # fmt: skip


def test_cells_are_read_by_pointer_and_by_keys(browser: Browser, tmp_path: Path) -> None:
    with Opened(browser, written(tmp_path, to_html(cluster(16, 5, 9)))) as page:
        assert violations(page) == []
        assert "rank 9 slowest, median 2 ms" in page.inner_text("#map-worst")
        page.focus("#map")
        page.keyboard.press("ArrowRight")
        assert page.inner_text("#map-cell") == (
            "rank 9 slowest (node1), step 0: 2 ms, 2.00 times the median of the step"
        )
        for key in ("PageDown", "ArrowRight"):
            page.keyboard.press(key)
        assert page.inner_text("#map-cell") == "rank 15 (node1), step 1: not recorded"
        page.select_option("#map-order", "mean")
        page.locator("#map").hover(position={"x": 300, "y": 4})
        assert page.inner_text("#map-tip").startswith("rank 9 slowest (node1)")
        page.click("#finding-0 > summary")
        page.click("[data-rank='9']")
        assert page.inner_text("#map-cell").startswith("rank 9 slowest")
        row = page.locator("#t-ranks tbody tr").nth(9)
        assert row.locator("a").get_attribute("href") == "#finding-0"
        page.click("#language")
        assert "最慢" in page.inner_text("#map-cell")


def test_a_thousand_ranks_fit(browser: Browser, tmp_path: Path) -> None:
    made = cluster(1000, 300, 700)
    shown = rank_map(made)
    assert shown is not None
    assert shown.together == 3
    assert (shown.columns[0], len(shown.columns)) == ("0-2", 100)
    assert shown.computing[700] == [2_000_000] * 100
    assert shown.computing[999][0] == 1_099_900  # the mean of what is known
    size = {"width": 400, "height": 900}
    with Opened(
        browser, written(tmp_path, to_html(made)), color_scheme="dark", viewport=size
    ) as page:
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        # The slow rank stands out of noise: its row is the brightest.
        tones = page.evaluate(
            """(() => {
              const map = document.getElementById("map");
              const strip = map.getContext("2d").getImageData(200, 0, 1, map.height).data;
              const sum = (y) => strip[4 * y] + strip[4 * y + 1] + strip[4 * y + 2];
              return [sum(700), sum(500)];
            })()"""
        )
        assert tones[0] > 2 * tones[1]
        page.fill("input[data-table=ranks]", "slowest")
        assert page.locator("#t-ranks tbody tr").count() == 1


def test_without_steps_there_is_the_table(browser: Browser, tmp_path: Path) -> None:
    made, details = sample(3, 3)
    assert rank_map(made) is None
    with Opened(browser, written(tmp_path, to_html(made, details))) as page:
        assert page.locator("#map").count() == 0
        assert page.locator("#t-ranks tbody tr").count() == 8
        assert page.locator("#t-ranks .heat-9").count() == 2
