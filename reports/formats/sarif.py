"""SARIF 2.1.0: for code scanning of GitHub, reviewdog, editors.

Only what readers of any age know: no nulls, no empty objects, relative paths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.reports.data.fixes import replacements
from npufix.reports.data.notices import ERROR, Notice, most_important, notices
from npufix.reports.data.sources import utf16
from npufix.reports.encoding import encode_indented
from npufix.reports.formats import Format
from npufix.reports.gate_report import GateReport
from npufix.reports.report import Report

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npufix.reports.data.sources import Sources
    from npufix.reports.formats import Result
    from npufix.reports.report import Finding
    from npufix.rules.registry import Rule

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
ROOT = "SRCROOT"
MOST_RESULTS = 25_000
"""GitHub refuses a run with more."""
_FINGERPRINT = "npufix/v1"
_LEVELS = {"safe": "warning", "conditional": "warning", "advice": "note"}


def _render(result: Result[Report | GateReport]) -> str:
    """Return a report as SARIF, indented."""
    made, sources = result.report, result.sources
    found = notices(made, sources)
    placed = [notice for notice in found if notice.path]
    told = most_important(placed, MOST_RESULTS)
    results = [_result(notice, sources) for notice in told]
    name, _, version = made.tool.partition(" ")
    ids = sorted({notice.rule for notice in told})
    index = {rule: number for number, rule in enumerate(ids)}
    for row in results:
        row["ruleIndex"] = index[row["ruleId"]]
    driver = {"name": name, "version": version, "rules": _rules(ids, placed)}
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "columnKind": "utf16CodeUnits",
        "results": results,
    }
    left_out = [notice for notice in found if not notice.path]
    if said := _notifications(made, left_out, len(placed) - len(results)):
        run["invocations"] = [{"executionSuccessful": True, "toolExecutionNotifications": said}]
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return encode_indented(log) + "\n"


def _rules(ids: Sequence[str], found: Iterable[Notice]) -> list[dict[str, Any]]:
    from npufix.rules.registry import every_rule

    known = {rule.id: rule for rule in every_rule()}
    first: dict[str, Notice] = {}
    for notice in found:
        first.setdefault(notice.rule, notice)
    return [_rule(known[key]) if key in known else _unknown(first[key]) for key in ids]


def _rule(rule: Rule) -> dict[str, Any]:
    """Return what is known about a rule, from the documentation in its file."""
    from npufix.reports.terminal.rules import safety
    from npufix.rules.registry import documentation

    text = documentation(rule)
    title, _, rest = text.partition("\n\n")
    help_uri = next((word.strip("().,;") for word in text.split() if word[:8] == "https://"), "")
    return {
        "id": rule.id,
        "name": "".join(part.capitalize() for part in rule.name.split("-")),
        "shortDescription": {"text": _sentence(rule.summary)},
        "fullDescription": {"text": " ".join(title.split())},
        "help": {"text": text, "markdown": _markdown(rest or text, rule.id)},
        **({"helpUri": help_uri} if help_uri else {}),
        "defaultConfiguration": {"level": _LEVELS[safety(rule).value]},
        "properties": {"tags": ["performance", "npu", rule.table], "precision": "high"},
    }


def _unknown(notice: Notice) -> dict[str, Any]:
    """Describe a metric of the gate, or a rule that is no longer installed."""
    text = "A metric of the run that the gate watches." if notice.metric else notice.title
    return {
        "id": notice.rule,
        "shortDescription": {"text": text},
        "fullDescription": {"text": text},
        "help": {"text": text, "markdown": text},
        "defaultConfiguration": {"level": "warning"},
        "properties": {"tags": ["performance", "npu"]},
    }


def _markdown(text: str, rule: str) -> str:
    """Return the paragraphs of a documentation, their headings in bold."""
    paragraphs = []
    for paragraph in text.split("\n\n"):
        head, colon, body = paragraph.partition(":")
        bold = colon and "\n" not in head and len(head.split()) <= 8  # noqa: PLR2004 - a heading
        joined = " ".join((body if bold else paragraph).replace("``", "`").split())
        paragraphs.append(f"**{head}:** {joined}" if bold else joined)
    return "\n\n".join([*paragraphs, f"`npufix rules show {rule}` shows an example."])


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _result(notice: Notice, sources: Sources) -> dict[str, Any]:
    finding = notice.finding
    where = {
        "artifactLocation": {"uri": sources.uri(notice.path), "uriBaseId": ROOT},
        "region": _region(notice, sources),
    }
    # A place that only stands for the run is no fault of that line.
    informational = notice.stands_for_run and notice.level != ERROR
    result: dict[str, Any] = {
        "ruleId": notice.rule,
        "level": "none" if informational else notice.level,
        # "](" would make a link of an index that is called.
        "message": {"text": notice.message.replace("](", "] (")},
        "locations": [{"physicalLocation": where}],
        "partialFingerprints": {_FINGERPRINT: notice.fingerprint},
    }
    if informational:
        result["kind"] = "informational"
    if finding is not None:
        result["properties"] = _properties(finding)
        if fix := _fix(finding, notice, sources):
            result["fixes"] = [fix]
    return result


def _region(notice: Notice, sources: Sources) -> dict[str, int]:
    """Return the lines and columns of the code of a finding, as far as it is still there."""
    code = notice.finding.code if notice.finding else ""
    lines = sources.lines(notice.path) if code else ()
    region = {"startLine": notice.line}
    if not 0 < notice.line <= len(lines):
        return region
    # The code may begin some lines below the statement that it belongs to.
    for first in range(notice.line - 1, min(notice.line + 20, len(lines))):
        start = lines[first].find(code.split("\n", 1)[0].rstrip("\r"))
        if start >= 0 and "".join(lines[first : first + code.count("\n") + 1])[start:].startswith(
            code
        ):
            break
    else:
        return region
    last = code.rsplit("\n", 1)[-1]
    before = 0 if "\n" in code else utf16(lines[first][:start])
    return {
        "startLine": first + 1,
        "startColumn": utf16(lines[first][:start]) + 1,
        "endLine": first + 1 + code.count("\n"),
        "endColumn": before + utf16(last) + 1,
    }


def _properties(finding: Finding) -> dict[str, Any]:
    made: dict[str, Any] = {"safety": finding.safety, "function": finding.function}
    if finding.device_ns:
        made["device_us"] = finding.device_ns / 1e3
        made["share"] = round(finding.share, 6)
    if finding.saving is not None:
        made["saved_us"] = (finding.saving.low_ns + finding.saving.high_ns) / 2e3
        made["saved_us_low"] = finding.saving.low_ns / 1e3
        made["saved_us_high"] = finding.saving.high_ns / 1e3
    if wanted := [c.name for c in finding.conditions if c.basis == "open"]:
        made["open_conditions"] = wanted
    if finding.verdict is not None:
        made["verdict"] = finding.verdict.status
    return made


def _fix(finding: Finding, notice: Notice, sources: Sources) -> dict[str, Any] | None:
    """Return the change of a finding, as replaced regions of its file."""
    changes = [c for c in replacements(finding.diff) if c.path == finding.path]
    if not changes or not notice.path:
        return None
    run = "" if finding.verdict else " Not run yet: npufix patch verifies it."
    return {
        "description": {"text": f"{_sentence(notice.title)}{run}"},
        "artifactChanges": [
            {
                "artifactLocation": {"uri": sources.uri(notice.path), "uriBaseId": ROOT},
                "replacements": [
                    {
                        "deletedRegion": {
                            "startLine": change.start_line,
                            "startColumn": change.start_column,
                            "endLine": change.end_line,
                            "endColumn": change.end_column,
                        },
                        "insertedContent": {"text": change.text},
                    }
                    for change in changes
                ],
            }
        ],
    }


def _notifications(
    made: Report | GateReport, left_out: Sequence[Notice], too_many: int
) -> list[dict[str, Any]]:
    """Say what is no result: what has no line to be shown at, and what is partial."""
    said = [(f"{problem.where}: {problem.what}", "warning") for problem in made.problems]
    said += [(f"{n.title}: {n.message}", n.level) for n in left_out]
    if too_many > 0:
        said.append((f"{too_many} more results are left out.", "warning"))
    return [{"message": {"text": text}, "level": level} for text, level in said]


FORMAT = Format(
    name="sarif",
    about="SARIF 2.1.0 with fixes and fingerprints, for code scanning.",
    renders={Report: _render, GateReport: _render},
    ending=".sarif",
    shows_changes=True,
)
