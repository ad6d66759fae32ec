"""A value that every round of a loop computes anew, though nothing that it reads changes.

What: masks, index lists, positions, tables and constant tensors that a loop over layers, steps or
batches computes in each round, in code that runs in every step; statements, and operands inside of
them (``x - torch.ones(n)``).

Why it is slow on the NPU: each round launches the same kernels again, and waits again where one of
them has a result whose shape the host must know. Where a step has hundreds of small kernels, the
launches take longer than the kernels.

Safety: the dataflow shows that nothing which the value reads is bound or written to in the loop,
that computing it changes nothing and draws no random number, that it is bound only there, not kept
in a list and not written to. Calls that get it, or what it is computed from, might write into it
(``not-written-to``); where it reads the shape or device of what the loop computes, these must stay
the same (``same-shapes``). It is computed as well where the loop has no round. What it takes in
memory it takes for the whole loop, not once more.

References: vllm-ascend #1890 (cosines of every layer once); MindSpeed-MM (mask of a balancing loss,
-200 ms a step).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Site, Substitution

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def again(rounds: int, x: Tensor, mask: Tensor) -> Tensor:
    """Make the weights in every round."""
    for _ in range(rounds):
        weight = torch.where(mask, 2.0, 0.5)[:, None]
        x = x * weight + 1
    return x


def once(rounds: int, x: Tensor, mask: Tensor) -> Tensor:
    """Make them before."""
    weight = torch.where(mask, 2.0, 0.5)[:, None]
    for _ in range(rounds):
        x = x * weight + 1
    return x


def inputs(draw: Draw) -> dict[str, Any]:
    """Return a number of rounds, also none, a matrix and a mask of its rows."""
    import torch

    rows = draw.integer(1, 4)
    return {
        "rounds": draw.integer(0, 3),
        "x": draw.floats(rows, 3, dtype=torch.float32),
        "mask": draw.booleans(rows),
    }


def _unknown(_site: Site) -> bool | None:
    return None  # the search has looked at every call of the loop


NOT_WRITTEN_TO = Condition(
    "not-written-to",
    "no call in the loop writes into the value, or into what it is computed from",
    _unknown,
)

SAME_SHAPES = Condition(
    "same-shapes",
    "the loop leaves shape, device and dtype of what it computes as they are",
    _unknown,
)

RULE = Substitution(
    id="NPU216",
    name="computed-in-every-round",
    summary="a value that each round of a loop computes anew, though nothing it reads changes",
    table="affinity",
    forms=(Form(again, once, inputs, (NOT_WRITTEN_TO, SAME_SHAPES)),),
    search="invariants",
    replaces=(),
    becomes=(),
    passes=(0, 0),
    requires="torch_npu>=2.1",
    valid=(
        # without a round it is what it was before
        """
class Loss(nn.Module):
    def forward(self, pred: torch.Tensor, targets):
        odds = pred.relu()
        found = []
        for target in targets:
            odds = pred.log_softmax(-1)
            found.append((target * odds).sum(-1))
        return found, odds
""",
        # may refuse what it gets, where there are no rounds at all
        """
def sample(model, x, mask: torch.Tensor, other: torch.Tensor, n: int):
    for _ in range(n):
        both = torch.cat([mask, other], dim=0)
        x = model(x, both)
    return x
""",
        # what it reads changes
        """
def forward(x: torch.Tensor, n: int):
    for _ in range(n):
        gate = torch.tanh(x)
        x = x + gate
    return x
""",
        # other numbers in each round
        """
def forward(x: torch.Tensor, n: int):
    for _ in range(n):
        noise = torch.randn(x.shape[1], device=x.device)
        x = x + noise
    return x
""",
        # a tensor of its own in each round
        """
def forward(x: torch.Tensor, n: int):
    found = []
    for i in range(n):
        row = torch.zeros(4, device=x.device)
        row[i] = 1
        found.append(row)
    return found
""",
        # one to write into in each round
        """
def forward(boxes: torch.Tensor, pred, n: int):
    found = []
    for name in ("size", "depth"):
        own = boxes.exp()
        setattr(own, name, getattr(pred, name))
        found.append(own.corners)
    return found
""",
        """
def forward(x: torch.Tensor, names: list):
    found = []
    for name in names:
        own = x.clone()
        found.append(own.scaled(name))
    return found
""",
        """
def forward(x: torch.Tensor, y: torch.Tensor, n: int):
    for _ in range(n):
        own = x.exp()
        torch.add(y, 1, out=own)
        y = y * own
    return y
""",
        # what it reads is written to
        """
def forward(x: torch.Tensor, y: torch.Tensor, n: int):
    for _ in range(n):
        scale = y.sum()
        y.mul_(0.5)
        x = x * scale
    return x
""",
        # only in one of the rounds
        """
def forward(x: torch.Tensor, y: torch.Tensor, n: int):
    for i in range(n):
        if i == 3:
            scale = y.exp()
            x = x * scale
    return x
""",
        # the last one of it is needed behind the loop, which may have no round
        """
def forward(x: torch.Tensor, y: torch.Tensor, n: int):
    scale = None
    for _ in range(n):
        scale = y.exp()
        x = x * scale
    return x, scale
""",
        # each round gets a tensor of its own, computes on another one, or only some compute it
        """
def forward(x: torch.Tensor, y: torch.Tensor, n: int):
    found = []
    for i in range(n):
        found.append(torch.zeros(4, device=x.device))
        x = x + torch.zeros_like(x) + torch.rand(4, device=x.device)
        x = x * (y.exp() if i > 2 else 1)
    return x, found
