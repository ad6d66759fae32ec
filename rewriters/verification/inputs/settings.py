"""Configurations for arguments: of the file's classes, or made by what is read."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from npufix.rewriters.verification.calls.values import MadeArgument, Spec
from npufix.rewriters.verification.inputs.objects.configurations import (
    CONFIG_CLASS,
    StandInConfig,
    WideConfig,
    invent,
    list_settings,
    offer_configurations,
)
from npufix.rewriters.verification.inputs.objects.kept import read_methods
from npufix.rewriters.verification.inputs.source.parameters import (
    WIDTH,
    Parameter,
    guess_attribute,
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


def find_settings(owner: type, name: str, kind: type[StandInConfig]) -> MadeArgument:
    """Find out by trying which attributes ``__init__`` reads that no name tells."""
    inner = [n for n, held in list_settings(read_methods(owner)[1], name).items() if held]
    known: dict[str, object] = {}
    for _ in range(_REPAIRS):
        config = invent(kind, known, inner)
        outcome = try_call(lambda c=config: owner(**{name: c}), _BUILD_S)  # type: ignore[misc] # a default binds it
        asked = outcome.error.removeprefix("AttributeError: ")
        if outcome.kind != "AttributeError" or not asked.isidentifier() or asked in known:
            break
        known[asked] = WIDTH
    label = WIDE if kind is WideConfig else "a stand-in configuration"
    return MadeArgument(lambda: invent(kind, known, inner), label)
