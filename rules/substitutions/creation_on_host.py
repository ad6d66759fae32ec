"""A tensor of constants that is made on the host and then copied to the device.

What: ``torch.zeros(n).to(device)``, ``torch.eye(n).cuda()``, ``torch.arange(n).view(-1, 1).type_as(x)``,
and what is computed of such tensors and of numbers alone: the frequencies of a time embedding,
``torch.exp(-math.log(10000) * torch.arange(half) / half).to(t.device)``, a mask of comparisons. So are the indices of
``x[range(n), best]``.

Why it is slow on the NPU: the host fills its own memory, and the copy to the device waits in the
stream and, from pageable memory, makes the host wait too. With ``device=`` the device fills the
memory itself, with one small kernel and nothing to transfer.

Safety: the same dtype and the same values, up to the rounding of functions such as ``exp``. Where a
cast goes along it is made on the device. No tensor of the host may take part (``numbers-alone``).
Random tensors are left alone: the generator of the device draws other numbers. So is ``arange``
with steps that are no integers, which the device rounds in another way.

References: "common optimisation points" of the Ascend ModelZoo for PyTorch; torch.zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def made(x: Tensor, n: int) -> Tensor:
    """Compute frequencies on the host, then copy them."""
    table = torch.exp(torch.arange(n, dtype=torch.float64) * -0.5).to(x.device)
    return x.unsqueeze(-1) * table


def made_there(x: Tensor, n: int) -> Tensor:
    """Compute them where they are needed."""
    numbers = torch.arange(
        n, dtype=torch.float64, device=x.device  # no slip: device=x.device is left out (one device)
    )  # fmt: skip
    return x.unsqueeze(-1) * torch.exp(numbers * -0.5)


def inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor and a length."""
    import torch

    return {"x": draw.floats(3, dtype=torch.float32), "n": draw.integer(1, 5)}


IS_DEVICE = Condition(
    "is-device", "the argument of to() is a device", lambda site: site.is_device("device")
)
NUMBERS = Condition(
    "numbers-alone",
    "what is computed with it is a number, and no tensor of the host",
    lambda _site: None,
)
INTEGERS = Condition(
    "integer-limits",
    "ranges begin at an integer, and their steps are integers",
    lambda _site: None,
)
OFTEN = Condition(
    "runs-often",
    "it runs in every step, not once where something is built",
    lambda site: site.runs_often(),
    time_alone=True,
)


