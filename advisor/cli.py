"""The command line: ``npufix``. Commands import what they need when they run."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

INPUT_ERROR = 2
INTERRUPTED = 130

# Help is shown without importing any command: name -> one line.
_COMMANDS: Mapping[str, str] = {
    "compare": "Say what makes two runs differ, and whether predicted savings came true.",
    "baseline": "Keep what runs were measured at, for npufix gate.",
    "diagnose": "Say where the device time of a profiling dump goes, and which line asked for it.",
    "doctor": "Say what verification can run on here, and what to install for more.",
    "explain": "Say why a line of code is found, or what it lacks to match a rule.",
    "gate": "Fail if runs are slower than their baseline, beyond noise.",
    "patch": "Write what to change as a patch, each change verified.",
    "rules": "List and explain the substitutions.",
    "scan": "Find slow patterns in source code, without a dump.",
    "verify": "Run changed functions before and after your own change, and compare.",
}


class _Commands(click.Group):
    """Loads a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's interface
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"npufix.advisor.commands.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))


@click.command(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "NPUFIX"},
    epilog="""\b
Examples:
  npufix diagnose run1_ascend_pt --source src
  npufix patch run1_ascend_pt --source src -o npufix.patch
  npufix scan src
  npufix explain src/norm.py:22
  npufix rules show NPU101
  npufix verify src/norm.py""",
)
@click.version_option(package_name="npufix", prog_name="npufix")
def cli() -> None:
    """Find out where an Ascend NPU spends the time of a PyTorch program, and fix the line."""


def main() -> None:
    """Run the command line and exit; an expected error is one line on stderr."""
    try:
        status = cli.main(prog_name="npufix", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("npufix: interrupted", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # The reader (head, less) has gone; leave quietly, and so must the interpreter's flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        message = _expected(error)
        if message is None:
            raise
        click.echo(f"npufix: {message}", err=True)
        sys.exit(INPUT_ERROR)
    sys.exit(status if isinstance(status, int) else 0)


def _expected(error: Exception) -> str | None:
    """Return the line for an error that the user can do something about."""
    message = getattr(error, "message", None)
    remedy = getattr(error, "remedy", None)
    if isinstance(message, str) and isinstance(remedy, str):
        return f"{message} -- {remedy}"
    from npufix.reports.report import ReportError  # noqa: PLC0415 - only when something failed
    from npufix.rewriters.patch import WriteError  # noqa: PLC0415 - same
    from npufix.rules.registry import RuleError  # noqa: PLC0415 - same

    return str(error) if isinstance(error, (ReportError, RuleError, WriteError)) else None
