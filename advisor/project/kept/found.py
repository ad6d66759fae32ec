"""What the search of one file gave, and how it is sent to another process or kept for later."""

from __future__ import annotations

import io
import pickle  # between processes of this program, and from a folder of the user alone
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from npufix.rules.substitution import Condition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.advisor.project.source_tree import Answers
    from npufix.reports.report import Problem
    from npufix.rewriters.edit.site import Site
    from npufix.rewriters.match.suppressions import Suppression
    from npufix.rules.substitution import Form, Substitution

_MODULES = frozenset({"npufix", "builtins"})
_BUILTINS = (frozenset, range, set)
_LONG = 1000
"""Texts of more characters are modules with a change: what is new in them is kept."""
_NEAR = 20
"""Lines that a change takes away, mostly; those after it are looked for beyond them."""


@dataclass(frozen=True, slots=True)
class FileSearch:
    """What the search of one file gave."""

    sites: tuple[Site, ...] = ()
    hidden: tuple[tuple[Site, Suppression], ...] = ()
    """What the user's comments say is to be left alone."""
    problem: Problem | None = None
    warnings: tuple[str, ...] = ()


class Packer:
    """Makes bytes of what was found with some rules, and the other way round.

    Rules hold functions, which cannot be sent: both sides have them, in one order.
    """

    def __init__(self, rules: Sequence[Substitution]) -> None:
        self.parts = list(_parts(rules))
        self.places = {id(part): place for place, part in enumerate(self.parts)}

    def pack(self, found: FileSearch, asked: Mapping[str, Answers], source: str) -> bytes:
        """Return what was found in a module, and which neighbours it depends on, as bytes."""
        buffer = io.BytesIO()
        Pickler(buffer, self, source).dump((found, dict(asked)))
        return buffer.getvalue()

    def unpack(self, data: bytes, source: str) -> tuple[FileSearch, Mapping[str, Answers]]:
        """Return what ``pack`` was given.

        Raises:
            Exception: of any kind; it was made by something else.

        """
        found, asked = Unpickler(io.BytesIO(data), self, source).load()
        if not isinstance(found, FileSearch) or not isinstance(asked, dict):
            raise TypeError(type(found))
        return found, asked


def _parts(rules: Sequence[Substitution]) -> Iterator[Substitution | Form | Condition]:
    for rule in rules:
        yield rule
        for form in rule.forms:
            yield form
            yield from form.conditions


class _Lines(list[str]):
    """The lines of a module, and where each of them stands first."""

    def __init__(self, source: str) -> None:
        super().__init__(source.split("\n"))
        self.places = {line: number for number, line in reversed([*enumerate(self)])}


class Pickler(pickle.Pickler):
    """Leaves out what both sides have: rules, and the lines of a module."""

    def __init__(self, file: io.BytesIO, packer: Packer, source: str) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.packer = packer
        self.source = source
        self.texts: dict[str, list[int | bytes]] = {}

    @cached_property
    def lines(self) -> _Lines:
        """Those of the module."""
        return _Lines(self.source)

    def persistent_id(self, obj: object) -> object:
        """Return what stands for an object that both sides have, ``None`` for any other."""
        if isinstance(obj, str) and len(obj) >= _LONG:
            if obj not in self.texts:
                self.texts[obj] = list(_list_runs(obj.split("\n"), self.lines))
            return self.texts[obj]
        place = self.packer.places.get(id(obj))
        if place is None and isinstance(obj, Condition):  # not a rule's: that of a generated file
            return obj.name, obj.text, obj.meaning, obj.time_alone
        return place


class Unpickler(pickle.Unpickler):
    """Puts in what ``Pickler`` has left out, and makes nothing but objects of ours."""

    def __init__(self, file: io.BytesIO, packer: Packer, source: str) -> None:
        super().__init__(file)
        self.packer = packer
        self.source = source
        self.texts: dict[tuple[int | bytes, ...], str] = {}

    @cached_property
    def lines(self) -> list[str]:
        """Most files have no change: they are not split into lines."""
        return self.source.split("\n")

    def persistent_load(self, pid: object) -> object:
        """Return what something stands for."""
        if isinstance(pid, list):
            runs = tuple(pid)
            if runs not in self.texts:
                self.texts[runs] = "\n".join(_read_runs(runs, self.lines))
            return self.texts[runs]
        if isinstance(pid, tuple):
            name, text, meaning, time_alone = pid
            return Condition(name, text, lambda _site: None, meaning, time_alone)
        if not isinstance(pid, int):
            raise TypeError(pid)
        return self.packer.parts[pid]

    def find_class(self, module_name: str, global_name: str) -> object:
        """Return a class of ours; what else could be named is not for a file to call."""
        found = super().find_class(module_name, global_name)
        if not isinstance(found, type) or found.__module__.split(".")[0] not in _MODULES:
            raise pickle.UnpicklingError(f"{module_name}.{global_name}")
        if found.__module__ == "builtins" and found not in _BUILTINS:
            raise pickle.UnpicklingError(global_name)
        return found


def _list_runs(text: Sequence[str], lines: _Lines) -> Iterator[int | bytes]:
    """Yield where runs of a text's lines begin and end in a module, and other lines as they are.

    ``0, 12, b"import torch_npu", 12, 300``: a line stands behind the twelfth.
    """
    number = at = 0
    while number < len(text):
        line, near = text[number], lines[at : at + _NEAR]
        begin = at + near.index(line) if line in near else lines.places.get(line)
        if begin is None:
            yield line.encode("utf-8", "surrogatepass")
            number += 1
            continue
        at = begin
        while number < len(text) and at < len(lines) and text[number] == lines[at]:
            number, at = number + 1, at + 1
        yield from (begin, at)


def _read_runs(runs: Sequence[int | bytes], lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines that ``_list_runs`` was given."""
    left = iter(runs)
    for one in left:
        if isinstance(one, bytes):
            yield one.decode("utf-8", "surrogatepass")
        else:
            end = next(left)
            yield from lines[one : end if isinstance(end, int) else one]
