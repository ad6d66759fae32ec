"""Predicted against measured: the example's dump, and what it becomes when findings are fixed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from npufix.advisor.compare.comparison import compare
from npufix.advisor.compare.side import ComparedRun, read_run
from npufix.advisor.diagnose.diagnosis import Options
from npufix.advisor.project.source_tree import read_source_tree

ROOT = Path(__file__).parents[3]
MASKING = "bert_like/masking.py"
LINE = 30
GOING = ["IndexPutV2", "NonZero"]
OF_THE_GRADIENT = ["ZerosLike", "TensorMove"]
"""What the gradient of an assignment by an index launches beside."""

pytestmark = pytest.mark.xdist_group("compare_example")


@pytest.fixture(scope="module")
def before() -> ComparedRun:
    tree = read_source_tree(ROOT / "examples" / "bert_like")
    return read_run(ROOT / "examples" / "dump", tree, Options())


def patched(run: ComparedRun, *, instead_us: float, calls: float = 3.0) -> ComparedRun:
    """Return the run with ``clear_padding`` rewritten: MaskedFill instead of the slow kernels."""
    if run.cells is None:
        raise AssertionError
    here = (run.cells["path"] == MASKING) & (run.cells["function"] == "clear_padding")
    assert (here & run.cells["type"].isin(GOING)).any()
    slow = here & run.cells["type"].isin([*GOING, *OF_THE_GRADIENT]) & (run.cells["line"] == LINE)
    new = run.cells[slow & (run.cells["type"] == "IndexPutV2")].head(1)
    new = new.assign(type="MaskedFill", total_ns=instead_us * 1e3, calls=calls)
    cells = pd.concat([run.cells[~slow], new], ignore_index=True)
    return replace(run, cells=cells, findings=[], knows_findings=False, tree=None)


def test_nothing_is_applied_to_the_same_run(before: ComparedRun) -> None:
    made = compare(before, before)
    assert made.predictions == []
    assert made.predicted is None
    assert {finding.state for finding in made.findings} == {"still there"}


@pytest.mark.parametrize(
    ("instead_us", "verdict"), [(60.0, "held"), (4000.0, "saved less")]
)  # fmt: skip
def test_the_measured_saving_is_held_against_the_prediction(
    before: ComparedRun, instead_us: float, verdict: str
) -> None:
    made = compare(before, patched(before, instead_us=instead_us))
    (prediction,) = made.predictions
    assert (prediction.path, prediction.function) == (MASKING, "clear_padding")
    finding = next(f for f in before.findings if f.function == "clear_padding")
    # What the kernels take is held against what was said of them, not of the step.
    said = finding.kernel_saving
    assert said is not None
    assert (prediction.low_ns, prediction.high_ns) == (said.low_ns, said.high_ns)
    assert prediction.measured_ns == pytest.approx(finding.device_ns - instead_us * 1e3, rel=1e-3)
    assert prediction.verdict == verdict
    assert "IndexPutV2" in prediction.decided
    assert "MaskedFill launched there instead" in prediction.decided
    assert made.predicted is not None
    assert made.predicted.measured_ns == prediction.measured_ns


def test_gone_findings_count_as_applied_only_with_their_kernels(before: ComparedRun) -> None:
    # The code is gone, but the kernels of the place are those of before: nothing was saved.
    other = replace(before, findings=[])
    assert compare(before, other).predictions == []
    states = [finding.state for finding in compare(before, other).findings]
    assert set(states) == {"gone"}
    assert {f.state for f in compare(other, before).findings} == {"new"}


def test_the_place_is_found_after_the_code_has_moved(before: ComparedRun) -> None:
    after = patched(before, instead_us=60.0)
    if after.cells is None:
        raise AssertionError
    moved = after.cells.assign(
        path=after.cells["path"].map(lambda path: f"/elsewhere/{path}" if path else ""),
        line=after.cells["line"] + 100,
    )
    rows = after.lines.rows.assign(path="/elsewhere/" + after.lines.rows["path"].astype(str))
    after = replace(after, cells=moved, lines=replace(after.lines, rows=rows))
    (prediction,) = compare(before, after).predictions
    assert (prediction.path, prediction.verdict) == (MASKING, "held")
