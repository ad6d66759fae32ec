"""What objects are made with: configurations, of the file or made by what is read; tensors."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.graph.modules.syntax import walk
from npufix.rewriters.verification.calls.values import MadeArgument, Spec, Value, replace_tensors
from npufix.rewriters.verification.inputs.arguments import BASES, guess_tensors
from npufix.rewriters.verification.inputs.objects.configurations import (
    CONFIG_CLASS,
    StandInConfig,
    WideConfig,
    invent,
    list_answers,
    list_defaults,
    list_settings,
    offer_configurations,
)
from npufix.rewriters.verification.inputs.objects.kept import (
    find_kept_use,
    find_tensor_use,
    is_layer,
    is_plain,
    list_parts,
    read_init,
    read_methods,
)
from npufix.rewriters.verification.inputs.objects.offers import offer_graph
from npufix.rewriters.verification.inputs.source.parameters import (
    WIDTH,
    Parameter,
    guess_attribute,
    guess_scalars,
    list_parameters,
)
from npufix.rewriters.verification.inputs.source.path_conditions import find_compared_constants
from npufix.rewriters.verification.inputs.source.usage import find_function
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from npufix.rewriters.verification.inputs.load import Loaded
    from npufix.rewriters.verification.inputs.target import Target

CONFIG = r"^(config|cfg|args|configuration|hparams|params|model_args|opts?)$"
WIDE = "a wide stand-in configuration"
_KINDS = (StandInConfig, WideConfig)
_REPAIRS = 12
_MOST_CONFIGURATIONS = 2
_CUTS = frozenset({"chunk", "tensor_split"})
_OF_POSITIVE = frozenset({"log", "log2", "log10", "sqrt", "rsqrt", "logit", "cumprod"})
_BUILD_S = 5.0
_MOST_DESCRIBED = 4
_APART = (WIDTH, 3, 5, 7, 6, 9, 10, 11, 13)
_COMMON = tuple(
    frozenset(dir(kind))
    for kind in (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, list, dict, str)
)


def offer_file_configurations(owner: str, loaded: Loaded) -> list[Spec]:
    """Offer the configurations that the file knows, those that share the class's name first."""

    def unlike(name: str) -> int:
        pairs = zip(name.lower(), owner.lower(), strict=False)
        return -sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))

    specs: list[Spec] = []
    names = [n for n in loaded.names if re.search(CONFIG_CLASS, n)]
    for name in sorted(names, key=unlike)[:_MOST_CONFIGURATIONS]:
        kind = loaded.find(name)
        if isinstance(kind, type):
            specs += offer_configurations(kind, name)
    return specs


def guess_configurations(parameter: Parameter, target: Target, tree: ast.Module) -> list[Spec]:
    """Return configurations, for a parameter of a function that is one."""
    said = parameter.has_default or "Tensor" in parameter.annotation
    if said or not re.search(CONFIG, parameter.name):
        return []
    function = find_function(tree, target.qualname)
    asked = list_settings(function, parameter.name) if function is not None else {}
    if asked.keys() <= _COMMON[0]:  # ``params.device``, of a tensor
        return []
    inner = [name for name, held in asked.items() if held]
    unknown = {n: WIDTH for n in asked if try_call(lambda n=n: guess_attribute(n), _BUILD_S).error}  # type: ignore[misc] # a default binds it
    made = MadeArgument(lambda: invent(StandInConfig, unknown, inner), "a stand-in configuration")
    return [*offer_file_configurations(target.qualname, target.loaded), made]


def offer_described(parameter: Parameter, target: Target, tree: ast.Module) -> list[Spec]:
    """Return an object with what a function reads of an argument that is no common object.

    ``"log"`` of ``encoder.transformation in ["log", "log1p"]``. Each number is another, so that
    none passes for another. Nothing where methods are called, as nobody knows what they return.
    """
    name, function = parameter.name, find_function(tree, target.qualname)
    plain = bool(parameter.annotation) and is_plain(parameter.annotation)
    if function is None or plain or parameter.has_default or "Tensor" in parameter.annotation:
        return []
    asked: set[str] = set()
    for node in walk(function):
        match node:
            case ast.Call(ast.Attribute(ast.Name(of), _)) | ast.Call(ast.Name(of)) if of == name:
                return []
            case ast.Subscript(ast.Name(of)) | ast.Attribute(ast.Attribute(ast.Name(of))):
                if of == name:
                    return []
            case ast.Attribute(ast.Name(of), read) if of == name:
                asked.add(read)
    if not asked or any(asked <= known for known in _COMMON):
        return []
    compared = find_compared_constants(tree, target.qualname, target.loaded.find)
    found: list[Spec] = []
    for number in range(_MOST_DESCRIBED):  # of the constants that it is compared with, each
        known: dict[str, object] = {}
        for one in sorted(asked):
            told = [v for v in compared.get(f"{name}.{one}", ()) if v is not None]
            guesses = guess_scalars(Parameter(one, "", inspect.Parameter.empty))
            likely = [*(s.value for s in guesses if isinstance(s, Value)), *_APART]
            free = (v for v in likely if type(v) is bool or v not in known.values())
            known[one] = told[number % len(told)] if told else next(free, WIDTH)
        make = partial(invent, StandInConfig, known, ())
        label = f"a stand-in with {', '.join(f'{n}={v!r}' for n, v in known.items())}"
        found.append(MadeArgument(make, label))
    return list({str(s): s for s in found}.values())


