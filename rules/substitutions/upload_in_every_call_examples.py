"""Examples of the rule upload-in-every-call: batches of a loader, numbers that are read back."""

from __future__ import annotations

from npufix.rules.substitution import Rewritten

_READ = """
class Loss(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor):
        n = torch.tensor([mask.sum().item(), 1.0], device=x.device)
        return x.sum() / n[0]
"""
CONSTANT = """
class Head(nn.Module):
    def forward(self, x: torch.Tensor):
        scale = torch.tensor([0.1, 0.1, 0.2, 0.2], device=x.device)
        return x * scale
"""
RETURNED = """
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.depth = 2

    def forward(self, x: torch.Tensor):
        return torch.tensor([0.1, 0.2], device=x.device)
"""
IN_LOOP = """
class Encoder(nn.Module):
    def forward(self, lines, device):
        found = []
        for line in lines:
            found.append(torch.tensor(line, device=device))
        return nn.utils.rnn.pad_sequence(found)
"""

NO_BUFFER = """
class Normalise(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = torch.tensor([0.485, 0.456, 0.406])

    def forward(self, x):
        return x - self.mean.to(x.device).view(1, 3, 1, 1)
"""
SIZES = """
class Encoder(nn.Module):
    def forward(self, levels):
        shapes = []
        for level in levels:
            shapes.append(level.shape[-2:])
        return torch.as_tensor(shapes, device=levels[0].device)
"""

