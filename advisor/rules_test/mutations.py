"""Wrong replacements, made from the right one by one slip each.

``torch_npu.npu_rms_norm(x, weight, epsilon=eps)[0]`` becomes the same call without ``epsilon``,
with ``weight`` and ``x`` swapped, with ``[1]``: each must be refuted on the rule's ``inputs``.
"""

from __future__ import annotations
import __future__

import ast
import copy
import inspect
import re
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npufix.rewriters.graph.dataflow import UnsupportedCodeError
from npufix.rewriters.graph.modules.names import FunctionNode, ModuleNames
from npufix.rewriters.graph.modules.syntax import list_defaults
from npufix.rewriters.graph.reader import read_function
from npufix.rewriters.match.matching import (
    RULE_IMPORTS,
    find,
    helpers_of,
    list_declared,
    parse_rule_function,
    pattern_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from npufix.rules.substitution import Draw, Form

_CASTS = frozenset({"bfloat16", "bool", "double", "float", "half", "int", "long", "to", "type_as"})
_SYMMETRIC = frozenset({"add", "eq", "maximum", "minimum", "mul", "ne", "swapaxes", "transpose"})
_NO_SLIP = "# no slip: "
"""Ends a line of a replacement, before a slip that is none: ``# no slip: x and y are swapped``."""
_OF_PLACE = frozenset({"device", "memory_format"})
"""Arguments that change no value on one device."""
_EITHER_WAY = (ast.Add, ast.Mult, ast.BitAnd, ast.BitOr, ast.BitXor)


@dataclass(frozen=True)
class Mutation:
    """A wrong replacement."""

    slip: str
    """What is wrong: ``epsilon=eps is left out``."""
    line: int
    function: Callable[..., Any]


def mutations_of(replacement: Callable[..., Any]) -> Iterator[Mutation]:
    """Yield the wrong versions of a replacement, slips in helpers of its own file included."""
    lines = Path(inspect.getfile(replacement)).read_text(encoding="utf-8").splitlines()
    known = {replacement.__name__: parse_rule_function(replacement), **helpers_of(replacement)}
    for name, code in known.items():
        for node in (n for statement in code.body for n in ast.walk(statement)):
            for slip, wrong in _slips(node):
                functions = {**known, name: _exchange(code, node, wrong)}
                said = any(
                    f"{_NO_SLIP}{slip}" in line for line in lines[code.lineno : code.end_lineno]
                )
                if not said and not _is_same(replacement, functions):
                    line = getattr(node, "lineno", code.lineno)
                    yield Mutation(slip, line, _compile(replacement, functions))


def without_defaults(form: Form) -> Form | None:
    """Return a form as it is written where all values are its replacement's own defaults.

    ``def fused(params, lr: float = 1e-3)`` leaves ``lr=lr`` out there: that is what the operator
    must do by itself. None, if it has no defaults.
    """
    code = copy.deepcopy(parse_rule_function(form.replacement))
    defaults = {name: ast.literal_eval(value) for name, value in list_defaults(code.args).items()}
    for node in ast.walk(code):
        if isinstance(node, ast.Call):
            kept = (k for k in node.keywords if getattr(k.value, "id", "") not in defaults)
            node.keywords = list(kept)
    functions = {**helpers_of(form.replacement), form.replacement.__name__: code}

    def inputs(draw: Draw) -> dict[str, Any]:
        return {**form.inputs(draw), **defaults}

    made = _compile(form.replacement, functions)
    return replace(form, replacement=made, inputs=inputs) if defaults else None


def _slips(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield what may stand wrongly in the place of an expression."""
    match node:
        case ast.Constant(bool(value)):
            yield f"{value} is {not value}", ast.Constant(not value)
        case ast.Constant(int(value)):
            other = 0 if value == 1 else value + 1
            yield f"{value} is {other}", ast.Constant(other)
        case ast.Constant(float(value)):
            yield f"{value} is {value * 2 or 1.0}", ast.Constant(value * 2 or 1.0)
        case ast.BinOp(left, operator, right):
            yield f"{ast.unparse(right)} is left out", left
            if not isinstance(operator, _EITHER_WAY):
                yield f"{ast.unparse(node)} is swapped", ast.BinOp(right, operator, left)
        case ast.Call():
            yield from _slips_in_call(node)


def _slips_in_call(node: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    function, given, keywords = node.func, node.args, node.keywords
    name = ast.unparse(function).rpartition(".")[2]
    for keyword in (k for k in keywords if k.arg and k.arg not in _OF_PLACE):
        if _is_default(node, keyword.arg or "", keyword.value):
            continue
        left = [other for other in keywords if other is not keyword]
        yield f"{ast.unparse(keyword)} is left out", ast.Call(function, given, left)
    if isinstance(function, ast.Attribute) and name in _CASTS:
        yield f".{name}(...) is left out", function.value
    elif len(given) > 1 and not _is_default(node, "", given[-1]):
        yield f"{ast.unparse(given[-1])} is left out", ast.Call(function, given[:-1], keywords)
    pairs = () if name in _SYMMETRIC else pairwise(given)
    for at, (one, other) in enumerate(pairs):
        swapped = [*given[:at], other, one, *given[at + 2 :]]
        words = f"{ast.unparse(one)} and {ast.unparse(other)} are swapped"
        yield words, ast.Call(function, swapped, keywords)


def _is_default(call: ast.Call, name: str, value: ast.expr) -> bool:
    """Tell whether an operator of torch_npu does anyway what its last argument says: ``dim=-1``."""
    from npufix.rewriters.verification.reference.npu_operators import read_table

    parameter = rf"\b{name or '[a-z_]+'}={re.escape(ast.unparse(value))}[.]?0?$"
    schemas = read_table().operators.get(ast.unparse(call.func).rpartition(".")[2], ())
    return any(
        re.search(parameter, written)
        for schema in schemas
        for place, written in enumerate(schema.partition("(")[2].split(")")[0].split(", "))
        if name or place == len(call.args) - 1
    )


def _exchange(node: Any, old: ast.AST, new: ast.AST) -> Any:  # noqa: ANN401 - any part of a tree
    """Return a copy of a tree in which ``new`` stands in the place of ``old``."""
    if isinstance(node, list):
        return [_exchange(item, old, new) for item in node]
    if not isinstance(node, ast.AST):
        return node
    source = new if node is old else node
    fields = {name: _exchange(value, old, new) for name, value in ast.iter_fields(source)}
    return ast.copy_location(type(source)(**fields), node)


def _compile(
    replacement: Callable[..., Any], functions: Mapping[str, FunctionNode]
) -> Callable[..., Any]:
    tree = ast.fix_missing_locations(ast.Module(list(functions.values()), []))
    scope = dict(vars(replacement)) | getattr(replacement, "__globals__", {})
    code = compile(tree, "<mutation>", "exec", flags=__future__.annotations.compiler_flag)
    exec(code, scope)  # noqa: S102 - the code of the rule itself
    made: Callable[..., Any] = scope[replacement.__name__]
    return made


def _is_same(replacement: Callable[..., Any], functions: Mapping[str, FunctionNode]) -> bool:
    """Tell whether a slip changes nothing: the dataflow is the one of the replacement."""
    code, *helpers = functions.values()
    names = ModuleNames(RULE_IMPORTS, {h.name: h for h in helpers}, {})
    try:
        wanted = pattern_of(replacement)
        flow = read_function(code, names, declared=list_declared(code))
    except (UnsupportedCodeError, TypeError):
        return False
    results = {o.node for o in flow.observables if o.kind in {"return", "write"}}
    return any(
        m.evaluation.node in results and all(m.bindings[n].value == n for n in m.bindings)
        for m in find(wanted, flow)
    )
