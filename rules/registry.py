"""Finding the rules: one file each, no list to keep."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from npufix.rules import affinity, fusion
from npufix.rules.substitution import Substitution

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

_ENTRY_POINT_GROUP = "npufix.rules"


class RuleError(Exception):
    """A rule that cannot be loaded: the message names it and the reason."""


@cache
def all_rules() -> tuple[Substitution, ...]:
    """Return every rule, ours and those that installed packages add, ordered by id.

    Raises:
        RuleError: a rule file has no ``RULE``, or two rules share an id.

    """
    rules = [_rule(module) for module in _modules()]
    for point in entry_points(group=_ENTRY_POINT_GROUP):
        loaded = point.load()
        rules.append(_rule(loaded) if hasattr(loaded, "RULE") else loaded)
    by_id: dict[str, Substitution] = {}
    for rule in rules:
        if rule.id in by_id:
            raise RuleError(f"two rules have the id {rule.id}: {by_id[rule.id].name}, {rule.name}")
        by_id[rule.id] = rule
    return tuple(by_id[key] for key in sorted(by_id))


def _modules() -> Iterator[ModuleType]:
    for package in (affinity, fusion):
        for info in pkgutil.iter_modules(package.__path__):
            yield importlib.import_module(f"{package.__name__}.{info.name}")


def _rule(module: ModuleType) -> Substitution:
    rule = getattr(module, "RULE", None)
    if not isinstance(rule, Substitution):
        raise RuleError(f"{module.__name__} has no RULE of type Substitution")
    return rule


def documentation(rule: Substitution) -> str:
    """Return the docstring of the file that a rule lives in: its documentation."""
    module = importlib.import_module(rule.forms[0].pattern.__module__)
    return (module.__doc__ or rule.summary).strip()