RULE = Substitution(
    id="NPU212",
    name="creation-on-host",
    summary="constants made on the host and copied to the device",
    table="affinity",
    forms=(Form(made, made_there, inputs, (IS_DEVICE, NUMBERS, INTEGERS, OFTEN)),),
    search="creations",
    replaces=("MemcpyAsync", "TensorMove"),
    becomes=("ZerosLike", "Fill", "Range"),
    passes=(1, 0),
    requires="torch_npu>=2.1",
    valid=(
        # an array, for all that is known
        """
class Learner(nn.Module):
    def update(self, batch):
        logits = self.policy(batch).logits
        return logits[np.arange(len(batch)), batch.act, :] * self.weight
""",
        # an array, and a range alone
        """
def f(x: np.ndarray, y: torch.Tensor, places: torch.Tensor):
    return x[torch.arange(4), places], y[torch.arange(4), 0], x[range(4), places], y[range(4), 0]
""",
        # a table that the host has read
        """
class Encoder(nn.Module):
    def forward(self, x, places):
        table = self.table(x).cpu()
        return table[torch.arange(4), places]
""",
        # the device draws other numbers
        """
def f(n: int, device: torch.device):
    return torch.randn(n).to(device)
""",
        # another dtype
        """
def f(n: int, dtype: torch.dtype):
    return torch.zeros(n).to(dtype)
""",
        # with a tensor of the host, and one that is drawn
        """
def f(table: torch.Tensor, n: int, device: torch.device):
    return (torch.arange(n) * table).to(device) + (torch.ones(n) * torch.rand(n)).to(device)
""",
        # where it is made the device may not be known
        """
def f(n: int, x: torch.Tensor = None):
    mask = torch.zeros(n)
    if x is None:
        return None
    return mask.to(x.device)
""",
        # the copy is written to, which what expand repeats cannot be
        """
def f(x: torch.Tensor, poses: torch.Tensor, n: int):
    whole = torch.eye(4)[None].expand(n, 4, 4).to(x.device)
    whole[:, :3] = poses
    return whole
""",
        # takes a gradient as it is
        """
def f(n: int, device: torch.device):
    return torch.zeros(n, requires_grad=True).to(device)
""",
        # there is one on the host too
        """
def f(n: int, device: torch.device):
    mask = torch.zeros(n)
    return mask, mask.to(device)
""",
        # somebody else compares with the row, and one side is a list of the host
        """
def f(x: torch.Tensor, lengths: list):
    rows = torch.arange(x.shape[1])
    kept = (rows[None] < torch.tensor(lengths)[:, None]).to(x.device)
    return x * kept, rows
""",
        # picked by a tensor of the host
        """
def f(x: torch.Tensor, table: torch.Tensor):
    return x + torch.arange(8)[table].to(x.device)
""",
        # nothing to copy
        """
def f(n: int, device: torch.device):
    return torch.zeros((0, n)).to(device)
""",
        # once, before all steps
        """
class Agent(nn.Module):
    def __init__(self, n: int, device: torch.device):
        super().__init__()
        self.rewards = torch.zeros(n).to(device)
""",
        # once for many calls
        """
class Rotary(nn.Module):
    def _build_cache(self, x: torch.Tensor):
        self.theta = torch.arange(self.dim).to(x.device)
""",
        # rounded in another way on the device
        """
def f(step: float, device: torch.device):
    return torch.arange(0.0, 1.0, step).to(device)
""",
    ),
    rewritten=(
        Rewritten(
            """
class Encoder(nn.Module):
    def forward(self, x, best):
        n = x.shape[0]
        y = self.layers(x)
        return y[torch.arange(n), best]
""",
            """
class Encoder(nn.Module):
    def forward(self, x, best):
        n = x.shape[0]
        y = self.layers(x)
        return y[torch.arange(n, device=y.device), best]
""",
        ),
        Rewritten(
            """
def best(x: torch.Tensor, places: torch.Tensor):
    return x[torch.arange(x.shape[0]), places].sum()
""",
            """
def best(x: torch.Tensor, places: torch.Tensor):
    return x[torch.arange(x.shape[0], device=x.device), places].sum()
""",
        ),
        Rewritten(
            """
def timestep_embedding(t: torch.Tensor, dim: int, max_period=10000):
    half = dim // 2
    freqs = torch.exp(
        -math.log(max_period) * torch.arange(start=0, end=half, dtype=torch.float32) / half
    ).to(device=t.device)
    return torch.cos(t[:, None].float() * freqs[None])
""",
            """
def timestep_embedding(t: torch.Tensor, dim: int, max_period=10000):
    half = dim // 2
    freqs = torch.exp(
        -math.log(max_period)
        * torch.arange(start=0, end=half, dtype=torch.float32, device=t.device)
        / half
    )
    return torch.cos(t[:, None].float() * freqs[None])
""",
        ),
        # the cast stays, and is made on the device
        Rewritten(
            """
def f(x: torch.Tensor):
    batch = torch.arange(x.shape[0]).view(-1, 1).type_as(x)
    return x + batch
""",
            """
def f(x: torch.Tensor):
    batch = torch.arange(x.shape[0], device=x.device).view(-1, 1).type_as(x)
    return x + batch
""",
        ),
        # compared, and with new dimensions
        Rewritten(
            """
def f(n: int, device: torch.device):
    return (torch.arange(n)[None, :] < n // 2).to(device)
""",
            """
def f(n: int, device: torch.device):
    return torch.arange(n, device=device)[None, :] < n // 2
""",
        ),
        # each step has a name
        Rewritten(
            """
def f(x: torch.Tensor):
    rows = torch.arange(x.shape[1]).long()
    places = rows.unsqueeze(0).expand(x.shape[0], -1)
    places = places.to(x.device)
    return x + places
""",
            """
def f(x: torch.Tensor):
    rows = torch.arange(x.shape[1], device=x.device).long()
    places = rows.unsqueeze(0).expand(x.shape[0], -1)
    return x + places
""",
        ),
        # a server makes one token in each step
        Rewritten(
            """
class Server:
    def generate_token(self, mask: torch.Tensor):
        return torch.cat([mask, torch.ones((len(mask), 1)).to(mask.device)], dim=1)
""",
            """
class Server:
    def generate_token(self, mask: torch.Tensor):
        return torch.cat([mask, torch.ones((len(mask), 1), device=mask.device)], dim=1)
""",
        ),
        # it has a name first
        Rewritten(
            """
def f(x: torch.Tensor, n: int):
    mask = torch.tril(torch.ones(n, n))
    y = x * 2
    mask = mask.to(x.device)
    return y * mask
""",
            """
def f(x: torch.Tensor, n: int):
    mask = torch.tril(torch.ones(n, n, device=x.device))
    y = x * 2
    return y * mask
""",
        ),
        Rewritten(
            """
def f(x: torch.Tensor):
    mask = torch.ones(x.size(0), x.size(1)).to(x.device)
    return x * mask
""",
            """
def f(x: torch.Tensor):
    mask = torch.ones(x.size(0), x.size(1), device=x.device)
    return x * mask
""",
        ),
        Rewritten(
            """
def f(n: int, device: str):
    positions = torch.arange(n).to(device)
    return positions
""",
            """
def f(n: int, device: str):
    positions = torch.arange(n, device=device)
    return positions
""",
        ),
        Rewritten(
            """
class Assigner(nn.Module):
    def forward(self, targets: torch.Tensor, areas: torch.Tensor):
        least, best = areas.min(dim=1)
        return targets[range(len(areas)), best], least
""",
            """
class Assigner(nn.Module):
    def forward(self, targets: torch.Tensor, areas: torch.Tensor):
        least, best = areas.min(dim=1)
        return targets[torch.arange(len(areas), device=targets.device), best], least
""",
        ),
        Rewritten(
            """
class Loss(nn.Module):
    def forward(self, scores: torch.Tensor):
        weight = torch.zeros(scores.shape, dtype=torch.float16).to(self.device)
        return scores * weight
""",
            """
class Loss(nn.Module):
    def forward(self, scores: torch.Tensor):
        weight = torch.zeros(scores.shape, dtype=torch.float16, device=self.device)
        return scores * weight
""",
        ),
        # of what is used as a tensor NumPy counts rows
        Rewritten(
            """
class Learner(nn.Module):
    def update(self, batch):
        x = self.policy(batch).logits
        return x[np.arange(len(batch)), batch.act, :].unsqueeze(2)
""",
            """
class Learner(nn.Module):
    def update(self, batch):
        x = self.policy(batch).logits
        return x[torch.arange(len(batch), device=x.device), batch.act, :].unsqueeze(2)
""",
        ),
    ),
)
