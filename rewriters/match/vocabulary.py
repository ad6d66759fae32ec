"""The words of each function of a module, with those of the helpers and modules that it calls."""

from __future__ import annotations

import ast
import re
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.graph.calls import is_static
from npufix.rewriters.graph.modules.asking import Neighbours
from npufix.rewriters.graph.modules.names import FunctionNode, inlinable, source_lines
from npufix.rewriters.graph.modules.neighbours import forward_text, helper_texts
from npufix.rewriters.graph.modules.scopes import MODULE, scopes
from npufix.rewriters.graph.modules.syntax import walk
from npufix.rewriters.graph.modules.wrapped_modules import may_wrap
from npufix.rewriters.match.features import features_by_word, features_in
from npufix.rewriters.match.prefilter import words_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.rewriters.graph.modules.names import ModuleNames
    from npufix.rewriters.graph.modules.scopes import Scope
    from npufix.rewriters.match.prefilter import Words
    from npufix.rules.substitution import Substitution

_ATTRIBUTE = re.compile(r"(self\.\w+)(?::[^=\n]+)?\s*=(?!=)")
_PASSIVE = (FunctionNode, ast.ClassDef, ast.Import, ast.ImportFrom)


class Vocabulary:
    """Says which rules a function of a module may concern."""

    def __init__(self, words: Words, source: str, names: ModuleNames, tree: ast.Module) -> None:
        self.words = words
        self.names = names
        self.tree = tree
        self.source = source
        self.lines = source_lines(source)
        self.scopes = list(scopes(tree))
        self._inlinable = [scope for scope in self.scopes if inlinable(scope.function)]
        inlined = (scope.function.name for scope in self._inlinable)
        self._inlined = {*inlined, *names.relative, *names.imports}
        self._words_of: dict[int, frozenset[str]] = {}
        self._bits_of: dict[str, int] = {}
        self._of_classes: dict[tuple[str, int], Mapping[str, int]] = {}

    def possible(self, rules: Sequence[Substitution], scope: Scope) -> list[Substitution]:
        """Return the rules whose operations a scope may hold."""
        words = self.words_of(scope)
        found = self._bits(words)
        if scope.cls is not None and (made := self._list_made(scope.cls)):
            for part in (words, *(self._helpers[name] for name in self._called(words))):
                for word in part & made.keys():
                    found |= made[word]
        likely = self.words.possible(rules, found | self.words.of_features)
        sure = self.words.possible(likely, found)
        asked = self.words.features_of([rule for rule in likely if rule not in sure])
        if not asked:
            return sure
        found |= self.words.of(features_in(scope.function, asked, self._inlined))
        return self.words.possible(likely, found)

    def text(self, scope: Scope) -> str:
        """Return the code of a scope itself."""
        is_module = scope.function.name == MODULE
        return self._between() if is_module else _code(scope.function, self.lines)

    def words_of(self, scope: Scope) -> frozenset[str]:
        """Return the words of a scope itself."""
        key = id(scope.function)
        if key not in self._words_of:
            self._words_of[key] = words_in(self.text(scope))
        return self._words_of[key]

    def meant_in(self, scope: Scope) -> frozenset[str]:
        """Return the words of a scope, and of what those stand for that are imported as others."""
        words = self.words_of(scope)
        meant = (self._aliases[word] for word in words & self._aliases.keys())
        return words.union(*meant)

    @cached_property
    def _aliases(self) -> Mapping[str, frozenset[str]]:
        every = {**self.names.imports, **self.names.relative}
        return {name: words_in(full) for name, full in every.items() if not full.endswith(name)}

    def _between(self) -> str:
        """Return the code of the module that runs when it is imported: calls, tables, fields."""
        active = (ast.Call, ast.Dict, ast.AnnAssign)
        classes = (n for n in self.tree.body if isinstance(n, ast.ClassDef))
        return "".join(
            "".join(self.lines[node.lineno - 1 : node.end_lineno])
            for node in (*self.tree.body, *(field for cls in classes for field in cls.body))
            if not isinstance(node, _PASSIVE) and any(isinstance(n, active) for n in walk(node))
        )

    @cached_property
    def _helpers(self) -> Mapping[str, frozenset[str]]:
        """Return the words of what may be inlined, and what an imported name stands for."""
        other = {n: f for n, f in self.names.imports.items() if not f.endswith(n)}
        other |= helper_texts(self.names, self.source)
        found = {name: words_in(text) for name, text in other.items()}
        for scope in self._inlinable:
            name = f"self.{scope.function.name}" if scope.is_method else scope.function.name
            found[name] = found.get(name, frozenset()) | self.words_of(scope)
            if scope.is_method and is_static(scope.function):  # ``Rotary.rotate_half(x)``
                name = scope.function.name
                found[name] = found.get(name, frozenset()) | self.words_of(scope)
        return {name: words | features_by_word(words) for name, words in found.items()}

    @cached_property
    def _forwards(self) -> Mapping[str, frozenset[str]]:
        """Return the words of the ``forward`` of each class whose objects may be read as one."""
        every = {**self.names.relative, **self.names.imports}
        found = {n: words_in(forward_text(self.names, f)) for n, f in every.items() if may_wrap(n)}
        for scope in self._inlinable:
            if scope.is_method and scope.function.name == "forward" and may_wrap(scope.path[-1]):
                found[scope.path[-1]] = self.words_of(scope)
        return {name: words | features_by_word(words) for name, words in found.items() if words}

    def _bits(self, words: frozenset[str]) -> int:
        """Return the bits of some words, of the helpers that they call, and of those they call."""
        found = self.words.of(words)
        for name in self._called(words):
            if name not in self._bits_of:
                self._bits_of[name] = self.words.of(self._helpers[name])
            found |= self._bits_of[name]
        return found

    def _called(self, words: frozenset[str]) -> set[str]:
        """Return the helpers that some words call, and those that these call."""
        known, seen, left = self._helpers.keys(), set[str](), [words]
        if known.isdisjoint(words):
            return seen
        for part in left:  # grows
            called = (part & known) - seen
            seen |= called
            left += [self._helpers[name] for name in called]
        return seen

    def _list_made(self, cls: ast.ClassDef) -> Mapping[str, int]:
        """Return, for each attribute of a class, the bits of the modules that it may be."""
        key = (cls.name, cls.lineno)
        if key not in self._of_classes:
            found: dict[str, int] = {}
            for text in self._constructors(cls):
                for name, words in _attributes_in(text):
                    bits = self._bits(words) & self.words.of_modules
                    for own in words & self._forwards.keys():
                        bits |= self._bits(self._forwards[own])
                    found[name] = found.get(name, 0) | bits
            self._of_classes[key] = found
        return self._of_classes[key]

    def _constructors(self, cls: ast.ClassDef) -> Iterator[str]:
        """Yield what says which modules an object has: the ``__init__`` of a class and its bases.

        Of a base from another module of the package they are those of all classes there.
        """
        for base in self.names.bases(cls):
            for item in base.body:
                if isinstance(item, FunctionNode) and item.name == "__init__":
                    yield _code(item, self.lines)
            for name in (b.id for b in base.bases if isinstance(b, ast.Name)):
                full = self.names.relative.get(name) or self.names.imports.get(name) or ""
                module = full.rpartition(".")[0]
                ask = Neighbours.of(self.names.neighbour)
                if ask is not None and module.strip("."):
                    yield ask.function(module, "__init__") or ""


@lru_cache(maxsize=256)
def _attributes_in(text: str) -> Sequence[tuple[str, frozenset[str]]]:
    """Return the attributes that a constructor sets, with the words of what they are set to."""
    _, *parts = _ATTRIBUTE.split(text)
    return [(n, words_in(value)) for n, value in zip(parts[::2], parts[1::2], strict=True)]


def _code(function: FunctionNode, lines: Sequence[str]) -> str:
    """Return the text of a function without decorators and docstring, which compute nothing."""
    first = function.lineno
    last = function.end_lineno or first
    match function.body[0]:
        case ast.Expr(ast.Constant(str())) as docstring if len(function.body) > 1:
            end = docstring.end_lineno or docstring.lineno
            parts = [*lines[first - 1 : docstring.lineno - 1], *lines[end:last]]
            return "".join(parts)
    return "".join(lines[first - 1 : last])
