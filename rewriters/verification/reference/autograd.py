"""Give an operator the gradient that it has on the device: its derivative, or an error."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType


def differentiable(name: str, kernel: ModuleType) -> Callable[..., Any]:
    """Return the autograd kernel of an operator, from the derivative of its reference kernel."""
    operator = getattr(torch.ops.npu, name)
    # Read once: torch makes objects of the whole schema each time it is asked.
    schema = operator.default._schema  # noqa: SLF001 - the public way in torch 2.1 to 2.14
    parameters = [(a.name, a.kwarg_only, a.default_value) for a in schema.arguments]
    raises = getattr(kernel, "BACKWARD", "") == "raises"
    constant: tuple[int, ...] = getattr(kernel, "NOT_DIFFERENTIABLE", ())
    random: bool = getattr(kernel, "RANDOM", False)

    class Reference(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *arguments: object) -> object:  # noqa: ANN401 - torch's own
            ctx.random = torch.get_rng_state() if random else None
            named = list(zip(parameters, arguments, strict=True))
            positional = [value for (_, by_name, _), value in named if not by_name]
            keywords = {key: value for (key, by_name, _), value in named if by_name}
            with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001 - reach the CPU kernel
                outputs = operator(*positional, **keywords)
            _remember(ctx, arguments)
            results = outputs if isinstance(outputs, tuple) else (outputs,)
            ctx.mark_non_differentiable(*(results[index] for index in constant))
            return outputs

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *gradients: torch.Tensor | None) -> object:  # noqa: ANN401 - torch's
            if raises:
                raise RuntimeError(f"derivative for npu::{name} is not implemented")
            return _derive(kernel, ctx, gradients, constant)

    def run(*arguments: object, **keywords: object) -> object:
        rest = parameters[len(arguments) :]
        filled = [keywords.get(key, default) for key, _, default in rest]
        apply: Callable[..., Any] = Reference.apply
        return apply(*arguments, *filled)

    return run


def _remember(ctx: Any, arguments: Sequence[object]) -> None:  # noqa: ANN401 - torch's own
    # save_for_backward notices when the user's code writes into an input afterwards.
    tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
    ctx.save_for_backward(*tensors)
    ctx.others = [None if isinstance(a, torch.Tensor) else a for a in arguments]
    ctx.places = [i for i, a in enumerate(arguments) if isinstance(a, torch.Tensor)]


def _derive(
    kernel: ModuleType,
    ctx: Any,  # noqa: ANN401 - torch's own
    gradients: Sequence[torch.Tensor | None],
    constant: Sequence[int],
) -> tuple[torch.Tensor | None, ...]:
    arguments = list(ctx.others)
    wanted: dict[int, torch.Tensor] = {}
    for place, tensor in zip(ctx.places, ctx.saved_tensors, strict=True):
        arguments[place] = tensor.detach()
        if ctx.needs_input_grad[place]:
            arguments[place].requires_grad_()
            wanted[place] = arguments[place]
    check: Callable[..., None] | None = getattr(kernel, "check_backward", None)
    if check is not None and wanted:
        check(*arguments)
    with torch.enable_grad(), _drawing_again(ctx.random):
        outputs = kernel.forward(*arguments)
    results = outputs if isinstance(outputs, tuple) else (outputs,)
    used = [
        (result, gradient)
        for index, (result, gradient) in enumerate(zip(results, gradients, strict=True))
        if index not in constant
        and gradient is not None
        and isinstance(result, torch.Tensor)
        and result.requires_grad
    ]
    found: dict[int, torch.Tensor | None] = {}
    if used and wanted:
        made = torch.autograd.grad(
            [result for result, _ in used],
            list(wanted.values()),
            [gradient for _, gradient in used],
            allow_unused=True,
        )
        found = dict(zip(wanted, made, strict=True))
    return tuple(found.get(place) for place in range(len(arguments)))


@contextmanager
def _drawing_again(state: torch.Tensor | None) -> Iterator[None]:
    """Draw the random numbers of the forward pass, and leave the generator as it was."""
    if state is None:
        yield
        return
    now = torch.get_rng_state()
    torch.set_rng_state(state)
    try:
        yield
    finally:
        torch.set_rng_state(now)
