"""The lines that calls of the original run."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.coverage import LinesToCover, Place, trace_lines
from npufix.rewriters.verification.calls.device import (
    compute_on_device,
    device_failure,
    scale_timeout,
    wait_for,
)
from npufix.rewriters.verification.calls.observe import CALL_S, observe, seed_everything
from npufix.rewriters.verification.sandbox.remote import runs_with_target
from npufix.rewriters.verification.sandbox.try_call import try_call
from npufix.rewriters.verification.verdict import BackendLimitError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.verification.inputs.search_result import SearchResult
    from npufix.rewriters.verification.inputs.target import CallCase, Target

_FURTHER_S = 1.0


@runs_with_target
def trace_call(
    target: Target, case: CallCase, found: SearchResult | None = None, times: int = 1
) -> set[Place] | None:
    """Return the lines of the module that this call runs, so many times; None if it raises."""
    with compute_on_device(on_npu=target.on_npu), trace_lines(target.loaded.filename) as lines:

        def call() -> object:
            dtype = next(iter(case.dtypes), torch.float32)
            prepared = target.prepare(case, dtype, again=found is not None)
            seed_everything(case.seed)
            if target.applied is not None:  # its gradient is a part of what it runs
                return observe(prepared, "leaf", case.seed).or_raise()
            if prepared.earlier is not None:
                prepared.call(prepared.earlier)
            for _ in range(times - 1):
                prepared.call(prepared.arguments)
            return wait_for(prepared.call(prepared.arguments))

        outcome = try_call(call, scale_timeout(CALL_S))
    failed = device_failure(outcome.error) if target.on_npu else ""
    if failed:
        raise BackendLimitError(failed)
    if found is not None:
        if outcome.error:
            found.errors[outcome.error] += 1
            found.expired += outcome.expired
        else:
            found.ran = True
            target.discard_object()
    return None if outcome.error else lines


@runs_with_target
def trace_cases(
    target: Target, cases: Sequence[CallCase], wanted: LinesToCover, ran: set[Place]
) -> set[Place]:
    """Return the lines that have run once these calls have, as far as all of them are wanted."""
    ran, deadline = set(ran), time.process_time() + scale_timeout(_FURTHER_S)
    for case in cases:
        if not wanted.unreached(ran) or time.process_time() > deadline:
            break
        ran |= trace_call(target, case) or set()
    return ran
