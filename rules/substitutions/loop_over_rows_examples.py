"""Loops that become operators on all rows, and loops that must stay."""

from __future__ import annotations

from npufix.rules.substitution import Rewritten

_RAGGED = (
    """
class Pool(nn.Module):
    def forward(self, x: torch.Tensor, ends: torch.Tensor):
        means = []
        for i in range(len(ends) - 1):
            rows = slice(ends[i], ends[i + 1])
            means.append(x[rows].mean(0))
        return torch.stack(means)
""",
    """
class Pool(nn.Module):
    def forward(self, x: torch.Tensor, group: torch.Tensor):
        largest = []
        for g in group.unique():
            own = x[group == g]
            largest.append(own.max(dim=0).values)
        return torch.stack(largest)
""",
    """
class Vision(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ends: list):
        out = []
        for i in range(len(ends) - 1):
            start, end = ends[i], ends[i + 1]
            out.append(self.attend(q[start:end], k[start:end], v[start:end]))
        return torch.cat(out)
""",
    """
class Encoder(nn.Module):
    def forward(self, own: torch.Tensor, others: torch.Tensor):
        encoded = [self.encoder(others[:, i]) for i in range(others.shape[1])]
        return torch.stack([self.encoder(own)] + encoded, dim=1)
""",
    """
def add_ends(rows: torch.Tensor, last: int, padding: int):
    kept = [row[row != padding] for row in rows]
    kept = [torch.cat([row, row.new_full((1,), last)]) for row in kept]
    return nn.utils.rnn.pad_sequence(kept, batch_first=True, padding_value=padding)
""",
)
_SIZES = """
def pad_masks(feats: torch.Tensor, metas: list):
    masks = feats.new_ones((len(metas), feats.shape[2], feats.shape[3]))
    for i in range(len(metas)):
        h, w, _ = size_of(metas[i])
        masks[i, :h, :w] = 0
    return masks
"""

