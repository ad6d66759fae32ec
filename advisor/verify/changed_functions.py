"""Which functions a change of a file touches: those to run before and after it.

A function is touched if it says something else, or uses a name of the module that does. What
happens to the making of an object (``__init__``, a class attribute) is seen in its ``forward``.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from npufix.advisor.verify.definitions import (
    Definitions,
    Function,
    definitions,
    frame,
    has_plain_bases,
    is_suspended,
    meaning,
    statements,
)
from npufix.rewriters.graph.modules.syntax import list_defaults
from npufix.rewriters.verification.inputs.source.slicing import list_used_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MAIN = ("forward", "__call__")
_NO_MEANING = frozenset({"__all__", "__version__", "__author__", "logger"})
_SUSPENDED = "a coroutine: calling it does not run it"


@dataclass(frozen=True, slots=True)
class Touched:
    """A function to run before and after, and the lines of it that must run."""

    qualname: str
    line: int
    """Where it starts after the change."""
    lines_original: tuple[int, ...] = ()
    lines_changed: tuple[int, ...] = ()
    reason: str = ""
    """Why nothing can be run; empty if something can."""
    first_original: int = 0
    """The line of its first statement."""
    first_changed: int = 0

    @property
    def entered(self) -> Touched:
        """Return the same function, to be reached through a call of another one."""
        return replace(
            self,
            lines_original=self.lines_original or (self.first_original,),
            lines_changed=self.lines_changed or (self.first_changed,),
        )


@dataclass
class _Comparison:
    before: Definitions
    after: Definitions
    touched: dict[str, Touched] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)

    def run(self) -> None:
        for qualname in (*self.before.functions, *self.after.functions):
            self._function(qualname)
        for name in (*self.before.classes, *self.after.classes):
            self._class(name)
        for name in self.before.bindings.keys() | self.after.bindings.keys():
            self._binding(name)
        for text, line in self.after.effects.items():
            if text not in self.before.effects:
                self._unknown("the module itself", line, "what a module does is not compared")

    def _function(self, qualname: str) -> None:
        old, new = self.before.functions.get(qualname), self.after.functions.get(qualname)
        if old is None or new is None:
            self._come_or_gone(qualname, old)
        elif list(map(meaning, old)) != list(map(meaning, new)):
            self._changed(qualname, old, new)

    def _come_or_gone(self, qualname: str, old: list[Function] | None) -> None:
        owner, _, name = qualname.rpartition(".")
        cls = next(iter(self.after.classes.get(owner, [])), None)
        if cls is not None and owner in self.before.classes:
            # It may hide an inherited one, or let it show.
            special = name in _MAIN or name.startswith("__")
            if special or not has_plain_bases(cls):
                self._remade(owner)
        private = name.startswith("_") and not name.endswith("__")
        if old and not private and (not owner or cls is not None) and not any(self._users(name)):
            self._unknown(qualname, old[0].lineno, "it is gone, and nothing here used it")

    def _changed(self, qualname: str, old: list[Function], new: list[Function]) -> None:
        owner, _, name = qualname.rpartition(".")
        if owner and name in {"__init__", "__new__", "__post_init__", "reset_parameters"}:
            self._remade(owner)
        # A helper that takes something else is seen in what calls it.
        elif not name.startswith("_") or _takes_as_much(old[-1], new[-1]) or not self._spread(name):
            self._add(qualname)

    def _class(self, name: str) -> None:
        old, new = self.before.classes.get(name), self.after.classes.get(name)
        if old and new and list(map(frame, old)) != list(map(frame, new)):
            self._remade(name)
        elif old and not new:
            self._unknown(name, old[0].lineno, "it is gone: there is nothing to compare it with")

    def _binding(self, name: str) -> None:
        old = self.before.bindings.get(name)
        if old is None or old == self.after.bindings.get(name) or name in _NO_MEANING:
            return
        if not self._spread(name) and name in self.after.bindings:
            self._unknown(name, 1, "no function of this file uses it")

    def _remade(self, owner: str) -> None:
        """Take what shows how an object is made now."""
        if owner in self._seen:
            return
        self._seen.add(owner)
        methods = [q for q in self.before.functions if q.rpartition(".")[0] == owner]
        both = [q for q in methods if q in self.after.functions]
        main = [q for q in both if q.rpartition(".")[2] in _MAIN]
        plain = [q for q in both if not q.rpartition(".")[2].startswith("__")]
        for qualname in main or plain:
            self._add(qualname)
        if not main and not plain and not self._spread(owner.rpartition(".")[2]):
            line = self.after.classes[owner][0].lineno
            self._unknown(owner, line, "it has no method to run, and nothing here uses it")

    def _spread(self, name: str) -> bool:
        """Take the users of something that has changed; tell whether there are any."""
        users = list(self._users(name))
        for qualname in users:
            if qualname in self.after.classes:
                self._remade(qualname)
            elif qualname not in self._seen:
                self._seen.add(qualname)
                self._changed(qualname, *(d.functions[qualname] for d in (self.before, self.after)))
        return bool(users)

    def _users(self, name: str) -> Iterator[str]:
        """Yield the functions and classes, there before and after, that mention a name."""
        for qualname, new in self.after.functions.items():
            old = self.before.functions.get(qualname, [])
            other = qualname.rpartition(".")[2] != name
            if old and other and any(name in _list_mentioned_names(f) for f in (*old, *new)):
                yield qualname
        for qualname, classes in self.after.classes.items():
            other = qualname in self.before.classes and qualname != name
            if other and any(name in _frame_names(cls) for cls in classes):
                yield qualname

    def _add(self, qualname: str) -> None:
        if qualname in self.touched:
            return
        old, new = self.before.functions[qualname], self.after.functions[qualname]
        reason = _SUSPENDED if any(map(is_suspended, (*old, *new))) else ""
        lines = _find_changed_lines(old, new)
        first = (next(statements(f), ("", 0))[1] for f in (old[0], new[0]))
        self.touched[qualname] = Touched(qualname, new[0].lineno, *lines, reason, *first)

    def _unknown(self, what: str, line: int, reason: str) -> None:
        self.touched.setdefault(what, Touched(what, line, reason=reason))


def find_touched(original: str, changed: str) -> list[Touched]:
    """Return what a change of a file touches, in the order of its lines.

    Raises:
        SyntaxError: one of the two is no Python.

    """
    compared = _Comparison(definitions(ast.parse(original)), definitions(ast.parse(changed)))
    compared.run()
    return sorted(compared.touched.values(), key=lambda t: (t.line, t.qualname))


def callers(original: str, changed: str, qualname: str) -> list[str]:
    """Return the functions, there before and after, that call one by its name."""
    before, after = (definitions(ast.parse(text)).functions for text in (original, changed))
    name = qualname.rpartition(".")[2]
    return [
        other
        for other, functions in after.items()
        if other in before
        and other.rpartition(".")[2] != name
        and any(name in _list_mentioned_names(function) for function in functions)
    ]


def _list_mentioned_names(function: Function) -> set[str]:
    attributes = {n.attr for n in ast.walk(function) if isinstance(n, ast.Attribute)}
    return list_used_names(function) | attributes


def _frame_names(cls: ast.ClassDef) -> set[str]:
    parts = [*cls.bases, *cls.decorator_list, *(s for s in cls.body if isinstance(s, ast.Assign))]
    return {n.id for part in parts for n in ast.walk(part) if isinstance(n, ast.Name)}


def _takes_as_much(old: Function, new: Function) -> bool:
    """Tell whether every call of the old function is one of the new as well."""
    before, after = (_parameters(f) for f in (old, new))
    return before == after[: len(before)] and all(default for _, default in after[len(before) :])


def _parameters(function: Function) -> list[tuple[str, bool]]:
    """Return the name of each parameter, and whether a call may leave it out."""
    given = function.args
    optional = list_defaults(given)
    found = [(p.arg, p.arg in optional) for p in (*given.posonlyargs, *given.args)]
    found += [(f"{p.arg}=", p.arg in optional) for p in given.kwonlyargs]
    return [*found, *((f"*{p.arg}", True) for p in (given.vararg, given.kwarg) if p)]


def _find_changed_lines(
    old: Iterable[Function], new: Iterable[Function]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the lines of statements that the other version does not have."""
    left = [s for f in old for s in statements(f)]
    right = [s for f in new for s in statements(f)]
    matcher = SequenceMatcher(None, [t for t, _ in left], [t for t, _ in right], autojunk=False)
    gone: set[int] = set()
    come: set[int] = set()
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag != "equal":
            gone.update(line for _, line in left[i:j])
            come.update(line for _, line in right[k:m])
    return tuple(sorted(gone)), tuple(sorted(come))
