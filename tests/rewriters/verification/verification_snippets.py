"""Functions as users write them, each with a right and with wrong rewrites."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from textwrap import dedent, indent
from typing import TYPE_CHECKING

from npufix.rewriters.verification import Job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.verification.verdict import Verdict


def verify_here(jobs: Sequence[Job]) -> list[Verdict]:
    """Return the verdicts on jobs, found in this process.

    In processes of its own, with all that passes between them as bytes, a job takes twice as long.
    What the code warns of is nobody's business, as there.
    """
    from npufix.rewriters.verification.judge.verify_function import verify_function

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [verify_function(job).verdict for job in jobs]


@dataclass(frozen=True)
class Snippet:
    """A module whose line ``EAGER`` is what the rewrites replace."""

    qualname: str
    text: str
    eager: str
    right: tuple[str, ...] = ()
    wrong: dict[str, str] = field(default_factory=dict)

    def job(self, rewrite: str, portable: str = "", path: str = "/user/model.py") -> Job:
        original, line = self.fill(self.eager)
        patched, new_line = self.fill(rewrite)
        text = self.fill(portable)[0] if portable else ""
        floating = "torch_npu." in patched
        return Job(
            path,
            "/user",
            original,
            patched,
            self.qualname,
            line,
            new_line,
            portable=text,
            floating=floating,
        )

    def fill(self, code: str) -> tuple[str, tuple[int, ...]]:
        lines = ["import torch_npu", *dedent(self.text).strip().splitlines()]
        at = next(i for i, line in enumerate(lines) if line.strip() == "EAGER")
        width = len(lines[at]) - len(lines[at].lstrip())
        body = indent(dedent(code).strip(), " " * width).splitlines()
        lines[at : at + 1] = body
        wanted = tuple(
            i for i, line in enumerate(body, at + 1) if not line.lstrip().startswith("#")
        )
        return "\n".join(lines) + "\n", wanted


NORM = """
import torch
from torch import nn