def offer_settings(
    owner: type, parameter: Parameter, loaded: Loaded, annotated: object, *, alone: bool
) -> list[Spec]:
    """Return configurations for an argument of ``__init__``, and for any object that is asked.

    ``alone``: nothing else is known that may be passed.
    """
    name = parameter.name
    if re.search(CONFIG, name):
        made = offer_file_configurations(owner.__name__, loaded) if alone else []
        return made + [_find_settings(owner, name, k, annotated) for k in _KINDS]
    if parameter.has_default or not _is_asked(owner, parameter):
        return []
    return [_find_settings(owner, name, StandInConfig, annotated)]


def _find_settings(
    owner: type, name: str, kind: type[StandInConfig], annotated: object = None
) -> MadeArgument:
    """Find out by trying which attributes ``__init__`` reads that no name tells.

    ``annotated`` is the class of the configuration, if that is known: its flags and texts hold.
    """
    answers, inner = list_parts(owner, name)
    told = list_defaults(annotated) if isinstance(annotated, type) else {}
    known = {n: v for n, v in told.items() if type(v) in {bool, str}}  # no members of the user's
    known = {**answers, **known}
    beside = _guess_required(owner, name)
    for _ in range(_REPAIRS):
        config = invent(kind, known, inner)
        outcome = try_call(lambda c=config: owner(**{name: c}, **beside), _BUILD_S)  # type: ignore[misc] # a default binds it
        asked = outcome.error.removeprefix("AttributeError: ")
        if outcome.kind != "AttributeError" or not asked.isidentifier() or asked in known:
            break
        known[asked] = WIDTH
    label = WIDE if kind is WideConfig else "a stand-in configuration"
    return MadeArgument(lambda: invent(kind, known, inner), label)


def _is_asked(owner: type, parameter: Parameter) -> bool:
    """Say whether methods ask an argument of ``__init__`` for parts that no common object has.

    ``args.width``, ``graph.num_nodes()``: it is none of torch, and no plain value.
    """
    if is_plain(parameter.annotation) or "Tensor" in parameter.annotation:
        return False
    tree = read_methods(owner)[1]
    asked = {*list_settings(tree, parameter.name), *list_answers(tree, parameter.name)}
    return bool(asked) and not any(asked <= known for known in _COMMON)


def find_answering(
    owner: type, parameter: Parameter, loaded: Loaded, annotated: object
) -> tuple[type, str] | None:
    """Return the class of the file that has all which methods ask an argument of ``__init__`` for.

    A schedule of noise for ``scheduler: nn.Module``, of which ``scheduler.betas[t]`` is read.
    """
    known = isinstance(annotated, type) and annotated is not torch.nn.Module
    if known or parameter.has_default or is_plain(parameter.annotation):
        return None
    asked = find_kept_use(owner, parameter.name, called=False).attributes
    if asked <= _COMMON[0] | _COMMON[1] or any(asked <= common for common in _COMMON):
        return None
    for name in loaded.names if asked else ():
        kind = loaded.find(name)
        # by their lines of descent: a TypedDict cannot be asked by ``issubclass``
        if not isinstance(kind, type) or kind in owner.__mro__ or owner in kind.__mro__:
            continue
        known_as: type = kind
        text = read_methods(known_as)[0] if kind.__module__ == owner.__module__ else ""
        if all(re.search(rf"\b{word}\b", text) or hasattr(kind, word) for word in asked) and text:
            return kind, name
    return None


def _guess_required(owner: type, name: str) -> dict[str, object]:
    """Return what else ``__init__`` needs: ``layer_idx`` of ``(config, layer_idx)``."""
    signature = try_call(lambda: inspect.signature(owner), _BUILD_S).value
    found: dict[str, object] = {}
    for p in list_parameters(signature) if isinstance(signature, inspect.Signature) else ():
        if p.has_default or p.name == name:
            continue
        plain = [s.value for s in guess_scalars(p) if isinstance(s, Value)]
        layer = "Module" in p.annotation or is_layer(owner, p.name)
        other: object = torch.nn.Linear(WIDTH, WIDTH) if layer else WIDTH
        if not layer and (re.search(CONFIG, p.name) or _is_asked(owner, p)):
            other = invent(StandInConfig, *list_parts(owner, p.name))
        found[p.name] = plain[0] if plain else other
    return found


def offer_tensors(owner: type, parameter: Parameter) -> list[Spec]:
    """Return tensors for an argument of ``__init__`` that is one; empty if nothing says so."""
    use, declared = find_tensor_use(owner, parameter.name), read_init(owner)
    shapes = declared.list_shapes(parameter.name, WIDTH)
    if not use and not shapes and "Tensor" not in parameter.annotation:
        return []
    bases = (BASES[6], *BASES[:4]) if use & _CUTS else (BASES[3], *BASES[:3]) if use else BASES[:4]
    own = declared.of(parameter.name)
    # of relations between labels, covariances
    bases = (*bases, *BASES[7:9])
    made = [s for base in bases for s in guess_tensors(parameter, base, (), own, shapes)[:1]]
    if use & _OF_POSITIVE:
        made = [replace_tensors(s, lambda t: replace(t, kind="unit")) for s in made]
    return [*dict.fromkeys(made), *offer_graph(parameter.name)]
