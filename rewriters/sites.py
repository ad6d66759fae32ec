"""Finding the places of a source file that a rule applies to."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.dataflow import UnsupportedCodeError
from npufix.rewriters.matching import find, pattern_of
from npufix.rewriters.names import FunctionNode, inlinable, module_names, source_lines
from npufix.rewriters.neighbours import helper_texts
from npufix.rewriters.prefilter import possible
from npufix.rewriters.reader import read_function
from npufix.rewriters.recorded_facts import RecordedCall, RecordedFacts, aten_names
from npufix.rewriters.rewrite import NotRewritableError, Rewrite, rewrite
from npufix.rewriters.scopes import MODULE, scopes, top_level
from npufix.rewriters.site_facts import SourceFacts
from npufix.rewriters.splice import segment
from npufix.rules.substitution import Safety

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from npufix.rewriters.dataflow import FunctionFlow
    from npufix.rewriters.matching import Match
    from npufix.rewriters.names import ModuleNames
    from npufix.rewriters.nodes import Node
    from npufix.rewriters.scopes import Scope
    from npufix.rules.substitution import Condition, Form, Substitution

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
    """Why the tool does not write the change; empty if it can."""
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
        if self.rewrite is None or self.rule.advice:
            return Safety.ADVICE
        return Safety.CONDITIONAL if self.open_conditions else Safety.SAFE


def find_sites(
    source: str,
    rules: Sequence[Substitution],
    recorded: Mapping[int, Sequence[RecordedCall]] | None = None,
    neighbour: Callable[[str], str | None] | None = None,
    *,
    portable: bool = True,
) -> Iterator[Site]:
    """Yield the sites of a module in the order of its lines.

    ``neighbour`` returns the text of a module of the same package (``.configuration_llama``).
    ``recorded`` holds the operator calls of a profile of *this very* source, by line; without it
    only the source itself can prove a condition. Without ``portable`` the text that keeps the old
    code is not made; that takes a third of the time.

    Raises:
        SyntaxError: the source is not Python.

    """
    wanted = possible(rules, source)
    imports_helpers = neighbour is not None and "from " in source and "def " in source
    if "torch" not in source or not (wanted or imports_helpers):
        return
    tree = ast.parse(source)
    names = module_names(tree, neighbour)
    foreign = helper_texts(names, source)
    if foreign:
        wanted = possible(rules, "".join([source, *foreign.values()]))
    if not wanted:
        return
    if not any(full.split(".")[0] == "torch" for full in names.imports.values()):
        return  # code for another library with functions of the same names
    lines = source_lines(source)
    helpers = {name: full for name, full in names.imports.items() if not full.endswith(name)}
    helpers |= foreign
    found = list(scopes(tree))
    for scope in found:
        if inlinable(scope.function):
            name = scope.function.name
            helpers[name] = helpers.get(name, "") + _text(scope.function, lines)
    sites: list[Site] = []
    for scope in (*found, top_level(tree)):
        text = _scope_text(scope, tree, lines, names)
        here = possible(wanted, _with_helpers(text, helpers))
        if not here or off_limits(scope, names):
            continue
        try:
            flow = read_function(scope.function, names, scope.cls, scope=scope)
            sites += _sites_of(source, flow, here, recorded or {}, portable=portable)
        except (UnsupportedCodeError, RecursionError):  # the latter: thousands of operations
            continue
    kept = [site for site in sites if not any(_calls(site, other) for other in sites)]
    yield from sorted(kept, key=lambda site: (site.line, site.rule.id))


def _calls(site: Site, other: Site) -> bool:
    """Tell whether a site is no more than a call of the function that ``other`` is in."""
    if site.rule is not other.rule or site.function == other.function or other.rewrite is None:
        return False
    whole = other.lines < site.lines and len(other.open_conditions) <= len(site.open_conditions)
    return whole and isinstance(ast.parse(f"({site.code})", mode="eval").body, ast.Call)


def _first_line(function: FunctionNode) -> int:
    return min([function.lineno, *(d.lineno for d in function.decorator_list)])


def _text(function: FunctionNode, lines: Sequence[str]) -> str:
    return "".join(lines[_first_line(function) - 1 : function.end_lineno])


def _scope_text(scope: Scope, tree: ast.Module, lines: Sequence[str], names: ModuleNames) -> str:
    """Return the code of a scope, with that which says what its submodules are."""
    if scope.function.name == MODULE:
        return _between(tree, lines)
    text = _text(scope.function, lines)
    if scope.cls is None or "self" not in text:
        return text
    made = [
        _text(method, lines)
        for base in names.bases(scope.cls)
        for method in base.body
        if isinstance(method, FunctionNode) and method.name == "__init__"
    ]
    return "".join([text, *made])


def _between(tree: ast.Module, lines: Sequence[str]) -> str:
    """Return the code of a module that runs when it is imported."""
    passive = (FunctionNode, ast.ClassDef, ast.Import, ast.ImportFrom)
    return "".join(
        "".join(lines[node.lineno - 1 : node.end_lineno])
        for node in tree.body
        if not isinstance(node, passive) and any(isinstance(n, ast.Call) for n in ast.walk(node))
    )


def _with_helpers(text: str, helpers: Mapping[str, str]) -> str:
    """Return the code of a function and of the helpers that may be inlined into it."""
    left, parts = dict(helpers), [text]
    for part in parts:  # grows where helpers call helpers
        parts += [left.pop(name) for name in list(left) if f"{name}(" in part]
    return "".join(parts)


def off_limits(scope: Scope, names: ModuleNames) -> str:
    """Return why nothing in a function is changed, "" if it may be."""
    for decorator in map(ast.unparse, scope.function.decorator_list):
        if _COMPILED.search(decorator):
            return f"it is compiled: @{decorator}"
    bases = [names.dotted(b) or ast.unparse(b) for b in scope.cls.bases] if scope.cls else []
    if any(base.endswith("autograd.Function") for base in bases):
        return "it belongs to a torch.autograd.Function, whose backward pass is written by hand"
    if any(base.endswith("ScriptModule") for base in bases):
        return "it belongs to a ScriptModule, which is compiled"
    return ""


def chosen_by_device(flow: FunctionFlow, match: Match) -> bool:
    """Tell whether code for an NPU stands beside a match: then somebody has decided already."""
    line = match.evaluation.statement.lineno
    for node in flow.npu_branches:
        inside = node.lineno <= line <= (node.end_lineno or node.lineno)
        leaves = isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return)
        if inside or (leaves and line > node.lineno):
            return True
    return False


@lru_cache(maxsize=1)
def _mentions_npu(source: str) -> bool:
    return "npu" in source.lower().replace("input", "")


def _sites_of(
    source: str,
    flow: FunctionFlow,
    rules: Sequence[Substitution],
    recorded: Mapping[int, Sequence[RecordedCall]],
    *,
    portable: bool,
) -> Iterator[Site]:
    """Yield the sites of a function, one for each place: the widest that can be written."""
    taken: set[int] = set()
    left: list[tuple[_Candidate, Site]] = []
    for best in _in_order(_candidates(source, flow, rules, recorded)):
        if id(best.match.evaluation.code) in taken:
            continue
        site = _site(source, flow, best, portable=portable)
        if site.rewrite is not None and not site.rule.advice:
            taken |= _codes(flow, best.match)
            yield site
        elif not best.rule.needs_whole:
            left.append((best, site))
    for best, site in left:  # what is only pointed at makes room for what is written
        if id(best.match.evaluation.code) not in taken:
            taken |= _codes(flow, best.match)
            yield site


@dataclass(frozen=True, slots=True)
class _Candidate:
    rule: Substitution
    form: Form
    match: Match
    proofs: tuple[Proof, ...]


def _candidates(
    source: str,
    flow: FunctionFlow,
    rules: Sequence[Substitution],
    recorded: Mapping[int, Sequence[RecordedCall]],
) -> Iterable[list[_Candidate]]:
    """Return what each rule may do at each place, one for each form that fits."""
    found: dict[tuple[str, int], list[_Candidate]] = {}
    has_npu = _mentions_npu(source)
    for rule in rules:
        for form in rule.forms:
            for match in find(pattern_of(form.pattern), flow):
                if has_npu and chosen_by_device(flow, match):
                    continue
                proofs = _prove(form, flow, match, recorded)
                if proofs is not None:
                    key = (rule.id, id(match.evaluation.code))
                    found.setdefault(key, []).append(_Candidate(rule, form, match, proofs))
    return found.values()


def _in_order(groups: Iterable[list[_Candidate]]) -> list[_Candidate]:
    """Return the best form of each rule and place, the one that comes first in front.

    What has a gradient comes before what may have none, then the widest match: before the
    ``gather`` in ``gather(...).view(-1)`` all of it.
    """
    best = [min(group, key=_open) for group in groups]
    return sorted(best, key=lambda c: (_asks_for_inference(c), -_width(c.match)))


def _open(found: _Candidate) -> int:
    return sum(proof.basis is Basis.OPEN for proof in found.proofs)


def _asks_for_inference(found: _Candidate) -> bool:
    return any(p.condition.excludes_gradients and p.basis is Basis.OPEN for p in found.proofs)


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


def _site(source: str, flow: FunctionFlow, found: _Candidate, *, portable: bool) -> Site:
    match = found.match
    new: Rewrite | None = None
    problem = ""
    try:
        new = rewrite(source, flow, match, found.form, portable=portable)
    except NotRewritableError as error:
        problem = str(error)
    code = match.evaluation.code
    return Site(
        rule=found.rule,
        form=found.form,
        function=flow.qualname,
        line=code.lineno,
        code=segment(source_lines(source), code),
        lines=_lines(flow, match),
        proofs=found.proofs,
        rewrite=new,
        problem=found.rule.advice or problem,
        operators=frozenset(name for node in match.covered for name in aten_names(node)),
        function_lines=(_first_line(flow.function), flow.function.end_lineno or 0),
    )


def _lines(flow: FunctionFlow, match: Match) -> frozenset[int]:
    computed: list[Node] = [n for n in match.covered if n.op not in {"const", "dtype", "global"}]
    return frozenset().union(*(flow.lines.get(node, frozenset()) for node in computed))
