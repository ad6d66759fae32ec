"""Configurations of models with small sizes: the user's own class, or one that guesses by name."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from npufix.rewriters.verification.arguments import (
    WIDTH,
    Parameter,
    guessed,
    scalars,
)
from npufix.rewriters.verification.attempt import attempt
from npufix.rewriters.verification.values import Made, Spec, Value

if TYPE_CHECKING:
    from collections.abc import Mapping

CONFIG_CLASS = r"(Config|Configuration|Args|Arguments)$"
_BUILD_S = 5.0


class StandInConfig:
    """A configuration that invents what is asked of it, from the name."""

    def __init__(self, known: Mapping[str, object]) -> None:
        """Start from attributes that were asked for and could not be guessed before."""
        self.__dict__.update(known)

    def __getattr__(self, name: str) -> object:
        lower = name.lower()
        if lower.startswith("_") and "attn_impl" not in lower:
            raise AttributeError(name)
        # Kept, so that a counterexample can tell what was asked for.
        value = self.__dict__[name] = guessed(name)
        return value


class LightConfig(StandInConfig):
    """The base of a configuration class whose own base cannot be imported here."""

    def __init__(self, **known: object) -> None:
        """Keep what the derived class passes on."""
        super().__init__(known)

    def __getattr__(self, name: str) -> object:
        other = getattr(type(self), "attribute_map", {}).get(name)
        return getattr(self, other) if isinstance(other, str) else super().__getattr__(name)


def configurations(kind: type) -> list[Spec]:
    """Offer a configuration with small sizes first, then as it is by default."""
    label = f"{kind.__name__}()"
    if not attempt(kind, _BUILD_S).error:
        return [Made(lambda: _small(kind()), f"{label} with small sizes"), Made(kind, label)]
    given = attempt(lambda: inspect.signature(kind), _BUILD_S).value
    if not isinstance(given, inspect.Signature):
        return []
    # It cannot be made here, but what its attributes are by default stands in its signature.
    known = {n: p.default for n, p in given.parameters.items() if p.default is not p.empty}
    make = lambda: _small(StandInConfig(known))  # noqa: E731 — one expression over a local
    return [Made(make, f"the defaults of {label} with small sizes")] if known else []


def _small(made: object) -> object:
    for name, value in list(vars(made).items()):
        if type(value) is int and value > 2 * WIDTH:
            guessed = scalars(Parameter(name, "int", inspect.Parameter.empty))
            if guessed and isinstance(guessed[0], Value):
                setattr(made, name, guessed[0].value)
    return made
