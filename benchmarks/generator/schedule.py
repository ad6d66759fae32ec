"""Which launches a step makes, in order, so that it has a given number of kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.generator.program import (
    CODES,
    LAYER,
    LAYER_BACKWARD,
    LOSS,
    LOSS_BACKWARD,
    READ_LOSS,
    REDUCE,
    SLOTS,
    UPDATE,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from benchmarks.generator.program import Launch
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

_LAYERS_PER_REDUCE = 4


@dataclass(frozen=True)
class Part:
    """Launches in a row: ``code`` into LAUNCHES, ``layer``, and ``sequence`` (-1 for none)."""

    code: Integers
    layer: Integers
    sequence: Integers


def step_parts(kernels: int, *, communication: bool) -> tuple[Part, ...]:
    """Return forward (up to the loss), backward and update of a step with so many kernels."""
    layers = _layers(kernels, communication=communication)
    if layers < 0:
        return (_repeated([UPDATE], kernels),)
    forward = _joined(
        _repeated(LAYER, layers), _repeated(LOSS, 1, layers), _repeated([READ_LOSS], 1, layers)
    )
    backward = _joined(
        _repeated(LOSS_BACKWARD, 1, layers), _backward(layers, communication=communication)
    )
    used = _listed(LAYER) * layers + len(backward.code) + _listed(LOSS)
    return forward, backward, _repeated([UPDATE], kernels - used)


def _layers(kernels: int, *, communication: bool) -> int:
    """Return how many layers fit, -1 if not even the loss does."""
    fixed = _listed(LOSS) + _listed(LOSS_BACKWARD)
    if kernels < fixed:
        return -1
    per_layer = _listed(LAYER) + _listed(LAYER_BACKWARD)
    layers = (kernels - fixed) // per_layer
    while layers * per_layer + _reduces(layers) * communication > kernels - fixed:
        layers -= 1
    return layers


def _reduces(layers: int) -> int:
    return -(-layers // _LAYERS_PER_REDUCE)


def _listed(launches: Iterable[Launch]) -> int:
    return sum(kernel.listed for launch in launches for kernel in launch.kernels)


def _repeated(launches: Iterable[Launch], times: int, first_layer: int = 0) -> Part:
    """Return the launches of ``times`` layers, one after the other."""
    row = list(launches)
    layer = first_layer + np.repeat(np.arange(times), len(row))
    # An operator without autograd node has the number that the next one with a node gets.
    slots, following = [], SLOTS
    for launch in reversed(row):
        following = launch.slot if launch.slot >= 0 else following
        slots.append(following if len(launch.chain) > 1 else -1)
    slot = np.tile(np.array(slots[::-1], np.int64), times)
    return Part(
        code=np.tile(np.array([CODES[launch] for launch in row], np.int64), times),
        layer=layer,
        sequence=np.where(slot < 0, -1, layer * SLOTS + slot),
    )


def _backward(layers: int, *, communication: bool) -> Part:
    """Return the layers in reverse, with a collective after every few of them."""
    part = _repeated(LAYER_BACKWARD, layers)
    layer = layers - 1 - part.layer
    slots = np.tile(np.array([launch.slot for launch in LAYER_BACKWARD], np.int64), layers)
    sequence = np.where(slots < 0, -1, layer * SLOTS + slots)
    behind = np.arange(1, _reduces(layers) * communication + 1) * _LAYERS_PER_REDUCE
    at = np.minimum(behind, layers) * len(LAYER_BACKWARD)
    return Part(
        code=np.insert(part.code, at, CODES[REDUCE]),
        layer=np.insert(layer, at, np.maximum(layers - behind, 0)),
        sequence=np.insert(sequence, at, -1),
    )


def _joined(*parts: Part) -> Part:
    return Part(
        np.concatenate([part.code for part in parts]),
        np.concatenate([part.layer for part in parts]),
        np.concatenate([part.sequence for part in parts]),
    )
