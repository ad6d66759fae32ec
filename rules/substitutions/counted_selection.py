"""Elements that a mask selects to be counted.

What: ``x[mask].numel()``, ``x[mask].shape[0]``, ``len(x[mask])`` where nothing else is done with what
is selected.

Why it is slow on the NPU: NonZero finds the positions, as int64 for each dimension, the host waits
for their number, and Index copies all selected elements, only for their number to be read.
Summing the mask reads it once; the host waits for one number, as before.

Safety: the same number. ``numel`` counts elements, so the mask has all dimensions of the tensor
(condition ``same-rank-mask``); rows are as many as the mask has ones whatever the others are.
Indices that are no mask are counted otherwise (condition ``boolean-mask``).

References: MindSpeed-MM (image and video tokens of Qwen3.5); torch.Tensor.numel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution, either

if TYPE_CHECKING:
    from torch import Tensor


def elements(x: Tensor, mask: Tensor) -> int:
    """Count the elements that are selected."""
    return x[mask].numel()


def rows(x: Tensor, mask: Tensor) -> int:
    """Count the rows that are selected."""
    return either(x[mask].shape[0], len(x[mask]))


def counted(x: Tensor, mask: Tensor) -> int:
    """Count what is set in the mask."""
    return int(mask.sum())


def element_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor and a mask of its shape."""
    import torch

    shape = draw.choice([(7,), (2, 3), (0, 2), (2, 3, 4)])
    return {"x": draw.floats(*shape, dtype=torch.float32), "mask": draw.booleans(*shape)}


def row_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor, and a mask of its first dimensions."""
    import torch

    shape = draw.choice([(7,), (2, 3), (0, 2), (2, 3, 4)])
    first = draw.integer(1, len(shape))
    return {"x": draw.floats(*shape, dtype=torch.float32), "mask": draw.booleans(*shape[:first])}


BOOLEAN = Condition(
    "boolean-mask", "the index is a boolean mask", lambda site: site.is_bool_tensor("mask")
)
SAME_RANK = Condition(
    "same-rank-mask",
    "the mask has all dimensions of the tensor",
    lambda site: site.same_ndim("x", "mask"),
)
IS_TENSOR = Condition("is-tensor", "the object is a torch tensor", lambda site: site.is_tensor("x"))

RULE = Substitution(
    id="NPU226",
    name="counted-selection",
    summary="elements that a mask selects only to be counted",
    table="affinity",
    forms=(
        Form(elements, counted, element_inputs, (IS_TENSOR, BOOLEAN, SAME_RANK)),
        Form(rows, counted, row_inputs, (IS_TENSOR, BOOLEAN)),
    ),
    search="counted-selections",
    replaces=("Index", "NonZero"),
    becomes=("Cast", "ReduceSum"),
    passes=(2, 1),
    requires="torch_npu>=2.1",
    valid=(
        # what is selected is needed
        """
def f(x: torch.Tensor, mask: torch.Tensor):
    mask = mask > 0
    y = x[mask]
    return y.sum() / y.shape[0]
""",
        # also where it has a name, and only is looked at
        """
def f(x: torch.Tensor, mask: torch.Tensor):
    x = x[mask > 0]
    if len(x) == 0:
        return None
    return x * 2
""",
        # places, and a width
        """
def f(x: torch.Tensor, places: torch.Tensor, mask: torch.Tensor):
    places = places.long()
    mask = mask > 0
    return x[places].shape[0], x[mask].shape[1], x[mask].shape
""",
        # an array of NumPy
        """
def f(x: np.ndarray, mask: torch.Tensor):
    return x[mask > 0].shape[0]
""",
    ),
    rewritten=(
        Rewritten(
            """
class Merge(nn.Module):
    def forward(self, embeds: torch.Tensor, ids: torch.Tensor, images: torch.Tensor):
        mask = (ids == 7).unsqueeze(-1).expand_as(embeds)
        if embeds[mask].numel() != images.numel():
            raise ValueError
        return embeds * mask, images
""",
            """
class Merge(nn.Module):
    def forward(self, embeds: torch.Tensor, ids: torch.Tensor, images: torch.Tensor):
        mask = (ids == 7).unsqueeze(-1).expand_as(embeds)
        if int(mask.sum()) != images.numel():
            raise ValueError
        return embeds * mask, images
""",
        ),
        Rewritten(
            """
class Head(nn.Module):
    def loss(self, scores: torch.Tensor, labels: torch.Tensor):
        return scores.sum() / max(1, len(labels[labels > 0]))
""",
            """
class Head(nn.Module):
    def loss(self, scores: torch.Tensor, labels: torch.Tensor):
        return scores.sum() / max(1, int((labels > 0).sum()))
""",
        ),
    ),
)
