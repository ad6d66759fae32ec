"""Warm-up and outliers are left out of averages, and only they."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npufix.advisor.evidence.steady_steps import are_varied, find_cut_off, split_steps

MS = 1_000_000


def steps_of(*totals_ms: float) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "step": pd.array(range(len(totals_ms)), dtype="Int64"),
            "device": 0,
            "computing_ns": [round(total * MS * 0.7) for total in totals_ms],
            "communication_exposed_ns": [round(total * MS * 0.1) for total in totals_ms],
            "free_ns": [round(total * MS * 0.2) for total in totals_ms],
        }
    )


@pytest.mark.parametrize(
    ("totals", "left_out"),
    [
        ((100, 101, 99, 100), {}),
        ((100, 125, 90, 100), {}),
        ((300, 100, 101), {0: "warm-up"}),
        ((300, 250, 100, 101, 99, 100), {0: "warm-up", 1: "warm-up"}),
        ((100, 101, 400, 99, 100), {2: "outlier"}),
        ((250, 100, 101, 30, 99, 100), {0: "warm-up"}),
        ((160, 100, 170, 101), {0: "warm-up", 2: "outlier"}),
        ((160, 100, 101, 170), {0: "warm-up", 3: "outlier"}),
        ((100, 101, 99, 40), {3: "outlier"}),
        ((100, 101, 40), {2: "outlier"}),
        ((100, 300), {}),
        ((300,), {}),
        ((), {}),
    ],
)
def test_what_is_left_out(totals: tuple[float, ...], left_out: dict[int, str]) -> None:
    kept, odd = split_steps(steps_of(*totals))
    assert {step.step: step.reason for step in odd} == left_out
    assert set(kept["step"]) == set(range(len(totals))) - set(left_out)


def test_a_last_step_that_is_only_faster_is_not_cut_off() -> None:
    steps = steps_of(100, 101, 40).assign(computing_ns=20 * MS)
    _, odd = split_steps(steps)
    assert 2 not in {step.step for step in odd}


def test_a_left_out_step_says_how_far_it_is_off() -> None:
    _, (odd,) = split_steps(steps_of(300, 100, 100, 100))
    assert odd.total_ns == 300 * MS
    assert odd.ratio == pytest.approx(3.0)


def test_devices_of_one_step_are_one_step() -> None:
    both = pd.concat([steps_of(300, 100, 100), steps_of(300, 100, 100).assign(device=1)])
    kept, odd = split_steps(both)
    assert len(odd) == 1
    assert len(kept) == 4


@given(st.lists(st.floats(1, 1e6), max_size=12))
def test_some_steps_always_remain_and_each_is_in_one_part(totals: list[float]) -> None:
    kept, odd = split_steps(steps_of(*totals))
    assert len(kept) + len(odd) == len(totals)
    assert 4 * len(kept) >= len(totals)


def test_steps_that_wait_for_their_batch_are_not_odd() -> None:
    steps = steps_of(100, 100, 400, 100, 100, 100, 400, 100)
    assert len(split_steps(steps)[1]) == 2
    numbers = steps["step"].tolist()
    loading = {int(numbers[2]): 300 * MS, int(numbers[6]): 300 * MS}
    assert split_steps(steps, loading)[1] == []
    # The first batch of all is waited for while the processes start.
    (odd,) = split_steps(steps_of(400, 100, 100, 100), {int(numbers[0]): 300 * MS})[1]
    assert odd.reason == "warm-up"
    # Each waits alike.
    everywhere = {int(number): 60 * MS for number in numbers[:4]}
    assert split_steps(steps_of(100, 101, 99, 100), everywhere)[1] == []
    # The first one waited less, and took as long.
    late = {**everywhere, int(numbers[0]): 35 * MS}
    assert split_steps(steps_of(100, 101, 99, 100), late)[1] == []
    # A device that was behind computes while the host waits: 31 ms of work, 108 with a wait of 95.
    behind = steps_of(31, 32, 108, 33, 34)
    assert split_steps(behind, {int(behind["step"].iloc[2]): 95 * MS})[1] == []


def test_what_a_device_still_computes_while_its_host_waits_for_a_batch_is_no_odd_step() -> None:
    """Two processes load: each second step waits for both, while the device works off the first."""
    steps = steps_of(38, 97, 38, 106, 38, 97)
    loading = {1: 90 * MS, 3: 99 * MS, 5: 90 * MS}
    kept, left_out = split_steps(
        steps.assign(step=steps["step"] + 5), {n + 5: ns for n, ns in loading.items()}
    )
    assert len(kept) == 6
    assert left_out == []


@pytest.mark.parametrize(
    ("steps", "cut_off"),
    [
        (["abcdefghij", "abcd"], [1]),
        (["ghij", "abcdefghij"], [0]),
        (["ghij", "abcdefghij", "abcdefghij", "abcdefgh"], [0, 3]),
        (["abcdefghij", "abcdefghij", "abcdefgh"], [2]),
        (["abcdefghij", "abcdefgh"], []),  # of two, the first may do more: a checkpoint
        (["abcdefghij", "efab"], []),  # another kind of step
        (
            ["abcdefghij", "abcde", "abcdefghij", "abcde"],
            [],
        ),  # gradients are added up in each other
        (["abcdefghij"], []),
        ([], []),
    ],
)
def test_a_step_in_which_the_recording_begins_or_ends_is_left_out(
    steps: list[str], cut_off: list[int]
) -> None:
    kinds = [kind for own in steps for kind in own]
    kernels = pd.DataFrame(
        {
            "step": pd.array([at for at, own in enumerate(steps) for _ in own], dtype="Int64"),
            "type": pd.Categorical(kinds),
            "start_ns": range(len(kinds)),
            "communication": False,
        }
    )
    assert sorted(find_cut_off(kernels)) == cut_off


def test_cut_off_steps_are_left_out_and_said() -> None:
    kept, (odd,) = split_steps(steps_of(100, 30), cut_off=[1])
    assert list(kept["step"]) == [0]
    assert (odd.step, odd.reason, odd.ratio) == (1, "outlier", pytest.approx(0.3))


def test_where_inputs_are_varied_no_step_is_odd_for_what_it_computes() -> None:
    steps = steps_of(100, 40, 41, 110).assign(free_ns=4 * MS)
    steps.loc[2, "free_ns"] = 90 * MS
    kernels = pd.DataFrame(
        {
            "step": pd.array([0, 0, 1, 1, 2, 2, 3, 3], dtype="Int64"),
            "input_shapes": pd.Categorical([*"abcdefgh"]),
            "communication": False,
        }
    )
    assert are_varied(kernels)
    assert not are_varied(kernels.assign(input_shapes=pd.Categorical(["", *"aaaaaaa"])))
    _, left_out = split_steps(steps, varied=True)
    assert [step.step for step in left_out] == [2]
