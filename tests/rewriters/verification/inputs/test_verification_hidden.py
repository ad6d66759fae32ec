"""Mistakes that show only where a first call does not look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from npufix.rewriters.verification import Job
from npufix.rewriters.verification.verdict import Status

torch = pytest.importorskip("torch")

from npufix.rewriters.verification.calls.observe import CallRecord  # noqa: E402 - same
from npufix.rewriters.verification.judge.allowances import Further  # noqa: E402 - same
from npufix.rewriters.verification.judge.judge import Judge  # noqa: E402 - needs torch
from npufix.rewriters.verification.judge.verify_function import verify_function  # noqa: E402 - same

if TYPE_CHECKING:
    from npufix.rewriters.verification.verdict import Verdict

HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n"
SCALED = """
def scaled(x, exponent=1):
    return x * 2 ** exponent
"""
MODES = """
class Norm(nn.Module):
    def __init__(self, hidden_size: int):
        super().__init__()
        self.register_buffer("seen", torch.zeros(hidden_size))

    def forward(self, x):
        if self.training:
            self.seen.add_(0.5)
            return x * 2
        else:
            return x - self.seen
"""
COMMENTED = """
class Shifted(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.size = size

    def forward(self, x):
# a comment at the first column
        return x * 2 + self.size
"""
MEAN = """
def masked_mean(hidden, attention_mask):
    m = attention_mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * m).sum(1) / m.sum(1).clamp(min=1e-9)
"""
ROTATED = """
def rotated(xq, freqs_cis):
    pairs = torch.view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
    assert freqs_cis.shape == (pairs.shape[1], pairs.shape[-1])
    turned = pairs * freqs_cis[None, :, None]
    return torch.view_as_real(turned).flatten(3).type_as(xq)
"""


def verdict(text: str, name: str, old: str, new: str) -> Verdict:
    original = HEAD + text
    assert original.count(old) == 1
    line = original[: original.index(old)].count("\n") + 1
    patched = original.replace(old, new)
    job = Job("/user/a.py", "/user", original, patched, name, (line,), (line,), by_hand=True)
    return verify_function(job).verdict


@pytest.mark.parametrize(
    ("text", "name", "old", "new"),
    [
        (SCALED, "scaled", "2 ** exponent", "2"),
        (MODES, "Norm.forward", "x - self.seen", "x"),
        (MODES, "Norm.forward", "self.seen.add_(0.5)", "self.seen = self.seen + 0.5"),
        (ROTATED, "rotated", "freqs_cis[None", "freqs_cis.conj()[None"),
    ],
)
def test_a_mistake_is_found(text: str, name: str, old: str, new: str) -> None:
    found = verdict(text, name, old, new)
    assert found.status is Status.REFUTED, found


def test_what_wants_a_batch_is_not_refuted_for_less_and_says_so() -> None:
    einsum = "torch.einsum('bsd,bsk->bd', hidden, m)"
    found = verdict(MEAN, "masked_mean", "(hidden * m).sum(1)", einsum)
    assert found.status is not Status.REFUTED, found
    assert "changed code" in found.ground + found.reason


def test_complex_numbers_are_compared_like_others() -> None:
    found = verdict(ROTATED, "rotated", "pairs * freqs_cis[None, :, None]",
                    "torch.einsum('bshd,sd->bshd', pairs, freqs_cis)")  # fmt: skip
    assert found.status is Status.EQUIVALENT, found


def test_a_comment_at_the_first_column_is_in_nobodys_way() -> None:
    found = verdict(COMMENTED, "Shifted.forward", "x * 2", "(x + x)")
    assert found.status is Status.EQUIVALENT, found


def judged(original: float, patched: float, oracle: float, further: Further) -> list[Any]:
    def seen(value: float, dtype: Any) -> CallRecord:
        other = torch.ones(3, dtype=dtype)
        gradients = {"gradient of x": torch.full((3,), value, dtype=dtype)}
        return CallRecord({**gradients, "gradient of weight": other})

    judge = Judge()
    before, after = seen(original, torch.float32), seen(patched, torch.float32)
    judge.add("case", 3, before, after, lambda: seen(oracle, torch.float64), further=further)
    judge.decide()
    return judge.differences


def a_gradient(value: float) -> CallRecord:
    return CallRecord({"gradient of x": torch.full((3,), value, dtype=torch.float64)})


@pytest.mark.parametrize(("exact", "refuted"), [(0.0, False), (1e-17, False), (4e-4, True)])
def test_as_small_as_what_is_left_of_zero_but_not_zero(exact: float, refuted: bool) -> None:  # noqa: FBT001
    """Of an original with much noise, that of a patch with a gradient of its own hides nothing."""
    further = Further(lambda: None, exact=lambda: a_gradient(exact))
    assert bool(judged(1e-4, 4e-4, 1e-18, further)) is refuted


NAN = float("nan")


@pytest.mark.parametrize(
    ("original", "patched", "limit", "refuted"),
    [
        (NAN, 0.25, 0.25, False),  # what ``torch.where`` loses at an Inf
        (NAN, 0.0, 0.25, True),  # what hides a NaN
        (NAN, 0.0, NAN, True),
        (0.25, NAN, 0.25, True),
    ],
)
def test_a_gradient_at_infinity(
    original: float,
    patched: float,
    limit: float,
    refuted: bool,  # noqa: FBT001
) -> None:
    further = Further(lambda: None, large=lambda: a_gradient(limit))
    assert bool(judged(original, patched, original, further)) is refuted


def test_what_is_noise_is_not_asked_of_what_is_refuted_and_shows_nothing() -> None:
    asked = []

    def noisy() -> None:
        asked.append(1)

    def judge(**known: bool) -> Judge:
        made = Judge()
        before, after = a_gradient(1.0), a_gradient(4.0)
        made.add("small", 1, before, after, lambda: a_gradient(1.0), further=Further(noisy))
        before.tensors["result"], after.tensors["result"] = torch.ones(2), torch.ones(3)
        made.add("large", 6, before, after, lambda: a_gradient(1.0), further=Further(noisy))
        made.decide(**known)
        return made

    assert judge().differences
    assert asked
    asked.clear()
    found = judge(hopeless=True).differences
    assert not asked
    assert min(found, key=lambda d: d.rank).what == "result"
    assert sum(d.what == "gradient of x" for d in found) == 2
