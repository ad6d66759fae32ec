"""What shows at the limits of plain numbers and weights, and where something else than None is."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from changed_programs import verdict  # noqa: E402 - needs torch

from npufix.rewriters.verification import Job  # noqa: E402 - same
from npufix.rewriters.verification.inputs.cases.limits import _around_bounds  # noqa: E402 - same
from npufix.rewriters.verification.inputs.source.parameters import Parameter  # noqa: E402 - same
from npufix.rewriters.verification.inputs.source.several import as_arguments  # noqa: E402 - same
from npufix.rewriters.verification.verdict import Status  # noqa: E402 - same

STREAM = '''
class CausalConv(torch.nn.Module):
    def __init__(self, channels: int, kernel_size: int = 4):
        super().__init__()
        self.left = kernel_size - 1
        self.conv = torch.nn.Conv1d(channels, channels, kernel_size)
        self.cache = None

    def forward(self, x: torch.Tensor):
        """x (B, C, T)."""
        past = x.new_zeros(*x.shape[:2], self.left) if self.cache is None else self.cache
        x = torch.cat([past, x], dim=2)
        self.cache = x[:, :, x.size(2) - self.left:].detach()
        return self.conv(x)
'''


def test_a_kernel_of_one_position_leaves_nothing_over() -> None:
    found = verdict(STREAM, ("x.size(2) - self.left:", "-self.left:"))
    assert found.status is Status.REFUTED, found
    assert "kernel_size=1" in found.reason
    right = verdict(STREAM, ("x.size(2) - self.left:", "x.shape[2] - self.left:"))
    assert right.status is Status.EQUIVALENT, right


def test_what_is_kept_with_its_graph_is_another() -> None:
    found = verdict(STREAM, (":].detach()", ":]"))
    assert found.status is Status.REFUTED, found
    assert "requires_grad of self.cache after the call is False" in found.reason


WINDOW = '''
class Window(torch.nn.Module):
    def __init__(self, size: int = 6):
        super().__init__()
        self.size = size
        self.keys = None

    def forward(self, k: torch.Tensor):
        """k (B, 1, D)."""
        self.keys = k if self.keys is None else torch.cat([self.keys, k], 1)
        self.keys = self.keys[:, -self.size:]
        return self.keys
'''


def test_an_argument_is_kept_with_its_graph_as_a_part_of_it_is() -> None:
    whole = "if self.keys.shape[1] > self.size:\n            self.keys = self.keys[:, -self.size:]"
    found = verdict(WINDOW, ("self.keys = self.keys[:, -self.size:]", whole))
    assert found.status is Status.EQUIVALENT, found
    cut = ("k if self.keys is None", "k.detach() if self.keys is None")
    assert verdict(WINDOW, cut).status is Status.REFUTED


SCALE = """
class Scale(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.logit_scale = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, image: torch.Tensor, text: torch.Tensor):
        scale = self.logit_scale.exp().clamp(max=100)
        return scale * image @ text.t()
