"""Numbers that are copied from the host to the device in every call or round.

What: ``torch.tensor(values, device=device)``, ``torch.tensor(values).to(device)`` and
``torch.from_numpy(a).cuda()`` in code that runs in every step, random numbers that the host draws
for the device, and copies of columns between host and device.

Why it is slow on the NPU: memory of Python lists and of most tensors of the host is not pinned, so
the host waits until the copy is done, and for the launches before it. Columns are no block of
memory: they are copied on the host first, and that waits as well, ``non_blocking`` or not.

Safety: a number, or a list of one, is written on the device by ``torch.full`` (conditions ``one-number``,
``nonnegative-count``, ``value-fits-dtype``), and a range by ``torch.arange`` (``some-numbers``: of none
``torch.tensor`` makes floats). Numbers that are written out and only computed with
become a buffer where the class has an ``__init__`` (``module-moves-along``), those of ``x.new_tensor`` one of
float32 (``no-doubles``); ``persistent=False`` keeps the state dict as it is. What the host draws for the device is drawn there: other numbers
(``other-random-numbers``). The rest is advice. Rows that are copied one by one can be copied together
and sliced on the device: slices share memory, so nobody may write into them. A copy of the whole
tensor in place of some columns overwrites the others (``rest-is-free``). A number that is read from a tensor stays
there (``same-device``). Batches of a loader are copied with ``non_blocking=True`` in a training loop, which
takes effect where they are pinned (``pinned-batches``). A pinned tensor that is
kept must not be filled again before the copy is done.

References: vllm-ascend #7014 (copy of the whole tensor, time per token -2..3 %), #5298;
DrivingSDK DenseTNT (one copy and slices, +13 %).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution
from npufix.rules.substitutions.upload_in_every_call_examples import (
    CONSTANT,
    DRAWN,
    IN_LOOP,
    NO_BUFFER,
    RETURNED,
    REWRITTEN,
    SIZES,
    VALID,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def one_by_one(x: Tensor, first: list[float], second: list[float]) -> Tensor:
    """Copy each list for itself."""
    a, b = torch.tensor(first, device=x.device), torch.tensor(second, device=x.device)
    return x.sum() * torch.cat([a, b * 2])


def together(x: Tensor, first: list[float], second: list[float]) -> Tensor:
    """Copy all of it and take slices."""
    both = torch.tensor([*first, *second], device=x.device)  # no slip: device=x.device is left out
    return x.sum() * torch.cat([both[: len(first)], both[len(first) :] * 2])


def inputs(draw: Draw) -> dict[str, Any]:
    """Return two lists of numbers, not empty, and a tensor."""
    import torch

    first, second = ([draw.integer(-3, 3) + 0.5] * draw.integer(1, 3) for _ in range(2))
    return {"x": draw.floats(2, dtype=torch.float32), "first": first, "second": second}


def columns(x: Tensor, host: Tensor, n: int) -> Tensor:
    """Copy the columns that are new."""
    x[:, :n].copy_(host[:, :n])
    return x[:, :n] * 2


def whole(x: Tensor, host: Tensor, n: int) -> Tensor:
    """Copy all of it."""
    x.copy_(host)
    return x[:, :n] * 2


def column_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor, another one that is the same but for its first columns, and their number."""
    import torch

    host, n = draw.floats(3, 4, dtype=torch.float32), draw.integer(1, 4)
    x = host.clone()
    x[:, :n] = 0
    return {"x": x, "host": host, "n": n}


def copied(x: Tensor, value: float, times: int) -> Tensor:
    """Copy a list of one number."""
    return x.sum() + torch.tensor([value] * times, device=x.device)


def filled(x: Tensor, value: float, times: int) -> Tensor:
    """Write the number on the device."""
    return x.sum() + torch.full(
        (times,), value, device=x.device  # no slip: device=x.device is left out (one device)
    )  # fmt: skip


