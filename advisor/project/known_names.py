"""What a configuration may name, and the error where it names something else."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from npufix.rewriters.write.user_error import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable

_MOST_LIKELY = 3


class ConfigurationError(UserError):
    """A configuration that cannot be used: ``message`` names file and key, and ``remedy``."""


def likely(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean NPU101?`` of what is spelt nearly so, "" if nothing is."""
    by_lower = {one.lower(): one for one in known}
    found = get_close_matches(name.lower(), by_lower, _MOST_LIKELY)
    # NPU1011 is more likely NPU101 than NPU111.
    found.sort(key=lambda one: not name.lower().startswith(one))
    return f" Did you mean {' or '.join(by_lower[one] for one in found)}?" if found else ""


def likely_rule(name: str) -> str:
    """Return the same of a name that no rule has."""
    from npufix.advisor.project.rule_index import known_rules

    return likely(name, [known for rule in known_rules() for known in (rule.id, rule.name)])


def rule_names() -> frozenset[str]:
    """Return the ids and names of all rules, in lower case."""
    from npufix.advisor.project.rule_index import known_rules

    return frozenset(name.lower() for rule in known_rules() for name in (rule.id, rule.name))


def condition_names() -> frozenset[str]:
    """Return what ``--allow`` takes."""
    from npufix.advisor.project.generated import GENERATED_FILE
    from npufix.rules.registry import all_rules

    own = {c.name for rule in all_rules() for form in rule.forms for c in form.conditions}
    return frozenset({*own, GENERATED_FILE})
