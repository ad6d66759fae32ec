"""The eager attention of a model of transformers, which can be told to use a fused one.

What: ``eager_attention_forward`` of a modelling file computes scores, softmax and product one by one
and returns the weights beside the result.

Why it is slow on the NPU: it is attention written out (rule ``eager-attention``): all scores are
written to memory and read again by each operator. No change of this function helps, for it has to
return the weights.

Use instead: ``attn_implementation="sdpa"`` when the model is loaded (``from_pretrained`` or
``from_config``). It calls ``F.scaled_dot_product_attention``, which launches FlashAttentionScore
where the mask is bool or None. openMind does both for Llama, Qwen2, InternLM2 and Mistral with
``apply_fused_kernel(use_npu_fusion_attention=True)``. In inference torch_npu has operators of its own
for the prompt and for each next token (npu_prompt_flash_attention, npu_incre_flash_attention,
npu_fused_infer_attention_score).

Safety: advice. The weights are not available then (``output_attentions=True`` goes back to eager),
a position bias or capped scores must be supported by that implementation of the model, and dropout
draws other random numbers.

References: attention interface of transformers; openMind Library, fused operators.
"""

from __future__ import annotations

from npufix.rules.shared.operands.attention import operands
from npufix.rules.substitution import Condition, Form, Rewritten, Substitution
from npufix.rules.substitutions.eager_attention import (
    added_inputs,
    added_to_scores,
    fused,
    fused_zero,
    unmasked,
)

IMPLEMENTATION = Condition(
    "one-of-several",
    "a setting of transformers chooses between this function and a fused implementation",
    lambda site: site.is_one_of_several(),
)

RULE = Substitution(
    id="NPU162",
    name="eager-attention-implementation",
    summary="the eager attention of a model of transformers that has a fused one",
    table="fusion",
    forms=(
        Form(unmasked, fused, operands, (IMPLEMENTATION,)),
        Form(added_to_scores, fused_zero, added_inputs, (IMPLEMENTATION,)),
    ),
    replaces=(
        "Add",
        "BatchMatMul",
        "BatchMatMulV2",
        "BatchMatMulV3",
        "Cast",
        "DropOutDoMask",
        "Mul",
        "Muls",
        "SoftmaxGrad",
        "SoftmaxV2",
    ),
    becomes=("FlashAttentionScore", "FlashAttentionScoreGrad"),
    passes=(0.5, 1),
    requires="torch_npu>=2.1; CANN>=8.0; chip A2 A3",
    once=True,
    advice='load the model with attn_implementation="sdpa": this function is not called then',
    valid=(
        # of the user: rule eager-attention
        """
def attention(q, k, v, scaling: float):
    weights = (q @ k.transpose(2, 3) * scaling).softmax(-1)
    return weights @ v, weights
""",
        # capped scores
        """
def eager_attention_forward(module, query, key, value, scaling: float, softcap: float):
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    scores = torch.tanh(scores / softcap) * softcap
    return torch.matmul(F.softmax(scores, dim=-1), value)
""",
        # a column for what no key wants
        """
def eager_attention_forward(module, query, key, value, sinks, scaling: float):
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    weights = F.softmax(torch.cat([scores, sinks], dim=-1), dim=-1)
    return torch.matmul(weights[..., :-1], value)
""",
    ),
    rewritten=(
        Rewritten(
            """
def eager_attention_forward(module, query, key, value, scaling: float, dropout: float = 0.0):
    attn_weights = torch.matmul(query, key.transpose(2, 3)) * scaling
    attn_weights = F.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query.dtype)
    attn_weights = F.dropout(attn_weights, p=dropout, training=module.training)
    return torch.matmul(attn_weights, value)
""",
            """
def eager_attention_forward(module, query, key, value, scaling: float, dropout: float = 0.0):
    return F.scaled_dot_product_attention(
        query, key, value, dropout_p=dropout if module.training else 0.0, scale=scaling
    )
""",
        ),
    ),
)
