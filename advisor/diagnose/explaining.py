"""What the rules say about one line of code: which match, which nearly do, and why."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.advisor.project.known_names import rule_names
from npufix.advisor.project.scanning import Search
from npufix.reports.explanation import LineExplanation, Matching, Parted
from npufix.reports.report import Condition
from npufix.rewriters.edit.site import Basis
from npufix.rewriters.explain import near_misses, refusals
from npufix.rewriters.facts.chosen import is_reference
from npufix.rewriters.facts.occasions import is_hot, occasion
from npufix.rewriters.facts.steps.occasion import Occasion
from npufix.rewriters.graph.dataflow import UnsupportedCodeError
from npufix.rewriters.graph.modules.names import FunctionNode
from npufix.rewriters.graph.modules.scopes import MODULE, scopes, top_level
from npufix.rewriters.graph.modules.stars import read_names
from npufix.rewriters.graph.reader import read_function
from npufix.rewriters.match.off_limits import off_limits
from npufix.rewriters.write.user_error import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npufix.advisor.project.configuration import Configuration
    from npufix.advisor.project.source_tree import SourceFile
    from npufix.rewriters.edit.site import Proof, Site
    from npufix.rewriters.explain import NearMiss, Refusal
    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.modules.names import ModuleNames
    from npufix.rewriters.graph.modules.scopes import Scope
    from npufix.rules.substitution import Substitution

_WAITS = re.compile(
    r"\.(item|tolist|cpu|numpy|nonzero|synchronize|empty_cache|double|any|all)\(|float64"
    r"|\b(torch|th)\.(any|all|nonzero|equal|tensor|unique)\("
)
"""What searches for waits, and for double precision, look at."""
_DOUBLES = re.compile(r"\.double\(|float64")
_OCCASIONS = {
    Occasion.HOST: "it runs on the host, or on tensors of the host",
    Occasion.ASIDE: "no step runs it: it belongs to validation, metrics, debugging or the like, or "
    "keeps what it has computed, or it calls kernels that there are for GPUs alone",
    Occasion.CALL: "it runs once a call, or once when something is built, and not in each step",
}


class LineError(UserError):
    """There is nothing to explain: ``message`` and ``remedy``."""


def explain(
    file: SourceFile, line: int, rules: Sequence[Substitution], configuration: Configuration
) -> LineExplanation:
    """Say which rules match at a line of a file, which nearly do, and what keeps them from it.

    Raises:
        LineError: the file is not Python, or has no such line.

    """
    count = len(file.text.splitlines())
    if not 1 <= line <= count:
        raise LineError(
            f"{file.path} has no line {line}", f"it has {count}; name one of them as FILE:LINE"
        )
    try:
        tree = ast.parse(file.text)
    except (SyntaxError, ValueError, RecursionError) as error:
        at = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        what = error.msg if isinstance(error, SyntaxError) else str(error)
        raise LineError(f"{file.path}{at}: not valid Python: {what}", "correct it first") from error
    search = Search(rules, configuration, lambda _: None, rule_names())
    wanted = search.rules_for(file)
    found = search.file(file)
    lines = _find_asked_lines(tree, line)
    here = [_describe_match(s, "") for s in found.sites if _is_at(s, lines)]
    here += [
        _describe_match(s, f"line {c.line} says {c.text}")
        for s, c in found.hidden
        if _is_at(s, lines)
    ]
    asked = [s for s in found.sites if _is_at(s, lines)] if len(lines) == 1 else []
    left_out = _say_left_out(asked)
    names = read_names(tree, file.neighbour)
    left = [r for r in wanted if r.id not in {m.rule for m in here}]
    hidden = [site for site, _ in found.hidden]
    known = {(s.rule.id, s.line) for s in (*found.sites, *hidden)}
    refused: list[Parted] = []
    near: list[NearMiss] = []
    remarks = [left_out] if left_out else []
    for scope in (inside := _scopes(tree, lines)):
        remark, flow = _flow(scope, names)
        remarks += [remark] if remark else []
        if flow is not None:
            found_here = refusals(file.text, flow, left, lines, known)
            refused += [_describe_refusal(r, remark) for r in found_here]
            others = [r for r in left if r.id not in {x.rule.id for x in found_here}]
            near += near_misses(file.text, flow, others, lines)
            if len(lines) == 1 and not (here or found_here):
                text = file.text.splitlines()[line - 1]
                remarks += filter(None, [_say_silence(scope, flow, text, line)])
    near.sort(key=lambda n: n.agreeing - n.operations)
    return LineExplanation(
        path=str(file.path),
        line=line,
        function=", ".join(s.qualname for s in inside if s.function.name != MODULE),
        remark=" ".join(dict.fromkeys(remarks)),
        matches=here,
        refused=refused,
        near=[_near(n) for n in reversed(near)],
    )


def _find_asked_lines(tree: ast.Module, line: int) -> range:
    """Return the lines that are asked about: all of a definition for its head."""
    for node in ast.walk(tree):
        if isinstance(node, (FunctionNode, ast.ClassDef)):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first <= line < max(node.lineno + 1, node.body[0].lineno):
                return range(first, (node.end_lineno or node.lineno) + 1)
    return range(line, line + 1)


def _scopes(tree: ast.Module, lines: range) -> list[Scope]:
    """Return the functions within some lines, else the innermost around them, else the module."""
    known = list(scopes(tree))
    inside = [s for s in known if lines.start <= _begin(s) and _end(s) < lines.stop]
    around = [s for s in known if _begin(s) <= lines.start and lines.stop <= _end(s) + 1]
    return inside or [max(around, key=_begin, default=top_level(tree))]


def _begin(scope: Scope) -> int:
    function = scope.function
    return min([function.lineno, *(d.lineno for d in function.decorator_list)])


def _end(scope: Scope) -> int:
    return scope.function.end_lineno or scope.function.lineno


def _flow(scope: Scope, names: ModuleNames) -> tuple[str, FunctionFlow | None]:
    """Return the dataflow around a line, and what keeps the tool from changing anything there."""
    reason = off_limits(scope, names)
    remark = f"Nothing in this function is changed: {reason}." if reason else ""
    if not any(full.split(".")[0] == "torch" for full in names.imports.values()):
        remark = "This module does not import torch, so nothing in it is taken for its operators."
    try:
        return remark, read_function(scope.function, names, scope.cls, scope=scope)
    except UnsupportedCodeError as error:
        why = f" ({error})" if str(error) else ""
        return f"The dataflow of this function is not followed{why}.", None
    except RecursionError:
        return "This function has too many operations to follow.", None


def _is_at(site: Site, lines: range) -> bool:
    last = site.line + site.code.count("\n")
    return any(line in lines for line in (*range(site.line, last + 1), *site.lines))


def _describe_match(site: Site, hidden: str) -> Matching:
    return Matching(
        rule=site.rule.id,
        name=site.rule.name,
        line=site.line,
        code=site.code,
        replacement=site.rewrite.text if site.rewrite else "",
        safety=site.safety.value,
        conditions=[_state_proof(proof) for proof in site.proofs],
        not_written=hidden or site.rule.advice or site.problem or _needs_dump(site.rule),
    )


def _needs_dump(rule: Substitution) -> str:
    """Return why a search without a dump is silent about a rule."""
    if not rule.launches_together:
        return ""
    return "only a dump tells whether it pays: npufix diagnose DUMP --source FOLDER finds it"


def _state_proof(proof: Proof) -> Condition:
    basis = Basis.OPEN if proof.basis is Basis.OPEN else Basis.SOURCE
    return Condition(proof.condition.name, proof.condition.text, basis.value)


def _describe_refusal(refusal: Refusal, remark: str) -> Parted:
    rule = refusal.rule
    name = f"{refusal.condition}: " if refusal.condition else ""
    covered = "the match of another rule, or a wider one, covers it"
    reason = refusal.reason or remark or _needs_dump(rule) or covered
    return Parted(rule.id, rule.name, refusal.line, [f"{name}{reason}"])


def _near(near: NearMiss) -> Parted:
    reasons = [f"line {p.line}: expected {p.expected}: {p.found}" for p in near.partings]
    rule = near.rule
    return Parted(rule.id, rule.name, near.line, reasons, near.agreeing, near.operations)


def _say_left_out(sites: Iterable[Site]) -> str:
    """Return why a scan of a folder leaves out, or ranks last, what matches at a line."""
    for site in sites:
        if (why := _OCCASIONS.get(site.occasion)) is not None:
            return f"A scan of the folder leaves this out or ranks it last: {why}."
    return ""


def _say_silence(scope: Scope, flow: FunctionFlow, text: str, line: int) -> str:
    """Return why nothing is said of a wait at a line; "" where there is none."""
    statements = [n for n in ast.walk(scope.function) if isinstance(n, ast.stmt)]
    at = [s for s in statements if s.lineno <= line <= (s.end_lineno or s.lineno)]
    innermost = max(at, key=lambda s: s.lineno, default=None)
    if innermost is None or not _WAITS.search(text):
        return ""
    of_doubles = _DOUBLES.search(text) is not None
    why = _why(scope, flow, innermost, of_doubles=of_doubles)
    return f"Nothing is said of a wait or of double precision here: {why}."


def _why(scope: Scope, flow: FunctionFlow, code: ast.stmt, *, of_doubles: bool) -> str:
    line = code.lineno
    if is_reference(flow):
        return "the function is a reference for what a kernel computes, or stands in for one"
    when = _OCCASIONS.get(occasion(flow, code=code))
    if when is not None:
        return when
    is_known = of_doubles or scope.function.name == MODULE
    if not is_known and not is_hot(scope, flow.names.tree):
        return (
            "nothing in this file says that a step runs the function, neither its name, its class "
            "nor who calls it"
        )
    tests = [
        ast.unparse(n.test)
        for n in ast.walk(scope.function)
        if isinstance(n, ast.If)
        and n.lineno < line
        and n.body[0].lineno <= line <= (n.end_lineno or n.lineno)
    ]
    if tests:
        return (
            f"it runs only as `if {tests[-1]}` decides, which asks a setting, looks for an error "
            "or comes now and then, or the host waits there anyway"
        )
    return (
        "what is read lies on the host as far as the source shows, is one number, or is needed by "
        "what comes next, as before memory is freed, or for the error that a function ends with"
    )
