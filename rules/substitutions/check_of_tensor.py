"""A test of what a tensor holds, in every step.

What: ``assert torch.isfinite(x).all()``, ``if torch.isnan(x).any(): raise ...``,
``if mask.any(): x[mask] = 0``, and ``if mask.sum() == 0: loss = a``, in code that runs in every step.

Why it is slow on the NPU: the host waits until everything before has run to know the answer; then
the device has nothing to do until the host has launched the next kernel. What a test of an empty
mask saves is one kernel that takes microseconds.

Safety: what is written under a mask that is false everywhere changes nothing, so the test may go:
where a copy is made of ``x`` only under the test, it is made always (``may-be-copied``). Autograd
sees a write even so (``may-be-written``). A check that
never fails (``check-never-fails``) is made everywhere but on an NPU: the numbers are as before. Where the
arms only choose between values of a few operators, both are computed and ``torch.where`` chooses: they
must have one shape and dtype (``same-shape``), and the one that is not chosen must be finite, because
its gradient is multiplied by zero (``finite-arms``); what it alone reads gets that zero, where it
had no gradient at all (``zero-gradients``). What is divided by a value above one is divided by one
else: ``loss /= n.clamp(min=1)`` for ``if n > 1: loss /= n`` is exact but for a gradient of ``n``
(``without-gradient``), and where that is NaN (``never-nan``). ``x / n if n > 0 else 0`` is a tensor
then in either case (``takes-tensors``). Where an arm calls something it is advice, and so it is
where a loss is taken of ``x[mask]`` or else is zero: weighed by the mask it is zero anyhow, and where
other code comes next. Of what is only logged, of what stops training that has diverged, and where
an arm is read on the host anyway, nothing is said.

References: overall_optimization_strategy.md and solution_to_top3.md of the troubleshooting guide
(operators that make the host wait).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Form, Site, Substitution
from npufix.rules.substitutions.check_of_tensor_examples import REWRITTEN, VALID

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def guarded(x: Tensor, mask: Tensor) -> Tensor:
    """Write only if there is something to write to."""
    y = x * 2
    if mask.any():
        y[mask] = 1.5
    return y


def unguarded(x: Tensor, mask: Tensor) -> Tensor:
    """Write without asking."""
    y = x * 2
    y[mask] = 1.5
    return y


def asserted(x: Tensor, mask: Tensor) -> Tensor:
    """Make sure of what is always so."""
    y = torch.where(mask, x, 0)
    assert torch.isfinite(y).all()  # noqa: S101 - what the rule is about
    return y * 2


def unasked(x: Tensor, mask: Tensor) -> Tensor:
    """Go on without where the host would wait."""
    y = torch.where(mask, x, 0)
    assert y.device.type == "npu" or torch.isfinite(y).all()  # noqa: S101 - as above
    return y * 2


def decided(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Let the host choose."""
    count = mask.sum()
    loss = x.sum() - y.sum()
    if count == 0:
        loss = (y.sum() + x.sum()) * 2
    return loss * 3


