"""Code that ``masked-assignment`` changes, and what it becomes."""

from __future__ import annotations

from npufix.rules.substitution import Rewritten

REWRITTEN = (
    # what is scattered into a mask leaves it one
    Rewritten(
        """
def drop(x: torch.Tensor, limit: float):
    values, order = torch.sort(x, descending=True)
    above = values.cumsum(-1) > limit
    above[..., 0] = False
    above = above.scatter(-1, order, above)
    x[above] = 0
    return x
""",
        """
def drop(x: torch.Tensor, limit: float):
    values, order = torch.sort(x, descending=True)
    above = values.cumsum(-1) > limit
    above[..., 0] = False
    above = above.scatter(-1, order, above)
    x.masked_fill_(above, 0)
    return x
""",
    ),
    Rewritten(
        """
def f(x: torch.Tensor):
    rows = x.sum((1, 2)) > 0
    x[~rows, :, :] = 0
    return x
""",
        """
def f(x: torch.Tensor):
    rows = x.sum((1, 2)) > 0
    x.masked_fill_((~rows)[..., None, None], 0)
    return x
""",
    ),
    Rewritten(
        """
def f(x: torch.Tensor):
    x[x < 0] = 0
    return x
""",
        """
def f(x: torch.Tensor):
    x.masked_fill_(x < 0, 0)
    return x
""",
    ),
    Rewritten(
        """
def clean(grad: torch.Tensor):
    bad = torch.isnan(grad) | torch.isinf(grad)
    grad[bad] = 0  # a NaN must not survive
    return grad
""",
        """
def clean(grad: torch.Tensor):
    bad = torch.isnan(grad) | torch.isinf(grad)
    grad.masked_fill_(bad, 0)  # a NaN must not survive
    return grad
""",
    ),
    Rewritten(
        """
def f(x: torch.Tensor):
    rows = x.sum(-1) > 0
    x[rows] = 0
    return x
""",
        """
def f(x: torch.Tensor):
    rows = x.sum(-1) > 0
    x.masked_fill_(rows.unsqueeze(-1), 0)
    return x
""",
    ),
    Rewritten(
        """
def f(x: torch.Tensor):
    x[x > 3500] = 1 / 2.1
""",
        """
def f(x: torch.Tensor):
    x.masked_fill_(x > 3500, 1 / 2.1)
""",
    ),
    Rewritten(
        """
def f(logits: torch.Tensor, seen: torch.BoolTensor):
    logits[..., seen] = -torch.inf
""",
        """
def f(logits: torch.Tensor, seen: torch.BoolTensor):
    logits.masked_fill_(seen, -torch.inf)
""",
    ),
    Rewritten(
        """
def f(scores: torch.Tensor):
    b, h, n, m = scores.shape
    mask = (scores[0, 0] < 0) + (scores[0, 0] > 9)
    scores[:, :, mask] = -torch.inf
    return scores
""",
        """
def f(scores: torch.Tensor):
    b, h, n, m = scores.shape
    mask = (scores[0, 0] < 0) + (scores[0, 0] > 9)
    scores.masked_fill_(mask, -torch.inf)
    return scores
""",
    ),
    Rewritten(  # the number of a row says nothing of its elements
        """
def f(scale: torch.Tensor, sample_id: torch.Tensor):
    scale[sample_id == 0] = 1
""",
        """
def f(scale: torch.Tensor, sample_id: torch.Tensor):
    scale.masked_fill_((sample_id == 0).unsqueeze(-1), 1)
""",
    ),
    Rewritten(
        """
def f(x: torch.Tensor, pad: torch.BoolTensor):
    x[pad] = 0
""",
        """
def f(x: torch.Tensor, pad: torch.BoolTensor):
    x.masked_fill_(pad.view(pad.shape + (1,) * (x.dim() - pad.dim())), 0)
""",
    ),
)
