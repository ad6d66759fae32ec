"""Whether cosines lie between -1 and 1, asked by value, and no more often than need be.

No other question waits for the device. A table that all layers share is read once: its answer is
kept for the very tensor, as long as nobody writes into it. Where tables are new at each call the
reads would never end, so that a place gives up after a few.
"""

from __future__ import annotations

import weakref
from collections import Counter
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from npufix.advisor.runtime.calls.questions import NEW_EACH_TIME, NOT_READ_HERE, WITHIN_ONE

if TYPE_CHECKING:
    from collections.abc import Hashable

MOST_READS = 8
"""How often a place may read in vain: a table that is not used again, or a scaled one."""
_MOST_KNOWN = 256
_LIMIT = 1 + 2.0**-16
"""A kernel may compute a cosine of 1.0000001; the scale of YaRN for twice the length is 1.07."""


class CosineTables:
    """What is known about the tables of this process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: dict[Hashable, tuple[weakref.ref[Any], weakref.ref[Any], bool]] = {}
        self._in_vain: Counter[str] = Counter()
        self._scaled: set[str] = set()
        """Places whose last table that was read is not within one."""

    def within_one(self, place: str, cos: torch.Tensor, sin: torch.Tensor) -> str:
        """Return "" if two tables are within one, otherwise what is to be noted."""
        if _is_traced():
            return NOT_READ_HERE
        key = _key(cos, sin)
        with self._lock:
            answer = self._answer(key, cos, sin)
            if answer:
                self._in_vain[place] = 0
            gives_up = self._in_vain[place] >= MOST_READS and not _is_checkpointed()
        if answer is None:
            if gives_up:
                return WITHIN_ONE if place in self._scaled else NEW_EACH_TIME
            if _is_captured():
                return NOT_READ_HERE
            answer = _read(cos, sin)
            with self._lock:
                self._in_vain[place] += 1
                (self._scaled.discard if answer else self._scaled.add)(place)
                self._keep(key, cos, sin, answer=answer)
        return "" if answer else WITHIN_ONE

    def try_again(self) -> None:
        """Let every place read again: what is applied anew may be another program."""
        with self._lock:
            self._in_vain.clear()

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._known.clear()
            self._scaled.clear()
            self._in_vain.clear()

    def _answer(self, key: Hashable, cos: torch.Tensor, sin: torch.Tensor) -> bool | None:
        known = self._known.get(key)
        if known is None or known[0]() is not _owner(cos) or known[1]() is not _owner(sin):
            return None
        return known[2]

    def _keep(self, key: Hashable, cos: torch.Tensor, sin: torch.Tensor, *, answer: bool) -> None:
        if key is None:
            return
        if len(self._known) >= _MOST_KNOWN:  # those whose tensors are gone, or the oldest
            gone = [k for k, v in self._known.items() if v[0]() is None or v[1]() is None]
            for old in gone or list(self._known)[: _MOST_KNOWN // 2]:
                del self._known[old]
        self._known[key] = weakref.ref(_owner(cos)), weakref.ref(_owner(sin)), answer


TABLES = CosineTables()


def _owner(table: torch.Tensor) -> torch.Tensor:
    """Return the tensor that a view looks at: views of one tensor share its version."""
    base = table._base  # noqa: SLF001 - nothing public tells
    return table if base is None else base


def _key(cos: torch.Tensor, sin: torch.Tensor) -> Hashable:
    """Return what tells tables from others and from later contents; ``None``: nothing does."""
    if cos.is_inference() or sin.is_inference():  # they do not say whether they were written to
        return None
    return tuple(
        (id(_owner(t)), t._version, t.dtype, t.storage_offset(), t.shape, t.stride())  # noqa: SLF001 - documented
        for t in (cos, sin)
    )


def _read(cos: torch.Tensor, sin: torch.Tensor) -> bool:
    """Ask the device: one reduction over both tables, one number read; NaN is not within one."""
    with torch.no_grad():
        both = torch.cat((cos.detach().flatten(), sin.detach().flatten()))
        return both.numel() == 0 or bool(both.abs().amax().item() <= _LIMIT)


def _is_traced() -> bool:
    """Tell whether torch records the operators of this call or fakes them: reading is none."""
    if torch._C._get_tracing_state() is not None:  # type: ignore[no-untyped-call, unused-ignore]  # noqa: SLF001 - as torch.jit asks
        return True
    stack = _get_current_dispatch_mode_stack()  # type: ignore[no-untyped-call, unused-ignore]
    return any(type(mode).__module__.partition(".")[0] == "torch" for mode in stack)


def _is_captured() -> bool:
    npu = getattr(torch, "npu", None)
    known = getattr(npu, "is_current_stream_capturing", None)
    return known is not None and bool(known())


def _is_checkpointed() -> bool:
    """Tell whether what is computed may be computed again: then it has to be done the same way."""
    peek = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)  # noqa: SLF001 - as torch asks
    if not torch.is_grad_enabled():
        return False
    return peek is None or peek(False) is not None  # noqa: FBT003 - positional only
