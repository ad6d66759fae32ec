"""The changes of one module, made in its text and its syntax tree."""

from __future__ import annotations

import ast
import dataclasses
import os
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from npufix.advisor.runtime.calls import attention
from npufix.advisor.runtime.calls.questions import FITS_MORE, NAME
from npufix.advisor.runtime.source.alignment import align
from npufix.advisor.runtime.source.guarding import (
    CallQuestion,
    SitePlan,
    ask,
    plan,
    question,
    with_import,
)
from npufix.advisor.runtime.source.places import NewImport, RulePlace, place_key
from npufix.advisor.runtime.source.proving import describe_verdict, why_unproven

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from npufix.advisor.runtime.source.proving import Prover
    from npufix.advisor.runtime.source.selection import RuleSelection
    from npufix.rewriters.edit.site import Rewrite, Site
    from npufix.rewriters.verification.verdict import Verdict
    from npufix.rules.substitution import Substitution


@dataclass(frozen=True, slots=True)
class ChangedModule:
    """A module after its changes."""

    text: str
    """The new source; empty if nothing changed."""
    places: tuple[RulePlace, ...]
    imports: tuple[NewImport, ...] = ()
    tree: ast.Module | None = None
    """The new module with the positions of the old one; ``None`` if nothing changed."""


def change(
    file: Path,
    text: str,
    selection: RuleSelection,
    neighbour: Callable[[str], str | None],
    prover: Prover | None = None,
) -> ChangedModule:
    """Make the changes of a module; ``neighbour`` returns the text of one of the same package.

    Raises:
        SyntaxError: it is no Python.

    """
    from npufix.advisor.project.applying import apply_in_order

    path = os.fspath(file)
    plans = {site: plan(site, selection) for site in _sites(text, selection, neighbour)}
    reasons = _reasons(text, plans)
    verdicts: dict[Site, Verdict] = {}
    if prover is not None:
        verdicts = prover.verdicts(file, text, [s for s in plans if not reasons[s]], plans)
        reasons |= {site: why for site, v in verdicts.items() if (why := why_unproven(v))}
    before = ast.parse(text)
    questions: dict[Site, CallQuestion | None] = {}

    def write(site: Site, same: Site, new: Rewrite) -> str:
        questions[site] = question(same, plans[site], place_key(path, site.rule.id, site.line))
        return new.on_npu or new.portable

    while True:
        questions.clear()
        chosen = [site for site in plans if not reasons[site]]
        new_text, failed = apply_in_order(text, chosen, neighbour, write)
        reasons |= dict.fromkeys(failed, "another change in the same function is in the way")
        after = ast.parse(new_text)
        lost = ask(after, [q for q in questions.values() if q is not None])
        without = [s for s, q in questions.items() if q in lost and plans[s].conditions]
        if not without:
            break
        for site in without:  # what nothing asks for is not known
            reasons[site] = f"not proven: {', '.join(plans[site].conditions)}"
    asking = {site for site, q in questions.items() if q is not None and q not in lost}
    attended = _ask_attentions(path, after, plans, selection)
    reasons |= dict.fromkeys(attended, "")
    said = (attention.CONDITION,)
    allowed = selection.allows(attention.RULE, attention.CONDITION)
    plans |= dict.fromkeys(attended, SitePlan(assumed=said) if allowed else SitePlan(by_name=said))
    places = tuple(
        _place(site, reasons[site], chosen, site in asking | attended, verdicts.get(site))
        for site, chosen in plans.items()
    )
    if new_text == text and not attended:
        return ChangedModule("", places)
    names = [*([NAME] if asking else []), *([attention.NAME] if attended else [])]
    after = with_import(after, names)
    imports = tuple(_new_imports(before, after))
    return ChangedModule(new_text, places, imports, align(before, after))


def _sites(
    text: str, selection: RuleSelection, neighbour: Callable[[str], str | None]
) -> Iterator[Site]:
    from npufix.rewriters.find import find_sites
    from npufix.rules.registry import all_rules

    wanted = [r for r in all_rules() if selection.wants(r) and not r.launches_together]
    return find_sites(text, [_for_calls(rule) for rule in wanted], None, neighbour)


@cache
def _for_calls(rule: Substitution) -> Substitution:
    """Return a rule that prefers, of forms that call for a question, the one that fits more calls.

    In a patch the plainer one is better: there the user answers, once for all calls.
    """
    names = [{condition.name for condition in form.conditions} for form in rule.forms]
    wide = [form for form, asked in zip(rule.forms, names, strict=True) if asked & FITS_MORE]
    if not wide:
        return rule
    others = tuple(form for form in rule.forms if form not in wide)
    return dataclasses.replace(rule, forms=(*wide, *others))


def _reasons(text: str, plans: Mapping[Site, SitePlan]) -> dict[Site, str]:
    """Return why each place is not to be changed, "" for those that are."""
    from npufix.rewriters.match.suppressions import read_suppressions

    comments = read_suppressions(text) if plans else ()
    reasons = {}
    for site, chosen in plans.items():
        hidden = next((c for c in comments if c.hides(site.rule, site.own_lines)), None)
        said = f"'{hidden.text}' in line {hidden.line}" if hidden else ""
        reasons[site] = said or _why(site, chosen)
    return reasons


def _ask_attentions(
    path: str, module: ast.Module, sites: Iterable[Site], selection: RuleSelection
) -> set[Site]:
    """Let the eager attentions begin with the question, if the user vouches for it."""
    done: set[Site] = set()
    rule = attention.RULE
    if not (selection.is_named(rule) or selection.allows(rule, attention.CONDITION)):
        return done
    for site in sites:
        if site.rule.id != attention.RULE:
            continue
        function = attention.find(module, site.function)
        if function is not None:
            attention.ask_first(function, place_key(path, site.rule.id, site.line))
            done.add(site)
    return done


def _why(site: Site, chosen: SitePlan) -> str:
    """Return why a place is not to be changed, "" if it is."""
    if site.rewrite is None or site.rule.advice:
        return site.problem or site.rule.advice or "it cannot be written"
    return f"not proven: {', '.join(chosen.open)}" if chosen.open else ""


def _place(
    site: Site,
    why_not: str,
    chosen: SitePlan,
    counted: bool,  # noqa: FBT001 - of five
    verdict: Verdict | None,
) -> RulePlace:
    return RulePlace(
        rule=site.rule.id,
        name=site.rule.name,
        line=site.line,
        function=site.function,
        code=site.code,
        replacement=site.rewrite.text if site.rewrite else "",
        why_not=why_not,
        missing=chosen.open,
        asked=chosen.conditions,
        vouched=chosen.assumed,
        by_name=chosen.by_name,
        unmeasured=chosen.unmeasured,
        counted=counted and not why_not,
        verdict="" if verdict is None else describe_verdict(verdict),
    )


def _new_imports(before: ast.Module, after: ast.Module) -> Iterator[NewImport]:
    """Yield what the new module imports at its top level and the old one does not."""
    known = set(_imports(before))
    yield from (one for one in dict.fromkeys(_imports(after)) if one not in known)


def _imports(module: ast.Module) -> Iterator[NewImport]:
    for statement in module.body:
        block = statement.body if isinstance(statement, ast.Try) else [statement]
        for node in block:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    yield NewImport(name, alias.name)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                for alias in node.names:
                    yield NewImport(alias.asname or alias.name, node.module or "", alias.name)
