"""``npufix rules``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from npufix.advisor.commands import common
from npufix.advisor.commands import completing as completion
from npufix.advisor.console.loudness import is_quiet, is_verbose
from npufix.advisor.console.speaking import say

if TYPE_CHECKING:
    from npufix.rules.registry import Rule


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  npufix rules
  npufix rules show NPU101""",
)
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> None:
    """List the substitutions and the diagnostics of a run; `show` explains one."""
    from npufix.advisor.console.screen import make_console

    if ctx.invoked_subcommand is not None:
        return
    from npufix.rules.registry import every_rule

    if as_json:
        import msgspec

        rows = [_row(rule) for rule in every_rule()]
        common.print_json(msgspec.json.format(msgspec.json.encode(rows)).decode())
        return
    if is_quiet():
        for rule in every_rule():
            click.echo(f"{rule.id} {rule.name}")
        return
    from npufix.reports.terminal.rule_table import show_rules

    show_rules(every_rule(), make_console(), details=is_verbose())


def _row(rule: Rule) -> dict[str, object]:
    from npufix.rules.substitution import Substitution

    row = {"id": rule.id, "name": rule.name, "table": rule.table, "summary": rule.summary}
    if not isinstance(rule, Substitution):
        return {**row, "requires": rule.requires, "advice": rule.advice}
    return {
        **row,
        "replaces": list(rule.replaces),
        "becomes": list(rule.becomes),
        "requires": rule.requires,
        "advice": rule.advice,
        "silent": rule.silent,
        "conditions": {c.name: c.text for form in rule.forms for c in form.conditions},
    }


@command.command(
    "show",
    epilog="""\b
Examples:
  npufix rules show NPU101
  npufix rules show eager-rms-norm""",
)
@click.argument("rule_id", shell_complete=completion.rule_ids)
def show(rule_id: str) -> None:
    """Explain the rule RULE_ID (NPU101, or its name), with its example before and after."""
    from npufix.advisor.console.screen import make_console
    from npufix.reports.terminal.rule import explain
    from npufix.rules.registry import every_rule

    wanted = rule_id.lower()
    for rule in every_rule():
        if wanted in {rule.id.lower(), rule.name}:
            if is_quiet():
                say(f"{rule.id} {rule.name}: {rule.summary}", err=False)
            else:
                explain(rule, make_console(), details=is_verbose())
            return
    known = ", ".join(rule.id for rule in every_rule())
    raise click.UsageError(f"no rule {rule_id}; there are {known}")
