"""Finding the places of a source file that a rule applies to."""

from __future__ import annotations

import ast
import dataclasses
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING

from npufix.rewriters.edit.edit import segment
from npufix.rewriters.edit.layout import use_width
from npufix.rewriters.edit.loops.advice.sentences import SENTENCES
from npufix.rewriters.edit.loops.find import find_loops
from npufix.rewriters.edit.loops.given.reading import may_hold_loops
from npufix.rewriters.edit.rewrite import NotRewritableError, rewrite
from npufix.rewriters.edit.site import Basis, Proof, Rewrite, Site, leave_out_covered
from npufix.rewriters.edit.statements.programs.configured import may_have_sites
from npufix.rewriters.edit.statements.searches import (
    OF_CONFIGURATIONS,
    OF_WAITS,
    form_of,
    possible,
    possible_in_module,
    propose,
    write,
)  # fmt: skip
from npufix.rewriters.edit.statements.surroundings import TooLargeError
from npufix.rewriters.facts.chosen import (
    find_choice,
    is_reference,
    is_written,
    may_hand_on,
    only_shows,
)
from npufix.rewriters.facts.occasions import is_hot, occasion
from npufix.rewriters.facts.recorded_facts import RecordedFacts, aten_names
from npufix.rewriters.facts.site_facts import SourceFacts
from npufix.rewriters.graph.dataflow import UnsupportedCodeError
from npufix.rewriters.graph.modules.names import FunctionNode, source_lines
from npufix.rewriters.graph.modules.scopes import MODULE, top_level
from npufix.rewriters.graph.modules.stars import read_names
from npufix.rewriters.graph.reader import read_function
from npufix.rewriters.graph.special import Op
from npufix.rewriters.match.matching import find, pattern_of
from npufix.rewriters.match.off_limits import BY_HAND, off_limits
from npufix.rewriters.match.prefilter import words_for
from npufix.rewriters.match.vocabulary import Vocabulary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from npufix.rewriters.edit.statements.proposal import Proposal
    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.nodes import Node
    from npufix.rewriters.match.matching import Match
    from npufix.rewriters.match.recorded_call import RecordedCall
    from npufix.rules.substitution import Form, Substitution

# Each change of a function reads it again: so many expressions are read for the changes of one.
_MOST_EFFORT = 60_000
_PROOFS_LIKE_A_CHANGE = 20
_PARSED_LIKE_A_CHANGE = 10
_LOOKS_LIKE_A_CHANGE = 100
_ELSEWHERE = "a helper computes something else on devices of other makers"
_WHOLE_LOOPS = frozenset({"experts", "rows-of-masks"})
"""Searches whose places are loops, wherever in them they point."""
_ATTENTIONS = frozenset({"attention-in-pieces", "attention-with-bias", "eager-attention"})
_NOT_TRIED = "the function holds so much that this change was not tried"


def find_sites(  # noqa: PLR0913 - what is looked for, and where
    source: str,
    rules: Sequence[Substitution],
    recorded: Mapping[int, Sequence[RecordedCall]] | None = None,
    neighbour: Callable[[str], str | None] | None = None,
    *,
    with_text: bool = True,
    chosen_too: bool = False,
    cut: Callable[[str], None] | None = None,
    width: int | None = None,
) -> Iterator[Site]:
    """Yield the sites of a module in the order of its lines.

    ``neighbour`` returns the text of a module of the same package (``.configuration_llama``).
    ``recorded`` holds the operator calls of a profile of *this very* source, by line; without it
    only the source itself can prove a condition. Without ``with_text`` the rewrites are only tried
    out: their texts stay empty, which takes half of the time. With ``chosen_too`` those come
    as well beside which the author calls the fused operator in another branch or function. ``cut``
    is told of a function that holds so much that not all of it was looked at. ``width`` is how long
    a line may be; of ``None`` the file tells.

    Raises:
        SyntaxError: the source is not Python.

    """
    if not may_have_sites(source):
        return
    tree = ast.parse(source)
    names = read_names(tree, neighbour)
    if not any(full.split(".")[0] == "torch" for full in names.imports.values()):
        # Code for another library with functions of the same names, or a configuration.
        rules = [rule for rule in rules if rule.search in OF_CONFIGURATIONS]
    vocabulary = Vocabulary(words_for(tuple(rules)), source, names, tree)
    searches = possible_in_module(rules, source)
    patterns = [rule for rule in rules if not rule.search]
    over_rows = [rule for rule in rules if rule.search == "loops"]
    sites: list[Site] = []
    with use_width(width):
        for scope in (*vocabulary.scopes, top_level(tree)):
            text = vocabulary.text(scope)
            words = vocabulary.meant_in(scope)
            here = vocabulary.possible(patterns, scope)
            here += possible(searches, scope, words, text, tree)
            here += over_rows if may_hold_loops(scope.function, text, words) else []
            closed = off_limits(scope, names) if here else ""
            if closed == BY_HAND:
                here = [rule for rule in here if rule.search in OF_WAITS]
            if not here or (closed and closed != BY_HAND):
                continue
            try:
                flow = read_function(scope.function, names, scope.cls, scope=scope)
                effort = _Effort(len(flow.evaluations))
                looking = _Effort(len(flow.evaluations))
                sites += _sites_in(
                    source, flow, here, recorded or {}, effort, looking,
                    with_text=with_text, chosen_too=chosen_too,
                )  # fmt: skip
                too_large = min(effort.left, looking.left) < 0
            except UnsupportedCodeError:
                continue
            except RecursionError:  # thousands of operations, one computed from the other
                too_large = True
            if too_large and cut is not None:
                cut(scope.qualname)
    kept = leave_out_covered(sites)
    hot = cache(lambda name: any(s.qualname == name and is_hot(s, tree) for s in vocabulary.scopes))
    for site in sorted(kept, key=lambda site: (site.line, site.rule.id)):
        yield dataclasses.replace(site, is_hot=hot(site.function.partition(".<locals>")[0]))


