"""Finding the places of a source file that a rule applies to."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING

from npufix.rewriters.dataflow import UnsupportedCodeError
from npufix.rewriters.imports import uses_torch_npu
from npufix.rewriters.matching import find, pattern_of
from npufix.rewriters.names import module_names, source_lines, straight_line
from npufix.rewriters.reader import read_function
from npufix.rewriters.recorded_facts import RecordedCall, RecordedFacts, aten_names
from npufix.rewriters.rewrite import NotRewritableError, Rewrite, functions, rewrite
from npufix.rewriters.site_facts import SourceFacts
from npufix.rewriters.splice import segment
from npufix.rules.substitution import Safety

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.rewriters.dataflow import FunctionFlow
    from npufix.rewriters.matching import Match
    from npufix.rewriters.names import FunctionNode, ModuleNames
    from npufix.rewriters.nodes import Node
    from npufix.rules.substitution import Condition, Form, Substitution

# Of these words a text must hold one for an operation to be in it.
_TRACES = {
    "gather": ("gather",),
    "one_hot": ("one_hot",),
    "repeat_interleave": ("repeat_interleave",),
    "rsqrt": ("sqrt", "**", "pow"),
    "setitem": ("] =", "]="),
    "linear": ("linear",),
    "matmul": ("@", "matmul", "mm"),
}
# Code that is compiled, or whose backward pass is written by hand, is not ours to change.
_COMPILED = re.compile(r"\b(jit\.(script|trace|ignore)\w*|triton\.jit|jit_fuser|custom_op)\b")


class Basis(str, Enum):
    """Where the proof of a condition comes from."""

    SOURCE = "source"
    PROFILE = "profile"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Proof:
    """A condition of a rule and whether it holds at a site."""

    condition: Condition
    basis: Basis


@dataclass(frozen=True, eq=False, slots=True)
class Site:
    """A place where a rule applies, and what it would become."""

    rule: Substitution
    form: Form
    function: str
    line: int
    code: str
    lines: frozenset[int]
    """All lines of the file whose kernels the replacement takes over."""
    proofs: tuple[Proof, ...]
    rewrite: Rewrite | None
    problem: str
    """Why the tool cannot write the change; empty if it can."""
    operators: frozenset[str]
    """The names under which a profile records what the pattern stands for."""
    function_lines: tuple[int, int]

    @property
    def open_conditions(self) -> tuple[Condition, ...]:
        """Return the conditions that the user has to vouch for."""
        return tuple(p.condition for p in self.proofs if p.basis is Basis.OPEN)

    @property
    def safety(self) -> Safety:
        """Return what the tool may do here."""
        if self.rewrite is None:
            return Safety.ADVICE
        return Safety.CONDITIONAL if self.open_conditions else Safety.SAFE


def find_sites(
    source: str,
    rules: Sequence[Substitution],
    recorded: Mapping[int, Sequence[RecordedCall]] | None = None,
) -> Iterator[Site]:
    """Yield the sites of a module in the order of its lines.

    ``recorded`` holds the operator calls of a profile of *this very* source, by line; without it
    only the source itself can prove a condition.

    Raises:
        SyntaxError: the source is not Python.

    """
    wanted = _possible(rules, source)
    if not wanted or "torch" not in source:
        return
    tree = ast.parse(source)
    names = module_names(tree)
    lines = source_lines(source)
    helpers = {name: full for name, full in names.imports.items() if not full.endswith(name)}
    for function, _ in functions(tree):
        if straight_line(function):
            helpers[function.name] = helpers.get(function.name, "") + _text(function, lines)
    sites: list[Site] = []
    for function, cls in functions(tree):
        text = _text(function, lines)
        here = _possible(wanted, _with_helpers(text, helpers))
        if not here or _is_off_limits(function, cls, text, names):
            continue
        try:
            flow = read_function(function, names, cls)
            sites += _sites_of(source, flow, here, recorded or {})
        except (UnsupportedCodeError, RecursionError):  # the latter: thousands of operations
            continue
    yield from sorted(sites, key=lambda site: (site.line, site.rule.id))


def _first_line(function: FunctionNode) -> int:
    return min([function.lineno, *(d.lineno for d in function.decorator_list)])


def _text(function: FunctionNode, lines: Sequence[str]) -> str:
    return "".join(lines[_first_line(function) - 1 : function.end_lineno])


def _with_helpers(text: str, helpers: Mapping[str, str]) -> str:
    """Return the code of a function and of the helpers that may be inlined into it."""
    left, parts = dict(helpers), [text]
    for part in parts:  # grows where helpers call helpers
        parts += [left.pop(name) for name in list(left) if f"{name}(" in part]
    return "".join(parts)


def _possible(rules: Sequence[Substitution], text: str) -> list[Substitution]:
    """Return the rules whose operations a text may hold, going by its words alone."""
    missing = {op for op, words in _TRACES.items() if not any(word in text for word in words)}
    return [r for r in rules if any(not (_operations(form) & missing) for form in r.forms)]


@cache
def _operations(form: Form) -> frozenset[str]:
    return frozenset(node.op for node in pattern_of(form.pattern).root.walk())


def _is_off_limits(
    function: FunctionNode, cls: ast.ClassDef | None, text: str, names: ModuleNames
) -> bool:
    if uses_torch_npu(text) or any(
        _COMPILED.search(ast.unparse(d)) for d in function.decorator_list
    ):
        return True
    bases = [names.dotted(base) or ast.unparse(base) for base in cls.bases] if cls else []
    return any(base.endswith(("autograd.Function", "ScriptModule")) for base in bases)


def _sites_of(
    source: str,
    flow: FunctionFlow,
    rules: Sequence[Substitution],
    recorded: Mapping[int, Sequence[RecordedCall]],
) -> Iterator[Site]:
    taken: set[int] = set()
    for rule in rules:
        candidates: dict[int, list[_Candidate]] = {}
        for form in rule.forms:
            for match in find(pattern_of(form.pattern), flow):
                proofs = _prove(form, flow, match, recorded)
                if proofs is not None:
                    found = _Candidate(form, match, proofs)
                    candidates.setdefault(id(match.evaluation.code), []).append(found)
        # The widest match first: ``gather(...).view(-1)`` before the ``gather`` inside it.
        for group in sorted(candidates.values(), key=lambda g: -_width(g[0].match)):
            best = min(group, key=lambda c: sum(p.basis is Basis.OPEN for p in c.proofs))
            if id(best.match.evaluation.code) not in taken:
                taken |= _codes(flow, best.match)
                yield _site(source, flow, rule, best)


@dataclass(frozen=True, slots=True)
class _Candidate:
    form: Form
    match: Match
    proofs: tuple[Proof, ...]


def _width(match: Match) -> int:
    return len(match.covered)


def _codes(flow: FunctionFlow, match: Match) -> set[int]:
    """Return the code that a match stands for: the places where no other one may be."""
    root = match.evaluation
    inner = match.covered - {root.node}
    return {id(root.code), *(id(e.code) for e in flow.evaluations if e.node in inner)}


def _prove(
    form: Form,
    flow: FunctionFlow,
    match: Match,
    recorded: Mapping[int, Sequence[RecordedCall]],
) -> tuple[Proof, ...] | None:
    """Return the conditions with their proofs; ``None`` if one of them does not hold."""
    source = SourceFacts(flow, match)
    profile = RecordedFacts(flow, match, recorded) if recorded else source
    proofs = []
    for condition in form.conditions:
        basis = Basis.SOURCE
        holds = condition.holds(source)
        if holds is None:
            basis, holds = Basis.PROFILE, condition.holds(profile)
        if holds is False:
            return None
        proofs.append(Proof(condition, basis if holds else Basis.OPEN))
    return tuple(proofs)


def _site(source: str, flow: FunctionFlow, rule: Substitution, found: _Candidate) -> Site:
    match = found.match
    new: Rewrite | None = None
    problem = ""
    try:
        new = rewrite(source, flow, match, found.form)
    except NotRewritableError as error:
        problem = str(error)
    code = match.evaluation.code
    return Site(
        rule=rule,
        form=found.form,
        function=flow.qualname,
        line=code.lineno,
        code=segment(source_lines(source), code),
        lines=_lines(flow, match),
        proofs=found.proofs,
        rewrite=new,
        problem=problem,
        operators=frozenset(name for node in match.covered for name in aten_names(node)),
        function_lines=(_first_line(flow.function), flow.function.end_lineno or 0),
    )


def _lines(flow: FunctionFlow, match: Match) -> frozenset[int]:
    computed: list[Node] = [n for n in match.covered if n.op not in {"const", "dtype", "global"}]
    return frozenset().union(*(flow.lines.get(node, frozenset()) for node in computed))
