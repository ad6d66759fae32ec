"""What a user says of an argument: ``q: float[b, h, t, d]``.

On the command line (``--assume``), or in a comment at the function::

    # npufix: assume q: float[b, h, t, d]
    # npufix: assume mask: bool[b, t]
    def attend(q, k, v, mask): ...
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.verification.inputs.source.shapes import ANY, DeclaredKind, Shape, read_sizes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

KINDS: Mapping[str, DeclaredKind] = {
    "bool": "bool",
    "int": "int",
    "float": "float",
    "complex": "complex",
}
_FORM = re.compile(r"\s*([A-Za-z_]\w*)\s*:\s*(\w+)\s*(?:\[(.*)\])?\s*")
_COMMENT = re.compile(r"#\s*npufix:\s*assume\b\s*(.*)")
_SHOWN = re.compile(
    r"(?m)(?:^|[\s,(])(?P<name>\w+) *= *torch\.(?P<drawn>rand|randn|randint)(?:_like)?\("
    r"(?!.*([<>]|==|\.(bool|long|int|round|float|to)\b))"
)
_EXAMPLE = "write it as 'q: float[b, h, t, d]', 'mask: bool[b, 1, t, t]' or 'scale: float[]'"


class AssumptionError(ValueError):
    """Something that is no assumption; the message says what is wrong in one line."""


def parse_assumption(text: str) -> tuple[str, Shape, DeclaredKind]:
    """Return the argument, its shape and its kind of numbers.

    Raises:
        AssumptionError: it is none.

    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise AssumptionError(f"{text.strip()!r} is no assumption: {_EXAMPLE}")
    name, kind, inside = found.groups()
    if kind not in KINDS:
        raise AssumptionError(f"{kind!r} in {text.strip()!r} is none of {', '.join(KINDS)}")
    if inside is None:
        raise AssumptionError(f"{text.strip()!r} has no shape: {_EXAMPLE}")
    sizes = tuple(size.strip() for size in inside.split(",")) if inside.strip() else ()
    parsed = read_sizes(tuple(size for size in sizes if size != ANY))
    if parsed is None or sizes.count(ANY) > 1 or not all(map(_is_size, parsed)):
        raise AssumptionError(
            f"[{inside}] in {text.strip()!r} is no shape: names, numbers, 2*d, and at most one ..."
        )
    return name, sizes, KINDS[kind]


def _is_size(size: ast.expr) -> bool:
    """Say whether it is a name, a number of at least 0, or a formula of these."""
    if isinstance(size, ast.BinOp):
        known = isinstance(size.op, ast.Add | ast.Sub | ast.Mult | ast.FloorDiv)
        return known and _is_size(size.left) and _is_size(size.right)
    if isinstance(size, ast.Constant):
        return type(size.value) is int
    return isinstance(size, ast.Name)


def list_comments(text: str, first: int, last: int) -> list[str]:
    """Return the assumptions in the comments of a function, whose lines these are.

    Those directly above it, decorators and other comments between, belong to it.
    """
    lines = text.splitlines()
    while first > 1 and re.match(r"\s*[#@]", lines[first - 2]):
        first -= 1
    found = (_COMMENT.search(line) for line in lines[first - 1 : last])
    return [one.group(1).strip() for one in found if one is not None]


def read_comments_of_signature(text: str, function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Return the comments of a signature and above the first statement, each with its argument.

    ``q,  # (B, H, T, D)`` becomes ``q: (B, H, T, D)``.
    """
    lines = text.splitlines()
    first = function.body[0]
    docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    last = function.body[1] if docstring and len(function.body) > 1 else first
    own = range(first.lineno, (first.end_lineno or 0) + 1) if docstring else ()
    found = []
    for number in range(function.lineno, last.lineno):
        line = lines[number - 1] if number <= len(lines) else ""
        if number in own or "#" not in line:
            continue
        code, _, comment = line.partition("#")
        name = re.match(r"\s*(\w+)\s*[:,=]", code)
        beside = name is not None and not code.lstrip().startswith("def ")
        found.append(f"{name.group(1)}: {comment.strip()}" if beside and name else comment.strip())
    return "\n".join(found)


def read_shown(text: str, names: Collection[str]) -> Iterator[tuple[str, DeclaredKind]]:
    """Yield what examples of a docstring fill arguments with: ``y = torch.randn(10, 2)``.

    Of what is made of that in the same line nothing is known: ``mask = torch.rand(3, 4) > 0.5``.
    """
    for said in (one for one in _SHOWN.finditer(text) if one["name"] in names):
        yield said["name"], "int" if said["drawn"] == "randint" else "float"
