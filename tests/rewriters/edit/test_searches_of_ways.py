"""Ways that steps go: branches that are no rare ones, helpers of steps, what comes back at once."""

from __future__ import annotations

import pytest
from searching import found

_SELECTS = """
class Agent(nn.Module):
    def step(self, x: torch.Tensor, y: torch.Tensor, mask: torch.BoolTensor, mode, at):
        {test}
            y = y.clone()
        else:
            if mask.any():
                y = y.clone()
                y[mask] = self.cast(x)[mask]
        return y * 2
"""


@pytest.mark.parametrize(
    ("test", "told"),
    [
        ("if mode == 'next':", True),
        ("if at is None:", True),
        ("if len(at) > 0:", False),
        ("if at in self.table:", False),
    ],
)
def test_the_other_way_of_a_setting_is_no_rare_one(test: str, *, told: bool) -> None:
    assert bool(found(_SELECTS.format(test=test), "NPU217")) is told


@pytest.mark.parametrize(
    ("test", "told"),
    [
        ("not self.split and lens is not None", True),
        ("not self.training and lens is not None", False),
        ("not self.split and lens is None", False),
    ],
)
def test_a_flag_that_is_off_is_nothing_rare(test: str, *, told: bool) -> None:
    text = f"""
class Attention(nn.Module):
    def forward(self, q: torch.Tensor, lens: torch.Tensor):
        if {test}:
            if torch.all(lens == lens[0]):
                q = self.mix(q)
        return q * 2
"""
    assert ("NPU217" in {site.rule.id for site in found(text, "NPU217")}) is told


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("get_loss_and_metrics", True),
        ("training_metrics", True),
        ("compute_metrics", False),
        ("eval_loss_and_metrics", False),
    ],
)
def test_a_step_may_hand_out_metrics(name: str, *, told: bool) -> None:
    text = f"""
class Trainer:
    def {name}(self, batch):
        loss = self.net(batch)
        torch.cuda.synchronize()
        return loss
"""
    assert any(site.is_hot for site in found(text, "NPU320")) is told


@pytest.mark.parametrize(
    ("name", "told"), [("_add_noise", True), ("make_mask", True), ("save_noise", False)]
)
def test_what_forward_has_made_is_made_in_each_step(name: str, *, told: bool) -> None:
    text = f"""
class Net(nn.Module):
    def forward(self, x: torch.Tensor):
        return self.{name}(x)

    def {name}(self, x: torch.Tensor):
        n = x.sum().item()
        return torch.relu(x) / n
"""
    assert any(site.is_hot for site in found(text, "NPU214")) is told


def test_a_number_of_the_host_that_the_device_meets_comes_back() -> None:
    text = """
class Head(nn.Module):
    def select(self, boxes):
        kept = []
        for box in boxes:
            limit, _ = torch.kthvalue(box.scores.cpu(), 3)
            kept.append(box.scores >= {limit})
        return kept
"""
    (site,) = found(text.format(limit="limit.item()"), "NPU214")
    assert "copied back" in site.problem
    assert all("copied back" not in s.problem for s in found(text.format(limit="self.n"), "NPU214"))
