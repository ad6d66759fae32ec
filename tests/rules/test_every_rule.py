"""Every rule passes what ``npufix rules test`` runs."""

from __future__ import annotations

import ast
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import pytest

from npufix.advisor.rules_test.running import COMPUTING, READING, run
from npufix.advisor.rules_test.subject import subject_of
from npufix.rules import registry
from npufix.rules.registry import RuleError, every_rule, file_of, rule_of
from npufix.rules.substitution import Substitution

if TYPE_CHECKING:
    from npufix.rules.registry import Rule

_SEEDS = 2
"""Of the four that ``npufix rules test`` tries."""
FOLDERS = {"affinity": "", "fusion": "", "settings": "diagnostics", "cluster": "cluster"}
READ = [
    pytest.param(rule, check, id=f"{rule.id}-{check}")
    for rule in every_rule()
    for check in READING[type(rule)]
]
COMPUTED = [pytest.param(r, id=r.id) for r in every_rule() if isinstance(r, Substitution)]


@pytest.mark.parametrize(("rule", "check"), READ)
def test_a_rule_keeps_its_promises(rule: Rule, check: str) -> None:
    (outcome,) = run(subject_of(rule), [check])
    assert outcome.problems == []


@pytest.mark.parametrize("rule", COMPUTED)
def test_a_replacement_computes_the_same(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """With as many rounds as each slip must show in, which the check of mistakes asks for.

    One test for all checks of a rule, which share what its patterns do.
    """
    pytest.importorskip("torch")
    from npufix.advisor.rules_test import computing

    monkeypatch.setattr(computing, "SEEDS", computing.SEEDS[:_SEEDS])
    outcomes = list(run(subject_of(rule), COMPUTING))
    assert {o.check: o.problems for o in outcomes if o.problems} == {}


def test_rules_are_in_the_order_of_their_ids_and_in_their_folders() -> None:
    rules = every_rule()
    assert [rule.id for rule in rules] == sorted({rule.id for rule in rules})
    for rule in rules:
        kind = "substitutions" if isinstance(rule, Substitution) else FOLDERS[rule.table]
        assert file_of(rule).parent.name == (kind or "diagnostics"), rule.id


def test_a_file_without_a_rule_is_an_error() -> None:
    with pytest.raises(RuleError, match="has no RULE"):
        rule_of(ast)


def test_a_plug_in_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("theirs", "no_such_module", "npufix.rules")
    monkeypatch.setattr(registry, "entry_points", lambda group: [broken] if group else [])
    with pytest.raises(RuleError, match=r"plug-in theirs \(no_such_module\) cannot be loaded"):
        every_rule.__wrapped__()
