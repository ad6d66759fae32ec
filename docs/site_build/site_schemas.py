"""The page of the JSON schemas, from the schemas."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from site_blocks import cell, table

if TYPE_CHECKING:
    from pathlib import Path


_INTRODUCTION = (
    "Each JSON file of npufix holds the version of its schema, and a version that is not known is "
    "refused with a message. The schemas are JSON Schema 2020-12."
)


def page(folder: Path) -> str:
    """Return the page: each schema with the fields of its outermost object."""
    parts = [
        "# JSON schemas",
        _INTRODUCTION,
    ]
    for path in sorted(folder.glob("*.json")):
        schema = json.loads(path.read_text(encoding="utf-8"))
        parts += [
            f"## {schema['title']}",
            f"Written by `{schema['$comment']}`: [{path.name}](../schemas/{path.name}).",
            _fields(schema),
        ]
    return "\n\n".join(parts) + "\n"


def _fields(schema: dict[str, Any]) -> str:
    outermost = schema["$defs"][schema["$ref"].removeprefix("#/$defs/")]
    required = set(outermost.get("required", []))
    rows = [
        (f"`{name}`", cell(_kind(each)), "yes" if name in required else "")
        for name, each in outermost["properties"].items()
    ]
    return table(["Field", "Type", "Always there"], rows)


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return f"`{schema['$ref'].removeprefix('#/$defs/')}`"
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    if schema.get("type") == "array" and "items" in schema:
        return f"list of {_kind(schema['items'])}"
    if schema.get("type") == "array" and "prefixItems" in schema:
        return "[" + ", ".join(_kind(each) for each in schema["prefixItems"]) + "]"
    return str(schema.get("type", "any"))
