"""The tensors and plain values inside of anything, each with the name that code would give it."""

from __future__ import annotations

import collections
import random
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_DEPTH = 6
_Tensor = torch.Tensor
_PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
"""A class of its own may compute something else with what it holds."""
_PLAIN = frozenset({bool, bytes, int, str, type(None)})
"""What most of what is found is: asked for first."""
_FEEDING = frozenset({"num_workers", "persistent_workers", "pin_memory", "prefetch_factor"})
"""How a loader makes its batches, not what they hold."""


def find_leaves(value: object, name: str, depth: int = 0) -> Iterator[tuple[str, object]]:
    """Yield tensors and plain values of a nested result, each with a readable name."""
    if type(value) in _PLAIN or isinstance(value, (int, str, bytes)):
        yield name, value
    elif isinstance(value, _Tensor):
        if type(value) not in _PLAIN_TENSORS:
            yield f"type of {name}", type(value).__name__
        yield name, value
    elif isinstance(value, float):
        number = torch.tensor(value, dtype=torch.float32)
        number.of_python = True  # type: ignore[attr-defined] # it has no dtype of its own
        yield name, number
    elif isinstance(value, (torch.dtype, torch.device)):
        yield name, str(value)
    elif type(value).__module__ == "numpy" and hasattr(value, "dtype"):
        yield f"type of {name}", type(value).__name__
        yield name, torch.as_tensor(value)
    elif isinstance(value, (torch.Generator, random.Random)):
        state = value.get_state().numpy().tobytes() if isinstance(value, torch.Generator) else None
        yield f"state of {name}", zlib.crc32(state or repr(value.getstate()).encode())  # type: ignore[union-attr] # then it has one
    elif isinstance(value, (set, frozenset)):
        yield f"type of {name}", type(value).__name__
        yield name, tuple(sorted(map(repr, value)))
    else:
        yield f"type of {name}", type(value).__name__
        for inner, item in _items(value, name) if depth < _DEPTH else ():
            yield from find_leaves(item, inner, depth + 1)


def _items(value: object, name: str) -> list[tuple[str, object]]:
    if isinstance(value, (dict, Mapping)):
        return [(f"{name}[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, (list, tuple, collections.deque)):
        return [(f"{name}[{index}]", item) for index, item in enumerate(value)]
    if isinstance(value, (type, torch.nn.Module)) or callable(value):
        return []
    if isinstance(value, torch.optim.Optimizer):
        return [(f"{name}.param_groups", value.param_groups)]
    left_out = _FEEDING if isinstance(value, torch.utils.data.DataLoader) else frozenset[str]()
    attributes: dict[str, object] = getattr(value, "__dict__", {})
    return [(f"{name}.{key}", item) for key, item in attributes.items() if key not in left_out]
