"""The commands as mkdocs-click shows them: ``site_commands.gate`` is ``npufix gate``.

mkdocs-click writes headings, usage and options. What it leaves out is put where it looks: examples
are added to the help, and the environment variable to each option.
"""

from __future__ import annotations

import copy
import inspect
import re
import textwrap

import click
from site_markup import escaped, fenced

from npufix.advisor.commands.cli import cli

_CONTEXT = click.Context(cli, info_name="npufix", auto_envvar_prefix="NPUFIX")
_WIDTH = 78
_PAGE = """::: mkdocs-click
    :module: site_commands
    :command: {0}
    :prog_name: npufix {0}
"""


def pages() -> dict[str, tuple[str, str]]:
    """Return the place and the text of the page of each command."""
    names = cli.list_commands(_CONTEXT)
    return {name: (f"reference/commands/{name}.md", _PAGE.format(name)) for name in names}


def __getattr__(name: str) -> click.Command:
    command = None if name.startswith("_") else cli.get_command(_CONTEXT, name)
    if command is None:
        raise AttributeError(name)
    made = _documented(command)
    prefix = click.Context(command, _CONTEXT, name).auto_envvar_prefix
    made.context_settings |= cli.context_settings
    made.context_settings |= {"auto_envvar_prefix": prefix, "terminal_width": _WIDTH}
    return made


def _documented(command: click.Command) -> click.Command:
    """Return a copy: the commands themselves show no variables in their ``--help``."""
    made = copy.copy(command)
    made.context_settings = dict(command.context_settings)
    made.help = f"{escaped(inspect.cleandoc(command.help or ''))}\n\n{_examples(command)}"
    made.params = [copy.copy(parameter) for parameter in command.params]
    for option in made.params:
        # NPUFIX_LANG, which the help names, gives the language to all commands.
        if isinstance(option, click.Option) and option.name != "lang":
            option.show_envvar = True
    if isinstance(made, click.Group):
        made.commands = {name: _documented(inner) for name, inner in made.commands.items()}
    return made


def _examples(command: click.Command) -> str:
    """Return the epilog of a command: examples, as code, and what is said behind them."""
    text = inspect.cleandoc((command.epilog or "").replace("\b\n", "\n"))
    examples, _, behind = text.removeprefix("Examples:\n").partition("\n\n")
    code = fenced(textwrap.dedent(examples), "sh")
    return f"**Examples:**\n\n{code}\n\n{escaped(behind)}" if examples else ""


def writers() -> dict[str, list[str]]:
    """Return for each format of ``--output`` the commands that say they write it."""
    found: dict[str, list[str]] = {}
    for name in cli.list_commands(_CONTEXT):
        for option in getattr(cli.get_command(_CONTEXT, name), "params", ()):
            listed = re.search(r"FORMAT: ([^.]*)\.", getattr(option, "help", None) or "")
            for each in listed[1].split(", ") if listed else ():
                found.setdefault(each, []).append(name)
    return found
