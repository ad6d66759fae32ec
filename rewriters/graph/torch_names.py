"""Which calls are pure, which draw random numbers: the vocabulary of torch and Python."""

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

RANDOM = frozenset(
    {
        "alpha_dropout", "bernoulli", "dropout", "dropout1d", "dropout2d", "dropout3d",
        "feature_alpha_dropout", "gumbel_softmax", "multinomial", "normal", "poisson", "rand",
        "rand_like", "randint", "randint_like", "randn", "randn_like", "randperm", "rrelu",
    }
)  # fmt: skip

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

# Methods of a tensor that return something new or a view and change nothing.
PURE_METHODS = frozenset(
    {
        "abs", "acos", "add", "addmm", "all", "amax", "amin", "any", "argmax", "argmin", "argsort",
        "asin", "atan", "baddbmm", "bfloat16", "bitwise_and", "bitwise_not", "bmm", "bool",
        "broadcast_to", "ceil", "chunk", "clamp", "clamp_max", "clamp_min", "clone", "conj",
        "contiguous", "cos", "cpu", "cuda", "cumsum", "detach", "diag", "diagonal", "dim", "div",
        "divide", "dot", "double", "element_size", "eq", "erf", "exp", "expand", "expand_as",
        "expm1", "flatten", "flip", "float", "floor", "floor_divide", "fmod", "gather", "ge",
        "get_device", "gt", "half", "index_add", "index_fill", "index_put", "index_select", "int",
        "is_complex", "is_contiguous", "is_floating_point", "isfinite", "isinf", "isnan", "item",
        "kthvalue", "le", "lerp", "log", "log10", "log1p", "log2", "log_softmax", "logical_and",
        "logical_not", "logical_or", "logical_xor", "logsumexp", "long", "lt", "masked_fill",
        "masked_scatter", "masked_select", "matmul", "max", "maximum", "mean", "median", "min",
        "minimum", "mm", "movedim", "mul", "multiply", "mv", "narrow", "ndimension", "ne", "neg",
        "negative", "new_empty", "new_full", "new_ones", "new_tensor", "new_zeros", "nonzero",
        "norm", "numel", "numpy", "permute", "pow", "prod", "reciprocal", "relu", "remainder",
        "repeat", "repeat_interleave", "reshape", "reshape_as", "roll", "round", "rsqrt",
        "scatter", "scatter_add", "select", "sigmoid", "sign", "sin", "size", "softmax", "sort",
        "split", "sqrt", "square", "squeeze", "stack", "std", "stride", "sub", "subtract", "sum",
        "swapaxes", "swapdims", "t", "take", "tanh", "tile", "to", "tolist", "topk", "transpose",
        "tril", "triu", "true_divide", "type", "type_as", "unbind", "unflatten", "unfold",
        "unsqueeze", "var", "view", "view_as", "where",
    }
)  # fmt: skip

# A tensor that nobody else can hold yet: writing into it is not an effect.
FRESH = frozenset(
    {"clone", "empty", "empty_like", "full", "full_like", "new_empty", "new_full", "new_ones",
     "new_tensor", "new_zeros", "ones", "ones_like", "tensor", "zeros", "zeros_like"}
)  # fmt: skip

# After these a tensor has another shape: what was known about it no longer holds.
CHANGES_SHAPE = frozenset(
    {"resize_", "resize_as_", "set_", "squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_",
     "unsqueeze_"}
)  # fmt: skip