def chosen(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Let the device choose."""
    count = mask.sum()
    loss = x.sum() - y.sum()
    loss = torch.where(count == 0, (y.sum() + x.sum()) * 2, loss)
    return loss * 3


def divided(x: Tensor, y: Tensor) -> Tensor:
    """Let the host find out whether there is more than one."""
    loss = x.sum()
    count = y.sum()
    if count > 1:
        loss /= count
    return loss


def divided_by_limit(x: Tensor, y: Tensor) -> Tensor:
    """Divide by one else, which changes nothing."""
    loss = x.sum()
    count = y.sum()
    loss /= count.clamp(min=1)
    return loss


def limited(x: Tensor, y: Tensor) -> Tensor:
    """Let the host find out whether there are any."""
    count = (y > 0).sum()
    return x.sum() / (count if count > 0 else 1)


def limited_there(x: Tensor, y: Tensor) -> Tensor:
    """Count no fewer than one."""
    count = (y > 0).sum()
    return x.sum() / count.clamp(min=1)


def divided_or_nothing(x: Tensor, y: Tensor) -> Tensor:
    """Let the host find out whether there is anything to take a mean of."""
    count = (y > 0).sum()
    loss = x.sum() / count if count > 0 else 0.0
    return loss + x


def divided_by_some(x: Tensor, y: Tensor) -> Tensor:
    """Divide by no less than one, and choose."""
    count = (y > 0).sum()
    loss = torch.where(count > 0, x.sum() / count.clamp(min=1), 0.0)
    return loss + x


def inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor and a mask, which is often false everywhere."""
    import torch

    shape = draw.choice([(4,), (2, 3), (1, 1), (0, 2)])
    mask = draw.booleans(*shape) & bool(draw.integer(0, 1))
    return {"x": draw.floats(*shape, dtype=torch.float32), "mask": mask}


def decided_inputs(draw: Draw) -> dict[str, Any]:
    """Return two tensors and a mask."""
    import torch

    given = inputs(draw)
    return {**given, "y": draw.floats(draw.integer(1, 3), dtype=torch.float32)}


def divided_inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor, and numbers without a gradient whose sum may be one, or less."""
    import torch

    x = draw.floats(draw.integer(1, 3), dtype=torch.float32)
    return {"x": x, "y": draw.integers(2, low=-1, high=3)}


def _unknown(_site: Site) -> bool | None:
    return None  # the search has looked at what stands under the test


MAY_BE_COPIED = Condition(
    "may-be-copied",
    "nobody minds a copy where the mask is false everywhere: the tensor is not written to later",
    _unknown,
)
MAY_BE_WRITTEN = Condition(
    "may-be-written",
    "the tensor takes a write that changes nothing: it is no parameter that learns, and no gradient "
    "needs its old values",
    _unknown,
)
NEVER_FAILS = Condition(
    "check-never-fails", "the check is there for debugging and never fails", _unknown
)
IS_TENSOR = Condition("is-tensor", "the object is a torch tensor", _unknown)
SAME_SHAPE = Condition("same-shape", "both arms compute tensors of one shape and dtype", _unknown)
FINITE = Condition(
    "finite-arms",
    "the arm that is not taken computes finite numbers and gradients: it divides by no zero",
    _unknown,
)
ZERO_GRADIENTS = Condition(
    "zero-gradients",
    "what only the arm that is not taken reads may get a gradient of zeros where it had none: an "
    "optimizer decays it, and moves it by its momentum",
    _unknown,
)
NEVER_NAN = Condition("never-nan", "the value is never NaN", _unknown, "no-nan")
COUNTS = Condition("never-negative", "the number is an integer that is never below zero", _unknown)
TAKES_TENSORS = Condition(
    "takes-tensors", "the functions that get the value take a tensor as well", _unknown
)
WITHOUT_GRADIENT = Condition(
    "without-gradient", "nobody asks for a gradient of the value", _unknown
)

RULE = Substitution(
    id="NPU217",
    name="check-of-a-tensor",
    summary="a test of what a tensor holds, in every step",
    table="affinity",
    forms=(
        Form(guarded, unguarded, inputs, (MAY_BE_COPIED, MAY_BE_WRITTEN)),
        Form(asserted, unasked, inputs, (IS_TENSOR, NEVER_FAILS)),
        Form(decided, chosen, decided_inputs, (SAME_SHAPE, FINITE, ZERO_GRADIENTS)),
        Form(
            divided,
            divided_by_limit,
            divided_inputs,
            (IS_TENSOR, SAME_SHAPE, NEVER_NAN, WITHOUT_GRADIENT),
        ),
        Form(limited, limited_there, divided_inputs, (COUNTS,)),
        Form(
            divided_or_nothing,
            divided_by_some,
            divided_inputs,
            (SAME_SHAPE, FINITE, ZERO_GRADIENTS, TAKES_TENSORS),
        ),
    ),
    search="checks",
    replaces=(),
    becomes=(),
    passes=(0, 0),
    requires="torch_npu>=2.1",
    valid=VALID,
    rewritten=REWRITTEN,
)
