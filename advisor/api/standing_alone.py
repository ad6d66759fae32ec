"""A function as the text of a module of its own: with the imports and helpers that it uses.

What a notebook defines is spread over its cells; this collects it again:

    import torch.nn.functional as F     # F is a module in the globals of ``scaled``
    EPS = 1e-6                          # a constant
    def scale(x): ...                   # a helper of the same namespace
    def scaled(x): return F.relu(scale(x) + EPS)
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from npufix.rewriters.write.user_error import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

COMPARED = "compared"


class SourceLostError(UserError):
    """A function whose text cannot be had as a whole: ``message`` and ``remedy``."""


def standing_alone(function: Callable[..., object]) -> str:
    """Return a module that defines a function under the name ``COMPARED``.

    Raises:
        SourceLostError: it has no source, or uses what no text says: a tensor, an open file.

    """
    if not isinstance(function, FunctionType):
        raise SourceLostError(
            f"{function!r} is no function", "give functions; of a module its forward"
        )
    context: dict[str, str] = {}
    text = _definition(function, context, (function,))
    name = function.__name__
    defined = re.sub(rf"\bdef {name}\b", f"def {COMPARED}", text, count=1)
    again = f"{name} = {COMPARED}" if re.search(rf"\b{name}\b", defined) else ""
    return "\n".join([*context.values(), "", defined, again]).rstrip() + "\n"


def _definition(
    made: FunctionType | type, context: dict[str, str], known: Collection[object]
) -> str:
    """Return the text of a function or class, and add to ``context`` what it uses."""
    text = _source(made)
    tree = ast.parse(text)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    there = _names_around(made)
    for name in sorted(names & there.keys() - context.keys()):
        value = there[name]
        if any(value is one for one in known):
            continue
        context[name] = ""  # its place; a helper may need it as well
        context[name] = spell_meaning(name, value, made, context, known)
        context[name] = context.pop(name)  # behind what it needs
    return text


def _names_around(made: FunctionType | type) -> Mapping[str, Any]:
    """Return the globals of a function, and what it closes over."""
    if isinstance(made, type):
        functions = (one for one in vars(made).values() if isinstance(one, FunctionType))
        return {name: value for one in functions for name, value in _names_around(one).items()}
    free = made.__code__.co_freevars
    cells = zip(free, made.__closure__ or (), strict=False)
    return {**made.__globals__, **{name: cell.cell_contents for name, cell in cells}}


def spell_meaning(
    name: str,
    value: object,
    user: FunctionType | type,
    context: dict[str, str],
    known: Collection[object],
) -> str:
    """Return the line that makes a name mean what it means around ``user``."""
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}"
    home = getattr(value, "__module__", None)
    own = getattr(value, "__qualname__", getattr(value, "__name__", ""))
    if isinstance(value, (FunctionType, type)) and home == user.__module__:
        text = _definition(value, context, (*known, value))
        return text if value.__name__ == name else f"{text}\n{name} = {value.__name__}"
    if callable(value) and isinstance(home, str) and own.isidentifier() and home != "__main__":
        return f"from {home} import {own} as {name}"
    if type(value).__module__ == "torch" and type(value).__name__ in {"dtype", "device"}:
        return f"import torch\n{name} = {_torch(value)}"
    try:
        if ast.literal_eval(repr(value)) == value:
            return f"{name} = {value!r}"
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        pass
    raise SourceLostError(
        f"{user.__name__} uses {name}, a {type(value).__name__} of this session",
        "pass it as an argument",
    )


def _torch(value: object) -> str:
    text = repr(value)
    return text if text.startswith("torch.") else f"torch.{text}"


def _source(made: FunctionType | type) -> str:
    try:
        text = textwrap.dedent(inspect.getsource(made))
        tree = ast.parse(text)
    except (OSError, TypeError, SyntaxError) as error:
        raise SourceLostError(
            f"{made.__qualname__} has no source of its own", "define it with def, in a file or cell"
        ) from error
    if not isinstance(tree.body[0], (ast.FunctionDef, ast.ClassDef)):
        raise SourceLostError(
            f"{made.__qualname__} is no function of its own", "define it with def, not lambda"
        )
    return text
