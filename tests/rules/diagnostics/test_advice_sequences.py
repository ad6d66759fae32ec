"""Sequences of kernels against a plain loop over the rows, and what a diagnostic gets from them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npufix.advisor.rules_test.recordings import US, recording
from npufix.rules.shared.recording.sequences import find

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from npufix.rules.diagnostic import Recording


def row(name: str, start: int, **columns: Any) -> dict[str, Any]:
    return {"type": name, "start_ns": start * US, "duration_ns": US, **columns}


def in_order(names: str, **columns: Any) -> list[dict[str, Any]]:
    return [row(name, at, **columns) for at, name in enumerate(names.split())]


def slowly(
    looked_at: Recording, parts: Sequence[str], between: Collection[str], within: str
) -> list[list[int]]:
    """Walk row by row: what ``find`` must return."""
    table = looked_at.kernels.sort_values(["device", "start_ns"], kind="stable")
    table = table.astype({"type": str, "path": str})
    is_part = [any(re.fullmatch(part, name) for part in parts) for name in table["type"]]
    own = [
        (label, line)
        for (label, line), part in zip(table.iterrows(), is_part, strict=True)
        if part or not (line["communication"] or line["type"] in between)
    ]
    found: list[list[int]] = []
    at = 0
    while at + len(parts) <= len(own):
        taken = own[at : at + len(parts)]
        first = taken[0][1]
        fits = all(
            re.fullmatch(part, line["type"])
            and line["device"] == first["device"]
            and line["step"] == first["step"]
            and (not within or (line["path"], line["line"]) == (first["path"], first["line"]))
            for part, (_, line) in zip(parts, taken, strict=True)
        )
        if fits and (not within or first["path"]):
            found.append([int(str(label)) for label, _ in taken])
            at += len(parts)
        else:
            at += 1
    return sorted(found)


KERNEL = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["Add", "Mul", "Cast", "hcom_allReduce_"]),
        "start_ns": st.integers(0, 9),
        "device": st.integers(0, 1),
        "step": st.integers(1, 2),
        "path": st.sampled_from(["", "a.py"]),
        "line": st.integers(1, 2),
    }
).map(lambda line: {**line, "communication": line["type"].startswith("hcom")})
PARTS = st.lists(
    st.sampled_from(["Add", "Mul", "Add|Mul", "Cast", "hcom.*"]), min_size=1, max_size=3
)


@settings(max_examples=100)
@given(
    rows=st.lists(KERNEL, max_size=24),
    parts=PARTS,
    between=st.sampled_from([(), ("Cast",), ("Cast", "Mul")]),
    within=st.sampled_from(["", "line"]),
)
def test_it_finds_what_a_loop_finds(
    rows: list[dict[str, Any]], parts: list[str], between: tuple[str, ...], within: str
) -> None:
    looked_at = recording(rows)
    found = find(looked_at, parts, between=between, within=within)
    labels = looked_at.kernels.index.to_numpy()[found.rows]
    assert sorted(labels.tolist()) == slowly(looked_at, parts, between, within)


@pytest.mark.parametrize("count", [2, 3, 7, 33, 64])
def test_no_kernel_is_in_two_occurrences(count: int) -> None:
    found = find(recording(in_order("Add " * count)), ("Add", "Add"))
    assert found.rows.tolist() == [[at, at + 1] for at in range(0, count - 1, 2)]


def test_what_an_observation_needs() -> None:
    rows = in_order("Add LayerNormV3 Mul Add Cast LayerNorm Add", path="m.py", line=7, function="f")
    looked_at = recording(rows, step_count=2)
    found = find(looked_at, ("Add", "LayerNorm(V3)?"), between=("Cast",))
    assert (found.count, found.per_step) == (2, 1.0)
    assert found.labels == {0, 1, 3, 5}
    assert found.cost_ns == 2 * US
    assert found.part_cost_ns(1) == US
    assert found.part(1)["type"].tolist() == ["LayerNormV3", "LayerNorm"]
    (place,) = found.places()
    assert (place.path, place.line, place.calls, place.cost_ns) == ("m.py", 7, 1, 2 * US)
    assert found.without({5}).labels == {0, 1}
    assert find(looked_at, ("Add", "LayerNorm(V3)?")).labels == {0, 1}


@pytest.mark.parametrize(
    ("within", "columns", "expected"),
    [
        ("", {}, 1),
        ("line", {}, 0),
        ("line", {"path": "m.py", "line": 3}, 1),
        ("function", {"path": "m.py", "function": "f"}, 1),
        ("function", {"path": "m.py"}, 0),
        ("module", {"module": 4}, 1),
        ("module", {}, 0),
        ("operator", {"host_op": 0}, 1),
        ("operator", {}, 0),
    ],
)
def test_what_the_parts_share(within: str, columns: dict[str, Any], expected: int) -> None:
    rows = [row("Add", 0, **columns), row("Mul", 1, **columns)]
    assert find(recording(rows), ("Add", "Mul"), within=within).count == expected


def test_parts_of_other_lines_steps_and_devices_are_apart() -> None:
    for other in ({"step": 2}, {"device": 1}):
        rows = [row("Add", 0), row("Mul", 1, **other)]
        assert not find(recording(rows), ("Add", "Mul")).count
    rows = [row("Add", 0, path="m.py", line=1), row("Mul", 1, path="m.py", line=2)]
    assert not find(recording(rows), ("Add", "Mul"), within="line").count
    assert find(recording([]), ("Add", "Mul")).count == 0
