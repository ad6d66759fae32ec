"""Looking at the operands that the new code would get, before anything is compared."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.attempt import attempt
from npufix.rewriters.verification.job import PROBE
from npufix.rewriters.verification.observe import CALL_S, Prepared, seed_everything
from npufix.rewriters.verification.vouched import meets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.verification.target import Case, Target


class OperandsSeenError(Exception):
    """Ends a call once its operands are known."""


class Probe:
    """Runs a call up to the place of the new code."""

    def __init__(self, target: Target, vouched: Sequence[str]) -> None:
        """Take the version of the module that asks for the operands."""
        self._target = target
        self._vouched = tuple(vouched)

    def keeps(self, case: Case, dtype: torch.dtype = torch.float32) -> bool:
        """Tell whether a call keeps what the user vouches for, wherever it comes to the place."""
        kept: list[bool] = []

        def take(**operands: object) -> None:
            kept.append(meets(self._vouched, operands))
            raise OperandsSeenError

        prepared = attempt(lambda: self._target.prepare(case, dtype), CALL_S).value
        if not isinstance(prepared, Prepared):
            return True
        seed_everything(case.seed)
        setattr(builtins, PROBE, take)
        try:
            attempt(lambda: prepared.call(prepared.arguments), CALL_S)
        finally:
            delattr(builtins, PROBE)
        return all(kept)
