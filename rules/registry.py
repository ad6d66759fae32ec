"""Finding the rules: one file each, no list to keep."""

from __future__ import annotations

import importlib
import pkgutil
from contextlib import contextmanager
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.rules import ENTRY_POINT_GROUP, cluster, diagnostics, substitutions
from npufix.rules.cluster_diagnostic import ClusterDiagnostic
from npufix.rules.diagnostic import Diagnostic
from npufix.rules.substitution import Substitution

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    Rule = Substitution | Diagnostic | ClusterDiagnostic
    """All have an id, a name, a summary and a table."""

BESIDE = ("_examples", "_look_alikes", "_forms")
"""How files end that stand beside the rule which they belong to, and hold none themselves."""
KINDS = (Substitution, Diagnostic, ClusterDiagnostic)


class RuleError(Exception):
    """A rule that cannot be loaded: the message names it and the reason."""


def all_rules() -> tuple[Substitution, ...]:
    """Return every substitution, as ``every_rule`` does."""
    return tuple(rule for rule in every_rule() if isinstance(rule, Substitution))


def all_diagnostics() -> tuple[Diagnostic, ...]:
    """Return every rule about the run as a whole, as ``every_rule`` does."""
    return tuple(rule for rule in every_rule() if isinstance(rule, Diagnostic))


def all_cluster_diagnostics() -> tuple[ClusterDiagnostic, ...]:
    """Return every rule about the ranks of a job together, as ``every_rule`` does."""
    return tuple(rule for rule in every_rule() if isinstance(rule, ClusterDiagnostic))


@cache
def every_rule() -> tuple[Rule, ...]:
    """Return rules of all kinds, ours and those that installed packages add, ordered by id.

    Raises:
        RuleError: a rule file has no ``RULE``, or two rules share an id.

    """
    rules = [load_rule(name) for name in rule_modules()]
    for point in entry_points(group=ENTRY_POINT_GROUP):
        with _naming(f"the plug-in {point.name} ({point.value})"):
            rules.append(rule_of(point.load()))
    by_id: dict[str, Rule] = {}
    for rule in rules:
        if rule.id in by_id:
            raise RuleError(f"two rules have the id {rule.id}: {by_id[rule.id].name}, {rule.name}")
        by_id[rule.id] = rule
    return tuple(by_id[key] for key in sorted(by_id))


def rule_modules() -> tuple[str, ...]:
    """Return the modules of our rules, one each."""
    return tuple(
        f"{package.__name__}.{info.name}"
        for package in (substitutions, diagnostics, cluster)
        for info in pkgutil.iter_modules(package.__path__)
        if not info.name.endswith(BESIDE)
    )


def load_rule(module: str) -> Rule:
    """Return the rule of one of ``rule_modules``.

    Raises:
        RuleError: it cannot be loaded, or has none.

    """
    with _naming(module):
        loaded = importlib.import_module(module)
    return rule_of(loaded)


@contextmanager
def _naming(name: str) -> Iterator[None]:
    try:
        yield
    except (
        ImportError, SyntaxError, NameError, AttributeError, TypeError, ValueError
    ) as error:  # fmt: skip
        raise RuleError(f"{name} cannot be loaded: {error}") from error


def rule_of(loaded: ModuleType | Rule) -> Rule:
    """Return the rule of a rule file, or of what a plug-in names.

    Raises:
        RuleError: there is none.

    """
    rule = loaded if isinstance(loaded, KINDS) else getattr(loaded, "RULE", None)
    if not isinstance(rule, KINDS):
        kinds = "Substitution, Diagnostic or ClusterDiagnostic"
        name = getattr(loaded, "__name__", loaded)
        raise RuleError(f"{name} has no RULE of type {kinds}")
    return rule


def documentation(rule: Rule) -> str:
    """Return the docstring of the file that a rule lives in: its documentation."""
    return (_module_of(rule).__doc__ or rule.summary).strip()


def file_of(rule: Rule) -> Path:
    """Return the file that a rule lives in."""
    return Path(str(_module_of(rule).__file__)).resolve()


def _module_of(rule: Rule) -> ModuleType:
    written = rule.forms[0].pattern if isinstance(rule, Substitution) else rule.check
    module = importlib.import_module(written.__module__)
    borrowed = getattr(getattr(module, "RULE", None), "id", rule.id) != rule.id
    # the rule of YAML computes what that of Python does: its pattern is imported from there
    return _own_modules().get(rule.id, module) if borrowed else module


@cache
def _own_modules() -> dict[str, ModuleType]:
    """Return the modules of our rules by id."""
    return {load_rule(name).id: importlib.import_module(name) for name in rule_modules()}