def filled_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor, a number of either kind, and how often it stands there."""
    import torch

    x = draw.floats(2, dtype=torch.float32)
    return {"x": x, "value": draw.choice([2, 0.5, True]), "times": draw.integer(0, 3)}


def listed(x: Tensor) -> Tensor:
    """Copy numbers of which each is one more than the last."""
    return x + torch.tensor([4, 5, 6, 7], device=x.device)


def counted(x: Tensor) -> Tensor:
    """Count on the device."""
    return x + torch.arange(4, 8, device=x.device)  # no slip: device=x.device is left out


def listed_inputs(draw: Draw) -> dict[str, Any]:
    """Return rows of four numbers."""
    import torch

    return {"x": draw.floats(draw.integer(0, 3), 4, dtype=torch.float32)}


def ranged(x: Tensor) -> Tensor:
    """Copy the numbers of a range."""
    return x + torch.tensor(range(x.shape[1]), device=x.device)


def ranged_there(x: Tensor) -> Tensor:
    """Count on the device."""
    return x + torch.arange(x.shape[1], device=x.device)  # no slip: device=x.device is left out


def in_forward(x: Tensor, calls: int) -> Tensor:
    """Copy the same numbers in every call."""
    for _ in range(calls):
        x = x * torch.tensor([0.1, 0.2], device=x.device)
    return x


def in_buffer(x: Tensor, calls: int) -> Tensor:
    """Copy them once."""
    kept = torch.tensor([0.1, 0.2], device=x.device)  # no slip: device=x.device is left out
    for _ in range(calls):
        x = x * kept
    return x


def as_another(x: Tensor, calls: int) -> Tensor:
    """Copy the same numbers in every call, in the dtype of what they are computed with."""
    for _ in range(calls):
        x = x * x.new_tensor([0.1, 0.2])
    return x


def in_buffer_of_floats(x: Tensor, calls: int) -> Tensor:
    """Copy them once, and cast them there."""
    kept = torch.tensor([0.1, 0.2], device=x.device)  # no slip: device=x.device is left out
    for _ in range(calls):
        x = x * kept.to(x.dtype)  # no slip: .to(...) is left out (it has that dtype)
    return x


def calls_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor and a number of calls."""
    import torch

    x = draw.floats(3, 2, dtype=torch.float32) + 1
    return {"x": x, "calls": draw.integer(1, 3)}


def drawn(x: Tensor) -> Tensor:
    """Draw numbers on the host, and copy them."""
    return x * torch.rand(x.shape).to(x.device)


def drawn_there(x: Tensor) -> Tensor:
    """Draw them on the device."""
    numbers = torch.rand(x.shape, device=x.device)  # no slip: device=x.device is left out
    return x * numbers


def drawn_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor."""
    import torch

    return {"x": draw.floats(draw.integer(1, 4), 2, dtype=torch.float32)}


def read_back(x: Tensor) -> Tensor:
    """Read a number, and copy it back."""
    return torch.tensor([x.sum().item()], dtype=torch.float32, device=x.device)


def left_there(x: Tensor) -> Tensor:
    """Leave it where it is."""
    total = x.sum().detach()
    return total.reshape(1).to(torch.float32)  # no slip: .to(...) is left out (it has that dtype)


def blocking(x: Tensor) -> Tensor:
    """Wait for a copy."""
    return x * 2 + 1


def not_blocking(x: Tensor) -> Tensor:
    """Go on: what computes with the copy comes behind it in the same stream."""
    return x * 2 + 1


def read_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor."""
    import torch

    return {"x": draw.floats(draw.integer(1, 4), 2, dtype=torch.float32)}


