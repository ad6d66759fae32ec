"""Comparisons of runs in memory: parts that sum up, both directions, lines that have moved."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from two_runs import run_of

from npufix.advisor.compare.comparison import compare
from npufix.advisor.compare.places import same_paths
from npufix.advisor.project.source_tree import read_source_tree
from npufix.reports.measurement import MeasuredMetric
from npufix.reports.report import Environment

if TYPE_CHECKING:
    from pathlib import Path

    from npufix.advisor.compare.side import ComparedRun
    from npufix.reports.comparison import Comparison

NAMES = ("Mul", "Add", "MatMulV3", "RmsNorm", "Cast", "IndexPutV2")
PLACES = (("a.py", 3, "f"), ("a.py", 9, "f"), ("a.py", 20, "g"), ("b.py", 3, "f"))
TIMES = st.integers(0, 5_000_000)


@st.composite
def runs(draw: st.DrawFn) -> ComparedRun:
    spent = draw(st.dictionaries(st.tuples(st.sampled_from(NAMES), st.sampled_from(PLACES)), TIMES))
    known = draw(st.sampled_from([True, False]))
    types: dict[str, float] = {}
    for (name, _), ns in spent.items():
        types[name] = types.get(name, 0.0) + ns
    lines = [(*place, name, float(ns)) for (name, place), ns in spent.items() if known]
    parallel = draw(st.integers(0, 1000)) if sum(types.values()) > 1000 else 0
    return run_of(types, lines=lines, exposed=draw(TIMES), free=draw(TIMES), parallel=parallel)


@settings(max_examples=20)
@given(runs(), runs())
def test_parts_sum_up_and_directions_mirror(one: ComparedRun, other: ComparedRun) -> None:
    there, back = compare(one, other), compare(other, one)
    mirrored = {(op.type, op.after_ns, op.before_ns) for op in back.operators}
    assert mirrored == {(op.type, op.before_ns, op.after_ns) for op in there.operators}
    sides = {(str(ln.before_lines), str(ln.after_lines), ln.before_ns) for ln in there.lines}
    assert sides == {(str(ln.after_lines), str(ln.before_lines), ln.after_ns) for ln in back.lines}
    ahead, behind = there.explanation, back.explanation
    if ahead is None or behind is None:
        assert ahead is behind
        assert there.headline.startswith("These are different programs")
        return
    parts = sum(part.after_ns - part.before_ns for part in ahead.parts)
    assert round(parts) + ahead.others_ns + ahead.unexplained_ns == ahead.difference_ns
    assert behind.difference_ns == -ahead.difference_ns
    assert (behind.others_ns, behind.unexplained_ns) == (-ahead.others_ns, -ahead.unexplained_ns)
    assert [p.kind for p in behind.parts] == [p.kind for p in ahead.parts]
    assert [(p.after_ns, p.before_ns) for p in behind.parts] == [
        (p.before_ns, p.after_ns) for p in ahead.parts
    ]
    # Kernels that ran at the same time are all that cannot be explained.
    assert abs(ahead.unexplained_ns) <= 1000 + len(NAMES) * len(PLACES)


def explained(comparison: Comparison) -> list[tuple[str, float]]:
    assert comparison.explanation is not None
    return [(part.what, part.after_ns - part.before_ns) for part in comparison.explanation.parts]


def test_the_cause_is_named_by_line_or_by_type() -> None:
    # One line got slower: its place says more than the three Types on it.
    slow = {"Mul": 900.0, "Add": 900.0, "Cast": 900.0, "MatMulV3": 5000.0}
    fast = {"Mul": 500.0, "Add": 500.0, "Cast": 500.0, "MatMulV3": 5000.0}
    at = [("m.py", 7, "f", name, 0.0) for name in ("Mul", "Add", "Cast")]
    before, after = (
        run_of(run, lines=[*((*p[:4], run[p[3]]) for p in at), ("m.py", 8, "f", "MatMulV3", 5e3)])
        for run in (fast, slow)
    )
    assert explained(compare(before, after)) == [("m.py:7 f (Add, Cast, Mul)", 1200.0)]
    # One Type got slower on many lines: the Type says more than any of them.
    many = [("m.py", line, "f", "Mul") for line in range(1, 21)]
    before, after = (
        run_of({"Mul": 20 * ns}, lines=[(*place, ns) for place in many]) for ns in (100.0, 110.0)
    )
    assert explained(compare(before, after)) == [("Mul", 200.0)]


def test_different_programs_get_no_figure_for_their_difference() -> None:
    one = {"MatMul": 2e6, "Conv2D": 5e6, "Pooling": 2e6}
    other = {"MatMul": 2e6, "FlashAttentionScore": 5e6, "RmsNorm": 2e6}
    made = compare(run_of(one, exposed=10**7), run_of(other, exposed=10**6))
    said = made.headline
    assert made.explanation is None
    assert said.startswith("These are different programs: only 22.2% of the compute time")
    assert "%)" not in said
    # Where a hot operator was replaced, only one of the runs has much of its own.
    before = {"MatMul": 2e6, "IndexPutV2": 50e6}
    after = {"MatMul": 2e6, "MaskedFill": 1e6}
    assert compare(run_of(before), run_of(after)).headline.startswith("Step 52 ms -> 3 ms (-94.2%)")


def test_what_an_incomplete_table_lacks_is_not_nothing() -> None:
    comparison = compare(run_of({"Mul": 5.0}, complete=False), run_of({"Mul": 6.0, "Add": 4.0}))
    assert {op.type: (op.before_ns, op.after_ns) for op in comparison.operators} == {
        "Mul": (5, 6),
        "Add": (None, 4),
    }
    assert explained(comparison) == [("Mul", 1.0)]
    assert comparison.explanation is not None
    assert comparison.explanation.unexplained_ns == 4


def by_state(comparison: Comparison) -> dict[tuple[int, ...], tuple[str, tuple[int, ...]]]:
    return {
        tuple(line.before_lines): (line.state, tuple(line.after_lines))
        for line in comparison.lines
    }  # fmt: skip


def test_moved_lines_are_matched_by_their_kernels() -> None:
    old = [("m.py", 5, "f", "Mul", 10.0), ("m.py", 6, "f", "Add", 10.0),
           ("m.py", 40, "g", "Cast", 3.0), ("m.py", 41, "g", "Exp", 9.0)]  # fmt: skip
    new = [("m.py", 8, "f", "Mul", 10.0), ("m.py", 9, "f", "Add", 12.0),
           ("m.py", 40, "g", "Cast", 3.0), ("m.py", 44, "g", "RmsNorm", 1.0)]  # fmt: skip
    types = {"Mul": 10.0, "Add": 10.0, "Cast": 3.0}
    found = by_state(compare(run_of(types, lines=old), run_of(types, lines=new)))
    assert found == {
        (5,): ("moved", (8,)),
        (6,): ("moved", (9,)),
        (40,): ("same", (40,)),
        (41,): ("changed", (44,)),
    }


def test_lines_that_a_report_does_not_list_are_no_changed_code() -> None:
    listed = run_of({"Mul": 9.0}, lines=[("m.py", 5, "f", "Mul", 9.0)], complete=False)
    after = run_of(
        {"Add": 1.0, "Exp": 7.0}, lines=[("m.py", 5, "f", "Add", 1.0), ("m.py", 6, "f", "Exp", 7.0)]
    )
    found = {(line.state, line.before_ns, line.after_ns) for line in compare(listed, after).lines}
    assert found == {("gone", 9, 0), ("new", None, 1), ("new", None, 7)}


def test_a_line_stays_what_it_was_beside_one_that_changed() -> None:
    old = [("m.py", 28, "f", "TensorMove", 16.0), ("m.py", 30, "f", "IndexPutV2", 900.0)]
    new = [("m.py", 28, "f", "TensorMove", 15.0), ("m.py", 30, "f", "MaskedFill", 30.0),
           ("m.py", 30, "f", "TensorMove", 16.0)]  # fmt: skip
    made = compare(
        run_of({"TensorMove": 16.0, "IndexPutV2": 900.0}, lines=old),
        run_of({"TensorMove": 31.0, "MaskedFill": 30.0}, lines=new),
    )
    assert by_state(made) == {(28,): ("same", (28,)), (30,): ("changed", (30,))}


def test_lines_are_matched_by_their_text_where_both_sources_are_known(tmp_path: Path) -> None:
    texts = {
        "old": "def f(x):\n    y = x * 2\n    y = y + 1\n    return y.exp()\n",
        "new": "# moved\n\ndef f(x):\n    y = fused(x)\n    y  =  y + 1\n    return y.exp()\n",
    }
    sides = {}
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.py").write_text(text)
        sides[name] = read_source_tree(tmp_path / name)
    # All lines ask for the same Type: nothing but the text tells them apart.
    before = run_of({"Mul": 6.0}, lines=[("m.py", n, "f", "Mul", 2.0) for n in (2, 3, 4)])
    after = run_of({"Mul": 6.0}, lines=[("m.py", n, "f", "Mul", 2.0) for n in (4, 5, 6)])
    comparison = compare(replace(before, tree=sides["old"]), replace(after, tree=sides["new"]))
    assert by_state(comparison) == {
        (2,): ("changed", (4,)),
        (3,): ("moved", (5,)),
        (4,): ("moved", (6,)),
    }


def test_paths_are_matched_by_their_ends_if_that_is_clear() -> None:
    before = ["/job/a/model/norm.py", "/job/a/train.py", "/job/a/x/util.py", "/job/a/y/util.py"]
    after = ["/home/me/model/norm.py", "/home/me/train.py", "/home/me/util.py", "/lib/other.py"]
    assert same_paths(before, after) == {
        "/home/me/model/norm.py": "/job/a/model/norm.py",
        "/home/me/train.py": "/job/a/train.py",
    }


def test_noise_decides_what_is_called_a_difference() -> None:
    def verdict(spread: float | None, step: float) -> tuple[str, str]:
        base = run_of({"Mul": 1_000_000.0})
        metric = MeasuredMetric(step, "ns", spread)
        numbers = structs.replace(base.measurement, metrics={"step-time": metric})
        after = replace(run_of({"Mul": step}), measurement=numbers)
        made = compare(base, after)
        return made.metrics[0].verdict, made.headline

    assert verdict(0.01, 1_100_000.0)[0] == "larger"
    said, headline = verdict(0.1, 1_100_000.0)
    assert said == "within"
    assert "within what the steps of these runs differ by" in headline
    assert verdict(None, 1_100_000.0)[0] == "unknown"
    assert verdict(0.01, 1_000_000.0)[0] == "within"


def test_other_machines_are_compared_but_named() -> None:
    def on(chip: str | None, world_size: int, cann: str) -> ComparedRun:
        environment = Environment(0, world_size, None, cann, None, None, chip=chip)
        run = run_of({"Mul": 5.0})
        return replace(run, shown=structs.replace(run.shown, environment=environment))

    made = compare(on("Ascend910B3", 8, "8.0"), on("Ascend910B4", 16, "8.2"))
    assert made.differences == [
        "chip Ascend910B3 -> Ascend910B4",
        "CANN 8.0 -> 8.2",
        "world size 8 -> 16",
    ]
    # What one of them does not say is no difference.
    assert compare(on(None, 8, "8.0"), on("Ascend910B4", 8, "8.0")).differences == []
