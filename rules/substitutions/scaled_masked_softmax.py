"""Softmax of scores that are scaled and masked before, operator by operator.

What: ``softmax((x * scale).masked_fill(mask, value), -1)`` where the whole attention cannot become
one operator, because its weights are needed.

Why it is slow on the NPU: Mul, MaskedFill, SoftmaxV2 and, with scores in half precision, two Casts
each read and write all scores. ``npu_scaled_masked_softmax`` reads and writes them once.

Safety: the kernel puts -10000 where the mask is True and computes in float32. So scores must be small
beside that and ``value`` no greater (condition ``very-negative-fill``), and a row that is masked as a
whole must not occur: by -inf it is NaN, by the kernel it is uniform (``no-fully-masked-row``). It takes
four dimensions, the last two of them multiples of 32 from 32 to 4096 (the narrowest limits that any of
its pages names, condition ``kernel-shape``), and a bool mask whose last two dimensions are those of the
scores (``mask-shape``). The result has the dtype of ``x``. It has a gradient for ``x``.

References: torch_npu.npu_scaled_masked_softmax in the API reference of Ascend Extension for PyTorch;
case ScaledMaskedSoftmax of the MindStudio guide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.shared.operands.attention import (
    HIDDEN_LEAVES_A_KEY,
    NOT_FUSED_YET,
    NUMBER_SCALE,
    VERY_NEGATIVE,
)
from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Site, Substitution, either

if TYPE_CHECKING:
    import torch
    import torch_npu
    from torch import Tensor

_DIMS = 4
_STEP, _LONGEST = 32, 4096


def filled(
    x: Tensor,
    hidden: Tensor,
    value: float,
    scale: float = 1.0,
    divisor: float = 1.0,
    mask: Tensor | bool | None = True,
) -> Tensor:
    """Scale, fill what is masked, and take the softmax in the dtype of the scores."""
    scores = either(x * scale, x / divisor)
    always = either(scores.masked_fill(hidden, value), torch.where(hidden, value, scores))
    masked = either(always, always if mask is not None else scores)
    return either(
        masked.softmax(-1),
        masked.softmax(-1, torch.float32).to(x.dtype),
        masked.to(torch.float32).softmax(-1).to(x.dtype),
        masked.softmax(-1, torch.float32).to(masked.dtype),
        masked.to(torch.float32).softmax(-1).to(masked.dtype),
    )


def fused(
    x: Tensor,
    hidden: Tensor,
    value: float,
    scale: float,
    divisor: float,
    mask: Tensor | bool | None,
) -> Tensor:
    """Let one kernel scale, mask and normalise."""
    return (
        (x * (scale / divisor)).softmax(-1)
        if mask is None
        else torch_npu.npu_scaled_masked_softmax(x, hidden, scale / divisor, False)  # noqa: FBT003
    )


def inputs(draw: Draw) -> dict[str, Any]:
    """Return scores of the smallest shapes that the kernel takes, and a mask of other heads."""
    import torch

    dtype = draw.choice([torch.float32, torch.bfloat16, torch.float16])
    rows, columns = draw.choice([(32, 32), (32, 64), (64, 32)])
    hidden = draw.booleans(*draw.choice([(1, 1), (2, 1), (2, 2)]), rows, columns)
    hidden[..., 0] = False
    return {
        "x": draw.floats(2, 2, rows, columns, dtype=dtype),
        "hidden": hidden,
        "value": draw.choice([float("-inf"), -6e4]),
        "scale": draw.choice([1.0, 0.3, 2.0]),
        "divisor": draw.choice([8.0, 0.7]),
        "mask": draw.choice([True, True, None]),
    }


def _kernel_shape(site: Site) -> bool | None:
    ndim = site.ndim("x")
    if ndim not in {None, _DIMS}:
        return False
    sizes = [site.size("x", dim) for dim in (-1, -2)]
    if any(s is not None and (s % _STEP or not _STEP <= s <= _LONGEST) for s in sizes):
        return False
    return True if ndim == _DIMS and None not in sizes else None


def _mask_shape(site: Site) -> bool | None:
    ndim = site.ndim("hidden")
    if ndim not in {None, _DIMS}:
        return False
    sizes = [(site.size("hidden", dim), site.size("x", dim)) for dim in (-1, -2)]
    if any(None not in pair and pair[0] != pair[1] for pair in sizes):
        return False
    return True if ndim == _DIMS and all(None not in pair for pair in sizes) else None


RULE = Substitution(
    id="NPU105",
    name="eager-scaled-masked-softmax",
    summary="softmax of scaled and masked scores in eager operators",
    table="fusion",
    forms=(
        Form(
            filled,
            fused,
            inputs,
            (
                Condition(
                    "kernel-shape",
                    "the scores have four dimensions, the last two multiples of 32 from 32 to 4096",
                    _kernel_shape,
                ),
                Condition(
                    "mask-shape",
                    "the mask has four dimensions, the last two as long as those of the scores",
                    _mask_shape,
                ),
                VERY_NEGATIVE,
                HIDDEN_LEAVES_A_KEY,
                NUMBER_SCALE,
                NOT_FUSED_YET,
            ),
        ),
    ),
    replaces=(
        "Cast",
        "MaskedFill",
        "Mul",
        "Muls",
        "RealDiv",
        "SelectV2",
        "SoftmaxGrad",
        "SoftmaxV2",
    ),
    becomes=("ScaledMaskedSoftmax", "ScaledMaskedSoftmaxGrad"),
    passes=(2, 3),
    requires="torch_npu>=2.1; chip 910A A2 A3",
    valid=(
        # the mask is added
        """
