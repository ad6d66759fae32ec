"""What a call changes beside its arguments is seen, and put back before the next call."""

from __future__ import annotations

import random
import types

import pytest

torch = pytest.importorskip("torch")

from npufix.rewriters.verification.calls.observe import PreparedCall, observe  # noqa: E402 - same
from npufix.rewriters.verification.calls.surroundings import Surroundings  # noqa: E402 - same

TEXT = """
import torch
LOG = {"loss": [], "steps": 0}
count = 0
SEEN = {1, 2}
table = torch.zeros(2)
class Tracker:
    seen = 0
    def add(self, x, into=[], *, known={}):
        into.append(x)
        known["x"] = x
def step(x, cache={}):
    global count
    count += 1
    LOG["loss"].append(float(x.sum()))
    SEEN.add(3)
    table[0] = 5
    Tracker.seen += 2
    step.calls = getattr(step, "calls", 0) + 1
    cache["x"] = 1
    Tracker().add(2)
    return x * 2
step.calls = 0
"""


def module() -> types.ModuleType:
    made = types.ModuleType("user_module_of_a_test")
    exec(TEXT, made.__dict__)  # noqa: S102 - the text above
    return made


def test_data_of_the_module_is_seen_and_put_back() -> None:
    made = module()
    around = Surroundings(made.__dict__)
    call = PreparedCall(lambda passed: made.step(passed["x"]), {"x": torch.ones(3)}, around=around)
    seen = observe(call, "none", 0)
    assert not seen.error
    wrote = {"LOG['loss'][0]", "count", "SEEN", "table", "Tracker.seen", "step.calls"}
    assert wrote <= seen.changed
    defaults = {"0 of step['x']", "0 of Tracker.add[0]", "known of Tracker.add['x']"}
    assert {f"default {one}" for one in defaults} <= seen.changed
    assert seen.around["count"] == 1
    log = made.LOG
    around.restore()
    assert made.LOG is log
    assert log == {"loss": [], "steps": 0}
    assert (made.count, made.SEEN, made.Tracker.seen, made.step.calls) == (0, {1, 2}, 0, 0)
    assert not made.table.any()
    assert made.step.__defaults__ == ({},)
    assert made.Tracker.add.__defaults__ == ([],)
    assert made.Tracker.add.__kwdefaults__ == {"known": {}}


def test_settings_of_torch_are_seen_and_put_back() -> None:
    def call(passed: object) -> object:
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        return passed["x"]  # type: ignore[index] # a mapping

    seen = observe(PreparedCall(call, {"x": torch.ones(1)}), "leaf", 0)
    assert {"whether torch computes gradients", "the default dtype of torch"} <= seen.changed
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize(
    ("draw", "name"), [(lambda: torch.rand(1), "torch"), (random.random, "random")]
)
def test_generators_that_are_drawn_from_are_named(draw: object, name: str) -> None:
    def call(_passed: object) -> object:
        return draw() and None  # type: ignore[operator] # a function

    seen = observe(PreparedCall(call, {"x": torch.ones(1)}), "none", 0)
    assert {*seen.left_at} == {name}


def test_a_second_call_finds_what_the_first_has_left() -> None:
    made = module()
    around = Surroundings(made.__dict__)
    given = {"x": torch.ones(3)}
    call = PreparedCall(lambda p: made.step(p["x"]), given, around=around, earlier=given)
    seen = observe(call, "none", 0)
    assert seen.around["count"] == 2


def test_gradients_of_gradients_are_compared_where_they_are_asked_for() -> None:
    def call(passed: object) -> object:
        return passed["x"].pow(3)  # type: ignore[index] # a mapping

    seen = observe(PreparedCall(call, {"x": torch.ones(2)}), "leaf", 0, second=True)
    assert seen.tensors["gradient of the gradients by x"] is not None
    line = observe(PreparedCall(lambda p: p["x"] * 2, {"x": torch.ones(2)}), "leaf", 0, second=True)
    assert line.tensors["gradient of the gradients by x"] is None
