"""Jobs before and after a known change, simulated event by event, against what is predicted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from msgspec import structs
from tests.advisor.predict.job import LINK, Job, Op, run

from npufix.advisor.diagnose.foreseeing import foresee
from npufix.advisor.evidence.change import Change, NewWork
from npufix.advisor.evidence.item import Item
from npufix.advisor.evidence.lines import gather_evidence
from npufix.advisor.predict import recorded
from npufix.advisor.predict.changes import edits
from npufix.advisor.predict.graph.replay import NO_EDIT
from npufix.advisor.predict.graph.replay import replay as replayed
from npufix.advisor.predict.recorded import spread_of, step_graph
from npufix.advisor.predict.what_if import Asked, Predictions, predict
from npufix.reports.report import Finding, Saving
from npufix.reports.wording.prediction import doubt_text

if TYPE_CHECKING:
    from collections.abc import Sequence

_LAYERS = 8
_LINK = "hcom_allReduce_"
_NORM = ("Pow", "ReduceMean", "Add", "Rsqrt", "Mul", "Mul")


@dataclass(frozen=True)
class Regime:
    """What a job waits for."""

    scale: float
    """Of the time of its kernels."""
    link_us: float = 0.0
    batch_us: float = 0.0
    room: int = 0
    ends_with_wait: bool = True

    def run(
        self,
        fused: Sequence[str] = (),
        *,
        slow: float = 1.0,
        waits: bool = False,
        first_us: float = 20.0,
    ) -> Job:
        layer = self._layer(fused, slow, waits=waits)
        layer[0] = replace(layer[0], host_us=first_us)
        ops = layer * _LAYERS
        ops += [Op("step", 25, (("Adam", 30 * self.scale),), after_link=True)]
        ops += [Op("aten::_local_scalar_dense", 20, waits=True)] if self.ends_with_wait else []
        return run(ops, room=self.room, batch_us=self.batch_us)

    def _layer(self, fused: Sequence[str], slow: float, *, waits: bool) -> list[Op]:
        scale = self.scale
        norm = [Op(kind, 20, ((kind, 2 + 3 * scale),), tag="norm") for kind in _NORM]
        gate = [Op("silu", 20, (("Swish", 2 + 4 * scale),), tag="gate"),
                Op("mul", 20, (("Mul", 2 + 5 * scale),), tag="gate")]  # fmt: skip
        if "norm" in fused:
            norm = [Op("fused", 20, (("RmsNorm", norm_us(self)),))]
        if "gate" in fused:
            gate = [Op("fused", 20, (("SwiGlu", slow * gate_us(self)),))]
        products = [Op("mm", 25, (("MatMulV3", 5 + 40 * scale),)) for _ in range(4)]
        reading = [Op("aten::_local_scalar_dense", 20, waits=True)] if waits else []
        link = [Op("all_reduce", 30, (("hcom_allReduce_", self.link_us),), stream=LINK)]
        return [*norm, *products, *gate, *reading, *(link if self.link_us else [])]


def norm_us(regime: Regime) -> float:
    return 3 + 5 * regime.scale


def gate_us(regime: Regime) -> float:
    return 3 + 4 * regime.scale


REGIMES = {
    "compute": Regime(5.0),
    "queue": Regime(5.0, room=64, ends_with_wait=False),
    "host": Regime(0.1),
    "host without a wait": Regime(0.1, ends_with_wait=False),
    "communication": Regime(0.6, link_us=400.0),
    "loading": Regime(0.3, batch_us=5_000.0),
}


def item(job: Job, tag: str, time_us: float, rule: str = "NPU101") -> Item:
    work = NewWork(1, (1200 * time_us, 1000 * time_us, 800 * time_us))
    change = Change(job.labels(tag), _LAYERS * len(job.ends), work)
    return Item(finding=finding(rule), kernels=job.labels(tag), change=change)


def finding(rule: str) -> Finding:
    texts = dict.fromkeys(("summary", "path", "function", "code", "replacement", "problem"), "")
    return Finding(
        rule=rule, name=rule.lower(), line=0, safety="advice", conditions=[], fingerprint="",
        kernels=[], calls=0, device_ns=0, share=0.0, saving=None, **texts,
    )  # fmt: skip


def foreseen(job: Job, *items: Item, asked: Asked | None = None) -> Predictions:
    found = predict(gather_evidence(job.profile(), {}), items, 0, asked)
    assert found is not None
    return found


@pytest.mark.parametrize("name", REGIMES)
def test_a_step_is_replayed_and_a_change_is_foreseen(name: str) -> None:
    regime = REGIMES[name]
    before, after = regime.run(), regime.run(["norm"])
    found = foreseen(before, item(before, "norm", norm_us(regime)))
    assert found.forecast.error < 0.02
    assert found.forecast.now_ns == pytest.approx(1000 * before.step_us, rel=0.02)
    predicted = found.alone[0]
    assert predicted.step_ns == pytest.approx(1000 * after.step_us, rel=0.03)
    assert predicted.step_low_ns <= 1000 * after.step_us <= predicted.step_high_ns
    gains = before.step_us - after.step_us > 0.002 * before.step_us
    assert predicted.verdict == ("gain" if gains else "none")


def test_many_variants_are_replayed_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Regime(10).run()
    items = [item(job, "norm", 40.0), item(job, "gate", 20.0), item(job, "norm", 30.0)]
    whole = foreseen(job, *items)
    monkeypatch.setattr("npufix.advisor.predict.graph.replay._MOST_CELLS", 1)
    assert foreseen(job, *items).alone == whole.alone


def test_each_step_begins_behind_its_copy_to_the_device() -> None:
    job = run([Op("mm", 25, (("MatMulV3", 200),))] * 30, copied_us=900)
    assert foreseen(job).forecast.now_ns == pytest.approx(1000 * job.step_us, rel=0.005)


@pytest.mark.parametrize(
    ("name", "limit"),
    [("compute", "computing"), ("host", "host"), ("communication", "communication"),
     ("loading", "loading")],
)  # fmt: skip
def test_what_limits_the_step_is_said(name: str, limit: str) -> None:
    assert foreseen(REGIMES[name].run()).forecast.limit == limit


def test_a_pause_of_the_host_goes() -> None:
    regime = REGIMES["host"]
    before, after = regime.run(first_us=900), regime.run(first_us=20)
    behind = sorted(before.labels("norm"))[1 :: len(_NORM)]
    change = Change(frozenset(), keeps=(1, 0, 0), sooner_ns=dict.fromkeys(behind, 880_000))
    predicted = foreseen(before, Item(finding=finding("NPU411"), change=change)).alone[0]
    assert predicted.step_ns == pytest.approx(1000 * after.step_us, rel=0.03)
    assert predicted.verdict == "gain"


def _pause(before: Job, us: int, *, is_divided: bool = True) -> Item:
    behind = sorted(before.labels("norm"))[1 :: len(_NORM)]
    sooner = dict.fromkeys(behind, us * 1000)
    change = Change(frozenset(), keeps=(0.1, 0, 0), sooner_ns=sooner, is_divided=is_divided)
    return Item(finding=finding("NPU411"), change=change)


@pytest.mark.parametrize("is_divided", [True, False])
def test_pauses_before_one_launch_go_both(is_divided: bool) -> None:  # noqa: FBT001 - a case
    # 0.5 ms of logging and 0.38 of collecting garbage, before the same launch.
    regime = REGIMES["host"]
    before, after = regime.run(first_us=900), regime.run(first_us=20 if is_divided else 400)
    pauses = [_pause(before, us, is_divided=is_divided) for us in (500, 380)]
    together = foreseen(before, *pauses).forecast.together
    assert together is not None
    assert together.step_ns == pytest.approx(1000 * after.step_us, rel=0.03)


def test_what_two_findings_let_go_at_one_launch_is_one_saving() -> None:
    # Two lines that both name the first kernels of each norm, and one that names the gate alone.
    before = REGIMES["host"].run()
    norm, gate = (item(before, tag, 5) for tag in ("norm", "gate"))
    alone = foreseen(before, norm).alone[0].saved_ns
    again = foreseen(before, norm, norm).forecast.together
    both = foreseen(before, norm, gate)
    assert again is not None
    assert both.forecast.together is not None
    assert again.saved_ns == pytest.approx(alone, rel=0.01)
    assert both.forecast.together.saved_ns == pytest.approx(
        alone + both.alone[1].saved_ns, rel=0.05
    )


def test_without_longer_steps_the_average_step_is_one_of_those_replayed() -> None:
    before = REGIMES["host"].run()
    longer = Item(finding=finding("NPU412"), outliers_ns=5_000_000)
    found = foreseen(before, longer)
    assert found.alone[0].step_ns == found.forecast.now_ns
    assert found.alone[0].saved_ns == pytest.approx(5_000_000, rel=0.01)
    assert found.alone[0].verdict == "gain"
    assert found.forecast.together is None, "no step that is replayed changes"


def test_a_pause_before_a_wait_goes_as_well() -> None:
    # The host prepares for 3 ms, then waits for a value, then launches.
    def program(pause_us: float) -> Job:
        ops = [Op("mm", 25, (("MatMulV3", 50.0),))] * 20
        return run([*ops, Op("prepare", pause_us), Op("aten::_local_scalar_dense", 20, waits=True)])

    before, after = program(3_000), program(20)
    count = len(before.kernels)
    behind = [*range(20, count, 20), ~(count - 1)]
    change = Change(frozenset(), keeps=(1, 0, 0), sooner_ns=dict.fromkeys(behind, 2_980_000))
    predicted = foreseen(before, Item(finding=finding("NPU411"), change=change)).alone[0]
    assert predicted.step_ns == pytest.approx(1000 * after.step_us, rel=0.03)


def test_a_pause_in_the_call_that_waits_goes_with_it() -> None:
    # A copy of 70 ms behind an idle device: neither before the call nor behind it is so much.
    def program(copy_us: float) -> Job:
        return run([Op("aten::copy_", copy_us), *[Op("mm", 25, (("MatMulV3", 50.0),))] * 20])

    before, after = program(70_000), program(1_000)
    behind = range(0, len(before.kernels), 20)
    names = before.profile().host_ops["name"]
    copies = frozenset(names.index[names == "aten::copy_"])
    sooner = dict.fromkeys(behind, 69_000_000)
    change = Change(frozenset(), keeps=(1, 0, 0), waits=copies, sooner_ns=sooner)
    predicted = foreseen(before, Item(finding=finding("NPU411"), change=change)).alone[0]
    assert predicted.step_ns == pytest.approx(1000 * after.step_us, abs=5 * before.step_us)
    assert predicted.verdict == "gain"


def test_a_loader_that_nobody_waited_for_may_be_the_next_limit() -> None:
    high = []
    for batch_us in (1.0, 0.0):
        before = Regime(5.0, batch_us=batch_us).run()
        # All norms, for nothing: more than the workers may keep up with.
        found = foreseen(before, item(before, "norm", 0.0))
        assert found.alone[0].verdict == "gain"
        high.append(found.alone[0].step_high_ns / found.forecast.now_ns)
        if batch_us:  # what is saved says the same as the step
            sure = (found.alone[0].saved_low_ns, found.added[0][0])
            assert max(sure) <= 0.2501 * found.forecast.now_ns
    assert high[0] == pytest.approx(max(0.75, high[1]), abs=0.01)


@pytest.mark.parametrize(("copied_ns", "is_small"), [(100, True), (10**6, False)])
def test_a_small_batch_is_soon_made(copied_ns: int, *, is_small: bool) -> None:
    job = Regime(5.0, batch_us=1.0).run()
    evidence = gather_evidence(job.profile(), {})
    copies = evidence.loads[["start_ns", "duration_ns"]].assign(duration_ns=copied_ns)
    found = predict(replace(evidence, copies=copies), [item(job, "", 0.0)], 0)
    assert found is not None
    high = found.alone[0].step_high_ns / found.forecast.now_ns
    assert (high < 0.74) == is_small


def test_a_new_operator_takes_the_host_as_long_as_usual_ones() -> None:
    # Not as long as the first of those in its place: 150 µs in the job, of 25 for its products.
    regime = REGIMES["host"]
    before = regime.run(first_us=150)
    after = regime.run(["norm"])
    predicted = foreseen(before, item(before, "norm", norm_us(regime))).alone[0]
    assert predicted.step_ns == pytest.approx(1000 * after.step_us, rel=0.03)


def test_a_new_operator_needs_no_more_than_those_in_its_place() -> None:
    # Of a step in graphs, which are launched in 2 ms each, nothing says what an operator needs.
    before = REGIMES["host"].run()
    graph = step_graph(gather_evidence(before.profile(), {}), 0)
    found = item(before, "norm", 8.0).change
    assert graph is not None
    assert found is not None
    own = np.isin(graph.label, list(found.kernels))
    graph = replace(
        graph, own_ns=np.where(own, 10e3, 2e6), delta_ns=np.where(own, graph.delta_ns, 3e6)
    )
    _, likely, _ = edits(graph, found)
    firsts = likely.deltas_ns[np.isin(likely.delta_rows, np.flatnonzero(own))]
    assert firsts.max() <= 3e6


def test_steps_that_are_alike_say_less() -> None:
    lengths = [100.0, 101.0, 102.0, 103.0, 102.0, 101.0, 100.0, 99.0]
    mixed = [100.0, 103.0, 99.0, 102.0, 101.0, 100.0, 102.0, 101.0]
    (spread, alike), (other, apart) = (spread_of(np.array(own)) for own in (lengths, mixed))
    assert spread == pytest.approx(other, rel=0.1)
    assert alike > 2 * apart >= 2
    assert spread_of(np.array([100.0])) == (0.0, 1.0)


def test_behind_the_host_the_device_is_the_limit() -> None:
    regime = Regime(0.9)
    before = regime.run()
    found = foreseen(before, item(before, "norm", norm_us(regime)))
    assert (found.forecast.limit, found.alone[0].limit) == ("host", "computing")
    assert found.alone[0].step_ns == pytest.approx(1000 * regime.run(["norm"]).step_us, rel=0.03)


def test_what_follows_a_kernel_that_goes_waits_for_its_collective() -> None:
    # The update waits for the all-reduce, however few kernels it has.
    link = Op("all_reduce", 30, ((_LINK, 3_000.0),), stream=LINK)
    parts = [Op("mul", 20, (("Mul", 200.0),), after_link=n == 0, tag="norm") for n in range(6)]
    fused = [Op("fused", 20, (("RmsNorm", 300.0),), after_link=True)]
    layer = [Op("mm", 25, (("MatMulV3", 100.0),)), link]
    before, after = (
        run([*layer, *own, Op("mm", 25, (("MatMulV3", 900.0),))]) for own in (parts, fused)
    )
    work = NewWork(1, (300_000.0,) * 3)
    change = Change(before.labels("norm"), len(before.ends), work)
    predicted = foreseen(before, Item(finding=finding("NPU128"), change=change)).alone[0]
    assert predicted.step_ns == pytest.approx(1000 * after.step_us, rel=0.02)


def test_several_changes_are_run_together_and_not_added() -> None:
    regime = Regime(0.9)
    before, after = regime.run(), regime.run(["norm", "gate"])
    items = [item(before, "norm", norm_us(regime)),
             item(before, "gate", gate_us(regime), "NPU103")]  # fmt: skip
    found = foreseen(before, *items)
    together = found.forecast.together
    assert together is not None
    assert together.step_ns == pytest.approx(1000 * after.step_us, rel=0.03)
    added = sum(predicted.saved_ns for predicted in found.alone.values())
    assert together.saved_ns < 0.98 * added, "the device limits what both of them save"
    steps = [bar.step_ns for bar in found.forecast.waterfall]
    assert steps == [found.alone[0].step_ns, together.step_ns]


@pytest.mark.parametrize(("name", "verdict"), [("compute", "loss"), ("host", "gain")])
def test_a_loss_where_the_device_limits_is_a_gain_where_the_host_does(
    name: str, verdict: str
) -> None:
    regime = REGIMES[name]
    before, after = regime.run(), regime.run(["gate"], slow=6)
    predicted = foreseen(before, item(before, "gate", 6 * gate_us(regime))).alone[0]
    assert predicted.verdict == verdict
    assert (predicted.saved_ns > 0) == (before.step_us > after.step_us)
    assert predicted.step_ns == pytest.approx(1000 * after.step_us, rel=0.03)


def test_waits_that_go_let_the_host_run_ahead() -> None:
    regime = Regime(0.8)
    before, after = regime.run(waits=True), regime.run()
    profile = before.profile()
    calls = profile.host_ops["name"] == "aten::_local_scalar_dense"
    waits = profile.host_ops.index[calls.to_numpy()]
    last = waits[_LAYERS :: _LAYERS + 1]  # of the step, which stays
    gone = frozenset(map(int, waits.difference(last)))
    change = Change(frozenset(), keeps=(0.0, 0.0, 0.0), waits=gone)
    found = predict(
        gather_evidence(profile, {}), [Item(finding=finding("NPU406"), change=change)], 0
    )
    assert found is not None
    # The calls stay, they only wait for nothing: 20 µs of the host for each.
    assert found.alone[0].step_ns == pytest.approx(
        1000 * after.step_us, rel=0.03, abs=_LAYERS * 25_000
    )
    assert found.alone[0].verdict == "gain"


def test_without_launches_the_replay_is_coarse_and_its_interval_wide() -> None:
    regime = REGIMES["host"]
    before, after = regime.run(), regime.run(["norm"])
    evidence = gather_evidence(before.profile(launches=False), {})
    found = predict(evidence, [item(before, "norm", norm_us(regime))], 0)
    assert found is not None
    assert found.forecast.model == "pauses"
    assert found.forecast.error < 0.02
    assert found.alone[0].step_low_ns <= 1000 * after.step_us <= found.alone[0].step_high_ns


def test_what_is_asked_for_is_answered() -> None:
    regime = REGIMES["host"]
    before = regime.run()
    items = [item(before, "norm", norm_us(regime)),
             item(before, "gate", gate_us(regime), "NPU103")]  # fmt: skip
    only = foreseen(before, *items, asked=Asked(("NPU103", "NPU999"))).forecast.question
    rest = foreseen(before, *items, asked=Asked(("NPU103",), without=True)).forecast.question
    alone = foreseen(before, *items).alone
    assert only is not None
    assert rest is not None
    assert (only.findings, only.missing, only.answer) == ([2], ["NPU999"], alone[1])
    assert (rest.findings, rest.answer) == ([1], alone[0])


def test_a_device_that_is_behind_is_so_as_the_steps_begin() -> None:
    evidence = gather_evidence(Regime(5.0, ends_with_wait=False).run().profile(), {})
    late = (evidence.kernels["step"] >= 2).to_numpy(bool)
    split = evidence.split[(evidence.split["step"] >= 2).to_numpy(bool)]
    graph = step_graph(replace(evidence, steady=evidence.steady & late, split=split), 0)
    assert graph is not None
    assert graph.lead_ns > 0
    own, again = replayed(graph, [NO_EDIT])
    assert own[0] == pytest.approx(graph.measured_ns, rel=1e-3)
    assert again[0] == pytest.approx(graph.measured_ns, rel=0.01)


def test_a_saving_beyond_the_kernels_says_why() -> None:
    # Where the host is the limit six launches less are worth more than the six kernels.
    job = Regime(0.1, ends_with_wait=False).run()
    fusing = item(job, "norm", norm_us(REGIMES["host"]))
    priced = structs.replace(fusing.finding, device_ns=1_000)
    evidence = gather_evidence(job.profile(), {})
    (told,) = foresee([replace(fusing, finding=priced)], evidence, 0, None, None).items
    assert told.finding.saving is not None
    assert told.finding.saving.high_ns > 1_000
    assert "the host has less to launch" in told.finding.saving.basis


def test_a_saving_that_the_replay_does_not_see_is_not_said_to_be_the_rule_s() -> None:
    # A rule says 50 ms; of what is replayed six kernels go, which are 0.8 ms.
    job = REGIMES["compute"].run()
    going = item(job, "norm", norm_us(REGIMES["compute"]))
    stated = Saving(0, 50_000_000, "all of it")
    priced = structs.replace(going.finding, device_ns=stated.high_ns, saving=stated)
    assert going.change is not None
    alone = replace(going, finding=priced, change=replace(going.change, forward=None))
    (told,) = foresee([alone], gather_evidence(job.profile(), {}), 0, None, None).items
    assert told.finding.saving is not None
    assert told.finding.saving.high_ns < stated.high_ns
    assert "other things limit the step" in told.finding.saving.basis


def on_stream(host_us: float, count: int = 300) -> Job:
    """Return a job whose kernels of 3 µs start 7 µs after their launch, one each ``host_us``."""
    add = Op("aten::add", host_us, (("Add", 3.0),))
    return run([*[add] * count, Op("aten::_local_scalar_dense", 20, waits=True)])


@pytest.mark.parametrize("host_us", [5, 8, 12, 25])
def test_a_host_that_is_never_late_leaves_what_the_device_takes(host_us: float) -> None:
    before, after = on_stream(host_us), on_stream(0.1)
    # What the loop takes before the first kernel of a step is no launch.
    launched = frozenset(at for at in range(len(before.kernels)) if at % 300)
    change = Change(frozenset(), keeps=(1.0, 0.0, 0.0), hurries=launched)
    hurried = foreseen(before, Item(finding=finding("NPU401"), change=change))
    predicted = hurried.alone[0]
    # No kernel was ever queued: how soon one follows the other is not to be seen.
    assert predicted.step_ns == pytest.approx(1000 * after.step_us, rel=0.06)
    assert predicted.step_high_ns >= 1000 * before.step_us * 0.99, "it may as well stay"
    assert hurried.forecast.together is None, "nothing says what would make it so"


@pytest.mark.parametrize("host_us", [5, 8, 12, 25])
def test_half_of_the_launches_take_half_of_the_step_of_a_host(host_us: float) -> None:
    pairs = [Op("aten::add", host_us, (("Add", 3.0),), tag="first"),
             Op("aten::mul", host_us, (("Mul", 3.0),), tag="first")]  # fmt: skip
    ends = [Op("aten::_local_scalar_dense", 20, waits=True)]
    before = run([*pairs * 150, *ends])
    after = run([Op("fused", host_us, (("Fused", 4.0),))] * 150 + ends)
    work = NewWork(1, (4_800.0, 4_000.0, 3_200.0))
    change = Change(before.labels("first"), 150 * len(before.ends), work)
    predicted = foreseen(before, Item(finding=finding("NPU101"), change=change)).alone[0]
    assert predicted.step_ns == pytest.approx(1000 * after.step_us, rel=0.05)


def test_a_copy_on_a_stream_of_its_own_no_longer_holds_the_others() -> None:
    copy, product = (
        Op("aten::copy_", 30, (("Memcpy HtoD", 900.0),), tag="copy"),
        Op("mm", 25, (("MatMulV3", 200.0),)),
    )
    ends = [Op("aten::_local_scalar_dense", 20, waits=True)]
    before, after = run([copy, *[product] * 9, *ends]), run([*[product] * 9, *ends])
    change = Change(before.labels("copy"), keeps=(1.0, 0.0, 0.0), hides=True)
    predicted = foreseen(before, Item(finding=finding("NPU410"), change=change)).alone[0]
    assert predicted.step_ns == pytest.approx(1000 * after.step_us, rel=0.03)
    assert predicted.saved_low_ns <= 0 < predicted.saved_ns


def test_why_nothing_is_predicted_is_said() -> None:
    job = REGIMES["host"].run()
    everything = frozenset(range(len(job.kernels)))
    hurried = Item(finding=finding("NPU401"), change=Change(frozenset(), hurries=everything))
    hot = Item(finding=finding("NPU310"), kernels=frozenset({1}), unknown="nobody knows")
    blind = gather_evidence(job.profile(launches=False), {})
    first, second = foresee([hurried, hot], blind, 0, None, None).items
    assert first.finding.unpredicted == "when the host launched each kernel is not recorded"
    assert second.finding.unpredicted == "nobody knows"
    told = doubt_text(second.finding)
    assert told == "cannot tell what the step would be: nobody knows"


def exposing(product_us: float, link_us: float) -> Job:
    """Return a job in which each layer waits for a collective, that for its operand."""
    layer = [Op("mm", 25, (("MatMulV3", product_us),), tag="mm"),
             Op("all_reduce", 30, ((_LINK, link_us),), stream=LINK, tag="link"),
             Op("add", 20, (("Add", 9.0),), after_link=True)]  # fmt: skip
    return run([*layer * 8, Op("aten::_local_scalar_dense", 20, waits=True)])


@pytest.mark.parametrize(("product_us", "link_us"), [(200, 100), (400, 100), (200, 900)])
@pytest.mark.parametrize("tag", ["mm", "link"])
def test_what_waits_for_exposed_collectives_gains_all_that_goes(
    product_us: float, link_us: float, tag: str
) -> None:
    before = exposing(product_us, link_us)
    after = exposing(product_us / (1 + (tag == "mm")), link_us / (1 + (tag == "link")))
    change = Change(before.labels(tag), keeps=(0.5, 0.5, 0.5))
    predicted = foreseen(before, Item(finding=finding("NPU501"), change=change)).alone[0]
    gain = 1000 * (before.step_us - after.step_us)
    assert predicted.saved_ns == pytest.approx(gain, rel=0.05)


def test_steps_as_long_as_the_average_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "_MOST_STEPS", 2)
    evidence = gather_evidence(Regime(5.0).run().profile(), {})
    split = evidence.split.copy()
    first = np.arange(len(split)) < 2
    split.loc[first, "free_ns"] += 4 * int(split["computing_ns"].max())
    graph = step_graph(replace(evidence, split=split), 0)
    assert graph is not None
    lengths = (split["computing_ns"] + split["free_ns"]).to_numpy()
    assert len(lengths) > 3
    windows = (lengths[1:] + lengths[:-1]) / 2
    nearest = np.abs(windows - lengths.mean()).argmin()
    assert graph.measured_ns == pytest.approx(windows[nearest], rel=0.05)


def test_the_wait_of_a_warm_up_is_no_round_of_the_loader() -> None:
    evidence = gather_evidence(REGIMES["loading"].run().profile(), {})
    loads = evidence.loads
    before = loads.head(1).assign(start_ns=loads["start_ns"].min() - 10**10, duration_ns=2 * 10**9)
    earlier = replace(evidence, loads=pd.concat([before, loads]))
    own, again = (step_graph(one, 0) for one in (evidence, earlier))
    assert own is not None
    assert again is not None
    assert own.host_waits == again.host_waits
