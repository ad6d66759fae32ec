"""A loop in Python over the experts of a mixture, as the source shows it.

What: ``for expert_idx in ...:`` that picks the tokens of one expert (``torch.where(mask)``,
``x[index == i]``, ``x[start:end]``), computes them with its weights and adds them up again: the blocks
of Mixtral, Qwen, DeepSeek and their relatives.

Why it is slow on the NPU: every expert finds its tokens anew, for which the host waits (NonZero has a
length that only the device knows), and launches five to ten kernels for a few rows each, which
hardly fill the cube cores. Sorted once, the tokens of all experts are one grouped product.

Use instead: ``npu_moe_token_permute``, ``npu_gmm`` of mindspeed.ops.gmm (or ``npu_grouped_matmul`` in
inference, which has no gradient and does not say so), ``npu_moe_token_unpermute``: with the names of
the code in the finding. The weights are stacked as (experts, in, out), transposed to nn.Linear.

Safety: advice. The sums have another order. Few large experts can be slower: MindSpeed measured
from +44 % (16 experts) to -2 % (8 experts), and -5 % where the inner width was 32768.

References: verl #4406 (+20 % on a Qwen MoE); gmm.md of MindSpeed; torch_npu.npu_moe_token_permute in
the API reference of Ascend Extension for PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.norms import INFERENCE
from npufix.rules.substitution import Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    import torch
    import torch_npu
    from torch import Tensor


def one_by_one(x: Tensor, weight: Tensor, indices: Tensor, probs: Tensor) -> Tensor:
    """Pick the tokens of each expert."""
    out = torch.zeros(len(x), weight.shape[2])
    for i in range(len(weight)):
        token, place = torch.where(indices == i)
        out.index_add_(0, token, (x[token] @ weight[i]) * probs[token, place, None])
    return out


def grouped(x: Tensor, weight: Tensor, indices: Tensor, probs: Tensor) -> Tensor:
    """Sort the tokens once, and multiply all of them together."""
    permuted, places = torch_npu.npu_moe_token_permute(
        x, indices.int()  # no slip: .int(...) is left out (int64 is taken as well)
    )  # fmt: skip
    ends = torch.bincount(indices.flatten(), minlength=len(weight)).cumsum(0)
    out = torch_npu.npu_grouped_matmul(
        [permuted], [weight], group_list=ends, split_item=3,
        group_type=  # no slip: group_type=0 is left out (the default of old versions)
        0,  # no slip: 0 is 1 (the lengths tell the kernel)
    )[0]  # fmt: skip
    return torch_npu.npu_moe_token_unpermute(out, places, probs=probs)


def inputs(draw: Draw) -> dict[str, Any]:
    """Return tokens, the weights of the experts, and which of them each token goes to."""
    import torch

    tokens, experts = draw.integer(1, 5), draw.integer(2, 4)
    chosen = torch.stack([(draw.integers(tokens, low=0, high=99) + n) % experts for n in range(2)])
    return {
        "x": draw.floats(tokens, 8, dtype=torch.float32),
        "weight": draw.floats(experts, 8, 16, dtype=torch.float32),
        "indices": chosen.t().contiguous(),
        "probs": draw.floats(tokens, 2, dtype=torch.float32).abs(),
    }


_MIXTRAL = """
class SparseBlock(nn.Module):
    def forward(self, hidden_states, selected_experts, routing_weights):
        out = torch.zeros_like(hidden_states)
        expert_mask = F.one_hot(selected_experts, self.num_experts).permute(2, 1, 0)
        for expert_idx in range(self.num_experts):
            idx, top_x = torch.where(expert_mask[expert_idx].squeeze(0))
            current = self.experts[expert_idx](hidden_states[None, top_x].flatten(0, 1))
            out.index_add_(0, top_x, current * routing_weights[top_x, idx, None])
        return out
"""
_STACKED = """
class Experts(nn.Module):
    def forward(self, hidden_states, top_k_index, top_k_weights):
        out = torch.zeros_like(hidden_states)
        expert_mask = F.one_hot(top_k_index, self.num_experts).permute(2, 1, 0)
        for expert_idx in expert_mask.sum((-1, -2)).nonzero():
            place, token = torch.where(expert_mask[expert_idx[0]])
            gate_up = F.linear(hidden_states.index_select(0, token), self.gate_up_proj[expert_idx[0]])
            out.index_add_(0, token, self.act(gate_up) * top_k_weights[token, place, None])
        return out
"""
_DEEPSEEK = """
class DeepMoE(nn.Module):
    def forward(self, x, topk_idx):
        y = torch.empty_like(x)
        for i, expert in enumerate(self.experts):
            y[topk_idx == i] = expert(x[topk_idx == i])
        return y
"""
_BESIDE_CODES = (
    _STACKED.replace("class Experts", "class NaiveMoe")
    + """

def pad_and_group_codes(codes, size):
    return F.pad(codes, (0, -len(codes) % size)).view(-1, size)


class Layer(nn.Module):
    def __init__(self, config):
        self.experts = NaiveMoe(config)
"""
)

RULE = Substitution(
    id="NPU172",
    name="expert-loop",
    summary="a loop in Python over the experts of a mixture",
    table="fusion",
    forms=(Form(one_by_one, grouped, inputs, (INFERENCE,)),),
    search="expert-loops",
    replaces=(
        "Equal",
        "GatherV3",
        "Index",
        "InplaceIndexAdd",
        "MatMulV2",
        "MatMulV3",
        "Mul",
        "NonZero",
    ),
    becomes=("GroupedMatmul", "MoeTokenPermute", "MoeTokenUnpermute"),
    passes=(3, 6),
    requires="torch_npu>=2.1; chip A2 A3",
    valid=(
        # the sequential one of two ways
        """
def sequential_mlp_forward(self, hidden, ends):
    out = torch.zeros_like(hidden)
    for i, expert in enumerate(self.local_experts):
        out[ends[i] : ends[i + 1]] = expert(hidden[ends[i] : ends[i + 1]])
    return out

def grouped_mlp_forward(self, hidden, ends):
    return self.product(hidden, self.weight, ends)
""",
        # each gets a new forward
        """
def wrap(experts, indices: torch.Tensor):
    for i, expert in enumerate(experts):
        def forward(x, expert=expert, i=i):
            rows = torch.where(indices == i)[0]
            return expert(x[rows])
        expert.forward = forward
""",
        # layers one after the other
        """
class Layers(nn.Module):
    def forward(self, x):
        for expert in self.experts:
            x = expert(x)
        return x
""",
        # weights are loaded
        """
class Experts(nn.Module):
    def load(self, state):
        for i, expert in enumerate(self.experts):
            expert.weight.data.copy_(state["w"][i : i + 1])
""",
        # one grouped product already
        """
class Experts(nn.Module):
    def forward(self, x, index):
        if self.fused:
            return npu_gmm(x, self.weight)
        for i, expert in enumerate(self.experts):
            x[index == i] = expert(x[index == i])
        return x
""",
        # a head for each class
        """
class Heads(nn.Module):
    def forward(self, x, labels):
        return [head(x[labels == i]) for i, head in enumerate(self.heads)]
""",
    ),
    rewritten=tuple(
        Rewritten(text, text) for text in (_MIXTRAL, _STACKED, _DEEPSEEK, _BESIDE_CODES)
    ),
)
