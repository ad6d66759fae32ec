"""Each call gets an object of its own, in which everything stands to everything else as before."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")


def test_a_copy_shares_inside_what_the_object_shares_and_nothing_with_it() -> None:
    from npufix.rewriters.verification.inputs.objects.copying import copy_object

    made = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    made.also = made[0]._forward_hooks  # empty, and held twice
    made[1].register_forward_hook(lambda *_: None)
    copied = copy_object(made)
    assert copied.also is copied[0]._forward_hooks
    assert copied.also is not made.also
    assert len(copied[1]._forward_hooks) == 1
    assert copied[1]._forward_hooks is not made[1]._forward_hooks
    assert copied[0].weight is not made[0].weight
    assert torch.equal(copied[0].weight, made[0].weight)


class Counting(torch.nn.Module):
    """Says itself what of it is copied, and counts its parts when it is made of that."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)
        self.inner.__dict__["outer"] = self  # no part of it: a circle
        self.opened = object()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "opened": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self.counted = len(list(self.inner.parameters()))


class Single(torch.nn.Module):
    """There is one of it, whatever is copied."""

    def __deepcopy__(self, memo: dict[int, object]) -> Single:
        return self


def test_a_class_that_says_how_it_is_copied_is_heard() -> None:
    from npufix.rewriters.verification.inputs.objects.copying import copy_object

    made = torch.nn.ModuleList([Counting(), Single()])
    copied = copy_object(made)
    assert copied[1] is made[1]
    assert copied[0].opened is None
    assert copied[0].counted == 2
    assert copied[0].inner.outer is copied[0]
    assert copied[0].inner is not made[0].inner


def test_each_run_of_a_case_has_tensors_of_its_own() -> None:
    from npufix.rewriters.verification.calls.values import Several, Tensor, materialise

    specs = {"x": Tensor((3, 4)), "y": Several((Tensor((3, 4)),))}
    first = materialise(specs, "strided", 0, torch.float32)
    x = first["x"]
    assert isinstance(x, torch.Tensor)
    assert x.stride() == (1, 3)
    before = x.clone()
    x.zero_()  # as code that writes into its arguments
    again = materialise(specs, "strided", 0, torch.float32)["x"]
    assert isinstance(again, torch.Tensor)
    assert torch.equal(again, before)
    assert again.stride() == (1, 3)
    short = materialise(specs, "strided", 0, torch.float32, 2)["x"]
    assert isinstance(short, torch.Tensor)
    assert not torch.equal(short, before)
    assert torch.allclose(short, before, rtol=0.05)
