"""Bring an object of the user's class into being, by its own ``__init__`` where possible."""

from __future__ import annotations

import ast
import enum
import inspect
import itertools
import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.values import (
    Find,
    MadeArgument,
    Spec,
    Value,
    find_nothing,
    list_tensors,
    materialise,
)
from npufix.rewriters.verification.inputs.arguments import (
    ABSENT,
    weigh_classes,
)
from npufix.rewriters.verification.inputs.objects.configurations import (
    StandInConfig,
    choose_small_sizes,
    offer_configurations,
)
from npufix.rewriters.verification.inputs.objects.examples import list_constructions
from npufix.rewriters.verification.inputs.objects.incomplete.unmade import (
    Undrawn,
    Zeroed,
    make_concrete,
    make_without_init,
    randomise,
)
from npufix.rewriters.verification.inputs.objects.kept import (
    NOT_THE_USERS,
    count_parts,
    count_results,
    find_kept_use,
    is_layer,
    is_pair,
    is_plain,
    list_items,
    list_passed_on,
    list_told,
    makes_layer,
    weighs_classes,
)
from npufix.rewriters.verification.inputs.objects.offers import (
    OWN,
    guess_objects,
    make_groups,
    make_maker,
    make_stand_in,
    make_weights,
    offer_members,
)
from npufix.rewriters.verification.inputs.objects.placeholders import while_making
from npufix.rewriters.verification.inputs.objects.ranks import (
    combine_by_rank,
    tie_classes,
    vary_one,
)
from npufix.rewriters.verification.inputs.objects.training_loops import MODEL, offer_for_loops
from npufix.rewriters.verification.inputs.objects.weights import bind_optimizers, fill_optimizers
from npufix.rewriters.verification.inputs.settings import (
    WIDE,
    find_answering,
    offer_settings,
    offer_tensors,
)
from npufix.rewriters.verification.inputs.source.attributes import (
    list_attributes_read,
    list_classes,
    read_attributes,
    read_by_other,
)
from npufix.rewriters.verification.inputs.source.parameters import (
    CLASSES,
    WIDTH,
    Parameter,
    guess_scalars,
    list_parameters,
)
from npufix.rewriters.verification.inputs.source.several import guess_several, tell_apart
from npufix.rewriters.verification.inputs.source.usage import Use
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npufix.rewriters.verification.inputs.histories import Earlier
    from npufix.rewriters.verification.inputs.load import Loaded

