"""The published schemas are those of the types, and what the tool writes is valid by them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from gate_samples import gated
from msgspec.structs import replace

from npufix.reports import baseline, report
from npufix.reports.encoding import encode_indented
from npufix.reports.json_schema import schemas
from npufix.reports.known_findings import known, to_json

if TYPE_CHECKING:
    from npufix.reports.report import Report

FOLDER = Path(__file__).parents[2] / "docs" / "schemas"


def check(name: str, text: str) -> None:
    import jsonschema  # what it reads of internationalised addresses takes it seconds

    schema = json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))


@pytest.mark.parametrize("name", sorted(schemas()))
def test_the_published_schema_is_that_of_the_type(name: str) -> None:
    published = (FOLDER / name).read_text(encoding="utf-8")
    assert published == schemas()[name], "run python -m npufix.reports.json_schema docs/schemas"


def test_nothing_else_is_published() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(schemas())


def test_what_is_written_is_valid(example_report: Report) -> None:
    import jsonschema

    check("report", report.to_json(example_report))
    check("gate", encode_indented(gated()))
    check("known-findings", to_json(known(f, f.path) for f in example_report.findings))
    metric = baseline.BaselineMetric("us", [1.5, 2.0], 0.01)
    runs = replace(baseline.empty(), run_count=2, metrics={"step-time": metric})
    check("baseline", baseline.to_json(runs))
    with pytest.raises(jsonschema.ValidationError):
        check("gate", report.to_json(example_report))


def test_fields_are_explained() -> None:
    gate = json.loads(schemas()["gate.schema.json"])["$defs"]["GatedMetric"]["properties"]
    assert gate["change"]["description"] == "Relative."
