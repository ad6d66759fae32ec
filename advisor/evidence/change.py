"""What a finding changes of a run: kernels that go, and those that take their place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

Corners = tuple[float, float, float]
"""The least that is saved by it, what is expected, and the most."""


@dataclass(frozen=True, slots=True)
class NewWork:
    """The kernels that take the place of others in one execution."""

    launches: int
    time_ns: Corners
    """Of all of them."""
    basis: str = ""
    """What they are measured by."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is to happen to some kernels.

    They go, and ``forward`` and ``backward`` take their place in each of ``executions``; or,
    without ``executions``, they keep a part of their time.
    """

    kernels: AbstractSet[int]
    """Labels of ``Profile.kernels``, over all steady steps."""
    executions: int = 0
    """Over all steady steps."""
    forward: NewWork | None = None
    backward: NewWork | None = None
    goes: bool = False
    """Whether of ``kernels`` as many go as of their time, and their launches, instead."""
    dropped: AbstractSet[int] = frozenset()
    """Which of ``kernels`` go, however much of the time of all of them is kept: by the others."""
    keeps: Corners = (1.0, 1.0, 1.0)
    """Share of their time, and of ``sooner_ns``; without kernels, whether ``waits`` are kept."""
    waits: frozenset[int] = frozenset()
    """Labels of the operators of the host that need not wait any more."""
    stays_ns: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """How long the device is busy before its next kernel with what one of ``waits`` waited for, as
    expected and at worst; at best it is so meanwhile."""
    at_least_ns: int = 0
    """What a step takes at least, in what is expected: batches come no sooner."""
    at_worst_ns: int = 0
    """The same of what is saved at least."""
    sooner_ns: Mapping[int, int] = field(default_factory=dict)
    """How much sooner the host launches a kernel, by its label: without a pause before it.

    By ``~label``, how much sooner the step ends behind its last kernel."""
    freed_ns: Mapping[int, int] = field(default_factory=dict)
    """How much sooner the device is free for a kernel, by its label: what it copies before that
    goes on beside it."""
    is_divided: bool = True
    """Whether no other such change takes what ``sooner_ns`` says."""
    hurries: AbstractSet[int] = frozenset()
    """Labels of the kernels before which the host needs only ``keeps`` of its time."""
    hides: bool = False
    """Whether ``kernels`` run beside others: launched as before, they keep their stream busy for
    ``keeps`` of their time."""
