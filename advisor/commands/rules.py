"""``npufix rules``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from npufix.advisor import completion
from npufix.advisor.commands import common
from npufix.advisor.loudness import is_quiet, is_verbose
from npufix.advisor.speaking import say

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
    if ctx.invoked_subcommand is not None:
        return
    from npufix.rules.registry import every_rule  # noqa: PLC0415 - not needed for --help

    if as_json:
        import msgspec  # noqa: PLC0415 - same

        rows = [_row(rule) for rule in every_rule()]
        common.print_json(msgspec.json.format(msgspec.json.encode(rows)).decode())
        return
    if is_quiet():
        for rule in every_rule():
            click.echo(f"{rule.id} {rule.name}")
        return
    from npufix.reports.terminal.rule_table import show_rules  # noqa: PLC0415 - same

    show_rules(every_rule(), common.console(), details=is_verbose())


def _row(rule: Rule) -> dict[str, object]:
    from npufix.rules.substitution import Substitution  # noqa: PLC0415 - not needed for --help

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
    from npufix.reports.terminal.rule import explain  # noqa: PLC0415 - not needed for --help
    from npufix.rules.registry import every_rule  # noqa: PLC0415 - same

    wanted = rule_id.lower()
    for rule in every_rule():
        if wanted in {rule.id.lower(), rule.name}:
            if is_quiet():
                say(f"{rule.id} {rule.name}: {rule.summary}", err=False)
            else:
                explain(rule, common.console(), details=is_verbose())
            return
    known = ", ".join(rule.id for rule in every_rule())
    raise click.UsageError(f"no rule {rule_id}; there are {known}")
