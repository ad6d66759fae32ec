"""What an object holds at first: weights as after training, attributes without ``__init__``."""

from __future__ import annotations

import ast
import inspect
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from npufix.rewriters.verification.calls.values import Value, seed_generator
from npufix.rewriters.verification.inputs.objects.configurations import (
    StandInConfig,
    invent,
)
from npufix.rewriters.verification.inputs.objects.kept import list_parts
from npufix.rewriters.verification.inputs.objects.offers import StandInLayer
from npufix.rewriters.verification.inputs.source.parameters import (
    WIDTH,
    Parameter,
    guess_scalars,
    list_parameters,
)
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_DRAWN = frozenset({"rand", "randn"})
_DRAWN_INTO = frozenset({"normal_", "uniform_", "trunc_normal_", "bernoulli_", "exponential_"})
_BUILD_S = 5.0
_ATEN = torch.ops.aten
_UNWRITTEN = frozenset([_ATEN.empty, _ATEN.empty_like, _ATEN.new_empty, _ATEN.empty_strided])


def make_without_init(owner: type, attributes: Sequence[tuple[str, str]]) -> object:
    """Make an object without its ``__init__``, with attributes that are as what is done with them.

    As far as some statements of ``__init__`` run, they have set what is known.
    """
    made: object = object.__new__(owner)
    if isinstance(made, torch.nn.Module):
        torch.nn.Module.__init__(made)
    initialise_partly(made, owner)
    known = {
        n for held in ("_parameters", "_buffers", "_modules") for n in vars(made).get(held, ())
    }
    for name, what in attributes:
        replaced = what == "call" and isinstance(vars(made).get(name), StandInConfig)
        if replaced or name not in known | vars(made).keys():
            own = isinstance(made, torch.nn.Module)
            setattr(made, name, make_attribute(what, name, module=own))
    return made


def make_attribute(what: str, name: str, *, module: bool) -> object:
    """Return what an attribute may be that nothing has set."""
    if what == "call":
        return torch.nn.SiLU() if "act" in name.lower() else StandInLayer(name)
    if what == "tensor":
        weight = torch.ones(WIDTH)
        return torch.nn.Parameter(weight) if module else weight
    plain = guess_scalars(Parameter(name, "", inspect.Parameter.empty))
    return plain[0].value if plain and isinstance(plain[0], Value) else None


def make_concrete(owner: type) -> type:
    """Return a class itself, of an abstract one another that inherits it and can be made.

    What it leaves to others does in both versions what it does here.
    """
    if not inspect.isabstract(owner):
        return owner
    made = type(owner)(owner.__name__, (owner,), {"__module__": owner.__module__})
    made.__abstractmethods__ = frozenset()  # type: ignore[attr-defined] # of ABCMeta
    return made


def randomise(module: torch.nn.Module) -> None:
    """Give weights numbers that no forgotten weight can hide behind."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.is_floating_point():
                drawn = torch.randn(parameter.shape, generator=seed_generator(name))
                apart = drawn.sign().mul_(0.25)  # in place: weights may be hundreds of megabytes
                parameter.copy_(drawn.mul_(0.5).add_(apart))
        for name, buffer in module.named_buffers():
            # As after some training: a mean of zero and a variance of one hide who forgets them.
            if name.endswith(("running_mean", "running_var")) and buffer is not None:
                drawn = torch.randn(buffer.shape, generator=seed_generator(name))
                buffer.copy_(drawn.abs() + 0.5 if name.endswith("var") else drawn * 0.5)


def initialise_partly(made: object, owner: type) -> None:
    """Run those statements of ``__init__`` that run: ``self.relu = nn.ReLU()`` is no stand-in."""
    init = vars(owner).get("__init__")
    source = try_call(lambda: inspect.getsource(init), _BUILD_S).value  # type: ignore[arg-type] # raises
    if not isinstance(source, str) or not inspect.isfunction(init):
        return
    tree = ast.parse(f"def make(__class__):\n  if True:\n{source}\n  return __init__")
    function = next(n for n in ast.walk(tree) if getattr(n, "name", "") == "__init__")
    assert isinstance(function, ast.FunctionDef)  # noqa: S101 - what has source is one
    passing = ast.ExceptHandler(ast.Name("Exception", ast.Load()), None, [ast.Pass()])
    function.decorator_list = []
    function.body = [ast.Try([one], [passing], [], []) for one in function.body]
    scope: dict[str, Any] = {}
    code = compile(ast.fix_missing_locations(tree), "<a part of __init__>", "exec")
    exec(code, init.__globals__, scope)  # noqa: S102 - the user's own, behind the walls
    given = {}
    for parameter in list_parameters(inspect.signature(init))[1:]:
        guesses = guess_scalars(parameter)
        asked = invent(StandInConfig, *list_parts(owner, parameter.name))
        likely = next((s.value for s in guesses if isinstance(s, Value)), asked)
        given[parameter.name] = parameter.default if parameter.has_default else likely
    try_call(lambda: scope["make"](owner)(made, **given), _BUILD_S)


class Undrawn(TorchFunctionMode):
    """Draws no numbers where there is no memory for them: that alone imports half of a compiler."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the torch function returns
        name = getattr(func, "__name__", "")
        if name in _DRAWN:
            return torch.empty(*args, **(kwargs or {}))
        if name in _DRAWN_INTO:
            return args[0]
        return func(*args, **(kwargs or {}))


class Zeroed(TorchDispatchMode):  # type: ignore[no-untyped-call] # of torch
    """Clears memory that nobody has written to, which would be another in each of two versions.

    ``self.register_buffer("bank_ptr", torch.empty(1, dtype=torch.long))``, for a bank to come.
    """

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the operator returns
        made = func(*args, **(kwargs or {}))
        return made.zero_() if getattr(func, "overloadpacket", None) in _UNWRITTEN else made