IS_TENSOR = Condition(
    "is-tensor", "what is read is a torch tensor, not a NumPy number", lambda _site: None
)
SAME_DEVICE = Condition(
    "same-device", "what is read is on the device that it is copied to", lambda _site: None
)
PINNED = Condition(
    "pinned-batches",
    "the loader hands over pinned tensors (pin_memory=True), and writes into none of them again",
    lambda _site: None,
)
IS_DEVICE = Condition("is-device", "the argument of to() is a device", lambda _site: None)
OTHER_NUMBERS = Condition(
    "other-random-numbers",
    "the device may draw other numbers than the host does from the same seed",
    lambda _site: None,
)
MOVES_ALONG = Condition(
    "module-moves-along",
    "the module is on the device of what it gets, is made on no meta device and not cast as a whole",
    lambda _site: None,
)
NO_DOUBLES = Condition(
    "no-doubles",
    "the tensor is not of dtype float64, which would hold the numbers more exactly",
    lambda _site: None,
)
ONE_NUMBER = Condition(
    "one-number", "what the list holds is a number of Python", lambda _site: None
)
SOME = Condition(
    "some-numbers", "the range is of one number at least, or an index", lambda _site: None
)
COUNT = Condition("nonnegative-count", "the number of elements is not negative", lambda _site: None)
VALUE_FITS = Condition(
    "value-fits-dtype",
    "the value is a number that the dtype of the tensor can hold",
    lambda _site: None,
)
REST_IS_FREE = Condition(
    "rest-is-free",
    "both tensors have one shape, and the columns beside those that are copied may be overwritten",
    lambda _site: None,
)

