"""Changes that show under ``no_grad``, in float64, in another order of keys, in a default."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from changed_programs import verdict  # noqa: E402 - needs torch

from npufix.rewriters.verification.reference.checked_operators import (  # noqa: E402 - same
    ctc_loss,
    scaled_dot_product_attention,
)
from npufix.rewriters.verification.verdict import Status  # noqa: E402 - same

OBSERVED = """
class Observer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("top", torch.ones(()))

    def forward(self, x):
        if self.training:
            self.top.mul_(0.5)
        return x * self.top
"""
WIDE = """
def centre(x):
    '''x: (batch, dim)'''
    dtype = x.dtype
    if dtype in (torch.float16, torch.bfloat16):
        x = x.float()
    return (x - x.mean(-1, keepdim=True)).to(dtype)
"""
JOINED = """
def join(features: dict):
    '''features: dict of str to tensors (batch, dim)'''
    return torch.cat([features[name] for name in sorted(features)], dim=-1)
"""
KEPT = """
def table(length: int, dim: int = 8, cache={}):
    if (length, dim) not in cache:
        cache[length, dim] = torch.outer(torch.arange(length), torch.arange(dim))
    return cache[length, dim].clone()
"""
TIMES = """
def times(t, batch: int):
    '''t: one time for all, or a tensor (batch,)'''
    if isinstance(t, (int, float)):
        return torch.full((batch,), float(t))
    return t.reshape(-1).expand(batch)
"""


@pytest.mark.parametrize(
    ("code", "change"),
    [
        (OBSERVED, ("if self.training:", "if self.training or not torch.is_grad_enabled():")),
        (WIDE, ("if dtype in (torch.float16, torch.bfloat16):", "if dtype is not torch.bool:")),
        (JOINED, ("[features[name] for name in sorted(features)]", "list(features.values())")),
        (KEPT, ("(length, dim) not in cache:", "not any(k[0] == length for k in cache):")),
        (TIMES, ("float(t))", "t)")),
    ],
)
def test_what_few_callers_do_shows(code: str, change: tuple[str, str]) -> None:
    found = verdict(code, change)
    assert found.status is Status.REFUTED, found


SHIFTED = """
def shift(length: int, offset: int | None = None):
    if offset is None:
        offset = 2
    return torch.arange(length) + offset
"""
REDUCED = """
def reduce(loss: torch.Tensor, reduction: str = "mean"):
    if reduction == "mean":
        return loss.mean()
    elif reduction == "sum":
        return loss.sum()
    raise ValueError(reduction)
"""
FOLDED = """
def overlap_add(frames: torch.Tensor, hop: int = 4):
    '''frames: (batch, count, size)'''
    batch, count, size = frames.shape
    signal = frames.new_zeros(batch, (count - 1) * hop + size)
    for i in range(count):
        signal[:, i * hop : i * hop + size] += frames[:, i]
    return signal
"""
NORMAL = """
def normal(x: torch.Tensor, std=torch.tensor([0.229, 0.224, 0.225])):
    '''x: (batch, 3, height, width)'''
    return x / std[:, None, None]
"""
FOLD = """    time = (count - 1) * hop + size
    signal = F.fold(frames.mT, (1, time), (1, size), stride=(1, hop)).view(batch, time)
"""


@pytest.mark.parametrize(
    ("code", "change"),
    [
        (NORMAL, ("std[:, None, None]", "std.view(-1, 1, 1)")),
        (SHIFTED, ("torch.arange(length) + offset", "torch.arange(offset, offset + length)")),
        (REDUCED, ('elif reduction == "sum":', 'elif not reduction != "sum":')),
        (FOLDED, (FOLDED[FOLDED.index("    signal") : FOLDED.index("    return")], FOLD)),
    ],
)
def test_what_no_caller_does_does_not(code: str, change: tuple[str, str]) -> None:
    found = verdict(code, change)
    assert found.status is Status.EQUIVALENT, found


def test_attention_refuses_keys_without_values() -> None:
    q, k = torch.ones(1, 1, 2, 4), torch.ones(1, 1, 3, 4)
    assert scaled_dot_product_attention(q, k, value=k).shape == q.shape
    with pytest.raises(RuntimeError, match="do not match"):
        scaled_dot_product_attention(q, k, q)


def test_ctc_loss_refuses_targets_without_a_class() -> None:
    scores, lengths = torch.zeros(4, 2, 3).log_softmax(-1), torch.tensor([4, 4])
    targets = torch.tensor([[1, 2], [2, 9]])  # 9 is padding
    assert ctc_loss(scores, targets, lengths, torch.tensor([2, 1])).isfinite().all()
    assert ctc_loss(scores, targets[:, 0], [4, 4], [1, 1]).isfinite().all()
    for wrong in (targets, targets - 10):
        with pytest.raises(RuntimeError, match="none of 3 classes"):
            ctc_loss(scores, wrong, lengths, lengths // 2)
