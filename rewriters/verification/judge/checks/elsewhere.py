"""Tensors on another device than the CPU, as far as a machine without one can tell.

On torch's device ``meta``, which has shapes and no numbers, what makes a tensor without
``device=`` fails as it does on every NPU: ``Expected all tensors to be on the same device``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npufix.rewriters.verification.calls.observe import CALL_S, CallRecord
from npufix.rewriters.verification.calls.surroundings import seed_everything
from npufix.rewriters.verification.judge.judge import Difference, Seen
from npufix.rewriters.verification.judge.observe_case import CaseRun
from npufix.rewriters.verification.judge.programs.replay import OneDevice
from npufix.rewriters.verification.sandbox.remote import runs_with_target
from npufix.rewriters.verification.sandbox.try_call import try_call

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


def find_device_mismatch(
    original: Target, patched: Target, compared: Sequence[CaseRun]
) -> tuple[CaseRun, Difference] | None:
    """Return a call that works on another device with the original alone."""
    seen: set[str] = set()
    for one in compared:
        name = str(one.case.assignment)
        if name in seen or one.case.flavour != "ordinary":
            continue
        if len(seen) >= _MOST:
            break
        seen.add(name)
        if _error_elsewhere(original, one.case, one.dtype):
            continue
        error = _error_elsewhere(patched, one.case, one.dtype)
        if re.search(_OTHER_DEVICE, error):
            record = CallRecord()
            shown = CaseRun(one.case, one.dtype, "none", record, device=ELSEWHERE)
            text = f"on every device but the CPU the original runs, the patched code raises {error}"
            return shown, Difference(text, shown.label, one.case.size, seen=Seen.ERROR)
    return None


@runs_with_target
def _error_elsewhere(target: Target, case: CallCase, dtype: torch.dtype) -> str:
    def run() -> object:
        prepared = target.on_host().prepare(case, dtype, device=ELSEWHERE)
        seed_everything(case.seed)
        with OneDevice():  # type: ignore[no-untyped-call] # torch does not annotate it
            return prepared.call(prepared.arguments)

    return try_call(run, CALL_S).error
