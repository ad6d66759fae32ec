"""What of a change is not simply gone: launches, copies, loaders, late launches."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.advisor.predict.job import Job, Op, run
from tests.advisor.predict.test_what_if import REGIMES, finding, foreseen, on_stream

from npufix.advisor.evidence.change import Change, NewWork
from npufix.advisor.evidence.item import Item
from npufix.advisor.evidence.lines import gather_evidence
from npufix.advisor.predict.what_if import predict

if TYPE_CHECKING:
    from npufix.reports.prediction import Prediction

_WAIT = Op("aten::_local_scalar_dense", 20, waits=True)


def predicted(job: Job, change: Change, rule: str = "NPU303") -> Prediction:
    return foreseen(job, Item(finding=finding(rule), change=change)).alone[0]


def test_of_kernels_that_go_the_host_saves_the_launches() -> None:
    casts = [Op("aten::to", 20, (("Cast", 3.0),), tag="cast")] * 100
    others = [Op("mm", 25, (("MatMulV3", 6.0),))] * 50
    before, after = run([*casts, *others, _WAIT]), run([*casts[::2], *others, _WAIT])
    labels = before.labels("cast")
    goes = predicted(before, Change(labels, goes=True, keeps=(1.0, 0.5, 0.0)))
    assert goes.step_ns == pytest.approx(1000 * after.step_us, rel=0.03)
    faster = predicted(before, Change(labels, keeps=(1.0, 0.5, 0.5)))
    assert faster.saved_ns == pytest.approx(0, abs=10_000), "the host launches them as before"
    assert (goes.verdict, faster.verdict) == ("gain", "none")


def test_what_most_likely_gains_nothing_is_no_gain() -> None:
    # At best all go, and with them what the host does; most likely they are a little faster.
    before = REGIMES["host"].run()
    found = predicted(before, Change(before.labels("norm"), keeps=(1.0, 0.5, 0.0)))
    assert found.saved_ns == pytest.approx(0, abs=2_000)
    assert found.saved_high_ns > 100_000
    assert found.verdict == "unclear"


def test_a_few_late_launches_show_no_gap_between_kernels() -> None:
    job = on_stream(8)
    for number in range(40, len(job.kernels), 211):
        late, behind = job.kernels[number], job.kernels[number + 1]
        for kernel, more in ((late, 5.4), (behind, 5.4)):
            kernel["start"] = float(str(kernel["start"])) + more
    launched = frozenset(at for at in range(len(job.kernels)) if at % 300)
    change = Change(frozenset(), keeps=(1.0, 0.0, 0.0), hurries=launched)
    found = predicted(job, change, "NPU401")
    assert found.step_ns == pytest.approx(1000 * on_stream(0.1).step_us, rel=0.08)


def test_what_one_finding_puts_in_place_does_not_go_with_another() -> None:
    parts = [Op("mul", 20, (("Mul", 200.0),), tag="gate")] * 6
    fused = [Op("fused", 20, (("SwiGlu", 300.0),))]
    ends = [*[Op("mm", 25, (("MatMulV3", 900.0),))] * 3, _WAIT]
    before, after = run([*parts, *ends]), run([*fused, *ends])
    labels = before.labels("gate")
    work = NewWork(1, (300_000.0,) * 3)
    one = Item(finding=finding("NPU103"), change=Change(labels, len(before.ends), work))
    other = Item(finding=finding("NPU310"), change=Change(labels, goes=True, keeps=(1.0, 0.5, 0.0)))
    together = foreseen(before, one, other).forecast.together
    assert together is not None
    assert together.step_ns == pytest.approx(1000 * after.step_us, rel=0.02)


def test_small_kernels_that_become_parts_of_others_take_their_time_along() -> None:
    small = [Op("aten::add", 4, (("Add", 5.0),), tag="small")] * 60
    large = [Op("mm", 25, (("MatMulV3", 300.0),))] * 6
    before, after = run([*large, *small, _WAIT]), run([*large, _WAIT])
    change = Change(
        frozenset(), goes=True, keeps=(1.0, 0.5, 0.0), hurries=before.labels("small")
    )  # fmt: skip
    found = predicted(before, change, "NPU305")
    least, most = 1000 * after.step_us, 1000 * before.step_us
    assert found.step_ns == pytest.approx((least + most) / 2, rel=0.03)
    assert found.saved_high_ns == pytest.approx(most - least, rel=0.05)
    assert found.saved_low_ns == 0


def test_one_more_launch_is_a_loss_where_the_host_is_the_limit() -> None:
    sums = [Op("aten::cumsum", 20, (("Cumsum", 45.0),), tag="sum")]
    cast = Op("aten::to", 20, (("Cast", 3.0),))
    others = [Op("mul", 20, (("Mul", 4.0),))] * 9
    before = run([*[*sums, *others] * 20, _WAIT])
    after = run([*[cast, Op("aten::cumsum", 20, (("Cumsum", 6.0),)), *others] * 20, _WAIT])
    labels = before.labels("sum")
    # On the AI CPU they take 45 us, cast and summed on an AI core 9.
    work = NewWork(2, (10_000.0, 9_000.0, 8_000.0))
    found = predicted(before, Change(labels, len(labels), work), "NPU301")
    assert after.step_us > before.step_us
    assert found.step_ns == pytest.approx(1000 * after.step_us, rel=0.01)
    assert found.verdict == "loss"


def test_a_copy_out_of_pinned_memory_is_still_a_copy() -> None:
    def job(copied_us: float, *, waits: bool) -> Job:
        copy = Op("aten::copy_", copied_us if waits else 30.0)
        return run(
            [copy, *[Op("mm", 25, (("MatMulV3", 200.0),))] * 9, _WAIT],
            copied_us=0 if waits else copied_us,
        )

    before, after = job(3_000, waits=True), job(1_200, waits=False)
    profile = before.profile()
    calls = profile.host_ops.index[(profile.host_ops["name"] == "aten::copy_").to_numpy()]
    copies = frozenset(map(int, calls))
    keeps = (1.0, 0.0, 0.0)
    change = Change(
        frozenset(),
        keeps=keeps,
        waits=copies,
        stays_ns=dict.fromkeys(copies, (1_200_000, 2_400_000)),
    )
    found = predict(
        gather_evidence(profile, {}), [Item(finding=finding("NPU407"), change=change)], 0
    )
    assert found is not None
    alone = found.alone[0]
    assert alone.step_ns == pytest.approx(1000 * after.step_us, rel=0.03)
    # At best the next batch is copied while this one is computed.
    assert alone.saved_high_ns == pytest.approx(3_000_000, rel=0.03)
    whole = replace(change, stays_ns={})
    more = predict(gather_evidence(profile, {}), [Item(finding=finding("NPU407"), change=whole)], 0)
    assert more is not None
    assert more.alone[0].saved_ns == pytest.approx(alone.saved_ns + 1_200_000, rel=0.03)
    # Where its size says how long a slow one takes, the rest is certain to go.
    sure = replace(change, keeps=(0.0, 0.0, 0.0))
    less = predict(gather_evidence(profile, {}), [Item(finding=finding("NPU407"), change=sure)], 0)
    assert less is not None
    assert less.alone[0].saved_low_ns == pytest.approx(alone.saved_ns - 1_200_000, rel=0.03)
    assert alone.saved_low_ns == 0


def test_more_workers_gain_up_to_what_they_can_do() -> None:
    regime = REGIMES["loading"]
    job = regime.run()
    calls = job.profile().host_ops
    loads = frozenset(map(int, calls.index[calls["name"].str.startswith("enumerate").to_numpy()]))
    change = Change(frozenset(), keeps=(1.0, 0.0, 0.0), waits=loads)
    free = predicted(job, change, "NPU408")
    bound = predicted(job, replace(change, at_least_ns=3_500_000), "NPU408")
    assert free.step_ns == pytest.approx(1000 * replace(regime, batch_us=0).run().step_us, rel=0.03)
    assert (bound.step_ns, bound.limit, bound.limit_ns) == (3_500_000, "loading", 3_500_000)
    assert bound.saved_high_ns == free.saved_high_ns
    # Of how many cores the host has left it may be little that is gained.
    certain = replace(change, keeps=(0.0, 0.0, 0.0))
    few = replace(certain, at_worst_ns=round(0.9 * job.step_us * 1000))
    sure, less = (predicted(job, one, "NPU408") for one in (certain, few))
    assert less.step_ns == sure.step_ns
    assert less.step_high_ns > 750 * job.step_us > sure.step_high_ns


@pytest.mark.parametrize(("add_us", "fused_us"), [(3.0, 5.0), (60.0, 80.0)])
def test_the_part_of_a_fused_kernel_is_launched_no_more(add_us: float, fused_us: float) -> None:
    # Where the host is the limit half of the launches go; where the device is, some of the time.
    pairs = [
        Op("add", 20, (("Add", add_us),), tag="pair"),
        Op("norm", 20, (("RmsNorm", add_us),), tag="pair"),
    ]
    before = run([*pairs * 50, _WAIT])
    after = run([*[Op("fused", 20, (("AddRmsNorm", fused_us),))] * 50, _WAIT])
    labels = before.labels("pair")
    adds = frozenset(sorted(labels)[::2])
    keeps = (1.0, fused_us / (2 * add_us), 0.5)
    made = predicted(before, Change(labels, keeps=keeps, dropped=adds))
    assert made.step_ns == pytest.approx(1000 * after.step_us, rel=0.03)
    assert made.verdict == "gain"


def test_one_kernel_of_a_list_becomes_a_launch_for_each_tensor() -> None:
    products = [Op("mm", 25, (("MatMulV3", 6.0),))] * 20
    lists = [Op("foreach", 25, (("ForeachSqrt", 40.0),), tag="list")] * 4
    single = [Op("adam", 25, (("ApplyAdamWV2", 4.0),))] * 40
    before, after = run([*products, *lists, _WAIT]), run([*products, *single, _WAIT])
    labels = before.labels("list")
    work = NewWork(1, (4_000.0, 4_000.0, 4_000.0))
    made = predicted(before, Change(labels, 40 * len(before.ends), work))
    assert made.step_ns == pytest.approx(1000 * after.step_us, rel=0.03)
    assert made.verdict == "loss"


def test_a_fused_operator_takes_the_host_no_less_than_those_that_stay() -> None:
    # The small updates in its place are done in 5 us each.
    products = [Op("mm", 25, (("MatMulV3", 6.0),))] * 40
    updates = [Op("mul_", 5, (("Mul", 3.0),), tag="update")] * 8 * 30
    fused = [Op("adam", 25, (("ApplyAdamWV2", 4.0),))] * 30
    before, after = run([*products, *updates, _WAIT]), run([*products, *fused, _WAIT])
    work = NewWork(1, (4_000.0, 4_000.0, 4_000.0))
    made = predicted(before, Change(before.labels("update"), 30 * len(before.ends), work))
    assert made.step_ns == pytest.approx(1000 * after.step_us, rel=0.05)
