"""``npufix rules``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from npufix.advisor.commands import common

if TYPE_CHECKING:
    from npufix.rules.substitution import Substitution


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
    """List the substitutions; `show` explains one."""
    if ctx.invoked_subcommand is not None:
        return
    from npufix.rules.registry import all_rules  # noqa: PLC0415 - not needed for --help

    if as_json:
        import msgspec  # noqa: PLC0415 - same

        rows = [_row(rule) for rule in all_rules()]
        common.print_json(msgspec.json.format(msgspec.json.encode(rows)).decode())
        return
    from rich.table import Table  # noqa: PLC0415 - same

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("Id", "Table", "Slow pattern", "Kernels become"):
        table.add_column(name, overflow="fold")
    for rule in all_rules():
        table.add_row(rule.id, rule.table, rule.summary, ", ".join(rule.becomes))
    out = common.console()
    out.print(table)
    out.print("\nnpufix rules show ID explains one.", style="dim")


def _row(rule: Substitution) -> dict[str, object]:
    return {
        "id": rule.id,
        "name": rule.name,
        "table": rule.table,
        "summary": rule.summary,
        "replaces": list(rule.replaces),
        "becomes": list(rule.becomes),
        "requires": rule.requires,
        "conditions": {c.name: c.text for form in rule.forms for c in form.conditions},
    }


@command.command("show")
@click.argument("rule_id")
def show(rule_id: str) -> None:
    """Explain the rule RULE_ID (NPU101, or its name), with its example before and after."""
    from npufix.reports.explain import explain  # noqa: PLC0415 - not needed for --help
    from npufix.rules.registry import all_rules  # noqa: PLC0415 - same

    wanted = rule_id.lower()
    for rule in all_rules():
        if wanted in {rule.id.lower(), rule.name}:
            explain(rule, common.console())
            return
    known = ", ".join(rule.id for rule in all_rules())
    raise click.UsageError(f"no rule {rule_id}; there are {known}")