VALID = (
    # one row is read after another has been written, and an index is no mask
    """
def move(x: torch.Tensor, y: torch.Tensor, mask: torch.BoolTensor, n):
    for i in range(x.shape[0]):
        y[i, : n[i]] = x[i, mask[i]]
        x[i, : n[i]] = y[i, mask[i]]
    return x, y
""",
    # a list in each round is no number
    """
def f(x, n):
    orders = [list(order) for order in itertools.permutations(range(n))]
    return torch.stack([x[:, order] for order in orders])
""",
    # an index of the device would not be taken by a table of the host
    """
def f(losses: torch.Tensor, n: int):
    orders = torch.tensor(list(itertools.permutations(range(n))))
    return torch.stack([orders[best] for best in losses.argmin(dim=1)])
""",
    # parts of different lengths that are kept, or of which each is computed on conditions
    """
class Parts(nn.Module):
    def forward(self, x: torch.Tensor, group: torch.Tensor, ends: list, n: int):
        kept = [x[group == i] for i in range(n)]
        for i in range(n):
            part = x[ends[i] : ends[i + 1]]
            if part.sum() > 0:
                kept.append(part.max(0).values)
        return kept
""",
    # columns of heads that have different widths
    """
class Heads(nn.Module):
    def forward(self, logits: torch.Tensor, widths: list):
        start, found = 0, []
        for i in range(len(widths)):
            end = start + widths[i]
            found.append(logits[:, start:end].max(dim=-1).indices)
            start = end
        return found
""",
    # words of a list, by their first letter
    """
def parse(words: list, other):
    return [word[word != other] for word in words if word], [w[w != v] for w, v in words]
""",
    # the places of a mask: another number of them in each round
    """
def f(x: torch.Tensor, group: torch.Tensor, n: int):
    sums = torch.zeros((x.shape[0], n), device=x.device)
    for i in range(1, n + 1):
        at = torch.where(group == i)
        sums[:, i - 1] = x[:, at[0], at[1]].sum(dim=1)
    return sums
""",
    # two unknown tensors may have any dimensions
    # (and is ``start`` a number? there is no word that says so)
    """
def f(data, steps):
    at = torch.cat([data["x"] + data.start * t for t in range(steps)])
    return torch.cat([data["x"] + data["y"] * t for t in range(steps)]), at
""",
    """
def one_hot(columns, values):
    from scipy.sparse import dok_matrix

    rows = dok_matrix((len(values), columns))
    for i in range(values.shape[0]):
        rows[i, int(values[i, 0])] = 1
    return torch.tensor(rows.toarray())
""",
    # on the host: a table of a filter, an array
    """
def low_pass(shape, limit):
    mask = torch.zeros(shape)
    for t in range(shape[-2]):
        for h in range(shape[-1]):
            mask[..., t, h] = 1 if t * t + h * h <= limit else 0
    return mask
""",
    # the sum so far is needed, and a number is added
    """
def f(x: torch.Tensor):
    total = torch.zeros(4)
    y = torch.zeros_like(x)
    for i in range(x.shape[0]):
        y[i] = total
        total = total + x[i]
    return y
""",
    """
def f(x: torch.Tensor):
    total = 0
    for i in range(x.shape[0]):
        total += i
    return x * total
""",
    # a round needs the one before it
    """
def f(x: torch.Tensor, decay: float):
    y = torch.zeros_like(x)
    for t in range(1, x.shape[0]):
        y[t] = y[t - 1] * decay + x[t]
    return y
""",
    """
def f(x: torch.Tensor, h: torch.Tensor):
    outs = []
    for t in range(x.shape[1]):
        h = torch.tanh(x[:, t] + h)
        outs.append(h)
    return torch.stack(outs, 1)
""",
    # rows of different lengths that are kept
    """
def f(x: torch.Tensor, lengths):
    return torch.cat([x[i, : lengths[i]] for i in range(len(lengths))])
""",
    # weights of its own in each round
    """
class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

    def forward(self, x: torch.Tensor):
        return torch.stack([self.heads[i](x[:, i]) for i in range(3)], dim=1)
""",
    # statistics of the rows of one round; random numbers
    """
class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor):
        kept = torch.stack([self.drop(x[:, i]) for i in range(x.shape[1])], dim=1)
        return kept, torch.stack([self.net(x[:, i]) for i in range(x.shape[1])], dim=1)
""",
    """
def f(x: torch.Tensor):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i] + torch.randn(x.shape[1])
    return out
""",
    # it ends early
    """
def f(x: torch.Tensor, stop: list):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        if stop[i]:
            break
        out[i] = x[i] * 2
    return out
""",
    # what it reads is what it writes, turned
    """
def f(x: torch.Tensor):
    turned = x.transpose(0, 1)
    for i in range(x.shape[0]):
        x[i] = turned[i] + 1
    return x
""",
    # somebody counts along; somebody reads what the last round left
    """
def f(x: torch.Tensor, log: list):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        out[i] = x[i].relu()
        log.append(i)
    return out
""",
    """
def f(x: torch.Tensor):
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        row = x[i] * 2
        out[i] = row
    return out, row
""",
    # a list, whose elements may have any shape
    """
def f(names: list, values: list):
    return torch.stack([values[i] * 2 for i in range(len(names))])
""",
    # a number in double precision times one in single precision promotes, a vector as well
    """
def f(x: torch.Tensor, scale: torch.Tensor):
    b, d = x.shape
    (n,) = scale.shape
    return torch.stack([x[i] * scale[i] for i in range(b)])
""",
)

