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
takes effect where they are pinned (``pinned-batches``). An attribute that is made a tensor in its own
place, ``self.limits = torch.tensor(self.limits, ...)``, is one from then on, of which ``torch.as_tensor``
makes no copy; nobody in the file may write into it. A pinned tensor that is
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
from npufix.rules.substitutions.upload_in_every_call_forms import (
    as_another,
    blocking,
    calls_inputs,
    column_inputs,
    columns,
    converted,
    converted_inputs,
    converted_once,
    copied,
    counted,
    drawn,
    drawn_inputs,
    drawn_there,
    filled,
    filled_inputs,
    in_buffer,
    in_buffer_of_floats,
    in_forward,
    left_there,
    listed,
    listed_inputs,
    not_blocking,
    ranged,
    ranged_there,
    read_back,
    read_inputs,
    whole,
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
        Form(converted, converted_once, converted_inputs),
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