DRAWN = """
class Aggregation(nn.Module):
    def forward(self, x: torch.Tensor):
        mask = torch.rand(x.shape[0], 1)
        mask = mask.to(device=x.device, dtype=x.dtype)
        return x * (mask > 0.1)
"""
_COPIES = """
class Coder:
    def decode_single(self, boxes: torch.Tensor):
        self.limits = torch.tensor(self.limits, device=boxes.device)
        self.limits[0] += 1
        return boxes.clamp(self.limits[0], self.limits[1])
"""
VALID = (
    # a list that is changed, and what training changes, are no settings
    """
class Scale(nn.Module):
    def __init__(self, n, factors):
        super().__init__()
        self.n = n
        self.factors = factors
        self.gain = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor):
        self.factors.append(1.0)
        return x * torch.tensor(self.gain, device=x.device), self.n
""",
    # several numbers in a list of one
    """
class Mask(nn.Module):
    def forward(self, x: torch.Tensor, n: int):
        kinds = [[0] * n + [1] * 2]
        for row in x:
            row += torch.tensor([[0] * n + [1] * 2], device=x.device)
        return x, torch.tensor(kinds, device=x.device)
""",
    # a dtype, what is computed on the device, and one that somebody has thought of
    """
def train_one_epoch(model, loader, optimizer, device):
    for images, labels in loader:
        images = images.to(torch.float32)
        hidden = model(images)
        hidden = hidden.to(device)
        labels = labels.to(device, non_blocking=True)
        loss = F.mse_loss(hidden, labels)
        loss.backward()
        optimizer.step()
""",
)
REWRITTEN = (
    # what ``__init__`` is given; ``forward`` follows at once
    Rewritten(
        """
class Scaled(nn.Module):
    def __init__(self, factors):
        super().__init__()
        self.factors = factors
    def forward(self, x: torch.Tensor):
        factors = torch.tensor(self.factors, dtype=torch.float32, device=x.device)
        return x * factors
""",
        """
class Scaled(nn.Module):
    def __init__(self, factors):
        super().__init__()
        self.factors = factors
        self.register_buffer(
            "factors_",
            torch.tensor(self.factors, dtype=torch.float32),
            persistent=False,
        )
    def forward(self, x: torch.Tensor):
        factors = self.factors_
        return x * factors
""",
    ),
    # cast to the dtype of another one, or moved by name
    Rewritten(
        """
class Head(nn.Module):
    def __init__(self, code_weights):
        super().__init__()
        self.code_weights = code_weights

    def loss(self, x: torch.Tensor):
        return (x * x.new_tensor(self.code_weights)).sum()
""",
        """
class Head(nn.Module):
    def __init__(self, code_weights):
        super().__init__()
        self.code_weights = code_weights
        self.register_buffer(
            "code_weights_", torch.tensor(self.code_weights), persistent=False
        )

    def loss(self, x: torch.Tensor):
        return (x * self.code_weights_.to(x.dtype)).sum()
""",
    ),
    Rewritten(
        """
class Head(nn.Module):
    def __init__(self, factors=None):
        super().__init__()
        self.factors = factors

    def decode(self, x: torch.Tensor):
        limits = torch.tensor([0.5, 1.5, 9.0]).to(x.device).float()
        return torch.minimum(x, limits) * (self.factors or 1)
""",
        """
class Head(nn.Module):
    def __init__(self, factors=None):
        super().__init__()
        self.factors = factors
        self.register_buffer("limits", torch.tensor([0.5, 1.5, 9.0]), persistent=False)

    def decode(self, x: torch.Tensor):
        limits = self.limits.to(x.device).float()
        return torch.minimum(x, limits) * (self.factors or 1)
""",
    ),
    Rewritten(_READ, _READ),
    # a list that counts, in a branch that a setting chooses
    Rewritten(
        """
class BoxLossComputation:
    def __call__(self, boxes, labels, device):
        columns = labels[:, None]
        if self.agnostic:
            columns = torch.tensor([4, 6, 8], device=device)
        return boxes[:, columns]
""",
        """
class BoxLossComputation:
    def __call__(self, boxes, labels, device):
        columns = labels[:, None]
        if self.agnostic:
            columns = torch.arange(4, 10, 2, device=device)
        return boxes[:, columns]
""",
    ),
    # a device by another name
    Rewritten(
        """
def losses(x: torch.Tensor):
    where = x.device
    return x.max(torch.tensor(0.1).to(where))
""",
        """
def losses(x: torch.Tensor):
    where = x.device
    return x.max(torch.full((), 0.1, device=where))
""",
    ),
    # a setting of an optimizer, and a list of one number for whatever tensor it is
    Rewritten(
        """
class Lamb(torch.optim.Optimizer):
    def step(self, x: torch.Tensor):
        return torch.tensor(self.defaults["most"], device=x.device) * x
""",
        """
class Lamb(torch.optim.Optimizer):
    def step(self, x: torch.Tensor):
        return torch.full((), self.defaults["most"], device=x.device) * x
""",
    ),
    Rewritten(
        """
def losses(x, y):
    return x.max(torch.tensor([0.1] * 3).type_as(y))
""",
        """
def losses(x, y):
    return x.max(torch.full((3,), 0.1, dtype=y.dtype, device=y.device))
""",
    ),
    # numbers that are moved and cast in one go
    Rewritten(
        """
def losses(x: torch.Tensor, y: torch.Tensor):
    return x.max(torch.tensor(0.1).to(dtype=y.dtype, device=x.device))
""",
        """
def losses(x: torch.Tensor, y: torch.Tensor):
    return x.max(torch.full((), 0.1, dtype=y.dtype, device=x.device))
""",
    ),
    Rewritten(
        """
def losses(x: torch.Tensor, y: torch.Tensor):
    return x.max(torch.tensor(0.1).to(y))
""",
        """
def losses(x: torch.Tensor, y: torch.Tensor):
    return x.max(torch.full((), 0.1, dtype=y.dtype, device=y.device))
""",
    ),
    Rewritten(
        """
class Loss(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor):
        n = torch.tensor([mask.sum().item()], dtype=torch.float32, device=mask.device)
        return x.sum() / n
""",
        """
class Loss(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor):
        n = mask.sum().detach().reshape(1).to(torch.float32)
        return x.sum() / n
""",
    ),
    Rewritten(
        """
def train_one_epoch(model, loader, optimizer, device):
    for images, labels in loader:
        images = images.to(device)
        labels = labels.cuda()
        loss = F.mse_loss(model(images), labels)
        loss.backward()
        optimizer.step()
""",
        """
def train_one_epoch(model, loader, optimizer, device):
    for images, labels in loader:
        images = images.to(device, non_blocking=True)
        labels = labels.cuda(non_blocking=True)
        loss = F.mse_loss(model(images), labels)
        loss.backward()
        optimizer.step()
""",
    ),
    # an attribute that is a tensor from the first call on
    Rewritten(
        """
class Coder:
    def decode_single(self, boxes: torch.Tensor):
        if self.limits is not None:
            self.limits = torch.tensor(self.limits, device=boxes.device)
            boxes = boxes.clamp(self.limits[0], self.limits[1])
        return boxes
""",
        """
class Coder:
    def decode_single(self, boxes: torch.Tensor):
        if self.limits is not None:
            self.limits = torch.as_tensor(self.limits, device=boxes.device)
            boxes = boxes.clamp(self.limits[0], self.limits[1])
        return boxes
""",
    ),
    # each call writes into its own copy
    Rewritten(_COPIES, _COPIES),
    Rewritten(
        """
class Context(nn.Module):
    def __init__(self, embed):
        super().__init__()
        self.embed = embed

    def forward(self, x: torch.Tensor):
        query = torch.LongTensor([[1, 2]]).to(x.device).repeat(x.size(0), 1)
        return torch.cat((self.embed(query), x), dim=1)
""",
        """
class Context(nn.Module):
    def __init__(self, embed):
        super().__init__()
        self.embed = embed
        self.register_buffer("query", torch.LongTensor([[1, 2]]), persistent=False)

    def forward(self, x: torch.Tensor):
        query = self.query.to(x.device).repeat(x.size(0), 1)
        return torch.cat((self.embed(query), x), dim=1)
""",
    ),
    Rewritten(
        """
class Ratios(nn.Module):
    def forward(self, x: torch.Tensor, height: int):
        heights = torch.tensor([height for _ in range(x.shape[0])], device=x.device)
        return x.sum(1) / heights
""",
        """
class Ratios(nn.Module):
    def forward(self, x: torch.Tensor, height: int):
        heights = torch.full((x.shape[0],), height, device=x.device)
        return x.sum(1) / heights
""",
    ),
    Rewritten(
        """
def add_blank(labels: torch.Tensor, blank: int, ignored: int) -> torch.Tensor:
    first = torch.tensor([blank], dtype=torch.long, device=labels.device)
    out = torch.cat([first.repeat(labels.size(0)).unsqueeze(1), labels], dim=1)
    return torch.where(out == ignored, blank, out)
""",
        """
def add_blank(labels: torch.Tensor, blank: int, ignored: int) -> torch.Tensor:
    first = torch.full((1,), blank, dtype=torch.long, device=labels.device)
    out = torch.cat([first.repeat(labels.size(0)).unsqueeze(1), labels], dim=1)
    return torch.where(out == ignored, blank, out)
""",
    ),
)
