"""The modules and types of torch and the functions of Python that the reader knows by name."""

from __future__ import annotations

TORCH_FUNCTIONS = frozenset(
    {
        "torch",
        "torch.Tensor",
        "torch.fft",
        "torch.linalg",
        "torch.nn.functional",
        "torch.special",
        "torch_npu",
        "mindspeed.ops.dropout_add_layer_norm",
        "mindspeed.ops.dropout_add_rms_norm",
    }
)

# Their classes are made from parameters and change none of them.
OPTIMIZERS = frozenset({"torch.optim", "torch_npu.optim"})

DTYPES = frozenset(
    f"torch.{name}"
    for name in (
        "bfloat16", "bool", "complex128", "complex64", "float16", "float32", "float64", "int16",
        "int32", "int64", "int8", "uint8",
    )
)  # fmt: skip

PURE_BUILTINS = frozenset(
    {
        "abs", "all", "any", "bool", "dict", "enumerate", "float", "getattr", "hasattr", "int",
        "isinstance", "issubclass", "len", "list", "max", "min", "range", "reversed", "round",
        "set", "slice", "sorted", "str", "sum", "tuple", "type", "zip",
    }
)  # fmt: skip

PURE_MODULES = ("math", "operator")
FOLDED = frozenset(
    {"operator.add", "operator.and_", "operator.mul", "operator.or_", "torch.promote_types"}
)
"""What ``functools.reduce`` may be given without changing anything."""

# They change the random state or another one of torch, or one of their arguments.
STATEFUL_PREFIXES = ("set_", "manual_seed")