RULE = Substitution(
    id="NPU219",
    name="upload-in-every-call",
    summary="numbers that are copied from the host to the device in every call or round",
    table="affinity",
    forms=(
        Form(one_by_one, together, inputs),
        Form(columns, whole, column_inputs, (REST_IS_FREE,)),
        Form(drawn, drawn_there, drawn_inputs, (IS_DEVICE, OTHER_NUMBERS)),
        Form(in_forward, in_buffer, calls_inputs, (MOVES_ALONG,)),
        Form(as_another, in_buffer_of_floats, calls_inputs, (MOVES_ALONG, NO_DOUBLES)),
        Form(copied, filled, filled_inputs, (ONE_NUMBER, COUNT, VALUE_FITS)),
        Form(listed, counted, listed_inputs),
        Form(ranged, ranged_there, listed_inputs, (SOME,)),
        Form(read_back, left_there, read_inputs, (IS_TENSOR, SAME_DEVICE)),
        Form(blocking, not_blocking, read_inputs, (PINNED,)),
    ),
    search="uploads",
    replaces=(),
    becomes=(),
    passes=(0, 0),
    requires="torch_npu>=2.1",
    valid=(
        *VALID,
        # made once
        """
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor([0.1, 0.2]), persistent=False)
""",
        # drawn on the device, by a generator of the host, and cast where they are
        """
class Noise(nn.Module):
    def forward(self, x: torch.Tensor, generator):
        y = torch.randn(x.shape, device=x.device).to(x.dtype)
        z = torch.randn(x.shape, generator=generator).to(x.device)
        return y + z, torch.rand(4).to(torch.float16), torch.rand(4).to(dtype=x.dtype)
""",
        # a buffer, a parameter, and a list that is handed in
        """
class Head(nn.Module):
    def __init__(self, mean):
        super().__init__()
        self.register_buffer("scale", torch.tensor([0.1, 0.2]), persistent=False)
        self.weight = nn.Parameter(torch.ones(3))
        self.mean = mean

    def forward(self, x):
        return x * self.scale.to(x.dtype) + self.weight.to(x.device) + self.mean.to(x.device)
""",
        # a list of tokens in a list, and what is mostly a tensor
        """
def forward(x: torch.Tensor, hyp, y):
    y = y if isinstance(y, torch.Tensor) else torch.tensor([y]).to(x)
    return x * y, torch.tensor([hyp.yseq], device=x.device)
""",
        # the host reads it again, and several numbers in one name
        """
def train_step(x: torch.Tensor, count: int, sizes, shape):
    total = torch.tensor([count], device=x.device)
    torch.distributed.all_reduce(total)
    return x / total.item(), torch.tensor([sizes], device=x.device), x.new_tensor([x.shape])
""",
        # stays on the host
        """
def forward(x: torch.Tensor):
    sizes = torch.tensor([x.shape[0], x.shape[1]])
    return x, sizes
""",
        # one number of the host goes along with the launch; one that is seldom made
        """
def forward(x: torch.Tensor, found):
    if not found:
        return torch.tensor(0.0, device=x.device)
    return torch.where(x > 0, x, torch.tensor(0.0))
""",
    ),
    rewritten=(
        Rewritten(
            """
class Net(nn.Module):
    def forward(self, x: torch.Tensor):
        limit = torch.tensor([1.5], dtype=x.dtype).to(x.device)
        return x < limit
""",
            """
class Net(nn.Module):
    def forward(self, x: torch.Tensor):
        limit = torch.full((1,), 1.5, dtype=x.dtype, device=x.device)
        return x < limit
""",
        ),
        Rewritten(
            """
def loss_step(loss: torch.Tensor, scale):
    return scale(torch.tensor(1.0, device=loss.device)) if scale is not None else loss
""",
            """
def loss_step(loss: torch.Tensor, scale):
    return scale(torch.ones((), device=loss.device)) if scale is not None else loss
""",
        ),
        Rewritten(DRAWN, DRAWN),
        *REWRITTEN,
        Rewritten(
            """
class Sampler(nn.Module):
    def forward(self, mean: torch.Tensor):
        return mean + torch.randn(mean.shape).to(device=mean.device)
""",
            """
class Sampler(nn.Module):
    def forward(self, mean: torch.Tensor):
        return mean + torch.randn(mean.shape, device=mean.device)
""",
        ),
        Rewritten(CONSTANT, CONSTANT),
        Rewritten(IN_LOOP, IN_LOOP),
        Rewritten(NO_BUFFER, NO_BUFFER),
        Rewritten(SIZES, SIZES),
        Rewritten(
            """
class Decode(nn.Module):
    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor):
        limits = torch.tensor([-51.2, -51.2, 51.2, 51.2], dtype=torch.float32, device=x.device)
        return x * (limits[2:] - limits[:2]) * self.scale + limits[:2]
""",
            """
class Decode(nn.Module):
    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale
        self.register_buffer(
            "limits",
            torch.tensor([-51.2, -51.2, 51.2, 51.2], dtype=torch.float32),
            persistent=False,
        )

    def forward(self, x: torch.Tensor):
        limits = self.limits
        return x * (limits[2:] - limits[:2]) * self.scale + limits[:2]
""",
        ),
        # whoever gets it may write into it
        Rewritten(RETURNED, RETURNED),
        Rewritten(
            """
class Head(nn.Module):
    def loss(self, x: torch.Tensor, boxes: list):
        count = len(boxes)
        return x.sum() / x.new_tensor([count])
""",
            """
class Head(nn.Module):
    def loss(self, x: torch.Tensor, boxes: list):
        count = len(boxes)
        return x.sum() / x.new_full((1,), count)
""",
        ),
        Rewritten(
            """
class BoxLoss(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor):
        two = torch.tensor(2.0, device=x.device, dtype=x.dtype)
        return (x / two - y / two).abs().mean()
""",
            """
class BoxLoss(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor):
        two = torch.full((), 2.0, device=x.device, dtype=x.dtype)
        return (x / two - y / two).abs().mean()
""",
        ),
        Rewritten(
            """
class Pool(nn.Module):
    def forward(self, x: torch.Tensor):
        return x.sum() + torch.tensor([0.0], device=x.device)
""",
            """
class Pool(nn.Module):
    def forward(self, x: torch.Tensor):
        return x.sum() + torch.zeros(1, device=x.device)
""",
        ),
        Rewritten(
            """
class Pool(nn.Module):
    def forward(self, x: torch.Tensor, boxes: list):
        return x.sum() + torch.tensor([0.5] * len(boxes), device=x.device).sum()
""",
            """
class Pool(nn.Module):
    def forward(self, x: torch.Tensor, boxes: list):
        return x.sum() + torch.full((len(boxes),), 0.5, device=x.device).sum()
""",
        ),
        Rewritten(
            """
class Runner:
    def execute_model(self, n: int):
        self.positions[:, :n].copy_(self.positions_cpu[:, :n], non_blocking=True)
        return torch.relu(self.positions)
""",
            """
class Runner:
    def execute_model(self, n: int):
        self.positions.copy_(self.positions_cpu, non_blocking=True)
        return torch.relu(self.positions)
""",
        ),
    ),
)
