"""SARIF: valid by the official schema, and its fixes give what ``npufix patch`` writes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from gate_samples import finding, gated
from hypothesis import given
from hypothesis import strategies as st
from sarif_checks import SARIF, apply, region_text

from npufix.advisor.patch import patching
from npufix.reports import formats
from npufix.reports.data import fixes as sarif_fixes
from npufix.reports.data.sources import Sources
from npufix.reports.formats import sarif
from npufix.reports.report import Problem
from npufix.rewriters.verification.verdict import Status, Verdict
from npufix.rewriters.write.patch import FileChange, unified_diff

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    from npufix.advisor.diagnose.result import Diagnosis
    from npufix.advisor.project.source_tree import SourceTree
    from npufix.reports.report import Report

ROOT = Path(__file__).parents[2]
# Not ours to copy: https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/
OFFICIAL = Path(os.environ.get("SARIF_SCHEMA", Path(__file__).with_name("sarif-schema-2.1.0.json")))


def to_sarif(made: object, sources: Sources) -> str:
    return str(sarif.FORMAT.render(formats.Result(made, sources)))


def checked(text: str) -> dict[str, Any]:
    import jsonschema  # what it reads of internationalised addresses takes it seconds

    log: dict[str, Any] = json.loads(text)
    jsonschema.Draft202012Validator(SARIF).validate(log)
    if OFFICIAL.exists():
        schema = json.loads(OFFICIAL.read_text(encoding="utf-8"))
        jsonschema.validators.validator_for(schema)(schema).validate(log)
    return log


def test_the_example_is_valid_and_each_result_has_its_rule(example_report: Report) -> None:
    import jsonschema

    (run,) = checked(to_sarif(example_report, Sources(ROOT / "examples/bert_like")))["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert len(run["results"]) == len(example_report.findings)
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        where = result["locations"][0]["physicalLocation"]
        assert (ROOT / where["artifactLocation"]["uri"]).is_file()
    assert len({str(r["partialFingerprints"]) for r in run["results"]}) == len(run["results"])
    assert all("**Why it is slow" in rule["help"]["markdown"] for rule in rules)
    with pytest.raises(jsonschema.ValidationError):
        checked(json.dumps({"version": "2.1.0", "runs": [{"results": []}]}))


def test_a_region_is_the_code_of_its_finding(example_report: Report) -> None:
    (run,) = json.loads(to_sarif(example_report, Sources(ROOT / "examples/bert_like")))["runs"]
    for result, known in zip(run["results"], example_report.findings, strict=True):
        where = result["locations"][0]["physicalLocation"]
        text = (ROOT / where["artifactLocation"]["uri"]).read_text(encoding="utf-8")
        begin, end = region_text(text.splitlines(keepends=True), where["region"])
        assert text[begin:end] == known.code


def test_fixes_give_what_patch_writes(
    example_tree: SourceTree,
    example_scan: Diagnosis,
    example_report: Report,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def proven(jobs: list[object], _settings: object) -> list[Verdict]:
        return [Verdict(Status.EQUIVALENT, "none", "f", cases=1) for _ in jobs]

    monkeypatch.setattr(patching, "verify", proven)
    changes = patching.patch(example_scan, example_tree, patching.PatchOptions()).changes
    patched = {f"examples/bert_like/{c.relative}": c.after.decode() for c in changes}
    (run,) = json.loads(to_sarif(example_report, Sources(example_tree.root)))["runs"]
    offered = [result for result in run["results"] if result.get("fixes")]
    # What waits for a condition is offered as well, beside the condition.
    assert len(offered) == sum(f.safety != "advice" for f in example_report.findings)
    safe = [result for result in offered if result["properties"]["safety"] == "safe"]
    assert len(offered) > len(safe) > 3
    fixes = [fix for result in safe for fix in result["fixes"]]
    merged: dict[str, list[Any]] = {}
    for fix in fixes:
        (change,) = fix["artifactChanges"]
        merged.setdefault(change["artifactLocation"]["uri"], []).extend(change["replacements"])
    for uri, parts in merged.items():
        parts.sort(key=lambda part: part["deletedRegion"]["startLine"])
        whole = {"artifactLocation": {"uri": uri}, "replacements": parts}
        assert apply(ROOT, {"artifactChanges": [whole]}) == {uri: patched.pop(uri)}
    assert not patched


LINES = st.lists(st.sampled_from(["a", "- b", "++ c", "\U0001f600é", "@@ -1 +1 @@", "", "d\r"]))


@given(LINES, LINES, st.booleans(), st.booleans())
def test_any_diff_is_applied_exactly(
    old: list[str],
    new: list[str],
    old_ends: bool,  # noqa: FBT001 - drawn by name
    new_ends: bool,  # noqa: FBT001 - same
) -> None:
    before = "\n".join(old) + ("\n" if old and old_ends else "")
    after = "\n".join(new) + ("\n" if new and new_ends else "")
    path = Path("a.py")
    diff = unified_diff([FileChange(path, "a.py", before.encode(), after.encode())])
    text = before
    for part in reversed(sarif_fixes.replacements(diff)):
        lines = [f"{line}\n" for line in before.split("\n")]
        lines[-1] = lines[-1][:-1]
        region = {"startLine": part.start_line, "startColumn": part.start_column,
                  "endLine": part.end_line, "endColumn": part.end_column}  # fmt: skip
        begin, end = region_text(lines, region)
        text = text[:begin] + part.text + text[end:]
    assert text == after


def test_columns_count_utf16_and_paths_are_encoded(tmp_path: Path) -> None:
    folder = tmp_path / "größe 1#%"
    folder.mkdir()
    (folder / "train.py").write_text("s = '\U0001f600'; y[m] = 0\n", encoding="utf-8")
    (tmp_path / ".git").mkdir()
    made = gated(new_findings=[finding()], accepted_findings=[], metrics=[])
    (run,) = checked(to_sarif(made, Sources(folder)))["runs"]
    where = run["results"][0]["locations"][0]["physicalLocation"]
    assert where["artifactLocation"]["uri"] == "gr%C3%B6%C3%9Fe%201%23%25/train.py"
    # 's = '' is 5 code units, the face 2, ''; ' 3.
    assert where["region"] == {"startLine": 1, "startColumn": 11, "endLine": 1, "endColumn": 19}


def test_what_has_no_line_is_told_where_it_can_be(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    about_run = finding(kind="run", path="", line=0, code="", replacement="", what="Free is 40 %",
                        safety="advice", advice="set TASK_QUEUE_ENABLE=2")  # fmt: skip
    made = gated(new_findings=[], accepted_findings=[about_run], problems=[Problem("a", "b", "c")])
    (run,) = checked(to_sarif(made, Sources(tmp_path)))["runs"]
    said = run["invocations"][0]["toolExecutionNotifications"]
    assert not run["results"]
    assert any("Free is 40 %" in n["message"]["text"] for n in said)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "perf").mkdir()
    (run,) = checked(to_sarif(made, Sources(tmp_path)))["runs"]
    uris = {
        r["ruleId"]: r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        for r in run["results"]
    }
    assert uris["NPU201"] == uris["gate/step-time"] == "pyproject.toml"
    assert next(r for r in run["results"] if r["ruleId"] == "NPU201")["kind"] == "informational"


def test_a_run_holds_what_github_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sarif, "MOST_RESULTS", 5)
    (tmp_path / "train.py").write_text("y[m] = 0\n" * 9, encoding="utf-8")
    many = [finding(number=number) for number in range(9)]
    (run,) = checked(to_sarif(gated(new_findings=many), Sources(tmp_path)))["runs"]
    assert len(run["results"]) == 5
    assert "more results are left out" in str(run["invocations"])


def test_scan_writes_it(npufix_in: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "import torch\n\n\ndef f(x: torch.Tensor):\n    return torch.repeat_interleave(x, 3)\n",
        encoding="utf-8",
    )
    done = npufix_in(tmp_path, "scan", ".", "-o", "sarif=out.sarif")
    assert done.return_value == 0, done.exception
    (run,) = checked((tmp_path / "out.sarif").read_text(encoding="utf-8"))["runs"]
    (fix,) = run["results"][0]["fixes"]
    assert "repeat_interleave" not in apply(tmp_path, fix)["a.py"]