"""


def test_weights_grow_beyond_what_clamps_them() -> None:
    found = verdict(SCALE, ("exp().clamp(max=100)", "clamp(max=100).exp()"))
    assert found.status is Status.REFUTED, found
    assert "self.logit_scale = 8.0" in found.reason
    assert "filled(with_weights(" in found.script
    right = verdict(SCALE, ("exp().clamp(max=100)", "clamp(max=4.605170185988092).exp()"))
    assert right.status is Status.EQUIVALENT, right


GATED = '''
def step(x: torch.Tensor, skip: torch.Tensor, z: Optional[torch.Tensor] = None):
    """x, z (B, D); skip (D,)."""
    out = x * 2
    out = out + skip * x
    if z is not None:
        out = out * torch.sigmoid(z)
    return out
'''


def test_an_option_between_two_changed_lines_is_passed() -> None:
    text = f"from typing import Optional\n{GATED}"
    late = ("    out = out + skip * x\n", ""), ("    return out", "    return out + skip * x")
    found = verdict(text, *late)
    assert found.status is Status.REFUTED, found
    assert "z=float" in found.reason
    right = verdict(text, ("out + skip * x", "x * skip + out"))
    assert right.status is Status.EQUIVALENT, right


NGRAM = '''
def ban(ids: torch.LongTensor, scores: torch.FloatTensor):
    """ids (B, T), scores (B, V)."""
    scores = scores.clone()
    for b in range(ids.shape[0]):
        for one in ids[b].tolist():
            if one == ids[b, -1]:
                scores[b, one] = -1.0
    return scores
'''


def test_a_long_tensor_is_never_given_floats() -> None:
    loop = NGRAM[NGRAM.index("    for b") : NGRAM.index("    return")]
    found = verdict(NGRAM, (loop, "    scores[torch.arange(len(ids)), ids[:, -1]] = -1.0\n"))
    assert found.status is Status.EQUIVALENT, found
    assert not any("ids=float" in one for one in found.tried.arguments)


TUNED = """
def tune_out(x: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    dtype = x.dtype
    return (x * attention_mask[:, :, None]).to(dtype)
"""


def test_a_mask_may_be_made_in_float32() -> None:
    found = verdict(TUNED, (".to(dtype)", ""))
    assert found.status is Status.REFUTED, found
    assert "] in float32 in " in found.reason
    right = verdict(TUNED, (".to(dtype)", ".to(x.dtype)"))
    assert right.status is Status.EQUIVALENT, right


NUCLEUS = '''
def cut(logits, top_p: float = 0.9):
    """logits (B, V)"""
    lowest, order = logits.sort(-1)
    remove = lowest.softmax(-1).cumsum(-1) <= (1 - top_p)
    remove[..., -1:] = False
    return logits.masked_fill(remove.scatter(1, order, remove), -1e4)
'''
DECAY = '''
class Decay(torch.nn.Module):
    def __init__(self, rate=0.5):
        super().__init__()
        self.rate = rate

    def forward(self, x):
        """x (B, D)"""
        rate = self.rate if self.rate is not None else 0.25
        return x * rate
'''
FLOOR = '''
def keep(logits, min_p: float = 0.1):
    """logits (B, V)"""
    probs = logits.softmax(-1)
    floor = min_p * probs.amax(-1, keepdim=True)
    return logits.masked_fill(probs < floor, -1e4)
'''
ENDS = '''
def lengths(ends: torch.Tensor):
    """ends: (B,) int32, where sequences end"""
    counts = ends.to(torch.int64) + 1
    return torch.arange(5).repeat(5).scatter(0, counts.clamp(0, 4), 1)
'''
GATE = '''
def opened(score, x):
    """score (T,), x (T, D)"""
    gate = score.abs() * 2 > 0.7
    return x * gate.unsqueeze(-1)
'''
HUBER = '''
def huber(diff, beta: float = 0.11):
    """diff (N,)"""
    diff = diff.abs()
    return torch.where(diff < beta, 0.5 * diff * diff / beta, diff - 0.5 * beta)
'''


@pytest.mark.parametrize(
    ("text", "wrong", "right"),
    [
        (GATE, ("* 2 > 0.7", "* 2 >= 0.7"), (".abs() * 2 > 0.7", ".abs().mul(2).gt(0.7)")),
        (HUBER, ("diff - 0.5", "diff - 0.4"), ("diff < beta", "diff <= beta")),
        (NUCLEUS, ("<=", "<"), ("1 - top_p", "1.0 - top_p")),
        (
            DECAY,
            ("self.rate if self.rate is not None else", "self.rate or"),
            ("x * rate", "rate * x"),
        ),
        (FLOOR, ("probs < floor", "probs <= floor"), ("probs < floor", "floor > probs")),
        (ENDS, ("+ 1", "+ 2"), ("ends.to(torch.int64)", "ends.add(0).to(torch.int64)")),
    ],
)
def test_numbers_are_at_what_they_are_held_against(
    text: str, wrong: tuple[str, str], right: tuple[str, str]
) -> None:
    found = verdict(text, wrong)
    assert found.status is Status.REFUTED, found
    found = verdict(text, right)
    assert found.status is Status.EQUIVALENT, found
    assert not any("in uint8" in one or "in int16" in one for one in found.tried.arguments)


def test_a_number_that_is_asked_for_as_false_is_zero() -> None:
    asked = {"k": False, "rate": False, "share": True, "flag": False, "on": False}
    said = {"k": "int", "rate": "float | None", "share": "", "flag": "bool", "on": ""}
    named = [Parameter(n, a, 0.5 if n == "share" else None) for n, a in said.items()]
    made = {n: getattr(s, "value", None) for n, s in as_arguments(asked, named).items()}
    assert repr(made) == "{'k': 0, 'rate': 0.0, 'share': 1.0, 'flag': False, 'on': False}"


def test_no_share_is_more_than_one() -> None:
    before = "def f(x, part, most):\n    return (1.0 - part) * x.clamp(max=1.0 * most * part)\n"
    after = "def f(x, part, most):\n    return (1.0 - part) * x * 1.0 * most * part\n"
    limits = _around_bounds(Job("m.py", "", before, after, "f", (2,), (2,), by_hand=True))
    assert limits["part"] == (0.5,)
    assert limits["most"] == (0.5, 2.0)


CUT = '''
def quantise(x: torch.Tensor) -> torch.Tensor:
    """x (N, D)."""
    return (x * 0.25).round().clamp(-448, 448)
'''


def test_numbers_are_far_beyond_where_they_are_cut_off() -> None:
    found = verdict(CUT, (".clamp(-448, 448)", ""))
    assert found.status is Status.REFUTED, found
    right = verdict(CUT, (".clamp(-448, 448)", ".clamp(min=-448).clamp(max=448)"))
    assert right.status is Status.EQUIVALENT, right
