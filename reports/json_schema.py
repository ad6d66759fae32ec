"""The JSON Schemas of what npufix writes, made from the types themselves.

``python -m npufix.reports.json_schema FOLDER`` writes them; a test compares them with those in
``docs/schemas``.
"""

from __future__ import annotations

import ast
import inspect
import sys
from dataclasses import is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import msgspec

from npufix.reports.baseline import Baseline
from npufix.reports.bisect_report import BisectReport
from npufix.reports.comparison import Comparison
from npufix.reports.gate_report import GateReport
from npufix.reports.history import HistoryEntry
from npufix.reports.known_findings import KnownFindings
from npufix.reports.report import Report
from npufix.reports.trend_report import TrendReport

if TYPE_CHECKING:
    from collections.abc import Iterator

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_TYPES: dict[str, tuple[type, str]] = {
    "report": (Report, "npufix diagnose --json, npufix scan --json, npufix patch --json"),
    "gate": (GateReport, "npufix gate --output json=FILE, npufix scan --baseline --output json="),
    "comparison": (Comparison, "npufix compare --json"),
    "baseline": (Baseline, "npufix baseline update"),
    "history": (HistoryEntry, "npufix history add; each line"),
    "trend": (TrendReport, "npufix history show --json, npufix history check --json"),
    "bisect": (BisectReport, "npufix bisect --json"),
    "known-findings": (KnownFindings, "npufix scan --write-baseline"),
}


def schemas() -> dict[str, str]:
    """Return the file names and texts of all schemas."""
    return {f"{name}.schema.json": _schema(*about) for name, about in _TYPES.items()}


def _schema(model: type, command: str) -> str:
    (made,), parts = msgspec.json.schema_components([model], ref_template="#/$defs/{name}")
    # Some releases of msgspec pass the indentation of a docstring on, some do not.
    for part in parts.values():
        if "description" in part:
            part["description"] = inspect.cleandoc(part["description"])
    for name, remarks in _remarks(model).items():
        for field, text in remarks.items():
            parts[name]["properties"][field].setdefault("description", text)
    head: dict[str, Any] = {"$schema": _DRAFT, "title": model.__name__, "$comment": command}
    whole = {**head, **made, "$defs": dict(sorted(parts.items()))}
    return msgspec.json.format(msgspec.json.encode(whole), indent=2).decode() + "\n"


def _remarks(model: type) -> dict[str, dict[str, str]]:
    """Return what the source says below the fields of a type, and of those it is made of."""
    found: dict[str, dict[str, str]] = {}
    left = [model]
    while left:
        current = left.pop()
        if current.__name__ in found:
            continue
        (body,) = ast.parse(inspect.getsource(current)).body
        found[current.__name__] = dict(_list_documented(body))
        for hint in get_type_hints(current).values():
            left += [p for p in _parts(hint) if issubclass(p, msgspec.Struct) or is_dataclass(p)]
    return found


def _list_documented(body: ast.stmt) -> Iterator[tuple[str, str]]:
    statements = body.body if isinstance(body, ast.ClassDef) else []
    for field, remark in pairwise(statements):
        if isinstance(field, ast.AnnAssign) and isinstance(remark, ast.Expr):
            value = remark.value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield ast.unparse(field.target), " ".join(value.value.split())


def _parts(hint: object) -> Iterator[type]:
    """Yield the classes that a type is written with."""
    if isinstance(hint, type) and not get_args(hint):
        yield hint
    for part in get_args(hint):
        yield from _parts(part)


def main(folder: Path) -> None:
    """Write all schemas into a folder."""
    for name, text in schemas().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
