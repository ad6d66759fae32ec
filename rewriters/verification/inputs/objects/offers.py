"""Arguments that are objects: modules of any class of ``torch.nn``, optimisers, generators.

A counterexample makes them again by the functions of this file.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from npufix.rewriters.verification.calls.values import (
    Batches,
    MadeArgument,
    Spec,
    Value,
    make_again,
    seed_generator,
)
from npufix.rewriters.verification.inputs.objects.layer_classes import (
    find_by_attributes,
    find_class_of,
    list_layers,
    list_other_settings,
)
from npufix.rewriters.verification.inputs.objects.openmmlab.annotations import offer_detections
from npufix.rewriters.verification.inputs.objects.training_loops import (
    MODEL,
)
from npufix.rewriters.verification.inputs.objects.weights import (
    filters,
    groups,
    list_modules,
    overflowing,
    parameters,
    remembering,
)
from npufix.rewriters.verification.inputs.source.parameters import (
    WIDTH,
    Parameter,
    guess_attribute,
    guess_scalars,
    list_parameters,
)
from npufix.rewriters.verification.sandbox.try_call import PassedError, RaisedError, try_call

if TYPE_CHECKING:
    import enum
    from collections.abc import Callable, Mapping

    from npufix.rewriters.verification.inputs.source.usage import Use

_GOES_THROUGH = frozenset(["state_dict", "buffers", "named_buffers", "modules", "named_modules"])
"""By which code reads the buffers of a model as well."""
_WEIGHTS_OF = frozenset(["parameters", "named_parameters"])
"""By which it reads the weights: what is asked this is a model, no stand-in that has none."""
_OPTIMIZER = r"(^|_)optim(izer)?$|^opt$"
_OPTIMIZERS = r"(\b|_)optim(i[sz]ers?)?$|\bOptimizer\b"
_LISTED = r"(?i)list|sequence|ers$"
_MODULE_ANNOTATION = r"(nn\.|^)Module$"
_MODULES_ANNOTATION = r"(?i:list|sequence|iterable|collection)\[ *[\w.]*\bModule *\]"
_OF_SEVERAL = ("Linear", "BatchNorm1d")
OWN = "own_"
"""Before the name of what an object is made with: another than what a method takes."""
_WITH_GRADIENTS = "parameters with gradients"
_WEIGHTS = r"^(params|parameters|weights|param_groups)$"
_MAKES_LAYERS = r"norm|act(?!ion)|layer|block"
_SMALL = 1 / 64
_MOST_BATCHES = 101
_OTHERS = 3
_MAKE_S = 1.0
_SIZES = {"num_embeddings": 16, "embedding_dim": WIDTH, "num_groups": 2, "kernel_size": 3}
"""Of layers, where the name alone says something else."""


class StandInModule(torch.nn.Module):
    """A module that is an argument, for the sake of ``training`` and of a few numbers."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the name suggests
        """Invent what is not there."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return guess_attribute(name)


class StandInLayer(torch.nn.Module):
    """A layer that nothing is known of: no two of them compute the same."""

    def __init__(self, name: str, count: int = 0) -> None:
        """Derive the function from the name; ``count`` results are unpacked, or it is one."""
        super().__init__()
        self.scale, self.shift = torch.rand(2, generator=seed_generator(name)).tolist()
        self.count = count

    def forward(self, *given: object, **named: object) -> object:
        """Return the first argument, changed by all there are."""
        x, *others = (*given, *named.values())
        made = x
        if isinstance(x, torch.Tensor) and x.is_floating_point():
            made = x.tanh() * (0.5 + self.scale) + self.shift
            for other in others:
                if isinstance(other, torch.Tensor) and other.numel() and not other.is_complex():
                    # a mask of flags selects where one of numbers is added
                    told = other.float().clamp(-1, 1).mean() + (other.dtype == torch.bool)
                    made = made + told.to(made) * self.scale
        if not (self.count and isinstance(made, torch.Tensor)):
            return made
        return tuple(made / 2**n for n in range(self.count))


def make_layers(name: str) -> Callable[..., torch.nn.Module]:
    """Return what makes a layer, whatever it is told: ``norm_layer(dim)``."""
    return lambda *_given, **_named: StandInLayer(name)


_ADJACENCY = r"(^|_)adj(acency)?(_|$)"
_NODES = 5
_SOME_LAYER = "a linear layer"
_BARE = "Identity"
DESCENT = "torch.optim.SGD([torch.zeros(1)], lr=0.125)"


def descent() -> torch.optim.Optimizer:
    """Return an optimiser; what it trains is among the other arguments."""
    return torch.optim.SGD([torch.zeros(1)], lr=0.125)


def overflown() -> torch.optim.Optimizer:
    """Return an optimiser of weights of its own, one of whose gradients is not finite."""
    return torch.optim.SGD(overflowing(0), lr=0.125)


def linear(seed: int) -> torch.nn.Module:
    """Return a layer that is not the one of another seed."""
    return layer("Linear", seed)


def layer(kind: str, seed: int, **settings: object) -> torch.nn.Module:
    """Return a layer of a class of ``torch.nn``, with small sizes; another one for another seed."""
    made = getattr(torch.nn, kind)
    given = {**settings}
    for parameter in list_parameters(inspect.signature(made)):
        if not parameter.has_default:
            guesses = guess_scalars(Parameter(parameter.name, "int", parameter.default))
            likely = next((s.value for s in guesses if isinstance(s, Value)), WIDTH)
            wide = re.search("size|shape|features|channels|dim", parameter.name)
            given[parameter.name] = _SIZES.get(parameter.name, WIDTH if wide else likely)
    torch.default_generator.manual_seed(seed)
    found: torch.nn.Module = made(**given)
    with torch.no_grad():
        # As they are, the statistics of a norm are zeros and ones, which hide much.
        for name, value in (*found.named_buffers(), *found.named_parameters()):
            if value.is_floating_point():
                value.copy_(torch.rand(value.shape, generator=seed_generator(name, seed)) + 0.25)
            elif value.dtype == torch.int64:  # batches that were seen: as many in none is in both
                value.add_(seed % _MOST_BATCHES + 1)
    return found


def model(seed: int) -> torch.nn.Module:
    """Return a layer with what models have beside weights that train: a frozen one, buffers."""
    made = linear(seed)
    drawn = torch.rand(2, WIDTH, generator=seed_generator("model", seed)) + 0.25
    made.register_parameter("frozen", torch.nn.Parameter(drawn[0], requires_grad=False))
    made.register_buffer("running_mean", drawn[1])
    made.register_buffer("num_batches_tracked", torch.tensor(seed))
    # parts with names of their own: "norm.bias", and a matrix that is called "table.bias"
    table = torch.nn.Module()
    table.register_parameter("bias", torch.nn.Parameter(drawn.clone()))
    made.add_module("norm", torch.nn.LayerNorm(WIDTH))
    made.add_module("table", table)
    return made


def tied(seed: int) -> torch.nn.Module:
    """Return a model of which two parts share one weight, as tokens in and out do."""
    first, second = layer("Linear", seed), layer("Linear", seed + 1)
    second.register_parameter("weight", dict(first.named_parameters())["weight"])
    return torch.nn.Sequential(first, second)


def models(seed: int, kind: str = "Linear") -> list[torch.nn.Module]:
    """Return three layers of a class, no two of which compute the same."""
    return [layer(kind, seed + number) for number in range(3)]


def chain(seed: int, kind: str) -> torch.nn.Module:
    """Return a model of three layers of a class."""
    return torch.nn.Sequential(*models(seed, kind))


def generator(seed: int) -> torch.Generator:
    """Return a source of random numbers."""
    return torch.Generator().manual_seed(seed)


def raise_any(*_given: object, **_named: object) -> object:
    """Fail, as what is called may."""
    raise RaisedError("out of memory")


def raising() -> Callable[..., object]:
    """Return a function that fails."""
    return raise_any


def of_few(error: str = "RaisedError") -> Callable[..., object]:
    """Return a function that fails where a batch is too large for it."""
    raised = {kind.__name__: kind for kind in (RaisedError, PassedError)}[error]

    def tanh(x: torch.Tensor, *_given: object, **_named: object) -> torch.Tensor:
        if len(x) > 1:
            raise raised("out of memory")
        return torch.tanh(x)

    return tanh


def pass_through(spec: MadeArgument) -> list[Spec]:
    """Return what fails as no handler expects it, in place of a function ``of_few``."""
    return [_FAILS_OTHERWISE] if str(spec) == str(_OF_FEW) else []


def let_fail(specs: Mapping[str, Spec]) -> dict[str, Spec]:
    """Return arguments whose functions fail."""
    return {n: _FAILS if str(s) == str(_TANH) else s for n, s in specs.items()}


_TANH = MadeArgument(lambda: torch.tanh, "torch.tanh", "torch.tanh")
_FAILS = make_again(raising, "a function that raises")
_OF_FEW = make_again(of_few, "a function that raises for more than one row")
_FAILS_OTHERWISE = make_again(of_few, "one that raises another error", PassedError.__name__)


def make_stand_in(name: str, count: int = 0) -> MadeArgument:
    """Return a layer of any shape, another one for another name, with so many results."""
    label = f"a stand-in layer with {count} results" if count else "a stand-in layer"
    return make_again(StandInLayer, label, name, *[count] * (count > 0))


def make_maker(name: str) -> MadeArgument:
    """Return a function that makes layers."""
    return make_again(make_layers, "a function that makes layers", name)


def make_tree(count: int) -> torch.Tensor:
    """Return which nodes of a tree lead to which: each to its parent, which comes before it."""
    made = torch.zeros(count, count)
    made[range(1, count), [n // 2 for n in range(count - 1)]] = 1.0
    return made


def offer_graph(name: str) -> list[Spec]:
    """Offer the adjacency of a graph without circles, for an argument that is called so."""
    made = make_again(make_tree, "the adjacency of a tree", _NODES)
    return [made] if re.search(_ADJACENCY, name) else []


def make_layer(kind: str, seed: int, **settings: object) -> MadeArgument:
    """Return a layer of a class of ``torch.nn``, with small sizes."""
    told = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    label = f"an nn.{kind} with {told}" if told else f"an nn.{kind}"
    return make_again(layer, label, kind, seed, **settings)


def offer_layers(kind: str, seed: int, use: Use) -> list[Spec]:
    """Offer a layer of a class, and such ones as the defaults do not make, if code reads it.

    What calls one by ``F.conv2d(x, m.weight, m.bias, m.stride)`` may forget the groups.
    """
    made = [make_layer(kind, seed)]
    if use.called or use.attributes:
        others = (make_layer(kind, seed, **settings) for settings in list_other_settings(kind))
        made += [one for one in others if try_call(one.make, _MAKE_S).value is not None]
    return [*made]


def offer_chain(kind: str) -> MadeArgument:
    """Offer a model of layers of a class of ``torch.nn``."""
    return make_again(chain, f"a model of three nn.{kind}", 0, kind)


def without_weights(specs: Mapping[str, Spec]) -> dict[str, Spec]:
    """Return layers that have no weights, in place of those that may be any."""
    return {n: make_layer(_BARE, 0) for n, s in specs.items() if str(s) == _SOME_LAYER}


def has_no_weights(specs: Mapping[str, Spec]) -> bool:
    """Say whether layers that have no weights are passed, in place of any."""
    bare = str(make_layer(_BARE, 0))
    return any(str(spec) == bare for spec in specs.values())


def varied(made: object, number: int) -> object:
    """Return a model or batches as in one call of several; the first has number 0.

    Weights are larger by powers of two, which is exact; batches are those of another epoch.
    """
    if isinstance(made, Batches):
        made.set_epoch(number % _OTHERS + 1)
    for module in list_modules({"": made}).values():
        with torch.no_grad():
            for weight in module.parameters():
                if weight.is_floating_point():
                    weight.mul_(2.0 ** (number % _OTHERS - 1))
    return made


def with_other_numbers(spec: MadeArgument, number: int) -> MadeArgument:
    """Return a model or batches of one call of several: the average of equal ones is no other."""
    if spec.kind or not spec.code:
        return spec
    own = f"__import__({__name__!r}, fromlist=[''])"
    return replace(
        spec,
        make=lambda: varied(spec.make(), number),
        code=f"{own}.varied({spec.code}, {number})",
    )


def make_weights(name: str, scale: float = _SMALL) -> list[Spec]:
    """Return weights with ordinary gradients, and with small ones or none, for an argument."""
    seed = sum(map(ord, name))
    label = "parameters with small gradients" if scale else "parameters without gradients"
    other = make_again(parameters, label, seed, scale)
    every = make_again(parameters, "parameters with gradients, every one", seed, scale, every=True)
    return [make_again(parameters, _WITH_GRADIENTS, seed), other, *[every] * bool(scale)]


def vary_weights(spec: Spec) -> list[Spec]:
    """Return weights of which some have three dimensions, in place of those that have two.

    And such that one of the gradients has overflown.
    """
    if not (isinstance(spec, MadeArgument) and spec.label == _WITH_GRADIENTS):
        return []
    return [
        make_again(filters, "parameters with gradients, some of a convolution"),
        make_again(overflowing, "parameters with gradients, one of which is infinite", 0),
    ]


def make_groups(name: str) -> Spec:
    """Return weights in groups, for the argument of an optimiser's class."""
    return make_again(groups, "parameters in two groups", sum(map(ord, name)))


