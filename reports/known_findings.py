"""A baseline of a source: the slow patterns that are known, so that only new ones fail.

One line a finding, sorted, without line numbers: a review shows what came and what went.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from npufix.reports.code_digest import digest, normal_form
from npufix.reports.encoding import encode_indented, without_mark
from npufix.reports.report import ReportError, tool

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npufix.reports.report import Finding

SCHEMA_VERSION = 2
"""Of 1 the digests were of the text, so that a renamed variable was a new finding."""
_REMEDY = "write it anew with npufix scan SOURCE --write-baseline FILE"


class Known(msgspec.Struct, frozen=True, order=True):
    """One finding, as far as it can be recognised later."""

    rule: str
    path: str
    """From the repository on."""
    function: str
    code: str
    """A digest of the rule and of what the code means, whatever its names and its layout are."""
    fingerprint: str = ""
    """Of a baseline of runs, whose entries have no digest of the code."""

    def __str__(self) -> str:
        """Return the line of the file."""
        return f"{self.rule}:{self.path}:{self.function}:{self.code}"


class KnownFindings(msgspec.Struct, frozen=True):
    """The file."""

    tool: str
    findings: list[str]
    """``RULE:path:function:digest``, as often as it is found."""
    schema: int = SCHEMA_VERSION


def known(finding: Finding, path: str) -> Known:
    """Return how a finding is recognised, whose file is at ``path``."""
    code = digest(finding.rule, normal_form(finding.code))
    return Known(finding.rule, path, finding.function, code, finding.fingerprint)


def to_json(entries: Iterable[Known]) -> str:
    """Return a baseline as JSON, one line a finding, sorted."""
    made = msgspec.to_builtins(KnownFindings(tool(), sorted(map(str, entries))))
    head = {"schema": made.pop("schema"), **made}
    return encode_indented(head) + "\n"


def from_json(text: str | bytes) -> list[Known]:
    """Read the findings of a baseline: of a source, or of runs (``npufix baseline``).

    Raises:
        ReportError: it is none, is cut off, or of another schema.

    """
    try:
        text = without_mark(text)
        head = msgspec.json.decode(text, type=_Head)
        if head.metrics is not msgspec.UNSET:
            return _of_runs(text)
        if head.schema != SCHEMA_VERSION:
            raise ReportError(
                f"baseline schema {head.schema}, {tool()} reads {SCHEMA_VERSION} -- {_REMEDY}"
            )
        lines = msgspec.json.decode(text, type=KnownFindings).findings
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ReportError(f"not a baseline: {error} -- {_REMEDY}") from error
    return [_read(line) for line in lines]


def _of_runs(text: str | bytes) -> list[Known]:
    from npufix.reports import baseline

    found = []
    for line in baseline.from_json(text).findings:
        rule, _, rest = line.partition(":")
        path, _, fingerprint = rest.rpartition(":")
        found.append(Known(rule, path, "", "", fingerprint))
    return found


def _read(line: str) -> Known:
    parts = line.rsplit(":", 2)
    rule, colon, path = parts[0].partition(":")
    if len(parts) != 3 or not colon:  # noqa: PLR2004 - path, function, digest
        raise ReportError(
            f"not a baseline: findings holds {line!r}, not RULE:path:function:digest -- {_REMEDY}"
        )
    return Known(rule, path, parts[1], parts[2])


class _Head(msgspec.Struct):
    schema: int
    metrics: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
