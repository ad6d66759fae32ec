"""What a configuration may name, and the error where it names something else."""

from __future__ import annotations

from npufix.rewriters.write.user_error import UserError


class ConfigurationError(UserError):
    """A configuration that cannot be used: ``message`` names file and key, and ``remedy``."""


def rule_names() -> frozenset[str]:
    """Return the ids and names of all rules, in lower case."""
    from npufix.rules.registry import every_rule

    return frozenset(name.lower() for rule in every_rule() for name in (rule.id, rule.name))


def condition_names() -> frozenset[str]:
    """Return what ``--allow`` takes."""
    from npufix.advisor.project.generated import GENERATED_FILE
    from npufix.rules.registry import all_rules

    own = {c.name for rule in all_rules() for form in rule.forms for c in form.conditions}
    return frozenset({*own, GENERATED_FILE})
