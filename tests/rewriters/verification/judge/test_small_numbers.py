"""Small numbers beside large ones, whose digits are lost in halves: by rounding, or by mistake."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from npufix.rewriters.verification.calls.nudges import ROUNDINGS, nudge, nudge_state  # noqa: E402 - needs torch
from npufix.rewriters.verification.calls.observe import CallRecord  # noqa: E402 - same
from npufix.rewriters.verification.calls.values import Tensor  # noqa: E402 - same
from npufix.rewriters.verification.judge.allowances import Further, Triple  # noqa: E402 - same
from npufix.rewriters.verification.judge.rounding.small_numbers import find_lost  # noqa: E402 - same


@pytest.mark.parametrize(
    ("original", "patched", "moved", "lost"),
    [
        ([512.0, 2.0], [516.0, 3.0], [514.0, 2.02], [False, True]),  # positions are counted
        ([512.0, 2.0], [516.0, 3.0], [514.0, 1.7], None),  # a sum whose terms cancel
        ([512.0, 2.5], [516.0, 3.0], [514.0, 2.02], None),  # no digits that could be lost
        ([512.0, 0.25], [516.0, 0.5], [514.0, 0.25], None),  # less than sums leave
        ([512.0, 2.0], [516.0, 2.25], [514.0, 2.02], None),  # some digits are right
    ],
)
def test_what_no_motion_of_the_arguments_explains_is_lost(
    original: list[float], patched: list[float], moved: list[float], lost: list[bool] | None
) -> None:
    exact = torch.tensor([512.0, 0.25 if original[1] == 0.25 else 2.0]).double()
    sides = (torch.tensor(side, dtype=torch.bfloat16) for side in (original, patched))
    triple = Triple("result", *sides, exact)
    seen = CallRecord({"result": torch.tensor(moved).double()})
    further = Further(lambda: None, moved=lambda: [seen])
    found = [where.tolist() for *_, where in find_lost([("a call", 2, triple, further)])]
    assert found == ([] if lost is None else [lost])
    assert not list(find_lost([("a call", 2, triple, None)]))


def test_everything_is_moved_by_a_rounding_but_whole_numbers() -> None:
    specs = {"x": Tensor((2,), "float"), "n": Tensor((2,), "int")}
    given = {"x": torch.tensor([2.0, 0.3]).double(), "n": torch.tensor([1, 2])}
    one, other = (nudge(given, specs, way, torch.bfloat16) for way in ROUNDINGS[:2])
    assert one["x"][0] == 2
    assert 0 < abs(one["x"][1] - 0.3) <= 0.3 / 128
    assert one["x"][1] != other["x"][1]
    assert one["n"] is given["n"]
    layer = torch.nn.Linear(2, 2).double()
    before = layer.weight.detach().clone()
    nudge_state(layer, 1, torch.bfloat16)
    assert torch.equal(layer.weight, before)
    nudge_state(layer, ROUNDINGS[0], torch.bfloat16)
    assert not torch.equal(layer.weight, before)
