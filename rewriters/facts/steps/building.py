"""What builds, loads and saves a model, by its name: no step does that."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.facts.steps.functions import list_given
from npufix.rewriters.graph.modules.syntax import list_names, nodes_of, root_name

if TYPE_CHECKING:
    from npufix.rewriters.graph.modules.names import FunctionNode

BUILDS = re.compile(
    r"_*((set|enable|disable)_(use_)?\w*(attention|xformers|flash|tiling|slicing|lora|adapter)\w*|init(iali[sz]e)?|reset|load(?!_balanc)|save|from|convert|export|setup|configure|(un)?merge|register|plot|visuali[sz]e|process_weights)(_.*|__)?"
    r"|_*(set|update|compute|precompute|prepare)_(cos_?sin|sin_?cos|default_rope|inv_freq|freqs_cis)(_\w*)?"
    r"|tp_split(_\w*)?|(shard|repack|pack|offload|onload|unload)_(\w+_)?(weights?|params|parameters|model|qkv)"
    r"|.*_init|(\w+_)?weight_loader(_\w+)?|(\w+_)?save_(\w+_)?(model|checkpoint|weights|adapter|pretrained|state)s?(_\w+)?"
    r"|_*(un)?flatten_\w*state\w*|_*(build|make|create|init)_(\w+_)?cache|.*state_dicts?(_.*)?|get_(\w+_)?(peft|lora|model|optim\w*|adapter)_(\w+_)?state(_.*)?"
)
"""A loop in them takes no part in a step either."""
OF_MODELS = frozenset(
    {
        "adapter", "adapters", "checkpoint", "kernel", "lora", "model", "param", "params", "qkv",
        "state", "weight", "weights",
    }
)  # fmt: skip
"""Words of what is made or merged once: ``convert_qkv``."""
_WEIGHT = re.compile(r"W(_\w+)?|(\w+_)?q?weight|w_?q?")
_OF_WEIGHT = frozenset(
    {"bits", "group_size", "groupsize", "scale", "scales", "zero", "zero_point", "zeros"}
)
"""What a weight is quantised with; a product with one also gets what it multiplies."""
_QUANTISES = frozenset({"n_bits", "nbits", "quant_args", "quant_config", "quant_type", "wbits"})
_IS_CHANGED = re.compile(r"\.weight(\.data)?\.(div|mul)_$")
_IN_STEP = re.compile(r"(?i)forward|backward|dequant|fake_?quant|unpack")
_MULTIPLIED = frozenset(
    {"a", "act", "activations", "hidden", "hidden_states", "input", "inputs", "x"}
)


def quantises_weight(function: FunctionNode) -> bool:
    """Tell whether a function looks for the numbers that a weight is kept as: when it is loaded.

    ``grid_search(W, scale, zero)``; not ``matmul(x, weight, scale)``, and not what each step does
    with them: ``dequantize_weight(qweight, scales, zeros)``, ``fake_quantize(weight, bits)``.
    """
    args = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)]
    given, first = list_given(function), next((a for a in args if a not in {"self", "cls"}), "")
    of_weight = _WEIGHT.fullmatch(first) is not None and not given.isdisjoint(_OF_WEIGHT)
    of_weight = of_weight or not given.isdisjoint(_QUANTISES)
    in_step = _IN_STEP.search(function.name) is not None
    return of_weight and not in_step and given.isdisjoint(_MULTIPLIED)


def takes_state(function: FunctionNode) -> bool:
    """Tell whether a function, a hook mostly, loads or saves what it is handed."""
    return "state_dict" in list_given(function)


def rescales_weights(function: FunctionNode) -> bool:
    """Tell whether a function changes weights of layers that it is handed: ``fc.weight.mul_(s)``.

    So those are smoothed before they are quantised, or norms are merged into them: once.
    """
    names = list_given(function) - {"self"}
    names |= {
        name
        for n in nodes_of(function)
        if isinstance(n, ast.For) and root_name(n.iter) in names
        for name in list_names(n.target)
    }
    return any(
        isinstance(n, ast.Call)
        and root_name(n.func) in names
        and _IS_CHANGED.search(ast.unparse(n.func)) is not None
        for n in nodes_of(function)
    )
