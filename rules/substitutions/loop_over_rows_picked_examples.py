"""Examples of rule loop-over-rows: rows that are added to, or repeated, as tensors say."""

from __future__ import annotations

from npufix.rules.substitution import Rewritten

PICKED_VALID = (
    # what is read in between, what is not added, and what a row decides
    """
def shares(x: torch.Tensor, y: torch.Tensor, n: int):
    out = torch.zeros(n, 4)
    for i in range(x.shape[0]):
        out[x[i]] += y[i, 0] / out.sum()
    return out
""",
    """
def products(x: torch.Tensor, y: torch.Tensor, n: int):
    out = torch.ones(n)
    for i in range(x.shape[0]):
        out[x[i]] *= y[i]
    return out
""",
    """
def running(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, n: int):
    out = torch.ones(n)
    for i in range(x.shape[0]):
        out[x[i]] += y[i]
        z[i] = out[x[i]]
    return out
""",
    # pieces that spare memory, and an array of NumPy that the function around it imports
    """
def entropy_loss(x: torch.Tensor, chunk_size: int):
    parts = []
    for part in x.split(chunk_size, dim=0):
        parts.append(-(part.softmax(-1) * part.log_softmax(-1)).sum(-1))
    return torch.cat(parts)
""",
    """
def compute_loss(rows, n, m, device):
    import numpy as np

    def pad(values):
        out = np.full((n, m), -1.0, dtype=np.float32)
        for i, row in enumerate(values):
            if row:
                out[i, : len(row)] = np.array(row)
        return torch.from_numpy(out).to(device)

    return pad(rows)
""",
    # lists of rows, of several lengths
    """
def pool(h: torch.Tensor, ends: torch.Tensor):
    rows = [list(range(ends[0]))]
    for i in range(2, len(ends), 2):
        rows.append(list(range(ends[i - 1], ends[i])))
    return torch.cat([h[i,].sum(0, keepdim=True) for i in rows])
""",
    # the next piece, which another round writes
    """
def follow(x: torch.Tensor, n: int, groups: int):
    for i in range(groups):
        x[:, i * n : (i + 1) * n] = x[:, (i + 1) * n : (i + 2) * n] * 2
    return x
""",
    # each matrix as often as a number says, by views that could be of other shapes
    """
def wide(x: torch.Tensor, counts: list):
    x = x.view(-1, 3, 4, 2)
    return torch.cat([x[i].expand(n, -1, -1) for i, n in enumerate(counts)])
""",
)
PICKED = (
    # pieces that are computed of themselves
    Rewritten(
        """
def normalize(logits: torch.Tensor, n: int, pieces: int):
    for i in range(pieces):
        logits[:, n * i : n * (i + 1)] = logits[:, n * i : n * (i + 1)].softmax(dim=1)
    return logits
""",
        """
def normalize(logits: torch.Tensor, n: int, pieces: int):
    logits[:, :pieces * n].unflatten(1, (pieces, n))[:] = (
        logits[:, :pieces * n].unflatten(1, (pieces, n)).softmax(dim=2)
    )
    return logits
""",
    ),
    Rewritten(
        """
def count(classes: torch.Tensor, n: int):
    out = torch.zeros(n, device=classes.device)
    for c in classes:
        out[int(c)] += 1
    return out
""",
        """
def count(classes: torch.Tensor, n: int):
    out = torch.zeros(n, device=classes.device)
    out.index_put_(
        (classes.long(),),
        torch.full((), 1, dtype=out.dtype, device=out.device),
        accumulate=True,
    )
    return out
""",
    ),
    Rewritten(
        """
def gather(place: torch.Tensor, x: torch.Tensor, n: int):
    out = torch.zeros(n)
    for i, c in zip(place, x):
        out[i] -= c
    return out
""",
        """
def gather(place: torch.Tensor, x: torch.Tensor, n: int):
    out = torch.zeros(n)
    out.index_put_((place.to(out.device),), (-x).to(out), accumulate=True)
    return out
""",
    ),
    Rewritten(
        """
def spread(poses: torch.Tensor, counts: list, views: int):
    poses = poses.view(views, 1, 4, 4)
    return torch.cat([poses[i].repeat(n, 1, 1) for i, n in enumerate(counts)])
""",
        """
def spread(poses: torch.Tensor, counts: list, views: int):
    poses = poses.view(views, 1, 4, 4)
    return (
        poses[:len(counts)]
        .repeat_interleave(torch.as_tensor(counts, device=poses.device), dim=0)
        .flatten(0, 1)
    )
""",
    ),
    Rewritten(
        """
def spread(poses: torch.Tensor, counts: list):
    poses = poses.view(-1, 3, 4)
    return torch.cat([poses[i][None].repeat(n, 1, 1) for i, n in enumerate(counts)])
""",
        """
def spread(poses: torch.Tensor, counts: list):
    poses = poses.view(-1, 3, 4)
    return poses[:len(counts)].repeat_interleave(
        torch.as_tensor(counts, device=poses.device), dim=0
    )
""",
    ),
    # as many of the cheapest of each row as it may have
    Rewritten(
        """
def compute_targets(cost: torch.Tensor, counts: torch.Tensor):
    n, _ = cost.shape
    chosen = torch.zeros_like(cost, dtype=torch.uint8)
    for i in range(n):
        _, at = torch.topk(cost[i], k=counts[i], largest=False)
        chosen[i][at] = 1
    return chosen
""",
        """
def compute_targets(cost: torch.Tensor, counts: torch.Tensor):
    n, _ = cost.shape
    chosen = torch.zeros_like(cost, dtype=torch.uint8)
    counts_ = counts[:n].tolist()
    at = torch.topk(
        cost, max(counts_, default=0), dim=1, largest=False
    ).indices
    places = torch.arange(at.shape[1], device=cost.device)
    chosen.scatter_(
        1,
        at,
        chosen.gather(1, at).masked_fill(
            places < torch.as_tensor(counts_, device=cost.device).unsqueeze(1),
            1,
        ),
    )
    return chosen
""",
    ),
)
