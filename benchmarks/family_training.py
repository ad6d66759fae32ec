"""Train tiny models of transformers on ``npu`` for three steps; prints a JSON line for each.

For a process on the virtual NPU that ``benchmarks.families`` starts; needs torch and transformers.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

STEPS = 3
MOST_PARAMETERS = 8_000_000
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_WIDTH, _INNER, _WORDS, _LENGTH = 64, 96, 80, 24
_SIZES = {
    _WIDTH: "hidden_size n_embd d_model dim embed_dim embedding_size emb_dim hidden_dim lru_width "
    "hidden_size_per_layer_input attention_hidden_size attn_hidden_size embedding_hidden_size "
    "cross_attention_hidden_size block_ff_dim word_embed_proj_dim",
    _INNER: "intermediate_size ffn_dim ffn_hidden_size d_ff moe_intermediate_size expert_dim "
    "dim_ff shared_expert_intermediate_size shared_intermediate_size decoder_ffn_dim dff "
    "encoder_ffn_dim feed_forward_size dense_intermediate_size intermediate_size_mlp "
    "expert_ffn_hidden_size "
    "moe_shared_expert_intermediate_size n_inner",
    2: "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers top_k_experts "
    "num_key_value_heads num_kv_heads num_experts_per_tok moe_topk moe_k top_k n_groups "
    "num_encoder_layers num_decoder_layers num_global_key_value_heads mamba_n_groups "
    "swa_num_key_value_heads num_ln_in_parallel_attn_heads",
    4: "num_attention_heads n_head n_heads num_heads decoder_attention_heads num_local_experts "
    "encoder_attention_heads num_experts n_routed_experts moe_num_experts linear_num_key_heads "
    "num_encoder_attention_heads num_decoder_attention_heads linear_num_value_heads "
    "swa_num_attention_heads",
    16: "head_dim kv_channels attention_head_size qk_nope_head_dim v_head_dim q_lora_rank d_state "
    "kv_lora_rank linear_key_head_dim linear_value_head_dim global_head_dim swa_head_dim dim_head "
    "mamba_d_state ssm_state_size state_size mamba_d_head mamba_head_dim d_kv index_head_dim "
    "swa_v_head_dim",
    8: "qk_rope_head_dim rotary_dim time_step_rank mamba_dt_rank index_n_heads index_topk "
    "chunk_size mamba_chunk_size mamba_n_heads mamba_num_heads",
    _WORDS: "vocab_size vocab_size_per_layer_input text_vocab_size",
    2 * _WIDTH: "max_position_embeddings n_positions n_ctx max_seq_len context_length seq_length "
    "max_sequence_length mamba_intermediate_size mamba_d_ssm",
    1: "pad_token_id bos_token_id n_group topk_group n_shared_experts first_k_dense_replace "
    "num_shared_experts",
    3: "eos_token_id",
    0: "num_kv_shared_layers num_nextn_predict_layers",
    32: "sliding_window attention_window_size local_attention window_size",
}
SMALL = {name: size for size, names in _SIZES.items() for name in names.split()}
"""By the name of a setting; of each model those count that its configuration has."""
SPECIAL: dict[str, dict[str, Any]] = {
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": None},
        "ffn_config": {"ffn_hidden_size": 96},
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "mamba2": {"num_heads": 8},
}
"""What else a family needs to be small and consistent."""


def build(family: str) -> torch.nn.Module:
    """Return a tiny model with random weights, the same for every call.

    Raises:
        ValueError: it cannot be made tiny by the settings known here.

    """
    kind = CONFIG_MAPPING[family]
    config = kind(**_shrunk(kind(), SPECIAL.get(family, {})))
    with torch.device("meta"):
        count = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if count > MOST_PARAMETERS:
        raise ValueError(f"{count / 1e6:.0f} M parameters: no small configuration is known")
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(kind(**_shrunk(kind(), SPECIAL.get(family, {}))))


def _shrunk(config: object, special: dict[str, Any]) -> dict[str, Any]:
    own = vars(config)
    found: dict[str, Any] = {
        name: {**_shrunk(value, {}), **special.get(name, {})}
        for name, value in own.items()
        if hasattr(value, "model_type")
    }
    found |= {name: size for name, size in SMALL.items() if isinstance(own.get(name), int)}
    if "qk_rope_head_dim" in found:  # the rotated part is what some of them call a head
        found["head_dim"] = found["qk_rope_head_dim"]
    if "kv_lora_rank" in found:  # every head has a key of its own
        found["num_key_value_heads"] = found["num_attention_heads"]
    if getattr(config, "is_decoder", None) is False:
        found["is_decoder"] = True
    return found | {name: value for name, value in special.items() if not isinstance(value, dict)}


def train(family: str, dtype: torch.dtype, device: str) -> list[float]:
    """Return the loss of each step."""
    model = build(family).to(device=device, dtype=dtype)
    for module in model.modules():  # with dropout, losses depend on where it is drawn
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    model.train()
    words = (torch.arange(2 * _LENGTH).reshape(2, _LENGTH) * 7 % 72 + 5).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(input_ids=words, labels=words).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(device: str, families: list[str]) -> None:
    """Train each family in each dtype; what raises is a line as well."""
    warnings.simplefilter("ignore")
    os.environ["HF_HUB_OFFLINE"] = "1"
    for family in families:
        for name, dtype in DTYPES.items():
            try:
                found: object = train(family, dtype, device)
            except Exception as error:  # noqa: BLE001 - whatever a model raises is its line
                line = (str(error).splitlines() or [""])[0][:300]
                found = f"{type(error).__name__}: {line}"
            print(json.dumps([family, name, found]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
