"""What stands above a patch: who wrote it, from what, and what each change takes for granted.

``git apply`` and ``patch`` skip it, ``npufix verify --patch`` reads it again::

    # npufix 0.1.0 wrote this patch.
    # From the source alone, without a dump. Verified on virtual-npu (A2).
    #
    # model.py, hunk 2, line 31, Norm.forward, NPU101 eager-rms-norm:
    #   equivalent in 114 runs
    #   taken for granted: same-dtype
    #   safe for the recorded calls, which show: four-dimensional
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from npufix.reports.report import tool
from npufix.rewriters.edit.site import Basis
from npufix.rewriters.write.patch import unified_diff
from npufix.rules.shared.quantities import format_count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.reports.report import Finding, Report
    from npufix.rewriters.verification import Settings
    from npufix.rewriters.write.patch import FileChange

_GRANTED, _RECORDED = "taken for granted", "safe for the recorded calls, which show"
_CHANGE = re.compile(r"^# (?P<path>.+), hunk \d+, line \d+, (?P<function>\S+), \S+ \S+:$")
_CONDITIONS = re.compile(rf"^#   (?:{_GRANTED}|{_RECORDED}): (?P<names>[\w ,-]+)$")
_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? ", re.MULTILINE)


def write_header(
    report: Report, written: Sequence[Finding], changes: Sequence[FileChange], settings: Settings
) -> str:
    """Return the lines above a diff; "" for none."""
    if not changes:
        return ""
    kind = f" ({settings.kind})" if settings.kind else ""
    lines = [
        f"{tool()} wrote this patch; npufix verify --patch checks it again.",
        f"{_origin(report)} Verified on {settings.ground.value}{kind}.",
    ]
    for change in sorted(changes, key=lambda c: c.relative):
        starts = [(int(m[1]), int(m[2] or 1)) for m in _HUNK.finditer(unified_diff([change]))]
        for finding in sorted(written, key=lambda f: f.line):
            if finding.path == change.relative:
                lines += ["", *_describe(finding, _hunk_of(finding.line, starts))]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines) + "\n"


def _origin(report: Report) -> str:
    if not report.dump:
        return "From the source alone, without a dump."
    known = report.environment
    versions = [
        f"{name} {version}"
        for name, version in (
            ("torch_npu", known.torch_npu if known else None),
            ("CANN", known.cann if known else None),
        )
        if version
    ]
    return f"From the dump {_one_line(report.dump)}" + "".join(f", {v}" for v in versions) + "."


def _describe(finding: Finding, hunk: int) -> Iterator[str]:
    place = f"{_one_line(finding.path)}, hunk {hunk}, line {finding.line}, {finding.function}"
    yield f"{place}, {finding.rule} {finding.name}:"
    if finding.verdict is not None:
        runs = f" in {format_count(finding.verdict.cases, 'run')}" if finding.verdict.cases else ""
        scope = finding.verdict.scope
        whose = f" of {_one_line(scope)}" if runs and scope != finding.function else ""
        why = f": {_one_line(finding.verdict.reason)}" if finding.verdict.reason else ""
        yield f"  {finding.verdict.status}{runs}{whose}{why}"
    for words, bases in (
        (_GRANTED, {Basis.OPEN.value, Basis.ASSUMED.value}),
        (_RECORDED, {Basis.PROFILE.value}),
    ):
        names = [c.name for c in finding.conditions if c.basis in bases]
        if names:
            yield f"  {words}: {', '.join(dict.fromkeys(names))}"


def _hunk_of(line: int, starts: Sequence[tuple[int, int]]) -> int:
    """Return the number of the hunk that holds an old line, or of the one that is nearest."""

    def away(number: int) -> int:
        first, length = starts[number]
        return max(first - line, line - first - length + 1, 0)

    return min(range(len(starts)), key=away) + 1


def _one_line(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def read_header(data: bytes) -> Mapping[tuple[str, str], frozenset[str]]:
    """Return the conditions that a patch names, by path and function; none without a header."""
    found: dict[tuple[str, str], frozenset[str]] = {}
    at = ("", "")
    for line in data.decode("utf-8", "surrogateescape").split("\n"):
        if line and not line.startswith("#"):
            break
        if match := _CHANGE.match(line):
            at = _unescape(match["path"]), match["function"]
            found.setdefault(at, frozenset())
        elif (match := _CONDITIONS.match(line)) and at[0]:
            found[at] |= set(match["names"].split(", "))
    return found


def _unescape(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:  # somebody has edited it
        return text
