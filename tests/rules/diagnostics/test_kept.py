"""What is asked of a recording once for all rules, and the rows that it is about."""

from __future__ import annotations

from npufix.advisor.rules_test.recordings import recording
from npufix.rules.diagnostic import keep_result
from npufix.rules.shared.recording.observing import computing, find_named, places

ROWS = [
    {"type": "Add", "duration_ns": 30, "path": "a.py", "line": 2, "function": "f"},
    {"type": "Mul", "duration_ns": 10, "path": "a.py", "line": 1, "function": "f"},
    {"type": "Add", "duration_ns": 20, "path": "a.py", "line": 1, "function": "g"},
    {"type": "Add", "duration_ns": 20, "path": "a.py", "line": 1, "function": "f"},
    {"type": "Add", "duration_ns": 90, "path": "", "line": 0, "function": ""},
    {"type": "hcom_allReduce_", "duration_ns": 9, "communication": True},
]


def test_a_recording_is_asked_once() -> None:
    asked = []

    @keep_result
    def answer(own: object, number: int) -> int:
        asked.append((own, number))
        return number + 1

    one, other = recording(ROWS), recording(ROWS)
    assert [answer(one, 1), answer(one, 1), answer(one, 2), answer(other, 1)] == [2, 2, 3, 2]
    assert [number for _, number in asked] == [1, 2, 1]


def test_computing_leaves_collectives_out() -> None:
    run = recording(ROWS)
    assert computing(run, "Add|hcom.*").index.tolist() == [0, 2, 3, 4]
    assert computing(run, "Nothing").empty
    assert list(computing(run, "Nothing").columns) == list(run.kernels.columns)


def test_named_takes_the_rows_of_whole_names() -> None:
    run = recording(ROWS)
    assert find_named(run.kernels, "Mu", "type").empty
    assert find_named(run.kernels, "Mul", "type").index.tolist() == [1]
    assert len(find_named(run.kernels, ".*", "type")) == len(ROWS)


def test_places_are_the_lines_by_cost() -> None:
    run = recording(ROWS)
    found = places(run.kernels, run.kernels["duration_ns"].to_numpy(), run)
    assert [(p.line, p.function, p.cost_ns, p.calls) for p in found] == [
        (1, "f", 30, 2),
        (2, "f", 30, 1),
        (1, "g", 20, 1),
    ]
    assert places(run.kernels[:0], run.kernels["duration_ns"].to_numpy()[:0], run) == ()
