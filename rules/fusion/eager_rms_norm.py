"""RMSNorm written out in eager operators.

What: a module computes ``x * rsqrt(mean(x^2) + eps) * weight`` operator by operator.

Why it is slow on the NPU: six to eight kernels, each of which reads and writes the whole
activation (Cast, Pow, ReduceMean, Add, Rsqrt, Mul, Cast, Mul), and about twice as many in the
backward pass. ``npu_rms_norm`` reads the activation once and writes it once.

Safety: the fused kernel computes in float32, multiplies by the weight and rounds once; code that
rounds before it multiplies by the weight differs by at most one unit in the last place in half
precision. It returns the dtype of ``x``: where a float32 weight would have promoted half
precision activations to float32, the result is no longer float32 (condition ``same-dtype``). The
weight must be one-dimensional, or the kernel normalises over more than the last dimension.
The kernel has a backward formula but no double backward.

References: torch_npu.npu_rms_norm in the API reference of Ascend Extension for PyTorch; RMSNorm
(Zhang and Sennrich, 2019).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Site, Substitution

if TYPE_CHECKING:
    import torch
    import torch_npu
    from torch import Tensor


def cast_then_weight(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise in float32, cast back, multiply by the weight (Llama, Qwen2, Mistral)."""
    x32 = x.to(torch.float32)
    return weight * (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def promoted_then_weight(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As ``cast_then_weight``, with the product promoted by its float32 factor (CPM-Ant)."""
    variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
    return weight * (x * torch.rsqrt(variance + eps)).to(x.dtype)


def weight_then_cast(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Multiply by the weight in float32 and round once (OLMo, ChatGLM): what the kernel does."""
    x32 = x.to(torch.float32)
    return (weight * (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps))).to(x.dtype)


def weight_32_then_cast(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As ``weight_then_cast``, with the weight cast explicitly."""
    x32 = x.to(torch.float32)
    normed = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    return (weight.to(torch.float32) * normed).to(x.dtype)


def cast_to_weight(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Cast to the dtype of a half-precision weight (T5 and its relatives)."""
    variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
    normed = x * torch.rsqrt(variance + eps)
    if weight.dtype in [torch.float16, torch.bfloat16]:
        normed = normed.to(weight.dtype)
    return weight * normed


def without_cast(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Compute in the dtype of the activation throughout."""
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))


def fused(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the normalised activation; the second result is kept for the backward pass."""
    return torch_npu.npu_rms_norm(x, weight, epsilon=eps)[0]  # type: ignore[no-any-return]


def inputs(draw: Draw) -> dict[str, Any]:
    """Return activations with rows so small that a forgotten ``eps`` shows."""
    import torch

    hidden = draw.choice([8, 16, 24])
    shape = draw.choice([(3, hidden), (2, 5, hidden), (2, 1, 3, hidden)])
    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    scale = draw.choice([1.0, 1e-3])
    return {
        "x": draw.floats(*shape, dtype=dtype) * scale,
        "weight": draw.floats(hidden, dtype=dtype),
        "eps": draw.choice([1e-5, 1e-6]),
    }


def _one_dimensional(site: Site) -> bool | None:
    ndim = site.ndim("weight")
    if site.is_centred("x"):  # a LayerNorm
        return False
    if (
        site.is_tensor("weight") is False
        or site.size("weight", 0) == 1
        or site.is_detached("weight")
    ):
        return False
    return None if ndim is None else ndim == 1


SAME_DTYPE = Condition(
    "same-dtype",
    "the activation and the weight have the same dtype",
    lambda site: site.same_dtype("x", "weight"),
)
ONE_DIMENSIONAL = Condition(
    "one-dimensional-weight",
    "the weight has one dimension, as long as the last one of the activation",
    _one_dimensional,
)

PLAIN_EPS = Condition(
    "number-eps",
    "eps is a Python number, not a tensor or a trained parameter",
    lambda site: site.is_plain("eps"),
)
KERNEL_DTYPES = Condition(
    "same-dtype",
    "the activation and the weight have the same dtype (a float32 weight is fine as well)",
    lambda site: site.dtype("weight") == "float32" or site.same_dtype("x", "weight"),
)

RULE = Substitution(
    id="NPU101",
    name="eager-rms-norm",
    summary="RMSNorm written out in eager operators",
    table="fusion",
    forms=(
        Form(weight_then_cast, fused, inputs, (ONE_DIMENSIONAL, PLAIN_EPS, KERNEL_DTYPES)),
        Form(weight_32_then_cast, fused, inputs, (ONE_DIMENSIONAL, PLAIN_EPS, KERNEL_DTYPES)),
        Form(cast_then_weight, fused, inputs, (ONE_DIMENSIONAL, PLAIN_EPS, SAME_DTYPE)),
        Form(promoted_then_weight, fused, inputs, (ONE_DIMENSIONAL, PLAIN_EPS, SAME_DTYPE)),
        Form(cast_to_weight, fused, inputs, (ONE_DIMENSIONAL, PLAIN_EPS, SAME_DTYPE)),
        Form(without_cast, fused, inputs, (ONE_DIMENSIONAL, PLAIN_EPS, SAME_DTYPE)),
    ),
    replaces=(
        "Add",
        "Adds",
        "BroadcastTo",
        "Cast",
        "Div",
        "Mul",
        "Muls",
        "Pow",
        "Pows",
        "RealDiv",
        "ReduceMean",
        "ReduceSum",
        "Rsqrt",
        "RsqrtGrad",
        "Square",
    ),
    becomes=("RmsNorm", "RmsNormGrad"),
    passes=(2, 3),
    requires="torch_npu>=2.1",
    valid=(
        # the mean is subtracted: LayerNorm
        """
def f(x, weight: torch.Tensor, bias: torch.Tensor, eps: float):
    x = x - x.mean(-1, keepdim=True)
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)) + bias
""",
        """
def f(x, weight: torch.Tensor, eps: float):
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return weight * ((x - mean) / torch.sqrt(variance + eps))
""",
        # eps outside the square root
        """
def f(x, weight: torch.Tensor, eps: float):
    return weight * (x / (torch.sqrt(x.pow(2).mean(-1, keepdim=True)) + eps))
""",
        # over the channels
        """
def f(x, weight: torch.Tensor, eps: float):
    return weight * (x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + eps))
""",
        # over groups of the last dimension
        """
class GroupedNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        groups = x.view(*x.shape[:-1], 4, -1)
        groups = groups * torch.rsqrt(groups.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * groups.view(*x.shape)
""",
        # no gradient for the weight: ImageGPT
        """
class ImageGPTLayerNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return (
            x
            / torch.sqrt(torch.mean(torch.square(x), axis=-1, keepdim=True) + self.eps)
            * self.weight.data[..., :]
        )
""",
        # the result is thrown away: MegaRMSNorm
        """
class MegaRMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        mean_square = torch.mean(torch.square(x), dim=-1, keepdim=True)
        x * torch.rsqrt(mean_square + self.eps) * self.weight
        return x
""",
        # one gain for all
        """
class ScaleNorm(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.eps = eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))
""",
        # the variance is a result as well
        """
class Norm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.eps)), variance
""",
        # a write between the square and the product
        """
class Norm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)
        x.add_(1)
        return self.weight * (x * torch.rsqrt(variance + self.eps))
""",
        # a subclass normalises in another way
        """
class Norm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        return self.weight * self._norm(x)


class ClippedNorm(Norm):
    def _norm(self, x):
        return x.clamp(-1, 1)
""",
        # compiled
        """
@torch.jit.script
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float):
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))
""",
    ),
    rewritten=(
        # Llama
        Rewritten(
            """
class LlamaRMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.eps)
        return self.weight * hidden_states.to(input_dtype)
""",
            """
class LlamaRMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, hidden_states):
        return torch_npu.npu_rms_norm(hidden_states, self.weight, epsilon=self.eps)[0]
""",
        ),
        # the code of the Llama paper
        Rewritten(
            """
class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        output = self._norm(x.float()).type_as(x)
        return output * self.weight
""",
            """
class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x):
        return torch_npu.npu_rms_norm(x, self.weight, epsilon=self.eps)[0]
""",
        ),
        # T5
        Rewritten(
            """
class T5LayerNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, hidden_states):
        variance = hidden_states.to(torch.float32).pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.eps)
        if self.weight.dtype in [torch.float16, torch.bfloat16]:
            hidden_states = hidden_states.to(self.weight.dtype)
        return self.weight * hidden_states
""",
            """
class T5LayerNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, hidden_states):
        return torch_npu.npu_rms_norm(hidden_states, self.weight, epsilon=self.eps)[0]
""",
        ),
        # OLMo
        Rewritten(
            """
class OlmoRMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        og_dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        return (self.weight * x).to(og_dtype)
""",
            """
class OlmoRMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return torch_npu.npu_rms_norm(x, self.weight, epsilon=self.eps)[0]
""",
        ),
    ),
)
