"""JUnit, GitLab and GitHub: well-formed whatever a name holds, and within their limits."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING
from urllib.parse import unquote
from xml.etree import ElementTree as ET

import pytest
from gate_samples import finding, gated, metric
from hypothesis import given
from hypothesis import strategies as st

from npufix.reports.data.sources import Sources
from npufix.reports.formats import Result, formats

if TYPE_CHECKING:
    from pathlib import Path

    from npufix.reports.report import Report

NASTY = st.text(
    st.sampled_from("a%:,\r\n\0\x1b\x0b<&]>\"'\ud800\ufffe\U0001f600 ::error::"), max_size=20
)


def render(name: str, made: object, sources: Sources) -> str:
    return str(formats()[name].render(Result(made, sources)))


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    (tmp_path / ".git").mkdir()
    (tmp_path / "train.py").write_text("y[m] = 0\n" * 40, encoding="utf-8")
    return Sources(tmp_path)


@given(NASTY)
def test_no_name_breaks_a_format(text: str) -> None:
    broken = finding(text, summary=text, what=text, replacement=text, path=text, name=text)
    made = gated(
        new_findings=[broken], accepted_findings=[broken], headline=text, reasons=[text],
        metrics=[metric(text, verdict="regression", reason=text)], exit_status=3,
    )  # fmt: skip
    suite = ET.fromstring(render("junit", made, Sources()))  # noqa: S314 - our own
    assert suite.attrib["tests"] == str(len(suite.findall("*/testcase")))
    json.loads(render("gitlab", made, Sources()))
    json.loads(render("sarif", made, Sources()))
    commands = render("github", made, Sources()).splitlines()
    assert commands
    assert all(re.fullmatch(r"::(error|warning|notice) [^\r\n]*?::[^\r\n]*", c) for c in commands)


def test_junit_has_a_case_a_metric_and_a_finding(sources: Sources) -> None:
    (suite,) = ET.fromstring(render("junit", gated(), sources))  # noqa: S314 - our own
    cases = {case.attrib["name"]: case for case in suite}
    assert suite.attrib["failures"] == "2"
    assert "86.8 ms" in str(cases["step-time"].find("failure").attrib["message"])  # type: ignore[union-attr]
    assert cases["compute"].find("failure") is None
    # A metric that only warns, and what is accepted, are cases that pass.
    assert sum(case.find("failure") is not None for case in suite) == 2
    assert len(suite) == 5 + 2


def test_junit_holds_the_figures(sources: Sources) -> None:
    (suite,) = ET.fromstring(render("junit", gated(), sources))  # noqa: S314 - our own
    step = next(case for case in suite if case.attrib["name"] == "step-time")
    values = {each.attrib["name"]: each.attrib["value"] for each in step.findall("*/property")}
    assert float(step.attrib["time"]) == 0.0868
    assert (values["unit"], values["before"], values["after"]) == ("ns", "80000000", "86800000")
    memory = next(case for case in suite if case.attrib["name"] == "peak-memory")
    assert "time" not in memory.attrib


def test_an_undecided_gate_is_no_green_test(sources: Sources) -> None:
    unknown = metric("step-time", verdict="inconclusive")
    made = gated(exit_status=3, verdict="inconclusive", metrics=[unknown], new_findings=[])
    (suite,) = ET.fromstring(render("junit", made, sources))  # noqa: S314 - our own
    assert (suite.attrib["errors"], suite.attrib["skipped"]) == ("1", "1")


def test_gitlab_reads_every_row(sources: Sources) -> None:
    twins = [finding(number=1), finding(number=1)]
    made = gated(new_findings=twins, metrics=[])
    rows = json.loads(render("gitlab", made, sources))
    for row in rows:
        assert set(row) == {"description", "check_name", "fingerprint", "severity", "location"}
        assert row["severity"] in {"info", "minor", "major", "critical", "blocker"}
        assert isinstance(row["location"]["lines"]["begin"], int)
        assert not row["location"]["path"].startswith(("/", "./"))
    assert [row["severity"] for row in rows] == ["major", "major", "info"]
    assert len({row["fingerprint"] for row in rows}) == len(rows)
    assert rows == json.loads(render("gitlab", made, sources))


def test_github_shows_ten_of_a_kind(sources: Sources) -> None:
    made = gated(new_findings=[finding(number=n) for n in range(30)])
    lines = render("github", made, sources).splitlines()
    assert sum(line.startswith("::error ") for line in lines) == 10
    assert sum(line.startswith("::warning ") for line in lines) == 1
    assert lines[0].startswith("::error title=step-time%3A regression::step-time: 80 ms")
    assert lines[1].startswith("::error file=train.py,line=1,title=NPU201 masked-assignment::")
    assert "%0A" in lines[1]
    assert lines[-1] == "21 more are in the summary of this step."


@given(st.text(max_size=15))
def test_github_reads_back_what_was_meant(text: str) -> None:
    made = gated(new_findings=[], metrics=[metric(text, verdict="regression", reason="r")])
    (line,) = render("github", made, Sources()).split("\n")[:-1]
    title = line.removeprefix("::error title=").rpartition("::r")[0]
    assert not {":", ","} & set(title)
    assert unquote(title).endswith(": regression")


def test_a_scan_without_a_gate_warns(example_report: Report, sources: Sources) -> None:
    assert "::error" not in render("github", example_report, sources)
    severities = {row["severity"] for row in json.loads(render("gitlab", example_report, sources))}
    assert severities <= {"minor", "info"}
