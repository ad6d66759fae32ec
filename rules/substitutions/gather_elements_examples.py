"""Code that ``gather-one-element-per-row`` changes, what it becomes, and code that it leaves alone."""

from __future__ import annotations

from npufix.rules.substitution import Rewritten

LEFT_ALONE = (
    # one table for the batch, which would be copied for each element
    """
class Positions(nn.Module):
    def forward(self, x: torch.Tensor, at: torch.Tensor):
        table = self.table.expand(x.size(0), -1, -1)
        return x + table.gather(1, at.unsqueeze(-1).expand(-1, -1, self.width))
""",
    # one node of each row, which leaves two dimensions as they are
    """
def of_nodes(edges: torch.Tensor, index: torch.Tensor):
    return edges.gather(1, index.unsqueeze(-1).expand(-1, -1, -1, edges.size(-1)))
""",
    # an index of more than one dimension
    """
def best(x: torch.Tensor, index: torch.Tensor, pattern: torch.Tensor):
    rows = x.gather(0, index[..., None, None])
    return rows, pattern.gather(0, index.view(-1, 1).expand_as(pattern))
""",
    # one token of each sequence in a round of decoding
    """
def decode(scores: torch.Tensor, steps: int):
    total = 0
    for _ in range(steps):
        probs = scores.flatten(1).softmax(-1)
        token = torch.multinomial(probs, 1)
        total = total + probs.gather(1, token).squeeze(1).log()
    return total
""",
    # several columns
    """
def f(logits: torch.Tensor, target: torch.Tensor):
    return logits.gather(1, target.view(-1, 2))
""",
    # along the rows of a matrix
    """
def f(x: torch.Tensor, index: torch.Tensor):
    return x.gather(0, index.view(-1, 1))
""",
    # scores of each token, most likely
    """
def f(logps: torch.Tensor, tokens: torch.Tensor):
    return logps.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
""",
    # several columns, as topk finds them
    """
def f(scores: torch.Tensor, n: int):
    best = scores.topk(n, dim=1)[1]
    return scores.gather(1, best)
""",
    # nothing says that it is one column
    """
def f(x: torch.Tensor, order: torch.Tensor):
    return x.gather(1, order)
""",
    # some columns of the rows
    """
def f(x: torch.Tensor, index: torch.Tensor, n: int):
    index = index.view(-1)
    return x.gather(0, index.unsqueeze(-1).expand(-1, n))
""",
    # rows of each of a batch of images
    """
def f(x: torch.Tensor, index: torch.Tensor):
    b, h, w, c = x.shape
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, c))
""",
    # some columns of the rows of each in a batch
    """
def f(x: torch.Tensor, index: torch.Tensor):
    b, n, c = x.shape
    return x.reshape(b, n, 7).gather(1, index.unsqueeze(-1).expand(-1, -1, 4))
""",
    # along the columns of each in a batch
    """
def f(x: torch.Tensor, index: torch.Tensor):
    b, n, c = x.shape
    return x.gather(2, index.unsqueeze(1).expand(-1, n, -1))
""",
    # three dimensions
    """
def f(x: torch.Tensor, index: torch.Tensor):
    b, s, v = x.shape
    return x.gather(-1, index.unsqueeze(-1)).squeeze(-1)
""",
)

