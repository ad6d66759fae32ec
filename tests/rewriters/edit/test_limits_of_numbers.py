"""Numbers that limits and factors are applied to on their way to a loss stay on the device."""

import random
from typing import Any

import pytest
import torch

from npufix.rewriters.find import find_sites
from npufix.rules.substitutions.check_of_tensor import RULE as CHECKS
from npufix.rules.substitutions.value_read_on_host import RULE

_LOSS = """
import torch
import torch.nn.functional as F
from other import get_world_size, reduce_sum, focal_loss


class Head(torch.nn.Module):
    def loss(self, x: torch.Tensor, y: torch.Tensor, n: torch.Tensor):
        world_size = get_world_size()
        {body}
"""
_KEPT = (
    (
        "m = reduce_sum(n).item()\n        m = max(m / world_size, 1.0)\n"
        "        return F.mse_loss(x, y, reduction='sum') / m"
    ),
    "m = max(reduce_sum(n).item() / world_size, 1e-6)\n        return focal_loss(x, y) / m",
    "m = min(n.sum().item() / float(3), 1.0)\n        return F.l1_loss(x, y) * m",
    "m = min(max(n.sum().item() / 2, 0.5), 4.0)\n        return F.l1_loss(x, y) * m",
    "m = max(n.sum(), 40.0)\n        return focal_loss(x, y) / m",
    "m = n.sum().item() / world_size\n        return F.l1_loss(x, y) / m, (x - y).abs().sum() / m",
    (
        "m = max(\n            reduce_sum(n).item() / world_size,\n            1.0,\n        )\n"
        "        return focal_loss(x, y) / m"
    ),
)
_LEFT = (
    "m = max(n.sum().item() / world_size, 1.0)\n        self.last = m\n        return x.sum() / m",
    "m = max(n.sum().item() / world_size, 1.0)\n        return [0] * m + [x.sum() / m]",
    "m = max(n.sum().item() / world_size, 1.0)\n        return x[:m] / m",
    "m = n.sum().item() / world_size\n        return x.sum() / m if m > 0 else y",
    "m = int(n.mean().item()) / world_size\n        return x.sum() / m",
    "m = max(n.sum().item() / world_size, 1.0)\n        return x.sum() / m, {'m': m}",
    "m = max(n.sum().item() / world_size, y)\n        return x.sum() / m",
    # integers that are added to integers
    "m = max(n.sum().item() * 2, 1)\n        return x[torch.arange(4, device=x.device) + m]",
    "m = n.sum().item() / world_size\n        return torch.ones(3) * m",  # of the host
    "m = max(n.sum().item(), 2.0)\n        return y.cpu() * m",
    "return x[:, 1] * float((n / 2).sum()), x.to(y.device)",  # it comes to the device later
    # a number of Python, which has no clamp
    "m = n.sum().item() if self.training else 5.0\n        return x.sum() / max(m / 2, 1.0)",
    "m = (x > 0).sum().item()\n        m /= world_size\n        return x.sum() / max(m, 1)",
    # each is read for itself
    "m = max(n.sum().item() / 2, 1)\n        return x / m + y / max(n.sum().item() / 2, 1)",
    "m = n.sum().item() / world_size\n        self.m.update(self.loss, m)\n        return x / m",
    "m = n.sum().item() / world_size\n        log_loss(m)\n        return x.sum() / m",
    "m = n.sum().item() / 2 * self.get_loss_weight()\n        return [0] * round(m), x * m",
)


def _write(body: str) -> tuple[str, str]:
    source = _LOSS.format(body=body)
    new = [s.rewrite.direct for s in find_sites(source, [RULE]) if s.rewrite is not None]
    return source, new[0] if new else ""


def _loss(source: str) -> Any:
    known: dict[str, Any] = {
        "get_world_size": lambda: 2,
        "reduce_sum": lambda n: n.sum() * 2,
        "focal_loss": torch.nn.functional.smooth_l1_loss,
    }
    exec(source.replace("from other import", "# "), known)  # noqa: S102 - same
    return known["Head"]().loss


@pytest.mark.parametrize("body", _KEPT)
def test_a_number_is_limited_where_it_is(body: str) -> None:
    source, new = _write(body)
    assert ".item()" not in new
    assert "clamp" in new or "max(" not in source
    old_loss, new_loss = _loss(source), _loss(new)
    for seed in range(20):
        torch.manual_seed(seed)
        x, y = torch.randn(2, 3, 4)
        n = random.Random(seed).choice(  # noqa: S311 - no secret
            [torch.rand(3) * 4, torch.randint(0, 5, (3,)), torch.zeros(2), torch.rand(1) * 1e-9]
        )
        torch.testing.assert_close(new_loss(x, y, n), old_loss(x, y, n))


@pytest.mark.parametrize("how", ["max(m / 2, 1.0)", "m", "max(m, 0.5)"])
@pytest.mark.parametrize("of", ["c", "c.view(1).select(0, 0)", "c.abs_()", "c[None][0]"])
def test_what_is_written_later_is_not_seen(how: str, of: str) -> None:
    body = f"c = n.sum()\n        m = {of}.item()\n        c.zero_()\n        "
    body += f"return F.l1_loss(x, y) * {how}"
    source, new = _write(body)
    assert ".clone()" in new
    given = torch.ones(2, 3), torch.zeros(2, 3), torch.ones(4)
    torch.testing.assert_close(_loss(new)(*given), _loss(source)(*given))


def test_a_script_that_takes_a_number_gets_one() -> None:
    body = "m = max(n.sum().item() / 2, 1.0)\n        return dice_loss(x, m)"
    assert _write(body)[1]
    source = f"{_LOSS.format(body=body)}\n\n@torch.jit.script\ndef dice_loss(x, n: float): ...\n"
    assert all(site.rewrite is None for site in find_sites(source, [RULE]))


@pytest.mark.parametrize("body", _LEFT)
def test_a_number_that_others_need_is_read(body: str) -> None:
    assert not _write(body)[1]


def test_what_python_computes_of_numbers_is_no_tensor() -> None:
    # ``d ** 2`` of numbers that were read is one as well, whatever ``**`` does of tensors
    body = "m = n.sum().item()\n        d = n.mean().item() ** 2 / 3\n        return m * 2 + d"
    assert not _write(body)[1]


@pytest.mark.parametrize(
    ("code", "written"),
    [
        ("y = y + z.exp() / z.abs().max().item()", True),
        ("y = y + (self.n / z.abs().max().item())", False),  # perhaps of two numbers
        (
            "n = z.abs().max().item()\n            y = y + z.exp() / n\n            self.see(n)",
            False,
        ),
    ],
)
def test_what_a_round_reads_and_computes_with_stays_on_the_device(
    code: str, *, written: bool
) -> None:
    text = f"""
import torch
from torch import nn


class Norms(nn.Module):
    def forward(self, zs: list[torch.Tensor], y: torch.Tensor):
        for z in zs:
            {code}
        return y
"""
    assert [site.rewrite is not None for site in find_sites(text, [RULE])] == [written]


@pytest.mark.parametrize(
    ("check", "told"), [("(n <= 0).sum() == 0", True), ("(n <= 0).bit_length() == 0", False)]
)
def test_what_is_compared_and_added_up_is_a_tensor(check: str, *, told: bool) -> None:
    text = f"""
import torch


class Pool(torch.nn.Module):
    def forward(self, x, n):
        assert {check}
        return self.pool(x, n)
"""
    sites = find_sites(text, [CHECKS])
    asked = f'assert n.device.type == "npu" or {check}'
    assert [asked in site.rewrite.direct for site in sites if site.rewrite] == [True] * told