def weights(x, mask, scale: float):
    return (x * scale + mask).softmax(-1)
""",
        # nothing to scale: one kernel less to save
        """
def sample(x, threshold: torch.Tensor):
    return x.masked_fill(x < threshold, float("-inf")).softmax(-1)
""",
        # over the rows
        """
def weights(x, mask: torch.Tensor, scale: float):
    return (x * scale).masked_fill(mask, float("-inf")).softmax(-2)
""",
        # three dimensions
        """
def weights(x, mask: torch.Tensor, scale: float):
    b, n, m = x.shape
    return (x * scale).masked_fill(mask, float("-inf")).softmax(-1)
""",
        # a mask of two dimensions
        """
class Weights(nn.Module):
    def __init__(self, length: int):
        super().__init__()
        self.register_buffer("mask", torch.tril(torch.ones(length, length)))

    def forward(self, x, scale: float):
        b, h, n, m = x.shape
        return (x * scale).masked_fill(self.mask[:n, :m] == 0, float("-inf")).softmax(-1)
""",
        """
class Weights(nn.Module):
    def __init__(self, length: int):
        super().__init__()
        self.register_buffer("hidden", torch.ones(length, length).tril().bool() == 0)

    def forward(self, x, scale: float):
        return (x * scale).masked_fill(self.hidden, float("-inf")).softmax(-1)
""",
        # masked scores that still count
        """
def weights(x, mask: torch.Tensor, scale: float):
    return (x * scale).masked_fill(mask, 0.0).softmax(-1)
""",
        # a row may be masked as a whole
        """
def weights(x, mask: torch.Tensor, scale: float):
    b, h, n, m = x.shape
    return (x * scale).masked_fill(mask, -1e4).softmax(-1)
""",
        # a trained temperature
        """
class Weights(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(1))

    def forward(self, x, mask: torch.Tensor):
        return (x * self.temperature).masked_fill(mask, float("-inf")).softmax(-1)
""",
        # rows of one pixel that the kernel does not take
        """
def weights(x, mask: torch.Tensor, scale: float):
    scores = x.view(8, 4, 49, 49) * scale
    return scores.masked_fill(mask, float("-inf")).softmax(-1)
""",
    ),
    rewritten=(
        # four dimensions by the shape of what is kept
        Rewritten(
            """
class Weights(nn.Module):
    def __init__(self, length: int):
        super().__init__()
        hidden = torch.triu(torch.ones(length, length), 1).view(1, 1, length, length)
        self.register_buffer("hidden", hidden.bool())

    def forward(self, x, scale: float):
        n, m = x.shape[-2:]
        return (x * scale).masked_fill(self.hidden[:, :, :n, :m], float("-inf")).softmax(-1)
""",
            """
class Weights(nn.Module):
    def __init__(self, length: int):
        super().__init__()
        hidden = torch.triu(torch.ones(length, length), 1).view(1, 1, length, length)
        self.register_buffer("hidden", hidden.bool())

    def forward(self, x, scale: float):
        n, m = x.shape[-2:]
        return torch_npu.npu_scaled_masked_softmax(
            x, self.hidden[:, :, :n, :m], scale, False
        )
""",
        ),
        # Megatron
        Rewritten(
            """
class FusedScaleMaskSoftmax(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, scores, mask: torch.Tensor):
        scores = scores * self.scale
        masked = scores.masked_fill(mask, -10000.0)
        probs = torch.nn.Softmax(dim=-1)(masked)
        return probs
""",
            """
class FusedScaleMaskSoftmax(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, scores, mask: torch.Tensor):
        probs = torch_npu.npu_scaled_masked_softmax(
            scores, mask, self.scale, False
        )
        return probs
""",
        ),
        # a mask if there is one
        Rewritten(
            """
def weights(x, scale: float, mask=None):
    scores = x * scale
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    return F.softmax(scores, dim=-1)
""",
            """
def weights(x, scale: float, mask=None):
    return (
        (x * scale).softmax(-1)
        if mask is None
        else torch_npu.npu_scaled_masked_softmax(x, mask == 0, scale, False)
    )
""",
        ),
        Rewritten(
            """
def weights(x, mask: torch.Tensor, scale: float):
    scores = (x / scale).masked_fill(mask, float("-inf"))
    return F.softmax(scores, dim=-1, dtype=torch.float32).to(x.dtype)
""",
            """
def weights(x, mask: torch.Tensor, scale: float):
    return torch_npu.npu_scaled_masked_softmax(x, mask, 1.0 / scale, False)
""",
        ),
    ),
)
