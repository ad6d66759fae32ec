"""Which calls of the host have waited for the device, and for how long."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from npufix.advisor.predict.recorded import _delays, _in_launch_order, _pauses
from npufix.advisor.predict.waits import Rows, find_host_waits, without_room_waits

US = 1_000


@pytest.mark.parametrize(
    ("busy_us", "returns_us", "own_us"),
    [
        (1_000, 200, 20),
        (1_000, 400, 1_399),  # so late that something else held the host
        (90_000, 400, 20),  # of a wait of 90 ms it is the way back
    ],
)
def test_a_long_wait_may_return_later(busy_us: int, returns_us: int, own_us: int) -> None:
    end = busy_us * US
    rows = Rows(
        *(np.array([value]) for value in (0, 0, end, 0)), np.array([False]), np.zeros(1, int)
    )
    start = US
    ops = pd.DataFrame(
        {
            "name": pd.Categorical(["aten::_local_scalar_dense"]),
            "start_ns": [start],
            "duration_ns": [end + returns_us * US - start],
        }
    )
    ((wait, ended),) = find_host_waits(rows, ops, ops[:0], 2.0 * end, 0, None, np.zeros(1))
    assert ended == end + returns_us * US
    assert wait.own_ns == own_us * US


def test_what_only_calls_a_read_goes_with_it() -> None:
    # ``aten::item`` of 3 us more around the read; a forward pass of 2 ms is no call of it.
    rows = Rows(
        *(np.array([value * US]) for value in (0, 0, 900, 0)), np.array([False]), np.zeros(1, int)
    )
    spans = [
        ("Module.forward", 0, 3_000),
        ("aten::item", 10, 903),
        ("aten::_local_scalar_dense", 12, 900),
    ]
    ops = pd.DataFrame(
        {
            "name": pd.Categorical([name for name, _, _ in spans]),
            "start_ns": [begin * US for _, begin, _ in spans],
            "duration_ns": [taken * US for _, _, taken in spans],
        }
    )
    ((wait, ended),) = find_host_waits(rows, ops, ops[:0], 5e6, 0, None, np.zeros(1))
    assert (wait.delta_ns, ended, wait.operator) == (10 * US, 913 * US, 2)


def test_a_copy_that_launches_a_kernel_waits_for_nothing() -> None:
    # ``x.float()`` is an ``aten::copy_`` around a Cast, ``x.cpu()`` is one around no kernel.
    rows = Rows(
        *(np.array([value * US, 400 * US]) for value in (30, 35, 95)),
        np.zeros(2),
        np.zeros(2, bool),
        np.array([30 * US, 390 * US]),
    )
    ops = pd.DataFrame(
        {
            "name": pd.Categorical(["aten::copy_"] * 2),
            "start_ns": [10 * US, 60 * US],
            "duration_ns": [40 * US] * 2,
        }
    )
    rows = rows._replace(stream=np.zeros(2, np.int64))
    ((wait, _),) = find_host_waits(rows, ops, ops[:0], 1e6, 0, None, np.zeros(1))
    assert wait.operator == 1


def test_what_a_queue_launches_during_a_copy_is_not_of_that_copy() -> None:
    # ``argmax`` asked for at 5 us leaves the queue at 20 us, when ``.cpu()`` waits already.
    rows = Rows(
        *(np.array([value * US]) for value in (20, 30, 95, 0)),
        np.array([False]),
        np.array([5 * US]),
    )
    ops = pd.DataFrame(
        {
            "name": pd.Categorical(["aten::copy_"]),
            "start_ns": [10 * US],
            "duration_ns": [95 * US],
        }
    )
    ((wait, _),) = find_host_waits(rows, ops, ops[:0], 1e6, 0, None, np.zeros(1))
    assert (wait.operator, wait.stream) == (0, 0)


def test_the_first_copy_waits_for_what_ran_before() -> None:
    # ``x.to("npu")`` as the step begins: 30 ms for the step before, then 400 us for itself.
    ops = pd.DataFrame(
        {
            "name": pd.Categorical(["aten::copy_", "acl_memcpy_host_to_device"]),
            "start_ns": [US, 5 * US],
            "duration_ns": [30_399 * US, 60 * US],
        }
    )
    rows = Rows(
        *(np.array([value * US]) for value in (30_450, 30_460, 31_000, 0)),
        np.array([False]),
        np.array([30_450 * US]),
    )
    busy = np.array([30_000.0 * US])
    ((wait, ended),) = find_host_waits(rows, ops, ops[:0], 31e6, 0, None, busy)
    assert (wait.operator, wait.before, wait.stream, ended) == (0, 0, 0, 30_400 * US)
    assert (wait.own_ns, wait.behind_ns) == (20 * US, 400 * US)


def test_what_each_batch_takes_alike_is_no_wait_for_it() -> None:
    loads = _loads([1, 21, 41, 61], [1, 1, 1, 1])
    found = find_host_waits(_ROW, loads, loads, 20e6, 0, None, np.zeros(1))
    assert [(wait.own_ns, wait.period_ns) for wait, _ in found] == [(1e6, 0)] * 4
    # Each of four batches of a step takes a quarter of what is between them: a wait.
    loads = _loads([5, 25, 45, 65], [5, 5, 5, 5])
    found = find_host_waits(_ROW, loads, loads, 80e6, 0, 80_000 * US, np.zeros(1))
    assert [wait.period_ns for wait, _ in found] == [20e6] * 4


def _loads(ends: list[int], waits: list[int]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "name": pd.Categorical(
                ["enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"] * len(ends)
            ),
            "start_ns": [(end - wait) * 1000 * US for end, wait in zip(ends, waits, strict=True)],
            "duration_ns": [wait * 1000 * US for wait in waits],
        }
    )


_ROW = Rows(*(np.array([value]) for value in (1, 1, 2, 0)), np.array([False]), np.array([1]))


def test_processes_that_load_together_are_waited_for_in_each_fourth_step() -> None:
    # Four batches every 40 ms; a step without a wait takes 2 ms.
    ends = [0, 40, 42, 44, 46, 80, 82, 84, 86, 120]
    loads = _loads(ends, [0, 38, 0, 0, 0, 34, 0, 0, 0, 34])
    found = find_host_waits(_ROW, loads, loads, 12e6, 0, None, np.zeros(1))
    assert [wait.period_ns for wait, _ in found] == [12e6] * len(ends)
    # What was there when it was asked for came with the one before.
    assert [wait.behind_ns / 1e6 for wait, _ in found[1:6]] == [40, 40, 40, 40, 80]


def test_rounds_say_how_often_batches_come_where_the_host_was_ahead_at_first() -> None:
    ends = [7, 14, 21, 28, 60, 67, 74, 81, 120, 127, 134, 141]
    loads = _loads(ends, [0, 0, 0, 0, 25, 0, 0, 0, 32, 0, 0, 0])
    wait = find_host_waits(_ROW, loads, loads, 12e6, 0, 141_000 * US, np.zeros(1))[0][0]
    assert wait.period_ns == pytest.approx(60e6 / 4)


@pytest.mark.parametrize(
    ("ends", "waits"),
    [
        # One of the batches came late: the next round tells how long four take.
        ([17, 156, 174, 192, 210, 278, 296, 314], [0, 122, 0, 0, 0, 52, 0, 0]),
        # One process, which is waited for each time, now longer, now shorter.
        ([10, 63, 82, 102, 131, 151, 172, 190], [10, 34, 2, 2, 12, 1, 1, 1]),
    ],
)
def test_batches_come_as_often_as_they_did_and_rounds_say_how_far_that_may_be_off(
    ends: list[int], waits: list[int]
) -> None:
    loads = _loads(ends, waits)
    wait = find_host_waits(_ROW, loads, loads, 30e6, 0, None, np.zeros(1))[0][0]
    assert wait.period_ns == pytest.approx(30e6, rel=0.02)
    assert 0.03 < wait.period_spread < 0.2


def test_what_a_launch_waits_for_room_is_no_time_of_the_host() -> None:
    delta = np.array([10.0, 300.0, 300.0, 12.0])
    waited = np.array([False, True, True, False])
    assert without_room_waits(delta, waited & False).tolist() == delta.tolist()
    assert without_room_waits(delta, waited).max() < 20.0


def test_a_pause_begins_behind_the_operator_that_launches_before_it() -> None:
    # unique() launches and returns; then the program waits for the stream, which no operator says.
    launch = np.array([30, 12_100, 12_120, 12_140, 12_160]) * US
    start = np.array([40, 12_110, 12_130, 12_150, 12_170]) * US
    rows = Rows(
        launch, start, np.array([12_050, 12_115, 12_135, 12_155, 12_175]) * US,
        np.zeros(5, np.int64), np.zeros(5, bool), launch,
    )  # fmt: skip
    ops = pd.DataFrame(
        {
            "name": pd.Categorical(["aten::_unique2"]),
            "start_ns": [10 * US],
            "duration_ns": [40 * US],
        }
    )
    ((wait, _),) = find_host_waits(rows, ops, ops[:0], 13e6, 0, None, np.zeros(1))
    assert wait.before == 1
    assert wait.own_ns == 20 * US


def test_a_wait_without_an_operator_ends_where_the_next_batch_is_asked_for() -> None:
    # ``torch.npu.synchronize()`` until 20 ms, then 3 ms for the batch, then the first launch.
    launch = np.array([*range(10, 30), 23_050]) * US
    end = np.array([*range(20, 39), 20_000, 23_070]) * US
    rows = Rows(
        launch, launch, end, np.zeros(21, np.int64), np.zeros(21, bool), np.arange(21) * 0 + launch
    )
    loads = _loads([23], [3]).assign(start_ns=[20_010 * US], duration_ns=[3_000 * US])
    found = find_host_waits(rows, loads, loads, 23e6, 0, None, np.zeros(1))
    assert [(wait.operator, wait.before, ended // US) for wait, ended in found][:1] == [
        (-1, 20, 20_009)
    ]


def test_a_collective_leaves_the_queue_behind_what_makes_its_operand() -> None:
    # Queued at 30, while the product that was queued before leaves the queue at 500 only.
    kernels = pd.DataFrame(
        {
            "start_ns": [900, 2_000, 2_900],
            "duration_ns": 100,
            "launch_ns": [500, 30, 600],
            "host_op": [0, 1, 2],
            "communication": [False, True, False],
            "device": 0,
            "stream": [1, 2, 1],
        }
    )
    ops = pd.DataFrame({"start_ns": [10, 20, 40]})
    found = _in_launch_order(kernels, ops, coarse=False)
    assert found.index.tolist() == [0, 1, 2]
    # It was queued a third of the way from that operator to the next one, and leaves so.
    assert found["launch_ns"].tolist() == [500, 533, 600]
    unknown = _in_launch_order(kernels.assign(host_op=-1), ops, coarse=False)
    assert unknown["launch_ns"].tolist() == [30, 500, 600]


def test_what_collectives_take_of_the_queue_is_not_the_next_kernel_s() -> None:
    # Queued at 20, 30 and 40, they hold the queue until the kernel of 50 leaves it at 1 000.
    kernels = pd.DataFrame(
        {
            "start_ns": [110, 300, 600, 900, 1_100],
            "duration_ns": 100,
            "launch_ns": [100, 22, 32, 42, 1_000],
            "host_op": range(5),
            "communication": [False, True, True, True, False],
            "device": 0,
            "stream": [1, 2, 2, 2, 1],
        }
    )
    ops = pd.DataFrame({"start_ns": [10, 20, 30, 40, 50]})
    found = _in_launch_order(kernels, ops, coarse=False)
    assert found["launch_ns"].tolist() == [100, 300, 550, 775, 1_000], "none behind its start"


def test_who_waits_for_another_stage_is_no_measure_of_launches() -> None:
    # The host is far ahead: only the first kernel of each step finds its stream free.
    start = np.array([140, 141, 142, 300, 301, 302]) * 1_000_000
    rows = Rows(
        launch=np.array([1, 2, 3, 161, 162, 163]) * 1_000_000,
        start=start,
        end=start + 999_000,
        stream=np.zeros(6, np.int64),
        communication=np.zeros(6, np.bool_),
        asked=start,
    )
    _, _, stalled = _delays(rows, np.append(-np.inf, rows.end[:-1]).astype(np.float64))
    assert stalled.tolist() == [True, False, False, True, False, False]


def test_a_collective_behind_another_waits_for_that_one() -> None:
    # A product, then three all-reduces of its result in a row, 6 us apart.
    start = np.array([0, 103, 209, 315]) * US
    rows = Rows(
        launch=np.array([-300, -290, -280, -270]) * US,
        start=start,
        end=start + 100 * US,
        stream=np.array([0, 1, 1, 1]),
        communication=np.array([False, True, True, True]),
        asked=start,
    )
    free = np.array([-np.inf, -np.inf, 203 * US, 309 * US])
    assert _delays(rows, free)[2].tolist()[2:] == [False, False]
    assert _pauses(rows, free, 0)[2].tolist()[2:] == [False, False]
