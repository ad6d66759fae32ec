"""Diagnostics of communication, on both sides of each threshold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest
from observed import only

from npufix.advisor.evidence.run_findings import change_of
from npufix.advisor.rules_test.recordings import MS, US, recording
from npufix.profiling_parsers.tables.payloads import payload_table
from npufix.rules.diagnostics import (
    exposed_communication,
    low_bandwidth,
    rdma_retransmission,
    small_packets,
    stalled_collectives,
    waiting_for_other_ranks,
)
from npufix.rules.shared.recording.collectives import (
    PARTS,
    collective_times,
    longest_collectives,
)

MB = 1_000_000
STEP = {"communication_exposed_ns": 50 * MS, "communication_ns": 80 * MS}


def kernel(name: str, duration: int = 10 * MS) -> dict[str, Any]:
    return {"name": name, "type": "hcom_allReduce_", "core": "COMMUNICATION", "communication": True,
            "duration_ns": duration, "path": "d.py", "line": 5, "function": "f"}  # fmt: skip


def collective(name: str, wait: int, transit: int, **columns: Any) -> dict[str, Any]:
    return {"step": "step1", "kind": "collective", "name": name, "group": "1", "start_ns": 0,
            "elapse_ns": wait + transit, "transit_ns": transit, "wait_ns": wait,
            "synchronization_ns": wait, "idle_ns": 0, **columns}  # fmt: skip


def transport(name: str, size: int, gb_per_s: float, **columns: Any) -> dict[str, Any]:
    return {"step": "step1", "kind": "collective", "name": name, "group": "1", "transport": "SDMA",
            "size_bytes": size, "transit_ns": round(size / gb_per_s), "gb_per_s": gb_per_s,
            "large_packet_ratio": 0.0, **columns}  # fmt: skip


@pytest.mark.parametrize(("exposed", "expected"), [(MS - 1, 0), (MS, 1)])
def test_exposed_communication_is_told_from_a_hundredth_on(exposed: int, expected: int) -> None:
    step = {"communication_exposed_ns": exposed, "communication_ns": 2 * exposed}
    looked_at = recording([kernel("a", 2 * exposed)], step=step)
    found = list(exposed_communication.check(looked_at))
    assert [o.cost_ns for o in found] == [exposed] * expected
    for seen in found:
        assert seen.kernels == {0}
        assert seen.saving_ns is None
        assert seen.places[0].cost_ns == pytest.approx(exposed, abs=2)


@pytest.mark.parametrize(
    ("exposed", "level"), [(9 * MS, "not of concern"), (11 * MS, "more than 10 %")]
)
def test_a_tenth_of_exposed_communication_changes_words_only(exposed: int, level: str) -> None:
    step = {"communication_exposed_ns": exposed, "communication_ns": exposed}
    (seen,) = exposed_communication.check(recording([kernel("a", 20 * MS)], step=step))
    assert level in seen.what


def test_only_moving_data_can_be_hidden() -> None:
    rows = [collective("a", 40 * MS, 6 * MS), collective("Total Op Info", 40 * MS, 6 * MS)]
    looked_at = recording([kernel("a")], step=STEP, collectives=rows)
    assert only(exposed_communication, looked_at).saving_ns == (0, 6 * MS)


@pytest.mark.parametrize("basis", ["forward", ""])
def test_gradients_are_hidden_behind_the_backward_pass_alone(basis: str) -> None:
    products = [
        {"type": "MatMulV3", "duration_ns": 40 * MS},
        {"type": "MatMulV3", "duration_ns": 60 * MS * (1 if basis else 0) + MS, "basis": basis},
    ]
    step = {"computing_ns": 100 * MS, "communication_exposed_ns": 60 * MS,
            "communication_ns": 75 * MS}  # fmt: skip
    rows = [collective("a", 0, 75 * MS)]
    looked_at = recording([kernel("a", 75 * MS), *products], step=step, collectives=rows)
    seen = only(exposed_communication, looked_at)
    # Three quarters of the backward pass, less 15 ms that are hidden already.
    backward = 61 / 101 if basis else 0.6
    assert seen.likely_ns == round((0.75 * backward * 100 - 15) * MS)
    assert seen.likely_ns == pytest.approx(30 * MS, rel=0.02)
    assert seen.saving_ns == (0, 60 * MS)


def test_collectives_that_stand_still_are_told_as_that_alone() -> None:
    rows = [collective("a", 4 * MS, MS, elapse_ns=50 * MS), collective("b", 0, 9 * MS)]
    looked_at = recording([kernel("a", 50 * MS), kernel("b", 9 * MS)], step=STEP, collectives=rows)
    seen = only(stalled_collectives, looked_at)
    assert seen.cost_ns == 45 * MS
    assert seen.kernels == {0}
    assert "a 45 ms" in seen.what
    assert "of 2 collectives" in seen.what
    change = change_of(seen, looked_at)
    assert change is not None
    # It moves data for 4 ms and waits for 1: of the 45 that are expected half go at least.
    assert change.keeps == (pytest.approx(0.55), *[pytest.approx(0.1)] * 2)
    rest = only(exposed_communication, looked_at)
    assert rest.kernels == {1}
    assert rest.cost_ns == STEP["communication_exposed_ns"] - 45 * MS - 4 * MS


@pytest.mark.parametrize(
    ("sizes", "said"),
    [((4_097, 1_024), "sizes alone are no multiples of 512 bytes: 4,097"),
     ((4_097, 1_025), "sizes are no multiples of 512 bytes: 4,097"), ((4_096, 1_024), ""),
     ((4_097, 0), "")],
)  # fmt: skip
def test_sizes_are_named_where_they_tell_slow_collectives_from_the_others(
    sizes: tuple[int, int], said: str
) -> None:
    rows = [collective("a", 0, MS, elapse_ns=50 * MS), collective("b", 0, 9 * MS)]
    looked_at = recording([kernel("a"), kernel("b")], step=STEP, collectives=rows)
    payloads = payload_table(dict(zip("ab", sizes, strict=True)))
    looked_at = replace(looked_at, signals=replace(looked_at.signals, payloads=payloads))
    seen = only(stalled_collectives, looked_at)
    assert ("512" in seen.what) == bool(said)
    assert seen.what.endswith(said)
    assert ("bucket" in seen.advice) == bool(said)


def test_collectives_that_count_on_from_step_to_step_are_one() -> None:
    rows = pd.DataFrame(
        {
            "step": ["1", "1", "2", "2"],
            "name": [f"hcom_allReduce__5_{number}_1@group" for number in range(4)],
            "waiting_ns": [60 * MS, MS, 40 * MS, MS],
            "size_bytes": 0,
        }
    )
    assert longest_collectives(rows, "waiting_ns", 2, {}) == "hcom_allReduce__5_0_1 50 ms"


@pytest.mark.parametrize(("speed", "links"), [(1.5, 1), (13.0, 0)])
def test_far_below_its_rate_the_link_is_looked_at_first(speed: float, links: int) -> None:
    size = 40_000_000
    rows = [
        {"step": "1", "name": "a", "transport": "SDMA", "size_bytes": size, "gb_per_s": speed,
         "transit_ns": round(size / speed)}
    ]  # fmt: skip
    found = only(low_bandwidth, recording([kernel("a")], transports=rows))
    assert f"less than 14.4 GB/s, {speed:.2f} GB/s on average" in found.what
    assert found.advice.count("hccn_tool") == links


@pytest.mark.parametrize(("payload", "said"), [(40_000_000, 1), (40_000_416, 0)])
def test_seven_links_of_9_gb_a_second_are_not_63(payload: int, said: int) -> None:
    rows = [transport("a", 280_000_000, 9.0)]
    # The collective itself takes a seventh of what its links add up to.
    moved = [collective("a", 0, round(40_000_000 / 9))]
    looked_at = recording([kernel("a")], transports=rows, collectives=moved)
    payloads = payload_table({"a": payload})
    found = only(
        low_bandwidth, replace(looked_at, signals=replace(looked_at.signals, payloads=payloads))
    )
    assert "less than 14.4 GB/s, 9.00 GB/s on average; of 4.44 ms that they take, " in found.what
    # Padding is no advice for what is a multiple of 512 bytes.
    assert ("overlap" in found.advice) == bool(said)


def test_of_many_alike_one_is_named() -> None:
    names = [f"hcom_allReduce__5_{number}_1@group" for number in range(16)]
    rows = pd.DataFrame({"step": "1", "name": names, "waiting_ns": 3 * MS, "size_bytes": 0})
    assert longest_collectives(rows, "waiting_ns", 1, {}) == "hcom_allReduce__5_0_1 3 ms"


def test_the_time_of_the_links_counts_where_a_version_states_none() -> None:
    rows = [collective("a", 0, 0, elapse_ns=30 * MS)]
    links = [transport("a", 360 * MB, 18.0), transport("a", 360 * MB, 18.0, transport="HCCS")]
    looked_at = recording([kernel("a")], step=STEP, collectives=rows, transports=links)
    (one,) = collective_times(looked_at)[0].to_dict("records")
    assert (one["moving_ns"], one["idle_ns"], one["size_bytes"]) == (20 * MS, 10 * MS, 360 * MB)
    assert only(exposed_communication, looked_at).saving_ns == (0, 20 * MS)


def test_a_link_of_unknown_time_moves_nothing() -> None:
    link = transport("a", 360 * MB, 18.0) | {"transit_ns": -1}
    rows = [collective("a", 30 * MS, 0, elapse_ns=30 * MS)]
    looked_at = recording([kernel("a")], step=STEP, collectives=rows, transports=[link])
    assert collective_times(looked_at)[0]["moving_ns"].tolist() == [0]


@pytest.mark.parametrize("kind", [{"kind": "p2p"}, {"name": "hcom_batchSendRecv__1_2_3"}])
def test_who_receives_waits_for_the_sender(kind: dict[str, str]) -> None:
    rows = [collective("a", 0, MS, elapse_ns=40 * MS) | kind]
    (one,) = collective_times(recording(collectives=rows))[0].to_dict("records")
    assert (one["waiting_ns"], one["moving_ns"], one["idle_ns"]) == (39 * MS, MS, 0)


def test_the_parts_of_a_collective_are_all_of_it() -> None:
    row = collective("a", 20 * MS, 5 * MS, elapse_ns=40 * MS) | {"synchronization_ns": 15 * MS}
    (one,) = collective_times(recording(collectives=[row]))[0].to_dict("records")
    assert [one[part] for part in PARTS] == [5 * MS, 15 * MS, 5 * MS, 15 * MS]


def test_a_transit_of_zero_is_unknown() -> None:
    looked_at = recording([kernel("a")], step=STEP, collectives=[collective("a", 40 * MS, 0)])
    assert only(exposed_communication, looked_at).saving_ns is None


@pytest.mark.parametrize(
    ("wait", "expected"),
    [(2_000_000, ""), (2_100_000, "also moved"), (152_000_000, "also moved"),
     (152_100_000, "nothing else")],
)  # fmt: skip
def test_waiting_is_told_from_a_fifth_on(wait: int, expected: str) -> None:
    rows = [collective("a", wait, 8 * MS)]
    looked_at = recording([kernel("a")], step=STEP, step_ns=200 * MS, collectives=rows)
    found = list(waiting_for_other_ranks.check(looked_at))
    assert [expected in o.what for o in found] == [True] * bool(expected)
    assert all(o.saving_ns is None and o.cost_ns == min(wait, 50 * MS) for o in found)


def test_waiting_of_less_than_one_percent_is_not_told() -> None:
    rows = [collective("a", MS - 1, 0)]
    assert not list(waiting_for_other_ranks.check(recording(step=STEP, collectives=rows)))
    rows = [collective("a", MS, 0)]
    assert only(waiting_for_other_ranks, recording(step=STEP, collectives=rows)).cost_ns == MS


def test_collectives_of_steps_that_are_left_out_do_not_count() -> None:
    rows = [
        collective("a", 4 * MS, 0),
        collective("b", 40 * MS, 0, step="step2"),
        collective("a", 4 * MS, 0, step="1"),
    ]
    found = only(waiting_for_other_ranks, recording(step=STEP, collectives=rows[:2]))
    assert found.cost_ns == 4 * MS
    # Without steps of the recording all count, shared between the steps of the file.
    assert only(waiting_for_other_ranks, recording(collectives=rows[:2])).cost_ns == 22 * MS


@pytest.mark.parametrize(
    ("sizes", "expected"), [([15 * MB, *[32 * MB] * 4], 0), ([15 * MB, *[32 * MB] * 3], 1)]
)
def test_a_fifth_of_small_packets_is_fine(sizes: list[int], expected: int) -> None:
    rows = [
        transport(f"c{i}", size, 4.0 if size < 16 * MB else 18.0) for i, size in enumerate(sizes)
    ]
    found = list(small_packets.check(recording([kernel("c0")], transports=rows)))
    assert len(found) == expected
    for seen in found:
        assert seen.cost_ns == 3_750_000
        # At the 18 GB/s of the large ones it would take 0.83 ms.
        assert seen.saving_ns == (0, round(3_750_000 * (1 - 4 / 18)))
        assert seen.kernels == {0}


@pytest.mark.parametrize(("size", "expected"), [(16 * MB, 0), (16 * MB - 1, 1)])
def test_16_mb_are_not_small(size: int, expected: int) -> None:
    assert len(list(small_packets.check(recording(transports=[transport("a", size, 4.0)])))) == (
        expected
    )


def test_rdma_has_its_own_size() -> None:
    rows = [transport("a", MB - 1, 0.1, transport="RDMA")]
    found = only(small_packets, recording(transports=rows))
    assert found.saving_ns is not None
    assert found.saving_ns[1] == pytest.approx((MB - 1) / 0.1 - (MB - 1) / 12.5, rel=1e-3)
    rows = [transport("a", MB, 0.1, transport="RDMA")]
    assert not list(small_packets.check(recording(transports=rows)))


@pytest.mark.parametrize(("gb_per_s", "expected"), [(14.5, 0), (14.3, 1)])
def test_small_packets_that_use_the_link_do_no_harm(gb_per_s: float, expected: int) -> None:
    rows = [transport(f"c{i}", 15 * MB, gb_per_s) for i in range(3)]
    assert len(list(small_packets.check(recording(transports=rows)))) == expected


@pytest.mark.parametrize(("gb_per_s", "expected"), [(14.5, 0), (14.3, 1)])
def test_large_collectives_should_reach_most_of_the_link(gb_per_s: float, expected: int) -> None:
    rows = [transport("a", 36 * MB, gb_per_s), transport("HCCS", 36 * MB, 1.0, transport="HCCS")]
    found = list(low_bandwidth.check(recording([kernel("a")], transports=rows)))
    assert len(found) == expected
    for seen in found:
        assert seen.saving_ns is not None
        assert seen.cost_ns == seen.saving_ns[1], "what is lost, not all that they take"
        assert seen.saving_ns[1] == pytest.approx(36 * MB / gb_per_s - 2 * MS, rel=1e-6)


@pytest.mark.parametrize(("gb_per_s", "expected"), [(6.5, 0), (2.5, 1)])
def test_a_network_that_is_far_from_its_ports_is_slow(gb_per_s: float, expected: int) -> None:
    rows = [transport("a", 25 * MB, gb_per_s, transport="RDMA")]
    found = list(low_bandwidth.check(recording([kernel("a")], transports=rows)))
    assert len(found) == expected
    for seen in found:
        assert "over RDMA reach less than 6.2 GB/s, 2.50 GB/s on average" in seen.what
        assert "lost against 12.5 GB/s" in seen.what
        assert seen.cost_ns == 8 * MS


def test_links_side_by_side_take_the_time_of_the_collective() -> None:
    rows = [transport("a", 36 * MB, 9.0)]
    whole = [collective("a", 0, 2 * MS)]
    found = only(low_bandwidth, recording(transports=rows, collectives=whole))
    assert (found.cost_ns, found.saving_ns) == (MS, (0, MS))
    # Beside each other they take longer than the step has: half of it is lost all the same.
    looked_at = recording(
        [kernel("a")], transports=[transport(f"c{i}", 36 * MB, 9.0) for i in "ab"]
    )
    beside = only(low_bandwidth, replace(looked_at, step_ns=6 * MS))
    assert beside.saving_ns == (0, 3 * MS)


def test_a_size_that_is_no_multiple_of_512_bytes_makes_a_collective_slow() -> None:
    sizes = {"hcom_allReduce__1_0_1": 8_192_000, "hcom_allReduce__1_1_1": 12_345_676}
    rates = (17.0, 1.2)
    rows = [transport(n, size, gb) for (n, size), gb in zip(sizes.items(), rates, strict=True)]
    payloads = [{"name": name, "size_bytes": size} for name, size in sizes.items()]
    looked_at = recording(transports=rows, payloads=payloads)
    found = only(low_bandwidth, looked_at)
    assert "1 of 2 collectives per step move data at 1.20 GB/s, others at 17.0 GB/s" in found.what
    assert "multiples of 512 bytes (12,345,676)" in found.what
    assert found.cost_ns == pytest.approx(12_345_676 / 1.2, rel=1e-6)
    assert not list(small_packets.check(looked_at))
    # Both are slow, or both sizes are aligned: then that is not why.
    alike = [transport(name, size, 1.2) for name, size in sizes.items()]
    assert not list(low_bandwidth.check(recording(transports=alike, payloads=payloads)))
    aligned = [{**row, "size_bytes": row["size_bytes"] // 512 * 512} for row in payloads]
    assert not list(low_bandwidth.check(recording(transports=rows, payloads=aligned)))


@pytest.mark.parametrize(("elapse", "expected"), [(3500 * MS, 0), (3950 * MS, 1), (4050 * MS, 1)])
def test_a_collective_over_rdma_takes_about_4_s(elapse: int, expected: int) -> None:
    rows = [collective("a", 0, elapse)]
    rdma = [transport("a", 64 * MB, 1.0, transport="RDMA")]
    looked_at = recording(
        [kernel("a")], step_ns=9000 * MS, collectives=rows, transports=rdma,
        variables={"HCCL_RDMA_TC": "132"},
    )  # fmt: skip
    found = list(rdma_retransmission.check(looked_at))
    assert [o.cost_ns for o in found] == [elapse] * expected
    assert all(("HCCL_RDMA_TC", "132") in o.evidence for o in found)


def test_long_collectives_that_wait_or_use_no_rdma_are_no_retransmission() -> None:
    rdma = [transport("a", 64 * MB, 1.0, transport="RDMA")]
    waits = [collective("a", 5000 * MS, MS)]
    assert not list(rdma_retransmission.check(recording(collectives=waits, transports=rdma)))
    slow = [collective("b", 0, 5000 * MS)]
    assert not list(rdma_retransmission.check(recording(collectives=slow, transports=rdma)))


def in_turn(*, between: bool) -> list[dict[str, Any]]:
    """Return 20 all-reduces, with a product behind each or not."""
    rows = []
    for at in range(20):
        rows.append({**kernel(f"c{at}", 65 * US), "start_ns": at * 200 * US})
        if between:
            start = (at * 200 + 100) * US
            rows.append({"type": "MatMulV3", "duration_ns": 50 * US, "start_ns": start})
    return rows


@pytest.mark.parametrize(("between", "joined"), [(False, True), (True, False)])
def test_collectives_of_96_kb_take_their_time_to_be_set_up(*, between: bool, joined: bool) -> None:
    moved = [transport(f"c{at}", 96_000, 18.0) for at in range(20)]
    whole = [collective(f"c{at}", 0, 5 * US, elapse_ns=65 * US) for at in range(20)]
    looked_at = recording(in_turn(between=between), transports=moved, collectives=whole)
    seen = only(small_packets, looked_at)
    assert seen.cost_ns == 20 * 65 * US
    # Those of layers wait for the layer: they cannot become one.
    assert (seen.instead is not None) == joined
