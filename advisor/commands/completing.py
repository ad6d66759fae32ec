"""What a shell completes: ids of rules and names of conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click
    from click.shell_completion import CompletionItem


def rule_ids(
    context: click.Context,  # noqa: ARG001 - click's interface
    parameter: click.Parameter,  # noqa: ARG001 - same
    incomplete: str,
) -> list[CompletionItem]:
    """Return the rules whose id, or name, begins like that; several are parted by commas."""
    from click.shell_completion import CompletionItem

    from npufix.rules.registry import every_rule

    before, comma, last = incomplete.rpartition(",")
    found: list[CompletionItem] = []
    for rule in every_rule():
        if rule.id.lower().startswith(last.lower()):
            found.append(CompletionItem(f"{before}{comma}{rule.id}", help=rule.name))
        elif last and rule.name.startswith(last.lower()):
            found.append(CompletionItem(f"{before}{comma}{rule.name}", help=rule.id))
    return found


def conditions(
    context: click.Context,  # noqa: ARG001 - click's interface
    parameter: click.Parameter,  # noqa: ARG001 - same
    incomplete: str,
) -> list[CompletionItem]:
    """Return the conditions that one can vouch for and that begin like that."""
    from click.shell_completion import CompletionItem

    from npufix.advisor.project.known_names import condition_names

    before, comma, last = incomplete.rpartition(",")
    names = sorted(condition_names())
    return [CompletionItem(f"{before}{comma}{n}") for n in names if n.startswith(last)]
