"""Weights as arguments, and optimisers among them: what they train, and steps that they take.

``step(optimizer, model)`` is called with an optimiser of the model beside it. A counterexample
makes weights again by the functions of this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from npufix.rewriters.verification.calls.values import seed_generator
from npufix.rewriters.verification.inputs.objects.training_loops import (
    Closure,
    LossOfWeights,
    bind_schedules,
)
from npufix.rewriters.verification.inputs.source.parameters import WIDTH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MANY = 324
"""Elements among which something happens that is rare: a sign that changes."""
_ZERO = 3
"""The number of a weight that is zero."""
_OCTAVES = 12
"""By which gradients of one step are larger and smaller than those of another."""
_STEPS = 3
"""Of an optimiser, which are one call."""


def parameters(seed: int, scale: float = 1.0, *, every: bool = False) -> list[torch.nn.Parameter]:
    """Return weights of several shapes, the second without gradient; of scale 0, all.

    ``every`` one has a gradient for code that asks no weight whether it has.

    The last is zero, as a bias is at first.
    """
    made = []
    for number, shape in enumerate(((WIDTH, 3), (3,), (_MANY,), (2,))):
        source = seed_generator("parameters", seed, number)
        weight = torch.nn.Parameter(torch.randn(shape, generator=source) * (number != _ZERO))
        # Eighths are exact in every dtype.
        drawn = torch.randint(-16, 17, shape, generator=source) / 8 * scale
        weight.grad = drawn if scale else None
        made.append(weight)
    return made if every else [made[0], torch.nn.Parameter(torch.ones(3)), *made[1:]]


def filters() -> list[torch.nn.Parameter]:
    """Return weights the first of which are those of a convolution, of three dimensions."""
    drawn = torch.arange(6.0 * WIDTH).view(2, 3, WIDTH)
    weight = torch.nn.Parameter(drawn.cos())
    weight.grad = drawn % 7 / 4 - 0.5
    return [weight, *parameters(0)]


def overflowing(seed: int) -> list[torch.nn.Parameter]:
    """Return weights of which one that is not the last has a gradient that is not finite."""
    made = parameters(seed)
    made[0].grad = torch.full_like(made[0], torch.inf)
    return made


def groups(seed: int) -> list[dict[str, object]]:
    """Return the same weights in two groups, of which the second has settings of its own."""
    first, *others = parameters(seed)
    return [{"params": [first]}, {"params": others, "lr": 0.5, "weight_decay": 0.25}]


def list_weights(value: object) -> list[torch.nn.Parameter]:
    """Return the weights that an optimiser trains, or those of a list."""
    if isinstance(value, torch.optim.Optimizer):
        held = [weight for group in value.param_groups for weight in group["params"]]
    elif isinstance(value, list):
        held = value
    else:
        return []
    return [weight for weight in held if isinstance(weight, torch.nn.Parameter)]


def list_trained(optimizer: object) -> list[torch.nn.Parameter]:
    """Return the weights that an optimiser trains, of torch or of a class of its own."""
    if isinstance(optimizer, torch.optim.Optimizer):
        return list_weights(optimizer)
    own: Mapping[str, object] = getattr(optimizer, "__dict__", {})
    return [weight for held in own.values() for weight in list_weights(held)]


def move_weights(made: object, number: int) -> None:
    """Train what an object goes by, between two calls of its methods: an average of weights, say.

    Optimisers of torch do that themselves.
    """
    if not isinstance(made, torch.nn.Module | torch.optim.Optimizer):
        with torch.no_grad():
            for weight in list_trained(made):
                weight.add_((number + 1) / 4)


def list_modules(arguments: Mapping[str, object]) -> dict[str, torch.nn.Module]:
    """Return the modules among arguments, those in lists as well."""
    single = {n: v for n, v in arguments.items() if isinstance(v, torch.nn.Module)}
    lists = {n: v for n, v in arguments.items() if type(v) is list and v}
    every = ((f"{n}[{at}]", part) for n, v in lists.items() for at, part in enumerate(v))
    return single | {n: part for n, part in every if isinstance(part, torch.nn.Module)}


def bind_optimizers(arguments: dict[str, object], number: int = 0, *, left: bool = False) -> None:
    """Have an optimiser among the arguments train the modules among them.

    And a loss be one of what it trains; ``left``: gradients are left of a step before.
    """
    weights, optimizers = _list_training(arguments)
    for optimizer in optimizers if weights else ():
        optimizer.param_groups[0]["params"] = weights
    trained = [*weights, *(w for o in optimizers if not weights for w in list_weights(o))]
    for name, value in arguments.items():
        if isinstance(value, LossOfWeights):
            arguments[name] = value.compute(trained, number)
    bind_schedules(arguments)
    leave_gradients(arguments if left else {})


def remembering(*, listed: bool) -> torch.optim.Optimizer | list[torch.optim.Optimizer]:
    """Return an optimiser that has taken steps, or a list of one; ``remember`` says of what."""
    made = torch.optim.SGD([torch.zeros(1)], lr=0.125, momentum=0.5)
    return [made] if listed else made


def _list_remembering(held: Mapping[str, object]) -> dict[str, torch.optim.SGD]:
    lists = [(n, v) for n, v in held.items() if type(v) is list]
    every = [*held.items(), *((f"{n}[{at}]", o) for n, v in lists for at, o in enumerate(v))]
    return {n: o for n, o in every if type(o) is torch.optim.SGD and o.param_groups[0]["momentum"]}


def remember(arguments: Mapping[str, object], made: object) -> object:
    """Have an optimiser train the object that a method is called on, and hold what it has kept.

    Beside models, it trains those: ``bind_optimizers``. Returns the object.
    """
    own = list(made.parameters()) if isinstance(made, torch.nn.Module) else []
    for one in _list_remembering(arguments).values():
        if own and not list_modules(arguments):
            one.param_groups[0]["params"] = own
        for at, weight in enumerate(list_weights(one)):
            kept = torch.randint(-8, 9, weight.shape, generator=seed_generator("kept", at)) / 8
            one.state[weight] = {"momentum_buffer": kept.to(weight)}  # exact in every dtype
    return made


def read_remembered(arguments: Mapping[str, object]) -> dict[str, object]:
    """Return what such optimisers hold of the steps before."""
    return {
        f"{name}.state[{at}]['momentum_buffer']": one.state[weight].get("momentum_buffer")
        for name, one in _list_remembering(arguments).items()
        for at, weight in enumerate(list_weights(one))
    }


def _list_training(
    held: Mapping[str, object],
) -> tuple[list[torch.nn.Parameter], list[torch.optim.Optimizer]]:
    """Return the weights of the modules that there are, and the optimisers beside them."""
    weights = [p for module in list_modules(held).values() for p in module.parameters()]
    return weights, [v for v in held.values() if isinstance(v, torch.optim.Optimizer)]


def leave_gradients(made: Mapping[str, object]) -> None:
    """Give models and what optimisers train the gradients of a step before the call.

    Those of the attributes of an object, too: ``zero_grad`` is for them.
    """
    held = dict(made)
    for name, value in made.items():
        held |= {f"{name}.{n}": v for n, v in getattr(value, "__dict__", {}).items()}
    weights, optimizers = _list_training(held)
    for at, weight in enumerate([*weights, *(w for o in optimizers for w in list_weights(o))]):
        if weight.requires_grad and weight.grad is None:
            drawn = torch.randint(-8, 9, weight.shape, generator=seed_generator("earlier", at)) / 8
            weight.grad = drawn.to(weight)  # exact in every dtype


def fill_optimizers(arguments: dict[str, object]) -> dict[str, object]:
    """Have an optimiser that is alone, beside no module, train weights that have gradients."""
    for optimizer in () if list_modules(arguments) else arguments.values():
        if isinstance(optimizer, torch.optim.Optimizer) and not list_weights(optimizer):
            optimizer.param_groups[0]["params"] = parameters(0)
    return arguments


def take_steps(step: Callable[..., object], optimizer: object, *given: Any, **named: Any) -> object:  # noqa: ANN401 - what it takes
    """Take a few steps of an optimiser, each with other gradients than the one before.

    Of equal ones an average is no other, and a few must outweigh all that was averaged. The second
    ones are written into the first, as after ``zero_grad(set_to_none=False)``: who keeps a gradient
    keeps a copy.
    """
    for one in (*given, *named.values()):
        if isinstance(one, Closure):
            one.weights = list_trained(optimizer)
    for number in range(_STEPS - 1):
        step(optimizer, *given, **named)
        for weight in list_trained(optimizer):
            if weight.grad is not None:
                powers = 3 - torch.arange(weight.numel()) % _OCTAVES
                ramp = torch.exp2(powers) if weight.numel() == _MANY else torch.ones(())
                other = weight.grad.flip(0) * (-0.75 * ramp).to(weight.grad)  # exact
                weight.grad = other if number else weight.grad.copy_(other)
    return step(optimizer, *given, **named)
