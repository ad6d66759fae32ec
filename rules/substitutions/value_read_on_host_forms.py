"""What Python takes out of tensors one by one, and several numbers of one statement: read at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from npufix.rules.substitution import Draw


def asked(x: Tensor, y: Tensor) -> Tensor:
    """Have Python look at one element after the other."""
    return y * 2 if any(x > 1) else y


def asked_at_once(x: Tensor, y: Tensor) -> Tensor:
    """Have the device look at all of them."""
    return y * 2 if (x > 1).any() else y


def longest(x: Tensor, y: Tensor) -> Tensor:
    """Have Python compare one element after the other."""
    return y * max(x)


def longest_at_once(x: Tensor, y: Tensor) -> Tensor:
    """Have the device compare them."""
    return y * x.max()


def furthest(x: Tensor, y: Tensor) -> Tensor:
    """Have Python compare what each element is more than the one before it."""
    return y * max([x[i + 1] - x[i] for i in range(len(x) - 1)])


def furthest_at_once(x: Tensor, y: Tensor) -> Tensor:
    """Have the device compare them."""
    return y * x.diff(dim=0).max()


def summed(x: Tensor, y: Tensor) -> Tensor:
    """Have Python add one row after the other."""
    return y * sum(x)


def summed_at_once(x: Tensor, y: Tensor) -> Tensor:
    """Have the device add them."""
    return y * x.sum(0)


def elements_inputs(draw: Draw) -> dict[str, Any]:
    """Return some numbers, one at least, and rows to compute with."""
    import torch

    y = draw.floats(draw.integer(1, 4), 3, dtype=torch.float32)
    return {"x": draw.integers(draw.integer(1, 4), low=0, high=3), "y": y}


def furthest_inputs(draw: Draw) -> dict[str, Any]:
    """Return two numbers or more, in a column now and then."""
    import torch

    column = draw.choice([(), (1,)])
    y = draw.floats(draw.integer(1, 4), 3, dtype=torch.float32)
    return {"x": draw.integers(draw.integer(2, 5), *column, low=0, high=9), "y": y}


def read_each(x: Tensor, y: Tensor) -> tuple[Tensor, list[float]]:
    """Read what is computed of each row."""
    return y * 2, [row.sum().item() for row in x]


def read_together(x: Tensor, y: Tensor) -> tuple[Tensor, list[float]]:
    """Compute it of each row, then read all of it."""
    return y * 2, torch.stack([row.sum() for row in x]).tolist()


def listed_rows(x: Tensor, y: Tensor) -> tuple[Tensor, list[list[float]]]:
    """Read one row after the other."""
    return y * 2, [row.tolist() for row in x]


def listed_at_once(x: Tensor, y: Tensor) -> tuple[Tensor, list[list[float]]]:
    """Read all of them."""
    return y * 2, x.tolist()


def read_apart(x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Read several numbers of one statement."""
    return y * 2, {"x": x.sum().item(), "y": y.mean().item()}


def read_at_once(x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Read them together before it."""
    first, second = torch.stack([x.sum(), y.mean()]).tolist()
    return y * 2, {"x": first, "y": second}


def read_inputs(draw: Draw) -> dict[str, Any]:
    """Return some rows, one at least."""
    import torch

    y = draw.floats(draw.integer(1, 4), 3, dtype=torch.float32)
    return {"x": draw.floats(draw.integer(1, 4), 3, dtype=torch.float32), "y": y}


def found_on_device(x: Tensor, y: Tensor) -> tuple[Tensor, list[list[int]]]:
    """Copy the places that a mask has: how many there are the host waits for as well."""
    return y * 2, (x > 0).nonzero().tolist()


def found_on_host(x: Tensor, y: Tensor) -> tuple[Tensor, list[list[int]]]:
    """Copy the mask, and look for its places there."""
    return y * 2, (x > 0).cpu().nonzero().tolist()


def copied_by_row(x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Copy each row of its own."""
    return y * 2, [x[i].cpu() for i in range(len(x))]


def copied_before(x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Copy all of them, and take the rows of the copy."""
    x_cpu = x.cpu()
    return y * 2, [x_cpu[i] for i in range(len(x))]


def read_in_rounds(x: Tensor, y: Tensor) -> tuple[Tensor, list[float]]:
    """Read the same number in each round."""
    return y * 2, [x.sum().item() + i for i in range(3)]


def read_before_rounds(x: Tensor, y: Tensor) -> tuple[Tensor, list[float]]:
    """Read it once before the loop."""
    x_sum = x.sum().item()
    return y * 2, [x_sum + i for i in range(3)]


def last_filled(x: Tensor, y: Tensor) -> Tensor:
    """Go back over rows of zeros, and look at each of them."""
    n = len(x) - 1
    while n > 0 and x[n].sum() == 0:
        n -= 1
    return y * n


def last_filled_at_once(x: Tensor, y: Tensor) -> Tensor:
    """Add up all rows first."""
    n = len(x) - 1
    sums = x.flatten(1).sum(1).tolist()
    while n > 0 and sums[n] == 0:
        n -= 1
    return y * n


def padded_inputs(draw: Draw) -> dict[str, Any]:
    """Return rows, the last of them zeros, and what to compute with."""
    import torch

    x = draw.floats(draw.integer(1, 3), 3, dtype=torch.float32)
    y = draw.floats(draw.integer(1, 4), 3, dtype=torch.float32)
    return {"x": torch.cat([x, torch.zeros(draw.integer(0, 3), 3)]), "y": y}
