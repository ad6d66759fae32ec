"""Code that draws random numbers: the same ones, others, as often or not."""

from __future__ import annotations

from dataclasses import replace
from textwrap import dedent

import pytest
from verification_snippets import Snippet, verify_here

from npufix.rewriters.verification.verdict import Status

pytest.importorskip("torch")

DROPOUT = Snippet(
    "Scaled.forward",
    """
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Scaled(nn.Module):
        def __init__(self, p=0.3):
            super().__init__()
            self.p = p

        def forward(self, x):
            EAGER
    """,
    "return F.dropout(torch.tanh(x), self.p, self.training)",
)
OTHERS = """
if not self.training:
    return torch.tanh(x)
p = self.p * self.training
return torch.tanh(x) * (torch.rand_like(x.float()) >= p).to(x.dtype) / (1 - p)
"""
RARER = OTHERS.replace("self.p *", "self.p / 4 *")
NEVER = "return torch.tanh(x)"
ALWAYS = "return F.dropout(torch.tanh(x), self.p)"
IN_EVAL = OTHERS.replace("not self.training", "x.dim() < 0")  # what draws next draws others
UNSCALED = OTHERS.replace(" / (1 - p)", "")
ROWS = "torch.rand(len(x), *[1] * (x.dim() - 1))"
WHOLE_ROWS = OTHERS.replace("torch.rand_like(x.float())", ROWS)
SAME = "return F.dropout(x.tanh(), p=self.p, training=self.training)"


def test_random_numbers_are_compared_as_far_as_they_can_be() -> None:
    texts = (SAME, OTHERS, RARER, NEVER, ALWAYS, UNSCALED, IN_EVAL, WHOLE_ROWS)
    same, others, *wrong = verify_here([DROPOUT.job(dedent(text).strip()) for text in texts])
    assert same.status is Status.EQUIVALENT, same
    assert "random" not in same.ground
    assert others.status is Status.EQUIVALENT, others
    assert others.ground.endswith(
        "; it draws other random numbers: what they do is compared without them, "
        "how often by mean and variance"
    )
    for verdict in wrong:
        assert verdict.status is Status.REFUTED, verdict


ATTENTION = Snippet(
    "Attention.forward",
    """
    import math
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Attention(nn.Module):
        def __init__(self, dropout=0.3):
            super().__init__()
            self.dropout = dropout

        def forward(self, query, key, value):
            EAGER
    """,
    """
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.size(-1))
    probabilities = F.dropout(F.softmax(scores, -1), self.dropout, self.training)
    return probabilities @ value
    """,
)
SDPA = (
    "return F.scaled_dot_product_attention("
    "query, key, value, dropout_p=self.dropout if self.training else 0.0)"
)


def test_dropout_inside_attention() -> None:
    right, always, inverted = verify_here(
        [
            ATTENTION.job(text)
            for text in (
                SDPA,
                SDPA.replace(" if self.training else 0.0", ""),
                SDPA.replace("dropout_p=self", "dropout_p=1 - self"),
            )
        ]
    )
    assert right.status is Status.EQUIVALENT, right
    assert always.status is Status.REFUTED
    assert "eval mode" in always.counterexample
    assert inverted.status is Status.REFUTED


SWISH = Snippet(
    "Gate.forward",
    """
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Gate(nn.Module):
        def forward(self, x):
            EAGER
    """,
    """
    a, b = x.chunk(2, -1)
    return F.gelu(a) * b
    """,
)


def test_operators_for_inference_need_the_users_word() -> None:
    job = SWISH.job("return torch_npu.npu_gelu_mul(x)")
    training, inference = verify_here([job, replace(job, inference=True)])
    assert training.status is Status.REFUTED
    assert "gradient of x is None in the patched code" in training.reason
    assert inference.status is Status.EQUIVALENT, inference
    assert inference.ground.startswith("without gradients, which nobody asks for; ")


SAMPLES = Snippet(
    "Path.forward",
    '''
    import torch
    from torch import nn

    class Path(nn.Module):
        def __init__(self, p: float = 0.2):
            super().__init__()
            self.p = p

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """x (B, T, D)."""
            if not self.training:
                return x
            keep = 1 - self.p
            EAGER
    ''',
    "return x * x.new_empty(len(x), 1, 1).bernoulli_(keep) / keep",
)
AS_WELL = "return x * (torch.rand(len(x), 1, 1, device=x.device) < keep).to(x.dtype) / keep"


def test_what_is_dropped_of_a_sample_is_dropped_together() -> None:
    on_host = AS_WELL.replace(", device=x.device", "")
    steps = AS_WELL.replace("1, 1", "x.shape[1], 1")
    halved = AS_WELL.replace("len(x)", "(len(x) + 1) // 2")
    pairs = halved.replace("x.device)", "x.device).repeat_interleave(2, 0)[: len(x)]")
    texts = (AS_WELL, on_host, steps, pairs)
    others, misplaced, *wrong = verify_here([SAMPLES.job(text) for text in texts])
    assert others.status is Status.EQUIVALENT, others
    for verdict in wrong:
        assert verdict.status is Status.REFUTED, verdict
    assert misplaced.status is Status.REFUTED, misplaced
    assert "on every device but the CPU" in misplaced.reason  # and not that others are dropped


def test_the_only_number_drawn_scales_as_before() -> None:
    """Mean and variance of few runs do not tell ``* 0.7`` from ``/ 0.7``; the same number does."""
    alone = SAMPLES.eager.replace(
        "x.new_empty(len(x), 1, 1).bernoulli_(keep)", "(torch.rand(1) < 0.7)"
    )
    path = replace(SAMPLES, eager=alone.replace("/ keep", "/ 0.7"))
    first, moved = path.eager.replace("/", "*"), "return x / 0.7 * (torch.rand(1) < 0.7)"
    scaled, same = verify_here([path.job(text) for text in (first, moved)])
    assert scaled.status is Status.REFUTED, scaled
    assert same.status is Status.EQUIVALENT, same


NOISY = Snippet(
    "Gate.forward",
    """
    import torch
    from torch import nn

    class Gate(nn.Module):
        def forward(self, x):
            if self.training:
                EAGER
            return x.softmax(-1)
    """,
    "x = x + torch.randn_like(x) * 0.5",
)


@pytest.mark.parametrize(("more", "told"), [("", False), ("torch.rand_like(x)", True)])
def test_numbers_drawn_on_top_are_told(more: str, *, told: bool) -> None:
    (found,) = verify_here([NOISY.job(f"x = x + 0.5 * torch.randn_like(x)\n{more}".strip())])
    assert found.status is Status.EQUIVALENT, found
    assert any("those drawn after the call are others" in n for n in found.notes) is told, found