def guess_objects(parameter: Parameter, use: Use) -> list[Spec]:
    """Return modules, optimisers and the like, for a parameter that is one, or several models."""
    if found := offer_detections(parameter, use):
        return found
    if re.search(_MODULES_ANNOTATION, parameter.annotation):
        seed = sum(map(ord, parameter.name))
        return [make_again(models, f"a list of three nn.{k}", seed, k) for k in _OF_SEVERAL]
    return _guess_object(parameter, use)


def _guess_object(parameter: Parameter, use: Use) -> list[Spec]:
    seed, annotation = sum(map(ord, parameter.name)), parameter.annotation
    name = parameter.name.removeprefix(OWN)
    some_layer = make_again(linear, _SOME_LAYER, seed)
    with_buffers = make_layer("BatchNorm1d", seed)
    whole = make_again(model, "a layer with buffers and a frozen weight", seed)
    untold = not (annotation or parameter.has_default)
    kinds = find_by_attributes(use.attributes) if untold else list_layers(annotation)
    optimizer = find_class_of(annotation, torch.optim, torch.optim.Optimizer)
    plain = re.search(r"\[(int|float|str)\b", annotation)  # weights of losses, say
    made: list[Spec] = []
    if kinds and kinds != ["Module"]:
        made = [
            spec
            for kind in kinds
            for spec in (
                [offer_chain("Linear")] if kind == "Sequential" else offer_layers(kind, seed, use)
            )
        ]
    elif re.search(_MODULE_ANNOTATION, annotation):
        stand_in = make_again(StandInModule, "a stand-in module")
        called = re.search(MODEL, name) or use.called
        made = [some_layer, whole, stand_in] if called else [stand_in, some_layer]
        made = [s for s in made if s is not stand_in or not use.attributes & _WEIGHTS_OF]
        made += [with_buffers] * bool(use.attributes & _GOES_THROUGH)
        twice = bool(use.attributes & {"modules", "named_modules"})  # it meets the weight of both
        made += [make_again(tied, "two layers that share a weight", seed)] * twice
        # of images of any width, as a critic of ``x (B, C, H, W)``
        made += [make_stand_in(parameter.name)] * (use.called and use.given == 1)
    elif re.search(r"\bGenerator\b", annotation) or (name == "generator" and not use.called):
        left_out = [Value(parameter.default, given=False)] if parameter.has_default else []
        made = [*left_out, make_again(generator, "a generator", seed)]
    elif parameter.has_default:
        made = _offer_remembering(name, annotation) if parameter.default is None else []
    elif re.search(_OPTIMIZER, name) or optimizer:
        made = [MadeArgument(descent, "SGD over the parameters of the model", DESCENT)]
        # who goes through the gradients may ask whether they are finite
        over = make_again(overflown, "SGD over weights with an infinite gradient")
        made += [over] * ("param_groups" in use.attributes)
    elif use.trained or (re.search(_WEIGHTS, name) and use.looped and not plain):
        weights = make_weights(parameter.name)
        made = [*weights, *make_weights(parameter.name, scale=0)[1:]]
        if name == "parameters" or re.search(r"\b(Iterable|Iterator|Generator)\[", annotation):
            walk = [replace(w, walked=True) for w in weights[:1] if isinstance(w, MadeArgument)]
            made = [*weights[:1], *walk, *made[1:]]
    elif re.search(r"\bCallable\b", annotation) or (use.called and not re.search(MODEL, name)):
        makers = [make_maker(parameter.name)] * (re.search(_MAKES_LAYERS, name) is not None)
        made = [_TANH, some_layer, *makers, _FAILS, _OF_FEW]
    elif re.search(MODEL, name) or "parameters" in use.attributes:
        made = [some_layer, whole, with_buffers, *([_OF_FEW] if use.called else [])]
    several = use.given > 1 and some_layer in made  # a layer of torch takes one
    return [make_stand_in(parameter.name)] * several + made


def _offer_remembering(name: str, annotation: str) -> list[Spec]:
    """Offer an optimiser that has taken steps, in place of None, for what is called so."""
    if not re.search(_OPTIMIZERS, f"{annotation} {name}"):
        return []
    listed = re.search(_LISTED, annotation or name) is not None
    label = "a list of SGD with momentum" if listed else "SGD with momentum"
    return [Value(None, given=False), make_again(remembering, label, listed=listed)]


def offer_members(kind: type[enum.Enum], name: str) -> list[Spec]:
    """Return the members of an enumeration that the user's module calls so."""
    names, spelt = [m.name for m in kind if m.name.isidentifier()], spell_kind(name)
    return [
        MadeArgument(partial(_find_member, n), f"{name}.{n}", f"{spelt}.{n}", kind=name)
        for n in names
    ]


def spell_kind(name: str) -> str:
    """Return how a program gets at a class: of ``Plane/Vector`` in the file of another one."""
    first, *inner = name.split("/")
    return "".join([f"module.{first}", *(f".__init__.__globals__[{n!r}]" for n in inner)])


def _find_member(name: str, kind: type[enum.Enum]) -> object:
    return kind[name]
