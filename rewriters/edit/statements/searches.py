"""The searches by their names, and what becomes of what they find."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import TYPE_CHECKING

from npufix.rewriters.edit.rewrite import NotRewritableError, Rewrite
from npufix.rewriters.edit.statements.checks import find_checks
from npufix.rewriters.edit.statements.handed_in import find_handed_in
from npufix.rewriters.edit.statements.host_values import find_host_values
from npufix.rewriters.edit.statements.invariants import find_invariants
from npufix.rewriters.edit.statements.proposal import Proposal, changed
from npufix.rewriters.edit.statements.selections import find_selections
from npufix.rewriters.edit.statements.surroundings import Surroundings
from npufix.rewriters.edit.statements.uploads import find_device_waits, find_uploads
from npufix.rewriters.facts.hot_code import is_hot
from npufix.rewriters.graph.modules.names import source_lines
from npufix.rewriters.graph.modules.scopes import Scope, scopes
from npufix.rewriters.graph.modules.syntax import walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rules.substitution import Form, Substitution

    Search = Callable[[Surroundings], Iterator[Proposal]]

SEARCHES: Mapping[str, tuple[Search, str]] = {
    "checks": (find_checks, r"\b(assert|if) .*\b(all|allclose|any|equal|max|mean|min|norm|sum)\("),
    "device_waits": (find_device_waits, r"\bsynchronize\("),
    "handed_in": (
        find_handed_in,
        r"\b(cos|sin|nonzero|arange|repeat_interleave|cumsum|one_hot|tril|triu|diff|sort|outer)\(",
    ),
    "host_values": (
        find_host_values,
        r"\.(item|tolist|cpu|numpy)\(\)|(?<![.\w])(float|int|max|min)\(",
    ),
    "invariants": (find_invariants, r"(?m)^\s+(for|while) "),
    "selections": (find_selections, r"(?s)\[([a-z]\w*)[,\]].*\[\1[,\]]"),
    "uploads": (find_uploads, r"torch\.(as_tensor|from_numpy|tensor)\(|\.copy_\("),
}
"""By name: the search, and what stands in the text of a function that it may find something in."""


@cache
def _wanted(name: str) -> re.Pattern[str]:
    return re.compile(SEARCHES[name][1])


def possible(rules: Sequence[Substitution], scope: Scope, text: str) -> list[Substitution]:
    """Return the rules with a search that may find something in a function: if it runs often."""
    searched = [rule for rule in rules if rule.search and _wanted(rule.search).search(text)]
    return searched if searched and is_hot(scope) else []


def propose(
    flow: FunctionFlow, source: str, rules: Sequence[Substitution]
) -> Iterator[tuple[Substitution, Proposal]]:
    """Yield what the searches of some rules find in a function."""
    here = Surroundings(flow, source_lines(source))
    for rule in rules:
        for proposal in SEARCHES[rule.search][0](here):
            yield rule, proposal


def form_of(rule: Substitution, proposal: Proposal) -> Form | None:
    """Return the form of a rule that a proposal is, ``None`` if it has none such."""
    wanted = (f for f in rule.forms if proposal.form in {"", f.pattern.__name__})
    return next(wanted, None)


def written(source: str, flow: FunctionFlow, proposal: Proposal) -> Rewrite:
    """Return the module with a proposal carried out.

    Raises:
        NotRewritableError: the new text is no Python, or the function is not in it.

    """
    text = changed(source_lines(source), proposal.changes)
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise NotRewritableError(f"the new code does not parse: {error.msg}") from error
    wanted = flow.scope or Scope(flow.function, flow.cls)
    same = [s for s in scopes(tree) if (s.qualname, s.number) == (wanted.qualname, wanted.number)]
    if len(same) != 1:
        raise NotRewritableError("the new function is not where it should be")
    first = min(change.span[0] for change in proposal.changes)
    return Rewrite(text, text, proposal.shown, _line_of(same[0], first))


def _line_of(scope: Scope, first: int) -> int:
    """Return the line of the first statement at a line, or of the last one before."""
    lines = sorted(
        n.lineno
        for n in walk(scope.function)
        if isinstance(n, ast.stmt) and n is not scope.function
    )
    return next((line for line in lines if line >= first), lines[-1])
