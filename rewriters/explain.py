"""Why a rule does not match: how far its pattern goes along with the code, and where they part."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from npufix.rewriters.edit.edit import segment
from npufix.rewriters.edit.loops.find import find_loops
from npufix.rewriters.edit.phrases import phrase
from npufix.rewriters.facts.chosen import find_choice
from npufix.rewriters.facts.site_facts import SourceFacts
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.names import source_lines
from npufix.rewriters.graph.special import Op
from npufix.rewriters.match.matching import LITERAL, find, list_orders, pattern_of, same_value

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.nodes import Evaluation, Node
    from npufix.rewriters.match.matching import Match
    from npufix.rules.substitution import Form, Site, Substitution

# What stands for no operation of its own: agreeing on it says nothing.
_PLAIN = frozenset(
    {"attr", "const", "dtype", "dtype_of", "global", "param", "rank", "shape", "size", "slice",
     "tuple", "list"}
)  # fmt: skip
# Arithmetic and changes of layout, which stand everywhere.
_COMMON = frozenset(
    {"add", "sub", "mul", "div", "neg", "cast", "item", "getitem", "transpose", "square",
     "unsqueeze", "squeeze", "view", "reshape", "expand", "phi", "contiguous", "augment"}
)  # fmt: skip
_SUBSTANTIAL = 0.6
_FEWEST_OPERATIONS = 2
_MOST_CODE = 60


@dataclass(frozen=True, slots=True)
class Parting:
    """One place where a pattern and the code differ."""

    expected: str
    found: str
    line: int


@dataclass(frozen=True, slots=True)
class NearMiss:
    """A pattern that agrees with the code in most of its operations, not in all."""

    rule: Substitution
    form: Form
    agreeing: int
    operations: int
    """How many operations the pattern has."""
    line: int
    partings: tuple[Parting, ...]
    guesses: int = 0
    """How many operations were skipped on one side to get there."""


def near_misses(
    source: str, flow: FunctionFlow, rules: Sequence[Substitution], lines: range
) -> list[NearMiss]:
    """Return the rules whose pattern goes along with the code at some lines, the nearest first."""
    computed = (e for e in flow.evaluations if not isinstance(e.code, ast.Name))
    here = [e for e in computed if _concerns(flow, e, lines)]
    found = []
    for rule in rules:
        if rule.search or _matches(flow, rule, lines):
            continue
        best: NearMiss | None = None
        for form in rule.forms:
            near = _nearest(source, flow, here, rule, form)
            if near is not None and (best is None or _rank(near) > _rank(best)):
                best = near
        if best is not None:
            found.append(best)
    return sorted(found, key=lambda near: (-(near.agreeing / near.operations), near.rule.id))


def _matches(flow: FunctionFlow, rule: Substitution, lines: range) -> bool:
    """Tell whether a rule has nothing lacking in code that some lines have to do with."""
    matches = (m for form in rule.forms for m in find(pattern_of(form.pattern), flow))
    return any(_concerns(flow, m.evaluation, lines) for m in matches)


def _rank(near: NearMiss) -> tuple[int, int, int]:
    """Return how well a form explains the code: by what is lacking, then by what is guessed."""
    return near.agreeing - near.operations, -near.guesses, -len(near.partings)


def _concerns(flow: FunctionFlow, evaluation: Evaluation, lines: range) -> bool:
    """Tell whether a value is computed by a statement at ``lines``, or from one that is."""
    statement = evaluation.statement
    if statement.lineno < lines.stop and lines.start <= (statement.end_lineno or statement.lineno):
        return True
    computed = (n for n in evaluation.node.walk() if n.op not in _PLAIN)
    return any(line in lines for n in computed for line in flow.lines.get(n, ()))


def _nearest(
    source: str,
    flow: FunctionFlow,
    here: Sequence[Evaluation],
    rule: Substitution,
    form: Form,
) -> NearMiss | None:
    root = pattern_of(form.pattern).root
    parts = [n for n in root.walk() if n.op not in _PLAIN and n.op != Op.EITHER]
    best: tuple[_Alignment, Node, Evaluation] | None = None
    for evaluation in here:
        for part in parts:
            if part.op == evaluation.node.op:
                aligned = _Alignment({}).align(part, evaluation.node)
                # Of equally good ones the one with the fewest differences, the first of these.
                if best is None or _quality(aligned) > _quality(best[0]):
                    best = aligned, part, evaluation
    if best is None:
        return None
    aligned, part, evaluation = best
    operations = _operations(root, aligned.chosen)
    differences = list(aligned.differences)
    if part is not root and part in operations:
        around = _around(operations, part)
        if around is not None:
            differences.append(_Difference(around, part, evaluation.node, "around"))
    if not differences or not _is_substantial(aligned.agreed & operations, operations):
        return None
    partings = tuple(dict.fromkeys(_parting(source, flow, d, evaluation) for d in differences[:3]))
    agreeing = len(aligned.agreed & operations)
    guesses = sum(d.kind in {"missing", "extra"} for d in differences)
    line = evaluation.code.lineno
    return NearMiss(rule, form, agreeing, len(operations), line, partings, guesses)


def _is_substantial(agreed: frozenset[Node], operations: frozenset[Node]) -> bool:
    """Tell whether so much agrees that the code may have been meant, not only its arithmetic."""
    telling = {n for n in operations if n.op not in _COMMON}
    return (
        len(agreed) >= _FEWEST_OPERATIONS
        and len(agreed & telling) >= min(1, len(telling))  # some patterns are arithmetic alone
        and len(agreed) >= _SUBSTANTIAL * len(operations)
        and len(agreed & telling) >= _SUBSTANTIAL * len(telling)
    )


def _operations(root: Node, chosen: Mapping[Node, Node]) -> frozenset[Node]:
    """Return the operations of a pattern in the spelling nearest to the code."""
    found: set[Node] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if node.op == Op.EITHER:
            stack.append(chosen.get(node) or min(node.args, key=_size))
        elif node not in found:
            found.add(node)
            stack += node.args
    return frozenset(n for n in found if n.op not in _PLAIN)


def _size(node: Node) -> int:
    return sum(1 for _ in node.walk())


def _around(operations: frozenset[Node], part: Node) -> Node | None:
    """Return the operation of the pattern that takes ``part`` as an operand."""
    users = [n for n in operations if any(part in _options(arg) for arg in n.args)]
    return min(users, key=_size, default=None)


def _options(node: Node) -> list[Node]:
    return [o for arg in node.args for o in _options(arg)] if node.op == Op.EITHER else [node]


@dataclass(frozen=True, slots=True)
class _Difference:
    wanted: Node
    """The operation of the pattern that says what is expected."""
    operand: Node | None
    """Which operand of it differs; ``None``: the operation itself."""
    found: Node
    kind: str


@dataclass(frozen=True, slots=True)
class _Alignment:
    """How far a pattern and the code go together."""

    bindings: Mapping[str, Node]
    agreed: frozenset[Node] = frozenset()
    """Operations of the pattern that the code has as well."""
    differences: tuple[_Difference, ...] = ()
    chosen: Mapping[Node, Node] = field(default_factory=dict)
    """Which option was taken where the pattern has several spellings."""

    def align(self, wanted: Node, node: Node, user: Node | None = None) -> _Alignment:
        """Return this with one more operand; ``user`` is the pattern's operation that takes it."""
        if wanted in self.agreed:
            return self
        if wanted.op == Op.PARAM:
            return self._variable(wanted, node, user)
        if wanted.op == Op.EITHER:
            options = (
                replace(self, chosen={**self.chosen, wanted: o}).align(o, node, user)
                for o in wanted.args
            )
            return max(options, key=_quality)
        orders = list_orders(wanted, node)
        if not orders:
            return self._apart(wanted, node, user)
        if not same_value(wanted, node):
            return self._differs(user or wanted, wanted if user else None, node, "value")
        mine = self if wanted.op in _PLAIN else self._agrees(wanted)
        return max((mine._all(wanted, args) for args in orders), key=_quality)  # noqa: SLF001

    def _apart(self, wanted: Node, node: Node, user: Node | None) -> _Alignment:
        """Return this where operations differ: one may be missing, or stand between two others."""
        here = self._differs(user or wanted, wanted if user else None, node, "operation")
        options = [here]
        for arg in wanted.args:
            if any(o.op == node.op and o.op not in _PLAIN for o in _options(arg)):
                missing = self._differs(wanted, None, node, "missing")
                options.append(missing.align(arg, node, wanted))
        for inner in node.args:
            if inner.op == wanted.op and inner.op not in _PLAIN:
                extra = self._differs(user or wanted, None, node, "extra")
                options.append(extra.align(wanted, inner, user))
        return max(options, key=_quality)

    def _all(self, wanted: Node, nodes: tuple[Node, ...]) -> _Alignment:
        state = self
        for inner, node in zip(wanted.args, nodes, strict=True):
            state = state.align(inner, node, wanted)
        return state

    def _variable(self, wanted: Node, node: Node, user: Node | None) -> _Alignment:
        name = str(wanted.value)
        bound = self.bindings.get(name)
        if name.startswith(LITERAL) and node.op != Op.CONST:
            return self._differs(user or wanted, wanted, node, "literal")
        if bound is None:
            return replace(self, bindings={**self.bindings, name: node})
        if bound is node:
            return self
        return self._differs(user or wanted, wanted, node, "variable")

    def _agrees(self, wanted: Node) -> _Alignment:
        return replace(self, agreed=self.agreed | {wanted})

    def _differs(self, wanted: Node, operand: Node | None, node: Node, kind: str) -> _Alignment:
        found = _Difference(wanted, operand, node, kind)
        return replace(self, differences=(*self.differences, found))