""",
        # foreign memory, a size that each round makes smaller
        """
def solve(b: torch.Tensor, operator, wrap, n: int):
    applied = torch.empty_like(b)
    handle = wrap(applied.reshape(-1))
    for _ in range(n):
        operator.matvec(handle)
        residual = b - applied
        if (residual.square().sum(dim=1) < 1).all():
            return residual
    return None
""",
        """
def clip(ring: torch.Tensor, m: int, k: int):
    for _ in range(k):
        pick = ring.argmax(1)
        keep = torch.arange(ring.shape[1], device=ring.device) != pick.unsqueeze(1)
        ring = ring[keep].reshape(m, -1)
    return ring
""",
        # written to through a view of it
        """
def forward(x: torch.Tensor, y: torch.Tensor, n: int):
    for i in range(n):
        row = y[i]
        row.add_(1)
        x = x * (1 - y)
    return x
""",
    ),
    rewritten=(
        # what the name was in another branch nobody reads any more
        Rewritten(
            """
class Loss(nn.Module):
    def forward(self, pred: torch.Tensor, targets, whole: bool):
        if whole:
            odds = pred.log_softmax(-1)
            return (odds * sum(targets)).sum()
        found = []
        for target in targets:
            odds = pred.log_softmax(-1)
            found.append((target * odds).sum(-1))
        return found
""",
            """
class Loss(nn.Module):
    def forward(self, pred: torch.Tensor, targets, whole: bool):
        if whole:
            odds = pred.log_softmax(-1)
            return (odds * sum(targets)).sum()
        found = []
        odds = pred.log_softmax(-1)
        for target in targets:
            found.append((target * odds).sum(-1))
        return found
""",
        ),
        Rewritten(
            """
def compute_lookup(pyramid, coords: torch.Tensor, r: int):
    found = []
    for i in range(4):
        d = torch.linspace(-r, r, 2 * r + 1)
        delta = torch.stack(torch.meshgrid(d, d, indexing="ij"), dim=-1).to(coords.device)
        found.append(pyramid[i] * (coords / 2**i + delta.view(1, 2 * r + 1, 2 * r + 1, 2)))
    return found
""",
            """
def compute_lookup(pyramid, coords: torch.Tensor, r: int):
    found = []
    d = torch.linspace(-r, r, 2 * r + 1)
    delta = torch.stack(torch.meshgrid(d, d, indexing="ij"), dim=-1).to(coords.device)
    for i in range(4):
        found.append(pyramid[i] * (coords / 2**i + delta.view(1, 2 * r + 1, 2 * r + 1, 2)))
    return found
""",
        ),
        Rewritten(
            """
def sample(model, x, mask: torch.Tensor, other: torch.Tensor, scale: float, n: int):
    for _ in range(n):
        if scale > 0:
            both = torch.cat([mask, mask], dim=0)
            x = model(x, both, torch.cat([mask, other]))
    return x
""",
            """
def sample(model, x, mask: torch.Tensor, other: torch.Tensor, scale: float, n: int):
    if scale > 0:
        both = torch.cat([mask, mask], dim=0)
    for _ in range(n):
        if scale > 0:
            x = model(x, both, torch.cat([mask, other]))
    return x
""",
        ),
        Rewritten(  # operands, the memory of which nothing else shares
            """
def forward(alphas: torch.Tensor, mask: torch.Tensor):
    rows, steps = alphas.shape
    total = alphas.new_zeros(rows)
    fired = []
    for step in range(steps):
        total = total + alphas[:, step] * (1 - mask)
        fired.append(total)
        total = torch.where(total >= 1, total - torch.ones([rows], device=alphas.device), total)
    return torch.stack(fired, 1)
""",
            """
def forward(alphas: torch.Tensor, mask: torch.Tensor):
    rows, steps = alphas.shape
    total = alphas.new_zeros(rows)
    fired = []
    mask_difference = 1 - mask
    ones = torch.ones([rows], device=alphas.device)
    for step in range(steps):
        total = total + alphas[:, step] * mask_difference
        fired.append(total)
        total = torch.where(total >= 1, total - ones, total)
    return torch.stack(fired, 1)
""",
        ),
        Rewritten(
            """
def aux_loss(gates, mask: torch.Tensor, k: int):
    total = 0
    for gate in gates:
        weight = mask[..., None].expand(-1, -1, k).reshape(-1, k).float()
        total = total + (gate * weight).sum() / weight.sum()
    return total
""",
            """
def aux_loss(gates, mask: torch.Tensor, k: int):
    total = 0
    weight = mask[..., None].expand(-1, -1, k).reshape(-1, k).float()
    weight_sum = weight.sum()
    for gate in gates:
        total = total + (gate * weight).sum() / weight_sum
    return total
""",
        ),
        Rewritten(
            """
class Stack(nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None):
        for layer in self.layers:
            if lengths is None:
                mask = None
            else:
                n = x.shape[1]
                mask = torch.arange(n, device=x.device)[None] < lengths[:, None]
            x = layer(x, mask)
        return x
""",
            """
class Stack(nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor | None):
        if lengths is not None:
            n = x.shape[1]
            mask = torch.arange(n, device=x.device)[None] < lengths[:, None]
        for layer in self.layers:
            if lengths is None:
                mask = None
            x = layer(x, mask)
        return x
""",
        ),
    ),
)
