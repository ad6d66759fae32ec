"""What stands in the place of an import that is not possible here."""

from __future__ import annotations

import re
import types

import torch

from npufix.rewriters.verification.inputs.configurations import CONFIG_CLASS, LightConfig


class Placeholder:
    """Stands for something that could not be imported.

    Harmless as a decorator or a base class while the definitions are executed; an error as soon
    as the function to verify uses it, for what it computes would be neither right nor wrong.
    """

    def __init__(self, name: str, loading: list[bool]) -> None:
        """Remember what is missing, and the flag that says when loading is over."""
        self._name = name
        self._loading = loading

    def _use(self) -> None:
        if not self._loading:
            raise ImportError(f"{self._name} could not be imported")

    def __call__(self, *args: object, **keywords: object) -> object:
        """Return a decorated function as it was; anything else stays a placeholder."""
        self._use()
        if len(args) == 1 and not keywords and isinstance(args[0], types.FunctionType | type):
            return args[0]
        return Placeholder(f"{self._name}(...)", self._loading)

    def __getattr__(self, name: str) -> Placeholder:
        if name.startswith("__"):
            raise AttributeError(name)
        self._use()
        return Placeholder(f"{self._name}.{name}", self._loading)

    def __mro_entries__(self, _bases: tuple[object, ...]) -> tuple[type, ...]:
        return (LightConfig if re.search(CONFIG_CLASS, self._name) else torch.nn.Module,)

    def __bool__(self) -> bool:
        self._use()
        return False
