"""What a change keeps as a buffer, and ``module.half()`` rounds, where a call made it anew.

Calls are made on modules that are converted, but of slopes that are rounded by less than results
are, the results say little. Here they are the same bit by bit, or the rounding is what differs:
with the buffer left in float32, the changed module computes what the original does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.observe import CALL_S
from npufix.rewriters.verification.judge.judge import Difference
from npufix.rewriters.verification.judge.observe_case import CaseRun, observe_version
from npufix.rewriters.verification.sandbox.remote import runs_with_target
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.verification.calls.observe import CallRecord
    from npufix.rewriters.verification.inputs.recipes import Recipe
    from npufix.rewriters.verification.inputs.target import Target
    from npufix.rewriters.verification.judge.evidence import Proof

_LOW = (torch.bfloat16, torch.float16)
_MOST = 12
"""Calls in low precision that are made again."""


def find_rounded_buffers(
    run: Proof, original: Target, patched: Target, compared: Sequence[CaseRun]
) -> tuple[CaseRun, Difference] | None:
    """Return a call on a converted module that a new buffer alone makes another one.

    Where the change differs in more than that, or the original has it in an attribute, which no
    conversion rounds, it is said in the verdict.
    """
    known: dict[Recipe | None, tuple[str, ...]] = {}
    tried = 0
    for one in compared:
        recipe, case = one.case.assignment.recipe, one.case
        plain = case.flavour == "ordinary" and not (case.steps or case.earlier or case.autocast)
        if recipe is None or one.dtype not in _LOW or case.float32_weights or not plain:
            continue
        if recipe not in known:
            known[recipe] = _list_new(original, patched, one)
        if not known[recipe] or tried >= _MOST:
            continue
        tried += 1
        names = ", ".join(known[recipe])
        rounded = observe_version(patched, one)
        what = _find_other(one.original, rounded)
        if not what:
            kept = _list_kept(original, patched, one, known[recipe])
            before = _observe_exact(original, one, kept) if kept else one.original
            other = not before.error and _find_other(before, rounded)
            run.rounded = run.rounded or (names if other else "")
            continue
        exact = _observe_exact(patched, one, known[recipe])
        if exact.error or _find_other(one.original, exact):
            differs = exact.error or _find_other(exact, rounded)
            run.rounded = run.rounded or (names if differs else "")
            continue
        off = _measure(one.original, rounded, what)
        text = (
            f"{what} differs by {off:.3g}, as a module that is converted rounds its new buffer "
            f"{names}, which the original makes in float32 with every call"
        )
        return one, Difference(text, one.label, case.size, what=what, least=off / 2)
    return None


def _measure(left: CallRecord, right: CallRecord, what: str) -> float:
    """Return by how much a tensor differs; nothing where it is of another dtype or shape."""
    one, other = left.tensors[what], right.tensors[what]
    if one is None or other is None or one.shape != other.shape or not one.numel():
        return 0.0
    return float((one.double() - other.double()).abs().nan_to_num().max())


def _find_other(left: CallRecord, right: CallRecord) -> str:
    """Return a result that is not the same number by number."""
    for name, one in left.tensors.items():
        other = right.tensors.get(name)
        if one is None or other is None or not name.startswith("result"):
            continue
        same = one.dtype == other.dtype and one.shape == other.shape
        if same and not torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True):
            return name
        if not same:
            return name
    return ""


def _list_new(original: Target, patched: Target, one: CaseRun) -> tuple[str, ...]:
    """Return the buffers of the changed module that a conversion rounds, and none of before."""
    before, after = (_list_rounded(target, one) for target in (original, patched))
    held = list(before.values())
    return tuple(n for n, numbers in after.items() if n not in before and numbers not in held)


def _list_kept(
    original: Target, patched: Target, one: CaseRun, names: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the attributes of the original that hold what is a new buffer now."""
    after = _list_rounded(patched, one)
    held = [after[name] for name in names]
    before = _list_rounded(original, one, registered=False)
    return tuple(name for name, numbers in before.items() if numbers in held)


@runs_with_target
def _list_rounded(
    target: Target, one: CaseRun, *, registered: bool = True
) -> dict[str, list[float]]:
    """Return the buffers in float32, or attributes, whose numbers are others in a call's dtype."""
    made = try_call(lambda: target.make_object(one.case.assignment.recipe), CALL_S).value
    if not isinstance(made, torch.nn.Module):
        return {}
    found: dict[str, list[float]] = {}
    for prefix, part in made.named_modules():
        held = part.named_buffers(recurse=False) if registered else vars(part).items()
        for name, value in held:
            if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
                full = f"{prefix}.{name}" if prefix else name
                rounded = not torch.equal(value, value.to(one.dtype).float())
                found |= {full: value.flatten().tolist()} if rounded else {}
    return found


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
        setattr(made.get_submodule(part), last, getattr(exact.get_submodule(part), last))
    held: dict[tuple[Recipe, torch.dtype], object] = {(recipe.fresh, one.dtype): made}
    return observe_version(replace(target, _instances=held), one)