def _quality(alignment: _Alignment) -> tuple[int, int]:
    return len(alignment.agreed), -len(alignment.differences)


def _parting(source: str, flow: FunctionFlow, difference: _Difference, near: Evaluation) -> Parting:
    code = _code_of(flow, difference.found)
    line = code.lineno if code is not None else near.code.lineno
    text = _show(source, code) if code is not None else phrase(difference.found)
    return Parting(phrase(difference.wanted), _say(difference, text), line)


def _say(difference: _Difference, text: str) -> str:  # noqa: PLR0911 - one case a kind
    """Return in words what stands where the pattern has something else."""
    wanted, operand = difference.wanted, difference.operand
    match difference.kind:
        case "around" | "missing":
            return f"here {text} is not part of one"
        case "extra":
            return f"here {text} stands between"
        case "variable" if operand is not None:
            return f"here {operand.value} is another value at this place: {text}"
        case "literal" if operand is not None:
            return f"here {_operand_name(wanted, operand)} is no literal: {text}"
    if operand is not None and operand.op in _PLAIN:
        return f"here {_operand_name(wanted, operand)} is {text}, not {phrase(operand)}"
    if operand is not None:
        return f"here {text} stands in place of {phrase(operand)}"
    return f"here it is {text}"


def _operand_name(wanted: Node, operand: Node) -> str:
    """Return what an operand is called: ``dim`` of ``mean``."""
    position = next((i for i, arg in enumerate(wanted.args) if arg is operand), 0)
    names = ["the tensor", *(operators.signature(wanted.op) or ())]
    return f"{names[position]} of {wanted.op}" if position < len(names) else "an operand"


