"""The log-probability of each label, out of those of all classes.

What: ``F.log_softmax(logits, -1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)``, as reinforcement
learning and preference training ask for the tokens of a response, and ``logits.gather(...) -
logits.logsumexp(-1)``.

Why it is slow on the NPU: LogSoftmaxV2 writes the log-probabilities of the whole vocabulary, often
gigabytes, for GatherElements, which reads one of them per row; backward, a ScatterElements into zeros
of that size and LogSoftmaxGrad. ``npu_cross_entropy_loss`` is one kernel each way.

Safety: the operator returns the negative of it, for a matrix of at most 200000 rows and one label in
int64 for each. ``gather`` takes fewer labels than there are rows and leaves the others out (condition
``one-label-per-row``); that all labels are classes it demands as well. The log-probabilities must not
be needed besides, as for an entropy. Autocast makes those of torch float32 and does not know the
operator (condition ``no-autocast``).

References: torch_npu.npu_cross_entropy_loss in the API reference of Ascend Extension for PyTorch; verl,
which takes it for this on NPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Site, Substitution, either

if TYPE_CHECKING:
    import torch
    import torch_npu
    from torch import Tensor

_LEAST_DIMS, _MOST_DIMS = 2, 4


def pick(scores: Tensor, labels: Tensor) -> Tensor:
    """Take the score of each label."""
    return either(
        scores.gather(-1, labels.unsqueeze(-1)).squeeze(-1),
        scores.gather(2, labels.unsqueeze(-1)).squeeze(-1),
        scores.gather(2, labels.unsqueeze(2)).squeeze(2),
        scores.gather(-1, labels.unsqueeze(2)).squeeze(2),
        scores.gather(2, labels.unsqueeze(-1)).squeeze(2),
        scores.gather(1, labels.unsqueeze(1)).squeeze(1),
        scores.gather(-1, labels[..., None])[..., 0],
    )


def picked(logits: Tensor, labels: Tensor) -> Tensor:
    """Take the log-probability of each label."""
    scores = either(logits.log_softmax(-1), logits.log_softmax(2), logits.softmax(-1).log())
    return pick(scores, labels)


def picked_in_float32(logits: Tensor, labels: Tensor) -> Tensor:
    """Take the log-probability of each label, computed in float32."""
    return pick(logits.log_softmax(-1, torch.float32), labels)


def without_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Subtract the logarithm of the sum from the score of each label."""
    return pick(logits, labels) - logits.logsumexp(-1)


def fused(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute it in one kernel."""
    return -torch_npu.npu_cross_entropy_loss(
        logits.flatten(0, -2), labels.flatten(), reduction="none"
    )[0].view_as(labels)


def fused_in_float32(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute it in one kernel, in float32."""
    return -torch_npu.npu_cross_entropy_loss(
        logits.flatten(0, -2).float(), labels.flatten(), reduction="none"
    )[0].view_as(labels)


def inputs(draw: Draw) -> dict[str, Any]:
    """Return the scores of classes for each token, and one class each."""
    import torch

    batch, length, classes = draw.integer(1, 3), draw.integer(2, 4), draw.integer(3, 9)
    dtype = draw.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16])
    return {
        "logits": draw.floats(batch, length, classes, dtype=dtype),
        "labels": draw.integers(batch, length, low=0, high=classes - 1),
    }


def _one_per_row(site: Site) -> bool | None:
    ndim, of_labels = site.ndim("logits"), site.ndim("labels")
    if ndim is not None and not _LEAST_DIMS <= ndim <= _MOST_DIMS:
        return False
    return False if None not in {ndim, of_labels} and ndim != of_labels + 1 else None  # type: ignore[operator]  # both are known


def _outside_autocast(site: Site) -> bool | None:
    return True if site.dtype("logits") == "float32" or not site.mentions("autocast") else None


CONDITIONS = (
    Condition(
        "one-label-per-row",
        "each row of scores has one label in int64, and there are 1 to 200000 rows",
        _one_per_row,
    ),
    Condition("no-autocast", "autocast does not make the result float32 here", _outside_autocast),
)

RULE = Substitution(
    id="NPU184",
    name="label-log-probability",
    summary="the log-probability of one label per row, out of those of all classes",
    table="fusion",
    forms=(
        Form(picked, fused, inputs, CONDITIONS),
        Form(picked_in_float32, fused_in_float32, inputs, CONDITIONS),
        Form(without_sum, fused, inputs, CONDITIONS),
    ),
    replaces=(
        "Cast",
        "GatherElements",
        "LogSoftmaxGrad",
        "LogSoftmaxV2",
        "ReduceLogSumExp",
        "ScatterElements",
        "Sub",
    ),
    becomes=("CrossEntropyLoss", "CrossEntropyLossGrad"),
    passes=(2, 2),
    requires="torch_npu>=2.1; chip A2 A3",
    needs_whole=True,
    valid=(
        # an entropy needs all of them
        """
def policy(logits, labels):
    logps = F.log_softmax(logits, dim=-1)
    chosen = logps.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    return chosen, -(logps.exp() * logps).sum(-1)
""",
        # that of a blank is read too, and the shape of all for the labels
        """
def transducer(logits, labels, blank):
    logps = F.log_softmax(logits, dim=-1)
    index = labels.expand(logps.shape[:-1]).unsqueeze(-1)
    return logps.gather(-1, index).squeeze(-1), logps[..., blank]
""",
        # several labels per row
        """
def best(logits: torch.Tensor, k):
    logps = F.log_softmax(logits, dim=-1)
    return logps.gather(-1, logits.topk(k, dim=-1)[1])
""",
        # probabilities
        """
def chosen(logits: torch.Tensor, labels: torch.Tensor):
    return F.softmax(logits, dim=-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
""",
        # another dimension
        """
def chosen(logits: torch.Tensor, labels: torch.Tensor):
    logps = F.log_softmax(logits, dim=0)
    return logps.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
""",
        # the sum of other scores
        """
def chosen(logits: torch.Tensor, others: torch.Tensor, labels: torch.Tensor):
    return logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1) - others.logsumexp(-1)
""",
    ),
    rewritten=(
        Rewritten(
            """
def logprobs_of(logits, labels):
    logps = F.log_softmax(logits, dim=-1)
    return torch.gather(logps, dim=-1, index=labels.unsqueeze(-1)).squeeze(-1)
""",
            """
def logprobs_of(logits, labels):
    return -torch_npu.npu_cross_entropy_loss(
        logits.flatten(0, -2), labels.flatten(), reduction="none"
    )[0].view_as(labels)
""",
        ),
        Rewritten(
            """
def sequence_logps(logits, labels, mask):
    logps = torch.gather(logits.float().log_softmax(-1), 2, labels.unsqueeze(2)).squeeze(2)
    return (logps * mask).sum(-1)
""",
            """
def sequence_logps(logits, labels, mask):
    logps = -torch_npu.npu_cross_entropy_loss(
        logits.float().flatten(0, -2), labels.flatten(), reduction="none"
    )[0].view_as(labels)
    return (logps * mask).sum(-1)
""",
        ),
        Rewritten(
            """
def token_logps(logits, index):
    chosen = logits.gather(dim=-1, index=index.unsqueeze(-1)).squeeze(-1)
    return chosen - torch.logsumexp(logits, dim=-1)
""",
            """
def token_logps(logits, index):
    return -torch_npu.npu_cross_entropy_loss(
        logits.flatten(0, -2), index.flatten(), reduction="none"
    )[0].view_as(index)
""",
        ),
    ),
)
