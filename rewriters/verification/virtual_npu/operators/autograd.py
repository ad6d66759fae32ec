"""What forward and backward share: the random numbers they draw, gradients below autograd."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from npufix.rewriters.verification.virtual_npu.host_memory import DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

_SPREAD = 0x9E3779B97F4A7C15
_LARGEST = 2**63 - 1


@contextmanager
def draw_from(state: Sequence[int] | None) -> Iterator[None]:
    """Draw what follows from seed and offset, and leave the host's generator as it was."""
    if not state:
        yield
        return
    generator = torch.default_generator
    before = generator.get_state()
    seed = 0
    for number in state:
        seed = (seed * _SPREAD + number + 1) & _LARGEST
    generator.manual_seed(seed)
    try:
        yield
    finally:
        generator.set_state(before)


def find_generator(operator: Any, values: Iterable[object]) -> torch.Generator | None:  # noqa: ANN401 - torch has no annotation for one
    """Return what an operator on the device may draw from, its own generator or the device's."""
    if operator.namespace == "aten" and torch.Tag.nondeterministic_seeded not in operator.tags:
        return None
    own = (v for v in values if isinstance(v, torch.Generator) and v.device.type == DEVICE)
    npu: Any = torch.npu  # type: ignore[attr-defined] # torch_npu adds it
    return next(own, None) or npu.default_generators[npu.current_device()]


def read_state(generator: torch.Generator | None) -> tuple[int, ...]:
    """Return seed and offset of a generator of the device."""
    if generator is None:
        return ()
    numbers: list[int] = generator.get_state().view(torch.int64).tolist()
    return tuple(numbers)


_T = TypeVar("_T")


def record_gradients(call: Callable[[], _T]) -> _T:
    """Return what a call returns in which gradients are recorded.

    In a thread of its own: what an operator on its way through torch has switched off is off in
    its thread only.
    """

    def recorded() -> _T:
        with torch.enable_grad():
            return call()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(recorded).result()