def _code_of(flow: FunctionFlow, node: Node) -> ast.expr | ast.stmt | None:
    """Return code that computes a value, rather than a name for it."""
    codes = [e.code for e in flow.evaluations if e.node is node]
    return next((c for c in codes if not isinstance(c, ast.Name)), codes[0] if codes else None)


def _show(source: str, code: ast.expr | ast.stmt) -> str:
    text = " ".join(segment(source_lines(source), code).split())
    return text if len(text) <= _MOST_CODE else f"{text[: _MOST_CODE - 1]}…"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A pattern that matches, and why the rule leaves the code alone all the same."""

    rule: Substitution
    line: int
    reason: str
    condition: str = ""
    """Name of the condition that is the reason, if one is."""
    operations: int = 0
    """How many operations the pattern has: the more, the likelier it was meant."""
    unproven: bool = False
    """Whether the condition may hold: nothing that the source says tells."""


def refusals(
    source: str,
    flow: FunctionFlow,
    rules: Sequence[Substitution],
    lines: range,
    known: Container[tuple[str, int]] = (),
) -> list[Refusal]:
    """Return the rules whose pattern is at some lines though none is a site, the likeliest first.

    The reason is empty where no condition is false: then something else is in the way. A pattern
    of a single operation, of which a condition is false, is any subscript or product: silent.
    ``known`` are the rules and lines of all sites.
    """
    found = []
    alone = len(rules) == 1  # it is asked about
    for rule in rules:
        if rule.search == "loops":
            found += [
                Refusal(rule, loop.code.lineno, loop.problem, operations=_FEWEST_OPERATIONS)
                for loop in find_loops(source, flow, all_of_them=True, with_text=False)
                if loop.problem and any(line in lines for line in loop.lines)
            ][:1]
        if rule.search:
            continue
        refused: list[Refusal] = []
        for form in rule.forms:
            refused += [
                _refusal(rule, form, flow, match)
                for match in find(pattern_of(form.pattern), flow)
                if _is_of(flow, match, lines)
                and (rule.id, match.evaluation.code.lineno) not in known
            ]
        # One form that holds is enough: then it is not a condition that forbids the change.
        best = sorted(refused, key=lambda r: (bool(r.reason), not r.unproven))[:1]
        found += [r for r in best if r.operations > 1 or r.unproven or not r.condition or alone]
    return sorted(found, key=lambda r: (not r.unproven, -r.operations))


def _is_of(flow: FunctionFlow, match: Match, lines: range) -> bool:
    """Tell whether some lines compute a part of what a pattern stands for, not its operands."""
    statement = match.evaluation.statement
    if statement.lineno < lines.stop and lines.start <= (statement.end_lineno or statement.lineno):
        return True
    return any(line in lines for n in match.covered for line in flow.lines.get(n, ()))


class _Asking:
    """Answers as the source does, and remembers whether it had no answer."""

    def __init__(self, facts: SourceFacts) -> None:
        self._facts = facts
        self.is_unknown = False

    def __getattr__(self, name: str) -> object:
        asked = getattr(self._facts, name)
        if not callable(asked):
            return asked

        def answer(*args: object, **keywords: object) -> object:
            found = asked(*args, **keywords)
            self.is_unknown |= found is None
            return found

        return answer


def _is_plain(node: Node) -> bool:
    """Tell whether this is ``rows[0]`` or ``x[1:]``."""
    constant = {Op.CONST, "slice", "tuple"}
    return node.op in _COMMON and all(n.op in constant for n in node.args[1:])


def _refusal(rule: Substitution, form: Form, flow: FunctionFlow, match: Match) -> Refusal:
    at = match.evaluation.code.lineno
    operations = len({n for n in match.covered if n.op not in _PLAIN})
    if choice := find_choice(flow, match, form):
        return Refusal(rule, at, choice, operations=operations)
    for condition in form.conditions:
        facts = _Asking(SourceFacts(flow, match))
        if condition.holds(cast("Site", facts)) is False:
            reason = f"it does not hold that {condition.text}"
            if facts.is_unknown:
                reason = f"it could not be proven that {condition.text}"
            unproven = facts.is_unknown and not _is_plain(match.evaluation.node)
            return Refusal(rule, at, reason, condition.name, operations, unproven)
    return Refusal(rule, at, "", operations=operations)