_MOST_PARAMETERS = 5_000_000
_MOST_FURTHER_PARAMETERS = 50_000
"""For another object, once there is one: that of a real size says nothing new, slowly."""
_SHARE = 0.75
_TRIES = 48
_ANY = (Value(WIDTH), Value(3), Value(None))
_BUILD_S = 5.0
_MOST_WORDS = 200
"""Characters of an error that are quoted."""
_FEW_CLASSES = 4
_TEXTS = 3
_MOST_MADE = 2
_DEEPEST = 3
_being_made: list[tuple[type, str]] = []
"""Classes whose objects are sought: one that wants another of its own kind gets none."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make an object, the same way for the original and the patched class."""

    arguments: tuple[tuple[str, Spec], ...] = ()
    attributes: tuple[tuple[str, str], ...] | None = None
    """Not None: ``__init__`` does not run; these attributes are set, as what the values say."""
    chosen: tuple[tuple[str, object], ...] = ()
    """Values of attributes, of the object (``self.mode``) or of an argument (``config.mode``), that
    lead where the others do not."""
    kind: str = ""
    """A class of the module that is made instead, as it inherits the method and changes what that
    calls: what is compared holds for it too."""
    history: tuple[Earlier, ...] = ()
    """Calls of methods of the object, before that which is compared."""
    filled: tuple[tuple[str, float], ...] = ()
    """Weights that hold one number everywhere: ``logit_scale``, beyond where it is clamped."""
    coarse: bool = False
    """Whether all weights are whole numbers and halves, which halves of the width hold, too."""
    late: tuple[tuple[str, Spec], ...] = ()
    """What others set after ``__init__``, or what it leaves at None."""

    @property
    def fresh(self) -> Recipe:
        """How the object is made, before anything is called on it."""
        return replace(self, history=())

    def made_with(self, **given: Spec) -> Recipe:
        """Return the same with other arguments of these names, and what is left out now beside."""
        return replace(self, arguments=(*{**dict(self.arguments), **given}.items(),))

    @property
    def is_wide(self) -> bool:
        """Whether it stands in for a smaller one, with which nothing runs."""
        return any(str(spec) == WIDE for _, spec in self.arguments)

    def owner(self, owner: type, find: Find) -> type:
        """Return the class that is made, in place of the one that has the method."""
        found = find(self.kind) if self.kind else owner
        return make_concrete(found if isinstance(found, type) else owner)

    def build(
        self, owner: type, find: Find = find_nothing, seed: int = 0, *, as_made: bool = False
    ) -> object:
        """Make the object; parameters get values that no forgotten weight can hide behind.

        ``as_made``: those that its class gives them.
        """
        torch.default_generator.manual_seed(seed)
        owner = self.owner(owner, find)
        given = {} if self.attributes is not None else self.given(find)
        with while_making(), Zeroed():  # type: ignore[no-untyped-call] # of torch
            if self.attributes is None:
                made: object = owner(**given)
            else:
                made = make_without_init(owner, self.attributes)
        count_parts(made)
        if isinstance(made, torch.nn.Module) and not as_made:
            randomise(made)
            for weight in made.parameters() if self.coarse else ():
                weight.data.mul_(2).round_().div_(2)
            for name, number in self.filled:
                getattr(made, name).data.fill_(number)
        self.set_late(made, find)
        self._choose({"self": made})
        return made

    def set_late(self, made: object, find: Find) -> None:
        """Set what comes after ``__init__``."""
        late = materialise(dict(self.late), "ordinary", 0, torch.float32, find=find)
        for name, value in late.items():
            setattr(made, name, value)

    def given(self, find: Find) -> dict[str, object]:
        """Make the arguments of ``__init__``."""
        given = materialise(dict(self.arguments), "ordinary", 0, torch.float32, find=find)
        bind_optimizers(given)
        fill_optimizers(given)
        self._choose(given)
        return given

    def _choose(self, scope: Mapping[str, object]) -> None:
        for path, value in self.chosen:
            name, _, last = path.rpartition(".")
            first, *inner = name.split(".")
            holder = scope.get(first)
            for part in inner:
                holder = getattr(holder, part, None)
            # of a module ``weight`` is no plain attribute; that it is None alone says what it is
            plain = last in getattr(holder, "__dict__", ()) or isinstance(holder, StandInConfig)
            unset = value is None and isinstance(holder, torch.nn.Module)
            if plain or (unset and hasattr(holder, last)):
                setattr(holder, last, value)

    def __str__(self) -> str:
        if self.attributes is not None:
            late = ", ".join(f"self.{name} = {spec}" for name, spec in self.late)
            return "an instance made without __init__" + (f" and {late}" if late else "")
        given = ", ".join(f"{name}={spec}" for name, spec in self.arguments)
        held = *self.chosen, *((f"self.{name}", number) for name, number in self.filled)
        texts = (
            *(f"{p} = {value!r}" for p, value in held),
            *(f"self.{n} = {s}" for n, s in self.late),
        )
        chosen = " and ".join(texts)
        words = f"{given} and {chosen}" if given and chosen else given or chosen
        words += ("; " if words else "") + "coarse weights" if self.coarse else ""
        words = f"{self.kind}({words})" if self.kind else words
        before = ", ".join(map(str, self.history))
        return f"{words or 'its defaults'} after {before}" if before else words


