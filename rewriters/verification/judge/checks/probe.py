"""Looking at the operands that the new code would get, before anything is compared."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.edit.job import PROBE
from npufix.rewriters.verification.calls.observe import CALL_S, PreparedCall
from npufix.rewriters.verification.calls.surroundings import seed_everything
from npufix.rewriters.verification.inputs.assumptions import meets
from npufix.rewriters.verification.sandbox.remote import runs_with_target
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npufix.rewriters.verification.inputs.target import CallCase, Target


class OperandsSeenError(Exception):
    """Ends a call once its operands are known."""


@runs_with_target
def operands_keep(
    targets: Sequence[Target],
    vouched: Sequence[str],
    case: CallCase,
    dtype: torch.dtype = torch.float32,
) -> bool:
    """Tell whether a call keeps what the user vouches for, wherever it comes to the new code.

    ``targets`` are the versions of the module that ask for the operands, each at one place.
    """
    return all(_is_kept(target, vouched, case, dtype) for target in targets)


def _is_kept(target: Target, vouched: Sequence[str], case: CallCase, dtype: torch.dtype) -> bool:
    kept: list[bool] = []

    def take(**operands: object) -> None:
        kept.append(meets(vouched, operands))
        raise OperandsSeenError

    prepared = try_call(lambda: target.prepare(case, dtype), CALL_S).value
    if not isinstance(prepared, PreparedCall):
        return True
    seed_everything(case.seed)
    namespace = target.loaded.namespace
    namespace[PROBE] = take
    try:
        for arguments in _list_arguments(prepared):
            try_call(partial(prepared.call, arguments), CALL_S)
    finally:
        del namespace[PROBE]
    return all(kept)


@runs_with_target
def arguments_keep(
    target: Target, vouched: Sequence[str], case: CallCase, dtype: torch.dtype = torch.float32
) -> bool:
    """Tell whether the arguments of a call keep it, and the weights of what it is made on.

    For code that no rule knows: only the user's own names say what an argument is.
    """
    prepared = try_call(lambda: target.prepare(case, dtype), CALL_S).value
    if not isinstance(prepared, PreparedCall):
        return True
    state = prepared.state()
    return all(meets(vouched, {**state, **given}) for given in _list_arguments(prepared))


def _list_arguments(prepared: PreparedCall) -> list[Mapping[str, object]]:
    """Return the arguments of a call, after those of the call that comes before it.

    The user vouches for both: an image in float32 may not come before one in bfloat16 where the
    weights must have its dtype.
    """
    earlier = prepared.earlier
    return [prepared.arguments] if earlier is None else [earlier, prepared.arguments]
