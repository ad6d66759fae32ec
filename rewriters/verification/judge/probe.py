"""Looking at the operands that the new code would get, before anything is compared."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.edit.job import PROBE
from npufix.rewriters.verification.calls.observe import CALL_S, PreparedCall, seed_everything
from npufix.rewriters.verification.inputs.assumptions import meets
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.verification.inputs.target import CallCase, Target


class OperandsSeenError(Exception):
    """Ends a call once its operands are known."""


class AssumptionProbe:
    """Runs a call up to the place of the new code."""

    def __init__(self, targets: Sequence[Target], vouched: Sequence[str]) -> None:
        """Take the versions of the module that ask for the operands, each at one place."""
        self._targets = tuple(targets)
        self._vouched = tuple(vouched)

    def keeps(self, case: CallCase, dtype: torch.dtype = torch.float32) -> bool:
        """Tell whether a call keeps what the user vouches for, wherever it comes to the places."""
        return all(self._kept(target, case, dtype) for target in self._targets)

    def _kept(self, target: Target, case: CallCase, dtype: torch.dtype) -> bool:
        kept: list[bool] = []

        def take(**operands: object) -> None:
            kept.append(meets(self._vouched, operands))
            raise OperandsSeenError

        prepared = try_call(lambda: target.prepare(case, dtype), CALL_S).value
        if not isinstance(prepared, PreparedCall):
            return True
        seed_everything(case.seed)
        setattr(builtins, PROBE, take)
        try:
            try_call(lambda: prepared.call(prepared.arguments), CALL_S)
        finally:
            delattr(builtins, PROBE)
        return all(kept)


def arguments_keep(
    target: Target, vouched: Sequence[str], case: CallCase, dtype: torch.dtype = torch.float32
) -> bool:
    """Tell whether the arguments of a call keep it, and the weights of what it is made on.

    For code that no rule knows: only the user's own names say what an argument is.
    """
    prepared = try_call(lambda: target.prepare(case, dtype), CALL_S).value
    if not isinstance(prepared, PreparedCall):
        return True
    return meets(vouched, {**prepared.state(), **prepared.arguments})