def generate_recipes(
    owner: type,
    method: str,
    loaded: Loaded,
    other: str = "",
    failed: list[str] | None = None,
) -> Iterator[Recipe]:
    """Yield recipes that work, the most faithful first.

    ``other`` is the text of the other version, which may read more of an object; ``failed`` takes
    what ``__init__`` has raised.
    """
    found = 0
    shown = (Recipe(tuple(a.items())) for a in list_constructions(owner, loaded.find))
    shown = (r for r in shown if not _why_not(r, owner, loaded.find, _MOST_PARAMETERS))
    inheriting = itertools.chain(
        itertools.islice(shown, 1), _inheriting(owner, method, loaded, other)
    )
    for recipe in (Recipe(tuple(a.items())) for a in _constructions(owner, loaded)):
        most = _MOST_FURTHER_PARAMETERS if found else _MOST_PARAMETERS
        error = _why_not(recipe, owner, loaded.find, most)
        if error.startswith("MemoryError") and not found:
            recipe = _with_small_sizes(recipe, owner)  # noqa: PLW2901 - of the same kind
            error = _why_not(recipe, owner, loaded.find, most)
        if error and failed is not None:
            failed.append(" ".join(error.split())[:_MOST_WORDS])
        if not error:
            found += 1
            yield recipe
            if found == 1:
                yield from _with_other_numbers(recipe, owner, loaded)
                yield from inheriting
    if not found:
        made = list(inheriting)
        found += len(made)
        yield from made
    # the groups of an optimizer are no attributes that a name could tell
    if not found and not issubclass(owner, torch.optim.Optimizer):
        read = {**read_by_other(other, owner, method), **read_attributes(owner, method)}
        recipe = Recipe(attributes=tuple(sorted(read.items())))
        if not try_call(lambda: recipe.build(owner, loaded.find), _BUILD_S).error:
            yield recipe


def _with_small_sizes(recipe: Recipe, owner: type) -> Recipe:
    """Return how to make an object that is too large as it is by default."""
    defaults = {p.name: p.default for p in list_parameters(inspect.signature(owner))}
    given = {n: s.value for n, s in recipe.arguments if isinstance(s, Value)}
    small = choose_small_sizes({**defaults, **given})
    return recipe.made_with(**{n: Value(v) for n, v in small.items()})


def _with_other_numbers(recipe: Recipe, owner: type, loaded: Loaded) -> Iterator[Recipe]:
    """Yield a large object again with other numbers for those that hide a change.

    Times ``scale=1.0`` it makes no difference what is scaled. Of small ones, all are made anyway.
    """
    if not _why_not(recipe, owner, loaded.find, _MOST_FURTHER_PARAMETERS):
        return
    given, signature = dict(recipe.arguments), inspect.signature(owner)
    others: dict[str, Spec] = {}
    for p in list_parameters(signature):
        hides = p.default is None or (type(p.default) in {int, float} and p.default in {0, 1})
        if hides and p.name not in given:
            specs = (spec for _, spec in _choices(owner, p, loaded)[1:])
            numbers = [s for s in specs if isinstance(s, Value) and type(s.value) is float]
            numbers += [Value(_SHARE)] * (type(p.default) is float)  # no name tells more
            others |= dict.fromkeys([p.name] * bool(numbers), *numbers[:1])
    made = Recipe((*given.items(), *others.items()))
    if others and not _why_not(made, owner, loaded.find, _MOST_PARAMETERS):
        yield made


def _inheriting(owner: type, method: str, loaded: Loaded, text: str) -> Iterator[Recipe]:
    """Yield objects of classes that inherit a method, and own something that it reads.

    And of any that inherit it, where the class itself leaves some to them.
    """
    read = {name for name, _ in list_attributes_read(owner, method)}
    for node in list_classes(text):
        bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        kind = loaded.find(node.name) if owner.__name__ in bases else None
        if not isinstance(kind, type) or owner not in kind.__mro__ or method in vars(kind):
            continue
        if read & vars(kind).keys() or inspect.isabstract(owner):
            made = (Recipe(tuple(a.items()), kind=node.name) for a in _constructions(kind, loaded))
            most = _MOST_FURTHER_PARAMETERS
            works = (r for r in made if not _why_not(r, owner, loaded.find, most))
            yield from itertools.islice(works, 1)


def _why_not(recipe: Recipe, owner: type, find: Find, most: int) -> str:
    """Return what goes wrong where an object is made like this; empty if nothing does."""
    return try_call(lambda: _check(recipe, owner, find, most), _BUILD_S).error


def _check(recipe: Recipe, owner: type, find: Find, most: int) -> None:
    """Build the object, first without its values: the sizes of a real model take seconds."""
    specs = [spec for _, spec in recipe.arguments]
    if not any(list_tensors(s) or getattr(s, "given", None) for s in specs):  # those have values
        with torch.device("meta"), Undrawn():
            made = try_call(lambda: recipe.build(owner, find, as_made=True), _BUILD_S).value
        _require_at_most(most, made)
    _require_at_most(most, recipe.build(owner, find))


