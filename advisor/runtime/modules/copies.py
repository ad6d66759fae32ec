"""Copies of functions that use what the original does not: nothing of the user's is changed.

What a copy needs besides (``torch_npu``, the question before the new code, copies of helpers that
it calls) comes as cells of its closure: the globals of the module stay the user's, and are the same
dictionary that the original reads and writes.
"""

from __future__ import annotations

import ast
import sys
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.advisor.runtime.modules.loaded import Definition

# CO_FUTURE_*: ``from __future__ import annotations`` and the like.
_FUTURES = 0x1FE0000
_CLASS_CELL = "__class__"


class CannotCopyError(Exception):
    """The function cannot be copied with other contents: the reason."""


def copy_of(
    function: FunctionType, node: Definition, cls: str, given: Mapping[str, object]
) -> FunctionType:
    """Return a function with the code of ``node`` in the place of ``function``.

    It has the globals, cells, defaults and attributes of the original; the names in ``given``
    mean their values instead of globals.

    Raises:
        CannotCopyError: the new code needs what the original does not have.

    """
    old = function.__code__
    cells = dict(zip(old.co_freevars, function.__closure__ or (), strict=True))
    cells |= {name: CellType(value) for name, value in given.items()}
    code = _compile(node, cls, sorted(cells.keys() - {_CLASS_CELL}), old)
    if code is None or not set(code.co_freevars) <= cells.keys():
        raise CannotCopyError("its new code cannot be compiled in its place")
    arguments = code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount
    if arguments != (old.co_argcount, old.co_kwonlyargcount, old.co_posonlyargcount):
        raise CannotCopyError("its new code takes other arguments")
    return _like(function, code, [cells[name] for name in code.co_freevars])


def _compile(node: Definition, cls: str, outer: Sequence[str], old: CodeType) -> CodeType | None:
    """Compile a function whose free variables are ``outer``, without running anything."""
    body: list[ast.stmt] = [node]
    if cls:  # for names that begin with two underscores, and for ``super()``
        body = [ast.ClassDef(cls, [], [], body, [])]
    arguments = ast.arguments([], [ast.arg(name) for name in outer], None, [], [], None, [])
    around = ast.FunctionDef("around", arguments, body, [])
    for made in (around, *body):
        if made is not node and "type_params" in made._fields:  # since Python 3.12
            setattr(made, "type_params", [])  # noqa: B010 - older versions do not know it
    module = ast.Module([around], [])
    ast.fix_missing_locations(module)
    flags = old.co_flags & _FUTURES
    whole = compile(module, old.co_filename, "exec", flags=flags, dont_inherit=True)
    found = (c for c in _codes(whole) if c.co_name == old.co_name)
    code = next((c for c in found if c.co_firstlineno == old.co_firstlineno), None)
    return None if code is None else _rename(code, old)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield inner
            yield from _codes(inner)


def _rename(code: CodeType, old: CodeType) -> CodeType:
    """Give the code, and that of functions inside, the name that tracebacks know it by."""
    if sys.version_info < (3, 11):  # where code has no qualified name
        return code
    return _below(code, code.co_qualname, old.co_qualname)


def _below(code: CodeType, before: str, after: str) -> CodeType:
    inner = tuple(
        _below(c, before, after) if isinstance(c, CodeType) else c for c in code.co_consts
    )
    if sys.version_info < (3, 11):
        return code
    name = after + code.co_qualname.removeprefix(before)
    return code.replace(co_consts=inner, co_qualname=name)


def _like(function: FunctionType, code: CodeType, cells: Sequence[CellType]) -> FunctionType:
    """Return a function that differs from another one in its code and cells only."""
    new = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, tuple(cells) or None
    )
    new.__kwdefaults__ = function.__kwdefaults__
    new.__annotations__ = function.__annotations__
    new.__doc__ = function.__doc__
    new.__qualname__ = function.__qualname__
    new.__module__ = function.__module__
    vars(new).update(vars(function))
    return new


def decorate(chain: Sequence[FunctionType], new: FunctionType) -> FunctionType:
    """Return the wrappers of a function around another one; no decorator is called again.

    ``chain`` begins with the outermost wrapper and ends with the function that is wrapped.

    Raises:
        CannotCopyError: a wrapper holds what it calls where no other can be put.

    """
    old = chain[-1]
    for wrapper in reversed(chain[:-1]):
        if any(name.startswith("_torchdynamo") for name in vars(wrapper)):
            raise CannotCopyError("it is decorated for torch.compile")
        cells = wrapper.__closure__ or ()
        if not any(_holds(cell, old) for cell in cells):
            raise CannotCopyError(f"its decorator '{_name(wrapper)}' does not show what it calls")
        exchanged = [CellType(new) if _holds(cell, old) else cell for cell in cells]
        copied = _like(wrapper, wrapper.__code__, exchanged)
        copied.__wrapped__ = new  # type: ignore[attr-defined] # functools.wraps sets it
        old, new = wrapper, copied
    return new


def _holds(cell: CellType, value: object) -> bool:
    try:
        return cell.cell_contents is value
    except ValueError:  # empty
        return False


def _name(wrapper: FunctionType) -> str:
    """Return the name of the decorator that made a wrapper: ``deprecate_kwarg``."""
    name = getattr(wrapper.__code__, "co_qualname", wrapper.__code__.co_name)
    return str(name).partition(".")[0]
