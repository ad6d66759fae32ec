"""Calls of the original that tell what a legal call is: one that it runs through."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.device import (
    compute_on_device,
    device_failure,
    scale_timeout,
    wait_for,
)
from npufix.rewriters.verification.calls.leaves import find_leaves
from npufix.rewriters.verification.calls.observe import CALL_S, observe
from npufix.rewriters.verification.calls.surroundings import seed_everything
from npufix.rewriters.verification.inputs.target import Assignment, CallCase, Target
from npufix.rewriters.verification.sandbox.try_call import try_call
from npufix.rewriters.verification.verdict import BackendLimitError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npufix.rewriters.verification.calls.observe import Gradients

    Change = Callable[[Mapping[str, object]], Mapping[str, object]]

_MODES: tuple[Gradients, ...] = ("leaf", "copy")


@dataclass(slots=True)
class Trials:
    """The original, called to see whether it takes something."""

    target: Target
    seconds: float = 0.0
    """Of processor time, for the last call."""
    _accepted: dict[str, bool] = field(default_factory=dict)

    @classmethod
    def of(cls, target: Target, known: Assignment) -> Trials:
        """Return trials on the host, which is faster, unless the code runs on the device alone."""
        on_host = cls(target.on_host())
        return on_host if not target.on_npu or on_host.accepts(known) else cls(target)

    def accepts(self, assignment: Assignment) -> bool:
        """Say whether the original runs with these arguments."""
        key = f"{assignment} {assignment.recipe}"
        if key not in self._accepted:
            self._accepted[key] = self.run(CallCase(assignment)) is not None
        return self._accepted[key]

    def run(
        self, case: CallCase, change: Change | None = None, *, gradients: bool = False
    ) -> dict[str, object] | None:
        """Return the parts of what the original returns and leaves; None if it raises.

        ``change`` is made to the arguments before the call; ``gradients`` are a part of it, for
        code that has any.

        Raises:
            BackendLimitError: the device itself failed.

        """

        def call() -> dict[str, object]:
            prepared = self.target.prepare(case, torch.float32)
            given = prepared.arguments if change is None else change(prepared.arguments)
            if gradients:
                for mode in _MODES:
                    seen = observe(replace(prepared, arguments=given), mode, case.seed)
                    if not seen.error:
                        return {**seen.tensors, **seen.plain}
            seed_everything(case.seed)
            with torch.no_grad():
                result = wait_for(prepared.call(given))
            return dict(find_leaves(result, "result")) | dict(prepared.state())

        started = time.process_time()
        with compute_on_device(on_npu=self.target.on_npu):
            outcome = try_call(call, scale_timeout(CALL_S))
        self.seconds = time.process_time() - started
        failed = device_failure(outcome.error) if self.target.on_npu else ""
        if failed:
            raise BackendLimitError(failed)
        return outcome.value if isinstance(outcome.value, dict) else None


def with_specs(assignment: Assignment, **specs: object) -> Assignment:
    """Return the same assignment with other arguments of these names."""
    return replace(assignment, specs={**assignment.specs, **specs})  # type: ignore[dict-item] # they are specs
