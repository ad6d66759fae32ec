"""Use what a call has made, where what it is does not say what it does."""

from __future__ import annotations

import torch

from npufix.rewriters.verification.calls.values import generator

_STEPS = 3


def exercised(value: object) -> object:
    """Return a result as it is; an optimiser takes a few steps, and what is left is its rate.

    What the steps have done is seen on the parameters, which are arguments of the call.
    """
    if not isinstance(value, torch.optim.Optimizer):
        return value
    parameters = [p for group in value.param_groups for p in group["params"]]
    for step in range(_STEPS):
        for number, p in enumerate(parameters):
            # Whole numbers: in float64 others would be drawn, and judged by those.
            whole = torch.randint(-64, 65, p.shape, generator=generator("gradient", step, number))
            drawn = whole / 32
            gradient = drawn.to(p.dtype).to(p.device)
            if p.grad is None:
                p.grad = gradient
            else:
                p.grad.add_(gradient)
        value.step()
        value.zero_grad()
    for p in parameters:
        # None or zeros: both are "no gradient", and which of them depends on the optimiser.
        p.grad = None
    return {"lr": [group["lr"] for group in value.param_groups]}
