"""The searches by their names, and what becomes of what they find."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from npufix.rewriters.edit.rewrite import NotRewritableError, Rewrite
from npufix.rewriters.edit.statements.attention_weights import find_unused_weights
from npufix.rewriters.edit.statements.checks import find_checks
from npufix.rewriters.edit.statements.columns import find_columns, find_index_lists
from npufix.rewriters.edit.statements.experts import find_expert_loops, find_routers
from npufix.rewriters.edit.statements.handed_in import find_handed_in
from npufix.rewriters.edit.statements.host_values import find_host_values
from npufix.rewriters.edit.statements.invariants import find_invariants
from npufix.rewriters.edit.statements.optimizers import (
    find_clipping,
    find_data_loaders,
    find_early_reductions,
    find_optimizers,
)
from npufix.rewriters.edit.statements.products import find_einsum_products
from npufix.rewriters.edit.statements.proposal import Proposal, changed
from npufix.rewriters.edit.statements.selections import find_selections
from npufix.rewriters.edit.statements.surroundings import Surroundings
from npufix.rewriters.edit.statements.uploads import find_device_waits, find_uploads
from npufix.rewriters.edit.statements.vendor_operators import (
    RESIDUAL,
    find_flash_attention,
    find_vendor_operators,
    is_vendor_name,
)
from npufix.rewriters.facts.occasions import is_hot
from npufix.rewriters.graph.modules.names import source_lines
from npufix.rewriters.graph.modules.scopes import MODULE, Scope, scopes
from npufix.rewriters.graph.modules.syntax import walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rules.substitution import Form, Substitution


@dataclass(frozen=True, slots=True)
class Search:
    """What finds statements that no pattern of one value can."""

    find: Callable[[Surroundings], Iterator[Proposal]]
    words: str
    """An expression for what stands in the text of a function that it may find something in."""
    twice: bool = False
    """What ``words`` names stands there twice or more."""
    called: Callable[[str], bool] | None = None
    """Or a function of such a name is called there."""
    hot_only: bool = False
    """It is worth it only where code runs in every step."""


_CALLED = re.compile(r"([\w.]+)\s*\(")
SEARCHES: Mapping[str, Search] = {
    "attention-weights": Search(find_unused_weights, r"(?i)att|mha"),
    "checks": Search(
        find_checks,
        r"\b(assert|if) .*\b(all|allclose|any|equal|max|mean|min|norm|sum)\(",
        hot_only=True,
    ),
    "clipping": Search(find_clipping, r"clip_grad_norm_\("),
    "columns": Search(find_columns, r"([\w.]+)\[[^\[\]\n]*\d\]", twice=True, hot_only=True),
    "data-loaders": Search(find_data_loaders, r"DataLoader\("),
    "device-waits": Search(find_device_waits, r"\bsynchronize\(", hot_only=True),
    "early-reductions": Search(find_early_reductions, r"\.backward\("),
    "einsum-products": Search(find_einsum_products, r"\beinsum\("),
    "expert-loops": Search(find_expert_loops, r"(?i)\bfor .*expert|\bfor [^\n]*\n(.*\n)*.*expert"),
    "expert-routers": Search(find_routers, r"(?s)softmax.*topk|topk.*softmax"),
    "flash-attention": Search(find_flash_attention, r"flash_att"),
    "handed-in": Search(
        find_handed_in,
        r"\b(cos|sin|nonzero|arange|repeat_interleave|cumsum|one_hot|tril|triu|diff|sort|outer)\(",
        hot_only=True,
    ),
    "host-values": Search(
        find_host_values,
        r"\.(item|tolist|cpu|numpy)\(\)|(?<![.\w])(float|int|max|min)\(",
        hot_only=True,
    ),
    "index-lists": Search(find_index_lists, r"\[\d+,[ \d,]*\d,?\s*\]\s*[,\]]"),
    "invariants": Search(find_invariants, r"(?m)^\s+(for|while) ", hot_only=True),
    "optimizers": Search(find_optimizers, r"(?i)optim|Adam|SGD"),
    "selections": Search(find_selections, r"\[([a-z]\w*)[,\]]", twice=True, hot_only=True),
    "uploads": Search(
        find_uploads, r"torch\.(as_tensor|from_numpy|tensor)\(|\.copy_\(", hot_only=True
    ),
    "vendor-operators": Search(find_vendor_operators, RESIDUAL, called=is_vendor_name),
}
"""By name, as rules say it."""


@cache
def _words(name: str) -> re.Pattern[str]:
    return re.compile(SEARCHES[name].words)


def possible(rules: Sequence[Substitution], scope: Scope, text: str) -> list[Substitution]:
    """Return the rules with a search that may find something in a function."""
    searched = [rule for rule in rules if rule.search in SEARCHES]
    if not is_hot(scope):
        searched = [rule for rule in searched if not SEARCHES[rule.search].hot_only]
    return [rule for rule in searched if _may_find(rule.search, text)]


def _may_find(name: str, text: str) -> bool:
    search = SEARCHES[name]
    if search.twice:
        named = _words(name).findall(text)
        return len(set(named)) < len(named)
    if _words(name).search(text) is not None:
        return True
    return search.called is not None and any(map(search.called, set(_CALLED.findall(text))))


def propose(
    flow: FunctionFlow, source: str, rules: Sequence[Substitution]
) -> Iterator[tuple[Substitution, Proposal]]:
    """Yield what the searches of some rules find in a function."""
    here = Surroundings(flow, source_lines(source))
    for rule in rules:
        for proposal in SEARCHES[rule.search].find(here):
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
    first = min(change.span[0] for change in proposal.changes)
    if flow.function.name == MODULE:
        return Rewrite(text, text, proposal.shown, first)
    wanted = flow.scope or Scope(flow.function, flow.cls)
    same = [s for s in scopes(tree) if (s.qualname, s.number) == (wanted.qualname, wanted.number)]
    if len(same) != 1:
        raise NotRewritableError("the new function is not where it should be")
    return Rewrite(text, text, proposal.shown, _line_of(same[0], first))


def _line_of(scope: Scope, first: int) -> int:
    """Return the line of the first statement at a line, or of the last one before."""
    lines = sorted(
        n.lineno
        for n in walk(scope.function)
        if isinstance(n, ast.stmt) and n is not scope.function
    )
    return next((line for line in lines if line >= first), lines[-1])
