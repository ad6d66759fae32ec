"""A cross entropy of torch: log_softmax, then the loss of the labels.

What: ``F.cross_entropy(x, target)`` of a matrix of scores.

Why it is slow on the NPU: LogSoftmaxV2 writes the log-probabilities of all classes, NLLLoss reads a
few of them, and the backward pass does both again. ``npu_cross_entropy_loss`` is one kernel each way
and needs less memory.

Safety: the operator takes a matrix (N, C) of at most 200000 rows and labels in int64 from 0 to C - 1;
class probabilities as targets are something else. A negative ``ignore_index`` means none to it: where
labels of -100 mark padding, the loss is wrong (condition ``no-ignored-labels``). With gradients it
takes the default weight, ``ignore_index`` and ``label_smoothing`` only. It returns one number in one
dimension, hence the second ``[0]``. Autocast makes the loss of torch float32 and does not know the
operator (condition ``no-autocast``).

References: torch_npu.npu_cross_entropy_loss in the API reference of Ascend Extension for PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Site, Substitution

if TYPE_CHECKING:
    import torch.nn.functional as F
    import torch_npu
    from torch import Tensor

_MATRIX, _MOST_ROWS = 2, 200_000


def mean(x: Tensor, target: Tensor) -> Tensor:
    """Average the loss of all rows."""
    return F.cross_entropy(x, target)


def fused_mean(x: Tensor, target: Tensor) -> Tensor:
    """Average it in one kernel."""
    return torch_npu.npu_cross_entropy_loss(x, target)[0][0]


def total(x: Tensor, target: Tensor) -> Tensor:
    """Add up the loss of all rows."""
    return F.cross_entropy(x, target, reduction="sum")


def fused_total(x: Tensor, target: Tensor) -> Tensor:
    """Add it up in one kernel."""
    return torch_npu.npu_cross_entropy_loss(x, target, reduction="sum")[0][0]


def each(x: Tensor, target: Tensor) -> Tensor:
    """Return the loss of each row."""
    return F.cross_entropy(x, target, reduction="none")


def fused_each(x: Tensor, target: Tensor) -> Tensor:
    """Return it from one kernel."""
    return torch_npu.npu_cross_entropy_loss(x, target, reduction="none")[0]


def inputs(draw: Draw) -> dict[str, Any]:
    """Return scores and labels that are classes."""
    import torch

    rows, classes = draw.integer(1, 6), draw.integer(2, 9)
    dtype = draw.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16])
    return {
        # Where one class wins clearly, the loss is the rounding of a number near one.
        "x": draw.floats(rows, classes, dtype=dtype),
        "target": draw.integers(rows, low=0, high=classes - 1),
    }


def _is_matrix(site: Site) -> bool | None:
    ndim = site.ndim("x")
    return None if ndim is None else ndim == _MATRIX


def _are_classes(site: Site) -> bool | None:
    ndim, dtype = site.ndim("target"), site.dtype("target")
    if ndim not in {None, 1} or dtype not in {None, "int64"}:
        return False
    return True if ndim == 1 and dtype == "int64" else None


def _few_rows(site: Site) -> bool | None:
    rows = site.size("x", 0)
    return None if rows is None else 0 < rows <= _MOST_ROWS


def _outside_autocast(site: Site) -> bool | None:
    return True if site.dtype("x") == "float32" or not site.mentions("autocast", "amp") else None


CONDITIONS = (
    Condition("matrix-scores", "the scores are a matrix (rows, classes)", _is_matrix),
    Condition("int64-classes", "the target is one class in int64 per row", _are_classes),
    Condition("at-most-200000-rows", "there are 1 to 200000 rows", _few_rows),
    Condition(
        "no-ignored-labels",
        "every label is a class: none is -100, which the operator does not ignore",
        lambda _: None,
    ),
    Condition("no-autocast", "autocast does not make the loss float32 here", _outside_autocast),
)

RULE = Substitution(
    id="NPU114",
    name="eager-cross-entropy",
    summary="a cross entropy in two kernels that write all log-probabilities",
    table="fusion",
    forms=(
        Form(mean, fused_mean, inputs, CONDITIONS),
        Form(total, fused_total, inputs, CONDITIONS),
        Form(each, fused_each, inputs, CONDITIONS),
    ),
    replaces=(
        "LogSoftmaxGrad",
        "LogSoftmaxV2",
        "NLLLoss",
        "NLLLossGrad",
        "ReduceMean",
        "ReduceSum",
    ),
    becomes=("CrossEntropyLoss", "CrossEntropyLossGrad"),
    passes=(2, 2),
    measured_only=True,
    requires="torch_npu>=2.1; chip A2 A3",
    valid=(
        # labels that are left out
        """
def f(x, target, pad):
    return F.cross_entropy(x, target, ignore_index=pad)
""",
        # weights and smoothing: not with a gradient
        """
def f(x, target, weight):
    return F.cross_entropy(x, target, weight=weight), F.cross_entropy(x, target, label_smoothing=0.1)
""",
        # one loss per pixel
        """
def f(x, target):
    n, c, h, w = x.shape
    return F.cross_entropy(x, target)
""",
        # probabilities of the classes
        """
def f(x, target):
    return F.cross_entropy(x, target.softmax(-1).float())
""",
        # the old way to say "none"
        """
def f(x, target):
    return F.cross_entropy(x, target, reduce=False)
""",
    ),
    rewritten=(
        Rewritten(
            """
def loss(logits, labels):
    return F.cross_entropy(logits, labels)
""",
            """
def loss(logits, labels):
    return torch_npu.npu_cross_entropy_loss(logits, labels)[0][0]
""",
        ),
        Rewritten(
            """
def loss(logits, labels, classes: int):
    losses = torch.nn.functional.cross_entropy(
        logits.view(-1, classes).float(), labels.view(-1), reduction="none"
    )
    return losses.mean()
""",
            """
def loss(logits, labels, classes: int):
    losses = torch_npu.npu_cross_entropy_loss(
        logits.view(-1, classes).float(), labels.view(-1), reduction="none"
    )[0]
    return losses.mean()
""",
        ),
    ),
)