def _require_at_most(most: int, made: object) -> None:
    count = sum(p.numel() for p in made.parameters()) if isinstance(made, torch.nn.Module) else 0
    if count > most:
        raise MemoryError(f"the module has {count} parameters")


def _constructions(owner: type, loaded: Loaded) -> Iterator[dict[str, Spec]]:
    if owner.__init__ is object.__init__ or owner.__init__ is torch.nn.Module.__init__:  # type: ignore[misc] # of a class
        yield {}
        return
    signature = try_call(lambda: inspect.signature(owner), _BUILD_S).value
    if not isinstance(signature, inspect.Signature):
        return
    parameters = list_parameters(signature)
    options = [_choices(owner, parameter, loaded) for parameter in parameters]
    first = Recipe(tuple((n, spec) for (n, spec), *_ in options if spec is not None))
    for name in list_passed_on(owner, lambda: first.build(owner, loaded.find)):
        passed = Parameter(name, "", inspect.Parameter.empty)
        parameters.append(passed)
        options.append(_choices(owner, passed, loaded))
    counts = {p.name: p.default for p in parameters if re.search(CLASSES, p.name.lower())}
    weights = [p.name for p in parameters if weighs_classes(owner, p)]
    seen: list[tuple[tuple[str, Spec | None], ...]] = []
    trains = issubclass(owner, torch.optim.Optimizer)
    ranked = itertools.islice(combine_by_rank(options, other_first=trains), _TRIES)
    for combination in itertools.chain(ranked, vary_one(options)):
        if combination in seen:
            continue
        seen.append(combination)
        chosen = {name: spec for name, spec in combination if spec is not None}
        yield tie_classes(chosen, counts, weights)


def _choices(owner: type, parameter: Parameter, loaded: Loaded) -> list[tuple[str, Spec | None]]:
    """Return what an argument may be, the likeliest first; none where it is left out."""
    name, specs = parameter.name, _options(owner, parameter, loaded)
    if parameter.has_default:
        other = [s for s in specs if not (isinstance(s, Value) and s.value == parameter.default)]
        few = _TEXTS if isinstance(parameter.default, str) else 2
        return [(name, None), *((name, s) for s in other[:few])]
    specs = [Value(None), *specs] if re.search(ABSENT, parameter.annotation) else specs
    return [(name, s) for s in {str(s): s for s in specs or _ANY}.values()]


def _options(owner: type, parameter: Parameter, loaded: Loaded) -> list[Spec]:
    if issubclass(owner, torch.optim.Optimizer) and not parameter.has_default:
        return [*make_weights(parameter.name, scale=0), make_groups(parameter.name)]
    bare, annotated = _find_annotated(parameter, loaded)
    answering = find_answering(owner, parameter, loaded, annotated)
    told, specs = list_told(owner, parameter, loaded.find), list[Spec]()
    if not parameter.has_default:
        specs = told or offer_tensors(owner, parameter)
    if not (specs or parameter.has_default or is_plain(parameter.annotation)):
        specs = _offer_layers(owner, parameter)
    if answering:
        specs = [*_offer_made(*answering, loaded), *specs]
    elif isinstance(annotated, type) and not (annotated is torch.Tensor or parameter.has_default):
        specs += offer_configurations(annotated, bare) or _offer_made(annotated, bare, loaded)
    specs += offer_settings(owner, parameter, loaded, annotated, alone=not specs)
    if weighs_classes(owner, parameter):
        specs += weigh_classes(WIDTH, _FEW_CLASSES)
    if parameter.default is None:
        specs += offer_for_loops(parameter, find_kept_use(owner, parameter.name, called=False))[1:]
        specs += [_stand_in(owner, parameter)] if is_layer(owner, parameter.name) else []
        if "Tensor" in parameter.annotation:  # one of ``probs`` and ``logits`` is needed
            specs = specs or offer_tensors(owner, parameter)
    specs = specs or list_items(owner, parameter)
    paired = not parameter.has_default and is_pair(owner, parameter.name)
    specs += guess_several(parameter, Use(paired=paired)) or tell_apart(parameter.default)
    return (told if parameter.has_default else []) + specs + guess_scalars(parameter)


