"""A router that takes the softmax of all experts and then the largest, as the source shows it.

What: ``weights, experts = torch.topk(F.softmax(logits, dim=-1), k)`` in a mixture of experts, where
nothing else reads the softmax (an auxiliary loss would).

Why it is slow on the NPU: SoftmaxV2 writes the scores of all experts for TopKV2, which sorts them in
a general way, and casts stand around both. One kernel keeps them in the core: 37 became 14
microseconds in vllm-ascend.

Use instead: ``torch_npu.npu_moe_gating_top_k_softmax(logits, None, k)``; its third result are the rows.

Safety: advice, for inference alone: the operator has no gradient, and the backward pass raises. It
returns the experts as int32, and weights of the dtype of the logits, which are not divided by their
sum: what does that stays. At most 1024 of them.

References: vllm-ascend #1355; torch_npu.npu_moe_gating_top_k_softmax in the API reference of Ascend
Extension for PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import INFERENCE
from npufix.rules.substitution import Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    import torch
    import torch_npu
    from torch import Tensor


def chosen(logits: Tensor, k: int) -> Tensor:
    """Take the largest of all probabilities."""
    return torch.topk(logits.softmax(-1), k)[0]


def gated(logits: Tensor, k: int) -> Tensor:
    """Take them in one kernel."""
    return torch_npu.npu_moe_gating_top_k_softmax(logits, None, k)[0]


def inputs(draw: Draw) -> dict[str, Any]:
    """Return the logits of tokens, without a gradient."""
    import torch

    return {
        "logits": draw.integers(draw.integer(1, 4), 8, low=-3, high=3).to(torch.float32),
        "k": draw.integer(1, 4),
    }


_FUNCTION = """
def select_experts(router_logits, top_k):
    scores = router_logits.softmax(dim=-1)
    weights, experts = scores.topk(top_k, dim=-1)
    return weights / weights.sum(-1, keepdim=True), experts
"""
_OTHER_NAMES = """
class Gate(nn.Module):
    def route(self, logits):
        # as npu_moe_init_routing wants it
        probs = torch.softmax(logits, dim=-1)
        top_probs, top_experts = torch.topk(probs, k=self.top_k, dim=-1)
        return top_probs, top_experts.int()
"""
_SAME_NAME = """
class Router(nn.Module):
    def forward(self, hidden_states):
        weights = F.softmax(self.gate(hidden_states), dim=1, dtype=torch.float)
        weights, experts = torch.topk(weights, self.top_k, dim=-1)
        return weights.to(hidden_states.dtype), experts
"""

RULE = Substitution(
    id="NPU173",
    name="expert-router",
    summary="a router writes the softmax of all experts to select a few, in its source",
    table="fusion",
    forms=(Form(chosen, gated, inputs, (INFERENCE,)),),
    search="expert-routers",
    replaces=("Cast", "SoftmaxV2", "TopKV2", "TopKV3"),
    becomes=("MoeGatingTopKSoftmax",),
    passes=(1, 0),
    requires="torch_npu>=2.1; chip A2 A3",
    valid=(
        # tokens of a vocabulary
        """
def sample(logits, k, temperature):
    probs = F.softmax(logits / temperature, dim=-1)
    return torch.topk(probs, k)
""",
        # an auxiliary loss reads it
        """
class Gate(nn.Module):
    def forward(self, x):
        scores = self.router(x).softmax(-1)
        weights, experts = scores.topk(2)
        return weights, experts, scores.mean(0)
""",
        # selected first
        """
class Gate(nn.Module):
    def forward(self, x):
        weights, experts = self.router(x).topk(2)
        return weights.softmax(-1), experts
""",
    ),
    rewritten=(
        Rewritten(_FUNCTION, _FUNCTION),
        Rewritten(_SAME_NAME, _SAME_NAME),
        Rewritten(_OTHER_NAMES, _OTHER_NAMES),
    ),
)
