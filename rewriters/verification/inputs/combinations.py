"""Guesses at each argument, combined: the likeliest calls first."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.values import MadeArgument, Several, Spec, Tensor, Value
from npufix.rewriters.verification.inputs.arguments import (
    guess_argument,
    guess_tensors,
    is_tensor,
)
from npufix.rewriters.verification.inputs.objects.incomplete.unmade import randomise
from npufix.rewriters.verification.inputs.objects.kept import is_plain
from npufix.rewriters.verification.inputs.objects.layer_classes import find_class_of, list_sought
from npufix.rewriters.verification.inputs.objects.offers import offer_chain
from npufix.rewriters.verification.inputs.recipes import offer_objects
from npufix.rewriters.verification.inputs.settings import guess_configurations, offer_described
from npufix.rewriters.verification.inputs.source.parameters import (
    WIDTH,
    Parameter,
    guess_scalars,
)
from npufix.rewriters.verification.inputs.source.path_conditions import find_compared_constants
from npufix.rewriters.verification.inputs.source.several import find_parallel, find_twins
from npufix.rewriters.verification.inputs.source.usage import find_function
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    import ast
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from npufix.rewriters.verification.inputs.load import Loaded
    from npufix.rewriters.verification.inputs.source.declarations import Declarations
    from npufix.rewriters.verification.inputs.target import Target

_MOST_COST = 60
_OPTIONAL_COST = 2
_MOST_DECLARED = 2
_LIST_S = 1.0
_LISTS = (list, tuple, torch.nn.ParameterList, torch.nn.ModuleList)


def combine_guesses(  # noqa: PLR0913, PLR0917 - all that is known of the arguments
    target: Target,
    tree: ast.Module,
    bases: Sequence[tuple[int, ...]],
    widths: Sequence[int],
    declared: Declarations,
    forced: Mapping[str, Spec] | None = None,
    made: object = None,
) -> Iterator[dict[str, Spec]]:
    """Yield arguments by rising cost: the sum of the ranks of all guesses made.

    ``forced`` are those that some are to have, and no guesses; ``made`` is the object, for a
    method.
    """
    wanted = target.parameters()
    hints = find_compared_constants(tree, target.qualname, target.loaded.find)
    known = {
        p.name: guess_configurations(p, target, tree) or offer_objects(p, target.loaded)
        for p in wanted
    }
    function = find_function(tree, target.qualname)
    models = {p.name: _offer_models(p, function, target.loaded) for p in wanted}
    described = {p.name: offer_described(p, target, tree) for p in wanted}

    def tries(p: Parameter, base: tuple[int, ...]) -> list[Spec]:
        width = base[-1] if base and base[-1] in widths else WIDTH
        own = declared.holding(p.name, width)
        shapes = _list_shapes(p, width, declared)
        if target.owner is not None and base not in shapes and len(base) in map(len, shapes):
            shapes = [*shapes, base]  # one of the sizes is what the object was made for
        if forced and p.name in forced:
            # A number in place of a mask, as nothing is known of it, changes no scores.
            something = p.default is None and forced[p.name] == Value(WIDTH)
            if something and is_plain(p.annotation):  # ``offset: int | None = None``
                return guess_scalars(p, widths) or [forced[p.name]]
            guesses = guess_tensors(p, base, widths, own, shapes) if something else []
            return [*guesses, *(() if guesses and own.use.as_tensor else [forced[p.name]])]
        guesses = known[p.name] or guess_argument(p, base, widths, own, shapes)
        guesses = [*models[p.name], *_unless_made(described[p.name], guesses), *guesses]
        # What a tensor is compared with, ``valid > 0``, says nothing of a number in its place.
        sure = is_tensor(p, own)
        told: list[Spec] = [Value(v) for v in hints.get(p.name, ()) if v is None or not sure]
        size = None if sure or p.has_default else declared.find_size(p.name, width)
        told += [] if size is None else [Value(size)]
        at = 1 if p.has_default else 0
        return [*guesses[:at], *(t for t in told if t not in guesses), *guesses[at:]]

    first = [shape for p in wanted for shape in declared.list_shapes(p.name, WIDTH)]
    first.sort(key=len, reverse=True)
    table: list[list[list[Spec]]] = []
    for base in dict.fromkeys((*first[:_MOST_DECLARED], *bases)):
        row = [tries(p, base) for p in wanted]
        if row not in table:
            table.append(row)
    side_by_side = find_parallel(function)
    twins_match = partial(_are_of_one_make, find_twins(function))
    for cost in range(_MOST_COST):
        for rank, options in enumerate(table[: cost + 1]):
            for chosen in _split(wanted, options, cost - rank):
                guessed = {p.name: s for p, s in zip(wanted, chosen, strict=True)}
                yield from filter(twins_match, tie_lists(guessed, side_by_side, made))


def _unless_made(offered: Sequence[Spec], guesses: Sequence[Spec]) -> Sequence[Spec]:
    """Return what stands for an object, unless something is known that may be passed."""
    return [] if any(isinstance(s, MadeArgument) for s in guesses) else offered


def _list_shapes(parameter: Parameter, width: int, known: Declarations) -> list[tuple[int, ...]]:
    """Return the shapes that are declared, or that of a default: ``std=torch.tensor([0.2])``."""
    default = parameter.default
    own = [tuple(default.shape)] if isinstance(default, torch.Tensor) else []
    return known.list_shapes(parameter.name, width) or own


def _offer_models(parameter: Parameter, function: ast.AST | None, loaded: Loaded) -> list[Spec]:
    """Return models with layers of the classes that code looks for in a model.

    Of the user's for ``for m in model.modules(): if isinstance(m, BayesLinear)``, or of torch's.
    """
    names = [] if parameter.has_default else list_sought(function, parameter.name)
    known = (find_class_of(name, torch.nn, torch.nn.Module) for name in names)
    specs: list[Spec] = [offer_chain(kind) for kind in known if kind]
    for name in names:
        kind = loaded.find(name.rpartition(".")[2])
        if isinstance(kind, type) and issubclass(kind, torch.nn.Module):
            made = offer_objects(replace(parameter, annotation=name), loaded)
            specs += [
                replace(s, make=partial(_chain, s.make), label=f"a model of two {s}", doubled=True)
                for s in made
                if isinstance(s, MadeArgument)
            ]
    return specs


def _chain(make: Callable[..., object], kind: type) -> torch.nn.Module:
    layers = make(kind), make(kind)
    made = torch.nn.Sequential(*(one for one in layers if isinstance(one, torch.nn.Module)))
    randomise(made)
    return made


def tie_lists(
    specs: dict[str, Spec], side_by_side: Sequence[frozenset[str]], made: object
) -> Iterator[dict[str, Spec]]:
    """Yield arguments with lists as long as those beside them: a gradient for each parameter.

    With tensors of the same shapes first. ``made`` is the object whose method is called.
    """
    if not side_by_side:
        yield specs
        return
    alike, long = dict(specs), dict(specs)
    for names in side_by_side:
        held = next(filter(None, (_list_held(name, specs, made) for name in names)), [])
        for name in names & specs.keys() if held else ():
            spec = specs[name]
            if isinstance(spec, Several) and spec.items and not spec.keys:
                items = itertools.islice(itertools.cycle(spec.items), len(held))
                long[name] = replace(spec, items=tuple(items))
            shapes = [tuple(one.shape) for one in held if isinstance(one, torch.Tensor)]
            if len(shapes) == len(held) and isinstance(spec, Several | Tensor):
                alike[name] = Several(tuple(map(Tensor, shapes)), "list")
                # the rows of a tensor are all of one shape
                long[name] = long[name] if len(set(shapes)) == 1 else alike[name]
    yield alike
    if long != alike:
        yield long


def _are_of_one_make(twins: Sequence[frozenset[str]], specs: Mapping[str, Spec]) -> bool:
    return all(len({str(specs[n]) for n in names & specs.keys()}) <= 1 for names in twins)


def _list_held(name: str, specs: Mapping[str, Spec], made: object) -> list[object]:
    """Return what a list holds that is there before: an attribute, or the weights of a model."""
    spec = specs.get(name)
    found = getattr(made, name.removeprefix("self."), None) if name.startswith("self.") else None
    if isinstance(spec, MadeArgument):
        found = try_call(spec.make, _LIST_S).value
    return list(found) if isinstance(found, _LISTS) else []


def _split(
    wanted: Sequence[Parameter], options: Sequence[Sequence[Spec]], cost: int
) -> Iterator[tuple[Spec, ...]]:
    if not wanted:
        if cost == 0:
            yield ()
        return
    extra = _OPTIONAL_COST if wanted[0].has_default else 0
    for rank, spec in enumerate(options[0]):
        price = rank + extra if rank else 0
        if price > cost:
            break
        for rest in _split(wanted[1:], options[1:], cost - price):
            yield (spec, *rest)