def _offer_layers(owner: type, parameter: Parameter) -> list[Spec]:
    if makes_layer(owner, parameter.name):
        return [make_maker(parameter.name)]
    called = is_layer(owner, rf"(?:.*\bdeepcopy\()?{parameter.name}\)?")
    use = find_kept_use(owner, parameter.name, called=called)
    # Another one than what a method takes: the average of two that are equal is no other.
    own = replace(parameter, name=OWN + parameter.name)
    specs = offer_for_loops(own, use) or guess_objects(own, use)
    if called and not offer_for_loops(parameter, use):
        # A model has weights; a layer that is wrapped may take a mask as well.
        specs.insert(re.search(MODEL, parameter.name) is not None, _stand_in(owner, parameter))
    return specs


def _stand_in(owner: type, parameter: Parameter) -> Spec:
    return make_stand_in(parameter.name, count_results(owner, parameter.name))


def offer_objects(parameter: Parameter, loaded: Loaded) -> list[Spec]:
    """Return objects of the user's class that an annotation names, and members of an enumeration.

    ``plane: Hyperplane``, made by its own ``__init__``; after None, where that is the default.
    """
    names = re.findall(r"[A-Za-z_][\w.]*", parameter.annotation)
    kinds = [(n, loaded.find(n)) for n in (n.rpartition(".")[2] for n in names)]
    specs = [s for n, k in kinds if isinstance(k, type) for s in _offer_made(k, n, loaded)]
    if specs and parameter.has_default:
        return [Value(parameter.default, given=False), *specs]
    return specs


def _offer_made(kind: type, name: str, loaded: Loaded) -> list[Spec]:
    if issubclass(kind, enum.Enum):
        return offer_members(kind, name)
    foreign = kind.__module__.partition(".")[0] in NOT_THE_USERS
    foreign |= any(kind is known for known, _ in _being_made)
    if foreign or issubclass(kind, torch.Tensor) or len(_being_made) >= _DEEPEST:
        return []
    _being_made.append((kind, name))
    try:
        found = itertools.islice(generate_recipes(kind, "__init__", loaded), _MOST_MADE)
        made = [r for r in found if r.attributes is None and not r.kind]
    finally:
        _being_made.pop()
    labels = [f"{name.rpartition('/')[2]}({r if r.arguments else ''})" for r in made]
    return [
        MadeArgument(partial(_build_argument, r), label, kind=name, given=r.arguments)
        for r, label in zip(made, labels, strict=True)
    ]


def _build_argument(recipe: Recipe, kind: type) -> object:
    """Make an object that is an argument; what it is made of is known where its class is."""
    known = getattr(kind.__init__, "__globals__", {})  # type: ignore[misc] # of a class
    return recipe.build(kind, lambda name: known.get(name.rpartition("/")[2]))


def _find_annotated(parameter: Parameter, loaded: Loaded) -> tuple[str, object]:
    """Return what an annotation names, and how that is found: ``Plane/Vector`` of another file."""
    bare = re.sub(r"\W.*", "", parameter.annotation.strip("'\"").rpartition(".")[2])
    found = loaded.find(bare) if bare else None
    if found is None and bare and _being_made:  # a class of another file takes those of its own
        bare = f"{_being_made[-1][1]}/{bare}"
        found = loaded.find(bare)
    return bare, found


def tie_modules(recipe: Recipe, specs: Mapping[str, Spec], owner: type, loaded: Loaded) -> Recipe:
    """Return an object made with modules of the kinds that a method gets under the same names.

    ``update(model)`` goes through the buffers of both where ``__init__(model)`` has copied one.
    """
    given = {n: s for n, s in recipe.arguments if isinstance(s, MadeArgument)}
    apart = {n for n in given.keys() & specs.keys() if str(given[n]) != str(specs[n])}
    apart = {n for n in apart if isinstance(specs[n], MadeArgument)}
    signature = try_call(lambda: inspect.signature(owner), _BUILD_S).value if apart else None
    tied = dict[str, Spec]()
    for parameter in list_parameters(signature) if isinstance(signature, inspect.Signature) else ():
        if parameter.name in apart:
            other = str(specs[parameter.name])
            alike = (s for s in _options(owner, parameter, loaded) if str(s) == other)
            tied[parameter.name] = next(alike, given[parameter.name])
    made = recipe.made_with(**tied)
    return made if not tied or not _why_not(made, owner, loaded.find, _MOST_PARAMETERS) else recipe