def _sites_in(  # noqa: PLR0913, PLR0917 - what is looked for, and where
    source: str,
    flow: FunctionFlow,
    rules: Sequence[Substitution],
    recorded: Mapping[int, Sequence[RecordedCall]],
    effort: _Effort,
    looking: _Effort,
    *,
    with_text: bool,
    chosen_too: bool,
) -> Iterator[Site]:
    """Yield the sites of a function; of two changes of one line the wider one.

    ``effort`` is that of the patterns, ``looking`` that of what no pattern is for.
    """
    patterns = [rule for rule in rules if not rule.search]
    matched = list(
        _sites_of(
            source, flow, patterns, recorded, effort, with_text=with_text, chosen_too=chosen_too
        )
    )
    shown = not chosen_too and _is_only_shown(source, flow)
    loops = [rule for rule in rules if rule.search == "loops" and flow.function.name != MODULE]
    loops = [] if shown else loops
    over_rows = list(_loop_sites(source, flow, loops, looking, with_text=with_text))
    # What is written for all rounds at once says more than what is written for one of them.
    whole = [site.lines for site in over_rows if site.rewrite is not None]
    matched = [
        site
        for site in matched
        if site.rule.table == "fusion" or not any(site.lines <= lines for lines in whole)
    ]
    yield from matched
    lines = frozenset().union(*(site.lines for site in matched if site.rewrite))
    if shown:
        return
    searched = [rule for rule in rules if rule.search and rule.search != "loops"]
    found = list(_propose(source, flow, searched, looking, with_text=with_text))
    # what a loop is says more than that it is one; what is to be done in it is another matter
    told = {s.line: s.rule.search for s in found if s.rewrite is None}
    told |= {s.line: s.rule.search for s in found if s.rule.search in _WHOLE_LOOPS}
    # of ``x[mask] = v.expand(int(mask.sum()))`` no size is left either
    gone = [s for s in matched if s.rewrite and "NonZero" in s.rule.replaces]
    gone += (s for s in over_rows if s.rewrite)
    fits = frozenset().union(*(s.lines for s in matched if s.rule.table == "fusion"))
    # where others say more
    less = {"host-values": {n for s in gone for n in s.lines}, "attention-in-pieces": fits}
    found = [s for s in found if s.line not in less.get(s.rule.search, ())]
    found = _without_products_of_attention(matched, found)
    found += (
        site
        for site in over_rows
        if site.rewrite
        or not any(told.get(n) in _WHOLE_LOOPS or n == site.line for n in told.keys() & site.lines)
    )
    # what is written for no pattern runs on all devices
    found = [s.left_to_hand(_ELSEWHERE) if flow.computes_for_npu(s.lines) else s for s in found]
    # ``if mask.any(): x[mask] = 0``: the test goes, whatever becomes of the assignment. A loop only
    # stays where a pattern changes its own text, not where the pattern's value passes through it.
    changed = {site.line for site in matched if site.rewrite}
    yield from (
        site
        for site in found
        if site.rewrite is None
        or site.rule.search == "checks"
        or not site.lines & (changed if site.rule.search == "loops" else lines)
    )


