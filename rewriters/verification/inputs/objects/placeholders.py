"""What stands for names that cannot be imported, while definitions are executed and after."""

from __future__ import annotations

import re
import types
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from npufix.rewriters.verification.inputs.objects.configurations import CONFIG_CLASS, LightConfig
from npufix.rewriters.verification.inputs.objects.offers import StandInLayer
from npufix.rewriters.verification.inputs.source.parameters import guess_attribute
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NO_MODULE = r"(?<!Model)(?<!Module)(?<!Layer)Mixin$|DataModule$|Dataset$"
_ASKS = (
    r"^_?(is|has)_\w+_(available|installed)$"
    r"|^_?(HAS|HAVE)_[A-Z0-9_]+$|^[A-Z0-9_]+_(AVAILABLE|INSTALLED)$"
)
"""What a name is called that asks whether a package is there."""
_loading: list[None] = []
"""One for each file of which definitions are being executed."""


_making: list[None] = []
"""One for each object that is being made."""
_MAKES = r"(^|\.)([A-Z]\w*[a-z]\w*|(make|build|create|get)_\w+)$"
"""What an ``__init__`` calls to get a part of the object."""


@contextmanager
def while_making() -> Iterator[None]:
    """Have classes that are missing make stand-ins for a while: the parts of an object."""
    _making.append(None)
    try:
        yield
    finally:
        _making.pop()


class StandInPart(StandInLayer):
    """What a class would make that cannot be imported: a layer, with what its users ask of it.

    As norms and products do, it takes the numbers of a row together: of parts it makes others.
    """

    def forward(self, *given: object, **named: object) -> object:
        """Return the first argument, changed by all there are."""
        x, *others = given or (None,)
        if isinstance(x, torch.Tensor) and x.is_floating_point() and x.dim():
            given = (x + x.mean(-1, keepdim=True), *others)
        return super().forward(*given, **named)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the name suggests
        """Invent what is not there."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return guess_attribute(name)


@contextmanager
def while_loading() -> Iterator[None]:
    """Have placeholders do no harm for a while: definitions of one file call those of another."""
    _loading.append(None)
    try:
        yield
    finally:
        _loading.pop()


def find_answer(name: str) -> object:
    """Return what stands for ``is_triton_available``, which cannot be imported."""
    if not re.search(_ASKS, name):
        return None
    return False if name.isupper() else _never


def _never(*_given: object, **_named: object) -> bool:
    return False


_MAKE_S = 5.0

HOLDS_NONE = object()
"""What a file has under a name that is None, as ``backend = None`` is until somebody sets it."""


class ModuleOfFiles(types.ModuleType):
    """A module that could not be imported, whose definitions are taken out of its file."""

    def __init__(self, name: str, find: Callable[[str], object]) -> None:
        """Remember how to find a definition."""
        super().__init__(name)
        self._find = find

    def __getattr__(self, name: str) -> object:
        """Return a definition, a placeholder for one that is not there while loading."""
        if name.startswith("__"):
            raise AttributeError(name)
        found = self._find(name)
        if found is not None:
            self.__dict__[name] = None if found is HOLDS_NONE else found
            return self.__dict__[name]
        if not _loading:
            raise ImportError(f"{self.__name__}.{name} could not be imported")
        return Placeholder(f"{self.__name__}.{name}")


def _make_of_torch(
    name: str, args: tuple[object, ...], keywords: dict[str, object]
) -> torch.nn.Module | None:
    """Return the layer of torch that a missing class is named as; None if it makes none.

    ``Sequential(norm if pre else None, Linear(dim, heads))`` of other packages leaves out None.
    """
    kind = getattr(torch.nn, name, None)
    if not (isinstance(kind, type) and issubclass(kind, torch.nn.Module)):
        return None
    given = [each for each in args if each is not None] if name == "Sequential" else args
    made = try_call(lambda: kind(*given, **keywords), _MAKE_S).value
    return made if isinstance(made, torch.nn.Module) else None


class StandInBase(torch.nn.Module):
    """A base class that could not be imported: a module, whatever its own arguments are."""

    def __init__(self, *_given: object, **_keywords: object) -> None:
        """Take what the real one takes, as ``init_cfg``."""
        super().__init__()

    def __init_subclass__(cls, **_keywords: object) -> None:
        """Take what the real one takes: ``class Net(nn.Module, HubMixin, tags=["net"])``."""
        super().__init_subclass__()


class StandInMixin:
    """A base class that could not be imported, and is no module: what is compared has no hash."""

    def __init__(self, *_given: object, **_keywords: object) -> None:
        """Take what the real one takes."""

    def __init_subclass__(cls, **_keywords: object) -> None:
        """Take what the real one takes."""
        super().__init_subclass__()


class Placeholder:
    """Stands for something that could not be imported.

    Harmless as a decorator or a base class while the definitions are executed; an error as soon
    as the function to verify uses it, for what it computes would be neither right nor wrong.
    """

    def __init__(self, name: str) -> None:
        """Remember what is missing."""
        self._name = name

    def _use(self) -> None:
        if not _loading:
            raise ImportError(f"{self._name} could not be imported")

    def __call__(self, *args: object, **keywords: object) -> object:
        """Return a decorated function as it was; anything else stays a placeholder."""
        if _making and re.search(_MAKES, self._name):
            short = self._name.rpartition(".")[2]
            return _make_of_torch(short, args, keywords) or StandInPart(short)
        self._use()
        if len(args) == 1 and not keywords and isinstance(args[0], types.FunctionType | type):
            return args[0]
        return Placeholder(f"{self._name}(...)")

    def __getattr__(self, name: str) -> Placeholder:
        if name.startswith("__"):
            raise AttributeError(name)
        if not _making:
            self._use()
        return Placeholder(f"{self._name}.{name}")

    def __getitem__(self, _of: object) -> Placeholder:
        """Stay what it is in ``class Builder(Base[Metadata])`` and ``config: Config | None``."""
        self._use()
        return self

    __or__ = __ror__ = __getitem__

    def __mro_entries__(self, bases: tuple[object, ...]) -> tuple[type, ...]:
        """Return a class of its own: one cannot have the same base twice."""
        # ``class Net(nn.Module, Hub)``: a second module cannot come after that of all
        beside = any(isinstance(base, type) and issubclass(base, torch.nn.Module) for base in bases)
        if beside or re.search(_NO_MODULE, self._name):
            return (type(self._name, (StandInMixin,), {}),)
        kind = LightConfig if re.search(CONFIG_CLASS, self._name) else StandInBase
        return (type(self._name, (kind,), {}),)

    def __bool__(self) -> bool:
        self._use()
        return False

    def __instancecheck__(self, _made: object) -> bool:
        """Say no, as nothing here is made of a class that is missing."""
        return False
