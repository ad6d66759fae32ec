"""Putting the questions of ``at_run_time`` into the conditions that choose the new code.

``if x.device.type == "npu":`` becomes ``if __npufix__("/a/llama.py:9:NPU101", ("same-dtype",), x,
weight=self.weight, x=x) and x.device.type == "npu":``, and ``__npufix__`` is imported at the top.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npufix.advisor.runtime.calls import attention
from npufix.advisor.runtime.calls.origins import keep_given
from npufix.advisor.runtime.calls.questions import NAME, WITHIN_ONE, always_asked, checkable
from npufix.rewriters.graph.modules.syntax import statements_below

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npufix.advisor.runtime.source.selection import RuleSelection
    from npufix.rewriters.edit.site import Site
    from npufix.rewriters.graph.modules.names import FunctionNode

_PROBE = "npufix_operands_"
_NOTHING_ELSE = (ast.Name, ast.Attribute, ast.Constant, ast.Load)


@dataclass(frozen=True, slots=True)
class CallQuestion:
    """What to ask before the new code of one site."""

    place: str
    function: str
    new: str
    """The new expression, as ``ast.dump`` shows it."""
    conditions: tuple[str, ...] = ()
    operands: Mapping[str, ast.expr] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SitePlan:
    """What a site needs to be written: a question at each call, or what nobody can tell."""

    conditions: tuple[str, ...] = ()
    open: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    by_name: tuple[str, ...] = ()
    unmeasured: tuple[str, ...] = ()


def plan(site: Site, selection: RuleSelection) -> SitePlan:
    """Sort the conditions of a site: asked at run time, vouched for by the user, or open.

    Naming a rule vouches for what nothing asks at run time, and for what is asked by reading
    values. What is about time alone does not keep the new code out.
    """
    if site.rewrite is None:
        return SitePlan()
    operands = operands_of(site) if _is_guarded(site) else {}
    rule = site.rule.id
    named = selection.is_named(rule)
    asked: list[str] = []
    unknown: list[str] = []
    assumed: list[str] = []
    by_name: list[str] = []
    unmeasured: list[str] = []
    is_open = {c.name for c in site.open_conditions}
    conditions = {p.condition.name: p.condition for p in site.proofs}
    for name, condition in conditions.items():
        if name not in is_open and not always_asked(name):
            continue
        asks = condition.meaning or name  # one name may mean several things
        needed = checkable(rule, asks)
        can_ask = needed is not None and _is_guarded(site) and needed <= operands.keys()
        by_value = name == WITHIN_ONE
        if can_ask and not (by_value and (named or selection.allows(rule, name))):
            asked.append(asks)
        elif selection.allows(rule, name):
            assumed.append(name)
        elif condition.time_alone:
            unmeasured.append(name)
        else:
            (by_name if named else unknown).append(name)
    asked.sort(key=lambda name: name == WITHIN_ONE)  # what waits for the device comes last
    return SitePlan(*map(tuple, (asked, unknown, assumed, by_name, unmeasured)))


def _is_guarded(site: Site) -> bool:
    return site.rewrite is not None and bool(site.rewrite.on_npu)


def operands_of(site: Site) -> dict[str, ast.expr]:
    """Return the operands that cost nothing to look at, by their names in the rule."""
    if site.rewrite is None or not site.rewrite.probe:
        return {}
    # Names that the new code itself binds do not exist yet where the question is asked.
    made = _list_assigned_names(ast.parse(site.rewrite.text))
    for node in ast.walk(ast.parse(site.rewrite.probe)):
        match node:
            case ast.Call(ast.Name(name), _, keywords) if name == _PROBE:
                return {k.arg: k.value for k in keywords if k.arg and _is_free(k.value, made)}
    return {}


def _list_assigned_names(code: ast.AST) -> set[str]:
    names = [n for n in ast.walk(code) if isinstance(n, ast.Name)]
    return {n.id for n in names if isinstance(n.ctx, ast.Store)}


def _is_free(code: ast.expr, made: set[str]) -> bool:
    nodes = list(ast.walk(code))
    names = {n.id for n in nodes if isinstance(n, ast.Name)}
    return all(isinstance(n, _NOTHING_ELSE) for n in nodes) and not names & made


def question(site: Site, chosen: SitePlan, place: str) -> CallQuestion | None:
    """Return what to ask before the new code of a site, ``None`` if it runs everywhere."""
    if site.rewrite is None or not _is_guarded(site):
        return None
    last = ast.parse(site.rewrite.text).body[-1]
    new = last.value if isinstance(last, ast.Expr) else last
    needed = set().union(*(checkable(site.rule.id, c) or () for c in chosen.conditions))
    operands = {k: v for k, v in operands_of(site).items() if k in needed}
    return CallQuestion(place, site.function, ast.dump(new), chosen.conditions, operands)


def ask(module: ast.Module, questions: list[CallQuestion]) -> list[CallQuestion]:
    """Put each question before its new code; return those whose place was not found."""
    guards = list(_guards(module.body, ""))
    lost = []
    for one in questions:
        found = [(f, g) for name, f, g in guards if name == one.function and _chooses(g, one)]
        for function, guard in found:
            given = keep_given(function, one.operands) if WITHIN_ONE in one.conditions else {}
            guard.test = _extend(guard.test, one, given)
        if not found:
            lost.append(one)
    return lost


def _guards(block: list[ast.stmt], prefix: str) -> Iterator[tuple[str, FunctionNode, ast.If]]:
    """Yield every ``if`` that asks for an NPU, with the function that it is in."""
    for statement in block:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}{statement.name}"
            yield from ((name, statement, guard) for guard in _own_guards(statement.body))
            yield from _guards(_inner(statement.body), f"{name}.<locals>.")
        elif isinstance(statement, ast.ClassDef):
            yield from _guards(statement.body, f"{prefix}{statement.name}.")
        else:
            yield from _guards(_inner([statement]), prefix)


def _inner(block: list[ast.stmt]) -> list[ast.stmt]:
    """Return the functions and classes defined in a block, below other statements as well."""
    found: list[ast.stmt] = []
    for statement in block:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.append(statement)
            continue
        found += _inner(statements_below(statement))
    return found


def _own_guards(block: list[ast.stmt]) -> Iterator[ast.If]:
    for statement in block:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(statement, ast.If) and find_asked_tensor(statement.test) is not None:
            yield statement
        yield from _own_guards(statements_below(statement))


def find_asked_tensor(test: ast.expr) -> ast.expr | None:
    """Return the tensor that a condition asks for its device."""
    match test:
        case ast.BoolOp(ast.And(), [*_, last]):
            return find_asked_tensor(last)
        case ast.Compare(
            ast.Attribute(ast.Attribute(value, "device"), "type"), [ast.Eq()], [ast.Constant("npu")]
        ):
            return value
    return None


def _chooses(guard: ast.If, one: CallQuestion) -> bool:
    if not any(ast.dump(n) == one.new for s in guard.body for n in ast.walk(s)):
        return False
    read = [n for code in one.operands.values() for n in ast.walk(code)]
    here = {n.id for n in read if isinstance(n, ast.Name)}
    # Of several statements under one condition the first may bind what the second reads.
    return not here & _list_bound_before(guard.body, one)


def _list_bound_before(block: list[ast.stmt], one: CallQuestion) -> set[str]:
    bound: set[str] = set()
    for statement in block:
        if any(ast.dump(n) == one.new for n in ast.walk(statement)):
            break
        bound |= _list_assigned_names(statement)
    return bound


def _extend(test: ast.expr, one: CallQuestion, given: Mapping[str, ast.expr]) -> ast.expr:
    tensor = find_asked_tensor(test)
    if tensor is None:
        raise ValueError(ast.unparse(test))
    call = ast.Call(
        ast.Name(NAME, ast.Load()),
        [ast.Constant(one.place), _names(one.conditions), tensor],
        [ast.keyword(name, code) for name, code in sorted((*one.operands.items(), *given.items()))],
    )
    values = test.values if isinstance(test, ast.BoolOp) else [test]
    return ast.BoolOp(ast.And(), [*values[:-1], call, values[-1]])


def _names(conditions: tuple[str, ...]) -> ast.Tuple:
    return ast.Tuple([ast.Constant(name) for name in conditions], ast.Load())


_MODULES = {NAME: ("at_run_time", "holds"), attention.NAME: ("attention", "attend")}
_PACKAGE = "npufix.advisor.runtime.calls"


def with_import(module: ast.Module, names: list[str]) -> ast.Module:
    """Make the questions known to a module, where imports may stand."""
    at = 1 if ast.get_docstring(module, clean=False) is not None else 0
    for number, statement in enumerate(module.body):
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            at = number + 1
    for name in names:
        place, member = _MODULES[name]
        needed = ast.ImportFrom(f"{_PACKAGE}.{place}", [ast.alias(member, name)], 0)
        # Where there is no torch there are no tensors to ask.
        without = ast.ExceptHandler(ast.Name("ImportError", ast.Load()), None, [ast.Pass()])
        module.body.insert(at, ast.Try([needed], [without], [], []))
    return module
