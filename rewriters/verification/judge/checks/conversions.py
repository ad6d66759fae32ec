"""What a change keeps as a buffer, and ``module.half()`` rounds, where a call made it anew.

Calls are made on modules that are converted. Where results differ by more than their own rounding,
they refute; of slopes or windows they differ by less, and the user is told: experts keep such
tables as buffers, and convert most modules before they train.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.observe import CALL_S
from npufix.rewriters.verification.judge.observe_case import CaseRun, observe_version
from npufix.rewriters.verification.sandbox.remote import runs_with_target
from npufix.rewriters.verification.sandbox.try_call import try_call
from npufix.rewriters.verification.verdict import NotVerifiedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.verification.calls.observe import CallRecord
    from npufix.rewriters.verification.inputs.recipes import Recipe
    from npufix.rewriters.verification.inputs.target import Target
    from npufix.rewriters.verification.judge.difference import Difference

_LOW = (torch.bfloat16, torch.float16)
_OF_TYPES = re.compile(r" is (\w+)\[[^\]]*\] in the original, (\w+)\[")
_MOST = 12
"""Calls in low precision that are made again."""


def require_own_types(differences: Sequence[Difference], compared: Sequence[CaseRun]) -> None:
    """Decide nothing by types of halves that only come of converting what nobody converts.

    ``self.table = torch.arange(n) * 0.1`` stays in float32 when its module is converted, and what
    is multiplied by it is then in float32 too; calls are made with both in bfloat16.

    Raises:
        NotVerifiedError: nothing else differs.

    """
    cases = {one.label: one for one in compared}
    plain: list[str] = []
    for difference in differences:
        one = cases.get(difference.case)
        types = _OF_TYPES.search(difference.text)
        if one is None or one.dtype not in _LOW or types is None or types[1] == types[2]:
            return
        seen = one.original
        saved = seen.plain.get("parameters and buffers")
        registered = {*map(str, saved)} if isinstance(saved, tuple) else set()
        of_tensors = seen.idle - {n.removesuffix(" (saved)") for n in registered}
        left = {n: f"{n} after the call" for n in of_tensors if n.startswith("self.")}
        held = {n: seen.tensors.get(at) for n, at in left.items() if at not in seen.numbers}
        plain += sorted(n for n, t in held.items() if t is not None and t.is_floating_point())[:1]
        if not plain:
            return
    if differences:
        raise NotVerifiedError(
            f"{differences[0].text}, for {differences[0].case}, where {plain[0]}, which no "
            "conversion of a module reaches, was converted too; nothing else differs"
        )


def find_rounded_buffers(
    original: Target, patched: Target, compared: Sequence[CaseRun]
) -> tuple[str, ...]:
    """Return the new buffers of a converted module whose rounding shows in a result.

    With the same buffers left in float32, the changed module gives other numbers.
    """
    known: dict[Recipe, tuple[str, ...]] = {}
    tried = 0
    for one in compared:
        recipe, case = one.case.assignment.recipe, one.case
        plain = case.flavour == "ordinary" and not (case.steps or case.earlier or case.autocast)
        if recipe is None or one.dtype not in _LOW or case.float32_weights or not plain:
            continue
        if recipe not in known:
            known[recipe] = _list_new(original, patched, one)
        names = known[recipe]
        if not names or tried >= _MOST:
            continue
        tried += 1
        exact = _observe_exact(patched, one, names)
        if exact.error or _differ(exact, observe_version(patched, one)):
            return names
    return ()


def _differ(left: CallRecord, right: CallRecord) -> bool:
    """Tell whether a result is not the same number by number."""
    for name, one in left.tensors.items():
        other = right.tensors.get(name)
        if one is None or other is None or not name.startswith("result"):
            continue
        if one.dtype != other.dtype or one.shape != other.shape:
            return True
        if not torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True):
            return True
    return False


def _list_new(original: Target, patched: Target, one: CaseRun) -> tuple[str, ...]:
    """Return the buffers of the changed module that a conversion rounds, and none of before."""
    before, after = (_list_rounded(target, one) for target in (original, patched))
    held = list(before.values())
    return tuple(n for n, numbers in after.items() if n not in before and numbers not in held)


@runs_with_target
def _list_rounded(target: Target, one: CaseRun) -> dict[str, list[float]]:
    """Return the buffers in float32 whose numbers are others in a call's dtype."""
    made = try_call(lambda: target.make_object(one.case.assignment.recipe), CALL_S).value
    if not isinstance(made, torch.nn.Module):
        return {}
    return {
        name: value.flatten().tolist()
        for name, value in made.named_buffers()
        if value.dtype == torch.float32 and not torch.equal(value, value.to(one.dtype).float())
    }


@runs_with_target
def _observe_exact(target: Target, one: CaseRun, names: tuple[str, ...]) -> CallRecord:
    """Run a version on a converted module whose buffers of these names are not rounded."""
    recipe = one.case.assignment.recipe
    assert recipe is not None  # noqa: S101 - only those have buffers
    made, exact = (target.instance(recipe, dtype) for dtype in (one.dtype, torch.float32))
    assert isinstance(made, torch.nn.Module)  # noqa: S101 - same
    assert isinstance(exact, torch.nn.Module)  # noqa: S101 - same
    for name in names:
        part, _, last = name.rpartition(".")
        setattr(made.get_submodule(part), last, exact.get_buffer(name))
    held: dict[tuple[Recipe, torch.dtype], object] = {(recipe.fresh, one.dtype): made}
    return observe_version(replace(target, _instances=held), one)
