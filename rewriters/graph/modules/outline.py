"""What a module defines and imports, by the look of its lines: reading it costs much more."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.names import list_imported_names

if TYPE_CHECKING:
    from collections.abc import Mapping

_FUNCTION = re.compile(r"^([ \t]*)def[ \t]+(\w+)", re.MULTILINE)
_IMPORT = re.compile(
    r"^[ \t]*(from[ \t]+[.\w]+[ \t]+import[ \t]+(?:\([^)]*\)|(?:[^\n\\]|\\\r?\n)*))", re.MULTILINE
)


_STRING = re.compile(r"(\"{3}|'{3})(?:[^\\]|\\.)*?\1", re.DOTALL)
# ``for`` without a colon belongs to a comprehension.
_EFFECT = re.compile(
    r"^[ \t]+(?:(?:assert|async|class|def|del|global|import|nonlocal|raise|try|while|with|yield)\b"
    r"|for\b[^\n]*:[ \t]*$)",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Outline:
    """The functions without decorators and the imports of a module, or more than it has."""

    functions: Mapping[str, str]
    """Their code by name; of those that share a name (methods do), all of it."""
    imports: Mapping[str, str]
    """What ``from ... import`` gives a name to: ``Config`` -> ``..llama.configuration.Config``."""


@lru_cache(maxsize=64)
def outline(text: str) -> Outline:
    """Return the outline of a module."""
    functions: dict[str, str] = {}
    for match in _FUNCTION.finditer(text):
        indent, name = match.groups()
        if name != "__init__" and _is_decorated(text, match.start()):
            continue
        functions[name] = functions.get(name, "") + text[match.start() : _end(text, match, indent)]
    imports: dict[str, str] = {}
    for match in _IMPORT.finditer(text):
        try:
            statement = ast.parse(match[1]).body[0]
        except SyntaxError:  # a bracket in a comment between the names, or a line of a docstring
            continue
        if isinstance(statement, ast.ImportFrom):
            imports |= list_imported_names(statement)
    return Outline(functions, imports)


@lru_cache(maxsize=256)
def only_computes(function: str) -> bool:
    """Tell whether the code of a function holds no loop, no exception and nothing of the kind."""
    return _EFFECT.search(_STRING.sub("", function), function.find("\n") + 1) is None


@lru_cache(maxsize=16)
def _last_line(indent: str) -> re.Pattern[str]:
    """Return what the first line after a function of this indentation looks like."""
    return re.compile(rf"^[ \t]{{0,{len(indent)}}}[^\s#)]", re.MULTILINE)


def _is_decorated(text: str, start: int) -> bool:
    above = text.rfind("\n", 0, max(start - 1, 0)) + 1
    return text[above:start].lstrip().startswith("@")


def _end(text: str, match: re.Match[str], indent: str) -> int:
    after = _last_line(indent).search(text, text.find("\n", match.end()) + 1 or len(text))
    return after.start() if after else len(text)