def _without_products_of_attention(matched: Iterable[Site], found: list[Site]) -> list[Site]:
    """Return what searches found; the two einsums of an attention go with it."""
    if any(site.rule.name in _ATTENTIONS for site in (*matched, *found)):
        return [site for site in found if site.rule.search != "einsum-products"]
    return found


def _propose(
    source: str,
    flow: FunctionFlow,
    rules: Sequence[Substitution],
    effort: _Effort,
    *,
    with_text: bool,
) -> Iterator[Site]:
    """Yield what the searches of rules find in a function."""
    may_look = partial(effort.spend, _LOOKS_LIKE_A_CHANGE)
    proposals = propose(flow, source, rules, may_look)
    for rule, found in _until_too_large(proposals):
        new: Rewrite | None = None
        problem = found.advice
        try:
            if found.changes and effort.spend(_PARSED_LIKE_A_CHANGE):
                new = write(source, flow, found, with_text=with_text)
            elif found.changes:
                problem = _NOT_TRIED
        except NotRewritableError as error:
            problem = str(error)
        form, code = form_of(rule, found), found.code
        if form is None:
            continue
        bases = {True: Basis.SOURCE, False: Basis.OPEN}
        conditions = form.conditions if new is not None else ()
        yield dataclasses.replace(
            _make_site(source, flow, rule, form, code),
            proofs=tuple(Proof(c, bases[c.name in found.proven]) for c in conditions),
            rewrite=new,
            problem=rule.advice or problem,
        )


def _until_too_large(
    proposals: Iterator[tuple[Substitution, Proposal]],
) -> Iterator[tuple[Substitution, Proposal]]:
    """Yield proposals until the function has shown to hold too much."""
    with suppress(TooLargeError):
        yield from proposals


def _is_only_shown(source: str, flow: FunctionFlow) -> bool:
    """Tell whether a function is there to be read, or for whoever has no kernels beside it."""
    beside_kernels = _mentions_npu(source) or "triton.jit" in source
    return is_reference(flow) if beside_kernels else only_shows(flow)


def _loop_sites(
    source: str,
    flow: FunctionFlow,
    rules: Sequence[Substitution],
    effort: _Effort,
    *,
    with_text: bool,
) -> Iterator[Site]:
    """Yield the loops over rows of a function."""
    for rule in rules:
        form = rule.forms[0]
        known = {condition.name: condition for condition in form.conditions}
        loops = find_loops(source, flow, with_text=with_text, may_look=partial(effort.spend, 1))
        for found in loops:
            yield dataclasses.replace(
                _make_site(source, flow, rule, form, found.code),
                lines=found.lines,
                proofs=tuple(Proof(known[name], Basis.OPEN) for name in found.conditions),
                rewrite=found.rewrite,
                problem=found.problem,
                says_what_to_do=found.problem in SENTENCES,
            )


def _make_site(
    source: str, flow: FunctionFlow, rule: Substitution, form: Form, code: ast.expr | ast.stmt
) -> Site:
    """Return a site of some code that no pattern was matched for."""
    return Site(
        rule=rule,
        form=form,
        function=flow.qualname,
        line=code.lineno,
        code=segment(source_lines(source), code),
        lines=frozenset(range(code.lineno, (code.end_lineno or code.lineno) + 1)),
        proofs=(),
        rewrite=None,
        problem="",
        operators=frozenset(),
        occasion=occasion(flow, code=code),
        function_lines=(_first_line(flow.function), flow.function.end_lineno or 0),
    )


def _first_line(function: FunctionNode) -> int:
    return min([function.lineno, *(d.lineno for d in function.decorator_list)])


@lru_cache(maxsize=1)
def _mentions_npu(source: str) -> bool:
    return "npu" in source.lower().replace("input", "")


