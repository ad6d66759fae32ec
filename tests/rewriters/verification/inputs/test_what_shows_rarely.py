"""Changes that show for one default, one number, one history, or in one layout alone."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from changed_programs import verdict  # noqa: E402 - needs torch

from npufix.rewriters.verification.inputs.source.slicing import (  # noqa: E402 - same
    find_names_behind,
)
from npufix.rewriters.verification.verdict import Status  # noqa: E402 - same

RATIOS = """
def corrected(ratios, values, clip: float = 1.0):
    '''ratios, values (T, B).'''
    clipped = ratios.clamp(max=clip)
    weights = ratios.clamp(max=1.0)
    return clipped * values, weights * values
"""
LOSS = """
class Losses:
    ignore_index = -100

    @classmethod
    def token_loss(cls, logits, labels):
        '''logits (N, C), labels (N,) int64.'''
        loss = F.cross_entropy(logits, labels, ignore_index=cls.ignore_index, reduction="sum")
        return loss / (labels != cls.ignore_index).sum().clamp(min=1)
"""
SCALE = """
class Contrast:
    def __init__(self, temperature: float = 0.1):
        self.temperature = temperature

    @property
    def scale(self) -> float:
        return 1.0 / max(self.temperature, 1e-2)
"""
AUTOCAST = """
class Head(torch.nn.Module):
    def __init__(self, dim: int = 8):
        super().__init__()
        self.proj = torch.nn.Linear(dim, dim, bias=False)

    def forward(self, a, b):
        '''a, b (N, 8).'''
        a = F.normalize(self.proj(a).float(), dim=-1)
        with torch.autocast(a.device.type, enabled=False):
            return a @ b.float().t()
"""
IN_FLOATS = AUTOCAST[AUTOCAST.index("        with torch") :]
FILTER = """
class Filter:
    def __init__(self):
        self.low = None
        self.bias = None

    def reset(self):
        self.low = None
        self.bias = None

    def step(self, x: torch.Tensor):
        '''x (B, 3).'''
        self.bias = x * 0.1 if self.bias is None else self.bias + 0.1 * x
        self.low = x - self.bias
        return self.low
"""
SPARSE = """
def degrees(index: torch.Tensor, weight: torch.Tensor, n: int) -> torch.Tensor:
    '''index (2, E) int64 below n, weight (E,): the weights as a sparse matrix (n, n).'''
    return torch.sparse_coo_tensor(index, weight.abs(), (n, n)).coalesce()
"""
TABLE = """
class Table(torch.nn.Module):
    def __init__(self, n: int = 6):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(n, 4))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        '''ids (B, T) int64 below 6.'''
        return F.embedding(ids, self.table, sparse=True).sum(1)
"""

BEAMS = """
def expand(logp: torch.Tensor, done: torch.Tensor, pad: int = 0):
    '''logp (K, V), done (K,) bool: the likeliest next tokens, those of the finished are pad.'''
    ended = torch.full_like(logp, float("-inf"))
    ended[..., pad] = 0.0
    return torch.where(done[:, None], ended, logp).max(dim=-1)
"""
METER = """
class Meter:
    def __init__(self):
        self.count = {}

    def add(self, name: str, loss: torch.Tensor):
        '''loss (N,).'''
        self.count[name] = self.count.get(name, 0) + loss.numel()
"""
KEEPER = """
class Keeper:
    def __init__(self):
        self.kept = torch.zeros(1)

    def keep(self, x: torch.Tensor):
        '''x (N, D).'''
        self.kept = x.to_sparse()
"""


@pytest.mark.parametrize(
    ("text", "old", "new", "shown"),
    [
        (RATIOS, "weights = ratios.clamp(max=1.0)", "weights = clipped", "clip="),
        (LOSS, ".sum().clamp(min=1)", ".sum()", "and -100"),
        (SCALE, "max(self.temperature, 1e-2)", "self.temperature", "temperature=0.005"),
        (AUTOCAST, IN_FLOATS, "        return a @ b.t()\n", "result"),
        (FILTER, "        self.bias = None\n\n    def step", "\n    def step", "self.bias"),
        (SPARSE, "weight.abs()", "weight", "result"),
        (SPARSE, ".coalesce()", ".to_dense()", "of result"),
        (BEAMS, "ended[..., pad]", "ended[..., 0]", "pad="),
        (METER, "get(name, 0)", "get(name, 1)", "self.count['first']"),
        (KEEPER, "x.to_sparse()", "x.clone()", "layout of self.kept"),
        (TABLE, "sparse=True", "sparse=False", "layout of the gradient of self.table"),
    ],
)
def test_a_wrong_change_is_refuted(text: str, old: str, new: str, shown: str) -> None:
    found = verdict(text, (old, new))
    assert found.status is Status.REFUTED, found
    assert shown in found.reason


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (RATIOS, "ratios.clamp(max=1.0)", "torch.clamp(ratios, max=1.0)"),
        (SPARSE, "weight.abs()", "torch.abs(weight)"),
        (BEAMS, "logp).max(dim=-1)", "logp).max(-1)"),
        (METER, "loss.numel()", "loss.shape[0]"),
        (TABLE, ".sum(1)", ".sum(dim=-2)"),
    ],
)
def test_a_right_one_is_proven(text: str, old: str, new: str) -> None:
    found = verdict(text, (old, new))
    assert found.status is Status.EQUIVALENT, found


def test_what_is_read_is_made_of_others() -> None:
    line = RATIOS.splitlines().index("    weights = ratios.clamp(max=1.0)") + 1
    changed = RATIOS.replace("ratios.clamp(max=1.0)", "clipped")
    assert find_names_behind(changed, [line]) >= {"ratios", "clip"}
    assert not find_names_behind(changed, [1])
