"""Modules that one job has imported, imported once for those that follow."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import sysconfig
import time
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.rewriters.verification.sandbox.guard import SideEffectGuard
from npufix.rewriters.verification.sandbox.remote import runs_with_target
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Iterable

_SECONDS = 20.0
_PACKAGES = frozenset({"site-packages", "dist-packages"})
# A .pth file may add the packages of another environment.
_LIBRARIES = tuple(
    f"{path}{os.sep}"
    for path in (
        *(path for key, path in sysconfig.get_paths().items() if key.endswith("lib")),
        *(path for path in sys.path if Path(path).name in _PACKAGES),
    )
)
_OURS = "__npufix__"
"""Marks the modules that ``load`` makes of a text."""
_before: set[str] = set()


def note_imports() -> None:
    """Say that what is imported by now is not the user's doing.

    In the server, once for all forks: who goes through these names and modules writes to the memory
    of each of them, which a fork then has to copy.
    """
    _before.update(sys.modules)


@runs_with_target
def list_new_imports() -> tuple[str, ...]:
    """Return the modules that were imported since, from files."""
    new = {name: sys.modules[name] for name in list(sys.modules) if name not in _before}
    return tuple(
        name
        for name, module in new.items()
        if not hasattr(type(module), "__getattr__")
        and _is_of_a_file(vars(module) if hasattr(module, "__dict__") else {})
    )


def _is_of_a_file(names: dict[str, object]) -> bool:
    file, spec = names.get("__file__"), names.get("__spec__")
    return isinstance(file, str) and spec is not None and _OURS not in names


def is_installed(name: str) -> bool:
    """Tell whether a module is of the standard library or of an installed package.

    The name comes from a process that ran the user's code: it may be that of a file which that
    code has written, and outside that process nothing keeps it within walls.
    """
    try:
        spec = importlib.util.find_spec(name.partition(".")[0])
    except (ImportError, ValueError):
        return False
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    found = [place for place in places if place and place not in {"built-in", "frozen"}]
    return bool(found) and all(place.startswith(_LIBRARIES) for place in found)


def wants_compiler(text: str) -> bool:
    """Say whether the first call may import torch's compiler, as the first step of an optimizer."""
    return "optim" in text


class Preloader:
    """Imports what a job could import without harm."""

    def __init__(self) -> None:
        self._tried: set[str] = set()
        self._guard = SideEffectGuard()

    def take(self, names: Iterable[str]) -> None:
        """Import modules, within what the code of a job may do, and not for long.

        The process of a job may name what it has not imported: no program is run that way.
        """
        until = time.monotonic() + _SECONDS
        for name in names:
            if "__main__" in name or time.monotonic() > until:
                continue
            if name not in self._tried and name not in sys.modules and is_installed(name):
                self._tried.add(name)
                with self._guard:
                    try_call(lambda n=name: importlib.import_module(n), _SECONDS)  # type: ignore[misc] # a default binds it
