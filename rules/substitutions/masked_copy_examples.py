"""What the rule about copies under a mask leaves alone, and what it writes."""

from npufix.rules.substitution import Rewritten

VALID = (
    # the values were picked with another mask
    """
def f(x: torch.Tensor, y: torch.Tensor):
    y = y.view_as(x)
    x[x > 0] = y[x > 1]
""",
    # a quotient of the chosen elements only
    """
def f(x: torch.Tensor, y: torch.Tensor):
    mask = y != 0
    x[mask] = 1 / y[mask]
""",
    # an index may name an element twice
    """
def f(x: torch.Tensor, y: torch.Tensor, index: torch.Tensor):
    x[index] = y[index]
    x[index.long()] += 1
""",
    # the factor is a tensor
    """
def f(x: torch.Tensor, scale: torch.Tensor):
    x[x > 0] *= scale
""",
    # computed with what only the chosen elements have, or through another mask
    """
def f(x: torch.Tensor, y: torch.Tensor, rows: torch.Tensor):
    y = y.view_as(x)
    x[x > 0] = y[x > 0] + rows
    x[x > 1] = 2 - y[x > 0]
    x[x > 2] = -y[x > 0]
""",
    # a column for each, and a mask of a matrix
    """
def f(x: torch.Tensor, y: torch.Tensor, at: torch.Tensor):
    mask = y.view(-1) > 0
    x[mask, at] = y[mask]
    x[y.view(2, -1) > 0, 0] = y[y.view(2, -1) > 0]
""",
    # a row for each place, and several tokens
    """
class Blocks(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.tokens = nn.Parameter(torch.zeros(3, dim))

    def forward(self, x: torch.Tensor, y: torch.Tensor):
        far = x.norm(dim=-1) > 1
        x[far] = self.tokens
        x[far] = self.project(y[far])
        x[far] = y.view(-1, x.shape[-1])
        return x
""",
    # rows of what has one more dimension
    """
def f(x: torch.Tensor, y: torch.Tensor):
    rows, y = x.sum(-1) > 0, x.unsqueeze(1)
    x[rows] = y[rows]
    x[rows] = x.sum(-1)[rows]
""",
)
REWRITTEN = (
    Rewritten(
        """
class Blocks(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.pad_token = nn.Parameter(torch.zeros(1, dim))

    def forward(self, x: torch.Tensor):
        padded = x.abs().sum(-1) == 0
        x[padded] = self.pad_token
        return x
""",
        """
class Blocks(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.pad_token = nn.Parameter(torch.zeros(1, dim))

    def forward(self, x: torch.Tensor):
        padded = x.abs().sum(-1) == 0
        x.copy_(torch.where(padded.unsqueeze(-1), self.pad_token, x))
        return x
""",
    ),
    Rewritten(
        """
def keep(x: torch.Tensor):
    rows, y = x.sum(-1) > 0, x * 2
    x[rows] = y[rows]
    return x
""",
        """
def keep(x: torch.Tensor):
    rows, y = x.sum(-1) > 0, x * 2
    x.copy_(torch.where(rows.unsqueeze(-1), y, x))
    return x
""",
    ),
    # a row at each place, as wide as the others are, and a mask of any number of dimensions
    Rewritten(
        """
def keep(x: torch.Tensor, y: torch.Tensor):
    rows = x.sum(-1) > 0
    x[rows] = y[rows]
    return x
""",
        """
def keep(x: torch.Tensor, y: torch.Tensor):
    rows = x.sum(-1) > 0
    x.copy_(torch.where(rows.unsqueeze(-1), y, x))
    return x
""",
    ),
    Rewritten(
        """
def remember(memory: torch.Tensor, new: torch.Tensor, at: torch.Tensor, i: int):
    memory[at == i] = new[at == i].float()
    return memory
""",
        """
def remember(memory: torch.Tensor, new: torch.Tensor, at: torch.Tensor, i: int):
    mask = at == i
    chosen = mask.view(mask.shape + (1,) * (memory.dim() - mask.dim()))
    memory.copy_(torch.where(chosen, new.to(torch.float32), memory))
    return memory
""",
    ),
    # one token for all places
    Rewritten(
        """
class Masked(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dim))

    def forward(self, x: torch.Tensor, mask: torch.BoolTensor):
        b, n, c = x.shape
        x[mask] = self.mask_token
        return x
""",
        """
class Masked(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.mask_token = nn.Parameter(torch.zeros(1, 1, dim))

    def forward(self, x: torch.Tensor, mask: torch.BoolTensor):
        b, n, c = x.shape
        x.copy_(torch.where(mask.unsqueeze(-1), self.mask_token, x))
        return x
""",
    ),
    Rewritten(
        """
def mark(x: torch.Tensor, token: torch.Tensor):
    far, token = x.norm(dim=-1) > 1, token.view(-1)
    x[far] = token.expand(int(far.sum()), -1)
    return x
""",
        """
def mark(x: torch.Tensor, token: torch.Tensor):
    far, token = x.norm(dim=-1) > 1, token.view(-1)
    x.copy_(torch.where(far.unsqueeze(-1), token, x))
    return x
""",
    ),
    Rewritten(
        """
def f(labels: torch.Tensor, scores: torch.Tensor, best: torch.Tensor):
    labels, best = labels.view(-1), best.view(-1)
    scores = scores.view(-1)
    chosen = torch.nonzero(scores > 0.5).reshape(-1)
    labels[chosen] = best[scores > 0.5]
    return labels
""",
        """
def f(labels: torch.Tensor, scores: torch.Tensor, best: torch.Tensor):
    labels, best = labels.view(-1), best.view(-1)
    scores = scores.view(-1)
    labels.copy_(torch.where(scores > 0.5, best, labels))
    return labels
""",
    ),
    Rewritten(
        """
def accept(out: torch.Tensor, draft: torch.Tensor, bonus: torch.Tensor):
    out, draft, bonus = out.view(-1, 2), draft.view(-1), bonus.view(-1)
    accepted = draft == 0
    out[accepted, 1] = bonus[accepted]
    return out
""",
        """
def accept(out: torch.Tensor, draft: torch.Tensor, bonus: torch.Tensor):
    out, draft, bonus = out.view(-1, 2), draft.view(-1), bonus.view(-1)
    accepted = draft == 0
    out[:, 1].copy_(torch.where(accepted, bonus, out[:, 1]))
    return out
""",
    ),
    Rewritten(
        """
def f(x: torch.Tensor):
    x[x < 0] *= 0.5
""",
        """
def f(x: torch.Tensor):
    x.copy_(torch.where(x < 0, x * 0.5, x))
""",
    ),
    Rewritten(
        """
def angle(a: torch.Tensor, b: torch.Tensor):
    theta = torch.atan2(b, a)
    theta[theta < 0] = theta[theta < 0] + 2 * math.pi
    return theta
""",
        """
def angle(a: torch.Tensor, b: torch.Tensor):
    theta = torch.atan2(b, a)
    theta.copy_(torch.where(theta < 0, theta + 2 * math.pi, theta))
    return theta
""",
    ),
    Rewritten(
        """
def signed(x: torch.Tensor, y: torch.Tensor):
    y = y.view_as(x)
    x[y < 0] = -x[y < 0]
""",
        """
def signed(x: torch.Tensor, y: torch.Tensor):
    y = y.view_as(x)
    x.copy_(torch.where(y < 0, -x, x))
""",
    ),
)
