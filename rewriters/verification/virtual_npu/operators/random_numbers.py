"""The random numbers of the device, drawn on the host from where the device's generator stands.

A generator of the device is a seed and an offset, which the wheel moves on. After
``torch.manual_seed(7)`` the device stands at (7, 0) and draws what the host would after the same:
so results can be compared with those of the host, and with one seed ``F.dropout``,
``F.dropout_`` and fused attention drop the same.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from npufix.rewriters.verification.virtual_npu.host_memory import DEVICE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SPREAD = 0x9E3779B97F4A7C15
_LARGEST = 2**63 - 1
_MOST_STATES = 4096
_states: dict[tuple[int, ...], torch.Tensor] = {}
"""The host's generator where the device last stood at seed and offset, of 5 KB each."""


def find_generator(operator: Any, given: object) -> torch.Generator | None:  # noqa: ANN401 - torch has no annotation for one
    """Return what an operator on the device may draw from, its own generator or the device's.

    ``given``: its arguments, nested as they are.
    """
    if operator.namespace == "aten" and torch.Tag.nondeterministic_seeded not in operator.tags:
        return None
    values = tree_leaves(given)
    own = (v for v in values if isinstance(v, torch.Generator) and v.device.type == DEVICE)
    npu: Any = torch.npu  # type: ignore[attr-defined] # torch_npu adds it
    return next(own, None) or npu.default_generators[npu.current_device()]


def read_state(generator: torch.Generator | None) -> tuple[int, ...]:
    """Return seed and offset of a generator of the device; nothing for none."""
    if generator is None:
        return ()
    numbers: list[int] = generator.get_state().view(torch.int64).tolist()
    return tuple(numbers)


@contextmanager
def draw_from(state: Sequence[int], then: tuple[int, ...] = ()) -> Iterator[None]:
    """Draw what follows from seed and offset, and leave the host's generator as it was.

    ``then``: where the device's generator stands afterwards. Without a state nothing changes.
    """
    if not state:
        yield
        return
    generator = torch.default_generator
    before = generator.get_state()
    follows = _stand_at(generator, tuple(state))
    try:
        yield
        if follows and then and (then in _states or len(_states) < _MOST_STATES):
            _states[then] = generator.get_state()
    finally:
        generator.set_state(before)


def _stand_at(generator: torch.Generator, state: tuple[int, ...]) -> bool:
    """Say whether the host's generator could be led to where the device's came from."""
    known = _states.get(state)
    if known is not None:
        generator.set_state(known)
        return True
    seed, *offset = state
    if not any(offset):
        generator.manual_seed(seed)
        return True
    mixed = 0
    for number in state:
        mixed = (mixed * _SPREAD + number + 1) & _LARGEST
    generator.manual_seed(mixed)
    return False
