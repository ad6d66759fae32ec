"""A tensor of constants that is made on the host and then copied to the device.

What: ``torch.zeros(n).to(device)``, and the same with ``ones``, ``full`` and ``arange``.

Why it is slow on the NPU: the host fills its own memory, and the copy to the device waits in the
stream and, from pageable memory, makes the host wait too. With ``device=`` the device fills the
memory itself, with one small kernel and nothing to transfer.

Safety: exact; the same dtype, the same values. Random tensors are left alone: the generator of the
device draws other numbers.

References: "common optimisation points" of the Ascend ModelZoo for PyTorch; torch.zeros.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import (
    Condition,
    Draw,
    Form,
    Rewritten,
    Site,
    Substitution,
    either,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def zeros(n: int, device: str) -> Tensor:
    """Make zeros, then copy them."""
    return either(torch.zeros(n).to(device), torch.zeros(n).to(device=device))


def zeros_there(n: int, device: str) -> Tensor:
    """Make zeros where they are needed."""
    return torch.zeros(n, device=device)


def zeros_2(n: int, m: int, device: str) -> Tensor:
    """Make zeros, then copy them."""
    return either(torch.zeros(n, m).to(device), torch.zeros(n, m).to(device=device))


def zeros_2_there(n: int, m: int, device: str) -> Tensor:
    """Make zeros where they are needed."""
    return torch.zeros(n, m, device=device)


def zeros_typed(n: int, dtype: torch.dtype, device: str) -> Tensor:
    """Make zeros of a dtype, then copy them."""
    return either(
        torch.zeros(n, dtype=dtype).to(device), torch.zeros(n, dtype=dtype).to(device=device)
    )


def zeros_typed_there(n: int, dtype: torch.dtype, device: str) -> Tensor:
    """Make zeros of a dtype where they are needed."""
    return torch.zeros(n, dtype=dtype, device=device)


def ones(n: int, device: str) -> Tensor:
    """Make ones, then copy them."""
    return either(torch.ones(n).to(device), torch.ones(n).to(device=device))


def ones_there(n: int, device: str) -> Tensor:
    """Make ones where they are needed."""
    return torch.ones(n, device=device)


def ones_2(n: int, m: int, device: str) -> Tensor:
    """Make ones, then copy them."""
    return either(torch.ones(n, m).to(device), torch.ones(n, m).to(device=device))


def ones_2_there(n: int, m: int, device: str) -> Tensor:
    """Make ones where they are needed."""
    return torch.ones(n, m, device=device)


def ones_typed(n: int, dtype: torch.dtype, device: str) -> Tensor:
    """Make ones of a dtype, then copy them."""
    return either(
        torch.ones(n, dtype=dtype).to(device), torch.ones(n, dtype=dtype).to(device=device)
    )


def ones_typed_there(n: int, dtype: torch.dtype, device: str) -> Tensor:
    """Make ones of a dtype where they are needed."""
    return torch.ones(n, dtype=dtype, device=device)


def full(n: tuple[int, ...], value: float, device: str) -> Tensor:
    """Make a tensor of one value, then copy it."""
    return either(torch.full(n, value).to(device), torch.full(n, value).to(device=device))


def full_there(n: tuple[int, ...], value: float, device: str) -> Tensor:
    """Make a tensor of one value where it is needed."""
    return torch.full(n, value, device=device)


def counted(n: int, device: str) -> Tensor:
    """Count, then copy the numbers."""
    return either(torch.arange(n).to(device), torch.arange(n).to(device=device))


def counted_there(n: int, device: str) -> Tensor:
    """Count where the numbers are needed."""
    return torch.arange(n, device=device)


def counted_on(n: int, m: int, device: str) -> Tensor:
    """Count from a number on, then copy the numbers."""
    return either(torch.arange(n, m).to(device), torch.arange(n, m).to(device=device))


def counted_on_there(n: int, m: int, device: str) -> Tensor:
    """Count from a number on where the numbers are needed."""
    return torch.arange(n, m, device=device)


def inputs(draw: Draw) -> dict[str, Any]:
    """Return a length and a device."""
    return {"n": draw.integer(0, 5), "device": "cpu"}


def pair_inputs(draw: Draw) -> dict[str, Any]:
    """Return two numbers, the second one not smaller, and a device."""
    n = draw.integer(0, 5)
    return {"n": n, "m": n + draw.integer(0, 4), "device": "cpu"}


def typed_inputs(draw: Draw) -> dict[str, Any]:
    """Return a length, a dtype and a device."""
    import torch

    dtype = draw.choice([torch.float16, torch.int64, torch.bool])
    return {"n": draw.integer(0, 5), "dtype": dtype, "device": "cpu"}


def full_inputs(draw: Draw) -> dict[str, Any]:
    """Return a size, a value and a device."""
    n = (draw.integer(0, 5), draw.integer(1, 3))
    return {"n": n, "value": draw.choice([0, 1.5, True, -3]), "device": "cpu"}


def _integers(site: Site) -> bool | None:
    found = [site.is_int("n"), site.is_int("m")]
    return False if False in found else (True if all(found) else None)


IS_DEVICE = Condition(
    "is-device", "the argument of to() is a device", lambda site: site.is_device("device")
)
ONE_INTEGER = Condition("integer-limits", "the limit is an integer", lambda site: site.is_int("n"))
INTEGERS = Condition("integer-limits", "both limits are integers", _integers)
NOT_A_TENSOR = Condition("is-number", "the value is a number", lambda site: site.is_number("value"))

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
    forms=(
        Form(zeros, zeros_there, inputs, (IS_DEVICE, OFTEN)),
        Form(zeros_2, zeros_2_there, pair_inputs, (IS_DEVICE, OFTEN)),
        Form(zeros_typed, zeros_typed_there, typed_inputs, (IS_DEVICE, OFTEN)),
        Form(ones, ones_there, inputs, (IS_DEVICE, OFTEN)),
        Form(ones_2, ones_2_there, pair_inputs, (IS_DEVICE, OFTEN)),
        Form(ones_typed, ones_typed_there, typed_inputs, (IS_DEVICE, OFTEN)),
        Form(full, full_there, full_inputs, (IS_DEVICE, OFTEN, NOT_A_TENSOR)),
        Form(counted, counted_there, inputs, (IS_DEVICE, OFTEN, ONE_INTEGER)),
        Form(counted_on, counted_on_there, pair_inputs, (IS_DEVICE, OFTEN, INTEGERS)),
    ),
    replaces=("MemcpyAsync", "TensorMove"),
    becomes=("ZerosLike", "Fill", "Range"),
    passes=(1, 0),
    requires="torch_npu>=2.1",
    needs_whole=True,
    valid=(
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
        # the dtype of a tensor as well
        """
def f(n: int, x: torch.Tensor):
    return torch.zeros(n).to(x)
""",
        # there is one on the host too
        """
def f(n: int, device: torch.device):
    mask = torch.zeros(n)
    return mask, mask.to(device)
""",
        # once, before all steps
        """
class Agent(nn.Module):
    def __init__(self, n: int, device: torch.device):
        super().__init__()
        self.rewards = torch.zeros(n).to(device)
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
class Loss(nn.Module):
    def forward(self, scores: torch.Tensor):
        weight = torch.zeros(scores.shape, dtype=torch.float16).to(self.device)
        return scores * weight
""",
            """
class Loss(nn.Module):
    def forward(self, scores: torch.Tensor):
        weight = torch.zeros(
            scores.shape, dtype=torch.float16, device=self.device
        )
        return scores * weight
""",
        ),
    ),
)
