"""Configurations for arguments: of the file's classes, or made by what is read."""

from __future__ import annotations

import inspect
import itertools
import re
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.values import MadeArgument, Spec, Value
from npufix.rewriters.verification.inputs.objects.configurations import (
    CONFIG_CLASS,
    StandInConfig,
    WideConfig,
    invent,
    list_defaults,
    list_settings,
    offer_configurations,
)
from npufix.rewriters.verification.inputs.objects.kept import is_layer, read_methods
from npufix.rewriters.verification.inputs.source.parameters import (
    WIDTH,
    Parameter,
    guess_attribute,
    guess_scalars,
    list_parameters,
)
from npufix.rewriters.verification.inputs.source.usage import find_function
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    import ast

    from npufix.rewriters.verification.inputs.load import Loaded
    from npufix.rewriters.verification.inputs.target import Target

CONFIG = r"^(config|cfg|args|configuration|hparams|params|model_args|opts?)$"
WIDE = "a wide stand-in configuration"
_REPAIRS = 12
_MOST_CONFIGURATIONS = 2
_BUILD_S = 5.0


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
    if not re.search(CONFIG, parameter.name) or parameter.has_default:
        return []
    function = find_function(tree, target.qualname)
    asked = list_settings(function, parameter.name) if function is not None else {}
    if not asked:
        return []
    inner = [name for name, held in asked.items() if held]
    unknown = {n: WIDTH for n in asked if try_call(lambda n=n: guess_attribute(n), _BUILD_S).error}  # type: ignore[misc] # a default binds it
    made = MadeArgument(lambda: invent(StandInConfig, unknown, inner), "a stand-in configuration")
    return [*offer_file_configurations(target.qualname, target.loaded), made]


def find_settings(
    owner: type, name: str, kind: type[StandInConfig], annotated: object = None
) -> MadeArgument:
    """Find out by trying which attributes ``__init__`` reads that no name tells.

    ``annotated`` is the class of the configuration, if that is known: its flags and texts hold.
    """
    inner = [n for n, held in list_settings(read_methods(owner)[1], name).items() if held]
    told = list_defaults(annotated) if isinstance(annotated, type) else {}
    known = {n: v for n, v in told.items() if type(v) in {bool, str}}  # no members of the user's
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


def _guess_required(owner: type, name: str) -> dict[str, object]:
    """Return what else ``__init__`` needs: ``layer_idx`` of ``(config, layer_idx)``."""
    signature = try_call(lambda: inspect.signature(owner), _BUILD_S).value
    found: dict[str, object] = {}
    for p in list_parameters(signature) if isinstance(signature, inspect.Signature) else ():
        if p.has_default or p.name == name:
            continue
        plain = [s.value for s in guess_scalars(p) if isinstance(s, Value)]
        layer = "Module" in p.annotation or is_layer(owner, p.name)
        other = torch.nn.Linear(WIDTH, WIDTH) if layer else WIDTH
        found[p.name] = plain[0] if plain else other
    return found
