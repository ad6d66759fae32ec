"""The command line: ``npufix``. Commands import what they need when they run."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import TYPE_CHECKING

import click

from npufix.advisor.console import speaking, stopping
from npufix.advisor.console.loudness import with_common_options
from npufix.advisor.console.streams import make_printable

if TYPE_CHECKING:
    from collections.abc import Mapping

INPUT_ERROR = 2
READER_LEFT = 141
"""What a shell reports of a program whose reader has gone: a gate must not look green then."""

# Help is shown without importing any command: name -> one line.
_COMMANDS: Mapping[str, str] = {
    "completion": "Print what makes a shell complete commands, options, rules.",
    "bisect": "Find the commit that made a program slower.",
    "compare": "Say what makes two runs differ, and whether predicted savings came true.",
    "baseline": "Keep what runs were measured at, for npufix gate.",
    "diagnose": "Say where the device time of a profiling dump goes, and which line asked for it.",
    "doctor": "Say what verification can run on here, and what to install for more.",
    "explain": "Say why a line of code is found, or what it lacks to match a rule.",
    "gate": "Fail if runs are slower than their baseline, beyond noise.",
    "history": "Keep what every run was measured at; find what became slower over weeks.",
    "patch": "Write what to change as a patch, each change verified.",
    "redact": "Copy a dump or report without names, paths and addresses, to share it.",
    "replay": "Write a small program that times an operator with its recorded shapes.",
    "rules": "List and explain the substitutions.",
    "run": "Run a program with the changes of the rules, nothing on disk changes.",
    "scan": "Find slow patterns in source code, without a dump.",
    "undo": "Put back what npufix patch --write has changed.",
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
        return with_common_options(command)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is meant; of one that is not there, which may be meant."""
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            from npufix.advisor.project.known_names import likely

            raise click.UsageError(f"No such command {args[0]!r}.{likely(args[0], _COMMANDS)}", ctx)
        return super().resolve_command(ctx, args)

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


with_common_options(cli)
speaking.use_formatter()


def main() -> None:
    """Run the command line and exit; an expected error is one line on stderr."""
    speaking.begin(sys.argv[1:])
    make_printable()
    stopping.begin()
    try:
        status = cli.main(prog_name="npufix", standalone_mode=False)
        sys.stdout.flush()  # here, where a reader that has gone is expected
        stopping.check()
    except click.ClickException as error:
        speaking.show_error(error)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        speaking.say("npufix: interrupted")
        sys.exit(stopping.status())
    except BrokenPipeError:  # the reader (head, less) has gone; leave quietly
        _give_up_stdout()
        sys.exit(READER_LEFT)
    except Exception as error:
        message = _explain_error(error)
        if message is None:
            # Python's own exit status is 1: a gate would seem to have found a regression.
            sys.excepthook(type(error), error, error.__traceback__)
            raise SystemExit(INPUT_ERROR) from error
        if getattr(error, "errno", None) == errno.ENOSPC:
            _give_up_stdout()
        speaking.say(f"npufix: {message}")
        sys.exit(INPUT_ERROR)
    sys.exit(status if isinstance(status, int) else 0)


def _give_up_stdout() -> None:
    """Let the interpreter throw away what it has still to write, instead of failing at it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _explain_error(error: Exception) -> str | None:
    """Return the line for an error that the user can do something about."""
    message = getattr(error, "message", None)
    remedy = getattr(error, "remedy", None)
    if isinstance(message, str) and isinstance(remedy, str):
        return f"{message} -- {remedy}"
    if isinstance(error, MemoryError | ImportError):
        return _explain_loading(error)
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"{error.filename or 'the output'}: {error.strerror} -- make room"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror} -- name a file or folder that can be used"
    if isinstance(error, RuntimeError) and "Symlink loop" in str(error):
        return f"{error} -- name what the link should lead to"
    from npufix.reports.report import ReportError
    from npufix.rules.registry import RuleError

    return str(error) if isinstance(error, (ReportError, RuleError)) else None


def _explain_loading(error: MemoryError | ImportError) -> str | None:
    """Return the line for what does not fit, or does not fit together; None for a fault of ours."""
    if isinstance(error, MemoryError) or "failed to map segment" in str(error):
        return "there is not enough memory -- give it more, or fewer dumps at a time"
    if (error.name or "").startswith("npufix"):
        return None
    return f"{error} -- packages do not go together: pip install --upgrade numpy pandas pyarrow"