class _Effort:
    """What may still be done about one function: some work grows with the square of its size."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.left = _MOST_EFFORT

    def spend(self, share: int) -> bool:
        """Tell whether there is enough left to look at one expression of ``share`` again."""
        self.left -= self.size // share
        return self.left >= 0


def _sites_of(  # noqa: PLR0913 - same
    source: str,
    flow: FunctionFlow,
    rules: Sequence[Substitution],
    recorded: Mapping[int, Sequence[RecordedCall]],
    effort: _Effort,
    *,
    with_text: bool,
    chosen_too: bool,
) -> Iterator[Site]:
    """Yield the sites of a function, one for each place: the widest that can be written."""
    taken: set[int] = set()
    left: list[tuple[_Candidate, Site]] = []
    for group in _in_order(_candidates(source, flow, rules, recorded, effort, chosen_too)):
        if id(group[0].match.evaluation.code) in taken:
            continue
        best, site = _best_site(source, flow, group, effort, with_text=with_text)
        if site.rewrite is not None and not site.rule.advice:
            taken |= _codes(flow, best.match)
            yield site
        elif not best.rule.needs_whole:
            left.append((best, site))
    for best, site in left:  # what is only pointed at makes room for what is written
        if id(best.match.evaluation.code) not in taken:
            taken |= _codes(flow, best.match)
            yield site


def _best_site(
    source: str,
    flow: FunctionFlow,
    group: Sequence[_Candidate],
    effort: _Effort,
    *,
    with_text: bool,
) -> tuple[_Candidate, Site]:
    """Return the first of several forms that can be written, else the first one."""
    sites = []
    for candidate in group:
        sites.append((candidate, _site(source, flow, candidate, effort, with_text=with_text)))
        if sites[-1][1].rewrite is not None or candidate.rule.advice:
            return sites[-1]
    return sites[0]


@dataclass(frozen=True, slots=True)
class _Candidate:
    rule: Substitution
    form: Form
    match: Match
    proofs: tuple[Proof, ...]


def _candidates(  # noqa: PLR0913, PLR0917 - same
    source: str,
    flow: FunctionFlow,
    rules: Sequence[Substitution],
    recorded: Mapping[int, Sequence[RecordedCall]],
    effort: _Effort,
    chosen_too: bool,  # noqa: FBT001 - one call
) -> Iterable[list[_Candidate]]:
    """Return what each rule may do at each place, one for each form that fits."""
    found: dict[tuple[str, int], list[_Candidate]] = {}
    may_be_chosen = _mentions_npu(source) or ".rms_norm(" in source or is_reference(flow)
    may_be_chosen = may_be_chosen or may_hand_on(flow)
    for rule in rules:
        for form in rule.forms:
            for match in find(pattern_of(form.pattern), flow):
                if not effort.spend(_PROOFS_LIKE_A_CHANGE):
                    return found.values()
                fused = None if chosen_too else form
                if is_written(match, form) or (may_be_chosen and find_choice(flow, match, fused)):
                    continue
                proofs = _prove(form, flow, match, recorded)
                if proofs is not None and not (form.only_proven and any(map(_is_open, proofs))):
                    key = (rule.id, id(match.evaluation.code))
                    found.setdefault(key, []).append(_Candidate(rule, form, match, proofs))
    return found.values()


def _in_order(groups: Iterable[list[_Candidate]]) -> list[list[_Candidate]]:
    """Return the forms of each rule and place, the best first, and the first place in front.

    What has a gradient comes before what may have none, then the widest match: before the
    ``gather`` in ``gather(...).view(-1)`` all of it.
    """
    found = [sorted(group, key=_open) for group in groups]
    return sorted(found, key=lambda g: (_asks_for_inference(g[0]), -len(g[0].match.covered)))


def _open(found: _Candidate) -> int:
    return sum(map(_is_open, found.proofs))


def _is_open(proof: Proof) -> bool:
    return proof.basis is Basis.OPEN


def _asks_for_inference(found: _Candidate) -> bool:
    return any(p.condition.excludes_gradients and p.basis is Basis.OPEN for p in found.proofs)


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
        if not holds and condition.holds(profile) is not holds:
            # A name that speaks against it counts less than what the run has shown.
            basis, holds = Basis.PROFILE, condition.holds(profile)
        if holds is False:
            return None
        proofs.append(Proof(condition, basis if holds else Basis.OPEN))
    return tuple(proofs)


def _site(
    source: str, flow: FunctionFlow, found: _Candidate, effort: _Effort, *, with_text: bool
) -> Site:
    match = found.match
    new: Rewrite | None = None
    problem = ""
    try:
        if effort.spend(1):
            new = rewrite(source, flow, match, found.form, with_text=with_text)
        else:
            problem = _NOT_TRIED
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
        occasion=occasion(flow, match),
    )


def _lines(flow: FunctionFlow, match: Match) -> frozenset[int]:
    computed: list[Node] = [n for n in match.covered if n.op not in {Op.CONST, Op.DTYPE, Op.GLOBAL}]
    return frozenset().union(*(flow.lines.get(node, frozenset()) for node in computed))
