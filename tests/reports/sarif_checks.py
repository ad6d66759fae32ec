"""An independent reader of SARIF: what we use of the format, stricter, and how fixes apply.

The schema holds the part of SARIF 2.1.0 that our files are made of, written from the standard
(https://docs.oasis-open.org/sarif/sarif/v2.1.0/): nothing beyond it is allowed, no null anywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from npufix.reports.data.sources import utf16

if TYPE_CHECKING:
    from pathlib import Path

LEVEL = {"enum": ["none", "note", "warning", "error"]}
TEXT = {"type": "string", "minLength": 1}
POSITIVE = {"type": "integer", "minimum": 1}


def thing(required: str, optional: str = "", **properties: Any) -> dict[str, Any]:
    """Return the schema of an object that has these properties and no others."""
    names = {*required.split(), *optional.split()}
    return {
        "type": "object",
        "properties": {name: properties.get(name, TEXT) for name in names},
        "required": required.split(),
        "additionalProperties": False,
    }


def many(item: dict[str, Any], least: int = 0) -> dict[str, Any]:
    return {"type": "array", "items": item, "minItems": least}


MESSAGE = thing("text")
ARTIFACT = thing(
    "uri uriBaseId",
    uri={
        "type": "string",
        "pattern": r"^[A-Za-z0-9._~!$&'()*+,;=@%-][A-Za-z0-9._~!$&'()*+,;=@%/-]*$",
    },
    uriBaseId={"const": "SRCROOT"},
)
COLUMNS = dict.fromkeys(["startLine", "startColumn", "endLine", "endColumn"], POSITIVE)
REGION = thing("startLine", "startColumn endLine endColumn", **COLUMNS)
LOCATION = thing(
    "physicalLocation",
    physicalLocation=thing("artifactLocation region", artifactLocation=ARTIFACT, region=REGION),
)
FIX = thing(
    "description artifactChanges",
    description=MESSAGE,
    artifactChanges=many(
        thing(
            "artifactLocation replacements",
            artifactLocation=ARTIFACT,
            replacements=many(
                thing(
                    "deletedRegion",
                    "insertedContent",
                    deletedRegion=thing("startLine startColumn endLine endColumn", **COLUMNS),
                    insertedContent=thing("text", text={"type": "string"}),
                ),
                1,
            ),
        ),
        1,
    ),
)
RESULT = thing(
    "ruleId ruleIndex level message locations partialFingerprints",
    "kind fixes properties",
    ruleIndex={"type": "integer", "minimum": 0},
    level=LEVEL,
    kind={"const": "informational"},
    message=MESSAGE,
    locations={**many(LOCATION, 1), "maxItems": 1},
    partialFingerprints={"type": "object", "additionalProperties": TEXT, "minProperties": 1},
    fixes=many(FIX, 1),
    properties={"type": "object"},
)
RULE = thing(
    "id shortDescription fullDescription help defaultConfiguration",
    "name helpUri properties",
    shortDescription=MESSAGE,
    fullDescription=MESSAGE,
    help=thing("text markdown"),
    helpUri={"type": "string", "pattern": "^https://"},
    defaultConfiguration=thing("level", level=LEVEL),
    properties={"type": "object"},
)
SARIF = thing(
    "$schema version runs",
    version={"const": "2.1.0"},
    runs={
        **many(
            thing(
                "tool results columnKind",
                "invocations",
                tool=thing("driver", driver=thing("name version rules", rules=many(RULE))),
                columnKind={"const": "utf16CodeUnits"},
                results={**many(RESULT), "maxItems": 25_000},
                invocations=many(
                    thing(
                        "executionSuccessful",
                        "toolExecutionNotifications",
                        executionSuccessful={"type": "boolean"},
                        toolExecutionNotifications=many(
                            thing("message level", message=MESSAGE, level=LEVEL)
                        ),
                    )
                ),
            ),
            1,
        ),
        "maxItems": 20,
    },
)


def region_text(lines: list[str], region: dict[str, int]) -> tuple[int, int]:
    """Return where a region begins and ends in the joined lines, in characters."""

    def offset(line: int, column: int) -> int:
        before = sum(len(text) for text in lines[: line - 1])
        text = lines[line - 1] if line <= len(lines) else ""
        return before + next(i for i in range(len(text) + 1) if utf16(text[:i]) >= column - 1)

    return (
        offset(region["startLine"], region["startColumn"]),
        offset(region["endLine"], region["endColumn"]),
    )


def apply(root: Path, fix: dict[str, Any]) -> dict[str, str]:
    """Return the files that a fix changes, with their new texts."""
    changed = {}
    for change in fix["artifactChanges"]:
        path = unquote(change["artifactLocation"]["uri"])
        text = (root / path).read_bytes().decode()
        lines = [f"{line}\n" for line in text.split("\n")]
        lines[-1] = lines[-1][:-1]
        for part in reversed(change["replacements"]):
            begin, end = region_text(lines, part["deletedRegion"])
            text = text[:begin] + part["insertedContent"]["text"] + text[end:]
        changed[path] = text
    return changed
