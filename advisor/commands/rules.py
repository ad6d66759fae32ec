"""``npufix rules``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from npufix.advisor.commands import common
from npufix.advisor.commands import completing as completion
from npufix.advisor.console.loudness import is_quiet, is_verbose
from npufix.advisor.console.speaking import say

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from npufix.advisor.rules_test.running import Outcome
    from npufix.advisor.rules_test.subject import Subject
    from npufix.rules.registry import Rule


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  npufix rules
  npufix rules show NPU101
  npufix rules test my_rule.py""",
)
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
@click.pass_context
def command(ctx: click.Context, *, as_json: bool) -> None:
    """List the substitutions and the diagnostics of a run; `show` explains one, `test` tests it."""
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
    from npufix.reports.terminal.rules import show_rules

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
    from npufix.advisor.project.known_names import likely_rule
    from npufix.reports.terminal.rules import explain
    from npufix.rules.registry import every_rule

    wanted = rule_id.lower()
    for rule in every_rule():
        if wanted in {rule.id.lower(), rule.name}:
            if is_quiet():
                say(f"{rule.id} {rule.name}: {rule.summary}", err=False)
            else:
                explain(rule, make_console(), details=is_verbose())
            return
    raise click.UsageError(f"no rule {rule_id}; see npufix rules.{likely_rule(rule_id)}")


@command.command(
    "test",
    epilog="""\b
Examples:
  npufix rules test my_rule.py
  npufix rules test --no-run
  npufix rules test rules/substitutions/integer_cumsum.py --json""",
)
@click.argument("files", nargs=-1, type=common.PATH)
@click.option("--no-run", is_flag=True, help="Leave out what needs torch: run no pattern.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcomes as JSON.")
def test(files: tuple[Path, ...], *, no_run: bool, as_json: bool) -> None:
    """Test the rules in FILES, wherever they are; without FILES, all rules.

    A rule has to be identified and documented, to rewrite its examples exactly and once, to leave
    its look-alikes alone, and to compute the same before and after; slips in its replacement must
    be noticed on its inputs. The files are executed: name only such as you trust.
    """
    from npufix.advisor.rules_test.subject import read, subject_of
    from npufix.rules.registry import every_rule

    if files:
        subjects = [read(path) for path in files]
    else:
        subjects = [subject_of(rule) for rule in every_rule()]
    outcomes = []
    for outcome in _outcomes(subjects, no_run=no_run):
        outcomes.append(outcome)
        if not as_json:
            _say_outcome(outcome)
    from npufix.rules.shared.quantities import format_count

    failed = sum(bool(outcome.problems) for outcome in outcomes)
    if as_json:
        import msgspec

        common.print_json(msgspec.json.format(msgspec.json.encode(outcomes)).decode())
    elif not is_quiet():
        rules, checks = format_count(len(subjects), "rule"), format_count(len(outcomes), "check")
        say(f"{rules}, {checks}, {failed} failed", err=False)
    sys.exit(1 if failed else 0)


def _outcomes(subjects: Sequence[Subject], *, no_run: bool) -> Iterator[Outcome]:
    from npufix.advisor.rules_test.running import run, run_computing

    for subject in subjects:
        yield from run(subject)
    if not no_run:
        yield from run_computing(subjects)


def _say_outcome(outcome: Outcome) -> None:
    if outcome.problems or not is_quiet():
        state = "FAILED" if outcome.problems else "passed"
        click.echo(f"{outcome.rule} {outcome.check}: {state}")
    for problem in outcome.problems:
        say(f"  {problem}", err=False)
    for warning in () if is_quiet() else outcome.warnings:
        say(f"  warning: {warning}", err=False)