REWRITTEN = (
    # by einops, which says that the index has two dimensions
    Rewritten(
        """
from einops import repeat


def rows(x: torch.Tensor, index: torch.Tensor):
    index = repeat(index, "b n -> b n d", d=x.shape[-1])
    return x.gather(1, index)
""",
        """
from einops import repeat


def rows(x: torch.Tensor, index: torch.Tensor):
    starts = (
        torch.arange(index.size(0), device=index.device).unsqueeze(1)
        * x.size(1)
    )
    return (
        x.flatten(0, 1)
        .index_select(0, (index + starts).flatten())
        .reshape(*index.shape, x.size(2))
    )
""",
    ),
    Rewritten(
        """
def f(logit: torch.Tensor, target: torch.Tensor, eps: float):
    target = target.view(-1, 1)
    pt = logit.gather(1, target).view(-1) + eps
    return torch.log(pt)
""",
        """
def f(logit: torch.Tensor, target: torch.Tensor, eps: float):
    target = target.view(-1, 1)
    pt = (
        logit[
            torch.arange(target.size(0), device=target.device),
            target.squeeze(1),
        ]
        + eps
    )
    return torch.log(pt)
""",
    ),
    Rewritten(
        """
def f(alpha: torch.Tensor, target: torch.Tensor):
    return alpha.gather(0, target.view(-1))
""",
        """
def f(alpha: torch.Tensor, target: torch.Tensor):
    return alpha.index_select(0, target.view(-1))
""",
    ),
    Rewritten(
        """
def f(logits: torch.Tensor, target: torch.Tensor):
    return torch.gather(logits, dim=1, index=target.view(-1, 1))
""",
        """
def f(logits: torch.Tensor, target: torch.Tensor):
    index = target.view(-1, 1)
    return logits[
        torch.arange(index.size(0), device=index.device), index.squeeze(1)
    ].unsqueeze(1)
""",
    ),
    Rewritten(
        """
def f(pred: torch.Tensor, labels: torch.Tensor, eps: float):
    n, classes = pred.shape
    picked = pred.gather(1, labels.unsqueeze(1))
    return -(picked + eps).log()
""",
        """
def f(pred: torch.Tensor, labels: torch.Tensor, eps: float):
    n, classes = pred.shape
    picked = pred[
        torch.arange(labels.size(0), device=labels.device), labels
    ].unsqueeze(1)
    return -(picked + eps).log()
""",
    ),
    Rewritten(
        """
def f(x: torch.Tensor, index: torch.Tensor):
    n, d = x.shape
    return x.gather(0, index.unsqueeze(-1).expand(-1, d))
""",
        """
def f(x: torch.Tensor, index: torch.Tensor):
    return x.index_select(0, index)
""",
    ),
    Rewritten(
        """
def f(x: torch.Tensor, scores: torch.Tensor, n: int):
    b, length, width = x.shape
    kept = scores.topk(n, dim=1).indices
    return x.gather(1, kept.unsqueeze(-1).repeat(1, 1, width))
""",
        """
def f(x: torch.Tensor, scores: torch.Tensor, n: int):
    kept = scores.topk(n, dim=1).indices
    starts = (
        torch.arange(kept.size(0), device=kept.device).unsqueeze(1) * x.size(1)
    )
    return (
        x.flatten(0, 1)
        .index_select(0, (kept + starts).flatten())
        .reshape(*kept.shape, x.size(2))
    )
""",
    ),
    # the edges of each node to its neighbours
    Rewritten(
        """
def gather_edges(edges: torch.Tensor, index: torch.Tensor):
    rows = index.unsqueeze(-1).expand(-1, -1, -1, edges.size(-1))
    return torch.gather(edges, 2, rows)
""",
        """
def gather_edges(edges: torch.Tensor, index: torch.Tensor):
    first = (
        torch.arange(index.size(0), device=index.device).unsqueeze(1)
        * edges.size(1)
    )
    starts = (
        (first + torch.arange(index.size(1), device=index.device)).unsqueeze(2)
        * edges.size(2)
    )
    return (
        edges.flatten(0, 2)
        .index_select(0, (index + starts).flatten())
        .reshape(*index.shape, edges.size(3))
    )
""",
    ),
    # a column made by a view, and a width that is a setting
    Rewritten(
        """
class Sessions(nn.Module):
    def pick(self, hidden: torch.Tensor, index: torch.Tensor):
        rows = index.view(-1, index.size(1), 1).expand(-1, -1, self.width)
        return torch.gather(hidden, dim=1, index=rows)
""",
        """
class Sessions(nn.Module):
    def pick(self, hidden: torch.Tensor, index: torch.Tensor):
        starts = (
            torch.arange(index.size(0), device=index.device).unsqueeze(1)
            * hidden.size(1)
        )
        return (
            hidden[..., :self.width]
            .flatten(0, 1)
            .index_select(0, (index + starts).flatten())
            .reshape(*index.shape, self.width)
        )
""",
    ),
)
