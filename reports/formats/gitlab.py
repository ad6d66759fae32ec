"""The code quality report of GitLab: what a merge request shows beside its lines."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from npufix.reports.data.notices import ERROR, NOTE, Notice, notices
from npufix.reports.encoding import encode_indented
from npufix.reports.formats import Format
from npufix.reports.gate_report import GateReport
from npufix.reports.report import Report

if TYPE_CHECKING:
    from npufix.reports.formats import Result

_SEVERITIES = {ERROR: "major", NOTE: "info"}


def _render(result: Result[Report | GateReport]) -> str:
    """Return a report as GitLab reads it; what has no line of the repository is left out."""
    seen: set[str] = set()
    found = notices(result.report, result.sources)
    return encode_indented([_row(notice, seen) for notice in found if notice.path]) + "\n"


def _row(notice: Notice, seen: set[str]) -> dict[str, object]:
    # GitLab drops one of two rows with the same fingerprint.
    number = 0
    while (key := sha256(f"{notice.fingerprint}\0{number}".encode()).hexdigest()[:32]) in seen:
        number += 1
    seen.add(key)
    text = f"{notice.title}: {' '.join(notice.message.split())}"
    return {
        "description": text.encode("utf-8", "backslashreplace").decode(),
        "check_name": notice.rule,
        "fingerprint": key,
        "severity": _SEVERITIES.get(notice.level, "minor"),
        "location": {
            "path": notice.path.encode("utf-8", "backslashreplace").decode(),
            "lines": {"begin": notice.line},
        },
    }


FORMAT = Format(
    name="gitlab",
    about="GitLab code quality.",
    renders={Report: _render, GateReport: _render},
)
