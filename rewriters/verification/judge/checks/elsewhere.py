"""Tensors on another device than the CPU, as far as a machine without one can tell.

On torch's device ``meta``, which has shapes and no numbers, what makes a tensor without
``device=`` fails as it does on every NPU: ``Expected all tensors to be on the same device``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from npufix.rewriters.verification.calls.observe import CALL_S, CallRecord
from npufix.rewriters.verification.calls.surroundings import seed_everything
from npufix.rewriters.verification.judge.difference import Difference, Seen
from npufix.rewriters.verification.judge.observe_case import CaseRun
from npufix.rewriters.verification.judge.programs.replay import OneDevice
from npufix.rewriters.verification.sandbox.remote import runs_with_target
from npufix.rewriters.verification.sandbox.try_call import Outcome, try_call

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from npufix.rewriters.verification.inputs.target import CallCase, Target

ELSEWHERE = "meta"
_MOST = 3
_OTHER_DEVICE = (
    r"same device|(is|are) on cpu|on device cpu|expected device (meta|cpu)|from device cpu"
    r"|devices?,? (meta and cpu|cpu and meta)|two different devices"
)


class Mismatch(NamedTuple):
    """A call that works on another device with the original alone."""

    one: CaseRun
    difference: Difference
    is_indexed: bool
    """Whether the original itself picks there with an index of the host.

    Its author may think of no device: ``labels[torch.rand(labels.shape) < 0.1] = -100`` in a
    collator. So this tells for what the two are not equal, and refutes nothing.
    """


def find_device_mismatch(
    original: Target, patched: Target, compared: Sequence[CaseRun]
) -> Mismatch | None:
    """Return a call that works on another device with the original alone."""
    seen: set[str] = set()
    for one in compared:
        name = str(one.case.assignment)
        if name in seen or one.case.flavour != "ordinary":
            continue
        if len(seen) >= _MOST:
            break
        seen.add(name)
        before = _run_elsewhere(original, one.case, one.dtype)
        if before.error:
            continue
        error = _run_elsewhere(patched, one.case, one.dtype).error
        if re.search(_OTHER_DEVICE, error):
            record = CallRecord()
            shown = CaseRun(one.case, one.dtype, "none", record, device=ELSEWHERE)
            text = f"on every device but the CPU the original runs, the patched code raises {error}"
            found = Difference(text, shown.label, one.case.size, seen=Seen.ERROR)
            return Mismatch(shown, found, is_indexed=bool(before.value))
    return None


@runs_with_target
def _run_elsewhere(target: Target, case: CallCase, dtype: torch.dtype) -> Outcome:
    """Return what a call raises, and whether the host's numbers were an index in it."""

    def run() -> bool:
        prepared = target.on_host().prepare(case, dtype, device=ELSEWHERE)
        seed_everything(case.seed)
        devices = OneDevice()
        with devices:
            prepared.call(prepared.arguments)
        return devices.is_indexed

    return try_call(run, CALL_S)
