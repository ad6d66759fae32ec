"""Each call gets an object of its own, in which everything stands to everything else as before."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


def test_a_copy_shares_inside_what_the_object_shares_and_nothing_with_it() -> None:
    from npufix.rewriters.verification.inputs.target import _copy_object

    made = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    made.also = made[0]._forward_hooks  # empty, and held twice
    made[1].register_forward_hook(lambda *_: None)
    copied = _copy_object(made)
    assert copied.also is copied[0]._forward_hooks
    assert copied.also is not made.also
    assert len(copied[1]._forward_hooks) == 1
    assert copied[1]._forward_hooks is not made[1]._forward_hooks
    assert copied[0].weight is not made[0].weight
    assert torch.equal(copied[0].weight, made[0].weight)
