"""What the search of one file gave, and how it is sent to another process or kept for later."""

from __future__ import annotations

import io
import pickle  # between processes of this program, and from a folder of the user alone
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rules.substitution import Condition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.reports.report import Problem
    from npufix.rewriters.edit.site import Site
    from npufix.rewriters.match.suppressions import Suppression
    from npufix.rules.substitution import Form, Substitution

_MODULES = frozenset({"npufix", "builtins"})
_BUILTINS = (frozenset, range, set)


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

    def pack(self, found: FileSearch, asked: Mapping[str, str | None]) -> bytes:
        """Return what was found, and which neighbours it depends on, as bytes."""
        buffer = io.BytesIO()
        _Pickler(buffer, self).dump((found, dict(asked)))
        return buffer.getvalue()

    def unpack(self, data: bytes) -> tuple[FileSearch, Mapping[str, str | None]]:
        """Return what ``pack`` was given.

        Raises:
            Exception: of any kind; it was made by something else.

        """
        found, asked = _Unpickler(io.BytesIO(data), self).load()
        if not isinstance(found, FileSearch) or not isinstance(asked, dict):
            raise TypeError(type(found))
        return found, asked


def _parts(rules: Sequence[Substitution]) -> Iterator[Substitution | Form | Condition]:
    for rule in rules:
        yield rule
        for form in rule.forms:
            yield form
            yield from form.conditions


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, packer: Packer) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.packer = packer

    def persistent_id(self, obj: object) -> object:
        place = self.packer.places.get(id(obj))
        if place is None and isinstance(obj, Condition):  # not a rule's: that of a generated file
            return obj.name, obj.text, obj.meaning, obj.time_alone
        return place


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, packer: Packer) -> None:
        super().__init__(file)
        self.packer = packer

    def persistent_load(self, pid: object) -> object:
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