class Norm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        EAGER
"""
FUSED = "return torch_npu.npu_rms_norm(hidden_states, self.weight, epsilon={})[0]"
WRONG_NORMS = {
    "no eps": "return torch_npu.npu_rms_norm(hidden_states, self.weight)[0]",
    "eps 1e-5": FUSED.format("1e-5"),
    "eps keyword": "return torch_npu.npu_rms_norm(hidden_states, self.weight, eps=1e-6)[0]",
    "tuple": "return torch_npu.npu_rms_norm(hidden_states, self.weight, self.variance_epsilon)",
    "rstd": "return torch_npu.npu_rms_norm(hidden_states, self.weight, self.variance_epsilon)[1]",
    "no weight": "return torch_npu.npu_rms_norm("
    "hidden_states, torch.ones_like(self.weight), self.variance_epsilon)[0]",
    "mean": "x = hidden_states - hidden_states.mean(-1, keepdim=True)\n"
    "return torch_npu.npu_rms_norm(x, self.weight, self.variance_epsilon)[0]",
    "upcast left": "return torch_npu.npu_rms_norm("
    "hidden_states.float(), self.weight.float(), self.variance_epsilon)[0]",
    "detached": "return torch_npu.npu_rms_norm("
    "hidden_states, self.weight.data, self.variance_epsilon)[0]",
}


def wrong_norms(*names: str) -> dict[str, str]:
    """Return some of them: what is wrong for one way to write a norm is wrong for each."""
    return {name: WRONG_NORMS[name] for name in names}


LLAMA = Snippet(
    "Norm.forward",
    NORM,
    """
    input_dtype = hidden_states.dtype
    hidden_states = hidden_states.to(torch.float32)
    variance = hidden_states.pow(2).mean(-1, keepdim=True)
    hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
    return self.weight * hidden_states.to(input_dtype)
    """,
    (FUSED.format("self.variance_epsilon"),),
    wrong_norms("no eps", "tuple", "mean"),
)
T5 = Snippet(
    "Norm.forward",
    NORM,
    """
    variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
    hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
    hidden_states = hidden_states.to(self.weight.dtype)
    return self.weight * hidden_states
    """,
    (FUSED.format("self.variance_epsilon"),),
    wrong_norms("eps keyword", "rstd", "detached"),
)
OLMO = Snippet(
    "Norm.forward",
    NORM,
    """
    x = hidden_states.float()
    x = x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + self.variance_epsilon)
    return (self.weight.float() * x).type_as(hidden_states)
    """,
    (FUSED.format("self.variance_epsilon"),),
    wrong_norms("eps 1e-5", "no weight", "upcast left"),
)
NO_UPCAST = Snippet(
    "Norm.forward",
    NORM,
    """
    norm = hidden_states * torch.rsqrt(
        hidden_states.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    return norm * self.weight
    """,
    (FUSED.format("self.variance_epsilon"),),
)
EPS_OUTSIDE = Snippet(
    "Norm.forward",
    NORM,
    """
    norm = hidden_states.norm(2, dim=-1, keepdim=True) * hidden_states.shape[-1] ** -0.5
    return self.weight * hidden_states / (norm + self.variance_epsilon)
    """,
    wrong={"eps outside the root": FUSED.format("self.variance_epsilon")},
)
LAYER_NORM = Snippet(
    "Norm.forward",
    NORM,
    """
    x = hidden_states - hidden_states.mean(-1, keepdim=True)
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    return self.weight * x
    """,
    wrong={"mean subtracted": FUSED.format("self.variance_epsilon")},
)
FOCAL = Snippet(
    "focal_loss",
    """
    import torch
    import torch.nn.functional as F

    def focal_loss(logits, target, gamma=2.0):
        target = target.view(-1, 1)
        logpt = F.log_softmax(logits, dim=-1)
        EAGER
        pt = logpt.exp()
        return (-1 * (1 - pt) ** gamma * logpt).mean()
    """,
    "logpt = logpt.gather(1, target).view(-1)",
    ("logpt = logpt[torch.arange(logpt.shape[0]), target.squeeze(1)]",),
    {
        "transposed": "logpt = logpt.t().contiguous().view(-1)[target.view(-1)]",
        "probabilities": "logpt = logpt.exp().gather(1, target).view(-1)",
        "detached": "logpt = logpt.detach().gather(1, target).view(-1)",
    },
)
GATHER = Snippet(
    "pick",
    """
    import torch

    def pick(logits: torch.Tensor, index: torch.LongTensor):
        EAGER
    """,
    "return logits.gather(1, index)",
    ("return torch.take_along_dim(logits, index, 1)",),
    {"(N, k) index": "return logits[torch.arange(logits.shape[0])[:, None], index[:, :1]]"},
)
MOE = Snippet(
    "Gate.forward",
    """
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    class Gate(nn.Module):
        def __init__(self, config):
            super().__init__()
            self.top_k = config.num_experts_per_tok
            self.num_experts = config.n_routed_experts
            self.gate = nn.Linear(config.hidden_size, self.num_experts, bias=False)

        def forward(self, hidden_states):
            batch, length, width = hidden_states.shape
            logits = self.gate(hidden_states.view(-1, width))
            scores = logits.softmax(dim=-1)
            weights, indices = torch.topk(scores, self.top_k, dim=-1)
            EAGER
            return mask, scores.masked_fill(mask == 0, 0.0)
    """,
    "mask = F.one_hot(indices, num_classes=self.num_experts).sum(dim=1)",
    (
        """
        mask = indices.new_zeros(indices.shape[0], self.num_experts)
        mask.scatter_(1, indices, 1)
        """,
    ),
    {
        "bfloat16": "mask = torch.zeros(indices.shape[0], self.num_experts, dtype=torch.bfloat16)"
        ".scatter_(-1, indices, 1.0)",
        "first only": "mask = F.one_hot(indices[:, 0], num_classes=self.num_experts)",
    },
)
COUNTS = Snippet(
    "counts",
    """
    import torch
    import torch.nn.functional as F

    def counts(indices: torch.Tensor, num_classes: int):
        EAGER
    """,
    "return F.one_hot(indices, num_classes).sum(dim=1)",
    (
        """
        one_hot = indices.new_zeros(*indices.shape, num_classes)
        one_hot.scatter_(-1, indices.unsqueeze(-1), 1)
        return one_hot.sum(dim=1)
        """,
    ),
    {
        "counts are not sets": "return torch.zeros(indices.shape[0], num_classes, "
        "dtype=torch.int64).scatter_(1, indices, 1)",
    },
)
MASK_TOKENS = Snippet(
    "mask_tokens",
    """
    import torch

    def mask_tokens(inputs, mask_token_id, probability):
        labels = inputs.clone()
        masked = torch.bernoulli(torch.full(labels.shape, probability)).bool()
        EAGER
        inputs[masked] = mask_token_id
        return inputs, labels
    """,
    "labels[~masked] = -100",
    ("labels.masked_fill_(~masked, -100)", "labels = torch.where(masked, labels, -100)"),
    {
        "other side": "labels.masked_fill_(masked, -100)",
        "multiplied": "labels *= masked",
        "not in place": "labels.masked_fill(~masked, -100)",
    },
)
MASKED_ZERO = Snippet(
    "clear",
    """
    import torch

    def clear(x: torch.Tensor, mask: torch.Tensor):
        EAGER
        return x
    """,
    "x[mask] = 0",
    ("x.masked_fill_(mask.view(mask.shape + (1,) * (x.dim() - mask.dim())), 0)",),
    {
        "NaN under the mask": "x *= ~mask[(...,) + (None,) * (x.dim() - mask.dim())]",
        "argument untouched": "m = mask[(...,) + (None,) * (x.dim() - mask.dim())]\n"
        "x = x.masked_fill(m, 0)",
        "trailing dimensions": "x.masked_fill_(mask, 0)",
    },
)
VALID_LENS = Snippet(
    "valid_mask",
    """
    import torch

    def valid_mask(X, valid_lens):
        shape = X.shape
        if valid_lens.dim() == 1:
            EAGER
        else:
            valid_lens = valid_lens.reshape(-1)
        positions = torch.arange(shape[-1])
        mask = positions[None, :] < valid_lens[:, None]
        X = X.reshape(-1, shape[-1]).masked_fill(~mask, -1e6)
        return X.reshape(shape).softmax(-1)
    """,
    "valid_lens = torch.repeat_interleave(valid_lens, shape[1])",
    ("valid_lens = valid_lens.unsqueeze(-1).expand(-1, shape[1]).reshape(-1)",),
    {"repeat": "valid_lens = valid_lens.repeat(shape[1])"},
)
REPEAT = Snippet(
    "repeated",
    """
    import torch

    def repeated(x: torch.Tensor, n_rep: int):
        EAGER
    """,
    "return x.repeat_interleave(n_rep)",
    ("return x.reshape(-1).unsqueeze(-1).expand(-1, n_rep).reshape(-1).clone()",),
    {"n = 1 aliases": "return x.reshape(-1).unsqueeze(-1).expand(-1, n_rep).reshape(-1)"},
)
DROPOUT = Snippet(
    "Block.forward",
    """
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, dim: int, p: float = 0.1):
            super().__init__()
            self.proj = nn.Linear(dim, dim)
            self.dropout = nn.Dropout(p)
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

        def forward(self, x, residual=None):
            self.steps += 1
            x = self.dropout(self.proj(x))
            EAGER
            return x
    """,
    """
    if residual is not None:
        x = x + residual
    """,
    ("x = x if residual is None else residual + x",),
    {"forgotten": "x = x if residual is None else residual"},
)
ALL = {
    "llama": LLAMA,
    "t5": T5,
    "olmo": OLMO,
    "no upcast": NO_UPCAST,
    "eps outside": EPS_OUTSIDE,
    "layer norm": LAYER_NORM,
    "focal": FOCAL,
    "gather": GATHER,
    "moe": MOE,
    "counts": COUNTS,
    "mask tokens": MASK_TOKENS,
    "masked zero": MASKED_ZERO,
    "valid lens": VALID_LENS,
    "repeat": REPEAT,
    "dropout": DROPOUT,
}
