"""What a module asks of others of its package, so that no other change there counts for it.

A file that calls ``rotate_half`` of ``..llama.modeling_llama`` depends on that function and on what
the names of that module stand for, not on the other forty functions there. Each question goes
through here, and ``answer`` says later whether it would still be answered alike.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, TypeVar

from npufix.rewriters.graph.modules.names import ModuleNames, module_names, source_lines
from npufix.rewriters.graph.modules.outline import outline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_Node = TypeVar("_Node")
# The kinds of questions; those with a name are ``"def rotate_half"``.
EVERYTHING = "*"
_IS_LONGER = "longer"
_DEF = "def"
_FROM = "from"
_HAS_CLASS = "has"
NAMES = "names"
FUNCTION = "function"
CLASS = "class"
_BOUND = "bound"


def name_seen_from(module: str, other: str) -> str:
    """Return what a module calls ``other`` in the words of the file that calls it ``module``.

    ``..llama.modeling_llama`` calls ``..llama.configuration_llama`` ``.configuration_llama``.
    """
    name = other.lstrip(".")
    up = len(other) - len(name)
    if not up:
        return other  # an absolute name
    path = module.lstrip(".")
    dots = len(module) - len(path)
    parts = path.split(".")
    for _ in range(up):
        if parts:
            parts.pop()
        else:
            dots += 1
    return "." * dots + ".".join([*parts, name])


def _no_one(module: str, question: str) -> None:
    """Take no note."""


@dataclass(frozen=True)
class Neighbours:
    """The modules of a package as one of them calls them, and who is told what is asked of them."""

    read: Callable[[str], str | None]
    tell: Callable[[str, str], None] = _no_one
    """Gets the module and the question; "" is whether there is anything in it."""
    home: str = ""
    """The module that asks, as the first one calls it; "" for that one."""
    most: int = 0
    """Longer texts are taken for none; 0 none is too long."""

    @classmethod
    def of(cls, read: Callable[[str], str | None] | None) -> Neighbours | None:
        """Return what gives the text of a module as what can be asked."""
        return read if isinstance(read, Neighbours) or read is None else cls(cache(read))

    def seen_from(self, module: str) -> Neighbours:
        """Return the same as another module calls them."""
        return replace(self, home=self._name(module))

    def __call__(self, module: str) -> str | None:
        """Return the text of a module: all of it counts."""
        self.note(module, EVERYTHING)
        return self._look(module)

    def note(self, module: str, question: str) -> None:
        """Tell that a question was asked."""
        self.tell(self._name(module), question)

    def peek(self, module: str) -> str | None:
        """Return the text of a module, for whoever tells himself what he reads of it."""
        self.note(module, f"{_IS_LONGER} {self.most}" if self.most else "")
        return self._look(module)

    def function(self, module: str, name: str) -> str | None:
        """Return the code of the functions of a name, as ``outline`` does."""
        text = self.peek(module)
        self.note(module, f"{_DEF} {name}")
        return None if text is None else outline(text).functions.get(name)

    def imported(self, module: str, name: str) -> str | None:
        """Return what a module imports under a name, as ``outline`` does."""
        text = self.peek(module)
        self.note(module, f"{_FROM} {name}")
        return None if text is None else outline(text).imports.get(name)

    def has_class(self, module: str, name: str) -> bool:
        """Tell whether a class of a name seems to be defined in a module."""
        text = self.peek(module)
        self.note(module, f"{_HAS_CLASS} {name}")
        return text is not None and _has_class(text, name)

    def _look(self, module: str) -> str | None:
        text = self.read(self._name(module))
        return None if text is None or 0 < self.most < len(text) else text

    def _name(self, module: str) -> str:
        return name_seen_from(self.home, module) if self.home else module


class Known(Mapping[str, _Node]):
    """The functions or classes of a module: which of them are asked for is told."""

    def __init__(self, nodes: Mapping[str, _Node], kind: str, ask: Neighbours, module: str) -> None:
        self.nodes, self.kind, self.ask, self.module = nodes, kind, ask, module

    def __getitem__(self, name: str) -> _Node:
        self.ask.note(self.module, f"{self.kind} {name}")
        return self.nodes[name]

    def __iter__(self) -> Iterator[str]:
        self.ask.note(self.module, EVERYTHING)
        return iter(self.nodes)

    def __len__(self) -> int:
        self.ask.note(self.module, EVERYTHING)
        return len(self.nodes)


class Bound(AbstractSet[str]):
    """The names that a module gives a meaning: which of them are asked for is told."""

    def __init__(self, names: AbstractSet[str], ask: Neighbours, module: str) -> None:
        self.names, self.ask, self.module = names, ask, module

    def __contains__(self, name: object) -> bool:
        self.ask.note(self.module, f"{_BOUND} {name}")
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        self.ask.note(self.module, EVERYTHING)
        return iter(self.names)

    def __len__(self) -> int:
        self.ask.note(self.module, EVERYTHING)
        return len(self.names)


@lru_cache(maxsize=64)  # the modules that a whole package shares; a tree takes megabytes
def parse(text: str) -> ModuleNames | None:
    """Return the names of a module, one object for all who ask; ``None`` if it is no Python."""
    try:
        found = module_names(ast.parse(text))
    except (SyntaxError, ValueError, RecursionError):
        return None
    found.is_rebound("")  # finds out about all names, for every file that asks
    return found


@lru_cache(maxsize=1 << 14)
def answer(text: str, question: str) -> bytes:
    """Return a digest of what a module of this text answers to a question that was told."""
    kind, _, name = question.partition(" ")
    found: object
    if kind == _IS_LONGER:
        found = len(text) > int(name)
    elif kind == _DEF:
        found = outline(text).functions.get(name)
    elif kind == _FROM:
        found = outline(text).imports.get(name)
    elif kind == _HAS_CLASS:
        found = _has_class(text, name)
    elif kind in {NAMES, FUNCTION, CLASS, _BOUND}:
        found = _answer_parsed(text, kind, name)
    else:  # whether there is any, or all of it
        found = text if kind == EVERYTHING else bool(text)
    return hashlib.sha256(repr(found).encode("utf-8", "surrogatepass")).digest()[:16]


def _answer_parsed(text: str, kind: str, name: str) -> object:
    known = parse(text)
    if known is None:
        return None
    if kind == _BOUND:
        return name in known.bound
    if kind == NAMES:  # all else that ``ModuleNames`` holds beside the code
        shared = sorted(known.assigned["global"])
        single = [sorted(names) for names in (known.overridden, known.unsure)]
        taken = [sorted(known.imports.items()), sorted(known.relative.items()), [*known.starred]]
        return [*taken, single, shared]
    node = (known.functions if kind == FUNCTION else known.classes).get(name)
    if node is None:
        return None
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    return "".join(source_lines(text)[first - 1 : node.end_lineno])


def _has_class(text: str, name: str) -> bool:
    return re.search(rf"\bclass {name}\b", text) is not None