REWRITTEN = (
    Rewritten(
        """
def f(x: torch.Tensor, lengths: torch.Tensor):
    batch, steps = x.shape
    mask = torch.zeros(batch, steps, dtype=torch.bool, device=x.device)
    for b in range(batch):
        mask[b, :lengths[b]] = True
    return x.masked_fill(mask, 0.0)
""",
        """
def f(x: torch.Tensor, lengths: torch.Tensor):
    batch, steps = x.shape
    mask = torch.zeros(batch, steps, dtype=torch.bool, device=x.device)
    positions = torch.arange(mask.shape[1], device=mask.device)
    mask.masked_fill_(
        positions < lengths[:batch].to(mask.device).reshape(-1, 1), True
    )
    return x.masked_fill(mask, 0.0)
""",
    ),
    Rewritten(
        """
class Graph(nn.Module):
    def forward(self, states: torch.Tensor, lengths: list):
        b, n, _ = states.shape
        mask = torch.zeros([b, n, n], device=states.device)
        for i in range(b):
            assert lengths[i] > 0
            mask[i, :lengths[i], :lengths[i]].fill_(1)  # all that there is
        return mask
""",
        """
class Graph(nn.Module):
    def forward(self, states: torch.Tensor, lengths: list):
        b, n, _ = states.shape
        mask = torch.zeros([b, n, n], device=states.device)
        # all that there is
        for i in range(b):
            assert lengths[i] > 0
        positions = torch.arange(mask.shape[1], device=mask.device)
        lengths_tensor = torch.as_tensor(lengths[:b], device=mask.device)
        mask.masked_fill_(
            (positions.unsqueeze(1) < lengths_tensor.reshape(-1, 1, 1))
            & (
                torch.arange(mask.shape[2], device=mask.device)
                < lengths_tensor.reshape(-1, 1, 1)
            ),
            1,
        )
        return mask
""",
    ),
    Rewritten(
        """
class Encoder(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))

    def forward(self, agents: torch.Tensor):
        b, n, t, d = agents.shape
        return torch.stack([self.net(agents[:, i]) for i in range(n)], dim=1)
""",
        """
class Encoder(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))

    def forward(self, agents: torch.Tensor):
        b, n, t, d = agents.shape
        return self.net(agents)
""",
    ),
    Rewritten(
        """
def f(start: torch.Tensor, end: torch.Tensor, count: int):
    points = torch.zeros((count, 2), dtype=start.dtype, device=start.device)
    for i in range(1, count + 1):
        ratio = i / (count + 1)
        points[i - 1] = (1 - ratio) * start + ratio * end
    return points
""",
        """
def f(start: torch.Tensor, end: torch.Tensor, count: int):
    points = torch.zeros((count, 2), dtype=start.dtype, device=start.device)
    rows = torch.arange(1, count + 1, dtype=start.dtype, device=start.device)
    ratio = rows.unsqueeze(1) / (count + 1)
    points[:] = (1 - ratio) * start + ratio * end
    return points
""",
    ),
    Rewritten(
        """
def f(q: torch.Tensor, cu_seqlens: torch.Tensor):
    mask = torch.full((q.shape[0], q.shape[0]), -1e4, dtype=q.dtype, device=q.device)
    for i in range(1, len(cu_seqlens)):
        mask[cu_seqlens[i - 1] : cu_seqlens[i], cu_seqlens[i - 1] : cu_seqlens[i]] = 0
    return mask
""",
        """
def f(q: torch.Tensor, cu_seqlens: torch.Tensor):
    mask = torch.full((q.shape[0], q.shape[0]), -1e4, dtype=q.dtype, device=q.device)
    borders = torch.as_tensor(cu_seqlens, device=mask.device)
    places = torch.arange(max(mask.shape[-2:]), device=mask.device)
    piece = torch.bucketize(places, borders, right=True)
    in_piece = (piece > 0) & (piece < borders.shape[0])
    mask.masked_fill_(
        (piece[:mask.shape[-2], None] == piece[:mask.shape[-1]])
        & in_piece[:mask.shape[-1]],
        0,
    )
    return mask
""",
    ),
    Rewritten(
        """
def f(boxes: torch.Tensor, wanted: torch.Tensor):
    loss = boxes.new_zeros(1)
    for i in range(boxes.shape[0]):
        error = (boxes[i] - wanted[i]).abs()
        loss = loss + error.sum()
    return loss
""",
        """
def f(boxes: torch.Tensor, wanted: torch.Tensor):
    loss = boxes.new_zeros(1)
    error = (boxes - wanted[:boxes.shape[0]]).abs()
    loss = loss + error.unsqueeze(-1).flatten(1).sum(dim=1).sum(0)
    return loss
""",
    ),
    # one image of each camera at a time
    Rewritten(
        """
class Neck(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor):
        b, n, c, h, w = x.shape
        outs = []
        for i in range(n):
            outs.append(F.relu(self.conv(x[:, i])))
        return torch.stack(outs, dim=1)
""",
        """
class Neck(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor):
        b, n, c, h, w = x.shape
        return F.relu(self.conv(x.flatten(0, 1)).unflatten(0, x.shape[:2]))
""",
    ),
    # batches out of a dictionary, each moved by a count
    Rewritten(
        """
class Encoder(nn.Module):
    def forward(self, data):
        at = torch.cat([data["agent"] + data.num_graphs * t for t in range(self.steps)])
        return F.one_hot(at, 100)
""",
        """
class Encoder(nn.Module):
    def forward(self, data):
        agent = data["agent"]
        rows = torch.arange(self.steps, dtype=agent.dtype, device=agent.device)
        at = (agent + (data.num_graphs * rows).view(-1, *[1] * agent.dim())).flatten(
            0, 1
        )
        return F.one_hot(at, 100)
""",
    ),
    # elements that masks and lengths pick of each row, to be moved
    Rewritten(
        """
def pack(x: torch.Tensor, mask: torch.BoolTensor):
    n, b = mask.sum(dim=1), x.shape[0]
    out = x.new_zeros(b, 9)
    for i in range(b):
        out[i, : n[i]] = x[i, mask[i]]
    return out
""",
        """
def pack(x: torch.Tensor, mask: torch.BoolTensor):
    n, b = mask.sum(dim=1), x.shape[0]
    out = x.new_zeros(b, 9)
    out[torch.arange(out.shape[1], device=out.device) < n[:b].reshape(-1, 1)] = x[mask[:b]]
    return out
""",
    ),
    # the first elements of rows, copied to another tensor
    Rewritten(
        """
class Clip(nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor):
        out = x.new_zeros(x.size(0), 12, x.size(2))
        for i, length in enumerate(lengths):
            out[i, :length] = x[i, :length]
        return out
""",
        """
class Clip(nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor):
        out = x.new_zeros(x.size(0), 12, x.size(2))
        positions = torch.arange(out.shape[1], device=out.device)
        out[:lengths.shape[0]] = torch.where(
            positions.unsqueeze(1) < lengths.to(out.device).reshape(-1, 1, 1),
            x[:lengths.shape[0], :out.shape[1]],
            out[:lengths.shape[0]],
        )
        return out
""",
    ),
    # documents in one sequence, one range after the other
    Rewritten(
        """
def keep_apart(x: torch.Tensor, lengths: list):
    mask, at = x.new_ones(x.shape[0], 1), 2
    for n in lengths:
        mask[at + 1 : at + n] = 0
        at += n
    return mask
""",
        """
def keep_apart(x: torch.Tensor, lengths: list):
    mask, at = x.new_ones(x.shape[0], 1), 2
    positions = torch.arange(mask.shape[0], device=mask.device)
    n = torch.as_tensor(lengths, device=mask.device)[:, None]
    at = at + torch.cumsum(n, 0) - n
    in_range = (positions >= at + 1) & (positions < at + n)
    mask.masked_fill_(in_range.any(0)[:, None], 0)
    return mask
""",
    ),
    # told, not written: sizes that another function makes
    Rewritten(*[_SIZES] * 2),
    *(Rewritten(text, text) for text in _RAGGED),
)
