"""A router that scores all experts and then takes the best, as the source shows it.

What: ``weights, experts = torch.topk(F.softmax(logits, dim=-1), k)`` in a mixture of experts, where
nothing else reads the softmax (an auxiliary loss would); scores of a sigmoid, corrected by a bias or
limited to groups of experts, as in DeepSeek-V3; a softmax over the selected logits, as in Mixtral.

Why it is slow on the NPU: SoftmaxV2 writes the scores of all experts for TopKV2, which sorts them in
a general way, and casts stand around both. One kernel keeps them in the core: 37 became 14
microseconds in vllm-ascend.

Use instead: ``torch_npu.npu_moe_gating_top_k_softmax(logits, None, k)``; its third result are the rows.
``torch_npu.npu_moe_gating_top_k`` for a sigmoid, a bias and groups;
``torch_npu.npu_moe_gating_top_k_softmax_v2(logits, k=k, renorm=1)`` where the selected logits become
a softmax.

Safety: advice, for inference alone: the operator has no gradient, and the backward pass raises. It
returns the experts as int32, and weights of the dtype of the logits, which are not divided by their
sum: what does that stays. At most 1024 of them. ``npu_moe_gating_top_k`` divides the weights of a
sigmoid by their sum (``norm_type=1``) and those of a softmax not.

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
_PICKED = """
class Gate(nn.Module):
    def forward(self, x):
        scores = F.softmax(F.linear(x, self.weight), dim=-1)
        experts = scores.topk(self.top_k, dim=-1)[1]
        return scores.gather(1, experts), experts
"""
_CORRECTED = """
class Router(nn.Module):
    def route_tokens_to_experts(self, logits):
        scores = logits.float().sigmoid()
        _, experts = torch.topk(scores + self.e_score_correction_bias, self.top_k, dim=-1)
        weights = scores.gather(1, experts)
        return weights / weights.sum(-1, keepdim=True), experts
"""
_SELECTED_FIRST = """
class MoeLayer(nn.Module):
    def forward(self, inputs):
        weights, experts = torch.topk(self.gate(inputs), self.experts_per_token)
        weights = F.softmax(weights, dim=1, dtype=torch.float).to(inputs.dtype)
        return weights, experts
"""
_OF_FIELDS = """
class Mlp(nn.Module):
    def route_to_experts(self, t):
        best = torch.topk(self.gate(t), k=self.k, dim=-1, sorted=True)
        return F.softmax(best.values.float(), dim=-1), best.indices
"""
_IN_GROUPS = """
class TopkRouter(nn.Module):
    def get_topk_indices(self, scores):
        chosen = scores.view(-1, self.n_experts) + self.bias
        groups = chosen.view(-1, self.n_group, self.size).topk(2, dim=-1)[0].sum(dim=-1)
        best = torch.topk(groups, k=self.topk_group, dim=-1, sorted=False)[1]
        mask = torch.zeros_like(groups)
        mask.scatter_(1, best, 1)
        mask = mask.unsqueeze(-1).expand(-1, self.n_group, self.size).reshape(-1, self.n_experts)
        chosen = chosen.masked_fill(~mask.bool(), 0.0)
        return torch.topk(chosen, k=self.top_k, dim=-1, sorted=False)[1]
"""

RULE = Substitution(
    id="NPU173",
    name="expert-router",
    summary="a router writes the scores of all experts to select a few, in its source",
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
        # a loss reads the scores
        """
class Gate(nn.Module):
    def forward(self, x):
        scores = self.router(x).sigmoid()
        experts = (scores + self.bias).topk(2)[1]
        return scores.gather(1, experts), experts, scores
""",
        # slots of a memory, of which all are written
        """
class Memory(nn.Module):
    def forward(self, x, router):
        scores = router.sigmoid()
        slots = (scores + self.bias).topk(self.topk, dim=-1)[1]
        chosen = torch.zeros_like(router).scatter_(-1, slots, scores.gather(-1, slots))
        return self.write(x, chosen)
""",
        # detections
        """
class Head(nn.Module):
    def forward(self, x):
        return self.classes(x).sigmoid().flatten(1).topk(100)
""",
        # selected first, and the logits of the selected are a result
        """
class Gate(nn.Module):
    def forward(self, x):
        logits, experts = self.router(x).topk(2)
        return logits.softmax(-1), experts, logits
""",
        # the softmax is that of a token over its neighbours
        """
class Gate(nn.Module):
    def forward(self, x):
        weights, experts = self.router(x).topk(2)
        return weights.softmax(0), experts
""",
    ),
    rewritten=(
        Rewritten(_FUNCTION, _FUNCTION),
        Rewritten(_SAME_NAME, _SAME_NAME),
        Rewritten(_OTHER_NAMES, _OTHER_NAMES),
        Rewritten(_PICKED, _PICKED),
        Rewritten(_CORRECTED, _CORRECTED),
        Rewritten(_IN_GROUPS, _IN_GROUPS),
        Rewritten(_SELECTED_FIRST, _SELECTED_FIRST),
        Rewritten(_OF_FIELDS, _OF_FIELDS),
    ),
)
