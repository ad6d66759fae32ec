"""One job, two runs of it, one export each: the same questions get the same answers."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pandas as pd
import pytest

from npufix.profiling_parsers.reader import read_profile

if TYPE_CHECKING:
    from pathlib import Path

    from npufix.profiling_parsers.profile import Profile


@pytest.fixture(scope="module")
def text(alexnet: Path) -> Profile:
    return read_profile(alexnet)


@pytest.fixture(scope="module")
def db(alexnet_db: Path) -> Profile:
    return read_profile(alexnet_db)


def compute(profile: Profile) -> pd.DataFrame:
    return profile.kernels[~profile.kernels["communication"]]


def by_type_and_core(kernels: pd.DataFrame) -> dict[tuple[str, str], tuple[int, int]]:
    grouped = kernels.groupby(["type", "core"], observed=True)["duration_ns"]
    return {key: (len(rows), int(rows.sum())) for key, rows in grouped}  # type: ignore[misc]


def host_calls(profile: Profile) -> Counter[tuple[object, ...]]:
    ops = profile.host_ops
    stacks = [profile.stacks[stack] if stack >= 0 else () for stack in ops["stack"]]
    return Counter(zip(ops["name"], ops["input_dims"], ops["input_types"], stacks, strict=True))


def attributed(profile: Profile) -> Counter[tuple[object, ...]]:
    """Count the kernels by everything but times: the two runs differ in nothing else."""
    kernels = compute(profile)
    ops = profile.host_ops.iloc[kernels["host_op"]]
    what = ["type", "core", "input_shapes", "input_dtypes", "output_shapes", "basis"]
    stacks = [profile.stacks[stack] if stack >= 0 else () for stack in kernels["stack"]]
    columns = [kernels[key] for key in what] + [ops["name"], ops["input_dims"]]
    return Counter(zip(*columns, stacks, strict=True))


def test_the_counts_per_type_and_core_are_the_same(text: Profile, db: Profile) -> None:
    mine, theirs = by_type_and_core(db.kernels), by_type_and_core(text.kernels)
    assert {key: count for key, (count, _) in mine.items()} == {
        key: count for key, (count, _) in theirs.items()
    }
    assert len(mine) == 34
    # Another run of the job: each time is a little different.
    total, of_text = compute(db)["duration_ns"].sum(), compute(text)["duration_ns"].sum()
    assert total == pytest.approx(of_text, rel=0.01)


def test_the_totals_are_those_of_the_same_run(db: Profile, alexnet_db: Path) -> None:
    csv = pd.read_csv(alexnet_db / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv")
    stated = csv.groupby(["op_type", "task_type"])["task_duration"].agg(["count", "sum"])
    stated = stated.drop("COMMUNICATION", level="task_type")
    mine = by_type_and_core(compute(db))
    assert len(mine) == len(stated)
    for key, row in stated.iterrows():
        count, total_ns = mine[key]  # type: ignore[index]
        assert (count, total_ns) == (row["count"], pytest.approx(row["sum"] * 1000, abs=0.5))


def test_the_split_agrees_with_the_kernels(text: Profile, db: Profile) -> None:
    (split,) = db.steps.to_dict("records")
    assert split["step"] == 50
    assert split["computing_ns"] == compute(db)["duration_ns"].sum() == 8_903_431
    collectives = db.kernels[db.kernels["communication"]]["duration_ns"].sum()
    assert split["communication_ns"] == pytest.approx(collectives, rel=1e-3)
    exposed, overlapped = split["communication_exposed_ns"], split["overlapped_ns"]
    assert exposed + overlapped == split["communication_ns"]
    (of_text,) = text.steps.to_dict("records")
    for key, value in of_text.items():
        assert split[key] == pytest.approx(value, rel=0.05)
    assert (db.kernels["step"] == 50).all()


def test_the_same_kernels_lead_to_the_same_operators_and_lines(text: Profile, db: Profile) -> None:
    assert attributed(db) == attributed(text)
    assert set(db.stacks) == set(text.stacks)


def test_nine_tenths_of_the_time_lead_to_a_line(db: Profile) -> None:
    kernels = compute(db)
    time = kernels.groupby("basis", observed=True)["duration_ns"].sum()
    share = time / kernels["duration_ns"].sum()
    assert share["call-stack"] + share["forward"] >= 0.90
    assert (db.kernels["host_op"] >= 0).all()


def test_the_host_operators_are_the_same(text: Profile, db: Profile) -> None:
    assert host_calls(db) == host_calls(text)
    numbered = [sum(profile.host_ops["sequence"] >= 0) for profile in (text, db)]
    assert numbered[0] == numbered[1]


def test_the_lines_of_each_type_rank_the_same(text: Profile, db: Profile) -> None:
    for profile in (text, db):
        assert profile.kernels["start_ns"].is_monotonic_increasing
    for name in ("Conv2D", "Conv2DBackpropFilter", "MatMulV2", "TransData", "MaxPoolWithArgmaxV1"):
        assert ranking(db, name)[0] == ranking(text, name)[0]
        assert set(ranking(db, name)) == set(ranking(text, name))


def ranking(profile: Profile, name: str) -> list[tuple[str, int]]:
    """Return the innermost line of the user's own file per stack, costliest first."""
    kernels = compute(profile)
    kernels = kernels[kernels["type"] == name]
    time: Counter[tuple[str, int]] = Counter()
    for stack, duration in zip(kernels["stack"], kernels["duration_ns"], strict=True):
        frames = profile.stacks[stack] if stack >= 0 else ()
        line = next((frame for frame in frames if "site-packages" not in frame.path), None)
        time[(line.path, line.line) if line else ("", 0)] += duration
    return [line for line, _ in time.most_common()]
