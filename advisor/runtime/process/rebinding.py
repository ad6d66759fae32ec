"""Giving functions of modules that were imported earlier the new code, in place.

A function is touched only if its code is, instruction by instruction, what the file compiles to
today: then the file is what was imported, and nobody has put other code in since. Whoever holds
the function, a decorator or a bound method, holds the new code with it.
"""

from __future__ import annotations

import gc
import importlib
from types import CodeType, FunctionType
from typing import TYPE_CHECKING

from npufix.advisor.runtime.source.rewriting import functions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npufix.advisor.runtime.source.places import NewImport
    from npufix.advisor.runtime.source.rewriting import RewrittenModule


def by_file() -> dict[str, list[FunctionType]]:
    """Return every function of this process by the file of its code."""
    found: dict[str, list[FunctionType]] = {}
    for one in gc.get_objects():
        if type(one) is FunctionType:
            found.setdefault(one.__code__.co_filename, []).append(one)
    return found


def rebind(new: RewrittenModule, data: bytes, alive: Sequence[FunctionType]) -> set[str]:
    """Exchange the code of the functions that changed; return those that were not found.

    ``alive`` are the functions whose code names this file.
    """
    before = compile(data, new.path, "exec", dont_inherit=True)
    old, exchanged = dict(_key_by_place(before)), dict(_key_by_place(new.code))
    changed = {key: code for key, code in exchanged.items() if key in old and old[key] != code}
    outer = _outermost(changed)
    reached = set()
    for function in alive:
        code = function.__code__
        key = (_qualname(function), code.co_firstlineno)
        if key not in changed or code != old[key]:
            continue
        if changed[key].co_freevars != code.co_freevars:
            continue
        _bind(function, new.imports)
        function.__code__ = changed[key]
        reached.add(key)
    return {name for name, line in outer if (name, line) not in reached}


def restore(new: RewrittenModule, data: bytes, alive: Sequence[FunctionType]) -> None:
    """Give the functions of a changed module their own code back, however they got the new."""
    old = dict(_key_by_place(compile(data, new.path, "exec", dont_inherit=True)))
    exchanged = dict(_key_by_place(new.code))
    for function in alive:
        code = function.__code__
        key = (_qualname(function), code.co_firstlineno)
        if key in old and code != old[key] and code == exchanged.get(key):
            function.__code__ = old[key]


def _key_by_place(code: CodeType | None) -> Iterable[tuple[tuple[str, int], CodeType]]:
    return (((name, inner.co_firstlineno), inner) for name, inner in functions(code))


def _qualname(function: FunctionType) -> str:
    """Return where the code stands in its file; a decorator may have renamed the function."""
    return getattr(function.__code__, "co_qualname", function.__qualname__)


def _outermost(changed: dict[tuple[str, int], CodeType]) -> set[tuple[str, int]]:
    """Return the functions, without classes and without what is made anew at each call."""
    return {
        key
        for key, code in changed.items()
        if code.co_flags & 2 and ".<locals>." not in key[0]  # CO_NEWLOCALS: no class
    }


def _bind(function: FunctionType, imports: Iterable[NewImport]) -> None:
    """Give the globals of a function what its new code uses besides."""
    for one in imports:
        if one.name in function.__globals__:
            continue
        try:
            module = importlib.import_module(one.module)
        except ImportError:  # as in the code: it is asked for on an NPU only
            function.__globals__[one.name] = None
            continue
        top = module if one.member else importlib.import_module(one.module.partition(".")[0])
        function.__globals__[one.name] = getattr(module, one.member) if one.member else top
